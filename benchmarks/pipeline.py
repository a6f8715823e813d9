"""Measure `pwire table`, `stats`, `analyze` and `report`: `python benchmarks/pipeline.py [CAPTURE...]`.

Inputs are generated captures of MTU-sized packets and every CAPTURE (classic pcap, maybe .zst), with Pulsar's
traffic on port 6650. `--only` selects some of these measurements:

    table, stats   compared with tshark on every input; their memory, also on many copies of the input
    analyze        with Spark, compared with tshark's rate on the beginning of the same capture
    scaling        decode -q, table and stats with one process, then with more, up to one per core
    connections    table and analyze: thousands of interleaved connections, and eight
    report         `report summary` of the table that analyze wrote
    files          table and analyze: a thousand small files of two hosts, and the same traffic in two files

tshark prints 14 fields with the official Pulsar dissector (the `wireshark` folder of
apache/pulsar-client-cpp); without it only pwire is measured. All run in turns, see side_by_side.py.
Times are of whole commands from start to exit, including Spark's start; captures are in the page
cache if they fit there.

Memory is that of all processes of a command together (Linux only), in MB of 10^6 bytes: `mb` adds up the
resident memory of each, with shared pages counted for each, and is compared with the limit; `pss_mb` counts
shared pages once; `process_mb` is the largest single process.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.side_by_side import (
    FOURTEEN,
    Record,
    Run,
    Watcher,
    by_host,
    concatenate,
    fields,
    find_pwire,
    find_tshark,
    frames_named,
    generate,
    rate,
    rotate,
    run,
    table,
    tshark_command,
    unpacked,
    version,
)

SECTIONS: Final = ("table", "stats", "scaling", "analyze", "connections", "report", "files")
FEW: Final = 8
"""Connections of every generated capture except one."""
BYTES_PER_FRAME: Final = 16
ANALYZE_GOAL: Final = 5.0
CONNECTIONS_GOAL: Final = 0.5
REPORT_SECONDS: Final = 3
SMALL_FILE: Final = 120_000
"""Bytes of a small file."""
FILES_GOALS: Final = {"table": 2.5, "analyze": 4.0}
"""How many times as long small files may take as large ones, for analyze after its start."""
MAX_ROW_GROUPS: Final = 60
START_FRAMES: Final = 1000
"""Frames of a capture that measures how long Spark's start takes."""

COUNT_ROWS: Final = """
import sys
import pyarrow.compute as pc
import pyarrow.parquet as pq
columns = (pq.read_table(path, columns=["partial"])["partial"] for path in sys.argv[1:])
print(sum(len(column) - (pc.sum(column).as_py() or 0) for column in columns))
"""
COUNT_GROUPS: Final = """
import sys
import pyarrow.parquet as pq
print(sum(pq.read_metadata(path).num_row_groups for path in sys.argv[1:]))
"""
"""A program that counts the rows of frames tables, without partial frames, which tshark and stats do not
count either. This process does not read Parquet itself, as it has to stay small."""


class Command(NamedTuple):
    """A command to compare with tshark: the target ratio for each kind of input, its memory limit in MB."""

    name: str
    goals: dict[str, float]
    limit: int


COMMANDS: Final = (
    Command("table", {"real": 3.5, "MTU": 5}, 400),
    Command("stats", {"real": 4, "MTU": 5}, 150),
)


class Input(NamedTuple):
    """A capture; `kind` is "real" or "MTU".

    `frames` is its number of frames if known, `named` how many of them tshark finds.
    """

    name: str
    kind: str
    path: Path
    frames: int | None
    named: int | None


class Measured(NamedTuple):
    """Runs of one command on one input, the numbers of frames they found, and the size of their output."""

    runs: list[Run]
    found: set[int]
    size: int


