"""Captures of several hosts, in files that overlap in time: the pipeline has the rows of one process."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline.comparing import (
    Deleting,
    Now,
    Outcome,
    Row,
    alone,
    decoding,
    first_difference,
    in_memory,
    ordered,
    run,
    stored,
)
from segments import (
    ETHERNET,
    START_NS,
    Tcp,
    conversation,
    enhanced,
    ethernet,
    interface,
    option,
    pcap,
    section,
    statistics,
)

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files import splits
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.table.schema import TABLES

OPTIONS = Options(split_size=1_500)


def traffic(rng: random.Random, flows: int, shared: float) -> dict[str, list[list[RawPacket]]]:
    """What hosts captured, cut into files; of some connections either of two hosts captured the packets."""
    queues = [
        Tcp(client=("10.0.0.1", 40_000 + number)).whole(conversation([rng.randbytes(40)] * 3))
        for number in range(flows)
    ]
    hosts: dict[str, list[RawPacket]] = {"a": [], "b": [], "c": []}
    owners = [rng.choice("abc") for _ in queues]
    is_shared = [rng.random() < shared for _ in queues]
    time_ns = START_NS
    while any(queues):
        number = rng.choice([number for number, queue in enumerate(queues) if queue])
        time_ns += rng.choice((0, 1_000, 1_000_000))
        host = rng.choice("ab") if is_shared[number] else owners[number]
        back = rng.choice((0, 0, 0, 3_000)) if not is_shared[number] else 0
        data = ethernet(queues[number].pop(0))
        hosts[host].append((time_ns - back, ETHERNET, data, len(data)))
    return {host: _cut(rng, packets) for host, packets in hosts.items()}


def _cut(rng: random.Random, packets: list[RawPacket]) -> list[list[RawPacket]]:
    files = []
    while packets:
        size = rng.randrange(1, 60)
        files.append(packets[:size])
        packets = packets[size:]
    return files


def put(directory: Path, captured: dict[str, list[list[RawPacket]]], rng: random.Random) -> list[str]:
    paths = []
    for host, files in captured.items():
        for number, packets in enumerate(files):
            path = directory / f"host-{host}.pcap{number}"
            data = pcap(packets) if rng.random() < 0.5 else _pcapng(packets, rng)
            path.write_bytes(gzip.compress(data) if rng.random() < 0.2 else data)
            paths.append(str(path))
    return rng.sample(paths, len(paths))


def _pcapng(packets: list[RawPacket], rng: random.Random) -> bytes:
    """A file that says at its end, and maybe before, how many packets were dropped."""
    blocks = [section(), interface(options=option("<", 9, b"\x09"))]
    dropped = 0
    for time_ns, _, data, length in packets:
        assert time_ns is not None
        blocks.append(enhanced(time_ns, data, length))
        if rng.random() < 0.2:
            dropped += rng.randrange(5)
            blocks.append(statistics(dropped))
    return b"".join([*blocks, statistics(dropped + 1)])


def places(rows: list[Row]) -> set[tuple[str, int]]:
    """Where rows come from."""
    return {(row["file"], row["packet_offset"]) for row in rows}


def stored_in(written: dict[str, list[dict[str, object]]], kind: str) -> list[dict[str, object]]:
    return ordered([row for path, rows in written.items() if f"/{kind}/" in path for row in rows])


@settings(max_examples=15)
@given(
    *(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from((0.0, 0.0, 0.5))),
    st.sampled_from((1_500, 6_000, 10**6)),
)
def test_hosts_side_by_side(seed: int, flows: int, shared: float, size: int) -> None:
    import tempfile

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        paths = put(Path(directory), traffic(rng, flows, shared), rng)
        expected = alone(paths, OPTIONS, by_time=True)
        with in_memory() as written:
            totals = run(find_inputs(paths), Path(directory, "out"), Options(size))
        found = Outcome(
            {name: stored_in(written, name) for name in TABLES},
            totals.packets,
            [],
            totals.dropped,
        )
        assert not first_difference(expected, found)
        assert len(expected.frames) >= flows * 17


def test_new_files_of_both_hosts_are_taken_up(tmp_path: Path) -> None:
    rng = random.Random(3)
    captured = traffic(rng, 6, 0.0)
    paths = put(tmp_path, captured, random.Random(1))
    inputs = find_inputs(paths)
    earlier = [each.name for each in inputs[:-2]]
    out = tmp_path / "out"
    run(find_inputs(earlier), out, OPTIONS)
    again = Run(find_inputs(paths), str(out), options=OPTIONS)
    assert again.done_count >= len(earlier) - 1
    again.run(Pool(Now()))
    expected = alone(paths, OPTIONS, by_time=True)
    assert (stored(out, "frames"), stored(out, "gaps")) == (expected.frames, expected.gaps)


def test_turns_that_were_decoded_are_decoded_again_only_if_a_file_has_changed(tmp_path: Path) -> None:
    paths = put(tmp_path, traffic(random.Random(3), 6, 0.0), random.Random(1))
    out = tmp_path / "out"
    with pytest.raises(InterruptedError):
        run(find_inputs(paths), out, OPTIONS, Now(3))
    changed = find_inputs(paths)[2].path
    os.utime(changed)
    inputs = find_inputs(paths)
    kept = [
        number for number, each in enumerate(inputs[:3]) if changed not in {side.path for side in each.sides}
    ]
    with decoding() as decoded:
        run(inputs, out, OPTIONS)
    assert decoded == [f"{number:06d}-00000" for number in range(len(inputs)) if number not in kept]
    expected = alone(paths, OPTIONS, by_time=True)
    assert stored(out, "frames") == expected.frames


@pytest.mark.parametrize("cut", [30, 300])
def test_damage_is_said_once(tmp_path: Path, cut: int) -> None:
    rng = random.Random(3)
    paths = put(tmp_path, traffic(rng, 6, 0.0), random.Random(5))
    inputs = find_inputs(paths)
    harmed = next(side.name for each in inputs for side in each.sides if side.since is None)
    data = Path(harmed).read_bytes()
    Path(harmed).write_bytes(data[: max(len(data) - cut, 50)])
    totals = run(find_inputs(paths), tmp_path / "out", OPTIONS)
    assert [(name, damaged) for name, _, damaged in totals.problems] == [(harmed, True)]
    expected = alone(paths, OPTIONS, by_time=True)
    assert stored(tmp_path / "out", "frames") == expected.frames


@pytest.mark.parametrize("gone", range(3))
@pytest.mark.parametrize("is_decoded", [False, True])
def test_a_file_that_is_deleted_meanwhile(
    tmp_path: Path, gone: int, is_decoded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beside it are read on; what is missing is said."""
    monkeypatch.setattr(splits, "MAX_GROUP", 1)
    paths = put(tmp_path, traffic(random.Random(3), 6, 0.0), random.Random(1))
    expected = alone(paths, OPTIONS, by_time=True)
    inputs = find_inputs(paths)
    path = inputs[gone].path
    executor = Deleting(path, len(inputs) if is_decoded else 1)
    totals = Run(inputs, str(tmp_path / "out"), options=OPTIONS).run(Pool(executor, len(inputs)))
    assert not Path(path).exists()
    found, every = places(stored(tmp_path / "out", "frames")), places(expected.frames)
    assert found <= every
    if is_decoded:
        reasons = [] if found == every else ["cannot be read again, so rows may be missing: "]
    else:
        assert found >= {place for place in every if place[0] != path}
        reasons = [""]
    why = "No such file or directory"
    assert totals.problems == [(path, f"{reason}{why}", is_decoded) for reason in reasons]


def test_relative_names_are_read_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's workers do, whose directory is another one."""
    paths = put(tmp_path, traffic(random.Random(3), 3, 0.0), random.Random(5))
    monkeypatch.chdir(tmp_path)
    names = [Path(path).name for path in paths]
    inputs = find_inputs(names)
    job = Run(inputs, "out", options=OPTIONS)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    totals = job.run(Pool(Now()))
    assert not totals.problems
    assert {each.name for each in inputs} == set(names)
    monkeypatch.chdir(tmp_path)
    assert stored(tmp_path / "out", "frames") == alone(names, OPTIONS, by_time=True).frames
