"""What is known over all connections: topics, subscriptions, producer names, lookups. One home for each fact.

All tables are bounded: they drop their older half.
"""

from collections import deque
from itertools import islice
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.finding import Sighting
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.frame_layout import locate
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata
from pulsarctl_wire.wire.session.knowledge import bound

MAX_NAMES: Final = 16_384
"""Maximum number of topics, subscriptions and producer names that are remembered."""

MAX_OWNERS: Final = 1_024
"""Producers of a name, or consumers of a subscription, that are kept when there are too many."""

MAX_UNACKED: Final = 262_144
"""Maximum number of unacknowledged entries that are remembered for all consumers together."""

MAX_SENDS: Final = 16_384
"""Maximum number of SENDs that are remembered for all producer names together, and again for all topics."""

_FEW_OWNERS: Final = 16
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


def sequence_key(sequence: int, chunk: int) -> Any:
    """The key of a SEND in a table: all chunks of a message have the same sequence id."""
    return (sequence, chunk) if chunk else sequence


def host_of(address: str) -> str:
    """The host of an "address:port"."""
    return address.rpartition(":")[0]


def client_of(connection: Connection) -> str:
    """The client's host; "" if it is the server's own, which may have many addresses."""
    client = host_of(connection.client)
    return "" if client == host_of(connection.server) else client


@mypyc_attr(allow_interpreted_subclasses=True)
class Sent(Sighting):
    """A SEND, with what makes two SENDs the same message, and its answer.

    producer    producer id; `place` counts what that has sent since it was opened
    sequence, highest, publish_time, chunk     as in the command and its metadata
    head        its bytes from COMMAND_SIZE up to the payload, which has `size` bytes; b"" if they are many
    digest      CRC32-C of the payload; -1 if a valid checksum covers it
    is_usual    whether its metadata has only usual fields, see `Head.is_plain`
    answer      SEND_RECEIPT or SEND_ERROR
    stored      the id in its SEND_RECEIPT, `NOWHERE` if the broker dropped it as a duplicate; or None
    before      the SEND before it with the same sequence id and chunk; `repeats`: with the same payload
    above       the highest sequence id that this producer name had sent before

    Most is never asked for, so it is parsed when it is.
    """

    __slots__ = (
        *("above", "answer", "before", "chunk", "corrupt", "digest", "failed", "head", "highest", "place"),
        *("_is_plain", "is_usual", "producer", "publish_time", "repeats", "sequence", "size", "stored"),
    )

    def __init__(
        self, connection: Connection, number: int, ordinal: int, type: int, time_ns: int, packet: int
    ) -> None:
        super().__init__(connection, True, number, ordinal, type, time_ns, packet)
        self.place = self.sequence = self.highest = self.publish_time = self.chunk = self.size = (
            self.producer
        ) = 0
        self.above = self.digest = -1
        self.head = b""
        self.corrupt = self.failed = self.repeats = self.is_usual = False
        self.before: Sent | None = None
        self.answer: Sighting | None = None
        self.stored: Entry | None = None
        self._is_plain: bool | None = None  # once asked for

    @property
    def metadata(self) -> MessageMetadata | None:
        """Its metadata; None if that does not parse."""
        parts = locate(self.head, 4 + int.from_bytes(self.head[:4], "big"))
        start, stop = parts.metadata
        try:
            return MessageMetadata.FromString(self.head[start:stop])
        except DecodeError:
            return None

    @property
    def is_plain(self) -> bool:
        """Whether any consumer should get it at once: no marker, not delayed, in no transaction."""
        if self.is_usual:
            return True
        if self._is_plain is None:
            metadata = self.metadata
            self._is_plain = metadata is not None and not (
                metadata.deliver_at_time
                or metadata.HasField("marker_type")
                or metadata.HasField("txnid_most_bits")
            )
        return self._is_plain

    @property
    def is_encrypted(self) -> bool:
        """Whether the payload is encrypted, which gives other bytes each time."""
        metadata = None if self.is_usual else self.metadata
        return metadata is not None and len(metadata.encryption_keys) > 0

    @property
    def is_copy(self) -> bool:
        """Whether all its bytes are those of the SEND before it."""
        return self.repeats and self.before is not None and self.head == self.before.head

    def has_payload(self, payload: bytes) -> bool:
        """Whether it had this payload, as its checksum shows."""
        if self.size != len(payload):
            return False
        if self.digest >= 0:
            return crc32c(payload) == self.digest
        parts = locate(self.head, 4 + int.from_bytes(self.head[:4], "big"))
        return crc32c(payload, crc32c(self.head[parts.metadata[0] - 4 :])) == parts.stored


