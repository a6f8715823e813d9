"""Schemas: PRODUCER, SUBSCRIBE, GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

import json
from typing import Any

from broker.probe import Probe, Target, case, subscription

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


@case("schema/get_empty_version")
async def get_empty_version(broker: Target) -> None:
    body = await get(broker, await with_schema(broker), schema_version=b"")
    has_error(body, ServerError.IncompatibleSchema)
    assert body.error_message == "Empty schema version"


@case("schema/get_short_version")
async def get_short_version(broker: Target) -> None:
    topic, probe = await with_schema(broker), await broker.connected()
    assert (await get(broker, topic, schema_version=bytes(9))).schema_version == FIRST
    probe.start("GET_SCHEMA", topic=topic, schema_version=bytes(7))
    await probe.closes()


@case("schema/get_deleted")
async def get_deleted(broker: Target) -> None:
    topic = await with_schema(broker)
    await broker.rest("DELETE", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema")
    body = await get(broker, topic)
    assert (body.schema.type, body.schema.schema_data) == (Schema.Type.Value("None"), b"")
    assert body.schema_version == (1).to_bytes(8, "big")
    has_error(await get(broker, topic, schema_version=FIRST), ServerError.TopicNotFound)


@case("schema/get_or_create_none")
async def get_or_create_none(broker: Target) -> None:
    topic, probe = await with_schema(broker), await broker.connected()
    none = {"name": "", "type": Schema.Type.Value("None"), "schema_data": b""}
    fields = {"topic": topic, "schema": none}
    body = await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **fields)
    assert body.HasField("schema_version")
    assert body.schema_version == b""


@case("schema/unanswered")
async def unanswered(broker: Target) -> None:
    topic, probe = broker.topic(), await broker.connected()
    await probe.lookup(topic)
    fields = {"topic": topic, "producer_id": 1}
    wrong = {"name": "", "type": Schema.KeyValue, "schema_data": b""}
    probe.start("PRODUCER", **fields, schema=wrong)
    await probe.nothing(1.0)
    await probe.refused("ServiceNotReady", "PRODUCER", **fields)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.request("PRODUCER", "PRODUCER_SUCCESS", **fields)


@case("schema/consumer_invalid")
async def consumer_invalid(broker: Target) -> None:
    topic = broker.topic()
    await broker.subscribed(topic, schema={**avro("int"), "schema_data": b"{"})
    has_error(await get(broker, topic), ServerError.TopicNotFound)


@case("schema/incompatible_text")
async def incompatible_text(broker: Target) -> None:
    topic, probe = await with_schema(broker), await broker.connected()

    def shown(kind: str) -> str:
        field = f'{{\n    "name" : "a",\n    "type" : "{kind}"\n  }}'
        return f'{{\n  "type" : "record",\n  "name" : "R",\n  "fields" : [ {field} ]\n}}'

    def text(strategy: str, first: str, second: str) -> str:
        begin = f"Error during schema compatibility check with strategy {strategy}: "
        exception = "org.apache.avro.SchemaValidationException: Unable to read schema: "
        return f"{begin}{exception}\n{shown(first)}\nusing schema:\n{shown(second)}"

    body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=1, schema=avro("string"))
    package = "org.apache.pulsar.broker.service.schema.exceptions"
    said = f"{package}.IncompatibleSchemaException: {text('FULL', 'string', 'int')}"
    assert body.message == f"{said} caused by {said}"
    body = await probe.request("SUBSCRIBE", "ERROR", **subscription(topic, schema=avro("string")))
    assert body.message == text("BACKWARD", "int", "string")


@case("schema/unreadable")
async def unreadable(broker: Target) -> None:
    twice = avro("int") | {"properties": [{"key": "k", "value": "v"}] * 2}
    for schema in (twice, avro("int") | {"type": Schema.External}):
        topic = await broker.filled(1)
        fields = {"topic": topic, "schema": schema}
        for name, more in (
            ("PRODUCER", {"producer_id": 1}),
            ("SUBSCRIBE", subscription(topic)),
            ("GET_OR_CREATE_SCHEMA", {}),
        ):
            probe = await broker.connected()
            probe.start(name, **{**more, **fields})
            await probe.closes()


@case("schema/name_encoded")
async def name_encoded(broker: Target) -> None:
    name = broker.name()
    topic = f"persistent://public/somewhere/ns/{name} ü"
    await broker.producing(topic, schema=avro("int"))
    assert (await get(broker, topic)).schema.name == f"public/ns/{name}+%C3%BC"
