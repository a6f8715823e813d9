"""`-o line`: renders one line per frame. Written for speed: plain strings, no layout engine.

16 10:43:05.622138 0 → SEND         public/default/orders producer=0 seq=0 "order 0" 99 B crc=ok
17 10:43:05.626109 0 ← SEND_RECEIPT public/default/orders producer=0 seq=0 id=45:0 33 B 3.97 ms after #16
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from pulsarctl_wire.record import Record, notes_of
from pulsarctl_wire.render.http import http_text, quote
from pulsarctl_wire.render.plan import ALWAYS, Plan, Step, command_plans, metadata_at, walk, walk_command
from pulsarctl_wire.render.text import Origin, Paint, clean, cut_line, human_bytes, human_time
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import SECRETS, as_text
from pulsarctl_wire.wire.frame import Event, Frame, Gap, HttpMessage, Malformed
from pulsarctl_wire.wire.framing.redaction import event_spans, hex_digits, hides_entry
from pulsarctl_wire.wire.payload import Entry
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CompressionType,
    KeySharedMode,
    MarkerType,
    MessageIdData,
    MessageMetadata,
    Schema,
    SingleMessageMetadata,
)

FieldFormat = tuple[str, Callable[[Any], str] | None, object]
"""The label of a field, the function that formats its value (None: never shown), and the value not shown."""

_LABELS: Final = {
    "producer_id": "producer",
    "consumer_id": "consumer",
    "sequence_id": "seq",
    "highest_sequence_id": "highest",
    "request_id": "req",
    "message_id": "id",
    "message_ids": "ids",
    "messagePermits": "permits",
    "producer_name": "name",
    "consumer_name": "name",
    "protocol_version": "v",
    "txnid_most_bits": "txn_most",
    "txnid_least_bits": "txn_least",
    "auth_method_name": "auth",
    "client_version": "",
    "server_version": "",
    "subType": "",
    "ack_type": "",
    "response": "",
    "error": "",
    "message": "",
}
_HIDDEN: Final = {
    *("topic", "subscription", "metadata", "feature_flags", "properties", "subscription_properties"),
    *("num_messages", "is_chunk", "user_provided_producer_name"),
}
_ALWAYS_SHOWN: Final = {
    "CommandPartitionedTopicMetadataResponse.partitions",
    "CommandLookupTopicResponse.response",  # Redirect is 0
    *(f"CommandEndTxn{suffix}.txn_action" for suffix in ("", "OnPartition", "OnSubscription")),
}
"""Fields that are shown even if they have their default value."""
_ALL_ONES: Final = 2**64 - 1
_STYLES: Final = {
    "red": ("ERROR", "SEND_ERROR"),
    "green": ("SEND", "MESSAGE"),
    "dim": ("PING", "PONG", "FLOW", "SEND_RECEIPT", "ACK", "ACK_RESPONSE"),
    "magenta": ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "TOPIC_MIGRATED", "REACHED_END_OF_TOPIC"),
}
_PREVIEW: Final = 32  # characters of a text that are shown
_MAX_METADATA: Final = 4096  # bytes of metadata parsed for the preview of a batch
_MAX_MALFORMED: Final = 16  # bytes shown of a malformed stretch
_CONTROLS: Final = {code: None for code in range(32) if chr(code) not in "\t\n\r"}
_MAX_COMMANDS: Final = 1_000  # cached, including unknown ones
_MARKERS: Final = {value.number: value.name for value in MarkerType.DESCRIPTOR.values}
CODECS: Final = {value.number: value.name for value in CompressionType.DESCRIPTOR.values}


def command_style(name: str) -> str:
    """Return the style of a command's name."""
    return next((style for style, names in _STYLES.items() if name in names), "bold")


