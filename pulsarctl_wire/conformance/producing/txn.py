"""Transactions."""

from __future__ import annotations

from typing import Any

from pulsarctl_wire.checks.requirement import OBSERVED, SHOULD
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import Mismatch, absent, equal, present, require
from pulsarctl_wire.conformance.basics.frames import make_frame, payloads
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError, TxnAction

_UNKNOWN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 999_999}


_COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
"""The topic whose owner is coordinator 0."""


_NO_COORDINATOR = ServerError.TransactionCoordinatorNotFound  # also while it loads


_TRIES = 150  # with pauses of 0.2 s


_SUBSCRIPTION = {"topic": "t", "subscription": "s"}


_COMMIT = TxnAction.Value("COMMIT")


async def _expect_not_allowed(broker: Target, name: str, fields: dict[str, Any]) -> None:
    probe = await broker.connect()
    await probe.expect_error("NotAllowedError", name, **fields)
    await probe.expect_pong()


@case(SHOULD, without=("txn",))
async def off_new_txn(broker: Target) -> None:
    """Transactions are off: NEW_TXN.

    Expected: ERROR {request_id, error=NotAllowedError}; the connection stays open.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    await _expect_not_allowed(broker, "NEW_TXN", {"tc_id": 0})


@case(SHOULD, without=("txn",))
async def off_add_partition_to_txn(broker: Target) -> None:
    """Transactions are off: ADD_PARTITION_TO_TXN.

    Expected: ERROR {request_id, error=NotAllowedError}; the connection stays open.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    await _expect_not_allowed(broker, "ADD_PARTITION_TO_TXN", {"partitions": ["t"]})


@case(SHOULD, without=("txn",))
async def off_add_subscription_to_txn(broker: Target) -> None:
    """Transactions are off: ADD_SUBSCRIPTION_TO_TXN.

    Expected: ERROR {request_id, error=NotAllowedError}; the connection stays open.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    await _expect_not_allowed(broker, "ADD_SUBSCRIPTION_TO_TXN", {"subscription": [_SUBSCRIPTION]})


@case(SHOULD, without=("txn",))
async def off_end_txn(broker: Target) -> None:
    """Transactions are off: END_TXN.

    Expected: ERROR {request_id, error=NotAllowedError}; the connection stays open.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    await _expect_not_allowed(broker, "END_TXN", {"txn_action": _COMMIT})


async def _find_coordinator(broker: Target, probe: Probe) -> None:
    """Repeat LOOKUP of the coordinator until the namespace of its topic has been made."""
    for _ in range(_TRIES):
        body = await probe.request("LOOKUP", "LOOKUP_RESPONSE", topic=_COORDINATOR, authoritative=False)
        if body.response == body.Connect:
            return
        await broker.advance(0.2)
    raise Mismatch("the coordinator's topic", "LOOKUP does not find it")


async def _ask_coordinator(broker: Target, probe: Probe, name: str, answer: str, **fields: Any) -> Any:
    """Send the coordinator a request, repeatedly while it loads; return the body of the answer."""
    for _ in range(_TRIES):
        body = await probe.request(name, answer, tc_id=0, **fields)
        if not body.HasField("error"):
            return body
        equal(body.error, _NO_COORDINATOR, "error")
        await broker.advance(0.2)
    raise Mismatch("the coordinator", "it does not load")


