"""Records of which bytes are missing, as with a snap length -> what is left of them, where it was."""

from __future__ import annotations

import ssl
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tls_endpoints import Chunk, Endpoints, Said, joined, log_of
from tls_sealer import AES_128, AES_256, CHACHA, Talk, frame

from pulsarctl_wire.capture.tls.connection import Piece, TlsConnection
from pulsarctl_wire.capture.tls.cut import split_parts, strip_kind

SEEDS = st.integers(0, 2**32 - 1)
V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
SESSIONS = [
    (V12, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (V12, "ECDHE-ECDSA-CHACHA20-POLY1305"),
    (V13, ""),
]


def captured(connection: TlsConnection, wire: list[Chunk], snap: int) -> list[Piece]:
    """Return what is opened if of each chunk only the first `snap` bytes were captured."""
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(wire):
        pieces += connection.take(from_client, data[:snap], None, packet)
        if len(data) > snap:
            pieces += connection.gap(from_client, len(data) - snap, None, packet)
    return pieces + connection.end()


def check_places(pieces: list[Piece], plain: list[Chunk]) -> int:
    """Check that all bytes are those of their places; return how many are there."""
    for from_client in (True, False):
        said = b"".join(data for each, data in plain if each is from_client)
        place = 0
        for piece in pieces:
            if piece.from_client is from_client:
                place += piece.missing
                assert said[place : place + len(piece.data)] == piece.data
                place += len(piece.data)
        assert place == len(said)
    return sum(len(piece.data) for piece in pieces)


@pytest.mark.parametrize("cipher", [AES_128, AES_256, CHACHA])
@given(seed=SEEDS, snap=st.integers(70, 2_000))
def test_what_a_snap_length_leaves_is_opened(cipher: str, seed: int, snap: int) -> None:
    talk = Talk(seed, cipher, (0, 0), others=0)
    for _ in range(3):
        talk.say(True, 20)  # whole ones, which place the others
        talk.say(False, 20)
    for _ in range(30):
        talk.say(talk.rng.random() < 0.5, talk.rng.choice([13, 20, 60, 1_000, 5_000, 16_384]))
    connection = TlsConnection(log_of(talk.keys))
    opened = check_places(captured(connection, talk.wire, snap), talk.plain)
    assert opened >= sum(min(len(data), snap - 5) for _, data in talk.plain)
    facts = connection.facts
    unproven = facts.client.unproven_records + facts.server.unproven_records
    assert unproven == sum(len(data) > snap for _, data in talk.wire)
    assert facts.client.failed_tags == facts.server.failed_tags == 0


@cache
def said(version: ssl.TLSVersion, ciphers: str) -> Said:
    conversation = Endpoints(version=version, ciphers=ciphers).connect()
    talk = Talk(1)
    for size in (2_000, 40, 3_000, 16_000, 20):
        conversation.say(True, frame(size, talk.rng))
        conversation.say(False, frame(size, talk.rng))
    return conversation.close()


@pytest.mark.parametrize(("version", "ciphers"), SESSIONS)
@given(snap=st.integers(600, 20_000))
@example(snap=1_000)
def test_sessions_of_openssl_are_opened_with_a_snap_length(
    version: ssl.TLSVersion, ciphers: str, snap: int
) -> None:
    source = said(version, ciphers)
    connection = TlsConnection(log_of(source.keys))
    opened = check_places(captured(connection, source.wire, snap), source.plain)
    assert opened >= sum(min(len(data), snap - 13) for _, data in source.plain)


@pytest.mark.parametrize("version", [V12, V13])
def test_the_client_random_may_be_all_that_is_left_of_a_hello(version: ssl.TLSVersion) -> None:
    source = said(version, "" if version is V13 else "ECDHE-ECDSA-AES256-GCM-SHA384")
    connection = TlsConnection(log_of(source.keys))
    pieces = captured(connection, source.wire, 130)
    assert connection.facts.client_random
    assert connection.facts.version == ("TLS 1.3" if version is V13 else "TLS 1.2")
    assert sum(len(piece.data) for piece in pieces) > 600


def test_without_a_proof_nothing_is_made_up() -> None:
    source = said(V13, "")
    wrong = b"\n".join(
        b" ".join([*line.split()[:2], line.split()[2][::-1]])
        for line in source.keys.splitlines()
        if not line.startswith(b"#")
    )
    connection = TlsConnection(log_of(wrong))
    assert not joined(captured(connection, source.wire, 100))


def test_a_ccm_record_that_is_cut_stays_closed() -> None:
    source = said(V12, "ECDHE-ECDSA-AES256-CCM")
    connection = TlsConnection(log_of(source.keys))
    opened = check_places(captured(connection, source.wire, 1_000), source.plain)
    assert opened == 2 * (40 + 20)


@given(
    data=st.binary(max_size=40), holes=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=4)
)
@example(data=bytes(2), holes=[(0, 9), (0, 9)])
def test_parts_lie_between_the_holes(data: bytes, holes: list[tuple[int, int]]) -> None:
    places = sorted((start, start + size) for start, size in holes)
    parts, end = split_parts(data, places, 8)
    at = 0
    for missing, part in parts:
        at += missing
        assert data[at : at + len(part)] == part
        at += len(part)
        if missing:
            assert any(first - 8 < at for first, _ in places)
    assert at + end >= len(data) or not data


