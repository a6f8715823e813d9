"""encode(): what it takes, and the one line that says what is wrong with the rest."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from google.protobuf import struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st
from test_views_keyvalue import counted, pair_schema
from test_views_properties import CAPTURED, mutations
from view_descriptors import MESSAGE, add, all_kinds, native
from view_samples import JAVA_NATIVE, JAVA_ORDER, schema

from pulsarctl_wire.views import Content, Encoded, encode, parse_schema, show
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


def avro(definition: object) -> Schema:
    return schema("Avro", json.dumps(definition).encode())


def record(*fields: dict[str, Any], **more: Any) -> Schema:
    return avro({"type": "record", "name": "R", "fields": list(fields), **more})


def value_of(text: str, by: Schema) -> Any:
    return show(Content(encode(text.encode(), by).payload, by)).value


def refusal(text: str | bytes, by: Schema) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        encode(text if isinstance(text, bytes) else text.encode(), by)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("bool", "true", "01"),
        ("bool", " false\n", "00"),
        ("int8", "-1", "ff"),
        ("int16", "258", "0102"),
        ("int32", '"7"', "00000007"),
        ("int64", "-9223372036854775808", "8000000000000000"),
        ("float", "0.1", "3dcccccd"),
        ("double", "-Infinity", "fff0000000000000"),
        ("double", '"NaN"', "7ff8000000000000"),
        ("double", "1e3", "408f400000000000"),
        ("date", "1970-01-02", "0000000005265c00"),
        ("date", "1970-01-01T00:00:00.001Z", "0000000000000001"),
        ("time", "00:01", "000000000000ea60"),
        ("time", "1969-12-31T23:00:00Z", "ffffffffffc91180"),
        ("timestamp", "1970-01-01 01:00:00+01:00", "0000000000000000"),
        ("timestamp", "17", "0000000000000011"),
        ("instant", "1969-12-31T23:59:59.999999999Z", "ffffffffffffffff3b9ac9ff"),
        ("instant", "[5, -1]", "0000000000000005ffffffff"),
        ("localdate", "1969-12-31", "ffffffffffffffff"),
        ("localtime", '"00:00:00.000000001"', "0000000000000001"),
        ("localdatetime", "1970-01-02T00:00:01", "0000000000000001000000003b9aca00"),
    ],
)
def test_primitives(kind: str, text: str, expected: str) -> None:
    assert encode(text.encode(), parse_schema(kind)) == Encoded(bytes.fromhex(expected))


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [
        ("bool", "yes", "true or false"),
        ("int8", "128", "-128 to 127"),
        ("int32", "1.0", "integer of 32 bits"),
        ("int64", "9" * 30, "integer of 64 bits"),
        ("int64", "\uff11", "integer of 64 bits"),
        ("float", "1e39", "fits into 32 bits"),
        ("double", "1e400", "fits into 64 bits"),
        ("double", "1_0", "a number such as 1.5"),
        ("double", "inf", "a number such as 1.5"),
        ("date", "2023-02-29", "2023-11-14"),
        ("date", "0000-01-01", "2023-11-14"),
        ("timestamp", "2023-11-14T22:13:20", "2023-11-14T22:13:20.125Z"),
        ("timestamp", "2023-11-14T22:13:20.0001Z", "whole milliseconds"),
        ("timestamp", "2023-11-14T22:13:20+25:00", "2023-11-14T22:13:20.125Z"),
        ("time", "24:00", "22:13:20.125"),
        ("time", "22:13:61", "22:13:20.125"),
        ("instant", "7", "[seconds, nanoseconds]"),
        ("instant", "[1, 4294967296]", "[seconds, nanoseconds]"),
        ("localdatetime", "2023-11-14T22:13:20Z", "[days, nanoseconds]"),
        ("localtime", "", "22:13:20.5"),
        ("int64", '"', "integer of 64 bits"),
    ],
)
def test_no_primitives(kind: str, text: str, wanted: str) -> None:
    message = refusal(text, parse_schema(kind))
    assert "is not a value of type" in message
    assert wanted in message


@pytest.mark.parametrize("type_name", ["AutoConsume", "External"])
def test_types_that_nothing_is_written_by(type_name: str) -> None:
    assert f"type {type_name} does not define an encoding" in refusal("x", schema(type_name))


def test_text_that_is_not_utf_8() -> None:
    for kind in ("string", "json", "int8"):
        assert "not UTF-8 at byte 1" in refusal(b"1\xff", parse_schema(kind))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is not JSON: Expecting value at line 1, column 1"),
        ("hello", "put text in double quotes"),
        ('{"a": 1,\n "a": 2}', "'a' appears twice"),
        ("[NaN]", 'JSON has no number NaN: write "NaN"'),
        ("[" * 100_000, "nested too deep"),
        ("1" * 5_000, "digits"),
    ],
)
def test_text_that_is_no_json(text: str, part: str) -> None:
    assert part in refusal(text, parse_schema("json"))
    assert part in refusal(text, schema("Json", JAVA_ORDER))


def test_json_is_kept_as_typed() -> None:
    text = b' { "id" :1,"amount":1.50, "paid": false } \n'
    assert encode(text, schema("Json", JAVA_ORDER)).payload == text
    assert encode(b'"\\ud800"', parse_schema("json")).payload == b'"\\ud800"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "7", "amount": 1, "paid": true}', "the field 'id' is \"7\": give an integer of 32 bits"),
        ('{"id": 7, "amount": 1}', "the field 'paid' is missing and has no default: give it"),
        ('{"idd": 7}', "the schema has no field 'idd': it has amount, customer, id, paid, shipTo, tags"),
        (
            '{"id": 7, "amount": 1, "paid": true, "shipTo": {"zip": null}}',
            "the field 'shipTo.zip' is null: give an integer of 32 bits",
        ),
        (
            '{"id": 7, "amount": 1, "paid": true, "shipTo": {"zap": 1}}',
            "the schema has no field 'zap' in 'shipTo': it has street, zip",
        ),
        (
            '{"id": 7, "amount": 1, "paid": true, "tags": ["a", 5]}',
            "the field 'tags[1]' is 5: give text in double quotes",
        ),
        ("[]", "the value is a list: give an object with amount, customer, id, paid, shipTo, tags"),
        (
            '{"id": 2147483648, "amount": 1, "paid": true}',
            "the field 'id' is 2147483648: give an integer of 32 bits",
        ),
        (
            '{"id": true, "amount": 1, "paid": true}',
            "the field 'id' is true: give an integer of 32 bits",
        ),
        (
            '{"id": 1, "amount": 1e999, "paid": true}',
            "the field 'amount' is 1E+999: give a number within the range of double",
        ),
        (
            '{"id": 1, "amount": 1, "paid": 0}',
            "the field 'paid' is 0: give true or false",
        ),
    ],
)
def test_the_field_that_is_wrong(text: str, message: str) -> None:
    for type_name in ("Avro", "Json"):
        assert refusal(text, schema(type_name, JAVA_ORDER)) == message


def test_json_does_not_write_avro_s_names_of_branches() -> None:
    text = '{"id": 1, "amount": 1, "paid": true, "customer": {"string": "x"}}'
    assert value_of(text, schema("Avro", JAVA_ORDER))["customer"] == "x"
    assert "'customer' is an object" in refusal(text, schema("Json", JAVA_ORDER))


def test_json_has_bytes_and_logical_types_of_its_own() -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "raw", "type": ["null", "bytes"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
            {"name": "either", "type": ["string", "bytes"], "default": 5},
        ],
    }
    by = schema("Json", json.dumps(definition).encode())
    for text in (
        b'{"raw": "\xc3\xa9", "at": 1.5, "price": 2.50, "either": "x"}',
        b'{"at": "2023", "price": "2"}',
    ):
        assert encode(text, by).payload == text
    assert "'raw' is 5: give bytes as text" in refusal('{"raw": 5, "at": 1, "price": 1}', by)
    assert "'at' is null" in refusal('{"at": null, "price": 1}', by)


@pytest.mark.parametrize(
    ("branches", "text", "expected"),
    [
        (["null", "string"], "null", "00"),
        (["null", "string"], '"x"', "020278"),
        (["null", "string"], '{"string": "x"}', "020278"),
        (["null", "string"], '{"null": null}', "00"),
        (["string", "long"], "5", "020a"),
        (["double", "long"], "5", "020a"),
        (["long", "int"], "5", "020a"),
        (["long", "int"], "3000000000", "0080f882ad16"),
        (["float", "double"], "0.5", "02000000000000e03f"),
        (["float", "double"], '"NaN"', "02000000000000f87f"),
        (["int", "string"], '{"int": 5}', "000a"),
        (["string", "bytes"], '{"bytes": "AQ=="}', "020201"),
        (["string", {"type": "map", "values": "string"}], '{"map": {"a": "b"}}', "020202610262" + "00"),
        (["string", {"type": "map", "values": "string"}], '{"a": "b"}', "020202610262" + "00"),
        (["int", {"type": "array", "items": "int"}], "[1]", "02020200"),
        (["int", {"type": "array", "items": "int"}], '{"array": [1]}', "02020200"),
        (["string", {"type": "enum", "name": "E", "symbols": ["A"]}], '{"E": "A"}', "0200"),
        (["string", {"type": "enum", "name": "a.b.E", "symbols": ["A"]}], '{"a.b.E": "A"}', "0200"),
        (["string", {"type": "enum", "name": "E", "namespace": "a", "symbols": ["A"]}], '{"E": "A"}', "0200"),
        (["string", {"type": "fixed", "name": "F", "size": 1}], '{"F": "AQ=="}', "0201"),
        (["long", {"type": "int", "logicalType": "date"}], "5", "000a"),
        (["long", {"type": "int", "logicalType": "date"}], '"1970-01-06"', "020a"),
    ],
)
def test_unions(branches: list[Any], text: str, expected: str) -> None:
    assert encode(text.encode(), avro(branches)).payload == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("branches", "text", "message"),
    [
        (["null", "string"], "5", "the value is 5: give text in double quotes"),
        (["null", "string"], '{"string": 5}', "the value is 5: give text in double quotes"),
        (["int", "string"], "null", "the value is null: give one of int, string"),
        (["int", "string"], "true", "the value is true: give one of int, string"),
        (
            ["string", "bytes"],
            '"AQ=="',
            'the value is "AQ==": give its branch, as in {"string": ...}, one of string, bytes',
        ),
        (
            ["string", {"type": "map", "values": "string"}],
            '{"string": "x"}',
            'the value is an object: give its branch, as in {"string": ...}, one of string, map',
        ),
    ],
)
def test_unions_that_do_not_fit(branches: list[Any], text: str, message: str) -> None:
    assert refusal(text, avro(branches)) == message


def test_records_in_unions_are_told_apart_by_their_fields() -> None:
    cat = {"type": "record", "name": "z.Cat", "fields": [{"name": "lives", "type": "int"}]}
    dog = {"type": "record", "name": "z.Dog", "fields": [{"name": "barks", "type": ["null", "z.Cat"]}]}
    by = avro([cat, dog])
    assert encode(b'{"lives": 9}', by).payload == b"\0\x12"
    assert encode(b'{"barks": {"lives": 9}}', by).payload == b"\x02\x02\x12"
    assert encode(b'{"Dog": {"barks": {"Cat": {"lives": 9}}}}', by).payload == b"\x02\x02\x12"
    assert encode(b"{}", by).payload == b"\x02\0"
    assert (
        refusal('{"z.Cat": {"lives": "x"}}', by) == "the field 'lives' is \"x\": give an integer of 32 bits"
    )


def test_names_are_found_as_the_view_finds_them() -> None:
    inner = {"type": "enum", "name": "Inner", "namespace": "", "symbols": ["A", "B"]}
    by = record(
        {"name": "a", "type": inner},
        {"name": "b", "type": "Inner"},
        {"name": "c", "type": ["null", "R"]},
        {"name": "d", "type": ["null", "x$y.R"]},
        namespace="x$y",
    )
    value = {"a": "A", "b": "B", "c": {"a": "B", "b": "B", "c": None, "d": None}, "d": None}
    assert value_of(json.dumps(value), by) == value
    assert value_of('{"a": "A", "b": "B", "c": {"R": {"a": "A", "b": "A"}}}', by)["c"]["b"] == "A"


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("int", 5, 5),
        ("double", 1.5, 1.5),
        ("float", 1, 1.0),
        ("bytes", "\u00ff", "/w=="),
        ({"type": "fixed", "name": "F", "size": 1}, "\u0001", "AQ=="),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0005", "0.05"),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["bytes", "string"], "é", "6Q=="),
        ({"type": "array", "items": "int"}, [1], [1]),
        ({"type": "map", "values": "bytes"}, {"a": "\0"}, {"a": "AA=="}),
        (
            {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int", "default": 7}]},
            {},
            {"x": 7},
        ),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "int", "logicalType": "date"}, 1, "1970-01-02"),
    ],
)
def test_defaults_of_missing_fields(kind: Any, default: Any, expected: Any) -> None:
    assert value_of("{}", record({"name": "a", "type": kind, "default": default})) == {"a": expected}


def test_missing_fields_without_default() -> None:
    assert value_of("{}", record({"name": "a", "type": ["int", "null"]})) == {"a": None}
    assert value_of("{}", record({"name": "a", "type": "null"})) == {"a": None}
    assert "'a' is missing" in refusal("{}", record({"name": "a", "type": "int"}))


def test_a_default_that_does_not_fit_matters_when_it_is_used() -> None:
    by = record({"name": "a", "type": "int", "default": "x"}, {"name": "b", "type": "bytes", "default": 1})
    assert value_of('{"a": 1, "b": ""}', by) == {"a": 1, "b": ""}
    assert refusal('{"b": ""}', by) == "the field 'a' is \"x\": give an integer of 32 bits"
    assert "'b' is 1" in refusal('{"a": 1}', by)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ({"logicalType": "decimal", "precision": 4, "scale": 2}, "1.5", "040096"),
        ({"logicalType": "decimal", "precision": 4, "scale": 2}, "-1.28", "0280"),
        ({"logicalType": "decimal", "precision": 4, "scale": 2}, '"-1.28"', "0280"),
        ({"logicalType": "decimal", "precision": 4, "scale": 2}, "1.50000", "040096"),
        ({"logicalType": "decimal", "precision": 4}, "1e3", "0403e8"),
        ({"logicalType": "decimal", "precision": 4}, "0e999999", "0200"),
        ({"logicalType": "decimal", "scale": -1}, '"AQ=="', "0201"),
        ({"logicalType": "decimal", "precision": "x"}, "-129", "04ff7f"),
    ],
)
def test_decimals(kind: dict[str, Any], text: str, expected: str) -> None:
    assert encode(text.encode(), avro({"type": "bytes", **kind})).payload == bytes.fromhex(expected)


@pytest.mark.parametrize(
    "text", ["1.234", "100", "1e30", "1e-30", "1e999999999", '"AQ=="', '"1e2"', "true", '"é"']
)
def test_no_decimals(text: str) -> None:
    by = avro({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    assert "a decimal with at most 2 digits after the point, 4 digits in total" in refusal(text, by)


def test_decimals_of_many_bytes_show_and_are_typed_in_base64() -> None:
    by = avro({"type": "bytes", "logicalType": "decimal", "precision": 4})
    raw = encode(json.dumps("x" * 172).encode(), by).payload
    assert raw[2:] == b"\xc7\x1c\x71" * 43
    assert "is out of range" in refusal("1e" + "9" * 30, by)


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ({"size": 12, "logicalType": "duration"}, '"P1"', "a duration such as P1M2DT3.004S"),
        ({"size": 12, "logicalType": "duration"}, '"P4294967296M"', "a duration"),
        ({"size": 16, "logicalType": "uuid"}, '"123"', "a UUID"),
        ({"size": 2}, '"AQ=="', "2 bytes in base64"),
        ({"size": 2}, '"!"', "2 bytes in base64"),
        ({"size": 1, "logicalType": "decimal"}, "128", "a decimal with at most 0 digits after the point"),
    ],
)
def test_no_fixed(kind: dict[str, Any], text: str, part: str) -> None:
    assert part in refusal(text, avro({"type": "fixed", "name": "F", **kind}))


def test_durations_may_be_short() -> None:
    by = avro({"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"})
    for text, months, days, millis in (("P1M", 1, 0, 0), ("P2D", 0, 2, 0), ("PT1.5S", 0, 0, 1500)):
        assert encode(json.dumps(text).encode(), by).payload == struct.pack("<III", months, days, millis)


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"C"', 'the value is "C": give one of A, B'),
        ({"type": "map", "values": "int"}, '{"a": "x"}', "the field 'a' is \"x\""),
        ({"type": "map", "values": "int"}, "[]", "the value is a list: give an object"),
        ("string", '"\\ud800"', "lone surrogates"),
        ("bytes", '"\\n"', "bytes in base64"),
        ("float", "1e39", "the range of float"),
        ("double", "1" + "0" * 400, "the range of double"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            '"2023-11-14T22:13:20.0000001Z"',
            "whole micros",
        ),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, '"2023-11-14T22:13:20Z"', "whole micros"),
        ("null", "0", "give null"),
        ({"type": "enum", "name": "E", "symbols": ["a-b"]}, '"a-b"', "cannot be used to encode"),
        ({"type": "enum", "name": "E", "symbols": ["a", "a"]}, '"a"', "are not unique"),
        (["null", ["int", "string"]], "1", "a union directly in a union"),
        ("Unknown", "1", "does not define the type 'Unknown'"),
    ],
)
def test_what_does_not_fit_avro(kind: Any, text: str, part: str) -> None:
    assert part in refusal(text, avro(kind))


def test_values_as_deep_as_they_are_shown() -> None:
    by = record({"name": "a", "type": ["null", "R"]})

    def nested(levels: int) -> str:
        return '{"a": ' * levels + "null" + "}" * levels

    assert show(Content(encode(nested(64).encode(), by).payload, by)).note is None
    assert "nested deeper than 64 levels" in refusal(nested(65), by)


def test_schemas_that_make_much_of_little() -> None:
    """Defaults of defaults, and unions in which each branch has the same union again."""
    kind: Any = {"type": "record", "name": "L", "fields": []}
    for number in range(40):
        fields = [{"name": "a", "type": kind, "default": {}}, {"name": "b", "type": "L", "default": {}}]
        fields[1]["type"] = kind["name"]
        kind = {"type": "record", "name": f"L{number}", "fields": fields}
    assert "too many values" in refusal("{}", avro(kind))
    inner = {"type": "record", "name": "B", "fields": [{"name": "a", "type": ["A", "B"]}]}
    outer = {"type": "record", "name": "A", "fields": [{"name": "a", "type": ["A", inner]}]}
    assert "too many values" in refusal('{"a": ' * 40 + "1" + "}" * 40, avro(outer))


def well_known() -> Schema:
    """``M`` with a Timestamp, an Int32Value and a Struct; the files are in no useful order."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    add(message, "at", MESSAGE, ".google.protobuf.Timestamp")
    add(message, "number", MESSAGE, ".google.protobuf.Int32Value")
    add(message, "some", MESSAGE, ".google.protobuf.Struct")
    add(message, "twoWords", FieldDescriptorProto.TYPE_INT32)
    files = [file]
    for module in (timestamp_pb2, wrappers_pb2, struct_pb2):
        files.append(FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
        file.dependency.append(files[-1].name)
    return native(FileDescriptorSet(file=[*files, files[0]]), "M")


def test_well_known_types_as_protobuf_writes_them_and_as_they_show() -> None:
    by = well_known()
    shown = {"at": {"seconds": 1700000000, "nanos": 5}, "number": {"value": 7}}
    assert value_of('{"at": "2023-11-14T22:13:20.000000005Z", "number": 7}', by) == shown
    assert value_of(json.dumps(shown), by) == shown
    assert value_of('{"some": {"a": 1}}', by)["some"]["fields"] == {"a": {"number_value": 1.0}}
    message = refusal('{"at": "yesterday"}', by)
    assert message.startswith("the JSON does not fit the message M: Failed to parse at field")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"nmae": "x"}', 'has no field named "nmae"'),
        ('{"price": "x"}', "Failed to parse price field"),
        ("[]", "the value is a list: give an object with the fields of the message Item"),
        ("5", "the value is 5: give an object"),
        ('{"labels": "x"}', "does not fit the message Item"),
        ('{"name": "\\ud800"}', "does not fit the message Item"),
        ("{", "is not JSON"),
        ("{}}", "is not JSON"),
    ],
)
def test_what_does_not_fit_protobuf(text: str, part: str) -> None:
    assert part in refusal(text, schema("ProtobufNative", JAVA_NATIVE))


