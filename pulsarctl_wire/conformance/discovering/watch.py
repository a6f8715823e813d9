"""WATCH_TOPIC_LIST."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, present, require
from pulsarctl_wire.conformance.basics.probe import SOON, Probe
from pulsarctl_wire.conformance.basics.target import Target

_DEFAULT = "persistent://public/default"


async def _watch(probe: Probe, prefix: str, watcher_id: int = 1, **fields: Any) -> Any:
    pattern = f"{_DEFAULT}/{prefix}.*"
    fields = {"namespace": "public/default", "topics_pattern": pattern, **fields, "watcher_id": watcher_id}
    body = await probe.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", **fields)
    equal(body.watcher_id, watcher_id, "watcher_id")
    present(body, "topics_hash")
    return body


async def _start_watch(broker: Target) -> tuple[Probe, str]:
    """Return a connection that watches the topics of a prefix, and the prefix."""
    probe, prefix = await broker.connect(), broker.name("w")
    await _watch(probe, prefix)
    return probe, prefix


@case(SHOULD, since="3.3")
async def success(broker: Target) -> None:
    """WATCH_TOPIC_LIST with one matching topic.

    Expected: WATCH_TOPIC_LIST_SUCCESS {request_id, watcher_id, topic=[that one], topics_hash}.

    Source: PIP-145; broker: TopicListService.
    """
    prefix = broker.name("w")
    topic = f"{_DEFAULT}/{prefix}-a"
    await broker.produce(topic)
    body = await _watch(await broker.connect(), prefix, watcher_id=7)
    equal(list(body.topic), [topic], "topic")


@case(SHOULD, since="3.3")
async def update_new(broker: Target) -> None:
    """Watch, then a matching topic is created on another connection.

    Expected: WATCH_TOPIC_UPDATE {watcher_id, new_topics=[that one], deleted_topics=[], topics_hash} within 2
    s.

    Source: PIP-145; broker: TopicListService.
    """
    probe, prefix = await _start_watch(broker)
    topic = f"{_DEFAULT}/{prefix}-a"
    await broker.produce(topic)
    # 2 s, and one to spare
    body = (await probe.expect("WATCH_TOPIC_UPDATE", within=3, watcher_id=1)).body
    equal(list(body.new_topics), [topic], "new_topics")
    require(not body.deleted_topics, "no deleted_topics", body)
    present(body, "topics_hash")


@case(SHOULD, since="3.3")
async def non_matching(broker: Target) -> None:
    """A topic outside the pattern is created.

    Expected: No WATCH_TOPIC_UPDATE.

    Source: PIP-145; broker: TopicListService.
    """
    probe, _ = await _start_watch(broker)
    await broker.produce(broker.topic())
    await broker.advance(2)
    await probe.expect_nothing()


@case(SHOULD, since="3.3")
async def close(broker: Target) -> None:
    """WATCH_TOPIC_LIST_CLOSE, then a matching topic appears.

    Expected: SUCCESS {request_id}; no update.

    Source: PIP-145; broker: TopicListService.
    """
    probe, prefix = await _start_watch(broker)
    await probe.request("WATCH_TOPIC_LIST_CLOSE", "SUCCESS", watcher_id=1)
    await broker.produce(f"{_DEFAULT}/{prefix}-a")
    await broker.advance(2)
    await probe.expect_nothing()


@case(OBSERVED, since="3.3")
async def close_unknown(broker: Target) -> None:
    """WATCH_TOPIC_LIST_CLOSE watcher_id=99.

    Expected: SUCCESS.

    Source: PIP-145; broker: TopicListService.
    """
    probe = await broker.connect()
    await probe.request("WATCH_TOPIC_LIST_CLOSE", "SUCCESS", watcher_id=99)


@case(OBSERVED, since="4.0")
async def pattern_invalid(broker: Target) -> None:
    """WATCH_TOPIC_LIST topics_pattern='('.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: PIP-145; broker: TopicListService.
    """
    probe = await broker.connect()
    fields = {"namespace": "public/default", "topics_pattern": "("}
    await probe.expect_error("InvalidTopicName", "WATCH_TOPIC_LIST", watcher_id=1, **fields)
    await probe.expect_pong()


@case(OBSERVED)
async def malformed_namespace(broker: Target) -> None:
    """WATCH_TOPIC_LIST namespace='nonsense'.

    Expected: No frame; the broker closes the connection within 1 s.

    Source: PIP-145; broker: TopicListService.
    """
    probe = await broker.connect()
    probe.start("WATCH_TOPIC_LIST", watcher_id=1, namespace="nonsense", topics_pattern=".*")
    await probe.expect_close(SOON)


@case(OBSERVED, since="3.3")
async def no_such_namespace(broker: Target) -> None:
    """WATCH_TOPIC_LIST on a namespace that does not exist.

    Expected: WATCH_TOPIC_LIST_SUCCESS, no topics, topics_hash=00000000.

    Source: PIP-145; broker: TopicListService.
    """
    namespace = f"public/{broker.name('n')}"
    pattern = f"persistent://{namespace}/.*"
    body = await _watch(await broker.connect(), "", namespace=namespace, topics_pattern=pattern)
    require(not body.topic, "no topic", body)
    equal(body.topics_hash, "00000000", "topics_hash")


@case(OBSERVED, since="3.3")
async def same_id_again(broker: Target) -> None:
    """WATCH_TOPIC_LIST with a live watcher_id again.

    Expected: WATCH_TOPIC_LIST_SUCCESS again.

    Source: PIP-145; broker: TopicListService.
    """
    probe, prefix = await _start_watch(broker)
    await _watch(probe, prefix)


@case(OBSERVED, since="3.3")
async def long_with_domain(broker: Target) -> None:
    """WATCH_TOPIC_LIST with a pattern of 50 characters behind 'persistent://'.

    Expected: WATCH_TOPIC_LIST_SUCCESS: subscriptionPatternMaxLength (50) does not count the domain.

    Source: Broker: TopicListService.
    """
    probe = await broker.connect()
    fields = {"namespace": "public/default", "topics_pattern": f"persistent://{'x' * 50}", "watcher_id": 1}
    body = await probe.request("WATCH_TOPIC_LIST", "WATCH_TOPIC_LIST_SUCCESS", **fields)
    equal(list(body.topic), [], "topic")
