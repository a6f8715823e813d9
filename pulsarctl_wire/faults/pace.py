"""Faults of pace: bytes come late, slowly, or in slices. Nothing is lost and nothing overtakes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, Item, Piece, Place, Work, option
from pulsarctl_wire.faults.values import RATE, SIZE, SPREAD, TIME

_MOST_PARTS: Final = 4096  # of a frame, so that a frame of 64 MiB does not become as many actions
_STEPS: Final = 10  # parts of a second's bytes, as in toxiproxy


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """Frames come later by a time, give or take a jitter; those behind them wait in the pipeline."""

    name = "delay"
    of_bytes = True
    quiet = True

    time: float = option(0.1, TIME, "how much later")
    jitter: float = option(0.0, TIME, "give or take so much, evenly spread")

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The same piece, later."""
        jitter = place.rng.uniform(-self.jitter, self.jitter) if self.jitter else 0.0
        yield piece._replace(at=piece.at + max(self.time + jitter, 0.0))


@dataclass(frozen=True, kw_only=True)
class _Cutting(Fault):
    of_bytes: ClassVar[bool] = True
    cuts: ClassVar[bool] = True
    quiet: ClassVar[bool] = True

    def cut(self, data: bytes, place: Place) -> Iterator[tuple[bytes, float]]:
        """The parts of `data`, each with the seconds from the part before it."""
        raise NotImplementedError

    def at_work(self, place: Place) -> Work:
        """The fault in one lane: parts follow those of the frame before."""
        return _Line(self, place)


class _Line(Work):
    """A line that carries one part after the other, and is free from a time on."""

    fault: _Cutting
    _free = 0.0

    def hit(self, piece: Piece) -> Iterator[Item]:
        """The parts, each at its time; those of one frame all bear the frame."""
        at = max(piece.at, self._free)
        for part, wait in self.fault.cut(piece.data, self.place):
            at += wait
            yield piece._replace(data=part, at=at)
        self._free = at


@dataclass(frozen=True, kw_only=True)
class Bandwidth(_Cutting):
    """Bytes pass no faster than a rate, in each direction of each connection."""

    name = "bandwidth"

    rate: int = option(64_000, RATE, "bytes a second")

    def cut(self, data: bytes, place: Place) -> Iterator[tuple[bytes, float]]:
        """A tenth of a second's bytes at a time, each when the line has carried its last byte."""
        size = max(self.rate // _STEPS, math.ceil(len(data) / _MOST_PARTS), 1)
        for at in range(0, len(data), size):
            part = data[at : at + size]
            yield part, len(part) / self.rate


@dataclass(frozen=True, kw_only=True)
class Slice(_Cutting):
    """Frames come in slices, with pauses between them."""

    name = "slice"

    size: int = option(64, SIZE, "bytes of a slice; at least a 4096th of the frame")
    variation: int = option(0, SPREAD, "give or take so many, less than the size")
    pause: float = option(0.01, TIME, "between the slices of a frame")

    def check(self) -> None:
        """Slices have at least one byte."""
        if self.variation >= self.size:
            raise SettingsError(
                f"slice: variation={self.variation} leaves nothing of size={self.size}; make it smaller"
            )

    def cut(self, data: bytes, place: Place) -> Iterator[tuple[bytes, float]]:
        """Slices of about the same size."""
        at, least = 0, math.ceil(len(data) / _MOST_PARTS)
        while at < len(data):
            size = self.size + (place.rng.randint(-self.variation, self.variation) if self.variation else 0)
            stop = at + max(size, least)
            yield data[at:stop], self.pause if at else 0.0
            at = stop
