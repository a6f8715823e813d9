"""What a segment of a store holds, and its bytes: msgpack.

Not compiled with rows.py: compiled classes lose the keywords of msgspec's.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from pulsarctl_wire.errors import StoreError

_Row = Annotated[list[Any], Meta(min_length=21, max_length=21)]


class Special(Struct, array_like=True):
    """What few frames have: the payload of all chunks with its seals, and the schema, by its number."""

    joined: bytes | None
    seals: list[tuple[tuple[bytes, list[tuple[str, bytes]]] | None, int]]
    schema: int


class Segment(Struct, array_like=True):
    """Some hundred events in a row.

    connections    of the events, with the values of `_CONNECTION`
    frames         a row each, as `_of_frame` of rows.py makes it
    others         other events: their positions among all, and their rows, the kind first
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
"""Packs what a `Segment` consists of, as a tuple."""

_decode: Final = Decoder(Segment).decode


def unpack(data: bytes) -> Segment:
    """Unpack a segment. Raises StoreError if it is damaged."""
    try:
        return _decode(data)
    except MsgspecError as error:
        raise StoreError(f"a segment is damaged: {error}") from error
