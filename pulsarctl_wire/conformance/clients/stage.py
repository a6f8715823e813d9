"""`Stage`: the brokers and the runs of a client that a case has, and what cases begin with."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pulsarctl_wire.checks.requirement import MUST
from pulsarctl_wire.conformance.basics.case import case
from pulsarctl_wire.conformance.basics.checking import Inapplicable, Mismatch, equal, require, show
from pulsarctl_wire.conformance.basics.transcript import Transcript
from pulsarctl_wire.conformance.clients.conduct import check_conduct
from pulsarctl_wire.conformance.clients.messages import Backlog
from pulsarctl_wire.conformance.clients.scripted import Bell, ScriptedBroker
from pulsarctl_wire.wire.frame import Frame

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
"""The modes: what a client is asked to do."""

COUNT: Final = 3
"""Messages of most cases."""

SECONDS: Final = {"timeout": 30.0, "keepalive": 30.0}
"""Times of the client, in seconds: how long it waits for an answer, and between two PINGs."""

_MAX_OUTPUT: Final = 200  # lines that are kept for people
_MAX_LINES: Final = 20_000  # of stdout
_MAX_CHARACTERS: Final = 1_000  # of a line

client_case: Final = partial(case, topic="client")
"""The decorator that makes a case for clients of an async function of a `Stage`."""


class Run:
    """A run of the client: its `lines` on stdout, and its exit `code`, None while it runs."""

    def __init__(self, stage: Stage) -> None:
        self.lines: list[str] = []
        self.code: int | None = None
        self._stage = stage

    def add_line(self, line: str) -> None:
        """Keep a line of stdout."""
        if len(self.lines) < _MAX_LINES:
            self.lines.append(line[:_MAX_CHARACTERS].strip())
        self._stage.note(line)
        self._stage.bell.ring()

    def end(self, code: int) -> None:
        """Note the end."""
        self.code = code
        self._stage.note(f"exit code {code}")
        self._stage.bell.ring()

    async def kill(self) -> None:
        """End it at once, with all that it has started."""
        raise NotImplementedError

    async def finish(self, times: int = 1) -> None:
        """Wait until it has ended, for `times` timeouts of the client beyond the stage's `patience`.

        Raises Mismatch.
        """
        extra = times * self._stage.seconds["timeout"]
        await self._stage.until(lambda: self.code is not None, "the end of the client", extra)

    async def succeed(self) -> None:
        """Wait until it has ended; require exit code 0."""
        await self.finish()
        require(self.code == 0, "exit code 0 of the client", self.code)

    async def fail(self, times: int = 1) -> None:
        """Wait until it has ended; require another exit code than 0."""
        await self.finish(times)
        require(self.code != 0, "another exit code of the client than 0", self.code)

    def list_texts(self, texts: Sequence[str]) -> list[str]:
        """Return the lines that are one of these payloads; other lines are not messages."""
        return [line for line in self.lines if line in texts]


class Stage:
    """The brokers of a case, and the runs of the client, which end with it.

    `seconds` are the client's: see `SECONDS`. `output` is what the runs have written, for people.
    """

    patience = 15.0
    """Seconds for what a client does at once: enough for the slow start of a process."""

    def __init__(self, seconds: Mapping[str, float] = SECONDS) -> None:
        self.seconds = seconds
        self.transcript = Transcript()
        self.topic = f"persistent://public/default/conform-{secrets.token_hex(4)}"
        self.bell = Bell()
        self.output: deque[str] = deque(maxlen=_MAX_OUTPUT)
        self.numbers = count()
        self._exit_stack = AsyncExitStack()
        self._brokers: list[ScriptedBroker] = []
        self._runs: list[Run] = []

    async def start(self, mode: str, url: str, number: int) -> Run:
        """Start the client: it is to produce or to consume so many messages."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for run in self._runs:
            await run.kill()
        await self._exit_stack.aclose()
        if kind is None:
            check_conduct(self.transcript, MUST)

    async def find_outage(self) -> str:
        """Return "": more cases can always be judged, as each has brokers of its own."""
        return ""

    def note(self, line: str) -> None:
        """Keep a line for people."""
        self.output.append(line.rstrip()[:_MAX_CHARACTERS])

    # -- what cases begin with

    async def open_broker(self, **connected_as: Any) -> ScriptedBroker:
        """Open a broker; `connected_as` are fields of CONNECTED."""
        broker = ScriptedBroker(tap=self.transcript, numbers=self.numbers, bell=self.bell, **connected_as)
        self._brokers.append(broker)
        return await self._exit_stack.enter_async_context(broker)

    async def produce(self, url: str, number: int = COUNT) -> Run:
        """Have the client produce so many messages to the topic."""
        return await self._start(PRODUCE, url, number)

    async def consume(self, url: str, number: int = COUNT) -> Run:
        """Have the client consume and acknowledge so many messages of the topic."""
        return await self._start(CONSUME, url, number)

    async def _start(self, mode: str, url: str, number: int) -> Run:
        run = await self.start(mode, url, number)
        self._runs.append(run)
        return run

    async def push(self, resource: Any) -> Any:
        """Enter an async context manager, which is left at the end of the case."""
        return await self._exit_stack.enter_async_context(resource)

    # -- waiting

    async def until(self, holds: Callable[[], object], what: str, extra: float = 0.0) -> None:
        """Wait until `holds()` is true; it is called at each ring of `bell`.

        `extra` is how many seconds it may take beyond `patience`. Raises Mismatch after them, or once all
        runs and connections have ended.
        """
        within = self.patience + extra
        try:
            await asyncio.wait_for(self.bell.until(lambda: holds() or self._is_over()), within)
        except (asyncio.TimeoutError, TimeoutError):
            raise Mismatch(what, f"nothing like it within {within:g} s") from None
        if not holds():
            codes = ", ".join(str(run.code) for run in self._runs)
            raise Mismatch(what, f"the client has ended (exit code {codes})")

    def _is_over(self) -> bool:
        """Return whether all runs, and all connections to scripted brokers, have ended."""
        is_open = any(not peer.closed.done() for broker in self._brokers for peer in broker.peers)
        return bool(self._runs) and not is_open and all(run.code is not None for run in self._runs)

    async def settle(self, seconds: float = 0.5) -> None:
        """Give the client time to do what it is going to do."""
        await asyncio.sleep(seconds)

    async def wait_for(self, broker: ScriptedBroker, command: str, number: int = 1) -> list[Frame]:
        """Wait until so many frames of this command have come to a broker; return all that there are."""
        what = command if number == 1 else f"{number} {command}s"
        await self.until(lambda: len(broker.list_frames(command)) >= number, what)
        return broker.list_frames(command)

    async def wait_for_sends(self, broker: ScriptedBroker, number: int = COUNT) -> list[Frame]:
        """Wait for so many SENDs, of one message each. Raises Inapplicable if they come as a batch."""

        def has_all() -> bool:
            return bool(sum(body.num_messages for body in broker.list_bodies("SEND")) >= number)

        await self.until(has_all, f"{number} messages that are sent without waiting for receipts")
        frames = broker.list_frames("SEND")
        if any(frame.body.num_messages > 1 for frame in frames):
            raise Inapplicable("the client sends batches: it is to send each message alone")
        return frames


