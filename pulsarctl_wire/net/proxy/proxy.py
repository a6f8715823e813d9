"""The proxy: listens for clients, dials brokers, and limits what waits for a connection.

    Listener (listener.py) ── Relay (relay.py) ── dial: TCP, TLS? ── PROXY header?

The user asks for one listener; more are opened when answers name brokers (`routing.py`). Everything runs in
one event loop, which never waits for the watcher (`tap.py`).
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.answers import build_refusal
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.listener import Listener, ProtocolFactory
from pulsarctl_wire.net.proxy.relay import CHUNK, Leg, Relay
from pulsarctl_wire.net.proxy.routing import MAX_BROKERS, AddressFilter, Answerer, Route, Router, Routing
from pulsarctl_wire.net.proxy.tap import TapRing
from pulsarctl_wire.net.settings import Address, ServiceUrl, Settings
from pulsarctl_wire.net.sockets import (
    ANY_HOST,
    bind_socket,
    connect_first,
    describe_failure,
    is_local,
    look_up,
    strip_mapped,
)
from pulsarctl_wire.wire.credentials import is_doubtful
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame, build_frame
from pulsarctl_wire.wire.framing.foreign import recognise
from pulsarctl_wire.wire.framing.proxy_header import build_header
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session.knowledge import Knowledge

if TYPE_CHECKING:
    from pulsarctl_wire.net.proxy.web import WebListener

_CONNECT_WAIT: Final = 30.0  # seconds for CONNECT, if it says which broker to dial

MAX_WAITING: Final = 4_096
"""Maximum connections that wait for a handshake, for CONNECT, or for a broker; more are reset."""

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes received from all waiting connections; the connection that exceeds it is reset."""

_TOO_MANY: Final = "too many wait for a broker"
_NOT_ALLOWED: Final = "not allowed (--allow-broker)"
_HINTS: Final = {
    "HTTP": "; give clients its pulsar:// URL, or see --http-listen",
    "TLS": "; see --tls, or give clients its pulsar:// URL",
}


@dataclass(frozen=True)
class Plan:
    """The options of a proxy.

    `settings` has the service URL to forward to and how to dial it. `advertise` is our host name for clients
    (default: the one they connected to). `mapped` maps brokers' addresses to those that clients get instead,
    `dials` to those that are dialled instead. `ports` are for brokers' listeners (default: any). With `tls`
    listeners speak TLS. `header_in`: clients' connections begin with a PROXY header; `header_out`: the
    header version that connections to brokers begin with (0: none). `allowed` says which of the addresses
    that brokers name may be dialled. Lookups over HTTP are answered at `http_listen`, by asking `http_to`.
    """

    listen: Address
    settings: Settings
    routing: Routing = Routing.LISTENERS
    advertise: str | None = None
    mapped: Mapping[Address, Address] = field(default_factory=dict)
    dials: Mapping[Address, Address] = field(default_factory=dict)
    ports: range = range(0)
    tls: ssl.SSLContext | None = None
    header_in: bool = False
    header_out: int = 0
    allowed: AddressFilter = field(default_factory=AddressFilter)
    http_listen: Address | None = None
    http_to: ServiceUrl | None = None


