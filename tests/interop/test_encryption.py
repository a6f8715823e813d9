"""What official clients encrypt pwire opens, and the other way round."""

from __future__ import annotations

import random
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from interop.brokers import Broker
from interop.conftest import Go, Pwire
from interop.releases import run_java
from interop.sessions import Proxy
from interop.test_produce import done, records

KEYS = Path(__file__).parents[1] / "encrypted"
JAVA = Path(__file__).with_name("java") / "Encryption.java"
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
FORMS = ("single", "batched", "chunked")
COUNT = 3
OAEP, ECIES = "AES-256-GCM, RSA-OAEP", "AES-256-GCM, ECIES"

Run = Callable[..., str]
"""Runs a client: names of keys, "produce" or "consume", and topics; what it prints."""


def text(number: int, size: int) -> str:
    """A text that does not become much smaller if it is compressed."""
    return f"secret {number} " + "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=size))


def run_wheel(url: str, name: str, verb: str, topic: str) -> str:
    """The official Python client; of each form only one codec, and chunks of 5 MiB."""
    keys = pulsar.CryptoKeyReader(f"{KEYS}/{name}.pub", f"{KEYS}/{name}.pem")
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    lines = []
    try:
        if verb == "consume":
            first = pulsar.InitialPosition.Earliest
            consumer = client.subscribe(topic, "s", initial_position=first, crypto_key_reader=keys)
            lines = [consumer.receive(20_000).data().decode() for _ in range(COUNT)]
        else:
            for form in FORMS:
                producer = client.create_producer(
                    f"{topic}-{form}-LZ4",
                    compression_type=pulsar.CompressionType.LZ4,
                    batching_enabled=form == "batched",
                    chunking_enabled=form == "chunked",
                    encryption_key=name,
                    crypto_key_reader=keys,
                )
                for number in range(COUNT):
                    data = text(number, 10_000_000 if form == "chunked" and number == 0 else 30).encode()
                    producer.send_async(data, lambda *_: None)
                producer.flush()
    finally:
        client.close()
    return "\n".join(lines)


@pytest.fixture
def run(request: pytest.FixtureRequest, broker: Broker) -> Run:
    """Runs the client that the parameter names."""
    if request.param == "wheel":
        return lambda names, *words: run_wheel(broker.url, names, *words)
    if request.param == "java":
        request.getfixturevalue("obtainable")
        return lambda names, *words: run_java(JAVA, broker.url, KEYS, names, *words)
    go: Go = request.getfixturevalue("go")
    return lambda names, *words: go("run", "./encryption", broker.url, str(KEYS), names, *words)


each_client = pytest.mark.parametrize(
    ("run", "names", "algorithm"),
    [
        pytest.param("wheel", "rsa", OAEP, id="wheel"),
        pytest.param("java", "rsa,other", OAEP, id="java-two-recipients", marks=pytest.mark.interop),
        pytest.param("java", "ec", ECIES, id="java-explicit-curve", marks=pytest.mark.interop),
        pytest.param("java", "p256", ECIES, id="java-named-curve", marks=pytest.mark.interop),
        pytest.param("go", "rsa", OAEP, id="go", marks=pytest.mark.interop),
    ],
    indirect=["run"],
)


@each_client
def test_pwire_opens_what_clients_encrypt(
    run: Run, pwire: Pwire, topic: str, names: str, algorithm: str
) -> None:
    run(names, "produce", topic)
    codecs = CODECS if "wheel" not in topic else ("LZ4",)
    topics = [f"{topic}-{form}-{codec}" for form in FORMS for codec in codecs]
    last = names.split(",")[-1]
    options = ["-s", "s", "-p", "Earliest", "-n", COUNT * len(topics), "-ekv", f"file://{KEYS}/{last}.pem"]
    messages = records(done(pwire("consume", *topics, *options, "-o", "json")))
    assert len(messages) == COUNT * len(topics)
    for name in topics:
        found = [message for message in messages if message["topic"] == name]
        assert [message["payload"][:9] for message in found] == [f"secret {n} " for n in range(COUNT)]
        assert {key for message in found for key in message["encrypted"]} == {*names.split(",")}
        assert [message["decrypted"] for message in found] == [{"key": last, "algorithm": algorithm}] * COUNT
        assert any(message["batch_index"] is not None for message in found) == ("batched" in name)
        assert ("…" in found[0]["id"]) == ("chunked" in name)


@each_client
@pytest.mark.parametrize("form", FORMS)
def test_clients_open_what_pwire_encrypts(
    run: Run, pwire: Pwire, topic: str, names: str, algorithm: str, form: str
) -> None:
    size = 3_000 if form == "chunked" else 30
    texts = [text(number, size) for number in range(COUNT)]
    keys = [word for name in names.split(",") for word in ("-ekn", name, "-ekv", data_uri(name))]
    options: dict[str, list[object]] = {
        "single": ["-db"],
        "batched": ["-b", 1000],
        "chunked": ["-c", "--chunk-size", 1000],
    }
    done(
        pwire(
            "produce",
            topic,
            "-m",
            "-",
            *options[form],
            "--compression",
            "zstd",
            *keys,
            stdin="\n".join(texts),
        )
    )
    assert run(names, "consume", topic).split() == " ".join(texts).split()


