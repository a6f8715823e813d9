"""Producers with access modes."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, ServerError


def _fields(topic: str, mode: str, producer_id: int = 1, **more: Any) -> dict[str, Any]:
    number = ProducerAccessMode.Value(mode)
    return {"topic": topic, "producer_id": producer_id, "producer_access_mode": number, **more}


async def _create(probe: Probe, topic: str, mode: str, epoch: int, **more: Any) -> None:
    """Send PRODUCER, which must succeed at once, with `epoch` as topic_epoch."""
    number = probe.start("PRODUCER", **_fields(topic, mode, **more))
    await probe.expect("PRODUCER_SUCCESS", request_id=number, topic_epoch=epoch, producer_ready=True)


async def _queue(probe: Probe, topic: str, producer_id: int = 1) -> int:
    """Send PRODUCER, which must be queued; return its request id."""
    number = probe.start("PRODUCER", **_fields(topic, "WaitForExclusive", producer_id))
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    return number


async def _create_alone(broker: Target, mode: str) -> None:
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    await _create(probe, topic, mode, 0)


@case(SHOULD)
async def exclusive_first(broker: Target) -> None:
    """PRODUCER producer_access_mode=Exclusive on an empty topic.

    Expected: PRODUCER_SUCCESS {topic_epoch=0, producer_ready=true}.

    Source: PIP-68; broker: AbstractTopic.
    """
    await _create_alone(broker, "Exclusive")


@case(SHOULD)
async def wait_immediate(broker: Target) -> None:
    """PRODUCER WaitForExclusive on an empty topic.

    Expected: PRODUCER_SUCCESS {producer_ready=true, topic_epoch=0}.

    Source: PIP-68; broker: AbstractTopic.
    """
    await _create_alone(broker, "WaitForExclusive")


async def _create_exclusive_second(broker: Target, first_mode: str) -> None:
    probe, topic = await broker.connect(), broker.topic()
    await probe.create_producer(**_fields(topic, first_mode))
    await probe.expect_error("ProducerFenced", "PRODUCER", **_fields(topic, "Exclusive", 2))


@case(SHOULD)
async def exclusive_vs_shared(broker: Target) -> None:
    """Shared producer live; PRODUCER Exclusive.

    Expected: ERROR ProducerFenced.

    Source: PIP-68; broker: AbstractTopic.
    """
    await _create_exclusive_second(broker, "Shared")


@case(SHOULD)
async def exclusive_vs_exclusive(broker: Target) -> None:
    """Exclusive producer live; PRODUCER Exclusive.

    Expected: ERROR ProducerFenced.

    Source: PIP-68; broker: AbstractTopic.
    """
    await _create_exclusive_second(broker, "Exclusive")


@case(SHOULD, since="4.0")
async def wait_behind_shared(broker: Target) -> None:
    """Shared producer live; PRODUCER WaitForExclusive; then the shared one closes.

    Expected: producer_ready=false, later PRODUCER_SUCCESS ready, same request_id.

    Source: PIP-68; broker: AbstractTopic.
    """
    topic = broker.topic()
    shared, probe = await broker.produce(topic), await broker.connect()
    await probe.look_up(topic)
    number = await _queue(probe, topic)
    await probe.expect_nothing()
    await shared.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=True)


@case(OBSERVED)
async def shared_vs_waiting(broker: Target) -> None:
    """Shared 1 live, 2 queued WaitForExclusive; PRODUCER 3 Shared.

    Expected: ERROR ProducerBusy.

    Source: PIP-68; broker: AbstractTopic.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await _queue(probe, topic, 2)
    await probe.expect_error("ProducerBusy", "PRODUCER", **_fields(topic, "Shared", 3))


@case(OBSERVED)
async def send_while_queued(broker: Target) -> None:
    """Queued WaitForExclusive producer sends SEND before it is ready.

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.handleSend.
    """
    topic = broker.topic()
    await broker.produce(topic)
    probe = await broker.connect()
    await probe.look_up(topic)
    await _queue(probe, topic)
    probe.publish()
    await probe.expect_close()


