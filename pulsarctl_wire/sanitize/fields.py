"""Messages of the protocol with replaced texts: the same fields, sizes and numbers.

A message is walked as a parser does. Every text and every stretch of bytes is replaced, by its kind, unless
it is known to say nothing about its user. What cannot be walked becomes noise.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.sanitize import vocabulary
from pulsarctl_wire.sanitize.names import Kind, Pseudonyms
from pulsarctl_wire.sanitize.noise import Noise
from pulsarctl_wire.wire.fields import REFRESH, SECRETS
from pulsarctl_wire.wire.varint import MAX_VARINT, SIZED, fields

_MAX_DEPTH: Final = 100
_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)

_PUBLIC: Final = frozenset({"schema_version", "connectedSince", "CommandConsumerStatsResponse.type"})
"""Fields that stay, by name."""
_KINDS: Final = {
    **dict.fromkeys(("message", "error_message"), Kind.ERRORS),
    **dict.fromkeys(("topic", "topics", "namespace", "partitions", "topics_pattern"), Kind.TOPICS),
    **dict.fromkeys(("new_topics", "deleted_topics", "segment_topic", "legacy_topic_name"), Kind.TOPICS),
    **dict.fromkeys(("added", "removed", "resolved_topic_name", "topics_hash", "current_hash"), Kind.TOPICS),
    **dict.fromkeys(("subscription", "subscription_name", "initial_subscription_name"), Kind.SUBSCRIPTIONS),
    **dict.fromkeys(("partition_key", "ordering_key"), Kind.KEYS),
    **dict.fromkeys(("brokerServiceUrl", "brokerServiceUrlTls", "broker_service_url"), Kind.ADDRESSES),
    **dict.fromkeys(("broker_service_url_tls", "proxy_to_broker_url", "address"), Kind.ADDRESSES),
    **dict.fromkeys(("assignedBrokerServiceUrl", "assignedBrokerServiceUrlTls"), Kind.ADDRESSES),
    **dict.fromkeys(("controller_broker_url", "controller_broker_url_tls"), Kind.ADDRESSES),
    **dict.fromkeys(("broker_url", "broker_url_tls"), Kind.ADDRESSES),
    **dict.fromkeys(("client_version", "server_version", "proxy_version"), Kind.VERSIONS),
    **dict.fromkeys(("auth_method_name", "original_auth_method", "encryption_algo"), Kind.VERSIONS),
    "Schema.name": Kind.SCHEMAS,
    "Schema.schema_data": Kind.SCHEMAS,
    "KeyValue.key": Kind.PROPERTIES,
    "KeyValue.value": Kind.PROPERTIES,
    "KeyLongValue.key": Kind.PROPERTIES,
    "encryption_param": Kind.PAYLOADS,
    "schema_id": Kind.PAYLOADS,
    "EncryptionKeys.value": Kind.PAYLOADS,
}
"""Fields and what is in them, by name, some with the name of their message; all others are names."""


class FieldRewriter:
    """Replaces the texts of encoded messages."""

    def __init__(self, pseudonyms: Pseudonyms, noise: Noise) -> None:
        self._pseudonyms = pseudonyms
        self._noise = noise
        self._kinds: dict[Any, Kind | None] = {}

    def rewrite(
        self, data: bytes, start: int, stop: int, descriptor: Any, out: bytearray, depth: int = 0
    ) -> None:
        """Replace the texts of the message at `data[start:stop]` in `out`, which has a copy of `data`."""
        is_property = descriptor.name == "KeyValue"
        has_numbers = False  # the value of this property is no name
        for field in fields(data, start, stop):
            if field.problem:
                first = field.at
                while first < min(field.at + MAX_VARINT, stop) and data[first] >= 0x80:
                    first += 1  # a varint that does not end
                self._put_noise(data, first, stop, out)
                return
            if field.wire != SIZED:
                continue
            field_type = None if field.depth else descriptor.fields_by_number.get(field.number)
            if field_type is None or (field_type.type not in _TEXTS and not field_type.message_type):
                if field_type is None or not field_type.is_repeated:  # otherwise packed numbers
                    self._put_noise(data, field.at, field.stop, out)
                continue
            if field_type.message_type is not None:
                if depth < _MAX_DEPTH:
                    self.rewrite(data, field.at, field.stop, field_type.message_type, out, depth + 1)
                else:
                    self._put_noise(data, field.at, field.stop, out)
                continue
            text = data[field.at : field.stop]
            if is_property and field.number == 1:
                has_numbers = vocabulary.NUMBERED.fullmatch(text) is not None
            elif has_numbers and vocabulary.VALUE.fullmatch(text):
                continue
            out[field.at : field.stop] = self._replace(field_type, text)

    def _put_noise(self, data: bytes, start: int, stop: int, out: bytearray) -> None:
        out[start:stop] = self._noise.like(data[start:stop])

    def _replace(self, field_type: Any, text: bytes) -> bytes:
        """Return what replaces the value of a field."""
        if field_type.full_name in SECRETS:
            return self._replace_credentials(text)
        kind = self._kind_of(field_type)
        if kind is None:
            self._pseudonyms.on_replaced(Kind.NAMES, text, text)
            return text
        if kind is Kind.PAYLOADS:
            return self._noise.replace(kind, text)
        if field_type.name == "schema_data":
            return self._replace_schema(text)
        return self._pseudonyms.replace(kind, text)

    def _kind_of(self, field_type: Any) -> Kind | None:
        """Return what is in a field; None if it is public."""
        if field_type not in self._kinds:
            name, full_name = field_type.name, f"{field_type.containing_type.name}.{field_type.name}"
            is_public = name in _PUBLIC or full_name in _PUBLIC
            kind = _KINDS.get(full_name) or _KINDS.get(name) or Kind.NAMES
            self._kinds[field_type] = None if is_public else kind
        return self._kinds[field_type]

    def _replace_credentials(self, text: bytes) -> bytes:
        """Return what replaces credentials. A JSON Web Token stays one, with the times in it."""
        if text in (b"", REFRESH) or Kind.CREDENTIALS in self._pseudonyms.keep:
            return text
        parts = text.split(b".")
        if len(parts) == 3:
            return b".".join(map(self._replace_part, parts))
        return self._noise.replace(Kind.CREDENTIALS, text)

    def _replace_part(self, part: bytes) -> bytes:
        """Return what replaces a part of a token."""
        try:
            claims = urlsafe_b64decode(part + b"=" * (-len(part) % 4))
            json.loads(claims)
        except ValueError:
            return self._noise.replace(Kind.CREDENTIALS, part)
        replacement = self._pseudonyms.replace_words(claims, vocabulary.CLAIMS)
        encoded = urlsafe_b64encode(replacement)[: len(part)]
        return encoded if len(encoded) == len(part) else self._noise.replace(Kind.CREDENTIALS, part)

    def _replace_schema(self, text: bytes) -> bytes:
        """Return what replaces the definition of a schema: JSON, or both definitions of a KeyValue."""
        if Kind.SCHEMAS in self._pseudonyms.keep or not text:
            return text
        if text[:1] in b'{["' or text.isalpha():
            return self._pseudonyms.replace(Kind.SCHEMAS, text)
        size = int.from_bytes(text[:4], "big")
        second = 8 + size
        if len(text) >= second and second + int.from_bytes(text[4 + size : second], "big") == len(text):
            schemas = (self._replace_schema(text[4 : 4 + size]), self._replace_schema(text[second:]))
            return b"".join((text[:4], schemas[0], text[4 + size : second], schemas[1]))
        return self._noise.like(text)
