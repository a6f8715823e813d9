"""One client's connection through the proxy: two legs, and a lane for each direction.

    client ── Leg ──► Lane (to the broker) ──► Leg ── broker
           ◄── Leg ◄── Lane (to the client) ◄── Leg ◄──

Back-pressure, half-close and reset work as without a proxy: a lane whose target accepts no more bytes stops
reading its source; an end of file is passed on after everything before it; a reset resets the other side.
"""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, Protocol

from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.proxy.lane import RelayLane
from pulsarctl_wire.net.proxy.routing import Route
from pulsarctl_wire.net.proxy.tap import TapRing
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import LINGER
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

CHUNK: Final = 256 * 1024
"""Maximum bytes read at a time."""

_LAST_READ: Final = 0.2  # seconds that a peer has at the end to close its side, too
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Leg(asyncio.BufferedProtocol):
    """One of a relay's two connections: with the client, or with the broker."""

    def __init__(self, relay: "Relay", to_broker: bool) -> None:
        self.relay = relay
        self.to_broker = to_broker
        self.transport: Any = None
        self.is_full = False  # it accepts no more bytes for now
        self.is_gone = False  # it was connected, and has ended
        self.can_half_close = True

    def connection_made(self, transport: Any) -> None:
        """asyncio: it is connected. The client is not read while the broker is dialled."""
        self.transport = transport
        transport.set_write_buffer_limits(high=1)  # with 0, TLS transports never resume writing
        self.can_half_close = transport.can_write_eof()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.relay.add_leg(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where to put received bytes."""
        return self.relay.host.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes were received."""
        self.relay.lanes[not self.to_broker].feed(bytes(self.relay.host.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """asyncio: end of file. The connection stays open for sending, unless it is TLS, which cannot."""
        if self.to_broker:
            self.relay.note_loss("closed it")
        self.relay.record_end(by_broker=self.to_broker)
        self.relay.lanes[not self.to_broker].end()
        return self.can_half_close

    def pause_writing(self) -> None:
        """asyncio: it accepts no more bytes for now."""
        self.is_full = True
        self.relay.balance()

    def resume_writing(self) -> None:
        """asyncio: it accepts bytes again."""
        self.is_full = False
        self.relay.balance()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        self.relay.end_leg(self, exc)

    def end(self) -> None:
        """Send an end of file after what was sent before; with TLS, close the connection."""
        if self.transport is None or self.transport.is_closing() or not self.can_half_close:
            self.close()
            return
        try:
            self.transport.write_eof()
        except OSError:  # it was reset, which asyncio does not notice while reading is paused
            self.reset()

    def reset(self) -> None:
        """Reset the connection (RST); bytes that wait to be sent are lost."""
        transport = self.transport
        if transport is not None and not self.is_gone:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):  # closed already, under TLS
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            transport.abort()

    def close(self) -> None:
        """Close the connection after sending everything that waits to be sent."""
        transport = self.transport
        if transport is not None and not self.is_gone and not transport.is_closing():
            transport.resume_reading()  # before Python 3.11 TLS must read in order to close
            transport.close()


class Host(Protocol):
    """The part of the proxy that its relays use."""

    tap: TapRing
    faults: Faults
    knowledge: Knowledge
    buffer: memoryview
    numbers: Iterator[int]

    def check_greeting(self, relay: "Relay", data: bytes) -> None:
        """Note it if a client's first bytes are of another protocol."""

    def count_waiting(self, relay: "Relay", size: int) -> None:
        """Count `size` more bytes (maybe negative) that wait for a broker."""

    def dial(self, relay: "Relay") -> None:
        """Start connecting the leg to the broker."""

    def make_preface(self, relay: "Relay") -> bytes:
        """Return the first bytes to send to the broker."""

    def route_connect(self, relay: "Relay", frame: Frame) -> bool:
        """Choose the route for the client's CONNECT; return whether the frame was changed for that."""

    def rewrite(self, relay: "Relay", command: BaseCommand) -> bool:
        """Rewrite the addresses in a command to the client; return whether anything changed."""

    def find_url(self, relay: "Relay") -> str:
        """Return the service URL that its client used to reach us."""

    def find_listener(self, relay: "Relay") -> str:
        """Return the address of the listener that its client came to, as answers name it."""

    def end_relay(self, relay: "Relay") -> None:
        """Forget a relay whose legs have both ended."""


class Relay:
    """A client's connection, and the connection to a broker that belongs to it.

    `route` says where to dial: immediately, or when there is a first byte for the broker. The client came to
    `listener`. `order` counts clients; `connection` gets its number only when it is written to the tap.
    """

    def __init__(self, host: Host, order: int, client: Address, route: Route, listener: Address) -> None:
        self.host = host
        self.listener = listener
        self.tap = host.tap
        self.faults = host.faults
        self.order = order
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connection = Connection(-1 - order, str(client))
        self.route = route
        self.address: Address | None = None  # of `route`, the one tried last: a broker's or a Pulsar proxy's
        self.legs = Leg(self, False), Leg(self, True)
        """The client's and the broker's; like all pairs here, indexed by whether it is the broker's."""
        self.lanes = RelayLane(self, False), RelayLane(self, True)
        self.session = ExchangeState(self.connection, host.knowledge)
        self.carried = [0, 0]  # bytes that each lane has sent
        self.is_blackholed = self.is_draining = False
        self.has_dialled = False  # dialling the broker has begun, or must not begin any more
        self.is_over = False  # one of the legs has ended
        self.is_unsettled = True  # lanes must call `admit`: no bytes or no broker yet, or blackholed
        self._has_greeted = self._is_in_tap = False
        self._held = 0  # bytes that wait for the leg to the broker
        self._ended_by_broker: bool | None = None  # whether the broker ended it first

    def open_tap(self) -> None:
        """Write the start of the connection to the tap, once."""
        if not self._is_in_tap:
            self._is_in_tap = True
            self.connection.index = next(self.host.numbers)
            self.connection.listener = self.host.find_listener(self)
            self.tap.opened(self.connection, time.time_ns())

    def restart_tap(self) -> None:
        """Write the start of the connection again, for a new watcher, and go on with whole frames."""
        if self._is_in_tap:
            self.tap.opened(self.connection, time.time_ns())
            for lane in self.lanes:
                lane.tap_writer.restart()

    def note(self, text: str) -> None:
        """Show the user a note about this connection."""
        self.open_tap()
        self.tap.note(f"connection {self.connection.index}: {text}")

    def note_loss(self, event: str) -> None:
        """Note that the broker has ended this connection, unless the client or we ended it before."""
        if not (self.is_over or self.is_blackholed or self.is_draining or self.lanes[True].has_ended):
            self.note(f"the broker {self.connection.server} {event}")

    def admit(self, data: bytes, to_broker: bool) -> bool:
        """Return whether these bytes may pass; lanes call it while the relay is `is_unsettled`."""
        if self.is_blackholed:
            return False
        if to_broker:
            if not self._has_greeted:
                self._has_greeted = True
                self.host.check_greeting(self, data)
            if self.legs[True].transport is None:
                self._held += len(data)
                self.host.count_waiting(self, len(data))
        self.is_unsettled = not self._has_greeted or self.legs[True].transport is None
        return not self.is_over

    def route_connect(self, frame: Frame) -> bool:
        """Choose the route for the client's CONNECT; return whether the frame was changed for that."""
        return self.host.route_connect(self, frame)

    def rewrite(self, command: BaseCommand) -> bool:
        """Rewrite the addresses in a command to the client; return whether anything changed."""
        return self.host.rewrite(self, command)

    def find_url(self) -> str:
        """Return the service URL that its client used to reach us."""
        return self.host.find_url(self)

    def _release(self) -> None:
        """Stop counting bytes that wait for the leg to the broker."""
        size, self._held = self._held, 0
        self.host.count_waiting(self, -size)

    def dial(self) -> None:
        """Start connecting to the broker, unless that has been started."""
        if not self.has_dialled:
            self.has_dialled = True
            self.host.dial(self)
            self.lanes[True].balance()

    def balance(self) -> None:
        """Pause or resume reading from both sides, depending on whether there is room for what they send."""
        for lane in self.lanes:
            lane.balance()

    def add_leg(self, leg: Leg) -> None:
        """Start using a leg that is now connected."""
        if self.is_over:
            leg.reset()  # the other leg has ended meanwhile
            return
        if not leg.to_broker:
            self.loop.call_soon(self.lanes[True].balance)  # not now: asyncio starts reading after this call
            return
        peer = leg.transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.connection.server = str(Address(peer[0], peer[1]))
        self.open_tap()
        preface = self.host.make_preface(self)
        if preface:
            leg.transport.write(preface)
        self._release()
        for lane in self.lanes:
            lane.begin()
        if self.is_draining:
            self.drain()

    def record_end(self, *, by_broker: bool) -> None:
        """Remember which side has ended its half of the connection, if it is the first."""
        if self._ended_by_broker is None:
            self._ended_by_broker = by_broker

    def end_leg(self, leg: Leg, exc: Exception | None) -> None:
        """End the other leg in the same way as `leg` has ended."""
        other_leg = self.legs[not leg.to_broker]
        if leg.to_broker and exc is not None:
            cause = getattr(exc, "strerror", None) or str(exc)
            self.note_loss("reset it" if isinstance(exc, ConnectionResetError) else f"was lost: {cause}")
        if not self.is_over:
            self.record_end(by_broker=leg.to_broker)
            for lane in self.lanes:
                lane.stop(flush=exc is None and lane.to_broker != leg.to_broker)
            self.is_over = True
            self._release()
        if exc is not None:
            other_leg.reset()
        else:
            other_leg.close()
        leg.is_gone = True
        if other_leg.is_gone or other_leg.transport is None:
            if self._is_in_tap:
                self.tap.closed(self.connection, time.time_ns(), bool(self._ended_by_broker))
            self.host.end_relay(self)

    def fail(self, reason: str = "") -> None:
        """Reset the legs, as the client gets no broker; note `reason`, if there is one."""
        if reason:
            self.note(reason)
        self.record_end(by_broker=True)
        self.reset()

    def refuse(self, answer: bytes) -> None:
        """Send the client `answer`, and close; nothing is sent to the broker."""
        self.legs[False].transport.write(answer)
        self.has_dialled = True
        self.blackhole()
        self.close()

    def blackhole(self) -> None:
        """Stop passing bytes in either direction."""
        self.is_blackholed = self.is_unsettled = True

    def close(self) -> None:
        """Close both legs after sending everything that waits to be sent."""
        for leg in self.legs:
            leg.close()

    def reset(self) -> None:
        """Reset both legs (RST)."""
        for leg in self.legs:
            leg.reset()

    def drain(self) -> None:
        """Stop reading, pass on everything received, and close."""
        self.is_draining = True
        self.balance()
        if self.has_dialled and self.legs[True].transport is None:
            return  # `add_leg` calls this again
        for lane in self.lanes:
            lane.stop(flush=True)
        for leg in self.legs:
            leg.end()
        # read and discard what peers still send: closing a socket with unread bytes sends RST, not FIN
        self.is_draining = False
        self.blackhole()
        self.balance()
        self.loop.call_later(_LAST_READ, self.close)
