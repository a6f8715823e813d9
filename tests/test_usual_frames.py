"""Usual frames take the fast path (render/plan.py), others the slow path; both give the same text."""

import random
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from test_mutations import every_command, mutate

from pulsarctl_wire import read_events
from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.jsonl import JsonLines, json_line
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.plan import metadata_at
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.wire.frame import Connection, Event, Frame, build_frame
from pulsarctl_wire.wire.frame_layout import MAGIC_CHECKSUM
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import MAX_MESSAGES, Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)

SAMPLES = sorted(
    path for path in Path(__file__, "../../samples/pcaps").resolve().iterdir() if ".pcap" in path.name
)
ROUNDS = 5
PER_ROUND = 1_500


class Compared:
    """Renders events both ways, and compares."""

    def __init__(self, *, show_secrets: bool = False, answers: bool = False) -> None:
        self._recorders = [
            Recorder(show_secrets=show_secrets, answers=answers, budget=Budget(ratio=1)) for _ in range(2)
        ]
        self._json = JsonLines(self._recorders[0])
        self._quick, self._long = (LineRenderer(Paint(False), show_secrets=show_secrets) for _ in range(2))
        self._long._plans.clear()

    def __call__(self, event: Event, left: int) -> None:
        """Compare what becomes of `event` where `left` may still be opened."""
        first, second = (recorder.budget for recorder in self._recorders)
        first.left = second.left = left
        assert self._json(event) == json_line(self._recorders[1](event))
        assert (first.left, first.unopened) == (second.left, second.unopened)
        assert self._quick(event) == self._long(event)


@cache
def events_of(sample: Path) -> list[Event]:
    return list(read_events(sample))


def changed(frame: Frame, source: random.Random) -> bytes:
    """A whole frame with a part of it mutated; its sizes and checksum are right again."""
    raw, start, entry = frame.raw, metadata_at(frame), b""
    command = raw[8 : 8 + frame.command_size]
    metadata, payload = raw[start : frame.payload_at], frame.payload
    part = source.randrange(3 if start >= 0 else 1)
    if part == 0:
        command = mutate(command, source)
    elif part == 1:
        metadata = mutate(metadata, source)
    elif payload:
        payload = mutate(payload, source)
    if start >= 0:
        entry = struct.pack(">I", len(metadata)) + metadata + payload
        entry = MAGIC_CHECKSUM + struct.pack(">I", crc32c(entry)) + entry
    return struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def read(data: bytes) -> list[Event]:
    """The events of a direction that holds `data`."""
    stream = FrameStream(Connection(0, "10.0.0.1:1", "10.0.0.2:6650"), to_broker=True)
    stream.is_direction_certain = False
    return stream.feed(data, 1_700_000_000_123_456_789, 1) + stream.close()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_are_rendered_alike_both_ways(sample: Path) -> None:
    compared, masked = Compared(show_secrets=True), Compared(answers=True)
    for event in events_of(sample):
        compared(event, Budget.START)
        masked(event, Budget.START)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_changed_frames_are_rendered_alike_both_ways(seed: int) -> None:
    source = random.Random(seed)
    frames = [event for sample in SAMPLES for event in events_of(sample) if isinstance(event, Frame)]
    whole = [frame for frame in frames if not frame.partial and frame.base is not None]
    compared = Compared(show_secrets=source.random() < 0.5, answers=source.random() < 0.5)
    for frame in source.choices(whole, k=PER_ROUND):
        for event in read(changed(frame, source)):
            compared(event, source.choice((0, 3_000, Budget.START)))


def test_every_command_is_rendered_alike_both_ways() -> None:
    compared = Compared()
    for data in every_command():
        for event in read(data):
            compared(event, Budget.START)


texts = st.text(max_size=8) | st.sampled_from(["a b", "\x7f", "\x00", "\u200b", '"\\', "\n", "é" * 200])
payloads = texts.map(str.encode) | st.binary(max_size=12) | st.just(b"x" * 100)
numbers = st.sampled_from([0, 1, 127, 128, 2**31 - 1]) | st.integers(0, 2**31 - 1)


def described(draw: st.DrawFn, metadata: Any) -> Any:
    """Metadata, of an entry or of a message in a batch, with some of what both may have."""
    names = draw(st.sets(st.sampled_from(["partition_key", "event_time", "null_value", "ordering_key"])))
    for key, value in draw(st.lists(st.tuples(texts, texts), max_size=3)):
        metadata.properties.add(key=key, value=value)
    for name in names:
        kind = metadata.DESCRIPTOR.fields_by_name[name].type
        drawn = {FieldDescriptor.TYPE_STRING: texts, FieldDescriptor.TYPE_BOOL: st.booleans()}.get(
            kind, numbers
        )
        setattr(metadata, name, draw(payloads if kind == FieldDescriptor.TYPE_BYTES else drawn))
    return metadata


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """A MESSAGE with a batch, or with one message; its numbers may be wrong."""
    metadata = MessageMetadata(
        producer_name=draw(texts), sequence_id=draw(numbers), publish_time=draw(numbers)
    )
    payload = draw(payloads)
    if draw(st.booleans()):
        batch = draw(st.lists(payloads, max_size=4))
        metadata.num_messages_in_batch = len(batch) + draw(st.sampled_from([0, 0, 0, 1]))
        payload = b""
        for each in batch:
            single = described(draw, SingleMessageMetadata(payload_size=len(each)))
            head = single.SerializeToString()
            payload += struct.pack(">I", len(head)) + head + each
    else:
        described(draw, metadata)
    if draw(st.booleans()):
        metadata.compression = draw(st.sampled_from([CompressionType.NONE, CompressionType.ZLIB]))
        metadata.uncompressed_size = len(payload) + draw(st.sampled_from([0, 0, 0, 1]))
        payload = zlib.compress(payload) if metadata.compression else payload
    base = BaseCommand(type=BaseCommand.MESSAGE)
    base.message.consumer_id = draw(numbers)
    base.message.message_id.ledgerId = draw(numbers)
    base.message.message_id.entryId = draw(st.just(2**64 - 1) | numbers)
    broker = BrokerEntryMetadata(index=draw(numbers)) if draw(st.booleans()) else None
    return build_frame(base, metadata, payload, broker_entry=broker)


@given(entries(), st.sampled_from([0, 2_000, Budget.START]))
def test_entries_are_rendered_alike_both_ways(data: bytes, left: int) -> None:
    for event in read(data):
        Compared()(event, left)


def test_batches_of_too_many_messages_are_rendered_alike_both_ways() -> None:
    for count in (1_000, MAX_MESSAGES + 1):
        metadata = MessageMetadata(
            producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count
        )
        base = BaseCommand(type=BaseCommand.SEND)
        base.send.producer_id = base.send.sequence_id = 0
        for event in read(build_frame(base, metadata, b"\0\0\0\2\x18\0" * count)):
            Compared()(event, 100_000)
            Compared()(event, Budget.START)


def test_most_frames_go_the_quick_way() -> None:
    frames = [
        event for event in events_of(SAMPLES[0].with_name("python-simple.pcap")) if isinstance(event, Frame)
    ]
    json, line = JsonLines(Recorder()), LineRenderer(Paint(False))
    assert sum(json._render_fast(frame) is not None for frame in frames) > 0.6 * len(frames)
    assert sum(line._add_fast(frame, []) for frame in frames) > 0.6 * len(frames)
