"""Numbers that are read from bytes are those of the parsed message (wire/fast_fields.py)."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire import read_events
from pulsarctl_wire.table.metadata import find_unusual_fields, hash_message_key
from pulsarctl_wire.wire import commands
from pulsarctl_wire.wire.commands import ACK, BODIES, MESSAGE, NUMBERS, SEND, SEND_RECEIPT
from pulsarctl_wire.wire.fast_fields import IS_COMPILED, Head, Ids, head_of, ids_of, read_head, read_ids
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.varint import VARINT, fields, sized_field, tag, varint

SAMPLES = sorted(Path(__file__, "../../../samples/pcaps").resolve().glob("*.pcap*"))
KINDS = (SEND, SEND_RECEIPT, MESSAGE, ACK)
IDS = ("owner", "sequence", "highest", "count", "ledger", "entry", "identified", "kind", "request")
HEAD = ("producer", "publish_time", "unpacked", "codec", "batch", "chunks", "chunk", "marker")
HASHED = {"key_hash", "uncompressed_size"}


def same(read: Ids | Head, parsed: Ids | Head, names: tuple[str, ...]) -> None:
    """Check that both have the same values."""
    assert {name: getattr(read, name) for name in names} == {name: getattr(parsed, name) for name in names}


def check_ids(ids: Ids, number: int, base: BaseCommand) -> None:
    """Check the numbers that were read against the parsed command."""
    same(ids, ids_of(number, base), IDS)
    body: Any = getattr(base, BODIES[number])
    acked: Any = body.message_id if number == ACK else [getattr(body, "message_id", None)]
    sets = [list(getattr(each, "ack_set", ())) for each in acked]
    assert not list(getattr(body, "ack_set", ()))
    assert not any(sets)
    assert number != MESSAGE or not body.HasField("consumer_epoch")
    assert number != ACK or not body.HasField("validation_error")
    assert ids.is_plain is (len(acked) <= 1)
    several = (
        [part for each in acked for part in (each.ledgerId, each.entryId, 0)] if len(acked) > 1 else None
    )
    assert several == (None if ids.several is None else list(memoryview(ids.several).cast("q")))


def check_head(head: Head, metadata: MessageMetadata) -> None:
    """Check what was read of metadata against the parsed one."""
    same(head, head_of(metadata), HEAD)
    unusual = find_unusual_fields(metadata)
    if head.is_plain:
        assert unusual.keys() <= HASHED
        assert (head.key is not None) is ("key_hash" in unusual)
        key: Any = metadata.partition_key  # bytes, if it is not UTF-8
        assert head.key in (None, key if isinstance(key, bytes) else key.encode())
        assert head.key is None or not metadata.partition_key_b64_encoded
        assert head.key is None or unusual["key_hash"] == hash_message_key(metadata)


def frames_of(path: Path) -> list[Frame]:
    return [event for event in read_events(path) if isinstance(event, Frame)]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_real_traffic(path: Path) -> None:
    for frame in frames_of(path):
        ids = None if frame.partial else read_ids(frame.raw, frame.command_size)
        if ids is not None:
            assert frame.type in KINDS
            check_ids(ids, frame.type, BaseCommand.FromString(frame.raw[8 : 8 + frame.command_size]))
        if frame.metadata is not None:
            head = read_head(frame.raw, frame.metadata_at, frame.payload_at)
            if head is not None:
                check_head(head, MessageMetadata.FromString(frame.raw[frame.metadata_at : frame.payload_at]))


def test_most_real_traffic_is_read_so() -> None:
    frames = [frame for path in SAMPLES for frame in frames_of(path)]
    usual = [frame for frame in frames if frame.type in KINDS and not frame.partial]
    entries = [frame for frame in frames if frame.metadata is not None]
    read = [read_ids(frame.raw, frame.command_size) for frame in usual]
    heads = [read_head(frame.raw, frame.metadata_at, frame.payload_at) for frame in entries]
    assert read.count(None) < 0.2 * len(usual)
    assert heads.count(None) < 0.2 * len(entries)


def test_frames_are_read_so_where_that_is_quicker() -> None:
    frames = [frame for path in SAMPLES for frame in frames_of(path) if frame.type in KINDS]
    assert any(frame._base is None for frame in frames) is IS_COMPILED


def test_the_numbers_of_these_commands() -> None:
    for name in ("SEND", "SEND_RECEIPT", "MESSAGE", "ACK", "FLOW"):
        assert getattr(commands, name) == NUMBERS[name]


# -- any message

LIMITS = [127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**62 - 1, 2**62, 2**63, 2**64 - 1]
VALUES = st.one_of(st.integers(0, 5), st.sampled_from(LIMITS))


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 0) -> bytes:
    """An encoded message of a type: its required fields, a few others, maybe in the wrong order."""
    needed = [field for field in descriptor.fields if field.is_required]
    others = draw(st.lists(st.sampled_from(list(descriptor.fields)), max_size=4))
    chosen = sorted([*needed, *others], key=lambda field: field.number)
    parts = [draw(encoded(field, depth)) for field in chosen]
    if draw(st.integers(0, 5)) == 0:
        parts = draw(st.permutations(parts))
    return b"".join(parts)


@st.composite
def encoded(draw: st.DrawFn, field: Any, depth: int) -> bytes:
    """An encoded field."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        data = draw(messages(field.message_type, depth + 1)) if depth < 2 else b""
    elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        data = draw(st.sampled_from([b"", b"a", b"key-1", "ä".encode(), b"\xff"]))
    else:
        return tag(field.number, VARINT) + varint(draw(VALUES))
    return sized_field(field.number, data)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data`, maybe with a byte changed, or cut."""
    where = draw(st.integers(0, max(len(data) - 1, 0)))
    how = draw(st.sampled_from(["not", "not", "changed", "cut"]))
    if how == "changed" and data:
        return data[:where] + draw(st.binary(min_size=1, max_size=1)) + data[where + 1 :]
    return data[:where] if how == "cut" else data


@given(st.data(), st.sampled_from(KINDS))
def test_any_command(data: st.DataObject, number: int) -> None:
    body = data.draw(messages(BaseCommand.DESCRIPTOR.fields_by_number[number].message_type))
    command = tag(1, VARINT) + varint(number) + sized_field(number, body)
    command = data.draw(damaged(command))
    ids = read_ids(bytes(8) + command + bytes(data.draw(st.integers(0, 3))), len(command))
    if ids is not None:
        base = BaseCommand.FromString(command)
        assert base.type == number
        check_ids(ids, number, base)


@given(st.data())
def test_any_metadata(data: st.DataObject) -> None:
    given = data.draw(messages(MessageMetadata.DESCRIPTOR).flatmap(damaged))
    head = read_head(b"abc" + given + b"payload", 3, 3 + len(given))
    if head is not None:
        check_head(head, MessageMetadata.FromString(given))


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    head = read_head(data, 0, len(data))
    try:
        metadata = MessageMetadata.FromString(data)
    except DecodeError:
        assert head is None
        return
    if head is not None:
        check_head(head, metadata)
    assert {each.problem for each in fields(data, 0, len(data))} == {""} or not data


def test_an_ack_of_several_entries() -> None:
    base = BaseCommand(type=BaseCommand.ACK)
    base.ack.consumer_id, base.ack.ack_type, base.ack.request_id = 3, 0, 17  # type: ignore[assignment]
    for entry in range(3):
        base.ack.message_id.add(ledgerId=1_000_000, entryId=entry)
    command = base.SerializeToString()
    ids = read_ids(bytes(8) + command, len(command))
    assert ids is not None
    check_ids(ids, ACK, base)
    base.ack.message_id[1].ack_set.append(5)
    command = base.SerializeToString()
    assert read_ids(bytes(8) + command, len(command)) is None
