"""Compaction, and SUBSCRIBE with read_compacted."""

from __future__ import annotations

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_batch, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import SingleMessageMetadata


async def _compact(broker: Target, topic: str) -> None:
    path = f"{admin_path(topic)}/compaction"
    await broker.rest("PUT", path)
    while (await broker.rest("GET", path))["status"] == "RUNNING":
        await broker.advance(0.2)
    equal((await broker.rest("GET", path))["status"], "SUCCESS", "status")


async def _compact_and_subscribe(broker: Target, topic: str, subscription: str = "s") -> Probe:
    await _compact(broker, topic)
    return await broker.subscribe(topic, permits=100, subscription=subscription, read_compacted=True)


async def _publish_nine(broker: Target) -> tuple[str, Probe]:
    topic = broker.topic()
    producer = await broker.produce(topic)
    for number in range(9):
        await producer.publish_all(f"v{number}".encode(), first=number, meta_partition_key=f"k{number % 3}")
    return topic, producer


@case(SHOULD, needs=("admin",))
async def last_of_each_key(broker: Target) -> None:
    """Messages v0 … v8 with keys k0, k1, k2 in turn; compaction; one more with key k1; SUBSCRIBE
    read_compacted Earliest.

    Expected: v6, v7, v8 and the new one, with their own ids.

    Source: Broker: TwoPhaseCompactor.
    """
    topic, producer = await _publish_nine(broker)
    await _compact(broker, topic)
    await producer.publish_all(b"new", first=9, meta_partition_key="k1")
    consumer = await broker.subscribe(topic, permits=100, read_compacted=True)
    messages = await consumer.messages(4)
    equal(payloads(messages), [b"v6", b"v7", b"v8", b"new"], "payloads")
    equal([item.body.message_id.entryId for item in messages], [6, 7, 8, 9], "entryId")
    await consumer.expect_nothing()


@case(SHOULD, needs=("admin",))
async def again(broker: Target) -> None:
    """Messages v0 … v8 with keys k0, k1, k2 in turn; compaction; one more with key k1; compaction again;
    SUBSCRIBE read_compacted Earliest.

    Expected: v6, v8 and the new one.

    Source: Broker: TwoPhaseCompactor.
    """
    topic, producer = await _publish_nine(broker)
    await _compact(broker, topic)
    await producer.publish_all(b"new", first=9, meta_partition_key="k1")
    consumer = await _compact_and_subscribe(broker, topic)
    equal(payloads(await consumer.messages(3)), [b"v6", b"v8", b"new"], "payloads")
    await consumer.expect_nothing()


async def _compact_entries(
    broker: Target, entries: list[tuple[str | None, bytes]], expected: list[bytes]
) -> None:
    producer = await broker.produce(topic := broker.topic())
    for number, (key, payload) in enumerate(entries):
        fields = {} if key is None else {"meta_partition_key": key}
        await producer.publish_all(payload, first=number, **fields)
    consumer = await _compact_and_subscribe(broker, topic)
    results = payloads(await consumer.messages(len(expected)))
    equal(results, expected, "results")
    await consumer.expect_nothing()


@case(OBSERVED, needs=("admin",), since="4.0")
async def empty_payload(broker: Target) -> None:
    """a=1, a='' (empty payload), b=1; compaction; read_compacted.

    Expected: The empty message and b: an empty payload counts as any other.

    Source: Broker: TwoPhaseCompactor.
    """
    await _compact_entries(broker, [("a", b"1"), ("a", b""), ("b", b"1")], [b"", b"1"])


@case(OBSERVED, needs=("admin",), since="3.3")
async def no_key(broker: Target) -> None:
    """A message without key, one with key a, one without; compaction; read_compacted.

    Expected: Only the one with a key.

    Source: topicCompactionRetainNullKey=false.
    """
    await _compact_entries(broker, [(None, b"x"), ("a", b"1"), (None, b"y")], [b"1"])


