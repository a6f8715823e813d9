"""One direction of a connection: chunks of bytes in, frames out, damage told.

Any chunking of the same bytes gives the same events, but for the time and packet stamped on them.
The stream is in one of four states:

    in step    the next byte begins a frame (the usual state)
    skipping   inside a frame whose bytes are of no more use (part of it was not captured, or it is
               larger than we keep); in step again at its end
    searching  frames are lost; looking for the next place where a frame surely begins
    foreign    the peer speaks another protocol (TLS, HTTP, ...); everything is passed over

Where a search may end: one right frame (`resync.judge`) suffices at the place where the bytes
resume, or where the damaged frame says that it ends; that place is judged first. Anywhere else two
must follow one another, for a payload may hold anything, Pulsar frames included. Candidates are
judged in order, so a later one never wins while an earlier one is still arriving.

Memory is bounded: a frame up to the limit is kept until it is whole; a larger one is kept only if
its command is sane, and up to `KEPT_FRAME` bytes. Where many frames are in bytes that had to wait, `take`
and `settle` give about `PORTION` events at a time. Time is bounded: where searches have spent much more
effort than the bytes of the stream are worth, only small candidates are looked at until more have passed.
"""

import struct
from typing import Any, Final

from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire import foreign, resync
from pulsarctl_wire.wire.broken import is_little_endian, what_breaks
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import (
    KEPT_FRAME,
    MAX_FRAME_SIZE,
    MAX_PARSED,
    Connection,
    Event,
    Frame,
    Gap,
    Malformed,
    read_entry,
    type_of,
)
from pulsarctl_wire.wire.origins import Source, packets_of, time_of
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

_PIECE: Final = 65_536  # bytes of which frames are read without a pause
_UNCHECKED: Final = 65_536  # bytes of a frame that is waited for before its command is parsed
_MOST_PACKETS: Final = 65_536  # that a malformed stretch names
_FREE_EFFORT: Final = 1024 * 1024
_EFFORT_PER_BYTE: Final = 8

PORTION: Final = 4_096
"""Events after which `FrameStream.take` and `settle` pause."""

STATE: Final = (
    *("limit", "protocol", "_offset", "_buffer", "_need", "_sources"),
    *("_source", "_source_ns", "_time_ns", "_packet", "_approved", "_skip", "_searching", "_seen_frame"),
    *("_fresh", "_resume_at", "_searched", "_effort"),
    *("_lost_reason", "_lost_at", "_lost_size", "_lost_head", "_lost_packets", "_lost_stamp"),
)
"""All that a stream goes on from but for the connection and the direction."""

_header_at: Final = struct.Struct(">II").unpack_from
_parse_command: Final = BaseCommand.FromString
_CONNECT: Final = BaseCommand.CONNECT

