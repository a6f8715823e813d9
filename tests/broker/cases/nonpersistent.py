"""Non-persistent topics."""

from __future__ import annotations

from broker.probe import Target, case, payloads, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode


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


@case("nonpersistent/failover_told")
async def failover_told(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    producer = await broker.producing(topic)
    first = await broker.subscribed(topic, "Failover", permits=10, consumer_name="b")
    standby = await broker.connected()
    number = standby.start("SUBSCRIBE", **subscription(topic, "Failover", consumer_name="c"))
    await standby.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=False)
    await standby.expect("SUCCESS", request_id=number)
    await first.nothing()
    await producer.publish_all(b"m0")
    assert payloads(await first.messages(1)) == [b"m0"]
    taking = await broker.subscribed(topic, "Failover", permits=10, consumer_name="a")
    await taking.nothing()
    await producer.publish_all(b"m1", first=1)
    assert payloads(await taking.messages(1)) == [b"m1"]
    await first.nothing()


@case("nonpersistent/read_compacted")
async def read_compacted(broker: Target) -> None:
    topic, probe = broker.topic("non-persistent"), await broker.connected()
    await probe.lookup(topic)
    await probe.refused("NotAllowedError", "SUBSCRIBE", **subscription(topic, read_compacted=True))
    await probe.request("SUBSCRIBE", "SUCCESS", **subscription(topic) | {"subscription": ""})


@case("nonpersistent/waiting_producer")
async def waiting_producer(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    exclusive, waiting = map(ProducerAccessMode.Value, ("Exclusive", "WaitForExclusive"))
    probe = await broker.producing(topic, producer_access_mode=exclusive)
    number = probe.start("PRODUCER", topic=topic, producer_id=2, producer_access_mode=waiting)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    probe.start("CLOSE_PRODUCER", producer_id=1)
    answers = [await probe.next(), await probe.next()]
    (success,) = (each.body for each in answers if each.command == "PRODUCER_SUCCESS")
    assert (success.producer_ready, success.topic_epoch) == (True, 1)


@case("nonpersistent/priority_level")
async def priority_level(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    consumers = [await broker.subscribed(topic, "Shared", 2, priority_level=level) for level in (1, 0)]
    producer = await broker.producing(topic)
    await producer.publish_all(b"0", b"1", b"2", b"3")
    got = [payloads(await each.messages(2)) for each in consumers]
    assert got == [[b"0", b"2"], [b"1", b"3"]]
