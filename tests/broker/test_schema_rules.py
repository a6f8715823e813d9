"""Which schemas are compatible, by a table that holds for a real broker 4.0.8.

python tests/broker/test_schema_rules.py     # run the table against a real broker
"""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.broker.schemas.avro import parse
from pulsarctl_wire.broker.schemas.compatibility import (
    explain_incompatibility,
    find_incompatibility,
    find_version,
)
from pulsarctl_wire.broker.schemas.kinds import Schema
from pulsarctl_wire.wire import PulsarApi_pb2 as api

STRATEGIES = (
    *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)
NONE = getattr(api.Schema, "None")

# -- schemas


def typed(type_: int, data: Any = b"", **properties: str) -> Schema:
    """`data` is JSON unless it is bytes."""
    return Schema(type_, data if isinstance(data, bytes) else json.dumps(data).encode(), properties)


def avro(data: Any) -> Schema:
    return typed(api.Schema.Avro, data)


def as_json(data: Any) -> Schema:
    return typed(api.Schema.Json, data)


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(type_: Any = "int", name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def enum(*symbols: str, name: str = "E", **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def key_value(key: Schema, value: Schema) -> Schema:
    properties = {}
    for which, part in (("key", key), ("value", value)):
        name = api.Schema.Type.Name(api.Schema.Type.ValueType(part.type))
        name = {"KeyValue": "KEY_VALUE"}.get(name, name)
        properties[f"{which}.schema.type"] = name.upper()
        properties[f"{which}.schema.properties"] = json.dumps(part.properties)
    data = b"".join(struct.pack(">i", len(part.data)) + part.data for part in (key, value))
    return typed(api.Schema.KeyValue, data, **properties)


def native(
    root: str, *, package: str = "p", messages: str = "M N", extra: bool = False, **more: Any
) -> Schema:
    file = FileDescriptorProto(name="f.proto", package=package, syntax="proto3")
    for name in messages.split():
        message = file.message_type.add(name=name)
        message.nested_type.add(name="Inner")
        message.field.add(name="a", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL")
        if extra:
            message.field.add(name="b", number=2, type="TYPE_INT32", label="LABEL_OPTIONAL")
    files = b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    names = {"rootMessageTypeName": root, "rootFileDescriptorName": "f.proto"}
    return typed(api.Schema.ProtobufNative, {"fileDescriptorSet": files, **names, **more})


INT, LONG, TEXT = (avro(record(field(each))) for each in ("int", "long", "string"))
JSON_INT, JSON_LONG = (as_json(record(field(each))) for each in ("int", "long"))
STRING, PRIMITIVE = typed(api.Schema.String), typed(api.Schema.Int32)
OLD = as_json({"type": "object", "id": "urn:x", "properties": {"a": {"type": "integer"}}})
BAD_DEFAULT = avro(record(field(default="x")))
KEY_VALUE = key_value(STRING, INT)
NO_KEY = typed(api.Schema.KeyValue, b"\0\0\0\5")
NULL_VALUE = KEY_VALUE._replace(data=bytes(4) + b"\xff" * 4)

# -- the table


class Row(NamedTuple):
    """`outcome` is the find_incompatibility's kind, or empty."""

    what: str
    strategy: str
    old: tuple[Schema, ...]
    new: Schema
    outcome: str
    consumer: bool = False

    def __str__(self) -> str:
        return f"{self.strategy} {'consumer ' if self.consumer else ''}{self.what}".replace(" ", "-")


CHANGES: dict[str, tuple[Any, Any, bool, bool]] = {
    # what: old, new, does the new one read the old one's, does the old one read the new one's
    "promoted int": (record(field("int")), record(field("long")), True, False),
    "promoted long": (record(field("long")), record(field("double")), True, False),
    "float is no long": (record(field("float")), record(field("long")), False, True),
    "string is bytes": (record(field("string")), record(field("bytes")), True, True),
    "int is no string": (record(field("int")), record(field("string")), False, False),
    "boolean is no int": (record(field("boolean")), record(field("int")), False, False),
    "new field": (record(field()), record(field(), field(name="b")), False, True),
    "new field with default": (record(field()), record(field(), field(name="b", default=1)), True, True),
    "new nullable field": (
        record(field()),
        record(field(), field(["null", "int"], "b", default=None)),
        True,
        True,
    ),
    "nullable without default": (record(field()), record(field(), field(["null", "int"], "b")), False, True),
    "fields in other order": (
        record(field(), field("string", "b")),
        record(field("string", "b"), field()),
        True,
        True,
    ),
    "other name": (record(field()), record(field(), name="S"), True, True),
    "renamed field": (record(field()), record(field(name="b")), False, False),
    "renamed field with alias": (record(field()), record(field(name="b", aliases=["a"])), True, False),
    "becomes nullable": (record(field()), record(field(["null", "int"])), True, False),
    "union grows": (record(field(["null", "int"])), record(field(["null", "int", "string"])), True, False),
    "union in other order": (record(field(["null", "int"])), record(field(["int", "null"])), True, True),
    "union promotes": (record(field(["null", "int"])), record(field(["null", "long"])), True, False),
    "new symbol": (record(field(enum("x"))), record(field(enum("x", "y"))), True, True),
    "lost symbol, default": (
        record(field(enum("x", "y"))),
        record(field(enum("x", default="x"))),
        True,
        True,
    ),
    "renamed enum": (record(field(enum("x"))), record(field(enum("x", name="G"))), False, False),
    "renamed enum with alias": (
        record(field(enum("x"))),
        record(field(enum("x", name="G", aliases=["E"]))),
        True,
        False,
    ),
    "enum in other namespace": (
        record(field(enum("x"))),
        record(field(enum("x", namespace="n"))),
        True,
        True,
    ),
    "other size": (record(field(fixed(1))), record(field(fixed(2))), False, False),
    "renamed fixed": (record(field(fixed(1))), record(field(fixed(1, "G"))), False, False),
    "array's items": (
        record(field({"type": "array", "items": "int"})),
        record(field({"type": "array", "items": "long"})),
        True,
        False,
    ),
    "map's values": (
        record(field({"type": "map", "values": "int"})),
        record(field({"type": "map", "values": "string"})),
        False,
        False,
    ),
    "recursive": (
        record(field(), field(["null", "R"], "next", default=None)),
        record(field("long"), field(["null", "R"], "next", default=None)),
        True,
        False,
    ),
    "renamed record in a union": (
        record(field(["null", record(field(), name="X")])),
        record(field(["null", record(field(), name="Y")])),
        True,
        True,
    ),
    "other record in a union": (
        record(field(["null", record(field(), name="X")])),
        record(field(["null", record(field(name="b"), name="Y")])),
        False,
        False,
    ),
    "record of this name in a union": (
        record(field(record(field(), name="X"))),
        record(field(["null", record(field("string"), name="X"), record(field(), name="Y")])),
        False,
        False,
    ),
    "alias of the root": (
        record(field(record(field(), name="X"))),
        record(field(record(field("long"), name="Y", aliases=["X"]))),
        True,
        False,
    ),
    "primitive": ("int", "long", True, False),
    "logical type": ("int", {"type": "int", "logicalType": "date"}, True, True),
}


def _changes() -> Iterator[Row]:
    for what, (old, new, backward, forward) in CHANGES.items():
        both = backward and forward
        for strategy, good in (("BACKWARD", backward), ("FORWARD", forward), ("FULL", both)):
            yield Row(what, strategy, (avro(old),), avro(new), "" if good else "incompatible")
        yield Row(what, "FORWARD", (avro(old),), avro(new), "" if backward else "incompatible", True)
        yield Row(what, "UNDEFINED", (as_json(old),), as_json(new), "" if both else "incompatible")


NEW_TYPE = "incompatible"
WITH_B, WITH_C = (avro(record(field(), field(name=name, default=1))) for name in "bc")

ROWS = [
    *_changes(),
    # transitive strategies
    Row("with the latest only", "BACKWARD", (TEXT, INT), LONG, ""),
    Row("with all", "BACKWARD_TRANSITIVE", (TEXT, INT), LONG, "incompatible"),
    Row("all good", "BACKWARD_TRANSITIVE", (INT, WITH_B), LONG, ""),
    Row("with the latest only", "FORWARD", (INT, TEXT), avro(record(field("bytes"))), ""),
    Row("with all", "FORWARD_TRANSITIVE", (INT, TEXT), avro(record(field("bytes"))), "incompatible"),
    Row("all good", "FORWARD_TRANSITIVE", (LONG, avro(record(field("double")))), INT, ""),
    Row("all good", "FULL_TRANSITIVE", (INT, WITH_B), WITH_C, ""),
    Row("first is promoted", "FULL_TRANSITIVE", (INT, LONG), avro(record(field("long"), name="S")), NEW_TYPE),
    Row("latest", "FULL", (INT, LONG), avro(record(field("long"), name="S")), ""),
    # equal to a version
    *(Row("equals the first", each, (INT, TEXT), INT, "") for each in STRATEGIES),
    Row("doc", "ALWAYS_INCOMPATIBLE", (INT,), avro(record(field(doc="d"), doc="d")), ""),
    Row("alias", "ALWAYS_INCOMPATIBLE", (INT,), avro(record(field(aliases=["z"]), aliases=["z"])), ""),
    Row("property", "ALWAYS_INCOMPATIBLE", (INT,), avro(record(field(), p=1)), "incompatible"),
    Row("spaces", "ALWAYS_INCOMPATIBLE", (INT,), avro(json.dumps(record(field()), indent=1).encode()), ""),
    Row("order", "ALWAYS_INCOMPATIBLE", (INT,), avro(record(field(order="ignore"))), "incompatible"),
    Row(
        "1 is not 1.0",
        "ALWAYS_INCOMPATIBLE",
        (WITH_B,),
        avro(record(field(), field(name="b", default=1))),
        "",
    ),
    # always
    Row("first", "ALWAYS_INCOMPATIBLE", (), INT, ""),
    Row("second", "ALWAYS_INCOMPATIBLE", (INT,), WITH_B, "incompatible"),
    Row("string", "ALWAYS_INCOMPATIBLE", (STRING,), typed(api.Schema.String, b"null"), "incompatible"),
    Row("protobuf", "ALWAYS_INCOMPATIBLE", (native("p.M"),), native("p.M", extra=True), "incompatible"),
    Row("anything", "ALWAYS_COMPATIBLE", (INT,), TEXT, ""),
    Row("change of type", "ALWAYS_COMPATIBLE", (INT,), STRING, ""),
    Row("invalid", "ALWAYS_COMPATIBLE", (INT,), avro(b"{"), "invalid"),
    # change of type
    *(Row("change of type", each, (INT,), JSON_INT, NEW_TYPE) for each in STRATEGIES if "_C" not in each),
    Row("string to int", "FULL", (STRING,), PRIMITIVE, NEW_TYPE),
    Row("avro to string", "FULL", (INT,), STRING, NEW_TYPE),
    Row("avro to none", "FULL", (INT,), typed(NONE), NEW_TYPE),
    Row("protobufs", "FULL", (native("p.M"),), typed(api.Schema.Protobuf, INT.data), NEW_TYPE),
    Row("only the latest's type", "BACKWARD", (STRING, INT), LONG, ""),
    Row("every type", "BACKWARD_TRANSITIVE", (STRING, INT), LONG, NEW_TYPE),
    # primitives
    Row("null of Python", "FULL", (STRING,), typed(api.Schema.String, b"null"), ""),
    Row("string with data", "FULL", (), typed(api.Schema.String, b"x"), "invalid"),
    Row("int with data", "FULL", (), typed(api.Schema.Int32, b"x"), "invalid"),
    *(
        Row(name, "FULL", (typed(it),), typed(it), "")
        for name, it in api.Schema.Type.items()
        if 5 <= it <= 14
    ),
    Row("none", "FULL", (typed(NONE, b"x"),), typed(NONE, b"y"), ""),
    Row("auto consume", "FULL", (), typed(api.Schema.AutoConsume), "invalid"),
    # invalid Avro
    *(
        Row(f"invalid {number}", "FULL", (), avro(data), "invalid")
        for number, data in enumerate(
            [
                *(
                    b"",
                    b"{",
                    b"nope",
                    b'"int" x',
                    b"{'type': 'int'}",
                    b"null",
                    b"1",
                    b'{"type": "int", "x": NaN}',
                    b'"int" // c',
                ),
                *(["null", "int"], ["int", "int"], {"type": {"type": "int"}}, {"type": "R"}, "R"),
                *(record(field("Q")), record(field(), field()), record(field(name="a-b")), record(name="1")),
                *(record(field(order="x")), record(field(["int", ["null"]])), record(name="int"), fixed(-1)),
                *(enum("x", "x"), enum("x", default="y"), enum("x y"), {"type": "record", "name": "R"}),
                *({"type": "array"}, {"type": "map"}, record(field(), aliases="x"), record(name="a..")),
            ]
        )
    ),
    *(
        Row(f"valid {number}", "FULL", (), avro(data), "")
        for number, data in enumerate(
            [
                *(
                    b' "int"\n',
                    b'{"type": "int", "type": "long"}',
                    "string",
                    record(),
                    fixed(0),
                ),
                *(enum(), record(name="a.b.R", namespace="-"), {"type": "error", "name": "R", "fields": []}),
            ]
        )
    ),
    Row("union", "FULL", (), as_json(["null", "int"]), ""),
    # defaults
    Row("bad default", "FULL", (), BAD_DEFAULT, ""),
    Row("bad default", "FULL", (INT,), BAD_DEFAULT, "failed"),
    Row("bad default", "FULL", (BAD_DEFAULT,), BAD_DEFAULT, "failed"),
    Row("bad default before", "ALWAYS_COMPATIBLE", (BAD_DEFAULT,), INT, "failed"),
    Row("bad default", "FULL", (INT,), BAD_DEFAULT, "", True),
    Row("bad default used", "FULL", (INT,), avro(record(field(default="x", name="b"))), "failed", True),
    Row(
        *("bad default used", "FULL_TRANSITIVE", (INT,), avro(record(field(default="x", name="b")))),
        *("incompatible", True),
    ),
    Row(
        "null is no first branch",
        "FULL",
        (INT,),
        avro(record(field(["int", "null"], default=None))),
        "failed",
    ),
    Row(
        "float as text",
        "FULL",
        (avro(record(field("float"))),),
        avro(record(field("float", default="NaN"))),
        "",
    ),
    Row("contains itself", "FULL", (), avro(record(field("R"))), ""),
    # JSON, also of the old form
    Row("json", "BACKWARD", (JSON_INT,), JSON_LONG, ""),
    Row("json", "FORWARD", (JSON_INT,), JSON_LONG, "incompatible"),
    Row("json", "FULL", (), as_json(b"{"), "invalid"),
    Row("old json", "FULL", (), OLD, ""),
    Row("old json, null", "FULL", (), as_json(None), ""),
    Row("old json, no type", "FULL", (), as_json({"properties": {}}), "invalid"),
    Row("old json again", "FULL", (OLD,), OLD, "failed"),
    Row("old json, then Avro's", "FULL", (OLD,), JSON_INT, "failed"),
    Row("old json again", "ALWAYS_COMPATIBLE", (OLD,), OLD, "failed"),
    Row("old json", "FULL", (OLD,), OLD, "", True),
    Row("old json, same id", "FULL", (OLD,), as_json({"type": "string", "id": "urn:x"}), "", True),
    Row("old json, then Avro's", "FULL", (OLD,), JSON_INT, "", True),
    Row("old json, then neither", "FULL", (OLD,), as_json(b"{"), "incompatible", True),
    Row("old json after Avro's", "FULL", (JSON_INT,), OLD, "", True),
    Row("old json, with all", "FULL_TRANSITIVE", (OLD,), JSON_INT, "incompatible", True),
    # PROTOBUF
    Row(
        "protobuf", "FULL", (typed(api.Schema.Protobuf, INT.data),), typed(api.Schema.Protobuf, TEXT.data), ""
    ),
    Row("invalid protobuf", "FULL", (), typed(api.Schema.Protobuf, b"{"), "invalid"),
    Row("union of protobuf", "FULL", (), typed(api.Schema.Protobuf, ["null"]), ""),
    # PROTOBUF_NATIVE
    Row("native", "FULL", (native("p.M"),), native("p.M", extra=True), ""),
    Row("native, other root", "FULL", (native("p.M"),), native("p.N"), "incompatible"),
    Row("native, other root", "BACKWARD_TRANSITIVE", (native("p.M"),), native("p.N"), "incompatible"),
    Row("native, other root", "ALWAYS_COMPATIBLE", (native("p.M"),), native("p.N"), ""),
    Row("native, other package", "FULL", (native("p.M"),), native("q.M", package="q"), "incompatible"),
    Row("native, nested", "FULL", (native("p.M.Inner"),), native("p.M.Inner", extra=True), ""),
    Row("native, without package", "FULL", (), native("M", package=""), ""),
    Row("native, no such message", "FULL", (), native("p.X"), "invalid"),
    Row("native, no such file", "FULL", (), native("p.M", rootFileDescriptorName="x"), "invalid"),
    Row("native, no descriptor", "FULL", (), native("p.M", fileDescriptorSet="AAAA"), "invalid"),
    Row("native, no JSON", "FULL", (), typed(api.Schema.ProtobufNative, b""), "invalid"),
    Row("native, consumer", "FULL", (native("p.M"),), native("p.N"), "incompatible", True),
    Row("native, invalid", "FULL", (native("p.M"),), native("p.X"), "failed", True),
    Row("native, invalid", "BACKWARD_TRANSITIVE", (native("p.M"),), native("p.X"), "incompatible", True),
    # KEY_VALUE
    Row("value", "FULL", (KEY_VALUE,), key_value(STRING, WITH_B), ""),
    Row("value", "BACKWARD", (KEY_VALUE,), key_value(STRING, LONG), ""),
    Row("value", "FORWARD", (KEY_VALUE,), key_value(STRING, LONG), "incompatible"),
    Row("key", "FULL", (key_value(INT, INT),), key_value(TEXT, INT), "incompatible"),
    Row("key's type", "FULL", (KEY_VALUE,), key_value(PRIMITIVE, LONG), "incompatible"),
    Row("key's type", "ALWAYS_COMPATIBLE", (KEY_VALUE,), key_value(PRIMITIVE, INT), ""),
    Row("value's type", "FULL", (KEY_VALUE,), key_value(STRING, JSON_LONG), "incompatible"),
    Row("value's type, equal data", "FULL", (KEY_VALUE,), key_value(STRING, JSON_INT), ""),
    Row(
        "with all",
        "BACKWARD_TRANSITIVE",
        (key_value(STRING, TEXT), KEY_VALUE),
        key_value(STRING, LONG),
        NEW_TYPE,
    ),
    Row("strings", "ALWAYS_INCOMPATIBLE", (key_value(STRING, STRING),), KEY_VALUE, "incompatible"),
    Row(
        "nested",
        "FULL",
        (key_value(STRING, KEY_VALUE),),
        key_value(STRING, key_value(STRING, TEXT)),
        NEW_TYPE,
    ),
    Row("invalid key", "FULL", (), key_value(avro(b"{"), INT), "invalid"),
    Row("invalid string", "FULL", (), key_value(typed(api.Schema.String, b"x"), INT), "invalid"),
    Row("old json in it", "FULL", (), key_value(OLD, STRING), ""),
    Row("no types", "FULL", (), typed(api.Schema.KeyValue, bytes(8)), ""),
    Row("nulls", "FULL", (), typed(api.Schema.KeyValue, b"\xff" * 8), ""),
    Row("null", "FULL", (), NULL_VALUE, "invalid"),
    Row("too short", "FULL", (), NO_KEY, "thrown"),
    Row("too short", "FULL", (KEY_VALUE,), NO_KEY, "failed", True),
    Row("too short", "FULL_TRANSITIVE", (KEY_VALUE,), NO_KEY, "incompatible", True),
    Row("negative", "FULL", (), typed(api.Schema.KeyValue, b"\xff\xff\xff\xfe" * 2), "thrown"),
    Row(
        "no such type", "FULL", (), typed(api.Schema.KeyValue, bytes(8), **{"key.schema.type": "X"}), "thrown"
    ),
    Row(
        *("bad properties", "FULL", ()),
        *(typed(api.Schema.KeyValue, bytes(8), **{"key.schema.properties": "["}), "thrown"),
    ),
    # consumers
    *(Row("same", each, (INT,), INT, "incompatible" if "_I" in each else "", True) for each in STRATEGIES),
    *(
        Row("promotes", each, (INT,), LONG, "incompatible" if "_I" in each or "FULL_" in each else "", True)
        for each in STRATEGIES
    ),
    *(
        Row("older", each, (WITH_B, INT), TEXT, "" if "_C" in each else "incompatible", True)
        for each in STRATEGIES
    ),
    Row("reads the latest", "FORWARD_TRANSITIVE", (TEXT, INT), LONG, "", True),
    Row("reads all", "BACKWARD_TRANSITIVE", (TEXT, INT), LONG, "incompatible", True),
    Row("change of type", "FULL", (INT,), STRING, "incompatible", True),
    Row("change of type", "ALWAYS_COMPATIBLE", (INT,), STRING, "", True),
    Row("invalid string", "FULL", (STRING,), typed(api.Schema.String, b"x"), "", True),
    Row("invalid", "FULL", (INT,), avro(b"{"), "incompatible", True),
    Row("invalid", "ALWAYS_COMPATIBLE", (INT,), avro(b"{"), "", True),
    Row("union", "FULL", (INT,), avro(["null", json.loads(LONG.data)]), "", True),
    Row("no schema, in use", "FULL", (), INT, "incompatible", True),
    Row("no schema, in use", "ALWAYS_COMPATIBLE", (), INT, "", True),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_row(row: Row) -> None:
    found = find_incompatibility(row.old, row.new, row.strategy, consumer=row.consumer)
    assert (found.kind if found else "") == row.outcome, found
    why = explain_incompatibility(row.old, row.new, row.strategy, consumer=row.consumer)
    assert bool(why) == bool(row.outcome)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (avro(record(field(), doc="d")), 0),
        (avro(record(field("long"))), 2),
        (as_json(record(field())), None),
        (avro(b"{"), None),
        (BAD_DEFAULT, None),
        (STRING, 1),
        (typed(api.Schema.String, b"null"), None),
    ],
    ids=str,
)
def test_version_of(new: Schema, expected: int | None) -> None:
    assert find_version([INT, STRING, LONG], new) == expected


def test_texts() -> None:
    """They begin as those of a real broker."""
    why = explain_incompatibility([INT], TEXT, "UNDEFINED")
    assert why.startswith(
        "Error during schema compatibility check with strategy FULL: org.apache.avro.Schema"
    )
    assert why.index('"string"') < why.index("using schema") < why.index('"int"')
    why = explain_incompatibility([], avro(["null"]), "FULL")
    assert why == "Avro schema typed [UNION] is not supported"
    why = explain_incompatibility([INT], STRING, "FULL", consumer=True)
    assert why == "Incompatible schema: exists schema type AVRO, new schema type STRING"


# -- schemas that nobody trusts


def _fields(number: int, type_: Any, **more: Any) -> list[dict[str, Any]]:
    return [field(type_, f"f{each}", **more) for each in range(number)]


def _doubled(levels: int) -> dict[str, Any]:
    """Its default holds two of the next level's, and so on."""
    records = [
        record(*(field(f"R{each - 1}", name, default={}) for name in "ab" if each), name=f"R{each}")
        for each in range(levels)
    ]
    inner = [field(each, f"r{number}") for number, each in enumerate(records)]
    return record(*inner, field(f"R{levels - 1}", "last", default={}), name="Doubled")


def _unions(number: int, letter: str) -> dict[str, Any]:
    names = [f"{letter}{each}" for each in range(number)]
    records = [field(record(field(["null", "U"]), name=name), name) for name in names]
    return record(*records, *_fields(number, names), name="U")


def _chain(type_: str) -> dict[str, Any]:
    links = [
        field(record(field(["null", f"R{each - 1}"] if each else type_), name=f"R{each}"), f"f{each}")
        for each in range(1000)
    ]
    return record(*links)


LONG_NAME = {"name": "R", "namespace": "n" * 1_000_000}
HOSTILE = {
    "brackets": (b"[" * 3_000_000, b"{"),
    "nested arrays": (b'{"type": "array", "items": ' * 100_000, b'"int"'),
    "nested arrays, few": (b'{"type": "array", "items": ' * 149 + b'"int"' + b"}" * 149, b'"int"'),
    "doubled defaults": (_doubled(40), record()),
    "unions": (_unions(150, "A"), _unions(150, "B")),
    "chain": (_chain("int"), _chain("long")),
    "endless default": (record(field("R", default={})), record()),
    "long namespace": (record(*_fields(10_000, ["null", "R"]), **LONG_NAME), record()),
    "long aliases": (record(aliases=[f"a{each}" for each in range(10_000)], **LONG_NAME), record()),
    "digits": (b'{"type": "int", "x": ' + b"1" * 3_000_000 + b"}", b'"int"'),
    "digits as text": (record(field("float", default="1" * 1_000_000 + "x")), record()),
    "no end of a string": (b'"' + b'\\"' * 1_000_000, b'"int"'),
    "no end of a comment": (b"/*" * 1_000_000, b'"int"'),
    "symbols": (enum(*(f"s{each}" for each in range(200_000))), enum("a")),
    "symbols again and again": (
        record(field(enum(*(f"s{each}" for each in range(5000)))), *_fields(2000, ["null", "E"])),
        record(),
    ),
    "lone surrogates": (enum("\ud800"), record(name="\udfff")),
}


SLOW = {"chain", "unions", "symbols", "no end of a string", "no end of a comment"}


@pytest.mark.parametrize(
    "what", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in HOSTILE]
)
def test_hostile(what: str) -> None:
    """It ends, soon."""
    new, old = (each if isinstance(each, bytes) else json.dumps(each).encode() for each in HOSTILE[what])
    began = time.process_time()
    for kind in (api.Schema.Avro, api.Schema.Json, api.Schema.ProtobufNative):
        for consumer in (False, True):
            for versions in ((), (typed(kind, old),), (typed(kind, new + b" "),)):
                found = find_incompatibility(versions, typed(kind, new), "FULL", consumer=consumer)
                assert found is None or found.text.encode()
    assert time.process_time() - began < 20


def test_recursion_ends() -> None:
    nested = record(field(), field(["null", "R"], "next", default=None))
    assert explain_incompatibility([avro(nested)], avro({**nested, "p": 1}), "FULL_TRANSITIVE") == ""


KEYWORDS = (
    *(
        "type",
        "name",
        "fields",
        "items",
        "values",
        "symbols",
        "default",
        "aliases",
        "size",
        "namespace",
        "order",
    ),
    *(
        "record",
        "enum",
        "array",
        "map",
        "fixed",
        "int",
        "long",
        "string",
        "null",
        "R",
        "S",
        "a.R",
        "id",
        "object",
    ),
    *("fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName", "properties"),
)
WORDS = st.sampled_from(KEYWORDS)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=25,
)


