"""`pwire proxy`: stand between clients and a cluster, forward, and show what passes.

This process forwards, and prints only before it begins; a fork (`watching.py`) shows, records and counts, and
says all that is to be said. They share a ring (`net/tap.py`) that never makes the first one wait. A third
process (`keeping.py`) starts the watcher again if it dies.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pulsarctl_wire.cli import completion, console, proxy_ctl
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.decode import Output, TimeFormat
from pulsarctl_wire.cli.options import (
    ROTATE_FILES,
    ROTATE_SIZE,
    ROTATE_TIME,
    WIDE,
    host_port,
    option,
    rotation,
)
from pulsarctl_wire.cli.session import flags_of
from pulsarctl_wire.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsarctl_wire.cli.keeping import Watcher
    from pulsarctl_wire.cli.watching import Options
    from pulsarctl_wire.faults import Fault, Faults
    from pulsarctl_wire.net.proxy import Plan, Proxy
    from pulsarctl_wire.net.settings import Address, Settings
    from pulsarctl_wire.net.sockets import Socket
    from pulsarctl_wire.net.tap import Ring

WHERE, CLUSTER, TLS = "Where", "Whole clusters", "TLS"
TAP, WATCH, FAULTS = "The tap", "Records and counters", "Faults"

LISTEN: Final = "127.0.0.1:6649"
_FILES: Final = 65_536

app = typer.Typer(
    name="proxy", cls=Group, help="Stand between clients and a cluster, show and disturb what passes."
)
app.add_typer(proxy_ctl.app, name="ctl")
app.command("faults", cls=Command)(proxy_ctl.faults)


@app.callback(invoke_without_command=True)
def proxy(
    context: typer.Context,
    listen: Annotated[
        str, option(WHERE, "--listen", "-l", metavar="HOST:PORT", help="Where clients connect; port 0: any.")
    ] = LISTEN,
    to: Annotated[
        str | None,
        option(
            WHERE,
            "--to",
            metavar="URL",
            help="Service URL to forward to: pulsar://host:port, pulsar+ssl://…. "
            "Default pulsar://localhost:6650.",
        ),
    ] = None,
    conf: Annotated[
        str | None,
        option(WHERE, "--conf", metavar="FILE", help="A client.conf, as Pulsar's own tools read it."),
    ] = None,
    connect_timeout: Annotated[
        float,
        option(WHERE, "--connect-timeout", metavar="SECONDS", min=0.1, help="How long dialling may take."),
    ] = 10.0,
    drain: Annotated[
        float,
        option(
            WHERE, "--drain", metavar="SECONDS", min=0, help="At the end: how long what came may take to go."
        ),
    ] = 5.0,
    proxy_header_in: Annotated[
        bool,
        option(WHERE, "--proxy-protocol", help="Clients' connections begin with a PROXY header (HAProxy)."),
    ] = False,
    proxy_header_out: Annotated[
        int,
        option(
            WHERE,
            "--send-proxy-protocol",
            metavar="1|2",
            min=0,
            max=2,
            help="Begin those to brokers with one.",
        ),
    ] = 0,
    no_rewrite: Annotated[
        bool, option(CLUSTER, "--no-rewrite", help="Leave the addresses that brokers give as they are.")
    ] = False,
    through: Annotated[
        bool,
        option(
            CLUSTER,
            "--through",
            help="One listener for all: clients name the broker in CONNECT (proxy_to_broker_url).",
        ),
    ] = False,
    map_: Annotated[
        list[str] | None,
        option(
            CLUSTER,
            "--map",
            metavar="BROKER=HOST:PORT",
            help="What clients are told in place of a broker's address; pwire listens there if it can.",
        ),
    ] = None,
    dial: Annotated[
        list[str] | None,
        option(CLUSTER, "--dial", metavar="BROKER=HOST:PORT", help="Where a broker is reached from here."),
    ] = None,
    allow_broker: Annotated[
        list[str] | None,
        option(
            CLUSTER,
            "--allow-broker",
            metavar="CIDR|HOST",
            help="Where addresses that brokers name may lead. Default: anywhere but link-local addresses.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        option(CLUSTER, "--advertise", metavar="HOST", help="The host that clients know this machine by."),
    ] = None,
    ports: Annotated[
        str | None,
        option(CLUSTER, "--ports", metavar="FIRST-LAST", help="Ports of the listeners for brokers."),
    ] = None,
    tls: Annotated[
        bool, option(TLS, "--tls", help="Clients speak TLS with pwire, by a certificate of pwire's own CA.")
    ] = False,
    listen_cert: Annotated[
        str | None,
        option(TLS, "--listen-cert", metavar="FILE", help="The same, by this certificate (PEM, with chain)."),
    ] = None,
    listen_key: Annotated[
        str | None, option(TLS, "--listen-key", metavar="FILE", help="Its key, PEM.")
    ] = None,
    client_ca: Annotated[
        str | None,
        option(TLS, "--client-ca", metavar="FILE", help="Clients need a certificate signed by one of these."),
    ] = None,
    ca_dir: Annotated[
        str | None,
        option(
            TLS, "--ca-dir", metavar="DIR", help="Where pwire's CA is kept. Default ~/.local/share/pwire."
        ),
    ] = None,
    tls_ca: Annotated[
        str | None,
        option(
            TLS, "--tls-ca", "--tlsTrustCertsFilePath", metavar="FILE", help="Whom brokers are trusted by."
        ),
    ] = None,
    tls_cert: Annotated[
        str | None, option(TLS, "--tls-cert", metavar="FILE", help="Our certificate for brokers, PEM.")
    ] = None,
    tls_key: Annotated[str | None, option(TLS, "--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    tls_allow_insecure: Annotated[
        bool, option(TLS, "--tls-allow-insecure", help="Do not verify brokers' certificates.")
    ] = False,
    no_tls_hostname_check: Annotated[
        bool, option(TLS, "--no-tls-hostname-check", help="Take a certificate for another host name.")
    ] = False,
    keylog: Annotated[
        str | None,
        option(TLS, "--tls-keylog", metavar="FILE", help="Add the keys of both sides' TLS, for Wireshark."),
    ] = None,
    tap: Annotated[bool, option(TAP, "--tap", help="Show the frames that pass.")] = False,
    output: Annotated[Output, option(TAP, "-o", "--output", help="Form of the tap.")] = Output.line,
    filter_: Annotated[
        str | None,
        option(TAP, "-f", "--filter", metavar="EXPR", help="Show what this holds for, as in decode."),
    ] = None,
    command: Annotated[
        list[str] | None,
        option(TAP, "--command", metavar="NAME", help="As in decode.", autocompletion=completion.commands),
    ] = None,
    topic: Annotated[
        list[str] | None,
        option(TAP, "--topic", metavar="TOPIC", help="A topic in any spelling, or a pattern with *."),
    ] = None,
    connection: Annotated[
        list[str] | None,
        option(
            TAP, "--connection", metavar="N|ADDRESS", help="A connection's number, or part of its addresses."
        ),
    ] = None,
    schema: Annotated[
        str | None,
        option(TAP, "--schema", metavar="TYPE[:FILE]", help="Show payloads by this schema, as in decode."),
    ] = None,
    time_format: Annotated[
        TimeFormat, option(TAP, "-t", "--time", help="How times are shown.")
    ] = TimeFormat.utc,
    show_secrets: Annotated[
        bool, option(TAP, "--show-secrets", help="Leave credentials in the tap and the record.")
    ] = False,
    wide: Annotated[bool, WIDE] = False,
    record: Annotated[
        str | None, option(WATCH, "--record", "-w", metavar="FILE", help="Write what passes as pcapng.")
    ] = None,
    rotate_size: Annotated[str | None, ROTATE_SIZE] = None,
    rotate_time: Annotated[str | None, ROTATE_TIME] = None,
    rotate_files: Annotated[int, ROTATE_FILES] = 0,
    stats: Annotated[bool, option(WATCH, "--stats", help="A live table on the terminal (stderr).")] = False,
    metrics: Annotated[
        str | None,
        option(WATCH, "--metrics", metavar=":PORT", help="Serve metrics for Prometheus, on loopback: :9464."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        option(
            FAULTS,
            "--fault",
            metavar="FAULT",
            help="Such as 'drop command=SEND_RECEIPT nth=1'; pwire proxy faults lists them.",
            autocompletion=completion.faults,
        ),
    ] = None,
    scenario: Annotated[
        str | None, option(FAULTS, "--scenario", metavar="FILE", help="Faults and their seed, YAML.")
    ] = None,
    seed: Annotated[
        int | None, option(FAULTS, "--seed", metavar="N", help="What chance is drawn from; else one is made.")
    ] = None,
    control: Annotated[
        str | None,
        option(
            FAULTS, "--control", metavar="PATH", help="Unix socket for pwire proxy ctl; none: '' (no socket)."
        ),
    ] = None,
) -> None:
    """Stand between clients and a cluster: forward bytes untouched, and show decoded frames as they pass."""
    if context.invoked_subcommand is not None:
        return
    given = dict(locals())
    with console.errors_said():
        raise SystemExit(_run(given))


def _run(given: dict[str, Any]) -> int:
    """Check everything, fork the watcher, forward until a signal; gives the exit code."""
    _allow_connections()
    faults = _faults(given)
    plan = _plan(given)
    options = _options(given)
    from pulsarctl_wire.cli.keeping import ENDING, Watcher
    from pulsarctl_wire.cli.watching import watch
    from pulsarctl_wire.net.tap import Ring

    sock = _listen(plan.listen)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until somebody minds them
    ring = Ring(wants_bytes=bool(options.shown or options.record or options.stats or options.metrics))
    watcher = Watcher(partial(watch, options, ring), ring, sock)
    ring.for_proxy()
    try:
        code = _forward(given, plan, faults, ring, sock, watcher)
    finally:
        ring.end()
        watched = watcher.wait()
    return code or watched


def _allow_connections() -> None:
    """As many open files as this user may have: each connection takes two."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    with suppress(ValueError, OSError):  # some systems say "unlimited" and do not mean it
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _listen(address: Address) -> Socket:
    """The socket that clients connect to: before anything else is touched."""
    from pulsarctl_wire.net.sockets import bound

    try:
        return bound(address)
    except OSError as error:
        why = error.strerror or error
        console.fail(f"--listen {address}: {why}; name another with --listen", console.EXIT_USAGE)


