"""`--tui`: a screen for the traffic of a proxy or a broker, which runs in a process beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.tui.screen import attached_store, make_session, require_screen, show

if TYPE_CHECKING:
    from pulsarctl_wire.cli.proxy.options import FaultOptions, WatchOptions
    from pulsarctl_wire.tui.model import Jobs, Session
    from pulsarctl_wire.wire.frame import Frame

Serve = Callable[["WatchOptions", "FaultOptions"], int]
"""Runs a proxy or a broker with these options until a signal comes; returns its exit code."""


def run_live(kind: str, watch_options: WatchOptions, fault_options: FaultOptions, serve: Serve) -> int:
    """Show the traffic of what `serve` runs until the user quits; return the exit code.

    `kind` is the verb: proxy or broker.
    """
    web = watch_options.web
    require_screen(f"{kind} --tui", web, "--tap prints frames anywhere")
    if watch_options.tap or watch_options.stats:
        console.fail(f"{kind}: --tui cannot be combined with --tap or --stats: it takes the whole terminal")
    from pulsarctl_wire.cli.options import ReadOptions
    from pulsarctl_wire.cli.tui.helper import SERVE
    from pulsarctl_wire.cli.tui.job import Job

    attached = attached_store()
    directory = attached or Path(tempfile.mkdtemp(prefix="pwire-"))
    control = Path(fault_options.control or directory / "control.sock")
    job = Job(
        *(directory, [], ReadOptions(), watch_options.display, watch_options.checks),
        is_kept=False,
        is_owner=attached is None,
    )
    watch = replace(watch_options, tui=False, web=None, store=str(directory))
    faults = replace(fault_options, control=str(control))

    def make_live_session(jobs: Jobs) -> Session:
        from pulsarctl_wire.tui.model import Intercept

        session = make_session(job, f"{kind}, live", jobs, expression=watch_options.selection.expression)
        intercept = Intercept(_make_ask(control, kind), *_make_converters(), _refuse, _catalogue())
        return replace(session, live=True, intercept=intercept)

    return show(job, {SERVE: lambda: serve(watch, faults)}, make_live_session, web)


def _make_ask(control: Path, kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    from pulsarctl_wire.net.control import ask

    seconds = 5.0  # in which the answer must come
    return lambda request: ask(control, request, seconds, kind)


def _make_converters() -> tuple[Callable[[bytes], str], Callable[[str], bytes]]:
    """Make the functions that turn a frame into a text to edit, and such a text into a frame."""
    import json

    from pulsarctl_wire.conformance.fuzzing.script import write_line
    from pulsarctl_wire.errors import LocalProtocolError
    from pulsarctl_wire.wire.json_command import parse_line

    def describe(data: bytes) -> str:
        line = write_line(data)
        return json.dumps(json.loads(line), indent=2, ensure_ascii=False) if line.startswith("{") else line

    def parse(text: str) -> bytes:
        try:
            data = parse_line(" ".join(text.split("\n")))
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error
        if not isinstance(data, bytes):
            raise LocalProtocolError("this is no frame")
        return data

    return describe, parse


def _refuse(frame: Frame) -> bytes:
    """Build an answer that refuses a frame; PONG if no answer can."""
    from pulsarctl_wire.faults.answers import build_refusal
    from pulsarctl_wire.wire.commands import build_command
    from pulsarctl_wire.wire.frame import build_frame

    refusal = build_refusal(frame, "ServiceNotReady", "answered by pwire")
    return build_frame(refusal if refusal.IsInitialized() else build_command("PONG"))


def _catalogue() -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Return all faults: name, what it does, and parameters with their defaults and help."""
    from pulsarctl_wire.faults import FAULTS
    from pulsarctl_wire.faults.base import Fault

    common = Fault.list_parameters()
    return [(kind.name, kind.describe(), [*kind.list_parameters(), *common]) for kind in FAULTS]
