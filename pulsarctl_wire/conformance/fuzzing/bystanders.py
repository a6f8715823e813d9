"""`Bystanders`: connections that do nothing wrong, and must be served whatever is sent on others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.conformance.basics.checking import Mismatch, equal
from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.fuzzing.judge import Problem
from pulsarctl_wire.errors import RequestTimeout, SessionError
from pulsarctl_wire.wire.frame import FRAME_PADDING, MAX_MESSAGE_SIZE

if TYPE_CHECKING:
    from pulsarctl_wire.conformance.basics.target import Target

_ROUNDS: Final = 500
"""Checks after which new connections take over, so that their transcripts stay small."""


class Bystanders:
    """A connection that only sends PING, a producer, and its consumer.

    `limit` is the largest frame that the broker accepts, in bytes; `patience` are the seconds that an answer
    may take.
    """

    def __init__(self, make_target: Callable[[], Target], patience: float) -> None:
        self.limit = MAX_MESSAGE_SIZE + FRAME_PADDING
        self._make_target = make_target
        self._patience = patience
        self._target: Target | None = None
        self._pinger: Probe
        self._producer: Probe
        self._consumer: Probe
        self._rounds = 0

    async def open(self) -> None:
        """Close earlier connections, and open new ones. Raises SessionError, Mismatch."""
        await self.close()
        try:
            await asyncio.wait_for(self._open(), 2 * self._patience)
        except (asyncio.TimeoutError, TimeoutError):
            raise Mismatch("a producer and a consumer", f"none within {2 * self._patience:g} s") from None

    async def _open(self) -> None:
        target = self._target = self._make_target()
        self._pinger = await target.open_connection()
        body = await self._pinger.connect()
        if body.max_message_size > 0:
            self.limit = body.max_message_size + FRAME_PADDING
        topic = target.topic()
        self._consumer = await target.subscribe(topic, permits=2 * _ROUNDS, durable=False)
        self._producer = await target.produce(topic)
        self._rounds = 0

    async def close(self) -> None:
        """Close the connections."""
        if self._target is not None:
            await self._target.__aexit__()
            self._target = None

    async def check(self) -> Problem | None:
        """Return what is wrong, if anything is. Raises SessionError, Mismatch, as `open` does."""
        if self._rounds == _ROUNDS:
            await self.open()
        self._rounds += 1
        checks = {
            "bystander not served": self._check_pinger,
            "new connection not served": self._check_new,
            "other topic not served": self._check_messages,
        }
        for kind, check in checks.items():
            problem = await self._find_problem(kind, check)
            if problem is not None:
                return problem
        return None

    async def _find_problem(self, kind: str, check: Callable[[], Awaitable[None]]) -> Problem | None:
        try:
            await asyncio.wait_for(check(), 2 * self._patience)
        except (asyncio.TimeoutError, TimeoutError):
            return Problem(kind, "an answer", f"none within {2 * self._patience:g} s", True)
        except Mismatch as error:
            has_ended = any(probe.closed.done() for probe in (self._pinger, self._producer, self._consumer))
            is_silence = not has_ended and "within" in error.actual  # a probe has waited in vain
            return Problem(kind, error.expected, error.actual, is_silence)
        except RequestTimeout as error:
            return Problem(kind, "a connection", str(error), True)
        except SessionError as error:
            return Problem("broker gone", "a connection", str(error))
        return None

    async def _check_pinger(self) -> None:
        await self._expect_pong(self._pinger)

    async def _expect_pong(self, probe: Probe) -> None:
        probe.command("PING")
        await probe.expect("PONG", within=self._patience)

    async def _check_new(self) -> None:
        async with self._make_target() as target:
            probe = await target.open_connection()
            await probe.connect()
            await self._expect_pong(probe)

    async def _check_messages(self) -> None:
        """Publish two messages: each has a receipt and comes once, in order."""
        patience, first = self._patience, 2 * self._rounds
        numbers = range(first, first + 2)
        for number in numbers:
            self._producer.publish(number, b"%d" % number)
        for number in numbers:
            await self._producer.expect("SEND_RECEIPT", within=patience, sequence_id=number)
        for number in numbers:
            message = await self._consumer.expect("MESSAGE", within=patience)
            equal(message.payload, b"%d" % number, "payload of MESSAGE")
            self._consumer.ack(message.body.message_id)
        await self._expect_pong(self._producer)
        await self._expect_pong(self._consumer)
