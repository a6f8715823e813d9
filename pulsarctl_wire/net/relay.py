"""One client's connection through the proxy: two legs, a lane for each direction.

    client ── Leg ──► Lane (to the broker) ──► Leg ── broker
           ◄── Leg ◄── Lane (to the client) ◄── Leg ◄──

A lane passes bytes on as they came, at once: a walk from header to header (`wire/walk.py`) finds the few
frames that are to be looked at as a whole, and everything in between goes on unread. Those few are the
frames that name brokers (to be rewritten, `routing.py`), CONNECT, and what says which topics ids stand for;
all frames while faults are in force. Bytes that are no frames are passed on as they are. What a lane has
passed on it tells the `Watcher`, afterwards: nobody who watches can delay or alter it.

Back-pressure, half-close and reset go the way they would without a proxy: a lane whose target takes no more
stops reading its source; an end of file is passed on when all before it was; a reset resets the other side.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol
from weakref import ref

from pulsarctl_wire.faults import Action, Blackhole, Close, Faults, Note, Reset, Send, Wake
from pulsarctl_wire.faults import Lane as FaultLane
from pulsarctl_wire.net.leg import Leg
from pulsarctl_wire.net.routing import Route
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.telling import Telling, Watcher
from pulsarctl_wire.wire.addresses import CARRIERS
from pulsarctl_wire.wire.frame import KEPT_FRAME, Connection, Frame, with_command
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.session import Knowledge, Session
from pulsarctl_wire.wire.stream import FrameStream
from pulsarctl_wire.wire.walk import HEAD, FrameWalk

CHUNK: Final = 256 * 1024
"""Bytes that are read at a time."""

MOST_DELAYED: Final = 4 * 1024 * 1024
"""Bytes that faults may hold back in a lane; beyond that its source is not read."""

MOST_ANSWERS: Final = 1_000
"""Answers in a broker's place that may wait for the end of a frame; beyond that no requests are read."""

# whole in what is told of them, so that credentials can be masked, and what a session lives by
_LOOKED_AT: Final = (
    frozenset(CARRIERS),
    frozenset((BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE, BaseCommand.PRODUCER, BaseCommand.SUBSCRIBE)),
)
_LAST_READ: Final = 0.2  # seconds that a peer has at the end to close its side as well


class Host(Protocol):
    """What relays ask of the proxy that they belong to."""

    watcher: Watcher | None
    faults: Faults
    knowledge: Knowledge
    buffer: memoryview
    """Where what is read is put first: one for all, for it is taken out at once."""
    numbers: Iterator[int]
    """Those of connections, as the watcher is told of them."""

    def rewrite(self, relay: "Relay", command: BaseCommand) -> bool:
        """Change the addresses in a command for the client; whether anything was changed."""

    def connecting(self, relay: "Relay", frame: Frame) -> bool:
        """The client's CONNECT is about to go to the broker; whether it was changed."""

    def dial(self, relay: "Relay") -> None:
        """Begin to make the leg to the broker; `Relay.legs[True]` is its protocol."""

    def url(self, relay: "Relay") -> str:
        """The service URL that its client came by."""

    def preface(self, relay: "Relay") -> bytes:
        """What the leg to the broker begins with; nobody is told."""

    def greeted(self, relay: "Relay", data: bytes) -> None:
        """The first bytes that the client has sent."""

    def hold(self, relay: "Relay", size: int) -> None:
        """So many more bytes wait for the leg to the broker; fewer if `size` is below 0."""

    def ended(self, relay: "Relay") -> None:
        """Both legs have ended."""


