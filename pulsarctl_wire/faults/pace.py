"""Faults that delay bytes, limit their rate, or slice them. Nothing is lost, and nothing is reordered."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, FaultState, Item, LaneContext, Unit, option
from pulsarctl_wire.faults.values import RATE, SIZE, SPREAD, TIME

_MAX_PARTS: Final = 4096  # of a frame, so that a frame of 64 MiB does not become millions of actions
_STEPS: Final = 10  # parts a second, as in toxiproxy


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """Frames are delayed by a time plus or minus a random jitter; frames after them wait, too."""

    name = "delay"
    can_hit_bytes = True
    is_quiet = True

    time: float = option(0.1, TIME, "the delay")
    jitter: float = option(0.0, TIME, "maximum difference from it, uniformly distributed")

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the unit with a later time."""
        jitter = context.rng.uniform(-self.jitter, self.jitter) if self.jitter else 0.0
        yield unit._replace(at=unit.at + max(self.time + jitter, 0.0))


@dataclass(frozen=True, kw_only=True)
class _Cutter(Fault):
    can_hit_bytes: ClassVar[bool] = True
    can_split_frames: ClassVar[bool] = True
    is_quiet: ClassVar[bool] = True

    def cut(self, data: bytes, context: LaneContext) -> Iterator[tuple[bytes, float]]:
        """Yield the parts of `data`, each with the seconds since the part before it."""
        raise NotImplementedError

    def new_state(self, context: LaneContext) -> FaultState:
        """Return a state that sends each frame's parts after those of the frame before."""
        return _Pacer(self, context)


class _Pacer(FaultState):
    """A line that carries one part after the other, and is free at time `_free`."""

    fault: _Cutter
    _free = 0.0

    def hit(self, unit: Unit) -> Iterator[Item]:
        """Yield the parts, each with its time; all parts of a frame carry the decoded frame."""
        time = max(unit.at, self._free)
        for part, wait in self.fault.cut(unit.data, self.context):
            time += wait
            yield unit._replace(data=part, at=time)
        self._free = time


@dataclass(frozen=True, kw_only=True)
class Bandwidth(_Cutter):
    """Bytes are limited to a rate, in each direction of each connection."""

    name = "bandwidth"

    rate: int = option(64_000, RATE, "bytes a second")

    def cut(self, data: bytes, context: LaneContext) -> Iterator[tuple[bytes, float]]:
        """Yield parts of a tenth of a second's bytes, each sent when the line has carried its last byte."""
        size = max(self.rate // _STEPS, math.ceil(len(data) / _MAX_PARTS), 1)
        for start in range(0, len(data), size):
            part = data[start : start + size]
            yield part, len(part) / self.rate


@dataclass(frozen=True, kw_only=True)
class Slice(_Cutter):
    """Frames are sent in slices, with pauses between them."""

    name = "slice"

    size: int = option(64, SIZE, "bytes of a slice; at least a 4096th of the frame")
    variation: int = option(0, SPREAD, "maximum random difference from the size; less than the size")
    pause: float = option(0.01, TIME, "between the slices of a frame")

    def check(self) -> None:
        """Reject a variation that allows empty slices."""
        if self.variation >= self.size:
            raise SettingsError(
                f"slice: variation={self.variation} must be less than size={self.size}; make it smaller"
            )

    def cut(self, data: bytes, context: LaneContext) -> Iterator[tuple[bytes, float]]:
        """Yield slices of about the same size."""
        start, smallest = 0, math.ceil(len(data) / _MAX_PARTS)
        while start < len(data):
            size = self.size + (context.rng.randint(-self.variation, self.variation) if self.variation else 0)
            stop = start + max(size, smallest)
            yield data[start:stop], self.pause if start else 0.0
            start = stop
