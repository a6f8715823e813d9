"""The Avro view: values, logical types, schema errors and limits."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from view_samples import JAVA_AVRO, JAVA_ORDER, schema

from pulsarctl_wire.views import Content, Shown, ValueBudget, show
from pulsarctl_wire.views.content import ESCAPED_STEP, FAILED_COST, MAX_DEPTH, MAX_VALUES, cut_note


def avro(described: Any, payload: bytes) -> Shown:
    return show(Content(payload, schema("Avro", json.dumps(described).encode())))


def note(described: Any, payload: bytes = b"") -> str:
    shown = avro(described, payload)
    assert shown.view in ("text", "hex")
    return shown.note or ""


def long(number: int) -> bytes:
    """A zigzag varint, written independently of the reader."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def named(name: str, described: Any) -> dict[str, Any]:
    return {"name": name, "type": described}


def sized(raw: bytes) -> bytes:
    return long(len(raw)) + raw


@pytest.mark.parametrize(
    ("described", "payload", "value"),
    [
        ("null", b"", None),
        ("boolean", b"\x01", True),
        ("int", b"\x03", -2),
        ("long", long(-(2**63)), -(2**63)),
        ("long", long(2**63 - 1), 2**63 - 1),
        ("float", struct.pack("<f", 0.1), 0.1),
        ("double", struct.pack("<d", float("-inf")), "-Infinity"),
        ("bytes", sized(b"\xff\x00"), "/wA="),
        ("string", sized("é".encode()), "é"),
        ("string", sized(b"\xffa"), "\\xffa"),
        ({"type": "string"}, sized(b"a"), "a"),
        ({"type": {"type": "string"}}, sized(b"a"), "a"),
        (["null", "int"], b"\x02\x02", 1),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\x02", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\xff\x00", "/wA="),
        ({"type": "fixed", "name": "F", "size": 0}, b"", ""),
        ({"type": "array", "items": "int"}, b"\x04\x02\x04\x02\x06\x00", [1, 2, 3]),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x00", [1, 2]),
        ({"type": "map", "values": "int"}, b"\x02" + sized(b"k") + b"\x02\x00", {"k": 1}),
        ({"type": "record", "name": "R", "fields": []}, b"", {}),
        (
            {
                "type": "error",
                "name": "R",
                "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "null"}],
            },
            b"\x02",
            {"a": 1, "b": None},
        ),
    ],
)
def test_values(described: Any, payload: bytes, value: Any) -> None:
    assert avro(described, payload) == Shown("avro", value)


@pytest.mark.parametrize(
    ("kind", "logical", "payload", "value"),
    [
        ("int", "date", long(19675), "2023-11-14"),
        ("int", "date", long(2**31 - 1), 2**31 - 1),
        ("int", "time-millis", long(80_000_120), "22:13:20.120"),
        ("int", "time-millis", long(-1), -1),
        ("long", "time-micros", long(1), "00:00:00.000001"),
        ("long", "timestamp-millis", long(1_700_000_000_000), "2023-11-14T22:13:20Z"),
        ("long", "timestamp-millis", long(2**63 - 1), 2**63 - 1),
        ("long", "timestamp-micros", long(-1), "1969-12-31T23:59:59.999999Z"),
        ("long", "timestamp-nanos", long(1), "1970-01-01T00:00:00.000000001Z"),
        ("long", "local-timestamp-millis", long(0), "1970-01-01T00:00:00"),
        ("long", "local-timestamp-micros", long(500), "1970-01-01T00:00:00.000500"),
        ("long", "local-timestamp-nanos", long(0), "1970-01-01T00:00:00"),
        ("string", "uuid", sized(b"not checked"), "not checked"),
        ("long", "of-tomorrow", long(7), 7),
    ],
)
def test_logical_types(kind: str, logical: str, payload: bytes, value: Any) -> None:
    assert avro({"type": kind, "logicalType": logical}, payload) == Shown("avro", value)


@pytest.mark.parametrize(
    ("scale", "raw", "value"),
    [
        (0, b"\x04\xd2", "1234"),
        (2, b"\x04\xd2", "12.34"),
        (2, b"\xff", "-0.01"),
        (2, b"", "0.00"),
        (6, b"\x01", "0.000001"),
        (256, b"\x01", "0." + "0" * 255 + "1"),
        (257, b"\x01", "AQ=="),
        (2**60, b"\x01", "AQ=="),
        (-1, b"\x01", "AQ=="),
        ("x", b"\x01", "AQ=="),
        (1, b"\x01" * 129, base64.b64encode(b"\x01" * 129).decode()),
    ],
)
def test_decimals(scale: Any, raw: bytes, value: str) -> None:
    described = {"logicalType": "decimal", "precision": 2**60, "scale": scale}
    assert avro({"type": "bytes", **described}, sized(raw)).value == value
    assert avro({"type": "fixed", "name": "F", "size": len(raw), **described}, raw).value == value


def test_fixed_logical_types() -> None:
    duration = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    assert avro(duration, struct.pack("<III", 14, 3, 4005)).value == "P14M3DT4.005S"
    uuid = {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}
    assert avro(uuid, bytes(range(16))).value == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_names_are_resolved_in_their_namespaces() -> None:
    inner = {"type": "enum", "name": "E", "symbols": ["A"]}
    described = {
        "type": "record",
        "name": "x.y.R",
        "fields": [
            {"name": "a", "type": inner},
            {"name": "b", "type": "E"},
            {"name": "c", "type": "x.y.E"},
            {"name": "d", "type": {"type": "fixed", "name": "F", "namespace": "", "size": 1}},
            {"name": "e", "type": "F"},
            {"name": "f", "type": {"type": "fixed", "name": "G", "namespace": None, "size": 1}},
            {"name": "g", "type": "x.y.G"},
        ],
    }
    value = {"a": "A", "b": "A", "c": "A", "d": "AQ==", "e": "AQ==", "f": "AQ==", "g": "AQ=="}
    assert avro(described, b"\0\0\0\x01\x01\x01\x01").value == value


