"""Bytes of real TLS endpoints -> exactly what they said, in any portions, and what is known of them."""

from __future__ import annotations

import ssl
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tls_endpoints import NOT_AFTER, NOT_BEFORE, Endpoints, Said, cut, joined, log_of, opened

from pulsarctl_wire.capture.tls.connection import TlsConnection
from pulsarctl_wire.capture.tls.facts import TlsFacts
from pulsarctl_wire.capture.tls.keylog import KeyLog

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
SEEDS = st.integers(0, 2**32 - 1)
TALK = ((True, b"hello"), (False, b"world" * 5_000), (True, bytes(40_000)), (True, b"x"), (False, b"bye"))

SUITES_12 = [
    f"{prefix}-{cipher}"
    for prefix, ciphers in {
        "ECDHE-ECDSA": (
            *("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"),
            *("AES128-CCM", "AES256-CCM", "AES128-CCM8", "AES256-CCM8"),
        ),
        "ECDHE-RSA": ("AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305"),
    }.items()
    for cipher in ciphers
] + ["AES128-GCM-SHA256", "AES256-GCM-SHA384", "AES128-CCM"]


def talk(endpoints: Endpoints) -> Said:
    conversation = endpoints.connect()
    for from_client, data in TALK:
        conversation.say(from_client, data)
    return conversation.close()


@cache
def said(version: ssl.TLSVersion = V13, ciphers: str = "", kind: str = "ec", curve: str = "") -> Said:
    return talk(Endpoints(version=version, ciphers=ciphers, kind=kind, curve=curve))


def facts_of(said: Said, keys: bytes | None = None) -> TlsFacts:
    connection = TlsConnection(log_of(said.keys if keys is None else keys))
    assert joined(opened(connection, said.wire)) == (joined(said.plain) if keys is None else [])
    return connection.facts


@pytest.mark.parametrize("ciphers", SUITES_12)
def test_every_suite_of_tls_12_is_opened(ciphers: str) -> None:
    kind = "ec" if "ECDSA" in ciphers else "rsa"
    facts = facts_of(said(V12, ciphers, kind))
    assert facts.version == "TLS 1.2"
    name = facts.cipher.replace("TLS_", "").replace("WITH_", "").replace("AES_", "AES").replace("CCM_", "CCM")
    assert name.replace("_", "-").removeprefix("RSA-").startswith(ciphers)
    assert facts.reason == facts.problem == ""
    assert facts.client.records >= 5
    assert facts.client.closed_records == facts.server.closed_records == 0


@pytest.mark.parametrize("version", [V12, V13])
def test_what_is_known_of_a_connection(version: ssl.TLSVersion) -> None:
    facts = facts_of(said(version))
    assert facts.server_name == "broker.example"
    assert facts.alpn == "pulsar"
    assert facts.is_established
    assert len(facts.client_random) == 64
    certificate = facts.server_certificate
    assert certificate is not None
    assert certificate.subject == certificate.issuer == "CN=broker.example"
    assert certificate.names == ("broker.example", "127.0.0.1")
    assert certificate.not_before == NOT_BEFORE.timestamp()
    assert certificate.not_after == NOT_AFTER.timestamp()
    assert facts.client.has_close_notify
    assert facts.server.has_close_notify
    assert not facts.alerts
    assert facts.client.plain_bytes == sum(len(data) for from_client, data in TALK if from_client)
    assert not facts.resumed


@pytest.mark.parametrize("version", [V12, V13])
@given(seed=SEEDS)
def test_portions_do_not_matter(version: ssl.TLSVersion, seed: int) -> None:
    source = said(version)
    connection = TlsConnection(log_of(source.keys))
    assert joined(opened(connection, cut(source.wire, seed))) == joined(source.plain)
    assert connection.held_bytes == 0
    assert connection.facts == facts_of(source)


@pytest.mark.parametrize("version", [V12, V13])
@given(seed=SEEDS, place=st.integers(0, 100))
def test_secrets_may_come_later(version: ssl.TLSVersion, seed: int, place: int) -> None:
    source = said(version)
    log = KeyLog()
    connection = TlsConnection(log)
    portions = cut(source.wire, seed)
    place = len(portions) * place // 100
    pieces = []
    for packet, (from_client, data) in enumerate(portions):
        if packet == place:
            log.feed(source.keys)
            pieces += connection.retry()
        pieces += connection.take(from_client, data, None, packet)
    log.feed(source.keys)
    pieces += connection.retry() + connection.end()
    assert joined(pieces) == joined(source.plain)
    assert [piece.packet for piece in pieces] == sorted(piece.packet for piece in pieces)


@pytest.mark.parametrize(
    ("version", "has_tickets", "kind"),
    [(V12, True, "ticket"), (V12, False, "session id"), (V13, True, "PSK"), (V13, False, "PSK")],
)
def test_resumed_sessions_are_opened(version: ssl.TLSVersion, has_tickets: bool, kind: str) -> None:
    endpoints = Endpoints(version=version, has_tickets=has_tickets)
    assert facts_of(talk(endpoints)).resumed == ""
    conversation = endpoints.connect()
    assert conversation.client.session_reused
    conversation.say(True, b"again")
    facts = facts_of(conversation.close())
    assert facts.resumed == kind
    assert facts.server_certificate is None


