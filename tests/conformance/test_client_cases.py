"""Every case for clients on pwire's own client, and on wrong ones, where it must fail."""

from __future__ import annotations

import asyncio

import pytest
from conformance.client_sieve import MUTATIONS, mutated
from conformance.inner import InnerStage
from net.scripted import run

from pulsarctl_wire.conformance.catalog import load_client_cases
from pulsarctl_wire.conformance.clients.stage import CONSUME, PRODUCE
from pulsarctl_wire.conformance.runner import make_plan, run_case, run_plan
from pulsarctl_wire.conformance.verdict import FAILED, PASSED, Outcome

CASES = load_client_cases()
OTHERWISE = {"client/connection_closed_once"}
"""Cases of what only others do: whoever types a wrong port is told at once."""


def describe(outcome: Outcome) -> str:
    text = f"{outcome.verdict}: {outcome.reason}{outcome.what}: {outcome.expected}, but {outcome.actual}"
    return "\n".join([text, *outcome.output])


def test_our_client_does_as_cases_expect() -> None:
    plan = make_plan(CASES.values(), frozenset({PRODUCE, CONSUME}))
    outcomes = run(run_plan(plan, InnerStage, lambda outcome: None), within=240)
    for _ in range(2):  # on a busy machine a client of so many may be too late: again, alone
        again = [
            outcome.case
            for outcome in outcomes
            if outcome.verdict != PASSED and outcome.case.id not in OTHERWISE
        ]
        alone = {case.id: run(run_case(case, InnerStage), within=120) for case in again}
        outcomes = [alone.get(outcome.case.id, outcome) for outcome in outcomes]
    failed = {outcome.case.id: describe(outcome) for outcome in outcomes if outcome.verdict != PASSED}
    assert failed.keys() == OTHERWISE, failed


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in OTHERWISE])
def test_cases_fail_on_a_wrong_client(name: str) -> None:
    with mutated(MUTATIONS[name.removeprefix("client/")]()) as make_stage:
        outcome = asyncio.run(run_case(CASES[name], make_stage))
    assert outcome.verdict == FAILED, outcome.reason
