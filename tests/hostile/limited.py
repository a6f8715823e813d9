"""Runs `pwire` in processes with limits on memory and time, each a fork of one that has imported it all: a
start costs milliseconds. A process makes one run, or many in a row.

    python limited.py    a JSON list a line on stdin: CPU seconds of a run, then the arguments of each run;
                         a list of `Run`s a line on stdout, which ends with the one that ended the process
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

SECONDS: Final = 10
"""CPU time of a run. The promise is 5 s; machines differ."""

MEMORY: Final = 400
"""MiB that may be resident."""

ENDS: Final = (0, 3, 4)
"""Exit codes: done, no source that pwire reads, a damaged one."""

FORMS: Final = {
    "line": ["decode", "-o", "line"],
    "tree": ["decode", "-o", "tree"],
    "json": ["decode", "-o", "json"],
    "hex": ["decode", "-o", "hex"],
    "connections": ["decode", "--connections", "--jobs", "1"],
    "first error": ["decode", "--first-error"],
    "filter": ["decode", "-f", 'topic =~ "x.*" or $any([m.size > 1000000 for m in messages])'],
    "permits": ["permits", "--rows", "256"],
    "permits page": ["permits", "-o", "html"],
    "sequence": ["sequence"],
    "sequence svg": ["sequence", "-o", "svg", "--no-fold", "--rows", "2000"],
    "doctor": ["doctor", "--fail-on", "never"],
    "stats": ["stats"],
    "table": ["table", "--out"],
}

_PATIENCE: Final = 20
"""How many times its CPU time a process of runs may last; one of less than 10 s, as long as one of 10 s."""


class Run(NamedTuple):
    """What became of a run: exit code (negative: the signal), CPU seconds, the process's MiB up to then,
    the end of stderr and its size in bytes."""

    code: int
    seconds: float
    mib: float
    stderr: str
    stderr_size: int

    def broken(self, seconds: int = SECONDS, ends: Container[int] = ENDS, memory: int = MEMORY) -> str:
        """Which promise does not hold, those of CPU seconds and exit codes among them; "" if all do.

        `memory` is in MiB.
        """
        if "Traceback" in self.stderr:
            return "a traceback"
        if self.code not in ends:
            return f"exit code {self.code}"
        if self.mib >= memory:
            return f"{self.mib:.0f} MiB"
        if self.seconds >= seconds:
            return f"{self.seconds:.1f} s"
        return f"{self.stderr_size} bytes on stderr" if self.stderr_size >= 10_000 else ""


class Runs:
    """Has `pwire` run in limited processes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, *runs: list[str], seconds: int = SECONDS) -> list[Run]:
        """What became of each run with these arguments, up to the one that ended the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([seconds, *runs]) + "\n")
        self._process.stdin.flush()
        return [Run(*each) for each in json.loads(self._process.stdout.readline())]


@contextmanager
def limited() -> Iterator[Runs]:
    """The one who forks them."""
    with subprocess.Popen(
        [sys.executable, Path(__file__)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield Runs(process)
        assert process.stdin is not None
        process.stdin.close()


def _fork(seconds: int, runs: list[list[str]]) -> list[Run]:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile("w+") as told:
        child = os.fork()
        if not child:
            try:
                _be_pwire(seconds, runs, errors, told)
            finally:
                os._exit(1)
        _, status, usage = os.wait4(child, 0)
        told.seek(0)
        done = [Run(*json.loads(line)) for line in told]
        if len(done) < len(runs):
            used = usage.ru_utime + usage.ru_stime - sum(run.seconds for run in done)
            code = os.waitstatus_to_exitcode(status)
            done.append(Run(code, used, usage.ru_maxrss / 1024, *_end_of(errors)))
        return done


def _be_pwire(seconds: int, runs: list[list[str]], errors: IO[bytes], told: IO[str]) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, nothing, errors.fileno())):
        os.dup2(descriptor, number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for arguments in runs:
        before = _used()
        resource.setrlimit(resource.RLIMIT_CPU, (int(before) + 1 + seconds, resource.RLIM_INFINITY))
        signal.alarm(_PATIENCE * max(seconds, 10))
        errors.seek(0)
        errors.truncate()
        gc.unfreeze()  # a run may keep what is there from being collected
        code = _one(arguments)
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        told.write(json.dumps(Run(code, _used() - before, mib, *_end_of(errors))) + "\n")
        told.flush()
    os._exit(0)


def _one(arguments: list[str]) -> int:
    from pulsarctl_wire.cli import main

    sys.argv = ["pwire", *arguments]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _used() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _end_of(errors: IO[bytes]) -> tuple[str, int]:
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(size - 2000, 0))
    return errors.read().decode("utf-8", "replace"), size


if __name__ == "__main__":
    import importlib

    verbs = ("decode", "doctor", "doctor_job", "job", "permits", "sequence", "stats", "table", "table_job")
    views = (
        *("hexview", "jsonl", "line", "permits", "permits_page", "sequence_svg", "sequence_text"),
        *("stats_page", "tree"),
    )
    rooms = {"cli.capture": verbs, "cli.session": ("consume", "consume_run", "send"), "render": views}
    for room, names in rooms.items():  # what each run finds imported
        for name in names:
            importlib.import_module(f"pulsarctl_wire.{room}.{name}")
    import rule_engine  # noqa: F401

    for line in sys.stdin:
        seconds, *runs = json.loads(line)
        print(json.dumps(_fork(seconds, runs)), flush=True)  # noqa: T201
