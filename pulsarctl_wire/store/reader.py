"""Reads a store, also while another process writes to it.

A position is the place of an event among all, from 0. Memory is bounded, whatever the size of the store.
"""

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zstandard

from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.store.rows import restore
from pulsarctl_wire.store.segment import unpack
from pulsarctl_wire.store.writer import ANSWER, ENTRY
from pulsarctl_wire.wire.frame import Event, Frame

_CACHED_SEGMENTS: Final = 8  # segments in memory
_MAX_SEGMENT_SIZE: Final = 256 * 1024 * 1024  # bytes when decompressed: a few of the largest frames


class Dropped(StoreError):
    """The error for events that are not kept any more."""


class StoreReader:
    """A reader of the store in `directory`.

    `count` is the number of events that can be read; `refresh` looks for more.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0
        # the fields of `ENTRY`, by segment
        self._files = array("I")
        self._sizes = array("I")
        self._offsets = array("Q")
        self._positions = array("Q")
        self._numbers = array("Q")
        self._index_size = 0  # bytes of the index that were read
        self._segments: OrderedDict[int, list[Event]] = OrderedDict()
        self._decompress = zstandard.ZstdDecompressor().decompress

    def refresh(self) -> bool:
        """Look for events that were written since; return whether there are any. Raises StoreError."""
        try:
            with open(self.directory / "index", "rb") as stream:
                stream.seek(self._index_size)
                data = stream.read()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{self.directory}: {error.strerror}") from error
        data = data[: len(data) // ENTRY.size * ENTRY.size]
        for file, size, offset, position, number in ENTRY.iter_unpack(data):
            self._files.append(file)
            self._sizes.append(size)
            self._offsets.append(offset)
            self._positions.append(position)
            self._numbers.append(number)
        self._index_size += len(data)
        if data:
            last = len(self._files) - 1
            self.count = self._positions[last] + len(self._load(last))
        return bool(data)

    def event(self, position: int) -> Event:
        """Return the event at a position. Raises StoreError, Dropped, IndexError."""
        if not 0 <= position < self.count:
            raise IndexError(position)
        segment = bisect_right(self._positions, position) - 1
        return self._load(segment)[position - self._positions[segment]]

    def batches(self, position: int = 0) -> Iterator[tuple[int, list[Event]]]:
        """Yield the events from `position` on, some at a time, with the position of the first one.

        Events that are not kept any more are left out. Raises StoreError.
        """
        segment = max(bisect_right(self._positions, position) - 1, 0)
        while segment < len(self._files):
            start = self._positions[segment]
            try:
                events = self._restore(segment)
            except Dropped:
                events = []
            skipped = max(position - start, 0)
            if events[skipped:]:
                yield start + skipped, events[skipped:]
            segment += 1

    def position_of(self, number: int) -> int | None:
        """Return the position of the frame with this number. Raises StoreError.

        None if it is not there, or not kept any more.
        """
        segment = bisect_right(self._numbers, number) - 1
        if segment < 0:
            return None
        try:
            events = self._load(segment)
        except Dropped:
            return None
        for index, event in enumerate(events):
            if isinstance(event, Frame) and event.number == number:
                return self._positions[segment] + index
        return None

    def answer_of(self, number: int) -> int | None:
        """Return the number of the frame that answers frame `number`; None if there is none."""
        try:
            with open(self.directory / "answers", "rb") as stream:
                stream.seek(number * ANSWER.size)
                data = stream.read(ANSWER.size)
        except OSError:
            return None
        return (ANSWER.unpack(data)[0] or None) if len(data) == ANSWER.size else None

    def _load(self, segment: int) -> list[Event]:
        events = self._segments.get(segment)
        if events is None:
            events = self._segments[segment] = self._restore(segment)
            if len(self._segments) > _CACHED_SEGMENTS:
                self._segments.popitem(last=False)
        else:
            self._segments.move_to_end(segment)
        return events

    def _restore(self, segment: int) -> list[Event]:
        path = self.directory / f"events.{self._files[segment]}"
        try:
            with path.open("rb") as stream:
                stream.seek(self._offsets[segment])
                data = stream.read(self._sizes[segment])
            return restore(unpack(self._decompress(data, max_output_size=_MAX_SEGMENT_SIZE)))
        except FileNotFoundError:
            raise Dropped(f"{path.name} is not kept any more") from None
        except (OSError, zstandard.ZstdError) as error:
            raise StoreError(f"{path}: {error}") from error
