"""What a broker can make a session keep is bounded, whatever it sends; beyond a bound it is said and counted."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import zstandard
from net.scripted import (
    LEDGER,
    Entry,
    Peer,
    Reaction,
    ScriptedBroker,
    acked,
    answer,
    awaited,
    build,
    deliver,
    entry,
    payloads,
    places,
    subscribed,
    take,
    take_one,
)

from pulsarctl_wire.net import inbox
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.payload import MAX_MESSAGES, MAX_PAYLOAD
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe, CompressionType

SHARED: dict[str, Any] = {"type": CommandSubscribe.Shared}


def zipped(number: int, size: int, said: int | None = None) -> Entry:
    """An entry of `size` zeros that says it holds `said`."""
    fields = {"compression": CompressionType.ZSTD, "uncompressed_size": size if said is None else said}
    return entry(number, zstd_zeros(size), **fields)


@cache
def zstd_zeros(size: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size))


async def heard_all(broker: ScriptedBroker) -> None:
    """Wait until our side has taken in all that the broker sent."""
    count = len(broker.seen("PONG"))
    broker.peers[0].send(build("PING"))
    await broker.saw("PONG", count + 1)


# ---- Deliveries that wait ----


@awaited
async def test_entries_wait_compressed() -> None:
    """A hundred entries of 64 MiB wait as they came, and are opened one by one."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(*(zipped(each, MAX_PAYLOAD) for each in range(100))))
        async with subscribed(client) as subscription:
            await broker.saw("FLOW")
            await heard_all(broker)
            assert len(subscription.inbox) == 100
            assert subscription.inbox.bytes < 1024 * 1024
            delivery = await take_one(subscription)
            assert payloads([delivery]) == [bytes(MAX_PAYLOAD)]
            assert len(subscription.inbox) == 99


@awaited
async def test_fewer_permits_for_large_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that keeps to its permits never sends more than there is room for."""
    monkeypatch.setattr(inbox, "ROOM", 100_000)
    async with ScriptedBroker() as broker, broker.client() as client:

        def as_asked(peer: Peer, frame: Frame) -> bytes:
            first = sum(body.messagePermits for body in broker.bodies("FLOW")[:-1])
            return flood(first, frame.body.messagePermits, 10_000)(peer, frame)

        broker.always("FLOW", as_asked)
        async with subscribed(client) as subscription:
            for number in range(100):
                (delivery,) = await take(subscription, 1)
                assert delivery.id[1] == number
                await heard_all(broker)
                assert subscription.inbox.bytes <= 100_000
        flows = [body.messagePermits for body in broker.bodies("FLOW")]
        assert sum(flows) / len(flows) > 3
        assert not subscription.counts


@awaited
async def test_partitions_share_the_room() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.always("PARTITIONED_METADATA", answer("PARTITIONED_METADATA_RESPONSE", partitions=10))
        async with subscribed(client):
            flows = await broker.saw("FLOW", 10)
            assert sum(body.messagePermits for body in flows) < 3 * 1000
            assert flows[-1].messagePermits == 100


def flood(first: int, count: int, size: int) -> Reaction:
    return deliver(*(entry(each, bytes([each]) * size) for each in range(first, first + count)))


@pytest.mark.parametrize("kind", [{}, SHARED, {"durable": False, "start": (-1, -1, -1)}], ids=str)
@awaited
async def test_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]) -> None:
    """What comes beyond is let go, said and counted; what waits is taken first, and then the rest comes."""
    monkeypatch.setattr(inbox, "MOST_BYTES", 100_000)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", flood(0, 30, 10_000))
        async with subscribed(client, queue_size=5, **kind) as subscription:
            await broker.heard("what comes now is let go")
            await heard_all(broker)
            kept = len(subscription.inbox)
            assert 5 <= kept < 10
            assert subscription.inbox.bytes <= 100_000
            assert subscription.counts["let go"] == 30 - kept
            assert broker.warnings("of them more than were asked for")
            assert len(broker.seen("FLOW")) == 1

            broker.once("FLOW", flood(kept, 3, 10_000))
            for number in range(kept):
                (delivery,) = await take(subscription, 1)
                assert delivery.id == (LEDGER, number)
                if subscription.options.durable:
                    delivery.consumer.ack(delivery)
            more = await take(subscription, 3)
            assert [delivery.id[1] for delivery in more] == [kept, kept + 1, kept + 2]
            commands = broker.peers[0].commands
            assert commands.index("CLOSE_CONSUMER") < len(commands) - commands[::-1].index("SUBSCRIBE")
            assert broker.warnings("messages were let go") == 1
        if subscription.options.durable:
            assert acked(broker) == [(LEDGER, each) for each in range(kept)]
        else:
            assert places([broker.bodies("SUBSCRIBE")[1].start_message_id]) == [(LEDGER, kept - 1)]


@awaited
async def test_a_large_message_alone_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_BYTES", 1_000)
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", flood(0, 1, 10_000))
        async with subscribed(client) as subscription:
            assert payloads(await take(subscription, 1)) == [bytes(10_000)]
            assert not subscription.counts


# ---- Entries that are not opened ----


@awaited
async def test_too_large_to_be_opened() -> None:
    """It is said and counted, and gives its permits back; it is not acknowledged, as it may be intact."""
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(zipped(0, 100, MAX_PAYLOAD + 1), entry(1, b"b")))
        async with subscribed(client, queue_size=2) as subscription:
            (delivery,) = await take(subscription, 1)
            delivery.consumer.ack(delivery)
            assert payloads([delivery]) == [b"b"]
            assert subscription.counts == {"unopened": 1}
            await broker.saw("FLOW", 3)
        assert acked(broker) == [(LEDGER, 1)]
        assert broker.warnings("7:0: left unopened and unacknowledged: ZSTD payload of")


@awaited
async def test_cumulative_acknowledgements_stop_at_what_is_not_opened() -> None:
    async with ScriptedBroker() as broker, broker.client() as client:
        broker.once("FLOW", deliver(entry(0, b"a"), zipped(1, 100, MAX_PAYLOAD + 1), entry(2, b"c")))
        async with subscribed(client) as subscription:
            for delivery in await take(subscription, 2):
                delivery.consumer.ack_cumulatively(delivery, delivery.messages[0])
        assert acked(broker) == [(LEDGER, 0)]


@pytest.mark.parametrize("how", ["individual", "cumulative"])
@awaited
async def test_a_batch_of_more_than_is_opened(how: str) -> None:
    """Its rest has not been seen, so it is not acknowledged."""
    count = MAX_MESSAGES + 1
    async with ScriptedBroker() as broker, broker.client() as client:
        batch = (b"\0\0\0\2" + b"\x18\0") * count  # payload_size 0
        broker.once("FLOW", deliver(entry(0, batch, num_messages_in_batch=count)))
        async with subscribed(client, batch_index_ack=True) as subscription:
            (delivery,) = await take(subscription, 1)
            assert len(delivery.messages) == MAX_MESSAGES
            if how == "individual":
                delivery.consumer.ack(delivery)
            else:
                delivery.consumer.ack_cumulatively(delivery, delivery.messages[-1])
        assert acked(broker) == []
        assert broker.warnings(f"{MAX_MESSAGES} messages in a batch that says {count}")
