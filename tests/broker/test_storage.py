"""SQLite against the model of storage that simulations use, and the data structures of the core."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from broker.sim_storage import Disk

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.shell.sqlite import Memory, Sqlite
from pulsarctl_wire.broker.storage.journal import Commit, Journal, ReadRequest, StorageError, entry_key
from pulsarctl_wire.errors import InUse, SettingsError

LOGS = 3


def random_commit(random: Random, ends: list[int], size: int = 60) -> Commit:
    """Entries behind the ends of some logs, rows that change or go, and trims."""
    commit = Commit()
    for _ in range(random.randrange(6)):
        log = random.randrange(LOGS)
        commit.entries.append((entry_key(log, ends[log]), random.randbytes(random.randrange(size))))
        ends[log] += 1
    for _ in range(random.randrange(4)):
        key = random.choice(("cursors", "sequences/1")), f"k{random.randrange(5)}"
        commit.rows[key] = random.choice((None, f'{{"mark":{random.randrange(100)}}}'))
    for log in range(LOGS):
        commit.rows["topics", f"t{log}"] = f'{{"log":{log},"first":{ends[log]}}}'
    if random.random() < 0.3:
        log = random.randrange(LOGS)
        start = random.randrange(ends[log] + 1)
        commit.trims.append((entry_key(log, start), entry_key(log, random.randint(start, ends[log]))))
    return commit


def contents(storage: Sqlite | Memory | Disk) -> tuple[dict[tuple[str, str], str], list[tuple[int, bytes]]]:
    """Everything that a storage has."""
    everything = ReadRequest(1, 0, entry_key(LOGS, 0), 1 << 40)
    rows = {(table, key): value for table, key, value in storage.rows()}
    if isinstance(storage, Memory):
        return rows, sorted(storage.entries.items())
    return rows, storage.read(everything)


def same(storage: Sqlite | Memory | Disk, model: Disk) -> bool:
    return contents(storage) == contents(model) and storage.ends() == model.ends()


@pytest.mark.parametrize("seed", range(4))
def test_every_storage_does_as_the_model(tmp_path: Path, seed: int) -> None:
    random, ends = Random(seed), [0] * LOGS
    sqlite, memory, model = Sqlite(tmp_path), Memory(), Disk()
    for _ in range(60):
        commit = random_commit(random, ends)
        for storage in (sqlite, memory):
            storage.commit(commit)
        model.apply(commit)
        assert same(sqlite, model)
        assert contents(memory) == contents(model)
        log = random.randrange(LOGS)
        start = random.randrange(ends[log] + 1)
        key = entry_key(log, start)
        read = ReadRequest(1, key, entry_key(log, random.randint(start, ends[log])), random.randrange(1, 200))
        assert sqlite.read(read) == memory.read(read) == model.read(read)
    sqlite.close()
    again = Sqlite(tmp_path)
    assert same(again, model)
    again.close()


FRAME = 24 + 4096
"""Bytes of a frame of SQLite's log, which begins with 32 bytes of its own."""


