"""Compaction: a copy of a topic's messages that has only the last one of each key.

The copy is a log of its own, whose entries have the indexes of the originals; so it has holes. A later
compaction reads the former copy, and the entries added since. Messages without a key are left out. An empty
message deletes its key: in a batch, one with an empty payload; else one whose `uncompressed_size` is given
as 0. In place of a message that is left out, a batch has an empty one, marked `compacted_out`.
Source: compaction/TwoPhaseCompactor, RawBatchConverter (4.0).

    rows of "compacted": log -> {log: the copy's number, horizon: the index before which it covers all,
                                 former: the number of the copy before, whose entries may still be there}
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.broker.basics.scheduler import Scheduler
from pulsarctl_wire.broker.storage.cursor import Cursor
from pulsarctl_wire.broker.storage.journal import Journal, entry_key
from pulsarctl_wire.broker.storage.log import READ_BYTES, Entry, Log, parse_entry
from pulsarctl_wire.wire.entry import Stamp
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.payload import PayloadError, decompress
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

COMPACTION_SUBSCRIPTION: Final = "__compaction"
"""The subscription that keeps uncompacted entries."""

_READ_ENTRIES: Final = 1000
"""Entries that are read at a time."""

Single = tuple[SingleMessageMetadata, bytes]


class Compactable(Protocol):
    """A topic that can be compacted."""

    journal: Journal
    log: Log
    scheduler: Scheduler
    closed: bool

    @property
    def readable_end(self) -> int:
        """The index before which entries are compacted."""

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Return whether an entry was sent in a transaction that was aborted."""

    def get_compaction_cursor(self) -> Cursor:
        """Return the cursor of the subscription that keeps uncompacted entries."""

    def trim(self) -> None:
        """Delete what no subscription needs."""


class Compaction:
    """The compacted copy of a topic, and how it is made.

    `log_number` is the copy's; it covers all before the index `horizon`. `status` is as in the admin API.
    """

    def __init__(self, topic: Compactable) -> None:
        self._topic = topic
        row = topic.journal.table("compacted").get(str(topic.log.number))
        self.log_number: int | None = None if row is None else row["log"]
        self.horizon: int = 0 if row is None else row["horizon"]
        self._forget(None if row is None else row.get("former"))
        self.status = "NOT_RUN"
        self.error = ""
        self.removed_messages = 0
        """Messages left out last time, counted as Pulsar does: without those that an empty one deletes."""
        self.succeeded_ms = self.failed_ms = self.duration_ms = 0
        """When a compaction last succeeded and failed, and how long the last one took."""

    def _forget(self, log: int | None) -> None:
        """Delete the entries of a copy."""
        if log is not None:
            self._topic.journal.trim(entry_key(log, 0), entry_key(log + 1, 0))

    # -- reading

    def read(self, index: int, reader: Callable[[list[Entry]], None]) -> None:
        """Read entries of the copy from an index on, as many as one read fetches; call `reader` with them."""
        assert self.log_number is not None
        base = entry_key(self.log_number, 0)

        def on_read(rows: list[tuple[int, bytes]]) -> None:
            reader([parse_entry(key - base, data) for key, data in rows])

        self._topic.journal.read(base + index, base + self.horizon, READ_BYTES, on_read)

    async def read_last_entry(self) -> Entry | None:
        """Read the last entry of the copy; None if it has none."""
        last: list[Entry] = []
        await self._scan(self.horizon, lambda entry: last.__setitem__(slice(None), [entry]))
        return last[0] if last else None

    async def _scan(self, stop: int, visit: Callable[[Entry], None]) -> None:
        """Call `visit` with all entries before `stop` but aborted ones: the copy's, then the topic's."""
        log, scheduler = self._topic.log, self._topic.scheduler
        index = 0 if self.log_number is not None else log.first
        while index < stop:
            completion = scheduler.make_completion()
            if index < self.horizon:
                next_index = self.horizon
                self.read(index, completion.resolve)
            else:
                next_index = min(index + _READ_ENTRIES, stop)
                log.read(index, next_index, completion.resolve)
            entries: list[Entry] = await completion
            for entry in entries:
                if entry.metadata is None or not self._topic.is_aborted(entry.index, entry.metadata):
                    visit(entry)
            index = entries[-1].index + 1 if entries else next_index

    # -- compacting

    async def run(self) -> None:
        """Compact the topic as it is now."""
        if self.status == "RUNNING":
            return
        scheduler, start_ms = self._topic.scheduler, self._topic.scheduler.time_ms
        self.status, self.error = "RUNNING", ""
        try:
            await self._run()
        except Exception as error:
            self.status, self.error = "ERROR", str(error)
            self.failed_ms = scheduler.time_ms
            raise
        finally:
            self.duration_ms = scheduler.time_ms - start_ms
        self.status, self.succeeded_ms = "SUCCESS", scheduler.time_ms

    async def _run(self) -> None:
        topic, journal = self._topic, self._topic.journal
        cursor = topic.get_compaction_cursor()
        stop = topic.readable_end
        latest: dict[bytes, tuple[int, int]] = {}  # key -> entry of its last message, position in the batch
        self.removed_messages = 0

        def note_keys(entry: Entry) -> None:
            for position, (key, is_deletion) in enumerate(_keys(entry)):
                if is_deletion or not key or key in latest:
                    self.removed_messages += 1
                if is_deletion:
                    latest.pop(key, None)
                elif key:
                    latest[key] = entry.index, position

        await self._scan(stop, note_keys)
        number = journal.next_number("log") + 1  # numbers of logs begin at 1

        def copy_entry(entry: Entry) -> None:
            data = _copy(entry, latest)
            if data is not None:
                journal.append(entry_key(number, entry.index), data)

        await self._scan(stop, copy_entry)
        if topic.closed:  # its next owner knows nothing of this copy
            self._forget(number)
            return
        former = self.log_number
        journal.put("compacted", str(topic.log.number), {"log": number, "horizon": stop, "former": former})
        await journal.sync()
        self.log_number, self.horizon = number, stop
        self._forget(former)  # only now: it may have been in use
        cursor.ack_before(stop)
        topic.trim()

    def delete(self) -> None:
        """Delete the copy."""
        self._forget(self.log_number)
        self._topic.journal.delete("compacted", str(self._topic.log.number))


