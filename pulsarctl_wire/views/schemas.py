"""The schema that a user names on the command line, for topics whose schema was not captured."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.views import avro, protobuf
from pulsarctl_wire.views.cache import MAX_SCHEMA
from pulsarctl_wire.views.content import MAX_REASON, quote, reason
from pulsarctl_wire.wire import PulsarApi_pb2
from pulsarctl_wire.wire.fields import as_base64

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_Schema = PulsarApi_pb2.Schema

_PLAIN_TYPES = (
    *("None", "String", "Json", "Bool", "Int8", "Int16", "Int32", "Int64", "Float", "Double"),
    *("Date", "Time", "Timestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime"),
)
_TYPES_BY_NAME: dict[str, Any] = {name.lower(): _Schema.Type.Value(name) for name in _PLAIN_TYPES}
_TYPES_BY_NAME["bytes"] = _TYPES_BY_NAME["none"]  # the Java client sends Schema.BYTES as no schema at all
_JAVA_NAMES = {"none": "Bytes", "bytes": "Bytes", "json": "", "bool": "Boolean"}
_JAVA_NAMES |= {name: name.upper() for name in ("int8", "int16", "int32", "int64")}
"""The Java client's names for its schemas, where they differ from the names of the types."""

_KEY_VALUE_ENCODINGS = {"keyvalue": "INLINE", "keyvalue-separated": "SEPARATED"}
_TYPE_HINT = (
    f"use avro:FILE, protobuf:FILE[:MESSAGE], or one of {', '.join(_TYPES_BY_NAME)}; "
    "also json:FILE, and keyvalue:KEY,VALUE or keyvalue-separated:KEY,VALUE with two such schemas"
)
_PROTOC_HINT = "write it with protoc --include_imports --descriptor_set_out=FILE"
# A definition begins with one of these; the name of a file hardly ever does.
_DEFINITION_STARTS = ("{", "[", '"')
_AVRO_HINT = "give an Avro schema in JSON"
_MAX_FILE = 16 * MAX_SCHEMA  # bytes: of a descriptor set, only what the chosen message needs is used
_MAX_NAMES = 8  # how many messages an error names


def parse_schema(spec: str) -> PulsarApi_pb2.Schema:
    """Make the schema for ``TYPE``, ``TYPE:FILE`` or ``TYPE:DEFINITION``, as the Java client would send it.

    ``json``, ``string``, ``int64`` and the other plain types need no file; ``bytes`` and ``none`` mean no
    schema. ``avro:FILE`` takes an Avro schema in JSON, and so does ``json:FILE``, for JSON payloads. In
    both, a text that begins with ``{``, ``[`` or ``"`` is the definition itself. ``protobuf:FILE`` and
    ``protobuf:FILE:package.Message`` take a FileDescriptorSet as written by ``protoc --include_imports
    --descriptor_set_out=FILE``. ``keyvalue:KEY,VALUE`` (INLINE) and ``keyvalue-separated:KEY,VALUE`` take
    two of these schemas; the name of the key's file must not contain a comma.

    Reads the file. Raises ValueError if the type is unknown, or the file cannot be read or used. The
    error is one line that names the cause and how to fix it.
    """
    kind, _, argument = spec.partition(":")
    kind = kind.lower()
    if kind in ("avro", "protobuf"):
        if not argument:
            raise ValueError(f"schema {quote(spec)} names no file: use {kind}:FILE")
        return _avro(argument, _Schema.Avro) if kind == "avro" else _protobuf(argument)
    if kind == "json" and argument:
        return _avro(argument, _Schema.Json)
    if kind in _KEY_VALUE_ENCODINGS and argument:
        return _key_value(kind, argument)
    if kind not in _TYPES_BY_NAME:
        raise ValueError(f"unknown schema type {quote(kind)}: {_TYPE_HINT}")
    if argument:
        raise ValueError(f"the schema type {kind} takes no file: use just {kind}")
    number = _TYPES_BY_NAME[kind]
    name = _JAVA_NAMES.get(kind, _Schema.Type.Name(number))
    return PulsarApi_pb2.Schema(name=name, schema_data=b"", type=number)


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = error.strerror if isinstance(error, OSError) else "not a valid file name"
        raise ValueError(f"cannot read the schema {quote(file)}: {problem}; check the path") from None
    if len(data) > _MAX_FILE:
        raise ValueError(f"{quote(file)} has more than {_MAX_FILE} bytes: is it a schema?")
    return data


