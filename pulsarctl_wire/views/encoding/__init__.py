"""What a user types as payload bytes, by a schema: the way back from what the views show.

    from pulsarctl_wire.views import encode, parse_schema

    encode(b"42", parse_schema("int64"))                # Encoded(b"\\0\\0\\0\\0\\0\\0\\0*")
    encode(b'{"id": 7}', parse_schema("avro:user.avsc"))  # Encoded(b"\\x0e")

The text is JSON where the schema describes structures or numbers; dates and times may stand
without quotes. What `show` gives for the bytes, written as JSON, encodes to a payload that shows the
same. A KeyValue takes ``{"key": ..., "value": ...}``, each as its own schema wants it.

The schema may come from a broker, the text is the user's own. Libraries write Avro and Protobuf;
they are imported when the first such schema comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pulsarctl_wire.views import keyvalue
from pulsarctl_wire.views.content import quoted
from pulsarctl_wire.views.encoding.texts import members, read_json, utf8
from pulsarctl_wire.wire import PulsarApi_pb2

_Schema = PulsarApi_pb2.Schema

_PRIMITIVES: tuple[int, ...] = (
    *(_Schema.Bool, _Schema.Int8, _Schema.Int16, _Schema.Int32, _Schema.Int64, _Schema.Float, _Schema.Double),
    *(_Schema.Date, _Schema.Time, _Schema.Timestamp, _Schema.Instant),
    *(_Schema.LocalDate, _Schema.LocalTime, _Schema.LocalDateTime),
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a message carries for one text.

    Attributes:
        payload: the message's payload; empty when ``null_value``.
        key: the message key's bytes, for KeyValue in SEPARATED encoding: the metadata has them as
            base64, with ``partition_key_b64_encoded``. None in all other cases, and for a null key
            (``null_partition_key``).
        null_value: a KeyValue in SEPARATED encoding whose value is null: the metadata's field of
            that name says so, since the payload cannot.
    """

    payload: bytes
    key: bytes | None = None
    null_value: bool = False


def encode(text: bytes, schema: PulsarApi_pb2.Schema | None = None) -> Encoded:
    """``text`` as a payload of ``schema``; bytes as they are without one.

    ValueError, one line that names cause and way out, when the text does not fit the schema, or
    nothing can be written by it.
    """
    if schema is not None and schema.type == _Schema.KeyValue:
        return _pair(text, schema)
    return Encoded(_single(text, schema))


def _single(text: bytes, schema: PulsarApi_pb2.Schema | None) -> bytes:
    if schema is None or schema.type == _Schema.Type.Value("None"):
        return text
    if schema.type not in _WAYS:
        name = PulsarApi_pb2.Schema.Type.Name(schema.type)
        raise ValueError(
            f"a schema of type {name} does not say how values are written: use another, or bytes"
        )
    return _WAYS[schema.type](text, schema)


def _string(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    utf8(text)
    return text


def _json(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    if not schema.schema_data:
        read_json(text, float)
        return text
    from pulsarctl_wire.views.encoding.avro import check_json

    check_json(text, schema)
    return text


def _primitive(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    from pulsarctl_wire.views.encoding.primitives import encode_primitive

    return encode_primitive(utf8(text), schema.type)


def _avro(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    from pulsarctl_wire.views.encoding.avro import encode_avro

    return encode_avro(text, schema)


def _protobuf(text: bytes, schema: PulsarApi_pb2.Schema) -> bytes:
    from pulsarctl_wire.views.encoding.protobuf import encode_protobuf

    return encode_protobuf(text, schema)


_WAYS: dict[int, Callable[[bytes, PulsarApi_pb2.Schema], bytes]] = {
    _Schema.String: _string,
    _Schema.Json: _json,
    _Schema.Avro: _avro,
    _Schema.Protobuf: _protobuf,
    _Schema.ProtobufNative: _protobuf,
    **dict.fromkeys(_PRIMITIVES, _primitive),
}


def _pair(text: bytes, schema: PulsarApi_pb2.Schema) -> Encoded:
    compiled = keyvalue._pairs(schema)  # the view's own reading of the schema, kept for both ways
    given = members(utf8(text))
    if set(given) != {"key", "value"}:
        names = quoted(", ".join(given)) if given else "none"
        raise ValueError(
            f'a KeyValue has the members key and value, not {names}: give {{"key": ..., "value": ...}}'
        )
    key = _half("key", given["key"], compiled.key)
    value = _half("value", given["value"], compiled.value)
    if compiled.separated:
        return Encoded(value or b"", key, value is None)
    return Encoded(_counted(key) + _counted(value))


def _half(name: str, text: str, schema: PulsarApi_pb2.Schema) -> bytes | None:
    """A key or value, as typed in the object: its text is kept, for JSON schemas to pass it on."""
    if text == "null":
        return None
    try:
        if schema.type in (_Schema.String, _Schema.Type.Value("None")):
            plain = read_json(text.encode(), float)
            if not isinstance(plain, str):
                raise ValueError("this schema takes text: put it in double quotes")
            return plain.encode()
        inner = encode(text.encode(), schema)
    except ValueError as error:
        raise ValueError(f"the {name}: {error}") from None
    if inner.key is not None or inner.null_value:
        raise ValueError(
            f"the {name} is a KeyValue with a separate key, which has no place there: use INLINE"
        )
    return inner.payload


def _counted(raw: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if raw is None else len(raw).to_bytes(4, "big") + raw
