"""Faults of real connections: what arrives, at the byte, and that nothing else is harmed by them."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from net.relayed import CLOSE, End, Proxied, fill, relayed, turns
from net.scripted import NO_REQUEST, awaited, build, entry, frame_of, run
from strategies import cuts, frames_to_broker, message_frames

from pulsarctl_wire.net.proxy.lane import MAX_ANSWERS, MAX_DELAYED_BYTES
from pulsarctl_wire.net.proxy.relay import CHUNK
from pulsarctl_wire.net.proxy.routing import Routing
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame_layout import locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError

PING, PONG = build("PING"), build("PONG")
CONNECT = build("CONNECT", client_version="a test")
MESSAGE = entry(3, b"x" * 100)(1)
NEVER = "1000s"
"""A time that no test waits."""


def receipt(sequence: int) -> bytes:
    return build(
        "SEND_RECEIPT", producer_id=1, sequence_id=sequence, message_id={"ledgerId": 1, "entryId": sequence}
    )


def lookup(number: int = 1) -> bytes:
    return build("LOOKUP", topic="t", request_id=number)


async def command_from(end: End) -> BaseCommand:
    """The command of the next frame, which has no more than that."""
    head = await end.receive(8)
    return BaseCommand.FromString(await end.receive(int.from_bytes(head[:4], "big") - 4))


async def crossed(source: End, target: End, frame: bytes = PING) -> None:
    """A frame goes through, and nothing comes before it."""
    await source.send(frame)
    assert await target.receive(len(frame)) == frame


def remove_all(proxied: Proxied) -> None:
    """As `pwire proxy ctl clear` does."""
    proxied.proxy.faults.clear()
    proxied.proxy.renew_faults()


# ---- Each kind once ----


@awaited
async def test_drop() -> None:
    async with relayed("drop command=SEND_RECEIPT nth=2") as proxied:
        client, broker = await proxied.pair()
        await broker.send(b"".join(map(receipt, range(4))))
        expected = receipt(0) + receipt(2) + receipt(3)
        assert await client.receive(len(expected)) == expected
        await crossed(client, broker, receipt(1))  # the other direction's is its third match
        assert proxied.seen.notes == ["connection 0: #1 drop: SEND_RECEIPT producer 1 sequence 1 message 1:1"]
        assert bytes(proxied.seen.bytes[False]) == expected  # what was passed on is what is told
        (listed,) = proxied.proxy.faults.list_active()
        assert (listed.matched, listed.hits) == (5, 1)


@awaited
async def test_duplicate() -> None:
    async with relayed("duplicate command=PING copies=2") as proxied:
        client, broker = await proxied.pair()
        await client.send(PING + lookup())
        expected = PING * 3 + lookup()
        assert await broker.receive(len(expected)) == expected


@awaited
async def test_reorder() -> None:
    async with relayed(f"reorder command=SEND_RECEIPT nth=1 behind=2 hold={NEVER}") as proxied:
        client, broker = await proxied.pair()
        await broker.send(b"".join(map(receipt, range(4))))
        expected = receipt(1) + receipt(2) + receipt(0) + receipt(3)
        assert await client.receive(len(expected)) == expected


@awaited
async def test_reorder_with_nothing_to_overtake() -> None:
    """Its time is over, and it goes on by itself."""
    async with relayed("reorder command=PONG hold=20ms") as proxied:
        client, broker = await proxied.pair()
        await crossed(broker, client, PONG)


@pytest.mark.parametrize("crc", ["keep", "fix"])
@awaited
async def test_flip(crc: str) -> None:
    async with relayed(f"flip command=MESSAGE nth=1 crc={crc}") as proxied:
        client, broker = await proxied.pair()
        await broker.send(MESSAGE * 2)
        found = await client.receive(len(MESSAGE))
        command = 8 + int.from_bytes(MESSAGE[4:8], "big")
        start, stop = locate(MESSAGE, command).payload
        flipped = [byte ^ was for byte, was in zip(found, MESSAGE, strict=True)]
        assert sum(bin(each).count("1") for each in flipped[start:stop]) == 1
        parts = locate(found, command)
        stored = int.from_bytes(found[slice(*parts.checksum)], "big")
        assert (parts.computed == stored) is (crc == "fix")
        outside = flipped[:start] + flipped[stop:]
        assert any(outside) is (crc == "fix")
        assert await client.receive(len(MESSAGE)) == MESSAGE


@awaited
async def test_stale_epoch() -> None:
    async with relayed("stale-epoch by=2") as proxied:
        client, broker = await proxied.pair()
        fields = {"topic": "t", "producer_id": 1, "request_id": 1}
        await client.send(build("PRODUCER", epoch=5, **fields))
        assert await command_from(broker) == build_command("PRODUCER", epoch=3, **fields)


@awaited
async def test_answer() -> None:
    async with relayed(
        "answer command=LOOKUP,PRODUCER error=ServiceNotReady message=later times=2"
    ) as proxied:
        client, broker = await proxied.pair()
        producer = build("PRODUCER", topic="t", producer_id=1, request_id=2)
        await client.send(lookup(1) + PING + producer + producer)
        expected = PING + producer
        assert await broker.receive(len(expected)) == expected
        refused = (await command_from(client)).lookupTopicResponse
        assert (refused.request_id, refused.response) == (1, CommandLookupTopicResponse.Failed)
        assert (refused.error, refused.message) == (ServerError.ServiceNotReady, "later")
        error = (await command_from(client)).error
        assert (error.request_id, error.error) == (2, ServerError.ServiceNotReady)
        await crossed(broker, client, PONG)
        assert bytes(proxied.seen.bytes[True]) == expected
        assert proxied.seen.bytes[False].endswith(PONG)


@awaited
async def test_redirect_loop() -> None:
    """Redirected to the very listener it came by: also that of another broker."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        itself = {"request_id": 1, "response": CommandLookupTopicResponse.Connect}
        await broker.send(
            build(
                "LOOKUP_RESPONSE",
                brokerServiceUrl=f"pulsar://localhost:{proxied.upstream.address.port}",
                **itself,
            )
        )
        url = (await command_from(client)).lookupTopicResponse.brokerServiceUrl
        other = await proxied.connect(proxied.address._replace(port=int(url.rpartition(":")[2])))
        proxied.fault("redirect-loop")
        for end, expected in ((client, f"pulsar://{proxied.address}"), (other, url)):
            await end.send(lookup(7))
            found = (await command_from(end)).lookupTopicResponse
            assert (found.response, found.request_id) == (CommandLookupTopicResponse.Redirect, 7)
            assert found.brokerServiceUrl == expected
            assert found.authoritative is False
        assert url != f"pulsar://{proxied.address}"


