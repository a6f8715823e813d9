"""The proxy: listeners, and what each connection that comes to one needs before it can be relayed.

    accept ── PROXY header? ── TLS? ── Relay (relay.py) ── dial: TCP, TLS? ── PROXY header?

One listener is the user's own; others are opened when answers name brokers (`routing.py`). All of it is one
event loop, in which nothing waits for anybody who watches (`tap.py`).
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from itertools import count
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError, WireError
from pulsarctl_wire.faults import Faults
from pulsarctl_wire.net.relay import CHUNK, Relay
from pulsarctl_wire.net.routing import Asked, Route, Router, Routing
from pulsarctl_wire.net.settings import Address, Settings
from pulsarctl_wire.net.telling import Watcher
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.proxy_header import build_header, header_size, parse_header
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, ServerError
from pulsarctl_wire.wire.session import NO_REQUEST, Knowledge

Socket = socket.socket
"""For those who hand one on."""

_BACKLOG: Final = 1024
_HEADER_WAIT: Final = 10.0  # seconds for a PROXY header, and for a TLS handshake
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"}
ANY_HOST: Final = {"0.0.0.0", "::"}


@dataclass(frozen=True)
class Plan:
    """What a proxy is to do.

    `settings` has the service URL to forward to and how to dial it. `advertise` is the host that clients are
    told (default: the one they came to), `told` and `dials` the addresses that clients are told and that are
    dialled in place of brokers' own, `ports` those of the listeners for brokers (default: any). `tls` makes
    listeners speak TLS. `header_in`: connections begin with a PROXY header; `header_out`: the version of the
    one that ours begin with (0: none). Times in seconds.
    """

    listen: Address
    settings: Settings
    routing: Routing = Routing.LISTENERS
    advertise: str | None = None
    told: Mapping[Address, Address] = field(default_factory=dict)
    dials: Mapping[Address, Address] = field(default_factory=dict)
    ports: range = range(0)
    tls: ssl.SSLContext | None = None
    key_log: str | None = None
    header_in: bool = False
    header_out: int = 0


class Proxy:
    """A running proxy: `open` it, `close` it, in one event loop."""

    def __init__(self, plan: Plan, faults: Faults, watcher: Watcher | None = None) -> None:
        self.plan = plan
        self.faults = faults
        self.watcher = watcher
        self.knowledge = Knowledge(join_chunks=False, schemas=False)
        self.buffer = memoryview(bytearray(CHUNK))
        self.relays: set[Relay] = set()
        self.connections = 0
        """That have come so far."""
        self.carried = [0, 0]
        """Bytes of the connections that have ended: to clients, to brokers."""
        self._numbers = count()
        self._turn = count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[Route, Address] = {}
        self._sockets: list[socket.socket] = []
        self._ours: dict[int, set[str]] = {}  # ports that we listen at -> our hosts there, as far as known
        self._accepting: list[asyncio.Task[None]] = []
        self._empty = asyncio.Event()
        self._closing = False
        self._dial_tls: ssl.SSLContext | None = None
        self._bound = ""
        self._router: Router

    async def open(self, sock: socket.socket | None = None) -> Address:
        """Begin to listen, on `sock` if it is given; gives the address.

        Raises SettingsError for certificates and for listeners that are asked for, OSError for the address.
        """
        plan = self.plan
        if plan.settings.url.tls:
            self._dial_tls = plan.settings.tls_context()
        if plan.key_log:
            for context in filter(None, (plan.tls, self._dial_tls)):
                _log_keys(context, plan.key_log)
        service = Route(plan.settings.url.addresses)
        sock = sock or bound(plan.listen)
        self._bound = sock.getsockname()[0]  # a name is looked up once
        at = self._serve(service, plan.listen, sock)
        for address in service.addresses:
            if await self._leads_back(address):
                await self.close(0)
                raise SettingsError(f"--to {address} is where pwire itself listens: change that or --listen")
        self._router = Router(
            plan.settings.url,
            plan.routing,
            plan.tls is not None,
            lambda route: self._listeners.get(route) or self._listen(route),
            self.note,
            self._is_ours,
            plan.told,
        )
        for broker, told in plan.told.items():
            self._listen_for(broker, told)
        return at

    def _listen_for(self, broker: Address, told: Address) -> None:
        """Listen where clients are told that a broker is, if that is on this machine; else SettingsError."""
        try:
            self._serve(Route((broker,)), told, bound(told), str(broker))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                why = error.strerror or error
                raise SettingsError(f"--map {broker}={told}: {why}; name another address") from None
            self.note(f"{told} is no address of this machine: clients are sent there for {broker}")

    def _listen(self, route: Route) -> Address:
        """A listener that leads along `route`, where the first one is; its address. Raises OSError."""
        ports = self.plan.ports or range(1)
        for port in ports:
            try:
                sock = bound(Address(self._bound, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != ports[-1]:
                    continue
                raise
            break
        return self._serve(route, self.plan.listen, sock)

    def _serve(self, route: Route, address: Address, sock: socket.socket, broker: str = "") -> Address:
        """Accept on `sock` for `route`, or for the way to `broker` that answers have told by then."""
        self._sockets.append(sock)
        ip, port, *_ = sock.getsockname()
        self._listeners[route] = address = Address(address.host, port)
        self._ours.setdefault(port, set()).update((ip, address.host, self.plan.advertise or ip))
        self._accepting.append(asyncio.create_task(self._accept(sock, route, broker)))
        if len(self._sockets) > 1:
            self.note(f"listening on {address} for {route}")
        return address

    async def _accept(self, sock: socket.socket, route: Route, broker: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(sock)
            except OSError as error:
                self.note(f"a connection has to wait: {error.strerror or error}")
                await asyncio.sleep(0.5)  # until others have ended
                continue
            self.connections += 1
            self._start(self._welcome(client, self._router.find(broker) or route))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- a connection

    async def _welcome(self, sock: socket.socket, route: Route) -> None:
        loop = asyncio.get_running_loop()
        handshake = _HEADER_WAIT if self.plan.tls is not None else None
        number = next(self._numbers)
        try:
            client = Address(_plain(sock.getpeername()[0]), sock.getpeername()[1])
            if self.plan.header_in:
                client = await asyncio.wait_for(_origin(sock, client), _HEADER_WAIT)
            relay = Relay(self, number, client, route)
            await loop.connect_accepted_socket(
                lambda: relay.legs[False], sock, ssl=self.plan.tls, ssl_handshake_timeout=handshake
            )
        except (OSError, WireError, TimeoutError, asyncio.TimeoutError) as error:
            self.note(f"connection {number}: {_unwelcome(error)}")
            sock.close()
            return
        except BaseException:  # the end of all
            sock.close()
            raise
        if self._closing:
            relay.reset()
        elif not relay.over:
            self.relays.add(relay)
            if self.plan.routing is not Routing.CONNECT:
                relay.dial()

    def dial(self, relay: Relay) -> None:
        """Begin to make the leg to the broker."""
        self._start(self._connect(relay))

    async def _connect(self, relay: Relay) -> None:
        loop = asyncio.get_running_loop()
        addresses = relay.route.addresses
        first = next(self._turn) if len(addresses) > 1 else 0
        failed = []
        for each in range(len(addresses)):
            address = relay.address = addresses[(first + each) % len(addresses)]
            dialled = self.plan.dials.get(address, address)
            if await self._leads_back(address):
                failed.append(f"{dialled}: that is where pwire itself listens")
                continue
            name = address.host if self._dial_tls is not None else None
            making = loop.create_connection(
                lambda: relay.legs[True], *dialled, ssl=self._dial_tls, server_hostname=name
            )
            try:
                await asyncio.wait_for(making, self.plan.settings.connect_timeout)
            except (OSError, ValueError, TimeoutError, asyncio.TimeoutError) as error:
                failed.append(f"{dialled}: {_reason(error)}")
            else:
                return
        relay.note(f"no connection to the broker: {'; '.join(failed)}")
        relay.reset()

    def _is_ours(self, address: Address) -> bool:
        """Whether a listener of ours is at `address`; names that only DNS knows are not."""
        hosts = self._ours.get(address.port, set())
        host = "127.0.0.1" if address.host == "localhost" else address.host
        return bool(hosts & {address.host, host} or (hosts & ANY_HOST and _is_local(host)))

    async def _leads_back(self, address: Address) -> bool:
        """Whether to dial `address` leads to a listener of ours, which would dial it again, without end."""
        dialled = self.plan.dials.get(address, address)
        if dialled.port not in self._ours:
            return False
        with suppress(OSError, UnicodeError):  # what cannot be dialled
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(*dialled, type=socket.SOCK_STREAM)
            return any(self._is_ours(Address(str(name[0]), dialled.port)) for *_, name in found)
        return False

    def preface(self, relay: Relay) -> bytes:
        """What the leg to the broker begins with: a PROXY header, or nothing."""
        if not self.plan.header_out:
            return b""
        target = relay.legs[True].transport.get_extra_info("peername")
        if not isinstance(target, tuple):  # it has ended already
            return b""
        return build_header(self.plan.header_out, relay.client, (target[0], target[1]))

    def url(self, relay: Relay) -> str:
        """The service URL that its client came by."""
        came_to = relay.legs[False].transport.get_extra_info("sockname")
        address = Address(self._host_for(relay) or _plain(came_to[0]), came_to[1])
        return f"pulsar{'+ssl' if self.plan.tls is not None else ''}://{address}"

    def _host_for(self, relay: Relay) -> str | None:
        """The host that a client knows our listeners by; None: the one that they listen at."""
        if self.plan.advertise is None and self._bound in ANY_HOST:
            return _plain(relay.legs[False].transport.get_extra_info("sockname")[0])
        return self.plan.advertise

    def rewrite(self, relay: Relay, command: BaseCommand) -> bool:
        """Change the addresses in a command for the client; whether anything was changed."""
        assert relay.address is not None
        asked = Asked(relay.address, relay.connection.server)
        return self._router.rewrite(command, asked, self._host_for(relay))

    def connecting(self, relay: Relay, command: BaseCommand) -> bool:
        """The client's CONNECT: whom it wants, and whom we tell the broker's side; whether it was changed."""
        connect = command.connect
        wanted = as_text(connect.proxy_to_broker_url)
        if wanted and self.plan.routing is Routing.CONNECT:
            route = self._router.find(wanted)
            if route is None:
                relay.note(f"CONNECT names {wanted[:200]}, which no answer has named before")
                text = "pwire knows no such broker; look the topic up first"
                error = build_command(
                    "ERROR", request_id=NO_REQUEST, error=ServerError.ServiceNotReady, message=text
                )
                relay.refuse(build_frame(error))
                return False
            relay.route = route
        elif wanted or not relay.route.proxy_to:
            return False
        if relay.route.proxy_to:
            connect.proxy_to_broker_url = relay.route.proxy_to
        else:
            connect.ClearField("proxy_to_broker_url")
        return True

    def renew_faults(self) -> None:
        """The faults were changed: every connection is to know, quiet ones too."""
        for relay in list(self.relays):
            for lane in relay.lanes:
                lane.renew_faults()

    def tell_again(self) -> None:
        """Another watcher has begun: tell it of the connections that are open."""
        for relay in sorted(self.relays, key=lambda relay: relay.connection.index):
            relay.tell_again()

    def ended(self, relay: Relay) -> None:
        """Both legs have ended."""
        self.relays.discard(relay)
        for to_broker in (False, True):
            self.carried[to_broker] += relay.carried[to_broker]
        if not self.relays:
            self._empty.set()

    def note(self, text: str) -> None:
        """Tell people something."""
        if self.watcher is not None:
            self.watcher.note(text)

    # -- the end

    async def close(self, seconds: float) -> None:
        """Take no more connections, pass on what has come, within `seconds`, and end them all."""
        self._closing = True
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            loop.remove_reader(sock)  # else asyncio may still accept, for a task that is cancelled
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._empty.clear()
        for relay in list(self.relays):
            relay.drain()
        if self.relays:
            with suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for relay in list(self.relays):
            relay.reset()
        if self.relays:
            self._empty.clear()
            await self._empty.wait()  # asyncio tells them a moment later


def _plain(host: str) -> str:
    """An IPv4 address that came in by an IPv6 socket as what it is; others as they are."""
    return host.removeprefix("::ffff:") if "." in host else host


def _is_local(host: str) -> bool:
    """Whether a host is an IP address of this machine."""
    with suppress(OSError, ValueError):
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    return False


def _log_keys(context: ssl.SSLContext, path: str) -> None:
    """Have its keys added to the file at `path`, which is for the user alone. Raises SettingsError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        context.keylog_filename = path
    except OSError as error:
        raise SettingsError(f"the key log {path} cannot be written: {error.strerror}") from None


