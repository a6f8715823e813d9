"""Rules about acknowledgements and redelivery."""

from itertools import islice
from typing import Final

from pulsarctl_wire.checks.facts import NOWHERE, Entry
from pulsarctl_wire.checks.finding import SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer, Redelivery, UnackedDelivery
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, Rule, format_ns
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.ending import EndedConnection

ENDLESS: Final = 5
"""How often an entry must be delivered again to be an `EndlessRedelivery`."""

_MAX_TRIES: Final = 16  # of Java's default dead letter policy

_MAX_ENTRIES: Final = 1_000  # entries of a consumer that are looked at: those that were delivered first


class AckHole(Rule):
    """An entry stays unacknowledged while later ones are acknowledged: the backlog cannot shrink past it.

    Wire: an entry was delivered and not acknowledged (individually, cumulatively, or with all messages of its
    batch) for A after a higher one was. Without acknowledgement of batch indexes clients send nothing for a
    batch until all its messages are done. The application may still work on it, or give it back later.

    Advice: Find out why the application does not acknowledge this message, or each message of this batch.

    Source: PIP-54; apache/pulsar issue 22352, pull request 26135.
    """

    id = "ack_hole"
    cause = ("client", "topic", "subscription")
    severity = WARNING
    relies_on = CAPTURE  # other consumers of the subscription may acknowledge it

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Check the entries that have been unacknowledged for longest."""
        # exact permits: no bytes were missed since SUBSCRIBE, so no ACK was missed
        if consumer.subscription_facts.highest_acked == NOWHERE or not (
            consumer.has_exact_permits and self.can_judge(consumer.state)
        ):
            return
        latest_ns = now_ns - self.thresholds.unacked
        for entry, delivery in islice(consumer.entries.items(), _MAX_ENTRIES):
            if not isinstance(delivery, UnackedDelivery) or delivery.sighting.time_ns > latest_ns:
                break
            later_ack = consumer.subscription_facts.find_ack_past(entry, latest_ns)
            if later_ack is not None and not delivery.is_chunk and not _is_endless(consumer, entry):
                self._report(consumer, entry, delivery, later_ack, now_ns)

    def _report(
        self, consumer: Consumer, entry: Entry, delivery: UnackedDelivery, later_ack: Sighting, now_ns: int
    ) -> None:
        if delivery.is_reported_hole:
            return
        delivery.is_reported_hole = True
        rows = [(delivery.sighting, "delivered")]
        if entry in consumer.partial_acks:
            rows.append((consumer.partial_acks[entry][1], f"last partial ACK, {delivery.left} messages left"))
        rows.append((later_ack, "a later entry is acknowledged"))
        text = f"One entry is unacknowledged for {format_ns(now_ns - delivery.sighting.time_ns)} while later"
        text += " ones are acknowledged: the backlog cannot shrink past it."
        self.report(consumer.state, consumer.subject(entry), rows, text, SUSPECTED)


def _is_endless(consumer: Consumer, entry: Entry) -> bool:
    redelivery = consumer.redelivered.get(entry)
    return redelivery is not None and redelivery.count >= ENDLESS


class PartialAcksIgnored(Rule):
    """The client acknowledges single messages of a batch, but the broker does not keep that: all come again.

    Wire: ACK Individual with ack_set, then REDELIVER_UNACKNOWLEDGED_MESSAGES, then MESSAGE of that entry
    without ack_set.

    Advice: Set acknowledgmentAtBatchIndexLevelEnabled=true on the broker, or do not rely on acknowledging
    parts of a batch.

    Source: PIP-54; off by default in Pulsar 4.0.
    """

    id = "partial_acks_ignored"
    cause = ("server",)
    severity = WARNING
    relies_on = CONNECTION

    def on_came_again(
        self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry, redelivery: Redelivery
    ) -> None:
        """Report a batch that is delivered again as a whole, although a part was acknowledged."""
        ack = consumer.partial_acks[entry][0] if entry in consumer.partial_acks else None
        if ack is None or ack.number > redelivery.last_request.number or not self.can_judge(state):
            return
        if frame.ids.is_plain or not frame.base.message.ack_set:  # type: ignore[union-attr]
            rows = [(ack, "a part of the batch is acknowledged")]
            rows.append((state.sighting, "all of it again, no ack_set"))
            self.report(state, consumer.subject(entry), rows)


class EndlessRedelivery(Rule):
    """The same message is given back and delivered again and again, and is never acknowledged.

    Wire: after a REDELIVER_UNACKNOWLEDGED_MESSAGES the same entry is delivered five more times or more to the
    same consumer, and is not acknowledged when that consumer closes. While it is open, this is reported from
    the 17th time on: until then a dead letter policy (Java's gives up after 16) may acknowledge it. Shared
    and Key_Shared count it in redelivery_count; Exclusive and Failover do not.

    Advice: Set a dead letter policy, and look at why the application refuses this message.

    Source: apache/pulsar issue 6721, pulsar-client-node issue 368; RetryMessageUtil.MAX_RECONSUMETIMES.
    """

    id = "endless_redelivery"
    cause = ("topic", "subscription")
    relies_on = CONNECTION

    def on_came_again(
        self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry, redelivery: Redelivery
    ) -> None:
        """Report an entry that no dead letter policy stops."""
        if redelivery.count > _MAX_TRIES:
            self._report(consumer, entry, redelivery)

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a consumer that is closed."""
        if not consumer.is_open:
            self._judge(consumer)

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Judge the consumers that were open until the end."""
        for consumer in state.consumers_at_end:
            self._judge(consumer)

    def _judge(self, consumer: Consumer) -> None:
        for entry, redelivery in consumer.redelivered.items():
            if redelivery.count >= ENDLESS:
                self._report(consumer, entry, redelivery)

    def _report(self, consumer: Consumer, entry: Entry, redelivery: Redelivery) -> None:
        if not self.can_judge(consumer.state):
            return
        times = f"delivered again, {redelivery.count} times so far"
        rows = [
            (redelivery.first_message, "before it was given back"),
            (redelivery.first_request, "first REDELIVER"),
            (redelivery.last_message, f"{times}, redelivery_count {redelivery.redelivery_count}"),
        ]
        text = f"The same message is given back and {times}, and is not acknowledged."
        self.report(consumer.state, consumer.subject(entry), rows, text)
