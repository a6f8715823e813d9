"""Makes the rows of the messages table: one per message, with batches opened."""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

import orjson

from pulsarctl_wire.capture.private_keys import read_private_keys
from pulsarctl_wire.table.metadata import has_key, hash_message_key
from pulsarctl_wire.table.rows import Row, RowMaker
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.detail import JSON, RAW, MessageOptions
from pulsarctl_wire.wire.fields import as_base64, as_text, to_signed
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.framing.redaction import hides_entry
from pulsarctl_wire.wire.payload import Budget, Message, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType
from pulsarctl_wire.wire.session.counts import messages_in

_SEND: Final = NUMBERS["SEND"]
_COST: Final = 512  # bytes of memory that a row takes, besides its texts and payload
_HIDDEN_NOTE: Final = "no checksum covers the entry, and credentials may be in it: it is not opened"


class MessageRows:
    """Collects rows. `size` is about how many bytes of memory they take."""

    def __init__(self, maker: RowMaker, options: MessageOptions) -> None:
        self._maker = maker
        self._options = options
        self._budget = Budget()
        self._keys = read_private_keys(options.private_keys)
        self._rows: list[Row] = []
        self.size = 0

    def take(self) -> list[Row]:
        """Return the rows collected, and start over."""
        rows, self._rows, self.size = self._rows, [], 0
        return rows

    def add(self, events: Iterable[Event]) -> None:
        """Add the messages of each SEND and MESSAGE. Frames that are cut have none.

        The message of several chunks comes with the last one, if all were seen.
        """
        for event in events:
            if isinstance(event, Frame):
                self._add(event)

    def _add(self, frame: Frame) -> None:
        self._budget.count_input(len(frame.raw))
        metadata = frame.metadata
        if metadata is None or frame.partial or (is_chunk(metadata) and not messages_in(frame)):
            return
        common = self._make_entry_fields(frame, metadata)
        if hides_entry(frame):
            self._append(common | {"note": _HIDDEN_NOTE})
            return
        if is_chunk(metadata):
            size = metadata.uncompressed_size or metadata.total_chunk_msg_size
            self._append(common | self._make_metadata_fields(metadata) | {"size": size})
            return
        entry = open_entry(frame, self._budget, self._keys)
        note = "; ".join(entry.notes) or None
        for message in entry.messages or [Message(None, metadata, None)]:
            self._append(common | self._make_message_fields(message) | {"note": note})
            note = None  # only the first row has it, as it is about the entry

    def _append(self, row: Row) -> None:
        self._rows.append(row)
        texts = (row.get(name) or "" for name in ("key", "ordering_key", "value", "payload", "note"))
        properties: dict[str, str] = row.get("properties") or {}
        self.size += _COST + sum(map(len, texts)) + sum(len(key) + len(properties[key]) for key in properties)

    def _make_entry_fields(self, frame: Frame, metadata: Any) -> Row:
        """Return what all messages of an entry have in common."""
        row = self._maker.make_event_fields(frame) | {
            "command": frame.command,
            "topic": frame.topic,
            "subscription": frame.subscription,
            "producer": as_text(metadata.producer_name),
            "publish_time": to_signed(metadata.publish_time),
            "compression": CompressionType.Name(metadata.compression),
        }
        has = metadata.HasField
        for name in ("deliver_at_time", "marker_type", "num_chunks_from_msg", "num_messages_in_batch"):
            if has(name):
                row[name] = to_signed(getattr(metadata, name))
        if has("schema_version"):
            row["schema_version"] = as_base64(metadata.schema_version)
        if metadata.encryption_keys:
            row["encrypted"] = True
        base: Any = frame.base
        if frame.type == _SEND:
            return row | {"producer_id": to_signed(base.send.producer_id)}
        body = base.message
        return row | {
            "consumer_id": to_signed(body.consumer_id),
            "ledger_id": to_signed(body.message_id.ledgerId),
            "entry_id": to_signed(body.message_id.entryId),
            "redelivery_count": body.redelivery_count,
        }

    def _make_message_fields(self, message: Message) -> Row:
        payload = message.payload
        row = self._make_metadata_fields(message.metadata) | {
            "batch_index": message.index,
            "already_acked": True if message.skipped else None,
            "size": None if payload is None else len(payload),
        }
        if payload is not None and len(payload) <= self._options.largest:
            if self._options.values == RAW:
                row["payload"] = payload
            elif self._options.values == JSON:
                row["value"] = _to_json(payload)
        return row

    def _make_metadata_fields(self, metadata: Any) -> Row:
        """Return the fields that each message in a batch has of its own."""
        has = metadata.HasField
        row: Row = {name: to_signed(getattr(metadata, name)) for name in _NUMBERS if has(name)}
        if metadata.null_value:
            row["null_value"] = True
        if metadata.properties:
            row["properties"] = {as_text(pair.key): as_text(pair.value) for pair in metadata.properties}
        if has_key(metadata):
            row["key_hash"] = hash_message_key(metadata)
        for name, column in (("partition_key", "key"), ("ordering_key", "ordering_key")):
            if has(name):
                row[column] = self._format_key(getattr(metadata, name))
        return row

    def _format_key(self, key: str | bytes) -> str:
        if not self._options.hash_keys:
            return as_text(key)
        return blake2b(key.encode() if isinstance(key, str) else key, digest_size=16).hexdigest()


_NUMBERS: Final = ("sequence_id", "event_time")


def is_chunk(metadata: Any) -> bool:
    """Return whether an entry is a part of a message."""
    return bool(metadata.num_chunks_from_msg > 1)


def _to_json(payload: bytes) -> str | None:
    """Return a payload as JSON: as it is, or its text as a string; None if it is not UTF-8."""
    try:
        orjson.loads(payload)
        return payload.decode()
    except ValueError:
        pass
    try:
        return orjson.dumps(payload.decode()).decode()
    except UnicodeDecodeError:
        return None
