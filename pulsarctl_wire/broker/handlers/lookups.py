"""Handlers of LOOKUP, PARTITIONED_METADATA and the commands for lists of topics.

Sources: b/ServerCnx, lookup/TopicLookupBase (4.0).
"""

from collections.abc import Iterable
from typing import Any

from pulsarctl_wire.broker.basics.names import InvalidName, TopicName, check_namespace, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection
from pulsarctl_wire.broker.clients.watchers import (
    Watcher,
    compile_pattern,
    hash_topics,
    select_matching,
    without_domain,
)
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
)


def parse_topic_field(connection: Connection, text: str | bytes) -> TopicName:
    """Return the topic that a command names. Raises Refused."""
    try:
        return parse_topic(connection.text(text))
    except InvalidName as error:
        raise Refused("InvalidTopicName", f"Invalid topic name: {error}") from None


def lookup(broker: Broker, connection: Connection, body: CommandLookupTopic, frame: Frame) -> None:
    """Handle LOOKUP: answer with the owner of the topic; a topic without an owner gets one."""
    answer: dict[str, Any]
    try:
        name = parse_topic_field(connection, body.topic)
        if broker.cluster.get_owner(name) is None:  # else the answer is known: the lookup is never pending
            broker.admit_lookup()
        connection.identity.check_tenant(
            name.namespace, "Exception occurred while trying to authorize lookup"
        )
        connection.identity.authorize("Lookup", name, "produce", "consume")
        if not broker.cluster.namespaces.exists(name.namespace):
            raise Refused("TopicNotFound", "Namespace not found")
        owner, is_redirect, authoritative = broker.cluster.find_owner(broker, name, body.authoritative)
        plain, secure = owner.service_url, owner.service_url_tls
        if listener := connection.text(body.advertised_listener_name).strip():
            if listener not in owner.listeners:
                raise Refused("ServiceNotReady", f"the broker do not have {listener} listener")
            plain, secure = owner.listeners[listener]
    except Refused as refused:
        answer = {"response": CommandLookupTopicResponse.Failed, **refused.fields}
    else:
        answer = {
            "brokerServiceUrl": plain or None,
            "brokerServiceUrlTls": secure or None,
            "response": CommandLookupTopicResponse.Redirect
            if is_redirect
            else CommandLookupTopicResponse.Connect,
            "authoritative": authoritative,
            # with one broker, as from a standalone Pulsar
            "proxy_through_service_url": len(broker.cluster.brokers) == 1,
        }
    connection.send("LOOKUP_RESPONSE", request_id=body.request_id, **answer)


def get_partitioned_metadata(
    broker: Broker, connection: Connection, body: CommandPartitionedTopicMetadata, frame: Frame
) -> None:
    """Handle PARTITIONED_METADATA: send the number of partitions; may create a partitioned topic."""
    answer: dict[str, Any]
    try:
        name = parse_topic_field(connection, body.topic)
        broker.admit_lookup()
        text = f"Tenant or namespace or topic does not exist: {name.namespace}"
        connection.identity.check_tenant(name.namespace, text, "TopicNotFound")
        connection.identity.authorize("Get Partition Metadata", name, "produce", "consume")
        answer = {
            "partitions": _count_partitions(broker, name, create=body.metadata_auto_creation_enabled),
            "response": CommandPartitionedTopicMetadataResponse.Success,
        }
    except Refused as refused:
        answer = {"response": CommandPartitionedTopicMetadataResponse.Failed, **refused.fields}
    connection.send("PARTITIONED_METADATA_RESPONSE", request_id=body.request_id, **answer)


def _count_partitions(broker: Broker, name: TopicName, *, create: bool) -> int:
    cluster = broker.cluster
    partitions = cluster.namespaces.count_partitions(name)
    if partitions or name.full in cluster.namespaces.topics or name.full in broker.topics:
        return partitions
    if not create or not cluster.catalogue.can_create(name):
        raise Refused("TopicNotFound", "")
    if not cluster.namespaces.exists(name.namespace):
        raise Refused("TopicNotFound", "Namespace not found")
    partitions = cluster.catalogue.default_partitions(name) if name.partition < 0 else 0
    if partitions:  # each of them is created when a client uses it
        cluster.namespaces.create_partitioned(name, partitions, {})
    return partitions


