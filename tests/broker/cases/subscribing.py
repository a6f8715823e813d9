"""SUBSCRIBE where settings or policies forbid it, and what else the setting "subscribing" changes."""

from __future__ import annotations

from broker.probe import Target, case, subscription


@case("subscribing/strict_name")
async def strict_name(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    for name in ("a/b", "ü"):
        await probe.refused("ProducerBusy", "SUBSCRIBE", **subscription(topic, subscription=name))
    await probe.subscribe(topic, subscription="a-b=:.")


@case("subscribing/key_shared_disabled")
async def key_shared_disabled(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    await probe.refused("NotAllowedError", "SUBSCRIBE", **subscription(topic, "Key_Shared"))


@case("subscribe/types_of_namespace")
async def types_of_namespace(broker: Target) -> None:
    namespace = await broker.namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/subscriptionTypesEnabled", ["Shared"])
    topic = f"persistent://{namespace}/t"
    await broker.advance(1)
    probe = await broker.subscribed(topic, "Shared")
    other = subscription(topic, "Failover", 2, subscription="f")
    await probe.refused("NotAllowedError", "SUBSCRIBE", **other)


@case("subscribing/same_address")
async def same_address(broker: Target) -> None:
    topic = broker.topic()
    for name in "ab":
        await broker.subscribed(topic, subscription=name, consumer_name=name)
    probe = await broker.connected()
    await probe.lookup(topic)
    third = subscription(topic, subscription="c", consumer_name="c")
    await probe.refused("ConsumerBusy", "SUBSCRIBE", **third)


@case("subscribing/rate")
async def rate(broker: Target) -> None:
    probe = await broker.connected()
    topic = broker.topic()
    for _ in range(2):
        await probe.subscribe(topic, consumer_name="x")
        await probe.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    await probe.refused("NotAllowedError", "SUBSCRIBE", **subscription(topic, consumer_name="x"))
    await probe.subscribe(topic, consumer_name="y")


@case("subscribing/no_redelivery_count")
async def no_redelivery_count(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(1), "Shared", 10)
    await consumer.messages(1)
    consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    (message,) = await consumer.messages(1)
    assert not message.body.HasField("redelivery_count")


@case("subscribing/precise_flow")
async def precise_flow(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number in range(12):
        await producer.publish_batch(b"0", b"1", b"2", first=3 * number)
    consumer = await broker.subscribed(topic, permits=4)
    await consumer.messages(4)
    await consumer.nothing()
    consumer.flow(14)  # 6 permits are left
    await consumer.messages(2)
    await consumer.nothing()
