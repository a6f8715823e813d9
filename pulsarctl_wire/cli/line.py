"""`-o line`: one line a frame. Written for speed: plain strings, no layout engine.

16 10:43:05.622138 0 → SEND         public/default/orders producer=0 seq=0 "order 0" 99 B crc=ok
17 10:43:05.626109 0 ← SEND_RECEIPT public/default/orders producer=0 seq=0 id=45:0 33 B 3.97 ms after #16
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from pulsarctl_wire.cli.console import Origin, Paint, clean, cut_line, human_bytes, human_time
from pulsarctl_wire.record import is_ordinary, notes_of
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.fields import SECRETS, as_text
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    CompressionType,
    KeySharedMode,
    MarkerType,
    MessageMetadata,
    Schema,
    SingleMessageMetadata,
)
from pulsarctl_wire.wire.redaction import event_spans, hex_digits, hides_entry

Column = tuple[str, Callable[[Any], str] | None, object]
"""(label, how a value is shown or None if it is not, the value that is not worth showing)."""
Plan = dict[FieldDescriptor, Column]

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
_TELLING: Final = {
    "CommandPartitionedTopicMetadataResponse.partitions",
    "CommandLookupTopicResponse.response",  # Redirect is 0
    *(f"CommandEndTxn{where}.txn_action" for where in ("", "OnPartition", "OnSubscription")),
}
"""Fields that are worth showing though they have their default value."""
_ALL_ONES: Final = 2**64 - 1
_STYLES: Final = {
    "red": ("ERROR", "SEND_ERROR"),
    "green": ("SEND", "MESSAGE"),
    "dim": ("PING", "PONG", "FLOW", "SEND_RECEIPT", "ACK", "ACK_RESPONSE"),
    "magenta": ("CLOSE_PRODUCER", "CLOSE_CONSUMER", "TOPIC_MIGRATED", "REACHED_END_OF_TOPIC"),
}
_PREVIEW: Final = 32
_LARGEST_METADATA: Final = 4096  # bytes of a message in a batch, for its preview
_BYTES: Final = 16  # of a malformed stretch that are shown
_CONTROLS: Final = {code: None for code in range(32) if chr(code) not in "\t\n\r"}
_MOST_COMMANDS: Final = 1_000  # that are remembered, unknown ones included
_LONGEST: Final = 300
"""Characters of a text that are shown."""
_MARKERS: Final = {value.number: value.name for value in MarkerType.DESCRIPTOR.values}
CODECS: Final = {value.number: value.name for value in CompressionType.DESCRIPTOR.values}


class Clock:
    """Texts of times: time of day (UTC or local), date in UTC, epoch seconds, or seconds since `origin`."""

    def __init__(self, form: str, origin: Origin) -> None:
        self._form = form
        self._origin = origin
        self._time_ns: int | None = None
        self._whole = "-"
        self._second = -1
        self._text = ""
        self._zone = None if form == "local" else timezone.utc
        self._pattern = "%Y-%m-%dT%H:%M:%S" if form == "date" else "%H:%M:%S"

    def __call__(self, time_ns: int | None) -> str:
        """`time_ns` (ns since the epoch) as text, to the microsecond; "-" if it is not known."""
        if time_ns != self._time_ns:  # the frames of a packet share their time
            self._time_ns = time_ns
            self._whole = "-" if time_ns is None else self._format(time_ns)
        return self._whole

    def _format(self, time_ns: int) -> str:
        if self._form == "relative":
            after = (time_ns - (self._origin.time_ns or 0)) // 1000
            seconds, rest = divmod(abs(after), 1_000_000)
            return f"{'-' if after < 0 else ''}{seconds}.{rest:06d}"
        second, rest = divmod(time_ns, 1_000_000_000)
        if self._form == "epoch":
            return f"{second}.{rest:09d}"
        if second != self._second:
            self._second = second
            try:
                self._text = datetime.fromtimestamp(second, self._zone).strftime(self._pattern)
            except (OverflowError, OSError, ValueError):
                self._text = str(second)
        return f"{self._text}.{str(rest // 1000).zfill(6)}"


class LineRenderer:
    """Renders events as lines, without line end."""

    def __init__(
        self,
        paint: Paint,
        *,
        time_format: str = "utc",
        origin: Origin | None = None,
        show_secrets: bool = False,
        notes: Callable[[Frame], Sequence[str]] | None = None,
    ) -> None:
        self._paint = paint
        self._notes = notes
        self._clock = Clock(time_format, origin or Origin())
        self._show_secrets = show_secrets
        self._plans: dict[int, Plan] = {}
        self._topics: dict[str | None, str] = {None: ""}
        self._commands: dict[int, str] = {}
        self._arrows = (paint("cyan", "←"), paint("yellow", "→"))
        self._checksums: dict[str | None, str] = {
            None: "",
            "valid": " crc=ok",
            "absent": " " + paint("yellow", "crc=none"),
            "invalid": " " + paint("red", "crc=BAD"),
        }

    def __call__(self, event: Event, width: int | None = None) -> str:
        """The line of `event`, in at most `width` cells: what is wrong with a frame is not cut away."""
        if not isinstance(event, Frame):
            return self._damage(event) if width is None else cut_line(self._damage(event), width)
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
        name = BODIES.get(number)
        body = None if name is None or event.base is None else getattr(event.base, name)
        present: list[Any] = [] if body is None else body.ListFields()
        if number in WITH_SECRETS and not self._show_secrets and body is not None and is_doubtful(event):
            parts.append(" [redacted]")
        elif body is not None:
            self._fields(number, body, present, parts)
        metadata = event.metadata
        if metadata is not None:
            self._entry(event, metadata, parts)
        size, checksum = len(event.raw), self._checksums[event.checksum]
        parts.append(f" {size} B{checksum}" if size < 1000 else f" {human_bytes(size)}{checksum}")
        if event.latency_ns is not None:
            parts.append(f" {human_time(event.latency_ns)}")
        if event.request is not None:
            parts.append(f" after #{event.request}")
        if event.answer is not None:
            parts.append(f" answered by #{event.answer}")
        if event.partial:
            parts.append(self._paint("red", " PARTIAL"))
        if self._notes is None and body is not None and is_ordinary(event, body, present):
            notes = event.notes
        else:
            notes = (self._notes or notes_of)(event)
        if notes:
            parts += [self._paint("yellow", f" ! {clean(note)}") for note in notes]
        line = "".join(parts)
        return line if width is None else cut_line(line, width, _wrong(event, parts, len(notes)))

    def _damage(self, event: Event) -> str:
        where = (
            f"     - {self._clock(event.time_ns)} {event.connection.index} {self._arrows[event.to_broker]} "
        )
        if isinstance(event, Gap):
            return f"{where}{self._paint('red', 'GAP')} {event.size} bytes were not captured"
        assert isinstance(event, Malformed)
        digits = hex_digits(event.raw[:_BYTES], [] if self._show_secrets else event_spans(event))
        return (
            f"{where}{self._paint('red', 'MALFORMED')} {clean(event.reason)} | "
            f"{event.size} bytes: {digits}{'…' if event.size > _BYTES else ''}"
        )

    def _command(self, frame: Frame) -> str:
        name = frame.command
        if frame.base is None:  # its type may be there all the same
            head = frame.raw[8:10]
            return f"{command_name(head[1]) if head[:1] == bytes([8]) and len(head) == 2 else ''}?".ljust(12)
        style = next((style for style, names in _STYLES.items() if name in names), "bold")
        text = self._paint(style, name) + " " * max(12 - len(name), 0)
        if len(self._commands) < _MOST_COMMANDS:
            self._commands[frame.type] = text
        return text

    def _topic(self, topic: str | None) -> str:
        if len(self._topics) > 10_000:
            self._topics = {None: ""}
        text = " " + self._paint("blue", clean((topic or "").removeprefix("persistent://")))
        self._topics[topic] = text
        return text

    # -- fields of the command

    def _fields(self, number: int, body: Any, present: list[Any], parts: list[str]) -> None:
        plan = self._plans.get(number)
        if plan is None:
            plan = self._plans[number] = {field: self._column(field) for field in body.DESCRIPTOR.fields}
        for field, value in present:
            label, show, boring = plan[field]
            if show is not None and (boring is None or value != boring):
                parts.append(f" {label}{show(value)}")

    def _column(self, field: FieldDescriptor) -> Column:
        if field.name in _HIDDEN:
            return "", None, None
        label = _LABELS.get(field.name, field.name)
        show = _shower(field, self._show_secrets)
        if field.is_repeated:
            one = show
            show = lambda values: _several([one(value) for value in values])  # noqa: E731
        telling = field.is_required or field.full_name.rpartition("pulsar.proto.")[2] in _TELLING
        boring = None if telling else field.default_value
        return (
            f"{label}=" if label else "",
            show,
            _ALL_ONES if field.name == "highest_sequence_id" else boring,
        )

    # -- the entry

    def _entry(self, frame: Frame, metadata: MessageMetadata, parts: list[str]) -> None:
        if not self._show_secrets and hides_entry(frame):
            parts.append(" [redacted]")
            return
        plain, batched = True, metadata.HasField("num_messages_in_batch")
        if batched:
            parts.append(f" batch={metadata.num_messages_in_batch}")
        if metadata.num_chunks_from_msg > 1:
            parts.append(f" chunk={metadata.chunk_id + 1}/{metadata.num_chunks_from_msg}")
            plain = False
        if metadata.compression:
            parts.append(f" {CODECS[metadata.compression]}")
            plain = False
        if metadata.encryption_keys:
            parts.append(
                f" encrypted={_several([clean(as_text(key.key)) for key in metadata.encryption_keys])}"
            )
            plain = False
        if metadata.marker_type:
            parts.append(f" marker={_MARKERS.get(metadata.marker_type, metadata.marker_type)}")
        if metadata.partition_key:
            parts.append(f" key={_text(metadata.partition_key)}")
        if metadata.null_value:
            parts.append(" null")
        elif plain and not frame.partial:
            raw, at = frame.raw, frame.payload_at
            if not batched:
                parts.append(f" {_preview(raw[at : at + _PREVIEW + 1])}")
                return
            at, end = _first_of_batch(raw, at)
            if at >= 0:
                parts.append(f" {_preview(raw[at : min(at + _PREVIEW + 1, end)])}")
            if end < len(raw):
                parts.append(" …")


def _wrong(frame: Frame, parts: list[str], notes: int) -> str:
    """The end of a line that says what is wrong with its frame; "" if nothing is."""
    number = frame.partial + notes
    if frame.checksum == "invalid":
        number += 1 + sum(value is not None for value in (frame.latency_ns, frame.request, frame.answer))
    return "".join(parts[len(parts) - number :])


def _shower(field: Any, show_secrets: bool) -> Callable[[Any], str]:
    """How one value of `field` becomes text."""
    if field.full_name in SECRETS and not show_secrets:
        return lambda value: "[redacted]"
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _MESSAGES.get(field.message_type.name, lambda value: "{…}")
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return {value.number: value.name for value in field.enum_type.values}.__getitem__
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: value.hex() if len(value) <= 16 else f"{len(value)} bytes"
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text
    if field.type == FieldDescriptor.TYPE_BOOL:
        return lambda value: "true" if value else "false"
    return _unsigned if field.type == FieldDescriptor.TYPE_UINT64 else str


def _unsigned(value: int) -> str:
    return "-1" if value == _ALL_ONES else str(value)


def _text(value: str | bytes) -> str:
    text = clean(as_text(value[:_LONGEST]))
    if len(value) > _LONGEST:
        text += "…"
    return text if text and " " not in text else f'"{text}"'


def _several(texts: list[str]) -> str:
    return ",".join(texts) if len(texts) <= 3 else f"{texts[0]},…,{texts[-1]}({len(texts)})"


def _message_id(value: Any) -> str:
    ledger, entry, partition = value.ledgerId, value.entryId, value.partition
    if ledger == _ALL_ONES or entry == _ALL_ONES:
        text = f"{_unsigned(ledger)}:{_unsigned(entry)}"
    else:
        text = f"{ledger}:{entry}"
    if partition >= 0:
        text += f":{partition}"
    if value.batch_index >= 0:
        text += f"[{value.batch_index}]"
    return f"{text}~" if value.ack_set else text  # ~: a part of the batch


_MESSAGES: Final[dict[str, Callable[[Any], str]]] = {
    "MessageIdData": _message_id,
    "Schema": lambda schema: Schema.Type.Name(schema.type),
    "KeySharedMeta": lambda meta: KeySharedMode.Name(meta.keySharedMode),
    "AuthData": lambda data: clean(as_text(data.auth_method_name)),
    "Subscription": lambda value: f"{clean(as_text(value.topic))}/{clean(as_text(value.subscription))}",
}


def _first_of_batch(raw: bytes, at: int) -> tuple[int, int]:
    """Where the payload of the first message of the batch at `at` begins and ends; begins at -1: unknown."""
    start = at + 4
    size = int.from_bytes(raw[at:start], "big")
    try:
        single = SingleMessageMetadata.FromString(raw[start : start + min(size, _LARGEST_METADATA)])
    except DecodeError:
        return -1, len(raw)
    end = start + size + single.payload_size
    known = not single.null_value and start + size <= end <= len(raw)
    return (start + size if known else -1), end


def _preview(payload: bytes) -> str:
    try:
        text, _ = utf_8_decode(payload[:_PREVIEW], "strict", False)  # a character may be cut at the end
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        if text.translate(_CONTROLS) != text:
            return f"0x{payload[:8].hex()}{'…' if len(payload) > 8 else ''}"
        text = clean(text)
    return f'"{text}…"' if len(payload) > _PREVIEW else f'"{text}"'
