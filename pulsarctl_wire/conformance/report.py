"""The report of a run, as plain values: what `pwire conform broker -o json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pulsarctl_wire.checks.requirement import LEVELS
from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.verdict import FAILED, VERDICTS, Outcome

Report = dict[str, Any]
"""A report; docs/conformance.md names its keys."""


def make_report(
    about: dict[str, Any], outcomes: Sequence[Outcome], list_frames: Callable[[Outcome], list[str]]
) -> Report:
    """Return the report of a run: values `about` the run and its broker or client, and the cases.

    `list_frames` returns the frames of a case that has failed, a line each.
    """
    counts = Counter((outcome.case.level, outcome.verdict) for outcome in outcomes)
    return {
        **about,
        "counts": {
            level: {verdict: counts[level, verdict] for verdict in VERDICTS}
            for level in LEVELS
            if any(counts[level, verdict] for verdict in VERDICTS)
        },
        "cases": [_describe(outcome, list_frames) for outcome in outcomes],
    }


def _describe(outcome: Outcome, list_frames: Callable[[Outcome], list[str]]) -> dict[str, Any]:
    case = outcome.case
    values: dict[str, Any] = {"id": case.id, "level": case.level, "verdict": outcome.verdict}
    if outcome.reason:
        values["reason"] = outcome.reason
    if outcome.verdict == FAILED:
        texts = {"what": outcome.what, "expected": outcome.expected, "actual": outcome.actual}
        values |= {name: text for name, text in texts.items() if text}
        values |= {"requirement": case.requirement.what, "frames": list_frames(outcome)}
        if outcome.output:
            values["output"] = list(outcome.output)
    return {**values, "seconds": round(outcome.seconds, 3)}


def list_cases(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return cases as plain values: what `--list` prints."""
    return [
        {
            "id": case.id,
            "level": case.level,
            "what": case.paragraphs.get("", ""),
            "expected": case.paragraphs.get("Expected", ""),
            "source": case.paragraphs.get("Source", ""),
            "needs": list(case.needs),
            "without": list(case.without),
            "since": case.since,
        }
        for case in cases
    ]
