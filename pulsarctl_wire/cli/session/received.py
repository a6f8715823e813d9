"""Shows consumed messages: payloads alone, lines, JSON lines, or in a format like kcat's.

Text is written to a pipe as it is. On a terminal, control characters are escaped.
"""

import mmap
import re
import struct
import sys
from collections.abc import Callable
from typing import Final

from pulsarctl_wire.cli import console
from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.session.consumer import Consumer
from pulsarctl_wire.net.session.inbox import Delivery
from pulsarctl_wire.record import MAX_SHOWN, Record, charge_values, key_bytes, make_value_budget
from pulsarctl_wire.render.jsonl import json_line
from pulsarctl_wire.render.line import TimeFormatter
from pulsarctl_wire.render.text import Origin, Paint, clean
from pulsarctl_wire.views import Content, Shown, show, show_plain
from pulsarctl_wire.views.content import CUT, Json
from pulsarctl_wire.wire.fields import Walker, as_base64, as_text
from pulsarctl_wire.wire.names import id_text
from pulsarctl_wire.wire.payload import WIDE_COST, Message
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

NAMES: Final = frozenset(
    {
        *("topic", "subscription", "id", "partition", "batch_index", "key", "key_base64", "ordering_key"),
        *("properties", "event_time", "publish_time", "producer", "sequence_id", "redelivery_count"),
        *("schema_version", "index", "broker_time", "encrypted", "decrypted", "size", "view"),
        *("payload", "payload_base64"),
    }
)
"""The names of a message's record."""

_MAX_BINARY: Final = 64  # bytes of a binary payload that a line shows
_MAX_TEXT: Final = 64 * 1024  # bytes of a text payload, or characters of a key or property, that a line shows
_LARGE: Final = 1024 * 1024  # bytes; for larger payloads, free memory is checked first
_JSON_GROWTH: Final = 16  # bytes of memory that JSON may need per byte: \u0000, in a buffer that doubles
_pack_size: Final = struct.Struct(">i").pack


def message_record(delivery: Delivery[Consumer], message: Message, schema: Schema | None) -> Record:
    """Convert a consumed message to plain JSON values, which `produce --json` accepts."""
    frame, metadata = delivery.frame, message.metadata
    entry = frame.metadata
    assert entry is not None  # a delivered frame has metadata
    payload = message.payload or b""
    walker = Walker()
    text = walker.text
    record: Record = {
        "topic": delivery.consumer.topic,
        "subscription": delivery.consumer.options.subscription,
        "id": message_id(delivery, message),
        "partition": delivery.consumer.partition if delivery.consumer.partition >= 0 else None,
        "batch_index": message.index,
        "key": text(metadata.partition_key) if metadata.HasField("partition_key") else None,
        "properties": {text(pair.key): text(pair.value) for pair in metadata.properties},
        "event_time": metadata.event_time or None,
        "publish_time": entry.publish_time,
        "producer": text(entry.producer_name),
        "sequence_id": metadata.sequence_id,
        "redelivery_count": delivery.redelivered,
        "size": len(payload),
    }
    if metadata.partition_key_b64_encoded:
        record["key_base64"], record["key"] = record["key"], None
    if metadata.ordering_key:
        record["ordering_key"] = text(metadata.ordering_key)
    version = entry.schema_version
    if version:
        record["schema_version"] = int.from_bytes(version, "big") if len(version) <= 8 else version.hex()
    broker_entry = frame.broker_entry_metadata
    if broker_entry is not None:
        record["index"], record["broker_time"] = broker_entry.index, broker_entry.broker_timestamp
    if entry.encryption_keys:
        record["encrypted"] = [as_text(key.key) for key in entry.encryption_keys]
    if delivery.decryption is not None:
        record["decrypted"] = delivery.decryption._asdict()
    for note in walker.problems:
        delivery.consumer.note(delivery.id, note)
    record |= _payload_values(delivery, message, schema, payload)
    return record


def _payload_values(
    delivery: Delivery[Consumer], message: Message, schema: Schema | None, payload: bytes
) -> Record:
    if delivery.metadata.encryption_keys and delivery.decryption is None:
        return {"view": "encrypted", "payload_base64": as_base64(payload)}
    if message.metadata.null_value:
        return {"view": "null", "payload": None}
    display = _show_value(delivery, message, schema, payload)
    if display is None or display.view == "hex":
        return {"view": "hex", "payload_base64": as_base64(payload)}
    return {"view": display.view, "payload": _to_produce_value(display)}


