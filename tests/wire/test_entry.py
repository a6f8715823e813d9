"""Entries that are built open to the same messages: any codec, batches, chunks; the vectors of facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.chunks import ChunkJoiner
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.entry import Batch, Outgoing, Stamp, chunk, single_entry
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, MessageMetadata

CODECS = [value.number for value in CompressionType.DESCRIPTOR.values]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.builds(
    Outgoing,
    st.binary(max_size=200),
    key=st.none() | TEXTS,
    ordering_key=st.none() | st.binary(min_size=1, max_size=8),
    properties=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    event_time=st.integers(0, 2**63),
    null=st.booleans(),
)


def frames_of(*raws: bytes) -> list[Frame]:
    stream = FrameStream(Connection(0), True)
    events = [event for raw in raws for event in stream.feed(raw)]
    assert all(isinstance(event, Frame) for event in events)
    return [event for event in events if isinstance(event, Frame)]


def send(metadata: MessageMetadata, payload: bytes) -> bytes:
    command = build_command("SEND", producer_id=1, sequence_id=metadata.sequence_id)
    return build_frame(command, metadata, payload)


def told(metadata: object) -> tuple[object, ...]:
    """What metadata of either kind says of a message."""
    each = metadata
    return (
        each.partition_key if each.HasField("partition_key") else None,  # type: ignore[attr-defined]
        each.ordering_key,  # type: ignore[attr-defined]
        tuple((pair.key, pair.value) for pair in each.properties),  # type: ignore[attr-defined]
        each.event_time,  # type: ignore[attr-defined]
        each.null_value,  # type: ignore[attr-defined]
    )


def meant(message: Outgoing) -> tuple[object, ...]:
    return (
        message.key,
        message.ordering_key or b"",
        tuple(message.properties),
        message.event_time,
        message.null,
    )


@given(st.lists(MESSAGES, min_size=1, max_size=70), st.sampled_from(CODECS), st.integers(0, 2**62))
def test_a_batch_opens_to_its_messages(messages: list[Outgoing], codec: int, first: int) -> None:
    batch = Batch()
    for number, message in enumerate(messages, first):
        batch.add(message, number)
    metadata, payload = batch.entry(Stamp("p", codec), 1_000)
    [frame] = frames_of(send(metadata, payload))
    assert frame.checksum == "valid"
    entry = open_entry(frame)
    assert entry.notes == []
    assert [each.payload for each in entry.messages] == [each.payload for each in messages]
    assert [told(each.metadata) for each in entry.messages] == [meant(each) for each in messages]
    assert [each.metadata.sequence_id for each in entry.messages] == [*range(first, first + len(messages))]
    assert (batch.lowest, batch.highest, batch.count) == (first, first + len(messages) - 1, len(messages))
    assert metadata.HasField("num_messages_in_batch") == (len(messages) > 1)


@pytest.mark.parametrize("codec", CODECS)
def test_chunks_join_to_the_message(codec: int) -> None:
    payload = bytes(range(256)) * 40
    metadata, body = single_entry(Stamp("p", codec, b"\0" * 8, (3, 4)), Outgoing(payload), 7, 1_000)
    raws = [send(part, piece) for part, piece in chunk(metadata, body, 100)]
    assert len(raws) == -(-len(body) // 100) > 1
    joiner = ChunkJoiner()
    for frame in (frames := frames_of(*raws)):
        assert frame.metadata is not None
        assert (frame.metadata.uuid, frame.metadata.total_chunk_msg_size) == ("p-7", len(body))
        joiner.add(frame, frame.metadata, 1)
    assert open_entry(frames[-1]).messages[0].payload == payload
    assert frames[0].metadata is not None
    assert (frames[0].metadata.txnid_most_bits, frames[0].metadata.txnid_least_bits) == (3, 4)


def test_what_fits_is_no_chunk() -> None:
    metadata, body = single_entry(Stamp("p"), Outgoing(b"x" * 100), 0, 1_000)
    [(same, piece)] = chunk(metadata, body, 100)
    assert (piece, same.HasField("uuid")) == (b"x" * 100, False)


def test_only_a_message_alone_is_delivered_later_and_kept_here() -> None:
    message = Outgoing(b"x", deliver_at=5_000, replicate=False, key="aw==", key_is_base64=True)
    metadata, _ = single_entry(Stamp("p"), message, 0, 1_000)
    assert metadata.deliver_at_time == 5_000
    assert list(metadata.replicate_to) == ["__local__"]
    assert metadata.partition_key_b64_encoded


def test_the_payload_of_a_batch_is_as_other_clients_write_it() -> None:
    batch = Batch()
    batch.add(Outgoing(b"one"), 10)
    batch.add(Outgoing(b"two!", key="k"), 11)
    metadata, payload = batch.entry(Stamp("p"), 1_000)
    assert payload.hex() == "000000041803400a6f6e650000000712016b1804400b74776f21"
    assert (metadata.sequence_id, metadata.highest_sequence_id, metadata.num_messages_in_batch) == (10, 11, 2)
