"""The parts of `proxy.py`: loads of bytes, the proxies that forward them, and the two sides.

Server and client are separate processes; each measurement starts a new proxy.
"""

import argparse
import fcntl
import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import find_pwire, version
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

HOST: Final = "127.0.0.1"
MIB: Final = 2**20
BLOCK: Final = 4 * MIB
"""Bytes that are sent again and again, each time followed by something numbered, so that all differ."""
PATIENCE: Final = 900
"""Seconds that one measurement may take."""
GRACE: Final = 15
"""Seconds that a proxy may take to start, and to end."""
IDLE: Final = 500
BUSY: Final = 50
Case = TypeVar("Case")
SECTIONS: Final = ("throughput", "round-trip", "many", "memory")
BATCHES: Final = (100, 1000)
SINGLES: Final = (1, 100)
"""Messages of an entry, and bytes of each."""
FELL_BEHIND: Final = re.compile(r"tap fell behind: ([\d,]+) frames? not shown")

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


def opaque() -> Load:
    """Random bytes."""
    draw = random.Random(1).randbytes
    word, out, back = draw(64), draw(BLOCK), draw(BLOCK)

    def number(n: int) -> bytes:
        return n.to_bytes(8, "big")

    return Load("opaque", word, word, word, word, Way(out, 0, number), Way(back, 0, number))


def frames(name: str, *entries: tuple[int, int]) -> Load:
    """Pulsar frames: entries of (messages, bytes of each), with equal bytes of each kind."""
    stamp, draw = Stamp("bench-0-1"), random.Random(2).randbytes

    def frame(command: BaseCommand, number: int, messages: int, size: int) -> bytes:
        batch = Batch()
        for _ in range(messages):
            batch.add(Outgoing(draw(size)), number)
        return build_frame(command, *batch.entry(stamp, 1_700_000_000_000))

    def send(number: int, messages: int, size: int) -> bytes:
        command = build_command("SEND", producer_id=1, sequence_id=number, num_messages=messages)
        return frame(command, number, messages, size)

    def message(number: int, messages: int, size: int) -> bytes:
        position = {"ledgerId": 1, "entryId": number}
        return frame(build_command("MESSAGE", consumer_id=1, message_id=position), number, messages, size)

    def way(build: Callable[[int, int, int], bytes]) -> Way:
        built: list[bytes] = []
        for messages, size in entries:
            room = BLOCK // len(entries)
            while room > 0:
                built.append(build(2**30 + len(built), messages, size))
                room -= len(built[-1])
        return Way(b"".join(built), len(built) + 1, lambda number: build(2**40 + number, 1, 100))

    def plain(command: str, **fields: Any) -> bytes:
        return build_frame(build_command(command, **fields))

    topic = "persistent://public/default/bench"
    opening = (
        plain("CONNECT", client_version="bench", protocol_version=21),
        plain("PRODUCER", topic=topic, producer_id=1, request_id=1),
        plain("SUBSCRIBE", topic=topic, subscription="s", subType=0, consumer_id=1, request_id=2),
        plain("FLOW", consumer_id=1, messagePermits=2**31),
    )
    opened = (
        plain("CONNECTED", server_version="bench", protocol_version=21),
        plain("PRODUCER_SUCCESS", request_id=1, producer_name="bench-0-1"),
        plain("SUCCESS", request_id=2),
    )
    question, answer = plain("PING"), plain("PONG")
    return Load(name, b"".join(opening), b"".join(opened), question, answer, way(send), way(message))


# -- proxies


class Contender(NamedTuple):
    """A proxy, and the command that starts it, with the placeholders {port} and {to}; empty: no proxy."""

    name: str
    command: Sequence[str] = ()
    by_http: bool = False
    """It is configured by HTTP on {port}."""
    tap: bool = False
    stalled: bool = False
    """Nobody reads its output."""


