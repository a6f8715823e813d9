"""The transaction coordinator's commands (PIP-31)."""

from typing import Any, Final

from pulsarctl_wire.broker.connection import Connection, Waiting
from pulsarctl_wire.broker.names import parse_topic
from pulsarctl_wire.broker.refusal import Refused
from pulsarctl_wire.broker.transactions import ASSIGN
from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import COMMIT, ServerError

OFF: Final = "Transactions are not enabled."


def _check_on(connection: Connection) -> None:
    if not connection.settings.transactionCoordinatorEnabled:
        raise Refused("NotAllowedError", OFF)


def connect(connection: Connection, body: Any, frame: Frame) -> None:
    """TC_CLIENT_CONNECT_REQUEST: the client wants to use a coordinator, which runs where its partition is."""
    _check_on(connection)
    partition = parse_topic(f"{ASSIGN}-partition-{body.tc_id}")
    fields: dict[str, Any] = {}
    if connection.cluster.is_owner(connection.broker, partition):
        connection.cluster.transactions.load(body.tc_id)
    else:
        fields = {"error": ServerError.ServiceNotReady, "message": f"{partition.full} is not served here"}
    connection.send("TC_CLIENT_CONNECT_RESPONSE", request_id=body.request_id, **fields)


def new(connection: Connection, body: Any, frame: Frame) -> Waiting:
    """NEW_TXN."""
    _check_on(connection)

    async def answer() -> None:
        try:
            txn = await connection.cluster.transactions.new(body.tc_id, body.txn_ttl_millis)
        except Refused as refused:
            _respond(connection, frame, body, (body.tc_id, None), refused)
        else:
            _respond(connection, frame, body, txn)

    return answer()


def _respond(
    connection: Connection,
    frame: Frame,
    body: Any,
    txn: tuple[int, int | None],
    refused: Refused | None = None,
) -> None:
    fields: dict[str, Any] = {}
    if refused is not None:
        fields = {"error": ServerError.Value(refused.code), "message": str(refused)}
    connection.send(
        f"{command_name(frame.type)}_RESPONSE",
        request_id=body.request_id,
        txnid_most_bits=txn[0],
        txnid_least_bits=txn[1],
        **fields,
    )


def _changing(connection: Connection, frame: Frame, body: Any, change: Waiting) -> Waiting:
    txn = body.txnid_most_bits, body.txnid_least_bits

    async def answer() -> None:
        try:
            await change
        except Refused as refused:
            _respond(connection, frame, body, txn, refused)
        else:
            _respond(connection, frame, body, txn)

    return answer()


def add_partition(connection: Connection, body: Any, frame: Frame) -> Waiting:
    """ADD_PARTITION_TO_TXN."""
    _check_on(connection)
    txn = body.txnid_most_bits, body.txnid_least_bits
    topics = [connection.text(each) for each in body.partitions]
    return _changing(connection, frame, body, connection.cluster.transactions.add(txn, topics, ()))


def add_subscription(connection: Connection, body: Any, frame: Frame) -> Waiting:
    """ADD_SUBSCRIPTION_TO_TXN."""
    _check_on(connection)
    txn = body.txnid_most_bits, body.txnid_least_bits
    pairs = [(connection.text(each.topic), connection.text(each.subscription)) for each in body.subscription]
    return _changing(connection, frame, body, connection.cluster.transactions.add(txn, (), pairs))


def end(connection: Connection, body: Any, frame: Frame) -> Waiting:
    """END_TXN."""
    _check_on(connection)
    txn = body.txnid_most_bits, body.txnid_least_bits
    commit = body.txn_action == COMMIT
    return _changing(connection, frame, body, connection.cluster.transactions.end(txn, commit=commit))
