"""A subscription of a persistent topic: its cursor, its consumers, and what they may ask for."""

from collections.abc import Iterable
from typing import Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Completion
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, INDIVIDUAL, KEY_SHARED, Consumer
from pulsarctl_wire.broker.delivery.dispatcher import Dispatcher
from pulsarctl_wire.broker.delivery.key_shared import KeyShared
from pulsarctl_wire.broker.delivery.shared import Shared
from pulsarctl_wire.broker.delivery.single_active import SingleActive
from pulsarctl_wire.broker.storage.cursor import Cursor, mask_of
from pulsarctl_wire.broker.storage.transactions import PendingAcks
from pulsarctl_wire.broker.tenancy.limits import UNLIMITED, Limiter, Rate
from pulsarctl_wire.broker.topics.joining import check_joins
from pulsarctl_wire.broker.topics.stored import StoredTopic
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageIdData

_BACKLOGGED: Final = 1000
"""With more entries in its backlog, a subscription is throttled even if others are not."""


class Subscription:
    """A subscription, whose consumers are all of the type `kind` while there are any."""

    def __init__(self, topic: StoredTopic["Subscription"], name: str, cursor: Cursor) -> None:
        self.topic = topic
        self.topic_name, self.partition = topic.name.full, topic.partition
        self.scheduler, self.settings, self.journal = topic.scheduler, topic.settings, topic.journal
        self.log, self.compaction = topic.log, topic.compaction
        self.name = name
        self.cursor = cursor
        self.kind: int | None = None
        self.dispatcher: Dispatcher | None = None
        self.transactions = PendingAcks(self)
        self.is_aborted = topic.is_aborted
        self.hides, self.left = self.transactions.hides, self.transactions.left
        self.has_told_end = topic.has_lost_end
        self.stored = False
        """Whether it is known to be durable; until then, nobody may be told that it exists."""
        self.reset_stored: Completion[None] | None = None
        """When the last reset is durable; consumers that join wait for it, as in Pulsar."""
        self.expired_messages = 0
        self.last_expired_ms = self.last_moved_ms = 0
        self.gone_messages_out = 0
        """What was sent to consumers that have left."""
        self.gone_bytes_out = 0
        self.last_ms: dict[str, int] = {}
        """When consumers that have left last got a message, asked or acknowledged (`Consumer.last_…`)."""
        self._soon = False
        self._has_skipped = False
        """Whether entries may be pending that were skipped."""
        self._limiter = Limiter(topic.scheduler)
        self._rates: list[tuple[Limiter, Rate]] = []
        self._held_until = 0
        self.room = UNLIMITED
        """How many messages its rates let through now."""
        self.unacked = 0
        """Messages that its consumers have got and not acknowledged."""
        self.blocked = False
        """Whether these are too many: then nothing new is read."""
        self._blocks_at = 0  # from so many on; 0: never
        self.seeks = 0

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers."""
        return [] if self.dispatcher is None else self.dispatcher.consumers

    @property
    def readable(self) -> int:
        """Consumers may see entries before this index."""
        return self.topic.readable

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages."""
        return self.topic.terminated

    @property
    def full_name(self) -> str:
        """Its topic and its name, as in Pulsar's messages."""
        return f"[{self.topic_name}][{self.name}]"

    @property
    def reads_compacted(self) -> bool:
        """Whether its consumers want the compacted copy, where there is one."""
        return any(each.read_compacted for each in self.consumers)

    @property
    def most_unacked(self) -> int:
        """Messages that a consumer may have without acknowledging any; 0: no limit."""
        if not self.cursor.durable:
            return 0
        return self.topic.policies.limit("max unacked", self.settings.maxUnackedMessagesPerConsumer)

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog(self.log.stored)

    # -- consumers

    async def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused.

        During a reset, it waits: the Java client drops what it has got when SEEK is answered, also messages
        that came after it has subscribed again.
        """
        if self.reset_stored is not None:
            await self.reset_stored
        await check_joins(self, self.topic, consumer)
        if self.topic.closed or self.topic.subscriptions.get(self.name) is not self:
            raise Refused("ServiceNotReady", "Subscription is fenced")  # it went while the consumer waited
        if not self.consumers:
            self._begin(consumer)
        assert self.dispatcher is not None
        self.dispatcher.add(consumer)
        self.cursor.last_active_ms = self.scheduler.time_ms
        self.dispatch_soon()

    def _begin(self, consumer: Consumer) -> None:
        """The first consumer decides on the dispatcher."""
        if self.dispatcher is not None and consumer.kind == self.kind == FAILOVER:
            return
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.kind = consumer.kind
        if consumer.kind in (EXCLUSIVE, FAILOVER):
            self.dispatcher = SingleActive(self)
        elif consumer.kind == KEY_SHARED:
            self.dispatcher = KeyShared(self, consumer)
        else:
            self.dispatcher = Shared(self)

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        dispatcher = self.dispatcher
        if dispatcher is not None and consumer in dispatcher.consumers:
            consumer.closed = True
            self._remember(consumer)
            dispatcher.remove(consumer)
            self.cursor.last_active_ms = self.scheduler.time_ms
            self.topic.consumer_left(self)

    def _remember(self, consumer: Consumer) -> None:
        """Keep the counters of a consumer that leaves."""
        self.gone_messages_out += consumer.messages_out
        self.gone_bytes_out += consumer.bytes_out
        for name in ("last_flow_ms", "last_sent_ms", "last_acked_ms"):
            self.last_ms[name] = max(self.last_ms.get(name, 0), getattr(consumer, name))

    def disconnect(self, *, but: Consumer | None = None, only: Consumer | None = None, **told: Any) -> None:
        """Close all consumers, or `only` one; CLOSE_CONSUMER says so to all of them `but` one."""
        for consumer in list(self.consumers):
            if only is None or consumer is only:
                self.remove(consumer)
                if consumer is not but:
                    consumer.connection.close_consumer(consumer.id, **told)

    # -- dispatching

    def dispatch_soon(self) -> None:
        """Have deliverable entries delivered, once the current call is done."""
        if not self._soon and self.dispatcher is not None:
            self._soon = True
            self.scheduler.ready.append(self._dispatch)

    def _dispatch(self) -> None:
        self._soon = False
        if self.dispatcher is None or self.topic.closed or self.is_throttled or self.blocked:
            return
        if self._has_skipped and any(each.available for each in self.consumers):
            self._settle_skipped()
        topic, rules = self.topic, self.topic.dispatch_rules
        self._blocks_at = rules.most_unacked if self.cursor.durable else 0
        limiters = topic.environment.dispatch_limiter, topic.dispatch_limiter, self._limiter
        throttled = self.settings.dispatchThrottlingOnNonBacklogConsumerEnabled or self.backlog > _BACKLOGGED
        self._rates = [
            each for each in zip(limiters, rules.rates, strict=True) if throttled and each[1].limits
        ]
        self.room = min((limiter.room(rate) for limiter, rate in self._rates), default=UNLIMITED)
        self.dispatcher.dispatch()

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is delivered for now, as it went too fast."""
        return self._held_until > self.scheduler.ticks

    def count_unacked(self, messages: int) -> None:
        """So many more messages, or fewer, are delivered and not acknowledged."""
        self.unacked += messages
        if self._blocks_at and not self.blocked and self.unacked >= self._blocks_at:
            self.blocked = True
        elif self.blocked and self.unacked < self._blocks_at // 2:
            self.blocked = False
            self.dispatch_soon()

    def delivered(self, messages: int, size: int) -> None:
        """Messages were delivered: if that is too fast, deliver none for a while."""
        for limiter, rate in self._rates:
            wait = limiter.take(rate, messages, size)
            if wait > 0:
                self._held_until = max(self._held_until, self.scheduler.ticks + int(wait * 1e9))
                self.scheduler.later(wait, self.wake)

    def wake(self) -> None:
        """Consumers may get more than before: of permits, of what can be written to them, or of time."""
        if self.dispatcher is not None:
            self.dispatcher.wake()
        self.dispatch_soon()

    def redeliver(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """REDELIVER for some messages; without ids, for all."""
        if self.dispatcher is None:
            return
        indexes = None
        if ids and consumer.kind in INDIVIDUAL:
            located = map(self._locate, ids)
            indexes = [index for index, there in located if there and index in consumer.pending]
        self.dispatcher.redeliver(consumer, indexes)
        self.dispatch_soon()

    def _locate(self, message_id: MessageIdData) -> tuple[int, bool]:
        return self.log.locate(message_id.ledgerId, message_id.entryId)

    # -- acknowledgements

    def ack(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages one by one. Unknown ids are ignored, and all from one beyond the end on."""
        mark, beyond = self.cursor.mark, False
        for message_id in ids:
            index, there = self._locate(message_id)
            beyond = beyond or index >= self.log.stored
            if beyond and there:
                self.settle(index)
            if beyond or not there:
                continue
            if self.dispatcher is not None:
                self.dispatcher.redelivered.pop(index, None)
            if not message_id.ack_set:
                self._ack_entry(index)
            elif self.settings.acknowledgmentAtBatchIndexLevelEnabled:
                self._ack_some(index, message_id)
        self._was_acked(consumer, mark)
        self.check_end()

    def _was_acked(self, consumer: Consumer, mark: int) -> None:
        """A consumer has acknowledged something; the mark was at `mark`."""
        consumer.last_acked_ms = now = self.scheduler.time_ms
        if self.cursor.mark != mark:
            self.last_moved_ms = now
            if self.cursor.durable:
                self.topic.mark_moved(mark, self.cursor.mark)

    def _ack_entry(self, index: int) -> None:
        self.settle(index)
        if self.cursor.ack(index) and self.dispatcher is not None:
            self.dispatcher.acked(index)

    def settle(self, index: int) -> None:
        """An entry is not pending any more, whoever has it."""
        for consumer in self.consumers if self.kind in INDIVIDUAL else ():
            if index in consumer.pending:
                self._settle(consumer, index)
                break

    def apply(self, entries: Iterable[tuple[int, int | None, int]], until: int) -> None:
        """Acknowledge what a transaction has: all before an entry; entries, or some messages of them."""
        self.cursor.ack_before(until)
        for index, mask, size in entries:
            if mask is None:
                self._ack_entry(index)
            elif self.settings.acknowledgmentAtBatchIndexLevelEnabled:
                self.cursor.ack_some(index, size, mask)
        self.check_end()

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver entries again whose acknowledgement was aborted."""
        if self.dispatcher is not None:
            self.dispatcher.deliver_again(indexes)
            self.dispatch_soon()

    def _ack_some(self, index: int, message_id: MessageIdData) -> None:
        mask = mask_of(message_id.ack_set)
        holder = next((each for each in self.consumers if index in each.pending), None)
        size = message_id.batch_size or (holder.pending[index][0] if holder is not None else 0)
        gone = self.cursor.ack_some(index, size, mask)
        if self.cursor.is_acked(index):
            if holder is not None:
                self._settle(holder, index)
            if self.dispatcher is not None:
                self.dispatcher.acked(index)
        elif holder is not None and self.transactions.hides(index):
            self._settle(holder, index)
        elif holder is not None and gone:
            holder.acked_messages += gone
            holder.settle(index, gone)

    def _settle(self, consumer: Consumer, index: int) -> None:
        consumer.acked_messages += consumer.pending[index][0]
        slot = consumer.settle(index)
        if slot is not None and self.dispatcher is not None:
            self.dispatcher.settled(consumer, slot)

    def ack_until(self, consumer: Consumer, message_id: MessageIdData) -> None:
        """Acknowledge everything up to a message."""
        index, there = self._locate(message_id)
        if there and index < self.log.stored:
            self._ack_until(consumer, index, message_id)
        self.check_end()

    def _ack_until(self, consumer: Consumer, index: int, message_id: MessageIdData) -> None:
        mark = self.cursor.mark
        if not message_id.ack_set:
            self.cursor.ack_before(index + 1)
        else:
            self.cursor.ack_before(index)
            still_open = mask_of(message_id.ack_set)
            by_index = self.settings.acknowledgmentAtBatchIndexLevelEnabled
            if by_index and still_open and not self.cursor.is_acked(index):
                self.cursor.set_open(index, still_open)
        self._was_acked(consumer, mark)

    def skip(self, index: int) -> None:
        """The broker itself acknowledges an entry that no consumer may see."""
        self.cursor.ack(index)
        self.check_end()

    def expire(self, index: int) -> None:
        """Acknowledge everything before an entry, as it is too old."""
        backlog = self.backlog
        self.last_expired_ms = self.scheduler.time_ms
        self.skip_before(index)
        self.expired_messages += backlog - self.backlog

    def check_end(self) -> None:
        """Once everything is acknowledged, tell the consumers that the topic is terminated, or has moved."""
        if self.backlog:
            return
        for consumer in list(self.consumers):
            if self.topic.migrated is not None:
                self.remove(consumer)
                consumer.connection.tell_migrated(consumer.id, self.topic.migrated, producer=False)
                consumer.connection.close_consumer(consumer.id)
            elif self.topic.terminated:
                consumer.tell_end()

    # -- what the admin API does

    def skip_entries(self, number: int) -> None:
        """Acknowledge the next entries that are open."""
        index = self.cursor.mark
        for _ in range(min(number, self.backlog)):
            index = self.cursor.next_open(index) + 1
        self.skip_before(index)

    def skip_before(self, index: int) -> None:
        """Acknowledge every entry before an index, whoever has it."""
        index = min(index, self.log.stored)
        if self.cursor.ack_before(index):
            self.last_moved_ms = self.scheduler.time_ms
            self._has_skipped = True
            if self.topic.migrated is not None:
                self.check_end()
            self.dispatch_soon()

    def _settle_skipped(self) -> None:
        """Have no entry pending that was skipped; as in Pulsar, once a consumer can get another one."""
        assert self.dispatcher is not None
        self._has_skipped = False
        for consumer in self.consumers:
            for index in [each for each in consumer.pending if each < self.cursor.mark]:
                slot = consumer.settle(index)
                assert slot is not None
                self.dispatcher.settled(consumer, slot)

    def nth_open(self, number: int) -> int | None:
        """The index of the entry that is the nth one, from 1, of those not acknowledged."""
        if not 0 < number <= self.backlog:
            return None
        index = self.cursor.next_open(self.cursor.mark)
        for _ in range(number - 1):
            index = self.cursor.next_open(index + 1)
        return index

    @property
    def backlog_size(self) -> int:
        """About the bytes of the entries from the first one on that is not acknowledged."""
        return self.log.size_from(self.cursor.mark) if self.backlog else 0

    def set_properties(self, properties: dict[str, str]) -> None:
        """Set its properties."""
        self.cursor.properties = properties
        self.cursor.save()

    # -- resetting and deleting

    async def reset(self, index: int, still_open: int = 0) -> None:
        """Go to an entry: all consumers that get messages are disconnected, and told so."""
        first = self.log.first
        if not self.reads_compacted or self.compaction.log is None:
            index = max(index, first)
        elif index == first:
            index = 0  # the copy has entries that the topic has no more
        if isinstance(self.dispatcher, SingleActive):
            self.dispatcher.resetting = True
            self.disconnect(only=self.dispatcher.active)
            self.dispatcher.resetting = False
        else:
            self.disconnect()
        self.cursor.reset(index)
        if still_open:
            self.cursor.set_open(index, still_open)
        if not self.cursor.durable:  # it went with its last consumer
            self.topic.reset_to[self.name] = self.cursor.mark, still_open
        if self.dispatcher is not None:
            self.dispatcher.rewind()
        self.reset_stored = self.journal.synced()
        await self.reset_stored

    async def delete(self, *, asked_by: Consumer | None, force: bool) -> None:
        """Delete it. Raises Refused if others are connected, unless `force`."""
        if not force and any(each is not asked_by for each in self.consumers):
            raise Refused("MetadataError", "Unconnected or shared consumer attempting to unsubscribe")
        self.disconnect(but=asked_by)
        self.stop()
        self.topic.subscriptions.pop(self.name, None)
        self.topic.gone_messages_out += self.gone_messages_out
        self.topic.gone_bytes_out += self.gone_bytes_out
        self.forget()
        if self.cursor.durable:
            self.topic.trim()  # it may have been the last one to need a ledger
        await self.journal.synced()

    def forget(self) -> None:
        """Delete what is stored of it."""
        self.cursor.delete()
        self.transactions.delete()

    def close(self) -> None:
        """The topic is unloaded."""
        self.stop()
        self.cursor.close()

    def stop(self) -> None:
        """Stop timers."""
        if self.dispatcher is not None:
            self.dispatcher.close()
