"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

import re
from zlib import crc32

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import absent, equal, require
from pulsarctl_wire.conformance.basics.frames import make_frame, make_send, make_subscription, payloads
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


@case(SHOULD)
async def initial_subscription(broker: Target) -> None:
    """PRODUCER with initial_subscription_name=i on a new topic, one message; SUBSCRIBE i (Latest), FLOW.

    Expected: The message.

    Source: Broker: ServerCnx.handleProducer.
    """
    producer = await broker.produce(topic := broker.topic(), initial_subscription_name="i")
    await producer.publish_all(b"kept")
    consumer = await broker.subscribe(topic, permits=10, subscription="i", initialPosition=0)
    equal(payloads(await consumer.messages(1)), [b"kept"], "payloads")


_EXCEPTION = "org.apache.pulsar.broker.service.BrokerServiceException$"


@case(MUST)
async def create(broker: Target) -> None:
    """PRODUCER {topic, producer_id=1, producer_name=p}.

    Expected: PRODUCER_SUCCESS {producer_name=p, last_sequence_id=-1, schema_version='' (present, empty),
    producer_ready=true, topic_epoch absent}.

    Source: Protocol: Producer.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    number = probe.start("PRODUCER", topic=topic, producer_id=1, producer_name="p")
    success = await probe.expect(
        "PRODUCER_SUCCESS",
        request_id=number,
        producer_name="p",
        last_sequence_id=-1,
        schema_version=b"",
        producer_ready=True,
    )
    absent(success.body, "topic_epoch")


@case(MUST)
async def generated_name(broker: Target) -> None:
    """PRODUCER without producer_name, two ids.

    Expected: PRODUCER_SUCCESS with two different generated names '<cluster>-<n>-<m>' (standalone-0-5).

    Source: Protocol: Producer.
    """
    probe, topic = await broker.connect(), broker.topic()
    names = [(await probe.create_producer(topic, number)).producer_name for number in (1, 2)]
    require(names[0] != names[1], "two different names", names)
    is_usual = all(re.fullmatch(r".+-\d+-\d+", name) for name in names)
    require(is_usual, "names of a cluster and two numbers", names)


@case(OBSERVED)
async def empty_name(broker: Target) -> None:
    """PRODUCER with producer_name=''.

    Expected: PRODUCER_SUCCESS {producer_name=''}: an empty name is registered as such, a second '' is
    ProducerBusy.

    Source: Broker: ServerCnx.handleProducer.
    """
    probe, topic = await broker.connect(), broker.topic()
    success = await probe.create_producer(topic, producer_name="")
    equal(success.producer_name, "", "producer_name")
    await probe.expect_error("ProducerBusy", "PRODUCER", topic=topic, producer_id=2, producer_name="")


@case(OBSERVED)
async def same_id_again(broker: Target) -> None:
    """PRODUCER id=1 name=p, after SEND seq 7; same PRODUCER again with a new request_id.

    Expected: PRODUCER_SUCCESS, same name, last_sequence_id=-1.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    await probe.publish_all(b"m", first=7)
    fields = {"topic": topic, "producer_id": 1, "producer_name": "p"}
    number = probe.start("PRODUCER", **fields)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_name="p", last_sequence_id=-1)


@case(OBSERVED)
async def same_id_other_topic(broker: Target) -> None:
    """PRODUCER id=1 on topic A, then id=1 on topic B with name q.

    Expected: PRODUCER_SUCCESS {producer_name = A's name}; SENDs keep going to A.

    Source: Broker: ServerCnx.handleProducer.
    """
    first, other = broker.topic(), broker.topic()
    probe = await broker.produce(first)
    first_consumer = await broker.subscribe(first, permits=10)
    other_consumer = await broker.subscribe(other, permits=10)
    name = (await probe.create_producer(first)).producer_name
    equal((await probe.create_producer(other, producer_name="q")).producer_name, name, "producer_name")
    await probe.publish_all(b"m")
    equal(payloads(await first_consumer.messages(1)), [b"m"], "payloads")
    await other_consumer.expect_nothing()


