"""The Protobuf view against google.protobuf's own reading, and what is only seen on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st
from view_descriptors import ENUM, MESSAGE, SCALAR_KINDS, add, all_kinds, native
from view_samples import JAVA_NATIVE, schema

from pulsarctl_wire.views import Content, Shown, show
from pulsarctl_wire.views.content import MAX_DEPTH, MAX_VALUES, cut_note
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

ALL = native(all_kinds(), "demo.All")
NUMBERS = {field.name: field.number for field in all_kinds().file[0].message_type[0].field}
ITEM = schema("ProtobufNative", JAVA_NATIVE)


@cache
def all_class() -> Callable[..., Message]:
    pool = DescriptorPool()
    for file in all_kinds().file:
        pool.Add(file)  # type: ignore[no-untyped-call, unused-ignore]
    made: Callable[..., Message] = GetMessageClass(pool.FindMessageTypeByName("demo.All"))  # type: ignore[no-untyped-call, unused-ignore]
    return made


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _sized(name: str, raw: bytes) -> bytes:
    """A field of ``demo.All`` with the wire type of strings and messages."""
    return _varint(NUMBERS[name] << 3 | 2) + _varint(len(raw)) + raw


def as_shown(message: Message) -> Any:
    """What google.protobuf makes of a message, with 64-bit integers as the integers they are."""
    return _integers(MessageToDict(message, preserving_proto_field_name=True), message)


def _integers(value: Any, message: Any) -> Any:
    for field, there in message.ListFields():
        inner = field.message_type
        if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            value[field.name] = there if isinstance(there, int) else list(there)
        elif inner is not None and inner.GetOptions().map_entry:
            if inner.fields_by_name["value"].message_type:
                for key in there:
                    _integers(value[field.name][str(key)], there[key])
        elif inner is not None and isinstance(value[field.name], list):
            for item, message_item in zip(value[field.name], there, strict=True):
                _integers(item, message_item)
        elif inner is not None:
            _integers(value[field.name], there)
    return value


INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1),
    "sfixed32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "fixed32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "sint64": (-(2**63), 2**63 - 1),
    "sfixed64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
    "fixed64": (0, 2**64 - 1),
}
# MessageToDict writes floats of ten digits and more in other ways than the shortest: keep to short ones.
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(*bounds) for kind, bounds in INTEGERS.items()},
    "double": st.floats(),
    "float": st.sampled_from([0.1, -1.5, 3.0, float("inf"), float("nan"), 16777216.0]),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
COLOURS = st.sampled_from([0, -1, 5])


def _fields(children: st.SearchStrategy[Any] | None) -> st.SearchStrategy[dict[str, Any]]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "colour": COLOURS,
        "colours": st.lists(COLOURS, max_size=3),
        "box": st.fixed_dictionaries({}, optional={"size": SCALARS["int32"]}),
        "names": st.dictionaries(SCALARS["int32"], SCALARS["string"], max_size=2),
        "flags": st.dictionaries(st.booleans(), COLOURS, max_size=2),
    }
    for kind in SCALAR_KINDS:
        optional[f"one_{kind}"] = SCALARS[kind]
        optional[f"many_{kind}"] = st.lists(SCALARS[kind], max_size=3)
        if kind not in ("string", "bytes"):
            optional[f"packed_{kind}"] = st.lists(SCALARS[kind], max_size=3)
    if children is not None:
        optional["child"] = children
        optional["children"] = st.lists(children, max_size=2)
        optional["trees"] = st.dictionaries(SCALARS["string"], children, max_size=2)
    return st.lists(st.sampled_from(sorted(optional)), max_size=6, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: optional[name] for name in names})
    )


@given(_fields(_fields(_fields(None))))
@settings(max_examples=150, deadline=None)
def test_messages_show_as_google_protobuf_reads_them(fields: dict[str, Any]) -> None:
    message = all_class()(**fields)
    shown = show(Content(message.SerializeToString(), ALL))
    assert shown == Shown("protobuf", as_shown(message))


def test_a_descriptor_shows_as_google_protobuf_reads_it() -> None:
    own = FileDescriptorProto.FromString(descriptor_pb2.DESCRIPTOR.serialized_pb)
    content = Content(
        PulsarApi_pb2.DESCRIPTOR.serialized_pb,
        native(FileDescriptorSet(file=[own]), "google.protobuf.FileDescriptorProto"),
    )
    parsed = FileDescriptorProto.FromString(content.payload)
    assert show(content) == Shown("protobuf", as_shown(parsed))


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        ("", {}),
        ("0a0162" + "0a0163", {"name": "c"}),
        ("1a0161" + "1a0162", {"labels": ["a", "b"]}),
        ("2005", {"4": 5}),
        ("2005" + "2006" + "2007", {"4": [5, 6, 7]}),
        ("22026162", {"4": "ab"}),
        ("2202ff00", {"4": {"base64": "/wA="}}),
        ("25ffffffff", {"4": 0xFFFFFFFF}),
        ("21ffffffffffffffff", {"4": 2**64 - 1}),
        ("23" + "0801" + "120161" + "24", {"4": {"1": 1, "2": "a"}}),
        ("0805", {"1": 5}),
        ("120161", {"2": "a"}),
        ("10ffffffffffffffffff01", {"price": -(2**31)}),
        ("0a01ff", {"name": "\\xff"}),
        ("f8ffffff0f01", {"536870911": 1}),
    ],
)
def test_what_the_schema_does_not_know_is_kept(payload: str, value: Any) -> None:
    assert show(Content(bytes.fromhex(payload), ITEM)) == Shown("protobuf", value)


def test_unpacked_and_packed_are_both_read_and_messages_merged() -> None:
    message = all_class()
    one = message(packed_int32=[1], child={"one_int32": 1, "many_int32": [1]}).SerializeToString()
    two = message(child={"one_int64": 2, "many_int32": [2]}).SerializeToString()
    shown = show(Content(one + two + _varint(NUMBERS["packed_int32"] << 3) + b"\x07", ALL))
    assert shown.value == {
        "packed_int32": [1, 7],
        "child": {"one_int32": 1, "many_int32": [1, 2], "one_int64": 2},
    }


def test_map_pairs_without_key_or_value_have_defaults() -> None:
    payload = b"".join(_sized(name, b"") for name in ("names", "flags", "trees"))
    assert show(Content(payload, ALL)).value == {
        "names": {"0": ""},
        "flags": {"false": "RED"},
        "trees": {"": {}},
    }


@pytest.mark.parametrize(
    ("payload", "part"),
    [
        ("0a", "no complete number"),
        ("0a05", "5 bytes wanted at byte 2, 0 are left"),
        ("0affffffffffffffffff01", "18446744073709551615 bytes wanted"),
        ("10" + "ff" * 10, "no complete number"),
        ("25ffff", "4 bytes wanted"),
        ("00", "field number 0 at byte 0"),
        ("04", "field number 0 at byte 0"),
        ("0c", "wire type 4 before byte 1"),
        ("0e", "wire type 6 before byte 1"),
        ("23" + "0801", "group 4 does not end"),
        ("23" + "2c", "wire type 4 before byte 2"),
        ("23" * 65, "nested deeper than 64"),
    ],
)
def test_broken_payloads(payload: str, part: str) -> None:
    shown = show(Content(bytes.fromhex(payload), ITEM))
    assert shown.view in ("hex", "text")
    assert shown.note is not None
    assert part in shown.note


def test_depth_is_limited_at_64() -> None:

    def nested(levels: int) -> bytes:
        payload = b""
        for _ in range(levels):
            payload = _sized("child", payload)
        return payload

    assert show(Content(nested(MAX_DEPTH), ALL)).view == "protobuf"
    assert "deeper than 64" in (show(Content(nested(MAX_DEPTH + 1), ALL)).note or "")


@pytest.mark.parametrize("unit", [b"\x20\x01", b"\x1a\x00", b"\x23\x24"])
def test_values_are_cut_at_the_budget(unit: bytes) -> None:
    shown = show(Content(unit * MAX_VALUES * 2, ITEM))
    assert (shown.view, shown.note) == ("protobuf", cut_note(-1))
    assert isinstance(shown.value, dict)
    (values,) = shown.value.values()
    assert isinstance(values, list)
    assert len(values) <= MAX_VALUES


def test_packed_values_are_cut_at_the_budget() -> None:
    shown = show(Content(_sized("packed_int32", bytes(200_000)), ALL))
    assert isinstance(shown.value, dict)
    assert shown.value == {"packed_int32": [0] * (MAX_VALUES - 1)}
    assert shown.note == cut_note(-1)


def broken(files: FileDescriptorSet, root: str = "p.M", payload: bytes = b"\x08\x01") -> Shown:
    return show(Content(payload, native(files, root)))


def one_message(name: str = "a.proto", package: str = "p") -> FileDescriptorProto:
    file = FileDescriptorProto(name=name, package=package, dependency=["missing.proto"])
    add(file.message_type.add(name="M"), "number", FieldDescriptorProto.TYPE_INT32)
    return file


def test_doubled_files_missing_imports_and_conflicts_do_no_harm() -> None:
    twin = one_message()
    twin.message_type[0].field[0].name = "other"
    twin.message_type[0].field.add(name="again", number=1)
    assert broken(FileDescriptorSet(file=[one_message(), one_message(), twin])).value == {"number": 1}


def test_types_that_are_not_defined_show_by_number() -> None:
    file = one_message()
    add(file.message_type[0], "sub", MESSAGE, ".elsewhere.Sub")
    add(file.message_type[0], "mood", ENUM, ".elsewhere.Mood")
    add(file.message_type[0], "relative", MESSAGE, "M")
    shown = broken(FileDescriptorSet(file=[file]), payload=bytes.fromhex("120208071809" + "22020801"))
    assert shown.value == {"sub": {"1": 7}, "mood": 9, "relative": {"1": 1}}


def test_a_map_entry_that_is_none_is_a_message() -> None:
    file = one_message()
    entry = file.message_type[0].nested_type.add(name="E")
    entry.options.map_entry = True
    add(entry, "key", MESSAGE, ".p.M")
    add(entry, "value", MESSAGE, ".p.M")
    add(file.message_type[0], "pairs", MESSAGE, ".p.M.E", repeated=True)
    shown = broken(FileDescriptorSet(file=[file]), payload=bytes.fromhex("12020a00"))
    assert shown.value == {"pairs": [{"key": {}}]}


def test_fields_of_one_name_do_not_clash() -> None:
    file = one_message()
    for kind, type_name, repeated in ((MESSAGE, ".p.M", True), (MESSAGE, ".p.M", False), (ENUM, "", True)):
        add(file.message_type[0], "number", kind, type_name, repeated)
    payload = bytes.fromhex("0801" + "1200" + "1a00" + "2001" + "1200" + "0802")
    assert broken(FileDescriptorSet(file=[file]), payload=payload).value == {"number": 2}


@pytest.mark.parametrize(
    ("broken_schema", "part"),
    [
        (schema("ProtobufNative"), "the schema is no JSON"),
        (schema("ProtobufNative", b"[]"), "not a JSON object"),
        (schema("ProtobufNative", b"{}"), "lacks fileDescriptorSet or rootMessageTypeName"),
        (native(FileDescriptorSet(), "p.M"), "holds no Protobuf descriptors"),
        (native(FileDescriptorSet(file=[FileDescriptorProto()]), "p.M"), "does not define the message 'p.M'"),
        (schema("ProtobufNative", b'{"fileDescriptorSet":"Ck","rootMessageTypeName":"M"}'), "schema: "),
        (
            schema("ProtobufNative", b'{"fileDescriptorSet":"////","rootMessageTypeName":"M"}'),
            "holds no Protobuf descriptors",
        ),
        (schema("Protobuf"), "lacks the property __PARSING_INFO__"),
        (schema("Protobuf", b"", {"__PARSING_INFO__": "{}"}), "not a list of fields"),
        (schema("Protobuf", b"", {"__PARSING_INFO__": "[1]"}), "not a list of fields"),
        (schema("Protobuf", b"", {"__PARSING_INFO__": "["}), "property __PARSING_INFO__ is no JSON"),
        (
            schema("Protobuf", b"", {"__PARSING_INFO__": '[{"number":[],"name":"a","type":"INT32"}]'}),
            "a field 'a'",
        ),
        (
            schema("Protobuf", b"", {"__PARSING_INFO__": '[{"number":1,"name":"a","type":"X"}]'}),
            "of type 'X'",
        ),
    ],
)
def test_broken_schemas(broken_schema: Schema, part: str) -> None:
    shown = show(Content(b"\x08\x01", broken_schema))
    assert shown.view == "hex"
    assert shown.note is not None
    assert part in shown.note


def test_messages_inside_a_described_by_parsing_info_show_by_number() -> None:
    fields = [
        {"number": 1, "name": "sub", "type": "MESSAGE", "label": "LABEL_OPTIONAL", "definition": None},
        {"number": 2, "name": "mood", "type": "ENUM", "label": "LABEL_REPEATED", "definition": None},
    ]
    described = schema("Protobuf", b"", {"__PARSING_INFO__": json.dumps(fields)})
    shown = show(Content(bytes.fromhex("0a0408071a00" + "12020003"), described))
    assert shown.value == {"sub": {"1": 7, "3": ""}, "mood": [0, 3]}
