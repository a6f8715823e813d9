"""What all faults have in common: which frames they are for, and how they are put to work.

A fault is a frozen dataclass; its fields are the parameters that users give, each with a kind (`values.py`)
and a line of help. The fields of `Fault` itself select: by command, topic, filter and direction what matches,
by `nth`, `every`, `times` and `probability` which of the matches it hits.

A lane (`lanes.py`) leads every `Piece` of one direction through the faults in force. What a fault makes of
a piece it hits, it yields: pieces, which the next fault sees, and actions. A fault whose lanes remember
something (bytes on their way, a frame held back) has a `Work` of its own; all others are mere functions.

Invariants: a piece's frame is what its data decodes to; no clock, and no randomness but the lane's own.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.actions import Action
from pulsarctl_wire.faults.values import SHARE, TEXT, TEXTS, Kind, hint, one_of, optional, whole
from pulsarctl_wire.wire.commands import NUMBERS, commands_like
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.stream import FrameStream

TO_BROKER: Final = "to-broker"
TO_CLIENT: Final = "to-client"
_COUNT: Final = whole(1, 10**15)


class Piece(NamedTuple):
    """Bytes on their way: a whole frame as bytes and decoded, or bytes that are none (`frame` None).

    `at` is the time in seconds before which they are not to go on.
    """

    data: bytes
    frame: Frame | None
    at: float

    def changed(self, data: bytes) -> "Piece":
        """The same piece with other bytes; they may be no frame any more."""
        was = self.frame
        if was is None:
            return self._replace(data=data)
        events = FrameStream(was.connection, was.to_broker, limit=len(data)).feed(data, was.time_ns)
        frame = events[0] if events else None
        if not isinstance(frame, Frame):
            return self._replace(data=data, frame=None)
        frame.topic, frame.subscription = was.topic, was.subscription
        return self._replace(data=data, frame=frame)


Item = Piece | Action
"""What faults yield."""


class Place(NamedTuple):
    """What a lane lends a fault: randomness of its own, and the URL that its client came by ("": unknown)."""

    rng: random.Random
    url: str


def option(default: Any, kind: Kind, help: str) -> Any:
    """A field of a fault that users may give."""
    return field(default=default, metadata={"kind": kind, "help": help})


def wrong(fault: str, key: str, value: object, kind: Kind) -> SettingsError:
    """The error that says what `key` of a fault is to be, if not `value`."""
    wanted = hint(str(value), kind.names) if kind.names else f"give {kind.wanted}"
    return SettingsError(f"{fault}: {key}={value!s:.60}: {wanted}")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The base of all faults. Raises SettingsError for a parameter that makes no sense."""

    name: ClassVar[str]
    """What users call it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    of_bytes: ClassVar[bool] = False
    """Whether it is for bytes that are no frames as well; then only as long as nothing is selected."""
    cuts: ClassVar[bool] = False
    """Whether it makes several pieces of a frame: it comes after all that want frames whole."""
    quiet: ClassVar[bool] = False
    """Whether nobody wants to be told of each hit, as long as nothing is selected."""

    command: tuple[str, ...] = option(
        (), TEXTS, "commands, in any case, with * and ?: SEND_RECEIPT,*_SUCCESS"
    )
    topic: tuple[str, ...] = option((), TEXTS, "topics, with * and ?")
    filter: str = option("", TEXT, "a filter expression over the frame's JSON, as of decode --filter")
    direction: str = option("both", one_of(TO_BROKER, TO_CLIENT, "both"), "to-broker, to-client or both")
    nth: int | None = option(None, optional(_COUNT), "only the nth match, counted from 1")
    every: int | None = option(None, optional(_COUNT), "only each second, third, … match")
    times: int | None = option(None, optional(_COUNT), "at most so many hits")
    probability: float = option(1.0, SHARE, "how likely a match is hit, by the seed")
    per: str = option(
        "proxy",
        one_of("proxy", "connection"),
        "where to count: over the proxy, or in each direction of each connection",
    )

    def __post_init__(self) -> None:
        for each in fields(self):  # what a fault is made of can be typed, and is as if it had been
            kind: Kind = each.metadata["kind"]
            value = getattr(self, each.name)
            try:
                object.__setattr__(self, each.name, kind.read(kind.show(value)))
            except (ValueError, TypeError, AttributeError):
                raise wrong(self.name, each.name, value, kind) from None
        if self.nth and self.every:
            raise SettingsError(f"{self.name}: nth and every exclude each other; give one of them")
        self.check()
        self.wanted_types()

    def check(self) -> None:
        """Raise SettingsError for parameters that do not fit together."""

    def able(self) -> frozenset[int] | None:
        """Type numbers of the commands that it can do something to; None: all."""
        return None

    @property
    def selects(self) -> bool:
        """Whether anything says which frames are meant."""
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
            raise SettingsError(f"{self.name}: nothing to do for {', '.join(self.command)}; it takes {those}")
        return wanted & able

    def _numbers(self, pattern: str) -> set[int]:
        found = commands_like(pattern)
        if not found:
            raise SettingsError(f"{self.name}: command={pattern}: no such command; {hint(pattern, NUMBERS)}")
        return found

    def fits(self, frame: Frame) -> bool:
        """Whether there is anything in this frame, of a type that matches, that it can work on."""
        return True

    def apply(self, piece: Piece, place: Place) -> Iterable[Item]:
        """What becomes of a piece that it hits."""
        raise NotImplementedError

    def at_work(self, place: Place) -> "Work":
        """The fault in one lane."""
        return Work(self, place)


class Work:
    """A fault at work in one lane. This one remembers nothing."""

    busy = False
    """Whether it cannot take another hit now."""

    def __init__(self, fault: Any, place: Place) -> None:
        self.fault = fault
        self.place = place

    def hit(self, piece: Piece) -> Iterable[Item]:
        """What becomes of a piece that the fault hits."""
        return self.fault.apply(piece, self.place)  # type: ignore[no-any-return]

    def passing(self, piece: Piece) -> Iterable[Item]:
        """What becomes of one that it does not."""
        return (piece,)

    def due(self, now: float) -> Iterable[Item]:
        """What was held back until now."""
        return ()

    def rest(self) -> Iterable[Item]:
        """What is held back still, at the end of the direction or of the fault."""
        return ()
