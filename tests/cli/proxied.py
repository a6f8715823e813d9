"""`pwire proxy` as a process, between a client and a broker that the test holds in its hands.

    with Proxied("--tap") as proxy:
        with proxy.session() as session:
            session.talk(conversation())
        assert proxy.stop() == 0
        assert len(proxy.out.lines) == 15

Everything is over real sockets and pipes. What the process writes is read by threads; a test waits for it
(`Heard.line`, `Heard.until`), never for time to pass.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from forked import Fork, Forked
from segments import Turn

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

MAIN = "import sys; from pulsarctl_wire.cli import main; sys.argv[0] = 'pwire'; main()"
PWIRE = [sys.executable, "-c", MAIN]
HOST = "127.0.0.1"
PATIENCE = 30.0
"""Seconds after which a test that waits for something has failed: far more than any takes."""
TIMED = r"^pwire: \d\d:\d\d:\d\d\.\d{6} "
"""What a line begins with that is said while a proxy runs."""
_NAP = 0.01  # seconds between two looks at what nobody tells of

_T = TypeVar("_T")


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of `pwire`: sockets and CAs of its own, below `home`."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    places = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run"), "TMPDIR": str(home)}
    return {**kept, **places, "TERM": "xterm-256color", "COLUMNS": "120", **more}


def run(*args: str | Path, home: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `pwire ARGS` to its end; `more` for the environment."""
    with Forked(list(map(str, args)), environment(home, **more)) as process:
        out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def until(holds: Callable[[], _T]) -> _T:
    """Wait for what nobody tells of; gives what `holds` gave."""
    over = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < over, "that does not come about"
        time.sleep(_NAP)
    return found


class Heard:
    """What comes out of a descriptor, read by a thread until its end; the descriptor is closed then."""

    def __init__(self, descriptor: int) -> None:
        self.data = bytearray()
        self.lines: list[str] = []
        """Those that are whole."""
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        rest = b""
        with suppress(OSError):  # Linux says the end of a terminal like that
            while piece := os.read(self._descriptor, 65_536):
                *lines, rest = (rest + piece).split(b"\n")
                with self._changed:
                    self.data += piece
                    self.lines += [line.decode().rstrip("\r") for line in lines]
                    self._changed.notify_all()
        os.close(self._descriptor)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of `-o json`."""
        return [json.loads(line) for line in self.lines]

    def until(self, holds: Callable[[], _T]) -> _T:
        """Wait until something is true of what came; gives what `holds` gave."""
        with self._changed:
            while not (found := holds()):
                assert not self._ended, f"it ended: {self.data[-2000:]!r}"
                assert self._changed.wait(PATIENCE), f"nothing more came: {self.data[-2000:]!r}"
        return found

    def line(self, pattern: str) -> list[re.Match[str]]:
        """Wait for a whole line in which `pattern` is found; gives the matches of all there are."""
        found: list[re.Match[str]] = []
        looked_at = 0

        def look() -> bool:
            nonlocal looked_at
            found.extend(filter(None, (re.search(pattern, line) for line in self.lines[looked_at:])))
            looked_at = len(self.lines)
            return bool(found)

        self.until(look)
        return found

    def end(self) -> bytes:
        """Wait until all who could write have ended; gives all that came."""
        self._thread.join(PATIENCE)
        assert self._ended, "somebody still holds it open"
        return bytes(self.data)


class Session:
    """A client's connection through the proxy, and what the broker has of it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker

    def talk(self, turns: Iterable[Turn]) -> None:
        """Have each frame sent, and received as it was, before the next one."""
        for to_broker, raw in turns:
            self.pass_on(to_broker, raw)

    def pass_on(self, to_broker: bool, raw: bytes) -> None:
        """Have bytes sent, however many they are, and received as they were."""
        source, target = (self.client, self.broker) if to_broker else (self.broker, self.client)
        sender = threading.Thread(target=source.sendall, args=(raw,))
        sender.start()
        arrived = receive(target, len(raw))
        sender.join(PATIENCE)
        assert arrived == raw

    def close(self) -> None:
        """End it from the client's side, and see that the broker's ends."""
        self.client.close()
        assert receive(self.broker, 1) == b""
        self.broker.close()


def receive(sock: socket.socket, size: int) -> bytes:
    """As many bytes; fewer if it ends before."""
    found = bytearray()
    while len(found) < size and (piece := sock.recv(min(size - len(found), 1 << 20))):
        found += piece
    return bytes(found)


