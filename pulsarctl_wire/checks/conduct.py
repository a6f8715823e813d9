"""`ConductState`: notices what clients and brokers do against the protocol, and calls the rules about that.

It knows of each producer and consumer id of a connection how it was opened, and what ended it. Nothing is
noticed on a connection whose handshake was not seen, or after bytes were missed.
"""

from typing import Any, Final, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

from pulsarctl_wire.checks.facts import Entry, Facts, Send
from pulsarctl_wire.checks.finding import Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, OwnerLife, Producer, SightedState
from pulsarctl_wire.wire.commands import NUMBERS, TO_BROKER
from pulsarctl_wire.wire.fast_fields import Head
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck
from pulsarctl_wire.wire.session.counts import MAX_PERMITS
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, bound
from pulsarctl_wire.wire.session.state_data import Owner, Request

MAX_SKEW_MS: Final = 60_000
"""Maximum difference between publish time and capture time that is not noticed, in ms."""
REPLICATOR: Final = "pulsar.repl"
"""Prefix of the names of replicating producers: they send what others have numbered, named and timed."""
MIN_SMALL_FLOWS: Final = 50
"""How many FLOWs in a row must grant less than a tenth of the first one to be noticed."""
MAX_MISTAKES: Final = 64
"""Maximum number of mistakes on a connection whose outcome is awaited."""

_LARGE_QUEUE: Final = 20  # permits of a first FLOW: smaller queues may be filled one by one
_CONFIRMED_ACKS: Final = 17  # the protocol version that introduced ACK_RESPONSE
_FIRST_FRAMES: Final = 4  # how many frames of a client are checked while its CONNECT is missing
_NO_LIVES: Final[dict[Owner, OwnerLife]] = {}
_NO_IDS: Final[dict[str, int]] = {}
_FAMILIES: Final = ("request", "lookup")  # of request ids (`commands.REQUESTS`)


class Mistake(NamedTuple):
    """Something that was done against the protocol, whose outcome is awaited."""

    rule: Any
    subject: Subject
    sighting: Sighting


class Reuse(NamedTuple):
    """A request with the id of an `earlier` request that is not answered yet.

    `is_same_family`: both ids are of lookups, or both of other requests. `is_rising`: so far, the ids of each
    family have only risen, as those of a client with two counters do.
    """

    earlier: Sighting
    is_same_family: bool
    is_rising: bool


