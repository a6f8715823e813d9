"""PRODUCER, SEND, CLOSE_PRODUCER. Source: b/ServerCnx (4.0)."""

from typing import Any

from pulsarctl_wire.broker.broker import AnyTopic
from pulsarctl_wire.broker.connection import Connection, Opening, Waiting
from pulsarctl_wire.broker.handlers.lookups import topic_of
from pulsarctl_wire.broker.producer import Producer
from pulsarctl_wire.broker.refusal import Refused, Violation
from pulsarctl_wire.broker.transactions import id_of
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandProducer, CommandSend
from pulsarctl_wire.wire.state import NO_REQUEST


def producer(connection: Connection, body: CommandProducer, frame: Frame) -> Waiting | None:
    """PRODUCER. If the id is in use, that producer is the answer, whatever else the command says."""
    name = topic_of(connection, body.topic)
    connection.authorize("Produce", name, "produce")
    known = connection.producers.get(body.producer_id)
    if isinstance(known, Opening):
        raise Refused("ServiceNotReady", "Producer is already present on the connection")
    if known is not None:
        _success(connection, body.request_id, known, -1)
        return None
    opening = connection.producers[body.producer_id] = Opening()

    async def open_producer() -> None:
        try:
            topic = await connection.broker.topic(name, create=True)
            await _join(connection, body, topic, opening)
        finally:
            if connection.producers.get(body.producer_id) is opening:
                del connection.producers[body.producer_id]

    return open_producer()


async def _join(connection: Connection, body: CommandProducer, topic: AnyTopic, opening: Opening) -> None:
    if topic.migrated is not None:
        connection.tell_migrated(body.producer_id, topic.migrated, producer=True)
        connection.send("CLOSE_PRODUCER", producer_id=body.producer_id, request_id=NO_REQUEST)
        return
    await topic.check_backlog()
    topic.check_producer(body.encrypted)
    version = b""
    if body.HasField("schema"):
        version = await topic.register_schema(body.schema)
    else:
        topic.check_no_schema()
    if body.initial_subscription_name:
        await topic.create_initial(connection.text(body.initial_subscription_name))
    own = body.HasField("producer_name")
    name = connection.text(body.producer_name) if own else connection.broker.producer_name()
    if not own:
        await topic.journal.synced()
    if connection.producers.get(body.producer_id) is not opening:
        return  # it was closed meanwhile
    it = Producer(connection, body, topic, name)
    it.schema_version = version

    def queued() -> None:
        connection.producers[body.producer_id] = opening
        _success(connection, body.request_id, it, -1, ready=False)

    try:
        await topic.add_producer(it, queued)
    except Refused:
        if opening.cancelled:  # it was closed meanwhile, and needs no answer
            return
        raise
    if opening.cancelled or connection.closed:
        topic.remove_producer(it)
        return
    connection.producers[it.id] = it
    connection.reopened(it.id)
    _success(connection, body.request_id, it, topic.last_sequence(it.name))


def _success(
    connection: Connection, request_id: int, it: Producer, last_sequence: int, *, ready: bool = True
) -> None:
    connection.send(
        "PRODUCER_SUCCESS",
        request_id=request_id,
        producer_name=it.name,
        last_sequence_id=last_sequence,
        schema_version=it.schema_version,
        topic_epoch=it.topic_epoch if it.mode and ready else None,
        producer_ready=ready,
    )


def send(connection: Connection, body: CommandSend, frame: Frame) -> None:
    """SEND."""
    it = connection.producers.get(body.producer_id)
    if not isinstance(it, Producer):
        if connection.was_told_closed(body.producer_id):
            return
        raise Violation("SEND for a producer that is not open")
    tail_at = 8 + frame.command_size
    if len(frame.raw) == tail_at:
        raise Violation("SEND without an entry")
    highest = body.highest_sequence_id
    if frame.checksum == "invalid":
        it.error(body.sequence_id, highest, "ChecksumError", "Checksum failed on the broker")
    elif body.HasField("message_id"):
        text = "Only shadow topic supports sending messages with messageId"
        it.error(body.sequence_id, highest, "NotAllowedError", text)
    elif id_of(body) is not None and not connection.settings.transactionCoordinatorEnabled:
        it.error(body.sequence_id, highest, "NotAllowedError", "Transaction buffer disable!")
    elif it.topic.rules.encrypted and not _is_encrypted(frame):
        it.error(body.sequence_id, highest, "MetadataError", "Messages must be encrypted")
    elif (longest := it.topic.rules.longest_delay_ms) and _delay(connection, frame) > longest:
        text = f"Exceeds max allowed delivery delay of {longest} milliseconds"
        it.error(body.sequence_id, highest, "NotAllowedError", text)
    else:
        it.topic.publish(it, body, frame, tail_at)


def _delay(connection: Connection, frame: Frame) -> int:
    """For how many ms a message is not to be delivered."""
    return 0 if frame.metadata is None else frame.metadata.deliver_at_time - connection.scheduler.time_ms


def _is_encrypted(frame: Frame) -> bool:
    if frame.metadata is None:
        raise Violation("metadata that cannot be decoded, where it must say that the message is encrypted")
    return bool(frame.metadata.encryption_keys)


def close_producer(connection: Connection, body: Any, frame: Frame) -> Waiting | None:
    """CLOSE_PRODUCER: answered once all SENDs before it are. A PRODUCER that waits is dropped."""
    it = connection.producers.pop(body.producer_id, None)
    if isinstance(it, Opening):
        it.cancelled = True
    elif it is not None and it.pending:
        return _close_when_idle(connection, body.request_id, it)
    elif it is not None:
        it.topic.remove_producer(it)
    connection.send("SUCCESS", request_id=body.request_id)
    return None


async def _close_when_idle(connection: Connection, request_id: int, it: Producer) -> None:
    await it.idle()
    it.topic.remove_producer(it)
    connection.send("SUCCESS", request_id=request_id)