@case(MUST)
async def name_taken_same_conn(broker: Target) -> None:
    """PRODUCER with producer_id=1, producer_name=p, then with producer_id=2 and the same name on the same
    connection.

    Expected: ERROR ProducerBusy at once.

    Source: Protocol: Producer (name unique per topic).
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    await probe.expect_error("ProducerBusy", "PRODUCER", topic=topic, producer_id=2, producer_name="p")


@case(OBSERVED, since="3.3")
async def name_taken_dead_conn(broker: Target) -> None:
    """PRODUCER with the name of a producer on another connection, whose client does not answer PING.

    Expected: The other connection is closed 5 s (±1 s) after the PING; then PRODUCER_SUCCESS.

    Source: Broker: ServerCnx.checkConnectionLiveness.
    """
    broker.require_keepalive(7)
    topic = broker.topic()
    dead = await broker.produce(topic, producer_name="p")
    dead.answers_pings = False
    probe = await broker.connect()
    await probe.look_up(topic)
    number = probe.start("PRODUCER", topic=topic, producer_id=1, producer_name="p")
    await dead.until(lambda: dead.pings, "PING on the other connection")
    await broker.advance(4)
    equal(dead.closed.done(), False, "whether the other connection has ended")
    await probe.expect_nothing()
    await broker.advance(2)
    await dead.expect_close()
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_name="p")


@case(MUST)
async def name_free_after_close(broker: Target) -> None:
    """PRODUCER p, CLOSE_PRODUCER, PRODUCER p with another id.

    Expected: SUCCESS, then PRODUCER_SUCCESS.

    Source: Protocol: Producer.
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.create_producer(topic, 2, producer_name="p")


@case(MUST, since="3.0")
async def name_free_after_disconnect(broker: Target) -> None:
    """Connection 1 with producer p is closed by the client; connection 2 opens p.

    Expected: PRODUCER_SUCCESS.

    Source: Protocol: Producer.
    """
    topic = broker.topic()
    first = await broker.produce(topic, producer_name="p")
    probe = await broker.connect()
    await first.close()
    await probe.create_producer(topic, producer_name="p")


@case(OBSERVED)
async def close_unknown_id(broker: Target) -> None:
    """CLOSE_PRODUCER {producer_id=99}.

    Expected: SUCCESS.

    Source: Broker: ServerCnx.handleCloseProducer.
    """
    probe = await broker.connect()
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=99)


@case(MUST)
async def close_with_pending(broker: Target) -> None:
    """SEND x20 and CLOSE_PRODUCER written together.

    Expected: 20 SEND_RECEIPT, then SUCCESS.

    Source: Broker: Producer.close (waits for pending).
    """
    probe = await broker.produce(broker.topic())
    close = make_frame("CLOSE_PRODUCER", producer_id=1, request_id=50)
    probe.send(b"".join(map(make_send, range(20))) + close)
    for number in range(20):
        await probe.expect("SEND_RECEIPT", sequence_id=number)
    await probe.expect("SUCCESS", request_id=50)


@case(OBSERVED)
async def short_topic_name(broker: Target) -> None:
    """PRODUCER {topic='<bare name>'}.

    Expected: PRODUCER_SUCCESS; the topic is persistent://public/default/<name>.

    Source: Common: TopicName.
    """
    name = broker.name()
    probe = await broker.produce(name)
    await probe.publish_all(b"m")
    consumer = await broker.subscribe(f"persistent://public/default/{name}", permits=10)
    equal(payloads(await consumer.messages(1)), [b"m"], "payloads")


async def _expect_invalid(broker: Target, topic: str) -> None:
    probe = await broker.connect()
    await probe.expect_error("InvalidTopicName", "PRODUCER", topic=topic, producer_id=1)
    await probe.expect_pong()


@case(SHOULD)
async def bad_topic_empty(broker: Target) -> None:
    """PRODUCER {topic=''}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.validateTopicName.
    """
    await _expect_invalid(broker, "")


@case(SHOULD)
async def bad_topic_no_local(broker: Target) -> None:
    """PRODUCER {topic='persistent://public/default/'}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.validateTopicName.
    """
    await _expect_invalid(broker, "persistent://public/default/")


@case(SHOULD)
async def bad_topic_no_namespace(broker: Target) -> None:
    """PRODUCER {topic='persistent://public/x'}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.validateTopicName.
    """
    await _expect_invalid(broker, "persistent://public/x")