def bound(address: Address) -> socket.socket:
    """A socket that listens at `address`. Raises OSError."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # what can be no name
        raise socket.gaierror(socket.EAI_NONAME, "no such host") from None
    family, kind, protocol, _, name = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(name)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


async def _origin(sock: socket.socket, peer: Address) -> Address:
    """Read the PROXY header that a connection begins with, and not a byte more.

    Gives the client that it names, or `peer` if it names none.
    """
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < (size := header_size(data)):
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise ConnectionResetError("it was closed within its PROXY header")
        data += more
    source = parse_header(data).source
    return Address(*source) if source is not None else peer


def _unwelcome(error: BaseException) -> str:
    """Why a client's connection was refused, in few words."""
    if not isinstance(error, ssl.SSLError):
        return _reason(error)
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "the client does not speak TLS; its URL is to begin with pulsar+ssl://"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and --client-ca asks for one"
    if "ALERT" in reason and ("CERTIFICATE" in reason or reason.endswith("_CA")):
        return f"the client does not trust the certificate that pwire shows ({reason})"
    return f"TLS with the client failed ({reason})"


def _reason(error: BaseException) -> str:
    """Why a connection could not be made, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error})"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError) and not error.args:  # asyncio's own
        return "closed before TLS was agreed on; is this a port without TLS?"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
