"""Certificates for clients: real handshakes, checked as strictly as OpenSSL can; a CA made once and kept."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.certificates import ensure_ca, find_ca_directory, make_server_context

NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """A handshake in memory, with a byte each way; the client's end, or the first error of either end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[ssl.SSLObject] = set()
    for end in ends * 10:
        with suppress(ssl.SSLWantReadError):
            if end not in done:
                end.do_handshake()
                done.add(end)
                end.write(b"x")
            elif end.read(1) and end is ends[0]:  # with TLS 1.3 a client is refused after its handshake
                return end
    raise AssertionError("the handshake does not end")


def strict(ca: str | Path | None) -> ssl.SSLContext:
    """A client that trusts `ca` alone, and checks what RFC 5280 asks of certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def own(directory: Path, *names: str, client_ca: str | None = None) -> ssl.SSLContext:
    return make_server_context(None, None, ca_directory=directory, names=names, client_ca=client_ca)


def leaf(server: ssl.SSLContext, ca: Path) -> x509.Certificate:
    """The certificate that a client is shown."""
    data = shake(server, strict(ca), "localhost").getpeercert(binary_form=True)
    assert data is not None
    return x509.load_der_x509_certificate(data)


def extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    return certificate.extensions.get_extension_for_class(kind).value


def pem(key: Any, passphrase: bytes = b"") -> bytes:
    lock = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock)
    return data


def certificate(
    key: Any, *, start: datetime = NOW - DAY, end: datetime = NOW + DAY, ca: bool | None = True
) -> bytes:
    """A certificate of somebody else for localhost, signed by its own key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM)


def damaged(text: bytes) -> bytes:
    """The PEM of a certificate in whose subject one letter is another."""
    head, *lines, tail = text.splitlines()
    der = base64.b64decode(b"".join(lines)).replace(b"else", b"elsf")
    return b"\n".join([head, base64.b64encode(der), tail])


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


# ---- A certificate of our own CA ----


@pytest.mark.parametrize("name", ["broker.example", "10.1.2.3", "2001:db8::1", "bücher.example", "a_b"])
def test_clients_that_trust_our_ca_connect(tmp_path: Path, name: str) -> None:
    server = own(tmp_path, "broker.example", "10.1.2.3", "2001:db8::1", "bücher.example", "a_b")
    client = strict(ensure_ca(tmp_path)[0])
    for each in (name, "localhost", "127.0.0.1", "::1", socket.gethostname()):
        assert shake(server, client, each).version() == "TLSv1.3"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(server, client, name).version() == "TLSv1.2"


