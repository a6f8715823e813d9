"""PRODUCER, SEND, CLOSE_PRODUCER. Source: b/ServerCnx (4.0)."""

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection, Opening, Waiting
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.handlers.lookups import topic_of
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


def producer(broker: Broker, connection: Connection, body: CommandProducer, frame: Frame) -> Waiting | None:
    """PRODUCER. If the id is in use, that producer is the answer, whatever else the command says."""
    check_wire(body.schema)
    name = topic_of(connection, body.topic)
    identity = connection.identity
    identity.check_tenant(name.namespace)
    identity.authorize("Produce", name, "produce")
    if initial := connection.text(body.initial_subscription_name):
        identity.authorize("Produce", name, "consume", subscription=initial)
    known = connection.producers.get(body.producer_id)
    if isinstance(known, Producer):
        _success(connection, body.request_id, known, -1)
        return None
    if known is not None:
        raise Refused("ServiceNotReady", "Producer is already present on the connection")
    connection.producers[body.producer_id] = opening = Opening()
    return _open(broker, connection, body, name, opening)


async def _open(
    broker: Broker, connection: Connection, body: CommandProducer, name: TopicName, opening: Opening
) -> None:
    try:
        topic = await broker.topic(name, create=True)
        await _join(broker, connection, body, topic, opening)
    except Refused:
        if not opening.cancelled:  # otherwise it was closed meanwhile, and needs no answer
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
    topic.check_room()
    await topic.check_backlog()
    topic.check_producer(body.encrypted)
    version = b""
    if body.HasField("schema"):
        try:
            version = await topic.register_schema(body.schema)
        except SchemaRefused as refused:
            if refused.kind != "thrown":
                raise
            if not opening.cancelled:  # Pulsar neither answers nor frees the id
                connection.producers[body.producer_id] = Opening()
            return
    else:
        topic.check_no_schema()
    if body.initial_subscription_name:
        await topic.create_initial(connection.text(body.initial_subscription_name))
    own = body.HasField("producer_name")
    name = connection.text(body.producer_name) if own else broker.producer_name()
    if not own:
        await topic.journal.synced()
    if connection.producers.get(body.producer_id) is not opening:
        return  # it was closed meanwhile
    it = Producer(connection, body, topic, name)
    it.schema_version = version

    def queued() -> None:
        connection.producers[body.producer_id] = opening
        _success(connection, body.request_id, it, topic.last_sequence(it.name), ready=False)

    await topic.add_producer(it, queued)
    if opening.cancelled or connection.closed:
        topic.remove_producer(it)
        return
    connection.producers[it.id] = it
    _success(connection, body.request_id, it, topic.last_sequence(it.name), epoch=it.topic_epoch)


def _success(
    connection: Connection,
    request_id: int,
    it: Producer,
    last_sequence: int,
    *,
    epoch: int | None = None,
    ready: bool = True,
) -> None:
    connection.send(
        "PRODUCER_SUCCESS",
        request_id=request_id,
        producer_name=it.name,
        last_sequence_id=last_sequence,
        schema_version=it.schema_version,
        topic_epoch=epoch,
        producer_ready=ready,
    )


def send(broker: Broker, connection: Connection, body: CommandSend, frame: Frame) -> None:
    """SEND."""
    it = connection.producers.get(body.producer_id)
    if not isinstance(it, Producer):
        if connection.was_told_closed(body.producer_id):
            return
        raise Violation("SEND for a producer that is not open")
    tail_at = 8 + frame.command_size
    magic = frame.raw[tail_at : tail_at + 2]
    if len(frame.raw) < tail_at + (6 if magic == MAGIC_CHECKSUM else 2):
        raise Violation("SEND without an entry")
    try:
        _check(connection, it, body, frame, len(frame.raw) - tail_at)
    except Refused as refused:
        it.error(body.sequence_id, body.highest_sequence_id, refused.code, str(refused))
    else:
        it.topic.publish(it, body, frame, tail_at)


def _check(connection: Connection, it: Producer, body: CommandSend, frame: Frame, size: int) -> None:
    """Raises Refused, Violation if a SEND cannot be accepted; `size` is that of its entry in bytes."""
    in_transaction = id_of(body) is not None
    if in_transaction and not it.topic.name.is_persistent:
        raise Violation("a transaction with a topic that is not persistent")
    if body.HasField("message_id") and not in_transaction:
        raise Refused("NotAllowedError", "Only shadow topic supports sending messages with messageId")
    if it.closing:
        raise Refused("PersistenceError", "Producer is closed")
    if frame.checksum == "invalid":
        raise Refused("ChecksumError", "Checksum failed on the broker")
    rules = it.topic.rules
    if rules.encrypted and not _metadata(frame).encryption_keys:
        raise Refused("MetadataError", "Messages must be encrypted")
    if rules.largest and size > rules.largest and not body.is_chunk:
        raise Refused("NotAllowedError", "Exceed maximum message size")
    if (longest := rules.longest_delay_ms) and _delay(frame) > longest:
        raise Refused("NotAllowedError", f"Exceeds max allowed delivery delay of {longest} milliseconds")
    if in_transaction and not connection.settings.transactionCoordinatorEnabled:
        raise Refused("NotAllowedError", "Transaction buffer disable!")


def _delay(frame: Frame) -> int:
    """How many ms after it was published a message may be delivered."""
    metadata = _metadata(frame)
    return metadata.deliver_at_time - metadata.publish_time


def _metadata(frame: Frame) -> MessageMetadata:
    """The metadata, which the topic has rules for. Raises Violation."""
    if frame.metadata is None or not frame.metadata.IsInitialized():
        raise Violation("metadata that cannot be decoded, though the topic has rules for it")
    return frame.metadata


def close_producer(
    broker: Broker, connection: Connection, body: CommandCloseProducer, frame: Frame
) -> Waiting | None:
    """CLOSE_PRODUCER: answered once all SENDs before it are. A PRODUCER that waits is dropped."""
    it = connection.producers.get(body.producer_id)
    if isinstance(it, Producer) and it.pending:
        it.closing = True
        return _close_when_idle(connection, body.request_id, it)
    connection.producers.pop(body.producer_id, None)
    if it is not None:
        it.leave()
    connection.send("SUCCESS", request_id=body.request_id)
    return None


async def _close_when_idle(connection: Connection, request_id: int, it: Producer) -> None:
    await it.idle()
    if connection.producers.get(it.id) is it:
        del connection.producers[it.id]
    it.topic.remove_producer(it)
    connection.send("SUCCESS", request_id=request_id)
