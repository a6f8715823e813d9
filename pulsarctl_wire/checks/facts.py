"""The facts of all connections: topics, subscriptions, producer names. One home for each fact.

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
"""Maximum number of topics that are remembered; also of subscriptions, and of producer names."""

MAX_OWNERS: Final = 1_024
"""Maximum number of producers of a name, or consumers of a subscription, after closed ones are removed."""

MAX_UNACKED: Final = 262_144
"""Maximum number of unacknowledged entries that are remembered for all consumers together."""

MAX_SENDS: Final = 16_384
"""Maximum number of SENDs that are remembered for all producer names together, and again for all topics."""

_FEW_OWNERS: Final = 16
_MAX_STORED: Final = 256  # stored SENDs that are remembered of each topic

Entry = tuple[int, int]
"""A ledger id and an entry id."""

NOWHERE: Final[Entry] = (-1, -1)
"""The id in the receipt of a duplicate; no entry has it."""

TopicAndName = tuple[str, str]
"""Topic and producer name, or topic and subscription."""


def format_entry(entry: Entry) -> str:
    """Return `ledger:entry`."""
    return f"{entry[0]}:{entry[1]}"


def make_sequence_key(sequence: int, chunk: int) -> Any:
    """Return the key of a SEND in a table: all chunks of a message have the same sequence id."""
    return (sequence, chunk) if chunk else sequence


def parse_host(address: str) -> str:
    """Return the host of an "address:port"."""
    return address.rpartition(":")[0]


def find_client_host(connection: Connection) -> str:
    """Return the client's host; "" if it is the server's own, which may have many addresses.

    A client of our proxy is never the broker's host: it did not connect to the broker.
    """
    client = parse_host(connection.client)
    return "" if client == parse_host(connection.server) and not connection.listener else client


@mypyc_attr(allow_interpreted_subclasses=True)
class Send(Sighting):
    """A SEND, with what makes two SENDs the same message, and its answer.

    producer    producer id; `position` counts its SENDs since it was opened
    sequence, highest, publish_time, chunk     as in the command and its metadata
    head        its bytes from COMMAND_SIZE to the payload (of `size` bytes); b"" if over `LARGEST_HEAD`
    digest      CRC32-C of the payload; -1 if a valid checksum covers it
    has_plain_metadata its metadata has only usual fields, see `Head.is_plain`
    answer      SEND_RECEIPT or SEND_ERROR
    stored_id   the id in its SEND_RECEIPT, `NOWHERE` if the broker dropped it as a duplicate; or None
    previous    the SEND before it with the same sequence id and chunk
    has_same_payload   `previous` has the same payload
    is_rising   its sequence id is above those that its producer has sent before
    highest_before     the highest sequence id that this producer name had sent before

    Its metadata is parsed only when a rule needs it.
    """

    __slots__ = (
        *("answer", "chunk", "digest", "has_plain_metadata", "has_same_payload", "head", "highest"),
        *("_is_deliverable", "highest_before", "is_corrupt", "is_failed", "is_rising", "position"),
        *("previous", "producer", "publish_time", "sequence", "size", "stored_id"),
    )

    def __init__(
        self, connection: Connection, number: int, ordinal: int, type: int, time_ns: int, packet: int
    ) -> None:
        super().__init__(connection, True, number, ordinal, type, time_ns, packet)
        self.position = self.sequence = self.highest = self.publish_time = 0
        self.chunk = self.size = self.producer = 0
        self.highest_before = self.digest = -1
        self.head = b""
        self.is_rising = True
        self.is_corrupt = self.is_failed = self.has_same_payload = self.has_plain_metadata = False
        self.previous: Send | None = None
        self.answer: Sighting | None = None
        self.stored_id: Entry | None = None
        self._is_deliverable: bool | None = None  # once asked for

    @property
    def metadata(self) -> MessageMetadata | None:
        """Its metadata; None if it does not parse, or `head` is empty."""
        if not self.head:
            return None
        parts = locate(self.head, 4 + int.from_bytes(self.head[:4], "big"))
        start, stop = parts.metadata
        try:
            return MessageMetadata.FromString(self.head[start:stop])
        except DecodeError:
            return None

    @property
    def is_deliverable(self) -> bool:
        """Whether any consumer may get it at once: no marker, not delayed, in no transaction."""
        if self.has_plain_metadata:
            return True
        if self._is_deliverable is None:
            metadata = self.metadata
            self._is_deliverable = metadata is not None and not (
                metadata.deliver_at_time
                or metadata.HasField("marker_type")
                or metadata.HasField("txnid_most_bits")
            )
        return self._is_deliverable

    @property
    def may_be_encrypted(self) -> bool:
        """Whether the payload may be encrypted, which gives other bytes each time."""
        if self.has_plain_metadata:
            return False
        metadata = self.metadata
        return metadata is None or len(metadata.encryption_keys) > 0

    @property
    def is_copy(self) -> bool:
        """Whether all its bytes are those of `previous`."""
        return self.has_same_payload and self.previous is not None and self.head == self.previous.head

    def has_payload(self, payload: bytes) -> bool:
        """Return whether its size and checksum are those of this payload."""
        if self.size != len(payload):
            return False
        if self.digest >= 0:
            return crc32c(payload) == self.digest
        parts = locate(self.head, 4 + int.from_bytes(self.head[:4], "big"))
        return crc32c(payload, crc32c(self.head[parts.metadata[0] - 4 :])) == parts.stored


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnedName:
    """A name that connections hold: each owner is a `Producer` or `Consumer`."""

    __slots__ = ("_owners", "_prune_above")

    def __init__(self) -> None:
        self._owners: dict[Any, None] = {}
        self._prune_above = 1  # number of owners up to which `add` does not look for closed ones

    def add(self, owner: Any) -> None:
        """Add an owner, the latest one."""
        self.drop(owner)
        if len(self._owners) > self._prune_above:  # without the new one, which may not count as open yet
            self._owners = dict.fromkeys(self.list_owners())
            bound(self._owners, MAX_OWNERS)
            self._prune_above = 2 * len(self._owners) + 1
        self._owners[owner] = None

    def drop(self, owner: Any) -> None:
        """Remove an owner that has closed, or whose connection has ended."""
        self._owners.pop(owner, None)

    @property
    def has_few_owners(self) -> bool:
        """Whether the owners are few enough to look at all of them for each frame."""
        return len(self._owners) <= _FEW_OWNERS

    def list_owners(self) -> list[Any]:
        """Return the open owners, the latest last."""
        return [owner for owner in self._owners if owner.is_open]


@mypyc_attr(allow_interpreted_subclasses=True)
class Publisher(OwnedName):
    """A producer name on a topic, over all connections; `sends` are its latest SENDs by sequence id.

    `highest` is the highest sequence id that it sent. The keys of `sends` are those of `make_sequence_key`.
    Its owners are producers that PRODUCER_SUCCESS has opened.
    """

    __slots__ = ("highest", "name", "sends", "topic")

    def __init__(self, topic: str, name: str) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.sends: dict[Any, Send] = {}
        self.highest = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class Topic:
    """A topic: the SENDs that were stored last, its partitions, who fences producers.

    metadata     the answer that says how many `partitions` it has, also over HTTP
    producer     its last producer, by connection and id
    fenced_by    the last PRODUCER with ExclusiveWithFencing; `epoch` is its topic_epoch
    """

    __slots__ = ("epoch", "fenced_by", "metadata", "name", "partitions", "producer", "stored_sends")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored_sends: deque[Send] = deque()
        self.metadata: Sighting | None = None
        self.partitions = 0
        self.producer: tuple[int, int] | None = None
        self.fenced_by: Sighting | None = None
        self.epoch = 0

    def find_stored_after(self, entry: Entry) -> Send | None:
        """Return the first remembered SEND that was stored after `entry` and that any consumer may get."""
        first = None
        for send in reversed(self.stored_sends):
            stored = send.stored_id
            if stored is None or stored <= entry:
                break
            if send.is_deliverable:
                first = send
        return first


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscription(OwnedName):
    """A subscription over all connections: its consumers, the highest delivered and acknowledged entries.

    Some of the ACKs that raised `highest_acked` are kept with the entry, at most eight in `keep_ns`.
    """

    __slots__ = (
        *("_acks", "_last_ack", "_last_kept_ns", "highest_acked", "highest_delivered"),
        *("keep_ns", "name", "topic"),
    )

    def __init__(self, topic: Topic, name: str, keep_ns: int) -> None:
        super().__init__()
        self.topic = topic
        self.name = name
        self.keep_ns = keep_ns
        self.highest_delivered: Entry = NOWHERE
        self.highest_acked: Entry = NOWHERE
        self._last_ack: Sighting | None = None  # the ACK that raised `highest_acked` last
        self._acks: list[tuple[Sighting, Entry]] = []
        self._last_kept_ns = 0  # time of the last ACK in `_acks`

    def record_ack(self, entry: Entry, ack: Sighting) -> None:
        """Record an ACK and the highest entry that it acknowledges."""
        if entry <= self.highest_acked:
            return
        self.highest_acked, self._last_ack = entry, ack
        now, acks = ack.time_ns, self._acks
        if acks and now - self._last_kept_ns < self.keep_ns // 8:
            return
        self._last_kept_ns = now
        acks.append((ack, entry))
        if len(acks) > 2 and acks[1][0].time_ns < now - self.keep_ns:
            del acks[0]

    def find_ack_past(self, entry: Entry, until_ns: int) -> Sighting | None:
        """Return the first known ACK of an entry above `entry`; None if there is none up to `until_ns`."""
        first_ack = next((ack for ack, highest in self._acks if highest > entry), None)
        if first_ack is None and self.highest_acked > entry:
            first_ack = self._last_ack
        return first_ack if first_ack is not None and first_ack.time_ns <= until_ns else None


@mypyc_attr(allow_interpreted_subclasses=True)
class Facts:
    """The facts of all connections. `has_all_bytes`: no byte was missed that may have been Pulsar's.

    keep_ns     how long acknowledgements are remembered
    quiet_ns    a consumer without FLOW and MESSAGE for this long is stalled
    due_ns      the time of the next call of `Doctor.advance`
    """

    def __init__(self, *, keep_ns: int = 0, quiet_ns: int = 0) -> None:
        self._keep_ns = keep_ns
        self.quiet_ns = quiet_ns
        self.due_ns = 0
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[TopicAndName, Subscription] = {}
        self.publishers: dict[TopicAndName, Publisher] = {}
        self.has_all_bytes = True
        self.budget = Budget()  # of decompression
        self._checksums: dict[bytes, None] = {}  # of the last SENDs, for `match_send`
        self.unacked_count = 0
        """Upper bound of the unacknowledged entries that all consumers hold."""
        self._send_count = self._stored_count = 0  # in the tables of all publishers, and of all topics

    def match_send(self, checksum: bytes, to_broker: bool) -> bool:
        """Record a SEND's checksum (`to_broker`), or return whether a MESSAGE's was seen in a SEND."""
        if not to_broker:
            return checksum in self._checksums
        self._checksums[checksum] = None
        bound(self._checksums, MAX_SENDS)
        return False

    def get_topic(self, name: str) -> Topic:
        """Return the topic with this full name."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic(name)
            bound(self.topics, MAX_NAMES)
        return topic

    def get_subscription(self, topic: str, name: str) -> Subscription:
        """Return the subscription with this name on a topic."""
        subscription = self.subscriptions.get((topic, name))
        if subscription is None:
            subscription = Subscription(self.get_topic(topic), name, self._keep_ns)
            self.subscriptions[topic, name] = subscription
            bound(self.subscriptions, MAX_NAMES)
        return subscription

    def get_publisher(self, topic: str, name: str) -> Publisher:
        """Return the producer name on a topic."""
        publisher = self.publishers.get((topic, name))
        if publisher is None:
            publisher = self.publishers[topic, name] = Publisher(topic, name)
            bound(self.publishers, MAX_NAMES)
        return publisher

    def remember(self, publisher: Publisher, send: Send) -> None:
        """Remember a SEND as the latest with its sequence id; set its `previous` and `highest_before`."""
        key = make_sequence_key(send.sequence, send.chunk)
        previous = send.previous = publisher.sends.get(key)
        send.highest_before = highest = publisher.highest
        publisher.sends[key] = send
        if send.sequence > highest or send.highest > highest:
            publisher.highest = max(send.sequence, send.highest)
        if previous is not None:
            previous.previous = None  # no chain
            return
        self._send_count += 1
        if self._send_count > MAX_SENDS:
            self._forget()

    def _forget(self) -> None:
        """Forget the older half of the SENDs of each producer name, and more if names are too many."""
        for publisher in self.publishers.values():
            bound(publisher.sends, len(publisher.sends) // 2)
        self._send_count = sum(len(publisher.sends) for publisher in self.publishers.values())
        if self._send_count > MAX_SENDS // 2:
            for publisher in islice(self.publishers.values(), len(self.publishers) // 2):
                publisher.sends.clear()
            self._send_count = sum(len(publisher.sends) for publisher in self.publishers.values())

    def record_stored(self, topic: Topic, send: Send) -> None:
        """Remember a SEND that is stored, as its receipt says."""
        sends = topic.stored_sends
        sends.append(send)
        if len(sends) > _MAX_STORED:
            sends.popleft()
            return
        self._stored_count += 1
        if self._stored_count > MAX_SENDS:
            for topic in self.topics.values():
                for _ in range((len(topic.stored_sends) + 1) // 2):
                    topic.stored_sends.popleft()
            self._stored_count = sum(len(topic.stored_sends) for topic in self.topics.values())
