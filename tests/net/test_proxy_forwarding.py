"""Forwarding: every byte arrives as it was sent, at the pace of who reads, and ends go the way they came."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net.relayed import CLOSE, End, Seen, Upstream, fill, plan_for, relayed, running, turns
from net.scripted import HOST, awaited, build, nobody, run
from strategies import cuts, frames_to_broker, message_frames

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.listener import read_origin
from pulsarctl_wire.net.proxy.proxy import Proxy
from pulsarctl_wire.net.proxy.relay import CHUNK, Relay
from pulsarctl_wire.net.proxy.routing import Routing
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.framing.proxy_header import build_header

FRAME = build("PING")
LOOKUP = build("LOOKUP", topic="t", request_id=1)
CONNECT = build("CONNECT", client_version="a test")

heads = st.sampled_from(
    [
        *(LOOKUP[:size] for size in range(1, len(LOOKUP))),  # half a frame, and half its head
        *(CONNECT[:size] for size in (1, 4, 9, 10, 11)),
        b"\0\0\0\x08\0\0\0\x02\x08\x07" * 3,  # a wanted type that says nothing
        b"\xff\xff\xff\xff\0\0\0\x04\x08\x07",
        b"\0\0\0\0\0\0\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03",
    ]
)
garbage = st.one_of(heads, st.binary(max_size=40))


@st.composite
def traffic(draw: st.DrawFn) -> bytes:
    """Frames, with whatever between and behind them."""
    wanted = st.lists(st.sampled_from([FRAME, LOOKUP, CONNECT]), max_size=4)
    parts: list[bytes] = draw(st.one_of(frames_to_broker, wanted, st.lists(message_frames(), max_size=4)))
    if draw(st.booleans()):
        parts.insert(draw(st.integers(0, len(parts))), draw(garbage))
    return b"".join([*parts, draw(garbage)])


@given(st.data(), st.sampled_from(list(Routing)))
@settings(max_examples=60)
def test_what_arrives_is_what_was_sent(data: st.DataObject, routing: Routing) -> None:
    up, down = data.draw(traffic()), data.draw(traffic())
    if routing is Routing.CONNECT:
        up = FRAME + up  # what wakes the broker's side
    ups, downs = data.draw(cuts(up)), data.draw(cuts(down))

    async def test() -> None:
        async with relayed(routing=routing) as proxied:
            client = await proxied.connect()
            if routing is Routing.CONNECT:
                await client.send(ups.pop(0) if len(ups[0]) >= len(FRAME) else b"".join(ups))
                if sum(map(len, ups)) == len(up):
                    ups.clear()
            broker = await proxied.accept()
            for index in range(max(len(ups), len(downs))):
                for end, chunks in ((client, ups), (broker, downs)):
                    if index < len(chunks):
                        await end.send(chunks[index])
                await turns()
            client.half_close()
            assert await broker.rest() == up
            broker.half_close()
            assert await client.rest() == down
            await proxied.seen.until(lambda: proxied.seen.ended)
            assert proxied.seen.bytes == {True: up, False: down}
            assert proxied.proxy.carried == [len(down), len(up)]
            assert not proxied.proxy.relays

    run(test())


@pytest.mark.parametrize("size", range(1, len(LOOKUP)))
@awaited
async def test_half_a_frame_goes_on_when_nothing_more_comes(size: int) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await client.send(LOOKUP[:size])
        await broker.send(LOOKUP[:size])
        client.half_close()
        assert await broker.rest() == LOOKUP[:size]
        broker.half_close()
        assert await client.rest() == LOOKUP[:size]


@awaited
async def test_frames_go_on_before_the_next_one_begins() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        for frame in (FRAME, LOOKUP, CONNECT, build("PONG")):
            await client.send(frame)
            assert await broker.receive(len(frame)) == frame
            await broker.send(frame)
            assert await client.receive(len(frame)) == frame


@awaited
async def test_what_cannot_become_a_frame_is_not_kept_back() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await client.send(b"hello\n")
        assert await asyncio.wait_for(broker.receive(6), 1) == b"hello\n"


# ---- Large amounts ----


async def pour(end: End, head: bytes, size: int, seed: int) -> str:
    """Send `head` and so many bytes; the SHA-256 of all that."""
    source, digest = random.Random(seed), hashlib.sha256(head)
    await end.send(head)
    for _ in range(size // 65_536):
        data = source.randbytes(65_536)
        digest.update(data)
        await end.send(data)
    end.half_close()
    return digest.hexdigest()


async def drink(end: End) -> str:
    """The SHA-256 of all that comes."""
    digest = hashlib.sha256()
    while data := await end.piece():
        digest.update(data)
    return digest.hexdigest()


LARGE = b"\x03\xff\xff\xfc\0\0\0\x05\x08\x06"  # the head of a frame of 64 MiB


@pytest.mark.parametrize("head", [b"", FRAME, LARGE], ids=["raw", "lost", "frame"])
@awaited
async def test_much_goes_both_ways_at_once(head: bytes) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        size = 16 << 20
        sent_up, sent_down, got_up, got_down = await asyncio.gather(
            pour(client, head, size, 1), pour(broker, head, size, 2), drink(broker), drink(client)
        )
        assert (got_up, got_down) == (sent_up, sent_down)


@pytest.mark.parametrize("to_broker", [True, False])
@pytest.mark.parametrize(
    "piece", [bytes(65_536), FRAME * 1000, LOOKUP * 1000], ids=["raw", "frames", "looked at"]
)
@awaited
async def test_who_reads_nothing_stops_who_sends(to_broker: bool, piece: bytes) -> None:
    async with relayed() as proxied:
        pair = await proxied.pair()
        source, target = pair if to_broker else reversed(pair)
        sent = await fill(source, piece, lambda: proxied.queued > 0)
        assert 0 < proxied.queued <= CHUNK + len(LOOKUP)
        back = FRAME * 100  # the other direction goes on
        await target.send(back)
        assert await source.receive(len(back)) == back
        source.half_close()
        assert len(await target.rest()) == sent
        target.half_close()
        assert await source.rest() == b""


@awaited
async def test_while_one_is_stuck_others_go_on() -> None:
    async with relayed() as proxied:
        stuck, _ = await proxied.pair()
        await fill(stuck)
        client, broker = await proxied.pair()
        for _ in range(50):
            await client.send(FRAME)
            assert await broker.receive(len(FRAME)) == FRAME
            await broker.send(FRAME)
            assert await client.receive(len(FRAME)) == FRAME


@awaited
async def test_many_at_once() -> None:
    async def talk(client: End, number: int) -> None:
        request = build("LOOKUP", topic=f"t-{number}", request_id=number)
        for _ in range(3):
            await client.send(request)
            assert await client.receive(len(request)) == request
        client.half_close()
        assert await client.rest() == b""

    async def echo(broker: End) -> None:
        while data := await broker.piece():
            await broker.send(data)
        broker.half_close()

    async with relayed() as proxied:
        clients = [await proxied.connect() for _ in range(300)]
        brokers = [await proxied.accept() for _ in clients]
        await asyncio.gather(*map(echo, brokers), *map(talk, clients, range(300)))
        await proxied.seen.until(lambda: len(proxied.seen.ended) == 300)
        assert proxied.proxy.connections == 300
        assert not proxied.proxy.relays
        assert sorted(proxied.seen.open) == list(range(300))


# ---- Ends ----


@pytest.mark.parametrize("client_first", [True, False])
@awaited
async def test_half_closed_one_way_the_other_goes_on(client_first: bool) -> None:
    async with relayed() as proxied:
        pair = await proxied.pair()
        first, second = pair if client_first else reversed(pair)
        await first.send(FRAME)
        first.half_close()
        assert await second.rest() == FRAME
        for _ in range(3):
            await second.send(LOOKUP)
            assert await first.receive(len(LOOKUP)) == LOOKUP
        second.half_close()
        assert await first.rest() == b""
        await proxied.seen.until(lambda: proxied.seen.ended)


@pytest.mark.parametrize("by_client", [True, False])
@awaited
async def test_a_reset_resets_the_other_side(by_client: bool) -> None:
    async with relayed() as proxied:
        pair = await proxied.pair()
        first, second = pair if by_client else reversed(pair)
        await first.send(FRAME)
        assert await second.receive(len(FRAME)) == FRAME
        first.reset()
        assert await second.was_reset()
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert proxied.seen.ended == [(0, not by_client)]
        assert not proxied.proxy.relays


@pytest.mark.parametrize("by_client", [True, False])
@awaited
async def test_a_reset_behind_half_a_close_goes_on_too(by_client: bool) -> None:
    async with relayed() as proxied:
        pair = await proxied.pair()
        first, second = pair if by_client else reversed(pair)
        second.half_close()
        assert await first.rest() == b""
        first.reset()
        assert await second.was_reset()


@pytest.mark.parametrize("how", ["close", "reset"])
@awaited
async def test_that_the_broker_ends_a_connection_is_told(how: str) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await client.send(FRAME)
        assert await broker.receive(len(FRAME)) == FRAME
        getattr(broker, how)()
        with suppress(ConnectionResetError):
            assert await client.rest() == b""
        told = "closed" if how == "close" else "reset"
        await proxied.seen.noted(f"connection 0: the broker {proxied.upstream.address} {told} it")


@pytest.mark.parametrize("how", ["close", "half_close", "reset"])
@awaited
async def test_that_the_client_ends_a_connection_is_not(how: str) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await client.send(FRAME)
        assert await broker.receive(len(FRAME)) == FRAME
        getattr(client, how)()
        with suppress(ConnectionResetError):
            assert await broker.rest() == b""
        broker.close()
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert not proxied.seen.notes


@awaited
async def test_who_closes_with_unread_bytes_resets() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        sent = await fill(broker)
        client.close()
        assert sent
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await broker.send(bytes(1 << 30))


@awaited
async def test_what_came_before_the_end_arrives_however_slowly_it_is_read() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        sent = await fill(broker)
        broker.close()
        assert len(await client.rest()) == sent


@awaited
async def test_who_leaves_at_once() -> None:
    async with relayed() as proxied:
        for leave in (End.close, End.half_close, End.reset):
            client, broker = await proxied.pair()
            leave(client)
            with suppress(ConnectionResetError):
                assert await broker.rest() == b""
            broker.close()
        await proxied.seen.until(lambda: len(proxied.seen.ended) == 3)
        assert not proxied.proxy.relays


@awaited
async def test_a_client_that_leaves_without_a_word_is_forgotten_where_connect_is_waited_for() -> None:
    async with relayed(routing=Routing.CONNECT) as proxied:
        client = await proxied.connect()
        client.half_close()
        assert await asyncio.wait_for(client.rest(), 2) == b""


@awaited
async def test_what_passes_has_a_time_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an answer could seem to come before its request."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await proxied.seen.until(lambda: proxied.seen.open)
        written: list[int] = []
        told: list[int] = []

        class Noting:
            def __init__(self, transport: Any) -> None:
                self.transport = transport

            def __getattr__(self, name: str) -> Any:
                return getattr(self.transport, name)

            def write(self, data: bytes) -> None:
                written.append(time.time_ns())
                self.transport.write(data)

        def carried(connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> bool:
            told.append(time_ns)
            return True

        monkeypatch.setattr(proxied.seen, "carried", carried)
        monkeypatch.setattr(proxied.relay.legs[True], "transport", Noting(proxied.relay.legs[True].transport))
        await client.send(FRAME)
        assert await broker.receive(len(FRAME)) == FRAME
        assert told <= written
        assert len(told) == len(written) == 1


# ---- Dialling ----


@pytest.mark.parametrize("routing", list(Routing))
@awaited
async def test_a_broker_that_refuses(routing: Routing) -> None:
    with nobody() as address:
        host, port = address.split(":")
        async with running(plan_for(Address(host, int(port)), routing=routing)) as (proxy, at, seen):
            client = await End.connect(at)
            with suppress(ConnectionResetError, BrokenPipeError):
                await client.send(FRAME)
            assert await client.was_reset()
            client.close()
            assert seen.notes == [f"connection 0: no connection to the broker: {address}: refused"]
            await seen.until(lambda: seen.ended)
            assert not proxy.relays
            assert [connection.index for connection in seen.open.values()] == [0]
            assert seen.ended == [(0, True)]


@awaited
async def test_a_broker_that_does_not_answer() -> None:
    """Its queue is full, so that SYN is dropped."""
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        address = Address(*full.getsockname())
        with socket.create_connection(address):
            plan = plan_for(address, settings={"connect_timeout": 0.05})
            async with running(plan) as (_, at, seen), await End.connect(at) as client:
                assert await client.was_reset()
                assert seen.notes == [
                    f"connection 0: no connection to the broker: {address}: no answer in time"
                ]


@awaited
async def test_a_host_that_is_not_known() -> None:
    async with running(plan_for(Address("no-such-host.invalid", 6650))) as (_, at, seen):
        async with await End.connect(at) as client:
            assert await client.was_reset()
        (note,) = seen.notes
        assert note.startswith("connection 0: no connection to the broker: no-such-host.invalid:6650: ")


@pytest.mark.parametrize("host", [HOST, "localhost"])
@awaited
async def test_a_proxy_before_itself_is_refused(host: str) -> None:
    with nobody() as address:
        at = Address(host, int(address.split(":")[1]))
    with pytest.raises(SettingsError, match=f"--to {at} is where pwire itself listens"):
        await Proxy(plan_for(at, listen=Address(HOST, at.port)), Faults(seed=1), Seen()).open()
    broker = Address("broker", 6650)
    plan = plan_for(broker, listen=Address("0.0.0.0", at.port), dials={broker: at})
    with pytest.raises(SettingsError, match=f"--to {broker} is where pwire itself listens"):
        await Proxy(plan, Faults(seed=1), Seen()).open()


@awaited
async def test_numbers_are_those_of_a_recording_where_dialling_fails_or_takes_long() -> None:
    """They are given in the order in which connections are told of, not in that of their coming."""
    async with relayed(routing=Routing.CONNECT) as proxied:
        slow, refused = await proxied.connect(), await proxied.connect()
        await refused.send(build("CONNECT", client_version="c", proxy_to_broker_url="nobody:1"))
        await refused.rest()
        await proxied.seen.until(lambda: proxied.seen.ended)
        client = await proxied.connect()
        await client.send(FRAME)
        await (await proxied.accept()).receive(len(FRAME))
        await slow.send(FRAME)
        await (await proxied.accept()).receive(len(FRAME))
        await proxied.seen.until(lambda: len(proxied.seen.open) == 3)
        names = [str(end.name) for end in (refused, client, slow)]
    assert [(each, proxied.seen.open[each].client) for each in proxied.seen.open] == list(enumerate(names))


@awaited
async def test_nothing_is_dialled_that_leads_to_the_proxy_itself() -> None:
    with nobody() as address:
        at = Address(HOST, int(address.split(":")[1]))
    async with relayed(mapped={at: at}) as proxied:
        async with await End.connect(at) as client:
            assert await client.was_reset()
        (note,) = {note for note in proxied.seen.notes if "no connection" in note}
        assert note == f"connection 0: no connection to the broker: {at}: pwire itself listens there"
        assert proxied.proxy.connections == 1


@awaited
async def test_addresses_are_tried_in_turn() -> None:
    with nobody() as address:
        host, port = address.split(":")
        async with Upstream() as first, Upstream() as second:
            plan = plan_for(first.address, Address(host, int(port)), second.address)
            async with running(plan) as (_, at, seen):
                for upstream in (first, second, second, first):
                    async with await End.connect(at) as client, await upstream.accept() as broker:
                        await client.send(FRAME)
                        assert await broker.receive(len(FRAME)) == FRAME
                assert not any("no connection" in note for note in seen.notes)


@awaited
async def test_all_that_was_tried_is_said() -> None:
    with nobody() as one, nobody() as other:
        addresses = [Address(HOST, int(each.split(":")[1])) for each in (one, other)]
        async with running(plan_for(*addresses)) as (_, at, seen), await End.connect(at) as client:
            assert await client.was_reset()
            assert seen.notes == [
                f"connection 0: no connection to the broker: {one}: refused; {other}: refused"
            ]


class Dialling:
    """An address whose connections wait until the test lets them through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        connect = Proxy._connect

        async def later(proxy: Proxy, relay: Relay) -> None:
            self.begun.set()
            await self.go.wait()
            await connect(proxy, relay)

        monkeypatch.setattr(Proxy, "_connect", later)


