"""Tables with logs of Delta Lake: its reader finds the rows in the files, whatever was done before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline.comparing import Now, Row, alone, ordered, stored
from pipeline.test_pipeline_optimized import MIB, Dying, check
from pipeline.test_pipeline_rebuilt import watched
from pipeline.test_pipeline_run import parts, put

pytest.importorskip("deltalake", reason="deltalake is not installed")

import deltalake

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.filesystems import delete_directory
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage import delta
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.pipeline.upkeep.optimize import optimize
from pulsarctl_wire.table.schema import TABLES

pytestmark = pytest.mark.slow

OPTIONS = Options(split_size=900)
IN_DIRECTORIES = Options(split_size=900, partition_by=("series", "date", "cluster"))


def run(
    paths: list[str],
    out: Path,
    options: Options,
    format: str | None = None,
    most: int = 10**9,
    *,
    mirror: bool = False,
) -> None:
    Run(find_inputs(paths), str(out), options=options, format=format, mirror=mirror).run(Pool(Now(most)))


def read(out: Path, kind: str) -> list[Row]:
    """The rows that Delta Lake finds, in the order of our columns."""
    table = deltalake.DeltaTable(str(out / kind)).to_pyarrow_table()
    return ordered(table.to_pylist())


def changes_in(
    out: Path, read: Callable[[Path, str], list[Row]]
) -> tuple[list[list[Row]], Callable[[], None]]:
    """The rows of frames that a reader finds, one after the other, and what has it look again.

    What it finds depends on the files of frames alone, so it reads them only if there are others.
    """
    found: list[list[Row]] = []
    files: set[tuple[Path, int, int]] = set()

    def look() -> None:
        nonlocal files
        stats = [(path, path.stat()) for path in (out / "frames").rglob("*")]
        now = {(path, stat.st_ino, stat.st_mtime_ns) for path, stat in stats}
        if now != files:
            files, rows = now, read(out, "frames")
            if rows not in found[-1:]:
                found.append(rows)

    return found, look


def same(out: Path) -> None:
    for kind in ("frames", "gaps"):
        assert read(out, kind) == stored(out, kind)


@pytest.mark.parametrize("options", [OPTIONS, IN_DIRECTORIES])
def test_others_read_the_rows(tmp_path: Path, options: Options) -> None:
    files, out = parts(5), tmp_path / "out"
    paths = put(tmp_path, files)
    Path(paths[1]).write_bytes(files[1][:900])
    run(paths[:2], out, options, "delta")
    same(out)
    assert read(out, "frames")
    Path(paths[1]).write_bytes(files[1])
    run(paths[:4], out, options)  # it stays a table of Delta Lake
    same(out)
    optimize(str(out), MIB)
    same(out)
    assert len(deltalake.DeltaTable(str(out / "frames")).file_uris()) == len(
        [*out.rglob("frames/**/0*-0*.parquet")]
    )
    run(paths, out, options)
    same(out)
    check(paths, out)
    for _ in range(2):
        before = deltalake.DeltaTable(str(out / "frames")).version()
        optimize(str(out), MIB)
    assert deltalake.DeltaTable(str(out / "frames")).version() == before
    run(paths[1:], out, options, mirror=True)
    assert read(out, "frames") == rebuilt(out)
    run(paths[1:], out, options, "parquet")
    assert not [*out.rglob("_delta_log")]
    assert rebuilt(out) == stored(out, "frames")


def rebuilt(out: Path) -> list[Row]:
    """The rows that our own readers find."""
    (found,) = find([str(out)])
    return ordered([row for path in found.files["frames"].paths for row in pq.read_table(path).to_pylist()])


@pytest.mark.parametrize("schema", ["the same columns", "others"])
def test_a_rebuild_is_one_transaction_and_what_was_before_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str
) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    labelled = Options(900, cluster="east")
    run(paths, out, OPTIONS, "delta")
    if schema == "others":
        folder = str(out / "frames")
        delete_directory(f"{folder}/_delta_log")
        every = [each for each in Store(str(out)).files() if "/frames/" in each.path]
        delta.commit(folder, TABLES["frames"].append(pa.field("more", pa.int64())), (), every)
    before, version = read(out, "frames"), deltalake.DeltaTable(str(out / "frames")).version()
    found, look = changes_in(out, read)
    watched(monkeypatch, look, exchanges=True)
    run(paths, out, labelled)
    after = read(out, "frames")
    look()
    assert found == [before, after]
    assert after == rebuilt(out)
    table = deltalake.DeltaTable(str(out / "frames"))
    assert table.version() == version + 1
    table.load_as_version(version)
    assert ordered(table.to_pyarrow_table().to_pylist()) == before
    run(paths, out, OPTIONS)
    assert read(out, "frames") == rebuilt(out)
    assert len([*(out / "frames").glob("*.g3.parquet")]) == len([*(out / "frames").glob("*.g2.parquet")])
    assert not [*(out / "frames").glob("*-?????.parquet")]  # only the last version before is kept


@pytest.mark.parametrize("most", [2, 6, 10])
def test_one_that_broke_off(tmp_path: Path, most: int) -> None:
    """What the log names is there at any time, and after the next run it is everything."""
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    run(paths[:2], out, IN_DIRECTORIES, "delta")
    before = alone(paths[:1], OPTIONS).frames[:-3]
    every = mock.patch("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
    with every, pytest.raises(InterruptedError):
        run(paths, out, IN_DIRECTORIES, most=most)
    found = {repr({**row, "date": None}) for row in read(out, "frames")}
    assert {repr({**row, "date": None}) for row in before} <= found
    run(paths, out, IN_DIRECTORIES)
    same(out)
    check(paths, out)


@pytest.mark.parametrize("left", range(0, 30, 5))
def test_merging_is_killed(tmp_path: Path, left: int) -> None:
    paths, out = put(tmp_path, parts(3, 1)), tmp_path / "out"
    run(paths, out, OPTIONS, "delta")
    expected = stored(out, "frames")
    with mock.patch("pulsarctl_wire.pipeline.storage.store.filesystem", lambda path: (Dying(left), path)):
        try:
            optimize(str(out), MIB)
        except OSError:
            assert read(out, "frames") == expected
    optimize(str(out), MIB)
    assert read(out, "frames") == expected
    same(out)


def test_a_table_becomes_one_of_delta_lake_later(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths, out, OPTIONS)
    again = Run(find_inputs(paths), str(out), options=OPTIONS, format="delta")
    assert again.done_count == 3
    again.run(Pool(Now()))
    same(out)
    run(paths, out, IN_DIRECTORIES)
    assert read(out, "frames") == rebuilt(out)
    assert deltalake.DeltaTable(str(out / "frames")).metadata().partition_columns == [
        "series",
        "date",
        "cluster",
    ]


def test_a_log_knows_what_can_be_skipped(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths, out, OPTIONS, "delta")
    about = deltalake.DeltaTable(str(out / "frames")).get_add_actions(flatten=True)
    columns = {name: about.column(name).to_pylist() for name in about.schema.names}
    for number, name in enumerate(columns["path"]):
        rows = pq.read_table(out / "frames" / name).to_pylist()
        assert columns["num_records"][number] == len(rows)
        for column in ("time_ns", "connection"):
            values = [row[column] for row in rows]
            assert (columns[f"min.{column}"][number], columns[f"max.{column}"][number]) == (
                min(values),
                max(values),
            )


def test_a_damaged_log_is_said(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS, "delta")
    for path in (out / "frames" / "_delta_log").iterdir():
        path.write_bytes(b"\0" * 100)
    with pytest.raises(CaptureError, match=r"out: frames/_delta_log: .*; if it is deleted, it is made anew"):
        run(paths, out, OPTIONS)
    shutil.rmtree(out / "frames" / "_delta_log")
    run(paths, out, OPTIONS)
    same(out)
