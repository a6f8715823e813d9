"""What all benchmarks share: commands started and measured, their figures, goals, and tables of these.

Whole processes are measured, and contenders take turns, so that a change in the machine's speed affects all
of them; ratios are of neighbouring runs. A process starts with its parent's peak memory, so a benchmark stays
small: the generator, and anything else that needs memory, runs in another process.
"""

import operator
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import psutil
import typer

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

HOST: Final = "127.0.0.1"
MIB: Final = 2**20
GRACE: Final = 60
"""Seconds that a process may take to start, and to end."""
INTERVAL: Final = 0.2
"""Seconds between two looks at the memory of a command's processes."""

Commands = Mapping[str, Sequence[object]]
"""Commands of contenders, by their names."""

Captures = Annotated[
    list[Path] | None, typer.Argument(exists=True, metavar="CAPTURE", help="Classic pcap, maybe .zst.")
]
Frames = Annotated[int, typer.Option(help="Frames of the generated capture; 0: none.")]
Runs = Annotated[int, typer.Option(help="Runs of each contender.")]
Only = Annotated[list[str] | None, typer.Option(metavar="SECTION", help="A section; may be repeated.")]


# -- commands


@cache
def _pwire() -> str:
    path = shutil.which("pwire", path=Path(sys.executable).parent) or shutil.which("pwire")
    if path is None:
        sys.exit("pwire is not installed")
    return path


def pwire(*words: object) -> list[str]:
    """Return a command of the `pwire` next to this Python, or of the one on PATH."""
    return [_pwire(), *map(str, words)]


class Run(NamedTuple):
    """What a command took: time in seconds, memory in MiB; its exit code, and its stderr.

    `cpu` includes processes that it started and waited for. `largest` is the peak of one process. `resident`
    is the peak of all its processes together, with shared pages counted for each; `shared_once` (the kernel's
    PSS) counts each page once.
    """

    seconds: float
    cpu: float
    largest: float
    resident: float
    shared_once: float
    processes: int
    code: int
    stderr: str


class Process:
    """A running command in a session of its own, by which its processes are found: they end with the context.

    Its stdout goes to the file `out`, nowhere, or into a pipe. `samples` are the resident memory of all its
    processes in MiB, one for each INTERVAL; `began` is when it started (s, of the performance counter).
    """

    def __init__(self, command: Sequence[object], out: Path | int = DEVNULL) -> None:
        self.samples: list[float] = []
        self._words = [str(word) for word in command]
        self._largest = self._shared_once = 0.0
        self._processes = 1
        print("  " + " ".join(self._words)[:100].splitlines()[0], file=sys.stderr)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        stdout = out if isinstance(out, int) else out.open("wb")
        self.began = time.perf_counter()
        self.popen = Popen(
            self._words, stdin=DEVNULL, stdout=stdout, stderr=self._stderr, start_new_session=True
        )
        if not isinstance(stdout, int):
            stdout.close()
        self._has_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._kill()
        self.popen.communicate()
        self._stderr.close()

    def wait(self, patience: float = GRACE) -> Run:
        """Wait for the end of the command and, for `patience` seconds, of what it started.

        Spark's Java, for example, ends later.
        """
        _, status, usage = os.wait4(self.popen.pid, 0)
        seconds = time.perf_counter() - self.began
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        self._has_ended.set()
        self._watcher.join()
        psutil.wait_procs(self._members(), patience)
        self._stderr.seek(0)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / MIB
        return Run(
            seconds,
            usage.ru_utime + usage.ru_stime,
            max(self._largest, peak),
            max(*self.samples, peak, 0),
            self._shared_once,
            self._processes,
            self.popen.returncode,
            self._stderr.read().decode(errors="replace"),
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> Run:
        """End the command by a signal, after GRACE by SIGKILL."""
        os.kill(self.popen.pid, number)
        killer = threading.Timer(GRACE, self._kill)
        killer.daemon = True
        killer.start()
        run = self.wait(patience=0)
        killer.cancel()
        if run.code == -signal.SIGKILL:
            print(f"{self._words[0]} did not end within {GRACE} s of {number.name}", file=sys.stderr)
        return run

    def await_that(self, is_ready: Callable[[], bool]) -> None:
        """Wait until the command is ready; ends the benchmark if it never is."""
        give_up = time.monotonic() + GRACE
        while not is_ready():
            if self.popen.poll() is not None or time.monotonic() > give_up:
                self._stderr.seek(0)
                sys.exit(f"{' '.join(self._words)} did not start: {self._stderr.read().decode()}")
            time.sleep(0.001)

    def _members(self) -> list[psutil.Process]:
        members = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError, PermissionError, psutil.Error):
                process = psutil.Process(pid) if os.getsid(pid) == self.popen.pid else None
                if process and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        return members

    def _kill(self) -> None:
        for member in self._members():
            with suppress(psutil.Error):
                member.kill()

    def _watch(self) -> None:
        while not self._has_ended.wait(INTERVAL):
            sizes, members = [0.0], self._members()
            for member in members:
                with suppress(psutil.Error):
                    sizes.append(member.memory_info().rss / MIB)
            if sum(sizes) > 1.01 * max(self.samples, default=0):  # only at new peaks, as this is slow
                with suppress(psutil.Error, AttributeError):  # only Linux has it
                    shared_once = sum(member.memory_full_info().pss for member in members) / MIB
                    self._shared_once = max(self._shared_once, shared_once)
            self.samples.append(sum(sizes))
            self._largest = max(self._largest, *sizes)
            self._processes = max(self._processes, len(members))


