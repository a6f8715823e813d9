"""Payloads: messages that clients throw away."""

import pytest
import zstandard
from segments import Tcp, build
from timeline import Timeline

from pulsarctl_wire.wire.payload import MAX_PAYLOAD, Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandAck, CompressionType, MessageMetadata

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


def test_looking_for_right_sizes_has_a_budget() -> None:
    """A few bytes cannot make it decompress any amount, whatever size they state."""
    payload = zstandard.compress(bytes(MAX_PAYLOAD))
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, (True, build("PRODUCER", topic=TOPIC, producer_id=0, request_id=1)))
    timeline.say(1, tcp, (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")))
    for number in range(1, 9):
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        metadata.compression, metadata.uncompressed_size = CompressionType.ZSTD, number
        timeline.say(2, tcp, (True, build("SEND", metadata, payload, producer_id=0, sequence_id=number)))
    found = [finding.rule for finding in timeline.findings()]
    assert found == ["bad_uncompressed_size"] * (Budget.START // MAX_PAYLOAD)