_UNPARSEABLE: Final = "the command does not parse as BaseCommand"
_BEGAN_INSIDE: Final = "the capture began inside a frame"
_AFTER_GAP: Final = "no frame begins here after a gap"


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameStream:
    """Turns one direction of a connection into frames, gaps and malformed stretches.

    `from_start` says that the first byte fed is the first that was sent; otherwise the stream begins
    by searching. `limit` is the largest legal frame in bytes, length prefix included; the session
    raises it when the broker announces more. `to_broker` may be a guess, then `certain` is False and
    no frame is refused for its direction. `protocol` names the other protocol this direction turned
    out to speak, if it did.
    """

    __slots__ = ("_buffered", "_older", "certain", "connection", "pending", "to_broker", *STATE)

    def __init__(
        self,
        connection: Connection,
        to_broker: bool,
        *,
        from_start: bool = True,
        limit: int = MAX_FRAME_SIZE,
    ) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.limit = limit
        self.certain = True
        self.pending = False
        """Whether `take` has paused: `take_more` goes on."""
        self.protocol = ""
        self._offset = 0  # in the stream, of the first buffered byte
        self._buffer: list[bytes] = []  # what waits for more, in pieces
        self._buffered = 0  # bytes of it
        self._older = 0  # bytes buffered before the ones just fed
        self._need = 0  # bytes the buffer must have before there is anything to do
        self._sources: list[Source] = []  # of what is buffered
        self._source = 0
        self._source_ns: int | None = None
        self._time_ns: int | None = None
        self._packet = 0
        self._approved = -1  # TOTAL_SIZE of the large frame that is waited for
        self._skip = 0
        self._searching = False
        self._seen_frame = False
        self._fresh = True  # nothing recognised yet: it may still be another protocol
        self._resume_at, self._searched = -1, 0
        self._effort = 0  # of searches: `_EFFORT_PER_BYTE` times the offset whose bytes are worth it
        self._mark_lost("", 0)
        self._fresh = True
        if not from_start:
            self._lose(_BEGAN_INSIDE, 0, resume_at=0)

    # -- what goes in

    def feed(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Take the next bytes, captured at `time_ns` in packet `packet`; give the events they complete.

        What began in bytes captured later (the packets were not in order) is complete since those were.
        """
        events = self.take(data, time_ns, packet)
        while self.pending:
            events += self.take_more()
        return events

    def take(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """What `feed` does, but give only the first events where they are many (see `pending`)."""
        if packet >= self._packet or not self._buffered:
            self._time_ns, self._packet = time_ns, packet
            if not self._offset and not self._buffered:
                self._lost_stamp = time_ns, packet  # should what begins here be no frame
        self._source, self._source_ns = packet, time_ns
        self._older = self._buffered
        if self._buffered:
            self._buffer.append(data)
            self._buffered += len(data)
            self._sources.append((self._offset + self._buffered, packet, time_ns))
            if self._buffered < self._need:
                return []
            data = b"".join(self._buffer)
        elif self._sources:
            self._sources = []
        events: list[Event] = []
        at = self._frames(data, 0, events) if self.in_step else 0
        if at < len(data):
            at = self._run(data, at, events)
        self._keep(data, at)
        return events

    def take_more(self) -> list[Event]:
        """More events of the bytes that were taken last; none if they only wait for more bytes."""
        data = b"".join(self._buffer)
        self._older = len(data)
        events: list[Event] = []
        self._keep(data, self._run(data, 0, events))
        return events

    def gap(self, size: int, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Say that the next `size` bytes were never captured; give the events that follow from it."""
        if self.protocol:
            self._offset += size
            return []
        events: list[Event] = []
        frame_end = self._end(events)
        self._time_ns, self._packet = time_ns, packet
        events.append(Gap(size, self.connection, self.to_broker, self._offset, time_ns, packet))
        self._offset += size
        self._effort += _EFFORT_PER_BYTE * size
        if frame_end >= self._offset:
            self._skip = frame_end - self._offset
        else:
            self._lose(_AFTER_GAP, self._offset, resume_at=self._offset)
        return events

    def settle(self) -> list[Event]:
        """Some of the events that `gap` or `close` would give first; none once they give the rest."""
        data = b"".join(self._buffer)
        self._older = len(data)
        events: list[Event] = []
        at = self._run(data, 0, events, ended=True)
        while at < len(data) and not self.pending and not self._is_cut_frame(data, at):
            self._refuse("too few bytes to tell what begins here", at, 0)
            at = self._run(data, at, events, ended=True)
        self._keep(data, at)
        return events

    def close(self) -> list[Event]:
        """Say that no more bytes come (FIN, RST, end of the capture); give the events that are left."""
        events: list[Event] = []
        self._end(events)
        return events

    @property
    def spoke(self) -> bool:
        """Whether any frame has come whole."""
        return self._seen_frame

    # -- handing over to a stream in another process that goes on from here

    @property
    def step(self) -> int | None:
        """How many bytes of a frame that begins where the last one ended are here; None if out of step."""
        return self._buffered if self.in_step and self._seen_frame and self._approved < 0 else None

    @property
    def in_debt(self) -> bool:
        """Whether more effort was spent on searches than the bytes so far are worth."""
        return self._effort > _EFFORT_PER_BYTE * self._offset

    @property
    def held_bytes(self) -> int:
        """Bytes that are in no event yet."""
        return self._buffered

    @property
    def untouched(self) -> bool:
        """Whether nothing was fed so far."""
        return not (self._offset or self._buffered)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the bytes came from that are in no event yet, and the latest of their packets.

        Their ends are counted from `position`.
        """
        if not self._buffered:
            return ()
        sources = [(end - self._offset, packet, time_ns) for end, packet, time_ns in self._sources]
        return (*sources, (0, self._packet, self._time_ns))

    @property
    def awaited(self) -> int:
        """Bytes that the frame which has begun says it has; 0 if it does not say yet."""
        if self._buffered < 4:
            return 0
        head = self._buffer[0] if len(self._buffer[0]) >= 4 else b"".join(self._buffer)
        return int.from_bytes(head[:4], "big") + 4

    @property
    def position(self) -> int:
        """Offset of the first byte that is in no event yet."""
        return self._offset

    def state(self) -> tuple[Any, ...]:
        """What another stream can go on from: the values of `STATE`, all of them plain data."""
        return tuple([getattr(self, name) for name in STATE])

    def resume(self, state: tuple[Any, ...], shift: int) -> None:
        """Go on from a `state` whose offsets are `shift` bytes too small."""
        for name, value in zip(STATE, state, strict=True):
            setattr(self, name, value)
        self._buffered = sum(map(len, self._buffer))
        self._offset += shift
        self._searched += shift
        self._effort += _EFFORT_PER_BYTE * shift
        self._lost_at += shift
        if self._resume_at >= 0:
            self._resume_at += shift
        self._sources = [(end + shift, packet, time_ns) for end, packet, time_ns in self._sources]

    # -- the states

    def _run(self, data: bytes, at: int, events: list[Event], ended: bool = False) -> int:
        """Take `data`, which begins at `_offset`, from `at` on as far as it goes; give how far that is."""
        self.pending = False
        while at < len(data):
            if len(events) >= PORTION:
                self.pending = True
                return at
            if self._skip:
                skipped = min(self._skip, len(data) - at)
                self._skip -= skipped
                at += skipped
            elif self.protocol:
                self._pass_over(data[at:])
                return len(data)
            elif self._searching:
                found = self._search(data, ended)
                if found < 0:
                    keep = self._drop(data, at, ended)
                    self._need = max(self._need - keep, 0)
                    return keep
                self._pass_over(data[at:found])
                self._report_lost(events)
                at = found
            else:
                approved = self._approved
                went = self._frames(data, at, events)
                if went == at and self.in_step and self._approved == approved:
                    return at  # waiting for the rest of a frame
                at = went
        return at

    @property
    def in_step(self) -> bool:
        """Whether the next byte that is in no event yet begins a frame."""
        return not (self._skip or self._searching or self.protocol)

    def _keep(self, data: bytes, taken: int) -> None:
        """Keep what is left of `data` once `taken` bytes are done with."""
        end = self._offset + len(data)
        self._offset += taken
        if taken == len(data):
            if self._buffered:
                self._buffer, self._buffered = [], 0
            return
        if taken >= self._older:  # what is left came with the last bytes
            self._sources = [(end, self._source, self._source_ns)]
        elif taken:
            self._sources = [source for source in self._sources if source[0] > self._offset]
        self._buffer = [data[taken:]]
        self._buffered = len(data) - taken

    def _frames(self, data: bytes, at: int, events: list[Event]) -> int:
        """The frames that `data[at:]` begins with; give where they end. Every frame passes here."""
        end = len(data)
        limit = min(self.limit, KEPT_FRAME) - 4
        older, approved, offset = self._older, self._approved, self._offset
        connection, to_broker = self.connection, self.to_broker
        time_ns, packet, source = self._time_ns, self._packet, self._source
        last = min(end - 8, at + _PIECE)
        while at <= last:
            total, size = _header_at(data, at)
            stop = at + 4 + total
            if (total > limit or size + 4 > total or size < 2 or size > MAX_PARSED) and total != approved:
                return self._doubt(data, at, total, size, events)
            if stop > end:
                if end - at < 8 + size:
                    self._need = 8 + size
                elif stop - at <= _UNCHECKED or resync.parses(data[at + 8 : at + 8 + size]):
                    self._need = stop - at
                else:
                    self._refuse(_UNPARSEABLE, at, stop)
                return at
            raw = data[at:stop]
            try:
                base = _parse_command(raw[8 : 8 + size])
            except DecodeError:
                self._refuse(_UNPARSEABLE, at, stop)
                return at
            number: int | None = base.type
            if number == _CONNECT:
                number = type_of(base)
            if number is None:
                self._refuse("the command has no type", at, stop)
                return at
            frame = Frame(raw, base, number, connection, to_broker, offset + at, time_ns, packet)
            if number == 6 or number == 9:  # PAYLOAD_TYPES, spelled out for speed
                read_entry(frame, 8 + size)
            elif size + 4 != total:
                frame.note(f"{total - 4 - size} bytes behind the command")
            if at < older or source != packet:
                frame.packets = packets_of(self._sources, offset + at, offset + stop, source)
                frame.start_ns = time_of(self._sources, offset + at, self._source_ns)
            if total == approved:
                frame.note(f"frame of {total + 4} bytes, over the limit of {self.limit}")
                self._approved = approved = -1
            events.append(frame)
            at = stop
            if not self._seen_frame:
                self._seen_frame = True
                self._fresh = False
        self._need = 8
        return at

    def _doubt(self, data: bytes, at: int, total: int, size: int, events: list[Event]) -> int:
        """Judge a header that is out of bounds; give where to go on, in whatever state that leaves."""
        if self._fresh:
            went = self._other_protocol(data, at, events)
            if went >= 0:
                return went
        if size + 4 > total or size < 2:
            # no numbers here: these bytes may be a part of credentials
            self._refuse("TOTAL_SIZE and COMMAND_SIZE do not fit together", at, at + 4 + total)
            return at
        if size > MAX_PARSED:
            self._refuse(f"COMMAND_SIZE is over {MAX_PARSED} bytes", at, at + 4 + total)
        elif len(data) - at < 8 + resync.COMMAND_HEAD:
            self._need = 8 + resync.COMMAND_HEAD
        elif not self._begins_command(data, at):
            self._refuse(f"TOTAL_SIZE is over the limit of {self.limit} bytes", at, 0)
        elif total + 4 <= KEPT_FRAME:
            self._approved = total
        else:
            return self._pass_over_frame(data, at, total, size, events)
        return at

    def _pass_over_frame(self, data: bytes, at: int, total: int, size: int, events: list[Event]) -> int:
        """A real frame, larger than is kept: give its command, pass over the rest."""
        shown = 8 + size if size <= resync.LARGEST_COMMAND else 8
        if len(data) - at < shown:
            self._need = shown
            return at
        if not resync.parses(data[at + 8 : at + shown]):
            self._refuse(_UNPARSEABLE, at, 0)
            return at
        self._cut(data[at : at + shown], at, events)
        self._skip = total + 4 - shown
        return at + shown

    def _begins_command(self, data: bytes, at: int) -> bool:
        """Whether the sizes at `data[at:]`, which are over the limit, may be those of a large frame."""
        known = resync.begins_command(data, at + 8, self._direction())
        return known and not is_little_endian(data, at)

    def _direction(self) -> bool | None:
        return self.to_broker if self.certain else None

    def _other_protocol(self, data: bytes, at: int, events: list[Event]) -> int:
        """Look for another protocol at the beginning of the stream.

        Gives where to go on, in whatever state that leaves; -1 if it is nothing we know.
        """
        if len(data) - at < foreign.ENOUGH:
            self._need = foreign.ENOUGH
            return at
        self.protocol, _ = foreign.recognise(data[at : at + foreign.ENOUGH])
        if self.protocol:
            self._mark_lost("", self._offset + at)  # it gets its name when it ends
            return at
        length, what = foreign.proxy_header(data[at:])
        if not length:
            return -1
        if length > len(data) - at:
            self._need = length
            return at
        self._mark_lost(f"not Pulsar: {what}", self._offset + at)
        self._pass_over(data[at : at + length])
        self._report_lost(events)
        return at + length

    # -- damage

    def _refuse(self, reason: str, at: int, stop: int) -> None:
        """What is at buffer offset `at` is no frame; it says it would end at `stop` (0: says nothing)."""
        plausible = stop > at + 8 and stop - at <= self.limit
        self._lose(reason, self._offset + at, resume_at=self._offset + stop if plausible else -1)
        self._searched += 1

    def _lose(self, reason: str, offset: int, resume_at: int) -> None:
        """Search from stream offset `offset` on; at `resume_at` (-1: nowhere) one frame suffices."""
        self._searching = True
        self._resume_at = resume_at
        self._searched = offset  # stream offset up to which candidates were refused
        self._need = 0
        self._mark_lost(reason, offset)

    def _mark_lost(self, reason: str, offset: int) -> None:
        self._lost_reason = reason
        self._lost_at = offset
        self._lost_size = 0
        self._lost_head = bytearray()
        self._lost_packets: list[int] = []
        self._lost_stamp = (self._time_ns, self._packet)
        self._fresh = False

    def _pass_over(self, data: bytes) -> None:
        if data and len(self._lost_packets) < _MOST_PACKETS:
            start = self._lost_at + self._lost_size
            found = packets_of(self._sources, start, start + len(data), self._source)
            self._lost_packets += found[found[:1] == self._lost_packets[-1:] :]
        self._lost_size += len(data)
        room = Malformed.KEPT - len(self._lost_head)
        if room > 0:
            self._lost_head += data[:room]

    def _drop(self, data: bytes, at: int, ended: bool) -> int:
        """Let go of the bytes that cannot begin a frame any more; give where the rest begins."""
        keep = len(data) if ended else self._searched - self._offset
        if self._resume_at >= self._offset and not ended:
            keep = at
        self._pass_over(data[at:keep])
        return keep

    def _report_lost(self, events: list[Event]) -> None:
        """End the lost stretch: say what it was."""
        self._searching = False
        if not self._lost_size:
            return
        head = bytes(self._lost_head)
        joined = self._lost_reason in (_BEGAN_INSIDE, _AFTER_GAP)
        lost = Malformed(
            self._lost_reason if self.protocol or joined else self._lost_reason + what_breaks(head),
            head,
            self._lost_size,
            self.connection,
            self.to_broker,
            self._lost_at,
            *self._lost_stamp,
            self.protocol,
        )
        lost.packets = self._lost_packets
        events.append(lost)

    def _search(self, data: bytes, ended: bool) -> int:
        """Where in `data` a frame surely begins; -1 if nowhere yet (then `_need` says what to wait for)."""
        direction = self._direction()
        if self._resume_at >= self._offset:
            at = self._resume_at - self._offset
            worth = self._is_worth(self._searched)
            judged = resync.judge(data, at, direction, self.limit, any_checksum=True, any_size=worth)
            verdict = self._paid(judged, self._searched, ended)
            if verdict > 0:
                return at
            if verdict < 0 and not ended:
                self._need = -verdict
                return -1
            self._resume_at = -1
        start = self._searched - self._offset
        for match in resync.CANDIDATE.finditer(data, start + 4):
            at = match.start() - 4
            offset = self._offset + at
            judged = resync.judge_pair(data, at, direction, self.limit, any_size=self._is_worth(offset))
            verdict = self._paid(judged, offset, ended)
            if verdict > 0:
                return at
            if verdict < 0 and not ended:
                self._searched = offset
                self._need = -verdict
                return -1
        self._searched = max(self._searched, self._offset + len(data) - resync.CANDIDATE_SPAN + 1)
        self._need = 0
        return -1

    def _is_worth(self, offset: int) -> bool:
        """Whether more than small candidates may be judged at a stream offset."""
        return self._effort - _EFFORT_PER_BYTE * offset <= _FREE_EFFORT

    def _paid(self, judged: tuple[int, int], offset: int, ended: bool) -> int:
        """The verdict of what was `judged` at a stream offset; its effort counts once that is final."""
        verdict, effort = judged
        if verdict >= 0 or ended:
            self._effort = max(self._effort, _EFFORT_PER_BYTE * offset) + effort
        return verdict

    # -- ends

    def _end(self, events: list[Event]) -> int:
        """Bring all that is buffered to its end; give the stream offset where a cut frame would end.

        That is -1 if no frame is cut.
        """
        while more := self.settle():
            events += more
        data = b"".join(self._buffer)
        frame_end = self._offset + len(data) + self._skip if self._skip else -1
        if data:
            frame_end = self._cut(data, 0, events)
        elif self._searching or self.protocol:
            self._name_lost()
            self._report_lost(events)
        self._offset += len(data)
        self._buffer, self._buffered = [], 0
        self._need = self._skip = 0
        self._approved = -1
        return frame_end

    def _name_lost(self) -> None:
        """Say what another protocol's stream begins with; one joined midway is recognised only here."""
        if self.protocol or not self._seen_frame:
            self.protocol, what = foreign.recognise(bytes(self._lost_head))
            if what:
                self._lost_reason = f"not Pulsar: {what}"

    def _is_cut_frame(self, data: bytes, at: int) -> bool:
        """Whether what is left at `data[at:]` is the beginning of a frame: its sizes, and a sane command."""
        if len(data) - at < 8:
            return False
        total, size = _header_at(data, at)
        fits = 2 <= size <= total - 4
        if total + 4 > self.limit and total != self._approved:
            fits = fits and self._begins_command(data, at)
        return fits and (len(data) - at < 8 + size or resync.parses(data[at + 8 : at + 8 + size]))

    def _cut(self, raw: bytes, at: int, events: list[Event]) -> int:
        """Give the frame that begins with `raw` and is cut there; return the offset where it would end."""
        offset = self._offset + at
        total, size = _header_at(raw)
        base = _parse_command(raw[8 : 8 + size]) if len(raw) >= 8 + size else None
        number = -1 if base is None else type_of(base) or 0
        frame = Frame(raw, base, number, self.connection, self.to_broker, offset, self._time_ns, self._packet)
        frame.partial = True
        frame.note(f"cut: {len(raw)} of {total + 4} bytes")
        if number in PAYLOAD_TYPES:
            read_entry(frame, 8 + size)
        frame.packets = packets_of(self._sources, offset, offset + len(raw), self._source)
        frame.start_ns = time_of(self._sources, offset, self._source_ns)
        events.append(frame)
        return int(offset + total + 4)
