"""The terminal and the shell: exit codes, colours, one-line errors, text made safe to print.

Exit codes, documented in docs/cli.md:

    0    done
    1    a bug in pwire (a traceback)
    2    the command line is wrong: unknown option, bad value, bad expression
    3    a source cannot be read, or is nothing that pwire reads
    4    a source breaks off or is damaged: all before that was shown
    5    an output file cannot be written
    6    no connection to a broker, or it was lost
    7    a broker refused
    8    a broker did not answer in time
    9    a broker answers a replay otherwise than was recorded
    130  interrupted by Ctrl-C
    141  the reader of a pipe has gone
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from pulsarctl_wire.errors import (
    BrokerError,
    FilterError,
    LocalProtocolError,
    SessionError,
    SettingsError,
    Unanswered,
    WireError,
)

if TYPE_CHECKING:
    from rich.console import Console

EXIT_USAGE: Final = 2
EXIT_SOURCE: Final = 3
EXIT_DAMAGED: Final = 4
EXIT_OUTPUT: Final = 5
EXIT_UNREACHABLE: Final = 6
EXIT_REFUSED: Final = 7
EXIT_UNANSWERED: Final = 8
EXIT_DIFFERS: Final = 9
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141

_CODES: Final = {
    "dim": "2",
    "bold": "1",
    "red": "1;31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def prepare_streams() -> None:
    """Make what was closed at the start read and write nothing; let no character fail for its encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def complain(text: str) -> None:
    """Say one line on stderr; control characters in it are escaped."""
    sys.stdout.flush()
    sys.stderr.write(f"pwire: {without_passwords(clean(text))}\n")
    sys.stderr.flush()


_USER: Final = re.compile(r"[^\s/@:'\"]+:(?!//)[^\s@]+@|(?<=//)[^\s/@'\"]+@")
_QUERY: Final = re.compile(r"(/[^\s?'\"]*\?)[^\s'\"]+")


def without_passwords(text: str) -> str:
    """`text` without the user names, passwords and queries of the URLs and addresses in it."""
    return _QUERY.sub(r"\1…", _USER.sub("…@", text))


def fail(text: str, code: int) -> NoReturn:
    """Say one line on stderr and end with exit code `code`."""
    complain(text)
    raise SystemExit(code)


def _give_up_stdout() -> None:
    """Keep the interpreter from trying once more to write what could not be written."""
    with suppress(io.UnsupportedOperation):  # a stdout that is no file needs no care
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_of_pipe() -> NoReturn:
    """End quietly, for nobody reads our output any more."""
    _give_up_stdout()
    raise SystemExit(EXIT_PIPE)


def code_of(error: WireError) -> int:
    """The exit code of a command that `error` ends."""
    codes: tuple[tuple[type[WireError], int], ...] = (
        (BrokerError, EXIT_REFUSED),
        (Unanswered, EXIT_UNANSWERED),
        (SessionError, EXIT_UNREACHABLE),
        (SettingsError, EXIT_USAGE),
        (FilterError, EXIT_USAGE),
        (LocalProtocolError, EXIT_USAGE),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), EXIT_SOURCE)


@contextmanager
def errors_said() -> Iterator[None]:
    """What goes wrong with sources, sessions or the output ends the command with one line."""
    try:
        yield
    except WireError as error:
        fail(str(error), code_of(error))
    except BrokenPipeError:
        end_of_pipe()
    except OSError as error:  # a full disk, a device that fails
        _give_up_stdout()
        fail(f"the output cannot be written: {error.strerror}", EXIT_OUTPUT)


class Screen:
    """What the command line says about the screen. One for the process; `reset` before each command."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As if the command line said nothing."""
        self.colour = "auto"
        """`always`, `auto` or `never` (`--color`)."""
        self.wide = False
        """Whether lines may be wider than the terminal (`--wide`)."""


screen: Final = Screen()


def is_terminal(stream: object) -> bool:
    """Whether `stream` is a terminal that can move its cursor."""
    return bool(getattr(stream, "isatty", bool)()) and os.environ.get("TERM") != "dumb"


def use_colour(stream: object) -> bool:
    """Whether to colour what goes to `stream`.

    `--color` decides, then NO_COLOR (no-color.org), then FORCE_COLOR (force-color.org), each if it is set to
    anything but the empty string; otherwise terminals get colours.
    """
    if screen.colour != "auto":
        return screen.colour == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def rich_console(stream: TextIO, **more: Any) -> "Console":
    """Rich's console for `stream`, with the colours of `use_colour`; text is no markup."""
    from rich.console import Console

    colour = use_colour(stream)
    settings: dict[str, Any] = {
        "file": stream,
        "force_terminal": bool(stream.isatty()),  # whatever FORCE_COLOR says
        "color_system": "standard" if colour else None,
        "no_color": not colour,
        "highlight": False,
        "markup": False,
        "emoji": False,
        "legacy_windows": False,
    }
    return Console(**settings | more)