def run(command: Sequence[object], out: Path | int = DEVNULL) -> Run:
    """Run a command to its end, its stdout into `out`; ends the benchmark if it fails."""
    with Process(command, out) as process:
        run = process.wait()
    if run.code:
        sys.exit(f"{' '.join(map(str, command))} ended with {run.code}: {run.stderr[-500:]}")
    return run


def find_port() -> int:
    """Return a port that is free, and most likely stays so for a moment."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Return whether something on this machine accepts connections to a port."""
    with suppress(ConnectionRefusedError), socket.create_connection((HOST, port)):
        return True
    return False


# -- figures


BOUNDS: Final = {"≥": operator.ge, "≤": operator.le, "=": operator.eq}


class Goal(NamedTuple):
    """A limit for a contender's median or, with a peer, for its ratio to that; `case` is a pattern.

    Only "=" is for each run.
    """

    case: str
    contender: str
    column: str
    bound: str
    limit: float
    peer: str = ""


class Figures:
    """Figures by case, contender and column, with a value for each run; and how they compare with `peers`."""

    def __init__(self, goals: Sequence[Goal] = (), peers: Sequence[str] = ()) -> None:
        self._goals = goals
        self._peers = peers
        self._rows: dict[tuple[str, str], dict[str, list[float]]] = {}

    def add(self, case: str, contender: str, figures: Mapping[str, float]) -> None:
        """Add what a run of a contender gave."""
        row = self._rows.setdefault((case, contender), {})
        for column, value in figures.items():
            row.setdefault(column, []).append(value)

    def add_run(self, case: str, contender: str, run: Run, amount: int = 0, unit: str = "frames") -> None:
        """Add time and memory of a command and, if it had an amount to do, its rates."""
        rates = {f"{unit}/s": amount / run.seconds, f"{unit}/CPU s": amount / run.cpu} if amount else {}
        sizes = {"MiB": run.resident, "largest MiB": run.largest, "processes": run.processes}
        if run.shared_once:
            sizes["PSS MiB"] = run.shared_once
        self.add(case, contender, {**rates, "s": run.seconds, "CPU s": run.cpu, **sizes})

    def compare(
        self, case: str, commands: Commands, runs: int, amount: int = 0, unit: str = "frames"
    ) -> None:
        """Run the commands of contenders in turns, and add each run."""
        for _ in range(runs):
            for contender, command in commands.items():
                self.add_run(case, contender, run(command), amount, unit)

    def median(self, case: str, contender: str, column: str) -> float:
        """Return the median of the runs. Raises KeyError if there are none."""
        return statistics.median(self._rows[case, contender][column])

    def show(self) -> None:
        """Print all figures, ratios to each peer, and whether the goals are reached."""
        for peer in ("", *self._peers):
            title = f"ratio to {peer}" if peer else "contender"
            _show_table(
                {"case": case, title: contender}
                | {column: format_spread(values) for column, values in cells.items()}
                for case, contender in self._rows
                if contender != peer and (cells := self._cells(case, contender, peer))
            )
        _show_table(
            self._compare_with(goal, case)
            for goal in self._goals
            for case, contender in self._rows
            if contender == goal.contender and fnmatchcase(case, goal.case)
        )

    def _cells(self, case: str, contender: str, peer: str) -> dict[str, list[float]]:
        """Return the values of all runs or, with a peer, their ratios to its values in the same runs."""
        ours, theirs = (self._rows.get((case, name), {}) for name in (contender, peer))
        if not peer:
            return ours
        ratios = {}
        for column, values in ours.items():
            pairs = zip(values, theirs.get(column, ()), strict=False)
            ratios[column] = [our / their for our, their in pairs if their > 0]
        return {column: values for column, values in ratios.items() if values}

    def _compare_with(self, goal: Goal, case: str) -> dict[str, str]:
        values = self._cells(case, goal.contender, goal.peer).get(goal.column, [])
        checked = values if goal.bound == "=" else [statistics.median(values)] if values else []
        is_met = all(BOUNDS[goal.bound](value, goal.limit) for value in checked)
        return {
            "case": case,
            "goal of": goal.contender,
            "figure": goal.column,
            "wanted": f"{goal.bound} {format_number(goal.limit)}{goal.peer and f' times {goal.peer}'}",
            "is": format_spread(values) if values else "-",
            "met": ("yes" if is_met else "no") if values else "-",
        }


def format_number(value: float) -> str:
    """Format a number for a table."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def format_spread(values: Sequence[float]) -> str:
    """Format the median of some runs, with the least and the greatest if they differ."""
    least, greatest = format_number(min(values)), format_number(max(values))
    median = format_number(statistics.median(values))
    return median if least == greatest else f"{median} ({least} to {greatest})"


def _show_table(rows: Iterable[Mapping[str, str]]) -> None:
    if not (rows := list(rows)):
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, *([row.get(name, "") for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    print(flush=True)


def measure(
    sections: Mapping[str, Callable[[Figures], None]],
    only: Sequence[str] | None = None,
    goals: Sequence[Goal] = (),
    peers: Sequence[str] = (),
) -> None:
    """Measure all sections, or only some, and print each as soon as it is complete."""
    for name in only or ():
        if name not in sections:
            raise typer.BadParameter(f"{name} is not one of {', '.join(sections)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything started is ended
    version = subprocess.run(pwire("--version"), capture_output=True, text=True, check=True).stdout.strip()
    load = f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    print(f"{version}; {load}; medians (least to greatest)\n")
    for name in only or sections:
        print(f"-- {name}")
        figures = Figures(goals, peers)
        sections[name](figures)
        figures.show()
