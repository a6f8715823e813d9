"""Dumps: bytes that a text shows, of packets, of connections in a log, or of neither."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME
from pulsarctl_wire.wire.framing.stream import FrameStream

PIECE: Final = 1 << 20
"""Bytes after which a dump is yielded in pieces; no packet is that long."""

NO_TRAFFIC: Final = "neither a capture (pcap, pcapng), nor text that shows bytes, nor Pulsar frames"
"""The message for a source in which nothing is recognized."""

MAX_REPEATS: Final = 1 << 20
"""Bytes that the `<repeats N times>` of gdb may stand for, of a whole text."""

UNKNOWN_SIZE: Final = -1
"""The size of a hole if the text does not say how much it leaves out."""


class LogConnection(NamedTuple):
    """A connection in a log: its name there, and its ends as the log writes them: "10.0.0.2:6650",
    "b/10.0.0.2:6650", "fd:5" ("": not in the log).

    `near` is the end that wrote the log. `client` is "near" or "far" if the log says which one it is.
    """

    name: str
    near: str = ""
    far: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """Bytes that a text shows: of a packet, a record of a log, or all of it. Long dumps come in pieces."""

    data: bytes
    time_ns: int | None
    """ns since 1970 (without a time zone in the text: UTC), or since midnight if there is no date. None if
    the text gives no time, or only the time since the packet before."""
    link: str = ""
    """What the bytes start with: "ethernet" or "ip" for tcpdump's packets; "": unknown."""
    more: bool = False
    """Whether the bytes continue in the next `Dump`."""
    missing: int = 0
    """How many bytes the text leaves out after these, or `UNKNOWN_SIZE`."""
    connection: LogConnection | None = None
    is_inbound: bool = False
    """Whether they went from the far end of the connection to the near one."""
    is_last: bool = False
    """Whether the sender has closed the connection after these bytes."""
    line: int = field(default=0, compare=False)
    """The number of the line where they begin, from 1; 0 if unknown."""


class Repeats:
    """The bytes that the `<repeats N times>` of a text may still stand for."""

    def __init__(self) -> None:
        self._left = MAX_REPEATS

    def take(self, size: int, line: int) -> None:
        """Take `size` bytes for a repetition in a line. Raises CaptureError if there are not so many."""
        self._left -= size
        if self._left < 0:
            raise CaptureError(f"line {line}: repeats to more than {MAX_REPEATS} bytes")


def hole_size(dump: Dump, stream: FrameStream) -> int:
    """Return the bytes missing after a dump: if the text does not say, the rest of the frame that is open."""
    if dump.missing >= 0:
        return dump.missing
    return max(stream.awaited - stream.held_bytes, 1)


def belongs(stream: FrameStream, data: bytes) -> bool:
    """Return whether bytes continue a stream of frames: they begin a frame, if that is what comes next."""
    if not stream.is_in_step or stream.held_bytes:
        return True
    total, size = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
    if len(data) < 8:
        return total >> 24 == 0
    return 2 <= size <= total - 4 < MAX_KEPT_FRAME and data[8:9] in (b"\x08", b"")  # 08: the tag of its type
