"""Writes output without blocking the caller: if the reader is slow and the buffer is full, data is refused.

A thread does the writing, so only that thread waits if the terminal is stopped or the pipe is full.
`TapPrinter` shows events this way.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pulsarctl_wire.cli.capture.select import Test
from pulsarctl_wire.render.events import Render
from pulsarctl_wire.render.text import Origin
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.sinks import Sink

FLUSH_TIMEOUT: Final = 2.0
"""Time limit, in seconds, for writing the buffered bytes at the end."""

MAX_BUFFERED_BYTES: Final = 4 * 1024 * 1024
"""Bytes that may be buffered."""


class Printer:
    """Writes to a file descriptor. No more than `room` bytes wait, unless a single `put` had more.

    After a failed write (a closed pipe, a full disk), `error` is set.
    """

    def __init__(self, descriptor: int, room: int = MAX_BUFFERED_BYTES) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._room = room
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> bool:
        """Buffer `data` for writing; returns False, and drops it, if the buffer is full or a write failed."""
        with self._changed:
            if self.error is not None or (self._bytes and self._bytes + len(data) > self._room):
                return False
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify()
        return True

    def end(self, seconds: float) -> int:
        """Wait until everything is written, but at most `seconds`; returns the number of unwritten bytes."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(seconds)
        return self._bytes

    def describe_error(self, output: str) -> tuple[str, bool]:
        """Return why `output` ends early ("": it does not), and whether that is a failure.

        If the reader of the output has gone, that is no failure.
        """
        if self.error is None:
            return "", False
        if isinstance(self.error, BrokenPipeError):
            return f"the reader of {output} is gone", False
        return f"{output} cannot be written: {self.error.strerror}", True

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._ending:
                        return
                    self._changed.wait()
                data = b"".join(self._waiting)
                self._waiting.clear()
            try:
                self._write_all(data)
            except OSError as error:
                with self._changed:
                    self.error = error
                    self._waiting.clear()
                    self._bytes = 0
                return
            with self._changed:
                self._bytes -= len(data)

    def _write_all(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            select.select([], [self._descriptor], [])  # another process may have made it non-blocking
            with suppress(BlockingIOError):
                offset += os.write(self._descriptor, data[offset : offset + 65_536])


@dataclass
class TapPrinter(Sink):
    """Shows the events that pass all tests. If the output fails, it reports that with `say`, and stops.

    `count_refused` is called with the number of frames that the printer refused.
    """

    printer: Printer
    render: Render
    tests: list[Test]
    origin: Origin
    say: Callable[[str], None]
    count_refused: Callable[[int], None]

    def events(self, events: list[Event]) -> None:
        """Show the events that pass the tests."""
        if self.origin.time_ns is None:
            self.origin.time_ns = events[0].time_ns
        for test in self.tests:
            events = list(filter(test, events))
        refused_count = 0
        for event in events:
            if not self.printer.put(b"".join(self.render([event]))) and self.printer.error is None:
                refused_count += isinstance(event, Frame)
        if refused_count:
            self.count_refused(refused_count)

    def tick(self, now_ns: int) -> None:
        """Check whether the output has failed."""
        reason, failed = self.printer.describe_error("the tap")
        if reason and self.wants_events:
            self.wants_events = False
            self.failed = failed
            self.say(f"{reason}; forwarding goes on")

    def finish(self) -> None:
        """Write the buffered output within `FLUSH_TIMEOUT` seconds."""
        unwritten = self.printer.end(FLUSH_TIMEOUT)
        self.tick(0)
        if unwritten:
            self.say(f"tap fell behind: {unwritten} bytes of output not shown at the end")