def _is_batch(metadata: MessageMetadata) -> bool:
    """Return whether an entry is a batch whose messages can be separated."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def _encode(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _keys(entry: Entry) -> Iterator[tuple[bytes, bool]]:
    """Yield, for each message in an entry, its key (empty: none), and whether it deletes that key."""
    metadata = entry.metadata
    if metadata is None or metadata.HasField("marker_type"):
        return
    if _is_batch(metadata):
        for single, payload in _singles(entry, metadata):
            yield _encode(single.partition_key), not payload
    else:
        is_deletion = metadata.HasField("uncompressed_size") and not metadata.uncompressed_size
        yield _encode(metadata.partition_key), is_deletion


def _singles(entry: Entry, metadata: MessageMetadata) -> Iterator[Single]:
    """Yield the messages of a batch; ends early if the batch is damaged."""
    payload = entry.payload
    try:
        if metadata.compression:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        offset = 0
        for _ in range(metadata.num_messages_in_batch):
            stop = offset + 4 + int.from_bytes(payload[offset : offset + 4], "big")
            single = SingleMessageMetadata.FromString(payload[offset + 4 : stop])
            offset = stop + max(single.payload_size, 0)
            if stop > len(payload) or offset > len(payload):
                return
            yield single, payload[stop:offset]
    except (PayloadError, DecodeError):
        return


def _copy(entry: Entry, latest: dict[bytes, tuple[int, int]]) -> bytes | None:
    """Return the bytes that the copy has of an entry; None if nothing."""
    metadata = entry.metadata
    keep_flags = [
        latest.get(key) == (entry.index, position) for position, (key, _) in enumerate(_keys(entry))
    ]
    if metadata is None or not any(keep_flags):
        return None
    if all(keep_flags) or not _is_batch(metadata):
        return entry.data
    return _blank_messages(entry, metadata, keep_flags)


def _blank_messages(entry: Entry, metadata: MessageMetadata, keep_flags: list[bool]) -> bytes:
    """Return a batch with empty messages in place of those whose flag is false."""
    pieces = []
    for (single, payload), is_kept in zip(_singles(entry, metadata), keep_flags, strict=False):
        if not is_kept:
            single, payload = SingleMessageMetadata(payload_size=0, compacted_out=True), b""
        head = single.SerializeToString()
        pieces += [struct.pack(">I", len(head)), head, payload]
    copied = MessageMetadata()
    copied.CopyFrom(metadata)
    body = Stamp("", metadata.compression).compress(copied, b"".join(pieces))
    head = copied.SerializeToString()
    covered = b"".join((struct.pack(">I", len(head)), head, body))
    return entry.data[: entry.start] + MAGIC_CHECKSUM + struct.pack(">I", crc32c(covered)) + covered
