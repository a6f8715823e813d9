"""ACK."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal
from pulsarctl_wire.conformance.basics.frames import id_of, make_batch, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, ServerError


async def _deliver(broker: Target, number: int) -> tuple[str, Probe, list[Any]]:
    """Return a new topic, its Exclusive consumer, and the ids of the messages that the consumer has got."""
    topic = await broker.fill(number)
    consumer = await broker.subscribe(topic, permits=10)
    messages = await consumer.messages(number)
    return topic, consumer, [item.body.message_id for item in messages]


async def _expect_left(topic: str, consumer: Probe, *expected: bytes) -> None:
    """Close and subscribe again; require that these messages are delivered and no others."""
    await consumer.resubscribe(topic)
    equal(payloads(await consumer.messages(len(expected))), list(expected), "payloads")
    await consumer.expect_nothing()


@case(MUST)
async def individual(broker: Target) -> None:
    """4 messages, acknowledge the 2nd and 3rd (two ids in one ACK), close, SUBSCRIBE again.

    Expected: 1st and 4th delivered again.

    Source: Protocol: Consumer.
    """
    topic, consumer, ids = await _deliver(broker, 4)
    await consumer.confirm_ack(ids[1], ids[2])
    await _expect_left(topic, consumer, b"m0", b"m3")


@case(MUST)
async def cumulative(broker: Target) -> None:
    """4 messages Exclusive, cumulative acknowledgement of the 3rd, close, SUBSCRIBE again.

    Expected: Only the 4th.

    Source: Protocol: Consumer.
    """
    topic, consumer, ids = await _deliver(broker, 4)
    await consumer.confirm_ack(ids[2], kind="Cumulative")
    await _expect_left(topic, consumer, b"m3")


@case(SHOULD)
async def response(broker: Target) -> None:
    """ACK with request_id=5.

    Expected: ACK_RESPONSE {consumer_id=1, request_id=5}, no error.

    Source: PIP-54 follow-up; broker: ServerCnx.handleAck.
    """
    _, consumer, ids = await _deliver(broker, 1)
    body = await consumer.confirm_ack(ids[0], request_id=5)
    equal(body.consumer_id, 1, "consumer_id")


@case(MUST)
async def no_response_without_request_id(broker: Target) -> None:
    """ACK without request_id.

    Expected: No frame.

    Source: Protocol: Consumer.
    """
    _, consumer, ids = await _deliver(broker, 1)
    consumer.ack(ids[0])
    await consumer.expect_nothing()


@case(OBSERVED)
async def unknown_ids(broker: Target) -> None:
    """ACK ids 999999:7 and ledger:100 (never existed) with request_id.

    Expected: ACK_RESPONSE without error; nothing lost.

    Source: Broker: Consumer.messageAcked.
    """
    topic, consumer, ids = await _deliver(broker, 2)
    beyond = {"ledgerId": ids[0].ledgerId, "entryId": 100}
    await consumer.confirm_ack({"ledgerId": 999999, "entryId": 7}, beyond)
    await _expect_left(topic, consumer, b"m0", b"m1")


@case(OBSERVED)
async def cumulative_two_ids(broker: Target) -> None:
    """Exclusive: cumulative acknowledgement with two ids and request_id.

    Expected: ACK_RESPONSE without error, nothing acknowledged.

    Source: Broker: Consumer.messageAcked.
    """
    topic, consumer, ids = await _deliver(broker, 3)
    await consumer.confirm_ack(ids[0], ids[1], kind="Cumulative")
    await _expect_left(topic, consumer, b"m0", b"m1", b"m2")


@case(OBSERVED)
async def no_ids(broker: Target) -> None:
    """ACK Individual with no message_id, request_id=5.

    Expected: ACK_RESPONSE without error.

    Source: Broker: Consumer.messageAcked.
    """
    _, consumer, _ = await _deliver(broker, 1)
    await consumer.confirm_ack(request_id=5)


@case(SHOULD)
async def twice(broker: Target) -> None:
    """The same id acknowledged twice, both with request_id.

    Expected: Two ACK_RESPONSE without error.

    Source: Broker: Consumer.messageAcked.
    """
    _, consumer, ids = await _deliver(broker, 1)
    await consumer.confirm_ack(ids[0])
    await consumer.confirm_ack(ids[0])


@case(OBSERVED)
async def validation_error(broker: Target) -> None:
    """ACK with validation_error=ChecksumMismatch.

    Expected: Acknowledged like any other (logged only).

    Source: Broker: Consumer.messageAcked.
    """
    topic, consumer, ids = await _deliver(broker, 2)
    await consumer.confirm_ack(ids[0], validation_error=CommandAck.ChecksumMismatch)
    await _expect_left(topic, consumer, b"m1")


_BATCH = (b"0", b"1", b"2")


async def _deliver_batch(broker: Target, *single: bytes) -> tuple[str, Probe, dict[str, int]]:
    """Return a new topic with `single` messages and a batch, a consumer that got all, the batch's id."""
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_all(*single)
    message_id = await producer.publish_batch(*_BATCH, first=len(single))
    consumer = await broker.subscribe(topic, permits=10)
    await consumer.messages(len(single) + 1)
    return topic, consumer, id_of(message_id)


