"""`--trace`: shows the frames of a session as they pass."""

import sys
from typing import TextIO

from pulsarctl_wire.cli import console
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import Clock
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.sinks import Sink


class Trace(Sink):
    """Shows the frames of links, by default on stderr, with the renderers of `decode`."""

    def __init__(self, output: str, *, show_secrets: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        recorder = Recorder(show_secrets=show_secrets)
        self._render = console.event_renderer(self._stream, output, recorder, Clock())

    def events(self, events: list[Event]) -> None:
        """Show the events, after flushing stdout."""
        sys.stdout.flush()
        self._stream.buffer.writelines(self._render(events))
        self._stream.buffer.flush()
