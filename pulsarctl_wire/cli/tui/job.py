"""What the processes of a screen share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.store.directory import read_json, write_json

_LOOK: Final = 0.1  # seconds between two looks at what is still written

if TYPE_CHECKING:
    from pulsarctl_wire.cli.findings import CheckOptions
    from pulsarctl_wire.cli.options import DisplayOptions, ReadOptions
    from pulsarctl_wire.record import Recorder


@dataclass(frozen=True)
class Job:
    """What all jobs of a screen know: the directory of the store, and options of the command line."""

    directory: Path
    sources: list[str]
    read: ReadOptions
    display: DisplayOptions
    checks: CheckOptions
    is_kept: bool
    """Whether the store stays when the screen is closed."""

    is_owner: bool = True
    """Whether this process made the store; False in one that `--web` has started for a page."""

    def make_recorder(self) -> Recorder:
        """Return a recorder of events. Raises FilterError, CaptureError for a wrong schema or key."""
        from pulsarctl_wire.capture.private_keys import read_private_keys
        from pulsarctl_wire.cli.options import schema_of
        from pulsarctl_wire.record import Recorder

        return Recorder(
            show_secrets=self.display.show_secrets,
            schema=schema_of(self.display.schema),
            keys=read_private_keys(self.display.private_keys),
            answers=True,
            find_packet=_Numbers(self.directory, several=len(self.sources) > 1).find,
        )


def write_numbers(directory: Path, packets: int, stretches: list[tuple[int, str | None, int]]) -> None:
    """Write the numbers that the first `packets` packets have in their files.

    `stretches` are those of `PacketNumbers.list_stretches`.
    """
    write_json(directory, "numbers", {"packets": packets, "stretches": stretches})


class _Numbers:
    """The numbers of packets in their files, as far as they were written."""

    def __init__(self, directory: Path, *, several: bool) -> None:
        self._directory = directory
        self._several = several
        self._numbers = PacketNumbers()
        self._packets = 0
        self._read_at = 0.0

    def find(self, packet: int) -> tuple[str | None, int | None]:
        """Return the file of a packet, and its number there; None for what is unknown."""
        if packet > self._packets and time.monotonic() > self._read_at + _LOOK:
            self._read_at = time.monotonic()
            value = read_json(self._directory, "numbers", {"packets": 0, "stretches": []})
            self._packets, self._numbers = value["packets"], PacketNumbers(several=self._several)
            for stretch in value["stretches"]:
                self._numbers.add(*stretch)
        return self._numbers.find(packet) if packet <= self._packets else (None, None)


def is_complete(directory: Path) -> bool:
    """Return whether a store has all of its sources, with findings and counts, and may be kept.

    What TLS hid is not kept.
    """
    try:
        reading, findings = (read_json(directory, name, {}) for name in ("reading", "findings"))
    except StoreError:
        return False
    return bool(reading.get("is_done") and findings.get("is_done") and not reading.get("has_secrets"))
