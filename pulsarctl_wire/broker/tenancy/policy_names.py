"""The names of policies in namespaces and topics, and how they are stored (policies.py: their meaning).

Policies have the names of Pulsar's admin API: those of a namespace as in `GET /admin/v2/namespaces/T/N`,
those of a topic as in TopicPolicies. A partition has the policies of its partitioned topic.
"""

from typing import Any, Final

from pulsarctl_wire.broker.storage.journal import Row

TOPIC_NAMES: Final = {
    "autoSubscriptionCreationOverride": "autoSubscriptionCreationOverride",
    "backlog_quota_map": "backLogQuotaMap",
    "clusterSubscribeRate": "subscribeRate",
    "compaction_threshold": "compactionThreshold",
    "deduplicationEnabled": "deduplicationEnabled",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotIntervalSeconds",
    "dispatcherPauseOnAckStatePersistentEnabled": "dispatcherPauseOnAckStatePersistentEnabled",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_consumers_per_topic": "maxConsumerPerTopic",
    "max_producers_per_topic": "maxProducerPerTopic",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "max_unacked_messages_per_consumer": "maxUnackedMessagesOnConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesOnSubscription",
    "maxMessageSize": "maxMessageSize",  # topics only
    "message_ttl_in_seconds": "messageTTLInSeconds",
    "persistence": "persistence",
    "publishMaxMessageRate": "publishRate",
    "replication_clusters": "replicationClusters",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "retention_policies": "retentionPolicies",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "schema_validation_enforced": "schemaValidationEnforced",
    "subscription_types_enabled": "subscriptionTypesEnabled",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "topicDispatchRate": "dispatchRate",
}
"""Name of a policy of namespaces -> its name as a policy of topics."""

PER_CLUSTER: Final = frozenset(
    {
        "clusterDispatchRate",
        "clusterSubscribeRate",
        "publishMaxMessageRate",
        "replicatorDispatchRate",
        "subscriptionDispatchRate",
        "topicDispatchRate",
    }
)
"""Policies of namespaces that are stored by cluster."""

_DELIVERY_DELAY_FIELDS: Final = {
    "active": "delayedDeliveryEnabled",
    "tickTime": "delayedDeliveryTickTimeMillis",
    "maxDeliveryDelayInMillis": "delayedDeliveryMaxDelayInMillis",
}
"""Key in delayed_delivery_policies of a namespace -> the policy of topics that has its value."""


def read_namespace_policy(row: Row, name: str, cluster: str) -> Any:
    """Return a policy in a namespace's row, for this cluster; None if it is not set."""
    value = row.get(name)
    if name in PER_CLUSTER:
        value = (value or {}).get(cluster)
    return value


def read_topic_policy(policies: Row, name: str) -> Any:
    """Return a policy in the policies of a topic, by its name in namespaces; None if it is not set."""
    if name == "delayed_delivery_policies":
        if policies.get("delayedDeliveryEnabled") is None:
            return None
        return {key: policies.get(field) for key, field in _DELIVERY_DELAY_FIELDS.items()}
    return policies.get(TOPIC_NAMES.get(name, name))


def write_topic_policy(policies: Row, name: str, value: Any) -> None:
    """Set a policy of a topic, by its name in namespaces; None removes it."""
    fields = {TOPIC_NAMES.get(name, name): value}
    if name == "delayed_delivery_policies":
        fields = {
            field: None if value is None else value[key] for key, field in _DELIVERY_DELAY_FIELDS.items()
        }
    for field, item in fields.items():
        if item is None:
            policies.pop(field, None)
        else:
            policies[field] = item


def resolve_policy(namespace: Row, topic: Row, name: str, cluster: str) -> Any:
    """Return the policy that counts for a topic: its own, else the namespace's, else None.

    Backlog quotas are merged by their types.
    """
    value = read_topic_policy(topic, name)
    inherited = read_namespace_policy(namespace, name, cluster)
    if name == "backlog_quota_map" and (value or inherited):
        return {**(inherited or {}), **(value or {})}
    return inherited if value is None else value