class Bench:
    """All measurements; files are made in `scratch`, or reused from an earlier run."""

    def __init__(self, options: argparse.Namespace, pwire: str, tshark: str | None, scratch: Path) -> None:
        self.options = options
        self.pwire = pwire
        self.tshark = tshark
        self.scratch = scratch

    def sections(self) -> Iterator[tuple[str, list[Record]]]:
        """Reports by name, each as soon as it is complete."""
        only = self.options.only
        commands = [command for command in COMMANDS if command.name in only]
        if commands:
            yield from self._beside(commands)
        if "scaling" in only:
            yield "scaling", self._scaling()
        if "analyze" in only:
            yield "analyze", [self._analyze()]
        if "connections" in only:
            yield "connections", self._connections()
        if "report" in only:
            yield "report", [self._report()]
        if "files" in only:
            yield "files", self._files()

    # -- captures

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        """A file or directory in `scratch`, which is made if it does not exist yet."""
        path = self.scratch / name
        if not path.exists():
            unfinished = self.scratch / f"{name}.unfinished"
            remove(unfinished)
            make(unfinished)
            unfinished.rename(path)
        return path

    def _generated(self, frames: int, connections: int = FEW) -> Path:
        return self._made(
            f"generated-{frames}-{connections}.pcap",
            lambda path: generate(path, frames, "--connections", str(connections)),
        )

    def _inputs(self) -> list[Input]:
        inputs = []
        for number, given in enumerate(self.options.captures):
            path = unpacked(given, self.scratch / f"{number}-{given.stem}")
            named = self._named(path)
            inputs.append(Input(given.name, "real", path, self.options.frames or named, named))
        if frames := self.options.generated_frames:
            path = self._generated(frames)
            inputs.append(Input("generated", "MTU", path, frames, self._named(path)))
        return inputs

    def _named(self, path: Path) -> int | None:
        return frames_named(self.tshark, path) if self.tshark else None

    def _rotated(self) -> list[Path]:
        """The capture for Spark: its files in order."""
        options = self.options
        frames, size = options.spark_frames, options.file_mb * 1_000_000
        if not size:
            return [self._generated(frames)]

        def make(path: Path) -> None:
            whole = self._generated(frames)
            path.mkdir()
            rotate(whole, path, size)
            if frames not in (options.generated_frames, options.connection_frames, options.tshark_frames):
                whole.unlink()

        directory = self._made(f"rotated-{frames}-{FEW}-{options.file_mb}", make)
        return sorted(directory.iterdir())

    # -- single runs

    def _run(self, name: str, paths: Sequence[Path], out: Path, *options: str) -> Run:
        """Run `pwire name`; `out` is its output, from --out or stdout."""
        remove(out)
        words = [self.pwire, name, *map(str, paths), *options]
        if name == "decode":
            return run([*words, "-q"], watch=True)
        if name in ("stats", "report"):
            only_counts = ["--no-doctor"] if name == "stats" else []
            return run([*words, "-o", "json", *only_counts], watch=True, out=out)
        return run([*words, "--out", str(out)], watch=True)

    def _run_analyze(self, paths: Sequence[Path], out: Path) -> Run:
        return self._run("analyze", paths, out, "--master", self.options.master)

    def _run_tshark(self, path: Path) -> list[Run]:
        """A run of tshark; none if it is not installed."""
        if self.tshark is None:
            return []
        return [run(tshark_command(self.tshark, fields(FOURTEEN), path), watch=True)]

    def _once(self, name: str, path: Path) -> Measured:
        out = self.scratch / f"out.{'json' if name == 'stats' else 'parquet'}"
        ran = self._run(name, [path], out)
        if name == "stats":
            with out.open() as file:
                measured = Measured([ran], {json.loads(file.readline())["frames"]}, 0)
        else:
            gaps = out.with_suffix(".gaps.parquet")
            measured = Measured([ran], {rows([out])}, out.stat().st_size + gaps.stat().st_size)
            gaps.unlink()
        out.unlink()
        return measured

    # -- table and stats

    def _beside(self, commands: Sequence[Command]) -> Iterator[tuple[str, list[Record]]]:
        """The rates, the memory, and the size of the table."""
        rates: list[Record] = []
        memory: list[Record] = []
        size: list[Record] = []
        for source in self._inputs():
            measured, theirs = self._turns(commands, source)
            for command in commands:
                ours = measured[command.name]
                rates.append(self._rate(command, source, ours, theirs))
                if command.name == "table":
                    size.append({"input": source.name, **bytes_per_frame(ours.size, min(ours.found))})
            memory += self._memory(commands, source, measured, theirs)
        yield "rates", rates
        yield "memory", memory
        if size:
            yield "size", size

    def _turns(self, commands: Sequence[Command], source: Input) -> tuple[dict[str, Measured], list[Run]]:
        """Run the commands and tshark in turns: tshark runs between the two, next to both."""
        measured = {command.name: Measured([], set(), 0) for command in commands}
        theirs: list[Run] = []
        for turn in range(self.options.runs):
            for number, command in enumerate(commands):
                say(f"{source.name}: {command.name}, run {turn + 1}")
                one = self._once(command.name, source.path)
                so_far = measured[command.name]
                measured[command.name] = Measured(so_far.runs + one.runs, so_far.found | one.found, one.size)
                if number == 0:
                    theirs += self._run_tshark(source.path)
        return measured, theirs

    def _rate(self, command: Command, source: Input, ours: Measured, theirs: list[Run]) -> Record:
        frames = source.frames or min(ours.found)
        return {
            "input": source.name,
            "kind": source.kind,
            "command": command.name,
            **counts(ours.found, source.frames),
            "tshark_frames": source.named,
            "pwire_per_s": rate(frames, ours.runs),
            "tshark_per_s": rate(frames, theirs),
            **verdict(ratios(ours.runs, theirs), command.goals[source.kind]),
        }

    def _memory(
        self, commands: Sequence[Command], source: Input, measured: dict[str, Measured], theirs: list[Run]
    ) -> list[Record]:
        """The memory of the commands on an input, and on concatenated copies of it."""
        copies = self.options.copies
        many: Path | None = None
        if copies > 1:
            say(f"{source.name}: {copies} copies")
            many = self.scratch / "copies.pcap"
            concatenate(source.path, many, copies)
        report: list[Record] = []
        for command in commands:
            once = peak(measured[command.name].runs)
            often: dict[str, float | None] = {"mb": None, "process_mb": None}
            agree = None
            if many is not None:
                say(f"{source.name}: {command.name}, {copies} copies")
                one = self._once(command.name, many)
                often = peak(one.runs)
                agree = one.found == {copies * min(measured[command.name].found)}
            first, last = once["mb"], often["mb"]
            highest = max((value for value in (first, last) if value is not None), default=None)
            copied: Record = {
                f"mb_{copies}_times": last,
                f"process_mb_{copies}_times": often["process_mb"],
                "growth": last / first if first and last else None,
                f"agree_{copies}_times": agree,
            }
            report.append(
                {
                    "input": source.name,
                    "command": command.name,
                    **once,
                    "tshark_mb": peak(theirs)["process_mb"] if theirs else None,
                    **(copied if many is not None else {}),
                    "limit": command.limit,
                    "met": None if highest is None else highest < command.limit,
                }
            )
        if many is not None:
            many.unlink()
        return report

    # -- scaling

    def _scaling(self) -> list[Record]:
        """How much faster several processes are than one.

        `serial` is the share of one process's time that others do not shorten, by Amdahl's law; it includes
        what processors slow each other down.
        """
        numbers = jobs_up_to(os.cpu_count() or 1)
        report: list[Record] = []
        for source in self._inputs():
            for name in ("decode", "stats", "table"):
                runs: dict[int, list[Run]] = {jobs: [] for jobs in numbers}
                for turn in range(self.options.runs):
                    say(f"{source.name}: {name} with 1 process and more, run {turn + 1}")
                    for jobs in numbers:
                        out = self.scratch / "out.parquet"
                        runs[jobs].append(self._run(name, [source.path], out, "--jobs", str(jobs)))
                alone = statistics.median(run.seconds for run in runs[1])
                for jobs in numbers:
                    seconds = statistics.median(run.seconds for run in runs[jobs])
                    serial = (jobs * seconds / alone - 1) / (jobs - 1) if jobs > 1 else None
                    report.append(
                        {
                            "input": source.name,
                            "command": "decode -q" if name == "decode" else name,
                            "jobs": jobs,
                            "seconds": seconds,
                            "cpu_s": statistics.median(run.cpu for run in runs[jobs]),
                            "per_s": rate(source.frames, runs[jobs]),
                            "speedup": alone / seconds,
                            "serial": serial,
                        }
                    )
        return report

    # -- analyze

    def _table(self) -> Path:
        """The path of the table of the capture for Spark."""
        return self.scratch / f"table-{self.options.spark_frames}"

    def _analyze(self) -> Record:
        options = self.options
        files = self._rotated()
        beginning_frames = min(options.tshark_frames, options.spark_frames)
        beginning = self._generated(beginning_frames)
        out = self._table()
        ours: list[Run] = []
        theirs: list[Run] = []
        found: set[int] = set()
        for turn in range(options.runs):
            say(f"analyze, run {turn + 1}")
            ours.append(self._run_analyze(files, out))
            found.add(rows(frames_files(out)))
            theirs += self._run_tshark(beginning)
        scale = options.spark_frames / beginning_frames
        size = sum(path.stat().st_size for path in out.rglob("*.parquet"))
        return {
            "files": len(files),
            "capture_mb": round(sum(path.stat().st_size for path in files) / 1e6),
            **counts(found, options.spark_frames),
            "seconds": statistics.median(run.seconds for run in ours),
            "pwire_per_s": rate(options.spark_frames, ours),
            "tshark_first": beginning_frames if theirs else None,
            "tshark_per_s": rate(beginning_frames, theirs),
            **verdict([scale * each for each in ratios(ours, theirs)], ANALYZE_GOAL),
            **peak(ours),
            **{f"size_{name}": value for name, value in bytes_per_frame(size, min(found)).items()},
        }

    # -- thousands of connections

    def _connections(self) -> list[Record]:
        frames = self.options.connection_frames
        many, few = self._generated(frames, self.options.connections), self._generated(frames)
        report: list[Record] = []
        for name in ("table", "analyze"):
            found: set[int] = set()
            runs: dict[Path, list[Run]] = {many: [], few: []}
            for turn in range(self.options.runs):
                for path in (many, few):
                    say(f"{name} of {path.stem}, run {turn + 1}")
                    one = self._once(name, path) if name == "table" else self._analyzed(path)
                    runs[path] += one.runs
                    found |= one.found
            start = None
            if name == "analyze":
                small = self._generated(START_FRAMES)
                starts = [run for _ in range(self.options.runs) for run in self._analyzed(small).runs]
                start = statistics.median(run.seconds for run in starts)
            report.append(
                {
                    "command": name,
                    **counts(found, frames),
                    f"per_s_{self.options.connections}": rate(frames, runs[many]),
                    f"per_s_{FEW}": rate(frames, runs[few]),
                    **verdict(ratios(runs[many], runs[few]), CONNECTIONS_GOAL),
                    "start_s": start,
                    "ratio_after_start": after_start(runs[many], runs[few], start),
                    f"mb_{self.options.connections}": peak(runs[many])["mb"],
                    f"mb_{FEW}": peak(runs[few])["mb"],
                }
            )
        return report

    def _analyzed(self, path: Path) -> Measured:
        out = self.scratch / "out"
        ran = self._run_analyze([path], out)
        found = rows(frames_files(out))
        remove(out)
        return Measured([ran], {found}, 0)

    # -- small files

    def _files(self) -> list[Record]:
        frames = self.options.small_frames
        few = self._made(f"two-{frames}", self._by_host)
        many = self._made(f"small-{frames}", lambda path: self._rotated_small(few, path))
        inputs = {"few": sorted(few.iterdir()), "many": sorted(many.iterdir())}
        report: list[Record] = []
        for name, goal in FILES_GOALS.items():
            runs: dict[str, list[Run]] = {"few": [], "many": []}
            found: dict[str, list[Path]] = {}
            for turn in range(self.options.runs):
                for kind, paths in inputs.items():
                    say(f"{name} of {len(paths)} files, run {turn + 1}")
                    out = self.scratch / f"{kind}-{name}.parquet"
                    remove(out)
                    master = ["--master", self.options.master] if name == "analyze" else []
                    runs[kind].append(self._run(name, paths, out, *master))
                    found[kind] = [out] if name == "table" else frames_files(out)
            start = 0.0
            if name == "analyze":
                small = self._generated(START_FRAMES)
                start = statistics.median(
                    run.seconds for _ in range(self.options.runs) for run in self._analyzed(small).runs
                )
            seconds = {kind: statistics.median(run.seconds for run in runs[kind]) - start for kind in runs}
            groups = counted(COUNT_GROUPS, found["many"])
            report.append(
                {
                    "command": name,
                    **counts({rows(paths) for paths in found.values()}, frames),
                    "files": len(inputs["many"]),
                    "few_s": seconds["few"],
                    "many_s": seconds["many"],
                    "start_s": start,
                    "times": seconds["many"] / seconds["few"],
                    "goal": goal,
                    "row_groups": groups,
                    "mb": sum(path.stat().st_size for path in found["many"]) / 1e6,
                    "few_mb": sum(path.stat().st_size for path in found["few"]) / 1e6,
                    "met": seconds["many"] <= goal * seconds["few"] and groups <= MAX_ROW_GROUPS,
                }
            )
        return report

    def _by_host(self, path: Path) -> None:
        path.mkdir()
        by_host(self._generated(self.options.small_frames, 2 * FEW), path)

    def _rotated_small(self, few: Path, path: Path) -> None:
        path.mkdir()
        for each in sorted(few.iterdir()):
            rotate(each, path, SMALL_FILE)

    # -- reports

    def _report(self) -> Record:
        where, out = self._table(), self.scratch / "summary.json"
        if rows(frames_files(where)) != self.options.spark_frames:
            say("the table for the report")
            self._run_analyze(self._rotated(), where)
        runs: list[Run] = []
        found: set[int] = set()
        for turn in range(self.options.runs):
            say(f"report summary, run {turn + 1}")
            runs.append(self._run("report", [Path("summary"), where], out))
            found.add(json.loads(out.read_text().splitlines()[0])["frames"])
        seconds = statistics.median(run.seconds for run in runs)
        return {
            "report": "summary",
            **counts(found, self.options.spark_frames),
            "seconds": seconds,
            "longest": max(run.seconds for run in runs),
            "goal": REPORT_SECONDS,
            "met": seconds < REPORT_SECONDS,
            **peak(runs),
        }


