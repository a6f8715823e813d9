"""Keeps a TCP connection: its two halves, whose bytes it puts in order, what waits in them, how it ended.

The functions here are steps of `reassembly.Reassembler`. Those that may produce many events append them to a
list and yield now and then, so that the caller can take the events out.
"""

import heapq
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.capture.packets import NEXT, SYN, Segment, address_of, reverse
from pulsarctl_wire.wire.commands import TO_BROKER
from pulsarctl_wire.wire.frame import Event, Frame, HttpMessage
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.ranges import Nanoseconds, Place, UInt32, Unwrapped, Wrapped
from pulsarctl_wire.wire.session.ending import (
    CLOSED,
    OPEN,
    PULSAR,
    REFUSED,
    RESET,
    UNANSWERED,
    UNKNOWN,
    EndedConnection,
    LifeState,
)
from pulsarctl_wire.wire.session.state import State

PATIENCE: Final = 64
"""Packets that acknowledge undelivered bytes, after which the hole before these is given up."""
MAX_HANDSHAKE: Final = 64
"""Packets of a TLS handshake that are remembered, and those that a TLS record is spread over."""
_RESEND_NS: Final = 1_000_000  # ns; TCP sends no bytes again sooner
MAX_SPLIT_RECORDS: Final = 4_096
"""TLS records of a connection, spread over several packets, whose packets are remembered."""
EARLY_COST: Final = 256
"""Memory for an early segment, besides its payload, in bytes."""
MASK: Final = 0xFFFFFFFF
"""The mask of sequence numbers."""
HALF: Final = 0x80000000
"""Half of the sequence numbers: a number that is further ahead counts as behind."""

Early = tuple[Unwrapped, Place, Place, bytes, UInt32, Nanoseconds | None, Wrapped]
"""An early segment: sequence number, turn, packet, payload, missing, time in ns, acknowledgement number (-1:
none), which is wrapped.

Segments of both directions are delivered in the order of their turns. A segment's turn is the number of its
packet; one that fills a hole takes over the turn of what waits for it, if that is lower.
"""

