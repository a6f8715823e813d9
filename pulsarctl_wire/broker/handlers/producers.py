"""Handlers of PRODUCER, SEND, CLOSE_PRODUCER. Source: b/ServerCnx (4.0)."""

from functools import partial

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection, Deferred, Opening
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.handlers.lookups import parse_topic_field
from pulsarctl_wire.broker.schemas.registry import SchemaRefused, check_wire
from pulsarctl_wire.broker.storage.transactions import id_of
from pulsarctl_wire.broker.topics.topic import Producer
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandCloseProducer,
    CommandProducer,
    CommandSend,
    MessageMetadata,
)
from pulsarctl_wire.wire.session.state import NO_REQUEST


def open_producer(
    broker: Broker, connection: Connection, body: CommandProducer, frame: Frame
) -> Deferred | None:
    """Handle PRODUCER. If a producer has the id already, answer with that one, even if the topics differ."""
    check_wire(body.schema)
    name = parse_topic_field(connection, body.topic)
    identity = connection.identity
    identity.check_tenant(name.namespace)
    identity.authorize("Produce", name, "produce")
    if subscription := connection.text(body.initial_subscription_name):
        identity.authorize("Produce", name, "consume", subscription=subscription)
    endpoint = connection.producers.get(body.producer_id)
    if isinstance(endpoint, Producer):
        _send_success(connection, body.request_id, endpoint, -1)
        return None
    if endpoint is not None:
        raise Refused("ServiceNotReady", "Producer is already present on the connection")
    connection.producers[body.producer_id] = opening = Opening()
    return _open(broker, connection, body, name, opening)


async def _open(
    broker: Broker, connection: Connection, body: CommandProducer, name: TopicName, opening: Opening
) -> None:
    try:
        topic = await broker.get_topic(name, create=True)
        await _join(broker, connection, body, topic, opening)
    except Refused:
        if not opening.cancelled:  # else the client has closed the id meanwhile, and gets no answer
            raise
    finally:
        if connection.producers.get(body.producer_id) is opening:
            del connection.producers[body.producer_id]


async def _join(
    broker: Broker, connection: Connection, body: CommandProducer, topic: AnyTopic, opening: Opening
) -> None:
    if topic.migrated is not None:
        connection.tell_migrated(body.producer_id, topic.migrated, producer=True)
        connection.send("CLOSE_PRODUCER", producer_id=body.producer_id, request_id=NO_REQUEST)
        return
    topic.check_producer_limit()
    await topic.check_backlog()
    topic.check_encryption(body.encrypted)
    version = b""
    if body.HasField("schema"):
        try:
            version = await topic.register_schema(body.schema)
        except SchemaRefused as refused:
            if refused.kind != "thrown":  # "thrown": Pulsar's own check throws, see schemas/kinds.py
                raise
            if not opening.cancelled:  # Pulsar neither answers nor frees the id
                connection.producers[body.producer_id] = Opening()
            return
    else:
        topic.check_schema_optional()
    if body.initial_subscription_name:
        await topic.create_initial_subscription(connection.text(body.initial_subscription_name))
    has_name = body.HasField("producer_name")
    name = connection.text(body.producer_name) if has_name else broker.make_producer_name()
    if not has_name:
        await topic.journal.sync()  # a made-up name is unique only once the counter behind it is stored
    if connection.producers.get(body.producer_id) is not opening:
        return  # CLOSE_PRODUCER came meanwhile
    producer = Producer(connection, body, topic, name)
    producer.schema_version = version

    def answer_queued() -> None:
        _send_success(
            connection, body.request_id, producer, topic.get_last_sequence(producer.name), ready=False
        )

    await topic.add_producer(producer, answer_queued)
    if opening.cancelled or connection.closed:
        topic.remove_producer(producer)
        return
    connection.producers[producer.id] = producer
    _send_success(
        connection,
        body.request_id,
        producer,
        topic.get_last_sequence(producer.name),
        epoch=producer.topic_epoch,
    )


def _send_success(
    connection: Connection,
    request_id: int,
    producer: Producer,
    last_sequence: int,
    *,
    epoch: int | None = None,
    ready: bool = True,
) -> None:
    connection.send(
        "PRODUCER_SUCCESS",
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=last_sequence,
        schema_version=producer.schema_version,
        topic_epoch=epoch,
        producer_ready=ready,
    )


