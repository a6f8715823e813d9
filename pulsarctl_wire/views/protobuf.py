"""The view of payloads with a ProtobufNative or Protobuf schema.

ProtobufNative carries descriptors, as JSON with three members: ``fileDescriptorSet`` (base64 of a
FileDescriptorSet with all imports, in any order), ``rootMessageTypeName`` (with package) and
``rootFileDescriptorName``. Protobuf carries an Avro schema, which has no field numbers, and the
property ``__PARSING_INFO__``: a JSON list of the top message's fields with number, name, type and
label. It does not describe messages inside that one: their fields are shown by number.

The descriptors only fill the tables of our own reader. Nothing is added to a DescriptorPool, so missing,
duplicate or contradictory files cannot break one.

    field     varint tag = number << 3 | wire type, then by wire type:
    0 varint  1 eight bytes  2 varint size, bytes  3 fields up to a tag 4 of the same number  5 four bytes

google.protobuf does not parse the messages, as their classes would come from the untrusted
schema: upb allocates memory for every declared field of every message, so 200 kB of empty messages
of a type with 7,000 fields take 5 GB. Here a message only takes memory for what it contains, and at
most MAX_VALUES fields are read.

Fields that the schema does not have, or has with another wire type, are shown by number: as
integers, text, {"base64": ...} or objects, depending on the wire type and the bytes.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_NAME, Content, Json, Shown, cut_note, name_cost, quote
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import plain_text, to_double, to_single
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.fields import as_base64
from pulsarctl_wire.wire.varint import END_OF_GROUP, FIXED_32, FIXED_64, GROUP, SIZED, VARINT

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
"""Maximum number of messages and enums in one schema."""


def fits(schema: PulsarApi_pb2.Schema) -> bool:
    """Return whether ``schema`` is a ProtobufNative or Protobuf schema."""
    return schema.type in (PulsarApi_pb2.Schema.ProtobufNative, PulsarApi_pb2.Schema.Protobuf)


def show(content: Content) -> Shown:
    """Read the message as an object, by field names; ValueError if the schema or the payload is broken.

    Absent fields are left out, 64-bit integers are integers, bytes are base64, enums are their names.
    Unknown fields are shown by number.
    """
    assert content.schema is not None
    reader = Reader(content.payload, content.budget)
    fields: dict[str, Json] = {}
    reader.read_message(_messages(content.schema), len(content.payload), fields)
    return Shown("protobuf", fields, cut_note(reader.values_left))


def compile_schema(schema: PulsarApi_pb2.Schema) -> Message:
    """Make the message type that a schema defines; ValueError says what is wrong with the schema."""
    if schema.type == PulsarApi_pb2.Schema.Protobuf:
        return _from_parsing_info(schema)
    definition = schema_json(schema.schema_data)
    if not isinstance(definition, dict):
        raise ValueError("the schema is not a JSON object")
    encoded, root = definition.get("fileDescriptorSet"), definition.get("rootMessageTypeName")
    if not isinstance(encoded, str) or not isinstance(root, str):
        raise ValueError("the schema lacks fileDescriptorSet or rootMessageTypeName")
    return Types(read_descriptors(a2b_base64(encoded))).message(root)


_messages = SchemaCache(compile_schema)


def read_descriptors(data: bytes) -> FileDescriptorSet:
    """Parse a FileDescriptorSet, as protoc writes it; ValueError if it is something else, or empty."""
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
    field_lists = [entry.value for entry in schema.properties if entry.key == PARSING_INFO]
    if not field_lists:
        raise ValueError(f"the schema lacks the property {PARSING_INFO}, so field numbers are not known")
    fields = schema_json(field_lists[0], f"the schema's property {PARSING_INFO}")
    if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
        raise ValueError(f"the schema's property {PARSING_INFO} is not a list of fields")
    return Message(dict(_parse_field(field) for field in fields))


def _parse_field(info: dict[str, Any]) -> tuple[int, Field]:
    number, name, kind = (info.get(part) for part in ("number", "name", "type"))
    is_repeated = info.get("label") == "LABEL_REPEATED"
    if not isinstance(number, int) or not isinstance(name, str) or not isinstance(kind, str):
        raise ValueError(f"the schema has a field {quote(name)} of type {quote(kind)}")
    return number, _field(name, kind, is_repeated, UNKNOWN_MESSAGE)


def _field(name: str, kind: str, is_repeated: bool, message: Message | None) -> Field:
    name = name[:MAX_NAME]
    if kind in ("MESSAGE", "GROUP"):
        return Field(name, is_repeated, message)
    if kind not in _SCALARS:
        raise ValueError(f"the schema has a field {quote(name)} of type {quote(kind)}")
    wire, read, default = _SCALARS[kind]
    return Field(name, is_repeated, None, wire, read, default)


# -- messages (protobuf.dev, "Encoding")


class Reader(Cursor):
    """A cursor that reads messages from a payload."""

    __slots__ = ()

    def read_sized(self, end: int) -> bytes:
        """Read a varint size, and return that many bytes."""
        return self.take(self.varint(end), end)

    def read_end(self, end: int) -> int:
        """Read a varint size, and return where that many bytes end; ValueError if that is after ``end``."""
        size = self.varint(end)
        if size > end - self.position:
            raise ValueError(f"{size} bytes wanted at byte {self.position}, {end - self.position} are left")
        return self.position + size

    def read_message(self, message: Message, end: int, output: dict[str, Json], group: int = 0) -> None:
        """Add the fields up to ``end``, or to the end of group number ``group``, to ``output``.

        A field that is already there is merged as Protobuf does it: repeated fields grow, messages
        get more fields, and others are replaced.
        """
        while self.position < end:
            if not self.spend():
                return
            start = self.position
            number, wire = divmod(self.varint(end), 8)
            if not number:
                raise ValueError(f"field number 0 at byte {start}")
            if wire == END_OF_GROUP and number == group:
                return
            known_field = message.fields.get(number)
            if known_field is None or not known_field.add(self, wire, number, end, output):
                _add_unknown(output, str(number), self.read_unknown(wire, number, end))
        if group:
            raise ValueError(f"group {group} does not end")

    def read_nested(
        self, message: Message, wire: int, number: int, end: int, output: dict[str, Json]
    ) -> None:
        """Add the fields of a sized message or a group to ``output``; ValueError beyond MAX_DEPTH."""
        self.enter()
        if wire == GROUP:
            self.read_message(message, end, output, number)
        else:
            self.read_message(message, self.read_end(end), output)
        self.leave()

    def read_unknown(self, wire: int, number: int, end: int) -> Json:
        """Read a value of which only the wire type is known."""
        if wire == VARINT:
            return self.varint(end)
        if wire in (FIXED_64, FIXED_32):
            return int.from_bytes(self.take(8 if wire == FIXED_64 else 4, end), "little")
        if wire == SIZED:
            raw = self.read_sized(end)
            text = plain_text(raw)
            return {"base64": as_base64(raw)} if text is None else text
        if wire == GROUP:
            fields: dict[str, Json] = {}
            self.read_nested(UNKNOWN_MESSAGE, wire, number, end, fields)
            return fields
        raise ValueError(f"wire type {wire} before byte {self.position}")


def _add_unknown(output: dict[str, Json], name: str, value: Json) -> None:
    """Add an unknown field's value to ``output``. If the same field occurs again, its values make a list."""
    if name not in output:
        output[name] = value
        return
    values = output[name]
    if isinstance(values, list):
        values.append(value)
    else:
        output[name] = [values, value]


