"""`Rule`, the base class of all rules, and what a rule can ask its doctor for.

A rule is a class. Its `id` names it, and its docstring is what `pwire explain` prints: first what it means,
then paragraphs that begin with `Wire:` (how it shows), `Advice:` (what to do) and `Source:`. The doctor calls
the methods that it defines:

    on            type of a command -> method(state, frame, seen), after the state has tracked the frame
    moments       method(state, frame, ...) for each of `MOMENTS` that it defines
    opened(state), closed(state, ending), lost(state, event)
    consumer_due(consumer, now_ns), producer_due(producer, now_ns)     now and then, and when they end
    due(now_ns), finished()                                            now and then; at the end of all

Rules call `found` as soon as they are sure.
"""

import inspect
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

from pulsarctl_wire.checks.facts import Facts
from pulsarctl_wire.checks.finding import CERTAIN, ERROR, Evidence, Sighting, Subject
from pulsarctl_wire.checks.ledgers import Consumer, Producer, SightedState
from pulsarctl_wire.checks.state import CheckState
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Event, Frame, Malformed
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.plain import Owner

SECOND: Final = 1_000_000_000
"""In ns."""

_SEND_ERROR: Final = NUMBERS["SEND_ERROR"]

FRAME, CONNECTION, CAPTURE = "frame", "connection", "capture"
"""What a rule relies on: one frame; all bytes of its connection; all bytes of all connections."""

MOMENTS: Final = {
    "oversized": "a frame over the limit, which may be cut: (state, frame, seen)",
    "sent_again": "a SEND with the sequence id of an earlier one: (state, frame, producer, sent)",
    "corrupt": "the checksum of a SEND or MESSAGE is wrong: (state, frame, seen)",
    "undecodable": "the metadata of a SEND or MESSAGE does not parse: (state, frame, seen)",
    "unreadable": "a payload does not decompress to its size, but to this one: (state, frame, seen, size or "
    "None if the codec cannot read it)",
    "chunk": "a SEND or MESSAGE with a chunk: (state, frame, seen)",
    "receipt_out_of_order": "a receipt that may be for a later SEND than the next one, which still waits: "
    "(state, frame, producer, sequence)",
    "send_failed": "SEND_ERROR for a known SEND: (state, frame, producer, sent)",
    "stored_again": "a receipt for a SEND with an earlier one, or with the id -1:-1: as sent_again",
    "granted": "twice the first permits or more are outstanding after FLOW: (state, frame, consumer)",
    "pause_ends": "after T without MESSAGE, or without FLOW and MESSAGE, a frame that may end that "
    "(FLOW, MESSAGE, ACK): (state, frame, consumer), before the frame counts",
    "epoch": "a MESSAGE to a consumer with an epoch: (state, frame, consumer), after it counts",
    "delayed": "a MESSAGE with deliver_at_time: (state, frame, consumer)",
    "came_again": "a MESSAGE that was asked for again: (state, frame, consumer, entry, returned)",
    "discarded": "an ACK with validation_error: (state, frame, consumer), before it counts",
}
"""Name of a method -> when it is called, and its arguments."""


class Thresholds(NamedTuple):
    """All in ns. `quiet` (T): nothing moves. `unacked` (A): unacknowledged. `unanswered` (R): no answer."""

    quiet: int = 30 * SECOND
    unacked: int = 90 * SECOND
    unanswered: int = 30 * SECOND


DEFAULTS: Final = Thresholds()
"""For real traffic."""


class Findings(Protocol):
    """What a rule asks of its doctor, and to whom it reports.

    `states` are those of the open connections, by their index.
    """

    facts: Facts
    thresholds: Thresholds
    states: dict[int, CheckState]

    def found(
        self,
        rule: "Rule",
        state: SightedState,
        subject: Subject,
        evidence: list[Evidence],
        explanation: str,
        certainty: str,
    ) -> None:
        """Report something, or that it has happened again."""


