"""The schemas that consumed messages were written by, fetched once each."""

from typing import Final

from pulsarctl_wire.errors import BrokerError
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

MOST_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the schemas that are remembered."""

_COST: Final = 1024  # bytes of keeping one, beside its own


class SchemaBook:
    """Schemas by topic and version."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, bytes], Schema | None] = {}
        self._bytes = 0

    async def find(self, topic: str, version: bytes) -> Schema | None:
        """The schema of `topic` with this version; None if the broker does not have it."""
        key = without_partition(topic), version
        if key not in self._known:
            schema = None
            try:
                body = (await self._client.ask("GET_SCHEMA", topic=key[0], schema_version=version)).body
                schema = body.schema if body.HasField("schema") else None
            except BrokerError as error:
                self._client.warn(f"schema of {key[0]}: {error}")
            weight = _COST + len(version) + (schema.ByteSize() if schema else 0)
            if self._bytes + weight > MOST_BYTES:
                self._known.clear()
                self._bytes = 0
            self._known[key] = schema
            self._bytes += weight
        return self._known[key]
