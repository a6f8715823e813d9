"""Writes long recordings as a series of files, and deletes the oldest if wanted.

    orders.pcapng                                      without rotation
    orders_00001_20251122093000.pcapng, orders_00002…  with rotation, named as by tshark -b, in local time
    orders_00002_20251122101500.pcapng                 also the continuation of an interrupted recording

Each file can be opened by itself. A connection continues in the next file with the next sequence numbers and
no new handshake, as in tshark's captures, so all files read in order are one capture. A file ends only
between calls: what one call writes stays together, and may make a file larger than its limit.

If writing fails (a full disk) the file is cut back to what was flushed before, so that all files can be read.
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

GATHERED: Final = 256 * 1024
"""Bytes that are buffered before they are written, without `flush`."""


class RotatingFiles:
    """A stream that writes pcapng blocks to one file after the other.

    A new file is due once the current one has `size` bytes, or `period_ns` after its first packet; 0: never.
    The newest `keep` files stay, older ones are deleted; 0: all stay. `time_ns` (since the epoch) is in the
    name of the first one. Without `size` and `period_ns` the file is `path` itself. With `since_ns` it
    continues an interrupted recording that began then: with the next number, so that nothing is overwritten.

    All methods raise OSError if a file cannot be written; after that only `close` may be called.
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
        self.paths: list[Path] = []  # the files that were written and kept, in order
        self._path = path
        self._size, self._period_ns, self._keep = size, period_ns, keep
        self._count = 0
        self._is_numbered = bool(size or period_ns)
        self._buffer = bytearray()
        self._length = 0  # of the file, with the buffered bytes
        if since_ns is not None:
            self._find_earlier(since_ns)
        self._until: int | None = None  # when the file's period ends; None: no packets yet
        self._open(time_ns)

    def is_due(self, time_ns: int) -> bool:
        """Return whether the caller must call `turn` before it writes a packet of this time."""
        if self._until is None:
            self._until = time_ns + self._period_ns
            return False
        is_full = self._size and self._length >= self._size
        return bool(is_full or (self._period_ns and time_ns >= self._until))

    def turn(self, time_ns: int) -> None:
        """Begin a new file, whose first packet has this time."""
        self.close()
        self._open(time_ns)
        self._until = time_ns + self._period_ns

    def write(self, block: bytes, /) -> int:
        """Write or buffer a block."""
        self._buffer += block
        self._length += len(block)
        if len(self._buffer) >= GATHERED:
            self.flush()
        return len(block)

    def flush(self) -> None:
        """Write the buffered bytes, all or nothing; afterwards all blocks so far are in the files.

        After an OSError nothing more may be written.
        """
        end = self._length - len(self._buffer)
        view, self._buffer = memoryview(self._buffer), bytearray()
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError:
            with suppress(OSError):  # a device cannot be cut
                self._file.truncate(end)
            self._length = end
            raise

    def close(self) -> None:
        """Write the buffered bytes, and close the last file."""
        try:
            self.flush()
        finally:
            self._file.close()

    def _open(self, time_ns: int) -> None:
        """Open the next file, and delete the oldest if there are too many."""
        path = self._path
        if self._is_numbered:
            self._count += 1
            path = path.with_name(f"{path.stem}_{self._count:05}_{_stamp(time_ns)}{path.suffix}")
        self._file = _open_file(path)
        self._length = 0
        self.paths.append(path)
        if self._keep and len(self.paths) > self._keep:
            with suppress(FileNotFoundError):  # somebody may have moved it
                self.paths.pop(0).unlink()

    def _find_earlier(self, since_ns: int) -> None:
        """Continue the numbering of the files that were written since then."""
        path = self._path
        name = re.compile(rf"{re.escape(path.stem)}_(\d{{5,}})_(\d{{14}}){re.escape(path.suffix)}")
        numbers: dict[Path, int] = {}
        for file in path.parent.iterdir():
            match = name.fullmatch(file.name)
            if match and match[2] >= _stamp(since_ns):
                numbers[file] = int(match[1])
        self.paths += sorted(numbers, key=numbers.__getitem__)
        self._count = max([self._count, *numbers.values()])
        if not self._is_numbered and path.is_file():  # a pipe or a device is just opened again
            self._is_numbered = True
            self._count = max(self._count, 1)


class RotatingWriter(SessionWriter):
    """Writes the bytes of connections to rotating `files`."""

    def __init__(self, path: Path, time_ns: int, **rotation: int | None) -> None:
        self.files = RotatingFiles(path, time_ns, **rotation)  # type: ignore[arg-type]
        super().__init__(cast(BinaryIO, self.files))

    def _turn(self, time_ns: int) -> None:
        if self.files.is_due(time_ns):
            self.files.turn(time_ns)
            self._begin()


def _stamp(time_ns: int) -> str:
    return time.strftime("%Y%m%d%H%M%S", time.localtime(time_ns // 1_000_000_000))


def _open_file(path: Path) -> io.FileIO:
    """Open and empty the file at `path`. Raises OSError, also for a pipe without a reader: it never waits."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nothing reads this pipe; start its reader first") from error
        raise
    os.set_blocking(number, True)
    return io.FileIO(number, "wb")
