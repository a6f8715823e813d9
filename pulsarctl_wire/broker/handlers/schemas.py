"""Handlers of GET_SCHEMA and GET_OR_CREATE_SCHEMA. Source: b/ServerCnx (4.0)."""

from typing import Any

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.broker.schemas.registry import check_wire
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandGetOrCreateSchema, CommandGetSchema, Schema, ServerError


def get_schema(broker: Broker, connection: Connection, body: CommandGetSchema, frame: Frame) -> None:
    """Handle GET_SCHEMA: a topic's schema, the latest one unless a version is given."""
    topic, version = connection.text(body.topic), body.schema_version
    if 0 < len(version) < 8:
        raise Violation("a schema version that is too short")
    answer: dict[str, Any]
    try:
        if body.HasField("schema_version") and not version:
            raise Refused("IncompatibleSchema", "Empty schema version")
        name = parse_topic(topic)
        schemas = broker.cluster.schemas
        schema = schemas.get(name, version[:8]) if version else schemas.get_latest(name)
        if schema is None:
            raise Refused("TopicNotFound", f"Topic not found or no-schema {topic}")
        answer = {"schema": schema.to_wire(name.schema_key), "schema_version": schema.version}
    except InvalidName as error:
        answer = _error_fields(Refused("InvalidTopicName", str(error)))
    except Refused as refused:
        answer = _error_fields(refused)
    connection.send("GET_SCHEMA_RESPONSE", request_id=body.request_id, **answer)


def _error_fields(refused: Refused) -> dict[str, Any]:
    return {"error_code": ServerError.Value(refused.code), "error_message": str(refused)}


async def get_or_create_schema(
    broker: Broker, connection: Connection, body: CommandGetOrCreateSchema, frame: Frame
) -> None:
    """Handle GET_OR_CREATE_SCHEMA: register a schema with a topic that is loaded."""
    check_wire(body.schema)
    text = connection.text(body.topic)
    try:
        topic = broker.topics.get(parse_topic(text).full)
    except InvalidName as error:
        raise Violation(str(error)) from None
    answer: dict[str, Any]
    try:
        if topic is None:
            raise Refused("TopicNotFound", f"Topic not found {text}")
        if body.schema.type == Schema.Type.Value("None"):
            topic.check_schema_optional()
            answer = {"schema_version": b""}
        else:
            answer = {"schema_version": await topic.register_schema(body.schema)}
    except Refused as refused:
        answer = _error_fields(refused)
    connection.send("GET_OR_CREATE_SCHEMA_RESPONSE", request_id=body.request_id, **answer)
