"""Bytes without meaning, of the size and roughly the compressibility of others.

What the noise is depends on the bytes it replaces and on the secret: the same payload becomes the same noise.
"""

import zlib
from hashlib import shake_128
from typing import Final

from pulsarctl_wire.sanitize.names import Kind, Pseudonyms

_PIECE: Final = 16 * 1024
"""Bytes of noise made at a time. Noise repeats itself within them: the windows of all codecs are larger."""
_SAMPLE: Final = 64 * 1024
"""Bytes of a content that show whether it is text, and how well it can be compressed."""
_CONSONANTS: Final = b"bcdfghjklmnpqrstvwxyz"
_TEXT: Final = bytes(_CONSONANTS[byte % 21] if byte % 8 else 0x20 for byte in range(256))
_BINARY: Final = bytes(0x80 | byte if chr(byte) in "aeiouAEIOU" else byte for byte in range(256))
_RATIO_OF_TEXT: Final = 0.65  # of the compressed size to the size of noise that is text
_PRINTABLE: Final = bytes([*range(0x20, 0x7F), 9, 10, 13])
_ALL: Final = bytes(range(256))


class Noise:
    """Makes noise."""

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self._pseudonyms = pseudonyms

    def replace(self, kind: Kind, content: bytes) -> bytes:
        """Return what replaces a payload or credentials."""
        noise = content
        if kind not in self._pseudonyms.keep:
            noise = self._make(content, is_random=kind is Kind.CREDENTIALS)
        self._pseudonyms.on_replaced(kind, content, noise)
        return noise

    def like(self, content: bytes) -> bytes:
        """Return noise that replaces bytes which may be anything."""
        noise = self._make(content)
        if is_text(content):  # binary bytes may be numbers, which may also be elsewhere
            self._pseudonyms.on_replaced(Kind.PAYLOADS, content, noise)
        return noise

    def _make(self, content: bytes, *, is_random: bool = False) -> bytes:
        """Return noise like `content`: text or not, and as easy to compress unless it `is_random`."""
        is_printable = is_text(content)
        size = len(content)
        unique_size = size
        if size > 64 and not is_random:
            sample = content[:_SAMPLE]
            ratio = len(zlib.compress(sample, 1)) / len(sample)
            ratio /= _RATIO_OF_TEXT if is_printable else 1
            unique_size = max(min(int(size * ratio), size), 16)
        key = self._pseudonyms.key_of(content)
        if unique_size == size:
            return self.draw(key, size, is_printable=is_printable)
        pieces = []
        for start in range(0, size, _PIECE):
            length = min(_PIECE, size - start)
            source = self.draw(
                key + start.to_bytes(8, "big"), max(unique_size * length // size, 1), is_printable
            )
            pieces.append((source * (length // len(source) + 1))[:length])
        return b"".join(pieces)

    @staticmethod
    def draw(key: bytes, size: int, is_printable: bool, *, every: bool = False) -> bytes:
        """Return `size` random bytes: consonants and spaces, or any but vowels (`every`: any at all)."""
        table = _TEXT if is_printable else _ALL if every else _BINARY
        return shake_128(key).digest(size).translate(table)


def is_text(content: bytes) -> bool:
    """Return whether all of the first bytes are printable characters of ASCII."""
    return not content[:_SAMPLE].translate(None, _PRINTABLE)
