"""A capture divided between two processes, with the output of one.

Each process reads all packets and follows its own connections. What runs through all of them is
settled block by block: the two tell each other which packets opened connections and which gave
frames, and each numbers its own in between. A schema that one learns is told to the other at the
packet that taught it. So everything is as one process would have it, but for the bounds that hold
over all connections: of connections, of schemas, of chunks that wait.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.errors import WireError
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema
from pulsarctl_wire.wire.session import CONNECTED, TEACHING, Knowledge, Schemas, Session
from pulsarctl_wire.wire.stream import FrameStream

BLOCK: Final = 600_000
"""Effort after which the processes settle: bytes of packets, and `PACKET` for each."""
PACKET: Final = 2_000
MOST_WAITING: Final = 100_000
"""Events that may wait for a block to end."""

_Told = tuple[int, int, bool]  # of a turn: position, frames, teaching
_Chunk = tuple[int, bytes]  # position, what it is rendered as
_Lesson = tuple[str | None, bytes, bytes]  # topic, version, schema


class TooMuch(WireError):
    """More events than `MOST_WAITING` came at once; one process can give them one after the other."""


class Peer(Protocol):
    """The way to the other process; objects arrive as they were, in order."""

    def send(self, thing: object, /) -> None:
        """Send `thing`; it may still be under way when this returns."""

    def receive(self) -> Any:
        """Wait for the next thing."""


class _Turn(NamedTuple):
    """What a packet gave; `position` orders turns, and is a packet's number while there are packets."""

    position: int
    session: "_WaitingSession"
    events: list[Event]
    frames: int
    teaching: bool


class _Block(NamedTuple):
    """What a process tells of a block: up to which packet, where connections were opened, its turns."""

    packets: int
    opened: list[int]
    turns: list[_Told]
    first: tuple[int, int] | None  # position and time in ns of its first event, while that is not known


