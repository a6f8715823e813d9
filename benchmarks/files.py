"""Measure `pwire analyze` of many small files, or of CAPTUREs: `python benchmarks/files.py --files 10000`.

The files are those of three hosts that rotate their captures at the same time. They are made of real captures
(samples/pcaps), again and again, so connections go on from file to file, and end. Printed are the processor
time and the peak memory of the driver's Python, Spark's jobs, and whether the rows are those of one process
(`pwire table --jobs 1`). `--profile` prints where the driver's time goes.
"""

import argparse
import cProfile
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import Pcap
from pulsarctl_wire.pipeline.decoding.progress import Options
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.spark.executor import SparkWorkers
from pulsarctl_wire.spark.session import session

SAMPLES: Final = Path(__file__).resolve().parent.parent / "samples" / "pcaps"
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
_ADDRESSES: Final = (26, 30)  # where they are in a packet of IPv4 over Ethernet
_PORTS: Final = (34, 36)


def packets(host: int) -> Iterator[tuple[int, bytes]]:
    """What a host captures: times in µs, and packets between addresses of its own."""
    now = 1_700_000_000_000_000 + host
    for copy in count():
        for name in CAPTURES:
            with (SAMPLES / f"{name}.pcap").open("rb") as source:
                for _, _, _, packet in Pcap(source):
                    now += 1_000
                    data = bytearray(packet)
                    for at in _ADDRESSES:
                        data[at : at + 4] = bytes((10, 0, 0, host))
                    for at in _PORTS:
                        port = int.from_bytes(data[at : at + 2], "big")
                        if port != _BROKER:  # otherwise the next copy would be sent again
                            data[at : at + 2] = (1_024 + (port + copy) % 64_000).to_bytes(2, "big")
                    yield now, bytes(data)


def make(directory: Path, files: int) -> None:
    """Write so many files to a directory."""
    directory.mkdir(parents=True)
    captured = [packets(host) for host in range(HOSTS)]
    for number in range(files):
        host = number % HOSTS
        with (directory / f"host{host}-{number // HOSTS:05}.pcap").open("wb") as target:
            target.write(_HEADER)
            for time_us, data in islice(captured[host], PACKETS):
                seconds, fraction = divmod(time_us, 1_000_000)
                head = (seconds, fraction, len(data), len(data))
                target.write(b"".join(value.to_bytes(4, "little") for value in head) + data)


def rows(paths: list[Path]) -> list[dict[str, Any]]:
    """The rows of Parquet files, in an order of their own."""
    found = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: (row["file"], row["packet_offset"], row["stream_offset"]))


def same(out: Path, alone: Path) -> bool:
    """Whether the table in `out` has the rows of the one at `alone`."""
    return rows(sorted(out.glob("frames/*.parquet"))) == rows([alone])


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure pwire analyze of many small files.")
    parser.add_argument("captures", nargs="*", type=Path, metavar="CAPTURE", help="instead of those made")
    parser.add_argument("--files", type=int, default=10_000, help="how many to make")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--split-size", type=int, default=Options().split_size, help="bytes")
    parser.add_argument("--profile", action="store_true", help="print where the driver's time goes")
    parser.add_argument("--no-rows", action="store_true", help="do not compare the rows")
    return parser.parse_args()


def main() -> None:
    """Make the files, measure, print."""
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        captures, out, alone = Path(scratch, "in"), Path(scratch, "out"), Path(scratch, "alone.parquet")
        if not options.captures:
            make(captures, options.files)
        paths = list(map(str, options.captures or sorted(captures.iterdir())))
        with session(options.master) as spark:
            jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
            profile = cProfile.Profile() if options.profile else None
            started, cpu = time.monotonic(), time.process_time()
            if profile:
                profile.enable()
            run = Run(find_inputs(paths), str(out), options=Options(options.split_size))
            totals = run.run(SparkWorkers(spark))
            if profile:
                profile.disable()
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            number = len(jobs(None))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{len(paths)} files in {seconds:.1f} s, {totals.frames} frames, {number} jobs")
        print(f"{totals.read_again} connections were read again")
        print(f"driver: {cpu:.1f} s, {1000 * cpu / len(paths):.2f} s per 1,000 files, {peak:.0f} MiB")
        if profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(60)
        if not options.no_rows:
            pwire = [sys.executable, "-c", "from pulsarctl_wire.cli import main; main()"]
            subprocess.run([*pwire, "table", *paths, "--jobs", "1", "--out", str(alone)], check=True)
            print("the rows are those of one process" if same(out, alone) else "THE ROWS DIFFER")
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
