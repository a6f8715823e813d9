"""Rules about producers: receipts, duplicates, fences, quotas."""

from typing import Any, ClassVar, Final

from pulsarctl_wire.checks.facts import NOWHERE, Sent, text_of
from pulsarctl_wire.checks.finding import CERTAIN, SUSPECTED, WARNING, Sighting
from pulsarctl_wire.checks.ledgers import Producer
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, SECOND, Rule, about_answer, seconds
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, ServerError
from pulsarctl_wire.wire.session.counts import error_of
from pulsarctl_wire.wire.session.ending import EndedConnection

_REPLICATOR: Final = "pulsar.repl"
"""How the names of producers begin that replicate between clusters: their receipts carry source positions."""

_FENCING: Final = ProducerAccessMode.ExclusiveWithFencing
_OVER_QUOTA: Final = {
    ServerError.ProducerBlockedQuotaExceededError,
    ServerError.ProducerBlockedQuotaExceededException,
}


class ReceiptMismatch(Rule):
    """A receipt arrives for a later message while an earlier one has none: clients then send all again.

    Wire: SEND_RECEIPT for a SEND that is not the oldest one of its producer without receipt or SEND_ERROR. A
    batch is answered by its lowest or highest sequence id; receipts below the oldest are ignored.

    Advice: Look for something that swallows frames between client and broker; expect duplicates unless
    deduplication is on.

    Source: pulsar-client-go issues 650 and 1027.
    """

    id = "receipt_mismatch"
    relies_on = CONNECTION

    def receipt_out_of_order(
        self, state: CheckState, frame: Frame, producer: Producer, sequence: int
    ) -> None:
        """A receipt that may be the wrong one."""
        if not (producer.is_open and self.can_count(state)) or producer.name.startswith(_REPLICATOR):
            return
        oldest = producer.oldest()
        if oldest is None or sequence <= max(oldest[0], oldest[1][4]):
            return
        sent = producer.sent(*oldest)
        if sent is not None:
            rows: list[tuple[Sighting, str]] = [(sent, "no receipt yet")]
            rows.append((state.seen, f"receipt of sequence id {sequence}, expected {oldest[0]}"))
            self.found(state, producer.subject(), rows)


class SendUnanswered(Rule):
    """Messages are sent on a live connection, and none of them gets a receipt or an error.

    Wire: an open producer, a SEND without an answer for R, and no receipt at all for this producer.

    Advice: Look at the broker's storage (bookies, disks); the client will time out.

    Source: Pulsar binary protocol, "Producer".
    """

    id = "send_unanswered"
    relies_on = CAPTURE  # where some packets were missed, the last ones of any connection may be missing

    def producer_due(self, producer: Producer, now_ns: int) -> None:
        """Judge the oldest SEND."""
        if producer.has_receipt or not producer.waiting or producer.opened is None:
            return
        oldest = producer.oldest()
        if oldest is None or not self.can_count(producer.state) or producer.doubtful:
            return
        sent = producer.sent(*oldest)
        if sent is None or now_ns - sent.time_ns < self.thresholds.unanswered:
            return
        text = (
            f"{producer.waiting} messages were sent in {seconds(now_ns - sent.time_ns)}, and none of them got"
        )
        rows: list[tuple[Sighting, str]] = [(sent, "the oldest SEND without an answer")]
        subject = producer.subject()
        self.found(producer.state, subject, rows, f"{text} a receipt or an error.", SUSPECTED)


