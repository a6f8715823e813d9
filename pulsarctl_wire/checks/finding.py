"""What a doctor finds: findings, their subjects, and the frames that prove them."""

from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.frame import Connection

CERTAIN: Final = "certain"
"""It follows from the bytes that were seen."""
SUSPECTED: Final = "suspected"
"""It is the likely explanation; another one lies outside of what was seen."""

ERROR: Final = "error"
WARNING: Final = "warning"

MOST_EVIDENCE: Final = 12
"""The most frames that a finding shows; its `count` goes on."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sighting:
    """Where a frame was seen.

    number      of the frame in the capture, from 1; 0 for bytes that are no frame, and for TCP's events
    ordinal     among the frames of its connection and direction, from 0; -1 if it is no frame
    type        the command's type number; -1 if it is no frame
    time_ns     ns since the epoch; 0 if unknown
    packet      number of the packet that completed it
    """

    __slots__ = ("connection", "number", "ordinal", "packet", "time_ns", "to_broker", "type")

    def __init__(
        self,
        connection: Connection,
        to_broker: bool,
        number: int = 0,
        ordinal: int = -1,
        type: int = -1,
        time_ns: int = 0,
        packet: int = 0,
    ) -> None:
        self.connection = connection
        self.to_broker = to_broker
        self.number = number
        self.ordinal = ordinal
        self.type = type
        self.time_ns = time_ns
        self.packet = packet

    @property
    def command(self) -> str | None:
        """The command's name; None if it is no frame."""
        return None if self.ordinal < 0 else command_name(self.type)


class Subject(NamedTuple):
    """What a finding is about, as far as its rule knows. Topics are full names, ids as on the wire."""

    topic: str | None = None
    subscription: str | None = None
    producer_id: int | None = None
    consumer_id: int | None = None
    message_id: str | None = None
    """`ledger:entry`."""
    sequence_id: int | None = None
    uuid: str | None = None
    """Of a chunked message."""


class Evidence(NamedTuple):
    """A frame that proves a finding, and why."""

    seen: Sighting
    why: str


class Finding:
    """Something that is wrong. It grows if it happens again to the same subject.

    rule          id of its rule
    connection    where it was found
    first_ns      since when, ns since the epoch; 0 if the source has no times
    last_ns       when it happened last
    count         how often
    explanation   one sentence
    advice        one more
    """

    __slots__ = (
        *("advice", "certainty", "connection", "count", "evidence", "explanation", "first_ns", "last_ns"),
        *("made_at", "rule", "severity", "subject"),
    )

    def __init__(
        self,
        rule: str,
        severity: str,
        certainty: str,
        subject: Subject,
        connection: Connection,
        evidence: list[Evidence],
        explanation: str,
        advice: str,
    ) -> None:
        self.rule = rule
        self.severity = severity
        self.certainty = certainty
        self.subject = subject
        self.connection = connection
        self.evidence = evidence
        self.explanation = explanation
        self.advice = advice
        self.count = 0
        self.first_ns = self.last_ns = 0
        self.made_at = 0  # frames seen when it was first reported with this certainty

    def add(self, evidence: list[Evidence]) -> bool:
        """It is still so, or happened again, as these frames show. Returns whether they show anything new."""
        new = [each for each in evidence if not any(each.seen is mine.seen for mine in self.evidence)]
        self.evidence += new
        del self.evidence[MOST_EVIDENCE - 1 : -1]  # the last one stays
        return bool(new)
