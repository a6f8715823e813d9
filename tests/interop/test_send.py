"""`pwire send` against a broker: what is right, what is wrong on purpose, and when it ends."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interop.brokers import Broker

Pwire = Any  # the fixture of that name
Done = subprocess.CompletedProcess[str]

PING = "00000009 00000005 0812920100"
METADATA = {"producer_name": "by-hand", "sequence_id": 0, "publish_time": 1}


def lines(*values: object) -> str:
    return "".join(f"{value if isinstance(value, str) else json.dumps(value)}\n" for value in values)


def command(name: str, **fields: object) -> dict[str, Any]:
    return {"command": name, "fields": fields}


def producer(topic: str) -> list[dict[str, Any]]:
    """Lines that open a producer with the id 1; a broker serves what it was asked for by LOOKUP."""
    return [
        command("LOOKUP", topic=topic, request_id=9),
        {"expect": "LOOKUP_RESPONSE"},
        command("PRODUCER", topic=topic, producer_id=1, request_id=1, producer_name="by-hand"),
        {"expect": "PRODUCER_SUCCESS"},
    ]


def message(sequence_id: int, payload: str, **more: object) -> dict[str, Any]:
    metadata = METADATA | {"sequence_id": sequence_id}
    sending = command("SEND", producer_id=1, sequence_id=sequence_id)
    return sending | {"metadata": metadata, "payload": payload} | more


def records(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def commands(done: Done) -> list[str]:
    return [each["command"] for each in records(done)]


@pytest.fixture
def send(pwire: Pwire) -> Callable[..., Done]:
    """Runs `pwire send -o json` with these lines on stdin."""

    def run(*values: object, options: tuple[object, ...] = (), **more: str) -> Done:
        done: Done = pwire("send", "-o", "json", *options, stdin=lines(*values), **more)
        return done

    return run


def test_a_lookup_is_answered(send: Callable[..., Done], topic: str) -> None:
    for line in (
        command("LOOKUP", topic=topic, request_id=7),
        {"type": "LOOKUP", "lookupTopic": {"topic": topic, "requestId": "7"}},
    ):
        done = send(line, options=("--idle", 50))  # a broker that has just begun takes its time
        assert (done.returncode, done.stderr) == (0, "")
        (answer,) = records(done)
        assert answer["command"] == "LOOKUP_RESPONSE"
        assert answer["fields"]["request_id"] == 7
        assert answer["topic"] == topic
        assert answer["latency_ns"] > 0


def test_it_ends_at_once_when_all_is_answered(send: Callable[..., Done]) -> None:
    began = time.monotonic()
    done = send(PING, options=("--idle", 30))
    assert (done.returncode, commands(done)) == (0, ["PONG"])
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("form", ["line", "tree", "json", "hex"])
def test_each_form_of_output(pwire: Pwire, form: str) -> None:
    done = pwire("send", "--output", form, "--sent", stdin=lines(PING))
    assert done.returncode == 0
    assert "PING" in done.stdout
    assert "PONG" in done.stdout
    assert "CONNECT" not in done.stdout


def test_what_decode_read_can_be_sent_again(pwire: Pwire, topic: str, tmp_path: Path) -> None:
    capture, script = tmp_path / "session.pcapng", tmp_path / "again.jsonl"
    sent = [*producer(topic), message(0, "one"), message(1, "zwei ü")]
    assert pwire("send", "--record", capture, stdin=lines(*sent)).returncode == 0
    decoded = records(pwire("decode", "-o", "json", capture, url=""))
    again = [each for each in decoded if each["to_broker"] and each["command"] != "CONNECT"]
    assert [each["command"] for each in again] == ["LOOKUP", "PRODUCER", "SEND", "SEND"]
    script.write_text(lines(*again[:2], {"expect": "PRODUCER_SUCCESS"}, *again[2:]), encoding="utf-8")
    done = pwire("send", "-o", "json", "--sent", script)
    assert done.returncode == 0
    assert commands(done).count("SEND_RECEIPT") == 2
    for before, after in zip(again, (each for each in records(done) if each["to_broker"]), strict=True):
        for name in ("command", "fields", "metadata", "messages", "checksum", "total_size", "topic"):
            assert after[name] == before[name]


def test_what_is_produced_is_delivered(send: Callable[..., Done], topic: str) -> None:
    reading = {"topic": topic, "subscription": "s", "subType": "Exclusive"}
    subscribe = command("SUBSCRIBE", **reading, consumer_id=2, request_id=2)
    done = send(
        *producer(topic),
        subscribe,
        {"expect": "SUCCESS"},
        message(0, "hello"),
        command("FLOW", consumer_id=2, messagePermits=10),
        {"expect": "MESSAGE"},
    )
    assert done.returncode == 0
    (delivered,) = (each for each in records(done) if each["command"] == "MESSAGE")
    assert delivered["messages"][0]["payload"] == {"view": "text", "value": "hello"}
    assert (delivered["topic"], delivered["subscription"]) == (topic, "s")


# -- wrong on purpose


def test_a_wrong_checksum_is_refused(send: Callable[..., Done], topic: str) -> None:
    done = send(*producer(topic), message(0, "a", checksum="invalid"), message(1, "b"))
    assert done.returncode == 7
    *_, error, receipt = records(done)
    assert error["command"] == "SEND_ERROR"
    assert error["fields"]["error"] == "ChecksumError"
    assert error["fields"]["sequence_id"] == 0
    assert receipt["command"] == "SEND_RECEIPT"


def test_a_refused_lookup(send: Callable[..., Done]) -> None:
    done = send(command("LOOKUP", topic="no-domain://x/y/z", request_id=1), options=("--idle", 20))
    assert done.returncode == 7
    assert records(done)[0]["fields"]["error"] == "InvalidTopicName"


@pytest.mark.parametrize(
    "line",
    [
        "deadbeef" * 4,
        "474554202f20485454502f312e310d0a0d0a",  # HTTP
        {"command": "UNKNOWN(99)"},
        {"command": "LOOKUP"},
        {"type": "LOOKUP"},
        command("LOOKUP", topic="t"),
        {"command": "PING", "force_command_size": 400},
        {"command": "PING", "force_total_size": 2**31},
        {"command": "CONNECTED", "fields": {"server_version": "mine"}},
        command("SEND", producer_id=77, sequence_id=0) | {"metadata": METADATA, "payload": "x"},
    ],
    ids=str,
)
def test_a_broker_closes_the_connection(send: Callable[..., Done], line: object) -> None:
    done = send(line, PING, {"wait": 5}, options=("--idle", 20))
    assert done.returncode == 6
    assert re.search("the broker closed the connection|reset by peer", done.stderr)  # PING may be underway


def test_a_frame_cut_short_gets_no_answer(send: Callable[..., Done]) -> None:
    done = send({"command": "PING", "force_total_size": 100}, options=("--sent",))
    assert (done.returncode, done.stderr) == (0, "")
    (sent,) = records(done)
    assert sent["partial"]


def test_an_answer_that_does_not_come_is_told(send: Callable[..., Done]) -> None:
    acked = {"ledgerId": 1, "entryId": 1}
    done = send(command("ACK", consumer_id=77, ack_type="Individual", message_id=[acked], request_id=5))
    assert done.returncode == 8
    assert "no answer to ACK (#3)" in done.stderr


# -- the handshake


def test_a_connect_of_ones_own(send: Callable[..., Done]) -> None:
    done = send(command("CONNECT", client_version="by hand", protocol_version=21), PING, options=("--sent",))
    assert done.returncode == 0
    assert sorted(commands(done)) == ["CONNECT", "CONNECTED", "PING", "PONG"]
    assert records(done)[0]["fields"]["client_version"] == "by hand"
    assert records(done)[0]["number"] == 1


def test_no_handshake(send: Callable[..., Done], topic: str) -> None:
    done = send(command("LOOKUP", topic=topic, request_id=1), options=("--no-handshake",))
    assert (done.returncode, done.stdout) == (6, "")


def test_credentials(send: Callable[..., Done], secure: Broker, topic: str) -> None:
    lookup = command("LOOKUP", topic=topic, request_id=1)
    options = ("--token", secure.tokens["admin"], "--idle", 20)
    done = send(lookup, options=options, url=secure.url)
    assert (done.returncode, commands(done)) == (0, ["LOOKUP_RESPONSE"])
    done = send(lookup, url=secure.url)
    assert (done.returncode, done.stdout) == (7, "")
    done = send(command("CONNECT", client_version="x", protocol_version=21), url=secure.url)
    assert (done.returncode, commands(done)) == (7, ["ERROR"])
    assert records(done)[0]["fields"]["error"] == "AuthenticationError"


# -- when it ends


def test_expectations(send: Callable[..., Done]) -> None:
    done = send(PING, {"wait": 0.5}, {"expect": "PONG"}, PING, {"expect": "PONG"})
    assert (done.returncode, commands(done)) == (0, ["PONG", "PONG"])
    done = send(PING, {"expect": "PONG"}, {"expect": "PONG"}, PING, options=("--timeout", 0.5))
    assert (done.returncode, commands(done)) == (8, ["PONG"])
    assert done.stderr == "pwire: stdin:3: no PONG has come within 0.5 s\n"


def test_waiting(send: Callable[..., Done]) -> None:
    for values, options in (([PING], ("--wait", 2)), ([PING, {"wait": 2}], ())):
        began = time.monotonic()
        assert send(*values, options=options).returncode == 0
        assert time.monotonic() - began > 2


def test_a_line_that_means_nothing(send: Callable[..., Done]) -> None:
    done = send("# to begin with", "", PING, {"wait": 0.5}, "hello", PING)
    assert (done.returncode, commands(done)) == (2, ["PONG"])
    assert done.stderr.startswith("pwire: stdin:5: neither a JSON object nor hexadecimal digits")


def test_nothing_to_send(send: Callable[..., Done]) -> None:
    done = send()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_files_follow_one_another(pwire: Pwire, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(PING)
    second.write_text('{"command": "PONK"}')
    done = pwire("send", first, "-", second, stdin=lines(PING, {"wait": 0.5}))
    assert done.stdout.count("PONG") == 2
    assert done.stderr.startswith(f'pwire: {second}:1: there is no command "PONK"; did you mean PONG?')
    assert done.returncode == 2
    assert pwire("send", tmp_path / "none").returncode == 3


def test_many_frames(send: Callable[..., Done]) -> None:
    done = send(*[PING] * 3000, options=("--idle", 20))
    assert (done.returncode, len(records(done))) == (0, 3000)


def test_it_does_not_wait_for_lines_that_cannot_be_sent(pwire: Pwire) -> None:
    process = subprocess.Popen(
        pwire.command("send"),
        env=pwire.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin
        process.stdin.write("deadbeefdeadbeef\n")
        process.stdin.flush()
        assert process.wait(30) == 6


def test_a_reader_that_goes_away(pwire: Pwire) -> None:
    process = subprocess.Popen(
        pwire.command("send", "--wait", 60),
        env=pwire.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(lines(PING))
        process.stdin.flush()
        assert "PONG" in process.stdout.readline()
        process.stdout.close()
        process.stdin.write(lines(PING))
        process.stdin.flush()
        assert process.wait(30) == 141
        assert process.stderr.read() == ""
