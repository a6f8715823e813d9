"""Clients stay behind the proxy: whatever names a broker on its way to them, they come by the proxy to it."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from typing import Any

import pytest
from net.relayed import CLOSE, End, Proxied, Seen, Upstream, plan_for, relayed, running, turns
from net.scripted import (
    HOST,
    NO_REQUEST,
    TOPIC,
    ScriptedBroker,
    awaited,
    build,
    connect_to,
    nobody,
    producing,
    run,
    send,
)

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.proxy.proxy import Proxy
from pulsarctl_wire.net.proxy.routing import LONGEST_ADDRESS, Answerer, Route, Router, Routing
from pulsarctl_wire.net.settings import Address, parse_url
from pulsarctl_wire.wire.addresses import CARRIERS, rewrite
from pulsarctl_wire.wire.commands import NAMES, build_command
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandTopicMigrated,
    ServerError,
)

CONNECT = build("CONNECT", client_version="a test")
REDIRECT: dict[str, Any] = {"response": CommandLookupTopicResponse.Redirect}
CONNECTS: dict[str, Any] = {"request_id": 1, "response": CommandLookupTopicResponse.Connect}
MODES = [Routing.LISTENERS, Routing.CONNECT]
KEPT = {"LOOKUP_RESPONSE", "CLOSE_PRODUCER", "CLOSE_CONSUMER"}
"""Commands whose addresses clients keep that stand before a proxy: they name the broker in CONNECT."""


def pair(address: object, plain: str, tls: str) -> dict[str, str]:
    return {plain: f"pulsar://{address}", tls: f"pulsar+ssl://{address}"}


def carriers(first: object, second: object) -> dict[str, dict[str, Any]]:
    """Every command that names brokers, and its fields if it names these."""
    lookup = pair(first, "brokerServiceUrl", "brokerServiceUrlTls")
    assigned = pair(first, "assignedBrokerServiceUrl", "assignedBrokerServiceUrlTls")
    segments = [
        {"segment_id": number, **pair(broker, "broker_url", "broker_url_tls")}
        for number, broker in enumerate((first, second, first))
    ]
    assignments = [
        {"tc_id": number, **pair(broker, "broker_service_url", "broker_service_url_tls")}
        for number, broker in enumerate((first, second))
    ]
    controller = pair(second, "controller_broker_url", "controller_broker_url_tls")
    return {
        "LOOKUP_RESPONSE": {"request_id": 1, "response": CommandLookupTopicResponse.Connect, **lookup},
        "CLOSE_PRODUCER": {"producer_id": 1, "request_id": 2, **assigned},
        "CLOSE_CONSUMER": {"consumer_id": 1, "request_id": 2, **assigned},
        "TOPIC_MIGRATED": {"resource_id": 1, "resource_type": CommandTopicMigrated.Producer, **lookup},
        "SCALABLE_TOPIC_UPDATE": {
            "session_id": 1,
            "dag": {"epoch": 1, "segment_brokers": segments, **controller},
        },
        "WATCH_TC_ASSIGNMENTS_UPDATE": {
            "watch_id": 1,
            "snapshot": {"parallelism": 2, "assignments": assignments},
        },
    }


NAMES_OF_CARRIERS = sorted(carriers(0, 0))


def test_no_carrier_is_left_out() -> None:
    assert sorted(NAMES[number] for number in CARRIERS) == NAMES_OF_CARRIERS


def addresses(command: BaseCommand) -> list[tuple[str, str]]:
    """The addresses in a command, and their TLS twins."""
    found = []

    def keep(plain: str, tls: str) -> tuple[str, str]:
        found.append((plain, tls))
        return plain, tls

    rewrite(command, keep)
    return found


async def raw_frame(end: End) -> bytes:
    head = await end.receive(4)
    return head + await end.receive(int.from_bytes(head, "big"))


async def command_from(end: End) -> BaseCommand:
    """The command of the next frame, which has no more than that."""
    return BaseCommand.FromString((await raw_frame(end))[8:])


async def nobody_came(upstream: Upstream) -> None:
    await turns(50)
    with pytest.raises(BlockingIOError):
        upstream._sock.accept()


async def met(proxied: Proxied) -> tuple[End, End]:
    """A client that has said CONNECT, and the broker that has heard it."""
    client = await proxied.connect()
    await client.send(CONNECT)
    broker = await proxied.accept()
    assert await broker.receive(len(CONNECT)) == CONNECT
    return client, broker


async def told(client: End, broker: End, name: str, **fields: Any) -> BaseCommand:
    """What the client gets if the broker says this."""
    await broker.send(build(name, **fields))
    return await command_from(client)


async def looked_up(client: End, broker: End, url: str, **fields: Any) -> Any:
    """What the client gets if a lookup is answered by this."""
    answer = {
        "request_id": 1,
        "response": CommandLookupTopicResponse.Connect,
        "brokerServiceUrl": url,
        **fields,
    }
    return (await told(client, broker, "LOOKUP_RESPONSE", **answer)).lookupTopicResponse


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[list[Upstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream()) for _ in range(count)]


async def leads_to(proxied: Proxied, url: str, broker: Upstream) -> None:
    """Who goes to `url` comes to the broker, by the proxy."""
    parsed = parse_url(url)
    before = proxied.proxy.connections
    client = await proxied.connect(parsed.addresses[0])
    await client.send(CONNECT)
    end = await broker.accept()
    proxied.ends.append(end)
    assert await end.receive(len(CONNECT)) == CONNECT
    assert proxied.proxy.connections == before + 1


async def named(proxied: Proxied, broker: Upstream) -> None:
    """Who names the broker in CONNECT at the one listener comes to it, and it is not told of that."""
    client = await proxied.connect()
    await client.send(build("CONNECT", client_version="a test", proxy_to_broker_url=str(broker.address)))
    end = await broker.accept()
    proxied.ends.append(end)
    assert await end.receive(len(CONNECT)) == CONNECT


# ---- Every carrier ----


@pytest.mark.parametrize("by_byte", [False, True], ids=["whole", "bytes"])
@pytest.mark.parametrize("name", NAMES_OF_CARRIERS)
@pytest.mark.parametrize("mode", MODES)
@awaited
async def test_clients_follow_only_to_the_proxy(mode: Routing, name: str, by_byte: bool) -> None:
    async with relayed(routing=mode) as proxied, brokers(2) as (first, second):
        fields = carriers(first.address, second.address)[name]
        frame = build(name, **fields)
        client, broker = await met(proxied)
        for at in range(0, len(frame), 1 if by_byte else len(frame)):
            await broker.send(frame[at : at + (1 if by_byte else len(frame))])
            await turns(3)
        found = await command_from(client)
        by_url = {str(each.address): each for each in (first, second)}
        before = addresses(build_command(name, **fields))
        after = addresses(found)
        if mode is Routing.CONNECT and name in KEPT:
            assert after == before
            await named(proxied, first)
        else:
            for (plain, tls), (own, own_tls) in zip(before, after, strict=True):
                assert own.removeprefix("pulsar://") == own_tls.removeprefix("pulsar+ssl://") != plain
                await leads_to(proxied, own, by_url[plain.removeprefix("pulsar://")])
                assert tls
        through = mode is Routing.CONNECT and name == "LOOKUP_RESPONSE"
        assert found.lookupTopicResponse.proxy_through_service_url is through
        # nothing else is changed
        back = dict(zip(after, before, strict=True))
        rewrite(found, lambda plain, tls: back[plain, tls])
        if through:
            found.lookupTopicResponse.ClearField("proxy_through_service_url")
        assert found == build_command(name, **fields)


@pytest.mark.parametrize("name", NAMES_OF_CARRIERS)
@awaited
async def test_nothing_is_changed_if_so_wished(name: str) -> None:
    async with relayed(routing=Routing.NONE) as proxied:
        client, broker = await proxied.pair()
        frame = build(name, **carriers("broker-1:6650", "broker-2:6650")[name])
        await broker.send(frame)
        assert await client.receive(len(frame)) == frame
        await client.send(CONNECT)
        assert await broker.receive(len(CONNECT)) == CONNECT
        assert not proxied.seen.notes


@pytest.mark.parametrize("name", NAMES_OF_CARRIERS)
@awaited
async def test_clients_may_send_what_they_like(name: str) -> None:
    """CLOSE_PRODUCER goes both ways; towards a broker nothing is a carrier."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        frame = build(name, **carriers("broker-1:6650", "broker-2:6650")[name])
        await client.send(frame)
        assert await broker.receive(len(frame)) == frame
        assert not proxied.seen.notes


