"""The format of a capture file, as plain data: with it, another process can begin in the middle."""

from typing import Annotated, NamedTuple

from msgspec import Meta

from pulsarctl_wire.wire.ranges import UInt8, UInt16, UInt32, UInt64, one_of


class Interface(NamedTuple):
    """The contents of an interface block: link type, snap length, unit of time, and seconds to add to times.

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
