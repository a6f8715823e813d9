"""FLOW and CONSUMER_STATS."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, admin_path, batch, case, frame, payloads, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

FIVE = [b"0", b"1", b"2", b"3", b"4"]


async def stats(consumer: Probe) -> Any:
    return await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)


@case("flow/exact")
async def exact(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(5), permits=2)
    await consumer.messages(2)
    await consumer.nothing()
    consumer.flow(1)
    await consumer.messages(1)
    await consumer.nothing()


@case("flow/adds_up")
async def adds_up(broker: Target) -> None:
    consumer = await broker.subscribed(topic := broker.topic())
    for _ in range(3):
        consumer.flow(1)
    await consumer.nothing()
    await broker.filled(5, topic)
    await consumer.messages(3)
    await consumer.nothing()


@case("flow/zero", 0)
@case("flow/max_uint32", 2**32 - 1)
async def invalid(broker: Target, permits: int) -> None:
    consumer = await broker.subscribed(await broker.filled(1))
    consumer.flow(permits)
    await consumer.closes(2)


@case("flow/max_int32")
async def max_int32(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(3), permits=2**31 - 1)
    await consumer.messages(3)


@case("flow/overflow")
async def overflow(broker: Target) -> None:
    # Shared: for Exclusive, a read that begins between the two delivers what it waits for
    consumer = await broker.subscribed(topic := broker.topic(), "Shared")
    consumer.flow(2**31 - 1)
    consumer.flow(2**31 - 1)
    await consumer.nothing()
    await broker.filled(3, topic)
    await consumer.nothing()
    assert (await stats(consumer)).availablePermits == 2**64 - 2


@case("flow/batch_shared_1")
async def batch_shared(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_batch(*FIVE)
    await producer.publish_all(b"5", b"6", b"7", first=5)
    consumer = await broker.subscribed(topic, "Shared", 1)
    assert payloads(await consumer.messages(1)) == [batch(*FIVE)]
    await consumer.nothing()
    consumer.flow(4)
    await consumer.nothing()
    consumer.flow(1)
    assert payloads(await consumer.messages(1)) == [b"5"]
    await consumer.nothing()


@case("flow/batch_exclusive_overshoot")
async def batch_exclusive_overshoot(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number in range(10):
        await producer.publish_batch(*FIVE, first=number * 5)
    consumer = await broker.subscribed(topic, permits=5)
    messages = await consumer.messages(5)
    assert payloads(messages) == [batch(*FIVE, first=number * 5) for number in range(5)]
    await consumer.nothing()
    assert (await stats(consumer)).availablePermits == 2**64 - 20


@case("flow/permits_lost_on_close")
async def permits_lost_on_close(broker: Target) -> None:
    consumer = await broker.subscribed(topic := broker.topic(), permits=10)
    await consumer.again(topic, permits=0)
    await broker.filled(1, topic)
    await consumer.nothing()
    consumer.flow(1)
    await consumer.messages(1)


@case("flow/stats_permits")
async def stats_permits(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(3), permits=10)
    await consumer.messages(3)
    body = await stats(consumer)
    assert (body.availablePermits, body.unackedMessages, body.msgBacklog) == (7, 0, 3), body
    assert body.type == "Exclusive"
    assert body.HasField("blockedConsumerOnUnackedMsgs")
    assert not body.blockedConsumerOnUnackedMsgs
    assert body.address
    assert body.connectedSince
    assert not body.HasField("error_code")


@case("flow/stats_unknown_consumer")
async def stats_unknown_consumer(broker: Target) -> None:
    consumer = await broker.connected()
    consumer.start("CONSUMER_STATS", consumer_id=99)
    await consumer.closes(2)


@case("flow/stats_while_subscribing")
async def stats_while_subscribing(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    wanted = frame("SUBSCRIBE", request_id=51, **subscription(topic))
    probe.send(wanted + frame("CONSUMER_STATS", request_id=52, consumer_id=1))
    answers = {each.command: each.body for each in [await probe.next() for _ in range(2)]}
    assert answers["SUCCESS"].request_id == 51
    stats = answers["CONSUMER_STATS_RESPONSE"]
    assert stats.request_id == 52
    assert not stats.HasField("error_code") or stats.error_code == ServerError.ConsumerNotFound


@case("flow/expired_unacked")
async def expired_unacked(broker: Target) -> None:
    topic = await broker.filled(2)
    consumer = await broker.subscribed(topic, "Shared", 1)
    await consumer.messages(1)
    await broker.advance(2.5)
    await broker.rest("POST", f"{admin_path(topic)}/subscription/s/expireMessages/1")
    await broker.advance(0.5)
    body = await stats(consumer)
    assert (body.unackedMessages, body.msgBacklog) == (1, 0)


@case("flow/dispatch_rate")
async def dispatch_rate(broker: Target) -> None:
    namespace = await broker.namespace()
    rate = {"dispatchThrottlingRateInMsg": 3, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 60}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/dispatchRate", rate)
    await broker.advance(1)
    for kind in ("Shared", "Exclusive"):
        topic = await broker.filled(8, f"persistent://{namespace}/{kind}")
        consumer = await broker.subscribed(topic, kind, 10)
        await consumer.messages(3)
        await consumer.nothing()
