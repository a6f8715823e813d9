"""Ledgers (not BookKeeper's) of open consumers and producers, and frames that may become evidence."""

from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.facts import (
    MAX_UNACKED,
    NOWHERE,
    Entry,
    Facts,
    Publisher,
    Send,
    Subscription,
    Topic,
    format_entry,
    make_sequence_key,
)
from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe
from pulsarctl_wire.wire.session.exchanges import ProducerLedger
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, Delivered, LedgerState
from pulsarctl_wire.wire.session.state_data import (
    SENT_CHUNK,
    SENT_FRAME,
    SENT_HIGHEST,
    SENT_PRODUCER,
    SENT_PUBLISH_TIME,
)
from pulsarctl_wire.wire.session.state_data import Sent as Pending

MAX_REDELIVERED: Final = 4_096
"""Maximum number of redelivered entries, of partial ACKs, and of acked batches kept of a consumer."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SightedState(LedgerState):
    """The part of a connection's state that its consumers, its producers and their findings use.

    has_all_bytes    no byte was missed that may have been Pulsar's
    facts            what is known over all connections
    """

    # defaults here, not in `__init__`, take no memory: most connections of a flood never send a frame
    has_all_bytes: bool = True
    sighting: Sighting = Sighting(Connection(-1), True)
    """The current frame."""
    is_chunk: bool = False
    """Whether the current frame is a chunk."""
    facts: Facts
    _notes: dict[str, Any] | None = None

    @property
    def has_notes(self) -> bool:
        """Whether any rule may have notes about this connection."""
        return self._notes is not None

    @property
    def notes(self) -> dict[str, Any]:
        """The rules' own notes about this connection, by the rule's id."""
        if self._notes is None:
            self._notes = {}
        return self._notes

    @property
    def frame_count(self) -> int:
        """The number of frames on all connections, the current one included."""
        return max(self._knowledge.frames, self.sighting.number)

    def consumer(self, consumer_id: int) -> "Consumer | None":
        """Return the open consumer with this id, if its SUBSCRIBE was seen."""
        consumer = self.consumers.get(consumer_id)
        return consumer if isinstance(consumer, Consumer) else None

    def producer(self, producer_id: int) -> "Producer | None":
        """Return the producer with this id."""
        producer = self.producers.get(producer_id)
        return producer if isinstance(producer, Producer) else None

    def record_activity(self, frame: Frame, consumer: "Consumer") -> None:
        """Record a FLOW or MESSAGE of a consumer, which may end a pause."""
        raise NotImplementedError

    def check_delivery(self, frame: Frame, consumer: "Consumer", entry: Entry) -> None:
        """Check a delivery to a consumer: its permits are counted, `highest_delivered` is not raised yet."""
        raise NotImplementedError

    def forget_unacked(self) -> None:
        """Forget some unacknowledged entries of any connection, if there are too many."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnerLife:
    """What became of a producer or consumer id: the frames that asked for it, opened it, and ended it.

    request    PRODUCER or SUBSCRIBE
    queued     the answer that says that a producer must wait for its turn (WaitForExclusive)
    success    the answer after which it may be used; None until then
    end        CLOSE_PRODUCER, CLOSE_CONSUMER, UNSUBSCRIBE, or the ERROR that refused it; None until then
    is_seeking whether SEEK was sent, which closes a consumer
    """

    __slots__ = ("end", "is_seeking", "queued", "request", "success")

    def __init__(self, request: Sighting) -> None:
        self.request = request
        self.queued: Sighting | None = None
        self.success: Sighting | None = None
        self.end: Sighting | None = None
        self.is_seeking = False

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and nothing has ended it."""
        return self.success is not None and self.end is None


@mypyc_attr(allow_interpreted_subclasses=True)
class Redelivery:
    """An entry that a consumer asked for again.

    first_request, last_request    the first and the last REDELIVER_UNACKNOWLEDGED_MESSAGES for it
    first_message, last_message    the MESSAGE before the first request, and the latest one
    count                          deliveries since the first request
    redelivery_count               as in the latest MESSAGE
    """

    __slots__ = (
        "count",
        "first_message",
        "first_request",
        "last_message",
        "last_request",
        "redelivery_count",
    )

    def __init__(self, request: Sighting, message: Sighting) -> None:
        self.first_request = self.last_request = request
        self.first_message = self.last_message = message
        self.count = self.redelivery_count = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer(ConsumerLedger):
    """An open consumer: its ledger, and the frames that may become evidence.

    `active_ns` is the time of the last SUBSCRIBE, FLOW or MESSAGE. `deliveries` and `acked_count` count
    entries. `first_grant` is the number of permits after the first FLOW.
    """

    __slots__ = (
        *(
            "acked_batches",
            "acked_count",
            "consumer_id",
            "deliveries",
            "first_flow",
            "first_grant",
            "flow_count",
        ),
        *("highest_delivered", "kind", "last_flow", "last_message", "active_ns", "redelivered", "request"),
        *("partial_acks", "small_flows", "success", "subscription_facts", "state"),
    )

    def __init__(
        self, state: SightedState, sighting: Sighting, body: Any, subscription_facts: Subscription
    ) -> None:
        super().__init__(
            subscription_facts.topic.name, subscription_facts.name, getattr(body, "consumer_epoch", 0)
        )
        self.state = state
        self.request = sighting  # SUBSCRIBE
        self.subscription_facts = subscription_facts
        self.consumer_id: int = body.consumer_id
        self.kind: int = getattr(body, "subType", CommandSubscribe.Exclusive)
        self.success: Sighting | None = None  # SUCCESS
        self.active_ns = sighting.time_ns
        self.deliveries = self.acked_count = self.flow_count = self.first_grant = self.small_flows = 0
        self.first_flow: Sighting | None = None
        self.last_flow: Sighting | None = None
        self.last_message: Sighting | None = None
        self.highest_delivered: Entry = NOWHERE
        self.redelivered: dict[Entry, Redelivery] = {}
        self.partial_acks: dict[Entry, tuple[Sighting, Sighting]] = {}
        """Entries that are acknowledged in part, with the first and the last such ACK."""
        self.acked_batches: dict[Entry, tuple[int, list[Sighting]]] = {}
        """Batches that were acknowledged as a whole: how many messages each has, and these ACKs."""

    def deliver(self, entry: Entry, cost: int, frame: Frame) -> None:
        """Record a delivery. Overrides the parent's method."""
        state = self.state
        sighting = state.sighting
        state.record_activity(frame, self)
        super().deliver(entry, cost, frame)
        facts = state.facts
        facts.unacked_count += 1
        if facts.unacked_count > MAX_UNACKED:
            state.forget_unacked()
        state.check_delivery(frame, self, entry)
        self.last_message = sighting
        self.deliveries += 1
        if entry > self.highest_delivered:
            self.highest_delivered = entry
            if entry > self.subscription_facts.highest_delivered:
                self.subscription_facts.highest_delivered = entry

    def make_delivered(self, count: int, frame: Frame) -> Delivered:
        """Return the delivery of an entry with `count` messages by `frame`. Overrides the parent's method."""
        delivery = UnackedDelivery(
            count, self.state.sighting, is_chunk=self.state.is_chunk, is_intact=frame.checksum != "invalid"
        )
        delivery.is_repeat = frame.ids.count > 0
        return delivery

    def subject(self, entry: Entry | None = None) -> Subject:
        """Return the subject of a finding about this consumer, or about an entry delivered to it."""
        message = None if entry is None else format_entry(entry)
        return Subject(self.topic, self.subscription, consumer_id=self.consumer_id, message_id=message)

    @property
    def is_open(self) -> bool:
        """Whether it was neither closed nor replaced, and its connection is open."""
        return self.state.consumers.get(self.consumer_id) is self

    @property
    def is_shared(self) -> bool:
        """Whether several consumers share the entries: Shared or Key_Shared."""
        return self.kind in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


