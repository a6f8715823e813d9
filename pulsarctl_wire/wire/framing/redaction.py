"""Credentials in the protocol's bytes, masked with stars; the length stays the same.

In a frame it masks the fields that `credentials.py` finds. In malformed bytes it masks everything, except
what certainly belongs to a command without credentials (`malformed.py`).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, Span, find_secrets, find_type
from pulsarctl_wire.wire.frame import (
    MAX_FRAME_SIZE,
    MAX_KEPT_FRAME,
    Connection,
    Event,
    Frame,
    Gap,
    HttpMessage,
    Malformed,
    header_at,
)
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM, locate
from pulsarctl_wire.wire.framing.foreign import SIGNATURE_SIZE, proxy_header, recognise
from pulsarctl_wire.wire.framing.malformed import find_credentials, find_doubtful_spans
from pulsarctl_wire.wire.framing.resync import COMMAND_HEADS
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.rest import find_url_secrets, is_harmless_answer
from pulsarctl_wire.wire.varint import fields, read_varint

_HEADER: Final = re.compile(rb"[A-Za-z0-9-]{1,40}:[ \t]*")
_HARMLESS_HEADERS: Final = frozenset(
    {
        *(b"host", b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"),
        *(b"user-agent", b"server", b"date", b"upgrade", b"connection", b"accept", b"accept-encoding"),
        b"location",
    }
)

# -- events


def event_spans(event: Event) -> list[Span]:
    """Return the spans of an event's `raw` that are shown only with `--show-secrets`."""
    if isinstance(event, Gap | HttpMessage):
        return []
    if isinstance(event, Frame):
        return frame_spans(event)
    if event.protocol:
        return list(_http_spans(event.raw)) if event.protocol == "HTTP" else []
    if proxy_header(event.raw)[0] == event.size:
        return []
    return find_doubtful_spans(event.raw)


def frame_spans(frame: Frame) -> list[Span]:
    """Return the spans of a frame's bytes that are credentials, or may be."""
    raw = frame.raw
    if frame.base is None:  # the command is cut, but the sizes are there
        return [(max(start, 8), stop) for start, stop in find_doubtful_spans(raw) if stop > 8]
    end = min(8 + frame.command_size, len(raw))
    covered_from = end if frame.checksum == "valid" and not frame.broker_entry else None
    find = _find_frame_spans if len(raw) <= _MAX_CACHED_BYTES else _find_frame_spans.__wrapped__
    return find(raw, end, frame.type, covered_from)


def hides_entry(frame: Frame) -> bool:
    """Return whether a part of the frame's entry is hidden, because no checksum covers credentials in it."""
    if frame.checksum == "valid":
        return False
    end = 8 + frame.command_size
    return any(stop > end for _, stop in frame_spans(frame))


_MAX_CACHED_BYTES: Final = 1024 * 1024  # bytes of the largest frame whose spans are cached


@lru_cache(maxsize=2)  # several callers ask about the same frame
def _find_frame_spans(raw: bytes, end: int, number: int, covered_from: int | None = None) -> list[Span]:
    """Find the spans of a frame whose command ends at `end`.

    From `covered_from` on, a valid checksum covers it; None: find out where.
    """
    spans = find_secrets(raw, 8, end).spans
    visible_end = end
    if number in PAYLOAD_TYPES and not spans:
        if covered_from is None:
            parts = locate(raw, end)
            is_valid = parts.computed is not None and parts.computed == parts.stored
            covered_from = parts.checksum[1] if is_valid else len(raw)
        visible_end = find_credentials(raw, end, covered_from)
        if visible_end == covered_from:
            return []
    return [*spans, (visible_end, len(raw))] if visible_end < len(raw) else spans


def _has_valid_checksum(data: bytes, pos: int, stop: int) -> bool:
    """Return whether the entry at `data[pos:stop]` begins with a checksum, and the checksum is valid."""
    if stop - pos < 10 or data[pos : pos + 2] != MAGIC_CHECKSUM:
        return False
    return bool(crc32c(memoryview(data)[pos + 6 : stop]) == int.from_bytes(data[pos + 2 : pos + 6], "big"))


