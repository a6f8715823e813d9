"""`Rule`, the base class of all rules, and what a rule can ask its doctor for.

A rule is a class. Its `id` names it, and its docstring is what `pwire explain` prints: first what it means,
then paragraphs that begin with `Wire:` (how it shows), `Advice:` (what to do) and `Source:`. The doctor calls
the methods that it defines:

    handlers      name of a command -> name of a method, called with (state, frame, sighting) after the state
                  has tracked the frame
    moments       on_NAME(state, frame, ...) for each NAME of `MOMENTS` that it defines
    on_opened(state), on_closed(state, ending), on_lost(state, event)
    on_consumer_due(consumer, now_ns), on_producer_due(producer, now_ns)    now and then, and when it closes
    on_due(now_ns)                                                          now and then
    on_finished()                                                           at the end of all traffic

Rules call `report` as soon as they are sure.
"""

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from pulsarctl_wire.checks.conduct import MAX_MISTAKES, Mistake
from pulsarctl_wire.checks.facts import Facts, find_client_host
from pulsarctl_wire.checks.finding import CERTAIN, ERROR, Evidence, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Producer, SightedState
from pulsarctl_wire.checks.requirement import LEVELS, Requirement
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, HttpMessage, Malformed
from pulsarctl_wire.wire.names import without_partition
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.knowledge import bound
from pulsarctl_wire.wire.session.state_data import Owner

SECOND: Final = 1_000_000_000
"""In ns."""

_SEND_ERROR: Final = NUMBERS["SEND_ERROR"]
_MAX_CLIENTS: Final = 1_024  # of a `ClientRule`

FRAME, CONNECTION, CAPTURE = "frame", "connection", "capture"
"""The data that a rule relies on: one frame; all bytes of its connection; all bytes of all connections."""

MOMENTS: Final = {
    "http": "a request or an answer of a lookup over HTTP: (state, message, number of the next frame)",
    "oversized": "a frame over the limit, which may be cut: (state, frame, sighting)",
    "sent_again": "a SEND with the sequence id of an earlier one: (state, frame, producer, send)",
    "corrupt": "the checksum of a SEND or MESSAGE is wrong: (state, frame, sighting)",
    "undecodable": "the metadata of a SEND or MESSAGE does not parse: (state, frame, sighting)",
    "unreadable": "a payload does not decompress to its stated size: "
    "(state, frame, sighting, its real size or None if the codec cannot read it)",
    "chunk": "a SEND or MESSAGE with a chunk: (state, frame, sighting)",
    "receipt_out_of_order": "a receipt that may be for a later SEND than the oldest one that waits: "
    "(state, frame, producer, sequence)",
    "send_failed": "SEND_ERROR for a known SEND: (state, frame, producer, send)",
    "possible_duplicate": "a receipt for a repeated SEND, one whose sequence id does not rise, or with id "
    "-1:-1: (state, frame, producer, send)",
    "many_permits": "twice the first permits or more, or over `MAX_PERMITS`, are outstanding after FLOW: "
    "(state, frame, consumer)",
    "pause_ends": "a MESSAGE or ACK after T without MESSAGE, or a FLOW after T without FLOW and MESSAGE: "
    "(state, frame, consumer), before the frame counts",
    "epoch": "a MESSAGE to a consumer with an epoch: (state, frame, consumer), after it counts",
    "delayed": "a MESSAGE with deliver_at_time: (state, frame, consumer)",
    "came_again": "a MESSAGE that was asked for again: (state, frame, consumer, entry, redelivery)",
    "discarded": "an ACK with validation_error: (state, frame, consumer), before it counts",
    "odd_batch": "a batch does not hold as many messages as its metadata says: "
    "(state, frame, sighting, how many, or -1 if its sizes do not fit)",
    # only on connections that were seen from the handshake on, without a hole:
    "not_open": "a SEND, FLOW, MESSAGE or ACK for a producer or consumer that is not open: "
    "(state, frame, its owner)",
    "id_in_use": "a PRODUCER or SUBSCRIBE with the id of an open one: (state, frame, life)",
    "request_again": "a request with the id of one that is not answered yet: (state, frame, reuse)",
    "too_new": "something that needs a later protocol version than the two sides agreed on: "
    "(state, frame, what, that version)",
    "wrong_way": "a command that only the other side sends: (state, frame)",
    "unasked": "an answer to no request: (state, frame)",
    "odd_send": "the numbers, the name or the time of a SEND contradict each other or what came before: "
    "(state, frame, its open producer or None, send)",
    "odd_flow": "a FLOW of no permits or too many: (state, frame, consumer, permits)",
    "small_flow": "a FLOW that grants much less than the first, the last of `MIN_SMALL_FLOWS` or more in a "
    "row: (state, frame, consumer, how many)",
    "ungranted": "a MESSAGE to a consumer that has sent no FLOW: (state, frame, consumer)",
    "came_back": "an entry again, or one below the highest, that was not asked for, to an Exclusive or "
    "Failover consumer: (state, frame, consumer, entry)",
    "cumulative_on_shared": "a cumulative ACK of a Shared or Key_Shared consumer: (state, frame, consumer)",
    "unheld_ack": "an ACK of a whole entry that the consumer does not hold: (state, frame, consumer, entry)",
    # only on connections whose CONNECT was not seen so far:
    "before_connect": "one of the first frames of a client: (state, frame, its number from 0)",
}
"""Name of a moment -> when its method is called, and the arguments."""


