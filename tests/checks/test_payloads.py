"""Payloads: wrong checksums, and messages that clients throw away."""

import zlib
from collections.abc import Callable

import pytest
import zstandard
from crc32c import crc32c
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
    assert f"({error}; its checksum is correct in this capture)" in finding.explanation
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


METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
RIGHT = build("SEND", METADATA, b"payload", producer_id=0, sequence_id=0)


def _with_wrong_checksum(raw: bytes, compute: Callable[[bytes], int]) -> bytes:
    at = raw.index(b"\x0e\x01") + 2
    return raw[:at] + compute(raw[at + 4 :]).to_bytes(4, "big") + raw[at + 4 :]


CRC32 = _with_wrong_checksum(RIGHT, zlib.crc32)
FLIPPED = _with_wrong_checksum(RIGHT, lambda covered: crc32c(covered) ^ 1)


@pytest.mark.parametrize(
    ("rule", "sends", "texts"),
    [
        ("send_corrupt", [CRC32], ["the CRC is wrong: it is zlib's CRC-32, not CRC32-C"]),
        (
            "send_corrupt_at_source",
            [CRC32, CRC32],
            ["the CRC is wrong: it is zlib's CRC-32, not CRC32-C", "the same bytes again"],
        ),
        (
            "send_corrupt_in_transit",
            [FLIPPED, RIGHT],
            [
                "the CRC is wrong: one flipped bit explains it: bit 0 of byte 21 (0x15)",
                "the same message, the CRC is right",
            ],
        ),
    ],
)
def test_why_checksums_of_sends_are_wrong(rule: str, sends: list[bytes], texts: list[str]) -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp, (True, build("PRODUCER", topic=TOPIC, producer_id=0, request_id=1)))
    timeline.say(1, tcp, (False, build("PRODUCER_SUCCESS", request_id=1, producer_name="p")))
    for number, raw in enumerate(sends):
        timeline.say(2 + number, tcp, (True, raw))
    [finding] = timeline.findings()
    assert finding.rule == rule
    assert [evidence.text for evidence in finding.evidence] == texts
    assert finding.evidence[0].reason == "the CRC is wrong"  # tables say no more


def test_corrupt_sends_of_two_producers_are_two_findings() -> None:
    timeline, tcp = Timeline(), Tcp()
    timeline.log_in(0, tcp)
    for number in (0, 1):
        name = f"p{number}"
        opening = build("PRODUCER", topic=TOPIC, producer_id=number, request_id=number)
        metadata = MessageMetadata(producer_name=name, sequence_id=0, publish_time=1)
        raw = build("SEND", metadata, b"payload", producer_id=number, sequence_id=0)
        timeline.say(1, tcp, (True, opening))
        timeline.say(2, tcp, (False, build("PRODUCER_SUCCESS", request_id=number, producer_name=name)))
        timeline.say(3, tcp, (True, _with_wrong_checksum(raw, lambda covered: 0)))
    assert [finding.rule for finding in timeline.findings()] == ["send_corrupt", "send_corrupt"]


def test_why_the_checksum_of_a_message_is_wrong() -> None:
    message_id = {"ledgerId": 7, "entryId": 1}
    raw = build("MESSAGE", METADATA, b"payload", consumer_id=0, message_id=message_id)
    timeline, tcp = Timeline(), Tcp()
    subscribed = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "request_id": 1}
    timeline.log_in(0, tcp, (True, build("SUBSCRIBE", subType=0, **subscribed)))
    timeline.say(1, tcp, (False, build("SUCCESS", request_id=1)))
    timeline.say(2, tcp, (False, _with_wrong_checksum(raw, lambda covered: 0)))
    [finding] = timeline.findings()
    assert finding.rule == "message_corrupt"
    assert [evidence.text for evidence in finding.evidence] == ["the CRC is wrong: 0 stands in its place"]
