"""An entry opened: decompressed, taken apart into its messages, joined from its chunks.

    payload of an entry   encrypted? then as it is. Else decompressed to MessageMetadata.uncompressed_size
    batch                 num_messages_in_batch present (1 counts too): per message
                          [SIZE 4][SingleMessageMetadata][payload of payload_size bytes]
    chunks                one compressed payload cut into pieces, each in an entry of its own, joined by uuid

Everything here is bounded: what a codec puts out by `uncompressed_size` and `MAX_PAYLOAD`, a batch by
its bytes, chunks by `ChunkJoiner.MAX_BYTES` over all messages that wait for more, and all that is opened
of one input by a `Budget`.
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.fields import as_text, unknown_fields
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

MAX_METADATA: Final = 1024 * 1024
"""Bytes of a SingleMessageMetadata that is parsed: two bytes can make a property of a hundred."""

MESSAGE_COST: Final = 1024
"""What opening a message of a batch costs of a `Budget`, beside its bytes."""

PROPERTY_COST: Final = 256
"""What a property of such a message costs of it."""

WIDE_COST: Final = 3
"""What a byte of its metadata costs of it where that is long, and one of a payload that is shown and is not
ASCII: as text they may take much more."""

ESCAPED_COST: Final = 16
"""What a byte costs of it that stands in a text and is no UTF-8, and so is shown as four characters."""

UNKNOWN_COST: Final = 64
"""What a byte of its metadata costs of it where that has fields the schema does not know."""

_USUAL_METADATA: Final = 64  # bytes that are not worth a look

_SNAPPY_FRAMING: Final = b"\xff\x06\x00\x00sNaPpY"
"""What the framing format begins with (github.com/google/snappy, framing_format.txt): the Rust client's."""

_CHUNK_COST: Final = 192  # bytes of keeping a chunk, beside its payload

_u32_at: Final = struct.Struct(">I").unpack_from


@dataclass(slots=True)
class Message:
    """One application message of an entry.

    `index` is its place in the batch, None outside of one; `metadata` its SingleMessageMetadata in a
    batch, else the entry's MessageMetadata; `payload` its bytes, None where it could not be had;
    `skipped` that MESSAGE.ack_set masks it: the consumer has acknowledged it before; `head` the bytes of its
    metadata in a batch.
    """

    index: int | None
    metadata: Any
    payload: bytes | None
    skipped: bool = False
    head: int = 0


class Entry(NamedTuple):
    """What an entry holds: its messages, and texts on anything odd.

    An encrypted entry is one message whose payload is the ciphertext: `metadata.encryption_keys` tells.
    `corrupt` tells that its bytes are not what its metadata says. A payload that is None although the entry
    is not corrupt was left unopened: it is larger than what is opened, or memory was short.
    """

    messages: list[Message]
    notes: list[str]
    corrupt: bool = False


class PayloadError(ValueError):
    """A payload that its codec cannot read; internal, becomes a note."""


class Budget:
    """How much may be opened of an input: a few bytes can ask for very much.

    The unit is a byte of decompressed payload; a message costs `MESSAGE_COST` as well, and whoever shows
    payloads spends what that takes. The first MiB of input may use `START`; each byte after it adds `ratio`.
    Traffic of clients stays far below that.

    `unopened` counts the entries that were not opened, or not to their end, for lack of it.
    """

    START: Final = 160 * 1024 * 1024
    FREE: Final = 1024 * 1024
    RATIO: Final = 1024

    def __init__(self, ratio: int = RATIO) -> None:
        self.left = self.START
        self.unopened = 0
        self._ratio = ratio
        self._free = self.FREE

    def read(self, size: int) -> None:
        """`size` more bytes of input were read."""
        if self._free >= size:
            self._free -= size
        else:
            self.left += (size - self._free) * self._ratio
            self._free = 0

    def spend(self, cost: int) -> bool:
        """Take `cost`, if that much is left; gives whether it was."""
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def refuse(self, what: str) -> str:
        """Count an entry as left unopened; gives the note that says so of `what`."""
        self.unopened += 1
        return f"{what}: too much was opened for so few bytes read (--payload-ratio)"


class PayloadTooLarge(PayloadError):
    """A payload that may be intact, but is larger than what is decompressed."""


def open_entry(frame: Frame, budget: Budget | None = None) -> Entry:
    """The messages of a SEND or MESSAGE. Never raises: what cannot be read is said in the notes.

    A chunk has none, but the last one of a message has that message if all chunks were seen.
    What `budget` has no room for stays unopened, and is noted.
    """
    try:
        return _opened(frame, budget)
    except MemoryError:
        return Entry([Message(None, frame.metadata, None)], ["too little memory to open the payload"])


def _opened(frame: Frame, budget: Budget | None) -> Entry:
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
        if budget is not None and not budget.spend(metadata.uncompressed_size):
            note = budget.refuse(f"{metadata.uncompressed_size} bytes left compressed")
            return Entry([Message(None, metadata, None)], [*notes, note])
        try:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        except PayloadError as error:
            corrupt = not isinstance(error, PayloadTooLarge)
            return Entry([Message(None, metadata, None)], [*notes, str(error)], corrupt)
    if not metadata.HasField("num_messages_in_batch"):
        return Entry([Message(None, metadata, payload)], notes)
    count = metadata.num_messages_in_batch
    masked = frame.base.message.ack_set if frame.type == 9 and frame.base is not None else ()
    unopened = budget.unopened if budget is not None else 0
    messages = _batch(payload, count, masked, notes, budget)
    whole = len(messages) >= min(count, MAX_MESSAGES)
    return Entry(messages, notes, corrupt=not whole and (budget is None or budget.unopened == unopened))


