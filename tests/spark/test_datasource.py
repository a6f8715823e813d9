"""The data source's reader, as Spark's workers run it: damaged files, several paths, other directories."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from pipeline.comparing import Now, alone, ordered, run
from private_cache import cache as cache

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline import cache as kept
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files import splits
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.pipeline.upkeep import optimize

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from pulsarctl_wire.spark.datasource import Captures

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def rows(elsewhere: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[dict[str, Any]]:
    """The frames, read where Spark may read them: in another process, whose directory is another one."""
    source = Captures(options)
    reader = source.reader(source.schema())
    return ordered(list(chain(*read(reader, reader.partitions(), elsewhere, monkeypatch))))


def read(
    reader: Any, files: list[Any], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[dict[str, Any]]]:
    with monkeypatch.context() as context:
        context.chdir(elsewhere)
        for each in files:
            copy, part = pickle.loads(pickle.dumps((reader, each)))
            yield [row for batch in copy.read(part) for row in batch.to_pylist()]


def test_a_list_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAMPLES)
    names = ["python-simple.pcap", "errors.pcap"]
    found = rows(tmp_path, monkeypatch, paths=json.dumps([f"file://{SAMPLES}/{names[0]}", names[1]]))
    expected = alone([names[1], f"{SAMPLES}/{names[0]}"], Options(), by_time=True).frames
    names_only = [
        [{**row, "file": Path(row["file"]).name, "series": None} for row in some]
        for some in (found, expected)
    ]
    assert ordered(names_only[0]) == ordered(names_only[1])


def test_a_damaged_file_gives_its_rows_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [str(tmp_path / name) for name in ("errors.pcap", "python-simple.pcap")]
    for path in paths:
        Path(path).write_bytes((SAMPLES / Path(path).name).read_bytes())
    with open(paths[0], "r+b") as file:
        file.truncate(Path(paths[0]).stat().st_size - 20)
    (tmp_path / "words.pcap").write_bytes(b"no capture, but words " * 99)
    with caplog.at_level(logging.WARNING):
        found = rows(tmp_path, monkeypatch, path=f"{tmp_path}/*.pcap")
    outcome = alone(paths, Options(), by_time=True)
    assert found == outcome.frames
    problems = sorted(record.getMessage() for record in caplog.records)
    assert problems == [*outcome.problems, problems[-1]]
    assert problems[-1].startswith(f"{tmp_path}/words.pcap: no capture")


def test_files_that_are_no_captures_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dump-20231231").write_bytes((SAMPLES / "python-simple.pcap").read_bytes())
    (tmp_path / "notes.pcap").write_bytes(b"words")
    with caplog.at_level(logging.WARNING):
        assert rows(tmp_path, monkeypatch, path=str(tmp_path))
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path}: 1 file is not a capture: notes.pcap"
    ]


@pytest.mark.parametrize("table", ["frames", "gaps"])
def test_splits_have_the_rows_of_one_process(
    table: str, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimize, "MIN_MERGED", 10**9)
    monkeypatch.setattr(kept, "SPLIT", 200_000)
    paths = [str(capture), *map(str, sorted(SAMPLES.glob("[ms]*.pcap")))]
    options = {"paths": json.dumps(paths), "table": table, "payload": "true"}
    source = Captures(options)
    assert table == "gaps" or len(source.reader(source.schema()).partitions()) > 10
    assert rows(tmp_path, monkeypatch, **options) == getattr(
        alone(paths, Options(payload=True), by_time=True), table
    )


def test_some_columns_of_the_rows_of_a_time(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SPLIT", 200_000)
    monkeypatch.setattr(optimize, "MIN_MERGED", 10**9)
    expected = alone([str(capture)], Options(), by_time=True).frames
    times = sorted(row["time_ns"] for row in expected)
    since, until = times[len(times) // 3], times[len(times) // 2]
    whole = Captures({"path": str(capture)})
    some = Captures({"path": str(capture), "since": str(since), "until": str(until)})
    columns = ("topic", "time_ns", "command")
    reader = some.reader(StructType([some.schema()[name] for name in columns]))
    files = reader.partitions()
    assert 0 < len(files) < len(whole.reader(whole.schema()).partitions())
    found = list(chain(*read(reader, files, tmp_path, monkeypatch)))
    wanted = [row for row in expected if since <= row["time_ns"] < until]
    assert sorted(found, key=repr) == sorted(
        ({name: row[name] for name in columns} for row in wanted), key=repr
    )


@pytest.mark.parametrize("name", ["since", "until", "max_frame_size"])
def test_what_is_no_number_is_one_line(name: str) -> None:
    source = Captures({"path": "any", name: "soon"})
    with pytest.raises(CaptureError, match=f"^option {name}: soon is not a number$"):
        source.reader(source.schema())


@pytest.mark.parametrize(("name", "type_"), [("nonsense", "date"), ("time_ns", "timestamp")])
def test_a_column_that_there_is_not_is_one_line(name: str, type_: str) -> None:
    with pytest.raises(CaptureError, match=f"frames have no column {name} {type_}; "):
        Captures({"path": "any"}).reader(StructType().add(name, type_))


def test_a_table_that_was_deleted_is_one_line(tmp_path: Path) -> None:
    source = Captures({"path": str(SAMPLES / "errors.pcap")})
    reader = source.reader(source.schema())
    (file,) = reader.partitions()
    Path(file.path).unlink()
    with pytest.raises(CaptureError, match=rf"^{file.path}: .*(No such file|not exist)"):
        list(reader.read(file))
    kept.clear()


# -- streams


def test_a_stream_has_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table"
    paths = sorted(map(str, SAMPLES.glob("[ms]*.pcap")))
    run(paths, table, Options())
    (table / "progress" / "checkpoint").mkdir()  # as if it followed a directory
    (table / "manifest.json").rename(tmp_path / "manifest.json")  # and were not complete
    source = Captures({"path": str(table)})
    reader = source.streamReader(source.schema())
    first = reader.initialOffset()
    last = reader.latestOffset(first, ReadAllAvailable())
    assert last == {"files": len(paths), "complete": False}
    found: list[dict[str, Any]] = []
    for number in range(len(paths)):
        files = reader.partitions(first | {"files": number}, first | {"files": number + 1})
        some = list(chain(*read(reader, files, tmp_path, monkeypatch)))
        assert {row["file"] for row in some} <= {paths[number]}
        found += some
    assert reader.latestOffset(last, ReadAllAvailable()) == last
    (tmp_path / "manifest.json").rename(table / "manifest.json")
    end = reader.latestOffset(last, ReadAllAvailable())
    assert end == {"files": len(paths), "complete": True}
    found += chain(*read(reader, reader.partitions(last, end), tmp_path, monkeypatch))
    assert ordered(found) == alone(paths, Options()).frames
    Store(str(table)).follow(Options())  # as whoever goes on with it does
    with pytest.raises(CaptureError, match="begin a new query"):
        reader.latestOffset(end, ReadAllAvailable())


def test_a_stream_has_each_row_once_while_files_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "MAX_GROUP", 1)
    table = tmp_path / "table"
    paths = sorted(map(str, SAMPLES.glob("[j-s]*.pcap")))
    run(paths, table, Options())
    (table / "progress" / "checkpoint").mkdir()  # as if it followed a directory
    source = Captures({"path": str(table)})
    reader = source.streamReader(source.schema())
    offsets = [reader.initialOffset() | {"files": number} for number in (0, 3, 4, len(paths))]
    offsets.append(reader.latestOffset(offsets[0], ReadAllAvailable()))
    parts = [reader.partitions(*each) for each in pairwise(offsets)]
    found = [row for each in read(reader, parts[1], tmp_path, monkeypatch) for row in each]
    optimize.merge_small(Store(str(table)), Pool(Now()))
    assert len([*table.glob("frames/*")]) == 2 < len(paths)
    for each in (parts[0], *parts[2:]):  # their files are gone
        found += chain(*read(reader, each, tmp_path, monkeypatch))
    assert ordered(found) == alone(paths, Options()).frames
    again = [reader.partitions(*each) for each in pairwise(offsets)]
    assert any(each.is_cut for each in again[0])
    for before, after in zip(parts, again, strict=True):
        one, other = ([*chain(*read(reader, each, tmp_path, monkeypatch))] for each in (before, after))
        assert ordered(one) == ordered(other)
    assert {row["file"] for row in other} <= {*paths}


def test_a_stream_of_no_such_table_is_one_line(tmp_path: Path) -> None:
    run([str(SAMPLES / "errors.pcap")], tmp_path, Options())
    source = Captures({"path": str(tmp_path)})
    with pytest.raises(CaptureError, match="follows a directory: pwire analyze --follow makes one"):
        source.streamReader(source.schema())
