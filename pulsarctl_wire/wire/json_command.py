"""Lines of a script for a broker: JSON or hexadecimal digits in, bytes of frames out, right or wrong ones.

    {"command": "LOOKUP", "fields": {…}, …}    a record, as in docs/json.md
    {"type": "LOOKUP", "lookupTopic": {…}}     a BaseCommand in protobuf's JSON
    00000009 00000005 0812920100               bytes, whatever they are
    {"wait": 0.5}                              no bytes: a pause
    {"expect": "LOOKUP_RESPONSE"}              no bytes: go on when such a frame has come

Beside the command, both kinds of JSON say what stands behind it, and what is to be wrong:

    metadata, broker_entry_metadata       MessageMetadata, BrokerEntryMetadata; metadata alone is enough
    payload, payload_base64               the entry's payload as it is on the wire; `payload` is text, or a
                                          record's {"view": …, "value": …} where that tells all bytes
    messages                              instead of a payload, in the same two ways: a record's messages,
                                          put into a batch and compressed if the metadata says so
    checksum                              "valid" (if nothing is said), "invalid", "absent"
    force_total_size, force_command_size, force_metadata_size     to be written where the sizes stand

Values are those of `fields.Walker`, and what else protobuf's JSON allows: numbers as texts, enums by
number, names in camelCase. Nothing is filled in: a required field that is not given is not sent. What a
field's type does not allow can be sent as `unknown_field_N`: an integer (as a varint), bytes in base64, an
object of further unknown fields (a group), or a list of these. Fields are written in the order of their
numbers, as protobuf does, so that the record of a frame gives its bytes again. Not those of damaged frames
(what is wrong with them is only described), of batches and compressed payloads (the messages are right, but
codecs and the rest of their metadata may differ), or where a text was no UTF-8.
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
from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.commands import BODIES, NUMBERS, command_name
from pulsarctl_wire.wire.entry import Stamp
from pulsarctl_wire.wire.fields import REFRESH, SECRETS
from pulsarctl_wire.wire.frame import MAGIC_BROKER_ENTRY, MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsarctl_wire.wire.varint import END_OF_GROUP, FIXED_64, GROUP, VARINT, sized, tag, varint

Values = dict[str, Any]

DESCRIBING: Final = frozenset(
    {
        *("number", "time_ns", "connection", "to_broker", "packet", "client", "server", "total_size"),
        *("request", "answer", "latency_ns", "topic", "subscription", "partial", "notes"),
    }
)
"""Names at the top of a record that only describe its frame: they are passed over."""

BEHIND: Final = frozenset(
    {
        *("metadata", "broker_entry_metadata", "messages", "payload", "payload_base64", "checksum"),
        *("force_total_size", "force_command_size", "force_metadata_size"),
    }
)
"""Names of what stands behind the command, and of what is to be wrong."""

_FORMS: Final = (
    'a line has "command" (and "fields"), "type" (and a sub-message), "wait" or "expect", or is hex digits'
)
_UNKNOWN_COMMAND: Final = re.compile(r"UNKNOWN\(([0-9]{1,10})\)")
_UNKNOWN_FIELD: Final = re.compile(r"unknown_field_([0-9]{1,9})")
_REDACTED: Final = re.compile(r"\[redacted: [0-9]+ bytes\]")
_ALL_ONES: Final = 2**64 - 1
_LARGEST_FIELD: Final = 2**29 - 1
_RANGES: Final = {
    FieldDescriptor.TYPE_UINT64: (-1, _ALL_ONES),  # -1 is how records show all ones
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_ENUM: (-(2**31), 2**31 - 1),
}
_u32: Final = struct.Struct(">I").pack


@dataclass(frozen=True)
class Wait:
    """A pause of `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Expect:
    """A pause until a frame of `command` ("LOOKUP_RESPONSE", "UNKNOWN(99)") has come."""

    command: str


def parse_line(text: str) -> bytes | Wait | Expect | None:
    """What a line means: bytes to be sent, or a pause; None for an empty one and for a comment (#).

    Lone surrogates U+DC80 to U+DCFF (as the error handler "surrogateescape" makes them) are sent as the
    bytes they stand for. Raises ValueError with one line that names the cause and the way out.
    """
    text = text.strip()
    if not text or text.startswith("#"):
        return None
    if not text.startswith("{"):
        return _hex("".join(text.split()), f"neither a JSON object nor hexadecimal digits; {_FORMS}")
    try:
        return _meant(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("JSON with too many objects inside each other") from None
    except ValueError as error:
        said = str(error)  # names and values of the line are in it: keep it to one line
        raise ValueError(said if said.isprintable() else said.encode("unicode_escape").decode()) from None


def _meant(given: Values) -> bytes | Wait | Expect:
    for name in ("wait", "expect"):
        if name in given:
            return _pause(name, given)
    if "malformed" in given or "gap" in given:
        what = "a malformed stretch" if "malformed" in given else "a gap in a capture"
        raise ValueError(f"{what}, and no frame: leave it out, or give the bytes to be sent as hex digits")
    if "command" in given:
        command = _command_of_record(given)
    elif "type" in given:
        command = {name: value for name, value in given.items() if name not in BEHIND}
    else:
        raise ValueError(f"no command: {_FORMS}")
    return _frame(encode(BaseCommand.DESCRIPTOR, command), given)


def _pause(name: str, given: Values) -> Wait | Expect:
    value = given[name]
    if len(given) > 1:
        raise ValueError(f'"{name}" is a line of its own')
    if name == "expect":
        return Expect(command_name(_command_number(value)))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"wait is {_shown(value)}; a number of seconds is wanted")
    return Wait(float(value))


# -- the frame


def _frame(command: bytes, given: Values) -> bytes:
    entry = _entry(given)
    total = _size(given, "force_total_size", 4 + len(command) + len(entry))
    return b"".join((total, _size(given, "force_command_size", len(command)), command, entry))


def _size(given: Values, name: str, size: int) -> bytes:
    """`size`, or what is to stand in its place, as on the wire."""
    forced = given.get(name)
    if forced is not None:
        if isinstance(forced, bool) or not isinstance(forced, int) or not 0 <= forced < 2**32:
            raise ValueError(f"{name} is {_shown(forced)}; an integer of 0 to 4294967295 is wanted")
        size = forced
    return _u32(size)


def _entry(given: Values) -> bytes:
    """What stands behind the command: nothing, or metadata and payload with all that is before them."""
    metadata, broker_entry = (_object(given, name) for name in ("metadata", "broker_entry_metadata"))
    payload = _payload(given, metadata)
    checksum = given.get("checksum")
    if checksum not in (None, "valid", "invalid", "absent"):
        raise ValueError(f'checksum is {_shown(checksum)}; it can be "valid", "invalid" or "absent"')
    entry = b""
    if metadata is not None or payload is not None:
        head = encode(MessageMetadata.DESCRIPTOR, metadata or {}, "metadata")
        entry = b"".join((_size(given, "force_metadata_size", len(head)), head, payload or b""))
        if checksum != "absent":
            crc = crc32c(entry) ^ (checksum == "invalid")
            entry = b"".join((MAGIC_CHECKSUM, _u32(crc), entry))
    elif checksum is not None:
        raise ValueError(
            "a checksum, but no metadata: the record does not have what stood behind the command; "
            "give metadata and payload_base64, or leave the checksum out"
        )
    if broker_entry is not None:
        prefix = encode(BrokerEntryMetadata.DESCRIPTOR, broker_entry, "broker_entry_metadata")
        entry = b"".join((MAGIC_BROKER_ENTRY, _u32(len(prefix)), prefix, entry))
    return entry


# -- payloads


def _payload(given: Values, metadata: Values | None) -> bytes | None:
    """The entry's payload, as it is on the wire; None if there is none."""
    payload = _content(given, "payload")
    messages = given.get("messages")
    if payload is not None or messages is None or (messages == [] and metadata is None):
        return payload
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ValueError("messages are a list of objects, each with payload or payload_base64")
    metadata = metadata or {}
    chunks = metadata.get("num_chunks_from_msg")
    if isinstance(chunks, int) and chunks > 1:
        raise ValueError(f"one of {chunks} chunks, and records do not have a chunk's bytes; {_INSTEAD}")
    if messages and _view(messages[0]) == "encrypted":
        return _needed(messages[0], "messages.0")
    if metadata.get("num_messages_in_batch") is not None:
        if not messages:
            raise ValueError(f"a batch without messages: they could not be read; {_INSTEAD}")
        payload = b"".join(_in_batch(message, f"messages.{n}") for n, message in enumerate(messages))
    elif len(messages) > 1:
        raise ValueError(f"{len(messages)} messages, but metadata has no num_messages_in_batch; give it")
    else:
        payload = _needed(messages[0], "messages.0") if messages else b""
    return _compressed(payload, metadata.get("compression"))


_INSTEAD: Final = "give the entry's payload as payload_base64"


def _in_batch(message: Values, where: str) -> bytes:
    """A message as a part of a batch, with the metadata that its record has."""
    payload = _needed(message, where)
    properties = _object(message, "properties") or {}
    single = {
        "partition_key": message.get("key"),
        "properties": [{"key": key, "value": value} for key, value in properties.items()],
        "event_time": message.get("event_time"),
        "sequence_id": message.get("sequence_id"),
        "null_value": message.get("null_value"),
        "payload_size": len(payload),
    }
    if message.get("ordering_key") is not None:  # bytes, which records show as text here
        ordering_key = _text(message["ordering_key"], f"{where}.ordering_key")
        single["ordering_key"] = b64encode(ordering_key).decode()
    head = encode(SingleMessageMetadata.DESCRIPTOR, single, where)
    return b"".join((_u32(len(head)), head, payload))


def _compressed(payload: bytes, codec: Any) -> bytes:
    number = CompressionType.DESCRIPTOR.values_by_name.get(codec) if isinstance(codec, str) else None
    return Stamp("", number.number).compressed(MessageMetadata(), payload) if number else payload


def _view(message: Values) -> Any:
    payload = message.get("payload")
    return payload.get("view") if isinstance(payload, dict) else None


def _needed(message: Values, where: str) -> bytes:
    """The bytes of a message's payload."""
    content = _content(message, f"{where}.payload")
    if content is None:
        if not message.get("null_value") or message.get("size"):
            raise ValueError(f"{where} has no payload: it could not be read; {_INSTEAD}")
        return b""
    return content


def _content(given: Values, where: str) -> bytes | None:
    """The bytes that `payload` or `payload_base64` stand for; None if neither is there."""
    payload, encoded = given.get("payload"), given.get("payload_base64")
    if encoded is not None:
        if payload is not None:
            raise ValueError(f"{where} and {where}_base64: which of them?")
        return _base64(encoded, f"{where}_base64")
    if not isinstance(payload, dict):
        return None if payload is None else _text(payload, where)
    view, value = payload.get("view"), payload.get("value")
    if view == "text":
        return _text(value, f"{where}.value")
    if view in ("hex", "encrypted"):
        return _hex(value, f"{where}.value: no hexadecimal digits")
    if view == "json":
        return _text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), f"{where}.value")
    raise ValueError(
        f"{where} is shown as {_shown(view)}, which does not tell its bytes; "
        "decode it with --schema bytes, or give payload_base64"
    )


# -- commands


def _command_number(name: Any) -> int:
    """The type number of a command's name, or of UNKNOWN(N)."""
    known = NUMBERS.get(name.upper()) if isinstance(name, str) else None
    if known is not None:
        return known
    if name == "?":
        raise ValueError("a frame whose command was not captured: leave it out")
    unknown = _UNKNOWN_COMMAND.fullmatch(name) if isinstance(name, str) else None
    if unknown is None:
        raise ValueError(
            f"there is no command {_shown(name)}{_alike(name, NUMBERS)} (UNKNOWN(99) sends one of type 99)"
        )
    return int(unknown[1])


def _command_of_record(given: Values) -> Values:
    """The values of the BaseCommand that a record tells of."""
    if given.get("partial"):
        raise ValueError("the end of this frame was not captured: leave it out, or give it as hex digits")
    odd = sorted(given.keys() - DESCRIBING - BEHIND - {"command", "fields"})
    if odd:
        raise ValueError(
            f"unknown names {', '.join(odd)}; known are command, fields, {', '.join(sorted(BEHIND))}"
        )
    number = _command_number(given["command"])
    fields = _object(given, "fields") or {}
    body = BODIES.get(number)
    if body is None:  # the fields are those of the BaseCommand
        return fields if fields.keys() & {"type", "unknown_field_1"} else {"type": number, **fields}
    known: Any = BaseCommand.DESCRIPTOR.fields_by_name[body].message_type
    if "type" in fields and "type" not in known.fields_by_name:  # a command without its sub-message
        return fields
    return {"type": number, body: fields}


# -- messages of protobuf


def encode(descriptor: Any, values: Values, where: str = "") -> bytes:
    """The bytes of a message with these values (see above); `where` is it, for errors. Raises ValueError."""
    fields = {each.name: each for each in descriptor.fields}
    by_json_name = {each.json_name: each for each in descriptor.fields}
    pieces: list[tuple[int, bytes]] = []
    for name, value in values.items():
        place = f"{where}.{name}" if where else name
        field = fields.get(name) or by_json_name.get(name)
        if value is None:
            continue
        if field is None:
            number = _unknown_number(name)
            if number is None:
                raise ValueError(f"{place}: {descriptor.name} has no such field{_alike(name, fields)}")
            pieces.append((number, _unknown(number, value, place)))
        elif field.is_repeated:
            if not isinstance(value, list):
                raise ValueError(f"{place} is {_shown(value)}; a list is wanted")
            pieces.append((field.number, b"".join(_field(field, item, place) for item in value)))
        else:
            pieces.append((field.number, _field(field, value, place)))
    return b"".join(piece for _, piece in sorted(pieces, key=itemgetter(0)))


def _field(field: Any, value: Any, where: str) -> bytes:
    """One value of a field, with its key."""
    if field.full_name in SECRETS:
        return sized(field.number, _secret(field, value, where))
    kind = field.type
    if kind == FieldDescriptor.TYPE_MESSAGE:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {_shown(value)}; an object is wanted")
        return sized(field.number, encode(field.message_type, value, where))
    if kind in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        is_text = kind == FieldDescriptor.TYPE_STRING
        return sized(field.number, _text(value, where) if is_text else _base64(value, where))
    if kind == FieldDescriptor.TYPE_DOUBLE:
        return tag(field.number, FIXED_64) + _double(value, where)
    return tag(field.number, VARINT) + varint(_integer(field, value, where))


def _integer(field: Any, value: Any, where: str) -> int:
    """The integer that a value of a bool, an enum or an integer is sent as."""
    kind = field.type
    if kind == FieldDescriptor.TYPE_BOOL:
        if not isinstance(value, bool):
            raise ValueError(f"{where} is {_shown(value)}; true or false is wanted")
        return value
    if isinstance(value, str):
        if kind == FieldDescriptor.TYPE_ENUM:
            known = field.enum_type.values_by_name
            if value not in known:
                raise ValueError(f"{where}: there is no {_shown(value)}{_alike(value, known)}")
            number: int = known[value].number
            return number
        if re.fullmatch("-?[0-9]{1,20}", value):  # as protobuf's JSON has 64 bits
            value = int(value)
    if isinstance(value, float) and value.is_integer():  # as jq 1.6 has them
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{where} is {_shown(value)}; an integer is wanted{_else(field)}")
    least, most = _RANGES[kind]
    if not least <= value <= most:
        raise ValueError(f"{where} is {_shown(value)}; it takes {least} to {most}{_else(field)}")
    return value


def _else(field: Any) -> str:
    return f" (unknown_field_{field.number} sends anything)"


def _double(value: Any, where: str) -> bytes:
    try:
        if isinstance(value, bool):
            raise TypeError
        return struct.pack("<d", float(value))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where} is {_shown(value)}; a number is wanted") from None


def _unknown_number(name: str) -> int | None:
    """The N of unknown_field_N."""
    found = _UNKNOWN_FIELD.fullmatch(name)
    return int(found[1]) if found and int(found[1]) <= _LARGEST_FIELD else None


def _unknown(number: int, value: Any, where: str) -> bytes:
    """A field by its number, its wire type by the kind of its value."""
    if isinstance(value, list):
        return b"".join(_unknown(number, each, where) for each in value)
    if isinstance(value, str):
        return sized(number, _base64(value, where))
    if isinstance(value, dict):
        inside = []
        for name, each in value.items():
            inner = _unknown_number(name)
            if inner is None:
                raise ValueError(f"{where}.{name}: in an unknown field the names are unknown_field_N")
            inside.append(_unknown(inner, each, f"{where}.{name}"))
        return b"".join((tag(number, GROUP), *inside, tag(number, END_OF_GROUP)))
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value <= _ALL_ONES:
        raise ValueError(f"{where} is {_shown(value)}; an integer of 64 bits, base64 or an object is wanted")
    return tag(number, VARINT) + varint(value)


# -- values


def _object(given: Values, name: str) -> Values | None:
    value = given.get(name)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} is {_shown(value)}; an object is wanted")
    return value


def _text(value: Any, where: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{where} is {_shown(value)}; text is wanted")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{where} has a lone surrogate; use \\udc80 to \\udcff for bytes 80 to ff") from None


def _secret(field: Any, value: Any, where: str) -> bytes:
    """Credentials; an error does not show them."""
    if value == REFRESH.decode():
        return REFRESH
    if isinstance(value, str) and _REDACTED.fullmatch(value):
        raise ValueError(f"{where} is redacted; decode with --show-secrets, or write it there")
    is_text = field.type == FieldDescriptor.TYPE_STRING
    try:
        return _text(value, where) if is_text else _base64(value, where)
    except ValueError:
        raise ValueError(
            f"{where}: {'text' if is_text else 'base64'} is wanted; what is there is not shown"
        ) from None


def _base64(value: Any, where: str) -> bytes:
    try:
        text = value.replace("-", "+").replace("_", "/")  # protobuf's JSON allows either alphabet
        return b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (AttributeError, ValueError):
        raise ValueError(f"{where} is {_shown(value)}; base64 is wanted") from None


def _hex(value: Any, otherwise: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError):
        raise ValueError(otherwise) from None


def _shown(value: Any) -> str:
    """A value as it may stand in an error."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _alike(name: Any, names: Any) -> str:
    """A hint at a name that may have been meant, if there is one."""
    found = get_close_matches(name, names, 1) if isinstance(name, str) else []
    return f"; did you mean {found[0]}?" if found else ""
