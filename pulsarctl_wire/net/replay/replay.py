"""Replays the client side of recorded sessions, and compares the broker's answers with the recorded ones.

A replay walks once over the recording, through all connections in the order of capture. For each recorded
connection there is a new one (`Player`). A frame of the client is sent on it, translated for this broker
(`remap.py`). For a frame of the broker, the replay waits for its counterpart: so nothing is sent before the
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
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pulsarctl_wire.errors import SessionError
from pulsarctl_wire.net.driver import Warnings
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.replay.comparison import Comparison, ReplayTotals
from pulsarctl_wire.net.replay.differences import Difference
from pulsarctl_wire.net.replay.player import Player
from pulsarctl_wire.net.replay.remap import Names, Remap
from pulsarctl_wire.net.settings import Settings
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.frame import Connection, Event, Frame

_CONNECT: Final = NUMBERS["CONNECT"]
_SKIPPED: Final = "connections that are skipped"


class ConnectionEnded(NamedTuple):
    """The end of a recorded connection: whether the broker closed it, and when (ns since the epoch)."""

    connection: Connection
    by_broker: bool
    time_ns: int | None


class Pace(NamedTuple):
    """The pace, `speed` times the recorded one (0: as fast as answers allow); `answer_timeout` in seconds."""

    speed: float = 0.0
    answer_timeout: float = 30.0


@dataclass(eq=False)
class Replay:
    """A replay: `run` it over the events of a capture. `on_difference` is called with each difference, `note`
    with warnings, a few times for each kind. `names` has the user's renamings.

    Attributes: `comparison` of the answers, its `totals`, and `remap` with the translations it has learnt.
    """

    settings: Settings
    names: Names
    pace: Pace
    on_difference: Callable[[Difference], None]
    note: Callable[[str], None]
    tap: Tap | None = None

    def __post_init__(self) -> None:
        self.remap = Remap(self.names)
        self.warn = Warnings(self.note)
        self._players: dict[int, Player | None] = {}
        self.comparison = Comparison(self._players, self.remap, self.pace.answer_timeout, self.warn)
        self.totals = self.comparison.totals
        self._last_due = 0.0  # when the previous step was due, by the loop's clock
        self._last_time_ns: int | None = None  # when the previous step was recorded

    async def run(self, batches: AsyncIterable[Iterable[Event | ConnectionEnded]]) -> ReplayTotals:
        """Send the clients' frames and compare the answers; events come in batches, in order of capture.

        Raises Unreachable, RequestTimeout if a connection cannot be made; `totals` cover what was played.
        """
        self._last_due = asyncio.get_running_loop().time()
        try:
            async for events in batches:
                for event in events:
                    await self._step(event)
                    self._report_differences()
            self._finish()
        except SessionError:
            self._finish()
            raise
        finally:
            self.warn.close()
            links = [player.link for player in self._players.values() if player is not None]
            await asyncio.gather(*(link.close() for link in links))
        return self.totals

    # -- the walk

    def _finish(self) -> None:
        """End the replay: report all waiting frames as having no counterpart."""
        for player in self._players.values():
            if player is not None:
                player.link.observe = None
        self.comparison.report_unpaired(lambda key: True)
        self._report_differences()

    def _report_differences(self) -> None:
        for difference in self.comparison.take_differences():
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
            player.note_damage(event)
        elif event.to_broker:
            await player.play(event)
        else:
            await player.expect(event)
            # what follows waits as long after this frame as in the recording, even if the frame came late
            self._last_due = max(due, asyncio.get_running_loop().time())

    async def _pace(self, time_ns: int | None, *, wait: bool = True) -> float:
        """Return when the next step is due, by the loop's clock; with `wait`, wait until then."""
        speed = self.pace.speed
        if speed and time_ns is not None:
            if self._last_time_ns is not None:
                self._last_due += max(0, time_ns - self._last_time_ns) / 1e9 / speed
            self._last_time_ns = time_ns
            seconds = self._last_due - asyncio.get_running_loop().time()
            if wait and seconds > 0:
                await asyncio.sleep(seconds)
        return self._last_due

    async def _open(self, event: Event) -> "Player | None":
        """Open the player of a connection that begins with `event`; if impossible, warn, return None."""
        name = f"connection {event.connection.index}"
        if not isinstance(event, Frame):
            protocol = getattr(event, "protocol", "")
            reason = f"it speaks {protocol}" if protocol else "its beginning is missing or damaged"
            self.warn(f"{name} is skipped: {reason}", _SKIPPED)
            return None
        if event.type != _CONNECT or not event.to_broker or event.partial or event.body is None:
            self.warn(f"{name} is skipped: it does not begin with a whole CONNECT", _SKIPPED)
            return None
        player = Player(self.comparison, self.settings, self.tap, event)
        await player.open()
        self.totals.connections += 1
        return player
