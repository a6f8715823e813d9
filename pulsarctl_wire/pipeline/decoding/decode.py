"""Decodes one split alone: its rows, as far as they are certain, and its edges.

The packets of each connection are kept until it is synchronized (capture/handover.py). They go to the process
that knows what came before, and so does the connection's state at the end of the split. The rows in between
are written as a draft: connections are numbered from 0, stream offsets count from the connection's first byte
in the split, and producers and consumers that were opened earlier are unknown.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import Lane, OnSecrets, PacketReader, SecretsBlock, SideBySide
from pulsarctl_wire.capture.halves import Tcp
from pulsarctl_wire.capture.handover import IDLE, halves_of, hand_over, sync_point
from pulsarctl_wire.capture.packets import SYN, Dissector, Waiting, reverse
from pulsarctl_wire.capture.secrets import holds_key_log
from pulsarctl_wire.capture.series import open_lane
from pulsarctl_wire.capture.sources import unpack
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Edge, FilePosition, Kept, Problem, Settings
from pulsarctl_wire.pipeline.files.splits import Side, Split, open_input, read_split
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, Event, Frame, Malformed
from pulsarctl_wire.wire.session.partial_state import PartState

PATIENCE: Final = 64
"""How many packets of a connection to wait for the first bytes of an idle half."""
MAX_PACKET_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of packets kept for one connection; beyond that, the split is read again for it."""
MAX_SAVED_CONNECTIONS: Final = 4_096
"""Maximum number of connections of a split whose state is kept; the split is read again for the others."""
MAX_EDGES: Final = 8_192
"""Maximum number of connections that a split reports; the split is read again for the others."""
_ALL_KEPT: Final = 64 * 1024 * 1024  # bytes of packets kept for all connections
_PACKET_COST: Final = 256  # bytes of memory that a kept packet takes besides its payload, estimated
_GATHERED: Final = 64  # events that are collected at a time


def decode(split: Split, settings: Settings, collect: Callable[[list[Event]], object]) -> Decoded:
    """Decode a split; call `collect` with the certain events, whose connections have their edges' indexes."""
    decoder = _SplitDecoder(split, settings, collect)
    begin: FilePosition | None = (split.start, split.layout)
    end: FilePosition = (split.start, split.layout)
    problems: list[Problem] = []
    dropped = 0
    for name, base, packets in _read_inputs(split, problems, decoder.note_secrets):
        if packets is None:
            begin = None
            continue
        if isinstance(packets, PacketReader) and not split.exact:
            begin = packets.offset, packets.layout
        decoder.reassembler.knowledge.turn = partial(decoder.turn, packets)
        try:
            decoder.run(packets, base)
        except CaptureError as error:
            problems.append(_problem(name, error))
        finally:
            decoder.reassembler.knowledge.turn = int  # frees the decoder without garbage collection
        dropped += packets.dropped
        if isinstance(packets, PacketReader):
            end = packets.offset, packets.layout
    decoder.flush()
    frames = decoder.reassembler.knowledge.frames
    return Decoded(
        *(split, begin, end, problems, decoder.packets, decoder.dissector.fragments),
        *(decoder.dissector.waiting, decoder.edges(), decoder.rest, dropped, decoder.cut, frames),
        decoder.dissector.skipped,
        has_secrets=decoder.has_secrets,
    )


def pair_of(key: bytes) -> bytes:
    """Return the smaller of the keys of a connection's two directions."""
    return min(key, reverse(key))


def make_unreadable_result(split: Split, problem: str) -> Decoded:
    """Return the result of a split that is not read because of a `problem` with its file."""
    start = split.start, split.layout
    problems = [(split.input.name, problem, True)]
    return Decoded(split, start, start, problems, 0, 0, {}, [], None)


def _problem(name: str, error: CaptureError) -> Problem:
    return name, str(error), isinstance(error, DamagedCapture)