@mypyc_attr(allow_interpreted_subclasses=True)
class Owned:
    """A name that connections hold: each owner is a `Producer` or `Consumer`."""

    __slots__ = ("_owners", "_roomy")

    def __init__(self) -> None:
        self._owners: dict[Any, None] = {}
        self._roomy = 1  # owners up to which none is looked at

    def add(self, owner: Any) -> None:
        """Add an owner, the latest one."""
        self.drop(owner)
        if len(self._owners) > self._roomy:  # without the new one, which may not count as open yet
            self._owners = dict.fromkeys(self.owners())
            bound(self._owners, MAX_OWNERS)
            self._roomy = 2 * len(self._owners) + 1
        self._owners[owner] = None

    def drop(self, owner: Any) -> None:
        """An owner has closed it, or its connection has ended."""
        self._owners.pop(owner, None)

    @property
    def are_few(self) -> bool:
        """Whether all owners can be asked about each acknowledgement."""
        return len(self._owners) <= _FEW_OWNERS

    def owners(self) -> list[Any]:
        """The open ones, the latest last."""
        return [each for each in self._owners if each.is_open]


@mypyc_attr(allow_interpreted_subclasses=True)
class Publisher(Owned):
    """A producer name on a topic, over all connections; `sent` are its latest SENDs by sequence id.

    `highest` is the highest sequence id that it sent. The keys of `sent` are those of `sequence_key`.
    Its owners are producers that PRODUCER_SUCCESS has opened.
    """

    __slots__ = ("highest", "name", "sent", "topic")

    def __init__(self, topic: str, name: str) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.sent: dict[Any, Sent] = {}
        self.highest = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class Topic:
    """A topic: the SENDs that were stored last, its partitions, who fences producers.

    `metadata` is the PARTITIONED_METADATA_RESPONSE that says how many `partitions` it has, `producer` its
    last producer by connection and id. `fenced_by` is the last PRODUCER with ExclusiveWithFencing, with its
    topic_epoch in `epoch`.
    """

    __slots__ = ("epoch", "fenced_by", "metadata", "name", "partitions", "producer", "stored")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored: deque[Sent] = deque()
        self.metadata: Sighting | None = None
        self.partitions = 0
        self.producer: tuple[int, int] | None = None
        self.fenced_by: Sighting | None = None
        self.epoch = 0

    def stored_after(self, entry: Entry) -> Sent | None:
        """The first remembered SEND that was stored after this entry, and that any consumer should get."""
        found = None
        for sent in reversed(self.stored):
            stored = sent.stored
            if stored is None or stored <= entry:
                break
            if sent.is_plain:
                found = sent
        return found


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription(Owned):
    """A subscription, over all connections: its consumers, the highest entry that was delivered.

    `acknowledged` is the highest acknowledged entry. Some of the ACKs that raised it are kept with the entry,
    at most eight in `keep_ns`.
    """

    __slots__ = (*("_kept", "_kept_ns", "_latest", "acknowledged", "delivered", "keep_ns", "name", "topic"),)

    def __init__(self, topic: Topic, name: str, keep_ns: int) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.keep_ns = keep_ns
        self.delivered: Entry = NOWHERE
        self.acknowledged: Entry = NOWHERE
        self._latest: Sighting | None = None  # the ACK that raised it last
        self._kept: list[tuple[Sighting, Entry]] = []
        self._kept_ns = 0  # time of the last one

    def raise_to(self, entry: Entry, ack: Sighting) -> None:
        """An entry was acknowledged."""
        if entry <= self.acknowledged:
            return
        self.acknowledged, self._latest = entry, ack
        now, kept = ack.time_ns, self._kept
        if kept and now - self._kept_ns < self.keep_ns // 8:
            return
        self._kept_ns = now
        kept.append((ack, entry))
        if len(kept) > 2 and kept[1][0].time_ns < now - self.keep_ns:
            del kept[0]

    def passed(self, entry: Entry, until_ns: int) -> Sighting | None:
        """The first ACK that was kept of a higher entry, up to that time; or None."""
        latest = self._latest
        found = next((ack for ack, to in self._kept if to > entry), None)
        if found is None and self.acknowledged > entry:
            found = latest
        return found if found is not None and found.time_ns <= until_ns else None