async def _expect_batch_left(topic: str, consumer: Probe, first: int, ack_set: list[int]) -> None:
    """Close and subscribe again; require that only the batch is delivered, with this ack_set.

    `first` is the first sequence id of the batch.
    """
    await consumer.resubscribe(topic)
    (message,) = await consumer.messages(1)
    equal(message.payload, make_batch(*_BATCH, first=first), "payload")
    equal(list(message.body.ack_set), ack_set, "ack_set")
    await consumer.expect_nothing()


async def _ack_partly(broker: Target, expected: list[int]) -> None:
    """Acknowledge one message of a batch of 3; require that the batch comes again with this ack_set."""
    topic, consumer, entry = await _deliver_batch(broker)
    await consumer.confirm_ack({**entry, "ack_set": [0b101]})
    await _expect_batch_left(topic, consumer, 0, expected)


@case(SHOULD, without=("batchack",))
async def batch_partial_off(broker: Target) -> None:
    """Acknowledgement of batch indexes is off: a batch of 3, ACK Individual with ack_set=[0b101] (index 1
    acknowledged) and request_id.

    Expected: ACK_RESPONSE; the whole batch is redelivered, MESSAGE.ack_set empty.

    Source: PIP-54; broker: Consumer.
    """
    await _ack_partly(broker, [])


@case(SHOULD, needs=("batchack",))
async def batch_partial_on(broker: Target) -> None:
    """Acknowledgement of batch indexes is on: a batch of 3, ACK Individual with ack_set=[0b101] (index 1
    acknowledged) and request_id.

    Expected: Redelivered MESSAGE.ack_set=[5].

    Source: PIP-54.
    """
    await _ack_partly(broker, [5])


@case(SHOULD, needs=("batchack",), without=("subscribing",))
async def batch_all_indexes(broker: Target) -> None:
    """Acknowledgement of batch indexes is on: ACKs with ack_set=[0b110], then [0b101], then [0b011], one
    index each.

    Expected: Batch gone after the third.

    Source: PIP-54.
    """
    topic, consumer, entry = await _deliver_batch(broker)
    for ack_set in (0b110, 0b101):
        await consumer.confirm_ack({**entry, "ack_set": [ack_set]})
    await _expect_batch_left(topic, consumer, 0, [0b100])
    await consumer.confirm_ack({**entry, "ack_set": [0b011]})
    await _expect_left(topic, consumer)


async def _ack_cumulatively(broker: Target, expected: list[int]) -> None:
    """Acknowledge a message and two of a batch of 3; require that the batch comes again with this ack_set."""
    topic, consumer, entry = await _deliver_batch(broker, b"single")
    await consumer.confirm_ack({**entry, "ack_set": [0b100]}, kind="Cumulative")
    await _expect_batch_left(topic, consumer, 1, expected)


@case(SHOULD, needs=("batchack",))
async def batch_cumulative_partial_on(broker: Target) -> None:
    """Acknowledgement of batch indexes is on, Exclusive: entry 0 is a message, entry 1 a batch of 3;
    cumulative ACK of entry 1 with ack_set=[0b100] (indexes 0 and 1 acknowledged).

    Expected: After SUBSCRIBE again only entry 1 with ack_set=[4].

    Source: PIP-54.
    """
    await _ack_cumulatively(broker, [4])


@case(OBSERVED, without=("batchack",))
async def batch_cumulative_partial_off(broker: Target) -> None:
    """Acknowledgement of batch indexes is off, Exclusive: entry 0 is a message, entry 1 a batch of 3;
    cumulative ACK of entry 1 with ack_set=[0b100] (indexes 0 and 1 acknowledged).

    Expected: After SUBSCRIBE again entry 1 whole, entry 0 gone.

    Source: PIP-54; ManagedCursorImpl.
    """
    await _ack_cumulatively(broker, [])