@pytest.mark.parametrize("leave", [End.close, End.half_close, End.reset])
def test_a_client_that_leaves_while_the_broker_is_dialled(
    monkeypatch: pytest.MonkeyPatch, leave: object
) -> None:
    async def test() -> None:
        dialling = Dialling(monkeypatch)
        async with relayed() as proxied:
            client = await proxied.connect()
            await client.send(FRAME)
            await dialling.begun.wait()
            leave(client)  # type: ignore[operator]
            await turns()
            dialling.go.set()
            broker = await proxied.accept()
            if leave is End.reset:
                assert await broker.was_reset()
            else:
                assert await broker.rest() == FRAME
            broker.close()
            await proxied.seen.until(lambda: proxied.seen.ended)

    run(test())


def test_what_a_client_sends_while_the_broker_is_dialled_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        dialling = Dialling(monkeypatch)
        async with relayed() as proxied:
            client = await proxied.connect()
            await dialling.begun.wait()
            sent = await fill(client)
            assert sent < 64 << 20
            dialling.go.set()
            broker = await proxied.accept()
            client.half_close()
            assert len(await broker.rest()) == sent

    run(test())


# ---- The end of the proxy ----


def test_what_waits_for_a_broker_that_is_dialled_is_delivered_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        dialling = Dialling(monkeypatch)
        async with relayed(routing=Routing.CONNECT) as proxied:  # where bytes are read before
            client = await proxied.connect()
            await client.send(FRAME + LOOKUP[:12])
            await dialling.begun.wait()
            await turns()
            closing = asyncio.create_task(proxied.proxy.close(CLOSE))
            await turns()
            assert not closing.done()
            dialling.go.set()
            broker = await proxied.accept()
            assert await broker.rest() == FRAME + LOOKUP[:12]
            assert await client.rest() == b""
            await closing
            assert proxied.seen.bytes[True] == FRAME + LOOKUP[:12]

    run(test())


