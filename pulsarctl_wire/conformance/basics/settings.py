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
"""Name of a setting -> the lines of broker.conf that it stands for. "auth" also needs a key for tokens."""

MEANINGS: Final = {
    "admin": "the admin API (--admin-url)",
    "auth": "authentication by tokens, and the broker's key (--token-key)",
    "autosplit": "Key_Shared without consistent hashing",
    "batchack": "acknowledgement of batch indexes",
    "bem": "broker entry metadata",
    "dedup": "deduplication",
    "haproxy": "PROXY headers",
    "limits": "low limits",
    "lookups": "a limit of one lookup at a time",
    "nocreate": "no automatic creation of topics and subscriptions",
    "subscribing": "restricted subscriptions",
    "txn": "transactions",
}
"""Name of a setting -> what it is, in words."""

COMMANDS: Final = {
    "produce": "a command that produces (--produce)",
    "consume": "a command that consumes (--consume)",
}
"""The commands of a client that cases need: mode -> what it is, in words."""

VISIBLE: Final = frozenset({"batchack", "bem", "dedup", "nocreate", "txn"})
"""The settings that the protocol shows. Of the others, the user says which ones the broker has.

"auth" is seen as well if the broker refuses CONNECT without credentials.
"""

SECONDS: Final = {"keepalive": 30.0, "refresh": 60.0}
"""Times that are set at brokers, in seconds, with their defaults: keepAliveIntervalSeconds, and
authenticationRefreshCheckSeconds."""
