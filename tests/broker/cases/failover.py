"""Failover subscriptions and ACTIVE_CONSUMER_CHANGE."""

from __future__ import annotations

from broker.owners import active
from broker.probe import Probe, Target, case, payloads, subscription

from pulsarctl_wire.wire.frame import Frame


async def member(broker: Target, topic: str, name: str, permits: int = 10) -> Probe:
    return await broker.subscribed(topic, "Failover", permits, consumer_name=name)


async def owner_of(broker: Target, topic: str) -> tuple[Probe, str]:
    """The one of a and b that the ring prefers, active and told so, and the name of the other."""
    name = active("ab", topic)
    consumer = await member(broker, topic, name)
    await broker.advance(1.5)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    return consumer, "b" if name == "a" else "a"


async def standby_of(broker: Target, topic: str, name: str) -> Probe:
    """A newcomer, told before its SUCCESS that it is not active."""
    consumer = await broker.connected()
    await consumer.lookup(topic)
    number = consumer.start("SUBSCRIBE", **subscription(topic, "Failover", consumer_name=name))
    change = await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1)
    assert not change.body.is_active
    await consumer.expect("SUCCESS", request_id=number)
    consumer.flow(10)
    return consumer


async def join(consumer: Probe, topic: str, name: str, consumer_id: int = 1) -> None:
    """Subscribe, with 10 permits; what else comes stays in `frames`."""
    fields = subscription(topic, "Failover", consumer_id, consumer_name=name)
    number = consumer.start("SUBSCRIBE", **fields)
    await consumer.until(lambda: number in [each.body.request_id for each in of(consumer, "SUCCESS")])
    consumer.flow(10, consumer_id)


def of(consumer: Probe, command: str) -> list[Frame]:
    return [each for each in consumer.frames if each.command == command]


@case("failover/first_consumer_timing")
async def first_consumer_timing(broker: Target) -> None:
    consumer = await member(broker, await broker.filled(1), "a")
    await consumer.nothing(0.2)
    await broker.advance(1.5)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", within=1, consumer_id=1, is_active=True)
    await consumer.messages(1)


@case("failover/takeover_delay")
async def takeover_delay(broker: Target) -> None:
    first, name = await owner_of(broker, topic := broker.topic())
    await broker.filled(2, topic)
    await first.messages(2)
    second = await standby_of(broker, topic, name)
    await first.close()
    await second.nothing(0.2)
    await broker.advance(1.5)
    await second.expect("ACTIVE_CONSUMER_CHANGE", within=1, consumer_id=1, is_active=True)
    assert payloads(await second.messages(2)) == [b"m0", b"m1"]


@case("failover/old_client_v11")
async def old_client(broker: Target) -> None:
    topic = await broker.filled(1)
    consumer = await broker.connected(protocol_version=11)
    await consumer.subscribe(topic, "Failover")
    consumer.flow(10)
    await broker.advance(1.5)
    await consumer.messages(1)
    await consumer.nothing()


@case("failover/standby_told_before_success")
async def standby_told_before_success(broker: Target) -> None:
    _, name = await owner_of(broker, topic := broker.topic())
    await standby_of(broker, topic, name)


@case("failover/only_active_gets")
async def only_active_gets(broker: Target) -> None:
    topic = broker.topic()
    both = {name: await broker.connected() for name in "ab"}
    for name, consumer in both.items():
        await consumer.lookup(topic)
        await join(consumer, topic, name)
    await broker.advance(1.5)
    await broker.filled(5, topic)
    owner = both.pop(active("ab", topic))
    await owner.until(lambda: len(of(owner, "MESSAGE")) == 5)
    await broker.settle()
    assert payloads(of(owner, "MESSAGE")) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert not any(of(each, "MESSAGE") for each in both.values())


@case("failover/partition_index")
async def partition_index(broker: Target) -> None:
    topic = await broker.partitioned(3)
    partitions = [f"{topic}-partition-{number}" for number in range(3)]
    a, b = await broker.connected(), await broker.connected()
    for partition in partitions:
        await a.lookup(partition)
    for name, consumer in (("b", b), ("a", a)):
        for consumer_id, partition in enumerate(partitions):
            await join(consumer, partition, name, consumer_id)
    await broker.advance(1.5)
    for partition in partitions:
        await broker.filled(1, partition)
    await broker.settle(1)
    assert sorted(each.body.consumer_id for each in of(a, "MESSAGE")) == [0, 2]
    assert [each.body.consumer_id for each in of(b, "MESSAGE")] == [1]


@case("failover/told_in_order")
async def told_in_order(broker: Target) -> None:
    topic = f"{await broker.partitioned(1)}-partition-0"
    probe = await broker.subscribed(topic, "Failover", consumer_name="b")
    await broker.advance(1.5)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    await probe.subscribe(topic, "Failover", consumer_id=2, consumer_name="a")
    await broker.advance(1.5)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=2, is_active=True)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=False)


@case("failover/delay_goes_on")
async def delay_goes_on(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(1), "Failover")
    await broker.advance(0.6)
    await consumer.again(topic, "Failover")
    await broker.advance(0.6)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", within=0.1, is_active=True)
    await consumer.messages(1)
