"""What a session is made of: steps, the changes in their frames, and the bytes that result from both.

Values that only a running session knows stand in the fields of a step as `Later`, and TOKEN in its names, so
that the same session can run again on topics of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from crc32c import crc32c

from pulsarctl_wire.wire.commands import BODIES, NUMBERS
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.varint import SIZED, VARINT, fields, sized_field, tag, varint

if TYPE_CHECKING:
    from pulsarctl_wire.wire.frame import Frame

TOKEN: Final = "00000000"
"""The part of names that each run of a session replaces by its own token, of the same length."""

MASK: Final = b"CREDENTIALS"
"""What a script has instead of credentials."""

_UNKNOWN: Final = {"ledgerId": 1, "entryId": 0}  # the message id where no message is known yet
_32_BITS: Final = 2**32 - 1


class Later(NamedTuple):
    """A value that the broker's answers will bring: the id of the message or transaction with this number.

    `kind` is "message", "txn_most" or "txn_least". `fields` are more fields of the message id.
    """

    kind: str
    number: int = 0
    fields: Mapping[str, Any] = {}


class Change(NamedTuple):
    """Something wrong in a frame.

    part     "command" or "metadata": the message in which the field at `path` is changed; "total_size",
             "command_size" or "metadata_size"; "checksum"; "frame"
    action   what is done, see `_edit`, `_resize`, `_seal` and `_damage`
    path     numbers of fields, from the outermost message on
    value    what the action needs
    """

    part: str
    action: str
    path: tuple[int, ...] = ()
    value: int | bytes = 0

    def __str__(self) -> str:
        place = ".".join(map(str, self.path))
        value = f"{len(self.value)} bytes" if isinstance(self.value, bytes) else str(self.value)
        return " ".join(filter(None, (self.part, place and f"field {place}", self.action, value)))


class Step(NamedTuple):
    """A frame to send: a command, for SEND what follows it, and what is wrong with it.

    `group`: steps of other groups may be left out without making this one wrong, except those of group 0,
    which has CONNECT.
    """

    command: str
    fields: Mapping[str, Any]
    metadata: Mapping[str, Any] | None = None
    payload: bytes = b""
    changes: tuple[Change, ...] = ()
    group: int = 0

    @property
    def signature(self) -> tuple[str, ...]:
        """Its command, and the parts and actions of its changes: what makes two steps alike."""
        return (self.command, *sorted({f"{change.part} {change.action}" for change in self.changes}))


class Session(NamedTuple):
    """What one connection sends. `mutations` are the kinds of its mutations, none if all of it is valid."""

    number: int
    steps: tuple[Step, ...]
    mutations: tuple[str, ...] = ()


class Memory:
    """What a running session knows: its token, its credentials, and what the broker has answered."""

    def __init__(self, token: str = TOKEN, credentials: Mapping[str, Any] | None = None) -> None:
        self.token = token
        self.credentials = dict(credentials or {})
        self._messages: list[dict[str, int]] = []
        self._transactions: list[tuple[int, int]] = []

    def mask(self) -> Memory:
        """Return the same memory, with its credentials masked."""
        memory = Memory(self.token, {**self.credentials, "auth_data": MASK} if self.credentials else None)
        memory._messages, memory._transactions = self._messages, self._transactions
        return memory

    def receive(self, frame: Frame) -> None:
        """Note the ids in an answer."""
        body = frame.body
        if frame.command in ("SEND_RECEIPT", "MESSAGE") and body is not None:
            message = body.message_id
            self._messages.append({"ledgerId": message.ledgerId, "entryId": message.entryId})
        elif frame.command == "NEW_TXN_RESPONSE" and body is not None:
            self._transactions.append((body.txnid_most_bits, body.txnid_least_bits))

    @property
    def has_messages(self) -> bool:
        """Whether a message is known."""
        return bool(self._messages)

    def resolve(self, value: Any) -> Any:
        """Return a value in which TOKEN and each `Later` are replaced by what they stand for."""
        if isinstance(value, str):
            return value.replace(TOKEN, self.token)
        if isinstance(value, Later):
            return self._resolve_later(value)
        if isinstance(value, Mapping):
            return {name: self.resolve(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        return value

    def _resolve_later(self, value: Later) -> Any:
        if value.kind == "message":
            message = self._messages[value.number % len(self._messages)] if self._messages else _UNKNOWN
            return {**message, **value.fields}
        most, least = (
            self._transactions[value.number % len(self._transactions)] if self._transactions else (0, 0)
        )
        return most if value.kind == "txn_most" else least


def encode_command(step: Step, memory: Memory) -> bytes:
    """Return the bytes of the command of a step, as it would be without changes."""
    values = memory.resolve(step.fields)
    if step.command == "CONNECT":
        values |= memory.credentials
    number = NUMBERS[step.command]
    command = BaseCommand(type=number, **{BODIES[number]: values})  # type: ignore[arg-type]
    return command.SerializePartialToString()


def encode_metadata(step: Step, memory: Memory) -> bytes | None:
    """Return the bytes of the metadata of a step, as they would be without changes."""
    if step.metadata is None:
        return None
    return MessageMetadata(**memory.resolve(step.metadata)).SerializePartialToString()


def encode(step: Step, memory: Memory) -> bytes:
    """Return the bytes of a step."""
    command, metadata = encode_command(step, memory), encode_metadata(step, memory)
    for change in step.changes:
        if change.part == "command":
            command = _edit(command, change.path, change)
        elif change.part == "metadata" and metadata is not None:
            metadata = _edit(metadata, change.path, change)
    entry = b""
    if metadata is not None:
        size = _resize(len(metadata), "metadata_size", step.changes)
        entry = _seal(size.to_bytes(4, "big") + metadata + step.payload, step.changes)
    total = _resize(4 + len(command) + len(entry), "total_size", step.changes)
    size = _resize(len(command), "command_size", step.changes)
    frame = total.to_bytes(4, "big") + size.to_bytes(4, "big") + command + entry
    for change in step.changes:
        if change.part == "frame":
            frame = _damage(frame, change)
    return frame


def _edit(data: bytes, path: tuple[int, ...], change: Change) -> bytes:
    """Return a message with the field at a path changed; an absent field is added at the message's end.

    Actions: "missing", "number", "bytes" (another value), "repeat" (so many times), "unknown" (an unknown
    field behind it), "wire" (another wire type).
    """
    number = path[0]
    start = value_at = stop = len(data)
    wire = VARINT
    for field in fields(data, 0, len(data)):
        if field.number == number and not field.depth and not field.problem:
            start, value_at, stop, wire = field.start, field.at, field.stop, field.wire
            break
    if len(path) > 1:
        inner = _edit(data[value_at:stop] if wire == SIZED else b"", path[1:], change)
        return data[:start] + sized_field(number, inner) + data[stop:]
    return data[:start] + _replace(data[start:stop], data[value_at:stop], number, change) + data[stop:]


def _replace(whole: bytes, content: bytes, number: int, change: Change) -> bytes:
    """Return what a change makes of a field, whose value is `content`."""
    value = change.value
    if isinstance(value, bytes):
        return whole + value if change.action == "unknown" else sized_field(number, value)
    if change.action == "missing":
        return b""
    if change.action == "repeat":
        return whole * value
    if change.action == "wire":
        return tag(number, value) + content
    return tag(number, VARINT) + varint(value)


def _resize(size: int, part: str, changes: tuple[Change, ...]) -> int:
    """Return a size as it is sent: "add" changes it by so much, "set" to another one."""
    for change in changes:
        if change.part == part and isinstance(change.value, int):
            size = change.value if change.action == "set" else size + change.value
    return size & _32_BITS


def _seal(covered: bytes, changes: tuple[Change, ...]) -> bytes:
    """Return an entry with its checksum: the right one, a "wrong" one, CRC-32 ("polynomial"), or "absent"."""
    action = next((change.action for change in changes if change.part == "checksum"), "")
    if action == "absent":
        return covered
    checksum = zlib.crc32(covered) if action == "polynomial" else crc32c(covered) ^ (action == "wrong")
    return MAGIC_CHECKSUM + checksum.to_bytes(4, "big") + covered


def _damage(frame: bytes, change: Change) -> bytes:
    """Return a damaged frame: "cut" keeps so many thousandths, "flip" flips a bit, "insert" adds bytes."""
    value = change.value
    if isinstance(value, bytes):
        middle = len(frame) // 2
        return frame[:middle] + value + frame[middle:]
    if not frame:
        return frame
    if change.action == "cut":
        return frame[: max(len(frame) * value // 1000, 1)]
    changed = bytearray(frame)
    changed[value // 8 % len(frame)] ^= 1 << value % 8
    return bytes(changed)
