"""What brokers do against the protocol, and what is no mistake of a client."""

from collections.abc import Iterable

import pytest
from segments import Tcp, Turn, build
from timeline import LOGIN, Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN
from pulsarctl_wire.checks.registry import RULES
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata, ServerError

TOPIC = "persistent://public/default/t"
METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0)


def to_broker(name: str, **fields: object) -> Turn:
    return True, build(name, **fields)


def to_client(name: str, **fields: object) -> Turn:
    return False, build(name, **fields)


def delivered(entry: int, consumer: int = 1) -> Turn:
    message_id = {"ledgerId": 7, "entryId": entry}
    return False, build("MESSAGE", METADATA, b"x", consumer_id=consumer, message_id=message_id)


def receipt(sequence: int, producer: int = 1) -> Turn:
    at = {"ledgerId": 7, "entryId": sequence}
    return to_client("SEND_RECEIPT", producer_id=producer, sequence_id=sequence, message_id=at)


SUBSCRIBED = [
    to_broker("SUBSCRIBE", topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=1),
    to_client("SUCCESS", request_id=1),
]
GRANTED = [*SUBSCRIBED, to_broker("FLOW", consumer_id=1, messagePermits=10)]
OPENED = [
    to_broker("PRODUCER", topic=TOPIC, producer_id=1, request_id=1),
    to_client("PRODUCER_SUCCESS", request_id=1, producer_name="p", producer_ready=True),
]
ASKED_AGAIN = to_broker("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=1)
CLOSED = to_broker("CLOSE_CONSUMER", consumer_id=1, request_id=9)

BROKERS: list[tuple[str, list[Turn], list[Turn]]] = [
    # the rule, traffic that breaks it, and a near miss
    ("command_of_client", [to_client("FLOW", consumer_id=1, messagePermits=1)], [to_client("PING")]),
    ("answer_to_nothing", [to_client("SUCCESS", request_id=5)], SUBSCRIBED),
    ("message_without_permits", [*SUBSCRIBED, delivered(0)], [*GRANTED, delivered(0)]),
    ("message_without_consumer", [delivered(0, consumer=2)], [*GRANTED, CLOSED, delivered(0)]),
    (
        "delivered_twice",
        [*GRANTED, delivered(0), delivered(1), delivered(0)],
        [*GRANTED, delivered(0), delivered(1), ASKED_AGAIN, delivered(0)],
    ),
    ("receipt_for_nothing", [*OPENED, receipt(3)], OPENED),
]


def findings_of(turns: Iterable[Turn], *, is_whole: bool = True) -> list[tuple[str, str]]:
    """What is found in a connection; joined midway unless `is_whole`."""
    timeline, tcp = Timeline(rules=RULES), Tcp()
    if is_whole:
        timeline.log_in(0, tcp, *turns)
    else:
        list(tcp.handshake())
        list(tcp.say(LOGIN))
        timeline.say(0, tcp, *turns)
    return ids(timeline.findings())


@pytest.mark.parametrize(("rule", "mistake", "near"), BROKERS, ids=[rule for rule, _, _ in BROKERS])
def test_what_brokers_must_not_do(rule: str, mistake: list[Turn], near: list[Turn]) -> None:
    assert findings_of(mistake) == [(rule, CERTAIN)]
    assert findings_of(near) == []
    assert findings_of(mistake, is_whole=False) == []


def test_a_refusal_is_no_finding_beside_its_cause() -> None:
    error = {"request_id": 1, "error": ServerError.TopicTerminatedError, "message": "gone\nat x.y.Z"}
    asked = to_broker("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    timeline, tcp = Timeline(rules=RULES), Tcp()
    timeline.log_in(0, tcp, asked, to_client("ERROR", **error))
    (finding,) = timeline.findings()
    assert finding.rule == "request_refused"
    assert finding.explanation == "The broker answered PRODUCER by TopicTerminatedError: gone."
    sent = True, build("SEND", METADATA, b"x", producer_id=1, sequence_id=0)
    assert findings_of([asked, to_client("ERROR", **error), sent]) == [("send_without_producer", CERTAIN)]


def test_a_refusal_that_is_mended_is_none() -> None:
    error = {"request_id": 1, "error": ServerError.ServiceNotReady, "message": "soon"}
    asked = to_broker("PRODUCER", topic=TOPIC, producer_id=1, request_id=1)
    looked_up = to_broker("LOOKUP", topic=TOPIC, request_id=2)
    assert findings_of([asked, to_client("ERROR", **error), looked_up, *OPENED]) == []


def test_a_producer_without_its_sub_message_has_no_id() -> None:
    empty = bytes.fromhex("00000009 00000005 0805 c03e01")  # a PRODUCER with an unknown field only
    opened = to_broker("PRODUCER", topic=TOPIC, producer_id=0, request_id=1)
    success = to_client("PRODUCER_SUCCESS", request_id=1, producer_name="p", producer_ready=True)
    assert findings_of([opened, success, (True, empty)]) == []
