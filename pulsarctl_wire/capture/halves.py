"""One TCP connection: its two halves, whose bytes are put in order, and what waits in them.

The functions here are steps of `reassembly.Reassembler`. Those that may give many events put them into a list
and pause, so that whoever runs them can take the events out.
"""

import heapq
import sys
from collections.abc import Iterator
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.capture.lifecycle import Life, learn_direction
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session import Session
from pulsarctl_wire.wire.stream import FrameStream

PATIENCE: Final = 64
"""Packets of a connection after which acknowledged bytes that were not seen are given up."""
EARLY_COST: Final = 256
"""Of keeping a segment that came early, beside its bytes."""
MASK: Final = 0xFFFFFFFF
"""Of sequence numbers."""
HALF: Final = 0x80000000
"""Half of all sequence numbers: what is further ahead is behind."""

Early = tuple[int, int, int, bytes, int, int | None]
"""A segment that waits: sequence number, turn, packet, payload, missing, time in ns.

Its turn among those of both directions is its packet's number, or what waited behind it has that before.
"""


@mypyc_attr(allow_interpreted_subclasses=True)
class Half:
    """One direction of a TCP connection. Sequence numbers are not wrapped here."""

    __slots__ = (
        *("acknowledged", "begun", "closed", "early", "early_bytes", "ended", "fin", "held"),
        *("hole_at", "hole_turn", "next", "other", "patience", "stream", "syn", "tcp"),
    )
    other: "Half"
    tcp: "Tcp"

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.begun = False  # `next` is known
        self.next = 0  # the next byte's
        self.acknowledged = 0  # up to here by the peer
        self.early: list[Early] = []  # a heap
        self.early_bytes = 0
        self.hole_at = -1  # where the peer's acknowledgements last told of a hole
        self.hole_turn = 0  # the packet before the one that told
        self.patience = PATIENCE
        self.fin = -1
        self.syn: int | None = None
        self.closed = False  # no more bytes are taken
        self.ended = False  # its stream was closed
        self.held: list[Event] = []  # its last events, while it depends on the other half what to do

    def unwrap(self, sequence: int) -> int:
        """The number nearest to `next` that has these 32 bits."""
        return self.next + ((sequence - self.next + HALF) & MASK) - HALF

    def lacks(self, acknowledged: int) -> bool:
        """Whether the peer acknowledges bytes up to a sequence number that were not seen yet."""
        if self.closed:
            return False
        ahead = (acknowledged - self.next) & MASK
        return ahead > 0 and (ahead < HALF or not self.begun)

    @property
    def held_bytes(self) -> int:
        """Bytes that are in no event yet, and what it costs to keep them."""
        return self.early_bytes + self.stream.held_bytes

    @property
    def blocked(self) -> bool:
        """Whether bytes are known to be missing before anything else can be delivered."""
        return self.early[0][0] > self.next if self.early else self.hole_at == self.next

    @property
    def turn(self) -> int:
        """The turn of what comes next, be it there or missing."""
        first = self.early[0][1] if self.early else sys.maxsize
        return min(first, self.hole_turn) if self.hole_at == self.next else first


@mypyc_attr(allow_interpreted_subclasses=True)
class Tcp:
    """A TCP connection: the half it was first seen by (that knows the other) and its session."""

    __slots__ = (
        *("certain", "ended", "half", "keys", "last_ns", "last_packet", "life", "mark", "session"),
        "waiting",
    )

    def __init__(
        self, keys: tuple[bytes, bytes], session: Session, half: Half, certain: bool, life: Life
    ) -> None:
        self.keys = keys
        self.session = session
        self.half = half
        self.certain = certain  # which side is the broker
        half.stream.certain = half.other.stream.certain = certain
        self.ended = False
        self.waiting = False  # segments wait, in one half for others, in the other one for these
        self.last_packet, self.last_ns = life.packet, life.time_ns
        self.life = life
        self.mark: Any = None  # of whoever follows it


def tracked(tcp: Tcp, events: list[Event]) -> list[Event]:
    """Take the events of a connection out of `events`, once its session has followed them."""
    if not events:
        return []
    given = events[:]
    events.clear()
    track(tcp, given)
    return given


def track(tcp: Tcp, events: list[Event]) -> None:
    """Let the session of a connection follow its events."""
    if not tcp.certain:
        learn_direction(tcp, events)
    tcp.session.track(events)


def is_another(half: Half, sequence: int) -> bool:
    """Whether a SYN on the addresses of a connection opens another one."""
    return half.syn != sequence and (half.syn is not None or half.next not in (0, sequence + 1))


def begin(half: Half, sequence: int) -> None:
    """A SYN was seen: the bytes begin behind it."""
    half.syn = sequence
    if not half.begun:
        half.begun = True
        half.next = sequence + 1


def deliver(half: Half, segment: Early, events: list[Event]) -> Iterator[None]:
    """Give the stream the bytes of a segment that it does not have; they begin at `next` or before."""
    at, _, packet, payload, missing, time_ns = segment
    seen = half.next - at
    if seen >= len(payload) + missing:
        return
    if seen > len(payload):
        missing -= seen - len(payload)
    payload = payload[seen:]
    half.next += len(payload) + missing
    if payload:
        events += half.stream.take(payload, time_ns, packet)
        yield
        yield from take_rest(half, events)
    if missing:
        yield from settle(half, events)
        events += half.stream.gap(missing, time_ns, packet)


def take_rest(half: Half, events: list[Event]) -> Iterator[None]:
    """Take the events that are left out of a stream that has paused."""
    while half.stream.pending:
        events += half.stream.take_more()
        yield


def settle(half: Half, events: list[Event]) -> Iterator[None]:
    """Take the events out of a stream whose next bytes will not come."""
    while some := half.stream.settle():
        events += some
        yield


def release(tcp: Tcp, events: list[Event]) -> Iterator[None]:
    """Deliver what waits for nothing any more, in turns; what came behind a hole on the other half waits."""
    one, other = tcp.half, tcp.half.other
    while True:
        ready = [half for half in (one, other) if half.early and not half.blocked]
        if not ready:
            break
        half = min(ready, key=lambda half: half.turn)
        if half.other.blocked and half.other.turn < half.turn:
            break
        segment = heapq.heappop(half.early)
        half.early_bytes -= len(segment[3]) + EARLY_COST
        yield from deliver(half, segment, events)
    tcp.waiting = bool(one.early or other.early)


def give_up(half: Half, upto: int, events: list[Event]) -> Iterator[None]:
    """The bytes from `next` up to `upto`, or to the first early ones, will not come: a gap."""
    packet, time_ns = half.tcp.last_packet, None
    if half.early:
        upto = min(upto, half.early[0][0])
        packet, time_ns = half.early[0][2], half.early[0][5]
    yield from settle(half, events)
    events += half.stream.gap(upto - half.next, time_ns, packet)
    half.next = upto
    half.hole_at = -1
    yield from release(half.tcp, events)


def unblock(half: Half, events: list[Event]) -> Iterator[None]:
    """Give up the hole that the first segment of a half waits for, whichever half it is in."""
    blocked = half if half.blocked else half.other
    yield from give_up(blocked, blocked.early[0][0] if blocked.early else blocked.acknowledged, events)


def flush(half: Half, events: list[Event]) -> Iterator[None]:
    """Give the stream all that is left of a half, holes as gaps."""
    while half.early:
        yield from unblock(half, events)
    end = half.fin if half.fin >= 0 else half.acknowledged
    if half.begun and end > half.next:
        yield from give_up(half, end, events)
