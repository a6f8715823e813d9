"""Which tables there are, and which frames they hold, by what was asked for."""

from typing import Final

from pulsarctl_wire.wire.commands import ACK, MESSAGE, NUMBERS
from pulsarctl_wire.wire.frame import Frame

ALL, EXCHANGES, CONNECTIONS = "frames", "exchanges", "connections"
DETAILS: Final = (ALL, EXCHANGES, CONNECTIONS)
"""All frames; those of `is_exchange`; none, but connections and gaps."""

TABLE_NAMES: Final = ("frames", "gaps", "connections", "messages")
"""The tables, by the names of their directories."""

_TRAFFIC: Final = {
    *(MESSAGE, ACK, NUMBERS["FLOW"], NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]),
    *(NUMBERS["PING"], NUMBERS["PONG"]),
}


def is_exchange(frame: Frame) -> bool:
    """Whether a frame is not of deliveries, and no keep-alive. An ACK with a request id is a request."""
    number = frame.type
    return number not in _TRAFFIC or (number == ACK and frame.ids.request is not None)
