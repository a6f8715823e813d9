"""What the doctor finds in the traffic of the official clients: what they are refused, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
from interop import test_clients_features as features
from interop.brokers import Broker, run_java
from interop.conftest import Go, Pwire
from interop.sessions import Proxy

REFUSED = {
    "authentication_refused": "tokens that are forged or have expired",
    "not_authorized": "the token of a stranger",
    "token_expired": "a token that has expired",
}
"""Rules that find something certain among `TOKENS`, and what provokes that."""

EXPECTED = {
    "request_refused": "a second consumer of an Exclusive subscription",
    "ack_without_consumer": "the Java client sends them by a timer, also while it closes a consumer",
}
"""Rules that may find something certain in features, and why."""

TOKENS = {
    "client": (),
    "stranger": pulsar.AuthorizationError,
    "forged": features.REFUSED["forged"],
    "expired": features.REFUSED["forged"],
}
"""Of the fixture `secure`, with what a client that has one is told."""

Findings = set[tuple[str, str, str, str]]
"""Id, certainty, subject and client."""

Program = Callable[[Broker], None]


def findings(lines: list[str]) -> Findings:
    """What a doctor says; of what it says again, the last."""
    last: dict[tuple[str, str, str], str] = {}
    for finding in map(json.loads, lines):
        client = finding["connection"].partition("-")[0]
        last[finding["id"], json.dumps(finding["subject"]), client] = finding["certainty"]
    return {(name, certainty, subject, client) for (name, subject, client), certainty in last.items()}


def certain(found: Findings) -> set[str]:
    """The ids of what is certain."""
    return {name for name, certainty, _, _ in found if certainty == "certain"}


def examine(pwire: Pwire, broker: Broker, record: Path, program: Program) -> Findings:
    """What the doctor finds live, in a proxy that the clients of a program go through, and records."""
    options = ("--doctor", "-o", "json", "--record", record, "--show-secrets")
    with Proxy(pwire, broker.url, *options) as proxy:
        proxied = copy(broker)
        proxied.url = proxy.url
        program(proxied)
        assert proxy.interrupt() == 0, proxy.said
        assert "missing bytes" not in proxy.said
    return findings(proxy.out)


def diagnosed(pwire: Pwire, record: Path, *options: object) -> Findings:
    """What `pwire doctor` finds."""
    done = pwire("doctor", record, "-o", "json", *options, url="")
    assert "0 connections" not in done.stderr
    found = findings(done.stdout.splitlines())
    assert done.returncode == bool(found), done.stderr
    return found


# -- features


def of_wheel(topic: str, broker: Broker) -> None:
    """Those of the Python client."""
    tests: dict[str, Callable[[Broker, str], None]] = {
        "failover": features.test_failover,
        "partitions": features.test_partitions,
        "pattern": features.test_topics_by_pattern,
        "dead": features.test_dead_letters,
        "nack": features.test_negative_acknowledgements,
        "seek": features.test_seek,
        "cumulative": features.test_cumulative_acknowledgements,
        "parts": features.test_parts_of_a_batch,
        "chunks": features.test_chunks,
        "access": features.test_exclusive_producers,
        "readers": features.test_readers_and_tables,
        **{each: partial(features.test_subscription_types, kind=each) for each in features.TYPES},
        **{each: partial(features.test_schemas, kind=each) for each in features.SCHEMAS},
        **{each: partial(features.test_codecs, codec=each, batched=True) for each in features.CODECS},
    }
    for name, test in tests.items():
        test(broker, f"{topic}-{name}")


def of_java(broker: Broker) -> None:
    """Those of the Java client."""
    program = Path(__file__).with_name("java") / "Features.java"
    said = features.features(run_java(program, broker.url, features.new_base(broker)))
    assert said == dict.fromkeys(features.JAVA, "ok")


def of_go(go: Go, broker: Broker) -> None:
    """Those of the Go client."""
    said = features.features(go("run", ".", features.new_base(broker), json.dumps(broker.describe())))
    assert said == features.GO


@pytest.fixture
def wheel_program(topic: str) -> Program:
    return partial(of_wheel, topic)


@pytest.fixture
def java_program(obtainable: None) -> Program:
    return of_java


@pytest.fixture
def go_program(go: Go) -> Program:
    return partial(of_go, go)


OTHERS = [pytest.param(name, marks=pytest.mark.interop) for name in ("java", "go")]


@pytest.mark.parametrize("client", ["wheel", *OTHERS])
def test_features(
    broker: Broker, pwire: Pwire, request: pytest.FixtureRequest, tmp_path: Path, client: str
) -> None:
    """Nothing is certain but what is `EXPECTED`; the recording says what was said live."""
    record = tmp_path / "record.pcapng"
    live = examine(pwire, broker, record, request.getfixturevalue(f"{client}_program"))
    assert certain(live) <= EXPECTED.keys()
    assert diagnosed(pwire, record) == live
    assert certain(diagnosed(pwire, record, "-T", 5, "-A", 5, "-R", 3)) <= EXPECTED.keys()


# -- refusals


def use_tokens(topic: str, broker: Broker) -> None:
    """The Python client with each of `TOKENS`."""
    for name, error in TOKENS.items():
        token: Any = pulsar.AuthenticationToken(broker.tokens[name])
        with features.wheel(broker.url, authentication=token, operation_timeout_seconds=1) as client:
            if error:
                with pytest.raises(error):
                    client.subscribe(topic, "s")
            else:
                consumer = client.subscribe(topic, "s")
                features.send(client, topic, "a")
                assert features.receive(consumer, 1) == ["a"]


def test_refusals(secure: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    """What is found is what was provoked."""
    record = tmp_path / "record.pcapng"
    live = examine(pwire, secure, record, partial(use_tokens, topic))
    assert certain(live) == set(REFUSED)
    assert diagnosed(pwire, record) == live
