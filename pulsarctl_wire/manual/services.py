"""The commands for lookups, schemas, watches and transactions: their purpose, and what goes wrong with them.

Source of what is not in Pulsar's documents: a broker 4.0.8 and official clients, as observed. The commands of
scalable topics are from the schema and the PIPs.
"""

from typing import Final

from pulsarctl_wire.manual.pages import Page, pages

COMMANDS: Final[dict[str, Page]] = pages("""
PARTITIONED_METADATA: Asks how many partitions a topic has.
  sent: before anything else for a topic, and every minute by clients that follow new partitions.
  answer: From a Pulsar proxy a failure comes as LOOKUP_RESPONSE.
  wrong: TopicNotFound only if topics are not created automatically, or metadata_auto_creation_enabled is
    false. ServiceNotReady makes Java and C++ close the connection. Brokers answer TooManyRequests when many
    clients start at once: the limit is maxConcurrentLookupRequest.
  source: protocol specification, "Partitioned topics discovery"; PIP-344

PARTITIONED_METADATA_RESPONSE: How many partitions a topic has; 0: it is not partitioned.
  sent: after PARTITIONED_METADATA.
  wrong: The error is in here, with response=Failed, not in an ERROR. Each of the partitions is a topic of
    its own (NAME-partition-N): clients look up and open each, on whichever broker serves it.
  source: protocol specification, "Partitioned topics discovery"

LOOKUP: Asks which broker serves a topic.
  sent: before PRODUCER and SUBSCRIBE, and again after every disconnection; after a redirect to the broker
    named there.
  wrong: The broker that is asked becomes the owner if nobody else is: a PRODUCER or SUBSCRIBE without a
    lookup gets ServiceNotReady. Clients give up after 20 redirects. It succeeds for topics that do not
    exist.
  source: protocol specification, "Topic lookup"; PIP-61 (listeners), PIP-368 (properties)

LOOKUP_RESPONSE: Which broker serves a topic, or whom to ask next.
  sent: after LOOKUP; by a proxy also after a failed PARTITIONED_METADATA.
  wrong: Clients connect to brokerServiceUrl, the address that the broker advertises: if it cannot be
    reached from the client (inside Docker or Kubernetes), nothing works, although the lookup does. With
    proxy_through_service_url=true it does not matter. A proxy reports every failure as ServiceNotReady.
  source: protocol specification, "Topic lookup"

GET_TOPICS_OF_NAMESPACE: Asks for the topics of a namespace.
  sent: by consumers of a pattern, at the start and then every minute; by tools.
  wrong: For a namespace that does not exist the list is empty. A malformed name makes the broker close
    without a reply. A list larger than the client's frame limit makes Java and Go close and ask again, in a
    loop.
  source: PIP-145 (pattern and hash)

GET_TOPICS_OF_NAMESPACE_RESPONSE: The topics of a namespace.
  sent: after GET_TOPICS_OF_NAMESPACE.
  wrong: filtered=false means that the client has to apply its pattern itself, as with patterns of more than
    50 characters. Each partition is listed; system topics are not.
  source: PIP-145

GET_SCHEMA: Asks for a schema of a topic, the latest or a given version.
  sent: by consumers that meet a schema_version they do not know, and by AUTO_CONSUME and AUTO_PRODUCE
    clients.
  wrong: A schema or version that does not exist is reported in the answer, not in an ERROR.
  source: PIP-43

GET_SCHEMA_RESPONSE: A schema of a topic, with its version.
  sent: after GET_SCHEMA.
  wrong: TopicNotFound in error_code means that there is no schema, or not this version.

GET_OR_CREATE_SCHEMA: Registers a schema if the topic does not have it, and asks for its version.
  sent: by producers before the first message of another schema than that of PRODUCER.
  wrong: IncompatibleSchema, or TopicNotFound if nobody has the topic open: it creates none.
  source: PIP-43

GET_OR_CREATE_SCHEMA_RESPONSE: The version of a schema, for the messages' schema_version.
  sent: after GET_OR_CREATE_SCHEMA.
  wrong: A refusal is in error_code, not in an ERROR.
  source: PIP-43

WATCH_TOPIC_LIST: Asks to be told when topics that match a pattern are created or deleted.
  sent: by consumers of a pattern, if the broker sets supports_topic_watchers; the client chooses the
    watcher_id.
  wrong: InvalidTopicName for an invalid pattern, NotAllowedError for one that is too long (50 characters).
    A malformed namespace makes the broker close without a reply.
  source: PIP-145

WATCH_TOPIC_LIST_SUCCESS: A watch is open; the topics that match now.
  sent: after WATCH_TOPIC_LIST; with no topics if their hash is the one that the client sent.
  wrong: A namespace that does not exist has no topics, and the hash 00000000.
  source: PIP-145

WATCH_TOPIC_UPDATE: Topics of a watch that were created or deleted.
  sent: at every change, to the watcher_id.
  wrong: It may name system topics, which GET_TOPICS_OF_NAMESPACE leaves out.
  source: PIP-145

WATCH_TOPIC_LIST_CLOSE: Ends a watch.
  sent: when the consumer of the pattern closes.
  answer: SUCCESS also for an unknown watcher_id.
  source: PIP-145

TC_CLIENT_CONNECT_REQUEST: Connects to a transaction coordinator.
  sent: once for each coordinator, when a client with transactions starts; after a lookup of that partition
    of persistent://pulsar/system/transaction_coordinator_assign.
  wrong: NotAllowedError if the broker has no transactions (transactionCoordinatorEnabled).
  source: PIP-31

TC_CLIENT_CONNECT_RESPONSE: This broker runs the coordinator, or not.
  sent: after TC_CLIENT_CONNECT_REQUEST.
  wrong: It may succeed while the coordinator still loads: NEW_TXN gets TransactionCoordinatorNotFound until
    then.
  source: PIP-31

NEW_TXN: Opens a transaction, with a time after which it is aborted.
  sent: when the application opens one.
  wrong: TransactionCoordinatorNotFound while the coordinator loads. At its limit of open transactions it
    does not answer.
  source: PIP-31

NEW_TXN_RESPONSE: The id of the new transaction, in two numbers.
  sent: after NEW_TXN.
  wrong: txnid_most_bits is the coordinator's number: 0 is normal, and so is an id (0,0).
  source: PIP-31

ADD_PARTITION_TO_TXN: Tells the coordinator that a transaction will write to a topic.
  sent: before the first SEND of the transaction to that topic.
  wrong: InvalidTxnStatus if the transaction has ended; a SEND itself is not checked with the coordinator.
  source: PIP-31

ADD_PARTITION_TO_TXN_RESPONSE: The coordinator knows that the transaction writes to the topic.
  sent: after ADD_PARTITION_TO_TXN.
  wrong: The official Wireshark dissector does not know this command.
  source: PIP-31

ADD_SUBSCRIPTION_TO_TXN: Tells the coordinator that a transaction will acknowledge messages of a
    subscription.
  sent: before the first ACK of the transaction on that subscription.
  source: PIP-31

ADD_SUBSCRIPTION_TO_TXN_RESPONSE: The coordinator knows that the transaction acknowledges there.
  sent: after ADD_SUBSCRIPTION_TO_TXN.
  source: PIP-31

END_TXN: Commits or aborts a transaction.
  sent: when the application does so.
  wrong: TransactionNotFound for an id that never was, timed out or has ended; InvalidTxnStatus while it is
    ending, or has just been committed. Until the commit nothing of the transaction is delivered, nor
    anything behind it in the topic.
  source: PIP-31

END_TXN_RESPONSE: A transaction is committed or aborted.
  sent: after END_TXN, when all its topics and subscriptions have it.
  source: PIP-31

END_TXN_ON_PARTITION: Commits or aborts a transaction in one topic.
  sent: by the broker with the coordinator, to the broker that serves the topic.
  wrong: The receiver writes a marker (TXN_COMMIT, TXN_ABORT), which takes an entry id: consumers see gaps
    in the ids.
  source: PIP-31

END_TXN_ON_PARTITION_RESPONSE: A topic has committed or aborted its part of a transaction.
  sent: after END_TXN_ON_PARTITION, from broker to broker.
  source: PIP-31

END_TXN_ON_SUBSCRIPTION: Commits or aborts the acknowledgements of a transaction in one subscription.
  sent: by the broker with the coordinator, to the broker that serves the topic.
  source: PIP-31

END_TXN_ON_SUBSCRIPTION_RESPONSE: A subscription has committed or aborted its part of a transaction.
  sent: after END_TXN_ON_SUBSCRIPTION, from broker to broker.
  source: PIP-31

SCALABLE_TOPIC_LOOKUP: Asks for the layout of a scalable topic, and for every later change of it.
  sent: before producing or consuming, if the broker sets supports_scalable_topics (5.0).
  wrong: A broker before 5.0 does not know the command, and closes the connection.
  source: PIP-460, PIP-468

SCALABLE_TOPIC_UPDATE: The layout of a scalable topic: its segments, their key ranges, and who serves them.
  sent: after SCALABLE_TOPIC_LOOKUP, and again whenever a segment is split, merged or moved.
  wrong: The error of a failed lookup is in here.
  source: PIP-460, PIP-468

SCALABLE_TOPIC_CLOSE: Ends a SCALABLE_TOPIC_LOOKUP: no more updates.
  sent: when the producer or consumer closes.
  source: PIP-468

SCALABLE_TOPIC_SUBSCRIBE: Registers a consumer of a scalable topic with the topic's controller.
  sent: by stream and checkpoint consumers, to the broker that the layout names as controller.
  source: PIP-468

SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: Which segments a consumer of a scalable topic has to consume.
  sent: after SCALABLE_TOPIC_SUBSCRIBE.
  source: PIP-468

SCALABLE_TOPIC_ASSIGNMENT_UPDATE: The segments of a consumer have changed.
  sent: by the controller, when consumers come and go or segments are split and merged.
  source: PIP-468

WATCH_SCALABLE_TOPICS: Asks for the scalable topics of a namespace, and for changes of the list.
  sent: by consumers of several scalable topics (5.0).
  wrong: A broker before 5.0 does not know the command, and closes the connection.
  source: PIP-460

WATCH_SCALABLE_TOPICS_UPDATE: The scalable topics of a watch: first all of them, then what was added and
    removed.
  sent: after WATCH_SCALABLE_TOPICS, and at every change.
  wrong: The error of a failed watch is in here.
  source: PIP-460

WATCH_SCALABLE_TOPICS_CLOSE: Ends a WATCH_SCALABLE_TOPICS.
  sent: when nobody needs the list any more.
  source: PIP-460

WATCH_TC_ASSIGNMENTS: Asks which brokers run the transaction coordinators, and for changes.
  sent: by clients with transactions, if the broker sets supports_tc_metadata_discovery (5.0).
  wrong: A broker before 5.0 does not know the command, and closes the connection.
  source: PIP-473

WATCH_TC_ASSIGNMENTS_UPDATE: Which brokers run the transaction coordinators.
  sent: after WATCH_TC_ASSIGNMENTS, and at every change.
  wrong: The error of a failed watch is in here.
  source: PIP-473

WATCH_TC_ASSIGNMENTS_CLOSE: Ends a WATCH_TC_ASSIGNMENTS.
  sent: when the client closes.
  source: PIP-473
""")
"""Command -> its page: about, sent, answer, wrong, source."""
