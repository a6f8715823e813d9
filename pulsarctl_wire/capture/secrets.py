"""Keeps the TLS secrets for a capture: from key logs, which may grow, and from blocks of pcapng files.

A block with secrets may stand before or after the packets that it opens: files are searched as a whole when
the first TLS connection is met. In pipes and live captures, records wait for a secret until their
connection ends.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from pulsarctl_wire.capture.files import SecretsBlock, find_secrets, is_capture
from pulsarctl_wire.capture.tls.keylog import KeyLog, KeyLogFile
from pulsarctl_wire.errors import CaptureError

NSS: Final = 0x544C534B
"""The type of secrets that are a key log, in a Decryption Secrets Block."""

_EVERY: Final = 0.1  # s between looks at key logs


class Secrets:
    """The secrets of the key logs at `paths`, and of the capture files that are read.

    A key log that does not exist yet is read once it does. Raises CaptureError if one cannot be read.
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.keylog = KeyLog()
        self.is_live = False
        """Whether secrets may still come that are neither in the key logs nor in the files that are read."""
        self._paths = list(paths)
        self._logs = [KeyLogFile(path, self.keylog) for path in self._paths]
        self._problems: list[str] = []
        self._files: list[str] = []  # capture files that were not searched yet
        self._has_unsearchable = False  # whether a source is a pipe, or compressed
        self._written: set[bytes] = set()  # client randoms whose secrets `take_used` has returned
        for log in self._logs:
            log.refresh()
        self._next = time.monotonic() + _EVERY  # when key logs are looked at again

    def require_logs(self) -> None:
        """Raise CaptureError if a key log does not exist."""
        require_keylogs(self._paths)

    def begin_file(self, path: str | None) -> None:
        """Note a capture file that is read from now on; None: it is a pipe, and cannot be searched."""
        self.keylog.is_complete = False
        if path is None:
            self._has_unsearchable = True
        else:
            self._files.append(path)

    def freeze(self) -> None:
        """Read no more key logs, and allow as many record numbers to be tried as at first.

        So reading the captures again gives the same.
        """
        self._logs.clear()
        self.keylog.restore_effort()

    @property
    def has_logs(self) -> bool:
        """Whether there are key logs to poll."""
        return bool(self._logs)

    @property
    def version(self) -> int:
        """Grows whenever a new secret comes."""
        return self.keylog.version

    def describe_problems(self) -> list[str]:
        """Return what is wrong with the key logs, a line for each kind."""
        return [*self._problems, *self.keylog.describe_problems()]

    def read_logs(self) -> bool:
        """Read what is new in the key logs; return whether there are new secrets.

        A log that cannot be read any more is a problem, and left out.
        """
        version = self.version
        self._logs = [log for log in self._logs if self._read_log(log)]
        self._next = time.monotonic() + _EVERY
        return self.version != version

    def _read_log(self, log: KeyLogFile) -> bool:
        """Read what is new in a key log; return whether it can be read."""
        try:
            log.refresh()
        except CaptureError as error:
            self._problems.append(str(error))
            return False
        return True

    def poll(self) -> bool:
        """Do what `read_logs` does, if the last look at the key logs was a while ago."""
        return bool(self._logs) and time.monotonic() >= self._next and self.read_logs()

    def take_block(self, block: SecretsBlock) -> None:
        """Take the secrets of a capture file's block."""
        body, order = block
        (size,) = struct.unpack_from(order + "I", body.ljust(8, b"\0"), 4)
        if size and holds_key_log(block):
            self.keylog.feed(body[8 : 8 + size])
            self.keylog.finish()

    def search(self) -> None:
        """Look for secrets wherever they may be: in key logs, and in all of the files that are read."""
        self.read_logs()
        files, self._files = self._files, []
        for path in files:
            for block in _search(path):
                self.take_block(block)
            self._has_unsearchable |= not _is_plain_capture(path)
        if files:
            self.keylog.is_complete = not (self.is_live or self._has_unsearchable)

    def list_all(self) -> bytes:
        """Return the lines of all secrets, as in a key log; then none of them counts as new."""
        self.keylog.changed.clear()
        return b"".join(map(self.keylog.lines_of, self.keylog.client_randoms))

    def take_new(self) -> bytes:
        """Return the lines of all secrets that are new since the last call, as in a key log."""
        client_randoms = list(self.keylog.changed)
        self.keylog.changed.clear()
        return b"".join(map(self.keylog.lines_of, client_randoms))

    def take_used(self) -> bytes:
        """Return the lines of the secrets that were first used since the last call."""
        client_randoms = [
            client_random for client_random in self.keylog.used if client_random not in self._written
        ]
        self._written.update(client_randoms)
        return b"".join(map(self.keylog.lines_of, client_randoms))

    def new_tls(self, head: bytes, is_first: bool) -> Any:
        """Return a `TlsConnection` if bytes of a connection are TLS, or may be; otherwise None.

        `is_first`: they are the first that were sent. If not, they may be from the middle of a record.
        """
        from pulsarctl_wire.capture.tls.connection import TlsConnection

        is_tls = TlsConnection.looks_like_tls(head)
        if is_tls is False and (is_first or not self.keylog.secrets):
            return None
        if not self.is_live:
            self.search()
        return TlsConnection(self.keylog)


def require_keylogs(paths: Iterable[str]) -> None:
    """Raise CaptureError if a key log does not exist."""
    for path in paths:
        if not os.path.exists(path):
            raise CaptureError(f"--keylog {path}: no such file")


def holds_key_log(block: SecretsBlock) -> bool:
    """Return whether a block holds secrets of TLS: there are others."""
    body, order = block
    return body[:4] == struct.pack(order + "I", NSS)


def may_have_secrets(path: str) -> bool:
    """Return whether a source holds secrets of TLS, or may hold some, as it cannot be searched."""
    return not _is_plain_capture(path) or has_secrets(path)


def has_secrets(path: str) -> bool:
    """Return whether a file holds secrets of TLS, as far as it can be searched: it may be compressed."""
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
