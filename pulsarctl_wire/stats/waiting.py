"""What waits on one connection: sends for receipts, permits for messages, messages for acknowledgements.

    pending sends   SENDs by sequence id, which their receipts have too; the chunks of a message share one
    permits         what FLOW gave, less what each MESSAGE costs: the messages of a batch that are still to be
                    delivered, 1 for anything else
    unacked         messages delivered, by entry, less what ACK names; redelivery takes them back

Bytes that were not seen may have held any of these: sends and deliveries that wait are forgotten then, for
their answers may never be seen, and permits are inexact from there on.

All of it is bounded: `MAX_PENDING` producers, consumers, requests, and entries that wait.
"""

from collections.abc import Callable
from itertools import islice, takewhile
from typing import Any, Final

from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.names import full_topic
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck
from pulsarctl_wire.wire.session import MAX_PENDING, bound

LONGEST: Final = 512
"""Characters of a name that are kept."""

_SEARCHED: Final = 1_024  # sends that an error may be about
_PRODUCER, _SUBSCRIBE, _UNSUBSCRIBE = NUMBERS["PRODUCER"], NUMBERS["SUBSCRIBE"], NUMBERS["UNSUBSCRIBE"]
_WORD: Final = 2**64 - 1


class Producer:
    """An open producer, its `name` empty until the broker says it; `waiting` SENDs have no answer yet."""

    __slots__ = ("messages", "name", "pending", "topic", "waiting")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.name = ""
        self.messages = self.waiting = 0
        self.pending: dict[int, list[int]] = {}
        """Sequence id -> how many share it, when the first passed in ns, their highest id."""

    @property
    def oldest_ns(self) -> int | None:
        """When the SEND passed that has waited for longest, by `Waiting.at_ns`."""
        return next(iter(self.pending.values()))[1] if self.pending else None

    def sent(self, sequence: int, time_ns: int, highest: int) -> None:
        """A SEND passed."""
        self.waiting += 1
        before = self.pending.get(sequence)
        if before is None:
            self.pending[sequence] = [1, time_ns, highest]
        else:
            before[0] += 1

    def answered(self, sequence: int) -> None:
        """A SEND of this sequence id has its answer."""
        found = self.pending.get(sequence)
        if found is not None:
            self.waiting -= 1
            found[0] -= 1
            if not found[0]:
                del self.pending[sequence]

    def failed(self, sequence: int) -> None:
        """The same, by an error, which names the highest id of a batch and not the lowest."""
        if sequence and sequence not in self.pending:
            first = islice(self.pending.items(), _SEARCHED)
            sequence = next((each for each, waiting in first if waiting[2] == sequence), sequence)
        self.answered(sequence)

    def forget(self) -> None:
        """Nothing is known of what waits."""
        self.pending.clear()
        self.waiting = 0


class Consumer:
    """An open consumer; `exact` is whether its permits surely are what the broker has."""

    __slots__ = ("entries", "exact", "messages", "permits", "subscription", "topic", "unacked")

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        self.permits = self.messages = self.unacked = 0
        self.exact = True
        self.entries: dict[tuple[int, int], int] = {}
        """Ledger and entry id of what was delivered -> its messages that are not acknowledged."""

    def delivered(self, entry: tuple[int, int], messages: int) -> None:
        """An entry was delivered, of which so many messages were due."""
        self.permits -= messages
        self.unacked += messages - self.entries.pop(entry, 0)
        self.entries[entry] = messages

    def leave(self, entry: tuple[int, int], messages: int) -> None:
        """Only `messages` of a delivered entry are left to be acknowledged."""
        before = self.entries.get(entry)
        if before is None:
            return
        messages = min(messages, before)
        self.unacked += messages - before
        if messages:
            self.entries[entry] = messages
        else:
            del self.entries[entry]

    def leave_none_before(self, entry: tuple[int, int]) -> None:
        """All entries before this one were acknowledged; who may do that gets them in order."""
        for each in list(takewhile(lambda each: each < entry, self.entries)):
            self.leave(each, 0)

    def forget(self) -> None:
        """Nothing is known of what waits."""
        self.entries.clear()
        self.unacked = 0


