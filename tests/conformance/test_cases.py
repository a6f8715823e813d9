"""Every case on the embedded broker, whose clock is moved, and on wrong ones, where it must fail."""

from __future__ import annotations

import pytest
from conformance.sieve import find_survived, observe

from pulsarctl_wire.conformance.catalog import CASES

SURVIVED: dict[str, list[str]] = {}
"""Case -> the mutations at which it does not fail, though it should."""


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    checks = observe(case)
    assert find_survived(case, checks) == SURVIVED.get(name, [])
