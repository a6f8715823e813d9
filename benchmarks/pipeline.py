"""Measure `pwire table`, `stats`, `analyze` and `report`: `python -m benchmarks.pipeline [CAPTURE...]`.

Inputs are every CAPTURE, with Pulsar's traffic on port 6650, and generated captures of MTU-sized packets.
`--only` selects some of these sections:

    tables       table and stats beside tshark on every input, and the size of the table
    memory       table and stats of every input, and of ten copies of it one after another
    scaling      decode -q, table and stats with one process, then with more, up to one per core
    analyze      with Spark from start to exit; tshark reads only the beginning of the same capture
    connections  table and analyze: thousands of interleaved connections, and eight
    report       `report summary` of the table that analyze wrote
    files        table and analyze: a thousand small files of two hosts, and the same traffic in two files

tshark prints 14 fields with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp); without it only pwire is measured. Times are of whole commands, including Spark's
start, without which they are in "s after start"; captures are in the page cache if they fit there. "frames"
are those that were found, without partial ones; the contender "capture" shows how many there are.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from benchmarks.captures import (
    COPIES,
    FOURTEEN,
    CaptureBench,
    concatenate,
    count_with_tshark,
    make_once,
    rotate,
    split_by_host,
    tshark,
)
from benchmarks.harness import MIB, Captures, Figures, Frames, Goal, Only, Runs, measure, pwire, run

MASTER: Final = "local[2]"
MANY: Final = 5000
FEW: Final = 8
"""Connections of every generated capture except one."""
LARGE_FILE: Final = 500_000_000
SMALL_FILE: Final = 120_000
"""Bytes of a file."""
SMALL_FRAMES: Final = 260_000
"""Frames of the small files together."""
START_FRAMES: Final = 1000
"""Frames of a capture that measures how long Spark's start takes."""

COUNT: Final = """
import json, sys
import pyarrow.compute as pc
import pyarrow.parquet as pq
files = [pq.ParquetFile(path) for path in sys.argv[1:]]
partial = sum(pc.sum(file.read(["partial"])["partial"]).as_py() or 0 for file in files)
groups = sum(file.metadata.num_row_groups for file in files)
print(json.dumps({"frames": sum(file.metadata.num_rows for file in files) - partial, "row groups": groups}))
"""
"""A program that counts what is in frames tables: this process has to stay small, and does not read them."""

PEERS: Final = ("tshark", "once", "1 process", f"{FEW} connections", "two files")
GOALS: Final = (
    Goal("real *", "table", "frames/s", "≥", 3.5, "tshark"),
    Goal("real *", "stats", "frames/s", "≥", 4, "tshark"),
    Goal("MTU-sized", "table", "frames/s", "≥", 5, "tshark"),
    Goal("MTU-sized", "stats", "frames/s", "≥", 5, "tshark"),
    Goal("spark *", "analyze", "frames/s", "≥", 5, "tshark"),
    *(Goal(case, name, "bytes/frame", "≤", 16) for case, name in (("*", "table"), ("spark *", "analyze"))),
    *(Goal("* table", name, "MiB", "≤", 400e6 / MIB) for name in ("once", f"{COPIES} copies")),
    *(Goal("* stats", name, "MiB", "≤", 150e6 / MIB) for name in ("once", f"{COPIES} copies")),
    Goal("*", f"{COPIES} copies", "frames", "=", COPIES, "once"),
    Goal("connections: *", f"{MANY} connections", "frames/s", "≥", 0.5, f"{FEW} connections"),
    Goal("report", "summary", "s", "≤", 3),
    Goal("files: table", "small files", "s after start", "≤", 2.5, "two files"),
    Goal("files: analyze", "small files", "s after start", "≤", 4, "two files"),
    Goal("files: *", "small files", "row groups", "≤", 60),
    *(
        Goal("*", contender, "frames", "=", 1, "capture")
        for contender in ("table", "stats", "analyze", "summary", f"{MANY} connections", "small files")
    ),
)


