"""The packets of a stream's bytes, and bytes that are not a frame, which become a `Malformed`."""

from bisect import bisect_right
from typing import Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.frame import Connection, Malformed
from pulsarctl_wire.wire.framing.malformed import describe_problem
from pulsarctl_wire.wire.ranges import Count, LastPlace, Nanoseconds, Place

BEGAN_INSIDE: Final = "the capture began inside a frame"
AFTER_GAP: Final = "no frame begins here after a gap"

_MAX_PACKETS: Final = 65_536
_LAST_PACKET: Final = 1 << 62  # larger than any packet number

Source = tuple[Count, Place, Nanoseconds | None]
"""Bytes of one packet: the offset of their end in the stream, the packet's number, its time in ns."""

LostState = tuple[str, Count, Count, bytes, list[Place], tuple[Nanoseconds | None, LastPlace]]
"""Reason, offset, size, first bytes, packets, and the time and packet to report."""


def packets_of(sources: list[Source], start: int, stop: int, last_packet: int) -> list[int]:
    """Return the packets with the bytes from offset `start` to `stop`; without sources, `last_packet`."""
    if not sources:
        return [last_packet]
    packets: list[int] = []
    for index in range(_index_of_source(sources, start), len(sources)):
        end, packet, _ = sources[index]
        if packet not in packets[-1:]:
            packets.append(packet)
        if end >= stop:
            break
    return packets


def time_of(sources: list[Source], start: int, last_ns: int | None) -> int | None:
    """Return when the byte at stream offset `start` was captured, in ns; `last_ns` if no source has it."""
    index = _index_of_source(sources, start)
    return sources[index][2] if index < len(sources) else last_ns


def _index_of_source(sources: list[Source], start: int) -> int:
    return bisect_right(sources, (start, _LAST_PACKET, None))


@mypyc_attr(allow_interpreted_subclasses=True)
class LostBytes:
    """The bytes of a stream from `offset` on that are not a frame; `reason` says why.

    `size` is the number of bytes so far, `head` has the first ones. `stamp` is the time and the packet to
    report.
    """

    __slots__ = ("_packets", "head", "offset", "reason", "size", "stamp")

    def __init__(self, reason: str, offset: int, stamp: tuple[int | None, int]) -> None:
        self.reason = reason
        self.offset = offset
        self.size = 0
        self.head = b""
        self._packets: tuple[int, ...] = ()
        self.stamp = stamp

    def add(self, data: bytes, sources: list[Source], last_packet: int) -> None:
        """Add the next bytes. `sources` and `last_packet` are those of `packets_of`."""
        if data and len(self._packets) < _MAX_PACKETS:
            start = self.offset + self.size
            packets = packets_of(sources, start, start + len(data), last_packet)
            # without the first packet if the bytes before were in it, too
            self._packets += tuple(packets[tuple(packets[:1]) == self._packets[-1:] :])
        self.size += len(data)
        free = Malformed.KEPT - len(self.head)
        if free > 0:
            self.head += data[:free]

    def event(self, connection: Connection, to_broker: bool, protocol: str) -> Malformed:
        """Make the event that reports these bytes. `protocol` is the other protocol recognised, or ""."""
        is_explained = protocol or self.reason in (BEGAN_INSIDE, AFTER_GAP)
        reason = self.reason if is_explained else self.reason + describe_problem(self.head)
        event = Malformed(reason, self.head, self.size, connection, to_broker, self.offset, *self.stamp)
        event.packets, event.protocol = self._packets, protocol
        return event

    def state(self) -> LostState:
        """Return the state as plain data, for `resume`."""
        return self.reason, self.offset, self.size, self.head, list(self._packets), self.stamp

    def resume(self, state: LostState, shift: int) -> None:
        """Continue from a `state` whose offset is `shift` bytes too small."""
        self.reason, self.offset, self.size, self.head, packets, self.stamp = state
        self._packets = tuple(packets)
        self.offset += shift