Read: TypeAlias = Callable[[Reader, int], Json]


@dataclass(slots=True)
class Message:
    """A message type: its fields by number. A field may refer to the message itself.

    ``is_map_entry``: it is a pair of a map field; the key is field 1, the value is field 2.
    """

    fields: dict[int, Field] = field(default_factory=dict)
    is_map_entry: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A known field. ``is_repeated``: its values make a list, or an object if it is a map.

    ``message`` is the type of a message or a group. For a scalar, ``wire`` is the wire type, ``read`` reads a
    value that ends before an index, and ``default`` is the value of an absent one in a map's pair.
    """

    name: str
    is_repeated: bool
    message: Message | None = None
    wire: int = VARINT
    read: Read = Reader.varint
    default: Json = 0

    def add(self, reader: Reader, wire: int, number: int, end: int, output: dict[str, Json]) -> bool:
        """Read the field into ``output``; return False if the wire type is wrong for this field."""
        reader.spend(name_cost(self.name) - 1)
        if self.message is not None:
            if wire not in (SIZED, GROUP):
                return False
            self._add_message(self.message, reader, wire, number, end, output)
        elif wire == self.wire:
            value = self.read(reader, end)
            if self.is_repeated:
                self._get_list(output).append(value)
            else:
                output[self.name] = value
        elif wire == SIZED and self.is_repeated:
            self._add_packed(reader, end, output)
        else:
            return False
        return True

    def _add_message(
        self, message: Message, reader: Reader, wire: int, number: int, end: int, output: dict[str, Json]
    ) -> None:
        if message.is_map_entry:
            pair: dict[str, Json] = {}
            reader.read_nested(message, wire, number, end, pair)
            key, value = (_map_part(message, half, pair) for half in (1, 2))
            self._get_object(output)[str(key).lower() if isinstance(key, bool) else str(key)] = value
        elif self.is_repeated:
            fields: dict[str, Json] = {}
            self._get_list(output).append(fields)
            reader.read_nested(message, wire, number, end, fields)
        else:
            reader.read_nested(message, wire, number, end, self._get_object(output))

    def _add_packed(self, reader: Reader, end: int, output: dict[str, Json]) -> None:
        values = self._get_list(output)
        stop = reader.read_end(end)
        while reader.position < stop and reader.spend():
            values.append(self.read(reader, stop))

    def _get_list(self, output: dict[str, Json]) -> list[Json]:
        values = output.get(self.name)
        if not isinstance(values, list):
            values = output[self.name] = []
        return values

    def _get_object(self, output: dict[str, Json]) -> dict[str, Json]:
        values = output.get(self.name)
        if not isinstance(values, dict):
            values = output[self.name] = {}
        return values


def _map_part(entry: Message, number: int, pair: dict[str, Json]) -> Json:
    """Return a map entry's key or value; its type's default if it was not sent."""
    field = entry.fields[number]
    return pair.get(field.name, {} if field.message is not None else field.default)


UNKNOWN_MESSAGE = Message()
"""The type of messages whose fields are unknown."""


# -- scalars (protobuf.dev, "Encoding")

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def _to_signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _decode_zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _fixed(size: int, signed: bool) -> Read:
    return lambda reader, end: int.from_bytes(reader.take(size, end), "little", signed=signed)


def _float(reader: Reader, end: int) -> Json:
    reader.charge_frame()
    return to_single(_FLOAT.unpack(reader.take(4, end))[0])


_SCALARS: dict[str, tuple[int, Read, Json]] = {
    "INT32": (VARINT, lambda reader, end: _to_signed(reader.varint(end), 32), 0),
    "INT64": (VARINT, lambda reader, end: _to_signed(reader.varint(end), 64), 0),
    "UINT32": (VARINT, lambda reader, end: reader.varint(end) & 0xFFFFFFFF, 0),
    "UINT64": (VARINT, Reader.varint, 0),
    "SINT32": (VARINT, lambda reader, end: _decode_zigzag(reader.varint(end) & 0xFFFFFFFF), 0),
    "SINT64": (VARINT, lambda reader, end: _decode_zigzag(reader.varint(end)), 0),
    "BOOL": (VARINT, lambda reader, end: reader.varint(end) != 0, False),
    "ENUM": (VARINT, lambda reader, end: _to_signed(reader.varint(end), 32), 0),
    "FIXED32": (FIXED_32, _fixed(4, signed=False), 0),
    "FIXED64": (FIXED_64, _fixed(8, signed=False), 0),
    "SFIXED32": (FIXED_32, _fixed(4, signed=True), 0),
    "SFIXED64": (FIXED_64, _fixed(8, signed=True), 0),
    "FLOAT": (FIXED_32, _float, 0.0),
    "DOUBLE": (FIXED_64, lambda reader, end: to_double(_DOUBLE.unpack(reader.take(8, end))[0]), 0.0),
    "STRING": (SIZED, lambda reader, end: reader.text(reader.read_sized(end)), ""),
    "BYTES": (SIZED, lambda reader, end: as_base64(reader.read_sized(end)), ""),
}
"""Wire type, reader and default of each scalar type, by its name in descriptors without ``TYPE_``."""


def _enum_reader(names: dict[int, str]) -> Read:
    """Make a reader of an enum's value that returns its name, or the number if it has no name."""

    def read(reader: Reader, end: int) -> Json:
        number = _to_signed(reader.varint(end), 32)
        name = names.get(number, number)
        if isinstance(name, str):
            reader.spend(name_cost(name) - 1)
        return name

    return read


