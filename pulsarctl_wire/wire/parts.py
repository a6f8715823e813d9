"""Where the parts of a frame are that come after its command. The layout is that of `frame.py`."""

from typing import Final

from crc32c import crc32c

from pulsarctl_wire.wire.fixed import u32_at

MAGIC_CHECKSUM: Final = b"\x0e\x01"
MAGIC_BROKER_ENTRY: Final = b"\x0e\x02"


class Parts:
    """Where the parts after the command are in a frame's bytes, as (start, stop) offsets.

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


def locate(raw: bytes, at: int) -> Parts:
    """The parts of the payload frame `raw`, whose command ends at `at`. Never raises."""
    parts = Parts()
    end = len(raw)
    if raw[at : at + 2] == MAGIC_BROKER_ENTRY and end - at >= 6:
        stop = at + 6 + u32_at(raw, at + 2)
        if stop > end:
            parts.problem = f"broker entry metadata of {stop - at - 6} bytes runs beyond the frame"
            return parts
        parts.broker_entry = (at + 6, stop)
        at = stop
    if raw[at : at + 2] == MAGIC_CHECKSUM and end - at >= 6:
        parts.checksum = (at + 2, at + 6)
        parts.stored = u32_at(raw, at + 2)
        at += 6
        parts.computed = crc32c(memoryview(raw)[at:])
    if end - at < 4:
        parts.problem = "no metadata after the command"
        return parts
    start = at + 4
    stop = start + u32_at(raw, at)
    if stop > end:
        parts.problem = f"metadata of {stop - start} bytes runs beyond the frame"
        return parts
    parts.metadata = (start, stop)
    parts.payload = (stop, end)
    return parts
