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
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError, WireError
from pulsarctl_wire.faults import Faults
from pulsarctl_wire.net.allowed import Allowed
from pulsarctl_wire.net.relay import CHUNK, Relay
from pulsarctl_wire.net.routing import MOST_BROKERS, Asked, Route, Router, Routing
from pulsarctl_wire.net.settings import Address, Settings
from pulsarctl_wire.net.sockets import (
    ANY_HOST,
    bound,
    connected,
    is_local,
    looked_up,
    origin,
    plain,
    reason,
    reset,
    unwelcome,
)
from pulsarctl_wire.net.telling import Watcher
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.credentials import is_doubtful
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.foreign import recognise
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.proxy_header import build_header
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, ServerError
from pulsarctl_wire.wire.session import NO_REQUEST, Knowledge

_HEADER_WAIT: Final = 10.0  # seconds for a PROXY header, and for a TLS handshake
_CONNECT_WAIT: Final = 30.0  # seconds for CONNECT, where it says whom to dial

MOST_WAITING: Final = 4_096
"""Connections that may wait for a broker: for a handshake, for CONNECT, to be dialled. More are reset."""

MOST_HELD: Final = 64 * 1024 * 1024
"""Bytes that may wait with them; a connection that brings more is reset."""

_TOO_MANY: Final = "too many wait for a broker"
_NOT_ALLOWED: Final = "not allowed (--allow-broker)"
_HINTS: Final = {
    "HTTP": "; lookups by http:// bypass the proxy, so give clients its pulsar:// URL",
    "TLS": "; see --tls, or give clients its pulsar:// URL",
}