@awaited
async def test_what_was_taken_is_delivered_at_the_end() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await broker.send(FRAME + LOOKUP[:12])
        assert await client.receive(len(FRAME)) == FRAME
        sent = await fill(client)
        taken = proxied.proxy.relays.copy().pop().carried[True]
        closing = asyncio.create_task(proxied.proxy.close(CLOSE))
        got = await broker.receive(taken)
        assert len(got) == taken <= sent
        with suppress(ConnectionResetError):
            assert await client.rest() == LOOKUP[:12]
        await closing
        assert not proxied.proxy.relays
        with pytest.raises(ConnectionRefusedError):
            await proxied.connect()


@awaited
async def test_who_never_reads_does_not_hold_the_end_up() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await fill(broker)
        await fill(client)
        await proxied.proxy.close(0.05)
        assert proxied.seen.ended  # a watcher is told of nothing afterwards
        assert not proxied.proxy.relays
        assert await client.was_reset()
        assert await broker.was_reset()


@awaited
async def test_who_never_reads_what_both_sides_have_ended_does_not_hold_the_end_up() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        client.half_close()
        assert await broker.rest() == b""
        await fill(broker)
        broker.half_close()
        proxied.relay.close()  # as it is when both have ended; the client's leg waits for its reader
        await proxied.seen.until(lambda: True)
        await turns()
        assert proxied.relay.legs[True].is_gone
        await proxied.proxy.close(0.05)
        assert await client.was_reset()


