"""Coroutines and timers of the core, without an event loop: the caller passes the time in.

A handler that has to wait for storage, a timer or another connection is a coroutine; it awaits `Completion`s.
Everything runs inside the calls of the core's owner, in an order that follows from these calls alone.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Completion(Generic[T]):
    """A result that comes later: `resolve` or `fail` it once, await it any number of times."""

    __slots__ = ("_callbacks", "_scheduler", "done", "error", "value")

    def __init__(self, scheduler: "Scheduler") -> None:
        self._scheduler = scheduler
        self._callbacks: list[Callable[[], None]] = []
        self.done = False
        self.error: Exception | None = None
        self.value: Any = None

    def resolve(self, value: T) -> None:
        """Set the result; does nothing if the completion is done already."""
        if not self.done:
            self.value = value
            self._finish()

    def fail(self, error: Exception) -> None:
        """Set an error instead of a result; does nothing if the completion is done already."""
        if not self.done:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        self.done = True
        self._scheduler.ready.extend(self._callbacks)
        self._callbacks.clear()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the completion is done."""
        if self.done:
            self._scheduler.ready.append(callback)
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            yield self
        if self.error is not None:
            raise self.error
        result: T = self.value
        return result


class Timer:
    """Something to do at a time, unless it is cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call."""
        self.call = None


class Scheduler:
    """The time, and what is to be done now or later.

    `ticks` is in ns of a clock that never goes back, `time_ms` in ms since the epoch. `ready` has the calls
    that `run` makes.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self.time_ms = 0
        self.ready: deque[Callable[[], None]] = deque()
        self.failures: list[Exception] = []
        """Exceptions of coroutines that nobody awaits: bugs."""
        self._timers: list[tuple[int, int, Timer]] = []  # a heap: (when it is due in ticks, number, timer)
        self._count = 0

    def make_completion(self) -> "Completion[Any]":
        """Return a new completion."""
        return Completion(self)

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        """Call `call` in `seconds`; return the timer, which can be cancelled."""
        self._count += 1
        timer = Timer(call)
        heappush(self._timers, (self.ticks + int(seconds * 1e9), self._count, timer))
        return timer

    def sleep(self, seconds: float) -> "Completion[None]":
        """Return a completion that is done in `seconds`."""
        completion: Completion[None] = Completion(self)
        self.call_later(seconds, lambda: completion.resolve(None))
        return completion

    def spawn(self, coroutine: Coroutine[Any, None, T]) -> "Completion[T]":
        """Run a coroutine until it has to wait, and resume it later; return a completion of its result."""
        outcome: Completion[T] = Completion(self)

        def step() -> None:
            try:
                awaited = coroutine.send(None)
            except StopIteration as stop:
                outcome.resolve(stop.value)
            except Exception as error:
                outcome.fail(error)
            else:
                awaited.then(step)

        step()
        return outcome

    def start(self, coroutine: Coroutine[Any, None, None]) -> None:
        """Run a coroutine that nobody awaits."""
        outcome = self.spawn(coroutine)
        outcome.then(lambda: self.failures.append(outcome.error) if outcome.error is not None else None)

    # -- for the owner

    @property
    def wake_at(self) -> int | None:
        """When the next timer is due (ticks)."""
        timers = self._timers
        while timers and timers[0][2].call is None:
            heappop(timers)
        return timers[0][0] if timers else None

    def set_time(self, ticks: int, time_ns: int) -> None:
        """Set the time: ns of a monotonic clock, and ns since the epoch."""
        self.ticks = ticks
        self.time_ms = time_ns // 1_000_000

    def run(self) -> None:
        """Make all calls that are ready or due, until none is left."""
        while True:
            while self.ready:
                self.ready.popleft()()
            due = self.wake_at
            if due is None or due > self.ticks:
                break
            call = heappop(self._timers)[2].call
            if call is not None:
                call()
