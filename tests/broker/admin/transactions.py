"""Transactions."""

from __future__ import annotations

from broker.admin.calls import call, refused

from pulsarctl_wire.conformance.basics.target import Target
from pulsarctl_wire.conformance.producing.txn import begin, end, send_in_txn

V3 = "/admin/v3/transactions"


@call("transactions/metadata", setting="txn")
async def metadata(broker: Target) -> None:
    probe = await broker.connect()
    txn = await begin(broker, probe)
    most, least = txn["txnid_most_bits"], txn["txnid_least_bits"]
    told = await broker.rest("GET", f"{V3}/transactionMetadata/{most}/{least}")
    assert (told["txnId"], told["status"], told["timeoutAt"]) == (f"({most},{least})", "OPEN", 60_000)
    assert told["openTimestamp"] > 0
    assert (told["producedPartitions"], told["ackedPartitions"]) == ({}, {})
    await refused(broker, 404, "", "GET", f"{V3}/transactionMetadata/{most}/999")
    await end(probe, "COMMIT", txn)
    await broker.settle(0.5)
    await refused(broker, 404, "", "GET", f"{V3}/transactionMetadata/{most}/{least}")


@call("transactions/what was touched, as clients name it", setting="txn")
async def touched(broker: Target) -> None:
    topic = broker.topic()
    probe = await broker.subscribe(topic)
    txn = await begin(broker, probe)
    short = topic.rpartition("/")[2]
    answer = "ADD_PARTITION_TO_TXN_RESPONSE"
    await probe.request("ADD_PARTITION_TO_TXN", answer, partitions=[short, topic], **txn)
    pairs = [{"topic": name, "subscription": "s"} for name in (short, topic)]
    answer = "ADD_SUBSCRIPTION_TO_TXN_RESPONSE"
    await probe.request("ADD_SUBSCRIPTION_TO_TXN", answer, subscription=pairs, **txn)
    path = f"{V3}/transactionMetadata/{txn['txnid_most_bits']}/{txn['txnid_least_bits']}"
    told = await broker.rest("GET", path)
    assert told["producedPartitions"] == {short: {"aborted": False}, topic: {"aborted": False}}
    assert told["ackedPartitions"] == {short: {"s": {}}, topic: {"s": {}}}
    message_id = await send_in_txn(broker, probe, topic, txn)
    start = f"{message_id.ledgerId}:{message_id.entryId}"
    told = await broker.rest("GET", path)
    assert told["producedPartitions"][short] == {"startPosition": start, "aborted": False}
    await end(probe, "COMMIT", txn)


@call("transactions/switched off")
async def off(broker: Target) -> None:
    text = "This Broker is not configured with transactionCoordinatorEnabled=true."
    await refused(broker, 503, text, "GET", f"{V3}/transactionMetadata/0/1")
