"""Credentials, TLS and secrets, with brokers that ask for them."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from interop.brokers import Broker
from interop.conftest import running
from interop.processes import HOST, free_port
from interop.running import Running

if TYPE_CHECKING:
    from interop.conftest import BrokerKind, Pwire

JAVA = "org.apache.pulsar.client.impl.auth."
TRUST = "name its CA with --tls-ca, or use --tls-allow-insecure"


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port
    return port


def write(path: Path, text: str) -> Path:
    """Replace a file at once, as whoever renews tokens does."""
    made = path.with_suffix(".new")
    made.write_text(text)
    return made.replace(path)


# ---- Tokens ----

TOKEN_FLAGS = {
    "token": ["--token", "TOKEN"],
    "token-file": ["--token-file", "DIR/token"],
    "plugin": ["--auth-plugin", "token", "--auth-params", "TOKEN"],
    "plugin-class": ["--auth-plugin", f"{JAVA}AuthenticationToken", "--auth-params", "token:TOKEN"],
    "plugin-file": ["--auth-plugin", "token", "--auth-params", "file://DIR/token"],
    "plugin-json": ["--auth-plugin", "token", "--auth-params", '{"token":"TOKEN"}'],
    "conf": ["--conf", "DIR/client.conf"],
}
TOKEN_VARIABLES = {
    "PULSAR_TOKEN": "TOKEN",
    "PWIRE_TOKEN": "TOKEN",
    "PULSAR_TOKEN_FILE": "DIR/token",
    "PULSAR_CLIENT_CONF": "DIR/client.conf",
    "PWIRE_CLIENT_CONF": "DIR/client.conf",
}


@pytest.fixture
def place(secure: Broker, tmp_path: Path) -> Path:
    """A directory with a token, and a client.conf as Pulsar has them."""
    write(tmp_path / "token", secure.tokens["client"] + "\n")
    lines = [
        "# Pulsar Client configuration",
        "webServiceUrl=http://localhost:8080/",
        f"brokerServiceUrl={secure.url}/",
        f"authPlugin={JAVA}AuthenticationToken",
        f"authParams=token:{secure.tokens['client']}",
        "tlsAllowInsecureConnection=false",
        "tlsEnableHostnameVerification=false",
        "tlsTrustCertsFilePath=",
    ]
    write(tmp_path / "client.conf", "\n".join(lines))
    return tmp_path


def filled(text: str, secure: Broker, place: Path) -> str:
    return text.replace("TOKEN", secure.tokens["client"]).replace("DIR", str(place))


@pytest.mark.parametrize("way", TOKEN_FLAGS)
def test_token_by_flag(pwire: Pwire, secure: Broker, topic: str, place: Path, way: str) -> None:
    flags = [filled(each, secure, place) for each in TOKEN_FLAGS[way]]
    done = pwire("lookup", topic, *flags, url="" if way == "conf" else secure.url)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variable", TOKEN_VARIABLES)
def test_token_by_variable(pwire: Pwire, secure: Broker, topic: str, place: Path, variable: str) -> None:
    env = {variable: filled(TOKEN_VARIABLES[variable], secure, place)}
    done = pwire("lookup", topic, url="" if "CONF" in variable else secure.url, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_token_of_a_stronger_source(pwire: Pwire, secure: Broker, topic: str, place: Path) -> None:
    tokens = secure.tokens
    conf = {"PULSAR_CLIENT_CONF": str(place / "client.conf")}
    env = {"PULSAR_TOKEN": "x"}
    assert pwire("lookup", topic, "--token", tokens["client"], env=env, url=secure.url).returncode == 0
    assert pwire("lookup", topic, "--token", tokens["forged"], env=conf, url="").returncode == 7
    assert pwire("lookup", topic, env={**conf, "PWIRE_TOKEN": tokens["expired"]}, url="").returncode == 7
    assert pwire("lookup", topic, "--basic", "u:p", env=conf, url="").returncode == 7


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "lookup T"),
        ("expired", "produce T -m x"),
        ("expired", "consume T -s s"),
        ("forged", "lookup T"),
        ("wrong", "lookup T"),
        ("none", "lookup T"),
    ],
)
def test_token_that_is_refused(pwire: Pwire, secure: Broker, topic: str, kind: str, words: str) -> None:
    """The broker's own words, and exit code 7."""
    token = secure.tokens.get(kind, "eyJhbGciOiJIUzI1NiJ9.no-token")
    flags = [] if kind == "none" else ["--token", token]
    done = pwire(*words.replace("T", topic).split(), *flags, url=secure.url)
    assert (done.returncode, done.stdout) == (7, "")
    said = "CONNECT refused, AuthenticationError: Failed to authenticate (the credentials are "
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert token not in done.stderr


