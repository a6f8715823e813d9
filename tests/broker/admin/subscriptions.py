"""Subscriptions: creating and deleting, skipping, expiring, resetting."""

from __future__ import annotations

from broker.admin.calls import at, call, place, refused

from pulsarctl_wire.conformance.basics.frames import payloads
from pulsarctl_wire.conformance.basics.target import Target

ALMOST = "due to ongoing message expiration not finished or subscription almost catch  up"


async def backlog(broker: Target, topic: str, subscription: str = "s") -> int:
    stats = await broker.rest("GET", at(topic, "stats"))
    number: int = stats["subscriptions"][subscription]["msgBacklog"]
    return number


@call("subscriptions/create")
async def create(broker: Target) -> None:
    topic = await broker.fill(3)
    await broker.rest("PUT", at(topic, "subscription/latest"))
    await broker.rest("PUT", at(topic, "subscription/first"), "earliest")
    ids = {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}
    await broker.rest("PUT", at(topic, "subscription/with%2Fslash"), ids)
    text = "Subscription already exists for topic"
    await refused(broker, 409, text, "PUT", at(topic, "subscription/latest"))
    assert set(await broker.rest("GET", at(topic, "subscriptions"))) == {"latest", "first", "with/slash"}
    assert await backlog(broker, topic, "latest") == 0
    assert await backlog(broker, topic, "first") == 3
    assert await backlog(broker, topic, "with/slash") == 3
    assert await broker.rest("GET", at(topic, "subscription/with%2Fslash/properties")) == {"a": "b"}


@call("subscriptions/create at a message")
async def create_at(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    ids = await producer.publish_all(b"a", b"b", b"c")
    await broker.rest("PUT", at(topic, "subscription/s"), place(ids[1]))
    consumer = await broker.subscribe(topic, permits=10)
    assert payloads(await consumer.messages(2)) == [b"b", b"c"]


@call("subscriptions/create makes the topic")
async def create_topic(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic, "subscription/s"), "latest")
    assert await broker.rest("GET", at(topic, "subscriptions")) == ["s"]


@call("subscriptions/create without automatic topics", setting="nocreate")
async def create_no_topic(broker: Target) -> None:
    text = "Topic does not exist and cannot be auto-created"
    await refused(broker, 412, text, "PUT", at(broker.topic(), "subscription/s"), "latest")


@call("subscriptions/delete")
async def delete(broker: Target) -> None:
    topic = await broker.fill(1)
    await broker.subscribe(topic)
    await broker.rest("PUT", at(topic, "subscription/t"))
    text = "Subscription has active connected consumers"
    await refused(broker, 412, text, "DELETE", at(topic, "subscription/s"))
    await broker.rest("DELETE", at(topic, "subscription/s?force=true"))
    await broker.rest("DELETE", at(topic, "subscription/t"))
    text = f"Subscription t not found for topic {topic}"
    await refused(broker, 404, text, "DELETE", at(topic, "subscription/t"))
    assert await broker.rest("GET", at(topic, "subscriptions")) == []


@call("subscriptions/skip")
async def skip(broker: Target) -> None:
    topic = await broker.fill(4)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    await broker.rest("POST", at(topic, "subscription/s/skip/2"))
    assert await backlog(broker, topic) == 2
    consumer = await broker.subscribe(topic, permits=1)
    assert payloads(await consumer.messages(1)) == [b"m2"]
    await broker.rest("POST", at(topic, "subscription/s/skip_all"))
    assert await backlog(broker, topic) == 0
    text = f"Subscription nosub not found for topic {topic}"
    for end in ("skip/2", "skip_all", "expireMessages/1", "resetcursor/0"):
        await refused(broker, 404, text, "POST", at(topic, f"subscription/nosub/{end}"))