# -- what the options mean


def _plan(given: dict[str, Any]) -> Plan:
    from pulsarctl_wire.net.allowed import Allowed
    from pulsarctl_wire.net.proxy import Plan
    from pulsarctl_wire.net.routing import Routing
    from pulsarctl_wire.net.settings import Address
    from pulsarctl_wire.net.sockets import ANY_HOST

    if given["no_rewrite"] and given["through"]:
        console.fail("--through goes without --no-rewrite: clients have to be told", console.EXIT_USAGE)
    routing = (
        Routing.NONE if given["no_rewrite"] else Routing.CONNECT if given["through"] else Routing.LISTENERS
    )
    listen = Address(*host_port("--listen", given["listen"]))
    told = _mapping("--map", given["map_"])
    context = None
    if given["tls"] or given["listen_cert"]:
        from pulsarctl_wire.net.certificates import server_context

        directory = Path(given["ca_dir"]) if given["ca_dir"] else None
        names = [given["advertise"] or listen.host, *(address.host for address in told.values())]
        if names[0] in ANY_HOST and not given["listen_cert"]:
            text = f"--tls with --listen {listen} needs --advertise HOST, by which clients know this machine"
            console.fail(text, console.EXIT_USAGE)
        context = server_context(
            given["listen_cert"],
            given["listen_key"],
            ca_directory=directory,
            names=names,
            client_ca=given["client_ca"],
        )
    elif given["listen_key"] or given["client_ca"]:
        console.fail("--listen-key and --client-ca go with --tls or --listen-cert", console.EXIT_USAGE)
    settings = _settings(given)
    if given["keylog"] and context is None and not settings.url.tls:
        console.fail("--tls-keylog: no side speaks TLS; see --tls, and pulsar+ssl://", console.EXIT_USAGE)
    return Plan(
        listen,
        settings,
        routing,
        advertise=given["advertise"],
        told=told,
        dials=_mapping("--dial", given["dial"]),
        ports=_ports(given["ports"]),
        tls=context,
        key_log=given["keylog"],
        header_in=given["proxy_header_in"],
        header_out=given["proxy_header_out"],
        allowed=Allowed(given["allow_broker"] or ()),
    )


