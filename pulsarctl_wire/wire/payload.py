"""An entry opened: decompressed, taken apart into its messages, joined from its chunks.

    payload of an entry   encrypted? then as it is. Else decompressed to MessageMetadata.uncompressed_size
    batch                 num_messages_in_batch present (1 counts too): per message
                          [SIZE 4][SingleMessageMetadata][payload of payload_size bytes]
    chunks                one compressed payload cut into pieces, each in an entry of its own, joined by uuid

Everything here is bounded: what a codec puts out by `uncompressed_size` and `MAX_PAYLOAD`, a batch by
its bytes, chunks by `ChunkJoiner.MAX_BYTES` over all messages that wait for more.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsarctl_wire.wire.varint import breaks, read_varint

MAX_MESSAGES: Final = 65_536
"""Messages of a batch that are opened: six bytes can claim to be one."""

MAX_PAYLOAD: Final = 64 * 1024 * 1024
"""Bytes of the largest payload that is decompressed."""

_SNAPPY_FRAMING: Final = b"\xff\x06\x00\x00sNaPpY"
"""What the framing format begins with (github.com/google/snappy, framing_format.txt): the Rust client's."""

_CHUNK_COST: Final = 64  # bytes of keeping a chunk, beside its payload

_u32_at: Final = struct.Struct(">I").unpack_from


@dataclass(slots=True)
class Message:
    """One application message of an entry.

    `index` is its place in the batch, None outside of one; `metadata` its SingleMessageMetadata in a
    batch, else the entry's MessageMetadata; `payload` its bytes, None where it could not be had;
    `skipped` that MESSAGE.ack_set masks it: the consumer has acknowledged it before.
    """

    index: int | None
    metadata: Any
    payload: bytes | None
    skipped: bool = False


class Entry(NamedTuple):
    """What an entry holds: its messages, and texts on anything odd.

    An encrypted entry is one message whose payload is the ciphertext: `metadata.encryption_keys` tells.
    """

    messages: list[Message]
    notes: list[str]


class PayloadError(ValueError):
    """A payload that its codec cannot read; internal, becomes a note."""


def open_entry(frame: Frame) -> Entry:
    """The messages of a SEND or MESSAGE. Never raises: what cannot be read is said in the notes.

    A chunk has none, but the last one of a message has that message if all chunks were seen.
    """
    metadata = frame.metadata
    if metadata is None or not frame.payload_at or frame.partial:
        return Entry([], [])
    payload: bytes = frame.payload
    if metadata.num_chunks_from_msg > 1:
        if frame.joined is None:
            return Entry([], [])
        payload = frame.joined
    if metadata.encryption_keys:
        return Entry([Message(None, metadata, payload)], [])
    notes: list[str] = []
    if metadata.compression:
        if metadata.compression == CompressionType.SNAPPY and payload.startswith(_SNAPPY_FRAMING):
            notes.append("SNAPPY in its framing format; the Java and C++ clients use the raw one")
        try:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        except PayloadError as error:
            return Entry([Message(None, metadata, None)], [*notes, str(error)])
    if not metadata.HasField("num_messages_in_batch"):
        return Entry([Message(None, metadata, payload)], notes)
    masked = frame.base.message.ack_set if frame.type == 9 and frame.base is not None else ()
    return Entry(_batch(payload, metadata.num_messages_in_batch, masked, notes), notes)


def _batch(payload: bytes, count: int, ack_set: Any, notes: list[str]) -> list[Message]:
    messages: list[Message] = []
    at, end = 0, len(payload)
    while at < end and len(messages) < min(count, MAX_MESSAGES):
        start = at + 4
        stop = start + (_u32_at(payload, at)[0] if start <= end else 0)
        if start > end or stop > end:
            size = "is cut" if start > end else f"says {stop - start} bytes, {end - start} are left"
            notes.append(f"message {len(messages)} of the batch: the size of its metadata {size}")
            return messages
        try:
            single = SingleMessageMetadata.FromString(payload[start:stop])
        except DecodeError as error:
            why = breaks(payload, start, stop, SingleMessageMetadata.DESCRIPTOR) or error
            notes.append(f"message {len(messages)} of the batch: its metadata does not parse: {why}")
            return messages
        at = stop + max(single.payload_size, 0)
        if at > end:
            notes.append(f"message {len(messages)} of the batch: its payload runs beyond the batch")
        elif single.payload_size < 0 or not single.HasField("payload_size"):
            notes.append(f"message {len(messages)} of the batch: it has no payload size, or a negative one")
        index = len(messages)
        messages.append(Message(index, single, payload[stop:at], _masked(ack_set, index)))
    if len(messages) != count:
        notes.append(f"{len(messages)} messages in a batch that says {count}")
    elif at < end:
        notes.append(f"{end - at} bytes behind the last message of the batch")
    return messages


