"""What is counted: rows, the cells in which counts wait for them, and the names of both."""

from array import array
from bisect import bisect_left
from typing import Any, Final, NamedTuple

BUCKETS: Final = 64
"""Buckets of a series; in all but the shortest captures at least half of them are in use."""

OTHERS: Final = "(others)"
"""What stands in the place of the name for all rows that were too many."""

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "command": ("command",),
    "connection": ("connection", "client", "server"),
    "topic": ("topic",),
    "producer": ("producer", "topic"),
    "subscription": ("subscription", "topic"),
    "error": ("error", "command", "topic", "address"),
}
"""What rows can be by -> the keys that name one; the first of them is `OTHERS` where it is."""

Key = tuple[Any, ...]
"""The names of a row; () is the row of all others."""


class Ended(NamedTuple):
    """What became of a connection, as in `Ending`."""

    protocol: str | None
    end: str
    by_broker: bool | None
    how: str


class Row:
    """The counts of one row. `series` are its frames by bucket, at the bucket's slot."""

    __slots__ = (
        *("bytes", "delivered", "errors", "frames", "invalid", "key"),
        *("ended", "lost", "partial", "sent", "series"),
    )

    def __init__(self, key: Key = ()) -> None:
        self.key = key
        self.frames = self.bytes = self.sent = self.delivered = 0
        self.invalid = self.errors = self.partial = 0
        self.lost = False  # some of its latencies
        self.ended: Ended | None = None  # of a connection
        self.series: array[int] | None = None

    def merge(self, other: "Row") -> None:
        """Add the counts of `other`, whose series has the same buckets."""
        self.frames += other.frames
        self.bytes += other.bytes
        self.sent += other.sent
        self.delivered += other.delivered
        self.invalid += other.invalid
        self.errors += other.errors
        self.partial += other.partial
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
    """What was noted of frames that are about the same, and the rows that they count for."""

    __slots__ = (
        *("bytes", "invalid", "is_error", "latencies", "latency_key"),
        *("messages", "partial", "rows", "sent", "times", "untimed"),
    )

    def __init__(self, rows: list[Row], latency_key: Key) -> None:
        self.rows = rows
        self.latency_key = latency_key
        self.sent = False
        self.is_error = False
        self.partial = False
        self.times: list[Any] = []  # of its frames, in ns or None
        self.latencies: list[int] = []
        self.bytes = self.messages = self.invalid = self.untimed = 0

    def edges(self) -> list[int]:
        """The first and the last of the times, if there are any."""
        times = self.times
        if None in times:
            self.times = [time_ns for time_ns in times if time_ns is not None]
            self.untimed += len(times) - len(self.times)
        self.times.sort()  # they nearly are
        return [self.times[0], self.times[-1]] if self.times else []

    def empty(self, shift: int) -> None:
        """Give the rows what was noted (`edges` was called); buckets are 2**`shift` ns wide."""
        times = self.times
        slots: dict[int, int] = {}
        at = 0
        while at < len(times):
            bucket = times[at] >> shift
            upto = bisect_left(times, bucket + 1 << shift, at)
            slots[bucket % BUCKETS] = upto - at
            at = upto
        frames = len(times) + self.untimed
        for row in self.rows:
            if self.partial:
                row.partial += frames
            else:
                row.frames += frames
                row.bytes += self.bytes
                row.invalid += self.invalid
                if self.sent:
                    row.sent += self.messages
                else:
                    row.delivered += self.messages
                if self.is_error:
                    row.errors += frames
                row.add_series(slots)
        times.clear()
        self.latencies.clear()
        self.bytes = self.messages = self.invalid = self.untimed = 0
