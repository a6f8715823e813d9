"""A consumer of a subscription: its permits, and what it has not acknowledged."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.storage.cursor import words_of
from pulsarctl_wire.broker.storage.log import Entry, Position
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, MessageIdData, Schema

EXCLUSIVE: Final = CommandSubscribe.Exclusive
SHARED: Final = CommandSubscribe.Shared
FAILOVER: Final = CommandSubscribe.Failover
KEY_SHARED: Final = CommandSubscribe.Key_Shared

INDIVIDUAL_ACK_TYPES: Final = frozenset({SHARED, KEY_SHARED})
"""Subscription types that allow no cumulative acknowledgement: messages are acknowledged one by one."""

_AVERAGE_DECAY: Final = 0.9
"""The weight of earlier entries in the average of messages per entry."""


def to_int32(number: int) -> int:
    """Return a number as Java's int holds it: it wraps around."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class BaseSubscription:
    """The base of subscriptions of persistent and non-persistent topics.

    Methods that do nothing here have no effect in non-persistent topics, which keep nothing for later.
    """

    def __init__(self, topic: Any, name: str) -> None:
        self.topic = topic
        self.topic_name: str = topic.name.full
        self.partition: int = topic.partition
        self.name = name
        self.kind: int | None = None
        """The type of its consumers (CommandSubscribe.SubType); None before the first one."""
        self.consumers: list[Consumer] = []
        self.past_messages_out = 0
        """Messages sent to consumers that have left; likewise bytes."""
        self.past_bytes_out = 0
        self.get_open_mask: Callable[[int], int | None] = lambda index: None
        """Returns the messages of a batch that are still to be delivered, as bits; None: all."""

    @property
    def max_unacked(self) -> int:
        """The most unacknowledged messages that a consumer may have; 0: no limit."""
        return 0

    @property
    def is_throttled(self) -> bool:
        """Whether deliveries pause, as they were faster than the rates allow."""
        return False

    def remove(self, consumer: "Consumer") -> None:
        """Remove a consumer."""
        raise NotImplementedError

    def disconnect(
        self, *, except_for: "Consumer | None" = None, only: "Consumer | None" = None, **close_fields: Any
    ) -> None:
        """Remove all consumers, or just `only`; send them CLOSE_CONSUMER, but not to `except_for`."""
        for consumer in list(self.consumers):
            if only is None or consumer is only:
                self.remove(consumer)
                if consumer is not except_for:
                    consumer.connection.close_consumer(consumer.id, **close_fields)

    async def delete(self, *, requester: "Consumer | None", force: bool) -> None:
        """Delete the subscription. Raises Refused if any but `requester` are connected, unless `force`."""
        if not force and any(consumer is not requester for consumer in self.consumers):
            raise Refused("MetadataError", "Unconnected or shared consumer attempting to unsubscribe")
        self.disconnect(except_for=requester)
        self.topic.subscriptions.pop(self.name, None)

    def dispatch_soon(self) -> None:
        """Have deliverable entries delivered, once the current call is done."""

    def wake(self) -> None:
        """Try again to deliver: consumers may get more than before."""

    def check_end(self) -> None:
        """Announce the end of the topic, if everything is acknowledged."""

    def on_delivered(self, messages: int, size: int) -> None:
        """Count delivered messages and bytes against the rates."""

    def count_unacked(self, messages: int) -> None:
        """Add `messages`, which may be negative, to the number of unacknowledged messages."""

    def ack(self, consumer: "Consumer", ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages one by one."""

    def ack_until(self, consumer: "Consumer", message_id: MessageIdData) -> None:
        """Acknowledge everything up to a message."""

    def redeliver(self, consumer: "Consumer", ids: Iterable[MessageIdData]) -> None:
        """Redeliver some messages; without ids, all."""


class Consumer:
    """A consumer, made from its SUBSCRIBE.

    `permits` counts messages, and may be negative, as an entry is never split. `pending` has the entries that
    were delivered and neither acknowledged nor given back: index -> (number of its unacknowledged messages,
    slot of its key, see key_ranges.py), only for the types in INDIVIDUAL_ACK_TYPES. `blocked`: too many of
    the consumer's messages are not acknowledged.
    """

    def __init__(
        self, connection: Connection, command: CommandSubscribe, subscription: BaseSubscription
    ) -> None:
        self.connection = connection
        self.subscription = subscription
        self.id: int = command.consumer_id
        self.name: str = connection.text(command.consumer_name)
        self.partition = subscription.partition
        self.kind: int = command.subType
        self.priority: int = command.priority_level
        self.durable: bool = command.durable
        self.epoch: int = command.consumer_epoch if command.HasField("consumer_epoch") else -1
        self.metadata = connection.read_pairs(command.metadata)
        self.takes_any_schema = command.schema.type == Schema.AutoConsume
        self.key_shared = command.keySharedMeta
        self.read_compacted: bool = command.read_compacted
        # as in Pulsar, only these consumers get their epoch with messages
        self._sends_epoch = self.kind not in INDIVIDUAL_ACK_TYPES and not self.read_compacted
        self.since_ms = connection.scheduler.time_ms
        self.permits = 0
        self._held_permits = 0  # received while blocked
        self.unacked = 0
        self.messages_per_entry = 0.0
        """A moving average."""
        self.blocked = False
        self.closed = False
        self.pending: dict[int, tuple[int, int]] = {}
        self.messages_out = 0
        self.bytes_out = 0
        self.acked_messages = 0
        self.redelivered = 0
        self.last_flow_ms = self.last_sent_ms = self.last_acked_ms = 0
        self._max_unacked = subscription.max_unacked if self.kind in INDIVIDUAL_ACK_TYPES else 0

    @property
    def is_available(self) -> bool:
        """Whether a message can be delivered now."""
        return self.permits > 0 and not self.blocked and self.can_receive

    @property
    def sent_epoch(self) -> int:
        """The epoch to send with messages; -1: none."""
        return self.epoch if self._sends_epoch else -1

    @property
    def can_receive(self) -> bool:
        """Whether it could receive messages, given permits and if not blocked."""
        return not (self.closed or self.connection.paused or self.subscription.is_throttled)

    @property
    def message_budget(self) -> int:
        """The number of messages that permits and the limit of unacknowledged ones allow."""
        budget = self._max_unacked - self.unacked if self._max_unacked else self.permits
        return min(self.permits, budget)

    # -- delivery

    def record_delivery(self, messages: int, entries: int) -> None:
        """Add `messages` messages, delivered in `entries` entries, to the average of messages per entry."""
        latest = messages / entries
        average = self.messages_per_entry
        self.messages_per_entry = (
            average * _AVERAGE_DECAY + latest * (1 - _AVERAGE_DECAY) if average else latest
        )

    def flow(self, permits: int) -> None:
        """Add permits, counted as Java's int does; while blocked, hold them back."""
        if self.blocked:
            self._held_permits = to_int32(self._held_permits + permits)
        else:
            self.permits = to_int32(self.permits + permits)
        self.last_flow_ms = self.connection.scheduler.time_ms
        self.subscription.wake()

    def unblock(self) -> None:
        """Resume delivery, and add the permits received while blocked."""
        self.blocked = False
        self.permits, self._held_permits = to_int32(self.permits + self._held_permits), 0

    def deliver(self, entry: Entry, position: Position, redelivered: int, slot: int = 0) -> None:
        """Send an entry; `redelivered` is its redelivery count, `slot` the slot of its key."""
        open_mask = self.subscription.get_open_mask(entry.index)
        count = entry.count if open_mask is None else open_mask.bit_count()
        self.permits = to_int32(self.permits - count)
        if self.kind in INDIVIDUAL_ACK_TYPES:
            self.pending[entry.index] = count, slot
            self._count(count)
            if self._max_unacked and self.unacked >= self._max_unacked:
                self.blocked = True
        self.messages_out += count
        self.bytes_out += len(entry.data)
        self.subscription.on_delivered(count, len(entry.data))
        self.last_sent_ms = self.connection.scheduler.time_ms
        if redelivered:
            self.redelivered += count
        ack_set = words_of(open_mask) if open_mask is not None else ()
        self.connection.send_message(
            self.id, entry, position, self.partition, self.sent_epoch, redelivered, ack_set
        )

    def settle(self, index: int, messages: int | None = None) -> int | None:
        """Record that an entry is no longer pending, or only `messages` messages of it.

        Returns the slot of the entry's key; None if it was not pending, or `messages` is given.
        """
        pending = self.pending.get(index)
        if pending is None:
            return None
        count, slot = pending
        settled = count if messages is None else min(messages, count)
        self._count(-settled)
        if messages is None:
            del self.pending[index]
        else:
            self.pending[index] = count - settled, slot
        if self.blocked and self.unacked <= self._max_unacked // 2:
            self.unblock()
            self.subscription.wake()
        return slot if messages is None else None

    def give_back(self) -> None:
        """Forget all pending entries, which others may get, and unblock the consumer."""
        self.pending.clear()
        self._count(-self.unacked)
        self.unblock()

    def _count(self, messages: int) -> None:
        self.unacked += messages
        self.subscription.count_unacked(messages)

    def leave(self) -> None:
        """Leave the subscription, as the connection has ended or the client closes the consumer."""
        self.subscription.remove(self)

    def wake(self) -> None:
        """Try again to deliver, as the connection takes more bytes."""
        self.subscription.wake()

    # -- announcements to the client

    def tell_active(self, active: bool) -> None:
        """Send whether this is the active consumer of a Failover subscription."""
        if self.connection.version >= 12:
            self.connection.send("ACTIVE_CONSUMER_CHANGE", consumer_id=self.id, is_active=active)

    def tell_end(self) -> None:
        """Send that there will be no more messages."""
        if self.connection.version >= 9:
            self.connection.send("REACHED_END_OF_TOPIC", consumer_id=self.id)
