"""Entries built from messages: compression, batching, chunking. The inverse of `payload`.

    one message   MessageMetadata with all its fields, payload compressed
    batch         per message [SIZE 4][SingleMessageMetadata][payload], compressed as a whole; the entry
                  has the key and ordering key of its first message
    chunks        a compressed payload, split; each chunk has the message's metadata, a uuid and its number

A batch of one message is sent as a plain message. Sources: the binary protocol specification, "Batched
messages"; PIP-37 for chunks; the Java client for what they leave open.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata

_u32: Final = struct.Struct(">I").pack
_LOCAL: Final = ["__local__"]
"""The value of replicate_to for a message that must not be replicated."""


@dataclass(slots=True)
class Outgoing:
    """A message to send. Times are ms since the epoch. `key_is_base64`: `key` is a binary key in base64."""

    payload: bytes
    key: str | None = None
    key_is_base64: bool = False
    ordering_key: bytes | None = None
    properties: Sequence[tuple[str, str]] = ()
    event_time: int = 0
    deliver_at: int | None = None
    sequence_id: int | None = None
    null: bool = False
    replicate: bool = True

    @property
    def weight(self) -> int:
        """About how many bytes it adds to a batch: payload, keys, properties."""
        if self.is_plain:
            return len(self.payload)
        pairs = sum(8 + 3 * (len(name) + len(value)) for name, value in self.properties)
        return 32 + len(self.payload) + 3 * len(self.key or "") + len(self.ordering_key or b"") + pairs

    @property
    def is_plain(self) -> bool:
        """Whether it has no key, ordering key, properties or event time, and is not null."""
        return not (
            self.key is not None or self.properties or self.event_time or self.null or self.ordering_key
        )


@dataclass(frozen=True)
class Stamp:
    """The values that all entries of a producer share: its name, codec, schema version and transaction."""

    producer_name: str
    codec: int = CompressionType.NONE
    schema_version: bytes = b""
    txn: tuple[int, int] | None = None
    """Transaction id: (most significant bits, least significant bits)."""

    def metadata(self, sequence_id: int, publish_time: int) -> MessageMetadata:
        """Make metadata with the fields that every entry of the producer has; `publish_time` in ms."""
        metadata = MessageMetadata(
            producer_name=self.producer_name, sequence_id=sequence_id, publish_time=publish_time
        )
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if self.txn is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self.txn
        return metadata

    def compress(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        """Compress `payload`; set codec and size in `metadata`. An empty payload is not compressed."""
        if not self.codec or not payload:  # some clients cannot read a compressed empty payload
            return payload
        metadata.compression = self.codec  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        return _CODECS[self.codec](payload)


def _describe(metadata: Any, message: Outgoing) -> None:
    """Set the fields that MessageMetadata and SingleMessageMetadata share."""
    if message.key is not None:
        metadata.partition_key = message.key
        if message.key_is_base64:
            metadata.partition_key_b64_encoded = True
    if message.ordering_key:
        metadata.ordering_key = message.ordering_key
    if message.event_time:
        metadata.event_time = message.event_time
    if message.null:
        metadata.null_value = True
    for key, value in message.properties:
        metadata.properties.add(key=key, value=value)


def single_entry(
    stamp: Stamp, message: Outgoing, sequence_id: int, publish_time: int
) -> tuple[MessageMetadata, bytes]:
    """Build metadata and payload of an entry of one message; `publish_time` in ms."""
    metadata = stamp.metadata(sequence_id, publish_time)
    _describe(metadata, message)
    if message.deliver_at is not None:
        metadata.deliver_at_time = message.deliver_at
    if not message.replicate:
        metadata.replicate_to.extend(_LOCAL)
    return metadata, stamp.compress(metadata, message.payload)


class Batch:
    """A batch of messages for one entry: `count` messages, `size` bytes before compression.

    `lowest` and `highest` are sequence ids.
    """

    __slots__ = ("_pieces", "_plain", "count", "first", "highest", "lowest", "size")

    def __init__(self) -> None:
        self.count = self.size = 0
        self.lowest = self.highest = 0
        self.first: Outgoing | None = None
        self._pieces: list[bytes] = []
        self._plain = SingleMessageMetadata()

    def add(self, message: Outgoing, sequence_id: int) -> None:
        """Add a message."""
        payload = message.payload
        if message.is_plain:
            single = self._plain  # reused, as only two numbers differ
        else:
            single = SingleMessageMetadata()
            _describe(single, message)
        single.payload_size = len(payload)
        single.sequence_id = sequence_id
        head = single.SerializeToString()
        self._pieces += (_u32(len(head)), head, payload)
        self.size += 4 + len(head) + len(payload)
        if self.first is None:
            self.first, self.lowest, self.highest = message, sequence_id, sequence_id
        else:
            self.lowest = min(self.lowest, sequence_id)
            self.highest = max(self.highest, sequence_id)
        self.count += 1

    def entry(self, stamp: Stamp, publish_time: int) -> tuple[MessageMetadata, bytes]:
        """Build metadata and payload of the entry; `publish_time` in ms."""
        first = self.first
        assert first is not None
        if self.count == 1:
            return single_entry(stamp, first, self.lowest, publish_time)
        metadata = stamp.metadata(self.lowest, publish_time)
        metadata.highest_sequence_id = self.highest
        metadata.num_messages_in_batch = self.count
        if first.key is not None:
            metadata.partition_key = first.key
            metadata.partition_key_b64_encoded = first.key_is_base64
        if first.ordering_key:
            metadata.ordering_key = first.ordering_key
        if not first.replicate:
            metadata.replicate_to.extend(_LOCAL)
        return metadata, stamp.compress(metadata, b"".join(self._pieces))


def chunk(metadata: MessageMetadata, payload: bytes, limit: int) -> Iterator[tuple[MessageMetadata, bytes]]:
    """Split an entry into chunks with at most `limit` bytes of payload; a smaller one is not split.

    All chunks share `metadata`, which is changed for each: use it before the next chunk is taken.
    """
    if len(payload) <= limit:
        yield metadata, payload
        return
    parts = range(0, len(payload), limit)
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg = len(parts)
    metadata.total_chunk_msg_size = len(payload)
    for number, start in enumerate(parts):
        metadata.chunk_id = number
        yield metadata, payload[start : start + limit]


def _lz4(data: bytes) -> bytes:
    import lz4.block

    return bytes(lz4.block.compress(data, store_size=False))


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def _snappy(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(data))


_CODECS: Final[dict[int, Callable[[bytes], bytes]]] = {
    CompressionType.LZ4: _lz4,
    CompressionType.ZLIB: zlib.compress,
    CompressionType.ZSTD: _zstd,
    CompressionType.SNAPPY: _snappy,
}
