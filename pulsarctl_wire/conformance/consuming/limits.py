"""Limits on producers, consumers and unacknowledged messages."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import id_of, make_subscription, payloads
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, Schema, ServerError


@case(SHOULD, needs=("limits",))
async def producers_per_topic(broker: Target) -> None:
    """maxProducersPerTopic=2: third PRODUCER.

    Expected: ERROR ProducerBusy.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await probe.create_producer(topic, 2)
    await probe.expect_error("ProducerBusy", "PRODUCER", topic=topic, producer_id=3)


@case(SHOULD, needs=("limits",))
async def consumers_per_subscription(broker: Target) -> None:
    """maxConsumersPerSubscription=2: third Shared SUBSCRIBE.

    Expected: ERROR ConsumerBusy.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    probe = await broker.subscribe(topic, "Shared")
    await probe.subscribe(topic, "Shared", consumer_id=2)
    await probe.expect_error("ConsumerBusy", "SUBSCRIBE", **make_subscription(topic, "Shared", 3))


@case(OBSERVED, needs=("limits",))
async def before_schema(broker: Target) -> None:
    """maxProducersPerTopic=2: third PRODUCER, Exclusive and with an Avro schema that is no JSON.

    Expected: ERROR ProducerBusy 'Topic '<full name>' reached max producers limit'.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await probe.create_producer(topic, 2)
    wrong = {"name": "", "type": Schema.Avro, "schema_data": b"{"}
    exclusive = ProducerAccessMode.Value("Exclusive")
    fields = {"topic": topic, "producer_id": 3, "producer_access_mode": exclusive, "schema": wrong}
    body = await probe.expect_error("ProducerBusy", "PRODUCER", **fields)
    equal(body.error, ServerError.ProducerBusy, "error")
    equal(body.message, f"Topic '{topic}' reached max producers limit", "message")


@case(SHOULD, needs=("limits",))
async def nonpersistent_consumers(broker: Target) -> None:
    """maxConsumersPerSubscription=2, non-persistent: third Shared SUBSCRIBE.

    Expected: ERROR ConsumerBusy.

    Source: Broker: AbstractDispatcherMultipleConsumers.
    """
    topic = broker.topic("non-persistent")
    probe = await broker.subscribe(topic, "Shared")
    await probe.subscribe(topic, "Shared", consumer_id=2)
    await probe.expect_error("ConsumerBusy", "SUBSCRIBE", **make_subscription(topic, "Shared", 3))


@case(OBSERVED, needs=("limits",), alone=True)
async def redeliver_unblocks(broker: Target) -> None:
    """Shared, maxUnackedMessagesPerConsumer=10: FLOW 100 on 30 messages; REDELIVER of 2 ids.

    Expected: Both again at once, though 8 are not acknowledged.

    Source: Broker: Consumer.redeliverUnacknowledgedMessages.
    """
    consumer = await broker.subscribe(await broker.fill(30), "Shared", 100)
    ids = [id_of(item.body.message_id) for item in await consumer.messages(10)]
    consumer.redeliver(*ids[:2])
    equal(payloads(await consumer.messages(2)), [b"m0", b"m1"], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED, needs=("admin",), without=("subscribing",))
async def unacked_of_subscription(broker: Target) -> None:
    """Namespace with maxUnackedMessagesPerSubscription=4; Shared and Key_Shared: FLOW 4 on 12 messages, FLOW
    3; acknowledge 2; acknowledge 1.

    Expected: 4 MESSAGEs; nothing; nothing; 3 MESSAGEs: fewer than half must be left.

    Source: Broker: PersistentDispatcherMultipleConsumers.addUnAckedMessages.
    """
    namespace = await broker.create_namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/maxUnackedMessagesPerSubscription", 4)
    await broker.advance(1)
    topic = await broker.fill(12, f"persistent://{namespace}/t")
    for kind in ("Shared", "Key_Shared"):
        consumer = await broker.subscribe(topic, kind, 4, subscription=kind)
        ids = [item.body.message_id for item in await consumer.messages(4)]
        consumer.flow(3)
        await consumer.expect_nothing()
        await consumer.confirm_ack(*ids[:2])
        await consumer.expect_nothing()
        consumer.ack(ids[2])
        await consumer.messages(3)
        await consumer.expect_nothing()


@case(OBSERVED, needs=("limits", "admin"), without=("subscribing",))
async def unacked_of_skipped(broker: Target) -> None:
    """maxUnackedMessagesPerConsumer=10, Shared and Key_Shared: FLOW 100 on 20 messages; skip_all by the
    admin API, 5 new messages; acknowledge 4 of the first; acknowledge a 5th.

    Expected: 10 MESSAGEs; nothing; nothing; 5 MESSAGEs: what was skipped counts until it is acknowledged.

    Source: Broker: Consumer.
    """
    for kind in ("Shared", "Key_Shared"):
        consumer = await broker.subscribe(topic := await broker.fill(20), kind, 100)
        ids = [item.body.message_id for item in await consumer.messages(10)]
        await broker.rest("POST", f"{admin_path(topic)}/subscription/s/skip_all")
        await broker.fill(5, topic)
        await consumer.expect_nothing()
        await consumer.confirm_ack(*ids[:4])
        await consumer.expect_nothing()
        consumer.ack(ids[4])
        await consumer.messages(5)
