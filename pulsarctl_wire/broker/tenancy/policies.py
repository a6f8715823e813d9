"""Policies of topics: those of the topic itself, else of its namespace, else the broker's settings.

Both levels are stored with the names that Pulsar's admin API has for them (`TopicPolicies`, `Policies`).
"""

from typing import Any, NamedTuple

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.tenancy.limits import Rate
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.tenancy.policy_names import resolve_policy


class Retention(NamedTuple):
    """How long (minutes) and up to which size (MiB) acknowledged entries are kept.

    -1: without limit. If one of them is 0, none are kept.
    """

    minutes: int
    mebibytes: int

    def keeps(self, age_ms: int, size: int) -> bool:
        """Return whether a ledger that ended `age_ms` ago is kept.

        `size` is in bytes, of this ledger and all later ones.
        """
        if not self.minutes or not self.mebibytes:
            return False
        is_young = self.minutes < 0 or age_ms < self.minutes * 60_000
        return is_young and (self.mebibytes < 0 or size <= self.mebibytes << 20)


class Quota(NamedTuple):
    """A backlog quota: bytes (-1: no limit), seconds (0 or less: no limit), and the policy beyond them."""

    size: int
    seconds: int
    policy: str


class SendRules(NamedTuple):
    """The rules for SENDs that follow from the policies.

    `max_delay_ms` and `max_bytes` (both of an entry) are 0 if there is no limit.
    """

    requires_encryption: bool
    max_bytes: int
    max_delay_ms: int
    deduplicates: bool
    limits_rate: bool


class DispatchRules(NamedTuple):
    """The rules for deliveries that follow from the policies.

    `rates` are those of the broker, the topic, and each of its subscriptions. `max_unacked` is
    the most unacknowledged messages of a subscription, 0: no limit.
    """

    rates: tuple[Rate, Rate, Rate]
    max_unacked: int


def get_broker_rate(settings: Settings) -> Rate:
    """Return the publish rate for all topics of a broker together."""
    return Rate(
        settings.brokerPublisherThrottlingMaxMessageRate, settings.brokerPublisherThrottlingMaxByteRate
    )


class TopicPolicies:
    """The policies of a loaded topic. `own` are those of the topic itself, once read."""

    def __init__(self, name: TopicName, namespaces: Namespaces, settings: Settings) -> None:
        self._name = name
        self._namespaces = namespaces
        self._settings = settings
        self.own: dict[str, Any] = {}

    def read(self) -> None:
        """Read the topic's own policies again."""
        self.own = self._namespaces.get_topic_policies(self._name)

    def get(self, name: str) -> Any:
        """Return the policy that counts, by its name in namespaces; None if it is not set."""
        inherited = self._namespaces.get_policies(self._name.namespace)
        return resolve_policy(inherited, self.own, name, self._settings.clusterName)

    def get_limit(self, name: str, default: int) -> int:
        """Return a numeric policy; `default` if it is not set."""
        value = self.get(name)
        return default if value is None else int(value)

    def get_retention(self) -> Retention:
        """Return how long acknowledged entries are kept."""
        policy = self.get("retention_policies")
        if policy is None:
            settings = self._settings
            return Retention(settings.defaultRetentionTimeInMinutes, settings.defaultRetentionSizeInMB)
        return Retention(int(policy["retentionTimeInMinutes"]), int(policy["retentionSizeInMB"]))

    def get_quotas(self) -> list[Quota]:
        """Return the backlog quotas of a topic: one in bytes, one in seconds."""
        policies, settings = self.get("backlog_quota_map") or {}, self._settings
        limit_bytes, limit_gb = settings.backlogQuotaDefaultLimitBytes, settings.backlogQuotaDefaultLimitGB
        default: dict[str, Any] = {
            "limitSize": int(limit_gb * 2**30) if limit_gb > 0 else limit_bytes,
            "limitTime": settings.backlogQuotaDefaultLimitSecond,
            "policy": settings.backlogQuotaDefaultRetentionPolicy,
        }
        size_policy, age_policy = (
            policies.get(kind) or default for kind in ("destination_storage", "message_age")
        )
        return [
            Quota(size_policy["limitSize"], -1, size_policy["policy"]),
            Quota(-1, age_policy["limitTime"], age_policy["policy"]),
        ]

    def make_send_rules(self) -> SendRules:
        """Return the rules for SENDs to a topic."""
        max_bytes = self.get_limit("maxMessageSize", 0)
        return SendRules(
            bool(self.get("encryption_required")),
            max_bytes if max_bytes < self._settings.maxMessageSize else 0,
            self._get_max_delay_ms(),
            self._deduplicates(),
            self.get_publish_rate().has_limits or get_broker_rate(self._settings).has_limits,
        )

    def make_dispatch_rules(self) -> DispatchRules:
        """Return the rules for deliveries from a topic."""
        settings = self._settings
        rates = (
            Rate(settings.dispatchThrottlingRateInMsg, settings.dispatchThrottlingRateInByte),
            self._dispatch_rate("topicDispatchRate"),
            self._dispatch_rate("subscriptionDispatchRate"),
        )
        default = settings.maxUnackedMessagesPerSubscription
        return DispatchRules(rates, self.get_limit("max_unacked_messages_per_subscription", default))

    def can_create_subscription(self) -> bool:
        """Return whether a subscription may be created because a client uses it."""
        policy = self.get("autoSubscriptionCreationOverride")
        default = self._settings.allowAutoSubscriptionCreation
        return default if policy is None else bool(policy["allowAutoSubscriptionCreation"])

    def _get_max_delay_ms(self) -> int:
        """Return the longest delivery delay; 0: no limit."""
        if not self._name.is_persistent:
            return 0
        policy = self.get("delayed_delivery_policies")
        if policy is not None:
            return policy.get("maxDeliveryDelayInMillis") or 0 if policy.get("active") else 0
        settings = self._settings
        return settings.delayedDeliveryMaxDelayInMillis if settings.delayedDeliveryEnabled else 0

    def _deduplicates(self) -> bool:
        """Return whether SENDs with a known sequence id are dropped."""
        policy = self.get("deduplicationEnabled")
        return self._settings.brokerDeduplicationEnabled if policy is None else bool(policy)

    def get_publish_rate(self) -> Rate:
        """Return the publish rate of a topic."""
        policy = self.get("publishMaxMessageRate") or {}
        settings = self._settings
        return Rate(
            policy.get("publishThrottlingRateInMsg", settings.maxPublishRatePerTopicInMessages),
            policy.get("publishThrottlingRateInByte", settings.maxPublishRatePerTopicInBytes),
        )

    def _dispatch_rate(self, name: str) -> Rate:
        """Return the dispatch rate of a topic, or of each of its subscriptions, by the policy's name."""
        policy = self.get(name)
        if policy:
            period = policy.get("ratePeriodInSecond") or 1
            return Rate(
                policy.get("dispatchThrottlingRateInMsg", -1) / period,
                policy.get("dispatchThrottlingRateInByte", -1) / period,
                period,
            )
        settings = self._settings
        if name == "topicDispatchRate":
            return Rate(
                settings.dispatchThrottlingRatePerTopicInMsg, settings.dispatchThrottlingRatePerTopicInByte
            )
        return Rate(
            settings.dispatchThrottlingRatePerSubscriptionInMsg,
            settings.dispatchThrottlingRatePerSubscriptionInByte,
        )
