"""Handlers of the transaction coordinator's commands (PIP-31)."""

from collections.abc import Callable
from typing import Any, Final

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused, Violation
from pulsarctl_wire.broker.clients.connection import Connection, Deferred
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

NOT_ENABLED_TEXT: Final = "Transactions are not enabled."


def _check_enabled(connection: Connection) -> None:
    if not connection.settings.transactionCoordinatorEnabled:
        raise Refused("NotAllowedError", NOT_ENABLED_TEXT)


def connect(
    broker: Broker, connection: Connection, body: CommandTcClientConnectRequest, frame: Frame
) -> None:
    """Handle TC_CLIENT_CONNECT_REQUEST: load a coordinator, which runs on the owner of its partition."""
    _check_enabled(connection)
    partition = parse_topic(f"{ASSIGN}-partition-{body.tc_id}")
    fields: dict[str, Any] = {}
    if broker.cluster.is_owner(broker, partition):
        broker.cluster.transactions.load(body.tc_id)
    else:
        fields = {"error": ServerError.ServiceNotReady, "message": f"{partition.full} is not served here"}
    connection.send("TC_CLIENT_CONNECT_RESPONSE", request_id=body.request_id, **fields)


def begin(broker: Broker, connection: Connection, body: CommandNewTxn, frame: Frame) -> Deferred:
    """Handle NEW_TXN."""
    _check_enabled(connection)

    async def answer() -> None:
        try:
            txn = await broker.cluster.transactions.begin(
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
    connection.send(
        f"{command_name(frame.type)}_RESPONSE",
        request_id=body.request_id,
        txnid_most_bits=txn[0],
        txnid_least_bits=txn[1],
        **({} if refused is None else refused.fields),
    )


def _answer_change(connection: Connection, frame: Frame, body: Any, change: Deferred) -> Deferred:
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
    """Raise Refused if another role has begun the transaction, unless the client is a superuser."""
    identity, authorizes = connection.identity, broker.cluster.access.authorizes
    owner = broker.cluster.transactions.get(txn).get("owner", "")
    # without authorization, `is_super` is true for every client
    if owner != identity.principal and not (authorizes and identity.is_super):
        client = f"Client ({identity.principal}) is neither the owner of the transaction {text_of(txn)}"
        raise Refused("TransactionNotFound", f"{client} nor a super user")


def _change_own(
    broker: Broker, connection: Connection, frame: Frame, body: Any, change: Callable[[Id], Deferred]
) -> Deferred:
    """Apply a client's `change` to one of its own transactions, and answer."""
    _check_enabled(connection)

    async def check_and_change() -> None:
        txn = body.txnid_most_bits, body.txnid_least_bits
        _check_owner(broker, connection, txn)
        await change(txn)

    return _answer_change(connection, frame, body, check_and_change())


def add_partition(
    broker: Broker, connection: Connection, body: CommandAddPartitionToTxn, frame: Frame
) -> Deferred:
    """Handle ADD_PARTITION_TO_TXN."""
    topics = [connection.text(topic) for topic in body.partitions]
    coordinators = broker.cluster.transactions
    return _change_own(broker, connection, frame, body, lambda txn: coordinators.add(txn, topics, ()))


def add_subscription(
    broker: Broker, connection: Connection, body: CommandAddSubscriptionToTxn, frame: Frame
) -> Deferred:
    """Handle ADD_SUBSCRIPTION_TO_TXN."""
    pairs = [(connection.text(part.topic), connection.text(part.subscription)) for part in body.subscription]
    coordinators = broker.cluster.transactions
    return _change_own(broker, connection, frame, body, lambda txn: coordinators.add(txn, (), pairs))


def end(broker: Broker, connection: Connection, body: CommandEndTxn, frame: Frame) -> Deferred:
    """Handle END_TXN."""
    commit, coordinators = body.txn_action == COMMIT, broker.cluster.transactions
    return _change_own(broker, connection, frame, body, lambda txn: coordinators.end(txn, commit=commit))


def _end_at(
    broker: Broker, connection: Connection, frame: Frame, body: Any, topic: str, subscription: str
) -> Deferred:
    """End a transaction in a subscription, or in the topic itself if `subscription` is empty."""
    txn = body.txnid_most_bits, body.txnid_least_bits

    async def end_there() -> None:
        if not connection.identity.is_super:
            sender = f"TC client ({connection.identity.principal}) is not a super user"
            text = f"{sender}, and is not allowed to operate on transaction {text_of(txn)}"
            raise Refused("TransactionNotFound", text)
        try:
            loaded = await broker.cluster.load_persistent(topic)
        except InvalidName:
            raise Violation("an invalid topic name") from None
        target: Any = loaded if loaded is None or not subscription else loaded.subscriptions.get(subscription)
        if target is not None:
            target.transactions.end(txn, commit=body.txn_action == COMMIT)
            await broker.cluster.journal.sync()

    return _answer_change(connection, frame, body, end_there())


def end_on_partition(
    broker: Broker, connection: Connection, body: CommandEndTxnOnPartition, frame: Frame
) -> Deferred:
    """Handle END_TXN_ON_PARTITION."""
    return _end_at(broker, connection, frame, body, connection.text(body.topic), "")


def end_on_subscription(
    broker: Broker, connection: Connection, body: CommandEndTxnOnSubscription, frame: Frame
) -> Deferred:
    """Handle END_TXN_ON_SUBSCRIPTION."""
    text, target = connection.text, body.subscription
    return _end_at(broker, connection, frame, body, text(target.topic), text(target.subscription))
