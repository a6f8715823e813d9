"""PRODUCER and CLOSE_PRODUCER."""

from __future__ import annotations

import re
from zlib import crc32

from broker.probe import Target, case, frame, payloads, sent, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

EXCEPTION = "org.apache.pulsar.broker.service.BrokerServiceException$"


@case("producer/create")
async def create(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    number = probe.start("PRODUCER", topic=topic, producer_id=1, producer_name="p")
    success = await probe.expect(
        "PRODUCER_SUCCESS",
        request_id=number,
        producer_name="p",
        last_sequence_id=-1,
        schema_version=b"",
        producer_ready=True,
    )
    assert not success.body.HasField("topic_epoch"), success.body


@case("producer/generated_name")
async def generated_name(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    names = [(await probe.producer(topic, number)).producer_name for number in (1, 2)]
    assert names[0] != names[1]
    assert all(re.fullmatch(r".+-\d+-\d+", name) for name in names), names


@case("producer/empty_name")
async def empty_name(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    success = await probe.producer(topic, producer_name="")
    assert success.producer_name == ""
    await probe.refused("ProducerBusy", "PRODUCER", topic=topic, producer_id=2, producer_name="")


@case("producer/same_id_again")
async def same_id_again(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    await probe.publish_all(b"m", first=7)
    fields = {"topic": topic, "producer_id": 1, "producer_name": "p"}
    number = probe.start("PRODUCER", **fields)
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_name="p", last_sequence_id=-1)


@case("producer/same_id_other_topic")
async def same_id_other_topic(broker: Target) -> None:
    first, other = broker.topic(), broker.topic()
    probe = await broker.producing(first)
    of_first = await broker.subscribed(first, permits=10)
    of_other = await broker.subscribed(other, permits=10)
    name = (await probe.producer(first)).producer_name
    assert (await probe.producer(other, producer_name="q")).producer_name == name
    await probe.publish_all(b"m")
    assert payloads(await of_first.messages(1)) == [b"m"]
    await of_other.nothing()


@case("producer/name_taken_same_conn")
async def name_taken_same_connection(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    await probe.refused("ProducerBusy", "PRODUCER", topic=topic, producer_id=2, producer_name="p")


@case("producer/name_taken_dead_conn")
async def name_taken_dead_connection(broker: Target) -> None:
    topic = broker.topic()
    dead = await broker.producing(topic, producer_name="p")
    dead.answers_pings = False
    probe = await broker.connected()
    await probe.lookup(topic)
    number = probe.start("PRODUCER", topic=topic, producer_id=1, producer_name="p")
    await dead.until(lambda: dead.pings)
    await broker.advance(4)
    assert not dead.closed.done()
    await probe.nothing()
    await broker.advance(2)
    await dead.closes()
    await probe.expect("PRODUCER_SUCCESS", request_id=number, producer_name="p")


@case("producer/name_free_after_close")
async def name_free_after_close(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    await probe.producer(topic, 2, producer_name="p")


@case("producer/name_free_after_disconnect")
async def name_free_after_disconnect(broker: Target) -> None:
    topic = broker.topic()
    before = await broker.producing(topic, producer_name="p")
    probe = await broker.connected()
    await before.close()
    await probe.producer(topic, producer_name="p")


@case("producer/close_unknown_id")
async def close_unknown_id(broker: Target) -> None:
    probe = await broker.connected()
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=99)


@case("producer/close_with_pending")
async def close_with_pending(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    close = frame("CLOSE_PRODUCER", producer_id=1, request_id=50)
    probe.send(b"".join(map(sent, range(20))) + close)
    for number in range(20):
        await probe.expect("SEND_RECEIPT", sequence_id=number)
    await probe.expect("SUCCESS", request_id=50)


@case("producer/short_topic_name")
async def short_topic_name(broker: Target) -> None:
    name = broker.name()
    probe = await broker.producing(name)
    await probe.publish_all(b"m")
    consumer = await broker.subscribed(f"persistent://public/default/{name}", permits=10)
    assert payloads(await consumer.messages(1)) == [b"m"]


@case("producer/bad_topic_empty", "")
@case("producer/bad_topic_no_local", "persistent://public/default/")
@case("producer/bad_topic_no_namespace", "persistent://public/x")
@case("producer/bad_topic_tenant_chars", "persistent://pu blic/default/x")
async def bad_topic(broker: Target, topic: str) -> None:
    probe = await broker.connected()
    await probe.refused("InvalidTopicName", "PRODUCER", topic=topic, producer_id=1)
    await probe.stays_open()


@case("producer/v1_topic_name")
async def v1_topic_name(broker: Target) -> None:
    await broker.producing(f"persistent://public/standalone/default/{broker.name()}")


@case("producer/no_such_namespace")
async def no_such_namespace(broker: Target) -> None:
    probe, topic = await broker.connected(), f"persistent://public/{broker.name('n')}/t"
    number = probe.start("LOOKUP", topic=topic, authoritative=False)
    error = ServerError.Value("TopicNotFound")
    answer = (await probe.expect("LOOKUP_RESPONSE", request_id=number, error=error)).body
    assert answer.response == answer.Failed, answer
    await probe.refused("ServiceNotReady", "PRODUCER", topic=topic, producer_id=1)


def not_yet_owned(namespace: str) -> str:
    """A topic in another of the 4 bundles than the one with the topic policies, which a broker looks up."""

    def bundle(topic: str) -> int:
        return crc32(topic.encode()) >> 30

    start = f"persistent://{namespace}/"
    names = (f"{start}t{each}" for each in range(100))
    return next(name for name in names if bundle(name) != bundle(f"{start}__change_events"))


@case("producer/not_looked_up")
async def not_looked_up(broker: Target) -> None:
    topic = not_yet_owned(await broker.namespace())
    probe = await broker.connected()
    await probe.refused("ServiceNotReady", "PRODUCER", topic=topic, producer_id=1)
    await broker.settle()  # a real broker may need a moment until the producer's id is free again
    await probe.lookup(topic)
    await probe.request("PRODUCER", "PRODUCER_SUCCESS", topic=topic, producer_id=1)


@case("producer/partitioned_parent")
async def partitioned_parent(broker: Target) -> None:
    topic = await broker.partitioned(3)
    partitions = [await broker.subscribed(f"{topic}-partition-{each}", permits=10) for each in range(3)]
    probe = await broker.producing(topic)
    await probe.publish_all(b"m")
    parent = await broker.subscribed(topic, permits=10)
    assert payloads(await parent.messages(1)) == [b"m"]
    for consumer in partitions:
        await consumer.nothing()


@case("producer/create_and_close_together")
async def create_and_close_together(broker: Target) -> None:
    probe, topic = await broker.connected(), broker.topic()
    await probe.lookup(topic)
    create = frame("PRODUCER", topic=topic, producer_id=1, request_id=51)
    probe.send(create + frame("CLOSE_PRODUCER", producer_id=1, request_id=52))
    await probe.expect("SUCCESS", request_id=52)
    await probe.nothing()


@case("producer/metadata")
async def with_metadata(broker: Target) -> None:
    fields = {"metadata": [{"key": "k", "value": "v"}], "encrypted": False}
    await broker.producing(broker.topic(), user_provided_producer_name=False, **fields)


@case("producer/name_taken_text")
async def name_taken_text(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=2, producer_name="p")
    text = f"Producer with name 'p' is already connected to topic '{topic}'"
    assert body.message == f"{EXCEPTION}NamingException: {text}"


@case("producer/bad_topic_blank")
async def blank_topic(broker: Target) -> None:
    probe, topic = await broker.connected(), "persistent://public/default/ "
    text = f"Invalid topic name: Invalid topic name: {topic}. Topic local name must not be blank."
    body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=topic)
    assert (body.error, body.message) == (ServerError.InvalidTopicName, text)
    body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
    assert (body.error, body.message) == (ServerError.InvalidTopicName, text)


@case("producer/initial_subscription_refused")
async def initial_subscription_refused(broker: Target) -> None:
    namespace = await broker.namespace()
    path = f"/admin/v2/namespaces/{namespace}/autoSubscriptionCreation"
    await broker.rest("POST", path, {"allowAutoSubscriptionCreation": False})
    topic, probe = f"persistent://{namespace}/t", await broker.connected()
    await probe.lookup(topic)
    fields = {"topic": topic, "producer_id": 1, "initial_subscription_name": "i"}
    await probe.refused("NotAllowedError", "PRODUCER", **fields)
    await probe.refused("SubscriptionNotFound", "SUBSCRIBE", **subscription(topic))


@case("producer/not_served_text")
async def not_served_text(broker: Target) -> None:
    namespace, probe = f"public/{broker.name('n')}", await broker.connected()
    for domain, begin in (
        ("persistent", ""),
        ("non-persistent", f"{EXCEPTION}ServiceUnitNotReadyException: "),
    ):
        topic = f"{domain}://{namespace}/t"
        body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
        bundle = f"{begin}Namespace bundle ({namespace}/0x00000000_0xffffffff)"
        assert body.message.startswith(f"{bundle} for topic ({topic}) not served by this instance:")
        assert body.message.endswith(". Please redo the lookup.")


@case("producer/internal_topic")
async def internal_topic(broker: Target) -> None:
    topic, probe = f"{broker.topic()}__transaction_pending_ack", await broker.connected()
    await probe.lookup(topic)
    body = await probe.request("PRODUCER", "ERROR", topic=topic, producer_id=1)
    assert body.error == ServerError.NotAllowedError
    assert body.message == f"Can not create transaction system topic {topic}"
