"""A persistent topic: stores what producers send, and has subscriptions that keep their place."""

import struct
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.broker.basics.refusal import Refused, thrown
from pulsarctl_wire.broker.delivery.consumer import EXCLUSIVE, FAILOVER, Consumer
from pulsarctl_wire.broker.storage.compaction import SUBSCRIPTION, Compaction
from pulsarctl_wire.broker.storage.cursor import Cursor, load_cursor
from pulsarctl_wire.broker.storage.journal import Row
from pulsarctl_wire.broker.storage.log import Entry, Ledger, Log, Position, signed
from pulsarctl_wire.broker.storage.transactions import Buffer, id_of
from pulsarctl_wire.broker.tenancy.policies import Limiter, Quota, limit, may_subscribe, quotas, retention
from pulsarctl_wire.broker.topics.producer import Producer
from pulsarctl_wire.broker.topics.subscription import Subscription
from pulsarctl_wire.broker.topics.topic import Topic
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.parts import MAGIC_BROKER_ENTRY
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BrokerEntryMetadata,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
)

if TYPE_CHECKING:
    from pulsarctl_wire.broker.basics.names import TopicName
    from pulsarctl_wire.broker.clients.connection import Connection
    from pulsarctl_wire.broker.cluster.broker import Broker

NOT_STORED: Final = (1 << 64) - 1
"""Ledger and entry in the receipt of a duplicate."""