def _masked(ack_set: Any, index: int) -> bool:
    """Whether batch index `index` is acknowledged: its bit is 0, or beyond the last word (PIP-54)."""
    if not ack_set:
        return False
    word = index >> 6
    return word >= len(ack_set) or not ack_set[word] >> (index & 63) & 1


def decompress(codec: int, data: bytes, size: int) -> bytes:
    """`data` decompressed by Pulsar's codec number `codec` to the `size` bytes that its metadata says.

    Raises PayloadError if it is not of that codec, not of that size, or larger than `MAX_PAYLOAD`.
    """
    name = CompressionType.DESCRIPTOR.values_by_number[codec].name
    if size > MAX_PAYLOAD:
        raise PayloadError(f"{name} payload of {size} bytes: more than {MAX_PAYLOAD} are not decompressed")
    try:
        whole = _CODECS[codec](data, size)
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(f"the payload does not decompress as {name}: {_first_line(error)}") from error
    if len(whole) != size:
        more = "or more " if len(whole) > size else ""
        raise PayloadError(f"{name} payload of {len(whole)} {more}bytes where uncompressed_size says {size}")
    return whole


def _lz4(data: bytes, size: int) -> bytes:
    import lz4.block

    return bytes(lz4.block.decompress(data, uncompressed_size=size))


def _zlib(data: bytes, size: int) -> bytes:
    # Java ends its streams by a flush, without final block or checksum
    return zlib.decompressobj().decompress(data, size + 1)


def _zstd(data: bytes, size: int) -> bytes:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=2 * MAX_PAYLOAD).stream_reader(data)
    return reader.read(size + 1)


def _snappy(data: bytes, size: int) -> bytes:
    import cramjam

    if data.startswith(_SNAPPY_FRAMING):
        whole = bytearray(size)
        return bytes(whole[: cramjam.snappy.decompress_into(data, whole)])
    said, _ = read_varint(data, 0, min(len(data), 5))
    if said != size:
        raise PayloadError(f"SNAPPY payload of {said} bytes where uncompressed_size says {size}")
    return bytes(cramjam.snappy.decompress_raw(data))


_CODECS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    CompressionType.LZ4: _lz4,
    CompressionType.ZLIB: _zlib,
    CompressionType.ZSTD: _zstd,
    CompressionType.SNAPPY: _snappy,
}


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class _Chunks:
    """The chunks of one message so far."""

    __slots__ = ("expected", "parts", "size")

    def __init__(self) -> None:
        self.expected = 0
        self.parts: list[bytes] = []
        self.size = 0


class ChunkJoiner:
    """Joins the chunks of messages, told apart by connection, direction, owner and uuid.

    With `keep` False it only tells when a message is whole (`joined` is then empty): for counting.
    """

    MAX_BYTES: Final = 64 * 1024 * 1024
    MAX_MESSAGES: Final = 4_096

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep
        self._waiting: dict[tuple[int, bool, int, str], _Chunks] = {}
        self._bytes = 0

    def add(self, frame: Frame, metadata: MessageMetadata, owner: int) -> None:
        """Take the chunk in `frame` of producer or consumer `owner`; the last one gets `frame.joined`."""
        chunk, count = metadata.chunk_id, metadata.num_chunks_from_msg
        key = frame.connection.index, frame.to_broker, owner, as_text(metadata.uuid[:256])
        chunks = self._waiting.get(key)
        if chunk == 0:
            self._drop(key)
            chunks = self._waiting[key] = _Chunks()
        if chunks is None or chunk > chunks.expected:
            expected = chunks.expected if chunks else 0
            frame.note(f"chunk {chunk} of message {as_text(metadata.uuid)} without chunk {expected}")
            self._drop(key)
            return
        if chunk < chunks.expected:
            frame.note(f"chunk {chunk} of message {as_text(metadata.uuid)} once more")
            return
        chunks.expected += 1
        if self._keep:
            chunks.parts.append(frame.payload)
            chunks.size += len(chunks.parts[-1]) + _CHUNK_COST
            self._bytes += len(chunks.parts[-1]) + _CHUNK_COST
        if chunks.expected == count:
            frame.joined = b"".join(chunks.parts)
            self._drop(key)
        while self._bytes > self.MAX_BYTES or len(self._waiting) > self.MAX_MESSAGES:
            frame.note("too many chunks wait for more: the oldest message is given up")
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: tuple[int, bool, int, str]) -> None:
        chunks = self._waiting.pop(key, None)
        if chunks is not None:
            self._bytes -= chunks.size