class DroppedAsDuplicate(Rule):
    """The broker acknowledged a message without storing it: its sequence id was used before for another one.

    Wire: SEND_RECEIPT with the id -1:-1 on a persistent topic, and an earlier SEND of this producer name with
    that sequence id had another payload or got SEND_ERROR, or the batch reaches above everything sent before.
    The same bytes again after a lost receipt are no loss.

    Advice: Let the producer continue from its last sequence id instead of starting over.

    Source: PIP-6; apache/pulsar issue 5218.
    """

    id = "dropped_as_duplicate"
    relies_on = CAPTURE

    def stored_again(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """A receipt for a repeated sequence id."""
        topic = producer.topic or ""
        if sent.stored != NOWHERE or not topic.startswith("persistent:") or not self.can_count(state):
            return
        if producer.name.startswith(_REPLICATOR):
            return
        before = sent.before
        rows: list[tuple[Sighting, str]] = [
            (sent, "another message"),
            (state.seen, "receipt -1:-1: not stored"),
        ]
        certainty = CERTAIN
        if before is not None and (before.failed or not sent.repeats):
            what = "was refused" if before.failed else "first message with this sequence id"
            rows.insert(0, (before, what))
            if not before.failed and (sent.is_encrypted or before.is_encrypted):
                certainty = SUSPECTED  # each encryption gives other bytes
        elif before is None and sent.highest > max(sent.above, producer.last_sequence) >= 0:
            pass  # a batch that is new in part
        elif before is not None or producer.epoch or sent.sequence > producer.last_sequence:
            return
        else:
            rows[0] = sent, f"the broker had stored up to sequence id {producer.last_sequence} before"
            certainty = SUSPECTED
        self.found(state, producer.subject(sent), rows, certainty=certainty)


class StoredTwice(Rule):
    """A message was sent again after its connection broke, and the broker stored it a second time.

    Wire: two SENDs of one producer name with equal sequence id, publish time, chunk id and payload, whose
    receipts have different ids.

    Advice: Switch deduplication on for the namespace, or let consumers expect duplicates.

    Source: PIP-6.
    """

    id = "stored_twice"
    severity = WARNING

    def stored_again(self, state: CheckState, frame: Frame, producer: Producer, sent: Sent) -> None:
        """A receipt for a repeated sequence id."""
        before, stored = sent.before, sent.stored
        if before is None or before.stored is None or before.answer is None or stored is None:
            return
        if NOWHERE in (before.stored, stored) or before.stored == stored:
            return
        if not sent.repeats or sent.publish_time != before.publish_time or sent.corrupt:
            return
        rows: list[tuple[Sighting, str]] = [
            (before, "sent"),
            (before.answer, f"stored as {text_of(before.stored)}"),
            (sent, "the same message again"),
            (state.seen, f"stored as {text_of(stored)}"),
        ]
        self.found(state, producer.subject(sent), rows)


class ProducerFenced(Rule):
    """A producer with exclusive access was replaced; its connection is closed on its next message.

    Wire: a producer with an access mode other than Shared; the broker closes within a second of its SEND,
    without an answer, although the frame is legal. Certain if a later PRODUCER on the topic has
    ExclusiveWithFencing and a topic_epoch.

    Advice: Decide which instance should write; the fenced one must stop, or ask for access again.

    Source: PIP-68.
    """

    id = "producer_fenced"
    relies_on = CAPTURE
    on: ClassVar = {"PRODUCER": "asked"}

    def asked(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """PRODUCER: remember who fences others."""
        body: Any = frame.body
        if frame.topic and body is not None and body.producer_access_mode == _FENCING:
            topic = self.facts.topic(frame.topic)
            topic.fenced_by, topic.epoch = seen, body.topic_epoch

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """The broker has closed the connection."""
        if not ending.by_broker or not self.can_count(state):
            return
        for producer in state.left_producers:
            sent = producer.last_sent
            if producer.access == ProducerAccessMode.Shared or sent is None or producer.opened is None:
                continue
            if sent.answer is None and 0 <= (ending.end_ns or 0) - sent.time_ns <= SECOND:
                self._report(state, producer, producer.opened, sent)

    def _report(self, state: CheckState, producer: Producer, opened: Sighting, sent: Sent) -> None:
        if isinstance(state.marks.get("message_over_frame_limit"), tuple):
            return
        rows: list[tuple[Sighting, str]] = [
            (opened, "exclusive access"),
            (sent, "connection closed on this SEND"),
        ]
        topic = self.facts.topic(producer.topic or "")
        fence, certainty = topic.fenced_by, SUSPECTED
        if fence is not None and fence.time_ns > opened.time_ns:
            rows.insert(1, (fence, "another producer asks for access with fencing"))
            certainty = CERTAIN if topic.epoch > 0 else SUSPECTED
        subject = producer.subject()
        self.found(state, subject, rows, certainty=certainty)


class BacklogQuotaExceeded(Rule):
    """The topic's backlog has reached its quota, so the broker refuses producers.

    Wire: ERROR or SEND_ERROR with ProducerBlockedQuotaExceededError or ProducerBlockedQuotaExceededException.

    Advice: Find the subscription whose backlog grows, and consume or delete it, or raise the quota.

    Source: ServerError in PulsarApi.proto; policy producer_request_hold or producer_exception.
    """

    id = "backlog_quota_exceeded"
    on: ClassVar = {"ERROR": "refused", "SEND_ERROR": "refused"}

    def refused(self, state: CheckState, frame: Frame, seen: Sighting) -> None:
        """ERROR or SEND_ERROR."""
        error: Any = error_of(frame)
        if error in _OVER_QUOTA:
            self.found(state, about_answer(state, frame), [(seen, ServerError.Name(error))])
