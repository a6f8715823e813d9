"""Tables whose files are in directories by date, series and cluster: the rows of one without."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.comparing import Now, Row, alone, run, stored
from pipeline.test_pipeline_run import leftovers
from segments import START_NS, Tcp, captured, conversation, pcap

from pulsarctl_wire.data.duck import DuckEngine
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files import splits
from pulsarctl_wire.pipeline.storage.partitions import Partitioned, add_partitions, directory
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.reports.sql import Choice
from pulsarctl_wire.table.schema import TABLES

NAMES = ["a.pcap1", "a.pcap2", "b %?#=.pcap", "ü[{*.pcap"]
DAY_NS = 86_400 * 10**9


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files of three series, whose packets are of five days."""
    packets = captured(Tcp().whole(conversation([b"x" * 40] * 9)))
    times = [START_NS + at * 4 * DAY_NS // len(packets) for at in range(len(packets))]
    timed = [(now, *packet[1:]) for now, packet in zip(times, packets, strict=True)]
    each = len(timed) // len(NAMES) + 1
    found = [tmp_path / name for name in NAMES]
    for number, path in enumerate(found):
        path.write_bytes(pcap(timed[number * each : (number + 1) * each]))
    return list(map(str, found))


def day(row: Row) -> Any:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    return None if row["time_ns"] is None else (epoch + timedelta(microseconds=row["time_ns"] // 1000)).date()


def derived(row: Row) -> Row:
    """The columns of a row that are made for directories."""
    time = row["time_ns"]
    return {"date": day(row), "hour": None if time is None else time // (3_600 * 10**9) % 24}


def columns(row: Row, by: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in by if name in row or name in derived(row))


def place(row: Row, by: tuple[str, ...]) -> str:
    values = {**row, **derived(row)}
    texts = [values[name] for name in columns(row, by)]
    return directory(columns(row, by), [None if text is None else str(text) for text in texts])


def check(paths: list[str], out: Path, options: Options) -> None:
    """The table has the rows of one process, each once and where it belongs."""
    expected, by = alone(paths, options), options.partition_by
    for kind in ("frames", "gaps"):
        dated = [
            {**row, **{name: derived(row)[name] for name in columns(row, by) if name in derived(row)}}
            for row in getattr(expected, kind)
        ]
        assert stored(out, kind) == dated
        places = {str(path.parent.relative_to(out / kind)) for path in (out / kind).rglob("*.parquet")}
        _, ours = add_partitions(TABLES[kind], by)
        empty = directory(ours, [None] * len(ours))  # a table without rows has a file of its own
        assert places == ({place(row, by) or "." for row in dated} or {empty or "."})
    assert not leftovers(out)


@pytest.mark.parametrize("by", [("date",), ("series", "date"), ("cluster", "date", "series")], ids=",".join)
def test_rows_are_where_they_belong(paths: list[str], tmp_path: Path, by: tuple[str, ...]) -> None:
    options = Options(1_500, cluster=None if len(by) == 1 else "c/1", partition_by=by)
    for count in (3, 4):
        run(paths[:count], tmp_path / "out", options)
        check(paths[:count], tmp_path / "out", options)


@pytest.mark.parametrize("most", [9, 16, 21])
def test_one_that_broke_off_is_gone_on_with(paths: list[str], tmp_path: Path, most: int) -> None:
    """Also if the last file is another one then, with rows of other days."""
    options, out = Options(600, partition_by=("date", "series")), tmp_path / "out"
    last = Path(paths[-1])
    whole = last.read_bytes()
    run(paths[:2], out, options)
    last.write_bytes(whole[:600])
    try:
        run(paths, out, options, Now(most))
    except InterruptedError:
        last.write_bytes(whole)
    run(paths, out, options)
    check(paths, out, options)


def test_other_partitions_make_all_anew(paths: list[str], tmp_path: Path) -> None:
    for by in (("date",), ()):
        options = Options(1_500, partition_by=by)
        run(paths, tmp_path / "out", options)
        check(paths, tmp_path / "out", options)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_reports_read_what_is_in_directories(paths: list[str], tmp_path: Path, scheme: str) -> None:
    by = ("series", "date", "cluster")
    run(paths, tmp_path / "one", Options())
    run(paths, tmp_path / "other", Options(partition_by=by))
    one, other = (find([f"{scheme}{tmp_path}/{name}"]) for name in ("one", "other"))
    assert (one[0].rows, one[0].connections) == (other[0].rows, other[0].connections)
    engines = [DuckEngine(found, Choice()) for found in (one, other)]
    query = "SELECT * FROM frames ORDER BY file, packet_offset, stream_offset"
    plain, dated = (engine.rows(query) for engine in engines)
    assert dated == [{**row, "date": day(row)} for row in plain]
    for engine in engines:
        engine.close()


class Kept:
    """A file in memory."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.rows = 0
        self.is_open = True

    def write(self, batch: Any) -> None:
        assert self.is_open
        self.batches.append(batch)

    def close(self) -> int:
        self.is_open = False
        return 1

    def discard(self) -> None:
        raise AssertionError


@given(st.integers(0, 2**32), st.integers(1, 120))
def test_many_days_need_few_open_files(seed: int, days: int) -> None:
    rng = random.Random(seed)
    files: dict[str, Kept] = {}
    most = 0

    def opened(path: str) -> Kept:
        nonlocal most
        assert path not in files
        files[path] = Kept()
        most = max(most, sum(file.is_open for file in files.values()))
        return files[path]

    written = Partitioned("it", ["date"], opened)
    every: list[int | None] = []
    for _ in range(4):
        times = [rng.choice([None, rng.randrange(-days, days) * DAY_NS]) for _ in range(200)]
        written.write(pa.record_batch({"time_ns": pa.array(times, pa.int64())}))
        every += times
    assert written.rows == len(every)
    assert written.close() == len(files)
    found = [
        (path, row) for path, file in files.items() for batch in file.batches for row in batch.to_pylist()
    ]
    assert all(path.startswith(place(row, ("date",)) + "/it") for path, row in found)
    assert sorted(repr(row["time_ns"]) for _, row in found) == sorted(map(repr, every))
    assert most <= 32


def test_names_of_directories_have_a_limit() -> None:
    one, other = (directory(["series"], [f"{'ü/' * 200}{name}"]) for name in "ab")
    assert one != other
    assert max(len(one.encode()), len(other.encode())) < 255
    assert directory(["series", "date"], ["a/b%", None]) == "series=a%2Fb%25/date=__HIVE_DEFAULT_PARTITION__"


def test_a_follower_keeps_to_the_directories(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "MAX_GROUP", 1)
    options, out = Options(partition_by=("date",)), tmp_path / "out"
    run(paths, out, options)
    (out / "progress" / "checkpoint").mkdir()
    with pytest.raises(CaptureError, match=r"the table is partitioned by date: go on with the same --part"):
        Store(str(out)).follow(Options())
    Store(str(out)).follow(options)
    Store(str(out)).discard("000002-00000", options)
    left = {path.name for path in out.rglob("*.parquet")}
    assert left == {"000000-00000.parquet", "000001-00000.parquet"}
