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
from pulsarctl_wire.views.content import MAX_NAME, Content, Json, Shown, cut, name_cost, quoted
from pulsarctl_wire.views.cursor import Cursor
from pulsarctl_wire.views.values import double, plain_text, single
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
    """Whether it is a ProtobufNative or Protobuf schema."""
    return schema.type in (PulsarApi_pb2.Schema.ProtobufNative, PulsarApi_pb2.Schema.Protobuf)


def show(content: Content) -> Shown:
    """The message as an object, by field names; ValueError if the schema or the payload is broken.

    Absent fields are left out, 64-bit integers are integers, bytes are base64, enums are their names.
    Unknown fields are shown by number.
    """
    assert content.schema is not None
    reader = Reader(content.payload, content.room)
    fields: dict[str, Json] = {}
    reader.message(_messages(content.schema), len(content.payload), fields)
    return Shown("protobuf", fields, cut(reader.left))


def compile_schema(schema: PulsarApi_pb2.Schema) -> Message:
    """The message type that a schema defines; ValueError says what is wrong with the schema."""
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
    if kind not in _SCALARS:
        raise ValueError(f"the schema has a field {quoted(name)} of type {quoted(kind)}")
    wire, read, default = _SCALARS[kind]
    return Field(name, repeated, None, wire, read, default)


# -- messages (protobuf.dev, "Encoding")


class Reader(Cursor):
    """Reads messages from a payload."""

    __slots__ = ()

    def sized(self, end: int) -> bytes:
        """Read a varint size, and return that many bytes."""
        return self.take(self.varint(end), end)

    def size(self, end: int) -> int:
        """Read a varint size, and return where that many bytes end; ValueError if that is after ``end``."""
        size = self.varint(end)
        if size > end - self.at:
            raise ValueError(f"{size} bytes wanted at byte {self.at}, {end - self.at} are left")
        return self.at + size

    def message(self, message: Message, end: int, into: dict[str, Json], group: int = 0) -> None:
        """Add the fields up to ``end``, or to the end of group number ``group``, to ``into``.

        A field that is already there is merged as Protobuf does it: repeated fields grow, messages
        get more fields, and others are replaced.
        """
        while self.at < end:
            if not self.spend():
                return
            start = self.at
            number, wire = divmod(self.varint(end), 8)
            if not number:
                raise ValueError(f"field number 0 at byte {start}")
            if wire == END_OF_GROUP and number == group:
                return
            known = message.fields.get(number)
            if known is None or not known.add(self, wire, number, end, into):
                _gather(into, str(number), self.unknown(wire, number, end))
        if group:
            raise ValueError(f"group {group} does not end")

    def nested(self, message: Message, wire: int, number: int, end: int, into: dict[str, Json]) -> None:
        """Add the fields of a sized message or a group to ``into``; ValueError beyond MAX_DEPTH."""
        self.enter()
        if wire == GROUP:
            self.message(message, end, into, number)
        else:
            self.message(message, self.size(end), into)
        self.leave()

    def unknown(self, wire: int, number: int, end: int) -> Json:
        """Read a value of which only the wire type is known."""
        if wire == VARINT:
            return self.varint(end)
        if wire in (FIXED_64, FIXED_32):
            return int.from_bytes(self.take(8 if wire == FIXED_64 else 4, end), "little")
        if wire == SIZED:
            raw = self.sized(end)
            text = plain_text(raw)
            return {"base64": as_base64(raw)} if text is None else text
        if wire == GROUP:
            fields: dict[str, Json] = {}
            self.nested(NOTHING_KNOWN, wire, number, end, fields)
            return fields
        raise ValueError(f"wire type {wire} before byte {self.at}")


def _gather(into: dict[str, Json], name: str, value: Json) -> None:
    """Add an unknown field's value to ``into``. If the same field occurs again, its values make a list."""
    if name not in into:
        into[name] = value
        return
    there = into[name]
    if isinstance(there, list):
        there.append(value)
    else:
        into[name] = [there, value]


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
    """A known field. ``repeated``: its values make a list, or an object if it is a map.

    ``message`` is the type of a message or a group. For a scalar, ``wire`` is the wire type, ``read`` reads a
    value that ends before an index, and ``default`` is the value of an absent one in a map's pair.
    """

    name: str
    repeated: bool
    message: Message | None = None
    wire: int = VARINT
    read: Read = Reader.varint
    default: Json = 0

    def add(self, reader: Reader, wire: int, number: int, end: int, into: dict[str, Json]) -> bool:
        """Read the field into ``into``; returns False if the wire type is wrong for this field."""
        reader.spend(name_cost(self.name) - 1)
        if self.message is not None:
            if wire not in (SIZED, GROUP):
                return False
            self._add_message(self.message, reader, wire, number, end, into)
        elif wire == self.wire:
            value = self.read(reader, end)
            if self.repeated:
                self._list(into).append(value)
            else:
                into[self.name] = value
        elif wire == SIZED and self.repeated:
            self._add_packed(reader, end, into)
        else:
            return False
        return True

    def _add_message(
        self, message: Message, reader: Reader, wire: int, number: int, end: int, into: dict[str, Json]
    ) -> None:
        if message.is_map_entry:
            pair: dict[str, Json] = {}
            reader.nested(message, wire, number, end, pair)
            key, value = (_half(message, half, pair) for half in (1, 2))
            self._object(into)[str(key).lower() if isinstance(key, bool) else str(key)] = value
        elif self.repeated:
            fields: dict[str, Json] = {}
            self._list(into).append(fields)
            reader.nested(message, wire, number, end, fields)
        else:
            reader.nested(message, wire, number, end, self._object(into))

    def _add_packed(self, reader: Reader, end: int, into: dict[str, Json]) -> None:
        values = self._list(into)
        stop = reader.size(end)
        while reader.at < stop and reader.spend():
            values.append(self.read(reader, stop))

    def _list(self, into: dict[str, Json]) -> list[Json]:
        there = into.get(self.name)
        if not isinstance(there, list):
            there = into[self.name] = []
        return there

    def _object(self, into: dict[str, Json]) -> dict[str, Json]:
        there = into.get(self.name)
        if not isinstance(there, dict):
            there = into[self.name] = {}
        return there


