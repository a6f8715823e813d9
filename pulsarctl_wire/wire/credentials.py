"""The credentials in a command, found by walking its fields, as a parser does.

They are found in any order, in any encoding, and in any number of pieces. The commands that may carry
credentials are those with a field of `SECRETS` at any depth. If such a command has anything that the schema
does not know, or contradicts itself, its fields cannot be trusted: then everything after its type counts as
credentials.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.fields import METHODS, REFRESH, SECRETS, descriptors_in
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import VARINT, Field, fields, wire_type

Span = tuple[int, int]
"""A range of bytes: start offset, and the offset after its end."""

WITH_SECRETS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    for message in descriptors_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)
    if any(field.full_name in SECRETS for field in message.fields)
)
"""Type numbers of the commands that may carry credentials."""

WITH_TOKENS: Final = frozenset({NUMBERS["CONNECT"], NUMBERS["AUTH_RESPONSE"]})
"""Type numbers of the commands that carry a client's own credentials."""

MAX_FIELDS: Final = 1_000
"""Maximum number of fields of a command that are searched; a command with more is doubtful."""

_MAX_TOKEN: Final = 16_384  # bytes
_CONNECT: Final = NUMBERS["CONNECT"]
_MAX_DEPTH: Final = 100  # nesting of messages: protobuf's own limit
_WITHOUT_DATA: Final = (b"", b"none", b"tls")
"""Authentication methods that send no credentials in the protocol."""


class SecretSpans(NamedTuple):
    """The spans of a command's credentials; `is_known` is False if the command does not match the schema."""

    spans: list[Span]
    is_known: bool = True


def find_secrets(data: bytes, start: int, stop: int) -> SecretSpans:
    """Find the credentials in the BaseCommand at `data[start:stop]`; in a doubtful one all after its type."""
    secrets = _find(data[start:stop], 0, stop - start)
    if not secrets.spans:
        return secrets
    return SecretSpans([(start + begin, start + end) for begin, end in secrets.spans], secrets.is_known)


@lru_cache(maxsize=2)  # several callers ask about the same frame
def _find(data: bytes, start: int, stop: int) -> SecretSpans:
    top = list(islice(fields(data, start, stop), MAX_FIELDS + 1))
    if len(top) > MAX_FIELDS:
        return SecretSpans([_after_type(top[0], start, stop)], False)
    if not lacks_body(top) and not any(names_credentials(field) for field in top):
        return SecretSpans([])
    walk = _Walk(data)
    if walk.walk(start, stop, BaseCommand.DESCRIPTOR, ()) and walk.is_consistent({1, find_type(top)}):
        return SecretSpans(walk.spans)
    return SecretSpans([_after_type(top[0], start, stop)], False)


def _after_type(first: Field, start: int, stop: int) -> Span:
    return first.stop if is_type(first) else start, stop


def _is_text(data: bytes) -> bool:
    try:
        return min(data.decode(), default=" ") >= " "  # no control characters
    except UnicodeDecodeError:
        return False


def names_credentials(field: Field) -> bool:
    """Return whether this field of a BaseCommand shows that the command may carry credentials."""
    return not field.depth and (
        field.number in WITH_SECRETS or (is_type(field) and field.value & 0xFFFFFFFF in WITH_SECRETS)
    )


def lacks_body(top: Sequence[Field]) -> bool:
    """Return whether a BaseCommand has fields besides its type, but not the sub-message of that type.

    Then its type, the tag of its sub-message, or both may be damaged.
    """
    numbers = {field.number for field in top if not field.depth} - {1}
    return bool(numbers) and find_type(top) not in numbers


class _Walk:
    """A walk over one command that collects the `spans` of its credentials."""

    def __init__(self, data: bytes) -> None:
        self.spans: list[Span] = []
        self._data = data
        self._remaining = MAX_FIELDS
        self._scalars: dict[tuple[int, ...], Field] = {}
        """The scalar fields seen so far, by their paths of field numbers."""
        self._owners: dict[tuple[int, ...], Any] = {}
        """The descriptors of the messages walked so far, by their paths."""

    def walk(self, start: int, stop: int, descriptor: Any, path: tuple[int, ...]) -> bool:
        """Walk a message's fields. Returns False as soon as one does not match the schema."""
        if len(path) > _MAX_DEPTH:
            return False
        self._owners[path] = descriptor
        for field in fields(self._data, start, stop):
            schema = descriptor.fields_by_number.get(field.number)
            self._remaining -= 1
            if self._remaining < 0 or schema is None or field.problem or field.wire != wire_type(schema):
                return False
            if schema.enum_type is not None and field.value not in schema.enum_type.values_by_number:
                return False
            key = (*path, field.number, field.start) if schema.is_repeated else (*path, field.number)
            if schema.message_type is not None:
                if not self.walk(field.at, field.stop, schema.message_type, key):
                    return False
                continue
            if key in self._scalars:
                return False  # a parser takes the last one, but a normal client never sends two
            self._scalars[key] = field
            value = self._data[field.at : field.stop]
            if schema.full_name not in SECRETS:
                if schema.type == FieldDescriptor.TYPE_STRING and not _is_text(value):
                    return False  # maybe its size is wrong, and it contains other fields
            elif value not in (b"", REFRESH):
                self.spans.append((field.at, field.stop))
        return True

    def is_consistent(self, numbers: set[int | None]) -> bool:
        """Return whether the command has only fields with these numbers, and every auth method has its data.

        If a method lacks its data, the data may be in another field.
        """
        if not {path[0] for path in (*self._scalars, *self._owners) if path} <= numbers:
            return False
        for path, descriptor in self._owners.items():
            names = descriptor.fields_by_name
            for data, method in METHODS.items():
                if data not in names or (*path, names[data].number) in self._scalars:
                    continue
                method_field = self._scalars.get((*path, names[method].number))
                if method_field and self._data[method_field.at : method_field.stop] not in _WITHOUT_DATA:
                    return False
        return True


def is_doubtful(frame: Frame) -> bool:
    """Return whether a frame's command may have credentials outside the fields for credentials."""
    return not find_secrets(frame.raw, 8, min(8 + frame.command_size, len(frame.raw))).is_known


def token_expiry(frame: Frame) -> int | None:
    """Return when the JSON Web Token in a CONNECT or AUTH_RESPONSE expires, ns since the epoch.

    None if there is no token, or its expiry is unknown. Nothing else in the token is read.
    """
    body: Any = frame.body
    if body is None or is_doubtful(frame):
        return None
    credentials = body.auth_data if frame.type == _CONNECT else body.response.auth_data
    parts = credentials[: _MAX_TOKEN + 1].split(b".")
    if len(credentials) > _MAX_TOKEN or len(parts) != 3:
        return None
    try:
        expiry = json.loads(urlsafe_b64decode(parts[1] + b"=="))["exp"]
        return int(expiry * 1_000_000_000) if expiry > 0 else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def find_type(top: Iterable[Field]) -> int | None:
    """Return the command type that these fields of a BaseCommand state; None without a valid type field."""
    number = None
    for field in top:
        if is_type(field):
            number = field.value & 0xFFFFFFFF
    return number


def is_type(field: Field) -> bool:
    """Return whether this field of a BaseCommand is the field `type`."""
    return field.number == 1 and field.wire == VARINT and not field.depth and not field.problem
