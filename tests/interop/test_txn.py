"""`pwire txn` against a broker: what is visible after which end, and what goes wrong in the middle."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from interop.brokers import Broker
from interop.conftest import Pwire

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.session.transaction import Coordinator, Transaction
from pulsarctl_wire.net.settings import gather, make_settings
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

END = "the end"


def client_of(url: str) -> Client:
    return Client(make_settings(gather({"url": url}, {}, None)))


def records(run: subprocess.CompletedProcess[str], code: int = 0) -> list[dict[str, Any]]:
    assert run.returncode == code, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def steps(run: subprocess.CompletedProcess[str], code: int = 0) -> list[str]:
    return [record["step"] for record in records(run, code)]


def send(pwire: Pwire, topic: str, *texts: str, batched: bool = False) -> None:
    how = ["-b", 1000] if batched else ["-db"]
    run = pwire("produce", topic, *(word for text in texts for word in ("-m", text)), *how)
    assert run.returncode == 0, run.stderr


def visible(pwire: Pwire, broker: Broker, topic: str) -> list[str]:
    """What the subscription `seen` gets, and does not acknowledge, up to a message that is produced now."""
    send(pwire, topic, END)

    async def read() -> list[str]:
        options = ConsumerOptions("seen", initial=CommandSubscribe.Earliest)
        async with client_of(broker.url) as client:
            feed = Subscription(client, [topic], options)
            await feed.open()
            texts: list[str] = []
            while END not in texts:
                delivery = await asyncio.wait_for(feed.take(), 20)
                assert delivery is not None
                texts += [(message.payload or b"").decode() for message in delivery.messages]
            await feed.close()
            return [text for text in texts if text != END]

    return asyncio.run(read())


@contextmanager
def running(pwire: Pwire, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A `pwire` whose stdout is read as it comes."""
    process = subprocess.Popen(
        pwire.command(*args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=pwire.environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], step: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        record: dict[str, Any] = json.loads(line)
        if record["step"] == step:
            return record
    raise AssertionError(f"no step {step!r}")


def rest(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Exit code, the steps that are still to come, stderr."""
    out, err = process.communicate(timeout=60)
    return process.returncode, [json.loads(line)["step"] for line in out.splitlines()], err


def test_a_commit_makes_messages_visible(pwire: Pwire, broker: Broker, topic: str) -> None:
    other = topic + "-other"
    run = pwire(
        *("txn", "--produce", topic, "--produce", other, "-m", "one", "-m", "-"),
        *("-o", "json"),
        stdin="two\nthree\n",
    )
    told = records(run)
    assert [each["step"] for each in told] == [
        *("connected", "opened", "added_topics"),
        *["stored"] * 6,
        "committed",
    ]
    assert told[2]["topics"] == [topic, other]
    stored = [each for each in told if each["step"] == "stored"]
    assert {each["topic"] for each in stored} == {topic, other}
    assert len({(each["topic"], each["id"]) for each in stored}) == 6
    assert len({(each["txnid_most_bits"], each["txnid_least_bits"]) for each in told[1:]}) == 1
    assert all(each["latency_ns"] > 0 for each in told)
    for each in (topic, other):
        assert visible(pwire, broker, each) == ["one", "two", "three"]


def test_an_abort_makes_none_visible(pwire: Pwire, broker: Broker, topic: str) -> None:
    run = pwire("txn", "--produce", topic, "-m", "never", "--abort")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("coordinator 0 at ")
    assert lines[1].startswith("opened (0,")
    assert lines[-1].startswith("aborted (0,")
    assert visible(pwire, broker, topic) == []


def test_acknowledgements_of_an_aborted_transaction_are_undone(
    pwire: Pwire, broker: Broker, topic: str
) -> None:
    send(pwire, topic, "a", "b", "c")
    take = ("txn", "--ack", topic, "--subscription", "seen", "-n", 2, "-o", "json")
    aborted = records(pwire(*take, "--abort"))
    assert [each["step"] for each in aborted] == [
        *("connected", "opened", "received", "received"),
        *("added_subscription", "acknowledged", "aborted"),
    ]
    assert visible(pwire, broker, topic) == ["a", "b", "c"]
    committed = records(pwire(*take))
    assert committed[-1]["step"] == "committed"
    assert committed[-2]["ids"] == aborted[-2]["ids"]
    assert visible(pwire, broker, topic) == ["c"]


def test_parts_of_a_batch_are_acknowledged(pwire: Pwire, broker: Broker, topic: str) -> None:
    send(pwire, topic, "a", "b", "c", "d", batched=True)
    take = ("txn", "--ack", topic, "-s", "seen", "-o", "json")
    assert records(pwire(*take, "-n", 1))[-2]["ids"][0].endswith("[0]")
    assert len(records(pwire(*take, "-n", 2, "--abort"))[-2]["ids"]) == 2
    assert visible(pwire, broker, topic) == ["b", "c", "d"]
    left = records(pwire(*take, "-n", 1, "--leave-open"))[1]
    # the same entry, by two transactions at once
    assert records(pwire(*take, "-n", 2))[-2]["ids"][1].endswith("[3]")
    ids = f"{left['txnid_most_bits']}:{left['txnid_least_bits']}"
    assert steps(pwire("txn", "--end", ids, "--abort", "-o", "json")) == ["connected", "aborted"]
    assert visible(pwire, broker, topic) == ["b"]


def test_several_topics_are_acknowledged(pwire: Pwire, broker: Broker, topic: str) -> None:
    other = topic + "-other"
    broker.rest("PUT", f"/admin/v2/{other.replace('://', '/')}/partitions", 2)
    send(pwire, topic, "a", "b")
    run = pwire("txn", "--produce", other, "-m", "x", "-m", "y", "-m", "z", "-o", "json")
    added = records(run)[2]
    assert added["topics"] == [f"{other}-partition-0", f"{other}-partition-1"]
    take = ("--ack", topic, "--ack", other, "-s", "seen", "-s", "both", "-n", 1, "-n", 3, "-t", "shared")
    told = records(pwire("txn", *take, "-o", "json"))
    acknowledged = {each["topic"]: len(each["ids"]) for each in told if each["step"] == "acknowledged"}
    assert acknowledged == {topic: 1, f"{other}-partition-0": 2, f"{other}-partition-1": 1}
    assert visible(pwire, broker, topic) == ["b"]


def test_one_that_was_left_open_is_ended_later(pwire: Pwire, broker: Broker, topic: str) -> None:
    def leave(text: str) -> str:
        run = pwire("txn", "--produce", topic, "-m", text, "--leave-open")
        assert run.returncode == 0, run.stderr
        (last,) = run.stdout.splitlines()[-1:]
        assert last.startswith("left open (0,")
        return last.split()[-2]

    ids = leave("one")
    assert pwire("txn", "--end", ids, "--commit").returncode == 0
    assert visible(pwire, broker, topic) == ["one"]
    again = pwire("txn", "--end", ids, "--commit")
    assert (again.returncode, "TransactionNotFound" in again.stderr) == (7, True)
    assert pwire("txn", "--end", leave("two"), "--abort").returncode == 0
    assert visible(pwire, broker, topic) == ["one"]


def test_a_conflict_aborts_it(pwire: Pwire, broker: Broker, topic: str) -> None:
    """It has a message, waits for a second one, and another transaction acknowledges the first."""
    send(pwire, topic, "a")
    other = topic + "-other"
    words = ("txn", "--produce", other, "-m", "never", "--ack", topic, "-s", "seen", "-n", 2, "-t", "shared")

    async def acknowledge(where: str) -> None:
        async with client_of(broker.url) as client:
            transaction = await Transaction.open(Coordinator(client), 60)
            feed = Subscription(client, [topic], ConsumerOptions("seen", CommandSubscribe.Shared))
            await feed.open()
            (consumer,) = feed.consumers.values()
            await transaction.add_subscription([topic], "seen")
            ledger, entry = map(int, where.split(":"))
            message_id = [{"ledgerId": ledger, "entryId": entry}]
            fields = {"txnid_most_bits": transaction.txn_id[0], "txnid_least_bits": transaction.txn_id[1]}
            await consumer.ask("ACK", ack_type=0, message_id=message_id, **fields)
            await feed.close()
            await transaction.end(commit=True)

    with running(pwire, *words, "-o", "json") as process:
        received = wait_for(process, "received")
        asyncio.run(acknowledge(received["id"]))
        send(pwire, topic, "b")
        code, told, err = rest(process)
    assert code == 7, err
    assert "TransactionConflict" in err
    assert told == ["received", "added_subscription", "aborted"]
    assert visible(pwire, broker, other) == []
    assert visible(pwire, broker, topic) == ["b"]


def test_ctrl_c_aborts_it(pwire: Pwire, broker: Broker, topic: str) -> None:
    words = ("txn", "--produce", topic, "-m", "never", "--ack", topic, "-s", "seen", "-o", "json")
    with running(pwire, *words) as process:
        wait_for(process, "stored")
        process.send_signal(signal.SIGINT)
        code, told, err = rest(process)
    assert (code, told, err) == (130, ["aborted"], "")
    assert visible(pwire, broker, topic) == []


def test_messages_that_do_not_come_end_it(pwire: Pwire, topic: str) -> None:
    send(pwire, topic, "a")
    began = time.monotonic()
    run = pwire("txn", "--ack", topic, "-s", "seen", "-n", 2, "--txn-timeout", 2)
    assert run.returncode == 8
    assert "the transaction timed out after 1 of 2 messages" in run.stderr
    assert time.monotonic() - began < 20


def test_a_transaction_that_timed_out_is_not_committed(pwire: Pwire, broker: Broker, topic: str) -> None:
    run = pwire("txn", "--produce", topic, "-m", "never", "--leave-open", "--txn-timeout", 1)
    ids = run.stdout.split()[-2]
    time.sleep(3)
    late = pwire("txn", "--end", ids, "--commit")
    assert (late.returncode, "TransactionNotFound" in late.stderr) == (7, True)
    assert visible(pwire, broker, topic) == []


def test_coordinators_are_counted(pwire: Pwire, broker: Broker) -> None:
    async def connect(number: int) -> str:
        async with client_of(broker.url) as client:
            coordinator = Coordinator(client, number)
            link = await coordinator.connect()
            assert await coordinator.connect() is link
            return str(link.address)

    assert asyncio.run(connect(0)) in broker.url
    with pytest.raises(SettingsError, match="no coordinator 1000: there are"):
        asyncio.run(connect(1000))
    assert pwire("txn", "--coordinator", 1000).returncode == 2


def test_a_broker_without_transactions(pwire: Pwire, secure: Broker) -> None:
    run = pwire("txn", url=secure.url, env={"PWIRE_TOKEN": secure.tokens["admin"]})
    assert (run.returncode, run.stdout) == (7, "")
    assert "TC_CLIENT_CONNECT_REQUEST refused, NotAllowedError" in run.stderr
