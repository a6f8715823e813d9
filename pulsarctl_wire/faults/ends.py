"""Faults that end a connection: politely, by a reset, or by silence."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pulsarctl_wire.faults import actions
from pulsarctl_wire.faults.base import Fault, Item, Piece, Place, option
from pulsarctl_wire.faults.values import SIZE, optional


@dataclass(frozen=True, kw_only=True)
class _Ending(Fault):
    of_bytes: ClassVar[bool] = True
    end: ClassVar[actions.Close | actions.Reset]

    bytes: int | None = option(None, optional(SIZE), "let so many bytes of the frame pass first")

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The beginning of the piece, then the end."""
        if self.bytes:
            yield Piece(piece.data[: self.bytes], None, piece.at)
        yield self.end


@dataclass(frozen=True, kw_only=True)
class Disconnect(_Ending):
    """The connection is closed instead of passing the frame."""

    name = "disconnect"
    end = actions.Close()


@dataclass(frozen=True, kw_only=True)
class Reset(_Ending):
    """The connection is reset instead of passing the frame."""

    name = "reset"
    end = actions.Reset()


@dataclass(frozen=True, kw_only=True)
class Blackhole(Fault):
    """From this frame on nothing passes in either direction, while the connection stays open."""

    name = "blackhole"
    of_bytes = True

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """Nothing more."""
        yield actions.Blackhole()