class PersistentTopic(Topic):
    """A loaded persistent topic; its row of "topics" exists."""

    def __init__(self, broker: "Broker", name: "TopicName") -> None:
        super().__init__(broker, name)
        row = self.journal.table("topics")[name.full]
        self.properties: dict[str, str] = row["properties"]
        self.terminated = row["terminated"]
        self.epoch = row["epoch"]
        self.policies_changed()
        ledgers = [Ledger(*ledger) for ledger in row["ledgers"]]
        ends = broker.cluster.ends
        self.log: Log = Log(row["log"], self.journal, broker.cache, ends, ledgers, row["first"])
        self.log.open_ledger(self.scheduler.time_ms)
        self._sequence_table = f"sequences/{self.log.number}"
        sequences = self.journal.table(self._sequence_table)
        self._sequences: dict[str, int] = {name: each["last"] for name, each in sequences.items()}
        self._gone: dict[str, int] = dict.fromkeys(sequences, self.scheduler.time_ms)
        self._fresh = False
        self.transactions = Buffer(self)
        self.compaction = Compaction(self)
        self.dispatch_limiter = Limiter(self.scheduler)
        self.reset_to: dict[str, tuple[int, int]] = {}
        """The index and open messages where a subscription that is not durable goes on after a reset."""
        prefix = f"{self.log.number}/"
        for key in [key for key in self.journal.table("cursors") if key.startswith(prefix)]:
            subscription = Subscription(self, key.removeprefix(prefix), load_cursor(self.journal, key))
            subscription.stored = True
            self.subscriptions[subscription.name] = subscription
        if self.subscriptions:
            self.trim()
        self.save()

    def save(self) -> None:
        """Put its row. Its policies are not changed here."""
        old = self.journal.table("topics").get(self.name.full, {})
        row = {
            "log": self.log.number,
            "ledgers": self.log.ledgers,
            "first": self.log.first,
            "properties": self.properties,
            "terminated": self.terminated,
            "epoch": self.epoch,
            "policies": old.get("policies", {}),
            "globalPolicies": old.get("globalPolicies", {}),
        }
        self.journal.put("topics", self.name.full, row)

    @property
    def readable(self) -> int:
        """Consumers may see entries before this index."""
        first = self.transactions.first_open
        return self.log.stored if first is None else min(first, self.log.stored)

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Whether an entry was sent in a transaction that was aborted."""
        return self.transactions.is_aborted(index, metadata)

    @property
    def has_messages(self) -> bool:
        """Whether any are stored."""
        return self.log.end > self.log.first

    # -- publishing

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_at: int) -> None:
        """SEND: the entry is `frame.raw[tail_at:]`."""
        if self.closed or self.terminated:
            return  # the producer is being told
        sequence = command.sequence_id
        highest = command.highest_sequence_id
        if highest < sequence:
            highest = 0
        rules = self.rules
        judged = rules.deduplicates and not command.marker
        if judged and self._is_duplicate(producer, sequence, highest, frame):
            return
        data, at = frame.raw[tail_at:], 0
        count = max(command.num_messages, 0)
        self.log.messages += count
        if self.broker.adds_metadata and count:
            added = self._broker_metadata()
            data, at = added + data, len(added)
        metadata = frame.metadata if not frame.partial else None
        index = self.log.append(data, metadata, at)
        txn = id_of(command)
        if txn is not None:
            self.transactions.sent(txn, index)
        size = len(data)
        producer.begun(size)
        producer.messages_in += count
        producer.bytes_in += size
        self.messages_in += count
        self.bytes_in += size
        ledger = self.log.ledgers[-1]
        ids = ledger.id, index - ledger.first
        self.journal.when_synced(self._stored, producer, sequence, highest, index, *ids, size)
        if rules.limits_rate:
            self.limit_rate(producer, count, size)
        self._roll_if_full()

    def append_own(self, data: bytes, metadata: MessageMetadata) -> int:
        """Add an entry of the broker's own, such as a marker. Returns its index."""
        index = self.log.append(data, metadata, 0)
        self.journal.when_synced(self._durable, index)
        return index

    def _stored(
        self, producer: Producer, sequence: int, highest: int, index: int, ledger: int, entry: int, size: int
    ) -> None:
        producer.receipt(sequence, highest, ledger, entry, size)
        self._durable(index)

    def _durable(self, index: int) -> None:
        """An entry is stored: consumers may see it."""
        self.log.stored = index + 1
        if not self._fresh:
            self._fresh = True
            self.scheduler.ready.append(self._dispatch)

    def _dispatch(self) -> None:
        self._fresh = False
        for subscription in self.subscriptions.values():
            subscription.dispatch_soon()

    def _broker_metadata(self) -> bytes:
        """What the broker puts in front of an entry: its time, and the index of its last message (PIP-70)."""
        added = BrokerEntryMetadata()
        if self.broker.adds_timestamp:
            added.broker_timestamp = self.scheduler.time_ms
        if self.broker.adds_index:
            added.index = self.log.messages - 1
        data = added.SerializeToString()
        return MAGIC_BROKER_ENTRY + struct.pack(">I", len(data)) + data

    def _roll_if_full(self) -> None:
        """Begin a new ledger if the last one is old, or if it is large and not very young."""
        last, settings = self.log.ledgers[-1], self.settings
        minutes = (self.scheduler.time_ms - last.opened_ms) / 60_000
        large = (
            self.log.end - last.first >= settings.managedLedgerMaxEntriesPerLedger
            or self.log.bytes - last.offset >= settings.managedLedgerMaxSizePerLedgerMbytes << 20
        )
        if minutes >= settings.managedLedgerMaxLedgerRolloverTimeMinutes or (
            large and minutes >= settings.managedLedgerMinLedgerRolloverTimeMinutes
        ):
            self.log.open_ledger(self.scheduler.time_ms)
            self.trim()
            self.save()

    def mark_moved(self, before: int, after: int) -> None:
        """A durable subscription has acknowledged all before an entry: ledgers may be needed no more."""
        if len(self.log.ledgers) > 1 and before < self.log.ledgers[1].first <= after:
            self.trim()

    def trim(self, *, retains: bool = True) -> None:
        """Delete ledgers that all durable subscriptions have acknowledged.

        The last one stays, and if it `retains`, what retention keeps.
        """
        if self.closed:
            return
        marks = [each.cursor.mark for each in self.subscriptions.values() if each.cursor.durable]
        kept, now = retention(self), self.scheduler.time_ms
        closed = self.log.trim(
            min(marks, default=self.log.end),
            lambda closed_ms, size: retains and kept.keeps(now - closed_ms, size),
            forget=self.compaction.log is None,
        )
        if closed:
            self.save()
            self.transactions.trim()
            for subscription in self.subscriptions.values():
                if not subscription.reads_compacted:
                    subscription.cursor.ack_before(self.log.first)

    async def exceeds(self, quota: Quota) -> bool:
        """Whether the largest backlog of a subscription is beyond a quota."""
        marks = [each.cursor.mark for each in self.subscriptions.values() if each.cursor.durable]
        oldest = min(marks, default=self.log.stored)
        if 0 <= quota.size <= self.log.size_from(oldest):
            return True
        if quota.seconds <= 0 or oldest >= self.log.stored:
            return False
        entry = await self.log.entry(oldest, self.scheduler)
        return entry is not None and self.scheduler.time_ms - entry.time_ms > quota.seconds * 1000

    async def check_backlog(self) -> None:
        """Raises Refused if producers must wait until a backlog is smaller."""
        for quota in quotas(self):
            if quota.policy != "consumer_backlog_eviction" and await self.exceeds(quota):
                kind = "Exception" if quota.policy == "producer_exception" else "Error"
                text = "Cannot create producer on topic with backlog quota exceeded"
                code = f"ProducerBlockedQuotaExceeded{kind}"
                raise thrown(code, text, "TopicBacklogQuotaExceededException")

    # -- deduplication

    def last_sequence(self, producer_name: str) -> int:
        """The highest sequence id stored from a producer; -1 if unknown."""
        return self._sequences.get(producer_name, -1) if self.rules.deduplicates else -1

    def _is_duplicate(self, producer: Producer, sequence: int, highest: int, frame: Frame) -> bool:
        """Answer a SEND that was stored before, or is being stored; otherwise note its sequence ids."""
        metadata = frame.metadata
        if metadata is not None and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return False  # of the chunks of a message, the last one counts
        table, name = self._sequence_table, producer.name
        number = signed(sequence)
        if number <= self._sequences.get(name, -1):
            producer.begun(0)
            self.journal.when_synced(producer.receipt, sequence, highest, NOT_STORED, NOT_STORED, 0)
            return True
        if number <= self.journal.table(table).get(name, {"last": -1})["last"]:
            text = "Cannot determine whether the message is a duplicate at this time"
            text = f"[{self.name.full}][{name}]{text}"
            producer.error(sequence, highest, "PersistenceError", text)
            return True
        last = max(number, signed(highest))
        self._gone.pop(name, None)
        self.journal.put(table, name, {"last": last})
        self.journal.when_synced(self._sequences.__setitem__, name, last)
        return False

    def remove_producer(self, producer: Producer) -> None:
        """A producer leaves."""
        super().remove_producer(producer)
        if producer.name in self.journal.table(self._sequence_table):
            self._gone[producer.name] = self.scheduler.time_ms

    def forget_producers(self, before_ms: int) -> None:
        """Forget the sequence ids of producers that have been gone since then."""
        for name in [name for name, left in self._gone.items() if left < before_ms]:
            del self._gone[name]
            if name not in self.producers and self._sequences.pop(name, None) is not None:
                self.journal.delete(self._sequence_table, name)

    # -- subscriptions

    async def subscribe(self, connection: "Connection", command: CommandSubscribe, name: str) -> Consumer:
        """A consumer joins a subscription, which is made if there is none. Raises Refused."""
        if command.read_compacted and command.subType not in (EXCLUSIVE, FAILOVER):
            text = "readCompacted only allowed on failover or exclusive subscriptions"
            raise Refused("NotAllowedError", text)
        subscription: Subscription | None = self.subscriptions.get(name)
        if subscription is not None and subscription.cursor.durable != command.durable:
            kind = "Durable" if subscription.cursor.durable else "NonDurable"
            raise Refused("NotAllowedError", f"{kind} subscription with the same name already exists.")
        if subscription is None:
            subscription = self._create(command, name)
            if command.start_message_rollback_duration_sec:
                time_ms = self.scheduler.time_ms - command.start_message_rollback_duration_sec * 1000
                subscription.cursor.reset(await self.index_at(time_ms))
        if command.replicate_subscription_state and not subscription.cursor.replicated:
            subscription.cursor.replicated = True
            subscription.cursor.save()
        if command.durable and not subscription.stored:
            await self.journal.synced()
            subscription.stored = True
        consumer = Consumer(connection, command, subscription)
        try:
            await subscription.add(consumer)
        except Refused:
            self.consumer_left(subscription)
            raise
        return consumer

    def _create(self, command: CommandSubscribe, name: str) -> Subscription:
        if command.durable and not may_subscribe(self):
            raise Refused("SubscriptionNotFound", "Subscription does not exist")
        most = limit(self, "max subscriptions", self.settings.maxSubscriptionsPerTopic)
        if most and len(self.subscriptions) >= most:
            text = f"Exceed the maximum number of subscriptions of the topic: {self.name.full}"
            raise Refused("NotAllowedError", text)
        return self.create_subscription(
            name,
            self._start_of(command),
            durable=command.durable,
            properties={
                as_text(pair.key): as_text(pair.value)
                for pair in reversed(command.subscription_properties)  # the first one of a key counts
            },
        )

    def create_subscription(
        self, name: str, start: int, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> Subscription:
        """A new subscription, which begins at an index."""
        start, still_open = self.reset_to.pop(name, (start, 0))
        if self.compaction.log is None:
            start = max(start, self.log.first)
        cursor = Cursor(self.journal, f"{self.log.number}/{name}", start, durable=durable)
        if still_open:
            cursor.set_open(start, still_open)
        cursor.last_active_ms = self.scheduler.time_ms
        cursor.properties = properties or {}
        subscription = self.subscriptions[name] = Subscription(self, name, cursor)
        if durable:
            cursor.save()
        return subscription

    def _start_of(self, command: CommandSubscribe) -> int:
        """Where a new subscription begins. A reader's start entry is sent to it again; clients skip it."""
        start = command.start_message_id
        if not command.durable and command.HasField("start_message_id"):
            ledger, entry = signed(start.ledgerId), signed(start.entryId)
            if (ledger, entry - (ledger >= 0 and entry >= 0)) <= self.log.before(self.log.end):
                return self.locate(start)  # else the initial position counts, as for `latest`
        if command.initialPosition == CommandSubscribe.Earliest:
            return 0 if command.read_compacted and self.compaction.log is not None else self.log.first
        return self.log.end

    async def create_initial(self, name: str) -> None:
        """Make a subscription that a producer wants to be there. Raises Refused."""
        if name not in self.subscriptions:
            if not may_subscribe(self):
                text = "the auto subscription creation is not allowed."
                raise Refused("NotAllowedError", f"Could not create the initial subscription due to {text}")
            self.create_subscription(name, self.log.first)
            await self.journal.synced()

    def compaction_cursor(self) -> Cursor:
        """The cursor of the subscription that keeps what is not compacted yet."""
        if SUBSCRIPTION not in self.subscriptions:
            self.create_subscription(SUBSCRIPTION, self.log.first)
        cursor: Cursor = self.subscriptions[SUBSCRIPTION].cursor
        return cursor

    def consumer_left(self, subscription: Subscription) -> None:
        """A consumer of a subscription left: one that is not durable goes with its last consumer."""
        known = self.subscriptions.get(subscription.name) is subscription
        if known and not subscription.cursor.durable and not subscription.consumers:
            del self.subscriptions[subscription.name]
            self.gone_messages_out += subscription.gone_messages_out
            self.gone_bytes_out += subscription.gone_bytes_out
        self.last_active_ms = self.scheduler.time_ms

    # -- positions

    def locate(self, message_id: MessageIdData) -> int:
        """The index that a SEEK or a reader means by a message id."""
        return max(self.log.locate(message_id.ledgerId, message_id.entryId)[0], self.log.first)

    async def index_at(self, time_ms: int) -> int:
        """The first entry that is not older than `time_ms`.

        Clients say when they published, so these times may be out of order: as Pulsar, this looks at the
        first entry, then the last, then in the middle of those in between.
        """
        first, size = self.log.first, self.log.stored - self.log.first

        async def is_older(at: int) -> bool:
            entry = await self.log.entry(first + at, self.scheduler)
            return entry is not None and entry.time_ms < time_ms

        if size <= 0 or not await is_older(0):
            return first
        if await is_older(size - 1):
            return first + size
        oldest, low, high = 0, 0, size
        while low < high:
            middle = low + max((high - low) // 2, 1)
            if await is_older(middle):
                oldest = low = middle
            else:
                high = middle - 1
        return first + oldest + 1

    async def last_entry(self) -> Entry | None:
        """The last message that is stored; None if there is none."""
        index = self.readable
        while index > self.log.first:
            index -= 1
            entry = await self.log.entry(index, self.scheduler)
            metadata = None if entry is None else entry.metadata
            if metadata is None or not (metadata.HasField("marker_type") or self.is_aborted(index, metadata)):
                return entry
        return None

    # -- the end

    async def terminate(self) -> Position:
        """Take no more messages. Returns the id of the last one."""
        self.terminated = True
        self.save()
        await self.journal.synced()
        for producer in list(self.producers.values()):
            self.remove_producer(producer)
            producer.connection.close_producer(producer)
        for subscription in self.subscriptions.values():
            subscription.check_end()
        return self.log.before(self.log.end)

    async def close(self, **told: Any) -> None:
        """Close it: clients reconnect. `told` are fields of CLOSE_PRODUCER and CLOSE_CONSUMER."""
        self.closed = True
        await self.journal.synced()
        self.disconnect(**told)
        self.stop()

    def stop(self) -> None:
        """Stop timers."""
        for subscription in self.subscriptions.values():
            subscription.close()

    def forget(self) -> None:
        """Delete everything that is stored of it."""
        for subscription in self.subscriptions.values():
            subscription.forget()
        self.journal.delete_table(self._sequence_table)
        self.transactions.delete()
        self.compaction.delete()
        self.log.delete()
        self.journal.delete("topics", self.name.full)


def new_row(log: int) -> Row:
    """The row of a topic that has no messages yet."""
    return {
        "log": log,
        "ledgers": [],
        "first": 0,
        "properties": {},
        "terminated": False,
        "epoch": None,
        "policies": {},
        "globalPolicies": {},
    }
