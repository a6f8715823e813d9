"""`LedgerState`: a connection's state that also tracks its consumers' permits and unacknowledged messages.

    permits    what FLOW granted, minus what each MESSAGE uses (counts.py)
    unacked    messages delivered, by entry, minus those that ACK names or that are asked for again

`on_exchange` is called with each complete exchange: a request with its answer, a SEND with its receipt or
error, a MESSAGE with its acknowledgement. Missed bytes may have contained any of these. So after missed bytes
all unacknowledged deliveries are dropped, and permits are no longer exact.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from struct import iter_unpack
from typing import Any, ClassVar, Final, NamedTuple

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck
from pulsarctl_wire.wire.session.counts import error_of, permits_used
from pulsarctl_wire.wire.session.exchanges import ExchangeState, ProducerLedger
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, bound
from pulsarctl_wire.wire.session.state import PRODUCER, PRODUCER_SUCCESS, TOPIC_RULES, RuleNames
from pulsarctl_wire.wire.session.state_data import SENT_FIRST_NUMBER, SENT_FRAME, Request, Sent

_WORD_MASK: Final = 2**64 - 1


class Answered(NamedTuple):
    """A request (or SEND, or handshake) with its answer: numbers of both frames, time of the answer (ns).

    `number` is that of the first frame if a SEND was sent again. `type` and `answer_type` are type numbers;
    `error` is the ServerError's number, or None.
    """

    type: int
    number: int
    answer_type: int
    answer: int
    time_ns: int | None
    latency_ns: int | None
    topic: str | None
    subscription: str | None
    error: int | None


class Acknowledged(NamedTuple):
    """A delivered entry, now fully acknowledged: numbers of MESSAGE and ACK, and the time of the ACK (ns)."""

    consumer: int
    ledger: int
    entry: int
    number: int
    answer: int
    time_ns: int | None
    latency_ns: int | None
    topic: str
    subscription: str


Exchange = Answered | Acknowledged


@mypyc_attr(allow_interpreted_subclasses=True)
class Delivered:
    """An unacknowledged entry: `left` messages. `mask` has their bits once an ack_set was seen; else -1."""

    __slots__ = ("left", "mask", "number", "time_ns")

    def __init__(self, count: int, number: int, time_ns: int | None) -> None:
        self.left = count
        self.mask = -1
        self.number = number
        self.time_ns = time_ns


@mypyc_attr(allow_interpreted_subclasses=True)
class ConsumerLedger:
    """An open consumer. `has_exact_permits`: they are the same as the broker's.

    `epoch` is the highest consumer_epoch so far. `unacked` counts messages, `redeliveries` the entries that
    it asked for again.
    """

    __slots__ = (
        *("entries", "epoch", "has_exact_permits", "permits", "redeliveries", "subscription", "topic"),
        "unacked",
    )

    def __init__(self, topic: str, subscription: str, epoch: int = 0) -> None:
        self.topic = topic
        self.subscription = subscription
        self.epoch = epoch
        self.permits = self.unacked = self.redeliveries = 0
        self.has_exact_permits = True
        self.entries: dict[tuple[int, int], Delivered] = {}
        """By ledger and entry id."""

    def deliver(self, entry: tuple[int, int], cost: int, frame: Frame) -> None:
        """Note that an entry was delivered and used `cost` permits."""
        self.permits -= cost
        earlier = self.entries.pop(entry, None)
        self.unacked += cost - (earlier.left if earlier is not None else 0)
        delivered = self.entries[entry] = self.make_delivered(cost, frame)
        words = () if frame.ids.is_plain else frame.base.message.ack_set  # type: ignore[union-attr]
        if words:
            delivered.mask = bits_of(words)

    def make_delivered(self, count: int, frame: Frame) -> Delivered:
        """Return the entry that `frame` has delivered, with `count` messages."""
        return Delivered(count, frame.number, frame.time_ns)

    def acknowledge(self, entry: tuple[int, int], words: Any) -> Delivered | None:
        """Acknowledge all messages but those in the ack_set `words`.

        Returns the entry if all its messages are acknowledged now, otherwise None.
        """
        delivered = self.entries.get(entry)
        if delivered is None:
            return None
        remaining = 0
        if words:
            delivered.mask &= bits_of(words)
            remaining = min(delivered.mask.bit_count(), delivered.left)
        self.unacked -= delivered.left - remaining
        delivered.left = remaining
        if remaining:
            return None
        del self.entries[entry]
        return delivered

    def list_before(self, entry: tuple[int, int]) -> list[tuple[int, int]]:
        """Return the entries before this one. To a consumer that may ack cumulatively they came in order."""
        return list(takewhile(lambda earlier: earlier < entry, self.entries))

    def take_back(self, entries: Iterable[tuple[int, int]]) -> None:
        """Remove entries that the consumer wants redelivered; all of them if none is named."""
        wanted_entries = list(entries) or list(self.entries)
        for entry in wanted_entries:
            delivered = self.entries.pop(entry, None)
            if delivered is not None:
                self.unacked -= delivered.left
                self.redeliveries += 1

    def forget(self) -> None:
        """Drop all unacknowledged entries: it is unknown whether they were acknowledged."""
        self.entries.clear()
        self.unacked = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class LedgerState(ExchangeState):
    """Tracks producers and consumers, and calls `on_exchange` with each complete exchange."""

    RULES: ClassVar[RuleNames] = {
        **TOPIC_RULES,
        NUMBERS["FLOW"]: "_flow",
        NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]: "_redeliver",
        NUMBERS["CLOSE_CONSUMER"]: "_close",
    }

    def __init__(
        self,
        connection: Connection,
        knowledge: Knowledge,
        streams: Iterable[FrameStream] = (),
        on_exchange: Callable[[Exchange], object] = lambda exchange: None,
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self.consumers: dict[int, ConsumerLedger] = {}
        """By consumer id."""
        self._on_exchange = on_exchange
        self._entry_count = 0  # upper bound of the unacknowledged entries

    def unanswered(self) -> Iterator[tuple[int, int]]:
        """Yield the frame numbers and types of the client's requests that have no answer yet."""
        for request in (*self._pending_requests.values(), self._handshake, *self._pings.get(True, ())):
            if request is not None and request.type != _AUTH_RESPONSE:  # a refresh that succeeds has none
                yield request.number, request.type
        for ledger in self.producers.values():
            yield from ((send[SENT_FRAME], _SEND) for _, send in ledger.sends())

    def end(self) -> None:
        """End the connection, and with it all its producers and consumers."""
        super().end()
        self.consumers.clear()

    def _lose(self) -> None:
        super()._lose()
        for consumer in self.consumers.values():
            consumer.has_exact_permits = False
            consumer.forget()

    # -- exchanges

    def _pair_answer(self, frame: Frame, request: Request) -> None:
        super()._pair_answer(frame, request)
        is_last = frame.type != PRODUCER_SUCCESS or frame.body.producer_ready
        if is_last:
            self._report(frame, request.number, request.type)
        if (
            request.owner is not None
            and frame.type == _ENDED_BY.get(request.type)
            and not self._is_repeat(request)
        ):
            if request.type == PRODUCER:
                ledger = self.producers.get(request.owner[1])
                if ledger is not None:
                    ledger.is_open = False
            else:
                self.consumers.pop(request.owner[1], None)

    def _answer_send(self, frame: Frame, ledger: ProducerLedger, sequence: int) -> Sent | None:
        send = super()._answer_send(frame, ledger, sequence)
        if send is not None:
            self._report(frame, send[SENT_FIRST_NUMBER], _SEND)
        return send

    def _report(self, frame: Frame, number: int, kind: int) -> None:
        self._on_exchange(
            Answered(
                *(kind, number, frame.type, frame.number, frame.time_ns, frame.latency_ns),
                *(frame.topic, frame.subscription, error_of(frame)),
            )
        )

    # -- consumers

    def _open(self, frame: Frame, body: Any) -> None:
        super()._open(frame, body)
        if frame.type != PRODUCER:
            topic, subscription = self._consumers[body.consumer_id]
            self.consumers[body.consumer_id] = self._new_consumer(body, topic, subscription)
            bound(self.consumers, MAX_PENDING)

    def _new_consumer(self, body: Any, topic: str, subscription: str) -> ConsumerLedger:
        """Return the ledger of a consumer that SUBSCRIBE (or SCALABLE_TOPIC_SUBSCRIBE) opens."""
        return ConsumerLedger(topic, subscription, getattr(body, "consumer_epoch", 0))

    def _flow(self, frame: Frame) -> None:
        self._name_by_consumer(frame)
        flow = frame.base.flow  # type: ignore[union-attr]
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None:
            consumer.permits += flow.messagePermits

    def _message(self, frame: Frame) -> None:
        super()._message(frame)
        ids = frame.ids
        consumer = self.consumers.get(ids.owner)
        if consumer is None:
            return
        if not ids.is_plain:
            consumer.epoch = max(consumer.epoch, frame.base.message.consumer_epoch)  # type: ignore[union-attr]
        consumer.deliver((ids.ledger, ids.entry), permits_used(frame), frame)
        self._entry_count += 1
        if self._entry_count > MAX_PENDING:
            self._entry_count = sum(len(ledger.entries) for ledger in self.consumers.values())
            if self._entry_count > MAX_PENDING // 2:  # acknowledgements are missing
                for ledger in self.consumers.values():
                    ledger.forget()

    def _ack(self, frame: Frame) -> None:
        super()._ack(frame)
        ids = frame.ids
        consumer = self.consumers.get(ids.owner)
        if consumer is None:
            return
        for entry, words in acknowledged_by(frame):
            if ids.kind == CommandAck.Cumulative:
                for earlier in consumer.list_before(entry):
                    self._report_acknowledged(frame, consumer, earlier, ())
            item = consumer.entries.get(entry)
            is_single = item is not None and item.left == 1 and item.mask == -1  # it needs no ack_set
            self._report_acknowledged(frame, consumer, entry, () if is_single else words)

    def _report_acknowledged(
        self, frame: Frame, consumer: ConsumerLedger, entry: tuple[int, int], words: Any
    ) -> None:
        delivered = consumer.acknowledge(entry, words)
        if delivered is None:
            return
        has_times = frame.time_ns is not None and delivered.time_ns is not None
        self._on_exchange(
            Acknowledged(
                *(frame.ids.owner, *entry, delivered.number, frame.number, frame.time_ns),
                frame.time_ns - delivered.time_ns if has_times else None,  # type: ignore[operator]
                *(consumer.topic, consumer.subscription),
            )
        )

    def _redeliver(self, frame: Frame) -> None:
        self._name_by_consumer(frame)
        body = frame.base.redeliverUnacknowledgedMessages  # type: ignore[union-attr]
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            consumer.epoch = max(consumer.epoch, body.consumer_epoch)
            consumer.take_back(map(entry_of, body.message_ids))

    def _close(self, frame: Frame) -> None:
        self._request(frame)
        self.consumers.pop(frame.base.close_consumer.consumer_id, None)  # type: ignore[union-attr]


