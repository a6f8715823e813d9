"""Key_Shared subscriptions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

from broker.owners import auto_split, consistent, slot_of
from broker.probe import Probe, Target, admin_path, batch, case, payloads, subscription

from pulsarctl_wire.wire.PulsarApi_pb2 import AUTO_SPLIT, STICKY

KEYS = [f"k{number}" for number in range(100)]


async def member(broker: Target, topic: str, name: str, **fields: Any) -> Probe:
    return await broker.subscribed(topic, "Key_Shared", 1000, consumer_name=name, **fields)


async def members(broker: Target, topic: str, *names: str) -> dict[str, Probe]:
    return {name: await member(broker, topic, name) for name in names}


def sticky(*ranges: tuple[int, int]) -> dict[str, Any]:
    """The field keySharedMeta for a consumer of these ranges."""
    of = [{"start": start, "end": end} for start, end in ranges]
    return {"keySharedMeta": {"keySharedMode": STICKY, "hashRanges": of}}


def key_of(owner: str, names: Iterable[str] = "abc") -> str:
    """The first key that the default selector gives to this one."""
    return next(key for key in KEYS if consistent(names, key) == owner)


async def publish(broker: Target, topic: str, keys: Iterable[str]) -> None:
    """One message for each key, whose payload is its key."""
    producer = await broker.producing(topic)
    for number, key in enumerate(keys):
        await producer.publish_all(key.encode(), first=number, meta_partition_key=key)


async def each_gets_its(
    consumers: dict[str, Probe], keys: Iterable[str], owner: Callable[[str], str]
) -> None:
    """Each consumer gets the messages of the keys it owns, in order, and no others."""
    for name, consumer in consumers.items():
        expected = [key.encode() for key in keys if owner(key) == name]
        assert payloads(await consumer.messages(len(expected))) == expected, name
    for consumer in consumers.values():
        await consumer.nothing(0.1)


@case("keyshared/one_owner_per_key")
async def one_owner_per_key(broker: Target) -> None:
    consumers = [await broker.subscribed(topic := broker.topic(), "Key_Shared", 1000)]
    consumers += [await broker.subscribed(topic, "Key_Shared", 1000) for _ in range(2)]
    producer = await broker.producing(topic)
    for number in range(60):
        await producer.publish_all(b"%d" % number, first=number, meta_partition_key=f"k{number % 20}")
    await broker.settle(1)
    got = [[int(each.payload) for each in consumer.frames] for consumer in consumers]
    assert sorted(number for numbers in got for number in numbers) == list(range(60))
    for key in range(20):
        of_key = [[number for number in numbers if number % 20 == key] for numbers in got]
        assert sorted(of_key) == [[], [], [key, key + 20, key + 40]]


@case("keyshared/consistent_hash_owner", "abc", consistent)
@case("keyshared/auto_split_owner", ("c1", "c2", "c3"), auto_split)
async def owners(broker: Target, names: Iterable[str], owner: Callable[[Iterable[str], str], str]) -> None:
    topic = broker.topic()
    consumers = await members(broker, topic, *names)
    await publish(broker, topic, KEYS)
    await each_gets_its(consumers, KEYS, lambda key: owner(names, key))


@case("keyshared/sticky_ranges")
async def sticky_ranges(broker: Target) -> None:
    topic = broker.topic()
    x = await member(broker, topic, "x", **sticky((0, 32767)))
    y = await member(broker, topic, "y", **sticky((32768, 65535)))
    await publish(broker, topic, KEYS)
    await each_gets_its({"x": x, "y": y}, KEYS, lambda key: "x" if slot_of(key) <= 32767 else "y")


@case("keyshared/sticky_reversed")
async def sticky_reversed(broker: Target) -> None:
    consumer = await broker.connected()
    await consumer.lookup(topic := broker.topic())
    fields = subscription(topic, "Key_Shared", **sticky((200, 100)))
    await consumer.refused("ConsumerAssignError", "SUBSCRIBE", **fields)


@case("keyshared/uncovered_slot_waits")
async def uncovered_slot_waits(broker: Target) -> None:
    topic = broker.topic()
    first = await member(broker, topic, "a", **sticky((0, 0)))
    await publish(broker, topic, ["k"])
    await first.nothing()
    second = await broker.subscribed(topic, "Key_Shared", **sticky((1, 65535)))
    await second.nothing()
    second.flow(10)
    assert payloads(await second.messages(1)) == [b"k"]
    await first.nothing(0)


@case("keyshared/ordering_key_wins")
async def ordering_key_wins(broker: Target) -> None:
    k1, k2 = key_of("a"), key_of("b")
    topic = broker.topic()
    consumers = await members(broker, topic, *"abc")
    producer = await broker.producing(topic)
    await producer.publish_all(b"both", meta_partition_key=k1, meta_ordering_key=k2.encode())
    await producer.publish_all(b"one", first=1, meta_partition_key=k2)
    assert payloads(await consumers["b"].messages(2)) == [b"both", b"one"]


@case("keyshared/base64_key")
async def base64_key(broker: Target) -> None:
    keys = [f"\0é{number}" for number in range(30)]
    topic = broker.topic()
    consumers = await members(broker, topic, *"abc")
    producer = await broker.producing(topic)
    for number, key in enumerate(keys):
        text = b64encode(key.encode()).decode()
        fields: dict[str, Any] = {"meta_partition_key": text, "meta_partition_key_b64_encoded": True}
        await producer.publish_all(key.encode(), first=number, **fields)
    await each_gets_its(consumers, keys, lambda key: consistent("abc", key))


@case("keyshared/batch_follows_first")
async def batch_follows_first(broker: Target) -> None:
    topic = broker.topic()
    consumers = await members(broker, topic, *"abc")
    producer = await broker.producing(topic)
    payload = b"".join(batch(b"m", partition_key=key_of(name)) for name in "aca")
    counts: dict[str, Any] = {"num_messages": 3, "meta_num_messages_in_batch": 3}
    await producer.publish_all(payload, meta_partition_key=key_of("b"), **counts)
    assert payloads(await consumers["b"].messages(1)) == [payload]
    for name in "ac":
        await consumers[name].nothing(0.1)


@case("keyshared/no_key_sticky")
async def no_key(broker: Target) -> None:
    topic = broker.topic()
    consumers = await members(broker, topic, *"abc")
    texts = [f"p-{number}" for number in range(20)]
    producer = await broker.producing(topic)
    await producer.publish_all(*(text.encode() for text in texts), meta_producer_name="p")
    assert len({consistent("abc", text) for text in texts}) > 1
    await each_gets_its(consumers, texts, lambda text: consistent("abc", text))


async def joined(broker: Target, **fields: Any) -> tuple[Probe, list[Any], Probe]:
    """Consumer a, the ids of three messages that it has not acknowledged, and b, which has joined since.

    The first two have a key that is b's now, and so has a fourth, published after b had joined.
    """
    topic = broker.topic()
    key = key_of("b", "ab")
    a = await member(broker, topic, "a", **fields)
    await publish(broker, topic, [key, key, key_of("a", "ab")])
    ids = [each.body.message_id for each in await a.messages(3)]
    b = await member(broker, topic, "b", **fields)
    await publish(broker, topic, [key])
    return a, ids, b


@case("keyshared/joining_waits_for_acks")
async def joining_waits_for_acks(broker: Target) -> None:
    a, ids, b = await joined(broker)
    await b.nothing()
    await a.acked(ids[0])
    await b.nothing()
    await a.acked(ids[1])
    await b.messages(1)
    await a.nothing()


@case("keyshared/skipped_need_no_acks")
async def skipped_need_no_acks(broker: Target) -> None:
    topic = broker.topic()
    key = key_of("b", "ab")
    a = await member(broker, topic, "a")
    await publish(broker, topic, [key, key])
    await a.messages(2)
    b = await member(broker, topic, "b")
    await broker.rest("POST", f"{admin_path(topic)}/subscription/s/skip_all")
    await publish(broker, topic, [key])
    await b.messages(1)
    await a.nothing()


@case("keyshared/out_of_order_allowed")
async def out_of_order_allowed(broker: Target) -> None:
    meta = {"keySharedMode": AUTO_SPLIT, "allowOutOfOrderDelivery": True}
    a, _, b = await joined(broker, keySharedMeta=meta)
    await b.messages(1)
    await a.nothing()


def ranges(*pairs: tuple[int, int]) -> dict[str, Any]:
    """The fields of a SUBSCRIBE with these hash ranges."""
    return {"keySharedMeta": {"keySharedMode": 1, "hashRanges": [{"start": a, "end": b} for a, b in pairs]}}


@case("keyshared/own_ranges_overlap")
async def own_ranges_overlap(broker: Target) -> None:
    probe = await broker.connected()
    await probe.lookup(topic := broker.topic())
    fields = subscription(topic, "Key_Shared", **ranges((300, 400), (350, 500)))
    body = await probe.request("SUBSCRIBE", "ERROR", **fields)
    assert body.message == "Consumer's own ranges conflict: [300,400] overlaps with [350,500]"


@case("keyshared/range_beyond")
async def range_beyond(broker: Target) -> None:
    topic = broker.topic()
    for pair in ((60_000, 65_536), (-5, 10)):
        await broker.subscribed(topic, "Key_Shared", **ranges(pair))


@case("keyshared/exclusive_reversed")
async def exclusive_reversed(broker: Target) -> None:
    consumer = await broker.subscribed(await broker.filled(1), permits=10, **ranges((10, 5)))
    await consumer.nothing()


@case("keyshared/exclusive_keeps_rest")
async def exclusive_keeps_rest(broker: Target) -> None:
    producer = await broker.producing(topic := broker.topic())
    for number in range(10):
        await producer.publish_all(b"x", first=number, meta_partition_key=f"k{number}")
    consumer = await broker.subscribed(topic, permits=100, **ranges((0, 32_767)))
    await broker.settle()
    assert 0 < len(consumer.frames) < 10
    consumer.frames.clear()
    body = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    assert body.msgBacklog == 10
