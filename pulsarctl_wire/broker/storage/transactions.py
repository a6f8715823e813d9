"""Transactions (PIP-31), as topics and subscriptions see them.

    TransactionBuffer  of a topic: which transactions have messages in it, and which were aborted
    PendingAcks        of a subscription: what transactions have acknowledged

All share one storage, so a transaction ends in a single commit: markers in its topics, acknowledgements, and
the coordinator's row (coordinators.py). Stored as rows:

    txn-open/LOG             most/least -> {first}: the index of its first message
    txn-aborted/LOG          most/least -> {first, last}: the indexes of its first message and its marker
    txn-acks/LOG/NAME        most/least -> {entries: [[index, open messages or null, batch size]],
                                            until: the index before which all is acknowledged, or 0}
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pulsarctl_wire.broker.basics.refusal import Refused
from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.storage.cursor import Cursor, mask_of
from pulsarctl_wire.broker.storage.journal import Journal, Row
from pulsarctl_wire.broker.storage.log import Log, Position, signed
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    TXN_ABORT,
    TXN_COMMIT,
    CommandAck,
    CommandSend,
    MessageIdData,
    MessageMetadata,
)

_MAX_BATCH_MESSAGES: Final = 1 << 20
"""Larger batch sizes from clients are not believed."""

_CONFLICT: Final = "org.apache.pulsar.transaction.common.exception.TransactionConflictException: "

Id = tuple[int, int]
"""A transaction's id: most and least significant bits; the former is the coordinator's number."""


def id_of(command: CommandSend | CommandAck) -> Id | None:
    """Return the transaction of a SEND or ACK; None if there is none."""
    if command.HasField("txnid_least_bits") and command.HasField("txnid_most_bits"):
        return command.txnid_most_bits, command.txnid_least_bits
    return None


def key_of(txn: Id) -> str:
    """Return the key of a transaction in tables."""
    return f"{txn[0]}/{txn[1]}"


def text_of(txn: Id) -> str:
    """Return a transaction as Pulsar's messages show it."""
    return f"({txn[0]},{txn[1]})"


def find_oldest_orphan(keys: Iterable[str], open_keys: Iterable[str], ended: Id) -> Id | None:
    """Return the oldest transaction in `keys`, if it is older than all that are open; else None.

    It has ended or never existed, so Pulsar aborts it when `ended`, of the same coordinator, ends.
    """
    oldest = min((id_of_key(key) for key in keys), default=None)
    oldest_open = min((id_of_key(key) for key in open_keys), default=(ended[0], ended[1] + 1))
    return oldest if oldest is not None and oldest[0] == ended[0] and oldest < oldest_open else None


def id_of_key(key: str) -> Id:
    """Return the transaction of a key in tables."""
    high, _, low = key.partition("/")
    return int(high), int(low)


def build_marker(txn: Id, *, commit: bool, time_ms: int) -> tuple[bytes, MessageMetadata]:
    """Build the entry that ends a transaction in a topic."""
    metadata = MessageMetadata(
        producer_name="pulsar.txn.marker",
        sequence_id=0,
        publish_time=time_ms,
        marker_type=TXN_COMMIT if commit else TXN_ABORT,
        txnid_most_bits=txn[0],
        txnid_least_bits=txn[1],
    )
    command = build_command("SEND", producer_id=0, sequence_id=0)
    return build_frame(command, metadata)[8 + command.ByteSize() :], metadata


