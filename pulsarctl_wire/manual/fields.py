"""What fields mean. A page without a dot is for all fields of that name that have none of their own."""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

PAGES: Final[dict[str, Page]] = pages("""
request_id: The client's number for this request; the answer repeats it. C++ counts lookups apart from all
    others, so a number may occur twice on a connection; Java begins at a large random one. 2^64-1 (-1) in
    what the broker sends unasked.
producer_id: The client's number for a producer, on this connection only.
consumer_id: The client's number for a consumer, on this connection only.
topic: The topic's full name, or short (t is persistent://public/default/t).
subscription: The subscription's name. It must not be empty.
namespace: tenant/namespace.
message: The broker's own text about the error.
error: The error, if there is one.
error_code: The error, if there is one.
error_message: The broker's own text about the error.
txnid_least_bits: The transaction's number at its coordinator; together with txnid_most_bits its id.
txnid_most_bits: The number of the transaction's coordinator.
original_principal: The role of the client behind a proxy.
original_auth_data: The credentials of the client behind a proxy, if the proxy forwards them.
original_auth_method: The authentication method of the client behind a proxy.
metadata: Properties that the client states about itself; shown in the topic's statistics.
properties: Keys and values that the application chose.
brokerServiceUrl: The broker's address for plain connections, pulsar://host:port.
brokerServiceUrlTls: The broker's address for TLS, pulsar+ssl://host:port.
assignedBrokerServiceUrl: The broker that serves the topic now, so that no lookup is needed; only with the
    extensible load manager.
assignedBrokerServiceUrlTls: The same for TLS.
topics_pattern: A regular expression for the topics' names; persistent:// in front may be left out. Up to 50
    characters.
topics_hash: CRC32-C of the sorted names joined by commas, in hexadecimal, little-endian. If it is equal to
    the client's, the list is not sent again.
watcher_id: The client's number for a watch.
session_id: The client's number for the lookup of a scalable topic; there is no request id.
watch_id: The client's number for a watch; there is no request id.
schema_version: The schema's version as 8 bytes, big-endian; empty: no schema.
scalable: Whether this is about the coordinator of scalable topics (PIP-473).
tc_id: The number of the transaction coordinator, from 0.
txn_action: COMMIT or ABORT.
txnid_least_bits_of_low_watermark: All transactions of this coordinator up to this number have ended.
partition_key: The message's key: base64 text if partition_key_b64_encoded. The partition is chosen by a
    hash of this text.
partition_key_b64_encoded: Whether partition_key is bytes, as base64.
ordering_key: A key only for Key_Shared, in place of partition_key.
event_time: The time that the application gave, in ms since 1970; 0: none.
null_value: Whether the message has no value; in compaction that deletes the key.
null_partition_key: Whether the key is null, and not empty.
protocol_version: The highest protocol version of the sender; absent: 0.
auth_method_name: The authentication method: token, tls, basic, athenz …
auth_data: The credentials. pwire does not show them.
feature_flags: What the sender supports beyond its protocol version.

CONNECT.client_version: The client's name and version, free text.
CONNECT.auth_method: The method as a number; replaced by auth_method_name.
CONNECT.proxy_to_broker_url: The broker, as host:port, to which the Pulsar proxy shall connect this client.
    Absent: the proxy only answers lookups. Brokers ignore it.
CONNECT.proxy_version: The proxy's version. Only a proxy sends it; from others it gets NotAllowedError.
AUTH_RESPONSE.client_version: As in CONNECT.
AUTH_RESPONSE.response: The credentials.
AUTH_CHALLENGE.server_version: As in CONNECTED.
AUTH_CHALLENGE.challenge: What the client shall answer; PulsarAuthRefresh as data asks for new credentials.
CONNECTED.server_version: The broker's name and version, free text.
CONNECTED.protocol_version: The lower version of both sides.
CONNECTED.max_message_size: Bytes. A whole frame may be 10 KiB larger. Absent: 5 MiB.

FeatureFlags.supports_auth_refresh: The client answers AUTH_CHALLENGE in an open session.
FeatureFlags.supports_broker_entry_metadata: The client understands BrokerEntryMetadata (PIP-90).
FeatureFlags.supports_partial_producer: The client opens the producers of a partitioned topic one by one,
    when needed.
FeatureFlags.supports_topic_watchers: The broker has WATCH_TOPIC_LIST (PIP-145).
FeatureFlags.supports_get_partitioned_metadata_without_auto_creation: PARTITIONED_METADATA has
    metadata_auto_creation_enabled (PIP-344).
FeatureFlags.supports_repl_dedup_by_lid_and_eid: Deduplication of replicated messages by their ids in the
    source.
FeatureFlags.supports_topic_watcher_reconcile: A watch can be repeated, to learn what was missed.
FeatureFlags.supports_scalable_topics: The broker has the commands of scalable topics (PIP-460).
FeatureFlags.supports_tc_metadata_discovery: The broker has WATCH_TC_ASSIGNMENTS.

PRODUCER.producer_name: Unique in the topic. Absent: the broker makes one. An empty one is a name like any
    other.
PRODUCER.encrypted: Whether the messages will be encrypted. Namespaces can require it.
PRODUCER.schema: The schema of the messages; the broker checks and registers it.
PRODUCER.epoch: How often the client has opened this producer again. A higher one replaces the old producer.
PRODUCER.user_provided_producer_name: Whether the application chose the name.
PRODUCER.producer_access_mode: Whether others may produce to the topic at the same time (PIP-68).
PRODUCER.topic_epoch: The epoch from PRODUCER_SUCCESS, on a reconnection; an old one gets ProducerFenced.
PRODUCER.txn_enabled: Whether it may send in transactions.
PRODUCER.initial_subscription_name: A subscription to create with the topic, for dead letter topics
    (PIP-124).
PRODUCER_SUCCESS.producer_name: The producer's name; made by the broker if the client gave none.
PRODUCER_SUCCESS.last_sequence_id: The last sequence id that deduplication stored for this name; -1: none. A
    new client continues behind it.
PRODUCER_SUCCESS.schema_version: The version of the producer's schema; must be present, empty without a
    schema.
PRODUCER_SUCCESS.topic_epoch: The epoch of the topic's exclusive producer. Absent for Shared.
PRODUCER_SUCCESS.producer_ready: false: it waits for exclusive access, and another PRODUCER_SUCCESS will
    follow.

SEND.sequence_id: The producer's number for this message; of a batch the lowest. The receipt repeats it.
    Deduplication drops what is not above the last one stored. All chunks of a message have the same.
SEND.num_messages: Messages in the batch. The broker does not compare it with the payload.
SEND.highest_sequence_id: The last sequence id of a batch. C++ does not set it.
SEND.is_chunk: Whether this is a chunk of a large message (PIP-37).
SEND.marker: Whether this is a marker; deduplication ignores those.
SEND.message_id: The id in the source topic; only for replicators of shadow topics (PIP-180).
SEND_RECEIPT.sequence_id: As in SEND; of a batch the lowest.
SEND_RECEIPT.message_id: Where the entry is stored. -1:-1: dropped as a duplicate. 0:0 on non-persistent
    topics.
SEND_RECEIPT.highest_sequence_id: As in SEND. Without one there, 0 or 2^64-1 (-1); both mean nothing.
SEND_ERROR.sequence_id: The highest one of the SEND, where SEND_RECEIPT has the lowest.

SUBSCRIBE.subType: The subscription type; all its consumers need the same.
SUBSCRIBE.consumer_name: Free text; decides the order of Failover consumers and the slots of Key_Shared.
SUBSCRIBE.priority_level: 0 is served first; others get messages when those before have no permits (Shared),
    or take over (Failover).
SUBSCRIBE.durable: false: a reader; the subscription ends with it, and nothing is kept for it.
SUBSCRIBE.start_message_id: Where a reader begins, itself included; clients skip that message. Durable
    subscriptions ignore it. -1:-1 is the earliest, 2^63-1 twice the latest.
SUBSCRIBE.read_compacted: Read the compacted topic (PIP-14); only Exclusive and Failover.
SUBSCRIBE.schema: The consumer's schema, which must fit those of the topic.
SUBSCRIBE.initialPosition: Where a new subscription begins. An existing one ignores it.
SUBSCRIBE.replicate_subscription_state: Whether its position is copied to other clusters (PIP-33).
SUBSCRIBE.force_topic_creation: false: a topic that does not exist gets TopicNotFound.
SUBSCRIBE.start_message_rollback_duration_sec: Begin with messages of the last so many seconds; new
    subscriptions only.
SUBSCRIBE.keySharedMeta: How Key_Shared distributes the keys; absent: AUTO_SPLIT.
SUBSCRIBE.subscription_properties: Properties kept with the subscription, for entry filters.
SUBSCRIBE.consumer_epoch: See MESSAGE.consumer_epoch.
KeySharedMeta.keySharedMode: Who chooses which keys a consumer gets.
KeySharedMeta.hashRanges: For STICKY: the slots of this consumer, of 0 to 65535, both ends included.
KeySharedMeta.allowOutOfOrderDelivery: Whether a key that moves to another consumer need not wait until the
    first one has acknowledged its messages.
KeySharedMeta.entryBucketDispatch: Distribute whole entries by the hashes that scalable topics' producers
    note (PIP-486).
FLOW.messagePermits: How many more messages may be delivered, added to what is left; 1 to 2^31-1.

MESSAGE.message_id: The entry's id; the position in a batch is counted by the client.
MESSAGE.redelivery_count: How often it was asked for again, by this subscription; absent: 0. Only REDELIVER
    raises it, and only for Shared and Key_Shared; brokers forget it when the topic is unloaded.
MESSAGE.ack_set: A bit for each message of the batch, the lowest bit of the first word first; 1: to be
    delivered, 0: acknowledged before. Absent: all are to be delivered.
MESSAGE.consumer_epoch: The epoch of the consumer's last redelivery request; clients drop messages of
    earlier ones (PIP-84).
ACK.ack_type: Individual or Cumulative.
ACK.message_id: What is acknowledged; Cumulative takes exactly one.
ACK.validation_error: Why the client could not read the message, which it discards by this ACK.
ACK.properties: Numbers kept with the position of a cumulative ACK.
ACK.request_id: If present, ACK_RESPONSE follows.
ACTIVE_CONSUMER_CHANGE.is_active: Whether this consumer gets the messages now.
UNSUBSCRIBE.force: Even if other consumers are connected (PIP-313).
SEEK.message_id: The message that will be delivered next.
SEEK.message_publish_time: Or: the first message published at this time (ms since 1970) or later.
REDELIVER_UNACKNOWLEDGED_MESSAGES.message_ids: Which messages, for Shared and Key_Shared; none: all.
REDELIVER_UNACKNOWLEDGED_MESSAGES.consumer_epoch: See MESSAGE.consumer_epoch.
TOPIC_MIGRATED.resource_type: Whether it is a producer or a consumer.
TOPIC_MIGRATED.resource_id: The producer_id or consumer_id.

PARTITIONED_METADATA.metadata_auto_creation_enabled: false: only ask, and create no topic (PIP-344).
PARTITIONED_METADATA_RESPONSE.partitions: How many; 0: not partitioned.
PARTITIONED_METADATA_RESPONSE.response: Success, or Failed with an error.
LOOKUP.authoritative: Copied from the redirect that led here; false in the first LOOKUP.
LOOKUP.advertised_listener_name: Which of the broker's listeners to name (PIP-61).
LOOKUP.properties: Hints for the choice of a broker (PIP-368).
LOOKUP_RESPONSE.response: Connect there, Redirect the LOOKUP there, or Failed.
LOOKUP_RESPONSE.authoritative: Whether a redirect names the owner; to be copied into the next LOOKUP. Always
    true with Connect.
LOOKUP_RESPONSE.proxy_through_service_url: Connect to the address that answered, and name the broker in
    CONNECT.proxy_to_broker_url.
GET_TOPICS_OF_NAMESPACE.mode: Which topics: PERSISTENT, NON_PERSISTENT or ALL.
GET_TOPICS_OF_NAMESPACE_RESPONSE.filtered: Whether the broker applied the pattern; else the client must.
GET_TOPICS_OF_NAMESPACE_RESPONSE.changed: false: the client's topics_hash is still right, and no topics are
    listed.
GET_TOPICS_OF_NAMESPACE_RESPONSE.topics: Full names. Each partition of a partitioned topic is listed.
WATCH_TOPIC_UPDATE.new_topics: Topics that were created.
WATCH_TOPIC_UPDATE.deleted_topics: Topics that were deleted.
CONSUMER_STATS_RESPONSE.msgRateOut: Messages delivered per second.
CONSUMER_STATS_RESPONSE.msgThroughputOut: Bytes delivered per second.
CONSUMER_STATS_RESPONSE.msgRateRedeliver: Messages delivered again per second.
CONSUMER_STATS_RESPONSE.consumerName: The consumer's name.
CONSUMER_STATS_RESPONSE.address: The client's address.
CONSUMER_STATS_RESPONSE.connectedSince: When the consumer was opened.
CONSUMER_STATS_RESPONSE.type: The subscription type.
CONSUMER_STATS_RESPONSE.msgRateExpired: Messages of the subscription that expire, per second.
CONSUMER_STATS_RESPONSE.messageAckRate: Acknowledgements per second.
CONSUMER_STATS_RESPONSE.availablePermits: Permits that are left. A number near 2^64 is a negative one.
CONSUMER_STATS_RESPONSE.blockedConsumerOnUnackedMsgs: Whether delivery has stopped because too many messages
    are unacknowledged.
CONSUMER_STATS_RESPONSE.msgBacklog: Messages of the subscription that are not acknowledged.
CONSUMER_STATS_RESPONSE.unackedMessages: Delivered and not acknowledged; 0 for Exclusive and Failover.
GET_LAST_MESSAGE_ID_RESPONSE.last_message_id: The last entry; -1:-1: the topic is empty.
GET_LAST_MESSAGE_ID_RESPONSE.consumer_mark_delete_position: Everything up to here is acknowledged by the
    subscription.
SUCCESS.schema: A schema. Brokers 4.0 were not seen to set it.
GET_SCHEMA_RESPONSE.schema: The schema, if there is one.
GET_OR_CREATE_SCHEMA.schema: The schema to look for and, if need be, to register.
GET_OR_CREATE_SCHEMA.producerName: The producer that will use it.
ADD_PARTITION_TO_TXN.partitions: The topics, each partition by its own name.
GET_SCHEMA.schema_version: Which version; absent: the latest.
NEW_TXN.txn_ttl_millis: Milliseconds after which the coordinator aborts the transaction.

MessageMetadata.producer_name: The producer's name; with sequence_id what deduplication compares.
MessageMetadata.sequence_id: As in SEND.
MessageMetadata.publish_time: When the client published it, in ms since 1970, by the client's clock.
MessageMetadata.replicated_from: The cluster where the message was published; absent: this one.
MessageMetadata.replicate_to: Clusters to which it is replicated, in place of the namespace's.
MessageMetadata.compression: How the payload (of a batch: all of it) is compressed.
MessageMetadata.uncompressed_size: Bytes of the payload before compression; needed to decompress LZ4 and
    ZLIB. Of a chunk, that of the whole message.
MessageMetadata.num_messages_in_batch: Present: the payload is a batch, even of one message. Absent: a plain
    message.
MessageMetadata.encryption_keys: The data key, encrypted with each of the recipients' public keys (PIP-4).
MessageMetadata.encryption_algo: Never set by clients.
MessageMetadata.encryption_param: The initialization vector of AES-GCM, 12 bytes.
MessageMetadata.schema_version: The version of the schema that the payload was written with.
MessageMetadata.deliver_at_time: Deliver not before this time, in ms since 1970 (PIP-26). Only Shared and
    Key_Shared wait for it, to about a second; Exclusive and Failover get it at once.
MessageMetadata.marker_type: Present: a marker that the broker wrote (MarkerType), not delivered to clients.
MessageMetadata.highest_sequence_id: The last sequence id of a batch.
MessageMetadata.uuid: The same for all chunks of a message: producer name and sequence id.
MessageMetadata.num_chunks_from_msg: Chunks of the message.
MessageMetadata.total_chunk_msg_size: Bytes of all chunks together, after compression and before encryption.
MessageMetadata.chunk_id: Which chunk this is, from 0.
MessageMetadata.compacted_batch_indexes: Positions in the batch that compaction has kept.
MessageMetadata.schema_id: The id of a schema in another registry (PIP-420).
MessageMetadata.entry_hash_min: The lowest hash of the keys in this entry; set by producers of scalable
    topics (PIP-486).
MessageMetadata.entry_hash_max: The highest hash of the keys in this entry (PIP-486).
SingleMessageMetadata.payload_size: Bytes of this message in the batch, after its metadata.
SingleMessageMetadata.compacted_out: Whether compaction removed this message from the batch.
SingleMessageMetadata.sequence_id: The message's own sequence id.
KeyValue.key: The property's name.
KeyValue.value: The property's value, a text.
KeyLongValue.key: The property's name.
KeyLongValue.value: The property's value, a number.
IntRange.start: The first number, included.
IntRange.end: The last number, included.
BaseCommand.type: Which command this is; also the number of the sub-message's field.
BrokerEntryMetadata.broker_timestamp: When the broker stored the entry, in ms since 1970 (PIP-70).
BrokerEntryMetadata.index: A number that counts the topic's messages, not entries; of a batch its last
    message's.
MessageIdData.ledgerId: The BookKeeper ledger. 2^64-1 (-1) with entryId -1: no message, or the earliest.
MessageIdData.entryId: The entry in the ledger, from 0.
MessageIdData.partition: The partition; -1: the topic is not partitioned.
MessageIdData.batch_index: The position in the batch, from 0; -1: not of a batch. The broker never sends it
    in MESSAGE.
MessageIdData.ack_set: In ACK: a bit for each message of the batch, the lowest bit first; 0: acknowledged,
    1: not (PIP-54). In SEEK: 1: to be delivered. Absent: the whole entry.
MessageIdData.batch_size: Messages in the batch.
MessageIdData.first_chunk_message_id: Of a chunked message: the id of its first chunk; the others are those
    of its last.
Schema.name: The topic's name, without persistent://, in answers.
Schema.type: What the payloads are.
Schema.schema_data: The definition: JSON text for Avro, JSON and Protobuf; for ProtobufNative descriptors.
EncryptionKeys.key: The name of the recipient's key.
EncryptionKeys.value: The data key, encrypted with it.

segment_id: The segment's number in its topic.
SegmentInfoProto.hash_start: The segment's first hash, included.
SegmentInfoProto.hash_end: The segment's last hash.
SegmentInfoProto.parent_ids: The segments that it was made of by a split or a merge.
SegmentInfoProto.child_ids: The segments that were made of it.
SegmentInfoProto.created_at_epoch: The epoch of the layout in which it appeared.
SegmentInfoProto.sealed_at_epoch: The epoch of the layout in which it was sealed.
SegmentInfoProto.created_at_ms: When it was created, in ms since 1970.
SegmentInfoProto.sealed_at_ms: When it was sealed, in ms since 1970.
SegmentInfoProto.legacy_topic_name: The topic before the migration to a scalable topic, whose messages it
    holds (PIP-475).
SegmentInfoProto.entry_bucket_splits: Where the hashes of the segment are cut into buckets (PIP-486).
SegmentBrokerAddress.broker_url: The broker's address for plain connections.
SegmentBrokerAddress.broker_url_tls: The broker's address for TLS.
ScalableTopicDAG.epoch: The layout's number; it grows with every change.
ScalableTopicDAG.segments: All segments, active and sealed.
ScalableTopicDAG.segment_brokers: Which broker serves which segment.
ScalableTopicDAG.controller_broker_url: The broker that controls the topic, for SCALABLE_TOPIC_SUBSCRIBE.
ScalableTopicDAG.controller_broker_url_tls: The same for TLS.
SCALABLE_TOPIC_LOOKUP.create_if_missing: Whether to create the topic if there is none.
SCALABLE_TOPIC_UPDATE.dag: The layout.
SCALABLE_TOPIC_UPDATE.resolved_topic_name: The topic's full name.
SCALABLE_TOPIC_SUBSCRIBE.consumer_name: The consumer's name, by which the controller knows it again.
SCALABLE_TOPIC_SUBSCRIBE.consumer_type: In which way it consumes.
assignment: The segments of the consumer.
ScalableConsumerAssignment.layout_epoch: The epoch of the layout that it is made from.
ScalableConsumerAssignment.segments: The segments to consume.
ScalableAssignedSegment.hash_start: The segment's first hash, included.
ScalableAssignedSegment.hash_end: The segment's last hash.
ScalableAssignedSegment.segment_topic: The topic of the segment: segment://tenant/namespace/topic/….
ScalableAssignedSegment.bucket_ranges: Which buckets of the segment the consumer has; none: all (PIP-486).
WATCH_SCALABLE_TOPICS.property_filters: Only topics that have these properties; none: all.
WATCH_SCALABLE_TOPICS.current_hash: A hash of the list that the client has.
WATCH_SCALABLE_TOPICS_UPDATE.snapshot: The whole list.
WATCH_SCALABLE_TOPICS_UPDATE.diff: What has changed.
ScalableTopicsSnapshot.topics: The topics' names.
ScalableTopicsDiff.added: Topics that are new.
ScalableTopicsDiff.removed: Topics that are gone.
WATCH_TC_ASSIGNMENTS_UPDATE.snapshot: All coordinators.
TcAssignmentsSnapshot.parallelism: How many coordinators there are.
TcAssignmentsSnapshot.assignments: Which broker runs which coordinator.
TcAssignment.broker_service_url: The broker's address for plain connections.
TcAssignment.broker_service_url_tls: The broker's address for TLS.
snapshot_id: The snapshot's id; answers and results repeat it.
clusters: The position in each of the other clusters.
ReplicatedSubscriptionsSnapshotRequest.source_cluster: The cluster that asks.
ReplicatedSubscriptionsSnapshotResponse.cluster: The cluster that answers, and its position.
ReplicatedSubscriptionsSnapshot.local_message_id: The position in the cluster that made the snapshot.
ReplicatedSubscriptionsUpdate.subscription_name: The subscription.
ClusterMessageId.cluster: The cluster's name.
ClusterMessageId.message_id: The position there.
MarkersMessageIdData.ledger_id: The BookKeeper ledger.
MarkersMessageIdData.entry_id: The entry in the ledger.
SegmentInfoProto.state: Whether it takes messages (ACTIVE) or is only read (SEALED).
""")
"""Field, as OWNER.field or field, where OWNER is a command or a message -> its page: about."""
