"""Policies of namespaces and of topics in the admin API: a row each.

A row has a policy's path, its name in a namespace's policies, the shape of its body, and the answer while it
is not set.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pulsarctl_wire.broker.admin.base import (
    MAX_LONG,
    NAMESPACE,
    TOPIC,
    Answer,
    Problem,
    Request,
    Route,
)
from pulsarctl_wire.broker.admin.shapes import (
    AUTO_SUBSCRIPTION,
    AUTO_TOPIC,
    DELAYED,
    INACTIVE,
    INTERVAL,
    NO_RATE,
    NO_SUBSCRIBE,
    OLD_STRATEGY,
    PERSISTENCE,
    PUBLISH,
    RATE,
    RETENTION,
    STRATEGY,
    SUBSCRIBE,
    TTL,
    TYPES,
    Number,
    OneOf,
    Truth,
)
from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.tenancy.policy_names import PER_CLUSTER, read_namespace_policy, read_topic_policy

# -- answers while a policy is not set

OK_EMPTY: Final = Answer(200)
NO_CONTENT: Final = Answer(204)


class Policy(NamedTuple):
    """A policy: its path below the namespace or topic, its name in namespaces, its shape.

    `unset` is the answer while it is not set, `find_default` returns the default in the settings, and
    `methods` set and remove it.
    """

    path: str
    name: str
    body: Any
    unset: Answer = OK_EMPTY
    methods: str = "POST DELETE"
    find_default: Callable[[Settings], Any] | None = None


def _ok(value: Any) -> Answer:
    return Answer(200, value)


def _make_count_policy(path: str, name: str, unset: Answer = OK_EMPTY, refusal: str = "") -> Policy:
    return Policy(path, name, Number(refusal or f"{path} must be 0 or more"), unset)


_UNACKED: Final = "maxUnackedNum must be 0 or more"
_TOO_LARGE: Final = (
    "topic-level maxMessageSize must be greater than or equal to 0 "
    "and must be smaller than that in the broker-level"
)


OF_NAMESPACE: Final = (
    Policy("retention", "retention_policies", RETENTION),
    Policy(
        "messageTTL",
        "message_ttl_in_seconds",
        Number("Invalid value for message TTL, message TTL must >= 0"),
    ),
    Policy("deduplication", "deduplicationEnabled", Truth()),
    Policy(
        "deduplicationSnapshotInterval", "deduplicationSnapshotIntervalSeconds", INTERVAL, OK_EMPTY, "POST"
    ),
    Policy("encryptionRequired", "encryption_required", Truth(), _ok(False), "POST"),
    Policy("publishRate", "publishMaxMessageRate", PUBLISH),
    Policy("dispatchRate", "topicDispatchRate", RATE),
    Policy("subscriptionDispatchRate", "subscriptionDispatchRate", RATE),
    Policy("replicatorDispatchRate", "replicatorDispatchRate", RATE),
    Policy("subscribeRate", "clusterSubscribeRate", SUBSCRIBE),
    _make_count_policy("maxProducersPerTopic", "max_producers_per_topic"),
    _make_count_policy("maxConsumersPerTopic", "max_consumers_per_topic"),
    _make_count_policy("maxConsumersPerSubscription", "max_consumers_per_subscription"),
    _make_count_policy("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
    _make_count_policy("maxTopicsPerNamespace", "max_topics_per_namespace", _ok(0)),
    _make_count_policy("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
    _make_count_policy("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
    _make_count_policy(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        refusal="Invalid value for subscription expiration time",
    ),
    Policy("autoTopicCreation", "autoTopicCreationOverride", AUTO_TOPIC),
    Policy("autoSubscriptionCreation", "autoSubscriptionCreationOverride", AUTO_SUBSCRIPTION),
    Policy("inactiveTopicPolicies", "inactive_topic_policies", INACTIVE),
    Policy("delayedDelivery", "delayed_delivery_policies", DELAYED),
    Policy(
        "compactionThreshold",
        "compaction_threshold",
        Number("compactionThreshold must be 0 or more", MAX_LONG),
        methods="PUT DELETE",
    ),
    Policy("persistence", "persistence", PERSISTENCE),
    Policy("subscriptionTypesEnabled", "subscription_types_enabled", TYPES, _ok([])),
    Policy("subscriptionAuthMode", "subscription_auth_mode", OneOf(("None", "Prefix")), _ok("None"), "POST"),
    Policy("schemaCompatibilityStrategy", "schema_compatibility_strategy", STRATEGY, _ok("UNDEFINED"), "PUT"),
    Policy(
        "schemaAutoUpdateCompatibilityStrategy",
        "schema_auto_update_compatibility_strategy",
        OLD_STRATEGY,
        NO_CONTENT,
        "PUT",
    ),
    Policy("isAllowAutoUpdateSchema", "is_allow_auto_update_schema", Truth(), _ok(True), "POST"),
    Policy("schemaValidationEnforced", "schema_validation_enforced", Truth(), _ok(False), "POST"),
    Policy(
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistentEnabled",
        Truth(True),
        _ok(False),
    ),
)


def _derive_topic_policy(
    path: str, /, find_default: Callable[[Settings], Any] | None = None, **changes: Any
) -> Policy:
    """Return the namespaces' policy at `path` as a policy of topics, with these fields changed."""
    policy = next(policy for policy in OF_NAMESPACE if policy.path == path)
    return policy._replace(find_default=find_default, **changes)


