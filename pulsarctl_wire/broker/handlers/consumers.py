"""Handlers of SUBSCRIBE and of consumers' commands. Source: b/ServerCnx (4.0)."""

from datetime import datetime, timezone
from typing import Final

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.refusal import Refused, Violation, java_refusal
from pulsarctl_wire.broker.clients.connection import Connection, Deferred, Opening
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.delivery.consumer import INDIVIDUAL_ACK_TYPES, Consumer
from pulsarctl_wire.broker.handlers.lookups import parse_topic_field
from pulsarctl_wire.broker.schemas.registry import check_wire
from pulsarctl_wire.broker.storage.cursor import mask_of
from pulsarctl_wire.broker.storage.log import Position
from pulsarctl_wire.broker.storage.transactions import Id, id_of
from pulsarctl_wire.broker.topics.subscribe_checks import check_subscribe
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


def subscribe(
    broker: Broker, connection: Connection, body: CommandSubscribe, frame: Frame
) -> Deferred | None:
    """Handle SUBSCRIBE. If a consumer has the id already, answer success, even if subscriptions differ."""
    name = parse_topic_field(connection, body.topic)
    check_wire(body.schema)
    identity, subscription = connection.identity, connection.text(body.subscription)
    identity.check_tenant(name.namespace)
    identity.check_prefix(name, subscription)
    identity.authorize("subscribe", name, "consume", subscription=subscription)
    size = sum(len(key) + len(value) for key, value in connection.read_pairs(body.metadata).items())
    max_bytes = connection.settings.maxConsumerMetadataSize
    if size > max_bytes:
        raise Refused("MetadataError", f"metadata has a max size of {max_bytes} bytes")
    endpoint = connection.consumers.get(body.consumer_id)
    if isinstance(endpoint, Opening):
        if endpoint.cancelled:
            raise Refused("UnknownError", "Consumer that failed is already present on the connection")
        raise Refused("ServiceNotReady", "Consumer is already present on the connection")
    if endpoint is not None:
        connection.send("SUCCESS", request_id=body.request_id)
        return None
    connection.consumers[body.consumer_id] = opening = Opening()
    return _open(broker, connection, body, name, opening)


async def _open(
    broker: Broker, connection: Connection, body: CommandSubscribe, name: TopicName, opening: Opening
) -> None:
    subscription = connection.text(body.subscription)
    try:
        topic = await _get_topic(broker, connection, body, name)
        check_subscribe(topic, connection, body, subscription)
        if body.HasField("schema"):
            await topic.check_consumer_schema(body.schema)
        consumer = await topic.subscribe(connection, body, subscription)
    except Refused:
        if opening.cancelled:
            return
        raise
    finally:
        if connection.consumers.get(body.consumer_id) is opening:
            del connection.consumers[body.consumer_id]
    if opening.cancelled or connection.closed:
        consumer.subscription.remove(consumer)
        return
    connection.consumers[consumer.id] = consumer
    connection.send("SUCCESS", request_id=body.request_id)
    if topic.migrated is not None:
        consumer.subscription.check_end()


async def _get_topic(
    broker: Broker, connection: Connection, body: CommandSubscribe, name: TopicName
) -> AnyTopic:
    try:
        return await broker.get_topic(name, create=body.force_topic_creation)
    except Refused as refused:
        if refused.code != "TopicNotFound":
            raise
        raise Refused(refused.code, f"Topic {name.full} does not exist") from None


def _find_consumer(connection: Connection, consumer_id: int) -> Consumer | None:
    consumer = connection.consumers.get(consumer_id)
    return consumer if isinstance(consumer, Consumer) else None


def flow(broker: Broker, connection: Connection, body: CommandFlow, frame: Frame) -> None:
    """Handle FLOW: add permits."""
    consumer = _find_consumer(connection, body.consumer_id)
    if consumer is None:
        return
    if not 0 < body.messagePermits < 1 << 31:
        raise Violation("FLOW with permits that are no positive int32")
    consumer.flow(body.messagePermits)


