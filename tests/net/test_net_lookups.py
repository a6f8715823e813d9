"""What a session does when it looks for the broker of a topic, or asks anything else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from net.scripted import (
    TOPIC,
    ScriptedBroker,
    answer,
    awaited,
    connect_to,
    hang_up,
    nobody,
    producing,
    refuse_lookup,
    send,
    silence,
)

from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, Unreachable
from pulsarctl_wire.net.session import client as client_module
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandLookupTopicResponse, ServerError

REDIRECT: dict[str, Any] = {"response": CommandLookupTopicResponse.Redirect}


@awaited
async def test_redirect() -> None:
    """A redirect is followed to the broker it names, and its `authoritative` is said there."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        first.always("LOOKUP", connect_to(second, **REDIRECT))
        async with producing(second, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert [body.authoritative for body in first.bodies("LOOKUP")] == [False]
        assert [body.authoritative for body in second.bodies("LOOKUP")] == [True]
        assert not first.seen("PRODUCER")


@awaited
async def test_hops() -> None:
    """Every step of a lookup is told: who was asked, how, and what it said."""
    async with ScriptedBroker() as first, ScriptedBroker() as second, first.client() as client:
        first.always("LOOKUP", connect_to(second, authoritative=False, **REDIRECT))
        hops = [hop async for hop in client.trace_lookup(TOPIC)]
        assert [(hop.asked, hop.authoritative, hop.response, hop.url) for hop in hops] == [
            (first.address, False, "Redirect", second.url),
            (second.address, False, "Connect", second.url),
        ]
        assert all(hop.latency_ns > 0 for hop in hops)


@awaited
async def test_lookup_redirect_loop() -> None:
    """Brokers that send us in circles are given up after twenty redirects, at once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("LOOKUP", connect_to(**REDIRECT))
        with pytest.raises(Unreachable, match="still a redirect after 20"):
            await client.retry(lambda: client.lookup(TOPIC), "lookup")
        said = [body.authoritative for body in broker.bodies("LOOKUP")]
        assert said == [False] + [True] * 20


@pytest.mark.parametrize("opened_before", [False, True])
@awaited
async def test_pauses_that_are_announced(monkeypatch: pytest.MonkeyPatch, opened_before: bool) -> None:
    """A warning names the pause that follows it, also where a pause comes before the first attempt."""
    slept: list[float] = []
    said: list[str] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def attempt() -> None:
        if len(said) < 3:
            raise LinkClosed("lost")

    async with ScriptedBroker() as broker, broker.client(timeout=600.0) as client:
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "asyncio", SimpleNamespace(sleep=sleep))
            patch.setattr(client_module, "random", SimpleNamespace(uniform=lambda low, high: high))
            patch.setattr(client, "warn", said.append)
            await client.retry(attempt, "it", opened_before=opened_before, pause=20.0)
    pauses = slept[1:] if opened_before else slept
    assert pauses == ([40.0, 60.0, 60.0] if opened_before else [20.0, 40.0, 60.0])
    assert said == [f"it: lost; retrying in {pause:g} s" for pause in pauses]


@awaited
async def test_lookup_not_found() -> None:
    """A topic that does not exist is told at once."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("LOOKUP", refuse_lookup("TopicNotFound", "no such namespace"))
        with pytest.raises(BrokerError, match="no such namespace") as caught:
            async with producing(broker, client):
                pass
        assert (caught.value.code, caught.value.request) == ("TopicNotFound", "LOOKUP")
        assert len(broker.seen("LOOKUP")) == 1


@awaited
async def test_lookup_not_ready() -> None:
    """A broker that is not ready for a lookup is asked again, over the same connection."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("LOOKUP", refuse_lookup("ServiceNotReady"))
        async with producing(broker, client):
            assert len(broker.seen("LOOKUP")) == 2
            assert len(broker.peers) == 1


@awaited
async def test_lookup_never_ready() -> None:
    """One that stays unready is given up after the timeout, with its own reason."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.25) as client:
        broker.always("LOOKUP", refuse_lookup("ServiceNotReady", "still loading"))
        with pytest.raises(BrokerError, match="ServiceNotReady: still loading"):
            async with producing(broker, client):
                pass
        assert len(broker.seen("LOOKUP")) > 1


@awaited
async def test_lookup_never_answered() -> None:
    """A request that is never answered is told by its name and that of its answer."""
    async with ScriptedBroker() as broker, broker.client(timeout=0.05) as client:
        broker.always("LOOKUP", silence)
        with pytest.raises(RequestTimeout, match="LOOKUP was not answered by LOOKUP_RESPONSE within"):
            await client.lookup(TOPIC)


@awaited
async def test_link_lost_while_asking() -> None:
    """A question whose connection ends before the answer is asked again over another one."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("PARTITIONED_METADATA", hang_up)
        assert await client.count_partitions(TOPIC) == 0
        assert broker.peers[1].commands == ["CONNECT", "PARTITIONED_METADATA"]


@awaited
async def test_link_lost_while_asking_without_reconnect() -> None:
    """Without reconnecting such a question ends with LinkClosed, which says what has no answer."""
    async with ScriptedBroker() as broker, broker.client(reconnect=False) as client:
        broker.once("PARTITIONED_METADATA", hang_up)
        with pytest.raises(
            LinkClosed, match="the broker closed the connection; PARTITIONED_METADATA has no answer"
        ):
            await client.count_partitions(TOPIC)
        assert len(broker.peers) == 1


@awaited
async def test_partitions() -> None:
    """A partitioned topic says so; whether asking may create it is said in the request."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=3))
        assert await client.count_partitions(TOPIC) == 3
        assert await client.count_partitions(TOPIC, create=False) == 3
        first, second = broker.bodies("PARTITIONED_METADATA")
        assert (first.metadata_auto_creation_enabled, second.metadata_auto_creation_enabled) == (True, False)


@awaited
async def test_partitions_refused_by_a_proxy() -> None:
    """The Pulsar proxy refuses PARTITIONED_METADATA by a LOOKUP_RESPONSE: that is a refusal too."""
    async with ScriptedBroker() as broker, broker.client() as client:
        refused = answer(
            "LOOKUP_RESPONSE",
            response=CommandLookupTopicResponse.Failed,
            error=ServerError.AuthorizationError,
            message="not yours",
        )
        broker.always("PARTITIONED_METADATA", refused)
        with pytest.raises(BrokerError, match="AuthorizationError: not yours"):
            await client.count_partitions(TOPIC)


@awaited
async def test_unreachable_advertised_address() -> None:
    """An advertised address that refuses connections is told with who named it and what may help."""
    with nobody() as place:
        async with ScriptedBroker() as broker, broker.client() as client:
            broker.always("LOOKUP", connect_to(brokerServiceUrl=f"pulsar://{place}"))
            with pytest.raises(Unreachable) as caught:
                async with producing(broker, client):
                    pass
            text = str(caught.value)
            assert f"LOOKUP_RESPONSE of {broker.address}" in text
            assert f"{place}: refused" in text
            assert "--listener-name" in text


@awaited
async def test_silent_advertised_address() -> None:
    """So is one that does not answer, as addresses of another network do."""
    async with (
        ScriptedBroker() as broker,
        ScriptedBroker() as silent,
        broker.client(connect_timeout=0.2) as client,
    ):
        silent.always("CONNECT", silence)
        broker.always("LOOKUP", connect_to(silent))
        with pytest.raises(RequestTimeout, match=f"LOOKUP_RESPONSE of {broker.address}"):
            async with producing(broker, client):
                pass


@awaited
async def test_advertised_address_for_tls_only() -> None:
    """An advertised address for TLS alone is no way without TLS: the error says what there is."""
    async with ScriptedBroker() as broker, broker.client() as client:
        tls: dict[str, Any] = {"brokerServiceUrl": "", "brokerServiceUrlTls": "pulsar+ssl://b:6651"}
        broker.always("LOOKUP", connect_to(**tls))
        with pytest.raises(Unreachable, match=r"has no address without TLS .*pulsar\+ssl://b:6651"):
            async with producing(broker, client):
                pass


@awaited
async def test_advertised_address_that_is_none() -> None:
    """An advertised address that is no service URL is told with who named it."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("LOOKUP", connect_to(brokerServiceUrl="http://b:8080"))
        with pytest.raises(Unreachable, match=r"LOOKUP_RESPONSE of .*http://b:8080 is a web service URL"):
            async with producing(broker, client):
                pass


@awaited
async def test_proxy() -> None:
    """Where the answer says so the broker is reached by way of who answered; CONNECT names it, host:port."""
    async with ScriptedBroker() as proxy, proxy.client() as client:
        url = "pulsar://broker-1:6650"
        proxy.always("LOOKUP", connect_to(brokerServiceUrl=url, proxy_through_service_url=True))
        async with producing(proxy, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        first, second = proxy.bodies("CONNECT")
        assert not first.HasField("proxy_to_broker_url")
        assert second.proxy_to_broker_url == "broker-1:6650"
        assert "LOOKUP" in proxy.peers[0].commands
        assert proxy.peers[1].commands[:3] == ["CONNECT", "PRODUCER", "SEND"]


@awaited
async def test_proxy_with_several_brokers() -> None:
    """Behind a proxy each broker has a connection of its own, the same one for all of its topics."""
    async with ScriptedBroker() as proxy, proxy.client() as client:
        names = iter(("broker-1", "broker-2", "broker-1"))

        def next_one(peer: Any, frame: Any) -> Any:
            url = f"pulsar://{next(names)}:6650"
            return connect_to(brokerServiceUrl=url, proxy_through_service_url=True)(peer, frame)

        proxy.always("LOOKUP", next_one)
        links = [await client.open_link(await client.lookup(TOPIC)) for _ in range(3)]
        assert links[0] is links[2]
        assert links[0] is not links[1]
        assert [body.proxy_to_broker_url for body in proxy.bodies("CONNECT")] == [
            "",
            "broker-1:6650",
            "broker-2:6650",
        ]


@awaited
async def test_listener_name() -> None:
    """The advertised listener that the user named is said in every lookup."""
    async with ScriptedBroker() as broker, broker.client(listener="outside") as client:
        await client.lookup(TOPIC)
        assert broker.bodies("LOOKUP")[0].advertised_listener_name == "outside"


@awaited
async def test_questions_do_not_wait_for_each_other() -> None:
    """Several questions may be open at once; each gets its own answer, in whatever order they come."""
    async with ScriptedBroker() as broker, broker.client() as client:
        await client.open_service_link()
        held = []
        broker.always("PARTITIONED_METADATA", lambda peer, frame: held.append(frame))
        asking = asyncio.gather(*(client.count_partitions(f"{TOPIC}{each}") for each in range(3)))
        await broker.saw("PARTITIONED_METADATA", 3)
        for frame in reversed(held):
            reaction = answer("PARTITIONED_METADATA_RESPONSE", partitions=int(frame.body.topic[-1]))
            found = reaction(broker.peers[0], frame)
            assert isinstance(found, bytes)
            broker.peers[0].send(found)
        assert await asking == [0, 1, 2]


@awaited
async def test_more_partitions_than_there_can_be() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=100_001))
        with pytest.raises(Unreachable, match="100001 partitions, over the limit of 100000"):
            await client.count_partitions(TOPIC)
