"""ACK in transactions."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import MUST, OBSERVED
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import equal, require
from pulsarctl_wire.conformance.basics.frames import id_of, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.conformance.producing.txn import begin, end, succeed
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError, TxnAction

_SUBSCRIPTION = {"topic": "t", "subscription": "s"}


async def _receive_rest(broker: Target, topic: str) -> list[bytes]:
    """Return the payload of the one message that a new consumer gets, as a list."""
    consumer = await broker.subscribe(topic, permits=10)
    result = await consumer.messages(1)
    await consumer.expect_nothing()
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    return payloads(result)


@case(OBSERVED, needs=("txn",), without=("subscribing",), since="3.3")
async def ack_in_txn(broker: Target) -> None:
    """ACK with txnid and request_id inside a transaction; the consumer closes; SUBSCRIBE before COMMIT, and
    after it.

    Expected: ACK_RESPONSE with the ACK's txnid, or none; both times only the other message is delivered.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    probe = await broker.connect()
    txn = await begin(broker, probe)
    topic = await broker.fill(2)
    consumer = await broker.subscribe(topic, permits=10)
    subscription = [{**_SUBSCRIPTION, "topic": topic}]
    await succeed(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    message_id = id_of((await consumer.messages(2))[0].body.message_id)
    response = await consumer.confirm_ack(message_id, **txn)
    for key, value in txn.items():  # 4.0.8 leaves them out
        require(getattr(response, key) == value or not response.HasField(key), f"{key}={value}", response)
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    equal(await _receive_rest(broker, topic), [b"m1"], "payloads")
    await end(probe, "COMMIT", txn)
    equal(await _receive_rest(broker, topic), [b"m1"], "payloads")


async def _deliver(broker: Target, kind: str) -> tuple[Probe, str, Probe, list[dict[str, int]]]:
    """Return a connection for transactions, a topic, its consumer, and the ids of its 3 messages."""
    probe = await broker.connect()
    topic = await broker.fill(3)
    consumer = await broker.subscribe(topic, kind, 10)
    return probe, topic, consumer, [id_of(item.body.message_id) for item in await consumer.messages(3)]


@case(OBSERVED, needs=("txn",), alone=True, since="3.3")
async def ack_when_over(broker: Target) -> None:
    """ACK in a committed transaction; CLOSE_CONSUMER, SUBSCRIBE, FLOW; another transaction acknowledges
    there and commits.

    Expected: ACK_RESPONSE without error; the message is hidden; redelivered when the other one has ended.

    Source: Broker: PendingAckHandleImpl.handleLowWaterMark.
    """
    probe, topic, consumer, ids = await _deliver(broker, "Shared")
    first_txn = await begin(broker, probe)
    await end(probe, "COMMIT", first_txn)
    await consumer.confirm_ack(ids[0], **first_txn)
    await consumer.resubscribe(topic, "Shared")
    equal(payloads(await consumer.messages(2)), [b"m1", b"m2"], "payloads")
    second_txn = await begin(broker, probe)
    subscription = [{**_SUBSCRIPTION, "topic": topic}]
    await succeed(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **second_txn)
    await consumer.confirm_ack(ids[1], **second_txn)
    await end(probe, "COMMIT", second_txn)
    equal(payloads(await consumer.messages(1)), [b"m0"], "payloads")


async def _expect_conflict(consumer: Probe, text: str, *ids: Any, **fields: Any) -> None:
    """Send ACK; require TransactionConflict as answer, with `text` in its message."""
    consumer.ack(*ids, request_id=77, **fields)
    body = (await consumer.expect("ACK_RESPONSE", request_id=77)).body
    equal(ServerError.Name(body.error), "TransactionConflict", "error")
    require(text in body.message, f"a message with {text!r}", body.message)


@case(OBSERVED, needs=("txn",), since="4.0")
async def ack_conflict_texts(broker: Target) -> None:
    """Shared: ACK in x; ACK of the same in y; plain ACK of another, then ACK of it in y.

    Expected: ACK_RESPONSE {TransactionConflict}: … in pending ack status; … already acked before.

    Source: Broker: PendingAckHandleImpl.
    """
    probe, topic, consumer, ids = await _deliver(broker, "Shared")
    one, other = [await begin(broker, probe) for _ in range(2)]
    number = f"({other['txnid_most_bits']},{other['txnid_least_bits']})"
    await consumer.confirm_ack(ids[0], **one)
    text = f"[{topic}][s] Transaction:{number} try to ack message:{ids[0]['ledgerId']}:0 (ackSet is null)"
    await _expect_conflict(consumer, f"{text} in pending ack status.", ids[0], **other)
    await consumer.confirm_ack(ids[1])
    text = f"[{topic}][s] Transaction:{number} try to ack message:{ids[1]['ledgerId']}:1 (ackSet is null)"
    await _expect_conflict(consumer, f"{text} already acked before.", ids[1], **other)
    for txn in (one, other):
        await end(probe, "ABORT", txn)


@case(OBSERVED, needs=("txn",), since="3.3")
async def ack_cumulative_hides_nothing(broker: Target) -> None:
    """Exclusive: 3 messages, cumulative ACK of the 2nd in a transaction; REDELIVER; a lower cumulative one;
    ABORT.

    Expected: All 3 again; TransactionConflict; nothing at the end.

    Source: Broker: PendingAckHandleImpl.internalAbortTxn.
    """
    probe, topic, consumer, ids = await _deliver(broker, "Exclusive")
    txn = await begin(broker, probe)
    subscription = [{**_SUBSCRIPTION, "topic": topic}]
    await succeed(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    await consumer.confirm_ack(ids[1], kind="Cumulative", **txn)
    consumer.redeliver()
    equal(payloads(await consumer.messages(3)), [b"m0", b"m1", b"m2"], "payloads")
    await _expect_conflict(
        consumer, "within range of current currentPosition", ids[0], kind="Cumulative", **txn
    )
    await end(probe, "ABORT", txn)
    await consumer.expect_nothing()


@case(OBSERVED, needs=("txn",), without=("subscribing",))
async def end_on_subscription(broker: Target) -> None:
    """Shared: ACK in a transaction; END_TXN_ON_SUBSCRIPTION ABORT.

    Expected: END_TXN_ON_SUBSCRIPTION_RESPONSE without error; the message again, redelivery_count=1.

    Source: Broker: ServerCnx.handleEndTxnOnSubscription.
    """
    probe, topic, consumer, ids = await _deliver(broker, "Shared")
    txn = await begin(broker, probe)
    await consumer.confirm_ack(ids[1], **txn)
    subscription = {**_SUBSCRIPTION, "topic": topic}
    end_fields = {"txn_action": TxnAction.Value("ABORT"), "txnid_least_bits_of_low_watermark": 0, **txn}
    await succeed(probe, "END_TXN_ON_SUBSCRIPTION", subscription=subscription, **end_fields)
    message = await consumer.expect("MESSAGE", redelivery_count=1)
    equal(message.payload, b"m1", "payload")
    await end(probe, "ABORT", txn)


@case(MUST, needs=("txn",), since="3.3")
async def batch_acked_in_parts(broker: Target) -> None:
    """Entry with a batch of 2; in one transaction, ACK of the first message and ACK of the second; commit;
    SUBSCRIBE again.

    Expected: No frame.

    Source: Broker: PendingAckHandleImpl.
    """
    probe = await broker.connect()
    txn = await begin(broker, probe)
    producer = await broker.produce(topic := broker.topic())
    entry = id_of(await producer.publish_batch(b"0", b"1"))
    consumer = await broker.subscribe(topic, "Shared", permits=10)
    await consumer.messages(1)
    subscription = [{**_SUBSCRIPTION, "topic": topic}]
    await succeed(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    for ack_set in (0b10, 0b01):
        await consumer.confirm_ack({**entry, "ack_set": [ack_set], "batch_size": 2}, **txn)
    await end(probe, "COMMIT", txn)
    await broker.settle()
    await consumer.resubscribe(topic, "Shared")
    await consumer.expect_nothing()
