"""SEND and its answers, and what the broker stores and delivers."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import (
    NOT_METADATA,
    id_of,
    make_digit_batch,
    make_entry,
    make_metadata,
    make_raw_send,
    make_send,
    payloads,
    tail,
)
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.frame import FRAME_PADDING, MAX_MESSAGE_SIZE
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError
from pulsarctl_wire.wire.session.state import NO_REQUEST


@case(OBSERVED)
async def undecodable_not_delivered(broker: Target) -> None:
    """SEND with metadata = 4 bytes ff, then a plain one; consume.

    Expected: Only the plain one.

    Source: Broker: AbstractBaseDispatcher.
    """
    producer = await broker.produce(topic := broker.topic())
    producer.send(make_raw_send(make_entry(b"\xff" * 4)))
    await producer.expect("SEND_RECEIPT", sequence_id=0)
    await producer.publish_all(b"plain", first=1)
    consumer = await broker.subscribe(topic, permits=10)
    equal(payloads(await consumer.messages(1)), [b"plain"], "payloads")
    await consumer.expect_nothing()


_PLAIN_ENTRY = make_entry(make_metadata().SerializeToString())


_NAMELESS_METADATA = MessageMetadata(sequence_id=0, publish_time=1).SerializePartialToString()


_NOT_ALLOWED = ServerError.NotAllowedError


@case(MUST)
async def receipt_highest_echoed(broker: Target) -> None:
    """Batch SEND seq=10 highest=12 num_messages=3.

    Expected: SEND_RECEIPT {sequence_id=10, highest_sequence_id=12}, one entry.

    Source: Protocol: Producer.
    """
    topic = broker.topic()
    probe = await broker.produce(topic)
    probe.publish_digits(10, 3, highest=12)
    await probe.expect("SEND_RECEIPT", sequence_id=10, highest_sequence_id=12)
    consumer = await broker.subscribe(topic, permits=10)
    equal(payloads(await consumer.messages(1)), [make_digit_batch(3)], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED)
async def error_overtakes_receipts(broker: Target) -> None:
    """SEND seq 0 (200 KB, good), SEND seq 1 (wrong CRC), SEND seq 2 (good) in one write.

    Expected: SEND_ERROR {sequence_id=1, error=ChecksumError} and SEND_RECEIPT for 0 and 2; receipts are in
    order among themselves, the error may come first.

    Source: Broker: Producer.
    """
    probe = await broker.produce(broker.topic())
    wrong = bytearray(make_send(1))
    wrong[-1] ^= 1
    probe.send(make_send(0, bytes(200_000)) + wrong + make_send(2))
    frames = [await probe.next() for _ in range(3)]
    (error,) = (item.body for item in frames if item.command == "SEND_ERROR")
    equal((error.sequence_id, error.error), (1, ServerError.ChecksumError), "sequence_id, error")
    equal([item.body.sequence_id for item in frames if item.command == "SEND_RECEIPT"], [0, 2], "sequence_id")


@case(SHOULD)
async def unknown_producer(broker: Target) -> None:
    """SEND for producer_id=99.

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.handleSend.
    """
    probe = await broker.connect()
    probe.publish(producer_id=99)
    await probe.expect_close()


@case(MUST)
async def stored_verbatim(broker: Target) -> None:
    """SEND; the message is consumed.

    Expected: MESSAGE tail = the same bytes.

    Source: Protocol: Payload commands.
    """
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.subscribe(topic, permits=10)
    probe.send(make_raw_send(_PLAIN_ENTRY))
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    equal([tail(item) for item in await consumer.messages(1)], [_PLAIN_ENTRY], "tail")


async def _expect_stored(probe: Probe) -> None:
    """Require that the message with sequence id 0 is stored."""
    receipt = await probe.expect("SEND_RECEIPT", sequence_id=0)
    require(receipt.body.message_id.ledgerId != NO_REQUEST, "a message id", receipt.body)


async def _expect_receipt(broker: Target, send: bytes) -> None:
    probe = await broker.produce(broker.topic())
    probe.send(send)
    await _expect_stored(probe)


@case(OBSERVED)
async def undecodable_metadata(broker: Target) -> None:
    """SEND, valid CRC, metadata = 4 bytes ff.

    Expected: SEND_RECEIPT: the broker stores it undecoded.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_receipt(broker, make_raw_send(make_entry(NOT_METADATA)))


