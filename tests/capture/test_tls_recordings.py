"""Sessions of OpenSSL, Go and Java that were recorded once -> what their ends said."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from tls_endpoints import cut, joined, log_of, opened

from pulsarctl_wire.capture.tls.connection import TlsConnection

FOLDER = Path(__file__).parent / "tls_recordings"
FACTS: dict[str, dict[str, object]] = {
    "go-12-aes128": {"cipher": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
    "go-12-chacha": {"cipher": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"},
    "go-13": {"cipher": "TLS_CHACHA20_POLY1305_SHA256"},
    "go-13-resumed": {"resumed": "PSK"},
    "java-12-aes256": {"cipher": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
    "java-12-aes256-resumed": {"resumed": "ticket"},
    "java-12-chacha": {"cipher": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"},
    "java-13-aes256": {"cipher": "TLS_AES_256_GCM_SHA384"},
    "java-13-aes256-resumed": {"resumed": "PSK"},
    "java-13-chacha": {"cipher": "TLS_CHACHA20_POLY1305_SHA256"},
    "java-13-key-updates": {"cipher": "TLS_AES_128_GCM_SHA256"},
    "java-agent-12": {"version": "TLS 1.2"},
    "java-agent-13": {"version": "TLS 1.3"},
    "openssl-aes_128_ccm_8_sha256": {"cipher": "TLS_AES_128_CCM_8_SHA256"},
    "openssl-aes_128_ccm_sha256": {"cipher": "TLS_AES_128_CCM_SHA256"},
    "openssl-aes_128_gcm_sha256": {"cipher": "TLS_AES_128_GCM_SHA256"},
    "openssl-aes_256_gcm_sha384": {"cipher": "TLS_AES_256_GCM_SHA384"},
    "openssl-chacha20_poly1305_sha256": {"cipher": "TLS_CHACHA20_POLY1305_SHA256"},
    "openssl-early-1": {"early_data": ""},
    "openssl-early-2": {"early_data": "accepted", "resumed": "PSK"},
    "openssl-early-rejected": {"early_data": "rejected", "resumed": ""},
    "openssl-key-updates": {"is_established": True},
    "openssl-padding": {"version": "TLS 1.3"},
    "openssl-renegotiation": {"is_renegotiated": True},
    "openssl-small-records": {"version": "TLS 1.3"},
    "openssl-small-records-12": {"version": "TLS 1.2"},
}
UPDATES = {"java-13-key-updates": (2, 2), "openssl-key-updates": (4, 3)}


def test_every_recording_is_opened() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(FACTS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FACTS)
def test_recorded_sessions_are_opened(name: str, seed: int) -> None:
    recording = json.loads((FOLDER / f"{name}.json").read_text())
    log = log_of(recording["keys"].encode())
    log.is_complete = seed == 2
    connection = TlsConnection(log)
    wire = [(bool(from_client), b64decode(data)) for from_client, data in recording["wire"]]
    pieces = opened(connection, cut(wire, seed) if seed else wire)
    assert joined(pieces) == joined(
        (bool(from_client), data.encode()) for from_client, data in recording["plain"]
    )
    facts = connection.facts
    assert {key: getattr(facts, key) for key in FACTS[name]} == FACTS[name]
    assert (facts.client.key_updates, facts.server.key_updates) == UPDATES.get(name, (0, 0))
    assert facts.reason == facts.problem == ""
    assert facts.client.failed_tags == facts.server.failed_tags == 0
    assert facts.client.has_close_notify
    assert facts.server.has_close_notify
    assert {alert.description for alert in facts.alerts} == (
        {"user_canceled"} if name.startswith("java") and "13" in name else set()
    )
