"""Parses the messages of TLS that say what a connection is: hellos, certificates, alerts.

The functions raise `BadMessage` for what is not such a message.
"""

import warnings
from typing import Final, NamedTuple

from pulsarctl_wire.capture.tls.facts import Certificate

CLIENT_HELLO: Final = 1
SERVER_HELLO: Final = 2
END_OF_EARLY_DATA: Final = 5
ENCRYPTED_EXTENSIONS: Final = 8
CERTIFICATE: Final = 11
CERTIFICATE_REQUEST: Final = 13
SERVER_HELLO_DONE: Final = 14
FINISHED: Final = 20
KEY_UPDATE: Final = 24

TLS_12: Final = 0x0303
TLS_13: Final = 0x0304
VERSIONS: Final = {
    0x0300: "SSL 3.0",
    0x0301: "TLS 1.0",
    0x0302: "TLS 1.1",
    TLS_12: "TLS 1.2",
    TLS_13: "TLS 1.3",
}

_SERVER_NAME: Final = 0
_ALPN: Final = 16
_SESSION_TICKET: Final = 35
_PRE_SHARED_KEY: Final = 41
_EARLY_DATA: Final = 42
_SUPPORTED_VERSIONS: Final = 43

_RETRY: Final = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random of a HelloRetryRequest (RFC 8446, 4.1.3)."""
_MAX_NAME: Final = 255
_MAX_NAMES: Final = 100

_ALERTS: Final = {
    0: "close_notify",
    10: "unexpected_message",
    20: "bad_record_mac",
    21: "decryption_failed",
    22: "record_overflow",
    30: "decompression_failure",
    40: "handshake_failure",
    41: "no_certificate",
    42: "bad_certificate",
    43: "unsupported_certificate",
    44: "certificate_revoked",
    45: "certificate_expired",
    46: "certificate_unknown",
    47: "illegal_parameter",
    48: "unknown_ca",
    49: "access_denied",
    50: "decode_error",
    51: "decrypt_error",
    60: "export_restriction",
    70: "protocol_version",
    71: "insufficient_security",
    80: "internal_error",
    86: "inappropriate_fallback",
    90: "user_canceled",
    100: "no_renegotiation",
    109: "missing_extension",
    110: "unsupported_extension",
    111: "certificate_unobtainable",
    112: "unrecognized_name",
    113: "bad_certificate_status_response",
    114: "bad_certificate_hash_value",
    115: "unknown_psk_identity",
    116: "certificate_required",
    120: "no_application_protocol",
}
CLOSE_NOTIFY: Final = "close_notify"


class BadMessage(ValueError):
    """A handshake message, or an alert, that does not parse."""


class _Fields:
    """The fields of a message, read one after the other; if it is cut, the last one may be shorter."""

    def __init__(self, data: bytes, is_cut: bool = False) -> None:
        self._data = data
        self._is_cut = is_cut
        self._position = 0

    def __bool__(self) -> bool:
        return self._position < len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self._position + size
        if end > len(self._data):
            raise BadMessage(f"{end - len(self._data)} bytes are missing")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def number(self, size: int) -> int:
        """Return the number in the next bytes."""
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Return the bytes whose length is in the next `size` bytes."""
        length = self.number(size)
        return self.take(min(length, len(self._data) - self._position) if self._is_cut else length)


class ClientHello(NamedTuple):
    """A ClientHello."""

    random: bytes
    session_id: bytes
    server_name: str
    has_ticket: bool
    has_early_data: bool


class ServerHello(NamedTuple):
    """A ServerHello, or a HelloRetryRequest."""

    random: bytes
    version: int
    session_id: bytes
    suite: int
    alpn: str
    has_psk: bool

    @property
    def is_retry(self) -> bool:
        """Whether it asks for another ClientHello."""
        return self.random == _RETRY


def _text(data: bytes) -> str:
    return data[:_MAX_NAME].decode("ascii", "backslashreplace")


