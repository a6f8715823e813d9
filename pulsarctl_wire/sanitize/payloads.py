"""Payloads of entries with other contents: the same sizes, the same messages, the same compression.

plain        noise like it
batch        the sizes and fields of its messages stay; names are replaced, and payloads are noise
compressed   it is opened, replaced, and compressed to just as many bytes (`fitting.py`)
chunks       of a compressed message: parts of one block, made only from the sizes in the metadata
encrypted, or not what its metadata says: noise that is just as unreadable
"""

import struct
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

from google.protobuf.message import DecodeError

from pulsarctl_wire.sanitize.fields import FieldRewriter
from pulsarctl_wire.sanitize.fitting import Content, encoders_like, fit
from pulsarctl_wire.sanitize.names import Kind, Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise, is_text
from pulsarctl_wire.wire.payload import (
    MAX_METADATA,
    MAX_PAYLOAD,
    Budget,
    PayloadError,
    decompress,
    decompress_all,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import SingleMessageMetadata

_MAX_CACHED: Final = 16 * 1024 * 1024
"""Bytes of compressed payloads whose replacements are kept: a message comes again when it is consumed."""
_MAX_MESSAGES: Final = 4_096  # whose chunks are followed at a time
_ATTEMPTS: Final = 16
_u32_at: Final = struct.Struct(">I").unpack_from


class PayloadRewriter:
    """Replaces payloads.

    `unfit` counts those for which no block of the right size was found, and `unkept` compressed batches that
    were to be kept, but have keys or properties that were not.
    """

    def __init__(self, pseudonyms: Pseudonyms, noise: Noise, fields: FieldRewriter) -> None:
        self.unfit = self.unkept = 0
        self.budget = Budget()
        self._pseudonyms = pseudonyms
        self._noise = noise
        self._fields = fields
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._chunks: OrderedDict[Hashable, tuple[int, bytes]] = OrderedDict()
        """Owner and uuid of a chunked message -> size of its chunks so far, and what replaces all of them."""

    def rewrite(self, metadata: Any, payload: bytes, owner: Hashable, *, is_cut: bool) -> bytes:
        """Return what replaces the payload of an entry of `owner`, a producer or consumer.

        `is_cut`: the end of the payload is not known. `metadata` is None if it does not parse.
        """
        if metadata is None or metadata.encryption_keys:
            return self._noise.replace(Kind.PAYLOADS, payload)
        if metadata.num_chunks_from_msg > 1:
            return self._rewrite_chunk(metadata, payload, owner)
        if metadata.compression:
            if is_cut:
                return self._noise.replace(Kind.PAYLOADS, payload)
            return self._rewrite_compressed(metadata, payload)
        if metadata.HasField("num_messages_in_batch"):
            out = bytearray(payload)
            for start, stop in self._rewrite_batch(payload, metadata.num_messages_in_batch, out):
                out[start:stop] = self._noise.replace(Kind.PAYLOADS, payload[start:stop])
            return bytes(out)
        return self._noise.replace(Kind.PAYLOADS, payload)

    def _rewrite_batch(self, data: bytes, count: int, out: bytearray) -> list[tuple[int, int]]:
        """Replace the names in a batch in `out`; return the spans of its payloads, and of other bytes."""
        free = []
        pos, end = 0, len(data)
        for _ in range(count):
            start = pos + 4
            stop = start + (_u32_at(data, pos)[0] if start <= end else 0)
            if start >= end or stop > end or stop - start > MAX_METADATA:
                break
            self._fields.rewrite(data, start, stop, SingleMessageMetadata.DESCRIPTOR, out)
            try:
                size = SingleMessageMetadata.FromString(data[start:stop]).payload_size
            except DecodeError:
                pos = stop
                break
            pos = min(stop + max(size, 0), end)
            if pos > stop:
                free.append((stop, pos))
        if pos < end:
            free.append((min(pos + 4, end), end))  # the size of what could not be read stays
        return free

    # -- compressed

    def _rewrite_compressed(self, metadata: Any, payload: bytes) -> bytes:
        numbers = f"{metadata.compression} {metadata.uncompressed_size} {metadata.num_messages_in_batch}"
        key = self._pseudonyms.key_of(b"%b %b" % (numbers.encode(), payload))
        block = self._cache.get(key)
        if block is None:
            block = self._compress_anew(metadata, payload, key)
            self._keep(key, block)
        else:
            self._cache.move_to_end(key)
        return block

    def _keep(self, key: bytes, block: bytes) -> None:
        self._cache[key] = block
        self._cached_bytes += len(block)
        while self._cached_bytes > _MAX_CACHED:
            self._cached_bytes -= len(self._cache.popitem(last=False)[1])

    def _compress_anew(self, metadata: Any, payload: bytes, key: bytes) -> bytes:
        codec = metadata.compression
        data = self._open(codec, payload, metadata.uncompressed_size)
        is_kept = Kind.PAYLOADS in self._pseudonyms.keep
        if data is None:
            return payload if is_kept else self._make_unreadable(codec, payload, key)
        out = bytearray(data)
        free = [(0, len(data))]
        if metadata.HasField("num_messages_in_batch"):
            free = self._rewrite_batch(data, metadata.num_messages_in_batch, out)
        if is_kept and out == data:
            return payload
        self.unkept += is_kept
        for start, stop in free:
            # b"": what replaces it is known only once it fits, and the check needs only the text
            self._pseudonyms.on_replaced(Kind.PAYLOADS, data[start:stop], b"")
        sample = b"".join(data[start : min(stop, start + 256)] for start, stop in free[:64])
        content = Content(bytes(out), free, key, is_text(sample))
        fitted = fit(content, len(payload), encoders_like(codec, payload))
        if fitted is None:
            self.unfit += 1
            return self._make_unreadable(codec, payload, key)
        return fitted[1]

    def _open(self, codec: int, payload: bytes, size: int) -> bytes | None:
        """Return a payload decompressed, whatever its metadata says of its size; None if that fails."""
        self.budget.count_input(len(payload))
        if not self.budget.spend(min(size, MAX_PAYLOAD)):
            return None
        try:
            return decompress(codec, payload, size)
        except PayloadError:
            data = decompress_all(codec, payload)
            return None if data is None or len(data) > MAX_PAYLOAD else data
        except MemoryError:
            return None

    def _make_unreadable(self, codec: int, payload: bytes, key: bytes) -> bytes:
        """Return noise that this codec cannot read either."""
        for number in range(_ATTEMPTS):
            noise = Noise.draw(key + bytes([number]), len(payload), is_text(payload))
            if decompress_all(codec, noise) is None:
                break
        return noise

    # -- chunks

    def _rewrite_chunk(self, metadata: Any, payload: bytes, owner: Hashable) -> bytes:
        """Return what replaces a chunk: a part of a block that all chunks of the message make together."""
        if not metadata.compression or Kind.PAYLOADS in self._pseudonyms.keep:
            return self._noise.replace(Kind.PAYLOADS, payload)
        key = owner, metadata.uuid
        if metadata.chunk_id == 0:
            self._chunks[key] = 0, self._make_block(metadata, payload)
            if len(self._chunks) > _MAX_MESSAGES:
                self._chunks.popitem(last=False)
        start, block = self._chunks.get(key, (0, b""))
        part = block[start : start + len(payload)]
        if len(part) < len(payload):
            return self._noise.replace(Kind.PAYLOADS, payload)
        self._chunks[key] = start + len(part), block
        if metadata.chunk_id + 1 == metadata.num_chunks_from_msg:
            del self._chunks[key]
        return part

    def _make_block(self, metadata: Any, first_chunk: bytes) -> bytes:
        """Return a block whose size and decompressed size are as the metadata of a chunk says.

        Returns b"" if none was found, or the sizes do not allow one.
        """
        codec, size, total = metadata.compression, metadata.uncompressed_size, metadata.total_chunk_msg_size
        if not (
            0 < size <= MAX_PAYLOAD and len(first_chunk) <= total <= MAX_PAYLOAD
        ) or not self.budget.spend(size):
            return b""
        label = f"{codec} {size} {total} {metadata.uuid}".encode("utf-8", "replace")
        key = self._pseudonyms.key_of(label)
        block = self._cache.get(key)
        if block is None:
            content = Content(bytes(size), [(0, size)], key, is_printable=False)
            fitted = fit(content, total, encoders_like(codec, first_chunk, total))
            self.unfit += fitted is None
            block = b"" if fitted is None else fitted[1]
            self._keep(key, block)
        return block
