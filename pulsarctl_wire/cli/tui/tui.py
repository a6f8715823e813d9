"""`pwire tui`: looks around in captures with the keyboard."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire import __version__
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.findings import CheckOptions
from pulsarctl_wire.cli.options import WEB, DisplayOptions, ReadOptions
from pulsarctl_wire.cli.signature import argument, group, option
from pulsarctl_wire.cli.tui.screen import attached_store, make_session, require_screen, show

if TYPE_CHECKING:
    from pulsarctl_wire.cli.tui.job import Job

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
    web: int | None = WEB()
    display: DisplayOptions = group(DisplayOptions)
    read: ReadOptions = group(ReadOptions)
    checks: CheckOptions = group(CheckOptions)


def tui(options: TuiOptions) -> int:
    """Look around in captures with the keyboard: frames, fields, bytes, topics, findings."""
    require_screen("tui", options.web, "pwire decode prints frames anywhere")
    sources, first = _split_links(options.sources)
    if any(map(os.path.isdir, sources)):
        from pulsarctl_wire.cli.capture.reading import find_captures

        sources = find_captures(sources)
    for source in sources:
        if source != "-" and not os.path.exists(source) and attached_store() is None:
            console.fail(f"{source}: no such file", console.EXIT_SOURCE)
    if "-" in sources:
        console.fail("tui: stdin is the keyboard; save the capture to a file first")
    if first is not None and len(sources) > 1:
        console.fail(f"FILE#{first}: frames of several sources are numbered together; give one source")
    with console.errors_reported():
        from pulsarctl_wire.cli.tui.helper import make_reading_jobs
        from pulsarctl_wire.cli.tui.job import is_complete

        _check(options)
        job = make_job(options, sources)
        starts = {} if is_complete(job.directory) else make_reading_jobs(job)
        session = partial(make_session, job, _title(sources), first=first, expression=options.expression)
        return show(job, starts, session, options.web)


def _title(sources: list[str]) -> str:
    names = ", ".join(map(os.path.basename, sources[:3]))
    return names + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")


def _check(options: TuiOptions) -> None:
    """Raise an error, or end the command, for what would only fail behind the screen."""
    if options.checks != CheckOptions():
        options.checks.pick_rules()
    if options.expression is not None:
        from pulsarctl_wire.cli.capture.select import Expression
        from pulsarctl_wire.record import Recorder

        Expression(options.expression, Recorder())
    if options.read.keylogs:
        from pulsarctl_wire.capture.secrets import require_keylogs

        require_keylogs(options.read.keylogs)


def _split_links(sources: list[str]) -> tuple[list[str], int | None]:
    """Return the files of sources, and the number of the frame to begin at: the last FILE#123 has it.

    A source that is the whole name of a file is no FILE#123.
    """
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
    """Make the job of a screen. Its store is the one that `--web` gives it, one in the cache, or a new one.

    A new one is temporary. It is needed if TLS keys are given, if a source is no regular file, and if another
    process is writing to the store in the cache.
    """
    from pulsarctl_wire.cli.tui.job import Job, is_complete
    from pulsarctl_wire.pipeline.files.paths import cache_directory

    root = cache_directory() / "events"
    directory = attached_store()
    is_owner = directory is None
    is_kept = is_owner and not options.read.keylogs and all(map(os.path.isfile, sources))
    if is_kept:
        directory = root / _cache_key(options, sources)
        _forget_oldest(root, directory)
        if is_complete(directory):
            os.utime(directory)
        else:
            is_kept = _begin(directory)
    if directory is None or (is_owner and not is_kept):
        directory = Path(tempfile.mkdtemp(prefix="pwire-"))
    return Job(directory, sources, options.read, options.display, options.checks, is_kept, is_owner)


def _forget_oldest(root: Path, current: Path) -> None:
    """Delete the stores that were opened least recently, if all together are too large; `current` stays."""
    import shutil
    from contextlib import suppress

    with suppress(OSError):
        directories = [path for path in root.iterdir() if path != current and not _is_used(path)]
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


def _cache_key(options: TuiOptions, sources: list[str]) -> str:
    """Return the name of the store for these files, read with these options."""
    from hashlib import sha256

    files = []
    for source in sources:
        status = os.stat(source)
        files.append((os.path.realpath(source), status.st_size, status.st_mtime_ns, status.st_ino))
    return sha256(repr((_FORMAT, __version__, files, options.read, options.checks)).encode()).hexdigest()[:32]
