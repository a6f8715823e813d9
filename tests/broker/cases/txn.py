"""Transactions."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, case, frame, id_of, payloads

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError, TxnAction

UNKNOWN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 999_999}
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
"""The topic whose owner is coordinator 0."""

LOADING = ServerError.Value("TransactionCoordinatorNotFound")
TRIES = 150
SUBSCRIPTION = {"topic": "t", "subscription": "s"}
COMMIT = TxnAction.Value("COMMIT")


@case("txn/off_new_txn", "NEW_TXN", {"tc_id": 0})
@case("txn/off_add_partition_to_txn", "ADD_PARTITION_TO_TXN", {"partitions": ["t"]})
@case("txn/off_add_subscription_to_txn", "ADD_SUBSCRIPTION_TO_TXN", {"subscription": [SUBSCRIPTION]})
@case("txn/off_end_txn", "END_TXN", {"txn_action": COMMIT})
async def switched_off(broker: Target, name: str, fields: dict[str, Any]) -> None:
    probe = await broker.connected()
    await probe.refused("NotAllowedError", name, **fields)
    await probe.stays_open()


async def found(broker: Target, probe: Probe) -> None:
    """LOOKUP of the coordinator, repeated until the namespace of its topic has been made."""
    for _ in range(TRIES):
        body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=COORDINATOR, authoritative=False)
        if body.response == body.Connect:
            return
        await broker.advance(0.2)
    raise AssertionError("the coordinator is not found")


async def loaded(broker: Target, probe: Probe, name: str, answer: str, **fields: Any) -> Any:
    """A request to the coordinator, repeated while that loads; returns the body of the answer."""
    for _ in range(TRIES):
        body = await probe.request(name, answer, tc_id=0, **fields)
        if not body.HasField("error"):
            return body
        assert body.error == LOADING, body
        await broker.advance(0.2)
    raise AssertionError("the coordinator does not load")


async def begun(broker: Target, probe: Probe) -> dict[str, int]:
    """LOOKUP, TC_CLIENT_CONNECT_REQUEST and NEW_TXN; returns the fields with the transaction's id."""
    await found(broker, probe)
    await loaded(broker, probe, "TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE")
    body = await loaded(broker, probe, "NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_millis=60_000)
    assert body.HasField("txnid_most_bits"), body
    assert body.HasField("txnid_least_bits"), body
    return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}


async def succeeds(probe: Probe, name: str, **fields: Any) -> None:
    """A request whose answer must not have an error."""
    body = await probe.request(name, f"{name}_RESPONSE", **fields)
    assert not body.HasField("error"), body


async def end(probe: Probe, action: str, txn: dict[str, int]) -> None:
    await succeeds(probe, "END_TXN", txn_action=TxnAction.Value(action), **txn)


async def stored(broker: Target, probe: Probe, topic: str, txn: dict[str, int]) -> Any:
    """PRODUCER, and SEND in a transaction; again if the topic was closed, as it does not load yet.

    The id of the message.
    """
    of_metadata = {f"meta_{key}": value for key, value in txn.items()}
    for _ in range(TRIES):
        await probe.producer(topic)
        probe.publish(payload=b"in", **txn, **of_metadata)
        answer = await probe.next()
        if answer.command == "SEND_RECEIPT":
            return answer.body.message_id
        assert answer.command == "CLOSE_PRODUCER", answer.base
        await broker.advance(0.2)
    raise AssertionError("the topic does not load")


async def sent_in(broker: Target, probe: Probe, topic: str) -> dict[str, int]:
    """Begin a transaction and SEND in it; returns the fields with its id."""
    txn = await begun(broker, probe)
    await succeeds(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **txn)
    await stored(broker, probe, topic, txn)
    return txn


@case("txn/new")
async def new(broker: Target) -> None:
    probe = await broker.connected()
    txn = await begun(broker, probe)
    assert txn["txnid_most_bits"] == 0
    await end(probe, "ABORT", txn)


