"""The settings of brokers that cases depend on."""

from __future__ import annotations

from typing import Final

_INTERCEPTORS: Final = ",".join(
    f"org.apache.pulsar.common.intercept.Append{name}MetadataInterceptor"
    for name in ("BrokerTimestamp", "Index")
)

SETTINGS: Final[dict[str, dict[str, object]]] = {
    "auth": {"proxyRoles": "proxy", "superUserRoles": "admin", "authenticationRefreshCheckSeconds": 5},
    "autosplit": {"subscriptionKeySharedUseConsistentHashing": False},
    "batchack": {"acknowledgmentAtBatchIndexLevelEnabled": True},
    "bem": {
        "brokerEntryMetadataInterceptors": _INTERCEPTORS,
        "exposingBrokerEntryMetadataToClientEnabled": True,
    },
    "dedup": {"brokerDeduplicationEnabled": True},
    "haproxy": {"haProxyProtocolEnabled": True},
    "limits": {
        "maxProducersPerTopic": 2,
        "maxConsumersPerSubscription": 2,
        "maxUnackedMessagesPerConsumer": 10,
        "maxMessageSize": 1024 * 1024,
    },
    "lookups": {"maxConcurrentLookupRequest": 1},
    "nocreate": {"allowAutoTopicCreation": False, "allowAutoSubscriptionCreation": False},
    "subscribing": {
        "strictlyVerifySubscriptionName": True,
        "subscriptionTypesEnabled": "Exclusive,Shared,Failover",
        "maxSameAddressConsumersPerTopic": 2,
        "subscribeThrottlingRatePerConsumer": 2,
        "subscriptionRedeliveryTrackerEnabled": False,
        "activeConsumerFailoverConsistentHashing": True,
        "preciseDispatcherFlowControl": True,
    },
    "txn": {"transactionCoordinatorEnabled": True},
}
"""Name of a setting -> the lines of broker.conf that it stands for. "auth" also has tokens."""

SECONDS: Final = {"keepalive": 30.0, "refresh": 60.0}
"""Times that are set at brokers, in seconds, with their defaults: keepAliveIntervalSeconds, and
authenticationRefreshCheckSeconds."""
