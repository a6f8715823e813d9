"""Parses lists of bytes as languages print them.

[0, 0, 0, 41, -19]  [0 0 0 41]  <<0,0,0,41,"Pulsar">>  {0x00, (byte) 0x92}  Uint8Array(45) [ 0, 0, ... ]
<Buffer 00 00 00 29 ... 98 more bytes>  {"type":"Buffer","data":[0,0]}  {"0":0,"1":0}  [0, 0, a, 2d]
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from pulsarctl_wire.capture.text.dump import PIECE, UNKNOWN_SIZE, Dump, Repeats
from pulsarctl_wire.capture.text.hex_digits import shorten
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.capture.text.times import time_in
from pulsarctl_wire.errors import CaptureError

MIN_BYTES: Final = 4
"""Shorter lists are not taken for bytes."""

_MIN_BROKEN: Final = 8  # bytes from which a list that breaks off is reported
_TOKEN: Final = re.compile(
    r"""(?P<space>[\s,;|]+|//.*|/\*.*?\*/)
    |(?P<cast>\((?:u?int8(?:_t)?|s?byte|(?:un)?signed\ char|char|Byte)\))
    |(?P<repeats><repeats\ (?P<times>[0-9]{1,7})\ times>)
    |(?P<open><Buffer\b|<<|[\[({<])
    |(?P<close>>>|[\])}>])
    |(?P<cut>(?:\.{3}|\u2026)(?:\ ?(?P<rest>[0-9]{1,9})\ more\ (?:items?|bytes?))?)
    |(?P<key>"[0-9]{1,9}"\s*:)
    |(?P<number>(?P<value>-?(?:0[xX])?[0-9A-Fa-f]{1,4}?)(?:u8|i8|uy|UB|u|U|L)?)(?![\w.])
    |(?P<string>"[\x20\x21\x23-\x5b\x5d-\x7e]*")
    |(?P<word>[\w.:=+-]+|.)""",
    re.VERBOSE,
)
_VALUE: Final = r"""(?:\([A-Za-z_0-9 ]{2,12}\)\s*)?"?-?(?:0[xX])?[0-9A-Fa-f]{1,4}(?:[ui]8|[uU]y?|L)?"?"""
_HINT: Final = re.compile(
    rf"[\[({{<]\|?\s*(?:(?:{_VALUE}\s*(?:[,;:]\s*|\s|$)){{3}}|(?:{_VALUE}\s*[,;:]\s*){{0,3}}$)|<Buffer|<repeats"
)
"""What the line has where a list of bytes begins."""
_BARE: Final = re.compile(r"[\s,;0-9-]*")


class _List:
    """A list that is open: its values so far."""

    def __init__(self, opener: str, base: int, time_ns: int | None, line: int) -> None:
        self.data = bytearray()
        self.base = 16 if opener in ("<", "<Buffer") else base
        self.is_binary = opener == "<<"
        self.time_ns = time_ns
        self.line = line
        self.missing = 0
        self.has_yielded = False

    def add(self, value: str) -> bool:
        """Add a value; return False if it is no byte, or if bytes before it were left out."""
        digits = value.lstrip("-")
        has_prefix = digits[:2] in ("0x", "0X")
        try:
            number = int(digits, 16 if has_prefix else self.base)
        except ValueError:
            return False
        if value[0] == "-":
            number = 256 - number if 0 < number <= 128 else number and 256  # 256: no byte
        if number > 255 or self.missing:
            return False
        self.data.append(number)
        return True

    def take(self, *, more: bool) -> Dump:
        """Take the values so far."""
        data = bytes(self.data)
        self.data.clear()
        self.has_yielded = True
        return Dump(data, self.time_ns, more=more, missing=0 if more else self.missing, line=self.line)


def parse_lists(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse lists of decimal numbers, or of hex ones with 0x or in angle brackets."""
    return _Lists(10).parse(lines)


def parse_hex_lists(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse lists of hex numbers without prefixes, as Rust's `{:x?}` prints them."""
    return _Lists(16).parse(lines)


def parse_bare_numbers(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse decimal numbers without brackets: lines that have nothing else, as `od -An -tu1` prints them."""
    return _Lists(10).parse(_add_brackets(lines))


def _add_brackets(lines: Iterable[Line]) -> Iterator[Line]:
    """Put brackets around each run of lines that have only numbers, and leave out all other lines."""
    is_open = False
    number = 0
    for number, line in lines:
        is_bare = _BARE.fullmatch(line) is not None
        if is_bare != is_open:
            yield number, "[" if is_bare else "]"
            is_open = is_bare
        if is_bare:
            yield number, line
    if is_open:
        yield number, "]"


class _Lists:
    """Finds the lists in the lines of a text; `base` is that of numbers without a prefix."""

    def __init__(self, base: int) -> None:
        self._base = base
        self._open: _List | None = None
        self._problem = ""
        self._count = 0
        self._repeats = Repeats()

    def parse(self, lines: Iterable[Line]) -> Iterator[Dump]:
        """Yield the bytes of each list.

        Raises CaptureError if all break off, or if one does of which a part was yielded.
        """
        time_ns: int | None = None
        last = 0
        for number, line in lines:
            if self._open is None and number != last:
                time_ns = time_in(line)
            last = number
            if self._open is None and not _HINT.search(line):
                continue
            position = 0
            while match := _TOKEN.match(line, position):
                position = match.end()
                if match.lastgroup == "string" and (self._open is None or not self._open.is_binary):
                    position = match.start() + 1  # there may be a list in it
                yield from self._take(match, number, time_ns)
            if self._open is not None and len(self._open.data) >= PIECE:
                yield self._open.take(more=True)
        if self._open is not None:
            self._open.missing = self._open.missing or UNKNOWN_SIZE
            yield from self._close(self._open)
        if self._problem and not self._count:
            raise CaptureError(self._problem)

    def _take(self, match: re.Match[str], number: int, time_ns: int | None) -> Iterator[Dump]:
        kind, current = match.lastgroup, self._open
        if kind == "open":
            self._drop(number, shorten(match[0]))
            self._open = _List(match[0], self._base, time_ns, number)
        elif current is None or kind in ("space", "cast", "key"):
            pass
        elif kind == "close":
            yield from self._close(current)
        elif kind == "number":
            if not current.add(match["value"]):
                self._drop(number, shorten(match[0]))
        elif kind == "cut":
            current.missing = int(match["rest"]) if match["rest"] else UNKNOWN_SIZE
        elif kind == "repeats":
            self._repeat(current, int(match["times"]), number)
        elif kind == "string" and current.is_binary:
            current.data += match[0][1:-1].encode()
        else:
            self._drop(number, shorten(match[0]))

    def _close(self, current: _List) -> Iterator[Dump]:
        self._open = None
        if current.has_yielded or len(current.data) >= MIN_BYTES:
            self._count += 1
            yield current.take(more=False)

    def _repeat(self, current: _List, times: int, number: int) -> None:
        self._repeats.take(times, number)
        current.data += current.data[-1:] * (times - 1)

    def _drop(self, number: int, token: str) -> None:
        """Forget the open list at a token that is not a byte of it; if it is long, remember the problem.

        Raises CaptureError if a part of it was yielded.
        """
        current, self._open = self._open, None
        if current is None:
            return
        if current.missing:
            problem = f"line {number}: {token} follows bytes that were left out of the list"
        else:
            problem = f"line {number}: the list of bytes ends at {token}, which is not a byte"
        if current.has_yielded:
            raise CaptureError(problem)
        if len(current.data) >= _MIN_BROKEN:
            self._problem = self._problem or problem
