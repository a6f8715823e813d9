"""Events as plain records: what `-o json` prints, filters ask and the tree shows. See docs/json.md.

A record is a dict of JSON values; its names are fixed. Everything in it is derived from the event
alone, so that a record can be made of any frame, wherever it came from.
"""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from pulsarctl_wire.views import MAX_FRAME_VALUES, Content, Room, show, show_plain
from pulsarctl_wire.wire import PulsarApi_pb2 as proto
from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.credentials import WITH_SECRETS, is_doubtful
from pulsarctl_wire.wire.ending import PULSAR, Contents, Ending
from pulsarctl_wire.wire.fields import Walker, as_base64, has_unknown
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.payload import ESCAPED_COST, WIDE_COST, Budget, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MarkerType, MessageMetadata, Schema
from pulsarctl_wire.wire.redaction import hides_entry, shown
from pulsarctl_wire.wire.varint import SIZED

Record = dict[str, Any]

RECORD_NAMES: Final = frozenset(
    (
        *("number", "time_ns", "connection", "to_broker", "packet", "client", "server"),
        *("command", "total_size", "fields", "broker_entry_metadata", "checksum", "metadata", "messages"),
        *("request", "answer", "latency_ns", "topic", "subscription", "partial", "notes"),
        *("malformed", "size", "bytes", "gap"),
    )
)
"""The names that records have at their top."""

MESSAGE_NAMES: Final = frozenset(
    (
        *("index", "key", "properties", "event_time", "size", "payload", "sequence_id"),
        *("ordering_key", "already_acked", "null_value"),
    )
)
"""The names that messages in records have."""

PAYLOAD_NAMES: Final = frozenset(("view", "value", "keys"))
"""The names that payloads of messages have."""

MAX_SHOWN: Final = 16 * 1024 * 1024
"""Bytes of messages that are shown of one frame; see `weight`."""

MAX_NOTES: Final = 100
"""Notes of a frame."""

VALUE_COST: Final = 256
"""What a value read from a payload by its schema costs of a `Budget`."""


CONNECTION_NAMES: Final = frozenset(
    (
        *("number", "time_ns", "connection", "packet", "client", "server"),
        *("end", "by_broker", "how", "end_ns", "last_ns", "syns", "joined_midway", "protocol"),
        *("frames_to_broker", "frames_to_client", "bytes_to_broker", "bytes_to_client"),
        *("malformed_to_broker", "malformed_to_client", "gaps_to_broker", "gaps_to_client"),
        *("client_version", "protocol_version", "proxy_to_broker_url"),
    )
)
"""The names that records of connections have."""

_MARKER_PAYLOADS: Final[dict[int, type[ProtoMessage]]] = {
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_REQUEST: proto.ReplicatedSubscriptionsSnapshotRequest,
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT_RESPONSE: proto.ReplicatedSubscriptionsSnapshotResponse,
    MarkerType.REPLICATED_SUBSCRIPTION_SNAPSHOT: proto.ReplicatedSubscriptionsSnapshot,
    MarkerType.REPLICATED_SUBSCRIPTION_UPDATE: proto.ReplicatedSubscriptionsUpdate,
}


HIDDEN: Final = "credentials may be in any field of this command: its texts are hidden"
_HIDDEN_ENTRY: Final = "no checksum covers the entry, and credentials may be in it: it is hidden"
"""The note of a frame whose command may carry credentials and has anything odd in it."""


