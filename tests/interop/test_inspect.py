"""`pwire seek`, `unsubscribe`, `last-id` and `consumer-stats` against a broker."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import datetime, timezone
from typing import Any

import pytest
from interop.brokers import Broker
from interop.conftest import Pwire
from interop.running import Running


def produce(pwire: Pwire, topic: str, *texts: str, batched: bool = False) -> list[str]:
    """Produce messages, each alone or all as one batch; their ids."""
    how = ("-b", 1000) if batched else ("-db",)
    run = pwire("produce", topic, *(word for text in texts for word in ("-m", text)), *how, "-o", "id")
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def records(run: subprocess.CompletedProcess[str], code: int = 0) -> list[dict[str, Any]]:
    assert run.returncode == code, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def seek(pwire: Pwire, topic: str, to: str, *more: object) -> dict[str, Any]:
    (record,) = records(pwire("seek", topic, "-s", "s", "--to", to, "--create", "-o", "json", *more))
    return record


def next_message(pwire: Pwire, topic: str, ack: str = "none") -> str:
    """The payload that the subscription gets next, "" for none."""
    run = pwire("consume", topic, "-s", "s", "-t", "Shared", "-n", 1, "--idle", 1, "--ack", ack)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def path(topic: str) -> str:
    return f"/admin/v2/{topic.replace('://', '/')}"


def subscriptions(broker: Broker, topic: str) -> list[str]:
    found: list[str] = broker.rest("GET", path(topic) + "/subscriptions")
    return found


# -- seek


def test_to_both_ends_and_to_a_message(pwire: Pwire, topic: str) -> None:
    ids = produce(pwire, topic, "a", "b", "c")
    assert seek(pwire, topic, "earliest")["created"]
    assert next_message(pwire, topic, "individual") == "a"
    moved = seek(pwire, topic, "latest")
    assert not moved["created"]
    assert (moved["before"]["id"], moved["after"]["id"], moved["last"]["id"]) == (ids[0], ids[2], ids[2])
    assert next_message(pwire, topic) == ""
    assert seek(pwire, topic, ids[1])["after"]["id"] == ids[0]
    assert next_message(pwire, topic) == "b"


def test_to_a_time(pwire: Pwire, topic: str) -> None:
    produce(pwire, topic, "a")
    between = time.time() + 0.001
    produce(pwire, topic, "b")
    iso = datetime.fromtimestamp(between, timezone.utc).isoformat()
    for to, first in (
        ("-1h", "a"),
        (f"{between:.3f}", "b"),
        (iso, "b"),
        (iso.replace("+00:00", "Z"), "b"),
        (f"{time.time() + 60:.0f}", ""),
        ("0", "a"),
    ):
        seek(pwire, topic, to)
        assert next_message(pwire, topic) == first, to


def test_into_a_batch(pwire: Pwire, topic: str) -> None:
    ids = produce(pwire, topic, "a", "b", "c", batched=True)
    assert ids[2].endswith("[2]")
    place = ids[0].partition("[")[0]
    of_partition = ids[2].replace("[", ":7[")
    for to, first in (
        (f"{place}[1]", "b"),
        (ids[2], "c"),
        (f"{place}[0]", "a"),
        (of_partition, "c"),
        (place, "a"),
    ):
        seek(pwire, topic, to)
        assert next_message(pwire, topic) == first, to
    run = pwire("seek", topic, "-s", "s", "--to", f"{place}[3]")
    assert run.returncode == 2
    assert "a batch of 3, without index 3" in run.stderr


def test_into_what_is_no_batch_or_is_not_there(pwire: Pwire, topic: str) -> None:
    (place,) = produce(pwire, topic, "a")
    seek(pwire, topic, f"{place}[0]")
    assert next_message(pwire, topic) == "a"
    for to, said in ((f"{place}[1]", "a single message"), ("999999:0[1]", "there is no message 999999:0")):
        run = pwire("seek", topic, "-s", "s", "--to", to)
        assert run.returncode == 2
        assert said in run.stderr


def test_nothing_is_created_unasked(pwire: Pwire, broker: Broker, topic: str) -> None:
    assert pwire("seek", topic, "-s", "s", "--to", "earliest", "--create").returncode == 7
    produce(pwire, topic, "a")
    for arguments in (
        ("seek", topic, "-s", "s", "--to", "earliest"),
        ("unsubscribe", topic, "-s", "s"),
        ("last-id", topic, "-s", "s"),
        ("consumer-stats", topic, "-s", "s"),
    ):
        run = pwire(*arguments)
        assert (run.returncode, run.stdout) == (7, "")
        assert f"SubscriptionNotFound: {topic} has no durable subscription s" in run.stderr
        assert ("--create creates it" in run.stderr) == (arguments[0] == "seek")
    assert subscriptions(broker, topic) == []


def test_nothing_is_consumed(pwire: Pwire, topic: str) -> None:
    produce(pwire, topic, "a")
    seek(pwire, topic, "earliest")
    for arguments in (
        ("seek", topic, "-s", "s", "--to", "earliest"),
        ("last-id", topic, "-s", "s"),
        ("consumer-stats", topic, "-s", "s"),
    ):
        run = pwire(*arguments, "--trace")
        assert " SUBSCRIBE " in run.stderr
        assert " FLOW " not in run.stderr
        assert run.stderr.count(" CLOSE_CONSUMER ") == 1 + (arguments[0] == "seek")


@pytest.mark.parametrize("kind", ["Shared", "Failover", "Key_Shared"])
def test_consumers_get_all_again(pwire: Pwire, topic: str, kind: str) -> None:
    produce(pwire, topic, "a", "b")
    consume = ("consume", topic, "-s", "s", "-t", kind, "-p", "Earliest", "-n", 0)
    with Running(pwire, *consume) as running:
        assert [running.line(), running.line()] == ["a", "b"]
        moved = seek(pwire, topic, "earliest")
        assert not moved["created"]
        assert [running.line(), running.line()] == ["a", "b"]
        seek(pwire, topic, "earliest", "--type", kind)
        assert [running.line(), running.line()] == ["a", "b"]
        wrong = "Shared" if kind == "Failover" else "Failover"
        run = pwire("seek", topic, "-s", "s", "--to", "earliest", "--type", wrong)
        assert run.returncode == 7
        assert "--type must be that of its consumers" in run.stderr


def test_an_exclusive_consumer_is_in_the_way(pwire: Pwire, topic: str) -> None:
    produce(pwire, topic, "a")
    consume = ("consume", topic, "-s", "s", "-t", "Exclusive", "-p", "Earliest", "-n", 0)
    with Running(pwire, *consume) as running:
        running.line()
        for more in ((), ("--type", "exclusive")):
            run = pwire("seek", topic, "-s", "s", "--to", "earliest", *more)
            assert run.returncode == 7
            assert "close its exclusive consumer" in run.stderr
    assert seek(pwire, topic, "earliest", "--type", "exclusive")["after"]["entry"] == -1


def test_every_partition_is_moved(pwire: Pwire, broker: Broker, topic: str) -> None:
    broker.rest("PUT", path(topic) + "/partitions", 2)
    names = [f"{topic}-partition-{index}" for index in range(2)]
    ids = [produce(pwire, name, "a", "b")[-1] for name in names]
    moved = records(pwire("seek", topic, "-s", "s", "--to", "latest", "--create", "-o", "json"))
    assert [(each["topic"], each["after"]["id"]) for each in moved] == list(zip(names, ids, strict=True))
    assert ids[1].endswith(":1:1")  # which is no index in a batch
    run = pwire("seek", topic, "-s", "s", "--to", ids[0])
    assert run.returncode == 2
    assert f"is in one of 2 partitions; name it as TOPIC: {', '.join(names)}" in run.stderr
    assert seek(pwire, names[1], ids[1])["after"]["entry"] == 0
    assert next_message(pwire, topic) == "b"


def test_text(pwire: Pwire, topic: str) -> None:
    ids = produce(pwire, topic, "a", "b")
    ledger = ids[0].partition(":")[0]
    run = pwire("seek", topic, "-s", "s", "--to", "earliest", "--create")
    assert run.stdout == f"{topic}: s to {ledger}:-1, last message {ids[1]}\n"
    run = pwire("seek", topic, "-s", "s", "--to", "latest")
    assert run.stdout == f"{topic}: s from {ledger}:-1 to {ids[1]}, last message {ids[1]}\n"


@pytest.mark.parametrize("to", ["yesterday", "1:", "1700000000000", "9223372036854775808:0"])
def test_no_place_at_all(pwire: Pwire, topic: str, to: str) -> None:
    run = pwire("seek", topic, "-s", "s", "--to", to, url="")
    assert run.returncode == 2
    assert to in run.stderr


def test_topics_that_keep_nothing(pwire: Pwire) -> None:
    run = pwire("last-id", "non-persistent://public/default/t", url="")
    assert run.returncode == 2
    assert "only persistent:// topics" in run.stderr


# -- unsubscribe


def test_a_subscription_is_deleted(pwire: Pwire, broker: Broker, topic: str) -> None:
    produce(pwire, topic, "a")
    seek(pwire, topic, "earliest")
    assert subscriptions(broker, topic) == ["s"]
    assert pwire("unsubscribe", topic, "-s", "s").stdout == f"{topic}: s is deleted\n"
    assert subscriptions(broker, topic) == []


def test_other_consumers_are_closed_by_force_only(pwire: Pwire, broker: Broker, topic: str) -> None:
    produce(pwire, topic, "a")
    consume = ("consume", topic, "-s", "s", "-t", "Shared", "-p", "Earliest", "-n", 0, "--no-reconnect")
    with Running(pwire, *consume) as running:
        running.line()
        run = pwire("unsubscribe", topic, "-s", "s")
        assert run.returncode == 7
        assert "--force closes them" in run.stderr
        assert subscriptions(broker, topic) == ["s"]
        assert records(pwire("unsubscribe", topic, "-s", "s", "--force", "-o", "json")) == [
            {"topic": topic, "subscription": "s", "unsubscribed": True}
        ]
        assert running.finish(None)[0] == 6
    assert subscriptions(broker, topic) == []


def test_what_one_partition_lacks_does_not_keep_the_others(pwire: Pwire, broker: Broker, topic: str) -> None:
    broker.rest("PUT", path(topic) + "/partitions", 3)
    assert pwire("seek", topic, "-s", "s", "--to", "latest", "--create").returncode == 0
    assert pwire("unsubscribe", f"{topic}-partition-1", "-s", "s").returncode == 0
    run = pwire("unsubscribe", topic, "-s", "s", "--type", "failover")
    assert run.returncode == 7
    assert run.stdout.splitlines() == [f"{topic}-partition-{index}: s is deleted" for index in (0, 2)]
    assert f"{topic}-partition-1 has no durable subscription s" in run.stderr


# -- last-id


def test_the_last_id_of_every_partition(pwire: Pwire, broker: Broker, topic: str) -> None:
    broker.rest("PUT", path(topic) + "/partitions", 2)
    ids = produce(pwire, f"{topic}-partition-1", "a", "b", batched=True)
    assert pwire("last-id", topic).stdout.splitlines() == [
        f"{topic}-partition-0 no message",
        f"{topic}-partition-1 {ids[-1]}",
    ]
    empty, full = records(pwire("last-id", topic, "-o", "json"))
    assert (empty["id"], empty["ledger"], empty["entry"], empty["batch_index"]) == (None, -1, -1, None)
    assert (full["id"], full["batch_index"]) == (ids[-1], 1)
    assert subscriptions(broker, f"{topic}-partition-1") == []


@pytest.mark.parametrize("more", [(), ("--type", "key_shared")])
def test_how_far_a_subscription_has_acknowledged(pwire: Pwire, topic: str, more: tuple[str, ...]) -> None:
    ids = produce(pwire, topic, "a", "b")
    seek(pwire, topic, "earliest")
    assert next_message(pwire, topic, "individual") == "a"
    (found,) = records(pwire("last-id", topic, "-s", "s", "-o", "json", *more))
    assert (found["id"], found["subscription"], found["mark_delete"]["id"]) == (ids[1], "s", ids[0])
    shown = pwire("last-id", topic, "-s", "s", *more).stdout
    assert shown == f"{topic} {ids[1]}, s acknowledged up to {ids[0]}\n"


# -- consumer-stats


@pytest.mark.parametrize("kind", ["Shared", "Failover"])
def test_what_the_broker_counts(pwire: Pwire, topic: str, kind: str) -> None:
    produce(pwire, topic, "a", "b")
    seek(pwire, topic, "earliest")
    (found,) = records(pwire("consumer-stats", topic, "-s", "s", "--type", kind, "-o", "json"))
    assert (found["topic"], found["subscription"], found["type"]) == (topic, "s", kind)
    assert (found["msgBacklog"], found["availablePermits"], found["unackedMessages"]) == (2, 0, 0)
    assert found["blockedConsumerOnUnackedMsgs"] is False
    head, *lines = pwire("consumer-stats", topic, "-s", "s", "--type", kind).stdout.splitlines()
    assert head == f"{topic}, s"
    assert "  msgBacklog: 2" in lines
    assert "  blockedConsumerOnUnackedMsgs: false" in lines
