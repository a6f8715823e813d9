"""Hands connections over between processes that follow different parts of one capture.

A process that begins in the middle of a capture does not know what came before. But once both halves of a
connection are in step with the frames and no segment waits for another, the connection is synchronized: the
process follows it as if it had seen everything. A `SyncPoint` is its guess of where that is. A process that
knows the past checks the guess (`agrees`). If it is right, so is the state at the end of the part, except
for numbers that count from the beginning of the connection, which are shifted (`take_over`).
"""

import heapq
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from pulsarctl_wire.capture.copies import Opening
from pulsarctl_wire.capture.halves import EARLY_COST, Early, Half, Tcp, extend_life, life_state
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.frame import Connection, Event, Malformed
from pulsarctl_wire.wire.framing.lost import Source
from pulsarctl_wire.wire.framing.stream_state import StreamState
from pulsarctl_wire.wire.ranges import Count, LastPlace, Nanoseconds, Offset, Place, UInt32, UInt64, Unwrapped
from pulsarctl_wire.wire.session.ending import LifeState
from pulsarctl_wire.wire.session.knowledge import Unanswered
from pulsarctl_wire.wire.session.partial_state import KnownState
from pulsarctl_wire.wire.session.state_data import Identity, Known

FRESH: Final = "fresh"
STEP: Final = "step"
IDLE: Final = "idle"
"""Kinds of halves: just opened; in step with the frames; only the next sequence number is known."""

_MASK: Final = 0xFFFFFFFF
_COPIED_ATTRIBUTES: Final = ("started", "closed", "ended", "hole_turn", "patience")
_SEQUENCE_NUMBERS: Final = ("next", "acknowledged", "hole_at", "fin")  # attributes; -1: none


class HalfSync(NamedTuple):
    """One half: its kind, whether its bytes have started, the number of the next one, the origins of the
    bytes of its unfinished frame, and its stream's position.
    """

    kind: Literal["fresh", "step", "idle"]
    started: bool
    next: Unwrapped
    sources: tuple[Source, ...]
    position: Count


class SyncPoint(NamedTuple):
    """Where a connection is synchronized: its halves in the order of their keys, the direction of the first
    one, and the largest frame allowed, in bytes.
    """

    halves: tuple[HalfSync, HalfSync]
    to_broker: bool
    limit: UInt64


class HalfState(NamedTuple):
    """The attributes of a `Half`, without its stream."""

    started: bool
    closed: bool
    ended: bool
    hole_turn: LastPlace
    patience: Unwrapped
    next: Unwrapped
    acknowledged: Unwrapped
    hole_at: Unwrapped
    fin: Unwrapped
    early: list[Early]
    syn: UInt32 | None


class Handover(NamedTuple):
    """All that is needed to continue with a connection. A stream is None if it got no bytes."""

    halves: tuple[HalfState, HalfState]
    streams: tuple[StreamState | None, StreamState | None]
    known: Known
    limit: UInt64
    ended: bool
    waiting: bool
    last_packet: Place
    life: LifeState


def halves_of(tcp: Tcp) -> tuple[Half, Half]:
    """Return the halves of a connection in the order of their keys, whichever was seen first."""
    first, second = tcp.half, tcp.half.other
    return (first, second) if tcp.keys[0] <= tcp.keys[1] else (second, first)


def sync_point(tcp: Tcp, *, patient: bool) -> SyncPoint | None:
    """Return where a connection is synchronized; None if it is not. If `patient`, no half may be idle."""
    if not tcp.certain or tcp.waiting or tcp.ended:
        return None
    first, second = (_half_sync(half) for half in halves_of(tcp))
    if first is None or second is None:
        return None
    kinds = {first.kind, second.kind}
    if IDLE in kinds and (patient or STEP not in kinds):
        return None
    stream = halves_of(tcp)[0].stream
    return SyncPoint((first, second), stream.to_broker, stream.limit)


def _is_open(half: Half) -> bool:
    """Return whether a half only needs its next bytes: nothing is missing or early, and it is not ending."""
    missing = half.early or half.is_blocked or (half.started and half.acknowledged > half.next)
    return not (missing or half.closed or half.fin >= 0 or half.held)


def _half_sync(half: Half) -> HalfSync | None:
    if not _is_open(half):
        return None
    stream = half.stream
    if stream.untouched:
        return HalfSync(FRESH if stream.is_in_step else IDLE, half.started, half.next, (), 0)
    if stream.step is None or stream.is_in_debt:
        return None
    return HalfSync(STEP, half.started, half.next, stream.sources, stream.position)


