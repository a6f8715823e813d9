"""`Fuzzer`: plays one session after another, finds out what is to blame for a problem, and reduces it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsarctl_wire.conformance.basics.checking import Mismatch
from pulsarctl_wire.conformance.fuzzing.bystanders import Bystanders
from pulsarctl_wire.conformance.fuzzing.judge import Problem
from pulsarctl_wire.conformance.fuzzing.mutate import make_session
from pulsarctl_wire.conformance.fuzzing.play import Exchange, Play, play
from pulsarctl_wire.conformance.fuzzing.reduce import reduce
from pulsarctl_wire.conformance.fuzzing.session import Session
from pulsarctl_wire.errors import LinkClosed, SessionError

if TYPE_CHECKING:
    from pulsarctl_wire.conformance.basics.target import Target

MAX_FINDINGS: Final = 20
"""Findings after which a run ends: a broker with more is known to be wrong."""

_ATTEMPTS: Final = 3  # to see a problem again
_RETURN: Final = 10.0  # seconds that a broker which is gone has to come back


class Plan(NamedTuple):
    """What to do: how long (in seconds), and how many sessions at once.

    `patience` are the seconds that an answer may take, and `reduction_seconds` those that reducing a problem
    may take.
    """

    make_target: Callable[[], Target]
    seed: int
    seconds: float
    jobs: int = 8
    patience: float = 5.0
    reduction_seconds: float = 60.0
    max_sessions: int = sys.maxsize
    max_findings: int = MAX_FINDINGS


@dataclass
class Finding:
    """Something wrong with the broker: the session that shows it, and what was sent and came back.

    `count` is how often it came. If not `is_repeatable`, it did not come again when sessions ran alone.
    """

    problem: Problem
    session: Session
    exchanges: list[Exchange]
    is_repeatable: bool = True
    count: int = 1

    def explains(self, session: Session, problem: Problem) -> bool:
        """Return whether it explains a session's problem: of the same kind, and the session has its steps."""
        if problem.kind != self.problem.kind:
            return False
        signatures = (step.signature for step in session.steps)
        return all(step.signature in signatures for step in self.session.steps)  # each after the one before


@dataclass
class Tally:
    """What a run has done so far. `oddities`: silences that did not come again."""

    sessions: int = 0
    frames: int = 0
    mutations: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    oddities: int = 0


