"""A second process for large captures: two cores, one decoder, the same output.

Each follows half of the connections. Where frames are shown the two keep in step (`capture/sharing.py`),
and the first one writes what both have rendered; where they are only counted (`-q`) the counts are added up.

The twin is a fork, so it exists only where forking is safe (Linux) and pays (large capture files).
"""

import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pulsarctl_wire.capture.sources import holds_packets, open_source
from pulsarctl_wire.errors import CaptureError, WireError

WORTH_IT: Final = 16_000_000
"""Bytes of captures from which a second process pays for its start."""

_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_PIPE: Final = 1024 * 1024
_SIZE: Final = struct.Struct(">Q")
_DIED: Final = "the second process died; try again with --jobs 1"


class Gone(WireError):
    """The second process has ended before its work did."""


def pays(paths: list[str]) -> bool:
    """Whether a twin would be of use for reading the files at `paths`."""
    if not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
        return False
    size = 0
    for path in paths:
        if not os.path.isfile(path):
            return False
        size += os.path.getsize(path) * (8 if path.endswith(_COMPRESSED) else 1)
    try:
        return size >= WORTH_IT and all(map(_holds_packets, paths))
    except CaptureError:
        return False


def _holds_packets(path: str) -> bool:
    with open_source(path).stream as stream:
        return holds_packets(stream)


class Twin:
    """The fork of this process, seen from both sides: `is_twin` tells which one this is."""

    def __init__(self) -> None:
        import fcntl  # Linux has it, and only there is a twin

        sys.stdout.flush()
        sys.stderr.flush()
        to_twin, to_first = os.pipe(), os.pipe()
        self._pid = os.fork()
        self.is_twin = self._pid == 0
        (reading, their_end), (my_end, writing) = to_twin, to_first
        if not self.is_twin:
            (my_end, writing), (reading, their_end) = to_twin, to_first
        os.close(my_end)
        os.close(their_end)
        with suppress(OSError):  # so that much can be under way
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE)
        os.set_blocking(writing, False)
        self._reading, self._writing = reading, writing
        self._unread, self._unsent = bytearray(), bytearray()

    def send(self, thing: object) -> None:
        """Send an object to the other process. What the pipe does not take goes out while this one waits."""
        data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
        self._unsent += _SIZE.pack(len(data)) + data
        self._write()

    def receive(self) -> Any:
        """The next object from the other process (it is our own fork, so unpickling is safe).

        Raises Gone if it has died.
        """
        return pickle.loads(self._read(_SIZE.unpack(self._read(_SIZE.size))[0]))

    def has_sent(self) -> bool:
        """Whether something of the other process's is here."""
        return bool(self._unread or select.select([self._reading], [], [], 0)[0])

    def flush(self) -> None:
        """Wait until all that was sent is under way."""
        while self._unsent:
            select.select([], [self._writing], [])
            self._write()

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            readable, writable, _ = select.select(
                [self._reading], [self._writing] if self._unsent else [], []
            )
            if writable:
                self._write()
            if readable:
                more = os.read(self._reading, _PIPE)
                if not more:
                    raise Gone(_DIED)
                self._unread += more
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def _write(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._writing, self._unsent)]
        except BlockingIOError:
            pass  # the pipe is full
        except BrokenPipeError as error:
            raise Gone(_DIED) from error

    def run(self, work: Callable[[], None]) -> None:
        """In the twin: do `work` and end, without any of what the first process does at its end."""
        code = 1
        try:
            work()
            self.flush()
            code = 0
        except (KeyboardInterrupt, WireError):
            code = 0  # the first process says what there is to say
        finally:
            os._exit(code)

    def part(self) -> None:
        """In the first process: let go of the twin, which has sent all it had unless we were stopped."""
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)
        os.close(self._reading)
        os.close(self._writing)