def _check(schema: PulsarApi_pb2.Schema, file: str, hint: str) -> PulsarApi_pb2.Schema:
    """Return `schema` if its view can use it; ValueError names `file`, which may be a definition itself."""
    view = protobuf if schema.type == _Schema.ProtobufNative else avro
    if len(schema.schema_data) > MAX_SCHEMA:
        raise ValueError(f"{quote(file)} makes a schema of more than {MAX_SCHEMA} bytes: {hint}")
    try:
        view.compile_schema(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{quote(file)} cannot be used: {reason(error)}; {hint}") from None
    return schema


def _avro(spec: str, kind: Any) -> PulsarApi_pb2.Schema:
    data = spec.encode("utf-8", "surrogateescape") if spec.startswith(_DEFINITION_STARTS) else _read(spec)
    schema = PulsarApi_pb2.Schema(name="", schema_data=data, type=kind)
    return _check(schema, spec, _AVRO_HINT)


def _protobuf(spec: str) -> PulsarApi_pb2.Schema:
    import orjson

    file, message_name = spec, ""
    # The path may contain a colon, so a file with the full name takes precedence.
    if ":" in spec and not os.path.exists(spec):
        file, _, message_name = spec.rpartition(":")
    data = _read(file)
    try:
        files = protobuf.read_descriptors(data)
    except ValueError:
        raise ValueError(f"{quote(file)} contains no Protobuf descriptors: {_PROTOC_HINT}") from None
    root, message = _find_message(files, message_name, file)
    file_set = _with_imports(files, root, file)
    definition = {
        "fileDescriptorSet": as_base64(file_set.SerializePartialToString()),
        "rootMessageTypeName": message,
        "rootFileDescriptorName": root.name,
    }
    schema = PulsarApi_pb2.Schema(name="", schema_data=orjson.dumps(definition), type=_Schema.ProtobufNative)
    return _check(schema, file, _PROTOC_HINT)


def _find_message(files: FileDescriptorSet, message_name: str, file: str) -> tuple[FileDescriptorProto, str]:
    """Find ``message_name``, or the last file's only message. Return its file and its full name."""
    last = files.file[-1]  # protoc writes imports before the files that need them
    package = f"{last.package}." if last.package else ""
    names = [package + message.name for message in last.message_type]
    if not message_name and len(names) == 1:
        return last, names[0]
    for candidate in files.file:
        if message_name in protobuf.Types(type(files)(file=[candidate])).messages:
            return candidate, message_name
    problem = f"does not define {quote(message_name)}" if message_name else f"defines {len(names)} messages"
    examples = quote(", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else ""), MAX_REASON)
    raise ValueError(f"{quote(file)} {problem}: use protobuf:FILE:MESSAGE with one of {examples}")


def _with_imports(files: FileDescriptorSet, root: FileDescriptorProto, file: str) -> FileDescriptorSet:
    """Return ``root`` and its direct and indirect imports; a company's complete set would be too large."""
    by_name = {candidate.name: candidate for candidate in files.file}
    required = {root.name: root}
    unread = [root]
    while unread:
        importer = unread.pop()
        for name in importer.dependency:
            if name not in by_name:
                raise ValueError(f"{quote(file)} lacks the import {quote(name)}: {_PROTOC_HINT}")
            if name not in required:
                required[name] = by_name[name]
                unread.append(by_name[name])
    return type(files)(file=required.values())


def _key_value(kind: str, texts: str) -> PulsarApi_pb2.Schema:
    key, value = (parse_schema(half) for half in _split_pair(kind, texts))
    properties = {"kv.encoding.type": _KEY_VALUE_ENCODINGS[kind]}
    data = b""
    for half, schema in (("key", key), ("value", value)):
        if schema.type == _Schema.KeyValue and "SEPARATED" in [entry.value for entry in schema.properties]:
            raise ValueError(f"the {half} of {kind} cannot have a separate key: use keyvalue:KEY,VALUE in it")
        properties |= _properties_of(half, schema)
        data += len(schema.schema_data).to_bytes(4, "big") + schema.schema_data
    pair = PulsarApi_pb2.Schema(name="KeyValue", schema_data=data, type=_Schema.KeyValue)
    pair.properties.extend(PulsarApi_pb2.KeyValue(key=name, value=text) for name, text in properties.items())
    return pair


def _split_pair(kind: str, texts: str) -> tuple[str, str]:
    """Split the texts of both schemas at the first comma outside of a definition."""
    key_type, _, definition = texts.partition(":")
    if definition.startswith(_DEFINITION_STARTS) and "," not in key_type:
        try:
            _, end = json.JSONDecoder().raw_decode(definition)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the key of {kind} is not valid JSON: {reason(error)}; {_AVRO_HINT}") from None
        key, value = f"{key_type}:{definition[:end]}", definition[end:].lstrip()
        comma, value = value[:1], value[1:]
    else:
        key, comma, value = texts.partition(",")
    if comma != "," or not key or not value:
        raise ValueError(f"{quote(texts)} is not a pair of schemas: use {kind}:KEY,VALUE")
    return key, value


def _properties_of(half: str, schema: PulsarApi_pb2.Schema) -> dict[str, str]:
    """Return the properties that the Java client's KeyValueSchemaInfo writes for one of the two schemas."""
    own_properties = {entry.key: entry.value for entry in schema.properties}
    return {
        f"{half}.schema.name": schema.name,
        f"{half}.schema.type": _java_type(schema.type),
        f"{half}.schema.properties": json.dumps(own_properties, separators=(",", ":")),
    }


def _java_type(number: Any) -> str:
    """Return the name in Java's enum SchemaType: LOCAL_DATE for LocalDate."""
    name = _Schema.Type.Name(number)
    return {"None": "BYTES", "Bool": "BOOLEAN"}.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
