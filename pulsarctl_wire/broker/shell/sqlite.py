"""Storage of commits: an SQLite database in a directory, or memory.

SQLite runs in write-ahead mode, and each commit is synced before it counts as stored. One thread writes, one
reads; both report to the event loop. While a commit is being synced, the core collects the next one, so more
load means larger commits.
"""

import asyncio
import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from pulsarctl_wire.broker.storage.journal import INDEX_BITS, Commit, ReadRequest, StorageError
from pulsarctl_wire.errors import InUse, SettingsError

VERSION: Final = 1
"""Version of the tables."""

_TABLES: Final = """
CREATE TABLE entries (key INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE state (name TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name, key))
    WITHOUT ROWID;
"""

_BATCH_SIZES: Final = (256, 16, 1)  # entries that one statement inserts
_INSERTS: Final = {
    size: f"INSERT OR REPLACE INTO entries VALUES {', '.join(['(?, ?)'] * size)}" for size in _BATCH_SIZES
}

Entries = list[tuple[int, bytes]]


class Memory:
    """Storage in memory: nothing is durable."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.state: dict[tuple[str, str], str] = {}

    def rows(self) -> list[tuple[str, str, str]]:
        """Return all rows."""
        return [(*key, value) for key, value in self.state.items()]

    def ends(self) -> dict[int, int]:
        """Return log number -> index after its last entry."""
        ends: dict[int, int] = {}
        for key in self.entries:
            log, index = key >> INDEX_BITS, key & (1 << INDEX_BITS) - 1
            ends[log] = max(ends.get(log, 0), index + 1)
        return ends

    def commit(self, commit: Commit) -> None:
        """Keep the changes of a commit."""
        self.entries.update(commit.entries)
        for key, value in commit.rows.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        for start, stop in commit.trims:
            if stop - start > len(self.entries):
                self.entries = {key: data for key, data in self.entries.items() if not start <= key < stop}
            else:
                for entry_key in range(start, stop):
                    self.entries.pop(entry_key, None)

    def read(self, read: ReadRequest) -> Entries:
        """Read entries."""
        entries = self.entries
        pairs = ((key, entries[key]) for key in range(read.start, read.stop) if key in entries)
        return list(_limit(pairs, read.max_bytes))

    def close(self) -> None:
        """Do nothing."""


def _limit(entries: Any, remaining: int) -> Iterator[tuple[int, bytes]]:
    """Yield entries until they have `remaining` bytes together; the last one may exceed that."""
    for key, data in entries:
        yield key, data
        remaining -= len(data)
        if remaining <= 0:
            return


class Sqlite:
    """A database in a directory, which is locked until `close`.

    Raises InUse, SettingsError if the directory cannot be used, StorageError if the database is damaged.
    """

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (directory / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            text = f"{directory}: another broker uses this directory; name another with --data"
            raise InUse(text) from None
        except OSError as error:
            text = f"{directory}: {error.strerror or error}; name another with --data"
            raise SettingsError(text) from None
        self._path = path = directory / "broker.db"
        try:
            self._writer = self._open(path)
            version = self._writer.execute("PRAGMA user_version").fetchone()[0]
            if not version:
                self._writer.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = {VERSION};COMMIT;")
            self._reader = self._open(path)
        except sqlite3.Error as error:
            self._lock.close()
            raise StorageError(f"{path}: {error}") from None
        if version not in (0, VERSION):
            self.close()
            raise StorageError(f"{path}: its version is {version}, this pwire knows {VERSION}")

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA wal_autocheckpoint = 4000")  # pages
        database.execute("PRAGMA cache_size = -4000")  # negative: KiB
        return database

    def rows(self) -> list[tuple[str, str, str]]:
        """Return all rows. Raises StorageError."""
        with self._wrap_errors():
            return list(self._reader.execute("SELECT name, key, value FROM state"))

    def ends(self) -> dict[int, int]:
        """Return log number -> index after its last entry, for the logs of topics. Raises StorageError."""
        ends = {}
        query = "SELECT max(key) FROM entries WHERE key >= ? AND key < ?"
        with self._wrap_errors():
            for (value,) in self._reader.execute("SELECT value FROM state WHERE name = 'topics'"):
                log = json.loads(value)["log"]
                bounds = log << INDEX_BITS, (log + 1) << INDEX_BITS
                last_key = self._reader.execute(query, bounds).fetchone()[0]
                if last_key is not None:
                    ends[log] = last_key - bounds[0] + 1
        return ends

    @contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """Raise StorageError for errors of a damaged database."""
        try:
            yield
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise StorageError(f"{self._path}: {error}") from None

    def commit(self, commit: Commit) -> None:
        """Make a commit durable. If that fails (sqlite3.Error), it can be tried again."""
        database = self._writer
        database.execute("BEGIN IMMEDIATE")
        try:
            self._apply(commit)
            database.execute("COMMIT")
        finally:
            if database.in_transaction:  # failed
                database.execute("ROLLBACK")

    def _apply(self, commit: Commit) -> None:
        database = self._writer
        if commit.entries:
            self._insert(commit.entries)
        if commit.rows:
            changed = [(*key, value) for key, value in commit.rows.items() if value is not None]
            deleted = [key for key, value in commit.rows.items() if value is None]
            database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", changed)
            database.executemany("DELETE FROM state WHERE name = ? AND key = ?", deleted)
        if commit.trims:
            database.executemany("DELETE FROM entries WHERE key >= ? AND key < ?", commit.trims)

    def _insert(self, entries: Entries) -> None:
        """Insert entries by few statements: between two, other threads may run for long."""
        index = 0
        for size in _BATCH_SIZES:
            while len(entries) - index >= size:
                batch = entries[index : index + size]
                self._writer.execute(_INSERTS[size], tuple(chain.from_iterable(batch)))
                index += size

    def read(self, read: ReadRequest) -> Entries:
        """Read entries."""
        query = "SELECT key, data FROM entries WHERE key >= ? AND key < ? ORDER BY key"
        with closing(self._reader.execute(query, (read.start, read.stop))) as cursor:
            return list(_limit(cursor, read.max_bytes))

    def close(self) -> None:
        """Close the database, and unlock the directory."""
        self._reader.close()
        self._writer.close()
        self._lock.close()


Storage = Memory | Sqlite
"""Storage of commits. `commit` and `read` may be called from different threads."""


class Worker:
    """A thread that calls `work` with each item.

    `on_done` is called in the event loop with the item, and the result or the exception.
    """

    def __init__(self, work: Callable[[Any], Any], on_done: Callable[[Any, Any], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._work = work
        self._on_done = on_done
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, item: object) -> None:
        """Add an item to the queue."""
        self._queue.put(item)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                result = self._work(item)
            except Exception as error:
                result = error
            self._loop.call_soon_threadsafe(self._on_done, item, result)

    def stop(self) -> None:
        """End the thread once all items are done."""
        self._queue.put(None)
        self._thread.join()
