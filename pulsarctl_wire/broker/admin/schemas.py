"""Schemas in the admin API. Versions are numbers here, 8 bytes in the binary protocol."""

from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, Answer, Problem, Request, Route, parse_integer
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.schemas.kinds import TOPIC_TYPES, Schema
from pulsarctl_wire.broker.schemas.registry import StoredSchema
from pulsarctl_wire.wire.rest import encode_key_value_schema

_NAMES: Final = dict(enumerate(TOPIC_TYPES))
_TYPES: Final = {name: number for number, name in _NAMES.items()} | {"BYTES": 0}


def _definition(schema: Schema) -> str:
    """Return a schema's definition as answers have it: of KEY_VALUE, an object with both definitions."""
    data = schema.data
    if schema.type == _TYPES["KEY_VALUE"] and len(data) >= 4:
        # both definitions are texts of JSON, or empty
        size = max(int.from_bytes(data[:4], "big", signed=True), 0)
        key, remaining = data[4 : 4 + size], data[4 + size :]
        value = remaining[4:]
        texts = [part.decode(errors="replace") or '""' for part in (key, value)]
        return f'{{"key":{texts[0]},"value":{texts[1]}}}'
    return data.decode(errors="replace")


def _fields(version: StoredSchema) -> dict[str, Any]:
    return {
        "version": version.number,
        "type": _NAMES.get(version.schema.type, "NONE"),
        "timestamp": version.time_ms,
        "data": _definition(version.schema),
        "properties": version.schema.properties,
    }


def _read_schema(request: Request) -> Schema:
    """Return the schema in the body. Raises Problem."""
    fields = request.read_fields()
    kind, text, properties = fields.get("type"), fields.get("schema"), fields.get("properties") or {}
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Problem(500, f"No enum constant org.apache.pulsar.common.schema.SchemaType.{kind}")
    strings = [text, *properties.values()] if isinstance(properties, dict) else [None]
    if not all(isinstance(text, str) for text in strings):
        raise Problem(400, "The schema is not valid")
    data = str(text).encode("utf-8", "surrogatepass")
    if kind == "KEY_VALUE":
        try:
            data = encode_key_value_schema(str(text))
        except ValueError:
            raise Problem(422, "Invalid schema definition data for KEY_VALUE schema") from None
    return Schema(_TYPES[kind], data, properties)


def _strategy(request: Request) -> str:
    topic = request.topic_name
    policy = request.namespaces.get_policy(topic, "schema_compatibility_strategy")
    strategy: str = policy or request.cluster.settings.schemaCompatibilityStrategy
    return strategy


def _versions(request: Request) -> list[StoredSchema]:
    request.require_namespace()
    return request.cluster.schemas.get_versions(request.topic_name)


async def get_latest(request: Request) -> Answer:
    """Return the latest version of a topic's schema."""
    versions = _versions(request)
    if not versions:
        raise Problem(404, "Schema not found")
    return Answer(200, _fields(versions[-1]))


async def get_version(request: Request) -> Answer:
    """Return a version of a topic's schema."""
    number = parse_integer(request.parts["version"], MAX_LONG)
    for version in _versions(request):
        if version.number == number:
            return Answer(200, _fields(version))
    raise Problem(404, "Schema not found")


async def get_all(request: Request) -> Answer:
    """Return all versions of a topic's schema."""
    return Answer(200, {"getSchemaResponses": [_fields(version) for version in _versions(request)]})


async def list_versions(request: Request) -> Answer:
    """Return the numbers of all versions."""
    versions = _versions(request)
    if not versions:
        raise Problem(404, "Schema metadata not found")
    index = [{"ledgerId": 0, "entryId": version.number, "version": version.number} for version in versions]
    return Answer(200, {"info": index[-1], "index": index})


async def add(request: Request) -> Answer:
    """Add a version, unless there is one with this schema, or it is incompatible."""
    request.require_namespace()
    now_ms = request.broker.scheduler.time_ms
    name, schema = request.topic_name, _read_schema(request)
    try:
        version = request.cluster.schemas.add(name, schema, _strategy(request), now_ms)
    except Refused as refused:
        is_invalid = str(refused).startswith("Invalid schema")
        raise Problem(422 if is_invalid else 409, str(refused)) from None
    await request.finish()
    return Answer(200, {"version": {"version": version.number}})


async def delete(request: Request) -> Answer:
    """Delete all versions; answer with the version that marks the deletion, or -1 with force=true."""
    request.require_namespace()
    number = -1
    if request.get_flag("force"):
        request.cluster.schemas.delete(request.topic_name)
    else:
        number = request.cluster.schemas.retract(request.topic_name)
    await request.finish()
    return Answer(200, {"version": number})


async def check_compatibility(request: Request) -> Answer:
    """Check whether a schema could be the next version."""
    from pulsarctl_wire.broker.schemas.compatibility import explain_incompatibility

    strategy = _strategy(request)
    schemas = [version.schema for version in _versions(request)]
    reason = explain_incompatibility(schemas, _read_schema(request), strategy)
    if reason:
        raise Problem(500, reason)
    return Answer(202, {"schemaCompatibilityStrategy": strategy, "compatibility": True})


async def get_version_of(request: Request) -> Answer:
    """Return the number of the version with a schema; -1 if there is none."""
    request.require_namespace()
    version = request.cluster.schemas.find(request.topic_name, _read_schema(request))
    return Answer(200, {"version": -1 if version is None else version.number})


_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{_SCHEMAS}/schema", get_latest),
    ("POST", f"{_SCHEMAS}/schema", add),
    ("DELETE", f"{_SCHEMAS}/schema", delete),
    ("GET", f"{_SCHEMAS}/schema/{{version}}", get_version),
    ("GET", f"{_SCHEMAS}/schemas", get_all),
    ("GET", f"{_SCHEMAS}/metadata", list_versions),
    ("POST", f"{_SCHEMAS}/compatibility", check_compatibility),
    ("POST", f"{_SCHEMAS}/version", get_version_of),
)
