"""The lines of a script, parsed: JSON or hexadecimal digits in, the bytes of valid or invalid frames out.

    {"command": "LOOKUP", "fields": {…}, …}    a record, as in docs/json.md
    {"type": "LOOKUP", "lookupTopic": {…}}     a BaseCommand in protobuf's JSON
    00000009 00000005 0812920100               any bytes
    {"wait": 0.5}                              no bytes: pause for so many seconds
    {"expect": "LOOKUP_RESPONSE"}              no bytes: wait until such a frame has arrived

Both kinds of JSON may also have what follows the command, and what should be wrong with the frame:

    metadata, broker_entry_metadata       MessageMetadata, BrokerEntryMetadata; metadata needs no payload
    payload, payload_base64               the entry's payload as on the wire; `payload` is text, or a
                                          record's {"view": …, "value": …} if that has all its bytes
    messages                              instead of a payload: a record's messages, with payloads in the
                                          same two forms; batched and compressed as the metadata says
    checksum                              "valid" (the default), "invalid", "absent"
    force_total_size, force_command_size, force_metadata_size     written in place of the real sizes

Values are those of `fields.Walker`, and anything else that protobuf's JSON allows: numbers as strings, enums
by number, names in camelCase. There are no defaults: a missing required field is not sent. Values that a
field's type does not allow can be sent as `unknown_field_N`: an integer (as a varint), bytes in base64, an
object of further unknown fields (a group), or a list of these. Fields are written in the order of their
numbers, as protobuf does, so the record of a frame gives the same bytes again. Exceptions are damaged frames
(a record only describes the damage), batches and compressed payloads (the messages are the same, but the
compressed bytes and other fields of their metadata may differ), and texts that were not UTF-8.
"""

import json
import re
import struct
from base64 import b64decode, b64encode
from dataclasses import dataclass
from difflib import get_close_matches
from operator import itemgetter
from typing import Any, Final

from crc32c import crc32c
from google.protobuf import wrappers_pb2 as wrappers
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError

from pulsarctl_wire.wire.commands import BODIES, NUMBERS, command_name
from pulsarctl_wire.wire.entry import Stamp
from pulsarctl_wire.wire.fields import REFRESH, SECRETS
from pulsarctl_wire.wire.frame_layout import MAGIC_BROKER_ENTRY, MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsarctl_wire.wire.varint import END_OF_GROUP, FIXED_64, GROUP, VARINT, sized_field, tag, varint

Values = dict[str, Any]

_MAX_WAIT: Final = 1e9  # seconds

DESCRIPTIVE_NAMES: Final = frozenset(
    {
        *("number", "time_ns", "connection", "to_broker", "packet", "wireshark", "file"),
        *("client", "server", "total_size"),
        *("request", "answer", "resend_of", "latency_ns", "topic", "subscription", "partial", "notes"),
        *("findings", "checksum_cause"),
    }
)
"""Names at the top level of a record that only describe its frame: they are ignored."""

_EXTRA: Final = frozenset(
    {
        *("metadata", "broker_entry_metadata", "messages", "payload", "payload_base64", "checksum"),
        *("force_total_size", "force_command_size", "force_metadata_size", "decrypted"),
    }
)
"""Names for what follows the command, and for what should be wrong."""

_FORMS: Final = (
    'a line has "command" (and "fields"), "type" (and a sub-message), "wait" or "expect", or is hex digits'
)
_UNKNOWN_COMMAND: Final = re.compile(r"UNKNOWN\(([0-9]{1,10})\)")
_UNKNOWN_FIELD: Final = re.compile(r"unknown_field_([0-9]{1,9})")
_REDACTED: Final = re.compile(r"\[redacted: [0-9]+ bytes\]")
_ALL_ONES: Final = 2**64 - 1
_MAX_FIELD_NUMBER: Final = 2**29 - 1
_NUMBER_TYPES: Final[dict[int, tuple[Any, str]]] = {
    FieldDescriptor.TYPE_BOOL: (wrappers.BoolValue, "true or false"),
    FieldDescriptor.TYPE_DOUBLE: (wrappers.DoubleValue, "a number"),
    FieldDescriptor.TYPE_ENUM: (wrappers.Int32Value, "a name or a 32-bit integer"),
    FieldDescriptor.TYPE_INT32: (wrappers.Int32Value, "a 32-bit integer"),
    FieldDescriptor.TYPE_UINT32: (wrappers.UInt32Value, "an integer from 0 to 4294967295"),
    FieldDescriptor.TYPE_INT64: (wrappers.Int64Value, "a 64-bit integer"),
    FieldDescriptor.TYPE_UINT64: (wrappers.UInt64Value, f"an integer from -1 to {_ALL_ONES}"),
}
"""Field type -> the protobuf wrapper that parses its JSON, and what an error says was expected."""
_u32: Final = struct.Struct(">I").pack


