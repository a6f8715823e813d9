"""ACK."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, batch, case, id_of, payloads

from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, ServerError


async def delivered(broker: Target, number: int) -> tuple[str, Probe, list[Any]]:
    """A new topic, an Exclusive consumer of it, and the ids of the messages that it has got."""
    topic = await broker.filled(number)
    consumer = await broker.subscribed(topic, permits=10)
    messages = await consumer.messages(number)
    return topic, consumer, [each.body.message_id for each in messages]


async def left(topic: str, consumer: Probe, *expected: bytes) -> None:
    """After closing and subscribing again, these messages are delivered and no others."""
    await consumer.again(topic)
    assert payloads(await consumer.messages(len(expected))) == list(expected)
    await consumer.nothing()


@case("ack/individual")
async def individual(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 4)
    await consumer.acked(ids[1], ids[2])
    await left(topic, consumer, b"m0", b"m3")


@case("ack/cumulative")
async def cumulative(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 4)
    await consumer.acked(ids[2], kind="Cumulative")
    await left(topic, consumer, b"m3")


@case("ack/response")
async def response(broker: Target) -> None:
    _, consumer, ids = await delivered(broker, 1)
    body = await consumer.acked(ids[0], request_id=5)
    assert body.consumer_id == 1


@case("ack/no_response_without_request_id")
async def no_response(broker: Target) -> None:
    _, consumer, ids = await delivered(broker, 1)
    consumer.ack(ids[0])
    await consumer.nothing()


@case("ack/unknown_ids")
async def unknown_ids(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 2)
    beyond = {"ledgerId": ids[0].ledgerId, "entryId": 100}
    await consumer.acked({"ledgerId": 999999, "entryId": 7}, beyond)
    await left(topic, consumer, b"m0", b"m1")


@case("ack/cumulative_two_ids")
async def cumulative_two_ids(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 3)
    await consumer.acked(ids[0], ids[1], kind="Cumulative")
    await left(topic, consumer, b"m0", b"m1", b"m2")


@case("ack/no_ids")
async def no_ids(broker: Target) -> None:
    _, consumer, _ = await delivered(broker, 1)
    await consumer.acked(request_id=5)


@case("ack/twice")
async def twice(broker: Target) -> None:
    _, consumer, ids = await delivered(broker, 1)
    await consumer.acked(ids[0])
    await consumer.acked(ids[0])


@case("ack/validation_error")
async def validation_error(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 2)
    await consumer.acked(ids[0], validation_error=CommandAck.ChecksumMismatch)
    await left(topic, consumer, b"m1")


# -- parts of batches

THREE = (b"0", b"1", b"2")


async def batched(broker: Target, *single: bytes) -> tuple[str, Probe, dict[str, int]]:
    """A new topic with `single` messages and a batch, a consumer that has got them, the batch's id."""
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(*single)
    message_id = await producer.publish_batch(*THREE, first=len(single))
    consumer = await broker.subscribed(topic, permits=10)
    await consumer.messages(len(single) + 1)
    return topic, consumer, id_of(message_id)


async def only_batch_left(topic: str, consumer: Probe, first: int, ack_set: list[int]) -> None:
    """After closing and subscribing again, only the batch is delivered, with this ack_set."""
    await consumer.again(topic)
    (message,) = await consumer.messages(1)
    assert message.payload == batch(*THREE, first=first)
    assert list(message.body.ack_set) == ack_set
    await consumer.nothing()


@case("ack/batch_partial_off", [])
@case("ack/batch_partial_on", [5])
async def batch_partial(broker: Target, ack_set: list[int]) -> None:
    topic, consumer, entry = await batched(broker)
    await consumer.acked({**entry, "ack_set": [0b101]})
    await only_batch_left(topic, consumer, 0, ack_set)


@case("ack/batch_all_indexes")
async def batch_all_indexes(broker: Target) -> None:
    topic, consumer, entry = await batched(broker)
    for ack_set in (0b110, 0b101):
        await consumer.acked({**entry, "ack_set": [ack_set]})
    await only_batch_left(topic, consumer, 0, [0b100])
    await consumer.acked({**entry, "ack_set": [0b011]})
    await left(topic, consumer)


@case("ack/batch_cumulative_partial_on", [4])
@case("ack/batch_cumulative_partial_off", [])
async def batch_cumulative_partial(broker: Target, ack_set: list[int]) -> None:
    topic, consumer, entry = await batched(broker, b"single")
    await consumer.acked({**entry, "ack_set": [0b100]}, kind="Cumulative")
    await only_batch_left(topic, consumer, 1, ack_set)


@case("ack/unacked_limit")
async def unacked_limit(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(30), "Shared", 100)
    ids = [each.body.message_id for each in await consumer.messages(10)]
    await consumer.nothing()
    await consumer.acked(*ids[:4])
    await consumer.nothing()
    consumer.ack(ids[4])
    await consumer.messages(5)
    await consumer.nothing()


@case("ack/txn_off")
async def txn_off(broker: Target) -> None:
    topic = await broker.filled(1)
    txn: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 1, "request_id": 5}
    for kind in ("Exclusive", "Shared"):
        consumer = await broker.subscribed(topic, kind, 1, subscription=kind)
        (message,) = await consumer.messages(1)
        consumer.ack(message.body.message_id, **txn)
        body = (await consumer.expect("ACK_RESPONSE", request_id=5)).body
        assert body.error == ServerError.NotAllowedError, body
    await consumer.acked(message.body.message_id, kind="Cumulative", **txn)


@case("ack/beyond_end_first")
async def beyond_end_first(broker: Target) -> None:
    topic, consumer, ids = await delivered(broker, 3)
    await consumer.acked({"ledgerId": ids[0].ledgerId, "entryId": 70}, ids[1])
    await left(topic, consumer, b"m0", b"m1", b"m2")


@case("ack/property_twice")
async def property_twice(broker: Target) -> None:
    _, consumer, ids = await delivered(broker, 1)
    consumer.ack(ids[0], properties=[{"key": "k", "value": value} for value in (1, 2)])
    await consumer.closes()


@case("ack/redelivery_count_restarts")
async def redelivery_count_restarts(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_batch(b"0", b"1", b"2")
    consumer = await broker.subscribed(topic, "Shared", 20)
    (message,) = await consumer.messages(1)
    for left_open in (0b110, 0b100):
        consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
        await consumer.expect("MESSAGE", redelivery_count=1)
        one = {**id_of(message.body.message_id), "ack_set": [left_open], "batch_size": 3}
        await consumer.acked(one)


@case("ack/cumulative_nothing_open")
async def cumulative_nothing_open(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for first in (0, 3):
        await producer.publish_batch(b"0", b"1", b"2", first=first)
    consumer = await broker.subscribed(topic, permits=20)
    second = id_of((await consumer.messages(2))[1].body.message_id)
    for still_open in (0b100, 0):
        await consumer.acked({**second, "ack_set": [still_open], "batch_size": 3}, kind="Cumulative")
    consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    (message,) = await consumer.messages(1)
    assert list(message.body.ack_set) == [4]
