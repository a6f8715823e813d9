"""The embedded broker as a server: sockets and storage around the pure core (`core.py`)."""

import asyncio
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pulsarctl_wire.broker.admin import Answer, answer
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.cluster.cluster import NO_KEYS, Broker
from pulsarctl_wire.broker.core import Core
from pulsarctl_wire.broker.shell.sqlite import Memory, Storage, Worker
from pulsarctl_wire.broker.storage.journal import Commit, ReadRequest
from pulsarctl_wire.broker.tenancy.access import Keys, get_common_name
from pulsarctl_wire.errors import WireError
from pulsarctl_wire.net.frame_socket import FrameSocket, Tap
from pulsarctl_wire.net.listener import Listener, Make
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import BACKLOG, LINGER, TlsContext
from pulsarctl_wire.wire import frame
from pulsarctl_wire.wire.frame import FRAME_PADDING, Frame
from pulsarctl_wire.wire.framing.proxy_header import header_size, may_be_header, parse_header

if TYPE_CHECKING:
    from pulsarctl_wire.broker.shell.faulty import FaultyConnection
    from pulsarctl_wire.faults.lanes import Faults

_EARLY: Final = 100
"""Entries whose storing begins while more are being received."""

_AGAIN: Final = 1.0  # seconds until a commit or read that failed is tried again
_MAX_WAITING_BYTES: Final = 8 << 20
"""Bytes of answers that may wait for a client to read them before it is read no further."""

T = TypeVar("T")