def get_topics(
    broker: Broker, connection: Connection, body: CommandGetTopicsOfNamespace, frame: Frame
) -> None:
    """Handle GET_TOPICS_OF_NAMESPACE."""
    namespace = _parse_namespace(connection, body.namespace)
    broker.admit_lookup()
    text = "Exception occurred while trying to authorize GetTopicsOfNamespace"
    connection.identity.check_tenant(namespace, text)
    connection.identity.authorize_list(namespace, "Client is not authorized to GetTopicsOfNamespace")
    mode = body.mode
    names: list[TopicName] = []
    if mode != CommandGetTopicsOfNamespace.NON_PERSISTENT:
        names += broker.cluster.namespaces.list_stored(namespace)
    if mode != CommandGetTopicsOfNamespace.PERSISTENT:
        names += _find_non_persistent(broker, namespace)
    names = [name for name in names if not name.is_system]
    pattern, settings = connection.text(body.topics_pattern), connection.settings
    is_filtered = (
        body.HasField("topics_pattern")
        and settings.enableBrokerSideSubscriptionPatternEvaluation
        and len(pattern) <= settings.subscriptionPatternMaxLength
    )
    if is_filtered:
        names = select_matching(compile_pattern(without_domain(pattern)), names)
    topics = [name.full for name in names]
    current_hash = hash_topics(topics)
    is_changed = connection.text(body.topics_hash) != current_hash
    connection.send(
        "GET_TOPICS_OF_NAMESPACE_RESPONSE",
        request_id=body.request_id,
        topics=topics if is_changed else [],
        filtered=is_filtered,
        topics_hash=current_hash,
        changed=is_changed,
    )


def _find_non_persistent(broker: Broker, namespace: str) -> Iterable[TopicName]:
    """Return the non-persistent topics of a namespace that are in use, sorted by name."""
    loaded = [topic for broker in broker.cluster.brokers for topic in broker.topics.values()]
    names = [topic.name for topic in loaded if topic.producers or topic.subscriptions]
    return sorted(name for name in names if name.namespace == namespace and not name.is_persistent)


def _parse_namespace(connection: Connection, text: str | bytes) -> str:
    try:
        return check_namespace(connection.text(text))
    except InvalidName as error:
        raise Violation(str(error)) from None


def watch(broker: Broker, connection: Connection, body: CommandWatchTopicList, frame: Frame) -> None:
    """Handle WATCH_TOPIC_LIST: send the topics that match now; updates follow."""
    namespace = _parse_namespace(connection, body.namespace)
    failure = "Exception occurred while trying to handle command WatchTopicList"
    connection.identity.check_tenant(namespace, failure)
    connection.identity.authorize_list(namespace, "Proxy Client is not authorized to watchTopicList")
    settings = connection.settings
    try:
        pattern = without_domain(connection.text(body.topics_pattern))
    except Refused:  # of `without_domain`; Pulsar answers so whatever goes wrong there
        raise Refused("AuthorizationError", failure) from None
    max_length = settings.subscriptionPatternMaxLength
    problem = f"Pattern longer than maximum: {max_length}" if len(pattern) > max_length else ""
    if not settings.enableBrokerSideSubscriptionPatternEvaluation:
        problem = "Evaluating subscription patterns is disabled."
    if problem:
        raise Refused("NotAllowedError", f"Unable to create topic list watcher: {problem}")
    try:
        compiled_pattern = compile_pattern(pattern)
    except Refused as refused:
        text = str(refused).partition(": ")[2]  # without the name of the Java exception
        raise Refused("InvalidTopicName", f"Invalid topics pattern: {text}") from None
    watchers = broker.cluster.watchers
    watcher = watchers.add(Watcher(connection, body.watcher_id, namespace, compiled_pattern))
    topics = watchers.list_topics(watcher)
    current_hash = hash_topics(topics)
    connection.send(
        "WATCH_TOPIC_LIST_SUCCESS",
        request_id=body.request_id,
        watcher_id=body.watcher_id,
        topic=topics if connection.text(body.topics_hash) != current_hash else [],
        topics_hash=current_hash,
    )


def close_watch(
    broker: Broker, connection: Connection, body: CommandWatchTopicListClose, frame: Frame
) -> None:
    """Handle WATCH_TOPIC_LIST_CLOSE."""
    broker.cluster.watchers.remove(connection, body.watcher_id)
    connection.send("SUCCESS", request_id=body.request_id)
