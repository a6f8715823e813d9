"""Tables whose old rows are deleted, or whose directories are changed: later runs go on with them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline.comparing import Row, alone, run, stored
from pipeline.test_pipeline_optimized import MIB, Dying, read
from pipeline.test_pipeline_partitioned import DAY_NS, check
from pipeline.test_pipeline_partitioned import paths as paths
from pipeline.test_pipeline_run import leftovers, parts, put
from pwire_run import pwire
from segments import START_NS

from pulsarctl_wire.cli.options import parse_time
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import inputs_of
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.upkeep.optimize import optimize
from pulsarctl_wire.pipeline.upkeep.repartition import repartition
from pulsarctl_wire.pipeline.upkeep.retention import delete
from pulsarctl_wire.table.schema import TABLES

OPTIONS = Options(split_size=900)
BORDER = START_NS + DAY_NS + DAY_NS // 3


def rows(out: Path, kind: str) -> list[Row]:
    return [{name: row[name] for name in TABLES[kind].names} for row in stored(out, kind)]


def age(row: Row) -> int | None:
    time: int | None = row.get("last_ns") or row["time_ns"]
    return time


def younger(out: Path, kind: str, before: int) -> list[Row]:
    return [row for row in rows(out, kind) if (time := age(row)) is None or time >= before]


def every(out: Path) -> dict[str, list[Row]]:
    return {kind: rows(out, kind) for kind in TABLES}


def found(out: Path) -> list[Row]:
    """The frames that whoever opens the table finds."""
    return [{name: row[name] for name in TABLES["frames"].names} for row in read(out)]


# ---- Retention ----


@pytest.mark.parametrize("by", [(), ("date",)])
@pytest.mark.parametrize("merged", [False, True])
def test_old_rows_are_deleted_and_stay_deleted(
    paths: list[str], tmp_path: Path, by: tuple[str, ...], merged: bool
) -> None:
    options, out = Options(900, partition_by=by), tmp_path / "out"
    run(paths[:3], out, options)
    if merged:
        optimize(str(out), MIB)
    before = every(out)
    older = {kind: [row for row in before[kind] if row not in younger(out, kind, BORDER)] for kind in TABLES}
    assert older["frames"]
    assert len(older["frames"]) < len(before["frames"])

    planned = delete(str(out), BORDER, exact=True, dry_run=True)
    assert every(out) == before
    kept = {kind: younger(out, kind, BORDER) for kind in TABLES}
    coarse = delete(str(out), BORDER)
    assert coarse.rows + coarse.left == planned.rows == sum(map(len, older.values()))
    exact = delete(str(out), BORDER, exact=True)
    assert coarse.rows + exact.rows == planned.rows
    assert (coarse.rewritten, exact.rewritten) == (0, planned.rewritten)
    assert every(out) == kept
    assert delete(str(out), BORDER, exact=True).rows == 0

    again = Run(find_inputs(paths), str(out), options=options)
    assert again.done_count == 3
    run(paths, out, options)
    more = {kind: alone(paths, options).tables[kind] for kind in TABLES}
    young = [row for row in more["frames"] if row["time_ns"] >= BORDER or row["file"] == paths[3]]
    assert rows(out, "frames") == young
    assert not leftovers(out)


def test_inputs_that_are_gone_are_not_missed(paths: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(paths[:3], out, OPTIONS)
    for path in paths[:2]:
        Path(path).unlink()
    delete(str(out), BORDER, exact=True)
    kept = rows(out, "frames")
    run(paths[2:], out, OPTIONS)
    assert {row["file"] for row in rows(out, "frames")} == {*[row["file"] for row in kept], paths[3]}


def test_empty_directories_are_deleted(paths: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(paths, out, Options(partition_by=("date", "series")))
    delete(str(out), START_NS + 100 * DAY_NS)
    none = "__HIVE_DEFAULT_PARTITION__"  # of a file without rows
    assert {path.name for path in (out / "frames").iterdir()} == {f"date={none}"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of captures of one connection."""
    directory = tmp_path_factory.mktemp("small")
    run(put(directory, parts(3, 1)), directory / "out", OPTIONS)
    return directory / "out"


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 40), st.sampled_from(["delete", "repartition"]))
@example(left=33, what="repartition")  # when it writes a file without rows
def test_it_is_killed_at_any_time(small: Path, left: int, what: str) -> None:
    """Readers find the rows of before or those of after, and the next one completes or undoes it."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(shutil.copytree(small, Path(directory, "out")))
        before = found(out)
        border = sorted(row["time_ns"] for row in before)[len(before) // 2]
        after = [row for row in before if row["time_ns"] >= border] if what == "delete" else before

        def change() -> None:
            if what == "delete":
                delete(str(out), border, exact=True)
            else:
                repartition(str(out), ("date", "tenant"))

        dying = Dying(left)
        with (
            mock.patch("pulsarctl_wire.pipeline.storage.store.filesystem", lambda path: (dying, path)),
            mock.patch("pulsarctl_wire.pipeline.storage.finish.filesystem", lambda path: (dying, path)),
            suppress(OSError),
        ):
            change()
        assert found(out) in (before, after)
        change()
        assert found(out) == after
        assert not [name for kind in TABLES for name in leftovers(out / kind)]
        assert not (out / "progress" / "merge").exists()


def test_the_command_says_what_is_deleted(paths: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(paths, out, OPTIONS)
    planned = pwire("table", "delete", out, "--before", str(BORDER // 10**9), "--dry-run")
    assert " would be deleted: " in planned.err
    assert "older rows stay in files with newer ones (--exact deletes them)" in planned.err
    done = pwire("table", "delete", out, "--before", "7d", "--exact")
    assert (done.code, rows(out, "frames")) == (0, [])
    for arguments, why in (
        ([], "table delete: missing option --before (pwire table --help)"),
        (["--before", "soon"], "soon: not a time (ISO 8601, seconds since 1970, -10m)"),
        (
            ["--before", "7d", "--size", "1"],
            "table delete: takes one TABLE, --before and --dry-run and --exact; ./delete",
        ),
    ):
        refused = pwire("table", "delete", out, *arguments)
        assert refused.code == 2
        assert refused.complaints[0].startswith(f"pwire: {why}")


# ---- Directories ----


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((), ("date", "tenant")),
        (("date",), ("date", "hour", "cluster")),
        (("series", "date"), ()),
        (("hour",), ("tenant",)),
    ],
)
def test_directories_change_without_decoding(
    paths: list[str], tmp_path: Path, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    run(paths[:3], out, Options(900, partition_by=one))
    optimize(str(out), MIB)
    repartition(str(out), other)
    check(paths[:3], out, Options(900, partition_by=other))
    again = Run(find_inputs(paths), str(out), options=Options(900, partition_by=other))
    assert again.done_count == 3
    run(paths, out, Options(900, partition_by=other))
    check(paths, out, Options(900, partition_by=other))


@pytest.mark.parametrize("one", [("tenant",), ("hour", "tenant"), ("date",)])
def test_files_that_were_merged_apart_are_merged(
    paths: list[str], tmp_path: Path, one: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    run(paths, out, Options(900, partition_by=one))
    optimize(str(out), MIB)
    repartition(str(out), ())
    optimize(str(out), MIB)
    check(paths, out, OPTIONS)
    for file in (out / "frames").glob("0*.parquet"):
        inputs = {paths.index(row["file"]) for row in pq.read_table(file, columns=["file"]).to_pylist()}
        assert inputs <= {*inputs_of(file.name.removesuffix(".parquet"))}


def test_rows_are_deleted_before_and_after(paths: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(paths, out, Options(900, partition_by=("hour",)))
    optimize(str(out), MIB)
    delete(str(out), BORDER, exact=True)
    repartition(str(out), ())
    later = BORDER + DAY_NS // 3
    kept = {kind: younger(out, kind, later) for kind in TABLES}
    assert len(kept["frames"]) < len(rows(out, "frames"))
    delete(str(out), later, exact=True)
    assert every(out) == kept


def test_later_runs_keep_to_the_directories(tmp_path: Path, paths: list[str]) -> None:
    out = tmp_path / "out"
    assert pwire("analyze", *paths[:2], "--out", out, "--partition-by", "date").code == 0
    changed = pwire("table", "optimize", out, "--partition-by", "tenant,hour")
    assert changed.code == 0, changed.err
    made = pwire("analyze", *paths, "--out", out)
    assert "4 files" in made.err
    assert ", 2 of them before" in made.err
    assert {path.name.partition("=")[0] for path in (out / "frames").iterdir()} == {"tenant"}
    assert {path.name.partition("=")[0] for path in (out / "gaps").iterdir()} <= {"hour"}
    pwire("table", "optimize", out, "--partition-by", "none")
    assert all(path.is_file() for path in (out / "frames").iterdir())
    refused = pwire("table", "optimize", out, "--partition-by", "month")
    assert refused.complaints[0].startswith("pwire: --partition-by month: use date, hour, series")
    unserved = pwire("analyze", *paths, "--out", out, "--metrics", ":0")
    assert (unserved.code, unserved.complaints) == (2, ["pwire: analyze: --metrics needs --follow"])


def test_what_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.touch()
    for path in (str(tmp_path), str(file)):
        for use in (lambda: delete(path, 0), lambda: repartition(path, ("date",))):  # noqa: B023
            with pytest.raises(CaptureError, match="holds no table that pwire analyze can go on with"):
                use()


def test_merged_files_that_come_into_one_directory(tmp_path: Path) -> None:
    """Their names overlap, so that a new file could have the name of one that it replaces."""
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    run(paths, out, Options(900, partition_by=("tenant",)))
    before = every(out)
    for by in (("date",), ("tenant",), ()):
        optimize(str(out), MIB)
        repartition(str(out), by)
        assert every(out) == before
    optimize(str(out), MIB)
    assert every(out) == before
    times = sorted(time for row in before["frames"] if (time := age(row)))
    for time in times[:: len(times) // 4]:
        delete(str(out), time, exact=True)
        assert rows(out, "frames") == [row for row in before["frames"] if (age(row) or time) >= time]


def test_a_split_with_several_files_in_a_directory(
    tmp_path: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has so many directories that some files were closed, and others begun there."""
    monkeypatch.setattr("pulsarctl_wire.pipeline.storage.partitions.MAX_OPEN", 1)
    out = tmp_path / "out"
    run(paths, out, Options(partition_by=("hour",)))
    before = every(out)
    for by in (("date",), ("tenant",)):
        repartition(str(out), by)
        assert every(out) == before


def test_times_are_exact() -> None:
    assert parse_time("1700000009.073456") == 1_700_000_009_073_456_000
    assert parse_time("1700000009") == 1_700_000_009_000_000_000
    assert parse_time("2023-11-14T22:13:29.073456Z") == 1_700_000_009_073_456_000
