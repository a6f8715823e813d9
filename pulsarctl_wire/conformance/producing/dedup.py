"""SEND where the broker removes duplicates."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import id_of, make_digit_batch, make_send, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST

_WHETHER_STORED = "whether it was stored"
_WHETHER_DUPLICATE = "whether it was a duplicate"
_DUPLICATE_ID = {"ledgerId": NO_REQUEST, "entryId": NO_REQUEST}  # -1:-1


async def _receive(broker: Target, topic: str, number: int) -> list[bytes]:
    """Return the payloads of all entries of a topic; require that there are `number`."""
    consumer = await broker.subscribe(topic, permits=100)
    messages = await consumer.messages(number)
    await consumer.expect_nothing()
    return payloads(messages)


async def _store(probe: Probe, sequence_id: int) -> bool:
    """Send SEND of one message; return whether its receipt says that it was stored."""
    (message_id,) = await probe.publish_all(b"m", first=sequence_id)
    return id_of(message_id) != _DUPLICATE_ID


def _is_duplicate(receipt: Any) -> bool:
    return id_of(receipt.body.message_id) == _DUPLICATE_ID


@case(SHOULD, needs=("dedup",))
async def duplicate_receipt(broker: Target) -> None:
    """SEND seq 0,1,2 then seq 1 again.

    Expected: Fourth SEND_RECEIPT {sequence_id=1} with message_id -1:-1; nothing stored.

    Source: PIP-6; broker: MessageDeduplication.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    equal(
        [await _store(probe, number) for number in (0, 1, 2, 1)],
        [True, True, True, False],
        _WHETHER_STORED,
    )
    await _receive(broker, topic, 3)


@case(MUST, needs=("dedup",))
async def last_sequence_id(broker: Target) -> None:
    """Producer p sends seq 5, closes, is created again.

    Expected: PRODUCER_SUCCESS.last_sequence_id=5.

    Source: Protocol: Producer (last_sequence_id).
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    await probe.publish_all(b"m", first=5)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    equal((await probe.create_producer(topic, producer_name="p")).last_sequence_id, 5, "last_sequence_id")


@case(SHOULD, needs=("dedup",))
async def batch_range(broker: Target) -> None:
    """SEND batch seq=0 highest=4; then plain seq=4, seq=5.

    Expected: A receipt; one with -1:-1; the last is stored.

    Source: PIP-6; broker: MessageDeduplication.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    probe.publish_digits(0, 5, highest=4)
    equal(_is_duplicate(await probe.expect("SEND_RECEIPT", sequence_id=0)), False, _WHETHER_DUPLICATE)
    equal([await _store(probe, number) for number in (4, 5)], [False, True], _WHETHER_STORED)
    equal(await _receive(broker, topic, 2), [make_digit_batch(5), b"m"], "payloads")


@case(OBSERVED, needs=("dedup",))
async def batch_without_highest(broker: Target) -> None:
    """SEND batch of 5 seq=0 without highest; then plain seq=4.

    Expected: Seq 4 is stored (only 0 counted).

    Source: PIP-6; broker: MessageDeduplication.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    probe.publish_digits(0, 5)
    equal(_is_duplicate(await probe.expect("SEND_RECEIPT", sequence_id=0)), False, _WHETHER_DUPLICATE)
    equal(await _store(probe, 4), True, _WHETHER_STORED)
    equal(await _receive(broker, topic, 2), [make_digit_batch(5), b"m"], "payloads")


@case(OBSERVED, needs=("dedup",))
async def overlapping_batch(broker: Target) -> None:
    """SEND seq 0..4 stored; batch seq=3 highest=8.

    Expected: SEND_RECEIPT {sequence_id=3, highest=8, message_id -1:-1}: the whole batch is dropped, 5..8
    included.

    Source: PIP-6; broker: MessageDeduplication.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    await probe.publish_all(*(b"m%d" % item for item in range(5)))
    probe.publish_digits(3, 6, highest=8)
    receipt = await probe.expect("SEND_RECEIPT", sequence_id=3, highest_sequence_id=8)
    equal(_is_duplicate(receipt), True, _WHETHER_DUPLICATE)
    equal(await _receive(broker, topic, 5), [b"m%d" % item for item in range(5)], "payloads")


@case(OBSERVED, needs=("dedup",))
async def pipelined_duplicates(broker: Target) -> None:
    """SEND seq 0 and seq 0 in one write.

    Expected: SEND_ERROR PersistenceError for the second (not persisted yet), which may arrive *before* the
    first one's SEND_RECEIPT; or a receipt -1:-1 if it was persisted in time.

    Source: PIP-6; broker: MessageDeduplication.
    """
    probe = await broker.produce(broker.topic())
    probe.send(make_send(0) + make_send(0))
    frames = [await probe.next() for _ in range(2)]
    errors = [item.body for item in frames if item.command == "SEND_ERROR"]
    receipts = [item for item in frames if item.command == "SEND_RECEIPT"]
    require(all(item.error == ServerError.PersistenceError for item in errors), "PersistenceError", errors)
    equal(
        [_is_duplicate(item) for item in receipts], [False] if errors else [False, True], _WHETHER_DUPLICATE
    )
    equal({item.body.sequence_id for item in frames}, {0}, "sequence_id")


@case(MUST, needs=("dedup",))
async def two_producers_independent(broker: Target) -> None:
    """Producers p and q both send seq 0.

    Expected: Both stored.

    Source: PIP-6; broker: MessageDeduplication.
    """
    topic = broker.topic()
    for name in ("p", "q"):
        equal(await _store(await broker.produce(topic, producer_name=name), 0), True, _WHETHER_STORED)
    await _receive(broker, topic, 2)


@case(OBSERVED, needs=("dedup",))
async def signed_ids(broker: Target) -> None:
    """SEND seq=5, seq=2^64-1, seq=2^63-1; the producer is created again.

    Expected: Stored; -1:-1, as ids are signed; stored; PRODUCER_SUCCESS.last_sequence_id=2^63-1.

    Source: Broker: MessageDeduplication.
    """
    topic = broker.topic()
    probe = await broker.produce(topic, producer_name="p")
    outcomes = [await _store(probe, number) for number in (5, 2**64 - 1, 2**63 - 1)]
    equal(outcomes, [True, False, True], _WHETHER_STORED)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    equal(
        (await probe.create_producer(topic, producer_name="p")).last_sequence_id,
        2**63 - 1,
        "last_sequence_id",
    )