@case(OBSERVED)
async def metadata_missing_required(broker: Target) -> None:
    """SEND, valid CRC, metadata without producer_name.

    Expected: SEND_RECEIPT.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_receipt(broker, make_raw_send(make_entry(_NAMELESS_METADATA)))


@case(OBSERVED)
async def metadata_length_beyond(broker: Target) -> None:
    """SEND, valid CRC, metadata length 1000 in a 20 byte tail.

    Expected: SEND_RECEIPT.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_receipt(broker, make_raw_send(make_entry(b"", bytes(10), size=1000)))


@case(OBSERVED)
async def num_messages_zero(broker: Target) -> None:
    """SEND num_messages=0.

    Expected: SEND_RECEIPT.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_receipt(broker, make_send(num_messages=0))


@case(OBSERVED)
async def num_messages_negative(broker: Target) -> None:
    """SEND num_messages=-1.

    Expected: SEND_RECEIPT.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_receipt(broker, make_send(num_messages=-1))


async def _send_payload(broker: Target, size: int) -> None:
    probe = await broker.produce(broker.topic())
    probe.publish(payload=bytes(size))
    await _expect_stored(probe)


@case(MUST)
async def empty_payload(broker: Target) -> None:
    """SEND with zero payload bytes.

    Expected: SEND_RECEIPT.

    Source: Broker: ServerCnx.handleSend.
    """
    await _send_payload(broker, 0)


@case(MUST, without=("limits",))
async def max_size(broker: Target) -> None:
    """SEND with payload 5 MiB - 1 KiB (whole frame under 5 MiB).

    Expected: SEND_RECEIPT.

    Source: Protocol: Framing.
    """
    await _send_payload(broker, MAX_MESSAGE_SIZE - 1024)


@case(OBSERVED, without=("limits",), alone=True)  # 5.0.0-M1 serves no other topic after it for half a minute
async def over_max_size(broker: Target) -> None:
    """SEND with payload 5 MiB + 1 KiB (the frame is within the padding of 10 KiB).

    Expected: SEND_RECEIPT: only the frame limit is enforced.

    Source: Broker: ServerCnx.handleSend.
    """
    await _send_payload(broker, MAX_MESSAGE_SIZE + 1024)


@case(MUST)
async def frame_over_limit(broker: Target) -> None:
    """SEND whose frame exceeds 5 MiB + 10 KiB.

    Expected: No frame; the broker closes the connection.

    Source: Protocol: Framing.
    """
    probe = await broker.produce(broker.topic())
    probe.publish(payload=bytes(MAX_MESSAGE_SIZE + FRAME_PADDING))
    await probe.expect_close()


@case(OBSERVED)
async def no_tail(broker: Target) -> None:
    """SEND command with nothing after it.

    Expected: No frame; the broker closes the connection.

    Source: Broker: ServerCnx.handleSend.
    """
    probe = await broker.produce(broker.topic())
    probe.send(make_raw_send(b""))
    await probe.expect_close()


@case(OBSERVED)
async def num_messages_mismatch(broker: Target) -> None:
    """SEND num_messages=5 for a plain message.

    Expected: SEND_RECEIPT; a consumer with 10 permits gets the one MESSAGE.

    Source: Broker: ServerCnx.handleSend.
    """
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.subscribe(topic, permits=10)
    await probe.publish_all(b"m", num_messages=5)
    equal(payloads(await consumer.messages(1)), [b"m"], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED)
async def lowest_above_highest(broker: Target) -> None:
    """SEND sequence_id=10 highest_sequence_id=5.

    Expected: SEND_RECEIPT {sequence_id=10, highest 0 or 2^64-1}: highest ignored.

    Source: Broker: Producer.publishMessage.
    """
    probe = await broker.produce(broker.topic())
    probe.publish(10, highest_sequence_id=5)
    receipt = await probe.expect("SEND_RECEIPT", sequence_id=10)
    require(receipt.body.highest_sequence_id in (0, NO_REQUEST), "highest_sequence_id=0 or -1", receipt.body)


@case(MUST, without=("dedup",))
async def duplicate_without_dedup(broker: Target) -> None:
    """Deduplication is off: SEND seq=3 twice, then seq=1.

    Expected: Three SEND_RECEIPTs with three entries.

    Source: Protocol: Producer; deduplication is off by default.
    """
    probe = await broker.produce(broker.topic())
    ids = [(await probe.publish_all(b"m", first=number))[0] for number in (3, 3, 1)]
    equal(len({(item.ledgerId, item.entryId) for item in ids}), 3, "number of ledgerId, entryId")


