"""--schema: what it accepts, and the one line that says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from view_descriptors import MESSAGE, add
from view_samples import JAVA_AVRO, JAVA_ORDER, JAVA_ORDERS

from pulsarctl_wire.views import Content, Shown, parse_schema, show
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


def shop() -> FileDescriptorSet:
    """``shop.Order`` with ``shop.Order.Line``; it imports ``money.Price``, and nothing needs the rest."""
    money = FileDescriptorProto(name="money.proto", package="money", dependency=["units.proto"])
    add(money.message_type.add(name="Price"), "cents", FieldDescriptorProto.TYPE_INT64)
    orders = FileDescriptorProto(name="orders.proto", package="shop", dependency=["money.proto"])
    order = orders.message_type.add(name="Order")
    add(order, "total", MESSAGE, ".money.Price")
    add(order.nested_type.add(name="Line"), "count", FieldDescriptorProto.TYPE_INT32)
    units, rest = FileDescriptorProto(name="units.proto"), FileDescriptorProto(name="rest.proto")
    return FileDescriptorSet(file=[rest, units, money, orders])


@pytest.fixture
def descriptors(tmp_path: Path) -> Path:
    return written(tmp_path, shop())


def written(folder: Path, files: FileDescriptorSet) -> Path:
    file = folder / "shop.desc"
    file.write_bytes(files.SerializeToString())
    return file


def refusal(spec: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_schema(spec)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    ("spec", "type_name"),
    [
        ("string", "String"),
        ("json", "Json"),
        ("JSON", "Json"),
        ("int64", "Int64"),
        ("bool", "Bool"),
        ("localdatetime", "LocalDateTime"),
        ("none", "None"),
    ],
)
def test_plain_types(spec: str, type_name: str) -> None:
    parsed = parse_schema(spec)
    assert parsed.type == getattr(Schema, type_name)
    assert parsed.IsInitialized()


def test_avro(tmp_path: Path) -> None:
    file = tmp_path / "order: 1.avsc"
    file.write_bytes(JAVA_ORDER)
    parsed = parse_schema(f"avro:{file}")
    assert parsed.IsInitialized()
    shown = show(Content(JAVA_AVRO[1], parsed))
    assert (shown.view, shown.value) == ("avro", JAVA_ORDERS[1])


@pytest.mark.parametrize(
    ("message", "payload", "value"),
    [
        ("", "0a020807", {"total": {"cents": 7}}),
        (":shop.Order", "0a020807", {"total": {"cents": 7}}),
        (":shop.Order.Line", "0807", {"count": 7}),
        (":money.Price", "0807", {"cents": 7}),
    ],
)
def test_protobuf(descriptors: Path, message: str, payload: str, value: object) -> None:
    parsed = parse_schema(f"protobuf:{descriptors}{message}")
    assert parsed.type == Schema.ProtobufNative
    assert parsed.IsInitialized()
    assert show(Content(bytes.fromhex(payload), parsed)).value == value


def test_the_schema_is_what_a_java_client_sends(descriptors: Path) -> None:
    described = json.loads(parse_schema(f"protobuf:{descriptors}:shop.Order.Line").schema_data)
    assert described.keys() == {"fileDescriptorSet", "rootMessageTypeName", "rootFileDescriptorName"}
    assert described["rootMessageTypeName"] == "shop.Order.Line"
    assert described["rootFileDescriptorName"] == "orders.proto"


def test_only_what_the_message_imports_is_kept(tmp_path: Path) -> None:
    files = shop()
    for number in range(3):
        files.file.insert(0, FileDescriptorProto(name=f"big{number}.proto", package="x" * 500_000))
    parsed = parse_schema(f"protobuf:{written(tmp_path, files)}")
    assert len(parsed.schema_data) < 1000
    assert show(Content(b"", parsed)) == Shown("protobuf", {})


def test_a_path_with_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    file = written(folder, shop())
    assert parse_schema(f"protobuf:{file}") == parse_schema(f"protobuf:{file}:shop.Order")


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("", ["unknown schema type ''", "use avro:FILE, protobuf:FILE[:MESSAGE], or one of", "int64"]),
        ("avrro:x", ["unknown schema type 'avrro'", "avro:FILE"]),
        ("keyvalue", ["unknown schema type 'keyvalue'"]),
        ("\x1b[31m", ["unknown schema type '\\x1b[31m'"]),
        ("int64:file", ["int64 takes no file", "use just int64"]),
        ("avro", ["names no file", "use avro:FILE"]),
        ("protobuf:", ["names no file", "use protobuf:FILE"]),
        ("avro:/no/such.avsc", ["cannot read the schema '/no/such.avsc'", "No such file", "check the path"]),
        ("protobuf:/no/such.desc:a.B", ["cannot read the schema '/no/such.desc'", "No such file"]),
        ("avro:a\0b", ["cannot read the schema 'a\\x00b'"]),
        ("protobuf:a\0b", ["cannot read the schema 'a\\x00b'"]),
        ("avro:/", ["cannot read the schema '/'"]),
    ],
)
def test_refusals(spec: str, parts: list[str]) -> None:
    message = refusal(spec)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "is no JSON"),
        (b"syntax = 'proto3';", "is no JSON"),
        (b'{"type":"record","name":"R","fields":[{"name":"a","type":"Elsewhere"}]}', "'Elsewhere'"),
        (b"[" * 100_000, "is no JSON"),
        (b" " * (2 << 20), "more than 1048576 bytes"),
        (b" " * (17 << 20), "is it a schema?"),
    ],
    ids=range(6),
)
def test_files_that_are_no_avro_schema(tmp_path: Path, data: bytes, part: str) -> None:
    file = tmp_path / "x.avsc"
    file.write_bytes(data)
    assert part in refusal(f"avro:{file}")


@pytest.mark.parametrize("data", [b"", b"\xff\xff", JAVA_ORDER])
def test_files_that_are_no_descriptors(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.desc"
    file.write_bytes(data)
    message = refusal(f"protobuf:{file}")
    assert "contains no Protobuf descriptors: write it with protoc --include_imports" in message


def test_messages_that_are_not_there_or_not_one(tmp_path: Path, descriptors: Path) -> None:
    unknown = refusal(f"protobuf:{descriptors}:shop.Basket")
    assert "does not define 'shop.Basket'" in unknown
    assert "protobuf:FILE:MESSAGE" in unknown
    assert "'shop.Order'" in unknown
    files = shop()
    for number in range(20):
        files.file[-1].message_type.add(name=f"More{number}")
    several = refusal(f"protobuf:{written(tmp_path, files)}")
    assert "defines 21 messages" in several
    assert "shop.Order, shop.More0" in several
    assert "..." in several
    del files.file[-1].message_type[:]
    assert "defines 0 messages" in refusal(f"protobuf:{written(tmp_path, files)}")


def test_descriptors_without_imports(tmp_path: Path) -> None:
    files = shop()
    del files.file[1]
    message = refusal(f"protobuf:{written(tmp_path, files)}")
    assert "lacks the import 'units.proto'" in message
    assert "--include_imports" in message
