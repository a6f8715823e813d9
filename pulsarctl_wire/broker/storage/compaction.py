"""Compaction: a copy of a topic's messages that has only the last one of each key.

The copies are entries of a log of their own, under the indexes of the originals, so it has holes. A later
compaction reads the former copy, and the entries added since. Messages without a key are left out, and
empty ones delete their key: in batches those with an empty payload, else those whose `uncompressed_size` is
given as 0. Messages of a batch that are left out stay as empty ones, marked
`compacted_out`.
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
    """The compacted copy of a topic, and the making of it. `status` is as in the admin API."""

    def __init__(self, topic: Compactable) -> None:
        self._topic = topic
        row = topic.journal.table("compacted").get(str(topic.log.number))
        self.log: int | None = None if row is None else row["log"]
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
        """Read the first entries of the copy from an index on."""
        assert self.log is not None
        base = entry_key(self.log, 0)

        def done(rows: list[tuple[int, bytes]]) -> None:
            reader([parse_entry(key - base, data) for key, data in rows])

        self._topic.journal.read(base + index, base + self.horizon, READ_BYTES, done)

    async def read_last_entry(self) -> Entry | None:
        """Read the last entry of the copy; None if it has none."""
        last: list[Entry] = []
        await self._scan(self.horizon, lambda entry: last.__setitem__(slice(None), [entry]))
        return last[0] if last else None

    async def _scan(self, stop: int, use: Callable[[Entry], None]) -> None:
        """Call `use` with each entry before `stop`: those of the copy, then those of the topic."""
        log, scheduler = self._topic.log, self._topic.scheduler
        index = 0 if self.log is not None else log.first
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
                    use(entry)
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
        latest: dict[bytes, tuple[int, int]] = {}
        self.removed_messages = 0

        def note_keys(entry: Entry) -> None:
            for position, (key, empty) in enumerate(_keys(entry)):
                if empty or not key or key in latest:
                    self.removed_messages += 1
                if empty:
                    latest.pop(key, None)
                elif key:
                    latest[key] = entry.index, position

        await self._scan(stop, note_keys)
        number = journal.next_number("log") + 1

        def copy_entry(entry: Entry) -> None:
            data = _copy(entry, latest)
            if data is not None:
                journal.append(entry_key(number, entry.index), data)

        await self._scan(stop, copy_entry)
        if topic.closed:  # its next owner knows nothing of this copy
            self._forget(number)
            return
        former = self.log
        journal.put("compacted", str(topic.log.number), {"log": number, "horizon": stop, "former": former})
        await journal.sync()
        self.log, self.horizon = number, stop
        self._forget(former)  # only now: it may have been in use
        cursor.ack_before(stop)
        topic.trim()

    def delete(self) -> None:
        """Delete the copy."""
        self._forget(self.log)
        self._topic.journal.delete("compacted", str(self._topic.log.number))


def _is_batch(metadata: MessageMetadata) -> bool:
    """Return whether an entry is a batch whose messages can be separated."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def _text(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _keys(entry: Entry) -> Iterator[tuple[bytes, bool]]:
    """Yield, for each message in an entry, its key (empty: none), and whether it deletes that key."""
    metadata = entry.metadata
    if metadata is None or metadata.HasField("marker_type"):
        return
    if _is_batch(metadata):
        for single, payload in _singles(entry, metadata):
            yield _text(single.partition_key), not payload
    else:
        empty = metadata.HasField("uncompressed_size") and not metadata.uncompressed_size
        yield _text(metadata.partition_key), empty


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
    stays = [latest.get(key) == (entry.index, position) for position, (key, _) in enumerate(_keys(entry))]
    if metadata is None or not any(stays):
        return None
    if all(stays) or not _is_batch(metadata):
        return entry.data
    return _blank_messages(entry, metadata, stays)


def _blank_messages(entry: Entry, metadata: MessageMetadata, stays: list[bool]) -> bytes:
    """Return a batch without the payloads of the messages that do not stay."""
    pieces = []
    for (single, payload), is_kept in zip(_singles(entry, metadata), stays, strict=False):
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
