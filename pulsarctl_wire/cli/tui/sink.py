"""Puts live traffic where a screen looks at it: events into a store, findings and counts beside it."""

import time
from pathlib import Path
from typing import Any, Final

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.folding import fold
from pulsarctl_wire.cli.findings import summarize
from pulsarctl_wire.record import FindPacket, find_no_packet
from pulsarctl_wire.render.findings import finding_record
from pulsarctl_wire.stats.overview import Overview
from pulsarctl_wire.store.directory import write_json
from pulsarctl_wire.store.writer import StoreWriter
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.sinks import Sink

RING_BYTES: Final = 1024 * 1024 * 1024
"""Bytes of a store of live traffic; beyond that, the oldest events are dropped."""

_MAX_FINDINGS: Final = 2_000  # shown
_EVERY: Final = 1.0  # seconds between two times that findings and counts are written


def write_state(
    directory: Path,
    doctor: Doctor,
    overview: Overview,
    *,
    is_done: bool,
    find_packet: FindPacket = find_no_packet,
) -> None:
    """Write the counts, and the findings so far."""
    write_json(directory, "counts", overview.counts())  # first: the screen reads none once findings are done
    findings = list(fold(doctor.findings.values()))
    value: dict[str, Any] = {
        "findings": [finding_record(finding, find_packet) for finding in findings[:_MAX_FINDINGS]],
        "frames": doctor.map_frames_to_rules(),
        "omitted": max(len(findings) - _MAX_FINDINGS, 0),
        "summary": summarize(doctor),
        "is_done": is_done,
    }
    write_json(directory, "findings", value)


class StoreSink(Sink):
    """Stores all events. If that fails, it reports the error with `say`, and stops."""

    def __init__(self, directory: Path, doctor: Doctor, say: Any) -> None:
        self._directory = directory
        self._writer = StoreWriter(directory, RING_BYTES)
        self._doctor = doctor
        self._overview = Overview(doctor.states)
        self._say = say
        self._due = 0.0

    def events(self, events: list[Event]) -> None:
        """Store events."""
        if not self.failed:
            self._overview.add(events)
            self._write(lambda: self._writer.add(events))

    def tick(self, now_ns: int) -> None:
        """Let the screen see what there is."""
        now = time.monotonic()
        if self.failed:
            return
        self._write(self._writer.flush)
        if now >= self._due:
            self._due = now + _EVERY
            self._write(lambda: write_state(self._directory, self._doctor, self._overview, is_done=False))

    def finish(self) -> None:
        """Store the rest."""
        if not self.failed:
            self._write(self._writer.finish)
            self._write(lambda: write_state(self._directory, self._doctor, self._overview, is_done=True))

    def _write(self, write: Any) -> None:
        try:
            write()
        except OSError as error:
            self.failed = True
            self._say(f"the screen stays as it is: {error.strerror}; the traffic goes on")
