"""Payloads of real clients show as the values those clients logged."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from view_samples import (
    JAVA_AVRO,
    JAVA_BREAD,
    JAVA_JSON,
    JAVA_KEYVALUE_INLINE,
    JAVA_MILK,
    JAVA_NATIVE,
    JAVA_ORDER,
    JAVA_ORDERS,
    JAVA_PARSING_INFO,
    PYTHON_AVRO,
    PYTHON_JSON,
    PYTHON_ORDER,
    PYTHON_ORDER_2,
    java_keyvalue,
    schema,
)

from pulsarctl_wire.views import Content, Shown, show

BREAD = {"name": "bread", "price": 250, "labels": ["fresh"]}


@pytest.mark.parametrize(
    ("type_name", "data", "payload", "view", "value"),
    [
        ("Avro", JAVA_ORDER, JAVA_AVRO[0], "avro", JAVA_ORDERS[0]),
        ("Avro", JAVA_ORDER, JAVA_AVRO[1], "avro", JAVA_ORDERS[1]),
        ("Avro", JAVA_ORDER, JAVA_AVRO[2], "avro", JAVA_ORDERS[2]),
        ("Json", JAVA_ORDER, JAVA_JSON, "json", JAVA_ORDERS[1]),
        (
            "ProtobufNative",
            JAVA_NATIVE,
            JAVA_BREAD,
            "protobuf",
            BREAD,
        ),
        ("ProtobufNative", JAVA_NATIVE, JAVA_MILK, "protobuf", {"name": "milk", "price": -1}),
        ("Int64", b"", bytes(8), "int64", 0),
        ("Int64", b"", b"\xff" * 8, "int64", -1),
        ("Int64", b"", bytes.fromhex("7fffffffffffffff"), "int64", 9223372036854775807),
        ("Double", b"", bytes(8), "double", 0.0),
        ("Double", b"", bytes.fromhex("bff8000000000000"), "double", -1.5),
        ("Double", b"", bytes.fromhex("400921fb54442d18"), "double", 3.141592653589793),
        ("Bool", b"", b"\x01", "bool", True),
        ("Bool", b"", b"\x00", "bool", False),
        ("String", b"", bytes.fromhex("64c3a96ac3a0"), "text", "déjà"),
        ("String", b"", b"", "text", ""),
        ("String", b"null", bytes.fromhex("64c3a96ac3a02076752030"), "text", "déjà vu 0"),
        ("Json", PYTHON_ORDER, PYTHON_JSON, "json", PYTHON_ORDER_2),
        ("Avro", PYTHON_ORDER, PYTHON_AVRO, "avro", PYTHON_ORDER_2),
    ],
)
def test_values_are_those_the_client_logged(
    type_name: str, data: bytes, payload: bytes, view: str, value: Any
) -> None:
    shown = show(Content(payload, schema(type_name, data)))
    assert shown == Shown(view, value)
    assert orjson.loads(orjson.dumps(shown.value)) == value


def _pair(view: str, number: int) -> dict[str, Any]:
    return {
        "key": {"view": "text", "value": f"k{number}"},
        "value": {"view": view, "value": JAVA_ORDERS[number]},
    }


def test_inline_key_and_value() -> None:
    content = Content(JAVA_KEYVALUE_INLINE, java_keyvalue("JSON", "INLINE"))
    assert show(content) == Shown("keyvalue", _pair("json", 1))


@pytest.mark.parametrize(("number", "key"), [(0, b"k0"), (1, b"k1")])
def test_separated_key_and_value(number: int, key: bytes) -> None:
    content = Content(JAVA_AVRO[number], java_keyvalue("AVRO", "SEPARATED"), key)
    assert show(content) == Shown("keyvalue", _pair("avro", number))


def test_protobuf_by_parsing_info_alone() -> None:
    described = schema(
        "Protobuf", b'{"type":"record","name":"Item"}', {"__PARSING_INFO__": JAVA_PARSING_INFO}
    )
    assert show(Content(JAVA_BREAD, described)).value == BREAD
