"""The dispatcher of Key_Shared subscriptions: messages of a key go to one consumer, in order.

When a key moves to another consumer, its slot is *draining* until the old consumer has settled all pending
entries of the slot (PIP-379). Entries that cannot be delivered yet wait by slot, and later ones of the slot
behind them.
"""

from heapq import heapify, heappop, heappush, heapreplace

from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.broker.delivery.dispatcher import ManyActive, Source
from pulsarctl_wire.broker.delivery.key_ranges import make_key_ranges, sticky_key
from pulsarctl_wire.broker.storage.log import Entry
from pulsarctl_wire.broker.tenancy.limits import UNLIMITED


class KeyShared(ManyActive):
    """Delivers by key. The first consumer's KeySharedMeta decides on key ranges and order."""

    def __init__(self, source: Source, first: Consumer) -> None:
        super().__init__(source)
        self.mode = first.key_shared.keySharedMode
        self.out_of_order = first.key_shared.allowOutOfOrderDelivery
        self.key_ranges = make_key_ranges(first)
        self._queues: dict[int, list[int]] = {}  # slot -> a heap of indexes
        self._queued_count = 0
        self._draining: dict[int, list[Consumer]] = {}  # slot -> its old owners, one for each pending entry
        self._unslotted: list[int] = []  # a heap of the indexes put back: their slots must be found
        self._retry = self._retry_after_delivery = False
        """Whether to try waiting entries again: now, or after the next delivery of a later entry."""
        self._budgets: dict[Consumer, int] = {}
        """The number of entries that a consumer may get now: its message budget; a batch counts as one."""

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        self.key_ranges.add(consumer)
        super().add(consumer)
        self._find_draining_slots()
        self._retry = True

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer.

        Entries that waited for it go to others, but, as in Pulsar, not before something else happens: entries
        are put back, a consumer has new permits, or a later entry is delivered.
        """
        self.key_ranges.remove(consumer)
        super().remove(consumer)
        self._find_draining_slots()
        self._retry_after_delivery = True

    def _find_draining_slots(self) -> None:
        """Find the slots that have pending entries at a consumer other than their owner."""
        self._draining.clear()
        if self.out_of_order:
            return
        for consumer in self.consumers:
            for _, slot in consumer.pending.values():
                if self.key_ranges.get_owner(slot) is not consumer:
                    self._draining.setdefault(slot, []).append(consumer)

    def on_settled(self, consumer: Consumer, slot: int) -> None:
        """Record that an entry of a slot is no longer pending at a consumer."""
        holders = self._draining.get(slot)
        if holders and consumer in holders:
            holders.remove(consumer)
            if not holders:
                del self._draining[slot]
                self._retry = True
                self.source.dispatch_soon()

    @property
    def _max_waiting(self) -> int:
        """The most entries that may wait while later ones are delivered."""
        settings = self.source.settings
        per_consumer = settings.keySharedLookAheadMsgInReplayThresholdPerConsumer * len(self.consumers)
        per_subscription = settings.keySharedLookAheadMsgInReplayThresholdPerSubscription
        return min((limit for limit in (per_consumer, per_subscription) if limit > 0), default=UNLIMITED)

    def _find_ready_owner(self, slot: int) -> Consumer | None:
        """Return the owner of a slot, if it can receive its messages now."""
        owner = self.key_ranges.get_owner(slot)
        if owner is None or not self._has_budget(owner):
            return None
        holders = self._draining.get(slot)
        return None if holders and any(holder is not owner for holder in holders) else owner

    # -- entries

    def put_back(self, index: int) -> None:
        """Queue an entry for delivery: again, or after its delay."""
        heappush(self._unslotted, index)
        self._retry = True

    def rewind(self) -> None:
        """Go back to the mark: deliver all unacknowledged entries again."""
        super().rewind()
        self._queues.clear()
        self._queued_count = 0
        self._unslotted.clear()

    def wake(self) -> None:
        """Retry entries that wait, as a consumer has new permits."""
        self._retry = True

    def dispatch(self) -> None:
        """Deliver what can be delivered now."""
        self._budgets = {
            consumer: consumer.message_budget for consumer in self.consumers if consumer.is_available
        }
        has_read = False
        while any(map(self._has_budget, self.consumers)):
            if self._retry:
                if not self._queue_unslotted() or not self._deliver_waiting():
                    return  # something is being read
                self._retry = False
                continue
            if self._queued_count >= self._max_waiting:
                return
            if has_read and self.is_at_end and not any(member.is_available for member in self.consumers):
                return  # as in Pulsar, only a later read finds the end, and it needs permits
            entry = self.next_entry()
            if entry is None:
                return
            has_read = True
            if not self.is_delayed(entry):
                self._deliver_or_wait(entry)

    def _has_budget(self, consumer: Consumer) -> bool:
        return self._budgets.get(consumer, 0) > 0 and consumer.can_receive

    def deliver(self, consumer: Consumer, entry: Entry, slot: int = 0) -> None:
        """Send an entry to a consumer."""
        self._budgets[consumer] -= 1
        super().deliver(consumer, entry, slot)

    def _deliver_or_wait(self, entry: Entry) -> None:
        slot = self.key_ranges.get_slot(sticky_key(entry.metadata))
        owner = self._find_ready_owner(slot)
        if owner is not None and (self.out_of_order or slot not in self._queues):
            self.deliver(owner, entry, slot)
            self._retry = self._retry or self._retry_after_delivery
            self._retry_after_delivery = False
        else:
            heappush(self._queues.setdefault(slot, []), entry.index)
            self._queued_count += 1

    def _queue_unslotted(self) -> bool:
        """Move the `_unslotted` entries to the queues of their slots; return False if one is being read."""
        while self._unslotted:
            index = self._unslotted[0]
            if not self.cursor.is_acked(index):
                entry = self.load_entry(index, index + 1)
                if entry is None:
                    return False
                if not self.is_hidden(entry) and not self.is_delayed(entry):
                    slot = self.key_ranges.get_slot(sticky_key(entry.metadata))
                    heappush(self._queues.setdefault(slot, []), index)
                    self._queued_count += 1
            heappop(self._unslotted)
        return True

    def _deliver_waiting(self) -> bool:
        """Deliver entries that wait, the oldest first; return False if one is being read."""
        heads = [(queue[0], slot) for slot, queue in self._queues.items()]
        heapify(heads)
        while heads:
            index, slot = heads[0]
            owner = self._find_ready_owner(slot)
            if owner is None:
                heappop(heads)
                continue
            # it may have been put back twice, as some of its messages were in a transaction
            is_pending = any(index in consumer.pending for consumer in self.consumers)
            if not is_pending and not self.cursor.is_acked(index):
                entry = self.load_entry(index, index + 1)
                if entry is None:
                    return False
                if not self.is_hidden(entry):  # it may have been acknowledged in a transaction meanwhile
                    self.deliver(owner, entry, slot)
            queue = self._queues[slot]
            heappop(queue)
            self._queued_count -= 1
            if queue:
                heapreplace(heads, (queue[0], slot))
            else:
                heappop(heads)
                del self._queues[slot]
        return True
