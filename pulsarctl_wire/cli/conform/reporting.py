"""What checks of brokers and clients share: the choice of cases, progress, reports and captures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.checks.requirement import LEVELS, MUST
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.recording import RecordingSink
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.catalog import Cases, select
from pulsarctl_wire.conformance.report import Report
from pulsarctl_wire.conformance.report import list_cases as describe_cases
from pulsarctl_wire.conformance.verdict import ERROR, FAILED, PASSED, Outcome
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.conformance import junit_of, markdown_of, text_of
from pulsarctl_wire.render.events import renderer
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Paint, clean, did_you_mean
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.sinks import Follower, Sink

if TYPE_CHECKING:
    from pulsarctl_wire.cli.conform.options import ReportOptions

EXIT_FAILED: Final = 1
_MAX_FRAMES: Final = 200  # of each case in a report
_MAX_REPORT: Final = 256 << 20  # bytes


def choose(patterns: list[str], level: str, cases: Cases) -> list[Case]:
    """Return the cases that `patterns` match and that are at least as binding as `level`.

    A case that a pattern names in full is returned whatever its level. A pattern that matches no case ends
    the command, and so does a level that no case has.
    """
    for pattern in patterns:
        if not select([pattern], cases):
            console.fail(f"no case is called {pattern[:100]}{did_you_mean(pattern, cases) or '; see --list'}")
    levels = LEVELS[: LEVELS.index(level) + 1]
    choice = [case for case in select(patterns, cases) if case.level in levels or case.id in patterns]
    if not choice:
        console.fail(f"--level {level}: no case of {' '.join(patterns)[:100]} is as binding; see --list")
    return choice


def list_cases(cases: list[Case], output: str) -> int:
    """Print cases; return the exit code."""
    if output == "json":
        sys.stdout.write("".join(f"{json.dumps(case)}\n" for case in describe_cases(cases)))
    else:
        width = max(len(case.id) for case in cases)
        for case in cases:
            needs = f"  (needs {', '.join(case.needs)})" if case.needs else ""
            sentence = case.paragraphs[""].partition(". ")[0].rstrip(".")
            sys.stdout.write(f"{case.id:<{width}}  {case.level:<8}  {sentence}{needs}\n")
    sys.stdout.flush()
    return 0


def deliver(options: ReportOptions, report: Report, outcomes: Sequence[Outcome]) -> int:
    """Print a report, and write the files that the options name; return the exit code."""
    if options.captures is not None:
        verdicts = {FAILED, ERROR} if options.captures_of == "failed" else {PASSED, FAILED, ERROR}
        _write_captures(options.captures, [outcome for outcome in outcomes if outcome.verdict in verdicts])
    _write_file("--junit", options.junit, junit_of(report))
    _write_file("--markdown", options.markdown, markdown_of(report).encode())
    if options.output == "json":
        sys.stdout.write(f"{json.dumps(report)}\n")
    else:
        paint = Paint(console.has_colour(sys.stdout))
        sys.stdout.write(text_of(report, paint, frames=options.frames))
    sys.stdout.flush()
    has_failed = any(outcome.verdict == FAILED and outcome.case.level == MUST for outcome in outcomes)
    return EXIT_FAILED if has_failed else 0


class Progress:
    """A line on stderr, if that is a terminal."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._done = self._failed = 0
        self._is_shown = console.is_terminal(sys.stderr)

    def add(self, outcome: Outcome) -> None:
        """Count a case."""
        self._done += 1
        self._failed += outcome.verdict == FAILED
        if self._is_shown:
            sys.stderr.write(f"\r{self._done} of {self._number} cases, {self._failed} failed\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# -- frames and captures


class _Lines(Sink):
    """Keeps frames as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._render = renderer("line", Recorder(), Paint(False), TimeFormatter(), width=lambda: None)

    def events(self, events: list[Event]) -> None:
        """Render frames."""
        self.lines += [line.decode().rstrip("\n") for line in self._render(events)]


def list_frames(outcome: Outcome) -> list[str]:
    """Return the frames of a case, one per line; only the last `_MAX_FRAMES` if there are more."""
    if outcome.transcript is None:
        return []
    lines = _Lines()
    follower = Follower([lines])
    outcome.transcript.replay(follower)
    follower.finish()
    return lines.lines[-_MAX_FRAMES:]


def _write_captures(folder: str, outcomes: Sequence[Outcome]) -> None:
    """Write the traffic of cases, each as a pcapng file; credentials are masked."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.fail(f"--captures {folder}: {error.strerror}", console.EXIT_OUTPUT)
    for outcome in outcomes:
        path = Path(folder) / f"{outcome.case.id.replace('/', '-')}.pcapng"
        sink = RecordingSink(str(path), console.warn, "the report", show_secrets=False)
        if outcome.transcript is not None:
            follower = Follower([sink])
            outcome.transcript.replay(follower)
            follower.finish()


def _write_file(flag: str, path: str | None, content: bytes) -> None:
    if path is None:
        return
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        console.fail(f"{flag} {path}: {error.strerror}", console.EXIT_OUTPUT)


def read_report(path: str) -> Any:
    """Read a report. A file that is not a report ends the command."""
    try:
        with open(path, "rb") as file:
            report = json.loads(file.read(_MAX_REPORT))
        keys = {"target", "server", "protocol_version", "date", "seconds", "pwire", "settings", "counts"}
        if not isinstance(report, dict) or not keys <= report.keys():
            raise ValueError("keys are missing")
        for case in report["cases"]:
            case["id"], case["level"], case["verdict"]
    except OSError as error:
        console.fail(f"{path}: {error.strerror}", console.EXIT_SOURCE)
    except (ValueError, KeyError, TypeError):
        console.fail(f"{clean(path)}: not a report of pwire conform -o json", console.EXIT_SOURCE)
    return report
