"""Rates, and limiters that measure how far they are exceeded."""

from typing import Final, NamedTuple

from pulsarctl_wire.broker.basics.scheduler import Scheduler

_MAX_TRACKED: Final = 1000
"""The consumers that a `SubscribeLimiter` tracks before it forgets those whose period has ended."""

UNLIMITED: Final = 1 << 31
"""More messages than can be delivered at once."""


class Rate(NamedTuple):
    """Messages and bytes per second; 0 or less: no limit. A burst is at most what `period` seconds allow."""

    messages: float
    bytes: float
    period: float = 1

    @property
    def has_limits(self) -> bool:
        """Whether there is a limit."""
        return self.messages > 0 or self.bytes > 0


class Limiter:
    """Measures how far traffic exceeds its rate."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._allowances = [0.0, 0.0]
        self._last_ticks = scheduler.ticks
        self._is_unused = True

    def compute_allowance(self, rate: Rate) -> int:
        """Return how many messages may pass now; at least 1. The limit of bytes counts only in `take`."""
        seconds, burst = (self._scheduler.ticks - self._last_ticks) / 1e9, rate.messages * rate.period
        allowance = burst if self._is_unused else min(self._allowances[0] + seconds * rate.messages, burst)
        return max(int(allowance), 1) if rate.messages > 0 else UNLIMITED

    def take(self, rate: Rate, messages: int, size: int) -> float:
        """Take messages and bytes that pass. Returns the seconds for which no more may pass."""
        seconds, self._last_ticks = (self._scheduler.ticks - self._last_ticks) / 1e9, self._scheduler.ticks
        wait = 0.0
        for number, (limit, amount) in enumerate(zip(rate[:2], (messages, size), strict=True)):
            if limit <= 0:
                continue
            burst = limit * rate.period
            allowance = burst if self._is_unused else min(self._allowances[number] + seconds * limit, burst)
            self._allowances[number] = allowance = allowance - amount
            if allowance < 1:  # until there is room for one more
                wait = max(wait, (1 - allowance) / limit)
        self._is_unused = False
        return wait


Subscriber = tuple[str, str, int]
"""A client's host, and its consumer's name and id."""


class SubscribeLimiter:
    """Counts how often each consumer has subscribed in a period."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._periods: dict[Subscriber, tuple[int, int]] = {}  # end (ticks), subscriptions left

    def admit(self, subscriber: Subscriber, limit: int, seconds: int) -> bool:
        """Count a subscription; return whether it is within `limit` in `seconds`."""
        now = self._scheduler.ticks
        if len(self._periods) > _MAX_TRACKED:
            self._periods = {key: period for key, period in self._periods.items() if period[0] > now}
        end, remaining = self._periods.get(subscriber, (now, 0))
        if end <= now:
            end, remaining = now + seconds * 1_000_000_000, limit
        self._periods[subscriber] = end, max(remaining - 1, 0)
        return remaining > 0
