"""A subscription of a persistent topic: its cursor, its consumers, and their requests."""

from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Completion
from pulsarctl_wire.broker.delivery.consumer import (
    EXCLUSIVE,
    FAILOVER,
    INDIVIDUAL_ACK_TYPES,
    KEY_SHARED,
    Consumer,
)
from pulsarctl_wire.broker.delivery.dispatcher import Dispatcher, Source
from pulsarctl_wire.broker.delivery.key_shared import KeyShared
from pulsarctl_wire.broker.delivery.shared import Shared
from pulsarctl_wire.broker.delivery.single_active import SingleActive
from pulsarctl_wire.broker.storage.cursor import Cursor, mask_of
from pulsarctl_wire.broker.storage.transactions import PendingAcks
from pulsarctl_wire.broker.tenancy.limits import UNLIMITED, Limiter, Rate
from pulsarctl_wire.broker.topics.stored_topic import StoredTopic
from pulsarctl_wire.broker.topics.subscribe_checks import check_can_join
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageIdData

_MAX_UNTHROTTLED_BACKLOG: Final = 1000
"""With more entries in its backlog, a subscription is throttled even if others are not."""


class Subscription(Source):
    """A subscription, whose consumers are all of the type `kind` while there are any."""

    def __init__(self, topic: StoredTopic["Subscription"], name: str, cursor: Cursor) -> None:
        super().__init__(topic, name, cursor)
        self.topic: StoredTopic[Subscription] = topic
        self.journal = topic.journal
        self.dispatcher: Dispatcher | None = None
        self.transactions = PendingAcks(self)
        self.has_pending_ack = self.transactions.has_pending_ack
        self.get_open_mask = self.transactions.get_open_mask
        self.is_stored = False
        """Whether it is stored; until then, no client may learn that it exists."""
        self.reset_stored: Completion[None] | None = None
        """Done when the last reset is stored; consumers that join wait for it, as in Pulsar."""
        self.expired_messages = 0
        self.last_expired_ms = self.last_moved_ms = 0
        self.last_ms: dict[str, int] = {}
        """The latest `Consumer.last_…` times of consumers that have left."""
        self._is_dispatch_due = False
        self._has_skipped = False
        """Whether skipped entries may still be pending."""
        self._limiter = Limiter(topic.scheduler)
        self._rates: list[tuple[Limiter, Rate]] = []
        self._throttled_until = 0
        self.unacked = 0
        """Messages delivered and not acknowledged."""
        self._max_total_unacked = 0  # deliveries stop at this many; 0: never
        self.seeks = 0
        """Number of SEEKs so far, by which a slow SEEK can tell whether a later one has come."""

    @property
    def full_name(self) -> str:
        """Its topic and its name, as in Pulsar's messages."""
        return f"[{self.topic_name}][{self.name}]"

    @property
    def reads_compacted(self) -> bool:
        """Whether consumers read the compacted copy, where there is one."""
        return any(consumer.read_compacted for consumer in self.consumers)

    @property
    def max_unacked(self) -> int:
        """The most unacknowledged messages that a consumer may have; 0: no limit."""
        if not self.cursor.durable:
            return 0
        return self.topic.policies.get_limit(
            "max_unacked_messages_per_consumer", self.settings.maxUnackedMessagesPerConsumer
        )

    @property
    def backlog(self) -> int:
        """The number of unacknowledged entries."""
        return self.cursor.count_backlog(self.log.stored_end)

    # -- consumers

    async def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused.

        Waits during a reset: on the answer to SEEK, the Java client drops all it has received, even messages
        that came after it subscribed again.
        """
        if self.reset_stored is not None:
            await self.reset_stored
        await check_can_join(self, self.topic, consumer)
        if self.topic.closed or self.topic.subscriptions.get(self.name) is not self:
            raise Refused("ServiceNotReady", "Subscription is fenced")  # deleted while the consumer waited
        if not self.consumers:
            self._make_dispatcher(consumer)
        assert self.dispatcher is not None
        self.dispatcher.add(consumer)
        self.cursor.last_active_ms = self.scheduler.time_ms
        self.dispatch_soon()

    def _make_dispatcher(self, consumer: Consumer) -> None:
        """Make the dispatcher for the type of the first consumer."""
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
        """Remove a consumer."""
        dispatcher = self.dispatcher
        if dispatcher is not None and consumer in dispatcher.consumers:
            consumer.closed = True
            self._keep_counters(consumer)
            dispatcher.remove(consumer)
            self.cursor.last_active_ms = self.scheduler.time_ms
            self.topic.on_consumer_left(self)

    def _keep_counters(self, consumer: Consumer) -> None:
        """Add the counters of a consumer that leaves to those of the subscription."""
        self.past_messages_out += consumer.messages_out
        self.past_bytes_out += consumer.bytes_out
        for name in ("last_flow_ms", "last_sent_ms", "last_acked_ms"):
            self.last_ms[name] = max(self.last_ms.get(name, 0), getattr(consumer, name))

    # -- dispatching

    def dispatch_soon(self) -> None:
        """Have deliverable entries delivered, once the current call is done."""
        if not self._is_dispatch_due and self.dispatcher is not None:
            self._is_dispatch_due = True
            self.scheduler.ready.append(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        if self.dispatcher is None or self.topic.closed or self.is_throttled or self.blocked:
            return
        if self._has_skipped and any(consumer.is_available for consumer in self.consumers):
            self._settle_skipped()
        topic, rules = self.topic, self.topic.dispatch_rules
        self._max_total_unacked = rules.max_unacked if self.cursor.durable else 0
        limiters = topic.environment.dispatch_limiter, topic.dispatch_limiter, self._limiter
        is_limited = (
            self.settings.dispatchThrottlingOnNonBacklogConsumerEnabled
            or self.backlog > _MAX_UNTHROTTLED_BACKLOG
        )
        self._rates = [
            pair for pair in zip(limiters, rules.rates, strict=True) if is_limited and pair[1].has_limits
        ]
        self.dispatch_quota = min(
            (limiter.compute_allowance(rate) for limiter, rate in self._rates), default=UNLIMITED
        )
        self.dispatcher.dispatch()

    @property
    def is_throttled(self) -> bool:
        """Whether deliveries pause, as they were faster than the rates allow."""
        return self._throttled_until > self.scheduler.ticks

    def count_unacked(self, messages: int) -> None:
        """Add `messages` (or subtract, if negative) to the unacknowledged ones."""
        self.unacked += messages
        if self._max_total_unacked and not self.blocked and self.unacked >= self._max_total_unacked:
            self.blocked = True
        elif self.blocked and self.unacked < self._max_total_unacked // 2:
            self.blocked = False
            self.dispatch_soon()

    def on_delivered(self, messages: int, size: int) -> None:
        """Count deliveries against the rates: if they are too fast, pause for a while."""
        for limiter, rate in self._rates:
            pause = limiter.take(rate, messages, size)
            if pause > 0:
                self._throttled_until = max(self._throttled_until, self.scheduler.ticks + int(pause * 1e9))
                self.scheduler.call_later(pause, self.wake)

    def wake(self) -> None:
        """Try again to deliver: permits, buffer space, or time may have been the limit."""
        if self.dispatcher is not None:
            self.dispatcher.wake()
        self.dispatch_soon()

    def redeliver(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """Redeliver some messages; without ids, or on Exclusive and Failover, all."""
        if self.dispatcher is None:
            return
        indexes = None
        if ids and consumer.kind in INDIVIDUAL_ACK_TYPES:
            located = map(self._locate, ids)
            indexes = [index for index, is_stored in located if is_stored and index in consumer.pending]
        self.dispatcher.redeliver(consumer, indexes)
        self.dispatch_soon()

    def _locate(self, message_id: MessageIdData) -> tuple[int, bool]:
        return self.log.locate(message_id.ledgerId, message_id.entryId)

    # -- acknowledgements

    def ack(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages one by one. Ignores unknown ids, and all ids after one beyond the end."""
        mark, is_beyond_end = self.cursor.mark, False
        for message_id in ids:
            index, is_stored = self._locate(message_id)
            is_beyond_end = is_beyond_end or index >= self.log.stored_end
            if is_beyond_end and is_stored:
                self.settle(index)  # the cursor does not acknowledge it, but it is no longer pending
            if is_beyond_end or not is_stored:
                continue
            if self.dispatcher is not None:
                self.dispatcher.redelivered.pop(index, None)
            if not message_id.ack_set:
                self._ack_entry(index)
            elif self.settings.acknowledgmentAtBatchIndexLevelEnabled:
                self._ack_some(index, message_id)
        self._record_ack(consumer, mark)
        self.check_end()

    def _record_ack(self, consumer: Consumer, mark: int) -> None:
        """Record that a consumer acknowledged something; `mark` is the mark before that."""
        consumer.last_acked_ms = now_ms = self.scheduler.time_ms
        if self.cursor.mark != mark:
            self.last_moved_ms = now_ms
            if self.cursor.durable:
                self.topic.on_mark_moved(mark, self.cursor.mark)

    def _ack_entry(self, index: int) -> None:
        self.settle(index)
        if self.cursor.ack(index) and self.dispatcher is not None:
            self.dispatcher.on_acked(index)

    def settle(self, index: int) -> None:
        """Record that an entry is no longer pending; its consumer, if any, counts it as acknowledged."""
        for consumer in self.consumers if self.kind in INDIVIDUAL_ACK_TYPES else ():
            if index in consumer.pending:
                self._settle(consumer, index)
                break

    def apply(self, entries: Iterable[tuple[int, int | None, int]], until: int) -> None:
        """Apply a transaction's acks: all before `until`, and `entries`: (index, open_mask, size) of each.

        `open_mask` has the messages of a batch of `size` that are not acknowledged; None: all are.
        """
        self.cursor.ack_before(until)
        for index, open_mask, size in entries:
            if open_mask is None:
                self._ack_entry(index)
            elif self.settings.acknowledgmentAtBatchIndexLevelEnabled:
                self.cursor.ack_some(index, size, open_mask)
        self.check_end()

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver entries again whose acknowledgement was aborted."""
        if self.dispatcher is not None:
            self.dispatcher.deliver_again(indexes)
            self.dispatch_soon()

    def _ack_some(self, index: int, message_id: MessageIdData) -> None:
        open_mask = mask_of(message_id.ack_set)
        holder = next((consumer for consumer in self.consumers if index in consumer.pending), None)
        size = message_id.batch_size or (holder.pending[index][0] if holder is not None else 0)
        acked = self.cursor.ack_some(index, size, open_mask)
        if self.cursor.is_acked(index):
            if holder is not None:
                self._settle(holder, index)
            if self.dispatcher is not None:
                self.dispatcher.on_acked(index)
        elif holder is not None and self.transactions.has_pending_ack(index):  # a transaction has the rest
            self._settle(holder, index)
        elif holder is not None and acked:
            holder.acked_messages += acked
            holder.settle(index, acked)

    def _settle(self, consumer: Consumer, index: int) -> None:
        consumer.acked_messages += consumer.pending[index][0]
        slot = consumer.settle(index)  # of the entry's key
        if slot is not None and self.dispatcher is not None:
            self.dispatcher.on_settled(consumer, slot)

    def ack_until(self, consumer: Consumer, message_id: MessageIdData) -> None:
        """Acknowledge everything up to a message."""
        index, is_stored = self._locate(message_id)
        if is_stored and index < self.log.stored_end:
            self._ack_until(consumer, index, message_id)
        self.check_end()

    def _ack_until(self, consumer: Consumer, index: int, message_id: MessageIdData) -> None:
        mark = self.cursor.mark
        if not message_id.ack_set:
            self.cursor.ack_before(index + 1)
        else:
            self.cursor.ack_before(index)
            open_mask = mask_of(message_id.ack_set)
            has_batch_acks = self.settings.acknowledgmentAtBatchIndexLevelEnabled
            if has_batch_acks and open_mask and not self.cursor.is_acked(index):
                self.cursor.set_open(index, open_mask)
        self._record_ack(consumer, mark)

    def expire(self, index: int) -> None:
        """Acknowledge all entries before an index, as they are too old."""
        backlog = self.backlog
        self.last_expired_ms = self.scheduler.time_ms
        self.skip_before(index)
        self.expired_messages += backlog - self.backlog

    def check_end(self) -> None:
        """Once all is acknowledged, announce that the topic is terminated, or has moved."""
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
        """Acknowledge the next `number` open entries."""
        index = self.cursor.mark
        for _ in range(min(number, self.backlog)):
            index = self.cursor.find_open(index) + 1
        self.skip_before(index)

    def skip_before(self, index: int) -> None:
        """Acknowledge every entry before an index, whichever consumer has it pending."""
        index = min(index, self.log.stored_end)
        if self.cursor.ack_before(index):
            self.last_moved_ms = self.scheduler.time_ms
            self._has_skipped = True
            if self.topic.migrated is not None:
                self.check_end()
            self.dispatch_soon()

    def _settle_skipped(self) -> None:
        """Settle the skipped entries that are pending, once a consumer can get another one.

        Pulsar counts them as unacknowledged for ever, which may block their consumers; this broker does not.
        """
        assert self.dispatcher is not None
        self._has_skipped = False
        for consumer in self.consumers:
            for index in [pending for pending in consumer.pending if pending < self.cursor.mark]:
                slot = consumer.settle(index)
                assert slot is not None
                self.dispatcher.on_settled(consumer, slot)

    def find_nth_open(self, number: int) -> int | None:
        """Return the index of the nth open entry, from 1; None if there is none."""
        if not 0 < number <= self.backlog:
            return None
        index = self.cursor.find_open(self.cursor.mark)
        for _ in range(number - 1):
            index = self.cursor.find_open(index + 1)
        return index

    @property
    def backlog_size(self) -> int:
        """Roughly the bytes from the first unacknowledged entry on."""
        return self.log.estimate_size_from(self.cursor.mark) if self.backlog else 0

    def set_properties(self, properties: dict[str, str]) -> None:
        """Set the subscription's properties."""
        self.cursor.properties = properties
        self.cursor.save()

    # -- resetting and deleting

    async def reset(self, index: int, open_mask: int = 0) -> None:
        """Move the cursor to an index. Closes the consumers that receive messages, with CLOSE_CONSUMER.

        `open_mask` has the messages that are open in the batch at the index; 0: all.
        """
        first = self.log.first
        if not self.reads_compacted or self.compaction.log_number is None:
            index = max(index, first)
        elif index == first:
            index = 0  # the copy has entries that the topic no longer has
        if isinstance(self.dispatcher, SingleActive):
            self.dispatcher.is_resetting = True
            self.disconnect(only=self.dispatcher.active)
            self.dispatcher.is_resetting = False
        else:
            self.disconnect()
        self.cursor.reset(index)
        if open_mask:
            self.cursor.set_open(index, open_mask)
        if not self.cursor.durable:  # dropped with its last consumer
            self.topic.reset_to[self.name] = self.cursor.mark, open_mask
        if self.dispatcher is not None:
            self.dispatcher.rewind()
        self.reset_stored = self.journal.sync()
        await self.reset_stored

    async def delete(self, *, requester: Consumer | None, force: bool) -> None:
        """Delete the subscription. Raises Refused if any but `requester` are connected, unless `force`."""
        await super().delete(requester=requester, force=force)
        self.stop()
        self.topic.past_messages_out += self.past_messages_out
        self.topic.past_bytes_out += self.past_bytes_out
        self.forget()
        if self.cursor.durable:
            self.topic.trim()  # this may have been the last subscription to need a ledger
        await self.journal.sync()

    def forget(self) -> None:
        """Delete all that is stored of the subscription."""
        self.cursor.delete()
        self.transactions.delete()

    def close(self) -> None:
        """Stop, and write the cursor, as the topic is unloaded."""
        self.stop()
        self.cursor.close()

    def stop(self) -> None:
        """Stop timers."""
        if self.dispatcher is not None:
            self.dispatcher.close()
