"""Findings, their subjects, and the frames that prove them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.commands import command_name
from pulsarctl_wire.wire.fields import to_signed
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, PACKET_OFFSET_MASK, Connection

CERTAIN: Final = "certain"
"""It follows from the bytes that were seen."""
SUSPECTED: Final = "suspected"
"""It is the likely explanation; another one lies outside of what was seen."""

ERROR: Final = "error"
WARNING: Final = "warning"

MAX_EVIDENCE: Final = 12
"""Maximum number of frames that a finding shows; its `count` goes on."""

WRONG_CHECKSUM: Final = "the CRC is wrong"
"""The reason why a frame with a wrong checksum proves a finding."""

OTHERS: Final = "(others)"
"""The rule of a row that counts the findings beyond those that a doctor keeps."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sighting:
    """Where a frame was seen.

    number      of the frame in the capture, from 1; 0 for bytes that are no frame, and for TCP's events
    ordinal     among the frames of its connection and direction, from 0; -1 if it is no frame
    type        the command's type number; -1 if it is no frame
    time_ns     ns since the epoch; 0 if unknown
    packet      number of the packet that completed it; 0 if unknown. In findings from tables: the number of
                its file and the packet's offset (see `PACKET_OFFSET_BITS`)
    checksum_cause   why its checksum is wrong, in words; "" if it is right, or if its bytes are not there
    """

    __slots__ = (
        *("checksum_cause", "connection", "number", "ordinal", "packet", "time_ns", "to_broker", "type"),
    )

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
        self.checksum_cause = ""

    @property
    def command(self) -> str | None:
        """The command's name; None if it is no frame."""
        return None if self.ordinal < 0 else command_name(self.type)


class Subject(NamedTuple):
    """The subject of a finding, as far as its rule knows. Topics are full names, ids as on the wire."""

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

    sighting: Sighting
    reason: str

    @property
    def detail(self) -> str:
        """Why the checksum is wrong, if that is the reason. Not in `reason`, as tables lack the bytes."""
        return self.sighting.checksum_cause if self.reason == WRONG_CHECKSUM else ""

    @property
    def text(self) -> str:
        """The reason, and the detail if there is one."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Finding:
    """Something that is wrong. It grows if it happens again to the same subject.

    rule          id of its rule
    connection    where it was found
    first_ns      since when, ns since the epoch; 0 if the source has no times
    last_ns       when it happened last
    count         how often
    explanation   what is wrong, in one sentence; after a mistake, also what the other side did about it
    advice        what to do, in one sentence
    cause         what it has in common with findings of the same cause (`Rule.cause`)
    others        of a finding that stands for several (`folding.fold`): the others
    """

    __slots__ = (
        *("advice", "cause", "certainty", "connection", "count", "evidence", "explanation", "first_ns"),
        *("frames_at_report", "last_ns", "others", "rule", "severity", "subject"),
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
        self.cause: tuple[str, ...] = ()
        self.others: list[Finding] = []
        self.frames_at_report = 0  # frames seen when it was first reported with this certainty

    def add(self, evidence: list[Evidence]) -> bool:
        """Add evidence that the problem lasts or happened again; return whether any of it is new."""
        sightings = [row.sighting for row in self.evidence]
        new_rows = [row for row in evidence if row.sighting not in sightings]
        self.evidence += new_rows
        del self.evidence[MAX_EVIDENCE - 1 : -1]  # the last one stays
        return bool(new_rows)


def make_rows(
    findings: Iterable[Finding], omitted_count: int, cluster: str | None, files: Sequence[str | None]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of findings in a cluster, and one for `omitted_count` others (docs/reports.md).

    `files` are the names of files, by the file numbers in `packet` (see `PACKET_OFFSET_BITS`).
    """
    for finding in findings:
        yield _make_row(finding, cluster, files)
    if omitted_count:
        yield {"cluster": cluster, "rule": OTHERS, "count": omitted_count}


def _make_row(finding: Finding, cluster: str | None, files: Sequence[str | None]) -> dict[str, Any]:
    connection, subject = finding.connection, finding.subject._asdict()
    for name in ("producer_id", "consumer_id", "sequence_id"):
        subject[name] = None if subject[name] is None else to_signed(subject[name])
    evidence = [_make_evidence(row, files) for row in finding.evidence]
    return {
        "cluster": cluster,
        **{"rule": finding.rule, "severity": finding.severity, "certainty": finding.certainty},
        **subject,
        "connection": connection.index,
        **{"client": connection.client or None, "server": connection.server or None},
        **{"first_ns": finding.first_ns or None, "last_ns": finding.last_ns or None},
        "count": finding.count,
        **{"explanation": finding.explanation, "advice": finding.advice},
        "evidence": json.dumps(evidence, separators=(",", ":")),
    }


def _make_evidence(evidence: Evidence, files: Sequence[str | None]) -> dict[str, Any]:
    sighting, reason = evidence
    return {
        "file": files[sighting.packet >> PACKET_OFFSET_BITS],
        "packet_offset": sighting.packet & PACKET_OFFSET_MASK,
        "time_ns": sighting.time_ns or None,
        "connection": sighting.connection.index,
        "to_broker": sighting.to_broker,
        "command": sighting.command,
        "why": reason,
    }
