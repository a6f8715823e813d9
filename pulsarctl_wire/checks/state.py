"""`CheckState`: the state of a connection as the rules see it.

It is a `LedgerState` that also keeps the frames which may become evidence. It tells the doctor about frames
of the types that rules ask for, and about moments such as "a receipt answers the wrong SEND". No rule is
called for SEND, SEND_RECEIPT, MESSAGE, ACK and FLOW, most of the traffic, unless something is unusual.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.conduct import SILENT, ConductState, Direction, Observer
from pulsarctl_wire.checks.facts import NOWHERE, Entry, Send
from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.checks.ledgers import (
    MAX_REDELIVERED,
    Consumer,
    Producer,
    Redelivery,
    UnackedDelivery,
)
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
    HttpMessage,
    Malformed,
)
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.inspection import Inspection, inspect_entry
from pulsarctl_wire.wire.session.counts import MAX_PERMITS
from pulsarctl_wire.wire.session.exchanges import ProducerLedger
from pulsarctl_wire.wire.session.knowledge import Knowledge, bound
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, entry_of
from pulsarctl_wire.wire.session.state import PRODUCER, PRODUCER_SUCCESS
from pulsarctl_wire.wire.session.state_data import Request
from pulsarctl_wire.wire.session.state_data import Sent as Pending


@mypyc_attr(allow_interpreted_subclasses=True)
class CheckState(ConductState):
    """Tracks a connection for the doctor.

    limit       largest legal frame in bytes, as the broker announced it
    first_ns    time of the first frame, ns since the epoch; 0 if unknown
    """

    # defaults here, not in `__init__`, take no memory: most connections of a flood never send a frame
    limit: int = MAX_FRAME_SIZE
    first_ns: int = 0
    answered_request: Request | None = None
    """The request that the current frame answers, unless that is a SEND."""
    consumers_at_end: Sequence[Consumer] = ()
    producers_at_end: Sequence[Producer] = ()
    _has_foreign_start: bool = False  # it began with bytes that are no frame
    _highest: Entry = NOWHERE  # the highest entry that the current ACK acknowledges

    def __init__(
        self,
        connection: Connection,
        knowledge: Knowledge,
        streams: Iterable[FrameStream] = (),
        *,
        doctor: Observer,
        handles_type: list[bool],
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self.doctor, self.facts = doctor, doctor.facts
        self._handles_type = handles_type  # by type of command

    def track(self, events: list[Event]) -> None:
        """Track events, and tell the doctor about them one by one."""
        doctor, handles_type, facts = self.doctor, self._handles_type, self.facts
        if self.to_client is SILENT:
            self.to_client, self.to_broker = Direction(), Direction()
        for event in events:
            time_ns = event.time_ns or 0
            if time_ns >= facts.due_ns:
                doctor.advance(time_ns, self._knowledge.frames + 1)
            if isinstance(event, HttpMessage):
                doctor.on_moment("http", self, event, self._knowledge.frames + 1)
                continue
            if not isinstance(event, Frame):
                self._lose()
                if self._may_be_pulsar(event):
                    self.has_all_bytes = facts.has_all_bytes = False
                doctor.on_lost(self, event)
                continue
            frame = event
            kind = frame.type
            direction = self.to_broker if frame.to_broker else self.to_client
            if not self.first_ns:
                self.first_ns = time_ns
            number, ordinal = self._knowledge.frames + 1, direction.count
            if frame.partial:
                self.has_all_bytes = False
            else:
                direction.count = ordinal + 1
            if kind == _SEND:
                sighting: Sighting = Send(frame.connection, number, ordinal, kind, time_ns, frame.packet)
            else:
                sighting = Sighting(
                    frame.connection, frame.to_broker, number, ordinal, kind, time_ns, frame.packet
                )
            self.sighting = sighting
            self.answered_request = self.request_sighting = None
            self.is_chunk = False
            self._follow(frame)
            self.check_direction(frame, ordinal)
            if 0 <= kind < len(handles_type) and handles_type[kind]:
                doctor.on_frame(self, frame, sighting)
            if frame.size > self.limit:
                doctor.on_moment("oversized", self, frame, sighting)
            direction.last = sighting
            if self.closed_ns is None or time_ns <= self.closed_ns:
                direction.last_heard = number
                if time_ns > direction.last_heard_ns:
                    direction.last_heard_ns = time_ns

    def is_unanswered(self, ping: Sighting) -> bool:
        """Return whether the receiver of a PING has sent nothing since, by frame number and by time."""
        direction = self.direction(not ping.to_broker)
        return ping.number > direction.last_heard and ping.time_ns > direction.last_heard_ns

    def direction(self, to_broker: bool) -> "Direction":
        """Return what was seen in one direction."""
        return self.to_broker if to_broker else self.to_client

    def _may_be_pulsar(self, event: Event) -> bool:
        """Return whether the bytes of a gap or malformed stretch may be Pulsar's.

        After frames, they may unless they are of another protocol. Before any frame, they may unless the
        connection began with bytes that are no frame. A keep-alive probe of TCP, captured before anything
        else of its side, looks like a hole of one byte.
        """
        if isinstance(event, Gap) and event.size == 1 and not event.offset:
            return False
        if self.to_client.count or self.to_broker.count:
            return not (isinstance(event, Malformed) and event.protocol)
        self._has_foreign_start |= isinstance(event, Malformed)
        return not self._has_foreign_start

    def _pair_answer(self, frame: Frame, asked: Request) -> None:
        self.answered_request = asked
        self.request_sighting = self._requests.pop(asked.number, None) if self._requests is not None else None
        super()._pair_answer(frame, asked)
        if self.request_sighting is not None:
            self.record_outcome(self.request_sighting, frame.command)

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes sent to the client and to the broker, as far as they were decoded."""
        sizes = [0, 0]
        for stream in self._streams:
            sizes[stream.to_broker] = stream.position
        return sizes[0], sizes[1]

    def apply_limit(self, frame: Frame) -> None:
        """Apply the limit that CONNECTED announces. Overrides the parent's method."""
        super().apply_limit(frame)
        announced = frame.base.connected.max_message_size if frame.base is not None else 0
        self.limit = (announced if announced > 0 else MAX_MESSAGE_SIZE) + FRAME_PADDING

    # -- producers

    def _ledger(self, producer: int) -> ProducerLedger:
        previous = self.producers.get(producer)
        ledger = super()._ledger(producer)
        new_ledger = Producer(self, producer, ledger.topic)
        if isinstance(previous, Producer):
            new_ledger.access_mode, new_ledger.epoch = previous.access_mode, previous.epoch
            new_ledger.request = previous.request
            new_ledger.life = previous.life
        self.producers[producer] = new_ledger
        return new_ledger

    def _open(self, frame: Frame, body: Any) -> None:
        super()._open(frame, body)
        if frame.type == PRODUCER:
            ledger = self.producers.get(body.producer_id)
            if isinstance(ledger, Producer):
                ledger.access_mode, ledger.epoch = body.producer_access_mode, body.epoch
                ledger.request = self.sighting
                ledger.publisher = None
                ledger.has_receipt = False
                ledger.life = self.lives.get((False, body.producer_id))

    def _complete(self, key: tuple[str, int], frame: Frame, body: Any, asked: Request, last: bool) -> None:
        super()._complete(key, frame, body, asked, last)
        if self._is_repeat(asked):
            return
        if asked.owner is not None and asked.type in (PRODUCER, _SUBSCRIBE) and frame.type != _ERROR:
            self.record_success(asked.owner, is_ready=last)
        ledger = self.producers.get(asked.owner[1]) if asked.owner is not None else None
        if frame.type == PRODUCER_SUCCESS and isinstance(ledger, Producer):
            ledger.success = self.sighting
            ledger.last_sequence = body.last_sequence_id
            ledger.publisher = None
            publisher = ledger.identify(ledger.name) if last and ledger.name else None
            if publisher is not None:
                publisher.add(ledger)
        elif asked.type == _SUBSCRIBE and asked.owner is not None:
            consumer = self.consumer(asked.owner[1])
            if consumer is not None:
                consumer.success = self.sighting

    def _send(self, frame: Frame) -> None:
        super()._send(frame)
        send, head = self.sighting, frame.head
        if not isinstance(send, Send) or frame.partial:
            return
        producer = self.producer(frame.ids.owner)
        if producer is None or producer.life is None or not producer.life.is_open:
            self.notice("not_open", frame, (False, frame.ids.owner))
            producer = None
        self.compare(frame, send)
        if send.previous is not None:
            self.doctor.on_moment("sent_again", self, frame, self.producer(send.producer), send)
        if frame.checksum == "invalid":
            send.is_corrupt = True
            self.doctor.on_moment("corrupt", self, frame, send)
        elif head is None:
            self.facts.match_send(self.identify_entry(frame), True)
            self.doctor.on_moment("undecodable", self, frame, send)
        else:
            send.has_plain_metadata = head.is_plain
            self.check_send(frame, head, producer, send)
            if head.codec or head.batch != 1:
                self._inspect(frame, head)
            if self.is_chunk:
                self.doctor.on_moment("chunk", self, frame, send)

    # Methods that a state without the bytes of entries must override:

    def compare(self, frame: Frame, send: Send) -> None:
        """Remember size, head and digest of a SEND, and whether `previous` has the same payload."""
        send.size = len(frame.raw) - frame.payload_at
        if frame.payload_at <= LARGEST_HEAD:
            send.head = frame.raw[4 : frame.payload_at]
        if frame.checksum != "valid" or not send.head:
            send.digest = crc32c(frame.payload)
        if send.previous is not None:
            send.has_same_payload = send.previous.has_payload(frame.payload)

    def identify_entry(self, frame: Frame) -> bytes:
        """Return bytes that the SEND and the MESSAGE of an entry have in common."""
        return frame.stored_checksum

    def inspect(self, frame: Frame) -> Inspection:
        """Return what is wrong with the sizes of an entry."""
        assert frame.metadata is not None
        return inspect_entry(frame.metadata, frame.payload, self.facts.budget)

    def _answer_send(self, frame: Frame, ledger: ProducerLedger, sequence: int) -> Pending | None:
        if not isinstance(ledger, Producer):
            return super()._answer_send(frame, ledger, sequence)
        pending = super()._answer_send(frame, ledger, sequence)
        send = ledger.find_send(sequence, pending) if pending is not None else None
        is_receipt = frame.type == _SEND_RECEIPT
        ledger.answer_count += 1
        if is_receipt:
            ledger.has_receipt = True
            if send is None or send.position != ledger.answer_count:
                self.doctor.on_moment("receipt_out_of_order", self, frame, ledger, sequence)
        if send is None:
            return pending
        send.answer = self.sighting
        self.record_outcome(send, frame.command)
        if is_receipt:
            entry = frame.ids.ledger, frame.ids.entry
            send.stored_id = NOWHERE if entry[0] > _LARGEST_ID else entry
            if ledger.topic_facts is not None and send.stored_id != NOWHERE:
                self.facts.record_stored(ledger.topic_facts, send)
            if send.previous is not None or send.stored_id == NOWHERE or not send.is_rising:
                self.doctor.on_moment("possible_duplicate", self, frame, ledger, send)
        else:
            send.is_failed = True
            self.doctor.on_moment("send_failed", self, frame, ledger, send)
        return pending

    def _inspect(self, frame: Frame, head: Head) -> None:
        """Tell the doctor if the sizes of an entry are wrong; of a MESSAGE only if its SEND was not seen."""
        is_encrypted = not head.is_plain and frame.metadata.encryption_keys  # type: ignore[union-attr]
        is_readable = frame.checksum == "valid" and not (self.is_chunk or is_encrypted)
        if not is_readable or self.facts.match_send(self.identify_entry(frame), frame.to_broker):
            return
        size, count = self.inspect(frame)
        if size is not None:
            self.doctor.on_moment("unreadable", self, frame, self.sighting, None if size < 0 else size)
        if count is not None:
            self.doctor.on_moment("odd_batch", self, frame, self.sighting, count)

    def _report(self, frame: Frame, number: int, kind: int) -> None:
        """Do not report exchanges: nobody needs them. Overrides the parent's method."""

    # -- consumers

    def _new_consumer(self, body: Any, topic: str, subscription: str) -> ConsumerLedger:
        subscription_facts = self.facts.get_subscription(topic, subscription)
        consumer = Consumer(self, self.sighting, body, subscription_facts)
        subscription_facts.add(consumer)
        return consumer

    def _flow(self, frame: Frame) -> None:
        flow = frame.base.flow  # type: ignore[union-attr]
        consumer = self.consumer(flow.consumer_id)
        if consumer is not None:
            self.record_activity(frame, consumer)
        super()._flow(frame)
        self.check_flow(frame, consumer, flow.messagePermits)
        if consumer is None:
            return
        if consumer.first_flow is None:
            consumer.first_flow = self.sighting
            consumer.first_grant = consumer.permits
        consumer.last_flow = self.sighting
        consumer.flow_count += 1
        if consumer.permits >= 2 * consumer.first_grant or consumer.permits > MAX_PERMITS:
            self.doctor.on_moment("many_permits", self, frame, consumer)

    def record_activity(self, frame: Frame, consumer: Consumer) -> None:
        """Record a FLOW or MESSAGE, which may end a pause. Overrides the parent's method."""
        time_ns, quiet_ns, last = self.sighting.time_ns, self.facts.quiet_ns, consumer.last_message
        if time_ns - consumer.active_ns >= quiet_ns or (
            frame.type == _MESSAGE and last is not None and time_ns - last.time_ns >= quiet_ns
        ):
            self.doctor.on_moment("pause_ends", self, frame, consumer)
        consumer.active_ns = time_ns

    def _message(self, frame: Frame) -> None:
        if frame.ids.owner not in self.consumers:
            self.notice("not_open", frame, (True, frame.ids.owner))
        super()._message(frame)
        sighting, doctor, head = self.sighting, self.doctor, frame.head
        if frame.partial:
            return
        if frame.checksum == "invalid":
            doctor.on_moment("corrupt", self, frame, sighting)
        elif head is None:
            if not self.facts.match_send(self.identify_entry(frame), False):
                doctor.on_moment("undecodable", self, frame, sighting)
        elif head.codec or head.batch != 1:
            self._inspect(frame, head)
        if self.is_chunk:
            doctor.on_moment("chunk", self, frame, sighting)

    def _entry(self, frame: Frame, head: Head, owner: int) -> None:
        super()._entry(frame, head, owner)
        self.is_chunk = head.chunks > 1 and not frame.partial

    def check_delivery(self, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Check a delivery. Overrides the parent's method."""
        head = frame.head
        self.check_unrequested(frame, consumer, entry)
        if consumer.epoch:
            self.doctor.on_moment("epoch", self, frame, consumer)
        if head is not None and not head.is_plain and frame.metadata.deliver_at_time:  # type: ignore[union-attr]
            self.doctor.on_moment("delayed", self, frame, consumer)
        redelivery = consumer.redelivered.get(entry) if consumer.redelivered else None
        if redelivery is not None:
            redelivery.count += 1
            redelivery.last_message = self.sighting
            redelivery.redelivery_count = frame.ids.count
            self.doctor.on_moment("came_again", self, frame, consumer, entry, redelivery)

    def forget_unacked(self) -> None:
        """Forget some unacknowledged entries. Overrides the parent's method."""
        self.doctor.forget_unacked()

    def _ack(self, frame: Frame) -> None:
        ids = frame.ids
        consumer = self.consumer(ids.owner)
        if consumer is not None:
            is_unusual = not ids.is_plain and ids.several is None
            if is_unusual and frame.base.ack.HasField("validation_error"):  # type: ignore[union-attr]
                self.doctor.on_moment("discarded", self, frame, consumer)
            last = consumer.last_message
            if last is not None and self.sighting.time_ns - last.time_ns >= self.facts.quiet_ns:
                self.doctor.on_moment("pause_ends", self, frame, consumer)
            self._highest = NOWHERE
        self.check_ack(frame, consumer)
        super()._ack(frame)
        if consumer is not None:
            consumer.subscription_facts.record_ack(self._highest, self.sighting)

    def _report_acknowledged(self, frame: Frame, consumer: ConsumerLedger, entry: Entry, words: Any) -> None:
        if not isinstance(consumer, Consumer):
            return
        if entry > self._highest:
            self._highest = entry
        delivery = consumer.acknowledge(entry, words)
        if isinstance(delivery, UnackedDelivery):
            consumer.acked_count += 1
            if delivery.size > 1 and not words:
                consumer.acked_batches[entry] = delivery.size, [self.sighting]
                bound(consumer.acked_batches, MAX_REDELIVERED)
        elif entry not in consumer.entries:
            if not words:
                self.notice("unheld_ack", frame, consumer, entry)
            if consumer.subscription_facts.has_few_owners:  # another consumer may hold the entry
                for owner in consumer.subscription_facts.list_owners():
                    owner.acknowledge(entry, words)
        if words:
            first = consumer.partial_acks[entry][0] if entry in consumer.partial_acks else self.sighting
            consumer.partial_acks[entry] = first, self.sighting
            bound(consumer.partial_acks, MAX_REDELIVERED)
            return
        if consumer.redelivered:
            consumer.redelivered.pop(entry, None)
        if consumer.partial_acks:
            consumer.partial_acks.pop(entry, None)

    def _redeliver(self, frame: Frame) -> None:
        body = frame.base.redeliverUnacknowledgedMessages  # type: ignore[union-attr]
        consumer = self.consumer(body.consumer_id)
        if consumer is not None:
            for entry in [entry_of(message_id) for message_id in body.message_ids] or list(consumer.entries):
                delivery, redelivery = consumer.entries.get(entry), consumer.redelivered.get(entry)
                if redelivery is not None:
                    redelivery.last_request = self.sighting
                elif isinstance(delivery, UnackedDelivery):
                    consumer.redelivered[entry] = Redelivery(self.sighting, delivery.sighting)
            bound(consumer.redelivered, MAX_REDELIVERED)
        super()._redeliver(frame)

    # -- ends

    def _close(self, frame: Frame) -> None:
        consumer = self.consumer(frame.base.close_consumer.consumer_id)  # type: ignore[union-attr]
        super()._close(frame)
        if consumer is not None:
            consumer.subscription_facts.drop(consumer)
            self.doctor.check_owner(consumer, self.sighting.time_ns)

    def _request(self, frame: Frame) -> None:
        if frame.type == _CLOSE_PRODUCER:
            producer = self.producer(frame.base.close_producer.producer_id)  # type: ignore[union-attr]
            if producer is not None and producer.is_open:
                self.doctor.check_owner(producer, self.sighting.time_ns)
                self._drop(producer)
        super()._request(frame)

    def end(self) -> None:
        """End the connection: open owners stay in `consumers_at_end` and `producers_at_end`."""
        self.consumers_at_end = [owner for owner in self.consumers.values() if isinstance(owner, Consumer)]
        owners = self.producers.values()
        self.producers_at_end = [owner for owner in owners if isinstance(owner, Producer) and owner.is_open]
        if self.closed_ns is not None:
            for consumer in self.consumers_at_end:
                self.doctor.check_owner(consumer, self.closed_ns)
            for producer in self.producers_at_end:
                self.doctor.check_owner(producer, self.closed_ns)
        for consumer in self.consumers_at_end:
            consumer.subscription_facts.drop(consumer)
        for producer in self.producers_at_end:
            self._drop(producer)
        super().end()

    def _drop(self, producer: Producer) -> None:
        """Remove a producer from the owners of its name."""
        if producer.publisher is not None:
            producer.publisher.drop(producer)


_LARGEST_ID: Final = 2**63 - 1  # ids above it are negative: a duplicate's receipt has -1:-1
LARGEST_HEAD: Final = 8_192
"""Maximum size of the bytes before the payload of a SEND; if there are more, none are remembered."""
_SEND: Final = NUMBERS["SEND"]
_ERROR: Final = NUMBERS["ERROR"]
_SUBSCRIBE: Final = NUMBERS["SUBSCRIBE"]
_SEND_RECEIPT: Final = NUMBERS["SEND_RECEIPT"]
_CLOSE_PRODUCER: Final = NUMBERS["CLOSE_PRODUCER"]
_MESSAGE: Final = NUMBERS["MESSAGE"]
