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
"""Bytes of entries that one read of storage fetches, unless the first one is larger."""

_ENTRY_COST: Final = 1024  # bytes that an entry in the cache takes besides its own

_parse_metadata: Final = MessageMetadata.FromString


class Position(NamedTuple):
    """A message id: ledger and entry."""

    ledger: int
    entry: int


def messages_in(metadata: MessageMetadata) -> int:
    """The number of messages in an entry."""
    return max(metadata.num_messages_in_batch, 1)


class Entry:
    """An entry: its bytes as they were sent, behind the broker's own metadata if that is switched on.

    `metadata` is None if it does not parse or is incomplete; `count` is the number of its messages. `at` is
    where the entry, as it was sent, begins in `data`.
    """

    __slots__ = ("at", "count", "data", "index", "metadata")

    def __init__(self, index: int, data: bytes, metadata: MessageMetadata | None, at: int = 0) -> None:
        self.index = index
        self.data = data
        if metadata is not None and not metadata.IsInitialized():
            metadata = None
        self.metadata = metadata
        self.count = 1 if metadata is None else messages_in(metadata)
        self.at = at

    @property
    def payload(self) -> bytes:
        """The payload, as it was sent."""
        return self.data[_metadata_at(self.data, self.at)[1] :]

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        """What the broker put in front of it, if anything."""
        return BrokerEntryMetadata.FromString(self.data[6 : self.at]) if self.at else None

    @property
    def time_ms(self) -> int:
        """When it was stored, if the broker notes that; otherwise when it was published."""
        added = self.broker_metadata
        if added is not None and added.broker_timestamp:
            return added.broker_timestamp
        return 0 if self.metadata is None else self.metadata.publish_time


def _metadata_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the MessageMetadata begins and ends in an entry that begins at `at`."""
    if data[at : at + 2] == MAGIC_CHECKSUM:
        at += 6
    start = at + 4
    return start, start + int.from_bytes(data[at:start], "big")


def read_entry(index: int, data: bytes) -> Entry:
    """The entry that was stored as `data`."""
    at = 0
    if data[:2] == MAGIC_BROKER_ENTRY:
        at = 6 + int.from_bytes(data[2:6], "big")
    start, stop = _metadata_at(data, at)
    try:
        metadata = _parse_metadata(data[start:stop]) if stop <= len(data) else None
    except DecodeError:
        metadata = None
    return Entry(index, data, metadata, at)


class Cache:
    """The entries that were added last, in all logs, up to `most` bytes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self.entries: OrderedDict[int, Entry] = OrderedDict()

    def add(self, key: int, entry: Entry) -> None:
        """Add an entry; drops the oldest ones if there is no room."""
        entries = self.entries
        entries[key] = entry
        self.size += len(entry.data) + _ENTRY_COST
        while self.size > self.most:
            _, oldest = entries.popitem(last=False)
            self.size -= len(oldest.data) + _ENTRY_COST


class Ledger(NamedTuple):
    """A stretch of the log that begins at index `first`, behind `offset` bytes of entries."""

    id: int
    first: int
    opened_ms: int
    offset: int


