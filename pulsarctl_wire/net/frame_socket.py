"""Connects a `FrameProtocol` to an asyncio socket: passes bytes and times in, and sends its output.

Works for either side of a connection; links (`net/session/link.py`) are the client's side.
"""

import asyncio
import time
from typing import Any, Final, Protocol

from pulsarctl_wire.net.driver import Driver, Warnings, now
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.frame import Connection

MAX_UNSENT_BYTES: Final = 160 * 1024 * 1024
"""Maximum bytes that wait to be sent: more than a producer may have pending, plus a message."""


class Tap(Protocol):
    """Observes the bytes of connections as they are sent and received."""

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Record a new connection, made at `time_ns` since the epoch."""

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> object:
        """Record `data` that the connection carried."""

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Record what a fault did to the frame that is carried next."""

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Record the end of the connection."""


class FrameSocket(Driver, asyncio.Protocol):
    """Runs `protocol` on a connection of the current event loop.

    Subclasses implement `handle` for its events, and `over`, which is called when the connection has ended.
    The future `closed` is done by then.
    """

    def __init__(self, protocol: FrameProtocol, tap: Tap | None = None, warn: Warnings | None = None) -> None:
        super().__init__(protocol, warn or Warnings(lambda text: None))
        self.protocol = protocol
        self.connection = protocol.connection
        self.loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.transport: Any = None
        self._tap = tap
        self._writable = asyncio.Event()
        self._writable.set()

    def over(self) -> None:
        """Do what the end of the connection requires, after all its events were handled."""

    # -- what asyncio calls

    def connection_made(self, transport: Any) -> None:
        """asyncio: TCP (and TLS) is connected."""
        self.transport = transport
        transport.set_write_buffer_limits(high=1 << 20)
        ends = ("server", "client") if self.protocol.to_broker else ("client", "server")
        for name, attribute in zip(("sockname", "peername"), ends, strict=True):
            value = transport.get_extra_info(name)
            setattr(self.connection, attribute, str(Address(value[0], value[1])) if value else "")
        if self._tap is not None:
            self._tap.opened(self.connection, time.time_ns())

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        time_now = now()
        if self._tap is not None:
            self._tap.carried(self.connection, self.protocol.to_broker, data, time_now.time_ns)
        self.protocol.receive(data, time_now)
        self.sync()

    def pause_writing(self) -> None:
        """asyncio: the socket accepts no more bytes for now."""
        self.protocol.paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """asyncio: the socket accepts bytes again."""
        self.protocol.paused = False
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended."""
        protocol = self.protocol
        # `failure`: our side closes the connection; `to_broker`: our side is the broker
        by_broker = bool(protocol.failure) == protocol.to_broker
        plain = exc is None or isinstance(exc, (ConnectionResetError, BrokenPipeError))
        protocol.end("" if plain else f"the connection broke: {exc}")
        if self._tap is not None:
            self._tap.closed(self.connection, time.time_ns(), by_broker)
        self._writable.set()
        self.sync()
        self.stop_timer()
        if not self.closed.done():
            self.closed.set_result(None)
        self.over()

    # -- output of the protocol

    def sync(self) -> None:
        """Send the protocol's bytes and handle its events; close the connection if it has failed."""
        super().sync()
        if self.protocol.failure and self.transport is not None and not self.transport.is_closing():
            self.transport.abort()

    def write(self, data: bytes) -> None:
        """Send bytes, if the connection is open."""
        if not self.is_open:
            return
        self.transport.write(data)
        if not self._writable.is_set() and self.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            reader = "client" if self.protocol.to_broker else "broker"
            self.drop(f"the {reader} reads nothing: {MAX_UNSENT_BYTES} bytes wait to be sent")
        if self._tap is not None:
            self._tap.carried(self.connection, not self.protocol.to_broker, data, time.time_ns())

    # -- for callers

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self.transport is not None and not self.transport.is_closing() and not self.protocol.failure

    def send(self, data: bytes) -> None:
        """Send bytes as they are, usually whole frames. Raises LinkClosed."""
        if not self.is_open:
            raise self.protocol.end_error
        self.write(data)

    async def drain(self) -> None:
        """Wait until the socket accepts more bytes."""
        if not self._writable.is_set():
            await self._writable.wait()

    def drop(self, reason: str) -> None:
        """Close at once, because of `reason`. Users of the connection are notified, and may reconnect."""
        self.protocol.fail(reason)
        if self.transport is not None:
            self.transport.abort()

    async def close(self) -> None:
        """Send the waiting bytes, and close."""
        if self.transport is None:
            return
        self.protocol.fail("we closed the connection")
        self.stop_timer()
        self.transport.close()
        await asyncio.wait([self.closed], timeout=2)
        if not self.closed.done():
            self.transport.abort()
