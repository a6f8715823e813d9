"""The base of all faults: how they select frames, and what they return.

Each field of a fault has a kind (`values.py`) and a line of help. The fields of `Fault` itself select frames:
command, topic, filter and direction say which frames match, and `nth`, `every`, `times` and `probability`
which of these are hit.

A lane (`lanes.py`) passes every `Unit` of one direction through all faults in force. A fault that hits a unit
yields units, which go to the next fault, and actions. A fault that must remember something in each lane (the
time at which the line is free, a frame held back) has its own `FaultState`; all others have no state.

Invariants: a unit's frame is its decoded data; faults use no clock, and no randomness but the lane's. Times
are in seconds of the clock that the lane's caller uses for `now`.
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
_COUNT: Final = whole(1, 10**15)


class Send(NamedTuple):
    """Send `data`, not before time `at`; `back`: to the sender of the frame, as if it were an answer.

    In one direction a later Send never overtakes an earlier one, even if its time is earlier.
    """

    data: bytes
    at: float
    back: bool = False


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
"""What a lane returns, to be carried out in order by the owner of the sockets."""


class Unit(NamedTuple):
    """A unit of traffic: a whole frame, as bytes and decoded, or other bytes (`frame` is None).

    `at` is the time in seconds before which it must not be sent.
    """

    data: bytes
    frame: Frame | None
    at: float

    def changed(self, data: bytes) -> "Unit":
        """The same unit with other bytes, which need not be a frame any more."""
        was = self.frame
        if was is None:
            return self._replace(data=data)
        events = FrameStream(was.connection, was.to_broker, limit=len(data)).feed(data, was.time_ns)
        frame = events[0] if events else None
        if not isinstance(frame, Frame):
            return self._replace(data=data, frame=None)
        frame.topic, frame.subscription = was.topic, was.subscription
        return self._replace(data=data, frame=frame)


Item = Unit | Action
"""What faults yield."""


class LaneContext(NamedTuple):
    """What a lane gives a fault: its own random generator, and the URL that the client used ("": unknown)."""

    rng: random.Random
    url: str


def option(default: Any, kind: Kind, help: str) -> Any:
    """A field of a fault, which users can set."""
    return field(default=default, metadata={"kind": kind, "help": help})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The base of all faults. Parameters may be given as text. Raises SettingsError for invalid ones."""

    name: ClassVar[str]
    """The name by which users give it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    of_bytes: ClassVar[bool] = False
    """Whether it also applies to bytes that are not frames, provided that it selects nothing."""
    cuts: ClassVar[bool] = False
    """Whether it splits frames: it is then applied after all faults that need whole frames."""
    quiet: ClassVar[bool] = False
    """Whether its hits are not noted, provided that it selects nothing."""

    command: tuple[str, ...] = option(
        (), TEXTS, "commands, upper or lower case, with * and ?: SEND_RECEIPT,*_SUCCESS"
    )
    topic: tuple[str, ...] = option((), TEXTS, "topics, with * and ?")
    filter: str = option("", TEXT, "a filter expression over the frame's JSON, as of decode --filter")
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
        for each in fields(self):  # normalize: a value and its text must make equal faults
            kind: Kind = each.metadata["kind"]
            value = getattr(self, each.name)
            try:
                text = value if isinstance(value, str) else kind.show(value)
                object.__setattr__(self, each.name, kind.read(text))
            except (LookupError, ValueError, TypeError, AttributeError):
                wanted = hint(str(value), kind.names) if kind.names else f"give {kind.wanted}"
                raise SettingsError(f"{self.name}: {each.name}={value!s:.60}: {wanted}") from None
        if self.nth and self.every:
            raise SettingsError(f"{self.name}: nth and every exclude each other; give one of them")
        self.check()
        self.wanted_types()

    @classmethod
    def about(cls) -> str:
        """What it does, as help for users."""
        return (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ")

    @classmethod
    def parameters(cls) -> list[tuple[str, str, str]]:
        """Name, default ("": none) and help of its own parameters; for `Fault`, of the common ones."""
        common = () if cls is Fault else [each.name for each in fields(Fault)]
        return [
            (each.name, each.metadata["kind"].show(each.default), each.metadata["help"])
            for each in fields(cls)
            if each.name not in common
        ]

    def check(self) -> None:
        """Raise SettingsError for parameters that contradict each other."""

    def able(self) -> frozenset[int] | None:
        """Type numbers of the commands that it can be applied to; None: all."""
        return None

    @property
    def selects(self) -> bool:
        """Whether any parameter selects frames."""
        return bool(self.command or self.topic or self.filter or self.nth or self.every)

    def wanted_types(self) -> frozenset[int] | None:
        """Type numbers of the commands that match; None: all. Raises SettingsError if that leaves none."""
        able = self.able()
        if not self.command:
            return able
        wanted = frozenset[int]().union(*(self._numbers(pattern) for pattern in self.command))
        if able is None:
            return wanted
        if not wanted & able:
            those = ", ".join(name for name, number in NUMBERS.items() if number in able)
            raise SettingsError(f"{self.name}: not for {', '.join(self.command)}; it applies to {those}")
        return wanted & able

    def _numbers(self, pattern: str) -> set[int]:
        found = commands_like(pattern)
        if not found:
            raise SettingsError(f"{self.name}: command={pattern}: no such command; {hint(pattern, NUMBERS)}")
        return found

    def fits(self, frame: Frame) -> bool:
        """Whether it can be applied to this frame, whose type matches."""
        return True

    def apply(self, unit: Unit, context: LaneContext) -> Iterable[Item]:
        """What it makes of a unit that it hits."""
        raise NotImplementedError

    def new_state(self, context: LaneContext) -> "FaultState":
        """The state of the fault in one lane."""
        return FaultState(self, context)


class Count:
    """How many units matched, and how many of those were hit."""

    __slots__ = ("hits", "matched")

    def __init__(self) -> None:
        self.matched = self.hits = 0


class FaultState:
    """A fault in one lane. This base class has no state; subclasses do."""

    busy = False
    """Whether it cannot hit another unit now."""

    def __init__(self, fault: Any, context: LaneContext) -> None:
        self.fault = fault
        self.context = context
        self.count = Count()

    def hit(self, unit: Unit) -> Iterable[Item]:
        """What the fault makes of a unit that it hits."""
        return self.fault.apply(unit, self.context)  # type: ignore[no-any-return]

    def passing(self, unit: Unit) -> Iterable[Item]:
        """What it makes of a unit that it does not hit."""
        return (unit,)

    def due(self, now: float) -> Iterable[Item]:
        """Items held back that are due at `now`."""
        return ()

    def rest(self) -> Iterable[Item]:
        """All items still held back; called when the direction ends or the fault is removed."""
        return ()
