"""Metrics of a broker in the text format of Prometheus, with Pulsar's names.

Only what this broker counts; Pulsar has many more, of its storage and caches.
"""

from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.broker.clients.connection import PULSAR_VERSION
from pulsarctl_wire.broker.cluster import counters
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.delivery.consumer import BaseSubscription
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

Labels = dict[str, str]
Sample = tuple[str, Labels, float]

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _collect_topic(topic: AnyTopic, labels: Labels, rates: counters.Counts) -> Iterator[Sample]:
    counts = counters.get_topic_counts(topic)
    values = {
        "subscriptions_count": len(topic.subscriptions),
        "producers_count": len(topic.producers),
        "consumers_count": len(topic.consumers),
        "rate_in": rates.messages_in,
        "rate_out": rates.messages_out,
        "throughput_in": rates.bytes_in,
        "throughput_out": rates.bytes_out,
        "in_messages_total": counts.messages_in,
        "in_bytes_total": counts.bytes_in,
        "out_messages_total": counts.messages_out,
        "out_bytes_total": counts.bytes_out,
    }
    if isinstance(topic, PersistentTopic):
        backlogs = [subscription.backlog for subscription in topic.subscriptions.values()]
        values |= {
            "msg_backlog": sum(backlogs),
            "storage_size": topic.log.size,
            "storage_logical_size": topic.log.size,
            "storage_backlog_size": max(
                (subscription.backlog_size for subscription in topic.subscriptions.values()), default=0
            ),
        }
    for name, value in values.items():
        yield f"pulsar_{name}", labels, value


def _collect_subscription(
    subscription: BaseSubscription, labels: Labels, rates: counters.Rates
) -> Iterator[Sample]:
    counts, rate = counters.get_subscription_counts(subscription), rates.of(subscription)
    backlog = getattr(subscription, "backlog", 0)
    delayed = getattr(getattr(subscription, "dispatcher", None), "delayed_count", 0)
    values = {
        "back_log": backlog,
        "back_log_no_delayed": max(backlog - delayed, 0),
        "delayed": delayed,
        "consumers_count": len(subscription.consumers),
        "unacked_messages": sum(consumer.unacked for consumer in subscription.consumers),
        "blocked_on_unacked_messages": int(getattr(subscription, "blocked", False)),
        "msg_rate_out": rate.messages_out,
        "msg_throughput_out": rate.bytes_out,
        "msg_rate_redeliver": rate.redelivered,
        "msg_ack_rate": rate.acked,
        "msg_rate_expired": rate.expired,
        "total_msg_expired": counts.expired,
        "msg_drop_rate": 0.0,
    }
    for name, value in values.items():
        yield f"pulsar_subscription_{name}", labels, value
    yield "pulsar_out_messages_total", labels, counts.messages_out
    yield "pulsar_out_bytes_total", labels, counts.bytes_out


def _collect_broker(broker: Broker, cluster: str) -> Iterator[Sample]:
    topics = list(broker.topics.values())
    by_namespace: dict[str, int] = {}
    for topic in topics:
        by_namespace[topic.name.namespace] = by_namespace.get(topic.name.namespace, 0) + 1
    labels = {"cluster": cluster}
    yield "pulsar_version_info", {**labels, "version": PULSAR_VERSION}, 1
    yield "pulsar_active_connections", labels, len(broker.connections)
    yield "pulsar_broker_topics_count", labels, len(topics)
    subscriptions = [subscription for topic in topics for subscription in topic.subscriptions.values()]
    yield "pulsar_broker_subscriptions_count", labels, len(subscriptions)
    yield "pulsar_broker_producers_count", labels, sum(len(topic.producers) for topic in topics)
    yield (
        "pulsar_broker_consumers_count",
        labels,
        sum(len(subscription.consumers) for subscription in subscriptions),
    )
    yield (
        "pulsar_broker_msg_backlog",
        labels,
        sum(getattr(subscription, "backlog", 0) for subscription in subscriptions),
    )
    for namespace, number in sorted(by_namespace.items()):
        yield "pulsar_topics_count", {**labels, "namespace": namespace}, number


def _samples(broker: Broker) -> Iterator[Sample]:
    cluster = broker.settings.clusterName
    yield from _collect_broker(broker, cluster)
    for topic in broker.topics.values():
        labels = {"cluster": cluster, "namespace": topic.name.namespace, "topic": topic.name.full}
        yield from _collect_topic(topic, labels, broker.rates.of(topic))
        for name, subscription in topic.subscriptions.items():
            yield from _collect_subscription(subscription, {**labels, "subscription": name}, broker.rates)


def _format_labels(labels: Labels) -> str:
    return ",".join(f'{name}="{_clean(value)}"' for name, value in labels.items())


def _clean(value: str) -> str:
    return value.encode("utf-8", "replace").decode().translate(_ESCAPES)


def format_metrics(broker: Broker) -> str:
    """Return the metrics of a broker."""
    lines: dict[str, list[str]] = {}
    for name, labels, value in _samples(broker):
        lines.setdefault(name, [f"# TYPE {name} gauge"]).append(f"{name}{{{_format_labels(labels)}}} {value}")
    return "".join(f"{line}\n" for group in lines.values() for line in group)