def test_recursive_schema() -> None:
    described = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
    }
    assert avro(described, b"\x02\x02\x04\x00").value == {"n": 1, "next": {"n": 2, "next": None}}


def test_bytes_left_over_are_noted() -> None:
    assert avro("int", b"\x02\x00\x00") == Shown("avro", 1, "Bytes left over after the value: 2.")


@pytest.mark.parametrize(
    ("described", "payload", "part"),
    [
        ("boolean", b"\x02", "a boolean of 2 at byte 0"),
        ("int", b"", "no complete number at byte 0"),
        ("long", b"\xff" * 11, "no complete number at byte 0"),
        ("double", b"1234", "8 bytes wanted at byte 0, 4 are left"),
        ("string", b"\x03", "-2 bytes wanted"),
        ("string", long(2**62), "4611686018427387904 bytes wanted"),
        (["null"], b"\x02", "choice 1 of 1 before byte 1"),
        (["null"], b"\x01", "choice -1 of 1 before byte 1"),
        ({"type": "enum", "name": "E", "symbols": []}, b"\x00", "choice 0 of 0"),
        ({"type": "fixed", "name": "F", "size": 2**60}, b"", "1152921504606846976 bytes wanted"),
    ],
)
def test_broken_payloads(described: Any, payload: bytes, part: str) -> None:
    assert part in note(described, payload)


@pytest.mark.parametrize(
    ("described", "part"),
    [
        ("Order", "does not define the type 'Order'"),
        (7, "has '7' where a type is due"),
        ({}, "has 'None' where a type is due"),
        ({"type": "array"}, "has 'None' where a type is due"),
        ({"type": "map", "values": [[]]}, ""),
        ({"type": "record", "name": "R"}, "lacks a list of fields"),
        ({"type": "record", "fields": []}, "has 'None' where a name"),
        ({"type": "record", "name": "R", "namespace": 5, "fields": []}, "has '5' where a name"),
        ({"type": "record", "name": "R", "fields": [3]}, "has '3' where a field is due"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "has 'None' where a name"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a" * 257, "type": "int"}]},
            "up to 256 characters",
        ),
        ({"type": "enum", "name": "E"}, "lacks a list of symbols"),
        ({"type": "enum", "name": "E", "symbols": [1]}, "has '1' where a name"),
        ({"type": "fixed", "name": "F", "size": -1}, "a fixed of size '-1'"),
        ({"type": "fixed", "name": "F"}, "a fixed of size 'None'"),
    ],
)
def test_broken_schemas(described: Any, part: str) -> None:
    assert part in note(described)


def test_schema_that_is_not_json() -> None:
    shown = show(Content(b"x", schema("Avro", b"\xff{")))
    assert (shown.view, shown.value) == ("text", "x")
    assert shown.note is not None


def test_depth_is_limited_at_64() -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    assert avro(node, b"\x02" * (MAX_DEPTH - 1) + b"\x00").view == "avro"
    assert "deeper than 64" in note(node, b"\x02" * MAX_DEPTH + b"\x00")


def test_values_are_cut_at_the_budget() -> None:
    shown = avro({"type": "array", "items": "null"}, long(2**60) + b"\x00")
    assert shown == Shown("avro", [None] * MAX_VALUES, cut_note(-1))


def test_a_text_that_is_no_utf_8_costs_values() -> None:
    text = b"\xff" * (MAX_VALUES * ESCAPED_STEP + 100)
    shown = avro("string", long(len(text)) + text)
    assert shown == Shown("avro", r"\xff" * MAX_VALUES * ESCAPED_STEP, cut_note(-1))
    shown = avro("string", long(len(text)) + b"x" * len(text))
    assert shown == Shown("avro", "x" * len(text))


def test_times_and_floats_cost_twice() -> None:
    for kind in ("float", {"type": "long", "logicalType": "timestamp-micros"}):
        budget = ValueBudget()
        given = schema("Avro", json.dumps({"type": "array", "items": kind}).encode())
        assert show(Content(long(10) + bytes(80), given, budget=budget)).view == "avro"
        assert budget.limit - budget.values == 20


def test_a_payload_that_does_not_fit_costs_values() -> None:
    budget = ValueBudget()
    assert show(Content(b"\x02", schema("Avro", b'"string"'), budget=budget)).view != "avro"
    assert budget.limit - budget.values == FAILED_COST


def test_a_cut_leaves_later_fields_out() -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": "null"}}, {"name": "b", "type": "int"}]
    shown = avro({"type": "record", "name": "R", "fields": fields}, long(2**60) + b"\x00\x02")
    assert isinstance(shown.value, dict)
    assert list(shown.value) == ["a"]
    assert shown.note == cut_note(-1)


@pytest.mark.parametrize("size", range(len(JAVA_AVRO[2])))
def test_every_truncation_of_a_real_payload_is_noticed(size: int) -> None:
    shown = show(Content(JAVA_AVRO[2][:size], schema("Avro", JAVA_ORDER)))
    assert shown.view != "avro"
    assert shown.note is not None
