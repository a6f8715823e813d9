"""Schemas: of producers and consumers, GET_SCHEMA, GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal, present
from pulsarctl_wire.conformance.basics.frames import make_avro_schema, make_subscription
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema, ServerError

_AVRO = {
    "name": "",
    "schema_data": b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
    "type": Schema.Avro,
}


@case(SHOULD)
async def consumer_on_used_topic(broker: Target) -> None:
    """Topic with messages and no schema; SUBSCRIBE with an Avro schema.

    Expected: ERROR IncompatibleSchema.

    Source: Broker: AbstractTopic.
    """
    topic = await broker.fill(1)
    probe = await broker.connect()
    await probe.look_up(topic)
    await probe.expect_error("IncompatibleSchema", "SUBSCRIBE", **make_subscription(topic), schema=_AVRO)


@case(SHOULD)
async def consumer_registers(broker: Target) -> None:
    """SUBSCRIBE with an Avro schema on a new topic; GET_SCHEMA.

    Expected: SUCCESS; that schema.

    Source: Broker: AbstractTopic.
    """
    probe = await broker.subscribe(topic := broker.topic(), schema=_AVRO)
    answer: Any = await probe.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic)
    equal(answer.schema.schema_data, _AVRO["schema_data"], "schema_data")


_FIRST_VERSION = bytes(8)


async def _register(broker: Target) -> str:
    """Return a topic with the schema {a: int}."""
    topic = broker.topic()
    await broker.produce(topic, schema=make_avro_schema("int"))
    return topic


async def _get(broker: Target, topic: str, **fields: Any) -> Any:
    probe = await broker.connect()
    return await probe.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic, **fields)


async def _get_or_create(probe: Probe, topic: str, kind: str = "int") -> Any:
    fields = {"topic": topic, "schema": make_avro_schema(kind)}
    return await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **fields)


def _expect_code(body: Any, error: ServerError.ValueType) -> None:
    present(body, "error_code")
    equal(body.error_code, error, "error_code")


@case(SHOULD)
async def producer_registers(broker: Target) -> None:
    """PRODUCER with Avro schema.

    Expected: PRODUCER_SUCCESS.schema_version = 8 zero bytes; the same schema again: same version.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    topic = broker.topic()
    probe = await broker.connect()
    for number in (1, 2):
        body = await probe.create_producer(topic, number, schema=make_avro_schema("int"))
        equal(body.schema_version, _FIRST_VERSION, "schema_version")


@case(SHOULD)
async def producer_incompatible(broker: Target) -> None:
    """Topic has {a:int}; PRODUCER with {a:string}.

    Expected: ERROR IncompatibleSchema.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    topic = await _register(broker)
    probe = await broker.connect()
    await probe.look_up(topic)
    fields = {"topic": topic, "producer_id": 1, "schema": make_avro_schema("string")}
    await probe.expect_error("IncompatibleSchema", "PRODUCER", **fields)


@case(OBSERVED)
async def producer_without_schema(broker: Target) -> None:
    """Topic has a schema; PRODUCER without one.

    Expected: PRODUCER_SUCCESS, schema_version=''.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage (isSchemaValidationEnforced=false).
    """
    topic = await _register(broker)
    probe = await broker.connect()
    body = await probe.create_producer(topic)
    present(body, "schema_version")
    equal(body.schema_version, b"", "schema_version")


@case(OBSERVED)
async def get_missing(broker: Target) -> None:
    """GET_SCHEMA on a topic without schema.

    Expected: GET_SCHEMA_RESPONSE {error_code=TopicNotFound, no schema}.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    topic = broker.topic()
    await broker.produce(topic)
    body = await _get(broker, topic)
    _expect_code(body, ServerError.TopicNotFound)
    absent(body, "schema")


@case(OBSERVED)
async def get_missing_version(broker: Target) -> None:
    """GET_SCHEMA schema_version=long 7 on a topic with version 0 only.

    Expected: GET_SCHEMA_RESPONSE {error_code=TopicNotFound}.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    body = await _get(broker, await _register(broker), schema_version=(7).to_bytes(8, "big"))
    _expect_code(body, ServerError.TopicNotFound)


@case(SHOULD)
async def get_or_create(broker: Target) -> None:
    """GET_OR_CREATE_SCHEMA {a:int} on a new topic, twice.

    Expected: GET_OR_CREATE_SCHEMA_RESPONSE {schema_version=8 zero bytes} both times.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    for _ in range(2):
        body = await _get_or_create(probe, topic)
        absent(body, "error_code")
        equal(body.schema_version, _FIRST_VERSION, "schema_version")