def ack(broker: Broker, connection: Connection, body: CommandAck, frame: Frame) -> None:
    """Handle ACK. Answer on request; only ACKs in a transaction can fail. Unknown consumers get no answer."""
    consumer = _find_consumer(connection, body.consumer_id)
    if consumer is None:
        return
    if len({pair.key for pair in body.properties}) < len(body.properties):
        raise Violation("a property of ACK comes twice")
    is_cumulative, txn = body.ack_type == CommandAck.Cumulative, id_of(body)
    if is_cumulative and (len(body.message_id) != 1 or consumer.kind in INDIVIDUAL_ACK_TYPES):
        pass  # ignored, but answered
    elif txn is not None:
        try:
            _ack_in_transaction(consumer, txn, body)
        except Refused as refused:
            if body.HasField("request_id"):
                ids = {"consumer_id": consumer.id, "request_id": body.request_id}
                connection.send("ACK_RESPONSE", **ids, **refused.fields)
            return
    elif is_cumulative:
        consumer.subscription.ack_until(consumer, body.message_id[0])
    else:
        consumer.subscription.ack(consumer, body.message_id)
    if body.HasField("request_id"):
        broker.cluster.journal.call_after_sync(_answer_ack, connection, body.consumer_id, body.request_id)


def _ack_in_transaction(consumer: Consumer, txn: Id, body: CommandAck) -> None:
    is_enabled = consumer.connection.settings.transactionCoordinatorEnabled
    if not is_enabled or not isinstance(consumer.subscription, Subscription):
        raise java_refusal("NotAllowedError", "Server don't support transaction ack!", "NotAllowedException")
    pending_acks = consumer.subscription.transactions
    if body.ack_type == CommandAck.Cumulative:
        pending_acks.ack_until(txn, body.message_id[0])
    else:
        pending_acks.ack(txn, body.message_id)


def _answer_ack(connection: Connection, consumer_id: int, request_id: int) -> None:
    connection.send("ACK_RESPONSE", consumer_id=consumer_id, request_id=request_id)


def redeliver(
    broker: Broker, connection: Connection, body: CommandRedeliverUnacknowledgedMessages, frame: Frame
) -> None:
    """Handle REDELIVER_UNACKNOWLEDGED_MESSAGES."""
    consumer = _find_consumer(connection, body.consumer_id)
    if consumer is None:
        return
    if body.HasField("consumer_epoch") and body.consumer_epoch > consumer.epoch:
        consumer.epoch = body.consumer_epoch
    consumer.subscription.redeliver(consumer, body.message_ids)


def seek(broker: Broker, connection: Connection, body: CommandSeek, frame: Frame) -> Deferred | None:
    """Handle SEEK, to a message or a time."""
    subscription = _get_consumer(connection, body.consumer_id).subscription
    if not body.HasField("message_id") and not body.HasField("message_publish_time"):
        raise Refused("MetadataError", "Message id and message publish time were not present")
    if not isinstance(subscription, Subscription):
        connection.send("SUCCESS", request_id=body.request_id)
        return None
    return _seek(connection, body, subscription)


async def _seek(connection: Connection, body: CommandSeek, subscription: Subscription) -> None:
    open_mask, topic = 0, subscription.topic
    subscription.seeks += 1
    number = subscription.seeks
    if body.HasField("message_id"):
        index = topic.locate(body.message_id)
        has_entry = index < topic.log.end  # else the message id is beyond the last one
        if has_entry and connection.settings.acknowledgmentAtBatchIndexLevelEnabled:
            open_mask = mask_of(body.message_id.ack_set)
    else:
        index = await topic.find_index_at(body.message_publish_time)
    if number == subscription.seeks:  # else a later SEEK has overtaken this one
        await subscription.reset(index, open_mask)
    connection.send("SUCCESS", request_id=body.request_id)


def _get_consumer(connection: Connection, consumer_id: int) -> Consumer:
    consumer = _find_consumer(connection, consumer_id)
    if consumer is None:
        raise Refused("MetadataError", "Consumer not found")
    return consumer