@dataclass(frozen=True)
class Wait:
    """A pause of `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Expect:
    """A pause until a frame with this `command` ("LOOKUP_RESPONSE", "UNKNOWN(99)") has arrived."""

    command: str


def parse_line(text: str) -> bytes | Wait | Expect | None:
    """Parse a line: bytes to send, or a pause; None for an empty line or a comment (#).

    Lone surrogates U+DC80 to U+DCFF (from Python's error handler "surrogateescape") are sent as the
    bytes they stand for. Raises ValueError with one line that names the cause and how to fix it.
    """
    text = text.strip()
    if not text or text.startswith("#"):
        return None
    if not text.startswith("{"):
        return _decode_hex("".join(text.split()), f"neither a JSON object nor hexadecimal digits; {_FORMS}")
    try:
        return _parse_object(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except ValueError as error:
        text = str(error)  # it quotes names and values from the line, but must stay on one line
        raise ValueError(text if text.isprintable() else text.encode("unicode_escape").decode()) from None


def _parse_object(line: Values) -> bytes | Wait | Expect:
    for name in ("wait", "expect"):
        if name in line:
            return _parse_pause(name, line)
    if "malformed" in line or "gap" in line:
        part = "a malformed stretch" if "malformed" in line else "a gap in a capture"
        raise ValueError(f"{part} is not a frame: remove it, or give the bytes to send as hex digits")
    if "command" in line:
        command = _read_command(line)
    elif "type" in line:
        command = {name: value for name, value in line.items() if name not in _EXTRA}
    else:
        raise ValueError(f"no command: {_FORMS}")
    return _build_frame(encode(BaseCommand.DESCRIPTOR, command), line)


def _parse_pause(name: str, line: Values) -> Wait | Expect:
    value = line[name]
    if len(line) > 1:
        raise ValueError(f'"{name}" must be the only name on its line')
    if name == "expect":
        return Expect(command_name(_command_number(value)))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_WAIT:
        raise ValueError(f"wait is {_quote(value)}; expected a number of seconds")
    return Wait(float(value))


# -- the frame


def _build_frame(command: bytes, line: Values) -> bytes:
    entry = _build_entry(line)
    total = _encode_size(line, "force_total_size", 4 + len(command) + len(entry))
    return b"".join((total, _encode_size(line, "force_command_size", len(command)), command, entry))


def _encode_size(line: Values, name: str, size: int) -> bytes:
    """Encode `size`, or the value that the line gives to replace it, as on the wire."""
    forced = line.get(name)
    if forced is not None:
        if isinstance(forced, bool) or not isinstance(forced, int) or not 0 <= forced < 2**32:
            raise ValueError(f"{name} is {_quote(forced)}; expected an integer from 0 to 4294967295")
        size = forced
    return _u32(size)


def _build_entry(line: Values) -> bytes:
    """Build what follows the command: nothing, or metadata and payload with everything in front of them."""
    metadata, broker_entry = (_read_object(line, name) for name in ("metadata", "broker_entry_metadata"))
    payload = _build_payload(line, metadata)
    checksum = line.get("checksum")
    if checksum not in (None, "valid", "invalid", "absent"):
        raise ValueError(f'checksum is {_quote(checksum)}; expected "valid", "invalid" or "absent"')
    entry = b""
    if metadata is not None or payload is not None:
        head = encode(MessageMetadata.DESCRIPTOR, metadata or {}, "metadata")
        entry = b"".join((_encode_size(line, "force_metadata_size", len(head)), head, payload or b""))
        if checksum != "absent":
            crc = crc32c(entry) ^ (checksum == "invalid")
            entry = b"".join((MAGIC_CHECKSUM, _u32(crc), entry))
    elif checksum is not None:
        raise ValueError(
            "a checksum, but no metadata: the record does not have what followed the command; "
            "add metadata and payload_base64, or remove checksum"
        )
    if broker_entry is not None:
        prefix = encode(BrokerEntryMetadata.DESCRIPTOR, broker_entry, "broker_entry_metadata")
        entry = b"".join((MAGIC_BROKER_ENTRY, _u32(len(prefix)), prefix, entry))
    return entry


# -- payloads


def _build_payload(line: Values, metadata: Values | None) -> bytes | None:
    """Return the entry's payload, as it is on the wire; None if there is none."""
    payload = _read_content(line, "payload")
    messages = line.get("messages")
    if payload is not None or messages is None or (messages == [] and metadata is None):
        return payload
    if line.get("decrypted") is not None:
        raise ValueError(
            "its messages were decrypted, and cannot be encrypted in the same way again: decode it without "
            f"--private-key, or {_BASE64_ADVICE}"
        )
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError("messages must be a list of objects, each with payload or payload_base64")
    metadata = metadata or {}
    chunks = metadata.get("num_chunks_from_msg")
    if isinstance(chunks, int) and chunks > 1:
        raise ValueError(
            f"this is one of {chunks} chunks, whose bytes a record does not have; {_BASE64_ADVICE}"
        )
    first_payload = messages[0].get("payload") if messages else None
    if isinstance(first_payload, dict) and first_payload.get("view") == "encrypted":
        return _message_payload(messages[0], "messages.0")
    if metadata.get("num_messages_in_batch") is not None:
        if not messages:
            raise ValueError(f"a batch without messages: they could not be read; {_BASE64_ADVICE}")
        payload = b"".join(_encode_in_batch(message, f"messages.{n}") for n, message in enumerate(messages))
    elif len(messages) > 1:
        raise ValueError(f"{len(messages)} messages, but metadata has no num_messages_in_batch; add it")
    else:
        payload = _message_payload(messages[0], "messages.0") if messages else b""
    return _compress(payload, metadata.get("compression"))


_BASE64_ADVICE: Final = "give the entry's payload as payload_base64"


def _encode_in_batch(message: Values, path: str) -> bytes:
    """Encode a message as it appears in a batch, with the metadata from its record."""
    payload = _message_payload(message, path)
    properties = _read_object(message, "properties") or {}
    single = {
        "partition_key": message.get("key"),
        "properties": [{"key": key, "value": value} for key, value in properties.items()],
        "event_time": message.get("event_time"),
        "sequence_id": message.get("sequence_id"),
        "null_value": message.get("null_value"),
        "payload_size": len(payload),
    }
    if message.get("ordering_key") is not None:  # bytes, which records show as text here
        ordering_key = _encode_text(message["ordering_key"], f"{path}.ordering_key")
        single["ordering_key"] = b64encode(ordering_key).decode()
    head = encode(SingleMessageMetadata.DESCRIPTOR, single, path)
    return b"".join((_u32(len(head)), head, payload))


def _compress(payload: bytes, codec: Any) -> bytes:
    number = CompressionType.DESCRIPTOR.values_by_name.get(codec) if isinstance(codec, str) else None
    return Stamp("", number.number).compress(MessageMetadata(), payload) if number else payload


def _message_payload(message: Values, path: str) -> bytes:
    """Return the bytes of a message's payload."""
    content = _read_content(message, f"{path}.payload")
    if content is None:
        if not message.get("null_value") or message.get("size"):
            raise ValueError(f"{path} has no payload: it could not be read; {_BASE64_ADVICE}")
        return b""
    return content


def _read_content(line: Values, path: str) -> bytes | None:
    """Return the bytes that `payload` or `payload_base64` stands for; None if neither is given."""
    payload, encoded = line.get("payload"), line.get("payload_base64")
    if encoded is not None:
        if payload is not None:
            raise ValueError(f"{path} and {path}_base64 are both given: give only one")
        return _decode_base64(encoded, f"{path}_base64")
    if not isinstance(payload, dict):
        return None if payload is None else _encode_text(payload, path)
    view, value = payload.get("view"), payload.get("value")
    if view == "text":
        return _encode_text(value, f"{path}.value")
    if view in ("hex", "encrypted"):
        return _decode_hex(value, f"{path}.value: not hexadecimal digits")
    if view == "json":
        return _encode_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), f"{path}.value")
    raise ValueError(
        f"{path} is shown as {_quote(view)}, which does not give its exact bytes; "
        "decode it with --schema bytes, or give payload_base64"
    )


