"""A consumer of a subscription: its permits, and what it has not acknowledged."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.storage.cursor import words_of
from pulsarctl_wire.broker.storage.log import Entry, Position
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, MessageIdData, Schema

EXCLUSIVE: Final = CommandSubscribe.Exclusive
SHARED: Final = CommandSubscribe.Shared
FAILOVER: Final = CommandSubscribe.Failover
KEY_SHARED: Final = CommandSubscribe.Key_Shared

INDIVIDUAL: Final = frozenset({SHARED, KEY_SHARED})
"""Subscription types whose messages are acknowledged one by one."""

_FORMER: Final = 0.9
"""The weight of former entries in the average of messages per entry."""


def int32(number: int) -> int:
    """A number as Java's int holds it, which wraps around."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class Subscribed(Protocol):
    """A subscription, as its consumers and its topic see it."""

    name: str
    topic_name: str
    gone_messages_out: int
    gone_bytes_out: int

    @property
    def kind(self) -> int | None:
        """The type of its consumers; None before the first one."""

    @property
    def consumers(self) -> Sequence["Consumer"]:
        """Its consumers."""

    @property
    def partition(self) -> int:
        """The number of its topic among the partitions of one; -1 if there are none."""

    @property
    def most_unacked(self) -> int:
        """Messages that a consumer may have without acknowledging any; 0: no limit."""

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is delivered for now, as it went too fast."""

    def remove(self, consumer: "Consumer") -> None:
        """A consumer leaves."""

    def disconnect(self, **told: Any) -> None:
        """Close all consumers. `told` are fields of CLOSE_CONSUMER."""

    async def delete(self, *, asked_by: "Consumer | None", force: bool) -> None:
        """Delete it. Raises Refused if others are connected, unless `force`."""

    def dispatch_soon(self) -> None:
        """Have deliverable entries delivered, once the current call is done."""

    def wake(self) -> None:
        """Consumers may get more than before."""

    def check_end(self) -> None:
        """Tell the consumers of the end of the topic, if they have acknowledged everything."""

    def delivered(self, messages: int, size: int) -> None:
        """Messages were delivered."""

    def count_unacked(self, messages: int) -> None:
        """So many more messages, or fewer, are delivered and not acknowledged."""

    def left(self, index: int) -> int | None:
        """The messages of a batch that are still to be delivered; None: all."""

    def ack(self, consumer: "Consumer", ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages one by one."""

    def ack_until(self, consumer: "Consumer", message_id: MessageIdData) -> None:
        """Acknowledge everything up to a message."""

    def redeliver(self, consumer: "Consumer", ids: Iterable[MessageIdData]) -> None:
        """REDELIVER for some messages; without ids, for all."""


