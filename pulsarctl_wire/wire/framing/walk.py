"""Where frames begin and end in one direction of a connection, found without decoding them.

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

from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, MAX_KEPT_FRAME
from pulsarctl_wire.wire.framing.foreign import proxy_header

HEAD: Final = 10
"""Bytes with a frame's sizes and command type; no frame is smaller."""

MAX_WANTED: Final = MAX_FRAME_SIZE
"""The largest TOTAL_SIZE of a wanted frame; larger frames are skipped, unless all frames are wanted."""

_STOP_AT_ALL: Final = bytes([2] * 256)  # by type: 0 skip, 1 stop if not above `MAX_WANTED`, 2 stop
_COMPILED: Final = not __file__.endswith(".py")

_head_at: Final = struct.Struct(">IIBB").unpack_from


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameWalk:
    """The walk over one direction, from its first byte on. It skips a PROXY header before the frames.

    `kinds` are the command types (below 128) to stop at; `want_all` makes it stop at all types. `left` is the
    number of bytes that the current frame still lacks; `frames` counts the frames skipped.
    """

    __slots__ = ("_is_fresh", "_stops", "_wanted_stops", "frames", "left", "lost")

    def __init__(self, kinds: frozenset[int]) -> None:
        self._wanted_stops = self._stops = bytes([kind in kinds for kind in range(256)])
        self.left = 0
        self.frames = 0
        self.lost = False
        self._is_fresh = True

    def want_all(self, is_on: bool) -> None:
        """Stop at every frame from now on; with False, only at wanted frames again."""
        self._stops = _STOP_AT_ALL if is_on else self._wanted_stops

    def walk(self, data: bytes, pos: int) -> int:
        """Walk over `data` from `pos`: where the last walk stopped, or after the wanted frame there.

        Returns the offset where it stops. If that is not the end of `data`, a wanted frame, a frame with an
        incomplete header, or what may be a PROXY header begins there.
        """
        end = len(data)
        if self.lost:
            return end
        if self._is_fresh and end:
            header, description = proxy_header(data)
            if header and not description:
                return pos  # it may be a PROXY header; that needs more bytes
            self._is_fresh = False
            self.left = header
        pos += self.left
        stops = self._stops
        stop, frames = _skip_by_bytes(data, pos, stops) if _COMPILED else _skip_by_heads(data, pos, stops)
        self.frames += frames
        if stop < 0 or (stop < end and data[stop] > MAX_KEPT_FRAME >> 24):
            self.lost = True
            self.left = 0
            return end
        self.left = max(stop - end, 0)
        return min(stop, end)

    @staticmethod
    def size(data: bytes, pos: int) -> int:
        """Return the size in bytes of the frame at `pos`, where a walk stopped; 0 if its header is cut."""
        total = int.from_bytes(data[pos : pos + 4], "big")
        return 4 + total if len(data) - pos >= HEAD and total <= MAX_KEPT_FRAME else 0


def _skip_by_bytes(data: bytes, start: int, stops: bytes) -> tuple[int, int]:
    """Return where to stop, and the number of frames before that; -1 if a header is invalid. Compiled."""
    end: i64 = len(data)
    pos: i64 = start
    frames: i64 = 0
    while end - pos >= HEAD:
        total: i64 = data[pos] << 24 | data[pos + 1] << 16 | data[pos + 2] << 8 | data[pos + 3]
        size: i64 = data[pos + 4] << 24 | data[pos + 5] << 16 | data[pos + 6] << 8 | data[pos + 7]
        if data[pos + 8] != 8 or size < 2 or size + 4 > total or total > MAX_KEPT_FRAME:
            return -1, int(frames)
        rule: i64 = stops[data[pos + 9]]
        if rule == 2 or (rule and total <= MAX_WANTED):
            break
        frames += 1
        pos += 4 + total
    return int(pos), int(frames)


def _skip_by_heads(data: bytes, pos: int, stops: bytes) -> tuple[int, int]:
    """Do the same as `_skip_by_bytes`, but fast in interpreted Python."""
    end = len(data)
    frames = 0
    while end - pos >= HEAD:
        total, size, tag, kind = _head_at(data, pos)
        if tag != 8 or size < 2 or size + 4 > total or total > MAX_KEPT_FRAME:
            return -1, frames
        rule = stops[kind]
        if rule == 2 or (rule and total <= MAX_WANTED):
            break
        frames += 1
        pos += 4 + total
    return pos, frames
