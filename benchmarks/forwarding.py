"""What `proxy.py` sends through proxies: loads of bytes, and the server and the client that exchange them."""

import hashlib
import math
import multiprocessing
import os
import random
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.harness import HOST, MIB
from benchmarks.traffic import build, build_message, build_send

BLOCK: Final = 4 * MIB
"""Bytes that are sent again and again, each time followed by something numbered, so that all differ."""
PATIENCE: Final = 900
"""Seconds that one measurement may take."""
IDLE: Final = 500
BUSY: Final = 50
"""Connections when there are many."""

Report = Callable[[object], None]
Server = Callable[[socket.socket, Report], None]
"""Accepts from a listener, and reports once."""
Client = Callable[[int, Report], None]
"""Connects to a port, and reports once."""

fork: Final = multiprocessing.get_context("fork")


# -- what is sent


class Way(NamedTuple):
    """One direction: a block with its number of frames, and something of a fixed size with a number in it."""

    block: bytes
    frames: int
    numbered: Callable[[int], bytes]

    @property
    def size(self) -> int:
        """Bytes of a block and of the numbered part."""
        return len(self.block) + len(self.numbered(0))


class Load(NamedTuple):
    """The traffic of a connection: its opening, a question and its answer, and bulk both ways."""

    name: str
    opening: bytes
    opened: bytes
    question: bytes
    answer: bytes
    out: Way
    back: Way


def make_opaque() -> Load:
    """Return random bytes."""
    draw = random.Random(1).randbytes
    word = draw(64)
    ways = [Way(draw(BLOCK), 0, lambda number: number.to_bytes(8, "big")) for _ in range(2)]
    return Load("opaque", word, word, word, word, *ways)


def make_frames(name: str, *entries: tuple[int, int]) -> Load:
    """Return Pulsar frames: entries of (messages, bytes of each), with equal bytes of each kind."""
    draw = random.Random(2).randbytes

    def make_way(build_frame: Callable[[Sequence[bytes], int], bytes]) -> Way:
        frames: list[bytes] = []
        for messages, size in entries:
            room = BLOCK // len(entries)
            while room > 0:
                frames.append(build_frame([draw(size) for _ in range(messages)], 2**30 + len(frames)))
                room -= len(frames[-1])
        payload = [draw(100)]
        return Way(b"".join(frames), len(frames) + 1, lambda number: build_frame(payload, 2**40 + number))

    topic = "persistent://public/default/bench"
    opening = (
        build("CONNECT", client_version="bench", protocol_version=21),
        build("PRODUCER", topic=topic, producer_id=1, request_id=1),
        build("SUBSCRIBE", topic=topic, subscription="s", subType=0, consumer_id=1, request_id=2),
        build("FLOW", consumer_id=1, messagePermits=2**31),
    )
    opened = (
        build("CONNECTED", server_version="bench", protocol_version=21),
        build("PRODUCER_SUCCESS", request_id=1, producer_name="bench-0-1"),
        build("SUCCESS", request_id=2),
    )
    questions = build("PING"), build("PONG")
    return Load(
        name, b"".join(opening), b"".join(opened), *questions, make_way(build_send), make_way(build_message)
    )


# -- the two sides


