"""Replaces names, payloads and addresses in captures, packet by packet, in the order of the packets.

    packets -> decoder -> frames -> replaced (frames.py, payloads.py, strays.py) -> streams.py
       \\-> wait until all their bytes are replaced -> packets.py -> pcapng

What waits is bounded: if the packets that wait for the end of a frame are too many, the oldest are written
as if their frames were cut there, or with noise, and counted.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from pulsarctl_wire.capture.comments import describe_route
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.halves import MASK, Half, Tcp
from pulsarctl_wire.capture.packets import NEXT, Dissector, Segment, reverse
from pulsarctl_wire.capture.reassembly import LINGER
from pulsarctl_wire.capture.sources import Decoder, Reading
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.sanitize.fields import FieldRewriter
from pulsarctl_wire.sanitize.frames import FrameRewriter
from pulsarctl_wire.sanitize.names import Kind, Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise
from pulsarctl_wire.sanitize.opened import find_opened, holds_records, make_last, make_segments, note_base
from pulsarctl_wire.sanitize.packets import PacketRewriter, find_segment
from pulsarctl_wire.sanitize.payloads import PayloadRewriter
from pulsarctl_wire.sanitize.strays import StrayRewriter
from pulsarctl_wire.sanitize.streams import History, Stream
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.state import State

MAX_WAITING: Final = 64 * 1024 * 1024
"""Bytes of packets that wait for the end of a frame."""

_PLAIN: Final = Reading()
_COST: Final = 512  # memory for a packet that waits, besides its bytes


@dataclass(slots=True)
class _WaitingPacket:
    """A packet, and where its segment's bytes are; `stream` is None if it has none that can be followed."""

    packet: RawPacket
    segment: Segment | None
    half: Half | None = None
    stream: Stream | None = None
    start: int = 0
    tls: Tcp | None = None
    """Its connection, if that is TLS which may be opened."""
    payload: bytes | None = None
    """What replaces its payload, once known."""

    @property
    def carries_plain(self) -> bool:
        """Whether it is TLS that was opened, and is written with plain bytes."""
        return self.tls is not None and find_opened(self.tls) is True

    def is_ready(self) -> bool:
        """Replace its bytes as far as they are known; return whether no more will become known."""
        if self.tls is not None and find_opened(self.tls) is not False:
            return self.carries_plain and not holds_records(self.tls)
        if self.stream is None or self.half is None or self.segment is None:
            return True
        if self.payload is None:
            self.stream.resolve([], is_last=self.half.closed)
        return self.payload is not None or self.half.closed or self.is_covered

    @property
    def is_covered(self) -> bool:
        """Whether all its bytes are replaced."""
        assert self.stream is not None
        assert self.segment is not None
        return self.start + len(self.segment[4]) <= self.stream.resolved

    def read(self) -> bytes:
        """Return what replaces its payload."""
        assert self.stream is not None
        assert self.segment is not None
        return self.stream.read(self.start, self.segment[4])


class _ConnectionState(ExchangeState):
    """The state of a connection, with the two streams of its bytes."""

    streams: tuple[tuple[FrameStream, Stream], ...] = ()

    def find(self, decoder: FrameStream) -> Stream:
        """Return the stream that `decoder` decodes."""
        return next(stream for candidate, stream in self.streams if candidate is decoder)

    def find_direction(self, to_broker: bool) -> Stream:
        """Return the stream of this direction."""
        return next(stream for decoder, stream in self.streams if decoder.to_broker is to_broker)


