"""Key_Shared subscriptions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import make_batch, make_subscription, payloads
from pulsarctl_wire.conformance.basics.owners import find_consistent_owner, find_slot, find_split_owner
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target, admin_path
from pulsarctl_wire.wire.PulsarApi_pb2 import AUTO_SPLIT, STICKY

_KEYS = [f"k{number}" for number in range(100)]


async def _join(broker: Target, topic: str, name: str, **fields: Any) -> Probe:
    return await broker.subscribe(topic, "Key_Shared", 1000, consumer_name=name, **fields)


async def _join_all(broker: Target, topic: str, *names: str) -> dict[str, Probe]:
    return {name: await _join(broker, topic, name) for name in names}


def _make_ranges(*pairs: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of SUBSCRIBE for these hash ranges: (start, end)."""
    ranges = [{"start": start, "end": end} for start, end in pairs]
    return {"keySharedMeta": {"keySharedMode": STICKY, "hashRanges": ranges}}


def _find_key(owner: str, names: Iterable[str] = "abc") -> str:
    """Return the first key that the default selector gives to `owner`, a name of `names`."""
    return next(key for key in _KEYS if find_consistent_owner(names, key) == owner)


async def _publish(broker: Target, topic: str, keys: Iterable[str]) -> None:
    """Publish one message for each key, with the key as payload."""
    producer = await broker.produce(topic)
    for number, key in enumerate(keys):
        await producer.publish_all(key.encode(), first=number, meta_partition_key=key)


async def _expect_owners(
    consumers: dict[str, Probe], keys: Iterable[str], find_owner: Callable[[str], str]
) -> None:
    """Require that each consumer gets the messages of the keys it owns, in order, and no others."""
    for name, consumer in consumers.items():
        expected = [key.encode() for key in keys if find_owner(key) == name]
        equal(payloads(await consumer.messages(len(expected))), expected, "payloads")
    for consumer in consumers.values():
        await consumer.expect_nothing(0.1)


@case(MUST, without=("limits", "subscribing"))
async def one_owner_per_key(broker: Target) -> None:
    """3 Key_Shared consumers, 60 messages over 20 keys.

    Expected: Every key goes to exactly one consumer, in order.

    Source: Protocol: Consumer; PIP-34.
    """
    consumers = [await broker.subscribe(topic := broker.topic(), "Key_Shared", 1000)]
    consumers += [await broker.subscribe(topic, "Key_Shared", 1000) for _ in range(2)]
    producer = await broker.produce(topic)
    for number in range(60):
        await producer.publish_all(b"%d" % number, first=number, meta_partition_key=f"k{number % 20}")
    await broker.settle(1)
    results = [[int(item.payload) for item in consumer.frames] for consumer in consumers]
    equal(sorted(number for numbers in results for number in numbers), list(range(60)), "number")
    for key in range(20):
        numbers_of_key = [[number for number in numbers if number % 20 == key] for numbers in results]
        equal(sorted(numbers_of_key), [[], [], [key, key + 20, key + 40]], "messages of a key, by consumer")


async def _compare_owners(
    broker: Target, names: Iterable[str], find_owner: Callable[[Iterable[str], str], str]
) -> None:
    topic = broker.topic()
    consumers = await _join_all(broker, topic, *names)
    await _publish(broker, topic, _KEYS)
    await _expect_owners(consumers, _KEYS, lambda key: find_owner(names, key))


@case(OBSERVED, without=("autosplit", "limits", "subscribing"), since="4.0")
async def consistent_hash_owner(broker: Target) -> None:
    """Default selector, consumers a, b, c, 100 keys k0..k99.

    Expected: owner(key) = ceiling of murmur3(key)%65535+1 on 100 points per consumer at murmur3('name NUL 0
    NUL i')%65535+1, wrapping.

    Source: PIP-34; broker: ConsistentHashingStickyKeyConsumerSelector.
    """
    await _compare_owners(broker, "abc", find_consistent_owner)


@case(OBSERVED, needs=("autosplit",), without=("limits", "subscribing"))
async def auto_split_owner(broker: Target) -> None:
    """subscriptionKeySharedUseConsistentHashing=false, consumers c1, c2, c3, 100 keys.

    Expected: Slot = murmur3(key)%65536 (0 -> 1); newcomer takes the lower half of the widest range.

    Source: Broker: HashRangeAutoSplitStickyKeyConsumerSelector.
    """
    await _compare_owners(broker, ("c1", "c2", "c3"), find_split_owner)


@case(MUST, without=("limits", "subscribing"))
async def sticky_ranges(broker: Target) -> None:
    """STICKY: x hashRanges 0-32767, y 32768-65535; 100 keys.

    Expected: Owner by murmur3(key)%65536 (0 -> 1), ranges inclusive.

    Source: PIP-34 (sticky hash ranges).
    """
    topic = broker.topic()
    x = await _join(broker, topic, "x", **_make_ranges((0, 32767)))
    y = await _join(broker, topic, "y", **_make_ranges((32768, 65535)))
    await _publish(broker, topic, _KEYS)
    await _expect_owners({"x": x, "y": y}, _KEYS, lambda key: "x" if find_slot(key) <= 32767 else "y")


