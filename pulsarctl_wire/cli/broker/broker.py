"""`pwire broker`: an embedded Pulsar broker."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.broker import ctl
from pulsarctl_wire.cli.command import Group
from pulsarctl_wire.cli.options import LOOPBACK
from pulsarctl_wire.cli.proxy.options import ENDING, FaultOptions, WatchOptions, announce_faults, check
from pulsarctl_wire.cli.signature import flag, group, option, several, takes

if TYPE_CHECKING:
    from asyncio import Event

    from pulsarctl_wire.broker.basics.settings import Settings
    from pulsarctl_wire.broker.cluster.cluster import Broker
    from pulsarctl_wire.broker.shell.running import Plan, Running, Sockets
    from pulsarctl_wire.cli.proxy.watcher import WatchedRing
    from pulsarctl_wire.faults.lanes import Faults

WHERE, DATA, SETTINGS = "Where", "Topics and data", "Settings"
_POLL_INTERVAL: Final = 0.5  # seconds between two looks at the parent, where no pidfd can wait for its end


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where the broker listens, and who ends it."""

    host: str | None = option(
        "--host HOST", "Address to listen on.", WHERE, show_default=f"bindAddress of --conf, or {LOOPBACK}"
    )
    port: int | None = option(
        "--port -p PORT",
        "Port of the binary protocol; 0: any.",
        WHERE,
        min=0,
        max=65_535,
        show_default="6650",
    )
    http_port: int | None = option(
        "--http-port PORT", "Port of the admin API; 0: any.", WHERE, min=0, max=65_535, show_default="8080"
    )
    tls_port: int | None = option(
        "--tls-port PORT", "Port of pulsar+ssl://; 0: any.", WHERE, min=0, max=65_535
    )
    https_port: int | None = option(
        "--https-port PORT", "Port of https://; 0: any.", WHERE, min=0, max=65_535
    )
    keylog: str | None = option(
        "--keylog FILE", "Append the keys of TLS connections, for decode --keylog or Wireshark.", WHERE
    )
    brokers: int = option(
        "--brokers N", "A cluster of several brokers, with ports in a row.", WHERE, default=1, min=1, max=100
    )
    json: bool = flag("--json", "Print a line of JSON on stdout when ready: URLs and process id.", WHERE)
    exit_with_parent: bool = flag("--exit-with-parent", "End when the process that started it ends.", WHERE)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is stored, where, and how the broker behaves."""

    data: str | None = option(
        "--data DIR",
        "Directory of the data, which stays. Default: a temporary one.",
        DATA,
        show_default=False,
    )
    memory: bool = flag("--memory", "Keep the data in memory.", DATA)
    partitions: list[str] = several(
        "--partitions TOPIC=N", "Have this partitioned topic from the start.", DATA
    )
    no_auto_create: bool = flag("--no-auto-create", "Topics have to be created by the admin API.", DATA)
    conf: str | None = option(
        "--conf FILE", "A file such as Pulsar's standalone.conf.", SETTINGS, show_default=False
    )
    set_: list[str] = several(
        "--set KEY=VALUE", "A line of standalone.conf: brokerDeduplicationEnabled=true.", SETTINGS
    )


@dataclass(frozen=True, kw_only=True)
class InjectOptions:
    """Which faults to inject."""

    faults: FaultOptions = group(FaultOptions, control="Unix socket for pwire broker ctl; '' for no socket.")


app = typer.Typer(name="broker", cls=Group)
app.add_typer(ctl.app, name="ctl")


def broker(
    context: typer.Context,
    place: PlaceOptions,
    data: DataOptions,
    watch_options: WatchOptions,
    inject_options: InjectOptions,
) -> None:
    """Run an embedded Pulsar broker, for tests and development."""
    if context.invoked_subcommand is None:
        with console.errors_reported():
            if watch_options.has_screen:
                from pulsarctl_wire.cli.tui.live import run_live

                serve = partial(_run, place, data)
                raise SystemExit(run_live("broker", watch_options, inject_options.faults, serve))
            raise SystemExit(_run(place, data, watch_options, inject_options.faults))


app.callback(invoke_without_command=True)(takes(broker))


def _run(
    place: PlaceOptions, data: DataOptions, watch_options: WatchOptions, fault_options: FaultOptions
) -> int:
    """Check everything, and serve until a signal comes; returns the exit code."""
    parent = os.getppid()
    check(watch_options)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until `_serve` handles them
    settings = _settings(data)
    faults = fault_options.make_faults() if fault_options.has_faults else None
    with ExitStack() as stack:
        plan = _plan(place, data, settings, stack)
        from pulsarctl_wire.broker.shell.running import bind, close_all
        from pulsarctl_wire.net.sockets import allow_many_sockets

        allow_many_sockets()
        sockets = bind(plan)
        watched_ring = None
        if watch_options.is_needed:
            from pulsarctl_wire.cli.proxy.watcher import WatchedRing

            watched_ring = stack.enter_context(WatchedRing(watch_options, partial(close_all, sockets)))
        import asyncio

        run = _Run(plan, sockets, place, fault_options, parent)
        asyncio.run(_serve(run, faults, watched_ring))
    return watched_ring.code if watched_ring is not None else 0


# -- what the options mean


def _settings(options: DataOptions) -> Settings:
    """Read --conf, --set and --no-auto-create, and print notes on them. Raises SettingsError."""
    from pulsarctl_wire.broker.basics.settings import list_notes, parse_settings, read_conf

    lines: dict[str, object] = {}
    if options.conf is not None:
        lines.update(read_conf(options.conf))
    for text in options.set_:
        key, equals, value = text.partition("=")
        if not equals or not key:
            console.fail(f"--set {text}: use KEY=VALUE, as in brokerDeduplicationEnabled=true")
        lines[key.strip()] = value
    if options.no_auto_create:
        lines["allowAutoTopicCreation"] = False
    for note in list_notes(lines):
        console.warn(note)
    return parse_settings(lines)


def _plan(place: PlaceOptions, data: DataOptions, settings: Settings, stack: ExitStack) -> Plan:
    from pulsarctl_wire.broker.shell.running import Plan

    values = vars(settings)
    if data.memory and data.data is not None:
        console.fail("--data cannot be combined with --memory")
    tls_port = settings.brokerServicePortTls if place.tls_port is None else place.tls_port
    https_port = settings.webServicePortTls if place.https_port is None else place.https_port
    if settings.tlsCertificateFilePath and tls_port is None and https_port is None:
        console.warn("tlsCertificateFilePath has no effect without --tls-port or --https-port")
    if place.keylog and tls_port is None and https_port is None:
        console.fail("--keylog: the broker uses no TLS; see --tls-port and --https-port")
    return Plan(
        settings=settings,
        host=place.host or values.get("bindAddress") or LOOPBACK,
        port=_port(place.port, settings.brokerServicePort),
        http_port=_port(place.http_port, settings.webServicePort),
        tls_port=tls_port,
        https_port=https_port,
        keylog=place.keylog,
        data=_directory(data, stack),
        brokers=place.brokers,
        partitions=_partitions(data.partitions),
    )


def _port(option: int | None, setting: int | None) -> int:
    return (setting or 0) if option is None else option


def _directory(options: DataOptions, stack: ExitStack) -> Path | None:
    """Return the directory of the data; None: in memory."""
    if options.memory:
        return None
    if options.data is not None:
        return Path(options.data)
    from tempfile import TemporaryDirectory

    return Path(stack.enter_context(TemporaryDirectory(prefix="pwire-broker-")))


def _partitions(texts: list[str]) -> dict[str, int]:
    from pulsarctl_wire.broker.shell.running import MAX_PARTITIONS

    counts = {}
    for text in texts:
        topic, _, number = text.rpartition("=")
        is_number = number.isascii() and number.isdigit() and len(number) < 9
        if not topic or not is_number or not 0 < int(number) <= MAX_PARTITIONS:
            console.fail(f"--partitions {text}: use TOPIC=N, as in orders=3")
        counts[topic] = int(number)
    return counts


# -- running


class _Run(NamedTuple):
    """What is to be run: a plan with its sockets, and the options. `parent` is the parent process's id."""

    plan: Plan
    sockets: list[Sockets]
    place: PlaceOptions
    fault_options: FaultOptions
    parent: int


