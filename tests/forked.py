"""`pwire` in processes that are forks of one which has imported it all: a start costs milliseconds.

    forked = Forked(["ping", "--url", url], {"PATH": …})    used like the Popen of pipes that carry text

A fork has the arguments, environment and streams that it is given. It is a child of the process that is
forked, not of this one.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

_lock = threading.Lock()


@cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that is forked, which ends with this one; before it, our end of the socket that asks it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(its.fileno())]
    process = subprocess.Popen(command, pass_fds=[its.fileno()], env=environment, start_new_session=True)
    its.close()
    return ours, process


class Fork:
    """A run of `pwire` with these arguments, this environment, and these descriptors as its streams.

    It leads a session of its own.
    """

    def __init__(self, args: Sequence[str], env: Mapping[str, str], *streams: int) -> None:
        self.args = args
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        self._status, status = os.pipe()
        weakref.finalize(self, os.close, self._status)
        with tempfile.TemporaryFile() as request, _lock:
            request.write(json.dumps([args, dict(env), os.getcwd()]).encode())
            request.flush()
            server, _ = _server()
            socket.send_fds(server, [b"."], [request.fileno(), *streams, status])
            self.pid = int(server.recv(100))
        os.close(status)

    def poll(self) -> int | None:
        """The exit code, or None while it runs; it is negative for a signal."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
        with self._waiting:
            if self.returncode is None:
                self.returncode = int(os.read(self._status, 100))
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL, if it still runs."""
        self.send_signal(signal.SIGKILL)


class Forked(Fork):
    """The same, which reads from a pipe, and writes to two."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        child, mine = zip(os.pipe(), os.pipe()[::-1], os.pipe()[::-1], strict=True)
        self.stdin: IO[str] = os.fdopen(mine[0], "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(mine[1], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(mine[2], encoding="utf-8")
        super().__init__(args, env, *child)
        for each in child:
            os.close(each)

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Write `text` to it; all that it writes, when it has ended. Raises subprocess.TimeoutExpired."""
        said: dict[IO[str], str] = {}
        readers = [
            threading.Thread(target=lambda stream=stream: said.update({stream: stream.read()}), daemon=True)
            for stream in (self.stdout, self.stderr)
        ]
        writer = threading.Thread(target=self._write, args=(text,), daemon=True)
        for thread in (*readers, writer):
            thread.start()
        self.wait(timeout)
        for thread in (*readers, writer):
            thread.join()
        return said[self.stdout], said[self.stderr]

    def _write(self, text: str) -> None:
        with suppress(BrokenPipeError):
            self.stdin.write(text)
        with suppress(BrokenPipeError):
            self.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(BrokenPipeError):
                stream.close()


# -- the process that is forked


def _import_all() -> None:
    from importlib import import_module
    from pkgutil import walk_packages

    import pulsarctl_wire

    for module in walk_packages(pulsarctl_wire.__path__, "pulsarctl_wire."):
        if not module.name.startswith("pulsarctl_wire.spark"):
            with suppress(ImportError):
                import_module(module.name)


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork at each request: in a fork, returns its arguments; None when there will be no more."""
    statuses: dict[int, int] = {}
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell)
    while True:
        ready, _, _ = select.select([requests.fileno(), told], [], [])
        if told in ready:
            os.read(told, 4096)
            _reap(statuses)
        if requests.fileno() not in ready:
            continue
        _, files, _, _ = socket.recv_fds(requests, 1, 5)
        if not files:
            return None
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (told, tell, requests.detach(), *statuses.values()):
                os.close(each)
            return _become(*files)
        statuses[child] = files.pop()
        for each in files:
            os.close(each)
        requests.send(b"%d" % child)


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with suppress(BrokenPipeError):
            os.write(statuses[child], b"%d" % os.waitstatus_to_exitcode(status))
        os.close(statuses.pop(child))


def _become(request: int, stdin: int, stdout: int, stderr: int, status: int) -> list[str]:
    with os.fdopen(request, "rb") as file:
        file.seek(0)
        args, environment, place = json.load(file)
    for number, each in enumerate((stdin, stdout, stderr)):
        os.dup2(each, number)
        os.close(each)
    os.close(status)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    random.seed()
    arguments: list[str] = args
    return arguments


def _leave() -> None:
    """End a run without freeing all that was imported, which takes longer than most runs."""
    if code is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    code: int | None = None
    atexit.register(_leave)  # the first one is called last
    _import_all()
    gc.freeze()  # or each fork looks through all of that when it ends
    sys.stdin.close()
    given = _serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, buffering, encoding="utf-8", closefd=False, errors=errors)
            for number, mode, buffering, errors in (
                *((0, "r", -1, "strict"), (1, "w", -1, "strict")),
                (2, "w", 1, "backslashreplace"),
            )
        )
        sys.argv = ["pwire", *given]
        from pulsarctl_wire.cli import main

        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else None
            raise
