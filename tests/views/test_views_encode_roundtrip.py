"""What encode() makes of a text shows as the value that was typed; what shows can be typed again."""

from __future__ import annotations

import base64
import json
import struct
from datetime import date, timedelta
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_views_keyvalue import pair_schema
from view_descriptors import SCALAR_KINDS, all_kinds, native
from view_samples import (
    JAVA_AVRO,
    JAVA_BREAD,
    JAVA_KEYVALUE_INLINE,
    JAVA_MILK,
    JAVA_NATIVE,
    JAVA_ORDER,
    JAVA_PARSING_INFO,
    PYTHON_AVRO,
    PYTHON_ORDER,
    java_keyvalue,
    schema,
)

from pulsarctl_wire.views import Content, Shown, encode, parse_schema, show
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

SIZES = {
    **{
        "bool": 1,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float": 4,
        "double": 8,
        "date": 8,
        "time": 8,
    },
    **{"timestamp": 8, "instant": 12, "localdate": 8, "localtime": 8, "localdatetime": 16},
}


def again(text: bytes, by: Schema | None) -> Shown:
    """What a payload made of ``text`` shows."""
    made = encode(text, by)
    return show(Content(made.payload, by, made.key))


def typed(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


@given(st.sampled_from(sorted(SIZES)), st.data())
@settings(max_examples=300)
def test_every_primitive_that_shows_can_be_typed(kind: str, data: st.DataObject) -> None:
    size, by = SIZES[kind], parse_schema(kind)
    near = st.integers(-(2**47), 2**47).map(lambda number: number.to_bytes(16, "big", signed=True)[-size:])
    halves = st.tuples(st.integers(-(2**20), 2**20), st.integers(0, 86_400_000_000_000)).map(
        lambda both: struct.pack(">qq", *both)
    )
    payload = data.draw(st.binary(min_size=size, max_size=size) | near | (halves if size == 16 else near))
    shown = show(Content(payload, by))
    for text in (orjson.dumps(shown.value), str(shown.value).encode()):
        if kind == "bool" and text[:1].isupper():
            continue
        made = encode(text, by)
        assert show(Content(made.payload, by)).value == shown.value
        assert made.payload == payload or kind == "bool" or shown.value == "NaN"


@given(st.text())
def test_strings(text: str) -> None:
    assert again(text.encode(), parse_schema("string")) == Shown("text", text)


@given(st.binary())
def test_bytes(raw: bytes) -> None:
    assert encode(raw).payload == raw
    assert encode(raw, parse_schema("bytes")).payload == raw


_json: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_json)
def test_json(value: Any) -> None:
    text = typed(value)
    assert encode(text, parse_schema("json")).payload == text
    assert again(text, parse_schema("json")) == Shown("json", value)


