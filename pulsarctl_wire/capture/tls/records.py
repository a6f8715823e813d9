"""Cuts the bytes of one direction into TLS records, and finds where records begin again after a hole.

A record is a header of 5 bytes (type, version, length) and a body. After a hole, records begin where the
header of one is followed by the header of another one, or by the end of what has come so far.
"""

import re
from typing import Final

HEADER_SIZE: Final = 5
MAX_BODY: Final = 16_384 + 2_048
"""Bytes of a record's body, as large as TLS 1.2 allows."""
MIN_RECORD: Final = HEADER_SIZE + 17
"""Bytes of the smallest sealed record of TLS 1.3."""
CHANGE_CIPHER_SPEC: Final = 20
ALERT: Final = 21
HANDSHAKE: Final = 22
APPLICATION_DATA: Final = 23
_KINDS: Final = b"\x14\x15\x16\x17"
_START: Final = re.compile(rb"[\x14-\x17](?:\x03(?:[\x00-\x04]|\Z)|\Z)")
_MAJOR: Final = 3
_MAX_MINOR: Final = 4

Record = tuple[bytes, bytes]
"""Header and body."""


def is_header(data: bytes, start: int = 0) -> bool:
    """Return whether a record's header is at `start`, as far as the bytes reach."""
    head = data[start : start + HEADER_SIZE]
    if head[:1] and head[0] not in _KINDS:
        return False
    if len(head) > 1 and head[1] != _MAJOR:
        return False
    if len(head) > 2 and head[2] > _MAX_MINOR:
        return False
    return len(head) < HEADER_SIZE or 0 < (head[3] << 8 | head[4]) <= MAX_BODY


def is_old_hello(head: bytes) -> bool:
    """Return whether these bytes begin a hello in the form of SSL 2.0, for SSL 3.0 or TLS."""
    return (
        len(head) >= HEADER_SIZE and head[0] >= 0x80 and head[2] == 1 and head[3] == _MAJOR and head[4] <= 4
    )


def find_record(data: bytes, start: int = 0) -> tuple[int, bool]:
    """Return the first place from `start` on where records seem to begin, and whether that is certain.

    If it is not, more bytes will tell. The place is the end of the data if no record begins before.
    """
    for match in _START.finditer(data, start):
        place = match.start()
        if not is_header(data, place):
            continue
        if place + HEADER_SIZE > len(data):
            return place, False
        end = place + HEADER_SIZE + (data[place + 3] << 8 | data[place + 4])
        if end > len(data):
            return place, False
        if is_header(data, end):
            return place, end == len(data) or len(data) - end > 2  # type and version of the next one
    return len(data), False


class RecordReader:
    """Takes the bytes of one direction and returns whole records."""

    __slots__ = ("_buffer", "_needed", "holes", "is_lost", "lost_bytes")

    def __init__(self) -> None:
        self._buffer = b""
        self._needed = 0  # bytes in the buffer that make a record whole
        self.holes: list[tuple[int, int]] = []
        """Where bytes are missing in the body of the next record."""
        self.is_lost = False
        """Whether it is not known where the next record begins."""
        self.lost_bytes = 0
        """Bytes that are no whole records."""

    @property
    def held_bytes(self) -> int:
        """Bytes of a record that is not whole yet."""
        return len(self._buffer)

    def take(self, data: bytes) -> list[Record]:
        """Take the next bytes; return the records that they complete.

        Bytes that are no record end the list and set `is_lost`: then call `take` again.
        """
        if self._buffer:
            data = self._buffer + data  # at most a record's size, which a few segments complete
            if len(data) < self._needed:
                self._buffer = data
                return []
        if self.is_lost:
            place, is_certain = find_record(data)
            self.lost_bytes += place
            data = data[place:]
            if not is_certain:
                self._buffer = data
                return []
            self.is_lost = False
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Record]:
        """Return the records that are whole, and keep the rest."""
        records: list[Record] = []
        start, size, self._needed = 0, len(data), HEADER_SIZE
        while size - start >= HEADER_SIZE:
            kind, length = data[start], data[start + 3] << 8 | data[start + 4]
            is_record = CHANGE_CIPHER_SPEC <= kind <= APPLICATION_DATA and data[start + 1] == _MAJOR
            if not (is_record and 0 < length <= MAX_BODY):
                self.is_lost = True
                self._needed = 0
                break
            end = start + HEADER_SIZE + length
            if end > size:
                self._needed = end - start
                break
            records.append((data[start : start + HEADER_SIZE], data[start + HEADER_SIZE : end]))
            start = end
        self._buffer = data[start:]
        return records

    def skip(self, size: int) -> tuple[list[Record], int]:
        """Note that `size` bytes are missing.

        Return the record that this makes whole, with zeros for them, and the number of bytes that are missing
        after it: if there are any, it is not known where the next record begins (`is_lost`).
        """
        held = len(self._buffer)
        if held < HEADER_SIZE or self.is_lost:
            self.lost_bytes += held
            self._buffer = b""
            self._needed = 0
            self.is_lost = True
            return [], size
        cut = min(size, self._needed - held)
        self.holes.append((held - HEADER_SIZE, held - HEADER_SIZE + cut))
        records = self.take(bytes(cut))
        self.is_lost = size > cut
        return records, size - cut

    def take_holes(self) -> list[tuple[int, int]]:
        """Return, and forget, where bytes are missing in the body of the first record of the last list."""
        holes = self.holes
        self.holes = []
        return holes
