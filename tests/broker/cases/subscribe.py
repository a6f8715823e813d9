"""SUBSCRIBE and CLOSE_CONSUMER."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from broker.probe import (
    EARLIEST,
    LATEST,
    SOON,
    Target,
    admin_path,
    batch,
    case,
    frame,
    id_of,
    payloads,
    subscription,
)

from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, ServerError

THREE = [b"m0", b"m1", b"m2"]


@case("subscribe/type_exclusive", "Exclusive")
@case("subscribe/type_shared", "Shared")
@case("subscribe/type_failover", "Failover")
@case("subscribe/type_key_shared", "Key_Shared")
async def types(broker: Target, kind: str) -> None:
    consumer = await broker.subscribed(await broker.filled(3), kind)
    if kind == "Failover":
        await broker.advance(1.5)
        await consumer.expect("ACTIVE_CONSUMER_CHANGE", consumer_id=1, is_active=True)
    await consumer.nothing()
    consumer.flow(10)
    assert payloads(await consumer.messages(3)) == THREE
    await consumer.nothing()


@case("subscribe/message_fields")
async def message_fields(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(1), permits=10)
    (message,) = await consumer.messages(1)
    body = message.body
    assert body.message_id.HasField("partition")
    assert body.message_id.partition == -1
    assert not body.message_id.HasField("batch_index")
    assert not body.HasField("redelivery_count")
    assert not body.HasField("consumer_epoch")
    assert not body.ack_set
    assert message.checksum == "valid"


@case("subscribe/partition_in_message_id")
async def partition_in_message_id(broker: Target) -> None:
    topic = await broker.filled(1, f"{await broker.partitioned(3)}-partition-2")
    consumer = await broker.subscribed(topic, permits=10)
    (message,) = await consumer.messages(1)
    assert message.body.message_id.partition == 2


@case("subscribe/second_exclusive")
async def second_exclusive(broker: Target) -> None:
    first = await broker.subscribed(topic := broker.topic())
    second = await broker.connected()
    await second.lookup(topic)
    pings = first.pings
    number = second.start("SUBSCRIBE", **subscription(topic))
    answer = await second.expect("ERROR", within=2, request_id=number)
    assert answer.body.error == ServerError.Value("ConsumerBusy"), answer.body
    assert first.pings > pings


@case("subscribe/exclusive_dead_conn")
async def exclusive_dead_connection(broker: Target) -> None:
    first = await broker.subscribed(topic := broker.topic())
    first.answers_pings = False
    second = await broker.connected()
    await second.lookup(topic)
    number = second.start("SUBSCRIBE", **subscription(topic))
    await broker.advance(3.5)
    await first.nothing()
    await second.nothing(0)
    await broker.advance(2)
    await first.closes(1)
    await second.expect("SUCCESS", within=1, request_id=number)


@case("subscribe/same_id_again")
async def same_id_again(broker: Target) -> None:
    consumer = await broker.subscribed(topic := broker.topic(), permits=1)
    await consumer.subscribe(topic)
    producer = await broker.producing(topic)
    await producer.publish_all(b"m0", b"m1")
    assert payloads(await consumer.messages(1)) == [b"m0"]
    await consumer.nothing()


@case("subscribe/two_requests_pending")
async def two_requests_pending(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    fields = subscription(topic)
    consumer.send(frame("SUBSCRIBE", request_id=51, **fields) + frame("SUBSCRIBE", request_id=52, **fields))
    answers = [await consumer.next(), await consumer.next()]
    said = [(each.command, each.body.request_id) for each in answers]
    if said != [("SUCCESS", 51), ("SUCCESS", 52)]:
        assert said == [("ERROR", 52), ("SUCCESS", 51)]
        assert answers[0].body.error == ServerError.Value("ServiceNotReady"), answers[0].body


@case("subscribe/round_robin_live")
async def round_robin_live(broker: Target) -> None:
    topic = broker.topic()
    consumers = [await broker.subscribed(topic, "Shared", 1000) for _ in "ab"]
    producer = await broker.producing(topic)
    for number in range(20):
        await producer.publish_all(b"%d" % number, first=number)
        await broker.advance(0.01)
    got = {tuple(int(each) for each in payloads(await one.messages(10))) for one in consumers}
    assert got == {tuple(range(0, 20, 2)), tuple(range(1, 20, 2))}


@case("subscribe/round_robin_backlog")
async def round_robin_backlog(broker: Target) -> None:
    topic = await broker.filled(200)
    both = await broker.connected()
    for consumer_id in (1, 2):
        await both.subscribe(topic, "Shared", consumer_id=consumer_id)
    both.send(b"".join(frame("FLOW", consumer_id=each, messagePermits=1000) for each in (1, 2)))
    messages = sorted(await both.messages(200), key=lambda each: int(each.payload[1:]))
    receivers = [each.body.consumer_id for each in messages]
    assert 80 <= receivers.count(1) <= 120
    assert max(len(list(run)) for _, run in groupby(receivers)) <= 20


@case("subscribe/round_robin_apart")
async def round_robin_apart(broker: Target) -> None:
    topic = await broker.filled(200)
    both = [await broker.subscribed(topic, "Shared") for _ in range(2)]
    for probe in both:
        probe.flow(1000)
    for probe in both:
        numbers = {int(each.payload[1:]) for each in await probe.messages(100)}
        assert max(len(list(run)) for _, run in groupby(each in numbers for each in range(200))) <= 20


@case("subscribe/same_id_other_topic")
async def same_id_other_topic(broker: Target) -> None:
    consumer = await broker.subscribed(one := broker.topic(), permits=10)
    await consumer.subscribe(other := await broker.filled(1))
    consumer.flow(10)
    await consumer.nothing()
    for topic, payload in ((other, b"other"), (one, b"one")):
        producer = await broker.producing(topic)
        await producer.publish_all(payload)
    assert payloads(await consumer.messages(1)) == [b"one"]
    await consumer.nothing()


@case("subscribe/initial_ignored_when_exists")
async def initial_ignored_when_exists(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(2), initialPosition=0)
    await consumer.again(topic)
    await consumer.nothing()
    await (await broker.producing(topic)).publish_all(b"later")
    assert payloads(await consumer.messages(1)) == [b"later"]


FROM_FIRST = [b"m0", b"m1", b"m2", b"m3", b"m4"]


@case("subscribe/nondurable_start_id", 2, FROM_FIRST[2:])
@case("subscribe/nondurable_earliest", EARLIEST, FROM_FIRST)
@case("subscribe/nondurable_latest", LATEST, [])
@case("subscribe/nondurable_latest_earliest", LATEST, FROM_FIRST, CommandSubscribe.Earliest)
async def nondurable(broker: Target, start: Any, expected: list[bytes], initial: int | None = None) -> None:
    producer = await broker.producing(topic := broker.topic())
    ids = await producer.publish_all(*FROM_FIRST)
    start = start if isinstance(start, dict) else id_of(ids[start])
    fields = {"durable": False, "start_message_id": start, "initialPosition": initial}
    consumer = await broker.subscribed(topic, "Exclusive", 10, **fields)
    assert payloads(await consumer.messages(len(expected))) == expected
    await consumer.nothing()
    await producer.publish_all(b"later", first=5)
    assert payloads(await consumer.messages(1)) == [b"later"]


@case("subscribe/nondurable_batch_index")
async def nondurable_batch_index(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    message_id = await producer.publish_batch(*FROM_FIRST)
    await producer.publish_all(b"single", first=5)
    start = {**id_of(message_id), "batch_index": 2}
    fields = {"durable": False, "start_message_id": start, "initialPosition": None}
    consumer = await broker.subscribed(topic, "Exclusive", 10, **fields)
    first, second = await consumer.messages(2)
    assert first.payload == batch(*FROM_FIRST)
    assert not first.body.ack_set
    assert second.payload == b"single"


@case("subscribe/nondurable_gone_after_close")
async def nondurable_gone_after_close(broker: Target) -> None:
    consumer = await broker.subscribed(topic := broker.topic(), durable=False)
    await consumer.again(topic, durable=True)


@case("subscribe/durability_clash")
async def durability_clash(broker: Target) -> None:
    await broker.subscribed(topic := broker.topic(), "Shared")
    second = await broker.connected()
    await second.lookup(topic)
    await second.refused("NotAllowedError", "SUBSCRIBE", **subscription(topic, "Shared", durable=False))


@case("subscribe/bad_topic_empty", "")
@case("subscribe/bad_topic_domain", "foo://public/default/x")
async def bad_topic(broker: Target, topic: str) -> None:
    consumer = await broker.connected()
    await consumer.refused("InvalidTopicName", "SUBSCRIBE", **subscription(topic))
    await consumer.stays_open()


@case("subscribe/bad_subscription_empty")
async def bad_subscription_empty(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    await consumer.refused("ProducerBusy", "SUBSCRIBE", **subscription(topic, subscription=""))
    await consumer.stays_open()


@case("subscribe/odd_subscription_names")
async def odd_subscription_names(broker: Target) -> None:
    consumer = await broker.connected()
    topic = broker.topic()
    for number, name in enumerate(("a/b", "a b", "ü", "%"), 1):
        await consumer.subscribe(topic, consumer_id=number, subscription=name)


@case("subscribe/read_compacted_shared")
async def read_compacted_shared(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    await consumer.refused(
        "NotAllowedError", "SUBSCRIBE", **subscription(topic, "Shared", read_compacted=True)
    )


@case("subscribe/read_compacted_exclusive")
async def read_compacted_exclusive(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(2), permits=10, read_compacted=True)
    assert payloads(await consumer.messages(2)) == [b"m0", b"m1"]


@case("subscribe/no_force_creation")
async def no_force_creation(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    await consumer.refused("TopicNotFound", "SUBSCRIBE", **subscription(topic, force_topic_creation=False))


@case("subscribe/rollback_duration")
async def rollback_duration(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(*THREE, meta_publish_time=broker.now_ms())
    fields = {"initialPosition": 0, "start_message_rollback_duration_sec": 3600}
    consumer = await broker.subscribed(topic, "Exclusive", 10, **fields)
    assert payloads(await consumer.messages(3)) == THREE


@case("subscribe/close_unknown_id")
async def close_unknown_id(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=99)


@case("subscribe/close_then_redelivered")
async def close_then_redelivered(broker: Target) -> None:
    consumer = await broker.subscribed(topic := await broker.filled(3), permits=10)
    await consumer.messages(3)
    await consumer.again(topic)
    again = await consumer.messages(3)
    assert payloads(again) == THREE
    assert not any(each.body.HasField("redelivery_count") for each in again)


@case("subscribe/priority_level")
async def priority_level(broker: Target) -> None:
    topic = broker.topic()
    first = await broker.subscribed(topic, "Shared", 10, priority_level=0)
    second = await broker.subscribed(topic, "Shared", 10, priority_level=1)
    await broker.settle()
    await broker.filled(10, topic)
    await first.messages(10)
    await second.nothing()


@case("subscribe/metadata_too_large")
async def metadata_too_large(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    large = [{"key": "k", "value": "v" * 2048}]
    await consumer.refused("MetadataError", "SUBSCRIBE", **subscription(topic, metadata=large))


@case("subscribe/other_type_named")
async def other_type_named(broker: Target) -> None:
    await broker.subscribed(topic := broker.topic(), "Shared")
    probe = await broker.connected()
    await probe.lookup(topic)
    body = await probe.request("SUBSCRIBE", "ERROR", **subscription(topic, "Failover"))
    assert body.message == (
        "Subscription is of different type. Active subscription type of 'Shared' is different "
        "than the connecting consumer's type 'Failover'."
    )


@case("subscribe/metadata_key_twice")
async def metadata_key_twice(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    twice = [{"key": "k", "value": value} for value in "12"]
    probe.start("SUBSCRIBE", **subscription(topic, metadata=twice))
    await probe.closes(SOON)


@case("subscribe/properties")
async def properties(broker: Target) -> None:
    topic = broker.topic()
    for value in "12":
        await broker.subscribed(topic, "Shared", subscription_properties=[{"key": "a", "value": value}])
    stats = await broker.rest("GET", f"{admin_path(topic)}/stats")
    assert stats["subscriptions"]["s"]["subscriptionProperties"] == {"a": "1"}


@case("subscribe/nondurable_beyond_end", 50)
@case("subscribe/nondurable_before_entry_0", 2**64 - 1)
async def nondurable_at_no_entry(broker: Target, entry: int) -> None:
    producer = await broker.producing(topic := broker.topic())
    ids = await producer.publish_all(b"0", b"1", b"2")
    start = {"ledgerId": ids[0].ledgerId, "entryId": entry}
    reader: dict[str, Any] = {"durable": False, "start_message_id": start}
    consumer = await broker.subscribed(topic, permits=10, **reader)
    assert payloads(await consumer.messages(3)) == [b"0", b"1", b"2"]
    if entry == 50:
        other = await broker.subscribed(topic, permits=10, subscription="t", initialPosition=0, **reader)
        await other.nothing()


@case("subscribe/turn_goes_on")
async def turn_goes_on(broker: Target) -> None:
    topic = await broker.filled(3)
    consumers = [await broker.subscribed(topic, "Shared", 10)]
    await consumers[0].messages(3)
    consumers.append(await broker.subscribed(topic, "Shared", 10))
    producer = await broker.producing(topic)
    await producer.publish_all(b"new")
    assert payloads(await consumers[1].messages(1)) == [b"new"]


@case("subscribe/closed_while_opening")
async def closed_while_opening(broker: Target) -> None:
    first = await broker.subscribed(topic := broker.topic())
    first.answers_pings = False
    probe = await broker.connected()
    await probe.lookup(topic)
    probe.start("SUBSCRIBE", **subscription(topic))
    await broker.settle()
    await probe.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    await probe.refused("UnknownError", "SUBSCRIBE", **subscription(topic))
    await broker.advance(6)
    await probe.nothing()


@case("subscribe/nondurable_keeps_ledgers")
async def nondurable_keeps_ledgers(broker: Target) -> None:
    topic = await broker.filled(2)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await broker.filled(1, topic)
    start: dict[str, Any] = {"durable": False, "start_message_id": EARLIEST}
    reader = await broker.subscribed(topic, permits=10, **start)
    last = (await reader.messages(3))[-1]
    reader.ack(id_of(last.body.message_id), kind="Cumulative")
    await broker.settle()
    other = await broker.subscribed(topic, permits=10, subscription="other", **start)
    assert payloads(await other.messages(3)) == [b"m0", b"m1", b"m0"]