class TimeFormatter:
    """Formats times: time of day (UTC or local), date and time in UTC, epoch seconds, or s since `origin`."""

    def __init__(self, form: str = "utc", origin: Origin | None = None) -> None:
        self._form = form
        self._origin = origin or Origin()
        self._time_ns: int | None = None
        self._full_text = "-"
        self._second = -1
        self._text = ""
        self._zone = None if form == "local" else timezone.utc
        self._pattern = "%Y-%m-%dT%H:%M:%S" if form == "date" else "%H:%M:%S"

    def __call__(self, time_ns: int | None) -> str:
        """Format `time_ns` (ns since the epoch): epoch seconds to the ns, others to the µs; "-" for None."""
        if time_ns != self._time_ns:  # frames of the same packet have the same time
            self._time_ns = time_ns
            self._full_text = "-" if time_ns is None else self._format(time_ns)
        return self._full_text

    def _format(self, time_ns: int) -> str:
        if self._form == "relative":
            elapsed = (time_ns - (self._origin.time_ns or 0)) // 1000
            seconds, fraction = divmod(abs(elapsed), 1_000_000)
            return f"{'-' if elapsed < 0 else ''}{seconds}.{fraction:06d}"
        second, fraction = divmod(time_ns, 1_000_000_000)
        if self._form == "epoch":
            return f"{second}.{fraction:09d}"
        if second != self._second:
            self._second = second
            try:
                self._text = datetime.fromtimestamp(second, self._zone).strftime(self._pattern)
            except (OverflowError, OSError, ValueError):
                self._text = str(second)
        return f"{self._text}.{str(fraction // 1000).zfill(6)}"


