"""Decodes one direction of a connection: chunks of bytes in; frames, gaps and malformed stretches out.

The same bytes give the same events however they are chunked, except for the events' time and packet.
The stream is in one of four states:

    in step    the next byte begins a frame (the usual state)
    skipping   inside a frame whose remaining bytes are dropped (part of it was not captured, or it is too
               large to keep); in step again at its end
    searching  out of step; looking for the next place where a frame certainly begins (`resync.py`)
    foreign    the peer uses another protocol (TLS, HTTP, ...); all bytes are dropped

Memory is bounded: a frame up to the limit is buffered until it is complete; a larger one only if
its command is valid, and up to `KEPT_FRAME` bytes. If the buffered bytes contain many frames, `take`
and `settle` return about `PORTION` events at a time.
"""

from typing import Final

from google.protobuf.message import DecodeError
from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import MESSAGE, SEND
from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame import (
    KEPT_FRAME,
    MAX_FRAME_SIZE,
    MAX_PARSED,
    Connection,
    Event,
    Frame,
    Gap,
    cut_frame,
    read_entry,
    type_of,
)
from pulsarctl_wire.wire.framing import foreign, resync
from pulsarctl_wire.wire.framing.broken import is_little_endian
from pulsarctl_wire.wire.framing.lost import AFTER_GAP, BEGAN_INSIDE, LostBytes, Source, packets_of, time_of
from pulsarctl_wire.wire.framing.stream_state import StreamState
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.quick import IS_COMPILED, read_ids

_PIECE: Final = 65_536  # bytes that are decoded before the number of events is checked
_UNCHECKED: Final = 65_536  # a frame up to this size is completed before its command is parsed

PORTION: Final = 4_096
"""The number of events after which `FrameStream.take` and `settle` pause."""

_CONNECT: Final = BaseCommand.CONNECT

_UNPARSEABLE: Final = "the command does not parse as BaseCommand"


