"""Payloads that are encrypted end to end (PIP-4), opened with the private keys of recipients.

    payload           batched, compressed and split into chunks first; then AES-GCM, with its tag at the end
    encryption_param  the nonce; each entry, and each chunk, has one of its own
    encryption_keys   the data key, encrypted for each recipient: for RSA keys by OAEP with SHA-1, for EC keys
                      by ECIES: [ephemeral point, uncompressed][data key XOR stream][HMAC-SHA-1, 20 bytes]

Sources: PIP-4; the Java client, whose ECIES is that of Bouncy Castle (IEEE 1363a in DHAES mode: KDF2 with
SHA-1 over the point and the shared secret makes 16 bytes for the HMAC, then the stream). The C++ and Go
clients know only RSA. A producer uses a data key for four hours.
"""

import hmac
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pulsarctl_wire.wire.fields import as_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    PrivateKey: TypeAlias = RSAPrivateKey | EllipticCurvePrivateKey

NONCE_SIZE: Final = 12
"""Bytes of a nonce."""
TAG_SIZE: Final = 16
"""Bytes that AES-GCM adds to a payload."""
RSA_OAEP: Final = "RSA-OAEP"
ECIES: Final = "ECIES"

MAX_RECIPIENTS: Final = 64
"""Maximum number of different encrypted data keys of an entry that are tried."""
MAX_FAILURES: Final = 4_096
"""Maximum number of failed attempts to open a data key with a private key; after them no more are tried."""

_MAX_WRAPPED: Final = 2_048  # bytes of an encrypted data key: that of an RSA key of 16,384 bits
_CACHED: Final = 1_024  # data keys that are kept, and failures
_MAC_KEY_SIZE: Final = 16
_MAC_SIZE: Final = 20
_PARAMETER_LENGTH: Final = bytes(8)  # 0 bits: ECIES's optional parameter is empty
_DATA_KEY_SIZES: Final = (16, 24, 32)  # Java may be limited to 16


class Seal(NamedTuple):
    """What is needed to open a payload: its nonce, and each recipient's name and encrypted data key."""

    nonce: bytes
    recipients: tuple[tuple[str, bytes], ...]

    @property
    def size(self) -> int:
        """Bytes of the texts and keys in it."""
        return len(self.nonce) + sum(len(name) + len(wrapped) for name, wrapped in self.recipients)


class Opened(NamedTuple):
    """How a payload was opened: the name of the recipient's key, and the ciphers of payload and data key.

    `algorithm` is, for instance, "AES-256-GCM, RSA-OAEP".
    """

    key: str
    algorithm: str


class SealedError(ValueError):
    """A payload that stays closed. Internal: it becomes a note."""


def read_seal(metadata: Any) -> Seal:
    """Return the seal in the metadata of an encrypted entry; recipients that are repeated count once.

    The C++ client repeats all of them with each chunk of a message.
    """
    recipients: dict[tuple[str, bytes], None] = {}
    for key in metadata.encryption_keys:
        if len(recipients) == MAX_RECIPIENTS:
            break
        if len(key.value) <= _MAX_WRAPPED:
            recipients[as_text(key.key[:_MAX_WRAPPED]), key.value] = None
    return Seal(metadata.encryption_param[:_MAX_WRAPPED], tuple(recipients))