@case(SHOULD)
async def get_or_create_incompatible(broker: Target) -> None:
    """GET_OR_CREATE_SCHEMA {a:string} where {a:int} is registered.

    Expected: GET_OR_CREATE_SCHEMA_RESPONSE {error_code=IncompatibleSchema}.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    topic = await _register(broker)
    body = await _get_or_create(await broker.connect(), topic, "string")
    _expect_code(body, ServerError.IncompatibleSchema)


@case(OBSERVED)
async def get_or_create_unloaded(broker: Target) -> None:
    """GET_OR_CREATE_SCHEMA on a topic no one has opened.

    Expected: GET_OR_CREATE_SCHEMA_RESPONSE {error_code=TopicNotFound}: it does not create topics.

    Source: Broker: ServerCnx (schemas); broker: BookkeeperSchemaStorage.
    """
    body = await _get_or_create(await broker.connect(), broker.topic())
    _expect_code(body, ServerError.TopicNotFound)


@case(SHOULD, since="3.3")
async def auto_consume_subscribe(broker: Target) -> None:
    """Topic with Avro schema: SUBSCRIBE with schema type AutoConsume.

    Expected: SUCCESS.

    Source: Protocol version 21; broker: ServerCnx.
    """
    topic = await _register(broker)
    schema = {"name": "", "type": Schema.AutoConsume, "schema_data": b""}
    await broker.subscribe(topic, schema=schema)


@case(OBSERVED)
async def get_empty_version(broker: Target) -> None:
    """GET_SCHEMA with schema_version='' (present).

    Expected: GET_SCHEMA_RESPONSE {error_code=IncompatibleSchema, 'Empty schema version'}.

    Source: Broker: ServerCnx.handleGetSchema.
    """
    body = await _get(broker, await _register(broker), schema_version=b"")
    _expect_code(body, ServerError.IncompatibleSchema)
    equal(body.error_message, "Empty schema version", "error_message")


@case(OBSERVED)
async def get_short_version(broker: Target) -> None:
    """GET_SCHEMA with a schema_version of 7 bytes; of 9 bytes that begin with version 0.

    Expected: The broker closes the connection; version 0.

    Source: Broker: LongSchemaVersion.
    """
    topic, probe = await _register(broker), await broker.connect()
    equal(
        (await _get(broker, topic, schema_version=bytes(9))).schema_version, _FIRST_VERSION, "schema_version"
    )
    probe.start("GET_SCHEMA", topic=topic, schema_version=bytes(7))
    await probe.expect_close()


@case(OBSERVED, needs=("admin",))
async def get_deleted(broker: Target) -> None:
    """A topic's schema is deleted by the admin API; GET_SCHEMA; GET_SCHEMA of version 0.

    Expected: Version 1 of type None without data; TopicNotFound.

    Source: Broker: SchemaRegistryServiceImpl.
    """
    topic = await _register(broker)
    await broker.rest("DELETE", f"/admin/v2/schemas/{topic.partition('://')[2]}/schema")
    body = await _get(broker, topic)
    equal((body.schema.type, body.schema.schema_data), (Schema.Type.Value("None"), b""), "type, schema_data")
    equal(body.schema_version, (1).to_bytes(8, "big"), "schema_version")
    _expect_code(await _get(broker, topic, schema_version=_FIRST_VERSION), ServerError.TopicNotFound)


@case(OBSERVED)
async def get_or_create_none(broker: Target) -> None:
    """Topic with an Avro schema: GET_OR_CREATE_SCHEMA of type None.

    Expected: schema_version='' (present).

    Source: Broker: ServerCnx.handleGetOrCreateSchema.
    """
    topic, probe = await _register(broker), await broker.connect()
    none_schema = {"name": "", "type": Schema.Type.Value("None"), "schema_data": b""}
    fields = {"topic": topic, "schema": none_schema}
    body = await probe.request("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", **fields)
    present(body, "schema_version")
    equal(body.schema_version, b"", "schema_version")


@case(OBSERVED)
async def unanswered(broker: Target) -> None:
    """PRODUCER with a KeyValue schema without data; PRODUCER with the same id; CLOSE_PRODUCER; PRODUCER.

    Expected: Nothing; ERROR ServiceNotReady; SUCCESS; PRODUCER_SUCCESS.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic, probe = broker.topic(), await broker.connect()
    await probe.look_up(topic)
    fields = {"topic": topic, "producer_id": 1}
    wrong = {"name": "", "type": Schema.KeyValue, "schema_data": b""}
    probe.start("PRODUCER", **fields, schema=wrong)
    await probe.expect_nothing(1.0)
    await probe.expect_error("ServiceNotReady", "PRODUCER", **fields)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.request("PRODUCER", "PRODUCER_SUCCESS", **fields)