async def _serve(run: _Run, faults: Faults | None, watched_ring: WatchedRing | None) -> None:
    """Serve until a signal comes, or the parent ends."""
    import asyncio

    from pulsarctl_wire.broker.shell.running import Running, tls_context

    plan, place = run.plan, run.place
    loop, end_event = asyncio.get_running_loop(), asyncio.Event()
    for number in ENDING:
        loop.add_signal_handler(number, end_event.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if place.exit_with_parent:
        _watch_parent(run.parent, end_event)
    tap, note = None, console.warn
    if watched_ring is not None:
        from pulsarctl_wire.net.proxy.tap import RingTap

        tap, note = RingTap(watched_ring.ring), watched_ring.ring.note
        watched_ring.follow(tap.restart, "the broker")
    cluster = Running(plan, run.sockets, tls=tls_context(plan), tap=tap, note=note)
    cluster.server.faults = faults
    cluster.server.new_faults = run.fault_options.make_faults
    server = None
    try:
        await cluster.open()
        server = await _control(cluster, run.fault_options.control)
        with suppress(OSError):  # stdout or stderr may be closed
            _announce(cluster, place)
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)  # SENDs come and go, and make no cycles
        await end_event.wait()
        for number in ENDING:
            loop.remove_signal_handler(number)  # a second signal ends the process at once
    finally:
        if server is not None:
            await server.close()
        await cluster.close()


