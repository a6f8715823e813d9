"""SUBSCRIBE and what consumers send. Source: b/ServerCnx (4.0)."""

from datetime import datetime, timezone
from typing import Final

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation, thrown
from pulsarctl_wire.broker.clients.connection import Connection, Opening, Waiting
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.delivery.consumer import INDIVIDUAL, Consumer
from pulsarctl_wire.broker.handlers.lookups import topic_of
from pulsarctl_wire.broker.schemas.registry import check_wire
from pulsarctl_wire.broker.storage.cursor import mask_of
from pulsarctl_wire.broker.storage.log import Position
from pulsarctl_wire.broker.storage.transactions import Id, id_of
from pulsarctl_wire.broker.topics.joining import check_subscribe
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    ServerError,
)

_UNSIGNED: Final = 1 << 64
_UNDECODABLE: Final = (
    "Failed to get batch size for entry java.lang.IllegalStateException: Some required fields are missing"
)


def subscribe(broker: Broker, connection: Connection, body: CommandSubscribe, frame: Frame) -> Waiting | None:
    """SUBSCRIBE. If the id is in use, that consumer is the answer, whatever else the command says."""
    name = topic_of(connection, body.topic)
    check_wire(body.schema)
    identity, subscription = connection.identity, connection.text(body.subscription)
    identity.check_tenant(name.namespace)
    identity.check_prefix(name, subscription)
    identity.authorize("subscribe", name, "consume", subscription=subscription)
    size = sum(len(key) + len(value) for key, value in connection.pairs(body.metadata).items())
    most = connection.settings.maxConsumerMetadataSize
    if size > most:
        raise Refused("MetadataError", f"metadata has a max size of {most} bytes")
    known = connection.consumers.get(body.consumer_id)
    if isinstance(known, Opening):
        if known.cancelled:
            raise Refused("UnknownError", "Consumer that failed is already present on the connection")
        raise Refused("ServiceNotReady", "Consumer is already present on the connection")
    if known is not None:
        connection.send("SUCCESS", request_id=body.request_id)
        return None
    connection.consumers[body.consumer_id] = opening = Opening()
    return _open(broker, connection, body, name, opening)


async def _open(
    broker: Broker, connection: Connection, body: CommandSubscribe, name: TopicName, opening: Opening
) -> None:
    subscription = connection.text(body.subscription)
    try:
        topic = await _topic(broker, connection, body, name)
        check_subscribe(topic, connection, body, subscription)
        if body.HasField("schema"):
            await topic.check_consumer_schema(body.schema)
        it = await topic.subscribe(connection, body, subscription)
    except Refused:
        if opening.cancelled:
            return
        raise
    finally:
        if connection.consumers.get(body.consumer_id) is opening:
            del connection.consumers[body.consumer_id]
    if opening.cancelled or connection.closed:
        it.subscription.remove(it)
        return
    connection.consumers[it.id] = it
    connection.send("SUCCESS", request_id=body.request_id)
    if topic.migrated is not None:
        it.subscription.check_end()


async def _topic(broker: Broker, connection: Connection, body: CommandSubscribe, name: TopicName) -> AnyTopic:
    try:
        return await broker.topic(name, create=body.force_topic_creation)
    except Refused as refused:
        if refused.code != "TopicNotFound":
            raise
        raise Refused(refused.code, f"Topic {name.full} does not exist") from None


def _consumer(connection: Connection, consumer_id: int) -> Consumer | None:
    it = connection.consumers.get(consumer_id)
    return it if isinstance(it, Consumer) else None


def flow(broker: Broker, connection: Connection, body: CommandFlow, frame: Frame) -> None:
    """FLOW: more permits."""
    it = _consumer(connection, body.consumer_id)
    if it is None:
        return
    if not 0 < body.messagePermits < 1 << 31:
        raise Violation("FLOW without permits")
    it.flow(body.messagePermits)


