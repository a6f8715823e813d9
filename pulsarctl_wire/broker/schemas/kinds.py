"""What schemas other than Avro's consist of. Source: KeyValueSchemaInfo, ProtobufNativeSchemaUtils (4.0).

JSON schemas were written in the form of jackson-module-jsonSchema before Pulsar 2.2.

All functions raise avro_schema.Failed where the broker meets an exception that it does not expect.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from pulsarctl_wire.broker.schemas.avro import Failed, read_json

STORED: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT"),
    *("DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME"),
    *("LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""The broker's names of schema types, at Schema.Type's numbers."""

CLIENTS: Final = ("AUTO", "AUTO_CONSUME", "AUTO_PUBLISH")
"""Names of types that are no topic's."""

_JSON_TYPES: Final = ("any", "array", "boolean", "integer", "null", "number", "object", "string")
_JSON_TEXTS: Final = ("id", "$ref", "$schema", "description", "title")


class Part(NamedTuple):
    """A schema, or the key's or value's of a KEY_VALUE schema; `kind` is the broker's name of its type."""

    kind: str
    data: bytes
    properties: dict[str, str]
    is_null: bool = False  # instead of the data, which is empty


def key_and_value(part: Part) -> tuple[Part, Part]:
    """Return the key and value schemas of a KEY_VALUE schema; data: size, key's, size, value's."""
    parts: list[Part] = []
    begin = 0
    for which in ("key", "value"):
        begin += 4
        if begin > len(part.data):
            raise Failed("java.nio.BufferUnderflowException")
        size = max(int.from_bytes(part.data[begin - 4 : begin], "big", signed=True), -2)
        if size == -2 or begin + size > len(part.data):
            raise Failed(
                "java.lang.NegativeArraySizeException" if size < 0 else "java.nio.BufferUnderflowException"
            )
        is_null, size = size < 0, max(size, 0)
        kind = part.properties.get(f"{which}.schema.type", "BYTES")
        if kind not in STORED and kind != "BYTES" and kind not in CLIENTS:
            raise Failed(f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind[:100]}")
        properties = _properties(part.properties.get(f"{which}.schema.properties", ""))
        parts.append(Part(kind, part.data[begin : begin + size], properties, is_null))
        begin += size
    return parts[0], parts[1]


def _properties(text: str) -> dict[str, str]:
    try:
        found = read_json(text.encode(errors="replace"))[0] if text else None
    except ValueError as error:
        raise Failed(f"com.google.gson.JsonSyntaxException: {error}") from None
    if not isinstance(found, dict | None) or any(
        isinstance(it, dict | list | None) for it in (found or {}).values()
    ):
        raise Failed("com.google.gson.JsonSyntaxException: Not a JSON Object")
    return {key: it if isinstance(it, str) else json.dumps(it) for key, it in (found or {}).items()}


# -- the old form of JSON schemas


def old_json(data: bytes) -> dict[str, Any] | None:
    """Return what a JSON schema of the old form says, which may be null. Raises ValueError if it is none."""
    value, _ = read_json(data)
    if isinstance(value, list) and 1 <= len(value) <= 2 and isinstance(value[0], str):
        kind: Any = value[0]
        value = value[1] if len(value) > 1 else None  # [type, schema]; [type] is null
        value = {**value, "type": kind} if isinstance(value, dict) else value
    else:
        kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str | int | float) and kind not in _JSON_TYPES:
        raise Failed(f"Can not resolve JsonSchema 'type' id of \"{str(kind)[:100]}\"")
    if value is None:
        return None
    _check_old(value)
    found: dict[str, Any] = value
    return found


def old_id(value: dict[str, Any] | None) -> str | None:
    """Return the id of a JSON schema of the old form."""
    if value is None:
        raise Failed("java.lang.NullPointerException")
    found = value.get("id")
    return found if isinstance(found, str | None) else json.dumps(found)


def _check_old(value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") not in _JSON_TYPES:
        raise ValueError("missing type id property 'type'")
    if any(isinstance(value.get(key), dict | list) for key in _JSON_TEXTS):
        raise ValueError("it has no text where one must be")
    inner: list[Any] = []
    if value["type"] == "object":
        properties = {} if value.get("properties") is None else value["properties"]
        if not isinstance(properties, dict):
            raise ValueError("properties is no object")
        inner = [each for each in properties.values() if each is not None]
    elif value["type"] == "array" and value.get("items") is not None:
        inner = value["items"] if isinstance(value["items"], list) else [value["items"]]
    for each in inner:
        _check_old(each)


# -- protobuf


def root_message(data: bytes) -> str:
    """Return the full name of the root message of a PROTOBUF_NATIVE schema."""
    try:
        found = read_json(data)[0]
        name, root = found["rootMessageTypeName"], found["rootFileDescriptorName"]
        files = FileDescriptorSet.FromString(b64decode(found["fileDescriptorSet"], validate=True))
        return str(_message({each.name: each for each in files.file}, root, name).full_name)
    except (binascii.Error, Failed) as error:
        raise Failed(f"deserialize ProtobufNative Schema failed: {error}") from None
    except Exception as error:  # protobuf says with several what is wrong with a descriptor
        raise Failed(f"deserialize ProtobufNative Schema failed: {type(error).__name__}") from None


def _message(files: dict[str, FileDescriptorProto], root: str, name: str) -> Descriptor:
    pool = DescriptorPool()
    waiting, begun = [root], {root}
    while waiting:
        file = files[waiting[-1]]
        needed = [each for each in file.dependency if each not in begun]
        if needed:
            waiting.append(needed[0])
            begun.add(needed[0])
            continue
        waiting.pop()
        pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindFileByName(root)
    # The package is taken for a pattern, and without one the first dot of the name is lost.
    path = re.sub(descriptor.package, "", name, count=1).replace(".", "", 1).split(".")
    message = descriptor.message_types_by_name[path[0]]
    for each in path[1:]:
        message = message.nested_types_by_name[each]
    return message