@dataclass
class Bench(CaptureBench):
    """All sections."""

    spark_frames: int

    @cached_property
    def starts(self) -> dict[str, float]:
        """Seconds that commands take to start, which is much for Spark: for hardly any frames."""
        figures, words = Figures(), ["analyze", self.generate(START_FRAMES)]
        return {"table": 0, "analyze": median(self.run(figures, "", "", words) for _ in range(self.runs))}

    def spark_files(self) -> list[Path]:
        """Return the capture for Spark, as files in order."""

        def make(directory: Path) -> None:
            whole = self.generate(self.spark_frames)
            rotate([whole], directory, LARGE_FILE)
            if self.spark_frames != self.frames:
                whole.unlink()

        return sorted(make_once(self.scratch / "rotated", make).iterdir())

    def run(
        self, figures: Figures, case: str, contender: str, words: Sequence[object], frames: int = 0
    ) -> float:
        """Run a command of pwire, add what it took and found, and return the seconds that it took."""
        command, out = str(words[0]), self.scratch / "out.parquet"
        remove(out)
        words = [*words, *_choose_options(command, out)]
        ran = run(pwire(*words), out if command in ("stats", "report") else DEVNULL)
        figures.add_run(case, contender, ran, frames)
        figures.add(case, contender, _count(command, out))
        return ran.seconds

    def tables(self, figures: Figures) -> None:
        """Compare table and stats with tshark, which runs between them."""
        for source in self.sources:
            for _ in range(self.runs):
                self.run(figures, source.name, "table", ["table", source.path], source.frames)
                figures.compare(source.name, tshark(source.path, *FOURTEEN), 1, source.frames)
                self.run(figures, source.name, "stats", ["stats", source.path], source.frames)
                figures.add(source.name, "capture", {"frames": source.frames})
            if found := count_with_tshark(source.path):
                figures.add(source.name, "tshark", {"frames": found})

    def memory(self, figures: Figures) -> None:
        """Compare table and stats of an input with those of copies of it."""
        for source in self.sources:
            copies = self.scratch / "copies.pcap"
            concatenate(source.path, copies)
            for name in ("table", "stats"):
                for contender, path in (("once", source.path), (f"{COPIES} copies", copies)):
                    self.run(figures, f"{source.name}: {name}", contender, [name, path])
            copies.unlink()

    def scaling(self, figures: Figures) -> None:
        """Compare one process with several.

        "serial" is the share of one process's time that others do not shorten, by Amdahl's law; it includes
        what processors slow each other down.
        """
        cores = os.cpu_count() or 1
        numbers = sorted({cores, *(2**power for power in range(10) if 2**power < cores)})
        names = {jobs: f"{jobs} process{'es' if jobs > 1 else ''}" for jobs in numbers}
        for source in self.sources:
            for command in ("decode", "stats", "table"):
                case = f"{source.name}: {command}"
                for _ in range(self.runs):
                    for jobs, name in names.items():
                        words = [command, source.path, "--jobs", jobs]
                        self.run(figures, case, name, words, source.frames)
                alone = figures.median(case, names[1], "s")
                for jobs, name in names.items():
                    if jobs > 1:
                        serial = (jobs * figures.median(case, name, "s") / alone - 1) / (jobs - 1)
                        figures.add(case, name, {"serial": serial})

    def analyze(self, figures: Figures) -> None:
        """Compare analyze with tshark's rate on the beginning of the same capture."""
        files = self.spark_files()
        frames = min(self.frames, self.spark_frames)
        beginning = self.generate(frames)
        case = f"spark ({len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:,.0f} MB)"
        for _ in range(self.runs):
            self.run(figures, case, "analyze", ["analyze", *files], self.spark_frames)
            figures.compare(case, tshark(beginning, *FOURTEEN), 1, frames)
            figures.add(case, "capture", {"frames": self.spark_frames})
        remove(self.scratch / "table")
        (self.scratch / "out.parquet").rename(self.scratch / "table")

    def connections(self, figures: Figures) -> None:
        """Compare thousands of connections with a few."""
        for command in ("table", "analyze"):
            case = f"connections: {command}"
            for _ in range(self.runs):
                for number in (MANY, FEW):
                    words = [command, self.generate(self.frames, number)]
                    seconds = self.run(figures, case, f"{number} connections", words, self.frames)
                    after_start = {"s after start": seconds - self.starts[command]}
                    figures.add(case, f"{number} connections", after_start)
                figures.add(case, "capture", {"frames": self.frames})

    def report(self, figures: Figures) -> None:
        """Run a report over the table of `analyze`."""
        command = ["analyze", *self.spark_files()]
        table = make_once(
            self.scratch / "table", lambda path: run(pwire(*command, *_choose_options("analyze", path)))
        )
        for _ in range(self.runs):
            self.run(figures, "report", "summary", ["report", "summary", table])
            figures.add("report", "capture", {"frames": self.spark_frames})

    def files(self, figures: Figures) -> None:
        """Compare a thousand small files with two large ones."""
        frames = min(self.frames, SMALL_FRAMES)
        whole = self.generate(frames, 2 * FEW)
        few, many = self.scratch / "two", self.scratch / "small"
        split_by_host(whole, few)
        rotate(sorted(few.iterdir()), many, SMALL_FILE)
        for command in ("table", "analyze"):
            case = f"files: {command}"
            for _ in range(self.runs):
                for contender, directory in (("small files", many), ("two files", few)):
                    words = [command, *sorted(directory.iterdir())]
                    seconds = self.run(figures, case, contender, words, frames)
                    figures.add(case, contender, {"s after start": seconds - self.starts[command]})
                figures.add(case, "capture", {"frames": frames})
            figures.add(case, "small files", {"files": len(list(many.iterdir()))})


