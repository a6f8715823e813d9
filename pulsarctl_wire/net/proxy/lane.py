"""One direction of a relay: forwards bytes, and decodes the few frames that the proxy has to inspect.

A lane forwards bytes at once: it walks from frame header to frame header (`wire/framing/walk.py`), collects
the few frames to be inspected, and forwards everything in between unread. It inspects frames that name
brokers (to rewrite them, see `routing.py`), frames with credentials, and those that say which topic an id
stands for; while faults are in force, all frames. Bytes that are not frames are forwarded unchanged. A lane
writes to the `TapRing` only what it has already forwarded, so the watcher cannot delay or change it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol
from weakref import ref

from pulsarctl_wire.faults.base import ANSWERED_FOR_PEER, Action, Blackhole, Close, Note, Reset, Send, Wake
from pulsarctl_wire.faults.lanes import FaultLane, Faults
from pulsarctl_wire.net.proxy.tap import TapRing, TapWriter
from pulsarctl_wire.wire.addresses import CARRIERS
from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME, Connection, Frame, replace_command
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.framing.walk import HEAD, FrameWalk
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session.exchanges import ExchangeState

MAX_DELAYED_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes that may be delayed in a lane; beyond that its source is not read."""

MAX_ANSWERS: Final = 1_000
"""Maximum answers by faults that wait for a frame boundary; beyond that no requests are read."""

# to the client, to the broker; frames with credentials must reach the tap whole: its reader masks them
_INSPECTED: Final = (
    frozenset(CARRIERS),
    frozenset((BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE, BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE)),
)


class Side(Protocol):
    """The part of a leg that lanes use: their source or target."""

    transport: Any
    is_full: bool
    is_gone: bool
    can_half_close: bool

    def end(self) -> None:
        """Send an end of file after what was sent before."""


class LaneOwner(Protocol):
    """The part of a relay that its lanes use. Pairs are indexed by whether the item is the broker's.

    `Relay` says what the attributes mean.
    """

    connection: Connection
    order: int
    tap: TapRing
    faults: Faults
    session: ExchangeState
    loop: asyncio.AbstractEventLoop
    carried: list[int]
    is_blackholed: bool
    is_draining: bool
    has_dialled: bool
    is_over: bool
    is_unsettled: bool

    @property
    def legs(self) -> "tuple[Side, Side]":
        """The connections with the client and with the broker."""

    @property
    def lanes(self) -> "tuple[RelayLane, RelayLane]":
        """The lanes to the client and to the broker."""

    def now(self) -> float:
        """Return the loop's time, in seconds."""

    def admit(self, data: bytes, to_broker: bool) -> bool:
        """Return whether these bytes may pass; lanes call it while the relay is `is_unsettled`."""

    def route_connect(self, frame: Frame) -> bool:
        """Choose the route for the client's CONNECT; return whether the frame was changed for that."""

    def rewrite(self, command: BaseCommand) -> bool:
        """Rewrite the addresses in a command to the client; return whether anything changed."""

    def find_url(self) -> str:
        """Return the service URL that the client used."""

    def dial(self) -> None:
        """Start connecting to the broker, unless that has been started."""

    def open_tap(self) -> None:
        """Write the start of the connection to the tap, once."""

    def balance(self) -> None:
        """Pause or resume reading from both sides."""

    def note(self, text: str) -> None:
        """Show the user a note about this connection."""

    def close(self) -> None:
        """Close both legs after sending everything that waits to be sent."""

    def reset(self) -> None:
        """Reset both legs (RST)."""

    def blackhole(self) -> None:
        """Stop passing bytes in either direction."""