class Waiting:
    """The producers and consumers of a connection, by their ids, and what waits for them."""

    __slots__ = ("asked", "at_ns", "consumers", "kept", "producers")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.asked: dict[int, int] = {}
        """Request id -> the id of the producer or consumer that it is about."""
        self.kept = 0
        """Sends and entries that wait, at the most."""
        self.at_ns = 0
        """The time of what is followed; it never goes back (see `meters.Passage`)."""

    def follow(self, frame: Frame) -> None:
        """Take note of a frame."""
        found, base = _RULES.get(frame.type), frame.base
        if found is not None and base is not None:
            name, rule = found
            if base.HasField(name):  # type: ignore[arg-type]
                rule(self, frame, getattr(base, name))

    def forget(self) -> None:
        """Bytes were not seen."""
        self.kept = 0
        for producer in self.producers.values():
            producer.forget()
        for consumer in self.consumers.values():
            consumer.exact = False
            consumer.forget()

    def _keep(self) -> None:
        """One more is to be kept. Where answers never come, all are forgotten in the end."""
        self.kept += 1
        if self.kept > MAX_PENDING:
            self.kept = sum(len(each.pending) for each in self.producers.values())
            self.kept += sum(len(each.entries) for each in self.consumers.values())
            if self.kept > MAX_PENDING // 2:
                self.forget()

    # -- producers

    def _producer(self, frame: Frame, body: Any) -> None:
        self.producers[body.producer_id] = Producer(full_topic(body.topic)[:LONGEST])
        bound(self.producers, MAX_PENDING)
        self._ask(body.request_id, body.producer_id)

    def _producer_success(self, frame: Frame, body: Any) -> None:
        producer = self.producers.get(self.asked.get(body.request_id, -1))
        if body.producer_ready:  # else it waits for its turn, and is answered again
            self.asked.pop(body.request_id, None)
        if producer is not None:
            producer.name = as_text(body.producer_name[:LONGEST])

    def _send(self, frame: Frame, body: Any) -> None:
        producer = self.producers.get(body.producer_id)
        if producer is not None:
            producer.messages += messages_of(frame)
            self._keep()
            producer.sent(body.sequence_id, self.at_ns, body.highest_sequence_id)

    def _receipt(self, frame: Frame, body: Any) -> None:
        producer = self.producers.get(body.producer_id)
        if producer is not None:
            producer.answered(body.sequence_id)

    def _send_error(self, frame: Frame, body: Any) -> None:
        producer = self.producers.get(body.producer_id)
        if producer is not None:
            producer.failed(body.sequence_id)

    def _close_producer(self, frame: Frame, body: Any) -> None:
        self.producers.pop(body.producer_id, None)

    # -- consumers

    def _subscribe(self, frame: Frame, body: Any) -> None:
        topic, subscription = full_topic(body.topic)[:LONGEST], as_text(body.subscription[:LONGEST])
        self.consumers[body.consumer_id] = Consumer(topic, subscription)
        bound(self.consumers, MAX_PENDING)
        self._ask(body.request_id, body.consumer_id)

    def _flow(self, frame: Frame, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.permits += body.messagePermits

    def _message(self, frame: Frame, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.messages += messages_of(frame)
            self._keep()
            consumer.delivered(_entry(body.message_id), _cost(frame, body))

    def _ack(self, frame: Frame, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None:
            return
        for each in body.message_id:
            entry = _entry(each)
            if body.ack_type == CommandAck.Cumulative:
                consumer.leave_none_before(entry)
            consumer.leave(entry, _ones(each.ack_set))

    def _redeliver(self, frame: Frame, body: Any) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None:
            return
        if not body.message_ids:
            consumer.forget()
        for each in body.message_ids:
            consumer.leave(_entry(each), 0)

    def _unsubscribe(self, frame: Frame, body: Any) -> None:
        self._ask(body.request_id, body.consumer_id)

    def _close_consumer(self, frame: Frame, body: Any) -> None:
        self.consumers.pop(body.consumer_id, None)

    # -- requests

    def _ask(self, request: int, owner: int) -> None:
        self.asked[request] = owner
        bound(self.asked, MAX_PENDING)

    def _success(self, frame: Frame, body: Any) -> None:
        owner = self.asked.pop(body.request_id, -1)
        if frame.request_type == _UNSUBSCRIBE:
            self.consumers.pop(owner, None)

    def _error(self, frame: Frame, body: Any) -> None:
        owner = self.asked.pop(body.request_id, -1)
        if frame.request_type == _PRODUCER:
            self.producers.pop(owner, None)
        elif frame.request_type == _SUBSCRIBE:
            self.consumers.pop(owner, None)


def messages_of(frame: Frame) -> int:
    """How many messages come with an entry: those of a batch; 1 with the last chunk of a message."""
    metadata = frame.metadata
    if metadata is None:
        return 1
    if metadata.num_chunks_from_msg > 1:
        return int(metadata.chunk_id == metadata.num_chunks_from_msg - 1)
    return max(metadata.num_messages_in_batch, 0)


def _cost(frame: Frame, body: Any) -> int:
    """The permits that a MESSAGE costs."""
    metadata = frame.metadata
    if body.ack_set:
        return _ones(body.ack_set)
    return 1 if metadata is None else max(metadata.num_messages_in_batch, 0)


def _ones(words: Any) -> int:
    """How many indexes of a batch an ack_set (signed 64-bit words) leaves to be acknowledged."""
    return sum((word & _WORD).bit_count() for word in words)


def _entry(message_id: Any) -> tuple[int, int]:
    return message_id.ledgerId, message_id.entryId


_RULES: Final[dict[int, tuple[str, Callable[[Waiting, Frame, Any], None]]]] = {
    NUMBERS[name]: (BODIES[NUMBERS[name]], rule)
    for name, rule in {
        "PRODUCER": Waiting._producer,
        "PRODUCER_SUCCESS": Waiting._producer_success,
        "SEND": Waiting._send,
        "SEND_RECEIPT": Waiting._receipt,
        "SEND_ERROR": Waiting._send_error,
        "CLOSE_PRODUCER": Waiting._close_producer,
        "SUBSCRIBE": Waiting._subscribe,
        "FLOW": Waiting._flow,
        "MESSAGE": Waiting._message,
        "ACK": Waiting._ack,
        "REDELIVER_UNACKNOWLEDGED_MESSAGES": Waiting._redeliver,
        "UNSUBSCRIBE": Waiting._unsubscribe,
        "CLOSE_CONSUMER": Waiting._close_consumer,
        "SUCCESS": Waiting._success,
        "ERROR": Waiting._error,
    }.items()
}
"""Type number -> the field of the command's sub-message, what is noted of such a frame."""
