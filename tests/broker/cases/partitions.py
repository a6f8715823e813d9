"""PARTITIONED_METADATA."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, case

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


async def described(probe: Probe, topic: str) -> Any:
    return await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)


async def number(probe: Probe, topic: str) -> int:
    body = await described(probe, topic)
    assert body.HasField("response"), body
    assert body.response == body.Success, body
    assert body.HasField("partitions"), body
    return int(body.partitions)


@case("partitions/plain_exists")
async def plain(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    assert await number(probe, topic) == 0


@case("partitions/missing_topic")
async def missing(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    assert await number(probe, topic) == 0
    assert topic not in (await probe.listing()).topics


@case("partitions/partitioned")
async def partitioned(broker: Target) -> None:
    topic = await broker.partitioned(3)
    assert await number(await broker.connected(), topic) == 3


@case("partitions/of_a_partition")
async def of_a_partition(broker: Target) -> None:
    topic = await broker.partitioned(3)
    assert await number(await broker.connected(), f"{topic}-partition-1") == 0


@case("partitions/beyond_range")
async def beyond_range(broker: Target) -> None:
    parent, probe = await broker.partitioned(3), await broker.connected()
    for index in (3, 7):
        topic = f"{parent}-partition-{index}"
        await probe.lookup(topic)
        await probe.refused("TopicNotFound", "PRODUCER", topic=topic, producer_id=index)


@case("partitions/invalid_name")
async def invalid_name(broker: Target) -> None:
    body = await described(await broker.connected(), "foo://x")
    assert body.response == body.Failed, body
    assert body.error == ServerError.InvalidTopicName, body


@case("partitions/unknown_namespace")
async def unknown_namespace(broker: Target) -> None:
    probe, topic = await broker.connected(), f"persistent://public/{broker.name('n')}/t"
    for creation, text in ((True, "Namespace not found"), (False, "")):
        fields = {"topic": topic, "metadata_auto_creation_enabled": creation}
        body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **fields)
        assert (body.response, body.error, body.message) == (body.Failed, ServerError.TopicNotFound, text)


@case("partitions/metadata_beyond_range")
async def metadata_beyond_range(broker: Target) -> None:
    topic, probe = await broker.partitioned(3), await broker.connected()
    for index in (3, 7):
        fields = {"topic": f"{topic}-partition-{index}"}
        body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **fields)
        assert (body.response, body.error) == (body.Failed, ServerError.TopicNotFound)


@case("partitions/made_when_used")
async def made_when_used(broker: Target) -> None:
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    namespace = await broker.namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/autoTopicCreation", creation)
    topic, probe = f"persistent://{namespace}/t", await broker.connected()
    body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)
    assert body.partitions == 3
    assert list((await probe.listing(namespace=namespace)).topics) == []
    await probe.producer(f"{topic}-partition-1")
    assert list((await probe.listing(namespace=namespace)).topics) == [f"{topic}-partition-1"]