# -- commands


def _command_number(name: Any) -> int:
    """Return the type number for a command's name, or for UNKNOWN(N)."""
    number = NUMBERS.get(name.upper()) if isinstance(name, str) else None
    if number is not None:
        return number
    if name == "?":
        raise ValueError("the command of this frame was not captured: remove the line")
    unknown = _UNKNOWN_COMMAND.fullmatch(name) if isinstance(name, str) else None
    if unknown is None:
        raise ValueError(
            f"there is no command {_quote(name)}{_suggest(name, NUMBERS)} (UNKNOWN(99) sends one of type 99)"
        )
    return int(unknown[1])


def _read_command(line: Values) -> Values:
    """Return the values of the BaseCommand in a record."""
    if line.get("partial"):
        raise ValueError("the end of this frame was not captured: remove it, or give it as hex digits")
    unknown = sorted(line.keys() - DESCRIPTIVE_NAMES - _EXTRA - {"command", "fields"})
    if unknown:
        raise ValueError(
            f"unknown names {', '.join(unknown)}; allowed are command, fields, {', '.join(sorted(_EXTRA))}"
        )
    number = _command_number(line["command"])
    fields = _read_object(line, "fields") or {}
    body = BODIES.get(number)
    if body is None:  # the fields are those of the BaseCommand
        return fields if fields.keys() & {"type", "unknown_field_1"} else {"type": number, **fields}
    message: Any = BaseCommand.DESCRIPTOR.fields_by_name[body].message_type
    if "type" in fields and "type" not in message.fields_by_name:  # a command without its sub-message
        return fields
    return {"type": number, body: fields}


