"""Derives keys from the secrets of a key log: TLS 1.2 (RFC 5246, PRF) and TLS 1.3 (RFC 8446, HKDF).

An `Opener` opens the records of one direction under one key. `cryptography` is imported when the first one
is made.
"""

import hmac
from typing import Any, Final

from pulsarctl_wire.capture.tls.suites import CCM, CHACHA, GCM, Suite

_IV_SIZE: Final = 12
_SALT_SIZE: Final = 4
EXPLICIT_SIZE: Final = 8
"""Bytes of the nonce that a TLS 1.2 record carries, with AES-GCM and AES-CCM."""


def expand_label(secret: bytes, label: bytes, size: int, hash_name: str) -> bytes:
    """Derive `size` bytes from a secret with HKDF-Expand-Label and an empty context."""
    label = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    output = block = b""
    number = 1
    while len(output) < size:
        block = hmac.digest(secret, block + info + bytes([number]), hash_name)
        output += block
        number += 1
    return output[:size]


def next_secret(secret: bytes, hash_name: str) -> bytes:
    """Return the traffic secret that follows a key update."""
    return expand_label(secret, b"traffic upd", len(secret), hash_name)


def expand_master(master: bytes, seed: bytes, size: int, hash_name: str) -> bytes:
    """Derive `size` bytes of TLS 1.2's key block from the master secret; seed: server's random, client's."""
    seed = b"key expansion" + seed
    output, state = b"", seed
    while len(output) < size:
        state = hmac.digest(master, state, hash_name)
        output += hmac.digest(master, state + seed, hash_name)
    return output[:size]


class Opener:
    """Opens the records of one direction that were sealed with one key."""

    __slots__ = ("_aead", "_iv", "_salt", "_tag_size", "is_13", "key", "secret", "suite")

    def __init__(self, suite: Suite, key: bytes, iv: bytes, secret: bytes, *, is_13: bool) -> None:
        self.suite = suite
        self.key = key
        self.secret = secret
        """The traffic secret of TLS 1.3."""
        self.is_13 = is_13
        self._iv = int.from_bytes(iv, "big")
        self._salt = b"" if is_13 or suite.mode == CHACHA else iv  # iv: each record has the rest of the nonce
        self._tag_size = suite.tag_size
        self._aead = _make_aead(suite, key)

    @property
    def iv(self) -> bytes:
        """The nonce of record 0, where records carry no part of it."""
        return self._iv.to_bytes(_IV_SIZE, "big")

    @property
    def offset(self) -> int:
        """Bytes of a record's body before what is sealed in it."""
        return EXPLICIT_SIZE if self._salt else 0

    @property
    def overhead(self) -> int:
        """Bytes that a record's body is longer than what is in it (padding aside)."""
        return self._tag_size + (1 if self.is_13 else self.offset)

    def open(self, number: int, header: bytes, body: bytes) -> bytes | None:
        """Return what is in record `number`, or None if it was not sealed with this key and number.

        In TLS 1.3 that ends with the content's type, and padding may follow.
        """
        try:
            if self.is_13:
                return self._aead.decrypt((self._iv ^ number).to_bytes(_IV_SIZE, "big"), body, header)  # type: ignore[no-any-return]
            if self._salt:
                nonce = self._salt + body[:EXPLICIT_SIZE]
                body = body[EXPLICIT_SIZE:]
            else:
                nonce = (self._iv ^ number).to_bytes(_IV_SIZE, "big")
            size = (len(body) - self._tag_size).to_bytes(2, "big")
            return self._aead.decrypt(nonce, body, number.to_bytes(8, "big") + header[:3] + size)  # type: ignore[no-any-return]
        except Exception:  # the tag does not fit; or this is no record at all, which shows in many ways
            return None

    def open_unproven(self, number: int, body: bytes) -> bytes | None:
        """Return what is in a record of which bytes are missing, so that no tag can prove it.

        Bytes that are wrong in the body are wrong in the result, too.
        None: the body is too short, or the suite is one with CCM.
        """
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        nonce = (self._iv ^ number).to_bytes(_IV_SIZE, "big") if not self._salt else b""
        if self._salt:
            nonce = self._salt + body[:EXPLICIT_SIZE]
            body = body[EXPLICIT_SIZE:]
        if len(nonce) != _IV_SIZE or len(body) < self._tag_size or self.suite.mode == CCM:
            return None
        if self.suite.mode == GCM:
            aes = Cipher(algorithms.AES(self.key), modes.CTR(nonce + b"\0\0\0\x02"))
            return aes.decryptor().update(body[: -self._tag_size])
        chacha = Cipher(algorithms.ChaCha20(self.key, b"\x01\0\0\0" + nonce), None)
        return chacha.decryptor().update(body[: -self._tag_size])


def _make_aead(suite: Suite, key: bytes) -> Any:
    """Return the cipher of a suite that can be opened, for one key."""
    from cryptography.hazmat.primitives.ciphers import aead

    if suite.mode == GCM:
        return aead.AESGCM(key)
    if suite.mode == CCM:
        return aead.AESCCM(key, tag_length=suite.tag_size)
    return aead.ChaCha20Poly1305(key)


def open_13(suite: Suite, secret: bytes) -> Opener:
    """Return the opener for a traffic secret of TLS 1.3."""
    key = expand_label(secret, b"key", suite.key_size, suite.hash)
    iv = expand_label(secret, b"iv", _IV_SIZE, suite.hash)
    return Opener(suite, key, iv, secret, is_13=True)


def open_12(
    suite: Suite, master: bytes, client_random: bytes, server_random: bytes, *, is_client: bool
) -> Opener:
    """Return the opener for what one side of a TLS 1.2 connection sends."""
    iv_size = _IV_SIZE if suite.mode == CHACHA else _SALT_SIZE
    size = suite.key_size
    block = expand_master(master, server_random + client_random, 2 * (size + iv_size), suite.hash)
    keys, ivs = block[: 2 * size], block[2 * size :]
    if is_client:
        return Opener(suite, keys[:size], ivs[:iv_size], b"", is_13=False)
    return Opener(suite, keys[size:], ivs[iv_size:], b"", is_13=False)