@case(SHOULD)
async def bad_topic_tenant_chars(broker: Target) -> None:
    """PRODUCER {topic='persistent://pu blic/default/x'}.

    Expected: ERROR InvalidTopicName; the connection stays open.

    Source: Broker: ServerCnx.validateTopicName.
    """
    await _expect_invalid(broker, "persistent://pu blic/default/x")


@case(OBSERVED)
async def v1_topic_name(broker: Target) -> None:
    """LOOKUP then PRODUCER on persistent://public/standalone/default/<name> (four parts:
    tenant/cluster/namespace/name).

    Expected: LOOKUP_RESPONSE Connect, PRODUCER_SUCCESS.

    Source: Common: TopicName.
    """
    await broker.produce(f"persistent://public/standalone/default/{broker.name()}")


@case(OBSERVED, since="3.3")
async def no_such_namespace(broker: Target) -> None:
    """LOOKUP then PRODUCER on persistent://public/<new namespace>/t.

    Expected: LOOKUP_RESPONSE Failed TopicNotFound; PRODUCER ERROR ServiceNotReady.

    Source: Broker: ServerCnx.handleProducer.
    """
    probe, topic = await broker.connect(), f"persistent://public/{broker.name('n')}/t"
    number = probe.start("LOOKUP", topic=topic, authoritative=False)
    error = ServerError.TopicNotFound
    answer = (await probe.expect("LOOKUP_RESPONSE", request_id=number, error=error)).body
    equal(answer.response, answer.Failed, "response")
    await probe.expect_error("ServiceNotReady", "PRODUCER", topic=topic, producer_id=1)


def _find_unowned(namespace: str) -> str:
    """Return a topic in a bundle that no broker owns yet.

    Of the 4 bundles, the one with the topic policies is owned: a broker looks them up by itself.
    """

    def find_bundle(topic: str) -> int:
        return crc32(topic.encode()) >> 30

    start = f"persistent://{namespace}/"
    names = (f"{start}t{item}" for item in range(100))
    return next(name for name in names if find_bundle(name) != find_bundle(f"{start}__change_events"))


@case(MUST, needs=("admin",))
async def not_looked_up(broker: Target) -> None:
    """Fresh namespace: PRODUCER as first command, no LOOKUP ever.

    Expected: ERROR ServiceNotReady; after a LOOKUP the same PRODUCER succeeds.

    Source: Broker: BrokerService.
    """
    topic = _find_unowned(await broker.create_namespace())
    probe = await broker.connect()
    await probe.expect_error("ServiceNotReady", "PRODUCER", topic=topic, producer_id=1)
    await broker.settle()  # a real broker may need a moment until the producer's id is free again
    await probe.look_up(topic)
    await probe.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=1)


@case(OBSERVED, needs=("admin",))
async def partitioned_parent(broker: Target) -> None:
    """Partitioned topic of 3 (by the admin API); LOOKUP and PRODUCER on the parent name, SEND.

    Expected: PRODUCER_SUCCESS, SEND_RECEIPT: the broker does not refuse; a consumer of the parent name gets
    the message, the partitions do not.

    Source: Broker: ServerCnx.handleProducer.
    """
    topic = await broker.create_partitions(3)
    partitions = [await broker.subscribe(f"{topic}-partition-{item}", permits=10) for item in range(3)]
    probe = await broker.produce(topic)
    await probe.publish_all(b"m")
    parent = await broker.subscribe(topic, permits=10)
    equal(payloads(await parent.messages(1)), [b"m"], "payloads")
    for consumer in partitions:
        await consumer.expect_nothing()


@case(OBSERVED)
async def create_and_close_together(broker: Target) -> None:
    """PRODUCER (request_id 51) on a new topic and CLOSE_PRODUCER (request_id 52) of the same producer_id, in
    one write.

    Expected: SUCCESS {request_id=52} only: the pending PRODUCER is dropped without an answer.

    Source: Broker: ServerCnx.handleCloseProducer.
    """
    probe, topic = await broker.connect(), broker.topic()
    await probe.look_up(topic)
    create = make_frame("PRODUCER", topic=topic, producer_id=1, request_id=51)
    probe.send(create + make_frame("CLOSE_PRODUCER", producer_id=1, request_id=52))
    await probe.expect("SUCCESS", request_id=52)
    await probe.expect_nothing()