@awaited
async def test_what_is_behind_an_address_is_kept() -> None:
    """Fields that the schema does not have, and bytes after the command."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        command = build_command("LOOKUP_RESPONSE", request_id=1, brokerServiceUrl="pulsar://broker-1:6650")
        command.lookupTopicResponse.MergeFromString(b"\xa8\x46\x96\x01")  # field 1125
        body, tail = command.SerializeToString(), b"a tail"
        size = len(body).to_bytes(4, "big")
        await broker.send((4 + len(body) + len(tail)).to_bytes(4, "big") + size + body + tail)
        found = await raw_frame(client)
        assert found.endswith(tail)
        length = int.from_bytes(found[4:8], "big")
        assert len(found) == 8 + length + len(tail)
        now = BaseCommand.FromString(found[8 : 8 + length])
        assert now.lookupTopicResponse.brokerServiceUrl != "pulsar://broker-1:6650"
        now.lookupTopicResponse.brokerServiceUrl = "pulsar://broker-1:6650"
        assert now.SerializeToString() == body


@awaited
async def test_answers_without_an_address_are_not_touched() -> None:
    for mode in MODES:
        async with relayed(routing=mode) as proxied:
            client, broker = await met(proxied)
            for frame in (
                build(
                    "LOOKUP_RESPONSE", request_id=1, response=CommandLookupTopicResponse.Failed, message="no"
                ),
                build("LOOKUP_RESPONSE", request_id=1, brokerServiceUrl=""),
                build("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST),
                build("SCALABLE_TOPIC_UPDATE", session_id=1),
                b"\0\0\0\x06\0\0\0\x02\x08\x18",  # LOOKUP_RESPONSE without its body
            ):
                await broker.send(frame)
                assert await client.receive(len(frame)) == frame
            assert not proxied.seen.notes


@awaited
async def test_a_broker_has_one_listener_however_often_it_is_named() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        urls = {
            (await looked_up(client, broker, "pulsar://broker-1:6650", request_id=number)).brokerServiceUrl
            for number in range(3)
        }
        assert len(urls) == 1
        other = (await looked_up(client, broker, "pulsar://broker-2:6650")).brokerServiceUrl
        assert {other, f"pulsar://{proxied.address}"}.isdisjoint(urls)
        listeners = [note for note in proxied.seen.notes if note.startswith("listening on ")]
        assert [note.partition(" for ")[2] for note in listeners] == ["broker-1:6650", "broker-2:6650"]


@pytest.mark.parametrize("plan", [{}, {"advertise": "localhost"}, {"listen": Address("localhost", 0)}])
@awaited
async def test_the_tap_learns_each_listener_by_the_name_that_answers_give(plan: dict[str, Any]) -> None:
    async with relayed(**plan) as proxied, brokers(1) as (other,):
        client, broker = await proxied.pair()
        urls = [
            (await looked_up(client, broker, f"pulsar://{address}")).brokerServiceUrl
            for address in (proxied.upstream.address, other.address)
        ]
        await leads_to(proxied, urls[1], other)
        listeners = [connection.listener for connection in proxied.seen.open.values()]
        assert [f"pulsar://{listener}" for listener in listeners] == urls


@awaited
async def test_the_tap_learns_the_mapped_address() -> None:
    async with brokers(1) as (other,):
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        async with relayed(mapped={other.address: Address("localhost", port)}) as proxied:
            client, broker = await proxied.pair()
            url = (await looked_up(client, broker, f"pulsar://{other.address}")).brokerServiceUrl
            await leads_to(proxied, url, other)
            assert f"pulsar://{proxied.seen.open[1].listener}" == url == f"pulsar://localhost:{port}"


# ---- Sessions ----


@asynccontextmanager
async def before(broker: ScriptedBroker, **plan: Any) -> AsyncIterator[tuple[Proxy, str, Seen]]:
    """A proxy before a scripted broker, and the URL for its clients."""
    async with running(plan_for(plan.pop("to", broker.address), **plan)) as (proxy, at, seen):
        yield proxy, f"pulsar://{at}", seen


@pytest.mark.parametrize("mode", MODES)
@awaited
async def test_a_redirect_from_one_broker_to_another(mode: Routing) -> None:
    async with (
        ScriptedBroker() as first,
        ScriptedBroker() as second,
        before(first, routing=mode) as (proxy, url, _),
        first.client(url) as client,
    ):
        first.always("LOOKUP", connect_to(second, **REDIRECT))
        async with producing(second, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert len(first.seen("LOOKUP")) == len(second.seen("LOOKUP")) == 1
        assert not first.seen("PRODUCER")
        assert proxy.connections == len(first.peers) + len(second.peers)
        assert not any(
            body.proxy_to_broker_url for each in (first, second) for body in each.bodies("CONNECT")
        )


@pytest.mark.parametrize("mode", MODES)
@awaited
async def test_a_broker_that_is_a_pulsar_proxy(mode: Routing) -> None:
    """It is asked for the broker behind it, by whom the client came by."""
    behind = "broker-7.invalid:6650"
    async with (
        ScriptedBroker() as edge,
        before(edge, routing=mode) as (proxy, url, seen),
        edge.client(url) as client,
    ):
        edge.always(
            "LOOKUP", connect_to(brokerServiceUrl=f"pulsar://{behind}", proxy_through_service_url=True)
        )
        hops = [hop async for hop in client.trace_lookup(TOPIC)]
        assert [hop.through_proxy for hop in hops] == [mode is Routing.CONNECT]
        async with producing(edge, client):
            assert edge.peers[1].commands[:2] == ["CONNECT", "PRODUCER"]
        assert [body.proxy_to_broker_url for body in edge.bodies("CONNECT")] == ["", behind]
        assert proxy.connections == 2
        if mode is Routing.LISTENERS:
            assert seen.notes == [
                f"listening on {parse_url(hops[0].url).addresses[0]} for {behind} through {edge.address}"
            ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [HOST, "localhost"])
@awaited
async def test_a_broker_that_names_itself_stays_where_it_is(name: str, mode: Routing) -> None:
    async with (
        ScriptedBroker() as broker,
        before(broker, to=Address(name, broker.port), routing=mode) as (proxy, url, seen),
        broker.client(url) as client,
    ):
        (hop,) = [hop async for hop in client.trace_lookup(TOPIC)]
        assert hop.url == (url if mode is Routing.LISTENERS else broker.url)
        async with producing(broker, client) as (producer, results):
            await send(producer, b"a")
            await producer.flush()
            assert results.stored == [0]
        assert not seen.notes
        assert len(proxy._listener.sockets) == 1


@pytest.mark.parametrize("through", [False, True])
@awaited
async def test_a_broker_known_by_another_name_is_dialled_where_it_can_be(through: bool) -> None:
    """Answers name brokers as they are known where they are; also the one that was asked."""
    one, two = Address("broker-1.invalid", 6650), Address("broker-2.invalid", 6650)
    async with ScriptedBroker() as first, ScriptedBroker() as second:
        dials = {one: first.address, two: second.address}
        mode = Routing.CONNECT if through else Routing.LISTENERS
        async with (
            before(first, to=one, dials=dials, routing=mode) as (proxy, url, seen),
            first.client(url) as client,
        ):
            first.once("LOOKUP", connect_to(brokerServiceUrl=f"pulsar://{two}", **REDIRECT))
            second.once("LOOKUP", connect_to(brokerServiceUrl=f"pulsar://{one}"))
            async with producing(first, client):
                assert first.seen("PRODUCER")
            assert proxy.connections == len(first.peers) + len(second.peers)
            assert len(proxy._listener.sockets) == 2
            assert not [note for note in seen.notes if "no connection" in note]


@awaited
async def test_an_assigned_broker_is_gone_to_by_the_proxy() -> None:
    """CLOSE_PRODUCER that names the next one: no lookup is needed."""
    async with (
        ScriptedBroker() as first,
        ScriptedBroker() as second,
        before(first) as (proxy, url, _),
        first.client(url) as client,
        producing(second, client) as (producer, results),
    ):
        body = first.bodies("PRODUCER")[0]
        first.peers[-1].send(
            build(
                "CLOSE_PRODUCER",
                producer_id=body.producer_id,
                request_id=NO_REQUEST,
                assignedBrokerServiceUrl=second.url,
            )
        )
        await second.saw("PRODUCER")
        await send(producer, b"a")
        await producer.flush()
        assert results.stored == [0]
        assert proxy.connections == len(first.peers) + len(second.peers)


# ---- CONNECT ----


@awaited
async def test_a_broker_that_no_answer_has_named_is_not_dialled() -> None:
    async with relayed(routing=Routing.CONNECT) as proxied, Upstream() as other:
        client = await proxied.connect()
        asked = build("CONNECT", client_version="a test", proxy_to_broker_url=str(other.address))
        await client.send(asked + build("PING"))
        error = await command_from(client)
        assert error.type == BaseCommand.ERROR
        assert (error.error.request_id, error.error.error) == (NO_REQUEST, ServerError.ServiceNotReady)
        assert await client.rest() == b""
        assert proxied.seen.notes == [
            f"connection 0: CONNECT names {other.address}, which no answer has named before"
        ]
        await nobody_came(other)
        await nobody_came(proxied.upstream)
        assert not proxied.proxy.relays


@awaited
async def test_nobody_is_dialled_before_connect() -> None:
    async with relayed(routing=Routing.CONNECT) as proxied:
        client = await proxied.connect()
        await client.send(CONNECT[:-1])
        await nobody_came(proxied.upstream)
        await client.send(CONNECT[-1:])
        broker = await proxied.accept()
        assert await broker.receive(len(CONNECT)) == CONNECT


@awaited
async def test_a_broker_behind_the_service_is_asked_for_again_by_name() -> None:
    """The broker that was asked, when it names itself, is gone to without a word of a proxy."""
    async with relayed(routing=Routing.CONNECT) as proxied:
        client, broker = await met(proxied)
        url = f"pulsar://{proxied.upstream.address}"
        found = await looked_up(client, broker, url, proxy_through_service_url=True)
        assert (found.brokerServiceUrl, found.proxy_through_service_url) == (url, True)
        await named(proxied, proxied.upstream)


@awaited
async def test_a_client_that_names_a_broker_itself_is_not_corrected() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        frame = build("CONNECT", client_version="a test", proxy_to_broker_url="broker-1:6650")
        await client.send(frame)
        assert await broker.receive(len(frame)) == frame
        # nor where the broker is reached by a name of its own
        found = await looked_up(client, broker, "pulsar://broker-2:6650", proxy_through_service_url=True)
        other = await proxied.connect(parse_url(found.brokerServiceUrl).addresses[0])
        await other.send(frame)
        assert await (await proxied.accept()).receive(len(frame)) == frame


@pytest.mark.parametrize("mode", MODES)
@awaited
async def test_what_a_broker_says_of_proxies_is_what_the_client_needs(mode: Routing) -> None:
    async with relayed(routing=mode) as proxied:
        client, broker = await met(proxied)
        for said in (True, False):
            found = await looked_up(client, broker, "pulsar://broker-1:6650", proxy_through_service_url=said)
            assert found.proxy_through_service_url is (mode is Routing.CONNECT)


# ---- Where listeners are, and what clients are told of them ----


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


@awaited
async def test_clients_are_told_what_is_mapped() -> None:
    async with brokers(1) as (first,):
        mapped = Address(HOST, free_port())
        async with relayed(mapped={first.address: mapped}) as proxied:
            assert proxied.seen.notes == [f"listening on {mapped} for {first.address}"]
            client, broker = await proxied.pair()
            found = await looked_up(client, broker, f"pulsar://{first.address}")
            assert found.brokerServiceUrl == f"pulsar://{mapped}"
            await leads_to(proxied, found.brokerServiceUrl, first)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
@awaited
async def test_mapped_addresses_elsewhere_are_told_all_the_same(host: str) -> None:
    broker_1, mapped = Address("broker-1", 6650), Address(host, 6650)
    async with relayed(mapped={broker_1: mapped}) as proxied:
        assert proxied.seen.notes == [
            f"{mapped} is not an address of this machine: clients are sent there for {broker_1}"
        ]
        client, broker = await proxied.pair()
        found = await looked_up(client, broker, f"pulsar://{broker_1}")
        assert found.brokerServiceUrl == f"pulsar://{mapped}"


@awaited
async def test_a_mapped_address_in_use_is_an_error() -> None:
    with nobody() as taken:
        async with Upstream() as upstream:
            mapped = {Address("broker-1", 6650): Address(HOST, int(taken.split(":")[1]))}
            proxy = Proxy(plan_for(upstream.address, mapped=mapped), Faults(seed=7), Seen())
            said = f"--map broker-1:6650={taken}: Address already in use; name another address"
            with pytest.raises(SettingsError, match=re.escape(said)):
                await proxy.open()
            await proxy.close(CLOSE)


@awaited
async def test_an_address_in_use_is_an_error() -> None:
    async with Upstream() as upstream:
        proxy = Proxy(plan_for(upstream.address, listen=upstream.address), Faults(seed=7), Seen())
        with pytest.raises(OSError, match="in use"):
            await proxy.open()
        await proxy.close(CLOSE)


@awaited
async def test_clients_are_told_the_host_they_know_the_proxy_by() -> None:
    async with relayed(advertise="dev-box.example") as proxied:
        client, broker = await proxied.pair()
        found = await looked_up(client, broker, "pulsar://broker-1:6650")
        (address,) = parse_url(found.brokerServiceUrl).addresses
        assert address.host == "dev-box.example"
        assert address.port != proxied.address.port
        itself = await looked_up(client, broker, f"pulsar://{proxied.upstream.address}")
        assert itself.brokerServiceUrl == f"pulsar://dev-box.example:{proxied.address.port}"


@awaited
async def test_clients_of_all_addresses_are_told_the_one_they_came_to() -> None:
    async with relayed(listen=Address("0.0.0.0", 0)) as proxied:
        for host in ("127.0.0.1", "127.0.0.2"):
            client = await proxied.connect(Address(host, proxied.address.port))
            broker = await proxied.accept()
            found = await looked_up(client, broker, "pulsar://broker-1:6650")
            assert parse_url(found.brokerServiceUrl).addresses[0].host == host


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(
    ("listen", "came_to"), [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1"), ("0", "127.0.0.1")]
)
@awaited
async def test_ipv6(listen: str, came_to: str) -> None:
    async with relayed(listen=Address(listen, 0)) as proxied, brokers(1) as (first,):
        client = await proxied.connect(Address(came_to, proxied.address.port))
        broker = await proxied.accept()
        found = await looked_up(client, broker, f"pulsar://{first.address}")
        (address,) = parse_url(found.brokerServiceUrl).addresses
        assert address.host == came_to
        assert parse_url(proxied.seen.open[0].client).addresses[0].host == came_to
        await leads_to(proxied, found.brokerServiceUrl, first)


@awaited
async def test_listeners_have_the_ports_given_as_long_as_there_are_some() -> None:
    with nobody() as taken:
        free = free_port()
        async with relayed(ports=[int(taken.split(":")[1]), free]) as proxied:
            client, broker = await proxied.pair()
            first = await looked_up(client, broker, "pulsar://broker-1:6650")
            assert first.brokerServiceUrl == f"pulsar://{HOST}:{free}"
            for _ in range(2):
                found = await looked_up(client, broker, "pulsar://broker-2:6650")
                assert found.brokerServiceUrl == "pulsar://broker-2:6650"
            again = await looked_up(client, broker, "pulsar://broker-1:6650")
            assert again.brokerServiceUrl == first.brokerServiceUrl
            assert proxied.seen.notes[1:] == [
                "no listener for broker-2:6650 (Address already in use): its address is not rewritten"
            ]


# ---- What is not believed ----


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "url",
    [
        "garbage:x",
        "http://broker-1:8080",
        "pulsar://",
        "pulsar://broker-1:99999",
        "pulsar://a b:1",
        "pulsar://::1:1",
    ],
)
@awaited
async def test_what_is_no_address_is_left_as_it_is(url: str, mode: Routing) -> None:
    async with relayed(routing=mode) as proxied:
        client, broker = await met(proxied)
        frame = build("LOOKUP_RESPONSE", **CONNECTS, brokerServiceUrl=url)
        for _ in range(2):
            await broker.send(frame)
            assert await client.receive(len(frame)) == frame
        (note,) = proxied.seen.notes
        assert note.startswith("an address of a broker was not rewritten: ")


@awaited
async def test_addresses_that_are_not_utf8() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        frame = build("LOOKUP_RESPONSE", request_id=1, brokerServiceUrl="pulsar://cafe/")
        frame = frame.replace(b"cafe/", b"caf\xe9/")
        await broker.send(frame)
        found = await raw_frame(client)
        assert found == frame or BaseCommand.FromString(found[8:]).IsInitialized()


@pytest.mark.parametrize("mode", MODES)
def test_a_cluster_of_too_many_brokers(mode: Routing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.net.proxy.routing.MAX_BROKERS", 2)

    async def test() -> None:
        async with relayed(routing=mode) as proxied:
            client, broker = await met(proxied)
            found = [
                (await looked_up(client, broker, f"pulsar://broker-{number}:6650")).brokerServiceUrl
                for number in (1, 2, 3, 4, 1, 2, 3)
            ]
            kept = [
                url == f"pulsar://broker-{number}:6650"
                for number, url in zip((1, 2, 3, 4, 1, 2, 3), found, strict=True)
            ]
            known = mode is Routing.CONNECT
            assert kept == [known, known, True, True, known, known, True]
            notes = [note for note in proxied.seen.notes if "more than" in note]
            assert notes == ["more than 2 brokers were named; the others' addresses are not rewritten"]

    run(test())


# ---- The decision alone ----

ASKED = Answerer(Address("edge", 6650), "192.0.2.9:6650")
LISTENER = Address("proxy", 7000)


def router(url: str = "pulsar://edge:6650", routing: Routing = Routing.LISTENERS, **given: Any) -> Router:
    open_listener: Callable[[Route], Address] = given.pop("open_listener", lambda route: LISTENER)
    return Router(
        parse_url(url),
        routing,
        given.pop("tls", False),
        open_listener,
        given.pop("warn", pytest.fail),
        **given,
    )


def decided(
    it: Router,
    plain: str | None,
    tls: str | None,
    command: str = "LOOKUP_RESPONSE",
    asked: Answerer = ASKED,
    **fields: Any,
) -> tuple[str, str, bool]:
    """What becomes of a pair of addresses, and whether clients are told to stay."""
    if command == "LOOKUP_RESPONSE":
        fields = {"request_id": 1, "response": CommandLookupTopicResponse.Connect, **fields}
    else:
        fields = {"resource_id": 1, "resource_type": CommandTopicMigrated.Producer, **fields}
    base = build_command(command, brokerServiceUrl=plain, brokerServiceUrlTls=tls, **fields)
    before = base.SerializeToString()
    changed = it.rewrite(base, asked, None)
    assert changed is (base.SerializeToString() != before)
    ((now, now_tls),) = addresses(base)
    return now, now_tls, base.lookupTopicResponse.proxy_through_service_url


PLAIN, TLS = "pulsar://b:6650", "pulsar+ssl://t:6651"
OWN, OWN_TLS = f"pulsar://{LISTENER}", f"pulsar+ssl://{LISTENER}"


@pytest.mark.parametrize(
    ("plain", "tls", "by_tls"),
    [pair for pair in product([PLAIN, None], [TLS, None], [True, False]) if any(pair[:2])],
)
@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("command", ["LOOKUP_RESPONSE", "TOPIC_MIGRATED"])
def test_the_way_of_the_service_decides_which_of_two_addresses_is_gone_to(
    command: str, secure: bool, plain: str | None, tls: str | None, by_tls: bool
) -> None:
    routes: list[Route] = []

    def open_listener(route: Route) -> Address:
        routes.append(route)
        return LISTENER

    it = router(
        "pulsar+ssl://edge:6651" if by_tls else "pulsar://edge:6650", tls=secure, open_listener=open_listener
    )
    now, now_tls, through = decided(it, plain, tls, command)
    wanted = (tls or plain) if by_tls else (plain or tls)
    assert wanted is not None
    assert routes == [Route((parse_url(wanted).addresses[0],))]
    assert not through
    # whichever of the two a client takes for the way it came, it finds one
    assert now == OWN
    assert now_tls == (OWN_TLS if tls or secure else "")


@pytest.mark.parametrize(
    ("plain", "tls", "secure", "expected"),
    [
        (PLAIN, TLS, False, (PLAIN, TLS)),
        (PLAIN, TLS, True, (PLAIN, TLS)),
        (PLAIN, None, False, (PLAIN, "")),
        (PLAIN, None, True, (PLAIN, "pulsar+ssl://b:6650")),
        (None, TLS, False, ("pulsar://t:6651", TLS)),
        (None, TLS, True, ("pulsar://t:6651", TLS)),
    ],
)
def test_kept_addresses_gain_the_twin_that_a_client_asks_for(
    plain: str | None, tls: str | None, secure: bool, expected: tuple[str, str]
) -> None:
    it = router(routing=Routing.CONNECT, tls=secure)
    assert decided(it, plain, tls) == (*expected, True)


@pytest.mark.parametrize("said", [True, False])
def test_redirects_are_followed_to_a_listener_in_both_modes(said: bool) -> None:
    """Clients dial what a redirect names, whatever it says of a proxy."""
    for mode in MODES:
        it = router(routing=mode)
        fields = {**REDIRECT, "proxy_through_service_url": said}
        assert decided(it, PLAIN, TLS, **fields) == (OWN, OWN_TLS, False)


def test_each_name_that_a_client_may_give_in_connect_is_known() -> None:
    """It names the broker by the address that it took: the one for the way it came."""
    for by_tls, secure in product([True, False], [True, False]):
        url = "pulsar+ssl://edge:6651" if by_tls else "pulsar://edge:6650"
        it = router(url, Routing.CONNECT, tls=secure)
        plain, tls, through = decided(it, PLAIN, TLS)
        assert through
        taken = parse_url(tls if secure else plain).addresses[0]
        route = it.find(str(taken))
        assert route is not None, (by_tls, secure)
        assert route.addresses == parse_url(TLS if by_tls else PLAIN).addresses


@pytest.mark.parametrize(
    ("url", "through", "route"),
    [
        ("pulsar://b:6650", False, Route((Address("b", 6650),))),
        ("pulsar://b:6650", True, Route((Address("edge", 6650),), "b:6650")),
        ("pulsar://edge:6650", False, Route((Address("edge", 6650),))),
        ("pulsar://edge:6650", True, Route((Address("edge", 6650),))),
        ("pulsar://192.0.2.9:6650", True, Route((Address("edge", 6650),))),
        ("pulsar://192.0.2.9", True, Route((Address("edge", 6650),))),
        ("pulsar://edge:6651", True, Route((Address("edge", 6650),), "edge:6651")),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_how_a_broker_is_reached(mode: Routing, url: str, through: bool, route: Route) -> None:
    it = router(routing=mode)
    decided(it, url, None, proxy_through_service_url=through)
    assert it.find(str(parse_url(url).addresses[0])) == route


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("through", [True, False])
def test_a_broker_that_names_our_own_address_is_the_one_that_was_asked(mode: Routing, through: bool) -> None:
    """As one in a container does, which does not know by which port it is reached."""
    it = router(routing=mode, ours=lambda address: address == Address("localhost", 6650))
    decided(it, "pulsar://localhost:6650", None, proxy_through_service_url=through)
    assert it.find("localhost:6650") == Route((Address("edge", 6650),))


def test_all_hosts_of_an_address_are_ways_to_the_broker() -> None:
    it = router()
    decided(it, "pulsar://b:6650,c:6651", None)
    assert it.find("b:6650") == Route((Address("b", 6650), Address("c", 6651)))


@pytest.mark.parametrize("mode", MODES)
def test_an_endless_address_is_left_as_it_is(mode: Routing) -> None:
    notes: list[str] = []
    it = router(routing=mode, warn=notes.append)
    for host in ("a", "b"):
        url = f"pulsar://{host * LONGEST_ADDRESS}:6650"
        assert decided(it, url, None) == (url, "", False)
    assert notes == [
        f"an address of a broker was not rewritten: it has more than {LONGEST_ADDRESS} characters"
    ]
    assert not it.routes


def test_the_last_answer_says_how_a_broker_is_reached() -> None:
    it = router(routing=Routing.CONNECT)
    decided(it, PLAIN, None, proxy_through_service_url=True)
    decided(it, PLAIN, None, asked=Answerer(Address("b", 6650), "192.0.2.8:6650"))
    assert it.find("b:6650") == Route((Address("b", 6650),))


def test_proxying_is_only_said_of_addresses_that_we_know() -> None:
    notes: list[str] = []
    it = router(routing=Routing.CONNECT, warn=notes.append)
    assert decided(it, "nonsense://x", None) == ("nonsense://x", "", False)
    assert decided(it, "nonsense://x", None, proxy_through_service_url=True) == ("nonsense://x", "", True)
    it = router(warn=notes.append)
    assert decided(it, "nonsense://x", None, proxy_through_service_url=True) == ("nonsense://x", "", True)
    assert len(notes) == 2  # one each


def test_what_cannot_be_listened_for_is_not_rewritten() -> None:
    def open_listener(route: Route) -> Address:
        raise OSError(98, "Address already in use")

    notes: list[str] = []
    it = router(open_listener=open_listener, warn=notes.append)
    for _ in range(3):
        assert decided(it, PLAIN, TLS, proxy_through_service_url=True) == (PLAIN, TLS, True)
    assert notes == ["no listener for b:6650 (Address already in use): its address is not rewritten"]


def test_warnings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.net.proxy.routing.MAX_BROKERS", 3)
    notes: list[str] = []
    it = router(warn=notes.append)
    for number in range(10):
        decided(it, f"nonsense://{number}", None)
    assert len(notes) == 3