def test_clients_check_the_name(tmp_path: Path) -> None:
    server, client = own(tmp_path, "a.example"), strict(ensure_ca(tmp_path)[0])
    for name in ("b.example", "10.1.2.3"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            shake(server, client, name)


def test_clients_that_do_not_trust_our_ca_refuse(tmp_path: Path) -> None:
    ensure_ca(tmp_path / "other")
    for ca in (None, tmp_path / "other" / "ca.pem"):
        with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
            shake(own(tmp_path), strict(ca), "localhost")


def test_a_real_connection(tmp_path: Path) -> None:
    """Over sockets, in two threads."""
    server, client = own(tmp_path), strict(ensure_ca(tmp_path)[0])
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(server.wrap_socket, ours, True)
        with client.wrap_socket(theirs, server_hostname="localhost") as end, accepted.result(30) as other:
            other.sendall(b"hello")
            assert end.recv(5) == b"hello"


def test_what_the_certificate_says(tmp_path: Path) -> None:
    """What OpenSSL 3 and Java look at; the profile of RFC 5280 for what signs nothing itself."""
    found = leaf(own(tmp_path, "h.example", "localhost", "fe80::1%eth0"), tmp_path / "ca.pem")
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    names = extension(found, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName)[:2] == ["h.example", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == [
        "fe80::1",
        "127.0.0.1",
        "::1",
    ]
    assert extension(found, x509.BasicConstraints) == x509.BasicConstraints(ca=False, path_length=None)
    assert list(extension(found, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert extension(found, x509.KeyUsage).digital_signature
    assert not extension(found, x509.KeyUsage).key_cert_sign
    key_id = extension(ca, x509.SubjectKeyIdentifier).digest
    assert extension(found, x509.AuthorityKeyIdentifier).key_identifier == key_id
    assert extension(found, x509.SubjectKeyIdentifier).digest != key_id
    assert timedelta(days=360) < found.not_valid_after_utc - found.not_valid_before_utc < timedelta(days=398)
    assert found.not_valid_before_utc <= NOW < found.not_valid_after_utc
    assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)


def test_each_certificate_has_a_key_and_number_of_its_own(tmp_path: Path) -> None:
    first, second = (leaf(own(tmp_path), tmp_path / "ca.pem") for _ in range(2))
    assert first.public_key() != second.public_key()
    assert first.serial_number != second.serial_number


def test_its_key_stays_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    own(tmp_path / "ca")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(path.name for path in (tmp_path / "ca").iterdir()) == ["ca-key.pem", "ca.pem"]


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, ".a", "\udc80"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match="is not a host name") as caught:
        own(tmp_path, name)
    assert repr(name) in str(caught.value)


def test_where_nothing_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    server = make_server_context(None, None, ca_directory=None, names=[])
    assert shake(server, strict(tmp_path / "pwire" / "ca.pem"), "localhost")


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"XDG_DATA_HOME": "/data", "HOME": "/home/me"}, "/data/pwire"),
        ({"HOME": "/home/me"}, "/home/me/.local/share/pwire"),
        ({"XDG_DATA_HOME": "", "HOME": "/home/me"}, "/home/me/.local/share/pwire"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/home/me"}, "/home/me/.local/share/pwire"),
        ({}, str(Path.home() / ".local/share/pwire")),
    ],
)
def test_where_the_ca_is_kept(environ: dict[str, str], directory: str) -> None:
    assert find_ca_directory(environ) == Path(directory)


# ---- The CA ----