@dataclass(frozen=True)
class Plan:
    """What a proxy is to do.

    `settings` has the service URL to forward to and how to dial it. `advertise` is the host that clients are
    told (default: the one they came to), `told` and `dials` the addresses that clients are told and that are
    dialled in place of brokers' own, `ports` those of the listeners for brokers (default: any). `tls` makes
    listeners speak TLS. `header_in`: connections begin with a PROXY header; `header_out`: the version of the
    one that ours begin with (0: none). `allowed` says where addresses that brokers name may lead. Times in
    seconds.
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
    allowed: Allowed = field(default_factory=Allowed)


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
        self.refused: Counter[str] = Counter()
        """Those of them, and brokers that they were to lead to, that were refused: why -> how many."""
        self.carried = [0, 0]
        """Bytes of the connections that have ended: to clients, to brokers."""
        self.numbers: Iterator[int] = count()
        """Of connections, in the order in which the watcher is told of them."""
        self._orders = count()
        self._turn = count()
        self._tasks: set[asyncio.Task[None]] = set()
        """Connections that wait for a PROXY header, for TLS, for a broker to be dialled."""
        self._undialled: dict[Relay, asyncio.TimerHandle] = {}
        """Connections that wait for CONNECT -> what ends that."""
        self._held = 0
        self._said: set[str] = set()
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
        self._router = Router(
            plan.settings.url,
            plan.routing,
            plan.tls is not None,
            lambda route: self._listeners.get(route) or self._listen(route),
            self.note,
            self._is_ours,
            plan.told,
        )
        sock = sock or bound(plan.listen)
        self._bound = sock.getsockname()[0]  # a name is looked up once
        at = self._serve(service, plan.listen, sock)
        for address in service.addresses:
            with suppress(OSError, UnicodeError):  # what cannot be dialled leads nowhere
                if self._leads_back(await looked_up(self.plan.dials.get(address, address))):
                    await self.close(0)
                    text = f"--to {address} is where pwire itself listens: change that or --listen"
                    raise SettingsError(text)
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
            try:
                self._take(client, self._router.find(broker) or route)
            except Exception as error:  # nobody else would accept from then on
                self.note(f"a bug in pwire: a connection was not taken ({type(error).__name__}: {error})")
                reset(client)

    def _take(self, client: socket.socket, route: Route) -> None:
        """Begin with a connection that was accepted, if not too many wait."""
        if len(self._tasks) + len(self._undialled) < MOST_WAITING:
            self._start(self._welcome(client, route))
        else:
            self._refuse(_TOO_MANY)
            reset(client)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, why: str) -> None:
        """Count something that is refused; the first of its kind is said."""
        self.refused[why] += 1
        if self.refused[why] == 1:
            self.note(f"a connection was refused: {why}; more of them are counted")

    # -- a connection

    async def _welcome(self, sock: socket.socket, route: Route) -> None:
        loop = asyncio.get_running_loop()
        handshake = _HEADER_WAIT if self.plan.tls is not None else None
        client = None
        try:
            client = Address(plain(sock.getpeername()[0]), sock.getpeername()[1])
            if self.plan.header_in:
                client = await asyncio.wait_for(origin(sock, client), _HEADER_WAIT)
            relay = Relay(self, next(self._orders), client, route)
            await loop.connect_accepted_socket(
                lambda: relay.legs[False], sock, ssl=self.plan.tls, ssl_handshake_timeout=handshake
            )
        except (OSError, WireError, TimeoutError, asyncio.TimeoutError) as error:
            self.note(f"a connection from {client or 'a client that has gone'} failed: {unwelcome(error)}")
            sock.close()
            return
        except BaseException:  # the end of all
            sock.close()
            raise
        if self._closing:
            relay.reset()
        elif not relay.over:
            self.relays.add(relay)
            if self.plan.routing is Routing.CONNECT:
                self._undialled[relay] = loop.call_later(_CONNECT_WAIT, self._give_up, relay)
            else:
                relay.dial()

    def _give_up(self, relay: Relay) -> None:
        relay.fail(f"no CONNECT came within {_CONNECT_WAIT:g} s")

    def hold(self, relay: Relay, size: int) -> None:
        """So many more bytes wait with a connection for its broker; fewer if `size` is below 0."""
        self._held += size
        if size > 0 and self._held > MOST_HELD:
            self._refuse(_TOO_MANY)
            relay.fail()

    def greeted(self, relay: Relay, data: bytes) -> None:
        """The first bytes that a client has sent: say so if they are of another protocol."""
        protocol, _ = recognise(data)
        if protocol and protocol not in self._said:
            self._said.add(protocol)
            hint = _HINTS.get(protocol, "")
            relay.note(f"the client speaks {protocol}, which is passed on as it is{hint}")

    def dial(self, relay: Relay) -> None:
        """Begin to make the leg to the broker."""
        self._dialled(relay)
        self._start(self._connect(relay))

    def _dialled(self, relay: Relay) -> None:
        """It waits for CONNECT no more."""
        timer = self._undialled.pop(relay, None)
        if timer is not None:
            timer.cancel()

    async def _connect(self, relay: Relay) -> None:
        addresses = relay.route.addresses
        first = next(self._turn) if len(addresses) > 1 else 0
        failed = []
        for each in range(len(addresses)):
            address = relay.address = addresses[(first + each) % len(addresses)]
            dialled = self.plan.dials.get(address, address)
            try:
                await asyncio.wait_for(self._reach(relay, address), self.plan.settings.connect_timeout)
            except (OSError, ValueError, TimeoutError, asyncio.TimeoutError) as error:
                failed.append(f"{dialled}: {reason(error)}")
            else:
                return
        text = f"no connection to the broker: {'; '.join(failed)}"
        relay.fail("" if text in self._said else text)
        if _NOT_ALLOWED in text and len(self._said) < MOST_BROKERS:
            self._said.add(text)  # once for each address

    async def _reach(self, relay: Relay, address: Address) -> None:
        """Make the leg to the broker at `address`. Raises OSError, ValueError for what is no host."""
        loop = asyncio.get_running_loop()
        found = await looked_up(self.plan.dials.get(address, address))
        if self._leads_back(found):
            raise OSError(errno.ELOOP, "that is where pwire itself listens")
        plan = self.plan
        if not (address in plan.settings.url.addresses or address in plan.dials or address in plan.told):
            found = [each for each in found if plan.allowed(address.host, each[4][0])]
            if not found:
                self.refused[_NOT_ALLOWED] += 1
                raise OSError(errno.EACCES, _NOT_ALLOWED)
        name = address.host if self._dial_tls is not None else None
        await loop.create_connection(
            lambda: relay.legs[True],
            sock=await connected(found),
            ssl=self._dial_tls,
            server_hostname=name,
        )

    def _is_ours(self, address: Address) -> bool:
        """Whether a listener of ours is at `address`; names that only DNS knows are not."""
        hosts = self._ours.get(address.port, set())
        host = "127.0.0.1" if address.host == "localhost" else address.host
        return bool(hosts & {address.host, host} or (hosts & ANY_HOST and is_local(host)))

    def _leads_back(self, found: list[Any]) -> bool:
        """Whether to dial these leads to a listener of ours, which would dial it again, without end."""
        return any(self._is_ours(Address(*place[:2])) for *_, place in found)

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
        address = Address(self._host_for(relay) or plain(came_to[0]), came_to[1])
        return f"pulsar{'+ssl' if self.plan.tls is not None else ''}://{address}"

    def _host_for(self, relay: Relay) -> str | None:
        """The host that a client knows our listeners by; None: the one that they listen at."""
        if self.plan.advertise is None and self._bound in ANY_HOST:
            return plain(relay.legs[False].transport.get_extra_info("sockname")[0])
        return self.plan.advertise

    def rewrite(self, relay: Relay, command: BaseCommand) -> bool:
        """Change the addresses in a command for the client; whether anything was changed."""
        assert relay.address is not None
        asked = Asked(relay.address, relay.connection.server)
        return self._router.rewrite(command, asked, self._host_for(relay))

    def connecting(self, relay: Relay, frame: Frame) -> bool:
        """The client's CONNECT: whom it wants, and whom we tell the broker's side; whether it was changed."""
        assert frame.base is not None
        connect = frame.base.connect
        wanted = as_text(connect.proxy_to_broker_url)
        if wanted and self.plan.routing is Routing.CONNECT:
            route = self._router.find(wanted)
            if route is None:
                name = "a broker" if is_doubtful(frame) else wanted[:200]
                relay.note(f"CONNECT names {name}, which no answer has named before")
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
        self._dialled(relay)
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


def _log_keys(context: ssl.SSLContext, path: str) -> None:
    """Have its keys added to the file at `path`, which is for the user alone. Raises SettingsError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        context.keylog_filename = path
    except OSError as error:
        raise SettingsError(f"the key log {path} cannot be written: {error.strerror}") from None