@pytest.mark.parametrize(
    "words",
    ["lookup T", "partitions T", "produce T -m x", "consume T -s s", "read T", "topics public/default"],
)
def test_stranger(pwire: Pwire, secure: Broker, topic: str, words: str) -> None:
    """Who may do nothing is told so at the first request."""
    done = pwire(*words.replace("T", topic).split(), "--token", secure.tokens["stranger"], url=secure.url)
    assert (done.returncode, done.stdout) == (7, "")
    assert "refused, AuthorizationError: " in done.stderr
    assert "not authorized" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_token_file_that_is_none(pwire: Pwire, secure: Broker, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "none"
    done = pwire("lookup", topic, "--token-file", path, url=secure.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pwire: token file {path}: No such file or directory\n"


# ---- Tokens that expire ----

LIVES = 6.0
"""Seconds a token lives that is to be renewed: time enough to begin, on a machine that is busy."""


def frames(run: Running, command: str) -> list[dict[str, Any]]:
    """What its trace has shown of a command."""
    found = [json.loads(line) for line in list(run.err) if line.startswith("{")]
    return [frame for frame in found if frame["command"] == command]


def renewed(run: Running) -> None:
    """Wait until it has answered the broker's wish for another token, on each of its connections."""
    connections = {frame["connection"] for frame in frames(run, "CONNECT")}
    run.until(lambda: {frame["connection"] for frame in frames(run, "AUTH_RESPONSE")} == connections)


@pytest.mark.slow
def test_token_is_renewed(pwire: Pwire, secure: Broker, topic: str, tmp_path: Path) -> None:
    """What runs when its token expires gives the new one, and goes on over the same connections."""
    path = tmp_path / "token"
    records = [tmp_path / "producer.pcapng", tmp_path / "consumer.pcapng"]
    options = ("--token-file", path, "--trace-form", "json", "--record")
    produce = ("produce", topic, "-m", "-", "-o", "id", *options, records[0])
    consume = ("consume", topic, "-s", "s", "-p", "Earliest", "-n", 0, *options, records[1])
    expires = time.time() + LIVES + 1
    old = secure.token("client", LIVES)
    write(path, old)
    with (
        Running(pwire, *produce, url=secure.url) as producer,
        Running(pwire, *consume, url=secure.url) as consumer,
    ):
        producer.send("before")
        producer.lines(1)
        consumer.lines(1)
        new = secure.token("client", 600)
        write(path, new)
        renewed(producer)
        renewed(consumer)
        while time.time() < expires:  # it has been renewed because it had expired, or else is about to
            producer.send("meanwhile")
            producer.lines(len(producer.out) + 1)
        producer.send("after")
        consumer.until(lambda: consumer.out[-1] == "after")
        assert producer.end() == 0, producer.said
        assert consumer.interrupt() == 0, consumer.said
    for run in (producer, consumer):
        assert "opening it again" not in run.said
        challenges = frames(run, "AUTH_CHALLENGE")
        assert {frame["fields"]["challenge"]["auth_data"] for frame in challenges} == {"PulsarAuthRefresh"}
        assert len(challenges) == len(frames(run, "AUTH_RESPONSE"))
    shown = [record.read_bytes() for record in records] + [producer.said.encode(), consumer.said.encode()]
    assert not [text for text in shown if holds_secret(text, old) or holds_secret(text, new)]


@pytest.mark.slow
def test_token_that_is_not_renewed(pwire: Pwire, secure: Broker, topic: str) -> None:
    """What has no new token when its own expires ends, with the broker's words."""
    token = secure.token("client", LIVES)
    with Running(pwire, "consume", topic, "-s", "s", "-n", 0, "--token", token, url=secure.url) as run:
        run.says("AuthenticationError: Failed to authenticate")
        assert run.end() == 7
    assert run.said.splitlines()[-1].startswith("pwire: CONNECT refused, AuthenticationError")
    assert "Traceback" not in run.said


@pytest.mark.slow
def test_token_file_that_is_gone_for_a_moment(
    pwire: Pwire, secure: Broker, topic: str, tmp_path: Path
) -> None:
    """A token that cannot be read costs the connection; when it is there again all goes on."""
    path = write(tmp_path / "token", secure.token("client", LIVES))
    with Running(pwire, "produce", topic, "-m", "-", "-o", "id", "--token-file", path, url=secure.url) as run:
        run.send("before")
        run.lines(1)
        path.unlink()
        missing = f"token file {path}: No such file"
        run.says(missing)  # when it was asked for another one
        run.says(missing, times=2, within=5)  # when it connected anew
        write(path, secure.tokens["client"])
        run.send("after")
        run.lines(2)
        assert run.end() == 0, run.said


# ---- TLS ----


@pytest.fixture
def tls(secure: Broker) -> list[object]:
    """Options that go with `secure.url_tls`."""
    return ["--tls-ca", secure.tls.ca, "--token", secure.tokens["client"]]


def test_tls(pwire: Pwire, secure: Broker, topic: str, tls: list[object]) -> None:
    """A certificate that the CA has signed, for an address and for a name; lookups lead to TLS ports."""
    for host in (HOST, "localhost"):
        url = f"pulsar+ssl://{host}:{port_of(secure.url_tls)}"
        done = pwire("produce", topic, "-m", host, *tls, url=url)
        assert (done.returncode, done.stderr) == (0, "")
    done = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 2, "--quiet", *tls, url=secure.url_tls)
    assert (done.returncode, done.stdout) == (0, f"{HOST}\nlocalhost\n")


def test_tls_by_conf(pwire: Pwire, secure: Broker, topic: str, tmp_path: Path) -> None:
    lines = [
        f"brokerServiceUrl={secure.url_tls}",
        f"authPlugin={JAVA}AuthenticationTls",
        f"authParams=tlsCertFile:{secure.tls.client_cert},tlsKeyFile:{secure.tls.client_key}",
        f"tlsTrustCertsFilePath={secure.tls.ca}",
        "tlsEnableHostnameVerification=true",
    ]
    conf = write(tmp_path / "client.conf", "\n".join(lines))
    done = pwire("produce", topic, "-m", "x", "--conf", conf, url="")
    assert (done.returncode, done.stderr) == (0, "")


def test_tls_without_its_ca(pwire: Pwire, secure: Broker, topic: str) -> None:
    """A certificate that nobody known has signed is refused, unless any is taken."""
    flags = ("--token", secure.tokens["client"])
    done = pwire("lookup", topic, *flags, url=secure.url_tls)
    assert (done.returncode, done.stdout) == (6, "")
    # whether a broker sends its CA too, is its own business
    reason = "(unable to get local issuer|self-signed certificate in certificate chain)"
    said = rf"{HOST}:{port_of(secure.url_tls)}: its certificate is not trusted: {reason}"
    assert re.search(said, done.stderr), done.stderr
    assert TRUST in done.stderr
    done = pwire("lookup", topic, *flags, "--tls-allow-insecure", url=secure.url_tls)
    assert (done.returncode, done.stderr) == (0, "")


OTHER_NAME = "127.1"
"""Leads to 127.0.0.1, and is no name that the certificate has."""


def test_tls_with_another_host_name(pwire: Pwire, secure: Broker, topic: str, tls: list[object]) -> None:
    url = f"pulsar+ssl://{OTHER_NAME}:{port_of(secure.url_tls)}"
    done = pwire("lookup", topic, *tls, url=url)
    assert (done.returncode, done.stdout) == (6, "")
    assert f"mismatch, certificate is not valid for '{OTHER_NAME}'" in done.stderr
    for flag in ("--no-tls-hostname-check", "--tls-allow-insecure"):
        done = pwire("lookup", topic, *tls, flag, url=url)
        assert (done.returncode, done.stderr) == (0, "")


def test_tls_with_another_host_name_and_the_way_out(
    pwire: Pwire, secure: Broker, topic: str, tls: list[object]
) -> None:
    done = pwire("lookup", topic, *tls, url=f"pulsar+ssl://{OTHER_NAME}:{port_of(secure.url_tls)}")
    assert "--no-tls-hostname-check" in done.stderr
    assert "--tls-ca" not in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--tls-cert", "CERT", "--tls-key", "KEY"],
        ["--auth-plugin", "tls", "--auth-params", "tlsCertFile:CERT,tlsKeyFile:KEY"],
    ],
)
def test_client_certificate(pwire: Pwire, secure: Broker, topic: str, flags: list[str]) -> None:
    """It stands for a role, as a token does."""
    files = secure.tls
    flags = [
        each.replace("CERT", str(files.client_cert)).replace("KEY", str(files.client_key)) for each in flags
    ]
    done = pwire("produce", topic, "-m", "x", *flags, "--tls-ca", files.ca, url=secure.url_tls)
    assert (done.returncode, done.stderr) == (0, "")


