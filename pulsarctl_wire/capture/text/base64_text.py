"""Parses base64 and base64url: wrapped or not, padded or not, alone or inside the lines of a log."""

import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Final

from pulsarctl_wire.capture.text.dump import PIECE, Dump
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.capture.text.times import time_in

_WHOLE: Final = re.compile(r"\s*[\"']?([A-Za-z0-9+/_-]+={0,2})[\"']?[,;]?\s*(?:\\n)?$")
_TOKEN: Final = re.compile(r"(?<![A-Za-z0-9+/_-])([A-Za-z0-9+/_-]{16,}={0,2})")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


def parse_base64(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse lines of base64 that belong together: all as long as the first, up to a shorter or padded one."""
    digits, width, first, last = "", 0, 0, 0
    for number, line in lines:
        match = _WHOLE.match(line)
        text = match[1] if match else ""
        # a piece of the same long line, or a line that may follow
        is_next = number == last or (len(text) <= width and not digits.endswith("="))
        if len(text) == 1 and not (digits and is_next):
            text = ""  # the last line may have one digit, no first one has
        if digits and not (text and is_next):
            yield Dump(_decode(digits), None, line=first)
            digits, width = "", 0
        if not text:
            continue
        first = first if digits else number
        digits += text
        is_short = len(text) < width and number != last
        width, last = width or len(text), number
        if is_short:
            yield Dump(_decode(digits), None, line=first)
            digits, width = "", 0
        elif len(digits) > PIECE:
            whole = len(digits) // 4 * 4
            yield Dump(_decode(digits[:whole]), None, more=True, line=first)
            digits = digits[whole:]
    if digits:
        yield Dump(_decode(digits), None, line=first)


def parse_embedded_base64(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse each run of at least 16 characters of base64 inside a line, a record each."""
    for number, line in lines:
        for match in _TOKEN.finditer(line.replace("\\r", "").replace("\\n", "")):
            yield Dump(_decode(match[1]), time_in(line), line=number)


def _decode(digits: str) -> bytes:
    """Decode base64; a last character that is too many is left out."""
    text = digits.rstrip("=").encode().translate(_STANDARD)
    if len(text) % 4 == 1:
        text = text[:-1]
    return binascii.a2b_base64(text + b"=" * (-len(text) % 4))
