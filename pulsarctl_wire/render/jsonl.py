"""`-o json`: renders one JSON object per line. See docs/json.md."""

import json
import re
from typing import Any, Final

import orjson

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.plan import Plan, Step, command_plans, metadata_at, walk, walk_command
from pulsarctl_wire.views.values import plain_text
from pulsarctl_wire.wire.commands import NAMES, PAYLOAD_TYPES
from pulsarctl_wire.wire.fields import as_base64
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.payload import (
    MAX_MESSAGES,
    PROPERTY_COST,
    SNAPPY_FRAMING,
    WIDE_COST,
    PayloadError,
    decompress,
    message_cost,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BrokerEntryMetadata,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)

_TERMINAL: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that may affect a terminal but that JSON does not escape: DEL, C1, invisible, and bidi."""

_MAX_ENTRY: Final = 1024 * 1024
"""Bytes of an entry up to which the fast path is used: such an entry is below all limits of what is shown."""

_SLOTS: Final = (
    *("partition_key", "properties", "event_time", "sequence_id"),
    *("compression", "uncompressed_size", "num_messages_in_batch"),
    *("payload_size", "null_value", "ordering_key"),
)
"""Fields of metadata whose texts go to slots, in this order."""

_KEY, _PROPERTIES, _EVENT_TIME, _SEQUENCE, _CODEC, _UNPACKED, _COUNT, _SIZE, _NULL, _ORDERING = range(10)

_UNUSUAL: Final = {
    *("CommandMessage.ack_set", "MessageMetadata.marker_type", "MessageMetadata.num_chunks_from_msg"),
    *(f"MessageMetadata.{name}" for name in ("encryption_keys", "encryption_param", "ordering_key")),
}
"""Fields that take the slow path.

