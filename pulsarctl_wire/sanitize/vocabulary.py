"""Public words: those of Pulsar, of its clients and brokers, of HTTP and of schemas, which say nothing about
their user.

A run of letters that is one of them stays as it is, in upper or lower case.
"""

import re
from typing import Final


def _words(text: str) -> frozenset[bytes]:
    return frozenset(text.lower().encode().split())


NAMES: Final = _words("persistent non public default pulsar system standalone localhost DLQ RETRY")
"""Words of names that Pulsar gives, or gives a meaning."""

QUOTED: Final = NAMES | _words("Exclusive Shared Failover Key")
"""Words of names in error texts."""

ADDRESSES: Final = NAMES | _words("ssl http https ws wss")
"""Words of service URLs."""

PROPERTIES: Final = NAMES | _words(
    "true false null REAL TOPIC SUBSCRIPTION ORIGIN MESSAGE ID IDY TIME RECONSUMETIMES DELAY EXCEPTION "
    "CAUSE X KEY SCHEMA VALUE TYPE NAME PROPERTIES kv encoding SEPARATED INLINE alwaysAllowNull "
    "jsrConversionEnabled"
)
"""Words of the properties that clients set themselves."""

SCHEMAS: Final = PROPERTIES | _words(
    "type record name namespace fields string int long float double boolean bytes array map items values "
    "enum symbols fixed size union default doc aliases logicalType timestamp millis micros date time "
    "decimal precision scale uuid null true false KeyValue JSON AVRO PROTOBUF NATIVE PROTOBUFNATIVE STRING "
    "BYTES BOOL INT INTEGER SHORT LOCAL INSTANT DATETIME AutoConsume Auto Consume Publish None "
    "fileDescriptorSet rootMessageTypeName rootFileDescriptorName"
)
"""Words of schema definitions."""

ERRORS: Final = (
    ADDRESSES
    | SCHEMAS
    | _words(
        "a about above access acknowledged active already allowed an and any apache are at auth "
        "authenticate authenticated authentication authorization authorize authorized available backlog "
        "bad be because been before blocked broker brokers bundle busy but by cannot cause caused checksum "
        "class client clients close closed cluster clusters com compatible concurrent configured connect "
        "connected connecting connection consumer consumers coordinator create created creation current "
        "data deleted delivery different disabled disconnected does done due during enabled end ended "
        "enough epoch error errorMsg exceed exceeded exceeds exception exceptions exclusive existing "
        "exists expired factory failed failover failure fenced fencing find for forbidden found from "
        "function get given got has have hash higher id if illegal in incompatible initialized instance "
        "internal invalid io is it its java key lang large latest ledger length limit list listener load "
        "loaded local lookup lookups manager many max maximum message messages metadata migrated mode more "
        "moved moving mutual my name namespaces naming native netty new no node not null number object of "
        "on only open operation operations or org other over owned owner ownership package parse parsing "
        "partition partitioned partitions path pending permission permissions permit persistence please "
        "policy position producer producers proxy publish quota range ranges rate reached read ready "
        "reason received reconnect recover redirect redo refused rejected remote removed reqId request "
        "requested requests required reset resource retry role runtime same seek send sending sequence "
        "served server service session shared shutdown size state status still stopped stored subscribe "
        "subscriptions such support supported tenant tenants terminated than that the then there this "
        "throttled throttling timed timeout to token too topics transaction transactions try txn unable "
        "unauthorized unavailable unexpected unknown unload unloaded unloading unsupported use used user "
        "using util version waiting was watcher when while will with without write wrong you bookkeeper "
        "zookeeper common BrokerServiceException NamingException PersistenceException "
        "TopicTerminatedException ProducerFencedException ProducerBusyException ConsumerBusyException "
        "ServiceUnitNotReadyException ServerMetadataException NotAllowedException "
        "SubscriptionFencedException TopicNotFoundException SubscriptionNotFoundException "
        "SubscriptionBusyException SubscriptionInvalidCursorPosition TopicFencedException "
        "TopicBacklogQuotaExceededException TopicClosedException TopicBusyException TopicMigratedException "
        "UnsupportedVersionException TooManyRequestsException AddEntryMetadataException "
        "ConsumerAssignException TransactionComponentLoadFailedException IncompatibleSchemaException "
        "SchemaException InvalidSchemaDataException NotExistSchemaException AuthenticationException "
        "AuthorizationException PulsarClientException PulsarServerException RestException "
        "WebApplicationException CompletionException ExecutionException RuntimeException "
        "IllegalStateException IllegalArgumentException NullPointerException TimeoutException IOException "
        "ManagedLedgerException ManagedLedgerFencedException MetadataStoreException NotFoundException "
        "BadVersionException AlreadyExistsException CoordinatorNotFoundException InvalidTxnStatusException "
        "TransactionNotFoundException TransactionConflictException TransactionCoordinatorException "
        "ManagedLedger MetadataStore Managed Ledger Failed Subscription Exclusive Failover Shared Metadata"
    )
)
"""Words of the error texts of brokers and proxies."""

