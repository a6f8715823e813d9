"""Rows of messages say what the records of their frames say."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pulsarctl_wire import read_events
from pulsarctl_wire.capture import Decoder, open_source
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.messages import is_chunk
from pulsarctl_wire.wire.detail import JSON, RAW, MessageOptions
from pulsarctl_wire.wire.frame import Frame
from pulsarctl_wire.wire.session.counts import messages_in
from pulsarctl_wire.wire.session.exchanges import ExchangeState

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"
CAPTURES = sorted(path.name for path in SAMPLES.glob("*.pcap*"))

Row = dict[str, Any]


def entries(name: str, *, chunks: bool = False) -> list[Frame]:
    """The frames with metadata; those of messages in chunks, or the others."""
    decoder = Decoder(places=True, join_chunks=False, new_state=ExchangeState)
    with (source := open_source(str(SAMPLES / name))).stream:
        events = list(chain.from_iterable(chain(decoder.read(source), decoder.finish())))
    frames = [event for event in events if isinstance(event, Frame)]
    return [frame for frame in frames if frame.metadata and is_chunk(frame.metadata) is chunks]


def rows_of(frames: list[Frame], options: MessageOptions) -> list[Row]:
    builder = TableBuilder(["it"], messages=options)
    builder.add(list(frames))
    rows: list[Row] = builder.take_messages().to_pylist()
    return rows


@pytest.mark.parametrize("name", CAPTURES)
def test_messages_of_a_sample_say_what_its_records_say(name: str) -> None:
    frames = entries(name)
    recorder = Recorder()
    expected = [(frame, each) for frame in frames for each in recorder.frame(frame)["messages"]]
    rows = rows_of(frames, MessageOptions(RAW))
    assert len(rows) == len(expected)
    for row, (frame, record) in zip(rows, expected, strict=True):
        for column in ("key", "event_time", "size", "sequence_id", "already_acked", "null_value"):
            assert row[column] == record.get(column), column
        assert dict(row["properties"] or []) == record["properties"]
        assert row["batch_index"] == record["index"]
        assert (row["topic"], row["subscription"]) == (frame.topic, frame.subscription)
        assert (row["command"], row["stream_offset"]) == (frame.command, frame.offset)
    if not any(row["note"] or row["encrypted"] for row in rows):  # a batch that is encrypted is one row
        assert len(rows) == sum(map(messages_in, frames))


def test_a_message_in_chunks_is_one_row() -> None:
    frames = entries("chunks-out-of-order.pcap", chunks=True)
    last = frames[-1]
    last.joined = b""  # as whoever joins chunks says
    (row,) = rows_of(frames, MessageOptions(RAW))
    assert (row["stream_offset"], row["payload"]) == (last.offset, None)
    assert row["size"] == last.metadata.total_chunk_msg_size > 0  # type: ignore[union-attr]


def test_values() -> None:
    frames = entries("java-keyvalue-protobuf.pcap") + entries("python-simple.pcap")
    raw = [row["payload"] for row in rows_of(frames, MessageOptions(RAW))]
    rows = rows_of(frames, MessageOptions(JSON))
    texts = 0
    for data, row in zip(raw, rows, strict=True):
        assert row["payload"] is None
        if row["value"] is not None:
            assert json.loads(row["value"]) == data.decode() or row["value"] == data.decode()
            texts += 1
    assert 0 < texts < len(rows)
    assert {row["payload"] for row in rows_of(frames, MessageOptions())} == {None}
    few = rows_of(frames, MessageOptions(RAW, largest=8))
    assert [row["payload"] for row in few] == [data if len(data) <= 8 else None for data in raw]


def test_private_keys_open_entries() -> None:
    path = Path(__file__).parents[1] / "encrypted"
    events = read_events(path / "java-ec.pcapng")
    frames = [event for event in events if isinstance(event, Frame) and event.metadata is not None]
    closed = rows_of(frames, MessageOptions(JSON))
    opened = rows_of(frames, MessageOptions(JSON, private_keys=(str(path / "ec.pem"),)))
    assert {row["encrypted"] for row in closed + opened} == {True}
    assert {row["value"] for row in closed} == {row["note"] for row in opened} == {None}
    whole = [row for row in opened if row["num_chunks_from_msg"] is None]
    assert {json.loads(row["value"])[:9] for row in whole} == {"secret 0 ", "secret 1 ", "secret 2 "}
    assert {row["batch_index"] for row in whole} == {None, 0, 1, 2}
    wrong = rows_of(frames, MessageOptions(JSON, private_keys=(str(path / "rsa.pem"),)))
    assert len(wrong) == len(closed) < len(opened)
    assert {row["note"] for row in wrong if row["num_chunks_from_msg"] is None} == {
        "still encrypted: no private key opens the data key of ec"
    }


def test_keys_are_hashed() -> None:
    frames = entries("java-keyshared.pcap")
    plain, hashed = (rows_of(frames, MessageOptions(hash_keys=each)) for each in (False, True))
    assert len({row["key"] for row in plain}) == len({row["key"] for row in hashed}) > 2
    assert not {row["key"] for row in plain} & {row["key"] for row in hashed}
    assert [row["key_hash"] for row in plain] == [row["key_hash"] for row in hashed]