@pytest.mark.parametrize("first", [0, 5])
@awaited
async def test_disconnect(first: int) -> None:
    async with relayed(f"disconnect command=LOOKUP {f'bytes={first}' if first else ''}") as proxied:
        client, broker = await proxied.pair()
        await crossed(broker, client, PONG)
        await client.send(PING + lookup() + PING)
        assert await broker.rest() == PING + lookup()[:first]
        assert await client.rest() == b""
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert not proxied.proxy.relays


@pytest.mark.parametrize("first", [0, 5])
@awaited
async def test_reset(first: int) -> None:
    async with relayed(f"reset command=LOOKUP {f'bytes={first}' if first else ''}") as proxied:
        client, broker = await proxied.pair()
        await client.send(lookup())
        assert await broker.was_reset()
        assert await client.was_reset()
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert not proxied.proxy.relays
        assert bytes(proxied.seen.bytes[True]) == lookup()[:first]


@awaited
async def test_blackhole() -> None:
    async with relayed("blackhole command=LOOKUP") as proxied:
        client, broker = await proxied.pair()
        await crossed(client, broker)
        await client.send(lookup())
        await proxied.seen.noted("#1 blackhole: LOOKUP")
        relay = proxied.relay
        before = relay.carried.copy()
        await client.send(PING)
        await broker.send(PONG)
        await turns(50)
        assert relay.carried == before
        assert not proxied.seen.ended
        others = await proxied.pair()  # others are not held up
        await crossed(*others)
        client.half_close()  # not even that goes through
        await turns(50)
        assert not proxied.seen.ended
        client.close()
        broker.close()
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert bytes(proxied.seen.bytes[True]) == PING * 2
        assert not proxied.seen.bytes[False]


