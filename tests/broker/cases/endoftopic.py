"""REACHED_END_OF_TOPIC."""

from __future__ import annotations

from broker.probe import Probe, Target, admin_path, case


@case("endoftopic/after_ack")
async def after_ack(broker: Target) -> None:
    topic = await broker.filled(2)
    consumer = await broker.subscribed(topic)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer.flow(10)
    ids = [each.body.message_id for each in await consumer.messages(2)]
    await broker.advance(0.6)
    await consumer.nothing()
    consumer.ack(*ids)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


@case("endoftopic/subscribe_when_done")
async def subscribe_when_done(broker: Target) -> None:
    topic = await broker.filled(1)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer = await broker.subscribed(topic, permits=10, initialPosition=0)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


async def ended(broker: Target, kind: str) -> tuple[str, Probe]:
    """A terminated topic, and a consumer that has acknowledged its message and was told of the end."""
    topic = await broker.filled(1)
    consumer = await broker.subscribed(topic, kind, 10)
    (message,) = await consumer.messages(1)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer.ack(message.body.message_id)
    await broker.settle()
    consumer.frames.clear()
    return topic, consumer


@case("endoftopic/read_finds_it")
async def read_finds_it(broker: Target) -> None:
    topic, _ = await ended(broker, "Shared")
    other = await broker.subscribed(topic, "Shared", 10)
    await other.nothing()


@case("endoftopic/redeliver")
async def told_by_redeliver(broker: Target) -> None:
    _, consumer = await ended(broker, "Exclusive")
    consumer.flow(5)
    await consumer.nothing()
    for _ in range(2):
        consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


@case("endoftopic/needs_flow")
async def needs_flow(broker: Target) -> None:
    await broker.producing(topic := broker.topic())
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer = await broker.subscribed(topic)
    await consumer.nothing()
    consumer.flow(1)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)
