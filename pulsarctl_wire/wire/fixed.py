"""Numbers of a fixed size in bytes. Compiled code reads them without the objects that `struct` would make.

All functions raise IndexError if the bytes are not there.
"""

from librt.strings import read_i16_be, read_i32_be, read_i32_le
from mypy_extensions import i64


def u16_at(data: bytes, pos: i64) -> i64:
    """Read the big-endian number in the two bytes from `pos` on."""
    signed: int = read_i16_be(data, pos)
    return signed & 0xFFFF


def u32_at(data: bytes, pos: i64) -> i64:
    """Read the big-endian number in the four bytes from `pos` on."""
    signed: int = read_i32_be(data, pos)
    return signed & 0xFFFFFFFF


def little_u32_at(data: bytes, pos: i64) -> i64:
    """Read the little-endian number in the four bytes from `pos` on."""
    signed: int = read_i32_le(data, pos)
    return signed & 0xFFFFFFFF
