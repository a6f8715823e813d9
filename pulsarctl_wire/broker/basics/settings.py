"""The broker's settings, with the names and defaults of Pulsar's standalone.conf.

What that file does not set has the default of Pulsar's ServiceConfiguration. Units are as the names say.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError


class Settings:
    """Lines of standalone.conf that have an effect here. (A dataclass would take 3 ms to import.)"""

    acknowledgmentAtBatchIndexLevelEnabled: bool = False
    activeConsumerFailoverConsistentHashing: bool = False
    activeConsumerFailoverDelayTimeMillis: int = 1_000
    advertisedAddress: str = ""
    advertisedListeners: str = ""
    allowAutoSubscriptionCreation: bool = True
    allowAutoTopicCreation: bool = True
    allowAutoTopicCreationType: str = "non-partitioned"
    anonymousUserRole: str = ""
    authenticateOriginalAuthData: bool = False
    authenticationEnabled: bool = False
    authenticationProviders: tuple[str, ...] = ()
    authenticationRefreshCheckSeconds: int = 60
    authorizationAllowWildcardsMatching: bool = False
    authorizationEnabled: bool = False
    backlogQuotaCheckEnabled: bool = True
    backlogQuotaCheckIntervalInSeconds: int = 60
    backlogQuotaDefaultLimitBytes: int = -1
    backlogQuotaDefaultLimitGB: float = 10.0
    backlogQuotaDefaultLimitSecond: int = -1
    backlogQuotaDefaultRetentionPolicy: str = "producer_request_hold"
    basicAuthConf: str = ""
    bindAddress: str = "0.0.0.0"
    brokerClientAuthenticationPlugin: str = ""
    brokerDeduplicationEnabled: bool = False
    brokerDeduplicationProducerInactivityTimeoutMinutes: int = 360
    brokerDeleteInactivePartitionedTopicMetadataEnabled: bool = False
    brokerDeleteInactiveTopicsEnabled: bool = True
    brokerDeleteInactiveTopicsFrequencySeconds: int = 60
    brokerDeleteInactiveTopicsMaxInactiveDurationSeconds: int | None = None
    brokerDeleteInactiveTopicsMode: str = "delete_when_no_subscriptions"
    brokerEntryMetadataInterceptors: tuple[str, ...] = ()
    brokerMaxConnections: int = 0
    brokerMaxConnectionsPerIp: int = 0
    brokerPublisherThrottlingMaxByteRate: int = 0
    brokerPublisherThrottlingMaxMessageRate: int = 0
    brokerServiceCompactionMonitorIntervalInSeconds: int = 60
    brokerServiceCompactionThresholdInBytes: int = 0
    brokerServicePort: int | None = 6650
    brokerServicePortTls: int | None = None
    clusterName: str = "standalone"
    connectionLivenessCheckTimeoutMillis: int = 5_000
    defaultNumberOfNamespaceBundles: int = 4
    defaultNumPartitions: int = 1
    defaultRetentionSizeInMB: int = 0
    defaultRetentionTimeInMinutes: int = 0
    delayedDeliveryEnabled: bool = True
    delayedDeliveryMaxDelayInMillis: int = 0
    delayedDeliveryTickTimeMillis: int = 1_000
    dispatcherMaxReadBatchSize: int = 100
    dispatcherMaxRoundRobinBatchSize: int = 20
    dispatchThrottlingOnNonBacklogConsumerEnabled: bool = True
    dispatchThrottlingRateInByte: int = 0
    dispatchThrottlingRateInMsg: int = 0
    dispatchThrottlingRatePerSubscriptionInByte: int = 0
    dispatchThrottlingRatePerSubscriptionInMsg: int = 0
    dispatchThrottlingRatePerTopicInByte: int = 0
    dispatchThrottlingRatePerTopicInMsg: int = 0
    enableBrokerSideSubscriptionPatternEvaluation: bool = True
    enableNonPersistentTopics: bool = True
    enablePersistentTopics: bool = True
    encryptionRequireOnProducer: bool = False
    exposingBrokerEntryMetadataToClientEnabled: bool = False
    forceDeleteNamespaceAllowed: bool = False
    forceDeleteTenantAllowed: bool = False
    haProxyProtocolEnabled: bool = False
    internalListenerName: str = ""
    isAllowAutoUpdateSchemaEnabled: bool = True
    isDelayedDeliveryDeliverAtTimeStrict: bool = False
    isSchemaValidationEnforced: bool = False
    keepAliveIntervalSeconds: int = 30
    keySharedLookAheadMsgInReplayThresholdPerConsumer: int = 2_000
    keySharedLookAheadMsgInReplayThresholdPerSubscription: int = 20_000
    managedLedgerMaxEntriesPerLedger: int = 50_000
    managedLedgerMaxLedgerRolloverTimeMinutes: int = 240
    managedLedgerMaxSizePerLedgerMbytes: int = 2_048
    managedLedgerMinLedgerRolloverTimeMinutes: int = 10
    maxActiveTransactionsPerCoordinator: int = 0
    maxConcurrentLookupRequest: int = 50_000
    maxConsumerMetadataSize: int = 1_024
    maxConsumersPerSubscription: int = 0
    maxConsumersPerTopic: int = 0
    maxHttpServerConnections: int = 2048
    maxMessagePublishBufferSizeInMB: int = 256
    maxMessageSize: int = 5_242_880
    maxNamespacesPerTenant: int = 0
    maxNumPartitionsPerPartitionedTopic: int = 0
    maxPendingPublishRequestsPerConnection: int = 1_000
    maxProducersPerTopic: int = 0
    maxPublishRatePerTopicInBytes: int = 0
    maxPublishRatePerTopicInMessages: int = 0
    maxSameAddressConsumersPerTopic: int = 0
    maxSameAddressProducersPerTopic: int = 0
    maxSubscriptionsPerTopic: int = 0
    maxTenants: int = 0
    maxTopicsPerNamespace: int = 0
    maxUnackedMessagesPerConsumer: int = 50_000
    maxUnackedMessagesPerSubscription: int = 200_000
    messageExpiryCheckIntervalInMinutes: int = 5
    preciseDispatcherFlowControl: bool = False
    proxyRoles: tuple[str, ...] = ()
    retentionCheckIntervalInSeconds: int = 120
    schemaCompatibilityStrategy: str = "FULL"
    strictlyVerifySubscriptionName: bool = False
    subscribeRatePeriodPerConsumerInSecond: int = 30
    subscribeThrottlingRatePerConsumer: int = 0
    subscriptionExpirationTimeMinutes: int = 0
    subscriptionExpiryCheckIntervalInMinutes: int = 5
    subscriptionKeySharedConsistentHashingReplicaPoints: int = 100
    subscriptionKeySharedUseConsistentHashing: bool = True
    subscriptionPatternMaxLength: int = 50
    subscriptionRedeliveryTrackerEnabled: bool = True
    subscriptionTypesEnabled: tuple[str, ...] = ("Failover", "Shared", "Key_Shared", "Exclusive")
    superUserRoles: tuple[str, ...] = ()
    tlsCertificateFilePath: str = ""
    tlsKeyFilePath: str = ""
    tlsProtocols: tuple[str, ...] = ()
    tlsRequireTrustedClientCertOnConnect: bool = False
    tlsTrustCertsFilePath: str = ""
    tokenAudience: str = ""
    tokenAudienceClaim: str = ""
    tokenAuthClaim: str = ""
    tokenPublicKey: str = ""
    tokenSecretKey: str = ""
    topicLevelPoliciesEnabled: bool = True
    transactionCoordinatorEnabled: bool = False
    ttlDurationDefaultInSeconds: int = 0
    webServicePort: int | None = 8080
    webServicePortTls: int | None = None

    def __init__(self, **changes: Any) -> None:
        self.__dict__.update(changes)

    def values(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {name: getattr(self, name) for name in FIELDS}


FIELDS: Final = Settings.__annotations__
"""The type of each setting."""

CHOICES: Final = {
    "allowAutoTopicCreationType": ("non-partitioned", "partitioned"),
    "backlogQuotaDefaultRetentionPolicy": (
        *("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    ),
    "brokerDeleteInactiveTopicsMode": (
        *("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    ),
    "schemaCompatibilityStrategy": (
        *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
        *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
    ),
}
"""The values that a setting may have."""

_RANGES: Final = {
    **dict.fromkeys(
        ("brokerServicePort", "brokerServicePortTls", "webServicePort", "webServicePortTls"), (0, 65_535)
    ),
    **dict.fromkeys(("defaultNumPartitions", "defaultNumberOfNamespaceBundles"), (1, 100_000)),
    "authenticationRefreshCheckSeconds": (1, 2**31 - 1),
    "maxMessageSize": (1, 2**31 - 1),
    "subscriptionKeySharedConsistentHashingReplicaPoints": (1, 10_000),
}
_INT64: Final = (-(2**63), 2**63 - 1)
_MAX_LISTED: Final = 8  # names of settings in a note


def parse_settings(lines: Mapping[str, object]) -> Settings:
    """Return the default settings, changed by `lines`: name -> value, or text as in a file.

    Unknown keys are left out; `list_notes` reports them. Raises SettingsError.
    """
    return Settings(**{name: _parse_value(name, value) for name, value in lines.items() if name in FIELDS})


def _parse_value(name: str, value: object) -> Any:
    kind = FIELDS[name]
    if isinstance(value, str):
        value = value.strip()
        if not value and kind is not str and kind != tuple[str, ...]:
            # a line without a value: no number if there may be none, else the default
            return None if kind == int | None else getattr(Settings, name)
    if kind is bool:
        return _parse_boolean(name, value)
    if kind is float:
        return _parse_number(name, value, float)
    if kind == tuple[str, ...]:
        return _parse_list(name, value)
    if kind is str:
        if isinstance(value, str) and value in CHOICES.get(name, (value,)):
            return value
        raise _make_error(name, value, f"one of {', '.join(CHOICES[name])}" if name in CHOICES else "a text")
    if value is None and kind is not int:
        return None
    number = _parse_number(name, value, int)
    low, high = _RANGES.get(name, _INT64)
    if low <= number <= high:
        return number
    raise _make_error(name, value, f"a number from {low} to {high}")


def _parse_boolean(name: str, value: object) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.lower(), value)
    if isinstance(value, bool):
        return value
    raise _make_error(name, value, "true or false")


def _parse_number(name: str, value: object, kind: type[int] | type[float]) -> Any:
    expected = "a whole number" if kind is int else "a number"
    if isinstance(value, str):
        if not re.fullmatch(r"[-+]?\d{1,19}" + ("" if kind is int else r"(\.\d{1,19})?"), value, re.ASCII):
            raise _make_error(name, value, expected)
    elif isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise _make_error(name, value, expected)
    return kind(value)


def _parse_list(name: str, value: object) -> tuple[str, ...]:
    texts = value.split(",") if isinstance(value, str) else value
    if isinstance(texts, (list, tuple, set, frozenset)) and all(isinstance(text, str) for text in texts):
        return tuple(text.strip() for text in texts if text.strip())
    raise _make_error(name, value, "texts with commas between them")


def _make_error(name: str, value: object, expected: str) -> SettingsError:
    text = value if isinstance(value, str) else repr(value)
    return SettingsError(f"{name}={text[:200]}: it must be {expected}")


def list_unknown(lines: Mapping[str, object]) -> list[str]:
    """Return a note about each line that not even Pulsar knows."""
    if lines.keys() <= FIELDS.keys():
        return []
    from pulsarctl_wire.broker.basics.setting_names import has_no_effect

    return [_describe_unknown(name) for name in lines if name not in FIELDS and not has_no_effect(name)]


def list_notes(lines: Mapping[str, object]) -> list[str]:
    """Return notes about lines that have no effect here."""
    if not lines:
        return []
    from pulsarctl_wire.broker.basics.setting_names import has_no_effect

    values = {name: value for name, value in lines.items() if name not in FIELDS and has_no_effect(name)}
    ineffective = [name for name, value in values.items() if value not in ("", None)]
    notes = list_unknown(lines)
    if ineffective:
        suffix = f" and {len(ineffective) - _MAX_LISTED} more" if len(ineffective) > _MAX_LISTED else ""
        notes.append(
            f"settings of Pulsar without effect here: {', '.join(ineffective[:_MAX_LISTED])}{suffix}"
        )
    return notes


def _describe_unknown(name: str) -> str:
    from difflib import get_close_matches

    from pulsarctl_wire.broker.basics.setting_names import NAMES

    settings = {setting.lower(): setting for setting in NAMES | FIELDS.keys()}
    matches = get_close_matches(name[:100].lower(), settings, 1)
    suggestion = f"; did you mean {settings[matches[0]]}?" if matches else ""
    return f"{name}: Pulsar has no such setting{suggestion}"


def read_conf(path: str | Path) -> dict[str, str]:
    """Return the lines of a Java properties file such as standalone.conf. Raises SettingsError."""
    import javaproperties

    try:
        with Path(path).open("rb") as file:
            return dict(javaproperties.load(file))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}; name another with --conf") from None
    except javaproperties.InvalidUEscapeError as error:
        raise SettingsError(f"{path}: {error}; correct it") from None