class TransactionBuffer:
    """The transactions that have messages in a topic; `append_own` adds an entry, and returns its index."""

    def __init__(
        self,
        journal: Journal,
        log: Log,
        scheduler: Scheduler,
        append_own: Callable[[bytes, MessageMetadata], int],
    ) -> None:
        self._journal = journal
        self._log = log
        self._scheduler = scheduler
        self._append_own = append_own
        self._transactions = journal.table("transactions")
        self._open = journal.table(f"txn-open/{log.number}")
        self._aborted = journal.table(f"txn-aborted/{log.number}")

    @property
    def first_open(self) -> int | None:
        """The index of the first message of all open transactions; None if there are none."""
        return min((row["first"] for row in self._open.values()), default=None)

    @property
    def open_keys(self) -> Iterable[str]:
        """The keys of the open transactions."""
        return self._open.keys()

    def record_message(self, txn: Id, index: int) -> None:
        """Record an entry of a transaction, which need not exist; if it was aborted, so is the entry."""
        key = key_of(txn)
        if key in self._aborted:
            self._abort(key, index, index)
        elif key not in self._open:
            self._journal.put(f"txn-open/{self._log.number}", key, {"first": index})

    def _abort(self, key: str, first: int, last: int) -> None:
        row = self._aborted.get(key, {"first": first})
        aborted = {"first": row["first"], "last": last}
        self._journal.put(f"txn-aborted/{self._log.number}", key, aborted)

    def end(self, txn: Id, *, commit: bool) -> None:
        """End a transaction, with a marker that says how."""
        self._end(txn, commit=commit)
        orphan = find_oldest_orphan(self._open, self._transactions, txn)
        if orphan is not None:
            self._end(orphan, commit=False)

    def _end(self, txn: Id, *, commit: bool) -> None:
        key = key_of(txn)
        data, metadata = build_marker(txn, commit=commit, time_ms=self._scheduler.time_ms)
        index = self._append_own(data, metadata)
        if not commit and key in self._open:
            self._abort(key, self._open[key]["first"], index)
        self._journal.delete(f"txn-open/{self._log.number}", key)

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Return whether an entry was sent in a transaction that was aborted."""
        if not self._aborted or not metadata.HasField("txnid_most_bits"):
            return False
        row = self._aborted.get(key_of((metadata.txnid_most_bits, metadata.txnid_least_bits)))
        # a committed transaction may get messages again, which are aborted: `first` is the first of these,
        # and messages before it stay committed
        return row is not None and index >= row["first"]

    def trim(self) -> None:
        """Forget aborted transactions whose messages are deleted."""
        for key in [key for key, row in self._aborted.items() if row["last"] < self._log.first]:
            self._journal.delete(f"txn-aborted/{self._log.number}", key)

    def delete(self) -> None:
        """Delete all rows."""
        for table in ("txn-open", "txn-aborted"):
            self._journal.delete_table(f"{table}/{self._log.number}")


def _merge(entries: Iterable[tuple[int, int | None, int]]) -> list[tuple[int, int | None, int]]:
    """Return a transaction's acknowledgements, one per entry; a batch's parts are merged."""
    merged: dict[int, tuple[int | None, int]] = {}
    for index, mask, size in entries:
        former, _ = merged.get(index, (mask, size))
        common = None if mask is None or former is None else mask & former
        merged[index] = common or None, size
    return [(index, mask, size) for index, (mask, size) in merged.items()]


class AckTarget(Protocol):
    """A subscription, as pending acknowledgements of transactions see it."""

    cursor: Cursor
    log: Log
    journal: Journal

    @property
    def full_name(self) -> str:
        """Its topic and its name, as in Pulsar's messages."""

    @property
    def mark_id(self) -> Position:
        """The id of the last entry before the mark."""

    def settle(self, index: int) -> None:
        """Record that an entry is no longer pending; its consumer, if any, counts it as acknowledged."""

    def apply(self, entries: Iterable[tuple[int, int | None, int]], until: int) -> None:
        """Apply a transaction's acknowledgements: everything before `until`; entries, or messages of them."""

    def deliver_again(self, indexes: list[int]) -> None:
        """Deliver entries again whose acknowledgement was aborted."""