def _settings(given: dict[str, Any]) -> Settings:
    from pulsarctl_wire.net.settings import gather, settings_from

    flags = {"url": given["to"], **flags_of(given, ("tls_ca", "tls_cert", "tls_key"))}
    return settings_from(gather(flags, os.environ, given["conf"]), connect_timeout=given["connect_timeout"])


def _mapping(flag: str, texts: list[str] | None) -> dict[Address, Address]:
    found = {}
    for text in texts or ():
        broker, equals, address = text.partition("=")
        if not equals:
            console.fail(f"{flag} {text}: BROKER=HOST:PORT is wanted", console.EXIT_USAGE)
        found[_address(flag, text, broker)] = _address(flag, text, address)
    return found


def _address(flag: str, whole: str, text: str) -> Address:
    from pulsarctl_wire.net.settings import parse_url

    try:
        return parse_url(text).addresses[0]
    except SettingsError as error:
        console.fail(f"{flag} {whole}: {error}", console.EXIT_USAGE)


def _ports(text: str | None) -> range:
    if text is None:
        return range(0)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not 0 < int(match[1]) <= int(match[2]) < 65_536:
        console.fail(f"--ports {text}: FIRST-LAST is wanted, as in 16650-16699", console.EXIT_USAGE)
    return range(int(match[1]), int(match[2]) + 1)


