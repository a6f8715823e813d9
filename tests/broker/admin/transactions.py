"""Transactions."""

from __future__ import annotations

from broker.admin.calls import call, refused
from broker.probe import Target

V3 = "/admin/v3/transactions"


@call("transactions/metadata", setting="txn")
async def metadata(broker: Target) -> None:
    probe = await broker.connected()
    await probe.request("TC_CLIENT_CONNECT_REQUEST", "TC_CLIENT_CONNECT_RESPONSE", tc_id=0)
    for _ in range(20):
        made = await probe.request("NEW_TXN", "NEW_TXN_RESPONSE", txn_ttl_millis=60_000, tc_id=0)
        if not made.HasField("error"):
            break
        await broker.settle(0.5)
    most, least = made.txnid_most_bits, made.txnid_least_bits
    told = await broker.rest("GET", f"{V3}/transactionMetadata/{most}/{least}")
    assert (told["txnId"], told["status"], told["timeoutAt"]) == (f"({most},{least})", "OPEN", 60_000)
    assert told["openTimestamp"] > 0
    assert (told["producedPartitions"], told["ackedPartitions"]) == ({}, {})
    await refused(broker, 404, "", "GET", f"{V3}/transactionMetadata/{most}/999")
    await probe.request(
        "END_TXN", "END_TXN_RESPONSE", txnid_most_bits=most, txnid_least_bits=least, txn_action=1
    )
    await broker.settle(0.5)
    await refused(broker, 404, "", "GET", f"{V3}/transactionMetadata/{most}/{least}")


@call("transactions/switched off")
async def off(broker: Target) -> None:
    text = "This Broker is not configured with transactionCoordinatorEnabled=true."
    await refused(broker, 503, text, "GET", f"{V3}/transactionMetadata/0/1")
