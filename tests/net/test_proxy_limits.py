"""Whom the proxy dials, how many it lets wait, and that nothing ends its accepting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from net.relayed import End, Proxied, Seen, Upstream, relayed, turns
from net.scripted import HOST, awaited, build
from segments import PING

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.proxy import proxy as proxying
from pulsarctl_wire.net.proxy.proxy import Plan, Proxy
from pulsarctl_wire.net.proxy.routing import AddressFilter, Routing
from pulsarctl_wire.net.settings import Address, Settings, parse_url
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

# ---- Which addresses are dialled ----

METADATA = "169.254.169.254"


@pytest.mark.parametrize("ip", [METADATA, "169.254.0.0", "fe80::1%eth0", "febf::1", f"::ffff:{METADATA}"])
@pytest.mark.parametrize("rules", [(), ("0.0.0.0/0", "::/0"), ("169.254.0.0/16", "fe80::/10"), ("named",)])
def test_link_local_addresses_are_never_allowed(ip: str, rules: tuple[str, ...]) -> None:
    assert not AddressFilter(rules)("named", ip)


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.1.2.3", "192.0.2.1", "::1", "::ffff:10.1.2.3"])
def test_all_others_are_allowed_without_rules(ip: str) -> None:
    assert AddressFilter()("any", ip)


@pytest.mark.parametrize(
    ("rules", "host", "ip", "allowed"),
    [
        (["10.0.0.0/8"], "b", "10.255.0.1", True),
        (["10.0.0.0/8"], "b", "11.0.0.1", False),
        (["10.0.0.7/8"], "b", "::ffff:10.0.0.1", True),
        (["10.0.0.0/8"], "b", "::1", False),
        (["2001:db8::/32", "127.0.0.1"], "b", "2001:db8:1::", True),
        (["2001:db8::/32", "127.0.0.1"], "b", "127.0.0.1", True),
        (["[::1]"], "b", "::1", True),
        (["Broker-1.example"], "broker-1.EXAMPLE", "10.0.0.1", True),
        (["broker-1.example"], "broker-2.example", "10.0.0.1", False),
    ],
)
def test_rules_are_networks_addresses_and_names(rules: list[str], host: str, ip: str, allowed: bool) -> None:
    assert AddressFilter(rules)(host, ip) is allowed


@pytest.mark.parametrize("rule", ["", "10.0.0.0/33", "10.0.0/8", "broker:6650", "pulsar://b"])
def test_what_is_no_rule_is_said(rule: str) -> None:
    with pytest.raises(SettingsError, match=r"--allow-broker .*: give a network"):
        AddressFilter([rule])


async def led(proxied: Proxied, client: End, broker: End, url: str, request: int = 1) -> Address:
    """Where the proxy sends the client that a lookup's answer sends to `url`."""
    lookup = build("LOOKUP", topic="t", request_id=request)
    await client.send(lookup)
    assert await broker.receive(len(lookup)) == lookup
    await broker.send(
        build("LOOKUP_RESPONSE", brokerServiceUrl=url, response=1, request_id=request, authoritative=True)
    )
    stream = FrameStream(Connection(0), False)
    events: list[Event] = []
    while not events:
        events = stream.feed(await client.piece())
    assert isinstance(events[0], Frame)
    return parse_url(events[0].body.brokerServiceUrl).addresses[0]


@awaited
async def test_a_broker_that_names_a_link_local_address_is_not_followed() -> None:
    async with relayed() as proxied:
        pair = await proxied.pair()
        for _ in range(3):
            at = await led(proxied, *pair, f"pulsar://{METADATA}:80")
            assert await (await proxied.connect(at)).was_reset()
        other = await led(proxied, *pair, f"pulsar://[::ffff:{METADATA}]:80", 2)
        assert await (await proxied.connect(other)).was_reset()
        refused = [note for note in proxied.seen.notes if "no connection to the broker" in note]
        assert [note.rpartition("broker: ")[2] for note in refused] == [
            f"{METADATA}:80: not allowed (--allow-broker)",
            f"[::ffff:{METADATA}]:80: not allowed (--allow-broker)",
        ]
        assert proxied.proxy.refused == {"not allowed (--allow-broker)": 4}


@awaited
async def test_only_brokers_that_are_allowed_are_dialled_but_for_those_given() -> None:
    async with Upstream() as other:
        async with relayed(allowed=AddressFilter(["192.0.2.0/24"])) as proxied:
            pair = await proxied.pair()
            at = await led(proxied, *pair, f"pulsar://localhost:{other.address.port}")
            assert await (await proxied.connect(at)).was_reset()
            same = await led(proxied, *pair, f"pulsar://{proxied.upstream.address}", 2)
            client = await proxied.connect(same)
            await client.send(PING)
            assert await (await proxied.accept()).receive(len(PING)) == PING
        dials = {Address("named", 6650): other.address}
        async with relayed(allowed=AddressFilter(["192.0.2.0/24"]), dials=dials) as proxied:
            at = await led(proxied, *await proxied.pair(), "pulsar://named:6650")
            await proxied.connect(at)
            (await other.accept()).close()


