"""Rules about producers: receipts, duplicates, fences, quotas."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import NOWHERE, Send, format_entry
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Producer
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, SECOND, Rule, format_ns, make_answer_subject
from pulsarctl_wire.checks.rules.payloads import MessageOverFrameLimit
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.state_data import SENT_HIGHEST

_REPLICATOR: Final = "pulsar.repl"
"""Prefix of the names of replicating producers, whose receipts carry source positions."""

_FENCING: Final = ProducerAccessMode.ExclusiveWithFencing
_OVER_QUOTA: Final = {
    ServerError.ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException,
}


class ReceiptMismatch(Rule):
    """A receipt arrives for a later message while an earlier one has none: clients then send all again.

    Must: confirm the messages of a producer in the order in which they were sent.

    Wire: SEND_RECEIPT for a SEND while an older one of its producer has neither receipt nor SEND_ERROR. A
    batch is answered by its lowest or highest sequence id; receipts below the oldest are ignored.

    Advice: Look for something that swallows frames between client and broker; expect duplicates unless
    deduplication is on.

    Source: pulsar-client-go issues 650 and 1027.
    """

    id = "receipt_mismatch"
    cause = ("client", "server")
    relies_on = CONNECTION

    def on_receipt_out_of_order(
        self, state: CheckState, frame: Frame, producer: Producer, sequence: int
    ) -> None:
        """Report a receipt that is not for the oldest SEND."""
        if not (producer.is_open and self.can_judge(state)) or producer.name.startswith(_REPLICATOR):
            return
        oldest = producer.find_oldest()
        if oldest is None or sequence <= max(oldest[0], oldest[1][SENT_HIGHEST]):
            return
        send = producer.find_send(*oldest)
        if send is not None:
            rows: list[tuple[Sighting, str]] = [(send, "no receipt yet")]
            rows.append((state.sighting, f"receipt of sequence id {sequence}, expected {oldest[0]}"))
            self.report(state, producer.subject(), rows)


class SendUnanswered(Rule):
    """Messages are sent on a live connection, and none of them gets a receipt or an error.

    Wire: an open producer, a SEND without an answer for R, and no receipt at all for this producer.

    Advice: Look at the broker's storage (bookies, disks); the client will time out.

    Source: Pulsar binary protocol, "Producer".
    """

    id = "send_unanswered"
    cause = ("server",)
    relies_on = CAPTURE  # where some packets were missed, the last ones of any connection may be missing

    def on_producer_due(self, producer: Producer, now_ns: int) -> None:
        """Judge the oldest SEND."""
        if producer.has_receipt or not producer.waiting or producer.success is None:
            return
        oldest = producer.find_oldest()
        if oldest is None or not self.can_judge(producer.state) or producer.doubtful_until:
            return
        send = producer.find_send(*oldest)
        if send is None or now_ns - send.time_ns < self.thresholds.unanswered:
            return
        text = f"{producer.waiting} SENDs were sent in {format_ns(now_ns - send.time_ns)}, and none of them"
        rows: list[tuple[Sighting, str]] = [(send, "the oldest SEND without an answer")]
        subject = producer.subject()
        self.report(producer.state, subject, rows, f"{text} got a receipt or an error.", SUSPECTED)


class DroppedAsDuplicate(Rule):
    """The broker acknowledged a message without storing it: its sequence id was used before for another one.

    Wire: SEND_RECEIPT with the id -1:-1 on a persistent topic, and an earlier SEND of this producer name with
    that sequence id had another payload or got SEND_ERROR, or the batch reaches above everything sent before.
    Suspected if no such SEND was seen, but the id is not above the last one in PRODUCER_SUCCESS. The same
    bytes again after a lost receipt are no loss.

    Advice: Let the producer continue from its last sequence id instead of starting over.

    Source: PIP-6; apache/pulsar issue 5218.
    """

    id = "dropped_as_duplicate"
    cause = ("client", "topic")
    relies_on = CAPTURE

    def on_possible_duplicate(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report a message that the broker took for a duplicate."""
        topic = producer.topic or ""
        if send.stored_id != NOWHERE or not topic.startswith("persistent:") or not self.can_judge(state):
            return
        if producer.name.startswith(_REPLICATOR):
            return
        previous = send.previous
        rows: list[tuple[Sighting, str]] = [
            (send, "another message"),
            (state.sighting, "receipt -1:-1: not stored"),
        ]
        certainty = CERTAIN
        if previous is not None and (previous.is_failed or not send.has_same_payload):
            reason = "was refused" if previous.is_failed else "first message with this sequence id"
            rows.insert(0, (previous, reason))
            if not previous.is_failed and (send.may_be_encrypted or previous.may_be_encrypted):
                certainty = SUSPECTED  # each encryption gives other bytes
        elif previous is None and send.highest > max(send.highest_before, producer.last_sequence) >= 0:
            rows[0] = send, "a batch that is new in part"
        elif previous is not None or producer.epoch or send.sequence > producer.last_sequence:
            return
        else:
            rows[0] = send, f"the broker had stored up to sequence id {producer.last_sequence} before"
            certainty = SUSPECTED
        self.report(state, producer.subject(send), rows, certainty=certainty)


