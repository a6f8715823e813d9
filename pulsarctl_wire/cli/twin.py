"""A second process for large captures: two cores, one decoder, the same output.

Rendering: both processes decode everything, so that numbers, links and schemas are the same, and
render every other block of events; the first one writes its blocks and the twin's in turn.

Counting alone (`-q`): each follows its half of the connections, and the counts are added up.

The twin is a fork, so it exists only where forking is safe (Linux) and pays (large regular files).
"""

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from pulsarctl_wire.errors import WireError

WORTH_IT: Final = 16_000_000
"""Bytes of captures from which a second process pays for its start."""

BLOCK: Final = 1_000
"""Events of a block, at least."""

_PIPE: Final = 1024 * 1024
_COMPRESSED: Final = (".gz", ".zst", ".zstd")


def pays(paths: list[str]) -> bool:
    """Whether a twin would be of use for reading the files at `paths`."""
    if not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
        return False
    size = 0
    for path in paths:
        if not os.path.isfile(path):
            return False
        size += os.path.getsize(path) * (8 if path.endswith(_COMPRESSED) else 1)
    return size >= WORTH_IT


class Twin:
    """The fork of this process, seen from both sides: `is_twin` tells which one this is."""

    def __init__(self) -> None:
        import fcntl  # Linux has it, and only there is a twin

        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        with suppress(OSError):  # so that the twin can go on while a block of its waits to be read
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE)
        self._pid = os.fork()
        self.is_twin = self._pid == 0
        if self.is_twin:
            os.close(reading)
            self._pipe: Any = open(writing, "wb", buffering=0)  # noqa: SIM115 (closed by `part`)
        else:
            os.close(writing)
            self._pipe = open(reading, "rb")  # noqa: SIM115

    def send(self, data: bytes) -> None:
        """From the twin: one message."""
        view = memoryview(struct.pack(">Q", len(data)) + data)
        while view:
            view = view[self._pipe.write(view) :]

    def receive(self) -> bytes:
        """From the first process: the twin's next message; raises WireError if the twin has died."""
        head = self._pipe.read(8)
        data: bytes = self._pipe.read(struct.unpack(">Q", head)[0]) if len(head) == 8 else b""
        if len(head) < 8:
            raise WireError("the second process died; try again with --jobs 1")
        return data

    def run(self, work: Callable[[], None]) -> None:
        """In the twin: do `work` and end, without any of what the first process does at its end."""
        code = 1
        try:
            work()
            code = 0
        except (KeyboardInterrupt, BrokenPipeError):
            code = 0  # the first process says what there is to say
        finally:
            os._exit(code)

    def part(self) -> None:
        """In the first process: let go of the twin, which has sent all it had unless we were stopped."""
        self._pipe.close()
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)


def send_object(twin: Twin, thing: object) -> None:
    """From the twin: an object."""
    twin.send(pickle.dumps(thing))


def receive_object(twin: Twin) -> Any:
    """From the first process: an object that the twin sent (it is our own fork, so unpickling is safe)."""
    return pickle.loads(twin.receive())
