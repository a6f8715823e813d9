"""The doctor finds what is wrong in captures of failures, and nothing in those of near misses.

`captures/expected.json` has a row for each: what must be found, what may be, and how it was made. `frame` is
the ordinal of a frame in its connection and direction, from 0; null is no frame, but TCP or other bytes.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from judge import evidence_of, examine, problems

from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.wire.commands import NUMBERS

CAPTURES: Final = Path(__file__).parent / "captures"
EXPECTED: Final[list[dict[str, Any]]] = json.loads((CAPTURES / "expected.json").read_text())


def name_of(expected: dict[str, Any]) -> str:
    """The name of a case: that of its capture."""
    return str(expected["file"]).removesuffix(".pcap.gz")


def commands_of(expected: dict[str, Any], rule: str) -> set[str | None]:
    """The commands that may prove a finding: those in the rule's docstring, and in its row."""
    text = next(each.__doc__ for each in RULES if each.id == rule) or ""
    named: set[str | None] = {each for each in NUMBERS if each in text.replace(",", " ").split()}
    if rule == expected["diagnosis"]:
        named |= {each["command"] for each in expected["evidence"]}
    return named | {None}


@pytest.mark.parametrize("expected", EXPECTED, ids=name_of)
def test_diagnosis(expected: dict[str, Any]) -> None:
    findings = list(examine(CAPTURES / expected["file"]).findings.values())
    assert problems(findings, expected) == []
    assert not {each.rule for each in findings} & set(expected["must_not_report"])
    for each in findings:
        commands = {command for _, _, _, command in evidence_of(each)}
        assert commands <= commands_of(expected, each.rule), each.rule
        assert each.explanation
        assert each.advice


def test_every_capture_has_a_row() -> None:
    assert sorted(each["file"] for each in EXPECTED) == sorted(each.name for each in CAPTURES.glob("*.gz"))
