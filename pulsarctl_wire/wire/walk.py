"""Where frames begin and end in one direction of a connection, without decoding them.

For those who pass bytes on and are interested in few of them: `walk` goes from header to header, and stops
where a frame begins that is wanted, or a header that is not all there. A frame is believed by its sizes and
by the first byte of its command; where they make no sense the walker is `lost`, for good: what follows may
be anything, and is to be passed on as it is.

    TOTAL_SIZE (4)  COMMAND_SIZE (4)  08 TYPE …      08 is the tag of BaseCommand.type, which comes first
"""

import struct
from typing import Final

from mypy_extensions import mypyc_attr

from pulsarctl_wire.wire.stream import KEPT_FRAME

HEAD: Final = 10
"""Bytes that tell a frame's size and its command; no frame is smaller."""

LARGEST: Final = 1024 * 1024
"""Bytes of a wanted frame; larger ones are passed over unless all are wanted."""

_head_at: Final = struct.Struct(">IIBB").unpack_from


@mypyc_attr(allow_interpreted_subclasses=True)
class FrameWalk:
    """The walk over one direction, from its first byte on.

    `wanted` are the command types to stop at, `every` makes it all of them. `left` are the bytes to come
    of the frame that has begun, `frames` counts those that have.
    """

    __slots__ = ("every", "frames", "left", "lost", "wanted")

    def __init__(self, wanted: frozenset[int]) -> None:
        self.wanted = wanted
        self.every = False
        self.left = 0
        self.frames = 0
        self.lost = False

    def walk(self, data: memoryview, at: int) -> int:
        """How far from `at` on `data` (from where the last walk ended) need not be looked at.

        Short of its end, a frame begins there: a wanted one, or one whose head is not there as a whole.
        """
        end = len(data)
        at += self.left
        if self.lost:
            return end
        wanted, every = self.wanted, self.every
        while end - at >= HEAD:
            total, size, tag, kind = _head_at(data, at)
            if tag != 8 or size < 2 or size + 4 > total or total > KEPT_FRAME:
                self.lost = True
                self.left = 0
                return end
            if every or (kind in wanted and total <= LARGEST):
                break
            self.frames += 1
            at += 4 + total
        self.left = max(at - end, 0)
        return min(at, end)

    @staticmethod
    def size(data: memoryview, at: int) -> int:
        """Bytes of the frame that begins at `at`, where a walk stopped; 0 if its head is not all there."""
        return 4 + int.from_bytes(data[at : at + 4], "big") if len(data) - at >= HEAD else 0