class LineRenderer:
    """A renderer of events as lines, without the line end.

    `notes` returns a frame's notes, by default without those about the contents of its entry.
    `open_entry` opens encrypted entries.
    """

    def __init__(
        self,
        paint: Paint,
        clock: TimeFormatter | None = None,
        *,
        show_secrets: bool = False,
        notes: Callable[[Frame], Sequence[str]] | None = None,
        open_entry: Callable[[Frame], Entry] | None = None,
    ) -> None:
        self._paint = paint
        self._notes = notes
        self._open_entry = open_entry
        self._clock = clock or TimeFormatter()
        self._show_secrets = show_secrets
        self._field_formats: dict[FieldDescriptor, FieldFormat] = {}
        # each word of an ack_set becomes "~"; `min` leaves one of these
        self._ids = Plan(min).fill(MessageIdData.DESCRIPTOR, _step_of_id)
        self._plans = command_plans(lambda message: Plan(_join).fill(message, self._step))
        self._metadata = Plan(_join).fill(MessageMetadata.DESCRIPTOR, _step_of_metadata)
        self._topics: dict[str | None, str] = {None: ""}
        self._commands: dict[int, str] = {}
        self._arrows = (paint("cyan", "←"), paint("yellow", "→"))
        self._checksums: dict[str | None, str] = {
            None: "",
            "valid": " crc=ok",
            "absent": " " + paint("yellow", "crc=none"),
            "invalid": " " + paint("red", "crc=BAD"),
        }

    def __call__(self, event: Event, width: int | None = None, record: Record | None = None) -> str:
        """Render the line of `event`, cut to `width` cells; what is wrong with a frame keeps half of them.

        A caller that already has the frame's `record` should pass it, to save time.
        """
        if not isinstance(event, Frame):
            return self._render_other(event) if width is None else cut_line(self._render_other(event), width)
        number = event.type
        topic = self._topics.get(event.topic)
        if topic is None:
            topic = self._topic(event.topic)
        command = self._commands.get(number) or self._command(event)
        parts = [  # compiled, a format such as :6 takes a microsecond
            f"{str(event.number).rjust(6)} {self._clock(event.time_ns)} {event.connection.index} "
            f"{self._arrows[event.to_broker]} {command}{topic}"
        ]
        if event.subscription is not None:
            parts.append(f" sub={clean(event.subscription)}")
        is_fast, entry = self._add_fast(event, parts), None
        if not is_fast:
            entry = self._open_encrypted(event)
            self._add_slow(event, parts, entry)
        problem_at = len(parts) if event.checksum == "invalid" else None  # the first part about a problem
        size, checksum = len(event.raw), self._checksums[event.checksum]
        parts.append(f" {size} B{checksum}" if size < 1000 else f" {human_bytes(size)}{checksum}")
        if event.latency_ns is not None:
            parts.append(f" {human_time(event.latency_ns)}")
        parts.append(_links_text(event))
        if problem_at is None:
            problem_at = len(parts)
        if event.partial:
            parts.append(self._paint("red", " PARTIAL"))
        if self._notes is not None:
            notes = self._notes(event)
        else:
            notes = event.notes if is_fast else notes_of(event, record)
        if entry is not None:
            notes = [*notes, *entry.notes]
        if notes:
            parts += [self._paint("yellow", f" ! {clean(note)}") for note in notes]
        if event.findings:
            parts.append(self._paint("red", f" ✗ {' '.join(event.findings)}"))
        line = "".join(parts)
        return line if width is None else cut_line(line, width, "".join(parts[problem_at:]))

    def _render_other(self, event: Event) -> str:
        """Render the line of an event that is not a frame."""
        prefix = (
            f"     - {self._clock(event.time_ns)} {event.connection.index} {self._arrows[event.to_broker]} "
        )
        if isinstance(event, Gap):
            return f"{prefix}{self._paint('red', 'GAP')} {event.size} bytes were not captured"
        if isinstance(event, HttpMessage):
            return prefix + http_text(event, self._paint, self._topic)
        assert isinstance(event, Malformed)
        digits = hex_digits(event.raw[:_MAX_MALFORMED], [] if self._show_secrets else event_spans(event))
        return (
            f"{prefix}{self._paint('red', 'MALFORMED')} {clean(event.reason)} | "
            f"{event.size} bytes: {digits}{'…' if event.size > _MAX_MALFORMED else ''}"
        )

    def _command(self, frame: Frame) -> str:
        name = frame.command
        if frame.base is None:  # the command is incomplete, but its type may be there
            head = frame.raw[8:10]
            return f"{command_name(head[1]) if head[:1] == bytes([8]) and len(head) == 2 else ''}?".ljust(12)
        text = self._paint(command_style(name), name) + " " * max(12 - len(name), 0)
        if len(self._commands) < _MAX_COMMANDS:
            self._commands[frame.type] = text
        return text

    def _topic(self, topic: str | None) -> str:
        if len(self._topics) > 10_000:
            self._topics = {None: ""}
        text = " " + self._paint("blue", clean((topic or "").removeprefix("persistent://")))
        self._topics[topic] = text
        return text

    # -- the command and its entry

    def _add_fast(self, frame: Frame, parts: list[str]) -> bool:
        """Add the fields of a command and its entry; returns False if they need the slow path."""
        plan = self._plans.get(frame.type)
        if plan is None or frame.partial or frame.base is None or frame.resend_of is not None:
            return False
        count = len(parts)
        try:
            if walk_command(frame, plan, parts) and (
                frame.checksum is None or self._add_entry_fast(frame, parts)
            ):
                return True
        except UnicodeDecodeError:
            pass
        del parts[count:]
        return False

    def _add_entry_fast(self, frame: Frame, parts: list[str]) -> bool:
        start, stop, slots = metadata_at(frame), frame.payload_at, [""]
        if start < 0 or not walk(frame.raw, start, stop, self._metadata, parts, slots):
            return False
        if slots[0]:
            self._add_entry(frame, frame.metadata, parts)
        else:
            parts.append(f" {_preview(frame.raw[stop : stop + _PREVIEW + 1])}")
        return True

    def fields(self, frame: Frame) -> list[str]:
        """Return the texts of a command's fields and its entry, as they are in its line."""
        parts: list[str] = []
        self._add_slow(frame, parts, self._open_encrypted(frame))
        return [part[1:] for part in parts]

    def _open_encrypted(self, frame: Frame) -> Entry | None:
        """Open an encrypted entry that is to be shown; None if it is not encrypted, or is a chunk."""
        metadata = frame.metadata
        if self._open_entry is None or metadata is None or not metadata.encryption_keys:
            return None
        if metadata.num_chunks_from_msg > 1 or (not self._show_secrets and hides_entry(frame)):
            return None
        return self._open_entry(frame)

    def _add_slow(self, frame: Frame, parts: list[str], entry: Entry | None = None) -> None:
        """Add the fields of any command and its entry: the slow path. `entry`: an encrypted one, opened."""
        name = BODIES.get(frame.type)
        body = None if name is None or frame.base is None else getattr(frame.base, name)
        if frame.type in WITH_SECRETS and not self._show_secrets and body is not None and is_doubtful(frame):
            parts.append(" [redacted]")
        elif body is not None:
            for field, value in body.ListFields():
                label, show, hidden_value = self._field_formats.get(field) or self._field_format(field)
                if show is not None and (hidden_value is None or value != hidden_value):
                    text = _join([show(item) for item in value]) if field.is_repeated else show(value)
                    parts.append(f" {label}{text}")
        if frame.metadata is not None:
            self._add_entry(frame, frame.metadata, parts, entry)

    def _field_format(self, field: FieldDescriptor) -> FieldFormat:
        label = _LABELS.get(field.name, field.name)
        is_shown = field.is_required or field.full_name.rpartition("pulsar.proto.")[2] in _ALWAYS_SHOWN
        self._field_formats[field] = field_format = (
            f"{label}=" if label else "",
            None if field.name in _HIDDEN else _formatter(field, self._show_secrets),
            _ALL_ONES if field.name == "highest_sequence_id" else None if is_shown else field.default_value,
        )
        return field_format

    def _step(self, field: Any) -> Step | None:
        """Make the step of a command's field in a plan, from the format of the field."""
        label, show, hidden_value = self._field_format(field)
        if show is None:
            return Step(field, None)
        if field.message_type is not None:
            is_id = field.message_type is MessageIdData.DESCRIPTOR
            return Step(field, f" {label}", plan=self._ids) if is_id else None
        hidden = ALWAYS
        if isinstance(hidden_value, int):
            hidden = -1 if hidden_value == _ALL_ONES else hidden_value
        elif hidden_value is not None and not field.is_repeated:
            hidden = 0  # the size of an empty value
        if field.type == FieldDescriptor.TYPE_STRING:
            return Step(
                field, f" {label}", format_sized=lambda data: quote(data.decode()), hidden_value=hidden
            )
        format_number: Callable[[int], str | None] | None = None
        if field.enum_type is not None:
            format_number = {value.number: value.name for value in field.enum_type.values}.get
        elif field.type == FieldDescriptor.TYPE_BOOL:
            format_number = show
        return Step(field, f" {label}", format_number=format_number, format_sized=show, hidden_value=hidden)

    def _add_entry(self, frame: Frame, metadata: Any, parts: list[str], entry: Entry | None = None) -> None:
        if not self._show_secrets and hides_entry(frame):
            parts.append(" [redacted]")
            return
        is_plain, is_batch = True, metadata.HasField("num_messages_in_batch")
        if is_batch:
            parts.append(f" batch={metadata.num_messages_in_batch}")
        if metadata.num_chunks_from_msg > 1:
            parts.append(f" chunk={metadata.chunk_id + 1}/{metadata.num_chunks_from_msg}")
            is_plain = False
        if metadata.compression:
            parts.append(f" {CODECS[metadata.compression]}")
            is_plain = False
        if metadata.encryption_keys:
            parts.append(f" encrypted={_join([clean(as_text(key.key)) for key in metadata.encryption_keys])}")
            is_plain = False
        if metadata.marker_type:
            parts.append(f" marker={_MARKERS.get(metadata.marker_type, metadata.marker_type)}")
        if metadata.partition_key:
            parts.append(f" key={quote(metadata.partition_key)}")
        if metadata.null_value:
            parts.append(" null")
        elif entry is not None and entry.opened is not None:
            parts.append(f" decrypted{_preview_first(entry)}")
        elif is_plain and not frame.partial:
            raw, pos = frame.raw, frame.payload_at
            if not is_batch:
                parts.append(f" {_preview(raw[pos : pos + _PREVIEW + 1])}")
                return
            pos, end = _first_of_batch(raw, pos)
            if pos >= 0:
                parts.append(f" {_preview(raw[pos : min(pos + _PREVIEW + 1, end)])}")
            if end < len(raw):
                parts.append(" …")


