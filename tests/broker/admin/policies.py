"""Policies: what is answered before, while and after they are set."""

from __future__ import annotations

from typing import Any

from broker.admin.calls import NAMESPACES, at, call, refused

from pulsarctl_wire.conformance.basics.target import Target

DISPATCH = {
    "dispatchThrottlingRateInMsg": 10,
    "dispatchThrottlingRateInByte": 100,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
NO_DISPATCH = {**DISPATCH, "dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0}
PUBLISH = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 100}
SUBSCRIBE = {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}
RETENTION = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20_000}
AUTO_TOPIC = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
INACTIVE = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 100,
    "deleteWhileInactive": True,
}
DELAYED = {"active": True, "tickTime": 2000, "maxDeliveryDelayInMillis": 0}
PERSISTENCE = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 1.0,
}

# path, method that sets it, value, answer if unset, name in GET of the namespace; "-": it cannot be removed
OF_NAMESPACE: list[tuple[str, str, Any, Any, str]] = [
    ("retention", "POST", RETENTION, "", "retention_policies"),
    ("messageTTL", "POST", 100, "", "message_ttl_in_seconds"),
    ("deduplication", "POST", True, "", "deduplicationEnabled"),
    ("deduplicationSnapshotInterval", "POST-", 5, "", "deduplicationSnapshotIntervalSeconds"),
    ("encryptionRequired", "POST-", True, False, "encryption_required"),
    ("publishRate", "POST", PUBLISH, "", "publishMaxMessageRate"),
    ("dispatchRate", "POST", DISPATCH, "", "topicDispatchRate"),
    ("subscriptionDispatchRate", "POST", DISPATCH, "", "subscriptionDispatchRate"),
    ("replicatorDispatchRate", "POST", DISPATCH, "", "replicatorDispatchRate"),
    ("subscribeRate", "POST", SUBSCRIBE, "", "clusterSubscribeRate"),
    ("maxProducersPerTopic", "POST", 5, "", "max_producers_per_topic"),
    ("maxConsumersPerTopic", "POST", 5, "", "max_consumers_per_topic"),
    ("maxConsumersPerSubscription", "POST", 5, "", "max_consumers_per_subscription"),
    ("maxSubscriptionsPerTopic", "POST", 5, "", "max_subscriptions_per_topic"),
    ("maxTopicsPerNamespace", "POST", 5, 0, "max_topics_per_namespace"),
    ("maxUnackedMessagesPerConsumer", "POST", 5, "", "max_unacked_messages_per_consumer"),
    ("maxUnackedMessagesPerSubscription", "POST", 5, "", "max_unacked_messages_per_subscription"),
    ("subscriptionExpirationTime", "POST", 5, "", "subscription_expiration_time_minutes"),
    ("autoTopicCreation", "POST", AUTO_TOPIC, "", "autoTopicCreationOverride"),
    (
        "autoSubscriptionCreation",
        "POST",
        {"allowAutoSubscriptionCreation": False},
        "",
        "autoSubscriptionCreationOverride",
    ),
    ("inactiveTopicPolicies", "POST", INACTIVE, "", "inactive_topic_policies"),
    ("delayedDelivery", "POST", DELAYED, "", "delayed_delivery_policies"),
    ("compactionThreshold", "PUT", 100, "", "compaction_threshold"),
    ("persistence", "POST", PERSISTENCE, "", "persistence"),
    ("subscriptionTypesEnabled", "POST", ["Shared"], [], "subscription_types_enabled"),
    ("subscriptionAuthMode", "POST-", "Prefix", "None", "subscription_auth_mode"),
    ("schemaCompatibilityStrategy", "PUT-", "FORWARD", "UNDEFINED", "schema_compatibility_strategy"),
    ("isAllowAutoUpdateSchema", "POST-", False, True, "is_allow_auto_update_schema"),
    ("schemaValidationEnforced", "POST-", True, False, "schema_validation_enforced"),
]
PER_CLUSTER = ("Rate",)

