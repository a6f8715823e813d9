"""A connection handed over between processes that follow different parts of one capture.

A process that begins in the middle of a capture does not know what came before. Yet from some packet on
it follows a connection just as one would that has seen everything: once both halves are in step with the
frames, and no segment waits for another. `Footing` tells where that is; what came before decides whether
the connection really stood there (`agrees`). If it did, its state at the end of the part is the true one,
but for what counts from the beginning of the connection, and that is shifted (`take_over`).
"""

import heapq
from typing import Any, Final, NamedTuple

from pulsarctl_wire.capture.halves import EARLY_COST, Early, Half, Tcp
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.wire.frame import Connection, Event, Malformed
from pulsarctl_wire.wire.topics import Tables, TopicSession

FRESH, STEP, IDLE = "fresh", "step", "idle"
"""Kinds of halves: just opened; in step with the frames; nothing known but where its next byte goes."""

_MASK: Final = 0xFFFFFFFF
_CARRIED: Final = ("begun", "closed", "ended", "hole_turn", "patience")
_NUMBERS: Final = ("next", "acknowledged", "hole_at", "fin")  # sequence numbers; -1 is none


class HalfFooting(NamedTuple):
    """One half: its kind, whether its bytes have begun, the number of the next one, where the bytes of a
    frame came from that are here, and its stream's position.
    """

    kind: str
    begun: bool
    next: int
    sources: tuple[tuple[int, int, int | None], ...]
    position: int


class Footing(NamedTuple):
    """Where a connection stands: its halves in the order of their keys, the direction of the first one,
    and the largest frame allowed, in bytes.
    """

    halves: tuple[HalfFooting, HalfFooting]
    to_broker: bool
    limit: int


class HalfState(NamedTuple):
    """A half but for its stream, as `Half` has it."""

    begun: bool
    closed: bool
    ended: bool
    hole_turn: int
    patience: int
    next: int
    acknowledged: int
    hole_at: int
    fin: int
    early: list[Early]
    syn: int | None


class State(NamedTuple):
    """All that is needed to go on with a connection. A stream that is None was not touched."""

    halves: tuple[HalfState, HalfState]
    streams: tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]
    tables: Tables
    unmatched: list[tuple[int, int]]
    limit: int
    ended: bool
    waiting: bool
    last_packet: int


def halves_of(tcp: Tcp) -> tuple[Half, Half]:
    """The halves of a connection in the order of their keys, whichever was seen first."""
    first, other = tcp.half, tcp.half.other
    return (first, other) if tcp.keys[0] <= tcp.keys[1] else (other, first)


def footing(tcp: Tcp, *, patient: bool) -> Footing | None:
    """Where a connection stands; None while that is not sure, or a half is idle and we are `patient`."""
    if not tcp.certain or tcp.waiting or tcp.ended:
        return None
    one, other = (_footing(half) for half in halves_of(tcp))
    if one is None or other is None:
        return None
    kinds = {one.kind, other.kind}
    if IDLE in kinds and (patient or STEP not in kinds):
        return None
    stream = halves_of(tcp)[0].stream
    return Footing((one, other), stream.to_broker, stream.limit)


def _is_open(half: Half) -> bool:
    """Whether a half just takes its next bytes: nothing is missing, waits, or ends."""
    missing = half.early or half.blocked or (half.begun and half.acknowledged > half.next)
    return not (missing or half.closed or half.fin >= 0 or half.held)


def _footing(half: Half) -> HalfFooting | None:
    if not _is_open(half):
        return None
    stream = half.stream
    if stream.untouched:
        return HalfFooting(FRESH if stream.in_step else IDLE, half.begun, half.next, (), 0)
    if stream.step is None or stream.in_debt:
        return None
    return HalfFooting(STEP, half.begun, half.next, stream.sources, stream.position)


def agrees(guess: Footing, tcp: Tcp, state: State) -> bool:
    """Whether `tcp`, of which the past is known, stands where `guess` says, so that `state` follows."""
    if not tcp.certain or tcp.waiting or tcp.ended:
        return False
    if halves_of(tcp)[0].stream.to_broker is not guess.to_broker:
        return False
    for half, mine, stream in zip(halves_of(tcp), guess.halves, state.streams, strict=True):
        if not _is_open(half) or half.begun is not mine.begun or (half.next - mine.next) & _MASK:
            return False
        true = _footing(half)
        if mine.kind == IDLE:
            if stream is not None and not (half.stream.untouched or half.stream.step == 0):
                return False  # its first bytes went on with a frame
            if half.stream.in_debt:
                return False
        elif true is None or (true.kind, true.sources) != (mine.kind, mine.sources):
            return False
    return True


