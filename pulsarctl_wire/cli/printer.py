"""Output that never makes its writer wait: what a slow reader leaves no room for is refused, not queued.

For who has more to do than to print: a thread writes what is put, and if the terminal is stopped or a pipe
full, only that thread waits.
"""

import os
import select
import threading
from collections import deque
from contextlib import suppress
from typing import Final

ROOM: Final = 4 * 1024 * 1024
"""Bytes that may wait to be written."""


class Printer:
    """Writes to a file descriptor. `error` is why that ended: nobody reads it any more, a full disk."""

    def __init__(self, descriptor: int, room: int = ROOM) -> None:
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
        """Have `data` written; gives whether there was room for it."""
        with self._changed:
            if self.error is not None or (self._bytes and self._bytes + len(data) > self._room):
                return False
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify()
        return True

    @property
    def waiting(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._bytes)

    def end(self, seconds: float) -> int:
        """Wait until all is written, or until `seconds` have passed; gives the bytes that are not."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(seconds)
        return self._bytes

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
        at = 0
        while at < len(data):
            select.select([], [self._descriptor], [])  # whoever shares it may have made it non-blocking
            with suppress(BlockingIOError):
                at += os.write(self._descriptor, data[at : at + 65_536])