def _named(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["R", "S", "n.R"])
    aliases = st.lists(names, max_size=2)
    parts = {"name": st.sampled_from("abc"), "type": inner}
    fields = st.lists(
        st.fixed_dictionaries(parts, optional={"default": VALUES, "aliases": aliases}), max_size=3
    )
    return (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"type": st.just("map"), "values": inner})
        | st.fixed_dictionaries(
            {"type": st.just("record"), "name": names, "fields": fields}, optional={"aliases": aliases}
        )
        | st.fixed_dictionaries(
            {"type": st.just("enum"), "name": names, "symbols": st.lists(st.sampled_from("xyz"), unique=True)}
        )
    )


AVROS = st.recursive(st.sampled_from(["int", "long", "string", "null", "R", "S"]), _named, max_leaves=12)
DATA = st.binary(max_size=40) | (VALUES | AVROS).map(lambda value: json.dumps(value).encode())
PROPERTIES = st.dictionaries(
    st.sampled_from(
        [f"{which}.schema.{what}" for which in ("key", "value") for what in ("type", "properties")]
    ),
    st.sampled_from(["AVRO", "JSON", "KEY_VALUE", "STRING", "", "{}", '{"key.schema.type": "AVRO"}', "["]),
)
SIZED = st.tuples(DATA, DATA).map(lambda it: b"".join(struct.pack(">i", len(part)) + part for part in it))
SCHEMAS = st.builds(Schema, st.integers(-1, 23), DATA | SIZED, PROPERTIES) | st.builds(avro, AVROS)


