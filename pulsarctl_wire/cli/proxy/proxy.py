"""`pwire proxy`: forwards clients' connections to a cluster, shows the traffic and injects faults.

This process forwards, and prints only while it starts. A fork of it, the watcher (`watcher.py`), shows,
records and counts, and prints all messages. They share a ring buffer (`net/proxy/tap.py`) that never makes
this process wait. A third process (`keeper.py`) restarts the watcher if it dies.
"""

from __future__ import annotations

import os
import platform
import re
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.command import Command, Group
from pulsarctl_wire.cli.ctl import RunningProxy, make_fault_commands, write
from pulsarctl_wire.cli.options import parse_address
from pulsarctl_wire.cli.proxy.options import (
    ENDING,
    FaultOptions,
    ForwardOptions,
    WatchOptions,
    announce_faults,
    check,
)
from pulsarctl_wire.cli.signature import takes
from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.render.text import count_of, human_bytes

if TYPE_CHECKING:
    from pulsarctl_wire.cli.proxy.watcher import WatchedRing
    from pulsarctl_wire.net.proxy.proxy import Plan, Proxy
    from pulsarctl_wire.net.settings import Address, ServiceUrl
    from pulsarctl_wire.net.sockets import Socket


_HTTP_PORT, _HTTPS_PORT = 8080, 8443  # of web services, as brokers have them by default

app = typer.Typer(name="proxy", cls=Group)
ctl = typer.Typer(cls=Group, help="Change the faults of a running proxy.", no_args_is_help=True)
ctl.add_typer(make_fault_commands(RunningProxy), name="fault")
app.add_typer(ctl, name="ctl")


@app.command(cls=Command)
def faults() -> None:
    """List the kinds of faults, with their parameters."""
    from pulsarctl_wire.faults import FAULTS
    from pulsarctl_wire.faults.base import Fault

    def parameters(fault: type[Fault]) -> str:
        rows = fault.list_parameters()
        return "".join(f"    {f'{name}={default}':24} {text}\n" for name, default, text in rows)

    texts = [f"{kind.name}\n  {kind.describe()}\n{parameters(kind)}\n" for kind in FAULTS]
    write("".join(texts) + f"all faults take these parameters, which select frames:\n{parameters(Fault)}")


def proxy(
    context: typer.Context, options: ForwardOptions, watch_options: WatchOptions, fault_options: FaultOptions
) -> None:
    """Forward connections to a cluster, show the traffic, and inject faults."""
    if context.invoked_subcommand is None:
        with console.errors_reported():
            if watch_options.has_screen:
                from pulsarctl_wire.cli.tui.live import run_live

                raise SystemExit(run_live("proxy", watch_options, fault_options, partial(_run, options)))
            raise SystemExit(_run(options, watch_options, fault_options))


app.callback(invoke_without_command=True)(takes(proxy))


def _run(options: ForwardOptions, watch_options: WatchOptions, fault_options: FaultOptions) -> int:
    """Check everything, fork the watcher, forward until a signal comes; returns the exit code."""
    from pulsarctl_wire.net.sockets import allow_many_sockets

    allow_many_sockets()
    faults = fault_options.make_faults()
    plan = _plan(options)
    check(watch_options)
    import asyncio

    from pulsarctl_wire.cli.proxy.watcher import WatchedRing
    from pulsarctl_wire.net.proxy.proxy import Proxy

    sock = _listen(plan.listen)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until `_forward` handles them
    with WatchedRing(watch_options, sock.close) as watched_ring:
        proxy = Proxy(plan, faults, watched_ring.ring)
        asyncio.run(_forward(options, fault_options.control, proxy, sock, watched_ring))
    return watched_ring.code


def _listen(address: Address) -> Socket:
    """Open the socket that clients connect to, before anything else is changed."""
    from pulsarctl_wire.net.sockets import bind_socket

    try:
        return bind_socket(address)
    except OSError as error:
        reason = error.strerror or error
        console.fail(f"--listen {address}: {reason}; name another with --listen")


# -- what the options mean


def _plan(options: ForwardOptions) -> Plan:
    from pulsarctl_wire.net.proxy.proxy import Plan
    from pulsarctl_wire.net.proxy.routing import AddressFilter, Routing
    from pulsarctl_wire.net.settings import Address
    from pulsarctl_wire.net.sockets import ANY_HOST

    if options.no_rewrite and options.through:
        console.fail("--through cannot be combined with --no-rewrite: it changes brokers' answers")
    routing = (
        Routing.NONE if options.no_rewrite else Routing.CONNECT if options.through else Routing.LISTENERS
    )
    listen = Address(*parse_address("--listen", options.listen))
    mapped = _mapping("--map", options.map_)
    context = None
    if options.tls or options.listen_cert:
        from pulsarctl_wire.net.certificates import make_server_context

        directory = Path(options.ca_dir) if options.ca_dir else None
        names = [options.advertise or listen.host, *(address.host for address in mapped.values())]
        if names[0] in ANY_HOST and not options.listen_cert:
            text = f"--tls with --listen {listen} needs --advertise HOST, the name that clients use for pwire"
            console.fail(text)
        context = make_server_context(
            options.listen_cert,
            options.listen_key,
            ca_directory=directory,
            names=names,
            client_ca=options.client_ca,
            keylog=options.trust.keylog,
        )
    elif options.listen_key or options.client_ca:
        console.fail("--listen-key and --client-ca need --tls or --listen-cert")
    settings = options.make_settings()
    has_web_tls = (options.http_to or "").startswith("https:")
    if options.trust.keylog and context is None and not (settings.url.tls or has_web_tls):
        console.fail("--keylog: neither side uses TLS; see --tls, and pulsar+ssl://")
    return Plan(
        listen,
        settings,
        routing,
        advertise=options.advertise,
        mapped=mapped,
        dials=_mapping("--dial", options.dial),
        ports=_ports(options.ports),
        tls=context,
        header_in=options.proxy_header_in,
        header_out=options.proxy_header_out,
        allowed=AddressFilter(options.allow_broker),
        **_plan_http(options, settings.url),
    )


