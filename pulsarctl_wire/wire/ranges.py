"""The ranges of numbers in what is saved, or handed to another process: any other number is refused there.

Classes with such numbers must not be in compiled modules: mypyc leaves only `int` of such an annotation.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

UInt8 = Annotated[int, Meta(ge=0, lt=2**8)]
UInt16 = Annotated[int, Meta(ge=0, lt=2**16)]
UInt32 = Annotated[int, Meta(ge=0, lt=2**32)]
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
UInt64 = Annotated[int, Meta(ge=0)]  # MessagePack has no larger number
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""Also a size in bytes, and an offset in a stream."""
Offset = Annotated[int, Meta(ge=-1, lt=2**53)]
"""As `Count`; -1: none."""
Wrapped = Annotated[int, Meta(ge=-1, lt=2**32)]
"""A number of 32 bits; -1: none."""
Unwrapped = Annotated[int, Meta(ge=-(2**40), lt=2**53)]
"""A sequence number of TCP that counts on beyond 32 bits (-1: none), or another such number."""
Nanoseconds = Annotated[int, Meta(gt=-(2**63), le=2**63 - 1)]
"""Since the epoch."""
Place = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The place of a packet in one of the files read (see `PACKET_OFFSET_BITS`), or its turn."""
LastPlace = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""As `Place`; -1: no packet yet."""


def one_of(texts: Iterable[str]) -> Meta:
    """Return the constraint that allows only these texts."""
    return Meta(pattern=rf"\A({'|'.join(texts)})\Z")
