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
from pipeline.comparing import Row, ordered
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


class Followed:
    """A directory to which files come while one process after the other follows it."""

    def __init__(self, capture: Path, folder: Path, *options: str) -> None:
        self.directory, self.out, later = folder / "captures", folder / "out", folder / "later"
        self.directory.mkdir()
        later.mkdir()
        self._later = rotated(capture, later, 15)
        self._options = options

    def add(self, count: int) -> None:
        """Have so many more files there."""
        for path in self._later[:count]:
            path.rename(self.directory / path.name)
        del self._later[:count]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = [*PWIRE, "analyze", "--follow", str(self.directory), "--out", str(self.out)]
        command += ["--master", "local[2]", "--split-size", "100000", *self._options, *options]
        return subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)

    def kill_at(self, pattern: str) -> None:
        """Start, and end it by SIGKILL as soon as a later batch has a file of this pattern."""
        with self.start() as process:
            end_of_batch(process)  # the first one, or the one that was killed
            before = files(self.out, pattern)
            self.add(3)
            kill_at(process, self.out, pattern, before)

    def finish(self) -> dict[str, list[Row]]:
        """Add the last files; return the rows that one process finds, which the table must have."""
        self.add(len(self._later))
        with self.start("--finish") as process:
            said = process.communicate()[1]
        assert process.returncode == 0, said
        wanted = expected([str(self.directory)]).tables
        self.check(wanted)
        assert not [*self.out.glob("**/*.unfinished"), *self.out.glob("progress/*.*")]
        return wanted

    def check(self, wanted: dict[str, list[Row]]) -> None:
        """Compare the rows, but for the dates that a partitioned table has."""
        made = rows(self.out)
        for row in [row for table in made.values() for row in table]:
            row.pop("date", None)
        assert made == wanted

    def merge(self) -> None:
        optimize(str(self.out), 1 << 30)


def end_of_batch(process: subprocess.Popen[bytes]) -> None:
    assert process.stderr is not None
    assert b"packets" in process.stderr.readline()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_following_is_killed_and_goes_on(capture: Path, tmp_path: Path) -> None:
    followed = Followed(capture, tmp_path)
    followed.add(3)
    for pattern in ("progress/*.arrow", "progress/*.stitched", "frames/*.parquet"):
        followed.kill_at(pattern)
    with followed.start("--metrics", ":0") as process:
        assert process.stderr is not None
        started = process.stderr.readline().decode()
        assert started.startswith("pwire: metrics at http://127.0.0.1:")
        end_of_batch(process)
        with urlopen(started.split()[-1]) as answer:
            assert b"pwire_follow_files_total " in answer.read()
        followed.add(2)
        end_of_batch(process)
        os.killpg(process.pid, signal.SIGKILL)  # its files are written, and Spark does not know that
    wanted = followed.finish()
    assert streamed(followed.out) == wanted["frames"]
    followed.merge()
    followed.check(wanted)
    assert len([*followed.out.glob("frames/*.parquet")]) < 5


@pytest.mark.slow
@pytest.mark.usefixtures("quick_spark")
def test_what_a_killed_batch_has_written_may_be_merged(capture: Path, tmp_path: Path) -> None:
    followed = Followed(capture, tmp_path, "--partition-by", "date,series")
    followed.add(3)
    for _ in range(2):
        followed.kill_at("frames/*/*/*.parquet")
        followed.merge()
    wanted = followed.finish()
    followed.merge()
    followed.check(wanted)
    assert len([*followed.out.glob("frames/*/*/*.parquet")]) < 5


def streamed(table: Path) -> list[dict[str, object]]:
    from pulsarctl_wire.spark.datasource import Captures

    source = Captures({"path": str(table)})
    reader = source.streamReader(source.schema())
    first = reader.initialOffset()
    files = reader.partitions(first, reader.latestOffset(first, ReadAllAvailable()))
    return ordered([row for each in files for batch in reader.read(each) for row in batch.to_pylist()])
