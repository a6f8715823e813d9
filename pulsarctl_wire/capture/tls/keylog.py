"""Keeps the secrets of NSS key logs (SSLKEYLOGFILE), by client random and label; follows a growing file.

A line is `LABEL client-random secret`, both in hexadecimal digits. Netty and agents for Java write the master
secrets of TLS 1.2 by session ids instead, Netty in lines of a log. What is not understood is counted, never
an error. Memory is bounded: a line has at most `MAX_LINE` bytes, and the secrets of the `MAX_SESSIONS` newest
client randoms are kept.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from pulsarctl_wire.errors import CaptureError

MAX_LINE: Final = 1_024
MAX_SESSIONS: Final = 131_072
MAX_LABELS: Final = 16
"""Secrets kept for a client random."""
_SESSION: Final = b"session "
"""Begins the keys of secrets that are known by session ids; client randoms have 32 bytes."""
MAX_EFFORT: Final = 1 << 30
"""Record numbers that are tried at most, for all connections together."""
MASTER: Final = "CLIENT_RANDOM"
"""The label of a TLS 1.2 master secret."""
_USABLE_LABEL: Final = re.compile(
    rb"(CLIENT_RANDOM|CLIENT_EARLY_TRAFFIC_SECRET|(?:CLIENT|SERVER)_(?:HANDSHAKE_TRAFFIC_SECRET|TRAFFIC_SECRET_[0-9]{1,6}))"
)
_LINE: Final = re.compile(
    rb"^(?:\xef\xbb\xbf)?"  # a byte order mark
    rb"([A-Z][A-Z0-9_]{0,63})[ \t]+((?:[0-9A-Fa-f]{2}){1,64})[ \t]+((?:[0-9A-Fa-f]{2}){1,256})[ \t\r]*$",
    re.M,
)
_BY_SESSION: Final = re.compile(
    rb"^.{0,400}?RSA Session-ID:((?:[0-9A-Fa-f]{2}){1,32})[ \t]+Master-Key:([0-9A-Fa-f]{96})[ \t\r]*$", re.M
)
_IGNORED: Final = re.compile(rb"^(?:\xef\xbb\xbf)?[ \t\r]*(?:#.*)?$", re.M)
_PIECE: Final = 1 << 20
_SIZES: Final = {32, 48}
"""Sizes of secrets, in bytes: that of the hash (32 or 48); a master secret has 48."""


class KeyLog:
    """The secrets of all key logs that were fed to it."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever a new secret came, so that whoever waits for one tries again."""
        self.is_complete = False
        """Set this when no more secrets will come: then nothing waits for them."""
        self.secrets = 0
        """Secrets that were understood, without repeated ones."""
        self.bad_lines = 0
        """Lines that are no lines of a key log."""
        self.first_bad_line = 0
        """The number of the first of them, from 1; 0: none."""
        self.long_lines = 0
        """Those of them that have more than `MAX_LINE` bytes."""
        self.other_labels = 0
        """Lines with secrets that open no records, or with unknown labels."""
        self.forgotten = 0
        """Client randoms whose secrets were dropped, as there were more than `MAX_SESSIONS`."""
        self.used: dict[bytes, None] = {}
        """Client randoms of the connections that were opened, in the order of their first use."""
        self.changed: dict[bytes, None] = {}
        """Client randoms with new secrets; the caller clears this."""
        self.effort = MAX_EFFORT
        """Record numbers that may still be tried for connections joined midway."""
        self._lines = 0
        self._rest = b""  # of a line that has not ended yet
        self._is_in_long_line = False
        self._sessions: dict[bytes, dict[str, bytes]] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes of a key log, cut anywhere; `finish` it before you feed another one."""
        for start in range(0, len(data), _PIECE):
            self._feed_piece(data[start : start + _PIECE])

    def finish(self) -> None:
        """Take the last line, though no line feed ended it."""
        if self._rest or self._is_in_long_line:
            self._feed_piece(b"\n")

    def _feed_piece(self, piece: bytes) -> None:
        if self._is_in_long_line:
            end = piece.find(b"\n")
            if end < 0:
                return
            piece = piece[end:]  # keep the line feed: the line was only counted as bad so far
            self._rest = b""
            self._is_in_long_line = False
        text = self._rest + piece
        end = text.rfind(b"\n") + 1
        self._rest = text[end:]
        if end:
            self._take_lines(text[:end])
        if len(self._rest) > MAX_LINE:
            self._count_bad_lines(1, self._lines + 1)
            self.long_lines += 1
            self._rest = b""
            self._is_in_long_line = True

    def _take_lines(self, text: bytes) -> None:
        """Take whole lines."""
        lines = text.count(b"\n")
        understood = 0
        for match in _LINE.finditer(text):
            understood += 1
            self._add(match[1], match[2], match[3])
        if understood != lines:
            for match in _BY_SESSION.finditer(text):
                understood += 1
                self._keep(
                    _SESSION + bytes.fromhex(match[1].decode()), MASTER, bytes.fromhex(match[2].decode())
                )
            body = text[:-1]  # else an empty line would follow the last line feed
            bad_lines = lines - understood - sum(1 for _ in _IGNORED.finditer(body))
            if bad_lines > 0:
                self.long_lines += sum(len(line) > MAX_LINE for line in body.split(b"\n"))
                self._count_bad_lines(
                    bad_lines, self._lines + 1 if self.first_bad_line else self._find_bad_line(body)
                )
        self._lines += lines

    def _find_bad_line(self, text: bytes) -> int:
        """Return the number of the first line that is not understood."""
        for number, line in enumerate(text.split(b"\n"), self._lines + 1):
            if not (_LINE.match(line) or _IGNORED.match(line) or _BY_SESSION.match(line)):
                return number
        return self._lines + 1

    def _count_bad_lines(self, lines: int, first: int) -> None:
        self.bad_lines += lines
        self.first_bad_line = self.first_bad_line or first

    def _add(self, label: bytes, client_random: bytes, secret: bytes) -> None:
        """Keep a secret, if it can open records."""
        if not _USABLE_LABEL.fullmatch(label) or len(client_random) != 64 or len(secret) // 2 not in _SIZES:
            self.other_labels += 1
            return
        self._keep(bytes.fromhex(client_random.decode()), label.decode(), bytes.fromhex(secret.decode()))

    def _keep(self, key: bytes, name: str, value: bytes) -> None:
        labels = self._sessions.get(key)
        if labels is None:
            if len(self._sessions) >= MAX_SESSIONS:
                oldest = list(islice(self._sessions, max(MAX_SESSIONS // 8, 1)))
                for old_key in oldest:
                    del self._sessions[old_key]
                    self.used.pop(old_key, None)
                self.forgotten += len(oldest)
            labels = self._sessions[key] = {}
        if labels.get(name) == value or (name not in labels and len(labels) >= MAX_LABELS):
            return
        labels[name] = value
        self.changed[key] = None
        self.secrets += 1
        self.version += 1

    def secrets_of(self, client_random: bytes) -> Mapping[str, bytes]:
        """Return the secrets of a client random by label; none if the log has none."""
        return self._sessions.get(client_random, {})

    def identify(self, client_random: bytes, session_id: bytes) -> None:
        """Give a client random the master secret that the log has for its session."""
        labels = self._sessions.get(_SESSION + session_id)
        if labels is not None and client_random not in self._sessions:
            self._keep(client_random, MASTER, labels[MASTER])

    def find_traffic_secrets(self, only: bytes = b"") -> Iterator[tuple[bytes, str, bytes]]:
        """Yield client random, label and secret of TLS 1.3's application data: unused client randoms first.

        `only`: yield only the secrets of this client random; b"": all.
        """
        sessions = {only: self.secrets_of(only)} if only else self._sessions
        for is_used in (False, True):
            for client_random, labels in list(sessions.items()):
                if (client_random in self.used) is is_used:
                    for label, secret in labels.items():
                        if "_TRAFFIC_SECRET_" in label:
                            yield client_random, label, secret

    def restore_effort(self) -> None:
        """Allow as many record numbers to be tried as at first."""
        self.effort = MAX_EFFORT

    @property
    def client_randoms(self) -> list[bytes]:
        """The client randoms that have secrets, and keys of those known by session id; the oldest first."""
        return list(self._sessions)

    def find_secrets(self, label: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the client randoms that have a secret with this label, and the secrets."""
        for client_random, labels in list(self._sessions.items()):
            if label in labels and not client_random.startswith(_SESSION):
                yield client_random, labels[label]

    def lines_of(self, client_random: bytes) -> bytes:
        """Return the lines of the secrets of one of `client_randoms`, as in a key log."""
        secrets = self.secrets_of(client_random)
        if client_random.startswith(_SESSION):
            session_id = client_random.removeprefix(_SESSION).hex()
            lines = [
                f"RSA Session-ID:{session_id} Master-Key:{secret.hex()}\n" for secret in secrets.values()
            ]
        else:
            lines = [f"{label} {client_random.hex()} {secret.hex()}\n" for label, secret in secrets.items()]
        return "".join(lines).encode()

    def describe_problems(self) -> list[str]:
        """Return what was ignored, a line for each kind."""
        problems = []
        if self.bad_lines:
            lines = "line" if self.bad_lines == 1 else "lines"
            long_lines = f" ({self.long_lines:,} over {MAX_LINE:,} bytes)" if self.long_lines else ""
            first = f"the first is line {self.first_bad_line:,}"
            problems.append(f"key log: {self.bad_lines:,} {lines} not understood{long_lines}, {first}")
        if self.forgotten:
            bound = f"only the secrets of the last {MAX_SESSIONS:,} connections are kept"
            problems.append(f"key log: {bound}, those of {self.forgotten:,} were dropped")
        return problems


