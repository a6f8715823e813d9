"""Shows the screen of `pwire tui`, `proxy --tui` and `broker --tui`: on this terminal, or in a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.errors import FilterError

if TYPE_CHECKING:
    from pulsarctl_wire.cli.tui.helper import JobFunctions
    from pulsarctl_wire.cli.tui.job import Job
    from pulsarctl_wire.record import Recorder
    from pulsarctl_wire.store.reader import StoreReader
    from pulsarctl_wire.tui.model import Jobs, Session

STORE_VARIABLE: Final = "PWIRE_STORE"
"""The environment variable that names the store to show, in processes that `--web` starts for pages."""


def attached_store() -> Path | None:
    """Return the store that `--web` gives this process to show; None: it makes its own."""
    path = os.environ.get(STORE_VARIABLE)
    return Path(path) if path else None


def require_screen(name: str, web: int | None, instead: str) -> None:
    """End the command if there is no terminal for a screen, nor a browser. `instead` says what else to do."""
    console.require("textual", *(["textual_serve"] if web is not None else []))
    if web is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        console.fail(f"{name}: this is no terminal; --web PORT shows the screen in a browser, {instead}")


def show(job: Job, starts: JobFunctions, make_session: Callable[[Jobs], Session], web: int | None) -> int:
    """Show the screen until the user quits; return the exit code.

    `starts` are the jobs to start, if the store is ours. `web` is the port of `--web`; None: this terminal.
    """
    from pulsarctl_wire.cli.tui.helper import Helper, end_with_terminal

    helper = Helper(job, starts if job.is_owner else {})
    code = 0
    try:
        if web is not None and job.is_owner:
            _serve(web, job.directory)
        else:
            end_with_terminal()
            from pulsarctl_wire.tui.app import PwireApp

            app = PwireApp(make_session(helper))
            app.run()
            code = app.return_code or 0
    finally:
        code = helper.end() or code
    return code


def _serve(port: int, directory: Path) -> None:
    """Serve screens of a store until a signal comes, or until the server that fills the store has ended."""
    from pulsarctl_wire.net.settings import Address
    from pulsarctl_wire.net.sockets import bind_socket
    from pulsarctl_wire.store.directory import ENDED, read_json
    from pulsarctl_wire.tui.web import HOSTS, serve_screens

    try:
        sock = bind_socket(Address(HOSTS[0], port))
    except OSError as error:
        console.fail(f"--web {port}: {error.strerror}; name another port, or 0", console.EXIT_IN_USE)
    os.environ |= {
        STORE_VARIABLE: str(directory),
        "FORCE_COLOR": "1",  # a browser has colours: no pipe has
        "PYTHONWARNINGS": "ignore",  # of Textual, when a page is closed
    }
    say = partial(print, file=sys.stdout, flush=True)
    with redirect_stdout(sys.stderr):
        serve_screens(
            sock,
            [*console.own_command(), *sys.argv[1:]],
            say,
            has_ended=lambda: bool(read_json(directory, ENDED, {})),
        )


def make_session(
    job: Job, title: str, jobs: Jobs, *, first: int | None = None, expression: str | None = None
) -> Session:
    """Return what the screen needs; `first` is the frame to go to, `expression` the first filter."""
    from pulsarctl_wire.cli.capture.explain import explain_rule
    from pulsarctl_wire.cli.capture.select import FirstError
    from pulsarctl_wire.cli.tui.export import Export
    from pulsarctl_wire.record import RECORD_NAMES
    from pulsarctl_wire.store.reader import StoreReader
    from pulsarctl_wire.tui.model import Session

    recorder = job.make_recorder()
    export = Export(recorder, title, partial(_name_answer, StoreReader(job.directory)), jobs)
    return Session(
        job.directory,
        title,
        jobs,
        recorder,
        job.display.time_format,
        check=partial(_check_filter, recorder),
        explain=explain_rule,
        names=sorted(RECORD_NAMES),
        is_error=FirstError(recorder),
        export=export,
        replay=export.replay,
        link=job.sources[0] if len(job.sources) == 1 else "",
        colour=console.has_colour(sys.stdout),
        first=first,
        expression=expression or "",
    )


def _check_filter(recorder: Recorder, text: str) -> None:
    """Raise FilterError for an expression that is wrong; the error does not repeat it."""
    from pulsarctl_wire.cli.capture.select import Expression

    try:
        Expression(text, recorder, "filter")
    except FilterError as error:
        raise FilterError(str(error).removeprefix(f"filter {text}: ")) from error


def _name_answer(reader: StoreReader, number: int) -> str:
    """Return the command of the frame that answers frame `number`; "" if there is none."""
    from pulsarctl_wire.wire.frame import Frame

    reader.refresh()
    answer = reader.answer_of(number)
    position = None if answer is None else reader.position_of(answer)
    event = None if position is None else reader.event(position)
    return event.command if isinstance(event, Frame) else ""
