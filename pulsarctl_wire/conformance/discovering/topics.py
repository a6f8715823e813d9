"""GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, present, require
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target

_DEFAULT = "persistent://public/default"


def _hash(topics: Iterable[str]) -> str:
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


async def _open(broker: Target, *topics: str) -> Probe:
    """Return a connection with a producer of each topic."""
    probe = await broker.connect()
    for number, topic in enumerate(topics, 1):
        await probe.create_producer(topic, number)
    return probe


async def _open_with_prefix(broker: Target, *endings: str) -> tuple[Probe, str, list[str]]:
    """Return a connection, a prefix, and existing topics PREFIX-ENDING; another topic exists too."""
    prefix = broker.name("p")
    names = [f"{_DEFAULT}/{prefix}-{ending}" for ending in endings]
    return await _open(broker, *names, broker.topic()), prefix, names


@case(MUST)
async def lists_created(broker: Target) -> None:
    """PRODUCER on two topics, GET_TOPICS_OF_NAMESPACE (no mode).

    Expected: Both listed with full names; the default of mode is PERSISTENT.

    Source: Protocol: Topics of namespace; broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    first, second, other = broker.topic(), broker.topic(), broker.topic("non-persistent")
    probe = await _open(broker, first, second, other)
    result = set((await probe.list_topics()).topics)
    require({first, second} <= result, f"{first} and {second} among the topics", result)
    require(other not in result, f"no {other} among the topics", result)


@case(MUST)
async def modes(broker: Target) -> None:
    """GET_TOPICS mode=PERSISTENT, NON_PERSISTENT, ALL with one topic of each domain.

    Expected: Persistent only; non-persistent only; both.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    topics = [broker.topic(), broker.topic("non-persistent")]
    probe = await _open(broker, *topics)
    for mode, expected in {"PERSISTENT": topics[:1], "NON_PERSISTENT": topics[1:], "ALL": topics}.items():
        result = (await probe.list_topics(mode=mode)).topics
        equal(sorted(item for item in result if item in topics), sorted(expected), "topics")


@case(SHOULD, since="3.3")
async def pattern(broker: Target) -> None:
    """GET_TOPICS topics_pattern='persistent://<ns>/<prefix>.*'.

    Expected: Only matching topics; filtered=true.

    Source: PIP-145; common: TopicList.
    """
    probe, prefix, names = await _open_with_prefix(broker, "x", "y")
    body = await probe.list_topics(topics_pattern=f"{_DEFAULT}/{prefix}.*")
    equal(sorted(body.topics), names, "topics")
    require(body.filtered, "filtered", body)


@case(OBSERVED, since="3.3")
async def pattern_bare(broker: Target) -> None:
    """GET_TOPICS topics_pattern without domain: 'public/default/<prefix>-y.*'.

    Expected: Only matching topics; filtered=true.

    Source: Common: TopicList.
    """
    probe, prefix, names = await _open_with_prefix(broker, "x", "y1", "y2")
    body = await probe.list_topics(topics_pattern=f"public/default/{prefix}-y.*")
    equal(sorted(body.topics), names[1:], "topics")
    require(body.filtered, "filtered", body)


@case(SHOULD, since="3.3")
async def hash_(broker: Target) -> None:
    """GET_TOPICS with pattern matching two topics.

    Expected: topics_hash = CRC32-C of the sorted names joined by ',', as little-endian hex.

    Source: Common: TopicList.
    """
    probe, prefix, names = await _open_with_prefix(broker, "b", "a")
    body = await probe.list_topics(topics_pattern=f"{_DEFAULT}/{prefix}.*")
    equal(body.topics_hash, _hash(names), "topics_hash")


@case(SHOULD, since="3.3")
async def hash_unchanged(broker: Target) -> None:
    """GET_TOPICS with a pattern, then again with the topics_hash of the first answer.

    Expected: changed=false, no topics, the same topics_hash.

    Source: Common: TopicList.
    """
    probe, prefix, _ = await _open_with_prefix(broker, "x", "y")
    pattern = f"{_DEFAULT}/{prefix}.*"
    first = (await probe.list_topics(topics_pattern=pattern)).topics_hash
    body = await probe.list_topics(topics_pattern=pattern, topics_hash=first)
    require(not body.changed, "no changed", body)
    require(not body.topics, "no topics", body)
    equal(body.topics_hash, first, "topics_hash")


@case(OBSERVED, since="3.3")
async def hash_without_pattern(broker: Target) -> None:
    """GET_TOPICS without pattern.

    Expected: filtered=false (present), changed=true, topics_hash of all names present.

    Source: Common: TopicList.
    """
    probe = await _open(broker, broker.topic())
    body = await probe.list_topics()
    present(body, "filtered")
    require(not body.filtered, "no filtered", body)
    require(body.changed, "changed", body)
    equal(body.topics_hash, _hash(body.topics), "topics_hash")


@case(OBSERVED)
async def no_such_namespace(broker: Target) -> None:
    """GET_TOPICS namespace=public/<new>.

    Expected: GET_TOPICS_OF_NAMESPACE_RESPONSE with no topics.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    probe = await broker.connect()
    body = await probe.list_topics(namespace=f"public/{broker.name('n')}")
    require(not body.topics, "no topics", body)


