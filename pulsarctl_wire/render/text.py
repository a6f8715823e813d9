"""Helpers for terminal output: escapes, colours, widths, and sizes and times for people."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import RenderableType

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
_USER: Final = re.compile(r"[^\s/@:'\"]+:(?!//)[^\s@]+@|(?<=//)[^\s/@'\"]+@")
_QUERY: Final = re.compile(r"(/[^\s?'\"]*\?)[^\s'\"]+")


def without_passwords(text: str) -> str:
    """Remove user names, passwords and queries from URLs and addresses in `text`."""
    return _QUERY.sub(r"\1…", _USER.sub("…@", text))


_REASONS_SHOWN: Final = 8
_SGR: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def cut_line(line: str, width: int, end: str = "") -> str:
    """Cut `line` to `width` cells, with … at the cut. `end`, its end, keeps at least half of the width.

    Wide characters take two cells, colour codes none.
    """
    if (len(line) <= width and line.isascii()) or cells(line) <= width:
        return line
    if end:
        start = line.removesuffix(end)
        end = cut_line(end, max(width // 2, width - cells(start)))
        return cut_line(start, width - cells(end)) + end
    from rich.cells import cell_len, set_cell_size

    parts = _SGR.split(line)
    pieces: list[str] = []
    free = width - 1
    for text, colour in zip(parts[::2], [*parts[1::2], ""], strict=True):
        size = cell_len(text)
        if size > free:
            pieces.append(set_cell_size(text, free))
            break
        pieces += (text, colour)
        free -= size
    return "".join(pieces) + "…" + ("\x1b[0m" if len(parts) > 1 else "")


def cells(line: str) -> int:
    """Return the width of `line` in cells: wide characters take two, colour codes none."""
    from rich.cells import cell_len

    return sum(map(cell_len, _SGR.split(line)[::2]))


class Paint:
    """A painter: it wraps text in colour codes if `colour` is true."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, style: str, text: str) -> str:
        """Return `text` in `style` (a key of `_CODES`)."""
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.colour and text and style else text


class Origin:
    """The time of a run's first event, for relative times. `time_ns` is None before that event."""

    time_ns: int | None = None


def clean(text: str) -> str:
    r"""Escape all characters of `text` that may affect a terminal, as \n, \xNN or \uNNNN."""
    if text.isprintable():
        return text
    if text.isascii():
        return text.encode("unicode_escape").replace(b"\\\\", b"\\").decode()
    # repr escapes just those; with a double quote added it also escapes single quotes and backslashes
    return repr(text + '"')[1:-2].replace("\\'", "'").replace("\\\\", "\\")


def count_of(number: int, name: str, names: str = "") -> str:
    """Format a number with its noun: 1 frame, 2 frames. `names` is the plural if not `name` with an s."""
    return f"{number} {noun_of(number, name, names)}"


def copies_in_words(packets: int, longer: int) -> str:
    """Say how many packets were captured twice, and that `longer` copies go on after their originals."""
    text = f"{count_of(packets, 'packet')} captured twice, counted once"
    if longer:
        verb = noun_of(longer, "copy goes", "copies go")
        text += f"; {longer} {verb} on after the original: see --keep-duplicates"
    return text


def skipped_in_words(skipped: Mapping[str, int]) -> str:
    """Return how many packets have no TCP, by reason; empty if there are none."""
    counts = sorted(((count, reason) for reason, count in skipped.items() if count > 0), reverse=True)
    texts = [
        f"{count} of {reason}, not understood" if "link type" in reason else f"{count} {reason}"
        for count, reason in counts[:_REASONS_SHOWN]
    ]
    if rest := sum(count for count, _ in counts[_REASONS_SHOWN:]):
        texts.append(f"{rest} others")
    return f"{count_of(sum(count for count, _ in counts), 'packet')}: {'; '.join(texts)}" if counts else ""


def noun_of(number: int, name: str, names: str = "") -> str:
    """Return the singular or plural that goes with a number, as `count_of`."""
    return name if number == 1 else names or f"{name}s"


def narrow(widths: list[int], indices: Sequence[int], excess: int, minimum: int) -> None:
    """Take `excess` cells from the widest of the columns `indices`, but leave `minimum` for each."""
    while excess > 0 and indices:
        ranked = sorted((widths[index] for index in indices), reverse=True)
        widest = max(indices, key=widths.__getitem__)
        step = min(excess, max(ranked[0] - (ranked[1] if len(ranked) > 1 else 0), 1), ranked[0] - minimum)
        if step <= 0:
            return
        widths[widest] -= step
        excess -= step


def did_you_mean(typo: str, candidates: Iterable[str]) -> str:
    """Return a suggestion for an unknown name: "; did you mean …?", or "" if no known name is similar."""
    from difflib import get_close_matches

    names = {name.lower(): name for name in candidates}
    matches = get_close_matches(typo[:100].lower(), names, 1)
    return f"; did you mean {names[matches[0]]}?" if matches else ""


def human_bytes(size: int) -> str:
    """Format a number of bytes: 999 B, 1.2 kB, 5.2 MB."""
    if size < 1000:
        return f"{size} B"
    for unit in ("kB", "MB", "GB"):
        size_in_unit = size / {"kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
        if size_in_unit < 999.95 or unit == "GB":
            return f"{size_in_unit:.1f} {unit}"
    raise AssertionError


def human_time(nanoseconds: int) -> str:
    """Format a duration: 873 µs, 3.97 ms, 1.20 s, 2 m 05 s, 3 h 07 m."""
    if 999_500 <= nanoseconds < 999_995_000:
        return f"{nanoseconds / 1e6:.2f} ms"
    if abs(nanoseconds) < 999_500:
        return f"{nanoseconds / 1e3:.3g} µs"
    seconds = round(nanoseconds / 1e9)
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds // 60 % 60:02} m"
    if seconds >= 60:
        return f"{seconds // 60} m {seconds % 60:02} s"
    return f"{nanoseconds / 1e9:.2f} s"


PLAIN: Final[dict[str, Any]] = {"highlight": False, "markup": False, "emoji": False, "legacy_windows": False}
"""Settings of Rich's console: text is printed as it is, without markup."""


def rich_text(parts: "Iterable[RenderableType]", width: int, color_system: str | None = None) -> str:
    """Render `parts` by rich, `width` cells wide; without escape codes if there is no `color_system`."""
    from io import StringIO

    from rich.console import Console

    console = Console(
        file=StringIO(),
        width=width,
        force_terminal=color_system is not None,
        color_system=color_system,  # type: ignore[arg-type]
        no_color=color_system is None,
        **PLAIN,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())