class Proxy:
    """A running proxy, identified by the session of its processes. `said`: its stderr, after it has ended."""

    def __init__(self, session: int) -> None:
        self._session = session
        self.samples: list[float] = []
        self.said = ""

    @property
    def missed(self) -> int:
        """Frames that the tap reported as not shown."""
        return max((int(found.replace(",", "")) for found in FELL_BEHIND.findall(self.said)), default=0)

    def look(self) -> None:
        """Note the resident memory of all its processes, in MiB; pages that two share count twice."""
        pages = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # some have gone
                stat = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(stat[3]) == self._session:
                    pages += int((process / "statm").read_text().split()[1])
        self.samples.append(pages * os.sysconf("SC_PAGE_SIZE") / MIB)


def contenders(options: argparse.Namespace) -> list[Contender]:
    """The contenders that are installed."""
    found = [Contender("direct")]
    if socat := shutil.which("socat"):
        ports = (
            f"TCP-LISTEN:{{port}},bind={HOST},fork,reuseaddr,nodelay,backlog=1024",
            f"TCP:{HOST}:{{to}},nodelay",
        )
        found.append(Contender("socat", (socat, "-t", "30", *ports)))
    if toxiproxy := options.toxiproxy or shutil.which("toxiproxy-server"):
        found.append(Contender("toxiproxy", (toxiproxy, "-host", HOST, "-port", "{port}"), by_http=True))
    pwire = options.pwire or find_pwire()
    if pwire and subprocess.run([pwire, "proxy", "--help"], capture_output=True, check=False).returncode == 0:
        print(version(pwire), file=sys.stderr)
        plain = (pwire, "proxy", "--listen", f"{HOST}:{{port}}", "--to", f"pulsar://{HOST}:{{to}}")
        found.append(Contender("pwire", plain))
        found.append(Contender("tap", (*plain, "--tap"), tap=True))
        found.append(Contender("doctor", (*plain, "--doctor")))
        found.append(Contender("stalled tap", (*plain, "--tap"), tap=True, stalled=True))
    if missing := {"socat", "toxiproxy", "pwire"} - {one.name for one in found}:
        print(f"not installed, left out: {', '.join(sorted(missing))}", file=sys.stderr)
    return found


@contextmanager
def running(contender: Contender, listener: socket.socket) -> Iterator[tuple[int, Proxy]]:
    """Start a proxy in front of `listener`, yield the port for clients, then end all its processes."""
    to = listener.getsockname()[1]
    if not contender.command:
        yield to, Proxy(0)
        return
    port, admin = free_port(), free_port()
    own = admin if contender.by_http else port
    command = [word.format(port=own, to=to) for word in contender.command]
    with output(contender.stalled) as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        proxy = Proxy(process.pid)
        try:
            if contender.by_http:
                connected(process, admin).close()
                wanted = {"name": "bench", "listen": f"{HOST}:{port}", "upstream": f"{HOST}:{to}"}
                url, body = f"http://{HOST}:{admin}/proxies", json.dumps(wanted).encode()
                urllib.request.urlopen(url, body, timeout=GRACE).close()
            connected(process, port).close()
            listener.settimeout(GRACE)
            listener.accept()[0].close()  # the proxy's side of that connection
            listener.settimeout(None)
            yield port, proxy
        finally:
            end(process, contender.name)
            stderr.seek(0)
            proxy.said = stderr.read().decode(errors="replace")


def free_port() -> int:
    """A port that is free, and most likely stays so for a moment."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


def connected(process: subprocess.Popen[bytes], port: int) -> socket.socket:
    """A connection to the port that a process listens on, as soon as it does."""
    give_up = time.monotonic() + GRACE
    while process.poll() is None and time.monotonic() < give_up:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((HOST, port))
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} does not listen")


@contextmanager
def output(stalled: bool) -> Iterator[BinaryIO]:
    """Where a proxy's output goes: nowhere, or into a full pipe that nobody reads."""
    if not stalled:
        with open(os.devnull, "wb") as nowhere:
            yield nowhere
        return
    unread, full = os.pipe()
    try:
        os.set_blocking(full, False)
        fcntl.fcntl(full, fcntl.F_SETPIPE_SZ, 4096)
        with suppress(BlockingIOError):
            while True:
                os.write(full, b"\n" * 4096)
        os.set_blocking(full, True)
        with os.fdopen(full, "wb", buffering=0) as pipe:
            yield pipe
    finally:
        os.close(unread)


