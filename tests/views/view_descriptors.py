"""A FileDescriptorSet with a field of every kind, and ProtobufNative schemas made of such sets."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from view_samples import schema

from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

MESSAGE, ENUM, GROUP = (
    FieldDescriptorProto.TYPE_MESSAGE,
    FieldDescriptorProto.TYPE_ENUM,
    FieldDescriptorProto.TYPE_GROUP,
)
SCALAR_KINDS = [
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
]


def native(files: FileDescriptorSet, root: str) -> Schema:
    """The schema a Java client would send for the message ``root``."""
    described = {
        "fileDescriptorSet": base64.b64encode(files.SerializePartialToString()).decode(),
        "rootMessageTypeName": root,
        "rootFileDescriptorName": files.file[-1].name if files.file else "",
    }
    return schema("ProtobufNative", json.dumps(described).encode())


def add(
    message: DescriptorProto,
    name: str,
    kind: Any,
    type_name: str = "",
    repeated: bool = False,
    packed: bool = False,
) -> None:
    """Add the next field to ``message``."""
    field = message.field.add(name=name, number=len(message.field) + 1, type=kind)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if type_name:
        field.type_name = type_name
    if packed:
        field.options.packed = True


def add_map(
    message: DescriptorProto, full_name: str, name: str, key: int, value: int, type_name: str = ""
) -> None:
    """Add a map field and its entry type to ``message``, which is called ``full_name``."""
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add(entry, "key", key)
    add(entry, "value", value, type_name)
    add(message, name, MESSAGE, f".{full_name}.{entry.name}", repeated=True)


def all_kinds() -> FileDescriptorSet:
    """``demo.All`` (proto2): each scalar single, repeated and packed, messages, enums, groups, maps."""
    file = FileDescriptorProto(name="all.proto", package="demo")
    colour = file.enum_type.add(name="Colour")
    for number, name in ((0, "RED"), (-1, "NO_COLOUR"), (5, "BLUE")):
        colour.value.add(name=name, number=number)
    message = file.message_type.add(name="All")
    for name in SCALAR_KINDS:
        kind = FieldDescriptorProto.Type.Value(f"TYPE_{name.upper()}")
        add(message, f"one_{name}", kind)
        add(message, f"many_{name}", kind, repeated=True)
        if name not in ("string", "bytes"):
            add(message, f"packed_{name}", kind, repeated=True, packed=True)
    add(message, "colour", ENUM, ".demo.Colour")
    add(message, "colours", ENUM, ".demo.Colour", repeated=True, packed=True)
    add(message, "child", MESSAGE, ".demo.All")
    add(message, "children", MESSAGE, ".demo.All", repeated=True)
    add(message.nested_type.add(name="Box"), "size", FieldDescriptorProto.TYPE_INT32)
    add(message, "box", FieldDescriptorProto.TYPE_GROUP, ".demo.All.Box")
    add_map(message, "demo.All", "names", FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_STRING)
    add_map(message, "demo.All", "flags", FieldDescriptorProto.TYPE_BOOL, ENUM, ".demo.Colour")
    add_map(message, "demo.All", "trees", FieldDescriptorProto.TYPE_STRING, MESSAGE, ".demo.All")
    return FileDescriptorSet(file=[file])