@awaited
async def test_delay() -> None:
    """Nothing overtakes: frames that are not delayed wait behind those that are."""
    async with relayed("delay command=LOOKUP time=20ms jitter=20ms") as proxied:
        client, broker = await proxied.pair()
        data = PING + lookup(1) + lookup(2) + PING + lookup(3) + b"hello"
        for at in range(0, len(data), 7):
            await client.send(data[at : at + 7])
        assert await broker.receive(len(data)) == data
        await crossed(broker, client, PONG)


@awaited
async def test_slice() -> None:
    async with relayed("slice size=7 pause=1ms direction=to-broker") as proxied:
        client, broker = await proxied.pair()
        data = lookup() + PING + MESSAGE
        await client.send(data)
        await broker.send(data)
        assert await broker.receive(len(data)) == data
        assert await client.receive(len(data)) == data
        pieces = [value for what, value in proxied.seen.told if what == "carried"]
        assert {len(piece) for _, to_broker, piece in pieces if to_broker} <= set(range(1, 8))
        assert {len(piece) for _, to_broker, piece in pieces if not to_broker} == {
            len(lookup()),
            len(PING),
            len(MESSAGE),
        }
        assert proxied.seen.bytes == {True: data, False: data}


@awaited
async def test_bandwidth() -> None:
    async with relayed("bandwidth rate=1MB") as proxied:
        client, broker = await proxied.pair()
        data = MESSAGE * 100 + b"hello" * 100
        await client.send(data)
        client.half_close()
        assert await broker.rest() == data


# ---- Bytes that are not Pulsar's ----

HTTP = b"GET / HTTP/1.1\r\n\r\n"


@awaited
async def test_faults_of_frames_are_none_of_other_bytes() -> None:
    faults = ("drop command=*", "flip where=command", "answer command=CONNECT error=NotAllowedError")
    async with relayed(*faults) as proxied:
        client, broker = await proxied.pair()
        for data in (HTTP, b"x", PING):  # lost for good
            await crossed(client, broker, data)
            await crossed(broker, client, data)
        (note,) = proxied.seen.notes
        assert "the client speaks HTTP" in note


@pytest.mark.parametrize("fault", ["disconnect", "reset", "blackhole"])
@awaited
async def test_faults_of_connections_are_of_all_bytes(fault: str) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await crossed(client, broker, HTTP)
        proxied.fault(fault)
        await client.send(HTTP)
        await proxied.seen.noted(f"#1 {fault}: {len(HTTP)} bytes")
        if fault == "disconnect":
            assert await broker.rest() == b""
        elif fault == "reset":
            assert await broker.was_reset()
        assert proxied.seen.bytes[True] == HTTP


@awaited
async def test_delay_of_other_bytes() -> None:
    async with relayed("delay time=10ms") as proxied:
        client, broker = await proxied.pair()
        for data in (HTTP, b"x" * 1000):
            await crossed(client, broker, data)
        client.half_close()
        assert await broker.rest() == b""


# ---- Whatever comes, however it comes ----


