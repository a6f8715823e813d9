"""What producers and consumers do when the broker gives them up, or names another broker."""

from __future__ import annotations

from typing import Any

from net.scripted import (
    Peer,
    ScriptedBroker,
    awaited,
    build,
    close_consumer,
    close_producer,
    connect_to,
    deliver,
    entry,
    hang_up,
    nobody,
    payloads,
    producing,
    send,
    silence,
    subscribed,
    take,
)

from pulsarctl_wire.wire.frame import Frame

ELSEWHERE: dict[str, Any] = {"brokerServiceUrl": "pulsar://nowhere:1"}


def assigned(broker: ScriptedBroker) -> dict[str, str]:
    """The fields by which CLOSE_PRODUCER and CLOSE_CONSUMER name a broker."""
    return {"assignedBrokerServiceUrl": broker.url, "assignedBrokerServiceUrlTls": "pulsar+ssl://nowhere:1"}


def migrated(broker: ScriptedBroker, frame: Frame) -> bytes:
    """TOPIC_MIGRATED for the producer or the consumer of a frame."""
    kind = "producer_id" if frame.command in ("PRODUCER", "SEND") else "consumer_id"
    return build(
        "TOPIC_MIGRATED",
        resource_id=getattr(frame.body, kind),
        resource_type=0 if kind == "producer_id" else 1,
        brokerServiceUrl=broker.url,
    )


# ---- Producers ----


@awaited
async def test_close_producer() -> None:
    """CLOSE_PRODUCER: looked up, opened again (epoch + 1) on the same connection, all pending sent again."""
    async with ScriptedBroker() as broker, broker.client() as client:
        async with producing(broker, client) as (producer, results):
            broker.once("SEND", lambda peer, frame: close_producer(frame), silence)
            await send(producer, b"a", b"b")
            await producer.flush()
            assert results.stored == [0, 1]
        assert [body.epoch for body in broker.bodies("PRODUCER")] == [0, 1]
        assert len(broker.seen("LOOKUP")) == 2
        assert [body.sequence_id for body in broker.bodies("SEND")] == [0, 1, 0, 1]
        assert len(broker.peers) == 1


@awaited
async def test_close_producer_before_anything_is_sent() -> None:
    """So too when nothing is pending: what is sent meanwhile goes when the producer is open again."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.peers[0].send(close_producer(broker.seen("PRODUCER")[0]))
        await broker.warned("opening it again")
        await send(producer, b"a")
        assert not broker.seen("SEND")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.seen("PRODUCER")) == 2


@awaited
async def test_close_producer_for_another_broker() -> None:
    """CLOSE_PRODUCER that names a broker: the producer goes there without a lookup."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        async with producing(second, client) as (producer, results):
            first.once("SEND", lambda peer, frame: close_producer(frame, **assigned(second)))
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert second.peers[0].commands[:3] == ["CONNECT", "PRODUCER", "SEND"]
        assert second.bodies("PRODUCER")[0].epoch == 1
        assert len(first.seen("LOOKUP")) == 1


@awaited
async def test_close_producer_for_a_dead_broker() -> None:
    """If the broker it names cannot be reached, the producer is looked up after all."""
    async with ScriptedBroker() as broker, broker.client() as client:
        with nobody() as place:
            async with producing(broker, client) as (producer, results):
                url = {"assignedBrokerServiceUrl": f"pulsar://{place}"}
                broker.once("SEND", lambda peer, frame: close_producer(frame, **url))
                await send(producer, b"a")
                await producer.flush()
                assert results.stored == [0]
                assert broker.warnings(f"CLOSE_PRODUCER named cannot be reached: {place}: refused")


@awaited
async def test_close_producer_with_an_address_that_is_none() -> None:
    """So too if what it names is no address."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        url = {"assignedBrokerServiceUrl": "http://b:8080"}
        broker.once("SEND", lambda peer, frame: close_producer(frame, **url))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert broker.warnings("CLOSE_PRODUCER: http://b:8080 is a web service URL")


@awaited
async def test_topic_migrated_producer() -> None:
    """TOPIC_MIGRATED, then CLOSE_PRODUCER: the producer goes to the broker that the first of them named."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        async with producing(second, client) as (producer, results):
            first.once("SEND", lambda peer, frame: migrated(second, frame) + close_producer(frame))
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert second.peers[0].commands[:3] == ["CONNECT", "PRODUCER", "SEND"]


