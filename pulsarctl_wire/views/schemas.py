"""The schema a user names on the command line, for topics whose schema was not captured."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.views import avro, protobuf
from pulsarctl_wire.views.cache import MAX_SCHEMA
from pulsarctl_wire.views.content import MAX_REASON, quoted, reason
from pulsarctl_wire.views.values import base64_text
from pulsarctl_wire.wire import PulsarApi_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_Schema = PulsarApi_pb2.Schema

_PLAIN = (
    *("None", "String", "Json", "Bool", "Int8", "Int16", "Int32", "Int64", "Float", "Double"),
    *("Date", "Time", "Timestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime"),
)
_BY_NAME: dict[str, Any] = {name.lower(): _Schema.Type.Value(name) for name in _PLAIN}
_BY_NAME["bytes"] = _BY_NAME["none"]  # the Java client's Schema.BYTES, which it sends as no schema at all
_JAVA_NAMES = {"none": "Bytes", "bytes": "Bytes", "json": "", "bool": "Boolean"}
_JAVA_NAMES |= {name: name.upper() for name in ("int8", "int16", "int32", "int64")}
"""Names that the Java client gives its schemas, where they are not those of the types."""

_PAIRS = {"keyvalue": "INLINE", "keyvalue-separated": "SEPARATED"}
_CHOICE = (
    f"use avro:FILE, protobuf:FILE[:MESSAGE], or one of {', '.join(_BY_NAME)}; "
    "also json:FILE, and keyvalue:KEY,VALUE or keyvalue-separated:KEY,VALUE of two such schemas"
)
_PROTOC = "write it with protoc --include_imports --descriptor_set_out=FILE"
_DEFINES = ("{", "[", '"')  # what a definition begins with, and hardly any file's name
_RECORD = "give an Avro schema in JSON"
_MAX_FILE = 16 * MAX_SCHEMA
_SOME = 8  # messages named in an error


def parse_schema(spec: str) -> PulsarApi_pb2.Schema:
    """The schema that ``TYPE``, ``TYPE:FILE`` or ``TYPE:DEFINITION`` means, as the Java client would send it.

    ``json``, ``string``, ``int64`` and the other plain types need no file; ``bytes`` and ``none`` mean no
    schema. ``avro:FILE`` takes an Avro schema in JSON, and so does ``json:FILE``: it describes the JSON. In
    both a text that begins with ``{``, ``[`` or ``"`` is the definition itself. ``protobuf:FILE`` and
    ``protobuf:FILE:package.Message`` take a FileDescriptorSet as ``protoc --include_imports
    --descriptor_set_out=FILE`` writes it. ``keyvalue:KEY,VALUE`` (INLINE) and
    ``keyvalue-separated:KEY,VALUE`` take two of those; the key's file has no comma in its name.

    Reads the file. ValueError, one line that names cause and way out, when the type is unknown or
    the file cannot be read or used.
    """
    kind, _, file = spec.partition(":")
    kind = kind.lower()
    if kind in ("avro", "protobuf"):
        if not file:
            raise ValueError(f"schema {quoted(spec)} names no file: use {kind}:FILE")
        return _avro(file, _Schema.Avro) if kind == "avro" else _protobuf(file)
    if kind == "json" and file:
        return _avro(file, _Schema.Json)
    if kind in _PAIRS and file:
        return _key_value(kind, file)
    if kind not in _BY_NAME:
        raise ValueError(f"unknown schema type {quoted(kind)}: {_CHOICE}")
    if file:
        raise ValueError(f"the schema type {kind} takes no file: use just {kind}")
    number = _BY_NAME[kind]
    name = _JAVA_NAMES.get(kind, _Schema.Type.Name(number))
    return PulsarApi_pb2.Schema(name=name, schema_data=b"", type=number)


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            data = opened.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) else "no file has such a name"
        raise ValueError(f"cannot read the schema {quoted(file)}: {why}; check the path") from None
    if len(data) > _MAX_FILE:
        raise ValueError(f"{quoted(file)} has more than {_MAX_FILE} bytes: is it a schema?")
    return data


def _checked(schema: PulsarApi_pb2.Schema, file: str, way_out: str) -> PulsarApi_pb2.Schema:
    view = protobuf if schema.type == _Schema.ProtobufNative else avro
    if len(schema.schema_data) > MAX_SCHEMA:
        raise ValueError(f"{quoted(file)} makes a schema of more than {MAX_SCHEMA} bytes: {way_out}")
    try:
        view.compile_schema(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{quoted(file)} cannot be used: {reason(error)}; {way_out}") from None
    return schema


def _avro(given: str, kind: Any) -> PulsarApi_pb2.Schema:
    data = given.encode("utf-8", "surrogateescape") if given.startswith(_DEFINES) else _read(given)
    schema = PulsarApi_pb2.Schema(name="", schema_data=data, type=kind)
    return _checked(schema, given, _RECORD)


def _protobuf(spec: str) -> PulsarApi_pb2.Schema:
    import orjson

    file, wanted = spec, ""
    # A colon may belong to the path, so a file of that whole name comes first.
    if ":" in spec and not os.path.exists(spec):
        file, _, wanted = spec.rpartition(":")
    files = _descriptors(file)
    root, message = _root(files, wanted, file)
    needed = _with_imports(files, root, file)
    described = {
        "fileDescriptorSet": base64_text(needed.SerializePartialToString()),
        "rootMessageTypeName": message,
        "rootFileDescriptorName": root.name,
    }
    schema = PulsarApi_pb2.Schema(name="", schema_data=orjson.dumps(described), type=_Schema.ProtobufNative)
    return _checked(schema, file, _PROTOC)


def _descriptors(file: str) -> FileDescriptorSet:
    data = _read(file)
    try:
        return protobuf.read_descriptors(data)
    except ValueError:
        raise ValueError(f"{quoted(file)} holds no Protobuf descriptors: {_PROTOC}") from None


def _root(files: FileDescriptorSet, wanted: str, file: str) -> tuple[FileDescriptorProto, str]:
    """The descriptor and full name of the message ``wanted``, or of the last file's only message."""
    last = files.file[-1]  # protoc puts imports before the files that need them
    package = f"{last.package}." if last.package else ""
    names = [package + message.name for message in last.message_type]
    if not wanted and len(names) == 1:
        return last, names[0]
    for found in files.file:
        if wanted in protobuf.Types(type(files)(file=[found])).messages:
            return found, wanted
    problem = f"does not define {quoted(wanted)}" if wanted else f"defines {len(names)} messages"
    some = quoted(", ".join(names[:_SOME]) + (", ..." if len(names) > _SOME else ""), MAX_REASON)
    raise ValueError(f"{quoted(file)} {problem}: name one as protobuf:FILE:MESSAGE, out of {some}")


def _with_imports(files: FileDescriptorSet, root: FileDescriptorProto, file: str) -> FileDescriptorSet:
    """``root`` and what it imports, directly or not: a company's whole set would be too large."""
    by_name = {found.name: found for found in files.file}
    needed = {root.name: root}
    unread = [root]
    while unread:
        importing = unread.pop()
        for name in importing.dependency:
            if name not in by_name:
                raise ValueError(f"{quoted(file)} lacks {quoted(name)}, which is imported: {_PROTOC}")
            if name not in needed:
                needed[name] = by_name[name]
                unread.append(by_name[name])
    return type(files)(file=needed.values())


def _key_value(kind: str, given: str) -> PulsarApi_pb2.Schema:
    key, value = (parse_schema(half) for half in _halves(kind, given))
    properties = {"kv.encoding.type": _PAIRS[kind]}
    data = b""
    for half, schema in (("key", key), ("value", value)):
        if schema.type == _Schema.KeyValue and "SEPARATED" in [entry.value for entry in schema.properties]:
            raise ValueError(
                f"the {half} of {kind} has no place for a separate key: use keyvalue:KEY,VALUE in it"
            )
        properties |= _described(half, schema)
        data += len(schema.schema_data).to_bytes(4, "big") + schema.schema_data
    made = PulsarApi_pb2.Schema(name="KeyValue", schema_data=data, type=_Schema.KeyValue)
    made.properties.extend(PulsarApi_pb2.KeyValue(key=name, value=text) for name, text in properties.items())
    return made


def _halves(kind: str, given: str) -> tuple[str, str]:
    """The texts of both schemas: the first comma parts them that is no part of a definition."""
    schema, _, rest = given.partition(":")
    if rest.startswith(_DEFINES) and "," not in schema:
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the key of {kind} is no JSON: {reason(error)}; {_RECORD}") from None
        key, value = f"{schema}:{rest[:end]}", rest[end:].lstrip()
        comma, value = value[:1], value[1:]
    else:
        key, comma, value = given.partition(",")
    if comma != "," or not key or not value:
        raise ValueError(f"{quoted(given)} is not a key's and a value's schema: use {kind}:KEY,VALUE")
    return key, value


def _described(half: str, schema: PulsarApi_pb2.Schema) -> dict[str, str]:
    """What the Java client's KeyValueSchemaInfo writes of a key's or a value's schema."""
    own = {entry.key: entry.value for entry in schema.properties}
    return {
        f"{half}.schema.name": schema.name,
        f"{half}.schema.type": _java_type(schema.type),
        f"{half}.schema.properties": json.dumps(own, separators=(",", ":")),
    }


def _java_type(number: Any) -> str:
    """The name in Java's enum SchemaType: LOCAL_DATE for LocalDate."""
    name = _Schema.Type.Name(number)
    return {"None": "BYTES", "Bool": "BOOLEAN"}.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
