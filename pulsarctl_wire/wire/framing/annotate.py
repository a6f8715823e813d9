"""Labels every byte of a frame or of a malformed stretch; the latter up to the byte that breaks it.

Labels are plain text. For hidden bytes they give the field's name from the schema, but no value.
"""

import re
import struct
from collections import Counter
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.checksum_cause import explain_checksum
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.credentials import Span
from pulsarctl_wire.wire.frame import Frame, Malformed
from pulsarctl_wire.wire.frame_entry import entry_hint
from pulsarctl_wire.wire.frame_layout import locate
from pulsarctl_wire.wire.framing.malformed import guess_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata
from pulsarctl_wire.wire.varint import END_OF_GROUP, FIXED_64, GROUP, SIZED, VARINT, Field, fields, wire_type

MAX_PARTS: Final = 20_000
"""The maximum number of parts that are labelled per frame."""

_MAX_DEPTH: Final = 16
"""The maximum nesting of messages that are split into fields."""


Path = tuple[str | int, ...]
"""The place of a value in a frame's record: names, and indexes of repeated fields."""


class LabelledSpan(NamedTuple):
    """The bytes from `start` to `stop`, a label that says what they are, and where the record has them."""

    start: int
    stop: int
    label: str
    path: Path = ()


def annotate(event: Frame | Malformed, hidden: list[Span]) -> list[LabelledSpan]:
    """Label all bytes of an event's `raw`, in order. Bytes in `hidden` must not be shown."""
    annotator = _Annotator(event.raw, hidden)
    if isinstance(event, Frame):
        annotator.add_frame(event)
    else:
        annotator.add_malformed(event)
    parts = annotator.parts[:MAX_PARTS]
    end = parts[-1].stop if parts else 0
    if end < len(event.raw):
        parts.append(
            LabelledSpan(end, len(event.raw), f"{len(event.raw) - end} bytes after {MAX_PARTS} parts")
        )
    return parts


def find_spans(parts: list[LabelledSpan], path: Path) -> list[tuple[int, int]]:
    """Return the bytes of the value at `path`: those of its own parts, or of what contains it."""
    while path:
        spans = [part[:2] for part in parts if part.path[: len(path)] == path]
        if spans:
            return spans
        path = path[:-1]
    return []


