"""Recognizes connections that were captured twice: the same packets, of which NAT has changed the addresses.

NAT leaves sequence numbers as they are, and those of two connections differ, because they begin at random.
So a connection is a copy of another one if both were first seen at about the same time, and

- both begin with the client's SYN, with the same sequence number and timestamp (or port of the client);
- or their first segments fit together, in the same direction or in opposite ones: the sequence and
  acknowledgement numbers are the same, or come next. If they are only near, both ports must be the same.
"""

from typing import Final

from pulsarctl_wire.capture.halves import HALF, MASK, Tcp
from pulsarctl_wire.capture.packets import ACK, SYN, Segment, reverse
from pulsarctl_wire.wire.ranges import Nanoseconds, UInt16, UInt32

Opening = tuple[bytes, UInt32, UInt32, UInt32, UInt16, Nanoseconds | None]
"""The first segment of a connection: key, sequence number, that of the next segment, acknowledgement number,
flags, time in ns.
"""

MAX_OPENINGS: Final = 256
"""The latest connections, with which a new one is compared."""
MAX_COPIES: Final = 8
"""Copies of a connection; further ones are connections of their own."""

_SOON: Final = 1_000_000_000  # ns between the openings of a connection and a copy
_NEAR: Final = 1 << 18  # bytes between the first segment of a connection and that of a copy
_MADE_UP: Final = 1 << 18  # lower sequence numbers are hardly random: somebody counts from 0


class Copies:
    """The known copies of connections, and what is needed to recognize more."""

    def __init__(self) -> None:
        self.keep = False
        """Whether copies are connections of their own."""
        self.total = 0
        """Packets that were captured again."""
        self.longer = 0
        """Connections whose copies go on after they do."""
        self.originals: dict[bytes, Tcp] = {}
        """Key of a copy's segments -> the connection that it is a copy of."""
        self._openings: dict[int | bytes, tuple[Opening, Tcp]] = {}

    @property
    def openings(self) -> list[tuple[Opening, Tcp]]:
        """The first segments of the connections opened last."""
        return list(self._openings.values())

    def note(self, opening: Opening, tcp: Tcp) -> None:
        """Note how connection `tcp` begins."""
        mark = _mark(opening)
        self._openings.pop(mark, None)
        self._openings[mark] = opening, tcp
        if len(self._openings) > MAX_OPENINGS:
            del self._openings[next(iter(self._openings))]

    def take(self, segment: Segment, time_ns: int | None) -> bool:
        """Count a segment on unknown addresses if it copies a known connection's; return whether it does."""
        key = segment[0]
        original = self.originals.get(key)
        if original is not None and segment[3] & SYN and not _has_syn(original, segment):
            for copy in (key, reverse(key)):  # these are the addresses of another connection now
                self.originals.pop(copy, None)
            original = None
        if original is None and not self.keep:
            original = self._recognize(segment, time_ns)
        if original is not None:
            self.count(original, 1, time_ns)
        return original is not None

    def _recognize(self, segment: Segment, time_ns: int | None) -> Tcp | None:
        """Return the original if the connection that this segment opens is a copy, and remember the copy."""
        if segment[3] & (SYN | ACK) == SYN:
            entry = self._openings.get(segment[1])
            entries = [] if entry is None else [entry]
        else:
            entries = self.openings
        for opening, tcp in entries:
            if len(tcp.copies) < 2 * MAX_COPIES and _is_soon(opening, time_ns):
                way = compare(opening, segment)
                if way:
                    key = segment[0] if way > 0 else reverse(segment[0])
                    if key not in tcp.life.also and len(tcp.life.also) < MAX_COPIES:
                        tcp.life.also += (key,)
                    self.add(key, tcp)
                    self.add(reverse(key), tcp)
                    return tcp
        return None

    def add(self, key: bytes, tcp: Tcp) -> None:
        """Note that the segments with this key are copies of `tcp`'s."""
        self.originals[key] = tcp
        tcp.copies += (key,)

    def count(self, tcp: Tcp, packets: int, last_ns: int | None) -> None:
        """Count packets of a copy of a connection.

        `last_ns` is when the last one was captured; None: not known, or the copy has the same addresses.
        """
        tcp.life.copies += packets
        tcp.life.copied_ns = last_ns if last_ns is not None else tcp.life.copied_ns
        self.total += packets

    def forget(self, tcp: Tcp) -> None:
        """Forget a connection and its copies."""
        for key in tcp.copies:
            if self.originals.get(key) is tcp:
                del self.originals[key]
        tcp.copies = ()
        for mark in (tcp.half.syn, tcp.keys[0]):
            if mark is not None and mark in self._openings and self._openings[mark][1] is tcp:
                del self._openings[mark]


def opening_of(segment: Segment, time_ns: int | None) -> Opening:
    """Return what is remembered of a connection that begins with this segment."""
    key, sequence, acknowledged, flags, payload, missing = segment
    end = sequence + len(payload) + missing + (1 if flags & SYN else 0) & MASK
    return key, sequence, end, acknowledged, flags, time_ns


def _mark(opening: Opening) -> int | bytes:
    """Return what an opening is found by: the number of a client's SYN; otherwise its key."""
    return opening[1] if opening[4] & (SYN | ACK) == SYN else opening[0]


def _is_soon(opening: Opening, time_ns: int | None) -> bool:
    opened_ns = opening[5]
    return time_ns is None or opened_ns is None or abs(time_ns - opened_ns) <= _SOON


def compare(opening: Opening, segment: Segment) -> int:
    """Tell whether a connection that begins with `segment` is a copy of the one that began with `opening`.

    Return 1 if it is, and both segments go the same way; -1 if they go opposite ways; 0 if it is no copy.
    """
    key, sequence, acknowledged, flags, _, _ = segment
    first_key, first_sequence, end, first_acknowledged, first_flags, _ = opening
    if sequence < _MADE_UP or first_sequence < _MADE_UP:
        return 0
    is_client_syn, was_client_syn = flags & (SYN | ACK) == SYN, first_flags & (SYN | ACK) == SYN
    if is_client_syn:
        is_same = was_client_syn and sequence == first_sequence
        is_same_time = acknowledged == first_acknowledged != 0  # a SYN has its timestamp there
        return 1 if is_same and (is_same_time or key[-4:-2] == first_key[-4:-2]) else 0
    if was_client_syn:  # this may answer a copy of that SYN, which was not captured
        is_answer = bool(flags & SYN) and acknowledged == end and key[-2:] == first_key[-4:-2]
        return -1 if is_answer else 0
    if acknowledged < _MADE_UP or first_acknowledged < _MADE_UP:
        return 0
    if acknowledged == first_acknowledged and sequence in (first_sequence, end):
        return 1
    if sequence == first_acknowledged and acknowledged in (first_sequence, end):
        return -1
    if _is_near(sequence, first_sequence) and _is_near(acknowledged, first_acknowledged):
        return 1 if key[-4:] == first_key[-4:] else 0
    if _is_near(sequence, first_acknowledged) and _is_near(acknowledged, first_sequence):
        return -1 if key[-4:] == first_key[-2:] + first_key[-4:-2] else 0
    return 0


def _is_near(number: int, other: int) -> bool:
    return abs((number - other + HALF & MASK) - HALF) <= _NEAR


def _has_syn(tcp: Tcp, segment: Segment) -> bool:
    """Return whether a SYN is one of the connection's; a SYN-ACK may also be one that was not seen."""
    numbers = (tcp.half.syn, tcp.half.other.syn)
    return segment[1] in numbers or bool(segment[3] & ACK and None in numbers)
