"""The dispatcher of Shared subscriptions: consumers get runs of entries, in turn."""

from heapq import heappop, heappush
from itertools import islice
from typing import Final

from pulsarctl_wire.broker.basics.scheduler import Timer
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.broker.delivery.dispatcher import ManyActive, Source
from pulsarctl_wire.broker.storage.log import Entry

_FIRST_READ_SECONDS: Final = 0.002
"""Seconds that a read waits for the first FLOW of other consumers: a real broker's read takes that long."""

_PAUSE_SECONDS: Final = 1e-9
"""Seconds until the next read: just long enough to handle first what clients have sent meanwhile."""


class Replay:
    """Indexes of entries to be delivered again, the lowest first."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._members: set[int] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, index: int) -> bool:
        return index in self._members

    def add(self, index: int) -> None:
        """Add an index."""
        if index not in self._members:
            self._members.add(index)
            heappush(self._heap, index)

    def discard(self, index: int) -> None:
        """Remove an index, if it is there."""
        self._members.discard(index)

    def get_first(self) -> int | None:
        """Return the lowest index; None if there is none."""
        heap = self._heap
        while heap and heap[0] not in self._members:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Remove all."""
        self._heap.clear()
        self._members.clear()


def find_next(consumers: list[Consumer], turn: int) -> int | None:
    """Return the position of the next available consumer from `turn` on, the lowest priority number first."""
    turn = turn if turn < len(consumers) else 0
    available = [index for index, consumer in enumerate(consumers) if consumer.is_available]
    return min(
        available,
        key=lambda index: (consumers[index].priority, (index - turn) % len(consumers)),
        default=None,
    )


class Shared(ManyActive):
    """Delivers runs of entries to consumers with permits, in turn, the lowest priority number first."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.replay = Replay()
        self._turn = 0
        self._chunk_owners: dict[str, Consumer] = {}
        self._pause: Timer | None = None
        """Runs until the next read."""

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Raises Refused."""
        super().add(consumer)
        self.consumers.sort(key=lambda member: member.priority)

    def put_back(self, index: int) -> None:
        """Queue an entry for delivery: again, or after its delay."""
        self.replay.add(index)

    def rewind(self) -> None:
        """Go back to the mark: deliver all unacknowledged entries again."""
        super().rewind()
        self.replay.clear()
        self._chunk_owners.clear()

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        super().remove(consumer)
        self._chunk_owners = {
            uuid: owner for uuid, owner in self._chunk_owners.items() if owner is not consumer
        }

    def on_acked(self, index: int) -> None:
        """Forget an acknowledged entry."""
        super().on_acked(index)
        self.replay.discard(index)

    def wake(self) -> None:
        """End the pause before the next read, or begin one if other consumers have not sent any FLOW yet."""
        if all(consumer.last_flow_ms for consumer in self.consumers):
            self._end_pause()
        elif not self._waits and self._pause is None:
            self._begin_pause(_FIRST_READ_SECONDS)

    def dispatch(self) -> None:
        """Deliver what can be delivered now, in turns of reading and handing out; the rest a little later."""
        if self._pause is not None:
            return
        held_back: list[int] = []
        quota = self.source.settings.dispatcherMaxReadBatchSize
        while quota > 0 and any(consumer.is_available for consumer in self.consumers):
            entries = self._read()
            if not entries:
                break
            undelivered = self._give_out(entries)
            quota -= len(entries) - len(undelivered)
            held_back += undelivered
        for index in held_back:
            self.replay.add(index)
        if quota <= 0:
            self._begin_pause(_PAUSE_SECONDS)

    def _begin_pause(self, seconds: float) -> None:
        self._pause = self.source.scheduler.call_later(seconds, self._resume)

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _resume(self) -> None:
        self._pause = None
        self.source.dispatch_soon()

    def close(self) -> None:
        """Stop timers."""
        super().close()
        self._end_pause()

    def _read(self) -> list[Entry]:
        """Read as many entries as there are permits: those to redeliver, or new ones."""
        permits = sum(consumer.permits for consumer in self.consumers)
        first_permits = next(consumer.permits for consumer in self.consumers if consumer.is_available)
        limit = self.source.settings.dispatcherMaxReadBatchSize
        # others may have permits below 0: then the sum is less than one consumer can get
        limit = min(max(permits, first_permits), limit, self.source.dispatch_quota)
        entries = list(islice(iter(self._next_replayed, None), limit))
        if entries:
            return entries
        while len(entries) < limit and (entry := self._next_new(bool(entries))) is not None:
            entries.append(entry)
        return entries

    def _give_out(self, entries: list[Entry]) -> list[int]:
        """Deliver entries in runs that fit the permits of their consumers; return the indexes of the rest."""
        rest: list[int] = []
        max_run = self.source.settings.dispatcherMaxRoundRobinBatchSize
        messages = sum(entry.count for entry in entries)
        messages_per_entry = max(messages // len(entries), 1)
        while entries and (index := find_next(self.consumers, self._turn)) is not None:
            consumer, self._turn = self.consumers[index], index + 1
            size = max(min(max_run, -(-min(messages, consumer.message_budget) // messages_per_entry)), 1)
            for entry in entries[:size]:
                owner = self._find_chunk_owner(entry, consumer)
                # the consumer whose turn it is gets its whole run, even beyond its permits
                if owner.is_available or (owner is consumer and not owner.closed):
                    self.deliver(owner, entry)
                    messages -= entry.count
                else:
                    rest.append(entry.index)
            entries = entries[size:]
        return rest + [entry.index for entry in entries]

    def _next_replayed(self) -> Entry | None:
        while (index := self.replay.get_first()) is not None:
            entry = None
            if not self.cursor.is_acked(index) and (entry := self.load_entry(index, index + 1)) is None:
                return None
            self.replay.discard(index)
            if entry is not None and not self.is_hidden(entry) and not self.is_delayed(entry):
                return entry
        return None

    def _next_new(self, has_read: bool) -> Entry | None:
        if len(self.replay) or self.source.blocked:  # entries to redeliver, which are being read, come first
            return None
        if has_read and self.is_at_end:  # as in Pulsar, only a later read finds the end, and it needs permits
            return None
        while (entry := self.next_entry()) is not None:
            if not self.is_delayed(entry):
                return entry
        return None

    def _find_chunk_owner(self, entry: Entry, consumer: Consumer) -> Consumer:
        """Return the consumer for an entry: all chunks of a message go to the one that got the first."""
        metadata = entry.metadata
        if metadata is None or not metadata.HasField("chunk_id") or not metadata.HasField("uuid"):
            return consumer
        owner = self._chunk_owners.setdefault(metadata.uuid, consumer)
        if owner.is_available and metadata.chunk_id >= metadata.num_chunks_from_msg - 1:
            del self._chunk_owners[metadata.uuid]
        return owner
