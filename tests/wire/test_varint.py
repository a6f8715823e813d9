"""The walk over protobuf's wire format agrees with protobuf, and says where and why a message breaks."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, IntRange
from pulsarctl_wire.wire.varint import (
    MAX_GROUPS,
    SIZED,
    VARINT,
    fields,
    read_varint,
    sized_field,
    tag,
    varint,
)


def longer(data: bytes, size: int) -> bytes:
    """A varint in `size` bytes, more than it needs."""
    return data[:-1] + bytes([data[-1] | 0x80]) + b"\x80" * (size - len(data) - 1) + b"\x00"


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints(value: int, behind: bytes) -> None:
    data = varint(value)
    assert read_varint(data + behind, 0, len(data)) == (value, len(data))
    assert all(read_varint(data[:cut], 0, cut) == (0, 0) for cut in range(len(data)))
    if len(data) < 10:
        assert read_varint(longer(data, 10) + behind, 0, 10) == (value, 10)
    assert read_varint(b"\x80" * 10 + b"\x00", 0, 11) == (0, 0)


@st.composite
def messages(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Fields that no schema knows, of every wire type, and their tags and sizes in any encoding."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        number = draw(st.integers(1, 2**29 - 1))
        wire = draw(st.sampled_from([0, 1, 2, 3, 5] if depth < 3 else [0, 1, 2, 5]))
        head = tag(number, wire)
        if draw(st.booleans()) and len(head) < 5:
            head = longer(head, draw(st.integers(len(head) + 1, 5)))
        value = {0: varint(draw(st.integers(0, 2**64 - 1))), 1: bytes(8), 5: bytes(4)}.get(wire, b"")
        if wire == 2:
            data = draw(st.binary(max_size=20))
            value = longer(varint(len(data)), draw(st.integers(2, 5))) + data
        elif wire == 3:
            value = draw(messages(depth + 1)) + tag(number, 4)
        parts.append(head + value)
    return b"".join(parts)


@given(messages(), st.integers(0, 30))
def test_it_finds_the_fields_that_protobuf_finds(data: bytes, cut: int) -> None:
    """A message without fields of its own keeps them all as unknown ones."""
    data = data[: len(data) - cut] if cut < 10 else data
    found = list(fields(data, 0, len(data)))
    broken = [field for field in found if field.problem]
    try:
        known: Any = UnknownFieldSet(IntRange.FromString(b"\x08\x00\x10\x00" + data))
    except DecodeError:
        assert broken == found[-1:]
        return
    assert not broken
    top = [field for field in found if field.depth == 0 and field.wire != 4]
    expected = [(each.field_number, each.wire_type) for each in known if each.field_number > 2]
    assert [(field.number, field.wire) for field in top if field.number > 2] == expected
    at = 0
    for field in found:
        assert at == field.start < field.stop
        at = field.stop
    assert at == len(data)


@given(st.binary(max_size=40))
def test_it_breaks_wherever_protobuf_does(data: bytes) -> None:
    """And nowhere else, but for what only protobuf's own limits refuse."""
    found = list(fields(data, 0, len(data)))
    if found and found[-1].problem:
        with pytest.raises(DecodeError):
            BaseCommand.FromString(data)


@pytest.mark.parametrize(
    ("digits", "start", "problem"),
    [
        ("0802 2a ac02 00", 2, "says 300 bytes, 1 byte is left"),
        ("0802 0f", 2, "wire type 7 does not exist"),
        ("0802 0e", 2, "wire type 6 does not exist"),
        ("0802 80", 2, "the tag: a varint that does not end, 1 byte is left"),
        ("0880808080808080808080", 0, "the value: a varint that does not end within 10 bytes"),
        ("08", 0, "the value: nothing is left"),
        ("12", 0, "the size: nothing is left"),
        ("0000", 0, "field number 0 does not exist"),
        ("090000", 0, "takes 8 bytes, 2 are left"),
        ("0d0000", 0, "takes 4 bytes, 2 are left"),
        ("0b 0802", 3, "the group does not end"),
        ("0b 14", 1, "the end of this group inside of group 1"),
        ("0c", 0, "the end of a group that has not begun"),
        ("0b" * 101, 100, f"more than {MAX_GROUPS} groups inside each other"),
    ],
)
def test_why_and_where(digits: str, start: int, problem: str) -> None:
    data = bytes.fromhex(digits)
    *whole, broken = fields(data, 0, len(data))
    assert not any(field.problem for field in whole)
    assert (broken.start, broken.stop, broken.problem) == (start, len(data), problem)


def test_what_a_field_consists_of() -> None:
    data = b"\x00" + sized_field(5, b"abc") + tag(1, VARINT) + varint(300)
    text, number = fields(data, 1, len(data))
    assert (text.number, text.wire, text.value, data[text.at : text.stop]) == (5, SIZED, 3, b"abc")
    assert (number.number, number.wire, number.value) == (1, VARINT, 300)