def _read_extensions(fields: _Fields, is_cut: bool = False) -> dict[int, bytes]:
    """Return the extensions that follow, which may be missing altogether."""
    extensions: dict[int, bytes] = {}
    if fields:
        rest = _Fields(fields.vector(2), is_cut)
        try:
            while rest:
                kind = rest.number(2)
                extensions[kind] = rest.vector(2)
        except BadMessage:
            if not is_cut:
                raise
    return extensions


def _read_server_name(extension: bytes) -> str:
    names = _Fields(_Fields(extension).vector(2))
    while names:
        kind, name = names.number(1), names.vector(2)
        if kind == 0:
            return _text(name)
    return ""


def _read_alpn(extension: bytes) -> str:
    """Return the protocol that a server chose."""
    return _text(_Fields(_Fields(extension).vector(2)).vector(1)) if extension else ""


def read_client_hello(body: bytes, *, is_cut: bool = False) -> ClientHello:
    """Return a ClientHello; its end may be missing if it `is_cut`."""
    fields = _Fields(body, is_cut)
    fields.take(2)
    random, session_id = fields.take(32), fields.vector(1)
    fields.vector(2)  # suites
    if fields:
        fields.vector(1)  # compressions
    extensions = _read_extensions(fields, is_cut)
    name = None if is_cut else extensions.get(_SERVER_NAME)
    return ClientHello(
        random,
        session_id,
        _read_server_name(name) if name else "",
        bool(extensions.get(_SESSION_TICKET)),
        _EARLY_DATA in extensions,
    )


def read_server_hello(body: bytes, *, is_cut: bool = False) -> ServerHello:
    """Return a ServerHello; its end may be missing if it `is_cut`."""
    fields = _Fields(body, is_cut)
    version, random, session_id, suite = fields.number(2), fields.take(32), fields.vector(1), fields.number(2)
    fields.take(1)  # compression
    extensions = _read_extensions(fields, is_cut)
    supported = extensions.get(_SUPPORTED_VERSIONS)
    if supported:
        version = _Fields(supported).number(2)
    alpn = "" if is_cut else _read_alpn(extensions.get(_ALPN, b""))
    return ServerHello(random, version, session_id, suite, alpn, _PRE_SHARED_KEY in extensions)


def read_encrypted_extensions(body: bytes) -> tuple[str, bool]:
    """Return the chosen protocol (ALPN), and whether early data is accepted."""
    extensions = _read_extensions(_Fields(body))
    return _read_alpn(extensions.get(_ALPN, b"")), _EARLY_DATA in extensions


def read_certificate(body: bytes, *, is_13: bool) -> Certificate | None:
    """Return the first certificate of a Certificate message; None if it has none."""
    fields = _Fields(body)
    if is_13:
        fields.vector(1)  # the context of the request
    certificates = _Fields(fields.vector(3))
    return _load_certificate(certificates.vector(3)) if certificates else None


def _load_certificate(der: bytes) -> Certificate:
    """Return what is shown of a certificate, or why it cannot be read."""
    from cryptography import x509

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # serial numbers, versions and names that break the rules
            certificate = x509.load_der_x509_certificate(der)
            names: list[str] = []
            try:
                extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            except x509.ExtensionNotFound:
                pass
            else:
                names += extension.value.get_values_for_type(x509.DNSName)
                names += map(str, extension.value.get_values_for_type(x509.IPAddress))
            return Certificate(
                certificate.subject.rfc4514_string(),
                tuple(name[:_MAX_NAME] for name in names[:_MAX_NAMES]),
                certificate.issuer.rfc4514_string(),
                int(certificate.not_valid_before_utc.timestamp()),
                int(certificate.not_valid_after_utc.timestamp()),
            )
    except Exception as error:  # whatever is wrong with it
        return Certificate("", problem=f"a certificate that does not parse: {error}"[:_MAX_NAME])


def read_alert(data: bytes) -> tuple[str, str]:
    """Return the level and description of an alert."""
    if len(data) != 2:
        raise BadMessage(f"an alert of {len(data)} bytes")
    level = {1: "warning", 2: "fatal"}.get(data[0], f"level {data[0]}")
    return level, _ALERTS.get(data[1], f"alert {data[1]}")