@call("subscriptions/of partitions")
async def of_partitions(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    assert await broker.rest("GET", at(topic, "subscriptions")) == ["s"]
    await broker.rest("POST", at(topic, "subscription/s/skip_all"))
    await broker.rest("POST", at(topic, "subscription/s/resetcursor/0"))
    text = "on a partitioned topic is not allowed"
    await refused(broker, 405, text, "POST", at(topic, "subscription/s/skip/1"))
    await refused(broker, 405, text, "GET", at(topic, "subscription/s/position/1"))
    place = {"ledgerId": 1, "entryId": 1}
    text = "Reset-cursor at position is not allowed for partitioned-topic"
    await refused(broker, 405, text, "POST", at(topic, "subscription/s/resetcursor"), place)
    await refused(broker, 409, ALMOST, "POST", at(topic, "subscription/s/expireMessages/1"))
    await broker.rest("DELETE", at(topic, "subscription/s"))
    assert await broker.rest("GET", at(topic, "subscriptions")) == []


@call("subscriptions/expire")
async def expire(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    now = broker.now_ms()
    await producer.publish_all(b"a", b"b", meta_publish_time=now - 100_000)
    await producer.publish_all(b"c", first=2, meta_publish_time=now)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    await broker.rest("POST", at(topic, "subscription/s/expireMessages/50"))
    await broker.settle(0.5)
    stats = (await broker.rest("GET", at(topic, "stats")))["subscriptions"]["s"]
    assert (stats["msgBacklog"], stats["totalMsgExpired"]) == (1, 2)
    assert stats["lastExpireTimestamp"] > 0
    await broker.subscribe(topic)
    await refused(broker, 409, ALMOST, "POST", at(topic, "subscription/s/expireMessages/50"))
    await refused(broker, 409, ALMOST, "POST", at(topic, "all_subscription/expireMessages/50"))


@call("subscriptions/expire at a message")
async def expire_at(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    ids = await producer.publish_all(b"a", b"b", b"c")
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    await broker.rest("POST", at(topic, "subscription/s/expireMessages"), place(ids[1]))
    await broker.settle(0.5)
    assert await backlog(broker, topic) == 1


@call("subscriptions/reset")
async def reset(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    ids = []
    for number in range(3):
        time_ms = 1_000_000 + number * 1000
        ids += await producer.publish_all(b"%d" % number, first=number, meta_publish_time=time_ms)
    await broker.rest("PUT", at(topic, "subscription/s"))
    await broker.rest("POST", at(topic, "subscription/s/resetcursor/1001000"))
    assert await backlog(broker, topic) == 2
    consumer = await broker.subscribe(topic)
    await broker.rest("POST", at(topic, "subscription/s/resetcursor"), place(ids[0]))
    await consumer.expect("CLOSE_CONSUMER", consumer_id=1)
    assert await backlog(broker, topic) == 3
    await broker.rest("POST", at(topic, "subscription/s/resetcursor"), {**place(ids[0]), "excluded": True})
    assert await backlog(broker, topic) == 2


@call("subscriptions/analyze")
async def analyze(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    await producer.publish_all(b"a")
    await producer.publish_batch(b"b", b"c", first=1)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    told = await broker.rest("POST", at(topic, "subscription/s/analyzeBacklog"))
    assert (told["entries"], told["messages"], told["aborted"]) == (2, 3, False)


@call("subscriptions/analyze from a position")
async def analyze_from(broker: Target) -> None:
    topic = await broker.fill(6)
    consumer = await broker.subscribe(topic, permits=5)
    ids = [each.body.message_id for each in await consumer.messages(5)]
    await consumer.confirm_ack(ids[0], ids[3])
    path = at(topic, "subscription/s/analyzeBacklog")
    for start, entries, first in ((None, 4, 1), (3, 2, 4), (0, 5, 0), (9, 0, None)):
        body = None if start is None else {**place(ids[0]), "entryId": start}
        told = await broker.rest("POST", path, body)
        assert (told["entries"], told["messages"]) == (entries, entries)
        if first is not None:
            assert told["firstMessageId"] == f"{ids[0].ledgerId}:{first}"
