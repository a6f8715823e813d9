"""Limits on producers and consumers, and topics that the broker does not create."""

from __future__ import annotations

from broker.probe import Target, admin_path, case, id_of, payloads, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import ProducerAccessMode, Schema, ServerError


@case("limits/producers_per_topic")
async def producers_per_topic(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await probe.producer(topic, 2)
    await probe.refused("ProducerBusy", "PRODUCER", topic=topic, producer_id=3)


@case("limits/consumers_per_subscription")
async def consumers_per_subscription(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.subscribed(topic, "Shared")
    await probe.subscribe(topic, "Shared", consumer_id=2)
    await probe.refused("ConsumerBusy", "SUBSCRIBE", **subscription(topic, "Shared", 3))


@case("nocreate/producer")
async def no_topic_for_producer(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    await probe.refused("TopicNotFound", "PRODUCER", topic=topic, producer_id=1)


@case("nocreate/subscribe")
async def no_topic_for_consumer(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    await probe.refused("TopicNotFound", "SUBSCRIBE", **subscription(topic))


@case("nocreate/subscription")
async def no_subscription(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await broker.rest("PUT", admin_path(topic))
    await probe.lookup(topic)
    await probe.refused("SubscriptionNotFound", "SUBSCRIBE", **subscription(topic, durable=True))


@case("nocreate/nondurable")
async def nondurable(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", admin_path(topic))
    await broker.subscribed(topic, durable=False)


@case("limits/before_schema")
async def before_schema(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await probe.producer(topic, 2)
    wrong = {"name": "", "type": Schema.Avro, "schema_data": b"{"}
    exclusive = ProducerAccessMode.Value("Exclusive")
    fields = {"topic": topic, "producer_id": 3, "producer_access_mode": exclusive, "schema": wrong}
    body = await probe.request("PRODUCER", "ERROR", **fields)
    assert body.error == ServerError.ProducerBusy
    assert body.message == f"Topic '{topic}' reached max producers limit"


@case("limits/nonpersistent_consumers")
async def nonpersistent_consumers(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    probe = await broker.subscribed(topic, "Shared")
    await probe.subscribe(topic, "Shared", consumer_id=2)
    await probe.refused("ConsumerBusy", "SUBSCRIBE", **subscription(topic, "Shared", 3))


@case("flow/while_blocked")
async def while_blocked(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(30), "Shared", 100)
    ids = [each.body.message_id for each in await consumer.messages(10)]
    consumer.flow(50)
    for permits in (90, 135):
        body = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
        assert body.availablePermits == permits
        if permits == 90:
            consumer.ack(*ids[:5])
            await consumer.messages(5)


@case("limits/redeliver_unblocks")
async def redeliver_unblocks(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(30), "Shared", 100)
    ids = [id_of(each.body.message_id) for each in await consumer.messages(10)]
    consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1, message_ids=ids[:2])
    assert payloads(await consumer.messages(2)) == [b"m0", b"m1"]
    await consumer.nothing()


@case("limits/unacked_of_subscription")
async def unacked_of_subscription(broker: Target) -> None:
    namespace = await broker.namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/maxUnackedMessagesPerSubscription", 4)
    await broker.advance(1)
    topic = await broker.filled(12, f"persistent://{namespace}/t")
    for kind in ("Shared", "Key_Shared"):
        consumer = await broker.subscribed(topic, kind, 4, subscription=kind)
        ids = [each.body.message_id for each in await consumer.messages(4)]
        consumer.flow(3)
        await consumer.nothing()
        await consumer.acked(*ids[:2])
        await consumer.nothing()
        consumer.ack(ids[2])
        await consumer.messages(3)
        await consumer.nothing()


@case("limits/unacked_of_skipped")
async def unacked_of_skipped(broker: Target) -> None:
    for kind in ("Shared", "Key_Shared"):
        consumer = await broker.subscribed(topic := await broker.filled(20), kind, 100)
        ids = [each.body.message_id for each in await consumer.messages(10)]
        await broker.rest("POST", f"{admin_path(topic)}/subscription/s/skip_all")
        await broker.filled(12, topic)
        await consumer.nothing()
        await consumer.acked(*ids[:4])
        await consumer.nothing()
        consumer.ack(ids[4])
        await consumer.messages(5)
