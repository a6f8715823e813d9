r"""Hex dumps: the text that a tool printed or someone pasted -> the bytes it shows.

Strategy: the lines are split into three families, and the text belongs to one of them.

- *rows*: an offset, the bytes in hex, perhaps their ASCII (xxd, hexdump -C, tcpdump, Wireshark, netty)
- *literals*: quoted strings with escapes (Python, C, Wireshark's escaped string)
- *plain*: nothing but hex digits and what separates them (hex streams, xxd -p, arrays of 0x09)

What the ASCII column ("gutter") shows may look like hex, so a row's bytes end where the next offset says.
The last row of a dump has no next offset; there the layout tells, learned from the rows before:

    00000010: 0e01 c633 c195 0000 000a 0a01 7010 0018  ...3........p...
    offset    groups, one space apart                gap gutter

    00000010  0e 01 c6 33 c1 95 00 00  00 0a 0a 01 70 10 00 18  |...3........p...|
                                     gap inside the data, after eight bytes

Rows and plain digits are read as they come, so that a dump of any length takes little memory; the family is
told from the first `_HEAD` bytes.

Invariants: pure; untrusted text raises CaptureError and nothing else, in time linear in its length; `*`
lines stand for MAX_REPEATED bytes at most. Lines that belong to no family (prompts, tcpdump's packet headers,
prose) are skipped; a line which belongs and is broken is an error, since bytes lost in silence would show
as a broken frame later.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import chain
from typing import Literal, NamedTuple

from pulsarctl_wire.errors import CaptureError

MAX_REPEATED = 16 << 20
"""Bytes that the `*` lines of a text may stand for."""

MAX_LITERALS = 4 << 20
"""Bytes of a text of literals: those are read whole."""

PIECE = 1 << 20
"""Bytes after which a dump is given in pieces: no packet is that long."""

_SNIFFED = 4096
_HEAD = 256 << 10
_LONGEST = 64 << 10
_BREAKS = " ,;\t\\"  # where a long line of digits is broken: at a separator, or before an escape
_Form = Literal["rows", "literals", "plain", "words", ""]


@dataclass(frozen=True, slots=True)
class Dumped:
    """The bytes of one packet of a dump, or of the whole dump where it knows no packets; maybe in pieces."""

    data: bytes
    time_ns: int | None
    """From tcpdump: ns since 1970 (-tt; -tttt, its date taken as UTC since no zone is printed), or since
    midnight (the default form). None for intervals (-ttt, -ttttt), and for all other tools."""
    link: str
    """What the bytes start with: "ethernet" or "ip" for tcpdump's packets; "" = unknown, look at them."""
    more: bool = False
    """The bytes go on in the next one."""


def looks_like_hexdump(head: bytes) -> bool:
    """Tell whether a file that starts with `head` (4096 bytes or fewer) is text for `parse_hexdump`."""
    if any(byte < 0x20 and byte not in b"\t\n\r\f" for byte in head):
        return False
    lines = _lines(head.decode("utf-8", "replace"))
    if len(head) >= _SNIFFED and len(lines) > 1:
        lines.pop()  # cut anywhere
    form = _form(lines)
    return _mostly_plain(lines) if form == "plain" else form != ""


def parse_hexdump(chunks: Iterable[bytes]) -> Iterator[Dumped]:
    """Read a dump of any form: one item per packet (rows whose offset starts again at 0), else one.

    `chunks` are the bytes of the text. What is longer than `PIECE` comes in several items, all but the last
    with `more`. Raises CaptureError, naming the line, when there is no hex or a line contradicts the offsets.
    """
    rest = iter(chunks)
    head = b""
    while len(head) < _HEAD and (chunk := next(rest, b"")):
        head += chunk
    form = _form(_lines(head.decode("utf-8", "replace")))
    if form == "words":
        raise CaptureError("these are 16-bit words in the machine's byte order: use `hexdump -C` or `xxd`")
    if form == "literals":
        return iter([_parse_literals(_whole(head, rest))])
    lines = _split(chain([head], rest))
    return _parse_rows(lines) if form == "rows" else _parse_plain(lines)


