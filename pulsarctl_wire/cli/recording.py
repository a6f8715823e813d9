"""`--record` and `--trace`: sinks that write what connections carry as a capture, and show their frames."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from pulsarctl_wire.capture.rotation import RotatingWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.wire.encryption import KeyRing
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.framing.redaction import Redactor
from pulsarctl_wire.wire.session.ledgers import LedgerState
from pulsarctl_wire.wire.session.sinks import Sink


class RecordingSink(Sink):
    """Writes what connections carry to pcapng files. Credentials are masked with stars unless `show_secrets`.

    `rotation` is passed to `RotatingWriter`. If the first file cannot be opened, the command ends. If a later
    write fails, recording stops, and `say` is called with a text: the error, and that `activity` goes on.
    Blocks are written at each tick, or immediately with `at_once`.
    """

    wants_events = False

    def __init__(
        self,
        path: str,
        say: Callable[[str], None],
        activity: str,
        *,
        show_secrets: bool,
        at_once: bool = False,
        **rotation: int | None,
    ) -> None:
        if path == "-":
            console.fail("--record -: name a file")
        try:
            self._writer = RotatingWriter(Path(path), time.time_ns(), **rotation)
        except OSError as error:
            console.fail(f"--record {path}: {error.strerror}", console.EXIT_OUTPUT)
        self._path, self._say, self._activity = path, say, activity
        self._show_secrets = show_secrets
        self._at_once = at_once
        self._redactors: dict[tuple[int, bool], Redactor] = {}
        self._held_ns: dict[tuple[int, bool], int] = {}  # when the newest of the held bytes came

    def opened(self, connection: Connection, time_ns: int, state: LedgerState | None = None) -> None:
        """Write the connection's beginning."""
        if not self._show_secrets:
            self._redactors.update({(connection.index, to_broker): Redactor() for to_broker in (False, True)})
        self._write(self._writer.opened, connection, time_ns)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Write `data`. Bytes that may hold credentials are held until their frame is complete."""
        direction = connection.index, to_broker
        redactor = self._redactors.get(direction)
        for part in (data,) if redactor is None else redactor.feed(data):
            self._write(self._writer.carried, connection, to_broker, part, time_ns)
        if redactor is not None and redactor.held:
            self._held_ns[direction] = time_ns

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Write a comment on the next packet."""
        self._write(self._writer.comment, connection, f"pwire proxy: {change}")

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> None:
        """Write a gap. It includes the bytes held so far, as the rest of their frame is missing."""
        redactor = self._redactors.get((connection.index, to_broker))
        if redactor is not None:
            size += redactor.held
            self._redactors[connection.index, to_broker] = Redactor()
        self._write(self._writer.gap, connection, to_broker, size, time_ns)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Write the held bytes, and the connection's end."""
        self._write_held(connection)
        self._write(self._writer.closed, connection, time_ns, by_broker)

    def tick(self, now_ns: int) -> None:
        """Flush the file."""
        self._write(self._writer.files.flush)

    def finish(self) -> None:
        """Write the held bytes, and close the file."""
        for index, _ in list(self._redactors):
            self._write_held(Connection(index))
        self._write(self._writer.files.close)

    def _write_held(self, connection: Connection) -> None:
        """Write the held bytes of a connection that has ended: the rest of their frame never came."""
        for to_broker in (False, True):
            redactor = self._redactors.pop((connection.index, to_broker), None)
            time_ns = self._held_ns.pop((connection.index, to_broker), 0)
            if redactor is not None and redactor.held:
                self._write(self._writer.carried, connection, to_broker, redactor.end(), time_ns)

    def _write(self, write: Callable[..., None], *values: object) -> None:
        if self.failed:
            return
        try:
            write(*values)
            if self._at_once:
                self._writer.files.flush()
        except OSError as error:
            self.failed = True
            self._say(f"--record {self._path}: {error.strerror}; {self._activity} goes on unrecorded")


class Trace(Sink):
    """Shows the frames of links, by default on stderr, with the renderers of `decode`."""

    def __init__(
        self, output: str, *, show_secrets: bool, keys: KeyRing | None = None, stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        recorder = Recorder(show_secrets=show_secrets, keys=keys)
        self._render = console.make_renderer(self._stream, output, recorder, TimeFormatter())

    def events(self, events: list[Event]) -> None:
        """Show the events, after flushing stdout."""
        sys.stdout.flush()
        self._stream.buffer.writelines(self._render(events))
        self._stream.buffer.flush()
