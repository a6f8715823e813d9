"""The broker's settings, with the names and defaults of Pulsar's standalone.conf."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Settings:
    """Lines of standalone.conf that have an effect here. Times are as their names say."""

    acknowledgmentAtBatchIndexLevelEnabled: bool = False
    activeConsumerFailoverDelayTimeMillis: int = 1000
    allowAutoSubscriptionCreation: bool = True
    allowAutoTopicCreation: bool = True
    allowAutoTopicCreationType: str = "non-partitioned"
    anonymousUserRole: str = ""
    authenticationEnabled: bool = False
    authenticationProviders: str = ""
    authenticationRefreshCheckSeconds: int = 60
    authorizationEnabled: bool = False
    backlogQuotaCheckEnabled: bool = True
    backlogQuotaCheckIntervalInSeconds: int = 60
    backlogQuotaDefaultLimitBytes: int = -1
    backlogQuotaDefaultLimitGB: float = 10
    backlogQuotaDefaultLimitSecond: int = -1
    backlogQuotaDefaultRetentionPolicy: str = "producer_request_hold"
    brokerDeleteInactiveTopicsEnabled: bool = True
    brokerDeleteInactiveTopicsFrequencySeconds: int = 60
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int = 0
    brokerDeleteInactiveTopicsMode: str = "delete_when_no_subscriptions"
    brokerDeduplicationEnabled: bool = False
    brokerEntryMetadataInterceptors: str = ""
    brokerMaxConnections: int = 0
    brokerMaxConnectionsPerIp: int = 0
    clusterName: str = "standalone"
    connectionLivenessCheckTimeoutMillis: int = 5000
    defaultNumPartitions: int = 1
    defaultNumberOfNamespaceBundles: int = 4
    defaultRetentionSizeInMB: int = 0
    defaultRetentionTimeInMinutes: int = 0
    delayedDeliveryEnabled: bool = True
    delayedDeliveryTickTimeMillis: int = 1000
    dispatchThrottlingRatePerSubscriptionInByte: int = 0
    dispatchThrottlingRatePerSubscriptionInMsg: int = 0
    dispatchThrottlingRatePerTopicInByte: int = 0
    dispatchThrottlingRatePerTopicInMsg: int = 0
    dispatcherMaxReadBatchSize: int = 100
    dispatcherMaxRoundRobinBatchSize: int = 20
    exposingBrokerEntryMetadataToClientEnabled: bool = False
    haProxyProtocolEnabled: bool = False
    isSchemaValidationEnforced: bool = False
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    keepAliveIntervalSeconds: int = 30
    managedLedgerMaxEntriesPerLedger: int = 50_000
    managedLedgerMinLedgerRolloverTimeMinutes: int = 10
    maxConsumersPerSubscription: int = 0
    maxConsumersPerTopic: int = 0
    maxMessageSize: int = 5 * 1024 * 1024
    maxPendingPublishRequestsPerConnection: int = 1000
    maxProducersPerTopic: int = 0
    maxPublishRatePerTopicInBytes: int = 0
    maxPublishRatePerTopicInMessages: int = 0
    maxSubscriptionsPerTopic: int = 0
    maxUnackedMessagesPerConsumer: int = 50_000
    maxUnackedMessagesPerSubscription: int = 200_000
    messageExpiryCheckIntervalInMinutes: int = 5
    proxyRoles: str = ""
    subscriptionKeySharedUseConsistentHashing: bool = True
    subscriptionPatternMaxLength: int = 50
    retentionCheckIntervalInSeconds: int = 120
    schemaCompatibilityStrategy: str = "FULL"
    subscriptionExpirationTimeMinutes: int = 0
    superUserRoles: str = ""
    tokenAuthClaim: str = ""
    tokenPublicKey: str = ""
    tokenSecretKey: str = ""
    ttlDurationDefaultInSeconds: int = 0
    transactionCoordinatorEnabled: bool = False


def parse_settings(lines: Mapping[str, object]) -> Settings:
    """The settings with these changes."""
    return Settings(**lines)  # type: ignore[arg-type]