@case(OBSERVED, without=("subscribing",))
async def sticky_reversed(broker: Target) -> None:
    """STICKY hashRanges 200-100.

    Expected: ERROR ConsumerAssignError.

    Source: Broker: HashRangeExclusiveStickyKeyConsumerSelector.
    """
    consumer = await broker.connect()
    await consumer.look_up(topic := broker.topic())
    fields = make_subscription(topic, "Key_Shared", **_make_ranges((200, 100)))
    await consumer.expect_error("ConsumerAssignError", "SUBSCRIBE", **fields)


@case(SHOULD, without=("subscribing",))
async def uncovered_slot_waits(broker: Target) -> None:
    """STICKY 0-0 only; message whose slot is elsewhere; then a consumer covering the rest.

    Expected: Nothing until the second SUBSCRIBE + FLOW, then delivered.

    Source: Broker: HashRangeExclusiveStickyKeyConsumerSelector.
    """
    topic = broker.topic()
    first = await _join(broker, topic, "a", **_make_ranges((0, 0)))
    await _publish(broker, topic, ["k"])
    await first.expect_nothing()
    second = await broker.subscribe(topic, "Key_Shared", **_make_ranges((1, 65535)))
    await second.expect_nothing()
    second.flow(10)
    equal(payloads(await second.messages(1)), [b"k"], "payloads")
    await first.expect_nothing(0)


@case(SHOULD, without=("autosplit", "limits", "subscribing"), since="4.0")
async def ordering_key_wins(broker: Target) -> None:
    """Two messages: partition_key k1 + ordering_key k2, and partition_key k2.

    Expected: Both go to k2's owner.

    Source: Common: Commands.resolveStickyKey.
    """
    k1, k2 = _find_key("a"), _find_key("b")
    topic = broker.topic()
    consumers = await _join_all(broker, topic, *"abc")
    producer = await broker.produce(topic)
    await producer.publish_all(b"both", meta_partition_key=k1, meta_ordering_key=k2.encode())
    await producer.publish_all(b"one", first=1, meta_partition_key=k2)
    equal(payloads(await consumers["b"].messages(2)), [b"both", b"one"], "payloads")


@case(SHOULD, without=("autosplit", "limits", "subscribing"), since="4.0")
async def base64_key(broker: Target) -> None:
    """Binary keys: partition_key = base64 text, partition_key_b64_encoded=true, 30 keys.

    Expected: Owner by the decoded bytes.

    Source: Common: Commands.resolveStickyKey.
    """
    keys = [f"\0é{number}" for number in range(30)]
    topic = broker.topic()
    consumers = await _join_all(broker, topic, *"abc")
    producer = await broker.produce(topic)
    for number, key in enumerate(keys):
        text = b64encode(key.encode()).decode()
        fields: dict[str, Any] = {"meta_partition_key": text, "meta_partition_key_b64_encoded": True}
        await producer.publish_all(key.encode(), first=number, **fields)
    await _expect_owners(consumers, keys, lambda key: find_consistent_owner("abc", key))


@case(SHOULD, without=("autosplit", "limits", "subscribing"), since="4.0")
async def batch_follows_first(broker: Target) -> None:
    """Batch of 3 whose single messages have keys of other owners; entry metadata partition_key = key of b.

    Expected: The whole batch to b (entry-level key).

    Source: Common: Commands.resolveStickyKey.
    """
    topic = broker.topic()
    consumers = await _join_all(broker, topic, *"abc")
    producer = await broker.produce(topic)
    payload = b"".join(make_batch(b"m", partition_key=_find_key(name)) for name in "aca")
    counts: dict[str, Any] = {"num_messages": 3, "meta_num_messages_in_batch": 3}
    await producer.publish_all(payload, meta_partition_key=_find_key("b"), **counts)
    equal(payloads(await consumers["b"].messages(1)), [payload], "payloads")
    for name in "ac":
        await consumers[name].expect_nothing(0.1)


@case(OBSERVED, without=("autosplit", "limits", "subscribing"), since="4.0")
async def no_key_sticky(broker: Target) -> None:
    """20 messages without key from one producer, with sequence ids 0 to 19.

    Expected: Each goes to the owner of 'PRODUCER-SEQUENCE' as a key: 'p-0' … 'p-19'.

    Source: Common: Commands.resolveStickyKey.
    """
    topic = broker.topic()
    consumers = await _join_all(broker, topic, *"abc")
    texts = [f"p-{number}" for number in range(20)]
    producer = await broker.produce(topic)
    await producer.publish_all(*(text.encode() for text in texts), meta_producer_name="p")
    await _expect_owners(consumers, texts, lambda text: find_consistent_owner("abc", text))


