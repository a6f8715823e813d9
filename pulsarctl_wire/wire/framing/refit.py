"""Makes the sizes and the checksum of a frame fit again after somebody has changed its bytes."""

from struct import pack, pack_into

from crc32c import crc32c

from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame_layout import locate


def refit(before: bytes, after: bytes) -> bytes:
    """Return the frame `after`, which was `before`, with sizes and checksum that fit what was changed.

    Those that were changed themselves stay as they are, as does everything if `before` is no whole frame. A
    change over the end of a part leaves that part's size.
    """
    if len(before) < 8 or u32_at(before, 0) + 4 != len(before) or 8 + u32_at(before, 4) > len(before):
        return after
    start, stop = _find_change(before, after)
    growth, end = len(after) - len(before), len(before)
    command_end = 8 + u32_at(before, 4)
    parts = locate(before, command_end)
    frame = bytearray(after)

    def place(position: int) -> int:
        return position + growth if position >= stop else position

    def is_typed(field: int) -> bool:
        return max(start, field) < min(max(stop, start + 1), field + 4)

    for first, last in ((4, end), (8, command_end), parts.broker_entry, parts.metadata):
        is_appended = start == stop == last and (first, last) != parts.metadata  # that is the payload
        holds_change = first <= start and stop <= last and (start < last or is_appended)
        field = first - 4
        if growth and last > first and holds_change and not is_typed(field):
            size = last - first + growth
            frame[place(field) : place(field) + 4] = pack(">I", size)
    _, checked = parts.checksum
    if checked and stop > checked and not is_typed(checked - 4):
        pack_into(">I", frame, place(checked - 4), crc32c(memoryview(frame)[place(checked) :]))
    return bytes(frame)


def _find_change(before: bytes, after: bytes) -> tuple[int, int]:
    """Return which bytes of `before` were replaced."""
    shorter = min(len(before), len(after))
    start = next((place for place in range(shorter) if before[place] != after[place]), shorter)
    rest = shorter - start
    same = next((count for count in range(rest) if before[-1 - count] != after[-1 - count]), rest)
    return start, len(before) - same
