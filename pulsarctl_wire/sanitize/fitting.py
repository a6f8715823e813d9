"""Compressed payloads of a given size: new contents that a codec compresses to just as many bytes as the old.

A part of the content is free: payloads, where any bytes will do. The more of them are random, the larger the
result. So a search finds how many random bytes give the wanted size. If no number of them does, it also
varies how many stretches they are in, and which bytes they are.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pulsarctl_wire.sanitize.noise import Noise
from pulsarctl_wire.wire.payload import SNAPPY_FRAMING
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType
from pulsarctl_wire.wire.varint import read_varint

_FILLS: Final = {True: b"xqzjkvwbdfghlmnprstcy", False: bytes(range(256))}
"""Whether a content is text -> bytes to fill what is not random: the first that its payloads do not have."""
_NINE_BITS: Final = bytes(byte | 0x90 for byte in range(256))
"""Byte -> one that takes nine bits in zlib's blocks with fixed codes (RFC 1951, 3.2.6)."""
_NEAR: Final = 24  # random bytes more or fewer that are tried once the search is close
_VARIANTS: Final = 4  # different random bytes that are tried
_EFFORT: Final = 1 << 30  # bytes that are compressed for a payload, at most
_MIN_ATTEMPTS: Final = 40  # of a content of any size
_LARGE: Final = 1024 * 1024  # bytes of a content for which fewer variants are tried
_MAX_PADDING: Final = 16  # bytes
_SHORT_LITERAL: Final = 59  # a larger number in the tag of a literal says how many bytes its size has
_MAX_WIDTH: Final = 4  # bytes of the size of a literal
_STRETCHES: Final = (1, 2, 3, 5, 8, 13)  # numbers of stretches of random bytes that are tried

Encode = Callable[[bytes], bytes]


class Content(NamedTuple):
    """What is compressed: bytes, of which those in the `free` spans may be anything.

    `key` chooses the random bytes; `is_printable`: these are text.
    """

    data: bytes
    free: list[tuple[int, int]]
    key: bytes
    is_printable: bool