async def _control(cluster: Running, control: str | None) -> Any:
    """Open the socket for `ctl` at `control` (None: where `ctl` looks); returns None if it is "".

    Raises SettingsError.
    """
    if control == "":
        return None
    from pulsarctl_wire.broker.shell.control import answer
    from pulsarctl_wire.net.control import Control, ensure_directory

    path = control or str(ensure_directory(os.environ) / f"broker-{cluster.port}.sock")
    server = Control(Path(path), partial(answer, cluster.server), "broker")
    await server.open()
    return server


def _announce(cluster: Running, place: PlaceOptions) -> None:
    """Print where the brokers are."""
    if place.json:
        import json

        first, *_ = records = [_urls(broker) for broker in cluster.brokers]
        extra = {"brokers": records} if len(records) > 1 else {}
        sys.stdout.write(json.dumps({**first, "pid": os.getpid(), **extra}) + "\n")
        sys.stdout.flush()
    for broker in cluster.brokers:
        urls = " and ".join(filter(None, (broker.service_url, broker.service_url_tls)))
        admin = " and ".join(filter(None, (broker.http_url, broker.https_url)))
        console.warn(f"broker at {urls}, admin API at {admin}")
    from pulsarctl_wire.net.sockets import ANY_HOST

    plan = cluster.plan
    if place.host is None and plan.host in ANY_HOST:
        console.warn(
            f"bindAddress={plan.host}: other machines can connect, unless --host {LOOPBACK} is given"
        )
    if plan.tls_port is not None and not plan.settings.tlsCertificateFilePath:
        from pulsarctl_wire.net.certificates import ensure_ca, find_ca_directory

        console.warn(f"clients have to trust {ensure_ca(find_ca_directory(os.environ))[0]}")
    if cluster.server.faults is not None:
        announce_faults(cluster.server.faults)
    console.warn("ready; Ctrl-C ends it")


def _urls(broker: Broker) -> dict[str, str | None]:
    return {
        "service_url": broker.service_url,
        "http_url": broker.http_url,
        "service_url_tls": broker.service_url_tls or None,
        "https_url": broker.https_url or None,
    }


def _watch_parent(parent: int, end_event: Event) -> None:
    """Set `end_event` when the process `parent`, which started this one, ends."""
    import asyncio

    loop = asyncio.get_running_loop()
    if os.getppid() != parent:
        end_event.set()
    elif hasattr(os, "pidfd_open"):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(parent)
            loop.add_reader(descriptor, end_event.set)
            return
        end_event.set()
    else:
        loop.call_later(_POLL_INTERVAL, _watch_parent, parent, end_event)
