"""The edges of all splits, put together in order: what no split could know alone.

The `Stitcher` is the one process that has seen everything: it follows all connections, but of the packets
in a split it takes only those at the edges, and then goes on from where the split ended. It checks what it
takes over. Where a split stood on wrong footing (a frame inside a payload was believed, say), the packets
of that connection are read again and followed here.
"""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pulsarctl_wire.capture.halves import Tcp
from pulsarctl_wire.capture.handover import Following, agrees, halves_of, restore, save, take_over
from pulsarctl_wire.capture.packets import Waiting
from pulsarctl_wire.pipeline.decode import Decoded, Edge, Kept, Settings
from pulsarctl_wire.pipeline.splits import Split
from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder, renumbered
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.session import Knowledge
from pulsarctl_wire.wire.topics import Tables, TopicSession

_Mends = dict[int, tuple[Connection, tuple[int, int], Tables]]

Reread = Callable[[Split, Waiting, dict[bytes, int], int | None], Iterator[Kept]]
"""Gives the packets of a split again: of the connections with these pairs, each from its turn on."""


class Mend(NamedTuple):
    """What is to be mended in the draft's rows of a connection.

    Its number; how many bytes to add to the offsets of its directions (to the client, to the broker); what
    was known of its producers, consumers and requests.
    """

    connection: int
    shifts: tuple[int, int]
    tables: Tables


class Stitched(NamedTuple):
    """How a split is finished: the mends by the numbers of the draft, and the rows of its edges.

    `frames` and `gaps` are Arrow streams; empty where there are no rows. Draft rows without mend are wrong.
    """

    mends: dict[int, Mend]
    frames: bytes
    gaps: bytes
    redone: int
    """Connections that were read again, but for those without an edge."""