class Consumer:
    """A consumer, made from its SUBSCRIBE.

    `permits` counts messages, and may be negative, as an entry is never split. `pending` has the entries that
    were delivered and neither acknowledged nor given back: index -> (messages in it, slot of its key), only
    for the types in INDIVIDUAL. `blocked`: too many of its messages are not acknowledged.
    """

    def __init__(self, connection: Connection, command: CommandSubscribe, subscription: Subscribed) -> None:
        self.connection = connection
        self.subscription = subscription
        self.id: int = command.consumer_id
        self.name: str = connection.text(command.consumer_name)
        self.partition = subscription.partition
        self.kind: int = command.subType
        self.priority: int = command.priority_level
        self.durable: bool = command.durable
        self.epoch: int = command.consumer_epoch if command.HasField("consumer_epoch") else -1
        self.metadata = connection.pairs(command.metadata)
        self.takes_any_schema = command.schema.type == Schema.AutoConsume
        self.key_shared = command.keySharedMeta
        self.read_compacted: bool = command.read_compacted
        self._has_epoch = self.kind not in INDIVIDUAL and not self.read_compacted
        self.since_ms = connection.scheduler.time_ms
        self.permits = 0
        self._held_permits = 0  # given while it was blocked
        self.unacked = 0
        self.messages_per_entry = 0.0
        """A moving average of what it got."""
        self.blocked = False
        self.closed = False
        self.pending: dict[int, tuple[int, int]] = {}
        self.messages_out = 0
        self.bytes_out = 0
        self.acked_messages = 0
        self.redelivered = 0
        self.last_flow_ms = self.last_sent_ms = self.last_acked_ms = 0
        self._most_unacked = subscription.most_unacked if self.kind in INDIVIDUAL else 0

    @property
    def available(self) -> bool:
        """Whether a message can be delivered to it now."""
        return self.permits > 0 and not self.blocked and self.reads

    @property
    def sent_epoch(self) -> int:
        """The epoch that its messages have; -1: none."""
        return self.epoch if self._has_epoch else -1

    @property
    def reads(self) -> bool:
        """Whether it could get messages, if it has permits and is not blocked."""
        return not (self.closed or self.connection.paused or self.subscription.is_throttled)

    @property
    def room(self) -> int:
        """How many messages it has permits for, and may leave unacknowledged."""
        left = self._most_unacked - self.unacked if self._most_unacked else self.permits
        return min(self.permits, left)

    # -- delivery

    def got(self, messages: int, entries: int) -> None:
        """It got a run of entries with so many messages."""
        each = messages / entries
        before = self.messages_per_entry
        self.messages_per_entry = before * _FORMER + each * (1 - _FORMER) if before else each

    def flow(self, permits: int) -> None:
        """More permits, counted as Java's int does; while it is blocked, they do not count yet."""
        if self.blocked:
            self._held_permits = int32(self._held_permits + permits)
        else:
            self.permits = int32(self.permits + permits)
        self.last_flow_ms = self.connection.scheduler.time_ms
        self.subscription.wake()

    def unblock(self) -> None:
        """It may get messages again; permits that were given meanwhile count now."""
        self.blocked = False
        self.permits, self._held_permits = int32(self.permits + self._held_permits), 0

    def deliver(self, entry: Entry, position: Position, redelivered: int, slot: int = 0) -> None:
        """Send it an entry; `redelivered` is how often it was redelivered, `slot` that of its key."""
        mask = self.subscription.left(entry.index)
        count = entry.count if mask is None else mask.bit_count()
        self.permits = int32(self.permits - count)
        if self.kind in INDIVIDUAL:
            self.pending[entry.index] = count, slot
            self._count(count)
            if self._most_unacked and self.unacked >= self._most_unacked:
                self.blocked = True
        self.messages_out += count
        self.bytes_out += len(entry.data)
        self.subscription.delivered(count, len(entry.data))
        self.last_sent_ms = self.connection.scheduler.time_ms
        if redelivered:
            self.redelivered += count
        ack_set = words_of(mask) if mask is not None else ()
        self.connection.send_message(
            self.id, entry, position, self.partition, self.sent_epoch, redelivered, ack_set
        )

    def settle(self, index: int, messages: int | None = None) -> int | None:
        """An entry is not pending any more; or it still is, without so many of its messages.

        Returns the slot of its key if it is not, else None.
        """
        found = self.pending.get(index)
        if found is None:
            return None
        count, slot = found
        gone = count if messages is None else min(messages, count)
        self._count(-gone)
        if messages is None:
            del self.pending[index]
        else:
            self.pending[index] = count - gone, slot
        if self.blocked and self.unacked <= self._most_unacked // 2:
            self.unblock()
            self.subscription.wake()
        return slot if messages is None else None

    def give_back(self) -> None:
        """Nothing is pending any more."""
        self.pending.clear()
        self._count(-self.unacked)
        self.unblock()

    def _count(self, messages: int) -> None:
        self.unacked += messages
        self.subscription.count_unacked(messages)

    def leave(self) -> None:
        """Its connection has ended."""
        self.subscription.remove(self)

    def wake(self) -> None:
        """Its connection takes more bytes again."""
        self.subscription.wake()

    # -- what it is told

    def tell_active(self, active: bool) -> None:
        """Say whether it is the active one of a Failover subscription."""
        if self.connection.version >= 12:
            self.connection.send("ACTIVE_CONSUMER_CHANGE", consumer_id=self.id, is_active=active)

    def tell_end(self) -> None:
        """Say that there will be no more messages."""
        if self.connection.version >= 9:
            self.connection.send("REACHED_END_OF_TOPIC", consumer_id=self.id)