async def _unsubscribe(connection: Connection, body: CommandUnsubscribe, consumer: Consumer) -> None:
    await consumer.subscription.delete(requester=consumer, force=body.force)
    connection.send("SUCCESS", request_id=body.request_id)


def unsubscribe(broker: Broker, connection: Connection, body: CommandUnsubscribe, frame: Frame) -> Deferred:
    """Handle UNSUBSCRIBE: delete the subscription."""
    consumer = _get_consumer(connection, body.consumer_id)
    if body.force or consumer.subscription.consumers == [consumer]:
        del connection.consumers[body.consumer_id]
    return _unsubscribe(connection, body, consumer)


def close_consumer(broker: Broker, connection: Connection, body: CommandCloseConsumer, frame: Frame) -> None:
    """Handle CLOSE_CONSUMER. A pending SUBSCRIBE is cancelled; its id stays in use until it has ended."""
    consumer = connection.consumers.get(body.consumer_id)
    if not isinstance(consumer, Opening):
        connection.consumers.pop(body.consumer_id, None)
    if consumer is not None:
        consumer.leave()
    connection.send("SUCCESS", request_id=body.request_id)


def get_consumer_stats(
    broker: Broker, connection: Connection, body: CommandConsumerStats, frame: Frame
) -> None:
    """Handle CONSUMER_STATS. All rates in the answer are 0."""
    consumer = connection.consumers.get(body.consumer_id)
    if consumer is None:
        raise Violation("CONSUMER_STATS for an unknown consumer")
    if not isinstance(consumer, Consumer):
        error = {
            "error_code": ServerError.ConsumerNotFound,
            "error_message": f"Consumer {body.consumer_id} not found",
        }
        connection.send("CONSUMER_STATS_RESPONSE", request_id=body.request_id, **error)
        return
    since = datetime.fromtimestamp(consumer.since_ms / 1000, timezone.utc)
    connection.send(
        "CONSUMER_STATS_RESPONSE",
        request_id=body.request_id,
        msgRateOut=0.0,
        msgThroughputOut=0.0,
        msgRateRedeliver=0.0,
        consumerName=consumer.name,
        availablePermits=consumer.permits % _UNSIGNED,
        unackedMessages=consumer.unacked % _UNSIGNED,
        blockedConsumerOnUnackedMsgs=consumer.blocked,
        address=connection.address,
        connectedSince=since.isoformat().replace("+00:00", "Z"),
        msgBacklog=getattr(consumer.subscription, "backlog", 0),
        msgRateExpired=0.0,
        messageAckRate=0.0,
        type=CommandSubscribe.SubType.Name(consumer.kind),  # type: ignore[arg-type]
    )


def get_last_message_id(
    broker: Broker, connection: Connection, body: CommandGetLastMessageId, frame: Frame
) -> Deferred:
    """Handle GET_LAST_MESSAGE_ID: the last message of the topic, and the mark of the subscription."""
    consumer = _get_consumer(connection, body.consumer_id)
    subscription = consumer.subscription
    if not isinstance(subscription, Subscription):
        raise Refused("UnknownError", "Failed to recover Transaction Buffer.")
    return _send_last_id(connection, body.request_id, consumer, subscription)


async def _send_last_id(
    connection: Connection, request_id: int, consumer: Consumer, subscription: Subscription
) -> None:
    position, batch_index, topic = Position(-1, -1), -1, subscription.topic
    entry = await topic.read_last_entry()
    if entry is not None and consumer.read_compacted and entry.index < topic.compaction.horizon:
        entry = await topic.compaction.read_last_entry()
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
        last_message_id=_id_fields(position, partition=topic.partition, batch_index=batch_index),
        consumer_mark_delete_position=_id_fields(subscription.mark_id),
    )


def _id_fields(position: Position, **fields: int) -> dict[str, int]:
    return {"ledgerId": position.ledger % _UNSIGNED, "entryId": position.entry % _UNSIGNED, **fields}