class StoredTwice(Rule):
    """A message was sent again after its connection broke, and the broker stored it a second time.

    Wire: two SENDs of one producer name with equal sequence id, publish time, chunk id and payload, whose
    receipts have different ids.

    Advice: Switch deduplication on for the namespace, or let consumers expect duplicates.

    Source: PIP-6.
    """

    id = "stored_twice"
    cause = ("client", "topic")
    severity = WARNING

    def on_possible_duplicate(self, state: CheckState, frame: Frame, producer: Producer, send: Send) -> None:
        """Report a message that has two receipts with different ids."""
        previous, stored = send.previous, send.stored_id
        if previous is None or previous.stored_id is None or previous.answer is None or stored is None:
            return
        if NOWHERE in (previous.stored_id, stored) or previous.stored_id == stored:
            return
        if not send.has_same_payload or send.publish_time != previous.publish_time or send.is_corrupt:
            return
        rows: list[tuple[Sighting, str]] = [
            (previous, "sent"),
            (previous.answer, f"stored as {format_entry(previous.stored_id)}"),
            (send, "the same message again"),
            (state.sighting, f"stored as {format_entry(stored)}"),
        ]
        self.report(state, producer.subject(send), rows)


class ProducerFenced(Rule):
    """A producer with exclusive access was replaced; its connection is closed on its next message.

    Wire: a producer with an access mode other than Shared; the broker closes within a second of its SEND,
    without an answer, although the frame is legal. Certain if a later PRODUCER on the topic has
    ExclusiveWithFencing and a topic_epoch.

    Advice: Decide which instance should write; the fenced one must stop, or ask for access again.

    Source: PIP-68.
    """

    id = "producer_fenced"
    cause = ("topic",)
    relies_on = CAPTURE
    handlers: ClassVar = {"PRODUCER": "on_producer"}

    def on_producer(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Remember a PRODUCER that fences others."""
        body: Any = frame.body
        if frame.topic and body is not None and body.producer_access_mode == _FENCING:
            topic = self.facts.get_topic(frame.topic)
            topic.fenced_by, topic.epoch = sighting, body.topic_epoch

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Report producers whose last SEND made the broker close the connection."""
        if not ending.by_broker or not self.can_judge(state):
            return
        for producer in state.producers_at_end:
            send = producer.last_send
            if producer.access_mode == ProducerAccessMode.Shared or send is None or producer.success is None:
                continue
            if send.answer is None and 0 <= (ending.end_ns or 0) - send.time_ns <= SECOND:
                self._report(state, producer, producer.success, send)

    def _report(self, state: CheckState, producer: Producer, success: Sighting, send: Send) -> None:
        if MessageOverFrameLimit.id in state.notes:
            return  # that rule reports why the connection was closed
        rows: list[tuple[Sighting, str]] = [
            (success, "exclusive access"),
            (send, "connection closed on this SEND"),
        ]
        topic = self.facts.get_topic(producer.topic or "")
        fence, certainty = topic.fenced_by, SUSPECTED
        if fence is not None and fence.time_ns > success.time_ns:
            rows.insert(1, (fence, "another producer asks for access with fencing"))
            certainty = CERTAIN if topic.epoch > 0 else SUSPECTED
        subject = producer.subject()
        if certainty == CERTAIN or not state.has_erred:  # a mistake may be why it was closed
            self.report(state, subject, rows, certainty=certainty)


class BacklogQuotaExceeded(Rule):
    """The topic's backlog has reached its quota, so the broker refuses producers.

    Wire: ERROR or SEND_ERROR with ProducerBlockedQuotaExceededError or ProducerBlockedQuotaExceededException.

    Advice: Find the subscription whose backlog grows, and consume or delete it, or raise the quota.

    Source: ServerError in PulsarApi.proto; policy producer_request_hold or producer_exception.
    """

    id = "backlog_quota_exceeded"
    cause = ("topic",)
    handlers: ClassVar = {"ERROR": "on_error", "SEND_ERROR": "on_error"}

    def on_error(self, state: CheckState, frame: Frame, sighting: Sighting) -> None:
        """Report an error about the quota."""
        error: Any = error_of(frame)
        if error in _OVER_QUOTA:
            self.report(state, make_answer_subject(state, frame), [(sighting, ServerError.Name(error))])
