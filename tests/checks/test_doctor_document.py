"""docs/doctor.md has all rules, in their own words, and the bounds of all tables.

After a change of a rule's docstring write its section again:

    PWIRE_REWRITE_GOLDEN=1 pytest tests/checks/test_doctor_document.py
"""

import os
import re
from pathlib import Path
from textwrap import fill
from typing import Final

import pytest

from pulsarctl_wire.checks import conduct, doctor, facts, finding, ledgers, rule
from pulsarctl_wire.checks.registry import RULES, WEAKER
from pulsarctl_wire.checks.rule import CAPTURE, CONNECTION, DEFAULTS, FRAME, SECOND, Rule, read_paragraphs
from pulsarctl_wire.checks.rules import (
    acks,
    answers,
    chunks,
    consumers,
    creation,
    hangups,
    holders,
    liveness,
    lookups,
    owners,
    payloads,
    peers,
)
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "doctor.md"
HEADING: Final = "\n## The rules\n"

RELIES_ON: Final = {
    FRAME: "one frame",
    CONNECTION: "all bytes of its connection",
    CAPTURE: "all bytes of all connections",
}

CAUSE: Final = {
    "client": "client's host",
    "server": "server",
    "topic": "topic",
    "subscription": "subscription",
    "reason": "address",
    "last": "dead connection",
}

BOUNDS: Final = {
    "findings": {doctor.MAX_FINDINGS},
    "frames of a finding": {finding.MAX_EVIDENCE},
    "topics": {facts.MAX_NAMES},
    "subscriptions": {facts.MAX_NAMES},
    "producer names": {facts.MAX_NAMES},
    "connections that hold one producer name or subscription": {facts.MAX_OWNERS},
    "SENDs of all producer names": {facts.MAX_SENDS},
    "SENDs of a topic that were stored last": {facts._MAX_STORED},
    "redelivered, and partly acknowledged, entries of a consumer": {ledgers.MAX_REDELIVERED},
    "unacknowledged entries of all consumers": {facts.MAX_UNACKED},
    "unacknowledged entries of a consumer that are looked at": {acks._MAX_ENTRIES},
    "entries that a consumer got last before its client hung up": {hangups._MAX_ENTRIES},
    "requests of a connection without answer": {MAX_PENDING},
    "PINGs of a side without answer": {liveness._MAX_PINGS},
    "chunked messages": {chunks._MAX_MESSAGES},
    "corrupt SENDs that may be sent again": {payloads._MAX_SENDS},
    "clients that fail again and again, of a rule": {rule._MAX_CLIENTS},
    "servers that answered a TLS handshake, or CONNECT": {peers._MAX_SERVERS},
    "lookups": {lookups._MAX_LOOKUPS},
    "addresses that clients connect to": {lookups._MAX_ADDRESSES},
    "failures of an address": {lookups._MAX_FAILURES},
    "requests for a name or topic that is taken": {creation._MAX_REQUESTS, holders._MAX_REQUESTS},
    "consumers of a connection with an open seek, an epoch, or an awaited message": {
        consumers._MAX_CONSUMERS
    },
    "consumers whose clients may hang up on a message": {hangups._MAX_CONSUMERS},
    "producers and consumers that brokers have closed, and topics that were looked up": {owners._MAX_CLOSED},
    "mistakes on a connection whose outcome is awaited": {conduct.MAX_MISTAKES},
    "kinds of refusals": {answers._MAX_GROUPS},
}


def section_of(rule: type[Rule]) -> str:
    """What the document says about a rule."""
    text = read_paragraphs(rule)
    labelled = "".join(
        f"{fill(f'**{label}:** {text[label]}', 136, break_on_hyphens=False)}\n\n"
        for label in ("Must", "Should", "Observed", "Wire", "Advice", "Source")
        if label in text
    )
    cause = ", ".join(CAUSE[part] for part in rule.cause)
    about = f"{rule.severity} · relies on {RELIES_ON[rule.relies_on]} · one cause: same {cause}"
    head = f"### {rule.id}\n\n{about}\n\n"
    return f"{head}{fill(text[''], 136, break_on_hyphens=False)}\n\n{labelled}"


def test_rules_are_documented_in_their_own_words() -> None:
    head, heading, _ = DOCUMENT.read_text().partition(HEADING)
    written = head + heading + "\n" + "".join(map(section_of, RULES)).rstrip() + "\n"
    if os.environ.get("PWIRE_REWRITE_GOLDEN"):
        DOCUMENT.write_text(written)
    assert DOCUMENT.read_text() == written


def rows(heading: str) -> list[list[str]]:
    section = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return found[2:]


def test_bounds_are_those_of_the_code() -> None:
    found = {what: {int(most.replace(",", ""))} for what, most, _ in rows("What is remembered")}
    assert found == BOUNDS


def test_thresholds_are_the_defaults() -> None:
    assert [default for _, default, _ in rows("Thresholds")] == [f"{each // SECOND} s" for each in DEFAULTS]


def test_weaker_rules_are_those_of_the_code() -> None:
    assert [(one.strip("`"), other.strip("`")) for one, other in rows("What is not judged")] == [
        *WEAKER.items()
    ]


@pytest.mark.parametrize("path", sorted(DOCUMENT.parent.glob("*.md")), ids=lambda path: path.name)
def test_rules_that_are_named_exist(path: Path) -> None:
    ids = {rule.id for rule in RULES}
    named = set(re.findall(r"doctor\.md#(\w+)\)", path.read_text())) | set(
        re.findall(r"pwire explain ([a-z]+_[a-z_]+)", path.read_text())
    )
    assert named <= ids
