"""The dispatcher of Shared subscriptions: consumers get runs of entries, in turn."""

from heapq import heappop, heappush
from itertools import islice
from typing import Final

from pulsarctl_wire.broker.basics.scheduler import Timer
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.broker.delivery.dispatcher import ManyActive, Source
from pulsarctl_wire.broker.storage.log import Entry

_FIRST_READ: Final = 0.002
"""Seconds that a read of what is stored waits for the first FLOW of others: as long as real ones take."""

_TURN: Final = 1e-9
"""Seconds until the next read: just long enough for what clients have sent meanwhile to count."""


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

    def first(self) -> int | None:
        """The lowest index."""
        heap = self._heap
        while heap and heap[0] not in self._members:
            heappop(heap)
        return heap[0] if heap else None

    def clear(self) -> None:
        """Remove all."""
        self._heap.clear()
        self._members.clear()


def in_turn(consumers: list[Consumer], turn: int) -> int | None:
    """The place of the next consumer from `turn` on that has permits, of the lowest priority number."""
    turn = turn if turn < len(consumers) else 0
    available = [at for at, each in enumerate(consumers) if each.available]
    return min(available, key=lambda at: (consumers[at].priority, (at - turn) % len(consumers)), default=None)


class Shared(ManyActive):
    """In turn, in runs of entries, to consumers with permits, those of the lowest priority number first."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.replay = Replay()
        self._turn = 0
        self._chunks: dict[str, Consumer] = {}
        self._pause: Timer | None = None
        """Runs until the next read."""

    def add(self, consumer: Consumer) -> None:
        """A consumer joins. Raises Refused."""
        super().add(consumer)
        self.consumers.sort(key=lambda each: each.priority)

    def put_back(self, index: int) -> None:
        """Have an entry delivered again, or later."""
        self.replay.add(index)

    def rewind(self) -> None:
        """Deliver everything again that is not acknowledged."""
        super().rewind()
        self.replay.clear()
        self._chunks.clear()

    def remove(self, consumer: Consumer) -> None:
        """A consumer leaves."""
        super().remove(consumer)
        self._chunks = {uuid: it for uuid, it in self._chunks.items() if it is not consumer}

    def acked(self, index: int) -> None:
        """An entry was acknowledged."""
        super().acked(index)
        self.replay.discard(index)

    def wake(self) -> None:
        """A consumer can get more than before; others that are about to send their first FLOW share it."""
        if all(each.last_flow_ms for each in self.consumers):
            self._end_pause()
        elif not self._waits and self._pause is None:
            self._begin_pause(_FIRST_READ)

    def dispatch(self) -> None:
        """Deliver what can be delivered now, in turns of reading and giving out; the rest a little later."""
        if self._pause is not None:
            return
        held: list[int] = []
        room = self.source.settings.dispatcherMaxReadBatchSize
        while room > 0 and any(each.available for each in self.consumers):
            entries = self._read()
            if not entries:
                break
            rest = self._give_out(entries)
            room -= len(entries) - len(rest)
            held += rest
        for index in held:
            self.replay.add(index)
        if room <= 0:
            self._begin_pause(_TURN)

    def _begin_pause(self, seconds: float) -> None:
        self._pause = self.source.scheduler.later(seconds, self._resume)

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
        """As many entries as there are permits: those to be delivered again, or new ones."""
        permits = sum(each.permits for each in self.consumers)
        first = next(each.permits for each in self.consumers if each.available)
        most = self.source.settings.dispatcherMaxReadBatchSize
        most = min(max(permits, first), most, self.source.room)
        for source in (self._replayed, self._new):
            entries = list(islice(iter(source, None), most))
            if entries:
                return entries
        return []

    def _give_out(self, entries: list[Entry]) -> list[int]:
        """Deliver entries; a consumer gets a run for its permits, by the average size. Returns the rest."""
        rest: list[int] = []
        most = self.source.settings.dispatcherMaxRoundRobinBatchSize
        messages = sum(each.count for each in entries)
        average = max(messages // len(entries), 1)
        while entries and (at := in_turn(self.consumers, self._turn)) is not None:
            consumer, self._turn = self.consumers[at], at + 1
            size = max(min(most, -(-min(messages, consumer.room) // average)), 1)
            for entry in entries[:size]:
                owner = self._chunk_owner(entry, consumer)
                if owner.available or (owner is consumer and not owner.closed):
                    self.deliver(owner, entry)
                    messages -= entry.count
                else:
                    rest.append(entry.index)
            entries = entries[size:]
        return rest + [each.index for each in entries]

    def _replayed(self) -> Entry | None:
        while (index := self.replay.first()) is not None:
            entry = None
            if not self.cursor.is_acked(index) and (entry := self.entry(index, index + 1)) is None:
                return None
            self.replay.discard(index)
            if entry is not None and not self.is_hidden(entry) and not self.is_delayed(entry):
                return entry
        return None

    def _new(self) -> Entry | None:
        if len(self.replay) or self.source.blocked:  # it is being read; or it has read too much
            return None
        while (entry := self.next_entry()) is not None:
            if not self.is_delayed(entry):
                return entry
        return None

    def _chunk_owner(self, entry: Entry, consumer: Consumer) -> Consumer:
        """Who gets an entry: all chunks of a message go to the consumer that got the first one."""
        metadata = entry.metadata
        if metadata is None or not metadata.HasField("chunk_id") or not metadata.HasField("uuid"):
            return consumer
        owner = self._chunks.setdefault(metadata.uuid, consumer)
        if owner.available and metadata.chunk_id >= metadata.num_chunks_from_msg - 1:
            del self._chunks[metadata.uuid]
        return owner
