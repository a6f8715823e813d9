"""Topics: creating and deleting, partitions, unloading, terminating, properties, lookup."""

from __future__ import annotations

from broker.admin.calls import NAMESPACES, at, call, place, refused
from broker.targets import RealTarget

from pulsarctl_wire.conformance.basics.target import Target

EXISTS = "This topic already exists"


@call("topics/create")
async def create(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic), {"a": "b"})
    await refused(broker, 409, EXISTS, "PUT", at(topic))
    await refused(broker, 409, EXISTS, "PUT", at(topic, "partitions"), 2)
    assert await broker.rest("GET", at(topic, "partitions")) == {"partitions": 0, "deleted": False}
    assert await broker.rest("GET", at(topic, "properties")) == {"a": "b"}
    await refused(broker, 404, f"Partitioned Topic {topic} not found", "GET", at(topic, "partitioned-stats"))


@call("topics/number of partitions as a text")
async def number_as_text(broker: Target) -> None:
    for number, partitions in (("3", 3), (" 4 ", 4), (2.7, 2)):
        topic = broker.topic()
        await broker.rest("PUT", at(topic, "partitions"), number)
        assert (await broker.rest("GET", at(topic, "partitions")))["partitions"] == partitions
    for number, status in (("x", 400), ("1.5", 400), (True, 400), ("", 406), ("-1", 406)):
        await refused(broker, status, "", "PUT", at(broker.topic(), "partitions"), number)


@call("topics/create a partition without its topic")
async def lone_partition(broker: Target) -> None:
    topic = f"{broker.topic()}-partition-0"
    text = 'with "-partition-" followed by numeric value if there isn\'t a partitioned topic'
    await refused(broker, 412, text, "PUT", at(topic))
    text = "a number smaller than number of partition of partitioned topic"
    await refused(broker, 412, text, "PUT", at(f"{await broker.create_partitions(2)}-partition-2"))


@call("topics/delete")
async def delete(broker: Target) -> None:
    topic = await broker.fill(1)
    await broker.rest("PUT", at(topic, "subscription/s"))
    producer = await broker.produce(topic)
    await refused(broker, 412, "Topic has 1 connected producers/consumers", "DELETE", at(topic))
    await broker.rest("DELETE", at(topic, "?force=true").replace("/?", "?"))
    await producer.expect("CLOSE_PRODUCER", producer_id=1)
    await refused(broker, 404, f"Topic {topic} not found", "DELETE", at(topic))
    await refused(broker, 404, f"Topic {topic} not found", "GET", at(topic, "stats"))


@call("topics/partitions")
async def partitions(broker: Target) -> None:
    topic = broker.topic()
    await broker.rest("PUT", at(topic, "partitions"), 2)
    await refused(broker, 409, EXISTS, "PUT", at(topic, "partitions"), 2)
    await refused(broker, 409, EXISTS, "PUT", at(topic))
    assert await broker.rest("GET", at(topic, "partitions")) == {"partitions": 2, "deleted": False}
    await broker.rest("PUT", at(topic, "subscription/s"))
    await broker.rest("POST", at(topic, "partitions"), 3)
    assert (await broker.rest("GET", at(topic, "partitions")))["partitions"] == 3
    text = "Desired partitions 2 can't be less than the current partitions 3."
    await refused(broker, 422, text, "POST", at(topic, "partitions"), 2)
    assert await broker.rest("GET", at(f"{topic}-partition-2", "subscriptions")) == ["s"]
    await refused(broker, 404, f"Topic {topic} not found", "GET", at(topic, "stats"))
    await refused(broker, 409, "is a partitioned topic, instead of calling delete topic", "DELETE", at(topic))
    await broker.rest("DELETE", at(topic, "partitions"))
    await refused(broker, 404, f"Topic {topic} not found", "DELETE", at(topic, "partitions"))
    await refused(broker, 404, "not found", "GET", at(f"{topic}-partition-0", "stats"))


