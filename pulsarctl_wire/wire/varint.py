"""Protobuf's wire format, field by field: the one walker for all who need to know where fields lie.

    field    tag = number << 3 | wire type (a varint), then by wire type:
    0 varint  1 eight bytes  2 size (a varint), bytes  3 fields up to a tag 4 of the same number  5 four bytes

Every encoding that any parser accepts is read: varints longer than necessary (up to ten bytes), fields in any
order and any number of times, groups. Source: https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

VARINT, FIXED_64, SIZED, GROUP, END_OF_GROUP, FIXED_32 = range(6)
"""Wire types."""

MOST_GROUPS: Final = 100
"""Groups inside each other; protobuf itself reads no more."""

_LONGEST: Final = 10  # bytes of a varint
_64_BITS: Final = 2**64 - 1
_32_BITS: Final = 2**32 - 1


class Field(NamedTuple):
    """A field of an encoded message, as offsets in its bytes.

    number    0 where the tag itself cannot be read
    wire      its wire type
    start     where its tag begins
    at        where its value begins (behind the size, of a SIZED one)
    stop      where its value ends, or the message if the field is broken
    value     of a varint; of a SIZED one the size it announces
    depth     how many groups it is in; a group's own tags count as outside of it
    problem   "", or why the field is broken: then it is the last one
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
    """The varint at `data[at:stop]`, modulo 2^64, and the offset behind it; `at` if it does not end."""
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


def fields(data: bytes, at: int, stop: int) -> Iterator[Field]:
    """The fields of the message at `data[at:stop]`, those in groups too, up to the first broken one."""
    groups: list[int] = []
    while at < stop:
        start = at
        tag = data[at]
        if 7 < tag < 0x80 and at + 1 < stop and (value := data[at + 1]) < 0x80:
            wire = tag & 7  # most fields of commands: two bytes, and maybe so many as the second one says
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
            problem = f"more than {MOST_GROUPS} groups inside each other" if depth == MOST_GROUPS else ""
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
    """Which field breaks the `message` (a descriptor) at `data[at:stop]`, why and where; "" if none."""
    for field in fields(data, at, stop):
        known = None if field.depth else message.fields_by_number.get(field.number)
        message_like = known is not None and known.message_type is not None and field.wire == SIZED
        if known is not None and message_like and not field.problem:
            deep = prefix.count(".") >= MOST_GROUPS
            inside = f"{prefix}{known.name}."
            problem = "" if deep else breaks(data, field.at, field.stop, known.message_type, inside)
            if problem:
                return problem
        if field.problem:
            return f"{field_name(field, known, prefix)} {field.problem} (offset {field.start})".lstrip()
    return ""


def field_name(field: Field, known: Any, prefix: str = "") -> str:
    """How a field is called: by its path and number, or its number where the schema does not have it."""
    if known is not None:
        return f"{prefix}{known.name} (field {field.number})"
    return f"{prefix}field {field.number}" if field.number else prefix.rstrip(".")


def _value(data: bytes, at: int, stop: int, wire: int) -> tuple[int, int, int, str]:
    """A field's value (of a SIZED one, its size), where it begins and ends, and what is wrong with it."""
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
    """What is wrong with the end of group `number`; takes it off `groups`."""
    if not groups:
        return "the end of a group that has not begun"
    begun = groups.pop()
    return "" if begun == number else f"the end of this group inside of group {begun}"


def varint(value: int) -> bytes:
    """An integer of 64 bits as protobuf writes it; a negative one as its two's complement."""
    value &= _64_BITS
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def tag(number: int, wire: int) -> bytes:
    """What a field begins with."""
    return varint(number << 3 | wire)


def sized(number: int, data: bytes) -> bytes:
    """A whole field of wire type SIZED."""
    return tag(number, SIZED) + varint(len(data)) + data
