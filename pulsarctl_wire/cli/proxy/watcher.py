"""The watcher: the process that shows, records and counts the traffic of a proxy.

    TapRing.records ── Follower ─┬─ RecordingSink: the bytes themselves, credentials masked
             │                   ├─ Doctor: findings ── Printer
             │                   ├─ Live: the counters; LiveTable and the metrics server show them
             │                   ├─ TapPrinter: events ── tests ── renderer ── Printer ── stdout
             │                   └─ NotShown: counts what was missed
             └─ notes ── Printer ── stderr

It is a fork of the proxy with a lower priority, and the proxy never waits for it. If the watcher is too slow,
the proxy drops data at the ring. If the reader of stdout is too slow, the watcher drops output here. Both
are counted and reported.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.capture.private_keys import read_private_keys
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture import select
from pulsarctl_wire.cli.findings import FindingPrinter, summarize
from pulsarctl_wire.cli.options import schema_of
from pulsarctl_wire.cli.proxy.keeper import Start, Watcher
from pulsarctl_wire.cli.proxy.options import WatchOptions
from pulsarctl_wire.cli.proxy.printer import FLUSH_TIMEOUT, Printer, TapPrinter
from pulsarctl_wire.cli.recording import RecordingSink
from pulsarctl_wire.net.proxy import tap
from pulsarctl_wire.net.proxy.tap import TapRecord, TapRing
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Origin, Paint, clean
from pulsarctl_wire.stats.live import Live
from pulsarctl_wire.stats.snapshot import Snapshot
from pulsarctl_wire.wire.frame import Connection
from pulsarctl_wire.wire.session.ledgers import LedgerState
from pulsarctl_wire.wire.session.sinks import Follower, Sink

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

    from pulsarctl_wire.checks.doctor import Doctor
    from pulsarctl_wire.cli.proxy.live_table import LiveTable

_TICK: Final = 0.25  # seconds
_REPORT_INTERVAL: Final = 1_000_000_000  # ns between two lines about missed frames
_CATCH_UP: Final = 3.0  # time limit for reading the rest of the ring at the end, in seconds
_NICE: Final = 10


class WatchedRing:
    """A ring, and the process that watches it. When the context has ended, `code` is the process's exit code.

    It must be made before there are threads. `close` closes the copies of sockets in the watching process.
    """

    def __init__(self, options: WatchOptions, close: Callable[[], object]) -> None:
        self.ring = TapRing(wants_bytes=options.is_needed)
        self.code = 0
        self._watcher = Watcher(partial(watch, options, self.ring), self.ring, close)
        self.ring.use_in_proxy()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *reason: object) -> None:
        self.ring.end()
        self.code = self._watcher.wait()

    def follow(self, restart: Callable[[], object], activity: str) -> None:
        """From now on, react to news of the watcher in the event loop.

        When another watcher starts, `restart` is called. When none runs any more, a warning says that
        `activity` goes on.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._watcher.fileno(), self._on_news, restart, activity)

    def _on_news(self, restart: Callable[[], object], activity: str) -> None:
        if self._watcher.read_news():
            restart()
            return
        asyncio.get_running_loop().remove_reader(self._watcher.fileno())
        self.ring.wants_bytes = False
        text = f"the watcher has ended; {activity} goes on without it"
        threading.Thread(target=console.warn, args=(text,), daemon=True).start()  # as stderr may block


def watch(options: WatchOptions, ring: TapRing, start: Start) -> int:
    """Watch the ring until the proxy ends; returns the exit code."""
    if start.reason:
        _report_failure(options, start, ring)
    with console.errors_reported(), ExitStack() as stack:
        run = WatchRun(options, stack, start.since_ns if start.reason else None)
        start.ready()
        return run.run(ring)


def _report_failure(options: WatchOptions, start: Start, ring: TapRing) -> None:
    """Print why the previous watcher ended, and wait for `start.delay`."""
    later = f" in {start.delay:g} s" if start.delay else ""
    form = options.display.time_format
    clock = TimeFormatter("utc" if form == "relative" else form, Origin())
    text = f"the watcher died ({start.reason}); forwarding goes on, another one starts{later}"
    printer = Printer(sys.stderr.fileno())
    line = f"pwire: {clock(time.time_ns())} {clean(text)}\n"
    printer.put(line.encode("utf-8", "backslashreplace"))
    printer.end(FLUSH_TIMEOUT)
    deadline = time.monotonic() + start.delay
    while time.monotonic() < deadline and not ring.is_ending:
        time.sleep(_TICK)