def _links_text(frame: Frame) -> str:
    """Format the numbers of the frames that a frame answers, repeats and is answered by."""
    text = ""
    if frame.request is not None and frame.resend_of is not None:
        text = f" after #{frame.resend_of}, sent again as #{frame.request}"
    elif frame.request is not None:
        text = f" after #{frame.request}"
    elif frame.resend_of is not None:
        text = f" sent before as #{frame.resend_of}"
    return text if frame.answer is None else f"{text} answered by #{frame.answer}"


def _preview_first(entry: Entry) -> str:
    payload = entry.messages[0].payload if entry.messages else None
    if payload is None:
        return ""
    return f" {_preview(payload[: _PREVIEW + 1])}{' …' if len(entry.messages) > 1 else ''}"


def _formatter(field: Any, show_secrets: bool) -> Callable[[Any], str]:
    """Return the function that formats one value of `field`."""
    if field.full_name in SECRETS and not show_secrets:
        return lambda value: "[redacted]"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _MESSAGES.get(field.message_type.name, lambda value: "{…}")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return {value.number: value.name for value in field.enum_type.values}.__getitem__
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: value.hex() if len(value) <= 16 else f"{len(value)} bytes"
    if field.type == FieldDescriptor.TYPE_STRING:
        return quote
    if field.type == FieldDescriptor.TYPE_BOOL:
        return lambda value: "true" if value else "false"
    return _unsigned_text if field.type == FieldDescriptor.TYPE_UINT64 else str


