"""Applies the faults in force to the traffic of a proxy's connections.

    Faults       numbered faults with their counts; can be changed while traffic flows
      FaultLane  one direction of one connection: units in, actions out

A unit passes through the faults in the order in which they were added, but those that split frames come last.
Added and removed faults take effect at the next call of a lane; what a removed fault held back is sent on.

In each lane a fault has its own random generator, seeded by the seed, its number, the connection's number and
the direction. So what happens in a lane does not depend on the timing of other lanes, unless a fault counts
over the whole proxy (`per`).
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import (
    TO_BROKER,
    TO_CLIENT,
    Action,
    Blackhole,
    Close,
    Count,
    Fault,
    FaultState,
    HeldFrames,
    Item,
    LaneContext,
    Note,
    Reset,
    Send,
    Unit,
)
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame

Test = Callable[[Frame], bool]

_IDS: Final = (
    *("request_id", "producer_id", "consumer_id", "watch_id", "watcher_id", "session_id"),
    *("sequence_id", "message_id", "topic"),
)
"""Fields that identify a frame, in the order in which they are shown."""


class ActiveFault(Count):
    """A fault in force, its number, and its counts over all lanes.

    Each function in `watchers` is called after a hit, and when the fault was removed.
    """

    __slots__ = ("fault", "number", "test", "types", "watchers")

    def __init__(self, number: int, fault: Fault, test: Test | None) -> None:
        super().__init__()
        self.number = number
        self.fault = fault
        self.test = test
        self.types = fault.find_matching_types()
        self.watchers: list[Callable[[], None]] = []

    def notify(self) -> None:
        """Call the watchers."""
        for watcher in self.watchers:
            watcher()

    def can_hit(self, frame: Frame | None) -> bool:
        """Return whether the fault applies to this frame, or (None) to bytes that are not a frame."""
        if frame is None:
            return self.fault.can_hit_bytes and not self.fault.has_selection
        if self.types is not None and frame.type not in self.types:
            return False
        return self.fault.can_apply(frame) and (self.test is None or self.test(frame))

    def take(self, unit: Unit, state: FaultState) -> Iterator[Item]:
        """Apply the fault to `unit` in the lane of `state`; yield units and actions."""
        if not (self.can_hit(unit.frame) and self._count_match(state)):
            yield from state.pass_on(unit)
            return
        if self.fault.has_selection or not self.fault.is_quiet:
            yield Note(f"#{self.number} {self.fault.name}: {_describe(unit)}")
        yield from state.hit(unit)

    def _count_match(self, state: FaultState) -> bool:
        """Count a match; return whether to hit it."""
        fault = self.fault
        count = self if fault.per == "proxy" else state.count
        count.matched += 1
        hit = not (
            state.is_busy
            or (fault.nth and count.matched != fault.nth)
            or (fault.every and count.matched % fault.every)
            or (fault.times and count.hits >= fault.times)
            or (fault.probability < 1 and state.context.rng.random() >= fault.probability)
        )
        count.hits += hit
        if count is not self:
            self.matched += 1
            self.hits += hit
        if hit:
            self.notify()
        return hit


class Faults:
    """All faults in force.

    `seed` is the seed of all randomness. `tester` returns the test for a fault's `topic` and `filter`; it may
    raise if they are invalid. Directions and commands are tested here.
    """

    def __init__(self, seed: int, tester: Callable[[Fault], Test | None] | None = None) -> None:
        self.seed = seed
        self._tester = tester
        self._last = 0
        self._in_force: dict[int, ActiveFault] = {}
        self._version = 0  # changes whenever the faults do
        self.held = HeldFrames()

    def add(self, fault: Fault) -> int:
        """Put `fault` into force; return its number, which is never used again.

        Raises the tester's errors, and SettingsError for a topic or filter if there is no tester.
        """
        if self._tester is None and (fault.topic or fault.filter):
            raise SettingsError(f"{fault.name}: topic and filter are not available here")
        test = self._tester(fault) if self._tester is not None else None
        self._last += 1
        self._in_force[self._last] = ActiveFault(self._last, fault, test)
        self._version += 1
        return self._last

    def remove(self, number: int) -> None:
        """Remove a fault. Raises KeyError for an unknown number."""
        active_fault = self._in_force.pop(number)
        self._version += 1
        active_fault.notify()

    def clear(self) -> None:
        """Remove all faults."""
        for number in list(self._in_force):
            self.remove(number)

    def __bool__(self) -> bool:
        return bool(self._in_force)

    def get(self, number: int) -> ActiveFault | None:
        """Return a fault in force, by number."""
        return self._in_force.get(number)

    def list_active(self) -> list[ActiveFault]:
        """Return the faults in force, in the order in which they were added."""
        return list(self._in_force.values())


class FaultLane:
    """Applies faults to one direction of a connection, whose client used the service URL `url`.

    Received data never makes it raise an error.
    """

    def __init__(self, faults: Faults, connection: int, to_broker: bool, url: str = "") -> None:
        self._faults = faults
        self._connection = connection
        self._to_broker = to_broker
        self._url = url
        self._active: list[tuple[ActiveFault, FaultState]] = []
        self._version = -1
        self._has_ended = False

    def take(self, data: bytes, frame: Frame | None, now: float) -> list[Action]:
        """Return the actions for `data` at time `now` (seconds): a whole frame, decoded as `frame`, or bytes.

        Call it with empty data when a Wake is due. After Close, Reset or Blackhole there are no more actions.
        """
        actions: list[Action] = []
        if self._version != self._faults._version:
            self._update_faults(actions)
        for index, (_, state) in enumerate(self._active):
            if due := state.take_due(now):
                self._apply(due, index + 1, actions)
        if data:
            self._apply((Unit(data, frame, now),), 0, actions)
        return actions

    def has_removed_faults(self) -> bool:
        """Return whether a fault of this lane was removed since the last call of `take`."""
        return any(active_fault.number not in self._faults._in_force for active_fault, _ in self._active)

    def flush(self, now: float) -> list[Action]:
        """Return the actions when the direction has ended: send everything held back."""
        actions = self.take(b"", None, now)
        for index, (_, state) in enumerate(self._active):
            self._apply(state.release(), index + 1, actions)
        return actions

    def end(self) -> list[Note]:
        """End the lane, whether it was flushed or not; return notes about that."""
        active, self._active = self._active, []
        return [note for _, state in active for note in state.end()]

    def _update_faults(self, actions: list[Action]) -> None:
        """Apply added and removed faults."""
        in_force = self._faults._in_force
        for index, (active_fault, state) in enumerate(self._active):
            if active_fault.number not in in_force:
                self._apply(state.release(), index + 1, actions)
                actions += state.end()
        states = {active_fault.number: state for active_fault, state in self._active}
        directions = ("both", TO_BROKER if self._to_broker else TO_CLIENT)
        in_lane = [item for item in in_force.values() if item.fault.direction in directions]
        in_lane.sort(key=lambda item: item.fault.can_split_frames)
        self._active = [(item, states.get(item.number) or self._new_state(item)) for item in in_lane]
        self._version = self._faults._version

    def _new_state(self, active_fault: ActiveFault) -> FaultState:
        seed = f"{self._faults.seed} {active_fault.number} {self._connection} {self._to_broker}"
        return active_fault.fault.new_state(
            LaneContext(random.Random(seed), self._url, self._connection, self._faults.held)
        )

    def _apply(self, items: Iterable[Item], start: int, actions: list[Action]) -> None:
        """Apply the faults from index `start` on to `items`, one by one; append the resulting actions."""
        for active_fault, state in self._active[start:]:
            items = _apply_fault(active_fault, state, items)
        if self._has_ended:
            return
        for item in items:
            if isinstance(item, Unit):
                actions.append(Send(item.data, item.at, change=item.change))
            else:
                actions.append(item)
                if isinstance(item, (Close, Reset, Blackhole)):
                    self._has_ended = True
                    return


def _apply_fault(active_fault: ActiveFault, state: FaultState, items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Unit):
            yield from active_fault.take(item, state)
        else:
            yield item


def _describe(unit: Unit) -> str:
    """Return a short description of a unit: "SEND_RECEIPT producer 0 sequence 5"."""
    frame = unit.frame
    if frame is None:
        return f"{len(unit.data)} bytes"
    body, words = frame.body, [frame.command]
    fields = body.DESCRIPTOR.fields_by_name if body is not None else {}
    for name in _IDS:
        field = fields.get(name)
        if field is not None and field.has_presence and body.HasField(name):
            words += [name.removesuffix("_id"), _format_value(getattr(body, name))]
    return " ".join(words)


def _format_value(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return as_text(value)[:200]
    return f"{value.ledgerId}:{value.entryId}" if hasattr(value, "ledgerId") else str(value)
