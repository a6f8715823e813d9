"""Sinks watch live traffic: printers, recordings and counters are sinks.

    bytes of connections ── Follower ── carried, events, … ── Sink, Sink, …

To watch something else, write another sink. docs/extending.md shows how.
"""

from collections.abc import Callable, Sequence

from pulsarctl_wire.wire.frame import Connection, Event, Frame, HttpMessage
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.framing.web_stream import WebStream
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.ledgers import LedgerState

NewState = Callable[[Connection, Knowledge, tuple[FrameStream, FrameStream]], LedgerState]


class Sink:
    """The base class of sinks, which ignores everything. One thread calls its methods, in order.

    Times are ns since the epoch. An exception ends the command. A sink that cannot continue may instead
    report the error, set `failed`, and ignore further calls.
    """

    wants_events = True
    """Whether frames are decoded for it; the value may change at any time."""
    failed = False
    """Whether it had to stop early."""

    def opened(self, connection: Connection, time_ns: int, state: LedgerState) -> None:
        """Handle a new connection; `state` tracks it. An earlier one with the same index has ended."""

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Handle `data` of a connection. If this completes any events, `events` is called next."""

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Handle what a proxy did to the frame that `carried` gets next."""

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> None:
        """Handle a hole of `size` bytes that were not seen: `frames` frames, or parts of them."""

    def events(self, events: list[Event]) -> None:
        """Handle events of a connection (one or more), which its state has tracked."""

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """Handle the end of a connection. Its last events were reported before."""

    def tick(self, now_ns: int) -> None:
        """Handle the passing of time. Called regularly if the command has a clock."""

    def finish(self) -> None:
        """Handle the end: nothing more will come, not even on connections that are still open."""


class Follower:
    """Decodes what connections carry, and passes everything to its sinks, in their order.

    It implements `net.frame_socket.Tap`. `new_state` makes the state of a connection.
    """

    def __init__(self, sinks: Sequence[Sink], new_state: NewState = LedgerState) -> None:
        self._sinks = sinks
        self._new_state = new_state
        self._knowledge = Knowledge()
        self._open: dict[int, tuple[LedgerState, tuple[FrameStream, FrameStream]]] = {}
        self._changes: dict[tuple[int, bool], str] = {}

    @property
    def failed(self) -> bool:
        """Whether a sink has failed."""
        return any(sink.failed for sink in self._sinks)

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Follow a new connection."""
        streams = WebStream(connection, False), WebStream(connection, True)
        state = self._new_state(connection, self._knowledge, streams)
        self._open[connection.index] = state, streams
        for sink in self._sinks:
            sink.opened(connection, time_ns, state)

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Pass on and decode `data` of a connection."""
        for sink in self._sinks:
            sink.carried(connection, to_broker, data, time_ns)
        if self._decodes:
            state, streams = self._open[connection.index]
            self._hand_on(state, streams[to_broker].feed(data, time_ns))

    def changed(self, connection: Connection, to_broker: bool, change: str) -> None:
        """Pass on what was done to the next frame, which gets a note about it."""
        self._changes[connection.index, to_broker] = change
        for sink in self._sinks:
            sink.changed(connection, to_broker, change)

    def missed(self, connection: Connection, to_broker: bool, size: int, frames: int, time_ns: int) -> None:
        """Pass on that `size` bytes of a connection were not seen; see `Sink.missed`."""
        for sink in self._sinks:
            sink.missed(connection, to_broker, size, frames, time_ns)
        if self._decodes:
            state, streams = self._open[connection.index]
            self._hand_on(state, streams[to_broker].gap(size, time_ns))

    def closed(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        """End a connection."""
        self._open[connection.index][0].closed_ns = time_ns
        self._end(connection.index)
        for sink in self._sinks:
            sink.closed(connection, time_ns, by_broker)

    def tick(self, now_ns: int) -> None:
        """Pass on that time has passed."""
        for sink in self._sinks:
            sink.tick(now_ns)

    def finish(self) -> None:
        """End the connections that are still open."""
        for index in list(self._open):
            self._end(index)
        for sink in self._sinks:
            sink.finish()

    @property
    def _decodes(self) -> bool:
        return any(sink.wants_events for sink in self._sinks)

    def _end(self, index: int) -> None:
        """End a connection: pass on its last events."""
        state, streams = self._open.pop(index)
        events = [event for stream in streams for event in stream.close()]
        if streams[0].protocol == streams[1].protocol == "HTTP":  # both sides agree: nothing is malformed
            events = [event for event in events if isinstance(event, HttpMessage)]
        self._hand_on(state, events)
        state.end()

    def _mark(self, events: list[Event]) -> None:
        """Note what was done to frames."""
        for event in events:
            if isinstance(event, Frame):
                change = self._changes.pop((event.connection.index, event.to_broker), "")
                if change:
                    event.note(f"by pwire: {change}")

    def _hand_on(self, state: LedgerState, events: list[Event]) -> None:
        if events:
            if self._changes:
                self._mark(events)
            state.track(events)
            for sink in self._sinks:
                if sink.wants_events:
                    sink.events(events)
