"""One of a relay's two connections, as asyncio drives it."""

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.net.sockets import LINGER

if TYPE_CHECKING:
    from pulsarctl_wire.net.relay import Lane, Relay

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Leg(asyncio.BufferedProtocol):
    """One of a relay's two connections: with the client, or with the broker."""

    def __init__(self, relay: "Relay", to_broker: bool) -> None:
        self.relay = relay
        self.to_broker = to_broker
        self.transport: Any = None
        self.full = False
        """Whether it takes no more for now."""
        self.gone = False
        """Whether it stood and has ended."""
        self.half_closes = True

    @property
    def lane(self) -> "Lane":
        """The lane that it feeds."""
        return self.relay.lanes[not self.to_broker]

    def connection_made(self, transport: Any) -> None:
        """asyncio: it stands; nothing is read before the other one does too."""
        self.transport = transport
        transport.set_write_buffer_limits(high=1)  # at 0 TLS transports never take anything again
        self.half_closes = transport.can_write_eof()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.relay.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where to put what comes."""
        return self.relay.host.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes came."""
        self.lane.feed(bytes(self.relay.host.buffer[:nbytes]))

    def eof_received(self) -> bool:
        """asyncio: no more will come; it stays open for what is still to be sent, where TCP can do that."""
        if self.to_broker:
            self.relay.note_loss("closed it")
        self.lane.end()
        return self.half_closes

    def pause_writing(self) -> None:
        """asyncio: it takes no more for now."""
        self.full = True
        self.relay.balance()

    def resume_writing(self) -> None:
        """asyncio: it does again."""
        self.full = False
        self.relay.balance()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it has ended."""
        self.relay.lost(self, exc)

    def end(self) -> None:
        """Send no more to it: an end of file behind what was sent before, where TCP can do that."""
        if self.transport is None or self.transport.is_closing() or not self.half_closes:
            self.close()
            return
        try:
            self.transport.write_eof()
        except OSError:  # it was reset, which one that is not read is not told
            self.reset()

    def reset(self) -> None:
        """End it by RST; what waits to be sent is lost."""
        transport = self.transport
        if transport is not None and not self.gone:
            sock = transport.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):  # closed already, under TLS
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            transport.abort()

    def close(self) -> None:
        """End it when what was sent to it is gone."""
        transport = self.transport
        if transport is not None and not self.gone and not transport.is_closing():
            transport.resume_reading()  # before Python 3.11 TLS ends by what it reads
            transport.close()
