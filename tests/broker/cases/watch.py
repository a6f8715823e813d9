"""WATCH_TOPIC_LIST."""

from __future__ import annotations

from typing import Any

from broker.probe import SOON, Probe, Target, case

DEFAULT = "persistent://public/default"


async def watch(probe: Probe, prefix: str, watcher_id: int = 1, **fields: Any) -> Any:
    given = {"namespace": "public/default", "topics_pattern": f"{DEFAULT}/{prefix}.*", **fields}
    body = await probe.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", watcher_id=watcher_id, **given)
    assert body.watcher_id == watcher_id, body
    assert body.HasField("topics_hash"), body
    return body


async def watching(broker: Target) -> tuple[Probe, str]:
    """A connection that watches the topics of a prefix, which is returned too."""
    probe, prefix = await broker.connected(), broker.name("w")
    await watch(probe, prefix)
    return probe, prefix


@case("watch/success")
async def success(broker: Target) -> None:
    prefix = broker.name("w")
    topic = f"{DEFAULT}/{prefix}-a"
    await broker.producing(topic)
    body = await watch(await broker.connected(), prefix, watcher_id=7)
    assert list(body.topic) == [topic]


@case("watch/update_new")
async def update_new(broker: Target) -> None:
    probe, prefix = await watching(broker)
    topic = f"{DEFAULT}/{prefix}-a"
    await broker.producing(topic)
    body = (await probe.expect("WATCH_TOPIC_UPDATE", within=3, watcher_id=1)).body
    assert list(body.new_topics) == [topic]
    assert not body.deleted_topics, body
    assert body.HasField("topics_hash"), body


@case("watch/non_matching")
async def non_matching(broker: Target) -> None:
    probe, _ = await watching(broker)
    await broker.producing(broker.topic())
    await broker.advance(2)
    await probe.nothing()


@case("watch/close")
async def close(broker: Target) -> None:
    probe, prefix = await watching(broker)
    await probe.request("WATCH_TOPIC_LIST_CLOSE", "SUCCESS", watcher_id=1)
    await broker.producing(f"{DEFAULT}/{prefix}-a")
    await broker.advance(2)
    await probe.nothing()


@case("watch/close_unknown")
async def close_unknown(broker: Target) -> None:
    probe = await broker.connected()
    await probe.request("WATCH_TOPIC_LIST_CLOSE", "SUCCESS", watcher_id=99)


@case("watch/pattern_invalid")
async def pattern_invalid(broker: Target) -> None:
    probe = await broker.connected()
    fields = {"namespace": "public/default", "topics_pattern": "("}
    await probe.refused("InvalidTopicName", "WATCH_TOPIC_LIST", watcher_id=1, **fields)
    await probe.stays_open()


@case("watch/malformed_namespace")
async def malformed_namespace(broker: Target) -> None:
    probe = await broker.connected()
    probe.start("WATCH_TOPIC_LIST", watcher_id=1, namespace="nonsense", topics_pattern=".*")
    await probe.closes(SOON)


@case("watch/no_such_namespace")
async def no_such_namespace(broker: Target) -> None:
    namespace = f"public/{broker.name('n')}"
    pattern = f"persistent://{namespace}/.*"
    body = await watch(await broker.connected(), "", namespace=namespace, topics_pattern=pattern)
    assert not body.topic, body
    assert body.topics_hash == "00000000", body


@case("watch/same_id_again")
async def same_id_again(broker: Target) -> None:
    probe, prefix = await watching(broker)
    await watch(probe, prefix)


@case("watch/long_with_domain")
async def long_with_domain(broker: Target) -> None:
    probe = await broker.connected()
    fields = {"namespace": "public/default", "topics_pattern": f"persistent://{'x' * 50}", "watcher_id": 1}
    body = await probe.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", **fields)
    assert list(body.topic) == []
