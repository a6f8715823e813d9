"""Faults that lose, duplicate or reorder frames."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, FaultState, Item, LaneContext, Unit, Wake, option
from pulsarctl_wire.faults.values import TIME, whole

MAX_COPIED_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of all copies of a frame, as they are sent at once."""


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """The frame is not passed on."""

    name = "drop"
    aliases = ("swallow",)

    def check(self) -> None:
        """Reject a drop of all frames."""
        if not self.has_selection and self.probability == 1 and self.direction == "both":
            raise SettingsError("drop: say which frames, as in command=SEND_RECEIPT; blackhole drops all")

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield nothing."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Duplicate(Fault):
    """The frame is passed on several times."""

    name = "duplicate"

    copies: int = option(1, whole(1, 1000), "number of additional copies, up to 64 MiB in all")

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the unit and its copies."""
        for _ in range(1 + min(self.copies, MAX_COPIED_BYTES // len(unit.data))):
            yield unit


@dataclass(frozen=True, kw_only=True)
class Reorder(Fault):
    """The frame is passed on after frames that follow it; while it waits, no other is held back."""

    name = "reorder"

    behind: int = option(1, whole(1, 1000), "how many frames of its direction overtake it")
    hold: float = option(1.0, TIME, "the longest time that it waits for them")

    def new_state(self, context: LaneContext) -> FaultState:
        """Return a state that can hold one frame."""
        return _ReorderState(self, context)


class _ReorderState(FaultState):
    """Holds back up to one frame."""

    fault: Reorder
    _held: Unit | None = None
    _remaining = 0  # frames that have to overtake it
    _until = 0.0
    _wake_at = 0.0  # when the latest Wake is due

    @property
    def is_busy(self) -> bool:  # type: ignore[override]
        """Whether a frame is held."""
        return self._held is not None

    def hit(self, unit: Unit) -> Iterator[Item]:
        """Hold the frame."""
        self._held = unit
        self._remaining = self.fault.behind
        self._until = unit.at + self.fault.hold
        if unit.at >= self._wake_at:  # only one Wake at a time: `take_due` yields the next one
            self._wake_at = self._until
            yield Wake(self._until)

    def pass_on(self, unit: Unit) -> Iterator[Item]:
        """Let a frame overtake the held one.

        Before bytes that are no frame the held one goes on: later it could end up among them.
        """
        if unit.frame is None:
            yield from self.release()
        yield unit
        self._remaining -= 1
        if self._remaining <= 0:
            yield from self.release()

    def take_due(self, now: float) -> Iterator[Item]:
        """Yield the held frame, once its time is over."""
        if now >= self._until:
            yield from self.release()
        elif self._held is not None and now >= self._wake_at:
            self._wake_at = self._until
            yield Wake(self._until)

    def release(self) -> Iterator[Item]:
        """Yield the held frame."""
        if self._held is not None:
            unit, self._held = self._held, None
            yield unit
