"""The protocol's commands as tables: names, directions, and which answers belong to which requests.

A command's type number is also the field number of its sub-message in BaseCommand (PulsarApi.proto),
so one number identifies both. Some clients (C++) use two counters of request ids per connection:
one for the lookup service, one for everything else. That is why requests are identified by
(family, id) and not by the id alone.
"""

from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, ServerError

_TYPES: Final = BaseCommand.Type.DESCRIPTOR.values_by_name

NAMES: Final[dict[int, str]] = {value.number: name for name, value in _TYPES.items()}
"""Type number -> the command's name, for every command in PulsarApi.proto."""

NUMBERS: Final[dict[str, int]] = {name: number for number, name in NAMES.items()}
"""The command's name -> type number."""

SEND: Final = 6  # literals, so that they are constants in compiled code
SEND_RECEIPT: Final = 7
MESSAGE: Final = 9
ACK: Final = 10
FLOW: Final = 11
"""Type numbers of the commands that make up most of the traffic."""

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
"""Type number -> the command's field that holds the ServerError."""

FAILED: Final = {NUMBERS["LOOKUP_RESPONSE"]: 2, NUMBERS["PARTITIONED_METADATA_RESPONSE"]: 1}
"""Type number of an answer with a field `response` -> the value of that field that means Failed."""

PAYLOAD_TYPES: Final = frozenset({BaseCommand.SEND, BaseCommand.MESSAGE})
"""The commands that carry an entry (metadata and payload) after the command."""

_EITHER_WAY: Final = {"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"}
_FROM_BROKER: Final = {
    *("CONNECTED", "SEND_RECEIPT", "SEND_ERROR", "MESSAGE", "SUCCESS", "ERROR", "PRODUCER_SUCCESS"),
    *("REACHED_END_OF_TOPIC", "ACTIVE_CONSUMER_CHANGE", "AUTH_CHALLENGE", "TOPIC_MIGRATED"),
    *("WATCH_TOPIC_LIST_SUCCESS", "WATCH_TOPIC_UPDATE", "SCALABLE_TOPIC_UPDATE"),
    *("SCALABLE_TOPIC_ASSIGNMENT_UPDATE", "WATCH_SCALABLE_TOPICS_UPDATE", "WATCH_TC_ASSIGNMENTS_UPDATE"),
}

# END_TXN_ON_* are sent by one broker to another; the receiver counts as the broker of that connection.
TO_BROKER: Final[dict[int, bool]] = {
    number: (name not in _FROM_BROKER and not name.endswith("_RESPONSE")) or name == "AUTH_RESPONSE"
    for number, name in NAMES.items()
    if name not in _EITHER_WAY
}
"""Type number -> whether it is sent to the broker; types sent both ways are absent."""


class Pairing(NamedTuple):
    """How a request is paired with its answers: its id's family, the field with the id, the answer types."""

    family: str
    key: str
    answers: frozenset[int]


