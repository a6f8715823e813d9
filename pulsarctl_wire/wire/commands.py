"""The commands of the protocol as tables: names, directions, and what answers what.

A command's type number is also the field number of its sub-message in BaseCommand (PulsarApi.proto),
so one number leads to everything. Request ids are drawn per connection from two counters by some
clients (C++): one for the lookup service, one for all else; a request is therefore known by
(family, id) and not by its id alone.
"""

from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, ServerError

_TYPES: Final = BaseCommand.Type.DESCRIPTOR.values_by_name

NAMES: Final[dict[int, str]] = {value.number: name for name, value in _TYPES.items()}
"""Type number -> the command's name, for every command of the schema."""

NUMBERS: Final[dict[str, int]] = {name: number for number, name in NAMES.items()}
"""The command's name -> type number."""

BODIES: Final[dict[int, str]] = {
    number: BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in NAMES
}
"""Type number -> the name of its sub-message's field in BaseCommand."""

ERROR_FIELDS: Final[dict[int, str]] = {
    number: field.name
    for number in BODIES
    for field in BaseCommand.DESCRIPTOR.fields_by_number[number].message_type.fields  # type: ignore[union-attr]
    if field.enum_type is not None and field.enum_type.full_name == ServerError.DESCRIPTOR.full_name
}
"""Type number -> the field of the command that says which error it reports."""

FAILED: Final = {NUMBERS["LOOKUP_RESPONSE"]: 2, NUMBERS["PARTITIONED_METADATA_RESPONSE"]: 1}
"""Type number of an answer with a field `response` -> its value Failed."""

PAYLOAD_TYPES: Final = frozenset({BaseCommand.SEND, BaseCommand.MESSAGE})
"""The commands that carry an entry (metadata and payload) behind the command."""

