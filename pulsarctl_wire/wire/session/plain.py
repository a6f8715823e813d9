"""What the state of a connection hands to another process, or to saved progress, as plain data."""

from typing import NamedTuple

from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session.exchanges import Sent
from pulsarctl_wire.wire.session.greeting import Greeting
from pulsarctl_wire.wire.session.knowledge import Identity
from pulsarctl_wire.wire.session.state import Asked, Owner


class Sends(NamedTuple):
    """A `ProducerLedger` as plain data: pending sends, and chunks (sequence id, next chunk, sends)."""

    topic: str | None
    name: str
    is_open: bool
    is_closed: bool
    doubtful: int
    pending: list[tuple[int, Sent]]
    chunks: list[tuple[int, int, list[Sent]]]


class Known(NamedTuple):
    """What a state knows about its connection, as plain data.

    `producers`, `consumers` and `sends` are by id, `asked` by family and id, `pings` with their direction.
    `in_use` has the numbers of the frames that opened the producers and consumers whose ids are in use.
    `chunks` are incomplete chunked messages (see `ChunkJoiner.incomplete`). `lossy`: bytes were missed since
    the beginning; None if the part did not change that. `broker` is the connection's.
    """

    producers: dict[int, str]
    consumers: dict[int, tuple[str, str]]
    in_use: dict[Owner, int]
    asked: dict[tuple[str, int], Asked]
    sends: dict[int, Sends]
    chunks: list[tuple[bool, int, str, int]]
    lossy: bool | None = None
    handshake: Asked | None = None
    challenge: Asked | None = None
    pings: tuple[tuple[bool, Asked], ...] = ()
    greeting: Greeting = Greeting()
    broker: str = ""


class Deferred(NamedTuple):
    """A frame without payload that only the joining process can resolve; see `Frame`.

    `topic` and `subscription` are what the part knows, if there was no request; they may be stand-ins.
    """

    raw: bytes
    to_broker: bool
    offset: int
    time_ns: int | None
    start_ns: int | None
    packet: int
    reported: tuple[int, int] | None
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
    sent                   producer name -> lowest and highest sequence id, number of the last frame
    asked                  family -> lowest and highest id of requests
    errors                 ids of lookups that were answered by ERROR
    lost                   number of the last frame after which bytes were missed; None if none were
    ended                  the turn in which the connection ended; None if it did not
    chunked, doubtful      whether it has chunks; whether it must not be used
    """

    producers: dict[int, str]
    consumers: dict[int, tuple[str, str]]
    deferred: list[Deferred]
    opened: list[int]
    reopened: dict[int, int]
    taken: list[Owner]
    freed: list[Owner]
    left: list[tuple[Identity, int, int | None, bool, int]]
    maybe_resent: list[tuple[str, int, int]]
    sent: dict[str, tuple[int, int, int]]
    asked: dict[str, tuple[int, int]]
    errors: list[int]
    lost: int | None
    ended: int | None
    chunked: bool
    doubtful: bool
