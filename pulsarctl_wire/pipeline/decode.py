"""A split decoded alone: its rows as far as they are sure, and its edges.

Of each connection the packets are kept until it stands on sure footing (capture/handover.py): they go to
the one who knows what came before, and so does the connection's state at the end of the split. The rows
in between are written as a draft: connections are numbered from 0, their bytes are counted from where the
split began, and nothing is known of what was opened before.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import Lane, Layout, PacketReader, SideBySide
from pulsarctl_wire.capture.halves import Tcp
from pulsarctl_wire.capture.handover import IDLE, Footing, State, footing, halves_of, hand_over
from pulsarctl_wire.capture.packets import SYN, Dissector, Segment, Waiting, reverse
from pulsarctl_wire.capture.reassembly import NewSession, Reassembler
from pulsarctl_wire.capture.series import lane
from pulsarctl_wire.capture.sources import PLACE_BITS, uncompressed
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.pipeline.splits import Side, Split, filesystem, opened, read_split
from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Event, Malformed
from pulsarctl_wire.wire.session import Knowledge
from pulsarctl_wire.wire.topics import TopicSession

PATIENCE: Final = 64
"""Packets of a connection for which an idle half of it is waited for."""
MOST_KEPT: Final = 8 * 1024 * 1024
"""Bytes of packets of one connection that are kept; beyond that the split is read again for it."""
MOST_SURE: Final = 16_384
"""Connections of a split whose state is kept; beyond that it is read again for the others."""
MOST_EDGES: Final = 65_536
"""Connections of a split that it tells of; beyond that it is read again for the others."""
_ALL_KEPT: Final = 64 * 1024 * 1024  # of all connections
KINDS: Final = ("frames", "gaps")
_PACKET_COST: Final = 256
_GATHERED: Final = 64  # events that become rows at a time


class Settings(NamedTuple):
    """What all splits are decoded by: where drafts go, the largest frame in bytes, whether payloads stay."""

    drafts: str
    max_frame_size: int | None = None
    payload: bool = False

    def reassembler(self, new_session: NewSession) -> Reassembler:
        """A reassembler of frames for the table: chunks are not joined, schemas not kept."""
        return Reassembler(
            Knowledge(join_chunks=False, schemas=False, fixed_limit=self.max_frame_size is not None),
            limit=self.max_frame_size or MAX_FRAME_SIZE,
            new_session=new_session,
        )


Kept = tuple[int, int, int | None, Segment]
"""A packet that was kept: its turn in the split, its place, time in ns, and TCP segment.

