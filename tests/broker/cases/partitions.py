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
    topic = f"{await broker.partitioned(3)}-partition-7"
    probe = await broker.connected()
    await probe.lookup(topic)
    await probe.refused("TopicNotFound", "PRODUCER", topic=topic, producer_id=1)


@case("partitions/invalid_name")
async def invalid_name(broker: Target) -> None:
    body = await described(await broker.connected(), "foo://x")
    assert body.response == body.Failed, body
    assert body.error == ServerError.InvalidTopicName, body
