"""TLS that was decrypted, written as TCP connections that carry the plain bytes.

The packets stay: each carries the frames that it completed, in the clear. So sequence numbers are those of
the plain bytes, and packets with only a part of a frame, or with a handshake, carry nothing.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.capture.halves import MASK, Tcp
from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Segment

_PSH: Final = 0x08
_LAST: Final = FIN | RST
_FOR_ALL: Final = 1 << 62  # larger than the number of any packet


class Plain:
    """The plain bytes of one direction that are to be written, and its sequence numbers.

    `base` is the sequence number of the first byte; `sent` counts the bytes written, holes included.
    """

    def __init__(self) -> None:
        self.base: int | None = None
        self.sent = 0
        self.has_ended = False
        self._items: deque[tuple[int, int, bytes]] = deque()

    def add(self, packet: int, offset: int, data: bytes) -> None:
        """Add bytes at an offset of the plain stream; `packet` is the one that completed them."""
        self._items.append((packet, offset, data))

    def take(self, packet: int = _FOR_ALL) -> Iterator[tuple[int, bytes]]:
        """Yield what packets up to this one carry: offsets, and bytes without holes."""
        while self._items and self._items[0][0] <= packet:
            _, start, data = self._items.popleft()
            parts, stop = [data], start + len(data)
            while self._items and self._items[0][0] <= packet and self._items[0][1] == stop:
                parts.append(self._items.popleft()[2])
                stop += len(parts[-1])
            self.sent = stop
            yield start, b"".join(parts)


def find_opened(tcp: Tcp) -> bool | None:
    """Return whether the records of a connection were opened; None if that is not certain yet."""
    if tcp.half.is_opened or tcp.half.other.is_opened:
        return True
    if tcp.half.closed and tcp.half.other.closed:
        return False
    return None


def holds_records(tcp: Tcp) -> bool:
    """Return whether records wait to be opened: packets seen already may have completed them."""
    return tcp.tls.held_bytes > 0 and not (tcp.half.closed and tcp.half.other.closed)


def note_base(plain: Plain, segment: Segment) -> None:
    """Note where the sequence numbers of a direction begin, by its first segment."""
    if plain.base is None:
        plain.base = segment[1] + bool(segment[3] & SYN) & MASK


def make_segments(number: int, segment: Segment, plain: Plain, other: Plain) -> Iterator[Segment]:
    """Yield what packet `number` carries instead of `segment`: the plain bytes of its direction.

    `other` are the plain bytes of the other direction, which the segments acknowledge.
    """
    key, _, _, flags, _, _ = segment
    base, acknowledged = plain.base or 0, (other.base or 0) + other.sent + other.has_ended & MASK
    for start, data in plain.take(number):
        yield key, base + start & MASK, acknowledged, _PSH | ACK, data, 0
        if not flags & _LAST:
            flags = 0
    if flags:
        yield key, base + plain.sent & MASK, acknowledged, flags & ~_PSH, b"", 0
        plain.has_ended |= bool(flags & FIN)


def make_last(key: bytes, plain: Plain) -> Iterator[Segment]:
    """Yield segments with the bytes that no packet has carried by the end; `key` is that of the direction."""
    for start, data in plain.take():
        yield key, (plain.base or 0) + start & MASK, 0, _PSH | ACK, data, 0