# path, method that sets it, value, answer if unset, answer with applied=true
OF_TOPIC: list[tuple[str, str, Any, Any, Any]] = [
    ("retention", "POST", RETENTION, "", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    ("deduplicationEnabled", "POST", True, "", False),
    ("deduplicationSnapshotInterval", "POST", 5, "", ""),
    ("publishRate", "POST", PUBLISH, "", ""),
    ("dispatchRate", "POST", DISPATCH, "", NO_DISPATCH),
    ("subscriptionDispatchRate", "POST", DISPATCH, "", NO_DISPATCH),
    ("replicatorDispatchRate", "POST", DISPATCH, "", NO_DISPATCH),
    ("s/dispatchRate", "POST", DISPATCH, "", NO_DISPATCH),
    ("subscribeRate", "POST", SUBSCRIBE, "", {**SUBSCRIBE, "subscribeThrottlingRatePerConsumer": 0}),
    ("maxProducers", "POST", 5, "", 0),
    ("maxConsumers", "POST", 5, "", 0),
    ("maxConsumersPerSubscription", "POST", 5, "", ""),
    ("maxSubscriptionsPerTopic", "POST", 5, "", ""),
    ("maxMessageSize", "POST", 5, "", ""),
    ("maxUnackedMessagesOnConsumer", "POST", 5, "", 50_000),
    ("maxUnackedMessagesOnSubscription", "POST", 5, "", 200_000),
    ("compactionThreshold", "POST", 5, "", 0),
    (
        "autoSubscriptionCreation",
        "POST",
        {"allowAutoSubscriptionCreation": False},
        "",
        {"allowAutoSubscriptionCreation": True},
    ),
    ("inactiveTopicPolicies", "POST", INACTIVE, "", {**INACTIVE, "maxInactiveDurationSeconds": 60}),
    ("delayedDelivery", "POST", DELAYED, "", {**DELAYED, "tickTime": 1000}),
    ("persistence", "POST", PERSISTENCE, "", {**PERSISTENCE, "managedLedgerMaxMarkDeleteRate": 0.1}),
    ("schemaCompatibilityStrategy", "PUT", "FORWARD", "", "FULL"),
    ("replication", "POST", ["standalone"], "", ["standalone"]),
]


async def of_namespace(broker: Target, path: str, method: str, value: Any, unset: Any, name: str) -> None:
    """A policy of a namespace is set and removed."""
    namespace = f"{NAMESPACES}/{await broker.create_namespace()}"
    before = await broker.rest("GET", namespace)
    assert await broker.rest("GET", f"{namespace}/{path}") == unset
    await broker.rest(method.rstrip("-"), f"{namespace}/{path}", value)
    assert await broker.rest("GET", f"{namespace}/{path}") == value
    stored = {"standalone": value} if path.endswith(PER_CLUSTER) else value
    assert (await broker.rest("GET", namespace))[name] == stored
    if not method.endswith("-"):
        await broker.rest("DELETE", f"{namespace}/{path}")
        assert await broker.rest("GET", f"{namespace}/{path}") == unset
        assert await broker.rest("GET", namespace) == before


async def of_topic(broker: Target, path: str, method: str, value: Any, unset: Any, applied: Any) -> None:
    """A policy of a topic is set and removed."""
    topic = broker.topic()
    await refused(broker, 404, f"Topic {topic} not found", "GET", at(topic, path))
    await broker.rest("PUT", at(topic))
    assert await broker.rest("GET", at(topic, path)) == unset
    assert await broker.rest("GET", at(topic, f"{path}?applied=true")) == applied
    await broker.rest(method, at(topic, path), value)
    assert await broker.rest("GET", at(topic, path)) == value
    assert await broker.rest("GET", at(topic, f"{path}?applied=true")) == value
    await broker.rest("DELETE", at(topic, path))
    assert await broker.rest("GET", at(topic, path)) == unset


for _row in OF_NAMESPACE:
    call(f"namespace/policy/{_row[0]}", *_row)(of_namespace)
for _row in OF_TOPIC:
    call(f"topic/policy/{_row[0]}", *_row)(of_topic)


@call("topic/policy/messageTTL")
async def ttl_is_in_the_query(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic))
    await broker.rest("POST", at(topic, "messageTTL?messageTTL=100"))
    assert await broker.rest("GET", at(topic, "messageTTL")) == 100
    await broker.rest("DELETE", at(topic, "messageTTL"))
    assert await broker.rest("GET", at(topic, "messageTTL")) == ""


@call("topic/policy/subscriptionTypesEnabled")
async def types(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic))
    await broker.rest("POST", at(topic, "subscriptionTypesEnabled"), ["Shared"])
    assert await broker.rest("GET", at(topic, "subscriptionTypesEnabled")) == ["Shared"]
    await broker.rest("DELETE", at(topic, "subscriptionTypesEnabled"))
    assert await broker.rest("GET", at(topic, "subscriptionTypesEnabled")) == []


