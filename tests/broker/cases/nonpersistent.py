"""Non-persistent topics."""

from __future__ import annotations

from broker.probe import Target, case, payloads, subscription


@case("nonpersistent/last_id")
async def last_id(broker: Target) -> None:
    consumer = await broker.subscribed(broker.topic("non-persistent"))
    await consumer.refused("UnknownError", "GET_LAST_MESSAGE_ID", consumer_id=1)


@case("nonpersistent/late_subscriber")
async def late_subscriber(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic("non-persistent"))
    await producer.publish_all(b"early")
    consumer = await broker.subscribed(topic, permits=10)
    await consumer.nothing()
    await producer.publish_all(b"later", first=1)
    assert payloads(await consumer.messages(1)) == [b"later"]


@case("nonpersistent/exclusive_two")
async def exclusive_two(broker: Target) -> None:
    await broker.subscribed(topic := broker.topic("non-persistent"))
    second = await broker.connected()
    await second.lookup(topic)
    await second.refused("ConsumerBusy", "SUBSCRIBE", **subscription(topic))


@case("nonpersistent/fan_out")
async def fan_out(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    both = [await broker.subscribed(topic, permits=10, subscription=name) for name in ("s1", "s2")]
    await broker.settle()
    producer = await broker.producing(topic)
    await producer.publish_all(b"m0")
    for consumer in both:
        assert payloads(await consumer.messages(1)) == [b"m0"]


@case("nonpersistent/read_compacted")
async def read_compacted(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic("non-persistent"))
    await probe.refused("NotAllowedError", "SUBSCRIBE", **subscription(topic, read_compacted=True))
