"""Runs that go on where others ended, damaged inputs, and directories that hold something else."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pipeline.comparing import Deleting, Now, alone, decoding, first_difference, ordered, run, stored
from segments import START_NS, Tcp, captured, conversation, pcap, section

from pulsarctl_wire.capture.series import name_key
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs, list_inputs
from pulsarctl_wire.pipeline.files.splits import plan
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table.schema import TABLES

OPTIONS = Options(split_size=1_500)


def parts(count: int = 3, flows: int = 3) -> list[bytes]:
    """Files that continue each other, of connections that go on from one to the next."""
    rng = random.Random(4)
    queues = [
        Tcp(client=("10.0.0.1", 40_000 + number)).whole(conversation([rng.randbytes(40)] * 5))
        for number in range(flows)
    ]
    segments = []
    while queues := [queue for queue in queues if queue]:
        segments.append(rng.choice(queues).pop(0))
    packets = captured(segments)
    cuts = [len(packets) * number // count for number in range(count + 1)]
    return [pcap(packets[start:stop]) for start, stop in itertools.pairwise(cuts)]


def put(directory: Path, files: list[bytes]) -> list[str]:
    paths = [directory / f"{number}.pcap" for number in range(len(files))]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return list(map(str, paths))


def same(paths: list[str], out: Path, options: Options = OPTIONS) -> bool:
    """Whether the table holds what one process has of these files, and nothing of it twice."""
    expected = alone(paths, options)
    return (stored(out, "frames"), stored(out, "gaps")) == (expected.frames, expected.gaps)


def tables(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("*/*.parquet"))}


def leftovers(out: Path) -> list[str]:
    kinds = (".unfinished", ".arrow", ".edges", ".stitched")
    return sorted(path.name for path in out.rglob("*") if path.suffix in kinds)


# ---- Runs after runs ----


def test_a_finished_run_leaves_tables_and_says_so(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    totals = run(paths, out, OPTIONS)
    assert same(paths, out)
    assert not leftovers(out)
    assert {path.name for path in out.iterdir()} == {*TABLES, "manifest.json", "progress"}
    about = json.loads((out / "manifest.json").read_text())
    assert [each["name"] for each in about["inputs"]] == paths
    assert about["totals"]["frames"] == totals.frames == len(stored(out, "frames"))
    assert about["totals"]["read"] == sum(os.path.getsize(path) for path in paths)


def test_nothing_is_done_where_nothing_is_new(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    first = run(paths, out, OPTIONS)
    before = tables(out)
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert again.done_count == len(paths)
    totals = again.run(Pool(Now(most=1)))  # it is only the end that is written once more
    assert tables(out) == before
    assert (totals.frames, totals.gaps, totals.read, totals.packets) == (
        first.frames,
        first.gaps,
        first.read,
        first.packets,
    )


def test_new_files_are_taken_up(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    for count in (1, 2, 2, 5):
        again = Run(find_inputs(paths[:count]), str(out), options=OPTIONS)
        again.run(Pool(Now()))
        assert same(paths[:count], out)
        assert not leftovers(out)
    assert again.done_count == 2


@pytest.mark.parametrize("cut", [30, 1_000, 3_000])
def test_a_last_file_that_has_grown(tmp_path: Path, cut: int) -> None:
    files, out = parts(), tmp_path / "out"
    paths = put(tmp_path, [*files[:-1], files[-1][:cut]])
    run(paths, out, OPTIONS)
    Path(paths[-1]).write_bytes(files[-1])
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert again.done_count == len(paths) - 1
    totals = again.run(Pool(Now()))
    assert same(paths, out)
    assert not totals.problems


def test_an_earlier_file_that_has_changed_makes_all_anew(tmp_path: Path) -> None:
    files, out = parts(), tmp_path / "out"
    paths = put(tmp_path, files)
    run(paths, out, OPTIONS)
    Path(paths[0]).write_bytes(files[0] + files[1][24:200])
    assert Run(find_inputs(paths), str(out), options=OPTIONS).done_count == 0
    run(paths, out, OPTIONS)
    assert same(paths, out)


@pytest.mark.parametrize(
    "options", [Options(split_size=900), Options(1_500, max_frame_size=60), Options(1_500, payload=True)]
)
def test_other_options_make_all_anew(tmp_path: Path, options: Options) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    run(paths, out, OPTIONS)
    again = Run(find_inputs(paths), str(out), options=options)
    assert again.done_count == 0
    again.run(Pool(Now()))
    assert same(paths, out, options)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """Captures, and a table of the first."""
    directory = tmp_path_factory.mktemp("begun")
    paths = put(directory, parts())
    run(paths[:1], directory / "out", OPTIONS)
    return paths, directory / "out"


@pytest.mark.parametrize("most", range(0, 60, 3))
def test_a_run_that_broke_off_anywhere_is_gone_on_with(
    begun: tuple[list[str], Path], tmp_path: Path, most: int
) -> None:
    paths, out = begun[0], Path(shutil.copytree(begun[1], tmp_path / "out"))
    try:
        run(paths, out, OPTIONS, Now(most))
    except InterruptedError:
        assert not (out / "manifest.json").exists()
    run(paths, out, OPTIONS)
    assert same(paths, out)
    assert not leftovers(out)


@pytest.mark.parametrize("damage", [False, True])
def test_what_was_decoded_is_not_decoded_again(tmp_path: Path, damage: bool) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    with pytest.raises(InterruptedError):
        run(paths, out, OPTIONS, Now(3))
    kept = sorted(out.glob("progress/*.edges"))
    assert len(kept) == 3
    if damage:
        kept.pop().write_bytes(b"no edges")
    with decoding() as decoded:
        run(paths, out, OPTIONS)
    assert decoded
    assert not {path.stem for path in kept} & set(decoded)
    assert same(paths, out)


def test_a_run_that_broke_off_on_other_files(tmp_path: Path) -> None:
    """What was whole before it is not whole any more."""
    files, out = parts(), tmp_path / "out"
    paths = put(tmp_path, files)
    run(paths[:2], out, OPTIONS)
    with pytest.raises(InterruptedError):
        run([paths[0], paths[2]], out, OPTIONS, Now(most=5))
    run(paths[:2], out, OPTIONS)
    assert same(paths[:2], out)


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(CaptureError, match="holds no frames table"):
        run(paths, out, OPTIONS)
    assert [path.name for path in out.rglob("*")] == ["thesis.tex"]


def test_a_state_that_cannot_be_read(tmp_path: Path) -> None:
    """The table is made again, and stays as it is until then."""
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    run(paths, out, OPTIONS)
    before = tables(out)
    for path in (out / "progress").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert again.rebuild is not None
    assert again.rebuild.reason.endswith("is damaged, or was not written by pwire")
    assert tables(out) == before
    again.run(Pool(Now()))
    assert same(paths, out)


# ---- Damage ----


def _cut(data: bytes) -> bytes:
    return data[:-7]


def _garbled(data: bytes) -> bytes:
    """A record in the middle claims a size beyond all bounds."""
    at = 24
    while at < len(data) // 2:
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    return data[: at + 8] + b"\xff\xff\xff\x7f" + data[at + 12 :]


def _cut_gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)[:-40]


@pytest.mark.parametrize(
    ("harm", "what", "is_damaged"),
    [
        (_cut, r"the file ends in the middle of the packet at byte \d+", True),
        (_garbled, r"the packet at byte \d+ claims 2147483647 bytes", True),
        (_cut_gzip, "the compressed data breaks off", True),
        (lambda data: b"", "is empty", False),
        (lambda data: b"no capture, but many words\n" * 90, "no capture", False),
        (lambda data: data[:9], "cut inside the file header", False),
    ],
)
def test_a_file_that_is_damaged_among_others(
    tmp_path: Path, harm: Callable[[bytes], bytes], what: str, is_damaged: bool
) -> None:
    files, out = parts(), tmp_path / "out"
    files[1] = harm(files[1])
    paths = put(tmp_path, files)
    totals = run(paths, out, OPTIONS)
    ((name, problem, damaged),) = totals.problems
    assert name == paths[1]
    assert damaged is is_damaged
    assert re.search(what, problem)
    assert same(paths, out)
    assert {row["file"] for row in stored(out, "frames")} >= {paths[0], paths[2]}


def test_a_path_and_its_uris_are_the_same_table(tmp_path: Path) -> None:
    path, *_ = put(tmp_path, parts())
    out = tmp_path / "out"
    Run(find_inputs([f"file:{path}"]), f"file:{out}", options=OPTIONS).run(Pool(Now()))
    again = Run(find_inputs([f"file:{path}"]), f"file://{out}", options=OPTIONS)
    assert again.done_count == 1
    assert len(stored(out, "frames")) == len(alone([path], OPTIONS).frames)


def test_a_file_that_went_away(tmp_path: Path) -> None:
    paths, out = put(tmp_path, parts()), tmp_path / "out"
    inputs = find_inputs(paths)
    os.remove(paths[1])
    totals = run(list(inputs), out, OPTIONS)
    assert [(name, damaged) for name, _, damaged in totals.problems] == [(paths[1], False)]
    assert {row["file"] for row in stored(out, "frames")} == {paths[0], paths[2]}


def test_a_file_that_is_deleted_before_it_is_read_again(tmp_path: Path) -> None:
    (path,) = put(tmp_path, parts(1))
    expected = alone([path], OPTIONS)
    inputs = find_inputs([path])
    splits = len(plan(0, inputs[0], OPTIONS.split_size))
    job = Run(inputs, str(tmp_path / "out"), options=OPTIONS)
    totals = job.run(Pool(Deleting(path, splits), splits))
    problem = "cannot be read again, so rows may be missing: No such file or directory"
    assert totals.problems == [(path, problem, True)]
    assert 0 < totals.frames < len(expected.frames)


# ---- Inputs ----


def test_rotated_captures_follow_one_another_by_number(tmp_path: Path) -> None:
    names = ["cap.pcap", *(f"cap.pcap{number}" for number in range(1, 12)), "cap.pcap20"]
    for name in random.Random(1).sample(names, len(names)):
        (tmp_path / name).write_bytes(pcap([]))
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert [Path(each.name).name for each in find_inputs([str(tmp_path)])] == names
    assert [Path(each.name).name for each in find_inputs([f"{tmp_path}/cap.pcap*"])] == names
    assert sorted(["b2", "b10", "a", "b"], key=name_key) == ["a", "b", "b2", "b10"]


def test_a_directory_holds_what_is_a_capture_by_its_contents(tmp_path: Path) -> None:
    data = pcap([])
    packed = {"trace.gz": gzip.compress(data), "x.zst": zstandard.compress(section("<"))}
    names = ("x.pcap-20231231", "x.pcap.2024-01-01", "ring3", "sub/dump")
    captures = {**dict.fromkeys(names, data), **packed}
    hidden = dict.fromkeys((".x.pcap", "_SUCCESS", "_temporary/x.pcap", "sub/.git/x.pcap"), data)
    others = {"a.txt": b"text", "b.gz": gzip.compress(b"text"), "empty.pcap": b"", "sub/t.parquet": b"PAR1"}
    for name, content in {**captures, **hidden, **others}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for argument in (str(tmp_path), f"{tmp_path}/", f"file://{tmp_path}"):
        notes: list[str] = []
        found = list_inputs([argument], notes.append)
        assert {each.path.removeprefix("file://").removeprefix(f"{tmp_path}/") for each in found} == set(
            captures
        )
        assert notes == [f"{argument}: 4 files are not captures: a.txt, b.gz, empty.pcap, …"]


def test_tables_in_a_directory_of_captures_are_not_counted(tmp_path: Path) -> None:
    put(tmp_path, parts())
    notes: list[str] = []
    for _ in range(2):
        inputs = find_inputs([str(tmp_path)], notes.append)
        Run(inputs, f"{tmp_path}/out", options=OPTIONS).run(Pool(Now()))
    assert len(inputs) == 3
    assert not notes


def test_a_directory_without_captures(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"text")
    notes: list[str] = []
    with pytest.raises(CaptureError, match="no capture files there"):
        find_inputs([str(tmp_path)], notes.append)
    assert notes == [f"{tmp_path}: 1 file is not a capture: a.txt"]


def test_inputs_are_files_patterns_directories_and_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.pcap", "in/b.pcapng.gz", "in/c.dmp", "in/d.log"):
        (tmp_path / name).write_bytes(bytes(24) if name == "in/d.log" else pcap([]))

    def names(*arguments: str) -> list[str]:
        found = find_inputs(arguments)
        assert all((each.size, each.modified_ns > START_NS) == (24, True) for each in found)
        return [re.sub(f"^(file:(//)?)?{tmp_path}/", "", each.name) for each in found]

    everything = ["a.pcap", "in/b.pcapng.gz", "in/c.dmp"]
    assert names(str(tmp_path)) == names(f"file://{tmp_path}") == names(f"file:{tmp_path}") == everything
    assert names(f"{tmp_path}/in/*") == ["in/b.pcapng.gz", "in/c.dmp", "in/d.log"]
    assert names(f"{tmp_path}/in/d.log", f"{tmp_path}/a.pcap") == ["in/d.log", "a.pcap"]
    assert names(f"{tmp_path}/a.pcap", str(tmp_path)) == everything
    monkeypatch.chdir(tmp_path)
    assert names("in/?.pcapng.gz", "*.pcap") == ["in/b.pcapng.gz", "a.pcap"]


@pytest.mark.parametrize(
    "argument", ["{}/none.pcap", "{}/*.pcap", "{}", "nothing://{}/a.pcap", "file://{}/none"]
)
def test_arguments_that_name_no_captures(tmp_path: Path, argument: str) -> None:
    with pytest.raises(CaptureError) as caught:
        find_inputs([argument.format(tmp_path)])
    assert str(tmp_path) in str(caught.value)


def test_payloads_full_of_records_do_not_mislead(tmp_path: Path) -> None:
    """Where a split begins inside of them, a record is believed that is none; the one before knows better."""
    fake = pcap(captured([Tcp().send(True, b"x" * 30)] * 40))[24:]
    data = pcap(captured(Tcp().whole(conversation([fake] * 4), most=60_000)))
    paths, out = put(tmp_path, [data]), tmp_path / "out"
    options = Options(split_size=len(data) // 7)
    run(paths, out, options)
    assert same(paths, out, options)


def test_rows_are_compared_as_they_are() -> None:
    """The comparison these tests stand on sees what differs."""
    row: dict[str, Any] = {"file": "f", "packet_offset": 1, "stream_offset": 1, "command": "PING"}
    one, other = alone([], OPTIONS), alone([], OPTIONS)
    assert not first_difference(one, other)
    assert "PING" in first_difference(one._replace(tables=one.tables | {"frames": ordered([row])}), other)
