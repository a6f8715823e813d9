"""Joins the edges of all splits, in order, and finds out what no split could know alone.

The `Stitcher` runs in one process and follows all connections. Of the packets in a split it decodes only
those that the edges kept. Then it checks each connection's state at the end of the split, and continues from
it. If a split was synchronized wrongly (for example, at what looked like a frame inside a payload), the
packets of that connection are read again and decoded here.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from pulsarctl_wire.capture.halves import Tcp
from pulsarctl_wire.capture.handover import (
    ReassemblerState,
    agrees,
    halves_of,
    places,
    restore,
    save,
    take_over,
)
from pulsarctl_wire.capture.packets import Waiting
from pulsarctl_wire.capture.reassembly import OTHER_TRAFFIC, OnEnd
from pulsarctl_wire.pipeline.decoding.decode import pair_of
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Edge, Kept, Settings
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, Connection, Event
from pulsarctl_wire.wire.hashing import uid_of
from pulsarctl_wire.wire.ranges import Count, Unwrapped
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.partial_state import KnownState, MaybeResent

Names = dict[str, str | None]
"""Stand-in in a draft -> real name, or None if it is unknown."""

_Fixups = dict[int, tuple[Connection, tuple[int, int], Names]]

Reread = Callable[[Decoded, Waiting], Iterator[Kept]]
"""Reads a split again, as `decode.reread` does."""


class Fixup(NamedTuple):
    """Corrections to what a split knew of a connection.

    Its number, `uid` and broker; how many bytes to add to the stream offsets of its directions (to the
    client, to the broker); the names of its topics and subscriptions.
    """

    connection: Count
    uid: str | None
    broker: str
    shifts: tuple[Unwrapped, Unwrapped]
    names: Names


class StitchResult(NamedTuple):
    """The result of stitching a split: the fixups, by the indexes of the edges.

    What the split collected of a connection without a fixup is wrong. `first` is the number of the first new
    connection, `numbers` are the final numbers of all new ones, in the order in which the stitcher opened
    them. `read_again` counts the connections that were read again, except for those without an edge.
    """

    fixups: dict[int, Fixup]
    first: int
    numbers: list[int]
    read_again: int


Add = Callable[[list[Event]], object]

StitcherState = tuple[Waiting, ReassemblerState, dict[Count, str]]


class Stitcher:
    """Joins decoded splits, in order. Another stitcher can continue from its `state`."""

    def __init__(self, settings: Settings, on_end: OnEnd | None = None) -> None:
        self.waiting: Waiting = {}
        self.names: dict[int, str] = {}
        """The names of the inputs so far, by number."""
        self._turn = 0
        self._opened: list[tuple[int, Connection]] = []
        self._resent: MaybeResent = {}
        self._due: list[tuple[int, int, Callable[[], object]]] = []  # (turn, number, what to do then)
        self._due_numbers = count()
        self._shift = 0
        self.reassembler = settings.reassembler(self._new_state, on_end)
        self.reassembler.copies.keep = settings.options.keep_duplicates
        self.knowledge = self.reassembler.knowledge

    def state(self) -> StitcherState:
        """Return the incomplete IP datagrams, the connections, and the names of the inputs so far."""
        return self.waiting, save(self.reassembler), self.names

    def resume(self, state: StitcherState) -> None:
        """Continue from a `state`. Raises ValueError or LookupError if it contradicts itself.

        Of the names, only those of files that open connections came from stay: a table that follows a
        directory has ever more files.
        """
        self.waiting, connections, names = state
        files = {place >> PACKET_OFFSET_BITS for place in places(connections)}
        self.names = {file: names[file] for file in sorted(files)}
        restore(self.reassembler, connections)
        self._opened.clear()

    def _new_state(self, connection: Connection, knowledge: Knowledge, streams: Any) -> KnownState:
        self._opened.append((self._turn, connection))
        return KnownState(connection, knowledge, streams)

    def stitch(self, decoded: Decoded, reread: Reread, add: Add) -> StitchResult:
        """Stitch the next split; call `add` with the events of its edges. Invalidates `decoded.edges`."""
        self.names |= decoded.split.sources
        fixups: _Fixups = {}
        rereader = _Rereader(decoded, reread, self.waiting)
        self._resent = self._maybe_resent(decoded.edges)
        # Added to the split's numbers of frames, so that they come after those that its edges get here.
        self._shift = self.knowledge.frames + decoded.frames
        self._take_all(decoded.edges, add, fixups, rereader)
        self.knowledge.frames = max(self.knowledge.frames, self._shift + decoded.frames)
        if decoded.fragments:
            self.waiting = decoded.waiting
        return self._result(fixups, len(rereader.since))

    def end(self, add: Add) -> StitchResult:
        """End the capture; call `add` with the remaining events. Do not use the stitcher afterwards."""
        for events in self.reassembler.close():
            add(events)
        return self._result({}, 0)

    def _result(self, fixups: _Fixups, read_again: int) -> StitchResult:
        self.reassembler.report()
        first, numbers = self._number()
        by_index = {
            index: Fixup(each.index, uid_of(each), each.broker or each.server, shifts, names)
            for index, (each, shifts, names) in fixups.items()
        }
        return StitchResult(by_index, first, numbers, read_again)

    def _number(self) -> tuple[int, list[int]]:
        """Number the new connections by their first packets; return the lowest number, and all numbers."""
        first = self.reassembler.connections - len(self._opened)
        numbers = [0] * len(self._opened)
        self._opened.sort(key=lambda opened: opened[0])
        for index, (_, connection) in enumerate(self._opened, first):
            numbers[connection.index - first] = index
            connection.index = index
        self._opened.clear()
        return first, numbers

    def _follow(self, packet: Kept, add: Add) -> None:
        self._turn, place, time_ns, segment = packet
        self._apply_due(self._turn)
        events = self.reassembler.add(segment, time_ns, place)
        while events:
            add(events)
            events = self.reassembler.take_more()

    def _take_all(self, edges: list[Edge], add: Add, fixups: _Fixups, rereader: "_Rereader") -> None:
        """Decode the packets of the edges, and those read again, in order; continue from the edges' states.

        Adds the connections that must be read again to `rereader`.
        """
        last_edges: dict[bytes, Edge] = {}
        repeated_pairs = {pair for pair, count in Counter(edge.pair for edge in edges).items() if count > 1}
        steps: list[tuple[int, Edge, Kept | None]]
        steps = [(packet[0], edge, packet) for edge in edges for packet in edge.packets or ()]
        steps += [(edge.turn, edge, None) for edge in edges if edge.packets is None]
        steps.sort(key=itemgetter(0))
        for turn, edge, packet in steps:
            for reread_packet in rereader.read_until(turn):
                self._follow(reread_packet, add)
            pair = edge.pair
            if pair in rereader.since:
                continue
            if last_edges.get(pair) is not edge:
                tcp = self.reassembler.connection(pair)
                if tcp is not None and pair in repeated_pairs and pair not in last_edges and not tcp.ended:
                    # Whether the next edge is a new connection depends on the past.
                    rereader.since[pair] = turn
                    continue
                if (
                    tcp is not None
                    and tcp.ended
                    and pair in last_edges
                    and last_edges[pair].guess is not None
                ):
                    self.reassembler.forget(tcp)  # the split saw that a new connection follows
                last_edges[pair] = edge
            if packet is None:
                rereader.since[pair] = turn
                continue
            self._follow(packet, add)
            if edge.guess is not None and turn + 1 == edge.synced and not self._join(edge, add, fixups):
                rereader.since[pair] = edge.synced
        for reread_packet in rereader.read_until(sys.maxsize):
            self._follow(reread_packet, add)
        self._apply_due(sys.maxsize)

    def _maybe_resent(self, edges: list[Edge]) -> MaybeResent:
        """Return the sends that may be resent in a split."""
        resent: dict[str, list[tuple[int, int, int]]] = {}
        sent_names = (name for edge in edges if edge.part is not None for name in edge.part.sent)
        names = {name.encode("utf-8", "replace"): name for name in sent_names}
        for _, name, sequence, *_ in self.knowledge.unanswered:
            resent.setdefault(name, []).append((sequence, sequence, 0))
        for edge in edges:
            tcp = self.reassembler.connection(edge.pair)
            if tcp is not None:
                assert isinstance(tcp.state, KnownState)
                for name, sequence in tcp.state.list_pending():
                    resent.setdefault(name, []).append((sequence, sequence, 0))
            for name, (low, high, _) in edge.early.items():
                resent.setdefault(name, []).append((low, high, 0))
            for name in _find_unseen(edge, tcp, names):
                resent.setdefault(name, []).append((0, sys.maxsize, 0))
            for name, sequence, offset in edge.part.maybe_resent if edge.part is not None else ():
                resent.setdefault(name, []).append((sequence, sequence, offset))
        return resent

    def _join(self, edge: Edge, add: Add, fixups: _Fixups) -> bool:
        """Continue from the edge's state; return False if the connection is not where the split assumed.

        A copy of another connection, which the split cannot know, is only counted.
        """
        assert edge.packets
        assert edge.guess is not None
        assert edge.state is not None
        assert edge.part is not None
        copies = self.reassembler.copies
        original = copies.originals.get(edge.pair)
        if original is not None:
            copies.count(original, edge.later, edge.state.life.last_ns if edge.later else None)
            return True
        tcp = self.reassembler.connection(edge.packets[-1][3][0])
        if tcp is None or edge.doubtful or not agrees(edge.guess, tcp, edge.state):
            return False
        state = tcp.state
        assert isinstance(state, KnownState)
        if not _same_limit(edge, tcp) or state.contradicts(edge.part, self._resent):
            return False
        names = state.resolve_names(edge.part)
        shifts = [0, 0]
        for half, guess in zip(halves_of(tcp), edge.guess.halves, strict=True):
            shifts[half.stream.to_broker] = half.stream.position - guess.position
        fixups[edge.index] = state.connection, (shifts[0], shifts[1]), names
        for frame in state.resolve(edge.part.deferred, names, (shifts[0], shifts[1])):
            add([frame])
        take_over(tcp, edge.guess, edge.state)
        copies.total += edge.state.life.copies
        for turn, identity, send in state.join(edge.state.known, edge.part, names, self._shift, shifts[1]):
            self._schedule(turn, partial(self.knowledge.add_unanswered, identity, send))
        if tcp.ended:
            self._schedule(edge.part.ended or 0, partial(self._end, tcp))
        return True

    def _schedule(self, turn: int, action: Callable[[], object]) -> None:
        """Have something done when its turn comes: a part is taken as a whole, at its first turn."""
        heappush(self._due, (turn, next(self._due_numbers), action))

    def _apply_due(self, turn: int) -> None:
        """Do what is due until a turn."""
        while self._due and self._due[0][0] <= turn:
            heappop(self._due)[2]()

    def _end(self, tcp: Tcp) -> None:
        tcp.state.end()
        self.reassembler.record_end(tcp)
        first, second = (half.stream.protocol for half in halves_of(tcp))
        if first == second and first in OTHER_TRAFFIC:
            self.reassembler.other_traffic[first] += 1


def _same_limit(edge: Edge, tcp: Tcp) -> bool:
    """Return whether the largest frame allowed, which a split may not know, made no difference in it."""
    assert edge.guess is not None
    limit = tcp.half.stream.limit
    return limit == edge.guess.limit or (
        not edge.damaged and edge.in_step and edge.largest <= min(limit, edge.guess.limit)
    )


def _find_unseen(edge: Edge, tcp: Tcp | None, names: dict[bytes, str]) -> set[str]:
    """Return the producers in `names` of which an edge may have sends that the split could not decode.

    Such sends are in what the connection still holds, or in the packets of the edge.
    """
    if not names:
        return set()
    keys = dict(zip(sorted(tcp.keys), halves_of(tcp), strict=True)) if tcp is not None else {}
    client = [half for half in keys.values() if half.stream.to_broker]
    behind_holes = [b"".join(early[3] for early in sorted(half.early)) for half in client]
    unfinished = [half.stream.held for half in client]
    payloads: dict[bytes, list[bytes]] = {}
    for *_, segment in edge.packets or ():
        if segment[0] not in keys or keys[segment[0]].stream.to_broker:
            payloads.setdefault(segment[0], []).append(segment[4])
    decoded_names = edge.early.keys() | (edge.part.sent.keys() if edge.part is not None else set())
    unseen = _names_in([*unfinished, *map(b"".join, payloads.values())], names) - decoded_names
    return unseen | _names_in(behind_holes, names)


def _names_in(pieces: Iterable[bytes], names: dict[bytes, str]) -> set[str]:
    """Return those of `names` that are in a field with the tag of MessageMetadata.producer_name."""
    present: set[str] = set()
    for piece in pieces:
        position = piece.find(b"\n")  # its tag
        while 0 <= position < len(piece) - 1:
            name = names.get(piece[position + 2 : position + 2 + piece[position + 1]])
            if name is not None:
                present.add(name)
            position = piece.find(b"\n", position + 1)
    return present


class _Rereader:
    """The packets of a split that must be read again.

    `since`: pair -> the first turn to read of a connection. Connections may be added before their turn.
    """

    def __init__(self, decoded: Decoded, reread: Reread, datagrams: Waiting) -> None:
        self.since: dict[bytes, int] = {}
        self._rest = decoded.rest
        # Packets of an edge are read only if `since` has its pair; those without an edge from `rest` on.
        self._default_starts = dict.fromkeys((edge.pair for edge in decoded.edges), sys.maxsize)
        self._packets = reread(decoded, datagrams)
        self._next: Kept | None = None

    def read_until(self, turn: int) -> Iterator[Kept]:
        """Yield the packets before a turn. The split is only opened if there may be some."""
        if not self.since and self._rest is None:
            return
        packet = self._next or next(self._packets, None)
        while packet is not None and packet[0] < turn:
            pair = pair_of(packet[3][0])
            if packet[0] >= self.since.get(pair, self._default_starts.get(pair, self._rest or sys.maxsize)):
                yield packet
            packet = next(self._packets, None)
        self._next = packet