def _half(entry: Message, number: int, pair: dict[str, Json]) -> Json:
    """A map entry's key or value; its type's default if it was not sent."""
    known = entry.fields[number]
    return pair.get(known.name, {} if known.message is not None else known.default)


NOTHING_KNOWN = Message()
"""The type of messages whose fields are unknown."""


# -- scalars (protobuf.dev, "Encoding")

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _fixed(size: int, signed: bool) -> Read:
    return lambda reader, end: int.from_bytes(reader.take(size, end), "little", signed=signed)


def _float(reader: Reader, end: int) -> Json:
    reader.work()
    return single(_FLOAT.unpack(reader.take(4, end))[0])


_SCALARS: dict[str, tuple[int, Read, Json]] = {
    "INT32": (VARINT, lambda reader, end: _signed(reader.varint(end), 32), 0),
    "INT64": (VARINT, lambda reader, end: _signed(reader.varint(end), 64), 0),
    "UINT32": (VARINT, lambda reader, end: reader.varint(end) & 0xFFFFFFFF, 0),
    "UINT64": (VARINT, Reader.varint, 0),
    "SINT32": (VARINT, lambda reader, end: _zigzag(reader.varint(end) & 0xFFFFFFFF), 0),
    "SINT64": (VARINT, lambda reader, end: _zigzag(reader.varint(end)), 0),
    "BOOL": (VARINT, lambda reader, end: reader.varint(end) != 0, False),
    "ENUM": (VARINT, lambda reader, end: _signed(reader.varint(end), 32), 0),
    "FIXED32": (FIXED_32, _fixed(4, signed=False), 0),
    "FIXED64": (FIXED_64, _fixed(8, signed=False), 0),
    "SFIXED32": (FIXED_32, _fixed(4, signed=True), 0),
    "SFIXED64": (FIXED_64, _fixed(8, signed=True), 0),
    "FLOAT": (FIXED_32, _float, 0.0),
    "DOUBLE": (FIXED_64, lambda reader, end: double(_DOUBLE.unpack(reader.take(8, end))[0]), 0.0),
    "STRING": (SIZED, lambda reader, end: reader.text(reader.sized(end)), ""),
    "BYTES": (SIZED, lambda reader, end: as_base64(reader.sized(end)), ""),
}
"""Wire type, reader and default of each scalar type, by its name in descriptors without ``TYPE_``."""


def _named_enum(names: dict[int, str]) -> Read:
    """Makes a reader of an enum's value that returns its name; a number without a name is returned as is."""

    def read(reader: Reader, end: int) -> Json:
        number = _signed(reader.varint(end), 32)
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
        self._made: dict[str, Message] = {}
        self._unfinished: list[str] = []
        for file in files.file:
            self._collect(file.message_type, file.enum_type, f"{file.package}." if file.package else "")

    def _collect(self, messages: Any, enums: Any, prefix: str) -> None:
        # Recursion is as deep as descriptors are nested, which their parser limits to 100. Thousands of
        # types must not repeat a prefix that is much longer than their own names.
        known = len(self.messages) + len(self.enums) + len(messages) + len(enums)
        if known > MAX_TYPES or len(prefix) > 4 * MAX_NAME:
            raise ValueError(f"the schema defines more than {MAX_TYPES} types, or too long names")
        for enum in enums:
            self.enums.setdefault(prefix + enum.name, enum)
        for message in messages:
            self.messages.setdefault(prefix + message.name, message)
            self._collect(message.nested_type, message.enum_type, f"{prefix}{message.name}.")

    def message(self, root: str) -> Message:
        """The message called ``root``, with all messages that it can contain."""
        if root not in self.messages:
            raise ValueError(f"the schema does not define the message {quoted(root)}")
        made = self._message(root)
        enums = {name: _enum_names(enum) for name, enum in self.enums.items()}
        while self._unfinished:
            name = self._unfinished.pop()
            descriptor, message = self.messages[name], self._made[name]
            for each in descriptor.field:
                message.fields[each.number] = self._field(each, enums)
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
        return replace(made, read=_named_enum(names), default=names.get(0, 0))


def _enum_names(enum: EnumDescriptorProto) -> dict[int, str]:
    # Reversed, so that the first of several names for one number is kept.
    return {value.number: value.name[:MAX_NAME] for value in reversed(enum.value)}


def _is_map_entry(descriptor: DescriptorProto, message: Message) -> bool:
    """Whether it is marked as a map's pair and really is one: a scalar key in field 1, a value in field 2."""
    fields = message.fields
    return descriptor.options.map_entry and {1, 2} <= fields.keys() and fields[1].message is None
