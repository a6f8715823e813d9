"""Where frames begin and end in one direction of a connection, without decoding them.

For those who pass bytes on and are interested in few of them: `walk` goes from header to header, and stops
where a frame begins that is wanted, or a header that is not all there. A frame is believed by its sizes and
by the first byte of its command; where they make no sense the walker is `lost`, for good: what follows may
be anything, and is to be passed on as it is.

    TOTAL_SIZE (4)  COMMAND_SIZE (4)  08 TYPE …      08 is the tag of BaseCommand.type, which comes first

Small frames come by the million, so that there are two ways from header to header, for the same result: one
for the compiler, by single bytes, and one that is quick where nothing was compiled.
"""

import struct
from typing import Final

from mypy_extensions import i64, mypyc_attr

from pulsarctl_wire.wire.foreign import proxy_header
from pulsarctl_wire.wire.frame import KEPT_FRAME, MAX_FRAME_SIZE

HEAD: Final = 10
"""Bytes that tell a frame's size and its command; no frame is smaller."""

LARGEST: Final = MAX_FRAME_SIZE
"""TOTAL_SIZE of a wanted frame; larger ones are passed over unless all are wanted."""

_ALL: Final = bytes([2] * 256)
_COMPILED: Final = not __file__.endswith(".py")

_head_at: Final = struct.Struct(">IIBB").unpack_from


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameWalk:
    """The walk over one direction, from its first byte on; a PROXY header before the frames is passed over.

    `wanted` are the command types (below 128) to stop at; `want_all` makes it all of them. `left` are the
    bytes to come of the frame that has begun, `frames` counts those that were passed over.
    """

    __slots__ = ("_fresh", "_some", "_stops", "frames", "left", "lost")

    def __init__(self, wanted: frozenset[int]) -> None:
        self._some = self._stops = bytes([kind in wanted for kind in range(256)])
        self.left = 0
        self.frames = 0
        self.lost = False
        self._fresh = True

    def want_all(self, all_of_them: bool) -> None:
        """Stop at every frame from now on, or again only at those that are wanted."""
        self._stops = _ALL if all_of_them else self._some

    def walk(self, data: bytes, at: int) -> int:
        """How far from `at` on `data` (from where the last walk ended) need not be looked at.

        Short of its end, a frame begins there: a wanted one, or one whose head is not there as a whole.
        """
        end = len(data)
        if self.lost:
            return end
        if self._fresh and end:
            header, known = proxy_header(data)
            if header and not known:
                return at  # it may be one, when there is more
            self._fresh = False
            self.left = header
        at += self.left
        stop, frames = _by_bytes(data, at, self._stops) if _COMPILED else _by_heads(data, at, self._stops)
        self.frames += frames
        if stop < 0 or (stop < end and data[stop] > KEPT_FRAME >> 24):
            self.lost = True
            self.left = 0
            return end
        self.left = max(stop - end, 0)
        return min(stop, end)

    @staticmethod
    def size(data: bytes, at: int) -> int:
        """Bytes of the frame that begins at `at`, where a walk stopped; 0 if its head is not all there."""
        total = int.from_bytes(data[at : at + 4], "big")
        return 4 + total if len(data) - at >= HEAD and total <= KEPT_FRAME else 0


def _by_bytes(data: bytes, start: int, stops: bytes) -> tuple[int, int]:
    """Where to stop, and the frames before it; -1 where there is no frame."""
    end: i64 = len(data)
    at: i64 = start
    frames: i64 = 0
    while end - at >= HEAD:
        total: i64 = data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]
        size: i64 = data[at + 4] << 24 | data[at + 5] << 16 | data[at + 6] << 8 | data[at + 7]
        if data[at + 8] != 8 or size < 2 or size + 4 > total or total > KEPT_FRAME:
            return -1, int(frames)
        stop: i64 = stops[data[at + 9]]
        if stop == 2 or (stop and total <= LARGEST):
            break
        frames += 1
        at += 4 + total
    return int(at), int(frames)


def _by_heads(data: bytes, at: int, stops: bytes) -> tuple[int, int]:
    """The same."""
    end = len(data)
    frames = 0
    while end - at >= HEAD:
        total, size, tag, kind = _head_at(data, at)
        if tag != 8 or size < 2 or size + 4 > total or total > KEPT_FRAME:
            return -1, frames
        stop = stops[kind]
        if stop == 2 or (stop and total <= LARGEST):
            break
        frames += 1
        at += 4 + total
    return at, frames
