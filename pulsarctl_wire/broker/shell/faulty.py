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
"""Bytes that faults may delay in a direction before no more is taken from its source."""

_ROUNDING: Final = 1e-6  # seconds: when a timer is due, its time has come in spite of rounding

_PRIMING: Final = 1 << 63
"""Request ids of commands that the client sent before there were faults."""


class Ends(Protocol):
    """The two sides of a connection."""

    def deliver(self, frame: Frame) -> None:
        """The core gets a frame."""

    def transmit(self, data: bytes) -> None:
        """The client gets bytes."""

    def break_off(self, *, reset: bool = False) -> None:
        """Both sides lose the connection."""

    def note(self, text: str) -> None:
        """Tell the user."""

    def flush(self) -> None:
        """Look at the connection again: there may be room."""


class FaultyConnection:
    """Applies faults to both directions of a connection whose client used the service URL `url`.

    Its frames have at most `limit` bytes.
    """

    def __init__(
        self, faults: Faults, connection: Connection, ends: Ends, scheduler: Scheduler, limit: int, url: str
    ) -> None:
        self.ends = ends
        self.scheduler = scheduler
        self.blackholed = False
        self._connection = connection
        self._session = ExchangeState(connection, Knowledge())
        self._from_core = FrameStream(connection, False, limit=limit)
        self._to_core = FrameStream(connection, True, limit=limit)
        index = connection.index
        self.lanes = tuple(
            _Lane(self, FaultLane(faults, index, way, url), pass_on)
            for way, pass_on in ((False, ends.transmit), (True, self._into_core))
        )
        for way in (False, True):
            self.lanes[way].other = self.lanes[not way]

    def prime(self, producers: Mapping[int, Endpoint], consumers: Mapping[int, Receiver]) -> None:
        """The client has these already: faults know their topics."""
        opened: list[tuple[str, dict[str, object]]] = [
            ("PRODUCER", {"producer_id": id, "topic": each.topic.name.full})
            for id, each in producers.items()
            if isinstance(each, Producer)
        ]
        for id, each in consumers.items():
            if isinstance(each, Consumer):
                names = {"topic": each.subscription.topic_name, "subscription": each.subscription.name}
                opened.append(("SUBSCRIBE", {"consumer_id": id, "subType": each.kind, **names}))
        stream = FrameStream(self._connection, True)
        for number, (name, fields) in enumerate(opened):
            data = build_frame(build_command(name, request_id=_PRIMING + number, **fields))
            self._track(stream.feed(data, self._time_ns))

    @property
    def _time_ns(self) -> int:
        return self.scheduler.time_ms * 1_000_000

    def _track(self, events: Iterable[Any]) -> list[Frame]:
        frames = [event for event in events if isinstance(event, Frame)]
        self._session.track(list(frames))
        return frames

    def received(self, frame: Frame) -> None:
        """The client has sent a frame."""
        self._session.track([frame])
        self.lanes[True].take(frame.raw, frame)

    def sent(self, data: bytes) -> None:
        """The core has sent whole frames."""
        for frame in self._track(self._from_core.feed(data, self._time_ns)):
            self.lanes[False].take(frame.raw, frame)

    def _into_core(self, data: bytes) -> None:
        for event in self._to_core.feed(data, self._time_ns):
            if not isinstance(event, Frame) or event.partial:
                self.ends.break_off()
                break
            self.ends.deliver(event)

    @property
    def holds_much(self) -> tuple[bool, bool]:
        """Whether so much is delayed, on its way to the client and to the core, that no more should come."""
        to_client, to_core = self.lanes
        return to_client.size > MAX_DELAYED_BYTES, to_core.size > MAX_DELAYED_BYTES

    def renew(self) -> None:
        """The faults were changed."""
        for lane in self.lanes:
            lane.renew()

    def when_sent(self, do: Callable[[], None]) -> None:
        """Call `do` when everything was sent to the client that waits for that."""
        self.lanes[False].later(0.0, do)

    def stop(self) -> None:
        """The client has gone: the core gets at once what it has sent."""
        self.lanes[True].flush()
        for lane in self.lanes:
            lane.stop()


class _Lane:
    """One direction. `size` are the bytes that it delays."""

    def __init__(self, both: FaultyConnection, faults: FaultLane, pass_on: Callable[[bytes], None]) -> None:
        self.other: _Lane = self
        self.size = 0
        self._both = both
        self._faults = faults
        self._pass_on = pass_on
        self._scheduler = both.scheduler
        self._delayed: deque[tuple[float, Callable[[], None], int]] = deque()
        self._timers: set[Timer] = set()
        self._stopped = False

    @property
    def _now(self) -> float:
        return self._scheduler.ticks / 1e9

    def take(self, data: bytes, frame: Frame | None) -> None:
        """Have faults act on a frame."""
        self._act(self._faults.take(data, frame, self._now))

    def renew(self) -> None:
        """The faults were changed: what those held back that are gone goes on."""
        if self._faults.released():
            self._do_until(float("inf"))
        self.take(b"", None)

    def flush(self) -> None:
        """Pass on everything that waits."""
        self._act(self._faults.flush(self._now))
        self._do_until(float("inf"))

    def _act(self, actions: list[Action]) -> None:
        both = self._both
        for action in actions:
            if isinstance(action, Send):
                lane, at = (self.other, 0.0) if action.back else (self, action.at)
                lane.later(at, partial(lane.send, action.data), len(action.data))
            elif isinstance(action, Note):
                both.ends.note(action.text)
            elif isinstance(action, Close):
                self.later(0.0, both.ends.break_off)
            elif isinstance(action, Reset):
                self.later(0.0, partial(both.ends.break_off, reset=True))
            elif isinstance(action, Blackhole):
                self.later(0.0, partial(setattr, both, "blackholed", True))
            elif isinstance(action, Wake):
                self._call_at(action.at, partial(self.take, b"", None))

    def send(self, data: bytes) -> None:
        """Pass bytes on."""
        if not self._both.blackholed:
            self._pass_on(data)

    def later(self, at: float, do: Callable[[], None], size: int = 0) -> None:
        """Call `do` at a time, after everything that waits already."""
        if not self._delayed and at <= self._now:
            do()
            return
        if not self._delayed:
            self._call_at(at, self._due)
        self._delayed.append((at, do, size))
        self.size += size

    def _call_at(self, at: float, do: Callable[[], None]) -> None:
        def call() -> None:
            self._timers.discard(timer)
            do()
            self._both.ends.flush()

        if not self._stopped:
            timer = self._scheduler.later(max(at - self._now, 0) + _ROUNDING, call)
            self._timers.add(timer)

    def _due(self) -> None:
        self._do_until(self._now)
        if self._delayed:
            self._call_at(self._delayed[0][0], self._due)

    def _do_until(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, do, size = self._delayed.popleft()
            self.size -= size
            do()

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True
        self._delayed.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
