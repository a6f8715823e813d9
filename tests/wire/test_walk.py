"""The walk from header to header stops where it should, however the bytes come, and in both of its ways."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import cuts, frames_to_broker, message_frames

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME, build_frame
from pulsarctl_wire.wire.framing import walk
from pulsarctl_wire.wire.framing.foreign import PROXY_V2, proxy_header
from pulsarctl_wire.wire.framing.proxy_header import build_header
from pulsarctl_wire.wire.framing.walk import HEAD, MAX_WANTED, FrameWalk
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

PING = build_frame(build_command("PING"))
LOOKUP = build_frame(build_command("LOOKUP", topic="t", request_id=1))
SMALLEST = b"\0\0\0\x06\0\0\0\x02\x08\x07"
"""No frame is smaller."""


def head(total: int, command: int = 5, tag: int = 8, kind: int = 6) -> bytes:
    """How a frame begins whose fields are these."""
    return struct.pack(">IIBB", total, command, tag, kind)


sizes = st.one_of(
    st.integers(0, 20),
    st.sampled_from(
        [MAX_WANTED - 1, MAX_WANTED, MAX_WANTED + 1, MAX_KEPT_FRAME - 1, MAX_KEPT_FRAME, MAX_KEPT_FRAME + 1]
    ),
    st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]),
)
heads = st.builds(head, sizes, sizes, st.sampled_from([8, 8, 8, 0]), st.integers(0, 255))
parts = st.one_of(
    st.sampled_from([PING, LOOKUP, SMALLEST]),
    heads,
    st.binary(max_size=20),
    message_frames(),
    frames_to_broker,
)
streams = st.lists(parts, max_size=8).map(
    lambda found: b"".join(part if isinstance(part, bytes) else b"".join(part) for part in found)
)
"""Frames, half frames, heads that make sense or none, and anything else."""

begun_headers = st.builds(
    lambda size, rest: (PROXY_V2 + b"\x21\x11\0\x0c" + bytes(12))[:size] + rest, st.integers(1, 28), streams
)

tables = st.one_of(
    st.binary(min_size=256, max_size=256).map(lambda table: bytes(value % 3 for value in table)),
    st.sampled_from([bytes(256), bytes([1] * 256), bytes([2] * 256)]),
)
wanted_kinds = st.frozensets(st.sampled_from([*BaseCommand.Type.values()]), max_size=70)


@given(streams, tables, st.integers(0, 300))
@example(PING * 3 + LOOKUP, bytes([kind == BaseCommand.LOOKUP for kind in range(256)]), 0)
@example(SMALLEST * 2 + PING[:9], bytes(256), 0)
@example(head(MAX_KEPT_FRAME), bytes(256), 0)
@example(head(10, command=1), bytes(256), 0)
@example(head(8, command=5), bytes(256), 0)
@example(head(10, tag=0), bytes(256), 0)
@example(head(2**32 - 1, 2**32 - 1), bytes([2] * 256), 0)
def test_both_ways_are_one(data: bytes, table: bytes, start: int) -> None:
    assert walk._skip_by_bytes(data, start, table) == walk._skip_by_heads(data, start, table)


def model(data: bytes, wanted: frozenset[int], every: bool) -> tuple[list[tuple[int, int]], int, bool]:
    """Where wanted frames lie in a whole direction, how many others begin, and whether it gets lost."""
    at, known = proxy_header(data)
    if at and not known:
        return [], 0, False  # there may be more of a PROXY header to come
    others = 0
    found: list[tuple[int, int]] = []
    while len(data) - at >= HEAD:
        total, command, tag, kind = struct.unpack_from(">IIBB", data, at)
        if tag != 8 or command < 2 or command + 4 > total or total > MAX_KEPT_FRAME:
            return found, others, True
        if every or (kind in wanted and total <= MAX_WANTED):
            found.append((at, at + 4 + total))
        else:
            others += 1
        at += 4 + total
    return found, others, at < len(data) and data[at] > 4


def walked(
    chunks: list[bytes], wanted: frozenset[int], every: bool
) -> tuple[bytes, list[tuple[int, int]], FrameWalk]:
    """All bytes as they were passed on, and where frames were looked at: as a lane does it."""
    walker = FrameWalk(wanted)
    walker.want_all(every)
    passed, held, looked_at = bytearray(), b"", []
    for chunk in chunks:
        data, held, at = held + chunk, b"", 0
        while at < len(data):
            stop = walker.walk(data, at)
            assert at <= stop <= len(data)
            passed += data[at:stop]
            at = stop
            size = walker.size(data, at)
            if at == len(data) or not size or len(data) - at < size:
                held = data[at:]
                break
            looked_at.append((len(passed), len(passed) + size))
            passed += data[at : at + size]
            at += size
    return bytes(passed) + held, looked_at, walker


@given(streams | begun_headers, wanted_kinds, st.booleans(), st.data())
def test_however_the_bytes_come(
    data: bytes, wanted: frozenset[int], every: bool, draw: st.DataObject
) -> None:
    passed, looked_at, walker = walked(draw.draw(cuts(data)), wanted, every)
    expected, others, lost = model(data, wanted, every)
    assert passed == data
    assert looked_at == [each for each in expected if each[1] <= len(data)]
    assert (walker.frames, walker.lost) == (others, lost)


@given(st.lists(st.sampled_from([PING, LOOKUP, SMALLEST]), max_size=5))
def test_byte_by_byte(frames: list[bytes]) -> None:
    data = b"".join(frames)
    passed, looked_at, walker = walked(
        [bytes([byte]) for byte in data], frozenset([BaseCommand.LOOKUP]), False
    )
    assert passed == data
    assert len(looked_at) == frames.count(LOOKUP)
    assert walker.frames == len(frames) - len(looked_at)
    assert (walker.left, walker.lost) == (0, False)


def test_wanted_frames_are_stopped_at() -> None:
    walker = FrameWalk(frozenset([BaseCommand.LOOKUP]))
    data = PING + PING + LOOKUP + PING
    at = 2 * len(PING)
    assert walker.walk(data, 0) == at
    assert walker.size(data, at) == len(LOOKUP)
    assert walker.walk(data, at + len(LOOKUP)) == len(data)
    assert walker.frames == 3


@pytest.mark.parametrize("cut", range(1, HEAD))
def test_half_a_head_is_stopped_at(cut: int) -> None:
    walker = FrameWalk(frozenset())
    data = PING + PING[:cut]
    assert walker.walk(data, 0) == len(PING)
    assert walker.size(data, len(PING)) == 0
    assert (walker.frames, walker.left) == (1, 0)


def test_what_is_left_of_a_frame() -> None:
    walker = FrameWalk(frozenset())
    assert walker.walk(head(1000) + bytes(90), 0) == 100
    assert (walker.frames, walker.left) == (1, 904)
    assert walker.walk(bytes(900), 0) == 900
    assert walker.left == 4
    assert walker.walk(bytes(4) + PING, 0) == 4 + len(PING)
    assert (walker.frames, walker.left) == (2, 0)


@pytest.mark.parametrize(("total", "stops"), [(MAX_WANTED, True), (MAX_WANTED + 1, False)])
def test_large_frames_are_not_stopped_at_unless_all_are(total: int, stops: bool) -> None:
    data = head(total, kind=BaseCommand.LOOKUP_RESPONSE)
    walker = FrameWalk(frozenset([BaseCommand.LOOKUP_RESPONSE]))
    assert walker.walk(data, 0) == (0 if stops else len(data))
    walker = FrameWalk(frozenset())
    walker.want_all(True)
    assert walker.walk(data, 0) == 0
    assert walker.size(data, 0) == 4 + total


def test_all_are_wanted_for_a_while() -> None:
    walker = FrameWalk(frozenset([BaseCommand.LOOKUP]))
    assert walker.walk(PING, 0) == len(PING)
    walker.want_all(True)
    assert walker.walk(PING, 0) == 0
    walker.want_all(False)
    assert walker.walk(PING, 0) == len(PING)
    assert walker.walk(LOOKUP, 0) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"GET",
        b"\x16\x03\x01\x02\0\x01\0",
        b"\x05",
        head(10, tag=0),
        head(10, command=1),
        head(8, command=5),
        head(MAX_KEPT_FRAME + 1),
        head(0, 0, 0, 0),
    ],
)
def test_what_is_no_frame_is_passed_over_for_good(data: bytes) -> None:
    """At once, too, where there is less of it than a frame's head."""
    walker = FrameWalk(frozenset([BaseCommand.PING]))
    walker.want_all(True)
    assert walker.walk(data, 0) == len(data)
    assert walker.lost
    assert walker.walk(PING, 0) == len(PING)
    assert (walker.frames, walker.left) == (0, 0)


