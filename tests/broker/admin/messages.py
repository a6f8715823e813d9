"""Messages, and statistics."""

from __future__ import annotations

from broker.admin.calls import at, call, place, refused

from pulsarctl_wire.conformance.basics.probe import CLIENT
from pulsarctl_wire.conformance.basics.target import Target


@call("messages/peek")
async def peek(broker: Target) -> None:
    topic = await broker.fill(3)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    assert await broker.rest("GET", at(topic, "subscription/s/position/1")) == "m0"
    assert await broker.rest("GET", at(topic, "subscription/s/position/3")) == "m2"
    await refused(broker, 404, "Message not found", "GET", at(topic, "subscription/s/position/4"))
    consumer = await broker.subscribe(topic, "Shared", permits=10)
    messages = await consumer.messages(3)
    await consumer.confirm_ack(messages[1].body.message_id)
    assert await broker.rest("GET", at(topic, "subscription/s/position/2")) == "m2"


@call("messages/peek makes the subscription")
async def peek_makes(broker: Target) -> None:
    topic = await broker.fill(2)
    assert await broker.rest("GET", at(topic, "subscription/new/position/2")) == "m1"
    assert await broker.rest("GET", at(topic, "subscriptions")) == ["new"]


@call("messages/by id")
async def by_id(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    ids = await producer.publish_all(b"a", b"b")
    ledger, entry = ids[1].ledgerId, ids[1].entryId
    assert await broker.rest("GET", at(topic, f"ledger/{ledger}/entry/{entry}")) == "b"
    text = f"LastConfirmedEntry is {ledger}:1 when reading entry 9"
    await refused(broker, 500, text, "GET", at(topic, f"ledger/{ledger}/entry/9"))
    await refused(broker, 404, "Message id not found", "GET", at(topic, "ledger/999999/entry/0"))


@call("messages/examine")
async def examine(broker: Target) -> None:
    topic = await broker.fill(3)
    rows = {
        "?initialPosition=earliest&messagePosition=1": "m0",
        "?initialPosition=earliest&messagePosition=99": "m2",
        "?initialPosition=latest&messagePosition=1": "m2",
        "?initialPosition=latest&messagePosition=3": "m0",
        "": "m2",
    }
    for query, payload in rows.items():
        assert await broker.rest("GET", at(topic, f"examinemessage{query}")) == payload, query
    empty = broker.topic()
    await broker.rest("PUT", at(empty))
    text = "Could not examine messages due to the total message is zero"
    await refused(broker, 412, text, "GET", at(empty, "examinemessage"))


@call("messages/ids")
async def ids(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    (first,) = await producer.publish_all(b"a", meta_publish_time=1000)
    last = await producer.publish_batch(b"b", b"c", first=1, meta_publish_time=2000)
    told = {"partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert await broker.rest("GET", at(topic, "messageid/0")) == {**place(first), **told}
    assert await broker.rest("GET", at(topic, "messageid/1001")) == {**place(last), **told}
    after = {**place(last), "entryId": 2}
    assert await broker.rest("GET", at(topic, "messageid/9999999999999")) == {**after, **told}
    found = await broker.rest("GET", at(topic, "lastMessageId"))
    assert {**found, **place(last), "batchIndex": 1} == found


@call("stats/counters")
async def stats(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic, producer_name="pp", metadata=[{"key": "pk", "value": "pv"}])
    await producer.publish_all(b"a", b"b")
    await producer.publish_batch(b"c", b"d", first=2)
    consumer = await broker.subscribe(
        topic, "Shared", permits=10, consumer_name="cc", metadata=[{"key": "ck", "value": "cv"}]
    )
    messages = await consumer.messages(3)
    await consumer.confirm_ack(messages[0].body.message_id)
    told = await broker.rest("GET", at(topic, "stats"))
    assert (told["msgInCounter"], told["msgOutCounter"]) == (4, 4)
    assert told["bytesInCounter"] == told["bytesOutCounter"] == told["storageSize"] > 0
    (publisher,) = told["publishers"]
    assert (publisher["producerName"], publisher["metadata"]) == ("pp", {"pk": "pv"})
    assert (publisher["clientVersion"], publisher["accessMode"]) == (CLIENT["client_version"], "Shared")
    one = told["subscriptions"]["s"]
    assert (one["type"], one["msgBacklog"], one["unackedMessages"], one["isDurable"]) == (
        "Shared",
        2,
        3,
        True,
    )
    size = told["storageSize"]
    assert one["backlogSize"] == size - size // 3
    (other,) = one["consumers"]
    assert (other["consumerName"], other["metadata"]) == ("cc", {"ck": "cv"})
    assert (other["availablePermits"], other["unackedMessages"], other["msgOutCounter"]) == (6, 3, 4)
    assert min(other[f"last{what}Timestamp"] for what in ("Acked", "Consumed", "ConsumedFlow")) > 0


@call("stats/fields")
async def fields(broker: Target) -> None:
    """All that Pulsar tells is there, with values of the same type."""
    topic = await broker.fill(1)
    await broker.subscribe(topic, "Key_Shared")
    told = await broker.rest("GET", at(topic, "stats"))
    for name in ("msgRateIn", "msgThroughputOut", "averageMsgSize"):
        assert told[name] == 0.0, name
    assert told["deduplicationStatus"] == "Disabled"
    assert (told["backlogQuotaLimitSize"], told["backlogQuotaLimitTime"]) == (10 << 30, -1)
    assert told["compaction"]["lastCompactionSucceedTimestamp"] == 0
    assert (told["waitingPublishers"], told["replication"]) == (0, {})
    one = told["subscriptions"]["s"]
    assert (one["type"], one["keySharedMode"]) == ("Key_Shared", "AUTO_SPLIT")
    assert "activeConsumerName" not in one


@call("stats/active consumer")
async def active(broker: Target) -> None:
    topic = await broker.fill(1)
    await broker.subscribe(topic, "Failover", consumer_name="one")
    told = await broker.rest("GET", at(topic, "stats"))
    assert told["subscriptions"]["s"]["activeConsumerName"] == "one"


@call("stats/of backlogs")
async def backlogs(broker: Target) -> None:
    topic = await broker.fill(2)
    for name, start in (("all", "earliest"), ("none", "latest")):
        await broker.rest("PUT", at(topic, "subscription", name), start)

    async def told(query: str) -> tuple[int, list[tuple[int, int]]]:
        stats = await broker.rest("GET", at(topic, f"stats?{query}"))
        parts = [stats["subscriptions"][name] for name in ("all", "none")]
        pairs = [(each["backlogSize"], each["earliestMsgPublishTimeInBacklog"]) for each in parts]
        return stats["backlogSize"], pairs

    size, ((of_all, no_time), none) = await told("")
    assert size == of_all > 0 == no_time
    assert none == (0, 0)
    assert await told("subscriptionBacklogSize=false") == (size, [(-1, 0), (-1, 0)])
    _, ((_, time), none) = await told("getEarliestTimeInBacklog=true")
    assert time > 0
    assert none == (0, -1)


@call("stats/role of a consumer", setting="auth")
async def role_of_a_consumer(broker: Target) -> None:
    consumer = await broker.connect(auth_method_name="token", auth_data=broker.tokens["client"].encode())
    topic = broker.topic()
    await consumer.subscribe(topic)
    told = await broker.rest("GET", at(topic, "stats"))
    assert told["subscriptions"]["s"]["consumers"][0]["appId"] == "client"


@call("stats/internal")
async def internal(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    (first, *_) = await producer.publish_all(b"a", b"b", b"c")
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    told = await broker.rest("GET", at(topic, "internalStats"))
    ledger = first.ledgerId
    assert (told["entriesAddedCounter"], told["numberOfEntries"], told["currentLedgerEntries"]) == (3, 3, 3)
    assert told["totalSize"] == told["currentLedgerSize"] > 0
    assert (told["lastConfirmedEntry"], told["state"]) == (f"{ledger}:2", "LedgerOpened")
    assert told["ledgers"][0]["ledgerId"] == ledger
    cursor = told["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger}:-1"
    assert cursor["individuallyDeletedMessages"] == "[]"
    consumer = await broker.subscribe(topic, "Shared", permits=10)
    messages = await consumer.messages(3)
    await consumer.confirm_ack(messages[1].body.message_id)
    told = await broker.rest("GET", at(topic, "internalStats"))
    assert told["cursors"]["s"]["individuallyDeletedMessages"] == f"[({ledger}:0..{ledger}:1]]"


@call("stats/of partitions")
async def of_partitions(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    await broker.fill(2, f"{topic}-partition-0")
    await broker.fill(3, f"{topic}-partition-1")
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    told = await broker.rest("GET", at(topic, "partitioned-stats"))
    assert (told["msgInCounter"], told["subscriptions"]["s"]["msgBacklog"]) == (5, 5)
    assert told["metadata"] == {"partitions": 2, "deleted": False}
    assert set(told["partitions"]) == {f"{topic}-partition-0", f"{topic}-partition-1"}
    short = await broker.rest("GET", at(topic, "partitioned-stats?perPartition=false"))
    assert (short["partitions"], short["storageSize"]) == ({}, told["storageSize"])
    parts = await broker.rest("GET", at(topic, "partitioned-internalStats"))
    assert parts["partitions"][f"{topic}-partition-1"]["numberOfEntries"] == 3
