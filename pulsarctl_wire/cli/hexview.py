"""`-o hex`: the bytes of each frame with what they are: sizes, magics, checksum, and each protobuf field."""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pulsarctl_wire.cli.console import Paint, clean
from pulsarctl_wire.cli.line import LineRenderer
from pulsarctl_wire.record import redacted
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES
from pulsarctl_wire.wire.fields import SECRETS
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

_SHOWN: Final = 256
"""Bytes of a part that are shown; of a longer one the first."""

_WIDTH: Final = 16


class Part(NamedTuple):
    """Bytes `start` to `stop` of a frame and what they are; `secret` ones are not shown."""

    start: int
    stop: int
    label: str
    secret: bool = False


class HexRenderer:
    """Renders events as annotated bytes, headed by their lines."""

    def __init__(self, line: LineRenderer, paint: Paint, *, show_secrets: bool = False) -> None:
        self._line = line
        self._paint = paint
        self._show_secrets = show_secrets

    def __call__(self, event: Event) -> str:
        """The annotated bytes of `event`, without the last line end."""
        lines = [self._line(event)]
        if isinstance(event, Gap):
            return lines[0]
        raw = event.raw
        if isinstance(event, Malformed):
            raw = raw if self._show_secrets else redacted(event)[0]
            parts: Iterator[Part] | list[Part] = [Part(0, len(raw), "no frame")]
        else:
            parts = frame_parts(event)
        for part in parts:
            lines += self._part(raw, part)
        return "\n".join(lines)

    def _part(self, raw: bytes, part: Part) -> Iterator[str]:
        stop = min(part.stop, part.start + _SHOWN)
        hidden = part.secret and not self._show_secrets
        for at in range(part.start, stop, _WIDTH):
            data = raw[at : min(at + _WIDTH, stop)]
            digits = "xx " * len(data) if hidden else data.hex(" ")
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
            label = clean(part.label) if at == part.start else ""
            shown = "." * len(data) if hidden else text
            yield (
                f"  {self._paint('dim', f'{at:08x}')}  {digits:<{3 * _WIDTH}} "
                f"{self._paint('dim', f'{shown:<{_WIDTH}}')}  {self._paint('cyan', label)}".rstrip()
            )
        if part.stop > stop:
            yield f"            … {part.stop - stop} bytes more"


def frame_parts(frame: Frame) -> Iterator[Part]:
    """The parts of a frame, in order and without holes."""
    raw = frame.raw
    command_end = min(8 + frame.command_size, len(raw))
    yield Part(0, 4, f"TOTAL_SIZE {frame.total_size}")
    yield Part(4, 8, f"COMMAND_SIZE {frame.command_size}")
    yield from _message(raw, 8, command_end, BaseCommand.DESCRIPTOR, "")
    if frame.type not in PAYLOAD_TYPES or frame.base is None:
        if command_end < len(raw):
            yield Part(command_end, len(raw), f"{len(raw) - command_end} bytes behind the command")
        return
    parts = frame.parts
    at = command_end
    start, stop = parts.broker_entry
    if stop:
        yield Part(at, at + 2, "magic 0e02: broker entry metadata")
        yield Part(at + 2, at + 6, f"its size {stop - start}")
        yield from _message(raw, start, stop, BrokerEntryMetadata.DESCRIPTOR, "broker_entry_metadata.")
        at = stop
    start, stop = parts.checksum
    if stop:
        yield Part(at, at + 2, "magic 0e01: checksum")
        state = frame.checksum or "cut"
        wrong = f", the bytes have {parts.computed:08x}" if state == "invalid" else ""
        yield Part(start, stop, f"CRC32-C {parts.stored:08x}: {state}{wrong}")
        at = stop
    start, stop = parts.metadata
    if stop:
        yield Part(at, at + 4, f"METADATA_SIZE {stop - start}")
        yield from _message(raw, start, stop, MessageMetadata.DESCRIPTOR, "metadata.")
        at = stop
    if at < len(raw):
        yield Part(at, len(raw), parts.problem or f"payload, {len(raw) - at} bytes")


def _message(
    raw: bytes, at: int, stop: int, descriptor: Descriptor, prefix: str, depth: int = 0
) -> Iterator[Part]:
    """The fields of an encoded protobuf message; what does not decode is one part."""
    while at < stop:
        tag, value_at = _varint(raw, at, stop)
        field = descriptor.fields_by_number.get(tag >> 3)
        name = f"{prefix}{field.name if field else f'unknown field {tag >> 3}'}"
        wire = tag & 7
        end = value_at
        if wire == 0:
            value, end = _varint(raw, value_at, stop)
            yield Part(at, end, f"{name} = {_scalar(field, value)}")
        elif wire == 2:
            size, data_at = _varint(raw, value_at, stop)
            if data_at == value_at:
                break
            end = min(data_at + size, stop)  # a field may be cut where the frame is
            if field is not None and field.message_type is not None and depth < 8 and size:
                yield Part(at, data_at, f"{name}: {size} bytes")
                yield from _message(raw, data_at, end, field.message_type, f"{name}.", depth + 1)
            else:
                secret = field is not None and field.full_name in SECRETS
                text = "redacted" if secret else _bytes_text(raw[data_at:end])
                if data_at + size > stop:
                    text += f" (cut: {end - data_at} of {size} bytes)"
                yield Part(at, end, f"{name} = {text}", secret)
        elif wire in (1, 5):
            end = value_at + (8 if wire == 1 else 4)
            if end > stop:
                break
            number = struct.unpack("<d" if wire == 1 else "<f", raw[value_at:end])[0]
            yield Part(at, end, f"{name} = {number}")
        if end <= at or wire in (3, 4, 6, 7):
            break
        at = end
    if at < stop:
        yield Part(at, stop, f"{prefix}? ({stop - at} bytes that do not decode)")


def _varint(raw: bytes, at: int, stop: int) -> tuple[int, int]:
    """A varint and the offset behind it; a broken one is 0 and ends where it begins."""
    value = 0
    for index in range(10):
        if at + index >= stop:
            break
        byte = raw[at + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 2**64 - 1, at + index + 1
    return 0, at


def _scalar(field: FieldDescriptor | None, value: int) -> str:
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
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data)} bytes"
    return f'"{text}"' if len(text) <= 60 and text.isprintable() else f"{len(data)} bytes"
