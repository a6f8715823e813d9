"""Tables that are made again: readers see the old rows or the new ones, whenever the rebuild is killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline.comparing import Now, Row, alone, ordered, rows_in, run, stored
from pipeline.test_pipeline_run import OPTIONS, leftovers, parts, put, same, tables
from pyarrow import fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage import generations
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table.schema import TABLES

LABELLED = Options(1_500, cluster="east")


def read(out: Path) -> list[Row]:
    """The rows of frames that reports read."""
    (found,) = find([str(out)])
    return ordered([row for path in found.files["frames"].paths for row in rows_in(path)])


class Killed(Exception):
    """Ends a run."""


class CountedSystem(fs.LocalFileSystem):  # type: ignore[misc]
    """The local file system; it calls `before` ahead of each change."""

    before: Callable[[], object] = staticmethod(lambda: None)

    def open_output_stream(self, *args: Any, **kwargs: Any) -> Any:
        self.before()
        return super().open_output_stream(*args, **kwargs)

    def move(self, *args: Any) -> None:
        self.before()
        super().move(*args)

    def delete_file(self, *args: Any) -> None:
        self.before()
        super().delete_file(*args)

    def delete_dir(self, *args: Any) -> None:
        self.before()
        super().delete_dir(*args)

    def create_dir(self, *args: Any, **kwargs: Any) -> None:
        self.before()
        super().create_dir(*args, **kwargs)


def watched(monkeypatch: pytest.MonkeyPatch, look: Callable[[], object], *, exchanges: bool) -> None:
    """Call `look` ahead of each change that the process itself makes in a table."""

    class System(CountedSystem):
        before = staticmethod(look)

    monkeypatch.setattr("pulsarctl_wire.pipeline.storage.store.filesystem", lambda path: (System(), path))
    exchange = generations._exchange

    def looked(*paths: str) -> bool:
        look()
        return exchanges and exchange(*paths)

    monkeypatch.setattr(generations, "_exchange", looked)


@pytest.mark.parametrize("exchanges", [True, False])
def test_readers_see_the_old_rows_or_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    run(paths, out, OPTIONS)
    old = read(out)
    seen: list[list[Row]] = []

    def look() -> None:
        rows = read(out)
        if not seen or rows != seen[-1]:
            seen.append(rows)
        if exchanges:  # then even those who know nothing of generations
            assert stored(out, "frames") in (old, [*map(_labelled, old)])

    watched(monkeypatch, look, exchanges=exchanges)
    run(paths, out, LABELLED)
    assert seen == [old, [*map(_labelled, old)]]
    assert same(paths, out, LABELLED)
    assert not leftovers(out)
    assert {path.name for path in (out / "progress").iterdir()} == {
        "all",
        "before-last",
        "begun",
        "generation",
    }


def _labelled(row: Row) -> Row:
    return row | {"cluster": "east"}


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [True, False])
def test_a_rebuild_that_is_killed_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    """The next run ends it, and until then the table is a complete one."""
    paths = put(tmp_path, parts(2))
    old, new = alone(paths, OPTIONS).frames, alone(paths, LABELLED).frames
    run(paths, tmp_path / "out", OPTIONS)
    for limit in range(0, 1_000, 3):
        out = Path(shutil.copytree(tmp_path / "out", tmp_path / f"out{limit}"))
        left = limit

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with monkeypatch.context() as patch:
            watched(patch, count, exchanges=exchanges)
            try:
                run(paths, out, LABELLED)
            except Killed:
                assert read(out) in (old, new)
            else:
                break
        run(paths, out, LABELLED)
        assert read(out) == new, limit
        assert stored(out, "frames") == new, limit
        assert not leftovers(out)
    assert limit > 20


def test_a_rebuild_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    run(paths, out, OPTIONS)
    before = tables(out)
    monkeypatch.setattr("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
    with pytest.raises(InterruptedError):
        run(paths, out, LABELLED, Now(most=12))
    assert tables(out) == before
    again = Run(find_inputs(paths), str(out), options=LABELLED)
    assert again.rebuild is not None
    assert again.rebuild.reason == "--cluster was not given before"
    assert again.rebuild.files < 5
    assert again.notes == ("it goes on with a rebuild that was broken off",)
    again.run(Pool(Now()))
    assert same(paths, out, LABELLED)


def test_a_rebuild_that_nobody_wants_any_more_is_deleted(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    run(paths, out, OPTIONS)
    with pytest.raises(InterruptedError):
        run(paths, out, LABELLED, Now(most=3))
    assert (out / "progress" / "rebuild").is_dir()
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert (again.rebuild, again.done_count) == (None, len(paths))
    assert again.notes == ("a rebuild of the table that was broken off is deleted",)
    again.run(Pool(Now()))
    assert same(paths, out)
    assert not (out / "progress" / "rebuild").exists()


def test_rows_of_inputs_that_are_gone_are_lost_only_on_request(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(4)), tmp_path / "out"
    run(paths, out, OPTIONS)
    before = tables(out)
    os.remove(paths[0])
    with pytest.raises(CaptureError, match=r"0\.pcap is gone .*--cluster was not given before; --rebuild "):
        run(paths[1:], out, LABELLED)
    assert tables(out) == before
    run(paths[1:], out, LABELLED, rebuild=True)
    assert same(paths[1:], out, LABELLED)


def test_inputs_that_a_broken_off_rebuild_has_read_may_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    run(paths, out, OPTIONS)
    expected = alone(paths, LABELLED).frames
    monkeypatch.setattr("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
    with pytest.raises(InterruptedError):
        run(paths, out, LABELLED, Now(most=20))
    done = Run(find_inputs(paths), str(out), options=LABELLED).done_count
    assert done
    for path in paths[:done]:
        os.remove(path)
    run(paths[done:], out, LABELLED)
    assert stored(out, "frames") == expected


def test_a_rebuilt_table_goes_on(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(6)), tmp_path / "out"
    run(paths[:2], out, OPTIONS)
    run(paths[:3], out, LABELLED)
    run(paths[:4], out, LABELLED)
    run(paths[:5], out, OPTIONS)
    run(paths, out, OPTIONS)
    assert same(paths, out)
    assert read(out) == stored(out, "frames")
    assert all(".g3" in path.name for path in (out / "frames").glob("*.parquet"))


@pytest.mark.parametrize("name", ["all", "before-last"])
def test_of_saved_progress_that_is_damaged_the_other_serves(tmp_path: Path, name: str) -> None:
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    expected = alone(paths, OPTIONS).frames
    run(paths[:3], out, OPTIONS)
    for path in paths[:2]:
        os.remove(path)
    (out / "progress" / name).write_bytes(b"\0" * 90)
    again = Run(find_inputs(paths[2:]), str(out), options=OPTIONS)
    assert again.rebuild is None
    assert again.done_count == (2 if name == "all" else 3)
    (note,) = again.notes
    assert f"progress/{name} is damaged" in note
    again.run(Pool(Now()))
    assert stored(out, "frames") == expected


def test_without_any_progress_the_manifest_tells_what_would_be_lost(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths, out, OPTIONS)
    before = tables(out)
    for path in (out / "progress").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    os.remove(paths[1])
    left = [paths[0], paths[2]]
    with pytest.raises(CaptureError, match=r"1\.pcap is gone .*progress/.* is damaged.*; --rebuild "):
        run(left, out, OPTIONS)
    (out / "manifest.json").unlink()
    with pytest.raises(CaptureError, match=r"progress/.* is damaged.*; --rebuild makes "):
        run(left, out, OPTIONS)
    assert {name: data for name, data in tables(out).items() if name in before} == before
    run(left, out, OPTIONS, rebuild=True)
    assert same(left, out)


@pytest.mark.parametrize("text", [b"", b"[0, true]", b"[2, 1]", b'{"a": 1}', b"[" * 9_999, b"[1e9, true]"])
def test_a_generation_that_others_made_up(tmp_path: Path, text: bytes) -> None:
    paths, out = put(tmp_path, parts(1)), tmp_path / "out"
    run(paths, out, OPTIONS)
    (out / "progress" / "generation").write_bytes(text)
    for use in (lambda: find([str(out)]), lambda: Store(str(out)).files(), lambda: run(paths, out, OPTIONS)):
        with pytest.raises(CaptureError, match="progress/generation is damaged"):
            use()
    assert stored(out, "frames") == alone(paths, OPTIONS).frames


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_the_old_generation_may_become_empty(tmp_path: Path, name: str) -> None:
    """Its files are deleted, though none takes their place."""
    paths, out = put(tmp_path, parts(2)), tmp_path / "out"
    run(paths, out, OPTIONS)
    planted = out / name / "000000-00009.parquet"
    planted.write_bytes(next((out / "frames").glob("*.parquet")).read_bytes())
    run(paths, out, LABELLED)
    assert not planted.exists()
    assert same(paths, out, LABELLED)


def test_a_file_that_is_gone_after_its_rows_were_deleted_is_reported(tmp_path: Path) -> None:
    """A run that reads the last file again, as it has grown, is killed before it has saved anything."""
    files, out = parts(4), tmp_path / "out"
    paths = put(tmp_path, [*files[:2], files[2][:2_000], files[3]])
    run(paths[:3], out, OPTIONS)
    Path(paths[2]).write_bytes(files[2])
    with pytest.raises(InterruptedError):
        run(paths, out, OPTIONS, Now(most=0))
    os.remove(paths[2])
    totals = run([*paths[:2], paths[3]], out, OPTIONS)
    ((name, what, _),) = totals.problems
    assert name == paths[2]
    assert what.startswith("is gone: its rows were deleted by a run that was broken off")
    assert not (out / "progress" / "redone").exists()


def break_off(paths: list[str], files: list[bytes], out: Path, most: int = 0) -> None:
    """Begin to read the third file again, as it has grown; then it is gone."""
    run(paths[:3], out, OPTIONS)
    Path(paths[2]).write_bytes(files[2])
    with pytest.raises(InterruptedError):
        run(paths, out, OPTIONS, Now(most))
    os.remove(paths[2])


@pytest.fixture
def grown(tmp_path: Path) -> tuple[list[str], list[bytes]]:
    """The paths of files of which the third one is there in part, and what is in them at last."""
    files = parts(4)
    return put(tmp_path, [*files[:2], files[2][:2_000], files[3]]), files


def test_saving_meanwhile_does_not_hide_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grown: tuple[list[str], list[bytes]]
) -> None:
    paths, files = grown
    monkeypatch.setattr("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
    break_off(paths, files, tmp_path / "out", most=2)
    totals = run([*paths[:2], paths[3]], tmp_path / "out", OPTIONS)
    assert [name for name, _, _ in totals.problems] == [paths[2]]


def test_a_rebuild_does_not_hide_what_is_gone(tmp_path: Path, grown: tuple[list[str], list[bytes]]) -> None:
    (paths, files), out = grown, tmp_path / "out"
    break_off(paths, files, out)
    left = [*paths[:2], paths[3]]
    with pytest.raises(CaptureError, match=r"2\.pcap is gone .*--cluster was not given before"):
        run(left, out, LABELLED)
    run(left, out, LABELLED, rebuild=True)
    assert same(left, out, LABELLED)
    assert not (out / "progress" / "redone").exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_the_progress_of_before_would_lose_the_last_file(tmp_path: Path, is_there: bool) -> None:
    paths, out = put(tmp_path, parts(3)), tmp_path / "out"
    run(paths, out, OPTIONS)
    before, saved = tables(out), out / "progress" / "all"
    saved.write_bytes(b"") if is_there else saved.unlink()
    os.remove(paths[2])
    with pytest.raises(CaptureError, match=r"2\.pcap is gone .*--rebuild "):
        run(paths[:2], out, OPTIONS)
    assert tables(out) == before