def test_client_certificate_that_is_unusable(pwire: Pwire, secure: Broker, topic: str) -> None:
    """Without key, or with another one."""
    files = secure.tls
    for flags in (
        ["--tls-cert", files.client_cert],
        ["--tls-cert", files.client_cert, "--tls-key", files.server_key],
    ):
        done = pwire("lookup", topic, "--tls-ca", files.ca, *flags, url=secure.url_tls)
        assert (done.returncode, done.stdout) == (2, "")
        assert str(files.client_cert) in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory, broker_kind: BrokerKind) -> Iterator[Broker]:
    """A broker whose TLS port is for those who have a certificate."""
    place = tmp_path_factory.mktemp("demanding")
    settings = {"tlsRequireTrustedClientCertOnConnect": True}
    yield from running(lambda: broker_kind(place, tls=True, settings=settings))


def test_client_certificate_that_is_demanded(pwire: Pwire, demanding: Broker, topic: str) -> None:
    files = demanding.tls
    done = pwire("lookup", topic, "--tls-ca", files.ca, url=demanding.url_tls)
    assert (done.returncode, done.stdout) == (6, "")
    assert "client certificate" in done.stderr
    assert str(port_of(demanding.url_tls)) in done.stderr
    own = ("--tls-cert", files.client_cert, "--tls-key", files.client_key)
    done = pwire("produce", topic, "-m", "x", "--tls-ca", files.ca, *own, url=demanding.url_tls)
    assert (done.returncode, done.stderr) == (0, "")


