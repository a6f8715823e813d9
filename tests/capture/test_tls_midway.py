"""TLS 1.3 records whose number has to be found: connections joined midway, and holes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tls_endpoints import Chunk, cut, joined, log_of, opened
from tls_sealer import AES_128, AES_256, CHACHA, Talk

from pulsarctl_wire.capture.tls import midway
from pulsarctl_wire.capture.tls.connection import Piece, TlsConnection
from pulsarctl_wire.capture.tls.facts import TlsFacts
from pulsarctl_wire.capture.tls.schedule import open_13
from pulsarctl_wire.capture.tls.suites import AES_128_13

SEEDS = st.integers(0, 2**32 - 1)
HOLES = st.dictionaries(st.integers(14, 40), st.tuples(st.integers(0, 900), st.integers(1, 9_000)))
"""Of some chunks: where they begin, and their sizes."""


def check(talk: Talk, wire: list[Chunk] | None = None) -> TlsFacts:
    connection = TlsConnection(log_of(talk.keys))
    pieces = opened(connection, wire or talk.wire)
    assert joined(pieces) == joined(talk.plain)
    assert not any(piece.missing for piece in pieces)
    assert connection.facts.client_random == talk.client_random.hex()
    assert connection.facts.is_midway
    return connection.facts


@pytest.mark.parametrize(
    ("cipher", "numbers"),
    [
        (AES_256, (0, 1)),
        (AES_256, (80_006, 6_000)),
        (AES_128, (65_535, 3_999_999)),
        (AES_256, (30_000_000, 2)),
        (CHACHA, (4_000, 60_000)),
    ],
)
def test_connections_joined_midway_are_opened(cipher: str, numbers: tuple[int, int]) -> None:
    talk = Talk(1, cipher, numbers)
    talk.talk(20)
    facts = check(talk)
    assert (facts.client.first_number, facts.server.first_number) == numbers
    assert f"record {numbers[0]:,} of the client" in facts.trial
    assert facts.version == "TLS 1.3"


@given(seed=SEEDS, numbers=st.tuples(st.integers(0, 70_000), st.integers(0, 70_000)))
def test_portions_do_not_matter_midway(seed: int, numbers: tuple[int, int]) -> None:
    talk = Talk(seed, AES_256, numbers)
    talk.talk(12)
    check(talk, cut(talk.wire, seed))


@pytest.mark.parametrize("cipher", [AES_128, AES_256, CHACHA])
@pytest.mark.parametrize("updates", [1, 2, 3])
def test_keys_may_have_been_updated_before(cipher: str, updates: int) -> None:
    talk = Talk(2, cipher)
    for _ in range(updates):
        talk.client.update(is_said=False)
    talk.client.number, talk.server.number = 700, 9
    talk.talk(10)
    facts = check(talk)
    assert facts.client.key_updates == updates
    assert facts.client.first_number == 700


def test_keys_may_be_updated_later() -> None:
    talk = Talk(3, AES_128, (500, 600))
    talk.talk(9)
    talk.wire.append((True, talk.client.update()))
    talk.talk(9)
    talk.wire.append((False, talk.server.update()))
    talk.talk(9)
    facts = check(talk)
    assert (facts.client.key_updates, facts.server.key_updates) == (1, 1)


def test_a_capture_may_begin_within_a_record_within_a_frame() -> None:
    talk = Talk(4, AES_256, (5_000, 5_000))
    talk.say(True, 200_000)
    talk.talk(10)
    first = talk.wire.index(next(chunk for chunk in talk.wire if chunk[0])) + 3
    wire = [(True, talk.wire[first][1][1_000:]), *talk.wire[first + 1 :]]
    connection = TlsConnection(log_of(talk.keys))
    pieces = opened(connection, wire)
    assert pieces[0].missing
    received = b"".join(piece.data for piece in pieces if piece.from_client)
    said = b"".join(data for from_client, data in talk.plain if from_client)
    assert said.endswith(received)
    assert len(received) == len(said) - 4 * 16_384
    assert connection.facts.client.first_number == 5_004


def test_the_direction_may_be_named_wrongly_midway() -> None:
    talk = Talk(5, AES_256, (100, 200))
    talk.talk(10)
    connection = TlsConnection(log_of(talk.keys))
    pieces = opened(connection, [(not from_client, data) for from_client, data in talk.wire])
    assert joined(pieces) == joined((not from_client, data) for from_client, data in talk.plain)
    assert connection.facts.is_flipped


def test_without_the_secret_it_is_said_what_was_tried() -> None:
    talk = Talk(6, AES_256, (100, 200))
    talk.talk(10)
    own = talk.client_random.hex().encode()
    log = log_of(b"\n".join(line for line in talk.keys.splitlines() if own not in line))
    log.effort = 1 << 27
    connection = TlsConnection(log)
    assert not opened(connection, talk.wire)
    assert "keys fits the record numbers below" in connection.facts.reason
    connection = TlsConnection(log_of(b""))
    assert not opened(connection, talk.wire)
    assert connection.facts.reason == "joined midway: no secrets of TLS 1.3 are known that may fit"
    assert connection.facts.client.closed_records + connection.facts.server.closed_records == len(talk.wire)


def test_nothing_waits_midway_if_there_are_no_secrets() -> None:
    talk = Talk(6, AES_256, (100, 200))
    talk.talk(10)
    log = log_of(b"")
    log.is_complete = True
    connection = TlsConnection(log)
    for packet, (from_client, data) in enumerate(talk.wire):
        assert not connection.take(from_client, data, None, packet)
    assert connection.held_bytes == 0
    assert "no secrets of TLS 1.3" in connection.facts.reason


def test_the_effort_is_bounded_and_that_is_said() -> None:
    talk = Talk(7, AES_256, (100, 200))
    talk.talk(10)
    log = log_of(talk.keys)
    log.effort = 0
    connection = TlsConnection(log)
    assert not opened(connection, talk.wire)
    assert "too many" in connection.facts.reason


def test_the_secret_may_come_later_midway() -> None:
    talk = Talk(8, AES_256, (100, 200))
    talk.talk(10)
    log = log_of(b"")
    connection = TlsConnection(log)
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(talk.wire):
        pieces += connection.take(from_client, data, None, packet)
    assert not pieces
    log.feed(talk.keys)
    log.finish()
    assert joined(connection.retry() + connection.end()) == joined(talk.plain)


def lose(connection: TlsConnection, talk: Talk, lost: dict[int, tuple[int, int]]) -> list[Piece]:
    """Return what is opened if of these chunks only the bytes before and after a hole were captured."""
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(talk.wire):
        start, end = lost.get(packet, (0, 0))
        if data[:start]:
            pieces += connection.take(from_client, data[:start], None, packet)
        if end > start:
            pieces += connection.gap(from_client, min(end, len(data)) - start, None, packet)
        if data[end:]:
            pieces += connection.take(from_client, data[end:], None, packet)
    return pieces + connection.end()


@pytest.mark.parametrize("cipher", [AES_128, AES_256, CHACHA])
@given(seed=SEEDS, holes=HOLES)
@example(seed=1, holes={20: (0, 70_000), 21: (0, 70_000), 22: (3, 70_000)})
def test_after_a_hole_records_are_opened_again(
    cipher: str, seed: int, holes: dict[int, tuple[int, int]]
) -> None:
    talk = Talk(seed, cipher, (0, 0), others=0)
    talk.talk(60)
    sizes = [len(data) for _, data in talk.wire]
    lost = {
        at: (min(start, sizes[at] - 1), min(start + size, sizes[at])) for at, (start, size) in holes.items()
    }
    connection = TlsConnection(log_of(talk.keys))
    pieces = lose(connection, talk, lost)
    for from_client in (True, False):
        said = b"".join(data for each, data in talk.plain if each is from_client)
        place = 0
        for piece in pieces:
            if piece.from_client is from_client:
                assert not piece.missing or lost
                place = said.index(piece.data, place) + len(piece.data)  # in order, nothing made up
    parts = sum(len(piece.data) for piece in pieces)
    full = sum(len(data) for _, data in talk.plain)
    assert parts >= full - sum(sizes[at] for at in lost) - len(lost) * 20_000
    if not lost:
        assert parts == full


def test_a_hole_of_very_many_records_is_crossed() -> None:
    talk = Talk(9, AES_256, (10, 20), others=0)
    talk.talk(20)
    at = len(talk.wire)
    talk.client.number += 200_000
    talk.talk(20)
    connection = TlsConnection(log_of(talk.keys))
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(talk.wire):
        if packet == at:
            pieces += connection.gap(True, 40_000_000, None, packet)
        pieces += connection.take(from_client, data, None, packet)
    pieces += connection.end()
    assert joined((each.from_client, each.data) for each in pieces) == joined(talk.plain)
    assert [piece.missing for piece in pieces if piece.missing] == [40_000_000]


def test_a_damaged_record_costs_only_itself() -> None:
    talk = Talk(10, AES_256, (10, 20), others=0)
    talk.talk(40)
    at = 25
    from_client, data = talk.wire[at]
    talk.wire[at] = from_client, data[:-1] + bytes([data[-1] ^ 1])
    connection = TlsConnection(log_of(talk.keys))
    pieces = opened(connection, talk.wire)
    facts = connection.facts
    assert facts.client.failed_tags + facts.server.failed_tags == 1
    assert facts.client.closed_records + facts.server.closed_records == 1
    assert sum(piece.missing for piece in pieces) == len(data) - 5 - 17


def test_records_of_another_protocol_are_skipped() -> None:
    talk = Talk(11, AES_256, (10, 20), others=0)
    talk.talk(30)
    at = 20
    talk.wire.insert(at, (True, b"no TLS at all" * 100))
    connection = TlsConnection(log_of(talk.keys))
    pieces = opened(connection, talk.wire)
    assert joined((each.from_client, each.data) for each in pieces) == joined(talk.plain)
    assert sum(piece.missing for piece in pieces) == 1_300


def test_the_keystream_is_that_of_aes_gcm() -> None:
    """Every number of a block is found, whatever the nonce."""
    talk = Talk(12, AES_128)
    opener = open_13(AES_128_13, talk.client.secret)
    stream = midway.Keystream()
    for number in (0, 1, 65_535, 65_536, 2**32 + 5, 2**48 - 1):
        talk.client.number = number
        record = talk.client.seal(talk.rng.randbytes(0) + b"\0\0\0\x10\0\0\0\x0c\x08\x06" + bytes(10))
        sealed = [(0, record[:5], record[5:])]
        encryptor = midway._make_encryptor(opener.key)
        assert stream.search(opener, sealed, number // 65_536, encryptor) == number
