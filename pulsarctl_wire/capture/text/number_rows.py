r"""Parses rows of numbers of any size and base, with or without an address: od, hexdump, gdb, lldb, xxd -e.

    0000000 000000 024400      od             0x5555 <buf+16>: 0x00 0x29     gdb x/xb
    0000000 0000 2900          hexdump        0x5555:  687865856             gdb x/dw
    0000000  \0  \0  \0   )    od -c          00000000: 29000000  ...)       xxd -e

The tool's options are not in the text: the layout is the first one in which all of the first rows make sense.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice, pairwise, takewhile
from typing import Final, Literal, NamedTuple

from pulsarctl_wire.capture.text.dump import PIECE, Dump
from pulsarctl_wire.capture.text.hex_dump import MAX_REPEATED, MAX_ZEROS
from pulsarctl_wire.capture.text.lines import Line
from pulsarctl_wire.errors import CaptureError

Order = Literal["little", "big"]

_SAMPLED: Final = 64  # rows from which the layout is detected
_ROW: Final = re.compile(r"\s*(0x[0-9a-f]{3,16}|[0-9A-Fa-f]{6,8})(?:\s+<[^<>\s]{1,500}>)?:?(?=[ \t]|$)(.*)")
_VALUE: Final = re.compile(r"-?(?:0x)?[0-9a-f]+")
_CHARACTERS: Final = re.compile(r"(?<=\d)\s+'(?:\\.[0-7]{0,2}|[^\\])'")  # of gdb x/c, next to its number
_MAX_SIZE: Final = 8  # bytes of a number
_OCTAL_WIDTHS: Final = {1: 3, 2: 6, 4: 11, 8: 22}  # bytes of a number -> its octal digits
_CELL: Final = 4  # columns of a character of od -c
_CELL_OCTAL: Final = re.compile("[0-3][0-7]{2}")
_CELL_ESCAPES: Final = {
    "\\0": 0, "\\a": 7, "\\b": 8, "\\t": 9, "\\n": 10, "\\v": 11, "\\f": 12, "\\r": 13, "": 32,
}  # fmt: skip


class _Row(NamedTuple):
    line: int
    address: str
    body: str
    """What comes after the address, spaces included; empty for the address of the end."""
    repeats: bool
    """Whether the row before it repeats up to its address."""


class _Layout(NamedTuple):
    """How rows are to be read: base of addresses, bytes a row, bytes a number, and the numbers' base."""

    address_base: int
    width: int
    size: int
    base: int
    """0: characters."""
    end: int
    """The column of the body where the ASCII begins, or a very high one."""


