"""Rules about what consumers are given, and clients that close their connection because of it."""

from itertools import islice
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import Entry, client_of, text_of
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting, Subject
from pulsarctl_wire.checks.flow import about
from pulsarctl_wire.checks.ledgers import Consumer, Held
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, SECOND, Rule, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.ending import EndedConnection
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.knowledge import bound
from pulsarctl_wire.wire.ledgers import entry_of

_AT_ONCE: Final = SECOND // 2
"""A client that closes this soon after a frame closes because of it."""

_EARLY: Final = 3 * SECOND // 2  # brokers deliver up to 1 s early, at the tick of their timer
_MS: Final = 1_000_000
_MOST_CONSUMERS: Final = 1_024  # that are followed at a time, and whose marks a connection keeps
_MOST_ENTRIES: Final = 1_000  # entries that one of them got last
_MOST_ENDS: Final = 8  # ends of topic that a client is told of and that are remembered
_CERTAIN_FROM: Final = 3  # connections that ended in the same way


_Key = tuple[str, str, str]
"""A consumer over all connections: its client's host, topic and subscription."""


def _key(consumer: Consumer) -> _Key:
    return client_of(consumer.state.connection), consumer.topic, consumer.subscription


def _closes_at_once(ending: EndedConnection, seen: Sighting) -> bool:
    """Whether the client closes the connection because of this frame."""
    return ending.by_broker is False and 0 <= (ending.end_ns or 0) - seen.time_ns <= _AT_ONCE