class Thresholds(NamedTuple):
    """All in ns. `quiet` (T): nothing moves. `unacked` (A): unacknowledged. `unanswered` (R): no answer."""

    quiet: int = 30 * SECOND
    unacked: int = 90 * SECOND
    unanswered: int = 30 * SECOND


DEFAULTS: Final = Thresholds()
"""For real traffic."""


class Reporter(Protocol):
    """The part of the doctor that rules use, and the receiver of their findings.

    `states` are those of the open connections, by their index.
    """

    facts: Facts
    thresholds: Thresholds
    states: dict[int, CheckState]

    def is_explained(
        self, rule: "Rule", sightings: Iterable[Sighting], topic: str | None, causes: Iterable[str]
    ) -> bool:
        """Return whether another rule explains these frames.

        Either one of them proves its finding, or it is one of `causes` and has a finding on `topic`.
        """

    def withdraw(self, rule: "Rule", state: SightedState, subject: Subject) -> None:
        """Drop a finding."""

    def report(
        self,
        rule: "Rule",
        state: SightedState,
        subject: Subject,
        evidence: list[Evidence],
        explanation: str,
        certainty: str,
    ) -> None:
        """Add a finding, or count it again."""


class Rule:
    """The base class of rules."""

    id: ClassVar[str]
    severity: ClassVar[str] = ERROR
    relies_on: ClassVar[str] = FRAME
    handlers: ClassVar[dict[str, str]] = {}
    cause: ClassVar[tuple[str, ...]] = ("client", "server", "topic", "subscription")
    """What findings of one cause have in common: keys of `find_cause`."""

    def __init__(self, doctor: Reporter) -> None:
        self.doctor = doctor
        self.facts = doctor.facts
        self.thresholds = doctor.thresholds

    def on_opened(self, state: CheckState) -> None:
        """Handle a new connection."""

    def on_closed(self, state: CheckState, ending: EndedConnection) -> None:
        """Handle a connection that has ended, or is no longer followed."""

    def on_lost(self, state: CheckState, event: Event) -> None:
        """Handle bytes that were missed, or are no frame."""

    def on_consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Check the silence of a consumer that is open, or is just closed."""

    def on_producer_due(self, producer: Producer, now_ns: int) -> None:
        """Check the silence of an open producer."""

    def on_due(self, now_ns: int) -> None:
        """Check what has waited too long."""

    def on_finished(self) -> None:
        """Handle the end of all traffic."""

    def find_cause(
        self, connection: Connection, subject: Subject, evidence: Sequence[Evidence]
    ) -> tuple[str, ...]:
        """Return what findings of the same cause as this one have in common."""
        parts = {
            "client": find_client_host(connection),
            "server": connection.server,
            "topic": without_partition(subject.topic or ""),
            "subscription": subject.subscription or "",
            "reason": evidence[0].reason if evidence else "",
            "last": str(evidence[-1].sighting.connection) if evidence else "",
        }
        return tuple(parts[name] for name in self.cause)

    def report(
        self,
        state: SightedState,
        subject: Subject,
        evidence: Iterable[tuple[Sighting | None, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """Report a finding. Its explanation is one sentence, by default the docstring's first one.

        Evidence without a sighting is left out.
        """
        rows = [Evidence(sighting, reason) for sighting, reason in evidence if sighting is not None]
        self.doctor.report(
            self, state, subject, rows, explanation or read_paragraphs(type(self))[""], certainty
        )

    def can_judge(self, state: SightedState) -> bool:
        """Return whether no bytes were missed that matter to this rule."""
        scope = state if self.relies_on == CONNECTION else self.facts
        return self.relies_on == FRAME or scope.has_all_bytes


class ConductRule(Rule):
    """The base class of rules about what clients and brokers must not do (`requirement.Requirement`).

    The docstring of such a rule has a paragraph that begins with `Must:`, `Should:` or `Observed:`, and says
    what is demanded. What the other side did about the mistake is added to the finding.
    """

    relies_on = CONNECTION
    cause: ClassVar[tuple[str, ...]] = ("client", "topic", "subscription")
    since: ClassVar[str] = ""
    """The Pulsar version since which it is demanded; "" for all."""

    def report_mistake(
        self,
        state: CheckState,
        subject: Subject,
        evidence: Iterable[tuple[Sighting | None, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """Report that the current frame is a mistake."""
        if state.mistakes is None:
            state.mistakes, state.has_erred = {}, True
        state.mistakes[self.id, subject] = Mistake(self, subject, state.sighting)
        bound(state.mistakes, MAX_MISTAKES)
        self.report(state, subject, evidence, explanation, certainty)


class SilenceRule(Rule):
    """The base class of rules about consumers that get nothing: they judge a silence also when it ends."""

    def on_pause_ends(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Judge a silence that ends."""
        self.on_consumer_due(consumer, state.sighting.time_ns)


