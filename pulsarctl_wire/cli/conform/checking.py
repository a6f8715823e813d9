"""What `pwire conform broker` does: connects, runs cases, and writes reports and captures."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire import __version__
from pulsarctl_wire.checks.requirement import LEVELS, MUST
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.recording import RecordingSink
from pulsarctl_wire.conformance.basics.admin import Admin
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.basics.settings import SECONDS, SETTINGS, VISIBLE
from pulsarctl_wire.conformance.basics.target import Place, RemoteTarget
from pulsarctl_wire.conformance.basics.tokens import make_tokens
from pulsarctl_wire.conformance.catalog import CASES, select
from pulsarctl_wire.conformance.report import Report, make_report
from pulsarctl_wire.conformance.report import list_cases as describe_cases
from pulsarctl_wire.conformance.runner import make_plan, run_plan
from pulsarctl_wire.conformance.survey import Survey, survey
from pulsarctl_wire.conformance.verdict import ERROR, FAILED, PASSED, Outcome, parse_release
from pulsarctl_wire.net.settings import Settings, gather, make_settings, parse_url
from pulsarctl_wire.net.sockets import allow_many_sockets
from pulsarctl_wire.net.web import make_headers
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.conformance import junit_of, markdown_of, text_of
from pulsarctl_wire.render.events import renderer
from pulsarctl_wire.render.line import Clock
from pulsarctl_wire.render.text import Paint, clean, did_you_mean
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.sinks import Follower, Sink

if TYPE_CHECKING:
    from pulsarctl_wire.cli.conform.options import BrokerOptions

EXIT_FAILED: Final = 1
_SHORTEST: Final = 2.0
"""Seconds that --have can give a time: cases look a second before and after it."""
_MAX_FRAMES: Final = 200  # of a case in a report
_MAX_REPORT: Final = 256 << 20  # bytes


def list_cases(options: BrokerOptions) -> int:
    """Print the chosen cases; returns the exit code."""
    # the first argument is no URL then
    patterns = [*filter(None, [options.url]), *options.cases]
    patterns = [pattern for pattern in patterns if "://" not in pattern]
    cases = _choose(patterns, options.level)
    if options.output == "json":
        sys.stdout.write("".join(f"{json.dumps(case)}\n" for case in describe_cases(cases)))
    else:
        width = max(len(case.id) for case in cases)
        for case in cases:
            needs = f"  (needs {', '.join(case.needs)})" if case.needs else ""
            first = case.paragraphs[""].partition(". ")[0].rstrip(".")
            sys.stdout.write(f"{case.id:<{width}}  {case.level:<8}  {first}{needs}\n")
    sys.stdout.flush()
    return 0


def _choose(patterns: list[str], level: str) -> list[Case]:
    """Return the cases of these ids, which are at least as binding as `level` unless named in full."""
    for pattern in patterns:
        if not select([pattern]):
            console.fail(f"no case is called {pattern[:100]}{did_you_mean(pattern, CASES) or '; see --list'}")
    levels = LEVELS[: LEVELS.index(level) + 1]
    return [case for case in select(patterns) if case.level in levels or case.id in patterns]


def check_broker(options: BrokerOptions) -> int:
    """Run the chosen cases against a broker; returns the exit code."""
    if options.url is None:
        console.fail("conform broker: name the broker, as in pulsar://localhost:6650")
    parse_url(options.url)
    cases = _choose(options.cases, options.level)
    settings = make_settings(
        gather({**options.auth.collect_flags(), "url": options.url}, os.environ, options.auth.conf)
    )
    claims, seconds = _parse_claims(options.have)
    place = _make_place(options, settings, seconds)
    allow_many_sockets()
    report, outcomes = asyncio.run(_run(options, cases, place, claims))
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


def _parse_claims(texts: list[str]) -> tuple[frozenset[str], dict[str, float]]:
    """Parse --have: names of settings, and times of others as NAME=SECONDS."""
    names, seconds = set(), dict(SECONDS)
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name in SECONDS and value.replace(".", "", 1).isdecimal() and float(value) >= _SHORTEST:
            seconds[name] = float(value)
        elif not equals and name in SETTINGS:
            names.add(name)
        else:
            choices = ", ".join(
                [*(name for name in SETTINGS if name not in VISIBLE), *map("{}=SECONDS".format, SECONDS)]
            )
            console.fail(f"--have {text[:60]}: use one of {choices}")
    return frozenset(names), seconds


def _make_place(options: BrokerOptions, settings: Settings, seconds: dict[str, float]) -> Place:
    """Return the broker that the options name. Raises SettingsError."""
    key = None if options.token_key is None else _read_key(options.token_key)
    tokens = {} if key is None else make_tokens(key)
    auth, credentials = settings.auth, {}
    headers = make_headers(auth)
    if auth.method != "none":
        credentials = {"auth_method_name": auth.method, "auth_data": auth.data()}
    elif tokens:
        credentials = {"auth_method_name": "token", "auth_data": tokens["admin"].encode()}
        headers = {"Authorization": f"Bearer {tokens['admin']}"}
    admin = None
    if options.admin_url is not None:
        if not options.admin_url.startswith(("http://", "https://")):
            console.fail(f"--admin-url {options.admin_url[:100]}: it begins with http:// or https://")
        context = settings.tls_context() if options.admin_url.startswith("https://") else None
        admin = Admin(options.admin_url, headers, context)
    tls = settings.tls_context() if settings.url.tls else None
    run = secrets.token_hex(4)
    return Place(settings.url.addresses[0], run, tls, credentials, admin, key, tokens, seconds)


def _read_key(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        console.fail(f"--token-key {path}: {error.strerror}")


async def _run(
    options: BrokerOptions, cases: list[Case], place: Place, claims: frozenset[str]
) -> tuple[Report, list[Outcome]]:
    """Run cases; returns the report, and what came of each."""
    make_target = partial(RemoteTarget, place)
    began, date = time.perf_counter(), datetime.now(timezone.utc)
    async with make_target() as target:
        result = await survey(target)
    settings = _join_settings(result, claims, place)
    plan = make_plan(cases, settings, options.cases, options.jobs, parse_release(result.server))
    progress = Progress(len(cases))
    outcomes = await run_plan(plan, make_target, progress.add)
    progress.end()
    scheme = "pulsar" if place.tls is None else "pulsar+ssl"
    about = {
        "target": f"{scheme}://{place.address}",
        "server": result.server,
        "protocol_version": result.protocol_version,
        "date": date.isoformat(),
        "seconds": round(time.perf_counter() - began, 3),
        "pwire": __version__,
        "settings": sorted(settings),
    }
    return make_report(about, outcomes, list_frames), outcomes


def _join_settings(result: Survey, claims: frozenset[str], place: Place) -> frozenset[str]:
    """Return the settings that cases can rely on: those that were seen, and those that we were told of."""
    settings = result.settings | claims
    if place.admin is not None:
        settings |= {"admin"}
    return settings if place.key is not None else settings - {"auth"}


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
        self._render = renderer("line", Recorder(), Paint(False), Clock(), width=lambda: None)

    def events(self, events: list[Event]) -> None:
        """Render frames."""
        self.lines += [line.decode().rstrip("\n") for line in self._render(events)]


def list_frames(outcome: Outcome) -> list[str]:
    """Return the frames of a case, a line each; of many, the last."""
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
    """Read a report. A file that is none ends the command."""
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
        console.fail(f"{clean(path)}: not a report of pwire conform broker -o json", console.EXIT_SOURCE)
    return report
