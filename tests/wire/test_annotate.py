"""What each byte of a broken frame is, what breaks it, and which of its bytes are shown."""

from __future__ import annotations

import struct

import pytest

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.hexview import HexRenderer
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.render.tree import TreeRenderer
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed, build_frame
from pulsarctl_wire.wire.framing.annotate import LabelledSpan, annotate
from pulsarctl_wire.wire.framing.redaction import event_spans, mask_spans
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

PING = bytes.fromhex("00000009 00000005 0812920100")
SECRET = b"hunter2Secret99hunter2"


def events(data: bytes) -> list[Event]:
    stream = FrameStream(Connection(0), True)
    return [*stream.feed(data), *stream.close()]


def parts(data: bytes, show_secrets: bool = False) -> list[LabelledSpan]:
    """Those of the first event."""
    event = events(data)[0]
    assert isinstance(event, (Frame, Malformed))
    found = list(annotate(event, [] if show_secrets else event_spans(event)))
    at = 0
    for part in found:
        assert part.start == at
        at = part.stop
    assert at == len(event.raw)
    return found


def framed(command: str) -> bytes:
    data = bytes.fromhex(command)
    return struct.pack(">II", 4 + len(data), len(data)) + data


@pytest.mark.parametrize(
    ("data", "label"),
    [
        (
            framed("0805 2a0a 0a0174 1001 22ac0261"),
            "producer.producer_name (field 4, wire type 2): says 300 bytes",
        ),
        (
            framed("0805 2a04 0a0174 17"),
            "producer.producer_id (field 2, wire type 7): wire type 7 does not exist",
        ),
        (framed("0805 2a05 0a0174 1080"), "producer.producer_id (field 2, wire type 0): the value: a varint"),
        (framed("0805 2a05 0a0174 80"), "BROKEN: the tag: a varint that does not end"),
        (framed("0805 2a09 0a0174"), "producer (field 5, wire type 2): says 9 bytes, 3 are left"),
        (framed("0805 2a06 0a0174 0b1001"), "producer.topic (field 1"),
    ],
)
def test_the_field_that_breaks_it(data: bytes, label: str) -> None:
    found = parts(data + 3 * PING)
    assert [part.label for part in found[:3]] == [
        f"TOTAL_SIZE {len(data) - 4}",
        f"COMMAND_SIZE {len(data) - 8}",
        "type = PRODUCER (5)",
    ]
    broken = [part for part in found if "; offset" in part.label]
    assert any(label.split(" (")[0] in part.label or label in part.label for part in broken)
    assert all(f"offset {part.start}" in part.label or part.label.startswith("BROKEN") for part in broken)
    first = events(data + 3 * PING)[0]
    assert event_spans(first) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (bytes.fromhex("09000000 05000000 0812920100"), "the sizes are little-endian"),
        (bytes.fromhex("00000005 0812920100"), "one size before the command"),
        (bytes.fromhex("0812920100"), "TOTAL_SIZE and COMMAND_SIZE are missing"),
        (bytes.fromhex("00000005 00000005 0812920100"), "it leaves out the 4 bytes of COMMAND_SIZE"),
    ],
)
def test_heads_that_clients_get_wrong(data: bytes, said: str) -> None:
    first, *rest = events(data + 3 * PING)
    assert said in getattr(first, "reason", "")
    assert sum(isinstance(event, Frame) for event in rest) >= 2
    labels = [part.label for part in parts(data + 3 * PING)]
    assert any(label.startswith("type = PING") for label in labels)


def test_entries_that_clients_get_wrong() -> None:
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id = base.send.sequence_id = 0
    raw = build_frame(base, MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"payload")
    at = 8 + int.from_bytes(raw[4:8], "big")
    without_magic = struct.pack(">I", len(raw) - 6) + raw[4:at] + raw[at + 2 :]
    (frame,) = events(without_magic)
    assert "the magic 0e01 before it is missing" in getattr(frame, "notes", [""])[0]
    swapped = raw[: at + 6] + raw[at + 6 : at + 10][::-1] + raw[at + 10 :]
    (frame,) = events(swapped)
    assert any("METADATA_SIZE is little-endian" in note for note in getattr(frame, "notes", []))
    assert any("METADATA_SIZE is little-endian" in part.label for part in parts(swapped))


