"""The pipeline on Spark: the rows of one process, also when it follows a directory and is killed."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pipeline.comparing import Outcome, alone, ordered, run, stored

from pulsarctl_wire.pipeline.progress import Options
from pulsarctl_wire.pipeline.splits import find_inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed")

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
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


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "busy.pcap"
    generator = Path(__file__).parents[2] / "benchmarks" / "generate.py"
    subprocess.run([sys.executable, generator, path, "--frames", "6000"], check=True, capture_output=True)
    return path


def rows(out: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    return stored(out, "frames"), stored(out, "gaps")


def expected(paths: list[str]) -> Outcome:
    return alone([each.name for each in find_inputs(paths)], Options())


def test_workers_find_what_one_process_does(spark: SparkSession, capture: Path, tmp_path: Path) -> None:
    from pulsarctl_wire.spark.executor import SparkExecutor

    inputs = [f"{SAMPLES}/[ns]*.pcap", str(capture)]
    with SparkExecutor(spark) as executor:
        totals = run(find_inputs(inputs), tmp_path, Options(split_size=200_000), executor)
    found = expected(inputs)
    assert rows(tmp_path) == (found.frames, found.gaps)
    assert (totals.packets, totals.connections) == (found.packets, found.connections)


def test_what_a_worker_raises_is_raised_here(spark: SparkSession) -> None:
    from pulsarctl_wire.spark.executor import SparkExecutor

    with SparkExecutor(spark) as executor, pytest.raises(FileNotFoundError, match="nowhere"):
        executor.submit(os.stat, "/nowhere").result()


@pytest.mark.parametrize("table", ["frames", "gaps"])
def test_captures_are_a_data_source(spark: SparkSession, table: str) -> None:
    from pulsarctl_wire.spark.datasource import Captures

    spark.dataSource.register(Captures)
    pattern = f"{SAMPLES}/[ns]*.pcap"
    read = spark.read.format("pwire").option("table", table).load(pattern)
    found = ordered([row.asDict(recursive=True) for row in read.collect()])
    assert found == getattr(expected([pattern]), table)


def start(directory: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [*PWIRE, "analyze", "--follow", str(directory), "--out", str(out), "--master", "local[2]"]
    command += ["--conf", "spark.pwire.archive=false"]
    return subprocess.Popen(
        [*command, "--split-size", "100000", *options], stderr=subprocess.PIPE, start_new_session=True
    )


def test_following_is_killed_and_goes_on(capture: Path, tmp_path: Path) -> None:
    directory, out, later = tmp_path / "captures", tmp_path / "out", tmp_path / "later"
    directory.mkdir()
    later.mkdir()
    files = rotated(capture, later, 12)
    for path in files[:5]:
        path.rename(directory / path.name)
    with start(directory, out) as process:
        assert process.stderr is not None
        assert b"packets" in process.stderr.readline()  # a batch is done
        for path in files[5:9]:
            path.rename(directory / path.name)
        assert b"packets" in process.stderr.readline()
        os.killpg(process.pid, signal.SIGKILL)  # its files are written, and Spark does not know that
    for path in files[9:]:
        path.rename(directory / path.name)
    with start(directory, out, "--finish") as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    found = expected([str(directory)])
    assert rows(out) == (found.frames, found.gaps)
    assert not [*out.glob("*/*.unfinished"), *out.glob("progress/*.arrow")]
