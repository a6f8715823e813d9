"""Streams that flush the output before each read, and the progress of large sources and long jobs."""

import io
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, BinaryIO, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.render.text import clean, human_bytes

LARGE: Final = 50_000_000
"""Sources with more bytes have a progress bar."""
_LINE_EVERY: Final = 60.0  # seconds


class FlushingStream(io.RawIOBase):
    """Wraps a source's stream: calls `flush` before each read, and updates the progress bar after it.

    It ends after `size` bytes, if given.
    """

    def __init__(
        self, stream: BinaryIO, flush: Callable[[], object], progress: "Progress | None", size: int | None
    ) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._flush = flush
        self._progress = progress
        self._left = size

    def read1(self, size: int = -1) -> bytes:
        """Return the next bytes, as soon as some are available."""
        self._flush()
        if self._left is not None:
            size = min(size, self._left) if size >= 0 else self._left
        data: bytes = self._read(size)
        if self._left is not None:
            self._left -= len(data)
        if self._progress is not None:
            self._progress.add(len(data))
        return data

    read = read1


class Progress:
    """A progress bar on stderr, redrawn at most five times a second."""

    def __init__(self, name: str, size: int, stack: ExitStack) -> None:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TimeRemainingColumn(),
        )
        self._bar = stack.enter_context(
            progress.Progress(
                *columns, console=console.make_console(sys.stderr), transient=True, auto_refresh=False
            )
        )
        self._task = self._bar.add_task(clean(name), total=size)
        self._next = 0.0

    def add(self, size: int) -> None:
        """Count `size` more bytes as read."""
        self._bar.update(self._task, advance=size)
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 0.2
            self._bar.refresh()


class JobProgress:
    """The progress of a job on captures: a bar on a terminal; elsewhere a line a minute on stderr.

    `size` bytes are to be read; earlier runs have read `done_bytes` of them. `clock` returns seconds.
    """

    def __init__(
        self, size: int, stack: ExitStack, done_bytes: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._done = done_bytes
        self._clock = clock
        self._bar: Any = None
        self.start()
        if not console.is_terminal(sys.stderr):
            return
        from rich import progress

        columns = (
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TextColumn("{task.fields[said]}"),
        )
        bar = progress.Progress(*columns, console=console.make_console(sys.stderr), transient=True)
        self._task = bar.add_task("", total=size, completed=done_bytes, said="")
        self._bar = stack.enter_context(bar)

    def wait(self, reason: str) -> None:
        """Show what the job waits for before it starts."""
        if self._bar is not None:
            self._bar.update(self._task, said=reason)

    def start(self) -> None:
        """Measure the speed from now on."""
        self._started = self._clock()
        self._next = self._started + _LINE_EVERY

    def show(self, read: int, frames: int) -> None:
        """Show that `read` bytes have been read, and that `frames` frames were in them."""
        text = f"{frames:,} frames{self._describe_time_left(read)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=read, said=text)
        elif self._clock() >= self._next:
            self._next = self._clock() + _LINE_EVERY
            share = read / self._size if self._size else 1
            sys.stderr.write(f"{share:.0%}: {human_bytes(read)} of {human_bytes(self._size)}, {text}\n")
            sys.stderr.flush()

    def _describe_time_left(self, read: int) -> str:
        """Return ", about … left", at the speed so far; "" if it is unknown, or all is read."""
        if read <= self._done or read >= self._size:
            return ""
        seconds = (self._clock() - self._started) * (self._size - read) / (read - self._done)
        hours, minutes = divmod(round(seconds / 60), 60)
        text = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"
        return f", about {text} left"