def say(text: str) -> None:
    """Print the progress."""
    print(text, file=sys.stderr)


def remove(path: Path) -> None:
    """Remove a file or directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def frames_files(directory: Path) -> list[Path]:
    """The files of frames that `pwire analyze` wrote."""
    return sorted((directory / "frames").glob("*.parquet"))


def rows(paths: Sequence[Path]) -> int:
    """The number of rows of frames tables, without partial frames."""
    return counted(COUNT_ROWS, paths)


def counted(program: str, paths: Sequence[Path]) -> int:
    """The number that a program prints of some files."""
    command = [sys.executable, "-c", program, *map(str, paths)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def counts(found: set[int], expected: int | None) -> Record:
    """How many frames the runs found, and whether all found the expected number."""
    agree = len(found) == 1 if expected is None else found == {expected}
    return {"frames": min(found), "expected": expected, "agree": agree}


def ratios(ours: Sequence[Run], theirs: Sequence[Run]) -> list[float]:
    """How many times faster each of our runs is than tshark's next to it."""
    return [their.seconds / our.seconds for our, their in zip(ours, theirs, strict=False)]


def verdict(found: Sequence[float], goal: float) -> Record:
    """The median of some ratios, their range, and whether the goal is met."""
    ratio = statistics.median(found) if found else None
    return {
        "ratio": ratio,
        "least": min(found, default=None),
        "most": max(found, default=None),
        "goal": goal,
        "met": None if ratio is None else ratio >= goal,
    }


