"""TCP segments as the two byte streams of each connection, and those as frames.

A connection is known by its addresses and ports; a SYN with another sequence number on the same ones
is a new connection. Bytes are taken in sequence order; what comes twice is dropped, what comes early
waits. A hole is given up as a `Gap` when it is certain that its bytes will not come any more:

- the peer has acknowledged them (so they were sent and arrived) and `PATIENCE` more packets of the
  connection have passed: enough for captures whose packets are not in order;
- more than `MAX_EARLY` bytes wait behind it;
- the connection ends, or the capture does.

Meanwhile the other half's later segments wait too: answers never come before their requests.

Memory: a connection holds at most `MAX_EARLY` early bytes and the beginning of one frame a direction
(`FrameStream` bounds that). Ended connections are forgotten `LINGER` later ones on; of more than
`MAX_CONNECTIONS` open ones those silent for longest are ended.
"""

import heapq
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from crc32c import crc32c
from mypy_extensions import mypyc_attr

from pulsarctl_wire.capture.lifecycle import Life, ending, learn_direction, note_end
from pulsarctl_wire.capture.packets import ACK, FIN, RST, SYN, Segment, address_of, endpoint_of, reverse
from pulsarctl_wire.wire.ending import DROPPED, OPEN, REUSED, Ending
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Connection, Event
from pulsarctl_wire.wire.session import Knowledge, Session
from pulsarctl_wire.wire.stream import FrameStream

PATIENCE: Final = 64
"""Packets of a connection after which acknowledged bytes that were not seen are given up."""
MAX_EARLY: Final = 8 * 1024 * 1024
MAX_CONNECTIONS: Final = 65_536
LINGER: Final = 1_024

NewSession = Callable[[Connection, Knowledge, Iterable[FrameStream]], Session]
OnEnd = Callable[[Ending], object]

_MASK: Final = 0xFFFFFFFF
_ENDING: Final = FIN | RST
_HALF: Final = 0x80000000
_PULSAR_PORTS: Final = {port.to_bytes(2, "big") for port in (6650, 6651)}
_OTHER_TRAFFIC: Final = {"HTTP", "SSH"}  # TLS is not: Pulsar may be in it
EARLY_COST: Final = 256  # of keeping a segment, beside its bytes

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
        return self.next + ((sequence - self.next + _HALF) & _MASK) - _HALF

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


