"""Bytes of the protocol without credentials: masked by stars, as long as they were.

Of a frame these are the fields that `credentials.py` finds. Of bytes that are no intact frame only those are
shown that surely belong to a command without credentials (`broken.py`).
"""

import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.broken import broken_spans, credentials_from
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, Span, command_type, find_secrets
from pulsarctl_wire.wire.foreign import ENOUGH, QUERY, proxy_header, recognise
from pulsarctl_wire.wire.frame import (
    KEPT_FRAME,
    MAGIC_CHECKSUM,
    MAX_FRAME_SIZE,
    Connection,
    Event,
    Frame,
    Gap,
    Malformed,
    locate,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.resync import COMMAND_HEADS
from pulsarctl_wire.wire.stream import FrameStream

_HEADER: Final = re.compile(rb"[A-Za-z0-9-]{1,40}:[ \t]*")
_HARMLESS_HEADERS: Final = frozenset(
    {
        *(b"host", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"),
        *(b"user-agent", b"server", b"date", b"upgrade", b"connection", b"accept", b"accept-encoding"),
    }
)

# -- events


def event_spans(event: Event) -> list[Span]:
    """The spans of an event's `raw` that only `--show-secrets` shows."""
    if isinstance(event, Gap):
        return []
    if isinstance(event, Frame):
        return frame_spans(event)
    if event.protocol:
        return list(_http_spans(event.raw)) if event.protocol == "HTTP" else []
    if proxy_header(event.raw)[0] == event.size == len(event.raw):
        return []
    return broken_spans(event.raw)


def frame_spans(frame: Frame) -> list[Span]:
    """The spans of a frame's bytes that are credentials, or may be some."""
    raw = frame.raw
    if frame.base is None:  # cut; its sizes are its own all the same
        return [(max(start, 8), stop) for start, stop in broken_spans(raw) if stop > 8]
    end = min(8 + frame.command_size, len(raw))
    proven = end if frame.checksum == "valid" and not frame.broker_entry else None
    find = _intact_spans if len(raw) <= _MOST_KEPT else _intact_spans.__wrapped__
    return find(raw, end, frame.type, proven)


def hides_entry(frame: Frame) -> bool:
    """Whether a part of the frame's entry is not shown: no checksum covers it, and it may be credentials."""
    if frame.checksum == "valid":
        return False
    end = 8 + frame.command_size
    return any(stop > end for _, stop in frame_spans(frame))


_MOST_KEPT: Final = 1024 * 1024  # bytes of a frame that are kept for those who ask again


@lru_cache(maxsize=2)  # several ask of each frame
def _intact_spans(raw: bytes, end: int, number: int, proven: int | None = None) -> list[Span]:
    """The spans of a frame whose command of type `number` ends at `end`; all from `proven` on is checked."""
    spans = find_secrets(raw, 8, end).spans
    visible = end
    if number in PAYLOAD_TYPES and not spans:
        if proven is None:
            proven = _proven_from(raw, end)
        visible = credentials_from(raw, end, proven)
        if visible == proven:
            return []
    return [*spans, (visible, len(raw))] if visible < len(raw) else spans


def _is_proven(data: bytes, at: int, stop: int) -> bool:
    """Whether the entry at `data[at:stop]` begins with its checksum, and that is right."""
    if stop - at < 10 or data[at : at + 2] != MAGIC_CHECKSUM:
        return False
    return bool(crc32c(memoryview(data)[at + 6 : stop]) == int.from_bytes(data[at + 2 : at + 6], "big"))


def _proven_from(raw: bytes, end: int) -> int:
    """Where in the frame whose command ends at `end` what a right checksum covers begins; else its length."""
    parts = locate(raw, end)
    return parts.checksum[1] if parts.computed is not None and parts.computed == parts.stored else len(raw)


def _http_spans(raw: bytes) -> Iterator[Span]:
    """Of HTTP the query of the request, values of headers that are not known to be harmless, and bodies."""
    at = 0
    for number, line in enumerate(raw.splitlines(keepends=True)):
        stop, text = at + len(line), line.rstrip(b"\r\n")
        if not number:
            yield from ((at + found.start(), at + found.end()) for found in QUERY.finditer(text))
            if stop == len(raw) and b"//" in text and not line.endswith(b"\n"):
                yield at + text.index(b"//"), stop  # who knows what follows
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
_HEAD: Final = 14  # bytes of a frame that tell whether it is plain
_PLAIN: Final = {
    head: (len(head), number in PAYLOAD_TYPES)
    for head, number in COMMAND_HEADS.items()
    if number not in WITH_SECRETS
}
"""What commands without credentials begin with -> its size, and whether a payload follows the command."""

_sizes_at: Final = struct.Struct(">II").unpack_from


def masked(data: bytes, spans: list[Span], mask: bytes = b"*") -> bytes:
    """`data` with stars, or another `mask` of one byte, in place of `spans`."""
    if not spans:
        return data
    made = bytearray(data)
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(made))
        made[start:stop] = mask * (stop - start)
    return bytes(made)


def hex_digits(data: bytes, spans: list[Span]) -> str:
    """`data` in hexadecimal digits, with xx for the bytes of `spans`."""
    if not spans:
        return data.hex(" ")
    digits = data.hex(" ").split()
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(digits))
        digits[start:stop] = ["xx"] * (stop - start)
    return " ".join(digits)


