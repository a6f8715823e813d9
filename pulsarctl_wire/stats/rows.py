"""The rows of statistics, the cells in which counts are collected for them, and their names."""

from array import array
from bisect import bisect_left
from typing import Any, Final, NamedTuple

BUCKETS: Final = 64
"""Buckets of a series; at least half of them are used, except in very short captures."""

OTHERS: Final = "(others)"
"""The name of the row that counts everything beyond the maximum number of rows."""

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "command": ("command",),
    "connection": ("connection", "client", "server"),
    "topic": ("topic",),
    "producer": ("producer", "topic"),
    "subscription": ("subscription", "topic"),
    "error": ("error", "command", "topic", "address"),
}
"""Kinds of rows -> the fields that identify a row; in the row of all others, the first is `OTHERS`."""

Key = tuple[Any, ...]
"""The names of a row; () is the row of all others."""


class Ended(NamedTuple):
    """How a connection ended, as in `EndedConnection`."""

    protocol: str | None
    end: str
    by_broker: bool | None
    how: str


_COUNTS: Final = ("bytes", "delivered", "errors", "frames", "invalid", "partial", "sent", "unanswered")


class Row:
    """The counts of one row. `series` has its frames by slot: the number of a bucket modulo `BUCKETS`."""

    __slots__ = (*_COUNTS, "ended", "key", "lost", "series")

    def __init__(self, key: Key = ()) -> None:
        self.key = key
        self.frames = self.bytes = self.sent = self.delivered = 0
        self.invalid = self.errors = self.partial = self.unanswered = 0
        self.lost = False  # whether it lacks latencies, as memory was short
        self.ended: Ended | None = None  # only for connections
        self.series: array[int] | None = None

    def merge(self, other: "Row") -> None:
        """Add the counts of `other`, whose series has the same buckets."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lost |= other.lost
        self.ended = self.ended or other.ended
        if other.series is not None:
            self.add_series(dict(enumerate(other.series)))

    def add_series(self, slots: dict[int, int]) -> None:
        """Add frames by slot, which is the bucket's number modulo `BUCKETS`."""
        if self.series is None:
            self.series = array("Q", bytes(8 * BUCKETS))
        for slot, frames in slots.items():
            self.series[slot] += frames


class Cell:
    """The counts of frames with the same key since the last flush, and the rows in which they count."""

    __slots__ = (
        *("bytes", "invalid", "is_error", "is_partial", "is_send", "latencies", "latency_key"),
        *("messages", "rows", "times", "untimed"),
    )

    def __init__(self, rows: list[Row], latency_key: Key) -> None:
        self.rows = rows
        self.latency_key = latency_key
        self.is_send = False
        self.is_error = False
        self.is_partial = False
        self.times: list[Any] = []  # of its frames, in ns or None
        self.latencies: list[int] = []
        self.bytes = self.messages = self.invalid = self.untimed = 0

    def edges(self) -> list[int]:
        """Sort the times, without None; return the first and the last one, if any."""
        times = self.times
        if None in times:
            self.times = [time_ns for time_ns in times if time_ns is not None]
            self.untimed += len(times) - len(self.times)
        self.times.sort()  # they are almost sorted
        return [self.times[0], self.times[-1]] if self.times else []

    def flush(self, shift: int) -> None:
        """Add the counts to the rows, and reset them. Call `edges` first. Buckets are 2**`shift` ns wide."""
        times = self.times
        slots: dict[int, int] = {}
        start = 0
        while start < len(times):
            bucket = times[start] >> shift
            stop = bisect_left(times, bucket + 1 << shift, start)
            slots[bucket % BUCKETS] = stop - start
            start = stop
        frames = len(times) + self.untimed
        for row in self.rows:
            if self.is_partial:
                row.partial += frames
            else:
                row.frames += frames
                row.bytes += self.bytes
                row.invalid += self.invalid
                if self.is_send:
                    row.sent += self.messages
                else:
                    row.delivered += self.messages
                if self.is_error:
                    row.errors += frames
                row.add_series(slots)
        times.clear()
        self.latencies.clear()
        self.bytes = self.messages = self.invalid = self.untimed = 0
