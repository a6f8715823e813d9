"""Entries, opened: they are decompressed, batches split into messages, and chunks joined.

    payload of an entry   decrypted, if a private key opens it; else unchanged if it is encrypted
                          decompressed to MessageMetadata.uncompressed_size
    batch                 if num_messages_in_batch is present (even as 1): per message
                          [SIZE 4][SingleMessageMetadata][payload of payload_size bytes]
    chunks                one compressed payload, split into several entries; each is encrypted alone

Everything here is bounded: the output of a codec by `uncompressed_size` and `MAX_PAYLOAD`, a batch by
its bytes, and everything that is opened in one input by a `Budget`.
"""

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import MESSAGE
from pulsarctl_wire.wire.encryption import KeyRing, Opened, SealedError, read_seal
from pulsarctl_wire.wire.fields import unknown_fields
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsarctl_wire.wire.varint import describe_break, read_varint

MAX_MESSAGES: Final = 65_536
"""Maximum number of messages of a batch that are opened: six bytes can claim to be one."""

MAX_PAYLOAD: Final = 64 * 1024 * 1024
"""Bytes of the largest payload that is decompressed."""

MAX_METADATA: Final = 1024 * 1024
"""Bytes of the largest SingleMessageMetadata that is parsed: a property of two bytes can take a hundred."""

MESSAGE_COST: Final = 1024
"""What each message of a batch costs of a `Budget`, in addition to its bytes."""

PROPERTY_COST: Final = 256
"""What each property of such a message costs of a `Budget`."""

WIDE_COST: Final = 3
"""What each byte of such a message's metadata costs if that is long, and each byte of a shown payload that is
not all ASCII: as text they may take much more memory."""

ESCAPED_COST: Final = 16
"""What each byte costs of texts that are not UTF-8: an invalid byte is shown as four characters."""

UNKNOWN_COST: Final = 64
"""What each byte of such a message's metadata costs if it has unknown fields."""

_USUAL_METADATA: Final = 64  # bytes; metadata up to this size is not checked, and costs nothing extra

SNAPPY_FRAMING: Final = b"\xff\x06\x00\x00sNaPpY"
"""The start of Snappy's framing format (google/snappy, framing_format.txt), which the Rust client uses."""

_MAX_RATIOS: Final[dict[int, int]] = {CompressionType.LZ4: 255, CompressionType.SNAPPY: 32}
"""The most bytes that a compressed byte can become, for codecs whose output is allocated beforehand."""

_MAX_KEPT_WINDOW: Final = 8 * 1024 * 1024  # bytes that a ZSTD decompressor may keep for its next use

_u32_at: Final = struct.Struct(">I").unpack_from


@dataclass(slots=True)
class Message:
    """One application message of an entry.

    `index` is its position in the batch; None if there is no batch. `metadata` is its SingleMessageMetadata
    in a batch, else the entry's MessageMetadata. `payload` is None if it could not be read. `skipped`:
    MESSAGE.ack_set masks it, as the consumer acknowledged it earlier. `metadata_size` is the
    size of its metadata in a batch, in bytes; 0 if there is no batch.
    """

    index: int | None
    metadata: Any
    payload: bytes | None
    skipped: bool = False
    metadata_size: int = 0


class Entry(NamedTuple):
    """The contents of an entry: its messages, and notes on anything odd.

    An encrypted entry (with `metadata.encryption_keys`) is one message whose payload is the ciphertext, if no
    private key `opened` it. `corrupt`: its bytes are not what its metadata says. If a payload is None
    although the entry is not corrupt, it was too large, the budget was used up, or memory ran out.
    `is_limited`: messages are missing, or not opened, because the budget was used up or one has too large
    metadata.
    """

    messages: list[Message]
    notes: list[str]
    corrupt: bool = False
    opened: Opened | None = None
    is_limited: bool = False


class PayloadError(ValueError):
    """A payload that its codec cannot read. Internal: it becomes a note."""


