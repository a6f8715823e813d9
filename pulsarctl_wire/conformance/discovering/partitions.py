"""PARTITIONED_METADATA."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, present, require
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


async def _ask(probe: Probe, topic: str) -> Any:
    return await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)


async def _count(probe: Probe, topic: str) -> int:
    body = await _ask(probe, topic)
    present(body, "response")
    equal(body.response, body.Success, "response")
    present(body, "partitions")
    return int(body.partitions)


@case(MUST)
async def plain_exists(broker: Target) -> None:
    """Existing non-partitioned topic: PARTITIONED_METADATA.

    Expected: PARTITIONED_METADATA_RESPONSE {partitions=0 (present), response=Success, request_id}.

    Source: Protocol: Partitioned topics discovery; broker: ServerCnx.handlePartitionMetadataRequest.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    equal(await _count(probe, topic), 0, "count")


@case(OBSERVED)
async def missing_topic(broker: Target) -> None:
    """Topic does not exist, auto-creation on, metadata_auto_creation_enabled default (true).

    Expected: partitions=0, Success; GET_TOPICS does not list it.

    Source: Protocol: Partitioned topics discovery; broker: ServerCnx.handlePartitionMetadataRequest.
    """
    topic = broker.topic()
    probe = await broker.connect()
    equal(await _count(probe, topic), 0, "count")
    topics = (await probe.list_topics()).topics
    require(topic not in topics, f"no {topic} among the topics", topics)


@case(MUST, needs=("admin",))
async def partitioned(broker: Target) -> None:
    """PARTITIONED_METADATA of a topic with 3 partitions.

    Expected: partitions=3, Success.

    Source: Protocol: Partitioned topics discovery; broker: ServerCnx.handlePartitionMetadataRequest.
    """
    topic = await broker.create_partitions(3)
    equal(await _count(await broker.connect(), topic), 3, "count")


@case(SHOULD, needs=("admin",))
async def of_a_partition(broker: Target) -> None:
    """Partitioned topic of 3: PARTITIONED_METADATA of <topic>-partition-1.

    Expected: partitions=0, Success.

    Source: Protocol: Partitioned topics discovery; broker: ServerCnx.handlePartitionMetadataRequest.
    """
    topic = await broker.create_partitions(3)
    equal(await _count(await broker.connect(), f"{topic}-partition-1"), 0, "count")


@case(OBSERVED, needs=("admin",), since="4.0")
async def beyond_range(broker: Target) -> None:
    """Partitioned topic of 3: LOOKUP and PRODUCER on <topic>-partition-3 and -7.

    Expected: LOOKUP Connect; PRODUCER ERROR TopicNotFound.

    Source: Broker: BrokerService.
    """
    parent, probe = await broker.create_partitions(3), await broker.connect()
    for index in (3, 7):
        topic = f"{parent}-partition-{index}"
        await probe.look_up(topic)
        await probe.expect_error("TopicNotFound", "PRODUCER", topic=topic, producer_id=index)


@case(SHOULD)
async def invalid_name(broker: Target) -> None:
    """PARTITIONED_METADATA topic='foo://x'.

    Expected: Failed, InvalidTopicName.

    Source: Protocol: Partitioned topics discovery; broker: ServerCnx.handlePartitionMetadataRequest.
    """
    body = await _ask(await broker.connect(), "foo://x")
    equal(body.response, body.Failed, "response")
    equal(body.error, ServerError.InvalidTopicName, "error")


@case(OBSERVED, since="3.3")
async def unknown_namespace(broker: Target) -> None:
    """PARTITIONED_METADATA in an unknown namespace, with metadata_auto_creation_enabled true and false.

    Expected: TopicNotFound 'Namespace not found'; TopicNotFound ''.

    Source: Broker: ServerCnx.handlePartitionMetadataRequest.
    """
    probe, topic = await broker.connect(), f"persistent://public/{broker.name('n')}/t"
    for creation, text in ((True, "Namespace not found"), (False, "")):
        fields = {"topic": topic, "metadata_auto_creation_enabled": creation}
        body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **fields)
        equal(
            (body.response, body.error, body.message),
            (body.Failed, ServerError.TopicNotFound, text),
            "response, error, message",
        )


@case(OBSERVED, needs=("admin",), since="4.0")
async def metadata_beyond_range(broker: Target) -> None:
    """Partitioned topic of 3: PARTITIONED_METADATA of <topic>-partition-3 and -7.

    Expected: PARTITIONED_METADATA_RESPONSE, Failed, TopicNotFound.

    Source: Broker: BrokerService.
    """
    topic, probe = await broker.create_partitions(3), await broker.connect()
    for index in (3, 7):
        fields = {"topic": f"{topic}-partition-{index}"}
        body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", **fields)
        equal((body.response, body.error), (body.Failed, ServerError.TopicNotFound), "response, error")


@case(OBSERVED, needs=("admin",))
async def made_when_used(broker: Target) -> None:
    """Namespace whose topics are made with 3 partitions: PARTITIONED_METADATA; GET_TOPICS; PRODUCER on
    partition 1; GET_TOPICS.

    Expected: 3; none; PRODUCER_SUCCESS; only partition 1.

    Source: Broker: BrokerService.
    """
    creation = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    namespace = await broker.create_namespace()
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/autoTopicCreation", creation)
    topic, probe = f"persistent://{namespace}/t", await broker.connect()
    body = await probe.request("PARTITIONED_METADATA", "PARTITIONED_METADATA_RESPONSE", topic=topic)
    equal(body.partitions, 3, "partitions")
    equal(list((await probe.list_topics(namespace=namespace)).topics), [], "topics")
    await probe.create_producer(f"{topic}-partition-1")
    equal(list((await probe.list_topics(namespace=namespace)).topics), [f"{topic}-partition-1"], "topics")
