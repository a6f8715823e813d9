"""Certificates for TLS clients of the proxy: one the user gives, or one signed by pwire's own CA.

The CA is created once and kept, so clients need to trust it only once. The certificate it signs lives as
long as the process, and its key never stays on disk. Two processes may create the CA at the same time: files
appear atomically, the first process to create a file wins, and the key is written before the certificate
made from it. An existing CA is used or refused, but never replaced.
Source: RFC 5280 (4.2: extensions), RFC 6125 (names), the XDG Base Directory Specification.
"""

import os
import socket
import ssl
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from ipaddress import ip_address
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.settings import make_tls_context

_CERTIFICATE, _KEY = "ca.pem", "ca-key.pem"
_CA_LIFE: Final = timedelta(days=3653)
_LIFE: Final = timedelta(days=365)
_PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLOCK_SKEW: Final = timedelta(days=1)
"""How far clients' clocks may be behind ours."""


def find_ca_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of our CA: $XDG_DATA_HOME/pwire, or ~/.local/share/pwire.

    Raises SettingsError if there is no home directory.
    """
    base = Path(environ.get("XDG_DATA_HOME", ""))
    if base.is_absolute():  # the specification says to ignore relative paths
        return base / "pwire"
    try:
        return Path(environ.get("HOME") or Path.home()) / ".local/share/pwire"
    except RuntimeError:
        raise SettingsError("no home directory to keep a CA in: set XDG_DATA_HOME") from None


def ensure_ca(directory: Path) -> tuple[Path, Path]:
    """Return the paths of our CA's certificate (for clients to trust) and key; create them if missing.

    Raises SettingsError if they cannot be created or read, do not belong together, or have expired.
    """
    _load_ca(directory)
    return directory / _CERTIFICATE, directory / _KEY


def make_server_context(
    cert: str | None,
    key: str | None,
    *,
    ca_directory: Path | None,
    names: Iterable[str],
    client_ca: str | None = None,
    client_optional: bool = False,
    protocols: Collection[str] = (),
    keylog: str | None = None,
) -> ssl.SSLContext:
    """Return the TLS context for accepting clients' connections.

    `cert` is a PEM file with the certificate and its chain, `key` the PEM file of its key (None: in the
    same file). Without `cert`, our CA in `ca_directory` (None: the default one) signs a certificate for this
    machine and the host names and IP addresses `names`. With `client_ca`, a PEM file, clients must present a
    certificate signed by it, or may, if `client_optional`. `protocols`, unless empty, are the versions that
    are spoken, such as TLSv1.3. `keylog` is as in `make_tls_context`. Raises SettingsError for files that
    are missing or do not match, and for unknown `protocols` and invalid `names`.
    """
    if key and not cert:
        raise SettingsError(f"the key {key} needs a certificate as well")
    try:
        context = make_tls_context(ssl.Purpose.CLIENT_AUTH, client_ca, keylog)
    except OSError as error:
        raise _explain_failure(error, client_ca) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        if not set(protocols) <= _PROTOCOLS.keys():
            raise SettingsError(f"TLS protocols {', '.join(protocols)}: known are {', '.join(_PROTOCOLS)}")
        versions = sorted(_PROTOCOLS[protocol] for protocol in protocols)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
    if client_ca:
        context.verify_mode = ssl.CERT_OPTIONAL if client_optional else ssl.CERT_REQUIRED
    if cert:
        try:
            context.load_cert_chain(cert, key, password=lambda: _refuse_passphrase(key or cert))
        except OSError as error:
            raise _explain_failure(error, cert, key) from None
    else:
        with NamedTemporaryFile() as file:  # the ssl module reads certificates only from files
            file.write(_make_leaf(ca_directory or find_ca_directory(os.environ), names))
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _refuse_passphrase(key: str) -> NoReturn:
    """Raise SettingsError; otherwise the ssl module would ask for the passphrase on the terminal."""
    raise SettingsError(
        f"the key {key} has a passphrase; openssl pkey -in {key} -out FILE writes a copy without one"
    )


def _explain_failure(error: OSError, *paths: str | None) -> SettingsError:
    """Return the error for TLS files that cannot be used; it names the missing one, unlike the ssl module."""
    try:
        for path in filter(None, paths):
            open(path, "rb").close()
    except OSError as missing:
        return SettingsError(f"TLS file {missing.filename}: {missing.strerror}")
    files = " and ".join(filter(None, paths))
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return SettingsError(f"TLS files {files}: the key does not belong to the (first) certificate")
    return SettingsError(f"TLS files {files} cannot be used ({reason}); they must be PEM files")


# ---- Our own CA ----


def _load_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return our CA in `directory`; create it if there is none."""
    damages = (UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion, x509.ExtensionNotFound)
    certificate, key = directory / _CERTIFICATE, directory / _KEY
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        # never make a new key for an existing certificate: it would not match; that is refused below
        if not certificate.exists() and not key.exists():
            _publish(key, _encode_key(ec.generate_private_key(ec.SECP256R1())))
        private = load_pem_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError
        if not certificate.exists():
            _publish(certificate, _make_ca(private), mode=0o644)  # for clients of other users too
        ca = x509.load_pem_x509_certificate(certificate.read_bytes())
        ca.verify_directly_issued_by(ca)  # fails if any part of it is damaged
        reason = _find_objection(ca, private)
        if not reason:
            return ca, private
    except FileNotFoundError:
        reason = "one of them is missing"
    except OSError as error:
        raise SettingsError(
            f"our CA, {error.filename or directory}: {error.strerror}; a certificate can be given instead"
        ) from None
    except (ValueError, TypeError, *damages):
        reason = "they are damaged, or were not made by pwire"
    raise SettingsError(
        f"our CA, {certificate} and {key}: {reason}; "
        "remove both, and pwire makes new ones for clients to trust"
    )


