"""Text that a user types, encoded as payload bytes by a schema. The inverse of the views.

    from pulsarctl_wire.views import encode, parse_schema

    encode(b"42", parse_schema("int64"))                # Encoded(b"\\0\\0\\0\\0\\0\\0\\0*")
    encode(b'{"id": 7}', parse_schema("avro:user.avsc"))  # Encoded(b"\\x0e")

The text is JSON if the schema describes structures or numbers; dates and times need no
quotes. The output of `show`, written as JSON, encodes to a payload that is shown the same way. A
KeyValue takes ``{"key": ..., "value": ...}``, each in the form for its own schema.

The schema may come from a broker, and is not trusted; the text is the user's own. The encoders of Avro
and Protobuf are imported when the first such schema is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsarctl_wire.views import keyvalue
from pulsarctl_wire.views.content import quote
from pulsarctl_wire.views.encoding.primitives import FORMS, encode_primitive
from pulsarctl_wire.views.encoding.texts import parse_members, read_json, utf8
from pulsarctl_wire.wire import PulsarApi_pb2

_Schema = PulsarApi_pb2.Schema
_NONE = _Schema.Type.Value("None")


@dataclass(frozen=True, slots=True)
class Encoded:
    """The payload for one text, and what the message's metadata must have.

    ``key`` is for KeyValue in SEPARATED encoding: the metadata must have it in base64, with
    ``partition_key_b64_encoded``. It is None in all other cases, and for a null key (``null_partition_key``).
    ``null_value``: the value of such a KeyValue is null and the payload empty; the metadata must say so.
    """

    payload: bytes
    key: bytes | None = None
    null_value: bool = False


def encode(text: bytes, schema: PulsarApi_pb2.Schema | None = None) -> Encoded:
    """Encode ``text`` as a payload of ``schema``; unchanged if there is no schema.

    Raises ValueError if the text does not fit the schema, or the schema cannot be used for encoding. The
    error is one line that names the cause and how to fix it.
    """
    if schema is not None and schema.type == _Schema.KeyValue:
        return _encode_pair(text, schema)
    return Encoded(_encode_single(text, schema))


def _encode_single(text: bytes, schema: PulsarApi_pb2.Schema | None) -> bytes:
    kind = _NONE if schema is None else schema.type
    if schema is None or kind == _NONE:
        return text
    if kind == _Schema.String:
        utf8(text)
        return text
    if kind == _Schema.Json and not schema.schema_data:
        read_json(text, float)
        return text
    if kind in FORMS:
        return encode_primitive(utf8(text), kind)
    if kind == _Schema.Json:
        from pulsarctl_wire.views.encoding.avro import check_json

        check_json(text, schema)
        return text
    if kind == _Schema.Avro:
        from pulsarctl_wire.views.encoding.avro import encode_avro

        return encode_avro(text, schema)
    if kind in (_Schema.Protobuf, _Schema.ProtobufNative):
        from pulsarctl_wire.views.encoding.protobuf import encode_protobuf

        return encode_protobuf(text, schema)
    name = _Schema.Type.Name(kind)
    raise ValueError(f"a schema of type {name} does not define an encoding: use another, or bytes")


def _encode_pair(text: bytes, schema: PulsarApi_pb2.Schema) -> Encoded:
    compiled = keyvalue._compiled_pairs(schema)  # the view's cache of compiled schemas
    texts = parse_members(utf8(text))
    if set(texts) != {"key", "value"}:
        names = quote(", ".join(texts)) if texts else "none"
        raise ValueError(
            f'a KeyValue has the members key and value, not {names}: give {{"key": ..., "value": ...}}'
        )
    key = _encode_half("key", texts["key"], compiled.key)
    value = _encode_half("value", texts["value"], compiled.value)
    if compiled.is_separate:
        return Encoded(value or b"", key, value is None)
    return Encoded(_prefix_size(key) + _prefix_size(value))


def _encode_half(name: str, text: str, schema: PulsarApi_pb2.Schema) -> bytes | None:
    """Encode a key or value from its text as typed, which JSON schemas keep unchanged; None for null."""
    if text == "null":
        return None
    try:
        if schema.type in (_Schema.String, _NONE):
            string = read_json(text.encode(), float)
            if not isinstance(string, str):
                raise ValueError("this schema takes text: put it in double quotes")
            return string.encode()
        encoded = encode(text.encode(), schema)
    except ValueError as error:
        raise ValueError(f"the {name}: {error}") from None
    if encoded.key is not None or encoded.null_value:
        raise ValueError(
            f"the {name} is a KeyValue with a separate key, which is not possible there: use INLINE"
        )
    return encoded.payload


def _prefix_size(raw: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if raw is None else len(raw).to_bytes(4, "big") + raw
