"""`pwire replay` against a broker: recorded sessions of our own played again, and captures of the clients."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from interop.brokers import Broker
from interop.conftest import Pwire

SAMPLES = Path(__file__).parents[2] / "samples" / "pcaps"


def total(text: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(text.splitlines()[-1])
    return summary


@pytest.mark.parametrize(
    "sample",
    [
        *("python-simple", "java-simple", "java-batch-zlib", "java-keyshared"),
        *(
            "java-encrypted",
            "java-keyvalue-protobuf",
            "python-schemas",
            "java-nack-dlq",
            "ipv6",
            "no-checksum",
        ),
    ],
)
def test_sessions_of_the_clients_are_answered_as_recorded(pwire: Pwire, sample: str) -> None:
    suffix = f"--suffix=-{secrets.token_hex(4)}"
    url = pwire.command()[-1]
    run = pwire("replay", SAMPLES / f"{sample}.pcap", "--to", url, suffix, "-o", "json", url="")
    assert run.returncode == 0, run.stdout + run.stderr
    assert total(run.stdout)["exchanges"] >= 10


def test_other_answers_of_a_real_broker_are_found(pwire: Pwire) -> None:
    url = pwire.command()[-1]
    suffix = f"--suffix=-{secrets.token_hex(4)}"
    path = SAMPLES / "python-partitioned.pcap"
    run = pwire("replay", path, "--to", url, suffix, "-o", "json", url="")
    assert run.returncode == 9, run.stderr
    *differences, summary = map(json.loads, run.stdout.splitlines())
    assert {each["command"] for each in differences} == {"PARTITIONED_METADATA_RESPONSE"}
    assert differences[0]["fields"] == {"partitions": {"recorded": 4, "replayed": 0}}
    assert summary["unanswered"] == 0


def test_our_own_session_with_its_ids_and_names(
    pwire: Pwire, broker: Broker, topic: str, tmp_path: Path
) -> None:
    captures = [tmp_path / "produced.pcapng", tmp_path / "consumed.pcapng"]
    made = pwire(
        "produce", topic, "-m", "one", "-m", "two", "--sync", "--schema", "string", "--record", captures[0]
    )
    assert made.returncode == 0, made.stderr
    read = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 2, "--record", captures[1])
    assert read.stdout.split() == ["one", "two"], read.stderr
    run = pwire("replay", *captures, "--to", broker.url, "--suffix=-again", url="")
    assert run.returncode == 0, run.stdout + run.stderr
    left = pwire("consume", f"{topic}-again", "-s", "s", "-e", "-n", 0)
    assert left.stdout == "", "what was acknowledged in the replay does not come again"
    assert pwire("read", f"{topic}-again", "-n", 0, "-e").stdout.split() == ["one", "two"]


def test_a_transaction(pwire: Pwire, broker: Broker, topic: str, tmp_path: Path) -> None:
    capture = tmp_path / "txn.pcapng"
    made = pwire("txn", "--produce", topic, "-m", "one", "--commit", "--record", capture)
    assert made.returncode == 0, made.stderr
    run = pwire("replay", capture, "--to", broker.url, "--rename", f"{topic}={topic}-b", url="")
    assert run.returncode == 0, run.stdout + run.stderr
    assert pwire("read", f"{topic}-b", "-n", 1, "--idle", 20).stdout.split() == ["one"]


def test_credentials_are_those_that_are_given(
    pwire: Pwire, secure: Broker, topic: str, tmp_path: Path
) -> None:
    capture, tokens = tmp_path / "secure.pcapng", secure.tokens
    made = pwire("produce", topic, "-m", "x", "--token", tokens["admin"], "--record", capture, url=secure.url)
    assert made.returncode == 0, made.stderr
    suffix = f"--suffix=-{secrets.token_hex(4)}"
    assert secure.tls is not None
    tls = ("--to", secure.url_tls, "--tls-ca", secure.tls.ca)
    run = pwire("replay", capture, *tls, suffix, "--token", tokens["admin"], url="")
    assert run.returncode == 0, run.stdout + run.stderr
    without = pwire("replay", capture, "--to", secure.url, suffix, "--answer-timeout", 1, url="")
    assert without.returncode == 9
    assert "redacted" in without.stderr
    assert "AuthenticationError" in without.stdout