def _find_objection(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> str:
    """Return why a CA must not be used; "" if it is fine."""
    now = datetime.now(timezone.utc)
    if certificate.public_key() != key.public_key():
        return "the key belongs to another certificate"
    if not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        return "the certificate is not a CA's"
    if now > certificate.not_valid_after_utc:
        return f"it expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"it is valid from {certificate.not_valid_before_utc:%Y-%m-%d} on (is the clock right?)"
    return ""


def _publish(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create the file `path` atomically, unless it exists."""
    with NamedTemporaryFile(dir=path.parent) as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)


def _encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _make_ca(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a self-signed CA certificate for `key`, as PEM."""
    name = _make_subject("pwire CA")
    builder = (
        _start_certificate(name, name, key.public_key(), _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def _make_leaf(directory: Path, names: Iterable[str]) -> bytes:
    """Return a key and a certificate for `names` and this machine, signed by our CA, as PEM."""
    ca, ca_key = _load_ca(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    builder = (
        _start_certificate(_make_subject("pwire"), ca.subject, key.public_key(), _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_make_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(x509.SubjectAlternativeName(_list_names(names)), critical=False)
    )
    return _encode_key(key) + builder.sign(ca_key, SHA256()).public_bytes(Encoding.PEM)


def _make_subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _start_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: timedelta
) -> x509.CertificateBuilder:
    """Return a builder with the fields that all our certificates share."""
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _make_usage(**allowed: bool) -> x509.KeyUsage:
    kinds = [
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    ]
    return x509.KeyUsage(**{**dict.fromkeys(kinds, False), **allowed})


def _list_names(names: Iterable[str]) -> list[x509.GeneralName]:
    """Return `names` and the names of this machine, without duplicates."""
    unique = {_parse_name(name): None for name in (*names, "localhost", "127.0.0.1", "::1")}
    with suppress(SettingsError):  # the machine's own name may not be a valid host name
        unique[_parse_name(socket.gethostname())] = None
    return list(unique)


def _parse_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(name))
    with suppress(ValueError):
        if name:
            return x509.DNSName(name.encode("idna").decode())
    raise SettingsError(f"{name!r} is not a host name that a certificate can be made for")
