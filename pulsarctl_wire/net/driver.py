"""Runs the pure parts of a session in the event loop: passes the time in, and bytes and events out."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from pulsarctl_wire.net.outbox import Now, Outbox, Warned

MAX_WARNINGS: Final = 10
"""Maximum number of warnings of one kind that are shown."""

LONGEST: Final = 2000
"""Maximum characters of a warning, as it may contain what a peer sent."""


def now() -> Now:
    """Return the current time."""
    return Now(time.perf_counter_ns(), time.time_ns())


class Warnings:
    """Passes warnings on to `say`: a few of each kind, and at the end how many more there were."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()

    def __call__(self, text: str, kind: str = "") -> None:
        """Show the warning `text`. A warning that a peer can cause at will needs a `kind`, which names it."""
        if kind:
            self._counts[kind] += 1
        if self._counts[kind] <= MAX_WARNINGS:
            self._say(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")

    def close(self) -> None:
        """Say how many warnings were not shown."""
        for kind, count in self._counts.items():
            if count > MAX_WARNINGS:
                self._say(f"{kind}: {count - MAX_WARNINGS:,} more times")
        self._counts.clear()


class Driver:
    """Carries out the output of `state`. Callers must call `sync` after each call that changes `state`."""

    def __init__(self, state: Outbox[Any], warn: Warnings) -> None:
        self.warn = warn
        self._state = state
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ticks = 0  # when the timer fires
        self._stopped = False
        self._waiters: list[asyncio.Future[None]] = []

    def write(self, data: bytes) -> None:
        """Send `data`."""
        raise NotImplementedError

    def handle(self, event: Any) -> None:
        """Handle an event of the state other than a warning."""
        raise NotImplementedError

    def sync(self) -> None:
        """Send the state's bytes, handle its events, and set the timer for its next `wake`.

        Also resumes all callers of `wait_for_sync`.
        """
        state = self._state
        if state:  # often it is empty
            for data in state.take_bytes():
                self.write(data)
            for event in state.take_events():
                if isinstance(event, Warned):
                    self.warn(event.text, event.kind)
                else:
                    self.handle(event)
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        ticks = state.wake_at
        if ticks is None or self._stopped or (self._timer is not None and self._timer_ticks <= ticks):
            return  # waking too early does no harm, and costs less than a new timer
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ticks = ticks
        seconds = max(ticks - time.perf_counter_ns(), 0) / 1e9
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._state.wake(now())
        self.sync()

    async def wait_for_sync(self) -> None:
        """Wait until the next `sync`, as something may have changed by then."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def stop_timer(self) -> None:
        """Stop the timer: the state is not woken any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
