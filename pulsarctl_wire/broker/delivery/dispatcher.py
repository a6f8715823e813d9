"""Dispatchers: which consumer gets which entry, and when.

    SingleActive   (single_active.py) Exclusive and Failover: all to one consumer
    Shared         (shared.py) to whoever has permits, in turn
    KeyShared      (key_shared.py) by key

A dispatcher reads from `read_index` on. It never starts by itself: `Subscription` calls `dispatch` whenever
there may be something to deliver, such as after FLOW, new entries and changes of consumers. After a read or a
delay, the dispatcher asks for that call (`dispatch_soon`).
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Final

from pulsarctl_wire.broker.basics.scheduler import Scheduler, Timer
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.delivery.consumer import BaseSubscription, Consumer
from pulsarctl_wire.broker.storage.compaction import Compaction
from pulsarctl_wire.broker.storage.cursor import Cursor
from pulsarctl_wire.broker.storage.log import Entry, Log, Position
from pulsarctl_wire.broker.tenancy.limits import UNLIMITED
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

_READ_AHEAD: Final = 500
"""The most entries that are read from storage at a time."""


class Source(BaseSubscription):
    """What a dispatcher delivers from: the part of a subscription that reads the log of its topic."""

    def __init__(self, topic: Any, name: str, cursor: Cursor) -> None:
        super().__init__(topic, name)
        self.scheduler: Scheduler = topic.scheduler
        self.settings: Settings = topic.settings
        self.log: Log = topic.log
        self.compaction: Compaction = topic.compaction
        self.cursor = cursor
        self.dispatch_quota = UNLIMITED
        """The number of messages that the rates allow now."""
        self.blocked = False
        """Whether too many messages are unacknowledged: then `dispatch` is not called."""
        self.has_announced_end: bool = topic.hides_end
        """Whether consumers were told of the end of a terminated topic, or must not be (`hides_end`)."""
        self.is_aborted: Callable[[int, MessageMetadata], bool] = topic.is_aborted
        self.has_pending_ack: Callable[[int], bool] = lambda index: False
        """Returns whether a transaction hides an entry, as it has acknowledged it."""

    @property
    def readable_end(self) -> int:
        """The index before which consumers may see entries."""
        return int(self.topic.readable_end)

    @property
    def mark_id(self) -> Position:
        """The id of the last entry before the mark; ledger:-1 if the first ledger begins there."""
        return self.cursor.deleted_id or self.log.position_before(self.cursor.mark)

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages."""
        return bool(self.topic.terminated)

    def skip(self, index: int) -> None:
        """Acknowledge, as the broker itself, an entry that no consumer may see."""
        self.cursor.ack(index)
        self.check_end()