class Fuzzer:
    """A run; `tally` is what it has done, also after it was cancelled.

    `report` is called with each finding, and `progress` after some sessions.
    """

    def __init__(
        self, plan: Plan, report: Callable[[Finding], object], progress: Callable[[Tally], object]
    ) -> None:
        self.tally = Tally()
        self._plan = plan
        self._report = report
        self._progress = progress
        self._bystanders = Bystanders(plan.make_target, plan.patience)
        self._is_over = False  # `stop` was called, or the broker stays gone or broken: nothing more is tried

    async def run(self) -> None:
        """Fuzz until the time is up. Raises SessionError if the broker cannot be reached at the beginning."""
        plan, tally = self._plan, self.tally
        loop = asyncio.get_running_loop()
        end = loop.time() + plan.seconds
        try:
            await self._bystanders.open()
        except Mismatch as error:
            raise LinkClosed(f"{error}; is this the port of a broker?") from None
        try:
            while loop.time() < end and tally.sessions < plan.max_sessions and not self._must_stop:
                first = tally.sessions
                last = min(first + plan.jobs, plan.max_sessions)
                await self._run_batch([make_session(plan.seed, number) for number in range(first, last)])
                self._progress(tally)
        finally:
            await self._bystanders.close()

    def stop(self) -> None:
        """Begin nothing more. Call it beside `Task.cancel`, which a wait that is just over may swallow."""
        self._is_over = True

    async def _run_batch(self, sessions: Sequence[Session]) -> None:
        """Play sessions at once, then look at each problem alone."""
        plays = await asyncio.gather(*map(self._play, sessions))
        for session, result in zip(sessions, plays, strict=True):
            self.tally.sessions += 1
            self.tally.frames += len(result.exchanges)
            self.tally.mutations.update(session.mutations)
        problem = await self._check_bystanders()
        for session, result in zip(sessions, plays, strict=True):
            if result.problems and not self._must_stop:
                await self._handle(session, result)
        if problem is not None and len(self.tally.findings) < self._plan.max_findings:
            await self._blame(sessions, plays, problem)

    @property
    def _must_stop(self) -> bool:
        """Whether nothing more can be tried, or there are enough findings."""
        return self._is_over or len(self.tally.findings) >= self._plan.max_findings

    async def _play(self, session: Session) -> Play:
        plan = self._plan
        return await play(session, plan.make_target(), plan.patience, self._bystanders.limit)

    # -- bystanders

    async def _check_bystanders(self) -> Problem | None:
        """Return what is wrong with the bystanders; open new ones if anything is."""
        try:
            problem = await self._bystanders.check()
        except (SessionError, Mismatch) as error:
            problem = Problem(
                "new connection not served", "a connection with a producer or a consumer", str(error)
            )
        if problem is not None:
            await self._renew_bystanders()
        return problem

    async def _renew_bystanders(self) -> None:
        """Open new bystanders; a broker that is gone has some time to come back."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RETURN
        while True:
            try:
                await self._bystanders.open()
                return
            except (SessionError, Mismatch):
                if loop.time() > deadline:
                    self._is_over = True
                    return
            await asyncio.sleep(0.2)

    async def _blame(self, sessions: Sequence[Session], plays: Sequence[Play], problem: Problem) -> None:
        """Find the session that does others harm, and make a finding of it.

        If none does so alone, add a doubtful finding: all of the sessions as one.
        """
        if any(self._count_again(session, problem) for session in sessions):
            return
        if not self._is_over and await self._check_bystanders() is not None:
            self._is_over = True  # it stays so, whatever is sent: nothing can be tried any more
        for session in sessions:
            if self._is_over:
                break
            if await self._shows(session, problem.kind):
                await self._reduce(session, problem)
                return
        steps = tuple(step for session in sessions for step in session.steps)
        mutations = tuple(kind for session in sessions for kind in session.mutations)
        exchanges = [exchange for result in plays for exchange in result.exchanges]
        self._add_doubtful(Finding(problem, Session(sessions[0].number, steps, mutations), exchanges, False))

    # -- findings

    async def _handle(self, session: Session, result: Play) -> None:
        """Make a finding of the first problem of a session, a doubtful one if it does not come again."""
        problem = result.problems[0]
        if self._count_again(session, problem):
            return
        for _ in range(_ATTEMPTS):
            if self._is_over:
                break
            if await self._shows(session, problem.kind):
                await self._reduce(session, problem)
                return
        self._add_doubtful(Finding(problem, session, result.exchanges, False))

    def _count_again(self, session: Session, problem: Problem) -> bool:
        """Count a problem again if a finding explains it; return whether one does."""
        for finding in self.tally.findings:
            if finding.explains(session, problem):
                finding.count += 1
                return True
        return False

    def _add_doubtful(self, finding: Finding) -> None:
        """Add a finding that has not come again. Only count a silence: the machine may have been busy.

        If the broker stays gone or broken, a silence is a finding, too.
        """
        if finding.problem.is_silence and not self._is_over:
            self.tally.oddities += 1
        else:
            self._add(finding)

    def _add(self, finding: Finding) -> None:
        self.tally.findings.append(finding)
        self._report(finding)

    async def _try(self, session: Session) -> tuple[Play, list[Problem]]:
        """Play a session alone; return the play, and its problems with that of the bystanders."""
        result = await self._play(session)
        problem = await self._check_bystanders()
        return result, [*result.problems, *([] if problem is None else [problem])]

    async def _shows(self, session: Session, kind: str) -> bool:
        _, problems = await self._try(session)
        return kind in {problem.kind for problem in problems}

    async def _reduce(self, session: Session, problem: Problem) -> None:
        """Reduce a session that shows a problem, and add the finding."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._plan.reduction_seconds
        finding = Finding(problem, session, [])

        async def shows(candidate: Session) -> bool:
            if loop.time() > deadline or self._is_over:
                return False
            result, problems = await self._try(candidate)
            for new_problem in problems:
                if new_problem.kind == problem.kind:
                    finding.problem, finding.session = new_problem, candidate
                    finding.exchanges = result.exchanges
                    return True
            return False

        await reduce(session, shows)
        if not finding.exchanges:
            result, _ = await self._try(session)
            finding.exchanges = result.exchanges
        if not self._count_again(finding.session, finding.problem):
            self._add(finding)