def test_protobuf_takes_names_in_camel_case_and_enums_by_number() -> None:
    by = native(all_kinds(), "demo.All")
    assert value_of('{"oneInt32": 5, "colour": 5}', by) == {"one_int32": 5, "colour": "BLUE"}
    assert value_of('{"one_float": 3.4028235e38}', by) == {"one_float": 3.4028235e38}
    assert "too large" in refusal('{"one_float": 3.5e38}', by)


def test_required_fields() -> None:
    file = FileDescriptorProto(name="r.proto")
    add(file.message_type.add(name="R"), "must", FieldDescriptorProto.TYPE_INT32)
    file.message_type[0].field[0].label = FieldDescriptorProto.LABEL_REQUIRED
    message = refusal("{}", native(FileDescriptorSet(file=[file]), "R"))
    assert "must" in message


def test_descriptors_without_required_fields_of_their_own() -> None:
    file = FileDescriptorProto(name="r.proto")
    file.options.uninterpreted_option.add().name.add()
    add(file.message_type.add(name="R"), "a", FieldDescriptorProto.TYPE_INT32)
    assert value_of('{"a": 5}', native(FileDescriptorSet(file=[file]), "R")) == {"a": 5}


def test_descriptors_that_do_not_fit_together() -> None:
    file = FileDescriptorProto(name="r.proto", dependency=["missing.proto"])
    add(file.message_type.add(name="R"), "a", MESSAGE, ".missing.Type")
    message = refusal("{}", native(FileDescriptorSet(file=[file]), "R"))
    assert "descriptors are inconsistent" in message
    other = FileDescriptorProto(name="missing.proto", dependency=["r.proto"])
    message = refusal("{}", native(FileDescriptorSet(file=[file, other]), "R"))
    assert "import each other in a cycle" in message


