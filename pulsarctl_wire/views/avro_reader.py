"""Reading Avro's binary encoding, within limits (Avro 1.11 specification, "Binary Encoding").

A compiled schema is a `Read`: a callable that takes the next value off a cursor. Scalars are
functions, containers small classes that hold their parts' Reads; a recursive schema is a Record
that reaches itself.

    int, long       zigzag varint           record          its fields' values, in order
    float, double   little-endian           array, map      blocks: count, items ... count 0;
    bytes, string   long size, bytes                        -count is followed by the size in bytes
    fixed           bytes                   union, enum     index as long, then the branch's value

The payload cannot make it build more than MAX_VALUES values (what was read so far is kept then)
nor go deeper than MAX_DEPTH, whatever the schema: items without bytes and records that contain
themselves cost nothing on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from pulsarctl_wire.views.content import Json, name_cost
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import base64_text, double, single

Part = TypeVar("Part")

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


Read: TypeAlias = Callable[[Cursor], Json]


def read_long(cursor: Cursor) -> int:
    """A zigzag varint of at most ten bytes; ValueError when it does not end."""
    number = cursor.varint()
    return (number >> 1) ^ -(number & 1)


def read_null(cursor: Cursor) -> None:
    """No bytes."""


def read_boolean(cursor: Cursor) -> bool:
    """One byte; ValueError unless it is 0 or 1, the surest sign of a wrong schema."""
    byte = cursor.take(1)[0]
    if byte > 1:
        raise ValueError(f"a boolean of {byte} at byte {cursor.at - 1}")
    return byte == 1


def read_float(cursor: Cursor) -> float | str:
    """Four bytes."""
    cursor.work()
    return single(_FLOAT.unpack(cursor.take(4))[0])


def read_double(cursor: Cursor) -> float | str:
    """Eight bytes."""
    return double(_DOUBLE.unpack(cursor.take(8))[0])


def read_raw(cursor: Cursor) -> bytes:
    """A size and that many bytes."""
    return cursor.take(read_long(cursor))


def read_bytes(cursor: Cursor) -> str:
    """A size and that many bytes, in base64."""
    return base64_text(read_raw(cursor))


def read_string(cursor: Cursor) -> str:
    """A size and that many bytes of UTF-8."""
    return cursor.text(read_raw(cursor))


def raw_fixed(size: int) -> Callable[[Cursor], bytes]:
    """Reads ``size`` bytes."""
    return lambda cursor: cursor.take(size)


def converted(read: Callable[[Cursor], Part], convert: Callable[[Part], Json]) -> Read:
    """Reads a value and shows it by ``convert``: logical types."""
    return lambda cursor: convert(read(cursor))


def _chosen(cursor: Cursor, options: list[Part]) -> Part:
    index = read_long(cursor)
    if not 0 <= index < len(options):
        raise ValueError(f"choice {index} of {len(options)} before byte {cursor.at}")
    return options[index]


def enumeration(symbols: list[str]) -> Read:
    """Reads an index into ``symbols``."""
    costs = [(symbol, name_cost(symbol) - 1) for symbol in symbols]

    def read(cursor: Cursor) -> str:
        symbol, cost = _chosen(cursor, costs)
        cursor.spend(cost)
        return symbol

    return read


def union(branches: list[Read]) -> Read:
    """Reads an index, then the value of that branch; which branch it was is not shown."""
    return lambda cursor: _chosen(cursor, branches)(cursor)


def _block(cursor: Cursor) -> range:
    """The items of the next block of an array or a map; none at its end."""
    count = read_long(cursor)
    if count < 0:
        read_long(cursor)  # the block's size in bytes, for readers that skip it
    return range(abs(count))


def array(items: Read) -> Read:
    """Reads blocks of items as a list, as long as the budget lasts."""

    def read(cursor: Cursor) -> list[Json]:
        made: list[Json] = []
        cursor.enter()
        while block := _block(cursor):
            for _ in block:
                if not cursor.spend():
                    return made
                made.append(items(cursor))
        cursor.leave()
        return made

    return read


def mapping(values: Read) -> Read:
    """Reads blocks of string keys with their values as an object, as long as the budget lasts."""

    def read(cursor: Cursor) -> dict[str, Json]:
        made: dict[str, Json] = {}
        cursor.enter()
        while block := _block(cursor):
            for _ in block:
                if not cursor.spend():
                    return made
                key = read_string(cursor)
                made[key] = values(cursor)
        cursor.leave()
        return made

    return read


class Record:
    """Reads fields in the schema's order as an object.

    Attributes:
        fields: names, what they cost, and their Reads; filled in after the Record exists, so that they
            can refer to it.
    """

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[str, int, Read]] = []

    def __call__(self, cursor: Cursor) -> Json:
        """Read all fields, or as many as the budget allows."""
        cursor.enter()
        values: dict[str, Json] = {}
        for name, cost, read in self.fields:
            if not cursor.spend(cost):
                break
            values[name] = read(cursor)
        cursor.leave()
        return values
