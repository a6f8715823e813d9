"""UNSUBSCRIBE."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import payloads
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.session.state import NO_REQUEST


@case(SHOULD, since="3.3")
async def force(broker: Target) -> None:
    """Shared, two consumers on two connections; UNSUBSCRIBE force=true by one.

    Expected: SUCCESS; CLOSE_CONSUMER for the other.

    Source: Broker: PersistentSubscription.
    """
    topic = broker.topic()
    one, other = [await broker.subscribe(topic, "Shared") for _ in range(2)]
    await one.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1, force=True)
    await other.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)


@case(MUST)
async def sole(broker: Target) -> None:
    """UNSUBSCRIBE by the only consumer.

    Expected: SUCCESS; subscription gone: a new SUBSCRIBE at Earliest gets everything again.

    Source: Protocol: Consumer.
    """
    consumer = await broker.subscribe(topic := await broker.fill(2), permits=10)
    messages = await consumer.messages(2)
    await consumer.confirm_ack(messages[1].body.message_id, kind="Cumulative")
    await consumer.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1)
    await consumer.subscribe(topic, consumer_id=2)
    consumer.flow(10, 2)
    equal(payloads(await consumer.messages(2)), [b"m0", b"m1"], "payloads")


@case(OBSERVED)
async def consumer_id_free(broker: Target) -> None:
    """UNSUBSCRIBE then SUBSCRIBE with the same consumer_id.

    Expected: SUCCESS, SUCCESS; permits start at zero.

    Source: Broker: PersistentSubscription.doUnsubscribe.
    """
    consumer = await broker.subscribe(topic := await broker.fill(2), permits=10)
    await consumer.messages(2)
    await consumer.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1)
    await consumer.subscribe(topic)
    await consumer.expect_nothing()
    consumer.flow(1)
    await consumer.messages(1)
    await consumer.expect_nothing()


@case(SHOULD)
async def others_connected(broker: Target) -> None:
    """Shared, two consumers; UNSUBSCRIBE by one.

    Expected: ERROR MetadataError; both stay.

    Source: Broker: PersistentSubscription.doUnsubscribe.
    """
    topic = broker.topic()
    consumers = [await broker.subscribe(topic, "Shared", 1) for _ in range(2)]
    await consumers[0].expect_error("MetadataError", "UNSUBSCRIBE", consumer_id=1)
    await broker.fill(2, topic)
    for consumer in consumers:
        await consumer.messages(1)


@case(OBSERVED)
async def unknown_consumer(broker: Target) -> None:
    """UNSUBSCRIBE consumer_id=99.

    Expected: ERROR MetadataError.

    Source: Broker: ServerCnx.handleUnsubscribe.
    """
    consumer = await broker.connect()
    await consumer.expect_error("MetadataError", "UNSUBSCRIBE", consumer_id=99)