class Stitcher:
    """Takes what became of each split, in order; its `state` is all that another one needs to go on."""

    def __init__(self, settings: Settings) -> None:
        self.waiting: Waiting = {}
        self._payload = settings.payload
        self._names: dict[int, str] = {}
        self._turn = 0
        self._opened: list[tuple[int, Connection]] = []
        self._reassembler = settings.reassembler(self._session)

    @property
    def connections(self) -> int:
        """TCP connections so far."""
        return self._reassembler.connections

    def state(self) -> tuple[Waiting, Following]:
        """The IP fragments that wait, and the connections."""
        return self.waiting, save(self._reassembler)

    def resume(self, state: tuple[Waiting, Following], names: Iterable[str]) -> None:
        """Go on from a `state`; `names` are those of the files up to there."""
        self.waiting, connections = state
        self._names = dict(enumerate(names))
        restore(self._reassembler, connections)
        self._opened.clear()

    def _session(self, connection: Connection, knowledge: Knowledge, streams: Any) -> TopicSession:
        self._opened.append((self._turn, connection))
        return TopicSession(connection, knowledge, streams)

    def needs_fragments(self, decoded: Decoded) -> bool:
        """Whether a split must be decoded again, with the IP fragments that waited before it."""
        return bool(decoded.fragments and self.waiting and decoded.split.waiting is None)

    def add(self, decoded: Decoded, reread: Reread) -> Stitched:
        """Take the next split. `decoded.edges` is used up."""
        self._names[decoded.split.file] = decoded.split.input.name
        rows = _Rows(TableBuilder(self._names, payload=self._payload))
        mends: _Mends = {}
        again: dict[bytes, int] = {}
        self._take_all(decoded.edges, rows, mends, again)
        if again or decoded.rest is not None:
            wanted = dict.fromkeys((edge.pair for edge in decoded.edges), sys.maxsize) | again
            for packet in reread(decoded.split, self.waiting, wanted, decoded.rest):
                self._follow(packet, rows)
        if decoded.fragments:
            self.waiting = decoded.waiting
        rows.flush()
        numbers = self._number()
        return Stitched(
            {index: Mend(each.index, shifts, tables) for index, (each, shifts, tables) in mends.items()},
            *rows.streams(*numbers),
            len(again),
        )

    def close(self) -> Stitched:
        """The rows that are left where the capture ends. The stitcher is used up."""
        rows = _Rows(TableBuilder(self._names, payload=self._payload))
        for events in self._reassembler.close():
            rows.add(events)
        rows.flush()
        return Stitched({}, *rows.streams(*self._number()), 0)

    def _number(self) -> tuple[int, Any]:
        """Number the new connections in order of their first packets: the first number, and those of all."""
        first = self._reassembler.connections - len(self._opened)
        numbers = np.zeros(len(self._opened), np.int64)
        self._opened.sort(key=lambda opened: opened[0])
        for index, (_, connection) in enumerate(self._opened, first):
            numbers[connection.index - first] = index
            connection.index = index
        self._opened.clear()
        return first, numbers

    def _follow(self, packet: Kept, rows: "_Rows") -> None:
        self._turn, place, time_ns, segment = packet
        events = self._reassembler.add(segment, time_ns, place)
        while events:
            rows.add(events)
            events = self._reassembler.more()

    def _take_all(self, edges: list[Edge], rows: "_Rows", mends: _Mends, again: dict[bytes, int]) -> None:
        """Follow the packets of the edges in order, and go on from the states that they lead to.

        `again` gets the connections that must be read again, and from where, by their pairs.
        """
        last: dict[bytes, Edge] = {}
        several = {pair for pair, count in Counter(edge.pair for edge in edges).items() if count > 1}
        steps: list[tuple[int, Edge, Kept | None]]
        steps = [(packet[0], edge, packet) for edge in edges for packet in edge.packets or ()]
        steps += [(edge.turn, edge, None) for edge in edges if edge.packets is None]
        steps.sort(key=itemgetter(0))
        for turn, edge, packet in steps:
            pair = edge.pair
            if pair in again:
                continue
            if last.get(pair) is not edge:
                if pair in several and pair not in last and self._is_open(pair):
                    again[pair] = turn  # whether the next one is another connection depends on the past
                    continue
                if pair in last and last[pair].guess is not None:
                    self._next_on(pair)
                last[pair] = edge
            if packet is None:
                again[pair] = turn
                continue
            self._follow(packet, rows)
            if edge.guess is not None and turn + 1 == edge.sure and not self._go_on(edge, mends):
                again[pair] = edge.sure

    def _is_open(self, pair: bytes) -> bool:
        tcp = self._reassembler.connection(pair)
        return tcp is not None and not tcp.ended

    def _go_on(self, edge: Edge, mends: _Mends) -> bool:
        """Go on from where a connection ended, if it stood where the split thought it did."""
        assert edge.packets
        assert edge.guess is not None
        assert edge.state is not None
        tcp = self._reassembler.connection(edge.packets[-1][3][0])
        if tcp is None or edge.doubtful or not agrees(edge.guess, tcp, edge.state):
            return False
        assert isinstance(tcp.session, TopicSession)
        if not _same_limit(edge, tcp) or not tcp.session.agrees(edge.guessed):
            return False
        producers, consumers, asked = tcp.session.tables()
        shifts = [0, 0]
        for half, guess in zip(halves_of(tcp), edge.guess.halves, strict=True):
            shifts[half.stream.to_broker] = half.stream.position - guess.position
        known = dict(producers), dict(consumers), dict(asked)
        mends[edge.index] = tcp.session.connection, (shifts[0], shifts[1]), known
        take_over(tcp, edge.guess, edge.state)
        if tcp.ended:
            self._reassembler.ended(tcp)
        return True

    def _next_on(self, pair: bytes) -> None:
        """Another connection follows on these addresses, as the split could see."""
        tcp = self._reassembler.connection(pair)
        if tcp is not None and tcp.ended:
            self._reassembler.forget(tcp)


class _Rows:
    """Rows of the edges, until their connections have their numbers."""

    def __init__(self, builder: TableBuilder) -> None:
        self._builder = builder
        self._batches: list[tuple[Any, Any]] = []

    def add(self, events: list[Event]) -> None:
        """Add the rows of `events`."""
        if events:
            self._builder.add(events)
            if self._builder.is_full:
                self.flush()

    def flush(self) -> None:
        """Make a batch of what was added."""
        self._batches.append((self._builder.frames(), self._builder.gaps()))

    def streams(self, first: int, numbers: Any) -> tuple[bytes, bytes]:
        """The frames and the gaps as Arrow streams, their connections from `first` on numbered."""
        streams = _Stream(FRAMES), _Stream(GAPS)
        for batches in self._batches:
            for stream, batch in zip(streams, batches, strict=True):
                stream.write(renumbered(batch, numbers, first))
        return streams[0].close(), streams[1].close()


class _Stream:
    """An Arrow stream in memory; empty if nothing is written."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._buffer = io.BytesIO()
        self._stream: Any = None

    def write(self, batch: Any) -> None:
        if not batch.num_rows:
            return
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._buffer, self._schema)
        self._stream.write_batch(batch)

    def close(self) -> bytes:
        if self._stream is not None:
            self._stream.close()
        return self._buffer.getvalue()


def _same_limit(edge: Edge, tcp: Tcp) -> bool:
    """Whether the largest frame allowed, which a split may not know, made no difference."""
    assert edge.guess is not None
    limit = tcp.half.stream.limit
    return limit == edge.guess.limit or (
        not edge.damaged and edge.in_step and edge.largest <= min(limit, edge.guess.limit)
    )
