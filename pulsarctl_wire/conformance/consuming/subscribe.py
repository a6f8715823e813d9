"""SUBSCRIBE and CLOSE_CONSUMER, with all types of subscriptions."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal, present, require
from pulsarctl_wire.conformance.basics.frames import make_frame, make_subscription, payloads
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


@case(OBSERVED, without=("subscribing",), since="4.0")
async def key_shared_other_mode(broker: Target) -> None:
    """Key_Shared AUTO_SPLIT consumer live; SUBSCRIBE Key_Shared STICKY.

    Expected: ERROR ConsumerBusy.

    Source: Broker: PersistentSubscription.
    """
    await broker.subscribe(topic := broker.topic(), "Key_Shared")
    probe = await broker.connect()
    meta = {"keySharedMode": 1, "hashRanges": [{"start": 0, "end": 65535}]}
    await probe.look_up(topic)
    fields = make_subscription(topic, "Key_Shared", keySharedMeta=meta)
    await probe.expect_error("ConsumerBusy", "SUBSCRIBE", **fields)


@case(OBSERVED)
async def reserved_names(broker: Target) -> None:
    """SUBSCRIBE of subscriptions pulsar.dedup and pulsar.repl.x.

    Expected: ERROR ProducerBusy.

    Source: Broker: PersistentTopic.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    for number, name in enumerate(("pulsar.dedup", "pulsar.repl.x")):
        fields = make_subscription(topic, consumer_id=number, subscription=name)
        await probe.expect_error("ProducerBusy", "SUBSCRIBE", **fields)


_PAYLOADS = [b"m0", b"m1", b"m2"]


async def _subscribe_by_type(broker: Target, kind: str) -> None:
    consumer = await broker.subscribe(await broker.fill(3), kind)
    if kind == "Failover":
        await broker.advance(1.5)
        await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    await consumer.expect_nothing()
    consumer.flow(10)
    equal(payloads(await consumer.messages(3)), _PAYLOADS, "payloads")
    await consumer.expect_nothing()


@case(MUST)
async def type_exclusive(broker: Target) -> None:
    """SUBSCRIBE, Exclusive at Earliest, to a topic with 3 messages; then FLOW 10.

    Expected: SUCCESS, and nothing before FLOW; then 3 MESSAGEs in order.

    Source: Protocol: Consumer.
    """
    await _subscribe_by_type(broker, "Exclusive")


@case(MUST)
async def type_shared(broker: Target) -> None:
    """SUBSCRIBE, Shared at Earliest, to a topic with 3 messages; then FLOW 10.

    Expected: SUCCESS, and nothing before FLOW; then 3 MESSAGEs in order.

    Source: Protocol: Consumer.
    """
    await _subscribe_by_type(broker, "Shared")


@case(MUST)
async def type_failover(broker: Target) -> None:
    """SUBSCRIBE, Failover at Earliest, to a topic with 3 messages; then FLOW 10.

    Expected: SUCCESS, ACTIVE_CONSUMER_CHANGE {is_active=true}, and nothing more before FLOW; then 3 MESSAGEs
    in order.

    Source: Protocol: Consumer.
    """
    await _subscribe_by_type(broker, "Failover")


@case(MUST, without=("subscribing",))
async def type_key_shared(broker: Target) -> None:
    """SUBSCRIBE, Key_Shared at Earliest, to a topic with 3 messages; then FLOW 10.

    Expected: SUCCESS, and nothing before FLOW; then 3 MESSAGEs in order.

    Source: Protocol: Consumer.
    """
    await _subscribe_by_type(broker, "Key_Shared")