def run_sides(server: Server, client: Client, listener: socket.socket, port: int) -> list[Any]:
    """Run both sides, a process each; returns what they report. Raises RuntimeError if one fails."""
    pipes, processes = [], []
    try:
        for side in (partial(server, listener), partial(client, port)):
            ours, theirs = fork.Pipe(duplex=False)
            processes.append(fork.Process(target=_play, args=(side, theirs.send), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        if all(pipe.poll(PATIENCE) for pipe in pipes):
            return [pipe.recv() for pipe in pipes]
        raise RuntimeError(f"this took more than {PATIENCE} s")
    except EOFError:
        raise RuntimeError("a side failed, see above") from None
    finally:
        for process in processes:  # the server first: it does not see that the client ends
            process.terminate()
            process.join()


def _play(side: Callable[[Report], None], report: Report) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    side(report)


def _keep(*connections: socket.socket) -> None:
    """Wait to be ended, with these connections open: not every proxy forwards a half-close."""
    while connections:
        signal.pause()


def _receive(connection: socket.socket, size: int) -> None:
    """Receive exactly `size` bytes."""
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("the connection ended early")
        size -= len(part)


def _accept(listener: socket.socket, load: Load) -> socket.socket:
    """Return the next connection, opened."""
    connection = listener.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _receive(connection, len(load.opening))
    connection.sendall(load.opened)
    return connection


def _open(port: int, load: Load) -> socket.socket:
    """Return a connection to `port`, opened."""
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(load.opening)
    _receive(connection, len(load.opened))
    return connection


class Passed(NamedTuple):
    """When a side began and ended (s, one clock for all processes), and digests if requested."""

    began: float
    ended: float
    sent: str
    received: str


def _exchange(connection: socket.socket, out: Way, blocks: int, expected: int, has_digest: bool) -> Passed:
    """Send `blocks` blocks and receive `expected` bytes, both at once."""
    sent, received = hashlib.sha256(), hashlib.sha256()

    def send() -> None:
        for number in range(blocks):
            for part in (out.block, out.numbered(number)):
                connection.sendall(part)
                if has_digest:
                    sent.update(part)

    began = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    buffer = memoryview(bytearray(MIB))
    while expected:
        size = connection.recv_into(buffer)
        if not size:
            raise ConnectionError("the connection ended early")
        if has_digest:
            received.update(buffer[:size])
        expected -= size
    sender.join()
    return Passed(began, time.perf_counter(), sent.hexdigest(), received.hexdigest())


def transfer(load: Load, size: int, is_both: bool, has_digest: bool = False) -> tuple[Server, Client, int]:
    """Return sides of one connection with at least `size` bytes each way, and the number of frames."""
    out = math.ceil(size / load.out.size)
    back = math.ceil(size / load.back.size) if is_both else 0

    def serve(listener: socket.socket, report: Report) -> None:
        connection = _accept(listener, load)
        report(_exchange(connection, load.back, back, out * load.out.size, has_digest))
        _keep(connection)

    def connect(port: int, report: Report) -> None:
        connection = _open(port, load)
        report(_exchange(connection, load.out, out, back * load.back.size, has_digest))
        _keep(connection)

    return serve, connect, out * load.out.frames + back * load.back.frames


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    """Return p50 and p99 of times in seconds, in µs."""
    ranked = sorted(times)
    return ranked[len(ranked) // 2] * 1e6, ranked[len(ranked) * 99 // 100] * 1e6


def converse(load: Load, count: int) -> tuple[Server, Client]:
    """Return sides that ask and answer on one connection; the client reports p50 and p99 after a warm-up."""
    cpus = sorted(os.sched_getaffinity(0))

    def serve(listener: socket.socket, report: Report) -> None:
        os.sched_setaffinity(0, cpus[:1])
        connection = _accept(listener, load)
        report(None)
        while True:
            _receive(connection, len(load.question))
            connection.sendall(load.answer)

    def connect(port: int, report: Report) -> None:
        os.sched_setaffinity(0, cpus[-1:])
        connection = _open(port, load)
        times = []
        for _ in range(count + count // 10):
            began = time.perf_counter()
            connection.sendall(load.question)
            _receive(connection, len(load.answer))
            times.append(time.perf_counter() - began)
        report(_percentiles(times[count // 10 :]))
        _keep(connection)

    return serve, connect


class Many(NamedTuple):
    """Idle and busy connections; a busy one asks `questions` times, or sends `blocks` if that is not 0."""

    load: Load
    questions: int
    blocks: int

    def serve(self, listener: socket.socket, report: Report) -> None:
        """Answer questions, or report when the bulk has arrived."""
        load, left = self.load, BUSY * self.blocks * len(self.load.out.block)
        asked: dict[socket.socket, int] = {}
        buffer = memoryview(bytearray(MIB))
        if not self.blocks:
            report(None)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            for connection in _select(selector):
                if connection is listener:
                    selector.register(_accept(listener, load), selectors.EVENT_READ)
                    continue
                size = connection.recv_into(buffer)
                if self.blocks:
                    left -= size
                    if not left:
                        report(time.perf_counter())
                    continue
                answers, asked[connection] = divmod(size + asked.get(connection, 0), len(load.question))
                connection.sendall(load.answer * answers)

    def connect(self, port: int, report: Report) -> None:
        """Report when it began and ended, and the times of all round trips."""
        idle = [_open(port, self.load) for _ in range(IDLE)]
        busy = [_open(port, self.load) for _ in range(BUSY)]
        began = time.perf_counter()
        times = self._send(busy) if self.blocks else self._ask(busy)
        report((began, time.perf_counter(), times))
        _keep(*idle, *busy)

    def _ask(self, busy: Sequence[socket.socket]) -> tuple[float, float]:
        left = dict.fromkeys(busy, self.questions)
        asked: dict[socket.socket, float] = {}
        times: list[float] = []

        def ask(connection: socket.socket) -> None:
            left[connection] -= 1
            asked[connection] = time.perf_counter()
            connection.sendall(self.load.question)

        with selectors.DefaultSelector() as selector:
            for connection in busy:
                selector.register(connection, selectors.EVENT_READ)
                ask(connection)
            for connection in _select(selector):
                _receive(connection, len(self.load.answer))
                times.append(time.perf_counter() - asked[connection])
                if left[connection]:
                    ask(connection)
                elif len(times) == BUSY * self.questions:
                    break
        return _percentiles(times)

    def _send(self, busy: Sequence[socket.socket]) -> None:
        block = memoryview(self.load.out.block)
        left = dict.fromkeys(busy, self.blocks * len(block))
        with selectors.DefaultSelector() as selector:
            for connection in busy:
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_WRITE)
            for connection in _select(selector):
                sent = len(block) - (left[connection] - 1) % len(block) - 1
                left[connection] -= connection.send(block[sent:])
                if not left[connection]:
                    selector.unregister(connection)


def _select(selector: selectors.BaseSelector) -> Iterator[socket.socket]:
    """Yield each socket that is ready, as long as any are registered."""
    while selector.get_map():
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            yield key.fileobj