def acknowledged_by(frame: Frame) -> list[tuple[tuple[int, int], Sequence[int]]]:
    """Return the entries that an ACK acknowledges, by ledger and entry id; with the ack_set of each."""
    ids = frame.ids
    if ids.is_plain:
        return [((ids.ledger, ids.entry), ())] if ids.identified else []
    if ids.several is not None:
        return [((ledger, entry), ()) for ledger, entry, _ in iter_unpack("<3q", ids.several)]
    return [(entry_of(message_id), message_id.ack_set) for message_id in frame.base.ack.message_id]  # type: ignore[union-attr]


def bits_of(words: Any) -> int:
    """Return the words of an ack_set as one number."""
    return sum((word & _WORD_MASK) << (64 * index) for index, word in enumerate(words))


def entry_of(message_id: Any) -> tuple[int, int]:
    """Return the ledger and entry id of a MessageIdData."""
    return message_id.ledgerId, message_id.entryId


_AUTH_RESPONSE: Final = NUMBERS["AUTH_RESPONSE"]
_SEND, _SUBSCRIBE, _UNSUBSCRIBE = NUMBERS["SEND"], NUMBERS["SUBSCRIBE"], NUMBERS["UNSUBSCRIBE"]
_ENDED_BY: Final = {
    PRODUCER: NUMBERS["ERROR"],
    _SUBSCRIBE: NUMBERS["ERROR"],
    _UNSUBSCRIBE: NUMBERS["SUCCESS"],
}
"""Type number of a request -> the answer that means its producer or consumer is not open."""