@case(SHOULD)
async def message_fields(broker: Target) -> None:
    """SUBSCRIBE and FLOW on a topic with a message.

    Expected: A MESSAGE whose message_id has ledgerId, entryId, partition=-1 (present), no batch_index;
    redelivery_count absent; ack_set empty; consumer_epoch absent; a valid CRC.

    Source: Common: Commands; broker: PulsarCommandSenderImpl.
    """
    consumer = await broker.subscribe(await broker.fill(1), permits=10)
    (message,) = await consumer.messages(1)
    body = message.body
    present(body.message_id, "partition")
    equal(body.message_id.partition, -1, "partition")
    absent(body.message_id, "batch_index")
    absent(body, "redelivery_count")
    absent(body, "consumer_epoch")
    require(not body.ack_set, "no ack_set", body.ack_set)
    equal(message.checksum, "valid", "checksum")


@case(SHOULD, needs=("admin",))
async def partition_in_message_id(broker: Target) -> None:
    """SUBSCRIBE to <topic>-partition-2.

    Expected: MESSAGE.message_id.partition=2.

    Source: Broker: Consumer.
    """
    topic = await broker.fill(1, f"{await broker.create_partitions(3)}-partition-2")
    consumer = await broker.subscribe(topic, permits=10)
    (message,) = await consumer.messages(1)
    equal(message.body.message_id.partition, 2, "partition")


@case(MUST, since="3.3")
async def second_exclusive(broker: Target) -> None:
    """An Exclusive consumer is live; another connection sends SUBSCRIBE, Exclusive.

    Expected: ERROR ConsumerBusy within 1 s; the first connection gets a PING.

    Source: Protocol: Consumer; broker: PersistentSubscription.
    """
    first = await broker.subscribe(topic := broker.topic())
    second = await broker.connect()
    await second.look_up(topic)
    pings = first.pings
    number = second.start("SUBSCRIBE", **make_subscription(topic))
    answer = await second.expect("ERROR", within=2, request_id=number)
    equal(answer.body.error, ServerError.ConsumerBusy, "error")
    require(first.pings > pings, "PING on the first connection", first.pings - pings)


@case(OBSERVED, since="3.3")
async def exclusive_dead_conn(broker: Target) -> None:
    """An Exclusive consumer is live, but its client does not answer PING; another connection sends
    SUBSCRIBE, Exclusive.

    Expected: The first connection is closed 5 s (±1 s) later; then SUCCESS for the second.

    Source: Broker: ServerCnx.checkConnectionLiveness.
    """
    broker.require_keepalive(7)
    first = await broker.subscribe(topic := broker.topic())
    first.answers_pings = False
    second = await broker.connect()
    await second.look_up(topic)
    number = second.start("SUBSCRIBE", **make_subscription(topic))
    await broker.advance(3.5)
    await first.expect_nothing()
    await second.expect_nothing(0)
    await broker.advance(2)
    await first.expect_close(1)
    await second.expect("SUCCESS", within=1, request_id=number)


@case(OBSERVED)
async def same_id_again(broker: Target) -> None:
    """SUBSCRIBE consumer_id=1 twice (new request_id).

    Expected: SUCCESS twice; permits of the first FLOW survive: the repeat does not re-create.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    consumer = await broker.subscribe(topic := broker.topic(), permits=1)
    await consumer.subscribe(topic)
    producer = await broker.produce(topic)
    await producer.publish_all(b"m0", b"m1")
    equal(payloads(await consumer.messages(1)), [b"m0"], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED)
async def two_requests_pending(broker: Target) -> None:
    """Two SUBSCRIBEs (request_id 51 and 52) with the same consumer_id to a new topic, in one write.

    Expected: ERROR {request_id=52, error=ServiceNotReady}, SUCCESS {request_id=51}; or SUCCESS twice, if the
    first was already done.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    fields = make_subscription(topic)
    consumer.send(
        make_frame("SUBSCRIBE", request_id=51, **fields) + make_frame("SUBSCRIBE", request_id=52, **fields)
    )
    answers = [await consumer.next(), await consumer.next()]
    outcomes = [(item.command, item.body.request_id) for item in answers]
    if outcomes != [("SUCCESS", 51), ("SUCCESS", 52)]:
        equal(outcomes, [("ERROR", 52), ("SUCCESS", 51)], "answers")
        equal(answers[0].body.error, ServerError.ServiceNotReady, "error")


