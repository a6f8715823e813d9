"""Small files in a row are one split, and small files of a table are merged as a run ends."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.comparing import Now, alone, first_difference, run, stored, together
from pipeline.test_pipeline_run import leftovers, parts, put

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files import inputs
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import GROUP_SIZE, MAX_GROUP, Input, Side, open_input, plan_all
from pulsarctl_wire.pipeline.storage.store import Store


@given(
    st.lists(st.integers(0, GROUP_SIZE // 4), min_size=1, max_size=MAX_GROUP + 40),
    st.integers(1, 2 * GROUP_SIZE),
    st.integers(0, 3),
)
def test_every_input_is_in_one_split(sizes: list[int], size: int, beside: int) -> None:
    files = [Input(f"{number}", each, 1, f"/none/{number}") for number, each in enumerate(sizes)]
    for number in range(len(files)):
        some = files[max(number - beside, 0) : number + 1] if beside else []
        sides = (Side(int(each.name), each.name, each.path, each.size, 1, None, None) for each in some)
        files[number] = files[number]._replace(sides=tuple(sides))
    splits = [*plan_all(files, size)]
    assert [each for split in splits for each in split.inputs] == files
    assert [split.next_file for split in splits][:-1] == [split.file for split in splits][1:]
    assert splits[-1].inputs == (files[-1],)
    limit = min(size, GROUP_SIZE)
    for split in splits:
        numbers = {side.file for each in split.inputs for side in each.sides} | {
            *range(split.file, split.next_file)
        }
        assert len(split.inputs) == 1 or sum(sizes[file] for file in numbers) <= limit
        assert len(split.inputs) <= MAX_GROUP
    if not beside:
        full = [sum(each.size for each in split.inputs) for split in splits[:-1]]
        assert all(sum(pair) > limit for pair in pairwise(full)) or len(files) > MAX_GROUP
    for split in splits[1:]:
        assert next(plan_all(files, size, split.file)) == split


class Counting(Now):
    tasks = 0

    def submit(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        self.tasks += 1
        return super().submit(*args, **kwargs)  # type: ignore[arg-type]


def test_files_are_decoded_together(tmp_path: Path) -> None:
    paths, executor = put(tmp_path, parts(20)), Counting()
    run(paths, tmp_path / "out", Options(), executor)
    assert executor.tasks == 2 + 3  # two splits are decoded, and these and the end are finished
    assert not first_difference(alone(paths, Options()), together(paths, tmp_path / "other", Options()))
    assert {path.name for path in (tmp_path / "out" / "frames").iterdir()} <= {
        *("000000-00000.parquet", "000019-00000.parquet", "end.parquet")
    }


@pytest.mark.parametrize("harm", ["cut", "empty", "text", "gone"])
def test_a_file_in_between_cannot_be_read(tmp_path: Path, harm: str) -> None:
    """It is named, and the others go on, whichever it is."""
    for number in range(4):
        directory = tmp_path / f"{number}"
        directory.mkdir()
        paths = put(directory, parts(4))
        found = [find_inputs([path])[0] for path in paths]
        data = Path(paths[number]).read_bytes()
        harmed = {"cut": data[:-9], "empty": b"", "text": b"nothing of the kind " * 20, "gone": None}[harm]
        Path(paths[number]).unlink()
        if harmed is not None:
            Path(paths[number]).write_bytes(harmed)
        totals = run(found, directory / "out", Options())
        rest = paths if harm == "cut" else [path for path in paths if path != paths[number]]
        expected = alone(rest, Options())
        assert [(name, is_read) for name, _, is_read in totals.problems] == [(paths[number], harm == "cut")]
        assert (stored(directory / "out", "frames"), totals.packets) == (expected.frames, expected.packets)


def test_small_files_of_a_table_are_merged(tmp_path: Path) -> None:
    options, out = Options(900), tmp_path / "out"
    paths = put(tmp_path, parts(6))
    run(paths[:3], out, options)
    before = {path.name for path in (out / "frames").iterdir()}
    run(paths, out, options, min_merged=3)
    names = sorted(path.name for path in (out / "frames").iterdir())
    assert len(names) < len(before)
    assert names[0].startswith("000000-00000..000004-")
    assert not [name for name in names if "..000005" in name and not name.startswith("000005")]
    expected = alone(paths, options)
    assert (stored(out, "frames"), stored(out, "gaps")) == (expected.frames, expected.gaps)
    assert run(paths, out, options, min_merged=3).frames == len(expected.frames)
    assert stored(out, "frames") == expected.frames


def test_a_table_that_is_made_again_is_merged_too(tmp_path: Path) -> None:
    paths, out, options = put(tmp_path, parts(4)), tmp_path / "out", Options(900, payload=True)
    run(paths, out, Options(900))
    before = len([*out.glob("frames/*")])
    run(paths, out, options, rebuild=True, min_merged=2)
    assert len([*out.glob("frames/*")]) < before
    assert stored(out, "frames") == alone(paths, options).frames
    run(paths, out, options, min_merged=2)
    assert stored(out, "frames") == alone(paths, options).frames


@pytest.mark.parametrize("left", range(1, 40, 4))
def test_a_run_is_killed_while_it_merges(tmp_path: Path, left: int) -> None:
    options, out = Options(900), tmp_path / "out"
    paths = put(tmp_path, parts(3))
    with suppress(InterruptedError):
        run(paths, out, options, Now(left), min_merged=2)
    run(paths, out, options, min_merged=2)
    assert stored(out, "frames") == alone(paths, options).frames
    assert not leftovers(out)
    assert not (out / "progress" / "merge").exists()


def test_only_files_that_have_changed_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = put(tmp_path, parts(4))
    run(find_inputs([str(tmp_path)]), tmp_path / "out", Options())
    before = Store(str(tmp_path / "out")).outline()
    assert before is not None
    with open(paths[1], "ab") as file:
        file.write(b"\0" * 16)
    seen: list[str] = []

    def noting(path: str, start: int = 0) -> AbstractContextManager[BinaryIO]:
        seen.append(path)
        return open_input(path, start)

    monkeypatch.setattr(inputs, "open_input", noting)
    found = find_inputs([str(tmp_path)], earlier=before.inputs)
    assert {*seen} == {paths[1]}
    assert found == find_inputs([str(tmp_path)])
