"""The schema a user names on the command line, for topics whose schema was not captured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.views import avro, protobuf
from pulsarctl_wire.views.cache import MAX_SCHEMA
from pulsarctl_wire.views.content import MAX_REASON, quoted, reason
from pulsarctl_wire.views.values import base64_text
from pulsarctl_wire.wire import PulsarApi_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

_PLAIN = (
    *("None", "String", "Json", "Bool", "Int8", "Int16", "Int32", "Int64", "Float", "Double"),
    *("Date", "Time", "Timestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime"),
)
_BY_NAME: dict[str, Any] = {name.lower(): PulsarApi_pb2.Schema.Type.Value(name) for name in _PLAIN}
_CHOICE = f"use avro:FILE, protobuf:FILE[:MESSAGE], or one of {', '.join(_BY_NAME)}"
_PROTOC = "write it with protoc --include_imports --descriptor_set_out=FILE"
_MAX_FILE = 16 * MAX_SCHEMA
_SOME = 8  # messages named in an error


def parse_schema(spec: str) -> PulsarApi_pb2.Schema:
    """The schema that ``TYPE`` or ``TYPE:FILE`` means.

    ``json``, ``string``, ``int64`` and the other plain types need no file. ``avro:FILE`` takes an
    Avro schema in JSON; ``protobuf:FILE`` and ``protobuf:FILE:package.Message`` take a
    FileDescriptorSet as ``protoc --include_imports --descriptor_set_out=FILE`` writes it.

    Reads the file. ValueError, one line that names cause and way out, when the type is unknown or
    the file cannot be read or used.
    """
    kind, _, file = spec.partition(":")
    kind = kind.lower()
    if kind in ("avro", "protobuf"):
        if not file:
            raise ValueError(f"schema {quoted(spec)} names no file: use {kind}:FILE")
        return _avro(file) if kind == "avro" else _protobuf(file)
    if kind not in _BY_NAME:
        raise ValueError(f"unknown schema type {quoted(kind)}: {_CHOICE}")
    if file:
        raise ValueError(f"the schema type {kind} takes no file: use just {kind}")
    return PulsarApi_pb2.Schema(name=kind, schema_data=b"", type=_BY_NAME[kind])


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
    view = avro if schema.type == PulsarApi_pb2.Schema.Avro else protobuf
    if len(schema.schema_data) > MAX_SCHEMA:
        raise ValueError(f"{quoted(file)} makes a schema of more than {MAX_SCHEMA} bytes: {way_out}")
    try:
        view.compile_schema(schema)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{quoted(file)} cannot be used: {reason(error)}; {way_out}") from None
    return schema


def _avro(file: str) -> PulsarApi_pb2.Schema:
    schema = PulsarApi_pb2.Schema(name="avro", schema_data=_read(file), type=PulsarApi_pb2.Schema.Avro)
    return _checked(schema, file, "give an Avro schema in JSON")


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
        "fileDescriptorSet": base64_text(needed.SerializeToString()),
        "rootMessageTypeName": message,
        "rootFileDescriptorName": root.name,
    }
    native = PulsarApi_pb2.Schema.ProtobufNative
    schema = PulsarApi_pb2.Schema(name=message, schema_data=orjson.dumps(described), type=native)
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
