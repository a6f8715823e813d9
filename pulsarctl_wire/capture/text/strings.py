r"""Parses strings with escapes: literals of Python, C, Go, Rust, JavaScript; what strace and gdb print.

b"\x00\x00\x00)\x00..."    "\0\0\0)\0..."    "\u0000\u0000"    "\000", '\000' <repeats 20 times>
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from pulsarctl_wire.capture.text.dump import PIECE, UNKNOWN_SIZE, Dump, Repeats
from pulsarctl_wire.capture.text.hex_digits import PROMPTS
from pulsarctl_wire.capture.text.lines import Line, join_pieces
from pulsarctl_wire.capture.text.times import time_in
from pulsarctl_wire.errors import CaptureError

_BYTES_QUOTE: Final = re.compile(r"""(?<!\w)([bB])[rR]?(["'])""")
_QUOTE: Final = re.compile(r"""(?<!\w)(?:([bB])[rR]?)?(["'])""")
_PIECES: Final = {
    quote: re.compile(
        r"\\(?:x([0-9A-Fa-f]{2})|([0-7]{1,3})|u(?:([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\})|(.))"
        + rf"|([^{quote}\\]+)"
    )
    for quote in ('"', "'", "")
}
_ESCAPES: Final = {
    "a": b"\a", "b": b"\b", "e": b"\x1b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"',
}  # fmt: skip
_NUMERIC: Final = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|[0-7]{1,3}|u[0-9A-Fa-f]{4}|u\{)")
_SPECIAL: Final = re.compile(r"""["'\\]""")
_BETWEEN: Final = re.compile(r"[\s\\,+.()]*(?:(?:#|//|/\*).*)?")
_REPEATS: Final = re.compile(r" <repeats ([0-9]{1,7}) times>")
_CUT: Final = re.compile(r"\.{3}|\u2026")
_MIN_ESCAPES: Final = 3  # of a string without quotes


def parse_bytes_literals(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse literals with the prefix b, as Python and Rust have them."""
    return _parse_literals(lines, prefixed=True)


def parse_strings(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse strings with numeric escapes, and those that follow one with nothing in between."""
    return _parse_literals(lines, prefixed=False)


def _parse_literals(lines: Iterable[Line], *, prefixed: bool) -> Iterator[Dump]:
    """Yield the bytes of literals; those with nothing in between belong together."""
    quotes = _BYTES_QUOTE if prefixed else _QUOTE
    repeats = Repeats()
    record: Dump | None = None  # that the next literal may continue
    for number, line in join_pieces(lines):
        if line.lstrip().startswith(PROMPTS):
            continue
        position = end = 0
        unclosed = ""  # quotes that do not occur again in this line
        while match := quotes.search(line, position):
            if record is not None and not _BETWEEN.fullmatch(line, end, match.start()):
                yield record
                record = None
            start, quote, is_bytes = match.end(), match[2], bool(match[1])
            position = end = start
            if quote in unclosed:
                continue
            stop = _skip_literal(line, start, quote)
            last = stop if stop >= 0 else len(line)
            if not (is_bytes or record is not None or _NUMERIC.search(line, start, last)):
                position = end = max(stop, start)
                if stop < 0:
                    unclosed += quote
                continue
            data, end, missing = read_literal(line, start, quote, number, repeats, is_bytes=is_bytes)
            position = end
            if record is None:
                record = Dump(b"", time_in(line[: match.start()]), line=number)
            record = replace(record, data=record.data + data, missing=missing)
            if missing or len(record.data) > PIECE:
                yield replace(record, more=not missing)
                record = None if missing else replace(record, data=b"")
        if record is not None and not _BETWEEN.fullmatch(line, end):
            yield record
            record = None
    if record is not None:
        yield record


def _skip_literal(line: str, start: int, quote: str) -> int:
    """Return the position after the end of the string that starts there; -1 if it is not closed."""
    position = start
    while match := _SPECIAL.search(line, position):
        if match[0] == quote:
            return match.end()
        position = match.end() + (match[0] == "\\")
    return -1


def read_literal(
    line: str, position: int, quote: str, number: int, repeats: Repeats, *, is_bytes: bool = False
) -> tuple[bytes, int, int]:
    """Return the bytes of the string whose content starts at `position`, and where it ends.

    Third comes how many bytes are missing after it: `UNKNOWN_SIZE` if "..." follows. Raises CaptureError.
    """
    data, position = read_escapes(line, position, quote, number, is_bytes=is_bytes)
    if line[position : position + 1] != quote:
        raise CaptureError(f"line {number}: the string is not closed")
    position += 1
    if match := _REPEATS.match(line, position):
        times, position = int(match[1]), match.end()
        repeats.take(times * len(data), number)
        data *= times
    cut = _CUT.match(line, position)
    return data, cut.end() if cut else position, UNKNOWN_SIZE if cut else 0


def read_escapes(
    line: str, position: int, quote: str, number: int, *, is_bytes: bool = False
) -> tuple[bytes, int]:
    """Return the bytes of a text with escapes up to the `quote`, or the end of the line; and where that is.

    Characters beyond ASCII stand for their UTF-8 in double quotes if the line has \\x or \\0 (Go). Otherwise
    they stand for a byte each (Python, JSON), or for their UTF-8 if some do not fit into a byte.
    """
    out = bytearray()
    coding = "utf-8" if quote == '"' and ("\\x" in line or "\\0" in line) else "latin-1"
    while match := _PIECES[quote].match(line, position):
        pair, octal, unit, braced, escape, text = match.groups()
        if pair:
            out.append(int(pair, 16))
        elif octal:
            if int(octal, 8) > 255:
                raise CaptureError(f"line {number}: \\{octal} is more than a byte")
            out.append(int(octal, 8))
        elif unit or braced:
            out += _encode(chr(min(int(unit or braced, 16), 0x10FFFF)), coding)
        elif text:
            out += _ascii(text, number) if is_bytes else _encode(text, coding)
        elif escape in _ESCAPES:
            out += _ESCAPES[escape]
        elif escape == "x":
            raise CaptureError(f"line {number}: \\x without two hex digits")
        else:
            out += b"\\" + (_ascii(escape, number) if is_bytes else _encode(escape, coding))  # as Python does
        position = match.end()
    return bytes(out), position


def _encode(text: str, coding: str) -> bytes:
    try:
        return text.encode(coding)
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _ascii(text: str, number: int) -> bytes:
    if not text.isascii():
        raise CaptureError(f"line {number}: a string of bytes may only have ASCII and escapes")
    return text.encode("ascii")


def parse_unquoted(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse escapes without quotes, from the first one up to the end of a line."""
    for number, line in join_pieces(lines):
        first = _NUMERIC.search(line)
        if first is None or _QUOTE.search(line, 0, first.start()):
            continue
        if len(_NUMERIC.findall(line, first.start())) >= _MIN_ESCAPES:
            data, _ = read_escapes(line.rstrip(), first.start(), "", number)
            yield Dump(data, time_in(line[: first.start()]), line=number)
