"""Processes that listen on loopback, and that never outlive the Python process that started them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from interop.releases import CACHE, Failed

HOST = "127.0.0.1"

# Its stdin ends when its parent does, even by SIGKILL: what was not ended until then, it kills.
_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
_given: set[int] = set()


@cache
def _reserved() -> IO[bytes]:
    """A file in which a byte stands for each port: who has locked it has the port, up or down."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return open(CACHE / "ports.lock", "wb")


def _reserve(port: int) -> None:
    """Raises OSError if another process, of another worker or run, has the port."""
    fcntl.lockf(_reserved(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)


def free_port(wanted: int | None = None) -> int:
    """The port that is wanted, or any. Raises Failed if it is not free.

    It is below those of outgoing connections: so it stays free while what listens on it is down.
    """
    for port in [wanted] if wanted else random.sample(range(20000, 32000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            if port not in _given:
                _reserve(port)
                _given.add(port)
                return port
    raise Failed(f"port {wanted} is taken" if wanted else "no port is free")


def connected_to(ports: set[int]) -> set[str]:
    """Sockets, by their names among `open_files`, of connections that lead to ports of this machine.

    Where there is no /proc: raises OSError.
    """
    wanted = "|".join(f"{port:04X}" for port in ports)
    line = re.compile(rf"^ *\d+: \S+ \w+:(?:{wanted})(?: +\S+){{6}} +([1-9]\d*) ", re.MULTILINE)
    tables = (Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6"))
    return {f"socket:[{inode}]" for table in tables for inode in line.findall(table)}  # 0: nobody's any more


def open_files(pid: int) -> Iterator[str]:
    """Names of the files that a process has open; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                yield os.readlink(link)


class Process:
    """A command that can be started any number of times; `log` is the file that all it writes is added to.

    `stopped` tells that its last end was its own answer to `stop`.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.stopped = False
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its number while it runs."""
        child = self._child  # another thread may ask
        return child.pid if child and child.poll() is None else None

    def start(self) -> None:
        self.stopped = False
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                self._command,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for tests, and they may want to ask it something yet
            )
        _tell_guard("+", self._child.pid)

    def kill(self) -> None:
        """End it, and what it started, by SIGKILL; returns when it has ended."""
        if self._child:
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            _tell_guard("-", self._child.pid)
            self._child = None

    def stop(self, patience: float) -> None:
        """End it by SIGTERM, and by SIGKILL if it takes more than `patience` seconds."""
        if self._child:
            self._child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(patience)
                self.stopped = True
        self.kill()

    def wait(self) -> None:
        """Return when it has ended."""
        if self._child:
            self._child.wait()


@cache
def _guard() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _GUARD]
    return subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)


def _tell_guard(change: str, group: int) -> None:
    stdin = _guard().stdin
    assert stdin
    stdin.write(f"{change}{group}\n".encode())
