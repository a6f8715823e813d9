"""Keeps times in bounded memory: exactly while there are few, then in an HDR histogram.

The values of a histogram are within 0.8 % for any distribution, and merging gives the same result in any
order, so several processes give the same result as one. (Sketches bound the error in rank: KLL was up to 22 %
off, a t-digest 37 %.) Values are added in batches, as adding each alone takes 1 µs.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from hdrh.histogram import HdrHistogram

EXACT: Final = 2_048
"""Up to this many times are kept exactly; `together` is exact for up to `8 * EXACT`."""

PERCENTILES: Final = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name -> thousandths."""

_LONGEST: Final = 2**62  # ns
_HIGHEST: Final = 2**42  # ns, the largest value of a histogram: 73 minutes


class Latencies:
    """Times in ns. `count` and `max` are always exact. More than `EXACT` times become a histogram."""

    COST: Final = 700  # bytes, without the values
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
        """Add the times of `other`."""
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
        """The times of all `parts`; exact if there are not too many."""
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
        """Count, percentiles by nearest rank, and maximum, in ns; None if there are no times."""
        if not self.count:
            return None
        record = {"count": self.count}
        self._settle()
        values = sorted(self._values)
        ranks = {name: max(1, -(-each * self.count // 1000)) for name, each in PERCENTILES.items()}
        if self._histogram is None:
            record.update((name, values[rank - 1]) for name, rank in ranks.items())
        else:
            percents = {name: rank * 100 / self.count for name, rank in ranks.items()}
            found = self._histogram.get_percentile_to_value_dict(percents.values())
            record.update((name, min(found.get(each, 0), self.max)) for name, each in percents.items())
        record["max"] = self.max
        return record

    def _to_histogram(self) -> None:
        if self._histogram is None:
            self._histogram = _new_histogram()
            self._codes.extend(_codes(self._values))
            self._values = array("q")

    def _settle(self) -> None:
        """Add the waiting codes to the histogram."""
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
    """The upper halves of the values as float32: sign, exponent and 7 bits, the precision of a histogram."""
    halves = memoryview(array("f", values)).cast("B").cast("H")
    return halves[sys.byteorder == "little" :: 2]
