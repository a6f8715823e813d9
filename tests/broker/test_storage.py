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

from pulsarctl_wire.broker.journal import Commit, Read, entry_key
from pulsarctl_wire.broker.storage import Memory, Sqlite, StorageError
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
    everything = Read(1, 0, entry_key(LOGS, 0), 1 << 40)
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
        read = Read(1, key, entry_key(log, random.randint(start, ends[log])), random.randrange(1, 200))
        assert sqlite.read(read) == memory.read(read) == model.read(read)
    sqlite.close()
    again = Sqlite(tmp_path)
    assert same(again, model)
    again.close()


def copy_of(source: Path, target: Path, wal: int) -> None:
    """A copy of the database as a crash may leave it: the log has its first `wal` bytes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.copyfile(source / "broker.db", target / "broker.db")
    data = (source / "broker.db-wal").read_bytes()
    (target / "broker.db-wal").write_bytes(data[:wal])


@pytest.mark.parametrize("seed", range(6))
def test_what_was_synced_outlives_a_crash(tmp_path: Path, seed: int) -> None:
    """The log is cut at any byte behind the end of the last commit that was synced."""
    random, ends = Random(100 + seed), [0] * LOGS
    source, target = tmp_path / "source", tmp_path / "copy"
    sqlite, model = Sqlite(source), Disk()
    wal = source / "broker.db-wal"
    for _ in range(12):
        before = model.copy()
        synced = wal.stat().st_size
        commit = random_commit(random, ends, size=3000)
        sqlite.commit(commit)
        model.apply(commit)
        size = wal.stat().st_size
        for cut in {synced, size, *(random.randint(synced, size) for _ in range(6))}:
            copy_of(source, target, cut)
            copy = Sqlite(target)
            assert same(copy, model) or (cut < size and same(copy, before)), (synced, cut, size)
            copy.close()
    sqlite.close()


def test_a_crash_while_the_log_is_written_again(tmp_path: Path) -> None:
    """After a checkpoint, the log begins anew over its old bytes; what is left of them does not count."""
    random, ends = Random(1), [0] * LOGS
    source, target = tmp_path / "source", tmp_path / "copy"
    sqlite, model = Sqlite(source), Disk()
    sqlite._writer.execute("PRAGMA wal_autocheckpoint = 20")
    for _ in range(60):
        commit = random_commit(random, ends, size=3000)
        sqlite.commit(commit)
        model.apply(commit)
        copy_of(source, target, (source / "broker.db-wal").stat().st_size)
        copy = Sqlite(target)
        assert same(copy, model)
        copy.close()
    sqlite.close()


def test_only_one_owner(tmp_path: Path) -> None:
    first = Sqlite(tmp_path)
    with pytest.raises(InUse, match="another broker uses this directory"):
        Sqlite(tmp_path)
    first.close()
    Sqlite(tmp_path).close()


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pulsarctl_wire.broker.storage import Sqlite\n"
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


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "closed").mkdir(0o500)
    for directory in (tmp_path / "file" / "below", *([tmp_path / "closed"] if os.geteuid() else [])):
        with pytest.raises(SettingsError, match=r"\A[^\n]+; name another with --data\Z"):
            Sqlite(directory)
