"""Findings as text, Markdown, JSON records and SARIF."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from textwrap import wrap
from typing import Any, Final
from urllib.parse import quote

from pulsarctl_wire import __version__
from pulsarctl_wire.checks.finding import CERTAIN, ERROR, Evidence, Finding
from pulsarctl_wire.checks.rule import Rule, read_paragraphs
from pulsarctl_wire.record import FindPacket, find_no_packet
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Paint, clean, cut_line

Lines = Mapping[int, str]
"""Frame number -> the frame as text, without colours or line end; it may have several lines."""

MAX_ALIKE: Final = 3
"""How many findings of a rule on a connection are shown to people."""

_MAX_REASON_WIDTH: Final = 48  # cells to which reasons are padded at most, so that frames align
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def finding_record(finding: Finding, find_packet: FindPacket = find_no_packet) -> dict[str, Any]:
    """Convert a finding to JSON values: docs/json.md."""
    return {
        "id": finding.rule,
        "certainty": finding.certainty,
        "severity": finding.severity,
        "subject": finding.subject._asdict(),
        "connection": str(finding.connection),
        "first_ns": finding.first_ns or None,
        "last_ns": finding.last_ns or None,
        "count": finding.count,
        "folded": 1 + len(finding.others),
        "evidence": [_evidence_record(evidence, find_packet) for evidence in finding.evidence],
        "explanation": finding.explanation,
        "advice": finding.advice,
    }


def _evidence_record(evidence: Evidence, find_packet: FindPacket) -> dict[str, Any]:
    sighting = evidence.sighting
    file, number = find_packet(sighting.packet)
    return {
        "number": sighting.number or None,
        "wireshark": number,
        "file": file,
        "connection": str(sighting.connection),
        "to_broker": sighting.to_broker,
        "ordinal": sighting.ordinal if sighting.ordinal >= 0 else None,
        "command": sighting.command,
        "why": evidence.text,
    }


def subject_text(finding: Finding) -> str:
    """Describe what a finding is about, in a few words."""
    subject = finding.subject
    values = {
        "subscription": subject.subscription,
        "producer": subject.producer_id,
        "consumer": subject.consumer_id,
        "message": subject.message_id,
        "sequence": subject.sequence_id,
        "uuid": subject.uuid,
    }
    words = [subject.topic or "", *(f"{name}={value}" for name, value in values.items() if value is not None)]
    return clean(" ".join(filter(None, words)))


def limit_findings(findings: Iterable[Finding]) -> tuple[list[Finding], str]:
    """Choose at most `MAX_ALIKE` findings of a rule on a connection, and make a line on the others."""
    counts: Counter[tuple[str, int]] = Counter()
    left_out: Counter[str] = Counter()
    selection = []
    for finding in findings:
        key = finding.rule, finding.connection.index
        counts[key] += 1
        if counts[key] <= MAX_ALIKE:
            selection.append(finding)
        else:
            left_out[finding.rule] += 1
    rest = ", ".join(f"{count} more {rule}" for rule, count in left_out.items())
    return selection, f"… {rest} (pwire doctor --all shows them)\n" if rest else ""


class FindingText:
    """A renderer of findings for people: sentences are wrapped and frames cut to `width` cells."""

    def __init__(self, paint: Paint, clock: TimeFormatter, width: int | None = None) -> None:
        self._paint = paint
        self._clock = clock
        self._width = width

    def __call__(self, finding: Finding, lines: Lines) -> str:
        """Render a finding with its evidence; `lines` has the frames that can be shown in full."""
        paint, width = self._paint, self._width
        style = "red" if finding.severity == ERROR else "yellow"
        subject = subject_text(finding)
        rows = [f"{paint(style, finding.rule)}  {finding.certainty}{f'  {subject}' if subject else ''}"]
        rows += self._wrap("  ", clean(finding.explanation))
        rows.append(paint("dim", f"  {clean(str(finding.connection))}  {self._time_text(finding)}".rstrip()))
        if finding.others:
            rows.append(paint("dim", f"  {_describe_others(finding)}"))
        longest = max((len(clean(reason)) for _, reason in finding.evidence), default=0)
        for evidence in finding.evidence:
            first, *others = self._line(evidence, lines).split("\n")
            reason = f"{clean(evidence.reason):<{min(longest, _MAX_REASON_WIDTH)}}"
            rows.append(f"    {paint('cyan', reason)}  {first}")
            if evidence.detail:
                rows.append(paint("dim", f"      {evidence.detail}"))
            rows += [f"    {line}" for line in others]
        rows += self._wrap(f"  {paint('green', '→')} ", clean(finding.advice))
        return "\n".join(row if width is None else cut_line(row, width) for row in rows) + "\n"

    def _wrap(self, head: str, text: str) -> list[str]:
        """Wrap a sentence after `head`, on as many lines as it needs."""
        if self._width is None:
            return [head + text]
        first, *others = wrap(text, max(self._width - 4, 20))
        return [head + first, *(f"    {line}" for line in others)]

    def _time_text(self, finding: Finding) -> str:
        if not finding.first_ns:
            return ""
        text = f"since {self._clock(finding.first_ns)}"
        if finding.count > 1:
            text += f", {finding.count} times, the last at {self._clock(finding.last_ns)}"
        return text

    def _line(self, evidence: Evidence, lines: Lines) -> str:
        sighting = evidence.sighting
        if sighting.number in lines:
            return lines[sighting.number]
        arrow = "→" if sighting.to_broker else "←"
        title = sighting.command or "bytes"
        number = sighting.number or "-"
        return f"{number} {self._clock(sighting.time_ns or None)} {sighting.connection.index} {arrow} {title}"


def _describe_others(finding: Finding) -> str:
    """Describe the findings for which one stands."""
    findings = [finding, *finding.others]
    text = f"stands for {len(findings)} findings of the same cause"
    connections = {alike.connection.index for alike in findings}
    topics = {alike.subject.topic for alike in findings}
    if len(connections) > 1:
        text += f", on {len(connections)} connections"
    if len(topics) > 1:
        text += f", of {len(topics)} topics"
    return f"{text} (pwire doctor --all shows each)"


def findings_markdown(findings: Iterable[Finding], note: str, lines: Lines) -> str:
    """Render findings as Markdown, for a bug report; `note` is about those left out, if any."""
    text = FindingText(Paint(False), TimeFormatter("date"))
    parts = []
    for finding in findings:
        head = f"## {finding.rule} ({finding.certainty})\n\n{_escape(finding.explanation)}\n\n"
        block = text(finding, lines).replace("```", "'''")
        parts.append(f"{head}{_escape(finding.advice)}\n\n```\n{block}```\n")
    return "\n".join([*parts, *filter(None, [note])])


def _escape(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_[]<>" else character for character in clean(text))


def sarif(
    findings: Iterable[Finding], rules: Iterable[type[Rule]], source: str, find_packet: FindPacket
) -> dict[str, Any]:
    """Render findings in `source` as a SARIF log. Source: SARIF 2.1.0, OASIS."""
    rows = [
        {
            "id": rule.id,
            "shortDescription": {"text": read_paragraphs(rule)[""]},
            "fullDescription": {"text": read_paragraphs(rule)["Wire"]},
            "help": {"text": read_paragraphs(rule)["Advice"]},
        }
        for rule in rules
    ]
    driver = {"name": "pwire", "semanticVersion": __version__, "rules": rows}
    results = [_result(finding, source, find_packet) for finding in findings]
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding, source: str, find_packet: FindPacket) -> dict[str, Any]:
    level = "error" if finding.severity == ERROR and finding.certainty == CERTAIN else "warning"
    place = {
        "physicalLocation": {"artifactLocation": {"uri": quote(source)}},
        "logicalLocations": [{"fullyQualifiedName": subject_text(finding) or str(finding.connection)}],
    }
    text = f"{finding.explanation} {finding.advice}"
    if finding.first_ns:
        start = datetime.fromtimestamp(finding.first_ns / 1e9, timezone.utc).isoformat()
        text = f"{text} Since {start}."
    return {
        "ruleId": finding.rule,
        "level": level,
        "message": {"text": text},
        "locations": [place],
        "occurrenceCount": finding.count,
        "properties": finding_record(finding, find_packet),
    }