@case(SHOULD, needs=("admin",))
async def others_see_all(broker: Target) -> None:
    """3 messages with one key; compaction; SUBSCRIBE Earliest without read_compacted.

    Expected: All 3.

    Source: Broker: TwoPhaseCompactor.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(b"1", b"2", b"3", meta_partition_key="k")
    await _compact(broker, topic)
    consumer = await broker.subscribe(topic, permits=10)
    equal(payloads(await consumer.messages(3)), [b"1", b"2", b"3"], "payloads")


async def _compact_batch(broker: Target, last_payload: bytes) -> None:
    producer = await broker.produce(topic := broker.topic())
    singles = b""
    for key, payload in (("a", b"1"), ("b", b"2"), ("a", last_payload)):
        head = SingleMessageMetadata(partition_key=key, payload_size=len(payload)).SerializeToString()
        singles += len(head).to_bytes(4, "big") + head + payload
    await producer.publish_all(singles, num_messages=3, meta_num_messages_in_batch=3)
    consumer = await _compact_and_subscribe(broker, topic)
    (message,) = await consumer.messages(1)
    result = [(item.metadata.compacted_out, item.payload) for item in open_entry(message).messages]
    equal(result, [(True, b""), (False, b"2"), (not last_payload, last_payload)], "result")


@case(SHOULD, needs=("admin",))
async def batch(broker: Target) -> None:
    """Batch of 3 with keys a, b, a; compaction; read_compacted.

    Expected: One MESSAGE of 3; the first is compacted_out with an empty payload.

    Source: Broker: RawBatchConverter.
    """
    await _compact_batch(broker, b"3")


@case(OBSERVED, needs=("admin",))
async def batch_empty_payload(broker: Target) -> None:
    """A batch of 3 with keys a, b, a, the last one with an empty payload; compaction; read_compacted.

    Expected: One MESSAGE of 3; the first and the last are compacted_out.

    Source: Broker: RawBatchConverter.
    """
    await _compact_batch(broker, b"")


@case(MUST, needs=("admin",), since="3.3")
async def no_key_last(broker: Target) -> None:
    """Messages a=1, one without key; compaction; b=2; compaction; c=3; read_compacted.

    Expected: The messages with keys a, b and c.

    Source: Broker: TwoPhaseCompactor.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(b"1", meta_partition_key="a")
    await producer.publish_all(b"none", first=1)
    await _compact(broker, topic)
    await producer.publish_all(b"2", first=2, meta_partition_key="b")
    await _compact(broker, topic)
    await producer.publish_all(b"3", first=3, meta_partition_key="c")
    consumer = await broker.subscribe(topic, permits=100, read_compacted=True)
    equal(payloads(await consumer.messages(3)), [b"1", b"2", b"3"], "payloads")
    await consumer.expect_nothing()


