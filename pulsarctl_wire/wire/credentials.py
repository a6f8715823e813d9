"""Where a command has credentials: found as a parser finds them, by a walk over its fields.

In whatever order, encoding and number of pieces they come. Which commands may carry some is found in the
schema: those with a field of `SECRETS`, at any depth. Where such a command has anything in it that the schema
does not know, or says things that do not fit together, nobody knows what is what: then all of it behind its
type counts as credentials.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from pulsarctl_wire.wire.commands import BODIES
from pulsarctl_wire.wire.fields import METHODS, REFRESH, SECRETS, messages_in
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand
from pulsarctl_wire.wire.varint import FIXED_32, FIXED_64, SIZED, VARINT, Field, fields

Span = tuple[int, int]
"""Bytes from an offset up to another."""

WITH_SECRETS: Final[frozenset[int]] = frozenset(
    number
    for number, body in BODIES.items()
    for message in messages_in(BaseCommand.DESCRIPTOR.fields_by_name[body].message_type)
    if any(field.full_name in SECRETS for field in message.fields)
)
"""Type numbers of the commands that may carry credentials."""

MOST_FIELDS: Final = 1_000
"""Fields of a command that are looked at for credentials; one with more is odd."""

_MOST_DEPTH: Final = 100  # messages inside each other, as protobuf has it
_WITHOUT_DATA: Final = (b"", b"none", b"tls")
"""Methods of authentication that send no credentials in the protocol."""

_WIRES: Final = {
    FieldDescriptor.TYPE_DOUBLE: FIXED_64,
    FieldDescriptor.TYPE_FLOAT: FIXED_32,
    FieldDescriptor.TYPE_STRING: SIZED,
    FieldDescriptor.TYPE_BYTES: SIZED,
    FieldDescriptor.TYPE_MESSAGE: SIZED,
}
"""Wire types of the kinds of fields that are no varints."""


class Found(NamedTuple):
    """The credentials of a command: where they are, and whether the rest of it is what the schema says."""

    spans: list[Span]
    known: bool = True


def find_secrets(data: bytes, start: int, stop: int) -> Found:
    """The credentials of the BaseCommand at `data[start:stop]`: all behind its type where it is odd."""
    found = _find(data[start:stop], 0, stop - start)
    if not found.spans:
        return found
    return Found([(start + begin, start + end) for begin, end in found.spans], found.known)


@lru_cache(maxsize=2)  # several ask of each frame
def _find(data: bytes, start: int, stop: int) -> Found:
    top = list(islice(fields(data, start, stop), MOST_FIELDS + 1))
    if len(top) > MOST_FIELDS:
        return Found([_behind_type(top[0], start, stop)], False)
    number = type_in(top)
    others = {field.number for field in top if not field.depth} - {1}
    lacks_body = bool(others) and number not in others  # a damaged type, tag or both, maybe
    if not lacks_body and not any(names_credentials(field) for field in top):
        return Found([])
    walk = _Walk(data)
    if walk.message(start, stop, BaseCommand.DESCRIPTOR, ()) and walk.fits({1, number}):
        return Found(walk.spans)
    return Found([_behind_type(top[0], start, stop)], False)


def _behind_type(first: Field, start: int, stop: int) -> Span:
    return first.stop if is_type(first) else start, stop


def _is_text(data: bytes) -> bool:
    try:
        return min(data.decode(), default=" ") >= " "  # no control characters
    except UnicodeDecodeError:
        return False


def wire_type(field: Any) -> int:
    """The wire type of a field by its descriptor; packed ones of repeated numbers aside."""
    return _WIRES.get(field.type, VARINT)


def names_credentials(field: Field) -> bool:
    """Whether a field of a BaseCommand says that credentials may be in it."""
    return not field.depth and (
        field.number in WITH_SECRETS or (is_type(field) and field.value & 0xFFFFFFFF in WITH_SECRETS)
    )


class _Walk:
    """A walk over one command that looks for credentials: their `spans`."""

    def __init__(self, data: bytes) -> None:
        self.spans: list[Span] = []
        self._data = data
        self._left = MOST_FIELDS
        self._seen: dict[tuple[int, ...], Field] = {}
        """What occurs once at most, by its path of field numbers."""
        self._owners: dict[tuple[int, ...], Any] = {}
        """The messages that may hold credentials, by their paths."""

    def message(self, at: int, stop: int, descriptor: Any, path: tuple[int, ...]) -> bool:
        """Take a message's fields; whether the schema has all of them."""
        if len(path) > _MOST_DEPTH:
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
                return False  # a parser takes the last one; who sends two means something else
            self._seen[place] = field
            value = self._data[field.at : field.stop]
            if known.full_name not in SECRETS:
                if known.type == FieldDescriptor.TYPE_STRING and not _is_text(value):
                    return False  # a wrong size, maybe: other fields are in it
            elif value not in (b"", REFRESH):
                self.spans.append((field.at, field.stop))
        return True

    def fits(self, numbers: set[int | None]) -> bool:
        """Whether the command has no fields but these, and what it says of credentials goes together.

        A method without the data that belongs to it may mean that the data stands in another field.
        """
        if not {path[0] for path in (*self._seen, *self._owners) if path} <= numbers:
            return False
        for path, descriptor in self._owners.items():
            names = descriptor.fields_by_name
            for data, method in METHODS.items():
                if data not in names or (*path, names[data].number) in self._seen:
                    continue
                said = self._seen.get((*path, names[method].number))
                if said and self._data[said.at : said.stop] not in _WITHOUT_DATA:
                    return False
        return True


def is_doubtful(frame: Frame) -> bool:
    """Whether a frame's command may carry credentials in other fields than those that are for them."""
    return not find_secrets(frame.raw, 8, min(8 + frame.command_size, len(frame.raw))).known


def command_type(data: bytes, at: int, stop: int) -> int | None:
    """The type that the command at `data[at:stop]` names, in any encoding; None where none can be read."""
    return type_in(fields(data, at, stop))


def type_in(found: Iterable[Field]) -> int | None:
    """The type that a command with these fields names; None if it names none."""
    number = None
    for field in found:
        if is_type(field):
            number = field.value & 0xFFFFFFFF
    return number


def is_type(field: Field) -> bool:
    """Whether a field of a BaseCommand is its type."""
    return field.number == 1 and field.wire == VARINT and not field.depth and not field.problem
