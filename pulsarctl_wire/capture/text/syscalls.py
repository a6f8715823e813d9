r"""Parses what strace and ltrace print: which file descriptor, which direction, and the bytes as a string.

    [pid 17] 12:00:00.123456 sendto(5<TCP:[10.0.0.1:5000->10.0.0.2:6650]>, "\0\0\0)"..., 45, 0) = 45
    17  1700000000.123456 recvmsg(5, {msg_iov=[{iov_base="\0\0\0\35", iov_len=20}], ...}, 0) = 4
    readv(5, [{"\0\0", 10}, {"\0", 93}], 2) = 3             SSL_write(0x5581, "\0\0\0)"..., 45) = 45

A descriptor is a connection from connect() or accept() to close(). Descriptors of files are left out.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Final

from pulsarctl_wire.capture.text.dump import Dump, LogConnection, Repeats
from pulsarctl_wire.capture.text.lines import Line, join_pieces
from pulsarctl_wire.capture.text.strings import read_escapes, read_literal
from pulsarctl_wire.capture.text.times import time_in
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream

MAX_DESCRIPTORS: Final = 65_536
"""Descriptors of which something is known; the least recently updated are forgotten."""

MAX_UNFINISHED: Final = 1_024
"""Calls that wait for their end on a later line."""

_OUT: Final = {
    "write",
    "send",
    "sendto",
    "sendmsg",
    "writev",
    "pwritev2",
    "sendmmsg",
    "sendfile",
    "SSL_write",
}
_IN: Final = {"read", "recv", "recvfrom", "recvmsg", "readv", "preadv2", "recvmmsg", "SSL_read"}
_OPENING: Final = {
    "open",
    "openat",
    "openat2",
    "creat",
    "eventfd2",
    "epoll_create1",
    "timerfd_create",
    "memfd_create",
}
_OTHERS: Final = {"connect", "close", "accept", "accept4", "socket", "getsockname", "getpeername", "dup"}
_STANDARD: Final = {"0", "1", "2"}

_CALL: Final = re.compile(
    r"(?:\[pid +(?P<pid>[0-9]+)\] |(?P<thread>[0-9]+) +(?=[0-9a-zA-Z_<]))?"
    r"(?P<stamp>[0-9:.+ ]*?)\s*(?:\S+->)?(?:SYS_)?"
    r"(?P<call>[a-zA-Z_][a-zA-Z_0-9]*)\("
    r"(?P<fd>0x[0-9a-f]+|[0-9]+|AT_FDCWD)?(?P<note><.*?>(?=[,)]))?(?P<rest>.*)$"
)
_RESUMED: Final = re.compile(
    r"(?:\[pid +(?P<pid>[0-9]+)\] |(?P<thread>[0-9]+) +)?(?P<stamp>[0-9:.+ ]*?)\s*"
    r"<\.\.\. (?P<call>\w+) resumed>\s?(?P<rest>.*)$"
)
_UNFINISHED: Final = re.compile(r"\s*<unfinished \.\.\.>\s*$")
_RESULT: Final = re.compile(r"\) *= (-?[0-9]+|0x[0-9a-f]+)(?:<(?P<note>[^>]*(?:->[^>]*)?)>)?[^\"]*$")
_STRING: Final = re.compile(r'(?:(?:(?<=^,) *|iov_base=|\{)")')
_LENGTH: Final = re.compile(r"(?:, (?:iov_len=)?)([0-9]{1,10})")
_MESSAGE_LENGTH: Final = re.compile(r"\bmsg_len=([0-9]{1,10})")
_ENDS: Final = re.compile(r"<(?:TCP|TCPv6):\[(\S+)->(\S+)\]>")
_PORT: Final = re.compile(r"sin6?_port=htons\(([0-9]{1,5})\)")
_HOST: Final = re.compile(r'(?:inet_addr\(|inet_pton\(AF_INET6, )"([^"]*)"')
_EPOCH: Final = re.compile(r"[0-9]{10}\.")


def parse_calls(lines: Iterable[Line]) -> Iterator[Dump]:
    """Parse the calls of strace or ltrace among other lines. Raises CaptureError at a broken string."""
    calls = _Calls()
    for number, line in join_pieces(lines):
        if "(" in line or "resumed>" in line:
            yield from calls.take(number, line)


class _Calls:
    """What is known of the traced processes from their calls so far."""

    def __init__(self) -> None:
        self._connections: dict[str, LogConnection | None] = {}  # by descriptor; None: a file
        self._unfinished: dict[str, str] = {}  # by thread: what its line begins with
        self._rereader = _Rereader()
        self._repeats = Repeats()
        self._generation = 0  # connections opened so far: in their names, as descriptors are used again

    def take(self, number: int, line: str) -> Iterator[Dump]:
        """Yield the bytes that a line shows."""
        if match := _RESUMED.match(line):
            begin = self._unfinished.pop(match["pid"] or match["thread"] or "", "")
            if not begin.rstrip(" ,").startswith(match["call"] + "("):
                return
            stamp = match["stamp"]
            line = begin + match["rest"]
            match = _CALL.match(line)
        else:
            match = _CALL.match(line)
            stamp = match["stamp"] if match else ""
        if match is None:
            return
        call = match["call"]
        if call not in _OUT and call not in _IN and call not in _OPENING and call not in _OTHERS:
            return
        if unfinished := _UNFINISHED.search(line):
            thread = match["pid"] or match["thread"] or ""
            self._unfinished[thread] = line[match.start("call") : unfinished.start()]
            if len(self._unfinished) > MAX_UNFINISHED:
                del self._unfinished[next(iter(self._unfinished))]
            return
        result = _RESULT.search(line, match.start("rest"))
        if result is None:
            return
        value = int(result[1], 16 if "x" in result[1] else 10)
        fd = match["fd"] or ""
        rest = line[match.start("rest") : result.start()]
        time_ns = time_in(stamp) if ":" in stamp or _EPOCH.match(stamp) else None
        if call in _OUT or call in _IN:
            connection = self._connection_of(fd, match["note"] or "")
            if connection is not None and value >= 0:
                if call.endswith("mmsg"):  # which returns the number of messages
                    value = sum(map(int, _MESSAGE_LENGTH.findall(rest)))
                record = Dump(b"", time_ns, connection=connection, is_inbound=call in _IN, line=number)
                yield from _transfer(rest, value, call, record, self._rereader, self._repeats)
        elif call == "close":
            connection = self._connections.pop(fd, None)
            if connection is not None:
                yield Dump(b"", time_ns, connection=connection, is_last=True, line=number)
        elif value >= 0 or "EINPROGRESS" in line:
            self._note(call, fd, value, rest, result["note"] or "")

    def _note(self, call: str, fd: str, value: int, rest: str, note: str) -> None:
        """Note what a call tells about a descriptor."""
        if call in _OPENING:
            self._set(str(value), None)
        elif call in ("socket", "dup"):
            self._connections.pop(str(value), None)
        elif call in ("accept", "accept4"):
            self._generation += 1
            name = f"{value} {self._generation}"
            accepted = LogConnection(name, f"fd:{value}", _address(rest), "far")
            self._set(str(value), _with_ends(accepted, f"<{note}>"))
        elif call == "connect" and (far := _address(rest)):
            self._generation += 1
            near = connection.near if (connection := self._connections.get(fd)) is not None else f"fd:{fd}"
            self._set(fd, LogConnection(f"{fd} {self._generation}", near, far, "near"))
        elif call in ("getsockname", "getpeername"):
            connection = self._connections.get(fd) or LogConnection(f"{fd} 0", f"fd:{fd}")
            end = "near" if call == "getsockname" else "far"
            self._set(fd, connection._replace(**{end: _address(rest)}))

    def _set(self, fd: str, connection: LogConnection | None) -> None:
        self._connections.pop(fd, None)
        self._connections[fd] = connection
        if len(self._connections) > MAX_DESCRIPTORS:
            del self._connections[next(iter(self._connections))]

    def _connection_of(self, fd: str, note: str) -> LogConnection | None:
        """Return the connection of a descriptor, which `strace -y` describes by `note`; None: a file."""
        if not fd or (fd in _STANDARD and not note):
            return None
        if note and not note.startswith(("<TCP", "<socket", "<UNIX")):
            return None
        connection = self._connections.get(fd, LogConnection(f"{fd} 0", f"fd:{fd}"))
        if connection is not None and _ENDS.match(note):
            connection = _with_ends(connection, note)
            self._set(fd, connection)
        return connection


def _with_ends(connection: LogConnection, note: str) -> LogConnection:
    ends = _ENDS.match(note)
    return connection if ends is None else connection._replace(near=ends[1], far=ends[2])


def _address(rest: str) -> str:
    """Return the socket address in the arguments of a call as "address:port"; "" if there is none."""
    port, host = _PORT.search(rest), _HOST.search(rest)
    if port is None or host is None:
        return ""
    name = read_escapes(host[1], 0, "", 0)[0].decode("latin-1") if "\\" in host[1] else host[1]
    return f"[{name}]:{port[1]}" if ":" in name else f"{name}:{port[1]}"


def _transfer(
    rest: str, size: int, call: str, record: Dump, rereader: "_Rereader", repeats: Repeats
) -> Iterator[Dump]:
    """Yield the bytes of a call that returned `size`."""
    if not size:
        if call in _IN:
            yield _part(record, b"", 0, is_last=True)
        return
    left = size
    position = 0
    while left and (match := _STRING.search(rest, position)):
        data, position, missing = read_literal(rest, match.end(), '"', record.line, repeats)
        is_cut = bool(missing)
        length = _LENGTH.match(rest, position)
        whole = min(int(length[1]) if length else left, left)
        is_last_string = _STRING.search(rest, position) is None
        if not is_cut and is_last_string and len(data) < left:
            data = rereader.read(rest[match.end() : position - 1], left) or data
        data = data[:left]
        hole = max((left if is_last_string else whole) - len(data), 0) if is_cut or is_last_string else 0
        yield _part(record, data, hole)
        left -= len(data) + hole
    if left == size:  # a pointer, not a string
        yield _part(record, b"", size)


def _part(record: Dump, data: bytes, missing: int, *, is_last: bool = False) -> Dump:
    return replace(record, data=data, missing=missing, is_last=is_last)


# ---- Escapes that are ambiguous ----

MAX_REREAD: Final = 1 << 20
"""Maximum characters that are reread, of a whole text."""

_OCTAL: Final = re.compile(r"\\(?:([0-7]{1,2})([0-7])|.)", re.DOTALL)


class _Rereader:
    r"""Finds the bytes of strings that are too short for their calls.

    Unlike strace, some printers do not pad an octal escape that a digit follows: then \62 is \6 and "2". The
    reading that consists of frames is taken.
    """

    def __init__(self) -> None:
        self._room = MAX_REREAD

    def read(self, text: str, size: int) -> bytes | None:
        """Return the `size` bytes of a string; None if no reading fits."""
        splits = [match.end(1) for match in _OCTAL.finditer(text) if match[2]]  # positions
        # a printable character is never escaped, so its last digit is a character of its own
        certain_splits = {
            split
            for split in splits
            if 0x20 <= int(text[text.rindex("\\", 0, split) + 1 : split + 1], 8) < 0x7F
        }
        doubtful_splits = [split for split in splits if split not in certain_splits]
        count = size - len(read_escapes(text, 0, '"', 0)[0]) - len(certain_splits)
        fallback = None
        for choice in combinations(doubtful_splits, count) if count >= 0 else ():
            self._room -= len(text) + 100
            if self._room < 0:
                break
            cuts = [0, *sorted([*certain_splits, *choice]), len(text)]
            data = b"".join(read_escapes(text[start:end], 0, '"', 0)[0] for start, end in pairwise(cuts))
            checksums = _checksums(data) if len(data) == size else None
            if checksums is not None and "absent" not in checksums:
                return data
            fallback = fallback or (data if checksums is not None else None)
        return fallback


def _checksums(data: bytes) -> set[str | None] | None:
    """Return the kinds of checksums of frames; None if there is something else, or a wrong checksum."""
    stream = FrameStream(Connection(0), True)
    stream.is_direction_certain = False
    checksums = set[str | None]()
    for event in [*stream.feed(data), *stream.close()]:
        if not isinstance(event, Frame) or event.partial or event.checksum == "invalid":
            return None
        checksums.add(event.checksum)
    return checksums
