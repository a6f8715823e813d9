"""The format of a capture file, as plain data: with it, another process can begin in the middle."""

from math import gcd
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from pulsarctl_wire.wire.ranges import UInt8, UInt16, UInt32, UInt64, one_of

_SECOND: Final = 1_000_000_000


class Interface(NamedTuple):
    """The contents of an interface block: link type, snap length, unit of time, and what to add (seconds).

    `unit` is as in if_tsresol: a power of ten, or of two with the high bit. `dropped` counts the packets that
    the kernel dropped, by its statistics so far.
    """

    link: UInt16
    snap: UInt32
    unit: UInt8
    offset: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = 0
    dropped: UInt64 = 0


class Layout(NamedTuple):
    """The format of a capture file at some place in it.

    `order` is the byte order; `blocks` is True for pcapng, where later blocks may add interfaces.
    """

    blocks: bool
    order: Annotated[str, one_of("<>")]
    interfaces: tuple[Interface, ...]


def _ratio(unit: int) -> tuple[int, int]:
    parts = (2 if unit & 0x80 else 10) ** (unit & 0x7F)
    common = gcd(_SECOND, parts)
    return _SECOND // common, parts // common


NANOSECONDS: Final = [_ratio(unit) for unit in range(256)]
"""Unit of time -> by what to multiply a time, and then to divide it, to get nanoseconds."""
