"""REDELIVER_UNACKNOWLEDGED_MESSAGES."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, case, id_of, payloads


def redeliver(consumer: Probe, *ids: Any, consumer_id: int = 1, **fields: Any) -> None:
    name = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
    consumer.command(name, consumer_id=consumer_id, message_ids=list(ids), **fields)


async def delivered(broker: Target, kind: str, number: int, permits: int = 10) -> tuple[Probe, list[Any]]:
    """A consumer of a new topic, and the ids of the messages that it has got."""
    consumer = await broker.subscribed(await broker.filled(number), kind, permits)
    messages = await consumer.messages(number)
    return consumer, [id_of(each.body.message_id) for each in messages]


@case("redeliver/ids_shared")
async def ids_shared(broker: Target) -> None:
    consumer, ids = await delivered(broker, "Shared", 3)
    for expected in (1, 2):
        redeliver(consumer, ids[1])
        message = await consumer.expect("MESSAGE", redelivery_count=expected)
        assert message.payload == b"m1"
        await consumer.nothing()


@case("redeliver/needs_permits")
async def needs_permits(broker: Target) -> None:
    consumer, _ = await delivered(broker, "Shared", 3, 3)
    redeliver(consumer)
    await consumer.nothing()
    consumer.flow(3)
    assert sorted(payloads(await consumer.messages(3))) == [b"m0", b"m1", b"m2"]


@case("redeliver/exclusive_all")
async def exclusive_all(broker: Target) -> None:
    consumer, ids = await delivered(broker, "Exclusive", 3)
    await consumer.acked(ids[0])
    redeliver(consumer)
    messages = await consumer.messages(2)
    assert payloads(messages) == [b"m1", b"m2"]
    assert not any(each.body.redelivery_count for each in messages)
    await consumer.nothing()


@case("redeliver/consumer_epoch")
async def consumer_epoch(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(1), "Exclusive", 10, consumer_epoch=0)
    await consumer.messages(1)
    redeliver(consumer, consumer_epoch=1)
    await consumer.expect("MESSAGE", consumer_epoch=1)


@case("redeliver/unknown_ids")
async def unknown_ids(broker: Target) -> None:
    first = await broker.subscribed(topic := await broker.filled(1), "Shared", 10)
    (message,) = await first.messages(1)
    second = await broker.subscribed(topic, "Shared", 10)
    redeliver(second, id_of(message.body.message_id))
    redeliver(second, {"ledgerId": 999999, "entryId": 7})
    await second.nothing()
    await first.nothing(0)


@case("redeliver/acked_id")
async def acked_id(broker: Target) -> None:
    consumer, ids = await delivered(broker, "Shared", 1)
    await consumer.acked(ids[0])
    redeliver(consumer, ids[0])
    await consumer.nothing()


@case("redeliver/unknown_consumer")
async def unknown_consumer(broker: Target) -> None:
    consumer = await broker.connected()
    redeliver(consumer, consumer_id=99)
    await consumer.nothing()
    await consumer.stays_open()


@case("redeliver/disconnect_count")
async def disconnect_count(broker: Target) -> None:
    first = await broker.subscribed(topic := await broker.filled(2), "Shared", 10)
    messages = await first.messages(2)
    assert not any(each.body.redelivery_count for each in messages)
    second = await broker.subscribed(topic, "Shared", 10)
    await second.nothing()
    await first.close()
    again = await second.messages(2)
    assert sorted(payloads(again)) == [b"m0", b"m1"]
    assert not any(each.body.HasField("redelivery_count") for each in again)


@case("redeliver/epoch_shared")
async def epoch_shared(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(1), "Shared", 10, consumer_epoch=5)
    (message,) = await consumer.messages(1)
    redeliver(consumer, consumer_epoch=7)
    (again,) = await consumer.messages(1)
    assert not message.body.HasField("consumer_epoch")
    assert not again.body.HasField("consumer_epoch")


@case("redeliver/key_shared_order")
async def key_shared_order(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number in range(4):
        await producer.publish_all(b"%d" % number, first=number, meta_partition_key=f"k{number % 2}")
    consumer = await broker.subscribed(topic, "Key_Shared", 4)
    assert payloads(await consumer.messages(4)) == [b"0", b"1", b"2", b"3"]
    redeliver(consumer)
    consumer.flow(2)
    assert payloads(await consumer.messages(2)) == [b"0", b"1"]
    await consumer.nothing()
