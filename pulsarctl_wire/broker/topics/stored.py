"""What is stored of a persistent topic: it publishes, deduplicates, and finds entries."""

import struct
from typing import Final

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.storage.compaction import Compaction
from pulsarctl_wire.broker.storage.cursor import Cursor
from pulsarctl_wire.broker.storage.journal import Row
from pulsarctl_wire.broker.storage.log import Entry, Ledger, Log, signed
from pulsarctl_wire.broker.storage.transactions import Buffer, id_of
from pulsarctl_wire.broker.tenancy.limits import Limiter
from pulsarctl_wire.broker.topics.environment import Environment
from pulsarctl_wire.broker.topics.topic import Producer, S, Topic
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import MAGIC_BROKER_ENTRY
from pulsarctl_wire.wire.PulsarApi_pb2 import BrokerEntryMetadata, CommandSend, MessageIdData, MessageMetadata

NOT_STORED: Final = (1 << 64) - 1
"""Ledger and entry in the receipt of a duplicate."""


class StoredTopic(Topic[S]):
    """A loaded persistent topic without its subscriptions; its row of "topics" exists."""

    def __init__(self, environment: Environment, name: TopicName) -> None:
        super().__init__(environment, name)
        row = self.journal.table("topics")[name.full]
        self.properties: dict[str, str] = row["properties"]
        self.terminated = row["terminated"]
        self.epoch = row["epoch"]
        self.policies_changed()
        ledgers = [Ledger(*ledger) for ledger in row["ledgers"]]
        cache, ends = environment.cache, environment.ends
        self.log: Log = Log(row["log"], self.journal, cache, ends, ledgers, row["first"])
        self.log.open_ledger(self.scheduler.time_ms)
        self.has_lost_end = self.terminated and not self.log.end
        """Whether reads do not find the end any more: of a topic that was terminated without any message."""
        self._sequence_table = f"sequences/{self.log.number}"
        sequences = self.journal.table(self._sequence_table)
        self._sequences: dict[str, int] = {name: each["last"] for name, each in sequences.items()}
        self._gone: dict[str, int] = dict.fromkeys(sequences, self.scheduler.time_ms)
        self._fresh = False
        self.transactions = Buffer(self.journal, self.log, self.scheduler, self.append_own)
        self.compaction = Compaction(self)
        self.dispatch_limiter = Limiter(self.scheduler)
        self.reset_to: dict[str, tuple[int, int]] = {}
        """The index and open messages where a subscription that is not durable goes on after a reset."""

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
        if self.environment.adds_metadata and count:
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
        if self.environment.adds_timestamp:
            added.broker_timestamp = self.scheduler.time_ms
        if self.environment.adds_index:
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

    # -- what differs

    def trim(self) -> None:
        """Delete what nobody needs any more."""
        raise NotImplementedError

    def compaction_cursor(self) -> Cursor:
        """The cursor of the subscription that keeps what is not compacted yet."""
        raise NotImplementedError


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
