"""Tables with metadata of Iceberg: its reader finds the rows in the files, whatever was done before."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest
from pipeline.comparing import Row, ordered, stored
from pipeline.test_pipeline_delta import IN_DIRECTORIES, OPTIONS, changes_in, run
from pipeline.test_pipeline_delta import read as read_delta
from pipeline.test_pipeline_optimized import MIB, Dying, check
from pipeline.test_pipeline_rebuilt import watched
from pipeline.test_pipeline_run import parts, put

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from pyiceberg.table import StaticTable

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.upkeep.optimize import optimize
from pulsarctl_wire.pipeline.upkeep.repartition import repartition
from pulsarctl_wire.pipeline.upkeep.retention import delete
from pulsarctl_wire.table.schema import TABLES

slow = pytest.mark.slow


def table(out: Path, kind: str) -> StaticTable:
    return StaticTable.from_metadata(str(out / kind / "_iceberg"))


def read(out: Path, kind: str) -> list[Row]:
    """The rows that pyiceberg finds, in the order of our columns."""
    return ordered(list(map(plain, table(out, kind).scan().to_arrow().to_pylist())))


def plain(row: Row) -> Row:
    """A row without empty lists: pyiceberg has them for some that are null."""
    return {name: None if value == [] else value for name, value in row.items()}


def same(out: Path) -> None:
    for kind in TABLES:
        assert read(out, kind) == ordered(list(map(plain, stored(out, kind))))


def test_others_read_the_rows(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(2, 1)), tmp_path / "out"
    run(paths, out, OPTIONS, "iceberg")
    same(out)
    assert read(out, "frames")
    names = [field.name for field in table(out, "frames").schema().fields]
    assert names == TABLES["frames"].names
    assert [*(out / "frames").rglob("*.parquet")] == [*(out / "frames").glob("*.parquet")]


@slow
def test_readers_see_what_was_before_a_rebuild_or_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS, "iceberg")
    before = read(out, "frames")
    found, look = changes_in(out, read)
    watched(monkeypatch, look, exchanges=True)
    run(paths, out, Options(900, cluster="east"))
    assert found == [before, [{**row, "cluster": "east"} for row in before]]


@slow
@pytest.mark.parametrize("options", [OPTIONS, IN_DIRECTORIES])
def test_it_follows_what_is_done(tmp_path: Path, options: Options) -> None:
    files, out = parts(5), tmp_path / "out"
    paths = put(tmp_path, files)
    Path(paths[1]).write_bytes(files[1][:900])
    run(paths[:2], out, options)
    run(paths[:2], out, options, "iceberg")  # later
    same(out)
    Path(paths[1]).write_bytes(files[1])
    run(paths[:4], out, options)
    same(out)
    optimize(str(out), MIB)
    same(out)
    run(paths, out, options)
    same(out)
    check(paths, out)
    metadata = table(out, "frames").metadata_location
    optimize(str(out), MIB)
    version = table(out, "frames").metadata_location
    assert version != metadata
    optimize(str(out), MIB)
    assert table(out, "frames").metadata_location == version
    repartition(str(out), ("date", "tenant"))
    assert [field.name for field in table(out, "frames").spec().fields] == ["date", "tenant"]
    same(out)
    times = sorted(row["time_ns"] for row in read(out, "frames"))
    delete(str(out), times[len(times) // 2], exact=True)
    same(out)
    assert 0 < len(read(out, "frames")) < len(times)
    now = Options(options.split_size, partition_by=("date", "tenant"))
    run(paths, out, now, "delta")
    same(out)
    assert list(map(plain, read_delta(out, "frames"))) == read(out, "frames")
    run(paths, out, now, "parquet")
    assert not [*out.rglob("_iceberg"), *out.rglob("_delta_log")]


@slow
@pytest.mark.parametrize("left", range(0, 30, 5))
def test_merging_is_killed(tmp_path: Path, left: int) -> None:
    paths, out = put(tmp_path, parts(3, 1)), tmp_path / "out"
    run(paths, out, OPTIONS, "iceberg")
    expected = read(out, "frames")
    with mock.patch("pulsarctl_wire.pipeline.storage.store.filesystem", lambda path: (Dying(left), path)):
        try:
            optimize(str(out), MIB)
        except OSError:
            assert read(out, "frames") == expected
    optimize(str(out), MIB)
    assert read(out, "frames") == expected
    same(out)


@slow
def test_earlier_metadata_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.pipeline.storage.iceberg_table._KEPT", -1.0)
    monkeypatch.setattr("pulsarctl_wire.pipeline.storage.iceberg_table._MAX_SNAPSHOTS", 2)
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    for count in range(1, 5):
        run(paths[:count], out, OPTIONS, "iceberg")
        same(out)
    optimize(str(out), MIB)
    same(out)
    kinds = [path.suffix for path in (out / "frames" / "_iceberg" / "metadata").iterdir()]
    assert kinds.count(".json") == 1
    assert len(kinds) < 10


@slow
def test_damaged_metadata_are_said(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS, "iceberg")
    for name in ("*.avro", "*.metadata.json", "version-hint.text"):
        for path in (out / "frames" / "_iceberg" / "metadata").glob(name):
            path.write_bytes(b"\0" * 100)
        with pytest.raises(
            CaptureError, match=r"out: frames/_iceberg: .*; if it is deleted, it is made anew"
        ):
            run(paths, out, OPTIONS)
    shutil.rmtree(out / "frames" / "_iceberg")
    run(paths, out, OPTIONS)
    same(out)


@slow
def test_metadata_that_name_another_place_are_made_anew(tmp_path: Path) -> None:
    """So a table can be moved, and others cannot have files written or deleted elsewhere."""
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS, "iceberg")
    shutil.copytree(out, tmp_path / "other")
    shutil.rmtree(out)
    run(paths, tmp_path / "other", OPTIONS)
    assert not out.exists()
    same(tmp_path / "other")
