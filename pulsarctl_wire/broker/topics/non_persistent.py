"""A non-persistent topic: messages go to the consumers that have permits now, or nowhere."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    BaseSubscription,
    Consumer,
    to_int32,
)
from pulsarctl_wire.broker.delivery.key_ranges import KeyRanges, make_key_ranges, sticky_key
from pulsarctl_wire.broker.storage.log import Entry, Position
from pulsarctl_wire.broker.topics.subscribe_checks import check_can_join
from pulsarctl_wire.broker.topics.topic import Producer, Topic
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSend, CommandSubscribe, MessageIdData

_MESSAGE_ID: Final = Position(0, 0)
"""The id of every message."""


@mypyc_attr(native_class=False)  # its base is not compiled
class NonPersistentSubscription(BaseSubscription):
    """A subscription of a non-persistent topic: sends each message at once, or drops it."""

    def __init__(self, topic: "NonPersistentTopic", name: str, kind: int) -> None:
        super().__init__(topic, name)
        self.kind = kind
        self.dropped = 0
        self._turn = 0
        self._key_ranges: KeyRanges | None = None

    async def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        await check_can_join(self, self.topic, consumer)
        self.kind = consumer.kind
        if self.kind == KEY_SHARED:
            if not self.consumers:
                self._key_ranges = make_key_ranges(consumer)
            assert self._key_ranges is not None
            self._key_ranges.add(consumer)
        active = self._find_active()
        self.consumers.append(consumer)
        if self.kind == FAILOVER and self._find_active() is active:
            consumer.tell_active(False)  # if the active one has changed, nobody is told

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if consumer in self.consumers:
            consumer.closed = True
            self.consumers.remove(consumer)
            self.past_messages_out += consumer.messages_out
            self.past_bytes_out += consumer.bytes_out
            if self._key_ranges is not None:
                self._key_ranges.remove(consumer)
            self.topic.on_consumer_left(self)

    def _find_active(self) -> Consumer | None:
        """Return the Exclusive consumer, or the active one of Failover, chosen by the partition number."""
        if not self.consumers:
            return None
        ordered = sorted(self.consumers, key=lambda consumer: (consumer.priority, consumer.name))
        candidates = [consumer for consumer in ordered if consumer.priority == ordered[0].priority]
        return candidates[max(self.partition, 0) % len(candidates)]

    def deliver(self, entry: Entry) -> None:
        """Send an entry to a consumer with permits; without one, or without metadata, drop it."""
        if entry.metadata is None:
            return
        consumer = self._choose(entry)
        if consumer is None or not consumer.is_available:
            self.dropped += entry.count
            return
        consumer.permits = to_int32(consumer.permits - entry.count)
        consumer.messages_out += entry.count
        consumer.bytes_out += len(entry.data)
        consumer.last_sent_ms = self.topic.scheduler.time_ms
        consumer.connection.send_message(consumer.id, entry, _MESSAGE_ID, self.partition, consumer.sent_epoch)

    def _choose(self, entry: Entry) -> Consumer | None:
        if not self.consumers:
            return None
        if self.kind in (EXCLUSIVE, FAILOVER):
            return self._find_active()
        if self._key_ranges is not None:
            return self._key_ranges.get_owner(self._key_ranges.get_slot(sticky_key(entry.metadata)))
        index = next((index for index in self._order() if self.consumers[index].is_available), None)
        # as in Pulsar, all permits are added up: negative ones of a consumer block the others
        if index is None or sum(consumer.permits for consumer in self.consumers) <= 0:
            return None
        self._turn = index + 1
        return self.consumers[index]

    def _order(self) -> Iterator[int]:
        """Return the indexes of a Shared subscription's consumers, in the order in which they are tried.

        They are not sorted by priority here, so priority counts only among neighbours, as on a real broker.
        """
        priorities = [consumer.priority for consumer in self.consumers]
        turn = self._turn if self._turn < len(priorities) else 0
        level = priorities[turn]
        yield from takewhile(lambda index: priorities[index] < level, range(turn))
        neighbours = takewhile(lambda index: priorities[index] == level, range(turn, len(priorities)))
        last = turn
        for last in neighbours:
            yield last
        yield from takewhile(lambda index: priorities[index] == level, range(priorities.index(level), turn))
        yield from range(last + 1, len(priorities))


class NonPersistentTopic(Topic[NonPersistentSubscription]):
    """A loaded non-persistent topic."""

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_start: int) -> None:
        """Handle SEND: the entry is `frame.raw[tail_start:]`."""
        entry = Entry(0, frame.raw[tail_start:], frame.metadata)
        for counter in (self, producer):
            counter.messages_in += entry.count
            counter.bytes_in += len(entry.data)
        producer.begin_send(0)
        producer.confirm_send(command.sequence_id, command.highest_sequence_id, *_MESSAGE_ID, 0)
        if self.rules.limits_rate:
            self.limit_rate(producer, entry.count, len(entry.data))
        for subscription in self.subscriptions.values():
            subscription.deliver(entry)

    async def subscribe(self, connection: Connection, command: CommandSubscribe, name: str) -> Consumer:
        """Add a consumer to a subscription, which is made if there is none. Raises Refused."""
        if command.read_compacted:
            raise Refused("NotAllowedError", "readCompacted only valid on persistent topics")
        if name not in self.subscriptions:
            self.subscriptions[name] = NonPersistentSubscription(self, name, command.subType)
        subscription = self.subscriptions[name]
        consumer = Consumer(connection, command, subscription)
        await subscription.add(consumer)
        return consumer

    def on_consumer_left(self, subscription: NonPersistentSubscription) -> None:
        """Drop a subscription when its last consumer has left."""
        if not subscription.consumers and self.subscriptions.pop(subscription.name, None) is not None:
            self.past_messages_out += subscription.past_messages_out
            self.past_bytes_out += subscription.past_bytes_out
        self.last_active_ms = self.scheduler.time_ms

    async def create_initial_subscription(self, name: str) -> None:
        """Do nothing: a subscription without consumers would keep no messages."""

    async def check_backlog(self) -> None:
        """Do nothing: there is no backlog."""

    def locate(self, message_id: MessageIdData) -> int:
        """Return 0: there are no positions."""
        return 0

    async def close(self, **close_fields: Any) -> None:
        """Close the topic: clients reconnect, as CLOSE_PRODUCER and CLOSE_CONSUMER with these fields say."""
        self.closed = True
        self.disconnect(**close_fields)
