"""The faults in force, and the lanes whose traffic they meet.

    Faults       numbered faults with their counts, changeable while traffic flows
      Lane       one direction of one connection: pieces in, actions out
        Station  one fault in one lane

A piece goes from station to station in the order in which the faults were added, those that cut frames last.
Faults that were added or removed take effect with the next call of a lane; what a removed one held goes on.

Each station has randomness of its own, from the seed, the fault's number, the connection's and the direction:
what happens in a lane does not depend on how the traffic of others mixes with its own, unless a fault counts
over the whole proxy (`per`).
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.actions import Action, Blackhole, Close, Note, Reset, Send
from pulsarctl_wire.faults.base import TO_BROKER, TO_CLIENT, Fault, Item, Piece, Place
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame

Test = Callable[[Frame], bool]

_IDS: Final = (
    *("request_id", "producer_id", "consumer_id", "watch_id", "watcher_id", "session_id"),
    *("sequence_id", "message_id", "topic"),
)
"""Fields that tell a frame from others, in the order in which they are said."""


class Count:
    """How many pieces matched, and how many of them were hit."""

    __slots__ = ("hits", "matched")

    def __init__(self) -> None:
        self.matched = self.hits = 0


class Listed(NamedTuple):
    """A fault in force: its number, and how many frames (or pieces of other bytes) matched and were hit."""

    number: int
    fault: Fault
    matched: int
    hits: int


class _Rule:
    """A fault in force, with its counts over all lanes."""

    __slots__ = ("count", "fault", "number", "test", "types")

    def __init__(self, number: int, fault: Fault, test: Test | None) -> None:
        self.number = number
        self.fault = fault
        self.test = test
        self.types = fault.wanted_types()
        self.count = Count()

    def matches(self, frame: Frame | None) -> bool:
        """Whether the fault is for this frame, or for bytes that are none."""
        if frame is None:
            return self.fault.of_bytes and not self.fault.selects
        if self.types is not None and frame.type not in self.types:
            return False
        return self.fault.fits(frame) and (self.test is None or self.test(frame))


class Faults:
    """All faults in force.

    `seed` decides what is left to chance. `tester` gives the test of a fault's `topic` and `filter` (and may
    raise for them; directions and commands are tested here). `url` is the service URL that clients reach
    the proxy by, unless a lane has its own.
    """

    def __init__(
        self, seed: int, tester: Callable[[Fault], Test | None] | None = None, url: str = ""
    ) -> None:
        self.seed = seed
        self.url = url
        self._tester = tester
        self._last = 0
        self._rules: dict[int, _Rule] = {}
        self._version = 0
        """Changes whenever the faults do."""

    def add(self, fault: Fault) -> int:
        """Put `fault` into force; give its number, which no other fault will have.

        Raises what the tester does, and SettingsError where there is none for a topic or filter.
        """
        if self._tester is None and (fault.topic or fault.filter):
            raise SettingsError(f"{fault.name}: topic and filter are not to be had here")
        test = self._tester(fault) if self._tester is not None else None
        self._last += 1
        self._rules[self._last] = _Rule(self._last, fault, test)
        self._version += 1
        return self._last

    def remove(self, number: int) -> None:
        """Take a fault out of force. Raises KeyError for a number that none has."""
        del self._rules[number]
        self._version += 1

    def clear(self) -> None:
        """Take all out of force."""
        self._rules.clear()
        self._version += 1

    def __bool__(self) -> bool:
        return bool(self._rules)

    def listing(self) -> list[Listed]:
        """The faults in force, in the order they were added."""
        return [
            Listed(rule.number, rule.fault, rule.count.matched, rule.count.hits)
            for rule in self._rules.values()
        ]

    def lane(self, connection: int, to_broker: bool, url: str = "") -> "Lane":
        """A lane for one direction of connection number `connection`, whose client came by `url`."""
        return Lane(self, connection, to_broker, url or self.url)


class _Station:
    """A fault at work in a lane."""

    __slots__ = ("_count", "_rng", "rule", "work")

    def __init__(self, rule: _Rule, place: Place) -> None:
        self.rule = rule
        self.work = rule.fault.at_work(place)
        self._rng = place.rng
        self._count = rule.count if rule.fault.per == "proxy" else Count()

    def take(self, piece: Piece) -> Iterator[Item]:
        """What becomes of a piece here."""
        if not (self.rule.matches(piece.frame) and self._hits()):
            yield from self.work.passing(piece)
            return
        fault = self.rule.fault
        if fault.selects or not fault.quiet:
            yield Note(f"#{self.rule.number} {fault.name}: {_brief(piece)}")
        yield from self.work.hit(piece)

    def _hits(self) -> bool:
        """Count a match; whether it is one to hit."""
        fault, count, total = self.rule.fault, self._count, self.rule.count
        count.matched += 1
        hit = not (
            self.work.busy
            or (fault.nth and count.matched != fault.nth)
            or (fault.every and count.matched % fault.every)
            or (fault.times and count.hits >= fault.times)
            or (fault.probability < 1 and self._rng.random() >= fault.probability)
        )
        count.hits += hit
        if total is not count:
            total.matched += 1
            total.hits += hit
        return hit


class Lane:
    """One direction of one connection, and the faults its traffic meets.

    Nothing here raises for what was received.
    """

    def __init__(self, faults: Faults, connection: int, to_broker: bool, url: str) -> None:
        self._faults = faults
        self._connection = connection
        self._to_broker = to_broker
        self._url = url
        self._stations: list[_Station] = []
        self._version = -1
        self._over = False

    def take(self, data: bytes, frame: Frame | None, now: float) -> list[Action]:
        """What to do at time `now` (seconds) about `data`: a whole frame, decoded as `frame`, or other bytes.

        Without data: a Wake came due. After the end of the connection there is nothing to do.
        """
        actions: list[Action] = []
        if self._version != self._faults._version:
            self._renew(actions)
        for index, station in enumerate(self._stations):
            if due := station.work.due(now):
                self._lead(due, index + 1, actions)
        if data:
            self._lead((Piece(data, frame, now),), 0, actions)
        return actions

    def released(self) -> bool:
        """Whether a fault that was at work here is not in force any more."""
        return any(station.rule.number not in self._faults._rules for station in self._stations)

    def flush(self, now: float) -> list[Action]:
        """What to do when the direction has ended: all that is held back goes out."""
        actions = self.take(b"", None, now)
        for index, station in enumerate(self._stations):
            self._lead(station.work.rest(), index + 1, actions)
        return actions

    def _renew(self, actions: list[Action]) -> None:
        """Take over what was added and removed."""
        rules = self._faults._rules
        for index, station in enumerate(self._stations):
            if station.rule.number not in rules:
                self._lead(station.work.rest(), index + 1, actions)
        known = {station.rule.number: station for station in self._stations}
        ways = ("both", TO_BROKER if self._to_broker else TO_CLIENT)
        wanted = [rule for rule in rules.values() if rule.fault.direction in ways]
        wanted.sort(key=lambda rule: rule.fault.cuts)
        self._stations = [known.get(rule.number) or self._station(rule) for rule in wanted]
        self._version = self._faults._version

    def _station(self, rule: _Rule) -> _Station:
        seed = f"{self._faults.seed} {rule.number} {self._connection} {self._to_broker}"
        return _Station(rule, Place(random.Random(seed), self._url))

    def _lead(self, items: Iterable[Item], start: int, actions: list[Action]) -> None:
        """Lead `items` through the stations from `start` on, one by one; add the actions that come of it."""
        for station in self._stations[start:]:
            items = _through(station, items)
        if self._over:
            return
        for item in items:
            if isinstance(item, Piece):
                actions.append(Send(item.data, item.at))
            else:
                actions.append(item)
                if isinstance(item, (Close, Reset, Blackhole)):
                    self._over = True
                    return


def _through(station: _Station, items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Piece):
            yield from station.take(item)
        else:
            yield item


def _brief(piece: Piece) -> str:
    """A piece in a few words: "SEND_RECEIPT producer 0 sequence 5"."""
    frame = piece.frame
    if frame is None:
        return f"{len(piece.data)} bytes"
    body, words = frame.body, [frame.command]
    fields = body.DESCRIPTOR.fields_by_name if body is not None else {}
    for name in _IDS:
        field = fields.get(name)
        if field is not None and field.has_presence and body.HasField(name):
            words += [name.removesuffix("_id"), _shown(getattr(body, name))]
    return " ".join(words)


def _shown(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return as_text(value)[:200]
    return f"{value.ledgerId}:{value.entryId}" if hasattr(value, "ledgerId") else str(value)