Turns bring the packets of a split into the order in which they were read. They are the places, but where
files are read side by side.
"""


@dataclass(slots=True)
class Edge:
    """What a split tells of a connection in it.

    index     its number in the draft
    pair      the smaller one of its keys
    turn      of its first packet
    packets   from there until it stood on sure footing, or to the end; None if they were too many
    kept      what keeping them takes, in bytes
    guess     that footing; None if there was none. Then there are no rows of it
    sure      the turn of the first packet after it
    doubtful  whether an idle half did not go on with a frame when it woke up, or events are held back
    state     the connection's at the end of the split
    largest   bytes of its largest frame, or of the one that has begun
    damaged   whether any of its bytes were lost or are no frames
    in_step   whether both halves were in step at the end
    guessed   topics of answers that may answer requests of before, by request ids
    """

    index: int
    pair: bytes
    turn: int
    packets: list[Kept] | None = field(default_factory=list)
    kept: int = 0
    guess: Footing | None = None
    sure: int = 0
    doubtful: bool = False
    state: State | None = None
    largest: int = 0
    damaged: bool = False
    in_step: bool = False
    guessed: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)


class Decoded(NamedTuple):
    """What became of a split.

    `begin` and `end` are where its first packet's record begins and where the next split's does, with
    the layouts there; no `begin`: none was found. `problems` are (file, what is wrong with it, whether it was
    read up to there, or else cannot be read at all). `fragments` counts IP fragments, `waiting` are those
    that wait for more. `rows` counts those of the draft. Connections without an edge were not followed
    from the turn `rest` on; None if there are none. `dropped` counts packets that the kernel dropped.
    """

    split: Split
    begin: tuple[int, Layout | None] | None
    end: tuple[int, Layout | None]
    problems: list[tuple[str, str, bool]]
    packets: int
    fragments: int
    waiting: Waiting
    edges: list[Edge]
    rows: int
    rest: int | None
    dropped: int = 0


def decode_split(split: Split, settings: Settings) -> Decoded:
    """Decode a split; its draft is written under `settings.drafts`. OSError if that cannot be."""
    decoder = _SplitDecoder(split, settings)
    begin: tuple[int, Layout | None] | None = (split.start, split.layout)
    end: tuple[int, Layout | None] = (split.start, split.layout)
    problems: list[tuple[str, str, bool]] = []
    dropped = 0
    try:
        with _packets(split, problems) as packets:
            if packets is None:
                begin = None
            else:
                if isinstance(packets, PacketReader) and not split.exact:
                    begin = packets.offset, packets.layout
                try:
                    decoder.run(packets)
                finally:
                    dropped = packets.dropped
                    if isinstance(packets, PacketReader):
                        end = packets.offset, packets.layout
    except CaptureError as error:
        problems.append(_problem(split.input.name, error))
    finally:
        decoder.close()
    return Decoded(
        split,
        begin,
        end,
        problems,
        decoder.packets,
        decoder.dissector.fragments,
        decoder.dissector.waiting,
        decoder.edges(),
        decoder.rows,
        decoder.rest,
        dropped,
    )


def unread(split: Split, problem: str) -> Decoded:
    """What becomes of a split that is not read, for what is wrong with its file."""
    start = split.start, split.layout
    problems = [(split.input.name, problem, True)]
    return Decoded(split, start, start, problems, 0, 0, {}, [], 0, None)


def _problem(name: str, error: CaptureError) -> tuple[str, str, bool]:
    return name, str(error), isinstance(error, DamagedCapture)


@contextmanager
def _packets(
    split: Split, problems: list[tuple[str, str, bool]]
) -> Iterator[PacketReader | SideBySide | None]:
    """The packets of a split; None if no beginning is found.

    What is wrong with one of several files is added to `problems`. Raises CaptureError for one alone.
    """
    if not split.input.sides:
        with opened(split.input.path, split.start) as stream:
            yield read_split(split, reader(stream if split.layout is not None else uncompressed(stream)))
        return
    lanes: list[tuple[Side, Lane]] = []
    with ExitStack() as stack:
        for side in split.input.sides:
            try:
                lanes.append((side, lane(stack.enter_context(opened(side.path)), side.file)))
            except CaptureError as error:  # noqa: PERF203 (a file, not a packet)
                problems.append(_problem(side.name, error))
        yield SideBySide([(each, side.since, side.until) for side, each in lanes])
        problems += [_problem(side.name, each.error) for side, each in lanes if each.error is not None]


def reread(split: Split, waiting: Waiting, wanted: dict[bytes, int], rest: int | None) -> Iterator[Kept]:
    """The packets of an exact split again: of connections by their pairs, each from its turn on.

    `waiting` are the IP fragments that waited before the split; `rest` is the turn for all other pairs,
    None for none of them.
    """
    segment = Dissector(waiting).segment
    base, others = _base(split), rest or sys.maxsize
    with suppress(DamagedCapture), _packets(split, []) as packets:
        assert packets is not None  # it is exact
        for number, (time_ns, link, data, length) in enumerate(packets, 1):
            found = segment(link, data, length)
            if found is not None:
                place = base | packets.offset
                turn = number if split.input.sides else place
                if turn >= wanted.get(_pair(found[0]), others):
                    yield turn, place, time_ns, found


def _base(split: Split) -> int:
    """What makes places of the offsets that the packets of a split are given with."""
    return 0 if split.input.sides else split.file << PLACE_BITS


class _SplitDecoder:
    """Takes the packets of a split."""

    def __init__(self, split: Split, settings: Settings) -> None:
        self.packets = 0
        self.rows = 0
        self.rest: int | None = None
        self.dissector = Dissector(split.waiting)
        self._reassembler = settings.reassembler(TopicSession)
        self._base = _base(split)
        self._is_merged = bool(split.input.sides)
        self._edges: list[Edge] = []
        self._pairs: set[bytes] = set()  # of the edges
        self._sure: dict[int, Tcp] = {}  # connections that have their footing, by the index of their edge
        self._given_up: set[bytes] = set()
        self._kept = 0
        self._broken: set[tuple[int, bool]] = set()  # halves whose first bytes were no frame
        names = {side.file: side.name for side in split.input.sides} or {split.file: split.input.name}
        self._builder = TableBuilder(names, payload=settings.payload)
        self._gathered: list[Event] = []
        self._draft = Draft(settings.drafts, split.name)
        self._draft.delete()  # of an attempt that began elsewhere

    def run(self, packets: PacketReader | SideBySide) -> None:
        """Decode them."""
        segment, base = self.dissector.segment, self._base
        add, more, connection = self._reassembler.add, self._reassembler.more, self._reassembler.connection
        for number, (time_ns, link, data, length) in enumerate(packets, 1):
            self.packets = number
            found = segment(link, data, length)
            if found is None:
                continue
            tcp = connection(found[0])
            place = base | packets.offset
            if tcp is None or tcp.mark is None or tcp.mark.guess is None or found[3] & SYN:
                self._unsure((number if self._is_merged else place, place, time_ns, found))
            else:
                events = add(found, time_ns, place)
                while events:
                    self._gathered += events
                    if len(self._gathered) >= _GATHERED:
                        self._flush()
                    events = more()

    def _unsure(self, packet: Kept) -> None:
        """Take a packet of a connection that may have no sure footing."""
        turn, place, time_ns, segment = packet
        key = segment[0]
        pair = _pair(key)
        if pair in self._given_up:
            return
        if len(self._edges) >= MOST_EDGES and pair not in self._pairs:
            self.rest = self.rest or turn
            return
        events = self._reassembler.add(segment, time_ns, place)
        tcp = self._marked(key, turn)
        edges = self._edges
        while events:
            self._gathered += [event for event in events if edges[event.connection.index].guess is not None]
            events = self._reassembler.more()
            tcp = self._marked(key, turn)  # the events of a connection come before another one is opened
        if tcp is not None and tcp.mark.guess is None:
            self._keep(tcp, packet)

    def _marked(self, key: bytes, turn: int) -> Tcp | None:
        """The connection of a segment, with its edge."""
        tcp = self._reassembler.connection(key)
        if tcp is not None and tcp.mark is None:
            tcp.mark = Edge(len(self._edges), _pair(key), turn)
            tcp.session.connection.index = tcp.mark.index
            self._edges.append(tcp.mark)
            self._pairs.add(tcp.mark.pair)
        return tcp

    def _keep(self, tcp: Tcp, packet: Kept) -> None:
        edge: Edge = tcp.mark
        cost = len(packet[3][4]) + _PACKET_COST
        edge.kept += cost
        self._kept += cost
        too_many = len(self._sure) >= MOST_SURE or len(self._edges) > MOST_EDGES
        too_many |= edge.kept > MOST_KEPT or self._kept > _ALL_KEPT
        if edge.packets is None or too_many:
            self._kept -= edge.kept
            edge.packets = None
            self._given_up.add(edge.pair)
            return
        edge.packets.append(packet)
        edge.guess = footing(tcp, patient=len(edge.packets) < PATIENCE)
        edge.sure = packet[0] + 1
        if edge.guess is not None:
            assert isinstance(tcp.session, TopicSession)
            self._sure[edge.index] = tcp
            tcp.session.forget()  # who knows the past has seen the same frames, and none that are none

    def _flush(self, *, last: bool = False) -> None:
        builder = self._builder
        builder.add(self._gathered)
        self._gathered = []
        if builder.damage:
            for event in builder.damage:
                self._edges[event.connection.index].damaged = True
                if isinstance(event, Malformed) and event.offset == 0:
                    self._broken.add((event.connection.index, event.to_broker))
            self._draft.gaps(builder.gaps())
        if builder.is_full or (last and builder.rows):
            batch = builder.frames()
            self.rows += batch.num_rows
            largest = np.zeros(len(self._edges), np.int64)
            sizes = batch.column("total_size").to_numpy() + 4
            np.maximum.at(largest, batch.column("connection").to_numpy(), sizes)
            for index in np.flatnonzero(largest).tolist():
                edge = self._edges[index]
                edge.largest = max(edge.largest, int(largest[index]))
            self._draft.frames(batch)

    def close(self) -> None:
        """Write what is left of the draft."""
        self._flush(last=True)
        self._draft.close()

    def edges(self) -> list[Edge]:
        """The edges, in the order in which their connections were opened."""
        for index, tcp in self._sure.items():
            edge = self._edges[index]
            edge.state = hand_over(tcp)
            assert isinstance(tcp.session, TopicSession)
            edge.guessed = tcp.session.guessed
            edge.doubtful = self._is_doubtful(edge, tcp)
            edge.largest = max(edge.largest, *(half.stream.awaited for half in halves_of(tcp)))
            edge.in_step = all(half.stream.step is not None for half in halves_of(tcp))
        return self._edges

    def _is_doubtful(self, edge: Edge, tcp: Tcp) -> bool:
        assert edge.guess is not None
        return any(
            half.held
            or (
                guess.kind == IDLE
                and not half.stream.untouched
                and (half.stream.step is None or (edge.index, half.stream.to_broker) in self._broken)
            )
            for guess, half in zip(edge.guess.halves, halves_of(tcp), strict=True)
        )


def _pair(key: bytes) -> bytes:
    """The smaller one of the keys of a connection's directions."""
    return min(key, reverse(key))


class Draft:
    """The draft of a split: two Arrow streams, of frames and of gaps, each made when it is needed.

    `paths` are theirs, in the filesystem of `directory`.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._system, inside = filesystem(directory)
        self.paths = [f"{inside}/{name}.{kind}.arrow" for kind in KINDS]
        self._open: dict[int, tuple[Any, Any]] = {}

    def delete(self) -> None:
        """Leave nothing of it."""
        for path in self.paths:
            with suppress(FileNotFoundError):
                self._system.delete_file(path)

    def frames(self, batch: Any) -> None:
        """Append rows of frames."""
        self._write(0, FRAMES, batch)

    def gaps(self, batch: Any) -> None:
        """Append rows of gaps."""
        self._write(1, GAPS, batch)

    def _write(self, which: int, schema: Any, batch: Any) -> None:
        if which not in self._open:
            file = self._system.open_output_stream(self.paths[which])
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._open[which] = file, pa.ipc.new_stream(file, schema, options=options)
        self._open[which][1].write_batch(batch)

    def close(self) -> None:
        """Finish both files."""
        for file, stream in self._open.values():
            stream.close()
            file.close()
