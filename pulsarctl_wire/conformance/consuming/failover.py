"""Failover subscriptions and ACTIVE_CONSUMER_CHANGE."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_subscription, payloads
from pulsarctl_wire.conformance.basics.owners import find_active
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.frame import Frame


async def _join(broker: Target, topic: str, name: str, permits: int = 10) -> Probe:
    return await broker.subscribe(topic, "Failover", permits, consumer_name=name)


async def _activate(broker: Target, topic: str) -> tuple[Probe, str]:
    """Subscribe as a or b, whichever the hash ring makes active; return the consumer, and the other name."""
    name = find_active("ab", topic)
    consumer = await _join(broker, topic, name)
    await broker.advance(1.5)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    return consumer, "b" if name == "a" else "a"


async def _add_standby(broker: Target, topic: str, name: str) -> Probe:
    """Return another consumer, which must be told before its SUCCESS that it is not active."""
    consumer = await broker.connect()
    await consumer.look_up(topic)
    number = consumer.start("SUBSCRIBE", **make_subscription(topic, "Failover", consumer_name=name))
    change = await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1)
    require(not change.body.is_active, "no is_active", change.body.is_active)
    await consumer.expect("SUCCESS", request_id=number)
    consumer.flow(10)
    return consumer


async def _join_on(consumer: Probe, topic: str, name: str, consumer_id: int = 1) -> None:
    """Subscribe, with 10 permits; all frames that come, also SUCCESS, stay in `frames`."""
    fields = make_subscription(topic, "Failover", consumer_id, consumer_name=name)
    number = consumer.start("SUBSCRIBE", **fields)

    def is_answered() -> bool:
        return number in [frame.body.request_id for frame in _select(consumer, "SUCCESS")]

    await consumer.until(is_answered, "SUCCESS")
    consumer.flow(10, consumer_id)


def _select(consumer: Probe, command: str) -> list[Frame]:
    return [item for item in consumer.frames if item.command == command]


@case(OBSERVED)
async def first_consumer_timing(broker: Target) -> None:
    """Failover: the first consumer subscribes with FLOW 10 on a stored message.

    Expected: SUCCESS at once; about 1 s later ACTIVE_CONSUMER_CHANGE {true}, then MESSAGE.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    consumer = await _join(broker, await broker.fill(1), "a")
    await consumer.expect_nothing(0.2)
    await broker.advance(1.5)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", within=1, consumer_id=1, is_active=True)
    await consumer.messages(1)


@case(OBSERVED)
async def takeover_delay(broker: Target) -> None:
    """Active consumer holds 2 unacknowledged messages, standby has 10 permits; the active one's connection
    drops.

    Expected: Standby: ACTIVE_CONSUMER_CHANGE {true} about 1 s later (not at once), then the 2 messages.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    first, name = await _activate(broker, topic := broker.topic())
    await broker.fill(2, topic)
    await first.messages(2)
    second = await _add_standby(broker, topic, name)
    await first.close()
    await second.expect_nothing(0.2)
    await broker.advance(1.5)
    await second.expect("ACTIVE_CONSUMER_CHANGE", within=1, consumer_id=1, is_active=True)
    equal(payloads(await second.messages(2)), [b"m0", b"m1"], "payloads")


@case(OBSERVED)
async def old_client_v11(broker: Target) -> None:
    """Failover consumer with protocol_version=11.

    Expected: No ACTIVE_CONSUMER_CHANGE.

    Source: Common: Commands (from protocol version 12 on).
    """
    topic = await broker.fill(1)
    consumer = await broker.connect(protocol_version=11)
    await consumer.subscribe(topic, "Failover")
    consumer.flow(10)
    await broker.advance(1.5)
    await consumer.messages(1)
    await consumer.expect_nothing()


@case(OBSERVED)
async def standby_told_before_success(broker: Target) -> None:
    """Failover: of two consumers, the one that the hash ring makes active is connected for 1.5 s; then the
    other subscribes.

    Expected: The newcomer gets ACTIVE_CONSUMER_CHANGE {false} *before* its SUCCESS.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    _, name = await _activate(broker, topic := broker.topic())
    await _add_standby(broker, topic, name)


@case(MUST)
async def only_active_gets(broker: Target) -> None:
    """Two Failover consumers with 10 permits each, 1.5 s later 5 messages.

    Expected: All 5 to the active one.

    Source: Protocol: Consumer.
    """
    topic = broker.topic()
    consumers = {name: await broker.connect() for name in "ab"}
    for name, consumer in consumers.items():
        await consumer.look_up(topic)
        await _join_on(consumer, topic, name)
    await broker.advance(1.5)
    await broker.fill(5, topic)
    owner = consumers.pop(find_active("ab", topic))
    await owner.until(lambda: len(_select(owner, "MESSAGE")) == 5, "5 MESSAGEs")
    await broker.settle()
    equal(payloads(_select(owner, "MESSAGE")), [b"m0", b"m1", b"m2", b"m3", b"m4"], "payloads")
    for standby in consumers.values():
        equal(_select(standby, "MESSAGE"), [], "messages of the other")


@case(SHOULD, needs=("admin",), without=("subscribing",))
async def partition_index(broker: Target) -> None:
    """Partitioned topic of 3; Failover consumers a and b on every partition, equal priority.

    Expected: Partition 0 -> a, 1 -> b, 2 -> a (sorted by name, index % n).

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    topic = await broker.create_partitions(3)
    partitions = [f"{topic}-partition-{number}" for number in range(3)]
    a, b = await broker.connect(), await broker.connect()
    for partition in partitions:
        await a.look_up(partition)
    for name, consumer in (("b", b), ("a", a)):
        for consumer_id, partition in enumerate(partitions):
            await _join_on(consumer, partition, name, consumer_id)
    await broker.advance(1.5)
    for partition in partitions:
        await broker.fill(1, partition)
    await broker.settle(1)
    equal(sorted(item.body.consumer_id for item in _select(a, "MESSAGE")), [0, 2], "consumer_id")
    equal([item.body.consumer_id for item in _select(b, "MESSAGE")], [1], "consumer_id")


@case(OBSERVED, needs=("admin",), without=("subscribing",))
async def told_in_order(broker: Target) -> None:
    """Partition 0: consumer 1 (name b) active, then consumer 2 (name a) on the same connection.

    Expected: ACTIVE_CONSUMER_CHANGE for 2 (true), then for 1 (false): in the order of priority and name.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    topic = f"{await broker.create_partitions(1)}-partition-0"
    probe = await broker.subscribe(topic, "Failover", consumer_name="b")
    await broker.advance(1.5)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    await probe.subscribe(topic, "Failover", consumer_id=2, consumer_name="a")
    await broker.advance(1.5)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=2, is_active=True)
    await probe.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=False)


@case(OBSERVED)
async def delay_goes_on(broker: Target) -> None:
    """Failover consumer; 0.6 s later CLOSE_CONSUMER and SUBSCRIBE again, FLOW; 0.6 s.

    Expected: ACTIVE_CONSUMER_CHANGE and the message: a second after the first SUBSCRIBE.

    Source: Broker: PersistentDispatcherSingleActiveConsumer.scheduleReadOnActiveConsumer.
    """
    consumer = await broker.subscribe(topic := await broker.fill(1), "Failover")
    await broker.advance(0.6)
    await consumer.resubscribe(topic, "Failover")
    await broker.advance(0.6)
    await consumer.expect("ACTIVE_CONSUMER_CHANGE", within=0.1, is_active=True)
    await consumer.messages(1)
