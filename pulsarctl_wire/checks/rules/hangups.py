"""Rules about clients that close their connection because of a frame that they are given."""

from itertools import islice
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import Entry, client_of, text_of
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Held
from pulsarctl_wire.checks.rule import CAPTURE, SECOND, Findings, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_CERTAIN_FROM: Final = 3  # connections that ended in the same way
_MAX_CONSUMERS: Final = 1_024  # that are followed at a time
_MAX_ENTRIES: Final = 128  # that one of them got last
_MAX_ENDS: Final = 8  # that one of them was told of
_AT_ONCE: Final = SECOND // 2
"""A client that closes this soon after a frame closes because of it."""

_Key = tuple[str, str, str]
"""A consumer over all connections: its client's host, topic and subscription."""


def _key(consumer: Consumer) -> _Key:
    return client_of(consumer.state.connection), consumer.topic, consumer.subscription


def _closes_at_once(ending: EndedConnection, seen: Sighting) -> bool:
    """Whether the client closes the connection because of this frame."""
    return ending.by_broker is False and 0 <= (ending.end_ns or 0) - seen.time_ns <= _AT_ONCE


class _Loop:
    """Connections that a client has closed right after MESSAGE, and what all of them had got."""

    __slots__ = ("count", "ended_ns", "given", "state")

    def __init__(self, state: CheckState, given: dict[Entry, Held], ended_ns: int) -> None:
        self.state = state  # the first one
        self.given = given  # there
        self.ended_ns = ended_ns  # the last one
        self.count = 1


class ReconnectLoopOnFrame(Rule):
    """The client closes its connection each time it is given the same message, and is given it again.

    Wire: the client closes within 0.5 s after a MESSAGE, without CLOSE_CONSUMER; on its next connection the
    subscription gets the same entry, and the client closes again. Certain from the third connection on. Of
    several such entries the one with a wrong checksum is named, or the lowest.

    Advice: Skip this message for the subscription, and look at what is wrong with it.

    Source: observed with Java 4.0.8 and a payload that does not decompress.
    """

    id = "reconnect_loop_on_frame"
    relies_on = CAPTURE

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._loops: dict[_Key, _Loop] = {}

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The client may have closed because of what it got."""
        given: dict[_Key, dict[Entry, Held]] = {}
        for consumer in state.left_consumers:
            given.setdefault(_key(consumer), {}).update(_given_last(consumer, ending))
        for key, last in given.items():
            if last and self.can_count(state):
                self._add(key, state, last, ending.end_ns or 0)

    def _add(self, key: _Key, state: CheckState, last: dict[Entry, Held], ended_ns: int) -> None:
        """A connection was closed after these entries."""
        loop = self._loops.get(key)
        both = {entry: held for entry, held in loop.given.items() if entry in last} if loop else {}
        if loop is None or not both:
            self._loops[key] = _Loop(state, last, ended_ns)
            bound(self._loops, _MAX_CONSUMERS)
            return
        if state.first_ns < loop.ended_ns:
            return  # another consumer, which got it as well
        loop.given, loop.ended_ns = both, ended_ns
        loop.count += 1
        entry = min(both, key=lambda each: (both[each].intact, each))
        rows = [(each.seen, "client closes") for each in (both[entry], last[entry])]
        text = f"The client has closed its connection {loop.count} times after it was given the same message."
        subject = Subject(key[1], key[2], message_id=text_of(entry))
        certainty = CERTAIN if loop.count >= _CERTAIN_FROM else SUSPECTED
        self.found(loop.state, subject, rows, text, certainty)


def _given_last(consumer: Consumer, ending: EndedConnection) -> dict[Entry, Held]:
    """The unacknowledged entries that a consumer got at once before its client closed the connection."""
    entries = islice(reversed(consumer.entries.items()), _MAX_ENTRIES)
    return {
        entry: held
        for entry, held in entries
        if isinstance(held, Held) and _closes_at_once(ending, held.seen)
    }


class _End:
    """A REACHED_END_OF_TOPIC, and the SUBSCRIBE of the same client after it, on another connection."""

    __slots__ = ("again", "consumer", "hung_up", "seen")

    def __init__(self, consumer: Consumer, seen: Sighting) -> None:
        self.consumer = consumer
        self.seen = seen
        self.again: Sighting | None = None
        self.hung_up = False  # the client closed the connection because of it


class ClientClosesOnEndOfTopic(Rule):
    """The topic has ended; the client does not know the frame that says so and drops its connection.

    Wire: the client closes within 0.5 s of REACHED_END_OF_TOPIC, without CLOSE_CONSUMER, and sends
    SUBSCRIBE again. C++ 4.2.0 and Go 0.19.0 do it twice; Java stays.

    Advice: Harmless if it happens twice, but everything else on that connection is interrupted: update the
    client or stop consuming the terminated topic.

    Source: observed with C++ 4.2.0 and Go 0.19.0.
    """

    id = "client_closes_on_end_of_topic"
    severity = WARNING
    relies_on = CAPTURE
    on: ClassVar = {"REACHED_END_OF_TOPIC": "ended", "SUBSCRIBE": "subscribes"}

    def __init__(self, doctor: Findings) -> None:
        super().__init__(doctor)
        self._ends: dict[_Key, list[_End]] = {}

    def ended(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """REACHED_END_OF_TOPIC."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None else None
        if consumer is not None:
            ends = self._ends.setdefault(_key(consumer), [])
            ends.append(_End(consumer, seen))
            bound(self._ends, _MAX_CONSUMERS)
            del ends[:-_MAX_ENDS]

    def subscribes(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """SUBSCRIBE, maybe again."""
        key = client_of(state.connection), frame.topic or "", frame.subscription or ""
        for end in self._ends.get(key, ()):
            if end.again is None and end.consumer.state is not state:
                end.again = seen
                self._judge(end)

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The client may have closed because of the frame."""
        for consumer in state.left_consumers:
            for end in self._ends.get(_key(consumer), ()):
                if end.consumer is consumer and _closes_at_once(ending, end.seen):
                    end.hung_up = True
                    self._judge(end)

    def _judge(self, end: _End) -> None:
        if end.hung_up and end.again is not None and self.can_count(end.consumer.state):
            rows = [(end.seen, "client closes"), (end.again, "and subscribes again")]
            first = next(each for each in self._ends[_key(end.consumer)] if each.hung_up)
            subject = Subject(end.consumer.topic, end.consumer.subscription)
            self.found(first.consumer.state, subject, rows)