class Proxy:
    """A running proxy: `open` it, `close` it, in one event loop."""

    def __init__(self, plan: Plan, faults: Faults, tap: TapRing) -> None:
        self.plan = plan
        self.faults = faults
        self.tap = tap
        self.note = tap.note
        self.knowledge = Knowledge(join_chunks=False, schemas=False)
        self.buffer = memoryview(bytearray(CHUNK))
        self.relays: set[Relay] = set()
        self.connections = 0  # accepted so far
        self.refused: Counter[str] = Counter()
        """Connections that were refused, and dials that were not allowed: reason -> count."""
        self.carried = [0, 0]  # bytes of the connections that have ended: to clients, to brokers
        self.numbers: Iterator[int] = count()  # of connections, in the order in which the watcher gets them
        self._orders = count()
        self._turn = count()
        self._dialling: set[asyncio.Task[None]] = set()  # one for each connection that waits for a broker
        self._undialled: dict[Relay, asyncio.TimerHandle] = {}  # relays that wait for CONNECT -> timeout
        self._held = 0  # bytes that wait for brokers
        self._noted: set[str] = set()
        self._listener = Listener(self.note, tls=plan.tls, header=plan.header_in, ready=self._start_relay)
        self._listen_addresses: dict[Route, Address] = {}  # where each route's listener is
        self._own_hosts: dict[int, set[str]] = {}  # port that we listen at -> its known hosts
        self._no_relays = asyncio.Event()
        self._is_closing = False
        self._dial_tls: ssl.SSLContext | None = None
        self._bound_host = ""
        self._router: Router
        self.web: WebListener | None = None
        """Answers lookups over HTTP."""

    async def open(self, sock: socket.socket | None = None) -> Address:
        """Start listening, on `sock` if it is given; return the address.

        Raises SettingsError for certificates, for the listeners of `mapped` and `http_listen`, and if the
        service URL leads back to the proxy; OSError for the listen address.
        """
        plan = self.plan
        if plan.settings.url.tls:
            self._dial_tls = plan.settings.tls_context()
        service = Route(plan.settings.url.addresses)
        self._router = Router(
            plan.settings.url,
            plan.routing,
            plan.tls is not None,
            lambda route: self._listen_addresses.get(route) or self._listen(route),
            self.note,
            self._is_ours,
            plan.mapped,
        )
        sock = sock or bind_socket(plan.listen)
        self._bound_host = sock.getsockname()[0]  # the IP address: a host name is looked up only once
        listening = self._serve(service, plan.listen, sock)
        for address in service.addresses:
            with suppress(OSError, UnicodeError):  # an unknown host is reported when it is dialled
                if self._leads_back(await look_up(self.plan.dials.get(address, address))):
                    await self.close(0)
                    text = f"--to {address} is where pwire itself listens: change that or --listen"
                    raise SettingsError(text)
        for broker, address in plan.mapped.items():
            self._listen_for(broker, address)
        if plan.http_listen is not None and plan.http_to is not None:
            from pulsarctl_wire.net.proxy import web

            listener = web.WebListener(
                plan.http_to,
                plan.settings,
                self._router,
                self.tap,
                self.numbers,
                self._host_for,
                plan.allowed,
                plan.dials,
                plan.tls,
            )
            await listener.open(plan.http_listen)
            self.web = listener
        return listening

    def _listen_for(self, broker: Address, address: Address) -> None:
        """Listen at `address`, which clients get for `broker`; note it if it is another machine's.

        Raises SettingsError.
        """
        try:
            self._serve(Route((broker,)), address, bind_socket(address), str(broker))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                text = f"--map {broker}={address}: {error.strerror or error}; name another address"
                raise SettingsError(text) from None
            self.note(f"{address} is not an address of this machine: clients are sent there for {broker}")

    def _listen(self, route: Route) -> Address:
        """Open a listener for `route` on the host of the first one; return its address. Raises OSError."""
        ports = self.plan.ports or range(1)  # port 0: any that is free
        for port in ports:
            try:
                sock = bind_socket(Address(self._bound_host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != ports[-1]:
                    continue
                raise
            break
        return self._serve(route, self.plan.listen, sock)

    def _serve(self, route: Route, address: Address, sock: socket.socket, broker: str = "") -> Address:
        """Accept connections on `sock` for `route`, or for the route to `broker` once an answer has named it.

        Return `address`, with the port of `sock`.
        """
        ip, port, *_ = sock.getsockname()
        self._listen_addresses[route] = address = Address(address.host, port)
        self._own_hosts.setdefault(port, set()).update((ip, address.host, self.plan.advertise or ip))
        self._listener.serve(sock, partial(self._admit, route, broker, address))
        if len(self._listener.sockets) > 1:
            self.note(f"listening on {address} for {route}")
        return address

    def _admit(self, route: Route, broker: str, listener: Address) -> ProtocolFactory | None:
        """Return the function that creates an accepted connection's protocol; None if too many wait."""
        self.connections += 1
        if len(self._listener.handshakes) + len(self._dialling) + len(self._undialled) >= MAX_WAITING:
            self._refuse(_TOO_MANY)
            return None
        return partial(self._make_client_leg, self._router.find(broker) or route, listener)

    def _refuse(self, cause: str) -> None:
        """Count a refused connection; note the first one with this cause."""
        self.refused[cause] += 1
        if self.refused[cause] == 1:
            self.note(f"a connection was refused: {cause}; further ones are only counted")

    # -- a connection

    def _make_client_leg(self, route: Route, listener: Address, client: Address) -> Leg:
        """Return the client's leg of a new relay."""
        return Relay(self, next(self._orders), client, route, listener).legs[False]

    def _start_relay(self, leg: Leg) -> None:
        """Start the relay of a client that is connected."""
        relay = leg.relay
        if self._is_closing:
            relay.reset()
        elif not relay.is_over:
            self.relays.add(relay)
            if self.plan.routing is Routing.CONNECT:
                loop = asyncio.get_running_loop()
                self._undialled[relay] = loop.call_later(_CONNECT_WAIT, self._give_up, relay)
            else:
                relay.dial()

    def _give_up(self, relay: Relay) -> None:
        relay.fail(f"no CONNECT came within {_CONNECT_WAIT:g} s")

    def count_waiting(self, relay: Relay, size: int) -> None:
        """Count `size` more bytes (maybe negative) that wait for a broker; too many fail `relay`."""
        self._held += size
        if size > 0 and self._held > MAX_WAITING_BYTES:
            self._refuse(_TOO_MANY)
            relay.fail()

    def check_greeting(self, relay: Relay, data: bytes) -> None:
        """Note it if a client's first bytes are of another protocol."""
        protocol, _ = recognise(data)
        if protocol and protocol not in self._noted:
            self._noted.add(protocol)
            hint = _HINTS.get(protocol, "")
            relay.note(f"the client speaks {protocol}, which is passed on as it is{hint}")

    def dial(self, relay: Relay) -> None:
        """Start connecting the leg to the broker."""
        self._stop_connect_timer(relay)
        task = asyncio.get_running_loop().create_task(self._connect(relay))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def _stop_connect_timer(self, relay: Relay) -> None:
        timer = self._undialled.pop(relay, None)
        if timer is not None:
            timer.cancel()

    async def _connect(self, relay: Relay) -> None:
        addresses = relay.route.addresses
        first = next(self._turn) if len(addresses) > 1 else 0
        failures = []
        for turn in range(len(addresses)):
            address = relay.address = addresses[(first + turn) % len(addresses)]
            dialled = self.plan.dials.get(address, address)
            try:
                await asyncio.wait_for(self._reach(relay, address), self.plan.settings.connect_timeout)
            except (OSError, ValueError, TimeoutError, asyncio.TimeoutError) as error:
                failures.append(f"{dialled}: {describe_failure(error)}")
            else:
                return
        text = f"no connection to the broker: {'; '.join(failures)}"
        relay.fail("" if text in self._noted else text)
        if _NOT_ALLOWED in text and len(self._noted) < MAX_BROKERS:
            self._noted.add(text)  # note it only once for each address

    async def _reach(self, relay: Relay, address: Address) -> None:
        """Connect the leg to the broker at `address`. Raises OSError, or ValueError for an invalid host."""
        loop = asyncio.get_running_loop()
        targets = await look_up(self.plan.dials.get(address, address))
        if self._leads_back(targets):
            raise OSError(errno.ELOOP, "pwire itself listens there")
        plan = self.plan
        if not (address in plan.settings.url.addresses or address in plan.dials or address in plan.mapped):
            targets = [target for target in targets if plan.allowed(address.host, target[4][0])]
            if not targets:
                self.refused[_NOT_ALLOWED] += 1
                raise OSError(errno.EACCES, _NOT_ALLOWED)
        name = address.host if self._dial_tls is not None else None
        sock = await connect_first(targets)
        await loop.create_connection(
            lambda: relay.legs[True], sock=sock, ssl=self._dial_tls, server_hostname=name
        )

    def _is_ours(self, address: Address) -> bool:
        """Return whether we listen at `address`. Host names are compared as text, not looked up."""
        hosts = self._own_hosts.get(address.port, set())
        host = "127.0.0.1" if address.host == "localhost" else address.host
        return bool(hosts & {address.host, host} or (hosts & ANY_HOST and is_local(host)))

    def _leads_back(self, targets: list[Any]) -> bool:
        """Return whether one of these addresses is ours: the proxy would dial itself forever."""
        return any(self._is_ours(Address(*sockaddr[:2])) for *_, sockaddr in targets)

    def make_preface(self, relay: Relay) -> bytes:
        """Return the first bytes to send to the broker: a PROXY header, or nothing."""
        if not self.plan.header_out:
            return b""
        target = relay.legs[True].transport.get_extra_info("peername")
        if not isinstance(target, tuple):  # the leg has ended already
            return b""
        return build_header(self.plan.header_out, relay.client, (target[0], target[1]))

    def find_url(self, relay: Relay) -> str:
        """Return the service URL that its client used to reach us."""
        sockname = relay.legs[False].transport.get_extra_info("sockname")
        address = Address(
            self._host_for(relay.legs[False].transport) or strip_mapped(sockname[0]), sockname[1]
        )
        return f"pulsar{'+ssl' if self.plan.tls is not None else ''}://{address}"

    def find_listener(self, relay: Relay) -> str:
        """Return the address of the listener that its client came to, as answers name it."""
        listener = relay.listener
        is_mapped = listener in self.plan.mapped.values()
        host = None if is_mapped else self._host_for(relay.legs[False].transport)
        return str(Address(host or listener.host, listener.port))

    def _host_for(self, transport: Any) -> str | None:
        """Return the host under which a client reaches our listeners; None: the one they listen at."""
        if self.plan.advertise is None and self._bound_host in ANY_HOST:
            return strip_mapped(transport.get_extra_info("sockname")[0])
        return self.plan.advertise

    def rewrite(self, relay: Relay, command: BaseCommand) -> bool:
        """Rewrite the addresses in a command to the client; return whether anything changed."""
        assert relay.address is not None
        answerer = Answerer(relay.address, relay.connection.server)
        return self._router.rewrite(command, answerer, self._host_for(relay.legs[False].transport))

    def route_connect(self, relay: Relay, frame: Frame) -> bool:
        """Choose the route for the client's CONNECT, and rewrite it for that; return whether it changed."""
        assert frame.base is not None
        connect = frame.base.connect
        broker = as_text(connect.proxy_to_broker_url)
        if broker and self.plan.routing is Routing.CONNECT:
            route = self._router.find(broker)
            if route is None:
                name = "a broker" if is_doubtful(frame) else broker[:200]
                relay.note(f"CONNECT names {name}, which no answer has named before")
                text = "pwire does not know this broker; look the topic up first"
                relay.refuse(build_frame(build_refusal(frame, "ServiceNotReady", text)))
                return False
            relay.route = route
        elif broker or not relay.route.proxy_to:  # the client names a broker, or we have none to name
            return False
        if relay.route.proxy_to:
            connect.proxy_to_broker_url = relay.route.proxy_to
        else:
            connect.ClearField("proxy_to_broker_url")
        return True

    def renew_faults(self) -> None:
        """Apply changed faults to all connections at once, also to idle ones."""
        for relay in list(self.relays):
            for lane in relay.lanes:
                lane.renew_faults()

    def restart_tap(self) -> None:
        """Write the open connections to the tap again, for a new watcher."""
        for relay in sorted(self.relays, key=lambda relay: relay.connection.index):
            relay.restart_tap()

    def end_relay(self, relay: Relay) -> None:
        """Forget a relay whose legs have both ended."""
        self._stop_connect_timer(relay)
        self.relays.discard(relay)
        for to_broker in (False, True):
            self.carried[to_broker] += relay.carried[to_broker]
        if not self.relays:
            self._no_relays.set()

    # -- the end

    async def close(self, seconds: float) -> None:
        """Stop accepting, pass on what was received, for at most `seconds`, and close all connections."""
        self._is_closing = True
        if self.web is not None:
            await self.web.close()
        await self._listener.stop()
        self._no_relays.clear()
        for relay in list(self.relays):
            relay.drain()
        if self.relays:
            with suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._no_relays.wait(), seconds)
        await self._listener.close()
        for task in list(self._dialling):
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for relay in list(self.relays):
            relay.reset()
        if self.relays:
            self._no_relays.clear()
            await self._no_relays.wait()  # asyncio calls connection_lost a moment later
