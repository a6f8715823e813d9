"""Transactions: opens them at a coordinator, adds topics and subscriptions, commits or aborts them.

    TC_CLIENT_CONNECT_REQUEST   to the broker that serves the coordinator's partition of `ASSIGNMENT`
    NEW_TXN                     returns the id; its most significant bits are the coordinator's number
    ADD_PARTITION_TO_TXN        before the first SEND to a topic or partition
    ADD_SUBSCRIPTION_TO_TXN     before the first ACK of a subscription
    END_TXN                     COMMIT or ABORT; the broker applies it to everything that was added

Requests refused for a temporary reason (the coordinator is loading, or has moved) are retried. But END_TXN is
not sent again when its answer is lost, as the coordinator immediately forgets how a transaction ended.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pulsarctl_wire.errors import BrokerError, LinkClosed, LocalProtocolError, RequestTimeout, SettingsError
from pulsarctl_wire.net.session.acks import MAX_ACK_IDS, make_id_fields
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.net.session.link import Link
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.names import partition_name
from pulsarctl_wire.wire.payload import MAX_MESSAGES, Message
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, TxnAction

ASSIGNMENT: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""The topic whose partitions are the coordinators: the broker that serves partition N has coordinator N."""


class Coordinator:
    """Transaction coordinator `number`, on whichever broker it is."""

    def __init__(self, client: Client, number: int = 0) -> None:
        self.number = number
        self._client = client
        self._link: Link | None = None

    async def connect(self) -> Link:
        """Find it and connect; return the link. Raises SessionError, or SettingsError if it cannot exist."""
        try:
            count = await self._client.count_partitions(ASSIGNMENT, create=False)
        except BrokerError as error:
            if error.code != "TopicNotFound":
                raise
            count = 0  # transactions are off; connecting below fails with a better message
        if 0 < count <= self.number:
            raise SettingsError(f"no coordinator {self.number}: there are {count}, counted from 0")
        return await self._client.retry(self._ensure_link, f"coordinator {self.number}")

    async def _ensure_link(self) -> Link:
        if self._link is None or not self._link.is_open:
            broker = await self._client.lookup(partition_name(ASSIGNMENT, self.number))
            link = await self._client.open_link(broker)
            await link.request(build_command("TC_CLIENT_CONNECT_REQUEST", tc_id=self.number))
            self._link = link
        return self._link

    async def ask(self, name: str, *, once: bool = False, **fields: Any) -> Any:
        """Send the request `name` to the coordinator; return its answer's body.

        `once`: do not retry if the answer is lost. Raises SessionError.
        """

        async def attempt() -> Any:
            link = await self._ensure_link()
            try:
                return (await link.request(build_command(name, **fields))).body
            except BrokerError:
                self._link = None  # the coordinator may have moved
                raise
            except LinkClosed as error:
                raise RequestTimeout(str(error)) if once else error from None

        return await self._client.retry(attempt, name)


class Transaction:
    """An open transaction of `coordinator` with the id `txn_id` (most, least significant bits); see `open`.

    Producers in it need `txn_id` as `ProducerOptions.txn`. `ending` is whether `end` was called.
    """

    def __init__(self, coordinator: Coordinator, txn_id: tuple[int, int]) -> None:
        self.txn_id = txn_id
        self.ending = False
        self._coordinator = coordinator
        self._fields: dict[str, Any] = {"txnid_most_bits": txn_id[0], "txnid_least_bits": txn_id[1]}

    def __str__(self) -> str:
        return f"({self.txn_id[0]},{self.txn_id[1]})"

    @classmethod
    async def open(cls, coordinator: Coordinator, ttl: float) -> "Transaction":
        """Open a transaction that the broker aborts after `ttl` seconds. Raises SessionError."""
        body = await coordinator.ask("NEW_TXN", tc_id=coordinator.number, txn_ttl_millis=round(ttl * 1000))
        return cls(coordinator, (body.txnid_most_bits, body.txnid_least_bits))

    async def add_topics(self, topics: Sequence[str]) -> None:
        """Announce production to these topics (full names, of partitions). Raises SessionError."""
        await self._coordinator.ask("ADD_PARTITION_TO_TXN", **self._fields, partitions=topics)

    async def add_subscription(self, topics: Iterable[str], subscription: str) -> None:
        """Announce acknowledgements by a subscription of these topics. Raises SessionError."""
        rows = [{"topic": topic, "subscription": subscription} for topic in topics]
        await self._coordinator.ask("ADD_SUBSCRIPTION_TO_TXN", **self._fields, subscription=rows)

    async def acknowledge(
        self, consumer: Consumer, messages_of: Mapping[Delivery[Consumer], Iterable[Message]]
    ) -> None:
        """Acknowledge the given messages of each delivery to `consumer`, each message only once.

        The broker would refuse a second acknowledgement of a message as a conflict. Raises SessionError, also
        if the link is lost before everything is confirmed.
        """
        ids = [row for delivery, messages in messages_of.items() for row in _ack_ids(delivery, messages)]
        for start in range(0, len(ids), MAX_ACK_IDS):
            part = ids[start : start + MAX_ACK_IDS]
            await consumer.ask("ACK", ack_type=CommandAck.Individual, message_id=part, **self._fields)

    async def end(self, commit: bool) -> None:
        """Commit the transaction, or abort it.

        Raises SessionError; after a RequestTimeout it is unknown how the transaction ended.
        """
        self.ending = True
        action = TxnAction.COMMIT if commit else TxnAction.ABORT
        await self._coordinator.ask("END_TXN", once=True, **self._fields, txn_action=action)


def _ack_ids(delivery: Delivery[Consumer], messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return the ids that acknowledge these messages of a delivery, as the fields of MessageIdData.

    The broker compares the bits of a batch with the acknowledgements of other transactions: only the bits of
    `messages` may be cleared, and batch_size must be the size of the batch. Raises LocalProtocolError for a
    batch of more messages than can be opened.
    """
    ids = [make_id_fields((*entry_id, -1)) for entry_id in delivery.ids]
    if delivery.metadata.HasField("num_messages_in_batch"):
        size = delivery.metadata.num_messages_in_batch
        if size > MAX_MESSAGES:
            text = f"{size} messages in a batch, more than {MAX_MESSAGES} are not acknowledged one by one"
            raise LocalProtocolError(f"{delivery.consumer.topic}: {text}")
        remaining = (1 << size) - 1
        for message in messages:
            remaining &= ~(1 << (message.index or 0))
        ids[-1] = make_id_fields((*delivery.id, -1), remaining, size) | {"batch_size": size}
    return ids
