"""ServerErrors: which requests get them, what clients do then, and what an operator can do.

Their meanings, and whether a retry is useless, are in wire/server_errors.py. Sources: the broker's mapping of
exceptions to codes; a broker 4.0.8 and official clients, as observed.
"""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

PAGES: Final[dict[str, Page]] = pages("""
UnknownError
  gets: any request; GET_LAST_MESSAGE_ID on a non-persistent topic; SEEK that fails.
  clients: retry until the operation timeout, mostly.
  advice: Read the message and the broker's log at that time.
MetadataError
  gets: SEEK without a target; SEEK, UNSUBSCRIBE and GET_LAST_MESSAGE_ID for an unknown consumer;
    UNSUBSCRIBE while others are connected; PRODUCER without encryption where it is required; consumer
    metadata of more than 1 KiB.
  clients: retry until the operation timeout when they open a producer or consumer.
  advice: The message says which case it is. If it is about metadata, look at ZooKeeper or its replacement.
PersistenceError
  gets: SEND, PRODUCER, SUBSCRIBE; a duplicate whose first copy is not stored yet.
  clients: close the connection, reconnect and send again: the application sees a delay.
  advice: If it lasts, look at the bookies: disk space, read-only bookies, fewer of them than the ensemble
    needs.
AuthenticationError
  gets: CONNECT and AUTH_RESPONSE, with request id -1; the broker closes then.
  clients: Java fails at once and shows the text. C++, Python and Go hide it: they retry until a timeout.
  advice: Check the token's expiry, its key and the method's name; for a proxy, its own credentials too.
AuthorizationError
  gets: LOOKUP, PARTITIONED_METADATA, PRODUCER, SUBSCRIBE, GET_TOPICS_OF_NAMESPACE and others.
  clients: fail at once.
  advice: Grant produce or consume on the namespace or topic. Behind a proxy both roles need it.
ConsumerBusy
  gets: SUBSCRIBE: a second Exclusive consumer, another subscription type or Key_Shared mode, the limit of
    consumers.
  clients: fail at once.
  advice: Find the other consumer (topic stats). A dead one is removed about 5 s after the next attempt.
ServiceNotReady
  gets: PRODUCER and SUBSCRIBE without a lookup, or while the topic moves or the first request is pending;
    LOOKUP with an unknown listener name; anything through a proxy that cannot serve it.
  clients: look up again and retry with growing pauses (0.1 s, 0.2 s …) until the operation timeout. In
    answers to LOOKUP and PARTITIONED_METADATA it closes the connection.
  advice: A few are normal while topics move. If it stays, check advertised listeners, and that the client
    looks up.
ProducerBlockedQuotaExceededError
  gets: PRODUCER; SEND of an open producer.
  clients: keep their messages, and retry until the operation or send timeout.
  advice: Find the subscription with the backlog: consume, skip or delete it; or raise the quota.
ProducerBlockedQuotaExceededException
  gets: PRODUCER; SEND of an open producer.
  clients: fail the messages; C++ and Java close the connection when a SEND gets it, and reconnect.
  advice: Find the subscription with the backlog: consume, skip or delete it; or raise the quota.
ChecksumError
  gets: SEND.
  clients: Java checks its own copy and sends all pending entries again; C++ fails that message.
  advice: If it repeats for the same message, the client damages it. Else suspect memory, network cards and
    proxies.
UnsupportedVersionError
  gets: SUBSCRIBE, once, for batches and clients below version 4. A broker 4.0 closes the connection
    instead.
  clients: fail.
  advice: Update the client.
TopicNotFound
  gets: PARTITIONED_METADATA, PRODUCER and SUBSCRIBE if topics are not created automatically; LOOKUP in an
    unknown namespace; GET_SCHEMA without a schema; a partition beyond the topic's number.
  clients: fail at once, even a producer or consumer that was open before.
  advice: Check the name's spelling, tenant and namespace; create the topic, or allow automatic creation.
SubscriptionNotFound
  gets: SUBSCRIBE with a durable subscription (allowAutoSubscriptionCreation=false).
  clients: fail at once.
  advice: Create the subscription, or check its name.
ConsumerNotFound
  gets: hardly anything: a broker 4.0 says MetadataError instead.
  clients: fail.
  advice: The client uses a consumer id that it has closed, or that the broker has closed.
TooManyRequests
  gets: PARTITIONED_METADATA, mostly; LOOKUP; GET_TOPICS_OF_NAMESPACE.
  clients: retry; Java closes the connection at the 51st within a minute, so the broker sees new connections
    too.
  advice: Raise maxConcurrentLookupRequest, or let fewer clients start at once. Clients have a limit of
    their own.
TopicTerminatedError
  gets: PRODUCER; SEND seldom, as the broker closes open producers first.
  clients: Java fails all pending messages and closes the producer. C++ reconnects if a SEND gets it.
  advice: Intended (terminate), or the topic's name is used by two applications.
ProducerBusy
  gets: PRODUCER whose name is in use, on a topic with an exclusive or waiting producer, or beyond the limit
    of producers; and SUBSCRIBE with an empty subscription name.
  clients: fail at once when they open the producer; later they retry.
  advice: Names must be unique: find the other producer (topic stats). A dead one goes about 5 s after the
    next attempt.
InvalidTopicName
  gets: every request that names a topic; WATCH_TOPIC_LIST with an invalid pattern.
  clients: fail at once.
  advice: Names are persistent://tenant/namespace/topic, or just topic.
IncompatibleSchema
  gets: PRODUCER, SUBSCRIBE, GET_OR_CREATE_SCHEMA.
  clients: fail at once.
  advice: Compare the schemas (pwire schema get); change the new one or the strategy of the namespace.
ConsumerAssignError
  gets: SUBSCRIBE.
  clients: fail at once.
  advice: Give each consumer ranges of its own.
TransactionCoordinatorNotFound
  gets: NEW_TXN and the other commands of transactions.
  clients: connect to the coordinators again, and retry.
  advice: Wait, if a broker has just started. Else check that initialize-transaction-coordinator-metadata
    was run.
InvalidTxnStatus
  gets: END_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN: it is committed, aborted, or about to be.
  clients: fail.
  advice: Often the transaction timed out. Raise its timeout, or make it shorter.
NotAllowedError
  gets: connections beyond the limits; transactions while they are off; read_compacted on Shared; a durable
    and a non-durable consumer with one subscription name; message_id outside of shadow topics; long
    patterns of a watch.
  clients: fail at once; of SEND only that message fails in Java, while C++ reconnects. As answer to CONNECT
    it closes.
  advice: The message says which setting.
TransactionConflict
  gets: ACK in a transaction.
  clients: fail; the application should abort.
  advice: Expected if two consumers process the same message. Else look for double processing.
TransactionNotFound
  gets: END_TXN and the others, with an id that never was, timed out, or ended long ago.
  clients: fail.
  advice: Raise the transaction's timeout, or make it shorter.
ProducerFenced
  gets: PRODUCER with access mode Exclusive while another producer is open, or with an old topic_epoch.
  clients: fail for good: the application must create a new producer.
  advice: Expected when another instance takes over (ExclusiveWithFencing). Else find the other producer.
""")
"""ServerError's name -> its page: gets, clients, advice."""

