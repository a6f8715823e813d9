"""Seals TLS 1.3 records, independently of what opens them: with `cryptography`'s own HKDF."""

from __future__ import annotations

import random
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

AES_128, AES_256, CHACHA = "AES-128", "AES-256", "ChaCha20"


class Sealer:
    """One direction of a TLS 1.3 connection after its handshake, at any record number."""

    def __init__(self, secret: bytes, cipher: str, number: int = 0) -> None:
        self.secret, self.cipher, self.number = secret, cipher, number
        self._derive()

    def _expand(self, label: bytes, size: int) -> bytes:
        label = b"tls13 " + label
        info = struct.pack(">HB", size, len(label)) + label + b"\0"
        algorithm = SHA384() if self.cipher == AES_256 else SHA256()
        return HKDFExpand(algorithm, size, info).derive(self.secret)

    def _derive(self) -> None:
        key = self._expand(b"key", 16 if self.cipher == AES_128 else 32)
        self._aead = ChaCha20Poly1305(key) if self.cipher == CHACHA else AESGCM(key)
        self._iv = self._expand(b"iv", 12)

    def seal(self, data: bytes, kind: int = 23, padding: int = 0) -> bytes:
        """Return the next record."""
        inner = data + bytes([kind]) + bytes(padding)
        header = b"\x17\x03\x03" + struct.pack(">H", len(inner) + 16)
        nonce = (int.from_bytes(self._iv, "big") ^ self.number).to_bytes(12, "big")
        self.number += 1
        return header + self._aead.encrypt(nonce, inner, header)

    def update(self, *, is_said: bool = True) -> bytes:
        """Return a key update, after which the next key is used."""
        record = self.seal(b"\x18\0\0\x01\0", 22) if is_said else b""
        self.secret = self._expand(b"traffic upd", len(self.secret))
        self.number = 0
        self._derive()
        return record


def frame(size: int, rng: random.Random) -> bytes:
    """Return what begins as a Pulsar frame of `size` bytes."""
    command = min(size - 8, 40)
    return struct.pack(">II", size - 4, command) + b"\x08\x06" + rng.randbytes(size - 10)


class Talk:
    """Both directions, their secrets, and a key log that has these among others."""

    def __init__(
        self, seed: int, cipher: str = AES_256, numbers: tuple[int, int] = (0, 0), others: int = 3
    ) -> None:
        self.rng = random.Random(seed)
        size = 48 if cipher == AES_256 else 32
        self.client_random = self.rng.randbytes(32)
        secrets = self.rng.randbytes(size), self.rng.randbytes(size)
        self.client = Sealer(secrets[0], cipher, numbers[0])
        self.server = Sealer(secrets[1], cipher, numbers[1])
        lines = [
            f"{role}_TRAFFIC_SECRET_0 {self.client_random.hex()} {secret.hex()}"
            for role, secret in zip(("CLIENT", "SERVER"), secrets, strict=True)
        ]
        for _ in range(others):
            other, other_size = self.rng.randbytes(32).hex(), self.rng.choice([32, 48])
            roles = [("CLIENT", other_size), ("SERVER", other_size)]
            added = [f"{role}_TRAFFIC_SECRET_0 {other} {self.rng.randbytes(n).hex()}" for role, n in roles]
            lines[0:0] = added
        self.keys = "\n".join(lines).encode()
        self.wire: list[tuple[bool, bytes]] = []
        self.plain: list[tuple[bool, bytes]] = []

    def say(self, from_client: bool, size: int) -> None:
        """Let a side send a frame of this size, in as many records as it takes."""
        data = frame(size, self.rng)
        sealer = self.client if from_client else self.server
        for start in range(0, size, 16_384):
            self.wire.append((from_client, sealer.seal(data[start : start + 16_384])))
        self.plain.append((from_client, data))

    def talk(self, frames: int) -> None:
        """Let both sides send frames of any size."""
        for _ in range(frames):
            self.say(self.rng.random() < 0.5, self.rng.choice([13, 20, 60, 1_000, 5_000, 40_000]))
