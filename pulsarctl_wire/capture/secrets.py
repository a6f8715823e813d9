"""Keeps the TLS secrets for a capture: from key logs, which may grow, and from blocks of pcapng files.

A block with secrets may stand before or after the packets that it opens. Records wait for a secret as long as
their connection is open; at its end, the rest of its file is searched for one.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from pulsarctl_wire.capture.files import SecretsBlock, find_secrets, is_capture
from pulsarctl_wire.errors import CaptureError

NSS: Final = 0x544C534B
"""The type of secrets that are a key log, in a Decryption Secrets Block."""

_EVERY: Final = 0.1  # s between looks at key logs


class Secrets:
    """The secrets of the key logs at `paths`, and of the capture files that are read.

    A key log that does not exist yet is read once it does. Raises CaptureError if one cannot be read.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        from pulsarctl_wire.capture.tls.keylog import KeyLog, KeyLogFile

        self.keylog = KeyLog()
        self.file: str | None = None
        """The capture file that is read, if it may hold more secrets."""
        self.is_live = True
        """Whether secrets may still come that are neither in the key logs nor in the file that is read."""
        self._paths = list(paths)
        self._logs = [KeyLogFile(path, self.keylog) for path in self._paths]
        self._written: set[bytes] = set()  # client randoms whose secrets `take_used` has returned
        self._next = 0.0  # when key logs are looked at again
        self.refresh()

    def require_logs(self) -> None:
        """Note that all packets are there, so that no more secrets come. Raise CaptureError without a log."""
        self.is_live = False
        for path in self._paths:
            if not os.path.exists(path):
                raise CaptureError(f"--keylog {path}: no such file")

    def begin_file(self, path: str | None) -> None:
        """Note which capture file is read; None: it is a pipe, and cannot be searched."""
        self.file = path
        self.keylog.is_complete = False

    @property
    def has_files(self) -> bool:
        """Whether there are key logs to poll."""
        return bool(self._logs)

    @property
    def version(self) -> int:
        """Grows whenever a new secret comes."""
        return self.keylog.version

    def refresh(self) -> None:
        """Read what is new in the key logs. Raises CaptureError if one cannot be read."""
        for file in self._logs:
            file.refresh()
        self._next = time.monotonic() + _EVERY

    def poll(self) -> None:
        """Do the same, but not too often."""
        if self._logs and time.monotonic() >= self._next:
            self.refresh()

    def take_blocks(self, blocks: Iterable[SecretsBlock]) -> None:
        """Take the secrets of a capture file's blocks."""
        for body, order in blocks:
            kind, size = struct.unpack_from(order + "II", body.ljust(8, b"\0"))
            if kind == NSS:
                self.keylog.feed(body[8 : 8 + size])
                self.keylog.finish()

    def search(self) -> None:
        """Look for secrets wherever they may be: in key logs, and in the rest of the file that is read."""
        self.refresh()
        path, self.file = self.file, None
        if path is not None:
            self.take_blocks(_search(path))
            self.keylog.is_complete = not self.is_live and _is_plain_capture(path)

    def list_all(self) -> bytes:
        """Return the lines of all secrets, as in a key log."""
        self.keylog.changed.clear()
        return b"".join(map(self.keylog.lines_of, self.keylog.client_randoms))

    def take_new(self) -> bytes:
        """Return the lines of all secrets that are new since the last call, as in a key log."""
        names = list(self.keylog.changed)
        self.keylog.changed.clear()
        return b"".join(map(self.keylog.lines_of, names))

    def take_used(self) -> bytes:
        """Do the same for the secrets that have opened records since the last call."""
        names = self.keylog.used.keys() - self._written
        self._written |= names
        return b"".join(map(self.keylog.lines_of, names))

    def new_tls(self, head: bytes, is_first: bool) -> Any:
        """Return a `TlsConnection` if bytes of a connection are TLS, or may be; otherwise None.

        `is_first`: they are the first that were sent. If not, they may be from the middle of a record.
        """
        from pulsarctl_wire.capture.tls.connection import TlsConnection

        looks = TlsConnection.looks_like_tls(head)
        if looks is False and (is_first or not self.keylog.secrets):
            return None
        if not self.is_live:
            self.search()
        return TlsConnection(self.keylog)


def has_secrets(path: str) -> bool:
    """Return whether a file holds secrets of TLS, unless it is compressed."""
    return next(_search(path), None) is not None


def _is_plain_capture(path: str) -> bool:
    """Return whether a file is a capture that is not compressed, so that a search sees all of it."""
    with suppress(OSError), open(path, "rb") as file:
        return is_capture(file.read(4))
    return False


def _search(path: str) -> Iterator[SecretsBlock]:
    """Yield the blocks with secrets in a file; none if it cannot be read."""
    with (
        suppress(OSError, ValueError),  # not a file, or an empty one
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        yield from find_secrets(data)