# -- messages of protobuf


def encode(descriptor: Any, values: Values, path: str = "") -> bytes:
    """Encode a message with these values (see above). `path` is its path, for errors. Raises ValueError."""
    fields = descriptor.fields_by_name
    pieces: list[tuple[int, bytes]] = []
    for name, value in values.items():
        field_path = f"{path}.{name}" if path else name
        field = fields.get(name) or descriptor.fields_by_camelcase_name.get(name)
        if value is None:
            continue
        if field is None:
            number = _unknown_number(name)
            if number is None:
                raise ValueError(f"{field_path}: {descriptor.name} has no such field{_suggest(name, fields)}")
            pieces.append((number, _encode_unknown(number, value, field_path)))
        elif field.is_repeated:
            if not isinstance(value, list):
                raise ValueError(f"{field_path} is {_quote(value)}; expected a list")
            pieces.append((field.number, b"".join(_encode_field(field, item, field_path) for item in value)))
        else:
            pieces.append((field.number, _encode_field(field, value, field_path)))
    return b"".join(piece for _, piece in sorted(pieces, key=itemgetter(0)))


def _encode_field(field: Any, value: Any, path: str) -> bytes:
    """Encode one value of a field, with its tag."""
    if field.full_name in SECRETS:
        return sized_field(field.number, _encode_secret(field, value, path))
    kind = field.type
    if kind == FieldDescriptor.TYPE_MESSAGE:
        if not isinstance(value, dict):
            raise ValueError(f"{path} is {_quote(value)}; expected an object")
        return sized_field(field.number, encode(field.message_type, value, path))
    if kind in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        is_text = kind == FieldDescriptor.TYPE_STRING
        return sized_field(
            field.number, _encode_text(value, path) if is_text else _decode_base64(value, path)
        )
    number = _parse_number(field, value, path)
    if kind == FieldDescriptor.TYPE_DOUBLE:
        return tag(field.number, FIXED_64) + struct.pack("<d", number)
    return tag(field.number, VARINT) + varint(int(number))


