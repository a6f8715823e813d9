"""Why a checksum is wrong: each kind of cause, any flipped bit, and nothing that is not certain."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from segments import PING, message, send
from strategies import message_frames, send_frames

from pulsarctl_wire import read_frames
from pulsarctl_wire.wire.checksum_cause import describe_checksum_cause, explain_checksum, find_checksum_cause
from pulsarctl_wire.wire.frame import Connection, Frame, build_frame
from pulsarctl_wire.wire.frame_entry import build_cut_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

FILES = Path(__file__).parent / "checksums"
EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text())
ALL_ONES = 0xFFFFFFFF


def parse(raw: bytes) -> Frame:
    stream = FrameStream(Connection(0), True)
    [frame] = [*stream.feed(raw), *stream.close()]
    assert isinstance(frame, Frame)
    return frame


def with_broker_entry(raw: bytes) -> bytes:
    frame = parse(raw)
    assert frame.base is not None
    entry = BrokerEntryMetadata(broker_timestamp=2000, index=7)
    return build_frame(frame.base, frame.metadata, frame.payload, broker_entry=entry)


FRAMES = {
    "SEND": send(b"a payload"),
    "without payload": send(b""),
    "MESSAGE": message(b"a payload"),
    "with broker entry": with_broker_entry(message(b"a payload")),
}


def checksum_at(raw: bytes) -> int:
    """Where the checksum of a frame is."""
    start, _ = parse(raw).parts.checksum
    return start


def with_checksum(raw: bytes, number: int) -> Frame:
    at = checksum_at(raw)
    return parse(raw[:at] + number.to_bytes(4, "big") + raw[at + 4 :])


def flip(raw: bytes, *bits: int) -> bytes:
    """Flip bits, numbered from the first byte's lowest one."""
    out = bytearray(raw)
    for bit in bits:
        out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


@pytest.mark.parametrize("name", EXPECTED)
def test_causes_in_files(name: str) -> None:
    _, frame = read_frames(FILES / name)
    assert find_checksum_cause(frame) == EXPECTED[name]