def fit(content: Content, size: int, encoders: list[Encode]) -> tuple[bytes, bytes] | None:
    """Return a variant of `content`, and the `size` bytes that it compresses to; None if none was found.

    The first encoder is the usual one; later ones compress better, for a content that is too large otherwise.
    """
    attempts = iter(range(max(_EFFORT // (len(content.data) + 1), _MIN_ATTEMPTS)))
    with suppress(_Exhausted):
        for is_printable in dict.fromkeys((content.is_printable, False)):
            variants = _Variants(content._replace(is_printable=is_printable))
            for encode in encoders:
                variant = _search(variants, size, _limit(encode, attempts))
                if variant is not None:
                    return variant
    return None


class _Exhausted(Exception):
    """All attempts were made."""


def _limit(encode: Encode, attempts: Iterator[int]) -> Encode:
    """Return `encode` with a limit: it raises _Exhausted once there are no more attempts."""

    def encode_once_more(data: bytes) -> bytes:
        if next(attempts, None) is None:
            raise _Exhausted
        return encode(data)

    return encode_once_more


class _Variants:
    """Makes variants of a content."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.free = sum(stop - start for start, stop in content.free)
        self._noise: dict[int, bytes] = {}
        old = set(b"".join(content.data[start:stop] for start, stop in content.free))
        fills = _FILLS[content.is_printable]
        self._fill = bytes([next((fill for fill in fills if fill not in old), fills[0])])

    def make(self, count: int, stretches: int = 1, number: int = 0) -> bytes:
        """Return a variant with `count` random bytes, in `stretches`; all other free bytes are the same byte.

        `number` chooses the random bytes.
        """
        content = self.content
        noise = self._noise.get(number)
        if noise is None:
            key = content.key + bytes([number])
            noise = Noise.draw(key, self.free, content.is_printable, every=True)
            if number % 2 and not content.is_printable:
                noise = noise.translate(_NINE_BITS)
            self._noise[number] = noise
        fill = self._fill
        if stretches == 1:
            random = noise[:count] + fill * (self.free - count)
        else:
            part, gap = count // stretches, (self.free - count) // stretches
            random = b"".join(
                noise[index * part : (index + 1) * part] + fill * gap for index in range(stretches)
            )
            random += noise[part * stretches : count]
            random += fill * (self.free - len(random))
        out = bytearray(content.data)
        pos = 0
        for start, stop in content.free:
            out[start:stop] = random[pos : pos + stop - start]
            pos += stop - start
        return bytes(out)


def _search(variants: _Variants, size: int, encode: Encode) -> tuple[bytes, bytes] | None:
    low, high = 0, variants.free
    whole = variants.make(high)
    block = encode(whole)
    if len(block) == size:
        return whole, block
    if len(block) > size:
        while high - low > 1:
            middle = (low + high) // 2
            data = variants.make(middle)
            block = encode(data)
            if len(block) == size:
                return data, block
            low, high = (middle, high) if len(block) < size else (low, middle)
    for data in _neighbours(variants, low, high):
        block = encode(data)
        if len(block) == size:
            return data, block
    return None


def _neighbours(variants: _Variants, low: int, high: int) -> Iterator[bytes]:
    """Yield variants with about as many random bytes as the search ended at."""
    is_large = len(variants.content.data) > _LARGE
    for number in range(1 if is_large else _VARIANTS):
        for stretches in _STRETCHES[:2] if is_large else _STRETCHES:
            for distance in range(_NEAR):
                for count in {low - distance, high + distance}:
                    if 0 <= count <= variants.free:
                        yield variants.make(count, stretches, number)


# -- codecs


def encoders_like(codec: int, block: bytes, size: int | None = None) -> list[Encode]:
    """Return functions that compress as `block` was, the usual one first, then ones that compress better.

    `size`: `block` is only the beginning of one of `size` bytes. None: it is whole.
    """
    if codec == CompressionType.LZ4:
        return [_lz4, _lz4_high]
    if codec == CompressionType.ZLIB:
        return [_zlib(level, size is None and _ends_with_flush(block)) for level in (6, 9)]
    if codec == CompressionType.ZSTD:
        return [_zstd(level, block) for level in (3, 1, 19)]
    if block.startswith(SNAPPY_FRAMING):
        return [_snappy_framed]
    return [_snappy_to(len(block) if size is None else size)]


def _lz4(data: bytes) -> bytes:
    import lz4.block

    return bytes(lz4.block.compress(data, store_size=False))


def _lz4_high(data: bytes) -> bytes:
    import lz4.block

    return bytes(lz4.block.compress(data, mode="high_compression", compression=12, store_size=False))


def _zlib(level: int, is_flushed: bool) -> Encode:
    def encode(data: bytes) -> bytes:
        compressor = zlib.compressobj(level)
        return compressor.compress(data) + compressor.flush(
            zlib.Z_SYNC_FLUSH if is_flushed else zlib.Z_FINISH
        )

    return encode


def _ends_with_flush(block: bytes) -> bool:
    """Return whether a stream of zlib ends with a flush, as Java's do, and not with a checksum."""
    decompressor = zlib.decompressobj()
    try:
        while block and not decompressor.eof:
            decompressor.decompress(block, 1024 * 1024)
            block = decompressor.unconsumed_tail
    except zlib.error:
        return False
    return not decompressor.eof


def _zstd(level: int, block: bytes) -> Encode:
    import zstandard

    try:
        frame: Any = zstandard.get_frame_parameters(block)
        has_size, has_checksum = frame.content_size < 1 << 62, bool(frame.has_checksum)
    except zstandard.ZstdError:
        has_size, has_checksum = True, False
    compressor = zstandard.ZstdCompressor(
        level=level, write_content_size=has_size, write_checksum=has_checksum
    )
    return compressor.compress


def _snappy_to(size: int) -> Encode:
    """Return a function that makes blocks of Snappy, padded to `size` bytes if a few are missing."""

    def encode(data: bytes) -> bytes:
        import cramjam

        block = bytes(cramjam.snappy.compress_raw(data))
        return _lengthen_snappy(block, size - len(block)) if 0 < size - len(block) <= _MAX_PADDING else block

    return encode


def _lengthen_snappy(block: bytes, missing: int) -> bytes:
    """Make a block of Snappy longer: the sizes of literals may take more bytes than they need.

    Source: google/snappy, format_description.txt.
    """
    _, pos = read_varint(block, 0, len(block))
    out = bytearray(block[:pos])
    while pos < len(block):
        tag = block[pos]
        kind, size = tag & 3, tag >> 2
        if kind:
            stop = pos + (2, 3, 5)[kind - 1]
            out += block[pos:stop]
        else:
            width = max(size - _SHORT_LITERAL, 0)
            start = pos + 1 + width
            size = int.from_bytes(block[pos + 1 : start], "little") if width else size
            stop = start + size + 1
            has_four = len(block) - start >= _MAX_WIDTH  # otherwise some decoders think the size is cut
            padding = min(missing, _MAX_WIDTH - width) if has_four else 0
            missing -= padding
            width += padding
            out.append((_SHORT_LITERAL + width << 2) if width else tag)
            out += (size.to_bytes(width, "little") if width else b"") + block[start:stop]
        pos = stop
    return bytes(out)


def _snappy_framed(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress(data))