@case(MUST, needs=("admin",))
async def deleted_key(broker: Target) -> None:
    """a=1, an empty message with key a and uncompressed_size=0, b=1; compaction; read_compacted; stats.

    Expected: Only b; lastCompactionRemovedEventCount is 1.

    Source: Broker: TwoPhaseCompactor.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(b"1", meta_partition_key="a")
    await producer.publish_all(b"", first=1, meta_partition_key="a", meta_uncompressed_size=0)
    await producer.publish_all(b"1", first=2, meta_partition_key="b")
    consumer = await _compact_and_subscribe(broker, topic)
    (message,) = await consumer.messages(1)
    equal(message.metadata and message.metadata.partition_key, "b", "partition_key")
    await consumer.expect_nothing()
    stats = (await broker.rest("GET", f"{admin_path(topic)}/stats"))["compaction"]
    equal(stats["lastCompactionRemovedEventCount"], 1, "lastCompactionRemovedEventCount")
    equal(stats["lastCompactionFailedTimestamp"], 0, "lastCompactionFailedTimestamp")
    require(stats["lastCompactionSucceedTimestamp"] > 0, "lastCompactionSucceedTimestamp", stats)


@case(MUST, needs=("admin",))
async def seek_to_the_start(broker: Target) -> None:
    """a=1, b=1; compaction; read_compacted: both acknowledged, unload; SUBSCRIBE read_compacted, SEEK to
    time 0; SUBSCRIBE.

    Expected: Both again.

    Source: Broker: CompactedTopicImpl.
    """
    producer = await broker.produce(topic := broker.topic())
    for number, key in enumerate("ab"):
        await producer.publish_all(b"1", first=number, meta_partition_key=key)
    consumer = await _compact_and_subscribe(broker, topic)
    await consumer.confirm_ack(*[item.body.message_id for item in await consumer.messages(2)])
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    consumer = await broker.subscribe(topic, read_compacted=True)
    number = consumer.start("SEEK", consumer_id=1, message_publish_time=0)
    await consumer.expect("CLOSE_CONSUMER")
    await consumer.expect("SUCCESS", request_id=number)
    await consumer.subscribe(topic, read_compacted=True)
    consumer.flow(10)
    await consumer.messages(2)
    await consumer.expect_nothing()


async def _publish_keys(broker: Target, *keys: str) -> str:
    """Return a topic with messages 0, 1, …: one for each key, where "" stands for a message without a key."""
    producer = await broker.produce(topic := broker.topic())
    for number, key in enumerate(keys):
        fields = {"meta_partition_key": key} if key else {}
        await producer.publish_all(b"%d" % number, first=number, **fields)
    return topic


@case(OBSERVED, needs=("admin",))
async def acked_again(broker: Target) -> None:
    """a=0, b=1, a=2, b=3; compaction; read_compacted: ACK of the first one got, REDELIVER.

    Expected: Both again.

    Source: Managed ledger: ManagedCursorImpl.
    """
    topic = await _publish_keys(broker, "a", "b", "a", "b")
    consumer = await _compact_and_subscribe(broker, topic)
    messages = await consumer.messages(2)
    await consumer.confirm_ack(messages[0].body.message_id)
    consumer.redeliver()
    equal(payloads(await consumer.messages(2)), [b"2", b"3"], "payloads")


async def _expect_last_id(broker: Target, keys: tuple[str, str], expected: int) -> None:
    """Compact two messages with these keys; require `expected` as last entry id if read_compacted, else 1."""
    topic = await _publish_keys(broker, *keys)
    await _compact(broker, topic)
    for is_compacted, entry_id in ((True, expected), (False, 1)):
        consumer = await broker.subscribe(topic, subscription=str(is_compacted), read_compacted=is_compacted)
        name = "GET_LAST_MESSAGE_ID"
        body = await consumer.request(name, f"{name}_RESPONSE", consumer_id=1)
        equal(body.last_message_id.entryId, entry_id, "entryId")
        equal(body.last_message_id.batch_index, -1, "batch_index")


@case(OBSERVED, needs=("admin",), since="3.3")
async def last_id(broker: Target) -> None:
    """a=0, then one without key; compaction; GET_LAST_MESSAGE_ID by a read_compacted consumer, and by
    another.

    Expected: Entry 0, batch_index=-1; entry 1.

    Source: Broker: ServerCnx.handleLastMessageIdFromCompactionService.
    """
    await _expect_last_id(broker, ("a", ""), 0)


@case(OBSERVED, needs=("admin",), since="3.3")
async def nothing_left(broker: Target) -> None:
    """Two messages without key; compaction; GET_LAST_MESSAGE_ID by a read_compacted consumer.

    Expected: last_message_id -1:-1.

    Source: Broker: ServerCnx.handleLastMessageIdFromCompactionService.
    """
    await _expect_last_id(broker, ("", ""), 2**64 - 1)


@case(OBSERVED, needs=("admin",))
async def left_out_has_no_key(broker: Target) -> None:
    """Batch of 2 with key a; compaction; read_compacted.

    Expected: The first is compacted_out, without partition_key.

    Source: Broker: RawBatchConverter.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(
        make_batch(b"0", b"1", partition_key="a"), num_messages=2, meta_num_messages_in_batch=2
    )
    consumer = await _compact_and_subscribe(broker, topic)
    (message,) = await consumer.messages(1)
    singles = [item.metadata for item in open_entry(message).messages]
    equal(
        [(item.compacted_out, item.HasField("partition_key")) for item in singles],
        [
            (True, False),
            (False, True),
        ],
        "compacted_out, HasField",
    )
