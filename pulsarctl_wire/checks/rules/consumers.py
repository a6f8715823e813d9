"""Rules about what consumers are given: after a seek, of an old epoch, too early, or not at all."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import format_entry
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer
from pulsarctl_wire.checks.rule import CONNECTION, SECOND, Rule, SilenceRule, format_ns
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
    handlers: ClassVar = {
        "SEEK": "on_seek",
        **dict.fromkeys(("SUCCESS", "ERROR"), "on_answer"),
        "SUBSCRIBE": "on_subscribe",
    }

    def on_seek(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note SEEK."""
        body: Any = frame.body
        if body is not None:
            seeks = state.notes.setdefault(self.id, {})  # by owner: (is a consumer, id)
            seeks[True, body.consumer_id] = sighting
            bound(seeks, _MAX_CONSUMERS)

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Forget a SEEK that is answered."""
        seeks = state.notes.get(self.id)
        owner = state.answered_request.owner if state.answered_request is not None else None
        if seeks and owner in seeks and seeks[owner] is state.request_sighting:
            del seeks[owner]

    def on_subscribe(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a SUBSCRIBE before SEEK is answered."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None else None
        seek = (
            state.notes.get(self.id, {}).get((True, consumer.consumer_id)) if consumer is not None else None
        )
        if consumer is not None and seek is not None and self.can_judge(state):
            rows = [(seek, "seek"), (sighting, "before the answer to SEEK")]
            self.report(state, consumer.subject(), rows, certainty=SUSPECTED)


@dataclass(slots=True)
class _Epochs:
    """The epochs of a consumer.

    newest     the highest epoch of a MESSAGE so far
    request    a REDELIVER with an epoch, `request_epoch`, that no MESSAGE has reached yet
    """

    consumer: Consumer
    newest: int = -1
    request: Sighting | None = None
    request_epoch: int = 0


class StaleEpoch(Rule):
    """The broker goes on with an old epoch: the client throws these messages away until it reconnects.

    Wire: MESSAGE with a consumer_epoch below that of an earlier MESSAGE to the same consumer; or, certain,
    messages still come T after a REDELIVER_UNACKNOWLEDGED_MESSAGES and none since has reached its epoch.
    Until then messages of the old epoch are under way, which is normal.

    Advice: Reconnect the consumer to get the missing messages, and update the broker.

    Source: https://github.com/apache/pulsar/issues/25204, https://github.com/apache/pulsar/pull/14716
    """

    id = "stale_epoch"
    cause = ("client", "topic", "subscription")
    relies_on = CONNECTION
    handlers: ClassVar = {"REDELIVER_UNACKNOWLEDGED_MESSAGES": "on_redeliver"}

    def _get_epochs(self, consumer: Consumer) -> _Epochs:
        table = consumer.state.notes.setdefault(self.id, {})
        epochs: _Epochs | None = table.get(consumer.consumer_id)
        if epochs is None or epochs.consumer is not consumer:
            epochs = table[consumer.consumer_id] = _Epochs(consumer)
            bound(table, _MAX_CONSUMERS)
        return epochs

    def on_redeliver(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note a REDELIVER_UNACKNOWLEDGED_MESSAGES with a new epoch."""
        body: Any = frame.body
        consumer = state.consumer(body.consumer_id) if body is not None and body.consumer_epoch else None
        if consumer is not None:
            epochs = self._get_epochs(consumer)
            if epochs.request is None and body.consumer_epoch > epochs.newest:
                epochs.request, epochs.request_epoch = sighting, body.consumer_epoch

    def on_epoch(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report a MESSAGE with an old epoch."""
        epoch = 0 if frame.ids.is_plain else frame.base.message.consumer_epoch  # type: ignore[union-attr]
        epochs, sighting = self._get_epochs(consumer), state.sighting
        request = epochs.request
        if epoch < epochs.newest:
            reason = f"epoch {epoch} after {epochs.newest}"
            self._report(consumer, [(sighting, reason)], SUSPECTED)
        epochs.newest = max(epoch, epochs.newest)
        if request is None:
            return
        if epoch >= epochs.request_epoch:
            epochs.request = None
        elif sighting.time_ns - request.time_ns >= self.thresholds.quiet:
            reason = f"{format_ns(sighting.time_ns - request.time_ns)} later still epoch {epoch}"
            self._report(consumer, [(request, f"epoch {epochs.request_epoch}"), (sighting, reason)], CERTAIN)

    def _report(self, consumer: Consumer, rows: list[tuple[Sighting, str]], certainty: str) -> None:
        if self.can_judge(consumer.state):
            self.report(consumer.state, consumer.subject(), rows, certainty=certainty)


class DelayIgnored(Rule):
    """A message with a delivery time comes at once: delays work on Shared and Key_Shared subscriptions only.

    Wire: MESSAGE more than 1.5 s before its deliver_at_time, on an Exclusive or Failover subscription. The
    clocks of the producer and of the capturing host may differ.

    Advice: Use a Shared or Key_Shared subscription for delayed messages.

    Source: PIP-26.
    """

    id = "delay_ignored"
    cause = ("topic", "subscription")
    severity = WARNING

    def on_delayed(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report a MESSAGE that comes before its deliver_at_time."""
        due_ms, sighting = frame.metadata.deliver_at_time, state.sighting  # type: ignore[union-attr]
        early_ns = due_ms * _MS - sighting.time_ns
        if consumer.is_shared or not sighting.time_ns or early_ns <= _EARLY:
            return
        reason = (
            f"{format_ns(early_ns)} early: deliver_at_time {due_ms} ms, here at {sighting.time_ns // _MS} ms"
        )
        self.report(state, consumer.subject(), [(consumer.request, "not Shared"), (sighting, reason)])


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
    cause = ("topic",)
    severity = WARNING
    relies_on = CONNECTION
    handlers: ClassVar = {"GET_LAST_MESSAGE_ID_RESPONSE": "on_answer"}

    def on_answer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Note the last message id of a consumer's topic."""
        body: Any = frame.body
        owner = state.answered_request.owner if state.answered_request is not None else None
        consumer = state.consumer(owner[1]) if owner is not None else None
        if body is not None and consumer is not None:
            table = state.notes.setdefault(self.id, {})
            table[consumer.consumer_id] = consumer, sighting, entry_of(body.last_message_id)
            bound(table, _MAX_CONSUMERS)

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a silence that lasts until now."""
        note = consumer.state.notes.get(self.id, {}).get(consumer.consumer_id)
        last = consumer.last_message
        if note is None or note[0] is not consumer or last is None or consumer.is_shared:
            return
        _, sighting, entry = note
        since_ns = max(sighting.time_ns, last.time_ns)
        is_delivered = entry <= consumer.subscription_facts.highest_delivered
        is_empty = entry[1] >> 63  # -1 as uint64: the topic has no message
        if now_ns - since_ns < self.thresholds.quiet or is_empty or is_delivered:
            return
        if consumer.permits > 0 and consumer.has_exact_permits and self.can_judge(consumer.state):
            delivered = format_entry(consumer.highest_delivered)
            text = (
                f"The broker names {format_entry(entry)} as the last message, but has sent nothing after "
                f"{delivered} for {format_ns(now_ns - since_ns)} although it may send "
                f"{consumer.permits}: a reader that reads to the end hangs, unless that entry is compacted "
                "away or in an open transaction."
            )
            rows = [(sighting, f"last id {format_entry(entry)}"), (last, f"last delivery {delivered}")]
            self.report(consumer.state, consumer.subject(), rows, text, SUSPECTED)
