"""Events as plain records, for `-o json`, filters and the tree. See docs/json.md.

A record is a dict of JSON values with fixed names. Everything in it but the packet's number in its file is
derived from the event alone, so a record can be made from any frame, wherever it came from.
"""

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from pulsarctl_wire.views import MAX_FRAME_VALUES, Content, ValueBudget, show, show_plain
from pulsarctl_wire.wire import PulsarApi_pb2 as proto
from pulsarctl_wire.wire.checksum_cause import find_checksum_cause
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.encryption import KeyRing
from pulsarctl_wire.wire.fields import Walker, as_base64, has_unknown
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.redaction import hides_entry, mask_event
from pulsarctl_wire.wire.payload import ESCAPED_COST, WIDE_COST, Budget, Entry, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MarkerType, MessageMetadata, Schema
from pulsarctl_wire.wire.varint import SIZED

Record = dict[str, Any]

FindPacket = Callable[[int], tuple[str | None, int | None]]
"""Returns a packet's file (None: the only one) and its number there (None: it has none)."""

RECORD_NAMES: Final = frozenset(
    (
        *("number", "time_ns", "connection", "to_broker", "packet", "wireshark", "file", "client", "server"),
        *("command", "total_size", "fields", "broker_entry_metadata", "checksum", "metadata", "messages"),
        *("request", "answer", "resend_of", "latency_ns", "topic", "subscription", "partial", "notes"),
        *("decrypted", "malformed", "size", "bytes", "gap", "http", "findings", "checksum_cause"),
    )
)
"""The names at the top level of a record."""

INSIDE: Final = frozenset(("fields", "broker_entry_metadata", "metadata", "messages", "decrypted", "notes"))
"""The top-level names whose values need the frame to be opened, which is the expensive part."""

MESSAGE_NAMES: Final = frozenset(
    (
        *("index", "key", "properties", "event_time", "size", "payload", "sequence_id"),
        *("ordering_key", "already_acked", "null_value"),
    )
)
"""The names in a record's messages."""

PAYLOAD_NAMES: Final = frozenset(("view", "value", "keys"))
"""The names in a message's payload."""

MAX_SHOWN: Final = 16 * 1024 * 1024
"""Bytes of messages shown for one frame; see `weight`."""

MAX_NOTES: Final = 100
"""Notes shown for one frame."""

VALUE_COST: Final = 256
"""What a `Budget` is charged for each value that is decoded from a payload by its schema."""


_MARKER_PAYLOADS: Final[dict[int, type[ProtoMessage]]] = {
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST: proto.ReplicatedSubscriptionsSnapshotRequest,
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE: proto.ReplicatedSubscriptionsSnapshotResponse,
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT: proto.ReplicatedSubscriptionsSnapshot,
    MarkerType.REPLICATED_SUBSCRIPTION_UPDATE: proto.ReplicatedSubscriptionsUpdate,
}


HIDDEN: Final = "credentials may be in any field of this command: its texts are hidden"
"""The note of a frame whose command may carry credentials and has anything odd in it."""
_HIDDEN_ENTRY: Final = "no checksum covers the entry, and credentials may be in it: it is hidden"


def find_no_packet(packet: int) -> tuple[str | None, int | None]:
    """Return that a packet has no number in a file."""
    return None, None


