"""REACHED_END_OF_TOPIC."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path


@case(SHOULD, needs=("admin",))
async def after_ack(broker: Target) -> None:
    """Exclusive consumer, 2 messages, topic terminated by the admin API; FLOW, read both, wait 0.6 s, then
    acknowledge both.

    Expected: Nothing after the delivery; REACHED_END_OF_TOPIC {consumer_id=1} after the acknowledgements.

    Source: Broker: PersistentDispatcherMultipleConsumers; protocol: Consumer (ReachedEndOfTopic).
    """
    topic = await broker.fill(2)
    consumer = await broker.subscribe(topic)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer.flow(10)
    ids = [item.body.message_id for item in await consumer.messages(2)]
    await broker.advance(0.6)
    await consumer.expect_nothing()
    consumer.ack(*ids)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


@case(SHOULD, needs=("admin",))
async def subscribe_when_done(broker: Target) -> None:
    """Terminated empty-backlog topic: new SUBSCRIBE at Latest, FLOW.

    Expected: SUCCESS, REACHED_END_OF_TOPIC.

    Source: Broker: PersistentDispatcherMultipleConsumers; protocol: Consumer (ReachedEndOfTopic).
    """
    topic = await broker.fill(1)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer = await broker.subscribe(topic, permits=10, initialPosition=0)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


async def _end_topic(broker: Target, kind: str) -> tuple[str, Probe]:
    """Return a terminated topic, and a consumer that has acknowledged all; drop its frames so far."""
    topic = await broker.fill(1)
    consumer = await broker.subscribe(topic, kind, 10)
    (message,) = await consumer.messages(1)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer.ack(message.body.message_id)
    await broker.settle()
    consumer.frames.clear()
    return topic, consumer


@case(OBSERVED, needs=("admin",))
async def read_finds_it(broker: Target) -> None:
    """Terminated topic, all acknowledged: a second Shared consumer SUBSCRIBEs, FLOW.

    Expected: Nothing for it: the first one's read has found the end.

    Source: Broker: PersistentDispatcherMultipleConsumers.readEntriesFailed.
    """
    topic, _ = await _end_topic(broker, "Shared")
    other = await broker.subscribe(topic, "Shared", 10)
    await other.expect_nothing()


@case(OBSERVED, needs=("admin",))
async def redeliver(broker: Target) -> None:
    """Exclusive, all acknowledged, topic terminated: FLOW, then REDELIVER twice.

    Expected: Nothing at FLOW; REACHED_END_OF_TOPIC at each REDELIVER.

    Source: Broker: PersistentDispatcherSingleActiveConsumer.readEntriesFailed.
    """
    _, consumer = await _end_topic(broker, "Exclusive")
    consumer.flow(5)
    await consumer.expect_nothing()
    for _ in range(2):
        consumer.redeliver()
        await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)


@case(OBSERVED, needs=("admin",))
async def needs_flow(broker: Target) -> None:
    """Terminated topic without messages: SUBSCRIBE; FLOW.

    Expected: Nothing until FLOW, then REACHED_END_OF_TOPIC.

    Source: Broker: PersistentDispatcherSingleActiveConsumer.readEntriesFailed.
    """
    await broker.produce(topic := broker.topic())
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    consumer = await broker.subscribe(topic)
    await consumer.expect_nothing()
    consumer.flow(1)
    await consumer.expect("REACHED_END_OF_TOPIC", consumer_id=1)
