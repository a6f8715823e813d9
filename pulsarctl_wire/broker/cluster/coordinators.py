"""The transaction coordinators (PIP-31): open transactions, what they touch, and their end.

Rows of "transactions": "most/least" bits of the id -> {ttl, opened, owner, topics, subscriptions}, with `ttl`
in ms, `opened` in ms since the epoch, and a role as `owner`.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from pulsarctl_wire.broker.basics.names import InvalidName, parse_topic
from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Scheduler, Timer
from pulsarctl_wire.broker.basics.settings import Settings
from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.broker.storage.transactions import Id, id_of_key, key_of, text_of
from pulsarctl_wire.broker.tenancy.namespaces import Namespaces
from pulsarctl_wire.broker.topics.persistent import PersistentTopic

ASSIGN: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""The partitioned topic whose owners run the coordinators, one per partition."""

COORDINATORS: Final = 1
"""The number of coordinators, and so of partitions of `ASSIGN`."""


class Coordinators:
    """The transaction coordinators of a cluster.

    `load_topic` returns a topic by its name, loaded by its owner; None if there is none.
    """

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        journal: Journal,
        namespaces: Namespaces,
        load_topic: Callable[[str], Awaitable[PersistentTopic | None]],
    ) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._journal = journal
        self._load_topic = load_topic
        self._rows = journal.table("transactions")
        self._loaded: set[int] = set()
        self._timers: dict[Id, Timer] = {}
        self._end_statuses: dict[Id, str] = {}
        """The status of each transaction that is being ended."""
        if settings.transactionCoordinatorEnabled:
            namespaces.create_partitioned(parse_topic(ASSIGN), COORDINATORS, {})
            scheduler.ready.append(self._restore)

    def _restore(self) -> None:
        """Set the timeouts of stored transactions, once the time is known."""
        for key, row in self._rows.items():
            self._expire_later(id_of_key(key), row)

    def load(self, number: int) -> None:
        """Load a coordinator, as a client wants to use it."""
        self._loaded.add(number)

    async def begin(self, number: int, ttl_ms: int, owner: str) -> Id:
        """Open a transaction for a role. Raises Refused."""
        if number not in self._loaded:
            text = f"Transaction coordinator with id {number} not found!"
            raise Refused("TransactionCoordinatorNotFound", text)
        limit = self._settings.maxActiveTransactionsPerCoordinator
        if limit and sum(key.startswith(f"{number}/") for key in self._rows) >= limit:
            await self._scheduler.make_completion()  # never done: like Pulsar, no answer
        txn = number, self._journal.next_number(f"transactions {number}")
        opened_ms = self._scheduler.time_ms
        row: Row = {"ttl": ttl_ms, "opened": opened_ms, "owner": owner, "topics": [], "subscriptions": []}
        self._journal.put("transactions", key_of(txn), row)
        self._expire_later(txn, row)
        await self._journal.sync()
        return txn

    def _expire_later(self, txn: Id, row: Row) -> None:
        seconds = max(row["opened"] + row["ttl"] - self._scheduler.time_ms, 0) / 1000
        self._expire_in(seconds, txn)

    def _expire_in(self, seconds: float, txn: Id) -> None:
        self._timers[txn] = self._scheduler.call_later(
            seconds, lambda: self._scheduler.start(self._expire(txn))
        )

    async def _expire(self, txn: Id) -> None:
        self.load(txn[0])  # perhaps no client has used the coordinator since the start
        try:
            await self.end(txn, commit=False)
        except Refused:
            if key_of(txn) in self._rows:  # one of its topics cannot be loaded now, or it is being ended
                self._expire_in(1, txn)

    def get(self, txn: Id) -> Row:
        """Return the row of a transaction that is open or being ended. Raises Refused."""
        if txn[0] not in self._loaded:
            text = f"Transaction coordinator with id {txn[0]} not found!"
            raise Refused("TransactionCoordinatorNotFound", text)
        row = self._rows.get(key_of(txn))
        if row is None:
            text = f"The transaction with this txdID `{text_of(txn)}`not found "
            raise Refused("TransactionNotFound", text)
        return row

    def get_open(self, txn: Id) -> Row:
        """Return the row of an open transaction that is not being ended. Raises Refused."""
        if (status := self._end_statuses.get(txn)) is not None:
            text = f"Expect Txn `{text_of(txn)}` to be in OPEN status but it is in {status} status"
            raise Refused("InvalidTxnStatus", text)
        return self.get(txn)

    async def add(self, txn: Id, topics: Iterable[str], subscriptions: Iterable[tuple[str, str]]) -> None:
        """Record what a transaction touches: topics and subscriptions (topic, name). Raises Refused."""
        row = self.get_open(txn)
        for recorded, added in ((row["topics"], topics), (row["subscriptions"], map(list, subscriptions))):
            recorded += [part for part in added if part not in recorded]
        self._journal.put("transactions", key_of(txn), row)
        await self._journal.sync()

    async def end(self, txn: Id, *, commit: bool) -> None:
        """Commit or abort a transaction. Raises Refused."""
        row = self.get_open(txn)
        self._end_statuses[txn] = "COMMITTING" if commit else "ABORTING"
        try:
            await self._end(txn, row, commit=commit)
        except InvalidName as error:  # names are not checked when they are added
            raise Refused("UnknownError", str(error)) from None
        finally:
            del self._end_statuses[txn]

    async def _end(self, txn: Id, row: Row, *, commit: bool) -> None:
        topics: dict[str, PersistentTopic | None] = {}
        while names := [name for name in _list_topics(row) if _is_missing(topics, name)]:
            for name in names:
                topics[name] = await self._load_topic(name)
            row = self.get(txn)  # Refused if it ended meanwhile
        for name in row["topics"]:
            if (topic := topics[name]) is not None:
                topic.transactions.end(txn, commit=commit)
        for name, subscription in row["subscriptions"]:
            topic = topics[name]
            target = None if topic is None else topic.subscriptions.get(subscription)
            if target is not None:
                target.transactions.end(txn, commit=commit)
        self._journal.delete("transactions", key_of(txn))
        self._timers.pop(txn).cancel()
        await self._journal.sync()


def _list_topics(row: Row) -> list[str]:
    """Return the topics that a transaction has touched."""
    return [*row["topics"], *(topic for topic, _ in row["subscriptions"])]


def _is_missing(topics: dict[str, PersistentTopic | None], name: str) -> bool:
    """Return whether a topic must be loaded (again, if it was unloaded meanwhile)."""
    topic = topics.get(name)
    return name not in topics or (topic is not None and topic.closed)
