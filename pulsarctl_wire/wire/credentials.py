"""Finds the credentials in a command by walking its fields, as a parser does.

It finds them in any order, in any encoding, and in any number of pieces. The commands that may carry
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
from pulsarctl_wire.wire.fields import METHODS, REFRESH, SECRETS, messages_in
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import VARINT, Field, fields, wire_type

Span = tuple[int, int]
"""A range of bytes: start offset, and the offset after its end."""

WITH_SECRETS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    for message in messages_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)
    if any(field.full_name in SECRETS for field in message.fields)
)
"""Type numbers of the commands that may carry credentials."""

WITH_TOKENS: Final = frozenset({NUMBERS["CONNECT"], NUMBERS["AUTH_RESPONSE"]})
"""Those that carry a client's own credentials."""

MAX_FIELDS: Final = 1_000
"""Maximum number of fields of a command that are searched for credentials; a command with more is odd."""

_LONGEST_TOKEN: Final = 16_384  # bytes
_CONNECT: Final = NUMBERS["CONNECT"]
_MAX_DEPTH: Final = 100  # nesting of messages: protobuf's own limit
_WITHOUT_DATA: Final = (b"", b"none", b"tls")
"""Authentication methods that send no credentials in the protocol."""


class Found(NamedTuple):
    """The spans of a command's credentials; `known` is False if the command does not match the schema."""

    spans: list[Span]
    known: bool = True


def find_secrets(data: bytes, start: int, stop: int) -> Found:
    """The credentials of the BaseCommand at `data[start:stop]`; everything after its type if it is odd."""
    found = _find(data[start:stop], 0, stop - start)
    if not found.spans:
        return found
    return Found([(start + begin, start + end) for begin, end in found.spans], found.known)


@lru_cache(maxsize=2)  # several callers ask about the same frame
def _find(data: bytes, start: int, stop: int) -> Found:
    top = list(islice(fields(data, start, stop), MAX_FIELDS + 1))
    if len(top) > MAX_FIELDS:
        return Found([_after_type(top[0], start, stop)], False)
    if not lacks_body(top) and not any(names_credentials(field) for field in top):
        return Found([])
    walk = _Walk(data)
    if walk.message(start, stop, BaseCommand.DESCRIPTOR, ()) and walk.fits({1, type_in(top)}):
        return Found(walk.spans)
    return Found([_after_type(top[0], start, stop)], False)


def _after_type(first: Field, start: int, stop: int) -> Span:
    return first.stop if is_type(first) else start, stop


def _is_text(data: bytes) -> bool:
    try:
        return min(data.decode(), default=" ") >= " "  # no control characters
    except UnicodeDecodeError:
        return False


def names_credentials(field: Field) -> bool:
    """Whether this field of a BaseCommand shows that the command may carry credentials."""
    return not field.depth and (
        field.number in WITH_SECRETS or (is_type(field) and field.value & 0xFFFFFFFF in WITH_SECRETS)
    )


def lacks_body(top: Sequence[Field]) -> bool:
    """Whether a BaseCommand has other fields than its type says: type, tag or both may be damaged."""
    others = {field.number for field in top if not field.depth} - {1}
    return bool(others) and type_in(top) not in others


class _Walk:
    """A walk over one command that collects the `spans` of its credentials."""

    def __init__(self, data: bytes) -> None:
        self.spans: list[Span] = []
        self._data = data
        self._left = MAX_FIELDS
        self._seen: dict[tuple[int, ...], Field] = {}
        """The scalar fields seen so far, by their paths of field numbers."""
        self._owners: dict[tuple[int, ...], Any] = {}
        """The descriptors of the messages walked so far, by their paths."""

    def message(self, at: int, stop: int, descriptor: Any, path: tuple[int, ...]) -> bool:
        """Walk a message's fields. Returns False as soon as one does not match the schema."""
        if len(path) > _MAX_DEPTH:
            return False
        self._owners[path] = descriptor
        for field in fields(self._data, at, stop):
            known = descriptor.fields_by_number.get(field.number)
            self._left -= 1
            if self._left < 0 or known is None or field.problem or field.wire != wire_type(known):
                return False
            if known.enum_type is not None and field.value not in known.enum_type.values_by_number:
                return False
            place = (*path, field.number, field.start) if known.is_repeated else (*path, field.number)
            if known.message_type is not None:
                if not self.message(field.at, field.stop, known.message_type, place):
                    return False
                continue
            if place in self._seen:
                return False  # a parser takes the last one, but a normal client never sends two
            self._seen[place] = field
            value = self._data[field.at : field.stop]
            if known.full_name not in SECRETS:
                if known.type == FieldDescriptor.TYPE_STRING and not _is_text(value):
                    return False  # maybe its size is wrong, and it contains other fields
            elif value not in (b"", REFRESH):
                self.spans.append((field.at, field.stop))
        return True

    def fits(self, numbers: set[int | None]) -> bool:
        """Whether the command has only fields with these numbers, and every auth method has its data.

        If a method lacks its data, the data may be in another field.
        """
        if not {path[0] for path in (*self._seen, *self._owners) if path} <= numbers:
            return False
        for path, descriptor in self._owners.items():
            names = descriptor.fields_by_name
            for data, method in METHODS.items():
                if data not in names or (*path, names[data].number) in self._seen:
                    continue
                named = self._seen.get((*path, names[method].number))
                if named and self._data[named.at : named.stop] not in _WITHOUT_DATA:
                    return False
        return True


def is_doubtful(frame: Frame) -> bool:
    """Whether a frame's command may have credentials outside the fields that are meant for them."""
    return not find_secrets(frame.raw, 8, min(8 + frame.command_size, len(frame.raw))).known


def token_expiry(frame: Frame) -> int | None:
    """When the JSON Web Token in a CONNECT or AUTH_RESPONSE expires, ns since the epoch.

    None if it has none, or that is unknown. Nothing else in the token is read.
    """
    body: Any = frame.body
    if body is None or is_doubtful(frame):
        return None
    credentials = body.auth_data if frame.type == _CONNECT else body.response.auth_data
    parts = credentials[: _LONGEST_TOKEN + 1].split(b".")
    if len(credentials) > _LONGEST_TOKEN or len(parts) != 3:
        return None
    try:
        expiry = json.loads(urlsafe_b64decode(parts[1] + b"=="))["exp"]
        return int(expiry * 1_000_000_000) if expiry > 0 else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def type_in(found: Iterable[Field]) -> int | None:
    """The command type that these fields of a BaseCommand state; None if they have no valid type field."""
    number = None
    for field in found:
        if is_type(field):
            number = field.value & 0xFFFFFFFF
    return number


def is_type(field: Field) -> bool:
    """Whether this field of a BaseCommand is the field `type`."""
    return field.number == 1 and field.wire == VARINT and not field.depth and not field.problem