@pytest.mark.parametrize(
    "data", [head(9), head(MAX_KEPT_FRAME), head(6, 2), head(MAX_KEPT_FRAME, MAX_KEPT_FRAME - 4)], ids=repr
)
def test_what_may_be_a_frame_is_one(data: bytes) -> None:
    walker = FrameWalk(frozenset())
    assert walker.walk(data, 0) == len(data)
    assert not walker.lost
    assert walker.frames == 1
    assert walker.left == walker.size(data, 0) - HEAD


# ---- A PROXY header before all ----

HEADERS = [build_header(version, ("192.0.2.7", 1234), ("192.0.2.1", 6650)) for version in (1, 2)]


@pytest.mark.parametrize("header", HEADERS, ids=["v1", "v2"])
def test_a_proxy_header_before_the_frames_is_passed_over(header: bytes) -> None:
    for rest in (LOOKUP, PING + LOOKUP, LOOKUP[:5]):
        walker = FrameWalk(frozenset([BaseCommand.LOOKUP]))
        assert walker.walk(header + rest, 0) == len(header) + len(rest) - len(LOOKUP[: len(rest)])
        assert not walker.lost


@pytest.mark.parametrize("header", HEADERS, ids=["v1", "v2"])
@pytest.mark.parametrize("step", [1, 7, 15])
def test_a_proxy_header_in_pieces(header: bytes, step: int) -> None:
    data = header + PING + LOOKUP
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    passed, looked_at, walker = walked(chunks, frozenset([BaseCommand.LOOKUP]), False)
    assert passed == data
    assert not walker.lost
    assert looked_at == [(len(data) - len(LOOKUP), len(data))]


def test_a_proxy_header_after_a_frame_is_none() -> None:
    walker = FrameWalk(frozenset())
    assert walker.walk(PING + HEADERS[0] + PING, 0) == len(PING + HEADERS[0] + PING)
    assert walker.lost