def _options(given: dict[str, Any]) -> Options:
    from pulsarctl_wire.cli.watching import Options

    turns = rotation(given["rotate_size"], given["rotate_time"], given["rotate_files"])
    if any(turns) and not given["record"]:
        console.fail("--rotate-… goes with --record FILE", console.EXIT_USAGE)
    chosen = [name for name in ("filter_", "command", "topic", "connection", "schema") if given[name]]
    chosen += ["output"] * (given["output"] is not Output.line)
    chosen += ["time"] * (given["time_format"] is not TimeFormat.utc)
    if chosen and not given["tap"]:
        console.fail(f"--{chosen[0].rstrip('_')} goes with --tap", console.EXIT_USAGE)
    if given["stats"] and given["tap"] and sys.stdout.isatty() and sys.stderr.isatty():
        text = "--stats draws on the terminal that --tap would print to; send the tap elsewhere: > tap.txt"
        console.fail(text, console.EXIT_USAGE)
    return Options(
        shown=given["tap"],
        output=given["output"].value,
        expression=given["filter_"],
        commands=given["command"] or [],
        topics=given["topic"] or [],
        connections=given["connection"] or [],
        schema=given["schema"],
        time_format=given["time_format"].value,
        show_secrets=given["show_secrets"],
        record=given["record"],
        rotation=turns,
        stats=given["stats"],
        metrics=given["metrics"],
    )


def _faults(given: dict[str, Any]) -> Faults:
    """The faults of flags and scenario. Raises SettingsError, FilterError."""
    from random import SystemRandom

    from pulsarctl_wire.faults import Faults, parse_fault, parse_scenario

    seed = given["seed"]
    wanted: list[Fault] = []
    if given["scenario"]:
        path = given["scenario"]
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text in UTF-8"
            console.fail(f"--scenario {path}: {why}", console.EXIT_SOURCE)
        found = parse_scenario(text)
        seed = found.seed if seed is None else seed
        wanted += found.faults
    wanted += map(parse_fault, given["fault"] or ())
    faults = Faults(SystemRandom().randrange(2**32) if seed is None else seed, _tester)
    for fault in wanted:
        faults.add(fault)
    return faults


