"""Periodic work of a broker on its topics: expiry, quotas, compaction, retention, deletion."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.cluster.cluster import AnyTopic, Broker
from pulsarctl_wire.broker.tenancy.policies import Quota
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

EVICTION_TARGET: Final = 0.9
"""The share of a size quota to which a backlog is reduced."""

Check = Callable[[Broker], Coroutine[Any, None, None]]


def _list_persistent(broker: Broker) -> list[PersistentTopic]:
    topics = list(broker.topics.values())
    return [topic for topic in topics if isinstance(topic, PersistentTopic) and not topic.closed]


async def expire(broker: Broker) -> None:
    """Acknowledge messages that are older than their time to live."""
    for topic in _list_persistent(broker):
        ttl = topic.policies.get_limit("message_ttl_in_seconds", topic.settings.ttlDurationDefaultInSeconds)
        if ttl > 0:
            index = await topic.find_index_at(topic.scheduler.time_ms - ttl * 1000)
            for subscription in topic.subscriptions.values():
                subscription.expire(index)


async def compact(broker: Broker) -> None:
    """Compact topics with many new bytes since their last compaction."""
    for topic in _list_persistent(broker):
        default = topic.settings.brokerServiceCompactionThresholdInBytes
        threshold = topic.policies.get_limit("compaction_threshold", default)
        if threshold > 0 and topic.log.estimate_size_from(topic.get_compaction_cursor().mark) > threshold:
            await topic.compaction.run()


async def trim(broker: Broker) -> None:
    """Delete entries that are acknowledged and not retained."""
    for topic in _list_persistent(broker):
        topic.trim()


async def check_quotas(broker: Broker) -> None:
    """Act on backlogs that exceed their quotas."""
    if not broker.settings.backlogQuotaCheckEnabled:
        return
    for topic in _list_persistent(broker):
        for quota in topic.policies.get_quotas():
            if not await topic.exceeds(quota):
                continue
            if quota.policy == "consumer_backlog_eviction":
                await _evict(topic, quota)
            else:
                topic.disconnect_producers()


async def _evict(topic: PersistentTopic, quota: Quota) -> None:
    """Acknowledge the oldest messages, so that every backlog is within `quota`."""
    if quota.seconds > 0:
        index = await topic.find_index_at(topic.scheduler.time_ms - quota.seconds * 1000)
    else:
        low, high = topic.log.first, topic.log.stored_end
        while low < high:
            middle = (low + high) // 2
            if topic.log.estimate_size_from(middle) > quota.size * EVICTION_TARGET:
                low = middle + 1
            else:
                high = middle
        index = low
    for subscription in topic.subscriptions.values():
        subscription.expire(index)


async def expire_subscriptions(broker: Broker) -> None:
    """Delete subscriptions that have had no consumer for too long."""
    for topic in _list_persistent(broker):
        now_ms = topic.scheduler.time_ms
        minutes = topic.policies.get_limit(
            "subscription_expiration_time_minutes", topic.settings.subscriptionExpirationTimeMinutes
        )
        for subscription in list(topic.subscriptions.values()) if minutes > 0 else ():
            if not subscription.consumers and now_ms - subscription.cursor.last_active_ms > minutes * 60_000:
                await subscription.delete(requester=None, force=False)


async def delete_unused(broker: Broker) -> None:
    """Delete topics that have been unused for long enough."""
    for topic in list(broker.topics.values()):
        if not topic.closed and _is_unused(topic, topic.scheduler.time_ms):
            await broker.delete(topic)
            await _delete_parent(broker, topic.name.parent)


async def _delete_parent(broker: Broker, name: TopicName) -> None:
    """Delete a partitioned topic that has no partitions left, if the settings say so."""
    cluster, is_enabled = broker.cluster, broker.settings.brokerDeleteInactivePartitionedTopicMetadataEnabled
    if is_enabled and not any(map(cluster.is_stored_or_loaded, cluster.catalogue.list_partitions(name))):
        await cluster.delete_partitioned(name)


async def forget_producers(broker: Broker) -> None:
    """Forget the sequence ids of producers that left long ago."""
    minutes = broker.settings.brokerDeduplicationProducerInactivityTimeoutMinutes
    for topic in _list_persistent(broker):
        topic.forget_producers(topic.scheduler.time_ms - minutes * 60_000)


def _is_unused(topic: AnyTopic, now_ms: int) -> bool:
    settings = topic.settings
    policy = topic.policies.get("inactive_topic_policies") or {}
    if not policy.get("deleteWhileInactive", settings.brokerDeleteInactiveTopicsEnabled):
        return False
    seconds = (
        policy.get("maxInactiveDurationSeconds")
        or settings.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
        or settings.brokerDeleteInactiveTopicsFrequencySeconds
    )
    # on a terminated topic a claim stays that nobody can use
    is_claimed = (topic.waiting_producers or topic.exclusive) and not topic.terminated
    if topic.producers or is_claimed or now_ms - topic.last_active_ms < seconds * 1000:
        return False
    mode = policy.get("inactiveTopicDeleteMode", settings.brokerDeleteInactiveTopicsMode)
    if mode == "delete_when_subscriptions_caught_up" and isinstance(topic, PersistentTopic):
        return not any(item.consumers or item.backlog for item in topic.subscriptions.values())
    return not topic.subscriptions


def _list_checks(settings: Settings) -> dict[Check, float]:
    """Return the checks, in order, with the seconds between two runs; 0: never."""
    return {
        expire: settings.messageExpiryCheckIntervalInMinutes * 60,
        check_quotas: settings.backlogQuotaCheckIntervalInSeconds,
        compact: settings.brokerServiceCompactionMonitorIntervalInSeconds,
        trim: settings.retentionCheckIntervalInSeconds,
        expire_subscriptions: settings.subscriptionExpiryCheckIntervalInMinutes * 60,
        delete_unused: settings.brokerDeleteInactiveTopicsFrequencySeconds,
        # a third of the timeout, as in Pulsar
        forget_producers: settings.brokerDeduplicationProducerInactivityTimeoutMinutes * 60 / 3,
    }


async def run(broker: Broker) -> None:
    """Run all checks once."""
    for check in _list_checks(broker.settings):
        await check(broker)


def start(broker: Broker) -> None:
    """Run each check from time to time."""

    async def repeat(check: Check, seconds: float) -> None:
        while True:
            await broker.scheduler.sleep(seconds)
            await check(broker)

    for check, seconds in _list_checks(broker.settings).items():
        if seconds > 0:
            broker.scheduler.start(repeat(check, seconds))
