"""The dispatcher of Exclusive and Failover subscriptions: everything goes to one consumer."""

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Timer
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, Consumer
from pulsarctl_wire.broker.delivery.dispatcher import Dispatcher, Source
from pulsarctl_wire.broker.delivery.key_ranges import Sticky, murmur, sticky_key
from pulsarctl_wire.broker.storage.log import Entry

_RING_POINTS: Final = 100  # of each consumer, as in Pulsar


class SingleActive(Dispatcher):
    """Exclusive and Failover: everything goes to the active consumer.

    In a Failover subscription, a change of the active consumer takes effect after a delay, by default of a
    second: until then, messages that are on their way to the former one can be acknowledged.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.active: Consumer | None = None
        self._change: Timer | None = None
        self._copies: deque[Entry] = deque()
        self._ranges: Sticky | None = None
        self._ring_keys: dict[Consumer, tuple[bool, int]] = {}
        self.is_resetting = False
        """Whether the active consumer leaves for a SEEK: then none is chosen until one joins."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        if consumer.kind == EXCLUSIVE and consumer.key_shared.hashRanges:
            self._ranges = Sticky()
            with suppress(Refused):  # without valid ranges, it gets nothing
                self._ranges.add(consumer)
        self._ring_keys[consumer] = _ring_key(consumer.name, self.source.topic_name)
        super().add(consumer)
        if not self._choose() and self.active is not None and consumer.kind == FAILOVER:
            consumer.tell_active(consumer is self.active)

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        super().remove(consumer)
        self._ring_keys.pop(consumer, None)
        if not self.consumers:  # a pending change still takes effect, for consumers that join until then
            self.active = self._ranges = None
        elif self.is_resetting:
            self.active = None
        else:
            self._choose()

    def _choose(self) -> bool:
        """Choose the active consumer. Returns False if it is the same as before."""
        former_active, consumers = self.active, self.consumers
        consumers.sort(key=lambda consumer: (consumer.priority, consumer.name))
        candidates = [consumer for consumer in consumers if consumer.priority == consumers[0].priority]
        if self.source.partition >= 0 and not self.source.settings.activeConsumerFailoverConsistentHashing:
            self.active = candidates[self.source.partition % len(candidates)]
        else:
            self.active = min(reversed(candidates), key=self._ring_keys.__getitem__)
        if self.active is former_active:
            return False
        delay = self.source.settings.activeConsumerFailoverDelayTimeMillis / 1000
        if self.active.kind != FAILOVER or not delay:
            self._apply_change()
        elif self._change is None:
            self._change = self.source.scheduler.call_later(delay, self._apply_change)
        return True

    def _apply_change(self) -> None:
        """Make the change of the active consumer take effect."""
        self._change = None
        self.rewind()
        for consumer in self.consumers:
            if consumer.kind == FAILOVER:
                consumer.tell_active(consumer is self.active)
        self.source.dispatch_soon()

    def next_entry(self) -> Entry | None:
        """Return the next entry that consumers may see, from the compacted copy if they read it; or None."""
        compaction = self.source.compaction
        if self.active is None or not self.active.read_compacted or self.read_index >= compaction.horizon:
            return super().next_entry()
        while self._copies:
            entry = self._copies.popleft()
            if entry.index >= self.read_index:  # even if it was acknowledged one by one
                self.read_index = entry.index + 1
                return entry
        if not self._reading:
            self._reading = True
            start, copy = self.read_index, compaction.log_number

            def on_read(entries: list[Entry]) -> None:
                self._reading = False
                if (self.read_index, compaction.log_number) == (start, copy):  # else it must be read again
                    self._copies = deque(entries)
                    self.read_index = start if entries else compaction.horizon
                self.source.dispatch_soon()

            compaction.read(max(start, self.cursor.mark), on_read)
        return None

    def rewind(self) -> None:
        """Go back to the mark: deliver all unacknowledged entries again."""
        super().rewind()
        self._copies.clear()

    def dispatch(self) -> None:
        """Deliver what can be delivered now."""
        consumer = self.active
        while consumer is not None and consumer.is_available and self._change is None:
            permits, entry_count = consumer.permits, 0
            for _ in range(self._count_readable(consumer)):
                if entry_count and self.is_at_end:
                    break  # as in Pulsar, only a later read finds the end, and it needs permits
                entry = self.next_entry()
                if entry is None:
                    break
                entry_count += 1
                if self._ranges is None or self._ranges.get_owner(_get_slot(self._ranges, entry)):
                    self.deliver(consumer, entry)
            if not entry_count:
                return
            consumer.record_delivery(permits - consumer.permits, entry_count)

    def _count_readable(self, consumer: Consumer) -> int:
        """Return how many entries to read. By default Pulsar counts permits as entries, not messages."""
        settings, permits = self.source.settings, consumer.permits
        if settings.preciseDispatcherFlowControl:
            permits = -(-permits // max(round(consumer.messages_per_entry), 1))
        return min(permits, settings.dispatcherMaxReadBatchSize, self.source.dispatch_quota)

    def redeliver(self, consumer: Consumer, indexes: Iterable[int] | None) -> None:
        """Deliver all unacknowledged entries again, if the consumer is active; `indexes` has no effect."""
        if consumer is self.active and self._change is None:
            self._waits = self.source.has_announced_end = False
            self.rewind()

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver all unacknowledged entries again, not only those at `indexes`."""
        self.rewind()

    def close(self) -> None:
        """Stop timers."""
        if self._change is not None:
            self._change.cancel()
            self._change = None


def _get_slot(ranges: Sticky, entry: Entry) -> int:
    return ranges.get_slot(sticky_key(entry.metadata))


def _ring_key(consumer: str, topic: str) -> tuple[bool, int]:
    """Return the sort key of a consumer's ring point that follows the topic's; earlier points come last."""
    start = murmur(topic.encode("utf-8", "surrogateescape"))
    names = (f"{consumer}{number}".encode("utf-8", "surrogateescape") for number in range(_RING_POINTS))
    return min((point < start, point) for point in map(murmur, names))