class Sanitizer:
    """Writes the packets that its `decoder` reads to `stream` as pcapng.

    Call `take` with all events of the decoder, then `finish`.

    `reading` says how captures are read; `opens_tls`: there are, or may come, secrets of TLS. What they open
    is written as plain TCP.

    `cut_short` counts packets that were written before their frames were complete: as parts of cut frames, or
    with noise. `blanked` counts those without a TCP segment, of which only headers are left.
    """

    def __init__(
        self,
        stream: BinaryIO,
        pseudonyms: Pseudonyms,
        reading: Reading = _PLAIN,
        *,
        opens_tls: bool = False,
    ) -> None:
        self.cut_short = 0
        self.blanked = 0
        self.decoder = Decoder(
            reading._replace(keep_duplicates=True),  # copies are copies again, as they get the same bytes
            join_chunks=False,
            tee=self._see,
            sort=True,
            new_state=self._follow,
            on_end=lambda ending: self._ended.append(ending.connection.index),
        )
        self._opens_tls = opens_tls
        self._noise = Noise(pseudonyms)
        self._pseudonyms = pseudonyms
        self._fields = FieldRewriter(pseudonyms, self._noise)
        self.payloads = PayloadRewriter(pseudonyms, self._noise, self._fields)
        self._frames = FrameRewriter(self._noise, self._fields, self.payloads)
        self._packets = PacketRewriter(pseudonyms.addresses)
        self._history = History()
        self._writer = PcapngWriter(stream)
        self._dissector = Dissector()
        self._states: dict[int, _ConnectionState] = {}
        self._ended: deque[int] = deque()
        self._current: tuple[int, RawPacket] | None = None
        self._events: dict[Stream, list[Event]] = {}  # of the current packet
        self._waiting: dict[int, _WaitingPacket] = {}  # by the packet's number
        self._waiting_bytes = 0
        self._next = 1  # number of the packet to be written next
        self._comments: dict[int, str] = {}  # of packets that wait

    @property
    def count(self) -> int:
        """Packets written."""
        return self._writer.count

    def take(self, events: Iterable[Event]) -> None:
        """Take the events of the packet that was read last."""
        for event in events:
            stream = self._states[event.connection.index].find_direction(event.to_broker)
            self._events.setdefault(stream, []).append(event)

    def finish(self) -> None:
        """Replace and write what still waits, at the end of the captures."""
        self._settle()
        for events in self.decoder.finish():
            self.take(events)
            self._resolve()
        for state in self._states.values():
            for _, stream in state.streams:
                stream.resolve([], is_last=True)
        self._write(0)
        for state in self._states.values():
            for _, stream in state.streams:
                self._write_rest(stream)
        if self.decoder.dropped_packets and self._current is not None:
            time_ns, link, _, _ = self._current[1]
            self._writer.write_statistics(link, time_ns or 0, self.count, self.decoder.dropped_packets)

    def _follow(self, connection: Connection, knowledge: Knowledge, decoders: Iterable[FrameStream]) -> State:
        """Return the state of a new connection."""
        decoders = tuple(decoders)
        state = _ConnectionState(connection, knowledge, decoders)
        state.streams = tuple([(decoder, self._make_stream(decoder)) for decoder in decoders])
        self._states[connection.index] = state
        if connection.listener and self._current is not None:
            ends = connection.client, connection.listener, connection.server
            texts = [self._pseudonyms.replace(Kind.ADDRESSES, text.encode()).decode() for text in ends]
            self._comments[self._current[0]] = describe_route(*texts)
        while len(self._ended) > 2 * LINGER:
            self._states.pop(self._ended.popleft(), None)
        return state

    def _make_stream(self, decoder: FrameStream) -> Stream:
        strays = StrayRewriter(self._pseudonyms, self._noise, self._fields)
        return Stream(decoder, self._frames, strays, self._noise, self._history)

    def _see(self, number: int, packet: RawPacket) -> None:
        self._settle()
        self._current = number, packet

    def _settle(self) -> None:
        """Let the current packet, whose events were taken, wait until it can be written."""
        if self._current is None:
            return
        number, packet = self._current
        segment = self._dissector.segment(*packet[1:])
        waiting = _WaitingPacket(packet, segment)
        tcp = None if segment is None else self.decoder.reassembler.connection(segment[0])
        if segment is not None and tcp is not None:
            half = tcp.half if segment[0] == tcp.keys[0] else tcp.half.other
            stream = self._find_stream(half, segment)
            tls = tcp if self._opens_tls and tcp.tls is not None else None
            if segment[4]:
                start = stream.offset_of(half, segment)
                stream.add(start, segment[4])
                if segment[3] & NEXT:  # it has no sequence number of its own
                    segment = (segment[0], start + 1 & MASK, *segment[2:])
                self._events.setdefault(stream, [])
                waiting = _WaitingPacket(packet, segment, half, stream, start, tls)
                stream.waiting.append(waiting)
            elif tls is not None:
                waiting = _WaitingPacket(packet, segment, half, stream, 0, tls)
        self._resolve()
        self._waiting[number] = waiting
        self._waiting_bytes += len(packet[2]) + _COST
        self._write(MAX_WAITING)

    def _write_rest(self, stream: Stream) -> None:
        """Write the plain bytes that no packet has carried."""
        if stream.half is not None and stream.half.is_opened and self._current is not None:
            for plain in make_last(stream.key, stream.plain):
                self._writer.write(self._packets.make(self._current[1], plain))

    def _find_stream(self, half: Half, segment: Segment) -> Stream:
        """Set `half` and `key` of both streams of a connection; return the stream that has `segment`."""
        state: Any = half.tcp.state
        for side, key in zip((half, half.other), (segment[0], reverse(segment[0])), strict=True):
            stream: Stream = state.find(side.stream)
            stream.half, stream.key = side, key
        stream = state.find(half.stream)
        note_base(stream.plain, segment)
        return stream

    def _resolve(self) -> None:
        for stream, events in self._events.items():
            stream.resolve(events)
            while stream.waiting and stream.waiting[0].is_covered:
                waiting = stream.waiting.popleft()
                waiting.payload = waiting.read()
        self._events.clear()

    def _write(self, limit: int) -> None:
        """Write the packets that are ready, and others until at most `limit` bytes wait."""
        while self._next in self._waiting:
            waiting = self._waiting[self._next]
            is_ready = waiting.is_ready()
            if not is_ready and self._waiting_bytes <= limit:
                return
            del self._waiting[self._next]
            self._next += 1
            self._waiting_bytes -= len(waiting.packet[2]) + _COST
            if not is_ready:
                self.cut_short += 1
                if waiting.stream is not None:
                    waiting.stream.resolve_unfinished()
            comment = self._comments.pop(self._next - 1, "")
            comments = [comment] if comment else []
            if waiting.carries_plain:
                self._write_opened(waiting, comments)
            else:
                self._writer.write(self._rewrite(waiting), comments)

    def _write_opened(self, waiting: _WaitingPacket, comments: list[str]) -> None:
        """Write the plain bytes of a packet of TLS."""
        stream, segment, tcp = waiting.stream, waiting.segment, waiting.tls
        assert stream is not None
        assert segment is not None
        state: Any = None if tcp is None else tcp.state
        other = next(candidate for _, candidate in state.streams if candidate is not stream)
        for plain in make_segments(self._next - 1, segment, stream.plain, other.plain):
            self._writer.write(self._packets.make(waiting.packet, plain), comments)

    def _rewrite(self, waiting: _WaitingPacket) -> RawPacket:
        packet, segment = waiting.packet, waiting.segment
        if segment is None:
            self.blanked += 1
            return self._packets.blank(packet)
        payload = waiting.payload
        if payload is None:
            payload = self._noise.like(segment[4]) if waiting.stream is None else waiting.read()
        return self._packets.rewrite(packet, segment, find_segment(packet[2], segment), payload)