def test_the_ca_is_made_once(tmp_path: Path) -> None:
    directory = tmp_path / "share" / "pwire"
    paths = ensure_ca(directory)
    assert paths == (directory / "ca.pem", directory / "ca-key.pem")
    contents = [path.read_bytes() for path in paths]
    assert ensure_ca(directory) == paths
    own(directory)
    assert [path.read_bytes() for path in paths] == contents
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, *paths)] == [0o755, 0o644, 0o600]
    assert sorted(directory.iterdir()) == sorted(paths)
    ca = x509.load_pem_x509_certificate(contents[0])
    assert extension(ca, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(ca, x509.KeyUsage).key_cert_sign
    assert isinstance(key := ca.public_key(), ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert timedelta(days=3650) <= ca.not_valid_after_utc - NOW < timedelta(days=3660)


def test_many_make_it_at_once(tmp_path: Path) -> None:
    """Each has the same one from the beginning."""
    count = 8
    for attempt in range(10):
        directory = tmp_path / str(attempt)
        barrier = Barrier(count)

        def make(directory: Path = directory, barrier: Barrier = barrier) -> tuple[bytes, ssl.SSLContext]:
            barrier.wait(30)
            return ensure_ca(directory)[0].read_bytes(), own(directory)

        with ThreadPoolExecutor(count) as pool:
            made = [each.result(60) for each in [pool.submit(make) for _ in range(count)]]
        assert {ca for ca, _ in made} == {(directory / "ca.pem").read_bytes()}
        for _, server in made:
            assert shake(server, strict(directory / "ca.pem"), "localhost")
        assert len(list(directory.iterdir())) == 2


def test_one_that_was_killed_in_between(tmp_path: Path) -> None:
    """The key is there, the certificate is not: it is made from that key."""
    certificate_path, key_path = ensure_ca(tmp_path)
    key = key_path.read_bytes()
    certificate_path.unlink()
    server = own(tmp_path)
    assert key_path.read_bytes() == key
    assert shake(server, strict(certificate_path), "localhost")


KEY = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
UNUSABLE: dict[str, tuple[Callable[[], bytes] | None, Callable[[], bytes] | None, str]] = {
    "empty": (lambda: b"", lambda: pem(KEY), "damaged"),
    "cut short": (lambda: certificate(KEY)[:-60], lambda: pem(KEY), "damaged"),
    "damaged": (lambda: damaged(certificate(KEY)), lambda: pem(KEY), "damaged"),
    "empty key": (None, lambda: b"", "damaged"),
    "text": (None, lambda: b"-----BEGIN PRIVATE KEY-----\nhello\n-----END PRIVATE KEY-----\n", "damaged"),
    "locked key": (None, lambda: pem(KEY, b"secret"), "damaged"),
    "key of another kind": (lambda: certificate(RSA), lambda: pem(RSA), "damaged"),
    "another key": (None, lambda: pem(KEY), "the key belongs to another"),
    "no key": (lambda: certificate(KEY), None, "one of them is missing"),
    "expired": (
        lambda: certificate(KEY, start=NOW - 9 * DAY, end=NOW - DAY),
        lambda: pem(KEY),
        f"it expired on {NOW - DAY:%Y-%m-%d}",
    ),
    "not yet valid": (
        lambda: certificate(KEY, start=NOW + DAY, end=NOW + 9 * DAY),
        lambda: pem(KEY),
        "clock",
    ),
    "no ca": (lambda: certificate(KEY, ca=False), lambda: pem(KEY), "is not a CA's"),
    "no word of a ca": (lambda: certificate(KEY, ca=None), lambda: pem(KEY), "damaged"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_ca_that_cannot_be_used_is_left_as_it_is(tmp_path: Path, kind: str) -> None:
    certificate_of, key_of, why = UNUSABLE[kind]
    paths = tmp_path / "ca.pem", tmp_path / "ca-key.pem"
    if kind != "no key":
        ensure_ca(tmp_path)
    for path, content in zip(paths, (certificate_of, key_of), strict=True):
        if content:
            path.write_bytes(content())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for use in (ensure_ca, own):
        with pytest.raises(SettingsError, match=why) as caught:
            use(tmp_path)
        assert "remove both" in str(caught.value)
        assert all(str(path) in str(caught.value) for path in paths)
        assert "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    for path in before:
        path.unlink()
    ensure_ca(tmp_path)


def test_a_place_where_no_ca_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(SettingsError, match=f"our CA, {directory}.*: .*; a certificate can be given"):
            ensure_ca(directory)
    (tmp_path / "ca.pem").mkdir()
    (tmp_path / "ca-key.pem").write_bytes(pem(KEY))
    with pytest.raises(SettingsError, match="Is a directory"):
        ensure_ca(tmp_path)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_never_crashes(tmp_path: Path, data: st.DataObject) -> None:
    """Bits flipped within the DER: it is as good as before, or refused."""
    path = ensure_ca(tmp_path)[data.draw(st.integers(0, 1))]
    text = path.read_bytes()
    head, *lines, tail = text.splitlines()
    der = bytearray(base64.b64decode(b"".join(lines)))
    for at in data.draw(st.lists(st.integers(0, len(der) * 8 - 1), min_size=1, max_size=4)):
        der[at // 8] ^= 1 << at % 8
    path.write_bytes(b"\n".join([head, base64.b64encode(der), tail]))
    server = None
    try:
        server = own(tmp_path)
    except SettingsError as error:
        refusal = str(error)
    finally:
        path.write_bytes(text)
    if server is None:
        assert "remove both" in refusal
    else:
        assert shake(server, strict(tmp_path / "ca.pem"), "localhost")


# ---- A certificate that is given ----


@pytest.mark.parametrize("key", [KEY, RSA, ed25519.Ed25519PrivateKey.generate()])
@pytest.mark.parametrize("together", [True, False])
def test_a_given_certificate(tmp_path: Path, key: Any, together: bool) -> None:
    own_certificate = certificate(key)
    trusted = write(tmp_path / "trusted.pem", own_certificate)
    cert = write(tmp_path / "cert.pem", own_certificate + (pem(key) if together else b""))
    key_path = None if together else write(tmp_path / "key.pem", pem(key))
    server = make_server_context(cert, key_path, ca_directory=tmp_path / "ca", names=["ignored"])
    client = ssl.create_default_context(cafile=trusted)
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT  # on by default from Python 3.13 on
    assert shake(server, client, "localhost").getpeercert(binary_form=True) is not None
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2
    assert not (tmp_path / "ca").exists()


def refusals(directory: Path) -> Iterable[tuple[str | None, str | None, str]]:
    cert = write(directory / "cert.pem", certificate(KEY))
    key = write(directory / "key.pem", pem(KEY))
    rsa_key = write(directory / "rsa.pem", pem(RSA))
    locked = write(directory / "locked.pem", pem(KEY, b"secret"))
    other = write(directory / "other.pem", pem(ec.generate_private_key(ec.SECP256R1())))
    text = write(directory / "text.pem", b"hello\n")
    none = str(directory / "none.pem")
    yield None, key, f"the key {key} needs a certificate"
    yield none, key, f"{none}: No such file"
    yield cert, none, f"{none}: No such file"
    yield cert, str(directory), f"{directory}: Is a directory"
    yield cert, other, f"{cert} and {other}: the key does not belong to"
    yield cert, rsa_key, f"{cert} and {rsa_key}: the key does not belong to"
    yield cert, locked, f"the key {locked} has a passphrase"
    yield cert, text, f"{cert} and {text} cannot be used .*they must be PEM files"
    yield text, key, f"{text} and {key} cannot be used .*they must be PEM files"
    yield key, cert, f"{key} and {cert} cannot be used .*they must be PEM files"
    yield cert, None, f"{cert} cannot be used .*they must be PEM files"
    yield (
        write(directory / "der.pem", base64.b64decode("MIIB")),
        key,
        "cannot be used .*they must be PEM files",
    )


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    for cert, key, why in refusals(tmp_path):
        with pytest.raises(SettingsError, match=why) as caught:
            make_server_context(cert, key, ca_directory=tmp_path / "ca", names=[])
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "ca").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_that_may_not_be_read(tmp_path: Path) -> None:
    cert, key = write(tmp_path / "cert.pem", certificate(KEY)), write(tmp_path / "key.pem", pem(KEY))
    os.chmod(key, 0)
    with pytest.raises(SettingsError, match=f"{key}: Permission denied"):
        make_server_context(cert, key, ca_directory=None, names=[])


# ---- Clients' certificates, and a key log ----


def test_clients_have_to_show_a_certificate(tmp_path: Path) -> None:
    directory, its_own = tmp_path / "ca", certificate(KEY)
    ca = write(tmp_path / "clients.pem", its_own)
    server = own(directory, client_ca=ca)
    server.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as above
    trusted = ensure_ca(directory)[0]
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake(server, strict(trusted), "localhost")
    client = strict(trusted)
    stranger = ec.generate_private_key(ec.SECP256R1())
    client.load_cert_chain(write(tmp_path / "stranger.pem", certificate(stranger) + pem(stranger)))
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        shake(server, client, "localhost")
    client = strict(trusted)
    client.load_cert_chain(write(tmp_path / "client.pem", its_own + pem(KEY)))
    assert shake(server, client, "localhost").version() == "TLSv1.3"
    assert own(directory).verify_mode == ssl.CERT_NONE


def test_protocols(tmp_path: Path) -> None:
    def context(*protocols: str) -> ssl.SSLContext:
        return make_server_context(None, None, ca_directory=tmp_path, names=(), protocols=protocols)

    only, both = context("TLSv1.3"), context("TLSv1.3", "TLSv1.2")
    assert (only.minimum_version, only.maximum_version) == (ssl.TLSVersion.TLSv1_3,) * 2
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    with pytest.raises(SettingsError, match="TLS protocols SSLv3: known are"):
        context("SSLv3")


def test_a_ca_of_clients_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.pem: No such file"):
        own(tmp_path, client_ca=str(tmp_path / "none.pem"))
    with pytest.raises(SettingsError, match=r"text\.pem cannot be used .*they must be PEM files"):
        own(tmp_path, client_ca=write(tmp_path / "text.pem", b"hello\n"))


def test_a_key_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all else that does TLS writes one: by $SSLKEYLOGFILE."""
    client = strict(ensure_ca(tmp_path)[0])
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys.log"))
    assert shake(own(tmp_path), client, "localhost")
    assert "SERVER_TRAFFIC_SECRET_0 " in (tmp_path / "keys.log").read_text()
    assert (tmp_path / "keys.log").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path))
    with pytest.raises(SettingsError, match=f"{tmp_path} cannot be written: Is a directory"):
        own(tmp_path)
