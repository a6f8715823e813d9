"""SEND where the broker removes duplicates."""

from __future__ import annotations

from typing import Any

from broker.entries import batch, publish_batch
from broker.probe import NO_REQUEST, Probe, Target, case, id_of, payloads, sent

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError

NOWHERE = {"ledgerId": NO_REQUEST, "entryId": NO_REQUEST}


async def received(broker: Target, topic: str, number: int) -> list[bytes]:
    """The payloads of all entries of a topic, which must be so many."""
    consumer = await broker.subscribed(topic, permits=100)
    messages = await consumer.messages(number)
    await consumer.nothing()
    return payloads(messages)


async def stored(probe: Probe, sequence_id: int) -> bool:
    """SEND one message: whether its receipt says that it was stored."""
    (message_id,) = await probe.publish_all(b"m", first=sequence_id)
    return id_of(message_id) != NOWHERE


def is_duplicate(receipt: Any) -> bool:
    return id_of(receipt.body.message_id) == NOWHERE


@case("dedup/duplicate_receipt")
async def duplicate(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    assert [await stored(probe, number) for number in (0, 1, 2, 1)] == [True, True, True, False]
    await received(broker, topic, 3)


@case("dedup/last_sequence_id")
async def last_sequence_id(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    await probe.publish_all(b"m", first=5)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    assert (await probe.producer(topic, producer_name="p")).last_sequence_id == 5


@case("dedup/batch_range")
async def batch_range(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    publish_batch(probe, 0, 5, highest=4)
    assert not is_duplicate(await probe.expect("SEND_RECEIPT", sequence_id=0))
    assert [await stored(probe, number) for number in (4, 5)] == [False, True]
    assert await received(broker, topic, 2) == [batch(5), b"m"]


@case("dedup/batch_without_highest")
async def batch_without_highest(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    publish_batch(probe, 0, 5)
    assert not is_duplicate(await probe.expect("SEND_RECEIPT", sequence_id=0))
    assert await stored(probe, 4)
    assert await received(broker, topic, 2) == [batch(5), b"m"]


@case("dedup/overlapping_batch")
async def overlapping_batch(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await probe.publish_all(*(b"m%d" % each for each in range(5)))
    publish_batch(probe, 3, 6, highest=8)
    assert is_duplicate(await probe.expect("SEND_RECEIPT", sequence_id=3, highest_sequence_id=8))
    assert await received(broker, topic, 5) == [b"m%d" % each for each in range(5)]


@case("dedup/pipelined_duplicates")
async def pipelined_duplicates(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    probe.send(sent(0) + sent(0))
    frames = [await probe.next() for _ in range(2)]
    errors = [each.body for each in frames if each.command == "SEND_ERROR"]
    receipts = [each for each in frames if each.command == "SEND_RECEIPT"]
    assert all(each.error == ServerError.Value("PersistenceError") for each in errors), errors
    assert [is_duplicate(each) for each in receipts] == ([False] if errors else [False, True])
    assert {each.body.sequence_id for each in frames} == {0}


@case("dedup/two_producers_independent")
async def two_producers(broker: Target) -> None:
    topic = broker.topic()
    for name in ("p", "q"):
        assert await stored(await broker.producing(topic, producer_name=name), 0)
    await received(broker, topic, 2)


@case("dedup/signed_ids")
async def signed_ids(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic, producer_name="p")
    assert await stored(probe, 5)
    assert not await stored(probe, 2**64 - 1)
    assert await stored(probe, 2**63 - 1)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    assert (await probe.producer(topic, producer_name="p")).last_sequence_id == 2**63 - 1
