"""Protobuf messages as plain values, by walking their descriptors: a new field needs no code here.

Names and nesting are those of PulsarApi.proto. Enums become their names and bytes become base64. The uint64
2^64-1 (which Pulsar sends for -1) becomes -1; all other integers are unchanged. Fields that the schema does
not have appear as `unknown_field_N`. Secrets are replaced by their sizes.
"""

from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.unknown_fields import UnknownFieldSet

SECRETS: Final = frozenset(
    f"pulsar.proto.{name}"
    for name in (
        "CommandConnect.auth_data",
        "CommandConnect.original_auth_data",
        "CommandLookupTopic.original_auth_data",
        "CommandPartitionedTopicMetadata.original_auth_data",
        "AuthData.auth_data",
    )
)
"""Full names of the fields that hold credentials."""

METHODS: Final = {"auth_data": "auth_method_name", "original_auth_data": "original_auth_method"}
"""Field with credentials -> the field of the same message that names the authentication method."""

REFRESH: Final = b"PulsarAuthRefresh"
"""What AUTH_CHALLENGE carries when the broker asks for new credentials. It is not a secret."""

_ALL_ONES: Final = 2**64 - 1
_MAX_LISTED_BYTES: Final = 256  # up to this size listing all unknown fields is fast enough, at 1 µs each

Convert = Callable[[Any], Any]
Plan = dict[Any, tuple[str, Convert | None, bool]]
"""A message's field descriptors -> (name, conversion or None, whether it is repeated)."""


def as_text(value: str | bytes) -> str:
    r"""Return a protobuf string as text. If not UTF-8, it arrives as bytes; invalid bytes become \xNN."""
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _escape(value)


def _escape(value: bytes) -> str:
    """Do the same as `value.decode(errors="backslashreplace")`, but five times as fast."""
    # an invalid byte becomes a surrogate, and then \\udcNN; real backslashes are replaced in the meantime
    hidden = value.replace(b"\0", b"\0\2").replace(b"\\", b"\0\1")
    surrogates = hidden.decode(errors="surrogateescape").encode(errors="backslashreplace")
    escaped = surrogates.replace(b"\\udc", b"\\x")
    return escaped.replace(b"\0\1", b"\\").replace(b"\0\2", b"\0").decode()


def as_base64(value: bytes) -> str:
    """Encode bytes as base64 text."""
    return b64encode(value).decode()


def to_signed(value: int) -> int:
    """Convert a uint64 to an int64: Pulsar sends -1 as 2^64-1."""
    return value - 2**64 if value >= 2**63 else value


def _read_minus_one(value: int) -> int:
    return -1 if value == _ALL_ONES else value


def _redact(value: str | bytes) -> str:
    data = value if isinstance(value, bytes) else value.encode()
    return as_text(data) if data == REFRESH or not data else f"[redacted: {len(data)} bytes]"


MAX_ITEMS: Final = 250_000
"""Items of repeated fields, and unknown fields, that are walked per frame."""

MAX_ESCAPED: Final = 1024 * 1024
"""Bytes of texts that are not UTF-8 shown per frame: each byte may take sixteen, as four characters."""

MAX_PROBLEMS: Final = 1_000
"""Problems listed per frame."""


def _redact_unknown(value: Any) -> str:
    """Return the replacement for an unknown field's value in a message that may hold credentials."""
    return f"[redacted: {len(value)} bytes]" if isinstance(value, bytes) else "[redacted]"


