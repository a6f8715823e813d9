"""What messages and the values of enums mean, as far as their names do not say it."""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

MESSAGES: Final[dict[str, Page]] = pages("""
BaseCommand: What every frame begins with: the command's type, and the sub-message whose field has that
    number.
MessageMetadata: What a client states about an entry. It follows SEND and MESSAGE, and the checksum covers
    it.
SingleMessageMetadata: What stands before each message of a batch.
BrokerEntryMetadata: What the broker adds in front of an entry, behind the magic number 0x0e02 (PIP-70,
    PIP-90).
MessageIdData: The id of a message: ledger, entry, partition, and position in a batch.
Schema: The type of payloads, and its definition.
KeyValue: A property.
KeyLongValue: A property whose value is a number.
IntRange: A range of numbers, both ends included.
EncryptionKeys: The data key of an entry, encrypted for one recipient (PIP-4).
AuthData: Credentials of one step of an authentication.
FeatureFlags: What a side supports beyond its protocol version.
KeySharedMeta: How Key_Shared distributes the keys (PIP-34).
Subscription: A subscription in a transaction, and its topic.
ScalableTopicDAG: The layout of a scalable topic: its segments, and those they were made of (PIP-460).
SegmentInfoProto: A segment of a scalable topic: a range of hashes, in a topic of its own.
SegmentBrokerAddress: Which broker serves a segment.
ScalableConsumerAssignment: The segments of one consumer of a scalable topic.
ScalableAssignedSegment: A segment that a consumer has to consume.
ScalableTopicsSnapshot: All scalable topics of a watch.
ScalableTopicsDiff: What was added to and removed from the topics of a watch.
TcAssignmentsSnapshot: All transaction coordinators, and who runs them.
TcAssignment: Which broker runs a transaction coordinator.
ReplicatedSubscriptionsSnapshotRequest: Payload of a marker: asks other clusters for their positions
    (PIP-33).
ReplicatedSubscriptionsSnapshotResponse: Payload of a marker: the position in another cluster (PIP-33).
ReplicatedSubscriptionsSnapshot: Payload of a marker: positions in several clusters that belong together
    (PIP-33).
ReplicatedSubscriptionsUpdate: Payload of a marker: how far a subscription is acknowledged (PIP-33).
ClusterMessageId: A position in a cluster.
MarkersMessageIdData: The id of a message, in markers.
""")
"""Message -> its page: about. Those of commands are in sessions.py and services.py."""

ENUMS: Final[dict[str, Page]] = pages("""
SubType: How the consumers of a subscription share its messages.
InitialPosition: Where a new subscription begins.
CompressionType: How a payload is compressed.
ProducerAccessMode: Whether a topic's producers exclude each other (PIP-68).
KeySharedMode: Who chooses which keys a Key_Shared consumer gets.
AckType: What an ACK is about.
ValidationError: Why a client discarded a message.
LookupType: The result of a lookup.
ResourceType: What was migrated.
Mode: Which topics of a namespace.
AuthMethod: Authentication methods of the first versions; now auth_method_name has their names.
ServerError: Why the broker refused a request.
ProtocolVersion: The versions of the protocol.
TxnAction: How a transaction ends.
MarkerType: What a marker is (MessageMetadata.marker_type): an entry that brokers write for themselves and
    never deliver.
SegmentState: Whether a segment of a scalable topic takes messages.
ScalableConsumerType: How a scalable topic is consumed.
Type: Of BaseCommand the commands; of Schema the types of payloads.
""")
"""Enum -> its page: about."""