# -- descriptors


class Types:
    """The types that a FileDescriptorSet from protoc or the Java client defines.

    ``messages`` (including nested ones and map entries) and ``enums`` are descriptors by full name. If a name
    is defined twice, the first counts. ValueError if there are more than MAX_TYPES, or very long names.
    """

    def __init__(self, files: FileDescriptorSet) -> None:
        self.messages: dict[str, DescriptorProto] = {}
        self.enums: dict[str, EnumDescriptorProto] = {}
        self._compiled: dict[str, Message] = {}
        self._unfinished: list[str] = []
        for file in files.file:
            self._collect(file.message_type, file.enum_type, f"{file.package}." if file.package else "")

    def _collect(self, messages: Any, enums: Any, prefix: str) -> None:
        # Recursion is as deep as descriptors are nested, which their parser limits to 100. Thousands of
        # types must not repeat a prefix that is much longer than their own names.
        count = len(self.messages) + len(self.enums) + len(messages) + len(enums)
        if count > MAX_TYPES or len(prefix) > 4 * MAX_NAME:
            raise ValueError(f"the schema defines more than {MAX_TYPES} types, or too long names")
        for enum in enums:
            self.enums.setdefault(prefix + enum.name, enum)
        for message in messages:
            self.messages.setdefault(prefix + message.name, message)
            self._collect(message.nested_type, message.enum_type, f"{prefix}{message.name}.")

    def message(self, root: str) -> Message:
        """Make the message called ``root``, with all messages that it can contain."""
        if root not in self.messages:
            raise ValueError(f"the schema does not define the message {quote(root)}")
        root_message = self._message(root)
        enums = {name: _enum_names(enum) for name, enum in self.enums.items()}
        while self._unfinished:
            name = self._unfinished.pop()
            descriptor, message = self.messages[name], self._compiled[name]
            for proto in descriptor.field:
                message.fields[proto.number] = self._field(proto, enums)
            message.is_map_entry = _is_map_entry(descriptor, message)
        return root_message

    def _message(self, name: str) -> Message:
        if name not in self.messages:
            return UNKNOWN_MESSAGE
        if name not in self._compiled:
            self._compiled[name] = Message()
            self._unfinished.append(name)
        return self._compiled[name]

    def _field(self, field: FieldDescriptorProto, enums: dict[str, dict[int, str]]) -> Field:
        kind = field.Type.Name(field.type).removeprefix("TYPE_")
        is_repeated = field.label == field.LABEL_REPEATED
        target = field.type_name.removeprefix(".")
        if kind in ("MESSAGE", "GROUP"):
            return _field(field.name, kind, is_repeated, self._message(target))
        result = _field(field.name, kind, is_repeated, None)
        if kind != "ENUM" or target not in enums:
            return result
        names = enums[target]
        return replace(result, read=_enum_reader(names), default=names.get(0, 0))


def _enum_names(enum: EnumDescriptorProto) -> dict[int, str]:
    # Reversed, so that the first of several names for one number is kept.
    return {value.number: value.name[:MAX_NAME] for value in reversed(enum.value)}


def _is_map_entry(descriptor: DescriptorProto, message: Message) -> bool:
    """Return whether ``message`` is a map's pair: marked as one, with a scalar key (1) and a value (2)."""
    fields = message.fields
    return descriptor.options.map_entry and {1, 2} <= fields.keys() and fields[1].message is None