NOTHING_EARLY: Final[list[Early]] = []
"""The heap that halves without early segments share: in a flood, most connections never have any."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Half:
    """One direction of a TCP connection. Sequence numbers are not wrapped here."""

    __slots__ = (
        *("acknowledged", "closed", "early", "early_bytes", "ended", "fin", "held"),
        *("hole_at", "hole_turn", "is_client", "is_opened", "is_plain", "next", "other", "patience"),
        *("started", "stream", "unfinished"),
        *("syn", "tcp"),
    )
    other: "Half"
    tcp: "Tcp"

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.is_client = stream.to_broker  # for TLS: stays, though commands may show the opposite
        self.is_plain = True  # nobody looks for TLS in its bytes: there is none, or there are no secrets
        self.unfinished: tuple[int, ...] = ()  # the packet that completed the last TLS record, and later ones
        self.is_opened = False  # its stream gets what was in TLS records, not the records
        self.started = False  # `next` is known
        self.next = 0  # the sequence number of the next byte
        self.acknowledged = 0  # the peer has acknowledged the bytes before this number
        self.early: list[Early] = NOTHING_EARLY  # a heap
        self.early_bytes = 0
        self.hole_at = -1  # where the peer's acknowledgements last showed a hole
        self.hole_turn = -1  # the packet before the one that showed it
        self.patience = PATIENCE
        self.fin = -1  # the sequence number of its FIN; -1: none seen
        self.syn: int | None = None
        self.closed = False  # no more bytes are taken
        self.ended = False  # its stream was closed
        self.held: Sequence[Event] = ()  # its last events, until the other half shows whether to report them

    def unwrap(self, sequence: int) -> int:
        """Return the number nearest to `next` whose lower 32 bits are `sequence`."""
        return self.next + ((sequence - self.next + HALF) & MASK) - HALF

    def lacks(self, acknowledged: int) -> bool:
        """Return whether bytes before this sequence number, which the peer acknowledges, are not seen yet."""
        if self.closed:
            return False
        ahead = (acknowledged - self.next) & MASK
        return ahead > 0 and (ahead < HALF or not self.started)

    @property
    def held_bytes(self) -> int:
        """Bytes that are in no event yet, and the memory to keep them."""
        return self.early_bytes + self.stream.held_bytes + self.stream.kept_bytes

    @property
    def is_blocked(self) -> bool:
        """Whether bytes are known to be missing before anything else can be delivered."""
        if self.early:
            return self.early[0][0] > self.next
        return self.acknowledged > self.next and not self.closed

    @property
    def is_waiting(self) -> bool:
        """Whether the first early segment acknowledges bytes of the other half that were not seen yet."""
        acknowledged = self.early[0][6]
        return acknowledged >= 0 and self.other.lacks(acknowledged)

    @property
    def turn(self) -> int:
        """The turn of the next segment, waiting or missing."""
        first = self.early[0][1] if self.early else sys.maxsize
        return min(first, self.hole_turn) if self.hole_at == self.next else first


class Life:
    """How a connection was opened and ended, as far as seen. Segments with only data change nothing, nor
    do segments after the end: both are only counted if they are copies.
    """

    __slots__ = (
        *("accepted", "also", "by_first", "copied_ns", "copies", "end", "end_ns", "last_ns", "packet"),
        *("reset", "syns", "time_ns"),
    )

    def __init__(self, time_ns: int | None, packet: int) -> None:
        self.time_ns = time_ns  # of its first packet
        self.packet = packet
        self.syns = 0  # of the client, including those sent again
        self.accepted = False  # the broker's SYN was seen
        self.end = OPEN
        self.end_ns: int | None = None
        self.by_first: bool | None = None  # whether the half that was seen first sent the first FIN or RST
        self.reset = False
        self.last_ns: int | None = None  # of its last packet, once it has ended
        self.copies = 0  # packets that were captured again
        self.copied_ns: int | None = None  # when the last packet of a copy with other addresses was captured
        self.also: tuple[bytes, ...] = ()  # the keys that its first half has in copies


@mypyc_attr(allow_interpreted_subclasses=True)
class Tcp:
    """A TCP connection: the half that sent its first packet (which knows the other) and its state."""

    __slots__ = (
        *("certain", "copies", "ended", "half", "is_synced", "keys", "last_ns", "last_packet", "life"),
        *("mark", "reported", "secrets", "since_synced", "state", "tls", "waiting"),
    )

    def __init__(
        self, keys: tuple[bytes, bytes], state: State, half: Half, certain: bool, life: Life
    ) -> None:
        self.keys = keys
        self.state = state
        self.half = half
        self.certain = certain  # whether it is certain which side is the broker
        half.stream.is_direction_certain = half.other.stream.is_direction_certain = certain
        self.ended = False
        self.waiting = False  # new segments must wait their turn, as bytes are missing in one of the halves
        self.last_packet, self.last_ns = life.packet, life.time_ns
        self.life = life
        self.reported = 0  # events of the current packet that `note_report` has numbered
        self.copies: tuple[bytes, ...] = ()  # keys of segments that are copies of its segments
        self.mark: Any = None  # for the caller's use, and so are the next two
        self.is_synced = False
        self.since_synced = 0  # packets
        self.secrets: Any = None  # the `Secrets` that open it if it is TLS; None: nobody looks
        self.tls: Any = None  # the `TlsConnection`, if it is one

    @property
    def held_bytes(self) -> int:
        """Bytes of both halves that are in no event yet, and the memory to keep them."""
        waiting: int = 0 if self.tls is None else self.tls.held_bytes
        return self.half.held_bytes + self.half.other.held_bytes + waiting


def take_tracked(tcp: Tcp, events: list[Event]) -> list[Event]:
    """Take the events of a connection out of `events`, after its state has tracked them."""
    if not events:
        return []
    batch = events[:]
    events.clear()
    now = tcp.last_ns
    if tcp.reported or any(event.time_ns != now for event in batch):
        note_report(tcp, batch)
    track(tcp, batch)
    return batch


def note_report(tcp: Tcp, events: list[Event]) -> None:
    """Note when events are reported, and in which order: some have waited for other bytes."""
    now = tcp.last_ns
    if now is not None:
        for event in events:
            tcp.reported += 1
            event.reported = now, tcp.reported


def track(tcp: Tcp, events: list[Event]) -> None:
    """Let the state of a connection track its events."""
    if not tcp.certain:
        learn_direction(tcp, events)
    tcp.state.track(events)


def learn_direction(tcp: Tcp, events: list[Event]) -> None:
    """Learn from the commands which side is the broker, if no SYN showed it."""
    for event in events:
        to_broker: bool | None = None
        if isinstance(event, Frame):
            to_broker = TO_BROKER.get(event.type)
        elif isinstance(event, HttpMessage):
            to_broker = not event.status
        if to_broker is None:
            continue
        if to_broker is not event.to_broker:
            connection = event.connection
            connection.client, connection.server = connection.server, connection.client
            connection.flipped = not connection.flipped
            for half in (tcp.half, tcp.half.other):
                half.stream.to_broker = not half.stream.to_broker
            for sibling in events:
                sibling.to_broker = not sibling.to_broker
        tcp.certain = tcp.half.stream.is_direction_certain = tcp.half.other.stream.is_direction_certain = True
        return


def is_another(half: Half, sequence: int) -> bool:
    """Return whether a SYN on the addresses of a connection opens a new one.

    It does not if it repeats the half's SYN. Nor does it if that was not seen, and this may be it: no segment
    of the half was seen before (`next` is 0), or none with bytes.
    """
    return half.syn != sequence and (half.syn is not None or half.next not in (0, sequence + 1))


def is_repeated(half: Half, segment: Segment, time_ns: int | None) -> bool:
    """Return whether a segment repeats the last bytes of its half, sooner than TCP could.

    After the end of the connection, none does: `life_state` hands over the time of the end, not of later
    packets, and every process must count the same.
    """
    _, sequence, _, flags, payload, missing = segment
    last_ns = None if half.tcp.ended else half.tcp.last_ns
    if time_ns is None or last_ns is None or not 0 <= time_ns - last_ns <= _RESEND_NS or flags & (SYN | NEXT):
        return False
    size = len(payload) + missing
    return size > 0 and half.started and (sequence + size - half.next) & MASK == 0


def begin(half: Half, sequence: int) -> None:
    """Note a SYN: the bytes begin after it."""
    half.syn = sequence
    if not half.started:
        half.started = True
        half.next = sequence + 1


def deliver(half: Half, segment: Early, events: list[Event]) -> Iterator[None]:
    """Pass the new bytes of a segment, which begins at `next` or before, to the stream."""
    start, _, packet, payload, missing, time_ns, _ = segment
    overlap = half.next - start
    if overlap >= len(payload) + missing:
        return
    if overlap > len(payload):
        missing -= overlap - len(payload)
    payload = payload[overlap:]
    half.next += len(payload) + missing
    if payload:
        if not half.is_plain:
            yield from decrypt(half, payload, time_ns, packet, events)
        if not half.is_opened:
            events += half.stream.take(payload, time_ns, packet)
            yield
            yield from take_rest(half, events)
    if missing:
        yield from skip(half, missing, time_ns, packet, events)


def decrypt(
    half: Half, payload: bytes, time_ns: int | None, packet: int, events: list[Event]
) -> Iterator[None]:
    """Pass the next bytes to TLS if they are, or may be, records; what is in these goes to the streams."""
    tcp, stream = half.tcp, half.stream
    if stream.spoke and not half.is_opened:
        half.is_plain = True
        return
    if tcp.tls is None and tcp.secrets is not None:
        tcp.tls = tcp.secrets.new_tls(payload, tcp.certain)
        if tcp.tls is None:
            half.is_plain = True
            return
        tcp.state.connection.tls = tcp.tls.facts
    if not half.is_opened and len(tcp.tls.facts.packets) < MAX_HANDSHAKE:
        tcp.tls.facts.packets.append(packet)
    pieces = tcp.tls.take(half.is_client, payload, time_ns, packet)
    earlier = tcp.tls.facts.earlier
    if any(piece[0] is half.is_client and piece[4] == packet for piece in pieces):
        if half.unfinished:
            earlier[packet] = half.unfinished
            if len(earlier) > MAX_SPLIT_RECORDS:
                del earlier[next(iter(earlier))]
        half.unfinished = ()
    half.unfinished = (*half.unfinished[1 - MAX_HANDSHAKE :], packet)
    yield from open_pieces(tcp, pieces, events)


def open_pieces(tcp: Tcp, pieces: list[Any], events: list[Event]) -> Iterator[None]:
    """Pass what was in TLS records to the streams; from the first piece on, a stream gets nothing else."""
    for from_client, data, missing, time_ns, packet in pieces:
        half = tcp.half if tcp.half.is_client is from_client else tcp.half.other
        if not half.is_opened:
            half.is_opened = True
            from_start = not missing and not tcp.tls.facts.is_midway
            fresh = FrameStream(
                tcp.state.connection, half.stream.to_broker, from_start=from_start, limit=half.stream.limit
            )
            half.stream.resume(fresh.state(), 0)  # reset, not replaced: the connection's state refers to it
        if missing:
            yield from settle(half, events)
            events += half.stream.gap(missing, time_ns, packet)
        if data:
            events += half.stream.take(data, time_ns, packet)
            yield
            yield from take_rest(half, events)


def skip(half: Half, size: int, time_ns: int | None, packet: int, events: list[Event]) -> Iterator[None]:
    """Pass a hole of `size` bytes to the stream, or to TLS, which knows how many of them were plain."""
    if half.tcp.tls is not None and not half.is_plain:
        yield from open_pieces(half.tcp, half.tcp.tls.gap(half.is_client, size, time_ns, packet), events)
    if not half.is_opened:
        yield from settle(half, events)
        events += half.stream.gap(size, time_ns, packet)


def take_rest(half: Half, events: list[Event]) -> Iterator[None]:
    """Take the remaining events from a stream that has paused."""
    while half.stream.has_more:
        events += half.stream.take_more()
        yield


def settle(half: Half, events: list[Event]) -> Iterator[None]:
    """Take the events from a stream whose next bytes will not come."""
    while batch := half.stream.settle():
        events += batch
        yield


def release(tcp: Tcp, events: list[Event]) -> Iterator[None]:
    """Deliver the early segments that are next, by turn, except those after a hole in the other half.

    The bytes that a segment acknowledges are delivered before it, unless both halves wait for each other.
    """
    first, second = tcp.half, tcp.half.other
    while True:
        ready = [half for half in (first, second) if half.early and not half.is_blocked]
        if not ready:
            break
        half = min(ready, key=lambda half: (half.is_waiting, half.turn))
        if half.other.is_blocked and (half.is_waiting or half.other.turn < half.turn):
            break
        segment = heapq.heappop(half.early)
        half.early_bytes -= len(segment[3]) + EARLY_COST
        yield from deliver(half, segment, events)
    tcp.waiting = bool(first.early or second.early)


def give_up(half: Half, upto: int, events: list[Event]) -> Iterator[None]:
    """Report the bytes from `next` up to `upto`, or up to the first early ones, as a gap."""
    packet, time_ns = half.tcp.last_packet, None
    if half.early:
        upto = min(upto, half.early[0][0])
        packet, time_ns = half.early[0][2], half.early[0][5]
    yield from skip(half, upto - half.next, time_ns, packet, events)
    half.next = upto
    half.hole_at = -1
    yield from release(half.tcp, events)


def unblock(half: Half, events: list[Event]) -> Iterator[None]:
    """Give up the hole, in either half, that the first early segment of `half` waits for."""
    blocked = half if half.is_blocked else half.other
    yield from give_up(blocked, blocked.early[0][0] if blocked.early else blocked.acknowledged, events)


def flush(half: Half, events: list[Event]) -> Iterator[None]:
    """Pass all remaining bytes of a half to its stream, holes as gaps."""
    while half.early:
        yield from unblock(half, events)
    end = half.fin if half.fin >= 0 else half.acknowledged
    if half.started and end > half.next:
        yield from give_up(half, end, events)


# -- from its SYN to its FIN or RST


def is_earlier(time_ns: int | None, other_ns: int | None) -> bool:
    """Return whether both times are known, and the first one is before the other."""
    return time_ns is not None and other_ns is not None and time_ns < other_ns


def note_end(half: Half, *, reset: bool) -> None:
    """Note that a half has sent FIN or RST. The sender of the first one has ended the connection.

    The first one is the one with the earlier time, as packets may be out of order.
    """
    tcp, life = half.tcp, half.tcp.life
    if tcp.ended:
        return
    life.reset |= reset
    if life.by_first is None or is_earlier(tcp.last_ns, life.end_ns):
        life.by_first = half is tcp.half
        life.end = RESET if reset else CLOSED
        life.end_ns = tcp.state.closed_ns = tcp.last_ns


def life_state(tcp: Tcp, first: Half) -> LifeState:
    """Return the life of a connection; `first` is the first half in the order of their keys."""
    life = tcp.life
    by_second = None if life.by_first is None else life.by_first is not (tcp.half is first)
    last_ns = life.last_ns if tcp.ended else tcp.last_ns
    values = life.syns, life.accepted, life.end, life.end_ns, by_second, life.reset, last_ns
    return LifeState(*values, life.copies, life.copied_ns, list(life.also))


def extend_life(tcp: Tcp, first: Half, later: LifeState) -> None:
    """Add the later part of a connection's life; `first` is the first half in the order of their keys."""
    life = tcp.life
    life.syns += later.syns
    life.accepted |= later.accepted
    life.reset |= later.reset
    life.copies += later.copies
    life.copied_ns = later.copied_ns if later.copied_ns is not None else life.copied_ns
    life.also += tuple([key for key in later.also if len(key) == len(tcp.keys[0])])
    tcp.last_ns = later.last_ns
    if life.by_first is None or is_earlier(later.end_ns, life.end_ns):
        life.end, life.end_ns = later.end, later.end_ns
        life.by_first = None if later.by_second is None else later.by_second is not (tcp.half is first)


