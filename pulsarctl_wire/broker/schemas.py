"""The schemas of topics, by version. Source: schema/SchemaRegistryServiceImpl, BookkeeperSchemaStorage (4.0).

Stored as rows of "schemas": tenant/namespace/topic -> {"versions": [{type, data, properties, time}]};
a version that deleted all before it is null.
"""

from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.journal import Journal, Row
from pulsarctl_wire.broker.names import TopicName
from pulsarctl_wire.broker.refusal import Refused
from pulsarctl_wire.broker.schema_rules import Schema, incompatible
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema as WireSchema

NO_SCHEMA: Final = frozenset({WireSchema.AutoConsume, WireSchema.Type.Value("None")})
"""Types in PRODUCER and SUBSCRIBE that are no schema."""


class Stored(NamedTuple):
    """A version of a topic's schema."""

    number: int
    schema: Schema
    time_ms: int

    @property
    def version(self) -> bytes:
        """The version as it is sent."""
        return self.number.to_bytes(8, "big")

    def wire(self, name: str) -> dict[str, Any]:
        """The fields of a Schema."""
        pairs = [{"key": key, "value": value} for key, value in self.schema.properties.items()]
        return {"name": name, "schema_data": self.schema.data, "type": self.schema.type, "properties": pairs}


def from_wire(schema: WireSchema) -> Schema:
    """A received schema."""
    properties = {as_text(pair.key): as_text(pair.value) for pair in schema.properties}
    return Schema(schema.type, schema.schema_data, properties)


class Schemas:
    """All schemas."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows = journal.table("schemas")

    def versions(self, name: TopicName) -> list[Stored]:
        """The versions of a topic's schema, the oldest first."""
        rows = list(enumerate(self._rows.get(name.schema_key, {"versions": []})["versions"]))
        deleted = max((number for number, row in rows if row is None), default=-1)
        return [_stored(number, row) for number, row in rows[deleted + 1 :]]

    def get(self, name: TopicName, version: bytes = b"") -> Stored | None:
        """A version of a topic's schema, or the latest one."""
        versions = self.versions(name)
        if not version:
            return versions[-1] if versions else None
        number = int.from_bytes(version, "big", signed=True)
        return next((each for each in versions if each.number == number), None)

    def add(self, name: TopicName, schema: Schema, strategy: str, time_ms: int) -> Stored:
        """The version with this schema; a new one if it is compatible with those before. Raises Refused."""
        versions = self.versions(name)
        for each in versions:
            if (each.schema.type, each.schema.data) == (schema.type, schema.data):
                return each
        why = incompatible([each.schema for each in versions], schema, strategy)
        if why:
            raise Refused("IncompatibleSchema", why)
        row = {
            "type": schema.type,
            "data": b64encode(schema.data).decode(),
            "properties": schema.properties,
            "time": time_ms,
        }
        rows = self._rows.get(name.schema_key, {"versions": []})["versions"]
        self._journal.put("schemas", name.schema_key, {"versions": [*rows, row]})
        return _stored(len(rows), row)

    def check(self, name: TopicName, schema: Schema, strategy: str) -> None:
        """Raises Refused if a consumer with this schema cannot read what is there."""
        versions = [each.schema for each in self.versions(name)]
        if any((each.type, each.data) == (schema.type, schema.data) for each in versions):
            return
        why = incompatible(versions, schema, strategy, consumer=True)
        if why:
            raise Refused("IncompatibleSchema", why)

    def retract(self, name: TopicName) -> int:
        """Delete all versions, which is a version itself; returns its number."""
        rows = self._rows.get(name.schema_key, {"versions": []})["versions"]
        self._journal.put("schemas", name.schema_key, {"versions": [*rows, None]})
        return len(rows)

    def delete(self, name: TopicName) -> None:
        """Delete all versions."""
        self._journal.delete("schemas", name.schema_key)


def _stored(number: int, row: Row) -> Stored:
    return Stored(number, Schema(row["type"], b64decode(row["data"]), row["properties"]), row["time"])