def _plan_http(options: ForwardOptions, service: ServiceUrl) -> dict[str, Any]:
    """Return where lookups over HTTP are answered, and which web service is asked."""
    from pulsarctl_wire.net.settings import Address, ServiceUrl, parse_service_url

    if options.http_listen is None:
        if options.http_to is not None:
            console.fail("--http-to needs --http-listen")
        return {}
    listen = Address(*parse_address("--http-listen", options.http_listen))
    if options.http_to is None:
        port = _HTTPS_PORT if service.tls else _HTTP_PORT
        hosts = (Address(address.host, port) for address in service.addresses)
        return {"http_listen": listen, "http_to": ServiceUrl(service.tls, tuple(hosts), is_web=True)}
    try:
        url = parse_service_url(options.http_to)
    except SettingsError as error:
        console.fail(f"--http-to {error}")
    if not url.is_web:
        console.fail(f"--http-to {options.http_to}: a web service URL begins with http:// or https://")
    return {"http_listen": listen, "http_to": url}


def _mapping(flag: str, texts: list[str]) -> dict[Address, Address]:
    addresses = {}
    for text in texts:
        broker, equals, address = text.partition("=")
        if not equals:
            console.fail(f"{flag} {text}: use BROKER=HOST:PORT")
        addresses[_address(flag, text, broker)] = _address(flag, text, address)
    return addresses


def _address(flag: str, pair: str, text: str) -> Address:
    from pulsarctl_wire.net.settings import parse_url

    try:
        return parse_url(text).addresses[0]
    except SettingsError as error:
        console.fail(f"{flag} {pair}: {error}")


def _ports(text: str | None) -> range:
    if text is None:
        return range(0)
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not 0 < int(match[1]) <= int(match[2]) < 65_536:
        console.fail(f"--ports {text}: use FIRST-LAST, as in 16650-16699")
    return range(int(match[1]), int(match[2]) + 1)


# -- the two processes


async def _forward(
    options: ForwardOptions, control: str | None, proxy: Proxy, sock: Socket, watched_ring: WatchedRing
) -> None:
    """Forward until a signal comes.

    `control` is the path of the socket for `ctl`; "": no socket; None: at the place where `ctl` looks.
    """
    import asyncio

    from pulsarctl_wire.net.control import Control, ensure_directory
    from pulsarctl_wire.net.fault_control import answer_faults

    loop, end_event = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda loop, context: proxy.note(_bug(context)))
    watched_ring.follow(proxy.restart_tap, "forwarding")
    for number in ENDING:
        loop.add_signal_handler(number, end_event.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    address = await proxy.open(sock)
    if control is None:
        control = str(ensure_directory(os.environ) / f"proxy-{address.port}.sock")
    server = Control(Path(control), partial(answer_faults, proxy, proxy.faults)) if control else None
    if server is not None:
        await server.open()
    with suppress(OSError):  # stderr may be closed
        _announce(proxy, address, options)
    try:
        await end_event.wait()
        for number in ENDING:
            loop.remove_signal_handler(number)  # a second signal ends the process at once
        await proxy.close(options.drain)
    finally:
        if server is not None:
            await server.close()
    to_clients, to_brokers = map(human_bytes, proxy.carried)
    refusals = "".join(f"; {number} refused: {reason}" for reason, number in proxy.refused.items())
    carried = f"{to_brokers} to brokers, {to_clients} to clients"
    if proxy.web is not None:
        carried += f"; {count_of(proxy.web.lookups, 'lookup')} over HTTP"
    watched_ring.ring.note(f"{count_of(proxy.connections, 'connection')}; {carried}{refusals}")


def _bug(context: dict[str, Any]) -> str:
    """Describe, in one line, an exception that nobody has caught, as reported by asyncio."""
    error = context.get("exception")
    detail = f" ({type(error).__name__}: {error})" if error is not None else ""
    return f"a bug in pwire: {context['message']}{detail}; forwarding goes on"


def _announce(proxy: Proxy, address: Address, options: ForwardOptions) -> None:
    """Print the addresses, the CA, and the faults."""
    from pulsarctl_wire.net.settings import Address
    from pulsarctl_wire.net.sockets import ANY_HOST

    plan = proxy.plan
    host = plan.advertise or (platform.node() if address.host in ANY_HOST else address.host)
    url = f"pulsar{'+ssl' if plan.tls else ''}://{Address(host, address.port)}"
    console.warn(f"listening on {address}, forwarding to {plan.settings.url}; for clients: {url}")
    if proxy.web is not None:
        web_url = f"http{'s' if plan.tls else ''}://{Address(host, proxy.web.address.port)}"
        console.warn(f"lookups over HTTP are answered by {plan.http_to}; for clients: {web_url}")
    if plan.tls is not None and not options.listen_cert:
        from pulsarctl_wire.net.certificates import ensure_ca, find_ca_directory

        directory = Path(options.ca_dir) if options.ca_dir else find_ca_directory(os.environ)
        console.warn(f"clients have to trust {ensure_ca(directory)[0]}")
    if proxy.faults:
        announce_faults(proxy.faults)
