"""Any bytes, and TLS sessions with lies in them: no exception, bounded memory, nothing made up."""

from __future__ import annotations

import random
import ssl
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tls_endpoints import Chunk, Endpoints, Said, cut, log_of, opened
from tls_sealer import AES_256, CHACHA, Talk

from pulsarctl_wire.capture.tls.connection import MAX_HELD, TlsConnection
from pulsarctl_wire.capture.tls.handshake import (
    BadMessage,
    read_alert,
    read_certificate,
    read_client_hello,
    read_encrypted_extensions,
    read_server_hello,
)
from pulsarctl_wire.capture.tls.keylog import KeyLog
from pulsarctl_wire.capture.tls.records import MAX_BODY

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
SEEDS = st.integers(0, 2**32 - 1)


@cache
def said(version: ssl.TLSVersion) -> Said:
    conversation = Endpoints(version=version, has_client_certificate=True).connect()
    for size in (1, 100, 20_000, 5):
        conversation.say(True, bytes(size))
        conversation.say(False, b"x" * size)
    return conversation.close()


def mutated(wire: list[Chunk], rng: random.Random) -> list[Chunk]:
    """Return the chunks with some bytes changed, inserted, left out or swapped."""
    chunks = [(from_client, bytearray(data)) for from_client, data in wire]
    for _ in range(rng.randint(1, 6)):
        place = min(rng.randrange(len(chunks)), rng.randrange(len(chunks)))
        from_client, data = chunks[place]
        at = rng.randrange(len(data) + 1) if data else 0
        change = rng.randrange(7)
        if change == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif change == 1:
            data[at:at] = rng.randbytes(rng.choice([1, 5, 1_000]))
        elif change == 2:
            del data[at : at + rng.choice([1, 7, 1_000])]
        elif change == 3:
            other = rng.randrange(len(chunks))
            chunks[place], chunks[other] = chunks[other], chunks[place]
        elif change == 4:
            chunks[place] = not from_client, data
        elif change == 5:
            chunks.insert(place, (from_client, bytearray(data)))
        elif len(chunks) > 1:
            del chunks[place]
    return [(from_client, bytes(data)) for from_client, data in chunks]


@pytest.mark.parametrize("version", [V12, V13])
@given(seed=SEEDS, has_keys=st.booleans())
def test_mutated_sessions_raise_nothing(version: ssl.TLSVersion, seed: int, has_keys: bool) -> None:
    rng = random.Random(seed)
    source = said(version)
    log = log_of(source.keys if has_keys else b"")
    log.effort = 1 << 22
    connection = TlsConnection(log)
    wire = mutated(source.wire, rng)
    pieces = opened(connection, cut(wire, seed) if rng.random() < 0.5 else wire)
    assert {byte for piece in pieces for byte in piece.data} <= {0, ord("x")}  # what the tags prove
    assert has_keys or not pieces


@given(chunks=st.lists(st.tuples(st.booleans(), st.binary(max_size=100))), seed=SEEDS)
def test_any_bytes_raise_nothing(chunks: list[Chunk], seed: int) -> None:
    rng = random.Random(seed)
    connection = TlsConnection(log_of(Talk(1).keys))
    for from_client, data in chunks:
        head = bytes([rng.choice([20, 21, 22, 23]), 3, rng.randrange(5)]) + len(data).to_bytes(2, "big")
        assert not connection.take(from_client, head + data, None, 0)
        if rng.random() < 0.2:
            assert not connection.gap(from_client, rng.choice([1, 50, 2**31]), None, 0)
    assert not connection.end()
    assert connection.held_bytes <= 2 * (MAX_BODY + 5)


@pytest.mark.parametrize(
    "read",
    [
        *(read_client_hello, read_server_hello, read_encrypted_extensions, read_alert),
        lambda body: read_certificate(body, is_13=False),
        lambda body: read_certificate(body, is_13=True),
    ],
)
@given(body=st.one_of(st.binary(), SEEDS))
def test_messages_parse_or_are_bad(read, body: bytes | int) -> None:  # type: ignore[no-untyped-def]
    if isinstance(body, int):
        rng = random.Random(body)
        changed = bytearray(rng.choice(said(V12).wire)[1][9:])
        changed[rng.randrange(len(changed))] = rng.randrange(256)
        body = bytes(changed[: rng.randrange(len(changed))])
    with suppress(BadMessage):
        read(body)