@awaited
async def test_topic_migrated_and_the_link_lost() -> None:
    """So too if the connection ends in place of CLOSE_PRODUCER."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        async with producing(second, client) as (producer, results):

            def migrate(peer: Peer, frame: Frame) -> None:
                peer.send(migrated(second, frame))
                peer.hang_up()

            first.once("SEND", migrate)
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert second.peers[0].commands[:3] == ["CONNECT", "PRODUCER", "SEND"]


@awaited
async def test_old_link_lost_after_moving() -> None:
    """When a producer has moved to another broker, the end of its former connection is nothing to it."""
    async with (
        ScriptedBroker() as first,
        ScriptedBroker() as second,
        first.client() as client,
        producing(second, client) as (producer, results),
    ):
        first.once("SEND", lambda peer, frame: close_producer(frame, **assigned(second)))
        await send(producer, b"a")
        await producer.flush()
        link = await client.open_service_link()
        first.peers[0].hang_up()
        await link.closed
        await send(producer, b"b")
        await producer.flush()
        assert results.stored == [0, 1]
        assert len(first.seen("PRODUCER")) == len(second.seen("PRODUCER")) == 1


@awaited
async def test_closed_as_soon_as_opened() -> None:
    """A CLOSE_PRODUCER right behind the PRODUCER_SUCCESS is heard: the producer is opened once more."""
    async with ScriptedBroker() as broker, broker.client() as client:

        def both(peer: Peer, frame: Frame) -> bytes:
            said = {"request_id": frame.body.request_id, "producer_name": "p", "topic_epoch": 5}
            return build("PRODUCER_SUCCESS", **said) + close_producer(frame)

        broker.once("PRODUCER", both)
        async with producing(broker, client) as (producer, results):
            assert len(broker.seen("PRODUCER")) == 2
            again = broker.seen("PRODUCER")[1]
            assert (again.body.producer_name, again.body.topic_epoch) == ("p", 5)
            broker.once("PRODUCER", both)
            broker.once("SEND", lambda peer, frame: close_producer(frame))
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
            assert len(broker.seen("PRODUCER")) == 4


@awaited
async def test_closed_while_being_opened_again() -> None:
    """A second CLOSE_PRODUCER while the producer is being opened again changes nothing."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", lambda peer, frame: close_producer(frame) * 2)
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.seen("PRODUCER")) == 2


@awaited
async def test_close_producer_without_reconnect() -> None:
    """Without reconnecting CLOSE_PRODUCER ends the producer: all pending fails."""
    async with (
        ScriptedBroker() as broker,
        broker.client(reconnect=False) as client,
        producing(broker, client) as (producer, results),
    ):
        broker.once("SEND", lambda peer, frame: close_producer(frame))
        await send(producer, b"a")
        await producer.flush()
        assert results.failed == [0]
        assert "the broker closed the producer" in str(results[0].error)


@awaited
async def test_close_producer_behind_a_proxy() -> None:
    """Behind a proxy the broker that CLOSE_PRODUCER names is reached by way of the proxy too."""
    async with ScriptedBroker() as proxy, proxy.client() as client:
        first: dict[str, Any] = {
            "brokerServiceUrl": "pulsar://broker-1:6650",
            "proxy_through_service_url": True,
        }
        proxy.always("LOOKUP", connect_to(**first))
        async with producing(proxy, client) as (producer, results):
            url = {"assignedBrokerServiceUrl": "pulsar://127.0.0.1:1"}
            proxy.once("SEND", lambda peer, frame: close_producer(frame, **url))
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert [body.proxy_to_broker_url for body in proxy.bodies("CONNECT")] == [
            "",
            "broker-1:6650",
            "127.0.0.1:1",
        ]