def opened(directory: Path, database: bytes, log: bytes) -> Sqlite:
    """A storage on files with these bytes, as a crash may leave them."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / "broker.db").write_bytes(database)
    (directory / "broker.db-wal").write_bytes(log)
    return Sqlite(directory)


def cuts_of(random: Random, old: bytes, new: bytes) -> list[int]:
    """Where the writing of a log may have stopped: at many bytes, also around the ends of frames."""
    first = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    ends = [at for end in range(32, len(new) + 1, FRAME) for at in (end - 1, end, end + 1)]
    found = random.sample(range(first, len(new)), 20) + random.sample(ends, min(10, len(ends)))
    return sorted({first, len(new), *(cut for cut in found if first <= cut <= len(new))})


@pytest.mark.parametrize("pages", [1000, 20])
@pytest.mark.parametrize("seed", range(3))
def test_a_crash_leaves_whole_commits(tmp_path: Path, seed: int, pages: int) -> None:
    """The log is cut at any byte behind the last sync: what is left are the first commits, each as a whole.

    After so many pages the log is copied into the database (a checkpoint), and then written again over its
    old bytes; a crash leaves these behind the cut, or only some of the pages in the database.
    """
    random, ends = Random(seed), [0] * LOGS
    source, target = tmp_path / "source", tmp_path / "copy"
    sqlite, model = Sqlite(source), Disk()
    sqlite._writer.execute(f"PRAGMA wal_autocheckpoint = {pages}")
    files = source / "broker.db", source / "broker.db-wal"
    begun_again = torn = 0
    for _ in range(12):
        database, old = (path.read_bytes() for path in files)
        states = [model.copy()]
        for _ in range(random.choice((1, 3))):
            commit = random_commit(random, ends, size=3000)
            sqlite.commit(commit)
            model.apply(commit)
            states.append(model.copy())
            if files[0].read_bytes() != database:
                break
        after, new = (path.read_bytes() for path in files)
        begun_again += new[:32] != old[:32]
        reached = 0
        for cut in cuts_of(random, old, new):
            copy = opened(target, database, new[:cut] + old[cut:])
            found = [number for number, state in enumerate(states) if same(copy, state)]
            copy.close()
            assert found, f"a cut at {cut}"
            assert found[-1] >= reached
            reached = found[-1]
        assert reached == len(states) - 1
        if after != database:
            torn += 1
            database = database.ljust(len(after), b"\0")
            parts = [random.choice((database, after))[at : at + 4096] for at in range(0, len(after), 4096)]
            copy = opened(target, b"".join(parts), new)
            assert same(copy, model)
            copy.close()
    sqlite.close()
    assert (begun_again > 1 and torn > 1) == (pages == 20)


def test_each_commit_is_synced(tmp_path: Path) -> None:
    """SQLite is told so; copies of its files cannot show it."""
    sqlite = Sqlite(tmp_path)
    assert sqlite._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    sqlite.close()


def test_only_one_owner(tmp_path: Path) -> None:
    first = Sqlite(tmp_path)
    with pytest.raises(InUse, match="another broker uses this directory"):
        Sqlite(tmp_path)
    first.close()
    Sqlite(tmp_path).close()


def test_nobody_else_may_read_a_new_directory(tmp_path: Path) -> None:
    Sqlite(tmp_path / "data").close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pulsarctl_wire.broker.shell.sqlite import Sqlite\n"
        "it = Sqlite(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(InUse):
            Sqlite(tmp_path)
        process.kill()
    Sqlite(tmp_path).close()


def refused(directory: Path) -> str:
    """What is said about a directory that cannot be used: one line."""
    with pytest.raises(StorageError) as caught:
        Sqlite(directory)
    text = str(caught.value)
    assert str(directory) in text
    assert "\n" not in text
    return text


def test_another_version(tmp_path: Path) -> None:
    Sqlite(tmp_path).close()
    database = sqlite3.connect(tmp_path / "broker.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    assert "its version is 99" in refused(tmp_path)
    assert "its version is 99" in refused(tmp_path), "the lock was kept"


@pytest.mark.parametrize("data", [b"this is not a database", b"x" * 5000])
def test_something_else_in_the_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "broker.db").write_bytes(data)
    refused(tmp_path)
    (tmp_path / "broker.db").unlink()
    Sqlite(tmp_path).close()


def start(directory: Path) -> None:
    """Do what a broker does that starts."""
    storage = Sqlite(directory)
    try:
        storage.rows()
        storage.ends()
    finally:
        storage.close()


@pytest.mark.parametrize("where", [0, 4096, 8192])
@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_file(tmp_path: Path, seed: int, where: int) -> None:
    """It is refused in one line, when it is opened or at the latest when its rows are read."""
    random, ends = Random(seed), [0] * LOGS
    sqlite = Sqlite(tmp_path)
    for _ in range(20):
        sqlite.commit(random_commit(random, ends))
    sqlite.close()
    path = tmp_path / "broker.db"
    data = bytearray(path.read_bytes())
    for _ in range(40):
        data[where + random.randrange(100)] = random.randrange(256)
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"\A[^\n]+\Z"):
        start(tmp_path)
    path.unlink()
    Sqlite(tmp_path).close()


@pytest.mark.parametrize("value", ['{"log":', "7", "[" * 100_000, ""])
def test_a_damaged_row(value: str) -> None:
    with pytest.raises(StorageError, match=r"\Aa row of topics is damaged: [^\n]+\Z"):
        Journal(Scheduler(), [("topics", "t", value)])


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "closed").mkdir(0o500)
    for directory in (tmp_path / "file" / "below", *([tmp_path / "closed"] if os.geteuid() else [])):
        with pytest.raises(SettingsError, match=r"\A[^\n]+; name another with --data\Z"):
            Sqlite(directory)
