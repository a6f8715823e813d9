"""Streams: any chunking, every kind of damage, other protocols, limits."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import cuts, frames_to_broker, request_frames, send_frames

from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, Connection, Event, Frame, Gap, Malformed, build_frame
from pulsarctl_wire.wire.framing import resync
from pulsarctl_wire.wire.framing import stream as stream_module
from pulsarctl_wire.wire.framing.stream import MAX_EVENTS, FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata

PING = bytes.fromhex("00000009000000050812920100")
PONG = bytes.fromhex("000000090000000508139a0100")
FLOW = bytes.fromhex("0000000d00000009080b5a05080110e807")
SEND = bytes.fromhex("000000250000000808063204080110000e01c633c1950000000a0a0170100018e807480568656c6c6f")


def decode(*chunks: bytes, from_start: bool = True, limit: int = MAX_FRAME_SIZE) -> list[Event]:
    stream = FrameStream(Connection(0), True, from_start=from_start, limit=limit)
    events = [event for number, chunk in enumerate(chunks) for event in stream.feed(chunk, number, number)]
    return [*events, *stream.close()]


def gist(events: list[Event]) -> list[tuple[object, ...]]:
    """What must not depend on chunking: all but times and packets."""
    return [
        (event.offset, event.command, event.raw, event.partial, event.checksum, tuple(event.notes))
        if isinstance(event, Frame)
        else (event.offset, type(event).__name__, event.size, getattr(event, "reason", ""))
        for event in events
    ]


def commands(events: list[Event]) -> list[str]:
    return [event.command if isinstance(event, Frame) else type(event).__name__ for event in events]


@given(st.data(), frames_to_broker)
def test_any_chunking_gives_the_same_frames(data: st.DataObject, frames: list[bytes]) -> None:
    whole = b"".join(frames)
    events = decode(*data.draw(cuts(whole)))
    assert [event.raw for event in events if isinstance(event, Frame)] == frames
    assert gist(events) == gist(decode(whole))


@given(st.data(), frames_to_broker, st.booleans())
def test_any_chunking_of_damaged_bytes_gives_the_same_events(
    data: st.DataObject, frames: list[bytes], from_start: bool
) -> None:
    whole = bytearray(b"".join(frames))
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)))):
        whole[place] = value
    once = decode(bytes(whole), from_start=from_start)
    assert gist(decode(*data.draw(cuts(bytes(whole))), from_start=from_start)) == gist(once)
    assert gist(decode(*(bytes([byte]) for byte in whole), from_start=from_start)) == gist(once)


@given(frames_to_broker, st.binary(max_size=200))
def test_every_byte_is_accounted_for(frames: list[bytes], noise: bytes) -> None:
    events = decode(b"".join(frames) + noise)
    at = 0
    for event in events:
        assert event.offset == at
        at += event.size if isinstance(event, Malformed) else len(event.raw)  # type: ignore[union-attr]
    assert at == sum(map(len, frames)) + len(noise)


@given(st.integers(0, len(SEND) - 1))
def test_a_capture_begun_inside_a_frame_finds_the_next_pair(cut: int) -> None:
    events = decode(SEND[cut:] + PING + FLOW + SEND, from_start=False)
    found = [event for event in events if isinstance(event, Frame)]
    assert [frame.command for frame in found][-3:] == ["PING", "FLOW", "SEND"]
    assert len(found) == (4 if cut == 0 else 3)
    if cut:
        assert isinstance(events[0], Malformed)
        assert events[0].size == len(SEND) - cut
        assert events[0].reason == "the capture began inside a frame"


def test_frames_inside_a_payload_are_not_taken_for_frames() -> None:
    inner = PING + FLOW + SEND
    outer = build_frame(
        BaseCommand.FromString(SEND[8:16]), MessageMetadata.FromString(SEND[26:36]), inner * 3
    )
    assert commands(decode(outer + PING)) == ["SEND", "PING"]


def test_a_gap_inside_a_frame_goes_on_at_its_end() -> None:
    stream = FrameStream(Connection(0), True)
    events = stream.feed(PING + SEND[:30], 1, 1)
    events += stream.gap(len(SEND) - 31, 2, 2)
    events += stream.feed(SEND[-1:] + FLOW, 3, 3)
    assert commands(events) == ["PING", "SEND", "Gap", "FLOW"]
    partial = events[1]
    assert isinstance(partial, Frame)
    assert partial.partial
    assert partial.raw == SEND[:30]
    assert partial.checksum is None
    assert isinstance(events[2], Gap)
    assert (events[2].offset, events[2].size) == (len(PING) + 30, len(SEND) - 31)


def test_a_gap_over_a_frame_border_searches_for_one_frame_at_once() -> None:
    stream = FrameStream(Connection(0), True)
    events = stream.feed(SEND[:20]) + stream.gap(40) + stream.feed(PING)
    assert commands(events) == ["SEND", "Gap", "PING"]


def test_a_gap_between_frames_that_hides_a_border_needs_two_frames() -> None:
    stream = FrameStream(Connection(0), True)
    events = stream.feed(PING) + stream.gap(17) + stream.feed(b"tail of it" + FLOW)
    assert commands(events) == ["PING", "Gap"]
    events += stream.feed(PING)
    assert commands(events) == ["PING", "Gap", "Malformed", "FLOW", "PING"]


def test_a_frame_sent_the_other_way_is_not_believed_after_a_gap() -> None:
    stream = FrameStream(Connection(0), False)
    events = stream.feed(PONG) + stream.gap(5) + stream.feed(FLOW + FLOW) + stream.close()
    assert commands(events) == ["PONG", "Gap", "Malformed"]


def test_a_command_that_does_not_parse_is_passed_over_by_its_length() -> None:
    broken = bytearray(FLOW)
    broken[8] = 0xFF
    events = decode(PING + bytes(broken) + SEND)
    assert commands(events) == ["PING", "Malformed", "SEND"]
    assert isinstance(events[1], Malformed)
    assert events[1].size == len(FLOW)
    assert events[1].raw == bytes(broken)


@pytest.mark.parametrize("head", ["0000000000000000", "00000009000000ff", "0000000300000001"])
def test_sizes_that_do_not_fit_together(head: str) -> None:
    events = decode(PING + bytes.fromhex(head) + FLOW + PING)
    assert commands(events) == ["PING", "Malformed", "FLOW", "PING"]
    assert "do not fit together" in events[1].reason  # type: ignore[union-attr]


def large(size: int) -> bytes:
    base = BaseCommand.FromString(SEND[8:16])
    return build_frame(base, MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), bytes(size))


def test_a_real_frame_over_the_limit_is_shown_and_noted() -> None:
    frame = large(2000)
    events = decode(frame + PING, limit=1000)
    assert commands(events) == ["SEND", "PING"]
    assert list(events[0].notes) == [f"frame of {len(frame)} bytes, over the limit of 1000"]  # type: ignore[union-attr]
    assert gist(decode(*(frame[at : at + 7] for at in range(0, len(frame), 7)), PING, limit=1000)) == gist(
        events
    )


def test_many_frames_over_the_limit_in_one_chunk() -> None:
    assert commands(decode(large(200) * 3000, limit=100)) == ["SEND"] * 3000


def test_a_frame_too_large_to_keep_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_KEPT_FRAME", 1000)
    frame = large(2000)
    events = decode(frame + PING)
    assert commands(events) == ["SEND", "PING"]
    assert events[0].partial  # type: ignore[union-attr]
    assert len(events[0].raw) < 100  # type: ignore[union-attr]


def test_a_length_over_the_limit_that_is_no_frame() -> None:
    events = decode(PING + b"\x7f" + bytes(30) + FLOW + PING)
    assert commands(events) == ["PING", "Malformed", "FLOW", "PING"]


@pytest.mark.parametrize(
    ("head", "protocol", "reason"),
    [
        (b"\x16\x03\x01\x05\xff\x01\x00\x05\xfb\x03\x03ABCDEFGH", "TLS", "not Pulsar: TLS handshake record"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "TLS", "not Pulsar: TLS alert record"),
        (b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP", "not Pulsar: HTTP: GET /admin HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "HTTP", "not Pulsar: HTTP: HTTP/1.1 200 OK"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH", "not Pulsar: SSH: SSH-2.0-OpenSSH_9.2"),
    ],
)
def test_other_protocols_are_named(head: bytes, protocol: str, reason: str) -> None:
    for chunks in (
        [head + b"more" * 50],
        [head, b"more" * 50],
        [bytes([byte]) for byte in head + b"more" * 50],
    ):
        events = decode(*chunks)
        assert len(events) == 1
        assert isinstance(events[0], Malformed)
        assert (events[0].protocol, events[0].reason, events[0].size) == (protocol, reason, len(head) + 200)


V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)


@pytest.mark.parametrize("header", [b"PROXY TCP4 10.0.0.1 10.0.0.2 56324 6650\r\n", V2])
def test_a_proxy_header_is_named_and_the_frames_after_it_decoded(header: bytes) -> None:
    for chunks in ([header + PING + SEND], [bytes([byte]) for byte in header + PING + SEND]):
        events = decode(*chunks)
        assert commands(events) == ["Malformed", "PING", "SEND"]
        assert "PROXY protocol v" in events[0].reason  # type: ignore[union-attr]
        assert events[0].size == len(header)


def test_a_frame_over_several_packets_names_them_all() -> None:
    stream = FrameStream(Connection(0), True)
    events = stream.feed(PING + SEND[:5], 1, 11)
    events += stream.feed(SEND[5:20], 2, 12)
    events += stream.feed(SEND[20:] + FLOW, 3, 13)
    assert [tuple(event.packets) or (event.packet,) for event in events] == [(11,), (11, 12, 13), (13,)]
    assert events[1].time_ns == 3


def test_a_long_foreign_stretch_keeps_only_its_head() -> None:
    stream = FrameStream(Connection(0), True)
    for _ in range(100):
        stream.feed(b"GET / " + bytes(100_000))
    (event,) = stream.close()
    assert isinstance(event, Malformed)
    assert event.size == 100 * 100_006
    assert len(event.raw) == Malformed.KEPT


def test_a_search_gives_up_large_candidates_before_it_takes_for_ever() -> None:
    # each line claims a frame of a megabyte with a sane command: judging all of them would take hours
    bait = (1_000_000).to_bytes(4, "big") + SEND[4:16] + b"xx"
    events = decode(b"\xff" * 8 + bait * 20_000 + PING + FLOW)
    assert commands(events) == ["Malformed", "PING", "FLOW"]


def candidate(size: int) -> bytes:
    """A PING with so many bytes of unknown fields: no frame is believed that is like this."""
    size -= size % 3
    return (
        (size + 9).to_bytes(4, "big")
        + (size + 5).to_bytes(4, "big")
        + PING[8:]
        + b"\xc0\x3e\x00" * (size // 3)
    )


def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the commands that are judged from now on."""
    sizes: list[int] = []
    sane = resync.check_command

    def noted(command: bytes, to_broker: bool | None) -> int:
        sizes.append(len(command))
        return sane(command, to_broker)

    monkeypatch.setattr(resync, "check_command", noted)
    return sizes


