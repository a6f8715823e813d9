"""Faults of what is in a frame: bits that flip, epochs of the past."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, Item, Piece, Place, option
from pulsarctl_wire.faults.values import one_of, whole
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Frame, Parts, locate, with_command
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

_EPOCHS: Final = {
    NUMBERS["PRODUCER"]: "epoch",
    NUMBERS["SUBSCRIBE"]: "consumer_epoch",
    NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]: "consumer_epoch",
    NUMBERS["MESSAGE"]: "consumer_epoch",
}
"""Type number -> the field that tells which life of the producer or consumer it is of."""


@dataclass(frozen=True, kw_only=True)
class Flip(Fault):
    """Bits of the frame flip; its CRC32-C stays as it was, so that it is wrong, or is made right again."""

    name = "flip"

    bits: int = option(1, whole(1, 1000), "how many, chosen by the seed")
    where: str = option(
        "payload", one_of("payload", "metadata", "command", "checksum"), "in which part of the frame"
    )
    crc: str = option("keep", one_of("keep", "fix"), "leave the CRC32-C, or take it anew")

    def able(self) -> frozenset[int] | None:
        """Only the commands with an entry have more parts than the command."""
        return None if self.where == "command" else PAYLOAD_TYPES

    def check(self) -> None:
        """What was flipped in the checksum cannot be right."""
        if self.where == "checksum" and self.crc == "fix":
            raise SettingsError("flip: crc=fix would undo where=checksum; leave one of them out")

    def fits(self, frame: Frame) -> bool:
        """Whether the part is there."""
        start, stop = self._part(frame.raw)
        return stop > start

    def _part(self, raw: bytes) -> tuple[int, int]:
        if self.where == "command":
            return 8, _command_end(raw)
        part: tuple[int, int] = getattr(_parts(raw), self.where)
        return part

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The piece with other bits."""
        start, stop = self._part(piece.data)
        data = bytearray(piece.data)
        count = (stop - start) * 8
        for bit in place.rng.sample(range(count), min(self.bits, count)):
            data[start + bit // 8] ^= 1 << bit % 8
        if self.crc == "fix":
            parts = _parts(bytes(data))
            if parts.computed is not None:
                struct.pack_into(">I", data, parts.checksum[0], parts.computed)
        yield piece.changed(bytes(data))


def _command_end(raw: bytes) -> int:
    size: int = struct.unpack_from(">I", raw, 4)[0]
    return 8 + size


def _parts(raw: bytes) -> Parts:
    return locate(raw, _command_end(raw))


@dataclass(frozen=True, kw_only=True)
class StaleEpoch(Fault):
    """The epoch in PRODUCER, SUBSCRIBE, REDELIVER_… or MESSAGE is lowered; without one there is no match."""

    name = "stale-epoch"

    by: int = option(1, whole(1, 10**15), "how much lower, but not below 0")

    def able(self) -> frozenset[int]:
        """The commands with an epoch."""
        return frozenset(_EPOCHS)

    def fits(self, frame: Frame) -> bool:
        """Whether there is an epoch that can be lower."""
        return frame.body is not None and getattr(frame.body, _EPOCHS[frame.type]) > 0

    def apply(self, piece: Piece, place: Place) -> Iterator[Item]:
        """The piece with the lower epoch; all behind the command stays as it is."""
        assert piece.frame is not None
        base = BaseCommand()
        base.CopyFrom(piece.frame.base)  # type: ignore[arg-type]
        body: Any = getattr(base, BODIES[piece.frame.type])
        field = _EPOCHS[piece.frame.type]
        setattr(body, field, max(getattr(body, field) - self.by, 0))
        yield piece.changed(with_command(piece.data, base))