_ID: Final[dict[str, tuple[str, Callable[[int], str] | None]]] = {
    "ledgerId": ("", None),
    "entryId": (":", None),
    "partition": (":", None),
    "batch_index": ("[", "{}]".format),
    "ack_set": ("", lambda word: "~"),
}
"""Parts of a message id -> prefix and format; see `_message_id`."""


def _step_of_id(field: Any) -> Step:
    prefix, format_number = _ID.get(field.name, (None, None))
    hidden_value = -1 if prefix and not field.is_required else ALWAYS
    return Step(field, prefix, format_number=format_number, hidden_value=hidden_value)


_SHOWN: Final = {"num_messages_in_batch", "compression", "partition_key", "null_value"}
"""Fields of metadata that `_add_entry` shows if they are set, besides `_SLOW_FIELDS`."""
_SLOW_FIELDS: Final = {"num_chunks_from_msg", "encryption_keys", "marker_type"}


def _step_of_metadata(field: Any) -> Step | None:
    """Make the step of a metadata field, which shows nothing.

    A field of `_SHOWN` puts a text in slot 0 (any text that is not empty), so that `_add_entry` is called.
    """
    if field.name in _SLOW_FIELDS:
        return None
    if field.name not in _SHOWN:
        return Step(field, None)
    return Step(field, None, format_number=CODECS.get if field.enum_type else None, format_sized=repr, slot=0)


def _unsigned_text(value: int) -> str:
    return "-1" if value == _ALL_ONES else str(value)


def _join(texts: list[str]) -> str:
    return ",".join(texts) if len(texts) <= 3 else f"{texts[0]},…,{texts[-1]}({len(texts)})"


def _message_id(value: Any) -> str:
    ledger, entry, partition = value.ledgerId, value.entryId, value.partition
    if ledger == _ALL_ONES or entry == _ALL_ONES:
        text = f"{_unsigned_text(ledger)}:{_unsigned_text(entry)}"
    else:
        text = f"{ledger}:{entry}"
    if partition >= 0:
        text += f":{partition}"
    if value.batch_index >= 0:
        text += f"[{value.batch_index}]"
    return f"{text}~" if value.ack_set else text  # ~: some messages of the batch


_MESSAGES: Final[dict[str, Callable[[Any], str]]] = {
    "MessageIdData": _message_id,
    "Schema": lambda schema: Schema.Type.Name(schema.type),
    "KeySharedMeta": lambda meta: KeySharedMode.Name(meta.keySharedMode),
    "AuthData": lambda data: clean(as_text(data.auth_method_name)),
    "Subscription": lambda value: f"{clean(as_text(value.topic))}/{clean(as_text(value.subscription))}",
}


def _first_of_batch(raw: bytes, pos: int) -> tuple[int, int]:
    """Find where the payload of the first message of the batch at `pos` starts (-1: unknown) and ends."""
    start = pos + 4
    size = int.from_bytes(raw[pos:start], "big")
    try:
        single = SingleMessageMetadata.FromString(raw[start : start + min(size, _MAX_METADATA)])
    except DecodeError:
        return -1, len(raw)
    end = start + size + single.payload_size
    is_known = not single.null_value and start + size <= end <= len(raw)
    return (start + size if is_known else -1), end


def _preview(payload: bytes) -> str:
    try:
        # a character that the preview cuts is left out
        text, _ = utf_8_decode(payload[:_PREVIEW], "strict", len(payload) <= _PREVIEW)
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        if text.translate(_CONTROLS) != text:
            return f"0x{payload[:8].hex()}{'…' if len(payload) > 8 else ''}"
        text = clean(text)
    return f'"{text}…"' if len(payload) > _PREVIEW else f'"{text}"'
