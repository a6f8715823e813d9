"""--schema for producers: JSON with a definition, definitions on the command line, KeyValue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_views_parse_schema import refusal, shop, written
from view_samples import JAVA_KEYVALUE_DATA, JAVA_KEYVALUE_PROPERTIES, JAVA_ORDER

from pulsarctl_wire.views import parse_schema
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

DEFINITION = JAVA_ORDER.decode()


def properties(schema: Schema) -> dict[str, str]:
    return {entry.key: entry.value for entry in schema.properties}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("bool", "Boolean"),
        ("int64", "INT64"),
        ("double", "Double"),
        ("string", "String"),
        ("localdatetime", "LocalDateTime"),
        ("bytes", "Bytes"),
        ("json", ""),
        (f"avro:{DEFINITION}", ""),
        ("keyvalue:string,int8", "KeyValue"),
    ],
)
def test_names_are_those_that_java_gives(spec: str, name: str) -> None:
    assert parse_schema(spec).name == name
    assert parse_schema(spec).IsInitialized()


def test_bytes_are_no_schema() -> None:
    assert parse_schema("bytes").type == parse_schema("none").type == Schema.Type.Value("None")
    assert "bytes takes no file" in refusal("bytes:x")


@pytest.mark.parametrize(("kind", "type_name"), [("avro", "Avro"), ("json", "Json"), ("JSON", "Json")])
def test_definitions(tmp_path: Path, kind: str, type_name: str) -> None:
    file = tmp_path / "order.avsc"
    file.write_bytes(JAVA_ORDER)
    from_file, inline = parse_schema(f"{kind}:{file}"), parse_schema(f"{kind}:{DEFINITION}")
    assert from_file == inline
    assert inline.type == getattr(Schema, type_name)
    assert inline.schema_data == JAVA_ORDER
    assert parse_schema(f'{kind}:"long"').schema_data == b'"long"'
    assert parse_schema(f'{kind}:["null","int"]').schema_data == b'["null","int"]'


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("json:/no/such.avsc", "cannot read the schema '/no/such.avsc'"),
        (
            'json:{"type":"object","properties":{}}',
            "does not define the type 'object'; give an Avro schema in JSON",
        ),
        ("avro:{", "'{' cannot be used: the schema is no JSON"),
        ("avro:[\udc80]", "is no JSON"),
        ("keyvalue:string", "is not a pair of schemas: use keyvalue:KEY,VALUE"),
        ("keyvalue:,string", "use keyvalue:KEY,VALUE"),
        ("keyvalue:string,", "use keyvalue:KEY,VALUE"),
        ("keyvalue-separated", "unknown schema type 'keyvalue-separated'"),
        ("keyvalue-separated:x", "use keyvalue-separated:KEY,VALUE"),
        ("keyvalue:strin,string", "unknown schema type 'strin'"),
        ('keyvalue:avro:"int"string', "use keyvalue:KEY,VALUE"),
        ("keyvalue:avro:{,string", "the key of keyvalue is not valid JSON"),
        (
            "keyvalue:string,keyvalue-separated:string,string",
            "the value of keyvalue cannot have a separate key",
        ),
    ],
)
def test_refusals(spec: str, part: str) -> None:
    assert part in refusal(spec)


def test_key_and_value_as_java_describes_them() -> None:
    made = parse_schema(f"keyvalue-separated:string,json:{DEFINITION}")
    assert made.type == Schema.KeyValue
    assert made.schema_data == JAVA_KEYVALUE_DATA
    # Java adds two properties of its own to the value's, which tell its classes how to read.
    chosen = {"value.schema.type": "JSON", "kv.encoding.type": "SEPARATED", "value.schema.properties": "{}"}
    assert properties(made) == JAVA_KEYVALUE_PROPERTIES | chosen


@pytest.mark.parametrize(
    ("spec", "java_name"),
    [
        *(("bytes", "BYTES"), ("bool", "BOOLEAN"), ("localdatetime", "LOCAL_DATE_TIME"), ("int8", "INT8")),
        *(('avro:"int"', "AVRO"), ("keyvalue:int8,int8", "KEY_VALUE"), ("float", "FLOAT")),
    ],
)
def test_java_names_of_types(spec: str, java_name: str) -> None:
    assert properties(parse_schema(f"keyvalue:string,{spec}"))["value.schema.type"] == java_name


def test_definitions_and_files_as_keys(tmp_path: Path) -> None:
    set_file = written(tmp_path, shop())
    made = parse_schema(f"keyvalue:protobuf:{set_file}:shop.Order.Line,avro:{DEFINITION}")
    assert properties(made)["key.schema.type"] == "PROTOBUF_NATIVE"
    made = parse_schema(f"keyvalue:avro:{DEFINITION} ,int8")
    assert properties(made)["kv.encoding.type"] == "INLINE"
    assert made.schema_data == len(JAVA_ORDER).to_bytes(4, "big") + JAVA_ORDER + bytes(4)
    assert json.loads(properties(made)["key.schema.properties"]) == {}
