"""Schemas in the admin API. Versions are numbers here, 8 bytes in the binary protocol."""

import json
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, Answer, Problem, Request, Route, integer
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.schemas.compatibility import Schema, incompatible
from pulsarctl_wire.broker.schemas.compatibility import version_of as version_with
from pulsarctl_wire.broker.schemas.registry import Stored
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema as WireSchema

_NAMES: Final = {
    "NONE": "None",
    "STRING": "String",
    "JSON": "Json",
    "PROTOBUF": "Protobuf",
    "AVRO": "Avro",
    "BOOLEAN": "Bool",
    "INT8": "Int8",
    "INT16": "Int16",
    "INT32": "Int32",
    "INT64": "Int64",
    "FLOAT": "Float",
    "DOUBLE": "Double",
    "DATE": "Date",
    "TIME": "Time",
    "TIMESTAMP": "Timestamp",
    "KEY_VALUE": "KeyValue",
    "INSTANT": "Instant",
    "LOCAL_DATE": "LocalDate",
    "LOCAL_TIME": "LocalTime",
    "LOCAL_DATE_TIME": "LocalDateTime",
    "PROTOBUF_NATIVE": "ProtobufNative",
    "BYTES": "None",
}
_TYPES: Final[dict[str, int]] = {name: WireSchema.Type.Value(wire) for name, wire in _NAMES.items()}
_OF_TYPE: Final = {number: name for name, number in reversed(_TYPES.items())}


def _size(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big")


def _shown(schema: Schema) -> str:
    """Return a schema's definition, as JSON has it: of key and value, both."""
    data = schema.data
    if _OF_TYPE.get(schema.type) == "KEY_VALUE" and len(data) >= 4:
        # both definitions are texts of JSON, or empty
        size = max(int.from_bytes(data[:4], "big", signed=True), 0)
        key, rest = data[4 : 4 + size], data[4 + size :]
        value = rest[4:]
        texts = [each.decode(errors="replace") or '""' for each in (key, value)]
        return f'{{"key":{texts[0]},"value":{texts[1]}}}'
    return data.decode(errors="replace")


def _told(stored: Stored) -> dict[str, Any]:
    return {
        "version": stored.number,
        "type": _OF_TYPE.get(stored.schema.type, "NONE"),
        "timestamp": stored.time_ms,
        "data": _shown(stored.schema),
        "properties": stored.schema.properties,
    }


def _posted(request: Request) -> Schema:
    """Return the schema in the body. Raises Problem."""
    fields = request.fields()
    kind, text, properties = fields.get("type"), fields.get("schema"), fields.get("properties") or {}
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Problem(500, f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind}")
    strings = [text, *properties.values()] if isinstance(properties, dict) else [None]
    if not all(isinstance(each, str) for each in strings):
        raise Problem(400, "The schema is not valid")
    data = str(text).encode("utf-8", "surrogatepass")
    if kind == "KEY_VALUE":
        data = _key_value(str(text))
    return Schema(_TYPES[kind], data, properties)


def _key_value(text: str) -> bytes:
    """Return two definitions in one: {"key": …, "value": …}. Raises Problem."""
    try:
        parts = json.loads(text)
        pair = [parts["key"], parts["value"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Problem(422, "Invalid schema definition data for KEY_VALUE schema") from None
    texts = ["" if each == "" else json.dumps(each, separators=(",", ":")) for each in pair]
    return b"".join(_size(each.encode()) + each.encode() for each in texts)


def _strategy(request: Request) -> str:
    topic = request.topic_name
    found = request.namespaces.get_policy(topic, "schema_compatibility_strategy")
    strategy: str = found or request.cluster.settings.schemaCompatibilityStrategy
    return strategy


def _versions(request: Request) -> list[Stored]:
    _ = request.namespace
    return request.cluster.schemas.versions(request.topic_name)


async def get(request: Request) -> Answer:
    """Return the latest version of a topic's schema."""
    versions = _versions(request)
    if not versions:
        raise Problem(404, "Schema not found")
    return Answer(200, _told(versions[-1]))


async def get_version(request: Request) -> Answer:
    """Return a version of a topic's schema."""
    wanted = integer(request.named["version"], MAX_LONG)
    for each in _versions(request):
        if each.number == wanted:
            return Answer(200, _told(each))
    raise Problem(404, "Schema not found")


async def get_all(request: Request) -> Answer:
    """Return all versions of a topic's schema."""
    return Answer(200, {"getSchemaResponses": [_told(each) for each in _versions(request)]})


async def metadata(request: Request) -> Answer:
    """Return which versions there are."""
    versions = _versions(request)
    if not versions:
        raise Problem(404, "Schema metadata not found")
    index = [{"ledgerId": 0, "entryId": each.number, "version": each.number} for each in versions]
    return Answer(200, {"info": index[-1], "index": index})


async def post(request: Request) -> Answer:
    """Add a version, unless there is one with this schema, or it is not compatible."""
    _ = request.namespace
    now = request.broker.scheduler.time_ms
    name, schema = request.topic_name, _posted(request)
    try:
        stored = request.cluster.schemas.add(name, schema, _strategy(request), now)
    except Refused as refused:
        invalid = str(refused).startswith("Invalid schema")
        raise Problem(422 if invalid else 409, str(refused)) from None
    await request.done()
    return Answer(200, {"version": {"version": stored.number}})


async def delete(request: Request) -> Answer:
    """Delete all versions; answers the number of the deletion."""
    _ = request.namespace
    number = -1
    if request.flag("force"):
        request.cluster.schemas.delete(request.topic_name)
    else:
        number = request.cluster.schemas.retract(request.topic_name)
    await request.done()
    return Answer(200, {"version": number})


async def compatibility(request: Request) -> Answer:
    """Return whether a schema could be the next version."""
    strategy = _strategy(request)
    schemas = [each.schema for each in _versions(request)]
    why = incompatible(schemas, _posted(request), strategy)
    if why:
        raise Problem(500, why)
    return Answer(202, {"schemaCompatibilityStrategy": strategy, "compatibility": True})


async def version_of(request: Request) -> Answer:
    """Return the version that has a schema; -1 if none has."""
    versions = _versions(request)
    found = version_with([each.schema for each in versions], _posted(request))
    return Answer(200, {"version": -1 if found is None else versions[found].number})


_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{_SCHEMAS}/schema", get),
    ("POST", f"{_SCHEMAS}/schema", post),
    ("DELETE", f"{_SCHEMAS}/schema", delete),
    ("GET", f"{_SCHEMAS}/schema/{{version}}", get_version),
    ("GET", f"{_SCHEMAS}/schemas", get_all),
    ("GET", f"{_SCHEMAS}/metadata", metadata),
    ("POST", f"{_SCHEMAS}/compatibility", compatibility),
    ("POST", f"{_SCHEMAS}/version", version_of),
)
