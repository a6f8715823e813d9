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
from pulsarctl_wire.render.line import Clock
from pulsarctl_wire.render.text import Paint, clean, cut_line

Lines = Mapping[int, str]
"""Frame number -> how the frame is shown, without colours or line end; it may have several lines."""

MAX_ALIKE: Final = 3
"""How many findings of a rule on a connection are shown to people."""

_LONGEST_WHY: Final = 48  # cells that are kept for the reasons of all frames
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def finding_record(finding: Finding) -> dict[str, Any]:
    """A finding as JSON values: docs/json.md."""
    return {
        "id": finding.rule,
        "certainty": finding.certainty,
        "severity": finding.severity,
        "subject": finding.subject._asdict(),
        "connection": str(finding.connection),
        "first_ns": finding.first_ns or None,
        "last_ns": finding.last_ns or None,
        "count": finding.count,
        "evidence": [
            {
                "number": sighting.number or None,
                "connection": str(sighting.connection),
                "to_broker": sighting.to_broker,
                "ordinal": sighting.ordinal if sighting.ordinal >= 0 else None,
                "command": sighting.command,
                "why": reason,
            }
            for sighting, reason in finding.evidence
        ],
        "explanation": finding.explanation,
        "advice": finding.advice,
    }


def subject_text(finding: Finding) -> str:
    """What a finding is about, in a few words."""
    subject = finding.subject
    named = {
        "subscription": subject.subscription,
        "producer": subject.producer_id,
        "consumer": subject.consumer_id,
        "message": subject.message_id,
        "sequence": subject.sequence_id,
        "uuid": subject.uuid,
    }
    words = [subject.topic or "", *(f"{name}={value}" for name, value in named.items() if value is not None)]
    return clean(" ".join(filter(None, words)))


def first_of_each(findings: Iterable[Finding]) -> tuple[list[Finding], str]:
    """The findings to show, at most `MAX_ALIKE` of a rule on a connection, and a line on the others."""
    alike: Counter[tuple[str, int]] = Counter()
    left_out: Counter[str] = Counter()
    chosen = []
    for finding in findings:
        key = finding.rule, finding.connection.index
        alike[key] += 1
        if alike[key] <= MAX_ALIKE:
            chosen.append(finding)
        else:
            left_out[finding.rule] += 1
    more = ", ".join(f"{count} more {rule}" for rule, count in left_out.items())
    return chosen, f"… {more} (-o json has all)\n" if more else ""


class FindingText:
    """Renders findings for people: sentences are wrapped, frames cut, to `width` cells."""

    def __init__(self, paint: Paint, clock: Clock, width: int | None = None) -> None:
        self._paint = paint
        self._clock = clock
        self._width = width

    def __call__(self, finding: Finding, lines: Lines) -> str:
        """A finding with its evidence; `lines` has the frames that can be shown in full."""
        paint, width = self._paint, self._width
        style = "red" if finding.severity == ERROR else "yellow"
        about = subject_text(finding)
        rows = [f"{paint(style, finding.rule)}  {finding.certainty}{f'  {about}' if about else ''}"]
        rows += self._wrapped("  ", clean(finding.explanation))
        rows.append(paint("dim", f"  {clean(str(finding.connection))}  {self._when(finding)}".rstrip()))
        longest = max((len(clean(reason)) for _, reason in finding.evidence), default=0)
        for each in finding.evidence:
            first, *more = self._line(each, lines).split("\n")
            reason = f"{clean(each.reason):<{min(longest, _LONGEST_WHY)}}"
            rows += [f"    {paint('cyan', reason)}  {first}", *(f"    {line}" for line in more)]
        rows += self._wrapped(f"  {paint('green', '→')} ", clean(finding.advice))
        return "\n".join(row if width is None else cut_line(row, width) for row in rows) + "\n"

    def _wrapped(self, head: str, text: str) -> list[str]:
        """A sentence after `head`, on as many lines as it needs."""
        if self._width is None:
            return [head + text]
        first, *more = wrap(text, max(self._width - 4, 20))
        return [head + first, *(f"    {line}" for line in more)]

    def _when(self, finding: Finding) -> str:
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
        what = sighting.command or "bytes"
        number = sighting.number or "-"
        return f"{number} {self._clock(sighting.time_ns or None)} {sighting.connection.index} {arrow} {what}"


def findings_markdown(findings: Iterable[Finding], lines: Lines) -> str:
    """Findings as Markdown, for a bug report."""
    text = FindingText(Paint(False), Clock("date"))
    parts = []
    chosen, more = first_of_each(findings)
    for finding in chosen:
        head = f"## {finding.rule} ({finding.certainty})\n\n{_escaped(finding.explanation)}\n\n"
        block = text(finding, lines).replace("```", "'''")
        parts.append(f"{head}{_escaped(finding.advice)}\n\n```\n{block}```\n")
    return "\n".join([*parts, *filter(None, [more])])


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in "\\`*_[]<>" else each for each in clean(text))


def sarif(findings: Iterable[Finding], rules: Iterable[type[Rule]], source: str) -> dict[str, Any]:
    """Findings in `source` as a SARIF log. Source: SARIF 2.1.0, OASIS."""
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
    results = [_result(finding, source) for finding in findings]
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _result(finding: Finding, source: str) -> dict[str, Any]:
    level = "error" if finding.severity == ERROR and finding.certainty == CERTAIN else "warning"
    place = {
        "physicalLocation": {"artifactLocation": {"uri": quote(source)}},
        "logicalLocations": [{"fullyQualifiedName": subject_text(finding) or str(finding.connection)}],
    }
    text = f"{finding.explanation} {finding.advice}"
    if finding.first_ns:
        since = datetime.fromtimestamp(finding.first_ns / 1e9, timezone.utc).isoformat()
        text = f"{text} Since {since}."
    return {
        "ruleId": finding.rule,
        "level": level,
        "message": {"text": text},
        "locations": [place],
        "occurrenceCount": finding.count,
        "properties": finding_record(finding),
    }
