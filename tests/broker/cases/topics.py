"""GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

from collections.abc import Iterable

from broker.probe import Probe, Target, case
from crc32c import crc32c

DEFAULT = "persistent://public/default"


def topics_hash(topics: Iterable[str]) -> str:
    return crc32c(",".join(sorted(topics)).encode()).to_bytes(4, "little").hex()


async def opened(broker: Target, *topics: str) -> Probe:
    """A connection with a producer of each topic."""
    probe = await broker.connected()
    for number, topic in enumerate(topics, 1):
        await probe.producer(topic, number)
    return probe


async def with_prefix(broker: Target, *endings: str) -> tuple[Probe, str, list[str]]:
    """A connection, a prefix, and existing topics PREFIX-ENDING; another topic exists too."""
    prefix = broker.name("p")
    names = [f"{DEFAULT}/{prefix}-{ending}" for ending in endings]
    return await opened(broker, *names, broker.topic()), prefix, names


@case("topics/lists_created")
async def lists_created(broker: Target) -> None:
    first, second, other = broker.topic(), broker.topic(), broker.topic("non-persistent")
    probe = await opened(broker, first, second, other)
    found = set((await probe.listing()).topics)
    assert {first, second} <= found
    assert other not in found


@case("topics/modes")
async def modes(broker: Target) -> None:
    ours = [broker.topic(), broker.topic("non-persistent")]
    probe = await opened(broker, *ours)
    for mode, wanted in {"PERSISTENT": ours[:1], "NON_PERSISTENT": ours[1:], "ALL": ours}.items():
        found = (await probe.listing(mode=mode)).topics
        assert sorted(each for each in found if each in ours) == sorted(wanted)


@case("topics/pattern")
async def pattern(broker: Target) -> None:
    probe, prefix, names = await with_prefix(broker, "x", "y")
    body = await probe.listing(topics_pattern=f"{DEFAULT}/{prefix}.*")
    assert sorted(body.topics) == names
    assert body.filtered, body


@case("topics/pattern_bare")
async def pattern_bare(broker: Target) -> None:
    probe, prefix, names = await with_prefix(broker, "x", "y1", "y2")
    body = await probe.listing(topics_pattern=f"public/default/{prefix}-y.*")
    assert sorted(body.topics) == names[1:]
    assert body.filtered, body


@case("topics/hash")
async def hash_(broker: Target) -> None:
    probe, prefix, names = await with_prefix(broker, "b", "a")
    body = await probe.listing(topics_pattern=f"{DEFAULT}/{prefix}.*")
    assert body.topics_hash == topics_hash(names), body


@case("topics/hash_unchanged")
async def hash_unchanged(broker: Target) -> None:
    probe, prefix, _ = await with_prefix(broker, "x", "y")
    pattern = f"{DEFAULT}/{prefix}.*"
    first = (await probe.listing(topics_pattern=pattern)).topics_hash
    body = await probe.listing(topics_pattern=pattern, topics_hash=first)
    assert not body.changed, body
    assert not body.topics, body
    assert body.topics_hash == first, body


@case("topics/hash_without_pattern")
async def hash_without_pattern(broker: Target) -> None:
    probe = await opened(broker, broker.topic())
    body = await probe.listing()
    assert body.HasField("filtered"), body
    assert not body.filtered, body
    assert body.changed, body
    assert body.topics_hash == topics_hash(body.topics), body


@case("topics/no_such_namespace")
async def no_such_namespace(broker: Target) -> None:
    probe = await broker.connected()
    body = await probe.listing(namespace=f"public/{broker.name('n')}")
    assert not body.topics, body


@case("topics/partitions_listed")
async def partitions_listed(broker: Target) -> None:
    topic = await broker.partitioned(2)
    partitions = [f"{topic}-partition-{index}" for index in range(2)]
    probe = await opened(broker, *partitions)
    found = (await probe.listing()).topics
    assert sorted(each for each in found if each.startswith(topic)) == partitions


@case("topics/system_topics_hidden")
async def system_topics_hidden(broker: Target) -> None:
    probe = await opened(broker, broker.topic(), f"{DEFAULT}/__change_events")
    found = (await probe.listing(mode="ALL")).topics
    assert found
    hidden = ("__change_events", "transaction_coordinator")
    assert not [each for each in found if any(part in each for part in hidden)]


@case("topics/pattern_other_domain")
async def pattern_other_domain(broker: Target) -> None:
    probe = await broker.connected()
    fields = {"namespace": "public/default", "topics_pattern": "foo://public/default/x"}
    await probe.refused("MetadataError", "GET_TOPICS_OF_NAMESPACE", **fields)
    await probe.refused("AuthorizationError", "WATCH_TOPIC_LIST", watcher_id=1, **fields)


@case("topics/pattern_empty")
async def pattern_empty(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    body = await probe.listing(topics_pattern="")
    assert (list(body.topics), body.filtered) == ([], True)


@case("topics/pattern_error_text")
async def pattern_error_text(broker: Target) -> None:
    probe = await broker.connected()
    for pattern, text in (
        ("(", "Unclosed group near index 1\n("),
        ("[", "Unclosed character class near index 0\n[\n^"),
        ("a**", "Dangling meta character '*' near index 2\na**\n  ^"),
    ):
        fields = {"namespace": "public/default", "topics_pattern": pattern}
        body = await probe.request("GET_TOPICS_OF_NAMESPACE", "ERROR", **fields)
        assert body.message == f"java.util.regex.PatternSyntaxException: {text}"


@case("topics/too_many")
async def too_many(broker: Target) -> None:
    namespace = await broker.namespace({"max_topics_per_namespace": 1})
    probe = await broker.producing(f"persistent://{namespace}/a")
    await probe.lookup(f"persistent://{namespace}/b")
    fields = {"topic": f"persistent://{namespace}/b", "producer_id": 2}
    await probe.refused("NotAllowedError", "PRODUCER", **fields)
    await probe.producer(f"non-persistent://{namespace}/c", 2)


@case("topics/underscores_listed")
async def underscores_listed(broker: Target) -> None:
    namespace = await broker.namespace()
    probe = await broker.producing(topic := f"persistent://{namespace}/__mine")
    assert list((await probe.listing(namespace=namespace)).topics) == [topic]


@case("topics/unused_volatile")
async def unused_volatile(broker: Target) -> None:
    namespace, probe = await broker.namespace(), await broker.connected()
    await broker.rest("PUT", f"/admin/v2/non-persistent/{namespace}/t", {})
    assert list((await probe.listing(namespace=namespace, mode=1)).topics) == []
    await probe.producer(topic := f"non-persistent://{namespace}/t")
    assert list((await probe.listing(namespace=namespace, mode=1)).topics) == [topic]
