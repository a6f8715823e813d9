"""TLS endpoints of OpenSSL in memory, and what a `TlsConnection` makes of their bytes."""

from __future__ import annotations

import atexit
import random
import shutil
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pulsarctl_wire.capture.tls.connection import Piece, TlsConnection
from pulsarctl_wire.capture.tls.keylog import KeyLog

NOT_BEFORE = datetime(2024, 1, 2, tzinfo=timezone.utc)
NOT_AFTER = datetime(2094, 1, 2, tzinfo=timezone.utc)

Chunk = tuple[bool, bytes]
"""Bytes of one direction: from the client or not."""


class Said(NamedTuple):
    """A TLS session as it was on the wire, and what its ends said."""

    wire: list[Chunk]
    plain: list[Chunk]
    keys: bytes


@cache
def folder() -> Path:
    path = Path(mkdtemp(prefix="tls-test-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def certificate(kind: str, name: str) -> Path:
    """Return a file with a key and a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(IPv4Address("127.0.0.1"))])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7, NOT_BEFORE, NOT_AFTER)
    signed = builder.add_extension(names, critical=False).sign(key, SHA256())
    path = folder() / f"{kind}-{name}.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + signed.public_bytes(Encoding.PEM))
    return path


class Endpoints:
    """A client and a server of OpenSSL, whose bytes pass through memory."""

    def __init__(
        self,
        *,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        ciphers: str = "",
        kind: str = "ec",
        curve: str = "",
        has_client_certificate: bool = False,
        has_tickets: bool = True,
    ) -> None:
        self.keys_path = folder() / f"{id(self)}.keys"
        self.keys_path.write_bytes(b"")
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.load_verify_locations(certificate(kind, "broker.example"))
        self._client.keylog_filename = str(self.keys_path)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(certificate(kind, "broker.example"))
        for context in (self._client, self._server):
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(["pulsar"])
            if ciphers:
                context.set_ciphers(ciphers + ":@SECLEVEL=0")
        if curve:
            self._server.set_ecdh_curve(curve)
        if has_client_certificate:
            self._client.load_cert_chain(certificate("ec", "client.example"))
            self._server.verify_mode = ssl.CERT_REQUIRED
            self._server.load_verify_locations(certificate("ec", "client.example"))
        if not has_tickets:
            for context in (self._client, self._server):
                context.options |= ssl.OP_NO_TICKET
        self.session: ssl.SSLSession | None = None

    def connect(self, name: str = "broker.example") -> Conversation:
        """Shake hands; go on with the session of the last connection."""
        return Conversation(self, self._client, self._server, name)

    @property
    def keys(self) -> bytes:
        return self.keys_path.read_bytes()


class Conversation:
    """One connection between them."""

    def __init__(
        self, endpoints: Endpoints, client: ssl.SSLContext, server: ssl.SSLContext, name: str
    ) -> None:
        self._endpoints = endpoints
        self.wire: list[Chunk] = []
        self.plain: list[Chunk] = []
        self._sent = {True: ssl.MemoryBIO(), False: ssl.MemoryBIO()}
        self._received = {True: ssl.MemoryBIO(), False: ssl.MemoryBIO()}
        bios = self._received[False], self._sent[True]
        self.client = client.wrap_bio(*bios, server_hostname=name, session=endpoints.session)
        self.server = server.wrap_bio(self._received[True], self._sent[False], server_side=True)
        self.failure: ssl.SSLError | None = None
        todo = [self.client, self.server]
        for _ in range(20):
            for end in list(todo):
                try:
                    end.do_handshake()
                    todo.remove(end)
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    self.failure = self.failure or error
                    todo.remove(end)
                self._record(end is self.client)
            if not todo:
                break

    def _record(self, from_client: bool) -> None:
        """Note what an end has written, and pass it on."""
        if data := self._sent[from_client].read():
            self.wire.append((from_client, data))
            self._received[from_client].write(data)

    def say(self, from_client: bool, data: bytes) -> None:
        """Let an end send bytes, and the other one read them."""
        sender, receiver = (self.client, self.server) if from_client else (self.server, self.client)
        sender.write(data)
        self._record(from_client)
        self.plain.append((from_client, data))
        received = b""
        while len(received) < len(data):
            received += receiver.read(65_536)
        assert received == data

    def close(self) -> Said:
        """Say close_notify from both ends; keep the session for the next connection."""
        self._endpoints.session = self.client.session
        for end in (self.client, self.server):
            with suppress(ssl.SSLError):
                end.unwrap()
            self._record(end is self.client)
        return self.said

    @property
    def said(self) -> Said:
        return Said(self.wire, self.plain, self._endpoints.keys)


def log_of(keys: bytes) -> KeyLog:
    """Return a key log."""
    log = KeyLog()
    log.feed(keys)
    log.finish()
    return log


def cut(wire: Iterable[Chunk], seed: int, largest: int = 3_000) -> list[Chunk]:
    """Return the same bytes in other portions, each direction's order kept."""
    rng = random.Random(seed)
    portions: list[Chunk] = []
    for from_client, data in wire:
        while data:
            size = rng.randint(1, rng.choice([1, 7, 100, largest]))
            portions.append((from_client, data[:size]))
            data = data[size:]
    joined: list[Chunk] = []
    for from_client, data in portions:
        if joined and joined[-1][0] is from_client and rng.random() < 0.3:
            joined[-1] = from_client, joined[-1][1] + data
        else:
            joined.append((from_client, data))
    return joined


def opened(connection: TlsConnection, wire: Iterable[Chunk]) -> list[Piece]:
    """Return all that a connection makes of these bytes, up to its end."""
    pieces: list[Piece] = []
    for packet, (from_client, data) in enumerate(wire):
        pieces += connection.take(from_client, data, packet * 1_000, packet)
    return pieces + connection.end()


def joined(chunks: Iterable[Chunk | Piece]) -> list[Chunk]:
    """Return the bytes, neighbours of the same direction joined."""
    result: list[Chunk] = []
    for from_client, data, *_ in chunks:
        if result and result[-1][0] is from_client:
            result[-1] = from_client, result[-1][1] + data
        elif data:
            result.append((from_client, data))
    return result