async def _expect_not_allowed(broker: Target, fields: dict[str, Any]) -> None:
    probe = await broker.produce(broker.topic())
    probe.publish(**fields)
    await probe.expect("SEND_ERROR", sequence_id=0, error=_NOT_ALLOWED)


@case(OBSERVED, since="3.3")
async def message_id_on_plain_topic(broker: Target) -> None:
    """SEND with message_id={1,1} on an ordinary topic.

    Expected: SEND_ERROR NotAllowedError.

    Source: Broker: ServerCnx.handleSend (shadow topics only).
    """
    await _expect_not_allowed(broker, {"message_id": {"ledgerId": 1, "entryId": 1}})


@case(OBSERVED, without=("txn",))
async def txn_ids_txn_off(broker: Target) -> None:
    """Transactions are off: SEND with txnid 0/1.

    Expected: SEND_ERROR NotAllowedError.

    Source: Broker: ServerCnx.handleSend.
    """
    await _expect_not_allowed(broker, {"txnid_most_bits": 0, "txnid_least_bits": 1})


@case(OBSERVED)
async def partial_chunk_delivered(broker: Target) -> None:
    """SEND of chunk 0 of 2, and nothing more.

    Expected: MESSAGE for the chunk all the same (broker does not assemble).

    Source: PIP-37.
    """
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.subscribe(topic, permits=10)
    chunk = {"meta_chunk_id": 0, "meta_num_chunks_from_msg": 2, "meta_total_chunk_msg_size": 10}
    await probe.publish_all(b"half", is_chunk=True, meta_uuid="p-0", **chunk)
    equal(payloads(await consumer.messages(1)), [b"half"], "payloads")


@case(OBSERVED)
async def marker_hidden(broker: Target) -> None:
    """SEND marker=true with metadata.marker_type=10, then a normal SEND; consume.

    Expected: Two SEND_RECEIPT (entries 0,1); only entry 1 is delivered; markers are acknowledged by the
    broker (backlog 0).

    Source: Broker: AbstractBaseDispatcher.
    """
    topic = broker.topic()
    probe, consumer = await broker.produce(topic), await broker.subscribe(topic, permits=10)
    (marker,) = await probe.publish_all(b"marker", marker=True, meta_marker_type=10)
    (normal,) = await probe.publish_all(b"normal", first=1)
    equal((marker.entryId, normal.entryId), (0, 1), "entryId, entryId")
    (message,) = await consumer.messages(1)
    equal(id_of(message.body.message_id), id_of(normal), "message_id")
    await consumer.confirm_ack(message.body.message_id)
    stats = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    equal(stats.msgBacklog, 0, "msgBacklog")


@case(OBSERVED)
async def tail_too_short(broker: Target) -> None:
    """SEND with 1 byte behind the command; on another connection the magic and half a checksum.

    Expected: No frame; the broker closes the connection.

    Source: Common: Commands.hasChecksum.
    """
    topic = broker.topic()
    for entry in (b"\0", b"\x0e\x01\0\0"):
        probe = await broker.produce(topic)
        probe.send(make_raw_send(entry))
        await probe.expect_close()


@case(OBSERVED, since="3.3")
async def incomplete_not_delivered(broker: Target) -> None:
    """SEND with metadata of 0 bytes, then a plain one; consume, on a topic of each domain.

    Expected: Two SEND_RECEIPT; only the plain one.

    Source: Broker: AbstractBaseDispatcher.
    """
    for domain in ("persistent", "non-persistent"):
        topic = broker.topic(domain)
        probe, consumer = await broker.produce(topic), await broker.subscribe(topic, permits=10)
        await consumer.expect_nothing()  # by now its permits have arrived
        probe.send(make_raw_send(make_entry(b"")))
        await probe.expect("SEND_RECEIPT")
        await probe.publish_all(b"m", first=1)
        equal(payloads(await consumer.messages(1)), [b"m"], "payloads")


@case(OBSERVED, since="3.3")
async def message_id_before_checksum(broker: Target) -> None:
    """SEND with message_id={1,1} and a wrong checksum.

    Expected: SEND_ERROR NotAllowedError.

    Source: Broker: Producer.checkAndStartPublish.
    """
    probe = await broker.produce(broker.topic())
    wrong = bytearray(make_send(7, message_id={"ledgerId": 1, "entryId": 1}))
    wrong[-1] ^= 1
    probe.send(bytes(wrong))
    await probe.expect("SEND_ERROR", sequence_id=7, error=_NOT_ALLOWED)
