"""Faults that change what is in a frame: flipped bits, stale epochs."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.base import Fault, Item, LaneContext, Unit, option
from pulsarctl_wire.faults.values import one_of, whole
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Frame, replace_command
from pulsarctl_wire.wire.frame_layout import FrameLayout, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

_EPOCHS: Final = {
    NUMBERS["PRODUCER"]: "epoch",
    NUMBERS["SUBSCRIBE"]: "consumer_epoch",
    NUMBERS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]: "consumer_epoch",
    NUMBERS["MESSAGE"]: "consumer_epoch",
}
"""Type number -> the field with the epoch of the producer or consumer."""


@dataclass(frozen=True, kw_only=True)
class Flip(Fault):
    """Bits of the frame are flipped; its CRC32-C is kept, and so is wrong, or is recomputed."""

    name = "flip"

    bits: int = option(1, whole(1, 1000), "number of bits; the seed decides which")
    where: str = option(
        "payload", one_of("payload", "metadata", "command", "checksum"), "in which part of the frame"
    )
    crc: str = option("keep", one_of("keep", "fix"), "keep the CRC32-C, or recompute it")

    def find_possible_types(self) -> frozenset[int] | None:
        """Return all for `where=command`; otherwise commands with an entry, which has the other parts."""
        return None if self.where == "command" else PAYLOAD_TYPES

    def check(self) -> None:
        """Reject recomputing the checksum after flipping its bits."""
        if self.where == "checksum" and self.crc == "fix":
            raise SettingsError("flip: crc=fix would undo where=checksum; leave one of them out")

    def can_apply(self, frame: Frame) -> bool:
        """Return whether the frame has the part to be changed."""
        start, stop = self._locate_part(frame.raw)
        return stop > start

    def _locate_part(self, raw: bytes) -> tuple[int, int]:
        if self.where == "command":
            return 8, _find_command_end(raw)
        part: tuple[int, int] = getattr(_locate_parts(raw), self.where)
        return part

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the unit with flipped bits."""
        start, stop = self._locate_part(unit.data)
        data = bytearray(unit.data)
        count = (stop - start) * 8
        for bit in context.rng.sample(range(count), min(self.bits, count)):
            data[start + bit // 8] ^= 1 << bit % 8
        if self.crc == "fix":
            parts = _locate_parts(bytes(data))
            if parts.computed is not None:
                struct.pack_into(">I", data, parts.checksum[0], parts.computed)
        yield unit.with_data(bytes(data))


def _find_command_end(raw: bytes) -> int:
    size: int = struct.unpack_from(">I", raw, 4)[0]
    return 8 + size


def _locate_parts(raw: bytes) -> FrameLayout:
    return locate(raw, _find_command_end(raw))


@dataclass(frozen=True, kw_only=True)
class StaleEpoch(Fault):
    """An epoch above 0 in PRODUCER, SUBSCRIBE, REDELIVER_… or MESSAGE is lowered; others do not match."""

    name = "stale-epoch"

    by: int = option(1, whole(1, 10**15), "how much lower, but not below 0")

    def find_possible_types(self) -> frozenset[int]:
        """Return the commands with an epoch."""
        return frozenset(_EPOCHS)

    def can_apply(self, frame: Frame) -> bool:
        """Return whether the frame has an epoch above 0."""
        return frame.body is not None and getattr(frame.body, _EPOCHS[frame.type]) > 0

    def apply(self, unit: Unit, context: LaneContext) -> Iterator[Item]:
        """Yield the unit with the lower epoch; everything after the command stays as it is."""
        assert unit.frame is not None
        base = BaseCommand()
        base.CopyFrom(unit.frame.base)  # type: ignore[arg-type]
        body: Any = getattr(base, BODIES[unit.frame.type])
        field = _EPOCHS[unit.frame.type]
        setattr(body, field, max(getattr(body, field) - self.by, 0))
        yield unit.with_data(replace_command(unit.data, base))
