"""SEND and its answers, and encryption that a namespace requires."""

from __future__ import annotations

from typing import Any

from broker.entries import NOT_METADATA, batch, entry, publish_batch, tail
from broker.probe import (
    NO_REQUEST,
    Probe,
    Target,
    admin_path,
    case,
    frame,
    id_of,
    metadata,
    payloads,
    sent,
    sent_raw,
)

from pulsarctl_wire.wire.frame import FRAME_PADDING, MAX_MESSAGE_SIZE
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError

PLAIN = entry(metadata().SerializeToString())
WITHOUT_NAME = MessageMetadata(sequence_id=0, publish_time=1).SerializePartialToString()
NOT_ALLOWED = ServerError.Value("NotAllowedError")


@case("send/receipt_highest_echoed")
async def batch_receipt(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    publish_batch(probe, 10, 3, highest=12)
    await probe.expect("SEND_RECEIPT", sequence_id=10, highest_sequence_id=12)
    consumer = await broker.subscribed(topic, permits=10)
    assert payloads(await consumer.messages(1)) == [batch(3)]
    await consumer.nothing()


@case("send/error_overtakes_receipts")
async def error_overtakes_receipts(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    wrong = bytearray(sent(1))
    wrong[-1] ^= 1
    probe.send(sent(0, bytes(200_000)) + wrong + sent(2))
    frames = [await probe.next() for _ in range(3)]
    (error,) = (each.body for each in frames if each.command == "SEND_ERROR")
    assert (error.sequence_id, error.error) == (1, ServerError.Value("ChecksumError"))
    assert [each.body.sequence_id for each in frames if each.command == "SEND_RECEIPT"] == [0, 2]


@case("send/unknown_producer")
async def unknown_producer(broker: Target) -> None:
    probe = await broker.connected()
    probe.publish(producer_id=99)
    await probe.closes()


@case("send/after_close")
async def after_close(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    probe.publish()
    await probe.closes()


@case("send/stored_verbatim")
async def stored_verbatim(broker: Target) -> None:
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.subscribed(topic, permits=10)
    probe.send(sent_raw(PLAIN))
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    assert [tail(each) for each in await consumer.messages(1)] == [PLAIN]


async def stored(probe: Probe) -> None:
    """The message with sequence id 0 is stored."""
    receipt = await probe.expect("SEND_RECEIPT", sequence_id=0)
    assert receipt.body.message_id.ledgerId != NO_REQUEST, receipt.body


@case("send/undecodable_metadata", sent_raw(entry(NOT_METADATA)))
@case("send/metadata_missing_required", sent_raw(entry(WITHOUT_NAME)))
@case("send/metadata_length_beyond", sent_raw(entry(b"", bytes(10), size=1000)))
@case("send/num_messages_zero", sent(num_messages=0))
@case("send/num_messages_negative", sent(num_messages=-1))
async def accepted(broker: Target, send: bytes) -> None:
    probe = await broker.producing(broker.topic())
    probe.send(send)
    await stored(probe)


@case("send/empty_payload", 0)
@case("send/max_size", MAX_MESSAGE_SIZE - 1024)
@case("send/over_max_size", MAX_MESSAGE_SIZE + 1024)
async def payload_of(broker: Target, size: int) -> None:
    probe = await broker.producing(broker.topic())
    probe.publish(payload=bytes(size))
    await stored(probe)


@case("send/frame_over_limit")
async def frame_over_limit(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    probe.publish(payload=bytes(MAX_MESSAGE_SIZE + FRAME_PADDING))
    await probe.closes()


@case("send/no_tail")
async def no_tail(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    probe.send(sent_raw(b""))
    await probe.closes()


@case("send/num_messages_mismatch")
async def number_mismatch(broker: Target) -> None:
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.subscribed(topic, permits=10)
    await probe.publish_all(b"m", num_messages=5)
    assert payloads(await consumer.messages(1)) == [b"m"]
    await consumer.nothing()


@case("send/lowest_above_highest")
async def lowest_above_highest(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    probe.publish(10, highest_sequence_id=5)
    receipt = await probe.expect("SEND_RECEIPT", sequence_id=10)
    assert receipt.body.highest_sequence_id in (0, NO_REQUEST), receipt.body


@case("send/duplicate_without_dedup")
async def duplicate_without_dedup(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    ids = [(await probe.publish_all(b"m", first=number))[0] for number in (3, 3, 1)]
    assert len({(each.ledgerId, each.entryId) for each in ids}) == 3, ids


@case("send/message_id_on_plain_topic", {"message_id": {"ledgerId": 1, "entryId": 1}})
@case("send/txn_ids_txn_off", {"txnid_most_bits": 0, "txnid_least_bits": 1})
async def not_allowed(broker: Target, fields: dict[str, Any]) -> None:
    probe = await broker.producing(broker.topic())
    probe.publish(**fields)
    await probe.expect("SEND_ERROR", sequence_id=0, error=NOT_ALLOWED)


@case("send/partial_chunk_delivered")
async def first_chunk_alone(broker: Target) -> None:
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.subscribed(topic, permits=10)
    chunk = {"meta_chunk_id": 0, "meta_num_chunks_from_msg": 2, "meta_total_chunk_msg_size": 10}
    await probe.publish_all(b"half", is_chunk=True, meta_uuid="p-0", **chunk)
    assert payloads(await consumer.messages(1)) == [b"half"]


@case("send/marker_hidden")
async def marker_hidden(broker: Target) -> None:
    topic = broker.topic()
    probe, consumer = await broker.producing(topic), await broker.subscribed(topic, permits=10)
    (marker,) = await probe.publish_all(b"marker", marker=True, meta_marker_type=10)
    (normal,) = await probe.publish_all(b"normal", first=1)
    assert (marker.entryId, normal.entryId) == (0, 1)
    (message,) = await consumer.messages(1)
    assert id_of(message.body.message_id) == id_of(normal)
    await consumer.acked(message.body.message_id)
    stats = await consumer.request("CONSUMER_STATS", "CONSUMER_STATS_RESPONSE", consumer_id=1)
    assert stats.msgBacklog == 0, stats


@case("send/terminated_topic")
async def terminated_topic(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await broker.rest("POST", f"{admin_path(topic)}/terminate")
    await probe.expect("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST)
    probe.publish()
    await probe.nothing()
    await probe.refused("TopicTerminatedError", "PRODUCER", topic=topic, producer_id=1)


@case("send/after_broker_close")
async def after_broker_close(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER")
    probe.send(sent(0) + sent(1))
    await probe.nothing()
    await probe.stays_open()


@case("send/unloaded_topic")
async def unloaded_topic(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1, request_id=NO_REQUEST)
    await probe.producer(topic)


@case("send/unloaded_topic_v4")
async def unloaded_topic_v4(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected(protocol_version=4)
    await probe.producer(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.closes()


@case("send/nonpersistent_delivery")
async def nonpersistent_delivery(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    consumer, probe = await broker.subscribed(topic, permits=10), await broker.producing(topic)
    await probe.publish_all(b"m")
    (message,) = await consumer.messages(1)
    assert id_of(message.body.message_id) == {"ledgerId": 0, "entryId": 0}


@case("send/nonpersistent_no_permit")
async def nonpersistent_without_permits(broker: Target) -> None:
    topic = broker.topic("non-persistent")
    consumer, probe = await broker.subscribed(topic), await broker.producing(topic)
    await probe.publish_all(b"m")
    consumer.flow(10)
    await consumer.nothing()


@case("encryption/producer_refused")
async def encryption_required(broker: Target) -> None:
    topic = f"persistent://{await broker.namespace({'encryption_required': True})}/t"
    probe = await broker.connected()
    await probe.lookup(topic)
    await probe.refused("MetadataError", "PRODUCER", topic=topic, producer_id=1, encrypted=False)


@case("encryption/undecodable_refused")
async def undecodable_encrypted(broker: Target) -> None:
    topic = f"persistent://{await broker.namespace({'encryption_required': True})}/t"
    probe = await broker.producing(topic, encrypted=True)
    probe.send(sent_raw(entry(NOT_METADATA)))
    await probe.closes()


@case("send/tail_too_short")
async def short_tails(broker: Target) -> None:
    topic = broker.topic()
    for short in (b"\0", b"\x0e\x01\0\0"):
        probe = await broker.producing(topic)
        probe.send(sent_raw(short))
        await probe.closes()


@case("send/incomplete_not_delivered")
async def incomplete_not_delivered(broker: Target) -> None:
    for domain in ("persistent", "non-persistent"):
        topic = broker.topic(domain)
        probe, consumer = await broker.producing(topic), await broker.subscribed(topic, permits=10)
        await consumer.nothing()  # it has its permits
        probe.send(sent_raw(entry(b"")))
        await probe.expect("SEND_RECEIPT")
        await probe.publish_all(b"m", first=1)
        assert payloads(await consumer.messages(1)) == [b"m"]


@case("send/message_id_before_checksum")
async def message_id_before_checksum(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    wrong = bytearray(sent(7, message_id={"ledgerId": 1, "entryId": 1}))
    wrong[-1] ^= 1
    probe.send(bytes(wrong))
    await probe.expect("SEND_ERROR", sequence_id=7, error=NOT_ALLOWED)


@case("send/nonpersistent_transaction")
async def nonpersistent_transaction(broker: Target) -> None:
    probe = await broker.producing(broker.topic("non-persistent"))
    probe.publish(txnid_most_bits=0, txnid_least_bits=1)
    await probe.closes()


@case("send/closed_after_broker_close")
async def closed_after_broker_close(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    await broker.rest("PUT", f"{admin_path(topic)}/unload")
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.producer(topic)
    await probe.request("CLOSE_PRODUCER", "SUCCESS", producer_id=1)
    probe.publish()
    await probe.nothing()


@case("send/topic_max_size")
async def topic_max_size(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.producing(topic)
    path = f"{admin_path(topic)}/maxMessageSize"
    await broker.rest("POST", path, 100)
    while await broker.rest("GET", path) != 100:
        await broker.advance(0.2)
    await broker.settle()
    await probe.publish_all(b"x" * 50)
    probe.publish(1, b"x" * 500)
    await probe.expect("SEND_ERROR", sequence_id=1, error=NOT_ALLOWED, message="Exceed maximum message size")
    probe.publish(2, b"x" * 500, is_chunk=True)
    await probe.expect("SEND_RECEIPT", sequence_id=2)


@case("delayed/too_long")
async def too_long_delay(broker: Target) -> None:
    delays = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    topic = f"persistent://{await broker.namespace({'delayed_delivery_policies': delays})}/t"
    probe = await broker.producing(topic)
    published = metadata().publish_time
    await probe.publish_all(b"m", meta_deliver_at_time=published + 4000)
    probe.publish(1, highest_sequence_id=3, meta_deliver_at_time=published + 6000)
    text = "Exceeds max allowed delivery delay of 5000 milliseconds"
    await probe.expect("SEND_ERROR", sequence_id=3, error=NOT_ALLOWED, message=text)


@case("encryption/required_later")
async def encryption_required_later(broker: Target) -> None:
    namespace = await broker.namespace()
    probe = await broker.producing(f"persistent://{namespace}/t")
    await probe.producer(f"persistent://{namespace}/t", 2, encrypted=True)
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/encryptionRequired", True)
    await probe.expect("CLOSE_PRODUCER", producer_id=1)
    await probe.nothing()


@case("send/while_closing")
async def while_closing(broker: Target) -> None:
    probe = await broker.producing(broker.topic())
    sends = b"".join(sent(number) for number in range(5))
    closing = frame("CLOSE_PRODUCER", producer_id=1, request_id=9)
    probe.send(sends + closing + sent(6))
    answers = [await probe.next() for _ in range(7)]
    (error,) = (each.body for each in answers if each.command == "SEND_ERROR")
    assert (error.sequence_id, error.error) == (6, ServerError.PersistenceError)
    assert error.message == "Producer is closed"
    assert answers[-1].command == "SUCCESS"


@case("send/too_fast")
async def too_fast(broker: Target) -> None:
    namespace = await broker.namespace()
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    await broker.rest("POST", f"/admin/v2/namespaces/{namespace}/publishRate", rate)
    probe = await broker.producing(f"persistent://{namespace}/t")
    probe.send(b"".join(map(sent, range(3))) + frame("PING"))
    await probe.expect("SEND_RECEIPT", sequence_id=0)
    await probe.nothing(0.2)
    await broker.advance(5)
    for number in (1, 2):
        await probe.expect("SEND_RECEIPT", sequence_id=number)
    await probe.expect("PONG")