class Budget:
    """A limit on what is opened of one input: a few bytes can decompress to very many.

    The unit is a byte of decompressed payload. Each message of a batch also costs `MESSAGE_COST`, and code
    that shows payloads subtracts their costs from `left`. The first MiB of input may use `START`; each byte
    after it adds `ratio`. Traffic of real clients stays far below that.

    `unopened` counts the entries that were not opened, or only in part, because the budget was used up.
    """

    START: Final = 160 * 1024 * 1024
    FREE: Final = 1024 * 1024
    RATIO: Final = 1024

    def __init__(self, ratio: int = RATIO) -> None:
        self.left = self.START
        self.unopened = 0
        self._ratio = ratio
        self._free = self.FREE

    def count_input(self, size: int) -> None:
        """Note that `size` more bytes of input were read."""
        if self._free >= size:
            self._free -= size
        else:
            self.left += (size - self._free) * self._ratio
            self._free = 0

    def spend(self, cost: int) -> bool:
        """Subtract `cost` if that much is left. Returns whether it is."""
        if cost > self.left:
            return False
        self.left -= cost
        return True

    def refuse(self, text: str) -> str:
        """Count an entry as unopened. Returns the note for it, which begins with `text`."""
        self.unopened += 1
        return f"{text}: too much was opened for so few bytes read (--payload-ratio)"


class PayloadTooLarge(PayloadError):
    """A payload that may be intact, but is too large to be decompressed."""


def open_entry(frame: Frame, budget: Budget | None = None, keys: KeyRing | None = None) -> Entry:
    """Open the messages of a SEND or MESSAGE. Never raises: the notes say what could not be read.

    A chunk has no messages, except that the last chunk has the whole message if all chunks were seen.
    What exceeds `budget` is not opened, and noted; so is what is encrypted and `keys` do not open.
    """
    try:
        return _open(frame, budget, keys)
    except MemoryError:
        return Entry([Message(None, frame.metadata, None)], ["too little memory to open the payload"])


def _open(frame: Frame, budget: Budget | None, keys: KeyRing | None) -> Entry:
    metadata = frame.metadata
    if metadata is None or not frame.payload_at or frame.partial:
        return Entry([], [])
    payload: bytes = frame.payload
    if metadata.num_chunks_from_msg > 1:
        if frame.joined is None:
            return Entry([], [])
        payload = frame.joined
    if not metadata.encryption_keys:
        return _unpack(frame, metadata, payload, budget)
    if keys is None:
        return Entry([Message(None, metadata, payload)], [])
    try:
        opened_payload, opened = keys.open(frame.seals or [(read_seal(metadata), len(payload))], payload)
    except SealedError as error:
        return Entry([Message(None, metadata, payload)], [f"still encrypted: {error}"])
    return _unpack(frame, metadata, opened_payload, budget)._replace(opened=opened)


def _unpack(frame: Frame, metadata: MessageMetadata, payload: bytes, budget: Budget | None) -> Entry:
    """Decompress a payload and split it into messages."""
    notes: list[str] = []
    if metadata.compression:
        if metadata.compression == CompressionType.SNAPPY and payload.startswith(SNAPPY_FRAMING):
            notes.append("SNAPPY in its framing format; the Java and C++ clients use the raw one")
        if budget is not None and not budget.spend(metadata.uncompressed_size):
            note = budget.refuse(f"{metadata.uncompressed_size} bytes left compressed")
            return Entry([Message(None, metadata, None)], [*notes, note], is_limited=True)
        try:
            payload = decompress(metadata.compression, payload, metadata.uncompressed_size)
        except PayloadError as error:
            corrupt = not isinstance(error, PayloadTooLarge)
            return Entry([Message(None, metadata, None)], [*notes, str(error)], corrupt)
    if not metadata.HasField("num_messages_in_batch"):
        return Entry([Message(None, metadata, payload)], notes)
    count = metadata.num_messages_in_batch
    ack_set = frame.base.message.ack_set if frame.type == MESSAGE and frame.base is not None else ()
    messages, is_limited = _split_batch(payload, count, ack_set, notes, budget)
    is_complete = len(messages) >= min(count, MAX_MESSAGES)
    return Entry(messages, notes, corrupt=not (is_complete or is_limited), is_limited=is_limited)


