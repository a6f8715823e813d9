"""The cases of further.tsv."""

from __future__ import annotations

from typing import Any

from broker.entries import entry
from broker.probe import (
    NO_REQUEST,
    Probe,
    Target,
    admin_path,
    batch,
    case,
    payloads,
    sent_raw,
    subscription,
)

from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema, SingleMessageMetadata

AVRO = {
    "name": "",
    "schema_data": b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
    "type": Schema.Avro,
}


async def compact(broker: Target, topic: str) -> None:
    path = f"{admin_path(topic)}/compaction"
    await broker.rest("PUT", path)
    while (await broker.rest("GET", path))["status"] == "RUNNING":
        await broker.advance(0.2)
    assert (await broker.rest("GET", path))["status"] == "SUCCESS"


async def compacted(broker: Target, topic: str, subscription: str = "s") -> Probe:
    await compact(broker, topic)
    return await broker.subscribed(topic, permits=100, subscription=subscription, read_compacted=True)


async def keyed(broker: Target) -> tuple[str, Probe]:
    topic = broker.topic()
    producer = await broker.producing(topic)
    for number in range(9):
        await producer.publish_all(f"v{number}".encode(), first=number, meta_partition_key=f"k{number % 3}")
    return topic, producer


@case("compaction/last_of_each_key")
async def last_of_each_key(broker: Target) -> None:
    topic, producer = await keyed(broker)
    await compact(broker, topic)
    await producer.publish_all(b"new", first=9, meta_partition_key="k1")
    consumer = await broker.subscribed(topic, permits=100, read_compacted=True)
    messages = await consumer.messages(4)
    assert payloads(messages) == [b"v6", b"v7", b"v8", b"new"]
    assert [each.body.message_id.entryId for each in messages] == [6, 7, 8, 9]
    await consumer.nothing()


@case("compaction/again")
async def again(broker: Target) -> None:
    topic, producer = await keyed(broker)
    await compact(broker, topic)
    await producer.publish_all(b"new", first=9, meta_partition_key="k1")
    consumer = await compacted(broker, topic)
    assert payloads(await consumer.messages(3)) == [b"v6", b"v8", b"new"]
    await consumer.nothing()


@case("compaction/empty_payload", [("a", b"1"), ("a", b""), ("b", b"1")], [b"", b"1"])
@case("compaction/no_key", [(None, b"x"), ("a", b"1"), (None, b"y")], [b"1"])
async def left_out(broker: Target, sent: list[tuple[str | None, bytes]], left: list[bytes]) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number, (key, payload) in enumerate(sent):
        fields = {} if key is None else {"meta_partition_key": key}
        await producer.publish_all(payload, first=number, **fields)
    consumer = await compacted(broker, topic)
    got = payloads(await consumer.messages(len(left)))
    assert got == left, got
    await consumer.nothing()


