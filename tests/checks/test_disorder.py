"""What the doctor finds does not depend on the order of packets, and nothing it finds is due to lost ones."""

import random
from collections.abc import Callable, Container, Iterable
from functools import cache
from typing import Any

import pytest
from disorder import Packets, delayed, dropped, exchanged, has_hole, moved, packets_of, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import examine_packets
from test_diagnoses import CAPTURES, EXPECTED, name_of

from pulsarctl_wire.checks.facts import parse_host
from pulsarctl_wire.checks.finding import CERTAIN, Finding, Subject
from pulsarctl_wire.checks.registry import RULES, WEAKER

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=settings().max_examples // 10)  # for each capture

Found = tuple[str, str, Subject, str]
"""Rule, certainty, subject and connection of a finding."""


def found_in(packets: Packets) -> list[Finding]:
    return list(examine_packets(packets).findings.values())


def keys(findings: Iterable[Finding]) -> set[Found]:
    return {(each.rule, each.certainty, each.subject, str(each.connection)) for each in findings}


@cache
def whole(file: str) -> tuple[Packets, list[Finding]]:
    """The packets of a capture, and what is found in them."""
    packets = packets_of(str(CAPTURES / file))
    return packets, found_in(packets)


@pytest.mark.parametrize(
    "how", [moved, *(pytest.param(each, marks=pytest.mark.slow) for each in (delayed, exchanged, repeated))]
)
@pytest.mark.parametrize("expected", EXPECTED, ids=name_of)
@given(seed=SEEDS, window=st.integers(2, 16))
@FEW
def test_order_changes_nothing(
    expected: dict[str, Any], how: Callable[..., Packets], seed: int, window: int
) -> None:
    packets, found = whole(expected["file"])
    assert keys(found_in(how(packets, random.Random(seed), window))) == keys(found)


def says(finding: Finding, other: Finding) -> bool:
    """Whether a finding where packets are missing says no more than another one of the whole capture.

    What both know of the subject must be the same. Attempts of a client are reported where the first of them
    was seen, and refused lookups with the topic of the first.
    """
    if finding.rule not in (other.rule, WEAKER.get(other.rule)):
        return False
    if finding.certainty == CERTAIN and other.certainty != CERTAIN:
        return False
    mine, its = finding.connection, other.connection
    if (parse_host(mine.client), mine.server) != (parse_host(its.client), its.server):
        return False
    pairs = zip(Subject._fields, finding.subject, other.subject, strict=True)
    differing = {field for field, one, two in pairs if one != two and None not in (one, two)}
    return differing <= ({"topic"} if finding.rule == "lookup_throttled" else set())


def false_in(packets: Packets, found: list[Finding]) -> set[Found]:
    """Which findings in these packets are not true of the whole capture."""
    return keys(each for each in found_in(packets) if not any(says(each, other) for other in found))


@pytest.mark.parametrize("expected", EXPECTED, ids=name_of)
@given(seed=SEEDS)
@FEW
def test_no_finding_is_due_to_missing_packets(expected: dict[str, Any], seed: int) -> None:
    packets, found = whole(expected["file"])
    left = dropped(packets, random.Random(seed))
    if has_hole(left):
        assert false_in(left, found) == set()


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("03-near-large-response", [12, 14, 16]),  # what came after the large frame
        ("05-corrupt-not-resent", [15, 17, 20, 22]),  # an answer, before anything else is seen
        ("22-broker-frozen", range(26, 33)),  # PONG, and the end of another connection
        ("25-near-chunks-resent", [78]),  # a chunk, and nothing else happens
        ("25-near-chunks-resent", range(66, 79)),  # the first packets of a connection
        ("36-undecodable-metadata-lost", range(27, 40)),  # the end of one connection, a hole in another
    ],
)
def test_no_finding_is_due_to_these_missing_packets(name: str, missing: Container[int]) -> None:
    packets, found = whole(f"{name}.pcap.gz")
    left = [packet for number, packet in enumerate(packets, 1) if number not in missing]
    assert has_hole(left)
    assert false_in(left, found) == set()


def test_weaker_rules_are_rules() -> None:
    assert {*WEAKER, *WEAKER.values()} <= {each.id for each in RULES}
