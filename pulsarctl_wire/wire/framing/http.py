"""Reads HTTP/1 as far as lookups need it: requests and answers of one direction of a connection.

The same bytes give the same messages however they are chunked. A reader is in one of five states:

    searching  after a hole, or where a capture begins: for a request of Pulsar's, or an answer
    head       the first line and the headers
    body       bytes that the headers announce, or up to the end of the connection
    chunk      the line with the size of the next chunk, or a trailer
    over       another protocol follows (101 Switching Protocols, CONNECT)

Answers are paired with requests by their order: both readers of a connection share `Connection.calls`. Only
calls that `rest.py` knows become messages. Memory is bounded by `MAX_HEAD`, `MAX_BODY` and `MAX_CALLS`.
Source: RFC 9112.
"""

import re
import zlib
from collections import deque
from typing import Any, Final

from pulsarctl_wire.wire import rest
from pulsarctl_wire.wire.frame import Connection, HttpMessage

MAX_HEAD: Final = 16 * 1024
"""Maximum bytes of a first line with its headers; a larger one is passed over."""

MAX_BODY: Final = 64 * 1024
"""Maximum bytes of a body that are kept, also of a decompressed one; larger ones are not opened."""

MAX_CALLS: Final = 64
"""Maximum number of requests of a connection that wait for their answers; the oldest are forgotten."""

_MAX_TARGET: Final = 1_024  # characters
_CALL_COST: Final = 2 * _MAX_TARGET  # bytes of memory
_MAX_PACKETS: Final = 4_096  # remembered of a message
_MAX_SIZE: Final = 2**53  # of a body in bytes, and of a number in an answer
_TAIL: Final = 32  # bytes that a search keeps, as they may be the beginning of what `_START` matches
_START: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE) /(?:lookup|admin)/|HTTP/1\.[01] [1-5]\d\d")
_REQUEST: Final = re.compile(rb"([A-Z]{3,10}) (\S+) HTTP/1\.[01]")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: .*)?")
_CHUNK_SIZE: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,13})[ \t]*(?:;.*)?")
_BLANK: Final = re.compile(rb"\r?\n\r?\n")
_NO_BODY: Final = (204, 304)
_SHOWN: Final = (
    *("brokerUrl", "brokerUrlTls", "httpUrl", "httpUrlTls", "nativeUrl"),
    *("partitions", "version", "type"),
)
"""Fields of answers that are shown."""

_SEARCHING, _HEAD, _BODY, _CHUNK, _OVER = range(5)
_TO_THE_END: Final = -1  # size of a body that ends with the connection


