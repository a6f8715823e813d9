"""Every case for clients on pwire's own client."""

from __future__ import annotations

import pytest
from conformance.inner import InnerStage
from net.scripted import run

from pulsarctl_wire.conformance.catalog import load_client_cases
from pulsarctl_wire.conformance.runner import run_case
from pulsarctl_wire.conformance.verdict import PASSED

CASES = load_client_cases()


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    outcome = run(run_case(CASES[name], InnerStage))
    assert outcome.verdict == PASSED, (outcome.reason, outcome.expected, outcome.actual, outcome.output)