class Recorder:
    """Turns events into records.

    With `show_secrets` credentials are not redacted. `schema`, if given, is used for every payload, whatever
    schema the capture has. `answers` gives each frame's record the key `answer`. `budget` limits how much is
    opened and shown. `find_packet` finds the file of a packet, and its number there. `keys` open what is
    encrypted.
    """

    def __init__(
        self,
        *,
        show_secrets: bool = False,
        schema: Schema | None = None,
        answers: bool = False,
        budget: Budget | None = None,
        find_packet: FindPacket = find_no_packet,
        keys: KeyRing | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self.find_packet = find_packet
        self.keys = keys
        self._walk = Walker(show_secrets=show_secrets)
        self._hide = Walker(hide_all=True)
        self.show_secrets = show_secrets
        self.schema = schema
        self.answers = answers
        # what is left for the current frame: bytes of payloads to show, values to build
        self._bytes_left = 0
        self._value_budget: ValueBudget | None = None
        self._is_plain = True  # neither still encrypted nor a marker

    def __call__(self, event: Event) -> Record:
        """Return the record of `event`."""
        if isinstance(event, Frame):
            return self.frame(event)
        record: Record = {"number": None, **self._place(event)}
        if isinstance(event, Gap):
            record["gap"] = event.size
        elif isinstance(event, Malformed):
            raw = mask_event(event, self.show_secrets)
            record |= {"malformed": event.reason, "size": event.size, "bytes": as_base64(raw)}
        else:
            record |= {
                "topic": event.topic,
                "latency_ns": event.latency_ns,
                "size": event.size,
                "partial": event.partial,
                "http": {
                    "call": event.kind,
                    "method": event.method,
                    "target": event.target,
                    "namespace": event.namespace,
                    "status": event.status or None,
                    "fields": event.fields,
                },
            }
        return record

    def outline(self, frame: Frame) -> Record:
        """Return the record of a frame without opening it: the values of the names in `INSIDE` are empty."""
        record: Record = {
            "number": frame.number,
            **self._place(frame),
            "command": frame.command,
            "total_size": frame.total_size,
            "fields": None,
            "broker_entry_metadata": None,
            "checksum": frame.checksum,
            "metadata": None,
            "messages": [],
            "request": frame.request,
            "latency_ns": frame.latency_ns,
            "topic": frame.topic,
            "subscription": frame.subscription,
            "partial": frame.partial,
            "notes": [],
        }
        cause = find_checksum_cause(frame)
        if cause is not None:
            record["checksum_cause"] = cause
        if self.answers or frame.answer is not None:
            record["answer"] = frame.answer
        if frame.resend_of is not None:
            record["resend_of"] = frame.resend_of
        if frame.findings:
            record["findings"] = list(frame.findings)
        return record

    def frame(self, frame: Frame) -> Record:
        """Return the record of a frame."""
        record = self.outline(frame)
        record["notes"] = notes = list(frame.notes)
        metadata, broker_entry = frame.metadata, frame.broker_entry_metadata
        hidden = metadata is not None and not self.show_secrets and hides_entry(frame)
        if hidden:
            notes.append(_HIDDEN_ENTRY)
        if metadata is not None:
            record["metadata"] = (self._hide if hidden else self._walk)(metadata)
        record["fields"] = self._fields(frame, notes)
        if broker_entry is not None:
            record["broker_entry_metadata"] = self._walk(broker_entry)
        if metadata is not None and not hidden:
            record["messages"] = self._messages(frame, record, notes)
        if self._walk.is_used:
            notes += self._walk.take_problems()
        if frame.checksum == "invalid":
            parts = frame.parts
            notes.append(f"CRC32-C is {parts.stored:08x}, the bytes have {parts.computed:08x}")
        if len(notes) > MAX_NOTES:
            notes[MAX_NOTES:] = [f"… and {len(notes) - MAX_NOTES} notes more"]
        return record

    def _place(self, event: Event) -> Record:
        connection = event.connection
        file, number = self.find_packet(event.packet)
        place: Record = {
            "time_ns": event.time_ns,
            "connection": connection.index,
            "to_broker": event.to_broker,
            "packet": event.packet,
        }
        if number is not None:
            place["wireshark"] = number
        if file is not None:
            place["file"] = file
        place["client"], place["server"] = connection.client, connection.server
        return place

    def notes(self, frame: Frame) -> Sequence[str]:
        """Return the notes of the frame's record. For most frames this is faster than making the record."""
        metadata, base = frame.metadata, frame.base
        is_shown = metadata is not None and (self.schema or frame.schema or metadata.HasField("marker_type"))
        is_complete = all(message is None or message.IsInitialized() for message in (base, metadata))
        is_deep = not frame.partial and any(map(_holds_unknown, filter(None, (base, metadata))))
        if is_shown or is_deep or not is_complete or _has_more_notes(frame):
            notes: list[str] = self.frame(frame)["notes"]
            return notes
        return [*frame.notes, *self.open(frame).notes]

    def open(self, frame: Frame) -> Entry:
        """Open a frame's entry, within the budget."""
        self.budget.count_input(len(frame.raw))
        return open_entry(frame, self.budget, self.keys)

    def _fields(self, frame: Frame, notes: list[str]) -> Record | None:
        base = frame.base
        if base is None:
            return None
        if _is_alone(frame):
            return self._walk(getattr(base, BODIES[frame.type]))
        present = base.ListFields()
        is_plain = len(present) == 2 and present[1][0].number == frame.type
        walk = self._walk if is_plain and frame.type not in WITH_SECRETS else self._walk_of(frame, notes)
        if is_plain:
            body = present[1][1]
        else:
            body = frame.body
            names = [field.name for field, _ in present if field.name not in ("type", BODIES.get(frame.type))]
            if frame.type not in BODIES:
                notes.append("a command type nobody knows")
            elif body is None:
                notes.append(f"{frame.command} without its sub-message")
            notes += [f"the command also carries the sub-message {name}" for name in names]
            if body is None:
                body = base
        values = walk(body)
        if walk is self._hide:
            notes += walk.take_problems()
        return values

    def _walk_of(self, frame: Frame, notes: list[str]) -> Walker:
        """Return the walker for a command that may carry credentials."""
        if self.show_secrets or not is_doubtful(frame):
            return self._walk
        notes.append(HIDDEN)
        return self._hide

    def _messages(self, frame: Frame, record: Record, notes: list[str]) -> list[Record]:
        """Return the records of a frame's messages; if its entry is decrypted, `record` says so."""
        metadata_record = record["metadata"]
        entry = self.open(frame)
        if entry.notes:
            notes += entry.notes
        if entry.opened is not None:
            record["decrypted"] = entry.opened._asdict()
        self._bytes_left = MAX_SHOWN
        self._is_plain = entry.opened is not None or not (
            "marker_type" in metadata_record
            or "encryption_keys" in metadata_record
            or metadata_record.get("encryption_param")
        )
        records = [
            self._message(
                frame, message, metadata_record if message.index is None else self._metadata(message), notes
            )
            for message in entry.messages
        ]
        self._settle()
        if self._bytes_left < 0:
            notes.append(f"messages are not shown beyond {MAX_SHOWN} bytes of a frame")
        return records

    def _metadata(self, message: Message) -> Record:
        """Return the metadata of a message in a batch; {} if the frame's limit of bytes is used up."""
        self._bytes_left -= 2 * message.metadata_size
        return self._walk(message.metadata) if self._bytes_left >= 0 else {}

    def _settle(self) -> None:
        """Charge the budget for the values built for the current frame."""
        if self._value_budget is not None:
            charge_values(self.budget, self._value_budget)
            self._value_budget = None

    def _message(self, frame: Frame, message: Message, metadata_record: Record, notes: list[str]) -> Record:
        payload = message.payload
        properties = metadata_record.get("properties")
        record: Record = {
            "index": message.index,
            "key": metadata_record.get("partition_key"),
            "properties": {pair.get("key", ""): pair.get("value") for pair in properties}
            if properties
            else {},
            "event_time": metadata_record.get("event_time"),
            "size": None if payload is None else len(payload),
            "payload": None,
            "sequence_id": metadata_record.get("sequence_id"),
        }
        if "ordering_key" in metadata_record:
            record["ordering_key"] = self._walk.text(message.metadata.ordering_key)
        if message.skipped:
            record["already_acked"] = True
        if metadata_record.get("null_value"):
            record["null_value"] = True
        elif payload is not None:
            payload_weight = weight(payload)
            self._bytes_left -= payload_weight
            if self._bytes_left >= 0:
                if payload_weight != len(payload):
                    self.budget.left -= WIDE_COST * len(payload)
                record["payload"] = self._payload(frame, message.metadata, payload, notes)
        return record

    def _payload(self, frame: Frame, metadata: Any, payload: bytes, notes: list[str]) -> Record:
        if not self._is_plain:
            entry: Any = frame.metadata
            if entry.encryption_param or entry.encryption_keys:
                keys = [self._walk.text(key.key) for key in entry.encryption_keys]
                return {"view": "encrypted", "value": payload.hex(), "keys": keys}
            return {"view": "marker", "value": self._marker(entry.marker_type, payload, notes)}
        schema = self.schema or frame.schema
        if schema is None:
            view, value = show_plain(payload)
            return {"view": view, "value": value}
        if self._value_budget is None:
            self._value_budget = make_value_budget(self.budget)
        result = show(Content(payload, schema, key_bytes(metadata), self._value_budget))
        if result.note:
            notes.append(result.note)
        return {"view": result.view, "value": result.value}

    def _marker(self, kind: int, payload: bytes, notes: list[str]) -> Record:
        marker_type = MarkerType.DESCRIPTOR.values_by_number.get(kind)
        value: Record = {"type": marker_type.name if marker_type else kind}
        message = _MARKER_PAYLOADS.get(kind)
        if message is not None:
            try:
                escaped_before = self._walk.escaped
                value |= self._walk(message.FromString(payload))
                self.budget.left -= (self._walk.escaped - escaped_before) * ESCAPED_COST
            except DecodeError:
                notes.append("the marker's payload does not parse")
                value["payload"] = payload.hex()
        return value


def weight(payload: bytes) -> int:
    """Return the bytes that a payload counts towards `MAX_SHOWN`: twice its size if it is not all ASCII.

    Such text takes up to four bytes per character in memory, and up to six in JSON.
    """
    return len(payload) if payload.isascii() else 2 * len(payload)


def make_value_budget(budget: Budget) -> ValueBudget:
    """Return the limit of values to build from a frame's payloads; what is left of `budget` may lower it."""
    return ValueBudget(min(MAX_FRAME_VALUES, budget.left // VALUE_COST))


def charge_values(budget: Budget, value_budget: ValueBudget) -> None:
    """Charge `budget` for the values that were built within `value_budget`."""
    budget.left -= (value_budget.limit - value_budget.values) * VALUE_COST


def notes_of(frame: Frame, record: Record | None = None) -> Sequence[str]:
    """Return all notes of a frame's `record` if `_has_more_notes`, otherwise `Frame.notes`."""
    return (record or _recorder.frame(frame))["notes"] if _has_more_notes(frame) else frame.notes


_recorder: Final = Recorder()
_REQUIRED: Final = {
    number: [field.name for field in getattr(BaseCommand(), name).DESCRIPTOR.fields if field.is_required]
    for number, name in BODIES.items()
}
"""Type number -> the required fields of its command."""
_REQUIRED_OF_ENTRY: Final = [field.name for field in MessageMetadata.DESCRIPTOR.fields if field.is_required]


_HEADS: Final = {
    number: bytes((8, number, number << 3 | SIZED))
    for number in BODIES
    if number < 16 and number not in WITH_SECRETS  # below 16 the tag is one byte
}
"""Type numbers of frequent commands -> their first bytes: the field `type`, and the sub-message's tag."""


def _is_alone(frame: Frame) -> bool:
    """Return whether a frequent command consists of just its type and its sub-message, as its bytes show."""
    raw = frame.raw
    if len(raw) < 12 or raw[8:11] != _HEADS.get(frame.type):
        return False
    length = raw[11]  # up to 127 it is one byte
    return length <= 123 and raw[7] == length + 4 and raw[4:7] == b"\0\0\0"


def _has_more_notes(frame: Frame) -> bool:
    """Return whether the frame's record has notes that `Frame.notes` lacks, apart from those on its messages.

    What is nested deeper in the command's own sub-message, or in the metadata, is not searched.
    """
    base, metadata = frame.base, frame.metadata
    if base is None or frame.partial:
        return False
    body = getattr(base, BODIES.get(frame.type, "type"))
    if frame.checksum == "invalid" or frame.type not in BODIES or has_unknown(base) or has_unknown(body):
        return True
    if metadata is not None and (has_unknown(metadata) or _lacks(metadata, _REQUIRED_OF_ENTRY)):
        return True
    if frame.type in WITH_SECRETS and is_doubtful(frame):
        return True
    return _lacks(body, _REQUIRED[frame.type]) or not base.HasField(BODIES[frame.type])  # type: ignore[arg-type]


def _holds_unknown(message: Any) -> bool:
    """Return whether a message, or one in it, has unknown fields."""
    if has_unknown(message):
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else (value,):
                if _holds_unknown(part):
                    return True
    return False


def _lacks(message: Any, names: list[str]) -> bool:
    return not all(map(message.HasField, names))


def key_bytes(metadata: Any) -> bytes | None:
    """Return the key of a message as its producer set it (binary keys are sent as base64 text)."""
    if not metadata.HasField("partition_key"):
        return None
    key = metadata.partition_key
    data: bytes = key if isinstance(key, bytes) else key.encode()
    if metadata.partition_key_b64_encoded:
        try:
            return b64decode(data, validate=True)
        except ValueError:
            return data
    return data