@case(MUST, needs=("admin",))
async def partitions_listed(broker: Target) -> None:
    """Partitioned topic of 2 with producers on both partitions.

    Expected: Both '-partition-N' names listed, not the parent.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    topic = await broker.create_partitions(2)
    partitions = [f"{topic}-partition-{index}" for index in range(2)]
    probe = await _open(broker, *partitions)
    result = (await probe.list_topics()).topics
    equal(sorted(item for item in result if item.startswith(topic)), partitions, "topics")


@case(SHOULD, since="3.3")
async def system_topics_hidden(broker: Target) -> None:
    """GET_TOPICS mode=ALL.

    Expected: No name containing '__change_events' or 'transaction_coordinator'.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    probe = await _open(broker, broker.topic(), f"{_DEFAULT}/__change_events")
    result = (await probe.list_topics(mode="ALL")).topics
    require(result, "topics", result)
    hidden = ("__change_events", "transaction_coordinator")
    equal([item for item in result if any(part in item for part in hidden)], [], "system topics")


@case(OBSERVED, since="4.0")
async def pattern_other_domain(broker: Target) -> None:
    """GET_TOPICS topics_pattern='foo://public/default/x'; WATCH_TOPIC_LIST with it.

    Expected: ERROR MetadataError; ERROR AuthorizationError.

    Source: Common: TopicList.
    """
    probe = await broker.connect()
    fields = {"namespace": "public/default", "topics_pattern": "foo://public/default/x"}
    await probe.expect_error("MetadataError", "GET_TOPICS_OF_NAMESPACE", **fields)
    await probe.expect_error("AuthorizationError", "WATCH_TOPIC_LIST", watcher_id=1, **fields)


@case(OBSERVED, since="3.3")
async def pattern_empty(broker: Target) -> None:
    """GET_TOPICS topics_pattern='' (present).

    Expected: No topics, filtered=true.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    probe = await broker.produce(broker.topic())
    body = await probe.list_topics(topics_pattern="")
    equal((list(body.topics), body.filtered), ([], True), "topics, filtered")


@case(OBSERVED, since="3.3")
async def pattern_error_text(broker: Target) -> None:
    """GET_TOPICS with '(', '[' and 'a**'.

    Expected: MetadataError with the message of java.util.regex: 'Unclosed group near index 1' …

    Source: Common: TopicsPatternFactory.
    """
    probe = await broker.connect()
    for pattern, text in (
        ("(", "Unclosed group near index 1\n("),
        ("[", "Unclosed character class near index 0\n[\n^"),
        ("a**", "Dangling meta character '*' near index 2\na**\n  ^"),
    ):
        fields = {"namespace": "public/default", "topics_pattern": pattern}
        body = await probe.expect_error("MetadataError", "GET_TOPICS_OF_NAMESPACE", **fields)
        equal(body.message, f"java.util.regex.PatternSyntaxException: {text}", "message")


@case(SHOULD, needs=("admin",), since="3.3")
async def too_many(broker: Target) -> None:
    """Namespace policy maxTopicsPerNamespace=1: PRODUCER on two persistent topics and a non-persistent one.

    Expected: PRODUCER_SUCCESS; ERROR NotAllowedError; PRODUCER_SUCCESS.

    Source: Broker: BrokerService.
    """
    namespace = await broker.create_namespace({"max_topics_per_namespace": 1})
    probe = await broker.produce(f"persistent://{namespace}/a")
    await probe.look_up(f"persistent://{namespace}/b")
    fields = {"topic": f"persistent://{namespace}/b", "producer_id": 2}
    await probe.expect_error("NotAllowedError", "PRODUCER", **fields)
    await probe.create_producer(f"non-persistent://{namespace}/c", 3)


@case(OBSERVED, needs=("admin",))
async def underscores_listed(broker: Target) -> None:
    """PRODUCER on a topic __mine; GET_TOPICS.

    Expected: It is listed: only the names of Pulsar itself are hidden.

    Source: Common: SystemTopicNames.
    """
    namespace = await broker.create_namespace()
    probe = await broker.produce(topic := f"persistent://{namespace}/__mine")
    equal(list((await probe.list_topics(namespace=namespace)).topics), [topic], "topics")


@case(OBSERVED, needs=("admin",))
async def unused_volatile(broker: Target) -> None:
    """Non-persistent topic made by the admin API; GET_TOPICS mode=NON_PERSISTENT; PRODUCER; GET_TOPICS.

    Expected: No topics; it is listed.

    Source: Broker: ServerCnx.handleGetTopicsOfNamespace.
    """
    namespace, probe = await broker.create_namespace(), await broker.connect()
    await broker.rest("PUT", f"/admin/v2/non-persistent/{namespace}/t", {})
    equal(list((await probe.list_topics(namespace=namespace, mode=1)).topics), [], "topics")
    await probe.create_producer(topic := f"non-persistent://{namespace}/t")
    equal(list((await probe.list_topics(namespace=namespace, mode=1)).topics), [topic], "topics")
