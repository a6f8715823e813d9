"""A model of storage: what is durable, and commits and reads that are on their way.

It is what `Journal` expects of storage, and what test_storage.py compares SQLite with.
"""

from __future__ import annotations

import json
from collections import deque
from random import Random

from pulsarctl_wire.broker.storage.journal import INDEX_BITS, Commit, ReadRequest

Entries = list[tuple[int, bytes]]


class Disk:
    """What is durable."""

    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.state: dict[tuple[str, str], str] = {}

    def apply(self, commit: Commit) -> None:
        """A commit has become durable."""
        self.entries.update(commit.entries)
        for key, value in commit.rows.items():
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value
        for start, stop in commit.trims:
            for key_ in [each for each in self.entries if start <= each < stop]:
                del self.entries[key_]

    def rows(self) -> list[tuple[str, str, str]]:
        """All rows: table, key, value."""
        return [(*key, value) for key, value in self.state.items()]

    def ends(self) -> dict[int, int]:
        """Of each log of a topic, the index behind its last entry."""
        logs = {json.loads(value)["log"] for (table, _), value in self.state.items() if table == "topics"}
        ends: dict[int, int] = {}
        for key in self.entries:
            log, index = key >> INDEX_BITS, key & (1 << INDEX_BITS) - 1
            if log in logs:
                ends[log] = max(ends.get(log, 0), index + 1)
        return ends

    def read(self, read: ReadRequest) -> Entries:
        """Entries in order, up to a number of bytes, but at least one."""
        found: Entries = []
        size = 0
        for key in sorted(key for key in self.entries if read.start <= key < read.stop):
            if size >= read.max_bytes:
                break
            found.append((key, self.entries[key]))
            size += len(self.entries[key])
        return found

    def copy(self) -> Disk:
        """The same, to be changed on its own."""
        other = Disk()
        other.entries, other.state = dict(self.entries), dict(self.state)
        return other


class SlowDisk:
    """A disk whose commits and reads finish when they are told to, reads in any order.

    A commit is first durable and then reported. A read may see any state from when it was asked for on.
    """

    def __init__(self, disk: Disk, random: Random) -> None:
        self.disk = disk
        self.random = random
        self.commits: deque[Commit] = deque()
        self.durable = 0
        """How many of `commits` are durable, but not reported."""
        self.reads: list[tuple[ReadRequest, Entries | None]] = []
        self.most = 1 << 20
        """Bytes that one read yields at most."""

    def add_read(self, read: ReadRequest) -> None:
        """A read was asked for."""
        early = self.random.random() < 0.3
        self.reads.append((read, self._read(read) if early else None))

    def _read(self, read: ReadRequest) -> Entries:
        return self.disk.read(read._replace(max_bytes=min(read.max_bytes, self.most)))

    def sync(self) -> None:
        """The next commit is durable now."""
        self.disk.apply(self.commits[self.durable])
        self.durable += 1

    def report(self) -> Commit:
        """The oldest commit is to be reported."""
        if not self.durable:
            self.sync()
        self.durable -= 1
        return self.commits.popleft()

    def finish_read(self) -> tuple[int, Entries]:
        """The number and the result of a read that is done."""
        read, found = self.reads.pop(self.random.randrange(len(self.reads)))
        return read.number, self._read(read) if found is None else found

    def crash(self) -> Disk:
        """What is left: everything that was durable, and of the other commits the first ones, or none."""
        for _ in range(self.random.randint(self.durable, len(self.commits)) - self.durable):
            self.sync()
        return self.disk