def agrees(guess: SyncPoint, tcp: Tcp, state: Handover) -> bool:
    """Return whether `tcp`, whose past is known, is where `guess` says, so that `state` is right."""
    if not tcp.certain or tcp.waiting or tcp.ended:
        return False
    if halves_of(tcp)[0].stream.to_broker is not guess.to_broker:
        return False
    for half, guessed, stream in zip(halves_of(tcp), guess.halves, state.streams, strict=True):
        if not _is_open(half) or half.started is not guessed.started or (half.next - guessed.next) & _MASK:
            return False
        sync = _half_sync(half)
        if guessed.kind == IDLE:
            if stream is not None and not (half.stream.untouched or half.stream.step == 0):
                return False  # its first bytes were in the middle of a frame
            if half.stream.is_in_debt:
                return False
        elif sync is None or (sync.kind, sync.sources) != (guessed.kind, guessed.sources):
            return False
    return True


def hand_over(tcp: Tcp) -> Handover:
    """Return the state of a connection, whose `state` must be a `KnownState`."""
    halves = halves_of(tcp)
    state = tcp.state
    assert isinstance(state, KnownState)
    first, second = (HalfState(*[getattr(half, name) for name in HalfState._fields]) for half in halves)
    streams = [None if half.stream.untouched else half.stream.state() for half in halves]
    return Handover(
        (first, second),
        (streams[0], streams[1]),
        state.snapshot(),
        tcp.half.stream.limit,
        tcp.ended,
        tcp.waiting,
        tcp.last_packet,
        life_state(tcp, halves[0]),
    )


def take_over(tcp: Tcp, guess: SyncPoint, state: Handover) -> None:
    """Set `tcp` to `state`, which was reached from `guess`, except for `state.known`."""
    limit = tcp.half.stream.limit if state.limit == guess.limit else state.limit  # a newly announced one
    rows = zip(halves_of(tcp), guess.halves, state.halves, state.streams, strict=True)
    for half, guessed, values, stream in rows:
        shift = half.next - guessed.next
        for name in _COPIED_ATTRIBUTES:
            setattr(half, name, getattr(values, name))
        for name in _SEQUENCE_NUMBERS:
            number = getattr(values, name)
            setattr(half, name, number + shift if number >= 0 else -1)
        half.early = [(segment[0] + shift, *segment[1:]) for segment in values.early]
        half.early_bytes = sum(len(segment[3]) + EARLY_COST for segment in half.early)
        half.syn = half.syn if values.syn is None else values.syn
        if stream is not None:
            half.stream.resume(stream, half.stream.position - guessed.position)
        half.stream.limit = limit
    tcp.ended, tcp.waiting, tcp.last_packet = state.ended, state.waiting, state.last_packet
    extend_life(tcp, halves_of(tcp)[0], state.life)


# -- all connections at once, as data


class Lost(NamedTuple):
    """A `Malformed` that a half holds back; its stream has another protocol, so it holds no frames."""

    reason: str
    raw: bytes
    size: Count
    offset: Count
    time_ns: Nanoseconds | None
    packet: Place
    packets: list[Place]
    protocol: str


class TcpState(NamedTuple):
    """A connection: key and direction of the half that sent its first packet, the connection's number, and
    where and when that packet was captured.

    `held` are the events that its halves hold back. The other fields are as in `Tcp` and `Connection`.
    """

    key: bytes
    to_broker: bool
    number: Count
    packet: Place
    time_ns: Nanoseconds | None
    flipped: bool
    certain: bool
    held: tuple[list[Lost], list[Lost]]
    state: Handover


class ReassemblerState(NamedTuple):
    """All that a reassembler continues from: see `Reassembler.state`, `Knowledge` and `Copies`.

    `copies` and `openings` name connections by their index in `known`; `copied` are
    `Copies.total` and `longer`.
    """

    connections: Count
    known: list[TcpState]
    ended: list[Offset]
    servers: list[bytes]
    frames: Count
    unanswered: list[tuple[Identity, Count, Nanoseconds | None, Count, bool]]
    forgotten: Count
    copies: list[tuple[bytes, Count]]
    openings: list[tuple[Opening, Count]]
    copied: tuple[Count, Count]


