"""Transactions."""

from __future__ import annotations

from typing import Any

from broker.probe import Probe, Target, case, id_of, payloads

from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError, TxnAction

UNKNOWN = {"txnid_most_bits": 0, "txnid_least_bits": 999_999}
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


async def stored(broker: Target, probe: Probe, topic: str, txn: dict[str, int]) -> None:
    """PRODUCER, and SEND in a transaction; again if the topic was closed, as it does not load yet."""
    of_metadata = {f"meta_{key}": value for key, value in txn.items()}
    for _ in range(TRIES):
        await probe.producer(topic)
        probe.publish(payload=b"in", **txn, **of_metadata)
        answer = await probe.next()
        if answer.command == "SEND_RECEIPT":
            return
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
    txn = await begun(broker, await broker.connected())
    assert txn["txnid_most_bits"] == 0


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
