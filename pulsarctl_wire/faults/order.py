"""Faults of what comes at all, and in which order: frames lost, repeated, or overtaken by others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.actions import Wake
from pulsarctl_wire.faults.base import Fault, Item, Piece, Place, Work, option
from pulsarctl_wire.faults.values import TIME, whole

MOST_COPIED: Final = 64 * 1024 * 1024
"""Bytes that the copies of a frame may have in all: they go on at once."""


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """The frame does not go on."""

    name = "drop"
    aliases = ("swallow",)

    def check(self) -> None:
        """Say which."""
        if not self.selects and self.probability == 1 and self.direction == "both":
            raise SettingsError(
                "drop: say which frames, as in command=SEND_RECEIPT; blackhole takes them all"
            )

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """Nothing."""
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Duplicate(Fault):
    """The frame goes on several times."""

    name = "duplicate"

    copies: int = option(1, whole(1, 1000), "how many there are beside the frame, 64 MiB of them at most")

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The piece and its copies."""
        for _ in range(1 + min(self.copies, MOST_COPIED // len(piece.data))):
            yield piece


@dataclass(frozen=True, kw_only=True)
class Reorder(Fault):
    """The frame goes on behind those that follow it; while it waits, no other is held back."""

    name = "reorder"

    behind: int = option(1, whole(1, 1000), "how many frames of its direction overtake it")
    hold: float = option(1.0, TIME, "how long it waits for them at most")

    def at_work(self, place: Place) -> Work:
        """The fault in one lane."""
        return _Shelf(self, place)


class _Shelf(Work):
    """Room for one frame."""

    fault: Reorder
    _held: Piece | None = None
    _behind = 0
    _until = 0.0
    _woken = 0.0  # when the lane is called again, of which it was asked

    @property
    def busy(self) -> bool:  # type: ignore[override]
        """Whether one is held."""
        return self._held is not None

    def hit(self, piece: Piece) -> Iterator[Item]:
        """Hold it."""
        self._held = piece
        self._behind = self.fault.behind
        self._until = piece.at + self.fault.hold
        if piece.at >= self._woken:  # one at a time: `due` asks again
            self._woken = self._until
            yield Wake(self._until)

    def passing(self, piece: Piece) -> Iterator[Item]:
        """One more overtakes the held one; bytes that are no frame could be cut in two by it, and do not."""
        if piece.frame is None:
            yield from self.rest()
        yield piece
        self._behind -= 1
        if self._behind <= 0:
            yield from self.rest()

    def due(self, now: float) -> Iterator[Item]:
        """The held one, once its time is over."""
        if now >= self._until:
            yield from self.rest()
        elif self._held is not None and now >= self._woken:
            self._woken = self._until
            yield Wake(self._until)

    def rest(self) -> Iterator[Item]:
        """The held one."""
        if self._held is not None:
            held, self._held = self._held, None
            yield held
