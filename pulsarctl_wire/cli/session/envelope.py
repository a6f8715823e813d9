"""Makes the messages of `produce` from texts or JSON envelopes, with payloads encoded by a schema."""

from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any, Final

import orjson

from pulsarctl_wire.cli.session.received import NAMES
from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.views import encode
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

TAKEN: Final = frozenset(
    {
        *("payload", "payload_base64", "key", "key_base64", "properties", "event_time", "ordering_key"),
        *("deliver_at", "sequence_id"),
    }
)
"""The names of an envelope that are used; the other `NAMES`, which `consume` adds, are ignored."""


class Maker:
    """Makes messages from texts. Raises LocalProtocolError, with the message's number, for invalid texts.

    `common`, a message without payload, has the values that envelopes do not set.
    """

    def __init__(
        self, common: Outgoing, schema: Schema | None, *, envelope: bool = False, hexadecimal: bool = False
    ) -> None:
        self._common = common
        self._schema = schema
        self._envelope = envelope
        self._hexadecimal = hexadecimal
        self._plain = common == Outgoing(b"") and schema is None and not envelope and not hexadecimal
        self._count = 0

    def __call__(self, text: bytes) -> Outgoing:
        """Make a message from `text`."""
        if self._plain:
            return Outgoing(text)
        self._count += 1
        try:
            if self._envelope:
                return self._open(text)
            payload = bytes.fromhex(text.decode()) if self._hexadecimal else text
            return self._encode(self._common, payload)
        except ValueError as error:
            raise LocalProtocolError(f"message {self._count}: {error}") from None

    def _encode(self, message: Outgoing, text: bytes) -> Outgoing:
        encoded = encode(text, self._schema)
        if encoded.key is not None:
            message = replace(message, key=b64encode(encoded.key).decode(), key_is_base64=True)
        return replace(message, payload=encoded.payload, null=encoded.null_value)

    def _open(self, text: bytes) -> Outgoing:
        try:
            record = orjson.loads(text)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(record, dict):
            raise ValueError('not a JSON object such as {"payload": "hello"}')
        others = sorted(record.keys() - TAKEN - NAMES)
        if others:
            raise ValueError(f"unknown names {', '.join(others)}; known names are {', '.join(sorted(TAKEN))}")
        message = replace(self._common)  # a copy, to be changed
        if record.get("key_base64") is not None:
            _base64(record["key_base64"], "key_base64")
            message = replace(message, key=record["key_base64"], key_is_base64=True)
        elif record.get("key") is not None:
            message = replace(message, key=_text(record["key"], "key"))
        if record.get("properties"):
            message = replace(message, properties=_properties(record["properties"], message.properties))
        if record.get("ordering_key") is not None:
            message = replace(message, ordering_key=_text(record["ordering_key"], "ordering_key").encode())
        for name in ("event_time", "deliver_at", "sequence_id"):
            value = record.get(name)
            if value is not None:
                if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                    raise ValueError(f"{name} is {value!r}; it must be an integer from 0 on")
                setattr(message, name, value)
        return self._payload(message, record)

    def _payload(self, message: Outgoing, record: dict[str, Any]) -> Outgoing:
        if record.get("payload_base64") is not None:
            return replace(message, payload=_base64(record["payload_base64"], "payload_base64"))
        payload = record.get("payload")
        if payload is None:
            return replace(message, null=True)
        is_structured = self._schema is not None and self._schema.type != Schema.String
        text = payload.encode() if isinstance(payload, str) and not is_structured else orjson.dumps(payload)
        return self._encode(message, text)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}; it must be text")
    return value


def _base64(value: Any, name: str) -> bytes:
    try:
        return b64decode(_text(value, name), validate=True)
    except ValueError:
        raise ValueError(f"{name} is not base64") from None


def _properties(value: Any, common: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ValueError("properties must be an object whose values are texts")
    return tuple((dict(common) | value).items())