HTTP: Final = ADDRESSES | _words(
    "GET HEAD POST PUT DELETE OPTIONS PATCH TRACE CONNECT PRI HTTP Host User Agent Accept Encoding "
    "Language Content Type Length Transfer Connection Upgrade Keep Alive close chunked identity gzip "
    "deflate br application json text plain html xml octet stream form urlencoded www charset utf iso Date "
    "Server Location Cache Control no store Via Jetty curl Go client Java python requests Origin Sec "
    "WebSocket websocket Version Key Protocol Extensions permessage admin lookup v topic producer consumer "
    "reader metrics brokers clusters tenants namespaces functions OK Bad Request Not Found Unauthorized "
    "Forbidden Temporary Permanently Moved Redirect Internal Error Service Unavailable Gateway Switching "
    "Protocols Mon Tue Wed Thu Fri Sat Sun Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec GMT max age "
    "authoritative listenerName checkAllowAutoCreation mode includeSystemTopic bundle all true false null "
    "destination schema schemas httpUrlTls brokerUrlSsl deleted reason metadata hash PROXY TCP UNKNOWN SSH "
    "OpenSSH brokerUrl brokerUrlTls nativeUrl httpUrl httpUrlSsl partitions"
)
"""Words of HTTP and of Pulsar's REST API."""

VERSIONS: Final = _words(
    "Pulsar Java CPP C Go Python Node NodeJs Rust CSharp DotNet dotpulsar Ruby PHP Erlang Haskell Kafka WS "
    "client Server Proxy broker pwire probe v M RC candidate beta alpha SNAPSHOT none token tls basic athenz "
    "sasl oauth OIDC AES GCM ECB RSA"
)
"""Words of versions, and names of methods and algorithms."""

CLAIMS: Final = _words("iss sub aud exp nbf iat jti alg typ JWT kid HS RS ES PS none")
"""Words of JSON Web Tokens."""

_MARKS: Final = _words(
    "change events transaction buffer snapshot segments indexes pending ack log compaction coordinator "
    "assign consumer offsets multiTopicsReader reader repl"
)
_PUBLIC: Final = b" ".join(
    NAMES | ADDRESSES | PROPERTIES | SCHEMAS | ERRORS | HTTP | CLAIMS | VERSIONS | _MARKS
)


def is_public(word: bytes) -> bool:
    """Return whether a word is public, or a part of a public one, which cannot be secret."""
    return word.lower() in _PUBLIC


PHRASES: Final = re.compile(
    rb"-partition-[0-9]+|\b0x[0-9a-f]{8}(?![0-9A-Za-z])"
    rb"|HTTP/[0-9.]+|%[0-9A-Fa-f]{2}|(?<=/)v[1-9](?=/)|TCP[46](?= )"
    rb"|(?<![A-Za-z0-9])(?:__change_events|__transaction_buffer_snapshot(?:_segments|_indexes)?"
    rb"|__transaction_pending_ack|__transaction_log_|__compaction|transaction_coordinator_assign|__consumer_offsets)"
    rb"|__transaction_pending_ack|^pulsar\.repl\b|multiTopicsReader|^reader(?=-)"
)
"""What stays in texts: Pulsar's marks in names; versions in HTTP and in paths; escapes of URLs; TCP4 and
TCP6; hex numbers of eight digits.
"""

NUMBERED: Final = re.compile(rb"RECONSUMETIMES|DELAY_TIME|ORIGIN_MESSAGE_ID\w*|__\w+|.*TIMESTAMP", re.DOTALL)
"""Keys of properties whose values stay if they match `VALUE`: these are no names."""

VALUE: Final = re.compile(rb"[0-9:.,-]*|true|false")
"""Numbers, ids, times and truth values."""
