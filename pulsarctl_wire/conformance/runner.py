"""Runs cases against a broker or a client, many at once: most of their time is waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pulsarctl_wire.conformance.basics.case import Case
from pulsarctl_wire.conformance.basics.checking import Inapplicable, Mismatch
from pulsarctl_wire.conformance.basics.transcript import Transcript
from pulsarctl_wire.conformance.verdict import (
    ERROR,
    FAILED,
    NOT_APPLICABLE,
    PASSED,
    Outcome,
    Release,
    find_obstacle,
)
from pulsarctl_wire.errors import WireError

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

JOBS: Final = 16
"""Cases that run at once, by default."""

TIME_LIMIT: Final = 60.0
"""Seconds that a case may take, in addition to the wait that it declares (`Case.waits`)."""


class Subject(Protocol):
    """What a case runs on, a new one for each case: a broker (`Target`) or a client (`Stage`)."""

    @property
    def transcript(self) -> Transcript:
        """All bytes of the case."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Times that are set at the broker or client, in seconds, by name."""

    @property
    def output(self) -> Sequence[str]:
        """What the client has written, a line each."""

    async def __aenter__(self) -> Self:
        """Begin."""

    async def __aexit__(self, *_: Any) -> None:
        """End; raise Mismatch if something is found in the end."""

    async def find_outage(self) -> str:
        """Return why no more cases can be judged; "" if they can be."""


class Plan(NamedTuple):
    """Cases to run, those that cannot be judged, with the reason, and how many may run at once."""

    cases: Sequence[Case]
    obstacles: Sequence[Outcome]
    jobs: int = JOBS


def make_plan(
    cases: Iterable[Case],
    settings: frozenset[str],
    names: Iterable[str] = (),
    jobs: int = JOBS,
    release: Release | None = None,
) -> Plan:
    """Return the plan for a broker of a release, with `settings` as in `find_obstacle`.

    `names` are the ids that the user asks for.
    """
    ready, obstacles = [], []
    for case in cases:
        reason = find_obstacle(case, settings, case.id in names, release)
        if reason:
            obstacles.append(Outcome(case, NOT_APPLICABLE, reason=reason))
        else:
            ready.append(case)
    return Plan(ready, obstacles, jobs)


async def run_plan(
    plan: Plan, make_target: Callable[[], Subject], report: Callable[[Outcome], object]
) -> list[Outcome]:
    """Run a plan; return the outcome of each case, in the order of the plan, and call `report` with each.

    Cases that wait long begin first. Cases that run alone come last, one after the other.
    """
    outcomes = {outcome.case.id: outcome for outcome in plan.obstacles}
    seconds = make_target().seconds

    async def run(case: Case) -> None:
        outcomes[case.id] = outcome = await run_case(case, make_target)
        report(outcome)

    def rank(case: Case) -> float:
        return -_get_wait(case, seconds)

    # popped from its end: the longest waits first, otherwise in the order of the plan
    queue = sorted((case for case in plan.cases if not case.alone), key=rank)[::-1]

    async def work() -> None:
        while queue:
            await run(queue.pop())

    for outcome in plan.obstacles:
        report(outcome)
    await asyncio.gather(*(work() for _ in range(plan.jobs)))
    for case in plan.cases:
        if case.alone:
            await run(case)
    order = [*plan.cases, *(outcome.case for outcome in plan.obstacles)]
    return [outcomes[case.id] for case in order]


def _get_wait(case: Case, seconds: Mapping[str, float]) -> float:
    """Return how many seconds a case waits, as it declares; 0.0 if it declares nothing."""
    if case.waits is None:
        return 0.0
    name, factor = case.waits
    return factor * seconds[name]


async def run_case(case: Case, make_target: Callable[[], Subject]) -> Outcome:
    """Run a case on a target of its own; return its outcome."""
    target, began = make_target(), time.perf_counter()

    def make_outcome(verdict: str, reason: str = "", mismatch: Mismatch | None = None) -> Outcome:
        texts = ("", "", "") if mismatch is None else (mismatch.what, mismatch.expected, mismatch.actual)
        return Outcome(
            case, verdict, time.perf_counter() - began, reason, *texts, target.transcript, list(target.output)
        )

    try:
        async with target:
            await asyncio.wait_for(case.run(target), TIME_LIMIT + _get_wait(case, target.seconds))
    except Mismatch as error:
        reason = await make_target().find_outage()  # a broker that is gone is not judged
        return make_outcome(ERROR, reason) if reason else make_outcome(FAILED, mismatch=error)
    except Inapplicable as error:
        return make_outcome(NOT_APPLICABLE, str(error))
    except WireError as error:
        return make_outcome(ERROR, str(error))
    except (asyncio.TimeoutError, TimeoutError):
        return make_outcome(ERROR, "it has taken too long")
    except Exception as error:  # a bug in the case, such as a frame that it does not foresee
        return make_outcome(ERROR, f"{type(error).__name__}: {error}")
    return make_outcome(PASSED)
