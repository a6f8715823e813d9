"""What settings do that have no row in a table of reactions."""

from __future__ import annotations

import pytest
from broker.targets import EmbeddedTarget
from interop.brokers import RestError
from net.scripted import run

from pulsarctl_wire.broker.core import Core
from pulsarctl_wire.conformance.basics.target import admin_path

HOURS = 3600


def test_producers_that_are_gone_for_long_are_forgotten() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("dedup") as target:
            topic = target.topic()
            await target.subscribe(topic)  # which keeps the topic

            async def last_sequence() -> int:
                probe = await target.connect()
                last = (await probe.create_producer(topic, producer_name="p")).last_sequence_id
                await probe.close()
                return int(last)

            producer = await target.produce(topic, producer_name="p")
            await producer.publish_all(b"m", first=5)
            await target.advance(12 * HOURS)  # it is still there
            await producer.close()
            await target.advance(5 * HOURS)
            assert await last_sequence() == 5
            await target.advance(9 * HOURS)
            assert await last_sequence() == -1

    run(whole())


@pytest.mark.parametrize("name", ["brokerPublisherThrottlingMaxByteRate", "maxMessagePublishBufferSizeInMB"])
def test_who_publishes_too_much_is_not_read_for_a_while(name: str) -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default", **{name: 1}) as target:
            probe = await target.produce(target.topic())
            (state,) = target.server.cluster.brokers[0].connections.values()
            assert not state.throttled
            for number in range(4):
                probe.publish(number, bytes(1 << 20))
            while len(probe.frames) < (4 if name.startswith("max") else 1):  # who is not read settles nothing
                await probe.changed.wait()
                probe.changed.clear()
            assert state.throttled == (not name.startswith("max"))

    run(whole())


def test_topics_without_policies_of_their_own() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default", topicLevelPoliciesEnabled=False) as target:
            topic = await target.fill(1)
            with pytest.raises(RestError, match="Topic level policies is disabled") as error:
                await target.rest("POST", f"{admin_path(topic)}/maxProducers", 3)
            assert error.value.status == 405

    run(whole())


@pytest.mark.parametrize("allowed", [True, False])
def test_tenants_deleted_by_force(allowed: bool) -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default", forceDeleteTenantAllowed=allowed) as target:
            tenant = "/admin/v2/tenants/t"
            await target.rest("PUT", tenant, {"allowedClusters": ["standalone"]})
            await target.rest("PUT", "/admin/v2/namespaces/t/n", {})
            probe = await target.produce("persistent://t/n/x")
            if allowed:
                await target.rest("DELETE", f"{tenant}?force=true")
                await probe.expect("CLOSE_PRODUCER", producer_id=1)
                assert "t" not in await target.rest("GET", "/admin/v2/tenants")
            else:
                with pytest.raises(RestError, match="doesn't allow forced deletion of tenants") as error:
                    await target.rest("DELETE", f"{tenant}?force=true")
                assert error.value.status == 405

    run(whole())


def test_publishers_of_a_topic_that_stores_nothing_are_counted() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            topic = target.topic().replace("persistent", "non-persistent")
            producer = await target.produce(topic)
            for number in range(5):
                await producer.publish_all(b"m", first=number)
            await target.advance(80)
            stats = await target.rest("GET", f"{admin_path(topic)}/stats")
            (publisher,) = stats["publishers"]
            assert publisher["msgRateIn"] == stats["msgRateIn"] > 0

    run(whole())


def test_partitions_in_use_that_are_not_stored() -> None:
    async def whole() -> None:
        settings = {"brokerDeleteInactivePartitionedTopicMetadataEnabled": True}
        async with EmbeddedTarget("default", **settings) as target:
            topic = target.topic().replace("persistent", "non-persistent")
            await target.rest("PUT", f"{admin_path(topic)}/partitions", 2)
            probe = await target.connect()
            for number in range(2):
                await probe.create_producer(f"{topic}-partition-{number}", number)
            await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
            await target.advance(200)
            assert topic in target.server.cluster.namespaces.partitioned
            await probe.expect_nothing()

    run(whole())


@pytest.mark.parametrize("deletes", [True, False])
def test_partitioned_topics_whose_partitions_are_gone(deletes: bool) -> None:
    async def whole() -> None:
        settings = {"brokerDeleteInactivePartitionedTopicMetadataEnabled": deletes}
        async with EmbeddedTarget("default", **settings) as target:
            topic, probe = await target.create_partitions(2), await target.connect()
            for number in range(2):
                await probe.create_producer(f"{topic}-partition-{number}", number)
            await probe.close()
            await target.advance(200)
            cluster: Core = target.server.cluster
            assert not cluster.namespaces.topics
            assert (topic in cluster.namespaces.partitioned) == (not deletes)

    run(whole())