def ack(broker: Broker, connection: Connection, body: CommandAck, frame: Frame) -> None:
    """ACK. It is always answered by success, but not at all for an unknown consumer."""
    it = _consumer(connection, body.consumer_id)
    if it is None:
        return
    if len({pair.key for pair in body.properties}) < len(body.properties):
        raise Violation("a property of ACK comes twice")
    cumulative, txn = body.ack_type == CommandAck.Cumulative, id_of(body)
    if cumulative and (len(body.message_id) != 1 or it.kind in INDIVIDUAL):
        pass  # ignored, but answered
    elif txn is not None:
        try:
            _ack_in_transaction(it, txn, body)
        except Refused as refused:
            if body.HasField("request_id"):
                error = {"error": ServerError.Value(refused.code), "message": str(refused)}
                connection.send("ACK_RESPONSE", consumer_id=it.id, request_id=body.request_id, **error)
            return
    elif cumulative:
        it.subscription.ack_until(it, body.message_id[0])
    else:
        it.subscription.ack(it, body.message_id)
    if body.HasField("request_id"):
        broker.cluster.journal.when_synced(_acked, connection, body.consumer_id, body.request_id)


def _ack_in_transaction(it: Consumer, txn: Id, body: CommandAck) -> None:
    on = it.connection.settings.transactionCoordinatorEnabled
    if not on or not isinstance(it.subscription, Subscription):
        raise thrown("NotAllowedError", "Server don't support transaction ack!", "NotAllowedException")
    pending = it.subscription.transactions
    if body.ack_type == CommandAck.Cumulative:
        pending.ack_until(txn, body.message_id[0])
    else:
        pending.ack(txn, body.message_id)


def _acked(connection: Connection, consumer_id: int, request_id: int) -> None:
    connection.send("ACK_RESPONSE", consumer_id=consumer_id, request_id=request_id)


def redeliver(
    broker: Broker, connection: Connection, body: CommandRedeliverUnacknowledgedMessages, frame: Frame
) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
    it = _consumer(connection, body.consumer_id)
    if it is None:
        return
    if body.HasField("consumer_epoch") and body.consumer_epoch > it.epoch:
        it.epoch = body.consumer_epoch
    it.subscription.redeliver(it, body.message_ids)


def seek(broker: Broker, connection: Connection, body: CommandSeek, frame: Frame) -> Waiting | None:
    """SEEK, to a message or a time."""
    subscription = _known(connection, body.consumer_id).subscription
    if not body.HasField("message_id") and not body.HasField("message_publish_time"):
        raise Refused("MetadataError", "Message id and message publish time were not present")
    if not isinstance(subscription, Subscription):
        connection.send("SUCCESS", request_id=body.request_id)
        return None
    return _seek(connection, body, subscription)


async def _seek(connection: Connection, body: CommandSeek, subscription: Subscription) -> None:
    mask, topic = 0, subscription.topic
    subscription.seeks += 1
    number = subscription.seeks
    if body.HasField("message_id"):
        index = topic.locate(body.message_id)
        mask = mask_of(body.message_id.ack_set)
        if not connection.settings.acknowledgmentAtBatchIndexLevelEnabled:
            mask = 0
    else:
        index = await topic.index_at(body.message_publish_time)
    if number == subscription.seeks:  # else a later SEEK has overtaken it, and holds
        await subscription.reset(index, mask)
    connection.send("SUCCESS", request_id=body.request_id)


def _known(connection: Connection, consumer_id: int) -> Consumer:
    it = _consumer(connection, consumer_id)
    if it is None:
        raise Refused("MetadataError", "Consumer not found")
    return it


async def _unsubscribe(connection: Connection, body: CommandUnsubscribe, it: Consumer) -> None:
    await it.subscription.delete(asked_by=it, force=body.force)
    connection.send("SUCCESS", request_id=body.request_id)