# ---- Something else than a broker ----

WRONG = {
    "tls-to-plain": ("pulsar+ssl://HOST:PLAIN", "no TLS there", "its URL begins with pulsar://"),
    "plain-to-tls": ("pulsar://HOST:TLS", "closed the connection without answering", "pulsar+ssl://"),
    "plain-to-http": ("pulsar://HOST:HTTP", "it speaks HTTP", "not Pulsar's protocol"),
    "tls-to-http": ("pulsar+ssl://HOST:HTTP", "no TLS there", "is this a port without TLS"),
    "nobody": ("pulsar://HOST:NOBODY", "refused", "another: --url"),
    "nobody-by-tls": ("pulsar+ssl://HOST:NOBODY", "refused", "another: --url"),
    "unknown-host": ("pulsar://no-such-host.invalid", "no-such-host.invalid: no such host", "--url"),
    "impossible-host": ("pulsar://a..b", "a..b: no such host", "--url"),
}


@pytest.mark.parametrize("options", [["--basic"], ["--auth-plugin", "basic", "--auth-params"]])
def test_basic(pwire: Pwire, secure: Broker, topic: str, options: list[str]) -> None:
    """User and password; wrong ones are refused in the broker's words."""
    done = pwire("produce", topic, "-m", "x", *options, "client:S3cret", url=secure.url)
    assert (done.returncode, done.stderr) == (0, "")
    done = pwire("produce", topic, "-m", "x", *options, "client:0therS3cret", url=secure.url)
    assert done.returncode == 7
    assert "AuthenticationError" in done.stderr
    assert "0therS3cret" not in done.stderr


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_url(pwire: Pwire, secure: Broker, topic: str, tls: list[object], kind: str) -> None:
    """Exit code 6; it is said what is there, and what to do."""
    url, cause, way = WRONG[kind]
    ports = {"PLAIN": secure.url, "TLS": secure.url_tls, "HTTP": secure.http_url}
    for name, where in ports.items():
        url = url.replace(f":{name}", f":{port_of(where)}")
    url = url.replace("NOBODY", str(free_port())).replace("HOST", HOST)
    done = pwire("produce", topic, "-m", "x", *tls, url=url)
    assert (done.returncode, done.stdout) == (6, ""), done.stderr
    assert cause in done.stderr
    assert way in done.stderr
    assert url.partition("://")[2] in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- Secrets ----


