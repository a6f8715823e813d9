"""The connection of `pwire send`: prints its frames, counts them, and waits for answers."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.errors import RequestTimeout
from pulsarctl_wire.net.protocol import read_refusal
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.wire.commands import BODIES, NUMBERS, REQUESTS, command_name
from pulsarctl_wire.wire.encryption import KeyRing
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.session.ledgers import LedgerState
from pulsarctl_wire.wire.session.sinks import Sink

_MAX_NAMED: Final = 5  # requests without answer, and errors in what was sent, that are named
_MAX_KINDS: Final = 1_000  # of commands that were received but not expected yet
_PAIRED: Final = {NUMBERS["CONNECT"], NUMBERS["SEND"], NUMBERS["PING"]}
"""Commands that are always answered, although they have no request id and are not in `REQUESTS`."""


class Talk(Sink):
    """The sink of the connection.

    `refused` says whether the broker refused something. If writing to stdout fails, `error` is set, and the
    future `broken` is done.
    """

    def __init__(
        self, output: str, *, show_sent: bool, show_secrets: bool, keys: KeyRing | None = None
    ) -> None:
        self.refused = False
        self.error: OSError | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._recorder = Recorder(show_secrets=show_secrets, keys=keys)
        self._mistakes: list[str] = []  # the first errors in what was sent
        self._mistake_count = 0
        self._render = console.make_renderer(sys.stdout, output, self._recorder, TimeFormatter())
        self._show_sent = show_sent
        self._has_begun = False
        self._news: asyncio.Future[None] | None = None  # done when something passes
        self._received_at = 0.0  # when the last bytes came
        self._received: Counter[str] = Counter()  # commands that no `expect` has taken
        self._last = self._handshake_end = 0  # frame numbers: of the last, and the last in the handshake
        self._unanswerable = False  # something was sent that gets no answer: only silence ends the wait

    def begin(self) -> None:
        """Start to show frames: the handshake is over, or there is none."""
        self._has_begun = True
        self._handshake_end = self._last

    # -- called by the follower of the connection

    def opened(self, connection: Connection, time_ns: int, state: LedgerState) -> None:
        """Note that the connection was opened."""
        self._state = state
        self._unfinished = 0  # bytes sent that do not make a complete frame yet

    def carried(self, connection: Connection, to_broker: bool, data: bytes, time_ns: int) -> None:
        """Note that the connection carried `data`."""
        if to_broker:
            self._unfinished += len(data)
        else:
            self._received_at = time.monotonic()
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def events(self, events: list[Event]) -> None:
        """Count and show the events."""
        for event in events:
            if isinstance(event, Frame):
                self._last = event.number
                if event.to_broker:
                    self._unfinished -= len(event.raw)
            if self._has_begun:
                self._take(event)
        visible = [event for event in events if self._show_sent or not event.to_broker]
        if self._has_begun and visible and self.error is None:
            try:
                sys.stdout.buffer.writelines(self._render(visible))
                sys.stdout.buffer.flush()
            except OSError as error:  # an exception in this callback would be lost
                self.error = error
                self.broken.set_result(None)

    def _take(self, event: Event) -> None:
        if event.to_broker:
            for text in self._find_mistakes(event):
                self._mistake_count += 1
                if self._mistake_count <= _MAX_NAMED:
                    self._mistakes.append(text)
        if not isinstance(event, Frame):
            self._unanswerable |= event.to_broker
        elif event.to_broker:
            self._unanswerable |= not _is_answered(event)
        else:
            # the number of unknown types is not bounded
            if event.type in BODIES or len(self._received) < _MAX_KINDS:
                self._received[event.command] += 1
            self.refused |= read_refusal(event, event.command) is not None

    def _find_mistakes(self, event: Event) -> Iterator[str]:
        if isinstance(event, Frame):
            for note in self._recorder.notes(event):
                yield f"sent: {event.command} (#{event.number}): {note}"
        elif isinstance(event, Malformed):
            yield f"sent: {event.size} bytes that are not a frame: {event.reason}"

    @property
    def _unanswered(self) -> list[tuple[int, int]]:
        """The numbers and types of requests without answer."""
        return sorted(request for request in self._state.unanswered() if request[0] > self._handshake_end)

    # -- called by the script

    async def expect(self, command: str, timeout: float, place: str) -> None:
        """Wait until a frame of `command` has come that no earlier `expect` has taken.

        Raises RequestTimeout after `timeout` seconds, with `place` (file:number).
        """
        due = time.monotonic() + timeout
        while not self._received[command]:
            if not await self._wait_for_news(due):
                raise RequestTimeout(f"{place}: no {command} has come within {timeout:g} s")
        self._received[command] -= 1

    async def settle(self, idle: float, since: float) -> None:
        """Wait until everything is answered, or nothing has come for `idle` seconds.

        These seconds are counted from `since` at the earliest (monotonic clock).
        """
        while self._unfinished or self._unanswerable or self._unanswered:
            if not await self._wait_for_news(max(since, self._received_at) + idle):
                return

    async def _wait_for_news(self, due: float) -> bool:
        """Wait until the connection carries something; returns False if nothing comes before `due`."""
        self._news = asyncio.get_running_loop().create_future()
        # not wait_for: before Python 3.12 it may swallow a cancellation
        await asyncio.wait([self._news], timeout=max(0.0, due - time.monotonic()))
        return self._news.done()

    def report_missing(self, idle: float) -> int:
        """Print which answers are missing after the script has ended; returns the exit code."""
        requests = self._unanswered
        if requests:
            names = ", ".join(f"{command_name(kind)} (#{number})" for number, kind in requests[:_MAX_NAMED])
            note = f" and {len(requests) - _MAX_NAMED} more" if len(requests) > _MAX_NAMED else ""
            console.warn(f"no answer to {names}{note}: nothing came for {idle:g} s (--idle)")
        if self.refused:
            return console.EXIT_REFUSED
        return console.EXIT_UNANSWERED if requests else 0

    def blame(self) -> None:
        """Print the errors in the frames that were sent."""
        for text in self._mistakes:
            console.warn(text)
        if self._mistake_count > _MAX_NAMED:
            console.warn(f"and {self._mistake_count - _MAX_NAMED} more errors in what was sent")


def _is_answered(frame: Frame) -> bool:
    """Return whether a broker answers `frame`."""
    body, pairing = frame.body, REQUESTS.get(frame.type)
    return body is not None and (frame.type in _PAIRED if pairing is None else body.HasField(pairing.key))