@pytest.mark.slow
@awaited
async def test_a_client_that_was_killed_does_not_end_what_others_have_coming() -> None:
    """It was reset while nothing was read from it: that is found out when it is to be ended."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        killed, _ = await proxied.pair()
        await fill(killed)
        killed.reset()
        await fill(broker)
        taken = proxied.proxy.carried[False] + sum(relay.carried[False] for relay in proxied.proxy.relays)
        closing = asyncio.create_task(proxied.proxy.close(CLOSE))
        assert len(await client.receive(taken)) == taken
        await closing
        assert not proxied.proxy.relays


@awaited
async def test_an_end_without_connections_is_one_at_once() -> None:
    async with relayed(close=1e9) as proxied:
        client, broker = await proxied.pair()
        client.close()
        broker.close()
        await proxied.seen.until(lambda: proxied.seen.ended)


# ---- PROXY headers ----

SOURCE, TARGET = ("192.0.2.7", 1234), ("192.0.2.1", 6650)
HEADERS = [build_header(1, SOURCE, TARGET), build_header(2, SOURCE, TARGET)]


@pytest.mark.parametrize("header", HEADERS, ids=["v1", "v2"])
@pytest.mark.parametrize("step", [1, 7, 1000])
@awaited
async def test_a_proxy_header_names_the_client(header: bytes, step: int) -> None:
    async with relayed(header_in=True) as proxied:
        client = await proxied.connect()
        data = header + FRAME
        for at in range(0, len(data), step):
            await client.send(data[at : at + step])
            await turns()
        broker = await proxied.accept()
        assert await broker.receive(len(FRAME)) == FRAME
        assert proxied.seen.open[0].client == "192.0.2.7:1234"


@pytest.mark.parametrize(
    "header", [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"], ids=["v1", "v2"]
)
@awaited
async def test_a_proxy_header_that_names_nobody(header: bytes) -> None:
    async with relayed(header_in=True) as proxied:
        client = await proxied.connect()
        await client.send(header + FRAME)
        broker = await proxied.accept()
        assert await broker.receive(len(FRAME)) == FRAME
        assert proxied.seen.open[0].client == str(client.name)


@pytest.mark.parametrize(
    "begin",
    [
        FRAME,
        CONNECT,
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 x y 1 2\r\n",
        b"PROXY " + b"x" * 200,
        b"\r\n\r\n\0\r\nQUIT\n\x31",
    ],
    ids=["ping", "connect", "http", "bad", "long", "version"],
)
@awaited
async def test_what_is_no_proxy_header_is_refused(begin: bytes) -> None:
    async with relayed(header_in=True) as proxied:
        client = await proxied.connect()
        await client.send(begin)
        with suppress(ConnectionResetError):
            assert await client.rest() == b""
        await proxied.seen.noted("PROXY header")
        assert not proxied.seen.open
        assert not proxied.proxy.relays


@awaited
async def test_a_proxy_header_that_ends_too_early() -> None:
    async with relayed(header_in=True) as proxied:
        client = await proxied.connect()
        await client.send(HEADERS[0][:10])
        client.half_close()
        assert await client.rest() == b""
        await proxied.seen.noted("it was closed within its PROXY header")


def test_a_proxy_header_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.net.listener._WAIT", 0.05)

    async def test() -> None:
        async with relayed(header_in=True) as proxied:
            slow = await proxied.connect()
            await slow.send(HEADERS[1][:5])
            client = await proxied.connect()  # others do not wait for it
            await client.send(HEADERS[1] + FRAME)
            broker = await proxied.accept()
            assert await broker.receive(len(FRAME)) == FRAME
            assert await slow.rest() == b""
            assert proxied.seen.notes == [f"a connection from {slow.name} failed: no answer in time"]

    run(test())


def test_the_end_of_the_proxy_ends_those_whose_header_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[socket.socket] = []

    async def kept(sock: socket.socket, peer: Address) -> Address:
        waited_for.append(sock)  # for its own end would close it
        return await read_origin(sock, peer)

    monkeypatch.setattr("pulsarctl_wire.net.listener.read_origin", kept)

    async def test() -> None:
        async with relayed(header_in=True) as proxied:
            client = await proxied.connect()
            await client.send(HEADERS[1][:5])
            while not waited_for:
                await turns()
            await proxied.proxy.close(CLOSE)
            (sock,) = waited_for
            with sock:
                assert sock.fileno() < 0

    run(test())


@pytest.mark.parametrize("version", [1, 2])
@awaited
async def test_brokers_are_told_of_the_client_by_a_proxy_header(version: int) -> None:
    async with relayed(header_out=version) as proxied:
        client, broker = await proxied.pair()
        header = build_header(version, client.name, broker.name)
        await client.send(LOOKUP)
        assert await broker.receive(len(header + LOOKUP)) == header + LOOKUP
        client.half_close()
        broker.half_close()
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert proxied.seen.bytes[True] == LOOKUP  # of the header nobody is told


@pytest.mark.parametrize("version", [1, 2])
@awaited
async def test_a_proxy_header_is_handed_on(version: int) -> None:
    async with relayed(header_in=True, header_out=version) as proxied:
        client = await proxied.connect()
        await client.send(HEADERS[0] + FRAME)
        broker = await proxied.accept()
        header = build_header(version, SOURCE, broker.name)
        assert await broker.receive(len(header + FRAME)) == header + FRAME


@awaited
async def test_a_broker_that_speaks_first_is_heard() -> None:
    async with relayed(header_out=1) as proxied:
        client, broker = await proxied.pair()
        await broker.send(FRAME)
        assert await client.receive(len(FRAME)) == FRAME