class HttpReader:
    """Reads one direction of `connection`; `held_bytes` says how much memory it needs.

    `from_start`: the first byte begins a message; otherwise the reader begins with a search.
    """

    __slots__ = (
        *("_body", "_connection", "_end", "_head", "_headers", "_in_trailer", "_is_chunked", "_is_whole"),
        *("_left", "_message", "_messages", "_origin", "_packets", "_start", "_state"),
    )

    def __init__(self, connection: Connection, *, from_start: bool = True) -> None:
        self._connection = connection
        self._state = _HEAD if from_start else _SEARCHING
        self._head = bytearray()  # or a part of one, or of a line of a chunk
        self._start = 0  # offset of the message
        self._end = 0  # offset after the last byte
        self._packets: list[int] = []
        self._origin: tuple[bool, int | None, int] = (True, None, 0)  # direction, time and packet
        self._message: HttpMessage | None = None  # whose body is read
        self._headers: dict[bytes, bytes] = {}
        self._body = bytearray()
        self._is_whole = True  # all of the body is in `_body`
        self._left = 0  # bytes of the body or chunk still to come; in a trailer 0 once it ends
        self._is_chunked = False
        self._in_trailer = False
        self._messages: list[HttpMessage] = []  # complete ones

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for what is not in a message yet."""
        return len(self._head) + len(self._body) + _CALL_COST * len(self._connection.calls or ())

    def feed(
        self, data: bytes, offset: int, to_broker: bool, time_ns: int | None, packet: int
    ) -> list[HttpMessage]:
        """Take the bytes at `offset` of the direction; return the messages that they complete."""
        self._origin = to_broker, time_ns, packet
        if self._packets[-1:] != [packet] and len(self._packets) < _MAX_PACKETS:
            self._packets.append(packet)
        pos = 0
        while pos < len(data) and self._state != _OVER:
            if self._state == _BODY:
                pos = self._read_body(data, pos)
            elif self._state == _CHUNK:
                pos = self._read_chunk_line(data, pos)
            elif self._state == _HEAD:
                pos = self._read_head(data, pos, offset)
            else:
                pos = self._search(data, pos, offset)
            self._end = offset + pos
            if self._state == _BODY and not self._left:
                if self._is_chunked:
                    self._state = _CHUNK
                else:
                    self._finish()
            elif self._state == _CHUNK and self._in_trailer and not self._left:
                self._finish()
        return self._take_messages()

    def skip(self, size: int) -> list[HttpMessage]:
        """Note that `size` bytes were not captured; return the message that they end or cut, if any."""
        if self._state == _BODY and not self._is_chunked and (self._left < 0 or self._left >= size):
            self._is_whole = False
            self._left -= size if self._left > 0 else 0
            self._end += size
            if not self._left:
                self._finish()
        elif self._state != _OVER:
            self._cut()
            self._lose()
        return self._take_messages()

    def close(self) -> list[HttpMessage]:
        """Note that no more bytes will come; return the last message, if any."""
        if self._state == _BODY and self._left == _TO_THE_END:
            self._finish()
        else:
            self._cut()
        return self._take_messages()

    def _take_messages(self) -> list[HttpMessage]:
        messages, self._messages = self._messages, []
        return messages

    def _cut(self) -> None:
        """End the message that is being read."""
        self._is_whole = False
        if self._message is not None:
            self._message.partial = True
        self._finish()

    # -- the states

    def _search(self, data: bytes, pos: int, offset: int) -> int:
        """Look for the beginning of a message; returns where to go on."""
        tail = bytes(self._head)
        window = tail + data[pos:]
        match = _START.search(window)
        if match is None:
            self._head = bytearray(window[-_TAIL:])
            return len(data)
        self._state = _HEAD
        self._head = bytearray()
        self._packets = self._packets[-1:]
        start = match.start() - len(tail)
        if start < 0:  # it began in the bytes before
            self._head = bytearray(tail[start:])
            self._start = offset + pos + start
            return pos
        return pos + start

    def _read_head(self, data: bytes, pos: int, offset: int) -> int:
        before = len(self._head)
        if not before:
            if data[pos] in b"\r\n":
                return pos + 1
            self._start = offset + pos
        self._head += data[pos : pos + MAX_HEAD + 1 - before]
        match = _BLANK.search(self._head, max(before - 3, 0))
        if match is None:
            if len(self._head) > MAX_HEAD:
                self._lose()
            return min(len(data), pos + MAX_HEAD + 1 - before)
        head, self._head = bytes(self._head[: match.start()]), bytearray()
        self._open(head)
        return pos + match.end() - before

    def _lose(self) -> None:
        """Go on with a search, and forget the requests that wait: it is unknown what comes next."""
        self._head = self._head[-_TAIL:]
        self._state = _SEARCHING
        if self._connection.calls is not None:
            self._connection.calls.clear()

    def _open(self, head: bytes) -> None:
        """Take a complete head: of a request, or of an answer, maybe after other bytes."""
        for begin in (0, *(match.start() for match in _START.finditer(head, 1))):
            first, _, rest_of_head = head[begin:].partition(b"\n")
            request, status = _REQUEST.fullmatch(first.rstrip(b"\r")), _STATUS.fullmatch(first.rstrip(b"\r"))
            if request is None and status is None:
                continue
            self._start += begin
            pairs = (line.partition(b":") for line in rest_of_head.split(b"\n"))
            self._headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            if request is not None:
                self._open_request(request[1].decode(), request[2].decode("utf-8", "replace"))
            elif status is not None:
                self._open_answer(int(status[1]))
            return
        self._lose()

    def _open_request(self, method: str, target: str) -> None:
        message = self._new_message()
        call = rest.parse_target(target) if method == "GET" else None
        message.method, message.target = method, rest.hide_credentials(target)[:_MAX_TARGET]
        if call is not None:
            message.kind, message.topic, message.namespace = call
        if self._connection.calls is None:
            self._connection.calls = deque(maxlen=MAX_CALLS)
        self._connection.calls.append(message)
        self._begin_body(0)

    def _open_answer(self, status: int) -> None:
        calls = self._connection.calls
        if 100 <= status < 200 and status != 101:
            self._begin_body(0)  # another answer follows
            return
        request = calls.popleft() if calls else None
        method = "" if request is None else request.method
        if status == 101 or (method == "CONNECT" and status < 300):
            self._state = _OVER
            return
        if request is not None and request.kind:
            message = self._new_message()
            message.method, message.target, message.kind = method, request.target, request.kind
            message.topic, message.namespace = request.topic, request.namespace
            message.status, message.request = status, request
        self._begin_body(0 if status in _NO_BODY or method == "HEAD" else _TO_THE_END)

    def _new_message(self) -> HttpMessage:
        to_broker, time_ns, packet = self._origin
        self._message = HttpMessage(self._connection, to_broker, self._start, time_ns, packet)
        return self._message

    def _begin_body(self, default: int) -> None:
        """Begin a body of the size in the headers, or of `default` if they have none."""
        length = self._headers.get(b"content-length", b"")
        self._is_chunked = b"chunked" in self._headers.get(b"transfer-encoding", b"").lower()
        self._left = default
        self._state = _BODY
        if default == 0 and (self._message is None or self._message.status):
            self._is_chunked = False  # an answer that has none, whatever it says
        elif self._is_chunked:
            self._left = 0
        elif length.isdigit() and int(length[:20]) < _MAX_SIZE:
            self._left = int(length)
        self._in_trailer = False
        self._is_whole = True

    def _read_body(self, data: bytes, pos: int) -> int:
        size = len(data) - pos
        if self._left >= 0:
            size = min(size, self._left)
            self._left -= size
        if self._message is None or not self._message.status or len(self._body) + size > MAX_BODY:
            self._is_whole = False
            self._body = bytearray()
        elif self._is_whole:
            self._body += data[pos : pos + size]
        return pos + size

    def _read_chunk_line(self, data: bytes, pos: int) -> int:
        """Read the line before a chunk, the one after it, which is empty, or a trailer."""
        end = data.find(b"\n", pos)
        stop = len(data) if end < 0 else end + 1
        self._head += data[pos:stop]
        if len(self._head) > MAX_HEAD:
            self._cut()
            self._lose()
        elif end >= 0:
            line, self._head = bytes(self._head).strip(b"\r\n"), bytearray()
            if self._in_trailer:
                self._left = len(line)  # an empty line ends the trailer
            elif line:
                self._begin_chunk(line)
        return stop

    def _begin_chunk(self, line: bytes) -> None:
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            self._cut()
            self._lose()
            return
        self._left = int(size[1], 16)
        if self._left:
            self._state = _BODY
        else:
            self._in_trailer, self._left = True, 1  # not at the end yet

    # -- the end of a message

    def _finish(self) -> None:
        """End the message that is being read: report it if it belongs to a call, and expect the next one."""
        message, body = self._message, bytes(self._body)
        if message is not None and message.kind:
            _, message.time_ns, message.packet = self._origin
            message.size = max(self._end - self._start, 0)
            message.packets = self._packets
            request = message.request
            if request is not None:
                message.fields = self._read_fields(message, body if self._is_whole else b"")
                if message.time_ns is not None and request.time_ns is not None:
                    message.latency_ns = message.time_ns - request.time_ns
            self._messages.append(message)
        self._message, self._body, self._head, self._left = None, bytearray(), bytearray(), 0
        self._packets = self._packets[-1:]
        self._state, self._headers, self._in_trailer, self._is_chunked = _HEAD, {}, False, False

    def _read_fields(self, message: HttpMessage, body: bytes) -> dict[str, Any]:
        """Return what an answer says."""
        location = self._headers.get(b"location")
        if location is not None and 300 <= message.status < 400:
            return {"location": rest.hide_credentials(location.decode("utf-8", "replace"))}
        if self._headers.get(b"content-encoding", b"").lower() == b"gzip":
            body = _decompress(body)
        value = rest.parse_json(body)
        if message.status != 200:
            reason = rest.find_reason(value)[:_MAX_TARGET]
            return {"reason": reason} if reason else {}
        if isinstance(value, list):
            return {"topics": len(value)}
        fields = value if isinstance(value, dict) else {}
        return {name: item for name in _SHOWN if (item := _limit(fields.get(name))) not in (None, "")}


def _limit(value: Any) -> str | int | None:
    """Return a text, cut, or a number that is not too large; None for all else."""
    if isinstance(value, str):
        return value[:_MAX_TARGET]
    return value if type(value) is int and abs(value) < _MAX_SIZE else None


def _decompress(body: bytes) -> bytes:
    """Return a body without gzip; b"" if it is larger than `MAX_BODY`, or damaged."""
    opener = zlib.decompressobj(31)
    try:
        data = opener.decompress(body, MAX_BODY)
    except zlib.error:
        return b""
    return data if opener.eof else b""