class Log:
    """The log of one topic.

    Indexes: `first` is the oldest entry that is kept, `end` the next one to be added, and all before `stored`
    are durable. `ends` has `end` of each log, loaded or not. `bytes` and `messages` count all that were ever
    added; they are the row of "logs".
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
        self.stored = self.end
        self._ends = ends
        row = journal.table("logs").get(str(number), {"bytes": 0, "messages": 0})
        self.bytes: int = row["bytes"]
        self.messages: int = row["messages"]
        self._journal = journal
        self._cache = cache

    def save(self) -> None:
        """Put its row (`journal.Dirty`)."""
        self._journal.put("logs", str(self.number), {"bytes": self.bytes, "messages": self.messages})

    @property
    def size(self) -> int:
        """Bytes of the entries that are kept."""
        return self.bytes - (self._ledger_of(self.first).offset if self.ledgers else 0)

    def size_from(self, index: int) -> int:
        """About how many bytes the entries from an index on have: as if all of a ledger had the same size."""
        if not self.ledgers or index >= self.end:
            return 0
        at = max(bisect_right(self.ledgers, index, key=_first) - 1, 0)
        ledger, stop, offset = self.ledgers[at], self.end, self.bytes
        if at + 1 < len(self.ledgers):
            stop, offset = self.ledgers[at + 1].first, self.ledgers[at + 1].offset
        before = (index - ledger.first) / max(stop - ledger.first, 1)
        return self.bytes - ledger.offset - int((offset - ledger.offset) * before)

    # -- writing

    def append(self, data: bytes, metadata: MessageMetadata | None, at: int) -> int:
        """Add an entry. Returns its index."""
        index = self.end
        self.end = self._ends[self.number] = index + 1
        self.bytes += len(data)
        self._journal.dirty(self)
        key = entry_key(self.number, index)
        self._journal.append(key, data)
        self._cache.add(key, Entry(index, data, metadata, at))
        return index

    def open_ledger(self, time_ms: int) -> None:
        """Begin a new ledger; empty ones before it go."""
        number = self._journal.next_number("ledger")
        while self.ledgers and self.ledgers[-1].first == self.end:
            self.ledgers.pop()
        self.ledgers.append(Ledger(number, self.end, time_ms, self.bytes))

    def trim(self, before: int, is_kept: Callable[[int, int], bool], *, forget: bool) -> bool:
        """Delete the entries of ledgers, but the last, that all are before an index. True if there were any.

        `is_kept` says whether to keep one nevertheless, by when it was closed (ms), and the bytes from it on.
        Unless `forget`, the ids of deleted entries stay known: a compacted copy may have them.
        """
        first = self.first
        for ledger, later in pairwise(self.ledgers):
            if later.first > before or is_kept(later.opened_ms, self.bytes - ledger.offset):
                break
            first = max(first, later.first)
        if first == self.first:
            return False
        self._journal.trim(entry_key(self.number, self.first), entry_key(self.number, first))
        self.first = first
        if forget:
            del self.ledgers[: bisect_right(self.ledgers, first, key=_first) - 1]
        return True

    def delete(self) -> None:
        """Delete all entries."""
        self._journal.delete("logs", str(self.number))
        self._journal.trim(entry_key(self.number, 0), entry_key(self.number + 1, 0))

    # -- positions

    def position(self, index: int) -> Position:
        """The message id of an entry."""
        ledger = self.ledgers[-1]
        if index < ledger.first:
            ledger = self._ledger_of(index)
        return Position(ledger.id, index - ledger.first)

    def _ledger_of(self, index: int) -> Ledger:
        return self.ledgers[max(bisect_right(self.ledgers, index, key=_first) - 1, 0)]

    def before(self, index: int) -> Position:
        """The message id before an index: ledger:-1 if the first ledger begins there."""
        if index > self.first:
            return self.position(index - 1)
        return Position(self._ledger_of(index).id if self.ledgers else -1, -1)

    def locate(self, ledger: int, entry: int) -> tuple[int, bool]:
        """The index of a message id, and True; if there is no such entry, of the next one, and False.

        Numbers are unsigned, as in MessageIdData.
        """
        ledger, entry = signed(ledger), signed(entry)
        at = bisect_right(self.ledgers, ledger, key=_id) - 1
        if at < 0:
            return 0, False
        stop = self.ledgers[at + 1].first if at + 1 < len(self.ledgers) else self.end
        found = self.ledgers[at]
        if found.id != ledger:
            return stop, False
        index = found.first + entry
        if entry < 0:
            return found.first, False
        return (index, True) if index < stop else (stop, False)

    # -- reading

    def cached(self, index: int) -> Entry | None:
        """The entry, if it is in the cache."""
        return self._cache.entries.get(entry_key(self.number, index))

    def read(self, start: int, stop: int, reader: Callable[[list[Entry]], None]) -> None:
        """Read the entries from `start` to before `stop`, or the first ones of them, from storage."""

        def done(rows: list[tuple[int, bytes]]) -> None:
            base = entry_key(self.number, 0)
            reader([read_entry(key - base, data) for key, data in rows])

        keys = entry_key(self.number, start), entry_key(self.number, stop)
        self._journal.read(*keys, READ_BYTES, done)

    async def entry(self, index: int, scheduler: Any) -> Entry | None:
        """The entry, from the cache or storage; None if it is not there."""
        found = self.cached(index)
        if found is not None:
            return found
        done = scheduler.completion()
        self.read(index, index + 1, done.resolve)
        entries: list[Entry] = await done
        return entries[0] if entries else None


def signed(number: int) -> int:
    """A number of a message id, which is unsigned, as Pulsar takes it."""
    return number - (1 << 64) if number >> 63 else number


def _first(ledger: Ledger) -> int:
    return ledger.first


def _id(ledger: Ledger) -> int:
    return ledger.id