def _batch(
    payload: bytes, count: int, ack_set: Any, notes: list[str], budget: Budget | None
) -> list[Message]:
    messages: list[Message] = []
    at, end, most = 0, len(payload), min(count, MAX_MESSAGES)
    while at < end and len(messages) < most:
        index = len(messages)
        start = at + 4
        stop = start + (_u32_at(payload, at)[0] if start <= end else 0)
        if start > end or stop > end:
            why = "is cut" if start > end else f"says {stop - start} bytes, {end - start} are left"
            notes.append(f"message {index} of the batch: the size of its metadata {why}")
            return messages
        if stop - start > MAX_METADATA:
            notes.append(f"message {index} of the batch: metadata of {stop - start} bytes is not parsed")
            return messages
        try:
            single = SingleMessageMetadata.FromString(payload[start:stop])
        except DecodeError as error:
            why = breaks(payload, start, stop, SingleMessageMetadata.DESCRIPTOR) or str(error)
            notes.append(f"message {index} of the batch: its metadata does not parse: {why}")
            return messages
        if budget is not None and not budget.spend(_cost(single, stop - start)):
            notes.append(budget.refuse(f"{index} of {count} messages opened"))
            return messages
        size = single.payload_size
        at = stop + max(size, 0)
        if at > end:
            notes.append(f"message {index} of the batch: its payload runs beyond the batch")
        elif size <= 0 and (size or not single.HasField("payload_size")):
            notes.append(f"message {index} of the batch: it has no payload size, or a negative one")
        skipped = bool(ack_set) and _masked(ack_set, index)
        messages.append(Message(index, single, payload[stop:at], skipped, stop - start))
    if len(messages) != count:
        notes.append(f"{len(messages)} messages in a batch that says {count}")
    elif at < end:
        notes.append(f"{end - at} bytes behind the last message of the batch")
    return messages


def _cost(single: SingleMessageMetadata, size: int) -> int:
    """What a message with this metadata, of `size` bytes, costs of a `Budget`."""
    cost = MESSAGE_COST + PROPERTY_COST * len(single.properties)
    if size <= _USUAL_METADATA:
        return cost
    if unknown_fields(single):
        cost += UNKNOWN_COST * size
    if not _is_text(single):
        cost += ESCAPED_COST * size
    return cost + WIDE_COST * size


def _is_text(single: Any) -> bool:
    """Whether all texts in the metadata of a message are UTF-8."""
    try:
        single.ordering_key.decode()
    except UnicodeDecodeError:
        return False
    if isinstance(single.partition_key, bytes):
        return False
    return not any(isinstance(each.key, bytes) or isinstance(each.value, bytes) for each in single.properties)


def _masked(ack_set: Any, index: int) -> bool:
    """Whether batch index `index` is acknowledged: its bit is 0, or beyond the last word (PIP-54)."""
    word = index >> 6
    return word >= len(ack_set) or not ack_set[word] >> (index & 63) & 1


def decompress(codec: int, data: bytes, size: int) -> bytes:
    """`data` decompressed by Pulsar's codec number `codec` to the `size` bytes that its metadata says.

    Raises PayloadError if it is not of that codec or not of that size, PayloadTooLarge if that is more than
    `MAX_PAYLOAD`, MemoryError if there is too little memory.
    """
    name = CompressionType.DESCRIPTOR.values_by_number[codec].name
    if size > MAX_PAYLOAD:
        raise PayloadTooLarge(f"{name} payload of {size} bytes: more than {MAX_PAYLOAD} are not decompressed")
    try:
        whole = _CODECS[codec](data, size)
    except (PayloadError, MemoryError):
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
    try:
        return reader.read(size + 1)
    except zstandard.ZstdError as error:
        if "not enough memory" in str(error):  # ZSTD_error_memory_allocation, without a type of its own
            raise MemoryError from None
        raise


def _snappy(data: bytes, size: int) -> bytes:
    import cramjam

    if data.startswith(_SNAPPY_FRAMING):
        whole = bytearray(size)
        return bytes(whole[: cramjam.snappy.decompress_into(data, whole)])
    said, _ = read_varint(data, 0, min(len(data), 5))
    if said != size:
        raise PayloadError(f"SNAPPY payload of {said} bytes where uncompressed_size says {size}")
    whole = bytearray(size)  # ours, for cramjam panics where it cannot have the memory
    return bytes(memoryview(whole)[: cramjam.snappy.decompress_raw_into(data, whole)])


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

    __slots__ = ("expected", "ids", "parts", "size")

    def __init__(self) -> None:
        self.expected = 0
        self.ids: list[tuple[int, int]] = []
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

    def add(
        self, frame: Frame, metadata: MessageMetadata, owner: int, place: tuple[int, int] | None = None
    ) -> list[tuple[int, int]]:
        """Take the chunk in `frame` of producer or consumer `owner`; the last one gets `frame.joined`.

        `place` is the chunk's (ledger, entry), where they are asked for: with the last chunk those of all
        are given.
        """
        none: list[tuple[int, int]] = []
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
            return none
        if chunk < chunks.expected:
            frame.note(f"chunk {chunk} of message {as_text(metadata.uuid)} once more")
            return none
        chunks.expected += 1
        if place is not None:
            chunks.ids.append(place)
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
        return none if frame.joined is None else chunks.ids

    def _drop(self, key: tuple[int, bool, int, str]) -> None:
        chunks = self._waiting.pop(key, None)
        if chunks is not None:
            self._bytes -= chunks.size
