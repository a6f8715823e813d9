"""Brokers that die, hang or never answer: nothing is lost that was promised, and what is missing is said."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from interop.brokers import Broker
from interop.conftest import BrokerKind, Pwire, running
from interop.processes import HOST
from interop.running import PATIENCE, Numbered, Running, check_numbers, stored

from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import build_frame

# ---- Brokers that never answer ----


@contextlib.contextmanager
def silent(answer: bytes = b"") -> Iterator[int]:
    """The port of a server that takes connections, says `answer` when something comes, and nothing more."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                if answer and connection.recv(65536):
                    connection.sendall(answer)

    connections: list[socket.socket] = []
    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for connection in connections:
        connection.close()


CONNECTED = build_frame(build_command("CONNECTED", server_version="silent", protocol_version=21))
VERBS = {
    "lookup": (["t"], "LOOKUP"),
    "partitions": (["t"], "PARTITIONED_METADATA"),
    "produce": (["t", "-m", "x"], "PARTITIONED_METADATA"),
    "consume": (["t", "-s", "s"], "PARTITIONED_METADATA"),
    "topics": ([], "GET_TOPICS_OF_NAMESPACE"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_answer(pwire: Pwire, verb: str) -> None:
    """--timeout is how long an answer may take; it is said which one is missing."""
    arguments, request = VERBS[verb]
    with silent(CONNECTED) as port:
        done = pwire(verb, *arguments, "--timeout", 0.5, url=f"pulsar://{HOST}:{port}")
    assert (done.returncode, done.stdout) == (8, "")
    pattern = rf"pwire: {HOST}:{port}: {request} was not answered by {request}_RESPONSE\b.* within 0.5 s\n"
    assert re.fullmatch(pattern, done.stderr)


def test_no_connected(pwire: Pwire) -> None:
    with silent() as port:
        done = pwire("lookup", "t", "--connect-timeout", 0.5, url=f"pulsar://{HOST}:{port}")
    assert (done.returncode, done.stdout) == (8, "")
    assert f"{HOST}:{port}: CONNECT was not answered by CONNECTED within 0.5 s" in done.stderr


def test_no_tls_handshake(pwire: Pwire) -> None:
    with silent() as port:
        done = pwire("lookup", "t", "--connect-timeout", 0.5, url=f"pulsar+ssl://{HOST}:{port}")
    assert (done.returncode, done.stdout) == (8, "")
    assert "TLS" in done.stderr
    assert "within 0.5 s" in done.stderr


# ---- Brokers that die ----


@dataclass
class Outage:
    """What ran while `broker` was killed and started again, and has ended.

    `ended` was ended by Ctrl-C while there was no broker; `left` does not reconnect.
    """

    broker: Broker
    plain: Numbered
    single: Numbered
    consumer: Running
    ended: Running
    left: list[Running]


KEEPING = {"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}  # without subscriptions too
PLAIN = "persistent://public/plain/numbers"
SINGLE = "persistent://public/default/numbers"
FILLED_TOPIC = "persistent://public/default/filled"
FILLED = 6000


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory, broker_kind: BrokerKind) -> Iterator[Broker]:
    """A broker that removes duplicates, but not in the namespace public/plain."""
    place = tmp_path_factory.mktemp("breakable")
    settings = {"brokerDeduplicationEnabled": True, **KEEPING}
    for broker in running(lambda: broker_kind(place, settings=settings)):
        broker.rest("PUT", "/admin/v2/namespaces/public/plain")
        broker.rest("POST", "/admin/v2/namespaces/public/plain/deduplication", False)
        yield broker


@pytest.fixture(scope="module")
def outage(breakable: Broker, request: pytest.FixtureRequest) -> Iterator[Outage]:
    broker, pwire = breakable, Pwire(request)
    url = broker.url
    for topic, texts in ((FILLED_TOPIC, range(FILLED)), ("left-too", range(1))):
        text = "".join(f"{number}\n" for number in texts)
        done = pwire("produce", topic, "-m", "-", "-bm", 10, url=url, stdin=text)
        assert done.returncode == 0, done.stderr
    consume = ("-p", "Earliest", "-n", 0, "-o", "json", "-r", 1500)
    with (
        Numbered(pwire, PLAIN, "--send-timeout", 120, url=url) as plain,
        Numbered(pwire, SINGLE, "--send-timeout", 120, "--producer-name", "pwire-tests", url=url) as single,
        Running(pwire, "consume", FILLED_TOPIC, "-s", "s", *consume, url=url) as consumer,
        Running(pwire, "consume", FILLED_TOPIC, "-s", "ended", *consume, url=url) as ended,
        Numbered(pwire, "left", "--no-reconnect", url=url) as left,
        Running(pwire, "produce", "left-idle", "-m", "-", "-o", "json", "--no-reconnect", url=url) as idle,
        Running(pwire, "consume", "left-too", "-s", "s", *consume, "--no-reconnect", url=url) as left_too,
    ):
        idle.send("the only line of an open stdin")
        for each, many in {plain: 500, single: 500, consumer: 500, ended: 500, left: 1}.items():
            each.lines(many)
        for each in (idle, left_too):
            each.lines(1)
        broker.kill()
        for each in (left, idle, left_too):
            each.process.wait(PATIENCE)
        ended.says("opening it again")
        assert ended.interrupt() == 0, ended.said
        assert len(consumer.out) < FILLED
        broker.start()
        for each in (plain, single):
            each.lines(len(each.out) + 500)
            assert each.end() == 0, each.said
        consumer.lines(FILLED)
        assert consumer.interrupt() == 0, consumer.said
        yield Outage(broker, plain, single, consumer, ended, [left, idle, left_too])


def test_produce_goes_on(pwire: Pwire, outage: Outage) -> None:
    """All that produce printed a receipt of is there, and all that it was given, in order."""
    assert "opening it again" in outage.plain.said
    check_numbers(outage.plain, stored(pwire, outage.broker.url, PLAIN), once=False)


def test_produce_goes_on_without_duplicates(pwire: Pwire, outage: Outage) -> None:
    """And where the broker removes duplicates there are none."""
    check_numbers(outage.single, stored(pwire, outage.broker.url, SINGLE), once=True)


def test_consume_goes_on(pwire: Pwire, outage: Outage) -> None:
    """All messages are shown, none twice; what is acknowledged does not come again."""
    numbers = [int(json.loads(line)["payload"]) for line in outage.consumer.out]
    assert numbers == list(range(FILLED))
    done = pwire("consume", FILLED_TOPIC, "-s", "s", "-n", 0, "--idle", 2, url=outage.broker.url)
    assert (done.returncode, done.stdout) == (0, "")


def test_consume_is_ended_meanwhile(pwire: Pwire, outage: Outage) -> None:
    """What it had no time to acknowledge, or to be confirmed, comes to the next consumer."""
    shown = {int(json.loads(line)["payload"]) for line in outage.ended.out}
    done = pwire("consume", FILLED_TOPIC, "-s", "ended", "-n", 0, "--idle", 2, url=outage.broker.url)
    assert done.returncode == 0, done.stderr
    rest = [int(line) for line in done.stdout.splitlines()]
    assert rest == list(range(rest[0], FILLED))
    assert shown >= set(range(rest[0]))


def test_no_reconnect(outage: Outage) -> None:
    for run in outage.left:
        assert run.end() == 6, run.said
        assert "opening it again" not in run.said
        assert len(run.err) < 20


def test_broker_that_hangs(pwire: Pwire, breakable: Broker) -> None:
    """A broker that does not answer a PING is given up; when it answers again all goes on."""
    topic = "persistent://public/plain/hangs"
    options = ("--keep-alive", 0.5, "--connect-timeout", 1)
    with Numbered(pwire, topic, *options, url=breakable.url) as run:
        run.lines(100)
        os.kill(breakable.pid, signal.SIGSTOP)
        try:
            run.says("PING was not answered by PONG within 0.5 s")
            run.says("CONNECT was not answered by CONNECTED within 1 s")
        finally:
            os.kill(breakable.pid, signal.SIGCONT)
        run.lines(len(run.out) + 400)
        assert run.end() == 0, run.said
    check_numbers(run, stored(pwire, breakable.url, topic), once=False)
