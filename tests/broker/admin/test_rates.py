"""Rates, which are those of the last minute; and what a broker that starts again knows."""

from __future__ import annotations

from broker.admin.calls import at
from broker.targets import EmbeddedTarget
from net.scripted import run

from pulsarctl_wire.broker.basics.settings import parse_settings
from pulsarctl_wire.broker.core import Core


def test_rates_are_those_of_the_last_minute() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            topic = target.topic()
            producer = await target.produce(topic)
            consumer = await target.subscribe(topic, permits=1000)
            await producer.publish_all(*[b"x"] * 120)
            await consumer.messages(120)
            stats = await target.rest("GET", at(topic, "stats"))
            assert (stats["msgRateIn"], stats["msgRateOut"]) == (0, 0)
            await target.advance(60)
            stats = await target.rest("GET", at(topic, "stats"))
            assert (stats["msgRateIn"], stats["msgRateOut"]) == (2, 2)
            assert stats["publishers"][0]["msgRateIn"] == 2
            assert stats["averageMsgSize"] == stats["storageSize"] / 120
            assert stats["subscriptions"]["s"]["consumers"][0]["msgRateOut"] == 2
            await target.advance(60)
            assert (await target.rest("GET", at(topic, "stats")))["msgRateIn"] == 0

    run(whole())


def test_policies_and_sizes_survive() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            topic = await target.fill(3)
            await target.rest("PUT", at(topic, "subscription/s"), "earliest")
            await target.rest("POST", at(topic, "maxProducers"), 3)
            await target.rest("PUT", at(topic, "unload"))
            size = (await target.rest("GET", at(topic, "stats")))["storageSize"]
            assert (await target.rest("GET", at(topic, "maxProducers"))) == 3
            server = target.server
            await target.advance(1)
            cluster = Core(parse_settings({}), server.storage.rows(), server.storage.ends())
            policies = cluster.namespaces.topics[topic]["policies"]
        assert policies == {"maxProducerPerTopic": 3}
        assert size > 0

    run(whole())
