"""Sums up the 16-bit words of TCP/IP checksums, quickly even for large data. Source: RFC 1071."""

from typing import Final

from librt.strings import read_i64_le
from mypy_extensions import i64

_IS_COMPILED: Final = not __file__.endswith(".py")
_SMALL: Final = 1_024
"""Bytes up to which one large integer is faster than a loop over parts."""


def sum_words(data: bytes | memoryview) -> int:
    """Return a number congruent to the sum of the big-endian 16-bit words of `data`, modulo 65,535."""
    if len(data) <= _SMALL:
        total = int.from_bytes(data, "little")
    elif _IS_COMPILED:
        total = _sum_compiled(bytes(data))
    else:
        parts = range(0, len(data), _SMALL)
        total = sum(int.from_bytes(data[start : start + _SMALL], "little") for start in parts)
    return total % 0xFFFF << 8  # the shift swaps the bytes of each word


def _sum_compiled(data: bytes) -> int:
    """Sum little-endian words of 32 bits; compiled, that is six times as fast as with large integers."""
    total: i64 = 0
    start: i64 = 0
    end: i64 = len(data) & ~7
    while start < end:
        word: i64 = read_i64_le(data, start)
        total += (word & 0xFFFFFFFF) + (word >> 32 & 0xFFFFFFFF)
        start += 8
    return int(total) + int.from_bytes(data[end:], "little")
