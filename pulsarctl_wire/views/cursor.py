"""The position in a payload for the readers of Avro and Protobuf, with the limits of what they build."""

from __future__ import annotations

from pulsarctl_wire.views.content import ESCAPED_STEP, MAX_DEPTH, MAX_VALUES, ValueBudget
from pulsarctl_wire.wire.fields import as_text
from pulsarctl_wire.wire.varint import read_varint


class Cursor:
    """A position in a payload: ``position`` is the index of the next byte.

    ``values_left`` values may still be built from the payload; it is negative once the limit was exceeded.
    """

    __slots__ = ("budget", "data", "depth", "position", "values_left")

    def __init__(self, data: bytes, budget: ValueBudget) -> None:
        self.data = data
        self.position = 0
        self.budget = budget
        self.values_left = min(MAX_VALUES, budget.values)
        self.depth = 0

    def take(self, size: int, end: int | None = None) -> bytes:
        """Take the next ``size`` bytes; ValueError if there are fewer before ``end`` (default: all)."""
        end = len(self.data) if end is None else end
        start, stop = self.position, self.position + size
        if size < 0 or stop > end:
            raise ValueError(f"{size} bytes wanted at byte {start}, {end - start} are left")
        self.position = stop
        return self.data[start:stop]

    def varint(self, end: int | None = None) -> int:
        """Read an unsigned varint of at most ten bytes, modulo 2^64; ValueError if it does not end."""
        end = len(self.data) if end is None else end
        data, start = self.data, self.position
        if start < end and data[start] < 0x80:
            self.position = start + 1
            return data[start]
        number, self.position = read_varint(data, start, end)
        if self.position > start:
            return number
        raise ValueError(f"no complete number at byte {self.position}")

    def text(self, raw: bytes) -> str:
        """Return ``raw`` as text. If it is not UTF-8, its bytes cost extra, and it is cut to what is left."""
        try:
            return raw.decode()
        except UnicodeDecodeError:
            head = raw[: max(self.values_left, 0) * ESCAPED_STEP]
            self.spend(len(raw) // ESCAPED_STEP)
            return as_text(head)

    def spend(self, cost: int = 1) -> bool:
        """Count a value with that cost. Returns False if it must not be built."""
        self.values_left -= cost
        self.budget.values -= cost
        return self.values_left >= 0

    def charge_frame(self) -> None:
        """Count one more value against the frame's budget, as the current one takes long to format."""
        self.budget.values -= 1

    def enter(self) -> None:
        """Enter a nested value; ValueError beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"values are nested deeper than {MAX_DEPTH} levels")

    def leave(self) -> None:
        """Leave a nested value."""
        self.depth -= 1