class Recorder:
    """Makes records of events.

    `show_secrets` leaves credentials as they are. `schema` is what every payload is shown by, where
    the user knows better than the capture. `answers` gives each record the key `answer`. `budget` bounds
    what is opened and shown.
    """

    def __init__(
        self,
        *,
        show_secrets: bool = False,
        schema: Schema | None = None,
        answers: bool = False,
        budget: Budget | None = None,
    ) -> None:
        self.budget = budget or Budget()
        self._walk = Walker(show_secrets=show_secrets)
        self._hide = Walker(hide_all=True)
        self._show_secrets = show_secrets
        self._schema = schema
        self._answers = answers
        # of the frame that is shown: bytes of payloads that still may be, values that still may be built
        self._left = 0
        self._room: Room | None = None
        self._plain = True  # neither encrypted nor a marker

    def __call__(self, event: Event) -> Record:
        """The record of `event`."""
        if isinstance(event, Frame):
            return self.frame(event)
        record: Record = {"number": None, **_place(event)}
        if isinstance(event, Gap):
            record["gap"] = event.size
        elif isinstance(event, Malformed):
            raw = shown(event, self._show_secrets)
            record |= {"malformed": event.reason, "size": event.size, "bytes": as_base64(raw)}
        return record

    def frame(self, frame: Frame) -> Record:
        """The record of a frame."""
        notes = list(frame.notes)
        metadata = frame.metadata
        hidden = metadata is not None and not self._show_secrets and hides_entry(frame)
        if hidden:
            notes.append(_HIDDEN_ENTRY)
        walked = None if metadata is None else (self._hide if hidden else self._walk)(metadata)
        broker_entry = frame.broker_entry_metadata
        connection = frame.connection
        record: Record = {
            "number": frame.number,
            "time_ns": frame.time_ns,
            "connection": connection.index,
            "to_broker": frame.to_broker,
            "packet": frame.packet,
            "client": connection.client,
            "server": connection.server,
            "command": frame.command,
            "total_size": frame.total_size,
            "fields": self._fields(frame, notes),
            "broker_entry_metadata": None if broker_entry is None else self._walk(broker_entry),
            "checksum": frame.checksum,
            "metadata": walked,
            "messages": [] if walked is None or hidden else self._messages(frame, walked, notes),
            "request": frame.request,
            "latency_ns": frame.latency_ns,
            "topic": frame.topic,
            "subscription": frame.subscription,
            "partial": frame.partial,
            "notes": notes,
        }
        if self._walk.is_used:
            notes += self._walk.take_odd()
        if frame.checksum == "invalid":
            parts = frame.parts
            notes.append(f"CRC32-C is {parts.stored:08x}, the bytes have {parts.computed:08x}")
        if len(notes) > MAX_NOTES:
            notes[MAX_NOTES:] = [f"… and {len(notes) - MAX_NOTES} notes more"]
        if self._answers or frame.answer is not None:
            record["answer"] = frame.answer
        return record

    def notes(self, frame: Frame) -> Sequence[str]:
        """The notes that the frame's record has; quicker than the record where there are none."""
        metadata, base = frame.metadata, frame.base
        shown = metadata is not None and (self._schema or frame.schema or metadata.HasField("marker_type"))
        if shown or _is_odd(frame) or (base is not None and not base.IsInitialized()):
            notes: list[str] = self.frame(frame)["notes"]
            return notes
        self.budget.read(len(frame.raw))
        return [*frame.notes, *open_entry(frame, self.budget).notes]

    def _fields(self, frame: Frame, notes: list[str]) -> Record | None:
        base = frame.base
        if base is None:
            return None
        if _is_alone(frame):
            return self._walk(getattr(base, BODIES[frame.type]))
        present = base.ListFields()
        plain = len(present) == 2 and present[1][0].number == frame.type
        walk = self._walk if plain and frame.type not in WITH_SECRETS else self._walk_of(frame, notes)
        if plain:
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
            notes += walk.take_odd()
        return values

    def _walk_of(self, frame: Frame, notes: list[str]) -> Walker:
        """What makes values of a command that may carry credentials."""
        if self._show_secrets or not is_doubtful(frame):
            return self._walk
        notes.append(HIDDEN)
        return self._hide

    def _messages(self, frame: Frame, walked: Record, notes: list[str]) -> list[Record]:
        budget = self.budget
        budget.read(len(frame.raw))
        entry = open_entry(frame, budget)
        if entry.notes:
            notes += entry.notes
        self._left = MAX_SHOWN
        self._plain = not (
            "marker_type" in walked or "encryption_keys" in walked or walked.get("encryption_param")
        )
        records = [
            self._message(frame, message, walked if message.index is None else self._metadata(message), notes)
            for message in entry.messages
        ]
        self._settle()
        if self._left < 0:
            notes.append(f"messages are not shown beyond {MAX_SHOWN} bytes of a frame")
        return records

    def _metadata(self, message: Message) -> Record:
        """The metadata of a message in a batch, if that may still be shown."""
        self._left -= 2 * message.head
        return self._walk(message.metadata) if self._left >= 0 else {}

    def _settle(self) -> None:
        """Pay for what was built of a frame."""
        if self._room is not None:
            pay(self.budget, self._room)
            self._room = None

    def _message(self, frame: Frame, message: Message, walked: Record, notes: list[str]) -> Record:
        payload = message.payload
        properties = walked.get("properties")
        record: Record = {
            "index": message.index,
            "key": walked.get("partition_key"),
            "properties": {each.get("key", ""): each.get("value") for each in properties}
            if properties
            else {},
            "event_time": walked.get("event_time"),
            "size": None if payload is None else len(payload),
            "payload": None,
            "sequence_id": walked.get("sequence_id"),
        }
        if "ordering_key" in walked:
            record["ordering_key"] = self._walk.text(message.metadata.ordering_key)
        if message.skipped:
            record["already_acked"] = True
        if walked.get("null_value"):
            record["null_value"] = True
        elif payload is not None:
            weighs = weight(payload)
            self._left -= weighs
            if self._left >= 0:
                if weighs != len(payload):
                    self.budget.left -= WIDE_COST * len(payload)
                record["payload"] = self._payload(frame, message.metadata, payload, notes)
        return record

    def _payload(self, frame: Frame, metadata: Any, payload: bytes, notes: list[str]) -> Record:
        if not self._plain:
            entry: Any = frame.metadata
            if entry.encryption_param or entry.encryption_keys:
                keys = [self._walk.text(key.key) for key in entry.encryption_keys]
                return {"view": "encrypted", "value": payload.hex(), "keys": keys}
            return {"view": "marker", "value": self._marker(entry.marker_type, payload, notes)}
        schema = self._schema or frame.schema
        if schema is None:
            view, value = show_plain(payload)
            return {"view": view, "value": value}
        if self._room is None:
            self._room = room_of(self.budget)
        shown = show(Content(payload, schema, key_bytes(metadata), self._room))
        if shown.note:
            notes.append(shown.note)
        return {"view": shown.view, "value": shown.value}

    def _marker(self, kind: int, payload: bytes, notes: list[str]) -> Record:
        known = MarkerType.DESCRIPTOR.values_by_number.get(kind)
        value: Record = {"type": known.name if known else kind}
        message = _MARKER_PAYLOADS.get(kind)
        if message is not None:
            try:
                escaped = self._walk.escaped
                value |= self._walk(message.FromString(payload))
                self.budget.left -= (self._walk.escaped - escaped) * ESCAPED_COST
            except DecodeError:
                notes.append("the marker's payload does not parse")
                value["payload"] = payload.hex()
        return value


