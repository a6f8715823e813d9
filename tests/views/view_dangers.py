"""Payloads and schemas made to crash, hang or fill the memory of whoever decodes them.

Run as a program it shows every one of them under limits of memory and processor time, which no
test could survive breaking in its own process.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from view_descriptors import ENUM, MESSAGE, add, native
from view_samples import JAVA_NATIVE, JAVA_ORDER, schema

from pulsarctl_wire.views import Content
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

MEMORY = 1 << 30  # bytes of address space
SECONDS = 60  # of processor time; a guard against loops without end, not a measurement
MILLION = 1_000_000
HUGE_BLOCK = bytes.fromhex("808080808080808020")  # 2^60 as a zigzag varint


def avro(described: Any, payload: bytes) -> Content:
    data = described if isinstance(described, bytes) else json.dumps(described).encode()
    return Content(payload, schema("Avro", data))


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields],
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def widening(levels: int) -> dict[str, Any]:
    """Records of two fields each, every level of the one below: 2^levels values in no bytes."""
    inner: Any = record("R0")
    for level in range(1, levels):
        inner = record(f"R{level}", ("a", inner), ("b", f"R{level - 1}"))
    return dict(inner)


def wide_messages() -> Content:
    """Empty messages, two bytes each, of a type for which a parser may set aside 56 kB each."""
    file = FileDescriptorProto(name="wide.proto", package="p")
    wide = file.message_type.add(name="Wide")
    for number in range(7000):
        add(wide, f"f{number}", FieldDescriptorProto.TYPE_FIXED64)
    add(file.message_type.add(name="Root"), "wide", MESSAGE, ".p.Wide", repeated=True)
    return Content(b"\x0a\x00" * 500_000, native(FileDescriptorSet(file=[file]), "p.Root"))


def shared_enum() -> Content:
    """Ten thousand fields of one enum with ten thousand names."""
    file = FileDescriptorProto(name="enum.proto", package="p")
    enum = file.enum_type.add(name="E")
    for number in range(10_000):
        enum.value.add(name=f"V{number}", number=number)
    root = file.message_type.add(name="Root")
    for number in range(10_000):
        add(root, f"f{number}", ENUM, ".p.E")
    return Content(b"\x08\x01", native(FileDescriptorSet(file=[file]), "p.Root"))


def long_package(types: int) -> Content:
    """A package name that every full name repeats."""
    file = FileDescriptorProto(name="long.proto", package="p" * 300_000)
    for number in range(types):
        file.message_type.add(name=f"M{number}")
    return Content(b"\x08\x01", native(FileDescriptorSet(file=[file]), file.package + ".M0"))


def nested_types() -> Content:
    """Message types inside one another as deep as descriptors can be parsed."""
    file = FileDescriptorProto(name="deep.proto", package="p")
    inner, name = file.message_type.add(name="M"), "p.M"
    for _ in range(90):
        inner, name = inner.nested_type.add(name="M"), name + ".M"
    add(inner, "again", MESSAGE, f".{name}", repeated=True)
    return Content(b"\x0a\x00", native(FileDescriptorSet(file=[file]), name))


def long_names() -> Content:
    """A field name of half a megabyte, which every item of the payload repeats."""
    file = FileDescriptorProto(name="name.proto", package="p")
    root = file.message_type.add(name="M")
    add(root, "n" * 500_000, MESSAGE, ".p.M", repeated=True)
    return Content(b"\x0a\x02\x0a\x00" * 50_000, native(FileDescriptorSet(file=[file]), "p.M"))


def nested_keyvalues() -> Content:
    """KeyValue in KeyValue, as deep as the doubling of escapes allows."""
    data, payload = struct.pack(">ii", 0, 0), struct.pack(">ii", 0, 0)
    properties: dict[str, str] = {}
    while sum(map(len, properties.values())) < 400_000:
        properties = {"value.schema.type": "KEY_VALUE", "value.schema.properties": json.dumps(properties)}
        data, payload = (struct.pack(">ii", -1, len(raw)) + raw for raw in (data, payload))
    return Content(payload, schema("KeyValue", data, properties))


NODE = record("N", ("n", ["null", "N"]))
ITEM = schema("ProtobufNative", JAVA_NATIVE)
JSON = schema("Json")

DANGERS: dict[str, Callable[[], Content]] = {
    "avro block of nulls": lambda: avro(array("null"), HUGE_BLOCK),
    "avro block of empty records": lambda: avro(array(record("R")), HUGE_BLOCK),
    "avro block of records of nulls": lambda: avro(
        array(record("R", ("a", "null"), ("b", "null"))), HUGE_BLOCK
    ),
    "avro block of fixed 0": lambda: avro(array({"type": "fixed", "name": "F", "size": 0}), HUGE_BLOCK),
    "avro negative block": lambda: avro(array("null"), bytes.fromhex("ffffffffffffffffff01") + b"\x00"),
    "avro map of nulls": lambda: avro({"type": "map", "values": "null"}, HUGE_BLOCK + b"\x00" * 300_000),
    "avro blocks of blocks": lambda: avro(array(array(array("null"))), HUGE_BLOCK * 3),
    "avro empty blocks": lambda: avro(array(array("null")), HUGE_BLOCK + b"\x00" * MILLION),
    "avro string of 2^60": lambda: avro("string", HUGE_BLOCK),
    "avro fixed of 2^60": lambda: avro({"type": "fixed", "name": "F", "size": 2**60}, b"x"),
    "avro negative string": lambda: avro("string", b"\x01"),
    "avro payload nested a million deep": lambda: avro(NODE, b"\x02" * MILLION),
    "avro arrays nested a million deep": lambda: avro(record("A", ("a", array("A"))), b"\x02" * MILLION),
    "avro record of itself": lambda: avro(record("R", ("r", "R")), b""),
    "avro widening records": lambda: avro(widening(60), b""),
    "avro schema nested deep": lambda: avro(b'{"type":"array","items":' * 40_000, b""),
    "avro closed schema nested deep": lambda: avro(b"[" * 900 + b'"int"' + b"]" * 900, b""),
    "avro schema a little deeper than allowed": lambda: avro(
        b'{"type":' * 66 + b'"int"' + b"}" * 66, b"\x02"
    ),
    "avro long symbol": lambda: avro(
        array({"type": "enum", "name": "E", "symbols": ["s" * 500_000]}), b"\xc0\x9a\x0c" + bytes(100_000)
    ),
    "avro long field name": lambda: avro(array(record("R", ("n" * 500_000, "null"))), HUGE_BLOCK),
    "avro long namespace": lambda: avro(
        [{**record(f"R{number}"), "namespace": "n" * 300_000} for number in range(3)], b""
    ),
    "avro many types": lambda: avro([record(f"R{number}") for number in range(15_000)], b"\x02"),
    "avro number of a million digits": lambda: avro(b'{"type":"fixed","size":' + b"9" * MILLION + b"}", b""),
    "avro huge schema": lambda: avro(b'"' + b"x" * (1 << 21) + b'"', b""),
    "avro decimal": lambda: avro({"type": "bytes", "logicalType": "decimal", "scale": 10**9}, b"\x02\x01"),
    "avro decimal of a megabyte": lambda: avro(
        {"type": "bytes", "logicalType": "decimal", "scale": 2}, b"\x80\x89\x7a" + b"\x7f" * MILLION
    ),
    "json nested deep": lambda: Content(b"[" * 90_000 + b"]" * 90_000, JSON),
    "json objects nested deep": lambda: Content(b'{"a":' * 90_000, JSON),
    "json of empty lists": lambda: Content(b"[" + b"[]," * 2 * MILLION + b"0]", JSON),
    "json integer of a million digits": lambda: Content(b"-" + b"9" * MILLION, JSON),
    "json float of a million digits": lambda: Content(b"0." + b"9" * MILLION + b"e9" + b"9" * 1000, JSON),
    "protobuf wide messages": wide_messages,
    "protobuf shared enum": shared_enum,
    "protobuf long package": lambda: long_package(20_000),
    "protobuf many types": lambda: Content(b"", native(_many_types(), "p.M0")),
    "protobuf nested types": nested_types,
    "protobuf long names": long_names,
    "protobuf nested groups": lambda: Content(b"\x23" * MILLION, ITEM),
    "protobuf many small fields": lambda: Content(b"\x20\x00" * MILLION, ITEM),
    "protobuf huge length": lambda: Content(b"\x0a\xff\xff\xff\xff\x7f", ITEM),
    "protobuf descriptor bomb": lambda: Content(b"", _raw_descriptors(b"\x22\x00" * 200_000)),
    "protobuf nested descriptor": lambda: Content(b"", _raw_descriptors(b"\x22\x80\x01\x1a" * 50_000)),
    "keyvalue nested": nested_keyvalues,
    "keyvalue lengths": lambda: Content(b"\x7f\xff\xff\xff" * 2, schema("KeyValue", b"\0" * 8)),
    "large text": lambda: Content(b"a" * 20 * MILLION),
    "large bytes": lambda: Content(b"\xff" * 20 * MILLION),
    "json schema with avro's data": lambda: Content(b"{}", schema("Json", JAVA_ORDER * 1000)),
}


def _many_types() -> FileDescriptorSet:
    file = FileDescriptorProto(name="many.proto", package="p")
    for number in range(50_000):
        file.message_type.add(name=f"M{number}")
    return FileDescriptorSet(file=[file])


def _raw_descriptors(file: bytes) -> Schema:
    size = len(file)
    prefix = b"\x0a" + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    described = {"fileDescriptorSet": base64.b64encode(prefix + file).decode(), "rootMessageTypeName": "M"}
    return schema("ProtobufNative", json.dumps(described).encode())


def main() -> None:
    """Show every danger within the limits; prints the names of those survived."""
    import resource
    import sys

    import orjson

    from pulsarctl_wire.views import show

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    for name, make in DANGERS.items():
        orjson.dumps(show(make()).value)
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