class _Annotator:
    """A collector of `parts`: at most a few more than `MAX_PARTS`."""

    def __init__(self, raw: bytes, hidden: list[Span]) -> None:
        self.parts: list[LabelledSpan] = []
        self._raw = raw
        self._hidden = hidden
        self._cut = False  # whether the end of the frame is missing
        self._checksum_cause = ""  # of a wrong checksum, in words

    # -- frames

    def _add(self, start: int, stop: int, label: str, *path: str) -> None:
        self.parts.append(LabelledSpan(start, stop, label, path))

    def add_frame(self, frame: Frame) -> None:
        """Add the parts of a frame, complete or cut."""
        raw, size = self._raw, frame.command_size
        self._cut = frame.partial
        self._checksum_cause = explain_checksum(frame)
        end = min(8 + size, len(raw))
        self._add(0, 4, f"TOTAL_SIZE {frame.total_size}", "total_size")
        self._add(4, 8, f"COMMAND_SIZE {size}")
        self._add_message(8, end, BaseCommand.DESCRIPTOR, "")
        if frame.type in PAYLOAD_TYPES and frame.base is not None:
            self._add_entry(end, len(raw))
        elif end < len(raw):
            self._add(end, len(raw), f"{len(raw) - end} bytes after the command")

    def _add_entry(self, offset: int, end: int) -> None:
        """Add the parts after the command of a SEND or MESSAGE."""
        raw = self._raw[:end]
        parts = locate(raw, offset)
        start, stop = parts.broker_entry
        if stop:
            self._add(offset, offset + 2, "magic 0e02: broker entry metadata")
            self._add(offset + 2, offset + 6, f"its size {stop - start}")
            self._add_message(
                start,
                stop,
                BrokerEntryMetadata.DESCRIPTOR,
                "broker_entry_metadata.",
                ("broker_entry_metadata",),
            )
            offset = stop
        start, stop = parts.checksum
        if stop:
            state = (
                "valid" if parts.stored == parts.computed else f"invalid, the bytes have {parts.computed:08x}"
            )
            self._add(offset, offset + 2, "magic 0e01: checksum", "checksum")
            if self._checksum_cause:
                state += f"; {self._checksum_cause}"
            self._add(start, stop, f"CRC32-C {parts.stored:08x}: {'cut' if self._cut else state}", "checksum")
            offset = stop
        start, stop = parts.metadata
        if stop:
            self._add(offset, offset + 4, f"METADATA_SIZE {stop - start}")
            self._add_message(start, stop, MessageMetadata.DESCRIPTOR, "metadata.", ("metadata",))
            offset = stop
        if offset < end:
            problem = parts.problem + ("" if self._cut else entry_hint(raw, offset))
            label = problem if parts.problem else f"payload, {end - offset} bytes"
            self._add(offset, end, label, "messages")

    # -- malformed stretches

    def add_malformed(self, event: Malformed) -> None:
        """Add the parts of a malformed stretch, up to where it breaks."""
        raw = self._raw
        guess = None if event.protocol else guess_frame(raw)
        if guess is None:
            self._add(0, len(raw), event.protocol or "no frame")
            return
        names = ("TOTAL_SIZE", "COMMAND_SIZE") if guess.command_at == 8 else ("SIZE",)
        order = ", little-endian" if guess.order == "little" else ""
        for offset, name in zip(range(0, guess.command_at, 4), names, strict=False):
            self._add(
                offset, offset + 4, f"{name} {int.from_bytes(raw[offset : offset + 4], guess.order)}{order}"
            )
        self._add_message(guess.command_at, guess.end, BaseCommand.DESCRIPTOR, "")
        if guess.stop > guess.end:
            self._add_entry(guess.end, guess.stop)
        if guess.stop < len(raw):
            size = len(raw) - guess.stop
            self._add(guess.stop, len(raw), f"{size} bytes after the frame that this was meant to be")

    # -- messages of protobuf

    def _add_message(
        self, offset: int, stop: int, descriptor: Any, prefix: str, path: Path = (), depth: int = 0
    ) -> None:
        """Add the fields of an encoded message, up to and including the one that breaks it.

        Labels begin with `prefix`, which is "" for the fields of the BaseCommand itself. `path` is that of
        the message.
        """
        schema, parts, spans = descriptor.fields_by_number, self.parts, self._hidden
        counts: Counter[int] = Counter()
        for field in fields(self._raw, offset, stop):
            if len(parts) > MAX_PARTS:
                return
            number, wire, start, value_at, end, value, groups, problem = field
            is_hidden = bool(spans) and any(start < until and begin < end for begin, until in spans)
            definition = None if groups else schema.get(number)
            has_size = wire == SIZED and value_at > start  # its size can be read
            nested, place = None, path
            if definition is not None and prefix:
                place = (*path, definition.name)
                if definition.is_repeated:
                    place = (*place, counts[number])
                    counts[number] += 1
            elif definition is not None and definition.message_type is not None:
                place = ("fields",)  # the command's own sub-message
            if definition is None:
                name = f"{prefix}unknown field" if is_hidden else f"{prefix}unknown field {number}"
            else:
                name = prefix + definition.name
                if has_size and value and depth < _MAX_DEPTH:
                    nested = definition.message_type
            if problem and not (has_size and self._cut):
                label = _problem_text(field, name, is_hidden)
            elif nested is not None:
                label = f"{name}: {value} bytes"
            else:
                label = name
                due = wire if definition is None else wire_type(definition)
                if definition is not None and wire != due and not (wire == SIZED and definition.is_repeated):
                    label += f" (wire type {wire} where the schema has {due})"
                if is_hidden or wire != VARINT:
                    label += self._value_text(field, is_hidden)
                else:
                    label += f" = {_varint_text(value, definition)}"
            if nested is None:
                parts.append(LabelledSpan(start, end, label, place))
            else:
                parts.append(LabelledSpan(start, value_at, label, place))
                self._add_message(value_at, end, nested, f"{name}.", place, depth + 1)

    def _value_text(self, field: Field, is_hidden: bool) -> str:
        """Return the label text for the value of a field that is not a varint, or is hidden."""
        if field.wire in (GROUP, END_OF_GROUP):
            return ": a group begins" if field.wire == GROUP else ": the group ends"
        if is_hidden:
            return " = redacted"
        data = self._raw[field.at : field.stop]
        if field.wire != SIZED:
            return f" = {struct.unpack('<d' if field.wire == FIXED_64 else '<f', data)[0]}"
        suffix = f" (cut: {len(data)} of {field.value} bytes)" if len(data) < field.value else ""
        return f" = {_bytes_text(data)}{suffix}"


def _problem_text(field: Field, name: str, is_hidden: bool) -> str:
    """Return the label of the field that breaks a message, without numbers that come from hidden bytes."""
    problem = re.sub("[0-9]+", "?", field.problem) if is_hidden else field.problem
    title = (
        f"{name} (field {field.number}, wire type {field.wire})" if field.number and not is_hidden else name
    )
    return f"{title if field.number else 'BROKEN'}: {problem}; offset {field.start}"


def _varint_text(value: int, definition: Any) -> str:
    """Format a varint as a value of the field with this descriptor; as a plain number if that is None."""
    if definition is None:
        return str(value)
    if definition.enum_type is not None:
        member = definition.enum_type.values_by_number.get(value)
        return f"{member.name} ({value})" if member else str(value)
    if definition.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    limit = (
        2**63 if definition.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64) else 2**64 - 1
    )
    return str(value if value < limit else value - 2**64)


def _bytes_text(data: bytes) -> str:
    if not data:
        return '""'
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"
    return f'"{text}"' if len(text) <= 60 and text.isprintable() else f"{len(data)} bytes"