def _show_value(
    delivery: Delivery[Consumer], message: Message, schema: Schema | None, payload: bytes
) -> Shown | None:
    """Return the view of a payload; None if it would show only a part."""
    if len(payload) > MAX_SHOWN:
        return None
    consumer = delivery.consumer
    if not payload.isascii():
        consumer.budget.left -= WIDE_COST * len(payload)
    if schema is None:
        return Shown(*show_plain(payload))
    room = make_value_budget(consumer.budget)
    display = show(Content(payload, schema, key_bytes(message.metadata), room))
    charge_values(consumer.budget, room)
    if (note := display.note) is None:
        return display
    is_complete = CUT not in note
    consumer.note(delivery.id, note if is_complete else f"{note} The bytes are shown instead.")
    return display if is_complete else None


def _to_produce_value(display: Shown) -> Json:
    """Convert a value to what `produce` accepts: key and value of a pair lose the names of their views."""
    value = display.value
    if display.view != "keyvalue" or not isinstance(value, dict):
        return value
    return {name: part.get("value") if isinstance(part, dict) else part for name, part in value.items()}


def message_id(delivery: Delivery[Consumer], message: Message) -> str:
    """Return the id of a message as text."""
    return id_text(delivery.ids, delivery.consumer.partition, message.index)


Show = Callable[[Delivery[Consumer], Message, "Schema | None"], bytes]
"""Makes the output of a message, including the line end."""


def make_shower(form: str, template: str | None, *, hexadecimal: bool) -> Show:
    """Return a function that shows messages: by `template` if given, else as `form` (text, line, json, none).

    Raises SettingsError for unknown tokens in the template.
    """
    if template is not None:
        return _by_template(template)
    if form == "json":
        return lambda delivery, message, schema: _json(message_record(delivery, message, schema))
    if form == "none":
        return lambda delivery, message, schema: b""
    is_terminal = sys.stdout.isatty()
    if form == "line":
        return _Lines(Paint(console.has_colour(sys.stdout)), hexadecimal)
    if hexadecimal:
        return lambda delivery, message, schema: (message.payload or b"").hex().encode() + b"\n"

    def text(delivery: Delivery[Consumer], message: Message, schema: Schema | None) -> bytes:
        payload = message.payload or b""
        if schema is not None:
            payload = _text(message_record(delivery, message, schema))
        if is_terminal:
            payload = clean(payload.decode("utf-8", "backslashreplace")).encode()
        return payload + b"\n"

    return text


def _json(record: Record) -> bytes:
    """Format `record` as a line of JSON. Raises MemoryError if memory is short: orjson would abort."""
    size = record["size"]
    if size > MAX_SHOWN and "payload_base64" in record:
        head = json_line({**record, "payload_base64": ""})  # the last key of the record
        return b"".join((head[:-3], record["payload_base64"].encode(), head[-3:]))
    if size > _LARGE:
        try:
            mmap.mmap(-1, _JSON_GROWTH * size).close()  # a test: fails if memory is short, but uses none
        except OSError:
            raise MemoryError from None
    return json_line(record)


def _text(record: Record) -> bytes:
    """Return the payload of a record as text: base64 if it is binary, JSON if it is another value."""
    payload = record.get("payload")
    if isinstance(payload, str):
        return payload.encode("utf-8", "surrogatepass")
    if payload is None and "payload_base64" in record:
        return str(record["payload_base64"]).encode()
    # [:-2]: without "}\n"
    return _json({"size": record["size"], "payload": payload}).partition(b'"payload":')[2][:-2]


