"""The contents of schemas other than Avro's. Source: KeyValueSchemaInfo, ProtobufNativeSchemaUtils (4.0).

JSON schemas were written in the form of jackson-module-jsonSchema before Pulsar 2.2.

All functions raise JavaError where the real broker meets an unexpected exception.
"""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from pulsarctl_wire.broker.schemas.avro import JavaError
from pulsarctl_wire.views.cache import schema_json
from pulsarctl_wire.views.encoding.protobuf import order_files

TOPIC_TYPES: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT"),
    *("DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME"),
    *("LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""The broker's names of schema types, at Schema.Type's numbers."""

CLIENT_TYPES: Final = ("AUTO", "AUTO_CONSUME", "AUTO_PUBLISH")
"""Names of types that only clients use."""

_JSON_TYPES: Final = ("any", "array", "boolean", "integer", "null", "number", "object", "string")


class SchemaPart(NamedTuple):
    """A schema, or the key or value part of a KEY_VALUE schema; `kind` is the broker's name of its type."""

    kind: str
    data: bytes
    properties: dict[str, str]


def split_key_value(part: SchemaPart) -> tuple[SchemaPart, SchemaPart]:
    """Return the key and value schemas of a KEY_VALUE schema; data: size, key's, size, value's."""
    parts: list[SchemaPart] = []
    rest = part.data
    for role in ("key", "value"):
        size = int.from_bytes(rest[:4], "big", signed=True)
        if not -1 <= size <= len(rest) - 4:
            raise JavaError("java.nio.BufferUnderflowException")
        kind = part.properties.get(f"{role}.schema.type", "BYTES")
        if kind not in TOPIC_TYPES and kind != "BYTES" and kind not in CLIENT_TYPES:
            raise JavaError(f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind[:100]}")
        end = 4 + max(size, 0)  # -1: null
        parts.append(
            SchemaPart(kind, rest[4:end], _properties(part.properties.get(f"{role}.schema.properties")))
        )
        rest = rest[end:]
    return parts[0], parts[1]


def _properties(text: str | None) -> dict[str, str]:
    try:
        value = schema_json(text or "{}")
    except ValueError as error:
        raise JavaError(f"com.google.gson.JsonSyntaxException: {error}") from None
    if not isinstance(value, dict | None):
        raise JavaError("com.google.gson.JsonSyntaxException: Not a JSON Object")
    return {key: item if isinstance(item, str) else json.dumps(item) for key, item in (value or {}).items()}


def is_old_json(data: bytes) -> bool:
    """Return whether a schema has the form of JSON schemas before Pulsar 2.2."""
    try:
        value = schema_json(data)
    except ValueError:
        return False
    return value is None or (isinstance(value, dict) and value.get("type") in _JSON_TYPES)


def find_root_message(data: bytes) -> str:
    """Return the full name of the root message of a PROTOBUF_NATIVE schema."""
    try:
        definition = schema_json(data)
        files = FileDescriptorSet.FromString(b64decode(definition["fileDescriptorSet"], validate=True))
        pool = DescriptorPool()
        for file in order_files(files):
            pool.AddSerializedFile(file.SerializeToString())
        pool.FindFileByName(definition["rootFileDescriptorName"])
        return str(pool.FindMessageTypeByName(definition["rootMessageTypeName"]).full_name)
    except Exception as error:  # protobuf raises several kinds for a bad descriptor
        raise JavaError(f"deserialize ProtobufNative Schema failed: {type(error).__name__}") from None