def test_another_client_hello_may_be_asked_for() -> None:
    facts = facts_of(said(curve="secp521r1"))
    assert facts.has_retried
    assert facts.is_established


@pytest.mark.parametrize("version", [V12, V13])
def test_the_certificate_of_the_client_is_named(version: ssl.TLSVersion) -> None:
    facts = facts_of(talk(Endpoints(version=version, has_client_certificate=True)))
    assert facts.wants_client_certificate
    assert facts.client_certificate is not None
    assert facts.client_certificate.subject == "CN=client.example"


@pytest.mark.parametrize("version", [V12, V13])
def test_alerts_are_named(version: ssl.TLSVersion) -> None:
    conversation = Endpoints(version=version).connect("other.example")
    assert conversation.failure is not None
    connection = TlsConnection(log_of(conversation.said.keys))
    assert not opened(connection, conversation.wire)
    (alert,) = connection.facts.alerts
    assert alert.from_client
    assert (alert.level, alert.description) == ("fatal", "bad_certificate")
    assert not connection.facts.is_established


@pytest.mark.parametrize("version", [V12, V13])
def test_without_secrets_it_is_said_what_is_missing(version: ssl.TLSVersion) -> None:
    source = said(version)
    facts = facts_of(source, b"")
    assert facts.reason == f"no secret for client random {facts.client_random[:8]}…"
    assert facts.client.closed_records > 4
    assert facts.client.closed_alerts == facts.server.closed_alerts == (1 if version is V12 else 0)
    assert facts.server_name == "broker.example"
    assert (facts.server_certificate is not None) is (version is V12)


@pytest.mark.parametrize("version", [V12, V13])
def test_wrong_secrets_are_said_not_to_fit(version: ssl.TLSVersion) -> None:
    source = said(version)
    lines = [line.split() for line in source.keys.splitlines() if not line.startswith(b"#")]
    wrong = b"\n".join(b" ".join([label, random, secret[::-1]]) for label, random, secret in lines)
    facts = facts_of(source, wrong)
    assert "does not fit" in facts.reason
    assert facts.client.failed_tags == 1


def test_suites_with_cbc_are_said_and_not_opened() -> None:
    facts = facts_of(said(V12, "ECDHE-ECDSA-AES256-SHA384"), b"")
    assert facts.reason == "CBC suite TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384: not opened"
    assert facts.client.closed_records > 4


@pytest.mark.parametrize("version", [V12, V13])
def test_without_the_handshakes_secrets_application_data_is_opened(version: ssl.TLSVersion) -> None:
    source = said(version)
    keys = b"".join(line for line in source.keys.splitlines(True) if b"HANDSHAKE" not in line)
    facts = facts_of(Said(source.wire, source.plain, keys))
    assert facts.reason == ""


@pytest.mark.parametrize("version", [V12, V13])
def test_nothing_waits_for_secrets_that_cannot_come(version: ssl.TLSVersion) -> None:
    source = said(version)
    log = log_of(b"")
    log.is_complete = True
    connection = TlsConnection(log)
    for packet, (from_client, data) in enumerate(source.wire):
        assert not connection.take(from_client, data, None, packet)
        assert connection.held_bytes == 0
    assert connection.facts.reason.startswith("no secret for client random")


@given(limit=st.integers(0, 60_000), seed=SEEDS)
def test_what_waits_is_bounded(limit: int, seed: int) -> None:
    source = said()
    log = KeyLog()
    connection = TlsConnection(log, limit=limit)
    for packet, (from_client, data) in enumerate(cut(source.wire, seed)):
        assert not connection.take(from_client, data, None, packet)
        assert connection.held_bytes <= limit + 2 * 20_000
    assert not connection.end()


def test_the_direction_may_be_named_wrongly() -> None:
    source = said()
    connection = TlsConnection(log_of(source.keys))
    pieces = opened(connection, [(not from_client, data) for from_client, data in source.wire])
    assert joined(pieces) == joined((not from_client, data) for from_client, data in source.plain)
    assert connection.facts.is_flipped


@pytest.mark.parametrize(
    ("head", "is_tls"),
    [
        (b"", None),
        (b"\x16", None),
        (b"\x16\x03\x01\x02", None),
        (b"\x16\x03\x01\x02\x00", True),
        (b"\x17\x03\x03\x40\x18", True),
        (b"\x17\x03\x03\xff\xff", False),
        (b"\x00\x00\x00\x20\x00", False),
        (b"\x00", False),
        (b"GET /", False),
        (b"\x80\x2e\x01\x03\x01", True),
        (b"\x80\x2e", None),
    ],
)
def test_tls_is_recognized(head: bytes, is_tls: bool | None) -> None:
    assert TlsConnection.looks_like_tls(head) is is_tls


@pytest.mark.parametrize("version", [V12, V13])
@given(place=st.integers(0, 100))
def test_a_secret_may_come_after_its_records_were_given_up(version: ssl.TLSVersion, place: int) -> None:
    source = said(version)
    log = KeyLog()
    connection = TlsConnection(log, limit=0)
    pieces = []
    for packet, (from_client, data) in enumerate(source.wire):
        if packet * 100 >= place * len(source.wire):
            log.feed(source.keys)
        pieces += connection.take(from_client, data, None, packet)
    received = b"".join(piece.data for piece in pieces + connection.end())
    plain = b"".join(data for _, data in source.plain)
    assert plain.endswith(received)
    if place < 50:
        assert received
