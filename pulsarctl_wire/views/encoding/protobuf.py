"""JSON, encoded as Protobuf messages by the topic's ProtobufNative or Protobuf schema.

The JSON is Protobuf's own mapping (protobuf.dev, "ProtoJSON Format"), parsed by google.protobuf: fields by
their names in the .proto file or in camelCase, bytes in base64, enums by name or number, a Timestamp as
``"2023-11-14T22:13:20Z"``. The fields of such well-known types, which the Protobuf view shows, are accepted
as well: if the first attempt fails, a second one treats these types like any other message.

Nothing is added to the default descriptor pool. A Protobuf schema describes only the fields of the top
message: messages inside it cannot be encoded.
"""

from __future__ import annotations

from binascii import a2b_base64
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.views import protobuf
from pulsarctl_wire.views.cache import SchemaCache, schema_json
from pulsarctl_wire.views.content import MAX_REASON, quote
from pulsarctl_wire.views.encoding.texts import misfit, read_json
from pulsarctl_wire.wire import PulsarApi_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import Message

_WELL_KNOWN_PACKAGE = "google.protobuf"
_PLAIN_PACKAGE = "plain.google.protobuf"
_PROTOC_HINT = "give the schema as protobuf:FILE, written with protoc --include_imports"
_LARGEST_FLOAT = float.fromhex("0x1.fffffep127")
_BEYOND_FLOAT = float.fromhex("0x1.ffffffp127")  # numbers below this still round to the largest float
_ROOT = "Message"  # the name given to a message if only its fields are known


@dataclass(frozen=True, slots=True)
class _Type:
    """A message's class, and a pool with all types that it needs.

    ``unknown`` are the names of fields whose message type the schema does not describe.
    """

    pool: DescriptorPool
    message_class: type[Message]
    unknown: frozenset[str] = frozenset()


def encode_protobuf(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    """Encode the JSON ``text`` as a message; ValueError names the field that does not fit."""
    value = read_json(text, _parse_number)
    message_types = _types(schema)
    for name in value if isinstance(value, dict) else ():
        if name in message_types[0].unknown:
            raise ValueError(
                f"the schema does not describe the message in the field {quote(name)}: {_PROTOC_HINT}"
            )
    try:
        return _encode(value, message_types[0])
    except ValueError as error:
        if len(message_types) == 1:
            raise
        try:
            return _encode(value, message_types[1])
        except ValueError:
            raise error from None


def _parse_number(digits: str) -> float | str:
    """Parse a JSON number. Protobuf writes the largest float as 3.4028235e38: as a double, that is more.

    The library refuses such a number, but accepts its digits as a string, as it does for any number.
    """
    number = float(digits)
    return digits if _LARGEST_FLOAT < abs(number) < _BEYOND_FLOAT else number


def _encode(value: Any, message_type: _Type) -> bytes:
    from google.protobuf import json_format
    from google.protobuf.message import EncodeError

    message = message_type.message_class()
    name = message_type.message_class.DESCRIPTOR.full_name
    if not isinstance(value, dict) and not name.startswith(f"{_WELL_KNOWN_PACKAGE}."):
        raise misfit("", value, f"an object with the fields of the message {name}")
    try:
        json_format.ParseDict(value, message, descriptor_pool=message_type.pool)
        return bytes(message.SerializeToString())
    except (json_format.Error, EncodeError, AttributeError, TypeError, ValueError, RecursionError) as error:
        # AttributeError, TypeError: a list or a scalar in place of an object
        reason = quote(error, 2 * MAX_REASON)[1:-1].rstrip(".")
        raise ValueError(f"the JSON does not fit the message {name}: {reason}; correct it") from None


def _compile(schema: PulsarApi_pb2.Schema) -> tuple[_Type, ...]:
    protobuf.compile_schema(schema)  # raises if the schema is invalid; from here on it is well formed
    if schema.type == PulsarApi_pb2.Schema.Protobuf:
        return (_from_parsing_info(schema),)
    definition = schema_json(schema.schema_data)
    files = protobuf.read_descriptors(a2b_base64(definition["fileDescriptorSet"]))
    root = definition["rootMessageTypeName"]
    message_type = _type(files, root)
    if not any(file.package == _WELL_KNOWN_PACKAGE for file in files.file):
        return (message_type,)
    for file in files.file:
        _make_plain(file)
    return message_type, _type(files, _rename(root))


_types = SchemaCache(_compile)


def _type(files: FileDescriptorSet, root: str, unknown: frozenset[str] = frozenset()) -> _Type:
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    pool = DescriptorPool()
    try:
        for file in order_files(files):
            pool.AddSerializedFile(file.SerializePartialToString())
        return _Type(pool, GetMessageClass(pool.FindMessageTypeByName(root)), unknown)
    except CycleError:
        raise ValueError(f"the schema's descriptors import each other in a cycle; {_PROTOC_HINT}") from None
    except (TypeError, KeyError) as error:
        raise ValueError(f"the schema's descriptors are inconsistent: {error}; {_PROTOC_HINT}") from None


def order_files(files: FileDescriptorSet) -> list[FileDescriptorProto]:
    """Return each file once, after the files that it imports, as a pool requires. Raises CycleError."""
    by_name = {file.name: file for file in reversed(files.file)}
    order = TopologicalSorter({name: file.dependency for name, file in by_name.items()})
    return [by_name[name] for name in order.static_order() if name in by_name]


def _make_plain(file: FileDescriptorProto) -> None:
    """Rename ``file``, and the well-known types in it, which the library recognises by name and file."""
    if file.package == _WELL_KNOWN_PACKAGE:
        file.package = _PLAIN_PACKAGE
    file.name = f"plain/{file.name}"
    file.dependency[:] = [f"plain/{name}" for name in file.dependency]
    messages = list(file.message_type)
    fields = list(file.extension)
    while messages:
        message = messages.pop()
        messages += message.nested_type
        fields += (*message.field, *message.extension)
    for field in fields:
        if field.type_name:  # setting it, even to "", would make the field one of a message type
            field.type_name = _rename(field.type_name)
        if field.extendee:
            field.extendee = _rename(field.extendee)


def _rename(name: str) -> str:
    bare = name.removeprefix(".")
    if not bare.startswith(f"{_WELL_KNOWN_PACKAGE}."):
        return name
    return name[: len(name) - len(bare)] + _PLAIN_PACKAGE + bare.removeprefix(_WELL_KNOWN_PACKAGE)


def _from_parsing_info(schema: PulsarApi_pb2.Schema) -> _Type:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

    field_list = next(entry.value for entry in schema.properties if entry.key == protobuf.PARSING_INFO)
    file = FileDescriptorProto(name="schema.proto")
    message = file.message_type.add(name=_ROOT)
    unknown = set()
    for info in schema_json(field_list):
        if info["type"] in ("MESSAGE", "GROUP"):
            unknown.add(info["name"])
            continue
        # The schema does not have the names of enum values, but their numbers are encoded as integers.
        kind = "INT32" if info["type"] == "ENUM" else info["type"]
        field = message.field.add(name=info["name"], number=info["number"])
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind}")
        is_repeated = info.get("label") == "LABEL_REPEATED"
        field.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
    return _type(FileDescriptorSet(file=[file]), _ROOT, frozenset(unknown))
