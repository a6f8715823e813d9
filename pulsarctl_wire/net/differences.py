"""How an answer differs from the recorded one. Pure.

Two answers are equal if they are the same command with the same fields, but for what is another one in any
two sessions: request, message and transaction ids, times, names that the broker gives, addresses, the texts
of errors (their codes count). A field at its default is as good as none, but for an error's code. Whether
there is an id at all does count: a receipt without one says that the message was taken for a duplicate.
"""

from typing import Any, Final

from pulsarctl_wire.net.remap import Remap
from pulsarctl_wire.wire.fields import as_base64, as_text, signed
from pulsarctl_wire.wire.frame import Frame

_PASSED_OVER: Final = frozenset(
    {
        *("request_id", "consumer_id", "schema_version", "topics_hash", "topic_epoch", "server_version"),
        *("producer_name", "publish_time", "txnid_most_bits", "txnid_least_bits"),
        *(
            "brokerServiceUrl",
            "brokerServiceUrlTls",
            "assignedBrokerServiceUrl",
            "assignedBrokerServiceUrlTls",
        ),
        "proxy_through_service_url",
        *("broker_url", "broker_url_tls", "controller_broker_url", "controller_broker_url_tls"),
        *("broker_service_url", "broker_service_url_tls", "address", "consumerName", "connectedSince"),
        *("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "msgRateExpired", "messageAckRate"),
    }
)
_SCHEMA_NAME: Final = "pulsar.proto.Schema.name"  # the broker makes it of the topic's
_HIGHEST: Final = "highest_sequence_id"  # of a message alone brokers say 0 or -1, as it happens
_PLACE: Final = frozenset({"ledgerId", "entryId"})
_ERRORS: Final = ("error", "error_code")
_TEXTS: Final = ("message", "error_message")
_IN_ANY_ORDER: Final = frozenset({"topic", "topics", "new_topics", "deleted_topics"})
_SHOWN: Final = 60  # bytes of a payload

Values = dict[str, Any]
"""A message's fields by their names, those of messages in it as `outer.inner`."""


def differences(recorded: Frame, replayed: Frame, remap: Remap) -> dict[str, tuple[Any, Any]]:
    """The fields in which two answers differ: name -> (recorded, now); None for one that is not there."""
    defaults: Values = {}
    old, new = _values(recorded, remap, defaults), _values(replayed, None, defaults)
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


def _values(frame: Frame, remap: Remap | None, defaults: Values) -> Values:
    """What counts of an answer; of a recorded one in terms of the replay, by `remap`."""
    values: Values = {}
    if frame.body is not None:
        _flatten(frame.body if remap is None else remap.translated(frame.body, frame), "", values, defaults)
    if frame.metadata is not None:
        metadata = frame.metadata if remap is None else remap.translated(frame.metadata, frame)
        _flatten(metadata, "metadata.", values, defaults)
    if frame.payload_at:
        values["payload"] = Payload(frame.payload)
    if frame.checksum == "invalid":
        values["checksum"] = frame.checksum
    return values


def _flatten(message: Any, prefix: str, values: Values, defaults: Values) -> None:
    """Put the fields of `message` into `values`, and what each is where it is not there into `defaults`."""
    for field, value in message.ListFields():
        name = field.name
        if name in _PLACE:
            values[f"{prefix}{name}"] = "none" if signed(value) == -1 else "some"
        elif name in _PASSED_OVER or field.full_name == _SCHEMA_NAME:
            continue
        elif field.is_repeated:
            items = [_plain(field, each) for each in value]
            values[prefix + name] = sorted(items, key=str) if name in _IN_ANY_ORDER else items
        elif field.message_type is not None:
            _flatten(value, f"{prefix}{name}.", values, defaults)
        elif name != _HIGHEST or signed(value) > 0:
            values[prefix + name] = _plain(field, value)
            if name not in _ERRORS:
                defaults[prefix + name] = _plain(field, field.default_value)


def _plain(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        inner: Values = {}
        _flatten(value, "", inner, {})
        return inner
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bytes):
        return as_base64(value)
    return signed(value) if isinstance(value, int) else value


class Payload:
    """A payload: compared by its bytes, shown by its size and its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Payload) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        shown = as_text(self._data[:_SHOWN])
        return f"{len(self._data)} bytes {shown}{'…' if len(self._data) > _SHOWN else ''}"