def places(state: ReassemblerState) -> Iterator[int]:
    """Yield the places of the packets that later events of these connections, or their ends, may name."""
    for tcp in state.known:
        yield from (tcp.packet, tcp.state.last_packet)
        for half in tcp.state.halves:
            yield from (segment[2] for segment in half.early)
        for held in (*tcp.held[0], *tcp.held[1]):
            yield from (held.packet, *held.packets)
        for stream in tcp.state.streams:
            if stream is not None:
                _, _, size, _, packets, (_, packet) = stream.lost
                # -1: no packet yet. With bytes, the state contradicts itself: its -1 is yielded, so that the
                # caller, who finds no file for it, refuses the state
                has_bytes = stream.held or size
                last = stream.source, stream.packet, packet
                yield from (place for place in last if place >= 0 or has_bytes)
                yield from (*packets, *(source[1] for source in stream.sources))


_FRESH_HALF: Final = HalfSync(FRESH, False, 0, (), 0)
_BEGINNING: Final = SyncPoint((_FRESH_HALF, _FRESH_HALF), True, -1)  # -1: so the saved limit counts


def save(reassembler: Reassembler) -> ReassemblerState:
    """Return the data for `restore`. The states of the connections must be `KnownState`s."""
    connections, ended_indexes, servers = reassembler.state()
    knowledge = reassembler.knowledge
    unanswered = [
        (identity, send.number, send.time_ns, send.connection.index, send.is_sure)
        for identity, send in knowledge.unanswered.items()
    ]
    index = {tcp: number for number, tcp in enumerate(connections)}
    copies = reassembler.copies
    return ReassemblerState(
        *(reassembler.connections, [_save_tcp(tcp) for tcp in connections], ended_indexes, sorted(servers)),
        *(knowledge.frames, unanswered, knowledge.forgotten),
        [(key, index[tcp]) for key, tcp in copies.originals.items() if tcp in index],
        [(opening, index[tcp]) for opening, tcp in copies.openings if tcp in index],
        (copies.total, copies.longer),
    )


def _save_tcp(tcp: Tcp) -> TcpState:
    first, second = halves_of(tcp)
    connection = tcp.state.connection
    state = hand_over(tcp)._replace(streams=(first.stream.state(), second.stream.state()))
    return TcpState(
        tcp.keys[0],
        tcp.half.stream.to_broker,
        connection.index,
        tcp.life.packet,
        tcp.life.time_ns,
        connection.flipped,
        tcp.certain,
        (list(map(_save_lost, first.held)), list(map(_save_lost, second.held))),
        state,
    )


def restore(reassembler: Reassembler, saved: ReassemblerState) -> None:
    """Set a new reassembler to the saved state. Raises ValueError or IndexError if it contradicts itself."""
    connections = []
    for row in saved.known:
        if row.number >= saved.connections:
            raise ValueError("a connection too many")
        tcp = reassembler.new(row.key, row.to_broker, row.certain, row.time_ns, row.packet)
        connection = tcp.state.connection
        connection.index, connection.flipped = row.number, row.flipped
        take_over(tcp, _BEGINNING, row.state)
        assert isinstance(tcp.state, KnownState)
        tcp.state.resume(row.state.known)
        for half, lost_events in zip(halves_of(tcp), row.held, strict=True):
            heapq.heapify(half.early)
            half.held = [_restore_event(lost, connection, half.stream.to_broker) for lost in lost_events]
        connections.append(tcp)
    reassembler.resume(saved.connections, connections, saved.ended, set(saved.servers))
    copies = reassembler.copies
    copies.total, copies.longer = saved.copied
    for key, number in saved.copies:
        copies.add(key, connections[number])
    for opening, number in saved.openings:
        copies.note(opening, connections[number])
    knowledge = reassembler.knowledge
    knowledge.frames, knowledge.forgotten = saved.frames, saved.forgotten
    for identity, number, time_ns, index, is_sure in saved.unanswered:
        knowledge.add_unanswered(identity, Unanswered(number, time_ns, Connection(index), is_sure))


def _save_lost(event: Event) -> Lost:
    assert isinstance(event, Malformed)
    return Lost(*[getattr(event, name) for name in Lost._fields])


def _restore_event(values: Lost, connection: Connection, to_broker: bool) -> Malformed:
    reason, raw, size, offset, time_ns, packet, packets, protocol = values
    event = Malformed(reason, raw, size, connection, to_broker, offset, time_ns, packet)
    event.packets, event.protocol = packets, protocol
    return event