def _ends(key: bytes) -> tuple[str, str]:
    return address_of(key), address_of(reverse(key))


def describe_end(tcp: Tcp) -> EndedConnection:
    """Return how a connection ended. Call this after its streams have ended."""
    life = tcp.life
    first, second = tcp.half, tcp.half.other
    client, broker = (first, second) if first.stream.to_broker else (second, first)
    sizes = broker.stream.position, client.stream.position
    end = life.end
    by_broker = None if life.by_first is None else life.by_first is (broker is first)
    if life.syns and not life.accepted:
        if end == RESET and by_broker and not any(sizes):
            end = REFUSED
        elif not broker.started:
            end, by_broker = UNANSWERED, None
    protocol = client.stream.protocol or broker.stream.protocol or (UNKNOWN if any(sizes) else None)
    if client.stream.spoke or broker.stream.spoke:
        protocol = PULSAR
    return EndedConnection(
        connection=first.stream.connection,
        state=tcp.state,
        packet=life.packet,
        time_ns=life.time_ns,
        last_ns=tcp.last_ns,
        syns=life.syns,
        joined=not (life.syns or life.accepted),
        end=end,
        by_broker=by_broker,
        end_ns=None if by_broker is None else life.end_ns,
        both=life.reset or min(client.fin, broker.fin) >= 0,
        protocol=protocol,
        sizes=sizes,
        copies=life.copies,
        copied_ns=life.copied_ns,
        also=tuple([_ends(key) if client is first else _ends(reverse(key)) for key in life.also]),
    )
