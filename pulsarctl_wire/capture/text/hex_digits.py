r"""Parses hex digits without offsets: a text of nothing else, and digits inside the lines of a log.

A text of digits (hex streams, xxd -p, `0x09, 0x12` of any language, \x09\x12) may have comments and prompts;
lines of something else are skipped, but a line of digits with a typo is an error, because bytes that were
silently lost would look like a malformed frame later.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from pulsarctl_wire.capture.text.dump import PIECE, UNKNOWN_SIZE, Dump
from pulsarctl_wire.capture.text.lines import Line, join_pieces
from pulsarctl_wire.capture.text.times import time_in
from pulsarctl_wire.errors import CaptureError

PROMPTS: Final = ("$ ", "#", "//", "% ")
"""How lines begin that are commands or comments."""

_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
_DECIMAL: Final = re.compile("[0-9]")  # a word of prose may consist of the letters a to f: "added"
_SEPARATORS: Final = str.maketrans(dict.fromkeys(",;:-()[]", " "))
_MIN_HEX_WORDS: Final = 4  # in a line that is taken for hex with a typo
_EMBEDDED: Final = re.compile(
    r"(?<![\w-])(?:0[xX]|\\+x)?((?:[0-9A-Fa-f]{2}[ :-]?){7,}[0-9A-Fa-f]{2})(\.{3}|\u2026)?(?!\w)"
)
_ROW_BEFORE: Final = re.compile(r"(?:^|\W|\\n)(?:0[xX])?[0-9A-Fa-f]{4,16}[:|]?\s+$")


def parse_hex_digits(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse a text of hex digits; a line may end between the two digits of a byte, as in a wrapped stream.

    Raises CaptureError at a typo.
    """
    data = bytearray()
    has_digits = False
    edge, last, first = "", 0, 0
    for number, line in lines:
        if not has_digits and line.lstrip().startswith(PROMPTS):
            continue
        tokens = _tokens(line)
        if tokens is None or not (has_digits or (tokens and _DECIMAL.search(line))):
            _reject_typos(number, line, 1 if has_digits else 4)
            continue
        has_digits = True
        for index, token in enumerate(tokens, 1):
            digits = edge + token
            edge, last = "", number
            first = first or number
            if len(digits) % 2:
                if index < len(tokens):
                    raise CaptureError(f"line {number}: {shorten(token)} has an odd number of hex digits")
                digits, edge = digits[:-1], digits[-1]
            data += bytes.fromhex(digits)
        if len(data) >= PIECE:
            yield Dump(bytes(data), None, more=True, line=first)
            data.clear()
    if edge:
        raise CaptureError(f"line {last}: an odd number of hex digits")
    if has_digits:
        yield Dump(bytes(data), None, line=first)


def parse_embedded_hex(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse the hex digits of at least 8 bytes in the lines of a log, a record each."""
    for number, line in join_pieces(lines):
        for match in _EMBEDDED.finditer(line):
            if _ROW_BEFORE.search(line, max(match.start() - 24, 0), match.start()):
                break  # a row of a hex dump, which is read as such or not at all
            digits = re.sub("[ :-]", "", match[1])
            missing = UNKNOWN_SIZE if match[2] else 0
            yield Dump(bytes.fromhex(digits), time_in(line), missing=missing, line=number)


def _tokens(line: str) -> list[str] | None:
    """Return the hex digits of a line, without prefixes and separators; None if it has anything else."""
    if _HEX.fullmatch(line):
        return [line]
    tokens: list[str] = []
    for word in _words(line):
        prefixed = word[:2] in ("0x", "0X")
        digits = word[2:] if prefixed else word
        if not _HEX.fullmatch(digits):
            return None
        tokens.append("0" + digits if prefixed and len(digits) == 1 else digits)
    return tokens


def _words(line: str) -> list[str]:
    """Split a line at separators, without comments and anything outside the braces of an array."""
    text = line.partition("#")[0].partition("//")[0]
    if text.lstrip().startswith("/*"):
        text = text.partition("*/")[2]
    text = text.partition("/*")[0].rpartition("{")[2].partition("}")[0]
    return text.replace("\\x", " ").translate(_SEPARATORS).split()


def _reject_typos(number: int, line: str, ratio: int) -> None:
    """Raise CaptureError for a line of hex with a typo, which must not be taken for prose.

    Such a line has at least `ratio` times as many words of hex as other words.
    """
    words = _words(line)
    wrong = [word for word in words if not _HEX.fullmatch(word.removeprefix("0x"))]
    good = len(words) - len(wrong)
    if wrong and words[0] != wrong[0] and good >= max(_MIN_HEX_WORDS, ratio * len(wrong)):
        raise CaptureError(f"line {number}: {shorten(wrong[0])} is not hex")


def shorten(word: str) -> str:
    """Return a word in quotes, its end cut off if it is long."""
    return repr(word if len(word) <= 20 else word[:20] + "...")