def test_all_searches_of_a_stream_give_up_large_candidates_together(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = b"".join(candidate(60_000 - at)[:13] for at in range(0, 1300, 13)) + candidate(58_700)
    bad = PING * 2 + b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff"
    sizes = judged(monkeypatch)
    stream = FrameStream(Connection(0), True)
    for data in [bad + nested] * 5:
        stream.feed(data)
        stream.gap(1_000_000)  # which pays nothing back
    spent = sum(size for size in sizes if size > 256)
    assert 500_000 < spent < 1_200_000 + 8 * 5 * len(bad + nested)
    assert stream.is_in_debt
    stream.feed(PING * 200_000)
    assert not stream.is_in_debt


def portions(stream: FrameStream, whole: bytes) -> Iterator[list[Event]]:
    yield stream.take(whole)
    while stream.has_more:
        yield stream.take_more()
    while more := stream.settle():
        yield more
    yield stream.close()


@pytest.mark.parametrize("tail", [b"", b"\xff" * 5_000], ids=["ended", "refuted"])
def test_what_a_candidate_hid_comes_in_portions(tail: bytes) -> None:
    """A large frame is waited for after damage; it is none, and was full of small ones."""
    damage = PING * 2 + b"\0\0\0\x09\0\0\0\x05\xff\xff\xff\xff\xff"
    hidden = PING * (3 * MAX_EVENTS)
    claimed = (12 + len(hidden) + 1_000).to_bytes(4, "big") + SEND[4:16]
    whole = damage + claimed + hidden + tail
    taken = list(portions(FrameStream(Connection(0), True), whole))
    assert max(map(len, taken)) < 2 * MAX_EVENTS
    events = [event for events in taken for event in events]
    assert gist(events) == gist(decode(whole))
    assert [event.raw for event in events if isinstance(event, Frame)] == [PING] * (2 + 3 * MAX_EVENTS)


def test_any_chunking_of_candidates_gives_the_same_events() -> None:
    whole = b"\xff" * 8 + b"".join(candidate(300 * each) for each in range(20)) + PING + FLOW + b"\xff" * 9
    whole = whole * 3 + candidate(60_000)[:30_000]
    once = gist(decode(whole))
    for size in (7, 1_000, 65_536):
        assert gist(decode(*(whole[at : at + size] for at in range(0, len(whole), size)))) == once


@example(frames=[PING], noise=b"\x00\x00\x00\x05")
@given(st.lists(st.one_of(send_frames(), request_frames()), max_size=4), st.binary(min_size=1, max_size=300))
def test_noise_never_raises_and_never_hides_what_came_before(frames: list[bytes], noise: bytes) -> None:
    events = decode(b"".join(frames) + noise)
    assert [event.raw for event in events if isinstance(event, Frame)][: len(frames)] == frames
