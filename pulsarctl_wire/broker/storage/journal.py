"""The journal: collects what the core wants stored and read, and calls back when that is done.

Storage has two kinds of data: entries, by a key that says which log they are in and where, and rows, by
table and key. The core changes them in memory and collects the changes in a `Commit`. Storage makes each
commit durable as a whole, one after the other, so what survives a crash is always a prefix of them. Code
that must wait until something is stored uses `sync`, or adds a call to the commit.

Rows are small JSON objects. The core keeps all of them in memory, in `Journal.tables`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from pulsarctl_wire.broker.basics.scheduler import Completion, Scheduler
from pulsarctl_wire.errors import WireError

INDEX_BITS: Final = 40
"""The bits of the index in an entry's key, `log << INDEX_BITS | index`; they limit the entries of a log."""

LAZY_COMMIT_SECONDS: Final = 0.1
"""The most seconds before a commit of changes that nobody waits for, such as acknowledgements."""

Row = dict[str, Any]
Key = tuple[str, str]


def entry_key(log: int, index: int) -> int:
    """Return the key of an entry."""
    return log << INDEX_BITS | index


class StorageError(WireError):
    """Stored data cannot be used."""


class Commit:
    """Changes to be made durable together, in this order: `entries`, `rows` (None: deleted), `trims`.

    `trims` are ranges of keys of entries to delete (start, stop). `calls` are made afterwards.
    """

    __slots__ = ("calls", "entries", "rows", "trims")

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.rows: dict[Key, str | None] = {}
        self.trims: list[tuple[int, int]] = []
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def __bool__(self) -> bool:
        return bool(self.entries or self.rows or self.trims or self.calls)


class ReadRequest(NamedTuple):
    """A read of the entries with keys from `start` to before `stop`; ends early once it has `max_bytes`."""

    number: int
    start: int
    stop: int
    max_bytes: int


class LazyRows(Protocol):
    """A source of rows that change often; it writes them only when a commit is taken."""

    def save(self) -> None:
        """Put the rows."""


class Journal:
    """Collects changes, and reads. Raises StorageError if a row is damaged."""

    def __init__(self, scheduler: Scheduler, rows: Iterable[tuple[str, str, str]] = ()) -> None:
        self._scheduler = scheduler
        self.tables: dict[str, dict[str, Row]] = {}
        for table, key, value in rows:
            self.tables.setdefault(table, {})[key] = _read_row(table, value)
        self._commit = Commit()
        self._changed_keys: dict[Key, None] = {}
        self._lazy_rows: dict[LazyRows, None] = {}
        self._lazy_at: int | None = None
        self._storing: deque[Commit] = deque()
        self._reads: list[ReadRequest] = []
        self._readers: dict[int, Callable[[list[tuple[int, bytes]]], None]] = {}
        self._last_read_number = 0

    # -- rows

    def table(self, name: str) -> dict[str, Row]:
        """Return the rows of a table by key; only `put` and `delete` may change them."""
        return self.tables.setdefault(name, {})

    def put(self, table: str, key: str, row: Row) -> None:
        """Set a row. The core may change `row` later, and then must put it again."""
        self.table(table)[key] = row
        self._changed_keys[table, key] = None
        self._schedule_commit()

    def delete(self, table: str, key: str) -> None:
        """Delete a row, if there is one."""
        if self.table(table).pop(key, None) is not None:
            self._changed_keys[table, key] = None
            self._schedule_commit()

    def delete_table(self, table: str) -> None:
        """Delete all rows of a table."""
        for key in list(self.table(table)):
            self.delete(table, key)

    def save_later(self, source: LazyRows) -> None:
        """Have `source.save` called when the commit is taken."""
        self._lazy_rows[source] = None
        self._schedule_commit()

    def next_number(self, name: str) -> int:
        """Return the next number of a counter, from 0; counters are stored."""
        row = self.table("counters").get(name, {"next": 0})
        self.put("counters", name, {"next": row["next"] + 1})
        number: int = row["next"]
        return number

    # -- entries

    def append(self, key: int, data: bytes) -> None:
        """Add an entry."""
        self._commit.entries.append((key, data))

    def trim(self, start: int, stop: int) -> None:
        """Delete entries by their keys."""
        if start < stop:
            self._commit.trims.append((start, stop))
            self._schedule_commit()

    def read(
        self, start: int, stop: int, max_bytes: int, reader: Callable[[list[tuple[int, bytes]]], None]
    ) -> None:
        """Read entries later; `reader` then gets (key, data) of each."""
        self._last_read_number += 1
        self._readers[self._last_read_number] = reader
        self._reads.append(ReadRequest(self._last_read_number, start, stop, max_bytes))

    # -- waiting

    def call_after_sync(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call` when everything so far is durable."""
        self._commit.calls.append((call, arguments))

    def sync(self) -> "Completion[None]":
        """Return a completion that is done when everything so far is durable."""
        completion: Completion[None] = self._scheduler.make_completion()
        self.call_after_sync(completion.resolve, None)
        return completion

    def _schedule_commit(self) -> None:
        if self._lazy_at is None:
            self._lazy_at = self._scheduler.ticks + int(LAZY_COMMIT_SECONDS * 1e9)

    # -- for the owner of the core

    @property
    def entries(self) -> list[tuple[int, bytes]]:
        """The entries of the next commit."""
        return self._commit.entries

    @property
    def wake_at(self) -> int | None:
        """When a commit must be taken although nobody waits for it (ticks)."""
        return self._lazy_at

    def take_commit(self, *, everything: bool = False) -> Commit | None:
        """Return the next commit if it has calls or entries, is due, or `everything` is wanted; else None."""
        commit = self._commit
        is_due = self._lazy_at is not None and self._lazy_at <= self._scheduler.ticks
        if not (commit.calls or commit.entries or is_due or everything):
            return None
        for source in list(self._lazy_rows):
            source.save()
        self._lazy_rows.clear()
        for table, key in self._changed_keys:
            row = self.tables[table].get(key)
            text = None if row is None else json.dumps(row, separators=(",", ":"))
            commit.rows[table, key] = text
        self._changed_keys.clear()
        self._lazy_at = None
        if not commit:
            return None
        self._commit = Commit()
        self._storing.append(commit)
        return commit

    def on_stored(self) -> None:
        """Make the calls of the oldest commit taken, which is durable now."""
        for call, arguments in self._storing.popleft().calls:
            call(*arguments)

    def take_reads(self) -> list[ReadRequest]:
        """Return the reads to be done, once."""
        reads, self._reads = self._reads, []
        return reads

    def on_read(self, number: int, entries: list[tuple[int, bytes]]) -> None:
        """Hand the entries of a finished read to its reader."""
        self._readers.pop(number)(entries)


def _read_row(table: str, text: str) -> Row:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise StorageError(f"a row of {table} is damaged: {text[:200]!r}")
    return row
