"""`pwire ping` against a broker: counts, times, what is lost, and how it ends."""

from __future__ import annotations

import json
import os
import signal

from interop.brokers import Broker
from interop.conftest import Pwire
from interop.running import Running


def test_so_many_pings_and_their_percentiles(pwire: Pwire) -> None:
    run = pwire("ping", "-c", 3, "-i", 0.01)
    assert run.returncode == 0, run.stderr
    head, *answers, counts, times = run.stdout.splitlines()
    assert "Pulsar Server" in head
    assert [line.split(": ")[1].split()[0] for line in answers] == ["1", "2", "3"]
    assert counts == "3 sent, 3 answered, 0 lost"
    assert [each.split()[0] for each in times.split(", ")] == ["min", "p50", "p90", "p99", "max"]


def test_json(pwire: Pwire) -> None:
    run = pwire("ping", "-c", 2, "-i", 0, "-o", "json")
    *answers, total = map(json.loads, run.stdout.splitlines())
    assert [each["number"] for each in answers] == [1, 2]
    assert all(each["error"] is None and each["latency_ns"] > 0 for each in answers)
    assert (total["sent"], total["answered"], total["lost"]) == (2, 2, 0)
    assert total["latency"]["min"] == min(each["latency_ns"] for each in answers)
    assert total["latency"]["max"] == max(each["latency_ns"] for each in answers)


def test_the_broker_of_a_topic(pwire: Pwire, topic: str) -> None:
    run = pwire("ping", "-c", 1, "--topic", topic, "--trace")
    assert run.returncode == 0, run.stderr
    assert "LOOKUP " in run.stderr
    assert "1 sent, 1 answered, 0 lost" in run.stdout


def test_no_pings_but_its_own_are_sent(pwire: Pwire) -> None:
    run = pwire("ping", "-c", 3, "-i", 0.3, "--keep-alive", 0.1, "--trace")
    assert run.stderr.count(" PING") == 3, run.stderr


def test_ctrl_c_ends_with_the_summary(pwire: Pwire) -> None:
    with Running(pwire, "ping", "-c", 0, "-i", 0.01) as running:
        running.line_with(": 3 ")
        code, rest = running.finish()
    assert code == 0
    assert rest[-2].endswith(" answered, 0 lost")
    assert rest[-1].startswith("min ")


def test_lost_pings_are_counted_and_later_ones_go_over_a_new_connection(pwire: Pwire, broker: Broker) -> None:
    waits = ("--timeout", 0.3, "--connect-timeout", 0.3)
    with Running(pwire, "ping", "-c", 0, "-i", 0.01, *waits) as running:
        running.line_with(": 1 ")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            assert "PING was not answered by PONG within 0.3 s" in running.line_with(" lost: ")
            assert "CONNECT was not answered" in running.line_with(" lost: ")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        while "lost" in running.line():
            pass
        code, rest = running.finish()
    assert code == 8
    assert not rest[-2].endswith(" 0 lost")


def test_without_reconnecting_the_first_loss_ends_it(pwire: Pwire, broker: Broker) -> None:
    with Running(
        pwire, "ping", "-c", 0, "-i", 0.01, "--timeout", 0.3, "--no-reconnect", "-o", "json"
    ) as running:
        running.line()
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            code, rest = running.finish(None)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    lost, total = map(json.loads, rest[-2:])
    assert code == 8
    assert lost["latency_ns"] is None
    assert "not answered" in lost["error"]
    assert total["lost"] == 1


def test_nobody_there(pwire: Pwire) -> None:
    run = pwire("ping", url="pulsar://127.0.0.1:1")
    assert (run.returncode, run.stdout) == (6, "")