class AvroTypes:
    """Draws Avro types, and values of them as the view shows them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"

    def both(self, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
        ways = [self.scalar, self.logical, self.named]
        if depth < 3:
            ways += [self.array, self.map, self.record, self.optional]
        made: tuple[Any, st.SearchStrategy[Any]] = self.draw(st.sampled_from(ways))(depth)
        return made

    def scalar(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        name = self.draw(st.sampled_from(sorted(SCALARS)))
        return name, SCALARS[name]

    def logical(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kind, logical, values = self.draw(st.sampled_from(LOGICAL))
        return {"type": kind, "logicalType": logical}, values

    def named(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kind = self.draw(st.sampled_from(["enum", "fixed", "uuid", "duration", "decimal", "fixed decimal"]))
        if kind == "enum":
            return {"type": "enum", "name": self.name(), "symbols": ["A", "B_1"]}, st.sampled_from(
                ["A", "B_1"]
            )
        if kind == "fixed":
            fixed = {"type": "fixed", "name": self.name(), "size": 3}
            return fixed, st.binary(min_size=3, max_size=3).map(encoded)
        if kind == "uuid":
            fixed = {"type": "fixed", "name": self.name(), "size": 16, "logicalType": "uuid"}
            return fixed, st.uuids().map(str)
        if kind == "duration":
            fixed = {"type": "fixed", "name": self.name(), "size": 12, "logicalType": "duration"}
            return fixed, st.binary(min_size=12, max_size=12).map(shown_duration)
        scale = self.draw(st.integers(0, 5))
        about = {"logicalType": "decimal", "scale": scale, "precision": 40}
        plain = st.integers(-(10**38), 10**38).map(lambda number: digits(number, scale))
        if kind == "decimal":
            return {"type": "bytes", **about}, plain
        return {"type": "fixed", "name": self.name(), "size": 17, **about}, plain

    def array(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        items, values = self.both(depth + 1)
        return {"type": "array", "items": items}, st.lists(values, max_size=3)

    def map(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        items, values = self.both(depth + 1)
        return {"type": "map", "values": items}, st.dictionaries(st.text(max_size=3), values, max_size=3)

    def record(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        parts = [self.both(depth + 1) for _ in range(self.draw(st.integers(0, 4)))]
        fields = [{"name": f"f{number}", "type": kind} for number, (kind, _) in enumerate(parts)]
        values = {f"f{number}": value for number, (_, value) in enumerate(parts)}
        namespace = self.draw(st.sampled_from([{}, {"namespace": "a.b"}, {"namespace": ""}]))
        record = {"type": "record", "name": self.name(), **namespace, "fields": fields}
        return record, st.fixed_dictionaries(values)

    def optional(self, depth: int) -> tuple[Any, st.SearchStrategy[Any]]:
        kind, values = self.scalar(depth) if depth > 1 else self.record(depth + 1)
        if kind == "null":
            return "null", st.none()
        return ["null", kind], st.none() | values


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def digits(number: int, scale: int) -> str:
    text = str(abs(number)).rjust(scale + 1, "0")
    sign = "-" if number < 0 else ""
    return f"{sign}{text[:-scale]}.{text[-scale:]}" if scale else sign + text


def shown_duration(raw: bytes) -> str:
    fixed = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
    return str(show(Content(raw, schema("Avro", typed(fixed)))).value)


def clock(seconds: int, fraction: str) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


_days = st.integers(0, 3_652_058).map(lambda day: (date(1, 1, 1) + timedelta(day)).isoformat())
_recent = st.integers(0, 200_000).map(lambda day: (date(1680, 1, 1) + timedelta(day)).isoformat())
_seconds = st.integers(0, 86_399)
_millis = st.sampled_from(["", ".001", ".120"])
_micros = _millis | st.sampled_from([".000001", ".123456"])
_nanos = _micros | st.just(".000000001")
SCALARS = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32).map(lambda number: shown_number("float", number)),
    "double": st.floats().map(lambda number: shown_number("double", number)),
    "bytes": st.binary(max_size=5).map(encoded),
    "string": st.text(max_size=5),
}
LOGICAL = [
    ("int", "date", _days),
    ("int", "time-millis", st.builds(clock, _seconds, _millis)),
    ("long", "time-micros", st.builds(clock, _seconds, _micros)),
    *(
        ("long", f"{local}timestamp-{unit}", st.builds(f"{{}}T{{}}{zone}".format, days, clocks))
        for local, zone in (("", "Z"), ("local-", ""))
        for unit, days, clocks in (
            ("millis", _days, st.builds(clock, _seconds, _millis)),
            ("micros", _days, st.builds(clock, _seconds, _micros)),
            ("nanos", _recent, st.builds(clock, _seconds, _nanos)),
        )
    ),
    ("long", "timestamp-millis", st.just(2**62)),
    ("int", "date", st.integers(2**23, 2**31 - 1)),
    ("string", "uuid", st.uuids().map(str)),
    ("long", "of-their-own", st.integers(-5, 5)),
]


def shown_number(kind: str, number: float) -> Any:
    return show(Content(struct.pack(">f" if kind == "float" else ">d", number), parse_schema(kind))).value


@st.composite
def avro_values(draw: st.DrawFn) -> tuple[Schema, Any]:
    kind, values = AvroTypes(draw).both()
    return schema("Avro", typed(kind)), draw(values)


@given(avro_values())
@settings(max_examples=150)
def test_avro(both: tuple[Schema, Any]) -> None:
    by, value = both
    assert again(typed(value), by) == Shown("avro", value)
    by.type = Schema.Json
    assert encode(typed(value), by).payload == typed(value)


def _plain(kind: Any) -> Any:
    """A schema without logical types, which change no byte."""
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    return {name: _plain(value) for name, value in kind.items() if name != "logicalType"}


@given(avro_values())
def test_avro_as_fastavro_writes_it(both: tuple[Schema, Any]) -> None:
    by, value = both
    payload, kind = encode(typed(value), by).payload, _plain(json.loads(by.schema_data))
    stream, again = BytesIO(payload), BytesIO()
    fastavro.schemaless_writer(again, kind, fastavro.schemaless_reader(stream, kind))
    assert again.getvalue() == payload
    assert not stream.read()


@pytest.mark.parametrize("payload", JAVA_AVRO)
def test_avro_as_java_wrote_it(payload: bytes) -> None:
    by = schema("Avro", JAVA_ORDER)
    assert encode(typed(show(Content(payload, by)).value), by).payload == payload


def test_avro_as_python_wrote_it() -> None:
    by = schema("Avro", PYTHON_ORDER)
    shown = show(Content(PYTHON_AVRO, by))
    assert again(typed(shown.value), by) == shown


NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "double": SCALARS["double"],
    "float": SCALARS["float"],
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": SCALARS["bytes"],
}
for _kind in SCALAR_KINDS:
    if "int" in _kind or "fixed" in _kind:
        _bits = 64 if "64" in _kind else 32
        _low = 0 if _kind in ("uint32", "uint64", "fixed32", "fixed64") else -(2 ** (_bits - 1))
        NUMBERS[_kind] = st.integers(_low, _low + 2**_bits - 1)


def _messages(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for kind, values in NUMBERS.items():
        fields[f"one_{kind}"] = values
        fields[f"many_{kind}"] = st.lists(values, min_size=1, max_size=3)
        if kind not in ("string", "bytes"):
            fields[f"packed_{kind}"] = fields[f"many_{kind}"]
    colours = st.sampled_from(["RED", "NO_COLOUR", "BLUE"])
    fields |= {"colour": colours, "colours": st.lists(colours, min_size=1), "child": children}
    fields["children"] = st.lists(children, min_size=1, max_size=2)
    fields["box"] = st.fixed_dictionaries({}, optional={"size": NUMBERS["int32"]})
    fields["names"] = st.dictionaries(NUMBERS["int32"].map(str), st.text(max_size=3), min_size=1, max_size=2)
    fields["flags"] = st.dictionaries(st.sampled_from(["true", "false"]), colours, min_size=1)
    fields["trees"] = st.dictionaries(st.text(max_size=3), children, min_size=1, max_size=2)
    some = st.lists(st.sampled_from(sorted(fields)), max_size=5, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: fields[name] for name in names}))


@given(st.recursive(st.just({}), _messages, max_leaves=4))
@settings(max_examples=100)
def test_protobuf(value: Any) -> None:
    by = native(all_kinds(), "demo.All")
    assert again(typed(value), by) == Shown("protobuf", value)


@pytest.mark.parametrize("payload", [JAVA_BREAD, JAVA_MILK])
def test_protobuf_as_java_wrote_it(payload: bytes) -> None:
    by_info = schema("Protobuf", b'{"type":"record","name":"Item"}', {"__PARSING_INFO__": JAVA_PARSING_INFO})
    for by in (schema("ProtobufNative", JAVA_NATIVE), by_info):
        assert encode(typed(show(Content(payload, by)).value), by).payload == payload


def test_key_and_value_as_java_wrote_them() -> None:
    by = java_keyvalue("JSON", "INLINE")
    assert (
        encode(b'{"key": "k1",\n "value": ' + JAVA_KEYVALUE_INLINE[10:] + b"}", by).payload
        == JAVA_KEYVALUE_INLINE
    )


@given(
    st.none() | st.text(),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(["INLINE", "SEPARATED"]),
)
def test_key_and_value(key: str | None, value: int | None, encoding: str) -> None:
    assume(value is not None or encoding == "INLINE")
    null = {"view": "null", "value": None}
    assert again(typed({"key": key, "value": value}), pair_schema("STRING", "INT32", encoding)).value == {
        "key": null if key is None else {"view": "text", "value": key},
        "value": null if value is None else {"view": "int32", "value": value},
    }