@mypyc_attr(allow_interpreted_subclasses=True)
class Facts:
    """The tables. `whole`: no bytes were missed on any connection that speaks Pulsar.

    `keep_ns` is how long it must be known what was acknowledged when, `quiet_ns` after which time without
    FLOW and MESSAGE a consumer is stalled. At `due_ns` the doctor wants to be told that time has passed.
    """

    def __init__(self, *, keep_ns: int = 0, quiet_ns: int = 0) -> None:
        self._keep_ns = keep_ns
        self.quiet_ns = quiet_ns
        self.due_ns = 0
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[Partition, Subscription] = {}
        self.publishers: dict[Partition, Publisher] = {}
        self.whole = True
        self.budget = Budget()
        self._entries: dict[bytes, None] = {}  # checksums of the last SENDs that `was_sent` was asked about
        self.held = 0
        """Upper bound of the unacknowledged entries that all consumers hold."""
        self._sent = self._stored = 0  # how many of these all tables hold

    def was_sent(self, checksum: bytes, to_broker: bool) -> bool:
        """Whether an entry was looked at as SEND, so that it need not be as MESSAGE; remembers SENDs."""
        if not to_broker:
            return checksum in self._entries
        self._entries[checksum] = None
        bound(self._entries, MAX_SENDS)
        return False

    def topic(self, name: str) -> Topic:
        """The topic with this full name."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = Topic(name)
            bound(self.topics, MAX_NAMES)
        return found

    def subscription(self, topic: str, name: str) -> Subscription:
        """The subscription with this name on a topic."""
        found = self.subscriptions.get((topic, name))
        if found is None:
            found = self.subscriptions[topic, name] = Subscription(self.topic(topic), name, self._keep_ns)
            bound(self.subscriptions, MAX_NAMES)
        return found

    def publisher(self, topic: str, name: str) -> Publisher:
        """The producer name on a topic."""
        found = self.publishers.get((topic, name))
        if found is None:
            found = self.publishers[topic, name] = Publisher(topic, name)
            bound(self.publishers, MAX_NAMES)
        return found

    def remember(self, publisher: Publisher, sent: Sent) -> None:
        """Remember a SEND."""
        key = sequence_key(sent.sequence, sent.chunk)
        before = sent.before = publisher.sent.get(key)
        sent.above = highest = publisher.highest
        publisher.sent[key] = sent
        if sent.sequence > highest or sent.highest > highest:
            publisher.highest = max(sent.sequence, sent.highest)
        if before is not None:
            before.before = None  # no chain
            return
        self._sent += 1
        if self._sent > MAX_SENDS:
            self._forget()

    def _forget(self) -> None:
        """Forget the older half of the SENDs of each producer name, and more if names are too many."""
        for publisher in self.publishers.values():
            bound(publisher.sent, len(publisher.sent) // 2)
        self._sent = sum(len(each.sent) for each in self.publishers.values())
        if self._sent > MAX_SENDS // 2:
            for publisher in islice(self.publishers.values(), len(self.publishers) // 2):
                publisher.sent.clear()
            self._sent = sum(len(each.sent) for each in self.publishers.values())

    def store(self, topic: Topic, sent: Sent) -> None:
        """Remember what was stored last."""
        stored = topic.stored
        stored.append(sent)
        if len(stored) > _RECEIPTS:
            stored.popleft()
            return
        self._stored += 1
        if self._stored > MAX_SENDS:
            for each in self.topics.values():
                for _ in range((len(each.stored) + 1) // 2):
                    each.stored.popleft()
            self._stored = sum(len(each.stored) for each in self.topics.values())
