"""Sizes and checksums of frames that were changed by hand."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pulsarctl_wire.conformance.basics.frames import make_frame, make_send
from pulsarctl_wire.wire.frame import Connection, Frame
from pulsarctl_wire.wire.framing.refit import refit
from pulsarctl_wire.wire.framing.stream import FrameStream

PING = make_frame("PING")


def producer(topic: str) -> bytes:
    return make_frame("PRODUCER", topic=topic, producer_id=1, request_id=2)


def send(payload: bytes) -> bytes:
    return make_send(7, payload)


def decode(data: bytes) -> Frame:
    (frame,) = FrameStream(Connection(0), True).feed(data)
    assert isinstance(frame, Frame)
    return frame


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_another_payload(one: bytes, other: bytes) -> None:
    before, wanted = send(one), send(other)
    head = before[: len(before) - len(one)]
    assert refit(before, head + other) == wanted
    assert decode(wanted).checksum == "valid"


@given(st.text("abc", max_size=9), st.text("abc", max_size=9))
def test_another_command(one: str, other: str) -> None:
    before, wanted = producer(one), producer(other)
    assert refit(before, before[:8] + wanted[8:]) == wanted


def test_other_metadata() -> None:
    before = send(b"payload")
    frame = decode(before)
    stop = frame.payload_at
    after = refit(
        before, before[:stop] + b"\xa8\x01\x09" + before[stop:]
    )  # appended to it, or before the payload
    changed = decode(after)
    assert changed.checksum == "valid"
    assert changed.size == len(after)
    inside = refit(before, before[: stop - 2] + b"\xa8\x01\x09" + before[stop - 2 :])
    assert decode(inside).payload_at == stop + 3


def test_what_was_typed_stays() -> None:
    before = send(b"payload")
    checksum = decode(before).parts.checksum[0]
    wrong = before[:checksum] + b"\0\0\0\0" + before[checksum + 4 : -1] + b"D"
    assert refit(before, wrong) == wrong
    assert refit(before, b"\0\0\0\7" + before[4:]) == b"\0\0\0\7" + before[4:]
    cut = before[:4] + b"\0\0\0\1" + before[8:]
    assert refit(before, cut) == cut


@given(st.binary(max_size=60), st.binary(max_size=60))
@example(PING, b"")
@example(PING, PING)
@example(send(b"x"), b"")
@example(b"", PING)
def test_any_bytes(before: bytes, after: bytes) -> None:
    assert len(refit(before, after)) == len(after)
    if before == after:
        assert refit(before, after) == after