def _whole(head: bytes, rest: Iterable[bytes]) -> list[str]:
    text = bytearray(head)
    for chunk in rest:
        text += chunk
        if len(text) > MAX_LITERALS:
            raise CaptureError(f"more than {MAX_LITERALS} bytes of literals; write their bytes to a file")
    return _lines(text.decode("utf-8", "replace"))


def _split(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a text as they come; a very long one in several."""
    decoder = getincrementaldecoder("utf-8-sig")("replace")
    text = ""
    for chunk in chunks:
        *lines, text = (text + decoder.decode(chunk)).split("\n")
        for line in lines:
            if len(line) > _LONGEST:
                yield from _broken(line.rstrip("\r"), 0)
            else:
                yield line.rstrip("\r")
        *pieces, text = _broken(text, _LONGEST)
        yield from pieces
    yield from _broken((text + decoder.decode(b"", True)).rstrip("\r"), 0)


def _broken(line: str, keep: int) -> Iterator[str]:
    """A line in pieces of `_LONGEST` characters at most; up to `keep` more stay with the last one."""
    at = 0
    while len(line) - at > _LONGEST + keep:
        end = at + _LONGEST
        found = max(line.rfind(each, at + 1, end) for each in _BREAKS)
        stop = found if found > 0 else end
        yield line[at:stop]
        at = stop
    yield line[at:]


# ---- Which form ----

# hexdump and od without options: octal or hex words, which cannot be told from their digits alone.
_WORDS = re.compile(r"[0-9A-Fa-f]{7}(?: +[0-9A-Fa-f]{4,6}){1,8}\s*$")
_PROMPTS = ("$", "#", "//", "%")


def _lines(text: str) -> list[str]:
    """Split at line feeds alone: `str.splitlines` would also split inside a gutter."""
    return [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]


def _form(lines: Iterable[str]) -> _Form:
    """Tell the family: rows with a colon wherever they are, else what the first line of any family is."""
    first: _Form = ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(_PROMPTS):
            continue
        row = _read_row(number, line)
        if row is not None and row.colon and _plausible(row):
            return "rows"
        first = first or _line_form(line, row)
    return first


def _line_form(line: str, row: "_Row | None") -> _Form:
    if row is not None and _plausible(row):
        return "rows"
    if _WORDS.match(line):
        return "words"
    if _LITERAL.match(line):
        return "literals"
    tokens = _tokens(line)
    # A word of prose may be made of the letters a to f: "added"
    return "plain" if tokens and any("0" <= digit <= "9" for token in tokens for digit in token) else ""


# ---- Rows ----

_OFFSET = re.compile(r"\s*\|?(0[xX])?([0-9A-Fa-f]{4,16})([:|]?)(?=\s|$)")
_GROUP = re.compile(r"(\s*)([0-9A-Fa-f]+)(?=[\s|]|$)")
_SOURCE = re.compile(r"([A-Z][^()]*) \([0-9]+ bytes?\):\s*$")
_TAB_GAP = 8  # a tab separates columns, whatever its width
_MIDDLE = 8  # bytes before the gap inside the data of hexdump -C
_SQUEEZED = 512  # characters of a row that is worth a search for its gutter
_HIDDEN = bytes(byte for byte in range(256) if not 0x20 < byte < 0x7F or byte == ord("."))


class _Group(NamedTuple):
    """Digits without a space inside, and the columns of blank space before them."""

    gap: int
    digits: str
    end: int


@dataclass(frozen=True, slots=True)
class _Row:
    """A line with an offset; `groups` may still contain words of the gutter."""

    number: int
    line: str
    offset: int
    padded: bool
    """The offset has leading zeros."""
    colon: bool
    prefixed: bool
    groups: list[_Group]

    def data(self, count: int) -> bytes:
        """The bytes of the first `count` groups."""
        return bytes.fromhex("".join(group.digits for group in self.groups[:count]))

    def tail(self, count: int) -> str:
        """The rest of the line after the first `count` groups."""
        return self.line[self.groups[count - 1].end :]


@dataclass(slots=True)
class _Layout:
    """What the rows so far taught: bytes in the widest one; position in the data -> width of a gap there."""

    width: int = 0
    gaps: dict[int, int] = field(default_factory=dict)

    def learn(self, row: _Row, count: int) -> None:
        size = 0
        for group in row.groups[:count]:
            if size and group.gap > 1:
                self.gaps[size] = group.gap
            size += len(group.digits) // 2
        self.width = max(self.width, size)


def _read_row(number: int, line: str) -> _Row | None:
    match = _OFFSET.match(line)
    if match is None:
        return None
    prefix, digits, colon = match.groups()
    groups = list(_groups(line, match.end()))
    # Without a colon only single bytes are surely no words of a plain hex line.
    if not groups or (not colon and len(groups[0].digits) != 2):
        return None
    padded = len(digits) >= 6 and digits.startswith("0")
    return _Row(number, line, int(digits, 16), padded, bool(colon), bool(prefix), groups)


def _groups(line: str, position: int) -> Iterator[_Group]:
    size = 0
    while match := _GROUP.match(line, position):
        gap, digits = match.groups()
        if len(digits) % 2 or (size and len(digits) > size):
            return
        size = size or len(digits)
        position = match.end()
        yield _Group(len(gap) + gap.count("\t") * _TAB_GAP, digits, position)
        if len(digits) < size:
            return  # only the last group of a row is short


def _plausible(row: _Row) -> bool:
    """Tell a row from a line such as "8080: 80", by its offset or its length."""
    if row.offset == 0 or row.prefixed or row.padded:
        return True
    count = _guess(row, _Layout())
    return count is not None and len(row.data(count)) >= 8


def _guess(row: _Row, layout: _Layout) -> int | None:
    """Count the groups that are data by the layout alone; None if other text follows them directly."""
    count, size = 0, 0
    for group in row.groups:
        if count and group.gap > 1 and not _inside(row, count, group, size, layout):
            break
        count += 1
        size += len(group.digits) // 2
    if layout.width and size > layout.width:
        return _find(row, layout.width)
    if _separate(row, count):
        return count
    # Blank space that was squeezed on the way: the gutter is known by what it shows.
    candidates = range(count, 0, -1) if len(row.line) <= _SQUEEZED else ()
    return next((n for n in candidates if _shows(row.tail(n), row.data(n))), None)


def _inside(row: _Row, count: int, group: _Group, size: int, layout: _Layout) -> bool:
    """Tell whether the gap before `group` has data on both sides."""
    if layout.width:
        return layout.gaps.get(size) == group.gap
    middle = size == _MIDDLE and group.gap == 2 and len(group.digits) == 2
    return middle and not _shows(row.tail(count), row.data(count))


def _find(row: _Row, size: int) -> int | None:
    """Count the groups that hold exactly `size` bytes; None if no group ends there or data follow."""
    left = size
    for count, group in enumerate(row.groups, 1):
        left -= len(group.digits) // 2
        if left <= 0:
            fits = left == 0 and (_separate(row, count) or _shows(row.tail(count), row.data(count)))
            return count if fits else None
    return None


def _separate(row: _Row, count: int) -> bool:
    """Tell whether the data end visibly after `count` groups: end of line, a wide gap, or a bar."""
    tail = row.tail(count)
    text = tail.lstrip()
    return not text or text.startswith("|") or len(tail) - len(text) > 1 or tail.startswith("\t")


def _shows(gutter: str, data: bytes) -> bool:
    """Tell whether `gutter` is what a tool prints for `data`; blanks and dots count for nothing."""
    seen = "".join(gutter.split()).replace(".", "")
    visible = data.translate(None, _HIDDEN).decode("ascii")
    return seen in (visible, f"|{visible}|", f">{visible}<")


def _refuse_swapped(row: _Row, count: int) -> None:
    """Refuse `xxd -e`: its gutter shows that the bytes of each group are printed backwards."""
    if len(row.groups[0].digits) == 2 or not row.tail(count).strip():
        return
    swapped = b"".join(bytes.fromhex(group.digits)[::-1] for group in row.groups[:count])
    gutter = row.tail(count)
    if _shows(gutter, swapped) and not _shows(gutter, row.data(count)):
        raise CaptureError(f"line {row.number}: words with their bytes swapped: use `xxd` without -e")


class _Packet:
    """Rows of one dump, each settled when the offset after it is known."""

    def __init__(self, first: _Row, room: int, time_ns: int | None, source: str) -> None:
        self.source = source
        self.room = room
        """Bytes that `*` lines may still stand for."""
        self._data = bytearray()
        self._taken = 0  # bytes given already
        self._time_ns = time_ns
        self._from_tcpdump = first.prefixed and first.colon
        self._base = first.offset
        self._layout = _Layout()
        self._row: _Row | None = first
        self._repeated = False

    def add(self, row: _Row) -> None:
        """Take the next row."""
        self.settle(row.number, row.offset)
        self._row = row

    def repeat(self) -> None:
        """Take a `*`: the row before it goes on until the next offset."""
        self._repeated = self._row is not None

    def piece(self) -> Iterator[Dumped]:
        """What is known of a packet that is very long."""
        if len(self._data) >= PIECE:
            yield replace(self._take(), more=True)

    def finish(self) -> Dumped:
        """Settle the last row and give the packet, or what is left of it."""
        if self._row is not None:
            self.settle(self._row.number, None)
        return self._take()

    def _take(self) -> Dumped:
        data = bytes(self._data)
        self._taken += len(data)
        self._data.clear()
        if self._from_tcpdump:
            return Dumped(data, self._time_ns, link_of(data))
        return Dumped(data, None, "")

    def settle(self, number: int, until: int | None) -> None:
        """End the last row at the offset `until` of line `number`; None = the dump just ends."""
        row, repeated = self._row, self._repeated
        self._row, self._repeated = None, False
        due = self._base + self._taken + len(self._data)
        if row is None:
            if until != due:
                raise CaptureError(f"line {number}: the offset is {until:#x} where {due:#x} is due")
            return
        if until is not None and until <= row.offset:
            raise CaptureError(f"line {number}: the offset {until:#x} does not come after {row.offset:#x}")
        self._data += self._repeat(row, until) if repeated else self._measure(row, number, until)

    def _measure(self, row: _Row, number: int, until: int | None) -> bytes:
        count = _guess(row, self._layout)
        if until is not None and (count is None or len(row.data(count)) != until - row.offset):
            count = _find(row, until - row.offset)
        if count is None:
            contradiction = f" up to the offset {until:#x} of line {number}" if until is not None else ""
            raise CaptureError(f"line {row.number}: the bytes cannot be told{contradiction}")
        _refuse_swapped(row, count)
        if until is not None:
            self._layout.learn(row, count)
        return row.data(count)

    def _repeat(self, row: _Row, until: int | None) -> bytes:
        if until is None:
            raise CaptureError(f"line {row.number}: no offset after the * says how often this repeats")
        size = until - row.offset
        if size > self.room:
            raise CaptureError(f"line {row.number}: repeats to more than {MAX_REPEATED} bytes")
        self.room -= size
        line = self._measure(row, row.number, None)
        if size < len(line):
            raise CaptureError(f"line {row.number}: holds more than the bytes up to the offset {until:#x}")
        return (line * (size // len(line) + 1))[:size]


def _parse_rows(lines: Iterable[str]) -> Iterator[Dumped]:
    rebuilt = False
    for source, dumped in _read_packets(lines):
        # tshark prints "Reassembled TCP (125 bytes):" after its frames, whose bytes these are once more.
        rebuilt = rebuilt or source == "Frame"
        if not rebuilt or source in ("", "Frame"):
            yield dumped


def _read_packets(lines: Iterable[str]) -> Iterator[tuple[str, Dumped]]:
    current: _Packet | None = None
    colon: bool | None = None
    time_ns: int | None = None
    source, room = "", MAX_REPEATED
    for number, line in enumerate(lines, 1):
        row = _read_row(number, line)
        if row is not None and colon is None and _plausible(row):
            colon = row.colon
        if row is not None and row.colon == colon:
            if current is not None and row.offset:
                current.add(row)
                yield from ((current.source, piece) for piece in current.piece())
                continue
            if current is not None:
                yield current.source, current.finish()
                room = current.room
            current = _Packet(row, room, time_ns, source)
            time_ns, source = None, ""
        elif match := _SOURCE.match(line):
            source = match[1]
        elif current is not None and line.strip() == "*":
            current.repeat()
        elif current is not None and not colon and (match := _OFFSET.fullmatch(line.rstrip())):
            current.settle(number, int(match[2], 16))
        else:
            time_ns = _time_stamp(line, time_ns)
    if current is not None:
        yield current.source, current.finish()


# ---- tcpdump's own: time stamps, and where its packets start ----

_STAMP = re.compile(r"(\s*)(?:([0-9-]{10}) )?([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{6,9})(?=\s)")
_EPOCH = re.compile(r"\s*([0-9]{1,11})\.([0-9]{6,9})(?=\s)")
_DAY_ZERO = date(1970, 1, 1).toordinal()
_ETHERTYPES = (b"\x08\x06", b"\x81\x00", b"\x88\xa8")  # ARP, VLAN tags
_IP_TYPES = {b"\x08\x00": 4, b"\x86\xdd": 6}
_PADDED = 46  # bytes that Ethernet fills a shorter packet up to


def _time_stamp(line: str, default: int | None) -> int | None:
    if match := _EPOCH.match(line):
        return int(match[1]) * 10**9 + int(match[2].ljust(9, "0"))
    match = _STAMP.match(line)
    if match is None:
        return default
    indent, day, hours, minutes, seconds, fraction = match.groups()
    if day is None and indent == " ":
        return None  # an interval: tcpdump leaves its sign's column blank
    try:
        days = date.fromisoformat(day).toordinal() - _DAY_ZERO if day else 0
    except ValueError:
        return None
    whole = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 10**9 + int(fraction.ljust(9, "0"))


def link_of(data: bytes) -> str:
    """What a packet's bytes begin with: "ethernet", "ip" or "" (tcpdump -x and -xx look alike)."""
    kind = data[12:14]
    if kind in _ETHERTYPES or (kind in _IP_TYPES and _is_ip(data[14:], _IP_TYPES[kind])):
        return "ethernet"
    return "ip" if _is_ip(data, 4) or _is_ip(data, 6) else ""


def _is_ip(data: bytes, version: int) -> bool:
    """Tell whether `data` may be an IP packet, whole, cut, padded, or of a length the card fills in (0)."""
    if len(data) < 20 or data[0] >> 4 != version:
        return False
    if version == 4:
        length = int.from_bytes(data[2:4], "big")
        return data[0] & 15 >= 5 and (not length or length >= len(data) or len(data) <= _PADDED)
    length = int.from_bytes(data[4:6], "big")
    return not length or length + 40 >= len(data)


# ---- Literals ----

# Nothing but a name, an equals sign and brackets before it
_LITERAL = re.compile(r"""(?:[^"'=]*=)?[\s(>]*(?:[bB]["']|["']\\x[0-9A-Fa-f]{2})""")
_QUOTE = re.compile(r"""(?<!\w)([bB]?)(["'])""")
_PIECES = {
    quote: re.compile(rf"\\(?:x([0-9A-Fa-f]{{2}})|([0-7]{{1,3}})|(.))|([^{quote}\\]+)") for quote in "\"'"
}
_ESCAPES = {
    "a": b"\a", "b": b"\b", "f": b"\f", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v",
    "\\": b"\\", "'": b"'", '"': b'"',
}  # fmt: skip


def _parse_literals(lines: list[str]) -> Dumped:
    """Join the bytes literals, or where there is none, all strings."""
    found: list[tuple[bool, bytes]] = []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(_PROMPTS):
            continue
        position = 0
        while match := _QUOTE.search(line, position):
            data, position = _read_literal(line, match.end(), match[2], number)
            found.append((bool(match[1]), data))
    prefixed = any(is_bytes for is_bytes, _ in found)
    data = b"".join(data for is_bytes, data in found if is_bytes or not prefixed)
    if not data:
        raise CaptureError(f"no hex bytes in lines 1 to {len(lines)}")
    return Dumped(data, None, "")


def _read_literal(line: str, position: int, quote: str, number: int) -> tuple[bytes, int]:
    """Give the bytes of the string that starts at `position`, and where the text goes on after it."""
    out = bytearray()
    while match := _PIECES[quote].match(line, position):
        pair, octal, escape, text = match.groups()
        if pair:
            out.append(int(pair, 16))
        elif octal:
            if int(octal, 8) > 255:
                raise CaptureError(f"line {number}: \\{octal} is more than a byte")
            out.append(int(octal, 8))
        elif text or escape in _ESCAPES:
            out += _ESCAPES[escape] if escape else _ascii(text, number)
        elif escape == "x":
            raise CaptureError(f"line {number}: \\x without two hex digits")
        else:
            out += b"\\" + _ascii(escape, number)  # as Python does
        position = match.end()
    if line[position : position + 1] != quote:
        raise CaptureError(f"line {number}: the string is not closed")
    return bytes(out), position + 1


def _ascii(text: str, number: int) -> bytes:
    if not text.isascii():
        raise CaptureError(f"line {number}: a string of bytes holds ASCII and escapes only")
    return text.encode("ascii")


# ---- Plain hex ----

_HEX = re.compile(r"[0-9A-Fa-f]+")
_SEPARATORS = str.maketrans(dict.fromkeys(",;:-()[]", " "))
_CAST = re.compile(r"\(byte\)", re.IGNORECASE)
_MIN_BYTES = 4
_LONG = 32  # digits that no number has


def _parse_plain(lines: Iterable[str]) -> Iterator[Dumped]:
    """All digits; a line may end between the two of a byte, as a wrapped hex stream does."""
    found = bytearray()
    given = False
    edge, last, number = "", 0, 0
    for number, line in enumerate(lines, 1):
        tokens = _tokens(line)
        if tokens is None:
            _refuse_broken(number, line)
            continue
        for index, token in enumerate(tokens, 1):
            digits = edge + token
            edge, last = "", number
            if len(digits) % 2:
                if index < len(tokens):
                    raise CaptureError(f"line {number}: {_short(token)} has an odd number of hex digits")
                digits, edge = digits[:-1], digits[-1]
            found += bytes.fromhex(digits)
        if len(found) >= PIECE:
            yield Dumped(bytes(found), None, "", more=True)
            given = True
            found.clear()
    if edge:
        raise CaptureError(f"line {last}: an odd number of hex digits")
    if not found and not given:
        raise CaptureError(f"no hex bytes in lines 1 to {number}")
    yield Dumped(bytes(found), None, "")


def _tokens(line: str) -> list[str] | None:
    """Give the hex digits of a line, without prefixes and separators; None if it holds anything else."""
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
    """Split a line at separators, after dropping comments and what is outside the braces of an array."""
    text = line.partition("#")[0].partition("//")[0]
    if text.lstrip().startswith("/*"):
        text = text.partition("*/")[2]
    text = text.partition("/*")[0].rpartition("{")[2].partition("}")[0]
    return _CAST.sub(" ", text).replace("\\x", " ").translate(_SEPARATORS).split()


def _refuse_broken(number: int, line: str) -> None:
    """Refuse a line of hex with a slip in it, which must not be taken for prose."""
    words = _words(line)
    wrong = [word for word in words if not _HEX.fullmatch(word.removeprefix("0x"))]
    good = len(words) - len(wrong)
    if words[0] != wrong[0] and good >= max(_MIN_BYTES, len(wrong)):
        raise CaptureError(f"line {number}: {_short(wrong[0])} is not hex")


def _short(word: str) -> str:
    return repr(word if len(word) <= 20 else word[:20] + "...")


def _mostly_plain(lines: list[str]) -> bool:
    """Tell hex from numbers (CSV, JSON, dates) and from prose with a line of hex in it."""
    digits: list[str] = []
    plain = total = 0
    for line in lines:
        tokens = _tokens(line)
        if line.lstrip().startswith(_PROMPTS):
            continue
        total += len(line.strip())
        if not tokens:
            continue
        if "0x" not in line.lower() and not _regular(line, tokens):
            return False
        plain += len(line.strip())
        digits += tokens
    joined = "".join(digits)
    if len(joined) < 2 * _MIN_BYTES or plain * 4 < total:
        return False
    # Decimal digits alone are hex if they lead with zeros, as no JSON or CSV number does, or never end.
    decimal = joined.isdecimal() and not joined.startswith("00") and max(map(len, digits)) < _LONG
    return not decimal or "0x" in "".join(lines).lower()


def _regular(line: str, tokens: list[str]) -> bool:
    """Tell whether a line without prefixes is bytes: pairs between signs, or runs of even length."""
    if line.lstrip().startswith(("[", "{")):
        return False
    if any(sign in line for sign in ",:-"):
        return all(len(token) == 2 for token in tokens)
    return not any(len(token) % 2 for token in tokens[:-1])