async def require_feature(stage: Stage, broker: ScriptedBroker, name: str) -> None:
    """Require that the client has set the feature flag `name` in CONNECT; otherwise raise Inapplicable."""
    (frame, *_) = await stage.wait_for(broker, "CONNECT")
    if not getattr(frame.body.feature_flags, name):
        raise Inapplicable(f"the client does not say {name}")


def check_claim(run: Run, broker: ScriptedBroker, number: int = COUNT) -> None:
    """Require that all messages are stored if the run claims so, by exit code 0."""
    total = sum(broker.receipts.values())
    require(run.code != 0 or total >= number, f"receipts for {number} messages, or a failure", total)


async def expect_stored(run: Run, broker: ScriptedBroker, number: int = COUNT) -> None:
    """Wait until a run has ended; require exit code 0, and receipts for exactly `number` messages."""
    await run.succeed()
    equal(sum(broker.receipts.values()), number, "messages that are stored")


async def expect_consumed(stage: Stage, run: Run, backlog: Backlog, texts: Sequence[str]) -> None:
    """Wait until a run has ended; require that it printed these payloads, in order, and acknowledged all."""
    await run.succeed()
    equal(run.list_texts(texts), list(texts), "payloads")
    await expect_acked(stage, backlog, range(len(backlog.entries)))


async def expect_texts(stage: Stage, run: Run, texts: Sequence[str]) -> None:
    """Require that a run prints these payloads, in order; it may repeat some.

    The caller has asked the client for more messages than there are, so that it does not end before.
    """
    goal = set(texts)
    await stage.until(lambda: goal <= set(run.lines), f"the payloads {show(texts)}")
    require(run.code is None, "a client that waits for more messages", f"exit code {run.code}")
    equal(list(dict.fromkeys(run.list_texts(texts))), list(texts), "payloads")


async def expect_acked(stage: Stage, backlog: Backlog, numbers: Sequence[int]) -> None:
    """Require that these entries are acknowledged, and no others."""
    goal = list(numbers)
    try:
        await stage.until(lambda: backlog.acked == goal, "")
    except Mismatch:
        raise Mismatch(f"ACK of the entries {goal}", f"ACK of {backlog.acked}") from None
