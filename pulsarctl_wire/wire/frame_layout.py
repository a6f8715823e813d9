"""Where the parts of a frame after its command are. The layout is that of `frame.py`."""

from typing import Final

from crc32c import crc32c

from pulsarctl_wire.wire.fixed import u32_at

MAGIC_CHECKSUM: Final = b"\x0e\x01"
MAGIC_BROKER_ENTRY: Final = b"\x0e\x02"


class FrameLayout:
    """The parts after the command in a frame's bytes, as (start, stop) offsets.

    An absent part is (0, 0). `stored` is the checksum in the frame, and `computed` the checksum of its
    bytes, even if the frame is cut (both None without 0e01). `problem` says why not all parts were found;
    "" if they were.
    """

    __slots__ = ("broker_entry", "checksum", "computed", "metadata", "payload", "problem", "stored")

    def __init__(self) -> None:
        self.broker_entry = self.checksum = self.metadata = self.payload = (0, 0)
        self.stored: int | None = None
        self.computed: int | None = None
        self.problem = ""


def locate(raw: bytes, pos: int) -> FrameLayout:
    """Locate the parts of the payload frame `raw`, whose command ends at `pos`. Never raises."""
    parts = FrameLayout()
    end = len(raw)
    if raw[pos : pos + 2] == MAGIC_BROKER_ENTRY and end - pos >= 6:
        stop = pos + 6 + u32_at(raw, pos + 2)
        if stop > end:
            parts.problem = f"broker entry metadata of {stop - pos - 6} bytes runs beyond the frame"
            return parts
        parts.broker_entry = (pos + 6, stop)
        pos = stop
    if raw[pos : pos + 2] == MAGIC_CHECKSUM and end - pos >= 6:
        parts.checksum = (pos + 2, pos + 6)
        parts.stored = u32_at(raw, pos + 2)
        pos += 6
        parts.computed = crc32c(memoryview(raw)[pos:])
    if end - pos < 4:
        parts.problem = "no metadata after the command"
        return parts
    start = pos + 4
    stop = start + u32_at(raw, pos)
    if stop > end:
        parts.problem = f"metadata of {stop - start} bytes runs beyond the frame"
        return parts
    parts.metadata = (start, stop)
    parts.payload = (stop, end)
    return parts