def _read_inputs(
    split: Split, problems: list[Problem], on_secrets: OnSecrets | None = None
) -> Iterator[tuple[str, int, PacketReader | SideBySide | None]]:
    """Yield for each input of a split its name, the base of its places, and its packets.

    A packet's place is its offset and the base. The packets are None if no record is found. What is wrong
    with a file is added to `problems`, except for errors that are raised while packets are read.
    `on_secrets` is as in `PacketReader`.
    """
    lanes: dict[int, Lane | None] = {}
    with ExitStack() as stack:
        stacks: dict[int, ExitStack] = {}
        for file, input_ in enumerate(split.inputs, split.file):
            if not input_.sides:
                part = Split(file, 0, input_) if split.more else split
                try:
                    with open_input(input_.path, part.start) as stream:
                        source = stream if part.layout is not None else unpack(stream)
                        packets = read_split(part, reader(source))
                        if packets is not None:
                            packets.on_secrets = on_secrets
                        yield input_.name, file << PACKET_OFFSET_BITS, packets
                except CaptureError as error:
                    problems.append(_problem(input_.name, error))
                continue
            for side in input_.sides:
                if side.file not in lanes:
                    stacks[side.file] = stack.enter_context(ExitStack())
                    lanes[side.file] = _begin_lane(side, stacks[side.file], problems, on_secrets)
            sides = [(lane, side) for side in input_.sides if (lane := lanes[side.file]) is not None]
            yield input_.name, 0, SideBySide([(lane, side.since, side.until) for lane, side in sides])
            for lane, side in sides:
                if side.until is None or file == split.next_file - 1:
                    stacks[side.file].close()
                    if lane.error is not None:
                        problems.append(_problem(side.name, lane.error))


def _begin_lane(
    side: Side, stack: ExitStack, problems: list[Problem], on_secrets: OnSecrets | None
) -> Lane | None:
    """Return the packets of a file that is read side by side; None if it cannot be read."""
    try:
        return open_lane(stack.enter_context(open_input(side.path)), side.file, on_secrets)
    except CaptureError as error:
        problems.append(_problem(side.name, error))
        return None


def reread(decoded: Decoded, datagrams: Waiting) -> Iterator[Kept]:
    """Read an exact split again; `datagrams` are the IP datagrams that were incomplete before it.

    If one of its files cannot be read any more, that is added to its problems.
    """
    split = decoded.split
    dissect = Dissector(datagrams).segment
    number = 0
    problems: list[Problem] = []
    for name, base, packets in _read_inputs(split, problems):
        assert packets is not None  # the split is exact
        if not {*problems} <= {*decoded.problems}:
            break  # the turns of the other files would be wrong
        try:
            for time_ns, link, data, length in packets:
                number += 1
                segment = dissect(link, data, length)
                if segment is not None:
                    place = base | packets.offset
                    yield number if split.is_merged else place, place, time_ns, segment
        except CaptureError as error:
            problems.append(_problem(name, error))
    for name, text, _ in [problem for problem in problems if problem not in decoded.problems]:
        decoded.problems.append((name, f"cannot be read again, so rows may be missing: {text}", True))


