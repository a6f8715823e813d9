"""A topic's log: entries in a row, numbered by an index from 0, which never has holes.

Message ids name a ledger and an entry in it. A ledger is just a stretch of the log: `Ledger.first` is the
index of its entry 0. A new one begins whenever the topic is loaded, and when the last one is full; old ones
are deleted as a whole.

    index     0  1  2  3  4  5  6
    ledger    5: 0  1  2  8: 0  1  2  3
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsarctl_wire.broker.storage.journal import Journal, entry_key
from pulsarctl_wire.wire.frame_layout import MAGIC_BROKER_ENTRY, MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BrokerEntryMetadata, MessageMetadata

READ_BYTES: Final = 1024 * 1024
"""One read of storage ends once its entries have this many bytes."""

_ENTRY_COST: Final = 1024  # bytes that an entry in the cache takes besides its own

_parse_metadata: Final = MessageMetadata.FromString


class Position(NamedTuple):
    """A message id: ledger and entry."""

    ledger: int
    entry: int


def count_messages(metadata: MessageMetadata) -> int:
    """Return the number of messages in an entry."""
    return max(metadata.num_messages_in_batch, 1)


class Entry:
    """An entry: its bytes as they were sent, behind the broker's own metadata if that is switched on.

    `metadata` is None if it does not parse or is incomplete; `count` is the number of its messages. What
    was sent begins at `start` in `data`.
    """

    __slots__ = ("count", "data", "index", "metadata", "start")

    def __init__(self, index: int, data: bytes, metadata: MessageMetadata | None, start: int = 0) -> None:
        self.index = index
        self.data = data
        if metadata is not None and not metadata.IsInitialized():
            metadata = None
        self.metadata = metadata
        self.count = 1 if metadata is None else count_messages(metadata)
        self.start = start

    @property
    def payload(self) -> bytes:
        """The payload, as it was sent."""
        return self.data[_locate_metadata(self.data, self.start)[1] :]

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        """The broker entry metadata, if any."""
        return BrokerEntryMetadata.FromString(self.data[6 : self.start]) if self.start else None

    @property
    def time_ms(self) -> int:
        """When it was stored, if the broker adds that; else when it was published."""
        metadata = self.broker_metadata
        if metadata is not None and metadata.broker_timestamp:
            return metadata.broker_timestamp
        return 0 if self.metadata is None else self.metadata.publish_time


def _locate_metadata(data: bytes, offset: int) -> tuple[int, int]:
    """Return where the MessageMetadata begins and ends in an entry that begins at `offset`."""
    if data[offset : offset + 2] == MAGIC_CHECKSUM:
        offset += 6
    begin = offset + 4
    return begin, begin + int.from_bytes(data[offset:begin], "big")


def parse_entry(index: int, data: bytes) -> Entry:
    """Parse the entry that was stored as `data`."""
    start = 0
    if data[:2] == MAGIC_BROKER_ENTRY:
        start = 6 + int.from_bytes(data[2:6], "big")
    begin, stop = _locate_metadata(data, start)
    try:
        metadata = _parse_metadata(data[begin:stop]) if stop <= len(data) else None
    except DecodeError:
        metadata = None
    return Entry(index, data, metadata, start)


class Cache:
    """The entries that were added last, in all logs, up to `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.entries: OrderedDict[int, Entry] = OrderedDict()

    def add(self, key: int, entry: Entry) -> None:
        """Add an entry, and drop the oldest ones beyond `max_bytes`."""
        entries = self.entries
        entries[key] = entry
        self.size += len(entry.data) + _ENTRY_COST
        while self.size > self.max_bytes:
            _, oldest = entries.popitem(last=False)
            self.size -= len(oldest.data) + _ENTRY_COST


class Ledger(NamedTuple):
    """A stretch of the log that begins at index `first`, after `offset` bytes of entries."""

    id: int
    first: int
    opened_ms: int
    offset: int


class Log:
    """The log of one topic.

    Indexes: `first` is the oldest entry that is kept, `end` the next one to be added, and all before
    `stored_end` are durable. `ends` has `end` of each log, loaded or not. `bytes` and `messages` count all
    that were ever added; they are the row of "logs".
    """

    def __init__(
        self,
        number: int,
        journal: Journal,
        cache: Cache,
        ends: dict[int, int],
        ledgers: list[Ledger],
        first: int,
    ) -> None:
        self.number = number
        self.ledgers = ledgers
        self.first = first
        self.end = max(ends.get(number, 0), ledgers[-1].first if ledgers else 0)
        self.stored_end = self.end
        self._ends = ends
        row = journal.table("logs").get(str(number), {"bytes": 0, "messages": 0})
        self.bytes: int = row["bytes"]
        self.messages: int = row["messages"]
        self._journal = journal
        self._cache = cache

    def save(self) -> None:
        """Put its row (`journal.LazyRows`)."""
        self._journal.put("logs", str(self.number), {"bytes": self.bytes, "messages": self.messages})

    @property
    def size(self) -> int:
        """Bytes of the entries that are kept."""
        return self.bytes - (self._ledger_of(self.first).offset if self.ledgers else 0)

    def estimate_size_from(self, index: int) -> int:
        """Return the estimated bytes of the entries from an index on, assuming equal sizes in a ledger."""
        if not self.ledgers or index >= self.end:
            return 0
        ledger_index = max(bisect_right(self.ledgers, index, key=_first) - 1, 0)
        ledger, stop, offset = self.ledgers[ledger_index], self.end, self.bytes
        if ledger_index + 1 < len(self.ledgers):
            stop, offset = self.ledgers[ledger_index + 1].first, self.ledgers[ledger_index + 1].offset
        share = (index - ledger.first) / max(stop - ledger.first, 1)
        return self.bytes - ledger.offset - int((offset - ledger.offset) * share)

    # -- writing

    def append(self, data: bytes, metadata: MessageMetadata | None, start: int) -> int:
        """Add an entry. Returns its index."""
        index = self.end
        self.end = self._ends[self.number] = index + 1
        self.bytes += len(data)
        self._journal.save_later(self)
        key = entry_key(self.number, index)
        self._journal.append(key, data)
        self._cache.add(key, Entry(index, data, metadata, start))
        return index

    def open_ledger(self, time_ms: int) -> None:
        """Begin a new ledger; drop empty ones before it."""
        number = self._journal.next_number("ledger")
        while self.ledgers and self.ledgers[-1].first == self.end:
            self.ledgers.pop()
        self.ledgers.append(Ledger(number, self.end, time_ms, self.bytes))

    def trim(self, mark: int, is_kept: Callable[[int, int], bool], *, forget_ids: bool) -> Position | None:
        """Delete the entries of all ledgers that end before `mark`, but never of the last one.

        `is_kept` tells whether to keep a ledger nevertheless, by its end (ms) and the bytes from its first
        entry on. Unless `forget_ids`, the ids of deleted entries stay known: a compacted copy may have
        them. Returns the id of the last deleted entry; None if nothing was deleted.
        """
        first = self.first
        for ledger, next_ledger in pairwise(self.ledgers):
            if next_ledger.first > mark or is_kept(next_ledger.opened_ms, self.bytes - ledger.offset):
                break
            first = max(first, next_ledger.first)
        if first == self.first:
            return None
        last = self.position(first - 1)
        self._journal.trim(entry_key(self.number, self.first), entry_key(self.number, first))
        self.first = first
        if forget_ids:
            del self.ledgers[: bisect_right(self.ledgers, first, key=_first) - 1]
        return last

    def delete(self) -> None:
        """Delete all entries."""
        self._journal.delete("logs", str(self.number))
        self._journal.trim(entry_key(self.number, 0), entry_key(self.number + 1, 0))

    # -- positions

    def position(self, index: int) -> Position:
        """Return the message id of an entry."""
        ledger = self.ledgers[-1]
        if index < ledger.first:
            ledger = self._ledger_of(index)
        return Position(ledger.id, index - ledger.first)

    def _ledger_of(self, index: int) -> Ledger:
        return self.ledgers[max(bisect_right(self.ledgers, index, key=_first) - 1, 0)]

    def position_before(self, index: int) -> Position:
        """Return the message id before an index: LEDGER:-1 if nothing is kept before it."""
        if index > self.first:
            return self.position(index - 1)
        return Position(self._ledger_of(index).id if self.ledgers else -1, -1)

    def locate(self, ledger: int, entry: int) -> tuple[int, bool]:
        """Return the index of a message id, and True; without such an entry, the next index, and False.

        Numbers are unsigned, as in MessageIdData.
        """
        ledger, entry = signed(ledger), signed(entry)
        ledger_index = bisect_right(self.ledgers, ledger, key=_id) - 1
        if ledger_index < 0:
            return 0, False
        stop = self.ledgers[ledger_index + 1].first if ledger_index + 1 < len(self.ledgers) else self.end
        candidate = self.ledgers[ledger_index]
        if candidate.id != ledger:
            return stop, False
        index = candidate.first + entry
        if entry < 0:
            return candidate.first, False
        return (index, True) if index < stop else (stop, False)

    # -- reading

    def get_cached(self, index: int) -> Entry | None:
        """Return the entry, if it is in the cache."""
        return self._cache.entries.get(entry_key(self.number, index))

    def read(self, start: int, stop: int, reader: Callable[[list[Entry]], None]) -> None:
        """Read the entries from `start` to before `stop` from storage, and call `reader` with them.

        If they are large, it gets only the first ones (`READ_BYTES`).
        """

        def on_read(rows: list[tuple[int, bytes]]) -> None:
            base = entry_key(self.number, 0)
            reader([parse_entry(key - base, data) for key, data in rows])

        keys = entry_key(self.number, start), entry_key(self.number, stop)
        self._journal.read(*keys, READ_BYTES, on_read)

    async def load_entry(self, index: int, scheduler: Any) -> Entry | None:
        """Return an entry from the cache or storage; None if there is none."""
        entry = self.get_cached(index)
        if entry is not None:
            return entry
        completion = scheduler.make_completion()
        self.read(index, index + 1, completion.resolve)
        entries: list[Entry] = await completion
        return entries[0] if entries else None


def signed(number: int) -> int:
    """Return an unsigned number of a message id as a signed one, as Pulsar takes it."""
    return number - (1 << 64) if number >> 63 else number


def _first(ledger: Ledger) -> int:
    return ledger.first


def _id(ledger: Ledger) -> int:
    return ledger.id
