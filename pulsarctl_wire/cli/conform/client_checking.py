"""What `pwire conform client` does: runs the client in cases, and reports."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Final

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.conform.options import ClientOptions
from pulsarctl_wire.cli.conform.reporting import Progress, choose, deliver, list_cases, list_frames
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.catalog import load_client_cases
from pulsarctl_wire.conformance.clients.command import CommandStage
from pulsarctl_wire.conformance.report import Report, make_report
from pulsarctl_wire.conformance.runner import make_plan, run_plan
from pulsarctl_wire.conformance.verdict import Outcome
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.sinks import Follower, Sink

_JOBS: Final = 4
"""Cases that run at once, by default: each starts a process."""
_PLACEHOLDERS: Final = ("{url}", "{topic}", "{count}")
"""What a command must have; {timeout} and {keepalive} are optional."""

Commands = dict[str, list[str]]
"""Modes (produce, consume) -> the words of the command that starts the client."""


def check_client(options: ClientOptions) -> int:
    """Run the chosen cases with a client, or list them; return the exit code."""
    cases = choose(options.cases, options.choice.level, load_client_cases())
    if options.choice.listing:
        return list_cases(cases, options.report.output)
    commands = _parse_commands(options)
    report, outcomes = asyncio.run(_run(options, cases, commands))
    return deliver(options.report, report, outcomes)


def _parse_commands(options: ClientOptions) -> Commands:
    """Split the commands of the client into words. Ends pwire if one of them cannot work."""
    commands = {}
    for mode, text in (("produce", options.produce), ("consume", options.consume)):
        if text is None:
            continue
        try:
            words = shlex.split(text)
        except ValueError as error:
            console.fail(f"--{mode}: {error}")
        missing = [name for name in _PLACEHOLDERS if not any(name in word for word in words)]
        if missing:
            console.fail(f"--{mode}: the command needs {' and '.join(missing)}")
        if shutil.which(words[0]) is None:
            console.fail(f"--{mode}: {words[0][:100]} is no command that can be found")
        commands[mode] = words
    if not commands:
        console.fail("conform client: name the client: --produce COMMAND, --consume COMMAND, or -- COMMAND")
    return commands


async def _run(
    options: ClientOptions, cases: Sequence[Case], commands: Commands
) -> tuple[Report, list[Outcome]]:
    """Run cases; return the report, and the outcome of each case."""
    start, date = time.perf_counter(), datetime.now(timezone.utc)
    seconds = {"timeout": options.timeout, "keepalive": options.keepalive}
    plan = make_plan(cases, frozenset(commands), options.cases, options.choice.jobs or _JOBS)
    progress = Progress(len(cases))
    outcomes = await run_plan(plan, partial(CommandStage, commands, seconds), progress.add)
    progress.end()
    version, protocol_version = _find_version(outcomes)
    about = {
        "target": " · ".join(shlex.join(words) for words in commands.values()),
        "server": version,
        "protocol_version": protocol_version,
        "date": date.isoformat(),
        "seconds": round(time.perf_counter() - start, 3),
        "pwire": __version__,
        "settings": sorted(commands),
    }
    return make_report(about, outcomes, list_frames), outcomes


class _Greeting(Sink):
    """Keeps what CONNECT says of the client."""

    def __init__(self) -> None:
        self.version, self.protocol_version = "", 0

    def events(self, events: list[Event]) -> None:
        """Look for CONNECT."""
        for event in events:
            if isinstance(event, Frame) and event.command == "CONNECT" and event.body is not None:
                self.version = event.body.client_version
                self.protocol_version = event.body.protocol_version


def _find_version(outcomes: Sequence[Outcome]) -> tuple[str, int]:
    """Return the version of the client, and its version of the protocol, as the client states them."""
    greeting = _Greeting()
    for outcome in outcomes:
        if outcome.transcript is not None and not greeting.version:
            follower = Follower([greeting])
            outcome.transcript.replay(follower)
            follower.finish()
    return greeting.version or "unknown", greeting.protocol_version
