"""Splits a text into numbered lines as it is read, in bounded memory."""

import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import Final

from pulsarctl_wire.errors import CaptureError

Line = tuple[int, str]
"""The number of a line, from 1, and its text.

Parts of a line have the same number: `Piece`s of a very long one, and those that `unescape` makes.
"""

MAX_LINE: Final = 32 << 20
"""Maximum characters of a line that is needed as a whole."""

_LONGEST: Final = 64 << 10
_BREAKS: Final = " ,;\t\\"  # where a long line is broken: at a separator, or before an escape
_ENCODINGS: Final = {BOM_UTF16_LE: "utf-16-le", BOM_UTF16_BE: "utf-16-be"}
_CONTROLS: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f\v\b\x1b")
_ESCAPE: Final = re.compile(r"\\(r\\n|[nt\"\\/])")
_ESCAPED: Final = {"r\\n": "\n", "n": "\n", "t": "\t"}  # others stand for themselves
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Piece(str):
    """A piece of a very long line, which goes on in the next text."""

    __slots__ = ()


def is_text(head: bytes) -> bool:
    """Return whether a file that starts with `head` is text. A few control characters do not matter."""
    if head[:2] in _ENCODINGS:
        return True
    controls = sum(byte in _CONTROLS for byte in head)
    return 0 not in head and controls * 100 <= len(head)


def split_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Yield the lines of a text, without colours; a very long one in pieces.

    The text is UTF-8, or UTF-16 if it begins with its byte order mark. Only line feeds end lines.
    """
    chunk_iterator = iter(chunks)
    first = b""
    while len(first) < 2 and (chunk := next(chunk_iterator, b"")):
        first += chunk
    decoder = getincrementaldecoder(_ENCODINGS.get(first[:2], "utf-8"))("replace")
    number, text = 1, decoder.decode(first).removeprefix("\ufeff")
    while True:
        *lines, text = text.split("\n")
        for line in lines:
            for piece in _break_line(_clean(line), 0):
                yield number, piece
            number += 1
        *pieces, text = _break_line(text, _LONGEST)
        for piece in pieces:
            yield number, Piece(_clean(piece))
        if not (chunk := next(chunk_iterator, b"")):
            break
        text += decoder.decode(chunk)
    for piece in _break_line(_clean(text + decoder.decode(b"", True)), 0):
        yield number, piece


def _clean(line: str) -> str:
    line = line.rstrip("\r")
    return _COLOUR.sub("", line) if "\x1b" in line else line


def _break_line(line: str, keep: int) -> Iterator[str]:
    """Yield a line in pieces of at most `_LONGEST` characters; the last may have up to `keep` more."""
    start = 0
    while len(line) - start > _LONGEST + keep:
        end = start + _LONGEST
        position = max(line.rfind(sign, start + 1, end) for sign in _BREAKS)
        if position > start and line[position] == "\\":  # not in the middle of \\\\
            position = start + len(line[start:position].rstrip("\\"))
        stop = position if position > start else end
        yield Piece(line[start:stop])
        start = stop
    yield line[start:]


def unescape(lines: Iterable[Line]) -> Iterator[Line]:
    """Undo the escapes of JSON strings in lines.

    An escaped line feed splits a line; its parts keep its number.
    """
    for number, line in lines:
        if "\\" not in line:
            yield number, line
            continue
        *parts, last = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), line).split("\n")
        for part in parts:
            yield number, part
        yield number, Piece(last) if isinstance(line, Piece) else last


def join_pieces(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines with the pieces of long ones joined again.

    Raises CaptureError for a line of more than `MAX_LINE` characters.
    """
    number, pieces, size = 0, list[str](), 0
    for number, piece in lines:
        pieces.append(piece)
        size += len(piece)
        if size > MAX_LINE:
            raise CaptureError(f"line {number} has more than {MAX_LINE} characters")
        if not isinstance(piece, Piece):
            yield number, "".join(pieces)
            pieces, size = [], 0
    if pieces:
        yield number, "".join(pieces)
