"""`--trace`: shows the frames of a session as they pass."""

import sys

from pulsarctl_wire.cli import console
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import Clock
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.sinks import Sink


class Trace(Sink):
    """Shows the frames of links on stderr, with the renderers of `decode`."""

    def __init__(self, output: str, *, show_secrets: bool) -> None:
        recorder = Recorder(show_secrets=show_secrets)
        self._render = console.event_renderer(sys.stderr, output, recorder, Clock())

    def events(self, events: list[Event]) -> None:
        """Show the events, after flushing stdout."""
        sys.stdout.flush()
        sys.stderr.buffer.writelines(self._render(events))
        sys.stderr.buffer.flush()
