"""Acknowledgements: messages that are given back again and again."""

import pytest
from segments import Tcp, Turn, build
from timeline import Timeline, ids

from pulsarctl_wire.checks.finding import CERTAIN
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, MessageMetadata

AT = {"ledgerId": 7, "entryId": 1}
SUBSCRIBED: list[Turn] = [
    (True, build("SUBSCRIBE", topic="t", subscription="s", subType=1, consumer_id=0, request_id=1)),
    (False, build("SUCCESS", request_id=1)),
]
GIVEN_BACK: Turn = True, build("REDELIVER_UNACKNOWLEDGED_MESSAGES", consumer_id=0, message_ids=[AT])
ACKNOWLEDGED: Turn = (
    True,
    build("ACK", consumer_id=0, ack_type=CommandAck.Individual, message_id=[AT]),
)
CLOSED: Turn = True, build("CLOSE_CONSUMER", consumer_id=0, request_id=2)


def delivered(count: int) -> Turn:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    return False, build("MESSAGE", metadata, b"x", consumer_id=0, message_id=AT, redelivery_count=count)


@pytest.mark.parametrize(
    ("again", "then", "expected"),
    [
        (5, [], 1),
        (5, [CLOSED], 1),
        (4, [], 0),
        (16, [ACKNOWLEDGED], 0),  # as a dead letter policy does in the end
        (16, [ACKNOWLEDGED, CLOSED], 0),
        (17, [ACKNOWLEDGED], 1),
    ],
)
def test_given_back_again_and_again(again: int, then: list[Turn], expected: int) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, *SUBSCRIBED, delivered(0))
    for count in range(1, again + 1):
        timeline.say(count, tcp, GIVEN_BACK, delivered(count))
    timeline.say(again + 1, tcp, *then)
    findings = timeline.findings(again + 60)
    assert ids(findings) == [("endless_redelivery", CERTAIN)] * expected
    for finding in findings:
        assert finding.explanation == (
            f"The same message is given back and delivered again, {again} times so far, and is not"
            " acknowledged."
        )
        assert [seen.ordinal for seen, _ in finding.evidence][:2] == [2, 2]
