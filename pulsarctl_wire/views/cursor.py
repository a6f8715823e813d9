"""What the readers of Avro and Protobuf go along: a place in a payload, and what may be built from it."""

from __future__ import annotations

from pulsarctl_wire.views.content import ESCAPED_STEP, MAX_DEPTH, MAX_VALUES, Room
from pulsarctl_wire.wire.fields import as_text

_UINT64 = (1 << 64) - 1


class Cursor:
    """A place in a payload, and how much may still be built from it.

    Attributes:
        at: index of the next byte.
        left: values that may still be built; negative once reading was cut short.
    """

    __slots__ = ("at", "data", "depth", "left", "room")

    def __init__(self, data: bytes, room: Room) -> None:
        self.data = data
        self.at = 0
        self.room = room
        self.left = min(MAX_VALUES, room.values)
        self.depth = 0

    def take(self, size: int, end: int | None = None) -> bytes:
        """The next ``size`` bytes before ``end`` (the payload's); ValueError when there are fewer."""
        end = len(self.data) if end is None else end
        start, stop = self.at, self.at + size
        if size < 0 or stop > end:
            raise ValueError(f"{size} bytes wanted at byte {start}, {end - start} are left")
        self.at = stop
        return self.data[start:stop]

    def varint(self, end: int | None = None) -> int:
        """An unsigned varint of at most ten bytes, modulo 2^64; ValueError when it does not end."""
        end = len(self.data) if end is None else end
        data, start = self.data, self.at
        if start < end and data[start] < 0x80:
            self.at = start + 1
            return data[start]
        number = shift = 0
        for at in range(start, min(start + 10, end)):
            byte = data[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at + 1
                return number & _UINT64
            shift += 7
        raise ValueError(f"no complete number at byte {self.at}")

    def text(self, raw: bytes) -> str:
        """``raw`` as text; one that is not UTF-8 costs, and is shown as far as there is room."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            shown = raw[: max(self.left, 0) * ESCAPED_STEP]
            self.spend(len(raw) // ESCAPED_STEP)
            return as_text(shown)

    def spend(self, cost: int = 1) -> bool:
        """Count a value of that cost; False when it must not be built."""
        self.left -= cost
        self.room.values -= cost
        return self.left >= 0

    def work(self) -> None:
        """Count a value twice of what the frame may have: it takes long to write."""
        self.room.values -= 1

    def enter(self) -> None:
        """Go one level down; ValueError beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH} levels")

    def leave(self) -> None:
        """Come one level up."""
        self.depth -= 1