def data_uri(name: str) -> str:
    return "data:application/x-pem-file;base64," + b64encode((KEYS / f"{name}.pub").read_bytes()).decode()


def test_what_no_key_opens_ends_the_session_and_stays(pwire: Pwire, topic: str) -> None:
    done(pwire("produce", topic, "-db", "-m", "open", "-ekn", "a", "-ekv", KEYS / "rsa.pub"))
    done(pwire("produce", topic, "-db", "-m", "closed", "-ekn", "b", "-ekv", KEYS / "ec.pub"))
    options = ["consume", topic, "-s", "s", "-p", "Earliest", "-n", 2]
    failed = pwire(*options, "-ekv", KEYS / "rsa.pem")
    assert (failed.returncode, failed.stdout) == (3, "open\n")
    assert "no private key opens the data key of b; it stays unacknowledged" in failed.stderr
    opened = pwire(*options[:-1], 1, "-ekv", KEYS / "rsa.pem", "-ekv", KEYS / "ec.pem")
    assert done(opened) == "closed\n"


def test_what_no_key_opens_is_discarded(pwire: Pwire, topic: str) -> None:
    done(pwire("produce", topic, "-db", "-m", "closed", "-ekn", "b", "-ekv", KEYS / "ec.pub"))
    done(pwire("produce", topic, "-db", "-m", "open"))
    options = ["-s", "s", "-p", "Earliest", "--crypto-failure", "discard", "-ekv", KEYS / "rsa.pem"]
    run = pwire("consume", topic, *options)
    assert done(run) == "open\n"
    assert "1 entries that no key opens discarded" in run.stderr
    remaining = pwire("consume", topic, *options, "-n", 0, "-e")
    assert done(remaining) == ""


def test_without_a_key_the_ciphertext_is_shown(pwire: Pwire, topic: str) -> None:
    done(pwire("produce", topic, "-m", "closed", "-ekn", "b", "-ekv", KEYS / "ec.pub"))
    (message,) = records(done(pwire("read", topic, "-o", "json")))
    assert (message["view"], message["encrypted"], "decrypted" in message) == ("encrypted", ["b"], False)
    failed = pwire("read", topic, "--crypto-failure", "fail")
    assert (failed.returncode, failed.stdout) == (3, "")
    assert "encrypted, and no private key was given" in failed.stderr


def test_the_tap_of_the_proxy_and_recordings_are_opened(
    broker: Broker, pwire: Pwire, topic: str, tmp_path: Path
) -> None:
    key, record = ["--private-key", KEYS / "ec.pem"], tmp_path / "session.pcapng"
    with Proxy(pwire, broker.url, "--tap", "-o", "json", *key) as proxy:
        words = ["-m", "secret", "-ekn", "agency", "-ekv", KEYS / "ec.pub", "--record", record]
        done(pwire("produce", topic, *words, url=proxy.url))
        frames = proxy.until_frames(1, "SEND")
    consumed = pwire("consume", topic, "-s", "s", "-p", "Earliest", "--trace", "-ekv", KEYS / "ec.pem")
    assert done(consumed) == "secret\n"
    assert ' encrypted=agency decrypted "secret" ' in consumed.stderr
    frames += records(done(pwire("decode", record, "--command", "SEND", "-o", "json", *key, url="")))
    assert len(frames) == 2
    for frame in frames:
        assert frame["decrypted"] == {"key": "agency", "algorithm": ECIES}
        assert frame["messages"][0]["payload"] == {"view": "text", "value": "secret"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-ekn", "a"], "-ekn and -ekv belong together"),
        (["-ekn", "", "-ekv", KEYS / "rsa.pub"], "-ekn needs a name"),
        (["-ekn", "a", "-ekv", KEYS / "rsa.pem"], "a private key; give an RSA or EC public key in PEM"),
        (
            ["-ekn", "a", "-ekv", "data:x;base64,=secret="],
            "-ekv data:…: what follows the comma is not base64",
        ),
        (["-ekn", "a", "-ekv", "data:;base64secret"], "-ekv data:…: no comma; use data:"),
        (["-ekn", "a", "-ekv", "file:///none"], "-ekv file:///none: No such file or directory"),
    ],
)
def test_keys_that_are_none_are_one_line(pwire: Pwire, topic: str, words: list[object], reason: str) -> None:
    failed = pwire("produce", topic, "-m", "x", *words)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.count("\n") == 1
    assert reason in failed.stderr
    assert "secret" not in failed.stderr
