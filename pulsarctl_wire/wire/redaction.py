"""Bytes of the protocol with the credentials in them starred out, as long as they were.

Which commands may carry some is found in the schema: those with a field of `SECRETS`, at any depth.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.fields import SECRETS, messages_in, secret_values
from pulsarctl_wire.wire.frame import Connection, Event, Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.stream import KEPT_FRAME, FrameStream
from pulsarctl_wire.wire.walk import FrameWalk

WITH_SECRETS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    for message in messages_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)
    if any(field.full_name in SECRETS for field in message.fields)
)
"""Type numbers of the commands that may carry credentials."""

_HEADS: Final = {bytes([8, number]) for number in WITH_SECRETS}


class Redacted:
    """One direction of a connection, redacted: what may hold credentials waits until it is whole.

    It waits no longer than the decoder does, and what the decoder finds where bytes were damaged is redacted
    as well.
    """

    def __init__(self) -> None:
        self._walk = FrameWalk(WITH_SECRETS)
        self._held = b""
        self._stream: FrameStream | None = None  # where no walk goes on
        self._at = 0  # in that, the offset of what is held

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The next bytes, as they may be shown."""
        if self._stream is not None:
            yield self._search(self._stream, data)
            return
        whole = self._held + data
        self._held = b""
        at = 0
        while at < len(whole):
            start = at + self._walk.left
            stop = self._walk.walk(whole, at)
            if self._walk.lost:
                yield whole[at:start]
                self._stream = FrameStream(Connection(0), True, from_start=False)
                self._stream.certain = False
                yield self._search(self._stream, whole[start:])
                return
            if stop > at:
                yield whole[at:stop]
            at = stop + self._walk.size(whole, stop)
            if not stop < at <= len(whole):
                self._held = whole[stop:]
                return
            yield without_secrets(whole[stop:at])

    def end(self) -> bytes:
        """What still waits, for no more will come."""
        if self._stream is not None:
            self._redact(self._stream.close())
        held, self._held = self._held, b""
        return held if self._stream is not None else without_secrets(held)

    def _search(self, stream: FrameStream, data: bytes) -> bytes:
        self._held += data
        self._redact(stream.feed(data))
        free = stream.position - self._at
        data, self._held = self._held[:free], self._held[free:]
        self._at += free
        return data

    def _redact(self, events: list[Event]) -> None:
        """Star out what is held of frames that carry credentials."""
        for frame in events:
            if isinstance(frame, Frame) and frame.raw[8:10] in _HEADS:
                start = frame.offset - self._at
                stop = start + len(frame.raw)
                self._held = self._held[:start] + without_secrets(frame.raw) + self._held[stop:]


def without_secrets(data: bytes) -> bytes:
    """Frames as they are sent, credentials in them starred out, as long as they were; other bytes as is."""
    at = 0
    while len(data) - at >= 8:
        size, command = int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 8], "big")
        if command < KEPT_FRAME and data[at + 8 : at + 10] in _HEADS:
            data = _starred(data, at + 8, min(at + 8 + command, len(data)))
        at += 4 + size
    return data


def _starred(data: bytes, start: int, end: int) -> bytes:
    """`data` whose command from `start` to `end` carries credentials, without them."""
    try:
        base = BaseCommand.FromString(data[start:end])
        known = BaseCommand.FromString(data[start:end])
        known.DiscardUnknownFields()
    except DecodeError:
        known = None
    # ByteSize would raise where a required field is missing
    if known is None or known.SerializePartialToString() != base.SerializePartialToString():
        # who knows what is what: all of it goes
        return data[: start + 2] + b"*" * (end - start - 2) + data[end:]
    for secret in secret_values(base):
        data = data.replace(secret, b"*" * len(secret))
    return data