def shown(event: Frame | Malformed, show_secrets: bool = False) -> bytes:
    """The bytes of a frame or a malformed stretch as they may be shown."""
    return event.raw if show_secrets else masked(event.raw, event_spans(event))


# -- streams


class Redacted:
    """One direction of a connection, redacted: what may hold credentials waits until it is whole.

    Frames are followed by their sizes as long as these make sense. From where they do not, bytes wait no
    longer than the decoder lets them, and are masked but for the intact frames that it finds.
    """

    def __init__(self) -> None:
        self.held = 0
        """Bytes that wait."""
        self._pieces: list[bytes] = []  # which they came in
        self._need = 0  # bytes that must wait before there is anything to do
        self._left = 0  # bytes to come of a frame, or of a PROXY header, that is let through
        self._fresh = True  # nothing is known yet of what is spoken here
        self._protocol = ""  # another one than Pulsar's
        self._stream: FrameStream | None = None  # where sizes made no sense
        self._at = 0  # in that, the offset of what is held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The next bytes, as they may be shown."""
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
        """What still waits, for no more will come."""
        held = self._taken(b"")
        if self._stream is not None:
            return self._released(held, self._stream.close(), self._stream)
        sizes = 0 if self._fresh or len(held) < 8 else 8  # those of a cut frame
        return masked(held, [(max(start, sizes), stop) for start, stop in broken_spans(held)])

    def _taken(self, data: bytes) -> bytes:
        """What waits, and `data` after it: nothing waits any more."""
        data = b"".join((*self._pieces, data))
        self._hold(b"")
        return data

    def _hold(self, data: bytes, need: int = 0) -> None:
        """Let `data` wait, until there are `need` bytes."""
        self._pieces, self.held, self._need = [data], len(data), need

    def _begins(self, data: bytes) -> bool:
        """Find out what begins with `data`; whether that can be told yet."""
        header, known = proxy_header(data)
        if header and not known:
            return False  # there is more to it
        if header or data[:1] <= _FIRST:
            self._left = header
        elif len(data) >= ENOUGH:
            self._protocol, _ = recognise(data)
        else:
            return False
        self._fresh = False
        return True

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Go from header to header; look into the frames that are not surely without credentials."""
        if self._protocol:
            yield masked(data, list(_http_spans(data)) if self._protocol == "HTTP" else [])
            return
        done, at, end, need = 0, self._left, len(data), 0
        while end - at >= 8:
            total, size = _sizes_at(data, at)
            stop = at + 4 + total
            if size < 2 or size + 4 > total or total > KEPT_FRAME:
                yield data[done:at]
                yield self._lose(data[at:])
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
                yield self._lose(data[at:])
                return
            yield data[done:at]
            yield _whole(data[at:stop], size)
            done = at = stop
        self._left = max(at - end, 0)
        self._hold(data[at:], need)
        yield data[done:at]

    def _lose(self, data: bytes) -> bytes:
        """No frame begins with `data`: leave it to the decoder to find the next one."""
        self._stream = FrameStream(Connection(0), True, from_start=False)
        self._stream.certain = False
        return self._released(data, self._stream.feed(data), self._stream)

    def _released(self, data: bytes, events: list[Event], stream: FrameStream) -> bytes:
        """What the decoder has done with of `data`, masked but for the frames in it; the rest waits."""
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
    """Whether the frame at `data[at:]` has no credentials for sure, by its head alone.

    That is a command which may carry none, written as protobuf writes it: its type, its sub-message of just
    the size that is left, nothing behind that.
    """
    head = _PLAIN.get(data[at + 8 : at + 11]) or _PLAIN.get(data[at + 8 : at + 12])
    if head is None or (total > size + 4 and not head[1]):
        return False
    at, left = at + 8 + head[0], size - head[0] - 1
    if left < 128:
        return left >= 0 and data[at] == left if at < len(data) else False
    left -= 1
    return data[at : at + 2] == bytes((left & 0x7F | 0x80, left >> 7)) if left < 16_384 else False


def _whole(raw: bytes, size: int) -> bytes:
    """A whole frame by its sizes, as it may be shown; its command of `size` bytes may be anything."""
    number = command_type(raw, 8, 8 + size)
    try:
        BaseCommand.FromString(raw[8 : 8 + size])
    except DecodeError:
        number = None
    end = 8 + size
    return masked(raw, broken_spans(raw) if number is None else _intact_spans.__wrapped__(raw, end, number))
