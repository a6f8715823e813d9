"""A directory followed by Spark, killed and started again: the rows of one process."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import pytest
from pipeline.comparing import ordered
from spark.killing import files, kill_at
from spark.rows import expected, rows

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pulsarctl_wire.pipeline.upkeep.optimize import optimize

PWIRE = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]


def rotated(capture: Path, directory: Path, files: int) -> list[Path]:
    """A pcap cut into files, as tcpdump -C does."""
    data = capture.read_bytes()
    starts, at = [], 24
    while at < len(data):
        starts.append(at)
        at += 16 + struct.unpack_from("<I", data, at + 8)[0]
    cuts = [*starts[:: -(-len(starts) // files)], len(data)]
    paths = []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        paths.append(directory / f"busy.pcap{number or ''}")
        paths[-1].write_bytes(data[:24] + data[start:stop])
    return paths


def start(directory: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [*PWIRE, "analyze", "--follow", str(directory), "--out", str(out), "--master", "local[2]"]
    command += ["--conf", "spark.pwire.archive=false"]
    return subprocess.Popen(
        [*command, "--split-size", "100000", *options], stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.slow
def test_following_is_killed_and_goes_on(capture: Path, tmp_path: Path) -> None:
    directory, out, later = tmp_path / "captures", tmp_path / "out", tmp_path / "later"
    directory.mkdir()
    later.mkdir()
    paths = rotated(capture, later, 12)
    for path in paths[:5]:
        path.rename(directory / path.name)
    with start(directory, out, "--metrics", ":0") as process:
        assert process.stderr is not None
        started = process.stderr.readline().decode()
        assert started.startswith("pwire: metrics at http://127.0.0.1:")
        assert b"packets" in process.stderr.readline()  # a batch is done
        with urlopen(started.split()[-1]) as answer:
            assert b"pwire_follow_files_total " in answer.read()
        for path in paths[5:9]:
            path.rename(directory / path.name)
        assert b"packets" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGKILL)  # its files are written, and Spark does not know that
    for path in paths[9:]:
        path.rename(directory / path.name)
    with start(directory, out, "--finish") as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    found = expected([str(directory)])
    assert rows(out) == found.tables
    assert not [*out.glob("*/*.unfinished"), *out.glob("progress/*.arrow")]
    assert streamed(out) == found.frames


def streamed(table: Path) -> list[dict[str, object]]:
    from pulsarctl_wire.spark.datasource import Captures

    source = Captures({"path": str(table)})
    reader = source.streamReader(source.schema())
    first = reader.initialOffset()
    files = reader.partitions(first, reader.latestOffset(first, ReadAllAvailable()))
    return ordered([row for each in files for batch in reader.read(each) for row in batch.to_pylist()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("progress/*.arrow", []),
        ("progress/*.stitched", []),
        ("frames/*.parquet", []),
        ("frames/*/*/*.parquet", ["--partition-by", "date,series"]),
    ],
)
def test_following_is_killed_in_later_batches(
    capture: Path, tmp_path: Path, pattern: str, options: list[str]
) -> None:
    """Its files may be merged before it is started again."""
    directory, out, later = tmp_path / "captures", tmp_path / "out", tmp_path / "later"
    directory.mkdir()
    later.mkdir()
    paths = rotated(capture, later, 12)
    for path in paths[:3]:
        path.rename(directory / path.name)
    for more in (paths[3:6], paths[6:9]):
        with start(directory, out, *options) as process:
            assert process.stderr is not None
            assert b"packets" in process.stderr.readline()  # the first batch, or the one killed
            before = files(out, pattern)
            for path in more:
                path.rename(directory / path.name)
            kill_at(process, out, pattern, before)
        if options:
            optimize(str(out), 1 << 30)
    for path in paths[9:]:
        path.rename(directory / path.name)
    with start(directory, out, "--finish", *options) as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    optimize(str(out), 1 << 30)
    found = expected([str(directory)])
    undated = {
        table: [{name: row[name] for name in row if name != "date"} for row in made]
        for table, made in rows(out).items()
    }
    assert undated == found.tables
    assert len([*out.glob("frames/**/*.parquet")]) < 5
    assert not [*out.glob("**/*.unfinished"), *out.glob("progress/*.*")]