@case(SHOULD, needs=("limits",))
async def unacked_limit(broker: Target) -> None:
    """Shared, maxUnackedMessagesPerConsumer=10: FLOW 100 on 30 messages; acknowledge 4; acknowledge a 5th.

    Expected: 10 MESSAGEs, then silence; nothing after 4 acknowledgements; 5 more after the 5th (half
    reached).

    Source: Broker: Consumer.
    """
    consumer = await broker.subscribe(await broker.fill(30), "Shared", 100)
    ids = [item.body.message_id for item in await consumer.messages(10)]
    await consumer.expect_nothing()
    await consumer.confirm_ack(*ids[:4])
    await consumer.expect_nothing()
    consumer.ack(ids[4])
    await consumer.messages(5)
    await consumer.expect_nothing()


@case(OBSERVED, without=("txn",))
async def txn_off(broker: Target) -> None:
    """Transactions are off: ACK with txnid and request_id, Individual; Cumulative on Shared.

    Expected: ACK_RESPONSE {NotAllowedError}; ACK_RESPONSE without error, as for any cumulative one on Shared.

    Source: Broker: Consumer.messageAcked.
    """
    topic = await broker.fill(1)
    txn: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 1, "request_id": 5}
    for kind in ("Exclusive", "Shared"):
        consumer = await broker.subscribe(topic, kind, 1, subscription=kind)
        (message,) = await consumer.messages(1)
        consumer.ack(message.body.message_id, **txn)
        body = (await consumer.expect("ACK_RESPONSE", request_id=5)).body
        equal(body.error, ServerError.NotAllowedError, "error")
    await consumer.confirm_ack(message.body.message_id, kind="Cumulative", **txn)


@case(OBSERVED)
async def beyond_end_first(broker: Target) -> None:
    """ACK of an entry beyond the end and of the 2nd message, request_id.

    Expected: ACK_RESPONSE without error; nothing is acknowledged.

    Source: Managed ledger: ManagedCursorImpl.asyncDelete.
    """
    topic, consumer, ids = await _deliver(broker, 3)
    await consumer.confirm_ack({"ledgerId": ids[0].ledgerId, "entryId": 70}, ids[1])
    await _expect_left(topic, consumer, b"m0", b"m1", b"m2")


@case(OBSERVED)
async def property_twice(broker: Target) -> None:
    """ACK with two properties of one key.

    Expected: No frame; the broker closes the connection.

    Source: Broker: Consumer.messageAcked.
    """
    _, consumer, ids = await _deliver(broker, 1)
    consumer.ack(ids[0], properties=[{"key": "k", "value": value} for value in (1, 2)])
    await consumer.expect_close()


@case(OBSERVED, needs=("batchack",), without=("subscribing",))
async def redelivery_count_restarts(broker: Target) -> None:
    """Shared: batch of 3, redelivered once; one of its messages acknowledged; redelivered again.

    Expected: redelivery_count=1 both times.

    Source: Broker: InMemoryRedeliveryTracker.
    """
    producer = await broker.produce(topic := broker.topic())
    await producer.publish_batch(b"0", b"1", b"2")
    consumer = await broker.subscribe(topic, "Shared", 20)
    (message,) = await consumer.messages(1)
    for ack_set in (0b110, 0b100):
        consumer.redeliver()
        await consumer.expect("MESSAGE", redelivery_count=1)
        batch_id = {**id_of(message.body.message_id), "ack_set": [ack_set], "batch_size": 3}
        await consumer.confirm_ack(batch_id)


@case(OBSERVED, needs=("batchack",))
async def cumulative_nothing_open(broker: Target) -> None:
    """Exclusive, two batches of 3 messages: cumulative ACK of the second with ack_set=[4], then with
    ack_set=[0]; REDELIVER.

    Expected: The second with ack_set=[4]: the ACK with ack_set=[0] counts only for earlier batches.

    Source: Managed ledger: ManagedCursorImpl.
    """
    producer = await broker.produce(topic := broker.topic())
    for first in (0, 3):
        await producer.publish_batch(b"0", b"1", b"2", first=first)
    consumer = await broker.subscribe(topic, permits=20)
    second = id_of((await consumer.messages(2))[1].body.message_id)
    for ack_set in (0b100, 0):
        await consumer.confirm_ack({**second, "ack_set": [ack_set], "batch_size": 3}, kind="Cumulative")
    consumer.redeliver()
    (message,) = await consumer.messages(1)
    equal(list(message.body.ack_set), [4], "ack_set")