def _read_command(frame: Frame, size: int) -> str:
    """Fill in the command of a frame, which has `size` bytes. Returns why it is none, or ""."""
    raw = frame.raw
    ids = read_ids(raw, size) if IS_COMPILED else None
    if ids is not None:
        frame.type, frame.ids = raw[9], ids
        return ""
    try:
        base = BaseCommand.FromString(raw[8 : 8 + size])
    except DecodeError:
        return _UNPARSEABLE
    number = type_of(base) if base.type == _CONNECT else base.type
    if number is None:
        return "the command has no type"
    frame.type, frame.base = number, base
    return ""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameStream:
    """Turns one direction of a connection into frames, gaps and malformed stretches.

    `from_start`: the first byte fed is the first that was sent; otherwise the stream begins with a search.
    `limit` is the largest legal frame in bytes, length prefix included; the connection's state sets it to
    what the broker announces. `certain` is False while `to_broker` is a guess: then no frame is refused for
    its direction. `protocol` names the other protocol that was recognised in this direction, or is "".
    """

    __slots__ = (
        *("_approved", "_buffer", "_fresh", "_lost", "_need", "_older", "_packet", "_search", "_searching"),
        *("_skip", "_source", "_source_ns", "_sources", "_time_ns", "certain", "connection", "held_bytes"),
        *("limit", "pending", "position", "protocol", "spoke", "to_broker"),
    )

    def __init__(
        self, connection: Connection, to_broker: bool, *, from_start: bool = True, limit: int = MAX_FRAME_SIZE
    ) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.limit = limit
        self.certain = True
        self.pending = False
        """Whether `take` has paused: then the caller must call `take_more`."""
        self.protocol = ""
        self.position = 0
        """Offset of the first byte that is not in an event yet."""
        self._buffer: list[bytes] = []  # bytes that are not in an event yet, in pieces
        self.held_bytes = 0
        """The number of buffered bytes."""
        self._older = 0  # bytes that were buffered before the ones just fed
        self._need = 0  # do nothing until so many bytes are buffered
        self._sources: list[Source] = []  # of the buffered bytes
        self._source = -1  # no packet yet
        self._source_ns: int | None = None
        self._time_ns: int | None = None
        self._packet = -1
        self._approved = -1  # TOTAL_SIZE of a frame over the limit that is accepted
        self._skip = 0
        self._searching = False
        self.spoke = False
        """Whether any complete frame has arrived."""
        self._fresh = True  # nothing recognised yet: it may be another protocol
        self._search = resync.Search()
        self._lost = LostBytes("", 0, (None, -1))
        if not from_start:
            self._lose(BEGAN_INSIDE, 0, likely=0)

    # -- input

    def feed(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Take the next bytes, captured at `time_ns` in packet `packet`. Returns the events they complete.

        If packets were out of order, events get the time and number of the latest packet they need.
        """
        events = self.take(data, time_ns, packet)
        while self.pending:
            events += self.take_more()
        return events

    def take(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Like `feed`, but if there are many events, it returns only the first ones (see `pending`)."""
        if packet >= self._packet or not self.held_bytes:
            self._time_ns, self._packet = time_ns, packet
            if not self.position and not self.held_bytes:
                self._lost.stamp = time_ns, packet  # in case the stream does not begin with a frame
        self._source, self._source_ns = packet, time_ns
        self._older = self.held_bytes
        if self.held_bytes:
            self._buffer.append(data)
            self.held_bytes += len(data)
            self._sources.append((self.position + self.held_bytes, packet, time_ns))
            if self.held_bytes < self._need:
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
        """More events from the bytes taken last; none if the rest needs more bytes."""
        data = b"".join(self._buffer)
        self._older = len(data)
        events: list[Event] = []
        self._keep(data, self._run(data, 0, events))
        return events

    def gap(self, size: int, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Note that the next `size` bytes were not captured. Returns the events that follow from it."""
        if self.protocol:
            self.position += size
            return []
        events: list[Event] = []
        frame_end = self._end(events)
        self._time_ns, self._packet = time_ns, packet
        events.append(Gap(size, self.connection, self.to_broker, self.position, time_ns, packet))
        self.position += size
        self._search.skip(size)
        if frame_end >= self.position:
            self._skip = frame_end - self.position
        else:
            self._lose(AFTER_GAP, self.position, likely=self.position)
        return events

    def settle(self) -> list[Event]:
        """The next few events that `gap` or `close` would return; none if only those can return the rest."""
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
        """Note that no more bytes will come (FIN, RST, end of the capture). Returns the last events."""
        events: list[Event] = []
        self._end(events)
        return events

    # -- handing over to a stream in another process that continues from here

    @property
    def step(self) -> int | None:
        """How many bytes of the next frame are buffered; None unless the stream is certainly in step."""
        return self.held_bytes if self.in_step and self.spoke and self._approved < 0 else None

    @property
    def in_debt(self) -> bool:
        """Whether more effort was spent on searches than the bytes so far pay for."""
        return self._search.in_debt(self.position)

    @property
    def untouched(self) -> bool:
        """Whether nothing has been fed yet."""
        return not (self.position or self.held_bytes)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the buffered bytes came from, with ends relative to `position`.

        Last comes (0, number of the latest packet, its time).
        """
        if not self.held_bytes:
            return ()
        sources = [(end - self.position, packet, time_ns) for end, packet, time_ns in self._sources]
        return (*sources, (0, self._packet, self._time_ns))

    @property
    def held(self) -> bytes:
        """The bytes that are not in an event yet."""
        return b"".join(self._buffer)

    @property
    def awaited(self) -> int:
        """The size of the buffered incomplete frame by its TOTAL_SIZE; 0 if that has not arrived yet."""
        if self.held_bytes < 4:
            return 0
        head = self._buffer[0] if len(self._buffer[0]) >= 4 else b"".join(self._buffer)
        return int.from_bytes(head[:4], "big") + 4

    def state(self) -> StreamState:
        """Return the state, for `resume`."""
        return StreamState(
            *(self.limit, self.protocol, self.position, self.held, self._need, self._sources),
            *(self._source, self._source_ns, self._time_ns, self._packet, self._approved, self._skip),
            *(self._searching, self.spoke, self._fresh, self._search.state(), self._lost.state()),
        )

    def resume(self, state: StreamState, shift: int) -> None:
        """Continue from a `state` whose offsets are `shift` bytes too small."""
        self.limit, self.protocol, self.position, held, self._need, sources = state[:6]
        self._source, self._source_ns, self._time_ns, self._packet, self._approved, self._skip = state[6:12]
        self._searching, self.spoke, self._fresh, search, lost = state[12:]
        self.position += shift
        self._buffer, self.held_bytes = [held] if held else [], len(held)
        self._sources = [(end + shift, packet, time_ns) for end, packet, time_ns in sources]
        self._search.resume(search, shift)
        self._lost.resume(lost, shift)

    # -- the states

    def _run(self, data: bytes, at: int, events: list[Event], ended: bool = False) -> int:
        """Decode `data`, which begins at `position`, from `at` on. Returns how far it got."""
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
                found = self._search.find(data, self.position, self._direction(), self.limit, ended)
                if found < 0:
                    keep = len(data) if ended else self._search.kept_from(self.position, at)
                    self._pass_over(data[at:keep])
                    self._need = max(self._search.need - keep, 0)
                    return keep
                self._pass_over(data[at:found])
                self._report_lost(events)
                at = found
            else:
                approved = self._approved
                went = self._frames(data, at, events)
                if went == at and self.in_step and self._approved == approved:
                    return at  # the rest of a frame is missing
                at = went
        return at

    @property
    def in_step(self) -> bool:
        """Whether a frame begins at `position`."""
        return not (self._skip or self._searching or self.protocol)

    def _keep(self, data: bytes, taken: int) -> None:
        """Buffer the rest of `data` after the first `taken` bytes, which are finished."""
        end = self.position + len(data)
        self.position += taken
        if taken == len(data):
            if self.held_bytes:
                self._buffer, self.held_bytes = [], 0
            return
        if taken >= self._older:  # the rest arrived with the last bytes
            self._sources = [(end, self._source, self._source_ns)]
        elif taken:
            self._sources = [source for source in self._sources if source[0] > self.position]
        self._buffer = [data[taken:]]
        self.held_bytes = len(data) - taken

    def _frames(self, data: bytes, at: int, events: list[Event]) -> int:
        """Decode the frames that `data[at:]` begins with. Returns where they end. Must be fast."""
        end = len(data)
        limit = min(self.limit, KEPT_FRAME) - 4
        older, approved, offset = self._older, self._approved, self.position
        connection, to_broker = self.connection, self.to_broker
        time_ns, packet, source = self._time_ns, self._packet, self._source
        last = min(end - 8, at + _PIECE)
        while at <= last:
            total, size = u32_at(data, at), u32_at(data, at + 4)
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
            frame = Frame(raw, None, -1, connection, to_broker, offset + at, time_ns, packet)
            problem = _read_command(frame, size)
            if problem:
                self._refuse(problem, at, stop)
                return at
            number = frame.type
            if number in (SEND, MESSAGE):
                read_entry(frame, 8 + size)
            elif size + 4 != total:
                frame.note(f"{total - 4 - size} bytes after the command")
            if at < older or source != packet:
                frame.packets = packets_of(self._sources, offset + at, offset + stop, source)
                frame.start_ns = time_of(self._sources, offset + at, self._source_ns)
            if total == approved:
                frame.note(f"frame of {total + 4} bytes, over the limit of {self.limit}")
                self._approved = approved = -1
            events.append(frame)
            at = stop
            if not self.spoke:
                self.spoke = True
                self._fresh = False
        self._need = 8
        return at

    def _doubt(self, data: bytes, at: int, total: int, size: int, events: list[Event]) -> int:
        """Check a header that is out of bounds. Returns where to continue, in the state that it sets."""
        if self._fresh:
            went = self._other_protocol(data, at, events)
            if went >= 0:
                return went
        if size + 4 > total or size < 2:
            # no numbers in this text: these bytes may be part of credentials
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
        """Report the command of a valid frame that is too large to keep, and skip the rest."""
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
        """Whether a known command follows the sizes at `data[at:]`, and they are not little-endian."""
        known = resync.begins_command(data, at + 8, self._direction())
        return known and not is_little_endian(data, at)

    def _direction(self) -> bool | None:
        return self.to_broker if self.certain else None

    def _other_protocol(self, data: bytes, at: int, events: list[Event]) -> int:
        """Look for another protocol at the beginning of the stream.

        Returns where to continue, in the state that it sets; -1 if no other protocol was recognised.
        """
        if len(data) - at < foreign.ENOUGH:
            self._need = foreign.ENOUGH
            return at
        self.protocol, _ = foreign.recognise(data[at : at + foreign.ENOUGH])
        if self.protocol:
            self._mark_lost("", self.position + at)  # the reason is set at the end
            return at
        length, what = foreign.proxy_header(data[at:])
        if not length:
            return -1
        if length > len(data) - at:
            self._need = length
            return at
        self._mark_lost(f"not Pulsar: {what}", self.position + at)
        self._pass_over(data[at : at + length])
        self._report_lost(events)
        return at + length

    # -- damage

    def _refuse(self, reason: str, at: int, stop: int) -> None:
        """No frame is at buffer offset `at`. By its sizes it would end at `stop` (0: unknown)."""
        plausible = stop > at + 8 and stop - at <= self.limit
        self._lose(reason, self.position + at, likely=self.position + stop if plausible else -1)
        self._search.searched += 1

    def _lose(self, reason: str, offset: int, likely: int) -> None:
        """Begin a search at stream offset `offset`; at `likely` (-1: nowhere) one frame suffices."""
        self._searching = True
        self._search.begin(offset, likely)
        self._need = 0
        self._mark_lost(reason, offset)

    def _mark_lost(self, reason: str, offset: int) -> None:
        self._lost = LostBytes(reason, offset, (self._time_ns, self._packet))
        self._fresh = False

    def _pass_over(self, data: bytes) -> None:
        self._lost.add(data, self._sources, self._source)

    def _report_lost(self, events: list[Event]) -> None:
        """End the lost stretch, and report it."""
        self._searching = False
        if self._lost.size:
            events.append(self._lost.event(self.connection, self.to_broker, self.protocol))

    # -- ends

    def _end(self, events: list[Event]) -> int:
        """Report everything that is buffered. Returns the stream offset where a cut frame would end.

        It is -1 if no frame is cut.
        """
        while more := self.settle():
            events += more
        data = b"".join(self._buffer)
        frame_end = self.position + len(data) + self._skip if self._skip else -1
        if data:
            frame_end = self._cut(data, 0, events)
        elif self._searching or self.protocol:
            self._name_lost()
            self._report_lost(events)
        self.position += len(data)
        self._buffer, self.held_bytes = [], 0
        self._need = self._skip = 0
        self._approved = -1
        return frame_end

    def _name_lost(self) -> None:
        """Set the reason of another protocol's bytes. One joined midway is recognised only here."""
        if self.protocol or not self.spoke:
            self.protocol, what = foreign.recognise(self._lost.head)
            if what:
                self._lost.reason = f"not Pulsar: {what}"

    def _is_cut_frame(self, data: bytes, at: int) -> bool:
        """Whether the rest at `data[at:]` begins a frame: its sizes are valid, and its command parses."""
        if len(data) - at < 8:
            return False
        total, size = u32_at(data, at), u32_at(data, at + 4)
        fits = 2 <= size <= total - 4
        if total + 4 > self.limit and total != self._approved:
            fits = fits and self._begins_command(data, at)
        return fits and (len(data) - at < 8 + size or resync.parses(data[at + 8 : at + 8 + size]))

    def _cut(self, raw: bytes, at: int, events: list[Event]) -> int:
        """Report the frame that begins with `raw` and is cut. Returns the offset where it would end."""
        offset = self.position + at
        frame = cut_frame(raw, self.connection, self.to_broker, offset, self._time_ns, self._packet)
        frame.packets = packets_of(self._sources, offset, offset + len(raw), self._source)
        frame.start_ns = time_of(self._sources, offset, self._source_ns)
        events.append(frame)
        return offset + frame.size
