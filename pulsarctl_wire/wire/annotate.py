"""What each byte of a frame is, and of bytes that are no frame, up to the one that breaks it.

The labels are plain text. They have no values of bytes that are hidden: those are named by the schema alone.
"""

import re
import struct
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.broken import meant
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.credentials import Span, wire_type
from pulsarctl_wire.wire.frame import Frame, Malformed, entry_hint, locate
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata
from pulsarctl_wire.wire.varint import END_OF_GROUP, FIXED_64, GROUP, SIZED, VARINT, Field, fields

MOST_PARTS: Final = 20_000
"""Parts of a frame that are annotated."""

_MOST_DEPTH: Final = 16
"""Messages inside each other that are taken apart."""


class Part(NamedTuple):
    """Bytes `start` to `stop` and what they are."""

    start: int
    stop: int
    label: str


def annotated(event: Frame | Malformed, hidden: list[Span]) -> Iterator[Part]:
    """The parts of an event's `raw`, in order and without holes; `hidden` are the bytes not to be shown."""
    walk = _Annotating(event.raw, hidden)
    parts = walk.frame(event) if isinstance(event, Frame) else walk.broken(event)
    at = 0
    for part in islice(parts, MOST_PARTS):
        yield part
        at = part.stop
    if at < len(event.raw):
        yield Part(at, len(event.raw), f"{len(event.raw) - at} bytes after {MOST_PARTS} parts")


class _Annotating:
    def __init__(self, raw: bytes, hidden: list[Span]) -> None:
        self._raw = raw
        self._hidden = hidden
        self._cut = False  # whether the bytes end before the frame does

    def _is_hidden(self, start: int, stop: int) -> bool:
        return bool(self._hidden) and any(start < end and begin < stop for begin, end in self._hidden)

    # -- frames

    def frame(self, frame: Frame) -> Iterator[Part]:
        """The parts of a frame, whole or cut."""
        raw = self._raw
        self._cut = frame.partial
        end = min(8 + frame.command_size, len(raw))
        yield Part(0, 4, f"TOTAL_SIZE {frame.total_size}")
        yield Part(4, 8, f"COMMAND_SIZE {frame.command_size}")
        yield from self._message(8, end, BaseCommand.DESCRIPTOR, "")
        if frame.type in PAYLOAD_TYPES and frame.base is not None:
            yield from self._entry(end, len(raw))
        elif end < len(raw):
            yield Part(end, len(raw), f"{len(raw) - end} bytes behind the command")

    def _entry(self, at: int, end: int) -> Iterator[Part]:
        """The parts behind the command of a SEND or MESSAGE."""
        raw = self._raw[:end]
        parts = locate(raw, at)
        start, stop = parts.broker_entry
        if stop:
            yield Part(at, at + 2, "magic 0e02: broker entry metadata")
            yield Part(at + 2, at + 6, f"its size {stop - start}")
            yield from self._message(start, stop, BrokerEntryMetadata.DESCRIPTOR, "broker_entry_metadata.")
            at = stop
        start, stop = parts.checksum
        if stop:
            state = (
                "valid" if parts.stored == parts.computed else f"invalid, the bytes have {parts.computed:08x}"
            )
            yield Part(at, at + 2, "magic 0e01: checksum")
            yield Part(start, stop, f"CRC32-C {parts.stored:08x}: {'cut' if self._cut else state}")
            at = stop
        start, stop = parts.metadata
        if stop:
            yield Part(at, at + 4, f"METADATA_SIZE {stop - start}")
            yield from self._message(start, stop, MessageMetadata.DESCRIPTOR, "metadata.")
            at = stop
        if at < end:
            problem = parts.problem + ("" if self._cut else entry_hint(raw, at))
            yield Part(at, end, problem if parts.problem else f"payload, {end - at} bytes")

    # -- what is no frame

    def broken(self, event: Malformed) -> Iterator[Part]:
        """The parts of bytes that are no frame, up to where they break."""
        raw = self._raw
        head = None if event.protocol else meant(raw)
        if head is None:
            yield Part(0, len(raw), event.protocol or "no frame")
            return
        names = ("TOTAL_SIZE", "COMMAND_SIZE") if head.command == 8 else ("SIZE",)
        order = ", little-endian" if head.order == "little" else ""
        for at, name in zip(range(0, head.command, 4), names, strict=False):
            yield Part(at, at + 4, f"{name} {int.from_bytes(raw[at : at + 4], head.order)}{order}")
        yield from self._message(head.command, head.end, BaseCommand.DESCRIPTOR, "")
        if head.stop > head.end:
            yield from self._entry(head.end, head.stop)
        if head.stop < len(raw):
            yield Part(
                head.stop,
                len(raw),
                f"{len(raw) - head.stop} bytes behind the frame that this was meant to be",
            )

    # -- messages of protobuf

    def _message(self, at: int, stop: int, descriptor: Any, prefix: str, depth: int = 0) -> Iterator[Part]:
        """The fields of an encoded message; the one that breaks it is the last."""
        schema = _schema(descriptor)
        for field in fields(self._raw, at, stop):
            number, wire, start, value_at, end, value, groups, problem = field
            hidden = self._hidden != [] and self._is_hidden(start, end)
            known, called, inside = None if groups else schema.get(number), "", None
            opened = wire == SIZED and value_at > start  # its size can be read
            if known is None:
                name = f"{prefix}unknown field" + ("" if hidden else f" {number}")
            else:
                known, called, inside = known
                name = prefix + called
                if not opened or not value or depth >= _MOST_DEPTH:
                    inside = None
            if problem and not (opened and self._cut):
                label = _broken(field, name, hidden)
            elif inside is not None:
                label = f"{name}: {value} bytes"
            else:
                label = f"{name}{_mismatch(field, known)}{self._value(field, known, hidden)}"
            yield Part(start, value_at if inside is not None else end, label)
            if inside is not None:
                yield from self._message(value_at, end, inside, f"{name}.", depth + 1)

    def _value(self, field: Field, known: Any, hidden: bool) -> str:
        """What the value of a field says."""
        if field.wire in (GROUP, END_OF_GROUP):
            return ": a group begins" if field.wire == GROUP else ": the group ends"
        if hidden:
            return " = redacted"
        if field.wire == VARINT:
            return f" = {_scalar(known, field.value)}"
        data = self._raw[field.at : field.stop]
        if field.wire != SIZED:
            return f" = {struct.unpack('<d' if field.wire == FIXED_64 else '<f', data)[0]}"
        cut = f" (cut: {len(data)} of {field.value} bytes)" if len(data) < field.value else ""
        return f" = {_bytes_text(data)}{cut}"