def _parse_number(field: Any, value: Any, path: str) -> float:
    """Parse a number, a bool or an enum of protobuf's JSON. For a uint64, -1 means 2^64-1, as in records."""
    if field.type == FieldDescriptor.TYPE_ENUM and isinstance(value, str):
        members = field.enum_type.values_by_name
        if value not in members:
            raise ValueError(f"{path}: there is no {_quote(value)}{_suggest(value, members)}")
        value = members[value].number
    wrapper, expected = _NUMBER_TYPES[field.type]
    if field.type == FieldDescriptor.TYPE_UINT64 and value in (-1, "-1"):
        value = _ALL_ONES
    try:
        number: float = ParseDict(value, wrapper()).value
    except (ParseError, TypeError, ValueError, OverflowError):
        hint = f"unknown_field_{field.number} can send any value"
        raise ValueError(f"{path} is {_quote(value)}; expected {expected} ({hint})") from None
    return number


def _unknown_number(name: str) -> int | None:
    """Return the N of unknown_field_N, or None."""
    match = _UNKNOWN_FIELD.fullmatch(name)
    return int(match[1]) if match and int(match[1]) <= _MAX_FIELD_NUMBER else None


def _encode_unknown(number: int, value: Any, path: str) -> bytes:
    """Encode an unknown field by its number. The type of its value decides the wire type."""
    if isinstance(value, list):
        return b"".join(_encode_unknown(number, item, path) for item in value)
    if isinstance(value, str):
        return sized_field(number, _decode_base64(value, path))
    if isinstance(value, dict):
        pieces = []
        for name, item in value.items():
            nested_number = _unknown_number(name)
            if nested_number is None:
                raise ValueError(f"{path}.{name}: in an unknown field the names are unknown_field_N")
            pieces.append(_encode_unknown(nested_number, item, f"{path}.{name}"))
        return b"".join((tag(number, GROUP), *pieces, tag(number, END_OF_GROUP)))
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value <= _ALL_ONES:
        raise ValueError(f"{path} is {_quote(value)}; expected a 64-bit integer, base64 or an object")
    return tag(number, VARINT) + varint(value)


# -- values


def _read_object(line: Values, name: str) -> Values | None:
    value = line.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is {_quote(value)}; expected an object")
    return value


def _encode_text(value: Any, path: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{path} is {_quote(value)}; expected text")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{path} has a lone surrogate; use \\udc80 to \\udcff for bytes 80 to ff") from None


def _encode_secret(field: Any, value: Any, path: str) -> bytes:
    """Encode credentials, from text or base64. Errors do not show the value."""
    if value == REFRESH.decode():
        return REFRESH
    if isinstance(value, str) and _REDACTED.fullmatch(value):
        raise ValueError(f"{path} is redacted; decode with --show-secrets, or fill it in")
    is_text = field.type == FieldDescriptor.TYPE_STRING
    try:
        return _encode_text(value, path) if is_text else _decode_base64(value, path)
    except ValueError:
        raise ValueError(
            f"{path}: expected {'text' if is_text else 'base64'}; its value is not shown"
        ) from None


def _decode_base64(value: Any, path: str) -> bytes:
    try:
        text = value.replace("-", "+").replace("_", "/")  # protobuf's JSON allows either alphabet
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (AttributeError, ValueError):
        raise ValueError(f"{path} is {_quote(value)}; expected base64") from None


def _decode_hex(value: Any, problem: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise ValueError(problem) from None


def _quote(value: Any) -> str:
    """Format a value for an error, cut to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _suggest(name: Any, names: Any) -> str:
    """Return a hint at a similar name that may have been meant; "" if there is none."""
    matches = get_close_matches(name, names, 1) if isinstance(name, str) else []
    return f"; did you mean {matches[0]}?" if matches else ""