def test_protobuf_without_descriptors() -> None:
    fields = [
        {"number": 1, "name": "id", "type": "INT64", "label": "LABEL_OPTIONAL"},
        {"number": 2, "name": "part", "type": "MESSAGE", "label": "LABEL_OPTIONAL"},
        {"number": 3, "name": "kind", "type": "ENUM", "label": "LABEL_REPEATED"},
    ]
    by = schema("Protobuf", b"", {"__PARSING_INFO__": json.dumps(fields)})
    assert value_of('{"id": 5, "kind": [1, -2]}', by) == {"id": 5, "kind": [1, -2]}
    assert "does not describe the message in the field 'part'" in refusal('{"part": {}}', by)
    assert "lacks the property __PARSING_INFO__" in refusal("{}", schema("Protobuf"))


ORDER = '{"id": 1, "amount": 1.50, "paid": true}'


def test_key_and_value() -> None:
    json_by = pair_schema("STRING", "JSON", data=(b"", JAVA_ORDER))
    text = f'  {{ "value" : {ORDER} , "key":"k\\u00e9" }} '.encode()
    assert encode(text, json_by) == Encoded(counted("ké".encode()) + counted(ORDER.encode()))
    separated = pair_schema("INT32", "LOCAL_DATE", "SEPARATED")
    assert encode(b'{"key": 7, "value": "1970-01-02"}', separated) == Encoded(b"\0" * 7 + b"\1", b"\0\0\0\7")


