"""The base of all faults: how they select frames, and what they return.

Each field of a fault has a kind (`values.py`) and a line of help. The fields of `Fault` itself select frames:
command, topic, filter and direction say which frames match, and `nth`, `every`, `times` and `probability`
which of these are hit.

A lane (`lanes.py`) passes every `Unit` of one direction through all faults in force. A fault that hits a unit
yields units, which go to the next fault, and actions. A fault that must remember something in each lane (the
time at which the line is free, a frame held back) has its own `FaultState`; all others only count.

Invariants: a unit's frame is its decoded data; faults use no clock, and no randomness but `LaneContext.rng`.
Times are in seconds of the clock that the lane's caller uses for `now`.
"""

import inspect
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.values import SHARE, TEXT, TEXTS, Kind, hint, one_of, optional, whole
from pulsarctl_wire.wire.commands import NUMBERS, commands_like
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

TO_BROKER: Final = "to-broker"
TO_CLIENT: Final = "to-client"
ANSWERED_FOR_PEER: Final = "answered in the peer's place"
"""What was done to a frame that is sent back as if it were an answer."""

_COUNT: Final = whole(1, 10**15)


class Send(NamedTuple):
    """Send `data`, not before time `at`; `back`: to the sender of the frame, as if it were an answer.

    In one direction a later Send never overtakes an earlier one, even if its time is earlier. `change` says
    what was done to the frame; "": nothing.
    """

    data: bytes
    at: float
    back: bool = False
    change: str = ""

    @property
    def outcome(self) -> str:
        """What was done to the frame; one that is sent back unchanged is an answer."""
        return self.change or (ANSWERED_FOR_PEER if self.back else "")


class Close(NamedTuple):
    """Close both sides (FIN) once everything before it was sent."""


class Reset(NamedTuple):
    """Reset both sides (RST) once everything before it was sent."""


class Blackhole(NamedTuple):
    """Keep the connection open, but pass nothing more in either direction."""


class Wake(NamedTuple):
    """Call the lane again, without data, at time `at`."""

    at: float


class Note(NamedTuple):
    """A message for the user about what was done: "#2 drop: SEND_RECEIPT producer 0 sequence 5".

    It may contain topics as clients sent them: callers must escape it before they print it.
    """

    text: str


Action = Send | Close | Reset | Blackhole | Wake | Note
"""The results of a lane, to be carried out in order by the owner of the sockets."""


class Unit(NamedTuple):
    """A unit of traffic: a whole frame, as bytes and decoded, or other bytes (`frame` is None).

    `at` is the time in seconds before which it must not be sent. `change` is as in `Send`.
    """

    data: bytes
    frame: Frame | None
    at: float
    change: str = ""

    def with_data(self, data: bytes) -> "Unit":
        """Return the unit with other bytes, which need not be a frame any more."""
        old, change = self.frame, self.change or "changed"
        if old is None:
            return self._replace(data=data, change=change)
        events = FrameStream(old.connection, old.to_broker, limit=len(data)).feed(data, old.time_ns)
        frame = events[0] if events else None
        if not isinstance(frame, Frame):
            return self._replace(data=data, frame=None, change=change)
        frame.topic, frame.subscription = old.topic, old.subscription
        return self._replace(data=data, frame=frame, change=change)


Item = Unit | Action
"""The results of a fault."""


class Decision(NamedTuple):
    """What becomes of a held frame: the frames that go on in its place, and those that go to its sender."""

    frames: tuple[bytes, ...]
    answers: tuple[bytes, ...] = ()


class HeldFrame:
    """A frame that is held. It goes on at `until` (seconds of its lane's clock) if there is no `decision`."""

    __slots__ = ("decision", "number", "unit", "until")

    def __init__(self, number: int, unit: Unit, until: float) -> None:
        self.number = number
        self.unit = unit
        self.until = until
        self.decision: Decision | None = None


class HeldFrames:
    """All frames that are held, by numbers that are never used again."""

    def __init__(self) -> None:
        self._frames: dict[int, HeldFrame] = {}
        self._last = 0

    def add(self, unit: Unit, until: float) -> HeldFrame:
        """Add a frame."""
        self._last += 1
        held = self._frames[self._last] = HeldFrame(self._last, unit, until)
        return held

    def list(self) -> list[HeldFrame]:
        """Return the frames about which nobody has decided yet, in the order in which they came."""
        return [held for held in self._frames.values() if held.decision is None]

    def decide(self, number: int, decision: Decision | None) -> None:
        """Decide about a frame; None: it goes on as it came. Raises KeyError if none waits for a decision."""
        held = self._frames[number]
        if held.decision is not None:
            raise KeyError(number)
        held.decision = Decision((held.unit.data,)) if decision is None else decision

    def forget(self, held: HeldFrame) -> None:
        """Forget a frame that is no longer held."""
        self._frames.pop(held.number, None)


class LaneContext(NamedTuple):
    """What a lane has for a fault.

    `rng` is the random generator of this fault in this lane, `url` the service URL that the client used
    ("": unknown), `connection` the connection's number. `held` are the frames held on all connections.
    """

    rng: random.Random
    url: str
    connection: int
    held: HeldFrames


