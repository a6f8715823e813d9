"""The stored part of a persistent topic: publishing, deduplication, finding entries."""

import struct
from typing import Final

from pulsarctl_wire.broker.basics.names import TopicName
from pulsarctl_wire.broker.storage.compaction import Compaction
from pulsarctl_wire.broker.storage.cursor import Cursor
from pulsarctl_wire.broker.storage.journal import Row
from pulsarctl_wire.broker.storage.log import Entry, Ledger, Log, signed
from pulsarctl_wire.broker.storage.transactions import TransactionBuffer, id_of
from pulsarctl_wire.broker.tenancy.limits import Limiter
from pulsarctl_wire.broker.topics.topic import Environment, Producer, S, Topic
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
        self.on_policies_changed()
        ledgers = [Ledger(*ledger) for ledger in row["ledgers"]]
        cache, ends = environment.cache, environment.ends
        self.log: Log = Log(row["log"], self.journal, cache, ends, ledgers, row["first"])
        if not self.terminated:
            self.log.open_ledger(self.scheduler.time_ms)
        self.hides_end = self.terminated and not self.log.end
        """Whether consumers are not told that it is terminated: it was empty then, and was loaded since."""
        self._sequence_table = f"sequences/{self.log.number}"
        sequences = self.journal.table(self._sequence_table)
        self._sequences: dict[str, int] = {name: row["last"] for name, row in sequences.items()}
        """Producer name -> highest sequence id that is stored; the table also has those being stored."""
        self._gone_since_ms: dict[str, int] = dict.fromkeys(sequences, self.scheduler.time_ms)
        """Producer name -> when it left, or the topic was loaded; removed when it sends a new sequence id."""
        self._is_dispatch_due = False
        self.transactions = TransactionBuffer(self.journal, self.log, self.scheduler, self.append_own)
        self.compaction = Compaction(self)
        self.dispatch_limiter = Limiter(self.scheduler)
        self.reset_to: dict[str, tuple[int, int]] = {}
        """Non-durable subscriptions -> the index and open messages to continue from after a reset."""

    def save(self) -> None:
        """Put the topic's row. Its policies are not changed here."""
        row_before = self.journal.table("topics").get(self.name.full, {})
        row = {
            "log": self.log.number,
            "ledgers": self.log.ledgers,
            "first": self.log.first,
            "properties": self.properties,
            "terminated": self.terminated,
            "epoch": self.epoch,
            "policies": row_before.get("policies", {}),
            "globalPolicies": row_before.get("globalPolicies", {}),
        }
        self.journal.put("topics", self.name.full, row)

    @property
    def readable_end(self) -> int:
        """The index before which consumers may see entries."""
        first = self.transactions.first_open
        return self.log.stored_end if first is None else min(first, self.log.stored_end)

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Return whether an entry was sent in a transaction that was aborted."""
        return self.transactions.is_aborted(index, metadata)

    @property
    def has_messages(self) -> bool:
        """Whether any messages are stored."""
        return self.log.end > self.log.first

    # -- publishing

    def publish(self, producer: Producer, command: CommandSend, frame: Frame, tail_start: int) -> None:
        """Handle SEND: store the entry `frame.raw[tail_start:]`."""
        if self.closed or self.terminated:
            return  # the producer is being closed
        sequence = command.sequence_id
        highest = command.highest_sequence_id
        if highest < sequence:  # not given, or wrong, which Pulsar ignores
            highest = 0
        rules = self.rules
        deduplicates = rules.deduplicates and not command.marker
        if deduplicates and self._deduplicate(producer, sequence, highest, frame):
            return
        data, offset = frame.raw[tail_start:], 0
        count = max(command.num_messages, 0)
        self.log.messages += count
        if self.environment.adds_metadata and count:
            prefix = self._make_broker_metadata()
            data, offset = prefix + data, len(prefix)
        metadata = frame.metadata if not frame.partial else None
        index = self.log.append(data, metadata, offset)
        txn = id_of(command)
        if txn is not None:
            self.transactions.record_message(txn, index)
        size = len(data)
        producer.begin_send(size)
        producer.messages_in += count
        producer.bytes_in += size
        self.messages_in += count
        self.bytes_in += size
        ledger = self.log.ledgers[-1]
        ids = ledger.id, index - ledger.first
        self.journal.call_after_sync(self._on_stored, producer, sequence, highest, index, *ids, size)
        if rules.limits_rate:
            self.limit_rate(producer, count, size)
        self._roll_if_full()

    def append_own(self, data: bytes, metadata: MessageMetadata) -> int:
        """Add an entry of the broker's own, such as a marker. Returns its index."""
        index = self.log.append(data, metadata, 0)
        self.journal.call_after_sync(self._on_durable, index)
        return index

    def _on_stored(
        self, producer: Producer, sequence: int, highest: int, index: int, ledger: int, entry: int, size: int
    ) -> None:
        producer.confirm_send(sequence, highest, ledger, entry, size)
        self._on_durable(index)

    def _on_durable(self, index: int) -> None:
        """Make a stored entry visible to consumers."""
        self.log.stored_end = index + 1
        if not self._is_dispatch_due:
            self._is_dispatch_due = True
            self.scheduler.ready.append(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        for subscription in self.subscriptions.values():
            subscription.dispatch_soon()

    def _make_broker_metadata(self) -> bytes:
        """Return the broker entry metadata of the next entry: time, index of its last message (PIP-70)."""
        metadata = BrokerEntryMetadata()
        if self.environment.adds_timestamp:
            metadata.broker_timestamp = self.scheduler.time_ms
        if self.environment.adds_index:
            metadata.index = self.log.messages - 1
        data = metadata.SerializeToString()
        return MAGIC_BROKER_ENTRY + struct.pack(">I", len(data)) + data

    def _roll_if_full(self) -> None:
        """Begin a new ledger if the last one is old, or if it is large and not very young."""
        last, settings = self.log.ledgers[-1], self.settings
        minutes = (self.scheduler.time_ms - last.opened_ms) / 60_000
        is_large = (
            self.log.end - last.first >= settings.managedLedgerMaxEntriesPerLedger
            or self.log.bytes - last.offset >= settings.managedLedgerMaxSizePerLedgerMbytes << 20
        )
        if minutes >= settings.managedLedgerMaxLedgerRolloverTimeMinutes or (
            is_large and minutes >= settings.managedLedgerMinLedgerRolloverTimeMinutes
        ):
            self.log.open_ledger(self.scheduler.time_ms)
            self.trim()
            self.save()

    def on_mark_moved(self, former: int, mark: int) -> None:
        """Trim the log if a durable subscription's last acknowledged entry has left the first ledger.

        `former` is the mark before the move.
        """
        if len(self.log.ledgers) > 1 and former <= self.log.ledgers[1].first < mark:
            self.trim()

    # -- deduplication

    def get_last_sequence(self, producer_name: str) -> int:
        """Return the highest sequence id stored from a producer; -1 if unknown."""
        return self._sequences.get(producer_name, -1) if self.rules.deduplicates else -1

    def _deduplicate(self, producer: Producer, sequence: int, highest: int, frame: Frame) -> bool:
        """Answer a SEND that is or may be a duplicate, and return True; else note its sequence ids."""
        metadata = frame.metadata
        if metadata is not None and metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            return False  # of the chunks of a message, the last one counts
        table, name = self._sequence_table, producer.name
        number = signed(sequence)
        if number <= self._sequences.get(name, -1):
            producer.begin_send(0)
            self.journal.call_after_sync(producer.confirm_send, sequence, highest, NOT_STORED, NOT_STORED, 0)
            return True
        if number <= self.journal.table(table).get(name, {"last": -1})["last"]:
            text = "Cannot determine whether the message is a duplicate at this time"
            text = f"[{self.name.full}][{name}]{text}"
            producer.reject_send(sequence, highest, "PersistenceError", text)
            return True
        last = max(number, signed(highest))
        self._gone_since_ms.pop(name, None)
        self.journal.put(table, name, {"last": last})
        self.journal.call_after_sync(self._sequences.__setitem__, name, last)
        return False

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer."""
        super().remove_producer(producer)
        if producer.name in self.journal.table(self._sequence_table):
            self._gone_since_ms[producer.name] = self.scheduler.time_ms

    def forget_producers(self, before_ms: int) -> None:
        """Forget the sequence ids of producers that left before `before_ms`."""
        for name in [name for name, since_ms in self._gone_since_ms.items() if since_ms < before_ms]:
            del self._gone_since_ms[name]
            if name not in self.producers and self._sequences.pop(name, None) is not None:
                self.journal.delete(self._sequence_table, name)

    # -- positions

    def locate(self, message_id: MessageIdData) -> int:
        """Return the index that a SEEK or a reader's message id means."""
        return max(self.log.locate(message_id.ledgerId, message_id.entryId)[0], self.log.first)

    async def find_index_at(self, time_ms: int) -> int:
        """Return the index of the first entry not older than `time_ms`; without one, that of the next entry.

        Publish times come from clients and may be out of order. Like Pulsar, this looks at the first entry,
        then the last, then halves the range in between.
        """
        first, size = self.log.first, self.log.stored_end - self.log.first

        async def is_older(position: int) -> bool:
            entry = await self.log.load_entry(first + position, self.scheduler)
            return entry is not None and entry.time_ms < time_ms

        if size <= 0 or not await is_older(0):
            return first
        if await is_older(size - 1):
            return first + size
        last_older, low, high = 0, 0, size
        while low < high:
            middle = low + max((high - low) // 2, 1)
            if await is_older(middle):
                last_older = low = middle
            else:
                high = middle - 1
        return first + last_older + 1

    async def read_last_entry(self) -> Entry | None:
        """Return the last readable entry that is neither a marker nor aborted; None if there is none."""
        index = self.readable_end
        while index > self.log.first:
            index -= 1
            entry = await self.log.load_entry(index, self.scheduler)
            metadata = None if entry is None else entry.metadata
            if metadata is None or not (metadata.HasField("marker_type") or self.is_aborted(index, metadata)):
                return entry
        return None

    # -- for subclasses

    def trim(self) -> None:
        """Delete what no subscription needs."""
        raise NotImplementedError

    def get_compaction_cursor(self) -> Cursor:
        """Return the cursor of the subscription that keeps uncompacted entries."""
        raise NotImplementedError


def make_row(log: int) -> Row:
    """Return the row of a topic that has no messages yet."""
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