@case(OBSERVED)
async def metadata(broker: Target) -> None:
    """PRODUCER with metadata [k=v], encrypted=false, user_provided_producer_name=false.

    Expected: PRODUCER_SUCCESS.

    Source: Broker: ServerCnx.handleProducer.
    """
    fields = {"metadata": [{"key": "k", "value": "v"}], "encrypted": False}
    await broker.produce(broker.topic(), user_provided_producer_name=False, **fields)


@case(OBSERVED, since="3.3")
async def name_taken_text(broker: Target) -> None:
    """PRODUCER p where p is connected.

    Expected: ERROR ProducerBusy, its message is '…BrokerServiceException$NamingException: Producer with name
    'p' is already connected to topic '<full name>''.

    Source: Broker: AbstractTopic.
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    body = await probe.expect_error("ProducerBusy", "PRODUCER", topic=topic, producer_id=2, producer_name="p")
    text = f"Producer with name 'p' is already connected to topic '{topic}'"
    equal(body.message, f"{_EXCEPTION}NamingException: {text}", "message")


@case(OBSERVED, since="3.3")
async def bad_topic_blank(broker: Target) -> None:
    """PRODUCER, LOOKUP with topic='persistent://public/default/ '.

    Expected: InvalidTopicName, its message ends in 'Topic local name must not be blank.'.

    Source: Common: TopicName.
    """
    probe, topic = await broker.connect(), "persistent://public/default/ "
    text = f"Invalid topic name: Invalid topic name: {topic}. Topic local name must not be blank."
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    equal((body.error, body.message), (ServerError.InvalidTopicName, text), "error, message")
    body = await probe.expect_error("InvalidTopicName", "PRODUCER", topic=topic, producer_id=1)
    equal((body.error, body.message), (ServerError.InvalidTopicName, text), "error, message")


@case(SHOULD, needs=("admin",), since="3.3")
async def initial_subscription_refused(broker: Target) -> None:
    """A namespace with autoSubscriptionCreation off: PRODUCER with initial_subscription_name=i, then
    SUBSCRIBE to s.

    Expected: ERROR NotAllowedError; ERROR SubscriptionNotFound.

    Source: Broker: ServerCnx.handleProducer.
    """
    namespace = await broker.create_namespace()
    path = f"/admin/v2/namespaces/{namespace}/autoSubscriptionCreation"
    await broker.rest("POST", path, {"allowAutoSubscriptionCreation": False})
    topic, probe = f"persistent://{namespace}/t", await broker.connect()
    await probe.look_up(topic)
    fields = {"topic": topic, "producer_id": 1, "initial_subscription_name": "i"}
    await probe.expect_error("NotAllowedError", "PRODUCER", **fields)
    await probe.expect_error("SubscriptionNotFound", "SUBSCRIBE", **make_subscription(topic))


@case(OBSERVED, since="4.0")
async def not_served_text(broker: Target) -> None:
    """Unknown namespace: PRODUCER, for both domains.

    Expected: ERROR ServiceNotReady, its message names the bundle; for non-persistent it begins with the
    exception's class.

    Source: Broker: BrokerService.
    """
    namespace, probe = f"public/{broker.name('n')}", await broker.connect()
    for number, domain, prefix in (
        (1, "persistent", ""),
        (2, "non-persistent", f"{_EXCEPTION}ServiceUnitNotReadyException: "),
    ):
        topic = f"{domain}://{namespace}/t"
        body = await probe.expect_error("ServiceNotReady", "PRODUCER", topic=topic, producer_id=number)
        bundle = f"{prefix}Namespace bundle ({namespace}/0x00000000_0xffffffff)"
        first, last = (
            f"{bundle} for topic ({topic}) not served by this instance:",
            ". Please redo the lookup.",
        )
        is_usual = body.message.startswith(first) and body.message.endswith(last)
        require(is_usual, f"{first} …{last}", body.message)


@case(OBSERVED)
async def internal_topic(broker: Target) -> None:
    """PRODUCER on a topic whose name ends in __transaction_pending_ack.

    Expected: ERROR NotAllowedError.

    Source: Broker: BrokerService.
    """
    topic, probe = f"{broker.topic()}__transaction_pending_ack", await broker.connect()
    await probe.look_up(topic)
    body = await probe.expect_error("NotAllowedError", "PRODUCER", topic=topic, producer_id=1)
    equal(body.error, ServerError.NotAllowedError, "error")
    equal(body.message, f"Can not create transaction system topic {topic}", "message")
