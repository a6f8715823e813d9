"""Non-persistent topics."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import make_subscription, payloads
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode


@case(OBSERVED, since="3.3")
async def last_id(broker: Target) -> None:
    """Non-persistent topic: GET_LAST_MESSAGE_ID.

    Expected: ERROR UnknownError.

    Source: Broker: ServerCnx.handleGetLastMessageId.
    """
    consumer = await broker.subscribe(broker.topic("non-persistent"))
    await consumer.expect_error("UnknownError", "GET_LAST_MESSAGE_ID", consumer_id=1)


@case(MUST)
async def late_subscriber(broker: Target) -> None:
    """Non-persistent: SEND, then SUBSCRIBE Earliest + FLOW.

    Expected: No frame.

    Source: Protocol: Non-persistent topics.
    """
    producer = await broker.produce(topic := broker.topic("non-persistent"))
    await producer.publish_all(b"early")
    consumer = await broker.subscribe(topic, permits=10)
    await consumer.expect_nothing()
    await producer.publish_all(b"later", first=1)
    equal(payloads(await consumer.messages(1)), [b"later"], "payloads")


@case(MUST)
async def exclusive_two(broker: Target) -> None:
    """Non-persistent: second Exclusive SUBSCRIBE.

    Expected: ERROR ConsumerBusy.

    Source: Broker: NonPersistentSubscription.
    """
    await broker.subscribe(topic := broker.topic("non-persistent"))
    second = await broker.connect()
    await second.look_up(topic)
    await second.expect_error("ConsumerBusy", "SUBSCRIBE", **make_subscription(topic))


@case(MUST)
async def fan_out(broker: Target) -> None:
    """Non-persistent: subscriptions s1 and s2 with permits, one SEND.

    Expected: Both get the MESSAGE.

    Source: Protocol: Non-persistent topics.
    """
    topic = broker.topic("non-persistent")
    both = [await broker.subscribe(topic, permits=10, subscription=name) for name in ("s1", "s2")]
    await broker.settle()
    producer = await broker.produce(topic)
    await producer.publish_all(b"m0")
    for consumer in both:
        equal(payloads(await consumer.messages(1)), [b"m0"], "payloads")


@case(OBSERVED, without=("limits", "subscribing"))
async def failover_told(broker: Target) -> None:
    """Non-persistent, Failover: consumer b subscribes, then c, then a; b gets messages until a comes.

    Expected: Consumer b is told nothing; c ACTIVE_CONSUMER_CHANGE {false} before SUCCESS; a nothing; then
    messages go to a.

    Source: Broker: NonPersistentDispatcherSingleActiveConsumer.
    """
    topic = broker.topic("non-persistent")
    producer = await broker.produce(topic)
    first = await broker.subscribe(topic, "Failover", permits=10, consumer_name="b")
    standby = await broker.connect()
    number = standby.start("SUBSCRIBE", **make_subscription(topic, "Failover", consumer_name="c"))
    await standby.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=False)
    await standby.expect("SUCCESS", request_id=number)
    await first.expect_nothing()
    await producer.publish_all(b"m0")
    equal(payloads(await first.messages(1)), [b"m0"], "payloads")
    third = await broker.subscribe(topic, "Failover", permits=10, consumer_name="a")
    await third.expect_nothing()
    await producer.publish_all(b"m1", first=1)
    equal(payloads(await third.messages(1)), [b"m1"], "payloads")
    await first.expect_nothing()


@case(OBSERVED)
async def read_compacted(broker: Target) -> None:
    """Non-persistent: SUBSCRIBE read_compacted=true; SUBSCRIBE subscription=''.

    Expected: ERROR NotAllowedError; SUCCESS.

    Source: Broker: NonPersistentTopic.
    """
    topic, probe = broker.topic("non-persistent"), await broker.connect()
    await probe.look_up(topic)
    await probe.expect_error("NotAllowedError", "SUBSCRIBE", **make_subscription(topic, read_compacted=True))
    await probe.request("SUBSCRIBE", "SUCCESS", **make_subscription(topic, consumer_id=2, subscription=""))


@case(SHOULD)
async def waiting_producer(broker: Target) -> None:
    """Non-persistent: Exclusive producer live, WaitForExclusive queued; the first closes.

    Expected: PRODUCER_SUCCESS {producer_ready=true, topic_epoch=1}.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic("non-persistent")
    exclusive, waiting = map(ProducerAccessMode.Value, ("Exclusive", "WaitForExclusive"))
    probe = await broker.produce(topic, producer_access_mode=exclusive)
    number = probe.start("PRODUCER", topic=topic, producer_id=2, producer_access_mode=waiting)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_ready=False)
    probe.start("CLOSE_PRODUCER", producer_id=1)
    answers = [await probe.next(), await probe.next()]
    (success,) = (item.body for item in answers if item.command == "PRODUCER_SUCCESS")
    equal((success.producer_ready, success.topic_epoch), (True, 1), "producer_ready, topic_epoch")


@case(OBSERVED)
async def priority_level(broker: Target) -> None:
    """Non-persistent, Shared: a with priority_level=1, then b with 0, 2 permits each; SEND x4, one at a
    time.

    Expected: The messages go to a, b, a, b: priorities do not count.

    Source: Broker: NonPersistentDispatcherMultipleConsumers.
    """
    topic = broker.topic("non-persistent")
    consumers = [await broker.subscribe(topic, "Shared", 2, priority_level=level) for level in (1, 0)]
    producer = await broker.produce(topic)
    await broker.settle()
    await producer.publish_all(b"0", b"1", b"2", b"3")
    results = [payloads(await item.messages(2)) for item in consumers]
    equal(results, [[b"0", b"2"], [b"1", b"3"]], "results")
