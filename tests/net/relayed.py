"""A proxy between two ends that a test holds in its hands, all in one event loop and over real sockets.

    @awaited
    async def test_something() -> None:
        async with relayed() as proxied:
            client, broker = await proxied.pair()
            await client.send(b"...")
            assert await broker.receive(3) == b"..."

An `End` reads only when a test asks it to, so that what is not read waits where it would: in the kernel, and
behind that in the proxy. Tests wait for bytes, ends and notes, never for time to pass.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from net.scripted import HOST, Bell

from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.faults.text import parse_fault
from pulsarctl_wire.net.certificates import ensure_ca, make_server_context
from pulsarctl_wire.net.proxy.proxy import Plan, Proxy
from pulsarctl_wire.net.proxy.relay import Relay
from pulsarctl_wire.net.proxy.tap import TapRing
from pulsarctl_wire.net.settings import Address, Settings, parse_url
from pulsarctl_wire.wire.frame import Connection

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

CLOSE = 5.0
"""Seconds that a proxy has to end in; those that need them all fail."""
_PIECE = 256 * 1024


class End:
    """One end of a TCP connection, by hand; without buffers of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)

    @classmethod
    async def connect(cls, address: Address) -> Self:
        sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
        end = cls(sock)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        return end

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self, size: int) -> bytes:
        """As many bytes; fewer if it ends before."""
        found = bytearray()
        while len(found) < size and (more := await self.piece(size - len(found))):
            found += more
        return bytes(found)

    async def piece(self, most: int = _PIECE) -> bytes:
        """Some bytes, b"" at the end."""
        return await asyncio.get_running_loop().sock_recv(self.sock, most)

    async def rest(self) -> bytes:
        """All bytes up to the end."""
        found = bytearray()
        while more := await self.piece():
            found += more
        return bytes(found)

    async def was_reset(self) -> bool:
        """Read to the end; whether that was a reset."""
        try:
            await self.rest()
        except ConnectionResetError:
            return True
        return False

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()

    @property
    def name(self) -> Address:
        return Address(*self.sock.getsockname()[:2])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        self.close()


