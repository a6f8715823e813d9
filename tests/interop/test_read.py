"""`pwire read`: from everywhere, and without a trace on the broker."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from interop.brokers import Broker, RestError
from interop.test_consume import fill
from interop.test_produce import (
    Running,
    done,
    partitioned,
    path_of,
    records,
    refusal,
    said,
    stats_of,
    stored,
    until,
)

if TYPE_CHECKING:
    from interop.conftest import Pwire

ALL = ["-n", 0, "-e"]


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    """A topic with three messages, a batch of four, and one more."""
    fill(broker, topic, "a", "b", "c")
    fill(broker, topic, *"defg", batch=True)
    fill(broker, topic, "h")
    return topic


def ids(broker: Broker, topic: str) -> dict[str, str]:
    """The id of each message as it is printed, by its payload."""
    found = {}
    for message in stored(broker, topic):
        at = message.message_id()
        index = f"[{at.batch_index()}]" if at.batch_index() >= 0 else ""
        found[message.data().decode()] = f"{at.ledger_id()}:{at.entry_id()}{index}"
    return found


def test_from_everywhere(broker: Broker, filled: str, pwire: Pwire) -> None:
    at = ids(broker, filled)
    entry = at["e"].partition("[")[0]

    def read(*options: object) -> str:
        return done(pwire("read", filled, *ALL, *options)).replace("\n", "")

    assert read() == read("--from", "earliest") == read("-m", "EARLIEST") == "abcdefgh"
    assert read("--from", at["b"]) == "bcdefgh"
    assert read("--from", at["b"], "--after") == "cdefgh"
    assert read("--from", at["f"]) == "fgh"
    assert read("--start-message-id", at["f"], "--after") == "gh"
    assert read("--from", at["g"], "--after") == "h"
    assert read("--from", entry) == "defgh"
    assert read("--from", entry, "--after") == "h"
    assert done(pwire("read", filled, "--from", at["d"])) == "d\n"  # one by default
    assert stats_of(broker, filled)["subscriptions"] == {}


def test_the_last_messages(broker: Broker, filled: str, pwire: Pwire) -> None:
    def last(count: int, *options: object) -> str:
        return done(pwire("read", filled, "--from", f"-{count}", *options)).replace("\n", "")

    assert [last(count) for count in (1, 2, 5, 6)] == ["h", "gh", "defgh", "cdefgh"]
    assert last(8) == last(100) == "abcdefgh"
    assert last(5, "-n", 2) == "de"
    earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    broker.rest("PUT", f"{path_of(filled)}/subscription/keeper", earliest)  # else ledgers may be deleted
    for text in ("i", "j"):  # each in a ledger of its own
        broker.rest("PUT", f"{path_of(filled)}/unload")
        fill(broker, filled, text)
    assert [last(count) for count in (1, 2, 3, 4, 5)] == ["j", "ij", "hij", "ghij", "fghij"]
    assert last(100) == "abcdefghij"
    assert stats_of(broker, filled)["subscriptions"].keys() == {"keeper"}


def test_the_last_messages_of_partitions(broker: Broker, topic: str, pwire: Pwire) -> None:
    first, second, _ = partitioned(broker, topic, 3)
    fill(broker, first, "a", "b", "c")
    fill(broker, second, *"defg", batch=True)
    lines = done(pwire("read", topic, "--from", "-2")).splitlines()
    assert sorted(lines) == ["b", "c", "f", "g"]


def test_the_last_messages_of_nothing(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitioned(broker, topic, 1)
    assert done(pwire("read", topic, "--from", "-2")) == ""
    assert "keeps no messages" in said(pwire("read", topic.replace("p", "non-p", 1), "--from", "-2"), 2)


@pytest.mark.parametrize("where", ["latest", "last", "later", "within a batch"])
def test_the_end_is_where_it_begins(broker: Broker, topic: str, pwire: Pwire, where: str) -> None:
    fill(broker, topic, *"abc", batch=where == "within a batch")
    message = stored(broker, topic)[-1]
    until(lambda: time.time() * 1000 > message.publish_timestamp() + 1200)  # the broker goes by the second
    place = {"latest": "latest", "later": f"{time.time() + 3600:.3f}"}.get(where, ids(broker, topic)["c"])
    started = time.monotonic()
    assert done(pwire("read", topic, *ALL, "--from", place, "--after", "--idle", 3)) == ""
    assert time.monotonic() - started < 3


def test_from_a_time(broker: Broker, topic: str, pwire: Pwire) -> None:
    fill(broker, topic, "old")
    (old,) = stored(broker, topic)
    until(lambda: time.time() * 1000 > old.publish_timestamp() + 2500)  # the broker goes by the second
    fill(broker, topic, "new", "newer")
    _, new, _ = stored(broker, topic)
    since = (new.publish_timestamp() - 1) / 1000
    moment = datetime.fromtimestamp(since, timezone.utc)
    local = moment.astimezone(timezone.utc).replace(tzinfo=None)
    for place in (f"{since:.3f}", moment.isoformat(), f"{local.isoformat()}Z", local.isoformat(" ")):
        assert done(pwire("read", topic, *ALL, "--from", place)) == "new\nnewer\n", place
    assert done(pwire("read", topic, *ALL, "--from", "-1h")) == "old\nnew\nnewer\n"


def test_latest_is_what_comes(broker: Broker, filled: str, pwire: Pwire) -> None:
    with Running(pwire, "read", filled, "--from", "latest", "-n", 2) as running:
        until(lambda: stats_of(broker, filled)["subscriptions"])
        (reader,) = stats_of(broker, filled)["subscriptions"].values()
        assert reader["durable"] is False
        fill(broker, filled, "i", "j")
        assert running.lines(2) == ["i", "j"]
        assert running.code() == 0
    assert stats_of(broker, filled)["subscriptions"] == {}


def test_nothing_is_acknowledged(broker: Broker, filled: str, pwire: Pwire) -> None:
    with Running(pwire, "read", filled, "-n", 0, "-q", 4, "--trace") as running:
        assert running.lines(8) == [*"abcdefgh"]
        (reader,) = stats_of(broker, filled)["subscriptions"].values()
        assert reader["type"] == "Exclusive"
        assert running.interrupt().code() == 0
    assert not [line for line in running.stderr if " ACK " in line]
    # the broker removes its subscription a moment after the reader has gone
    until(lambda: stats_of(broker, filled)["subscriptions"] == {})
    until(lambda: broker.rest("GET", f"{path_of(filled)}/internalStats")["cursors"] == {})


def test_partitions_and_several_topics(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitions = partitioned(broker, topic, 3)
    for number, partition in enumerate(partitions[:2]):  # one stays empty
        fill(broker, partition, f"of {number}")
    fill(broker, f"{topic}-other", "of another")
    found = records(done(pwire("read", topic, f"{topic}-other", *ALL, "-o", "json")))
    assert {(each["topic"], each["payload"], each["partition"]) for each in found} == {
        (partitions[0], "of 0", 0),
        (partitions[1], "of 1", 1),
        (f"{topic}-other", "of another", None),
    }


def test_an_empty_topic(broker: Broker, topic: str, pwire: Pwire) -> None:
    broker.rest("PUT", path_of(topic))
    for place in ("earliest", "latest", "-1h", "7"):
        assert done(pwire("read", topic, *ALL, "--from", place)) == ""


def test_no_topic_is_created(broker: Broker, topic: str, pwire: Pwire) -> None:
    assert refusal(pwire("read", topic))[1] == "TopicNotFound"
    with pytest.raises(RestError, match="404"):
        stats_of(broker, topic)


def test_what_is_shown(broker: Broker, filled: str, pwire: Pwire) -> None:
    run = pwire("read", filled, *ALL, "--filter", 'payload > "e"', "-f", "%s %b;")
    assert done(run) == "f 2;g 3;h -1;"
    assert run.stderr.startswith("pwire: 3 messages, ")
    assert run.stderr.endswith(", 5 not shown\n")
    assert done(pwire("read", filled, "--hex", "-n", 2)) == "61\n62\n"
    assert done(pwire("read", filled, "-o", "line", "-n", 2)).endswith(" b\n")
    assert done(pwire("read", filled, "--schema", "int8")) == "97\n"
    hidden = pwire("read", filled, *ALL, "--hide-content", "--quiet")
    assert (done(hidden), hidden.stderr) == ("", "")


def test_a_rate_and_an_idle_end(filled: str, pwire: Pwire) -> None:
    started = time.monotonic()
    assert done(pwire("read", filled, "-n", 0, "-r", 20, "--idle", 1)) == "".join(
        f"{c}\n" for c in "abcdefgh"
    )
    assert time.monotonic() - started > 1.2


def test_a_compacted_topic(broker: Broker, topic: str, pwire: Pwire) -> None:
    for key, text in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        fill(broker, topic, text, partition_key=key)
    broker.rest("PUT", f"{path_of(topic)}/compaction")
    until(lambda: broker.rest("GET", f"{path_of(topic)}/compaction")["status"] == "SUCCESS")
    assert done(pwire("read", topic, *ALL, "--read-compacted")) == "b1\na2\n"


@pytest.mark.parametrize("place", ["yesterday", "1:2:3:4", "-5y", "2024-99-01"])
def test_places_that_are_none(topic: str, pwire: Pwire, place: str) -> None:
    assert f"{place}: neither earliest, latest, " in said(pwire("read", topic, "--from", place), 2)
