"""Faults on the connections of a broker: they act on frames between the socket and the core.

    client ── frames ──► lane ── bytes ──► frames ──► core
           ◄── bytes ◄── lane ◄── frames ◄── bytes ──

Delays follow the broker's clock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from pulsarctl_wire.broker.basics.scheduler import Scheduler, Timer
from pulsarctl_wire.broker.clients.connection import Endpoint, Receiver
from pulsarctl_wire.broker.delivery.consumer import Consumer
from pulsarctl_wire.broker.topics.topic import Producer
from pulsarctl_wire.faults.base import Action, Blackhole, Close, Note, Reset, Send, Wake
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

MAX_DELAYED_BYTES: Final = 4 * 1024 * 1024
"""With more bytes delayed to the core, the client is not read; with more to the client, the core waits."""

_ROUNDING: Final = 1e-6  # seconds added to timers, so that none runs early by a rounding error

_PRIMING_REQUEST_ID: Final = 1 << 63
"""The first request id of the commands that `prime` makes up: clients hardly use such large ones."""


class Ends(Protocol):
    """The two sides of a connection."""

    def deliver(self, frame: Frame) -> None:
        """Pass a frame to the core."""

    def transmit(self, data: bytes, change: str = "") -> None:
        """Pass bytes to the client; `change` says what was done to the frame."""

    def break_off(self, *, reset: bool = False) -> None:
        """End the connection on both sides."""

    def note(self, text: str) -> None:
        """Print a note for the user."""

    def flush(self) -> None:
        """Send what waits, and resume reading, as far as there is room again."""


class FaultyConnection:
    """Applies faults to both directions of a connection whose client used the service URL `url`.

    Its frames have at most `limit` bytes.
    """

    def __init__(
        self, faults: Faults, connection: Connection, ends: Ends, scheduler: Scheduler, limit: int, url: str
    ) -> None:
        self.ends = ends
        self.scheduler = scheduler
        self.is_blackholed = False
        self._connection = connection
        self._session = ExchangeState(connection, Knowledge())
        self._from_core = FrameStream(connection, False, limit=limit)
        self._to_core = FrameStream(connection, True, limit=limit)
        index = connection.index
        self.lanes = tuple(
            _Lane(self, FaultLane(faults, index, to_core, url), pass_on)
            for to_core, pass_on in ((False, ends.transmit), (True, self._deliver))
        )
        """The lane to the client, then the one to the core: the index is `to_core`."""
        for to_core in (False, True):
            self.lanes[to_core].opposite = self.lanes[not to_core]

    def prime(self, producers: Mapping[int, Endpoint], consumers: Mapping[int, Receiver]) -> None:
        """Tell the faults about producers and consumers that exist already, with their topics."""
        commands: list[tuple[str, dict[str, object]]] = [
            ("PRODUCER", {"producer_id": id, "topic": producer.topic.name.full})
            for id, producer in producers.items()
            if isinstance(producer, Producer)
        ]
        for id, consumer in consumers.items():
            if isinstance(consumer, Consumer):
                subscription = consumer.subscription
                names = {"topic": subscription.topic_name, "subscription": subscription.name}
                commands.append(("SUBSCRIBE", {"consumer_id": id, "subType": consumer.kind, **names}))
        stream = FrameStream(self._connection, True)
        for number, (name, fields) in enumerate(commands):
            data = build_frame(build_command(name, request_id=_PRIMING_REQUEST_ID + number, **fields))
            self._track(stream.feed(data, self._time_ns))

    @property
    def _time_ns(self) -> int:
        return self.scheduler.time_ms * 1_000_000

    def _track(self, events: Iterable[Any]) -> list[Frame]:
        frames = [event for event in events if isinstance(event, Frame)]
        self._session.track(list(frames))
        return frames

    def receive(self, frame: Frame) -> None:
        """Pass a frame of the client through its faults."""
        self._session.track([frame])
        self.lanes[True].take(frame.raw, frame)

    def send(self, data: bytes) -> None:
        """Pass whole frames of the core through their faults."""
        for frame in self._track(self._from_core.feed(data, self._time_ns)):
            self.lanes[False].take(frame.raw, frame)

    def _deliver(self, data: bytes, change: str) -> None:
        for event in self._to_core.feed(data, self._time_ns):
            if not isinstance(event, Frame) or event.partial:
                self.ends.break_off()
                break
            self.ends.deliver(event)

    @property
    def full_lanes(self) -> tuple[bool, bool]:
        """Whether too many bytes are delayed on their way to the client, and to the core."""
        to_client, to_core = self.lanes
        return to_client.size > MAX_DELAYED_BYTES, to_core.size > MAX_DELAYED_BYTES

    def renew(self) -> None:
        """Apply changed faults at once."""
        for lane in self.lanes:
            lane.renew()

    def call_after_send(self, action: Callable[[], None]) -> None:
        """Call `action` when everything that waits for the client is sent."""
        self.lanes[False].call_at(0.0, action)

    def stop(self) -> None:
        """Stop, as the client is gone; the core gets at once what the client has sent."""
        self.lanes[True].flush()
        for lane in self.lanes:
            lane.stop()


class _Lane:
    """One direction. `size` is the number of delayed bytes."""

    def __init__(
        self, connection: FaultyConnection, faults: FaultLane, pass_on: Callable[[bytes, str], None]
    ) -> None:
        self.opposite: _Lane = self
        self.size = 0
        self._connection = connection
        self._faults = faults
        self._pass_on = pass_on
        self._scheduler = connection.scheduler
        self._delayed: deque[tuple[float, Callable[[], None], int]] = deque()
        self._timers: set[Timer] = set()
        self._is_stopped = False

    @property
    def _now(self) -> float:
        return self._scheduler.ticks / 1e9

    def take(self, data: bytes, frame: Frame | None) -> None:
        """Apply faults to a frame."""
        self._act(self._faults.take(data, frame, self._now))

    def renew(self) -> None:
        """Apply changed faults; pass on what removed ones held back."""
        if self._faults.has_removed_faults():
            self._call_until(float("inf"))
        self.take(b"", None)

    def flush(self) -> None:
        """Pass on everything that waits."""
        self._act(self._faults.flush(self._now))
        self._call_until(float("inf"))

    def _act(self, actions: list[Action]) -> None:
        connection = self._connection
        for action in actions:
            if isinstance(action, Send):
                lane, time = (self.opposite, 0.0) if action.back else (self, action.at)
                lane.call_at(time, partial(lane.send, action.data, action.outcome), len(action.data))
            elif isinstance(action, Note):
                connection.ends.note(action.text)
            elif isinstance(action, Close):
                self.call_at(0.0, connection.ends.break_off)
            elif isinstance(action, Reset):
                self.call_at(0.0, partial(connection.ends.break_off, reset=True))
            elif isinstance(action, Blackhole):
                self.call_at(0.0, partial(setattr, connection, "is_blackholed", True))
            elif isinstance(action, Wake):
                self._set_timer(action.at, partial(self.take, b"", None))

    def send(self, data: bytes, change: str) -> None:
        """Pass bytes on."""
        if not self._connection.is_blackholed:
            self._pass_on(data, change)

    def call_at(self, time: float, action: Callable[[], None], size: int = 0) -> None:
        """Call `action`, which sends `size` bytes, at a time, after everything that waits already."""
        if not self._delayed and time <= self._now:
            action()
            return
        if not self._delayed:
            self._set_timer(time, self._on_due)
        self._delayed.append((time, action, size))
        self.size += size

    def _set_timer(self, time: float, action: Callable[[], None]) -> None:
        def call() -> None:
            self._timers.discard(timer)
            action()
            self._connection.ends.flush()

        if not self._is_stopped:
            timer = self._scheduler.call_later(max(time - self._now, 0) + _ROUNDING, call)
            self._timers.add(timer)

    def _on_due(self) -> None:
        self._call_until(self._now)
        if self._delayed:
            self._set_timer(self._delayed[0][0], self._on_due)

    def _call_until(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, action, size = self._delayed.popleft()
            self.size -= size
            action()

    def stop(self) -> None:
        """Cancel everything that waits."""
        self._is_stopped = True
        for note in self._faults.end():
            self._connection.ends.note(note.text)
        self._delayed.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
