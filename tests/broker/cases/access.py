"""Producers with access modes."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, admin_path, case

from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, ServerError


def fields(topic: str, mode: str, producer_id: int = 1, **more: Any) -> dict[str, Any]:
    number = ProducerAccessMode.Value(mode)
    return {"topic": topic, "producer_id": producer_id, "producer_access_mode": number, **more}


async def created(probe: Probe, topic: str, mode: str, epoch: int, **more: Any) -> None:
    """PRODUCER, which must succeed at once and return this topic_epoch."""
    number = probe.start("PRODUCER", **fields(topic, mode, **more))
    await probe.expect("PRODUCER_SUCCESS", request_id=number, topic_epoch=epoch, producer_ready=True)


async def queued(probe: Probe, topic: str, producer_id: int = 1) -> int:
    """PRODUCER that has to wait; returns its request id."""
    number = probe.start("PRODUCER", **fields(topic, "WaitForExclusive", producer_id))
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    return number


@case("access/exclusive_first", "Exclusive")
@case("access/wait_immediate", "WaitForExclusive")
async def alone(broker: Target, mode: str) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    await created(probe, topic, mode, 0)


@case("access/exclusive_vs_shared", "Shared")
@case("access/exclusive_vs_exclusive", "Exclusive")
async def exclusive_second(broker: Target, first: str) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.producer(**fields(topic, first))
    await probe.refused("ProducerFenced", "PRODUCER", **fields(topic, "Exclusive", 2))


@case("access/wait_behind_shared")
async def wait_behind_shared(broker: Target) -> None:
    topic = broker.topic()
    shared, probe = await broker.producing(topic), await broker.connected()
    await probe.lookup(topic)
    number = await queued(probe, topic)
    await probe.nothing()
    await shared.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=True)


@case("access/shared_vs_waiting")
async def shared_behind_waiting(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await queued(probe, topic, 2)
    await probe.refused("ProducerBusy", "PRODUCER", **fields(topic, "Shared", 3))


@case("access/send_while_queued")
async def send_while_queued(broker: Target) -> None:
    topic = broker.topic()
    await broker.producing(topic)
    probe = await broker.connected()
    await probe.lookup(topic)
    await queued(probe, topic)
    probe.publish()
    await probe.closes()


@case("access/fencing")
async def fencing(broker: Target) -> None:
    topic = broker.topic()
    first, second = await broker.connected(), await broker.connected()
    await first.producer(**fields(topic, "Exclusive"))
    await created(second, topic, "ExclusiveWithFencing", 1)
    await first.nothing()
    first.publish()
    await first.closes()


@case("access/epoch_returned_alone")
async def epochs(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    for epoch, given in ((0, {}), (0, {"topic_epoch": 0}), (1, {})):
        await created(probe, topic, "Exclusive", epoch, **given)
        await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.refused("ProducerFenced", "PRODUCER", **fields(topic, "Exclusive", topic_epoch=0))


@case("access/epoch_told_to_shared")
async def epoch_told_to_shared(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    await created(probe, topic, "Exclusive", 0)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await created(probe, topic, "Shared", 0)
    body = await probe.request("PRODUCER", "PRODUCER_SUCCESS", **fields(topic, "Shared"))
    assert not body.HasField("topic_epoch")


@case("access/lower_epoch_fences")
async def lower_epoch_fences(broker: Target) -> None:
    topic, other = broker.topic(), await broker.connected()
    probe = await broker.producing(**fields(topic, "Exclusive", topic_epoch=5))
    fencing = fields(topic, "ExclusiveWithFencing", topic_epoch=3)
    await other.refused("ProducerFenced", "PRODUCER", **fencing)
    await probe.nothing()
    probe.publish()
    await probe.closes()


@case("access/lower_epoch_waits")
async def lower_epoch_waits(broker: Target) -> None:
    topic, other = broker.topic(), await broker.connected()
    probe = await broker.producing(**fields(topic, "Exclusive", topic_epoch=5))
    number = other.start("PRODUCER", **fields(topic, "WaitForExclusive", topic_epoch=3))
    await other.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await other.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=True, topic_epoch=3)


@case("access/unload_while_waiting")
async def unload_while_waiting(broker: Target) -> None:
    topic = broker.topic()
    probe, other = await broker.producing(topic), await broker.connected()
    number = await queued(other, topic, 2)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await other.expect("ERROR", request_id=number, error=ServerError.ServiceNotReady)
    await other.nothing()
