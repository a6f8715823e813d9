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

_RECEIPTS: Final = 64  # remembered of each topic

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
    receipt. `answer` is that SEND_RECEIPT or SEND_ERROR. `digest` is the CRC32-C of metadata and payload, or
    their hash where no checksum covers them; `size` their length in bytes.
    """

    __slots__ = (
        *("answer", "chunk", "corrupt", "digest", "encrypted", "failed", "highest", "name", "plain"),
        *("producer", "publish_time", "sequence", "size", "stored"),
    )

    def __init__(
        self, connection: Connection, number: int, ordinal: int, type: int, time_ns: int, packet: int
    ) -> None:
        super().__init__(connection, True, number, ordinal, type, time_ns, packet)
        self.sequence = self.highest = self.publish_time = self.chunk = self.digest = self.size = 0
        self.producer = 0  # producer id
        self.name = ""
        self.plain = self.corrupt = self.encrypted = self.failed = False
        self.answer: Sighting | None = None
        self.stored: Entry | None = None

    def is_same(self, other: "Sent") -> bool:
        """Whether both carry the same metadata and payload, byte by byte."""
        return self.digest == other.digest and self.size == other.size


@mypyc_attr(allow_interpreted_subclasses=True)
class Publisher:
    """A producer name on a topic, over all connections; `sent` are its latest SENDs by sequence id.

    `highest` is the highest sequence id that it sent. A SEND of a chunk has its own key: -1 - chunk id.
    """

    __slots__ = ("highest", "name", "sent", "topic")

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.sent: dict[Entry, Sent] = {}
        self.highest = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class Topic:
    """A topic: the entries stored last that any consumer should get, with their receipts; its partitions."""

    __slots__ = ("metadata", "name", "stored")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: deque[tuple[Entry, Sighting]] = deque(maxlen=_RECEIPTS)
        self.metadata: Sighting | None = None  # PARTITIONED_METADATA_RESPONSE with partitions

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

    `raised` says when the highest acknowledged entry rose, and to what; rises within an eighth of
    `keep_ns` are one, at the time of the last.
    """

    __slots__ = ("_consumers", "delivered", "keep_ns", "name", "raised", "topic")

    def __init__(self, topic: Topic, name: str, keep_ns: int) -> None:
        self.topic = topic
        self.name = name
        self.keep_ns = keep_ns
        self.delivered: Entry = NOWHERE
        self.raised: list[tuple[int, Entry]] = []
        self._consumers: list[Any] = []

    def add(self, consumer: Any) -> None:
        """Add a `Consumer`."""
        self._consumers = [*self.open_consumers(), consumer]

    def open_consumers(self) -> list[Any]:
        """Its open consumers."""
        return [each for each in self._consumers if each.is_open]

    def raise_to(self, entry: Entry, time_ns: int) -> None:
        """An entry was acknowledged."""
        raised = self.raised
        if raised and entry <= raised[-1][1]:
            return
        if len(raised) > 1 and time_ns - raised[-2][0] < self.keep_ns // 8:
            raised[-1] = time_ns, entry
        else:
            raised.append((time_ns, entry))
            if len(raised) > 2 and raised[1][0] < time_ns - self.keep_ns:
                del raised[0]

    def acknowledged_by(self, time_ns: int) -> Entry:
        """The highest entry that was acknowledged at that time, or `NOWHERE`."""
        found = NOWHERE
        for since, entry in self.raised:
            if since > time_ns:
                break
            found = entry
        return found


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

    def remember(self, publisher: Publisher, sent: Sent) -> Sent | None:
        """Remember a SEND; returns the earlier one with the same sequence id (and chunk), if any."""
        key = sent.sequence, sent.chunk
        before = publisher.sent.get(key)
        publisher.sent[key] = sent
        if before is None:
            self._sent += 1
            if self._sent > MOST_SENT:
                self._forget()
        publisher.highest = max(publisher.highest, sent.sequence, sent.highest)
        return before

    def _forget(self) -> None:
        """Forget the older half of the SENDs of every producer name."""
        for publisher in self.publishers.values():
            bound(publisher.sent, len(publisher.sent) // 2 or 1)
        self._sent = sum(len(each.sent) for each in self.publishers.values())
