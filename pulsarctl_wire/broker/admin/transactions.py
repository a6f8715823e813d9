"""Transactions in the admin API (v3)."""

from contextlib import suppress
from typing import Any, Final

from pulsarctl_wire.broker.admin.base import MAX_LONG, Answer, Problem, Request, Route
from pulsarctl_wire.broker.basics.names import InvalidName
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.cluster.coordinators import COORDINATORS
from pulsarctl_wire.broker.storage.journal import Row
from pulsarctl_wire.broker.storage.transactions import Id, id_of_key, key_of, text_of


def _id(request: Request) -> Id:
    """Return the id of the transaction in the path, where its numbers may be negative, as in Java."""
    high, low = (request.get_number(name) % (2 * (MAX_LONG + 1)) for name in ("most", "least"))
    return high, low


def _require_transactions(request: Request) -> None:
    if not request.cluster.settings.transactionCoordinatorEnabled:
        raise Problem(503, "This Broker is not configured with transactionCoordinatorEnabled=true.")


def _describe(txn: Id, row: Row) -> dict[str, Any]:
    times = {"openTimestamp": row["opened"], "timeoutAt": row["ttl"]}  # in spite of the name, a duration
    return {"txnId": text_of(txn), "status": "OPEN", **times}


async def get_metadata(request: Request) -> Answer:
    """Return what an open transaction has touched, when it began, and its timeout (ms)."""
    _require_transactions(request)
    txn = _id(request)
    try:
        row = request.cluster.transactions.get(txn)
    except Refused as refused:
        raise Problem(404, str(refused)) from None
    acked_partitions: dict[str, dict[str, Any]] = {}
    for topic, subscription in row["subscriptions"]:
        acked_partitions.setdefault(topic, {})[subscription] = {}
    return Answer(
        200,
        {
            **_describe(txn, row),
            "producedPartitions": {name: await _describe_part(request, name, txn) for name in row["topics"]},
            "ackedPartitions": acked_partitions,
        },
    )


async def _describe_part(request: Request, name: str, txn: Id) -> dict[str, Any]:
    """Return a topic's part in a transaction: whether it is aborted, and the first message."""
    fields: dict[str, Any] = {"aborted": False}
    with suppress(InvalidName):
        topic = await request.cluster.load_persistent(name)
        row = topic and topic.journal.table(f"txn-open/{topic.log.number}").get(key_of(txn))
        if topic and row:
            ledger, entry = topic.log.position(row["first"])
            fields["startPosition"] = f"{ledger}:{entry}"
    return fields


async def list_coordinators(request: Request) -> Answer:
    """Return the coordinators."""
    _require_transactions(request)
    url = request.broker.service_url
    return Answer(200, [{"id": number, "brokerServiceUrl": url} for number in range(COORDINATORS)])


async def abort(request: Request) -> Answer:
    """Abort a transaction."""
    _require_transactions(request)
    try:
        await request.cluster.transactions.end(_id(request), commit=False)
    except Refused as refused:
        raise Problem(404, str(refused)) from None
    return Answer()


async def get_buffer_stats(request: Request) -> Answer:
    """Return how many transactions have messages in a topic, and where its readable part ends."""
    _require_transactions(request)
    topic = await request.load_persistent_topic("Transaction buffer")
    ledger, entry = topic.log.position_before(topic.readable_end)
    table = topic.journal.table(f"txn-open/{topic.log.number}")
    return Answer(
        200,
        {
            "state": "Ready",
            "maxReadPosition": f"{ledger}:{entry}",
            "ongoingTxnSize": len(table),
            "totalAbortedTransactions": len(topic.journal.table(f"txn-aborted/{topic.log.number}")),
        },
    )


async def list_slow(request: Request) -> Answer:
    """Return the transactions that are open for longer than a time (ms)."""
    _require_transactions(request)
    now_ms, transactions = request.broker.scheduler.time_ms, {}
    for key, row in request.broker.journal.table("transactions").items():
        if now_ms - row["opened"] >= request.get_number("timeout"):
            transactions[key] = _describe(id_of_key(key), row)
    return Answer(200, transactions)


_V3: Final = "/admin/v3/transactions"

ROUTES: Final[tuple[Route, ...]] = (
    ("GET", f"{_V3}/coordinators", list_coordinators),
    ("GET", f"{_V3}/transactionMetadata/{{most}}/{{least}}", get_metadata),
    ("GET", f"{_V3}/slowTransactions/{{timeout}}", list_slow),
    ("POST", f"{_V3}/abortTransaction/{{most}}/{{least}}", abort),
    ("GET", f"{_V3}/transactionBufferStats/{{tenant}}/{{namespace}}/{{topic}}", get_buffer_stats),
)
