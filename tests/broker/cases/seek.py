"""SEEK."""

from __future__ import annotations

from typing import Any

from broker.probe import (
    EARLIEST,
    LATEST,
    NO_REQUEST,
    Probe,
    Target,
    admin_path,
    batch,
    case,
    frame,
    id_of,
    payloads,
    subscription,
)

from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe


async def seek(consumer: Probe, **target: Any) -> None:
    """SEEK -> CLOSE_CONSUMER, SUCCESS."""
    number = consumer.start("SEEK", consumer_id=1, **target)
    await consumer.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await consumer.expect("SUCCESS", request_id=number)


async def subscribe_again(consumer: Probe, topic: str, *expected: bytes) -> None:
    """SUBSCRIBE and FLOW bring exactly these messages."""
    await consumer.subscribe(topic)
    consumer.flow(10)
    assert payloads(await consumer.messages(len(expected))) == list(expected)
    await consumer.nothing()


@case("seek/earliest")
async def earliest(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3), permits=10)
    messages = await consumer.messages(3)
    await consumer.acked(messages[2].body.message_id, kind="Cumulative")
    await seek(consumer, message_id=EARLIEST)
    await subscribe_again(consumer, topic, b"m0", b"m1", b"m2")


@case("seek/latest", LATEST)
@case("seek/unknown_ledger", {"ledgerId": 999999, "entryId": 0})
async def to_the_end(broker: Target, message_id: dict[str, int]) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3))
    await seek(consumer, message_id=message_id)
    await subscribe_again(consumer, topic)


@case("seek/time_zero")
async def time_zero(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3), permits=10)
    ids = [each.body.message_id for each in await consumer.messages(3)]
    await consumer.acked(*ids)
    await seek(consumer, message_publish_time=0)
    await subscribe_again(consumer, topic, b"m0", b"m1", b"m2")


@case("seek/everyone_closed")
async def everyone_closed(broker: Target) -> None:
    one = await broker.subscribed(topic := await broker.filled(1), "Shared")
    other = await broker.subscribed(topic, "Shared")
    await seek(one, message_id=EARLIEST)
    await other.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await other.nothing()


@case("seek/without_target")
async def without_target(broker: Target) -> None:
    consumer = await broker.subscribed(broker.topic())
    await consumer.refused("MetadataError", "SEEK", consumer_id=1)


@case("seek/unknown_consumer")
async def unknown_consumer(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.refused("MetadataError", "SEEK", consumer_id=99, message_id=EARLIEST)


@case("seek/batch_ack_set")
async def batch_ack_set(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    entry = await producer.publish_batch(b"0", b"1", b"2", b"3")
    consumer = await broker.subscribed(topic)
    await seek(consumer, message_id={**id_of(entry), "ack_set": [0b1100]})
    await consumer.subscribe(topic)
    consumer.flow(10)
    (message,) = await consumer.messages(1)
    assert message.payload == batch(b"0", b"1", b"2", b"3")
    assert list(message.body.ack_set) == [12]


@case("seek/resubscribe_at_once")
async def resubscribe_at_once(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(1))
    wanted = frame("SEEK", consumer_id=1, request_id=51, message_id=EARLIEST)
    consumer.send(wanted + frame("SUBSCRIBE", request_id=52, **subscription(topic)))
    await consumer.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    answers = [await consumer.expect("SUCCESS") for _ in range(2)]
    assert sorted(each.body.request_id for each in answers) == [51, 52]


AT_LATEST: dict[str, Any] = {"start_message_id": LATEST, "initialPosition": CommandSubscribe.Latest}
READER = {"durable": False, **AT_LATEST}


@case("seek/nondurable", READER)
@case("seek/nondurable_then_durable", {"durable": True, **AT_LATEST})
async def not_durable(broker: Target, second: dict[str, Any]) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3), permits=10, **READER)
    await seek(consumer, message_id=EARLIEST)
    assert await broker.rest("GET", f"{admin_path(topic)}/subscriptions") == []
    await consumer.subscribe(topic, **second)
    consumer.flow(10)
    assert payloads(await consumer.messages(3)) == [b"m0", b"m1", b"m2"]
    await consumer.nothing()


@case("seek/nondurable_closed")
async def not_durable_closed(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3), permits=10, **READER)
    await seek(consumer, message_id=EARLIEST)
    await consumer.subscribe(topic, **READER)
    await consumer.again(topic, **READER)
    await consumer.nothing()


@case("seek/before_entry_0")
async def before_entry_0(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(2), permits=10)
    ids = [id_of(each.body.message_id) for each in await consumer.messages(2)]
    await consumer.acked(*ids)
    await seek(consumer, message_id={**ids[0], "entryId": 2**64 - 1})
    await subscribe_again(consumer, topic, b"m0", b"m1")


@case("seek/failover_standby")
async def failover_standby(broker: Target) -> None:
    topic = f"{await broker.partitioned(1)}-partition-0"
    await broker.filled(1, topic)
    active = await broker.subscribed(topic, "Failover", 10, consumer_name="a")
    await broker.advance(1.5)
    await active.expect("ACTIVE_CONSUMER_CHANGE", is_active=True)
    await active.messages(1)
    standby = await broker.connected()
    number = standby.start("SUBSCRIBE", **subscription(topic, "Failover", consumer_name="b"))
    await standby.expect("ACTIVE_CONSUMER_CHANGE", is_active=False)
    await standby.expect("SUCCESS", request_id=number)
    await standby.request("SEEK", "SUCCESS", consumer_id=1, message_id=EARLIEST)
    await active.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)
    await standby.nothing()


@case("seek/time_out_of_order")
async def time_out_of_order(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number, second in enumerate((5, 1, 7, 2, 9)):
        await producer.publish_all(b"%d" % second, first=number, meta_publish_time=second * 1000)
    consumer = await broker.subscribed(topic)
    await seek(consumer, message_publish_time=6_000)
    await subscribe_again(consumer, topic, b"7", b"2", b"9")


@case("seek/acked_ledger")
async def acked_ledger(broker: Target) -> None:
    topic = await broker.filled(2)
    await broker.subscribed(topic, subscription="s")
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await broker.filled(2, topic)
    consumer = await broker.subscribed(topic, permits=10)
    ids = [id_of(each.body.message_id) for each in await consumer.messages(4)]
    await consumer.acked(*ids)
    await broker.settle()
    await seek(consumer, message_id=ids[1])
    await subscribe_again(consumer, topic, b"m0", b"m1")
