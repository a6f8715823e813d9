"""Rules about what consumers are given: after a seek, of an old epoch, too early, or not at all."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import text_of
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer
from pulsarctl_wire.checks.rule import CONNECTION, SECOND, Rule, SilenceRule, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.ledgers import entry_of

_EARLY: Final = 3 * SECOND // 2  # brokers deliver up to 1 s early, at the tick of their timer
_MS: Final = 1_000_000
_MAX_CONSUMERS: Final = 1_024  # of a connection that are followed at a time


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
            bound(seeks, _MAX_CONSUMERS)

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
            self.found(state, consumer.subject(), rows, certainty=SUSPECTED)


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
            bound(table, _MAX_CONSUMERS)
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
        epoch = 0 if frame.ids.is_plain else frame.base.message.consumer_epoch  # type: ignore[union-attr]
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
            self.found(consumer.state, consumer.subject(), rows, certainty=certainty)


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
        self.found(state, consumer.subject(), [(consumer.seen, "not Shared"), (seen, why)])


class ReaderWaitsForMissingMessage(SilenceRule):
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
            bound(table, _MAX_CONSUMERS)

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
            self.found(consumer.state, consumer.subject(), rows, text, SUSPECTED)
