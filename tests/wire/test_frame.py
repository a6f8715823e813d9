"""Frames: the vectors of the protocol both ways, each layout, and what is wrong told in notes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import message_frames, send_frames

from pulsarctl_wire.errors import LocalProtocolError
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.frame_layout import locate
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata


def parse(data: bytes, to_broker: bool = True) -> Frame:
    stream = FrameStream(Connection(0), to_broker)
    events = [*stream.feed(data), *stream.close()]
    assert len(events) == 1
    assert isinstance(events[0], Frame)
    return events[0]


def command(kind: str, **fields: object) -> BaseCommand:
    base = BaseCommand(type=BaseCommand.Type.Value(kind.upper()))
    body = getattr(base, kind.lower())
    body.SetInParent()
    for name, value in fields.items():
        setattr(body, name, value)
    return base


METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1000, uncompressed_size=5)
MESSAGE = command("message", consumer_id=0)
MESSAGE.message.message_id.ledgerId, MESSAGE.message.message_id.entryId = 5, 9

BATCH_METADATA = MessageMetadata(
    producer_name="p", sequence_id=10, publish_time=1000, num_messages_in_batch=2, highest_sequence_id=11
)
BATCH = bytes.fromhex("000000041803400a6f6e650000000712016b1804400b74776f21")

VECTORS = {
    "PING": ("00000009000000050812920100", build_frame(command("ping"))),
    "PONG": ("000000090000000508139a0100", build_frame(command("pong"))),
    "FLOW": (
        "0000000d00000009080b5a05080110e807",
        build_frame(command("flow", consumer_id=1, messagePermits=1000)),
    ),
    "CLOSE_CONSUMER": (
        "0000001600000012081082010d080310ffffffffffffffffff01",
        build_frame(command("close_consumer", consumer_id=3, request_id=2**64 - 1)),
    ),
    "SEND": (
        "000000250000000808063204080110000e01c633c1950000000a0a0170100018e807480568656c6c6f",
        build_frame(command("send", producer_id=1, sequence_id=0), METADATA, b"hello"),
    ),
    "MESSAGE": (
        "000000340000000c08094a0808011204080510090e020000000508d00f10070e01c633c1950000000a"
        "0a0170100018e807480568656c6c6f",
        build_frame(
            BaseCommand.FromString(bytes.fromhex("08094a080801120408051009")),
            METADATA,
            b"hello",
            broker_entry=BrokerEntryMetadata(broker_timestamp=2000, index=7),
        ),
    ),
    "batch SEND": (
        "000000410000000c080632080801100a1802300b0e01bfd4dbb60000000d0a0170100a18e8075802c0010b"
        + BATCH.hex(),
        build_frame(
            command("send", producer_id=1, sequence_id=10, num_messages=2, highest_sequence_id=11),
            BATCH_METADATA,
            BATCH,
        ),
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_are_built_and_parsed_byte_for_byte(name: str) -> None:
    expected, built = VECTORS[name]
    assert built.hex() == expected
    frame = parse(built)
    assert frame.command == name.removeprefix("batch ")
    assert frame.raw == built
    assert frame.size == len(built)
    assert frame.checksum == (None if frame.metadata is None else "valid")
    assert not frame.notes


def test_the_parts_of_a_message_with_broker_entry_metadata() -> None:
    frame = parse(VECTORS["MESSAGE"][1], to_broker=False)
    assert frame.broker_entry_metadata == BrokerEntryMetadata(broker_timestamp=2000, index=7)
    assert frame.metadata == METADATA
    assert frame.payload == b"hello"
    assert frame.parts.stored == frame.parts.computed == 0xC633C195


@given(st.one_of(send_frames(), message_frames()))
def test_what_is_built_is_what_is_parsed(data: bytes) -> None:
    frame = parse(data, to_broker=data[9] == 6)
    assert frame.base is not None
    assert frame.metadata is not None
    again = build_frame(
        frame.base,
        frame.metadata,
        frame.payload,
        checksum=frame.checksum == "valid",
        broker_entry=frame.broker_entry_metadata,
    )
    assert again == data


def test_a_wrong_checksum_is_told_with_both_values() -> None:
    data = bytearray(VECTORS["SEND"][1])
    data[-1] ^= 1
    frame = parse(bytes(data))
    assert frame.checksum == "invalid"
    assert frame.parts.stored == 0xC633C195
    assert frame.parts.computed not in (None, 0xC633C195)


def test_the_checksum_may_be_absent() -> None:
    frame = parse(build_frame(command("send", producer_id=1, sequence_id=0), METADATA, b"hi", checksum=False))
    assert frame.checksum == "absent"
    assert frame.payload == b"hi"


def test_bytes_after_a_command_without_payload_are_noted() -> None:
    body = VECTORS["PING"][1][8:]
    frame = parse((len(body) + 7).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + b"abc")
    assert frame.command == "PING"
    assert frame.notes == ["3 bytes after the command"]


def test_a_type_the_schema_does_not_have_keeps_its_number() -> None:
    body = bytes.fromhex("08e30752020801")  # type 995, field 10
    frame = parse((len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body)
    assert frame.command == "UNKNOWN(995)"
    assert frame.body is None


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        (b"", "no metadata after the command"),
        (b"\x00\x00\x00\x09abc", "metadata of 9 bytes runs beyond the frame"),
        (b"\x0e\x02\xff\xff\xff\xff", "broker entry metadata of 4294967295 bytes runs beyond the frame"),
        (
            b"\x00\x00\x00\x02\x0a\xff",
            "the metadata does not parse as MessageMetadata: producer_name (field 1) "
            "the size: a varint that does not end, 1 byte is left (offset 20)",
        ),
    ],
)
def test_a_broken_entry_is_noted(entry: bytes, note: str) -> None:
    send = command("send", producer_id=1, sequence_id=0).SerializeToString()
    frame = parse(
        (4 + len(send) + len(entry)).to_bytes(4, "big") + len(send).to_bytes(4, "big") + send + entry
    )
    assert list(frame.notes) == [note]
    assert frame.metadata is None


@given(st.binary(max_size=80))
def test_locating_parts_never_fails_and_stays_inside(entry: bytes) -> None:
    parts = locate(entry, 0)
    for start, stop in (parts.broker_entry, parts.checksum, parts.metadata, parts.payload):
        assert 0 <= start <= stop <= len(entry)


def test_what_cannot_exist_is_not_built() -> None:
    with pytest.raises(LocalProtocolError, match="required"):
        build_frame(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1}))  # type: ignore[arg-type]
