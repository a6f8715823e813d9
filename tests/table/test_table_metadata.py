"""Rare fields of metadata are only looked for where it is larger than its common ones: none may be missed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.schema import METADATA
from pulsarctl_wire.wire.fields import Walker
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CompressionType,
    MessageMetadata,
)

uint64 = st.one_of(
    st.integers(0, 300), st.sampled_from((2**63 - 1, 2**63, 2**64 - 1)), st.integers(0, 2**64 - 1)
)
int32 = st.one_of(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1))
int64 = st.integers(-(2**63), 2**63 - 1)
texts = st.one_of(st.sampled_from(("", "p", "é")), st.text(max_size=200))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "producer_name": texts,
    "sequence_id": uint64,
    "publish_time": uint64,
    "event_time": uint64,
    "deliver_at_time": int64,
    "partition_key": texts,
    "partition_key_b64_encoded": st.booleans(),
    "ordering_key": st.binary(max_size=20),
    "compression": st.sampled_from(CompressionType.values()),
    "uncompressed_size": st.integers(0, 2**32 - 1),
    "num_messages_in_batch": int32,
    "uuid": texts,
    "num_chunks_from_msg": int32,
    "chunk_id": int32,
    "total_chunk_msg_size": int32,
    "schema_version": st.binary(max_size=9),
    "txnid_least_bits": uint64,
    "txnid_most_bits": uint64,
    "null_value": st.booleans(),
    "marker_type": int32,
    "replicated_from": texts,
}
REQUIRED = ("producer_name", "sequence_id", "publish_time")
UNKNOWN = (b"", b"", b"\xf8\x7f\x01", b"\x58\x07", b"\x0a\x02\xff\xfe")
"""What may stand behind: a field that nobody knows, a batch size once more, a name that is not UTF-8."""


@st.composite
def metadata_bytes(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=5))
    fields: dict[str, Any] = {name: draw(FIELDS[name]) for name in dict.fromkeys((*REQUIRED, *names))}
    return MessageMetadata(**fields).SerializePartialToString() + draw(st.sampled_from(UNKNOWN))


def frame_of(metadata: bytes, entry: BrokerEntryMetadata | None, cut: int) -> bytes:
    head = b""
    if entry is not None:
        prefix = entry.SerializeToString()
        head = b"\x0e\x02" + len(prefix).to_bytes(4, "big") + prefix
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = base.message.message_id.ledgerId = base.message.message_id.entryId = 1
    command = base.SerializeToString()
    body = head + len(metadata).to_bytes(4, "big") + metadata + b"payload"
    total = 4 + len(command) + len(body)
    return (total.to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + body)[: total + 4 - cut]


def hashed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "key_hash": row["key_hash"] is not None}


@settings(max_examples=150)
@given(
    st.lists(st.tuples(metadata_bytes(), st.booleans()), min_size=1, max_size=4),
    st.sampled_from((0, 0, 0, 5)),
)
def test_no_field_of_metadata_is_missed(some: list[tuple[bytes, bool]], cut: int) -> None:
    entry = BrokerEntryMetadata(broker_timestamp=1, index=300)
    data = b"".join(frame_of(metadata, entry if has_entry else None, 0) for metadata, has_entry in some[:-1])
    data += frame_of(some[-1][0], entry if some[-1][1] else None, cut)
    stream = FrameStream(Connection(0), False)
    builder = TableBuilder(["it"])
    builder.add([*stream.feed(data), *stream.close()])
    rows = builder.take_frames().to_pylist()
    assert len(rows) == len(some)
    for row, (metadata, _) in zip(rows, some, strict=True):
        parsed = MessageMetadata.FromString(metadata)
        walked = Walker()(parsed)
        defaults = {"compression": "NONE", "num_messages_in_batch": 1, "key_hash": False}
        wanted = {field.name: walked.get(field.name, defaults.get(field.name)) for field in METADATA}
        wanted |= {name: _signed(value) for name, value in wanted.items()}
        wanted["key_hash"] = parsed.HasField("partition_key") or parsed.HasField("ordering_key")
        assert hashed(row["metadata"]) == wanted
        assert row["metadata_size"] == len(metadata)
        assert row["num_messages"] == wanted["num_messages_in_batch"]


def _signed(value: Any) -> Any:
    return (
        value - 2**64 if isinstance(value, int) and not isinstance(value, bool) and value >= 2**63 else value
    )


def test_metadata_that_lacks_required_fields_is_looked_at_too() -> None:
    """What is missing is as large as what is there beyond it."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, event_time=5).SerializePartialToString()
    stream = FrameStream(Connection(0), False)
    events = stream.feed(frame_of(metadata, None, 0))
    assert isinstance(events[0], Frame)
    builder = TableBuilder(["it"])
    builder.add(events)
    assert builder.take_frames().to_pylist()[0]["metadata"]["event_time"] == 5