class _SplitDecoder:
    """Decodes the packets of a split; keeps the edges of its connections."""

    def __init__(self, split: Split, settings: Settings, collect: Callable[[list[Event]], object]) -> None:
        self.packets = self.cut = 0
        self.has_secrets = False
        """Whether its files hold secrets of TLS."""
        self.rest: int | None = None
        """As in `Decoded`."""
        self.dissector = Dissector(split.waiting)
        self.reassembler = settings.reassembler(PartState)
        self.reassembler.copies.keep = True  # the process that joins the splits recognizes copies
        self._stand_in = settings.stand_in
        self._base = 0
        self._is_merged = split.is_merged
        self._edges: list[Edge] = []
        self._pairs: set[bytes] = set()  # of the edges
        self._synced: dict[int, Tcp] = {}  # connections that are synchronized, by the index of their edge
        self._unsynced_states: dict[int, PartState] = {}  # of the others
        self._given_up: set[bytes] = set()  # pairs whose packets are not kept any more
        self._kept_bytes = 0  # of all packets that are kept
        self._broken: set[tuple[int, bool]] = set()  # halves whose first bytes were not a frame
        self._collect = collect
        self._gathered: list[Event] = []

    def run(self, packets: PacketReader | SideBySide, base: int) -> None:
        """Decode these packets, whose places are their offsets and `base`."""
        dissector, reassembler = self.dissector, self.reassembler
        self._base = base
        for time_ns, link, data, length in packets:
            self.packets += 1
            if len(data) < length:
                self.cut += 1
            segment = dissector.segment(link, data, length)
            if segment is None:
                continue
            tcp = reassembler.connection(segment[0])
            place = base | packets.offset
            if tcp is None or not tcp.is_synced or segment[3] & SYN:
                self._take_unsynced((self.packets if self._is_merged else place, place, time_ns, segment))
            else:
                tcp.since_synced += 1
                events = reassembler.add(segment, time_ns, place)
                while events:
                    self._gathered += events
                    if len(self._gathered) >= _GATHERED:
                        self.flush()
                    events = reassembler.take_more()

    def note_secrets(self, block: SecretsBlock) -> None:
        """Note secrets, which are not used."""
        self.has_secrets |= holds_key_log(block)

    def turn(self, packets: PacketReader | SideBySide) -> int:
        """Return the turn of the current packet."""
        return self.packets if self._is_merged else self._base | packets.offset

    def _take_unsynced(self, packet: Kept) -> None:
        """Decode a packet of a connection that may not be synchronized yet."""
        turn, place, time_ns, segment = packet
        key = segment[0]
        pair = pair_of(key)
        if pair in self._given_up:
            return
        if len(self._edges) >= MAX_EDGES and pair not in self._pairs:
            self.rest = self.rest or turn
            return
        events = self.reassembler.add(segment, time_ns, place)
        tcp = self._mark(key, turn)
        edges = self._edges
        while events:
            self._gathered += [event for event in events if edges[event.connection.index].guess is not None]
            events = self.reassembler.take_more()
            tcp = self._mark(key, turn)  # after these events, the key may be a new connection's
        if tcp is not None and tcp.mark.guess is None:
            self._keep(tcp, packet)
        elif tcp is not None:
            tcp.since_synced += 1

    def _mark(self, key: bytes, turn: int) -> Tcp | None:
        """Return the connection of a segment's key; give it an edge as its mark if it has none."""
        tcp = self.reassembler.connection(key)
        if tcp is not None and tcp.mark is None:
            tcp.mark = Edge(len(self._edges), pair_of(key), turn)
            tcp.state.connection.index = tcp.mark.index
            self._edges.append(tcp.mark)
            self._pairs.add(tcp.mark.pair)
            assert isinstance(tcp.state, PartState)
            self._unsynced_states[tcp.mark.index] = tcp.state
        return tcp

    def _keep(self, tcp: Tcp, packet: Kept) -> None:
        edge: Edge = tcp.mark
        cost = len(packet[3][4]) + _PACKET_COST
        edge.kept += cost
        self._kept_bytes += cost
        too_many = len(self._synced) >= MAX_SAVED_CONNECTIONS or len(self._edges) > MAX_EDGES
        too_many |= edge.kept > MAX_PACKET_BYTES or self._kept_bytes > _ALL_KEPT
        if edge.packets is None or too_many:
            self._kept_bytes -= edge.kept
            edge.packets = None
            self._given_up.add(edge.pair)
            return
        edge.packets.append(packet)
        edge.guess = sync_point(tcp, patient=len(edge.packets) < PATIENCE)
        edge.synced = packet[0] + 1
        if edge.guess is not None:
            assert isinstance(tcp.state, PartState)
            tcp.is_synced = True
            self._synced[edge.index] = tcp
            edge.early = self._unsynced_states.pop(edge.index).sent
            tcp.life.syns = tcp.life.copies = 0  # the stitcher counts those in `edge.packets`
            tcp.state.begin(f"{self._stand_in}{edge.index}")  # the stitcher decodes the earlier frames

    def flush(self) -> None:
        """Call `collect` with the events gathered so far, except deferred frames."""
        certain_events: list[Event] = []
        for event in self._gathered:
            edge = self._edges[event.connection.index]
            if not isinstance(event, Frame):
                edge.damaged = True
                if isinstance(event, Malformed) and event.offset == 0:
                    self._broken.add((edge.index, event.to_broker))
            elif not event.number:  # deferred
                continue
            elif len(event.raw) > edge.largest or event.partial:
                edge.largest = max(edge.largest, event.size)
            certain_events.append(event)
        self._gathered = []
        if certain_events:
            self._collect(certain_events)

    def edges(self) -> list[Edge]:
        """Return the edges, in the order in which their connections were opened."""
        for index, state in self._unsynced_states.items():
            self._edges[index].early = state.sent
        for index, tcp in self._synced.items():
            edge = self._edges[index]
            edge.state = hand_over(tcp)
            edge.later = tcp.since_synced
            assert isinstance(tcp.state, PartState)
            edge.part = tcp.state.export_part()
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
