"""Rules about flow control: permits, and consumers that get nothing although messages wait."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import Subscription
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Consumer
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, Reporter, Rule, SilenceRule, format_ns
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.counts import MAX_PERMITS

_FEW: Final = 10  # fewer permits are no large queue, fewer unacknowledged messages block nobody


def find_waiting_message(consumer: Consumer, since_ns: int) -> Sighting | None:
    """Return the receipt of a message that has waited since `since_ns` or longer, or None.

    Neither it nor a later one was delivered to an open consumer of the subscription, or acknowledged.
    Without such a message a silent consumer has nothing to do.
    """
    subscription = consumer.subscription_facts
    delivered = subscription.highest_delivered
    if subscription.has_few_owners:
        delivered = max(owner.highest_delivered for owner in (consumer, *subscription.list_owners()))
    send = subscription.topic.find_stored_after(max(delivered, subscription.highest_acked))
    receipt = send.answer if send is not None else None
    return receipt if receipt is not None and receipt.time_ns <= since_ns else None


class _Stalled(SilenceRule):
    """A consumer has used up its permits and asks for no more, although messages wait."""

    relies_on = CAPTURE
    cause = ("client", "topic", "subscription")
    is_acknowledging: ClassVar[bool]
    """Whether the rule is about consumers that acknowledge at least half of what they get."""

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a silence that lasts until now."""
        quiet = self.thresholds.quiet
        flow, message = consumer.last_flow, consumer.last_message
        if now_ns - consumer.active_ns < quiet or consumer.permits > 0 or flow is None or message is None:
            return
        if (2 * consumer.acked_count >= consumer.deliveries) is not self.is_acknowledging:
            return
        if not (consumer.has_exact_permits and self.can_judge(consumer.state)):
            return
        receipt = find_waiting_message(consumer, now_ns - quiet)
        if receipt is not None:
            self._report(consumer, flow, message, receipt, now_ns)

    def _report(
        self, consumer: Consumer, flow: Sighting, message: Sighting, receipt: Sighting, now_ns: int
    ) -> None:
        rows = [(flow, "last FLOW"), (message, "uses up the permits"), (receipt, "stored, not delivered")]
        progress = f"acknowledged {consumer.acked_count} of {consumer.deliveries} entries"
        text = f"The consumer has no permits left, {progress}, and asks for no more for"
        text += f" {format_ns(now_ns - consumer.active_ns)}, while messages wait."
        self.report(consumer.state, consumer.subject(), rows, text, SUSPECTED)


class PermitLeak(_Stalled):
    """The consumer has used up its permits, acknowledges what it got, and asks for no more: nothing moves.

    Wire: permits are 0 or less, no FLOW and no MESSAGE for T, at least half of the delivered entries are
    acknowledged, and a message waits. A paused application looks the same.

    Advice: Restart the consumer to get going, then update or report the client: it loses count of its
    permits, usually with batches.

    Source: Pulsar binary protocol, "Flow control"; apache/pulsar issue 100, pulsar-client-go issue 1180.
    """

    id = "permit_leak"
    is_acknowledging = True


class ApplicationNotReceiving(_Stalled):
    """The consumer's queue is full: it acknowledges little of what it got and asks for no more.

    Wire: permits are 0 or less, no FLOW and no MESSAGE for T, less than half of the delivered entries are
    acknowledged, and a message waits. Clients ask for more when the application takes a message: it takes
    none.

    Advice: Look at the application: it does not call receive, or it is stuck on a message.

    Source: Pulsar binary protocol, "Flow control".
    """

    id = "application_not_receiving"
    is_acknowledging = False