def hand_over(tcp: Tcp) -> State:
    """The state of a connection; its session must be a `TopicSession`."""
    halves = halves_of(tcp)
    session = tcp.session
    assert isinstance(session, TopicSession)
    one, other = (HalfState(*[getattr(half, name) for name in HalfState._fields]) for half in halves)
    streams = [None if half.stream.untouched else half.stream.state() for half in halves]
    return State(
        (one, other),
        (streams[0], streams[1]),
        session.tables(),
        session.unmatched,
        tcp.half.stream.limit,
        tcp.ended,
        tcp.waiting,
        tcp.last_packet,
    )


def take_over(tcp: Tcp, guess: Footing, state: State) -> None:
    """Bring `tcp` to `state`, which was reached from `guess`."""
    limit = tcp.half.stream.limit if state.limit == guess.limit else state.limit  # one announced meanwhile
    rows = zip(halves_of(tcp), guess.halves, state.halves, state.streams, strict=True)
    for half, mine, values, stream in rows:
        shift = half.next - mine.next
        for name in _CARRIED:
            setattr(half, name, getattr(values, name))
        for name in _NUMBERS:
            number = getattr(values, name)
            setattr(half, name, number + shift if number >= 0 else -1)
        half.early = [(early[0] + shift, *early[1:]) for early in values.early]
        half.early_bytes = sum(len(each[3]) + EARLY_COST for each in half.early)
        half.syn = half.syn if values.syn is None else values.syn
        if stream is not None:
            half.stream.resume(stream, half.stream.position - mine.position)
        half.stream.limit = limit
    tcp.ended, tcp.waiting, tcp.last_packet = state.ended, state.waiting, state.last_packet
    assert isinstance(tcp.session, TopicSession)
    tcp.session.learn(state.tables, state.unmatched)


# -- all connections at once, as data


class Lost(NamedTuple):
    """A `Malformed` that a half holds back: its peer speaks another protocol, so it is never a frame."""

    reason: str
    raw: bytes
    size: int
    offset: int
    time_ns: int | None
    packet: int
    packets: list[int]
    protocol: str


class TcpState(NamedTuple):
    """A connection: the key of the half it was first seen by, whether that goes to the broker, its number.

    `held` are the events that its halves hold back. The others are as in `Tcp` and `Connection`.
    """

    key: bytes
    to_broker: bool
    number: int
    flipped: bool
    certain: bool
    held: tuple[list[Lost], list[Lost]]
    state: State


class Following(NamedTuple):
    """All that a reassembler goes on from: see `Reassembler.state`."""

    connections: int
    known: list[TcpState]
    ended: list[int]
    servers: set[bytes]


_NOWHERE: Final = HalfFooting(FRESH, False, 0, (), 0)
_AT_FIRST: Final = Footing((_NOWHERE, _NOWHERE), True, -1)


def save(reassembler: Reassembler) -> Following:
    """What `restore` goes on from. Its sessions must be of `TopicSession`."""
    known, ended, servers = reassembler.state()
    return Following(reassembler.connections, [_saved(tcp) for tcp in known], ended, servers)


def _saved(tcp: Tcp) -> TcpState:
    one, other = halves_of(tcp)
    connection = tcp.session.connection
    state = hand_over(tcp)._replace(streams=(one.stream.state(), other.stream.state()), unmatched=[])
    return TcpState(
        tcp.keys[0],
        tcp.half.stream.to_broker,
        connection.index,
        connection.flipped,
        tcp.certain,
        (list(map(_lost, one.held)), list(map(_lost, other.held))),
        state,
    )


def restore(reassembler: Reassembler, saved: Following) -> None:
    """Bring a new reassembler to what was saved."""
    known = []
    for each in saved.known:
        tcp = reassembler.new(each.key, each.to_broker, each.certain)
        connection = tcp.session.connection
        connection.index, connection.flipped = each.number, each.flipped
        take_over(tcp, _AT_FIRST, each.state)
        for half, held in zip(halves_of(tcp), each.held, strict=True):
            heapq.heapify(half.early)
            half.held = [_event(lost, connection, half.stream.to_broker) for lost in held]
        known.append(tcp)
    reassembler.resume(saved.connections, known, saved.ended, saved.servers)


def _lost(event: Event) -> Lost:
    assert isinstance(event, Malformed)
    return Lost(*[getattr(event, name) for name in Lost._fields])


def _event(lost: Lost, connection: Connection, to_broker: bool) -> Malformed:
    reason, raw, size, offset, time_ns, packet, packets, protocol = lost
    event = Malformed(reason, raw, size, connection, to_broker, offset, time_ns, packet, protocol)
    event.packets = packets
    return event
