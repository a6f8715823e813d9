"""Compaction: a copy of a topic's messages that has only the last one of each key.

The copies are entries of a log of their own, under the indexes of the originals, so it has holes. A later
compaction reads the former copy, and what the topic has got since. Messages without a key are left out, and
empty ones delete their key: in batches those with an empty payload, else those whose `uncompressed_size` is
given as 0. Messages of a batch that are left out stay as empty ones, marked
`compacted_out`.
Source: compaction/TwoPhaseCompactor, RawBatchConverter (4.0).

    rows of "compacted": log -> {log: the copy's number, horizon: what it covers, in indexes,
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
from pulsarctl_wire.broker.storage.log import READ_BYTES, Entry, Log, read_entry
from pulsarctl_wire.wire.entry import Stamp
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.payload import PayloadError, decompress
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

SUBSCRIPTION: Final = "__compaction"
"""The subscription that keeps what is not compacted yet."""

_MANY: Final = 1000
"""Entries that are read at a time."""

Single = tuple[SingleMessageMetadata, bytes]


class Compactable(Protocol):
    """A topic that can be compacted."""

    journal: Journal
    log: Log
    scheduler: Scheduler
    closed: bool

    @property
    def readable(self) -> int:
        """Entries before this index are compacted."""

    def is_aborted(self, index: int, metadata: MessageMetadata) -> bool:
        """Whether an entry was sent in a transaction that was aborted."""

    def compaction_cursor(self) -> Cursor:
        """The cursor of the subscription that keeps what is not compacted yet."""

    def trim(self) -> None:
        """Delete what nobody needs any more."""


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
        """What the last compaction left out, counted as Pulsar does: no message that another one deletes."""
        self.succeeded_ms = self.failed_ms = self.duration_ms = 0
        """When one succeeded and failed last, and how long the last one took."""

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
            reader([read_entry(key - base, data) for key, data in rows])

        self._topic.journal.read(base + index, base + self.horizon, READ_BYTES, done)

    async def last_entry(self) -> Entry | None:
        """The last entry of the copy; None if it has none."""
        found: list[Entry] = []
        await self._entries(self.horizon, lambda entry: found.__setitem__(slice(None), [entry]))
        return found[0] if found else None

    async def _entries(self, stop: int, use: Callable[[Entry], None]) -> None:
        """Call `use` with each entry before `stop`: those of the copy, then those of the topic."""
        log, scheduler = self._topic.log, self._topic.scheduler
        index = 0 if self.log is not None else log.first
        while index < stop:
            done = scheduler.completion()
            if index < self.horizon:
                behind = self.horizon
                self.read(index, done.resolve)
            else:
                behind = min(index + _MANY, stop)
                log.read(index, behind, done.resolve)
            entries: list[Entry] = await done
            for entry in entries:
                if entry.metadata is None or not self._topic.is_aborted(entry.index, entry.metadata):
                    use(entry)
            index = entries[-1].index + 1 if entries else behind

    # -- making it

    async def run(self) -> None:
        """Compact the topic as it is now."""
        if self.status == "RUNNING":
            return
        scheduler, began = self._topic.scheduler, self._topic.scheduler.time_ms
        self.status, self.error = "RUNNING", ""
        try:
            await self._run()
        except Exception as error:
            self.status, self.error = "ERROR", str(error)
            self.failed_ms = scheduler.time_ms
            raise
        finally:
            self.duration_ms = scheduler.time_ms - began
        self.status, self.succeeded_ms = "SUCCESS", scheduler.time_ms

    async def _run(self) -> None:
        topic, journal = self._topic, self._topic.journal
        cursor = topic.compaction_cursor()
        stop = topic.readable
        latest: dict[bytes, tuple[int, int]] = {}
        self.removed_messages = 0

        def note(entry: Entry) -> None:
            for at, (key, empty) in enumerate(_keys(entry)):
                if empty or not key or key in latest:
                    self.removed_messages += 1
                if empty:
                    latest.pop(key, None)
                elif key:
                    latest[key] = entry.index, at

        await self._entries(stop, note)
        number = journal.next_number("log") + 1

        def keep(entry: Entry) -> None:
            data = _kept(entry, latest)
            if data is not None:
                journal.append(entry_key(number, entry.index), data)

        await self._entries(stop, keep)
        if topic.closed:  # whoever loads it next knows nothing of this copy
            self._forget(number)
            return
        former = self.log
        journal.put("compacted", str(topic.log.number), {"log": number, "horizon": stop, "former": former})
        await journal.synced()
        self.log, self.horizon = number, stop
        self._forget(former)  # not before: it may be being read
        cursor.ack_before(stop)
        topic.trim()

    def delete(self) -> None:
        """Delete the copy."""
        self._forget(self.log)
        self._topic.journal.delete("compacted", str(self._topic.log.number))


def _is_batch(metadata: MessageMetadata) -> bool:
    """Whether the messages in an entry can be told apart."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def _text(value: str | bytes) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _keys(entry: Entry) -> Iterator[tuple[bytes, bool]]:
    """Of each message in an entry: its key (empty: none), and whether it deletes that key."""
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
    """The messages of a batch; it ends early if the batch is damaged."""
    payload = entry.payload
    try:
        if metadata.compression:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        at = 0
        for _ in range(metadata.num_messages_in_batch):
            stop = at + 4 + int.from_bytes(payload[at : at + 4], "big")
            single = SingleMessageMetadata.FromString(payload[at + 4 : stop])
            at = stop + max(single.payload_size, 0)
            if stop > len(payload) or at > len(payload):
                return
            yield single, payload[stop:at]
    except (PayloadError, DecodeError):
        return


def _kept(entry: Entry, latest: dict[bytes, tuple[int, int]]) -> bytes | None:
    """What the copy has of an entry; None if nothing."""
    metadata = entry.metadata
    stays = [latest.get(key) == (entry.index, at) for at, (key, _) in enumerate(_keys(entry))]
    if metadata is None or not any(stays):
        return None
    if all(stays) or not _is_batch(metadata):
        return entry.data
    return _thinned(entry, metadata, stays)


def _thinned(entry: Entry, metadata: MessageMetadata, stays: list[bool]) -> bytes:
    """A batch without the payloads of the messages that do not stay."""
    pieces = []
    for (single, payload), kept in zip(_singles(entry, metadata), stays, strict=False):
        if not kept:
            single, payload = SingleMessageMetadata(payload_size=0, compacted_out=True), b""
        head = single.SerializeToString()
        pieces += [struct.pack(">I", len(head)), head, payload]
    own = MessageMetadata()
    own.CopyFrom(metadata)
    body = Stamp("", metadata.compression).compress(own, b"".join(pieces))
    head = own.SerializeToString()
    covered = b"".join((struct.pack(">I", len(head)), head, body))
    return entry.data[: entry.at] + MAGIC_CHECKSUM + struct.pack(">I", crc32c(covered)) + covered