def send(broker: Broker, connection: Connection, body: CommandSend, frame: Frame) -> None:
    """Handle SEND."""
    producer = connection.producers.get(body.producer_id)
    if not isinstance(producer, Producer):
        if connection.is_recently_closed(body.producer_id):
            return
        raise Violation("SEND for a producer that is not open")
    tail_start = 8 + frame.command_size
    magic = frame.raw[tail_start : tail_start + 2]
    if len(frame.raw) < tail_start + (6 if magic == MAGIC_CHECKSUM else 2):
        raise Violation("SEND without an entry")
    try:
        _check(connection, producer, body, frame, len(frame.raw) - tail_start)
    except Refused as refused:
        producer.reject_send(body.sequence_id, body.highest_sequence_id, refused.code, str(refused))
    else:
        producer.topic.publish(producer, body, frame, tail_start)


def _check(connection: Connection, producer: Producer, body: CommandSend, frame: Frame, size: int) -> None:
    """Raise Refused or Violation if a SEND cannot be accepted; `size` is that of its entry in bytes."""
    in_transaction = id_of(body) is not None
    if in_transaction and not producer.topic.name.is_persistent:
        raise Violation("a transaction with a topic that is not persistent")
    if body.HasField("message_id") and not in_transaction:
        raise Refused("NotAllowedError", "Only shadow topic supports sending messages with messageId")
    if producer.is_closing:
        raise Refused("PersistenceError", "Producer is closed")
    if frame.checksum == "invalid":
        raise Refused("ChecksumError", "Checksum failed on the broker")
    rules = producer.topic.rules
    if rules.requires_encryption and not _get_metadata(frame).encryption_keys:
        raise Refused("MetadataError", "Messages must be encrypted")
    if rules.max_bytes and size > rules.max_bytes and not body.is_chunk:
        raise Refused("NotAllowedError", "Exceed maximum message size")
    if (max_delay_ms := rules.max_delay_ms) and _get_delay_ms(frame) > max_delay_ms:
        raise Refused("NotAllowedError", f"Exceeds max allowed delivery delay of {max_delay_ms} milliseconds")
    if in_transaction and not connection.settings.transactionCoordinatorEnabled:
        raise Refused("NotAllowedError", "Transaction buffer disable!")


def _get_delay_ms(frame: Frame) -> int:
    """Return how many ms after its publish time a message is to be delivered."""
    metadata = _get_metadata(frame)
    return metadata.deliver_at_time - metadata.publish_time


def _get_metadata(frame: Frame) -> MessageMetadata:
    """Return the metadata, which the rules of the topic need. Raises Violation if it cannot be decoded."""
    if frame.metadata is None or not frame.metadata.IsInitialized():
        raise Violation("metadata that cannot be decoded, though the topic has rules for it")
    return frame.metadata


def close_producer(
    broker: Broker, connection: Connection, body: CommandCloseProducer, frame: Frame
) -> Deferred | None:
    """Handle CLOSE_PRODUCER, once all SENDs before it are answered. A pending PRODUCER is dropped."""
    producer = connection.producers.get(body.producer_id)
    if isinstance(producer, Producer) and producer.pending:
        producer.is_closing = True
        return _close_when_idle(connection, body.request_id, producer)
    connection.producers.pop(body.producer_id, None)
    send_success = partial(connection.send, "SUCCESS", request_id=body.request_id)
    topic = producer.topic if isinstance(producer, Producer) else None
    may_hand_over = topic is not None and not topic.name.is_persistent and bool(topic.waiting_producers)
    if producer is not None:
        producer.leave()
    if may_hand_over:
        # a waiting producer that gets exclusive access now is told first: nothing has to be stored for it
        broker.scheduler.ready.append(send_success)
    else:
        send_success()
    return None


async def _close_when_idle(connection: Connection, request_id: int, producer: Producer) -> None:
    await producer.wait_idle()
    if connection.producers.get(producer.id) is producer:
        del connection.producers[producer.id]
    producer.topic.remove_producer(producer)
    connection.send("SUCCESS", request_id=request_id)
