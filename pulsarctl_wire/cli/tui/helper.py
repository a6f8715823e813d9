"""The process beside a screen: it starts the jobs, and cleans up after the screen, whatever ends it.

    screen ── a pipe of lines ──► helper ── fork ── a process per job

The screen's process has threads, so it cannot be forked. The helper is forked before they start, and only
waits for lines: {"filter": "match.17.3", "expression": "…"} starts a job, in place of an earlier filter
("": none); {"adopt": 4711} names a process that has to end with the screen, in place of an earlier one (0:
none); {"end": true} means that the screen has closed. If the pipe ends without that, the helper resets the
terminal.
"""

import json
import os
import select
import shutil
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.tui.job import Job, is_complete
from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.store.directory import ENDED, read_json, write_json

SERVE: Final = "serve"
"""The job that is a proxy or a broker."""

_MESSAGES: Final = "messages"  # a file of what jobs say
_SERVER_GRACE: Final = 12.0  # seconds that the server has to end
_POLL_SECONDS: Final = 0.05
_RESET: Final = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # no mouse
    b"\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[<u"  # no bracketed paste, focus events, sizes, or keys as codes
    b"\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"  # the main screen, with a cursor
)


JobFunctions = Mapping[str, Callable[[], object]]
"""Jobs by name. What a job returns is its exit code; None: 0."""


class Helper:
    """The screen's end of the pipe to its helper, which starts the jobs in `starts` at once."""

    def __init__(self, job: Job, starts: JobFunctions) -> None:
        self._filters = 0
        reader, self._writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = _terminal_state()
        self._process = os.fork()
        if not self._process:
            os.close(self._writer)
            _run(job, starts, reader, terminal)
        os.close(reader)

    def filter(self, expression: str) -> str:
        """Start a filter in place of an earlier one; return the name of its file."""
        self._filters += 1
        name = f"match.{os.getpid()}.{self._filters}"  # a store may have several screens
        self._tell({"filter": name, "expression": expression})
        return name

    def stop_filter(self) -> None:
        """Stop the filter."""
        self._tell({"filter": "", "expression": ""})

    def adopt(self, process: int) -> None:
        """Have a process of the screen end with the screen, whatever ends it; 0: there is none any more."""
        self._tell({"adopt": process})

    def end(self) -> int:
        """Tell the helper that the screen has closed, and wait; return the exit code of the jobs."""
        self._tell({"end": True})
        os.close(self._writer)
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])

    def _tell(self, value: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):
            os.write(self._writer, json.dumps(value).encode() + b"\n")


def end_with_terminal() -> None:
    """End this process as soon as its terminal is closed: what a screen writes at its end would block."""

    def watch() -> None:
        poll = select.poll()
        poll.register(sys.stdin.fileno(), 0)  # reports only that the other end is gone
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _terminal_state() -> Any:
    with suppress(termios.error, OSError, ValueError):
        return termios.tcgetattr(sys.stdin.fileno())
    return None


