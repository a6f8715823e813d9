r"""Parses rows of a hex dump: an offset, the bytes in hex, perhaps their ASCII (the "gutter").

    00000010: 0e01 c633 c195 0000 000a 0a01 7010 0018  ...3........p...      xxd, tcpdump: a colon
    00000010  0e 01 c6 33 c1 95 00 00  00 0a 0a 01 70 10 00 18  |...3........p...|     hexdump -C
    0010   0e 01 c6 33 c1 95 00 00 00 0a 0a 01 70 10 00 18   ...3........p...    Wireshark

With a colon, two blanks end the bytes; without one a bar or three blanks do, as there may be two in the
middle. The gutter may look like hex, so the next offset must match. And the gutter must show the same bytes:
`xxd -e` reverses the bytes of each word, but not in its gutter.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date

from pulsarctl_wire.capture.text.dump import PIECE, Dump
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.errors import CaptureError

MAX_REPEATED = 512 << 10
"""Bytes other than zeros that the `*` lines of a text may stand for."""

MAX_ZEROS = 16 << 20
"""Zeros that the `*` lines may stand for; there are no frames in zeros."""

_OFFSET = re.compile(r"\s*(0[xX])?([0-9A-Fa-f]{4,16})(:?)(?=\s|$)")
_PAIR = "[0-9A-Fa-f]{2}"
_FIRST_BYTE = {":": re.compile(rf"\s+{_PAIR}"), "": re.compile(rf"\s+{_PAIR}(?=\s|$)")}
"""The first byte of a row, by the sign after its offset."""

_BYTES = {
    ":": re.compile(rf"\s+((?:{_PAIR})+(?: (?:{_PAIR})+)*)(?=\s\s|\t|\s?$)"),
    "": re.compile(
        rf"\s+({_PAIR}(?:  ?{_PAIR}){{15}}(?=  ?\S.{{,15}}$)"
        rf"|{_PAIR}(?:  ?{_PAIR})*(?=\s{{3}}|\t|\s*(?:\||$)))"
    ),
}
"""All bytes of a row, by the sign after its offset."""

_WINDBG = re.compile(rf"([0-9a-f]{{8}})`([0-9a-f]{{8}})  ((?:{_PAIR}[ -]){{1,16}})")
_IN_LINE = re.compile(rf"(?<![\w.:-])[0-9a-f]{{8}}(?=(?::? ) ?{_PAIR})|\|[0-9a-f]{{8}}\| ")
_ESCAPED_ROW = re.compile(r"\\n\|?[0-9a-f]{8}")
_WHITE = re.compile(r"\s+")
_NO_SIGNS = {code: "." for code in range(256) if not 0x20 <= code <= 0x7E}


@dataclass(frozen=True, slots=True)
class Row:
    """A line with an offset. `data` is None if the bytes are followed by something else."""

    number: int
    offset: int
    data: bytes | None
    gutter: str
    has_colon: bool
    from_tcpdump: bool
    is_plausible: bool
    """Whether its offset or its length rules out a line such as "8080: 80"."""


def read_row(number: int, line: str) -> Row | None:
    """Parse line `number` as a row; return None if it is not one."""
    if line.startswith("|"):  # in a box, as Netty prints it
        line = line.replace("|", " ", 2)
    elif "\u2502" in line:  # in a box, as hexyl prints it
        line = "  ".join(line.replace(" \u250a ", "  ").split("\u2502")[1:3])
    elif "`" in line and (match := _WINDBG.match(line)):
        line = f"{match[1]}{match[2]}  {match[3].replace('-', ' ')}{line[match.end() :]}"
    match = _OFFSET.match(line)
    if match is None:
        return None
    prefix, digits, colon = match.groups()
    if not _FIRST_BYTE[colon].match(line, match.end()):
        return None
    content = _BYTES[colon].match(line, match.end())
    data = bytes.fromhex(content[1]) if content else None
    gutter = line[content.end() :].strip() if content else ""
    offset = int(digits, 16)
    padded = len(digits) >= 6 and digits.startswith("0")
    is_plausible = offset == 0 or bool(prefix) or padded or len(data or b"") >= 8
    return Row(number, offset, data, gutter, bool(colon), bool(prefix and colon), is_plausible)


def _read_row_in_line(number: int, line: str) -> Row | None:
    """Parse a row with something in front, as a logger puts it; None if there is none, or several."""
    match = None if _ESCAPED_ROW.search(line) else _IN_LINE.search(line)
    row = None if match is None else read_row(number, line[match.start() :])
    return row if row is not None and row.data is not None else None


def _contradicts(gutter: str, data: bytes) -> bool:
    """Return whether a gutter of the same length has other characters than `data`; a dot matches any."""
    text = data.decode("latin-1").translate(_NO_SIGNS)
    forms = text.replace(" ", ""), text.replace(" ", ".")
    characters = _WHITE.sub("", gutter)
    same_size = [form for form in (*forms, f"|{forms[0]}|") if len(form) == len(characters)]
    return bool(same_size) and not any(
        all(sign in ".·" or sign == byte for sign, byte in zip(characters, form, strict=True))
        for form in same_size
    )


class _Packet:
    """The rows of one packet, each settled when the offset after it is known."""

    def __init__(self, first: Row, room: dict[bool, int], time_ns: int | None) -> None:
        self._room = room  # bytes that the text's `*` lines may still stand for; True: zeros
        self._data = bytearray()
        self._time_ns = time_ns
        self._from_tcpdump = first.from_tcpdump
        self._line = first.number
        self._due = first.offset
        self._row: Row | None = first
        self._repeated = False

    def add(self, row: Row) -> None:
        """Add the next row."""
        self.settle(row.number, row.offset)
        self._row = row

    def repeat(self) -> None:
        """Add a `*`: the previous row repeats up to the next offset."""
        self._repeated = self._row is not None

    def take_piece(self) -> Iterator[Dump]:
        """Yield the bytes so far, if there are very many."""
        if len(self._data) >= PIECE:
            yield replace(self._take(), more=True)

    def finish(self) -> Dump:
        """Settle the last row and return the packet, or the rest of it."""
        if self._row is not None:
            self.settle(self._row.number, None)
        return self._take()

    def _take(self) -> Dump:
        data = bytes(self._data)
        self._data.clear()
        if self._from_tcpdump:
            return Dump(data, self._time_ns, link_of(data), line=self._line)
        return Dump(data, None, line=self._line)

    def settle(self, number: int, until: int | None) -> None:
        """End the last row at the offset `until` of line `number`; None: the dump ends."""
        row, repeated = self._row, self._repeated
        self._row, self._repeated = None, False
        if row is None:
            if until != self._due:
                raise CaptureError(f"line {number}: the offset is {until:#x}, expected {self._due:#x}")
            return
        if until is not None and until <= row.offset:
            raise CaptureError(f"line {number}: the offset {until:#x} does not come after {row.offset:#x}")
        data = row.data
        if data is not None and repeated:
            data = self._repeat(row, data, until)
        if data is None or (until is not None and len(data) != until - row.offset):
            contradiction = f" up to the offset {until:#x} of line {number}" if until is not None else ""
            raise CaptureError(f"line {row.number}: cannot find this row's bytes{contradiction}")
        if row.gutter and _contradicts(row.gutter, row.data or b""):
            raise CaptureError(
                f"line {row.number}: the ASCII column does not show these bytes, as in dumps by `xxd -e`; "
                "use `xxd` or `hexdump -C`"
            )
        self._data += data
        self._due = row.offset + len(data)

    def _repeat(self, row: Row, data: bytes, until: int | None) -> bytes:
        if until is None:
            raise CaptureError(f"line {row.number}: no offset after the * shows how often this repeats")
        size = until - row.offset
        zeros = not any(data)
        if size > self._room[zeros]:
            cap = f"{MAX_ZEROS} zeros" if zeros else f"{MAX_REPEATED} bytes"
            raise CaptureError(f"line {row.number}: repeats to more than {cap}; dump without `*` lines (-v)")
        self._room[zeros] -= size
        if size < len(data):
            raise CaptureError(f"line {row.number}: has more bytes than fit before the offset {until:#x}")
        return (data * (size // len(data) + 1))[:size]


def parse_rows(lines: Iterable[Line]) -> Iterator[Dump]:
    """Yield the packets that rows show. Raises CaptureError where a line contradicts the offsets."""
    current: _Packet | None = None
    colon: bool | None = None
    time_ns: int | None = None
    room = {False: MAX_REPEATED, True: MAX_ZEROS}
    for number, line in lines:
        row = read_row(number, line) or _read_row_in_line(number, line)
        if row is not None and colon is None and row.is_plausible:
            colon = row.has_colon
        if row is not None and row.has_colon == colon:
            if current is not None and row.offset:
                current.add(row)
                yield from current.take_piece()
                continue
            if current is not None:
                yield current.finish()
            current = _Packet(row, room, time_ns)
            time_ns = None
        elif current is not None and line.strip() == "*":
            current.repeat()
        elif current is not None and not colon and (match := _OFFSET.fullmatch(line.rstrip())):
            current.settle(number, int(match[2], 16))
        else:
            time_ns = _time_stamp(line, time_ns)
    if current is not None:
        yield current.finish()


# ---- only tcpdump: time stamps, and what its packets start with ----

_STAMP = re.compile(r"(\s*)(?:([0-9-]{10}) )?([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{6,9})(?=\s)")
_EPOCH = re.compile(r"\s*([0-9]{1,11})\.([0-9]{6,9})(?=\s)")
_DAY_ZERO = date(1970, 1, 1).toordinal()
_ETHERTYPES = (b"\x08\x06", b"\x81\x00", b"\x88\xa8")  # ARP, VLAN tags
_IP_TYPES = {b"\x08\x00": 4, b"\x86\xdd": 6}
_PADDED = 46  # bytes; Ethernet pads shorter packets to that


def _time_stamp(line: str, default: int | None) -> int | None:
    """Return the time at the beginning of a line, in ns: since 1970, or since midnight without a date.

    Return `default` if there is none; None if it is an interval, or its date is wrong.
    """
    if match := _EPOCH.match(line):
        return int(match[1]) * 10**9 + int(match[2].ljust(9, "0"))
    match = _STAMP.match(line)
    if match is None:
        return default
    indent, day, hours, minutes, seconds, fraction = match.groups()
    if day is None and indent == " ":
        return None  # an interval: tcpdump leaves the column of the sign blank
    try:
        days = date.fromisoformat(day).toordinal() - _DAY_ZERO if day else 0
    except ValueError:
        return None
    total_seconds = ((days * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return total_seconds * 10**9 + int(fraction.ljust(9, "0"))


def link_of(data: bytes) -> str:
    """Return what a packet's bytes begin with: "ethernet", "ip" or "" (tcpdump -x and -xx look alike)."""
    kind = data[12:14]
    if kind in _ETHERTYPES or (kind in _IP_TYPES and _is_ip(data[14:], _IP_TYPES[kind])):
        return "ethernet"
    return "ip" if _is_ip(data, 4) or _is_ip(data, 6) else ""


def _is_ip(data: bytes, version: int) -> bool:
    """Return whether `data` may be an IP packet: whole, cut, padded, or of length 0 (set by the card)."""
    if len(data) < 20 or data[0] >> 4 != version:
        return False
    if version == 4:
        length = int.from_bytes(data[2:4], "big")
        return data[0] & 15 >= 5 and (not length or length >= len(data) or len(data) <= _PADDED)
    length = int.from_bytes(data[4:6], "big")
    return not length or length + 40 >= len(data)
