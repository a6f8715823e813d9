"""What live counters are made of: traffic with its rate over the last seconds, times with their spread.

    Passage    the time of the traffic that is counted, which may be long past
    Meter      frames, bytes and messages since the start, and a ring of one-second buckets for their rates
    Timer      times since the start: histogram, sum and percentiles; and percentiles of the last seconds

No clock in here: whoever counts says when. Meters and timers are told what a `Passage` makes of that, so
that for them time never goes back.
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


class Passage:
    """The time of the traffic that is counted, from `now_ns` (ns since the epoch) on.

    Who counts may be seconds late: rates are those of the traffic that they are at. While nothing comes,
    time goes on with the clock. `at_ns` is what meters and timers count by: the time of what passed last,
    and all that the clock was set back by.
    """

    __slots__ = ("_idle", "_met", "_read_ns", "_time_ns", "at_ns")

    def __init__(self, now_ns: int) -> None:
        self.at_ns = self._time_ns = self._read_ns = now_ns
        self._idle = 0  # ns that have passed since, without anything
        self._met = False

    def meet(self, time_ns: int) -> int:
        """Something passed at `time_ns`, after all that was met before; gives the time to count it by."""
        ahead = time_ns - self._time_ns
        if ahead < 0:  # the clock was set back
            ahead = self._idle
        self._time_ns = time_ns
        self._idle = 0
        self._met = True
        self.at_ns = at_ns = self.at_ns + ahead
        return at_ns

    def read(self, now_ns: int) -> int:
        """The clock says `now_ns`; gives the time to read meters by.

        What was met since the last reading, but passed before it, has waited: who counts is late. Where
        nothing was met, nothing waits.
        """
        behind = now_ns - self._time_ns
        since = max(now_ns - self._read_ns, 0)  # 0: the clock was set back
        if not self._met:
            self._idle = max(behind, self._idle + since)
        elif 0 <= behind <= since:
            self._idle = behind
        self._met = False
        self._read_ns = now_ns
        return self.at_ns + self._idle


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
        frames = size = messages = 0
        span = 1.0
        if self._started is not None:
            first = max(now_ns // SECOND - WINDOW + 1, self._started)
            span = max((now_ns - first * SECOND) / SECOND, span)
            for second in range(first, self._second + 1):
                at = second % WINDOW * 3
                frames += self._ring[at]
                size += self._ring[at + 1]
                messages += self._ring[at + 2]
        rates = frames / span, size / span, messages / span
        return Traffic(self.frames, self.size, self.messages, *rates)

    def _turn(self, second: int) -> None:
        """Let `second` be the ring's newest, those before it empty."""
        if self._started is None:
            self._started = self._second = second
        for each in range(max(self._second, second - WINDOW) + 1, second + 1):
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
        self._window = 0

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
        self._settle()
        later = now_ns // (RECENT * SECOND) - self._window
        recent = Latencies.together([self._recent, self._before][: max(2 - later, 0)])
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
        self._before = self._recent if window == self._window + 1 else Latencies()
        self._recent = Latencies()
        self._window = window
