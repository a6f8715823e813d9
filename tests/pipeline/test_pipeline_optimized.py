"""Tables with merged files: the same rows, whenever it is killed, and runs that go on with them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.comparing import Now, Row, alone, ordered, run, stored
from pipeline.test_pipeline_run import leftovers, parts, put
from pyarrow.fs import LocalFileSystem

from pulsarctl_wire.data.duck import DuckEngine
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.pipeline.upkeep.optimize import optimize
from pulsarctl_wire.reports.sql import Choice

MIB = 1024 * 1024
OPTIONS = Options(split_size=900)
IN_DIRECTORIES = Options(split_size=900, partition_by=("series", "date"))


def files(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.glob("[fg]*/**/*.parquet"))


def read(out: Path) -> list[Row]:
    """The rows of frames that whoever opens the table finds, without `date`."""
    engine = DuckEngine(find([str(out)]), Choice())
    rows = engine.rows("SELECT * FROM frames")
    engine.close()
    return ordered([{name: value for name, value in row.items() if name != "date"} for row in rows])


def check(paths: list[str], out: Path) -> None:
    """Whether the table has the rows of one process, each once."""
    expected = alone(paths, OPTIONS)
    for kind in ("frames", "gaps"):
        rows = [{name: row[name] for name in row if name != "date"} for row in stored(out, kind)]
        assert rows == getattr(expected, kind)
    assert not [name for name in leftovers(out) if not name.startswith("merge.")]
    assert not (out / "progress" / "merge").exists()


@pytest.mark.parametrize("options", [OPTIONS, IN_DIRECTORIES])
def test_rows_and_their_order_stay(tmp_path: Path, options: Options) -> None:
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    run(paths, out, options)
    before = [row for file in files(out) for row in pq.read_table(out / file, partitioning=None).to_pylist()]
    many, every = files(out), [*out.rglob("*.parquet")]
    counted = optimize(str(out), MIB)
    few = files(out)
    assert [each.files for each in counted] == [len(every), len([*out.rglob("*.parquet")])]
    assert [each.size > 0 for each in counted] == [True, True]
    assert len(few) < len(many) / 3
    # Files of the last input, which may grow, and those after all inputs are apart.
    assert {Path(file).name for file in few if "frames" in file} <= {
        f"000000-00000..{max(Path(file).stem for file in many if Path(file).name < '000004')}.parquet",
        f"000004-00000..{max(Path(file).stem for file in many if Path(file).name < 'e')}.parquet",
        "end.parquet",
    }
    rows = [row for file in few for row in pq.read_table(out / file, partitioning=None).to_pylist()]
    assert rows == before
    optimize(str(out), MIB)
    assert files(out) == few
    check(paths, out)


def test_files_have_the_size_that_is_asked_for(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(9, 3)), tmp_path / "out"
    run(paths, out, OPTIONS)
    before = {path.name: path.stat().st_size for path in (out / "frames").iterdir()}
    size = 4 * sum(before.values()) // len(before)
    optimize(str(out), size)
    after = {path.name: path.stat().st_size for path in (out / "frames").iterdir()}
    assert all(size_now <= size for size_now in after.values())
    assert len(before) / 5 < len(after) < len(before) / 2
    assert {name: size for name, size in after.items() if ".." not in name}.items() <= before.items()
    check(paths, out)


def test_few_rows_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    run(paths, out, OPTIONS)
    monkeypatch.setattr("pulsarctl_wire.table.parquet.GROUP_ROWS", 20)
    most = max(pq.read_metadata(out / file).num_rows for file in files(out))
    optimize(str(out), MIB)
    (merged,) = (out / "frames").glob("000000*")
    about = pq.read_metadata(merged)
    rows = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    assert len(rows) > 2
    assert 20 <= min(rows[:-1]) <= max(rows) < 20 + most
    check(paths, out)


@pytest.mark.parametrize("options", [OPTIONS, IN_DIRECTORIES])
def test_runs_go_on_with_it(tmp_path: Path, options: Options) -> None:
    files_, out = parts(6), tmp_path / "out"
    paths = put(tmp_path, files_)
    for count in (1, 3, 4, 6):
        Path(paths[count - 1]).write_bytes(files_[count - 1][:1_500])
        run(paths[:count], out, options)
        optimize(str(out), MIB)
        check(paths[:count], out)
        Path(paths[count - 1]).write_bytes(files_[count - 1])
    with pytest.raises(InterruptedError):
        run(paths, out, options, Now(4))
    optimize(str(out), MIB)
    run(paths, out, options)
    check(paths, out)
    run(paths[1:], out, options, mirror=True)
    assert stored(out, "frames")[0]["file"] == paths[1]


class Dying:
    """A filesystem of a process that is killed when it changes something once too often."""

    def __init__(self, left: int) -> None:
        self._system = LocalFileSystem()
        self._left = left

    def __getattr__(self, name: str) -> Any:
        if name in ("open_output_stream", "move", "delete_file"):
            self._left -= 1
        if self._left < 0:
            raise InterruptedError(errno.EINTR, "the machine went away")
        return getattr(self._system, name)


@pytest.fixture(scope="module", params=[OPTIONS, IN_DIRECTORIES])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Captures, and a table of all but the last one."""
    directory = tmp_path_factory.mktemp("made")
    paths = put(directory, parts(4, 1))
    run(paths[:3], directory / "out", request.param)
    return paths, directory / "out"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Captures, and a table of them."""
    directory = tmp_path_factory.mktemp("small")
    paths = put(directory, parts(2))
    run(paths, directory / "out", OPTIONS)
    return paths, directory / "out"


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 25), st.integers(0, 25), st.sampled_from([10_000, MIB]), st.booleans())
def test_it_is_killed_at_any_time(
    made: tuple[list[str], Path], first: int, second: int, size: int, goes_on: bool
) -> None:
    paths, table = made
    options = IN_DIRECTORIES if [*table.glob("frames/*/*")] else OPTIONS
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        out = Path(shutil.copytree(table, Path(directory, "out")))
        expected = alone(paths[:3], OPTIONS).frames
        for left in (first, second):
            with (
                mock.patch(
                    "pulsarctl_wire.pipeline.storage.store.filesystem",
                    lambda path, left=left: (Dying(left), path),
                ),
                suppress(OSError),
            ):
                optimize(str(out), size)
            assert read(out) == expected
            assert find([str(out / "frames")])[0].rows == len(expected)
        if goes_on:
            run(paths, out, options)
            check(paths, out)
            assert not leftovers(out)
        else:
            optimize(str(out), size)
            check(paths[:3], out)


@pytest.mark.parametrize(
    "journal",
    [
        b"",
        b"[]",
        b'[["frames/a.parquet"], ["frames/../../b.parquet"], null, true]',
        b'[["/etc/a.parquet"], [], null, false]',
        b'[["frames/a.parquet"], ["frames/a.parquet"], null, true]',
        b'[["progress/all"], [], null, false]',
        b'["frames/a.parquet", [], null, false]',
        b'[["frames/a.parquet"], [], ["rm"], true]',
        b"[[1], [2], null, true]",
    ],
)
def test_a_journal_that_others_wrote(small: tuple[list[str], Path], tmp_path: Path, journal: bytes) -> None:
    paths, out = small[0], Path(shutil.copytree(small[1], tmp_path / "out"))
    (out / "progress" / "merge").write_bytes(journal)
    before = files(out)
    for use in (lambda: optimize(str(out), MIB), lambda: find([str(out)]), lambda: run(paths, out, OPTIONS)):
        with pytest.raises(CaptureError, match="progress/merge is damaged, or was not written by pwire"):
            use()
    assert files(out) == before


def test_a_merge_counts_wherever_the_table_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS)
    one, *others = files(out)
    (out / "progress" / "merge").write_text(json.dumps([[one], others, None, True]))
    expected = [f"{out}/{one}"]
    assert find([str(out)])[0].files["frames"].paths == expected
    assert find([f"file://{out}/frames"])[0].files["frames"].paths == [f"file://{expected[0]}"]
    monkeypatch.chdir(out)
    assert find(["frames"])[0].files["frames"].paths == [one]


@pytest.mark.parametrize("damaged", [b"PAR1", b"", None])
def test_a_damaged_file_is_said(tmp_path: Path, damaged: bytes | None) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths, out, OPTIONS)
    path = out / "frames" / "000000-00001.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"x" * 200 + whole[200:] if damaged is None else damaged)
    before = files(out)
    with pytest.raises(CaptureError, match=r"/frames/\S+\.parquet: [^\n]*$"):
        optimize(str(out), MIB)
    assert files(out) == before
    path.write_bytes(whole)
    optimize(str(out), MIB)
    check(paths, out)


def test_what_is_no_table_of_analyze(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(CaptureError, match=f"{path}: holds no table that pwire analyze can go on with"):
            optimize(str(path), MIB)
