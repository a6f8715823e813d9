"""Credentials stay out of every form of output, also of damaged captures, unless they are asked for."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from pwire_run import SAMPLES, Pcap, decode

from pulsarctl_wire import read_frames
from pulsarctl_wire.wire.credentials import find_secrets
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand

FORMS = ("line", "tree", "json", "hex")
FRAGMENT = 8
"""Bytes of a credential that must not be seen in a row."""

_BY_CHANCE = {b"iOiJzdHJ"}
"""Base64 of `":"str`: in a JWT's claim, and in every Avro schema that says "type":"string"."""

_HEX_ROW = re.compile(r"  [0-9a-f]{8}  ((?:(?:[0-9a-f]{2}|xx) ?)+)")
_HEAD = re.compile(r"bytes: ((?:[0-9a-f]{2} ?)+)")


@cache
def _tokens() -> frozenset[bytes]:
    """The tokens in auth-token.pcap; throw-away ones."""
    return frozenset(
        frame.raw[start:stop]
        for frame in read_frames(SAMPLES / "auth-token.pcap")
        for start, stop in find_secrets(frame.raw, 8, 8 + frame.command_size).spans
    )


@cache
def _fragments() -> frozenset[bytes]:
    return frozenset(
        token[at : at + FRAGMENT] for token in _tokens() for at in range(len(token) - FRAGMENT + 1)
    ) - frozenset(_BY_CHANCE)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _undone(text: str) -> Iterator[bytes]:
    """What a text stands for, in every reading of it."""
    yield text.encode()
    with suppress(ValueError):
        yield base64.b64decode(text[: len(text) // 4 * 4], validate=True)
    with suppress(ValueError):
        yield bytes.fromhex(text)


def _seen(out: bytes, form: str) -> Iterator[bytes]:
    """All bytes that a reader of the output sees: as text, as base64, as hexadecimal digits."""
    yield out
    if form == "json":
        for line in out.split(b"\n")[:-1]:
            for value in _texts(json.loads(line)):
                yield from _undone(value)
        return
    run = b""
    for text in out.decode().splitlines():
        row = _HEX_ROW.match(text)
        if row:
            run += bytes.fromhex(row[1].replace("xx", "00"))
            continue
        for word in text.split():
            yield from _undone(word)
        yield run
        run = b""
        head = _HEAD.search(text)
        if head:
            yield bytes.fromhex(head[1])
    yield run


def _leaks(out: bytes, form: str) -> set[bytes]:
    return {
        data[at : at + FRAGMENT]
        for data in _seen(out, form)
        for at in range(len(data) - FRAGMENT + 1)
        if data[at : at + FRAGMENT] in _fragments()
    }


def test_the_search_finds_what_is_shown() -> None:
    """With --show-secrets every form shows the tokens, so `_leaks` would see one."""
    assert len(_tokens()) == 8
    for form in FORMS:
        run = decode("--show-secrets", "-o", form, "auth-token.pcap")
        # a line says their sizes only
        assert form == "line" or len(_leaks(run.out, form)) > 100


@pytest.mark.parametrize("form", FORMS)
def test_no_token_in_any_output(form: str) -> None:
    run = decode("-o", form, "auth-token.pcap")
    assert run.code == 0
    assert len(run.records if form == "json" else run.lines) >= 144
    assert _leaks(run.out, form) == set()
    assert _leaks(run.err.encode(), "line") == set()


def test_what_stands_in_their_place() -> None:
    line = decode("--command", "CONNECT", "-c", "1", "auth-token.pcap").lines[0]
    assert "auth_data=[redacted]" in line
    assert "auth=token" in line
    (record,) = decode("--command", "CONNECT", "-c", "1", "-o", "json", "auth-token.pcap").records
    assert record["fields"]["auth_data"] == "[redacted: 87 bytes]"
    (record,) = decode("--command", "AUTH_RESPONSE", "-c", "1", "-o", "json", "auth-token.pcap").records
    assert record["fields"]["response"]["auth_data"] == "[redacted: 109 bytes]"
    # what the broker asks with is no secret
    (record,) = decode("--command", "AUTH_CHALLENGE", "-c", "1", "-o", "json", "auth-token.pcap").records
    assert record["fields"]["challenge"]["auth_data"] == "PulsarAuthRefresh"


def test_an_expression_cannot_ask_for_them_either() -> None:
    asked = 'fields["auth_data"] =~~ "eyJ"'
    assert decode("--filter", asked, "auth-token.pcap").lines == []


# -- damage


@cache
def _logins() -> Pcap:
    """The packets of the sample with a CONNECT that carries a token, and the handshakes before them."""
    capture = Pcap.read("auth-token.pcap")
    return Pcap(
        capture.header,
        [
            packet
            for packet in capture.packets
            if _flags(packet[3]) & 2 or packet[3][74:76] == b"\x08\x02"  # its first frame's type
        ],
    )


def _flags(packet: bytes) -> int:
    return packet[14 + 4 * (packet[14] & 15) + 13]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("snap", [110, 117, 131, 150, 173])
def test_frames_cut_inside_their_token(form: str, snap: int) -> None:
    """CONNECT's token begins at byte 99 to 102 of its packet."""
    run = decode("-o", form, "-", stdin=_logins().snapped(snap).file)
    assert run.code == 0
    assert run.out
    assert _leaks(run.out, form) == set()


def _packets_with_tokens(capture: Pcap) -> Iterator[tuple[int, int, int]]:
    """Of each packet with a token: its index, where its TCP payload begins, and its token in it."""
    for index, (*_, data) in enumerate(capture.packets):
        for token in _tokens():
            if token in data:
                header = 14 + 4 * (data[14] & 15)
                start = header + 4 * (data[header + 12] >> 4)
                yield index, start, data.index(token) - start
                break


def _segment(packet: bytes, start: int, first: int, last: int | None) -> bytes:
    """The packet with only the bytes `first` to `last` of its TCP payload."""
    header = 14 + 4 * (packet[14] & 15)
    made = bytearray(packet[:start] + packet[start:][first:last])
    struct.pack_into(">H", made, 16, len(made) - 14)
    sequence = struct.unpack_from(">I", packet, header + 4)[0]
    struct.pack_into(">I", made, header + 4, (sequence + first) % 2**32)
    return bytes(made)


def _split(capture: Pcap, into_token: int, *, head: bool = True, tail: bool = True) -> Pcap:
    """Each packet with a token as two, parted so many bytes into the token; maybe one of them lost."""
    found = {index: (start, at + into_token) for index, start, at in _packets_with_tokens(capture)}
    packets: list[tuple[int, int, int, bytes]] = []
    for index, (seconds, fraction, length, data) in enumerate(capture.packets):
        if index not in found:
            packets.append((seconds, fraction, length, data))
            continue
        start, parting = found[index]
        pieces = []
        if head:
            pieces.append(_segment(data, start, 0, parting))
        if tail:
            pieces.append(_segment(data, start, parting, None))
        packets += [(seconds, fraction, len(piece), piece) for piece in pieces]
    return Pcap(capture.header, packets)


def _without_handshakes(capture: Pcap) -> Pcap:
    return Pcap(
        capture.header,
        [packet for packet in capture.packets if not _flags(packet[3]) & 2],
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("into_token", [5, 20, 40, 60, 80])
def test_tokens_in_two_segments(form: str, into_token: int) -> None:
    assert len(list(_packets_with_tokens(_logins()))) == 21
    run = decode("-o", form, "-", stdin=_split(_logins(), into_token).file)
    assert _leaks(run.out, form) == set()
    whole = decode("-o", form, "-", stdin=_logins().file)
    assert run.out == whole.out or form in ("tree", "json")  # these name the packets


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("into_token", [12, 20, 40, 60, 80])
def test_tokens_whose_end_is_lost(form: str, into_token: int) -> None:
    run = decode("-o", form, "-", stdin=_split(_logins(), into_token, tail=False).file)
    assert run.out
    assert _leaks(run.out, form) == set()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("into_token", [5, 40, 60, 80])
@pytest.mark.parametrize("handshake", [True, False])
def test_tokens_whose_beginning_is_lost(form: str, into_token: int, handshake: bool) -> None:
    capture = _split(_logins(), into_token, head=False)
    if not handshake:
        capture = _without_handshakes(capture)
    run = decode("-o", form, "-", stdin=capture.file)
    assert run.out
    assert _leaks(run.out, form) == set()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("snap", [117, 125, 131, 140, 150, 180])
def test_cut_renewals_of_a_token(form: str, snap: int) -> None:
    """AUTH_RESPONSE in the middle of a session."""
    capture = Pcap.read("auth-token.pcap").snapped(snap)
    run = decode("-o", form, "--connection", "28", "-", stdin=capture.file)
    assert run.out
    assert _leaks(run.out, form) == set()


@pytest.mark.parametrize("form", ["tree", "json", "hex"])
def test_cut_renewals_behind_a_hole(form: str) -> None:
    """What is left of AUTH_RESPONSE is then no frame, but a stretch of bytes."""
    capture = Pcap.read("auth-token.pcap")
    packets = [
        packet
        for packet in capture.packets
        if _flags(packet[3]) & 2 or any(token in packet[3] for token in _tokens())
    ]
    run = decode("-o", form, "-", stdin=Pcap(capture.header, packets).snapped(131).file)
    assert _leaks(run.out, form) == set()


@pytest.mark.parametrize("form", FORMS)
def test_raw_frames_and_hex_dumps_cut_inside_a_token(form: str) -> None:
    connect = next(read_frames(SAMPLES / "auth-token.pcap")).raw
    for size in (30, 60, 90, len(connect) - 12):
        for stdin in (connect[:size], connect[:size].hex().encode()):
            run = decode("-o", form, "-", stdin=stdin)
            assert run.out
            assert _leaks(run.out, form) == set()


@pytest.mark.parametrize("form", FORMS)
def test_a_command_that_does_not_parse(form: str) -> None:
    """CONNECT with a broken varint behind its token: no frame, but a stretch of bytes with a token."""
    connect = bytearray(next(read_frames(SAMPLES / "auth-token.pcap")).raw)
    connect[8] = 0x0F  # the type's tag becomes a group end
    ping = BaseCommand(type=BaseCommand.PING)
    ping.ping.SetInParent()
    run = decode("-o", form, "-", stdin=bytes(connect) + build_frame(ping) * 3)
    assert b"PING" in run.out
    assert _leaks(run.out, form) == set()


# -- other fields, other protocols

SECRET = b"s3cr3t-basic-password-0123456789"


def _with_credentials() -> dict[str, bytes]:
    """Frames that carry a credential, by the name of its field."""
    connect = BaseCommand(type=BaseCommand.CONNECT)
    connect.connect.client_version = "c"
    connect.connect.auth_method_name = "basic"
    first = BaseCommand()
    first.CopyFrom(connect)
    first.connect.auth_data = SECRET
    second = BaseCommand()
    second.CopyFrom(connect)
    second.connect.original_auth_data = SECRET.decode()
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic = "t"
    lookup.lookupTopic.request_id = 1
    lookup.lookupTopic.original_auth_data = SECRET.decode()
    partitions = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    partitions.partitionMetadata.topic = "t"
    partitions.partitionMetadata.request_id = 1
    partitions.partitionMetadata.original_auth_data = SECRET.decode()
    challenge = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
    challenge.authChallenge.challenge.auth_data = SECRET
    response = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    response.authResponse.response.auth_data = SECRET
    return {
        "connect.auth_data": build_frame(first),
        "connect.original_auth_data": build_frame(second),
        "lookup.original_auth_data": build_frame(lookup),
        "partitions.original_auth_data": build_frame(partitions),
        "challenge.auth_data": build_frame(challenge),
        "response.auth_data": build_frame(response),
    }


def _shows(out: bytes, form: str, secret: bytes) -> bool:
    fragments = {secret[at : at + FRAGMENT] for at in range(len(secret) - FRAGMENT + 1)}
    return any(fragment in data for data in _seen(out, form) for fragment in fragments)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", _with_credentials())
def test_every_field_with_credentials(name: str, form: str) -> None:
    frame = _with_credentials()[name]
    assert not _shows(decode("-o", form, "-", stdin=frame).out, form, SECRET)
    for cut in (1, 5, 20):
        assert not _shows(decode("-o", form, "-", stdin=frame[:-cut]).out, form, SECRET)
    if form != "line":
        assert _shows(decode("--show-secrets", "-o", form, "-", stdin=frame).out, form, SECRET)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "head",
    [
        b"GET /admin/v2/clusters HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer %s\r\n\r\n",
        b"GET /ws/v2/producer/persistent/public/default/t?token=%s HTTP/1.1\r\nHost: b\r\n\r\n",
    ],
    ids=["header", "query"],
)
def test_tokens_in_http_requests_on_the_pulsar_port(head: bytes, form: str) -> None:
    token = max(_tokens())
    http = Pcap.read("http-client-on-binary-port.pcap")
    index = next(index for index, packet in enumerate(http.packets) if b"GET " in packet[3])
    seconds, fraction, _, data = http.packets[index]
    start = data.index(b"GET ")
    made = bytearray(data[:start] + head % token)
    struct.pack_into(">H", made, 16, len(made) - 14)
    packets = [*http.packets[:index], (seconds, fraction, len(made), bytes(made)), *http.packets[index + 1 :]]
    run = decode("-o", form, "-", stdin=Pcap(http.header, packets).file)
    assert b"HTTP" in run.out
    assert _leaks(run.out, form) == set()