def _split_batch(
    payload: bytes, count: int, ack_set: Any, notes: list[str], budget: Budget | None
) -> tuple[list[Message], bool]:
    """Return the messages of a batch, up to the first that is not read, and whether a limit is why.

    The limits are the budget and `MAX_METADATA`, but not `MAX_MESSAGES`.
    """
    messages: list[Message] = []
    pos, end, limit = 0, len(payload), min(count, MAX_MESSAGES)
    while pos < end and len(messages) < limit:
        index = len(messages)
        start = pos + 4
        stop = start + (_u32_at(payload, pos)[0] if start <= end else 0)
        if start > end or stop > end:
            reason = "is cut" if start > end else f"says {stop - start} bytes, {end - start} are left"
            notes.append(f"message {index} of the batch: the size of its metadata {reason}")
            return messages, False
        if stop - start > MAX_METADATA:
            notes.append(f"message {index} of the batch: metadata of {stop - start} bytes is not parsed")
            return messages, True
        try:
            single = SingleMessageMetadata.FromString(payload[start:stop])
        except DecodeError as error:
            reason = describe_break(payload, start, stop, SingleMessageMetadata.DESCRIPTOR) or str(error)
            notes.append(f"message {index} of the batch: its metadata does not parse: {reason}")
            return messages, False
        if budget is not None and not budget.spend(_cost(single, stop - start)):
            notes.append(budget.refuse(f"{index} of {count} messages opened"))
            return messages, True
        size = single.payload_size
        pos = stop + max(size, 0)
        if pos > end:
            notes.append(f"message {index} of the batch: its payload runs beyond the batch")
        elif size <= 0 and (size or not single.HasField("payload_size")):
            notes.append(f"message {index} of the batch: it has no payload size, or a negative one")
        skipped = bool(ack_set) and _is_acknowledged(ack_set, index)
        messages.append(Message(index, single, payload[stop:pos], skipped, stop - start))
    if len(messages) != count:
        notes.append(f"{len(messages)} messages in a batch that says {count}")
    elif pos < end:
        notes.append(f"{end - pos} bytes after the last message of the batch")
    return messages, False


def _cost(single: SingleMessageMetadata, size: int) -> int:
    """Return what a message with this metadata of `size` bytes costs of a `Budget`."""
    cost = message_cost(size) + PROPERTY_COST * len(single.properties)
    if size > _USUAL_METADATA and unknown_fields(single):
        cost += UNKNOWN_COST * size
    if size > _USUAL_METADATA and not _is_text(single):
        cost += ESCAPED_COST * size
    return cost


def message_cost(size: int) -> int:
    """Return what a message with usual metadata of `size` bytes and no properties costs of a `Budget`."""
    return MESSAGE_COST if size <= _USUAL_METADATA else MESSAGE_COST + WIDE_COST * size


def _is_text(single: Any) -> bool:
    """Return whether all texts in the metadata of a message are UTF-8."""
    try:
        single.ordering_key.decode()
    except UnicodeDecodeError:
        return False
    if isinstance(single.partition_key, bytes):
        return False
    return not any(isinstance(pair.key, bytes) or isinstance(pair.value, bytes) for pair in single.properties)


def _is_acknowledged(ack_set: Any, index: int) -> bool:
    """Return whether batch index `index` is acknowledged: its bit is 0, or beyond the last word (PIP-54)."""
    word = index >> 6
    return word >= len(ack_set) or not ack_set[word] >> (index & 63) & 1


