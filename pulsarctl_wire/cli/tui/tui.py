"""`pwire tui`: looks around in captures with the keyboard."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.cli.options import DisplayOptions, ReadOptions
from pulsarctl_wire.cli.signature import argument, group, option
from pulsarctl_wire.errors import FilterError

if TYPE_CHECKING:
    from pulsarctl_wire.cli.tui.job import Job
    from pulsarctl_wire.record import Recorder
    from pulsarctl_wire.store.reader import StoreReader
    from pulsarctl_wire.tui.app import PwireApp
    from pulsarctl_wire.tui.model import Jobs, Session

_MAX_CACHE_BYTES: Final = 4 * 1024**3  # of all that is kept
_FORMAT: Final = 1  # of stores: changes when older ones cannot be read


@dataclass(frozen=True, kw_only=True)
class TuiOptions:
    """The command line of `tui`; docs/cli.md describes its options."""

    sources: list[str] = argument(
        "SOURCE...", "As for decode, without stdin; FILE#123 begins at that frame of a file."
    )
    expression: str | None = option(
        "-f --filter EXPR", "Show only frames for which this holds; as in decode."
    )
    display: DisplayOptions = group(DisplayOptions)
    read: ReadOptions = group(ReadOptions)
    checks: CheckOptions = group(CheckOptions)


def tui(options: TuiOptions) -> int:
    """Look around in captures with the keyboard: frames, fields, bytes, topics, findings."""
    console.require("textual")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        console.fail("tui: this is no terminal; pwire decode prints frames anywhere")
    sources, first = _split_links(options.sources)
    if any(map(os.path.isdir, sources)):
        from pulsarctl_wire.cli.capture.reading import find_captures

        sources = find_captures(sources)
    for source in sources:
        if source != "-" and not os.path.exists(source):
            console.fail(f"{source}: no such file", console.EXIT_SOURCE)
    if "-" in sources:
        console.fail("tui: stdin is the keyboard; save the capture to a file first")
    if first is not None and len(sources) > 1:
        console.fail(f"FILE#{first}: frames of several sources are numbered together; give one source")
    with console.errors_reported():
        from pulsarctl_wire.cli.tui.job import is_complete

        _check(options)
        job = make_job(options, sources)
        return run(job, options, first, reads=not is_complete(job.directory))


def _check(options: TuiOptions) -> None:
    """Raise an error, or end the command, for what would only fail behind the screen."""
    options.checks.pick_rules()
    if options.expression is not None:
        from pulsarctl_wire.cli.capture.select import Expression
        from pulsarctl_wire.record import Recorder

        Expression(options.expression, Recorder())
    if options.read.keylogs:
        from pulsarctl_wire.capture.secrets import require_keylogs

        require_keylogs(options.read.keylogs)


def _split_links(sources: list[str]) -> tuple[list[str], int | None]:
    """Split FILE#123 into the file and the number of a frame, unless that is the name of a file."""
    paths, first = [], None
    for source in sources:
        path, sign, number = source.rpartition("#")
        if sign and number.isdecimal() and not os.path.exists(source):
            paths.append(path)
            first = int(number)
        else:
            paths.append(source)
    return paths, first


def make_job(options: TuiOptions, sources: list[str]) -> Job:
    """Choose where the events are kept: in the cache, unless they come from what TLS hides."""
    from pulsarctl_wire.cli.tui.job import Job, is_complete
    from pulsarctl_wire.pipeline.files.paths import cache_directory

    root = cache_directory() / "events"
    is_kept = not options.read.keylogs and all(map(os.path.isfile, sources))
    directory = None
    if is_kept:
        directory = root / _key(options, sources)
        _forget_oldest(root, directory)
        if is_complete(directory):
            os.utime(directory)
        else:
            is_kept = _begin(directory)
    if directory is None or not is_kept:
        directory = Path(tempfile.mkdtemp(prefix="pwire-"))
    return Job(directory, sources, options.read, options.display, options.checks, is_kept)


def _forget_oldest(root: Path, kept: Path) -> None:
    """Delete what was not opened for the longest time, if all is too much. `kept` stays."""
    import shutil
    from contextlib import suppress

    with suppress(OSError):
        directories = [path for path in root.iterdir() if path != kept and not _is_used(path)]
        sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in directories}
        for path in sorted(directories, key=lambda path: path.stat().st_mtime):
            if sum(sizes.values()) > _MAX_CACHE_BYTES:
                sizes[path] = 0
                shutil.rmtree(path, ignore_errors=True)


def _is_used(directory: Path) -> bool:
    """Return whether the process that made a directory, and may be writing to it, still runs."""
    try:
        os.kill(int((directory / "owner").read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def _begin(directory: Path) -> bool:
    """Make an empty directory; return False if another process is writing to it."""
    import shutil

    if _is_used(directory):
        return False
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    (directory / "owner").write_text(str(os.getpid()))
    return True


def _key(options: TuiOptions, sources: list[str]) -> str:
    """Return the name of the directory for these files, read in this way."""
    from hashlib import sha256

    files = []
    for source in sources:
        status = os.stat(source)
        files.append((os.path.realpath(source), status.st_size, status.st_mtime_ns, status.st_ino))
    return sha256(repr((_FORMAT, __version__, files, options.read, options.checks)).encode()).hexdigest()[:32]


def run(job: Job, options: TuiOptions, first: int | None, *, reads: bool) -> int:
    """Show the screen until the user quits; returns the exit code."""
    from pulsarctl_wire.cli.tui.helper import Helper, end_with_terminal, reading

    helper = Helper(job, reading(job) if reads else {})
    end_with_terminal()
    try:
        from pulsarctl_wire.tui.app import PwireApp

        names = ", ".join(map(os.path.basename, job.sources[:3]))
        title = names + (f" and {len(job.sources) - 3} more" if len(job.sources) > 3 else "")
        app = PwireApp(make_session(job, title, helper, first=first, expression=options.expression))
        app.run()
    finally:
        helper.end()
    return end_screen(app)


def end_screen(app: PwireApp) -> int:
    """Print what the processes beside a screen have said, and return the exit code."""
    for message in app.model.messages:
        console.warn(message)
    code: int = app.return_code or app.model.reading.get("code", 0)
    return code


def make_session(
    job: Job, title: str, jobs: Jobs, *, first: int | None = None, expression: str | None = None
) -> Session:
    """Return what the screen needs."""
    from pulsarctl_wire.cli.capture.explain import explain_rule
    from pulsarctl_wire.cli.capture.select import FirstError
    from pulsarctl_wire.cli.tui.export import Export
    from pulsarctl_wire.record import RECORD_NAMES
    from pulsarctl_wire.store.reader import StoreReader
    from pulsarctl_wire.tui.model import Session

    recorder = job.make_recorder()
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
        export=Export(recorder, title, partial(_name_answer, StoreReader(job.directory))),
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
