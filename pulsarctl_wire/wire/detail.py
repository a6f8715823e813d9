"""Which tables there are, and what each option and level of detail puts into them."""

from typing import Annotated, Final, Literal, NamedTuple

from pulsarctl_wire.wire.commands import ACK, MESSAGE, NUMBERS
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.ranges import UInt64, one_of

ALL, EXCHANGES, CONNECTIONS = "frames", "exchanges", "connections"
DETAILS: Final = (ALL, EXCHANGES, CONNECTIONS)
"""What tables have: all frames; frames that pass `is_exchange`; no frames, only connections and gaps."""
Detail = Annotated[str, one_of(DETAILS)]
"""One of `DETAILS`."""
RAW: Final = "raw"
JSON: Final = "json"
"""How payloads are kept: as bytes, or as JSON text."""
MAX_PAYLOAD: Final = 65_536
"""Bytes of the largest payload that is kept, unless another limit is given."""

TABLE_NAMES: Final = ("frames", "gaps", "connections", "messages")
"""The tables, by the names of their directories."""

_DELIVERY_AND_KEEP_ALIVE: Final = {
    *(MESSAGE, ACK, NUMBERS["FLOW"], NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]),
    *(NUMBERS["PING"], NUMBERS["PONG"]),
}


class MessageOptions(NamedTuple):
    """What the messages table keeps.

    `values` is `RAW`, `JSON`, or "" for no payloads; those above `largest` bytes are left out. `hash_keys`:
    hashes instead of keys and ordering keys. `private_keys` are paths of the keys that decrypt payloads.
    """

    values: Literal["", "raw", "json"] = ""
    largest: UInt64 = MAX_PAYLOAD
    hash_keys: bool = False
    private_keys: tuple[str, ...] = ()


def is_exchange(frame: Frame) -> bool:
    """Return whether a frame belongs to the table of exchanges: it is neither delivery nor keep-alive.

    An ACK with a request id is a request. The glossary's word is wider.
    """
    number = frame.type
    return number not in _DELIVERY_AND_KEEP_ALIVE or (number == ACK and frame.ids.request is not None)
