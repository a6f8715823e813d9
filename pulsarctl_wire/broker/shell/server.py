"""The embedded broker as a server: sockets and storage around the pure core (`core.py`)."""

import asyncio
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
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
from pulsarctl_wire.net.listener import Listener
from pulsarctl_wire.net.protocol import FrameProtocol
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import BACKLOG, LINGER, TlsContext
from pulsarctl_wire.wire import frame
from pulsarctl_wire.wire.frame import FRAME_PADDING, Frame
from pulsarctl_wire.wire.framing.proxy_header import header_size, may_be_header, parse_header

if TYPE_CHECKING:
    from pulsarctl_wire.broker.shell.faulty import FaultyConnection
    from pulsarctl_wire.faults.lanes import Faults

_EARLY_COMMIT_ENTRIES: Final = 100
"""With so many entries, a commit begins while more are being received."""

_RETRY_SECONDS: Final = 1.0  # until a failed commit or read is tried again
_MAX_WAITING_BYTES: Final = 8 << 20
"""While more bytes of answers than this wait for a client, nothing is read from it."""

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
        self.core_connection: Any = None
        """The core's connection, once connected."""
        self._proxy_header: bytes | None = b"" if server.cluster.settings.haProxyProtocolEnabled else None
        """What has come of a PROXY header; None once it is complete, or if none is expected."""
        self.sent = self.received = 0  # bytes so far
        self.faulty: FaultyConnection | None = None
        """The faults on the connection, once there are any."""

    def connection_made(self, transport: Any) -> None:
        """Tell the core about the connection (called by asyncio)."""
        super().connection_made(transport)
        server = self._server
        server.set_time()
        certificate = get_common_name(transport.get_extra_info("peercert"))
        connection = server.cluster.connect(self._broker, str(self._client), certificate=certificate)
        self.core_connection = connection
        server.peers[connection] = self
        server.flush()

    def data_received(self, data: bytes) -> None:
        """Parse and handle received bytes (called by asyncio)."""
        self.received += len(data)
        self._server.set_time()
        if self._proxy_header is not None:
            data = self._strip_header(self._proxy_header + data)
        super().data_received(data)
        self._server.flush()

    def _strip_header(self, data: bytes) -> bytes:
        """Return what follows a PROXY header, if there is one; nothing while it is incomplete."""
        if not may_be_header(data):
            self._proxy_header = None
            return data
        try:
            size = header_size(data)
            if len(data) < size:
                self._proxy_header = data
                return b""
            self._proxy_header = None
            source = parse_header(data[:size]).source
        except WireError as error:
            self.protocol.fail(str(error))
            return b""
        if source is not None and self.core_connection is not None:
            self.core_connection.client = self.core_connection.address = str(Address(*source))
        return data[size:]

    def handle(self, event: Any) -> None:
        """Handle a received frame."""
        if isinstance(event, Frame) and not event.partial and self.core_connection is not None:
            faulty = self._get_faulty() if self._server.faults is not None else None
            if faulty is None:
                self._server.cluster.receive(self.core_connection, event)
                self._server.commit_early()
            else:
                faulty.receive(event)

    def sync(self) -> None:
        """Handle what was received; bytes that are not a frame end the connection."""
        super(FrameSocket, self).sync()  # FrameSocket's own would abort, and lose answers not sent yet
        if self.protocol.failure and not self.transport.is_closing():
            self._server.cluster.disconnect(self.core_connection)
            self.transport.close()

    def pause_writing(self) -> None:
        """Tell the core that the client reads too slowly (called by asyncio)."""
        super().pause_writing()
        self._server.cluster.set_writable(self.core_connection, False)

    def resume_writing(self) -> None:
        """Tell the core that the client has read enough (called by asyncio)."""
        super().resume_writing()
        self._server.set_time()
        self._server.cluster.set_writable(self.core_connection, True)
        self.flush()  # the client may be read again
        self._server.flush()

    def over(self) -> None:
        """End the connection in the core, too."""
        if self.core_connection is not None:
            self._server.set_time()
            if self.faulty is not None:
                self.faulty.stop()
            self._server.peers.pop(self.core_connection, None)
            self._server.cluster.disconnect(self.core_connection)
            self._server.flush()

    def flush(self) -> None:
        """Send what the core has for the client; then close the connection, or pause or resume reading."""
        connection = self.core_connection
        if connection is None or self.transport.is_closing():
            return
        if connection.out:
            data = connection.take_out()
            faulty = self._get_faulty()
            if faulty is None:
                self.transmit(data)
            else:
                faulty.send(data)
        if connection.closed:
            if self.faulty is None:
                self.break_off()
            elif not self.faulty.is_blackholed:
                self.faulty.call_after_send(self.break_off)
            return
        is_out_full, is_in_full = (False, False) if self.faulty is None else self.faulty.full_lanes
        if connection.throttled or is_in_full or self.transport.get_write_buffer_size() > _MAX_WAITING_BYTES:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        is_writable = not (self.protocol.paused or is_out_full)  # `pause_writing` told the core of the former
        if connection.paused if is_writable else is_out_full and not connection.paused:
            self._server.cluster.set_writable(connection, is_writable)

    # -- faults

    def _get_faulty(self) -> "FaultyConnection | None":
        """Return the faults on this connection, made once the server has some; None before."""
        faults = self._server.faults
        if self.faulty is None and faults:
            from pulsarctl_wire.broker.shell.faulty import FaultyConnection

            url = self._broker.service_url_tls if self._is_secure else self._broker.service_url
            limit = self.protocol._stream.limit
            scheduler = self._server.cluster.scheduler
            self.faulty = FaultyConnection(faults, self.connection, self, scheduler, limit, url)
            self.faulty.prime(self.core_connection.producers, self.core_connection.consumers)
        return self.faulty

    @property
    def _is_secure(self) -> bool:
        return self.transport.get_extra_info("ssl_object") is not None

    def deliver(self, frame: Frame) -> None:
        """Pass a frame to the core."""
        self._server.cluster.receive(self.core_connection, frame)

    def transmit(self, data: bytes, change: str = "") -> None:
        """Pass bytes to the client; `change` says what was done to the frame."""
        self.sent += len(data)
        if change and self._tap is not None:
            self._tap.changed(self.connection, False, change)
        self.write(data)

    def break_off(self, *, reset: bool = False) -> None:
        """End the connection once everything is sent; with `reset`, at once, by RST."""
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
        """Print a note about this connection for the user."""
        self._server.note(f"connection {self.connection.index}: {text}")