@given(
    st.lists(
        st.one_of(message_frames(), frames_to_broker.map(b"".join), st.sampled_from([PING, lookup()])),
        max_size=6,
    ),
    st.sampled_from([b"", b"", HTTP, b"\0\0\0", PING[:9], MESSAGE[:40]]),
    st.lists(
        st.sampled_from(
            [
                "delay time=0ms",
                "delay time=1ms jitter=1ms",
                "slice size=3 pause=0s",
                "bandwidth rate=100MB",
                "drop command=AUTH_CHALLENGE",
                "reorder command=NEW_TXN",
                "flip command=GET_SCHEMA where=command",
            ]
        ),
        max_size=3,
    ),
    st.data(),
)
@settings(max_examples=50)
def test_faults_that_harm_nothing(
    frames: list[bytes], tail: bytes, faults: list[str], draw: st.DataObject
) -> None:
    """All arrives as it was sent, in order, and the end behind it; faults come and go meanwhile."""
    data = b"".join(frames) + tail
    chunks = draw.draw(cuts(data))
    changes = draw.draw(
        st.lists(st.sampled_from(["add", "clear", ""]), min_size=len(chunks), max_size=len(chunks))
    )

    async def test() -> None:
        async with relayed(*faults) as proxied:
            client, broker = await proxied.pair()
            for chunk, change in zip(chunks, changes, strict=True):
                await client.send(chunk)
                await broker.send(chunk)
                await turns(3)
                if change == "clear":
                    remove_all(proxied)
                elif change:
                    proxied.fault(*faults)
                    proxied.proxy.renew_faults()
            client.half_close()
            broker.half_close()
            assert await broker.rest() == data
            assert await client.rest() == data
            await proxied.seen.until(lambda: proxied.seen.ended)
            assert proxied.seen.bytes == {True: data, False: data}

    run(test())


# ---- Answers put in ----


@pytest.mark.parametrize("cut", [1, 5, 9, 12, len(MESSAGE) - 1])
@pytest.mark.parametrize("faulted", [True, False], ids=["all looked at", "some"])
@awaited
async def test_answers_come_between_frames(cut: int, faulted: bool) -> None:
    """Half a frame of the broker's is on its way: the answer is behind it."""
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        if faulted:
            proxied.fault("drop command=NEW_TXN")
        await broker.send(PONG + MESSAGE[:cut])
        assert await client.receive(len(PONG)) == PONG
        proxied.fault("answer command=LOOKUP error=ServiceNotReady")
        await client.send(lookup(1) + PING + lookup(2))
        assert await broker.receive(len(PING)) == PING
        await broker.send(MESSAGE[cut:])
        assert await client.receive(len(MESSAGE)) == MESSAGE
        for number in (1, 2):
            assert (await command_from(client)).lookupTopicResponse.request_id == number
        await crossed(broker, client, PONG)


@awaited
async def test_an_answer_behind_the_end_of_the_broker() -> None:
    """It cannot be sent any more; the client's own frames go on."""
    async with relayed("answer command=LOOKUP error=ServiceNotReady") as proxied:
        client, broker = await proxied.pair()
        broker.half_close()
        assert await client.rest() == b""
        await client.send(lookup() + PING)
        assert await broker.receive(len(PING)) == PING
        client.half_close()
        assert await broker.rest() == b""
        await proxied.seen.until(lambda: proxied.seen.ended)
        assert not proxied.seen.bytes[False]


@pytest.mark.parametrize("routing", [Routing.CONNECT, Routing.LISTENERS])
@awaited
async def test_an_answer_to_connect_is_told(routing: Routing) -> None:
    """By CONNECT routing no broker is ever dialled for it."""
    async with relayed("answer command=CONNECT error=AuthenticationError", routing=routing) as proxied:
        client = await proxied.connect()
        await client.send(CONNECT + PING)
        error = (await command_from(client)).error
        assert (error.request_id, error.error) == (NO_REQUEST, ServerError.AuthenticationError)
        assert await client.rest() == b""
        await proxied.seen.until(lambda: proxied.seen.ended)
        told = [what for what, _ in proxied.seen.told if what != "note"]
        assert told == ["opened", "changed", "carried", "closed"]
        assert not proxied.seen.bytes[True]
        assert not proxied.proxy.relays


LARGE = build("LOOKUP", topic="t" * 1000, request_id=1)
REFUSED = f"answer command=LOOKUP error=ServiceNotReady message={'m' * 1000}"
ANSWER = build(
    "LOOKUP_RESPONSE",
    request_id=1,
    response=CommandLookupTopicResponse.Failed,
    error=ServerError.ServiceNotReady,
    message="m" * 1000,
)


