"""The schema equals the table of facts beside this file, row by row and in both directions."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from pulsarctl_wire.wire import PulsarApi_pb2

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("pulsar_api_fields.tsv")
GENERATED = ROOT / "pulsarctl_wire" / "wire"


class Fact(NamedTuple):
    """A row of the table, its columns as they are written there."""

    kind: str
    owner: str
    label: str
    type: str
    name: str
    number: str
    default: str


def table() -> list[Fact]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [Fact(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def schema() -> FileDescriptorProto:
    proto = FileDescriptorProto()
    PulsarApi_pb2.DESCRIPTOR.CopyToProto(proto)
    return proto


def facts() -> Iterator[Fact]:
    """Walk the compiled schema in the words of the table."""
    file = schema()
    for message in file.message_type:
        yield from message_facts(message, file.package)
    for enum in file.enum_type:
        yield from enum_facts(enum, file.package)


def message_facts(message: DescriptorProto, scope: str) -> Iterator[Fact]:
    name = f"{scope}.{message.name}"
    for field in message.field:
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        default = field.default_value if field.HasField("default_value") else "-"
        type_name = field.type_name.removeprefix(".") or scalar
        yield Fact("field", name, label, type_name, field.name, str(field.number), default)
    if not message.field:
        yield Fact("field", name, "-", "-", "(no fields)", "-", "-")
    for nested in message.nested_type:
        yield from message_facts(nested, name)
    for enum in message.enum_type:
        yield from enum_facts(enum, name)


def enum_facts(enum: EnumDescriptorProto, scope: str) -> Iterator[Fact]:
    for value in enum.value:
        yield Fact("enum", f"{scope}.{enum.name}", "-", "enum", value.name, str(value.number), "-")


def test_table_has_no_row_twice() -> None:
    rows = table()
    assert len(rows) == len(set(rows))


def test_every_row_is_in_the_schema() -> None:
    assert set(table()) - set(facts()) == set()


def test_everything_in_the_schema_is_a_row() -> None:
    assert set(facts()) - set(table()) == set()


def test_schema_has_only_messages_and_enums() -> None:
    file = schema()
    assert (file.package, file.syntax) == ("pulsar.proto", "")  # an unnamed syntax is proto2
    assert not file.service
    assert not file.extension
    assert not file.dependency
    assert not any(message.extension or message.extension_range for message in file.message_type)


def test_the_only_oneof() -> None:
    members = {
        (message.name, message.oneof_decl[field.oneof_index].name, field.number)
        for message in schema().message_type
        for field in message.field
        if field.HasField("oneof_index")
    }
    update = "CommandWatchScalableTopicsUpdate"
    assert members == {(update, "event", 2), (update, "event", 3)}


def test_every_command_has_its_field() -> None:
    """A command's field has its type's number; three names are longer or shorter than their type's."""
    spelled = {
        "PARTITIONED_METADATA": "partitionMetadata",
        "PARTITIONED_METADATA_RESPONSE": "partitionMetadataResponse",
        "LOOKUP": "lookupTopic",
        "LOOKUP_RESPONSE": "lookupTopicResponse",
    }
    types = PulsarApi_pb2.BaseCommand.Type.items()
    fields = {field.number: field for field in PulsarApi_pb2.BaseCommand.DESCRIPTOR.fields}
    assert fields.keys() - {number for _, number in types} == {1}  # the type itself
    for name, number in types:
        field = fields[number]
        assert squeezed(field.name) == squeezed(spelled.get(name, name))
        assert field.message_type is not None
        assert field.message_type.name.startswith("Command")


def test_command_messages_are_named_like_their_fields() -> None:
    """Save for partitionMetadata, whose message is CommandPartitionedTopicMetadata."""
    other = {"partitionMetadata": "PartitionedTopicMetadata"}
    other["partitionMetadataResponse"] = other["partitionMetadata"] + "Response"
    for field in PulsarApi_pb2.BaseCommand.DESCRIPTOR.fields:
        if field.message_type is not None:
            expected = squeezed("Command" + other.get(field.name, field.name))
            assert squeezed(field.message_type.name) == expected


def squeezed(name: str) -> str:
    """`name` without what distinguishes SEND_RECEIPT, send_receipt and SendReceipt."""
    return name.replace("_", "").lower()


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="needs grpcio-tools, which holds protoc")
    spec = importlib.util.spec_from_file_location("schema_compiler", ROOT / "proto" / "compile.py")
    assert spec is not None
    assert spec.loader is not None
    compiler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    compiler.compile_schema(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["PulsarApi_pb2.py", "PulsarApi_pb2.pyi"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (GENERATED / name).read_bytes(), f"compile {name} again"