@case(OBSERVED)
async def same_id_other_topic(broker: Target) -> None:
    """SUBSCRIBE consumer_id=1 on topic A, then consumer_id=1 on topic B.

    Expected: SUCCESS; messages of B never come (still on A).

    Source: Broker: ServerCnx.handleSubscribe.
    """
    consumer = await broker.subscribe(first := broker.topic(), permits=10)
    await consumer.subscribe(other := await broker.fill(1))
    consumer.flow(10)
    await consumer.expect_nothing()
    for topic, payload in ((other, b"other"), (first, b"one")):
        producer = await broker.produce(topic)
        await producer.publish_all(payload)
    equal(payloads(await consumer.messages(1)), [b"one"], "payloads")
    await consumer.expect_nothing()


@case(SHOULD)
async def initial_ignored_when_exists(broker: Target) -> None:
    """Subscription created at Latest, closed; SUBSCRIBE again with Earliest.

    Expected: Old messages are not delivered.

    Source: Broker: PersistentTopic.
    """
    consumer = await broker.subscribe(topic := await broker.fill(2), initialPosition=0)
    await consumer.resubscribe(topic)
    await consumer.expect_nothing()
    await (await broker.produce(topic)).publish_all(b"later")
    equal(payloads(await consumer.messages(1)), [b"later"], "payloads")


async def _expect_invalid(broker: Target, topic: str) -> None:
    consumer = await broker.connect()
    await consumer.expect_error("InvalidTopicName", "SUBSCRIBE", **make_subscription(topic))
    await consumer.expect_pong()


@case(OBSERVED)
async def bad_topic_empty(broker: Target) -> None:
    """SUBSCRIBE {topic='', subscription='s'}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.
    """
    await _expect_invalid(broker, "")


@case(OBSERVED)
async def bad_topic_domain(broker: Target) -> None:
    """SUBSCRIBE {topic='foo://public/default/x', subscription='s'}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.
    """
    await _expect_invalid(broker, "foo://public/default/x")


@case(OBSERVED)
async def bad_subscription_empty(broker: Target) -> None:
    """SUBSCRIBE {topic=valid, subscription=''}.

    Expected: ERROR ProducerBusy; the connection stays open.

    Source: Broker: ServerCnx.
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    await consumer.expect_error("ProducerBusy", "SUBSCRIBE", **make_subscription(topic, subscription=""))
    await consumer.expect_pong()


@case(OBSERVED, without=("subscribing",))
async def odd_subscription_names(broker: Target) -> None:
    """Subscription names 'a/b', 'a b', 'ü', '%'.

    Expected: SUCCESS each.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    consumer = await broker.connect()
    topic = broker.topic()
    for number, name in enumerate(("a/b", "a b", "ü", "%"), 1):
        await consumer.subscribe(topic, consumer_id=number, subscription=name)


@case(SHOULD)
async def read_compacted_shared(broker: Target) -> None:
    """SUBSCRIBE read_compacted=true subType=Shared.

    Expected: ERROR NotAllowedError.

    Source: Broker: PersistentTopic.
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    await consumer.expect_error(
        "NotAllowedError", "SUBSCRIBE", **make_subscription(topic, "Shared", read_compacted=True)
    )


@case(SHOULD)
async def read_compacted_exclusive(broker: Target) -> None:
    """SUBSCRIBE read_compacted=true subType=Exclusive Earliest on 2 messages never compacted.

    Expected: SUCCESS, both delivered.

    Source: Broker: PersistentTopic.
    """
    consumer = await broker.subscribe(await broker.fill(2), permits=10, read_compacted=True)
    equal(payloads(await consumer.messages(2)), [b"m0", b"m1"], "payloads")


@case(SHOULD)
async def no_force_creation(broker: Target) -> None:
    """SUBSCRIBE force_topic_creation=false on a topic that does not exist.

    Expected: ERROR TopicNotFound.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    await consumer.expect_error(
        "TopicNotFound", "SUBSCRIBE", **make_subscription(topic, force_topic_creation=False)
    )