def decompress(codec: int, data: bytes, size: int) -> bytes:
    """Decompress `data` with Pulsar's codec number `codec` to `size` bytes, its uncompressed_size.

    Raises PayloadError if the codec cannot read it or the size is wrong, PayloadTooLarge if `size` is more
    than `MAX_PAYLOAD`, and MemoryError if there is too little memory.
    """
    name = CompressionType.DESCRIPTOR.values_by_number[codec].name
    if size > MAX_PAYLOAD:
        raise PayloadTooLarge(f"{name} payload of {size} bytes: more than {MAX_PAYLOAD} are not decompressed")
    try:
        output = _CODECS[codec](data, size)
    except (PayloadError, MemoryError):
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise PayloadError(f"the payload does not decompress as {name}: {reason}") from error
    if len(output) != size:
        more = "or more " if len(output) > size else ""
        raise PayloadError(f"{name} payload of {len(output)} {more}bytes where uncompressed_size says {size}")
    return output


def decompressed_size(codec: int, data: bytes) -> int | None:
    """Return the bytes of `data` once decompressed; None if the codec cannot read it.

    A size above `MAX_PAYLOAD` is returned as `MAX_PAYLOAD` + 1, for SNAPPY and LZ4 as None.
    Raises MemoryError.
    """
    output = decompress_all(codec, data)
    return None if output is None else len(output)


def decompress_all(codec: int, data: bytes) -> bytes | None:
    """Decompress `data` to whatever size it has, without its uncompressed_size; None if the codec cannot.

    A result above `MAX_PAYLOAD` is cut one byte after it; for SNAPPY and LZ4 it is None. Raises MemoryError.
    """
    try:
        if codec == CompressionType.SNAPPY and not data.startswith(SNAPPY_FRAMING):
            size = read_varint(data, 0, min(len(data), 5))[0]
            return _snappy(data, size) if size <= MAX_PAYLOAD else None
        return _CODECS[codec](data, min(MAX_PAYLOAD, _MAX_RATIOS.get(codec, MAX_PAYLOAD) * len(data)))
    except MemoryError:
        raise
    except Exception:
        return None


def _lz4(data: bytes, size: int) -> bytes:
    import lz4.block

    return bytes(lz4.block.decompress(data, uncompressed_size=size))


def _zlib(data: bytes, size: int) -> bytes:
    # Java ends its streams with a flush, without a final block or checksum
    return zlib.decompressobj().decompress(data, size + 1)


def _zstd(data: bytes, size: int) -> bytes:
    import zstandard

    frame = zstandard.get_frame_parameters(data)
    is_large = frame.window_size > _MAX_KEPT_WINDOW
    decompressor = _new_zstd() if is_large else _zstd_of(get_ident())  # the latter keeps its memory
    if frame.content_size == size:  # the usual case; a reader is slower, but tells what is wrong
        with suppress(zstandard.ZstdError):
            output_bytes: bytes = decompressor.decompress(data)
            return output_bytes
    reader = decompressor.stream_reader(data)
    try:
        output: bytes = reader.read(size + 1)
    except zstandard.ZstdError as error:
        if "not enough memory" in str(error):  # ZSTD_error_memory_allocation, without a type of its own
            raise MemoryError from None
        raise
    return output


def _new_zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=2 * MAX_PAYLOAD)


@lru_cache(maxsize=16)
def _zstd_of(thread: int) -> Any:
    """Return the decompressor of a thread; making one takes five times as long as using it."""
    return _new_zstd()


def _snappy(data: bytes, size: int) -> bytes:
    import cramjam

    if data.startswith(SNAPPY_FRAMING):
        output = bytearray(size)
        return bytes(output[: cramjam.snappy.decompress_into(data, output)])
    stated, _ = read_varint(data, 0, min(len(data), 5))
    if stated != size:
        raise PayloadError(f"SNAPPY payload of {stated} bytes where uncompressed_size says {size}")
    output = bytearray(size)  # allocated here, as cramjam panics if it cannot allocate the memory
    return bytes(memoryview(output)[: cramjam.snappy.decompress_raw_into(data, output)])


_CODECS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    CompressionType.LZ4: _lz4,
    CompressionType.ZLIB: _zlib,
    CompressionType.ZSTD: _zstd,
    CompressionType.SNAPPY: _snappy,
}