class Proxied:
    """A running `pwire proxy` before a listener in the broker's place; a context manager.

    It listens on a free port of 127.0.0.1 unless `listen` says otherwise. What it writes is in `out` and
    `err`, or goes to the descriptors `stdout` and `stderr`. `home` is where its sockets are; else it has a
    directory of its own. With `preexec`, which is called in the process first, it is no fork.
    """

    def __init__(
        self,
        *args: str | Path,
        listen: str = f"{HOST}:0",
        to: str = "",
        home: Path | None = None,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        env: dict[str, str] | None = None,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        self._stack = ExitStack()
        self.home = home or Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pw")))
        self.upstream = self._stack.enter_context(socket.create_server((HOST, 0)))
        self.upstream.settimeout(PATIENCE)
        self.to = to or "pulsar://{}:{}".format(*self.upstream.getsockname())
        self._args = ["proxy", "--listen", listen, "--to", self.to, *map(str, args)]
        self._streams = stdout, stderr
        self._preexec = preexec
        self._env = environment(self.home, **(env or {}))
        self.address = ("", 0)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self._stack)
            self.out, self.err = self._start()
            for heard in (self.out, self.err):
                stack.callback(heard.end)
            stack.callback(self._kill)  # before that
            if self._streams[1] == subprocess.PIPE:
                self.announced(self.err)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stack.close()

    def _start(self) -> list[Heard]:
        """Start it, in a session of its own so that nothing is left behind; gives what is heard of it."""
        heard, given = [], []
        with ExitStack() as stack:
            for stream in self._streams:
                reading, writing = os.pipe()
                stack.callback(os.close, writing)
                heard.append(Heard(reading))
                given.append(writing if stream == subprocess.PIPE else stream)
            nothing = stack.enter_context(open(os.devnull))
            self.process: Fork | subprocess.Popen[bytes]
            if self._preexec is None:
                self.process = Fork(self._args, self._env, nothing.fileno(), *given)
            else:
                self.process = subprocess.Popen(
                    [*PWIRE, *self._args],
                    stdin=nothing,
                    stdout=given[0],
                    stderr=given[1],
                    env=self._env,
                    start_new_session=True,
                    preexec_fn=self._preexec,
                )
        return heard

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def announced(self, heard: Heard) -> None:
        """Wait until it says where it listens."""
        match = heard.line(r"listening on (\S+):(\d+), forwarding to ")[0]
        self.address = match[1].strip("[]"), int(match[2])

    # -- what it carries

    @property
    def port(self) -> int:
        return self.address[1]

    def connect(self) -> socket.socket:
        """A client."""
        return _prompt(socket.create_connection(self.address))

    def accept(self) -> socket.socket:
        """The next connection of the proxy's with the broker."""
        sock, _ = self.upstream.accept()
        return _prompt(sock)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A client and the broker's end of it; at the end both are closed."""
        with self.connect() as client, self.accept() as broker:
            session = Session(client, broker)
            yield session
            if client.fileno() >= 0:
                session.close()

    # -- the processes

    @property
    def watcher(self) -> int:
        """The number of the process that watches; another one keeps it."""
        (keeper,) = children(self.process.pid)
        (child,) = children(keeper)
        return child

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGINT) -> int:
        """End it; gives its exit code when all it wrote has come."""
        self.kill(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; gives its exit code when all it wrote has come."""
        code = self.process.wait(PATIENCE)
        for heard in (self.out, self.err):
            heard.end()
        return code

    def ctl(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `pwire proxy ctl ARGS`."""
        return run("proxy", "ctl", *args, home=self.home)

    @property
    def said(self) -> list[str]:
        """The lines of stderr behind those of the start."""
        return [line for line in self.err.lines if "listening on" not in line and "metrics at" not in line]


def _prompt(sock: socket.socket) -> socket.socket:
    """The same, which sends at once and waits no longer than a test does."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(PATIENCE)
    return sock


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found.append(int(stat.parent.name))
    return found


def decode(*args: str | Path, home: Path) -> subprocess.CompletedProcess[str]:
    """Run `pwire decode ARGS`, which has to find nothing wrong."""
    found = run("decode", *args, home=home)
    assert found.returncode == 0, found.stderr
    return found


def frames(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of frames, not of what is none."""
    return [record for record in records if "command" in record]


LINUX = Path("/proc/self/stat").exists()
"""Whether there is a /proc to find processes in."""
