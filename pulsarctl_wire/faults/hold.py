"""The fault that holds frames until somebody decides what becomes of them: a breakpoint.

    lane ── _HoldState ── holds ──► HeldFrames ◄── decisions ── whoever looks (net/fault_control.py)

What comes behind a held frame in its direction of the connection waits, too, as it would for TCP.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pulsarctl_wire.faults.base import (
    ANSWERED_FOR_PEER,
    Fault,
    FaultState,
    HeldFrame,
    Item,
    LaneContext,
    Note,
    Send,
    Unit,
    Wake,
    option,
)
from pulsarctl_wire.faults.values import TIME

MAX_HELD_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes that wait in a direction of a connection. With more, everything goes on as it came."""


@dataclass(frozen=True, kw_only=True)
class Hold(Fault):
    """The frame waits, with all that follows it, until somebody decides about it, as in pwire tui."""

    name = "hold"

    wait: float = option(60.0, TIME, "time after which it goes on as it came")

    def new_state(self, context: LaneContext) -> FaultState:
        """Return a state that holds frames."""
        return _HoldState(self, context)


class _HoldState(FaultState):
    """The frames of a lane that wait: those that are held, and what came after them."""

    fault: Hold

    def __init__(self, fault: Hold, context: LaneContext) -> None:
        super().__init__(fault, context)
        self._waiting: deque[HeldFrame | Unit] = deque()
        self._bytes = 0

    def hit(self, unit: Unit) -> Iterator[Item]:
        """Hold a frame."""
        held = self.context.held.add(unit, unit.at + self.fault.wait)
        yield from self._wait(held, unit)
        yield Wake(held.until)

    def pass_on(self, unit: Unit) -> Iterator[Item]:
        """Let a unit wait behind those that are held."""
        if self._waiting:
            yield from self._wait(unit, unit)
        else:
            yield unit

    def _wait(self, entry: HeldFrame | Unit, unit: Unit) -> Iterator[Item]:
        self._waiting.append(entry)
        self._bytes += len(unit.data)
        if self._bytes > MAX_HELD_BYTES:
            yield Note(f"{self.fault.name}: {self._bytes} bytes wait, more than {MAX_HELD_BYTES}: all go on")
            yield from self.release()

    def take_due(self, now: float) -> Iterator[Item]:
        """Yield the frames that were decided about or waited too long, and the units behind them."""
        while self._waiting:
            entry = self._waiting[0]
            if isinstance(entry, HeldFrame) and entry.decision is None and now < entry.until:
                return
            self._waiting.popleft()
            yield from self._go_on(entry, now)

    def _go_on(self, entry: HeldFrame | Unit, now: float) -> Iterator[Item]:
        unit = entry.unit if isinstance(entry, HeldFrame) else entry
        self._bytes -= len(unit.data)
        if isinstance(entry, Unit):
            yield unit._replace(at=max(unit.at, now))
            return
        self.context.held.forget(entry)
        name = unit.frame.command if unit.frame is not None else ""
        if entry.decision is None:
            yield Note(f"{self.fault.name}: {name} has waited for {self.fault.wait:g} s and goes on")
            yield unit._replace(at=max(unit.at, now))
            return
        frames, answers = entry.decision
        yield Note(f"{self.fault.name}: {name} {_describe(unit.data, frames, answers)}")
        for index, data in enumerate(frames):
            passed = unit if data == unit.data else unit.with_data(data)
            change = "sent again" if index and passed is unit else passed.change
            yield passed._replace(at=max(unit.at, now), change=change)
        for data in answers:
            yield Send(data, now, back=True)

    def release(self) -> Iterator[Item]:
        """Yield everything that waits, as it came."""
        while self._waiting:
            entry = self._waiting.popleft()
            if isinstance(entry, HeldFrame):
                self.context.held.forget(entry)
            yield entry.unit if isinstance(entry, HeldFrame) else entry
        self._bytes = 0

    def end(self) -> Iterator[Note]:
        """Forget what is still held when the lane has ended."""
        for entry in self._waiting:
            if isinstance(entry, HeldFrame):
                self.context.held.forget(entry)
        self._waiting.clear()
        yield from ()


def _describe(data: bytes, frames: tuple[bytes, ...], answers: tuple[bytes, ...]) -> str:
    """Return what was decided about the frame `data`, as words for a note."""
    parts = []
    if not frames:
        parts.append("dropped")
    elif len(frames) > 1:
        parts.append(f"sent {len(frames)} times")
    if any(other != data for other in frames):
        parts.append("changed")
    if answers:
        parts.append(ANSWERED_FOR_PEER)
    return ", ".join(parts) or "goes on"
