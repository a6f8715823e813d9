"""The schemas of topics, by version. Source: schema/SchemaRegistryServiceImpl, BookkeeperSchemaStorage (4.0).

Stored as rows of "schemas": tenant/namespace/topic -> {"versions": [{type, data, properties, time}]}. A
version that deleted all before it is null.
"""

from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.schemas.kinds import Kind, Schema
from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema as WireSchema

_LAST_TYPE: Final = WireSchema.AutoConsume


class StoredSchema(NamedTuple):
    """A version of a topic's schema."""

    number: int
    schema: Schema
    time_ms: int

    @property
    def version(self) -> bytes:
        """The version as sent to clients."""
        return self.number.to_bytes(8, "big")

    def to_wire(self, name: str) -> dict[str, Any]:
        """Return the fields of a Schema."""
        pairs = [{"key": key, "value": value} for key, value in self.schema.properties.items()]
        return {"name": name, "schema_data": self.schema.data, "type": self.schema.type, "properties": pairs}


def from_wire(schema: WireSchema) -> Schema:
    """Return the schema that was received."""
    properties = {as_text(pair.key): as_text(pair.value) for pair in schema.properties}
    return Schema(schema.type, schema.schema_data, properties)


def check_wire(schema: WireSchema) -> None:
    """Raise Violation if Pulsar cannot read a schema: it repeats a property, or its type is unknown."""
    if len({pair.key for pair in schema.properties}) < len(schema.properties) or schema.type > _LAST_TYPE:
        raise Violation("a schema that cannot be read")


class SchemaRefused(Refused):
    """A refused schema."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(
            "IncompatibleSchema" if kind in ("incompatible", "invalid") else "UnknownError", text
        )
        self.kind = kind

    def as_java_refusal(self) -> "SchemaRefused":
        """Return the refusal with the text in answers to PRODUCER and GET_OR_CREATE_SCHEMA."""
        if self.kind != "incompatible":
            return self
        text = f"org.apache.pulsar.broker.service.schema.exceptions.IncompatibleSchemaException: {self}"
        return SchemaRefused(self.kind, f"{text} caused by {text}")


class Schemas:
    """The schemas of all topics."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows = journal.table("schemas")

    def get_versions(self, name: TopicName) -> list[StoredSchema]:
        """Return the versions of a topic's schema that are not deleted, the oldest first."""
        rows = list(enumerate(self._rows.get(name.schema_key, {"versions": []})["versions"]))
        last_deletion = max((number for number, row in rows if row is None), default=-1)
        return [_load(number, row) for number, row in rows[last_deletion + 1 :]]

    def get_latest(self, name: TopicName) -> StoredSchema | None:
        """Return the latest version, with an empty schema if it deleted the others; None if there is none."""
        rows = self._rows.get(name.schema_key, {"versions": []})["versions"]
        if not rows:
            return None
        last = len(rows) - 1
        return StoredSchema(last, Schema(0, b"", {}), 0) if rows[-1] is None else _load(last, rows[-1])

    def get(self, name: TopicName, version: bytes = b"") -> StoredSchema | None:
        """Return a version of a topic's schema, by default the latest; None if it is missing or deleted."""
        versions = self.get_versions(name)
        if not version:
            return versions[-1] if versions else None
        number = int.from_bytes(version, "big", signed=True)
        return next((item for item in versions if item.number == number), None)

    def add(self, name: TopicName, schema: Schema, strategy: str, time_ms: int) -> StoredSchema:
        """Return the version with this schema; add one if those before allow it. Raises SchemaRefused."""
        versions = self.get_versions(name)
        schemas = [version.schema for version in versions]
        _check(schemas, schema, strategy)
        index = _find(schemas, schema)
        if index is not None:
            return versions[index]
        row = {
            "type": schema.type,
            "data": b64encode(schema.data).decode(),
            "properties": schema.properties,
            "time": time_ms,
        }
        rows = self._rows.get(name.schema_key, {"versions": []})["versions"]
        self._journal.put("schemas", name.schema_key, {"versions": [*rows, row]})
        return _load(len(rows), row)

    def check(self, name: TopicName, schema: Schema, strategy: str) -> None:
        """Raise SchemaRefused if a consumer with this schema cannot read the topic's messages."""
        versions = [version.schema for version in self.get_versions(name)]
        _check(versions, schema, strategy, consumer=True)

    def find(self, name: TopicName, schema: Schema) -> StoredSchema | None:
        """Return the version with this schema, if there is one."""
        versions = self.get_versions(name)
        index = _find([version.schema for version in versions], schema)
        return None if index is None else versions[index]

    def retract(self, name: TopicName) -> int:
        """Delete all versions, by adding one that says so. Returns its number."""
        rows = self._rows.get(name.schema_key, {"versions": []})["versions"]
        self._journal.put("schemas", name.schema_key, {"versions": [*rows, None]})
        return len(rows)

    def delete(self, name: TopicName) -> None:
        """Delete all versions from storage; their numbers begin at 0 again."""
        self._journal.delete("schemas", name.schema_key)


def _check(versions: list[Schema], schema: Schema, strategy: str, *, consumer: bool = False) -> None:
    from pulsarctl_wire.broker.schemas.compatibility import find_incompatibility

    incompatibility = find_incompatibility(versions, schema, strategy, consumer=consumer)
    if incompatibility is not None:
        raise SchemaRefused(incompatibility.kind, incompatibility.text)


def _find(versions: list[Schema], schema: Schema) -> int | None:
    from pulsarctl_wire.broker.schemas.compatibility import find_version

    return find_version(versions, schema)


def _load(number: int, row: Row) -> StoredSchema:
    return StoredSchema(number, Schema(row["type"], b64decode(row["data"]), row["properties"]), row["time"])
