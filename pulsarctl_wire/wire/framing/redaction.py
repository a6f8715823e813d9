"""Masks credentials in the protocol's bytes with stars; the length stays the same.

In a frame it masks the fields that `credentials.py` finds. In malformed bytes it masks everything, except
what certainly belongs to a command without credentials (`broken.py`).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, Span, find_secrets, type_in
from pulsarctl_wire.wire.frame import (
    KEPT_FRAME,
    MAX_FRAME_SIZE,
    Connection,
    Event,
    Frame,
    Gap,
    Malformed,
    header_at,
)
from pulsarctl_wire.wire.framing.broken import broken_spans, credentials_from
from pulsarctl_wire.wire.framing.foreign import ENOUGH, QUERY, proxy_header, recognise
from pulsarctl_wire.wire.framing.resync import COMMAND_HEADS
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.parts import MAGIC_CHECKSUM, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import fields, read_varint

_HEADER: Final = re.compile(rb"[A-Za-z0-9-]{1,40}:[ \t]*")
_HARMLESS_HEADERS: Final = frozenset(
    {
        *(b"host", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"),
        *(b"user-agent", b"server", b"date", b"upgrade", b"connection", b"accept", b"accept-encoding"),
    }
)

# -- events


def event_spans(event: Event) -> list[Span]:
    """The spans of an event's `raw` that are shown only with `--show-secrets`."""
    if isinstance(event, Gap):
        return []
    if isinstance(event, Frame):
        return frame_spans(event)
    if event.protocol:
        return list(_http_spans(event.raw)) if event.protocol == "HTTP" else []
    if proxy_header(event.raw)[0] == event.size:
        return []
    return broken_spans(event.raw)


def frame_spans(frame: Frame) -> list[Span]:
    """The spans of a frame's bytes that are credentials, or may be."""
    raw = frame.raw
    if frame.base is None:  # the command is cut, but the sizes are there
        return [(max(start, 8), stop) for start, stop in broken_spans(raw) if stop > 8]
    end = min(8 + frame.command_size, len(raw))
    proven = end if frame.checksum == "valid" and not frame.broker_entry else None
    find = _intact_spans if len(raw) <= _MAX_CACHED_BYTES else _intact_spans.__wrapped__
    return find(raw, end, frame.type, proven)


def hides_entry(frame: Frame) -> bool:
    """Whether a part of the frame's entry is hidden: no checksum covers it, and it may hold credentials."""
    if frame.checksum == "valid":
        return False
    end = 8 + frame.command_size
    return any(stop > end for _, stop in frame_spans(frame))


_MAX_CACHED_BYTES: Final = 1024 * 1024  # bytes of the largest frame whose spans are cached


@lru_cache(maxsize=2)  # several callers ask about the same frame
def _intact_spans(raw: bytes, end: int, number: int, proven: int | None = None) -> list[Span]:
    """The spans of a frame whose command ends at `end`; a valid checksum covers it from `proven` on."""
    spans = find_secrets(raw, 8, end).spans
    visible = end
    if number in PAYLOAD_TYPES and not spans:
        if proven is None:
            parts = locate(raw, end)
            is_right = parts.computed is not None and parts.computed == parts.stored
            proven = parts.checksum[1] if is_right else len(raw)
        visible = credentials_from(raw, end, proven)
        if visible == proven:
            return []
    return [*spans, (visible, len(raw))] if visible < len(raw) else spans


def _is_proven(data: bytes, at: int, stop: int) -> bool:
    """Whether the entry at `data[at:stop]` begins with a checksum, and the checksum is valid."""
    if stop - at < 10 or data[at : at + 2] != MAGIC_CHECKSUM:
        return False
    return bool(crc32c(memoryview(data)[at + 6 : stop]) == int.from_bytes(data[at + 2 : at + 6], "big"))


def _http_spans(raw: bytes) -> Iterator[Span]:
    """The spans to mask in HTTP: the query, the body, and values of headers not known to be harmless."""
    at = 0
    for number, line in enumerate(raw.splitlines(keepends=True)):
        stop, text = at + len(line), line.rstrip(b"\r\n")
        if not number:
            yield from ((at + found.start(), at + found.end()) for found in QUERY.finditer(text))
            if stop == len(raw) and b"//" in text and not line.endswith(b"\n"):
                yield at + text.index(b"//"), stop  # the rest of the line is unknown
        elif not text:
            break
        else:
            header = _HEADER.match(text)
            harmless = header is not None and header[0].split(b":")[0].lower() in _HARMLESS_HEADERS
            if not harmless or b"@" in text or not line.endswith(b"\n"):
                yield at + (header.end() if header else 0), at + len(text)
        at = stop
    if at < len(raw):
        yield at, len(raw)


_FIRST: Final = bytes([KEPT_FRAME >> 24])  # the largest first byte of a frame
_HEAD: Final = 14  # the first bytes of a frame, which tell whether it is plain
_PLAIN: Final = {
    head: (len(head), number in PAYLOAD_TYPES)
    for head, number in COMMAND_HEADS.items()
    if number not in WITH_SECRETS
}
"""First bytes of a command without credentials -> their number, and whether a payload follows the command."""


def masked(data: bytes, spans: list[Span], mask: bytes = b"*") -> bytes:
    """`data` with every byte in `spans` replaced by `mask`, which is a single byte."""
    if not spans:
        return data
    made = bytearray(data)
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(made))
        made[start:stop] = mask * (stop - start)
    return bytes(made)


def hex_digits(data: bytes, spans: list[Span]) -> str:
    """`data` in hexadecimal digits, with xx for the bytes in `spans`."""
    if not spans:
        return data.hex(" ")
    digits = data.hex(" ").split()
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(digits))
        digits[start:stop] = ["xx"] * (stop - start)
    return " ".join(digits)