class Upstream:
    """Listens in a broker's place; `accept` gives the connections in order. An async context manager."""

    def __init__(self, backlog: int = 512) -> None:
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.bind((HOST, 0))
        self._sock.listen(backlog)

    @property
    def address(self) -> Address:
        return Address(*self._sock.getsockname())

    async def accept(self) -> End:
        sock, _ = await asyncio.get_running_loop().sock_accept(self._sock)
        return End(sock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._sock.close()


class Seen(TapRing):
    """Remembers what it is told in place of a ring; it has no room while `deaf` says so."""

    def __init__(self) -> None:
        self.wants_bytes = True
        self.bell = Bell()
        self.notes: list[str] = []
        self.told: list[tuple[str, Any]] = []
        self.open: dict[int, Connection] = {}
        self.ended: list[tuple[int, bool]] = []
        self.bytes = {True: bytearray(), False: bytearray()}
        self.lost = {True: [0, 0], False: [0, 0]}
        self.deaf: Callable[[], bool] = lambda: False

    def _heard(self, what: str, value: Any) -> None:
        self.told.append((what, value))
        self.bell.ring()

    def opened(self, connection: Connection, time_ns: int) -> None:
        assert connection.index not in self.open
        self.open[connection.index] = connection
        self._heard("opened", connection.index)

    def changed(self, connection: Connection, to_broker: bool, change: str, time_ns: int) -> None:
        self._heard("changed", (to_broker, change))

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> bool:
        if self.deaf():
            return False
        self.bytes[to_broker] += data
        self._heard("carried", (connection.index, to_broker, bytes(data)))
        return True

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> bool:
        if self.deaf():
            return False
        self.lost[to_broker][0] += size
        self.lost[to_broker][1] += frames
        self._heard("missed", (connection.index, to_broker, size, frames))
        return True

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        self.ended.append((connection.index, by_broker))
        self._heard("closed", (connection.index, by_broker))

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._heard("note", text)

    async def until(self, holds: Callable[[], object]) -> None:
        await self.bell.until(holds)

    async def noted(self, text: str, count: int = 1) -> None:
        """Wait for notes that contain `text`."""
        await self.until(lambda: sum(text in note for note in self.notes) >= count)


@dataclass
class Proxied:
    """A running proxy, and what a test needs of it."""

    proxy: Proxy
    address: Address
    seen: Seen
    upstream: Upstream
    ends: list[End] = field(default_factory=list)

    async def connect(self, address: Address | None = None) -> End:
        """A client of it."""
        end = await End.connect(address or self.address)
        self.ends.append(end)
        return end

    async def accept(self) -> End:
        """The next connection of the proxy's with the upstream."""
        end = await self.upstream.accept()
        self.ends.append(end)
        return end

    async def pair(self) -> tuple[End, End]:
        """A client and what the proxy makes of it."""
        client = await self.connect()
        return client, await self.accept()

    @property
    def relay(self) -> Relay:
        """The only one."""
        (relay,) = self.proxy.relays
        return relay

    def fault(self, *texts: str) -> list[int]:
        """Put faults into force."""
        return [self.proxy.faults.add(parse_fault(text)) for text in texts]

    @property
    def queued(self) -> int:
        """Bytes that wait in the proxy to be written."""
        legs = [leg for relay in self.proxy.relays for leg in relay.legs]
        return sum(leg.transport.get_write_buffer_size() for leg in legs if leg.transport is not None)


def plan_for(*addresses: Address, secure: bool = False, settings: Any = None, **plan: Any) -> Plan:
    """What a proxy before these is to do (`secure`: it speaks TLS with them).

    `settings` and `plan` are fields of Settings and Plan.
    """
    url = parse_url(f"pulsar{'+ssl' if secure else ''}://{','.join(map(str, addresses))}")
    given: dict[str, Any] = {"connect_timeout": 10.0, **(settings or {})}
    return Plan(plan.pop("listen", Address(HOST, 0)), Settings(url, **given), **plan)


@asynccontextmanager
async def running(
    plan: Plan, *faults: str, close: float = CLOSE
) -> AsyncIterator[tuple[Proxy, Address, Seen]]:
    """A proxy that does as `plan` says; closed at the end."""
    seen = Seen()
    proxy = Proxy(plan, Faults(seed=7), seen)
    for text in faults:
        proxy.faults.add(parse_fault(text))
    address = await proxy.open()
    try:
        yield proxy, address, seen
    finally:
        await proxy.close(close)


@asynccontextmanager
async def relayed(*faults: str, close: float = CLOSE, **plan: Any) -> AsyncIterator[Proxied]:
    """A proxy before an upstream; all ends are closed before it, so that it ends at once."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(Upstream())
        proxy, address, seen = await stack.enter_async_context(
            running(plan_for(upstream.address, **plan), *faults, close=close)
        )
        proxied = Proxied(proxy, address, seen, upstream)
        try:
            yield proxied
        finally:
            for end in proxied.ends:
                end.close()


async def turns(count: int = 5) -> None:
    """Let the event loop go around, so that the proxy reads what lies there; nothing depends on it."""
    for _ in range(count):
        await asyncio.sleep(0)


async def fill(end: End, piece: bytes = bytes(65_536), is_full: Callable[[], bool] = lambda: True) -> int:
    """Send `piece` again and again until nothing more is taken, however often the event loop goes around, and
    whoever should take no more `is_full`; return the bytes sent."""
    sent = 0
    idle = 0
    while idle < 200 or not is_full():
        try:
            sent += end.sock.send(piece[sent % len(piece) :])
            idle = 0
        except BlockingIOError:
            idle += 1
        await asyncio.sleep(0)
    return sent


# ---- TLS ----


@dataclass(frozen=True)
class Trust:
    """A CA of its own with the certificate it made for 127.0.0.1."""

    ca: Path
    server: ssl.SSLContext

    @classmethod
    def make(cls, directory: Path, client_ca: Path | None = None) -> Trust:
        server = make_server_context(
            None, None, ca_directory=directory, names=[HOST], client_ca=str(client_ca) if client_ca else None
        )
        return cls(ensure_ca(directory)[0], server)

    def client(self) -> ssl.SSLContext:
        """What trusts this CA alone."""
        return ssl.create_default_context(cafile=str(self.ca))


class Stream:
    """A TLS (or plain) end by asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: Address, context: ssl.SSLContext | None) -> Self:
        return cls(*await asyncio.open_connection(*address, ssl=context))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive(self, size: int) -> bytes:
        try:
            return await self.reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def rest(self) -> bytes:
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def tls_server(context: ssl.SSLContext | None) -> AsyncIterator[tuple[Address, asyncio.Queue[Stream]]]:
    """A server that speaks TLS (None: does not), and the connections that were made to it."""
    came: asyncio.Queue[Stream] = asyncio.Queue()
    streams: list[Stream] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams.append(Stream(reader, writer))
        came.put_nowait(streams[-1])

    server = await asyncio.start_server(handle, HOST, 0, ssl=context)
    try:
        yield Address(*server.sockets[0].getsockname()), came
    finally:
        server.close()
        for stream in streams:
            await stream.close()