@awaited
async def test_who_reads_no_answers_is_not_listened_to() -> None:
    async with relayed(REFUSED) as proxied:
        client, broker = await proxied.pair()
        sent = await fill(client, LARGE * 100, lambda: proxied.queued > 0)
        assert 0 < proxied.queued <= 2 * CHUNK
        client.half_close()
        expected = ANSWER * (sent // len(LARGE))  # one for each that was sent as a whole
        assert await client.receive(len(expected)) == expected
        await broker.rest()
        await crossed(broker, client, PONG)


@awaited
async def test_answers_behind_a_frame_that_does_not_end_are_bounded() -> None:
    async with relayed(REFUSED) as proxied:
        client, broker = await proxied.pair()
        count = 10_000
        await broker.send(MESSAGE[:50])
        await turns(10)
        sending = asyncio.create_task(client.send(LARGE * count))
        await turns(2000)
        waiting = len(proxied.relay.lanes[False].answers)
        await broker.send(MESSAGE[50:])
        assert await client.receive(len(MESSAGE)) == MESSAGE
        assert await client.receive(count * len(ANSWER)) == ANSWER * count
        await sending
        assert MAX_ANSWERS <= waiting <= MAX_ANSWERS + CHUNK // len(LARGE) + 1


# ---- What is held back ----


@pytest.mark.parametrize("piece", [LARGE * 100, HTTP * 1000], ids=["frames", "bytes"])
@awaited
async def test_what_is_delayed_is_bounded(piece: bytes) -> None:
    async with relayed(f"delay time={NEVER} direction=to-broker") as proxied:
        client, broker = await proxied.pair()
        lane = proxied.relay.lanes[True]
        sent = await fill(client, piece, lambda: lane._delayed_bytes >= MAX_DELAYED_BYTES)
        assert MAX_DELAYED_BYTES <= lane._delayed_bytes <= MAX_DELAYED_BYTES + CHUNK
        assert sent >= lane._delayed_bytes
        await crossed(broker, client, PONG)  # the other direction is not held up


@awaited
async def test_the_end_comes_behind_what_is_delayed() -> None:
    async with relayed("delay time=20ms") as proxied:
        client, broker = await proxied.pair()
        await client.send(PING * 3)
        client.half_close()
        assert await broker.rest() == PING * 3
        await crossed(broker, client, PONG)


@awaited
async def test_what_is_held_goes_out_at_an_end() -> None:
    async with relayed(f"reorder command=PING hold={NEVER}") as proxied:
        client, broker = await proxied.pair()
        await client.send(PING + lookup()[:12])
        client.half_close()
        assert await broker.rest() == PING + lookup()[:12]


@pytest.mark.parametrize("fault", [f"reorder command=PING hold={NEVER}", f"delay command=PING time={NEVER}"])
@awaited
async def test_what_is_held_goes_out_when_the_proxy_ends(fault: str) -> None:
    async with relayed(fault) as proxied:
        client, broker = await proxied.pair()
        await broker.send(PONG)
        await client.send(PING)
        await proxied.seen.noted(": PING")
        closing = asyncio.create_task(proxied.proxy.close(CLOSE))
        assert await broker.rest() == PING
        assert await client.rest() == PONG
        await closing
        assert proxied.seen.bytes == {True: PING, False: PONG}


# ---- Faults come and go ----


@pytest.mark.parametrize("cut", [1, 9, 30])
@awaited
async def test_a_fault_added_while_a_frame_is_half_through(cut: int) -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        large = frame_of(build_command("PING").SerializeToString(), bytes(1000))
        await client.send(large[:cut])
        await turns()
        proxied.fault("drop command=PING")
        proxied.proxy.renew_faults()
        await client.send(large[cut:] + PING + lookup())
        whole = large + lookup() if cut >= 10 else lookup()  # what has begun goes on
        assert await broker.receive(len(whole)) == whole


@pytest.mark.parametrize("cut", [1, 9, 30])
@awaited
async def test_a_fault_removed_while_a_frame_is_half_through(cut: int) -> None:
    async with relayed("drop command=PING") as proxied:
        client, broker = await proxied.pair()
        large = frame_of(build_command("PING").SerializeToString(), bytes(1000))
        await client.send(PING + large[:cut])
        await proxied.seen.noted("#1 drop: PING")
        remove_all(proxied)
        await client.send(large[cut:] + PING)
        assert await broker.receive(len(large + PING)) == large + PING


@pytest.mark.parametrize("by", ["clear", "remove"])
@awaited
async def test_what_a_removed_fault_held_goes_on_at_once(by: str) -> None:
    """On a quiet connection, where nothing more comes."""
    async with relayed() as proxied:
        number, _ = proxied.fault(f"reorder command=PING hold={NEVER}", "drop command=NEW_TXN")
        client, broker = await proxied.pair()
        await client.send(PING)
        await proxied.seen.noted("#1 reorder: PING")
        if by == "clear":
            proxied.proxy.faults.clear()
        else:
            proxied.proxy.faults.remove(number)
        proxied.proxy.renew_faults()
        assert await broker.receive(len(PING)) == PING
        await crossed(client, broker)


@pytest.mark.parametrize("fault", [f"delay time={NEVER}", "bandwidth rate=1", f"slice size=1 pause={NEVER}"])
@awaited
async def test_what_a_removed_fault_delayed_goes_on_though_another_stays(fault: str) -> None:
    async with relayed() as proxied:
        number, _ = proxied.fault(fault, "drop command=SEEK")
        client, broker = await proxied.pair()
        await client.send(PING + lookup())
        await turns()
        proxied.proxy.faults.remove(number)
        proxied.proxy.renew_faults()
        await client.send(PING)
        assert await broker.receive(len(PING + lookup() + PING)) == PING + lookup() + PING


@awaited
async def test_a_short_delay_does_not_wait_for_a_long_one_that_was_removed() -> None:
    async with relayed(f"delay time={NEVER}") as proxied:
        client, broker = await proxied.pair()
        await client.send(PING)
        await turns()
        remove_all(proxied)
        proxied.fault("delay time=1ms")
        proxied.proxy.renew_faults()
        await client.send(PING)
        assert await broker.receive(2 * len(PING)) == 2 * PING


@awaited
async def test_what_a_removed_fault_delayed_goes_on_at_once() -> None:
    async with relayed(f"delay command=PING time={NEVER}") as proxied:
        client, broker = await proxied.pair()
        await client.send(PING)
        await proxied.seen.noted("#1 delay: PING")
        remove_all(proxied)
        assert proxied.seen.bytes[True] == PING
        await crossed(client, broker)


@awaited
async def test_a_fault_added_is_in_force_for_the_next_frame() -> None:
    async with relayed() as proxied:
        client, broker = await proxied.pair()
        await crossed(client, broker)
        (number,) = proxied.fault("drop command=PING")
        await client.send(PING)
        await crossed(client, broker, lookup())
        proxied.proxy.faults.remove(number)
        await crossed(client, broker)
        assert not proxied.relay.lanes[True]._fault_lane


@awaited
async def test_faults_count_over_all_connections_or_in_each() -> None:
    for per, lost in (("proxy", [True, False]), ("connection", [True, True])):
        async with relayed(f"drop command=PING nth=1 per={per}") as proxied:
            for expected in lost:
                client, broker = await proxied.pair()
                await client.send(PING + lookup())
                frames = lookup() if expected else PING + lookup()
                assert await broker.receive(len(frames)) == frames


@awaited
async def test_connections_that_end_while_something_is_held() -> None:
    """Timers that are still to come find nothing to do."""
    faults = ("delay time=20ms direction=to-broker", "reorder command=PONG hold=20ms")
    async with relayed(*faults) as proxied:
        for leave in (End.close, End.reset):
            client, broker = await proxied.pair()
            await client.send(PING * 10)
            await broker.send(PONG)
            await turns()
            leave(client)
            leave(broker)
        await proxied.seen.until(lambda: len(proxied.seen.ended) == 2)
        client, broker = await proxied.pair()
        await crossed(client, broker)  # later than those timers
