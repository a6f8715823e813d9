"""Policies of topics: those of the topic itself, else of its namespace, else the broker's settings.

Both levels are stored with the names that Pulsar's admin API has for them (`TopicPolicies`, `Policies`).
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.basics.settings import Settings

if TYPE_CHECKING:
    from pulsarctl_wire.broker.topics.topic import Topic

# what -> name of the topic's policy, and of the namespace's
_NAMES: Final[dict[str, tuple[str, str]]] = {
    "automatic subscriptions": ("autoSubscriptionCreationOverride", "autoSubscriptionCreationOverride"),
    "backlog quotas": ("backLogQuotaMap", "backlog_quota_map"),
    "compaction threshold": ("compactionThreshold", "compaction_threshold"),
    "deduplication": ("deduplicationEnabled", "deduplicationEnabled"),
    "dispatch rate": ("dispatchRate", "topicDispatchRate"),
    "encryption": ("", "encryption_required"),
    "inactive topics": ("inactiveTopicPolicies", "inactive_topic_policies"),
    "max consumers": ("maxConsumerPerTopic", "max_consumers_per_topic"),
    "max consumers of subscription": ("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    "max message size": ("maxMessageSize", ""),
    "max producers": ("maxProducerPerTopic", "max_producers_per_topic"),
    "max subscriptions": ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    "max unacked": ("maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer"),
    "max unacked of subscription": (
        "maxUnackedMessagesOnSubscription",
        "max_unacked_messages_per_subscription",
    ),
    "publish rate": ("publishRate", "publishMaxMessageRate"),
    "retention": ("retentionPolicies", "retention_policies"),
    "schema compatibility": ("schemaCompatibilityStrategy", "schema_compatibility_strategy"),
    "schema updates": ("", "is_allow_auto_update_schema"),
    "schema validation": ("schemaValidationEnforced", "schema_validation_enforced"),
    "subscribe rate": ("subscribeRate", "clusterSubscribeRate"),
    "subscription types": ("subscriptionTypesEnabled", "subscription_types_enabled"),
    "subscription dispatch rate": ("subscriptionDispatchRate", "subscriptionDispatchRate"),
    "subscription expiration": ("", "subscription_expiration_time_minutes"),
    "ttl": ("messageTTLInSeconds", "message_ttl_in_seconds"),
}
_BY_CLUSTER: Final = {"publish rate", "dispatch rate", "subscribe rate", "subscription dispatch rate"}
"""Policies that a namespace has for each cluster."""


class Retention(NamedTuple):
    """How much is kept that is acknowledged: for so many minutes and up to so many MiB; -1: without limit."""

    minutes: int
    mebibytes: int

    def keeps(self, age_ms: int, size: int) -> bool:
        """Whether something is kept that old, if so many bytes are as old or younger."""
        if not self.minutes or not self.mebibytes:
            return False
        young = self.minutes < 0 or age_ms < self.minutes * 60_000
        return young and (self.mebibytes < 0 or size <= self.mebibytes << 20)


class Quota(NamedTuple):
    """A backlog quota: limits in bytes and seconds (-1: none), and what happens beyond it."""

    size: int
    seconds: int
    policy: str


def policy(topic: "Topic", what: str) -> Any:
    """A policy by its name in this module; None if neither the topic nor its namespace has it."""
    of_topic, of_namespace = _NAMES[what]
    if of_topic and (value := topic.policies.get(of_topic)) is not None:
        return value
    value = topic.broker.cluster.namespaces.policies(topic.name.namespace).get(of_namespace)
    if value is not None and what in _BY_CLUSTER:
        return value.get(topic.settings.clusterName)
    return value


def limit(topic: "Topic", what: str, default: int) -> int:
    """A policy that is a number; `default` if there is none."""
    value = policy(topic, what)
    return default if value is None else int(value)


def retention(topic: "Topic") -> Retention:
    """How much of a topic is kept that is acknowledged."""
    found = policy(topic, "retention")
    if found is None:
        settings = topic.settings
        return Retention(settings.defaultRetentionTimeInMinutes, settings.defaultRetentionSizeInMB)
    return Retention(int(found["retentionTimeInMinutes"]), int(found["retentionSizeInMB"]))


def quotas(topic: "Topic") -> list[Quota]:
    """The backlog quotas of a topic: one in bytes, one in seconds."""
    found, settings = policy(topic, "backlog quotas") or {}, topic.settings
    size, limit_gb = settings.backlogQuotaDefaultLimitBytes, settings.backlogQuotaDefaultLimitGB
    default: dict[str, Any] = {
        "limitSize": int(limit_gb * 2**30) if limit_gb > 0 else size,
        "limitTime": settings.backlogQuotaDefaultLimitSecond,
        "policy": settings.backlogQuotaDefaultRetentionPolicy,
    }
    of_size, of_age = (found.get(kind) or default for kind in ("destination_storage", "message_age"))
    return [
        Quota(of_size["limitSize"], -1, of_size["policy"]),
        Quota(-1, of_age["limitTime"], of_age["policy"]),
    ]


class Rate(NamedTuple):
    """Messages and bytes a second; 0 or less: no limit. As many as in `period` seconds may come at once."""

    messages: float
    bytes: float
    period: float = 1

    @property
    def limits(self) -> bool:
        """Whether there is a limit."""
        return self.messages > 0 or self.bytes > 0


class SendRules(NamedTuple):
    """What policies mean for each SEND.

    `longest_delay_ms` and `largest`, an entry's bytes, are 0 if there is no limit.
    """

    encrypted: bool
    largest: int
    longest_delay_ms: int
    deduplicates: bool
    limits_rate: bool


def send_rules(topic: "Topic") -> SendRules:
    """The rules for SENDs to a topic."""
    largest = limit(topic, "max message size", 0)
    return SendRules(
        bool(policy(topic, "encryption")),
        largest if largest < topic.settings.maxMessageSize else 0,
        longest_delay_ms(topic),
        deduplicates(topic),
        publish_rate(topic).limits or rate_of_all(topic.settings).limits,
    )


class DispatchRules(NamedTuple):
    """What policies mean for deliveries.

    `rates` are those of the broker, the topic, and each of its subscriptions. `most_unacked` is how many
    messages of a subscription may be unacknowledged, 0: any number.
    """

    rates: tuple[Rate, Rate, Rate]
    most_unacked: int


def dispatch_rules(topic: "Topic") -> DispatchRules:
    """The rules for deliveries from a topic."""
    settings = topic.settings
    rates = (
        Rate(settings.dispatchThrottlingRateInMsg, settings.dispatchThrottlingRateInByte),
        dispatch_rate(topic, "dispatch rate", settings),
        dispatch_rate(topic, "subscription dispatch rate", settings),
    )
    default = settings.maxUnackedMessagesPerSubscription
    return DispatchRules(rates, limit(topic, "max unacked of subscription", default))


def may_subscribe(topic: "Topic") -> bool:
    """Whether subscriptions may be made because a client uses them."""
    found = policy(topic, "automatic subscriptions")
    default = topic.settings.allowAutoSubscriptionCreation
    return default if found is None else bool(found["allowAutoSubscriptionCreation"])


def longest_delay_ms(topic: "Topic") -> int:
    """For how long the delivery of a message may be delayed; 0: without limit."""
    if not topic.name.is_persistent:
        return 0
    found = topic.broker.cluster.namespaces.policy(topic.name, "delayed_delivery_policies")
    if found is not None:
        return found.get("maxDeliveryDelayInMillis") or 0 if found.get("active") else 0
    settings = topic.settings
    return settings.delayedDeliveryMaxDelayInMillis if settings.delayedDeliveryEnabled else 0


def deduplicates(topic: "Topic") -> bool:
    """Whether a sequence id that a producer has sent before is refused."""
    own = policy(topic, "deduplication")
    return topic.settings.brokerDeduplicationEnabled if own is None else bool(own)


def publish_rate(topic: "Topic") -> Rate:
    """How fast a topic may be published to."""
    found = policy(topic, "publish rate") or {}
    settings = topic.settings
    return Rate(
        found.get("publishThrottlingRateInMsg", settings.maxPublishRatePerTopicInMessages),
        found.get("publishThrottlingRateInByte", settings.maxPublishRatePerTopicInBytes),
    )


def rate_of_all(settings: Settings) -> Rate:
    """How fast all topics of a broker together may be published to."""
    return Rate(
        settings.brokerPublisherThrottlingMaxMessageRate, settings.brokerPublisherThrottlingMaxByteRate
    )


def dispatch_rate(topic: "Topic", what: str, settings: Settings) -> Rate:
    """How fast messages of a topic, or of each of its subscriptions, may be delivered."""
    found = policy(topic, what)
    if found:
        period = found.get("ratePeriodInSecond") or 1
        return Rate(
            found.get("dispatchThrottlingRateInMsg", -1) / period,
            found.get("dispatchThrottlingRateInByte", -1) / period,
            period,
        )
    if what == "dispatch rate":
        return Rate(
            settings.dispatchThrottlingRatePerTopicInMsg, settings.dispatchThrottlingRatePerTopicInByte
        )
    return Rate(
        settings.dispatchThrottlingRatePerSubscriptionInMsg,
        settings.dispatchThrottlingRatePerSubscriptionInByte,
    )


UNLIMITED: Final = 1 << 31
"""More messages than can be delivered at once."""


class Limiter:
    """Measures how far something is beyond its rate."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left = [0.0, 0.0]
        self._at = scheduler.ticks
        self._full = True

    def room(self, rate: Rate) -> int:
        """How many messages may pass now, if any may."""
        seconds, once = (self._scheduler.ticks - self._at) / 1e9, rate.messages * rate.period
        left = once if self._full else min(self._left[0] + seconds * rate.messages, once)
        return max(int(left), 1) if rate.messages > 0 else UNLIMITED

    def take(self, rate: Rate, messages: int, size: int) -> float:
        """So much has passed. Returns for how many seconds nothing more may pass."""
        seconds, self._at = (self._scheduler.ticks - self._at) / 1e9, self._scheduler.ticks
        wait = 0.0
        for which, (most, taken) in enumerate(zip(rate[:2], (messages, size), strict=True)):
            if most <= 0:
                continue
            once = most * rate.period
            left = once if self._full else min(self._left[which] + seconds * most, once)
            self._left[which] = left = left - taken
            if left < 1:  # until there is room for one more
                wait = max(wait, (1 - left) / most)
        self._full = False
        return wait