def test_null_keys_and_values() -> None:
    inline = pair_schema("STRING", "INT32")
    assert encode(b'{"key": null, "value": null}', inline).payload == counted(None) + counted(None)
    separated = pair_schema("STRING", "INT32", "SEPARATED")
    assert encode(b'{"key": "k", "value": null}', separated) == Encoded(b"", b"k", null_value=True)
    assert encode(b'{"key": null, "value": 1}', separated) == Encoded(b"\0\0\0\1", None)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[]", 'give {"key": ..., "value": ...}'),
        ("{}", "the members key and value, not none"),
        ('{"key": "k", "val": 1}', "not 'key, val'"),
        ('{"key": 5, "value": 1}', "the key: this schema takes text: put it in double quotes"),
        ('{"key": "k", "value": "x"}', "the value: '\"x\"' is not a value of type Int32"),
        ('{"key": "\\ud800", "value": 1}', "the key: "),
        ("k", "is not JSON"),
    ],
)
def test_what_is_no_key_and_value(text: str, part: str) -> None:
    assert part in refusal(text, pair_schema("STRING", "INT32"))


def test_a_separate_key_has_no_place_inside() -> None:
    inner = {"value.schema.type": "INT32", "key.schema.type": "STRING", "kv.encoding.type": "SEPARATED"}
    by = pair_schema(
        "STRING", "KEY_VALUE", data=(b"", counted(b"") * 2), value_schema_properties=json.dumps(inner)
    )
    assert "which is not possible there" in refusal('{"key": "k", "value": {"key": "a", "value": 1}}', by)


@given(st.data())
@settings(max_examples=200)
def test_whatever_does_not_fit_is_said_in_one_line(data: st.DataObject) -> None:
    real = data.draw(st.sampled_from(CAPTURED))
    assert real.schema is not None
    by = Schema()
    by.CopyFrom(real.schema)
    by.schema_data = data.draw(mutations(by.schema_data))
    for entry in by.properties:
        entry.value = data.draw(mutations(entry.value.encode())).decode(errors="replace")
    if data.draw(st.booleans()):
        by.type = data.draw(st.sampled_from(sorted(Schema.Type.values())))  # type: ignore[assignment, unused-ignore]
    text = data.draw(mutations(ORDER.encode()) | mutations(b'{"key":"k","value":5}') | st.binary(max_size=9))
    said = ""
    try:
        encode(text, by)
    except ValueError as error:
        said = str(error)
    assert said == "" or said.isprintable()
    assert len(said) < 800