class PermitsOverGranted(Rule):
    """The client grants more and more permits before the promised messages have come: its queue has no limit.

    Wire: after three or more FLOWs the outstanding permits are above twice the first FLOW (at least 20). Some
    clients make their queue larger on purpose.

    Advice: Update the client (acknowledging half a batch is a known cause), and watch its memory.

    Source: apache/pulsar pull request 22091, pulsar-dotpulsar issue 266.
    """

    id = "permits_over_granted"
    cause = ("client", "topic", "subscription")
    severity = WARNING
    relies_on = CONNECTION

    def on_many_permits(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report a FLOW after which too many permits are outstanding."""
        first = consumer.first_flow
        if first is None or consumer.flow_count < 3 or consumer.permits > MAX_PERMITS:
            return
        if (
            consumer.permits > 2 * max(consumer.first_grant, _FEW)
            and consumer.has_exact_permits
            and self.can_judge(state)
        ):
            text = f"The client has {consumer.permits} permits outstanding, after {consumer.first_grant}"
            rows = [(first, "first FLOW"), (state.sighting, f"{consumer.permits} outstanding")]
            self.report(
                state, consumer.subject(), rows, f"{text} at first: its queue has no limit.", SUSPECTED
            )


class PermitOverflow(Rule):
    """The client granted more than 2147483647 permits: the broker's counter is negative and delivery stops.

    Must: keep the permits that are outstanding at or below 2147483647.

    Wire: the permits of all FLOWs since SUBSCRIBE, less those used, are above 2147483647.

    Advice: Make the client grant smaller numbers; reconnect it now.

    Source: the broker counts the permits of a consumer in a signed number of 32 bits.
    """

    id = "permit_overflow"
    cause = ("client", "topic", "subscription")
    relies_on = CONNECTION

    def on_many_permits(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Report a FLOW after which too many permits are outstanding."""
        if consumer.permits > MAX_PERMITS and consumer.has_exact_permits and self.can_judge(state):
            rows = [(state.sighting, f"{consumer.permits} outstanding")]
            text = f"The client granted {consumer.permits} permits, more than {MAX_PERMITS}: the broker's"
            self.report(state, consumer.subject(), rows, f"{text} counter is negative and delivery stops.")


class BlockedOnUnacked(SilenceRule):
    """Messages wait and the consumer has permits, but it holds so many unacknowledged ones that none come.

    Wire: Shared or Key_Shared, permits above 0, at least 10 messages unacknowledged, a message waits, and no
    MESSAGE for T; often ACKs end it. Certain where CONSUMER_STATS_RESPONSE says so.

    Advice: Let the application acknowledge (or negatively acknowledge) what it holds; the limit is
    maxUnackedMessagesPerConsumer.

    Source: apache/pulsar issues 22657 and 759.
    """

    id = "blocked_on_unacked"
    cause = ("client", "topic", "subscription")
    relies_on = CAPTURE
    handlers: ClassVar = {"CONSUMER_STATS_RESPONSE": "on_stats"}

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self._frame_count = 0  # when `_has_free` was last cleared
        self._has_free: dict[Subscription, bool] = {}

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Judge a silence that lasts until now."""
        quiet, last = self.thresholds.quiet, consumer.last_message
        if last is None or now_ns - last.time_ns < quiet or not self._may_be_blocked(consumer):
            return
        if not (consumer.has_exact_permits and self.can_judge(consumer.state)):
            return
        receipt = find_waiting_message(consumer, now_ns - quiet)
        if receipt is None or self._has_free_consumer(consumer):
            return
        rows = [
            (last, f"last delivery, {consumer.permits} permits left"),
            (receipt, "stored, not delivered"),
        ]
        text = (
            f"Messages wait and the consumer has {consumer.permits} permits, but it holds {consumer.unacked}"
        )
        text += f" unacknowledged messages and got none for {format_ns(now_ns - last.time_ns)}."
        self.report(consumer.state, consumer.subject(), rows, text, SUSPECTED)

    def on_stats(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report a consumer that the broker says is blocked."""
        body: Any = frame.body
        owner = state.answered_request.owner if state.answered_request is not None else None
        consumer = state.consumer(owner[1]) if owner is not None else None
        if body is not None and body.blockedConsumerOnUnackedMsgs and consumer is not None:
            rows = [(sighting, f"blocked with {body.unackedMessages} unacknowledged messages")]
            self.report(state, consumer.subject(), rows, certainty=CERTAIN)

    def _has_free_consumer(self, consumer: Consumer) -> bool:
        """Return whether another consumer could get the messages; cached until the next frame."""
        frames, subscription = consumer.state.frame_count, consumer.subscription_facts
        if frames != self._frame_count:
            self._frame_count, self._has_free = frames, {}
        if subscription not in self._has_free:
            self._has_free[subscription] = any(map(_is_free, subscription.list_owners()))
        return self._has_free[subscription]

    def _may_be_blocked(self, consumer: Consumer) -> bool:
        return consumer.is_shared and consumer.permits > 0 and consumer.unacked >= _FEW


def _is_free(consumer: Consumer) -> bool:
    """Return whether a consumer could get the next message.

    If so, unacknowledged messages are not what holds the message back.
    """
    return consumer.permits > 0 and consumer.unacked < _FEW
