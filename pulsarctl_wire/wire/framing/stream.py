"""Decodes one direction of a connection: chunks of bytes in; frames, gaps and malformed stretches out.

The same bytes give the same events however they are chunked, except for the events' time and packet.
The stream is in one of four states:

    in step    the next byte begins a frame (the usual state)
    skipping   inside a frame whose remaining bytes are dropped (part of it was not captured, or it is too
               large to keep); in step again at its end
    searching  out of step; looking for the next place where a frame certainly begins (`resync.py`)
    foreign    the peer uses another protocol (TLS, HTTP, ...); all bytes are dropped

Memory is bounded: a frame up to the limit is buffered until it is complete; a larger one only if
its command is valid, and up to `MAX_KEPT_FRAME` bytes. If the buffered bytes contain many frames, `take`
and `settle` return about `MAX_EVENTS` events at a time.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import MESSAGE, SEND
from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame import (
    MAX_FRAME_SIZE,
    MAX_KEPT_FRAME,
    MAX_PARSED,
    Connection,
    Event,
    Frame,
    Gap,
)
from pulsarctl_wire.wire.frame_entry import UNPARSEABLE, build_cut_frame, read_command, read_entry
from pulsarctl_wire.wire.framing import foreign, resync
from pulsarctl_wire.wire.framing.lost import AFTER_GAP, BEGAN_INSIDE, LostBytes, Source, packets_of, time_of
from pulsarctl_wire.wire.framing.malformed import is_little_endian
from pulsarctl_wire.wire.framing.stream_state import StreamState

_PIECE_SIZE: Final = 65_536  # bytes that are decoded before the number of events is checked
_MAX_UNCHECKED: Final = 65_536  # a frame up to this size is completed before its command is parsed

MAX_EVENTS: Final = 4_096
"""Events after which `FrameStream.take` and `settle` pause."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameStream:
    """A decoder of one direction of a connection to frames, gaps and malformed stretches.

    `from_start`: the first byte fed is the first that was sent; otherwise the stream begins with a search.
    `limit` is the largest legal frame in bytes, length prefix included; the connection's state sets it to
    what the broker announces. `is_direction_certain` is False while `to_broker` is a guess: then no frame is
    refused for its direction. `protocol` names the other protocol that was recognised in this direction, or
    is "".
    """

    __slots__ = (
        *("_approved", "_buffer", "_held_before", "_is_fresh", "_is_searching", "_lost", "_need"),
        *("_packet", "_search", "_skip", "_source", "_source_ns", "_sources", "_time_ns", "connection"),
        *("has_more", "held_bytes", "is_direction_certain", "kept_bytes", "limit", "position"),
        *("protocol", "spoke", "to_broker"),
    )

    def __init__(
        self, connection: Connection, to_broker: bool, *, from_start: bool = True, limit: int = MAX_FRAME_SIZE
    ) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.limit = limit
        self.is_direction_certain = True
        self.has_more = False
        """Whether `take` has paused: then the caller must call `take_more`."""
        self.protocol = ""
        self.position = 0
        """Offset of the first byte that is not in an event yet."""
        self._buffer: list[bytes] = []  # bytes that are not in an event yet, in pieces
        self.held_bytes = self.kept_bytes = 0
        """Buffered bytes, and memory for what another protocol says."""
        self._held_before = 0  # bytes that were buffered before the ones just fed
        self._need = 0  # do nothing until so many bytes are buffered
        self._sources: list[Source] = []  # of the buffered bytes
        self._source = -1  # no packet yet
        self._source_ns: int | None = None
        self._time_ns: int | None = None
        self._packet = -1
        self._approved = -1  # TOTAL_SIZE of a frame over the limit that is accepted
        self._skip = 0
        self._is_searching = False
        self.spoke = False
        """Whether any complete frame has arrived."""
        self._is_fresh = True  # nothing recognised yet: it may be another protocol
        self._search = resync.Search()
        self._lost = LostBytes("", 0, (None, -1))
        if not from_start:
            self._begin_search(BEGAN_INSIDE, 0, likely=0)

    # -- input

    def feed(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Take the next bytes, captured at `time_ns` in packet `packet`. Returns the events they complete.

        If packets were out of order, events get the time and number of the latest packet they need.
        """
        events = self.take(data, time_ns, packet)
        while self.has_more:
            events += self.take_more()
        return events

    def take(self, data: bytes, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Do the same as `feed`, but return only the first of many events (see `has_more`)."""
        if packet >= self._packet or not self.held_bytes:
            self._time_ns, self._packet = time_ns, packet
            if not self.position and not self.held_bytes:
                self._lost.stamp = time_ns, packet  # in case the stream does not begin with a frame
        self._source, self._source_ns = packet, time_ns
        self._held_before = self.held_bytes
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
        pos = self._decode_frames(data, 0, events) if self.is_in_step else 0
        if pos < len(data):
            pos = self._run(data, pos, events)
        self._keep(data, pos)
        return events

    def take_more(self) -> list[Event]:
        """Return more events from the bytes taken last; none if the rest needs more bytes."""
        data = b"".join(self._buffer)
        self._held_before = len(data)
        events: list[Event] = []
        self._keep(data, self._run(data, 0, events))
        return events

    def gap(self, size: int, time_ns: int | None = None, packet: int = 0) -> list[Event]:
        """Note that the next `size` bytes were not captured. Returns the events that follow from it."""
        if self.protocol:
            self.position += size
            return []
        events: list[Event] = []
        frame_end = self._flush(events)
        self._time_ns, self._packet = time_ns, packet
        events.append(Gap(size, self.connection, self.to_broker, self.position, time_ns, packet))
        self.position += size
        self._search.skip(size)
        if frame_end >= self.position:
            self._skip = frame_end - self.position
        else:
            self._begin_search(AFTER_GAP, self.position, likely=self.position)
        return events

    def settle(self) -> list[Event]:
        """Return the next few events that `gap` or `close` would; none if only those can return the rest."""
        data = b"".join(self._buffer)
        self._held_before = len(data)
        events: list[Event] = []
        pos = self._run(data, 0, events, is_last=True)
        while pos < len(data) and not self.has_more and not self._is_cut_frame(data, pos):
            self._refuse("too few bytes to tell what begins here", pos, 0)
            pos = self._run(data, pos, events, is_last=True)
        self._keep(data, pos)
        return events

    def close(self) -> list[Event]:
        """Note that no more bytes will come (FIN, RST, end of the capture). Returns the last events."""
        events: list[Event] = []
        self._flush(events)
        return events

    # -- handing over to a stream in another process that continues from here

    @property
    def step(self) -> int | None:
        """How many bytes of the next frame are buffered; None unless the stream is certainly in step."""
        return self.held_bytes if self.is_in_step and self.spoke and self._approved < 0 else None

    @property
    def is_in_debt(self) -> bool:
        """Whether more effort was spent on searches than the bytes so far pay for."""
        return self._search.is_in_debt(self.position)

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
            *(self._is_searching, self.spoke, self._is_fresh, self._search.state(), self._lost.state()),
        )

    def resume(self, state: StreamState, shift: int) -> None:
        """Continue from a `state` whose offsets are `shift` bytes too small."""
        self.limit, self.protocol, self.position, unfinished, self._need, sources = state[:6]
        self._source, self._source_ns, self._time_ns, self._packet, self._approved, self._skip = state[6:12]
        self._is_searching, self.spoke, self._is_fresh, search, lost_state = state[12:]
        self.position += shift
        self._buffer, self.held_bytes = [unfinished] if unfinished else [], len(unfinished)
        self._sources = [(end + shift, packet, time_ns) for end, packet, time_ns in sources]
        self._search.resume(search, shift)
        self._lost.resume(lost_state, shift)

    # -- the states

    def _run(self, data: bytes, pos: int, events: list[Event], is_last: bool = False) -> int:
        """Decode `data`, which begins at `position`, from `pos` on. Returns how far it got."""
        self.has_more = False
        while pos < len(data):
            if len(events) >= MAX_EVENTS:
                self.has_more = True
                return pos
            if self._skip:
                skipped = min(self._skip, len(data) - pos)
                self._skip -= skipped
                pos += skipped
            elif self.protocol:
                self._pass_over(data[pos:])
                return len(data)
            elif self._is_searching:
                start = self._search.find(data, self.position, self._direction(), self.limit, is_last)
                if start < 0:
                    stop = len(data) if is_last else self._search.first_index_to_keep(self.position, pos)
                    self._pass_over(data[pos:stop])
                    self._need = max(self._search.need - stop, 0)
                    return stop
                self._pass_over(data[pos:start])
                self._report_lost(events)
                pos = start
            else:
                approved = self._approved
                stop = self._decode_frames(data, pos, events)
                if stop == pos and self.is_in_step and self._approved == approved:
                    return pos  # the rest of a frame is missing
                pos = stop
        return pos

    @property
    def is_in_step(self) -> bool:
        """Whether a frame begins at `position`."""
        return not (self._skip or self._is_searching or self.protocol)

    def _keep(self, data: bytes, size: int) -> None:
        """Buffer the rest of `data` after the first `size` bytes, which are finished."""
        end = self.position + len(data)
        self.position += size
        if size == len(data):
            if self.held_bytes:
                self._buffer, self.held_bytes = [], 0
            return
        if size >= self._held_before:  # the rest arrived with the last bytes
            self._sources = [(end, self._source, self._source_ns)]
        elif size:
            self._sources = [source for source in self._sources if source[0] > self.position]
        self._buffer = [data[size:]]
        self.held_bytes = len(data) - size

    def _decode_frames(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Decode the frames that `data[pos:]` begins with. Returns where they end. Must be fast."""
        end = len(data)
        limit = min(self.limit, MAX_KEPT_FRAME) - 4
        held_before, approved, offset = self._held_before, self._approved, self.position
        connection, to_broker = self.connection, self.to_broker
        time_ns, packet, source = self._time_ns, self._packet, self._source
        last = min(end - 8, pos + _PIECE_SIZE)
        while pos <= last:
            total, size = u32_at(data, pos), u32_at(data, pos + 4)
            stop = pos + 4 + total
            if (total > limit or size + 4 > total or size < 2 or size > MAX_PARSED) and total != approved:
                return self._check_header(data, pos, total, size, events)
            if stop > end:
                if end - pos < 8 + size:
                    self._need = 8 + size
                elif stop - pos <= _MAX_UNCHECKED or resync.is_parseable(data[pos + 8 : pos + 8 + size]):
                    self._need = stop - pos
                else:
                    self._refuse(UNPARSEABLE, pos, stop)
                return pos
            raw = data[pos:stop]
            frame = Frame(raw, None, -1, connection, to_broker, offset + pos, time_ns, packet)
            problem = read_command(frame, size)
            if problem:
                self._refuse(problem, pos, stop)
                return pos
            number = frame.type
            if number in (SEND, MESSAGE):
                read_entry(frame, 8 + size)
            elif size + 4 != total:
                frame.note(f"{total - 4 - size} bytes after the command")
            if pos < held_before or source != packet:
                frame.packets = packets_of(self._sources, offset + pos, offset + stop, source)
                frame.start_ns = time_of(self._sources, offset + pos, self._source_ns)
            if total == approved:
                frame.note(f"frame of {total + 4} bytes, over the limit of {self.limit}")
                self._approved = approved = -1
            events.append(frame)
            pos = stop
            if not self.spoke:
                self.spoke = True
                self._is_fresh = False
        self._need = 8
        return pos

    def _check_header(self, data: bytes, pos: int, total: int, size: int, events: list[Event]) -> int:
        """Check a header that is out of bounds. Returns where to continue, in the state that it sets."""
        if self._is_fresh:
            stop = self._detect_protocol(data, pos, events)
            if stop >= 0:
                return stop
        if size + 4 > total or size < 2:
            # no numbers in this text: these bytes may be part of credentials
            self._refuse("TOTAL_SIZE and COMMAND_SIZE do not fit together", pos, pos + 4 + total)
            return pos
        if size > MAX_PARSED:
            self._refuse(f"COMMAND_SIZE is over {MAX_PARSED} bytes", pos, pos + 4 + total)
        elif len(data) - pos < 8 + resync.COMMAND_HEAD:
            self._need = 8 + resync.COMMAND_HEAD
        elif not self._begins_command(data, pos):
            self._refuse(f"TOTAL_SIZE is over the limit of {self.limit} bytes", pos, 0)
        elif total + 4 <= MAX_KEPT_FRAME:
            self._approved = total
        else:
            return self._pass_over_frame(data, pos, total, size, events)
        return pos

    def _pass_over_frame(self, data: bytes, pos: int, total: int, size: int, events: list[Event]) -> int:
        """Report the command of a valid frame that is too large to keep, and skip the rest."""
        command_end = 8 + size if size <= resync.MAX_FOUND_COMMAND else 8
        if len(data) - pos < command_end:
            self._need = command_end
            return pos
        if not resync.is_parseable(data[pos + 8 : pos + command_end]):
            self._refuse(UNPARSEABLE, pos, 0)
            return pos
        self._report_cut_frame(data[pos : pos + command_end], pos, events)
        self._skip = total + 4 - command_end
        return pos + command_end

    def _begins_command(self, data: bytes, pos: int) -> bool:
        """Return whether a known command with big-endian sizes is at `data[pos:]`."""
        is_known = resync.begins_command(data, pos + 8, self._direction())
        return is_known and not is_little_endian(data, pos)

    def _direction(self) -> bool | None:
        return self.to_broker if self.is_direction_certain else None

    def _detect_protocol(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Look for another protocol at the beginning of the stream.

        Returns where to continue, in the state that it sets; -1 if no other protocol was recognised.
        """
        if len(data) - pos < foreign.SIGNATURE_SIZE:
            self._need = foreign.SIGNATURE_SIZE
            return pos
        self.protocol, _ = foreign.recognise(data[pos : pos + foreign.SIGNATURE_SIZE])
        if self.protocol:
            self._begin_lost("", self.position + pos)  # the reason is set at the end
            return pos
        length, description = foreign.proxy_header(data[pos:])
        if not length:
            return -1
        if length > len(data) - pos:
            self._need = length
            return pos
        self._begin_lost(f"not Pulsar: {description}", self.position + pos)
        self._pass_over(data[pos : pos + length])
        self._report_lost(events)
        return pos + length

    # -- damage

    def _refuse(self, reason: str, pos: int, stop: int) -> None:
        """Note that no frame is at `pos` in the buffer. By its sizes it would end at `stop` (0: unknown)."""
        is_plausible = stop > pos + 8 and stop - pos <= self.limit
        self._begin_search(reason, self.position + pos, likely=self.position + stop if is_plausible else -1)
        self._search.searched += 1

    def _begin_search(self, reason: str, offset: int, likely: int) -> None:
        """Begin a search at stream offset `offset`; at `likely` (-1: nowhere) one frame suffices."""
        self._is_searching = True
        self._search.begin(offset, likely)
        self._need = 0
        self._begin_lost(reason, offset)

    def _begin_lost(self, reason: str, offset: int) -> None:
        self._lost = LostBytes(reason, offset, (self._time_ns, self._packet))
        self._is_fresh = False

    def _pass_over(self, data: bytes) -> None:
        self._lost.add(data, self._sources, self._source)

    def _report_lost(self, events: list[Event]) -> None:
        """End the lost stretch, and report it."""
        self._is_searching = False
        if self._lost.size:
            events.append(self._lost.event(self.connection, self.to_broker, self.protocol))

    # -- ends

    def _flush(self, events: list[Event]) -> int:
        """Report everything that is buffered. Returns the stream offset where a cut frame would end.

        It is -1 if no frame is cut.
        """
        while portion := self.settle():
            events += portion
        data = b"".join(self._buffer)
        frame_end = self.position + len(data) + self._skip if self._skip else -1
        if data:
            frame_end = self._report_cut_frame(data, 0, events)
        elif self._is_searching or self.protocol:
            self._set_lost_reason()
            self._report_lost(events)
        self.position += len(data)
        self._buffer, self.held_bytes = [], 0
        self._need = self._skip = 0
        self._approved = -1
        return frame_end

    def _set_lost_reason(self) -> None:
        """Set the reason of another protocol's bytes. One joined midway is recognised only here."""
        if self.protocol or not self.spoke:
            self.protocol, description = foreign.recognise(self._lost.head, self.connection.tls)
            if description:
                self._lost.reason = f"not Pulsar: {description}"

    def _is_cut_frame(self, data: bytes, pos: int) -> bool:
        """Return whether a frame begins at `data[pos:]`: its sizes are valid, and its command parses."""
        if len(data) - pos < 8:
            return False
        total, size = u32_at(data, pos), u32_at(data, pos + 4)
        fits = 2 <= size <= total - 4
        if total + 4 > self.limit and total != self._approved:
            fits = fits and self._begins_command(data, pos)
        return fits and (len(data) < pos + 8 + size or resync.is_parseable(data[pos + 8 :][:size]))

    def _report_cut_frame(self, raw: bytes, pos: int, events: list[Event]) -> int:
        """Report the frame that begins with `raw` and is cut. Returns the offset where it would end."""
        offset = self.position + pos
        frame = build_cut_frame(raw, self.connection, self.to_broker, offset, self._time_ns, self._packet)
        frame.packets = packets_of(self._sources, offset, offset + len(raw), self._source)
        frame.start_ns = time_of(self._sources, offset, self._source_ns)
        events.append(frame)
        return offset + frame.size