class Rule:
    """The base class of rules."""

    id: ClassVar[str]
    severity: ClassVar[str] = ERROR
    relies_on: ClassVar[str] = FRAME
    on: ClassVar[dict[str, str]] = {}

    def __init__(self, doctor: Findings) -> None:
        self.doctor = doctor
        self.facts = doctor.facts
        self.thresholds = doctor.thresholds

    def opened(self, state: CheckState) -> None:
        """A connection was opened."""

    def closed(self, state: CheckState, ending: EndedConnection) -> None:
        """A connection has ended, or is no longer followed."""

    def lost(self, state: CheckState, event: Event) -> None:
        """Bytes were missed, or are no frame."""

    def consumer_due(self, consumer: Consumer, now_ns: int) -> None:
        """Time has passed for an open consumer."""

    def producer_due(self, producer: Producer, now_ns: int) -> None:
        """Time has passed for an open producer."""

    def due(self, now_ns: int) -> None:
        """Time has passed."""

    def finished(self) -> None:
        """Nothing more will come."""

    def found(
        self,
        state: SightedState,
        subject: Subject,
        evidence: Sequence[tuple[Sighting, str]],
        explanation: str = "",
        certainty: str = CERTAIN,
    ) -> None:
        """Report it. The explanation is one sentence, by default the first one of the docstring."""
        rows = [Evidence(*each) for each in evidence]
        self.doctor.found(self, state, subject, rows, explanation or paragraphs(type(self))[""], certainty)

    def can_count(self, state: SightedState) -> bool:
        """Whether no bytes were missed that matter to this rule."""
        return state.whole if self.relies_on == CONNECTION else self.relies_on == FRAME or self.facts.whole


class SilenceRule(Rule):
    """The base class of rules about consumers that get nothing: they judge a silence also when it ends."""

    def pause_ends(self, state: CheckState, frame: Frame, consumer: Consumer) -> None:
        """Judge a silence that ends."""
        self.consumer_due(consumer, state.seen.time_ns)


def paragraphs(rule: type[Rule]) -> dict[str, str]:
    """The paragraphs of a rule's docstring, each on one line: "" (what it means), Wire, Advice, Source."""
    found: dict[str, str] = {}
    for block in inspect.cleandoc(rule.__doc__ or "").split("\n\n"):
        text = " ".join(block.split())
        head, colon, rest = text.partition(": ")
        known = colon and head in ("Wire", "Advice", "Source")
        found[head if known else ""] = rest if known else " ".join(filter(None, (found.get(""), text)))
    return found


def about_owner(frame: Frame, owner: Owner | None) -> Subject:
    """The subject of a frame that is about this producer or consumer, if it is about any."""
    is_consumer, number = owner or (False, None)
    producer, consumer = (None, number) if is_consumer else (number, None)
    return Subject(frame.topic, frame.subscription, producer, consumer)


def about_answer(state: CheckState, frame: Frame) -> Subject:
    """The subject of an answer: what its request was about, or the producer of a SEND_ERROR."""
    if frame.type == _SEND_ERROR:
        return about_owner(frame, (False, frame.body.producer_id))
    return about_owner(frame, state.answered.owner if state.answered is not None else None)


def bytes_seen(event: Malformed) -> Sighting:
    """The place of bytes that are no frame."""
    return Sighting(event.connection, event.to_broker, time_ns=event.time_ns or 0, packet=event.packet)


def seconds(ns: int) -> str:
    """A time as text: "5.1 s"; in minutes, hours or days from two of them on."""
    for unit, size in _LONG.items():
        if ns >= 2 * size * SECOND:
            return f"{ns / size / SECOND:.1f} {unit}"
    return f"{ns / SECOND:.1f} s"


_LONG: Final = {"days": 86_400, "h": 3_600, "min": 60}
"""Units above the second, in seconds, the longest first."""


def defines(rule: Rule, name: str) -> bool:
    """Whether a rule defines a method that the doctor calls."""
    return getattr(type(rule), name, None) is not getattr(Rule, name, None)
