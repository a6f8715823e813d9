"""`--trace` and `--record`: a session's frames shown as they pass, and its bytes as a capture."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pulsarctl_wire.capture.recording import SessionWriter
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.render import renderer
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.wire.frame import Connection, Event
from pulsarctl_wire.wire.redaction import Redacted
from pulsarctl_wire.wire.session import Knowledge, Session
from pulsarctl_wire.wire.stream import FrameStream


class Follower:
    """The decoder's own streams and sessions over what connections carry, as a Tap sees it."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._followed: dict[int, tuple[Session, tuple[FrameStream, FrameStream]]] = {}

    def opened(self, connection: Connection) -> None:
        """A connection was made."""
        streams = FrameStream(connection, False), FrameStream(connection, True)
        self._followed[connection.index] = Session(connection, self._knowledge, streams), streams

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> list[Event]:
        """The events that `data` completes."""
        session, streams = self._followed[connection.index]
        events = streams[to_broker].feed(data, time_ns)
        session.track(events)
        return events

    def missed(self, connection: Connection, to_broker: bool, size: int, time_ns: int) -> list[Event]:
        """The events that follow from `size` bytes not seen."""
        session, streams = self._followed[connection.index]
        events = streams[to_broker].gap(size, time_ns)
        session.track(events)
        return events

    def closed(self, connection: Connection) -> list[Event]:
        """What was left unfinished."""
        session, streams = self._followed.pop(connection.index)
        events = [event for stream in streams for event in stream.close()]
        session.track(events)
        return events


class Trace:
    """Shows the frames of links on stderr, by the decoder's renderers."""

    def __init__(self, output: str, *, show_secrets: bool) -> None:
        self._origin = console.Origin()
        self._render = renderer(
            output,
            Recorder(show_secrets=show_secrets),
            self._origin,
            stream=sys.stderr,
            show_secrets=show_secrets,
        )
        self._follower = Follower(Knowledge())

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made."""
        self._follower.opened(connection)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Show the frames that `data` completes."""
        self._show(self._follower.carried(connection, to_broker, data, time_ns))

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Show what was left unfinished."""
        self._show(self._follower.closed(connection))

    def _show(self, events: list[Event]) -> None:
        if events:
            sys.stdout.flush()
            if self._origin.time_ns is None:
                self._origin.time_ns = events[0].time_ns
            sys.stderr.buffer.writelines(self._render(events))
            sys.stderr.buffer.flush()


class Recording:
    """Writes what links carry to a pcapng file. Credentials are masked by stars unless `show_secrets`.

    `failed` tells that the file could not be written to its end.
    """

    def __init__(self, path: str, stack: ExitStack, *, show_secrets: bool) -> None:
        if path == "-":
            console.fail("--record -: name a file", console.EXIT_USAGE)
        try:
            stream = stack.enter_context(Path(path).open("wb"))  # noqa: SIM115
        except OSError as error:
            console.fail(f"--record {path}: {error.strerror}", console.EXIT_OUTPUT)
        self.failed = False
        self._path = path
        self._stream = stream
        self._writer = SessionWriter(stream)
        self._show_secrets = show_secrets
        self._redacted: dict[tuple[int, bool], Redacted] = {}

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made."""
        if not self._show_secrets:
            for to_broker in (False, True):
                self._redacted[connection.index, to_broker] = Redacted()
        self._write(lambda: self._writer.opened(connection, time_ns))

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Write `data`; what may hold credentials when it is whole."""
        redacted = self._redacted.get((connection.index, to_broker))
        for part in (data,) if redacted is None else redacted.feed(data):
            self._write(partial(self._writer.carried, connection, to_broker, part, time_ns))

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """It ended."""
        for to_broker in (False, True):
            redacted = self._redacted.pop((connection.index, to_broker), None)
            if redacted is not None and redacted.held:
                self._write(partial(self._writer.carried, connection, to_broker, redacted.end(), time_ns))
        self._write(lambda: self._writer.closed(connection, time_ns, by_broker))

    def _write(self, write: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            write()
            self._stream.flush()
        except OSError as error:
            self.failed = True
            console.complain(f"--record {self._path}: {error.strerror}; the session goes on unrecorded")


class Taps:
    """Several taps as one."""

    def __init__(self, taps: list[Trace | Recording]) -> None:
        self._taps = taps

    def opened(self, connection: Connection, time_ns: int) -> None:
        """A connection was made."""
        for tap in self._taps:
            tap.opened(connection, time_ns)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """It carried `data`."""
        for tap in self._taps:
            tap.carried(connection, to_broker, data, time_ns)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """It ended."""
        for tap in self._taps:
            tap.closed(connection, time_ns, by_broker)