@settings(max_examples=100, deadline=2000)
@given(st.lists(SCHEMAS, max_size=3), SCHEMAS, st.sampled_from([*STRATEGIES, "nonsense"]), st.booleans())
def test_any_schema(versions: list[Schema], new: Schema, strategy: str, consumer: bool) -> None:
    for kind in (new.type, *(each.type for each in versions)):  # else they hardly ever have one type
        same_type = [each._replace(type=kind) for each in versions]
        why = explain_incompatibility(same_type, new._replace(type=kind), strategy, consumer=consumer)
        assert isinstance(why, str)
        found = find_version(same_type, new._replace(type=kind))
        assert found is None or 0 <= found < len(versions)


@settings(max_examples=100, deadline=2000)
@given(AVROS)
def test_a_schema_reads_itself(value: Any) -> None:
    """Unless it is invalid, or nothing can be read at all."""
    old, new = avro(value), avro({"type": "array", "items": value})
    if explain_incompatibility([], old, "FULL") == explain_incompatibility([], new, "FULL") == "":
        for consumer in (False, True):
            found = find_incompatibility(
                [old], old._replace(data=old.data + b" "), "FULL_TRANSITIVE", consumer=consumer
            )
            assert found is None or found.kind == ("incompatible" if consumer else "failed"), found