async def _join_late(broker: Target, **fields: Any) -> tuple[Probe, list[Any], Probe]:
    """Return consumer a, the ids of three messages that it has not acknowledged, and b, which joined later.

    The first two have a key that is now b's. A fourth with that key was published after b had joined.
    """
    topic = broker.topic()
    key = _find_key("b", "ab")
    a = await _join(broker, topic, "a", **fields)
    await _publish(broker, topic, [key, key, _find_key("a", "ab")])
    ids = [item.body.message_id for item in await a.messages(3)]
    b = await _join(broker, topic, "b", **fields)
    await _publish(broker, topic, [key])
    return a, ids, b


@case(SHOULD, without=("subscribing",), since="4.0")
async def joining_waits_for_acks(broker: Target) -> None:
    """Consumer a holds unacknowledged messages of its keys; b joins; new messages for keys that move to b.

    Expected: Consumer b gets them only after a has acknowledged its pending ones of that key.

    Source: PIP-379; broker: DrainingHashesTracker.
    """
    a, ids, b = await _join_late(broker)
    await b.expect_nothing()
    await a.confirm_ack(ids[0])
    await b.expect_nothing()
    await a.confirm_ack(ids[1])
    await b.messages(1)
    await a.expect_nothing()


@case(OBSERVED, needs=("admin",), without=("subscribing",))
async def skipped_need_no_acks(broker: Target) -> None:
    """Consumer a holds unacknowledged messages of a key; b joins, whose key it is now; skip_all by the admin
    API, a new message of the key.

    Expected: Consumer b gets it, though a has acknowledged nothing.

    Source: Broker: PendingAcksMap.
    """
    topic = broker.topic()
    key = _find_key("b", "ab")
    a = await _join(broker, topic, "a")
    await _publish(broker, topic, [key, key])
    await a.messages(2)
    b = await _join(broker, topic, "b")
    await broker.rest("POST", f"{admin_path(topic)}/subscription/s/skip_all")
    await _publish(broker, topic, [key])
    await b.messages(1)
    await a.expect_nothing()


@case(SHOULD, without=("subscribing",))
async def out_of_order_allowed(broker: Target) -> None:
    """Consumer a holds unacknowledged messages of its keys; b joins; new messages for keys that move to b;
    both have allowOutOfOrderDelivery=true.

    Expected: Consumer b gets the new message at once.

    Source: KeySharedMeta; PIP-379.
    """
    meta = {"keySharedMode": AUTO_SPLIT, "allowOutOfOrderDelivery": True}
    a, _, b = await _join_late(broker, keySharedMeta=meta)
    await b.messages(1)
    await a.expect_nothing()


@case(OBSERVED, without=("subscribing",), since="4.0")
async def own_ranges_overlap(broker: Target) -> None:
    """STICKY hashRanges 300-400 and 350-500.

    Expected: ERROR ConsumerAssignError 'Consumer's own ranges conflict: [300,400] overlaps with [350,500]'.

    Source: Broker: HashRangeExclusiveStickyKeyConsumerSelector.
    """
    probe = await broker.connect()
    await probe.look_up(topic := broker.topic())
    fields = make_subscription(topic, "Key_Shared", **_make_ranges((300, 400), (350, 500)))
    body = await probe.expect_error("ConsumerAssignError", "SUBSCRIBE", **fields)
    equal(body.message, "Consumer's own ranges conflict: [300,400] overlaps with [350,500]", "message")


@case(OBSERVED, without=("subscribing",))
async def range_beyond(broker: Target) -> None:
    """STICKY hashRanges 60000-65536, and -5-10.

    Expected: SUCCESS both: only the order of start and end is checked.

    Source: Broker: HashRangeExclusiveStickyKeyConsumerSelector.
    """
    topic = broker.topic()
    for pair in ((60_000, 65_536), (-5, 10)):
        await broker.subscribe(topic, "Key_Shared", **_make_ranges(pair))


@case(OBSERVED, since="3.3")
async def exclusive_reversed(broker: Target) -> None:
    """A message; SUBSCRIBE Exclusive with hashRanges 10-5, FLOW.

    Expected: SUCCESS; nothing.

    Source: Broker: AbstractDispatcherSingleActiveConsumer.
    """
    consumer = await broker.subscribe(await broker.fill(1), permits=10, **_make_ranges((10, 5)))
    await consumer.expect_nothing()


@case(OBSERVED)
async def exclusive_keeps_rest(broker: Target) -> None:
    """10 messages with keys; SUBSCRIBE Exclusive with hashRanges 0-32767, FLOW, CONSUMER_STATS.

    Expected: Some of them; msgBacklog=10: the others are passed over, not acknowledged.

    Source: Broker: PersistentDispatcherSingleActiveConsumer.
    """
    producer = await broker.produce(topic := broker.topic())
    for number in range(10):
        await producer.publish_all(b"x", first=number, meta_partition_key=f"k{number}")
    consumer = await broker.subscribe(topic, permits=100, **_make_ranges((0, 32_767)))
    await broker.settle()
    require(0 < len(consumer.frames) < 10, "some of 10 messages", len(consumer.frames))
    consumer.frames.clear()
    body = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    equal(body.msgBacklog, 10, "msgBacklog")
