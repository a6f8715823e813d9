"""REDELIVER_UNACKNOWLEDGED_MESSAGES."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal
from pulsarctl_wire.conformance.basics.frames import id_of, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target


async def _deliver(broker: Target, kind: str, number: int, permits: int = 10) -> tuple[Probe, list[Any]]:
    """Return a consumer of a new topic, and the ids of the messages that it has got."""
    consumer = await broker.subscribe(await broker.fill(number), kind, permits)
    messages = await consumer.messages(number)
    return consumer, [id_of(item.body.message_id) for item in messages]


@case(MUST, without=("subscribing",))
async def ids_shared(broker: Target) -> None:
    """Shared, 3 messages delivered; REDELIVER ids=[2nd].

    Expected: Only the 2nd again, redelivery_count=1; third time 2.

    Source: Protocol: Consumer.
    """
    consumer, ids = await _deliver(broker, "Shared", 3)
    for expected in (1, 2):
        consumer.redeliver(ids[1])
        message = await consumer.expect("MESSAGE", redelivery_count=expected)
        equal(message.payload, b"m1", "payload")
        await consumer.expect_nothing()


@case(MUST)
async def needs_permits(broker: Target) -> None:
    """Shared, FLOW 3 on 3 messages; REDELIVER without ids.

    Expected: Nothing until FLOW 3.

    Source: Protocol: Flow control.
    """
    consumer, _ = await _deliver(broker, "Shared", 3, 3)
    consumer.redeliver()
    await consumer.expect_nothing()
    consumer.flow(3)
    equal(sorted(payloads(await consumer.messages(3))), [b"m0", b"m1", b"m2"], "payloads")


@case(MUST)
async def exclusive_all(broker: Target) -> None:
    """Exclusive, 3 messages, first acknowledged; REDELIVER without ids.

    Expected: 2nd and 3rd again, redelivery_count 0/absent.

    Source: Protocol: Consumer.
    """
    consumer, ids = await _deliver(broker, "Exclusive", 3)
    await consumer.confirm_ack(ids[0])
    consumer.redeliver()
    messages = await consumer.messages(2)
    equal(payloads(messages), [b"m1", b"m2"], "payloads")
    equal([message.body.redelivery_count for message in messages], [0, 0], "redelivery_count")
    await consumer.expect_nothing()


@case(SHOULD)
async def consumer_epoch(broker: Target) -> None:
    """Exclusive subscribed with consumer_epoch=0; REDELIVER without ids, consumer_epoch=1.

    Expected: Redelivered MESSAGE.consumer_epoch=1.

    Source: PIP-84; broker: PersistentDispatcherSingleActiveConsumer.
    """
    consumer = await broker.subscribe(await broker.fill(1), "Exclusive", 10, consumer_epoch=0)
    await consumer.messages(1)
    consumer.redeliver(consumer_epoch=1)
    await consumer.expect("MESSAGE", consumer_epoch=1)


@case(OBSERVED)
async def unknown_ids(broker: Target) -> None:
    """Shared: REDELIVER with an id never delivered to this consumer.

    Expected: No frame.

    Source: Broker: ServerCnx.handleRedeliverUnacknowledged.
    """
    first = await broker.subscribe(topic := await broker.fill(1), "Shared", 10)
    (message,) = await first.messages(1)
    second = await broker.subscribe(topic, "Shared", 10)
    second.redeliver(id_of(message.body.message_id))
    second.redeliver({"ledgerId": 999999, "entryId": 7})
    await second.expect_nothing()
    await first.expect_nothing(0)


@case(MUST)
async def acked_id(broker: Target) -> None:
    """Shared: acknowledge a message, then REDELIVER its id.

    Expected: No frame.

    Source: Broker: ServerCnx.handleRedeliverUnacknowledged.
    """
    consumer, ids = await _deliver(broker, "Shared", 1)
    await consumer.confirm_ack(ids[0])
    consumer.redeliver(ids[0])
    await consumer.expect_nothing()


@case(OBSERVED)
async def unknown_consumer(broker: Target) -> None:
    """REDELIVER consumer_id=99.

    Expected: Ignored.

    Source: Broker: ServerCnx.handleRedeliverUnacknowledged.
    """
    consumer = await broker.connect()
    consumer.redeliver(consumer_id=99)
    await consumer.expect_nothing()
    await consumer.expect_pong()


@case(OBSERVED, since="3.3")
async def disconnect_count(broker: Target) -> None:
    """Shared: A and B; A holds 2 messages (count 0), its connection drops.

    Expected: Consumer B gets both at once, redelivery_count absent (a disconnect does not raise it).

    Source: Broker: InMemoryRedeliveryTracker.
    """
    first = await broker.subscribe(topic := await broker.fill(2), "Shared", 10)
    messages = await first.messages(2)
    equal([message.body.redelivery_count for message in messages], [0, 0], "redelivery_count")
    second = await broker.subscribe(topic, "Shared", 10)
    await second.expect_nothing()
    await first.close()
    redeliveries = await second.messages(2)
    equal(sorted(payloads(redeliveries)), [b"m0", b"m1"], "payloads")
    for message in redeliveries:
        absent(message.body, "redelivery_count")


@case(OBSERVED)
async def epoch_shared(broker: Target) -> None:
    """Shared subscribed with consumer_epoch=5; REDELIVER with consumer_epoch=7.

    Expected: MESSAGE without consumer_epoch both times.

    Source: Broker: Consumer.sendMessages.
    """
    consumer = await broker.subscribe(await broker.fill(1), "Shared", 10, consumer_epoch=5)
    (message,) = await consumer.messages(1)
    consumer.redeliver(consumer_epoch=7)
    (redelivery,) = await consumer.messages(1)
    absent(message.body, "consumer_epoch")
    absent(redelivery.body, "consumer_epoch")


@case(OBSERVED, without=("subscribing",))
async def key_shared_order(broker: Target) -> None:
    """Key_Shared: 4 messages of two keys in turn, FLOW 4; REDELIVER, FLOW 2.

    Expected: The first two, redelivery_count=1: in the order of the topic, not key by key.

    Source: Broker: PersistentStickyKeyDispatcherMultipleConsumers.
    """
    producer = await broker.produce(topic := broker.topic())
    for number in range(4):
        await producer.publish_all(b"%d" % number, first=number, meta_partition_key=f"k{number % 2}")
    consumer = await broker.subscribe(topic, "Key_Shared", 4)
    equal(payloads(await consumer.messages(4)), [b"0", b"1", b"2", b"3"], "payloads")
    consumer.redeliver()
    consumer.flow(2)
    messages = await consumer.messages(2)
    equal(payloads(messages), [b"0", b"1"], "payloads")
    equal([message.body.redelivery_count for message in messages], [1, 1], "redelivery_count")
    await consumer.expect_nothing()