def load_private_key(data: bytes) -> "PrivateKey":
    """Read a private key in PEM: PKCS #8, or the formats of `openssl genrsa` and `ecparam`.

    Raises ValueError if it is not an RSA or EC key, or has a passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise ValueError("the key has a passphrase; write it without one") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        if b"PRIVATE KEY" in data:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"the private key cannot be read: {reason}") from None
        kind = "a public key" if b"PUBLIC KEY" in data or b"CERTIFICATE" in data else "not a private key"
        raise ValueError(f"{kind}; give an RSA or EC private key in PEM") from None
    if not isinstance(key, (RSAPrivateKey, EllipticCurvePrivateKey)):
        raise ValueError("neither an RSA nor an EC key; Pulsar's clients use no others")
    return key


class KeyRing:
    """Private keys, which open payloads. Data keys are cached, and so are failures to open one.

    `keys` are the private keys, `problems` the different reasons why payloads stayed closed, in their order,
    up to 100.
    """

    def __init__(self, keys: Iterable["PrivateKey"]) -> None:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

        self.keys = list(keys)
        self._openers: list[tuple[Callable[[bytes], bytes | None], str]] = [
            (partial(_open_rsa, key), RSA_OAEP)
            if isinstance(key, RSAPrivateKey)
            else (partial(_open_ecies, key), ECIES)
            for key in self.keys
        ]
        self._failures = 0
        self._unwrap = lru_cache(_CACHED)(self._try_keys)
        self.problems: dict[str, None] = {}

    def open(self, seals: Sequence[tuple[Seal | None, int]], payload: bytes) -> tuple[bytes, Opened]:
        """Decrypt a payload; return it, and how it was opened. Raises SealedError.

        `seals` has a seal and a size in bytes for each piece: one for the whole payload, or one per chunk.
        A piece without a seal is not encrypted.
        """
        pieces, pos, opened = [], 0, Opened("", "")
        try:
            for seal, size in seals:
                piece = payload[pos : pos + size]
                pos += size
                if seal is not None:
                    piece, opened = self._decrypt(seal, piece)
                pieces.append(piece)
        except SealedError as error:
            if len(self.problems) < 100:
                self.problems[str(error)] = None
            raise
        return b"".join(pieces), opened

    def _decrypt(self, seal: Seal, payload: bytes) -> tuple[bytes, Opened]:
        from cryptography.exceptions import InvalidTag

        if len(seal.nonce) != NONCE_SIZE:
            raise SealedError(f"encryption_param has {len(seal.nonce)} bytes; a nonce has {NONCE_SIZE}")
        if len(payload) < TAG_SIZE:
            raise SealedError(f"{len(payload)} bytes are too few: the tag alone has {TAG_SIZE}")
        names = [name for name, _ in seal.recipients]
        unlocked_name = ""
        for name, wrapped in seal.recipients:
            cipher, algorithm = self._unwrap(wrapped)
            if cipher is None:
                continue
            try:
                return cipher.decrypt(seal.nonce, payload, None), Opened(name, algorithm)
            except InvalidTag:
                unlocked_name = name
        if unlocked_name:
            raise SealedError(
                f"the data key of {unlocked_name} is open, but its payload is damaged or another's"
            )
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        if self._failures >= MAX_FAILURES:
            raise SealedError(f"no private key opened {MAX_FAILURES} data keys: further ones are not tried")
        raise SealedError(f"no private key opens the data key of {', '.join(names[:3]) or 'nobody'}{more}")

    def _try_keys(self, wrapped: bytes) -> "tuple[AESGCM | None, str]":
        """Decrypt a data key; return its cipher, and `Opened.algorithm`.

        (None, "") if no private key opens it.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for open_with_key, algorithm in self._openers:
            if self._failures >= MAX_FAILURES:
                break
            data_key = open_with_key(wrapped)
            if data_key is None:
                continue
            if len(data_key) in _DATA_KEY_SIZES:
                return AESGCM(data_key), f"AES-{8 * len(data_key)}-GCM, {algorithm}"
            self._failures += 1
        return None, ""


def _open_rsa(key: "RSAPrivateKey", wrapped: bytes) -> bytes | None:
    """Decrypt a data key; b"" if it is not for this key, None if its size shows that already."""
    if len(wrapped) != (key.key_size + 7) // 8:
        return None
    try:
        return key.decrypt(wrapped, make_oaep())
    except ValueError:
        return b""


def make_oaep() -> Any:
    """Make the padding of data keys that are encrypted for RSA keys."""
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
    from cryptography.hazmat.primitives.hashes import SHA1

    return OAEP(MGF1(SHA1()), SHA1(), None)


def _open_ecies(key: "EllipticCurvePrivateKey", wrapped: bytes) -> bytes | None:
    """Decrypt a data key; b"" if it is not for this key, None if its size shows that already."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDH, EllipticCurvePublicKey

    size = 1 + 2 * ((key.curve.key_size + 7) // 8)
    if len(wrapped) - size - _MAC_SIZE not in _DATA_KEY_SIZES:
        return None
    point, masked, mac = wrapped[:size], wrapped[size:-_MAC_SIZE], wrapped[-_MAC_SIZE:]
    try:
        ephemeral = EllipticCurvePublicKey.from_encoded_point(key.curve, point)
        secret = key.exchange(ECDH(), ephemeral)
    except ValueError:
        return b""
    mac_key, stream = derive_ecies_keys(point, secret, len(masked))
    is_ours = hmac.compare_digest(mac, make_ecies_mac(mac_key, masked))
    return mask(masked, stream) if is_ours else b""


def derive_ecies_keys(point: bytes, secret: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the key of the HMAC and the stream for a data key of `size` bytes.

    `point` is the ephemeral key, encoded; `secret` what both sides share.
    """
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    keys = X963KDF(SHA1(), _MAC_KEY_SIZE + size, None).derive(point + secret)
    return keys[:_MAC_KEY_SIZE], keys[_MAC_KEY_SIZE:]


def make_ecies_mac(mac_key: bytes, masked: bytes) -> bytes:
    """Return the HMAC of a masked data key."""
    return hmac.digest(mac_key, masked + _PARAMETER_LENGTH, "sha1")


def mask(data: bytes, stream: bytes) -> bytes:
    """Return the bytes of `data` XOR those of `stream`, which has the same size."""
    return bytes(map(operator.xor, data, stream))
