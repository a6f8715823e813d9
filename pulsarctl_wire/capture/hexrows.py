r"""Rows of a hex dump: an offset, the bytes in hex, perhaps their ASCII.

What the ASCII column ("gutter") shows may look like hex, so a row's bytes end where the next offset says.
The last row of a dump has no next offset; there the layout tells, learned from the rows before:

    00000010: 0e01 c633 c195 0000 000a 0a01 7010 0018  ...3........p...
    offset    groups, one space apart                gap gutter

    00000010  0e 01 c6 33 c1 95 00 00  00 0a 0a 01 70 10 00 18  |...3........p...|
                                     gap inside the data, after eight bytes
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import NamedTuple

from pulsarctl_wire.errors import CaptureError

MAX_REPEATED = 512 << 10
"""Bytes that the `*` lines of a text may stand for, zeros aside."""

MAX_ZEROS = 16 << 20
"""Zeros that they may stand for: no frames are made of those."""

PIECE = 1 << 20
"""Bytes after which a dump is given in pieces: no packet is that long."""


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
class Row:
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

    def learn(self, row: Row, count: int) -> None:
        size = 0
        for group in row.groups[:count]:
            if size and group.gap > 1:
                self.gaps[size] = group.gap
            size += len(group.digits) // 2
        self.width = max(self.width, size)


def read_row(number: int, line: str) -> Row | None:
    """Line `number` as a row; None if it is none."""
    match = _OFFSET.match(line)
    if match is None:
        return None
    prefix, digits, colon = match.groups()
    groups = list(_groups(line, match.end()))
    # Without a colon only single bytes are surely no words of a plain hex line.
    if not groups or (not colon and len(groups[0].digits) != 2):
        return None
    padded = len(digits) >= 6 and digits.startswith("0")
    return Row(number, line, int(digits, 16), padded, bool(colon), bool(prefix), groups)


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


def is_plausible(row: Row) -> bool:
    """Tell a row from a line such as "8080: 80", by its offset or its length."""
    if row.offset == 0 or row.prefixed or row.padded:
        return True
    count = _guess(row, _Layout())
    return count is not None and len(row.data(count)) >= 8


def _guess(row: Row, layout: _Layout) -> int | None:
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


def _inside(row: Row, count: int, group: _Group, size: int, layout: _Layout) -> bool:
    """Tell whether the gap before `group` has data on both sides."""
    if layout.width:
        return layout.gaps.get(size) == group.gap
    middle = size == _MIDDLE and group.gap == 2 and len(group.digits) == 2
    return middle and not _shows(row.tail(count), row.data(count))


def _find(row: Row, size: int) -> int | None:
    """Count the groups that hold exactly `size` bytes; None if no group ends there or data follow."""
    left = size
    for count, group in enumerate(row.groups, 1):
        left -= len(group.digits) // 2
        if left <= 0:
            fits = left == 0 and (_separate(row, count) or _shows(row.tail(count), row.data(count)))
            return count if fits else None
    return None


def _separate(row: Row, count: int) -> bool:
    """Tell whether the data end visibly after `count` groups: end of line, a wide gap, or a bar."""
    tail = row.tail(count)
    text = tail.lstrip()
    return not text or text.startswith("|") or len(tail) - len(text) > 1 or tail.startswith("\t")


def _shows(gutter: str, data: bytes) -> bool:
    """Tell whether `gutter` is what a tool prints for `data`; blanks and dots count for nothing."""
    seen = "".join(gutter.split()).replace(".", "")
    visible = data.translate(None, _HIDDEN).decode("ascii")
    return seen in (visible, f"|{visible}|", f">{visible}<")


def _refuse_swapped(row: Row, count: int) -> None:
    """Refuse `xxd -e`: its gutter shows that the bytes of each group are printed backwards."""
    if len(row.groups[0].digits) == 2 or not row.tail(count).strip():
        return
    swapped = b"".join(bytes.fromhex(group.digits)[::-1] for group in row.groups[:count])
    gutter = row.tail(count)
    if _shows(gutter, swapped) and not _shows(gutter, row.data(count)):
        raise CaptureError(f"line {row.number}: words with their bytes swapped: use `xxd` without -e")


class _Packet:
    """Rows of one dump, each settled when the offset after it is known."""

    def __init__(self, first: Row, room: dict[bool, int], time_ns: int | None, source: str) -> None:
        self.source = source
        self._room = room  # bytes that the text's `*` lines may still stand for; True: zeros
        self._data = bytearray()
        self._taken = 0  # bytes given already
        self._time_ns = time_ns
        self._from_tcpdump = first.prefixed and first.colon
        self._base = first.offset
        self._layout = _Layout()
        self._row: Row | None = first
        self._repeated = False

    def add(self, row: Row) -> None:
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

    def _measure(self, row: Row, number: int, until: int | None) -> bytes:
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

    def _repeat(self, row: Row, until: int | None) -> bytes:
        if until is None:
            raise CaptureError(f"line {row.number}: no offset after the * says how often this repeats")
        size = until - row.offset
        line = self._measure(row, row.number, None)
        zeros = not any(line)
        if size > self._room[zeros]:
            most = f"{MAX_ZEROS} zeros" if zeros else f"{MAX_REPEATED} bytes"
            raise CaptureError(f"line {row.number}: repeats to more than {most}; dump without `*` lines (-v)")
        self._room[zeros] -= size
        if size < len(line):
            raise CaptureError(f"line {row.number}: holds more than the bytes up to the offset {until:#x}")
        return (line * (size // len(line) + 1))[:size]


def parse_rows(lines: Iterable[str]) -> Iterator[Dumped]:
    """The packets that rows show. Raises CaptureError where a line contradicts the offsets."""
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
    source, room = "", {False: MAX_REPEATED, True: MAX_ZEROS}
    for number, line in enumerate(lines, 1):
        row = read_row(number, line)
        if row is not None and colon is None and is_plausible(row):
            colon = row.colon
        if row is not None and row.colon == colon:
            if current is not None and row.offset:
                current.add(row)
                yield from ((current.source, piece) for piece in current.piece())
                continue
            if current is not None:
                yield current.source, current.finish()
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
