"""REACHED_END_OF_TOPIC."""

from __future__ import annotations

from broker.probe import Target, admin_path, case


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
