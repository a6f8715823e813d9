"""The terminal and the shell: exit codes (docs/cli.md), colours, errors, text made safe to print."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from pulsarctl_wire import errors
from pulsarctl_wire.errors import (
    BrokerError,
    FilterError,
    InUse,
    LocalProtocolError,
    MissingLibrary,
    QueryError,
    RequestTimeout,
    SessionError,
    SettingsError,
    WireError,
)
from pulsarctl_wire.render.text import (
    PLAIN,
    Paint,
    clean,
    copies_in_words,
    skipped_in_words,
    without_passwords,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from pulsarctl_wire.record import Recorder
    from pulsarctl_wire.render.events import Render
    from pulsarctl_wire.render.line import TimeFormatter
    from pulsarctl_wire.wire.frame import Event

EXIT_USAGE: Final = 2
EXIT_SOURCE: Final = 3
EXIT_DAMAGED: Final = 4
EXIT_OUTPUT: Final = 5
EXIT_UNREACHABLE: Final = 6
EXIT_REFUSED: Final = 7
EXIT_UNANSWERED: Final = 8
EXIT_DIFFERS: Final = 9
EXIT_IN_USE: Final = 10
EXIT_MISSING: Final = 11  # a library is not installed
EXIT_LEFT: Final = 12  # `sanitize --check` found an original text in the copy
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141


def worsen_code(code: int, *, damaged: bool) -> int:
    """Return the exit code after a source that is `damaged`, or else unreadable; it was `code` before."""
    return EXIT_DAMAGED if damaged and code != EXIT_SOURCE else EXIT_SOURCE


def prepare_streams() -> None:
    """Replace closed standard streams by /dev/null; have stdout and stderr escape what they cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def warn(text: str) -> None:
    """Print one line on stderr. Control characters in `text` are escaped."""
    sys.stdout.flush()
    sys.stderr.write(f"pwire: {without_passwords(clean(text))}\n")
    sys.stderr.flush()


def warn_of_packets(skipped: Mapping[str, int], copies: int = 0, longer: int = 0) -> None:
    """Print how many packets had no TCP, by reason, and how many were captured twice, if there were any.

    `longer` is as for `copies_in_words`.
    """
    if copies:
        warn(copies_in_words(copies, longer))
    if text := skipped_in_words(skipped):
        warn(f"skipped {text}")


def fail(text: str, code: int = EXIT_USAGE) -> NoReturn:
    """Print one line on stderr and exit with `code`; by default 2: the command line is wrong."""
    warn(text)
    raise SystemExit(code)


def give_up_stdout() -> None:
    """Keep the interpreter from writing buffered output again at exit."""
    with suppress(io.UnsupportedOperation):  # stdout has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_quietly() -> NoReturn:
    """Exit quietly, as the reader of our output has closed the pipe."""
    give_up_stdout()
    raise SystemExit(EXIT_PIPE)


def own_command() -> list[str]:
    """Return the words that start pwire as this process was started, without its arguments."""
    return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]


def find_code(error: WireError) -> int:
    """Return the exit code of a command that fails with `error`."""
    codes: tuple[tuple[type[WireError], int], ...] = (
        (MissingLibrary, EXIT_MISSING),
        (BrokerError, EXIT_REFUSED),
        (RequestTimeout, EXIT_UNANSWERED),
        (SessionError, EXIT_UNREACHABLE),
        (SettingsError, EXIT_USAGE),
        (FilterError, EXIT_USAGE),
        (QueryError, EXIT_USAGE),
        (LocalProtocolError, EXIT_USAGE),
        (InUse, EXIT_IN_USE),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), EXIT_SOURCE)


@contextmanager
def errors_reported() -> Iterator[None]:
    """Turn errors of sources, sessions and the output into one line on stderr and an exit code."""
    try:
        yield
    except WireError as error:
        fail(str(error), find_code(error))
    except BrokenPipeError:
        end_quietly()
    except OSError as error:  # a full disk, a device that fails
        give_up_stdout()
        fail(f"the output cannot be written: {error.strerror or error}", EXIT_OUTPUT)


def require(*libraries: str) -> None:
    """End the command if a library is not installed; stderr says which extra brings it."""
    with errors_reported():
        errors.require(*libraries)


def refuse_source(option: str, path: str, sources: Iterable[str]) -> None:
    """Exit if `path`, the output file that `option` names, is one of `sources`, the files that are read."""
    for source in sources:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            fail(f"{option} {path}: that is one of the files to read; name another one")


def write_page(path: str | None, page: str, sources: Iterable[str]) -> None:
    """Write a page to the file that `--html` names, or to stdout without it."""
    if path is None:
        sys.stdout.write(page)
        return
    refuse_source("--html", path, sources)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        fail(f"--html {path}: {error.strerror or error}", EXIT_OUTPUT)


class Screen:
    """The options `--color` and `--wide`. There is one per process, and `reset` runs before each command."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the defaults."""
        self.colour = "auto"
        """`always`, `auto` or `never` (`--color`)."""
        self.wide = False
        """Whether lines may be wider than the terminal (`--wide`)."""


screen: Final = Screen()


def is_terminal(stream: object) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return bool(getattr(stream, "isatty", bool)()) and os.environ.get("TERM") != "dumb"


def has_colour(stream: object) -> bool:
    """Return whether to colour output to `stream`.

    `--color` decides, unless it is `auto`. Then NO_COLOR (no-color.org) and FORCE_COLOR (force-color.org)
    decide, in this order, if they are set and not empty. Otherwise terminals get colours.
    """
    if screen.colour != "auto":
        return screen.colour == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def make_console(stream: TextIO, **more: Any) -> Console:
    """Make Rich's console for `stream`: coloured as `has_colour` says, without markup. Rich gets `more`."""
    from rich.console import Console

    colour = has_colour(stream)
    settings: dict[str, Any] = {
        "file": stream,
        "force_terminal": bool(stream.isatty()),  # whatever FORCE_COLOR says
        "color_system": "standard" if colour else None,
        "no_color": not colour,
    }
    return Console(**PLAIN | settings | more)


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of the terminal, in columns; None if `stream` is not a terminal, or with `--wide`."""
    if screen.wide or not stream.isatty():
        return None
    if not os.environ.get("COLUMNS"):
        with suppress(OSError):
            return os.get_terminal_size(stream.fileno()).columns or None
    return shutil.get_terminal_size().columns


def make_renderer(
    stream: TextIO,
    output: str,
    recorder: Recorder,
    clock: TimeFormatter,
    prefix: Callable[[Event], str] | None = None,
) -> Render:
    """Make a renderer of events for `stream`, with its colours; lines are cut to the terminal's width."""
    from pulsarctl_wire.render.events import renderer

    paint, width = Paint(has_colour(stream)), partial(terminal_width, stream)
    return renderer(output, recorder, paint, clock, width=width, prefix=prefix)