class Dispatcher:
    """The base of all dispatchers: reads entries, and hides those that no consumer may see."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.log, self.cursor = source.log, source.cursor
        self.consumers = source.consumers
        self.read_index = self.cursor.mark
        self.redelivered: dict[int, int] = {}
        """Index of an entry -> its redelivery count."""
        self._buffer: dict[int, Entry] = {}
        self._reading = False
        self._waits = False
        """Whether a read is waiting for new entries."""

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        self.consumers.remove(consumer)
        self._waits = self._waits and bool(self.consumers)

    # -- entries

    def rewind(self) -> None:
        """Go back to the mark: deliver all unacknowledged entries again."""
        self.read_index = self.cursor.mark

    def load_entry(self, index: int, stop: int) -> Entry | None:
        """Return the entry at an index; None if it must be read first. Then `dispatch` is called again.

        Entries before `stop` may be read with it.
        """
        log = self.log
        entry = log.get_cached(index) or self._buffer.pop(index, None)
        if entry is None and not self._reading:
            self._reading = True

            def on_read(entries: list[Entry]) -> None:
                self._reading = False
                self._buffer = {item.index: item for item in entries}
                if index not in self._buffer:  # not in storage
                    self.cursor.ack(index)
                self.source.dispatch_soon()

            log.read(index, min(stop, index + _READ_AHEAD), on_read)
        return entry

    @property
    def is_at_end(self) -> bool:
        """Whether no entry is left that consumers may see."""
        return self._find_next() >= self.source.readable_end

    def _find_next(self) -> int:
        """Return the index of the next entry that is not acknowledged."""
        return self.cursor.find_open(max(self.read_index, self.log.first))

    def next_entry(self) -> Entry | None:
        """Return the next entry that consumers may see; None if there is none now."""
        while True:
            index = self._find_next()
            stop = self.source.readable_end
            if index >= stop:
                self._on_end()
                return None
            entry = self.load_entry(index, stop)
            if entry is None:
                return None
            self._waits = False
            self.read_index = index + 1
            if not self.is_hidden(entry):
                return entry

    def _on_end(self) -> None:
        """Wait for entries; on a terminated topic, announce the end instead.

        If a read waited when the topic was terminated, the termination or the last acknowledgement
        announces the end.
        """
        if not self.source.terminated:
            self._waits = True
        elif not self._waits and not self.source.has_announced_end:
            self.source.has_announced_end = True
            self.source.check_end()

    def deliver_again(self, indexes: list[int]) -> None:
        """Redeliver entries that were hidden for a while."""
        raise NotImplementedError

    def is_hidden(self, entry: Entry) -> bool:
        """Return whether consumers must not see an entry now; one that they may never see is acknowledged."""
        metadata = entry.metadata
        index = entry.index
        if metadata is None or metadata.HasField("marker_type") or self.source.is_aborted(index, metadata):
            self.source.skip(index)
            return True
        return self.source.has_pending_ack(index)

    def deliver(self, consumer: Consumer, entry: Entry, slot: int = 0) -> None:
        """Send an entry to a consumer."""
        position = self.log.position(entry.index)
        consumer.deliver(entry, position, self.redelivered.get(entry.index, 0), slot)

    # -- called by the subscription

    def dispatch(self) -> None:
        """Deliver what can be delivered now."""
        raise NotImplementedError

    def on_acked(self, index: int) -> None:
        """Forget the redelivery count of an acknowledged entry."""
        if self.redelivered:
            self.redelivered.pop(index, None)

    def on_settled(self, consumer: Consumer, slot: int) -> None:
        """Record that an entry of a slot is no longer pending at a consumer."""

    def redeliver(self, consumer: Consumer, indexes: Iterable[int] | None) -> None:
        """Redeliver entries that are pending at a consumer; None: all of them."""
        raise NotImplementedError

    def wake(self) -> None:
        """Take note that a consumer can receive more than before."""

    def close(self) -> None:
        """Stop timers."""


class ManyActive(Dispatcher):
    """The base of Shared and Key_Shared: delayed entries, and entries to deliver again."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._delayed: list[tuple[int, int]] = []  # a heap: (when it is due in ms, index)
        self._timer: Timer | None = None

    def put_back(self, index: int) -> None:
        """Queue an entry for delivery: again, or after its delay."""
        raise NotImplementedError

    def rewind(self) -> None:
        """Go back to the mark: deliver all unacknowledged entries again."""
        super().rewind()
        self._delayed.clear()
        self.redelivered.clear()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer: the entries that are pending at it go to the others."""
        super().remove(consumer)
        if self.consumers:
            for index in consumer.pending:
                self.put_back(index)
        else:
            self.rewind()
        consumer.give_back()
        self.source.dispatch_soon()

    def redeliver(self, consumer: Consumer, indexes: Iterable[int] | None) -> None:
        """Redeliver entries that are pending at a consumer; None: all of them."""
        for index in list(consumer.pending) if indexes is None else indexes:
            slot = consumer.settle(index)
            if slot is not None:
                self._count_redelivery(index)
                self.put_back(index)
                self.on_settled(consumer, slot)
        if indexes is None:
            consumer.give_back()
        elif indexes:
            consumer.unblock()

    def deliver_again(self, indexes: list[int]) -> None:
        """Redeliver the entries that were read before and are not pending at any consumer."""
        for index in indexes:
            if index >= self.read_index or any(index in consumer.pending for consumer in self.consumers):
                continue
            self._count_redelivery(index)
            self.put_back(index)

    def _count_redelivery(self, index: int) -> None:
        if self.source.settings.subscriptionRedeliveryTrackerEnabled:
            self.redelivered[index] = self.redelivered.get(index, 0) + 1

    def is_delayed(self, entry: Entry) -> bool:
        """Return whether an entry is not due yet; such an entry is put back once it is due."""
        metadata: MessageMetadata | None = entry.metadata
        if metadata is None or not metadata.HasField("deliver_at_time"):
            return False
        settings, now_ms = self.source.settings, self.source.scheduler.time_ms
        if not settings.delayedDeliveryEnabled:
            return False
        tolerance_ms = (
            0 if settings.isDelayedDeliveryDeliverAtTimeStrict else settings.delayedDeliveryTickTimeMillis
        )
        if metadata.deliver_at_time <= now_ms + tolerance_ms:
            return False
        heappush(self._delayed, (metadata.deliver_at_time, entry.index))
        self._set_timer()
        return True

    def _set_timer(self) -> None:
        due = self._delayed[0][0]
        scheduler = self.source.scheduler
        if self._timer is not None:
            self._timer.cancel()
        self._timer = scheduler.call_later(max(due - scheduler.time_ms, 1) / 1000, self._put_back_due)

    def _put_back_due(self) -> None:
        self._timer = None
        now = self.source.scheduler.time_ms
        while self._delayed and self._delayed[0][0] <= now:
            index = heappop(self._delayed)[1]
            if not self.cursor.is_acked(index):
                self.put_back(index)
        if self._delayed:
            self._set_timer()
        self.source.dispatch_soon()

    @property
    def delayed_count(self) -> int:
        """The number of entries that wait for their time."""
        return len(self._delayed)

    def close(self) -> None:
        """Stop timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
