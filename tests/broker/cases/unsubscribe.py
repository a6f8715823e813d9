"""UNSUBSCRIBE."""

from __future__ import annotations

from broker.probe import Target, case, payloads


@case("unsubscribe/sole")
async def sole(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(2), permits=10)
    messages = await consumer.messages(2)
    await consumer.acked(messages[1].body.message_id, kind="Cumulative")
    await consumer.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1)
    await consumer.subscribe(topic, consumer_id=2)
    consumer.flow(10, 2)
    assert payloads(await consumer.messages(2)) == [b"m0", b"m1"]


@case("unsubscribe/consumer_id_free")
async def consumer_id_free(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(2), permits=10)
    await consumer.messages(2)
    await consumer.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1)
    await consumer.subscribe(topic)
    await consumer.nothing()
    consumer.flow(1)
    await consumer.messages(1)
    await consumer.nothing()


@case("unsubscribe/others_connected")
async def others_connected(broker: Target) -> None:
    topic = broker.topic()
    both = [await broker.subscribed(topic, "Shared", 1) for _ in range(2)]
    await both[0].refused("MetadataError", "UNSUBSCRIBE", consumer_id=1)
    await broker.filled(2, topic)
    for each in both:
        await each.messages(1)


@case("unsubscribe/unknown_consumer")
async def unknown_consumer(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.refused("MetadataError", "UNSUBSCRIBE", consumer_id=99)
