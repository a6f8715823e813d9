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
    brokerDeduplicationEnabled: bool = False
    brokerEntryMetadataInterceptors: str = ""
    clusterName: str = "standalone"
    connectionLivenessCheckTimeoutMillis: int = 5000
    defaultNumPartitions: int = 1
    defaultNumberOfNamespaceBundles: int = 4
    delayedDeliveryEnabled: bool = True
    delayedDeliveryTickTimeMillis: int = 1000
    dispatcherMaxReadBatchSize: int = 100
    dispatcherMaxRoundRobinBatchSize: int = 20
    exposingBrokerEntryMetadataToClientEnabled: bool = False
    haProxyProtocolEnabled: bool = False
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    keepAliveIntervalSeconds: int = 30
    managedLedgerMaxEntriesPerLedger: int = 50_000
    managedLedgerMinLedgerRolloverTimeMinutes: int = 10
    maxConsumersPerSubscription: int = 0
    maxConsumersPerTopic: int = 0
    maxMessageSize: int = 5 * 1024 * 1024
    maxPendingPublishRequestsPerConnection: int = 1000
    maxProducersPerTopic: int = 0
    maxUnackedMessagesPerConsumer: int = 50_000
    proxyRoles: str = ""
    subscriptionKeySharedUseConsistentHashing: bool = True
    subscriptionPatternMaxLength: int = 50
    superUserRoles: str = ""
    tokenAuthClaim: str = ""
    tokenPublicKey: str = ""
    tokenSecretKey: str = ""
    transactionCoordinatorEnabled: bool = False


def parse_settings(lines: Mapping[str, object]) -> Settings:
    """The settings with these changes."""
    return Settings(**lines)  # type: ignore[arg-type]
