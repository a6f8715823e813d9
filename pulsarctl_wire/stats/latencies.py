"""Keeps times in bounded memory: exactly while there are few, then in a histogram.

A bucket has the times whose eight leading bits are the same. A percentile is the largest time of its bucket,
or of the 128 ns that a narrower one is in, as in HdrHistogram. So values are within 0.8 % or 128 ns for any
distribution, and merging gives the same result in any order: several processes give the same result as one.
(Sketches bound the error in rank: KLL was up to 22 % off, a t-digest 37 %.) Values are added in batches, as
adding each alone takes 1 µs.
"""

import sys
import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import Any, Final

EXACT: Final = 2_048
"""Up to this many times are kept exactly; `together` is exact for up to `8 * EXACT`."""

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> thousandths."""

_MAX_NS: Final = 2**62  # ns
_FIRST_CODE: Final = 127 + 7 << 7  # the code of 128 ns; smaller values are in the first bucket
_LAST_CODE: Final = 127 + 42 << 7  # the code of the largest value of a histogram: 73 minutes


class Latencies:
    """Times in ns. `count` and `max` are always exact. More than `EXACT` times become a histogram."""

    COST: Final = 700  # bytes, without the values
    HISTOGRAM_COST: Final = 56_000

    __slots__ = ("_codes", "_histogram", "_values", "count", "max")

    def __init__(self) -> None:
        self.count = 0
        self.max = 0
        self._values = array("q")
        self._codes = array("H")  # of values that are not in the histogram yet
        self._histogram: array[int] | None = None  # counts by code - _FIRST_CODE + 1

    @property
    def cost(self) -> int:
        """The approximate memory use in bytes."""
        return self.COST + (self.HISTOGRAM_COST if self.settled else 8 * len(self._values))

    @property
    def settled(self) -> bool:
        """Whether memory use is constant from now on: there is a histogram."""
        return self._histogram is not None

    def add(self, values: Sequence[int]) -> None:
        """Add `values`, in ns."""
        if not values:
            return
        largest = max(values)
        if largest > _MAX_NS or min(values) < -_MAX_NS:
            values = [max(-_MAX_NS, min(value, _MAX_NS)) for value in values]
            largest = max(values)
        self.max = largest if not self.count else max(self.max, largest)
        self.count += len(values)
        if self._histogram is None:
            self._values.extend(values)
            if len(self._values) > EXACT:
                self._to_histogram()
        else:
            self._codes.extend(_encode(values))
        if len(self._codes) > 4 * EXACT:
            self._settle()

    def merge(self, other: "Latencies") -> None:
        """Add the times of `other`."""
        if other._histogram is None:
            self.add(other._values)
            return
        other._settle()
        self._histogram = array("Q", map(add, self._to_histogram(), other._histogram))
        self.max = other.max if not self.count else max(self.max, other.max)
        self.count += other.count

    @classmethod
    def together(cls, parts: Sequence["Latencies"]) -> "Latencies":
        """Return the times of all `parts`; exact if there are not too many."""
        total = cls()
        if sum(part.count for part in parts) <= 8 * EXACT and not any(part.settled for part in parts):
            for part in parts:
                total._values.extend(part._values)
            total.count = len(total._values)
            total.max = max(total._values, default=0)
        else:
            for part in parts:
                total.merge(part)
        return total

    def record(self) -> dict[str, int] | None:
        """Return count, percentiles by nearest rank, and maximum, in ns; None if there are no times."""
        if not self.count:
            return None
        record = {"count": self.count}
        self._settle()
        values = sorted(self._values)
        ranks = {name: max(1, -(-share * self.count // 1000)) for name, share in PERCENTILES.items()}
        if self._histogram is None:
            record.update((name, values[rank - 1]) for name, rank in ranks.items())
        else:
            sums = list(accumulate(self._histogram))
            buckets = {name: bisect_left(sums, rank) for name, rank in ranks.items()}
            record.update((name, min(_largest_value(bucket), self.max)) for name, bucket in buckets.items())
        record["max"] = self.max
        return record

    def _to_histogram(self) -> "array[int]":
        if self._histogram is None:
            self._histogram = array("Q", bytes(8 * (_LAST_CODE - _FIRST_CODE + 2)))
            self._codes.extend(_encode(self._values))
            self._values = array("q")
        return self._histogram

    def _settle(self) -> None:
        """Add the codes collected to the histogram."""
        if self._codes:
            histogram = self._to_histogram()
            for code, count in Counter(self._codes).items():
                is_negative = code >> 15
                histogram[0 if is_negative else max(0, min(code, _LAST_CODE) - _FIRST_CODE + 1)] += count
            self._codes = array("H")

    def __getstate__(self) -> Any:
        self._settle()
        histogram = None if self._histogram is None else zlib.compress(self._histogram, 1)
        return self.count, self.max, self._values.tobytes(), histogram

    def __setstate__(self, state: Any) -> None:
        self.__init__()  # type: ignore[misc]
        self.count, self.max, values, histogram = state
        self._values.frombytes(values)
        if histogram is not None:
            self._histogram = array("Q", zlib.decompress(histogram))


def _largest_value(bucket: int) -> int:
    """Return the largest value of a bucket of a histogram, in ns."""
    if not bucket:
        return 127
    code = bucket + _FIRST_CODE - 1
    lowest = (code & 127 | 128) << (code >> 7) - 127 - 7
    return lowest | max(128, 1 << lowest.bit_length() - 8) - 1


def _encode(values: Sequence[int]) -> memoryview:
    """Return the code of each value: the upper half of its float32 (sign, exponent, 7 bits of fraction)."""
    halves = memoryview(array("f", values)).cast("B").cast("H")
    return halves[sys.byteorder == "little" :: 2]
