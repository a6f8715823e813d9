"""Policies of topics: those of the topic itself, else of its namespace, else the broker's settings.

Both levels are stored with the names that Pulsar's admin API has for them (`TopicPolicies`, `Policies`).
"""

from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.tenancy.limits import Rate
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces

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


class SendRules(NamedTuple):
    """What policies mean for each SEND.

    `longest_delay_ms` and `largest`, an entry's bytes, are 0 if there is no limit.
    """

    encrypted: bool
    largest: int
    longest_delay_ms: int
    deduplicates: bool
    limits_rate: bool


class DispatchRules(NamedTuple):
    """What policies mean for deliveries.

    `rates` are those of the broker, the topic, and each of its subscriptions. `most_unacked` is how many
    messages of a subscription may be unacknowledged, 0: any number.
    """

    rates: tuple[Rate, Rate, Rate]
    most_unacked: int


def rate_of_all(settings: Settings) -> Rate:
    """How fast all topics of a broker together may be published to."""
    return Rate(
        settings.brokerPublisherThrottlingMaxMessageRate, settings.brokerPublisherThrottlingMaxByteRate
    )


class TopicPolicies:
    """The policies of a loaded topic. `own` are those of the topic itself, once they have been read."""

    def __init__(self, name: TopicName, namespaces: Namespaces, settings: Settings) -> None:
        self._name = name
        self._namespaces = namespaces
        self._settings = settings
        self.own: dict[str, Any] = {}

    def read(self) -> None:
        """Read the topic's own policies again: they have changed."""
        self.own = self._namespaces.topic_policies(self._name)

    def policy(self, what: str) -> Any:
        """A policy by its name in this module; None if neither the topic nor its namespace has it."""
        of_topic, of_namespace = _NAMES[what]
        if of_topic and (value := self.own.get(of_topic)) is not None:
            return value
        value = self._namespaces.policies(self._name.namespace).get(of_namespace)
        if value is not None and what in _BY_CLUSTER:
            return value.get(self._settings.clusterName)
        return value

    def limit(self, what: str, default: int) -> int:
        """A policy that is a number; `default` if there is none."""
        value = self.policy(what)
        return default if value is None else int(value)

    def retention(self) -> Retention:
        """How much of a topic is kept that is acknowledged."""
        found = self.policy("retention")
        if found is None:
            settings = self._settings
            return Retention(settings.defaultRetentionTimeInMinutes, settings.defaultRetentionSizeInMB)
        return Retention(int(found["retentionTimeInMinutes"]), int(found["retentionSizeInMB"]))

    def quotas(self) -> list[Quota]:
        """The backlog quotas of a topic: one in bytes, one in seconds."""
        found, settings = self.policy("backlog quotas") or {}, self._settings
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

    def send_rules(self) -> SendRules:
        """The rules for SENDs to a topic."""
        largest = self.limit("max message size", 0)
        return SendRules(
            bool(self.policy("encryption")),
            largest if largest < self._settings.maxMessageSize else 0,
            self._longest_delay_ms(),
            self._deduplicates(),
            self.publish_rate().limits or rate_of_all(self._settings).limits,
        )

    def dispatch_rules(self) -> DispatchRules:
        """The rules for deliveries from a topic."""
        settings = self._settings
        rates = (
            Rate(settings.dispatchThrottlingRateInMsg, settings.dispatchThrottlingRateInByte),
            self._dispatch_rate("dispatch rate"),
            self._dispatch_rate("subscription dispatch rate"),
        )
        default = settings.maxUnackedMessagesPerSubscription
        return DispatchRules(rates, self.limit("max unacked of subscription", default))

    def may_subscribe(self) -> bool:
        """Whether subscriptions may be made because a client uses them."""
        found = self.policy("automatic subscriptions")
        default = self._settings.allowAutoSubscriptionCreation
        return default if found is None else bool(found["allowAutoSubscriptionCreation"])

    def _longest_delay_ms(self) -> int:
        """For how long the delivery of a message may be delayed; 0: without limit."""
        if not self._name.is_persistent:
            return 0
        found = self._namespaces.policy(self._name, "delayed_delivery_policies")
        if found is not None:
            return found.get("maxDeliveryDelayInMillis") or 0 if found.get("active") else 0
        settings = self._settings
        return settings.delayedDeliveryMaxDelayInMillis if settings.delayedDeliveryEnabled else 0

    def _deduplicates(self) -> bool:
        """Whether a sequence id that a producer has sent before is refused."""
        own = self.policy("deduplication")
        return self._settings.brokerDeduplicationEnabled if own is None else bool(own)

    def publish_rate(self) -> Rate:
        """How fast a topic may be published to."""
        found = self.policy("publish rate") or {}
        settings = self._settings
        return Rate(
            found.get("publishThrottlingRateInMsg", settings.maxPublishRatePerTopicInMessages),
            found.get("publishThrottlingRateInByte", settings.maxPublishRatePerTopicInBytes),
        )

    def _dispatch_rate(self, what: str) -> Rate:
        """How fast messages of a topic, or of each of its subscriptions, may be delivered."""
        found = self.policy(what)
        if found:
            period = found.get("ratePeriodInSecond") or 1
            return Rate(
                found.get("dispatchThrottlingRateInMsg", -1) / period,
                found.get("dispatchThrottlingRateInByte", -1) / period,
                period,
            )
        settings = self._settings
        if what == "dispatch rate":
            return Rate(
                settings.dispatchThrottlingRatePerTopicInMsg, settings.dispatchThrottlingRatePerTopicInByte
            )
        return Rate(
            settings.dispatchThrottlingRatePerSubscriptionInMsg,
            settings.dispatchThrottlingRatePerSubscriptionInByte,
        )
