"""Makes the sizes and the checksum of a frame fit again after somebody has changed its bytes."""

from struct import pack, pack_into

from crc32c import crc32c

from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame_layout import locate


def refit(before: bytes, after: bytes) -> bytes:
    """Return the frame `after`, with the sizes and the checksum corrected; `before` is the unchanged frame.

    A size or checksum that was changed itself stays as it is. So does the size of a part if the change goes
    beyond the part, and everything if `before` is not a whole frame.
    """
    if len(before) < 8 or u32_at(before, 0) + 4 != len(before) or 8 + u32_at(before, 4) > len(before):
        return after
    start, stop = _find_change(before, after)
    growth, end = len(after) - len(before), len(before)
    command_end = 8 + u32_at(before, 4)
    parts = locate(before, command_end)
    frame = bytearray(after)

    def shift(position: int) -> int:
        return position + growth if position >= stop else position

    def is_changed(field: int) -> bool:
        return max(start, field) < min(max(stop, start + 1), field + 4)

    for first, last in ((4, end), (8, command_end), parts.broker_entry, parts.metadata):
        # bytes at the end of a part extend it; at the end of the metadata they belong to the payload
        is_appended = start == stop == last and (first, last) != parts.metadata
        holds_change = first <= start and stop <= last and (start < last or is_appended)
        field = first - 4
        if growth and last > first and holds_change and not is_changed(field):
            size = last - first + growth
            frame[shift(field) : shift(field) + 4] = pack(">I", size)
    _, checksum_end = parts.checksum
    if checksum_end and stop > checksum_end and not is_changed(checksum_end - 4):
        pack_into(">I", frame, shift(checksum_end - 4), crc32c(memoryview(frame)[shift(checksum_end) :]))
    return bytes(frame)


def _find_change(before: bytes, after: bytes) -> tuple[int, int]:
    """Return the start and the stop of the bytes of `before` that were replaced."""
    shorter = min(len(before), len(after))
    start = next((place for place in range(shorter) if before[place] != after[place]), shorter)
    rest = shorter - start
    same_tail = next((count for count in range(rest) if before[-1 - count] != after[-1 - count]), rest)
    return start, len(before) - same_tail
