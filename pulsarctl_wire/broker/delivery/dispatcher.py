"""Dispatchers: which consumer gets which entry, and when.

    SingleActive   (single_active.py) Exclusive and Failover: all to one consumer
    Shared         (shared.py) to whoever has permits, in turn
    KeyShared      (key_shared.py) by key

A dispatcher reads from `read_at` on. It calls nobody: `Subscription` calls `dispatch` whenever there may be
something to deliver, that is after FLOW, new entries, acknowledgements and changes of consumers.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, Protocol

from pulsarctl_wire.broker.basics.scheduler import Scheduler, Timer
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.broker.storage.compaction import Compaction
from pulsarctl_wire.broker.storage.cursor import Cursor
from pulsarctl_wire.broker.storage.log import Entry, Log
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

_READ_AHEAD: Final = 500
"""Entries that are read from storage at a time."""


class Source(Protocol):
    """What a dispatcher delivers from: a subscription, and what is stored of its topic."""

    log: Log
    cursor: Cursor
    compaction: Compaction
    scheduler: Scheduler
    settings: Settings
    topic_name: str
    partition: int
    room: int
    """How many messages its rates let through now."""
    blocked: bool
    """Whether too many messages are not acknowledged: then nothing new is read."""
    has_told_end: bool
    """Whether consumers were told of the end of a terminated topic, as a read found it."""

    @property
    def readable(self) -> int:
        """Consumers may see entries before this index."""

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages."""

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Whether an entry was sent in a transaction that was aborted."""

    def hides(self, index: int) -> bool:
        """Whether an entry must not be delivered, as a transaction has acknowledged it."""

    def skip(self, index: int) -> None:
        """Acknowledge an entry that no consumer may see."""

    def dispatch_soon(self) -> None:
        """Have `dispatch` called, once the current call is done."""

    def check_end(self) -> None:
        """Tell the consumers of the end of the topic, if they have acknowledged everything."""


class Dispatcher:
    """What all dispatchers share: reading entries, and hiding those that no consumer may see."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.log, self.cursor = source.log, source.cursor
        self.consumers: list[Consumer] = []
        self.read_at = self.cursor.mark
        self.redelivered: dict[int, int] = {}
        self._buffer: dict[int, Entry] = {}
        self._reading = False
        self._waits = False
        """Whether a read waits for new entries."""

    # -- consumers

    def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        self.consumers.remove(consumer)
        self._waits = self._waits and bool(self.consumers)

    # -- entries

    def rewind(self) -> None:
        """Deliver everything again that is not acknowledged."""
        self.read_at = self.cursor.mark

    def entry(self, index: int, stop: int) -> Entry | None:
        """The entry at an index; if it must be read first, None now, and `dispatch` is called again later.

        Entries up to `stop` may be read with it.
        """
        log = self.log
        found = log.cached(index) or self._buffer.pop(index, None)
        if found is None and not self._reading:
            self._reading = True

            def done(entries: list[Entry]) -> None:
                self._reading = False
                self._buffer = {entry.index: entry for entry in entries}
                if index not in self._buffer:  # it is not in storage
                    self.cursor.ack(index)
                self.source.dispatch_soon()

            log.read(index, min(stop, index + _READ_AHEAD), done)
        return found

    def next_entry(self) -> Entry | None:
        """The next entry that consumers may see; None if there is none now."""
        while True:
            index = self.cursor.next_open(max(self.read_at, self.log.first))
            stop = self.source.readable
            if index >= stop:
                self._found_end()
                return None
            entry = self.entry(index, stop)
            if entry is None:
                return None
            self._waits = False
            self.read_at = index + 1
            if not self.is_hidden(entry):
                return entry

    def _found_end(self) -> None:
        """There is nothing more to read: consumers hear of the end of the topic when a read finds it."""
        if not self.source.terminated:
            self._waits = True
        elif not self._waits and not self.source.has_told_end:
            self.source.has_told_end = True
            self.source.check_end()

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver entries again that were hidden for a while."""
        raise NotImplementedError

    def is_hidden(self, entry: Entry) -> bool:
        """Whether consumers must not see it now; if they never will, it is acknowledged at once."""
        metadata = entry.metadata
        index = entry.index
        if metadata is None or metadata.HasField("marker_type") or self.source.is_aborted(index, metadata):
            self.source.skip(index)
            return True
        return self.source.hides(index)

    def deliver(self, consumer: Consumer, entry: Entry, slot: int = 0) -> None:
        """Send it an entry."""
        position = self.log.position(entry.index)
        consumer.deliver(entry, position, self.redelivered.get(entry.index, 0), slot)

    # -- what the subscription asks for

    def dispatch(self) -> None:
        """Deliver what can be delivered now."""
        raise NotImplementedError

    def acked(self, index: int) -> None:
        """An entry was acknowledged."""
        if self.redelivered:
            self.redelivered.pop(index, None)

    def settled(self, consumer: Consumer, slot: int) -> None:
        """An entry is not pending at a consumer any more."""

    def redeliver(self, consumer: Consumer, indexes: Iterable[int] | None) -> None:
        """Deliver entries that are pending at a consumer again; None: all of them."""
        raise NotImplementedError

    def wake(self) -> None:
        """A consumer can get more than before."""

    def close(self) -> None:
        """Stop timers."""


class ManyActive(Dispatcher):
    """What Shared and Key_Shared have in common: delayed entries, and giving entries back."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._delayed: list[tuple[int, int]] = []  # a heap: (when it is due in ms, index)
        self._timer: Timer | None = None

    def put_back(self, index: int) -> None:
        """Have an entry delivered again, or later."""
        raise NotImplementedError

    def rewind(self) -> None:
        """Deliver everything again that is not acknowledged."""
        super().rewind()
        self._delayed.clear()
        self.redelivered.clear()

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves: what is pending goes to the others."""
        super().remove(consumer)
        if self.consumers:
            for index in consumer.pending:
                self.put_back(index)
        else:
            self.rewind()
        consumer.give_back()
        self.source.dispatch_soon()

    def redeliver(self, consumer: Consumer, indexes: Iterable[int] | None) -> None:
        """Deliver entries that are pending at a consumer again; None: all of them."""
        for index in list(consumer.pending) if indexes is None else indexes:
            slot = consumer.settle(index)
            if slot is not None:
                self._count_again(index)
                self.put_back(index)
                self.settled(consumer, slot)
        if indexes is None:
            consumer.give_back()
        elif indexes:
            consumer.unblock()

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver those entries again that were passed over, and are not pending at any consumer."""
        for index in indexes:
            if index >= self.read_at or any(index in each.pending for each in self.consumers):
                continue
            self._count_again(index)
            self.put_back(index)

    def _count_again(self, index: int) -> None:
        if self.source.settings.subscriptionRedeliveryTrackerEnabled:
            self.redelivered[index] = self.redelivered.get(index, 0) + 1

    def is_delayed(self, entry: Entry) -> bool:
        """Whether it is not to be delivered yet: then it will be put back when it is time."""
        metadata: MessageMetadata | None = entry.metadata
        if metadata is None or not metadata.HasField("deliver_at_time"):
            return False
        settings, now = self.source.settings, self.source.scheduler.time_ms
        if not settings.delayedDeliveryEnabled:
            return False
        early = 0 if settings.isDelayedDeliveryDeliverAtTimeStrict else settings.delayedDeliveryTickTimeMillis
        if metadata.deliver_at_time <= now + early:
            return False
        heappush(self._delayed, (metadata.deliver_at_time, entry.index))
        self._set_timer()
        return True

    def _set_timer(self) -> None:
        due = self._delayed[0][0]
        scheduler = self.source.scheduler
        if self._timer is not None:
            self._timer.cancel()
        self._timer = scheduler.later(max(due - scheduler.time_ms, 1) / 1000, self._put_back_due)

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
        """Entries that wait for their time."""
        return len(self._delayed)

    def close(self) -> None:
        """Stop timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