class SubscribeBeforeSeekDone(Rule):
    """The client subscribes again before the broker has answered its seek: its position is a matter of luck.

    Wire: SUBSCRIBE of a consumer id after its SEEK and before SEEK's SUCCESS or ERROR. CLOSE_CONSUMER before
    that SUCCESS is normal: the broker disconnects the consumer.

    Advice: Update the client, or wait for the seek before going on.

    Source: https://github.com/apache/pulsar/issues/11825, https://github.com/apache/pulsar-client-cpp/issues/534
    """

    id = "subscribe_before_seek_done"
    severity = WARNING
    relies_on = CONNECTION
    on: ClassVar = {
        "SEEK": "seeks",
        **dict.fromkeys(("SUCCESS", "ERROR"), "answered"),
        "SUBSCRIBE": "subscribes",
    }

    def seeks(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """SEEK."""
        body: Any = frame.body
        if body is not None:
            seeks = state.marks.setdefault(self.id, {})
            seeks[True, body.consumer_id] = seen
            bound(seeks, _MOST_CONSUMERS)

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """An answer that may be that of a SEEK."""
        seeks = state.marks.get(self.id)
        owner = state.answered.owner if state.answered is not None else None
        if seeks and owner in seeks and seeks[owner] is state.request:
            del seeks[owner]

    def subscribes(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """SUBSCRIBE."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None else None
        seek = (
            state.marks.get(self.id, {}).get((True, consumer.consumer_id)) if consumer is not None else None
        )
        if consumer is not None and seek is not None and self.can_count(state):
            rows = [(seek, "seek"), (seen, "before the answer to SEEK")]
            self.found(state, about(consumer), rows, certainty=SUSPECTED)


class _Epochs:
    """The epochs of a consumer: the newest MESSAGE, and the REDELIVER that no MESSAGE has reached yet."""

    __slots__ = ("asked", "consumer", "newest", "wanted")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.newest = -1
        self.asked: Sighting | None = None
        self.wanted = 0


class StaleEpoch(Rule):
    """The broker goes on with an old epoch: the client throws these messages away until it reconnects.

    Wire: MESSAGE with a consumer_epoch below that of an earlier MESSAGE to the same consumer; or, certain,
    messages still come T after a REDELIVER_UNACKNOWLEDGED_MESSAGES and none since has reached its epoch.
    Until then messages of the old epoch are under way, which is normal.

    Advice: Reconnect the consumer to get the missing messages, and update the broker.

    Source: https://github.com/apache/pulsar/issues/25204, https://github.com/apache/pulsar/pull/14716
    """

    id = "stale_epoch"
    relies_on = CONNECTION
    on: ClassVar = {"REDELIVER_UNACKNOWLEDGED_MESSAGES": "redelivers"}

    def _epochs(self, consumer: Consumer) -> _Epochs:
        table = consumer.state.marks.setdefault(self.id, {})
        epochs: _Epochs | None = table.get(consumer.consumer_id)
        if epochs is None or epochs.consumer is not consumer:
            epochs = table[consumer.consumer_id] = _Epochs(consumer)
            bound(table, _MOST_CONSUMERS)
        return epochs

    def redelivers(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None and body.consumer_epoch else None
        if consumer is not None:
            epochs = self._epochs(consumer)
            if epochs.asked is None and body.consumer_epoch > epochs.newest:
                epochs.asked, epochs.wanted = seen, body.consumer_epoch

    def epoch(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """A MESSAGE to a consumer with an epoch."""
        epoch = frame.base.message.consumer_epoch  # type: ignore[union-attr]
        epochs, seen = self._epochs(consumer), state.seen
        asked = epochs.asked
        if epoch < epochs.newest:
            why = f"epoch {epoch} after {epochs.newest}"
            self._report(consumer, [(seen, why)], SUSPECTED)
        epochs.newest = max(epoch, epochs.newest)
        if asked is None:
            return
        if epoch >= epochs.wanted:
            epochs.asked = None
        elif seen.time_ns - asked.time_ns >= self.thresholds.quiet:
            why = f"{seconds(seen.time_ns - asked.time_ns)} later still epoch {epoch}"
            self._report(consumer, [(asked, f"epoch {epochs.wanted}"), (seen, why)], CERTAIN)

    def _report(self, consumer: Consumer, rows: list[tuple[Sighting, str]], certainty: str) -> None:
        if self.can_count(consumer.state):
            self.found(consumer.state, about(consumer), rows, certainty=certainty)


class DelayIgnored(Rule):
    """A message with a delivery time comes at once: delays work on Shared and Key_Shared subscriptions only.

    Wire: MESSAGE more than 1.5 s before its deliver_at_time, on an Exclusive or Failover subscription. The
    clocks of the producer and of the capturing host may differ.

    Advice: Use a Shared or Key_Shared subscription for delayed messages.

    Source: PIP-26.
    """

    id = "delay_ignored"
    severity = WARNING

    def delayed(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """A MESSAGE with deliver_at_time."""
        due_ms, seen = frame.metadata.deliver_at_time, state.seen  # type: ignore[union-attr]
        early_ns = due_ms * _MS - seen.time_ns
        if consumer.is_shared or not seen.time_ns or early_ns <= _EARLY:
            return
        why = f"{seconds(early_ns)} early: deliver_at_time {due_ms} ms, here at {seen.time_ns // _MS} ms"
        self.found(state, about(consumer), [(consumer.seen, "not Shared"), (seen, why)])


class ReaderWaitsForMissingMessage(Rule):
    """The broker names a last message but never sends it: a reader that reads to the end hangs.

    Wire: GET_LAST_MESSAGE_ID_RESPONSE with an id above the highest delivered one, permits are left, and no
    MESSAGE comes for T. The entry may also be compacted away, or in an open transaction.

    Advice: Publish one more message to get the reader going, and update the broker; the last entry is often
    an internal marker.

    Source: https://github.com/apache/pulsar/pull/21951,
    https://github.com/apache/pulsar-client-python/issues/221
    """

    id = "reader_waits_for_missing_message"
    severity = WARNING
    relies_on = CONNECTION
    on: ClassVar = {"GET_LAST_MESSAGE_ID_RESPONSE": "answered"}

    def answered(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """GET_LAST_MESSAGE_ID_RESPONSE."""
        body: Any = frame.body
        owner = state.answered.owner if state.answered is not None else None
        consumer = state.consumer(owner[1]) if owner is not None else None
        if body is not None and consumer is not None:
            table = state.marks.setdefault(self.id, {})
            table[consumer.consumer_id] = consumer, seen, entry_of(body.last_message_id)
            bound(table, _MOST_CONSUMERS)

    def consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a silence until now."""
        mark = consumer.state.marks.get(self.id, {}).get(consumer.consumer_id)
        last = consumer.last_message
        if mark is None or mark[0] is not consumer or last is None or consumer.is_shared:
            return
        _, seen, entry = mark
        since_ns = max(seen.time_ns, last.time_ns)
        if now_ns - since_ns < self.thresholds.quiet or entry[1] >> 63 or entry <= consumer.shared.delivered:
            return
        if consumer.permits > 0 and consumer.exact and self.can_count(consumer.state):
            text = f"The broker names {text_of(entry)} as the last message, but has sent nothing after"
            text += f" {text_of(consumer.highest)} for {seconds(now_ns - since_ns)} although it may send"
            text += (
                f" {consumer.permits}: a reader that reads to the end hangs, unless that entry is compacted"
            )
            text += " away or in an open transaction."
            rows = [(seen, f"last id {text_of(entry)}"), (last, f"last delivery {text_of(consumer.highest)}")]
            self.found(consumer.state, about(consumer), rows, text, SUSPECTED)

    def pause_ends(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Judge a silence that ends."""
        self.consumer_due(consumer, state.seen.time_ns)


class _Loop:
    """Connections that a client has closed right after MESSAGE, and what all of them had got."""

    __slots__ = ("count", "given", "state")

    def __init__(self, state: CheckState, given: dict[Entry, Held]) -> None:
        self.state = state  # the first one
        self.given = given  # there
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

    def __init__(self, doctor: Any) -> None:
        super().__init__(doctor)
        self._loops: dict[_Key, _Loop] = {}

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The client may have closed because of what it got."""
        given: dict[_Key, dict[Entry, Held]] = {}
        for consumer in state.left_consumers:
            given.setdefault(_key(consumer), {}).update(_given_last(consumer, ending))
        for key, last in given.items():
            if last and self.can_count(state):
                self._add(key, state, last)

    def _add(self, key: _Key, state: CheckState, last: dict[Entry, Held]) -> None:
        """A connection was closed after these entries."""
        loop = self._loops.get(key)
        both = {entry: held for entry, held in loop.given.items() if entry in last} if loop else {}
        if loop is None or not both:
            self._loops[key] = _Loop(state, last)
            bound(self._loops, _MOST_CONSUMERS)
            return
        loop.given = both
        loop.count += 1
        entry = min(both, key=lambda each: (both[each].intact, each))
        rows = [(each.seen, "client closes") for each in (both[entry], last[entry])]
        text = f"The client has closed its connection {loop.count} times after it was given the same message."
        subject = Subject(key[1], key[2], message_id=text_of(entry))
        certainty = CERTAIN if loop.count >= _CERTAIN_FROM else SUSPECTED
        self.found(loop.state, subject, rows, text, certainty)


def _given_last(consumer: Consumer, ending: EndedConnection) -> dict[Entry, Held]:
    """The unacknowledged entries that a consumer got at once before its client closed the connection."""
    entries = islice(reversed(consumer.entries.items()), _MOST_ENTRIES)
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

    def __init__(self, doctor: Any) -> None:
        super().__init__(doctor)
        self._ends: dict[_Key, list[_End]] = {}

    def ended(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """REACHED_END_OF_TOPIC."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None else None
        if consumer is not None:
            ends = self._ends.setdefault(_key(consumer), [])
            ends.append(_End(consumer, seen))
            bound(self._ends, _MOST_CONSUMERS)
            del ends[:-_MOST_ENDS]

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
            self.found(first.consumer.state, about(end.consumer)._replace(consumer_id=None), rows)
