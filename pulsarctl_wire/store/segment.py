"""What a segment of a store holds, and its bytes: msgpack.

It is not in rows.py, which is compiled: compiled classes lose the keyword arguments of msgspec's `Struct`.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from pulsarctl_wire.errors import StoreError

_Row = Annotated[list[Any], Meta(min_length=21, max_length=21)]  # as many as `_pack_frame` in rows.py has


class Special(Struct, array_like=True):
    """What few frames have: payload of all chunks, its seals, index in `Segment.schemas` (-1: no schema)."""

    joined: bytes | None
    seals: list[tuple[tuple[bytes, list[tuple[str, bytes]]] | None, int]]
    schema: int


class Segment(Struct, array_like=True):
    """A few hundred consecutive events at most.

    connections    of the events: the values of `_CONNECTION` in rows.py
    frames         a row each, as `_pack_frame` in rows.py makes it
    others         other events: position in the segment, index of the connection, kind, values
    specials       by the frame's index in `frames`
    schemas        encoded
    """

    connections: list[tuple[int, str, str, str, str, int | None, bool]]
    frames: list[_Row]
    others: list[tuple[int, int, str, list[Any]]]
    specials: dict[int, Special]
    schemas: list[bytes]

    def __len__(self) -> int:
        return len(self.frames) + len(self.others)


encode: Final = Encoder().encode
"""Encode a tuple of the fields of a `Segment`."""

_decode: Final = Decoder(Segment).decode


def unpack(data: bytes) -> Segment:
    """Unpack a segment. Raises StoreError if it is damaged."""
    try:
        return _decode(data)
    except MsgspecError as error:
        raise StoreError(f"a segment is damaged: {error}") from error
