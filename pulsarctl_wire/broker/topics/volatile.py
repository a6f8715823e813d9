"""A non-persistent topic: messages go to the consumers that have permits now, or nowhere."""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, Consumer, int32
from pulsarctl_wire.broker.delivery.key_ranges import Selector, selector_for, sticky_key
from pulsarctl_wire.broker.storage.log import Entry, Position
from pulsarctl_wire.broker.topics.joining import check_joins
from pulsarctl_wire.broker.topics.topic import Producer, Topic
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSend, CommandSubscribe, MessageIdData

ID: Final = Position(0, 0)
"""The message id of every message."""


class VolatileSubscription:
    """A subscription of a non-persistent topic: who gets each message."""

    def __init__(self, topic: "VolatileTopic", name: str, kind: int) -> None:
        self.topic = topic
        self.topic_name, self.partition = topic.name.full, topic.partition
        self.name = name
        self.kind = kind
        self.consumers: list[Consumer] = []
        self.most_unacked = 0
        self.dropped = 0
        self.gone_messages_out = 0
        self.gone_bytes_out = 0
        self.is_throttled = False
        self._turn = 0
        self._selector: Selector | None = None

    async def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused."""
        await check_joins(self, self.topic, consumer)
        self.kind = consumer.kind
        if self.kind == KEY_SHARED:
            if not self.consumers:
                self._selector = selector_for(consumer)
            assert self._selector is not None
            self._selector.add(consumer)
        active = self._active()
        self.consumers.append(consumer)
        if self.kind == FAILOVER and self._active() is active:
            consumer.tell_active(False)  # a change is not told

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        if consumer in self.consumers:
            consumer.closed = True
            self.consumers.remove(consumer)
            self.gone_messages_out += consumer.messages_out
            self.gone_bytes_out += consumer.bytes_out
            if self._selector is not None:
                self._selector.remove(consumer)
            self.topic.consumer_left(self)

    def _active(self) -> Consumer | None:
        """Of a Failover subscription: by the number of the partition, as clients share partitions."""
        if not self.consumers:
            return None
        ordered = sorted(self.consumers, key=lambda each: (each.priority, each.name))
        first = [each for each in ordered if each.priority == ordered[0].priority]
        return first[max(self.partition, 0) % len(first)]

    def deliver(self, entry: Entry) -> None:
        """Send an entry to a consumer with permits. Without one, or unreadable, it is dropped."""
        if entry.metadata is None:
            return
        consumer = self._choose(entry)
        if consumer is None or not consumer.available:
            self.dropped += entry.count
            return
        consumer.permits = int32(consumer.permits - entry.count)
        consumer.messages_out += entry.count
        consumer.bytes_out += len(entry.data)
        consumer.last_sent_ms = self.topic.scheduler.time_ms
        consumer.connection.send_message(consumer.id, entry, ID, self.partition, consumer.sent_epoch)

    def _choose(self, entry: Entry) -> Consumer | None:
        if not self.consumers:
            return None
        if self.kind in (EXCLUSIVE, FAILOVER):
            return self._active()
        if self._selector is not None:
            return self._selector.owner(self._selector.slot(sticky_key(entry.metadata)))
        at = next((at for at in self._places() if self.consumers[at].available), None)
        if at is None or sum(each.permits for each in self.consumers) <= 0:
            return None
        self._turn = at + 1
        return self.consumers[at]

    def _places(self) -> Iterator[int]:
        """The places of a Shared subscription's consumers, in the order in which they are tried.

        Here they are not sorted by priority. So it counts only among neighbours, as on a real broker.
        """
        priorities = [each.priority for each in self.consumers]
        turn = self._turn if self._turn < len(priorities) else 0
        own = priorities[turn]
        yield from takewhile(lambda at: priorities[at] < own, range(turn))
        same = takewhile(lambda at: priorities[at] == own, range(turn, len(priorities)))
        end = turn
        for end in same:
            yield end
        yield from takewhile(lambda at: priorities[at] == own, range(priorities.index(own), turn))
        yield from range(end + 1, len(priorities))

    def disconnect(self, *, but: Consumer | None = None, **told: Any) -> None:
        """Close all consumers; CLOSE_CONSUMER says so to all of them `but` one."""
        for consumer in list(self.consumers):
            self.remove(consumer)
            if consumer is not but:
                consumer.connection.close_consumer(consumer.id, **told)

    async def delete(self, *, asked_by: Consumer | None, force: bool) -> None:
        """Delete it. Raises Refused if others are connected, unless `force`."""
        if not force and any(each is not asked_by for each in self.consumers):
            raise Refused("MetadataError", "Unconnected or shared consumer attempting to unsubscribe")
        self.disconnect(but=asked_by)
        self.topic.subscriptions.pop(self.name, None)

    # -- what means nothing here

    def dispatch_soon(self) -> None:
        """There is never anything to deliver later."""

    def check_end(self) -> None:
        """There is no end."""

    def wake(self) -> None:
        """New permits only count for new messages."""

    def delivered(self, messages: int, size: int) -> None:
        """No rate limits deliveries."""

    def count_unacked(self, messages: int) -> None:
        """No message is ever acknowledged."""

    def left(self, index: int) -> int | None:
        """Nothing is delivered in part."""
        return None

    def ack(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """There is nothing to acknowledge."""

    def ack_until(self, consumer: Consumer, message_id: MessageIdData) -> None:
        """There is nothing to acknowledge."""

    def redeliver(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """There is nothing to send again."""


class VolatileTopic(Topic[VolatileSubscription]):
    """A loaded non-persistent topic."""

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_at: int) -> None:
        """SEND: the entry is `frame.raw[tail_at:]`."""
        entry = Entry(0, frame.raw[tail_at:], frame.metadata)
        self.messages_in += entry.count
        self.bytes_in += len(entry.data)
        producer.begun(0)
        producer.receipt(command.sequence_id, command.highest_sequence_id, *ID, 0)
        if self.rules.limits_rate:
            self.limit_rate(producer, entry.count, len(entry.data))
        for subscription in self.subscriptions.values():
            subscription.deliver(entry)

    async def subscribe(self, connection: Connection, command: CommandSubscribe, name: str) -> Consumer:
        """A consumer joins a subscription, which is made if there is none. Raises Refused."""
        if command.read_compacted:
            raise Refused("NotAllowedError", "readCompacted only valid on persistent topics")
        if name not in self.subscriptions:
            self.subscriptions[name] = VolatileSubscription(self, name, command.subType)
        subscription = self.subscriptions[name]
        consumer = Consumer(connection, command, subscription)
        await subscription.add(consumer)
        return consumer

    def consumer_left(self, subscription: VolatileSubscription) -> None:
        """A consumer of a subscription left: it goes with its last one."""
        if not subscription.consumers and self.subscriptions.pop(subscription.name, None) is not None:
            self.gone_messages_out += subscription.gone_messages_out
            self.gone_bytes_out += subscription.gone_bytes_out
        self.last_active_ms = self.scheduler.time_ms

    async def create_initial(self, name: str) -> None:
        """Subscriptions that nobody uses keep nothing."""

    async def check_backlog(self) -> None:
        """There is no backlog."""

    def locate(self, message_id: MessageIdData) -> int:
        """There is only here and now."""
        return 0

    async def close(self, **told: Any) -> None:
        """Close it: clients reconnect. `told` are fields of CLOSE_PRODUCER and CLOSE_CONSUMER."""
        self.closed = True
        self.disconnect(**told)