def _run(job: Job, starts: JobFunctions, reader: int, terminal: Any) -> NoReturn:
    """Run the helper's process. What the jobs have said goes to stderr at the end."""
    os.setpgid(0, 0)  # what stops the screen must not stop what cleans up after it
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    messages = os.open(job.directory / _MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    screen, stderr = os.dup(1), os.dup(2)
    os.dup2(messages, 1)
    os.dup2(messages, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from pulsarctl_wire.cli.tui import jobs  # noqa: F401  (here, once for all jobs: the screen does not wait)

    running = _Running(job)
    has_ended = False
    try:
        for name, run in starts.items():
            running.start(name, run)
        for request in _requests(reader, running.check_server):
            has_ended = has_ended or "end" in request
            if "filter" in request:
                running.filter(request["filter"], request["expression"])
            running.adopt(request.get("adopt"))
    finally:
        running.stop()
        if not has_ended and terminal is not None:
            _reset(screen, terminal)
        os.dup2(stderr, 2)
        code = _finish(job) if job.is_owner else 0
        os._exit(code)


def _requests(reader: int, on_idle: Callable[[], object]) -> Iterator[dict[str, Any]]:
    """Yield what comes through the pipe until it ends; call `on_idle` when nothing has come for a second."""
    rest = b""
    while True:
        if not select.select([reader], [], [], 1.0)[0]:
            on_idle()
            continue
        data = os.read(reader, 65_536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)


def _reset(screen: int, terminal: Any) -> None:
    """Restore the state that the terminal had before the screen."""
    with suppress(OSError, termios.error):
        os.write(screen, _RESET)
        termios.tcsetattr(screen, termios.TCSANOW, terminal)


def _finish(job: Job) -> int:
    """Print what the jobs have said, delete what nobody needs any more, and return the exit code."""
    directory, code = job.directory, 0
    with suppress(OSError, StoreError):
        for line in (directory / _MESSAGES).read_text(errors="replace").splitlines():
            console.warn(line.removeprefix("pwire: "))
        states = (read_json(directory, name, {}) for name in (ENDED, "reading"))
        code = max(state.get("code", 0) for state in states)
    if job.is_kept and is_complete(directory):
        (directory / _MESSAGES).unlink(missing_ok=True)
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return code


def make_reading_jobs(job: Job) -> JobFunctions:
    """Return the jobs that read captures, by name."""
    return {name: partial(_run_job, name, job) for name in ("read", "examine")}


def _run_job(name: str, *arguments: object) -> None:
    from pulsarctl_wire.cli.tui import jobs

    getattr(jobs, name)(*arguments)


class _Running:
    """The running jobs, by name."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._screen_process = os.getppid()
        self._processes: dict[str, int] = {}
        self._adopted = 0

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Run a job in a process of its own, in place of an earlier one of that name."""
        self._kill(name)
        process = os.fork()
        if process:
            self._processes[name] = process
            return
        code: object = 1
        try:
            os.setpgid(0, 0)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
            if name == "examine":
                os.nice(19)  # the screen, what it lists and what it filters come first
            with console.errors_reported():
                code = run() or 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException as error:
            console.warn(f"{name}: {type(error).__name__}: {error}")
        finally:
            try:
                self._note_end(name, code)
            finally:
                os._exit(0)

    def _note_end(self, name: str, code: object) -> None:
        """Let the screen know that the server has ended, or that reading has failed."""
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            if name == "read" and code:
                write_json(self._job.directory, "reading", {"is_done": True, "code": console.EXIT_SOURCE})
            if name == SERVE:
                write_json(self._job.directory, ENDED, {"code": code})

    def check_server(self) -> None:
        """Note the end of the server if it was killed, and could not do so itself."""
        process = self._processes.get(SERVE)
        if process is not None and os.waitpid(process, os.WNOHANG)[0]:
            del self._processes[SERVE]
            if not read_json(self._job.directory, ENDED, {}):
                console.warn("the server was killed")
                self._note_end(SERVE, 1)

    def filter(self, name: str, expression: str) -> None:
        """Run a filter whose file has this name; "": none."""
        self._kill("filter")
        for path in self._job.directory.glob(f"match.{self._screen_process}.*"):
            path.unlink(missing_ok=True)
        if name:
            self.start("filter", partial(_run_job, "filter_events", self._job, name, expression))

    def _kill(self, name: str) -> None:
        """Kill a job, if it runs; give the server time to end by itself."""
        process = self._processes.pop(name, 0)
        if not process:
            return
        with suppress(ProcessLookupError):
            if name == SERVE:  # it ends its recording, and the processes beside it
                os.kill(process, signal.SIGTERM)
                deadline = time.monotonic() + _SERVER_GRACE
                while time.monotonic() < deadline:
                    if os.waitpid(process, os.WNOHANG)[0]:
                        return
                    time.sleep(_POLL_SECONDS)
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

    def adopt(self, process: int | None) -> None:
        """End this process with the screen, in place of an earlier one; 0: none; None: no change."""
        if process is not None:
            self._adopted = process

    def stop(self) -> None:
        """Stop all jobs."""
        if self._adopted:
            with suppress(ProcessLookupError):
                os.kill(self._adopted, signal.SIGTERM)
        self.filter("", "")
        for name in list(self._processes):
            self._kill(name)