@call("topics/create missing partitions")
async def missing_partitions(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    await broker.rest("DELETE", at(f"{topic}-partition-1"))
    await broker.rest("POST", at(topic, "createMissedPartitions"))
    assert await broker.rest("GET", at(f"{topic}-partition-1", "subscriptions")) == []


@call("topics/partitions refused")
async def partitions_refused(broker: Target) -> None:
    topic = broker.topic()
    for number in (0, -1):
        text = "Number of partitions should be more than 0"
        await refused(broker, 406, text, "PUT", at(topic, "partitions"), number)
    await refused(broker, 400, "", "PUT", at(topic, "partitions"), "x")
    text = f"Topic {topic} is not the partitioned topic."
    await refused(broker, 409, text, "POST", at(topic, "partitions"), 2)
    await broker.rest("PUT", at(topic))
    await refused(broker, 409, "is a non-partitioned topic", "DELETE", at(topic, "partitions"))


@call("topics/partition metadata of a new name")
async def new_name(broker: Target) -> None:
    topic = broker.topic()
    await refused(broker, 404, f"Topic {topic} not found", "GET", at(topic, "partitions"))
    path = at(topic, "partitions?checkAllowAutoCreation=true")
    assert await broker.rest("GET", path) == {"partitions": 0, "deleted": False}
    await refused(broker, 404, f"Topic {topic} not found", "GET", at(topic, "stats"))


@call("topics/non-persistent")
async def volatile(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    await broker.rest("PUT", at(topic))
    assert (await broker.rest("GET", at(topic, "stats")))["msgInCounter"] == 0
    text = "on a non-persistent topic is not allowed"
    await refused(broker, 405, text, "GET", at(topic, "subscription/s/position/1"))
    other = broker.topic("non-persistent")
    await broker.rest("PUT", at(other, "partitions"), 2)
    listed = await broker.rest("GET", "/admin/v2/non-persistent/public/default/partitioned")
    assert other in listed
    assert (await broker.rest("GET", at(f"{other}-partition-0", "stats")))["publishers"] == []


@call("topics/unload")
async def unload(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    await broker.rest("PUT", at(topic, "unload"))
    await producer.expect("CLOSE_PRODUCER", producer_id=1)
    await refused(broker, 404, "not found", "PUT", at(broker.topic(), "unload"))


@call("topics/terminate")
async def terminate(broker: Target) -> None:
    topic = broker.topic()
    producer = await broker.produce(topic)
    (last,) = await producer.publish_all(b"a")
    told = await broker.rest("POST", at(topic, "terminate"))
    assert told == {**place(last), "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    await producer.expect("CLOSE_PRODUCER", producer_id=1)
    assert (await broker.rest("GET", at(topic, "internalStats")))["state"] == "Terminated"


@call("topics/terminate partitions")
async def terminate_partitions(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    text = "Termination of a partitioned topic is not allowed"
    await refused(broker, 405, text, "POST", at(topic, "terminate"))
    told = await broker.rest("POST", at(topic, "terminate/partitions"))
    assert set(told) == {"0", "1"}
    assert told["0"]["entryId"] == -1


@call("topics/compaction")
async def compaction(broker: Target) -> None:
    topic = await broker.fill(2)
    assert await broker.rest("GET", at(topic, "compaction")) == {"status": "NOT_RUN", "lastError": ""}
    await broker.rest("PUT", at(topic, "compaction"))
    for _ in range(20):
        await broker.advance(0.5)
        if (await broker.rest("GET", at(topic, "compaction")))["status"] != "RUNNING":
            break
    assert await broker.rest("GET", at(topic, "compaction")) == {"status": "SUCCESS", "lastError": ""}


@call("topics/properties")
async def properties(broker: Target) -> None:
    topic = await broker.create_partitions(2)
    await broker.rest("PUT", at(topic, "properties"), {"k": "v", "l": "w"})
    await broker.rest("DELETE", at(topic, "properties?key=k"))
    assert await broker.rest("GET", at(topic, "properties")) == {"l": "w"}
    single = broker.topic()
    await broker.rest("PUT", at(single))
    await broker.rest("PUT", at(single, "properties"), {"k": "v"})
    assert await broker.rest("GET", at(single, "properties")) == {"k": "v"}


@call("topics/lookup")
async def lookup(broker: Target) -> None:
    found = await broker.rest("GET", f"/lookup/v2/topic/persistent/public/default/{broker.name()}")
    url = f"pulsar://{broker.address[0]}:{broker.address[1]}"
    http_url = broker.rest_url if isinstance(broker, RealTarget) else ""
    assert found.pop("httpUrl", "") == http_url
    assert found == {"brokerUrl": url, "nativeUrl": url, "brokerUrlSsl": ""}
    await refused(broker, 404, "Namespace not found", "GET", "/lookup/v2/topic/persistent/public/nope/t")
    bundle = await broker.rest("GET", "/lookup/v2/topic/persistent/public/default/ops2/bundle")
    assert bundle == "0x80000000_0xc0000000"


@call("topics/truncate")
async def truncate(broker: Target) -> None:
    topic = await broker.fill(3)
    await broker.rest("PUT", at(topic, "subscription/s"), "earliest")
    await broker.rest("DELETE", at(topic, "truncate"))
    await broker.settle(1)
    stats = await broker.rest("GET", at(topic, "stats"))
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert stats["storageSize"] > 0  # in the last ledger, which stays


@call("topics/truncate what retention keeps")
async def truncate_retained(broker: Target) -> None:
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    topic = f"persistent://{await broker.create_namespace({'retention_policies': forever})}/t"
    await broker.fill(4, topic)
    await broker.rest("PUT", at(topic, "unload"))
    await broker.fill(2, topic)
    assert (await broker.rest("GET", at(topic, "internalStats")))["numberOfEntries"] == 6
    await broker.rest("DELETE", at(topic, "truncate"))
    await broker.settle(1)
    assert (await broker.rest("GET", at(topic, "internalStats")))["numberOfEntries"] == 2


@call("topics/automatically partitioned")
async def auto_partitioned(broker: Target) -> None:
    namespace = await broker.create_namespace()
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await broker.rest("POST", f"{NAMESPACES}/{namespace}/autoTopicCreation", override)
    path = at(f"persistent://{namespace}/t", "partitions?checkAllowAutoCreation=true")
    assert (await broker.rest("GET", path))["partitions"] == 3
    listed = await broker.rest("GET", f"/admin/v2/persistent/{namespace}/partitioned")
    assert listed == [f"persistent://{namespace}/t"]
