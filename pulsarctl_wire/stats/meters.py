"""The parts of live counters: traffic with recent rates, and times with percentiles.

    Passage    the time of the traffic that is counted, which may be behind the clock
    Meter      frames, bytes and messages since the start, and a ring of one-second buckets for their rates
    Timer      times since the start: histogram, sum and percentiles; and percentiles of the last seconds

There is no clock in here: the caller passes the time. A `Passage` converts it for meters and timers, so that
their time never goes back.
"""

from bisect import bisect_left
from typing import Final

from pulsarctl_wire.stats.latencies import Latencies
from pulsarctl_wire.stats.snapshot import Times, Traffic

WINDOW: Final = 5
"""Rates are averages over this many seconds."""

RECENT_WINDOW: Final = 10
"""Seconds of a window of times; the current window and the previous one are shown as recent."""

BOUNDS: Final = (
    *(100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000),
    *(100_000_000, 250_000_000, 500_000_000, 1_000_000_000, 2_500_000_000, 5_000_000_000),
    *(10_000_000_000, 30_000_000_000),
)
"""Upper bounds of a histogram's buckets in ns, from latencies of near brokers to timeouts of clients."""

SECOND: Final = 1_000_000_000

_BATCH: Final = 4_096  # times that are added in one batch


class Passage:
    """The time of the traffic that is counted, starting at `now_ns` (ns since the epoch).

    The caller may be seconds late, so rates refer to the time of the traffic counted last. Without traffic,
    time goes on with the clock. `at_ns` is the time for meters and timers: that of the last traffic, plus
    all the time by which the clock was set back, so that it never decreases.
    """

    __slots__ = ("_idle", "_observed", "_read_ns", "_time_ns", "at_ns")

    def __init__(self, now_ns: int) -> None:
        self.at_ns = self._time_ns = self._read_ns = now_ns
        self._idle = 0  # ns without traffic since `_time_ns`
        self._observed = False

    @property
    def now_ns(self) -> int:
        """The current time of the traffic, by the clock that stamped it."""
        return self._time_ns + self._idle

    def observe(self, time_ns: int) -> int:
        """Note traffic at `time_ns`, in order; return the time at which to count it."""
        elapsed = time_ns - self._time_ns
        if elapsed < 0:  # the clock was set back
            elapsed = self._idle
        self._time_ns = time_ns
        self._idle = 0
        self._observed = True
        self.at_ns = at_ns = self.at_ns + elapsed
        return at_ns

    def read(self, now_ns: int) -> int:
        """Note that the clock shows `now_ns`; return the time at which to read meters.

        If traffic was observed since the last call, but its time is before that call, the caller is late, and
        time stays at the traffic. If none was observed, the caller is not late, and time goes on.
        """
        delay = now_ns - self._time_ns
        interval = max(now_ns - self._read_ns, 0)  # 0: the clock was set back
        if not self._observed:
            self._idle = max(delay, self._idle + interval)
        elif 0 <= delay <= interval:
            self._idle = delay
        self._observed = False
        self._read_ns = now_ns
        return self.at_ns + self._idle


class Meter:
    """Counts frames, bytes and messages, in all, and per second for the last `WINDOW` seconds."""

    __slots__ = ("_ring", "_second", "_started", "frames", "messages", "size")

    def __init__(self) -> None:
        self.frames = self.size = self.messages = 0
        self._started: int | None = None
        self._second = 0
        self._ring = [0] * (3 * WINDOW)

    def add(self, time_ns: int, frames: int, size: int, messages: int) -> None:
        """Count `frames` of `size` bytes in all, with `messages`."""
        self.frames += frames
        self.size += size
        self.messages += messages
        second = time_ns // SECOND
        if second != self._second:
            self._turn(second)
        index = second % WINDOW * 3
        ring = self._ring
        ring[index] += frames
        ring[index + 1] += size
        ring[index + 2] += messages

    def read(self, now_ns: int) -> Traffic:
        """Return the counts, and their rates over the last `WINDOW` seconds, or since the first count."""
        frames = size = messages = 0
        span = 1.0
        if self._started is not None:
            first = max(now_ns // SECOND - WINDOW + 1, self._started)
            span = max((now_ns - first * SECOND) / SECOND, span)
            for second in range(first, self._second + 1):
                index = second % WINDOW * 3
                frames += self._ring[index]
                size += self._ring[index + 1]
                messages += self._ring[index + 2]
        rates = frames / span, size / span, messages / span
        return Traffic(self.frames, self.size, self.messages, *rates)

    def _turn(self, second: int) -> None:
        """Make `second` the newest of the ring, and clear the buckets since the previous newest one."""
        if self._started is None:
            self._started = self._second = second
        for number in range(max(self._second, second - WINDOW) + 1, second + 1):
            index = number % WINDOW * 3
            self._ring[index : index + 3] = 0, 0, 0
        self._second = second


class Timer:
    """Times in ns, in bounded memory; see `Latencies`."""

    __slots__ = ("_buckets", "_count", "_current", "_previous", "_sum", "_waiting", "_whole", "_window")

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self._count = self._sum = 0
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._whole, self._current, self._previous = Latencies(), Latencies(), Latencies()
        self._window = 0

    def add(self, time_ns: int, took_ns: int) -> None:
        """Add a time of `took_ns` that ended at `time_ns`."""
        window = time_ns // (RECENT_WINDOW * SECOND)
        if window != self._window:
            self._turn(window)
        self._waiting.append(max(took_ns, 0))  # the clock may have been set back
        if len(self._waiting) >= _BATCH:
            self._settle()

    def read(self, now_ns: int) -> Times:
        """Return the histogram and the percentiles at `now_ns`."""
        self._settle()
        windows_passed = now_ns // (RECENT_WINDOW * SECOND) - self._window
        recent = Latencies.together([self._current, self._previous][: max(2 - windows_passed, 0)])
        return Times(self._count, self._sum, tuple(self._buckets), recent.record(), self._whole.record())

    def _settle(self) -> None:
        values = self._waiting
        for value in values:
            self._buckets[bisect_left(BOUNDS, value)] += 1
        self._count += len(values)
        self._sum += sum(values)
        self._whole.add(values)
        self._current.add(values)
        self._waiting = []

    def _turn(self, window: int) -> None:
        """Start a new window: the current one becomes the previous one, and older times are dropped."""
        self._settle()
        self._previous = self._current if window == self._window + 1 else Latencies()
        self._current = Latencies()
        self._window = window