class Peer(FrameSocket):
    """The socket of a client."""

    def __init__(self, server: "Server", broker: Broker, client: Address) -> None:
        protocol = FrameProtocol(frame.Connection(next(server.numbers)), to_broker=True)
        super().__init__(protocol, server.tap)
        protocol._stream.limit = server.cluster.settings.maxMessageSize + FRAME_PADDING
        self._server = server
        self._broker = broker
        self._client = client
        self.state: Any = None
        """The core's connection, once there is one."""
        self._head: bytes | None = b"" if server.cluster.settings.haProxyProtocolEnabled else None
        self.sent = self.received = 0
        """Bytes so far."""
        self.faulty: FaultyConnection | None = None
        """Applies faults, once there are any."""

    def connection_made(self, transport: Any) -> None:
        """asyncio: connected."""
        super().connection_made(transport)
        server = self._server
        server.set_time()
        certificate = get_common_name(transport.get_extra_info("peercert"))
        self.state = server.cluster.connect(self._broker, str(self._client), certificate=certificate)
        server.peers[self.state] = self
        server.flush()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes were received."""
        self.received += len(data)
        self._server.set_time()
        if self._head is not None:
            data = self._without_header(self._head + data)
        super().data_received(data)
        self._server.flush()

    def _without_header(self, data: bytes) -> bytes:
        """Return what follows a PROXY header, if there is one; nothing while it is not complete."""
        if not may_be_header(data):
            self._head = None
            return data
        try:
            size = header_size(data)
            if len(data) < size:
                self._head = data
                return b""
            self._head = None
            source = parse_header(data[:size]).source
        except WireError as error:
            self.protocol.fail(str(error))
            return b""
        if source is not None and self.state is not None:
            self.state.client = self.state.address = str(Address(*source))
        return data[size:]

    def handle(self, event: Any) -> None:
        """A frame was received."""
        if isinstance(event, Frame) and not event.partial and self.state is not None:
            faulty = self._through_faults() if self._server.faults is not None else None
            if faulty is None:
                self._server.cluster.receive(self.state, event)
                self._server.commit_early()
            else:
                faulty.received(event)

    def sync(self) -> None:
        """Handle what was received; bytes that are not a frame end the connection."""
        super(FrameSocket, self).sync()
        if self.protocol.failure and not self.transport.is_closing():
            self._server.cluster.disconnect(self.state)
            self.transport.close()

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly."""
        super().pause_writing()
        self._server.cluster.set_writable(self.state, False)

    def resume_writing(self) -> None:
        """asyncio: the client has read enough."""
        super().resume_writing()
        self._server.set_time()
        self._server.cluster.set_writable(self.state, True)
        self.flush()  # it may be read again
        self._server.flush()

    def over(self) -> None:
        """The connection has ended."""
        if self.state is not None:
            self._server.set_time()
            if self.faulty is not None:
                self.faulty.stop()
            self._server.peers.pop(self.state, None)
            self._server.cluster.disconnect(self.state)
            self._server.flush()

    def flush(self) -> None:
        """Do what the core wants of the connection."""
        state = self.state
        if state is None or self.transport.is_closing():
            return
        if state.out:
            data = state.take_out()
            faulty = self._through_faults()
            if faulty is None:
                self.transmit(data)
            else:
                faulty.sent(data)
        if state.closed:
            if self.faulty is None:
                self.break_off()
            elif not self.faulty.blackholed:
                self.faulty.when_sent(self.break_off)
            return
        full, waiting = (False, False) if self.faulty is None else self.faulty.holds_much
        if state.throttled or waiting or self.transport.get_write_buffer_size() > _MAX_WAITING_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        writable = not (self.protocol.paused or full)
        if state.paused if writable else full and not state.paused:
            self._server.cluster.set_writable(state, writable)

    # -- faults

    def _through_faults(self) -> "FaultyConnection | None":
        """Return what applies faults to this connection; None if there were none yet."""
        faults = self._server.faults
        if self.faulty is None and faults:
            from pulsarctl_wire.broker.shell.faulty import FaultyConnection

            url = self._broker.service_url_tls if self._is_secure else self._broker.service_url
            limit = self.protocol._stream.limit
            scheduler = self._server.cluster.scheduler
            self.faulty = FaultyConnection(faults, self.connection, self, scheduler, limit, url)
            self.faulty.prime(self.state.producers, self.state.consumers)
        return self.faulty

    @property
    def _is_secure(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    def deliver(self, frame: Frame) -> None:
        """The core gets a frame."""
        self._server.cluster.receive(self.state, frame)

    def transmit(self, data: bytes) -> None:
        """The client gets bytes."""
        self.sent += len(data)
        self.write(data)

    def break_off(self, *, reset: bool = False) -> None:
        """End the connection, after what was sent; with RST, at once."""
        if self.transport.is_closing():
            return
        self.protocol.fail("closed by the broker")
        if not reset:
            self.transport.close()
            return
        sock = self.transport.get_extra_info("socket")
        with suppress(OSError):  # closed already, under TLS
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        self.transport.abort()

    def note(self, text: str) -> None:
        """Tell the user about this connection."""
        self._server.note(f"connection {self.connection.index}: {text}")


class Ports(Protocol):
    """The ports of the brokers of a server."""

    async def kill(self, broker: Broker) -> None:
        """Kill a broker: its connections end without a word, and its ports are closed."""

    async def start(self, broker: Broker) -> None:
        """Start a broker that was killed, at the same ports."""


class Server:
    """Runs a cluster in the current event loop. Its clock is `offset` ns ahead of the machine's.

    `tap` observes all connections, and `note` gets a text about each that cannot be made.
    """

    def __init__(
        self,
        settings: Settings,
        storage: Storage | None = None,
        brokers: int = 1,
        keys: Keys = NO_KEYS,
        *,
        tap: Tap | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.tap = tap
        self.numbers = count()
        self.note = note
        self.faults: Faults | None = None
        """Faults on all connections, once `new_faults` has been asked for some."""
        self.new_faults = _new_faults
        self.storage = storage or Memory()
        self.offset = 0
        now = time.perf_counter_ns(), time.time_ns()
        self.cluster = Core(settings, self.storage.rows(), self.storage.ends(), brokers, keys, now)
        self.peers: dict[Connection, Peer] = {}
        self.ports: Ports | None = None
        """What has opened the ports of the brokers, if that can open them again."""
        self._listeners: dict[Broker, list[Listener]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._in_work = 0
        self._quiet = asyncio.Event()
        self._committing = False
        self._writer = Worker(self.storage.commit, self._stored)
        self._reader = Worker(self.storage.read, self._was_read)
        self._failed: dict[Commit | ReadRequest, asyncio.TimerHandle] = {}
        """Commits and reads that failed -> the timer that tries again."""

    # -- starting and stopping

    def listen(
        self, broker: Broker, sock: socket.socket, tls: TlsContext | None = None, host: str = ""
    ) -> Address:
        """Serve the binary protocol at a socket, which is bound; returns its address.

        Clients are told `host`; by default the address itself.
        """
        sock.listen(BACKLOG)
        sock.setblocking(False)
        listener = Listener(self.note, tls=tls)
        self._listeners.setdefault(broker, []).append(listener)

        def admit() -> Make | None:
            return (lambda client: Peer(self, broker, client)) if broker.alive else None

        listener.serve(sock, admit)
        address = Address(*sock.getsockname()[:2])
        told = Address(host or address.host, address.port)
        if tls is None:
            broker.service_url = f"pulsar://{told}"
        else:
            broker.service_url_tls = f"pulsar+ssl://{told}"
        return address

    async def stop_listening(self, broker: Broker) -> None:
        """Close the sockets of a broker; its connections stay."""
        for listener in self._listeners.pop(broker, ()):
            await listener.close()

    def cut(self, number: int | None = None) -> int:
        """End a connection without a word, or all of them; returns how many."""
        peers = [peer for state, peer in self.peers.items() if number in (None, state.number)]
        for peer in peers:
            peer.transport.abort()
        return len(peers)

    def renew_faults(self) -> None:
        """The faults were changed: connections that wait for nothing else notice, too."""
        self.set_time()
        for peer in list(self.peers.values()):
            if peer.faulty is not None:
                peer.faulty.renew()
                peer.flush()  # there may be room again
        self.flush()

    async def close(self) -> None:
        """Close everything; what was received is stored."""
        for broker in self.cluster.brokers:
            await self.stop_listening(broker)
        for peer in list(self.peers.values()):
            peer.transport.close()
        await asyncio.gather(*(peer.closed for peer in list(self.peers.values())))
        if self._timer is not None:
            self._timer.cancel()
        await self._store_rest()
        self._writer.stop()
        self._reader.stop()
        self.storage.close()

    # -- time

    def set_time(self) -> None:
        """Tell the core the time."""
        self.cluster.set_time(time.perf_counter_ns() + self.offset, time.time_ns() + self.offset)

    async def advance(self, seconds: float, settled: Callable[[], Awaitable[None]] | None = None) -> None:
        """Move the clock forward; what is due in between happens in order, each after `settled`."""
        settled = settled or self.idle
        until = time.perf_counter_ns() + self.offset + int(seconds * 1e9)
        while True:
            await settled()
            at = self.cluster.wake_at
            if at is None or at > until:
                break
            self._move_clock(at)
        self._move_clock(until)
        await settled()

    def _move_clock(self, to: int) -> None:
        self.offset += max(to - (time.perf_counter_ns() + self.offset), 0)
        self.set_time()
        self.flush()

    def _wake(self) -> None:
        self._timer = None
        self.set_time()
        self.flush()

    # -- the admin API

    async def admin(
        self,
        method: str,
        path: str,
        body: Any = None,
        broker: Broker | None = None,
        *,
        role: str | None = None,
        follow: bool = True,
    ) -> Answer:
        """Return the answer to a request of the admin API, by path with query.

        `role` is who asks, None who may do everything. If another broker must be asked, it is, if `follow`.
        """
        url = urlsplit(path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        broker = broker or self.cluster.brokers[0]
        told = await self.run(answer(broker, method, url.path, query, body, role))
        if told.owner is not None and follow:
            told = await self.run(answer(told.owner, method, url.path, query, body, role))
        return told

    async def run(self, coroutine: Coroutine[Any, None, T]) -> T:
        """Run a coroutine of the core."""
        self.set_time()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome = self.cluster.scheduler.spawn(coroutine)

        def done() -> None:
            if future.done():
                return
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.value)

        outcome.then(done)
        self.flush()
        return await future

    # -- what the core wants

    def flush(self) -> None:
        """Do what the core wants."""
        cluster = self.cluster
        cluster.wake()
        while touched := cluster.take_touched():
            for connection in touched:
                peer = self.peers.get(connection)
                if peer is not None:
                    peer.flush()
            cluster.wake()
        for read in cluster.journal.take_reads():
            self._read(read)
        if not self._committing:
            self._commit(cluster.journal.take_commit())
        if not self._in_work:
            self._quiet.set()
        for failure in cluster.scheduler.failures:
            report("".join(traceback.format_exception(failure)))
        cluster.scheduler.failures.clear()
        self._set_timer()

    def commit_early(self) -> None:
        """Begin to store what there is while more is being received, if it is much."""
        if not self._committing and len(self.cluster.journal.entries) >= _EARLY:
            self._commit(self.cluster.journal.take_commit())

    def _commit(self, commit: Commit | None) -> None:
        if commit is not None:
            self._committing = True
            self._in_work += 1
            self._writer.put(commit)

    def _stored(self, commit: Commit, error: Exception | None) -> None:
        self._in_work -= 1
        if error is not None:
            self._try_again(self._commit, commit, f"cannot store, so nothing is confirmed: {error}")
            return
        self._failed.pop(commit, None)
        self._committing = False
        self.set_time()
        self.cluster.on_stored()
        self.flush()

    def _read(self, read: ReadRequest) -> None:
        self._in_work += 1
        self._reader.put(read)

    def _was_read(self, read: ReadRequest, entries: Any) -> None:
        self._in_work -= 1
        if isinstance(entries, Exception):
            self._try_again(self._read, read, f"cannot read, so nothing is delivered: {entries}")
            return
        self._failed.pop(read, None)
        self.set_time()
        self.cluster.on_read(read.number, entries)
        self.flush()

    def _try_again(self, do: Callable[[Any], None], item: Commit | ReadRequest, problem: str) -> None:
        """Storage failed: until this works, messages must be neither confirmed nor skipped."""
        if item not in self._failed:
            report(problem)
        self._failed[item] = asyncio.get_running_loop().call_later(_AGAIN, do, item)
        self.flush()

    async def _store_rest(self) -> None:
        """Store what is left. If storage still fails, nobody was told that it is stored."""
        await self.idle()
        for item in list(self._failed):
            self._failed[item].cancel()
            if isinstance(item, Commit):
                self._commit(item)
        await self.idle()
        if not self._committing:
            self._commit(self.cluster.journal.take_commit(everything=True))
        await self.idle()
        for timer in self._failed.values():
            timer.cancel()

    def _set_timer(self) -> None:
        at = self.cluster.wake_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            seconds = max(at - time.perf_counter_ns() - self.offset, 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    async def idle(self) -> None:
        """Wait until nothing is left to do but what is due later."""
        while self._in_work:
            self._quiet.clear()
            await self._quiet.wait()


def _new_faults() -> "Faults":
    from pulsarctl_wire.faults.lanes import Faults

    return Faults(0)


def report(text: str) -> None:
    """Say that something went wrong that must not."""
    sys.__stderr__.write(f"pwire broker: {text}\n")  # type: ignore[union-attr]