def end(process: subprocess.Popen[bytes], name: str) -> None:
    """End a proxy with all its processes: by SIGTERM, then by SIGKILL."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        print(f"{name} did not end within {GRACE} s of SIGTERM", file=sys.stderr)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# -- the two sides


Report = Callable[[object], None]
Server = Callable[[socket.socket, Report], None]
"""Accepts from a listener, and reports once."""
Client = Callable[[int, Report], None]
"""Connects to a port, and reports once."""


def through(
    contender: Contender, server: Server, client: Client, watch: bool = False
) -> tuple[Any, Any, Proxy]:
    """Run both sides through a new proxy; returns the report of each, and the ended proxy.

    With `watch` its memory is measured meanwhile. Raises RuntimeError if a side fails.
    """
    print(f"  {contender.name}", file=sys.stderr)
    with closing(socket.create_server((HOST, 0), backlog=1024)) as listener:
        with running(contender, listener) as (port, proxy), sides() as start:
            pipes = [
                start(lambda report: server(listener, report)),
                start(lambda report: client(port, report)),
            ]
            reports: dict[Connection, Any] = {}
            give_up = time.monotonic() + PATIENCE
            while len(reports) < len(pipes):
                if time.monotonic() > give_up:
                    raise RuntimeError(f"{contender.name} took more than {PATIENCE} s")
                left = [pipe for pipe in pipes if pipe not in reports]
                for pipe in wait(left, 0.1 if watch else 1):
                    assert isinstance(pipe, Connection)
                    try:
                        reports[pipe] = pipe.recv()
                    except EOFError:
                        raise RuntimeError(f"{contender.name}: a side failed, see above") from None
                if watch:
                    proxy.look()
        return reports[pipes[0]], reports[pipes[1]], proxy


@contextmanager
def sides() -> Iterator[Callable[[Callable[[Report], None]], Connection]]:
    """Start processes, returning the pipe on which each reports; finally end them and their connections."""
    started = []

    def start(role: Callable[[Report], None]) -> Connection:
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=play, args=(role, theirs), daemon=True)
        process.start()
        started.append(process)
        theirs.close()
        return ours

    try:
        yield start
    finally:
        for process in started:
            process.terminate()
            process.join()


def play(role: Callable[[Report], None], pipe: Connection) -> None:
    """Run one side until it is ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    role(pipe.send)


