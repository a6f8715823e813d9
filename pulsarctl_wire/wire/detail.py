"""Which frames a table holds: all, exchanges, or only connections and gaps."""

from typing import Final

from pulsarctl_wire.wire.commands import ACK, MESSAGE, NUMBERS
from pulsarctl_wire.wire.frame import Frame

ALL, EXCHANGES, CONNECTIONS = "frames", "exchanges", "connections"
DETAILS: Final = (ALL, EXCHANGES, CONNECTIONS)
"""All frames; those of `is_exchange`; none, but connections and gaps."""

_TRAFFIC: Final = {
    *(MESSAGE, ACK, NUMBERS["FLOW"], NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]),
    *(NUMBERS["PING"], NUMBERS["PONG"]),
}


def is_exchange(frame: Frame) -> bool:
    """Return whether a frame is no delivery and no keep-alive. An ACK with a request id is a request."""
    number = frame.type
    return number not in _TRAFFIC or (number == ACK and frame.ids.request is not None)
