"""Open consumers and producers as the rules see them: ledgers, and frames that may become evidence."""

from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.facts import (
    MAX_UNACKED,
    NOWHERE,
    Entry,
    Facts,
    Publisher,
    Sent,
    Subscription,
    Topic,
    sequence_key,
    text_of,
)
from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe
from pulsarctl_wire.wire.session.exchanges import ProducerLedger
from pulsarctl_wire.wire.session.ledgers import ConsumerLedger, Delivered, LedgerState
from pulsarctl_wire.wire.session.plain import Sent as Pending

MAX_RETURNED: Final = 4_096
"""Maximum number of entries of a consumer whose redeliveries, or acknowledgements in part, are remembered."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SightedState(LedgerState):
    """A connection's state as its consumers, its producers and reports about them need it.

    whole       no byte was missed that may have been Pulsar's
    facts       what is known over all connections
    """

    # defaults here, not in `__init__`, take no memory: most connections of a flood never send a frame
    whole: bool = True
    seen: Sighting = Sighting(Connection(-1), True)
    """The current frame."""
    is_chunk: bool = False
    """Whether the current frame is a chunk."""
    facts: Facts
    _marks: dict[str, Any] | None = None

    @property
    def marks(self) -> dict[str, Any]:
        """What rules note about this connection, by their id."""
        if self._marks is None:
            self._marks = {}
        return self._marks

    @property
    def frames(self) -> int:
        """How many frames were seen on all connections, the current one included."""
        return max(self._knowledge.frames, self.seen.number)

    def consumer(self, consumer_id: int) -> "Consumer | None":
        """The open consumer with this id, if its SUBSCRIBE was seen."""
        found = self.consumers.get(consumer_id)
        return found if isinstance(found, Consumer) else None

    def producer(self, producer_id: int) -> "Producer | None":
        """The producer with this id."""
        found = self.producers.get(producer_id)
        return found if isinstance(found, Producer) else None

    def move(self, frame: Frame, consumer: "Consumer") -> None:
        """A FLOW or MESSAGE of a consumer comes, and may end a pause."""
        raise NotImplementedError

    def delivered(self, frame: Frame, consumer: "Consumer", entry: Entry) -> None:
        """A consumer gets an entry; it counts already."""
        raise NotImplementedError

    def forget_held(self) -> None:
        """Too many unacknowledged entries are remembered: forget some, of any connection."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Returned:
    """An entry that a consumer asked for again.

    `first` is the MESSAGE before the first REDELIVER_UNACKNOWLEDGED_MESSAGES, `asked`; `asked_again` is the
    last one. It came `count` times since, at `last` for the last time, with `redelivery_count`.
    """

    __slots__ = ("asked", "asked_again", "count", "first", "last", "redelivery_count")

    def __init__(self, asked: Sighting, first: Sighting) -> None:
        self.asked = self.asked_again = asked
        self.first = self.last = first
        self.count = self.redelivery_count = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer(ConsumerLedger):
    """An open consumer: its ledger, and the frames that moved it.

    `moved_ns` is when the last SUBSCRIBE, FLOW or MESSAGE passed. `deliveries` and `acked` count entries.
    """

    __slots__ = (
        *("acked", "consumer_id", "deliveries", "first_flow", "first_grant", "flows"),
        *("highest", "kind", "last_flow", "last_message", "moved_ns", "returned", "seen"),
        *("opened", "partly", "shared", "state"),
    )

    def __init__(self, state: SightedState, seen: Sighting, body: Any, shared: Subscription) -> None:
        super().__init__(shared.topic.name, shared.name, getattr(body, "consumer_epoch", 0))
        self.state = state
        self.seen = seen
        self.shared = shared
        self.consumer_id: int = body.consumer_id
        self.kind: int = getattr(body, "subType", CommandSubscribe.Exclusive)
        self.opened: Sighting | None = None  # SUCCESS
        self.moved_ns = seen.time_ns
        self.deliveries = self.acked = self.flows = self.first_grant = 0
        self.first_flow: Sighting | None = None
        self.last_flow: Sighting | None = None
        self.last_message: Sighting | None = None
        self.highest: Entry = NOWHERE
        self.returned: dict[Entry, Returned] = {}
        self.partly: dict[Entry, tuple[Sighting, Sighting]] = {}
        """Entries that are acknowledged in part, with the first and the last such ACK."""

    def deliver(self, entry: Entry, cost: int, frame: Frame) -> None:
        """An entry was delivered. Overrides the parent's method."""
        state = self.state
        seen = state.seen
        state.move(frame, self)
        super().deliver(entry, cost, frame)
        facts = state.facts
        facts.held += 1
        if facts.held > MAX_UNACKED:
            state.forget_held()
        state.delivered(frame, self, entry)
        self.last_message = seen
        self.deliveries += 1
        if entry > self.highest:
            self.highest = entry
            if entry > self.shared.delivered:
                self.shared.delivered = entry

    def hold(self, left: int, frame: Frame) -> Delivered:
        """A delivered entry with its MESSAGE. Overrides the parent's method."""
        return Held(left, self.state.seen, is_chunk=self.state.is_chunk, intact=frame.checksum != "invalid")

    def subject(self, entry: Entry | None = None) -> Subject:
        """The subject of a finding about it, or about an entry that it got."""
        message = None if entry is None else text_of(entry)
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
class Held(Delivered):
    """An unacknowledged entry, with the MESSAGE that delivered it."""

    __slots__ = ("intact", "is_chunk", "reported", "seen")

    def __init__(self, left: int, seen: Sighting, *, is_chunk: bool, intact: bool) -> None:
        super().__init__(left, seen.number, seen.time_ns)
        self.seen = seen
        self.is_chunk = is_chunk
        self.intact = intact  # its checksum is right here
        self.reported = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Producer(ProducerLedger):
    """An open producer: its ledger, and its name's SENDs over all connections.

    `sent_count` and `answers` count SENDs and their answers. `has_receipt`: one of these was a SEND_RECEIPT.
    """

    __slots__ = (
        *("access", "answers", "epoch", "facts", "has_receipt", "last_sent", "last_sequence", "opened"),
        *("producer_id", "publisher", "request", "sent_count", "state"),
    )

    def __init__(self, state: SightedState, producer_id: int, topic: str | None) -> None:
        super().__init__(topic)
        self.state = state
        self.producer_id = producer_id
        self.epoch = 0  # of PRODUCER
        self.last_sequence = -1  # of PRODUCER_SUCCESS
        self.publisher: Publisher | None = None
        self.facts: Topic | None = None
        self.sent_count = self.answers = 0
        self.has_receipt = False
        self.access = 0  # ProducerAccessMode
        self.request: Sighting | None = None  # PRODUCER
        self.last_sent: Sent | None = None
        self.opened: Sighting | None = None  # PRODUCER_SUCCESS

    def subject(self, sent: Sent | None = None) -> Subject:
        """The subject of a finding about it, or about a SEND of it."""
        sequence = None if sent is None else sent.sequence
        return Subject(self.topic, producer_id=self.producer_id, sequence_id=sequence)

    def identify(self, name: str) -> Publisher | None:
        """Find what is known of its name; None if its topic is unknown."""
        if self.topic is None:
            return None
        facts = self.state.facts
        self.facts = facts.topic(self.topic)
        self.publisher = facts.publisher(self.topic, name)
        return self.publisher

    def add(self, sequence: int, sent: Pending) -> None:
        """Add a SEND, and remember it. Overrides the parent's method."""
        super().add(sequence, sent)
        self._remember(sequence, sent)

    def add_chunk(self, sequence: int, sent: Pending, count: int, *, lossy: bool) -> None:
        """Add the SEND of a chunk, and remember it. Overrides the parent's method."""
        super().add_chunk(sequence, sent, count, lossy=lossy)
        self._remember(sequence, sent)

    def _remember(self, sequence: int, pending: Pending) -> None:
        sent = self.state.seen
        if not isinstance(sent, Sent):
            return
        self.sent_count += 1
        sent.place = self.sent_count
        sent.producer, sent.sequence = self.producer_id, sequence
        sent.highest, sent.publish_time, sent.chunk = pending[4], pending[6], pending[7]
        publisher = self.publisher or self.identify(self.name or pending[5])
        if publisher is None:
            return
        self.state.facts.remember(publisher, sent)
        self.last_sent = sent

    def sent(self, sequence: int, pending: Pending) -> Sent | None:
        """The SEND that waits for its answer with this sequence id, if it is remembered."""
        if self.publisher is None:
            return None
        found = self.publisher.sent.get(sequence_key(sequence, pending[7]))
        return found if found is not None and found.number == pending[2] else None
