"""Protocol versions: what each added, and how peers below it are treated.

CONNECTED states the lower version of both sides. Brokers refuse no request because of a version; newer
features are negotiated by CONNECT.feature_flags and CONNECTED.feature_flags instead. Sources: Pulsar's
schema; a broker 4.0.8 and official clients, as observed.
"""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

PAGES: Final[dict[str, Page]] = pages("""
v0: The first version; also what a CONNECT without protocol_version means.
  below: Such a peer is never sent PING.
v1: Keep-alive.
  adds: PING, PONG
  below: A side sends PING only to a peer of version 1 or higher.
v2: Redelivery of messages without closing the consumer.
  adds: REDELIVER_UNACKNOWLEDGED_MESSAGES
  below: Clients do not send it to older brokers.
v3: Compressed payloads (LZ4, ZLIB).
  adds: MessageMetadata.compression, MessageMetadata.uncompressed_size, CompressionType.LZ4,
    CompressionType.ZLIB
  below: Nothing checks this version.
v4: Batches.
  adds: MessageMetadata.num_messages_in_batch, SEND.num_messages, SingleMessageMetadata.payload_size
  below: The broker closes the connection of an older client when it would have to deliver a batch.
v5: The broker can close one producer or consumer, and leave the connection open.
  below: The broker closes the whole connection, for example when a topic is unloaded.
v6: Checksums (CRC32-C) of metadata and payload, behind the magic number 0x0e01.
  below: Clients send no checksum to older brokers. Brokers accept its absence from everybody.
v7: Lookups over the binary protocol, instead of HTTP.
  adds: LOOKUP
  below: Nothing checks this version.
v8: Statistics of consumers.
  adds: CONSUMER_STATS
  below: The C++ client does not ask older brokers.
v9: The end of a terminated topic is announced.
  adds: REACHED_END_OF_TOPIC
  below: The broker does not send it to older clients.
v10: The Pulsar proxy.
  adds: CONNECT.proxy_to_broker_url, LOOKUP_RESPONSE.proxy_through_service_url
  below: The proxy closes connections of older clients without a word.
v11: C++ consumers handle checksums correctly.
  below: The broker removes the checksum of entries for older clients.
v12: Active consumers, the last message id, lists of topics.
  adds: ACTIVE_CONSUMER_CHANGE, GET_LAST_MESSAGE_ID, GET_TOPICS_OF_NAMESPACE
  below: The broker sends no ACTIVE_CONSUMER_CHANGE. Clients put only one id into an ACK.
v13: JSON schemas in Avro's form.
  below: Clients send older brokers JSON schemas in their earlier form.
v14: Authentication in several steps; Key_Shared subscriptions.
  adds: AUTH_CHALLENGE, AUTH_RESPONSE, SubType.Key_Shared, SUBSCRIBE.keySharedMeta
  below: Nothing checks this version. Refreshes need the flag supports_auth_refresh.
v15: Producers may use several schemas. Java 2.6 says 15.
  adds: GET_OR_CREATE_SCHEMA
  below: Clients do not send it to older brokers.
v16: Broker entry metadata, on the broker's side.
  below: Nothing checks this version.
v17: Confirmed acknowledgements.
  adds: ACK_RESPONSE, ACK.request_id
  below: Clients put no request_id into an ACK to older brokers.
v18: Broker entry metadata, delivered to clients.
  adds: FeatureFlags.supports_broker_entry_metadata
  below: Older clients never get it. Others need the flag supports_broker_entry_metadata too, and a broker
    that exposes it (exposingBrokerEntryMetadataToClientEnabled).
v19: Connecting to transaction coordinators. Brokers 2.10 say 19.
  adds: TC_CLIENT_CONNECT_REQUEST
  below: Clients do not send it to older brokers.
v20: Migration of topics to another cluster. The C++ client 4.2 and Go 0.19 say 20.
  adds: TOPIC_MIGRATED
  below: Older clients are not told where the topic went.
v21: Consumers without a schema of their own (AUTO_CONSUME) say so in SUBSCRIBE. Brokers and Java 4.0 say
    21.
  adds: Schema.Type.AutoConsume
  below: Java sends no such schema to older brokers.
""")
"""The version's name -> its page: about, adds (commands, fields, values), below."""