class Walker:
    """A converter of messages to dicts of plain values; it redacts secrets unless `show_secrets`.

    With `hide_all` it redacts all texts, all bytes, and all unknown fields.

    `problems` collects what is wrong with the messages walked: missing required fields, unknown fields, items
    left out because there are more than `MAX_ITEMS`, and texts that are not UTF-8, cut because they have
    more than `MAX_ESCAPED` bytes. The caller must call `take_problems` once per frame; until then
    `escaped` counts the bytes of such texts.
    """

    def __init__(self, *, show_secrets: bool = False, hide_all: bool = False) -> None:
        self.problems: list[str] = []
        self.escaped = 0
        self._items_left = MAX_ITEMS
        self._show_secrets = show_secrets
        self._hide_all = hide_all
        self._plans: dict[Any, tuple[Plan, frozenset[str]]] = {}

    def __call__(self, message: ProtoMessage) -> dict[str, Any]:
        """Return the fields present in `message`, in the order of their numbers."""
        plan, required = self._plans.get(message.__class__) or self._make_plan(message)
        values: dict[str, Any] = {}
        for field, value in message.ListFields():
            name, convert, repeated = plan[field]
            if repeated:
                value = self._limit(value)
                values[name] = list(value) if convert is None else [convert(item) for item in value]
            else:
                values[name] = value if convert is None else convert(value)
        if not values.keys() >= required:
            missing = ", ".join(sorted(required.difference(values)))
            self._note(f"{message.DESCRIPTOR.name} lacks {missing}")
        if len(UnknownFieldSet(message)):  # type: ignore[no-untyped-call, unused-ignore]
            for number, data in self._limit(unknown_fields(message)):
                _add_unknown(values, number, _redact_unknown(data) if self._hide_all else data)
                self._note(f"{message.DESCRIPTOR.name} has the unknown field {number}")
        return values

    @property
    def is_used(self) -> bool:
        """Whether `take_problems` has anything to return or to reset."""
        return bool(self.problems) or self._items_left != MAX_ITEMS or self.escaped > 0

    def take_problems(self) -> list[str]:
        """Return the problems since the last call, and reset the limits for the next frame."""
        problems, self.problems = self.problems, []
        if len(problems) > MAX_PROBLEMS:
            problems[-1] = "… and more of this kind"
        self._items_left = MAX_ITEMS
        self.escaped = 0
        return problems

    def text(self, value: Any) -> str:
        """Return a protobuf string as text. If not UTF-8, it is cut to what `MAX_ESCAPED` still allows."""
        if isinstance(value, str):
            return value
        try:
            text: str = value.decode()
        except UnicodeDecodeError:
            room = MAX_ESCAPED - self.escaped
            if len(value) > room:
                self._note(f"texts that are no UTF-8 are cut after {MAX_ESCAPED} bytes of a frame")
                value = value[:room]
            self.escaped += len(value)
            text = as_text(value)
        return text

    def _note(self, text: str) -> None:
        if text not in self.problems[-1:] and len(self.problems) <= MAX_PROBLEMS:
            self.problems.append(text)

    def _limit(self, items: Any) -> Any:
        """Return `items`, or as many of them as `MAX_ITEMS` still allows."""
        count = len(items)
        if count > self._items_left:
            self._note(f"only {self._items_left} of {count} items are shown")
            items, count = items[: self._items_left], self._items_left
        self._items_left -= count
        return items

    def _make_plan(self, message: ProtoMessage) -> tuple[Plan, frozenset[str]]:
        descriptor: Any = message.DESCRIPTOR
        plan = {field: (field.name, self._convert(field), field.is_repeated) for field in descriptor.fields}
        required = frozenset(field.name for field in descriptor.fields if field.is_required)
        self._plans[message.__class__] = plan, required
        return plan, required

    def _convert(self, field: Any) -> Convert | None:
        is_hidden = self._hide_all and field.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
        if is_hidden or (field.full_name in SECRETS and not self._show_secrets):
            return _redact
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            return self.__call__
        if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
            return {value.number: value.name for value in field.enum_type.values}.__getitem__
        if field.type == FieldDescriptor.TYPE_BYTES:
            return as_base64
        if field.type == FieldDescriptor.TYPE_STRING:
            return self.text
        return _read_minus_one if field.type == FieldDescriptor.TYPE_UINT64 else None


def _add_unknown(values: dict[str, Any], number: int, data: Any) -> None:
    """Add an unknown field to `values`. If several have the same number, their values make a list."""
    value: Any = data
    if isinstance(data, bytes):
        value = as_base64(data)
    elif not isinstance(data, int | str):  # a group, with fields in it
        value = {}
        for field in data:
            _add_unknown(value, field.field_number, field.data)
    name = f"unknown_field_{number}"
    if name not in values:
        values[name] = value
    elif isinstance(values[name], list):
        values[name].append(value)
    else:
        values[name] = [values[name], value]


def descriptors_in(descriptor: Any) -> set[Any]:
    """Return the descriptors of a message and of all messages it may contain, even recursive ones."""
    messages: set[Any] = set()
    queue = [descriptor]
    while queue:
        message = queue.pop()
        if message is not None and message not in messages:
            messages.add(message)
            queue += [field.message_type for field in message.fields]
    return messages


def has_unknown(message: Any) -> bool:
    """Return whether a message has unknown fields. Its sub-messages are not searched."""
    return len(UnknownFieldSet(message)) > 0  # type: ignore[no-untyped-call, unused-ignore]


def has_unknown_fields(message: ProtoMessage) -> bool:
    """Do the same as `has_unknown`, but also fast for a message with very many unknown fields."""
    if len(message.SerializePartialToString()) <= _MAX_LISTED_BYTES:
        unknown: Any = UnknownFieldSet(message)
        return len(unknown) > 0
    copy = message.__class__()
    copy.CopyFrom(message)
    for field, _ in message.ListFields():
        copy.ClearField(field.name)
    return copy.SerializePartialToString() != b""


def unknown_fields(message: ProtoMessage) -> list[tuple[int, Any]]:
    """Return the (number, value) of each unknown field of `message`."""
    unknown: Any = UnknownFieldSet(message)
    return [(field.field_number, field.data) for field in unknown] if len(unknown) else []