@case("txn/commit")
async def commit(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    txn = await sent_in(broker, probe, topic)
    consumer = await broker.subscribed(topic, permits=10)
    await consumer.nothing()
    await end(probe, "COMMIT", txn)
    assert payloads(await consumer.messages(1)) == [b"in"]


@case("txn/abort")
async def abort(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    txn = await sent_in(broker, probe, topic)
    consumer = await broker.subscribed(topic, permits=10)
    await consumer.nothing()
    await end(probe, "ABORT", txn)
    await probe.publish_all(b"plain", first=1)
    assert payloads(await consumer.messages(1)) == [b"plain"]
    await consumer.nothing()


async def remaining(broker: Target, topic: str) -> list[bytes]:
    """The payload of the one message that a new consumer gets."""
    consumer = await broker.subscribed(topic, permits=10)
    found = await consumer.messages(1)
    await consumer.nothing()
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    return payloads(found)


@case("txn/ack_in_txn")
async def ack_in_transaction(broker: Target) -> None:
    probe = await broker.connected()
    txn = await begun(broker, probe)
    topic = await broker.filled(2)
    consumer = await broker.subscribed(topic, permits=10)
    subscription = [{**SUBSCRIPTION, "topic": topic}]
    await succeeds(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    message_id = id_of((await consumer.messages(2))[0].body.message_id)
    response = await consumer.acked(message_id, **txn)
    for key, value in txn.items():  # 4.0.8 leaves them out
        assert getattr(response, key) == value or not response.HasField(key), response
    await consumer.request("CLOSE_CONSUMER", "SUCCESS", consumer_id=1)
    assert await remaining(broker, topic) == [b"m1"]
    await end(probe, "COMMIT", txn)
    assert await remaining(broker, topic) == [b"m1"]


@case("txn/end_unknown")
async def end_unknown(broker: Target) -> None:
    probe = await broker.connected()
    await begun(broker, probe)
    body = await probe.request("END_TXN", "END_TXN_RESPONSE", txn_action=COMMIT, **UNKNOWN)
    assert body.HasField("error")
    assert ServerError.Name(body.error) == "TransactionNotFound", body


@case("txn/send_unknown_txn")
async def send_unknown(broker: Target) -> None:
    await stored(broker, await broker.connected(), broker.topic(), UNKNOWN)


@case("txn/new_unknown_coordinator")
async def new_unknown_coordinator(broker: Target) -> None:
    probe = await broker.connected()
    body = await probe.request("NEW_TXN", "NEW_TXN_RESPONSE", tc_id=99, txn_ttl_millis=1000)
    assert body.error == LOADING, body
    assert body.txnid_most_bits == 99
    assert not body.HasField("txnid_least_bits")


@case("txn/end_twice_at_once")
async def end_twice_at_once(broker: Target) -> None:
    probe = await broker.connected()
    txn = await begun(broker, probe)
    topic = await broker.filled(1)
    await succeeds(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **txn)
    for number in (51, 52):
        probe.write(frame("END_TXN", request_id=number, txn_action=COMMIT, **txn))
    answers = {each.body.request_id: each.body for each in [await probe.next() for _ in range(2)]}
    assert not answers[51].HasField("error")
    assert ServerError.Name(answers[52].error) in ("InvalidTxnStatus", "TransactionNotFound")


@case("txn/send_nonpersistent")
async def send_nonpersistent(broker: Target) -> None:
    producer = await broker.producing(broker.topic("non-persistent"))
    producer.publish(0, b"in", **UNKNOWN)
    await producer.closes()


@case("txn/send_when_over")
async def send_when_over(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    over = await begun(broker, probe)
    await end(probe, "COMMIT", over)
    await stored(broker, probe, topic, over)
    await probe.publish_all(b"plain", first=1)
    consumer = await broker.subscribed(topic, permits=10)
    await consumer.nothing()
    later = await begun(broker, probe)
    await succeeds(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **later)
    of_metadata = {f"meta_{key}": value for key, value in later.items()}
    await probe.publish_all(b"later", first=2, **later, **of_metadata)
    await consumer.nothing()
    await end(probe, "COMMIT", later)
    assert payloads(await consumer.messages(2)) == [b"plain", b"later"]


async def acking(broker: Target, kind: str) -> tuple[Probe, str, Probe, list[dict[str, int]]]:
    """A connection for transactions, a topic, its consumer, and the ids of its 3 messages."""
    probe = await broker.connected()
    topic = await broker.filled(3)
    consumer = await broker.subscribed(topic, kind, 10)
    return probe, topic, consumer, [id_of(each.body.message_id) for each in await consumer.messages(3)]


@case("txn/ack_when_over")
async def ack_when_over(broker: Target) -> None:
    probe, topic, consumer, ids = await acking(broker, "Shared")
    over = await begun(broker, probe)
    await end(probe, "COMMIT", over)
    await consumer.acked(ids[0], **over)
    await consumer.again(topic, "Shared")
    assert payloads(await consumer.messages(2)) == [b"m1", b"m2"]
    later = await begun(broker, probe)
    subscription = [{**SUBSCRIPTION, "topic": topic}]
    await succeeds(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **later)
    await consumer.acked(ids[1], **later)
    await end(probe, "COMMIT", later)
    assert payloads(await consumer.messages(1)) == [b"m0"]


async def conflict(consumer: Probe, text: str, *ids: Any, **fields: Any) -> None:
    """ACK that is answered by TransactionConflict, with this in its message."""
    consumer.ack(*ids, request_id=77, **fields)
    body = (await consumer.expect("ACK_RESPONSE", request_id=77)).body
    assert ServerError.Name(body.error) == "TransactionConflict", body
    assert text in body.message, body


@case("txn/ack_conflict_texts")
async def ack_conflict_texts(broker: Target) -> None:
    probe, topic, consumer, ids = await acking(broker, "Shared")
    one, other = [await begun(broker, probe) for _ in range(2)]
    number = f"({other['txnid_most_bits']},{other['txnid_least_bits']})"
    await consumer.acked(ids[0], **one)
    text = f"[{topic}][s] Transaction:{number} try to ack message:{ids[0]['ledgerId']}:0 (ackSet is null)"
    await conflict(consumer, f"{text} in pending ack status.", ids[0], **other)
    await consumer.acked(ids[1])
    text = f"[{topic}][s] Transaction:{number} try to ack message:{ids[1]['ledgerId']}:1 (ackSet is null)"
    await conflict(consumer, f"{text} already acked before.", ids[1], **other)
    for txn in (one, other):
        await end(probe, "ABORT", txn)


@case("txn/ack_cumulative_hides_nothing")
async def ack_cumulative_hides_nothing(broker: Target) -> None:
    probe, topic, consumer, ids = await acking(broker, "Exclusive")
    txn = await begun(broker, probe)
    subscription = [{**SUBSCRIPTION, "topic": topic}]
    await succeeds(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    await consumer.acked(ids[1], kind="Cumulative", **txn)
    consumer.command("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
    assert payloads(await consumer.messages(3)) == [b"m0", b"m1", b"m2"]
    await conflict(consumer, "within range of current currentPosition", ids[0], kind="Cumulative", **txn)
    await end(probe, "ABORT", txn)
    await consumer.nothing()


@case("txn/end_on_partition")
async def end_on_partition(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.connected()
    txn = await sent_in(broker, probe, topic)
    consumer = await broker.subscribed(topic, permits=10)
    ending = {"txn_action": COMMIT, "txnid_least_bits_of_low_watermark": 0, **txn}
    await succeeds(probe, "END_TXN_ON_PARTITION", topic=topic, **ending)
    assert payloads(await consumer.messages(1)) == [b"in"]
    await succeeds(probe, "END_TXN_ON_PARTITION", topic=broker.topic(), **ending)
    await end(probe, "COMMIT", txn)


@case("txn/end_on_subscription")
async def end_on_subscription(broker: Target) -> None:
    probe, topic, consumer, ids = await acking(broker, "Shared")
    txn = await begun(broker, probe)
    await consumer.acked(ids[1], **txn)
    where = {**SUBSCRIPTION, "topic": topic}
    ending = {"txn_action": TxnAction.Value("ABORT"), "txnid_least_bits_of_low_watermark": 0, **txn}
    await succeeds(probe, "END_TXN_ON_SUBSCRIPTION", subscription=where, **ending)
    message = await consumer.expect("MESSAGE", redelivery_count=1)
    assert message.payload == b"m1"
    await end(probe, "ABORT", txn)


@case("txn/add_invalid_topic")
async def add_invalid_topic(broker: Target) -> None:
    # the last one: a real broker has this transaction for ever, and aborts nothing that is over after it
    probe = await broker.connected()
    txn = await begun(broker, probe)
    await succeeds(probe, "ADD_PARTITION_TO_TXN", partitions=["foo://x"], **txn)
    invalid = [{"topic": "foo://x", "subscription": "s"}]
    await succeeds(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=invalid, **txn)
    body = await probe.request("END_TXN", "END_TXN_RESPONSE", txn_action=COMMIT, **txn)
    assert body.HasField("error")
    assert body.error == ServerError.UnknownError, body


@case("txn/batch_acked_in_parts")
async def batch_acked_in_parts(broker: Target) -> None:
    probe = await broker.connected()
    txn = await begun(broker, probe)
    producer = await broker.producing(topic := broker.topic())
    entry = id_of(await producer.publish_batch(b"0", b"1"))
    consumer = await broker.subscribed(topic, "Shared", permits=10)
    await consumer.messages(1)
    subscription = [{**SUBSCRIPTION, "topic": topic}]
    await succeeds(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=subscription, **txn)
    for still_open in (0b10, 0b01):
        await consumer.acked({**entry, "ack_set": [still_open], "batch_size": 2}, **txn)
    await end(probe, "COMMIT", txn)
    await broker.settle()
    await consumer.again(topic, "Shared")
    await consumer.nothing()