def keep(*connections: socket.socket) -> None:
    """Wait to be ended, with these connections open: not every proxy forwards a half-close."""
    while connections:
        signal.pause()


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes."""
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("the connection ended early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def accepted(listener: socket.socket, load: Load) -> socket.socket:
    """The next connection, opened."""
    connection = listener.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    receive(connection, len(load.opening))
    connection.sendall(load.opened)
    return connection


def opened(port: int, load: Load) -> socket.socket:
    """A connection to `port`, opened."""
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(load.opening)
    receive(connection, len(load.opened))
    return connection


class Passed(NamedTuple):
    """When a side began and ended (s, one clock for all processes), and digests if requested."""

    began: float
    ended: float
    sent: str
    received: str


def exchange(connection: socket.socket, out: Way, blocks: int, expected: int, digest: bool) -> Passed:
    """Send `blocks` blocks and receive `expected` bytes, both at once."""
    sent, received = hashlib.sha256(), hashlib.sha256()

    def send() -> None:
        for number in range(blocks):
            for part in (out.block, out.numbered(number)):
                connection.sendall(part)
                if digest:
                    sent.update(part)

    began = time.perf_counter()
    sender = threading.Thread(target=send)
    sender.start()
    buffer = memoryview(bytearray(MIB))
    while expected:
        size = connection.recv_into(buffer)
        if not size:
            raise ConnectionError("the connection ended early")
        if digest:
            received.update(buffer[:size])
        expected -= size
    sender.join()
    return Passed(began, time.perf_counter(), sent.hexdigest(), received.hexdigest())


def transfer(load: Load, size: int, both: bool, digest: bool = False) -> tuple[Server, Client, int]:
    """Both sides of one connection with at least `size` bytes each way, and the number of frames."""
    out = math.ceil(size / load.out.size)
    back = math.ceil(size / load.back.size) if both else 0

    def server(listener: socket.socket, report: Report) -> None:
        connection = accepted(listener, load)
        report(exchange(connection, load.back, back, out * load.out.size, digest))
        keep(connection)

    def client(port: int, report: Report) -> None:
        connection = opened(port, load)
        report(exchange(connection, load.out, out, back * load.back.size, digest))
        keep(connection)

    return server, client, out * load.out.frames + back * load.back.frames


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 of times in seconds, in µs."""
    ranked = sorted(times)
    return ranked[len(ranked) // 2] * 1e6, ranked[len(ranked) * 99 // 100] * 1e6


def conversation(load: Load, count: int) -> tuple[Server, Client]:
    """One connection, question after question; the client reports p50 and p99 after a tenth as warm-up."""
    cpus = sorted(os.sched_getaffinity(0))

    def server(listener: socket.socket, report: Report) -> None:
        os.sched_setaffinity(0, cpus[:1])
        connection = accepted(listener, load)
        report(None)
        while True:
            receive(connection, len(load.question))
            connection.sendall(load.answer)

    def client(port: int, report: Report) -> None:
        os.sched_setaffinity(0, cpus[-1:])
        connection = opened(port, load)
        times = []
        for _ in range(count + count // 10):
            began = time.perf_counter()
            connection.sendall(load.question)
            receive(connection, len(load.answer))
            times.append(time.perf_counter() - began)
        report(percentiles(times[count // 10 :]))
        keep(connection)

    return server, client


class Many(NamedTuple):
    """Idle and busy connections; a busy one asks `questions` times, or sends `blocks` if that is not 0."""

    load: Load
    questions: int
    blocks: int

    def server(self, listener: socket.socket, report: Report) -> None:
        """Answer questions, or report when the bulk has arrived."""
        load, left = self.load, BUSY * self.blocks * len(self.load.out.block)
        asked: dict[socket.socket, int] = {}
        buffer = memoryview(bytearray(MIB))
        if not self.blocks:
            report(None)
        with selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is listener:
                        selector.register(accepted(listener, load), selectors.EVENT_READ)
                        continue
                    size = key.fileobj.recv_into(buffer)
                    if self.blocks:
                        left -= size
                        if not left:
                            report(time.perf_counter())
                        continue
                    size += asked.get(key.fileobj, 0)
                    answers, asked[key.fileobj] = divmod(size, len(load.question))
                    key.fileobj.sendall(load.answer * answers)

    def client(self, port: int, report: Report) -> None:
        """Report when it began and ended, and the times of all round trips."""
        idle = [opened(port, self.load) for _ in range(IDLE)]
        busy = [opened(port, self.load) for _ in range(BUSY)]
        began = time.perf_counter()
        times = self._send(busy) if self.blocks else self._ask(busy)
        report((began, time.perf_counter(), times))
        keep(*idle, *busy)

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
            while len(times) < BUSY * self.questions:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    receive(key.fileobj, len(self.load.answer))
                    times.append(time.perf_counter() - asked[key.fileobj])
                    if left[key.fileobj]:
                        ask(key.fileobj)
        return percentiles(times)

    def _send(self, busy: Sequence[socket.socket]) -> None:
        block = memoryview(self.load.out.block)
        left = dict.fromkeys(busy, self.blocks * len(block))
        with selectors.DefaultSelector() as selector:
            for connection in busy:
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_WRITE)
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    sent = len(block) - (left[key.fileobj] - 1) % len(block) - 1
                    left[key.fileobj] -= key.fileobj.send(block[sent:])
                    if not left[key.fileobj]:
                        selector.unregister(key.fileobj)
