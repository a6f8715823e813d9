"""Schemas: PRODUCER, SUBSCRIBE, GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

import json
from typing import Any

from broker.probe import Probe, Target, case

from pulsarctl_wire.wire.PulsarApi_pb2 import Schema, ServerError

FIRST = bytes(8)


def avro(kind: str) -> dict[str, Any]:
    """The Avro schema {a: kind}."""
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    return {"name": "R", "type": Schema.Avro, "schema_data": json.dumps(record).encode()}


async def with_schema(broker: Target) -> str:
    """A topic with the schema {a: int}."""
    topic = broker.topic()
    await broker.producing(topic, schema=avro("int"))
    return topic


async def get(broker: Target, topic: str, **fields: Any) -> Any:
    probe = await broker.connected()
    return await probe.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic, **fields)


async def get_or_create(probe: Probe, topic: str, kind: str = "int") -> Any:
    fields = {"topic": topic, "schema": avro(kind)}
    return await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **fields)


def has_error(body: Any, error: ServerError.ValueType) -> None:
    assert body.HasField("error_code"), body
    assert body.error_code == error, body


@case("schema/producer_registers")
async def producer_registers(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    for number in (1, 2):
        body = await probe.producer(topic, number, schema=avro("int"))
        assert body.schema_version == FIRST, body


@case("schema/producer_incompatible")
async def producer_incompatible(broker: Target) -> None:
    topic = await with_schema(broker)
    probe = await broker.connected()
    await probe.lookup(topic)
    fields = {"topic": topic, "producer_id": 1, "schema": avro("string")}
    await probe.refused("IncompatibleSchema", "PRODUCER", **fields)


@case("schema/producer_without_schema")
async def producer_without_schema(broker: Target) -> None:
    topic = await with_schema(broker)
    probe = await broker.connected()
    body = await probe.producer(topic)
    assert body.HasField("schema_version"), body
    assert body.schema_version == b"", body


@case("schema/get_missing")
async def get_missing(broker: Target) -> None:
    topic = broker.topic()
    await broker.producing(topic)
    body = await get(broker, topic)
    has_error(body, ServerError.TopicNotFound)
    assert not body.HasField("schema"), body


@case("schema/get_missing_version")
async def get_missing_version(broker: Target) -> None:
    body = await get(broker, await with_schema(broker), schema_version=(7).to_bytes(8, "big"))
    has_error(body, ServerError.TopicNotFound)


@case("schema/get_or_create")
async def create(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    for _ in range(2):
        body = await get_or_create(probe, topic)
        assert not body.HasField("error_code"), body
        assert body.schema_version == FIRST, body


@case("schema/get_or_create_incompatible")
async def create_incompatible(broker: Target) -> None:
    topic = await with_schema(broker)
    body = await get_or_create(await broker.connected(), topic, "string")
    has_error(body, ServerError.IncompatibleSchema)


@case("schema/get_or_create_unloaded")
async def create_unloaded(broker: Target) -> None:
    body = await get_or_create(await broker.connected(), broker.topic())
    has_error(body, ServerError.TopicNotFound)


@case("schema/auto_consume_subscribe")
async def auto_consume(broker: Target) -> None:
    topic = await with_schema(broker)
    schema = {"name": "", "type": Schema.AutoConsume, "schema_data": b""}
    await broker.subscribed(topic, schema=schema)
