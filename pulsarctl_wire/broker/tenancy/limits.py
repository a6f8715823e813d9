"""How fast something may go: rates, and what measures how far they are exceeded."""

from typing import Final, NamedTuple

from pulsarctl_wire.broker.basics.scheduler import Scheduler

_MANY: Final = 1000
"""Consumers that a `SubscribeLimiter` tracks before it forgets those whose period has ended."""

UNLIMITED: Final = 1 << 31
"""More messages than can be delivered at once."""


class Rate(NamedTuple):
    """Messages and bytes a second; 0 or less: no limit. As many as in `period` seconds may come at once."""

    messages: float
    bytes: float
    period: float = 1

    @property
    def limits(self) -> bool:
        """Whether there is a limit."""
        return self.messages > 0 or self.bytes > 0


class Limiter:
    """Measures how far something is beyond its rate."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left = [0.0, 0.0]
        self._at = scheduler.ticks
        self._full = True

    def room(self, rate: Rate) -> int:
        """How many messages may pass now, if any may."""
        seconds, once = (self._scheduler.ticks - self._at) / 1e9, rate.messages * rate.period
        left = once if self._full else min(self._left[0] + seconds * rate.messages, once)
        return max(int(left), 1) if rate.messages > 0 else UNLIMITED

    def take(self, rate: Rate, messages: int, size: int) -> float:
        """So much has passed. Returns for how many seconds nothing more may pass."""
        seconds, self._at = (self._scheduler.ticks - self._at) / 1e9, self._scheduler.ticks
        wait = 0.0
        for which, (most, taken) in enumerate(zip(rate[:2], (messages, size), strict=True)):
            if most <= 0:
                continue
            once = most * rate.period
            left = once if self._full else min(self._left[which] + seconds * most, once)
            self._left[which] = left = left - taken
            if left < 1:  # until there is room for one more
                wait = max(wait, (1 - left) / most)
        self._full = False
        return wait


Who = tuple[str, str, int]
"""A client's host, and its consumer's name and id."""


class SubscribeLimiter:
    """Counts how often each consumer has subscribed in a period."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._left: dict[Who, tuple[int, int]] = {}  # when its period ends, and how often it may until then

    def takes(self, who: Who, most: int, seconds: int) -> bool:
        """Whether it may subscribe once more, if that is allowed `most` times in so many seconds."""
        now = self._scheduler.ticks
        if len(self._left) > _MANY:
            self._left = {each: found for each, found in self._left.items() if found[0] > now}
        end, left = self._left.get(who, (now, 0))
        if end <= now:
            end, left = now + seconds * 1_000_000_000, most
        self._left[who] = end, max(left - 1, 0)
        return left > 0
