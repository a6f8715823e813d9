"""Finds how an answer differs from the recorded one, and which differences follow from others. Pure.

Two answers are equal if they are the same command with the same fields, except for what differs between any
two sessions: request, consumer, message and transaction ids, versions, times, rates, names that the broker
assigns, addresses, and the texts of errors (their codes count). A field at its default counts as missing,
unless it is an error code. Whether there is a message id does count: a receipt without one says that the
broker dropped a duplicate.
"""

from typing import Any, Final, NamedTuple

from pulsarctl_wire.net.replay.remap import Remap
from pulsarctl_wire.wire.commands import NUMBERS
from pulsarctl_wire.wire.fields import as_base64, as_text, to_signed
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, bound
from pulsarctl_wire.wire.session.state import FIELDS

CLOSES: Final = {NUMBERS["CLOSE_PRODUCER"]: "producer", NUMBERS["CLOSE_CONSUMER"]: "consumer"}
"""The commands by which a broker closes something unasked -> what they close."""

_MAKERS: Final = {NUMBERS["PRODUCER"], NUMBERS["SUBSCRIBE"]}
_CONNECT: Final = NUMBERS["CONNECT"]

_IGNORED: Final = frozenset(
    {
        *("request_id", "consumer_id", "schema_version", "topics_hash", "topic_epoch", "server_version"),
        *("producer_name", "publish_time", "txnid_most_bits", "txnid_least_bits", "address"),
        *("brokerServiceUrl", "brokerServiceUrlTls", "broker_service_url", "broker_service_url_tls"),
        *("assignedBrokerServiceUrl", "assignedBrokerServiceUrlTls", "proxy_through_service_url"),
        *("broker_url", "broker_url_tls", "controller_broker_url", "controller_broker_url_tls"),
        *("consumerName", "connectedSince", "messageAckRate"),
        *("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "msgRateExpired"),
    }
)
_SCHEMA_NAME: Final = "pulsar.proto.Schema.name"  # the broker derives it from the topic's name
_HIGHEST_SEQUENCE: Final = "highest_sequence_id"  # without a batch brokers may send either 0 or -1
_ID_PARTS: Final = frozenset({"ledgerId", "entryId"})  # of a message id
_ERRORS: Final = ("error", "error_code")
_TEXTS: Final = ("message", "error_message")
_IN_ANY_ORDER: Final = frozenset({"topic", "topics", "new_topics", "deleted_topics"})
_SHOWN_BYTES: Final = 60  # of a payload

Values = dict[str, Any]
"""A message's fields by name; those of nested messages as `outer.inner`."""

Key = tuple[Any, ...]
"""Identifies what a frame is about, or what a frame and its counterpart have in common.

The connection's number comes first, unless several connections may share the key.
"""


class Difference(NamedTuple):
    """An answer that differs from the recorded one.

    `kind` is "differs" (both frames are there; `fields` maps names to (recorded, now)), "missing" (nothing
    came), "unexpected" (nothing was recorded), or "closed" (`text` says why the connection ended, or what the
    broker closed in only one of the sessions). Differences are numbered from 1; `cause` is the number of the
    difference that this one follows from.
    """

    kind: str
    connection: int
    recorded: Frame | None = None
    replayed: Frame | None = None
    fields: dict[str, tuple[Any, Any]] = {}  # noqa: RUF012 (never changed)
    text: str = ""
    number: int = 0
    cause: int | None = None


def find_differences(recorded: Frame, replayed: Frame, remap: Remap) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two answers differ: name -> (recorded, now), None for a missing field."""
    defaults: Values = {}
    old, new = _collect_values(recorded, remap, defaults), _collect_values(replayed, None, defaults)
    if recorded.type != replayed.type:
        old = {name: value for name, value in old.items() if name in (*_ERRORS, *_TEXTS)}
        new = {name: value for name, value in new.items() if name in (*_ERRORS, *_TEXTS)}
        old["command"], new["command"] = recorded.command, replayed.command
    elif all(old.get(name) == new.get(name) for name in _ERRORS):
        for name in _TEXTS:
            old.pop(name, None)
            new.pop(name, None)
    return {
        name: (old.get(name), new.get(name))
        for name in dict.fromkeys(["command", *old, *new])
        if old.get(name, defaults.get(name)) != new.get(name, defaults.get(name))
    }


def _collect_values(frame: Frame, remap: Remap | None, defaults: Values) -> Values:
    """Return the values of an answer that are compared. With `remap`, it is a recorded one, and translated.

    Add the default of each field that the answer has to `defaults`.
    """
    values: Values = {}
    if frame.body is not None:
        _flatten(frame.body if remap is None else remap.translate(frame.body, frame), "", values, defaults)
    if frame.metadata is not None:
        metadata = frame.metadata if remap is None else remap.translate(frame.metadata, frame)
        _flatten(metadata, "metadata.", values, defaults)
    if frame.payload_at:
        values["payload"] = Payload(frame.payload)
    if frame.checksum == "invalid":
        values["checksum"] = frame.checksum
    return values


def _flatten(message: Any, prefix: str, values: Values, defaults: Values) -> None:
    """Add the fields of `message` to `values`, and their defaults to `defaults`."""
    for field, value in message.ListFields():
        name = field.name
        if name in _ID_PARTS:
            values[f"{prefix}{name}"] = "none" if to_signed(value) == -1 else "some"
        elif name in _IGNORED or field.full_name == _SCHEMA_NAME:
            continue
        elif field.is_repeated:
            items = [_convert(field, item) for item in value]
            values[prefix + name] = sorted(items, key=str) if name in _IN_ANY_ORDER else items
        elif field.message_type is not None:
            _flatten(value, f"{prefix}{name}.", values, defaults)
        elif name != _HIGHEST_SEQUENCE or to_signed(value) > 0:
            values[prefix + name] = _convert(field, value)
            if name not in _ERRORS:
                defaults[prefix + name] = _convert(field, field.default_value)


def _convert(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        inner: Values = {}
        _flatten(value, "", inner, {})
        return inner
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bytes):
        return as_base64(value)
    return to_signed(value) if isinstance(value, int) else value


class Payload:
    """A payload: compared by all its bytes, shown as its size and first bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        text = as_text(self._data[:_SHOWN_BYTES])
        return f"{len(self._data)} bytes {text}{'…' if len(self._data) > _SHOWN_BYTES else ''}"


class Causes:
    """What is not as it was recorded, each with the number of the difference that it follows from."""

    def __init__(self) -> None:
        self._cause_of: dict[Key, int] = {}

    def find_cause(self, keys: list[Key]) -> int | None:
        """Return the number of the difference that affects one of `keys`, or None."""
        return next((self._cause_of[key] for key in keys if key in self._cause_of), None)

    def fail(self, keys: list[Key], number: int) -> None:
        """Record that further differences about `keys` follow from difference `number`."""
        self._cause_of.update(dict.fromkeys(keys, number))
        bound(self._cause_of, MAX_PENDING)

    def resolve(self, keys: list[Key]) -> None:
        """Record that `keys` are as recorded again: later differences about them have no cause."""
        for key in keys:
            self._cause_of.pop(key, None)


class RequestLog:
    """The requests of one connection's client, by their frame numbers in the recording."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._requests: dict[int, tuple[int, Key | None]] = {}  # frame number -> command type, owner

    def add(self, frame: Frame) -> None:
        """Remember a frame that the client sent."""
        self._requests[frame.number] = frame.type, self._find_owner(frame)
        bound(self._requests, MAX_PENDING)

    def find_subjects(self, frame: Frame, request: int | None) -> list[Key]:
        """Return what a frame from the broker is about; `request` is the number of its recorded request."""
        keys: list[Key] = [(self._connection,)]
        owner = self._find_owner(frame) or self._requests.get(request or 0, (0, None))[1]
        if owner is not None:
            keys.append(owner)
        if frame.metadata is not None:
            keys.append(("messages of", frame.metadata.producer_name))
        return keys

    def find_dependents(self, frame: Frame) -> list[Key]:
        """Return what cannot be as recorded if this recorded frame is missing, or another comes instead."""
        kind, owner = self._requests.get(frame.request or 0, (0, None))
        if kind == _CONNECT:
            return [(self._connection,)]
        if kind in _MAKERS and owner is not None:
            name = getattr(frame.body, "producer_name", "")
            return [owner, ("messages of", name)] if name else [owner]
        owner = self._find_owner(frame)
        return [owner] if owner is not None and frame.type in CLOSES else []

    def _find_owner(self, frame: Frame) -> Key | None:
        """Return the producer or consumer that a frame names."""
        names = FIELDS.get(frame.type, frozenset())
        for name in ("producer_id", "consumer_id"):
            if name in names and frame.body is not None:
                return self._connection, name, getattr(frame.body, name)
        return None