class PendingAcks:
    """What transactions have acknowledged in a subscription, until they end.

    `hidden` are the entries that no consumer gets meanwhile. `parts` maps the index of a batch that is partly
    acknowledged to a mask of the other messages.
    """

    def __init__(self, subscription: AckTarget) -> None:
        self._subscription = subscription
        self._journal = subscription.journal
        self._table = f"txn-acks/{subscription.cursor.key}"
        self._rows = self._journal.table(self._table)
        self.hidden: set[int] = set()
        self.parts: dict[int, int] = {}
        self._collect()

    def _collect(self) -> None:
        self.hidden.clear()
        self.parts.clear()
        for row in self._rows.values():
            for index, mask, size in row["entries"]:
                self._hide(index, mask, size)

    def _hide(self, index: int, mask: int | None, size: int) -> None:
        if mask is None:
            self.hidden.add(index)
        else:
            self.parts[index] = self.parts.get(index, (1 << size) - 1) & mask

    def get_open_mask(self, index: int) -> int | None:
        """Return the messages of a batch that are still to be delivered, as bits; None: all."""
        mask, part = self._subscription.cursor.masks.get(index), self.parts.get(index)
        return mask if part is None else part if mask is None else mask & part

    def has_pending_ack(self, index: int) -> bool:
        """Return whether individual acknowledgements in transactions leave nothing of an entry open."""
        return index in self.hidden or (index in self.parts and not self.get_open_mask(index))

    def ack(self, txn: Id, ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages in a transaction, which need not be open: all or none. Raises Refused."""
        entries: list[tuple[int, int | None, int]] = []
        for message_id in ids:
            index, is_stored = self._subscription.log.locate(message_id.ledgerId, message_id.entryId)
            mask = mask_of(message_id.ack_set)
            size = min(max(message_id.batch_size, mask.bit_length(), 1), _MAX_BATCH_MESSAGES)
            if reason := self._find_conflict(index, is_stored, mask, size):
                words = f"with long[] size of {len(message_id.ack_set)}" if message_id.ack_set else "is null"
                kind = "batch message" if mask and index in self.parts else "message"
                raise self._refusal(txn, f"ack {kind}:{_format_id(message_id)} (ackSet {words}) {reason}.")
            if is_stored:
                entries.append((index, mask or None, size))
        row = self._row(txn)
        row["entries"] += entries
        self._journal.put(self._table, key_of(txn), row)
        for entry in entries:
            self._hide(*entry)
            if self.has_pending_ack(entry[0]):
                self._subscription.settle(entry[0])

    def _find_conflict(self, index: int, is_stored: bool, mask: int, size: int) -> str:
        """Return why messages of an entry cannot be acknowledged; empty if they can."""
        cursor, part = self._subscription.cursor, self.parts.get(index)
        acked = (1 << size) - 1 & ~mask
        if not is_stored:
            is_acked = index <= cursor.mark and index < self._subscription.log.end
            return "already acked before" if is_acked else ""
        if cursor.is_acked(index) or (mask and acked & ~cursor.masks.get(index, -1)):
            return "already acked before"
        if index in self.hidden or (part is not None and (not mask or acked & ~part)):
            return "in pending ack status"
        return ""

    def _refusal(self, txn: Id, action: str) -> Refused:
        name = self._subscription.full_name
        return Refused("TransactionConflict", f"{_CONFLICT}{name} Transaction:{text_of(txn)} try to {action}")

    def ack_until(self, txn: Id, message_id: MessageIdData) -> None:
        """Acknowledge everything up to a message in a transaction. Raises Refused."""
        log, key = self._subscription.log, key_of(txn)
        index, is_stored = log.locate(message_id.ledgerId, message_id.entryId)
        until, mark = index + is_stored, self._subscription.cursor.mark
        ack = f"ack position: {_format_id(message_id)} within range of"
        if until <= mark:
            ledger, entry = self._subscription.mark_id
            raise self._refusal(txn, f"cumulative {ack} cursor's markDeletePosition: {ledger}:{entry}")
        for other, row in self._rows.items():
            if row["until"] and (other != key or until <= row["until"]):
                ledger, entry = log.position(row["until"] - 1)
                raise self._refusal(txn, f"cumulative batch {ack} current currentPosition: {ledger}:{entry}")
        self._journal.put(self._table, key, {**self._row(txn), "until": until})

    def _row(self, txn: Id) -> Row:
        return self._rows.get(key_of(txn)) or {"entries": [], "until": 0}

    def end(self, txn: Id, *, commit: bool) -> None:
        """End a transaction: apply its acknowledgements, or deliver again what it had acknowledged."""
        if key_of(txn) in self._rows:
            self._end(txn, commit=commit)
            orphan = find_oldest_orphan(self._rows, self._journal.table("transactions"), txn)
            if orphan is not None:
                self._end(orphan, commit=False)

    def _end(self, txn: Id, *, commit: bool) -> None:
        row = self._rows[key_of(txn)]
        self._journal.delete(self._table, key_of(txn))
        self._collect()
        if commit:
            self._subscription.apply(_merge(row["entries"]), row["until"])
        elif row["entries"]:
            self._subscription.deliver_again(sorted({index for index, _, _ in row["entries"]}))

    def delete(self) -> None:
        """Delete all rows."""
        self._journal.delete_table(self._table)
        self.hidden.clear()
        self.parts.clear()


def _format_id(message_id: MessageIdData) -> str:
    return f"{signed(message_id.ledgerId)}:{signed(message_id.entryId)}"
