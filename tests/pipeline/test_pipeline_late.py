"""Captures of a host that come late: they are added to what is done, whose rows stay as they are."""

from __future__ import annotations

import os
import random
import tempfile
from contextlib import suppress
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.comparing import Now, alone, run
from pipeline.test_pipeline_appended import BY_ORDER, everything, without
from pipeline.test_pipeline_run import OPTIONS, parts
from pipeline.test_pipeline_run import put as put_parts
from pipeline.test_pipeline_series import put, traffic
from segments import Tcp, captured, conversation, pcap

from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table.schema import TABLES


def of_host(paths: list[str], hosts: str) -> list[str]:
    return [path for path in paths if Path(path).name[5] in hosts]


def left(paths: list[str]) -> list[str]:
    return list(filter(os.path.exists, paths))


def add(paths: list[str], out: Path, *, mirror: bool = False) -> Run:
    """Add what is left of some files to a table, in place."""
    job = Run(find_inputs(left(paths)), str(out), options=OPTIONS, mirror=mirror)
    assert job.rebuild is None
    job.run(Pool(Now()))
    return job


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return put(tmp_path, traffic(random.Random(3), 9, 0.0), random.Random(1))


@pytest.mark.parametrize("gone", ["", "a", "ac"])
def test_a_late_host_is_added_to_what_is_done(tmp_path: Path, paths: list[str], gone: str) -> None:
    expected, out = alone(paths, OPTIONS, by_time=True), tmp_path / "out"
    add(of_host(paths, "ac"), out)
    before = everything(out)
    for path in of_host(paths, gone):
        os.remove(path)
    job = add(paths, out)
    count = len(of_host(paths, "b"))
    (note,) = job.notes
    assert note.endswith(f", which is done, and is read after it ({count} such files in all)")
    after = everything(out)
    for name in TABLES:
        assert without(after[name], *BY_ORDER) == without(expected.tables[name], *BY_ORDER)
        assert {*map(repr, before[name])} <= {*map(repr, after[name])}
    again = add(paths, out)
    assert (again.done_count, again.notes) == (len(paths), ())
    assert everything(out) == after


def test_mirror_does_not_rebuild_for_a_late_host(tmp_path: Path, paths: list[str]) -> None:
    out = tmp_path / "out"
    add(of_host(paths, "ac"), out, mirror=True)
    add(paths, out, mirror=True)
    add(paths, out, mirror=True)
    os.remove(paths[0])
    assert Run(find_inputs(left(paths)), str(out), options=OPTIONS, mirror=True).rebuild is not None


@pytest.mark.parametrize("most", range(1, 40, 8))
def test_a_run_with_a_late_host_that_broke_off(tmp_path: Path, paths: list[str], most: int) -> None:
    expected, out = alone(paths, OPTIONS, by_time=True), tmp_path / "out"
    add(of_host(paths, "ac"), out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulsarctl_wire.pipeline.run._SAVED_EVERY", -1.0)
        with suppress(InterruptedError):
            run(find_inputs(paths), out, OPTIONS, Now(most))
    for path in of_host(paths, "a"):
        os.remove(path)
    add(paths, out)
    after = everything(out)
    for name in TABLES:
        assert without(after[name], *BY_ORDER) == without(expected.tables[name], *BY_ORDER)


def test_a_late_file_of_a_series_that_is_done_is_no_continuation(tmp_path: Path, paths: list[str]) -> None:
    expected, out = alone(paths, OPTIONS, by_time=True), tmp_path / "out"
    run(find_inputs([path for path in paths if not path.endswith("host-c.pcap0")]), out, OPTIONS)
    job = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert job.rebuild is not None
    job.run(Pool(Now()))
    assert everything(out) == expected.tables


def test_the_newest_files_of_two_hosts_grow(tmp_path: Path) -> None:
    """What was read of one beside the other stays; the rest of both is read side by side."""
    flows = [Tcp(client=("10.0.0.1", port)).whole(conversation([b"x" * 40] * 9)) for port in (40_000, 40_001)]
    packets = captured(list(chain(*zip(*flows, strict=True))))
    files = {tmp_path / f"host-{host}.pcap": packets[number::2] for number, host in enumerate("ab")}
    paths, out = list(map(str, files)), tmp_path / "out"
    for count in (5, 12, 30, len(flows[0])):
        for path, some in files.items():
            path.write_bytes(pcap(some[:count]))
        assert add(paths, out).done_count == (count > 5)
        assert everything(out) == alone(paths, OPTIONS, by_time=True).tables


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.data())
def test_files_that_come_and_grow_in_any_order(seed: int, data: st.DataObject) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        out = Path(directory, "out")
        files = {
            Path(directory, f"host-{host}.pcap{number}"): pcap(packets)
            for host, cut in traffic(rng, 4, 0.0).items()
            for number, packets in enumerate(cut)
        }
        for _ in range(3):
            for path, content in files.items():
                size = data.draw(st.sampled_from([0, len(content)]) | st.integers(24, len(content)))
                if size > (path.stat().st_size if path.exists() else 0):
                    path.write_bytes(content[:size])
            if inputs := find_inputs([str(path) for path in files if path.exists()]):
                run(inputs, out, OPTIONS)
        for path, content in files.items():
            path.write_bytes(content)
        run(find_inputs(list(map(str, files))), out, OPTIONS)
        expected = alone(list(map(str, files)), OPTIONS, by_time=True)
        for name, rows in everything(out).items():
            assert without(rows, *BY_ORDER) == without(expected.tables[name], *BY_ORDER)


def test_hosts_whose_names_differ_in_numbers_alone(tmp_path: Path) -> None:
    """A file of the same time as one that is done is another host's, not one that was left out."""
    flows = [Tcp(client=("10.0.0.1", port)).whole(conversation([b"x" * 40] * 9)) for port in (40_000, 40_001)]
    packets = captured(list(chain(*zip(*flows, strict=True))))
    paths = [str(tmp_path / f"broker-{number}.pcap") for number in (1, 0)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(pcap(packets[1 - number :: 2]))  # the late one begins earlier
    expected, out = alone(paths, OPTIONS, by_time=True), tmp_path / "out"
    run(paths[:1], out, OPTIONS)
    before = {repr(row) for row in everything(out)["frames"]}
    os.remove(paths[0])
    again = add(paths[1:], out)
    assert (again.rebuild, again.done_count) == (None, 1)
    frames = everything(out)["frames"]
    assert before < {repr(row) for row in frames}
    assert len(frames) == len(expected.frames)


def test_a_file_left_out_of_a_series_comes_late(tmp_path: Path) -> None:
    """It is read after the others if those before it are gone, as a rebuild would lose their rows."""
    paths, out = put_parts(tmp_path, parts(4, 1)), tmp_path / "out"
    run([paths[0], *paths[2:]], out, OPTIONS)
    before = {(row["file"], row["packet_offset"]) for row in everything(out)["frames"]}
    assert Run(find_inputs(paths), str(out), options=OPTIONS).rebuild is not None
    os.remove(paths[0])
    again = add(paths[1:], out)
    assert again.rebuild is None
    assert any("1.pcap came late" in note for note in again.notes)
    assert before < {(row["file"], row["packet_offset"]) for row in everything(out)["frames"]}