# Sources: the broker's request handlers, and the id counters of the Java and C++ clients (4.0.8).
# Not in this table: CONNECT, AUTH_CHALLENGE, AUTH_RESPONSE and PING, which state.py pairs by their order,
# and SEND, which exchanges.py pairs by (producer_id, sequence_id).
_BY_FAMILY: Final[dict[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    ("request", "request_id"): {
        "PRODUCER": ("PRODUCER_SUCCESS", "ERROR"),
        **dict.fromkeys(("SUBSCRIBE", "UNSUBSCRIBE", "SEEK"), ("SUCCESS", "ERROR")),
        **dict.fromkeys(("CLOSE_PRODUCER", "CLOSE_CONSUMER", "WATCH_TOPIC_LIST_CLOSE"), ("SUCCESS", "ERROR")),
        "ACK": ("ACK_RESPONSE",),
        "TC_CLIENT_CONNECT_REQUEST": ("TC_CLIENT_CONNECT_RESPONSE", "ERROR"),
        "WATCH_TOPIC_LIST": ("WATCH_TOPIC_LIST_SUCCESS", "ERROR"),
        **{
            name: (f"{name}_RESPONSE", "ERROR")
            for name in (
                *("CONSUMER_STATS", "GET_LAST_MESSAGE_ID", "GET_OR_CREATE_SCHEMA", "NEW_TXN"),
                *("ADD_PARTITION_TO_TXN", "ADD_SUBSCRIPTION_TO_TXN", "END_TXN", "END_TXN_ON_PARTITION"),
                *("END_TXN_ON_SUBSCRIPTION", "SCALABLE_TOPIC_SUBSCRIBE"),
            )
        },
    },
    ("lookup", "request_id"): {
        # the Pulsar proxy answers a failed PARTITIONED_METADATA with LOOKUP_RESPONSE
        "PARTITIONED_METADATA": ("PARTITIONED_METADATA_RESPONSE", "LOOKUP_RESPONSE", "ERROR"),
        "LOOKUP": ("LOOKUP_RESPONSE", "ERROR"),
        "GET_TOPICS_OF_NAMESPACE": ("GET_TOPICS_OF_NAMESPACE_RESPONSE", "ERROR"),
        "GET_SCHEMA": ("GET_SCHEMA_RESPONSE", "ERROR"),
    },
    # no request ids here: the first update of a session or watch answers the command that opened it
    ("scalable", "session_id"): {"SCALABLE_TOPIC_LOOKUP": ("SCALABLE_TOPIC_UPDATE",)},
    ("watch topics", "watch_id"): {"WATCH_SCALABLE_TOPICS": ("WATCH_SCALABLE_TOPICS_UPDATE",)},
    ("watch tc", "watch_id"): {"WATCH_TC_ASSIGNMENTS": ("WATCH_TC_ASSIGNMENTS_UPDATE",)},
}

REQUESTS: Final[dict[int, Pairing]] = {
    NUMBERS[name]: Pairing(family, key, frozenset(map(NUMBERS.__getitem__, answers)))
    for (family, key), requests in _BY_FAMILY.items()
    for name, answers in requests.items()
}
"""Type number of a request -> how it is paired with its answer."""

ANSWERED_WITHOUT_ID: Final[dict[int, frozenset[int]]] = {
    NUMBERS[name]: frozenset(map(NUMBERS.__getitem__, answers))
    for name, answers in {
        **dict.fromkeys(("CONNECT", "AUTH_RESPONSE"), ("CONNECTED", "AUTH_CHALLENGE", "ERROR")),
        "AUTH_CHALLENGE": ("AUTH_RESPONSE",),
        "PING": ("PONG",),
        "SEND": ("SEND_RECEIPT", "SEND_ERROR"),
    }.items()
}
"""Type number of a request not in `REQUESTS` -> its answers; state.py and exchanges.py pair them."""

ANSWERS: Final[dict[int, list[tuple[str, str]]]] = {}
"""Type number of an answer -> the (family, key field) pairs to try, in order, to find its request."""

for _pairing in REQUESTS.values():
    for _answer in _pairing.answers:
        _pair = (_pairing.family, _pairing.key)
        if _pair not in ANSWERS.setdefault(_answer, []):
            ANSWERS[_answer].append(_pair)


def commands_like(pattern: str) -> set[int]:
    """Return the types of the commands whose names match `pattern` (* and ? as in a shell, in any case)."""
    return {number for name, number in NUMBERS.items() if fnmatchcase(name, pattern.upper())}


def command_name(number: int) -> str:
    """Return the name of command type `number`, or "UNKNOWN(number)" for a type not in PulsarApi.proto."""
    return NAMES.get(number) or f"UNKNOWN({number})"


def build_command(name: str, **fields: Any) -> BaseCommand:
    """Build the BaseCommand `name` ("LOOKUP") with these fields. None omits one; a dict is a sub-message.

    Raises LocalProtocolError if a field cannot hold its value.
    """
    number = NUMBERS[name]
    body = {key: value for key, value in fields.items() if value is not None}
    parts: dict[str, Any] = {"type": number, BODIES[number]: body}
    try:
        return BaseCommand(**parts)
    except ValueError as error:
        raise LocalProtocolError(f"{name} cannot be built: {error}") from None