class ClientRule(Rule):
    """The base class of rules about clients that fail, and mostly try again and again.

    All attempts of a client host at the same server are one finding, at the connection of the first.
    """

    def __init__(self, doctor: Reporter) -> None:
        super().__init__(doctor)
        self.first_attempts: dict[tuple[str, str], CheckState] = {}
        """The first attempt by client host and server."""

    def report_failure(
        self,
        state: CheckState,
        evidence: list[tuple[Sighting, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """Report a failed attempt."""
        connection = state.connection
        first = self.first_attempts.setdefault((find_client_host(connection), connection.server), state)
        bound(self.first_attempts, _MAX_CLIENTS)
        self.report(first, Subject(), evidence, explanation, certainty)


_LABELS: Final = {*map(str.capitalize, LEVELS), "Wire", "Advice", "Source"}


def read_requirement(rule: type[Rule]) -> Requirement | None:
    """Return what a rule's docstring demands; None if it has no such paragraph."""
    paragraphs = read_paragraphs(rule)
    for level in LEVELS:
        what = paragraphs.get(level.capitalize())
        if what is not None:
            since = rule.since if issubclass(rule, ConductRule) else ""
            return Requirement(rule.id, level, what, paragraphs[""], paragraphs["Source"], since)
    return None


def read_paragraphs(rule: type[Rule]) -> dict[str, str]:
    """Return the paragraphs of a rule's docstring by label; "": what it means."""
    return split_paragraphs(rule.__doc__ or "", _LABELS)


def split_paragraphs(text: str, labels: Collection[str]) -> dict[str, str]:
    """Return the paragraphs of a docstring by their label, one of `labels`; "" has all others, joined."""
    paragraphs: dict[str, str] = {}
    for block in inspect.cleandoc(text).split("\n\n"):
        words = " ".join(block.split())
        label, colon, sentences = words.partition(": ")
        if colon and label in labels:
            paragraphs[label] = sentences
        else:
            paragraphs[""] = " ".join(filter(None, (paragraphs.get(""), words)))
    return paragraphs


def make_owner_subject(frame: Frame, owner: Owner | None) -> Subject:
    """Return the subject of a frame that is about `owner`, a producer or consumer, if any."""
    is_consumer, number = owner or (False, None)
    producer, consumer = (None, number) if is_consumer else (number, None)
    return Subject(frame.topic, frame.subscription, producer, consumer)


def make_answer_subject(state: CheckState, frame: Frame) -> Subject:
    """Return the subject of an answer: that of its request, or the producer of a SEND_ERROR."""
    if frame.type == _SEND_ERROR:
        return make_owner_subject(frame, (False, frame.body.producer_id))
    return make_owner_subject(
        frame, state.answered_request.owner if state.answered_request is not None else None
    )


def locate_bytes(event: Malformed | HttpMessage) -> Sighting:
    """Return where bytes were seen that are no frame."""
    return Sighting(event.connection, event.to_broker, time_ns=event.time_ns or 0, packet=event.packet)


def format_ns(ns: int) -> str:
    """Return a duration as text: "5.1 s"; in minutes, hours or days from two of them on."""
    for unit, size in _LONG_UNITS.items():
        if ns >= 2 * size * SECOND:
            return f"{ns / size / SECOND:.1f} {unit}"
    return f"{ns / SECOND:.1f} s"


_LONG_UNITS: Final = {"days": 86_400, "h": 3_600, "min": 60}
"""Units above the second, in seconds, the longest first."""


def has_hook(rule: Rule, name: str) -> bool:
    """Return whether a rule defines the method `on_NAME`, which the doctor calls."""
    return getattr(type(rule), f"on_{name}", None) is not getattr(Rule, f"on_{name}", None)
