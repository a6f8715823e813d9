"""The KeyValue view: encodings, nulls, sub-schemas and broken lengths."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from view_samples import JAVA_BREAD, JAVA_NATIVE, JAVA_PARSING_INFO, schema

from pulsarctl_wire.views import Content, show
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


def counted(raw: bytes | None) -> bytes:
    return struct.pack(">i", -1) if raw is None else struct.pack(">i", len(raw)) + raw


def pair_schema(
    key: str,
    value: str,
    encoding: str = "INLINE",
    data: tuple[bytes | None, bytes | None] = (b"", b""),
    **more: str,
) -> Schema:
    properties = {"key.schema.type": key, "value.schema.type": value, "kv.encoding.type": encoding}
    properties |= {name.replace("_", "."): text for name, text in more.items()}
    return schema("KeyValue", counted(data[0]) + counted(data[1]), properties)


def halves(content: Content) -> tuple[Any, Any]:
    shown = show(content)
    assert shown.view == "keyvalue", shown
    assert isinstance(shown.value, dict)
    return tuple(tuple(shown.value[half].values()) for half in ("key", "value"))  # type: ignore[return-value, union-attr]


NULL = ("null", None)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"k", struct.pack(">i", 7), (("text", "k"), ("int32", 7))),
        (None, struct.pack(">i", 7), (NULL, ("int32", 7))),
        (b"", None, (("text", ""), NULL)),
        (None, None, (NULL, NULL)),
    ],
)
def test_inline_and_separated(key: bytes | None, value: bytes | None, expected: Any) -> None:
    inline = Content(counted(key) + counted(value), pair_schema("STRING", "INT32"))
    assert halves(inline) == expected
    if value is not None:
        assert halves(Content(value, pair_schema("STRING", "INT32", "SEPARATED"), key)) == expected


def test_encoding_defaults_to_inline_and_types_to_bytes() -> None:
    bare = schema("KeyValue", counted(None) + counted(b""))
    assert halves(Content(counted(b"k") + counted(b"\xff"), bare)) == (("text", "k"), ("hex", "ff"))


@pytest.mark.parametrize(
    ("java_name", "payload", "expected"),
    [
        ("BOOLEAN", b"\x01", ("bool", True)),
        ("LOCAL_DATE", bytes(8), ("localdate", "1970-01-01")),
        ("BYTES", b"\xff", ("hex", "ff")),
        ("SOMETHING_NEW", b"x", ("text", "x")),
        ("JSON", b"[1]", ("json", [1])),
    ],
)
def test_java_names_of_types(java_name: str, payload: bytes, expected: Any) -> None:
    content = Content(payload, pair_schema("STRING", java_name, "SEPARATED"), b"k")
    assert halves(content)[1] == expected


def test_protobuf_halves() -> None:
    bread = {"name": "bread", "price": 250, "labels": ["fresh"]}
    native = pair_schema("PROTOBUF_NATIVE", "PROTOBUF_NATIVE", data=(JAVA_NATIVE, JAVA_NATIVE))
    parsed = pair_schema(
        "STRING",
        "PROTOBUF",
        value_schema_properties=json.dumps({"__PARSING_INFO__": JAVA_PARSING_INFO, "n": 1}),
    )
    assert halves(Content(counted(JAVA_BREAD) * 2, native)) == (("protobuf", bread), ("protobuf", bread))
    assert halves(Content(counted(b"k") + counted(JAVA_BREAD), parsed))[1] == ("protobuf", bread)


def test_keyvalue_in_keyvalue() -> None:
    data = counted(b"") * 2
    properties: dict[str, str] = {}
    payload = counted(b"in") * 2
    for _ in range(4):
        properties = {"value.schema.type": "KEY_VALUE", "value.schema.properties": json.dumps(properties)}
        data, payload = counted(None) + counted(data), counted(None) + counted(payload)
    value: Any = show(Content(payload, schema("KeyValue", data, properties))).value
    for _ in range(4):
        value = value["value"]["value"]
    assert value == {"key": {"view": "text", "value": "in"}, "value": {"view": "text", "value": "in"}}


def test_a_half_that_fails_is_noted() -> None:
    shown = show(Content(counted(b"\xff") + counted(b"12"), pair_schema("STRING", "INT32")))
    assert shown.value == {"key": {"view": "hex", "value": "ff"}, "value": {"view": "text", "value": "12"}}
    assert shown.note is not None
    assert shown.note.startswith("Key: Not shown by its String schema: ")
    assert shown.note.endswith(" Value: Not shown by its Int32 schema: the payload has 2 bytes, not 4.")


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        (b"", "the payload has 0 bytes for a key or value of 0"),
        (b"\xff", "the payload has 0 bytes for a key or value of -1"),
        (counted(b"k"), "the payload has 0 bytes for a key or value of 0"),
        (b"\xff\xff\xff\xfe" + bytes(8), "for a key or value of -2"),
        (b"\x7f\xff\xff\xff" + bytes(8), "for a key or value of 2147483647"),
        (counted(b"k") * 2 + b"!", "1 bytes left over"),
    ],
)
def test_broken_payloads(payload: bytes, part: str) -> None:
    shown = show(Content(payload, pair_schema("STRING", "STRING")))
    assert shown.view in ("text", "hex")
    assert shown.note is not None
    assert part in shown.note


@pytest.mark.parametrize(
    ("broken", "part"),
    [
        (schema("KeyValue"), "the schema has 0 bytes for a key or value of 0"),
        (schema("KeyValue", counted(b"") * 3), "4 bytes left over"),
        (pair_schema("STRING", "STRING", "SIDEWAYS"), "unknown encoding 'SIDEWAYS'"),
        (
            pair_schema("STRING", "STRING", key_schema_properties="[]"),
            "key.schema.properties is not a JSON object",
        ),
        (pair_schema("STRING", "STRING", key_schema_properties="{"), "key.schema.properties is no JSON"),
    ],
)
def test_broken_schemas(broken: Schema, part: str) -> None:
    shown = show(Content(counted(b"k") * 2, broken))
    assert shown.view == "hex"
    assert shown.note is not None
    assert part in shown.note
