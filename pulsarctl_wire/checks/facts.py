"""What is known over all connections: topics, subscriptions, producer names, lookups. One home for each fact.

All tables are bounded: they drop their older half.
"""

from collections import deque
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.knowledge import bound

MOST_NAMES: Final = 16_384
"""The most topics, subscriptions and producer names that are remembered."""

MOST_SENT: Final = 65_536
"""The most SENDs that are remembered for all producer names together."""

_RECEIPTS: Final = 256  # remembered of each topic

Entry = tuple[int, int]
"""A ledger id and an entry id."""

NOWHERE: Final[Entry] = (-1, -1)
"""The id in the receipt of a duplicate; no entry has it."""

Partition = tuple[str, str]
"""Topic and producer name, or topic and subscription."""


def text_of(entry: Entry) -> str:
    """`ledger:entry`."""
    return f"{entry[0]}:{entry[1]}"


def host_of(address: str) -> str:
    """The host of an "address:port"."""
    return address.rpartition(":")[0]


@mypyc_attr(allow_interpreted_subclasses=True)
class Sent(Sighting):
    """A SEND, with what makes two SENDs the same message, and its answer.

    `stored` is the id in its receipt, (-1, -1) if the broker dropped it as a duplicate, None without a
    receipt. `answer` is that SEND_RECEIPT or SEND_ERROR. `digest` is the CRC32-C of the payload
    and `size` its length in bytes. `before` is the SEND before it with the same sequence id and chunk,
    `above` the highest sequence id that this producer name had sent before. `plain`: any consumer should get
    it at once (it is no marker, not delayed, not in a transaction).
    """

    __slots__ = (
        *("above", "answer", "before", "chunk", "corrupt", "digest", "encrypted", "failed", "highest"),
        *("plain", "producer", "publish_time", "sequence", "size", "stored"),
    )

    def __init__(
        self, connection: Connection, number: int, ordinal: int, type: int, time_ns: int, packet: int
    ) -> None:
        super().__init__(connection, True, number, ordinal, type, time_ns, packet)
        self.sequence = self.highest = self.publish_time = self.chunk = self.digest = self.size = 0
        self.producer = 0  # producer id
        self.above = -1
        self.before: Sent | None = None
        self.plain = self.corrupt = self.encrypted = self.failed = False
        self.answer: Sighting | None = None
        self.stored: Entry | None = None

    def is_same(self, other: "Sent") -> bool:
        """Whether both have the same payload, byte by byte."""
        return self.digest == other.digest and self.size == other.size


@mypyc_attr(allow_interpreted_subclasses=True)
class Publisher:
    """A producer name on a topic, over all connections; `sent` are its latest SENDs by sequence id.

    `highest` is the highest sequence id that it sent. The keys of `sent` are sequence id and chunk id.
    """

    __slots__ = ("highest", "name", "sent", "topic")

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.sent: dict[Entry, Sent] = {}
        self.highest = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class Topic:
    """A topic: the entries stored last that any consumer should get, with their receipts; its partitions.

    `metadata` is the PARTITIONED_METADATA_RESPONSE that says that it has partitions. `fenced_by` is the last
    PRODUCER with ExclusiveWithFencing, with its topic_epoch in `epoch`.
    """

    __slots__ = ("epoch", "fenced_by", "metadata", "name", "stored")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: deque[tuple[Entry, Sighting]] = deque(maxlen=_RECEIPTS)
        self.metadata: Sighting | None = None
        self.fenced_by: Sighting | None = None
        self.epoch = 0

    def stored_after(self, entry: Entry) -> Sighting | None:
        """The receipt of the first remembered entry after this one; None if there is none."""
        found = None
        for stored, receipt in reversed(self.stored):
            if stored <= entry:
                break
            found = receipt
        return found


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription:
    """A subscription, over all connections: its open consumers, the highest entry that was delivered.

    `raised` are the ACKs that raised the highest acknowledged entry, and to what. Of those within an eighth
    of `keep_ns` only the last is kept.
    """

    __slots__ = ("_consumers", "delivered", "keep_ns", "name", "raised", "topic")

    def __init__(self, topic: Topic, name: str, keep_ns: int) -> None:
        self.topic = topic
        self.name = name
        self.keep_ns = keep_ns
        self.delivered: Entry = NOWHERE
        self.raised: list[tuple[Sighting, Entry]] = []
        self._consumers: list[Any] = []

    def add(self, consumer: Any) -> None:
        """Add a `Consumer`."""
        self._consumers = [*self.open_consumers(), consumer]

    def open_consumers(self) -> list[Any]:
        """Its open consumers."""
        return [each for each in self._consumers if each.is_open]

    def raise_to(self, entry: Entry, ack: Sighting) -> None:
        """An entry was acknowledged."""
        raised, now = self.raised, ack.time_ns
        if raised and entry <= raised[-1][1]:
            return
        if len(raised) > 1 and now - raised[-2][0].time_ns < self.keep_ns // 8:
            raised[-1] = ack, entry
            return
        raised.append((ack, entry))
        if len(raised) > 2 and raised[1][0].time_ns < now - self.keep_ns:
            del raised[0]

    def passed(self, entry: Entry, until_ns: int) -> Sighting | None:
        """The first kept ACK of a higher entry up to that time, or None."""
        return next((ack for ack, to in self.raised if to > entry and ack.time_ns <= until_ns), None)


@mypyc_attr(allow_interpreted_subclasses=True)
class Facts:
    """The tables. `whole`: no bytes were missed on any connection that speaks Pulsar.

    `keep_ns` is how long it must be known what was acknowledged when.
    """

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[Partition, Subscription] = {}
        self.publishers: dict[Partition, Publisher] = {}
        self.whole = True
        self._sent = 0

    def topic(self, name: str) -> Topic:
        """The topic with this full name."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
            bound(self.topics, MOST_NAMES)
        return found

    def subscription(self, topic: str, name: str) -> Subscription:
        """The subscription with this name on a topic."""
        found = self.subscriptions.get((topic, name))
        if found is None:
            found = self.subscriptions[topic, name] = Subscription(self.topic(topic), name, self._keep_ns)
            bound(self.subscriptions, MOST_NAMES)
        return found

    def publisher(self, topic: str, name: str) -> Publisher:
        """The producer name on a topic."""
        found = self.publishers.get((topic, name))
        if found is None:
            found = self.publishers[topic, name] = Publisher(topic, name)
            bound(self.publishers, MOST_NAMES)
        return found

    def remember(self, publisher: Publisher, sent: Sent) -> None:
        """Remember a SEND."""
        key = sent.sequence, sent.chunk
        before = sent.before = publisher.sent.get(key)
        sent.above = publisher.highest
        publisher.sent[key] = sent
        publisher.highest = max(publisher.highest, sent.sequence, sent.highest)
        if before is not None:
            before.before = None  # no chain
            return
        self._sent += 1
        if self._sent > MOST_SENT:
            self._forget()

    def _forget(self) -> None:
        """Forget the older half of the SENDs of every producer name."""
        for publisher in self.publishers.values():
            bound(publisher.sent, len(publisher.sent) // 2 or 1)
        self._sent = sum(len(each.sent) for each in self.publishers.values())
