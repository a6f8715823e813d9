"""`Traffic`: what clients and a broker of a test said to each other, to be asserted and kept.

The broker's thread only appends bytes to a log. A test that asks decodes them, in its own thread.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pulsarctl_wire.checks.doctor import Doctor
from pulsarctl_wire.checks.finding import Finding
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.checks.requirement import MUST
from pulsarctl_wire.checks.rule import read_requirement
from pulsarctl_wire.errors import RequestTimeout
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.session.sinks import Follower, Sink

MAX_BYTES: Final = 256 << 20
"""Maximum bytes of a broker's traffic that are kept; what comes later is not."""

_WORD: Final = r"(?:command|topic|direction|filter)=(?!=)"
_SELECTION: Final = re.compile(rf"\s*{_WORD}")
"""How a selection begins that is written as for a fault; all others are filters, which compare with ==."""

_MUSTS: Final = {
    rule.id for rule in RULES if (requirement := read_requirement(rule)) and requirement.level == MUST
}
"""Ids of the rules about a must of the protocol."""

Test = Callable[[Frame], bool]


class Traffic:
    """The log of all that connections carried. It implements `net.frame_socket.Tap`.

    `is_complete`: nothing was left out because there was more than `MAX_BYTES`.
    """

    def __init__(self) -> None:
        self.is_complete = True
        self._log: list[tuple[str, Connection, tuple[Any, ...]]] = []  # name of a Tap's method, its arguments
        self._size = 0
        self._changed = threading.Condition()

    # -- what the broker calls

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Log a new connection."""
        self._add("opened", connection, time_ns)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Log bytes."""
        self._size += len(data)
        if self._size <= MAX_BYTES:
            self._add("carried", connection, to_broker, bytes(data), time_ns)
        elif self.is_complete:
            self.is_complete = False

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Log what a fault did to the frame that is carried next."""
        self._add("changed", connection, to_broker, change)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Log the end of a connection."""
        self._add("closed", connection, time_ns, by_broker)

    def _add(self, name: str, connection: Connection, *values: Any) -> None:
        with self._changed:
            self._log.append((name, connection, values))
            self._changed.notify_all()

    # -- what tests ask

    def list_frames(self, selection: str = "") -> list[Frame]:
        """Return the frames so far that a selection chooses, in order. Raises SettingsError, FilterError."""
        frames = _Frames(make_test(selection))
        self._replay(Follower([frames]))
        return frames.frames

    def wait_for(self, selection: str, timeout: float, count: int = 1) -> Frame:
        """Wait until `selection` chooses `count` frames, counted from the start; return the last of them.

        Raises RequestTimeout after `timeout` seconds, SettingsError, FilterError.
        """
        frames, start, end = _Frames(make_test(selection)), 0, time.monotonic() + timeout
        follower = Follower([frames])
        while True:
            with self._changed:
                while len(self._log) == start:
                    if not self._changed.wait(max(end - time.monotonic(), 0.0)):
                        count_text = f"{len(frames.frames)} of {count} frames"
                        raise RequestTimeout(f"{selection}: {count_text} came within {timeout:g} s")
                entries, start = self._log[start:], len(self._log)
            for name, connection, values in entries:
                getattr(follower, name)(connection, *values)
            if len(frames.frames) >= count:
                return frames.frames[count - 1]

    def examine(self) -> list[Finding]:
        """Return what the doctor finds in the traffic so far, with its default thresholds."""
        doctor = Doctor()
        self._replay(Follower([doctor], doctor.new_state))
        return list(doctor.findings.values())

    def list_breaches(self) -> list[Finding]:
        """Return the findings about a must of the protocol that a client or the broker broke."""
        return [finding for finding in self.examine() if finding.rule in _MUSTS]

    def save(self, path: Path) -> None:
        """Write the traffic so far as pcapng; credentials are masked."""
        from pulsarctl_wire.cli.recording import RecordingSink

        self._replay(Follower([RecordingSink(str(path), lambda text: None, "the test", show_secrets=False)]))

    def _replay(self, follower: Follower) -> None:
        """Pass the log so far to a follower."""
        with self._changed:
            log = list(self._log)
        for name, connection, values in log:
            getattr(follower, name)(connection, *values)
        follower.finish()


class _Frames(Sink):
    """Keeps the frames that pass a test."""

    def __init__(self, test: Test) -> None:
        self.frames: list[Frame] = []
        self._test = test

    def events(self, events: list[Event]) -> None:
        """Keep frames. Overrides the parent's method."""
        self.frames += [event for event in events if isinstance(event, Frame) and self._test(event)]


def make_test(selection: str) -> Test:
    """Return the test of a selection: written as for a fault (`command=ACK topic=orders`), or a filter.

    "" chooses all frames. Raises SettingsError, FilterError.
    """
    from pulsarctl_wire.cli.proxy.options import make_test as make_fault_test
    from pulsarctl_wire.faults.lanes import ActiveFault
    from pulsarctl_wire.faults.text import parse_fault

    if not selection.strip():
        return lambda frame: True
    if not _SELECTION.match(selection):
        from pulsarctl_wire.cli.capture.select import Expression
        from pulsarctl_wire.record import Recorder

        return Expression(selection, Recorder(show_secrets=True), "filter")
    fault = parse_fault(f"drop {selection}")  # which fault does not matter: all select frames alike
    active_fault = ActiveFault(0, fault, make_fault_test(fault))
    directions = {"to-broker": (True,), "to-client": (False,)}.get(fault.direction, (True, False))
    return lambda frame: frame.to_broker in directions and active_fault.can_hit(frame)


def describe(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield lines that describe findings, with the frames that prove them."""
    for finding in findings:
        yield f"{finding.rule}: {finding.explanation}"
        for sighting, reason in finding.evidence:
            yield f"    #{sighting.number} {sighting.command or 'TCP'}: {reason}"