def parse_little(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse rows of numbers in little-endian order, that of most machines."""
    return _parse_words(lines, "little")


def parse_big(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse rows of numbers in big-endian order."""
    return _parse_words(lines, "big")


def _parse_words(lines: Iterable[Line], order: Order) -> Iterator[Dump]:
    rows = _read_rows(lines)
    sample = list(islice(rows, _SAMPLED))
    layout = _detect(sample)
    if layout is None:
        bodies = [row.body.split() for row in sample if row.body]
        if len(bodies) > 1 and all(len(body) > 1 and _VALUE.fullmatch(body[0]) for body in bodies):
            raise CaptureError(f"line {sample[0].line}: these rows are in no known layout")
        return
    data = bytearray()
    first = 0
    expected: int | None = None
    room = {False: MAX_REPEATED, True: MAX_ZEROS}  # bytes that `*` may still stand for; True: zeros
    everything = chain(sample, rows, [None])
    row = next(everything)
    for following in everything:
        assert row is not None
        address = _address(row, layout)
        after = None if following is None else _address(following, layout)
        length = after - address if after is not None and after > address else None
        if expected not in (None, address):
            if address and not row.address.startswith("0x"):
                raise CaptureError(f"line {row.line}: the address is {row.address}, expected {expected:#x}")
            yield Dump(bytes(data), None, line=first)
            data.clear()
        first = first if data else row.line
        if row.body:
            content = _read(row, layout, order, length)
            if not content:
                raise CaptureError(f"line {row.line}: this row is not like those before it")
            if following is not None and following.repeats and length is not None:
                room[not any(content)] -= length
                if min(room.values()) < 0:
                    raise CaptureError(f"line {following.line}: repeats to too many bytes; dump with -v")
                content = (content * (length // len(content) + 1))[:length]
            data += content
            expected = address + len(content)
        if len(data) >= PIECE:
            yield Dump(bytes(data), None, more=True, line=first)
            data.clear()
        row = following
    yield Dump(bytes(data), None, line=first)


def _address(row: _Row, layout: _Layout) -> int:
    try:
        return int(row.address, layout.address_base)
    except ValueError as error:
        raise CaptureError(
            f"line {row.line}: the address is {row.address}, unlike those before it"
        ) from error


def _read_rows(lines: Iterable[Line]) -> Iterator[_Row]:
    repeats = False
    for number, line in lines:
        match = _ROW.match(line)
        if match is not None:
            address, body = match.groups()
            yield _Row(number, address, body.rstrip() and body, repeats)
            repeats = False
        else:
            repeats = line.strip() == "*"


def _detect(rows: list[_Row]) -> _Layout | None:
    """Return the layout in which all of these rows make sense; None if there is none."""
    full = [row for row in rows if row.body]
    if not full:
        return None
    bases = [16] if full[0].address.startswith("0x") else [8, 16, 10]
    tokens = _tokens(full[0].body)
    for address_base in bases:
        try:
            addresses = [int(row.address, address_base) for row in rows]
        except ValueError:
            continue
        steps = [
            0 if row.repeats or after <= at else after - at
            for (at, after), row in zip(pairwise(addresses), rows[1:], strict=False)
        ]
        width = max(steps, default=0) or _width_of(tokens)
        # a single row may end within a number, which is then shown as a whole
        widths = {-(-width // size) * size for size in ((1, 2, 4, 8) if len(full) == 1 else (1,))}
        for width in sorted(widths):
            if (layout := _fit(address_base, width, full, tokens)) is not None:
                return layout
        if bases == [16]:
            return _detect_jumping(full, steps, tokens)
    return None


def _detect_jumping(full: list[_Row], steps: list[int], tokens: list[str]) -> _Layout | None:
    """Return the layout of rows of gdb whose addresses jump forward, where another dump begins.

    Their width is not the largest step, but the most frequent one that a row can fill.
    """
    frequencies = Counter(step for step in steps if 0 < step <= _MAX_SIZE * len(tokens))
    width = max(frequencies, key=lambda step: (frequencies[step], step), default=0) or _width_of(tokens)
    layout = _fit(16, width, full, tokens)
    if layout is None:
        return None
    most_numbers = max(sum(1 for _ in takewhile(_VALUE.fullmatch, _tokens(row.body))) for row in full)
    return layout if most_numbers * layout.size <= width else None  # otherwise bytes would be lost


def _fit(address_base: int, width: int, full: list[_Row], tokens: list[str]) -> _Layout | None:
    """Return the layout of rows of `width` bytes, the first of which has these tokens; None if none fits."""
    for layout in (_numbers(address_base, width, full[0], tokens), _characters(address_base, width)):
        if layout is not None and all(_read(row, layout, "little", None) for row in full):
            return layout
    return None


def _characters(address_base: int, width: int) -> _Layout | None:
    return _Layout(address_base, width, 1, 0, width * _CELL) if 0 < width <= 64 else None


def _numbers(address_base: int, width: int, row: _Row, tokens: list[str]) -> _Layout | None:
    """Return the layout of rows of `width` bytes whose first row has these numbers, and perhaps a gutter."""
    for size in (1, 2, 4, 8):
        count, rest = divmod(width, size)
        if rest or not 0 < count <= len(tokens):
            continue
        values = tokens[:count]
        if not all(map(_VALUE.fullmatch, values)):
            continue
        end = _end_of(row.body, count)
        if len(tokens) > count and not row.body[end:].startswith((" ", "\t")):
            continue
        base = _base_of(values, size)
        if base:
            return _Layout(address_base, width, size, base, end if len(tokens) > count else 1 << 30)
    return None


def _end_of(body: str, count: int) -> int:
    """Return where the first `count` words of a body end."""
    position = 0
    for _ in range(count):
        position += len(body[position:]) - len(body[position:].lstrip())
        position += len(body[position:].split(maxsplit=1)[0])
    return position


def _base_of(values: list[str], size: int) -> int:
    """Return the base of numbers of `size` bytes; 0 if they cannot be of that size."""
    if values[0].startswith("0x"):
        return 16 if all(len(value) == 2 + 2 * size for value in values) else 0
    widths = set(map(len, values))
    if widths == {2 * size}:
        return 16
    digits = "".join(values)
    if not set(digits) <= set("0123456789-"):
        return 0
    if widths == {8 * size} and set(digits) <= {"0", "1"}:
        return 2
    is_octal = not set(digits) & set("89-")
    if is_octal and (widths == {_OCTAL_WIDTHS[size]} or _have_leading_zeros(values)):
        return 8
    limit = 1 << 8 * size
    return 10 if all(-limit // 2 <= int(value) < limit for value in values) else 0


def _have_leading_zeros(values: list[str]) -> bool:
    """Return whether all numbers begin with a zero and differ in width, as gdb prints octal ones."""
    return len(set(map(len, values))) > 1 and all(value[0] == "0" for value in values)


def _width_of(tokens: list[str]) -> int:
    """Return the bytes of a single row if its numbers show their size; otherwise how many words it has."""
    first = tokens[0] if tokens else ""
    digits = len(first.removeprefix("0x"))
    same = [token for token in tokens if len(token) == len(first) and _VALUE.fullmatch(token)]
    return len(same) * digits // 2 if digits in (2, 4, 8, 16) else len(tokens)


def _tokens(body: str) -> list[str]:
    return _CHARACTERS.sub("", body).lower().split()


def _read(row: _Row, layout: _Layout, order: Order, length: int | None) -> bytes | None:
    """Return the bytes of a row, `length` of them if known; None if it has no such layout."""
    if not layout.base:
        return _read_characters(
            row.body, layout.width if length is None else min(length, layout.width), length
        )
    out = bytearray()
    for token in _tokens(row.body[: layout.end])[: layout.width // layout.size]:
        if not _VALUE.fullmatch(token):
            return None
        size = layout.size
        digits = token.removeprefix("0x")
        if layout.base == 16 and len(digits) != 2 * size:
            size = len(digits) // 2  # the last number of xxd -e
        limit = 1 << 8 * size
        try:
            value = int(token, layout.base)
        except ValueError:
            return None
        if not -limit // 2 <= value < limit:
            return None
        out += (value % limit).to_bytes(size, order)
    return bytes(out[:length])


def _read_characters(body: str, width: int, length: int | None) -> bytes | None:
    out = bytearray()
    if length is not None:
        body = body.ljust(width * _CELL)
    body = body[: width * _CELL]
    for start in range(0, len(body), _CELL):
        cell = body[start : start + _CELL].strip()
        if cell in _CELL_ESCAPES:
            out.append(_CELL_ESCAPES[cell])
        elif len(cell) == 1:
            out += cell.encode("latin-1", "replace")
        elif _CELL_OCTAL.fullmatch(cell):
            out.append(int(cell, 8))
        else:
            return None
    return bytes(out)