def test_the_kind_ends_the_last_part() -> None:
    assert strip_kind([(0, b"ab"), (3, b"cd\x17\0\0")]) == ([(0, b"ab"), (3, b"cd")], 23)
    assert strip_kind([(0, b"\0\0")]) == ([(0, b"")], 0)


@pytest.mark.parametrize("part", ["gap", "head", "tail"])
@pytest.mark.parametrize("lost", range(6))
@pytest.mark.parametrize(("version", "ciphers"), SESSIONS)
def test_parts_of_a_handshake_may_be_missing(
    version: ssl.TLSVersion, ciphers: str, lost: int, part: str
) -> None:
    source = said(version, ciphers)
    connection = TlsConnection(log_of(source.keys))
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(source.wire):
        start, end = 0, 0
        if packet == lost:
            half = len(data) // 2
            start, end = {"gap": (0, len(data)), "head": (0, half), "tail": (half, len(data))}[part]
        pieces += connection.take(from_client, data[:start], None, packet)
        if end:
            pieces += connection.gap(from_client, end - start, None, packet)
        pieces += connection.take(from_client, data[end:], None, packet)
    pieces += connection.end()
    is_server_hello = version is V12 and lost == 1 and part != "tail"
    opened = sum(len(piece.data) for piece in pieces)
    said_bytes = sum(len(data) for _, data in source.plain)
    assert opened >= (0 if is_server_hello else said_bytes - (2_000 if lost > 3 else 0))
    expected = "the ServerHello is not in the capture, and the keys of TLS 1.2 cannot be derived without it"
    assert connection.facts.reason == (expected if is_server_hello else "")


@pytest.mark.parametrize("from_client", [True, False])
@pytest.mark.parametrize(("version", "ciphers"), SESSIONS)
def test_one_direction_may_be_missing(version: ssl.TLSVersion, ciphers: str, from_client: bool) -> None:
    source = said(version, ciphers)
    wire = [chunk for chunk in source.wire if chunk[0] is from_client]
    connection = TlsConnection(log_of(source.keys))
    pieces: list[Piece] = []
    for packet, (_, data) in enumerate(wire):
        pieces += connection.take(from_client, data, None, packet)
    pieces += connection.end()
    is_impossible = version is V12 and from_client  # without the server's random
    expected = [] if is_impossible else joined(chunk for chunk in source.plain if chunk[0] is from_client)
    assert joined(pieces) == expected
    assert bool(connection.facts.reason) is is_impossible


def test_a_record_with_a_hole_may_hold_nothing_but_its_tag() -> None:
    talk = Talk(1, AES_128, (0, 0), others=0)
    for from_client in (True, False, True):
        talk.say(from_client, 20)
    connection, pieces = TlsConnection(log_of(talk.keys)), list[Piece]()
    for packet, (from_client, data) in enumerate(talk.wire):
        pieces += connection.take(from_client, data, None, packet)
    pieces += connection.take(True, b"\x17\x03\x03\x00\x10" + bytes(8), None, 9)
    pieces += connection.gap(True, 8, None, 10)
    pieces += connection.end()
    assert b"".join(piece.data for piece in pieces if piece.from_client) == b"".join(
        data for from_client, data in talk.plain if from_client
    )