def _connect(broken: bytes) -> bytes:
    inside = b"\x0a\x01x\x1a" + bytes([len(SECRET)]) + SECRET + broken
    command = b"\x08\x02\x12" + bytes([len(inside)]) + inside
    return struct.pack(">II", 4 + len(command), len(command)) + command


def test_a_broken_connect_shows_its_fields_and_nothing_of_them() -> None:
    data = _connect(b"\x2a\x20basic")
    found = parts(data + 3 * PING)
    labels = [part.label for part in found]
    assert "connect.auth_data = redacted" in labels
    assert any(label.startswith("connect.auth_method_name: says ? bytes") for label in labels)
    first = events(data + 3 * PING)[0]
    assert isinstance(first, (Frame, Malformed))
    assert mask_spans(first.raw, event_spans(first)) == data[:10] + b"*" * (len(data) - 10)
    assert "= 22 bytes" in str(parts(data + 3 * PING, show_secrets=True)) or SECRET.decode() in str(
        parts(data + 3 * PING, show_secrets=True)
    )


@pytest.mark.parametrize("cut", range(1, 34))
def test_what_is_left_of_a_connect_is_masked(cut: int) -> None:
    """Its head was lost: what follows may be the rest of its credentials, whatever they look like."""
    data = _connect(b"")[cut:]
    for event in events(data + 3 * PING):
        if isinstance(event, Malformed):
            assert SECRET[:4] not in mask_spans(event.raw, event_spans(event))


def test_what_follows_a_broken_frame_is_masked() -> None:
    """The sizes of a harmless frame that do not fit may take in the frame behind it."""
    data = bytes.fromhex("00000009 000000ff 0812920100") + _connect(b"")
    first = events(data + 3 * PING)[0]
    assert isinstance(first, (Frame, Malformed))
    assert mask_spans(first.raw, event_spans(first))[:13] == data[:13]
    assert SECRET[:4] not in mask_spans(first.raw, event_spans(first))


def test_bytes_after_a_command_are_masked() -> None:
    """TOTAL_SIZE of a PING that takes in what follows it."""
    connect = _connect(b"")
    data = struct.pack(">II", 9 + len(connect), 5) + PING[8:] + connect
    frame = events(data)[0]
    assert isinstance(frame, Frame)
    assert event_spans(frame) == [(13, len(data))]


def test_http_shows_names_and_harmless_values() -> None:
    data = (
        b"POST /admin?token=abc&mode=ALL&abc HTTP/1.1\r\nHost: broker:8080\r\nAuthorization: Bearer abc\r\n"
        b'X-Own: value\r\n\r\n{"password": "abc"}'
    )
    (event,) = events(data)
    assert isinstance(event, (Frame, Malformed))
    shown = mask_spans(event.raw, event_spans(event))
    assert shown == (
        b"POST /admin?token=***&mode=ALL&*** HTTP/1.1\r\nHost: broker:8080\r\nAuthorization: **********\r\n"
        b"X-Own: *****\r\n\r\n" + b"*" * 19
    )
    assert "token" not in getattr(event, "reason", "")


def test_all_outputs_say_what_is_noted() -> None:
    """A LOOKUP without its request_id, and a PING with a field that nobody knows."""
    frames = [framed("0817 ba01 03 0a0174"), framed("0812 9201 02 5001")]
    notes = ["CommandLookupTopic lacks request_id", "CommandPing has the unknown field 10"]
    recorder = Recorder()
    line = LineRenderer(Paint(False))
    views = (line, HexRenderer(line, Paint(False)), TreeRenderer(line, recorder, Paint(False)))
    for data, note in zip(frames, notes, strict=True):
        (frame,) = events(data)
        assert recorder(frame)["notes"] == [note]
        assert all(note in view(frame) for view in views)


def test_the_tree_of_a_broken_frame_has_the_parts_of_hex() -> None:
    data = framed("0805 2a04 0a0174 17") + 3 * PING
    line = LineRenderer(Paint(False))
    tree = TreeRenderer(line, Recorder(), Paint(False))(events(data)[0])
    assert all(part.label in tree for part in parts(data))
