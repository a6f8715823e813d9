"""The state report of a cluster: its connections and topics as JSON values (docs/broker.md). Pure."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pulsarctl_wire.broker.clients.connection import STATES, Connection
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Cluster
from pulsarctl_wire.broker.delivery.consumer import BaseSubscription, Consumer
from pulsarctl_wire.broker.delivery.key_ranges import Range
from pulsarctl_wire.broker.delivery.key_shared import KeyShared
from pulsarctl_wire.broker.topics.non_persistent import NonPersistentSubscription
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.broker.topics.topic import Producer
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ProducerAccessMode, Schema

MAX_LISTED: Final = 100
"""The most items in a list: the first entries, ranges or transactions, and the last ledgers."""


def report_state(cluster: Cluster) -> dict[str, Any]:
    """Return the state of brokers, connections, topics and transactions."""
    return {
        "time_ms": cluster.scheduler.time_ms,
        "brokers": [
            {
                "number": broker.number,
                "alive": broker.alive,
                "service_url": broker.service_url,
                "http_url": broker.http_url,
                "connections": [_connection(item) for item in broker.connections.values()],
                "topics": {name: _topic(cluster, topic) for name, topic in sorted(broker.topics.items())},
            }
            for broker in cluster.brokers
        ],
        "partitioned": {
            name: row["partitions"] for name, row in sorted(cluster.namespaces.partitioned.items())
        },
        "transactions": {
            key: {
                "opened_ms": row["opened"],
                "timeout_ms": row["ttl"],
                "topics": row["topics"],
                "subscriptions": row["subscriptions"],
            }
            for key, row in islice(cluster.journal.table("transactions").items(), MAX_LISTED)
        },
    }


def _connection(connection: Connection) -> dict[str, Any]:
    return {
        "number": connection.number,
        "client": connection.client,
        "client_version": connection.client_version,
        "protocol_version": connection.version,
        "state": STATES[connection.state],
        "role": connection.identity.role.name,
        "sends_being_stored": connection.pending,
        "throttled": connection.throttled,
        "client_reads_too_slowly": connection.paused,
        "producers": {
            str(id): item.name for id, item in connection.producers.items() if isinstance(item, Producer)
        },
        "consumers": {
            str(id): item.name for id, item in connection.consumers.items() if isinstance(item, Consumer)
        },
    }


def _topic(cluster: Cluster, topic: AnyTopic) -> dict[str, Any]:
    schema = cluster.schemas.get(topic.name)
    report: dict[str, Any] = {
        "messages_in": topic.messages_in,
        "bytes_in": topic.bytes_in,
        "terminated": topic.terminated,
        "migrated": topic.migrated and list(topic.migrated),
        "epoch": topic.epoch,
        "schema": schema and {"type": Schema.Type.Name(schema.schema.type), "version": schema.number},  # type: ignore[arg-type]
        "producers": [_producer(producer, topic) for producer in topic.producers.values()],
        "waiting_producers": [producer.name for producer, _ in topic.waiting_producers],
        "subscriptions": {name: _subscription(item) for name, item in topic.subscriptions.items()},
    }
    if isinstance(topic, PersistentTopic):
        log, compacted = topic.log, topic.compaction.horizon
        report["entries"] = log.stored_end - log.first
        report["last"] = list(log.position_before(log.stored_end))
        report["ledgers"] = [ledger.id for ledger in log.ledgers[-MAX_LISTED:]]
        report["compacted_until"] = list(log.position_before(compacted)) if compacted else None
        report["transactions"] = list(islice(topic.transactions.open_keys, MAX_LISTED))
    return report


def _producer(producer: Producer, topic: AnyTopic) -> dict[str, Any]:
    report = {
        "id": producer.id,
        "name": producer.name,
        "connection": producer.connection.number,
        "access_mode": ProducerAccessMode.Name(producer.mode),  # type: ignore[arg-type]
        "sends_being_stored": producer.pending,
        "messages_in": producer.messages_in,
    }
    if isinstance(topic, PersistentTopic):
        report["last_sequence_id"] = topic.get_last_sequence(producer.name)
    return report


def _subscription(subscription: Subscription | NonPersistentSubscription) -> dict[str, Any]:
    kind, dispatcher = subscription.kind, getattr(subscription, "dispatcher", None)
    ranges = dispatcher.key_ranges.list_ranges() if isinstance(dispatcher, KeyShared) else None
    report: dict[str, Any] = {
        "type": None if kind is None else CommandSubscribe.SubType.Name(kind),  # type: ignore[arg-type]
        "consumers": [_consumer(consumer, subscription, ranges) for consumer in subscription.consumers],
    }
    if not isinstance(subscription, Subscription):
        report["dropped"] = subscription.dropped
        return report
    cursor, log = subscription.cursor, subscription.topic.log
    active = getattr(dispatcher, "active", None)
    redelivered = {} if dispatcher is None else dispatcher.redelivered
    return report | {
        "durable": cursor.durable,
        "properties": cursor.properties,
        "active_consumer": active and active.name,
        "backlog": subscription.backlog,
        "unacknowledged": subscription.unacked,
        "blocked": subscription.blocked,
        "delayed": getattr(dispatcher, "delayed_count", 0),
        "expired": subscription.expired_messages,
        "mark_delete": list(subscription.mark_id),
        "acknowledged": [
            [list(log.position(start)), list(log.position(stop - 1))]
            for start, stop in cursor.list_acked(log.stored_end)[:MAX_LISTED]
        ],
        "acknowledged_in_transactions": len(subscription.transactions.hidden),
        "redelivered": [
            [*log.position(index), times] for index, times in sorted(redelivered.items())[:MAX_LISTED]
        ],
    }


def _consumer(
    consumer: Consumer, subscription: BaseSubscription, ranges: Iterable[Range] | None
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "id": consumer.id,
        "name": consumer.name,
        "connection": consumer.connection.number,
        "priority": consumer.priority,
        "permits": consumer.permits,
        "unacknowledged": consumer.unacked,
        "blocked": consumer.blocked,
        "messages_out": consumer.messages_out,
        "messages_redelivered": consumer.redelivered,
    }
    if isinstance(subscription, Subscription):
        position = subscription.topic.log.position
        report["pending"] = [list(position(index)) for index in sorted(consumer.pending)[:MAX_LISTED]]
        report["pending_entries"] = len(consumer.pending)
    if ranges is not None:
        own_ranges = ([start, end] for start, end, owner in ranges if owner is consumer)
        report["key_ranges"] = list(islice(own_ranges, MAX_LISTED))
    return report