async def begin(broker: Target, probe: Probe) -> dict[str, int]:
    """Send LOOKUP, TC_CLIENT_CONNECT_REQUEST and NEW_TXN; return the fields with the transaction's id."""
    await _find_coordinator(broker, probe)
    await _ask_coordinator(broker, probe, "TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE")
    body = await _ask_coordinator(broker, probe, "NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_millis=60_000)
    present(body, "txnid_most_bits")
    present(body, "txnid_least_bits")
    return {"txnid_most_bits": body.txnid_most_bits, "txnid_least_bits": body.txnid_least_bits}


async def succeed(probe: Probe, name: str, **fields: Any) -> None:
    """Send a request, whose answer must not have an error."""
    body = await probe.request(name, f"{name}_RESPONSE", **fields)
    absent(body, "error")


async def end(probe: Probe, action: str, txn: dict[str, int]) -> None:
    """Send END_TXN with an action: COMMIT or ABORT."""
    await succeed(probe, "END_TXN", txn_action=TxnAction.Value(action), **txn)


async def send_in_txn(broker: Target, probe: Probe, topic: str, txn: dict[str, int]) -> Any:
    """Send PRODUCER, and SEND in a transaction; return the id of the message.

    Try again if the broker closes the producer, as the topic has not loaded yet.
    """
    metadata_fields = {f"meta_{key}": value for key, value in txn.items()}
    for _ in range(_TRIES):
        await probe.create_producer(topic)
        probe.publish(payload=b"in", **txn, **metadata_fields)
        answer = await probe.next()
        if answer.command == "SEND_RECEIPT":
            return answer.body.message_id
        equal(answer.command, "CLOSE_PRODUCER", "command")
        await broker.advance(0.2)
    raise Mismatch("the topic", "it does not load")


async def _begin_and_send(broker: Target, probe: Probe, topic: str) -> dict[str, int]:
    """Begin a transaction and SEND in it; return the fields with its id."""
    txn = await begin(broker, probe)
    await succeed(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **txn)
    await send_in_txn(broker, probe, topic, txn)
    return txn


@case(SHOULD, needs=("txn",))
async def new(broker: Target) -> None:
    """TC_CLIENT_CONNECT tc_id=0, NEW_TXN tc_id=0.

    Expected: TC_CLIENT_CONNECT_RESPONSE without error; NEW_TXN_RESPONSE {txnid_most_bits=0 (tc id),
    txnid_least_bits}; while the coordinator loads error=TransactionCoordinatorNotFound.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    probe = await broker.connect()
    txn = await begin(broker, probe)
    equal(txn["txnid_most_bits"], 0, "txnid_most_bits")
    await end(probe, "ABORT", txn)


@case(SHOULD, needs=("txn",), since="4.0")
async def commit(broker: Target) -> None:
    """ADD_PARTITION_TO_TXN, SEND with txnid, a consumer waits, END_TXN COMMIT.

    Expected: SEND_RECEIPT; nothing delivered before; END_TXN_RESPONSE; then the MESSAGE.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    topic = broker.topic()
    probe = await broker.connect()
    txn = await _begin_and_send(broker, probe, topic)
    consumer = await broker.subscribe(topic, permits=10)
    await consumer.expect_nothing()
    await end(probe, "COMMIT", txn)
    equal(payloads(await consumer.messages(1)), [b"in"], "payloads")


@case(SHOULD, needs=("txn",), since="4.0")
async def abort(broker: Target) -> None:
    """ADD_PARTITION_TO_TXN, SEND with txnid, a consumer waits, END_TXN ABORT; then a plain message.

    Expected: Only the plain message is delivered.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    topic = broker.topic()
    probe = await broker.connect()
    txn = await _begin_and_send(broker, probe, topic)
    consumer = await broker.subscribe(topic, permits=10)
    await consumer.expect_nothing()
    await end(probe, "ABORT", txn)
    await probe.publish_all(b"plain", first=1)
    equal(payloads(await consumer.messages(1)), [b"plain"], "payloads")
    await consumer.expect_nothing()


@case(OBSERVED, needs=("txn",))
async def end_unknown(broker: Target) -> None:
    """END_TXN for txnid 0:999999.

    Expected: END_TXN_RESPONSE {error=TransactionNotFound}.

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    probe = await broker.connect()
    txn = await begin(broker, probe)
    body = await probe.request("END_TXN", "END_TXN_RESPONSE", txn_action=_COMMIT, **_UNKNOWN)
    present(body, "error")
    equal(ServerError.Name(body.error), "TransactionNotFound", "error")
    await end(probe, "ABORT", txn)


@case(OBSERVED, needs=("txn",))
async def send_unknown_txn(broker: Target) -> None:
    """SEND with txnid 0:999999 never opened.

    Expected: SEND_RECEIPT (the topic does not ask the coordinator).

    Source: PIP-31; broker: ServerCnx (transactions).
    """
    await send_in_txn(broker, await broker.connect(), broker.topic(), _UNKNOWN)


@case(OBSERVED, needs=("txn",))
async def new_unknown_coordinator(broker: Target) -> None:
    """NEW_TXN tc_id=99.

    Expected: NEW_TXN_RESPONSE {error=TransactionCoordinatorNotFound, txnid_most_bits=99, no
    txnid_least_bits}.

    Source: Broker: ServerCnx.handleNewTxn.
    """
    probe = await broker.connect()
    body = await probe.request("NEW_TXN", "NEW_TXN_RESPONSE", tc_id=99, txn_ttl_millis=1000)
    equal(body.error, _NO_COORDINATOR, "error")
    equal(body.txnid_most_bits, 99, "txnid_most_bits")
    absent(body, "txnid_least_bits")


@case(OBSERVED, needs=("txn",))
async def end_twice_at_once(broker: Target) -> None:
    """END_TXN COMMIT twice without waiting, for a transaction with a partition.

    Expected: No error for the first; InvalidTxnStatus for the second (TransactionNotFound, if the first was
    done by then).

    Source: Broker: TransactionMetadataStoreService.endTransaction.
    """
    probe = await broker.connect()
    txn = await begin(broker, probe)
    topic = await broker.fill(1)
    await succeed(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **txn)
    for number in (51, 52):
        probe.write(make_frame("END_TXN", request_id=number, txn_action=_COMMIT, **txn))
    answers = {item.body.request_id: item.body for item in [await probe.next() for _ in range(2)]}
    absent(answers[51], "error")
    errors = (ServerError.InvalidTxnStatus, ServerError.TransactionNotFound)
    require(answers[52].error in errors, "InvalidTxnStatus or TransactionNotFound", answers[52])


@case(OBSERVED, needs=("txn",))
async def send_nonpersistent(broker: Target) -> None:
    """SEND with txnid on a non-persistent topic.

    Expected: No frame; the broker closes the connection.

    Source: Broker: AbstractTopic.publishTxnMessage.
    """
    producer = await broker.produce(broker.topic("non-persistent"))
    producer.publish(0, b"in", **_UNKNOWN)
    await producer.expect_close()


@case(OBSERVED, needs=("txn",), alone=True, since="4.0")
async def send_when_over(broker: Target) -> None:
    """SEND in a committed transaction, a plain SEND; another transaction sends there and commits.

    Expected: Nothing until the other one has ended: then all but the first message.

    Source: Broker: TopicTransactionBuffer.handleLowWaterMark.
    """
    topic = broker.topic()
    probe = await broker.connect()
    first_txn = await begin(broker, probe)
    await end(probe, "COMMIT", first_txn)
    await send_in_txn(broker, probe, topic, first_txn)
    await probe.publish_all(b"plain", first=1)
    consumer = await broker.subscribe(topic, permits=10)
    await consumer.expect_nothing()
    second_txn = await begin(broker, probe)
    await succeed(probe, "ADD_PARTITION_TO_TXN", partitions=[topic], **second_txn)
    metadata_fields = {f"meta_{key}": value for key, value in second_txn.items()}
    await probe.publish_all(b"later", first=2, **second_txn, **metadata_fields)
    await consumer.expect_nothing()
    await end(probe, "COMMIT", second_txn)
    equal(payloads(await consumer.messages(2)), [b"plain", b"later"], "payloads")


@case(OBSERVED, needs=("txn",))
async def end_on_partition(broker: Target) -> None:
    """SEND in a transaction; END_TXN_ON_PARTITION COMMIT, also for a topic that does not exist.

    Expected: END_TXN_ON_PARTITION_RESPONSE without error, the message; END_TXN_ON_PARTITION_RESPONSE without
    error.

    Source: Broker: ServerCnx.handleEndTxnOnPartition.
    """
    topic = broker.topic()
    probe = await broker.connect()
    txn = await _begin_and_send(broker, probe, topic)
    consumer = await broker.subscribe(topic, permits=10)
    end_fields = {"txn_action": _COMMIT, "txnid_least_bits_of_low_watermark": 0, **txn}
    await succeed(probe, "END_TXN_ON_PARTITION", topic=topic, **end_fields)
    equal(payloads(await consumer.messages(1)), [b"in"], "payloads")
    await succeed(probe, "END_TXN_ON_PARTITION", topic=broker.topic(), **end_fields)
    await end(probe, "COMMIT", txn)


@case(OBSERVED, needs=("txn",), spoils=True)
async def add_invalid_topic(broker: Target) -> None:
    """ADD_PARTITION_TO_TXN foo://x; ADD_SUBSCRIPTION_TO_TXN likewise; END_TXN.

    Expected: Both are taken; END_TXN_RESPONSE {error=UnknownError}.

    Source: Broker: TransactionMetadataStoreService.endTxnInTransactionBuffer.
    """
    # Apache Pulsar keeps this transaction open for ever, and so its low watermark stays: what is sent or
    # acknowledged in later transactions after their end is never aborted
    probe = await broker.connect()
    txn = await begin(broker, probe)
    await succeed(probe, "ADD_PARTITION_TO_TXN", partitions=["foo://x"], **txn)
    invalid = [{"topic": "foo://x", "subscription": "s"}]
    await succeed(probe, "ADD_SUBSCRIPTION_TO_TXN", subscription=invalid, **txn)
    body = await probe.request("END_TXN", "END_TXN_RESPONSE", txn_action=_COMMIT, **txn)
    present(body, "error")
    equal(body.error, ServerError.UnknownError, "error")
