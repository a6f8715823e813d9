"""Streams that flush the output before each read, and the progress bar of large sources."""

import io
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import BinaryIO, Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.render.text import clean

LARGE: Final = 50_000_000
"""Sources with more bytes have a progress bar."""


class Watched(io.RawIOBase):
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
        """The next bytes, as soon as some are available."""
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
                *columns, console=console.rich_console(sys.stderr), transient=True, auto_refresh=False
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
