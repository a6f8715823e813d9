"""Payloads: messages that clients throw away."""

import pytest
from segments import Tcp, build
from timeline import Timeline

from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, MessageMetadata

TOPIC = "persistent://public/default/t"


@pytest.mark.parametrize(
    ("error", "end"),
    [
        ("ChecksumMismatch", "threw it away and acknowledged it."),
        ("DecryptionError", "threw it away and acknowledged it, as its crypto failure action DISCARD says."),
    ],
)
def test_what_a_discarding_client_was_told_to_do(error: str, end: str) -> None:
    message_id = {"ledgerId": 7, "entryId": 1}
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    ack = {"validation_error": CommandAck.ValidationError.Value(error), "message_id": [message_id]}
    subscribed = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "request_id": 1}
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, (True, build("SUBSCRIBE", subType=0, **subscribed)))
    timeline.say(1, tcp, (False, build("SUCCESS", request_id=1)))
    timeline.say(2, tcp, (False, build("MESSAGE", metadata, b"x", consumer_id=0, message_id=message_id)))
    timeline.say(3, tcp, (True, build("ACK", consumer_id=0, ack_type=0, **ack)))
    [finding] = timeline.findings()
    assert (finding.rule, finding.subject.message_id) == ("client_discarded_message", "7:1")
    assert f"({error}; its checksum is right here)" in finding.explanation
    assert finding.explanation.endswith(end)