def shown(event: Frame | Malformed, show_secrets: bool = False) -> bytes:
    """The bytes of a frame or a malformed stretch, masked unless `show_secrets`."""
    return event.raw if show_secrets else masked(event.raw, event_spans(event))


# -- streams


class Redacted:
    """Redacts one direction of a connection. Frames that may hold credentials are held until complete.

    It walks from frame to frame by their sizes, as long as the sizes are valid. After that the decoder takes
    over: bytes are held as long as it holds them, and all are masked except the intact frames it finds.
    """

    def __init__(self) -> None:
        self.held = 0
        """The number of bytes held."""
        self._pieces: list[bytes] = []  # the bytes held
        self._need = 0  # do nothing until so many bytes are held
        self._left = 0  # remaining bytes of a frame, or of a PROXY header, that is not masked
        self._fresh = True  # the protocol is not known yet
        self._protocol = ""  # another protocol than Pulsar's
        self._stream: FrameStream | None = None  # the decoder, once sizes were invalid
        self._at = 0  # offset in that stream of the bytes held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes. Yields the bytes that can be shown now, masked."""
        if self._stream is not None:
            yield self._released(self._taken(data), self._stream.feed(data), self._stream)
        elif self._protocol:
            yield b"*" * len(data) if self._protocol == "HTTP" else data
        elif self.held + len(data) < self._need:
            self._pieces.append(data)
            self.held += len(data)
        else:
            data = self._taken(data)
            if self._fresh and not self._begins(data):
                self._hold(data)
            else:
                yield from self._frames(data)

    def end(self) -> bytes:
        """The bytes still held, masked. Call it when no more bytes will come."""
        held = self._taken(b"")
        if self._stream is not None:
            return self._released(held, self._stream.close(), self._stream)
        sizes = 0 if self._fresh or len(held) < 8 else 8  # those of a cut frame
        return masked(held, [(max(start, sizes), stop) for start, stop in broken_spans(held)])

    def _taken(self, data: bytes) -> bytes:
        """The bytes held, followed by `data`; afterwards nothing is held."""
        data = b"".join((*self._pieces, data))
        self._hold(b"")
        return data

    def _hold(self, data: bytes, need: int = 0) -> None:
        """Hold `data` until there are `need` bytes."""
        self._pieces, self.held, self._need = [data], len(data), need

    def _begins(self, data: bytes) -> bool:
        """Find out which protocol begins with `data`. Returns False if that needs more bytes."""
        header, known = proxy_header(data)
        if header and not known:
            return False  # the header is not complete
        if header or data[:1] <= _FIRST:
            self._left = header
        elif len(data) >= ENOUGH:
            self._protocol, _ = recognise(data)
        else:
            return False
        self._fresh = False
        return True

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Walk from frame to frame, and mask those that may have credentials."""
        if self._protocol:
            yield masked(data, list(_http_spans(data)) if self._protocol == "HTTP" else [])
            return
        done, at, end, need = 0, self._left, len(data), 0
        while end - at >= 8:
            total, size = header_at(data, at)
            stop = at + 4 + total
            if size < 2 or size + 4 > total or total > KEPT_FRAME:
                yield data[done:at]
                yield self._start_search(data[at:])
                return
            plain = _is_plain(data, at, total, size)
            if plain and (total == size + 4 or (stop <= end and _is_proven(data, at + 8 + size, stop))):
                at = stop
                continue
            if stop > end and (plain or total <= MAX_FRAME_SIZE or end - at < _HEAD):
                need = stop - at if plain or total <= MAX_FRAME_SIZE else _HEAD
                break
            if total > MAX_FRAME_SIZE and not plain:
                yield data[done:at]
                yield self._start_search(data[at:])
                return
            yield data[done:at]
            yield _masked_frame(data[at:stop], size)
            done = at = stop
        self._left = max(at - end, 0)
        self._hold(data[at:], need)
        yield data[done:at]

    def _start_search(self, data: bytes) -> bytes:
        """No frame begins with `data`: from here on a decoder searches for frames."""
        self._stream = FrameStream(Connection(0), True, from_start=False)
        self._stream.certain = False
        return self._released(data, self._stream.feed(data), self._stream)

    def _released(self, data: bytes, events: list[Event], stream: FrameStream) -> bytes:
        """The part of `data` that the decoder has finished, masked except for its frames. Holds the rest."""
        size = stream.position - self._at
        made = bytearray(b"*" * size)
        for frame in events:
            if isinstance(frame, Frame):
                start = frame.offset - self._at
                made[start : start + len(frame.raw)] = shown(frame)
        self._at += size
        self._hold(data[size:])
        return bytes(made)


def _is_plain(data: bytes, at: int, total: int, size: int) -> bool:
    """Whether the first bytes of the frame at `data[at:]` prove that it has no credentials.

    They do if the command's type may carry none, and its sub-message takes up the rest of the command.
    """
    head = _PLAIN.get(data[at + 8 : at + 11]) or _PLAIN.get(data[at + 8 : at + 12])
    if head is None or (total > size + 4 and not head[1]):
        return False
    begin = at + 8 + head[0]
    left, start = read_varint(data, begin, len(data))
    return begin < start <= at + _HEAD and start + left == at + 8 + size


def _masked_frame(raw: bytes, size: int) -> bytes:
    """A frame that is complete by its sizes, masked. Its command of `size` bytes may be anything."""
    number = type_in(fields(raw, 8, 8 + size))
    try:
        BaseCommand.FromString(raw[8 : 8 + size])
    except DecodeError:
        number = None
    end = 8 + size
    return masked(raw, broken_spans(raw) if number is None else _intact_spans.__wrapped__(raw, end, number))
