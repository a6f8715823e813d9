"""What can be seen of a cluster: its connections and topics as JSON values. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.broker.persistent import PersistentTopic
from pulsarctl_wire.broker.producer import Producer
from pulsarctl_wire.broker.subscription import Subscription
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ProducerAccessMode

if TYPE_CHECKING:
    from pulsarctl_wire.broker.broker import AnyTopic
    from pulsarctl_wire.broker.cluster import Cluster
    from pulsarctl_wire.broker.connection import Connection
    from pulsarctl_wire.broker.consumer import Consumer

MOST_PENDING: Final = 100
"""Ids of unacknowledged entries that are listed of a consumer."""

_STATES: Final = ("start", "connected", "closed")


def state_of(cluster: "Cluster") -> dict[str, Any]:
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
                "topics": {name: _topic(topic) for name, topic in sorted(broker.topics.items())},
            }
            for broker in cluster.brokers
        ],
        "partitioned": {
            name: row["partitions"] for name, row in sorted(cluster.namespaces.partitioned.items())
        },
    }


def _connection(connection: "Connection") -> dict[str, Any]:
    return {
        "number": connection.number,
        "client": connection.client,
        "client_version": connection.client_version,
        "protocol_version": connection.version,
        "state": _STATES[connection.state],
        "sends_being_stored": connection.pending,
        "throttled": connection.throttled,
        "client_reads_too_slowly": connection.paused,
        "producers": {str(id): each.name for id, each in _opened(connection.producers)},
        "consumers": {str(id): each.name for id, each in _opened(connection.consumers)},
    }


def _opened(found: dict[int, Any]) -> Iterable[tuple[int, Any]]:
    """Producers or consumers, without those that are not answered yet."""
    return ((id, each) for id, each in found.items() if hasattr(each, "name"))


def _topic(topic: "AnyTopic") -> dict[str, Any]:
    shown: dict[str, Any] = {
        "messages_in": topic.messages_in,
        "bytes_in": topic.bytes_in,
        "terminated": topic.terminated,
        "producers": [_producer(each) for each in topic.producers.values()],
        "subscriptions": {name: _subscription(each) for name, each in topic.subscriptions.items()},
    }
    if isinstance(topic, PersistentTopic):
        shown["entries"] = topic.log.stored - topic.log.first
        shown["last"] = list(topic.log.before(topic.log.stored))
    return shown


def _producer(producer: Producer) -> dict[str, Any]:
    return {
        "id": producer.id,
        "name": producer.name,
        "connection": producer.connection.number,
        "access_mode": ProducerAccessMode.Name(producer.mode),  # type: ignore[arg-type]
        "sends_being_stored": producer.pending,
        "messages_in": producer.messages_in,
    }


def _subscription(subscription: Any) -> dict[str, Any]:
    kind = subscription.kind
    shown: dict[str, Any] = {
        "type": None if kind is None else CommandSubscribe.SubType.Name(kind),
        "consumers": [_consumer(each, subscription) for each in subscription.consumers],
    }
    if isinstance(subscription, Subscription):
        cursor, log = subscription.cursor, subscription.topic.log
        shown["durable"] = cursor.durable
        shown["backlog"] = subscription.backlog
        shown["mark_delete"] = list(log.before(cursor.mark))
    else:
        shown["dropped"] = subscription.dropped
    return shown


def _consumer(consumer: "Consumer", subscription: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": consumer.id,
        "name": consumer.name,
        "connection": consumer.connection.number,
        "permits": consumer.permits,
        "unacknowledged": consumer.unacked,
        "blocked": consumer.blocked,
        "messages_out": consumer.messages_out,
    }
    if isinstance(subscription, Subscription):
        position = subscription.topic.log.position
        shown["pending"] = [list(position(index)) for index in sorted(consumer.pending)[:MOST_PENDING]]
        shown["pending_entries"] = len(consumer.pending)
    return shown
