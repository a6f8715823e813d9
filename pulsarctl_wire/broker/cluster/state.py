"""What can be seen of a cluster: its connections and topics as JSON values (docs/broker.md). Pure."""

from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from pulsarctl_wire.broker.clients.connection import STATES, Connection
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Cluster
from pulsarctl_wire.broker.delivery.consumer import Consumer, Subscribed
from pulsarctl_wire.broker.delivery.key_ranges import Range
from pulsarctl_wire.broker.delivery.key_shared import KeyShared
from pulsarctl_wire.broker.topics.persistent import PersistentTopic
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.broker.topics.topic import Producer
from pulsarctl_wire.broker.topics.volatile import VolatileSubscription
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ProducerAccessMode, Schema

MAX_LISTED: Final = 100
"""Entries, ranges, ledgers and transactions that each list has; the first ones, but the last ledgers."""


def state_of(cluster: Cluster) -> dict[str, Any]:
    """Everything, at once."""
    return {
        "time_ms": cluster.scheduler.time_ms,
        "brokers": [
            {
                "number": broker.number,
                "alive": broker.alive,
                "service_url": broker.service_url,
                "http_url": broker.http_url,
                "connections": [_connection(each) for each in broker.connections.values()],
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
            str(id): each.name for id, each in connection.producers.items() if isinstance(each, Producer)
        },
        "consumers": {
            str(id): each.name for id, each in connection.consumers.items() if isinstance(each, Consumer)
        },
    }


def _topic(cluster: Cluster, topic: AnyTopic) -> dict[str, Any]:
    schema = cluster.schemas.get(topic.name)
    shown: dict[str, Any] = {
        "messages_in": topic.messages_in,
        "bytes_in": topic.bytes_in,
        "terminated": topic.terminated,
        "migrated": topic.migrated and list(topic.migrated),
        "epoch": topic.epoch,
        "schema": schema and {"type": Schema.Type.Name(schema.schema.type), "version": schema.number},  # type: ignore[arg-type]
        "producers": [_producer(each, topic) for each in topic.producers.values()],
        "waiting_producers": [producer.name for producer, _ in topic.waiting],
        "subscriptions": {name: _subscription(each) for name, each in topic.subscriptions.items()},
    }
    if isinstance(topic, PersistentTopic):
        log, compacted = topic.log, topic.compaction.horizon
        shown["entries"] = log.stored - log.first
        shown["last"] = list(log.before(log.stored))
        shown["ledgers"] = [each.id for each in log.ledgers[-MAX_LISTED:]]
        shown["compacted_until"] = list(log.before(compacted)) if compacted else None
        shown["transactions"] = list(islice(topic.transactions.open_ones, MAX_LISTED))
    return shown


def _producer(producer: Producer, topic: AnyTopic) -> dict[str, Any]:
    shown = {
        "id": producer.id,
        "name": producer.name,
        "connection": producer.connection.number,
        "access_mode": ProducerAccessMode.Name(producer.mode),  # type: ignore[arg-type]
        "sends_being_stored": producer.pending,
        "messages_in": producer.messages_in,
    }
    if isinstance(topic, PersistentTopic):
        shown["last_sequence_id"] = topic.last_sequence(producer.name)
    return shown


def _subscription(subscription: Subscription | VolatileSubscription) -> dict[str, Any]:
    kind, dispatcher = subscription.kind, getattr(subscription, "dispatcher", None)
    owned = dispatcher.selector.ranges() if isinstance(dispatcher, KeyShared) else None
    shown: dict[str, Any] = {
        "type": None if kind is None else CommandSubscribe.SubType.Name(kind),  # type: ignore[arg-type]
        "consumers": [_consumer(each, subscription, owned) for each in subscription.consumers],
    }
    if not isinstance(subscription, Subscription):
        shown["dropped"] = subscription.dropped
        return shown
    cursor, log = subscription.cursor, subscription.topic.log
    active = getattr(dispatcher, "active", None)
    redelivered = {} if dispatcher is None else dispatcher.redelivered
    return shown | {
        "durable": cursor.durable,
        "properties": cursor.properties,
        "active_consumer": active and active.name,
        "backlog": subscription.backlog,
        "unacknowledged": subscription.unacked,
        "blocked": subscription.blocked,
        "delayed": getattr(dispatcher, "delayed_count", 0),
        "expired": subscription.expired_messages,
        "mark_delete": list(log.before(cursor.mark)),
        "acknowledged": [
            [list(log.position(start)), list(log.position(stop - 1))]
            for start, stop in cursor.ranges(log.stored)[:MAX_LISTED]
        ],
        "acknowledged_in_transactions": len(subscription.transactions.hidden),
        "redelivered": [
            [*log.position(index), times] for index, times in sorted(redelivered.items())[:MAX_LISTED]
        ],
    }


def _consumer(consumer: Consumer, subscription: Subscribed, owned: Iterable[Range] | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
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
        shown["pending"] = [list(position(index)) for index in sorted(consumer.pending)[:MAX_LISTED]]
        shown["pending_entries"] = len(consumer.pending)
    if owned is not None:
        mine = ([start, end] for start, end, owner in owned if owner is consumer)
        shown["key_ranges"] = list(islice(mine, MAX_LISTED))
    return shown