@case(OBSERVED)
async def rollback_duration(broker: Target) -> None:
    """3 messages stored, SUBSCRIBE new durable sub with start_message_rollback_duration_sec=3600 (Latest).

    Expected: All 3 delivered.

    Source: Broker: PersistentTopic.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(*_PAYLOADS, meta_publish_time=broker.now_ms())
    fields = {"initialPosition": 0, "start_message_rollback_duration_sec": 3600}
    consumer = await broker.subscribe(topic, "Exclusive", 10, **fields)
    equal(payloads(await consumer.messages(3)), _PAYLOADS, "payloads")


@case(OBSERVED)
async def close_unknown_id(broker: Target) -> None:
    """CLOSE_CONSUMER {consumer_id=99}.

    Expected: SUCCESS.

    Source: Broker: ServerCnx.handleCloseConsumer.
    """
    consumer = await broker.connect()
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=99)


@case(MUST)
async def close_then_redelivered(broker: Target) -> None:
    """3 unacknowledged messages, CLOSE_CONSUMER; SUBSCRIBE again, FLOW.

    Expected: SUCCESS; the same 3 messages again, redelivery_count absent.

    Source: Protocol: Consumer.
    """
    consumer = await broker.subscribe(topic := await broker.fill(3), permits=10)
    await consumer.messages(3)
    await consumer.resubscribe(topic)
    redeliveries = await consumer.messages(3)
    equal(payloads(redeliveries), _PAYLOADS, "payloads")
    for message in redeliveries:
        absent(message.body, "redelivery_count")


@case(OBSERVED, since="4.0")
async def other_type_named(broker: Target) -> None:
    """Shared consumer live; SUBSCRIBE Failover.

    Expected: ERROR ConsumerBusy 'Subscription is of different type. Active subscription type of 'Shared' is
    different than the connecting consumer's type 'Failover'.'.

    Source: Broker: AbstractSubscription.
    """
    await broker.subscribe(topic := broker.topic(), "Shared")
    probe = await broker.connect()
    await probe.look_up(topic)
    body = await probe.expect_error("ConsumerBusy", "SUBSCRIBE", **make_subscription(topic, "Failover"))
    equal(
        body.message,
        "Subscription is of different type. Active subscription type of 'Shared' is different "
        "than the connecting consumer's type 'Failover'.",
        "message",
    )


@case(OBSERVED, since="3.3")
async def closed_while_opening(broker: Target) -> None:
    """Exclusive consumer live, its client silent; on another connection SUBSCRIBE, CLOSE_CONSUMER and
    SUBSCRIBE with one id.

    Expected: SUCCESS to CLOSE_CONSUMER; ERROR UnknownError to the second SUBSCRIBE, nothing to the first.

    Source: Broker: ServerCnx.handleSubscribe.
    """
    broker.require_keepalive(7)
    first = await broker.subscribe(topic := broker.topic())
    first.answers_pings = False
    probe = await broker.connect()
    await probe.look_up(topic)
    probe.start("SUBSCRIBE", **make_subscription(topic))
    await broker.settle()
    await probe.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    await probe.expect_error("UnknownError", "SUBSCRIBE", **make_subscription(topic))
    await broker.advance(6)
    await probe.expect_nothing()


@case(SHOULD, needs=("admin",))
async def types_of_namespace(broker: Target) -> None:
    """Namespace with subscriptionTypesEnabled [Shared]: SUBSCRIBE Shared, Failover.

    Expected: SUCCESS; ERROR NotAllowedError.

    Source: Broker: AbstractTopic.
    """
    namespace = await broker.create_namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/subscriptionTypesEnabled", ["Shared"])
    topic = f"persistent://{namespace}/t"
    await broker.advance(1)
    probe = await broker.subscribe(topic, "Shared")
    other = make_subscription(topic, "Failover", 2, subscription="f")
    await probe.expect_error("NotAllowedError", "SUBSCRIBE", **other)
