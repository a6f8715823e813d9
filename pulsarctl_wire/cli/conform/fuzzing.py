"""What `pwire conform fuzz` does: connects, fuzzes, and writes a script for each finding."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.conformance.basics.target import BrokerAccess, RemoteTarget
from pulsarctl_wire.conformance.fuzzing.fuzzer import MAX_FINDINGS, Finding, Fuzzer, Plan, Tally
from pulsarctl_wire.conformance.fuzzing.script import write_script
from pulsarctl_wire.net.settings import Address, Settings, gather, make_settings, parse_url
from pulsarctl_wire.net.sockets import allow_many_sockets, explain_failure, look_up
from pulsarctl_wire.render.text import clean

if TYPE_CHECKING:
    from pulsarctl_wire.cli.conform.options import FuzzOptions

EXIT_FINDINGS: Final = 1


def run_fuzzer(options: FuzzOptions) -> int:
    """Fuzz a broker until the time is up, or until Ctrl-C; returns the exit code."""
    parse_url(options.url)  # refuses the URL of a web service
    settings = make_settings(
        gather({**options.auth.collect_flags(), "url": options.url}, os.environ, options.auth.conf)
    )
    allow_many_sockets()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    return asyncio.run(_run(options, settings, seed))


async def _run(options: FuzzOptions, settings: Settings, seed: int) -> int:
    address = settings.url.addresses[0]
    if not options.remote:
        await _require_loopback(address)
    scripts = Scripts(options.out, options.url, seed)
    progress = Progress()

    def report(finding: Finding) -> None:
        progress.clear()
        scripts.write(finding)

    plan = Plan(
        partial(RemoteTarget, _make_access(settings)),
        seed,
        options.minutes * 60,
        options.jobs,
        options.patience,
        max_sessions=options.sessions or sys.maxsize,
    )
    fuzzer = Fuzzer(plan, report, progress.show)
    task = asyncio.ensure_future(fuzzer.run())
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()

    def interrupt() -> None:
        interrupted.set()
        fuzzer.stop()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends the process at once
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    with suppress(asyncio.CancelledError):
        await task
    progress.clear()
    sys.stdout.write(f"{summarise(fuzzer.tally, seed)}\n")
    sys.stdout.flush()
    if fuzzer.tally.findings:
        return EXIT_FINDINGS
    return console.EXIT_INTERRUPTED if interrupted.is_set() else 0


async def _require_loopback(address: Address) -> None:
    """End the command if a host is not this machine."""
    try:
        infos = await look_up(address)
    except (OSError, UnicodeError) as error:
        raise explain_failure(address, error, has_tls=False) from None
    if not all(ip_address(info[4][0].partition("%")[0]).is_loopback for info in infos):
        console.fail(f"{address}: not on this machine; say --remote to fuzz a broker elsewhere")


def _make_access(settings: Settings) -> BrokerAccess:
    """Return the broker that the options name. Raises SettingsError."""
    auth = settings.auth
    has_auth = auth.method != "none"
    credentials = {"auth_method_name": auth.method, "auth_data": auth.data()} if has_auth else {}
    tls = settings.tls_context() if settings.url.tls else None
    return BrokerAccess(settings.url.addresses[0], secrets.token_hex(4), tls, credentials)


class Scripts:
    """Writes a script for each finding to `folder`, by default a new temporary one."""

    def __init__(self, folder: str | None, url: str, seed: int) -> None:
        self._folder = folder
        self._url = url
        self._seed = seed

    def write(self, finding: Finding) -> None:
        """Write the script of a finding, and name it on stdout."""
        problem = finding.problem
        kind = "-".join(problem.kind.lower().split())
        name = f"fuzz-{self._seed}-{finding.session.number}-{kind}.jsonl"
        lines = [
            f"{problem.kind}: seed {self._seed}, session {finding.session.number}",
            f"expected: {problem.expected}",
            f"actual: {problem.actual}",
            f"pwire send --url {self._url} --no-handshake {name}",
        ]
        if not finding.is_repeatable:
            lines.insert(1, "it did not come again when this was sent alone")
        path = self._make_folder() / name
        try:
            path.write_text(write_script(finding.exchanges, map(clean, lines)), encoding="utf-8")
        except OSError as error:
            console.fail(f"{path}: {error.strerror}", console.EXIT_OUTPUT)
        text = f"{problem.kind}: expected {problem.expected}, but {problem.actual}"
        sys.stdout.write(f"{clean(text)}\n    {path}\n")
        sys.stdout.flush()

    def _make_folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="pwire-fuzz-")
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            console.fail(f"--out {self._folder}: {error.strerror}", console.EXIT_OUTPUT)
        return Path(self._folder)


class Progress:
    """A line on stderr, if that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = console.is_terminal(sys.stderr)

    def show(self, tally: Tally) -> None:
        """Show how far a run is."""
        if self._is_shown:
            text = f"{tally.sessions:,} sessions, {tally.frames:,} frames, {len(tally.findings)} findings"
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def summarise(tally: Tally, seed: int) -> str:
    """Return the last line: what was done, and what came of it."""
    mutations = ", ".join(f"{kind} {count:,}" for kind, count in tally.mutations.most_common())
    findings = len(tally.findings)
    text = f"{tally.sessions:,} sessions, {tally.frames:,} frames; mutations: {mutations or 'none'}; "
    text += f"{findings} finding{'s' * (findings != 1)}"
    if findings == MAX_FINDINGS:
        text += ", the most of a run"
    if tally.oddities:
        text += f", {tally.oddities} silences that did not come again"
    return f"{text}; seed {seed}"