@call("topic/policy/inherited")
async def inherited(broker: Target) -> None:
    namespace = await broker.create_namespace()
    topic = f"persistent://{namespace}/t"
    await broker.rest("PUT", at(topic))
    await broker.rest("POST", f"{NAMESPACES}/{namespace}/maxProducersPerTopic", 7)
    assert await broker.rest("GET", at(topic, "maxProducers")) == ""
    assert await broker.rest("GET", at(topic, "maxProducers?applied=true")) == 7
    await broker.rest("POST", at(topic, "maxProducers"), 3)
    assert await broker.rest("GET", at(topic, "maxProducers?applied=true")) == 3


@call("topic/policy/of partitions")
async def of_partitions(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    await broker.rest("POST", at(topic, "maxProducers"), 1)
    assert await broker.rest("GET", at(topic, "maxProducers")) == 1
    text = "Not allowed to set/get topic policy for a partition"
    await refused(broker, 412, text, "GET", at(f"{topic}-partition-1", "maxProducers"))
    first = await broker.produce(f"{topic}-partition-1", producer_name="a")
    await broker.settle(0.6)
    await first.expect_error(
        "ProducerBusy", "PRODUCER", topic=f"{topic}-partition-1", producer_id=2, producer_name="b"
    )


@call("namespace/backlogQuota")
async def namespace_quota(broker: Target) -> None:
    namespace = f"{NAMESPACES}/{await broker.create_namespace()}"
    quota = {"limitSize": 10 << 20, "limitTime": 20, "policy": "producer_exception"}
    assert await broker.rest("GET", f"{namespace}/backlogQuotaMap") == {}
    await broker.rest("POST", f"{namespace}/backlogQuota", quota)
    age = {**quota, "limitSize": -1}
    await broker.rest("POST", f"{namespace}/backlogQuota?backlogQuotaType=message_age", age)
    found = await broker.rest("GET", f"{namespace}/backlogQuotaMap")
    assert found["destination_storage"] == {**quota, "limit": 10 << 20}
    assert found["message_age"]["limitTime"] == 20
    await refused(
        broker,
        412,
        "Retention Quota must exceed configured backlog quota for namespace",
        "POST",
        f"{namespace}/retention",
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1},
    )
    await broker.rest("DELETE", f"{namespace}/backlogQuota")
    assert set(await broker.rest("GET", f"{namespace}/backlogQuotaMap")) == {"message_age"}


@call("namespace/quotas and rates as texts")
async def quotas_and_rates_as_texts(broker: Target) -> None:
    namespace = f"{NAMESPACES}/{await broker.create_namespace()}"
    given = {"limit": "10240", "limitTime": None, "policy": "producer_exception"}
    await broker.rest("POST", f"{namespace}/backlogQuota", given)
    found = await broker.rest("GET", f"{namespace}/backlogQuotaMap")
    quota = {"limit": 10240, "limitSize": 10240, "limitTime": 0, "policy": "producer_exception"}
    assert found == {"destination_storage": quota}
    for wrong in ({"limit": "x"}, {"limit": True}, {"limitTime": "1.5"}, {"policy": "nothing"}):
        await refused(broker, 400, "", "POST", f"{namespace}/backlogQuota", {**quota, **wrong})
    rate = {"dispatchThrottlingRateInMsg": " 10 ", "relativeToPublishRate": "true", "ratePeriodInSecond": ""}
    await broker.rest("POST", f"{namespace}/dispatchRate", rate)
    found = await broker.rest("GET", f"{namespace}/dispatchRate")
    assert (found["dispatchThrottlingRateInMsg"], found["ratePeriodInSecond"]) == (10, 0)
    assert found["relativeToPublishRate"] is True
    await refused(broker, 400, "", "POST", f"{namespace}/dispatchRate", {"relativeToPublishRate": "yes"})


@call("topic/backlogQuota")
async def topic_quota(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic))
    default = {
        "limit": 10 << 30,
        "limitSize": 10 << 30,
        "limitTime": -1,
        "policy": "producer_request_hold",
    }
    assert await broker.rest("GET", at(topic, "backlogQuotaMap")) == {}
    both = {"destination_storage": default, "message_age": default}
    assert await broker.rest("GET", at(topic, "backlogQuotaMap?applied=true")) == both
    quota = {"limitSize": 10, "limitTime": 20, "policy": "producer_exception"}
    await broker.rest("POST", at(topic, "backlogQuota"), quota)
    found = await broker.rest("GET", at(topic, "backlogQuotaMap"))
    assert found == {"destination_storage": {**quota, "limit": 10}}
    await broker.rest("DELETE", at(topic, "backlogQuota"))
    assert await broker.rest("GET", at(topic, "backlogQuotaMap")) == {}


@call("topic/policy/retention below the backlog quota")
async def retention_below_quota(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic))
    small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}
    text = "Retention Quota must exceed configured backlog quota for topic"
    await refused(broker, 412, text, "POST", at(topic, "retention"), small)


REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("POST", "maxProducersPerTopic", -1, 412, "maxProducersPerTopic must be 0 or more"),
    ("POST", "maxProducersPerTopic", "x", 400, ""),
    ("POST", "messageTTL", -1, 412, "Invalid value for message TTL, message TTL must >= 0"),
    ("POST", "subscriptionExpirationTime", -1, 412, "Invalid value for subscription expiration time"),
    ("PUT", "compactionThreshold", -1, 412, "compactionThreshold must be 0 or more"),
    ("POST", "deduplicationSnapshotInterval", -1, 412, "interval must be greater than or equal to 0"),
    ("POST", "retention", [], 400, ""),
    (
        "POST",
        "retention",
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5},
        400,
        "Setting a single time or size limit to 0 is invalid",
    ),
    (
        "POST",
        "retention",
        {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5},
        400,
        "time limit must be >= -1",
    ),
    ("POST", "autoTopicCreation", {"allowAutoTopicCreation": True}, 412, "Unknown topic type [null]"),
    (
        "POST",
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "x"},
        412,
        "Unknown topic type [x]",
    ),
    (
        "POST",
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        412,
        "[defaultNumPartitions] cannot be null when the type is partitioned",
    ),
    (
        "POST",
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 0},
        412,
        "[defaultNumPartitions] is not allowed to be set",
    ),
    (
        "POST",
        "persistence",
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 0},
        400,
        "Bookkeeper-AckQuorum must be <= 5 and > 0.",
    ),
    ("POST", "backlogQuota", {"limitSize": 5}, 400, "the attribute policy cannot be null"),
    (
        "POST",
        "persistence",
        {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1},
        400,
        "Bookkeeper Ensemble (1) >= WriteQuorum (2)",
    ),
]


@call("namespace/policy/refused")
async def refusals(broker: Target) -> None:
    namespace = f"{NAMESPACES}/{await broker.create_namespace()}"
    for method, path, body, status, reason in REFUSED:
        await refused(broker, status, reason, method, f"{namespace}/{path}", body)


@call("namespace/policy/missing")
async def missing(broker: Target) -> None:
    path = f"{NAMESPACES}/public/{broker.name()}/retention"
    await refused(broker, 404, "Namespace does not exist", "GET", path)
    await refused(broker, 404, "Namespace policies does not exist", "POST", path, RETENTION)
    await refused(broker, 404, "Namespace policies does not exist", "DELETE", path)
    path = path.replace("retention", "maxProducersPerTopic")
    await refused(broker, 404, "Namespace does not exist", "POST", path, 5)
    await refused(broker, 404, "Namespace does not exist", "DELETE", path)
    await refused(broker, 412, "maxProducersPerTopic must be 0 or more", "POST", path, -5)


@call("topic/policy/refused")
async def topic_refusals(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic))
    for policy, value, reason in (
        ("maxMessageSize", 6 << 20, "must be smaller than that in the broker-level"),
        ("maxMessageSize", -1, "must be greater than or equal to 0"),
        ("maxUnackedMessagesOnConsumer", -1, "maxUnackedNum must be 0 or more"),
        ("maxConsumersPerSubscription", -1, "Invalid value for maxConsumersPerSubscription"),
        ("deduplicationSnapshotInterval", -1, "interval must be 0 or more"),
    ):
        await refused(broker, 412, reason, "POST", at(topic, policy), value)


@call("policies/values as texts")
async def values_as_texts(broker: Target) -> None:
    path = f"{NAMESPACES}/{await broker.create_namespace()}"
    for name, value, meant in (
        *(("messageTTL", "7", 7), ("messageTTL", 8.9, 8), ("messageTTL", "", 0)),
        *(("deduplication", "TRUE", True), ("deduplication", "", False), ("deduplication", 1, True)),
        ("retention", {"retentionTimeInMinutes": "5", "retentionSizeInMB": 6.5}, [5, 6]),
    ):
        await broker.rest("POST", f"{path}/{name}", value)
        found = await broker.rest("GET", f"{path}/{name}")
        assert (list(found.values()) if isinstance(found, dict) else found) == meant, name
    for name, value in (("messageTTL", True), ("messageTTL", "x"), ("deduplication", "yes")):
        await refused(broker, 400, "", "POST", f"{path}/{name}", value)
    await broker.rest("POST", f"{path}/deduplicationSnapshotInterval", 5)
    await broker.rest("POST", f"{path}/deduplicationSnapshotInterval")  # pulsar-admin removes it so
    assert await broker.rest("GET", f"{path}/deduplicationSnapshotInterval") == ""