_EITHER_WAY: Final = {"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"}
_FROM_BROKER: Final = {
    *("CONNECTED", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE", "SUCCESS", "ERROR", "PRODUCER_SUCCESS"),
    *("REACHED_END_OF_TOPIC", "ACTIVE_CONSUMER_CHANGE", "AUTH_CHALLENGE", "TOPIC_MIGRATED"),
    *("WATCH_TOPIC_LIST_SUCCESS", "WATCH_TOPIC_UPDATE", "SCALABLE_TOPIC_UPDATE"),
    *("SCALABLE_TOPIC_ASSIGNMENT_UPDATE", "WATCH_SCALABLE_TOPICS_UPDATE", "WATCH_TC_ASSIGNMENTS_UPDATE"),
}

# END_TXN_ON_* travel from a broker to another one, which is the broker of that connection.
TO_BROKER: Final[dict[int, bool]] = {
    number: (name not in _FROM_BROKER and not name.endswith("_RESPONSE")) or name == "AUTH_RESPONSE"
    for number, name in NAMES.items()
    if name not in _EITHER_WAY
}
"""Type number -> whether it travels to the broker; types that go both ways are absent."""


class Request(NamedTuple):
    """How a request is paired: its counter's family, the field that carries the key, its answers."""

    family: str
    key: str
    answers: frozenset[int]


def _request(family: str, key: str, *answers: str) -> Request:
    return Request(family, key, frozenset(NUMBERS[name] for name in answers))


# Sources: the request handlers of the broker and both clients' id counters, as observed on 4.0.8.
# CONNECT, SEND, PING and AUTH_CHALLENGE are paired by order or by (producer_id, sequence_id);
# `pulsarctl_wire.wire.session` does that by hand.
REQUESTS: Final[dict[int, Request]] = {
    NUMBERS[name]: request
    for name, request in {
        "PRODUCER": _request("request", "request_id", "PRODUCER_SUCCESS", "ERROR"),
        "SUBSCRIBE": _request("request", "request_id", "SUCCESS", "ERROR"),
        "UNSUBSCRIBE": _request("request", "request_id", "SUCCESS", "ERROR"),
        "SEEK": _request("request", "request_id", "SUCCESS", "ERROR"),
        "CLOSE_PRODUCER": _request("request", "request_id", "SUCCESS", "ERROR"),
        "CLOSE_CONSUMER": _request("request", "request_id", "SUCCESS", "ERROR"),
        "ACK": _request("request", "request_id", "ACK_RESPONSE"),
        "CONSUMER_STATS": _request("request", "request_id", "CONSUMER_STATS_RESPONSE", "ERROR"),
        "GET_LAST_MESSAGE_ID": _request("request", "request_id", "GET_LAST_MESSAGE_ID_RESPONSE", "ERROR"),
        "GET_OR_CREATE_SCHEMA": _request("request", "request_id", "GET_OR_CREATE_SCHEMA_RESPONSE", "ERROR"),
        # the Pulsar proxy answers a failed PARTITIONED_METADATA with LOOKUP_RESPONSE
        "PARTITIONED_METADATA": _request(
            "lookup", "request_id", "PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "ERROR"
        ),
        "LOOKUP": _request("lookup", "request_id", "LOOKUP_RESPONSE", "ERROR"),
        "GET_TOPICS_OF_NAMESPACE": _request(
            "lookup", "request_id", "GET_TOPICS_OF_NAMESPACE_RESPONSE", "ERROR"
        ),
        "GET_SCHEMA": _request("lookup", "request_id", "GET_SCHEMA_RESPONSE", "ERROR"),
        **{
            name: _request("request", "request_id", f"{name}_RESPONSE", "ERROR")
            for name in (
                "NEW_TXN",
                "ADD_PARTITION_TO_TXN",
                "ADD_SUBSCRIPTION_TO_TXN",
                "END_TXN",
                "END_TXN_ON_PARTITION",
                "END_TXN_ON_SUBSCRIPTION",
                "SCALABLE_TOPIC_SUBSCRIBE",
            )
        },
        "TC_CLIENT_CONNECT_REQUEST": _request("request", "request_id", "TC_CLIENT_CONNECT_RESPONSE", "ERROR"),
        "WATCH_TOPIC_LIST": _request("request", "request_id", "WATCH_TOPIC_LIST_SUCCESS", "ERROR"),
        "WATCH_TOPIC_LIST_CLOSE": _request("request", "request_id", "SUCCESS", "ERROR"),
        # no request ids here: the first update of a session or watch answers its opening
        "SCALABLE_TOPIC_LOOKUP": _request("scalable", "session_id", "SCALABLE_TOPIC_UPDATE"),
        "WATCH_SCALABLE_TOPICS": _request("watch topics", "watch_id", "WATCH_SCALABLE_TOPICS_UPDATE"),
        "WATCH_TC_ASSIGNMENTS": _request("watch tc", "watch_id", "WATCH_TC_ASSIGNMENTS_UPDATE"),
    }.items()
}
"""Type number of a request -> how its answer is found."""

ANSWERS: Final[dict[int, list[tuple[str, str]]]] = {}
"""Type number of an answer -> the (family, key field) pairs to look its request up by, in that order."""

for _how in REQUESTS.values():
    for _answer in _how.answers:
        _pair = (_how.family, _how.key)
        if _pair not in ANSWERS.setdefault(_answer, []):
            ANSWERS[_answer].append(_pair)


def commands_like(pattern: str) -> set[int]:
    """Type numbers of the commands whose names `pattern` fits, in any case, with * and ? as in a shell."""
    return {number for name, number in NUMBERS.items() if fnmatchcase(name, pattern.upper())}


def command_name(number: int) -> str:
    """The name of command type `number`, or UNKNOWN(number) for a type the schema does not have."""
    return NAMES.get(number) or f"UNKNOWN({number})"


def build_command(name: str, **fields: Any) -> BaseCommand:
    """The BaseCommand `name` ("LOOKUP") with these fields; None leaves one out, a dict is a message in it.

    Raises LocalProtocolError for a number or a text that a field has no room for.
    """
    number = NUMBERS[name]
    given = {key: value for key, value in fields.items() if value is not None}
    parts: dict[str, Any] = {"type": number, BODIES[number]: given}
    try:
        return BaseCommand(**parts)
    except ValueError as error:
        raise LocalProtocolError(f"{name} cannot be built: {error}") from None
