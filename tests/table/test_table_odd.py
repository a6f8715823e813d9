"""What the table says of payloads and entries that are wrong."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from crc32c import crc32c

from pulsarctl_wire.table import metadata
from pulsarctl_wire.table.metadata import Examiner
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.inspection import Inspection, inspect_entry
from pulsarctl_wire.wire.payload import Budget
from pulsarctl_wire.wire.PulsarApi_pb2 import ZLIB, BaseCommand, MessageMetadata


def sent(payload: bytes, number: int = 0, *, damage: int = 0, **fields: Any) -> Frame:
    """A SEND whose last byte is changed by `damage`."""
    base = BaseCommand(type=BaseCommand.SEND)
    base.send.producer_id, base.send.sequence_id = 1, number
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, **fields)
    raw = bytearray(build_frame(base, metadata, payload))
    raw[-1] ^= damage
    (frame,) = FrameStream(Connection(0), True).feed(bytes(raw))
    assert isinstance(frame, Frame)
    return frame


PACKED = zlib.compress(b"x" * 100)


@pytest.mark.parametrize(
    ("frame", "size"),
    [
        (sent(PACKED, compression=ZLIB, uncompressed_size=100), None),
        (sent(PACKED, compression=ZLIB, uncompressed_size=99), 100),
        (sent(PACKED, compression=ZLIB), 100),
        (sent(b"no zlib", compression=ZLIB, uncompressed_size=100), -1),
        (sent(b"no zlib", compression=ZLIB, num_chunks_from_msg=2), None),
        (sent(b"plain"), None),
    ],
)
def test_sizes_of_payloads(frame: Frame, size: int | None) -> None:
    start = 8 + frame.command_size
    found = (
        {}
        if size is None
        else {"unpacked_size": size, "head_crc": crc32c(frame.raw[start : frame.payload_at])}
    )
    assert dict(Examiner().examine(frame)) == found


def test_a_wrong_checksum_has_a_digest_that_tells_copies() -> None:
    examiner = Examiner()
    frames = [sent(b"one", damage=1), sent(b"one", damage=1), sent(b"one", 7, damage=1)]
    one, copy, other = (dict(examiner.examine(frame)) for frame in frames)
    assert one == copy != other
    assert one.keys() == {"head_crc"}


def test_checksums_of_payloads_that_decompress(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def counted(metadata: MessageMetadata, payload: bytes, budget: Budget) -> Inspection:
        calls.append(payload)
        return inspect_entry(metadata, payload, budget)

    monkeypatch.setattr(metadata, "_MAX_INTACT", 10)
    monkeypatch.setattr(metadata, "inspect_entry", counted)
    examiner = Examiner()
    frames = [sent(PACKED, number, compression=ZLIB, uncompressed_size=100) for number in range(25)]
    for frame in (*frames, frames[-1]):
        assert not dict(examiner.examine(frame))
    assert len(calls) == 25  # the last one is known
    assert len(examiner._intact) <= 10
    assert not dict(examiner.examine(frames[0]))
    assert len(calls) == 26
