"""A table whose making is killed, at any stage, and begun again, with more files: the rows of one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pipeline.comparing import decoding, run
from spark.killing import files, kill_at
from spark.rows import expected, rows
from spark.test_follow import rotated

from pulsarctl_wire.pipeline.decoding.edges import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs

pytest.importorskip("pyspark", reason="pyspark is not installed")

PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
SIZE = 50_000


def kill(directory: Path, out: Path, pattern: str) -> None:
    """Make a table of the files in a directory, until a file of a pattern appears: then all is killed."""
    before = files(out, pattern)
    command = [*PWIRE, "analyze", str(directory), "--out", str(out), "--master", "local[2]"]
    command += ["--split-size", str(SIZE)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        kill_at(process, out, pattern, before)


def hosts(capture: Path, directory: Path) -> None:
    """Two captures of some connections each, cut into files at different times."""
    data = capture.read_bytes()
    packets: dict[int, list[bytes]] = {0: [], 1: []}
    at = 24
    while at < len(data):
        stop = at + 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        packets[sum(data[at + 50 : at + 54]) % 2].append(data[at:stop])  # by the ports
        at = stop
    for host, size in enumerate((300, 470)):
        for start in range(0, len(packets[host]), size):
            records = b"".join(packets[host][start : start + size])
            (directory / f"host{host}.pcap{start}").write_bytes(data[:24] + records)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_what_was_decoded_of_several_hosts_is_not_decoded_again(capture: Path, tmp_path: Path) -> None:
    directory, out = tmp_path / "captures", tmp_path / "out"
    directory.mkdir()
    hosts(capture, directory)
    kill(directory, out, "progress/00000[4-9]-*.edges")
    kept = {path.stem for path in out.glob("progress/*.edges")}
    inputs = find_inputs([str(directory)])
    with decoding() as decoded:
        run(inputs, out, Options(SIZE))
    assert all(each.sides for each in inputs[:4])
    assert kept
    assert decoded
    assert not kept & {*decoded}
    assert rows(out) == expected([str(directory)]).tables


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("progress/*.edges", "frames/*.parquet"),
        ("progress/*.arrow", "progress/*.stitched"),
        ("progress/before-last", "progress/all"),
    ],
)
def test_it_is_killed_and_begun_again(capture: Path, tmp_path: Path, first: str, second: str) -> None:
    directory, out, later = tmp_path / "captures", tmp_path / "out", tmp_path / "later"
    directory.mkdir()
    later.mkdir()
    paths = rotated(capture, later, 30)
    for path in paths[:12]:
        path.rename(directory / path.name)
    kill(directory, out, first)
    for path in paths[12:20]:
        path.rename(directory / path.name)
    kill(directory, out, second)
    for path in paths[20:]:
        path.rename(directory / path.name)
    run(find_inputs([str(directory)]), out, Options(SIZE))
    found = expected([str(directory)])
    assert rows(out) == found.tables
    assert not [*out.rglob("*.unfinished"), *out.glob("progress/*.*")]
