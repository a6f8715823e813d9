"""Protobuf, where the topic's schema is ProtobufNative or Protobuf.

ProtobufNative carries descriptors, as JSON with three members: ``fileDescriptorSet`` (base64 of a
FileDescriptorSet with all imports, in any order), ``rootMessageTypeName`` (with package) and
``rootFileDescriptorName``. Protobuf carries an Avro schema, which has no field numbers, and beside
it the property ``__PARSING_INFO__``: a JSON list of the top message's fields with number, name,
type and label. Messages inside that one have no description: their fields appear by number.

The descriptors only fill tables for our own reader (protobuf_reader.py tells why). Nothing is
added to a DescriptorPool, so files that are missing, doubled or contradictory cannot break one.
"""

from __future__ import annotations

from binascii import a2b_base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_NAME, Content, Json, Shown, cut, quoted
from pulsarctl_wire.views.protobuf_reader import NOTHING_KNOWN, Field, Message, Reader
from pulsarctl_wire.views.protobuf_scalars import SCALARS, named_enum
from pulsarctl_wire.wire import PulsarApi_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import (
        DescriptorProto,
        EnumDescriptorProto,
        FieldDescriptorProto,
        FileDescriptorSet,
    )

PARSING_INFO = "__PARSING_INFO__"
"""The property of a Protobuf schema that lists the fields of its message."""

MAX_TYPES = 10_000
"""Messages and enums of one schema."""

_TYPES = (PulsarApi_pb2.Schema.ProtobufNative, PulsarApi_pb2.Schema.Protobuf)


def score(content: Content) -> float:
    """1 for a ProtobufNative or Protobuf schema, else 0."""
    return 1.0 if content.schema is not None and content.schema.type in _TYPES else 0.0


def show(content: Content) -> Shown:
    """The message as an object by field names; ValueError when schema or payload is broken.

    Absent fields are left out, 64-bit integers are integers, bytes base64, enums their names;
    unknown fields appear by number.
    """
    assert content.schema is not None, "score() was 0"
    reader = Reader(content.payload, content.room)
    fields: dict[str, Json] = {}
    reader.message(_messages(content.schema), len(content.payload), fields)
    return Shown("protobuf", fields, cut(reader.left))


def compile_schema(schema: PulsarApi_pb2.Schema) -> Message:
    """The message type of a schema; ValueError says what is wrong with the schema."""
    if schema.type == PulsarApi_pb2.Schema.Protobuf:
        return _from_parsing_info(schema)
    described = schema_json(schema.schema_data)
    if not isinstance(described, dict):
        raise ValueError("the schema is not a JSON object")
    encoded, root = described.get("fileDescriptorSet"), described.get("rootMessageTypeName")
    if not isinstance(encoded, str) or not isinstance(root, str):
        raise ValueError("the schema lacks fileDescriptorSet or rootMessageTypeName")
    return Types(read_descriptors(a2b_base64(encoded))).message(root)


_messages = SchemaCache(compile_schema)


