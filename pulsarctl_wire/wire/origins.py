"""Where the bytes of a stream came from: which packets, and when those were captured."""

from bisect import bisect_right
from typing import Final

Source = tuple[int, int, int | None]
"""Bytes of a packet: the offset of their end in the stream, the packet, its time in ns."""

_LAST_PACKET: Final = 1 << 62  # later than any


def packets_of(sources: list[Source], start: int, stop: int, last: int) -> list[int]:
    """The packets that hold the bytes from stream offset `start` up to `stop`; `last` without sources."""
    if not sources:
        return [last]
    packets: list[int] = []
    for index in range(_source_of(sources, start), len(sources)):
        end, packet, _ = sources[index]
        if packet not in packets[-1:]:
            packets.append(packet)
        if end >= stop:
            break
    return packets


def time_of(sources: list[Source], start: int, last_ns: int | None) -> int | None:
    """When the byte at stream offset `start` was captured, in ns; `last_ns` if no source has it."""
    index = _source_of(sources, start)
    return sources[index][2] if index < len(sources) else last_ns


def _source_of(sources: list[Source], start: int) -> int:
    return bisect_right(sources, (start, _LAST_PACKET, None))
