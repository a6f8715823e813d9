"""How the values of Protobuf's scalar types are read and shown (protobuf.dev, "Encoding").

64-bit integers stay integers, bytes become base64, NaN and infinities strings.
"""

from __future__ import annotations

import struct

from pulsarctl_wire.views.content import Json, name_cost
from pulsarctl_wire.views.protobuf_reader import EIGHT, FOUR, SIZED, VARINT, Read, Reader
from pulsarctl_wire.views.values import base64_text, double, single

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _fixed(size: int, signed: bool) -> Read:
    return lambda reader, end: int.from_bytes(reader.take(size, end), "little", signed=signed)


def _float(reader: Reader, end: int) -> Json:
    reader.work()
    return single(_FLOAT.unpack(reader.take(4, end))[0])


SCALARS: dict[str, tuple[int, Read, Json]] = {
    "INT32": (VARINT, lambda reader, end: _signed(reader.varint(end), 32), 0),
    "INT64": (VARINT, lambda reader, end: _signed(reader.varint(end), 64), 0),
    "UINT32": (VARINT, lambda reader, end: reader.varint(end) & 0xFFFFFFFF, 0),
    "UINT64": (VARINT, Reader.varint, 0),
    "SINT32": (VARINT, lambda reader, end: _zigzag(reader.varint(end) & 0xFFFFFFFF), 0),
    "SINT64": (VARINT, lambda reader, end: _zigzag(reader.varint(end)), 0),
    "BOOL": (VARINT, lambda reader, end: reader.varint(end) != 0, False),
    "ENUM": (VARINT, lambda reader, end: _signed(reader.varint(end), 32), 0),
    "FIXED32": (FOUR, _fixed(4, signed=False), 0),
    "FIXED64": (EIGHT, _fixed(8, signed=False), 0),
    "SFIXED32": (FOUR, _fixed(4, signed=True), 0),
    "SFIXED64": (EIGHT, _fixed(8, signed=True), 0),
    "FLOAT": (FOUR, _float, 0.0),
    "DOUBLE": (EIGHT, lambda reader, end: double(_DOUBLE.unpack(reader.take(8, end))[0]), 0.0),
    "STRING": (SIZED, lambda reader, end: reader.text(reader.sized(end)), ""),
    "BYTES": (SIZED, lambda reader, end: base64_text(reader.sized(end)), ""),
}
"""Wire type, reader and default of each scalar type, by its name in descriptors without ``TYPE_``."""


def named_enum(names: dict[int, str]) -> Read:
    """Reads an enum's number as its name; numbers without a name stay."""

    def read(reader: Reader, end: int) -> Json:
        number = _signed(reader.varint(end), 32)
        name = names.get(number, number)
        if isinstance(name, str):
            reader.spend(name_cost(name) - 1)
        return name

    return read
