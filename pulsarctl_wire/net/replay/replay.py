"""Replays the client side of recorded sessions, and compares the broker's answers with the recorded ones.

A replay walks once over the recording, through all connections in the order of capture. For each recorded
connection there is a new one (`Player`). A frame of the client is sent on it, translated for this broker
(`net.remap`). For a frame of the broker, the replay waits for its counterpart: so nothing is sent before the
frames that it followed have come, not even those of other connections. A counterpart (`Pairs`) is

    an answer or receipt   what answers the same request
    a MESSAGE              the one with the same producer, sequence id and chunk, delivered to the same
                           consumer (or any consumer of the same Shared subscription); if no recorded
                           client sent the messages and others come, the nth is compared with the nth
    anything else          the next frame of that command for that producer, consumer or watcher

A frame that does not come in time is reported, and the walk goes on; from then on the timeout is halved for
frames of the same kind (requests; a producer's receipts; a consumer's messages; an unsolicited command).
PING and AUTH_CHALLENGE are answered by the link, and not compared.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from pulsarctl_wire.errors import SessionError
from pulsarctl_wire.net.driver import Warnings
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.replay.differences import CLOSES, Causes, Difference, Key, differences
from pulsarctl_wire.net.replay.player import Player
from pulsarctl_wire.net.replay.remap import Names, Remap
from pulsarctl_wire.net.settings import Settings
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame

MAX_WAITING: Final = 128 * 1024 * 1024
"""Maximum bytes of frames that wait for their counterparts; beyond it half are counted and forgotten."""
_COST: Final = 2_048  # bytes of overhead for each waiting frame

_CONNECT: Final = NUMBERS["CONNECT"]
_SKIPPED: Final = "connections that are skipped"


class ConnectionEnded(NamedTuple):
    """A recorded connection ended: whether the broker closed it, and when (ns since the epoch)."""

    connection: Connection
    by_broker: bool
    time_ns: int | None


class ReplayTotals:
    """The results of a replay: connections, frames sent and unsent, answers compared (`exchanges`).

    Exchanges with one side missing count, too: as `unanswered` if nothing came, as `differ` if nothing was
    recorded. `differ` also counts the connections that ended differently. Differences that follow from
    another one are counted only in `consequences`.
    """

    def __init__(self) -> None:
        self.connections = self.sent = self.unsent = 0
        self.exchanges = self.differ = self.unanswered = self.consequences = 0


class Pace(NamedTuple):
    """`speed` times as fast as recorded (0: as fast as answers allow); `answer_timeout` in seconds."""

    speed: float = 0.0
    answer_timeout: float = 30.0


class Pairs:
    """Finds counterparts. Frames without one, recorded or received, wait here by their keys."""

    def __init__(self) -> None:
        self._tables: tuple[dict[Key, deque[Frame]], dict[Key, deque[Frame]]] = ({}, {})
        self._bytes = 0

    def take(self, key: Key, frame: Frame, recorded: bool) -> Frame | None:
        """Remove and return the first counterpart of `frame`; if there is none, keep `frame`, return None."""
        others = self._tables[not recorded]
        queue = others.get(key)
        if not queue:
            self._tables[recorded].setdefault(key, deque()).append(frame)
            self._bytes += len(frame.raw) + _COST
            return None
        other = queue.popleft()
        if not queue:
            del others[key]
        self._bytes -= len(other.raw) + _COST
        return other

    def waits(self, key: Key, frame: Frame) -> bool:
        """Whether a recorded frame still waits; frames with the same key are taken in recorded order."""
        queue = self._tables[True].get(key)
        return queue is not None and queue[0].number <= frame.number

    def pop(self, wanted: Callable[[Key], bool], recorded: bool) -> list[Frame]:
        """Remove and return the waiting frames whose keys are `wanted`, in order."""
        table = self._tables[recorded]
        frames = [frame for key in list(table) if wanted(key) for frame in table.pop(key)]
        self._bytes -= sum(len(frame.raw) + _COST for frame in frames)
        return sorted(frames, key=lambda frame: frame.number)

    def excess(self, recorded: bool) -> list[Frame]:
        """Remove and return half of the waiting frames if there are too many."""
        if self._bytes <= MAX_WAITING:
            return []
        table = self._tables[recorded]
        half = set(list(table)[: len(table) // 2 + 1])
        return self.pop(lambda key: key in half, recorded)


@dataclass(eq=False)
class Replay:
    """A replay: `run` it over the events of a capture. `on_difference` is called with each difference, `note`
    with warnings, a few times for each kind. `names` has the user's renamings.

    Attributes: `totals`, and `remap` with the translations it has learnt.
    """

    settings: Settings
    names: Names
    options: Pace
    on_difference: Callable[[Difference], None]
    note: Callable[[str], None]
    tap: Tap | None = None

    def __post_init__(self) -> None:
        self.remap = Remap(self.names)
        self.totals = ReplayTotals()
        self.warn = Warnings(self.note)
        self.pairs = Pairs()
        self.lossy: set[int] = set()  # connections of which a part is missing
        self.as_recorded: set[Key] = set()  # streams of which recorded messages came again
        self.in_order: set[Key] = set()  # streams whose messages are matched by their order
        self.causes = Causes()
        self._numbers = count(1)
        self._found: list[Difference] = []  # to be reported after the current step
        self._misses: Counter[Key] = Counter()  # frames that did not come in time, by kind
        self._news: asyncio.Future[None] | None = None
        self._players: dict[int, Player | None] = {}
        self._clock = 0.0  # when the previous step was due, by the loop's clock
        self._before: int | None = None  # when the previous step was recorded

    async def run(self, batches: AsyncIterable[Iterable[Event | ConnectionEnded]]) -> ReplayTotals:
        """Send the clients' frames and compare the answers; events come in batches, in order of capture.

        Raises Unreachable, RequestTimeout if a connection cannot be made; `totals` cover what was played.
        """
        self._clock = asyncio.get_running_loop().time()
        try:
            async for events in batches:
                for event in events:
                    await self._step(event)
                    self._report_found()
            self._finish()
        except SessionError:
            self._finish()
            raise
        finally:
            self.warn.close()
            links = [player.link for player in self._players.values() if player is not None]
            await asyncio.gather(*(link.close() for link in links))
        return self.totals

    # -- pairs

    def take(self, key: Key, stream: Key | None, frame: Frame, recorded: bool) -> bool:
        """Compare `frame` with its counterpart if that is there, else keep it; return whether it was there.

        `stream` is the stream of messages that a MESSAGE belongs to, else None.
        """
        other = self.pairs.take(key, frame, recorded)
        if other is None:
            for side in (True, False):
                self._count_unpaired(self.pairs.excess(side), side)
            return False
        old, new = (frame, other) if recorded else (other, frame)
        in_order = stream in self.in_order
        self.remap.learn(old, new, stream if in_order else None)
        if stream is not None and not in_order:
            self.as_recorded.add(stream)
        self.totals.exchanges += 1
        fields = differences(old, new, self.remap)
        player = self._players.get(old.connection.index)
        if fields:
            self.differs(Difference("differs", old.connection.index, old, new, fields))
            if player is not None:
                player.strayed = "command" in fields
        if player is not None and "command" not in fields:
            self.causes.resolve(player.log.needs(old))
        return True

    def report_unpaired(self, wanted: Callable[[Key], bool]) -> None:
        """Count and report the frames whose keys are `wanted`: they have no counterpart."""
        for recorded in (True, False):
            self._count_unpaired(self.pairs.pop(wanted, recorded), recorded)

    def _count_unpaired(self, frames: Iterable[Frame], recorded: bool) -> None:
        for frame in frames:
            index = frame.connection.index
            if not recorded and index in self.lossy:
                continue
            self.totals.exchanges += 1
            kind, text = "missing" if recorded else "unexpected", ""
            closed = CLOSES.get(frame.type) if frame.request is None else None
            if closed is not None:
                kind, text = "closed", f"the broker closed this {closed}, but not the recorded one"
                if recorded:
                    text = f"the broker closed the recorded {closed} here, but not this one"
            old, new = (frame, None) if recorded else (None, frame)
            self.differs(Difference(kind, index, old, new, text=text))

    def differs(self, difference: Difference) -> None:
        """Count a difference; it is reported after the current step."""
        number = next(self._numbers)
        player = self._players.get(difference.connection)
        about, needs = ([], []) if player is None else player.keys_of(difference)
        cause = self.causes.of(about)
        if cause is not None:
            self.totals.consequences += 1
        elif difference.kind == "missing":
            self.totals.unanswered += 1
        else:
            self.totals.differ += 1
        self.causes.fail(needs, cause or number)
        self._found.append(difference._replace(number=number, cause=cause))

    def news(self) -> None:
        """A frame was received: make `arrives` check again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def timeout(self, kind: Key) -> float:
        """How long to wait for a frame of this kind, in seconds."""
        return self.options.answer_timeout * 0.5 ** min(self._misses[kind], 30)

    async def arrives(self, key: Key, kind: Key, frame: Frame, closed: "asyncio.Future[None]") -> bool:
        """Whether the counterpart of `frame` comes in time, before its connection is `closed`."""
        loop = asyncio.get_running_loop()
        seconds = self.timeout(kind)
        due = loop.time() + seconds
        while self.pairs.waits(key, frame):
            left = due - loop.time()
            if left <= 0 or closed.done():
                break
            self._news = loop.create_future()
            await asyncio.wait([self._news, closed], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        else:
            return True
        self._misses[kind] += 1
        if self._misses[kind] == 1 and not closed.done():
            self.warn(
                f"connection {frame.connection.index}: {frame.command} (#{frame.number}) did not come within "
                f"{seconds:g} s; going on, with half the timeout for similar frames",
                "frames that did not come",
            )
        return False

    # -- the walk

    def _finish(self) -> None:
        """The replay is over: report all waiting frames as having no counterpart."""
        for player in self._players.values():
            if player is not None:
                player.link.observe = None
        self.report_unpaired(lambda key: True)
        self._report_found()

    def _report_found(self) -> None:
        found, self._found = self._found, []
        for difference in found:
            self.on_difference(difference)

    async def _step(self, event: Event | ConnectionEnded) -> None:
        index = event.connection.index
        if index not in self._players:
            if isinstance(event, ConnectionEnded):
                return
            await self._pace(event.time_ns)
            self._players[index] = await self._open(event)
        player = self._players[index]
        if player is None:
            return
        due = await self._pace(event.time_ns, wait=isinstance(event, ConnectionEnded) or event.to_broker)
        if isinstance(event, ConnectionEnded):
            await player.end(event.by_broker)
            self._players[index] = None
        elif not isinstance(event, Frame) or event.partial or event.base is None:
            player.damaged(event)
        elif event.to_broker:
            await player.play(event)
        else:
            await player.expect(event)
            self._clock = max(due, asyncio.get_running_loop().time())

    async def _pace(self, time_ns: int | None, *, wait: bool = True) -> float:
        """When the next step is due, by the loop's clock; with `wait`, wait until then."""
        speed = self.options.speed
        if speed and time_ns is not None:
            if self._before is not None:
                self._clock += max(0, time_ns - self._before) / 1e9 / speed
            self._before = time_ns
            left = self._clock - asyncio.get_running_loop().time()
            if wait and left > 0:
                await asyncio.sleep(left)
        return self._clock

    async def _open(self, first: Event) -> "Player | None":
        """The player of a connection that begins with `first`; if there can be none, warn, return None."""
        where = f"connection {first.connection.index}"
        if not isinstance(first, Frame):
            spoken = getattr(first, "protocol", "")
            why = f"it speaks {spoken}" if spoken else "its beginning is missing or damaged"
            self.warn(f"{where} is skipped: {why}", _SKIPPED)
            return None
        if first.type != _CONNECT or not first.to_broker or first.partial or first.body is None:
            self.warn(f"{where} is skipped: it does not begin with a whole CONNECT", _SKIPPED)
            return None
        player = Player(self, first)
        await player.open()
        self.totals.connections += 1
        return player