def terminal_width(stream: TextIO) -> int | None:
    """The columns of the terminal that `stream` is; None if it is none, or if `--wide` was given."""
    if screen.wide or not stream.isatty():
        return None
    if not os.environ.get("COLUMNS"):
        with suppress(OSError):
            return os.get_terminal_size(stream.fileno()).columns or None
    return shutil.get_terminal_size().columns


_SGR: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def cut_line(line: str, width: int, kept: str = "") -> str:
    """`line` in at most `width` cells, with … where it was cut: `kept`, its end, is cut to no less than half.

    Wide characters take two cells, colours none.
    """
    if (len(line) <= width and line.isascii()) or _cells(line) <= width:
        return line
    if kept:
        before = line.removesuffix(kept)
        kept = cut_line(kept, max(width // 2, width - _cells(before)))
        return cut_line(before, width - _cells(kept)) + kept
    from rich.cells import cell_len, set_cell_size

    parts = _SGR.split(line)
    shown: list[str] = []
    room = width - 1
    for text, colour in zip(parts[::2], [*parts[1::2], ""], strict=True):
        size = cell_len(text)
        if size > room:
            shown.append(set_cell_size(text, room))
            break
        shown += (text, colour)
        room -= size
    return "".join(shown) + "…" + ("\x1b[0m" if len(parts) > 1 else "")


def _cells(line: str) -> int:
    from rich.cells import cell_len

    return sum(map(cell_len, _SGR.split(line)[::2]))


class Paint:
    """Wraps text in colours, or leaves it alone where there are to be none."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, style: str, text: str) -> str:
        """`text` in `style` (a key of the table above)."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.colour and text and style else text


class Origin:
    """When a run's first event was captured, for relative times. `time_ns` is None until then."""

    time_ns: int | None = None


def clean(text: str) -> str:
    r"""`text` with everything that a terminal might act on as \xNN or \uNNNN; spaces and letters stay."""
    if text.isprintable():
        return text
    if text.isascii():
        return text.encode("unicode_escape").replace(b"\\\\", b"\\").decode()
    # repr escapes just that; with a double quote in it, it escapes single quotes and backslashes too
    return repr(text + '"')[1:-2].replace("\\'", "'").replace("\\\\", "\\")


def count_of(number: int, name: str, names: str = "") -> str:
    """How many of what: 1 frame, 2 frames; `names` are several where that is not `name` with an s."""
    return f"{number} {name if number == 1 else names or f'{name}s'}"


def narrow(widths: list[int], names: Sequence[int], excess: int, least: int) -> None:
    """Take `excess` cells off the widest of the columns `names`, but leave each `least`."""
    while excess > 0 and names:
        ranked = sorted((widths[at] for at in names), reverse=True)
        widest = max(names, key=widths.__getitem__)
        step = min(excess, max(ranked[0] - (ranked[1] if len(ranked) > 1 else 0), 1), ranked[0] - least)
        if step <= 0:
            return
        widths[widest] -= step
        excess -= step


def meant(typo: str, known: Iterable[str]) -> str:
    """What follows an error about a name that is none: "; did you mean …?", or nothing if nothing is near."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known}
    near = get_close_matches(typo[:100].lower(), names, 1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def human_bytes(size: int) -> str:
    """A number of bytes for people: 999 B, 1.2 kB, 5.2 MB."""
    if size < 1000:
        return f"{size} B"
    for unit in ("kB", "MB", "GB"):
        size_in_unit = size / {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
        if size_in_unit < 999.95 or unit == "GB":
            return f"{size_in_unit:.1f} {unit}"
    raise AssertionError


def human_time(nanoseconds: int) -> str:
    """A span for people: 873 µs, 3.97 ms, 1.20 s, 2 m 05 s, 3 h 07 m."""
    if 1_000_000 <= nanoseconds < 1_000_000_000:
        return f"{nanoseconds / 1e6:.2f} ms"
    if abs(nanoseconds) < 1_000_000:
        return f"{nanoseconds / 1e3:.3g} µs"
    seconds = round(nanoseconds / 1e9)
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds // 60 % 60:02} m"
    if seconds >= 60:
        return f"{seconds // 60} m {seconds % 60:02} s"
    return f"{nanoseconds / 1e9:.2f} s"