@awaited
async def test_other_producers_are_not_concerned() -> None:
    """CLOSE_PRODUCER concerns the producer it names, no other one of that connection."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (one, fates_of_one),
        producing(broker, client) as (other, _),
    ):
        broker.once("SEND", lambda peer, frame: close_producer(frame))
        await send(one, b"a")
        await send(other, b"b")
        await one.flush()
        await other.flush()
        assert fates_of_one.stored == [0]
        ids = [body.producer_id for body in broker.bodies("PRODUCER")]
        assert ids == [ids[0], ids[1], ids[0]]


# ---- Consumers ----


@awaited
async def test_close_consumer() -> None:
    """CLOSE_CONSUMER: looked up, subscribed again on the same connection, with a whole queue's permits."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", lambda peer, frame: close_consumer(frame), deliver(entry(0, b"a")))
        async with subscribed(client, queue_size=10) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
        assert broker.peers[0].commands[1:8] == [
            "PARTITIONED_METADATA",
            *("LOOKUP", "SUBSCRIBE", "FLOW"),
            *("LOOKUP", "SUBSCRIBE", "FLOW"),
        ]
        assert [body.messagePermits for body in broker.bodies("FLOW")] == [10, 10]


@awaited
async def test_close_consumer_for_another_broker() -> None:
    """CLOSE_CONSUMER that names a broker: the consumer goes there without a lookup."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        first.once("FLOW", lambda peer, frame: close_consumer(frame, **assigned(second)))
        second.once("FLOW", deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
        assert second.peers[0].commands[:3] == ["CONNECT", "SUBSCRIBE", "FLOW"]


@awaited
async def test_topic_migrated_consumer() -> None:
    """TOPIC_MIGRATED, then CLOSE_CONSUMER: the consumer goes to the broker that the first of them named."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        first.once("FLOW", lambda peer, frame: migrated(second, frame) + close_consumer(frame))
        second.once("FLOW", deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [b"a"]
        assert second.peers[0].commands[:3] == ["CONNECT", "SUBSCRIBE", "FLOW"]


@awaited
async def test_topic_migrated_of_somebody_else() -> None:
    """TOPIC_MIGRATED for an id that is none of ours is passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
    ):
        for kind in (0, 1):
            fields = {"resource_id": 99, "resource_type": kind}
            broker.peers[0].send(build("TOPIC_MIGRATED", **fields, **ELSEWHERE))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]


@awaited
async def test_old_link_lost_after_a_consumer_has_moved() -> None:
    """When a consumer has moved to another broker, the end of its former connection is nothing to it."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        first.once("FLOW", lambda peer, frame: close_consumer(frame, **assigned(second)))
        async with subscribed(client):
            await second.saw("FLOW")
            link = await client.open_service_link()
            first.peers[0].hang_up()
            await link.closed
            assert first.warnings("opening it again") == 1


@awaited
async def test_consumer_closed_as_soon_as_opened() -> None:
    """A CLOSE_CONSUMER right behind the answer of SUBSCRIBE is heard: the consumer is opened once more."""
    async with ScriptedBroker() as broker, broker.client() as client:

        def both(peer: Peer, frame: Frame) -> bytes:
            return build("SUCCESS", request_id=frame.body.request_id) + close_consumer(frame)

        broker.once("SUBSCRIBE", both)
        broker.once("FLOW", hang_up, deliver(entry(0, b"a")))
        async with subscribed(client) as subscription:
            broker.once("SUBSCRIBE", both)
            assert payloads(await take(subscription, 1)) == [b"a"]
            assert len(broker.seen("SUBSCRIBE")) == 4


@awaited
async def test_close_of_somebody_else() -> None:
    """CLOSE_PRODUCER and CLOSE_CONSUMER for ids that are none of ours are passed over."""
    async with (
        ScriptedBroker() as broker,
        broker.client() as client,
        producing(broker, client) as (producer, results),
        subscribed(client),
    ):
        for name in ("producer", "consumer"):
            fields = {f"{name}_id": 99, "request_id": 1}
            broker.peers[0].send(build(f"CLOSE_{name.upper()}", **fields))
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert len(broker.seen("LOOKUP")) == 2
