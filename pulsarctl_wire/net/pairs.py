"""Frames of a recording and of its replay that wait for their counterparts. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Final

from pulsarctl_wire.net.causes import Key
from pulsarctl_wire.wire.frame import Frame

MAX_WAITING: Final = 128 * 1024 * 1024
"""Bytes of frames that wait for their counterparts; of more, half is counted and forgotten."""
_COST: Final = 2_048  # of keeping a frame, beside its bytes


class Pairs:
    """Finds counterparts. What has none so far waits: recorded frames, and those that came, by their keys."""

    def __init__(self) -> None:
        self._tables: tuple[dict[Key, deque[Frame]], dict[Key, deque[Frame]]] = ({}, {})
        self._bytes = 0

    def take(self, key: Key, frame: Frame, recorded: bool) -> Frame | None:
        """The first counterpart of `frame`, which waits no more; None if there is none, and `frame` waits."""
        others = self._tables[not recorded]
        queue = others.get(key)
        if not queue:
            self._tables[recorded].setdefault(key, deque()).append(frame)
            self._bytes += len(frame.raw) + _COST
            return None
        other = queue.popleft()
        if not queue:
            del others[key]
        self._bytes -= len(other.raw) + _COST
        return other

    def waits(self, key: Key, frame: Frame) -> bool:
        """Whether a recorded frame waits; of those under one key the first one recorded is taken first."""
        queue = self._tables[True].get(key)
        return queue is not None and queue[0].number <= frame.number

    def pop(self, wanted: Callable[[Key], bool], recorded: bool) -> list[Frame]:
        """The frames that wait under such keys, in order; they wait no more."""
        table = self._tables[recorded]
        frames = [frame for key in list(table) if wanted(key) for frame in table.pop(key)]
        self._bytes -= sum(len(frame.raw) + _COST for frame in frames)
        return sorted(frames, key=lambda frame: frame.number)

    def excess(self, recorded: bool) -> list[Frame]:
        """Half of what waits, if that is too much; it waits no more."""
        if self._bytes <= MAX_WAITING:
            return []
        table = self._tables[recorded]
        half = set(list(table)[: len(table) // 2 + 1])
        return self.pop(lambda key: key in half, recorded)