def jobs_up_to(cores: int) -> list[int]:
    """1, 2, 4 and so on, and the number of cores."""
    powers = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    return [*powers, cores]


def after_start(many: Sequence[Run], few: Sequence[Run], start: float | None) -> float | None:
    """The ratio of two rates without the time of the start; None if no time is left."""
    times = [
        (run.seconds - (start or 0), other.seconds - (start or 0))
        for run, other in zip(many, few, strict=True)
    ]
    if start is None or any(min(pair) <= 0 for pair in times):
        return None
    return statistics.median(other / one for one, other in times)


def bytes_per_frame(size: int, frames: int) -> Record:
    """Bytes per frame in Parquet, including the gaps table."""
    value = size / frames if frames else None
    return {
        "bytes": size,
        "allowed": BYTES_PER_FRAME * frames,
        "bytes_per_frame": value,
        "goal": BYTES_PER_FRAME,
        "met": None if value is None else value <= BYTES_PER_FRAME,
    }


def peak(runs: Sequence[Run]) -> dict[str, float | None]:
    """The most memory of some runs, in MB; None if the system does not report it."""
    unit = 2**20 / 1e6
    trees = [run.tree for run in runs if run.tree is not None]
    if not trees:
        return {
            "mb": None,
            "pss_mb": None,
            "process_mb": unit * max(run.mib for run in runs),
            "processes": None,
        }
    return {
        "mb": unit * max(tree.resident for tree in trees),
        "pss_mb": unit * max(tree.shared_once for tree in trees),
        "process_mb": unit * max(tree.largest for tree in trees),
        "processes": max(tree.processes for tree in trees),
    }


