"""Other protocols on a Pulsar port are named, and no frame is ever taken for one."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME, Connection, Frame, Malformed
from pulsarctl_wire.wire.framing.foreign import PROXY_V2, SIGNATURE_SIZE, proxy_header, recognise
from pulsarctl_wire.wire.framing.redaction import mask_event
from pulsarctl_wire.wire.framing.stream import FrameStream

NOTHING: Final = ("", "")
PING: Final = bytes.fromhex("00000009000000050812920100")

HEADS: Final = {
    bytes.fromhex("1603010200010001fc0303") + bytes(32): ("TLS", "TLS handshake record"),
    bytes.fromhex("16030000c2010000be0300") + bytes(32): ("TLS", "TLS handshake record"),
    bytes.fromhex("15030300020228") + bytes(32): ("TLS", "TLS alert record"),
    bytes.fromhex("140303000101") + bytes(32): ("TLS", "TLS change cipher spec record"),
    bytes.fromhex("1703030020") + bytes(32): ("TLS", "TLS application data record"),
    b"GET /admin/v2/clusters HTTP/1.1\r\nHost: x\r\n\r\n": ("HTTP", "HTTP: GET /admin/v2/clusters HTTP/1.1"),
    b"HEAD / HTTP/1.0\n\n": ("HTTP", "HTTP: HEAD / HTTP/1.0"),
    b"POST /lookup HTTP/1.1\r\n": ("HTTP", "HTTP: POST /lookup HTTP/1.1"),
    b"PUT /x HTTP/1.1\r\n": ("HTTP", "HTTP: PUT /x HTTP/1.1"),
    b"DELETE /x HTTP/1.1\r\n": ("HTTP", "HTTP: DELETE /x HTTP/1.1"),
    b"OPTIONS * HTTP/1.1\r\n": ("HTTP", "HTTP: OPTIONS * HTTP/1.1"),
    b"PATCH /x HTTP/1.1\r\n": ("HTTP", "HTTP: PATCH /x HTTP/1.1"),
    b"TRACE / HTTP/1.1\r\n": ("HTTP", "HTTP: TRACE / HTTP/1.1"),
    b"CONNECT broker:6650 HTTP/1.1\r\n": ("HTTP", "HTTP: CONNECT broker:6650 HTTP/1.1"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": ("HTTP", "HTTP: PRI * HTTP/2.0"),
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n": ("HTTP", "HTTP: HTTP/1.1 400 Bad Request"),
    b"SSH-2.0-OpenSSH_9.6\r\n": ("SSH", "SSH: SSH-2.0-OpenSSH_9.6"),
}
each_head = pytest.mark.parametrize(
    ("head", "expected"), HEADS.items(), ids=[str(head[:12]) for head in HEADS]
)


@each_head
def test_a_head_is_recognised(head: bytes, expected: tuple[str, str]) -> None:
    assert recognise(head) == expected


@each_head
def test_a_head_cut_anywhere(head: bytes, expected: tuple[str, str]) -> None:
    """As soon as `SIGNATURE_SIZE` bytes are there the protocol is known, and never is it a wrong one."""
    for cut in range(len(head)):
        protocol, what = recognise(head[:cut])
        assert protocol in ((expected[0],) if cut >= SIGNATURE_SIZE else ("", expected[0]))
        assert bool(what) is bool(protocol)
        if protocol:
            assert expected[1].startswith(what)


@each_head
def test_a_head_is_no_frame(head: bytes, expected: tuple[str, str]) -> None:
    """Read as TOTAL_SIZE its first bytes are above every frame that is kept."""
    assert int.from_bytes(head[:4], "big") > MAX_KEPT_FRAME
    assert proxy_header(head) == (0, "")
    for cut in (1, 3, SIGNATURE_SIZE, len(head)):
        stream = FrameStream(Connection(0), True)
        (event,) = stream.feed(head[:cut]) + stream.feed(head[cut:]) + stream.close()
        assert isinstance(event, Malformed)
        assert (event.protocol, event.reason) == (expected[0], f"not Pulsar: {expected[1]}")
        assert (event.offset, event.size) == (0, len(head))


def test_a_long_line_is_cut() -> None:
    assert recognise(b"GET /" + b"x" * 200) == ("HTTP", "HTTP: GET /" + "x" * 75)


def test_a_line_of_any_bytes() -> None:
    assert recognise(b"GET /\xff\x00\x1b[2J\n") == ("HTTP", "HTTP: GET /\xff\x00\x1b[2J")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x16",
        b"\x16\x03",
        b"\x16\x04\x01" + bytes(20),
        b"\x13\x03\x01" + bytes(20),
        b"\x18\x03\x01" + bytes(20),
        b"\x16\x03\x05" + bytes(20),
        b"GETTING /x HTTP/1.1\r\n",
        b"get / HTTP/1.1\r\n",
        b" GET / HTTP/1.1\r\n",
        b"HTTPS",
        b"SSH",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        PING,
    ],
)
def test_what_is_nothing_we_know(head: bytes) -> None:
    assert recognise(head) == NOTHING


@given(st.integers(0, MAX_KEPT_FRAME), st.binary(max_size=100))
def test_no_frame_is_taken_for_another_protocol(size: int, rest: bytes) -> None:
    data = size.to_bytes(4, "big") + rest
    assert recognise(data) == NOTHING
    assert proxy_header(data) == (0, "")


# -- the PROXY protocol

V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command: int, family: int, content: bytes) -> bytes:
    return V2 + struct.pack(">BBH", 0x20 | command, family, len(content)) + content


LONGEST_V1: Final = (
    b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff "
    b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n"
)
HEADERS: Final = {
    b"PROXY TCP4 10.0.0.1 10.0.0.2 56324 6650\r\n": "v1 header: TCP4 10.0.0.1 10.0.0.2 56324 6650",
    b"PROXY TCP6 ::1 ::1 1 2\r\n": "v1 header: TCP6 ::1 ::1 1 2",
    b"PROXY UNKNOWN\r\n": "v1 header: UNKNOWN",
    LONGEST_V1: f"v1 header: {LONGEST_V1[6:-2].decode()}",
    v2(1, 0x11, bytes(12)): "v2 header",
    v2(1, 0x21, bytes(36)): "v2 header",
    v2(1, 0x31, bytes(216)): "v2 header",
    v2(0, 0x00, b""): "v2 header",
    v2(1, 0x11, bytes(12) + b"\x03\x00\x04" + bytes(4)): "v2 header",  # with a CRC32-C behind the addresses
    v2(1, 0x11, bytes(65535)): "v2 header",
}
each_header = pytest.mark.parametrize(
    ("header", "what"),
    HEADERS.items(),
    ids=[f"{what[:15]}, {len(header)}" for header, what in HEADERS.items()],
)


@each_header
def test_a_proxy_header_is_measured(header: bytes, what: str) -> None:
    for behind in (b"", PING, b"\r\n", b"PROXY "):
        if len(header) + len(behind) >= SIGNATURE_SIZE:
            assert proxy_header(header + behind) == (len(header), f"PROXY protocol {what}")


@each_header
def test_a_proxy_header_cut_anywhere_asks_for_more(header: bytes, what: str) -> None:
    """Never for more than there is, so that whoever asks does not wait for ever."""
    for cut in range(SIGNATURE_SIZE, min(len(header), 400)):
        length, _ = proxy_header(header[:cut])
        assert cut < length <= len(header)


@each_header
def test_a_proxy_header_is_no_frame(header: bytes, what: str) -> None:
    assert int.from_bytes(header[:4], "big") > MAX_KEPT_FRAME
    assert recognise(header) == NOTHING


@each_header
def test_frames_follow_a_proxy_header(header: bytes, what: str) -> None:
    for cut in {1, 5, 6, SIGNATURE_SIZE - 1, SIGNATURE_SIZE, len(header) // 2, len(header) - 1, len(header)}:
        data = header + PING
        stream = FrameStream(Connection(0), True)
        events = stream.feed(data[:cut]) + stream.feed(data[cut:]) + stream.close()
        head, ping = events
        assert isinstance(head, Malformed)
        assert (head.offset, head.size, head.protocol) == (0, len(header), "")
        assert head.reason == f"not Pulsar: PROXY protocol {what}"
        assert isinstance(ping, Frame)
        assert (ping.command, ping.offset, ping.raw) == ("PING", len(header), PING)


def test_the_longest_first_version() -> None:
    """107 bytes with their line end, says the specification."""
    assert len(LONGEST_V1) == 107
    assert proxy_header(LONGEST_V1)[0] == 107
    longer = LONGEST_V1[:-2] + b"0\r\n"
    assert proxy_header(longer) == (0, "")
    for cut in range(SIGNATURE_SIZE, len(longer)):
        length, what = proxy_header(longer[:cut])
        assert length in (0, cut + 1)
        assert what == ""


@pytest.mark.parametrize(
    "head",
    [
        b"PROXY" + bytes(20),
        b"proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b" PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        V2[:-1] + bytes(20),
        b"\r\n\r\n" + bytes(20),
        PING * 2,
        b"x" * 200,
    ],
)
def test_what_is_no_proxy_header(head: bytes) -> None:
    assert proxy_header(head) == (0, "")


def test_a_line_without_end_is_no_header() -> None:
    head = b"PROXY " + b"x" * 200
    assert proxy_header(head) == (0, "")
    assert proxy_header(head[:50]) == (51, "")
    assert proxy_header(b"PROXY TCP4\n" + b"\r" * 200) == (0, "")


@given(st.binary(max_size=120))
def test_any_line_is_measured_or_refused(line: bytes) -> None:
    head = b"PROXY " + line
    length, what = proxy_header(head)
    if what:
        assert head[:length].endswith(b"\r\n")
        assert length <= 107
    else:
        assert length == (len(head) + 1 if len(head) < 107 else 0)


def test_a_header_is_shown_if_it_is_longer_than_what_is_kept() -> None:
    size = Malformed.KEPT + 1
    stream = FrameStream(Connection(0), True)
    header = PROXY_V2 + b"\x21\x11" + size.to_bytes(2, "big") + bytes(size)
    (event,) = stream.feed(header)
    assert isinstance(event, Malformed)
    assert mask_event(event) == header[: Malformed.KEPT]