def holds_secret(text: bytes, secret: str) -> bool:
    """Whether `secret` can be read in `text`, in one of the forms in which bytes are shown."""
    plain = secret.encode()
    pieces = [plain[at : at + 8] for at in range(16)]  # of which a line of a hex dump has some
    forms = [plain.hex().encode(), *(base64.b64encode(plain[at:])[1:-4] for at in range(3))]
    return any(form in text for form in [*forms, *pieces, *(piece.hex(" ").encode() for piece in pieces)])


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_secrets(
    pwire: Pwire, secure: Broker, topic: str, tmp_path: Path, tls: list[object], form: str
) -> None:
    """No credentials in traces and captures, unless they are asked for."""
    token = secure.tokens["client"]
    record = tmp_path / "session.pcapng"
    words = ("produce", topic, "-m", "x", *tls, "--trace-form", form, "--record", record)
    done = pwire(*words, url=secure.url_tls)
    assert done.returncode == 0
    assert "CONNECT" in done.stderr
    assert not holds_secret(done.stderr.encode() + done.stdout.encode(), token)
    assert not holds_secret(record.read_bytes(), token)
    done = pwire(*words, "--show-secrets", url=secure.url_tls)
    assert done.returncode == 0
    assert holds_secret(record.read_bytes(), token)
    assert holds_secret(done.stderr.encode(), token) == (form != "line")


@pytest.mark.parametrize(
    "flags",
    [
        ["--token", "S3cretS3cretS3cret"],
        ["--basic", "user:S3cretS3cretS3cret"],
        ["--auth-plugin", "basic", "--auth-params", '{"userId":"u","password":"S3cretS3cretS3cret"}'],
        ["--auth-plugin", "sasl", "--auth-params", "S3cretS3cretS3cret"],
    ],
)
def test_secrets_in_errors(pwire: Pwire, secure: Broker, topic: str, flags: list[str]) -> None:
    done = pwire("produce", topic, "-m", "x", *flags, "--trace", url=secure.url)
    assert done.returncode in (2, 7)
    assert "S3cret" not in done.stderr + done.stdout


def test_record_of_tls(pwire: Pwire, secure: Broker, topic: str, tmp_path: Path, tls: list[object]) -> None:
    """A capture of a TLS session holds what was inside, and decode reads it."""
    record = tmp_path / "session.pcapng"
    done = pwire("produce", topic, "-m", "inside", *tls, "--record", record, url=secure.url_tls)
    assert (done.returncode, done.stderr) == (0, "")
    done = pwire("decode", record, "-o", "json", url="")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [frame["notes"] for frame in found if frame["notes"]] == []
    (sent,) = (frame for frame in found if frame["command"] == "SEND")
    commands = [frame["command"] for frame in found if frame["connection"] == sent["connection"]]
    assert commands[:2] == ["CONNECT", "CONNECTED"]
    last = ["PRODUCER", "PRODUCER_SUCCESS", "SEND", "SEND_RECEIPT", "CLOSE_PRODUCER", "SUCCESS"]
    assert commands[-6:] == last
    assert sent["messages"][0]["payload"]["value"] == "inside"
    assert port_of(secure.url_tls) == int(sent["server"].rpartition(":")[2])
