"""The process that watches a proxy: the tap, the recording, the counters, and all that is said meanwhile.

    Ring.records ── Follower (trace.py): events ── tests ── renderer ── Printer ── stdout
                 ├─ RotatingWriter: the bytes themselves, credentials masked
                 ├─ Live: the table, metrics
                 └─ notes ── Printer ── stderr

It is a fork of the proxy with a lower priority, and the proxy waits for it nowhere. What it has no time for
is dropped in the ring; what it could decode, but nobody was there to read, is dropped here. Both are
counted, and said.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pulsarctl_wire.capture.rotation import RotatingWriter
from pulsarctl_wire.cli import console, select
from pulsarctl_wire.cli.keeping import Start
from pulsarctl_wire.cli.line import Clock
from pulsarctl_wire.cli.options import Rotation
from pulsarctl_wire.cli.printer import Printer
from pulsarctl_wire.cli.render import renderer, schema_of
from pulsarctl_wire.cli.trace import Follower
from pulsarctl_wire.net import tap
from pulsarctl_wire.net.tap import Record, Ring
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.stats.live import Live
from pulsarctl_wire.stats.snapshot import Snapshot
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.redaction import Redacted
from pulsarctl_wire.wire.session import Knowledge

if TYPE_CHECKING:
    from pulsarctl_wire.cli.live_table import LiveTable

_TICK: Final = 0.25  # seconds
_SAY: Final = 1_000_000_000  # ns between two lines about what was missed
_CATCH_UP: Final = 3.0  # seconds for what waits in the ring at the end
_FLUSH: Final = 2.0  # seconds for what is still to be written at the end
_NICE: Final = 10


@dataclass(frozen=True)
class Options:
    """What is to be seen of a proxy, and how; named as the options of `proxy` are."""

    shown: bool
    output: str
    expression: str | None
    commands: list[str]
    topics: list[str]
    connections: list[str]
    schema: str | None
    time_format: str
    show_secrets: bool
    record: str | None
    rotation: Rotation
    stats: bool
    metrics: str | None


def watch(options: Options, ring: Ring, start: Start) -> int:
    """Watch what is put into the ring until the proxy ends; gives the exit code."""
    if start.why:
        _tell_of_failure(options, start, ring)
    with console.errors_said(), ExitStack() as stack:
        watching = Watching(options, stack, start.since_ns if start.why else None)
        start.ready()
        return watching.run(ring)


def _tell_of_failure(options: Options, start: Start, ring: Ring) -> None:
    """Say what became of the watcher before this one, and wait as long as is wanted."""
    later = f" in {start.delay:g} s" if start.delay else ""
    clock = Clock("utc" if options.time_format == "relative" else options.time_format, console.Origin())
    text = f"the watcher has ended ({start.why}); forwarding goes on, another one begins{later}"
    printer = Printer(sys.stderr.fileno())
    line = f"pwire: {clock(time.time_ns())} {console.clean(text)}\n"
    printer.put(line.encode("utf-8", "backslashreplace"))
    printer.end(_FLUSH)
    over = time.monotonic() + start.delay
    while time.monotonic() < over and not ring.ending:
        time.sleep(_TICK)


class Watching:
    """One run. Construction raises FilterError, or ends the command, where something cannot be had.

    `since_ns`: another one began then, and has failed.
    """

    def __init__(self, options: Options, stack: ExitStack, since_ns: int | None = None) -> None:
        self.options = options
        self._since_ns = since_ns
        self._stack = stack
        self._table: LiveTable | None = None
        self._recorder = Recorder(show_secrets=options.show_secrets, schema=schema_of(options.schema))
        self._origin = console.Origin()
        self._clock = Clock(options.time_format, self._origin)
        self._tests = select.tests(options.commands, options.connections, options.topics)
        if options.expression is not None:
            self._tests.append(select.Expression(options.expression, self._recorder))
        self._writer: RotatingWriter | None = None
        if options.record:
            self._writer = self._open_record(options.record)
        self._live = Live(time.time_ns()) if options.stats or options.metrics else None
        self._lock = threading.Lock()
        """Held while the counters change."""
        if options.metrics and self._live is not None:
            from pulsarctl_wire.cli.metrics import serve

            url = serve(options.metrics, self._snapshot, stack)
            console.complain(f"metrics at {url}")

    def _open_record(self, path: str) -> RotatingWriter:
        options = self.options
        if path == "-":
            console.fail("--record -: name a file", console.EXIT_USAGE)
        try:
            rotation = options.rotation._asdict()
            return RotatingWriter(Path(path), time.time_ns(), since_ns=self._since_ns, **rotation)
        except OSError as error:
            console.fail(f"--record {path}: {error.strerror}", console.EXIT_OUTPUT)

    def _snapshot(self, now_ns: int | None = None) -> Snapshot:
        assert self._live is not None
        with self._lock:
            return self._live.snapshot(time.time_ns() if now_ns is None else now_ns)

    # -- the run

    def run(self, ring: Ring) -> int:
        """Watch until the proxy ends; gives the exit code."""
        os.nice(_NICE)
        self._out, self._err = Printer(sys.stdout.fileno()), Printer(sys.stderr.fileno())
        self._follower = Follower(Knowledge())
        self._connections: dict[int, Connection] = {}
        self._redacted: dict[tuple[int, bool], Redacted] = {}
        self._held_since: dict[tuple[int, bool], int] = {}  # when what is held there came, the latest of it
        self._render = renderer(
            self.options.output,
            self._recorder,
            self._origin,
            stream=sys.stdout,
            time_format=self.options.time_format,
            show_secrets=self.options.show_secrets,
        )
        self._missed = self._said = 0  # frames not shown; of them said
        self._missed_bytes = 0  # that were no frames
        self._said_at = 0
        self._shown = self.options.shown
        self._code = 0
        self._unread = 0  # bytes that there was no time for at the end
        if self.options.stats:
            from pulsarctl_wire.cli.live_table import LiveTable

            self._table = LiveTable(self._snapshot, self._stack)
        due = over = 0.0
        for record in ring.records(_TICK):
            now = time.monotonic()
            if ring.ending:
                over = over or now + _CATCH_UP
            if record is not None and record.kind == tap.CARRIED and over and now > over:
                self._unread += len(record.data)
            elif record is not None:
                with self._lock:
                    self._take(record)
            if now >= due:
                due = now + _TICK
                self._tick()
        return self._finish()

    def _take(self, record: Record) -> None:
        kind = record.kind
        if kind == tap.CARRIED:
            self._carried(record)
        elif kind == tap.MISSED:
            self._missed_some(record)
        elif kind == tap.OPENED:
            client, _, server = record.data.decode("utf-8", "replace").partition("\n")
            self._open(Connection(record.connection, client, server), record.time_ns)
        elif kind == tap.CLOSED:
            self._closed(record)
        elif kind == tap.NOTE:
            self._say(record.data.decode("utf-8", "replace"), record.time_ns)
        elif kind == tap.LEFT_OUT:
            self._say(f"{record.connection} notes were left out")

    def _open(self, connection: Connection, time_ns: int) -> None:
        self._connections[connection.index] = connection
        self._follower.opened(connection)
        if self._writer is not None and not self.options.show_secrets:
            for to_broker in (False, True):
                self._redacted[connection.index, to_broker] = Redacted()
        if self._live is not None:
            self._live.opened(connection, time_ns)
        if self._writer is not None:
            self._write(partial(self._writer.opened, connection, time_ns))

    def _carried(self, record: Record) -> None:
        index, to_broker, time_ns, data = record.connection, record.to_broker, record.time_ns, record.data
        if index not in self._connections:
            if self._since_ns is not None:  # it is told of again in a moment
                self._missed_bytes += len(data)
                return
            self._open(Connection(index), time_ns)
        connection = self._connections[index]
        writer = self._writer
        if writer is not None:
            redacted = self._redacted.get((index, to_broker))
            for part in (data,) if redacted is None else redacted.feed(data):
                self._write(partial(writer.carried, connection, to_broker, part, time_ns))
            if redacted is not None and redacted.held:
                self._held_since[index, to_broker] = time_ns
        if self._shown or self._live is not None:
            self._see(self._follower.carried(connection, to_broker, data, time_ns))

    def _missed_some(self, record: Record) -> None:
        size, frames = record.counts
        connection = self._connections.get(record.connection)
        self._missed += frames
        if not frames:
            self._missed_bytes += size
        if connection is None:
            return
        if self._live is not None:
            self._live.missed(frames)
        if self._writer is not None:
            direction = record.connection, record.to_broker
            if direction in self._redacted:
                size += self._redacted[direction].held
                self._redacted[direction] = Redacted()
            self._write(partial(self._writer.gap, connection, record.to_broker, size, record.time_ns))
        if self._shown or self._live is not None:
            self._see(self._follower.missed(connection, record.to_broker, size, record.time_ns))

    def _closed(self, record: Record) -> None:
        connection = self._connections.pop(record.connection, None)
        if connection is None:
            return
        by_broker = not record.to_broker
        self._see(self._follower.closed(connection))
        if self._live is not None:
            self._live.closed(connection, record.time_ns, by_broker)
        if self._writer is not None:
            self._write_held(connection)
            self._write(partial(self._writer.closed, connection, record.time_ns, by_broker))

    def _write_held(self, connection: Connection) -> None:
        """Write what has waited for more of a connection that has ended."""
        for to_broker in (False, True):
            redacted = self._redacted.pop((connection.index, to_broker), None)
            time_ns = self._held_since.pop((connection.index, to_broker), 0)
            if redacted is not None and self._writer is not None and redacted.held:
                self._write(partial(self._writer.carried, connection, to_broker, redacted.end(), time_ns))

    def _see(self, events: list[Event]) -> None:
        """Count events, and show those that are wanted."""
        if not events:
            return
        if self._live is not None:
            self._live.add(events)
        if not self._shown:
            return
        if self._origin.time_ns is None:
            self._origin.time_ns = events[0].time_ns
        for test in self._tests:
            events = list(filter(test, events))
        refused = 0
        for event in events:
            if not self._out.put(b"".join(self._render([event]))) and self._out.error is None:
                refused += isinstance(event, Frame)
        self._missed += refused
        if self._live is not None:
            self._live.missed(refused)

    def _write(self, write: Callable[[], None]) -> None:
        if self._writer is None:
            return  # it has failed a moment ago
        try:
            write()
        except OSError as error:
            self._writer = None
            self._code = console.EXIT_OUTPUT
            self._say(f"--record {self.options.record}: {error.strerror}; forwarding goes on unrecorded")

    # -- what is said

    def _say(self, text: str, time_ns: int | None = None) -> None:
        """Say what has happened just now, or at `time_ns`."""
        if self.options.time_format == "relative" and self._origin.time_ns is None:
            shown = "-"
        else:
            shown = self._clock(time_ns or time.time_ns())
        text = f"{shown} {text}"
        if self._table is not None:
            with suppress(OSError):  # nobody may be there any more
                console.complain(text)  # above the table
            return
        self._err.put(f"pwire: {console.clean(text)}\n".encode("utf-8", "backslashreplace"))

    def _tick(self) -> None:
        if self._writer is not None:
            self._write(self._writer.flush)
        now = time.monotonic_ns()
        if self._table is not None and not self._err.waiting:
            with suppress(OSError):
                self._table.refresh(time.time_ns())
        if self._missed > self._said and now - self._said_at > _SAY:
            self._say(f"tap fell behind: {self._missed - self._said} frames not shown")
            self._said, self._said_at = self._missed, now
        self._mind_output()

    def _mind_output(self) -> None:
        if self._out.error is not None and self._shown:
            self._shown = False
            gone = isinstance(self._out.error, BrokenPipeError)
            why = (
                "nobody reads the tap any more"
                if gone
                else f"the tap cannot be written: {self._out.error.strerror}"
            )
            self._say(f"{why}; forwarding goes on")
            self._code = self._code or (0 if gone else console.EXIT_OUTPUT)

    def _finish(self) -> int:
        for connection in self._connections.values():
            self._see(self._follower.closed(connection))
            self._write_held(connection)
        if self._writer is not None:
            self._write(self._writer.close)
        unwritten = self._out.end(_FLUSH)
        self._mind_output()
        if self._missed:
            self._say(f"tap fell behind: {self._missed} frames not shown in all")
        if self._missed_bytes:
            self._say(f"tap fell behind: {self._missed_bytes} bytes outside frames not shown in all")
        if unwritten:
            self._say(f"tap fell behind: {unwritten} bytes of output at the end not shown")
        if self._unread:
            self._say(f"tap fell behind: {self._unread} bytes at the end not shown")
        self._err.end(_FLUSH)
        return self._code
