"""The contents of schemas other than Avro's. Source: KeyValueSchemaInfo, ProtobufNativeSchemaUtils (4.0).

JSON schemas were written in the form of jackson-module-jsonSchema before Pulsar 2.2.

All functions raise JavaError where the real broker meets an unexpected exception.
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

from pulsarctl_wire.broker.schemas.avro import JavaError, read_json

TOPIC_TYPES: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT"),
    *("DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME"),
    *("LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""The broker's names of schema types, at Schema.Type's numbers."""

CLIENT_TYPES: Final = ("AUTO", "AUTO_CONSUME", "AUTO_PUBLISH")
"""Names of types that only clients use."""

_JSON_TYPES: Final = ("any", "array", "boolean", "integer", "null", "number", "object", "string")
_JSON_TEXTS: Final = ("id", "$ref", "$schema", "description", "title")


class SchemaPart(NamedTuple):
    """A schema, or the key or value part of a KEY_VALUE schema; `kind` is the broker's name of its type."""

    kind: str
    data: bytes
    properties: dict[str, str]
    is_null: bool = False  # null instead of empty data


def split_key_value(part: SchemaPart) -> tuple[SchemaPart, SchemaPart]:
    """Return the key and value schemas of a KEY_VALUE schema; data: size, key's, size, value's."""
    parts: list[SchemaPart] = []
    start = 0
    for role in ("key", "value"):
        start += 4
        if start > len(part.data):
            raise JavaError("java.nio.BufferUnderflowException")
        size = max(int.from_bytes(part.data[start - 4 : start], "big", signed=True), -2)
        if size == -2 or start + size > len(part.data):
            raise JavaError(
                "java.lang.NegativeArraySizeException" if size < 0 else "java.nio.BufferUnderflowException"
            )
        is_null, size = size < 0, max(size, 0)
        kind = part.properties.get(f"{role}.schema.type", "BYTES")
        if kind not in TOPIC_TYPES and kind != "BYTES" and kind not in CLIENT_TYPES:
            raise JavaError(f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind[:100]}")
        properties = _properties(part.properties.get(f"{role}.schema.properties", ""))
        parts.append(SchemaPart(kind, part.data[start : start + size], properties, is_null))
        start += size
    return parts[0], parts[1]


def _properties(text: str) -> dict[str, str]:
    try:
        value = read_json(text.encode(errors="replace"))[0] if text else None
    except ValueError as error:
        raise JavaError(f"com.google.gson.JsonSyntaxException: {error}") from None
    if not isinstance(value, dict | None) or any(
        isinstance(item, dict | list | None) for item in (value or {}).values()
    ):
        raise JavaError("com.google.gson.JsonSyntaxException: Not a JSON Object")
    return {key: item if isinstance(item, str) else json.dumps(item) for key, item in (value or {}).items()}


# -- the old form of JSON schemas


def parse_old_json(data: bytes) -> dict[str, Any] | None:
    """Return a JSON schema of the old form, which may be null. Raises ValueError if it is not one."""
    value, _ = read_json(data)
    if isinstance(value, list) and 1 <= len(value) <= 2 and isinstance(value[0], str):
        kind: Any = value[0]
        value = value[1] if len(value) > 1 else None  # [type, schema]; [type] is null
        value = {**value, "type": kind} if isinstance(value, dict) else value
    else:
        kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str | int | float) and kind not in _JSON_TYPES:
        raise JavaError(f"Can not resolve JsonSchema 'type' id of \"{str(kind)[:100]}\"")
    if value is None:
        return None
    _check_old_json(value)
    schema: dict[str, Any] = value
    return schema


def get_old_id(value: dict[str, Any] | None) -> str | None:
    """Return the id of a JSON schema of the old form."""
    if value is None:
        raise JavaError("java.lang.NullPointerException")
    schema_id = value.get("id")
    return schema_id if isinstance(schema_id, str | None) else json.dumps(schema_id)


def _check_old_json(value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") not in _JSON_TYPES:
        raise ValueError("missing type id property 'type'")
    if any(isinstance(value.get(key), dict | list) for key in _JSON_TEXTS):
        raise ValueError("it has no text where one must be")
    inner: list[Any] = []
    if value["type"] == "object":
        properties = {} if value.get("properties") is None else value["properties"]
        if not isinstance(properties, dict):
            raise ValueError("properties is no object")
        inner = [item for item in properties.values() if item is not None]
    elif value["type"] == "array" and value.get("items") is not None:
        inner = value["items"] if isinstance(value["items"], list) else [value["items"]]
    for item in inner:
        _check_old_json(item)


# -- protobuf


def find_root_message(data: bytes) -> str:
    """Return the full name of the root message of a PROTOBUF_NATIVE schema."""
    try:
        definition = read_json(data)[0]
        name, root = definition["rootMessageTypeName"], definition["rootFileDescriptorName"]
        files = FileDescriptorSet.FromString(b64decode(definition["fileDescriptorSet"], validate=True))
        return str(_message({file.name: file for file in files.file}, root, name).full_name)
    except (binascii.Error, JavaError) as error:
        raise JavaError(f"deserialize ProtobufNative Schema failed: {error}") from None
    except Exception as error:  # protobuf raises several kinds for a bad descriptor
        raise JavaError(f"deserialize ProtobufNative Schema failed: {type(error).__name__}") from None


def _message(files: dict[str, FileDescriptorProto], root: str, name: str) -> Descriptor:
    pool = DescriptorPool()
    stack, visited = [root], {root}
    while stack:
        file = files[stack[-1]]
        imports = [name for name in file.dependency if name not in visited]
        if imports:
            stack.append(imports[0])
            visited.add(imports[0])
            continue
        stack.pop()
        pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindFileByName(root)
    # Java takes the package for a pattern; without one it drops the first dot of the name.
    path = re.sub(descriptor.package, "", name, count=1).replace(".", "", 1).split(".")
    message = descriptor.message_types_by_name[path[0]]
    for part in path[1:]:
        message = message.nested_types_by_name[part]
    return message
