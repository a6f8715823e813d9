"""Protobuf's wire format, walked field by field, for all code that needs to know where fields are.

    field    tag = number << 3 | wire type (a varint), then by wire type:
    0 varint  1 eight bytes  2 size (a varint), bytes  3 fields up to a tag 4 of the same number  5 four bytes

It reads every encoding that any parser accepts: varints longer than necessary (up to ten bytes), fields in
any order and repeated any number of times, groups. Source: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from mypy_extensions import i64

VARINT: Final = 0
FIXED_64: Final = 1
SIZED: Final = 2
GROUP: Final = 3
END_OF_GROUP: Final = 4
FIXED_32: Final = 5
"""Wire types."""

MAX_GROUPS: Final = 100
"""The maximum nesting of groups; protobuf has the same limit."""

MAX_VARINT: Final = 10
"""Bytes of the longest varint."""

_MINUS_ONE: Final = b"\xff" * 9 + b"\x01"
_64_BITS: Final = 2**64 - 1
_32_BITS: Final = 2**32 - 1


_WIRES: Final = {
    FieldDescriptor.TYPE_DOUBLE: FIXED_64,
    FieldDescriptor.TYPE_FLOAT: FIXED_32,
    FieldDescriptor.TYPE_STRING: SIZED,
    FieldDescriptor.TYPE_BYTES: SIZED,
    FieldDescriptor.TYPE_MESSAGE: SIZED,
}
"""Wire types of the field types in PulsarApi.proto that are not varints."""


class Field(NamedTuple):
    """A field of an encoded message, as offsets into the bytes.

    number    its field number; 0 if the tag itself cannot be read
    wire      its wire type
    start     where its tag begins
    at        where its value begins (if it is SIZED, after the size)
    stop      where its value ends; where the message ends, if the field is broken
    value     the value of a varint; the size of a SIZED field
    depth     how many groups it is in; a group's own tags are outside of it
    problem   "", or why the field is broken; a broken field is the last one
    """

    number: int
    wire: int
    start: int
    at: int
    stop: int
    value: int = 0
    depth: int = 0
    problem: str = ""


def read_varint(data: bytes, pos: int, stop: int) -> tuple[int, int]:
    """Read the varint at `data[pos:stop]`, modulo 2^64. Returns it and its end, or (0, `pos`) if none."""
    if pos < stop and data[pos] < 0x80:
        return data[pos], pos + 1
    value = shift = 0
    for index in range(pos, min(pos + MAX_VARINT, stop)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, index + 1
        shift += 7
    return 0, pos


def read_signed(data: bytes, pos: i64, stop: i64) -> tuple[i64, i64]:
    """Do the same as `read_varint`, but accept only an int64 of -1 or more."""
    if pos < stop and data[pos] < 0x80:
        return data[pos], pos + 1
    value: i64 = 0
    shift: i64 = 0
    index = pos
    while index < stop and shift < 63:
        byte: i64 = data[index]
        index += 1
        if byte < 0x80:
            return value | byte << shift, index
        value |= (byte & 0x7F) << shift
        shift += 7
    return (-1, index + 1) if data[pos : min(index + 1, stop)] == _MINUS_ONE else (0, pos)


def fields(data: bytes, pos: int, stop: int) -> Iterator[Field]:
    """Yield the fields of the message at `data[pos:stop]`, even in groups, up to the first broken one."""
    groups: list[int] = []
    while pos < stop:
        start = pos
        tag, pos = read_varint(data, start, stop)
        number, wire, depth = (tag & _32_BITS) >> 3, tag & 7, len(groups)
        if pos == start:
            yield Field(0, 0, start, start, stop, 0, depth, f"the tag: {_endless_text(start, stop)}")
            return
        value, value_at, end, problem = _read_value(data, pos, stop, wire)
        if not number:
            problem = "field number 0 does not exist"
        elif wire == GROUP:
            groups.append(number)
            problem = f"more than {MAX_GROUPS} groups inside each other" if depth == MAX_GROUPS else ""
        elif wire == END_OF_GROUP:
            depth = max(depth - 1, 0)
            problem = _end_group(number, groups)
        yield Field(number, wire, start, value_at, stop if problem else end, value, depth, problem)
        if problem:
            return
        pos = end
    if groups:
        yield Field(groups[-1], GROUP, stop, stop, stop, 0, len(groups) - 1, "the group does not end")


def describe_break(data: bytes, pos: int, stop: int, descriptor: Any, prefix: str = "") -> str:
    """Return which field breaks the message at `data[pos:stop]`, why and where; "" if none.

    `descriptor` is that of the message; `prefix` is the path of the field that holds it, with a dot.
    """
    for field in fields(data, pos, stop):
        schema = None if field.depth else descriptor.fields_by_number.get(field.number)
        is_message = schema is not None and schema.message_type is not None and field.wire == SIZED
        if schema is not None and is_message and not field.problem:
            is_deep = prefix.count(".") >= MAX_GROUPS
            path = f"{prefix}{schema.name}."
            problem = "" if is_deep else describe_break(data, field.at, field.stop, schema.message_type, path)
            if problem:
                return problem
        if field.problem:
            name = f"{prefix}field {field.number}" if field.number else prefix.rstrip(".")
            if schema is not None:
                name = f"{prefix}{schema.name} (field {field.number})"
            return f"{name} {field.problem} (offset {field.start})".lstrip()
    return ""


def _read_value(data: bytes, pos: int, stop: int, wire: int) -> tuple[int, int, int, str]:
    """Return a field's value (its size if SIZED), where it begins and ends, and what is wrong with it."""
    if wire in (VARINT, SIZED):
        value, end = read_varint(data, pos, stop)
        if end == pos:
            return 0, pos, pos, f"{'the size' if wire == SIZED else 'the value'}: {_endless_text(pos, stop)}"
        if wire == VARINT:
            return value, pos, end, ""
        room = stop - end
        return value, end, end + value, f"says {value} bytes, {_left_text(room)}" if value > room else ""
    if wire in (FIXED_64, FIXED_32):
        size, room = 8 if wire == FIXED_64 else 4, stop - pos
        return 0, pos, pos + size, f"takes {size} bytes, {_left_text(room)}" if size > room else ""
    return 0, pos, pos, "" if wire in (GROUP, END_OF_GROUP) else f"wire type {wire} does not exist"


def _endless_text(pos: int, stop: int) -> str:
    if stop - pos >= MAX_VARINT:
        return f"a varint that does not end within {MAX_VARINT} bytes"
    return f"a varint that does not end, {_left_text(stop - pos)}" if stop > pos else _left_text(0)


def _left_text(size: int) -> str:
    return {0: "nothing is left", 1: "1 byte is left"}.get(size, f"{size} are left")


def _end_group(number: int, groups: list[int]) -> str:
    """Remove the group `number` from `groups` at its end. Returns what is wrong with that; "" if nothing."""
    if not groups:
        return "the end of a group that has not begun"
    innermost = groups.pop()
    return "" if innermost == number else f"the end of this group inside of group {innermost}"


def wire_type(field: Any) -> int:
    """Return the wire type of a field by its descriptor; packed encoding is not considered."""
    return _WIRES.get(field.type, VARINT)


def varint(value: int) -> bytes:
    """Encode a 64-bit integer as a varint; a negative one as its two's complement."""
    value &= _64_BITS
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def tag(number: int, wire: int) -> bytes:
    """Encode the tag of a field."""
    return varint(number << 3 | wire)


def sized_field(number: int, data: bytes) -> bytes:
    """Encode a field of wire type SIZED, including its tag."""
    return tag(number, SIZED) + varint(len(data)) + data
