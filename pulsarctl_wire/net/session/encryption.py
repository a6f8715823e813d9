"""Encrypts what a producer sends for its recipients, as the official clients do (`wire/encryption.py`)."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pulsarctl_wire.wire.encryption import (
    NONCE_SIZE,
    TAG_SIZE,
    derive_ecies_keys,
    make_ecies_mac,
    make_oaep,
    mask,
)
from pulsarctl_wire.wire.PulsarApi_pb2 import EncryptionKeys, MessageMetadata

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    PublicKey = RSAPublicKey | EllipticCurvePublicKey

LIFE: Final = 4 * 3600 * 1_000_000_000
"""For how many ns a data key is used, as in the Java client."""

_DATA_KEY_SIZE: Final = 32
_MIN_RSA: Final = 1024  # bits


class Recipient(NamedTuple):
    """Who may read the messages: the name that consumers find the private key by, and the public key."""

    name: str
    key: "PublicKey"


def load_public_key(data: bytes) -> "PublicKey":
    """Read a public key, or that of a certificate, in PEM. Raises ValueError if it is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate

    try:
        is_certificate = b"BEGIN CERTIFICATE" in data
        key = load_pem_x509_certificate(data).public_key() if is_certificate else load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        if b"PUBLIC KEY" in data:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"the public key cannot be read: {reason}") from None
        kind = "a private key" if b"PRIVATE KEY" in data else "not a public key"
        raise ValueError(f"{kind}; give an RSA or EC public key in PEM") from None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA:
        raise ValueError(f"an RSA key of {key.key_size} bits; use one of {_MIN_RSA} at least")
    if not isinstance(key, (RSAPublicKey, EllipticCurvePublicKey)):
        raise ValueError("neither an RSA nor an EC key; Pulsar's clients use no others")
    return key


class Encryptor:
    """Encrypts the payloads of a producer. Its data key is changed every four hours.

    `overhead` is how many bytes it adds to an entry, at most.
    """

    def __init__(self, recipients: Sequence[Recipient]) -> None:
        self._recipients = recipients
        self._used_since: int | None = None
        self._renew()
        # 2 and 4: at most so many bytes for the tag and length of a field of the metadata
        self.overhead = TAG_SIZE + 2 + NONCE_SIZE + sum(4 + keys.ByteSize() for keys in self._keys)

    def _renew(self) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key = secrets.token_bytes(_DATA_KEY_SIZE)
        self._cipher = AESGCM(data_key)
        self._keys = [EncryptionKeys(key=name, value=_wrap(key, data_key)) for name, key in self._recipients]

    def encrypt(self, metadata: MessageMetadata, payload: bytes, now: int) -> bytes:
        """Encrypt the payload of an entry, or a chunk, and describe that in its metadata; `now` in ns."""
        if self._used_since is None:
            self._used_since = now
        elif now - self._used_since >= LIFE:
            self._renew()
            self._used_since = now
        del metadata.encryption_keys[:]  # chunks of a message have the same metadata
        metadata.encryption_keys.extend(self._keys)
        metadata.encryption_param = nonce = secrets.token_bytes(NONCE_SIZE)
        return self._cipher.encrypt(nonce, payload, None)


def _wrap(key: "PublicKey", data_key: bytes) -> bytes:
    """Encrypt a data key for a recipient: by OAEP, or by ECIES."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDH, generate_private_key
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if isinstance(key, RSAPublicKey):
        return key.encrypt(data_key, make_oaep())
    ephemeral = generate_private_key(key.curve)
    point = ephemeral.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    mac_key, stream = derive_ecies_keys(point, ephemeral.exchange(ECDH(), key), len(data_key))
    masked = mask(data_key, stream)
    return point + masked + make_ecies_mac(mac_key, masked)