class WatchRun:
    """One run. The constructor raises FilterError, or ends the command if a file or port cannot be opened.

    `since_ns` is when the first watcher started, if this one is a restart; otherwise None.
    """

    def __init__(self, options: WatchOptions, stack: ExitStack, since_ns: int | None = None) -> None:
        self.options = options
        self._since_ns = since_ns
        self._stack = stack
        self._origin = Origin()
        self._clock = TimeFormatter(options.display.time_format, self._origin)
        self._error_printer = Printer(sys.stderr.fileno())
        self._findings_printer = self._error_printer
        self._table: LiveTable | None = None
        self._lock = threading.Lock()  # held while the counters change
        self._not_shown = NotShown(self._say)
        self._live = Live(time.time_ns()) if options.stats or options.metrics else None
        self._sinks: list[Sink] = []
        self._doctor = self._make_doctor() if options.doctor or options.store else None
        self._follower = Follower(self._sinks, self._doctor.new_state if self._doctor else LedgerState)
        self._connections: dict[int, Connection] = {}
        if options.record:
            self._sinks.append(self._make_recording(options.record))
        if options.store and self._doctor is not None:
            from pulsarctl_wire.cli.tui.sink import StoreSink

            self._sinks.append(StoreSink(Path(options.store), self._doctor, self._say))
        if self._live is not None:
            self._sinks.append(self._live)
        if self._doctor is not None:
            self._sinks.append(self._doctor)
        if options.tap:
            self._sinks.append(self._make_tap())
        self._sinks.append(self._not_shown)
        if options.metrics:
            from pulsarctl_wire.cli.metrics import SnapshotCollector, serve

            url = serve(options.metrics, SnapshotCollector(self._snapshot), stack)
            console.warn(f"metrics at {url}")

    def _make_recording(self, path: str) -> RecordingSink:
        rotation = {**self.options.rotation.parse_rotation(), "since_ns": self._since_ns}
        show_secrets = self.options.display.show_secrets
        return RecordingSink(path, self._say, "forwarding", show_secrets=show_secrets, **rotation)

    def _make_doctor(self) -> "Doctor":
        options = self.options
        if options.store and not options.doctor:
            return options.checks.make_doctor(live=True)
        stream = sys.stderr if options.tap else sys.stdout
        if not options.tap:
            self._findings_printer = Printer(stream.fileno())
        output = "text" if options.tap else options.output
        paint = Paint(console.has_colour(stream))
        width = console.terminal_width(stream)
        on_finding = FindingPrinter(output, paint, self._clock, self._findings_printer.put, width)
        return options.checks.make_doctor(live=True, on_finding=on_finding)

    def _make_tap(self) -> TapPrinter:
        options = self.options
        display = options.display
        recorder = Recorder(
            show_secrets=display.show_secrets,
            schema=schema_of(display.schema),
            keys=read_private_keys(display.private_keys),
        )
        tests = select.tests(options.selection)
        if options.selection.expression is not None:
            tests.append(select.Expression(options.selection.expression, recorder))
        render = console.make_renderer(sys.stdout, options.output, recorder, self._clock)
        printer = Printer(sys.stdout.fileno())
        return TapPrinter(printer, render, tests, self._origin, self._say, self._count_refused)

    def _count_refused(self, frames: int) -> None:
        """Count frames that the printer refused."""
        self._not_shown.frames += frames
        if self._live is not None:
            self._live.missed_frames += frames

    def _snapshot(self, now_ns: int | None = None) -> Snapshot:
        assert self._live is not None
        with self._lock:
            return self._live.snapshot(time.time_ns() if now_ns is None else now_ns)

    def run(self, ring: TapRing) -> int:
        """Watch until the proxy ends; returns the exit code."""
        os.nice(_NICE)
        if self.options.stats:
            from pulsarctl_wire.cli.proxy.live_table import LiveTable

            self._table = LiveTable(self._snapshot, self._stack)
            self._sinks.append(self._table)
        next_tick = deadline = 0.0
        for record in ring.records(_TICK):
            now = time.monotonic()
            if ring.is_ending:
                deadline = deadline or now + _CATCH_UP
            if record is not None and record.kind == tap.CARRIED and deadline and now > deadline:
                self._not_shown.unread += len(record.data)
            elif record is not None:
                with self._lock:
                    self._take(record)
            if now >= next_tick:
                next_tick = now + _TICK
                record_ns = record.time_ns if record is not None else 0  # not now: more may wait in the ring
                self._follower.tick(record_ns or time.time_ns())
        self._follower.finish()
        if self._doctor is not None and self.options.doctor:
            self._say(summarize(self._doctor))
        failed = self._end_findings() or self._follower.failed
        self._error_printer.end(FLUSH_TIMEOUT)
        return console.EXIT_OUTPUT if failed else 0

    def _end_findings(self) -> bool:
        """Write the findings that are still buffered; return whether their output failed."""
        if self._findings_printer is self._error_printer:
            return False
        unwritten = self._findings_printer.end(FLUSH_TIMEOUT)
        if unwritten:
            self._say(f"{unwritten} bytes of findings not shown at the end")
        reason, failed = self._findings_printer.describe_error("the findings")
        if reason:
            self._say(reason)
        return failed

    def _take(self, record: TapRecord) -> None:
        kind, index, to_broker, time_ns, data = record
        if kind == tap.NOTE:
            self._say(data.decode("utf-8", "replace"), time_ns)
        elif kind == tap.LEFT_OUT:
            self._say(f"{index} notes were left out")  # here `index` is their number
        elif kind == tap.OPENED:
            client, server, listener = data.decode("utf-8", "replace").split("\n")
            connection = Connection(index, client, server)
            connection.listener = listener
            self._open(connection, time_ns)
        elif kind == tap.CARRIED:
            if index not in self._connections:
                if self._since_ns is not None:  # the proxy is about to announce it again
                    self._not_shown.bytes += len(data)
                    return
                self._open(Connection(index), time_ns)
            self._follower.carried(self._connections[index], to_broker, data, time_ns)
        elif index not in self._connections:
            if kind == tap.MISSED:
                self._not_shown.missed(Connection(index), to_broker, *record.counts, time_ns)
        elif kind == tap.CHANGED:
            self._follower.changed(self._connections[index], to_broker, data.decode("utf-8", "replace"))
        elif kind == tap.MISSED:
            self._follower.missed(self._connections[index], to_broker, *record.counts, time_ns)
        elif kind == tap.CLOSED:
            self._follower.closed(self._connections.pop(index), time_ns, by_broker=not to_broker)

    def _open(self, connection: Connection, time_ns: int) -> None:
        self._connections[connection.index] = connection
        self._follower.opened(connection, time_ns)

    def _say(self, text: str, time_ns: int | None = None) -> None:
        """Print a message about something that happened at `time_ns`, by default now."""
        if self.options.display.time_format == "relative" and self._origin.time_ns is None:
            stamp = "-"
        else:
            stamp = self._clock(time_ns or time.time_ns())
        text = f"{stamp} {text}"
        if self._table is not None:
            with suppress(OSError):  # the terminal may be gone
                console.warn(text)  # above the table
            return
        self._error_printer.put(f"pwire: {clean(text)}\n".encode("utf-8", "backslashreplace"))


class NotShown(Sink):
    """Counts frames and bytes that were not shown, and reports them at most once a second and at the end."""

    wants_events = False

    def __init__(self, say: Callable[[str], None]) -> None:
        self.frames = 0
        self.bytes = 0  # outside of frames
        self.unread = 0  # bytes that were not read in time at the end
        self._say = say
        self._reported_frames = self._reported_at = 0

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> None:
        """Count missed bytes and frames as not shown."""
        self.frames += frames
        if not frames:
            self.bytes += size

    def tick(self, now_ns: int) -> None:
        """Report the frames missed since the last report."""
        now = time.monotonic_ns()
        if self.frames > self._reported_frames and now - self._reported_at > _REPORT_INTERVAL:
            self._say(f"tap fell behind: {self.frames - self._reported_frames} frames not shown")
            self._reported_frames, self._reported_at = self.frames, now

    def finish(self) -> None:
        """Report the totals."""
        if self.frames:
            self._say(f"tap fell behind: {self.frames} frames not shown in total")
        if self.bytes:
            self._say(f"tap fell behind: {self.bytes} bytes outside frames not shown in total")
        if self.unread:
            self._say(f"tap fell behind: {self.unread} bytes not shown at the end")