MISTAKES: dict[str, Callable[[bytes], int]] = {
    "zero": lambda covered: 0,
    "crc32": zlib.crc32,
    "byte_order": lambda covered: int.from_bytes(crc32c(covered).to_bytes(4, "little"), "big"),
    "not_inverted": lambda covered: crc32c(covered, ALL_ONES),
    "not_inverted ": lambda covered: crc32c(covered) ^ ALL_ONES,
    "not_inverted  ": lambda covered: crc32c(covered, ALL_ONES) ^ ALL_ONES,
    "masked": lambda covered: ((crc32c(covered) >> 15 | crc32c(covered) << 17) + 0xA282EAD8) % 2**32,
    "unknown": lambda covered: zlib.adler32(covered),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_of_the_sender(kind: str, frame: str) -> None:
    raw = FRAMES[frame]
    number = MISTAKES[kind](raw[checksum_at(raw) + 4 :])
    assert find_checksum_cause(with_checksum(raw, number)) == {"kind": kind.strip()}


def test_the_inversions_are_those_of_the_definition() -> None:
    """The check value of the catalogue of CRCs, computed bit by bit, with and without inversions."""

    def compute(data: bytes, first: int, last: int) -> int:
        crc = first
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ last

    assert compute(b"123456789", ALL_ONES, ALL_ONES) == 0xE3069283
    raw = FRAMES["SEND"]
    covered = raw[checksum_at(raw) + 4 :]
    for first, last in ((0, ALL_ONES), (ALL_ONES, 0), (0, 0)):
        cause = find_checksum_cause(with_checksum(raw, compute(covered, first, last)))
        assert cause == {"kind": "not_inverted"}


Range = Callable[[bytes, bytes, int], bytes]  # of a frame's command, what is covered, and its metadata's size
MAGIC, ZEROS = b"\x0e\x01", bytes(4)
RANGES: dict[str, Range] = {
    "metadata and payload": lambda command, covered, size: covered[4:],
    "payload": lambda command, covered, size: covered[4 + size :],
    "metadata size and metadata": lambda command, covered, size: covered[: 4 + size],
    "metadata": lambda command, covered, size: covered[4 : 4 + size],
    "magic, metadata size, metadata and payload": lambda command, covered, size: MAGIC + covered,
    "magic, zeros for the checksum, metadata size, metadata and payload": (
        lambda command, covered, size: MAGIC + ZEROS + covered
    ),
    "command, metadata size, metadata and payload": lambda command, covered, size: command[8:] + covered,
    "command, magic, metadata size, metadata and payload": (
        lambda command, covered, size: command[8:] + MAGIC + covered
    ),
    "command, magic, zeros for the checksum, metadata size, metadata and payload": (
        lambda command, covered, size: command[8:] + MAGIC + ZEROS + covered
    ),
    "total size, command size, command, magic, zeros for the checksum, metadata size, metadata and payload": (
        lambda command, covered, size: command + MAGIC + ZEROS + covered
    ),
}


@pytest.mark.parametrize("frame", ["SEND", "MESSAGE", "with broker entry"])
@pytest.mark.parametrize("covers", RANGES)
def test_other_ranges(covers: str, frame: str) -> None:
    raw = FRAMES[frame]
    right = parse(raw)
    head, covered = raw[: 8 + right.command_size], raw[right.metadata_at - 4 :]
    number = crc32c(RANGES[covers](head, covered, right.payload_at - right.metadata_at))
    assert find_checksum_cause(with_checksum(raw, number)) == {"kind": "range", "covers": covers}


def test_ranges_with_the_same_bytes() -> None:
    """Without payload one name stands for both; all of what is covered is never a wrong range."""
    raw = FRAMES["without payload"]
    frame = parse(raw)
    cause = find_checksum_cause(with_checksum(raw, crc32c(raw[frame.metadata_at :])))
    assert cause == {"kind": "range", "covers": "metadata and payload"}
    assert with_checksum(raw, crc32c(raw[frame.metadata_at - 4 :])).checksum == "valid"


def test_a_mistake_shows_even_if_the_metadata_size_is_impossible() -> None:
    raw = FRAMES["SEND"]
    start = checksum_at(raw) + 4
    raw = flip(raw, 8 * start + 6)
    for number, cause in (
        (zlib.crc32(raw[start:]), {"kind": "crc32"}),
        (crc32c(raw[start + 4 :]), {"kind": "range", "covers": "metadata and payload"}),
    ):
        frame = with_checksum(raw, number)
        assert frame.payload_at == 0
        assert find_checksum_cause(frame) == cause


@given(raw=send_frames() | message_frames(), data=st.data())
def test_any_single_flipped_bit_is_found(raw: bytes, data: st.DataObject) -> None:
    if parse(raw).checksum == "absent":
        return
    bit = data.draw(st.integers(8 * checksum_at(raw), 8 * len(raw) - 1))
    frame = parse(flip(raw, bit))
    assert frame.checksum == "invalid"
    assert find_checksum_cause(frame) == {"kind": "bit", "offset": bit // 8, "bit": bit % 8}


@given(size=st.integers(0, 200_000), seed=st.integers(0, 255), data=st.data())
def test_any_size_will_do(size: int, seed: int, data: st.DataObject) -> None:
    raw = send(bytes([seed]) * size)
    bit = data.draw(st.integers(8 * checksum_at(raw), 8 * len(raw) - 1))
    assert find_checksum_cause(parse(flip(raw, bit))) == {"kind": "bit", "offset": bit // 8, "bit": bit % 8}


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_large_frame(place: float) -> None:
    raw = send(bytes(range(256)) * 20_479)
    first, last = 8 * checksum_at(raw), 8 * len(raw) - 1
    bit = round(first + place * (last - first))
    assert find_checksum_cause(parse(flip(raw, bit))) == {"kind": "bit", "offset": bit // 8, "bit": bit % 8}


@given(raw=send_frames() | message_frames(), data=st.data())
def test_other_damage_is_not_taken_for_a_mistake(raw: bytes, data: st.DataObject) -> None:
    if parse(raw).checksum == "absent":
        return
    places = st.integers(8 * checksum_at(raw), 8 * len(raw) - 1)
    bits = data.draw(st.lists(places, min_size=2, max_size=40, unique=True))
    frame = parse(flip(raw, *bits))
    cause = find_checksum_cause(frame)
    if frame.checksum != "valid":
        assert cause is not None
        assert cause["kind"] in ("bit", "unknown")
        if cause["kind"] == "bit":
            assert parse(flip(frame.raw, 8 * cause["offset"] + cause["bit"])).checksum == "valid"


def test_frames_that_are_not_judged() -> None:
    raw = FRAMES["SEND"]
    wrong = with_checksum(raw, 0).raw
    cut = build_cut_frame(wrong[:-1], Connection(0), True, 0, None, 0)
    base, metadata = BaseCommand(type=BaseCommand.SEND), MessageMetadata()
    base.send.producer_id = base.send.sequence_id = 1
    metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 1, 1
    unchecked = build_frame(base, metadata, checksum=False)
    for frame in (cut, *map(parse, (raw, unchecked, PING))):
        assert find_checksum_cause(frame) is None
        assert explain_checksum(frame) == ""


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ({"kind": "zero"}, "0 stands in its place"),
        ({"kind": "crc32"}, "it is zlib's CRC-32, not CRC32-C"),
        (
            {"kind": "range", "covers": "metadata and payload"},
            "it covers metadata and payload; right is metadata size, metadata and payload",
        ),
        (
            {"kind": "bit", "offset": 88, "bit": 5},
            "one flipped bit explains it: bit 5 of byte 88 (0x58)",
        ),
        ({"kind": "unknown"}, "no usual mistake and no single flipped bit explains it"),
    ],
)
def test_causes_in_words(cause: dict[str, Any], words: str) -> None:
    assert describe_checksum_cause(cause) == words


def test_every_kind_has_words() -> None:
    assert all(describe_checksum_cause({"kind": kind.strip()}) for kind in MISTAKES)
