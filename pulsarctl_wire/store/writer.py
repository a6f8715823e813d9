"""Writes events to a store, in files that a reader may follow.

    events.0, events.1, …   compressed segments, one after the other
    index                   an entry per segment: `ENTRY`
    answers                 for each frame the number of its answer, or 0
    *.json                  what else is known: see directory.py

A store with a limit is a ring: the oldest file is deleted when there are too many bytes.
"""

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import zstandard

from pulsarctl_wire.store.rows import pack
from pulsarctl_wire.wire.frame import Event, Frame

ENTRY: Final = struct.Struct("<IIQQQ")
"""File, bytes and offset of a segment, position of its first event, number of its first frame."""

ANSWER: Final = struct.Struct("I")
"""The number of a frame, in the file of answers."""

FILE_SIZE: Final = 64 * 1024 * 1024
"""Bytes after which another file begins."""

_MAX_EVENTS: Final = 512  # events in a segment
_MAX_BYTES: Final = 1024 * 1024  # bytes of events that may wait; beyond that they are written
_FIRST_EVENTS: Final = 64  # events in the first segment: few, so that there is soon something to look at
_GROWTH: Final = 1024 * 1024  # frames by which the file of answers grows
_NUMBER_LIMIT: Final = 2**32  # numbers from here on do not fit in `ANSWER`


class StoreWriter:
    """A writer of a new store in an empty `directory`, of at most about `limit` bytes (None: no limit).

    `count` is the number of events so far. The methods raise OSError, for example if the disk is full.
    """

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        self.directory = directory
        self.count = 0
        self._limit = limit
        self._written = 0  # events in segments
        self._number = 1  # of the next frame
        self._pending: list[Event] = []
        self._pending_bytes = 0
        self._compress = zstandard.ZstdCompressor(level=-1).compress
        self._index = open(directory / "index", "xb", buffering=0)  # noqa: SIM115  (closed by `finish`)
        self._file = 0
        self._stream = self._open()
        self._answers = open(directory / "answers", "x+b")  # noqa: SIM115
        self._map: mmap | None = None
        self._numbers = memoryview(b"").cast("I")  # of the answers, by the numbers of their requests
        self._size = 0  # bytes of the current file
        self._sizes: list[int] = []  # of the files before it; 0: deleted

    def _open(self) -> Any:
        return open(self.directory / f"events.{self._file}", "xb", buffering=0)

    def add(self, events: Sequence[Event]) -> None:
        """Add events. Those in a segment that is not full yet can be read after the next `flush`."""
        self._pending += events
        for event in events:  # compiled, this is much faster than a sum
            self._pending_bytes += len(event.raw) if isinstance(event, Frame) else event.size
        self.count += len(events)
        if (
            len(self._pending) >= (_MAX_EVENTS if self._written else _FIRST_EVENTS)
            or self._pending_bytes > _MAX_BYTES
        ):
            self.flush()

    def flush(self) -> None:
        """Write what has been added."""
        while self._pending:
            events, self._pending = self._pending[:_MAX_EVENTS], self._pending[_MAX_EVENTS:]
            self._write(events)
        self._pending_bytes = 0

    def _write(self, events: list[Event]) -> None:
        frames = [event for event in events if event.__class__ is Frame]
        data = self._compress(pack(events))
        if self._size and self._size + len(data) > FILE_SIZE:
            self._begin_file()
        self._stream.write(data)
        self._index.write(ENTRY.pack(self._file, len(data), self._size, self._written, self._number))
        self._size += len(data)
        self._written += len(events)
        if frames:
            self._number = frames[-1].number + 1
            self._link(frames)

    def _begin_file(self) -> None:
        self._stream.close()
        self._sizes.append(self._size)
        self._file, self._size = self._file + 1, 0
        self._stream = self._open()
        while self._limit is not None and sum(self._sizes) + FILE_SIZE > self._limit:
            oldest = next((file for file, size in enumerate(self._sizes) if size), None)
            if oldest is None:
                break
            self._sizes[oldest] = 0
            with suppress(OSError):
                os.unlink(self.directory / f"events.{oldest}")

    def _link(self, frames: list[Any]) -> None:
        """Note which requests these frames answer."""
        last = self._number - 1
        if last >= _NUMBER_LIMIT:
            return
        if last >= len(self._numbers):
            self._grow(last)
        numbers = self._numbers
        for frame in frames:
            request = frame.request
            if request is not None:
                numbers[request] = frame.number
                if frame.resend_of:
                    numbers[frame.resend_of] = frame.number

    def _grow(self, number: int) -> None:
        self._numbers.release()
        if self._map is not None:
            self._map.close()
        self._answers.truncate((number + _GROWTH) * ANSWER.size)
        self._map = mmap(self._answers.fileno(), 0)
        self._numbers = memoryview(self._map).cast("I")

    def finish(self) -> None:
        """Write the rest, and close all files."""
        self.flush()
        self._numbers.release()
        if self._map is not None:
            self._map.close()
        for stream in (self._stream, self._index, self._answers):
            stream.close()
