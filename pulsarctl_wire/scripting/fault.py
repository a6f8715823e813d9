"""`Script`: a script as a fault, so that it sees the frames of a proxy and of the embedded broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from heapq import heappop, heappush
from typing import Final

from pulsarctl_wire.errors import LocalProtocolError, WireError
from pulsarctl_wire.faults.base import Fault, FaultState, Item, LaneContext, Note, Send, Unit, Wake, option
from pulsarctl_wire.faults.values import TEXT
from pulsarctl_wire.scripting.frame import Drop, Frame, Link
from pulsarctl_wire.scripting.program import Program, ScriptError, describe

MAX_DELAY: Final = 3600.0
"""Maximum seconds that a frame is delayed."""

MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes of delayed frames in each direction of a connection; further ones are not delayed."""


@dataclass(frozen=True, kw_only=True)
class Script(Fault):
    """Frames are what a script makes of them."""

    name = "script"
    is_quiet = True

    program: InitVar[Program]
    file: str = option("", TEXT, "the file of the script")

    def __post_init__(self, program: Program) -> None:
        super().__post_init__()
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_pairs", {})

    def new_state(self, context: LaneContext) -> FaultState:
        """Return the script in one lane. Both lanes of a connection have the same link."""
        pairs: dict[int, _Pair] = self._pairs  # type: ignore[attr-defined]
        pair = pairs.setdefault(context.connection, _Pair(Link(context.connection), pairs))
        return _ScriptLane(self, context, self._program, pair)  # type: ignore[attr-defined]


class _Pair:
    """What the lanes of a connection share. `lane_count` is how many have not ended.

    `is_open`: `on_open` was called. `pairs` has all pairs by connection, and loses this one at the end.
    """

    def __init__(self, link: Link, pairs: dict[int, _Pair]) -> None:
        self.link = link
        self.pairs = pairs
        self.lane_count = 0
        self.is_open = False


class _ScriptLane(FaultState):
    """A script in one direction of a connection. `_held`: delayed frames, by the time when they go on."""

    def __init__(self, fault: Script, context: LaneContext, program: Program, pair: _Pair) -> None:
        super().__init__(fault, context)
        pair.lane_count += 1
        self._program = program
        self._pair = pair
        self._held: list[tuple[float, int, Unit]] = []
        self._held_bytes = self._order = 0

    def hit(self, unit: Unit) -> Iterator[Item]:
        """Yield what the script makes of a frame."""
        decoded, pair = unit.frame, self._pair
        assert decoded is not None
        if note := self._program.refresh(unit.at):
            yield Note(note)
        pair.link.client, pair.link.server = decoded.connection.client, decoded.connection.server
        if not pair.is_open:
            pair.is_open = True
            yield from self._call("on_open")
        frame = Frame(decoded, pair.link)
        try:
            items, notes = self._make_items(unit, frame, self._program.call("on_frame", frame))
        except Exception as error:  # whatever a script has put into a frame
            reason = str(error) if isinstance(error, (ScriptError, WireError)) else describe(error, "")
            items, notes = [unit], [f"{reason}; {decoded.command} goes on as it came"]
        for text in (*frame.take_notes(), *notes):
            yield Note(f"{self._program.path}: {text}")
        yield from items

    def _call(self, name: str) -> Iterator[Note]:
        try:
            self._program.call(name, self._pair.link)
        except ScriptError as error:
            yield Note(f"{self._program.path}: {error}")

    def _make_items(self, unit: Unit, frame: Frame, result: object) -> tuple[list[Item], list[str]]:
        """Return what is sent in place of a frame, and notes about it; `result` is that of `on_frame`."""
        if result is None or isinstance(result, Frame):
            result = [result or frame]
        elif isinstance(result, Drop):
            result = []
        if not isinstance(result, list) or not all(isinstance(other, Frame) for other in result):
            raise LocalProtocolError("on_frame returns None, a Frame, a list of Frames or DROP")
        items: list[Item] = []
        notes = [] if result else [f"{frame.command}: dropped"]
        for other in result:
            data, delay = other.encode(), min(other.delay, MAX_DELAY)
            is_answer = other.to_broker != unit.frame.to_broker  # type: ignore[union-attr]
            if is_answer:
                notes.append(f"{frame.command}: answered by {other.command}")
                items.append(Send(data, unit.at, True))
                continue
            replacement = unit if data == unit.data else unit.with_data(data)
            if replacement is not unit:
                change = "changed" if other.raw == unit.data else f"{other.command} added"
                notes.append(f"{frame.command}: {change}")
            if delay > 0:
                notes.append(f"{frame.command}: delayed {delay:g} s")
                items += self._hold(replacement._replace(at=unit.at + delay), notes)
            else:
                items.append(replacement)
        return items, notes

    def _hold(self, unit: Unit, notes: list[str]) -> list[Item]:
        if self._held_bytes + len(unit.data) > MAX_HELD_BYTES:
            notes.append(f"not delayed: {self._held_bytes} bytes wait already")
            return [unit]
        self._order += 1
        self._held_bytes += len(unit.data)
        heappush(self._held, (unit.at, self._order, unit))
        return [Wake(unit.at)]

    def take_due(self, now: float) -> Iterator[Item]:
        """Yield the delayed frames whose time has come."""
        while self._held and self._held[0][0] <= now:
            yield self._release_first()

    def _release_first(self) -> Unit:
        _, _, unit = heappop(self._held)
        self._held_bytes -= len(unit.data)
        return unit

    def release(self) -> Iterator[Item]:
        """Yield all delayed frames, in the order of their times."""
        while self._held:
            yield self._release_first()

    def end(self) -> Iterator[Note]:
        """Call `on_close` if this is the last lane of its connection, and `on_open` was called."""
        pair = self._pair
        pair.lane_count -= 1
        if not pair.lane_count:
            pair.pairs.pop(pair.link.number, None)
            if pair.is_open:
                yield from self._call("on_close")