OF_TOPIC: Final = (
    _derive_topic_policy("retention", lambda _: {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    _derive_topic_policy("messageTTL", lambda _: 0, body=TTL),
    _derive_topic_policy(
        "deduplication", lambda settings: settings.brokerDeduplicationEnabled, path="deduplicationEnabled"
    ),
    _make_count_policy(
        "deduplicationSnapshotInterval",
        "deduplicationSnapshotIntervalSeconds",
        refusal="interval must be 0 or more",
    ),
    _derive_topic_policy("publishRate", unset=NO_CONTENT),
    _derive_topic_policy("dispatchRate", lambda _: NO_RATE),
    _derive_topic_policy("subscriptionDispatchRate", lambda _: NO_RATE),
    _derive_topic_policy("replicatorDispatchRate", lambda _: NO_RATE),
    _derive_topic_policy("subscribeRate", lambda _: NO_SUBSCRIBE),
    _make_count_policy("maxProducers", "max_producers_per_topic")._replace(
        find_default=lambda settings: settings.maxProducersPerTopic
    ),
    _make_count_policy("maxConsumers", "max_consumers_per_topic")._replace(
        find_default=lambda settings: settings.maxConsumersPerTopic
    ),
    _make_count_policy(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        NO_CONTENT,
        "Invalid value for maxConsumersPerSubscription",
    ),
    _derive_topic_policy("maxSubscriptionsPerTopic", unset=NO_CONTENT),
    _make_count_policy("maxMessageSize", "maxMessageSize", NO_CONTENT, _TOO_LARGE),
    _make_count_policy(
        "maxUnackedMessagesOnConsumer", "max_unacked_messages_per_consumer", refusal=_UNACKED
    )._replace(find_default=lambda settings: settings.maxUnackedMessagesPerConsumer),
    _make_count_policy(
        "maxUnackedMessagesOnSubscription", "max_unacked_messages_per_subscription", refusal=_UNACKED
    )._replace(find_default=lambda settings: settings.maxUnackedMessagesPerSubscription),
    _derive_topic_policy(
        "compactionThreshold",
        lambda _: 0,
        body=Number("Invalid value for compactionThreshold", MAX_LONG),
        methods="POST DELETE",
    ),
    _derive_topic_policy(
        "autoSubscriptionCreation",
        lambda settings: {"allowAutoSubscriptionCreation": settings.allowAutoSubscriptionCreation},
    ),
    _derive_topic_policy(
        "inactiveTopicPolicies",
        lambda settings: {
            "inactiveTopicDeleteMode": settings.brokerDeleteInactiveTopicsMode,
            "maxInactiveDurationSeconds": (
                settings.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
                or settings.brokerDeleteInactiveTopicsFrequencySeconds
            ),
            "deleteWhileInactive": settings.brokerDeleteInactiveTopicsEnabled,
        },
    ),
    _derive_topic_policy(
        "delayedDelivery",
        lambda settings: {
            "tickTime": settings.delayedDeliveryTickTimeMillis,
            "active": settings.delayedDeliveryEnabled,
            "maxDeliveryDelayInMillis": 0,
        },
    ),
    _derive_topic_policy(
        "persistence",
        lambda _: {
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 0.1,
        },
    ),
    _derive_topic_policy("subscriptionTypesEnabled"),
    _derive_topic_policy(
        "schemaCompatibilityStrategy",
        lambda settings: settings.schemaCompatibilityStrategy,
        unset=OK_EMPTY,
        methods="PUT DELETE",
    ),
    _derive_topic_policy("schemaValidationEnforced"),
    _derive_topic_policy("dispatcherPauseOnAckStatePersistent"),
)

# -- backlog quotas

DEFAULT_QUOTA: Final = {
    "limit": 10 << 30,
    "limitSize": 10 << 30,
    "limitTime": -1,
    "policy": "producer_request_hold",
}
"""What answers show, and retention is compared with, where a topic has no quota (bytes, seconds)."""


def check_retention(retention: dict[str, Any], quotas: list[dict[str, Any]], level: str) -> None:
    """Raise Problem if retention keeps less than a backlog may have."""
    size, minutes = retention["retentionSizeInMB"], retention["retentionTimeInMinutes"]
    if all(is_within(quota, size << 20 if size > 0 else size, minutes * 60) for quota in quotas):
        return
    raise Problem(
        412,
        f"Retention Quota must exceed configured backlog quota for {level}. "
        "Please increase retention quota and retry",
    )


def is_within(quota: dict[str, Any], size: int, seconds: int) -> bool:
    """Return whether a backlog quota is smaller than what retention keeps: `size` bytes, `seconds`.

    Those that are 0 or less are not compared.
    """
    if size <= 0 and seconds <= 0:
        return True
    is_too_large = 0 < size <= quota["limitSize"]
    return not (is_too_large or 0 < seconds <= quota["limitTime"])


# -- namespaces


def apply_changes(request: Request, namespace: str, name: TopicName | None = None) -> None:
    """Apply changed policies of a namespace, or of one topic, to the loaded topics."""
    for broker in request.cluster.brokers:
        for topic in list(broker.topics.values()):
            is_affected = name is None or name.parent == topic.name.parent
            if topic.name.namespace == namespace and is_affected:
                topic.on_policies_changed()


def set_namespace_policy(request: Request, name: str, value: Any) -> None:
    """Set a policy of the namespace in the path; None removes it."""
    namespace, cluster = request.require_namespace("Namespace does not exist"), request.cluster
    if name in PER_CLUSTER:
        value = None if value is None else {cluster.settings.clusterName: value}
        if name == "topicDispatchRate":  # also under its old name
            request.namespaces.set_policy(namespace, "clusterDispatchRate", value)
    request.namespaces.set_policy(namespace, name, value)
    apply_changes(request, namespace)


_READ_FIRST: Final = {
    *("retention", "deduplicationSnapshotInterval", "maxSubscriptionsPerTopic", "maxTopicsPerNamespace"),
    *("inactiveTopicPolicies", "delayedDelivery"),
}
"""Paths of policies for which Pulsar first reads all policies of the namespace.

If the namespace is missing, the error says that its policies do not exist.
"""


def _namespace_routes(policy: Policy) -> list[Route]:
    path = f"{NAMESPACE}/{policy.path}"
    missing_text = f"Namespace {'policies does' if policy.path in _READ_FIRST else 'does'} not exist"

    async def get(request: Request) -> Answer:
        """Return a policy of a namespace."""
        namespace = request.require_namespace("Namespace does not exist")
        cluster = request.cluster.settings.clusterName
        value = read_namespace_policy(request.namespaces.get_policies(namespace), policy.name, cluster)
        return policy.unset if value is None else Answer(200, value)

    async def put(request: Request) -> Answer:
        """Set a policy of a namespace."""
        value = policy.body.read(request.body)
        namespace = request.require_namespace(missing_text)
        if policy.name == "retention_policies":
            quotas = request.namespaces.get_policies(namespace).get("backlog_quota_map", {})
            check_retention(value, list(quotas.values()), "namespace")
        set_namespace_policy(request, policy.name, value)
        return await request.finish()

    async def remove(request: Request) -> Answer:
        """Remove a policy of a namespace."""
        request.require_namespace(missing_text)
        set_namespace_policy(request, policy.name, None)
        return await request.finish()

    return [("GET", path, get), *_change_routes(policy, path, put, remove)]


def _change_routes(policy: Policy, path: str, setter: Any, remove: Any) -> list[Route]:
    return [(method, path, remove if method == "DELETE" else setter) for method in policy.methods.split()]


# -- topics


def get_policy_topic(request: Request) -> TopicName:
    """Return the topic in the path, which may have policies of its own. Raises Problem."""
    if not request.cluster.settings.topicLevelPoliciesEnabled:
        text = "Topic level policies is disabled, to enable the topic level policy and retry."
        raise Problem(405, text)
    name = request.get_known_topic()
    if name.partition >= 0 and request.namespaces.count_partitions(name.parent):
        raise Problem(412, "Not allowed to set/get topic policy for a partition")
    return name


def is_global(request: Request) -> bool:
    """Return whether the request is about the policies of all clusters."""
    return request.get_flag("isGlobal")


def set_topic_policy(request: Request, name: TopicName, policy: str, value: Any) -> None:
    """Set a policy of a topic; None removes it."""
    request.namespaces.set_topic_policy(name, policy, value, is_global=is_global(request))
    apply_changes(request, name.namespace, name)


def get_own_policies(request: Request, name: TopicName) -> dict[str, Any]:
    """Return the topic's own policies: the global or the local ones, as the request says."""
    return request.namespaces.get_topic_policies(name, is_global=is_global(request))


def _topic_routes(policy: Policy) -> list[Route]:
    path = f"{TOPIC}/{policy.path}"

    async def get(request: Request) -> Answer:
        """Return a policy of a topic; with applied=true, what counts for it."""
        name = get_policy_topic(request)
        value = read_topic_policy(get_own_policies(request, name), policy.name)
        if value is None and request.get_flag("applied"):
            value = request.namespaces.get_policy(name, policy.name)
            if value is None and policy.find_default is not None:
                value = policy.find_default(request.cluster.settings)
        return policy.unset if value is None else Answer(200, value)

    async def put(request: Request) -> Answer:
        """Set a policy of a topic."""
        name = get_policy_topic(request)
        # clients send the TTL of messages in the query, all other values in the body
        value = policy.body.read(request.query.get("messageTTL", request.body))
        if policy.name == "maxMessageSize" and value > request.cluster.settings.maxMessageSize:
            raise Problem(412, _TOO_LARGE)
        if policy.name == "retention_policies":
            quotas = request.namespaces.get_policy(name, "backlog_quota_map") or {}
            check_retention(
                value, [{**DEFAULT_QUOTA, **quota} for quota in quotas.values()] or [DEFAULT_QUOTA], "topic"
            )
        set_topic_policy(request, name, policy.name, value)
        return await request.finish()

    async def remove(request: Request) -> Answer:
        """Remove a policy of a topic."""
        set_topic_policy(request, get_policy_topic(request), policy.name, None)
        return await request.finish()

    return [("GET", path, get), *_change_routes(policy, path, put, remove)]


ROUTES: Final[tuple[Route, ...]] = (
    *(route for policy in OF_NAMESPACE for route in _namespace_routes(policy)),
    *(route for policy in OF_TOPIC for route in _topic_routes(policy)),
)
