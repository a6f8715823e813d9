"""Compares the broker's answers in a replay with the recorded ones; `replay.py` says which are compared."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, Protocol

from pulsarctl_wire.net.driver import Warnings
from pulsarctl_wire.net.replay.differences import (
    CLOSES,
    Causes,
    Difference,
    Key,
    RequestLog,
    find_differences,
)
from pulsarctl_wire.net.replay.remap import Remap
from pulsarctl_wire.wire.frame import Frame

MAX_WAITING: Final = 128 * 1024 * 1024
"""Maximum bytes of frames that wait for their counterparts; beyond it half are counted and forgotten."""
_COST: Final = 2_048  # bytes of overhead for each waiting frame


class ReplayTotals:
    """The results of a replay: connections, frames sent and unsent, answers compared (`exchanges`).

    Exchanges with one side missing count, too: as `unanswered` if nothing came, as `differ` if nothing was
    recorded. `differ` also counts the connections that ended differently. Differences that follow from
    another one are counted only in `consequences`.
    """

    def __init__(self) -> None:
        self.connections = self.sent = self.unsent = 0
        self.exchanges = self.differ = self.unanswered = self.consequences = 0


class Pairs:
    """Finds counterparts. Frames without one, recorded or received, wait here by their keys."""

    def __init__(self) -> None:
        self._tables: tuple[dict[Key, deque[Frame]], dict[Key, deque[Frame]]] = ({}, {})
        self._bytes = 0

    def take(self, key: Key, frame: Frame, recorded: bool) -> Frame | None:
        """Remove and return the first counterpart of `frame`; if there is none, keep `frame`, return None."""
        table = self._tables[not recorded]
        queue = table.get(key)
        if not queue:
            self._tables[recorded].setdefault(key, deque()).append(frame)
            self._bytes += len(frame.raw) + _COST
            return None
        counterpart = queue.popleft()
        if not queue:
            del table[key]
        self._bytes -= len(counterpart.raw) + _COST
        return counterpart

    def is_waiting(self, key: Key, frame: Frame) -> bool:
        """Return whether a recorded frame still waits; those with equal keys are taken in recorded order."""
        queue = self._tables[True].get(key)
        return queue is not None and queue[0].number <= frame.number

    def pop(self, test: Callable[[Key], bool], recorded: bool) -> list[Frame]:
        """Remove and return the waiting frames whose keys pass `test`, in order."""
        table = self._tables[recorded]
        frames = [frame for key in list(table) if test(key) for frame in table.pop(key)]
        self._bytes -= sum(len(frame.raw) + _COST for frame in frames)
        return sorted(frames, key=lambda frame: frame.number)

    def pop_excess(self, recorded: bool) -> list[Frame]:
        """Remove and return the frames of the older half of the keys, if too many frames wait."""
        if self._bytes <= MAX_WAITING:
            return []
        table = self._tables[recorded]
        half = set(list(table)[: len(table) // 2 + 1])
        return self.pop(lambda key: key in half, recorded)


class PlayedConnection(Protocol):
    """The part of a played connection that the comparison uses.

    `log` has its requests; `has_strayed` says whether the latest difference was in the command.
    """

    log: RequestLog
    has_strayed: bool

    def find_keys(self, difference: Difference) -> tuple[list[Key], list[Key]]:
        """Return what a difference is about, and what cannot be as recorded because of it."""


class Comparison:
    """The shared state of a replay's connections: frames that wait, and differences.

    `connections` has the played connections by their recorded numbers; `remap` learns from the pairs.
    `answer_timeout` is in seconds.
    """

    def __init__(
        self,
        connections: Mapping[int, PlayedConnection | None],
        remap: Remap,
        answer_timeout: float,
        warn: Warnings,
    ) -> None:
        self.remap = remap
        self.answer_timeout = answer_timeout
        self.warn = warn
        self.totals = ReplayTotals()
        self.pairs = Pairs()
        self.lossy: set[int] = set()  # connections of which a part is missing
        self.matched_streams: set[Key] = set()  # streams of which recorded messages came again
        self.ordered_streams: set[Key] = set()  # streams whose messages are matched by their order
        self.causes = Causes()
        self._connections = connections
        self._numbers = count(1)
        self._new_differences: list[Difference] = []  # to be reported after the current step
        self._misses: Counter[Key] = Counter()  # frames that did not come in time, by kind
        self._notification: asyncio.Future[None] | None = None

    def take(self, key: Key, stream: Key | None, frame: Frame, recorded: bool) -> bool:
        """Compare `frame` with its counterpart, and return True; if there is none yet, keep it, return False.

        `stream` is the stream of messages that a MESSAGE belongs to, else None.
        """
        counterpart = self.pairs.take(key, frame, recorded)
        if counterpart is None:
            for is_recorded in (True, False):
                self._count_unpaired(self.pairs.pop_excess(is_recorded), is_recorded)
            return False
        old, new = (frame, counterpart) if recorded else (counterpart, frame)
        is_in_order = stream in self.ordered_streams
        self.remap.learn(old, new, stream if is_in_order else None)
        if stream is not None and not is_in_order:
            self.matched_streams.add(stream)
        self.totals.exchanges += 1
        fields = find_differences(old, new, self.remap)
        connection = self._connections.get(old.connection.index)
        if fields:
            self.add_difference(Difference("differs", old.connection.index, old, new, fields))
            if connection is not None:
                connection.has_strayed = "command" in fields
        if connection is not None and "command" not in fields:
            self.causes.resolve(connection.log.find_dependents(old))
        return True

    def report_unpaired(self, test: Callable[[Key], bool]) -> None:
        """Count and report the frames whose keys pass `test`: they have no counterpart."""
        for recorded in (True, False):
            self._count_unpaired(self.pairs.pop(test, recorded), recorded)

    def _count_unpaired(self, frames: Iterable[Frame], recorded: bool) -> None:
        for frame in frames:
            index = frame.connection.index
            if not recorded and index in self.lossy:
                continue
            self.totals.exchanges += 1
            kind, text = "missing" if recorded else "unexpected", ""
            closed = CLOSES.get(frame.type) if frame.request is None else None
            if closed is not None:
                kind, text = "closed", f"the broker closed this {closed}, but not the recorded one"
                if recorded:
                    text = f"the broker closed the recorded {closed} here, but not this one"
            old, new = (frame, None) if recorded else (None, frame)
            self.add_difference(Difference(kind, index, old, new, text=text))

    def add_difference(self, difference: Difference) -> None:
        """Count a difference; it is reported after the current step."""
        number = next(self._numbers)
        connection = self._connections.get(difference.connection)
        subjects, dependents = ([], []) if connection is None else connection.find_keys(difference)
        cause = self.causes.find_cause(subjects)
        if cause is not None:
            self.totals.consequences += 1
        elif difference.kind == "missing":
            self.totals.unanswered += 1
        else:
            self.totals.differ += 1
        self.causes.fail(dependents, cause or number)
        self._new_differences.append(difference._replace(number=number, cause=cause))

    def notify(self) -> None:
        """Make `wait_for_counterpart` check again, after a frame was received."""
        if self._notification is not None and not self._notification.done():
            self._notification.set_result(None)

    def timeout(self, kind: Key) -> float:
        """Return how long to wait for a frame of this kind, in seconds."""
        return self.answer_timeout * 0.5 ** min(self._misses[kind], 30)

    async def wait_for_counterpart(
        self, key: Key, kind: Key, frame: Frame, closed: "asyncio.Future[None]"
    ) -> bool:
        """Wait for the counterpart of `frame`; return whether it comes in time, before `closed` is done."""
        loop = asyncio.get_running_loop()
        seconds = self.timeout(kind)
        due = loop.time() + seconds
        while self.pairs.is_waiting(key, frame):
            remaining = due - loop.time()
            if remaining <= 0 or closed.done():
                break
            self._notification = loop.create_future()
            await asyncio.wait(
                [self._notification, closed], timeout=remaining, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            return True
        self._misses[kind] += 1
        if self._misses[kind] == 1 and not closed.done():
            self.warn(
                f"connection {frame.connection.index}: {frame.command} (#{frame.number}) did not come within "
                f"{seconds:g} s; going on, with half the timeout for similar frames",
                "frames that did not come",
            )
        return False

    def take_differences(self) -> list[Difference]:
        """Remove and return the differences since the last call."""
        differences, self._new_differences = self._new_differences, []
        return differences