class Lane:
    """One direction of a relay."""

    def __init__(self, relay: "Relay", to_broker: bool) -> None:
        self.to_broker = to_broker
        self.ended = False
        """Its source sends no more, and that was passed on."""
        self._relay = relay
        self.telling = Telling(relay.host.watcher, relay.connection, to_broker)
        self._walk = FrameWalk(_LOOKED_AT[to_broker])
        self._stream: FrameStream | None = None
        self._faults: FaultLane | None = None
        self._held = bytearray()  # the beginning of a frame that is to be looked at
        self._need = 0  # bytes there must be before there is anything to do
        self.answers: list[bytes] = []
        """From the other lane, for the next boundary between frames."""
        self._waiting: list[bytes] = []  # for the leg that it leads to
        self._delayed: deque[tuple[float, Callable[[], None], int]] = deque()
        self._delayed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = self._to_end = False

    # -- what comes in

    def feed(self, data: bytes) -> None:
        """Take the next bytes of its source."""
        if self._relay.unsettled and not self._relay.admits(data, self.to_broker):
            return
        if self._held:
            self._held += data
            if len(self._held) < self._need:
                return
            data, self._held = bytes(self._held), bytearray()
        self._mind_faults()
        walk = self._walk
        at, end = 0, len(data)
        while at < end:
            stop = walk.walk(data, at)
            if stop > at:
                self._pass_on(data[at:stop])
            if stop == end:
                break
            size = walk.size(data, stop)
            if not size or end - stop < size:
                self._need = size or HEAD
                self._held += data[stop:]
                break
            at = stop + size
            self._look(data[stop:at])
        self._give_answers()

    def end(self) -> None:
        """Its source sends no more; all that waits goes on, and then the end."""
        held, self._held = bytes(self._held), bytearray()
        if held:
            self._pass_on(held)
        if self._faults is not None:
            self._act(self._faults.flush(self._relay.now()))
        self._later(0.0, self._finish)

    def _finish(self) -> None:
        relay = self._relay
        target = relay.legs[self.to_broker]
        if target.transport is None and relay.dialling:
            self._to_end = True  # when the broker has what was sent before
            return
        self.ended = True
        if target.transport is None or relay.lanes[not self.to_broker].ended:
            relay.close()
        elif not relay.blackholed and not target.transport.is_closing():
            if target.half_closes:
                target.end()
            else:  # TLS has no half-close
                relay.close()

    # -- frames that are looked at

    def _look(self, raw: bytes) -> None:
        """A whole frame that is wanted: rewrite it, let faults have it, pass it on."""
        relay = self._relay
        frame = self._decode(raw)
        if frame is not None and frame.base is not None:
            changed = False
            if frame.type == BaseCommand.CONNECT:
                changed = relay.host.connecting(relay, frame)
            elif not self.to_broker and frame.type in CARRIERS:
                changed = relay.host.rewrite(relay, frame.base)
            if changed:
                raw = with_command(frame.raw, frame.base)
                frame = self._decode(raw) or frame
            relay.session.track([frame])
        if self._faults is not None:
            self._act(self._faults.take(raw, frame, relay.now()))
        else:
            self._pass_on(raw)

    def _decode(self, raw: bytes) -> Frame | None:
        if self._stream is None or not self._stream.in_step:
            self._stream = FrameStream(self._relay.connection, self.to_broker, limit=KEPT_FRAME)
        events = self._stream.feed(raw, time.time_ns())
        frame = events[0] if events else None
        if isinstance(frame, Frame) and len(frame.raw) == len(raw):
            return frame
        self._stream = None  # whatever it makes of this, the next frame begins behind it
        return None

    # -- faults

    def _mind_faults(self) -> None:
        """Look at every frame as long as there are faults."""
        faults = self._relay.host.faults
        if bool(faults) == (self._faults is not None):
            return
        if self._faults is None:
            relay = self._relay
            self._faults = faults.lane(relay.order, self.to_broker, relay.host.url(relay))
        else:
            before, self._faults = self._faults, None
            self._act(before.flush(self._relay.now()))
            self._do_until(float("inf"))  # what they delayed as well
        self._walk.want_all(self._faults is not None)

    def renew_faults(self) -> None:
        """Faults were added or removed: what removed ones held goes on now, and what is behind it."""
        if self._faults is not None and self._faults.released():
            self._do_until(float("inf"))
        self._mind_faults()
        self.wake()

    def _act(self, actions: list[Action]) -> None:
        relay = self._relay
        for action in actions:
            if isinstance(action, Send):
                if action.back:
                    relay.lanes[not self.to_broker].answer(action.data)
                else:
                    self._later(action.at, partial(self._send, action.data), len(action.data))
            elif isinstance(action, Note):
                relay.note(action.text)
            elif isinstance(action, Close):
                self._later(0.0, relay.close)
            elif isinstance(action, Reset):
                self._later(0.0, relay.reset)
            elif isinstance(action, Blackhole):
                self._later(0.0, relay.blackhole)
            elif isinstance(action, Wake):
                relay.loop.call_at(action.at, _wake, ref(self))

    def wake(self) -> None:
        """Something that a fault holds may be due."""
        if self._faults is not None and not self._relay.over:
            self._act(self._faults.take(b"", None, self._relay.now()))

    def answer(self, data: bytes) -> None:
        """Put a frame in that the source did not send, at the next boundary between frames."""
        self.answers.append(data)
        self._give_answers()

    def _give_answers(self) -> None:
        if self.answers and not self._walk.left and not self._held:
            answers, self.answers = self.answers, []
            for data in answers:
                self._later(0.0, partial(self._send, data), len(data))
            self._relay.balance()
        elif len(self.answers) == MOST_ANSWERS:
            self._relay.balance()

    # -- what goes out

    def _pass_on(self, data: bytes) -> None:
        """Bytes that were not to be looked at, or were."""
        if self._faults is not None:
            self._act(self._faults.take(data, None, self._relay.now()))
        elif self._delayed:
            self._later(0.0, partial(self._send, data), len(data))
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        relay = self._relay
        target = relay.legs[self.to_broker].transport
        if relay.blackholed or self.ended:
            return
        if target is None:
            self._waiting.append(data)
            relay.dial()
        elif not target.is_closing():
            relay.tell_opened()
            now = time.time_ns()  # no answer can come before
            target.write(data)
            relay.carried[self.to_broker] += len(data)
            self.telling.carried(data, now)

    def _later(self, at: float, do: Callable[[], None], size: int = 0) -> None:
        """Do something when its time `at` has come, behind all that waits already."""
        if not self._delayed and at <= self._relay.now():
            do()
            return
        self._delayed.append((at, do, size))
        self._delayed_bytes += size
        if self._timer is None:
            self._timer = self._relay.loop.call_at(at, self._due)
        self.balance()

    def _due(self) -> None:
        self._timer = None
        self._do_until(self._relay.now())
        if self._delayed and not self._relay.over:
            self._timer = self._relay.loop.call_at(self._delayed[0][0], self._due)
        self.balance()

    def _do_until(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now and not self._relay.over:
            _, do, size = self._delayed.popleft()
            self._delayed_bytes -= size
            do()
        if not self._delayed and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- pace, and the end

    def balance(self) -> None:
        """Read the source as long as there is room for what it sends."""
        relay = self._relay
        source, target = relay.legs[not self.to_broker], relay.legs[self.to_broker]
        transport = source.transport
        if transport is None or source.gone or transport.is_closing():
            return
        room = not target.full and self._delayed_bytes < MOST_DELAYED
        if self._faults is not None:  # they may have answers for the source, which it has to take
            room = room and not source.full and len(relay.lanes[not self.to_broker].answers) < MOST_ANSWERS
        pause = not room or relay.draining or (target.transport is None and relay.dialling)
        if pause != self._paused:
            self._paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def begin(self) -> None:
        """Both legs stand: what waited for that goes on."""
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._send(data)
        if self._to_end:
            self._finish()
        self.balance()

    def stop(self, *, flush: bool) -> None:
        """No more is read. With `flush` all that waits goes on now, however long it was to be delayed."""
        if self._timer is not None:
            self._timer.cancel()
        if flush:
            held, self._held = bytes(self._held), bytearray()
            if held:
                self._pass_on(held)
            if self._faults is not None:
                self._act(self._faults.flush(self._relay.now()))
            self._do_until(float("inf"))
        self._delayed.clear()
        self.telling.finish()


class Relay:
    """A client's connection and the broker's that belongs to it.

    `route` says whom it leads to; `dial` is called once, when there is a first byte for the broker or at
    once. `order` is that in which clients came; `connection` has its number when the watcher is told of it.
    """

    def __init__(self, host: Host, order: int, client: Address, route: Route) -> None:
        self.host = host
        self.order = order
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.connection = Connection(-1 - order, str(client))
        self.route = route
        self.address: Address | None = None
        """The broker's, or that of a proxy before it, as it was dialled."""
        self.legs = Leg(self, False), Leg(self, True)
        """The client's and the broker's: indexed by "to the broker", as all pairs here."""
        self.lanes = Lane(self, False), Lane(self, True)
        self.session = Session(self.connection, host.knowledge)
        self.carried = [0, 0]
        """Bytes."""
        self.blackholed = self.draining = self.dialling = self.over = False
        self.unsettled = True
        """What is fed needs a look: it is the first, or there is no broker yet, or nothing may pass."""
        self._greeted = self._opened = False
        self._held = 0  # bytes that wait for the leg to the broker
        self._ended_by_broker = False

    def tell_opened(self) -> None:
        """Tell the watcher of the connection, once."""
        if not self._opened:
            self._opened = True
            self.connection.index = next(self.host.numbers)
            if self.host.watcher is not None:
                self.host.watcher.opened(self.connection, time.time_ns())

    def tell_again(self) -> None:
        """Another watcher has begun: tell it of the connection, and go on with whole frames."""
        if self._opened and self.host.watcher is not None:
            self.host.watcher.opened(self.connection, time.time_ns())
            for lane in self.lanes:
                lane.telling.anew()

    def note(self, text: str) -> None:
        """Tell people something about this connection."""
        self.tell_opened()
        if self.host.watcher is not None:
            self.host.watcher.note(f"connection {self.connection.index}: {text}")

    def note_loss(self, how: str) -> None:
        """Tell people that the broker has ended this connection, unless the client or we did before."""
        if not (self.over or self.blackholed or self.draining or self.lanes[True].ended):
            self.note(f"the broker {self.connection.server} {how}")

    def admits(self, data: bytes, to_broker: bool) -> bool:
        """Whether these bytes may pass; asked as long as it is `unsettled`."""
        if self.blackholed:
            return False
        if to_broker:
            if not self._greeted:
                self._greeted = True
                self.host.greeted(self, data)
            if self.legs[True].transport is None:
                self._held += len(data)
                self.host.hold(self, len(data))
        self.unsettled = not self._greeted or self.legs[True].transport is None
        return not self.over

    def _release(self) -> None:
        """What has waited for the leg to the broker waits no more."""
        held, self._held = self._held, 0
        self.host.hold(self, -held)

    def dial(self) -> None:
        """Begin to connect to the broker, if that has not begun."""
        if not self.dialling:
            self.dialling = True
            self.host.dial(self)
            self.lanes[True].balance()

    def balance(self) -> None:
        """Read from both sides as long as there is room for what they send."""
        for lane in self.lanes:
            lane.balance()

    def made(self, leg: Leg) -> None:
        """A leg stands."""
        if self.over:
            leg.reset()  # the other one has ended meanwhile
            return
        if not leg.to_broker:
            self.loop.call_soon(self.lanes[True].balance)  # asyncio itself begins to read a moment later
            return
        peer = leg.transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.connection.server = str(Address(peer[0], peer[1]))
        self.tell_opened()
        preface = self.host.preface(self)
        if preface:
            leg.transport.write(preface)
        self._release()
        for lane in self.lanes:
            lane.begin()
        if self.draining:
            self.drain()

    def lost(self, leg: Leg, exc: Exception | None) -> None:
        """A leg has ended; so does the other one, in the same way."""
        other = self.legs[not leg.to_broker]
        if leg.to_broker and exc is not None:
            why = getattr(exc, "strerror", None) or str(exc)
            self.note_loss("reset it" if isinstance(exc, ConnectionResetError) else f"was lost: {why}")
        if not self.over:
            self._ended_by_broker |= leg.to_broker
            for lane in self.lanes:
                lane.stop(flush=exc is None and lane.to_broker != leg.to_broker)
            self.over = True
            self._release()
        if exc is not None:
            other.reset()
        else:
            other.close()
        leg.gone = True
        if other.gone or other.transport is None:
            if self._opened and self.host.watcher is not None:
                self.host.watcher.closed(self.connection, time.time_ns(), self._ended_by_broker)
            self.host.ended(self)

    def fail(self, why: str = "") -> None:
        """There will be no leg to the broker: end the client's as a broker that cannot be reached does."""
        if why:
            self.note(why)
        self._ended_by_broker = True
        self.reset()

    def refuse(self, answer: bytes) -> None:
        """Send the client `answer`, and end; the broker is sent nothing more."""
        self.legs[False].transport.write(answer)
        self.dialling = True
        self.blackhole()
        self.close()

    def blackhole(self) -> None:
        """From now on nothing passes."""
        self.blackholed = self.unsettled = True

    def close(self) -> None:
        """End both legs when what was sent to them is gone."""
        for leg in self.legs:
            leg.close()

    def reset(self) -> None:
        """End both legs by RST."""
        for leg in self.legs:
            leg.reset()

    def drain(self) -> None:
        """Read no more, pass on all there is, and close."""
        self.draining = True
        self.balance()
        if self.dialling and self.legs[True].transport is None:
            return  # until that is done
        for lane in self.lanes:
            lane.stop(flush=True)
        for leg in self.legs:
            leg.end()
        # what is still sent to us is read, and no more: a socket closed over unread bytes sends RST, not FIN
        self.draining = False
        self.blackhole()
        self.balance()
        self.loop.call_later(_LAST_READ, self.close)


def _wake(lane: "ref[Lane]") -> None:
    """Wake a lane, if there is one still: faults may hold things for longer than connections live."""
    found = lane()
    if found is not None:
        found.wake()
