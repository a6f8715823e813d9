"""Whatever the bytes and the schema are, show() answers with something that can be written."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from view_samples import (
    JAVA_AVRO,
    JAVA_BREAD,
    JAVA_JSON,
    JAVA_KEYVALUE_INLINE,
    JAVA_NATIVE,
    JAVA_ORDER,
    JAVA_PARSING_INFO,
    java_keyvalue,
    schema,
)

from pulsarctl_wire.views import Content, Shown, parse_schema, show
from pulsarctl_wire.views.content import MAX_REASON
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


def check(content: Content) -> Shown:
    shown = show(content)
    orjson.dumps(shown.value)
    if shown.note is not None:
        assert shown.note.isprintable()
        assert len(shown.note) < 2 * MAX_REASON
    return shown


CAPTURED = [
    Content(JAVA_AVRO[2], schema("Avro", JAVA_ORDER)),
    Content(JAVA_JSON, schema("Json", JAVA_ORDER)),
    Content(JAVA_BREAD, schema("ProtobufNative", JAVA_NATIVE)),
    Content(JAVA_BREAD, schema("Protobuf", b"", {"__PARSING_INFO__": JAVA_PARSING_INFO})),
    Content(JAVA_KEYVALUE_INLINE, java_keyvalue("JSON", "INLINE")),
    Content(JAVA_AVRO[1], java_keyvalue("AVRO", "SEPARATED"), b"k1"),
]


@st.composite
def mutations(draw: st.DrawFn, raw: bytes) -> bytes:
    """``raw`` with up to three places overwritten, cut out or filled in."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=6)) + raw[at + draw(st.integers(0, 6)) :]
    return raw


@st.composite
def mutated(draw: st.DrawFn) -> Content:
    real = draw(st.sampled_from(CAPTURED))
    assert real.schema is not None
    changed = Schema()
    changed.CopyFrom(real.schema)
    changed.schema_data = draw(mutations(real.schema.schema_data))
    for entry in changed.properties:
        entry.value = draw(mutations(entry.value.encode())).decode(errors="replace")
    if draw(st.booleans()):
        changed.type = draw(st.sampled_from(sorted(Schema.Type.values())))  # type: ignore[assignment, unused-ignore]
    return Content(draw(mutations(real.payload)), changed, draw(st.none() | st.binary(max_size=3)))


_names = st.sampled_from(["a", "b", "R", "R.b", "", "é"])
_words = st.sampled_from(
    [
        *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "record", "enum", "fixed"),
        *("array", "map", "decimal", "uuid", "date", "duration", "time-micros", "timestamp-millis", "R", "a"),
    ]
)


def _field_of(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"name": _names, "type": kind})


_loose: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | _words | _names,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.fixed_dictionaries(
            {"type": _words | inner},
            optional={
                "name": _names | inner,
                "namespace": _names | inner,
                "items": inner,
                "values": inner,
                "fields": st.lists(st.fixed_dictionaries({"name": _names, "type": inner}), max_size=3)
                | inner,
                "symbols": st.lists(_names, max_size=3) | inner,
                "size": st.integers(-1, 17) | inner,
                "logicalType": _words,
                "scale": st.integers(-1, 300) | inner,
            },
        ),
    ),
    max_leaves=12,
)


@given(
    st.binary(max_size=40),
    st.none() | st.sampled_from(sorted(Schema.Type.keys())),
    st.binary(max_size=40),
    st.dictionaries(
        st.sampled_from(["__PARSING_INFO__", "key.schema.type", "value.schema.type", "kv.encoding.type"]),
        st.sampled_from(["STRING", "AVRO", "SEPARATED", "[]", "[{}]"]) | st.text(max_size=8),
    ),
    st.none() | st.binary(max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_show_never_raises_for_arbitrary_bytes(
    payload: bytes, type_name: str | None, data: bytes, properties: dict[str, str], key: bytes | None
) -> None:
    given_schema = None if type_name is None else schema(type_name, data, properties)
    check(Content(payload, given_schema, key))


@given(mutated())
@settings(max_examples=200, deadline=None)
def test_show_never_raises_for_mutated_traffic(content: Content) -> None:
    check(content)


@given(_loose, st.binary(max_size=30))
@settings(max_examples=200, deadline=None)
def test_show_never_raises_for_things_like_avro_schemas(described: object, payload: bytes) -> None:
    check(Content(payload, schema("Avro", json.dumps(described).encode())))


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_without_schema_the_payload_can_be_told_from_what_is_shown(payload: bytes) -> None:
    shown = check(Content(payload))
    assert isinstance(shown.value, str)
    assert payload == (shown.value.encode() if shown.view == "text" else bytes.fromhex(shown.value))
    assert shown.note is None


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["int64", "date", "time", "timestamp", "localdate", "localtime"]),
)
@settings(max_examples=150, deadline=None)
def test_any_number_is_a_date_or_stays_a_number(number: int, type_name: str) -> None:
    shown = check(Content(number.to_bytes(8, "big", signed=True), parse_schema(type_name)))
    assert shown.view == type_name
    assert isinstance(shown.value, str) or shown.value == number