def weight(payload: bytes) -> int:
    """What a payload counts as of what may be shown: twice its bytes where they are not ASCII.

    Such a text takes up to four bytes a character in memory, and JSON of it up to six.
    """
    return len(payload) if payload.isascii() else 2 * len(payload)


def room_of(budget: Budget) -> Room:
    """How many values may be built of the payloads of a frame, as long as `budget` can pay for them."""
    return Room(min(MAX_FRAME_VALUES, budget.left // VALUE_COST))


def pay(budget: Budget, room: Room) -> None:
    """Take from `budget` what was built in `room`."""
    budget.left -= (room.most - room.values) * VALUE_COST


def connection_record(ending: Ending) -> Record:
    """The record of a connection whose session is a `Contents`."""
    contents, connection = ending.session, ending.connection
    assert isinstance(contents, Contents)
    counts = {
        "frames": contents.count(Frame),
        "bytes": ending.sizes,
        "malformed": contents.count(Malformed),
        "gaps": contents.count(Gap),
    }
    return {
        "number": None,
        "time_ns": ending.time_ns,
        "connection": connection.index,
        "packet": ending.packet,
        "client": connection.client,
        "server": connection.server,
        "end": ending.end,
        "by_broker": ending.by_broker,
        "how": ending.how,
        "end_ns": ending.end_ns,
        "last_ns": ending.last_ns,
        "syns": ending.syns,
        "joined_midway": ending.joined,
        "protocol": PULSAR if any(counts["frames"]) else ending.protocol,
        **{f"{name}_to_broker": each[True] for name, each in counts.items()},
        **{f"{name}_to_client": each[False] for name, each in counts.items()},
        "client_version": contents.client_version,
        "protocol_version": contents.protocol_version,
        "proxy_to_broker_url": contents.proxy_to_broker_url,
    }


def notes_of(frame: Frame) -> Sequence[str]:
    """The notes of a frame's record, but for those on what its entry holds: that is not opened for them."""
    return _recorder.frame(frame)["notes"] if _is_odd(frame) else frame.notes


_recorder: Final = Recorder()
_REQUIRED: Final = {
    number: [field.name for field in getattr(BaseCommand(), name).DESCRIPTOR.fields if field.is_required]
    for number, name in BODIES.items()
}
"""Type number -> the fields that its command needs."""
_REQUIRED_OF_ENTRY: Final = [field.name for field in MessageMetadata.DESCRIPTOR.fields if field.is_required]


def _ordinary() -> dict[int, tuple[bytes, int, Any]]:
    found = {}
    for number, names in _REQUIRED.items():
        needed = getattr(BaseCommand(), BODIES[number]).DESCRIPTOR.fields[: len(names)]
        if (
            needed
            and number < 16
            and number not in WITH_SECRETS
            and [field.name for field in needed] == names
        ):
            found[number] = bytes((8, number, number << 3 | SIZED)), len(needed), needed[-1]
    return found


_ORDINARY: Final = _ordinary()
"""Type number -> type and tag of its sub-message, how many fields that needs (its first ones), the last."""


def _is_alone(frame: Frame) -> bool:
    """Whether a frequent command surely is a type and its sub-message, and nothing else."""
    raw = frame.raw
    ordinary = _ORDINARY.get(frame.type)
    if ordinary is None or len(raw) < 12 or raw[8:11] != ordinary[0]:
        return False
    length = raw[11]
    return length <= 123 and raw[7] == length + 4 and raw[4:7] == b"\0\0\0"


def is_ordinary(frame: Frame, body: Any, present: list[Any]) -> bool:
    """Whether a frame surely has no notes but its own: a quick test that frequent commands pass.

    `body` is the command's sub-message, `present` its ListFields().
    """
    if frame.checksum == "invalid" or not _is_alone(frame):
        return False
    _, count, last = _ORDINARY[frame.type]
    if len(present) < count or present[count - 1][0] is not last or has_unknown(body):
        return False
    metadata = frame.metadata
    if metadata is None:
        return True
    # IsInitialized takes longer than all of this; a field that is not 0 or empty is there
    if not metadata.publish_time or not metadata.producer_name:
        return False
    if not metadata.sequence_id and not metadata.HasField("sequence_id"):
        return False
    return not has_unknown(metadata)


def _is_odd(frame: Frame) -> bool:
    """Whether there is more to note of a frame than it has notes."""
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


def _lacks(message: Any, names: list[str]) -> bool:
    return not all(map(message.HasField, names))


def _place(event: Event) -> Record:
    connection = event.connection
    return {
        "time_ns": event.time_ns,
        "connection": connection.index,
        "to_broker": event.to_broker,
        "packet": event.packet,
        "client": connection.client,
        "server": connection.server,
    }


def key_bytes(metadata: Any) -> bytes | None:
    """The key of a message as its producer gave it (binary keys travel as base64 text)."""
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