def read_descriptors(data: bytes) -> FileDescriptorSet:
    """What protoc writes; ValueError when it is none, or an empty one."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(data)
    except DecodeError:
        files = FileDescriptorSet()
    if not files.file:
        raise ValueError("the schema holds no Protobuf descriptors")
    return files


def _from_parsing_info(schema: PulsarApi_pb2.Schema) -> Message:
    described = [entry.value for entry in schema.properties if entry.key == PARSING_INFO]
    if not described:
        raise ValueError(f"the schema lacks the property {PARSING_INFO}, so field numbers are not known")
    fields = schema_json(described[0], f"the schema's property {PARSING_INFO}")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise ValueError(f"the schema's property {PARSING_INFO} is not a list of fields")
    return Message(dict(_parsed_field(field) for field in fields))


def _parsed_field(described: dict[str, Any]) -> tuple[int, Field]:
    number, name, kind = (described.get(part) for part in ("number", "name", "type"))
    repeated = described.get("label") == "LABEL_REPEATED"
    if not isinstance(number, int) or not isinstance(name, str) or not isinstance(kind, str):
        raise ValueError(f"the schema has a field {quoted(name)} of type {quoted(kind)}")
    return number, _field(name, kind, repeated, NOTHING_KNOWN)


def _field(name: str, kind: str, repeated: bool, message: Message | None) -> Field:
    name = name[:MAX_NAME]
    if kind in ("MESSAGE", "GROUP"):
        return Field(name, repeated, message)
    if kind not in SCALARS:
        raise ValueError(f"the schema has a field {quoted(name)} of type {quoted(kind)}")
    wire, read, default = SCALARS[kind]
    return Field(name, repeated, None, wire, read, default)


class Types:
    """The types a FileDescriptorSet defines, by full name; the first of several equal names counts.

    Args:
        files: what protoc or the Java client wrote; ValueError when it defines more than MAX_TYPES
            types or very long names.

    Attributes:
        messages: descriptors of messages, map entries and nested ones included.
        enums: descriptors of enums.
    """

    def __init__(self, files: FileDescriptorSet) -> None:
        self.messages: dict[str, DescriptorProto] = {}
        self.enums: dict[str, EnumDescriptorProto] = {}
        self._made: dict[str, Message] = {}
        self._unfinished: list[str] = []
        for file in files.file:
            self._collect(file.message_type, file.enum_type, f"{file.package}." if file.package else "")

    def _collect(self, messages: Any, enums: Any, prefix: str) -> None:
        # As deep as descriptors nest, which their parser has limited to 100. A prefix that is
        # longer than the types below it must not be repeated by thousands of them.
        known = len(self.messages) + len(self.enums) + len(messages) + len(enums)
        if known > MAX_TYPES or len(prefix) > 4 * MAX_NAME:
            raise ValueError(f"the schema defines more than {MAX_TYPES} types, or too long names")
        for enum in enums:
            self.enums.setdefault(prefix + enum.name, enum)
        for message in messages:
            self.messages.setdefault(prefix + message.name, message)
            self._collect(message.nested_type, message.enum_type, f"{prefix}{message.name}.")

    def message(self, root: str) -> Message:
        """The message called ``root`` and, behind its fields, all others it can hold."""
        if root not in self.messages:
            raise ValueError(f"the schema does not define the message {quoted(root)}")
        made = self._message(root)
        enums = {name: _enum_names(enum) for name, enum in self.enums.items()}
        while self._unfinished:
            name = self._unfinished.pop()
            descriptor, message = self.messages[name], self._made[name]
            for field in descriptor.field:
                message.fields[field.number] = self._field(field, enums)
            message.is_map_entry = _is_map_entry(descriptor, message)
        return made

    def _message(self, name: str) -> Message:
        if name not in self.messages:
            return NOTHING_KNOWN
        if name not in self._made:
            self._made[name] = Message()
            self._unfinished.append(name)
        return self._made[name]

    def _field(self, field: FieldDescriptorProto, enums: dict[str, dict[int, str]]) -> Field:
        kind = field.Type.Name(field.type).removeprefix("TYPE_")
        repeated = field.label == field.LABEL_REPEATED
        target = field.type_name.removeprefix(".")
        if kind in ("MESSAGE", "GROUP"):
            return _field(field.name, kind, repeated, self._message(target))
        made = _field(field.name, kind, repeated, None)
        if kind != "ENUM" or target not in enums:
            return made
        names = enums[target]
        return replace(made, read=named_enum(names), default=names.get(0, 0))


def _enum_names(enum: EnumDescriptorProto) -> dict[int, str]:
    # Backwards: of several names for one number the first is to stay.
    return {value.number: value.name[:MAX_NAME] for value in reversed(enum.value)}


def _is_map_entry(descriptor: DescriptorProto, message: Message) -> bool:
    """Whether it is marked as a map's pair and is one: a scalar key in field 1, a value in 2."""
    fields = message.fields
    return descriptor.options.map_entry and {1, 2} <= fields.keys() and fields[1].message is None