class KeyLogFile:
    """Follows a key log that grows, and need not exist yet. A pipe is read once, to its end."""

    def __init__(self, path: str | os.PathLike[str], keylog: KeyLog) -> None:
        self._path = Path(path)
        self._keylog = keylog
        self._identity = -1, -1  # device and inode
        self._position = 0

    def refresh(self) -> None:
        """Feed the new bytes of the file to the key log. Raises CaptureError if the file cannot be read."""
        try:
            status = self._path.stat()
            identity = status.st_dev, status.st_ino
            is_file = stat.S_ISREG(status.st_mode)
            if identity != self._identity or (is_file and status.st_size < self._position):
                self._identity, self._position = identity, 0
            elif not is_file or status.st_size == self._position:
                return
            with self._path.open("rb") as file:
                if is_file:
                    file.seek(self._position)
                self._feed(file)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CaptureError(
                f"{self._path}: the key log cannot be read: {error.strerror or error}"
            ) from None

    def _feed(self, file: BinaryIO) -> None:
        """Feed the rest of the file. Its last line is read again, unless a line feed ends it."""
        rest = b""
        while piece := file.read(_PIECE):
            text = rest + piece
            end = text.rfind(b"\n") + 1
            if not end and len(text) > MAX_LINE:
                end = len(text)  # of a line that is too long, which the key log notices
            rest = text[end:]
            self._position += end
            self._keylog.feed(text[:end])
        line = _LINE.match(rest)
        if line is not None and len(line[3]) // 2 in _SIZES:
            self._keylog.feed(rest + b"\n")