class RelayLane:
    """One direction of a relay."""

    def __init__(self, relay: LaneOwner, to_broker: bool) -> None:
        self.to_broker = to_broker
        self.has_ended = False  # its source has sent an end of file, and that was passed on
        self._relay = relay
        self.tap_writer = TapWriter(relay.tap, relay.connection, to_broker)
        self._walk = FrameWalk(_INSPECTED[to_broker])
        self._stream: FrameStream | None = None
        self._fault_lane: FaultLane | None = None
        self._held = bytearray()  # the beginning of a frame to be inspected
        self._need = 0  # bytes that `_held` needs before the walk can go on
        self.answers: list[tuple[bytes, str]] = []  # of the other lane, to be sent at a frame boundary
        self._waiting: list[bytes] = []  # for the target leg to be connected
        self._delayed: deque[tuple[float, Callable[[], None], int]] = deque()
        self._delayed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_paused = self._must_finish = False

    # -- receiving

    def feed(self, data: bytes) -> None:
        """Process the next bytes of its source."""
        if self._relay.is_unsettled and not self._relay.admit(data, self.to_broker):
            return
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return
            data, self._held = bytes(self._held), bytearray()
        self._sync_faults()
        walk = self._walk
        start, end = 0, len(data)
        while start < end:
            stop = walk.walk(data, start)
            if stop > start:
                self._pass_on(data[start:stop])
            if stop == end:
                break
            size = walk.size(data, stop)
            if not size or end - stop < size:
                self._need = size or HEAD
                self._held += data[stop:]
                break
            start = stop + size
            self._inspect(data[stop:start])
        self._send_answers()

    def end(self) -> None:
        """Pass on everything that waits, then the end of file that the source has sent."""
        self._flush()
        self._schedule(0.0, self._finish)

    def _flush(self) -> None:
        data, self._held = bytes(self._held), bytearray()
        if data:
            self._pass_on(data)
        if self._fault_lane is not None:
            self._act(self._fault_lane.flush(self._relay.now()))

    def _finish(self) -> None:
        relay = self._relay
        target = relay.legs[self.to_broker]
        if target.transport is None and relay.has_dialled:
            self._must_finish = True  # `begin` finishes, after sending what waits for the broker
            return
        self.has_ended = True
        if target.transport is None or relay.lanes[not self.to_broker].has_ended:
            relay.close()
        elif not relay.is_blackholed and not target.transport.is_closing():
            if target.can_half_close:
                target.end()
            else:  # TLS has no half-close
                relay.close()

    # -- inspected frames

    def _inspect(self, raw: bytes) -> None:
        """Process a whole frame: rewrite it if necessary, apply faults, pass it on."""
        relay = self._relay
        frame = self._decode(raw)
        if frame is not None and frame.base is not None:
            is_changed = False
            if frame.type == BaseCommand.CONNECT:
                is_changed = relay.route_connect(frame)
            elif not self.to_broker and frame.type in CARRIERS:
                is_changed = relay.rewrite(frame.base)
            if is_changed:
                raw = replace_command(frame.raw, frame.base)
                frame = self._decode(raw) or frame
            relay.session.track([frame])
        if self._fault_lane is not None:
            self._act(self._fault_lane.take(raw, frame, relay.now()))
        else:
            self._pass_on(raw)

    def _decode(self, raw: bytes) -> Frame | None:
        if self._stream is None or not self._stream.is_in_step:
            self._stream = FrameStream(self._relay.connection, self.to_broker, limit=MAX_KEPT_FRAME)
        events = self._stream.feed(raw, time.time_ns())
        frame = events[0] if events else None
        if isinstance(frame, Frame) and len(frame.raw) == len(raw):
            return frame
        self._stream = None  # it is out of step: the next frame needs a new stream
        return None

    # -- faults

    def _sync_faults(self) -> None:
        """Inspect every frame while there are faults."""
        faults = self._relay.faults
        if bool(faults) == (self._fault_lane is not None):
            return
        if self._fault_lane is None:
            relay = self._relay
            self._fault_lane = FaultLane(faults, relay.order, self.to_broker, relay.find_url())
        else:
            lane, self._fault_lane = self._fault_lane, None
            self._act(lane.flush(self._relay.now()))
            self._run_until(float("inf"))  # also what the faults delayed
        self._walk.want_all(self._fault_lane is not None)

    def renew_faults(self) -> None:
        """Apply added and removed faults; if one was removed, send what it held back and what is delayed."""
        if self._fault_lane is not None and self._fault_lane.has_removed_faults():
            self._run_until(float("inf"))
        self._sync_faults()
        self.wake()

    def _act(self, actions: list[Action]) -> None:
        relay = self._relay
        for action in actions:
            if isinstance(action, Send):
                if action.back:
                    relay.lanes[not self.to_broker].answer(action.data, action.outcome)
                else:
                    send = partial(self._send, action.data, action.change)
                    self._schedule(action.at, send, len(action.data))
            elif isinstance(action, Note):
                relay.note(action.text)
            elif isinstance(action, Close):
                self._schedule(0.0, relay.close)
            elif isinstance(action, Reset):
                self._schedule(0.0, relay.reset)
            elif isinstance(action, Blackhole):
                self._schedule(0.0, relay.blackhole)
            elif isinstance(action, Wake):
                relay.loop.call_at(action.at, _wake, ref(self))

    def wake(self) -> None:
        """Send what faults hold back and is due now."""
        if self._fault_lane is not None and not self._relay.is_over:
            self._act(self._fault_lane.take(b"", None, self._relay.now()))

    def answer(self, data: bytes, change: str = ANSWERED_FOR_PEER) -> None:
        """Insert a frame that the source did not send, at the next frame boundary."""
        self.answers.append((data, change))
        self._send_answers()

    def _send_answers(self) -> None:
        if self.answers and not self._walk.left and not self._held:
            answers, self.answers = self.answers, []
            for data, change in answers:
                self._schedule(0.0, partial(self._send, data, change), len(data))
            self._relay.balance()
        elif len(self.answers) == MAX_ANSWERS:
            self._relay.balance()

    # -- sending

    def _pass_on(self, data: bytes) -> None:
        """Send bytes to the target, after applying faults, and after everything that is delayed."""
        if self._fault_lane is not None:
            self._act(self._fault_lane.take(data, None, self._relay.now()))
        elif self._delayed:
            self._schedule(0.0, partial(self._send, data), len(data))
        else:
            self._send(data)

    def _send(self, data: bytes, change: str = "") -> None:
        relay = self._relay
        target = relay.legs[self.to_broker].transport
        if relay.is_blackholed or self.has_ended:
            return
        if target is None:
            self._waiting.append(data)
            relay.dial()
        elif not target.is_closing():
            relay.open_tap()
            now = time.time_ns()  # before the write, so that no answer can have an earlier time
            target.write(data)
            relay.carried[self.to_broker] += len(data)
            if change:
                relay.tap.changed(relay.connection, self.to_broker, change, now)
            self.tap_writer.carried(data, now)

    def _schedule(self, due: float, callback: Callable[[], None], size: int = 0) -> None:
        """Call `callback`, which sends `size` bytes, at `due` (seconds), after everything that waits now."""
        if not self._delayed and due <= self._relay.now():
            callback()
            return
        self._delayed.append((due, callback, size))
        self._delayed_bytes += size
        if self._timer is None:
            self._timer = self._relay.loop.call_at(due, self._run_due)
        self.balance()

    def _run_due(self) -> None:
        self._timer = None
        self._run_until(self._relay.now())
        if self._delayed and not self._relay.is_over:
            self._timer = self._relay.loop.call_at(self._delayed[0][0], self._run_due)
        self.balance()

    def _run_until(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now and not self._relay.is_over:
            _, callback, size = self._delayed.popleft()
            self._delayed_bytes -= size
            callback()
        if not self._delayed and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- back-pressure, and the end

    def balance(self) -> None:
        """Pause or resume reading the source, depending on whether there is room for what it sends."""
        relay = self._relay
        source, target = relay.legs[not self.to_broker], relay.legs[self.to_broker]
        transport = source.transport
        if transport is None or source.is_gone or transport.is_closing():
            return
        has_room = not target.is_full and self._delayed_bytes < MAX_DELAYED_BYTES
        if self._fault_lane is not None:  # faults may answer the source, which must have room for that
            has_room &= not source.is_full and len(relay.lanes[not self.to_broker].answers) < MAX_ANSWERS
        must_pause = not has_room or relay.is_draining or (target.transport is None and relay.has_dialled)
        if must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def begin(self) -> None:
        """Send what waited for both legs to be connected."""
        parts, self._waiting = self._waiting, []
        for data in parts:
            self._send(data)
        if self._must_finish:
            self._finish()
        self.balance()

    def stop(self, *, flush: bool) -> None:
        """End the lane. With `flush`, send everything that waits now, even if delayed; otherwise drop it."""
        if self._timer is not None:
            self._timer.cancel()
        if flush:
            self._flush()
            self._run_until(float("inf"))
        self._delayed.clear()
        if self._fault_lane is not None:
            for note in self._fault_lane.end():
                self._relay.note(note.text)
            self._fault_lane = None
        self.tap_writer.finish()


def _wake(lane: "ref[RelayLane]") -> None:
    """Wake a lane if it still exists: faults may hold frames for longer than the connection lives."""
    target = lane()
    if target is not None:
        target.wake()
