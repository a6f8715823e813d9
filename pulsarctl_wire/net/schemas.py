"""The schemas that consumed messages were written by, fetched once each."""

from typing import Final

from pulsarctl_wire.errors import BrokerError
from pulsarctl_wire.net.client import Client
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

MOST: Final = 1_000
"""Schemas that are remembered."""


class SchemaBook:
    """Schemas by topic and version."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[tuple[str, bytes], Schema | None] = {}

    async def find(self, topic: str, version: bytes) -> Schema | None:
        """The schema of `topic` with this version; None if the broker does not have it."""
        key = without_partition(topic), version
        if key not in self._known:
            if len(self._known) >= MOST:
                self._known.clear()
            try:
                body = (await self._client.ask("GET_SCHEMA", topic=key[0], schema_version=version)).body
                self._known[key] = body.schema if body.HasField("schema") else None
            except BrokerError as error:
                self._client.warn(f"schema of {key[0]}: {error}")
                self._known[key] = None
        return self._known[key]
