"""What the processes of a screen share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulsarctl_wire.errors import StoreError
from pulsarctl_wire.store.directory import read_json

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
    """Whether the store is this process's own, not that of one that `--web` has started."""

    def make_recorder(self, find_packet: Any = None) -> Recorder:
        """Return a recorder of events. Raises FilterError, CaptureError for a wrong schema or key."""
        from pulsarctl_wire.capture.private_keys import read_private_keys
        from pulsarctl_wire.cli.options import schema_of
        from pulsarctl_wire.record import Recorder

        more = {} if find_packet is None else {"find_packet": find_packet}
        return Recorder(
            show_secrets=self.display.show_secrets,
            schema=schema_of(self.display.schema),
            keys=read_private_keys(self.display.private_keys),
            answers=True,
            **more,
        )


def is_complete(directory: Path) -> bool:
    """Return whether a store has all of its sources, with findings and counts, and may be kept.

    What TLS hid is not kept.
    """
    try:
        reading, findings = (read_json(directory, name, {}) for name in ("reading", "findings"))
    except StoreError:
        return False
    return bool(reading.get("is_done") and findings.get("is_done") and not reading.get("has_secrets"))
