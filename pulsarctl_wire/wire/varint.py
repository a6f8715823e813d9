"""Walks protobuf's wire format field by field, for all code that needs to know where fields are.

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

_LONGEST: Final = 10  # bytes of the longest varint
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
"""Wire types of all field types that are not varints."""


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


def read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """The varint at `data[at:stop]`, modulo 2^64, and the offset after it; (0, `at`) if it does not end."""
    if at < stop and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    for index in range(at, min(at + _LONGEST, stop)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _64_BITS, index + 1
        shift += 7
    return 0, at


def read_signed(data: bytes, at: i64, stop: i64) -> tuple[i64, i64]:
    """The varint at `data[at:stop]` if it is an int64 from -1 up, and the offset after it; else (0, `at`)."""
    if at < stop and data[at] < 0x80:
        return data[at], at + 1
    value: i64 = 0
    shift: i64 = 0
    index = at
    while index < stop and shift < 63:
        byte: i64 = data[index]
        index += 1
        if byte < 0x80:
            return value | byte << shift, index
        value |= (byte & 0x7F) << shift
        shift += 7
    return (-1, index + 1) if data[at : min(index + 1, stop)] == _MINUS_ONE else (0, at)


def fields(data: bytes, at: int, stop: int) -> Iterator[Field]:
    """The fields of the message at `data[at:stop]`, including those in groups, up to the first broken one."""
    groups: list[int] = []
    while at < stop:
        start = at
        tag = data[at]
        if 7 < tag < 0x80 and at + 1 < stop and (value := data[at + 1]) < 0x80:
            wire = tag & 7  # most fields in commands: two bytes; the second is the value, or the size of more
            if wire == VARINT:
                at += 2
                yield Field(tag >> 3, VARINT, start, start + 1, at, value, len(groups))
                continue
            if wire == SIZED and value <= stop - at - 2:
                at += 2 + value
                yield Field(tag >> 3, SIZED, start, start + 2, at, value, len(groups))
                continue
        tag, at = read_varint(data, start, stop)
        number, wire, depth = (tag & _32_BITS) >> 3, tag & 7, len(groups)
        if at == start:
            yield Field(0, 0, start, start, stop, 0, depth, f"the tag: {_endless(start, stop)}")
            return
        value, value_at, end, problem = _value(data, at, stop, wire)
        if not number:
            problem = "field number 0 does not exist"
        elif wire == GROUP:
            groups.append(number)
            problem = f"more than {MAX_GROUPS} groups inside each other" if depth == MAX_GROUPS else ""
        elif wire == END_OF_GROUP:
            depth = max(depth - 1, 0)
            problem = _ending(number, groups)
        yield Field(number, wire, start, value_at, stop if problem else end, value, depth, problem)
        if problem:
            return
        at = end
    if groups:
        yield Field(groups[-1], GROUP, stop, stop, stop, 0, len(groups) - 1, "the group does not end")


def breaks(data: bytes, at: int, stop: int, message: Any, prefix: str = "") -> str:
    """Which field breaks the message at `data[at:stop]`, why and where; "" if none. `message` is its type."""
    for field in fields(data, at, stop):
        known = None if field.depth else message.fields_by_number.get(field.number)
        message_like = known is not None and known.message_type is not None and field.wire == SIZED
        if known is not None and message_like and not field.problem:
            deep = prefix.count(".") >= MAX_GROUPS
            inside = f"{prefix}{known.name}."
            problem = "" if deep else breaks(data, field.at, field.stop, known.message_type, inside)
            if problem:
                return problem
        if field.problem:
            name = f"{prefix}field {field.number}" if field.number else prefix.rstrip(".")
            if known is not None:
                name = f"{prefix}{known.name} (field {field.number})"
            return f"{name} {field.problem} (offset {field.start})".lstrip()
    return ""


def _value(data: bytes, at: int, stop: int, wire: int) -> tuple[int, int, int, str]:
    """A field's value (its size if it is SIZED), where it begins and ends, and what is wrong with it."""
    if wire in (VARINT, SIZED):
        value, end = read_varint(data, at, stop)
        if end == at:
            return 0, at, at, f"{'the size' if wire == SIZED else 'the value'}: {_endless(at, stop)}"
        if wire == VARINT:
            return value, at, end, ""
        left = stop - end
        return value, end, end + value, f"says {value} bytes, {_left(left)}" if value > left else ""
    if wire in (FIXED_64, FIXED_32):
        size, left = 8 if wire == FIXED_64 else 4, stop - at
        return 0, at, at + size, f"takes {size} bytes, {_left(left)}" if size > left else ""
    return 0, at, at, "" if wire in (GROUP, END_OF_GROUP) else f"wire type {wire} does not exist"


def _endless(at: int, stop: int) -> str:
    if stop - at >= _LONGEST:
        return f"a varint that does not end within {_LONGEST} bytes"
    return f"a varint that does not end, {_left(stop - at)}" if stop > at else _left(0)


def _left(size: int) -> str:
    return {0: "nothing is left", 1: "1 byte is left"}.get(size, f"{size} are left")


def _ending(number: int, groups: list[int]) -> str:
    """What is wrong with the end of group `number`; "" if nothing. Removes the group from `groups`."""
    if not groups:
        return "the end of a group that has not begun"
    begun = groups.pop()
    return "" if begun == number else f"the end of this group inside of group {begun}"


def wire_type(field: Any) -> int:
    """The wire type of a field by its descriptor; packed encoding is not considered."""
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


def sized(number: int, data: bytes) -> bytes:
    """Encode a field of wire type SIZED, including its tag."""
    return tag(number, SIZED) + varint(len(data)) + data