VALUES: Final[dict[str, Page]] = pages("""
SubType.Exclusive: One consumer; a second one gets ConsumerBusy.
SubType.Shared: Each message goes to one of the consumers, in turn, without order.
SubType.Failover: One consumer gets all messages, and another takes over when it is gone.
SubType.Key_Shared: Messages of a key go to one consumer, in order (PIP-34).
InitialPosition.Latest: Only messages published afterwards.
InitialPosition.Earliest: All messages that the topic still has.
CompressionType.NONE: Not compressed.
CompressionType.LZ4: A raw LZ4 block, without a frame; uncompressed_size is needed.
CompressionType.ZLIB: A zlib stream. Java's ends without the last block and checksum, so strict decoders
    fail.
CompressionType.ZSTD: A standard Zstandard frame.
CompressionType.SNAPPY: A raw Snappy block with its length in front, without framing.
ProducerAccessMode.Shared: Several producers; the default.
ProducerAccessMode.Exclusive: The only producer of the topic; if there is another, ProducerFenced.
ProducerAccessMode.WaitForExclusive: The only producer of the topic; waits until the others are gone.
ProducerAccessMode.ExclusiveWithFencing: The only producer of the topic; removes the others. They are not
    told, and their next SEND closes their connection.
KeySharedMode.AUTO_SPLIT: The broker distributes the keys, and again when consumers come and go.
KeySharedMode.STICKY: Each consumer names its hash ranges; overlaps get ConsumerAssignError, and keys that
    nobody has wait.
AckType.Individual: Just these messages.
AckType.Cumulative: All messages up to this one. Only on Exclusive and Failover.
ValidationError.UncompressedSizeCorruption: uncompressed_size is larger than a message may be.
ValidationError.DecompressionError: The payload cannot be decompressed.
ValidationError.ChecksumMismatch: The CRC32-C is wrong, or (Java) the metadata cannot be decoded.
ValidationError.BatchDeSerializeError: The payload is not the batch that the metadata says.
ValidationError.DecryptionError: The payload cannot be decrypted.
LookupType.Redirect: Ask the named broker.
LookupType.Connect: The named broker serves the topic.
LookupType.Failed: See the error.
LookupType.Success: The answer is valid.
MarkerType.UNKNOWN_MARKER: Not used.
MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST: Asks other clusters for their positions (PIP-33).
MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE: The answer: a position in another cluster (PIP-33).
MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT: Positions in several clusters that belong together (PIP-33).
MarkerType.REPLICATED_SUBSCRIPTION_UPDATE: How far a replicated subscription is acknowledged (PIP-33).
MarkerType.TXN_COMMITTING: Defined, and not used.
MarkerType.TXN_COMMIT: The transaction was committed: its messages in this topic count (PIP-31).
MarkerType.TXN_ABORT: The transaction was aborted: its messages in this topic are skipped (PIP-31).
TxnAction.COMMIT: Its messages are delivered, its acknowledgements count.
TxnAction.ABORT: Its messages are never delivered, its acknowledgements undone.
SegmentState.ACTIVE: It takes messages.
SegmentState.SEALED: It was split or merged, and is only read to its end.
ScalableConsumerType.STREAM: In order; each segment goes to one consumer.
ScalableConsumerType.CHECKPOINT: The application keeps its positions itself.
ResourceType.Producer: resource_id is a producer_id.
ResourceType.Consumer: resource_id is a consumer_id.
AuthMethod.AuthMethodNone: No authentication.
AuthMethod.AuthMethodYcaV1: A method of Yahoo; no longer used.
AuthMethod.AuthMethodAthens: Athenz.
Mode.ALL: Both.
Mode.PERSISTENT: Topics with persistent:// names.
Mode.NON_PERSISTENT: Topics with non-persistent:// names.
Type.String: A text in UTF-8.
Type.Json: JSON; the definition is an Avro schema.
Type.Protobuf: A Protobuf message; the definition is an Avro schema made from it.
Type.ProtobufNative: A Protobuf message; the definition is its descriptors.
Type.Avro: A record in Avro's binary encoding.
Type.Bool: One byte, 0 or 1.
Type.Int8: One byte.
Type.Int16: 2 bytes, big-endian.
Type.Int32: 4 bytes, big-endian.
Type.Int64: 8 bytes, big-endian.
Type.Float: 4 bytes, IEEE 754, big-endian.
Type.Double: 8 bytes, IEEE 754, big-endian.
Type.Date: Milliseconds since 1970, in 8 bytes.
Type.Time: Milliseconds since 1970, in 8 bytes.
Type.Timestamp: Milliseconds since 1970, in 8 bytes.
Type.Instant: Seconds since 1970 in 8 bytes, nanoseconds in 4.
Type.LocalDate: Days since 1970, in 8 bytes.
Type.LocalTime: Nanoseconds of the day, in 8 bytes.
Type.LocalDateTime: Days since 1970, then nanoseconds of the day, in 8 bytes each.
Type.AutoConsume: The consumer takes whatever schemas the topic has.
Type.External: The schema is in another registry (PIP-420).
Type.KeyValue: Key and value have a schema each.
Type.None: Bytes, without a schema.
""")
"""Value, as ENUM.VALUE -> its page: about."""