@case(OBSERVED, since="3.3")
async def fencing(broker: Target) -> None:
    """Exclusive producer 1 live on connection A; PRODUCER ExclusiveWithFencing on B.

    Expected: B: PRODUCER_SUCCESS {topic_epoch=1, ready}; A gets nothing (no CLOSE_PRODUCER), its next SEND
    closes A's connection without reply.

    Source: PIP-68 follow-up; broker: AbstractTopic.
    """
    topic = broker.topic()
    first, second = await broker.connect(), await broker.connect()
    await first.create_producer(**_fields(topic, "Exclusive"))
    await _create(second, topic, "ExclusiveWithFencing", 1)
    await first.expect_nothing()
    first.publish()
    await first.expect_close()


@case(OBSERVED)
async def epoch_returned_alone(broker: Target) -> None:
    """Exclusive creates (epoch 0), closes; re-creates with topic_epoch=0; closes; a third without
    topic_epoch; then topic_epoch=0.

    Expected: Epochs 0, 0, 1, then ERROR ProducerFenced.

    Source: PIP-68; broker: AbstractTopic.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    for epoch, fields in ((0, {}), (0, {"topic_epoch": 0}), (1, {})):
        await _create(probe, topic, "Exclusive", epoch, **fields)
        await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.expect_error("ProducerFenced", "PRODUCER", **_fields(topic, "Exclusive", topic_epoch=0))


@case(OBSERVED)
async def epoch_told_to_shared(broker: Target) -> None:
    """Exclusive producer (epoch 0) closes; PRODUCER Shared; the same PRODUCER again.

    Expected: PRODUCER_SUCCESS {topic_epoch=0}; PRODUCER_SUCCESS without topic_epoch.

    Source: Broker: AbstractTopic.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    await _create(probe, topic, "Exclusive", 0)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await _create(probe, topic, "Shared", 0)
    body = await probe.request("PRODUCER", "PRODUCER_SUCCESS", **_fields(topic, "Shared"))
    absent(body, "topic_epoch")


@case(OBSERVED, since="3.3")
async def lower_epoch_fences(broker: Target) -> None:
    """Exclusive producer with topic_epoch=5 live; PRODUCER ExclusiveWithFencing with topic_epoch=3.

    Expected: ERROR ProducerFenced; the first producer is removed all the same: its next SEND closes its
    connection.

    Source: Broker: AbstractTopic.
    """
    topic, other = broker.topic(), await broker.connect()
    probe = await broker.produce(**_fields(topic, "Exclusive", topic_epoch=5))
    request = _fields(topic, "ExclusiveWithFencing", topic_epoch=3)
    await other.expect_error("ProducerFenced", "PRODUCER", **request)
    await probe.expect_nothing()
    probe.publish()
    await probe.expect_close()


@case(OBSERVED)
async def lower_epoch_waits(broker: Target) -> None:
    """Exclusive producer with topic_epoch=5 live; PRODUCER WaitForExclusive with topic_epoch=3; the first
    closes.

    Expected: PRODUCER_SUCCESS {producer_ready=false}; then PRODUCER_SUCCESS {producer_ready=true,
    topic_epoch=3}.

    Source: Broker: AbstractTopic.
    """
    topic, other = broker.topic(), await broker.connect()
    probe = await broker.produce(**_fields(topic, "Exclusive", topic_epoch=5))
    number = other.start("PRODUCER", **_fields(topic, "WaitForExclusive", topic_epoch=3))
    await other.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await other.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=True, topic_epoch=3)


@case(OBSERVED, needs=("admin",), since="4.0")
async def unload_while_waiting(broker: Target) -> None:
    """Shared producer 1 live, 2 queued WaitForExclusive; the topic is unloaded.

    Expected: CLOSE_PRODUCER for 1 only; the PRODUCER of 2 is answered by ERROR ServiceNotReady.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    probe, other = await broker.produce(topic), await broker.connect()
    number = await _queue(other, topic, 2)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await other.expect("ERROR", request_id=number, error=ServerError.ServiceNotReady)
    await other.expect_nothing()
