"""The transaction coordinator's commands (PIP-31)."""

from collections.abc import Callable
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection, Waiting
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.broker.cluster.coordinators import ASSIGN
from pulsarctl_wire.broker.storage.transactions import Id, text_of
from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    COMMIT,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandNewTxn,
    CommandTcClientConnectRequest,
    ServerError,
)

OFF: Final = "Transactions are not enabled."


def _check_on(connection: Connection) -> None:
    if not connection.settings.transactionCoordinatorEnabled:
        raise Refused("NotAllowedError", OFF)


def connect(
    broker: Broker, connection: Connection, body: CommandTcClientConnectRequest, frame: Frame
) -> None:
    """TC_CLIENT_CONNECT_REQUEST: the client wants to use a coordinator, which runs where its partition is."""
    _check_on(connection)
    partition = parse_topic(f"{ASSIGN}-partition-{body.tc_id}")
    fields: dict[str, Any] = {}
    if broker.cluster.is_owner(broker, partition):
        broker.cluster.transactions.load(body.tc_id)
    else:
        fields = {"error": ServerError.ServiceNotReady, "message": f"{partition.full} is not served here"}
    connection.send("TC_CLIENT_CONNECT_RESPONSE", request_id=body.request_id, **fields)


def new(broker: Broker, connection: Connection, body: CommandNewTxn, frame: Frame) -> Waiting:
    """NEW_TXN."""
    _check_on(connection)

    async def answer() -> None:
        try:
            txn = await broker.cluster.transactions.new(
                body.tc_id, body.txn_ttl_millis, connection.identity.principal
            )
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


def _check_owner(broker: Broker, connection: Connection, txn: Id) -> None:
    """Raises Refused if somebody else has begun a transaction, unless a superuser asks."""
    identity, authorizes = connection.identity, broker.cluster.access.authorizes
    owner = broker.cluster.transactions.get(txn).get("owner", "")
    if owner != identity.principal and not (authorizes and identity.is_super):
        who = f"Client ({identity.principal}) is neither the owner of the transaction {text_of(txn)}"
        raise Refused("TransactionNotFound", f"{who} nor a super user")


def _of_client(
    broker: Broker, connection: Connection, frame: Frame, body: Any, change: Callable[[Id], Waiting]
) -> Waiting:
    """A command of a client, which changes a transaction of its own."""
    _check_on(connection)

    async def checked() -> None:
        txn = body.txnid_most_bits, body.txnid_least_bits
        _check_owner(broker, connection, txn)
        await change(txn)

    return _changing(connection, frame, body, checked())


def add_partition(
    broker: Broker, connection: Connection, body: CommandAddPartitionToTxn, frame: Frame
) -> Waiting:
    """ADD_PARTITION_TO_TXN."""
    topics = [connection.text(each) for each in body.partitions]
    coordinators = broker.cluster.transactions
    return _of_client(broker, connection, frame, body, lambda txn: coordinators.add(txn, topics, ()))


def add_subscription(
    broker: Broker, connection: Connection, body: CommandAddSubscriptionToTxn, frame: Frame
) -> Waiting:
    """ADD_SUBSCRIPTION_TO_TXN."""
    pairs = [(connection.text(each.topic), connection.text(each.subscription)) for each in body.subscription]
    coordinators = broker.cluster.transactions
    return _of_client(broker, connection, frame, body, lambda txn: coordinators.add(txn, (), pairs))


def end(broker: Broker, connection: Connection, body: CommandEndTxn, frame: Frame) -> Waiting:
    """END_TXN."""
    commit, coordinators = body.txn_action == COMMIT, broker.cluster.transactions
    return _of_client(broker, connection, frame, body, lambda txn: coordinators.end(txn, commit=commit))


def _ended_at(
    broker: Broker, connection: Connection, frame: Frame, body: Any, topic: str, subscription: str
) -> Waiting:
    """What a coordinator tells the owner of a topic: the end of a transaction there."""
    txn = body.txnid_most_bits, body.txnid_least_bits

    async def ended() -> None:
        if not connection.identity.is_super:
            who = f"TC client ({connection.identity.principal}) is not a super user"
            text = f"{who}, and is not allowed to operate on transaction {text_of(txn)}"
            raise Refused("TransactionNotFound", text)
        try:
            found = await broker.cluster.loaded(topic)
        except InvalidName:
            raise Violation("a topic that cannot be") from None
        there: Any = found if found is None or not subscription else found.subscriptions.get(subscription)
        if there is not None:
            there.transactions.end(txn, commit=body.txn_action == COMMIT)
            await broker.cluster.journal.synced()

    return _changing(connection, frame, body, ended())


def end_on_partition(
    broker: Broker, connection: Connection, body: CommandEndTxnOnPartition, frame: Frame
) -> Waiting:
    """END_TXN_ON_PARTITION."""
    return _ended_at(broker, connection, frame, body, connection.text(body.topic), "")


def end_on_subscription(
    broker: Broker, connection: Connection, body: CommandEndTxnOnSubscription, frame: Frame
) -> Waiting:
    """END_TXN_ON_SUBSCRIPTION."""
    text, where = connection.text, body.subscription
    return _ended_at(broker, connection, frame, body, text(where.topic), text(where.subscription))
