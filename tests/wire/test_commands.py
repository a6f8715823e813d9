"""The tables of the commands agree with the schema and with each other."""

from typing import Any, Final

import pytest

from pulsarctl_wire.wire.commands import (
    ANSWERS,
    BODIES,
    NAMES,
    NUMBERS,
    PAYLOAD_TYPES,
    REQUESTS,
    TO_BROKER,
    command_name,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

EITHER_WAY: Final = {"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"}
PUSHED: Final = {
    "MESSAGE",
    "ACTIVE_CONSUMER_CHANGE",
    "REACHED_END_OF_TOPIC",
    "TOPIC_MIGRATED",
    "WATCH_TOPIC_UPDATE",
    "SCALABLE_TOPIC_ASSIGNMENT_UPDATE",
}
"""What brokers say unasked."""
PAIRED_BY_HAND: Final = {"CONNECT", "AUTH_RESPONSE", "SEND"}
NEVER_ANSWERED: Final = {
    "FLOW",
    "REDELIVER_UNACKNOWLEDGED_MESSAGES",
    "SCALABLE_TOPIC_CLOSE",
    "WATCH_SCALABLE_TOPICS_CLOSE",
    "WATCH_TC_ASSIGNMENTS_CLOSE",
}


def fields_of(number: int) -> Any:
    """The fields of the sub-message of command type `number`, by name."""
    message: Any = BaseCommand.DESCRIPTOR.fields_by_number[number].message_type
    return message.fields_by_name


def names(numbers: Any) -> set[str]:
    return {NAMES[number] for number in numbers}


def test_every_command_of_the_schema_has_a_name() -> None:
    assert {number: name for name, number in BaseCommand.Type.items()} == NAMES
    assert {name: number for number, name in NAMES.items()} == NUMBERS
    assert len(NAMES) == len(NUMBERS) == 70


def test_every_command_has_its_sub_message() -> None:
    assert BODIES.keys() == NAMES.keys()
    fields = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}
    del fields[1]  # the type
    assert fields == BODIES


@pytest.mark.parametrize(
    ("number", "name"),
    [(2, "CONNECT"), (6, "SEND"), (81, "WATCH_TC_ASSIGNMENTS_CLOSE"), (0, "UNKNOWN(0)"), (69, "UNKNOWN(69)")],
)
def test_names_of_numbers(number: int, name: str) -> None:
    assert command_name(number) == name


def test_commands_with_an_entry() -> None:
    assert names(PAYLOAD_TYPES) == {"SEND", "MESSAGE"}


def test_every_command_has_a_direction() -> None:
    assert names(TO_BROKER) == set(NUMBERS) - EITHER_WAY


def test_what_brokers_say() -> None:
    said = {NAMES[number] for number, to_broker in TO_BROKER.items() if not to_broker}
    answers = names(ANSWERS) | {"CONNECTED", "AUTH_CHALLENGE", "SEND_RECEIPT", "SEND_ERROR"}
    assert said == answers | PUSHED
    assert {name for name in NUMBERS if name.endswith("_RESPONSE")} - said == {"AUTH_RESPONSE"}
    assert {name for name in NUMBERS if name.endswith(("_SUCCESS", "_UPDATE"))} <= said


def test_what_clients_say() -> None:
    said = {NAMES[number] for number, to_broker in TO_BROKER.items() if to_broker}
    assert said == (names(REQUESTS) - EITHER_WAY) | PAIRED_BY_HAND | NEVER_ANSWERED


def test_every_request_id_that_clients_draw_is_followed() -> None:
    drawn = {
        number
        for number in NUMBERS.values()
        if TO_BROKER.get(number, True) and "request_id" in fields_of(number)
    }
    by_request_id = {number for number, how in REQUESTS.items() if how.key == "request_id"}
    assert drawn == by_request_id


def test_every_request_id_that_brokers_repeat_is_looked_up() -> None:
    repeated = {number for number, to_broker in TO_BROKER.items() if not to_broker}
    with_id = {number for number in repeated if "request_id" in fields_of(number)}
    assert with_id == {number for number in ANSWERS if ("session_id" in fields_of(number)) is False} - {
        NUMBERS["WATCH_SCALABLE_TOPICS_UPDATE"],
        NUMBERS["WATCH_TC_ASSIGNMENTS_UPDATE"],
    }


@pytest.mark.parametrize("number", sorted(REQUESTS))
def test_a_request_and_its_answers_have_the_key(number: int) -> None:
    how = REQUESTS[number]
    assert how.answers
    for each in (number, *how.answers):
        field = fields_of(each)[how.key]
        assert field.type == field.TYPE_UINT64
        assert not field.is_repeated
    for answer in how.answers:
        assert TO_BROKER[answer] is False


def test_every_response_has_its_request() -> None:
    for name in NUMBERS:
        if name.endswith("_RESPONSE") and name != "AUTH_RESPONSE":
            request = name.removesuffix("_RESPONSE")
            asked = NUMBERS.get(request) or NUMBERS[f"{request}_REQUEST"]
            assert NUMBERS[name] in REQUESTS[asked].answers


def test_success_and_error_belong_to_many() -> None:
    success = {NAMES[number] for number, how in REQUESTS.items() if NUMBERS["SUCCESS"] in how.answers}
    assert success == {
        *("SUBSCRIBE", "UNSUBSCRIBE", "SEEK", "CLOSE_PRODUCER", "CLOSE_CONSUMER", "WATCH_TOPIC_LIST_CLOSE"),
    }
    no_error = {NAMES[number] for number, how in REQUESTS.items() if NUMBERS["ERROR"] not in how.answers}
    assert no_error == {"ACK", "SCALABLE_TOPIC_LOOKUP", "WATCH_SCALABLE_TOPICS", "WATCH_TC_ASSIGNMENTS"}


def test_answers_are_the_requests_turned_around() -> None:
    pairs = {
        (answer, (how.family, how.key))
        for number, how in REQUESTS.items()
        for answer in REQUESTS[number].answers
    }
    assert {(answer, pair) for answer, looked_up in ANSWERS.items() for pair in looked_up} == pairs
    assert all(len(set(looked_up)) == len(looked_up) for looked_up in ANSWERS.values())


def test_the_lookup_services_counter() -> None:
    """C++ clients draw these ids from a counter of their own."""
    lookups = {NAMES[number] for number, how in REQUESTS.items() if how.family == "lookup"}
    assert lookups == {"LOOKUP", "PARTITIONED_METADATA", "GET_TOPICS_OF_NAMESPACE", "GET_SCHEMA"}


def test_families_of_other_keys_are_their_own() -> None:
    families = {how.family for how in REQUESTS.values() if how.key == "request_id"}
    assert families == {"request", "lookup"}
    others = [how.family for how in REQUESTS.values() if how.key != "request_id"]
    assert len(others) == len(set(others)) == 3
    assert not families & set(others)
