"""Faults that end a connection: by closing it, by a reset, or by a black hole."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pulsarctl_wire.faults.base import Blackhole, Close, Fault, Item, LaneContext, Reset, Unit, option
from pulsarctl_wire.faults.values import SIZE, optional


@dataclass(frozen=True, kw_only=True)
class _EndFault(Fault):
    can_hit_bytes: ClassVar[bool] = True
    end: ClassVar[Close | Reset]

    bytes: int | None = option(None, optional(SIZE), "pass this many bytes of the frame first")

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the first bytes of the unit, then the end of the connection."""
        if self.bytes:
            yield Unit(unit.data[: self.bytes], None, unit.at)
        yield self.end


@dataclass(frozen=True, kw_only=True)
class Disconnect(_EndFault):
    """The connection is closed, and the frame is not passed on."""

    name = "disconnect"
    end = Close()


@dataclass(frozen=True, kw_only=True)
class ResetFault(_EndFault):
    """The connection is reset, and the frame is not passed on."""

    name = "reset"
    end = Reset()


@dataclass(frozen=True, kw_only=True)
class BlackholeFault(Fault):
    """From this frame on nothing is passed on in either direction, while the connection stays open."""

    name = "blackhole"
    can_hit_bytes = True

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield a Blackhole instead of the unit."""
        yield Blackhole()