They change the meaning of an entry; and the metadata's ordering key is base64 there, but text in the message.
"""

_dump_json: Final = orjson.dumps

_MAX_TEXTS: Final = 10_000  # texts that are cached
_MAX_CACHED_TEXT: Final = 200  # bytes of a text that is cached


def json_line(record: dict[str, Any]) -> bytes:
    """Render `record` as one line of JSON, including the line end, safe to print."""
    line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE, default=str)
    if line.isascii():
        return line.replace(b"\x7f", b"\\u007f")
    if _TERMINAL.search(line.decode()) is None:
        return line
    del line  # free the memory: the line may be large, and is built again
    # There may be millions of such characters. Escaping everything that is not ASCII is fast: it runs in C.
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"


class JsonLines:
    """A renderer of events as lines of JSON, the same as `json_line` makes from a recorder's records.

    Lines of usual frames are built directly from their bytes, without records (see `plan`).
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._budget = recorder.budget
        self._plans: dict[str, Plan] = {}
        self._commands = command_plans(self._plan_of)
        self._metadata = self._plan_of(MessageMetadata.DESCRIPTOR)
        self._single = self._plan_of(SingleMessageMetadata.DESCRIPTOR)
        self._broker = self._plan_of(BrokerEntryMetadata.DESCRIPTOR)
        self._texts: dict[str | bytes | None, str] = {None: "null"}
        self._cost = 0  # of opening the entry of the current frame

    def __call__(self, event: Event) -> bytes:
        """Render the line of `event`, including the line end."""
        if isinstance(event, Frame):
            try:
                line = self._render_fast(event)
            except UnicodeDecodeError:
                line = None
            if line is not None:
                return line.encode()
        return json_line(self._recorder(event))

    # -- plans

    def _plan_of(self, descriptor: Any) -> Plan:
        plan = self._plans.get(descriptor.full_name)
        if plan is None:
            plan = self._plans[descriptor.full_name] = Plan(_join_list, has_braces=True)
            plan.fill(descriptor, self._step)
        return plan

    def _step(self, field: Any) -> Step | None:
        owner = field.containing_type.name
        if f"{owner}.{field.name}" in _UNUSUAL:
            return None
        slot = _SLOTS.index(field.name) if owner.endswith("Metadata") and field.name in _SLOTS else -1
        # of messages in a batch, only the slots are shown
        prefix = None if owner == "SingleMessageMetadata" else f',"{field.name}":'
        if field.message_type is not None:
            return Step(field, prefix, plan=self._plan_of(field.message_type), slot=slot)
        if field.enum_type is not None:
            names = {value.number: f'"{value.name}"' for value in field.enum_type.values}
            return Step(field, prefix, format_number=names.get, slot=slot)
        if field.type == field.TYPE_BOOL:
            return Step(field, prefix, format_number=("false", "true").__getitem__, slot=slot)
        is_text = field.type == field.TYPE_STRING or field.name == "ordering_key"
        return Step(field, prefix, format_sized=self._quote if is_text else _base64, slot=slot)

    def _quote(self, text: str | bytes | None) -> str:
        """Render a text as a JSON string."""
        quoted = self._texts.get(text)
        if quoted is None:
            assert text is not None
            quoted = _dump_json(text if isinstance(text, str) else text.decode()).decode()
            if len(text) <= _MAX_CACHED_TEXT:
                if len(self._texts) >= _MAX_TEXTS:
                    self._texts = {None: "null"}
                self._texts[text] = quoted
        return quoted

    # -- frames

    def _render_fast(self, frame: Frame) -> str | None:
        """Render the line of a frame; None if it needs the slow path."""
        plan = self._commands.get(frame.type)
        if plan is None or frame.notes or frame.partial or frame.base is None or frame.resend_of is not None:
            return None
        if frame.findings:
            return None
        connection, has_entry = frame.connection, frame.type in PAYLOAD_TYPES
        file, number = self._recorder.find_packet(frame.packet)
        place = "" if number is None else f'"wireshark":{number},'
        if file is not None:
            place += f'"file":{self._quote(file)},'
        parts = [
            f'{{"number":{frame.number},"time_ns":{_number(frame.time_ns)},"connection":{connection.index},'
            f'"to_broker":{"true" if frame.to_broker else "false"},"packet":{frame.packet},'
            f'{place}"client":{self._quote(connection.client)},"server":{self._quote(connection.server)},'
            f'"command":"{NAMES[frame.type]}","total_size":{len(frame.raw) - 4},"fields":'
        ]
        if not walk_command(frame, plan, parts):
            return None
        if not has_entry:
            parts.append(',"broker_entry_metadata":null,"checksum":null,"metadata":null,"messages":[')
        elif not self._add_entry(frame, parts):
            return None
        parts.append(
            f'],"request":{_number(frame.request)},"latency_ns":{_number(frame.latency_ns)},'
            f'"topic":{self._quote(frame.topic)},"subscription":{self._quote(frame.subscription)},'
            '"partial":false,"notes":[]'
        )
        if self._recorder.answers or frame.answer is not None:
            parts.append(f',"answer":{_number(frame.answer)}')
        parts.append("}\n")
        line = "".join(parts)
        if line.isascii():
            if "\x7f" in line:
                line = line.replace("\x7f", "\\u007f")
        elif _TERMINAL.search(line) is not None:
            return None
        if has_entry:
            if self._cost > self._budget.left:
                return None
            self._budget.count_input(len(frame.raw))
            self._budget.left -= self._cost
        return line

    def _add_entry(self, frame: Frame, parts: list[str]) -> bool:
        """Add a frame's entry to `parts`; returns False if it needs the slow path."""
        start = metadata_at(frame)
        if start < 0 or frame.schema is not None or self._recorder.schema is not None:
            return False
        raw = frame.raw
        # broker entry metadata comes 6 bytes (magic and size) after the command, and 10 (magic, CRC32-C and
        # METADATA_SIZE) before the metadata
        parts.append(',"broker_entry_metadata":' if frame.broker_entry else ',"broker_entry_metadata":null')
        if frame.broker_entry and not walk(
            raw, 14 + (raw[6] << 8 | raw[7]), start - 10, self._broker, parts, []
        ):
            return False
        parts.append(',"checksum":"valid","metadata":')
        slots = [""] * len(_SLOTS)
        if not walk(raw, start, frame.payload_at, self._metadata, parts, slots):
            return False
        parts.append(',"messages":[')
        self._cost = 0
        payload = self._decompress(slots[_CODEC], slots[_UNPACKED], raw[frame.payload_at :])
        if payload is None or len(payload) > _MAX_ENTRY:
            return False
        if slots[_COUNT]:
            return self._add_batch(int(slots[_COUNT]), payload, parts)
        self._add_message(None, slots, payload, parts)
        return True

    def _decompress(self, codec: str, unpacked: str, payload: bytes) -> bytes | None:
        """Decompress a payload; None: take the slow path. `codec` and `unpacked` (a size): from metadata."""
        if codec in ("", '"NONE"'):
            return payload
        size = int(unpacked or 0)
        if size > min(_MAX_ENTRY, self._budget.left) or payload.startswith(SNAPPY_FRAMING):
            return None
        self._cost = size
        try:
            return decompress(CompressionType.Value(codec[1:-1]), payload, size)
        except (PayloadError, MemoryError):
            return None

    def _add_batch(self, count: int, payload: bytes, parts: list[str]) -> bool:
        """Add the messages of a batch to `parts`; returns False if they need the slow path."""
        if count > MAX_MESSAGES:
            return False
        pos, index, size = 0, 0, len(payload)
        while size - pos > 4:
            start = pos + 4
            stop = start + int.from_bytes(payload[pos:start], "big")
            slots = [""] * len(_SLOTS)
            if stop > size or not walk(payload, start, stop, self._single, [], slots):
                return False
            pos = stop + int(slots[_SIZE])
            if not stop <= pos <= size or self._cost > self._budget.left:
                return False
            self._cost += message_cost(stop - start)
            if index:
                parts.append(",")
            self._add_message(index, slots, payload[stop:pos], parts)
            index += 1
        return pos == size and index == count

    def _add_message(self, index: int | None, slots: list[str], payload: bytes, parts: list[str]) -> None:
        """Add a message to `parts`; `slots` are the texts of its metadata."""
        properties, shown_payload, extra = "{}", "null", ""
        if slots[_PROPERTIES]:
            pairs = orjson.loads(slots[_PROPERTIES])
            properties = orjson.dumps({pair["key"]: pair["value"] for pair in pairs}).decode()
            if index is not None:
                self._cost += PROPERTY_COST * len(pairs)
        if slots[_ORDERING]:
            extra = f',"ordering_key":{slots[_ORDERING]}'
        if slots[_NULL] == "true":
            extra += ',"null_value":true'
        else:
            shown_payload = _payload_json(payload)
            if not payload.isascii():
                self._cost += WIDE_COST * len(payload)
        parts.append(
            f'{{"index":{_number(index)},"key":{slots[_KEY] or "null"},"properties":{properties},'
            f'"event_time":{slots[_EVENT_TIME] or "null"},"size":{len(payload)},"payload":{shown_payload},'
            f'"sequence_id":{slots[_SEQUENCE] or "null"}{extra}}}'
        )


def _payload_json(payload: bytes) -> str:
    """Render a payload without schema, as by `show_plain`."""
    try:
        string = _dump_json(payload.decode())
    except UnicodeDecodeError:
        string = b""
    # only the two quotes were added: nothing was escaped, so it has no control characters
    if len(string) == len(payload) + 2 or plain_text(payload) is not None:
        return f'{{"view":"text","value":{string.decode()}}}'
    return f'{{"view":"hex","value":"{payload.hex()}"}}'


def _join_list(texts: list[str]) -> str:
    return f"[{','.join(texts)}]"


def _base64(data: bytes) -> str:
    return f'"{as_base64(data)}"'


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)