def notes(options: argparse.Namespace, pwire: str, tshark: str | None) -> list[str]:
    """Notes on the figures."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    machine = f"{os.cpu_count()} processors; load at the start: {load}"
    lines = [f"{version(pwire)}; {machine}; medians of {options.runs} runs"]
    if tshark is None:
        lines.append("no tshark with the Pulsar dissector: only pwire is measured")
    elif "analyze" in options.only:
        first = min(options.tshark_frames, options.spark_frames)
        lines.append(
            f"analyze is cold and takes the whole capture of {options.spark_frames:,} frames from start to "
            f"exit; tshark's rate is that of the first {first:,} frames of the same capture"
        )
    if not Watcher.possible():
        lines.append("memory of process trees is NOT available on this system: only that of the largest")
    return lines


def sections_named(text: str) -> list[str]:
    """The value of --only."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"{name}: it must be one of {', '.join(SECTIONS)}")
    return names


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare pwire's tables, counts and Spark with tshark.")
    add = parser.add_argument
    add("captures", nargs="*", type=Path, metavar="CAPTURE", help="classic pcap, maybe .zst")
    add("--only", type=sections_named, default=list(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    add("--runs", type=int, default=3, help="runs of everything")
    add("--generated-frames", type=int, default=1_000_000, help="for table and stats; 0: none generated")
    add("--frames", type=int, help="frames in CAPTURE, if tshark cannot count them")
    add("--copies", type=int, default=10, help="copies of an input, for memory; 0: none")
    add("--spark-frames", type=int, default=2_000_000, help="for analyze and report")
    add("--file-mb", type=int, default=500, help="size of the files for analyze; 0: one file")
    add("--tshark-frames", type=int, default=1_000_000, help="of the capture for analyze that tshark reads")
    add("--master", default="local[2]", help="where analyze runs")
    add("--connections", type=int, default=5000, help="compared with 8")
    add("--connection-frames", type=int, default=1_000_000, help="frames of these two captures")
    add("--small-frames", type=int, default=260_000, help="frames of the small files")
    add("--json", type=Path, metavar="OUT", help="also write the figures to a file, after each section")
    add("--keep", type=Path, metavar="DIR", help="make captures and tables here, and reuse existing ones")
    return parser.parse_args()


@contextmanager
def scratch_directory(keep: Path | None) -> Iterator[Path]:
    """The directory for files: `keep`, or one that is removed at the end."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def main() -> None:
    """Read the command line, measure, print."""
    options = parse_arguments()
    pwire = find_pwire()
    if pwire is None:
        sys.exit("pwire is not installed")
    tshark = find_tshark()
    lines = notes(options, pwire, tshark)
    print("\n".join(lines))
    reports: dict[str, list[Record]] = {}
    with scratch_directory(options.keep) as scratch:
        for name, report in Bench(options, pwire, tshark, scratch).sections():
            reports[name] = report
            if report:
                print(f"\n{name}\n{table(report)}", flush=True)
            if options.json:
                options.json.write_text(json.dumps({"notes": lines, **reports}, indent=2) + "\n")


if __name__ == "__main__":
    main()
