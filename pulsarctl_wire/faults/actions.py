"""What faults have the proxy do: plain values, carried out in order by whoever owns the sockets.

Times are seconds of the clock that the lane's caller reads for `now`. In one direction a later Send never
overtakes an earlier one, whatever their times say.
"""

from typing import NamedTuple


class Send(NamedTuple):
    """Send `data`, not before `at`; `back`: to who sent the frame, as if the other side had answered it."""

    data: bytes
    at: float
    back: bool = False


class Close(NamedTuple):
    """End both sides (FIN) once everything before it was sent."""


class Reset(NamedTuple):
    """Reset both sides (RST) once everything before it was sent."""


class Blackhole(NamedTuple):
    """Keep the connection open, but let nothing pass any more, in either direction."""


class Wake(NamedTuple):
    """Call the lane again, without data, at time `at`."""

    at: float


class Note(NamedTuple):
    """What was done, for people: "#2 drop: SEND_RECEIPT producer 0 sequence 5".

    It may name topics as clients wrote them: whoever prints it makes it harmless first.
    """

    text: str


Action = Send | Close | Reset | Blackhole | Wake | Note
"""What a lane gives."""
