"""The edges of all splits, put together in order: what no split could know alone.

The `Stitcher` is the one process that has seen everything: it follows all connections, but of the packets
in a split it takes only those at the edges, and then goes on from where the split ended. It checks what it
takes over. Where a split stood on wrong footing (a frame inside a payload was believed, say), the packets
of that connection are read again and followed here.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pulsarctl_wire.capture.handover import agrees, halves_of, take_over
from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.capture.reassembly import Reassembler, Tcp
from pulsarctl_wire.pipeline.decode import Decoded, Edge, Kept, Settings
from pulsarctl_wire.pipeline.splits import Split
from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Connection, Event
from pulsarctl_wire.wire.session import Knowledge
from pulsarctl_wire.wire.topics import Tables, TopicSession

_GATHERED: Final = 4_096  # events that become rows at a time

_Mends = dict[int, tuple[Connection, tuple[int, int], Tables]]

Reread = Callable[[Split, Dissector, dict[bytes, int]], Iterator[Kept]]
"""Gives the packets of a split again: of the connections with these pairs, each from its place on."""


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
    """Connections that were read again."""


class Stitcher:
    """Takes what became of each split, in order; it can be pickled in between."""

    def __init__(self, settings: Settings) -> None:
        self.dissector = Dissector()
        self._payload = settings.payload
        self._names: dict[int, str] = {}
        self._place = 0
        self._opened: list[tuple[int, Connection]] = []
        self._reassembler = Reassembler(
            Knowledge(join_chunks=False, schemas=False, fixed_limit=settings.max_frame_size is not None),
            limit=settings.max_frame_size or MAX_FRAME_SIZE,
            new_session=self._session,
        )

    @property
    def connections(self) -> int:
        """TCP connections so far."""
        return self._reassembler.connections

    def _session(self, connection: Connection, knowledge: Knowledge, streams: Any) -> TopicSession:
        self._opened.append((self._place, connection))
        return TopicSession(connection, knowledge, streams)

    def needs_fragments(self, decoded: Decoded) -> bool:
        """Whether a split must be decoded again, with the IP fragments that waited before it."""
        return bool(decoded.fragments and self.dissector.is_waiting and decoded.split.dissector is None)

    def add(self, decoded: Decoded, reread: Reread) -> Stitched:
        """Take the next split. `decoded.edges` is used up."""
        first = self._reassembler.connections
        self._names[decoded.split.file] = decoded.split.input.name
        events: list[Event] = []
        mends: _Mends = {}
        again: dict[bytes, int] = {}
        edges: dict[bytes, list[Edge]] = {}
        for edge in decoded.edges:
            edges.setdefault(edge.pair, []).append(edge)
        for pair, some in edges.items():
            for edge in some:
                if edge.packets is None:
                    again[pair] = edge.place
                    break
                if not self._take(edge, events, mends):
                    again[pair] = edge.sure
                    break
        if again:
            for packet in reread(decoded.split, self.dissector, again):
                events += self._follow(packet)
        if decoded.fragments:
            self.dissector = decoded.dissector
        self._opened.sort(key=lambda opened: opened[0])
        for index, (_, connection) in enumerate(self._opened, first):
            connection.index = index
        self._opened.clear()
        frames, gaps = self._rows(events)
        return Stitched(
            {index: Mend(each.index, shifts, tables) for index, (each, shifts, tables) in mends.items()},
            frames,
            gaps,
            len(again),
        )

    def close(self) -> Stitched:
        """The rows that are left where the capture ends. The stitcher is used up."""
        events = [event for events in self._reassembler.close() for event in events]
        return Stitched({}, *self._rows(events), 0)

    def _follow(self, packet: Kept) -> list[Event]:
        self._place, time_ns, segment = packet
        return self._reassembler.add(segment, time_ns, self._place)

    def _take(self, edge: Edge, events: list[Event], mends: _Mends) -> bool:
        """Follow a connection to where it stood on sure footing, and go on from where it ended, if it did."""
        assert edge.packets is not None
        for packet in edge.packets:
            events += self._follow(packet)
        if edge.guess is None:
            return True
        assert edge.state is not None
        tcp = self._reassembler.connection(edge.packets[-1][2][0])
        if tcp is None or edge.doubtful or not agrees(edge.guess, tcp, edge.state):
            return False
        if not _same_limit(edge, tcp):
            return False
        assert isinstance(tcp.session, TopicSession)
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

    def _rows(self, events: list[Event]) -> tuple[bytes, bytes]:
        builder = TableBuilder(self._names, payload=self._payload)
        frames, gaps = _Stream(FRAMES), _Stream(GAPS)
        parts = (events[start : start + _GATHERED] for start in range(0, len(events), _GATHERED))
        for some_frames, some_gaps in builder.batches(parts):
            frames.write(some_frames)
            gaps.write(some_gaps)
        return frames.close(), gaps.close()


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
