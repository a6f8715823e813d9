"""Finds where frames begin and end in one direction of a connection, without decoding them.

It is for callers that forward bytes and need only a few of the frames. `walk` goes from header to header. It
stops where a wanted frame begins, or where a header is incomplete. A frame is accepted by its sizes and
the first byte of its command. If they are invalid, the walker is `lost` for good: the bytes that follow may
be anything, and the caller should forward them unchanged.

    TOTAL_SIZE (4)  COMMAND_SIZE (4)  08 TYPE …      08 is the tag of BaseCommand.type, which comes first

There may be millions of small frames, so the loop over headers exists twice, with the same result: one that
reads single bytes, for the compiler, and one that is fast in interpreted Python.
"""

import struct
from typing import Final

from mypy_extensions import i64, mypyc_attr

from pulsarctl_wire.wire.frame import KEPT_FRAME, MAX_FRAME_SIZE
from pulsarctl_wire.wire.framing.foreign import proxy_header

HEAD: Final = 10
"""Bytes with a frame's sizes and command type; no frame is smaller."""

LARGEST: Final = MAX_FRAME_SIZE
"""The largest TOTAL_SIZE of a wanted frame; larger frames are skipped, unless all frames are wanted."""

_ALL: Final = bytes([2] * 256)
_COMPILED: Final = not __file__.endswith(".py")

_head_at: Final = struct.Struct(">IIBB").unpack_from


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameWalk:
    """The walk over one direction, from its first byte on. It skips a PROXY header before the frames.

    `wanted` are the command types (below 128) to stop at; `want_all` makes it stop at all types. `left` is
    the number of bytes that the current frame still lacks; `frames` counts the frames skipped.
    """

    __slots__ = ("_fresh", "_some", "_stops", "frames", "left", "lost")

    def __init__(self, wanted: frozenset[int]) -> None:
        self._some = self._stops = bytes([kind in wanted for kind in range(256)])
        self.left = 0
        self.frames = 0
        self.lost = False
        self._fresh = True

    def want_all(self, all_of_them: bool) -> None:
        """Stop at every frame from now on; with False, only at wanted frames again."""
        self._stops = _ALL if all_of_them else self._some

    def walk(self, data: bytes, at: int) -> int:
        """Walk over `data` from `at` (where the last walk stopped). Returns the offset where it stops.

        If that is not the end of `data`, a wanted frame, or a frame with an incomplete header, begins there.
        """
        end = len(data)
        if self.lost:
            return end
        if self._fresh and end:
            header, known = proxy_header(data)
            if header and not known:
                return at  # it may be a PROXY header; that needs more bytes
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
        """Size in bytes of the frame at `at`, where a walk stopped; 0 if its header is incomplete."""
        total = int.from_bytes(data[at : at + 4], "big")
        return 4 + total if len(data) - at >= HEAD and total <= KEPT_FRAME else 0


def _by_bytes(data: bytes, start: int, stops: bytes) -> tuple[int, int]:
    """Where to stop, and the number of frames before that; -1 if a header is invalid. For the compiler."""
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
    """The same as `_by_bytes`, but fast in interpreted Python."""
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
