"""A recording that goes on for long: files one after the other, the old ones deleted if so wanted.

    orders.pcapng                                      without rotation
    orders_00001_20251122093000.pcapng, orders_00002…  with it, named as tshark's -b does, in local time
    orders_00002_20251122101500.pcapng                 also what continues a recording that broke off

Each file opens by itself; a connection goes on in the next one with the very next sequence numbers and no new
handshake, as in captures of tshark's, so that all of them read in order are one capture. A file ends between
calls: what one call writes stays together, and a file may be larger than it should by that.

Blocks are written in bunches, at `flush` or when `GATHERED` bytes wait. If that fails (a full disk) the file
is cut back to the end of the bunch before, so that all files can be read; OSError tells it, and no more may
be written.
"""

import errno
import io
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.wire.frame import Connection

GATHERED: Final = 256 * 1024
"""Bytes that wait before they are written, if nobody flushes."""


class RotatingFiles:
    """A stream of pcapng blocks to one file after the other.

    A new file is due once one has `size` bytes, or `period_ns` after its first packet; 0: never. `keep` of
    them stay, the oldest are deleted; 0: all. `time_ns` (since the epoch) names the first one.
    Without `size` and `period_ns` the file is `path` itself. With `since_ns` it continues a recording that
    began then and broke off: in the file with the next number, so that nothing is overwritten.

    All methods raise OSError where a file cannot be written; after that only `close` may be called.
    """

    def __init__(
        self,
        path: Path,
        time_ns: int,
        *,
        size: int = 0,
        period_ns: int = 0,
        keep: int = 0,
        since_ns: int | None = None,
    ) -> None:
        self.paths: list[Path] = []
        """The files that were written and kept, in order."""
        self._path = path
        self._size, self._period_ns, self._keep = size, period_ns, keep
        self._count = 0
        self._numbered = bool(size or period_ns)
        if since_ns is not None:
            self._find_earlier(since_ns)
        self._until: int | None = None  # when the file's period ends; None: it has no packets
        self._file = self._open(time_ns)

    def is_due(self, time_ns: int) -> bool:
        """Whether it is time to call `turn`, before a packet of this time is written."""
        if self._until is None:
            self._until = time_ns + self._period_ns
            return False
        full = self._size and self._file.size >= self._size
        return bool(full or (self._period_ns and time_ns >= self._until))

    def turn(self, time_ns: int) -> None:
        """Begin a new file, with a packet of this time."""
        self._file.close()
        self._file = self._open(time_ns)
        self._until = time_ns + self._period_ns

    def write(self, block: bytes, /) -> int:
        """Take a block."""
        return self._file.write(block)

    def flush(self) -> None:
        """Write what waits: all blocks so far are in the files then."""
        self._file.flush()

    def close(self) -> None:
        """End the last file."""
        self._file.close()

    def _open(self, time_ns: int) -> "_File":
        """The next file; the oldest goes, if there are too many."""
        path = self._path
        if self._numbered:
            self._count += 1
            path = path.with_name(f"{path.stem}_{self._count:05}_{_stamp(time_ns)}{path.suffix}")
        file = _File(path)
        self.paths.append(path)
        if self._keep and len(self.paths) > self._keep:
            with suppress(FileNotFoundError):  # somebody may have moved it
                self.paths.pop(0).unlink()
        return file

    def _find_earlier(self, since_ns: int) -> None:
        """Go on behind the files that were written since then."""
        path = self._path
        name = re.compile(rf"{re.escape(path.stem)}_(\d{{5,}})_(\d{{14}}){re.escape(path.suffix)}")
        for other in path.parent.iterdir():
            match = name.fullmatch(other.name)
            if match and match[2] >= _stamp(since_ns):
                self.paths.append(other)
                self._count = max(self._count, int(match[1]))
        self.paths.sort()
        if not self._numbered and path.is_file():  # a pipe or a device goes on as it is
            self._numbered = True
            self._count = max(self._count, 1)


class RotatingWriter(RotatingFiles):
    """Writes the sessions of connections to rotating files, as `SessionWriter` does to a stream."""

    def __init__(
        self,
        path: Path,
        time_ns: int,
        *,
        size: int = 0,
        period_ns: int = 0,
        keep: int = 0,
        since_ns: int | None = None,
    ) -> None:
        super().__init__(path, time_ns, size=size, period_ns=period_ns, keep=keep, since_ns=since_ns)
        self._writer = SessionWriter(cast(BinaryIO, self))

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made, at `time_ns` since the epoch."""
        self._turn(time_ns)
        self._writer.opened(connection, time_ns)

    def carried(
        self, connection: Connection, to_broker: bool, data: bytes | memoryview, time_ns: int
    ) -> None:
        """It carried `data`."""
        self._turn(time_ns)
        self._writer.carried(connection, to_broker, data, time_ns)

    def gap(self, connection: Connection, to_broker: bool, size: int, time_ns: int) -> None:
        """It carried `size` bytes that were not seen."""
        self._turn(time_ns)
        self._writer.gap(connection, to_broker, size, time_ns)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool = False) -> None:
        """It ended."""
        self._turn(time_ns)
        self._writer.closed(connection, time_ns, by_broker)

    def _turn(self, time_ns: int) -> None:
        """Begin a new file, if it is time for one."""
        if self.is_due(time_ns):
            self.turn(time_ns)
            self._writer.begin()


def _stamp(time_ns: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(time_ns // 1_000_000_000))


class _File:
    """A file of whole blocks: `write` takes one, and those that wait are written together or not at all."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        """Bytes written or waiting."""
        self._file = _opened(path)
        self._waiting = bytearray()

    def write(self, block: bytes, /) -> int:
        """Take a block."""
        self._waiting += block
        self.size += len(block)
        if len(self._waiting) >= GATHERED:
            self.flush()
        return len(block)

    def flush(self) -> None:
        """Write the blocks that wait."""
        end = self.size - len(self._waiting)
        rest, self._waiting = memoryview(self._waiting), bytearray()
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):  # a device, that cannot be cut
                self._file.truncate(end)
            self.size = end
            raise

    def close(self) -> None:
        """Write the blocks that wait and be done."""
        try:
            self.flush()
        finally:
            self._file.close()


def _opened(path: Path) -> io.FileIO:
    """The file at `path`, emptied. Raises OSError, also for a pipe that has no reader: none is waited for."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe; start its reader first") from error
        raise
    os.set_blocking(number, True)
    return io.FileIO(number, "wb")
