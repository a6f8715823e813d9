"""`pwire consume`: each option shows its effect, on what is printed and on what the broker keeps."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import signal
import subprocess
import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from interop.brokers import Broker, RestError
from interop.test_produce import (
    PATIENCE,
    RECORD,
    Order,
    Running,
    done,
    partitioned,
    path_of,
    payloads,
    reader_gone,
    records,
    refusal,
    said,
    stats_of,
    stored,
    until,
    wheel,
)

from pulsarctl_wire import read_frames
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.settings import Settings, parse_url
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.frame import build_frame
from pulsarctl_wire.wire.PulsarApi_pb2 import CompressionType, MessageMetadata

if TYPE_CHECKING:
    from interop.conftest import Pwire

ALL = ["-p", "Earliest", "-n", 0, "-e"]
"""Everything there is, from the beginning."""


def fill(broker: Broker, topic: str, *texts: str, batch: bool = False, **more: Any) -> None:
    """Produce by the official client: each message alone, or all of them in one batch."""
    with wheel(broker) as client:
        producer = client.create_producer(topic, batching_enabled=batch, batching_max_publish_delay_ms=60_000)
        for text in texts:
            producer.send_async(text.encode(), lambda result, _: None, **more)
        producer.flush()


def subscription(broker: Broker, topic: str, name: str = "s") -> dict[str, Any]:
    """What the broker says of a subscription."""
    found: dict[str, Any] = stats_of(broker, topic)["subscriptions"].get(name, {})
    return found


def unacknowledged(broker: Broker, topic: str, name: str = "s") -> int:
    """Entries that are left to a subscription."""
    return int(subscription(broker, topic, name)["msgBacklog"])


def summary(text: str) -> str:
    """The last line of stderr, without the rate."""
    return re.sub(r", [\d,]+/s", "", text.splitlines()[-1])


def consumers(broker: Broker, topic: str, name: str = "s") -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = subscription(broker, topic, name).get("consumers", [])
    except RestError:  # the topic is not there yet
        return []
    return found


# -- the subscription


def test_one_message_by_default(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "one", "two\nlines", "three")
    assert done(pwire("consume", topic, "-s", "s", "-p", "earliest")) == "one\n"
    assert unacknowledged(broker, topic) == 2
    run = pwire("consume", topic, "-s", "s", "-n", 2)
    assert done(run) == "two\nlines\nthree\n"
    assert summary(run.stderr) == "pwire: 2 messages"
    assert unacknowledged(broker, topic) == 0


@pytest.mark.parametrize("type_", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_types(broker: Broker, topic: str, pwire: Pwire, type_: str) -> None:
    fill(broker, topic, "a", "b", "c", partition_key="k")
    options = ["-s", "s", "-t", type_.lower(), "--consumer-name", "till", "-p", "Earliest", "-n", 0]
    with Running(pwire, "consume", topic, *options) as running:
        assert running.lines(3) == ["a", "b", "c"]
        (consumer,) = consumers(broker, topic)
        assert consumer["consumerName"] == "till"
        assert subscription(broker, topic)["type"] == type_
        assert running.interrupt().code() == 0
    assert unacknowledged(broker, topic) == 0


def test_an_exclusive_subscription_is_busy(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        client.subscribe(topic, "s")
        for type_ in ("Exclusive", "Shared"):
            run = pwire("consume", topic, "-s", "s", "-t", type_)
            assert refusal(run) == ("SUBSCRIBE", "ConsumerBusy")


def test_shared_consumers_share(broker: Broker, topic: str, pwire: Pwire) -> None:
    args = ["consume", topic, "-s", "s", "-t", "Shared", "-n", 0, "-q", 1]
    with Running(pwire, *args) as first, Running(pwire, *args) as second:
        until(lambda: len(consumers(broker, topic)) == 2)
        texts = [str(number) for number in range(20)]
        fill(broker, topic, *texts)
        until(lambda: len(first.stdout + second.stdout) == 20)
        assert sorted(map(int, first.stdout + second.stdout)) == list(range(20))
        assert first.stdout
        assert second.stdout
        assert first.interrupt().code() == second.interrupt().code() == 0


def test_key_shared_consumers_share_by_key(broker: Broker, topic: str, pwire: Pwire) -> None:
    args = ["consume", topic, "-s", "s", "-t", "Key_Shared", "-n", 0, "-f", "%k %s\\n"]
    with Running(pwire, *args) as first, Running(pwire, *args) as second:
        until(lambda: len(consumers(broker, topic)) == 2)
        lines = "".join(
            json.dumps({"payload": str(number), "key": f"k{number % 10}"}) + "\n" for number in range(100)
        )
        done(pwire("produce", topic, "--json", "--batch-by-key", stdin=lines))
        until(lambda: len(first.stdout + second.stdout) == 100)
        keys = [{line.split()[0] for line in each.stdout} for each in (first, second)]
        assert keys[0]
        assert keys[1]
        assert not keys[0] & keys[1]
        for each in (first, second):
            numbers = [int(line.split()[1]) for line in each.stdout]
            for last in range(10):  # in order, key by key
                mine = [number for number in numbers if number % 10 == last]
                assert mine == sorted(mine)


def test_failover_takes_over(broker: Broker, topic: str, pwire: Pwire) -> None:
    args = ["consume", topic, "-s", "s", "-t", "Failover", "-n", 0, "--trace"]
    with Running(pwire, *args, "--priority", 1) as second:
        second.line("ACTIVE_CONSUMER_CHANGE .* is_active=true", "stderr")
        with Running(pwire, *args, "--priority", 0) as first:
            first.line("ACTIVE_CONSUMER_CHANGE .* is_active=true", "stderr")
            fill(broker, topic, "one")
            assert first.line() == "one"
            assert first.interrupt().code() == 0
        second.line("ACTIVE_CONSUMER_CHANGE .* is_active=true", "stderr")
        fill(broker, topic, "two")
        assert second.line() == "two"
        assert second.stdout == ["two"]


def test_lower_priorities_are_served_first(broker: Broker, topic: str, pwire: Pwire) -> None:
    args = ["consume", topic, "-s", "s", "-t", "Shared", "-n", 0]
    with Running(pwire, *args, "--priority", 1) as second, Running(pwire, *args, "--priority", 0) as first:
        until(lambda: len(consumers(broker, topic)) == 2)
        fill(broker, topic, *"abcdefgh")
        assert first.lines(8) == [*"abcdefgh"]
        assert second.stdout == []


@pytest.mark.parametrize("mode", ["Durable", "NonDurable"])
@pytest.mark.parametrize(("position", "first"), [("Earliest", "old"), ("Latest", "new")])
def test_modes_and_positions(
    broker: Broker, topic: str, pwire: Pwire, mode: str, position: str, first: str
) -> None:
    fill(broker, topic, "old")
    with Running(pwire, "consume", topic, "-s", "s", "-m", mode, "-p", position) as running:
        if position == "Latest":
            until(lambda: consumers(broker, topic))
            fill(broker, topic, "new")
        assert running.line() == first
        assert running.code() == 0
    assert bool(subscription(broker, topic)) is (mode == "Durable")


def test_a_replicated_subscription(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("consume", topic, "-s", "s", "-n", 0, "-e", "-rs"))
    done(pwire("consume", topic, "-s", "t", "-n", 0, "-e"))
    assert subscription(broker, topic)["replicated"] is True
    assert subscription(broker, topic, "t")["replicated"] is False


def test_a_compacted_topic(broker: Broker, topic: str, pwire: Pwire) -> None:
    lines = "".join(json.dumps({"payload": text, "key": text[0]}) + "\n" for text in ("a1", "b1", "a2", "c1"))
    done(pwire("produce", topic, "--json", "-db", stdin=lines))
    broker.rest("PUT", f"{path_of(topic)}/compaction")
    until(lambda: broker.rest("GET", f"{path_of(topic)}/compaction")["status"] == "SUCCESS")
    assert done(pwire("consume", topic, "-s", "s", *ALL)) == "a1\nb1\na2\nc1\n"
    assert done(pwire("consume", topic, "-s", "t", *ALL, "--read-compacted")) == "b1\na2\nc1\n"


def test_no_topic_is_created(broker: Broker, topic: str, pwire: Pwire) -> None:
    _, code = refusal(pwire("consume", topic, "-s", "s", "--no-create", "-n", 0, "-e"))
    assert code == "TopicNotFound"
    with pytest.raises(RestError, match="404"):
        stats_of(broker, topic)
    done(pwire("consume", topic, "-s", "s", "-n", 0, "-e"))
    assert subscription(broker, topic)


# -- several topics


def test_several_topics(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a", "b")
    fill(broker, topic + "-2", "c")
    printed = done(pwire("consume", topic, topic + "-2", "-s", "s", *ALL, "-f", "%t %s\\n"))
    assert sorted(printed.splitlines()) == [f"{topic} a", f"{topic} b", f"{topic}-2 c"]
    assert unacknowledged(broker, topic) == unacknowledged(broker, topic + "-2") == 0


def test_all_partitions(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitions = partitioned(broker, topic, 3)
    for number, partition in enumerate(partitions):
        fill(broker, partition, f"of {number}")
    found = records(done(pwire("consume", topic, "-s", "s", *ALL, "-o", "json")))
    assert {(each["topic"], each["partition"], each["payload"]) for each in found} == {
        (partition, number, f"of {number}") for number, partition in enumerate(partitions)
    }
    for each in found:
        assert re.fullmatch(rf"\d+:0:{each['partition']}", each["id"])
    assert [unacknowledged(broker, partition) for partition in partitions] == [0, 0, 0]


def test_topics_by_pattern(broker: Broker, pwire: Pwire) -> None:
    base = f"public/default/{secrets.token_hex(3)}"
    name = f"persistent://{base}"
    fill(broker, f"{name}-a", "in a")
    fill(broker, f"{name}-other", "not this")
    partitioned(broker, f"{name}-p", 2)
    args = ["-s", "s", "-p", "Earliest", "-n", 0, "-f", "%t %s\\n"]
    with Running(pwire, "consume", f"{base}-.", "--regex", *args) as running:
        assert running.line() == f"{name}-a in a"
        fill(broker, f"{name}-p-partition-1", "in p")
        assert running.line() == f"{name}-p-partition-1 in p"
        fill(broker, f"{name}-b", "in b, which is new")
        assert running.line() == f"{name}-b in b, which is new"
        assert running.interrupt().code() == 0
        assert len(running.stdout) == 3


def test_a_new_topic_is_read_whole_whatever_the_position(broker: Broker, pwire: Pwire) -> None:
    base = f"public/default/{secrets.token_hex(3)}"
    fill(broker, f"{base}-a", "old")
    with Running(pwire, "consume", f"{base}-.*", "--regex", "-s", "s", "-n", 2) as running:
        until(lambda: consumers(broker, f"persistent://{base}-a"))
        fill(broker, f"{base}-b", "new", "newer")
        assert running.lines(2) == ["new", "newer"]
        assert running.code() == 0


def test_a_pattern_too_long_for_brokers(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "found")
    pattern = topic.removeprefix("persistent://")[:-1] + "." + "|x" * 50
    assert done(pwire("consume", pattern, "--regex", "-s", "s", *ALL)) == "found\n"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--ack", "cumulative", "-t", "Shared"], "--ack cumulative needs -t Exclusive or Failover"),
        (["--retry"], "dead letters and --retry need -t Shared or Key_Shared"),
        (["--max-redeliver", "3", "-t", "Failover"], "dead letters and --retry need"),
        (["--regex", "another"], "--regex takes one TOPIC"),
        (["--filter", "size >"], "--filter"),
        (["--filter", "colour == 1"], "colour"),
        (["--nack", "nonsense == 1"], "nonsense"),
        (["-f", "%q"], "unknown token %q"),
        (["--schema", "nonsense"], "unknown schema type"),
        (["--dead-letter-topic", "a/b", "-t", "Shared"], "is not a valid topic"),
    ],
)
def test_wrong_command_lines(topic: str, pwire: Pwire, given: list[str], why: str) -> None:
    assert why in said(pwire("consume", topic, "-s", "s", *given), 2)


def test_topics_that_are_not_persistent(broker: Broker, topic: str, pwire: Pwire) -> None:
    topic = "non-" + topic
    with Running(pwire, "consume", topic, "-s", "s", "-n", 5, "-f", "%s %b\\n") as running:
        until(lambda: consumers(broker, topic))
        done(pwire("produce", topic, "-m", "a", "-m", "b", "-m", "c", "-db"))
        done(pwire("produce", topic, "-m", "d", "-m", "e", "-b", 10_000))
        assert running.lines(5) == ["a -1", "b -1", "c -1", "d 0", "e 1"]
        assert running.code() == 0


def test_the_end_of_a_topic_that_is_not_persistent(topic: str, pwire: Pwire) -> None:
    assert done(pwire("consume", f"non-{topic}", "-s", "s", "-n", 0, "-e")) == ""


# -- permits


@pytest.mark.parametrize(("size", "flows"), [(10, [10, 5, 5, 5]), (5, [5, 3, 3, 3, 3, 3]), (1, [1] * 18)])
def test_permits_are_given_back_by_the_half(
    broker: Broker, topic: str, pwire: Pwire, size: int, flows: list[int]
) -> None:
    fill(broker, topic, *map(str, range(17)))
    run = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 17, "-q", size, "--trace")
    assert done(run).splitlines() == [str(number) for number in range(17)]
    assert [int(each) for each in re.findall(r" FLOW .* permits=(\d+)", run.stderr)] == flows


def test_permits_of_batches(broker: Broker, topic: str, pwire: Pwire) -> None:
    for _ in range(3):
        fill(broker, topic, *"abcd", batch=True)
    run = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 12, "-q", 6, "--trace")
    assert done(run) == "a\nb\nc\nd\n" * 3
    assert [int(each) for each in re.findall(r" FLOW .* permits=(\d+)", run.stderr)] == [6, 4, 4, 4]


def test_a_rate(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, *"abcdefghijkl", batch=True)
    with Running(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-n", 12, "-r", 20) as running:
        running.line("a")
        began = time.monotonic()
        assert running.code() == 0
        assert time.monotonic() - began > 0.4
        assert running.stdout == [*"abcdefghijkl"]


# -- acknowledging


@pytest.mark.parametrize(
    ("how", "left", "kinds"),
    [("individual", 0, ["Individual"]), ("cumulative", 0, ["Cumulative"]), ("none", 3, [])],
)
def test_ways_to_acknowledge(
    broker: Broker, topic: str, pwire: Pwire, tmp_path: Path, how: str, left: int, kinds: list[str]
) -> None:
    fill(broker, topic, "a", "b", "c")
    run = pwire("consume", topic, "-s", "s", *ALL, "--ack", how, "--record", tmp_path / "capture")
    assert done(run) == "a\nb\nc\n"
    assert unacknowledged(broker, topic) == left
    acks = [frame.body for frame in read_frames(tmp_path / "capture") if frame.command == "ACK"]
    assert sorted({each.AckType.Name(each.ack_type) for each in acks}) == kinds
    again = done(pwire("consume", topic, "-s", "s", "-n", 0, "-e"))
    assert again == ("" if left == 0 else "a\nb\nc\n")


@pytest.mark.parametrize("how", ["individual", "cumulative"])
@pytest.mark.parametrize(("options", "again"), [(["--batch-index-ack"], "cde"), ([], "abcde")])
def test_a_batch_that_is_cut(
    broker: Broker, topic: str, pwire: Pwire, how: str, options: list[str], again: str
) -> None:
    fill(broker, topic, *"abcde", batch=True)
    cut = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 2, "--ack", how, *options)
    assert done(cut) == "a\nb\n"
    assert done(pwire("consume", topic, "-s", "s", "-n", 0, "-e")) == "".join(f"{each}\n" for each in again)
    assert unacknowledged(broker, topic) == 0


def test_nothing_is_acknowledged_that_was_not_printed(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, *"abcde")
    assert done(pwire("consume", topic, "-s", "s", "-p", "Earliest", "-n", 2)) == "a\nb\n"
    assert done(pwire("consume", topic, "-s", "s", "-n", 0, "-e")) == "c\nd\ne\n"


# -- refusing


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_refused_messages_come_again(broker: Broker, topic: str, pwire: Pwire, type_: str) -> None:
    lines = "".join(json.dumps({"payload": text, "key": text}) + "\n" for text in ("good", "bad", "fine"))
    done(pwire("produce", topic, "--json", "-db", stdin=lines))
    rule = ["--nack", 'key == "bad" and redelivery_count < 2', "--nack-delay", "0.3", "--idle", 2]
    started = time.monotonic()
    run = pwire("consume", topic, "-s", "s", "-t", type_, "-p", "Earliest", "-n", 0, *rule, "-f", "%s %r\\n")
    assert done(run).splitlines() == ["good 0", "bad 0", "fine 0", "bad 1", "bad 2"]
    assert summary(run.stderr) == "pwire: 5 messages, 2 refused"
    assert time.monotonic() - started > 0.6
    assert unacknowledged(broker, topic) == 0


def test_refused_of_an_exclusive_subscription(broker: Broker, topic: str, pwire: Pwire) -> None:
    """The broker gives such a subscription all again that is not acknowledged, and counts nothing."""
    fill(broker, topic, "good", "bad", "fine")
    options = ["-p", "Earliest", "-n", 4, "--nack", 'payload == "bad"', "--nack-delay", "0.3"]
    run = pwire("consume", topic, "-s", "s", *options)
    assert done(run).splitlines() == ["good", "bad", "fine", "bad"]
    assert unacknowledged(broker, topic) == 1


def test_one_message_of_a_batch_is_refused(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, *"abc", batch=True)
    options = [
        "-t",
        "Shared",
        "-p",
        "Earliest",
        "-n",
        0,
        "--nack-delay",
        "0.3",
        "--idle",
        2,
        "--batch-index-ack",
    ]
    rule = ["--nack", 'payload == "b" and redelivery_count < 1']
    assert done(pwire("consume", topic, "-s", "s", *options, *rule)).splitlines() == ["a", "b", "c", "b"]
    assert unacknowledged(broker, topic) == 0


def test_not_acknowledged_in_time(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a", "b")
    options = ["-t", "Shared", "-p", "Earliest", "-n", 4, "--ack", "none", "--ack-timeout", 0.5]
    started = time.monotonic()
    printed = done(pwire("consume", topic, "-s", "s", *options, "-f", "%s %r\\n"))
    assert sorted(printed.splitlines()) == ["a 0", "a 1", "b 0", "b 1"]
    assert time.monotonic() - started > 0.5
    assert unacknowledged(broker, topic) == 2


def test_dead_letters(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        producer = client.create_producer(topic)
        told = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 5, "properties": {"a": "1"}}
        origin = producer.send(b"bad", **told)
        producer.send(b"good")
    options = ["-t", "Shared", "-p", "Earliest", "-n", 0, "--nack", 'payload == "bad"', "--nack-delay", 0.1]
    more = ["--max-redeliver", 2, "--idle", 2, "-f", "%s %r\\n"]
    run = pwire("consume", topic, "-s", "s", *options, *more)
    assert done(run).splitlines() == ["bad 0", "good 0", "bad 1", "bad 2"]
    assert summary(run.stderr) == "pwire: 4 messages, 3 refused, 1 to the dead letter topic"
    assert unacknowledged(broker, topic) == 0
    (dead,) = stored(broker, f"{topic}-s-DLQ")
    assert (dead.data(), dead.partition_key(), dead.ordering_key()) == (b"bad", "k", "o")
    assert dead.event_timestamp() == 5
    place = f"{origin.ledger_id()}:{origin.entry_id()}:-1"
    assert dead.properties() == {
        "a": "1",
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": place,
        "ORIGIN_MESSAGE_IDY_TIME": place,
    }


@pytest.mark.parametrize("named", [False, True])
def test_retries(broker: Broker, topic: str, pwire: Pwire, named: bool) -> None:
    retry, dead = (f"{topic}-later", f"{topic}-dead") if named else (f"{topic}-s-RETRY", f"{topic}-s-DLQ")
    names = ["--retry-topic", retry, "--dead-letter-topic", dead] if named else []
    fill(broker, topic, "bad", "good", partition_key="k", properties={"a": "1"})
    options = ["-t", "Shared", "-p", "Earliest", "-n", 0, "--nack", 'payload == "bad"', "--nack-delay", 0.1]
    more = ["--retry", "--max-redeliver", 2, "--idle", 3, "-f", "%t %s\\n", *names]
    run = pwire("consume", topic, "-s", "s", *options, *more)
    assert done(run).splitlines() == [f"{topic} bad", f"{topic} good", f"{retry} bad", f"{retry} bad"]
    assert summary(run.stderr) == (
        "pwire: 4 messages, 3 refused, 2 to the retry topic, 1 to the dead letter topic"
    )
    (last,) = stored(broker, dead)
    again = stored(broker, retry)
    for message in (*again, last):
        assert (message.data(), message.partition_key()) == (b"bad", "k")
        properties = message.properties()
        assert {name: properties[name] for name in ("a", "REAL_TOPIC")} == {"a": "1", "REAL_TOPIC": topic}
    assert [message.properties()["RECONSUMETIMES"] for message in again] == ["1", "2"]
    assert [message.properties()["DELAY_TIME"] for message in again] == ["100", "100"]
    assert unacknowledged(broker, topic) == unacknowledged(broker, retry) == 0


# -- when it ends


def test_ends(broker: Broker, topic: str, pwire: Pwire) -> None:
    assert done(pwire("consume", topic, "-s", "empty", "-n", 0, "-e")) == ""
    fill(broker, topic, "a", "b")
    fill(broker, topic, "c", "d", batch=True)
    assert done(pwire("consume", topic, "-s", "latest", "-n", 0, "-e")) == ""
    assert done(pwire("consume", topic, "-s", "s", *ALL)) == "a\nb\nc\nd\n"
    assert done(pwire("consume", topic, "-s", "s", "-n", 0, "-e")) == ""  # nothing is left
    started = time.monotonic()
    idle = pwire("consume", topic, "-s", "t", "-p", "Earliest", "-n", 0, "--idle", 1)
    assert done(idle) == "a\nb\nc\nd\n"
    assert time.monotonic() - started > 1
    assert done(pwire("consume", topic, "-s", "u", "-p", "Earliest", "-n", 3, "-e")) == "a\nb\nc\n"


def test_the_end_of_a_subscription_whose_last_message_is_acknowledged(
    broker: Broker, topic: str, pwire: Pwire
) -> None:
    fill(broker, topic, "bad", "good")
    args = ["consume", topic, "-s", "s", "-t", "Shared"]
    done(pwire(*args, "-p", "Earliest", "-n", 2, "--nack", 'payload == "bad"'))
    started = time.monotonic()
    assert done(pwire(*args, "-n", 0, "-e", "--idle", 5)) == "bad\n"
    assert time.monotonic() - started < 5


def test_the_end_of_a_topic_after_an_aborted_transaction(topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "-m", "kept"))
    done(pwire("txn", "--produce", topic, "-m", "given up", "--abort"))
    assert done(pwire("consume", topic, "-s", "s", *ALL)) == "kept\n"
    assert done(pwire("read", topic, "-n", 0, "-e")) == "kept\n"


def test_the_end_of_a_topic_with_a_message_for_later(topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "-m", "now"))
    done(pwire("produce", topic, "-m", "later", "--deliver-after", 3600))
    started = time.monotonic()
    run = pwire("consume", topic, "-s", "s", "-t", "Shared", *ALL, "--idle", 5)
    assert done(run) == "now\n"
    assert time.monotonic() - started < 5


def test_the_end_of_a_terminated_topic(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a")
    with Running(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-n", 0) as running:
        assert running.line() == "a"
        broker.rest("POST", f"{path_of(topic)}/terminate")
        assert running.code() == 0
    assert unacknowledged(broker, topic) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path, number: int) -> None:
    fill(broker, topic, "a", "b")
    args = ["consume", topic, "-s", "s", "-p", "Earliest", "-n", 0, "--record", tmp_path / "capture"]
    with Running(pwire, *args) as running:
        assert running.lines(2) == ["a", "b"]
        assert running.interrupt(number).code() == 0
        assert summary("\n".join(running.stderr)) == "pwire: 2 messages"
    assert unacknowledged(broker, topic) == 0
    commands = [frame.command for frame in read_frames(tmp_path / "capture")]
    assert commands[-4:] == ["ACK", "ACK_RESPONSE", "CLOSE_CONSUMER", "SUCCESS"]


def test_a_pipe_that_nobody_reads(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a")
    with reader_gone(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-n", 0, "--quiet"):
        until(lambda: unacknowledged(broker, topic) == 0)
        fill(broker, topic, "b")
    assert done(pwire("consume", topic, "-s", "s", "-n", 0, "-e")) == "b\n"  # it was not printed


# -- what is shown


def test_outputs(broker: Broker, topic: str, pwire: Pwire) -> None:
    told = {"partition_key": "k", "properties": {"a": "1"}, "event_timestamp": 7, "ordering_key": "o"}
    fill(broker, topic, "text", batch=False, **told)
    done(pwire("produce", topic, "--hex", "-m", "00ff", "-m", "1b5b", "-b", 10_000))
    (text, *_) = stored(broker, topic)
    place = f"{text.message_id().ledger_id()}:{text.message_id().entry_id()}"

    def show(*options: object) -> str:
        name = secrets.token_hex(3)
        run = pwire("consume", topic, "-s", name, *ALL, *options)
        assert summary(run.stderr) == "pwire: 3 messages"
        assert unacknowledged(broker, topic, name) == 0
        return done(run)

    assert show("--hex") == "74657874\n00ff\n1b5b\n"
    assert show("-o", "none") == show("--hide-content") == ""
    lines = show("-o", "line").splitlines()
    bare = topic.removeprefix("persistent://")
    assert re.fullmatch(rf"\d\d:\d\d:\d\d\.\d+ {bare} {place} key=k a=1 event_time=7 text", lines[0])
    assert show("-o", "line", "--hex").splitlines()[1].endswith("[0] 0x00ff")
    first, second, third = records(show("-o", "json"))
    assert first == {
        **{"topic": topic, "subscription": first["subscription"], "id": place, "partition": None},
        **{"batch_index": None, "key": "k", "properties": {"a": "1"}, "event_time": 7, "ordering_key": "o"},
        **{"publish_time": text.publish_timestamp(), "producer": text.producer_name(), "sequence_id": 0},
        **{"redelivery_count": 0, "size": 4, "view": "text", "payload": "text"},
    }
    assert (second["batch_index"], third["batch_index"]) == (0, 1)
    assert (second["view"], second["payload_base64"]) == ("hex", "AP8=")
    quiet = pwire("consume", topic, "-s", "quiet", *ALL, "--quiet", "--hex")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_content_is_hidden_whatever_the_format(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "secret")
    assert done(pwire("consume", topic, "-s", "s", *ALL, "--hide-content", "-f", "%s")) == ""


def test_payloads_pass_as_they_are(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    payload = bytes(range(256)) + "ünï\n".encode()
    (tmp_path / "file").write_bytes(payload)
    done(pwire("produce", topic, "-f", tmp_path / "file"))
    with Running(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-o", "json") as running:
        (found,) = records(running.line())
    assert found["payload_base64"] == b64encode(payload).decode()
    command = pwire.command("consume", topic, "-s", "t", "-p", "Earliest", "--quiet")
    shown = subprocess.run(command, capture_output=True, check=True, timeout=60, env=pwire.environment())
    assert shown.stdout == payload + b"\n"


def test_every_token_of_a_format(broker: Broker, topic: str, pwire: Pwire) -> None:
    (partition,) = partitioned(broker, topic, 1)
    fill(broker, partition, "hi", "ho", batch=True, partition_key="ké", properties={"a": "1", "b": "2"})
    first, second = stored(broker, partition)
    tokens = r"%s|%S|%R|%x|%k|%K|%h|%T|%t|%p|%o|%i|%b|%r|%%|\x41\\\t.\n"
    printed = done(pwire("consume", topic, "-s", "s", *ALL, "-f", tokens))
    for line, message, index in zip(printed.splitlines(), (first, second), (0, 1), strict=True):
        at = message.message_id()
        entry = f"{at.ledger_id()}:{at.entry_id()}:0[{index}]"
        text = message.data().decode()
        assert line.split("|") == [
            *(text, "2", "\0\0\0\2", text.encode().hex(), "ké", "3", "a=1,b=2"),
            *(str(message.publish_timestamp()), partition, "0", str(at.entry_id()), entry, str(index), "0"),
            *("%", "A\\\t."),
        ]


def test_long_names(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a", "b")
    where = ["--subscription-name", "s", "--subscription-type", "Failover", "--replicated"]
    more = ["--subscription-mode", "Durable", "--subscription-position", "Earliest", "--queue-size", 5]
    end = ["--num-messages", 0, "--exit-at-end", "--rate", 1000, "--schema-type", "bytes"]
    assert done(pwire("consume", topic, *where, *more, *end, "--format", "%s;")) == "a;b;"
    assert done(pwire("consume", topic, *where, *more, *end, "--output", "none")) == ""
    assert subscription(broker, topic)["type"] == "Failover"


def test_a_format_of_nothing_much(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "x")
    printed = done(pwire("consume", topic, "-s", "s", "-p", "Earliest", "-f", r"%k/%K/%h/%p/%b\r\0"))
    assert printed in ("/0//-1/-1\r\0", "/0//-1/-1\n\0")  # a text pipe makes its own of \r


def test_filters(broker: Broker, topic: str, pwire: Pwire) -> None:
    texts = ["a", "bb", "ccc", "dd"]
    lines = [json.dumps({"payload": text, "properties": {"n": str(len(text))}}) for text in texts]
    done(pwire("produce", topic, "--json", stdin="\n".join(lines)))
    some = ["--filter", 'properties.n == "2" and size > 1']
    run = pwire("consume", topic, "-s", "s", *ALL, *some)
    assert done(run) == "bb\ndd\n"
    assert summary(run.stderr) == "pwire: 2 messages, 2 not shown"
    assert unacknowledged(broker, topic) == 0
    count = pwire("consume", topic, "-s", "t", "-p", "Earliest", "-n", 2, *some)
    assert done(count) == "bb\ndd\n"


@pytest.mark.parametrize("made", ["AvroSchema", "JsonSchema"])
def test_payloads_by_their_own_schemas(broker: Broker, topic: str, pwire: Pwire, made: str) -> None:
    schema = getattr(pulsar.schema, made)(Order)
    with wheel(broker) as client:
        producer = client.create_producer(topic, schema=schema)
        producer.send(Order(what="tea", count=2))
        producer.send(Order(what="milk", count=None))
    orders = [{"what": "tea", "count": 2}, {"what": "milk", "count": None}]
    printed = done(pwire("consume", topic, "-s", "s", *ALL))
    assert [json.loads(line) for line in printed.splitlines()] == orders
    found = records(done(pwire("consume", topic, "-s", "t", *ALL, "-o", "json")))
    assert [each["payload"] for each in found] == orders
    assert {(each["view"], each["schema_version"]) for each in found} == {(made[:4].lower(), 0)}
    if made == "AvroSchema":
        run = pwire("consume", topic, "-s", "u", *ALL, "--schema", "bytes", "-o", "json")
        assert {each["view"] for each in records(done(run))} <= {"text", "hex"}


def test_payloads_by_a_schema_of_ours(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "--hex", "-m", "000000000000002a"))
    for name, printed in (("int64", "42\n"), ("timestamp", '"1970-01-01T00:00:00.042Z"\n')):
        assert done(pwire("consume", topic, "-s", name, "-p", "Earliest", "-st", name)) in (
            printed,
            printed.replace('"', ""),
        )


def test_a_topic_is_copied(broker: Broker, topic: str, pwire: Pwire) -> None:
    given = [
        {"payload": "text", "key": "k", "properties": {"a": "1", "b": "ü"}, "event_time": 1_500_000_000_000},
        {"payload_base64": "AP8=", "key_base64": "/wA=", "ordering_key": "o"},
        {"payload": '{"looks": "like JSON"}'},
        {"payload": None, "key": "gone"},
        {"payload": ""},
    ]
    done(pwire("produce", topic, "--json", stdin="\n".join(map(json.dumps, given))))
    copy = f"{topic}-copy"
    lines = done(pwire("consume", topic, "-s", "s", *ALL, "-o", "json"))
    done(pwire("produce", copy, "--json", stdin=lines))

    def facts(name: str) -> list[object]:
        return [
            (
                m.data(),
                m.partition_key(),
                m.ordering_key(),
                m.properties(),
                m.event_timestamp(),
                m.has_null_value(),
            )
            for m in stored(broker, name)
        ]

    assert len(facts(topic)) == 5
    assert facts(copy) == facts(topic)
    again = records(done(pwire("consume", copy, "-s", "s", *ALL, "-o", "json")))
    own = ("payload", "payload_base64", "key", "key_base64", "ordering_key", "properties", "event_time")
    assert [{name: each.get(name) for name in own} for each in again] == [
        {name: each.get(name) for name in own} for each in records(lines)
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("avro:" + json.dumps(RECORD), '{"what": "tea", "count": 1}'),
        pytest.param(*("keyvalue:string,int32", '{"key": "k", "value": 1}')),
    ],
)
def test_a_topic_with_a_schema_is_copied(
    broker: Broker, topic: str, pwire: Pwire, kind: str, text: str
) -> None:
    done(pwire("produce", topic, "--schema", kind, "-m", text))
    line = done(pwire("consume", topic, "-s", "s", "-p", "Earliest", "-o", "json"))
    done(pwire("produce", topic, "--json", "--schema", "auto", stdin=line))
    first, second = payloads(broker, topic)
    assert first == second


def test_chunks(broker: Broker, topic: str, pwire: Pwire) -> None:
    with wheel(broker) as client:
        producer = client.create_producer(topic, chunking_enabled=True)
        payload = "0123456789" * 600_000
        producer.send(payload.encode(), partition_key="k")
    run = pwire("consume", topic, "-s", "s", "-p", "Earliest", "-f", "%i %k %S %s")
    place, key, size, rest = done(run).split(" ")
    assert re.fullmatch(r"(\d+):0…\1:1", place)
    assert (key, size, rest) == ("k", "6000000", payload)
    assert unacknowledged(broker, topic) == 0


# -- what is corrupt


async def send_corrupt(url: str, topic: str, before: bytes, *after: bytes) -> None:
    """Among good messages one whose checksum is right, but which is no LZ4."""
    async with Client(Settings(parse_url(url))) as client:
        link = await client.open_link(await client.lookup(topic))
        created = await link.request(build_command("PRODUCER", topic=topic, producer_id=1))
        for number, payload in enumerate([before, b"\xff" * 20, *after]):
            metadata = MessageMetadata(
                producer_name=created.body.producer_name, sequence_id=number, publish_time=1
            )
            if payload[0] == 0xFF:
                metadata.compression, metadata.uncompressed_size = CompressionType.LZ4, 500
            link.send(
                build_frame(build_command("SEND", producer_id=1, sequence_id=number), metadata, payload)
            )
        await link.request(build_command("CLOSE_PRODUCER", producer_id=1))


def test_a_corrupt_message(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(send_corrupt(broker.url, topic, b"before", b"after"), PATIENCE))
    until(lambda: stats_of(broker, topic)["msgInCounter"] == 3)
    run = pwire("consume", topic, "-s", "s", *ALL, "--record", tmp_path / "capture")
    assert done(run) == "before\nafter\n"
    told, counted = run.stderr.splitlines()
    assert re.match(
        rf"pwire: {topic} \d+:1: corrupt, acknowledged with validation_error DecompressionError ", told
    )
    assert summary(counted) == "pwire: 2 messages, 1 entries corrupt"
    acks = [frame.body for frame in read_frames(tmp_path / "capture") if frame.command == "ACK"]
    (bad,) = [each for each in acks if each.HasField("validation_error")]
    assert bad.ValidationError.Name(bad.validation_error) == "DecompressionError"
    assert [each.entryId for each in bad.message_id] == [1]
    assert unacknowledged(broker, topic) == 0


def test_a_corrupt_message_may_be_the_last(broker: Broker, topic: str, pwire: Pwire) -> None:
    asyncio.run(asyncio.wait_for(send_corrupt(broker.url, topic, b"before"), PATIENCE))
    until(lambda: stats_of(broker, topic)["msgInCounter"] == 2)
    started = time.monotonic()
    run = pwire("consume", topic, "-s", "s", *ALL, "--idle", 5)
    assert done(run) == "before\n"
    assert unacknowledged(broker, topic) == 0
    assert time.monotonic() - started < 5


# -- what the broker does meanwhile


def test_an_unloaded_topic_is_consumed_on(broker: Broker, topic: str, pwire: Pwire) -> None:
    broker.rest("PUT", path_of(topic))
    broker.rest("PUT", f"{path_of(topic)}/subscription/keeper")  # else what is consumed may be deleted
    with Running(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-n", 0) as consuming:
        with Running(pwire, "produce", topic, "-m", "-", "-o", "id") as producing:
            for number in range(3):
                producing.write(f"{number}\n")
                consuming.line(f"^{number}$")
                until(lambda: unacknowledged(broker, topic) == 0)
                broker.rest("PUT", f"{path_of(topic)}/unload")
            producing.close_stdin()
            assert producing.code() == 0
        consuming.line("opening it again", "stderr")
        assert consuming.interrupt().code() == 0
        # one whose acknowledgement the broker had not stored when it unloaded comes again
        assert list(dict.fromkeys(consuming.stdout)) == ["0", "1", "2"]
    assert payloads(broker, topic) == [b"0", b"1", b"2"]
    assert unacknowledged(broker, topic) == 0


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_nothing_is_opened_again(broker: Broker, topic: str, pwire: Pwire, verb: str) -> None:
    own = ["-m", "-"] if verb == "produce" else ["-s", "s", "-n", 0]
    with Running(pwire, verb, topic, *own, "--no-reconnect") as running:
        until(lambda: _clients(broker, topic))
        broker.rest("PUT", f"{path_of(topic)}/unload")
        running.write("x\n" if verb == "produce" else "")
        running.close_stdin()
        running.line("closed the (producer|consumer)", "stderr")
        assert running.code() == 6


def _clients(broker: Broker, topic: str) -> int:
    try:
        stats = stats_of(broker, topic)
    except RestError:
        return 0
    return len(stats["publishers"]) + sum(len(each["consumers"]) for each in stats["subscriptions"].values())


def test_a_subscription_that_is_sought_back(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "a", "b")
    with Running(pwire, "consume", topic, "-s", "s", "-p", "Earliest", "-n", 0) as running:
        assert running.lines(2) == ["a", "b"]
        until(lambda: unacknowledged(broker, topic) == 0)
        broker.rest("POST", f"{path_of(topic)}/subscription/s/resetcursor/1")
        assert running.lines(2) == ["a", "b"]
        assert running.interrupt().code() == 0


def test_pings(broker: Broker, topic: str, pwire: Pwire) -> None:
    with Running(pwire, "consume", topic, "-s", "s", "-n", 0, "--keep-alive", 0.2, "--trace") as running:
        for command in ("← SUCCESS", "→ PING", "← PONG", "→ PING", "← PONG"):
            running.line(command, "stderr")
        assert running.interrupt().code() == 0