_ELSEWHERE: Final = Half(FrameStream(Connection(-1), True))
"""Stands for the halves of connections that another process follows."""
_ELSEWHERE.other = _ELSEWHERE
_FORGOTTEN: Final = Tcp(
    (b"", b""), Session(_ELSEWHERE.stream.connection, Knowledge()), _ELSEWHERE, False, Life(None, 0)
)
"""Stands for the connection of halves that were forgotten."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Reassembler:
    """Takes the TCP segments of a capture and gives the events of all its connections, in order.

    Frames come numbered and with what their sessions know of them. `limit` is the largest legal frame
    in bytes; `knowledge` is what the sessions share. `share` (part, parts) makes it follow only its
    part of the connections, where several processes divide the work. `new_session` makes the session of
    a connection. `on_end` is told what became of each, once its session has seen all its events.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        *,
        limit: int = MAX_FRAME_SIZE,
        share: tuple[int, int] = (0, 1),
        new_session: NewSession = Session,
        on_end: OnEnd | None = None,
    ) -> None:
        self.connections = 0
        """TCP connections seen so far."""
        self.other_traffic: Counter[str] = Counter()
        """Connections by the other protocol that both of their sides speak."""
        self.new_session = new_session
        self._knowledge = knowledge
        self._limit = limit
        self._share = share
        self._halves: dict[bytes, Half] = {}
        self._ended: deque[Tcp | None] = deque()
        self._on_end = on_end
        self._untold: list[Tcp] = []  # what became of them
        self._servers: set[bytes] = set()
        self._owners: dict[bytes, int] = {}

    def add(self, segment: Segment, time_ns: int | None, packet: int) -> list[Event]:
        """Take the segment of packet number `packet`; give the events that it completes."""
        key, sequence, acknowledged, flags, payload, missing = segment
        half = self._halves.get(key)
        before: list[Event] = []  # of connections that this segment ends
        events: list[Event] = []
        if half is None or flags & SYN:
            half = self._open(key, sequence, flags, time_ns, packet, before)
        if half is None or half is _ELSEWHERE:
            return before
        tcp = half.tcp
        tcp.last_packet, tcp.last_ns = packet, time_ns
        if flags & SYN:
            sequence += 1  # it counts as one byte; what it carries comes behind it
            if flags & ACK:
                tcp.life.accepted = True
            else:
                tcp.life.syns += 1
        other = half.other
        if flags & ACK and not other.closed:
            ahead = (acknowledged - other.next) & _MASK
            if 0 < ahead < _HALF or (ahead and not other.begun):
                self._acknowledge(other, acknowledged, events)
        if payload or missing:
            if sequence == half.next & _MASK and half.begun and not (missing or tcp.waiting or half.closed):
                half.next += len(payload)  # the usual case: the very next bytes
                fed = half.stream.feed(payload, time_ns, packet)
                events = events + fed if events else fed
                if half.fin >= 0:
                    self._check_ends(half, events)
            else:
                self._take(half, sequence, payload, missing, time_ns, packet, events)
        elif not half.begun:
            half.begun = True
            half.next = sequence
        if flags & _ENDING:
            self._finish(half, sequence + len(payload) + missing, flags, events)
        if events:
            if not tcp.certain:
                learn_direction(tcp, events)
            tcp.session.track(events)
        if self._untold:
            self._tell()
        return before + events if before else events

    def connection(self, key: bytes) -> Tcp | None:
        """The connection that a segment's key belongs to."""
        half = self._halves.get(key)
        return None if half is None else half.tcp

    def ended(self, tcp: Tcp) -> None:
        """Take note that a connection has ended: it is remembered for a while."""
        tcp.ended = True
        if self._on_end is not None:
            self._untold.append(tcp)
        self._remember(tcp)

    def _remember(self, tcp: Tcp | None) -> None:
        """Take note of a connection that has ended; None: another one has its addresses already."""
        self._ended.append(tcp)
        if len(self._ended) > LINGER:
            oldest = self._ended.popleft()
            if oldest is not None:
                self.forget(oldest)

    def close(self) -> Iterator[list[Event]]:
        """End all connections, as the capture ends; give the events that are left, by connection."""
        for tcp in self._known():
            yield self._close(tcp, OPEN)
        self._halves.clear()

    # -- handing over to a process that goes on from here

    def state(self) -> tuple[list[Tcp], list[int], set[bytes]]:
        """The connections that are known; which of them have ended, in order (-1: known no more); servers."""
        known = self._known()
        places = {tcp: place for place, tcp in enumerate(known)}
        return known, [-1 if tcp is None else places.get(tcp, -1) for tcp in self._ended], self._servers

    def resume(self, connections: int, known: list[Tcp], ended: list[int], servers: set[bytes]) -> None:
        """Go on from a `state` whose connections were made by `new`; there were `connections` before."""
        self.connections = connections
        self._servers = servers
        for place in ended:
            self._remember(None if place < 0 else known[place])

    # -- opening

    def _open(
        self, key: bytes, sequence: int, flags: int, time_ns: int | None, packet: int, events: list[Event]
    ) -> Half | None:
        """The half that a segment belongs to which is the first one seen, or has SYN set.

        None if the connection is somebody else's to follow (see `share`).
        """
        half = self._halves.get(key)
        if half is _ELSEWHERE:
            return None
        if half is not None:
            if half.syn == sequence or (half.syn is None and half.next in (0, sequence + 1)):
                _begin(half, sequence)
                return half
            events += self._close(half.tcp, REUSED)
        back = reverse(key)
        opened = bool(flags & SYN)
        to_broker = not flags & ACK if opened else self._guess(key, back)
        if opened and len(self._servers) < MAX_CONNECTIONS:
            self._servers.add(endpoint_of(back if to_broker else key))
        if self._share[1] > 1 and not self._is_mine(min(key, back)):
            self._halves[key] = self._halves[back] = _ELSEWHERE
            return None
        half = self.new(key, to_broker, opened, time_ns, packet).half
        if opened:
            _begin(half, sequence)
        if len(self._halves) > 2 * MAX_CONNECTIONS:
            self._evict(events)
        return half

    def new(
        self, key: bytes, to_broker: bool, opened: bool, time_ns: int | None = None, packet: int = 0
    ) -> Tcp:
        """A connection, first seen by the half with this key; `opened`: its first byte is the next one."""
        back = reverse(key)
        ends = address_of(key), address_of(back)
        connection = Connection(self.connections, *(ends if to_broker else ends[::-1]))
        self.connections += 1
        half = Half(FrameStream(connection, to_broker, from_start=opened, limit=self._limit))
        other = Half(FrameStream(connection, not to_broker, from_start=opened, limit=self._limit))
        half.other, other.other = other, half
        streams = (half.stream, other.stream) if to_broker else (other.stream, half.stream)
        session = self.new_session(connection, self._knowledge, streams)
        tcp = half.tcp = other.tcp = Tcp((key, back), session, half, opened, Life(time_ns, packet))
        self._halves[key], self._halves[back] = half, other
        return tcp

    def _is_mine(self, pair: bytes) -> bool:
        """Whether a connection is this process's to follow: they take turns, in order of appearance."""
        part, parts = self._share
        if pair not in self._owners:
            if len(self._owners) >= MAX_CONNECTIONS:
                return crc32c(pair) % parts == part
            self._owners[pair] = len(self._owners) % parts
        return self._owners[pair] == part

    def _guess(self, key: bytes, back: bytes) -> bool:
        """Whether the sender of a segment is the client, where no SYN tells."""
        known = endpoint_of(key) in self._servers, endpoint_of(back) in self._servers
        if known[0] != known[1]:
            return known[1]
        source, target = key[-4:-2], key[-2:]
        if (source in _PULSAR_PORTS) != (target in _PULSAR_PORTS):
            return target in _PULSAR_PORTS
        return source > target  # the lower port is the server's more often than not

    # -- bytes

    def _take(
        self,
        half: Half,
        sequence: int,
        payload: bytes,
        missing: int,
        time_ns: int | None,
        packet: int,
        events: list[Event],
    ) -> None:
        """Take bytes that are not simply the next ones."""
        if half.closed:
            return
        if not half.begun:
            half.begun = True
            half.next = sequence
        at = half.unwrap(sequence)
        if at + len(payload) + missing <= half.next:
            return  # all of it was seen before
        if at > half.next or half.tcp.waiting:
            turn = packet
            if at <= half.next:
                turn = min(packet, half.turn)
            elif half.early and at < half.early[0][0]:
                turn = min(packet, half.early[0][1])
            heapq.heappush(half.early, (at, turn, packet, payload, missing, time_ns))
            half.early_bytes += len(payload) + EARLY_COST
            _release(half.tcp, events)
            while half.early_bytes > MAX_EARLY:
                _unblock(half, events)
        else:
            _deliver(half, (at, packet, packet, payload, missing, time_ns), events)
        self._check_ends(half, events)

    def _acknowledge(self, half: Half, acknowledged: int, events: list[Event]) -> None:
        """The peer has bytes of this half that were not seen: late in the capture, or missing in it."""
        if not half.begun:
            if half.tcp.certain:  # its SYN was lost: this is where its bytes begin
                half.begun = True
                half.next = acknowledged
            return
        upto = half.unwrap(acknowledged)
        if half.fin >= 0:
            upto = min(upto, half.fin)
        if upto <= half.next:
            return
        if half.early and not half.blocked:  # they wait for a hole on the other half, and so does this packet
            half, upto = half.other, half.other.acknowledged
            if upto <= half.next:
                return
        if half.hole_at != half.next:
            half.hole_at = half.next
            half.hole_turn = half.tcp.last_packet - 1
            half.patience = PATIENCE
        half.acknowledged = max(half.acknowledged, upto)
        half.patience -= 1
        if half.patience <= 0:
            _give_up(half, half.acknowledged, events)
            self._check_ends(half, events)
        else:
            half.tcp.waiting = True

    # -- ends

    def _finish(self, half: Half, sequence: int, flags: int, events: list[Event]) -> None:
        if flags & RST:
            if not half.begun or abs(half.unwrap(sequence) - half.next) <= MAX_EARLY:
                note_end(half, reset=True)
                events += self._end_halves(half.tcp)
        elif half.begun and not half.closed:
            note_end(half, reset=False)
            half.fin = max(half.unwrap(sequence), half.next)  # what was delivered came before it
            half.acknowledged = min(half.acknowledged, half.fin)
            self._check_ends(half, events)

    def _check_ends(self, half: Half, events: list[Event]) -> None:
        """Close the halves whose FIN was reached; one that closes may let the other one go on."""
        for each in (half, half.other):
            if 0 <= each.fin <= each.next and not each.closed:
                each.closed = True
                each.hole_at = -1
                self._close_stream(each, events)
                _release(each.tcp, events)
                if each.other.closed:
                    self._end_halves(each.tcp)

    def _end_halves(self, tcp: Tcp) -> list[Event]:
        """End both directions; the connection is remembered for a while, for its late segments."""
        events: list[Event] = []
        for half in (tcp.half, tcp.half.other):
            if not half.closed:
                half.closed = True
                _flush(half, events)
                self._close_stream(half, events)
        if not tcp.ended:
            self.ended(tcp)
        return events

    def _close_stream(self, half: Half, events: list[Event]) -> None:
        """End a stream. Where both sides speak the same other protocol it is other traffic: only counted."""
        left = half.stream.close()
        protocol = half.stream.protocol
        if protocol in _OTHER_TRAFFIC and not half.other.ended:
            half.held = left  # what the other side speaks is not known yet
        elif protocol in _OTHER_TRAFFIC and half.other.stream.protocol == protocol:
            self.other_traffic[protocol] += 1
        else:
            events += half.other.held + left
        half.ended = True

    def _close(self, tcp: Tcp, end: str) -> list[Event]:
        """End a connection, because of `end`, and forget it; give its last events, as `add` does."""
        if tcp.life.by_first is None:
            tcp.life.end = end
        events = self._end_halves(tcp)
        if not tcp.certain:
            learn_direction(tcp, events)
        tcp.session.track(events)
        self._tell()
        return events

    def _tell(self) -> None:
        """Say what became of the connections that have ended."""
        while self._untold and self._on_end is not None:
            self._on_end(ending(self._untold.pop(0)))

    def forget(self, tcp: Tcp) -> None:
        """Let the next segment on a connection's addresses open another one."""
        for key in tcp.keys:
            half = self._halves.get(key)
            if half is not None and half.tcp is tcp:
                del self._halves[key]
        # no cycles are left: the memory is free at once, not when it is collected some time
        tcp.half.tcp = tcp.half.other.tcp = _FORGOTTEN
        tcp.half.other.other = _ELSEWHERE

    def _known(self) -> list[Tcp]:
        return list(dict.fromkeys(half.tcp for half in self._halves.values() if half is not _ELSEWHERE))

    def _evict(self, events: list[Event]) -> None:
        """Too many connections: end the tenth of them that has been silent for longest."""
        everyone = sorted(self._known(), key=lambda tcp: tcp.last_packet)
        for key in [key for key, half in self._halves.items() if half is _ELSEWHERE]:
            del self._halves[key]
        for tcp in everyone[: len(everyone) // 10]:
            events += self._close(tcp, DROPPED)
            self.forget(tcp)


def _begin(half: Half, sequence: int) -> None:
    """A SYN was seen: the bytes begin behind it."""
    half.syn = sequence
    if not half.begun:
        half.begun = True
        half.next = sequence + 1


def _deliver(half: Half, segment: Early, events: list[Event]) -> None:
    """Give the stream the bytes of a segment that it does not have; they begin at `next` or before."""
    at, _, packet, payload, missing, time_ns = segment
    seen = half.next - at
    if seen >= len(payload) + missing:
        return
    if seen > len(payload):
        missing -= seen - len(payload)
    payload = payload[seen:]
    if payload:
        events += half.stream.feed(payload, time_ns, packet)
    if missing:
        events += half.stream.gap(missing, time_ns, packet)
    half.next += len(payload) + missing


def _release(tcp: Tcp, events: list[Event]) -> None:
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
        _deliver(half, segment, events)
    tcp.waiting = bool(one.early or other.early)


def _give_up(half: Half, upto: int, events: list[Event]) -> None:
    """The bytes from `next` up to `upto`, or to the first early ones, will not come: a gap."""
    packet, time_ns = half.tcp.last_packet, None
    if half.early:
        upto = min(upto, half.early[0][0])
        packet, time_ns = half.early[0][2], half.early[0][5]
    events += half.stream.gap(upto - half.next, time_ns, packet)
    half.next = upto
    half.hole_at = -1
    _release(half.tcp, events)


def _unblock(half: Half, events: list[Event]) -> None:
    """Give up the hole that the first segment of a half waits for, whichever half it is in."""
    blocked = half if half.blocked else half.other
    _give_up(blocked, blocked.early[0][0] if blocked.early else blocked.acknowledged, events)


def _flush(half: Half, events: list[Event]) -> None:
    """Give the stream all that is left of a half, holes as gaps."""
    while half.early:
        _unblock(half, events)
    end = half.fin if half.fin >= 0 else half.acknowledged
    if half.begun and end > half.next:
        _give_up(half, end, events)