def unsubscribe(broker: Broker, connection: Connection, body: CommandUnsubscribe, frame: Frame) -> Waiting:
    """UNSUBSCRIBE: deletes the subscription."""
    it = _known(connection, body.consumer_id)
    if body.force or it.subscription.consumers == [it]:
        del connection.consumers[body.consumer_id]
    return _unsubscribe(connection, body, it)


def close_consumer(broker: Broker, connection: Connection, body: CommandCloseConsumer, frame: Frame) -> None:
    """CLOSE_CONSUMER. A SUBSCRIBE that waits is dropped; until then, its id cannot be used again."""
    it = connection.consumers.get(body.consumer_id)
    if not isinstance(it, Opening):
        connection.consumers.pop(body.consumer_id, None)
    if it is not None:
        it.leave()
    connection.send("SUCCESS", request_id=body.request_id)


def consumer_stats(broker: Broker, connection: Connection, body: CommandConsumerStats, frame: Frame) -> None:
    """CONSUMER_STATS. Rates are not measured."""
    it = connection.consumers.get(body.consumer_id)
    if it is None:
        raise Violation("CONSUMER_STATS for an unknown consumer")
    if not isinstance(it, Consumer):
        error = {
            "error_code": ServerError.ConsumerNotFound,
            "error_message": f"Consumer {body.consumer_id} not found",
        }
        connection.send("CONSUMER_STATS_RESPONSE", request_id=body.request_id, **error)
        return
    since = datetime.fromtimestamp(it.since_ms / 1000, timezone.utc)
    connection.send(
        "CONSUMER_STATS_RESPONSE",
        request_id=body.request_id,
        msgRateOut=0.0,
        msgThroughputOut=0.0,
        msgRateRedeliver=0.0,
        consumerName=it.name,
        availablePermits=it.permits % _UNSIGNED,
        unackedMessages=it.unacked % _UNSIGNED,
        blockedConsumerOnUnackedMsgs=it.blocked,
        address=connection.address,
        connectedSince=since.isoformat().replace("+00:00", "Z"),
        msgBacklog=getattr(it.subscription, "backlog", 0),
        msgRateExpired=0.0,
        messageAckRate=0.0,
        type=CommandSubscribe.SubType.Name(it.kind),  # type: ignore[arg-type]
    )


def get_last_message_id(
    broker: Broker, connection: Connection, body: CommandGetLastMessageId, frame: Frame
) -> Waiting:
    """GET_LAST_MESSAGE_ID: the last message of the topic, and where the subscription is."""
    it = _known(connection, body.consumer_id)
    subscription = it.subscription
    if not isinstance(subscription, Subscription):
        raise Refused("UnknownError", "Failed to recover Transaction Buffer.")
    return _last_id(connection, body.request_id, it, subscription)


async def _last_id(connection: Connection, request_id: int, it: Consumer, subscription: Subscription) -> None:
    position, batch_index, topic = Position(-1, -1), -1, subscription.topic
    entry = await topic.last_entry()
    if entry is not None and it.read_compacted and entry.index < topic.compaction.horizon:
        entry = await topic.compaction.last_entry()
    if entry is not None and entry.metadata is None:
        raise Refused("MetadataError", _UNDECODABLE)
    if entry is not None:
        position = topic.log.position(entry.index)
        assert entry.metadata is not None
        if entry.metadata.HasField("num_messages_in_batch"):
            batch_index = entry.count - 1
    connection.send(
        "GET_LAST_MESSAGE_ID_RESPONSE",
        request_id=request_id,
        last_message_id=_id(position, partition=topic.partition, batch_index=batch_index),
        consumer_mark_delete_position=_id(topic.log.before(subscription.cursor.mark)),
    )


def _id(position: Position, **fields: int) -> dict[str, int]:
    return {"ledgerId": position.ledger % _UNSIGNED, "entryId": position.entry % _UNSIGNED, **fields}