@awaited
async def test_a_name_is_judged_by_the_address_that_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stands for another address each time it is looked up is looked up once."""
    answers = iter([METADATA, HOST, METADATA])
    asked = []
    known = socket.getaddrinfo

    def look_up(host: str, *args: Any, **more: Any) -> Any:
        if host != "rebinding.example":
            return known(host, *args, **more)
        if more.get("flags"):
            raise socket.gaierror
        asked.append(host)
        return known(next(answers), *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with Upstream() as other, relayed() as proxied:
        url = f"pulsar://rebinding.example:{other.address.port}"
        at = await led(proxied, *await proxied.pair(), url)
        assert await (await proxied.connect(at)).was_reset()
        await proxied.connect(at)
        (await other.accept()).close()
        assert await (await proxied.connect(at)).was_reset()
    assert len(asked) == 3


# ---- How many may wait ----


async def turned_away(proxied: Proxied) -> bool:
    """Whether a client is reset; that may be before it knows that it was connected."""
    try:
        return await (await proxied.connect()).was_reset()
    except ConnectionResetError:
        return True


@asynccontextmanager
async def undialled(**plan: Any) -> AsyncIterator[Proxied]:
    """A proxy that waits for CONNECT."""
    async with relayed(routing=Routing.CONNECT, **plan) as proxied:
        yield proxied


def test_connections_that_wait_are_bounded_and_the_newest_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "MAX_WAITING", 3)

    @awaited
    async def test() -> None:
        async with undialled() as proxied:
            waiting = [await proxied.connect() for _ in range(3)]
            while len(proxied.proxy._undialled) < 3:
                await turns()
            for _ in range(2):
                assert await turned_away(proxied)
            assert [note for note in proxied.seen.notes if "refused" in note] == [
                "a connection was refused: too many wait for a broker; further ones are only counted"
            ]
            assert proxied.proxy.refused == {"too many wait for a broker": 2}
            connect = build("CONNECT", client_version="c")
            await waiting[0].send(connect)  # it waits no more
            assert await (await proxied.accept()).receive(len(connect)) == connect
            await proxied.connect()
            while len(proxied.proxy._undialled) < 3:
                await turns()

    test()


def test_bytes_that_wait_are_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "MAX_WAITING_BYTES", 1_000_000)
    begun = b"\0\x40\0\0\0\x3f\xff\xf0\x08\x02" + bytes(300_000)  # a CONNECT of 4 MiB

    @awaited
    async def test() -> None:
        async with undialled() as proxied:
            clients = [await proxied.connect() for _ in range(3)]
            for client in clients:
                await client.send(begun)
            while proxied.proxy._held < 3 * len(begun):
                await turns()
            newest = await proxied.connect()
            await newest.send(begun)
            assert await newest.was_reset()
            assert proxied.proxy.refused == {"too many wait for a broker": 1}
            assert proxied.proxy._held <= 1_000_000
            for client in clients:
                client.reset()
            while proxied.proxy.relays:
                await turns()
            assert proxied.proxy._held == 0

    test()


def test_a_connect_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "_CONNECT_WAIT", 0.05)

    @awaited
    async def test() -> None:
        async with undialled() as proxied:
            assert await (await proxied.connect()).was_reset()
            await proxied.seen.noted("no CONNECT came within 0.05 s")
            assert not proxied.proxy._undialled

    test()


# ---- Accepting goes on ----


@awaited
async def test_a_client_that_comes_before_all_is_set_up_is_served() -> None:
    """A broker at the same port of another address: whether that is ours is looked up meanwhile."""
    with socket.socket() as upstream, socket.socket() as listening:
        listening.bind((HOST, 0))
        port = listening.getsockname()[1]
        listening.listen()
        upstream.bind(("127.0.0.2", port))  # where nothing else listens
        upstream.listen()
        listening.setblocking(False)
        plan = Plan(
            Address(HOST, port),
            Settings(parse_url(f"pulsar://broker:{port}")),
            dials={Address("broker", port): Address("127.0.0.2", port)},
        )
        async with await End.connect(Address(HOST, port)) as client:
            proxy = Proxy(plan, Faults(seed=1), Seen())
            await proxy.open(listening)
            await client.send(PING)
            taken, _ = await asyncio.to_thread(upstream.accept)
            with taken:
                assert await asyncio.to_thread(taken.recv, len(PING)) == PING
            await proxy.close(1)


@awaited
async def test_what_goes_wrong_with_one_connection_is_said_and_others_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with relayed() as proxied:
        find = proxied.proxy._router.find
        broken = iter([True])
        monkeypatch.setattr(
            proxied.proxy._router, "find", lambda broker: 1 / 0 if next(broken, False) else find(broker)
        )
        assert await turned_away(proxied)
        await proxied.seen.noted("a bug in pwire: a connection was not accepted (ZeroDivisionError")
        client = await proxied.connect()
        broker = await proxied.accept()
        await client.send(PING)
        assert await broker.receive(len(PING)) == PING


@awaited
async def test_http_is_said_once() -> None:
    async with relayed() as proxied:
        for _ in range(2):
            client, broker = await proxied.pair()
            await client.send(b"GET /lookup/v2/topic/persistent/public/default/t HTTP/1.1\r\n\r\n")
            assert await broker.receive(4) == b"GET "
        (note,) = proxied.seen.notes
        assert note.startswith("connection 0: the client speaks HTTP, which is passed on as it is; ")
        assert "pulsar://" in note
