"""The states of connections as plain data, also for other processes and for saved progress."""

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.ranges import Count, Int32, Nanoseconds, Offset, Place, UInt64
from pulsarctl_wire.wire.session.greeting import Greeting

if TYPE_CHECKING:
    _Type = int
else:
    _Type = Literal[tuple(BODIES)]

Owner = tuple[bool, UInt64]
"""True for a consumer or False for a producer, and its id."""

Identity = tuple[str | None, str, UInt64, UInt64, Int32]
"""What a SEND and its resends have in common: topic, producer name, sequence id, publish time (ms), chunk."""

_Size = tuple[Count, Count]
Sent = tuple[Count, Nanoseconds | None, Count, str | None, UInt64, str, UInt64, Int32, _Size, Offset]
"""A SEND that waits for its answer. A plain tuple for speed, as every SEND needs one:

    first_number       number of the frame in which it was sent first
    time_ns            when that frame was captured, ns since the epoch; or None
    frame              number of its own frame; that is a later one if it was sent again
    topic              or None
    highest            highest sequence id of its batch, or 0
    producer           producer name in its metadata
    publish_time       ms since the epoch
    chunk              chunk id
    size               bytes of its frame, and messages in it
    offset             of its frame; -1 if that did not go to the broker
"""

# indexes of its fields, for code that needs only some of them
SENT_FIRST_NUMBER: Final = 0
SENT_TIME_NS: Final = 1
SENT_FRAME: Final = 2
SENT_HIGHEST: Final = 4
SENT_PRODUCER: Final = 5
SENT_PUBLISH_TIME: Final = 6
SENT_CHUNK: Final = 7


SentRanges = dict[str, tuple[UInt64, UInt64, Count]]
"""Producer name -> lowest and highest sequence id, number of the last frame."""


class Request(NamedTuple):
    """A request that waits for its answer, and the `offset` of its frame.

    `owner` is the producer or consumer that it is about, if any.
    """

    number: Count
    time_ns: Nanoseconds | None
    offset: Count
    type: _Type
    topic: str | None
    subscription: str | None = None
    owner: Owner | None = None


class Sends(NamedTuple):
    """A `ProducerLedger` as plain data: pending sends, and chunks (sequence id, next chunk, sends).

    `doubtful` is its `doubtful_until`.
    """

    topic: str | None
    name: str
    is_open: bool
    is_closed: bool
    doubtful: Count
    pending: list[tuple[UInt64, Sent]]
    chunks: list[tuple[UInt64, Count, list[Sent]]]


class Known(NamedTuple):
    """What a state knows about its connection, as plain data.

    `producers`, `consumers` and `sends` are by id, `asked` by family and id, `pings` with their direction.
    `in_use` has the numbers of the frames that opened the producers and consumers whose ids are in use.
    `chunks` are incomplete chunked messages (see `ChunkJoiner.incomplete`). `lossy`: bytes may have
    been missed since the beginning; None if the part did not change that. `broker` is the connection's.
    """

    producers: dict[UInt64, str]
    consumers: dict[UInt64, tuple[str, str]]
    in_use: dict[Owner, Count]
    asked: dict[tuple[str, UInt64], Request]
    sends: dict[UInt64, Sends]
    chunks: list[tuple[bool, UInt64, str, Count]]
    lossy: bool | None = None
    handshake: Request | None = None
    challenge: Request | None = None
    pings: tuple[tuple[bool, Request], ...] = ()
    greeting: Greeting = Greeting()
    broker: str = ""


class Deferred(NamedTuple):
    """A frame without payload that only the joining process can resolve; see `Frame`.

    `topic` and `subscription` are what the part knows, and count if no request is found; they may be
    stand-ins.
    """

    raw: bytes
    to_broker: bool
    offset: Count
    time_ns: Nanoseconds | None
    start_ns: Nanoseconds | None
    packet: Place
    reported: tuple[Nanoseconds, Count] | None
    topic: str | None
    subscription: str | None

    def frame(self, connection: Connection, shift: int) -> Frame:
        """Make the frame again, with `shift` added to its offset."""
        base = BaseCommand.FromString(self.raw[8 : 8 + int.from_bytes(self.raw[4:8], "big")])
        offset = self.offset + shift
        frame = Frame(
            self.raw, base, base.type, connection, self.to_broker, offset, self.time_ns, self.packet
        )
        frame.start_ns, frame.reported = self.start_ns, self.reported
        frame.partial = len(self.raw) < frame.size
        return frame


class Part(NamedTuple):
    """What a `PartState` leaves to a `KnownState`. Frame numbers count within the part.

    producers, consumers   id -> stand-in for a topic; id -> stand-ins for topic and subscription
    deferred               deferred frames, in order
    opened, reopened       ids of producers that were opened; of those that were closed and then reopened:
                           id -> turn
    taken, freed           ids that were not in use if the part is right; ids that were closed in it
    left                   sends that were unanswered when their producer was reopened, each with the turn
    maybe_resent           (producer name, sequence id, last frame number by then) of sends pending when the
                           part began, when a producer was reopened, or when the connection ended
    sent                   its SENDs, as `SentRanges`
    asked                  family -> lowest and highest id of requests
    errors                 ids of lookups that were answered by ERROR
    lost                   number of the last frame after which bytes were missed; None if none were
    ended                  the turn in which the connection ended; None if it did not
    chunked, doubtful      whether it has chunks; whether it must not be used
    """

    producers: dict[UInt64, str]
    consumers: dict[UInt64, tuple[str, str]]
    deferred: list[Deferred]
    opened: list[UInt64]
    reopened: dict[UInt64, Place]
    taken: list[Owner]
    freed: list[Owner]
    left: list[tuple[Identity, Count, Nanoseconds | None, bool, Place]]
    maybe_resent: list[tuple[str, UInt64, Count]]
    sent: SentRanges
    asked: dict[str, tuple[UInt64, UInt64]]
    errors: list[UInt64]
    lost: Count | None
    ended: Place | None
    chunked: bool
    doubtful: bool