@cache
def _schema(descriptor: Any) -> dict[int, tuple[Any, str, Any]]:
    """The fields of a message by their numbers, with their names and the messages that they are, or None."""
    return {
        number: (field, field.name, field.message_type)
        for number, field in descriptor.fields_by_number.items()
    }


def _broken(field: Field, name: str, hidden: bool) -> str:
    """Why a message ends at this field; without its numbers where they are of hidden bytes."""
    problem = re.sub("[0-9]+", "?", field.problem) if hidden else field.problem
    called = f"{name} (field {field.number}, wire type {field.wire})" if field.number and not hidden else name
    return f"{called if field.number else 'BROKEN'}: {problem}; offset {field.start}"


def _mismatch(field: Field, known: Any) -> str:
    """That a field has another wire type than the schema says; "" if it has not."""
    if known is None or field.wire == wire_type(known) or (known.is_repeated and field.wire == SIZED):
        return ""
    return f" (wire type {field.wire} where the schema has {wire_type(known)})"


def _scalar(field: Any, value: int) -> str:
    if field is None:
        return str(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return f"{known.name} ({value})" if known else str(value)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    signed = field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)
    return str(value - 2**64 if value >> 63 and (signed or value == 2**64 - 1) else value)


def _bytes_text(data: bytes) -> str:
    if not data:
        return '""'
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"
    return f'"{text}"' if len(text) <= 60 and text.isprintable() else f"{len(data)} bytes"