@case(OBSERVED, since="3.3")
async def consumer_invalid(broker: Target) -> None:
    """SUBSCRIBE with an Avro schema that is no JSON, on a new topic; GET_SCHEMA.

    Expected: SUCCESS; TopicNotFound.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    topic = broker.topic()
    await broker.subscribe(topic, schema={**make_avro_schema("int"), "schema_data": b"{"})
    _expect_code(await _get(broker, topic), ServerError.TopicNotFound)


@case(OBSERVED, since="4.0")
async def incompatible_text(broker: Target) -> None:
    """Topic has {a:int}; PRODUCER and SUBSCRIBE with {a:string}.

    Expected: IncompatibleSchema; messages show both schemas as Avro prints them, for the producer twice,
    behind the exception's class.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic, probe = await _register(broker), await broker.connect()

    def format_schema(kind: str) -> str:
        field = f'{{\n    "name" : "a",\n    "type" : "{kind}"\n  }}'
        return f'{{\n  "type" : "record",\n  "name" : "R",\n  "fields" : [ {field} ]\n}}'

    def format_error(strategy: str, first: str, second: str) -> str:
        begin = f"Error during schema compatibility check with strategy {strategy}: "
        exception = "org.apache.avro.SchemaValidationException: Unable to read schema: "
        return f"{begin}{exception}\n{format_schema(first)}\nusing schema:\n{format_schema(second)}"

    body = await probe.expect_error(
        "IncompatibleSchema", "PRODUCER", topic=topic, producer_id=1, schema=make_avro_schema("string")
    )
    package = "org.apache.pulsar.broker.service.schema.exceptions"
    text = f"{package}.IncompatibleSchemaException: {format_error('FULL', 'string', 'int')}"
    equal(body.message, f"{text} caused by {text}", "message")
    body = await probe.expect_error(
        "IncompatibleSchema", "SUBSCRIBE", **make_subscription(topic, schema=make_avro_schema("string"))
    )
    equal(body.message, format_error("BACKWARD", "int", "string"), "message")


@case(OBSERVED)
async def unreadable(broker: Target) -> None:
    """PRODUCER, SUBSCRIBE, GET_OR_CREATE_SCHEMA with a schema that has a property twice, or the type
    External (newer than 4.0).

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.getSchema.
    """
    invalid_schema = make_avro_schema("int") | {"properties": [{"key": "k", "value": "v"}] * 2}
    for schema in (invalid_schema, make_avro_schema("int") | {"type": Schema.External}):
        topic = await broker.fill(1)
        fields = {"topic": topic, "schema": schema}
        for name, request_fields in (
            ("PRODUCER", {"producer_id": 1}),
            ("SUBSCRIBE", make_subscription(topic)),
            ("GET_OR_CREATE_SCHEMA", {}),
        ):
            probe = await broker.connect()
            probe.start(name, **{**request_fields, **fields})
            await probe.expect_close()


@case(OBSERVED, without=("auth",))
async def name_encoded(broker: Target) -> None:
    """PRODUCER with an Avro schema on persistent://public/somewhere/ns/<name> ü; GET_SCHEMA.

    Expected: schema.name=public/ns/<name>+%C3%BC: without the cluster, and encoded.

    Source: Common: TopicName.
    """
    name = broker.name()
    topic = f"persistent://public/somewhere/ns/{name} ü"
    await broker.produce(topic, schema=make_avro_schema("int"))
    equal((await _get(broker, topic)).schema.name, f"public/ns/{name}+%C3%BC", "name")
