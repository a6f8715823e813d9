"""What live counters are made of: traffic with its rate over the last seconds, times with their spread.

    Meter    frames, bytes and messages since the start, and a ring of one-second buckets for their rates
    Timer    times since the start: histogram, sum and percentiles; and percentiles of the last seconds

No clock in here: whoever counts says when. A clock that was set back begins a new ring.
"""

from bisect import bisect_left
from typing import Final

from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.stats.snapshot import Times, Traffic

WINDOW: Final = 5
"""Seconds that rates are taken over."""

RECENT: Final = 10
"""Seconds after which recent times become those before; both are shown as recent."""

BOUNDS: Final = (
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000),
    *(100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_500_000_000, 5_000_000_000),
    *(10_000_000_000, 30_000_000_000),
)
"""Upper bounds of a histogram's buckets in ns: from what a broker nearby takes to when clients give up."""

SECOND: Final = 1_000_000_000

_GATHERED: Final = 4_096  # times that wait to be sorted in


class Meter:
    """Counts frames, bytes and messages; those of the last `WINDOW` seconds by the second."""

    __slots__ = ("_ring", "_second", "_started", "frames", "messages", "size")

    def __init__(self) -> None:
        self.frames = self.size = self.messages = 0
        self._started: int | None = None
        self._second = 0
        self._ring = [0] * (3 * WINDOW)

    def add(self, time_ns: int, frames: int, size: int, messages: int) -> None:
        """Count `frames` of `size` bytes that carried `messages`."""
        self.frames += frames
        self.size += size
        self.messages += messages
        second = time_ns // SECOND
        if second != self._second:
            self._turn(second)
        at = second % WINDOW * 3
        ring = self._ring
        ring[at] += frames
        ring[at + 1] += size
        ring[at + 2] += messages

    def read(self, now_ns: int) -> Traffic:
        """The counts, and their rates over the `WINDOW` seconds (less, if it began later) up to now."""
        rates = [0.0] * 3
        if self._started is not None:
            self._turn(max(self._second, now_ns // SECOND))
            first = (now_ns // SECOND - WINDOW + 1) * SECOND
            span = max(now_ns - max(first, self._started * SECOND), SECOND) / SECOND
            rates = [sum(self._ring[at::3]) / span for at in range(3)]
        return Traffic(self.frames, self.size, self.messages, *rates)

    def _turn(self, second: int) -> None:
        """Let `second` be the ring's newest, those before it empty; if it is far off, begin a new ring."""
        self._started = second if self._started is None else min(self._started, second)
        if abs(second - self._second) >= WINDOW:
            self._ring = [0] * (3 * WINDOW)
        else:
            for each in range(self._second + 1, second + 1):
                at = each % WINDOW * 3
                self._ring[at : at + 3] = 0, 0, 0
        self._second = second


class Timer:
    """Times in ns, in bounded memory; see `Latencies`."""

    __slots__ = ("_before", "_buckets", "_count", "_recent", "_sum", "_waiting", "_whole", "_window")

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._count = self._sum = 0
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._whole, self._recent, self._before = Latencies(), Latencies(), Latencies()
        self._window: int | None = None

    def add(self, time_ns: int, took_ns: int) -> None:
        """Something took `took_ns`, and was done at `time_ns`."""
        window = time_ns // (RECENT * SECOND)
        if window != self._window:
            self._turn(window)
        self._waiting.append(max(took_ns, 0))  # the clock may have been set back
        if len(self._waiting) >= _GATHERED:
            self._settle()

    def read(self, now_ns: int) -> Times:
        """What is known of them now."""
        window = now_ns // (RECENT * SECOND)
        if window != self._window:
            self._turn(window)
        self._settle()
        recent = Latencies.together([self._before, self._recent])
        return Times(self._count, self._sum, tuple(self._buckets), recent.record(), self._whole.record())

    def _settle(self) -> None:
        values = self._waiting
        for value in values:
            self._buckets[bisect_left(BOUNDS, value)] += 1
        self._count += len(values)
        self._sum += sum(values)
        self._whole.add(values)
        self._recent.add(values)
        self._waiting = []

    def _turn(self, window: int) -> None:
        """Times of another window come: those of the last one are those before, older ones are gone."""
        self._settle()
        follows = self._window is not None and window == self._window + 1
        self._before = self._recent if follows else Latencies()
        self._recent = Latencies()
        self._window = window