def _choose_options(command: str, out: Path) -> list[object]:
    """Return how a command is told to write its results, and not to do what others do."""
    options: dict[str, list[object]] = {
        "decode": ["-q"],
        "stats": ["-o", "json", "--no-doctor"],
        "report": ["-o", "json"],
        "table": ["--out", out],
        "analyze": ["--out", out, "--master", MASTER],
    }
    return options[command]


def _count(command: str, out: Path) -> dict[str, Any]:
    """Return how much a command found, and how large its table is with that of the gaps."""
    if command == "decode":
        return {}
    if command in ("stats", "report"):
        with out.open() as lines:
            return {"frames": json.loads(next(lines))["frames"]}
    files = [*out.rglob("*.parquet")] if out.is_dir() else [out, out.with_suffix(".gaps.parquet")]
    frames = [path for path in files if path == out or path.parent.name == "frames"]
    found = subprocess.run([sys.executable, "-c", COUNT, *frames], capture_output=True, check=True)
    counts: dict[str, Any] = json.loads(found.stdout)
    size = sum(path.stat().st_size for path in files)
    return {**counts, "Parquet bytes": size, "bytes/frame": size / counts["frames"]}


def remove(path: Path) -> None:
    """Remove a file or directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def main(
    captures: Captures = None,
    frames: Frames = 1_000_000,
    spark_frames: Annotated[int, typer.Option(help="Frames for analyze and report.")] = 2_000_000,
    runs: Runs = 3,
    only: Only = None,
) -> None:
    """Measure pwire table, stats, analyze and report."""
    with TemporaryDirectory() as name:
        bench = Bench(captures or (), frames, runs, Path(name), spark_frames)
        names = ("tables", "memory", "scaling", "analyze", "connections", "report", "files")
        measure({name: getattr(bench, name) for name in names}, only, GOALS, PEERS)


if __name__ == "__main__":
    typer.run(main)