class Sharing:
    """Makes `decoder`, which has half of the connections, give their events in step with `peer`.

    `render` gets events of one packet, in order, and gives their output; `write` gets all output of
    both processes in order. It is None in the process that only sends its own.
    """

    def __init__(
        self,
        decoder: Decoder,
        peer: Peer,
        render: Callable[[list[Event]], bytes],
        write: Callable[[bytes], object] | None,
    ) -> None:
        self.first_ns: int | None = None
        """When the first event of the capture was captured, ns since the epoch; None if not known yet."""
        self._decoder = decoder
        self._peer = peer
        self._render = render
        self._write = write
        self._room = BLOCK
        self._turns: list[_Turn] = []
        self._waiting = 0  # events of them
        self._opened: list[tuple[int, Connection]] = []
        self._connections = 0  # that have their index
        self._closing = False
        self._rendered: list[_Chunk] | None = None  # waits for the peer's
        self._schemas = decoder.knowledge.schemas = _NotedSchemas()
        decoder.tee = self._see
        decoder.reassembler.new_session = self._session

    def finish(self) -> None:
        """Settle what is left, once all sources were read."""
        self._settle()
        self._closing = True
        for _ in self._decoder.finish():
            pass  # they are noted by their sessions
        self._settle()
        self._write_rendered()

    # -- what the decoder says

    def _see(self, number: int, packet: RawPacket) -> None:
        self._room -= len(packet[2]) + PACKET
        if self._room < 0:
            self._room = BLOCK
            self._settle()

    def _session(
        self, connection: Connection, knowledge: Knowledge, streams: Iterable[FrameStream]
    ) -> Session:
        self._opened.append((self._decoder.packets, connection))
        return _WaitingSession(connection, knowledge, streams, self._wait)

    def _wait(self, session: "_WaitingSession", events: list[Event], frames: int, teaching: bool) -> None:
        position = self._decoder.packets
        if self._closing:  # connections end in the order of their opening
            position += 1 + session.connection.index
        self._turns.append(_Turn(position, session, events, frames, teaching))
        self._waiting += len(events)
        if self._waiting > MOST_WAITING:
            raise TooMuch

    # -- a block

    def _settle(self) -> None:
        turns, self._turns = self._turns, []
        self._waiting = 0
        mine = _Block(
            self._decoder.packets,
            [packet for packet, _ in self._opened],
            [(turn.position, turn.frames, turn.teaching) for turn in turns],
            None if self.first_ns is not None else _first_time(turns),
        )
        self._peer.send(mine)
        self._write_rendered()  # the peer has sent that before
        theirs: _Block = self._peer.receive()
        if theirs.packets != mine.packets:
            raise WireError("the capture changed while it was read; try again with --jobs 1")
        if self.first_ns is None:
            self.first_ns = min(filter(None, (mine.first, theirs.first)), default=(0, None))[1]
        self._number_connections(theirs.opened)
        self._track(turns, theirs.turns)
        self._rendered = [(turn.position, self._render(turn.events)) for turn in turns]
        if self._write is None:
            self._peer.send(self._rendered)

    def _number_connections(self, theirs: list[int]) -> None:
        opened = [*self._opened, *((packet, None) for packet in theirs)]
        opened.sort(key=itemgetter(0))
        for index, (_, connection) in enumerate(opened, self._connections):
            if connection is not None:
                connection.index = index
        self._connections += len(opened)
        self._opened.clear()

    def _track(self, mine: list[_Turn], theirs: list[_Told]) -> None:
        """Let the sessions follow their turns, between those of the peer."""
        for turn in self._in_order(mine, theirs):
            if isinstance(turn, _Turn):
                turn.session.follow(turn.events)
                if turn.teaching:
                    self._peer.send(self._schemas.take())
            else:
                _, frames, teaching = turn
                self._decoder.knowledge.frames += frames
                if teaching:
                    for topic, version, schema in self._peer.receive():
                        self._schemas.hear(topic, version, schema)

    def _in_order(self, mine: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
        """Both in order of their positions; where those are equal the process that writes comes first."""
        both = [*mine, *theirs] if self._write else [*theirs, *mine]
        both.sort(key=itemgetter(0))
        return both

    def _write_rendered(self) -> None:
        """Write the block before, if this is for this process to do."""
        if self._write is not None and self._rendered is not None:
            chunks = self._in_order(self._rendered, self._peer.receive())
            self._write(b"".join([chunk for _, chunk in chunks]))
        self._rendered = None


class _WaitingSession(Session):
    """A session whose frames wait to be numbered, but for what decoding cannot wait for."""

    def __init__(
        self,
        connection: Connection,
        knowledge: Knowledge,
        streams: Iterable[FrameStream],
        wait: Callable[["_WaitingSession", list[Event], int, bool], None],
    ) -> None:
        super().__init__(connection, knowledge, streams)
        self._wait = wait

    def track(self, events: list[Event]) -> None:
        frames = 0
        teaching = False
        for event in events:
            if event.__class__ is Frame:
                frames += 1
                if event.type in TEACHING:
                    teaching = True
                elif event.type == CONNECTED:
                    self.heed_limit(event)
        if events:
            self._wait(self, events, frames, teaching)

    def follow(self, events: list[Event]) -> None:
        """What `track` does otherwise."""
        super().track(events)


class _NotedSchemas(Schemas):
    """Schemas that are told to the peer."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[_Lesson] = []

    def add(self, topic: str | None, version: bytes, schema: Schema) -> None:
        super().add(topic, version, schema)
        self._noted.append((topic, version, schema.SerializePartialToString()))

    def take(self) -> list[_Lesson]:
        """What was added since the last time."""
        noted, self._noted = self._noted, []
        return noted

    def hear(self, topic: str | None, version: bytes, schema: bytes) -> None:
        """Remember what the peer was taught."""
        super().add(topic, version, Schema.FromString(schema))


def _first_time(turns: list[_Turn]) -> tuple[int, int] | None:
    """Position and time in ns of the first event whose time is known."""
    times = ((turn.position, event.time_ns) for turn in turns for event in turn.events[:1])
    return next(((position, time) for position, time in times if time is not None), None)
