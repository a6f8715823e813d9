"""Bytes without their credentials: the decoder finds the same frames in them, and no secret is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import cuts, request_frames, send_frames

from pulsarctl_wire.record import Recorder
from pulsarctl_wire.render.line import LineRenderer
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.wire.commands import NAMES, build_command
from pulsarctl_wire.wire.credentials import WITH_SECRETS
from pulsarctl_wire.wire.frame import Connection, Event, Frame, Malformed, build_frame
from pulsarctl_wire.wire.framing.redaction import Redactor, event_spans, mask_spans
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.PulsarApi_pb2 import MessageMetadata

TOKEN = b"not-to-be-seen-by-anybody"
STARS = b"*" * len(TOKEN)


def frame(name: str, **fields: Any) -> bytes:
    return build_frame(build_command(name, **fields))


TEXT = TOKEN.decode()
SECRET = {
    "CONNECT": frame("CONNECT", client_version="c", auth_data=TOKEN, original_auth_data=TEXT),
    "AUTH_RESPONSE": frame("AUTH_RESPONSE", response={"auth_method_name": "token", "auth_data": TOKEN}),
    "AUTH_CHALLENGE": frame("AUTH_CHALLENGE", challenge={"auth_method_name": "sasl", "auth_data": TOKEN}),
    "LOOKUP": frame("LOOKUP", topic="t", request_id=1, original_auth_data=TEXT),
    "PARTITIONED_METADATA": frame("PARTITIONED_METADATA", topic="t", request_id=1, original_auth_data=TEXT),
}
PING = frame("PING")
NO_FRAME = b"\x00\x00\x00\x02\x00\x00\x00\x09garbage"


def redacted(pieces: list[bytes]) -> bytes:
    """What comes of them; of what waits no more than the decoder keeps."""
    one = Redactor()
    shown = b"".join(part for piece in pieces for part in one.feed(piece))
    assert len(shown) + one.held == sum(map(len, pieces))
    return shown + one.end()


def decoded(data: bytes) -> list[tuple[type[Event], int, Any]]:
    stream = FrameStream(Connection(0), True)
    stream.is_direction_certain = False
    events = [*stream.feed(data), *stream.close()]
    return [(type(each), each.offset, each.type if isinstance(each, Frame) else None) for each in events]


def test_the_schema_says_which_commands() -> None:
    assert {NAMES[number] for number in WITH_SECRETS} == set(SECRET)


@pytest.mark.parametrize("name", SECRET)
def test_a_frame_without_them(name: str) -> None:
    assert redacted([SECRET[name]]) == SECRET[name].replace(TOKEN, STARS)


def test_what_a_broker_asks_for_is_no_secret() -> None:
    refresh = frame("AUTH_CHALLENGE", challenge={"auth_data": b"PulsarAuthRefresh"})
    assert redacted([refresh]) == refresh


def test_one_that_does_not_parse_is_starred_whole() -> None:
    damaged = bytearray(SECRET["CONNECT"])
    damaged[10] = 0xFF
    assert redacted([bytes(damaged)]) == bytes(damaged[:10]) + b"*" * (len(damaged) - 10)


@given(st.data())
def test_in_whatever_pieces_it_comes(data: st.DataObject) -> None:
    kinds = st.one_of(st.sampled_from(sorted(SECRET.values())), request_frames(), send_frames())
    whole = b"".join(data.draw(st.lists(kinds, max_size=6)))
    cut = data.draw(st.sampled_from([b"", PING[:7]]))  # nobody knows what that begins
    shown = whole.replace(TOKEN, STARS) + b"*" * len(cut)
    assert redacted(data.draw(cuts(whole + cut))) == shown


@given(st.data())
def test_the_decoder_finds_the_same_and_no_secret_where_bytes_are_damaged(data: st.DataObject) -> None:
    secrets = st.sampled_from(sorted(SECRET.values()))
    kinds = st.one_of(secrets, request_frames(), st.just(NO_FRAME), st.binary(max_size=30))
    drawn = data.draw(st.lists(kinds, max_size=6))
    # two frames in a row are believed wherever they are
    whole = b"".join([*drawn, PING, PING, data.draw(secrets), PING])
    shown = redacted(data.draw(cuts(whole)))
    assert decoded(shown) == decoded(whole)
    assert TOKEN not in shown[shown.rindex(PING + PING) :]


@pytest.mark.parametrize("name", SECRET)
def test_of_one_that_is_cut_nothing_is_left(name: str) -> None:
    """At the end of a connection."""
    for before in (b"", NO_FRAME + 3 * PING):
        for end in range(10, len(SECRET[name])):
            shown = redacted([before + SECRET[name][:end]])
            assert TOKEN[:3] not in shown
            assert before or shown == SECRET[name][:10] + b"*" * (end - 10)


def test_what_is_no_frame_does_not_pile_up() -> None:
    one = Redactor()
    for _ in range(100):
        list(one.feed(bytes(range(256)) * 4096))
        assert one.held < 2**20


METADATA = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)


def swallowing(name: str, more: int = 0, checksum: bool = True) -> bytes:
    """A SEND whose TOTAL_SIZE takes in a frame with credentials, which follows it."""
    send = build_frame(
        build_command("SEND", producer_id=0, sequence_id=0), METADATA, b"hi", checksum=checksum
    )
    total = int.from_bytes(send[:4], "big") + len(SECRET[name]) + more
    return total.to_bytes(4, "big") + send[4:] + SECRET[name]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("more", [0, -10, 50, 10_000_000], ids=["whole", "a part", "cut", "large and cut"])
@pytest.mark.parametrize("name", SECRET)
def test_a_frame_that_takes_in_others(name: str, more: int, checksum: bool) -> None:
    data = swallowing(name, more, checksum)
    shown = redacted([data])
    assert TOKEN[:3] not in shown
    assert b"hi" in shown
    stream = FrameStream(Connection(0), True)
    events = [*stream.feed(data), *stream.close()]
    assert not any(
        TOKEN[:3] in mask_spans(each.raw, event_spans(each))
        for each in events
        if isinstance(each, Frame | Malformed)
    )
    for show_secrets in (False, True):
        recorder = Recorder(show_secrets=show_secrets)
        line = LineRenderer(Paint(False), show_secrets=show_secrets)
        said = "".join(f"{recorder(each)} {line(each)}" for each in events)
        seen = TOKEN.decode() in said or TOKEN.hex() in said
        assert show_secrets or not seen
    assert seen or more  # what is cut is not opened


def test_a_payload_that_a_checksum_covers_is_shown_whatever_it_holds() -> None:
    send = build_command("SEND", producer_id=0, sequence_id=0)
    whole = build_frame(send, METADATA, b"".join(SECRET.values()))
    assert redacted([whole[:50], whole[50:]]) == whole
    frame = FrameStream(Connection(0), True).feed(whole)[0]
    assert event_spans(frame) == []
    assert isinstance(frame, Frame)
    assert TOKEN in mask_spans(frame.raw, event_spans(frame))


@pytest.mark.parametrize("size", [3, 16, 20, 40, 75, 1000])
def test_http_in_pieces(size: int) -> None:
    data = (
        b"GET http://user:%b@host/x?token=%b HTTP/1.1\r\nHost: u:%b@h\r\nAuthorization: %b\r\n\r\n%b"
    ).replace(b"%b", TOKEN)
    shown = redacted([data[at : at + size] for at in range(0, len(data), size)])
    assert not any(TOKEN[at : at + 4] in shown for at in range(len(TOKEN) - 3))