def _tester(fault: Fault) -> Callable[[Any], bool] | None:
    """The test of a fault's topics and filter, by the options of decode. Raises FilterError."""
    from pulsarctl_wire.cli import select

    tests = select.tests([], [], list(fault.topic))
    if fault.filter:
        from pulsarctl_wire.record import Recorder

        recorder = Recorder(show_secrets=True)
        tests.append(select.Expression(fault.filter, recorder, f"{fault.name}: filter"))
    return (lambda frame: all(test(frame) for test in tests)) if tests else None


# -- the two processes


def _forward(
    given: dict[str, Any], plan: Plan, faults: Faults, ring: Ring, sock: Socket, watcher: Watcher
) -> int:
    """Forward until a signal comes."""
    import asyncio

    from pulsarctl_wire.cli.keeping import ENDING
    from pulsarctl_wire.net.control import Control, own_directory
    from pulsarctl_wire.net.proxy import Proxy

    async def run() -> int:
        proxy = Proxy(plan, faults, ring)
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda loop, context: proxy.note(_bug(context)))
        loop.add_reader(watcher.fileno(), partial(_mind, watcher, ring, proxy))
        for number in ENDING:
            loop.add_signal_handler(number, over.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        address = await proxy.open(sock)
        path = given["control"]
        where = own_directory(os.environ) / f"proxy-{address.port}.sock" if path is None else Path(path)
        control = None if path == "" else Control(where, lambda asked: proxy_ctl.answer(proxy, asked))
        if control is not None:
            await control.open()
        with suppress(OSError):  # nobody may read stderr
            _announce(proxy, address, given)
        try:
            await over.wait()
            for number in ENDING:
                loop.remove_signal_handler(number)  # a second one ends it at once
            await proxy.close(given["drain"])
        finally:
            if control is not None:
                await control.close()
        count = proxy.connections
        to_clients, to_brokers = map(console.human_bytes, proxy.carried)
        refused = "".join(f"; {number} refused: {why}" for why, number in proxy.refused.items())
        carried = f"{to_brokers} to brokers, {to_clients} to clients"
        ring.note(f"{count} connection{'s' * (count != 1)}; {carried}{refused}")
        return 0

    return asyncio.run(run())


def _mind(watcher: Watcher, ring: Ring, proxy: Proxy) -> None:
    """There is news of the watcher: another one has begun, or nobody takes what is put into the ring."""
    import asyncio
    import threading

    if watcher.news():
        proxy.tell_again()
        return
    asyncio.get_running_loop().remove_reader(watcher.fileno())
    ring.wants_bytes = False
    text = "the tap has ended; forwarding goes on unseen"
    threading.Thread(target=console.complain, args=(text,), daemon=True).start()  # for that may wait


def _bug(context: dict[str, Any]) -> str:
    """What asyncio tells of an exception that nobody has caught, in one line."""
    error = context.get("exception")
    what = f" ({type(error).__name__}: {error})" if error is not None else ""
    return f"a bug in pwire: {context['message']}{what}; forwarding goes on"


def _announce(proxy: Proxy, address: Address, given: dict[str, Any]) -> None:
    """Say who listens and where it leads."""
    from pulsarctl_wire.net.settings import Address
    from pulsarctl_wire.net.sockets import ANY_HOST

    plan, faults = proxy.plan, proxy.faults

    host = plan.advertise or (platform.node() if address.host in ANY_HOST else address.host)
    url = f"pulsar{'+ssl' if plan.tls else ''}://{Address(host, address.port)}"
    console.complain(f"listening on {address}, forwarding to {plan.settings.url}; for clients: {url}")
    if plan.tls is not None and not given["listen_cert"]:
        from pulsarctl_wire.net.certificates import default_ca_directory, own_ca

        directory = Path(given["ca_dir"]) if given["ca_dir"] else default_ca_directory(os.environ)
        console.complain(f"clients have to trust {own_ca(directory)[0]}")
    for rule in faults.listing():
        from pulsarctl_wire.faults import fault_text

        console.complain(f"fault #{rule.number}: {fault_text(rule.fault)}")
    if faults:
        console.complain(f"seed {faults.seed}")
