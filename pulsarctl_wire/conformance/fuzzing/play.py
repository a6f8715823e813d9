"""Plays a session: sends its steps to a broker on a connection of its own, and has the answers judged."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsarctl_wire.conformance.fuzzing.judge import Judge, Problem
from pulsarctl_wire.conformance.fuzzing.session import Memory, Session, Step, encode
from pulsarctl_wire.errors import SessionError
from pulsarctl_wire.wire.commands import ANSWERED_WITHOUT_ID, NUMBERS, REQUESTS

if TYPE_CHECKING:
    from pulsarctl_wire.conformance.basics.probe import Probe
    from pulsarctl_wire.conformance.basics.target import Target

_SHORT_WAIT: Final = 0.3
"""Seconds to wait for an answer that may never come, as the session has mutations."""

_SHORTEST_WAIT: Final = 0.03
"""Seconds to wait if an earlier answer did not come, or the broker waits for the rest of a frame."""

_DELIVERY: Final = 0.1
"""Seconds to wait for what may never come: a message after FLOW, or the end after an incomplete frame."""


class Exchange(NamedTuple):
    """A step, its bytes without credentials, and the commands that came before the next step."""

    step: Step
    data: bytes
    answers: list[str]


class Play(NamedTuple):
    """What came of a session: its problems and its exchanges."""

    problems: list[Problem]
    exchanges: list[Exchange]


async def play(session: Session, target: Target, patience: float, limit: int) -> Play:
    """Play a session; `patience` are the seconds that an answer may take, `limit` is for `Judge`.

    A broker that cannot be reached is no problem of the session.
    """
    async with target:
        try:
            probe = await target.open_connection()
        except SessionError:
            return Play([], [])
        player = _Player(session, probe, patience, limit)
        try:
            await player.run()
        except (asyncio.TimeoutError, TimeoutError):
            player.report("nothing read", "that the broker reads what is sent", f"not within {patience:g} s")
        return Play(player.judge.problems, player.exchanges)


class _Player:
    def __init__(self, session: Session, probe: Probe, patience: float, limit: int) -> None:
        self.judge = Judge(limit)
        self.exchanges: list[Exchange] = []
        self._session = session
        self._has_waited_in_vain = False
        self._probe = probe
        self._patience = patience
        self._memory = Memory(secrets.token_hex(4), probe.target.credentials)

    async def run(self) -> None:
        """Send all steps, then end."""
        for step in self._session.steps:
            if self._probe.closed.done() or self.judge.offence:
                break
            await self._send(step)
            await self._await_answer(step)
            self._receive()
        if self.exchanges:
            await self._end()
        if self._probe.garbage:
            self.report("undecodable bytes", "frames", self._probe.garbage)

    def report(self, kind: str, expected: str, actual: str, *, is_silence: bool = True) -> None:
        """Add a problem."""
        self.judge.problems.append(Problem(kind, expected, actual, is_silence))

    async def _send(self, step: Step) -> None:
        data = encode(step, self._memory)
        self.exchanges.append(Exchange(step, encode(step, self._memory.mask()), []))
        self.judge.note_sent(data)
        self._probe.write(data)
        await asyncio.wait_for(self._probe.drain(), self._patience)

    async def _await_answer(self, step: Step) -> None:
        number = NUMBERS[step.command]
        request = REQUESTS.get(number)
        answers = ANSWERED_WITHOUT_ID.get(number) if request is None else request.answers
        within = min(self._patience, _SHORT_WAIT) if self._session.mutations else self._patience
        if step.command == "FLOW":
            answers, within = frozenset({NUMBERS["MESSAGE"]}), _DELIVERY if self._memory.has_messages else 0
        if answers is None or (step.command == "ACK" and "request_id" not in step.fields):
            return
        types: frozenset[int] = answers
        if self._has_waited_in_vain or not (self.judge.is_complete or self.judge.offence):
            within = min(within, _SHORTEST_WAIT)
        has_answer = await self._wait(
            lambda: any(frame.type in types for frame in self._probe.frames), within
        )
        self._has_waited_in_vain |= not has_answer and within >= _SHORT_WAIT

    async def _wait(self, holds: Callable[[], object], within: float) -> bool:
        """Wait until something holds or the connection ends; return whether that was in time."""
        probe = self._probe
        return await probe.target.wait(probe, lambda: probe.closed.done() or holds(), within)

    def _receive(self) -> None:
        """Judge the frames that have come."""
        frames = self._probe.frames
        while frames:
            frame = frames.popleft()
            self._memory.receive(frame)
            self.exchanges[-1].answers.append(frame.command)
            self.judge.receive(frame)

    async def _end(self) -> None:
        """Require that the broker refuses what it cannot accept, and serves the connection otherwise."""
        probe, judge, patience = self._probe, self.judge, self._patience
        last = self.exchanges[-1].step.command
        if judge.offence:
            if not await self._wait(lambda: False, patience):
                expected = f"the end of the connection after {judge.offence}"
                self.report("not refused", expected, f"open after {patience:g} s")
        elif judge.is_complete and not probe.closed.done():
            await self._send(Step("PING", {}))
            if not await self._wait(lambda: any(frame.command == "PONG" for frame in probe.frames), patience):
                self.report(
                    "not served", "PONG, or the end of the connection", f"neither within {patience:g} s"
                )
        elif not probe.closed.done():  # the broker waits for the rest of a frame
            await self._wait(lambda: False, _DELIVERY)
        self._receive()
        if not (self._session.mutations or judge.is_refused):
            unanswered = judge.find_unanswered()
            if probe.closed.done():
                actual = f"{probe.protocol.failure}, after {last}"
                self.report("closed", "an open connection: what was sent is valid", actual, is_silence=False)
            elif unanswered is not None:
                judge.problems.append(unanswered)