def option(default: Any, kind: Kind, help: str) -> Any:
    """Declare a field of a fault, which users can set."""
    return field(default=default, metadata={"kind": kind, "help": help})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The base of all faults. Parameters may be given as text. Raises SettingsError for invalid ones."""

    name: ClassVar[str]
    """The name by which users give it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    can_hit_bytes: ClassVar[bool] = False
    """Whether the fault also applies to bytes that are not frames, provided that it selects no frames."""
    can_split_frames: ClassVar[bool] = False
    """Whether the fault splits frames: it is then applied after all faults that need whole frames."""
    is_quiet: ClassVar[bool] = False
    """Whether hits are not noted, provided that the fault selects no frames."""

    command: tuple[str, ...] = option(
        (), TEXTS, "commands, upper or lower case, with * and ?: SEND_RECEIPT,*_SUCCESS"
    )
    topic: tuple[str, ...] = option((), TEXTS, "topics, with * and ?")
    filter: str = option("", TEXT, "a filter expression over the frame's JSON, as for decode --filter")
    direction: str = option("both", one_of(TO_BROKER, TO_CLIENT, "both"), "to-broker, to-client or both")
    nth: int | None = option(None, optional(_COUNT), "only the nth match, counted from 1")
    every: int | None = option(None, optional(_COUNT), "only every nth match")
    times: int | None = option(None, optional(_COUNT), "maximum number of hits")
    probability: float = option(1.0, SHARE, "probability that a match is hit; decided by the seed")
    per: str = option(
        "proxy",
        one_of("proxy", "connection"),
        "where to count: over the proxy, or in each direction of each connection",
    )

    def __post_init__(self) -> None:
        for parameter in fields(self):  # normalize: a value and its text must make equal faults
            kind: Kind = parameter.metadata["kind"]
            name, value = parameter.name, getattr(self, parameter.name)
            try:
                text = value if isinstance(value, str) else kind.show(value)
                object.__setattr__(self, name, kind.read(text))
            except (LookupError, ValueError, TypeError, AttributeError):
                advice = hint(str(value), kind.names) if kind.names else f"give {kind.description}"
                raise SettingsError(f"{self.name}: {name}={value!s:.60}: {advice}") from None
        if self.nth and self.every:
            raise SettingsError(f"{self.name}: nth and every exclude each other; give one of them")
        self.check()
        self.find_matching_types()  # raises if none match

    @classmethod
    def describe(cls) -> str:
        """Return what the fault does, as help for users."""
        return (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")

    @classmethod
    def list_parameters(cls) -> list[tuple[str, str, str]]:
        """Return name, default ("": none) and help of its own parameters; for `Fault`, of the common ones."""
        common = () if cls is Fault else [parameter.name for parameter in fields(Fault)]
        return [
            (parameter.name, parameter.metadata["kind"].show(parameter.default), parameter.metadata["help"])
            for parameter in fields(cls)
            if parameter.name not in common
        ]

    def check(self) -> None:
        """Raise SettingsError for parameters that contradict each other."""

    def find_possible_types(self) -> frozenset[int] | None:
        """Return the type numbers of the commands that the fault can be applied to; None: all."""
        return None

    @property
    def has_selection(self) -> bool:
        """Whether the fault is for certain frames; `direction`, `times` and `probability` do not count."""
        return bool(self.command or self.topic or self.filter or self.nth or self.every)

    def find_matching_types(self) -> frozenset[int] | None:
        """Return the type numbers of commands that match; None: all. Raises SettingsError if none match."""
        possible = self.find_possible_types()
        if not self.command:
            return possible
        selected = frozenset[int]().union(*(self._numbers(pattern) for pattern in self.command))
        if possible is None:
            return selected
        if not selected & possible:
            names = ", ".join(name for name, number in NUMBERS.items() if number in possible)
            raise SettingsError(f"{self.name}: not for {', '.join(self.command)}; it applies to {names}")
        return selected & possible

    def _numbers(self, pattern: str) -> set[int]:
        numbers = commands_like(pattern)
        if not numbers:
            raise SettingsError(f"{self.name}: command={pattern}: no such command; {hint(pattern, NUMBERS)}")
        return numbers

    def can_apply(self, frame: Frame) -> bool:
        """Return whether the fault can be applied to this frame, whose type matches."""
        return True

    def apply(self, unit: Unit, context: LaneContext) -> Iterable[Item]:
        """Yield what becomes of a unit that the fault hits."""
        raise NotImplementedError

    def new_state(self, context: LaneContext) -> "FaultState":
        """Return the state of the fault in one lane."""
        return FaultState(self, context)


class Count:
    """The numbers of units that matched, and of those that were hit."""

    __slots__ = ("hits", "matched")

    def __init__(self) -> None:
        self.matched = self.hits = 0


class FaultState:
    """The state of a fault in one lane: what it has matched and hit. Subclasses remember more."""

    is_busy = False
    """Whether the fault cannot hit another unit now."""

    def __init__(self, fault: Any, context: LaneContext) -> None:
        self.fault = fault
        self.context = context
        self.count = Count()

    def hit(self, unit: Unit) -> Iterable[Item]:
        """Yield what becomes of a unit that the fault hits."""
        return self.fault.apply(unit, self.context)  # type: ignore[no-any-return]

    def pass_on(self, unit: Unit) -> Iterable[Item]:
        """Yield what becomes of a unit that the fault does not hit."""
        return (unit,)

    def take_due(self, now: float) -> Iterable[Item]:
        """Yield the items held back that are due at `now` (seconds)."""
        return ()

    def release(self) -> Iterable[Item]:
        """Yield all items still held back; called when the direction ends or the fault is removed."""
        return ()

    def end(self) -> Iterable[Note]:
        """Yield notes about the end of the lane; called once, when it ends or the fault is removed."""
        return ()