@mypyc_attr(allow_interpreted_subclasses=True)
class UnackedDelivery(Delivered):
    """An unacknowledged entry, with the MESSAGE that delivered it."""

    __slots__ = ("is_chunk", "is_intact", "is_repeat", "is_reported_hole", "sighting", "size")

    def __init__(self, left: int, sighting: Sighting, *, is_chunk: bool, is_intact: bool) -> None:
        super().__init__(left, sighting.number, sighting.time_ns)
        self.size = left
        self.sighting = sighting
        self.is_chunk = is_chunk
        self.is_intact = is_intact  # its checksum was not wrong when it was seen
        self.is_reported_hole = False  # by the rule `AckHole`
        self.is_repeat = False  # its redelivery_count is above 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Producer(ProducerLedger):
    """A producer, open or not: its ledger, and its name's SENDs over all connections.

    `send_count` and `answer_count` count SENDs and their answers; `has_receipt`: one was a SEND_RECEIPT.
    """

    __slots__ = (
        *("access_mode", "answer_count", "epoch", "has_receipt", "highest", "highest_used", "last_send"),
        *("last_sequence", "life", "success"),
        *("producer_id", "publisher", "request", "send_count", "state", "topic_facts"),
    )

    def __init__(self, state: SightedState, producer_id: int, topic: str | None) -> None:
        super().__init__(topic)
        self.state = state
        self.producer_id = producer_id
        self.epoch = 0  # of PRODUCER
        self.last_sequence = -1  # of PRODUCER_SUCCESS
        self.publisher: Publisher | None = None
        self.topic_facts: Topic | None = None
        self.send_count = self.answer_count = 0
        self.has_receipt = False
        self.access_mode = 0  # ProducerAccessMode
        self.highest = -1  # sequence id of its SENDs
        self.highest_used = -1  # sequence id of its SENDs, or inside of their batches
        self.life: OwnerLife | None = None
        self.request: Sighting | None = None  # PRODUCER
        self.last_send: Send | None = None
        self.success: Sighting | None = None  # PRODUCER_SUCCESS

    def subject(self, send: Send | None = None) -> Subject:
        """Return the subject of a finding about this producer, or about a SEND of it."""
        sequence = None if send is None else send.sequence
        return Subject(self.topic, producer_id=self.producer_id, sequence_id=sequence)

    def identify(self, name: str) -> Publisher | None:
        """Look up its topic and `name` in the facts; return the `Publisher`, or None without a topic."""
        if self.topic is None:
            return None
        facts = self.state.facts
        self.topic_facts = facts.get_topic(self.topic)
        self.publisher = facts.get_publisher(self.topic, name)
        return self.publisher

    def add(self, sequence: int, send: Pending) -> None:
        """Add a SEND, and remember it. Overrides the parent's method."""
        super().add(sequence, send)
        self._remember(sequence, send)

    def add_chunk(self, sequence: int, send: Pending, count: int, *, lossy: bool) -> None:
        """Add the SEND of a chunk, and remember it. Overrides the parent's method."""
        super().add_chunk(sequence, send, count, lossy=lossy)
        self._remember(sequence, send)

    def _remember(self, sequence: int, pending: Pending) -> None:
        send = self.state.sighting
        if not isinstance(send, Send):
            return
        self.send_count += 1
        send.position = self.send_count
        send.producer, send.sequence = self.producer_id, sequence
        send.highest, send.publish_time = pending[SENT_HIGHEST], pending[SENT_PUBLISH_TIME]
        send.chunk = pending[SENT_CHUNK]
        send.is_rising = sequence > self.highest
        if send.is_rising:
            self.highest = sequence
        self.highest_used = max(self.highest_used, sequence, send.highest)
        publisher = self.publisher or self.identify(self.name or pending[SENT_PRODUCER])
        if publisher is None:
            return
        self.state.facts.remember(publisher, send)
        self.last_send = send

    def find_send(self, sequence: int, pending: Pending) -> Send | None:
        """Return the SEND that waits for its answer with this sequence id, if it is remembered."""
        if self.publisher is None:
            return None
        send = self.publisher.sends.get(make_sequence_key(sequence, pending[SENT_CHUNK]))
        return send if send is not None and send.number == pending[SENT_FRAME] else None
