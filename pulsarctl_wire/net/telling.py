"""What a relay's lane tells whoever watches, and what there was no room for.

Bytes are told after they were passed on, and never wait: what a `Watcher` does not take is missed, and told
in numbers as soon as there is room again.
"""

import time
from typing import Protocol

from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.walk import FrameWalk


class Watcher(Protocol):
    """Sees what relays passed on, after they did; the bytes themselves if it `wants_bytes`."""

    wants_bytes: bool

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Both legs of a connection stand."""

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> bool:
        """`data` was passed on; gives whether there was room for it."""

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> bool:
        """There was no room for `size` bytes, in which `frames` frames lay or began; whether for this."""

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """The connection has ended."""

    def note(self, text: str) -> None:
        """Something that people should know."""


class Telling:
    """What one lane tells the watcher.

    What could not be told ends where a frame begins, so that the watcher goes on in step. A frame of which
    any part was missed is missed.
    """

    def __init__(self, watcher: Watcher | None, connection: Connection, to_broker: bool) -> None:
        self._watcher = watcher if watcher is not None and watcher.wants_bytes else None
        self._connection = connection
        self._to_broker = to_broker
        self._walk = FrameWalk(frozenset())
        self._tail = b""  # less than a frame's head
        self._behind = False  # the watcher was not told all
        self._missed = self._frames = 0  # bytes; frames that had begun before them and were told

    def carried(self, data: bytes, now: int) -> None:
        """The lane has passed on `data`, at `now` (ns since the epoch)."""
        watcher, walk = self._watcher, self._walk
        if watcher is None:
            return
        frames, torn = walk.frames, walk.left > 0
        left, begun, tail = walk.left, 0, self._tail
        whole = tail + data if tail else data
        self._tail = whole[walk.walk(whole, 0) :]
        if tail:  # of a frame that was not counted yet
            size = 0 if walk.lost else walk.size(whole, 0)
            left, begun = (size - len(tail), 1) if size else (len(data), 0)
        if self._behind:
            frames += begun
            skip = min(left, len(data))
            if skip == len(data) or not self._tell_missed(watcher, skip, frames, now):
                self._missed += len(data)
                return
            data, torn = data[skip:], False
        if not watcher.carried(self._connection, self._to_broker, data, now):
            self._behind, self._missed, self._frames = True, len(data), frames - torn

    def _tell_missed(self, watcher: Watcher, skip: int, frames: int, now: int) -> bool:
        size, lost = self._missed + skip, frames - self._frames
        if not watcher.missed(self._connection, self._to_broker, size, lost, now):
            return False
        self._behind, self._missed = False, 0
        return True

    def anew(self) -> None:
        """Whoever watches has not seen what was told: what is told next begins with a frame."""
        walk = self._walk
        if not self._behind and (walk.left or self._tail):
            self._behind, self._frames = True, walk.frames - (walk.left > 0)

    def finish(self) -> None:
        """Nothing more will be passed on."""
        if self._watcher is not None and self._behind:
            self._tell_missed(self._watcher, 0, self._walk.frames, time.time_ns())