class Observer(Protocol):
    """The receiver of what happens on a connection: the doctor."""

    facts: Facts

    def advance(self, time_ns: int, number: int) -> None:
        """Move on to the time of the next frame; `number` is the number of that frame."""

    def on_frame(self, state: Any, frame: Frame, sighting: Sighting) -> None:
        """Handle a frame of a type that rules ask for, after it was tracked."""

    def on_lost(self, state: Any, event: Any) -> None:
        """Handle bytes that were missed, or are no frame."""

    def on_moment(self, name: str, state: Any, frame: Any, *details: Any) -> None:
        """Handle something unusual (`rule.MOMENTS`)."""

    def on_outcome(self, mistake: Mistake, connection: int, answer: Sighting | None, outcome: str) -> None:
        """Add to a finding what the other side did about the mistake."""

    def check_owner(self, owner: Consumer | Producer, now_ns: int) -> None:
        """Check the silence of a consumer or producer."""

    def forget_unacked(self) -> None:
        """Forget the unacknowledged entries of the consumers that hold most, if there are too many."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Direction:
    """One direction of a connection.

    count            number of complete frames
    last             the last frame, cut ones included
    last_heard       number of the last frame up to the first FIN or RST
    last_heard_ns    the latest time of those frames, ns since the epoch
    """

    __slots__ = ("count", "last", "last_heard", "last_heard_ns")

    def __init__(self) -> None:
        self.count = self.last_heard = self.last_heard_ns = 0
        self.last: Sighting | None = None


SILENT: Final = Direction()
"""Stands for each direction of a connection until its first event."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ConductState(SightedState):
    """Tracks the lives of the connection's producers and consumers, and notices mistakes.

    to_client, to_broker     both directions
    """

    # defaults here, not in `__init__`, take no memory: most connections of a flood never send a frame
    doctor: Observer
    to_client: Direction = SILENT
    to_broker: Direction = SILENT
    lives: dict[Owner, OwnerLife] = _NO_LIVES
    mistakes: dict[tuple[str, Subject], Mistake] | None = None
    has_erred: bool = False
    """Whether the client or the broker has made a mistake on this connection."""
    request_sighting: Sighting | None = None
    """The frame of the request that the current frame answers."""
    sent_count: int = 0
    """Number of complete SENDs whose checksum is not wrong, and whose metadata parses."""
    first_send: Send | None = None
    """The first of these."""
    has_consumers: bool = False
    """Whether any SUBSCRIBE was seen."""
    _requests: dict[int, Sighting] | None = None  # by frame number
    _repeated: OwnerLife | None = None  # whose id the current request uses again
    _reuse: Reuse | None = None  # of the current request's id
    _highest_ids: dict[str, int] = _NO_IDS  # of requests, by family
    _is_rising: bool = True  # as in `Reuse`

    @property
    def is_whole(self) -> bool:
        """Whether both sides were seen from CONNECT and CONNECTED on, and no byte was missed since."""
        return not self._lossy and self.greeting.server_version is not None

    def notice(self, name: str, frame: Frame, *details: Any) -> None:
        """Call the rules that watch for this moment, if the connection is whole."""
        if self.is_whole:
            self.doctor.on_moment(name, self, frame, *details)

    def check_direction(self, frame: Frame, ordinal: int) -> None:
        """Notice a command that only the other side sends, and what comes before CONNECT."""
        kind = frame.type
        if 0 <= kind < len(_OPPOSITE) and _OPPOSITE[kind] == frame.to_broker:
            self.notice("wrong_way", frame)
        if self._lossy and frame.to_broker and ordinal < _FIRST_FRAMES:
            self.doctor.on_moment("before_connect", self, frame, ordinal)

    # -- requests, and the producers and consumers that they open

    def _request(self, frame: Frame) -> None:
        super()._request(frame)
        if frame.type == _SEEK:
            life = self.lives.get((True, frame.base.seek.consumer_id))  # type: ignore[union-attr]
            if life is not None:
                life.is_seeking = True
        if self._repeated is not None:
            self.notice("id_in_use", frame, self._repeated)
            self._repeated = None
        if self._reuse is not None:
            self.notice("request_again", frame, self._reuse)
            self._reuse = None

    def _take(self, owner: Owner, number: int) -> bool:
        life = self.lives.get(owner)
        is_free = super()._take(owner, number)
        self.has_consumers |= owner[0]
        if is_free:
            if self.lives is _NO_LIVES:
                self.lives = {}
            self.lives[owner] = OwnerLife(self.sighting)
            bound(self.lives, MAX_PENDING)
        elif life is not None and life.is_open:
            self._repeated = life
        return is_free

    def _free(self, owner: Owner) -> None:
        super()._free(owner)
        life = self.lives.get(owner)
        if life is not None and life.end is None:
            life.end = self.sighting

    def _lose(self) -> None:
        super()._lose()
        self.lives = _NO_LIVES

    def record_success(self, owner: Owner, *, is_ready: bool) -> None:
        """Record that a producer or consumer was opened, and may be used if `is_ready`."""
        life = self.lives.get(owner)
        if life is None or life.success is not None:
            return
        if is_ready:
            life.success = self.sighting
        else:
            life.queued = self.sighting

    def _remember_request(self, key: tuple[str, int], asked: Request, body: Any) -> None:
        family, number = key
        requests = self._requests
        if family in _FAMILIES and requests is not None:
            for other in _FAMILIES:
                pending = self._pending_requests.get((other, number))
                earlier = requests.get(pending.number) if pending is not None else None
                if earlier is not None and (self._reuse is None or other == family):
                    self._reuse = Reuse(earlier, other == family, self._is_rising)
        if self._highest_ids is _NO_IDS:
            self._highest_ids = {}
        if number <= self._highest_ids.get(family, -1):
            self._is_rising = False
        self._highest_ids[family] = number
        super()._remember_request(key, asked, body)
        if requests is None:
            requests = self._requests = {}
        requests[asked.number] = self.sighting
        bound(requests, MAX_PENDING)

    def _answer(self, frame: Frame) -> None:
        super()._answer(frame)
        if frame.request is None and not frame.to_broker and frame.type not in _UNASKED:
            self.notice("unasked", frame)

    def is_mistake(self, sighting: Sighting) -> bool:
        """Return whether a rule has reported this frame as a mistake."""
        return any(mistake.sighting is sighting for mistake in (self.mistakes or {}).values())

    def record_outcome(self, request: Sighting, outcome: str) -> None:
        """Record that the current frame is the answer to a request, which may have been a mistake."""
        if self.mistakes is None:
            return
        for key, mistake in list(self.mistakes.items()):
            if mistake.sighting is request:
                del self.mistakes[key]
                self.doctor.on_outcome(mistake, self.connection.index, self.sighting, outcome)

    # -- SEND, FLOW, MESSAGE and ACK

    def check_send(self, frame: Frame, head: Head, producer: Producer | None, send: Send) -> None:
        """Notice a SEND whose numbers, name or time contradict each other or what came before."""
        self.sent_count += 1
        if self.first_send is None:
            self.first_send = send
        highest, sequence = frame.ids.highest, frame.ids.sequence
        skew_ms = send.time_ns // 1_000_000 - head.publish_time
        if (
            head.sequence != sequence
            or is_miscounted(frame.ids.count, head)
            or (highest is not None and highest < sequence)
            or (producer is not None and (producer.name != head.producer or not send.is_rising))
            or ((skew_ms > MAX_SKEW_MS or skew_ms < -MAX_SKEW_MS) and send.time_ns != 0)
        ):
            self.notice("odd_send", frame, producer, send)

    def check_ack(self, frame: Frame, consumer: Consumer | None) -> None:
        """Notice an ACK of the wrong kind, with a field that is too new, or without an open consumer."""
        ids = frame.ids
        if consumer is None:
            self.notice("not_open", frame, (True, ids.owner))
        elif ids.kind == CommandAck.Cumulative and consumer.is_shared:
            self.notice("cumulative_on_shared", frame, consumer)
        if ids.request is not None and (self.greeting.protocol_version or 0) < _CONFIRMED_ACKS:
            self.notice("too_new", frame, "ACK with a request id", _CONFIRMED_ACKS)

    def check_flow(self, frame: Frame, consumer: Consumer | None, permits: int) -> None:
        """Notice a FLOW without an open consumer, of no or too many permits, or one of many small ones."""
        if consumer is None:
            self.notice("not_open", frame, (True, frame.base.flow.consumer_id))  # type: ignore[union-attr]
        elif permits <= 0 or permits > MAX_PERMITS:
            self.notice("odd_flow", frame, consumer, permits)
        elif consumer.first_grant >= _LARGE_QUEUE and 10 * permits < consumer.first_grant:
            consumer.small_flows += 1
            if consumer.small_flows >= MIN_SMALL_FLOWS:
                self.notice("small_flow", frame, consumer, consumer.small_flows)
        else:
            consumer.small_flows = 0

    def check_unrequested(self, frame: Frame, consumer: Consumer, entry: Entry) -> None:
        """Notice a MESSAGE before any FLOW, or one that comes again or late though nobody asked for it.

        Must be called before `highest_delivered` is raised to `entry`.
        """
        if not consumer.flow_count and consumer.success is not None:
            self.notice("ungranted", frame, consumer)
        if entry <= consumer.highest_delivered and not (consumer.is_shared or consumer.redeliveries):
            self.notice("came_back", frame, consumer, entry)


def is_miscounted(count: int, head: Head) -> bool:
    """Return whether a SEND that says `count` messages (1 if it says nothing) contradicts its metadata."""
    return count != head.batch and count != 1


_OPPOSITE: Final = [
    not TO_BROKER[kind] if kind in TO_BROKER else None for kind in range(max(NUMBERS.values()) + 1)
]
"""Type number -> the direction in which it is never sent (True: to the broker); None if there is none."""

_SEEK: Final = NUMBERS["SEEK"]
_UNASKED: Final = {
    NUMBERS[name]
    for name in ("SCALABLE_TOPIC_UPDATE", "WATCH_SCALABLE_TOPICS_UPDATE", "WATCH_TC_ASSIGNMENTS_UPDATE")
}
"""Answers that brokers go on sending unasked: only the first one answers a request."""
