"""Reads the command and the entry of a frame from its bytes, also of a frame that is cut."""

from typing import Final

from crc32c import crc32c
from google.protobuf.message import DecodeError

from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.fast_fields import IS_COMPILED, read_head, read_ids
from pulsarctl_wire.wire.fixed import u32_at
from pulsarctl_wire.wire.frame import MAX_PARSED, Connection, Frame, type_of
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.varint import describe_break

UNPARSEABLE: Final = "the command does not parse as BaseCommand"

_CONNECT: Final = BaseCommand.CONNECT
_MAX_GUESSED: Final = 65_536  # the largest metadata for which `entry_hint` tries a little-endian size


def read_command(frame: Frame, size: int) -> str:
    """Fill in the command of a frame. `size` is COMMAND_SIZE. Returns why it is invalid, or ""."""
    raw = frame.raw
    ids = read_ids(raw, size) if IS_COMPILED else None
    if ids is not None:
        frame.type, frame.ids = raw[9], ids
        return ""
    try:
        base = BaseCommand.FromString(raw[8 : 8 + size])
    except DecodeError:
        return UNPARSEABLE
    # a missing or unknown type reads as CONNECT, protobuf's default
    number = type_of(base) if base.type == _CONNECT else base.type
    if number is None:
        return "the command has no type"
    frame.type, frame.base = number, base
    return ""


def read_frame(
    raw: bytes, connection: Connection, to_broker: bool, offset: int, time_ns: int | None, packet: int
) -> Frame:
    """Build the frame whose bytes are `raw`, as a stream found it. Raises ValueError if they are not one."""
    frame = Frame(raw, None, -1, connection, to_broker, offset, time_ns, packet)
    size = frame.command_size
    if problem := read_command(frame, size):
        raise ValueError(problem)
    if frame.type in PAYLOAD_TYPES:
        read_entry(frame, 8 + size)
    return frame


def read_entry(frame: Frame, pos: int) -> None:
    """Fill in checksum, metadata and payload of a SEND or MESSAGE whose command ends at `pos`.

    The usual layout (0e01, then metadata) is read here, all others by `locate`.
    """
    raw = frame.raw
    end = len(raw)
    if end - pos >= 10 and raw[pos] == 0x0E and raw[pos + 1] == 0x01:
        stored, size = u32_at(raw, pos + 2), u32_at(raw, pos + 6)
        start = pos + 10
        payload_at = start + size
        # for small data a copy is faster than a memoryview
        covered = raw[pos + 6 :] if end < 65_536 else memoryview(raw)[pos + 6 :]
        frame.checksum = "valid" if crc32c(covered) == stored else "invalid"
        problem = "" if payload_at <= end else f"metadata of {size} bytes runs beyond the frame"
    else:
        parts = locate(raw, pos)
        problem = parts.problem
        frame.broker_entry = parts.broker_entry != (0, 0)
        start, payload_at = parts.metadata
        if parts.stored is None:
            frame.checksum = "absent"
        else:
            frame.checksum = "valid" if parts.stored == parts.computed else "invalid"
    if frame.partial:
        frame.checksum = None
        if problem:
            return
    if problem:
        frame.note(problem + entry_hint(raw, pos))
        return
    frame.metadata_at, frame.payload_at = start, payload_at
    if IS_COMPILED:
        head = read_head(raw, start, payload_at)
        if head is not None:
            frame.head = head
            return
    if payload_at - start > MAX_PARSED:
        frame.note(f"metadata of {payload_at - start} bytes: more than {MAX_PARSED} are not parsed")
        return
    try:
        frame.metadata = MessageMetadata.FromString(raw[start:payload_at])
    except DecodeError:
        reason = describe_break(raw, start, payload_at, MessageMetadata.DESCRIPTOR)
        frame.note(f"the metadata does not parse as MessageMetadata: {reason}".rstrip(": "))


def build_cut_frame(
    raw: bytes, connection: Connection, to_broker: bool, offset: int, time_ns: int | None, packet: int
) -> Frame:
    """Build the partial frame that begins with `raw`: at least 8 bytes. A whole command in it must parse."""
    total, size = u32_at(raw, 0), u32_at(raw, 4)
    base = BaseCommand.FromString(raw[8 : 8 + size]) if len(raw) >= 8 + size else None
    number = -1 if base is None else type_of(base) or 0
    frame = Frame(raw, base, number, connection, to_broker, offset, time_ns, packet)
    frame.partial = True
    frame.note(f"cut: {len(raw)} of {total + 4} bytes")
    if number in PAYLOAD_TYPES:
        read_entry(frame, 8 + size)
    return frame


def entry_hint(raw: bytes, pos: int) -> str:
    """Guess what is wrong with the entry at `raw[pos:]`, whose parts were not found; "" if unknown."""
    if raw[pos : pos + 2] == MAGIC_CHECKSUM:
        pos += 6
    if len(raw) - pos < 8:
        return ""
    little_endian_size = int.from_bytes(raw[pos : pos + 4], "little")
    if crc32c(memoryview(raw)[pos + 4 :]) == u32_at(raw, pos):
        return "; a CRC32-C is there, the magic 0e01 before it is missing"
    start, stop = pos + 4, pos + 4 + little_endian_size
    fits = stop <= len(raw) and little_endian_size <= _MAX_GUESSED
    if fits and not describe_break(raw, start, stop, MessageMetadata.DESCRIPTOR):
        return f"; METADATA_SIZE is little-endian ({little_endian_size}), Pulsar's sizes are big-endian"
    return ""