class Ports(Protocol):
    """The ports of the brokers of a server."""

    async def kill(self, broker: Broker) -> None:
        """Kill a broker: cut its connections, and close its ports."""

    async def start(self, broker: Broker) -> None:
        """Start a broker that was killed, at the same ports."""


class Server:
    """Runs a cluster in the current event loop. Its clock is `offset` ns ahead of the machine's.

    `tap` observes all connections. `note` gets texts for the user, on failed connections and on faults.
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
        """Faults on all connections, once made by `new_faults`."""
        self.new_faults = _new_faults
        self.storage = storage or Memory()
        self.offset = 0
        now = time.perf_counter_ns(), time.time_ns()
        self.cluster = Core(settings, self.storage.rows(), self.storage.ends(), brokers, keys, now)
        self.peers: dict[Connection, Peer] = {}
        self.ports: Ports | None = None
        """The owner of the brokers' ports, if it can open them again."""
        self._listeners: dict[Broker, list[Listener]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._pending_jobs = 0
        self._idle_event = asyncio.Event()
        self._is_committing = False
        self._writer = Worker(self.storage.commit, self._on_stored)
        self._reader = Worker(self.storage.read, self._on_read)
        self._retries: dict[Commit | ReadRequest, asyncio.TimerHandle] = {}
        """Failed commits and reads -> the timer that tries again."""

    # -- starting and stopping

    def listen(
        self, broker: Broker, sock: socket.socket, tls: TlsContext | None = None, host: str = ""
    ) -> Address:
        """Serve the binary protocol at a bound socket, and return its address.

        Clients get `host`; by default the address itself.
        """
        sock.listen(BACKLOG)
        sock.setblocking(False)
        listener = Listener(self.note, tls=tls)
        self._listeners.setdefault(broker, []).append(listener)
        listener.serve(sock, lambda: partial(Peer, self, broker) if broker.alive else None)
        address = Address(*sock.getsockname()[:2])
        advertised = Address(host or address.host, address.port)
        if tls is None:
            broker.service_url = f"pulsar://{advertised}"
        else:
            broker.service_url_tls = f"pulsar+ssl://{advertised}"
        return address

    async def stop_listening(self, broker: Broker) -> None:
        """Close the sockets of a broker; its connections stay."""
        for listener in self._listeners.pop(broker, ()):
            await listener.close()

    def cut(self, number: int | None = None) -> int:
        """Abort a connection, or all of them, and return how many."""
        peers = [peer for connection, peer in self.peers.items() if number in (None, connection.number)]
        for peer in peers:
            peer.transport.abort()
        return len(peers)

    def renew_faults(self) -> None:
        """Apply changed faults to all connections, also those without traffic."""
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

    async def advance(self, seconds: float, wait_idle: Callable[[], Awaitable[None]] | None = None) -> None:
        """Move the clock forward; what is due until then happens in order, each after `wait_idle`."""
        wait_idle = wait_idle or self.idle
        target = time.perf_counter_ns() + self.offset + int(seconds * 1e9)
        while True:
            await wait_idle()
            due = self.cluster.wake_at
            if due is None or due > target:
                break
            self._move_clock(due)
        self._move_clock(target)
        await wait_idle()

    def _move_clock(self, target: int) -> None:
        self.offset += max(target - (time.perf_counter_ns() + self.offset), 0)
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
        """Answer a request of the admin API; `path` includes the query.

        `role` is the client's; None may do everything. With `follow`, a redirect is followed.
        """
        url = urlsplit(path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        broker = broker or self.cluster.brokers[0]
        result = await self.run(answer(broker, method, url.path, query, body, role))
        if result.owner is not None and follow:
            result = await self.run(answer(result.owner, method, url.path, query, body, role))
        return result

    async def run(self, coroutine: Coroutine[Any, None, T]) -> T:
        """Run a coroutine of the core."""
        self.set_time()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome = self.cluster.scheduler.spawn(coroutine)

        def on_done() -> None:
            if future.done():
                return
            if outcome.error is not None:
                future.set_exception(outcome.error)
            else:
                future.set_result(outcome.value)

        outcome.then(on_done)
        self.flush()
        return await future

    # -- commits and reads of the core

    def flush(self) -> None:
        """Run the core, and carry out what it wants: sending, reads, commits, timers."""
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
        if not self._is_committing:
            self._commit(cluster.journal.take_commit())
        if not self._pending_jobs:
            self._idle_event.set()
        for failure in cluster.scheduler.failures:
            report("".join(traceback.format_exception(failure)))
        cluster.scheduler.failures.clear()
        self._set_timer()

    def commit_early(self) -> None:
        """Begin a commit while more is being received, if it is large."""
        if not self._is_committing and len(self.cluster.journal.entries) >= _EARLY_COMMIT_ENTRIES:
            self._commit(self.cluster.journal.take_commit())

    def _commit(self, commit: Commit | None) -> None:
        if commit is not None:
            self._is_committing = True
            self._pending_jobs += 1
            self._writer.put(commit)

    def _on_stored(self, commit: Commit, error: Exception | None) -> None:
        self._pending_jobs -= 1
        if error is not None:
            self._try_again(self._commit, commit, f"cannot store, so nothing is confirmed: {error}")
            return
        self._retries.pop(commit, None)
        self._is_committing = False
        self.set_time()
        self.cluster.on_stored()
        self.flush()

    def _read(self, read: ReadRequest) -> None:
        self._pending_jobs += 1
        self._reader.put(read)

    def _on_read(self, read: ReadRequest, entries: Any) -> None:
        self._pending_jobs -= 1
        if isinstance(entries, Exception):
            self._try_again(self._read, read, f"cannot read, so nothing is delivered: {entries}")
            return
        self._retries.pop(read, None)
        self.set_time()
        self.cluster.on_read(read.number, entries)
        self.flush()

    def _try_again(self, action: Callable[[Any], None], item: Commit | ReadRequest, problem: str) -> None:
        """Retry a failed commit or read later; until it works, messages are neither confirmed nor skipped."""
        if item not in self._retries:
            report(problem)
        self._retries[item] = asyncio.get_running_loop().call_later(_RETRY_SECONDS, action, item)
        self.flush()

    async def _store_rest(self) -> None:
        """Store what remains. If storage still fails, it is lost, but was confirmed to no client."""
        await self.idle()
        for item in list(self._retries):
            self._retries[item].cancel()
            if isinstance(item, Commit):
                self._commit(item)
        await self.idle()
        if not self._is_committing:
            self._commit(self.cluster.journal.take_commit(everything=True))
        await self.idle()
        for timer in self._retries.values():
            timer.cancel()

    def _set_timer(self) -> None:
        due = self.cluster.wake_at
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            seconds = max(due - time.perf_counter_ns() - self.offset, 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    async def idle(self) -> None:
        """Wait until no commit or read is in progress; failed ones that wait for their retry do not count."""
        while self._pending_jobs:
            self._idle_event.clear()
            await self._idle_event.wait()


def _new_faults() -> "Faults":
    from pulsarctl_wire.faults.lanes import Faults

    return Faults(0)


def report(text: str) -> None:
    """Print a bug, or a failure of storage, on stderr."""
    sys.__stderr__.write(f"pwire broker: {text}\n")  # type: ignore[union-attr]