@case("compaction/others_see_all")
async def others_see_all(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(b"1", b"2", b"3", meta_partition_key="k")
    await compact(broker, topic)
    consumer = await broker.subscribed(topic, permits=10)
    assert payloads(await consumer.messages(3)) == [b"1", b"2", b"3"]


@case("compaction/batch", b"3")
@case("compaction/batch_empty_payload", b"")
async def compacted_batch(broker: Target, last: bytes) -> None:
    producer = await broker.producing(topic := broker.topic())
    singles = b""
    for key, payload in (("a", b"1"), ("b", b"2"), ("a", last)):
        head = SingleMessageMetadata(partition_key=key, payload_size=len(payload)).SerializeToString()
        singles += len(head).to_bytes(4, "big") + head + payload
    await producer.publish_all(singles, num_messages=3, meta_num_messages_in_batch=3)
    consumer = await compacted(broker, topic)
    (message,) = await consumer.messages(1)
    found = [(each.metadata.compacted_out, each.payload) for each in open_entry(message).messages]
    assert found == [(True, b""), (False, b"2"), (not last, last)]


@case("compaction/no_key_last")
async def no_key_last(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(b"1", meta_partition_key="a")
    await producer.publish_all(b"none", first=1)
    await compact(broker, topic)
    await producer.publish_all(b"2", first=2, meta_partition_key="b")
    await compact(broker, topic)
    await producer.publish_all(b"3", first=3, meta_partition_key="c")
    consumer = await broker.subscribed(topic, permits=100, read_compacted=True)
    assert payloads(await consumer.messages(3)) == [b"1", b"2", b"3"]
    await consumer.nothing()


@case("compaction/deleted_key")
async def deleted_key(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(b"1", meta_partition_key="a")
    await producer.publish_all(b"", first=1, meta_partition_key="a", meta_uncompressed_size=0)
    await producer.publish_all(b"1", first=2, meta_partition_key="b")
    consumer = await compacted(broker, topic)
    (message,) = await consumer.messages(1)
    assert message.metadata is not None
    assert message.metadata.partition_key == "b"
    await consumer.nothing()
    told = (await broker.rest("GET", f"{admin_path(topic)}/stats"))["compaction"]
    assert told["lastCompactionRemovedEventCount"] == 1
    assert told["lastCompactionSucceedTimestamp"] > told["lastCompactionFailedTimestamp"] == 0


@case("compaction/seek_to_the_start")
async def seek_to_the_start(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number, key in enumerate("ab"):
        await producer.publish_all(b"1", first=number, meta_partition_key=key)
    consumer = await compacted(broker, topic)
    await consumer.acked(*[each.body.message_id for each in await consumer.messages(2)])
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    consumer = await broker.subscribed(topic, read_compacted=True)
    number = consumer.start("SEEK", consumer_id=1, message_publish_time=0)
    await consumer.expect("CLOSE_CONSUMER")
    await consumer.expect("SUCCESS", request_id=number)
    await consumer.subscribe(topic, read_compacted=True)
    consumer.flow(10)
    await consumer.messages(2)
    await consumer.nothing()


@case("subscribe/properties_of_one_key")
async def properties_of_one_key(broker: Target) -> None:
    pairs = [{"key": "k", "value": value} for value in "12"]
    await broker.subscribed(topic := broker.topic(), subscription_properties=pairs)
    assert await broker.rest("GET", f"{admin_path(topic)}/subscription/s/properties") == {"k": "1"}


@case("quota/exception", "producer_exception", "ProducerBlockedQuotaExceededException")
@case("quota/hold", "producer_request_hold", "ProducerBlockedQuotaExceededError")
async def quota(broker: Target, policy: str, code: str) -> None:
    namespace = await broker.namespace()
    topic = f"persistent://{namespace}/t"
    path = f"/admin/v2/namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage"
    await broker.rest("POST", path, {"limitSize": 1000, "policy": policy})
    await broker.subscribed(topic)
    producer = await broker.producing(topic)
    await producer.publish_all(bytes(5000))
    await broker.settle()
    await producer.refused(code, "PRODUCER", topic=topic, producer_id=2)


@case("quota/zero")
async def quota_of_zero(broker: Target) -> None:
    namespace = await broker.namespace()
    quota = {"limitTime": 10, "policy": "producer_exception"}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/backlogQuota", quota)
    probe = await broker.subscribed(topic := f"persistent://{namespace}/t")
    await probe.refused("ProducerBlockedQuotaExceededException", "PRODUCER", topic=topic, producer_id=1)


@case("producer/initial_subscription")
async def initial_subscription(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic(), initial_subscription_name="i")
    await producer.publish_all(b"kept")
    consumer = await broker.subscribed(topic, permits=10, subscription="i", initialPosition=0)
    assert payloads(await consumer.messages(1)) == [b"kept"]


@case("schema/consumer_on_used_topic")
async def consumer_on_used_topic(broker: Target) -> None:
    topic = await broker.filled(1)
    probe = await broker.connected()
    await probe.lookup(topic)
    await probe.refused("IncompatibleSchema", "SUBSCRIBE", **subscription(topic), schema=AVRO)


@case("schema/consumer_registers")
async def consumer_registers(broker: Target) -> None:
    probe = await broker.subscribed(topic := broker.topic(), schema=AVRO)
    answer: Any = await probe.request("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic)
    assert answer.schema.schema_data == AVRO["schema_data"]


@case("send/undecodable_not_delivered")
async def undecodable_not_delivered(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    producer.send(sent_raw(entry(b"\xff" * 4)))
    await producer.expect("SEND_RECEIPT", sequence_id=0)
    await producer.publish_all(b"plain", first=1)
    consumer = await broker.subscribed(topic, permits=10)
    assert payloads(await consumer.messages(1)) == [b"plain"]
    await consumer.nothing()


@case("subscribe/chunks_of_one_message")
async def chunks_of_one_message(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    consumers = [await broker.subscribed(topic, "Shared", 100, consumer_name=name) for name in "ab"]
    for number, chunk in enumerate((0, None, 1)):
        fields = {} if chunk is None else {"meta_uuid": "u", "meta_chunk_id": chunk, "is_chunk": True}
        if chunk is not None:
            fields |= {"meta_num_chunks_from_msg": 2, "meta_total_chunk_msg_size": 2}
        await producer.publish_all(b"c" if chunk is not None else b"p", first=number, **fields)
        await broker.advance(0.01)
    await broker.settle()
    got = [payloads(list(each.frames)).count(b"c") for each in consumers]
    assert sorted(got) == [0, 2]


@case("subscribe/key_shared_other_mode")
async def key_shared_other_mode(broker: Target) -> None:
    await broker.subscribed(topic := broker.topic(), "Key_Shared")
    probe = await broker.connected()
    sticky = {"keySharedMode": 1, "hashRanges": [{"start": 0, "end": 65535}]}
    await probe.lookup(topic)
    fields = subscription(topic, "Key_Shared", keySharedMeta=sticky)
    await probe.refused("ConsumerBusy", "SUBSCRIBE", **fields)


@case("unsubscribe/force")
async def unsubscribe_by_force(broker: Target) -> None:
    topic = broker.topic()
    one, other = [await broker.subscribed(topic, "Shared") for _ in range(2)]
    await one.request("UNSUBSCRIBE", "SUCCESS", consumer_id=1, force=True)
    await other.expect("CLOSE_CONSUMER", consumer_id=1, request_id=NO_REQUEST)


async def with_keys(broker: Target, *keys: str) -> str:
    """A topic with a message for each key, none for an empty one; their payloads are 0, 1, …"""
    producer = await broker.producing(topic := broker.topic())
    for number, key in enumerate(keys):
        fields = {"meta_partition_key": key} if key else {}
        await producer.publish_all(b"%d" % number, first=number, **fields)
    return topic


@case("compaction/acked_again")
async def acked_again(broker: Target) -> None:
    topic = await with_keys(broker, "a", "b", "a", "b")
    consumer = await compacted(broker, topic)
    messages = await consumer.messages(2)
    await consumer.acked(messages[0].body.message_id)
    consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    assert payloads(await consumer.messages(2)) == [b"2", b"3"]


@case("compaction/last_id", ("a", ""), 0)
@case("compaction/nothing_left", ("", ""), 2**64 - 1)
async def last_id(broker: Target, keys: tuple[str, ...], expected: int) -> None:
    topic = await with_keys(broker, *keys)
    await compact(broker, topic)
    for compacts, entry_id in ((True, expected), (False, 1)):
        consumer = await broker.subscribed(topic, subscription=str(compacts), read_compacted=compacts)
        name = "GET_LAST_MESSAGE_ID"
        body = await consumer.request(name, f"{name}_RESPONSE", consumer_id=1)
        assert body.last_message_id.entryId == entry_id
        assert body.last_message_id.batch_index == -1


@case("compaction/left_out_has_no_key")
async def left_out_has_no_key(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    await producer.publish_all(
        batch(b"0", b"1", partition_key="a"), num_messages=2, meta_num_messages_in_batch=2
    )
    consumer = await compacted(broker, topic)
    (message,) = await consumer.messages(1)
    singles = [each.metadata for each in open_entry(message).messages]
    assert [(each.compacted_out, each.HasField("partition_key")) for each in singles] == [
        (True, False),
        (False, True),
    ]


@case("subscribe/reserved_names")
async def reserved_names(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    for name in ("pulsar.dedup", "pulsar.repl.x"):
        await probe.refused("ProducerBusy", "SUBSCRIBE", **subscription(topic, subscription=name))
