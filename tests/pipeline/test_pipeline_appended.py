"""Inputs that are gone: their rows stay and new ones are appended, or it is refused and nothing changes."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.comparing import Now, Row, alone, run, stored
from pipeline.test_pipeline_run import OPTIONS, parts, put, same, tables
from pipeline.test_pipeline_series import put as put_hosts
from pipeline.test_pipeline_series import traffic

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import Side
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.table.schema import TABLES

BY_ORDER = ("connection", "reported_ns", "reported_place", "last_ns", "last_time")
"""Columns that depend on the order in which files are read."""


def everything(out: Path) -> dict[str, list[Row]]:
    return {name: stored(out, name) for name in TABLES}


def without(rows: list[Row], *names: str) -> list[str]:
    """Rows without some of their columns."""
    return sorted(repr({name: value for name, value in row.items() if name not in names}) for row in rows)


def unnamed(rows: list[Row]) -> list[str]:
    return without(rows, "file", "series")


@pytest.mark.parametrize("gone", [[0], [1], [0, 1, 2]])
def test_rows_of_inputs_that_are_gone_stay(tmp_path: Path, gone: list[int]) -> None:
    paths, out = put(tmp_path, parts(6)), tmp_path / "out"
    expected = alone(paths, OPTIONS)
    run(paths[:3], out, OPTIONS)
    for number in gone:
        os.remove(paths[number])
    left = [path for path in paths if os.path.exists(path)]
    for count in (len(left) - 1, len(left), len(left)):
        again = Run(find_inputs(left[:count]), str(out), options=OPTIONS)
        totals = run(left[:count], out, OPTIONS)
    assert again.done_count == len(again.inputs) == 6
    assert everything(out) == expected.tables
    assert (totals.packets, totals.connections) == (expected.packets, len(expected.tables["connections"]))
    run(left, out, OPTIONS, mirror=True)
    assert same(left, out)


def test_mirror_has_only_what_is_there(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    run(paths[:2], out, OPTIONS, mirror=True)
    assert Run(find_inputs(paths), str(out), options=OPTIONS, mirror=True).done_count == 2
    run(paths, out, OPTIONS, mirror=True)
    assert same(paths, out)
    run(paths[1:], out, OPTIONS, mirror=True)
    assert same(paths[1:], out)


@pytest.mark.parametrize("is_packed", [False, True])
def test_rotation_that_renames_and_compresses(tmp_path: Path, is_packed: bool) -> None:
    """logrotate: cap.1 becomes cap.2, cap.2 is deleted, and the newest file has grown before that."""
    files, out = parts(5), tmp_path / "out"
    every = put(tmp_path, files)
    expected = alone(every, OPTIONS)
    for path in every:
        os.remove(path)
    ending = ".gz" * is_packed
    newest, older, oldest = (tmp_path / name for name in ("cap", f"cap.1{ending}", f"cap.2{ending}"))
    before: list[Path] = []
    for data in files:
        newest.write_bytes(data[:1_000])
        run([*map(str, before), str(newest)], out, OPTIONS)
        newest.write_bytes(data)
        if older.exists():
            older.rename(oldest)
        if is_packed:
            older.write_bytes(gzip.compress(data))
            newest.unlink()
        else:
            newest.rename(older)
        before = [each for each in (oldest, older) if each.exists()]
    run([*map(str, before)], out, OPTIONS)
    found = everything(out)
    assert unnamed(found["frames"]) == unnamed(expected.frames)
    assert unnamed(found["gaps"]) == unnamed(expected.gaps)
    assert unnamed(found["connections"]) == unnamed(expected.tables["connections"])


def test_a_name_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    """tcpdump -W: the oldest file is overwritten by the newest one."""
    files, out = parts(5), tmp_path / "out"
    every = put(tmp_path, files)
    expected = alone(every, OPTIONS)
    for path in every[3:]:
        os.remove(path)
    run(every[:3], out, OPTIONS)
    for number, data in enumerate(files[3:]):
        Path(every[number]).write_bytes(data)
    run([every[2], every[0], every[1]], out, OPTIONS)
    found = everything(out)
    assert unnamed(found["frames"]) == unnamed(expected.frames)
    assert unnamed(found["gaps"]) == unnamed(expected.gaps)
    assert unnamed(found["connections"]) == unnamed(expected.tables["connections"])


@pytest.mark.parametrize("change", ["cut", "options"])
def test_what_would_lose_rows_is_refused(tmp_path: Path, change: str) -> None:
    files, out = parts(5), tmp_path / "out"
    paths = put(tmp_path, files)
    chosen, options = [paths[0], *paths[2:4]], OPTIONS
    run(chosen, out, OPTIONS)
    before = tables(out)
    match change:
        case "cut":
            Path(paths[0]).write_bytes(files[0][:-100])
        case _:
            chosen, options = paths[2:], Options(split_size=900)
    with pytest.raises(
        CaptureError, match=r"0\.pcap is gone or has changed, .*; --rebuild makes the table without its rows$"
    ):
        run(chosen, out, options)
    assert tables(out) == before
    run(chosen, out, options, mirror=True)
    assert same(chosen, out, options)


def test_an_inserted_file_makes_all_anew_if_nothing_is_gone(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    run([paths[0], *paths[2:]], out, OPTIONS)
    run(paths, out, OPTIONS)
    assert same(paths, out)


@pytest.mark.parametrize("most", range(3, 60, 8))
def test_one_that_is_gone_when_half_of_it_is_read(tmp_path: Path, most: int) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths[:1], out, OPTIONS)
    first = everything(out)["frames"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
        try:
            run(paths[:2], out, OPTIONS, Now(most))
        except InterruptedError:
            os.remove(paths[1])
            totals = run([paths[0], paths[2]], out, OPTIONS)
        else:
            return
    frames = everything(out)["frames"]
    assert {repr(row) for row in first[:-3]} <= {repr(row) for row in frames}
    assert len({(row["connection"], row["to_broker"], row["stream_offset"]) for row in frames}) == len(frames)
    has_some = any(row["file"] == paths[1] for row in frames)
    assert [name for name, _, _ in totals.problems] == [paths[1]] * (has_some and len(totals.problems))
    assert {row["file"] for row in frames} >= {paths[0], paths[2]}


@settings(max_examples=5)
@given(st.integers(0, 2**32), st.data())
def test_hosts_whose_files_overlap_and_are_gone(seed: int, data: st.DataObject) -> None:
    """Either the table has every row once, or it is left as it was.

    What overlapped with a file that is gone comes after it, so connections may have other numbers, and what
    waited for a segment is reported at another time.
    """
    import tempfile

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        out = Path(directory, "out")
        paths = put_hosts(Path(directory), traffic(rng, 4, 0.0), rng)
        expected = alone(paths, OPTIONS, by_time=True)
        order = [each.path for each in find_inputs(paths)]
        done = data.draw(st.integers(1, len(order)))
        run(find_inputs(order[:done]), out, OPTIONS)
        before = everything(out)
        gone = data.draw(st.sets(st.sampled_from(order[:done]), max_size=min(done, len(order) - 1)))
        left = find_inputs([path for path in order if path not in gone])
        try:
            run(left, out, OPTIONS)
        except CaptureError as error:
            said = str(error)
        else:
            said = ""
        if said:
            assert said.endswith("; --rebuild makes the table without its rows")
            assert gone
            assert everything(out) == before
        else:
            for name, rows in everything(out).items():
                assert without(rows, *BY_ORDER) == without(expected.tables[name], *BY_ORDER)


@pytest.mark.parametrize(("file", "part", "side"), [(9, 0, 0), (0, 3, 0), (2, 0, 9)])
def test_progress_that_others_made_up(tmp_path: Path, file: int, part: int, side: int) -> None:
    """It names inputs that it does not have: all is made anew."""
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths[:2], out, OPTIONS)
    store = Store(str(out))
    progress = store.load_saved()
    assert progress is not None
    made_up = Side(side, paths[0], paths[0], 0, 0, None, None)
    progress.inputs = [] if part == 3 else [each._replace(sides=(made_up,)) for each in progress.inputs]
    progress.file, progress.part = file, part
    store.save(progress)
    store.save(progress, is_before_last=True)
    run(paths, out, OPTIONS)
    assert same(paths, out)
