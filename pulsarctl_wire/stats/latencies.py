"""Times in bounded memory: as they are while they are few, then in an HDR histogram.

A histogram's values are right within 0.8 %, whatever the distribution, and histograms add up to the
same in any order: several processes give what one gives. hdrhistogram was chosen for that over the
sketches of datasketches, which bound the error in rank and not in value: of 100,000 and 3 million
values of four distributions, KLL with k = 4,000 (90 kB) was up to 22 % off at p99.9, and at p99 of one
that jumps there a t-digest of 1,000 (22 kB) up to 37 %, REQ with k = 100 (57 kB) 2 %. It is told of many
values at a time, as each alone takes it 1 µs.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from hdrh.histogram import HdrHistogram

EXACT: Final = 2_048
"""Times that are kept as they are; of up to `8 * EXACT` in several such, percentiles are still exact."""

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> parts in a thousand."""

_LONGEST: Final = 2**62  # ns
_HIGHEST: Final = 2**42  # ns that a histogram tells apart: 73 minutes


class Latencies:
    """Times in ns. `count` of them and their maximum are exact; more than `EXACT` become a histogram."""

    COST: Final = 700  # bytes of keeping some, without the values
    HISTOGRAM_COST: Final = 56_000

    __slots__ = ("_codes", "_histogram", "_values", "count", "max")

    def __init__(self) -> None:
        self.count = 0
        self.max = 0
        self._values = array("q")
        self._codes = array("H")
        self._histogram: Any = None

    @property
    def cost(self) -> int:
        """Bytes that they take, about."""
        return self.COST + (self.HISTOGRAM_COST if self.settled else 8 * len(self._values))

    @property
    def settled(self) -> bool:
        """Whether they take no more memory, however many come."""
        return self._histogram is not None

    def add(self, values: Sequence[int]) -> None:
        """Add `values`, in ns."""
        if not values:
            return
        most = max(values)
        if most > _LONGEST or min(values) < -_LONGEST:
            values = [max(-_LONGEST, min(value, _LONGEST)) for value in values]
            most = max(values)
        self.max = most if not self.count else max(self.max, most)
        self.count += len(values)
        if self._histogram is None:
            self._values.extend(values)
            if len(self._values) > EXACT:
                self._histogram = _new_histogram()
                values, self._values = self._values, array("q")
        if self._histogram is not None:
            self._codes.extend(_codes(values))
            if len(self._codes) > 4 * EXACT:
                self._settle()

    def merge(self, other: "Latencies") -> None:
        """Add those of `other`."""
        if other._histogram is None:
            self.add(other._values)
            return
        self._to_histogram()
        other._settle()
        self._histogram.add(other._histogram)
        self.max = other.max if not self.count else max(self.max, other.max)
        self.count += other.count

    @classmethod
    def together(cls, parts: Sequence["Latencies"]) -> "Latencies":
        """All of `parts` as one; exact if they are not too many."""
        whole = cls()
        if sum(part.count for part in parts) <= 8 * EXACT and not any(part.settled for part in parts):
            for part in parts:
                whole._values.extend(part._values)
            whole.count = len(whole._values)
            whole.max = max(whole._values, default=0)
        else:
            for part in parts:
                whole.merge(part)
        return whole

    def record(self) -> dict[str, int] | None:
        """Count, percentiles by nearest rank, and maximum, in ns; None if there are none."""
        if not self.count:
            return None
        record = {"count": self.count}
        self._settle()
        values = sorted(self._values)
        for name, thousandths in PERCENTILES.items():
            rank = max(1, -(-thousandths * self.count // 1000))
            if self._histogram is None:
                record[name] = values[rank - 1]
            else:
                found = self._histogram.get_value_at_percentile(rank * 100 / self.count)
                record[name] = min(found, self.max)
        record["max"] = self.max
        return record

    def _to_histogram(self) -> None:
        if self._histogram is None:
            self._histogram = _new_histogram()
            self._codes.extend(_codes(self._values))
            self._values = array("q")

    def _settle(self) -> None:
        """Take the codes that wait into the histogram."""
        if self._codes:
            counts = Counter(self._codes)
            self._codes = array("H")
            values = array("f")
            values.frombytes(array("I", [code << 16 for code in counts]).tobytes())
            record = self._histogram.record_value
            for value, count in zip(values, counts.values(), strict=True):
                record(max(0, min(int(value), _HIGHEST)), count)

    def __getstate__(self) -> Any:
        self._settle()
        histogram = None if self._histogram is None else self._histogram.encode()
        return self.count, self.max, self._values.tobytes(), histogram

    def __setstate__(self, state: Any) -> None:
        self.__init__()  # type: ignore[misc]
        self.count, self.max, values, histogram = state
        self._values.frombytes(values)
        if histogram is not None:
            self._histogram = HdrHistogram.decode(histogram, b64_wrap=False)


def _new_histogram() -> Any:
    return HdrHistogram(128, _HIGHEST + _HIGHEST // 2, 2, b64_wrap=False)


def _codes(values: Sequence[int]) -> memoryview:
    """The upper halves of the values as float32: sign, exponent and 7 bits, which is a histogram's grain."""
    halves = memoryview(array("f", values)).cast("B").cast("H")
    return halves[sys.byteorder == "little" :: 2]
