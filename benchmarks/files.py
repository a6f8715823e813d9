"""Measure `pwire analyze` of many small files, or of CAPTUREs: `python -m benchmarks.files --files 10000`.

The files are those of three hosts that rotate their captures at the same time. They are made of real captures
(samples/pcaps), again and again, so connections go on from file to file, and end. Measured are the processor
time and the peak memory of the driver's Python, Spark's jobs, and whether the rows are those of one process
(`pwire table --jobs 1`).
"""

import resource
import struct
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import pyarrow.parquet as pq
import typer

from benchmarks.captures import SAMPLES, Pcap
from benchmarks.harness import Captures, Figures, Goal, measure, pwire, run
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.spark.executor import SparkWorkers
from pulsarctl_wire.spark.session import session

CAPTURES: Final = (
    "python-simple",
    "java-batch-zlib",
    "errors",
    "java-nack-dlq",
    "auth-token",
    "java-keyshared",
)
HOSTS: Final = 3
PACKETS: Final = 25
"""Packets of a file."""
_HEADER: Final = bytes.fromhex("d4c3b2a102000400000000000000000000000400 01000000")
_BROKER: Final = 6650
_ADDRESSES: Final = (42, 46)  # where they are in a record of IPv4 over Ethernet
_PORTS: Final = (50, 52)


def capture_host(host: int) -> Iterator[bytes]:
    """Yield the records that a host captures, with addresses of its own and a packet each ms."""
    times = count(1_700_000_000_001_000 + host, 1_000)
    for copy in count():
        for name in CAPTURES:
            with (SAMPLES / f"{name}.pcap").open("rb") as source:
                for record in map(bytearray, Pcap(source)):
                    struct.pack_into("<II", record, 0, *divmod(next(times), 1_000_000))
                    for at in _ADDRESSES:
                        record[at : at + 4] = bytes((10, 0, 0, host))
                    for at in _PORTS:
                        (port,) = struct.unpack_from(">H", record, at)
                        if port != _BROKER:  # otherwise the next copy would be sent again
                            struct.pack_into(">H", record, at, 1_024 + (port + copy) % 64_000)
                    yield bytes(record)


def make_files(directory: Path, files: int) -> None:
    """Write so many files to a directory."""
    directory.mkdir()
    hosts = [capture_host(host) for host in range(HOSTS)]
    for number in range(files):
        name = f"host{number % HOSTS}-{number // HOSTS:05}.pcap"
        records = islice(hosts[number % HOSTS], PACKETS)
        (directory / name).write_bytes(_HEADER + b"".join(records))


def read_rows(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the rows of Parquet files, in an order of their own."""
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["file"], row["packet_offset"], row["stream_offset"]))


def analyze(paths: Sequence[Path], master: str, scratch: Path, figures: Figures) -> None:
    """Run the driver in this process, and compare its rows with those of one process."""
    out, alone = scratch / "out", scratch / "alone.parquet"
    with session(master) as spark:
        began, cpu = time.monotonic(), time.process_time()
        totals = Run(find_inputs([*map(str, paths)]), str(out)).run(SparkWorkers(spark))
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = {"files": len(paths), "frames": totals.frames, "jobs": jobs, "read again": totals.read_again}
    costs = {"s": seconds, "driver CPU s": cpu, "CPU s/1,000 files": 1000 * cpu / len(paths), "MiB": peak}
    run(pwire("table", *paths, "--jobs", 1, "--out", alone))
    is_same = read_rows(sorted(out.glob("frames/*.parquet"))) == read_rows([alone])
    figures.add("files", "analyze", {**counts, **costs, "rows of one process": is_same})


def main(
    captures: Captures = None,
    files: Annotated[int, typer.Option(help="How many to make.")] = 10_000,
    master: str = "local[2]",
) -> None:
    """Measure pwire analyze of many small files."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        if not captures:
            make_files(scratch / "in", files)
        paths = captures or sorted((scratch / "in").iterdir())
        goals = [Goal("files", "analyze", "rows of one process", "=", 1)]
        measure({"files": partial(analyze, paths, master, scratch)}, goals=goals)


if __name__ == "__main__":
    typer.run(main)