def _http_spans(raw: bytes) -> Iterator[Span]:
    """Yield the spans to mask in HTTP: most of the query, the body, and headers not known to be harmless.

    Answers to lookups are harmless, and so are the locations of their redirects.
    """
    pos = 0
    for number, line in enumerate(raw.splitlines(keepends=True)):
        stop, text = pos + len(line), line.rstrip(b"\r\n")
        header = _HEADER.match(text) if number else None
        name = header[0].split(b":")[0].lower() if header is not None else b""
        if number and not text:
            pos = stop
            break
        if not number or name == b"location":
            spans = find_url_secrets(text.decode("latin-1"))
            yield from ((pos + start, pos + end) for start, end in spans)
        if not number:
            if stop == len(raw) and b"//" in text and not line.endswith(b"\n"):
                yield pos + text.index(b"//"), stop  # the rest of the line is unknown
        elif name not in _HARMLESS_HEADERS or b"@" in text or not line.endswith(b"\n"):
            yield pos + (header.end() if header else 0), pos + len(text)
        pos = stop
    if pos < len(raw) and not is_harmless_answer(raw[pos:]):
        yield pos, len(raw)


_MAX_FIRST_BYTE: Final = bytes([MAX_KEPT_FRAME >> 24])  # of a frame
_HEAD_SIZE: Final = 14  # the first bytes of a frame, which tell whether it is harmless
_HARMLESS_HEADS: Final = {
    head: (len(head), number in PAYLOAD_TYPES)
    for head, number in COMMAND_HEADS.items()
    if number not in WITH_SECRETS
}
"""First bytes of a command without credentials -> how many they are, and whether an entry follows."""


def mask_spans(data: bytes, spans: list[Span], mask: bytes = b"*") -> bytes:
    """Replace every byte of `data` in `spans` by `mask`, which is a single byte."""
    if not spans:
        return data
    output = bytearray(data)
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(output))
        output[start:stop] = mask * (stop - start)
    return bytes(output)


def hex_digits(data: bytes, spans: list[Span]) -> str:
    """Format `data` in hexadecimal digits, with xx for the bytes in `spans`."""
    if not spans:
        return data.hex(" ")
    digits = data.hex(" ").split()
    for start, stop in spans:
        start, stop = max(start, 0), min(stop, len(digits))
        digits[start:stop] = ["xx"] * (stop - start)
    return " ".join(digits)


def mask_event(event: Frame | Malformed, show_secrets: bool = False) -> bytes:
    """Return the bytes of a frame or a malformed stretch, masked unless `show_secrets`."""
    return event.raw if show_secrets else mask_spans(event.raw, event_spans(event))


# -- streams


