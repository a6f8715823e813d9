"""Frames with other names and payloads: the same sizes, and checksums that are right where they were."""

from collections.abc import Hashable
from typing import Any, Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.sanitize.fields import FieldRewriter
from pulsarctl_wire.sanitize.noise import Noise
from pulsarctl_wire.sanitize.payloads import PayloadRewriter
from pulsarctl_wire.wire.checksum_cause import compute_mistakes
from pulsarctl_wire.wire.commands import NUMBERS, PAYLOAD_TYPES
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.frame_layout import FrameLayout, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

_SEND: Final = NUMBERS["SEND"]
_ENTRY_HEAD: Final = 10  # bytes that stay in an entry without clear parts: they may be sizes or a checksum


class FrameRewriter:
    """Replaces names and payloads in frames."""

    def __init__(self, noise: Noise, fields: FieldRewriter, payloads: PayloadRewriter) -> None:
        self._noise = noise
        self._fields = fields
        self._payloads = payloads

    def rewrite(self, frame: Frame) -> bytes:
        """Return what replaces the bytes of a frame, which may be cut."""
        raw = frame.raw
        out = bytearray(raw)
        end = min(8 + frame.command_size, len(raw))
        self._fields.rewrite(raw, 8, end, BaseCommand.DESCRIPTOR, out)
        if frame.type in PAYLOAD_TYPES:
            self._rewrite_entry(frame, end, out)
        elif end < len(raw):
            out[end:] = self._noise.like(raw[end:])
        return bytes(out)

    def _rewrite_entry(self, frame: Frame, end: int, out: bytearray) -> None:
        raw = frame.raw
        parts = locate(raw, end)
        start, stop = parts.broker_entry
        self._fields.rewrite(raw, start, stop, BrokerEntryMetadata.DESCRIPTOR, out)
        if parts.problem:
            begin = parts.checksum[1] or stop or end
            metadata_at = begin + 4
            if frame.partial and metadata_at < len(raw):
                self._fields.rewrite(raw, metadata_at, len(raw), MessageMetadata.DESCRIPTOR, out)
            else:
                begin = min(begin + _ENTRY_HEAD, len(raw))
                out[begin:] = self._noise.like(raw[begin:])
        else:
            start, stop = parts.metadata
            self._fields.rewrite(raw, start, stop, MessageMetadata.DESCRIPTOR, out)
            payload = raw[stop:]
            metadata = self._parse(raw[start:stop])
            out[stop:] = self._payloads.rewrite(metadata, payload, _owner_of(frame), is_cut=frame.partial)
        if parts.stored is not None:
            _adjust_checksum(raw, out, parts, frame.size - len(raw))

    @staticmethod
    def _parse(data: bytes) -> Any:
        try:
            return MessageMetadata.FromString(data)
        except DecodeError:
            return None


def _owner_of(frame: Frame) -> Hashable:
    """Return whose entry it is: chunks of one message have the same owner."""
    command: Any = frame.base
    number = command.send.producer_id if frame.type == _SEND else command.message.consumer_id
    return frame.connection.index, frame.to_broker, number


def _adjust_checksum(old: bytes, out: bytearray, parts: FrameLayout, missing: int) -> None:
    """Adjust the checksum of an entry to its new bytes; a wrong one stays wrong in the same way.

    If a known mistake explains the stored checksum, the same mistake is made again. Otherwise the stored one
    gets the change that the right one gets, as CRCs are linear. `missing` bytes at the end were not captured.
    """
    start, stop = parts.checksum
    before, after, tail = old[stop:], bytes(out[stop:]), bytes(max(missing, 0))
    assert parts.stored is not None
    checksum = parts.stored ^ crc32c(tail, crc32c(before)) ^ crc32c(tail, crc32c(after))
    if parts.stored != parts.computed:
        mistakes = zip(compute_mistakes(old, parts), compute_mistakes(bytes(out), parts), strict=True)
        numbers = (number for (_, old_number), (_, number) in mistakes if old_number == parts.stored)
        checksum = next(numbers, checksum)
    out[start:stop] = checksum.to_bytes(4, "big")
