"""The commands of connections, producers and consumers: what they are for, and what goes wrong with them.

Source of what is not in Pulsar's documents: a broker 4.0.8 and official clients, as observed.
"""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

COMMANDS: Final[dict[str, Page]] = pages("""
CONNECT: Opens a session on a new TCP connection: protocol version, credentials, features of the client.
  sent: as the first command of a connection; before it only PING and PONG are allowed.
  answer: AUTH_CHALLENGE if the authentication takes several steps. ERROR has request id -1, and then the
    broker closes. Commands sent behind CONNECT without waiting are served.
  wrong: A second CONNECT, or any other command first, makes the broker close without a reply. So does a
    missing client_version. With plain bytes on a TLS port (or TLS on a plain port) the broker closes and
    sends nothing. The C++ client (and so Python) accepts only CONNECTED here: it hides the broker's reason
    and retries until its timeout.
  source: protocol specification, "Connection establishment"; PIP-25 (tokens), PIP-30 (several steps)

CONNECTED: The broker accepts a session, and states its version and limits.
  sent: when CONNECT, and the authentication if any, have succeeded.
  wrong: Without max_message_size clients assume 5 MiB. protocol_version is the lower one of both sides; 0
    turns PINGs off. A Pulsar proxy that only looks up sends no max_message_size.
  source: protocol specification, "Connection establishment"

AUTH_CHALLENGE: The broker asks for credentials: for the next step of an authentication, or for new ones in
    a session.
  sent: after CONNECT, by methods with several steps; in an open session when the credentials expire. Then
    the data is PulsarAuthRefresh. The broker checks every 60 s (authenticationRefreshCheckSeconds).
  wrong: If a refresh is not answered until the next check, the broker closes without a word, although other
    traffic goes on. Clients that do not set supports_auth_refresh are closed when their credentials expire.
    The C++ client answers a refresh, but closes if it gets a challenge before CONNECTED.
  source: PIP-30; PIP-55 (refresh)

AUTH_RESPONSE: The client's answer to AUTH_CHALLENGE.
  sent: at once after AUTH_CHALLENGE.
  answer: Only during the handshake, or ERROR if it is refused. A good answer to a refresh gets no reply;
    that is success.
  wrong: An invalid token gets ERROR AuthenticationError with request id -1, one of another role no word;
    both end the connection. So does an AUTH_RESPONSE to a broker without authentication.
  source: PIP-30; PIP-55

PING: Asks whether the other side is alive.
  sent: by both sides, every 30 s, if they allow it (protocol version 1 or higher). A broker also tests with
    it whether the holder of a producer name or of an exclusive subscription is alive, and waits 5 s.
  wrong: Any command counts as the answer. Without one until the next tick (60 s after the last sign of
    life, with the defaults) the sender closes. A peer that no longer reads, is frozen, or was cut off by a
    firewall looks like that.
  source: protocol specification, "Keep Alive"

PONG: Answers PING.
  sent: at once after PING.
  wrong: A PONG that was not asked for is ignored. A PONG after the other side's FIN comes too late.
  source: protocol specification, "Keep Alive"

SUCCESS: A request was carried out. Which one, its request_id says.
  sent: after SUBSCRIBE, UNSUBSCRIBE, SEEK, CLOSE_PRODUCER, CLOSE_CONSUMER or WATCH_TOPIC_LIST_CLOSE.
  wrong: Clients ignore one whose request_id they do not know, so an answer after the client's timeout is
    lost: the broker has an open consumer then that nobody reads, unless the client sends CLOSE_CONSUMER.

ERROR: A request was refused. Which one, its request_id says.
  sent: in place of the answer. With request id -1 it is about the connection, and the broker closes it.
  wrong: What clients do depends on the error: see the error's name. A Pulsar proxy may answer with other
    errors than the broker did (a failed lookup becomes ServiceNotReady).

PRODUCER: Opens a producer of a topic, under an id that the client chooses.
  sent: after LOOKUP has named the broker that serves the topic; again, with a higher epoch, after every
    reconnection.
  answer: PRODUCER_SUCCESS twice if the producer waits for exclusive access: first with
    producer_ready=false. A topic that was migrated gets TOPIC_MIGRATED and CLOSE_PRODUCER instead.
  wrong: ProducerBusy if the name is taken: a broker first sends PING to the holder on another connection,
    and if that is dead answers with success after about 5 s. ServiceNotReady if the topic was not looked up
    first. If the topic is partitioned, its plain name is accepted all the same: a topic whose messages no
    partition has. If it is unanswered, clients send CLOSE_PRODUCER at their timeout; one that does not
    leaves its name taken.
  source: protocol specification, "Producer"; PIP-68 (access modes)

PRODUCER_SUCCESS: A producer is open; its name, its topic's schema version and its last sequence id.
  sent: when the topic is loaded and the producer is registered.
  wrong: Without schema_version (it must be present, empty if there is no schema) the Java client fails with
    an exception and reconnects for ever. With producer_ready=false a client waits without a timeout, and
    must not send yet.
  source: protocol specification, "Producer"; PIP-68

CLOSE_PRODUCER: Closes a producer; or says, sent by the broker, that it was closed.
  sent: by the client when it is done, or gives up waiting for PRODUCER_SUCCESS. By the broker, with request
    id -1, when the topic is unloaded, moved, terminated or deleted.
  answer: Behind the receipts of all pending SENDs. SUCCESS also for an unknown id. The broker's gets no
    answer: the client looks the topic up, opens the producer again, and sends everything without a receipt
    again.
  wrong: SENDs under way when the broker closes are ignored; SENDs after the client's own CLOSE_PRODUCER end
    the connection. Clients below protocol version 5 are disconnected instead.
  source: protocol specification, "Producer"; PIP-307 (the new broker's address)

SEND: Publishes one entry: a message, a batch, or a chunk. MessageMetadata and payload follow the command.
  sent: whenever the application publishes, without waiting for earlier receipts.
  answer: With the same producer_id and sequence_id. Receipts come in order; SEND_ERROR may overtake them.
  wrong: The broker closes without a reply if the producer is unknown, is waiting for exclusive access or
    was fenced; and if the frame exceeds max_message_size by more than 10 KiB. Under overload it answers
    nothing: it stops reading, at 1,000 pending SENDs of a connection for example. Without a receipt in time
    (30 s) clients fail the message or reconnect and send it again; without deduplication it may be stored
    twice. Metadata that nobody can decode is stored with a receipt, and never delivered.
  source: protocol specification, "Producer" and "Payload commands"; PIP-6 (deduplication), PIP-37 (chunks)

SEND_RECEIPT: An entry is stored; message_id says where.
  sent: when enough bookies have stored the entry. Receipts of a producer come in the order of its SENDs.
  wrong: A message id of -1:-1 on a persistent topic means that deduplication dropped the entry: nothing was
    stored. All clients close and send everything again if a receipt is not for their oldest SEND; those for
    older ones are ignored. A late receipt is no error; the application has seen a timeout by then. On a
    non-persistent topic every receipt says 0:0.
  source: protocol specification, "Producer"; PIP-6

SEND_ERROR: An entry was not stored.
  sent: in place of SEND_RECEIPT. Its sequence_id is the highest one of a batch.
  wrong: On ChecksumError the Java client checks its copy, and sends all pending entries again if that is
    intact; C++ drops the message. On most other errors both close the whole connection, reconnect and send
    again.
  source: protocol specification, "Producer"

SUBSCRIBE: Opens a consumer of a subscription, and creates the subscription if there is none.
  sent: after LOOKUP has named the broker that serves the topic, and again after every reconnection and
    every SEEK.
  answer: A Failover consumer that stays on standby gets ACTIVE_CONSUMER_CHANGE before SUCCESS. Nothing is
    delivered until FLOW.
  wrong: ConsumerBusy if another exclusive consumer or another subscription type is active; the holder of an
    exclusive subscription on another connection is tested with PING first. initialPosition and
    start_message_id apply only to a new (or non-durable) subscription. Repeated for an id in use it
    succeeds and changes nothing, even for another topic. An empty subscription name gets ProducerBusy.
  source: protocol specification, "Consumer"; PIP-34 (Key_Shared)

FLOW: Grants a consumer permits: the broker may deliver that many more messages.
  sent: after SUBSCRIBE (usually 1,000, the size of the receiver queue), then whenever half of that was
    taken from the queue.
  wrong: Without permits nothing is delivered, and nobody says so: a client that loses count, or whose
    application receives nothing, waits for ever with a growing backlog. Permits are lost when the consumer
    closes or subscribes again. A batch costs its number of messages and is never split, so permits may
    become negative. 0, or 2^31 and more, makes the broker close; more than 2^31-1 in all wraps around, and
    delivery stops. For unknown consumers it is dropped silently.
  source: protocol specification, "Flow control"

MESSAGE: Delivers one entry to a consumer. MessageMetadata and payload follow, exactly as they were sent.
  sent: while the consumer has permits.
  answer: ACK follows when the application has acknowledged it.
  wrong: Clients acknowledge an entry with a wrong checksum, with validation_error, and so discard it.
    Metadata that is no protobuf makes C++ close and subscribe again, in a loop; a payload that cannot be
    decompressed does that to Java. Shared and Key_Shared stop at 50,000 unacknowledged messages of a
    consumer, until half are acknowledged.
  source: protocol specification, "Consumer" and "Payload commands"

ACK: Acknowledges messages: they need not be delivered to this subscription again.
  sent: when the application acknowledges; clients collect for 100 ms. With validation_error a client
    discards what it cannot read.
  answer: Only if it has a request_id.
  wrong: For an unknown consumer it is dropped silently, even with a request_id. Unknown message ids, and
    cumulative ones on a Shared subscription, are ignored and answered as success. Part of a batch (ack_set)
    counts only if the broker keeps that (acknowledgmentAtBatchIndexLevelEnabled, off by default up to 4.0):
    else the whole batch comes again. One message that is never acknowledged keeps its ledger from being
    deleted.
  source: protocol specification, "Consumer"; PIP-54 (parts of batches)

ACK_RESPONSE: An acknowledgement has been processed.
  sent: after ACK with a request_id (clients: isAckReceiptEnabled, and in transactions).
  wrong: In a transaction: TransactionConflict if another transaction has acknowledged the message. Outside
    of one it is no proof that anything changed: unknown ids get no error.

ACTIVE_CONSUMER_CHANGE: Tells a Failover consumer whether it is the active one, which gets the messages.
  sent: about 1 s after the consumers of a Failover subscription changed; to a newcomer on standby before
    its SUCCESS.
  wrong: Messages wait for that second. After a takeover, whatever the old consumer has not acknowledged
    comes again.
  source: protocol specification, "Consumer"

UNSUBSCRIBE: Deletes a subscription, with its backlog.
  sent: when the application asks for it.
  wrong: MetadataError while other consumers are connected, except with force (they get CLOSE_CONSUMER
    then), and for an unknown consumer.
  source: protocol specification, "Consumer"; PIP-313 (force)

REDELIVER_UNACKNOWLEDGED_MESSAGES: Asks for messages to be delivered again.
  sent: after negative acknowledgements (60 s later, by default) and acknowledgement timeouts; without ids:
    everything that is not acknowledged.
  wrong: Ids count only for Shared and Key_Shared, and only those that this consumer holds. Exclusive and
    Failover ignore them and begin again after the last acknowledged message. Redelivery needs permits. A
    message that always fails comes again for ever, unless a dead letter topic takes it.
  source: protocol specification, "Consumer"; PIP-84 (epochs)

CLOSE_CONSUMER: Closes a consumer; or says, sent by the broker, that it was closed. The subscription stays.
  sent: by the client when it is done, or gives up waiting for SUBSCRIBE. By the broker, with request id -1,
    when the topic is unloaded, moved or deleted, at a SEEK to all consumers of the subscription, and at a
    forced UNSUBSCRIBE.
  answer: SUCCESS also for an unknown id. The broker's gets no answer: the client looks the topic up,
    subscribes and grants permits again.
  wrong: What was delivered and not acknowledged is delivered again. A SUBSCRIBE that is still pending may
    never be answered once its CLOSE_CONSUMER was.
  source: protocol specification, "Consumer"; PIP-307

SEEK: Moves a subscription to a message, or to the first one published at a time or later.
  sent: when the application asks for it.
  answer: Before SUCCESS, CLOSE_CONSUMER with request id -1 to every consumer of the subscription. The
    client subscribes again.
  wrong: MetadataError without a target or for an unknown consumer. A client that subscribes before SUCCESS
    may get old messages. An id past the end lands at the end. On a non-persistent topic it succeeds, and
    moves nothing.
  source: protocol specification, "Consumer"

REACHED_END_OF_TOPIC: Tells a consumer that its topic was terminated, and everything in it is acknowledged.
  sent: when a topic was terminated (it is read-only for ever) and the subscription has no backlog.
  wrong: It waits for the acknowledgements, not only for delivery. The C++ client (4.2.0) and Go (0.19.0) do
    not know it: they close the connection and subscribe again, twice.
  source: protocol specification, "Consumer"

TOPIC_MIGRATED: Tells a producer or consumer that its topic now lives in another cluster.
  sent: after a cluster was marked as migrated; to PRODUCER and SUBSCRIBE instead of an answer.
    CLOSE_PRODUCER or CLOSE_CONSUMER follows.
  answer: The client connects to the named cluster.
  source: PIP-188

CONSUMER_STATS: Asks for a broker's statistics of a consumer of this connection.
  sent: by the C++ client and tools.
  wrong: For an unknown consumer a broker 4.0 closes the connection without a reply.

CONSUMER_STATS_RESPONSE: The statistics of a consumer.
  sent: after CONSUMER_STATS.
  wrong: availablePermits may be negative, and appears as a number near 2^64. unackedMessages stays 0 for
    Exclusive and Failover. blockedConsumerOnUnackedMsgs=true explains why nothing is delivered.

GET_LAST_MESSAGE_ID: Asks for the id of the topic's last message.
  sent: by readers that check whether there is more (hasMessageAvailable), and by tools.
  wrong: MetadataError for an unknown consumer; UnknownError on a non-persistent topic.

GET_LAST_MESSAGE_ID_RESPONSE: The id of the topic's last message, and the position up to which the
    subscription is acknowledged.
  sent: after GET_LAST_MESSAGE_ID.
  wrong: -1:-1 means that the topic is empty. A reader that waits for exactly this id hangs if it is never
    delivered: a marker, an aborted transaction, or removed by compaction. A broker 4.0.8 leaves markers
    out.
""")
"""Command -> its page: about, sent, answer, wrong, source."""
