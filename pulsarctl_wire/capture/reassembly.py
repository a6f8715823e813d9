"""Reassembles TCP segments into the two byte streams of each connection, and decodes these into frames.

A connection is identified by its addresses and ports; a SYN with another sequence number on the same ones
is a new connection. Bytes are taken in sequence order; duplicates are dropped, early segments
wait. A hole is given up as a `Gap` when it is certain that its bytes will not come any more:

- the peer has acknowledged them (so they were sent and arrived), and so far `halves.PATIENCE` packets have
  acknowledged bytes from there on: enough for captures whose packets are not in order;
- more than `MAX_EARLY` bytes wait after it;
- the connection or the capture ends.

Until then the other half's later segments wait too, so that answers never come before their requests.

Memory: a connection holds at most `MAX_EARLY` early bytes and the beginning of one frame per direction
(`FrameStream` bounds that). If all connections hold more than `MAX_HELD` bytes, those that hold most are
ended. An ended connection is forgotten after `LINGER` later ones. If more than `MAX_CONNECTIONS` are open,
those idle for longest are ended. A segment's events are returned about `MAX_EVENTS` at a time.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.capture.copies import Copies, opening_of
from pulsarctl_wire.capture.halves import (
    EARLY_COST,
    MASK,
    NOTHING_EARLY,
    PATIENCE,
    Half,
    Life,
    Tcp,
    begin,
    deliver,
    describe_end,
    flush,
    give_up,
    is_another,
    is_repeated,
    note_end,
    note_report,
    open_pieces,
    release,
    settle,
    take_rest,
    take_tracked,
    track,
    unblock,
)
from pulsarctl_wire.capture.packets import ACK, FIN, NEXT, RST, SYN, Segment, address_of, endpoint_of, reverse
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, PACKET_OFFSET_MASK, Connection, Event, HttpMessage
from pulsarctl_wire.wire.framing.stream import MAX_EVENTS, FrameStream
from pulsarctl_wire.wire.session.ending import DROPPED, OPEN, REUSED, EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.state import State

MAX_EARLY: Final = 8 * 1024 * 1024
MAX_HELD: Final = 192 * 1024 * 1024
MAX_CONNECTIONS: Final = 65_536
LINGER: Final = 1_024

NewState = Callable[[Connection, Knowledge, Iterable[FrameStream]], State]
OnEnd = Callable[[EndedConnection], object]

_ENDING: Final = FIN | RST
_UNUSUAL: Final = SYN | FIN | RST | NEXT
_CHECK_EVERY: Final = 32 * 1024 * 1024  # bytes held after which `MAX_HELD` is checked
_PULSAR_PORTS: Final = {port.to_bytes(2, "big") for port in (6650, 6651)}
OTHER_TRAFFIC: Final = {"HTTP", "SSH"}  # TLS is not: Pulsar may be in it

_NO_HALF: Final = Half(FrameStream(Connection(-1), True))
_NO_HALF.other = _NO_HALF
_FORGOTTEN: Final = Tcp(
    (b"", b""), State(_NO_HALF.stream.connection, Knowledge()), _NO_HALF, False, Life(None, 0)
)
"""The connection of halves that were forgotten."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Reassembler:
    """Takes the TCP segments of a capture and returns the events of all its connections, in order.

    Frames are numbered and annotated by the state of their connection. `limit` is the largest legal frame
    in bytes; `knowledge` is what the states share. `new_state` makes the state of a connection. `on_end` is
    called with the `EndedConnection` of each connection, once its state has seen all its events. A connection
    that is a copy of another one is left out, unless `copies.keep`. `secrets` open TLS records. With
    `WebStream` as `stream_type`, lookups over HTTP are events, too.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        *,
        limit: int = MAX_FRAME_SIZE,
        new_state: NewState = ExchangeState,
        on_end: OnEnd | None = None,
        secrets: Secrets | None = None,
        stream_type: type[FrameStream] = FrameStream,
    ) -> None:
        self.connections = 0
        """TCP connections seen so far."""
        self.other_traffic: Counter[str] = Counter()
        """Number of connections whose two sides both speak the same of `OTHER_TRAFFIC`, by protocol."""
        self.new_state = new_state
        self.knowledge = knowledge
        self._limit = limit
        self.secrets = secrets
        self._halves: dict[bytes, Half] = {}
        self._ended: deque[Tcp | None] = deque()
        self._on_end = on_end
        self._stream_type = stream_type
        self._unreported: list[Tcp] = []  # ended connections for `on_end`
        self._servers: set[bytes] = set()
        self._steps: Iterator[list[Event]] | None = None  # of the last segment
        self.copies = Copies()
        self._held = 0  # bytes held since `MAX_HELD` was last checked

    def add(self, segment: Segment, time_ns: int | None, packet: int) -> list[Event]:
        """Take the segment of packet number `packet`; return the first events that it completes.

        The caller must then call `take_more` until it returns none.
        """
        key, sequence, acknowledged, flags, payload, missing = segment
        half = self._halves.get(key)
        if half is None or flags & _UNUSUAL or not half.started or missing:
            return self._start(self._add_slowly(segment, time_ns, packet))
        tcp, peer = half.tcp, half.other
        if flags & ACK and peer.lacks(acknowledged):
            return self._start(self._add_slowly(segment, time_ns, packet))
        is_out_of_turn = sequence != half.next & MASK or tcp.waiting
        if payload and (is_out_of_turn or half.closed or half.fin >= 0 or not half.is_plain):
            return self._start(self._add_slowly(segment, time_ns, packet))
        tcp.last_packet, tcp.last_ns, tcp.reported = packet, time_ns, 0
        half.next += len(payload)  # the usual case: the very next bytes
        if not payload:
            return []
        events = half.stream.take(payload, time_ns, packet)
        if events:
            if half.stream.has_more:
                later: list[Event] = []
                self._steps = self._collect(tcp, take_rest(half, later), later)
            if events[0].time_ns != time_ns:
                note_report(tcp, events)
            track(tcp, events)
            return events
        self._held += len(payload)
        return self._start(self._limit_held()) if self._held > _CHECK_EVERY else events

    def take_more(self) -> list[Event]:
        """Return more events of the last segment; none once all were returned."""
        if self._steps is not None:
            for events in self._steps:
                return events
            self._steps = None
        return []

    def _start(self, steps: Iterator[list[Event]]) -> list[Event]:
        self._steps = steps
        return self.take_more()

    def _add_slowly(self, segment: Segment, time_ns: int | None, packet: int) -> Iterator[list[Event]]:
        """Yield the events of a segment that is not just the next bytes of its connection."""
        key, sequence, _, flags, _, _ = segment
        half = self._halves.get(key)
        if half is None or flags & SYN:
            if half is not None and is_another(half, sequence):
                yield from self._close(half.tcp, REUSED)
                self.forget(half.tcp)
                half = None
            if half is None:
                if self.copies.take(segment, time_ns):
                    return
                half = self._open(key, flags, time_ns, packet)
                self.copies.note(opening_of(segment, time_ns), half.tcp)
                if len(self._halves) > 2 * MAX_CONNECTIONS:
                    yield from self._evict()
            if flags & SYN:
                begin(half, sequence)
        tcp = half.tcp
        if is_repeated(half, segment, time_ns):
            self.copies.count(tcp, 1, None)
        tcp.last_packet, tcp.last_ns = packet, time_ns
        if flags & NEXT and half.started:
            sequence = half.next & MASK
        if flags & SYN:
            sequence += 1  # SYN counts as one byte; its payload comes after that
            if flags & ACK:
                tcp.life.accepted |= not tcp.ended
            else:
                tcp.life.syns += not tcp.ended
        events: list[Event] = []
        yield from self._collect(tcp, self._follow(half, sequence, segment, events), events)
        if self._held > _CHECK_EVERY:
            yield from self._limit_held()

    def _collect(self, tcp: Tcp, steps: Iterator[None], events: list[Event]) -> Iterator[list[Event]]:
        """Yield the events of `tcp` that `steps` puts into `events`, a portion at a time."""
        tcp.reported = 0
        for _ in steps:
            if len(events) >= MAX_EVENTS:
                yield take_tracked(tcp, events)
        last = take_tracked(tcp, events)
        if tcp.ended:
            tcp.state.end()
        self.report()
        if last:
            yield last

    def _follow(self, half: Half, sequence: int, segment: Segment, events: list[Event]) -> Iterator[None]:
        """Apply the last segment, whose bytes begin at `sequence`; pauses for the caller to take events."""
        _, _, acknowledged, flags, payload, missing = segment
        peer = half.other
        if flags & ACK and peer.lacks(acknowledged):
            yield from self._acknowledge(peer, acknowledged, events)
        if payload or missing:
            yield from self._take(half, sequence, segment, events)
        elif not half.started:
            half.started = True
            half.next = sequence
        if flags & _ENDING:
            yield from self._finish(half, sequence + len(payload) + missing, flags, events)

    def connection(self, key: bytes) -> Tcp | None:
        """Return the connection that a segment's key belongs to."""
        half = self._halves.get(key)
        return None if half is None else half.tcp

    def record_end(self, tcp: Tcp) -> None:
        """Record that a connection has ended; it is remembered for a while."""
        tcp.ended = True
        tcp.life.last_ns = tcp.last_ns
        if self._on_end is not None:
            self._unreported.append(tcp)
        self._remember(tcp)

    def report(self) -> None:
        """Call `on_end` with the connections that have ended since the last call."""
        while self._unreported and self._on_end is not None:
            ending = describe_end(self._unreported.pop(0))
            self.copies.longer += ending.has_longer_copy
            self._on_end(ending)

    def _remember(self, tcp: Tcp | None) -> None:
        """Remember an ended connection; None: another one uses its addresses already."""
        self._ended.append(tcp)
        if len(self._ended) > LINGER:
            oldest = self._ended.popleft()
            if oldest is not None:
                self.forget(oldest)

    def close(self) -> Iterator[list[Event]]:
        """End all connections at the end of the capture, by their numbers; yield the remaining events."""
        while events := self.take_more():
            yield events
        tcps = sorted(self._list_connections(), key=lambda tcp: tcp.state.connection.index)
        for tcp in tcps:  # before any state ends, or held sends would look like resends of unanswered ones
            last: list[Event] = []
            tcp.reported = 0
            for _ in self._close_halves(tcp, last):
                if len(last) >= MAX_EVENTS:
                    yield take_tracked(tcp, last)
            if events := take_tracked(tcp, last):
                yield events
        for tcp in tcps:
            yield from self._close(tcp, OPEN)
        self._halves.clear()

    def retry(self) -> Iterator[list[Event]]:
        """Yield the events in the TLS records that have waited for secrets, after new ones came."""
        for tcp in self._list_connections():
            if tcp.tls is not None and tcp.tls.held_bytes and not tcp.ended:
                events: list[Event] = []
                yield from self._collect(tcp, open_pieces(tcp, tcp.tls.retry(), events), events)

    # -- handing over to a process that continues from here

    def state(self) -> tuple[list[Tcp], list[int], set[bytes]]:
        """Return the known connections; indexes of the ended ones, in order (-1: forgotten); the servers."""
        tcps = self._list_connections()
        places = {tcp: place for place, tcp in enumerate(tcps)}
        return tcps, [-1 if tcp is None else places.get(tcp, -1) for tcp in self._ended], self._servers

    def resume(self, connections: int, tcps: list[Tcp], indexes: list[int], servers: set[bytes]) -> None:
        """Continue from a `state` whose connections were made by `new`; there were `connections` so far."""
        self.connections = connections
        self._servers = servers
        for place in indexes:
            self._remember(None if place < 0 else tcps[place])

    # -- opening

    def _open(self, key: bytes, flags: int, time_ns: int | None, packet: int) -> Half:
        """Open a connection; return the half that its first segment belongs to."""
        back = reverse(key)
        has_syn = bool(flags & SYN)
        to_broker = not flags & ACK if has_syn else self._is_from_client(key, back)
        if has_syn and len(self._servers) < MAX_CONNECTIONS:
            self._servers.add(endpoint_of(back if to_broker else key))
        return self.new(key, to_broker, has_syn, time_ns, packet).half

    def new(
        self, key: bytes, to_broker: bool, from_start: bool, time_ns: int | None = None, packet: int = 0
    ) -> Tcp:
        """Add a connection by its first packet; `from_start`: nothing came before, `to_broker` is certain."""
        back = reverse(key)
        ends = address_of(key), address_of(back)
        since = packet & PACKET_OFFSET_MASK if time_ns is None else time_ns  # no time: its offset in the file
        connection = Connection(self.connections, *(ends if to_broker else ends[::-1]), since)
        listeners = self.knowledge.listeners
        connection.listener = listeners.get(ends) or listeners.get(ends[::-1], "")
        self.connections += 1
        half = Half(self._stream_type(connection, to_broker, from_start=from_start, limit=self._limit))
        peer = Half(self._stream_type(connection, not to_broker, from_start=from_start, limit=self._limit))
        half.other, peer.other = peer, half
        streams = (half.stream, peer.stream) if to_broker else (peer.stream, half.stream)
        state = self.new_state(connection, self.knowledge, streams)
        tcp = half.tcp = peer.tcp = Tcp((key, back), state, half, from_start, Life(time_ns, packet))
        half.is_plain = peer.is_plain = self.secrets is None
        tcp.secrets = self.secrets
        self._halves[key], self._halves[back] = half, peer
        return tcp

    def _is_from_client(self, key: bytes, back: bytes) -> bool:
        """Return whether the sender of a segment is the client, if there was no SYN."""
        are_servers = endpoint_of(key) in self._servers, endpoint_of(back) in self._servers
        if are_servers[0] != are_servers[1]:
            return are_servers[1]
        source, target = key[-4:-2], key[-2:]
        if (source in _PULSAR_PORTS) != (target in _PULSAR_PORTS):
            return target in _PULSAR_PORTS
        return source > target  # the lower port is the server's more often than not

    # -- bytes

    def _take(self, half: Half, sequence: int, segment: Segment, events: list[Event]) -> Iterator[None]:
        """Take the bytes of the last segment, which begin at `sequence`, next or not."""
        if half.closed:
            return
        _, _, acknowledged, flags, payload, missing = segment
        self._held += len(payload) if half.tcp.tls is not None else 0
        packet, time_ns = half.tcp.last_packet, half.tcp.last_ns
        if not half.started:
            half.started = True
            half.next = sequence
        start = half.unwrap(sequence)
        if start + len(payload) + missing <= half.next:
            return  # it was all seen before
        if start > half.next or half.tcp.waiting:
            turn = packet
            if start <= half.next:
                turn = min(packet, half.turn)
            elif half.early and start < half.early[0][0]:
                turn = min(packet, half.early[0][1])
            acknowledged = acknowledged if flags & ACK else -1
            if half.early is NOTHING_EARLY:
                half.early = []
            heapq.heappush(half.early, (start, turn, packet, payload, missing, time_ns, acknowledged))
            half.early_bytes += len(payload) + EARLY_COST
            self._held += len(payload) + EARLY_COST
            yield from release(half.tcp, events)
            while half.early_bytes > MAX_EARLY:
                yield from unblock(half, events)
        else:
            yield from deliver(half, (start, packet, packet, payload, missing, time_ns, -1), events)
        yield from self._check_ends(half, events)

    def _acknowledge(self, half: Half, acknowledged: int, events: list[Event]) -> Iterator[None]:
        """Handle an acknowledgement of bytes of `half` that were not seen: late ones, or never captured."""
        if not half.started:
            if half.tcp.certain:  # its SYN was lost: this is where its bytes begin
                half.started = True
                half.next = acknowledged
            return
        upto = half.unwrap(acknowledged)
        if half.fin >= 0:
            upto = min(upto, half.fin)
        if upto <= half.next:
            return
        if half.early and not half.is_blocked:  # they and this packet wait for a hole on the other half
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
            yield from give_up(half, half.acknowledged, events)
            yield from self._check_ends(half, events)
        else:
            half.tcp.waiting = True

    # -- ends

    def _finish(self, half: Half, sequence: int, flags: int, events: list[Event]) -> Iterator[None]:
        if flags & RST:
            if not half.started or abs(half.unwrap(sequence) - half.next) <= MAX_EARLY:  # else not believed
                note_end(half, reset=True)
                yield from self._end_halves(half.tcp, events)
        elif half.started and not half.closed:
            note_end(half, reset=False)
            half.fin = max(half.unwrap(sequence), half.next)  # delivered bytes came before it
            half.acknowledged = min(half.acknowledged, half.fin)
            yield from self._check_ends(half, events)

    def _check_ends(self, half: Half, events: list[Event]) -> Iterator[None]:
        """Close the halves whose FIN was reached; closing one may release segments of the other."""
        for side in (half, half.other):
            if 0 <= side.fin <= side.next and not side.closed:
                side.closed = True
                side.hole_at = -1
                yield from self._close_stream(side, events)
                yield from release(side.tcp, events)
                if side.other.closed:
                    yield from self._end_halves(side.tcp, events)

    def _end_halves(self, tcp: Tcp, events: list[Event]) -> Iterator[None]:
        """End both directions; the connection is remembered for a while, for its late segments."""
        yield from self._close_halves(tcp, events)
        if not tcp.ended:
            self.record_end(tcp)

    def _close_halves(self, tcp: Tcp, events: list[Event]) -> Iterator[None]:
        for half in (tcp.half, tcp.half.other):
            if not half.closed:
                half.closed = True
                yield from flush(half, events)
                yield from self._close_stream(half, events)

    def _close_stream(self, half: Half, events: list[Event]) -> Iterator[None]:
        """End a stream. If both sides speak the same other protocol, the connection is only counted."""
        tls = half.tcp.tls
        if tls is not None:
            if self.secrets is not None and tls.held_bytes:
                self.secrets.search()
            yield from open_pieces(half.tcp, tls.end(), events)
        yield from settle(half, events)
        last_events = half.stream.close()
        protocol = half.stream.protocol
        events += [event for event in last_events if isinstance(event, HttpMessage)]
        last_events = [event for event in last_events if not isinstance(event, HttpMessage)]
        if protocol in OTHER_TRAFFIC and not half.other.ended:
            half.held = last_events  # the other side's protocol is not known yet
        elif protocol in OTHER_TRAFFIC and half.other.stream.protocol == protocol:
            self.other_traffic[protocol] += 1
        else:
            events += [*half.other.held, *last_events]
        half.ended = True

    def _close(self, tcp: Tcp, end: str) -> Iterator[list[Event]]:
        """End a connection, because of `end`; yield its last events, as `_add_slowly` does."""
        if tcp.life.by_first is None:
            tcp.life.end = end
        events: list[Event] = []
        yield from self._collect(tcp, self._end_halves(tcp, events), events)

    def forget(self, tcp: Tcp) -> None:
        """Let the next segment on a connection's addresses open another one."""
        for key in tcp.keys:
            half = self._halves.get(key)
            if half is not None and half.tcp is tcp:
                del self._halves[key]
        self.copies.forget(tcp)
        # no cycles are left: the memory is freed at once, without garbage collection
        tcp.half.tcp = tcp.half.other.tcp = _FORGOTTEN
        tcp.half.other.other = _NO_HALF

    def _list_connections(self) -> list[Tcp]:
        return list(dict.fromkeys(half.tcp for half in self._halves.values()))

    def _evict(self) -> Iterator[list[Event]]:
        """End the tenth of all connections that has been idle for longest, as there are too many."""
        tcps = sorted(self._list_connections(), key=lambda tcp: tcp.last_packet)
        for tcp in tcps[: len(tcps) // 10]:
            yield from self._drop(tcp)

    def _limit_held(self) -> Iterator[list[Event]]:
        """End the connections that hold most bytes if all together hold too many."""
        self._held = 0
        sizes = {tcp: tcp.held_bytes for tcp in self._list_connections()}
        total = sum(sizes.values())
        if total <= MAX_HELD:
            return
        for tcp in sorted(sizes, key=sizes.__getitem__, reverse=True):
            yield from self._drop(tcp)
            total -= sizes[tcp]
            if total <= MAX_HELD // 2:
                break

    def _drop(self, tcp: Tcp) -> Iterator[list[Event]]:
        """Stop following a connection; yield its last events."""
        yield from self._close(tcp, DROPPED)
        self.forget(tcp)
