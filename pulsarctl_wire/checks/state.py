"""`CheckState`: the state of a connection as the rules see it.

It is a `LedgerState`, which also keeps the frames that may become evidence. It tells the doctor what
happens: every frame of a type that rules ask for, and moments such as "a receipt answers the wrong SEND".
SEND, SEND_RECEIPT, MESSAGE, ACK and FLOW are most of the traffic, so no rule is called for them unless
something is unusual.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.facts import NOWHERE, Entry, Facts, Sent
from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.checks.ledgers import MAX_RETURNED, Consumer, Held, Producer, Returned, SightedState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fast_fields import Head
from pulsarctl_wire.wire.frame import (
    FRAME_PADDING,
    MAX_FRAME_SIZE,
    MAX_MESSAGE_SIZE,
    Connection,
    Event,
    Frame,
    Gap,
    Malformed,
)
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import find_misstated_size
from pulsarctl_wire.wire.session.counts import MAX_PERMITS
from pulsarctl_wire.wire.session.exchanges import ProducerLedger
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, bound
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, entry_of
from pulsarctl_wire.wire.session.plain import Asked
from pulsarctl_wire.wire.session.plain import Sent as Pending
from pulsarctl_wire.wire.session.state import PRODUCER, PRODUCER_SUCCESS


class Observer(Protocol):
    """What happens on a connection is told to it: the doctor."""

    facts: Facts

    def advance(self, time_ns: int, number: int) -> None:
        """The frame with this number and time comes next."""

    def frame(self, state: "CheckState", frame: Frame, seen: Sighting) -> None:
        """A frame of a type that rules ask for was tracked."""

    def lost(self, state: "CheckState", event: Malformed | Gap) -> None:
        """Bytes were missed, or are no frame."""

    def moment(self, name: str, state: "CheckState", frame: Frame, *what: Any) -> None:
        """Something unusual has happened (`rule.MOMENTS`)."""

    def due(self, who: Consumer | Producer, now_ns: int) -> None:
        """Time has passed for a consumer or producer."""

    def forget_held(self) -> None:
        """Forget the unacknowledged entries of the consumers that hold most, if there are too many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Way:
    """One direction of a connection.

    count       complete frames
    last        the last frame, cut ones included
    heard       the number of the last one up to the first FIN or RST
    heard_ns    the latest time of those, ns since the epoch
    """

    __slots__ = ("count", "heard", "heard_ns", "last")

    def __init__(self) -> None:
        self.count = self.heard = self.heard_ns = 0
        self.last: Sighting | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class CheckState(SightedState):
    """Tracks a connection for the doctor.

    to_client, to_broker     what is known of both directions
    limit       largest legal frame in bytes, as the broker announced it
    """

    # defaults here, not in `__init__`, take no memory: most connections of a flood never send a frame
    limit: int = MAX_FRAME_SIZE
    first_ns: int = 0
    answered: Asked | None = None
    """The request that the current frame answers, unless that is a SEND."""
    request: Sighting | None = None
    """Its frame."""
    left_consumers: Sequence[Consumer] = ()
    left_producers: Sequence[Producer] = ()
    _is_strange: bool = False  # it began with bytes that are no frame
    _highest: Entry = NOWHERE  # entry that the current ACK names
    _requests: dict[int, Sighting] | None = None  # by frame number

    def __init__(
        self,
        connection: Connection,
        knowledge: Knowledge,
        streams: Iterable[FrameStream] = (),
        *,
        doctor: Observer,
        types: list[bool],
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self.doctor = doctor
        self.facts = doctor.facts
        self._types = types
        self.to_client, self.to_broker = Way(), Way()

    def track(self, events: list[Event]) -> None:
        """Track events, and tell the doctor about them one by one."""
        doctor, types, facts = self.doctor, self._types, self.facts
        for event in events:
            time_ns = event.time_ns or 0
            if time_ns >= facts.due_ns:
                doctor.advance(time_ns, self._knowledge.frames + 1)
            if not isinstance(event, Frame):
                self._lose()
                if self._may_be_pulsar(event):
                    self.whole = facts.whole = False
                doctor.lost(self, event)
                continue
            frame = event
            kind = frame.type
            way = self.to_broker if frame.to_broker else self.to_client
            if not self.first_ns:
                self.first_ns = time_ns
            number, ordinal = self._knowledge.frames + 1, way.count
            if frame.partial:
                self.whole = False
            else:
                way.count = ordinal + 1
            if kind == _SEND:
                seen: Sighting = Sent(frame.connection, number, ordinal, kind, time_ns, frame.packet)
            else:
                seen = Sighting(
                    frame.connection, frame.to_broker, number, ordinal, kind, time_ns, frame.packet
                )
            self.seen = seen
            self.answered = self.request = None
            self.is_chunk = False
            self._follow(frame)
            if 0 <= kind < len(types) and types[kind]:
                doctor.frame(self, frame, seen)
            if frame.size > self.limit:
                doctor.moment("oversized", self, frame, seen)
            way.last = seen
            if self.closed_ns is None or time_ns <= self.closed_ns:
                way.heard = number
                if time_ns > way.heard_ns:
                    way.heard_ns = time_ns

    def is_unanswered(self, ping: Sighting) -> bool:
        """Whether the receiver of a PING has sent nothing after it, neither by order nor by time."""
        way = self.way(not ping.to_broker)
        return ping.number > way.heard and ping.time_ns > way.heard_ns

    def way(self, to_broker: bool) -> "Way":
        """What is known of a direction."""
        return self.to_broker if to_broker else self.to_client

    def _may_be_pulsar(self, event: Event) -> bool:
        """Whether these bytes may have been frames: some were seen, or nothing else was.

        A keep-alive probe of TCP, captured before anything else of its side, looks like a hole of one byte.
        """
        if isinstance(event, Gap) and event.size == 1 and not event.offset:
            return False
        if self.to_client.count or self.to_broker.count:
            return not (isinstance(event, Malformed) and event.protocol)
        self._is_strange |= isinstance(event, Malformed)
        return not self._is_strange

    def _ask(self, key: tuple[str, int], asked: Asked, body: Any) -> None:
        super()._ask(key, asked, body)
        if self._requests is None:
            self._requests = {}
        self._requests[asked.number] = self.seen
        bound(self._requests, MAX_PENDING)

    def _answered(self, frame: Frame, asked: Asked) -> None:
        self.answered = asked
        self.request = self._requests.pop(asked.number, None) if self._requests is not None else None
        super()._answered(frame, asked)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes sent to the client and to the broker, as far as they were decoded."""
        found = [0, 0]
        for stream in self._streams:
            found[stream.to_broker] = stream.position
        return found[0], found[1]

    def apply_limit(self, frame: Frame) -> None:
        """Apply the limit that CONNECTED announces. Overrides the parent's method."""
        super().apply_limit(frame)
        announced = frame.base.connected.max_message_size if frame.base is not None else 0
        self.limit = (announced if announced > 0 else MAX_MESSAGE_SIZE) + FRAME_PADDING

    # -- producers

    def _ledger(self, producer: int) -> ProducerLedger:
        before = self.producers.get(producer)
        ledger = super()._ledger(producer)
        made = Producer(self, producer, ledger.topic)
        if isinstance(before, Producer):
            made.access, made.epoch, made.request = before.access, before.epoch, before.request
        self.producers[producer] = made
        return made

    def _open(self, frame: Frame, body: Any) -> None:
        super()._open(frame, body)
        if frame.type == PRODUCER:
            ledger = self.producers.get(body.producer_id)
            if isinstance(ledger, Producer):
                ledger.access, ledger.epoch = body.producer_access_mode, body.epoch
                ledger.request = self.seen
                ledger.publisher = None
                ledger.has_receipt = False

    def _complete(self, key: tuple[str, int], frame: Frame, body: Any, asked: Asked, last: bool) -> None:
        super()._complete(key, frame, body, asked, last)
        if self._is_repeat(asked):
            return
        ledger = self.producers.get(asked.owner[1]) if asked.owner is not None else None
        if frame.type == PRODUCER_SUCCESS and isinstance(ledger, Producer):
            ledger.opened = self.seen
            ledger.last_sequence = body.last_sequence_id
            ledger.publisher = None
            publisher = ledger.identify(ledger.name) if last and ledger.name else None
            if publisher is not None:
                publisher.add(ledger)
        elif asked.type == _SUBSCRIBE and asked.owner is not None:
            consumer = self.consumer(asked.owner[1])
            if consumer is not None:
                consumer.opened = self.seen

    def _send(self, frame: Frame) -> None:
        super()._send(frame)
        sent, head = self.seen, frame.head
        if not isinstance(sent, Sent) or frame.partial:
            return
        self.compare(frame, sent)
        if sent.before is not None:
            producer = self.producer(sent.producer)
            self.doctor.moment("sent_again", self, frame, producer, sent)
        if frame.checksum == "invalid":
            sent.corrupt = True
            self.doctor.moment("corrupt", self, frame, sent)
        elif head is None:
            self.facts.was_sent(self.checksum_of(frame), True)
            self.doctor.moment("undecodable", self, frame, sent)
        else:
            sent.is_usual = head.is_plain
            if head.codec:
                self._decompress(frame, head)
            if self.is_chunk:
                self.doctor.moment("chunk", self, frame, sent)

    # What a state that is not given the bytes of entries must know otherwise:

    def compare(self, frame: Frame, sent: Sent) -> None:
        """Remember the bytes of a SEND, and compare them with those of the one before."""
        sent.size = len(frame.raw) - frame.payload_at
        if frame.payload_at <= LARGEST_HEAD:
            sent.head = frame.raw[4 : frame.payload_at]
        if frame.checksum != "valid" or not sent.head:
            sent.digest = crc32c(frame.payload)
        if sent.before is not None:
            sent.repeats = sent.before.has_payload(frame.payload)

    def checksum_of(self, frame: Frame) -> bytes:
        """What the SEND and the MESSAGE of an entry have in common."""
        return frame.stored_checksum

    def misstated(self, frame: Frame) -> int | None:
        """The size of a compressed payload, if another one is stated; -1: its codec cannot read it."""
        assert frame.metadata is not None
        return find_misstated_size(frame.metadata, frame.payload, self.facts.budget)

    def _answer_send(self, frame: Frame, ledger: ProducerLedger, sequence: int) -> Pending | None:
        if not isinstance(ledger, Producer):
            return super()._answer_send(frame, ledger, sequence)
        pending = super()._answer_send(frame, ledger, sequence)
        sent = ledger.sent(sequence, pending) if pending is not None else None
        is_receipt = frame.type == _SEND_RECEIPT
        ledger.answers += 1
        if is_receipt:
            ledger.has_receipt = True
            if sent is None or sent.place != ledger.answers:
                self.doctor.moment("receipt_out_of_order", self, frame, ledger, sequence)
        if sent is None:
            return pending
        sent.answer = self.seen
        if is_receipt:
            stored = frame.ids.ledger, frame.ids.entry
            sent.stored = NOWHERE if stored[0] > _LARGEST_ID else stored
            if ledger.facts is not None:
                self.facts.store(ledger.facts, sent)
            if sent.before is not None or sent.stored == NOWHERE:
                self.doctor.moment("stored_again", self, frame, ledger, sent)
        else:
            sent.failed = True
            self.doctor.moment("send_failed", self, frame, ledger, sent)
        return pending

    def _decompress(self, frame: Frame, head: Head) -> None:
        """Tell the doctor if an entry cannot be decompressed; a MESSAGE only if its SEND was not seen."""
        encrypted = not head.is_plain and frame.metadata.encryption_keys  # type: ignore[union-attr]
        is_readable = frame.checksum == "valid" and not (self.is_chunk or encrypted)
        if not is_readable or self.facts.was_sent(self.checksum_of(frame), frame.to_broker):
            return
        right = self.misstated(frame)
        if right is not None:
            self.doctor.moment("unreadable", self, frame, self.seen, None if right < 0 else right)

    def _report(self, frame: Frame, number: int, kind: int) -> None:
        """Exchanges are not reported as values: nobody asks for them. Overrides the parent's method."""

    # -- consumers

    def _new_consumer(self, body: Any, topic: str, subscription: str) -> ConsumerLedger:
        shared = self.facts.subscription(topic, subscription)
        consumer = Consumer(self, self.seen, body, shared)
        shared.add(consumer)
        return consumer

    def _flow(self, frame: Frame) -> None:
        consumer = self.consumer(frame.base.flow.consumer_id)  # type: ignore[union-attr]
        if consumer is not None:
            self.move(frame, consumer)
        super()._flow(frame)
        if consumer is None:
            return
        if consumer.first_flow is None:
            consumer.first_flow = self.seen
            consumer.first_grant = consumer.permits
        consumer.last_flow = self.seen
        consumer.flows += 1
        if consumer.permits >= 2 * consumer.first_grant or consumer.permits > MAX_PERMITS:
            self.doctor.moment("granted", self, frame, consumer)

    def move(self, frame: Frame, consumer: Consumer) -> None:
        """A FLOW or MESSAGE of a consumer comes, and may end a pause. Overrides the parent's method."""
        time_ns, quiet_ns, last = self.seen.time_ns, self.facts.quiet_ns, consumer.last_message
        if time_ns - consumer.moved_ns >= quiet_ns or (
            frame.type == _MESSAGE and last is not None and time_ns - last.time_ns >= quiet_ns
        ):
            self.doctor.moment("pause_ends", self, frame, consumer)
        consumer.moved_ns = time_ns

    def _message(self, frame: Frame) -> None:
        super()._message(frame)
        seen, doctor, head = self.seen, self.doctor, frame.head
        if frame.partial:
            return
        if frame.checksum == "invalid":
            doctor.moment("corrupt", self, frame, seen)
        elif head is None:
            if not self.facts.was_sent(self.checksum_of(frame), False):
                doctor.moment("undecodable", self, frame, seen)
        elif head.codec:
            self._decompress(frame, head)
        if self.is_chunk:
            doctor.moment("chunk", self, frame, seen)

    def _entry(self, frame: Frame, head: Head, owner: int) -> None:
        super()._entry(frame, head, owner)
        self.is_chunk = head.chunks > 1 and not frame.partial

    def delivered(self, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """A consumer gets an entry; it counts already. Overrides the parent's method."""
        head = frame.head
        if consumer.epoch:
            self.doctor.moment("epoch", self, frame, consumer)
        if head is not None and not head.is_plain and frame.metadata.deliver_at_time:  # type: ignore[union-attr]
            self.doctor.moment("delayed", self, frame, consumer)
        if consumer.returned:
            self._came_again(frame, consumer, entry)

    def forget_held(self) -> None:
        """Too many unacknowledged entries are remembered: forget some. Overrides the parent's method."""
        self.doctor.forget_held()

    def _came_again(self, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Count a delivery after a REDELIVER of the same entry."""
        returned = consumer.returned.get(entry)
        if returned is not None:
            returned.count += 1
            returned.last = self.seen
            returned.redelivery_count = frame.ids.count
            self.doctor.moment("came_again", self, frame, consumer, entry, returned)

    def _ack(self, frame: Frame) -> None:
        ids = frame.ids
        consumer = self.consumer(ids.owner)
        if consumer is not None:
            is_unusual = not ids.is_plain and ids.several is None
            if is_unusual and frame.base.ack.HasField("validation_error"):  # type: ignore[union-attr]
                self.doctor.moment("discarded", self, frame, consumer)
            last = consumer.last_message
            if last is not None and self.seen.time_ns - last.time_ns >= self.facts.quiet_ns:
                self.doctor.moment("pause_ends", self, frame, consumer)
            self._highest = NOWHERE
        super()._ack(frame)
        if consumer is not None:
            consumer.shared.raise_to(self._highest, self.seen)

    def _acknowledged(self, frame: Frame, consumer: ConsumerLedger, entry: Entry, words: Any) -> None:
        if not isinstance(consumer, Consumer):
            return
        if entry > self._highest:
            self._highest = entry
        if consumer.acknowledge(entry, words) is not None:
            consumer.acked += 1
        elif entry not in consumer.entries and consumer.shared.are_few:
            for other in consumer.shared.owners():
                other.acknowledge(entry, words)
        if words:
            first = consumer.partly[entry][0] if entry in consumer.partly else self.seen
            consumer.partly[entry] = first, self.seen
            bound(consumer.partly, MAX_RETURNED)
            return
        if consumer.returned:
            consumer.returned.pop(entry, None)
        if consumer.partly:
            consumer.partly.pop(entry, None)

    def _redeliver(self, frame: Frame) -> None:
        body = frame.base.redeliverUnacknowledgedMessages  # type: ignore[union-attr]
        consumer = self.consumer(body.consumer_id)
        if consumer is not None:
            for entry in [entry_of(each) for each in body.message_ids] or list(consumer.entries):
                held, returned = consumer.entries.get(entry), consumer.returned.get(entry)
                if returned is not None:
                    returned.asked_again = self.seen
                elif isinstance(held, Held):
                    consumer.returned[entry] = Returned(self.seen, held.seen)
            bound(consumer.returned, MAX_RETURNED)
        super()._redeliver(frame)

    # -- ends

    def _close(self, frame: Frame) -> None:
        consumer = self.consumer(frame.base.close_consumer.consumer_id)  # type: ignore[union-attr]
        super()._close(frame)
        if consumer is not None:
            consumer.shared.drop(consumer)
            self.doctor.due(consumer, self.seen.time_ns)

    def _request(self, frame: Frame) -> None:
        if frame.type == _CLOSE_PRODUCER:
            producer = self.producer(frame.base.close_producer.producer_id)  # type: ignore[union-attr]
            if producer is not None and producer.is_open:
                self.doctor.due(producer, self.seen.time_ns)
                self._drop(producer)
        super()._request(frame)

    def end(self) -> None:
        """The connection has ended: what was open stays in `left_consumers` and `left_producers`."""
        self.left_consumers = [each for each in self.consumers.values() if isinstance(each, Consumer)]
        self.left_producers = [
            each for each in self.producers.values() if isinstance(each, Producer) and each.is_open
        ]
        if self.closed_ns is not None:
            for consumer in self.left_consumers:
                self.doctor.due(consumer, self.closed_ns)
            for producer in self.left_producers:
                self.doctor.due(producer, self.closed_ns)
        for consumer in self.left_consumers:
            consumer.shared.drop(consumer)
        for producer in self.left_producers:
            self._drop(producer)
        super().end()

    def _drop(self, producer: Producer) -> None:
        """A producer gives up its name."""
        if producer.publisher is not None:
            producer.publisher.drop(producer)


_LARGEST_ID: Final = 2**63 - 1
LARGEST_HEAD: Final = 8_192
"""Bytes of a SEND before its payload that are remembered, if they are no more."""
_SEND: Final = NUMBERS["SEND"]
_SUBSCRIBE: Final = NUMBERS["SUBSCRIBE"]
_SEND_RECEIPT: Final = NUMBERS["SEND_RECEIPT"]
_CLOSE_PRODUCER: Final = NUMBERS["CLOSE_PRODUCER"]
_MESSAGE: Final = NUMBERS["MESSAGE"]