# -- against a real broker


async def _run(target: Any, rows: list[Row]) -> int:
    from broker.targets import RealTarget

    assert isinstance(target, RealTarget)
    namespaces = {strategy: f"public/{target.name(strategy)}" for strategy in STRATEGIES}
    path = "/admin/v2/namespaces/{}"
    for namespace in namespaces.values():
        await target.rest("PUT", path.format(namespace), {})
        await target.rest("PUT", path.format(namespace) + "/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    await asyncio.sleep(2)
    topics = {}
    for number, row in enumerate(rows):
        topics[number] = f"persistent://{namespaces[row.strategy]}/{target.name()}"
        for version, schema in enumerate(row.old):
            assert await _ask(target, topics[number], schema) == "", (str(row), version)
        if row.consumer and not row.old:
            await target.produce(topics[number])
    for strategy, namespace in namespaces.items():
        await target.rest("PUT", path.format(namespace) + "/schemaCompatibilityStrategy", strategy)
    await asyncio.sleep(2)
    names = {"incompatible": "IncompatibleSchema", "invalid": "IncompatibleSchema", "failed": "UnknownError"}
    failures = 0
    for number, row in enumerate(rows):
        said = await _ask(target, topics[number], row.new, consumer=row.consumer)
        if said.partition(" ")[0] != names.get(row.outcome, row.outcome):
            failures += 1
            sys.stdout.write(f"{row}: {row.outcome or 'accepted'} was expected: {said or 'accepted'}\n")
    return failures


async def _ask(target: Any, topic: str, schema: Schema, *, consumer: bool = False) -> str:
    pairs = [{"key": key, "value": value} for key, value in schema.properties.items()]
    sent = {"name": "s", "type": schema.type, "schema_data": schema.data, "properties": pairs}
    probe = await target.connected()
    await probe.lookup(topic)
    if consumer:
        probe.start("SUBSCRIBE", topic=topic, subscription="s", subType=0, consumer_id=1, schema=sent)
    else:
        probe.start("PRODUCER", topic=topic, producer_id=1, schema=sent)
    try:
        answer = await probe.next(1)
    except AssertionError:
        return "thrown"
    finally:
        await probe.close()
    if answer.command != "ERROR":
        return ""
    return f"{api.ServerError.Name(answer.body.error)} {answer.body.message[:300]}"


def test_a_schema_needs_no_garbage_collector() -> None:
    """In cycles, each large schema would stay in memory for long."""
    data = b'{"type":"record","name":"a","fields":[{"name":"x","type":["null","int","string"]}]}'
    gc.collect()
    gc.disable()
    try:
        parse(data)
        assert gc.collect() == 0
    finally:
        gc.enable()


def main() -> None:
    from broker.targets import RealTarget, real_broker

    with tempfile.TemporaryDirectory() as place, real_broker("default", Path(place)) as broker:

        async def run() -> int:
            async with RealTarget(broker) as target:
                return await _run(target, ROWS)

        failures = asyncio.run(run())
    sys.stdout.write(f"{len(ROWS)} rows, {failures} failed\n")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()