class Redactor:
    """A redactor of one direction of a connection. It holds frames with credentials until they are complete.

    It walks from frame to frame by their sizes, as long as the sizes are valid. After that the decoder takes
    over: bytes are held as long as the decoder holds them, and masked unless they are intact frames.
    """

    def __init__(self) -> None:
        self.held = 0
        """The number of bytes held."""
        self._pieces: list[bytes] = []  # the bytes held
        self._need = 0  # do nothing until so many bytes are held
        self._remaining = 0  # remaining bytes of a frame, or of a PROXY header, that is not masked
        self._is_fresh = True  # the protocol is not known yet
        self._protocol = ""  # another protocol than Pulsar's
        self._stream: FrameStream | None = None  # the decoder, once sizes were invalid
        self._offset = 0  # offset in that stream of the bytes held

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes. Yields the bytes that can be shown now, masked."""
        if self._stream is not None:
            yield self._release(self._take_all(data), self._stream.feed(data), self._stream)
        elif self._protocol:
            yield b"*" * len(data) if self._protocol == "HTTP" else data
        elif self.held + len(data) < self._need:
            self._pieces.append(data)
            self.held += len(data)
        else:
            data = self._take_all(data)
            if self._is_fresh and not self._detect_protocol(data):
                self._hold(data)
            else:
                yield from self._mask_frames(data)

    def end(self) -> bytes:
        """Return the bytes still held, masked. Call it when no more bytes will come."""
        data = self._take_all(b"")
        if self._stream is not None:
            return self._release(data, self._stream.close(), self._stream)
        sizes_end = 0 if self._is_fresh or len(data) < 8 else 8  # the sizes of a cut frame are shown
        return mask_spans(data, [(max(start, sizes_end), stop) for start, stop in find_doubtful_spans(data)])

    def _take_all(self, data: bytes) -> bytes:
        """Return the bytes held, followed by `data`; afterwards nothing is held."""
        data = b"".join((*self._pieces, data))
        self._hold(b"")
        return data

    def _hold(self, data: bytes, need: int = 0) -> None:
        """Hold `data` until there are `need` bytes."""
        self._pieces, self.held, self._need = [data], len(data), need

    def _detect_protocol(self, data: bytes) -> bool:
        """Find out which protocol begins with `data`. Returns False if that needs more bytes."""
        header, description = proxy_header(data)
        if header and not description:
            return False  # the header is not complete
        if header or data[:1] <= _MAX_FIRST_BYTE:
            self._remaining = header
        elif len(data) >= SIGNATURE_SIZE:
            self._protocol, _ = recognise(data)
        else:
            return False
        self._is_fresh = False
        return True

    def _mask_frames(self, data: bytes) -> Iterator[bytes]:
        """Walk from frame to frame, and mask those that may have credentials."""
        if self._protocol:
            yield mask_spans(data, list(_http_spans(data)) if self._protocol == "HTTP" else [])
            return
        shown_until, pos, end, need = 0, self._remaining, len(data), 0
        while end - pos >= 8:
            total, size = header_at(data, pos)
            stop = pos + 4 + total
            if size < 2 or size + 4 > total or total > MAX_KEPT_FRAME:
                yield data[shown_until:pos]
                yield self._start_search(data[pos:])
                return
            is_harmless = _is_harmless(data, pos, total, size)
            if is_harmless and (
                total == size + 4 or (stop <= end and _has_valid_checksum(data, pos + 8 + size, stop))
            ):
                pos = stop
                continue
            if stop > end and (is_harmless or total <= MAX_FRAME_SIZE or end - pos < _HEAD_SIZE):
                need = stop - pos if is_harmless or total <= MAX_FRAME_SIZE else _HEAD_SIZE
                break
            if total > MAX_FRAME_SIZE and not is_harmless:
                yield data[shown_until:pos]
                yield self._start_search(data[pos:])
                return
            yield data[shown_until:pos]
            yield _mask_frame(data[pos:stop], size)
            shown_until = pos = stop
        self._remaining = max(pos - end, 0)
        self._hold(data[pos:], need)
        yield data[shown_until:pos]

    def _start_search(self, data: bytes) -> bytes:
        """Start a decoder that searches for frames: none begins with `data`."""
        self._stream = FrameStream(Connection(0), True, from_start=False)
        self._stream.is_direction_certain = False
        return self._release(data, self._stream.feed(data), self._stream)

    def _release(self, data: bytes, events: list[Event], stream: FrameStream) -> bytes:
        """Return what the decoder has finished of `data`, masked except for its frames. Holds the rest."""
        size = stream.position - self._offset
        output = bytearray(b"*" * size)
        for event in events:
            if isinstance(event, Frame):
                start = event.offset - self._offset
                output[start : start + len(event.raw)] = mask_event(event)
        self._offset += size
        self._hold(data[size:])
        return bytes(output)


def _is_harmless(data: bytes, pos: int, total: int, size: int) -> bool:
    """Return whether the first bytes of the frame at `data[pos:]` prove that it has no credentials.

    They do if its type may carry none, and its sub-message takes up the rest of the command.
    """
    head = _HARMLESS_HEADS.get(data[pos + 8 : pos + 11]) or _HARMLESS_HEADS.get(data[pos + 8 : pos + 12])
    if head is None or (total > size + 4 and not head[1]):
        return False
    body_tag_end = pos + 8 + head[0]
    size_of_body, body_start = read_varint(data, body_tag_end, len(data))
    return body_tag_end < body_start <= pos + _HEAD_SIZE and body_start + size_of_body == pos + 8 + size


def _mask_frame(raw: bytes, size: int) -> bytes:
    """Mask a frame that is complete by its sizes. Its command of `size` bytes may be anything."""
    number = find_type(fields(raw, 8, 8 + size))
    try:
        BaseCommand.FromString(raw[8 : 8 + size])
    except DecodeError:
        number = None
    end = 8 + size
    return mask_spans(
        raw, find_doubtful_spans(raw) if number is None else _find_frame_spans.__wrapped__(raw, end, number)
    )