def test_garbage_is_skipped_in_bounded_memory() -> None:
    rng = random.Random(1)
    connection = TlsConnection(log_of(Talk(1).keys))
    for _ in range(40):
        assert not connection.take(True, rng.randbytes(100_000), None, 0)
        assert connection.held_bytes <= MAX_HELD + 200_000
    assert not connection.end()
    assert connection.facts.client.lost_bytes > 3_000_000


def test_records_without_a_handshake_wait_in_bounded_memory() -> None:
    rng = random.Random(2)
    log = KeyLog()
    connection = TlsConnection(log)
    record = b"\x17\x03\x03\x40\x11"
    for _ in range(500):
        assert not connection.take(rng.random() < 0.5, record + rng.randbytes(0x4011), None, 0)
        assert connection.held_bytes <= MAX_HELD + 20_000
    assert not connection.end()
    facts = connection.facts
    assert facts.client.closed_records + facts.server.closed_records == 500


def test_a_handshake_message_without_end_is_not_kept() -> None:
    connection = TlsConnection(KeyLog())
    record = b"\x16\x03\x01\x40\x00"
    message = b"\x01\x01\xff\xff" + bytes(0x4000 - 4)
    for _ in range(40):
        connection.take(True, record + message, None, 0)
        message = bytes(0x4000)
    assert connection.held_bytes == 0
    assert len(connection._client.messages) <= 65_536
    assert "was skipped" in connection.facts.problem


def test_a_hello_of_ssl_2_is_said() -> None:
    connection = TlsConnection(KeyLog())
    hello = b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + bytes(50)
    assert TlsConnection.looks_like_tls(hello[:5])
    assert not connection.take(True, hello, None, 0)
    assert not connection.end()
    assert "SSL 2.0" in connection.facts.reason


def test_older_versions_are_said() -> None:
    hello = b"\x03\x01" + bytes(32) + b"\0" + b"\x00\x2f" + b"\0"
    message = b"\x02" + len(hello).to_bytes(3, "big") + hello
    connection = TlsConnection(KeyLog())
    connection.take(False, b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message, None, 0)
    connection.take(False, b"\x14\x03\x01\x00\x01\x01", None, 0)
    connection.take(False, b"\x17\x03\x01\x00\x20" + bytes(32), None, 0)
    connection.end()
    assert connection.facts.version == "TLS 1.0"
    assert connection.facts.reason == "TLS 1.0: not opened"


def test_tls_12_joined_midway_is_said_to_be_closed() -> None:
    source = said(V12)
    start = next(at for at, (_, data) in enumerate(source.wire) if data[0] == 23)
    connection = TlsConnection(log_of(source.keys))
    assert not opened(connection, source.wire[start:])
    assert connection.facts.reason.startswith("joined midway with TLS 1.2")
    assert connection.facts.is_midway


@pytest.mark.parametrize("cipher", [AES_256, CHACHA])
@given(seed=SEEDS, holes=st.lists(st.integers(0, 2**31), max_size=20))
def test_holes_of_any_size_raise_nothing(cipher: str, seed: int, holes: list[int]) -> None:
    rng = random.Random(seed)
    talk = Talk(seed, cipher, others=0)
    talk.talk(20)
    log = log_of(talk.keys)
    log.effort = 1 << 22
    connection = TlsConnection(log)
    places = {rng.randrange(len(talk.wire)): size for size in holes}
    pieces = []
    for place, (from_client, data) in enumerate(talk.wire):
        if place in places:
            pieces += connection.gap(rng.random() < 0.5, places[place], None, place)
        pieces += connection.take(from_client, data, None, place)
    for from_client in (True, False):
        plain = b"".join(data for each, data in talk.plain if each is from_client)
        at = 0
        for piece in pieces + connection.end():
            if piece.from_client is from_client:
                at = plain.index(piece.data, at) + len(piece.data)