class _Lines:
    """One line per message: time, topic, id, key, properties, payload."""

    def __init__(self, paint: Paint, hexadecimal: bool) -> None:
        self._paint = paint
        self._hexadecimal = hexadecimal
        self._clock = TimeFormatter("utc", Origin())

    def __call__(self, delivery: Delivery[Consumer], message: Message, schema: Schema | None) -> bytes:
        record = message_record(delivery, message, schema)
        paint = self._paint
        topic = clean(record["topic"].removeprefix("persistent://"))
        parts = [self._clock(record["publish_time"] * 1_000_000), paint("blue", topic), record["id"]]
        key = record["key"] if record["key"] is not None else record.get("key_base64")
        if key is not None:
            parts.append(f"key={_cut(key)}")
        parts += [f"{_cut(name)}={_cut(value)}" for name, value in record["properties"].items()]
        if record["event_time"]:
            parts.append(f"event_time={record['event_time']}")
        if record["redelivery_count"]:
            parts.append(paint("yellow", f"redelivered={record['redelivery_count']}"))
        payload = message.payload or b""
        if self._hexadecimal:
            parts.append(f"0x{payload.hex()}")
        elif record["view"] in ("hex", "encrypted"):
            parts.append(f"0x{payload[:_MAX_BINARY].hex()}{'…' if len(payload) > _MAX_BINARY else ''}")
        else:
            text = _text(record)
            parts.append(clean(text[:_MAX_TEXT].decode("utf-8", "backslashreplace")))
            if len(text) > _MAX_TEXT:
                parts[-1] += f"… ({len(payload)} bytes)"
        return (" ".join(parts) + "\n").encode()


def _cut(text: str) -> str:
    """Clean a text for a line, and cut it to `_MAX_TEXT` characters."""
    note = f"… ({len(text)} characters)" if len(text) > _MAX_TEXT else ""
    return clean(text[:_MAX_TEXT]) + note


_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\([ntr0\\])|([^%\\]+|.)", re.DOTALL)
_Part = Callable[[Delivery[Consumer], Message], bytes]


def _key(message: Message) -> bytes:
    key = message.metadata.partition_key
    return key if isinstance(key, bytes) else bytes(key, "utf-8")


def _number(value: int | None) -> bytes:
    return str(-1 if value is None else value).encode()


def _properties(message: Message) -> bytes:
    pairs = (f"{as_text(pair.key)}={as_text(pair.value)}" for pair in message.metadata.properties)
    return ",".join(pairs).encode()


_TOKENS: Final[dict[str, _Part]] = {
    "s": lambda delivery, message: message.payload or b"",
    "S": lambda delivery, message: _number(len(message.payload or b"")),
    "R": lambda delivery, message: _pack_size(len(message.payload or b"")),
    "x": lambda delivery, message: (message.payload or b"").hex().encode(),
    "k": lambda delivery, message: _key(message),
    "K": lambda delivery, message: _number(len(_key(message))),
    "T": lambda delivery, message: _number(delivery.frame.metadata and delivery.frame.metadata.publish_time),
    "h": lambda delivery, message: _properties(message),
    "t": lambda delivery, message: delivery.consumer.topic.encode(),
    "p": lambda delivery, message: _number(delivery.consumer.partition),
    "o": lambda delivery, message: _number(delivery.id[1]),
    "i": lambda delivery, message: message_id(delivery, message).encode(),
    "b": lambda delivery, message: _number(message.index),
    "r": lambda delivery, message: _number(delivery.redelivered),
    "%": lambda delivery, message: b"%",
}


def _constant(literal: bytes) -> _Part:
    return lambda delivery, message: literal


def _escape(part: _Part) -> _Part:
    """Escape the output of `part` for a terminal."""
    return lambda delivery, message: clean(
        part(delivery, message).decode("utf-8", "backslashreplace")
    ).encode()


def _by_template(template: str) -> Show:
    parts: list[_Part] = []
    is_terminal = sys.stdout.isatty()
    for token, digits, escape, text in _TOKEN.findall(template):
        if token:
            if token not in _TOKENS:
                tokens = " ".join(f"%{name}" for name in _TOKENS)
                raise SettingsError(f"-f {template}: unknown token %{token}; known tokens are {tokens}")
            parts.append(_escape(_TOKENS[token]) if is_terminal else _TOKENS[token])
        else:
            literal = (
                bytes.fromhex(digits)
                if digits
                else _ESCAPES[escape]
                if escape
                else text.encode("utf-8", "surrogateescape")
            )
            parts.append(_constant(literal))
    return lambda delivery, message, schema: b"".join([part(delivery, message) for part in parts])