JAVA: Final = {
    "MetadataError": "BrokerMetadataException",
    "PersistenceError": "BrokerPersistenceException",
    "AuthenticationError": "AuthenticationException",
    "AuthorizationError": "AuthorizationException",
    "ConsumerBusy": "ConsumerBusyException",
    "ProducerBlockedQuotaExceededError": "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException": "ProducerBlockedQuotaExceededException",
    "ServiceNotReady": "LookupException",
    "TooManyRequests": "TooManyRequestsException",
    "TopicTerminatedError": "TopicTerminatedException",
    "ProducerBusy": "ProducerBusyException",
    "IncompatibleSchema": "IncompatibleSchemaException",
    "TopicNotFound": "TopicDoesNotExistException",
    "SubscriptionNotFound": "SubscriptionNotFoundException",
    "ConsumerAssignError": "ConsumerAssignException",
    "TransactionCoordinatorNotFound": "CoordinatorNotFoundException",
    "InvalidTxnStatus": "InvalidTxnStatusException",
    "NotAllowedError": "NotAllowedException",
    "TransactionConflict": "TransactionConflictException",
    "TransactionNotFound": "TransactionNotFoundException",
    "ProducerFenced": "ProducerFencedException",
}
"""ServerError's name -> what the Java client throws for it, if that has a class of its own."""

CPP: Final = {
    "MetadataError": "BrokerMetadataError",
    "PersistenceError": "BrokerPersistenceError",
    "TooManyRequests": "TooManyLookupRequestException",
    "TopicTerminatedError": "TopicTerminated",
    "TransactionCoordinatorNotFound": "TransactionCoordinatorNotFoundError",
    "InvalidTxnStatus": "InvalidTxnStatusError",
    "ServiceNotReady": "Retryable",
}
"""ServerError's name -> the C++ client's Result, where that has another name."""
