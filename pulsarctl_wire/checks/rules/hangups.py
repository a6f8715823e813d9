"""Rules about clients that close their connection because of a frame."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import Entry, find_client_host, format_entry
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, UnackedDelivery
from pulsarctl_wire.checks.rule import CAPTURE, SECOND, Reporter, Rule
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound

_CERTAIN_FROM: Final = 3  # connections that ended in the same way
_MAX_CONSUMERS: Final = 1_024  # consumers that are followed at a time
_MAX_ENTRIES: Final = 128  # latest entries of a consumer that are compared
_MAX_ENDS: Final = 8  # REACHED_END_OF_TOPICs of a consumer that are kept
_AT_ONCE: Final = SECOND // 2
"""A client that closes this soon after a frame closes because of it."""

_Key = tuple[str, str, str]
"""A consumer over all connections: its client's host, topic and subscription."""


def _make_key(consumer: Consumer) -> _Key:
    return find_client_host(consumer.state.connection), consumer.topic, consumer.subscription


def _closes_at_once(ending: EndedConnection, sighting: Sighting) -> bool:
    """Return whether the client closes the connection because of this frame."""
    return ending.by_broker is False and 0 <= (ending.end_ns or 0) - sighting.time_ns <= _AT_ONCE


@dataclass(slots=True)
class _Loop:
    """Connections that a client has closed right after MESSAGE, and the entries that all of them had got."""

    state: CheckState  # of the first connection
    entries: dict[Entry, UnackedDelivery]
    ended_ns: int  # when the last connection ended
    count: int = 1


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

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._loops: dict[_Key, _Loop] = {}

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Add a connection that the client may have closed because of a message."""
        entries_by_key: dict[_Key, dict[Entry, UnackedDelivery]] = {}
        for consumer in state.consumers_at_end:
            entries_by_key.setdefault(_make_key(consumer), {}).update(_find_last_entries(consumer, ending))
        for key, entries in entries_by_key.items():
            if entries and self.can_judge(state):
                self._add(key, state, entries, ending.end_ns or 0)

    def _add(
        self, key: _Key, state: CheckState, entries: dict[Entry, UnackedDelivery], ended_ns: int
    ) -> None:
        """Add a connection that was closed after these entries."""
        loop = self._loops.get(key)
        common = (
            {entry: delivery for entry, delivery in loop.entries.items() if entry in entries} if loop else {}
        )
        if loop is None or not common:
            self._loops[key] = _Loop(state, entries, ended_ns)
            bound(self._loops, _MAX_CONSUMERS)
            return
        if state.first_ns < loop.ended_ns:
            return  # open at the same time: another consumer, which got the message as well
        loop.entries, loop.ended_ns = common, ended_ns
        loop.count += 1
        entry = min(common, key=lambda entry: (common[entry].is_intact, entry))
        rows = [(delivery.sighting, "client closes") for delivery in (common[entry], entries[entry])]
        text = f"The client has closed its connection {loop.count} times after it was given the same message."
        subject = Subject(key[1], key[2], message_id=format_entry(entry))
        certainty = CERTAIN if loop.count >= _CERTAIN_FROM else SUSPECTED
        self.report(loop.state, subject, rows, text, certainty)


def _find_last_entries(consumer: Consumer, ending: EndedConnection) -> dict[Entry, UnackedDelivery]:
    """Return the unacknowledged entries that came right before the client closed the connection."""
    entries = islice(reversed(consumer.entries.items()), _MAX_ENTRIES)
    return {
        entry: delivery
        for entry, delivery in entries
        if isinstance(delivery, UnackedDelivery) and _closes_at_once(ending, delivery.sighting)
    }


@dataclass(slots=True)
class _End:
    """A REACHED_END_OF_TOPIC, and the SUBSCRIBE of the same client after it, on another connection."""

    consumer: Consumer
    sighting: Sighting
    resubscribe: Sighting | None = None
    has_hung_up: bool = False  # the client closed the connection because of it


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
    handlers: ClassVar = {"REACHED_END_OF_TOPIC": "on_end_of_topic", "SUBSCRIBE": "on_subscribe"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._ends: dict[_Key, list[_End]] = {}

    def on_end_of_topic(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note REACHED_END_OF_TOPIC."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None else None
        if consumer is not None:
            ends = self._ends.setdefault(_make_key(consumer), [])
            ends.append(_End(consumer, sighting))
            bound(self._ends, _MAX_CONSUMERS)
            del ends[:-_MAX_ENDS]

    def on_subscribe(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a SUBSCRIBE after REACHED_END_OF_TOPIC."""
        key = find_client_host(state.connection), frame.topic or "", frame.subscription or ""
        for end in self._ends.get(key, ()):
            if end.resubscribe is None and end.consumer.state is not state:
                end.resubscribe = sighting
                self._judge(end)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Note that the client has closed the connection because of the frame."""
        for consumer in state.consumers_at_end:
            for end in self._ends.get(_make_key(consumer), ()):
                if end.consumer is consumer and _closes_at_once(ending, end.sighting):
                    end.has_hung_up = True
                    self._judge(end)

    def _judge(self, end: _End) -> None:
        if end.has_hung_up and end.resubscribe is not None and self.can_judge(end.consumer.state):
            rows = [(end.sighting, "client closes"), (end.resubscribe, "and subscribes again")]
            first = next(end for end in self._ends[_make_key(end.consumer)] if end.has_hung_up)
            subject = Subject(end.consumer.topic, end.consumer.subscription)
            self.report(first.consumer.state, subject, rows)
