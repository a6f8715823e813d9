"""Rules about what consumers must not do: acknowledgements, permits, redelivery."""

from typing import ClassVar, Final

from pulsarctl_wire.checks.conduct import MIN_SMALL_FLOWS
from pulsarctl_wire.checks.facts import NOWHERE, Entry
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer, UnackedDelivery
from pulsarctl_wire.checks.rule import CAPTURE, ConductRule, SilenceRule, format_ns
from pulsarctl_wire.checks.rules.flow import find_waiting_message
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

_MAX_SEARCHED: Final = 256  # a connection with more consumers is not searched for the holder of an entry


class AckNotDelivered(ConductRule):
    """A client acknowledges a message that this consumer was not given.

    Must: acknowledge a message by the consumer that got it.

    Wire: ACK of an entry above all that the consumer's subscription was given; or of an entry that another
    consumer holds, which is either for another topic on the same connection, or on the same Shared or
    Key_Shared subscription. The broker ignores entries that are not of the subscription's topic, so these
    stay unacknowledged.

    Advice: Let the client keep the consumer with each message that it hands out.

    Source: Pulsar binary protocol, "Command Ack".
    """

    id = "ack_not_delivered"
    relies_on = CAPTURE

    def on_unheld_ack(self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Report an ACK of an entry that the consumer cannot have."""
        if not self.can_judge(state) or entry in consumer.acked_batches:
            return
        holder = self._find_holder(state, consumer, entry)
        is_above = entry > max(consumer.subscription_facts.highest_delivered, consumer.highest_delivered)
        if holder is None and not (
            is_above and consumer.deliveries and self._is_in_last_ledger(consumer, entry)
        ):
            return
        rows: list[tuple[Sighting | None, str]] = [(consumer.request, "the consumer that acknowledges")]
        if holder is not None:
            rows.append((holder.sighting, "another consumer got it"))
        rows.append((state.sighting, "acknowledges it"))
        where = "which another consumer got" if holder is not None else "which it was not given"
        text = f"Consumer {consumer.consumer_id} acknowledges a message, {where}."
        self.report_mistake(state, consumer.subject(entry), rows, text, CERTAIN)

    def _find_holder(self, state: CheckState, consumer: Consumer, entry: Entry) -> UnackedDelivery | None:
        """Return the delivery of the entry to another consumer, if this one cannot have had it."""
        if consumer.is_shared and consumer.subscription_facts.has_few_owners:
            for owner in consumer.subscription_facts.list_owners():
                delivery = owner.entries.get(entry)
                if owner is not consumer and isinstance(delivery, UnackedDelivery) and not delivery.is_repeat:
                    return delivery
        if entry <= consumer.highest_delivered or len(state.consumers) > _MAX_SEARCHED:
            return None
        for other in state.consumers.values():
            delivery = other.entries.get(entry)
            if other.topic != consumer.topic and isinstance(delivery, UnackedDelivery):
                return delivery
        return None

    def _is_in_last_ledger(self, consumer: Consumer, entry: Entry) -> bool:
        """Return whether the entry is in the ledger of the highest entry that the consumer was given."""
        return consumer.highest_delivered != NOWHERE and consumer.highest_delivered[0] == entry[0]


class CumulativeAckOnShared(ConductRule):
    """A client acknowledges cumulatively on a subscription that several consumers share.

    Must: acknowledge one by one on Shared and Key_Shared subscriptions.

    Wire: ACK with ack_type Cumulative by a consumer that subscribed as Shared or Key_Shared. The broker
    ignores it, though a request id gets its ACK_RESPONSE without an error: the messages stay unacknowledged.

    Advice: Let the client refuse cumulative acknowledgements on such subscriptions, or acknowledge each id.

    Source: Pulsar binary protocol, "Command Ack"; the broker's Consumer.messageAcked.
    """

    id = "cumulative_ack_on_shared"

    def on_cumulative_on_shared(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report the ACK."""
        if self.can_judge(state):
            name = CommandSubscribe.SubType.Name(consumer.kind)  # type: ignore[arg-type]
            rows = [
                (consumer.request, f"subscribed as {name}"),
                (state.sighting, "acknowledges cumulatively"),
            ]
            self.report_mistake(state, consumer.subject(), rows)


class RedeliverOnExclusive(ConductRule):
    """A client asks for single messages again on a subscription that does not give single ones again.

    Must: name messages in REDELIVER_UNACKNOWLEDGED_MESSAGES only on Shared and Key_Shared subscriptions.

    Wire: REDELIVER_UNACKNOWLEDGED_MESSAGES with ids by a consumer that subscribed as Exclusive or Failover.
    The broker ignores the ids, and gives all unacknowledged messages again.

    Advice: Let the client name no ids on such subscriptions, and expect all messages from the first
    unacknowledged one on.

    Source: Pulsar binary protocol, "Command RedeliverUnacknowledgedMessages"; the broker's
    ServerCnx.handleRedeliverUnacknowledged.
    """

    id = "redeliver_on_exclusive"
    handlers: ClassVar = {"REDELIVER_UNACKNOWLEDGED_MESSAGES": "on_redeliver"}

    def on_redeliver(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a command with ids."""
        consumer = state.consumer(frame.body.consumer_id) if frame.body is not None else None
        if consumer is None or consumer.is_shared or not frame.body.message_ids:
            return
        if state.is_whole and self.can_judge(state):
            name = CommandSubscribe.SubType.Name(consumer.kind)  # type: ignore[arg-type]
            rows = [(consumer.request, f"subscribed as {name}"), (sighting, "names messages")]
            self.report_mistake(state, consumer.subject(), rows)


class FlowWithoutPermits(ConductRule):
    """A client sends a FLOW that grants no permits, or more than a broker can count.

    Must: grant 1 to 2147483647 permits with each FLOW.

    Wire: FLOW with messagePermits 0, or above 2147483647. The broker closes the connection without a word.

    Advice: Let the client send FLOW only once it has room for a message.

    Source: Pulsar binary protocol, "Command Flow"; the broker's Consumer.flowPermits.
    """

    id = "flow_without_permits"

    def on_odd_flow(self, state: CheckState, frame: Frame, consumer: Consumer, permits: int) -> None:
        """Report the FLOW."""
        if self.can_judge(state):
            text = f"FLOW grants {permits} permits; 1 to 2147483647 are possible."
            self.report_mistake(state, consumer.subject(), [(state.sighting, f"{permits} permits")], text)


class NoFlow(SilenceRule):
    """A consumer never asked for messages after it subscribed, although messages wait for it.

    Must: send FLOW after each SUBSCRIBE; the permits of an earlier one are gone.

    Wire: SUBSCRIBE with SUCCESS, no FLOW for T, and a message waits. An application that has not asked its
    client for a message yet looks the same, if its queue has size 0.

    Advice: Let the client send FLOW after SUCCESS, also when it subscribes again after a reconnect, a seek or
    CLOSE_CONSUMER.

    Source: Pulsar binary protocol, "Flow control".
    """

    id = "no_flow"
    relies_on = CAPTURE
    cause = ("client", "topic", "subscription")

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a consumer without a FLOW."""
        quiet, success = self.thresholds.quiet, consumer.success
        if consumer.flow_count or success is None or now_ns - success.time_ns < quiet:
            return
        if not self.can_judge(consumer.state):
            return
        receipt = find_waiting_message(consumer, now_ns - quiet)
        if receipt is None:
            return
        rows = [
            (consumer.request, "subscribes"),
            (success, "no FLOW since"),
            (receipt, "stored, not delivered"),
        ]
        text = (
            f"The consumer sent no FLOW for {format_ns(now_ns - success.time_ns)} after it subscribed, while"
        )
        self.report(consumer.state, consumer.subject(), rows, f"{text} messages wait.", SUSPECTED)


class FlowPerMessage(ConductRule):
    """A client grants permits one by one, although it has room for many messages.

    Should: grant permits again when half of the queue was taken, all of these at once.

    Wire: after a first FLOW of at least 20 permits, 50 FLOWs in a row grant less than a tenth of it each.

    Advice: Let the client collect permits: each FLOW is a frame for the broker to read, and small grants make
    small reads of storage.

    Source: Pulsar binary protocol, "Flow control".
    """

    id = "flow_per_message"
    severity = WARNING

    def on_small_flow(self, state: CheckState, frame: Frame, consumer: Consumer, count: int) -> None:
        """Report many small grants in a row."""
        if count == MIN_SMALL_FLOWS and self.can_judge(state):
            first, last = consumer.first_flow, state.sighting
            rows = [(first, f"{consumer.first_grant} permits"), (last, f"the last of {count} small ones")]
            text = (
                f"After {consumer.first_grant} permits at first, {count} FLOWs in a row granted less than a"
            )
            self.report_mistake(state, consumer.subject(), rows, f"{text} tenth of that each.")


class BatchAckedAtFirstMessage(ConductRule):
    """A client acknowledges a whole batch once for each of its messages.

    Must: acknowledge a batch once, when all of its messages were consumed, or each message by an ack_set.

    Wire: as many ACKs of one entry without an ack_set as its batch has messages. The first one already
    acknowledges all: after a crash in between, the others are lost.

    Advice: Let the client count the messages of a batch, or send an ack_set for each (batch index
    acknowledgements).

    Source: PIP-54; Pulsar binary protocol, "Command Ack".
    """

    id = "batch_acked_at_first_message"
    severity = WARNING

    def on_unheld_ack(self, state: CheckState, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Count an ACK of a batch that is acknowledged already."""
        size, acks = consumer.acked_batches.get(entry, (0, []))
        if not size or len(acks) >= size:
            return
        acks.append(state.sighting)
        if len(acks) == size and self.can_judge(state):
            rows = [(acks[0], f"acknowledges all {size} messages"), (acks[1], "the same entry again")]
            text = f"A batch of {size} messages was acknowledged {size} times as a whole: the first ACK"
            text += " acknowledges all of them."
            self.report_mistake(state, consumer.subject(), rows, text)
