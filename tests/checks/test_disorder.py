"""What the doctor finds does not depend on the order of packets, and nothing it finds is due to lost ones."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from disorder import Packets, delayed, moved, packets_of, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from judge import examine_packets
from test_diagnoses import CAPTURES, EXPECTED, name_of

from pulsarctl_wire.checks.finding import Subject

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=settings().max_examples // 10)  # for each capture

Found = tuple[str, str, Subject, str]
"""Rule, certainty, subject and connection of a finding."""


def found_in(packets: Packets) -> set[Found]:
    findings = examine_packets(packets).findings.values()
    return {(each.rule, each.certainty, each.subject, str(each.connection)) for each in findings}


@cache
def whole(file: str) -> tuple[Packets, set[Found]]:
    """The packets of a capture, and what is found in them."""
    packets = packets_of(str(CAPTURES / file))
    return packets, found_in(packets)


@pytest.mark.parametrize("how", [moved, delayed, repeated])
@pytest.mark.parametrize("expected", EXPECTED, ids=name_of)
@given(seed=SEEDS, window=st.integers(2, 16))
@FEW
def test_order_changes_nothing(
    expected: dict[str, Any], how: Callable[..., Packets], seed: int, window: int
) -> None:
    packets, found = whole(expected["file"])
    assert found_in(how(packets, random.Random(seed), window)) == found
