"""Two brokers and the proxy: lookups that go on elsewhere, topics that move, brokers that die."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from interop.brokers import Cluster
from interop.processes import HOST, free_port
from interop.running import Numbered, Running, check_numbers, stored

if TYPE_CHECKING:
    from interop.conftest import Pwire

PARTITIONS = 8
CONSUME = ("-s", "s", "-p", "Earliest", "-n", 0, "-o", "json")


def admin(topic: str) -> str:
    """The admin API's path of a topic."""
    return f"/admin/v2/{topic.replace('://', '/')}"


def address(url: str) -> str:
    return url.partition("://")[2]


def hops(pwire: Pwire, topic: str, url: str, *options: str) -> list[dict[str, Any]]:
    done = pwire("lookup", topic, "-o", "json", *options, url=url)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def kept(cluster: Cluster) -> Cluster:
    """The cluster; what is acknowledged stays, so that it can be read again."""
    retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    cluster.rest("POST", "/admin/v2/namespaces/public/default/retention", retention)
    return cluster


@pytest.fixture
def spread(kept: Cluster, topic: str) -> str:
    """A topic with partitions that both brokers serve."""
    kept.rest("PUT", f"{admin(topic)}/partitions", PARTITIONS)
    names = [f"{topic}-partition-{index}" for index in range(PARTITIONS)]

    def owners() -> set[str]:
        return {kept.rest("GET", path_of(name))["httpUrl"] for name in names}

    for _ in range(10):
        found = owners()
        if len(found) > 1:
            return topic
        bundle = kept.rest("GET", f"{path_of(names[0])}/bundle")
        other = next(url for url in kept.http_urls if url not in found).removeprefix("http://")
        unload = f"/admin/v2/namespaces/public/default/{bundle}/unload?destinationBroker={other}"
        kept.rest("PUT", unload)
    raise AssertionError(owners())


def path_of(topic: str) -> str:
    """Where the admin API looks a topic up."""
    return f"/lookup/v2/topic/{topic.replace('://', '/')}"


def test_owners_are_listed(kept: Cluster, spread: str, pwire: Pwire) -> None:
    for url in (kept.url, kept.proxy_url):
        done = pwire("cluster", "--regex", f"{spread}.*", "-o", "json", url=url)
        assert (done.returncode, done.stderr) == (0, "")
        found, summary = (json.loads(line) for line in done.stdout.splitlines())
        owners = [each["broker_service_url"] for each in found["owners"]]
        assert (found["topic"], found["partitions"], len(owners)) == (spread, PARTITIONS, PARTITIONS)
        assert set(owners) == set(summary["brokers"]) == set(kept.urls)


@pytest.fixture
def movable(cluster: Cluster, topic: str) -> str:
    """A topic that nobody asks for when it is unloaded, as brokers do for those of their own."""

    def bundle(name: str) -> str:
        return str(cluster.rest("GET", f"/lookup/v2/topic/persistent/public/default/{name}/bundle"))

    own = bundle("__change_events")
    names = (f"{topic}-{number}" for number in range(100))
    name = next(each for each in names if bundle(each.rpartition("/")[2]) != own)
    cluster.rest("PUT", admin(name))
    return name


# ---- Lookups ----


def test_redirect(pwire: Pwire, cluster: Cluster, movable: str) -> None:
    """Each answer is shown: who was asked sends us to the leader, who says who serves the topic."""
    ask, leader = cluster.redirect(movable)
    first, *others = hops(pwire, movable, ask)
    assert (first["response"], first["asked"], first["broker_service_url"]) == (
        "Redirect",
        address(ask),
        leader,
    )
    assert not first["asked_authoritatively"]
    assert [each["response"] for each in others] == [*["Redirect"] * (len(others) - 1), "Connect"]
    assert others[0]["asked"] == address(leader)
    assert others[0]["asked_authoritatively"] == first["authoritative"]
    assert others[-1]["broker_service_url"] in cluster.urls
    assert all(each["latency_ns"] > 0 for each in (first, *others))


def test_redirect_as_text(pwire: Pwire, cluster: Cluster, movable: str) -> None:
    ask, leader = cluster.redirect(movable)
    done = pwire("lookup", movable, "--connect", url=ask)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last, connected = done.stdout.splitlines()
    assert first.startswith(f"{address(ask)} \u2192 Redirect {leader}")
    assert " \u2192 Connect pulsar://" in last
    owner = last.partition("Connect pulsar://")[2].split()[0]
    assert connected.startswith(f"connected to {owner}: Pulsar Server")


def test_produce_and_consume_by_redirects(pwire: Pwire, cluster: Cluster, movable: str) -> None:
    done = pwire("produce", movable, "-m", "one", "--trace", url=cluster.redirect(movable).ask)
    assert done.returncode == 0, done.stderr
    assert " Redirect " in done.stderr
    consume = ("consume", movable, "-s", "s", "-p", "Earliest", "--trace")
    done = pwire(*consume, url=cluster.redirect(movable).ask)
    assert (done.returncode, done.stdout) == (0, "one\n")
    assert " Redirect " in done.stderr


@pytest.mark.parametrize("through", ["broker", "proxy"])
def test_partitions_of_both_brokers(pwire: Pwire, kept: Cluster, spread: str, through: str) -> None:
    """Produced to and consumed from wherever they are."""
    url = kept.proxy_url if through == "proxy" else kept.urls[1]
    count = 400
    text = "".join(f"{number}\n" for number in range(count))
    done = pwire("produce", spread, "-m", "-", "-bm", 10, "-o", "json", url=url, stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    receipts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(receipts) == count
    topics = {f"{spread}-partition-{index}" for index in range(PARTITIONS)}
    assert {each["topic"] for each in receipts} == topics
    options = ("-s", "s", "-p", "Earliest", "-n", count, "-o", "json", "--trace")
    done = pwire("consume", spread, *options, url=url)
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(int(each["payload"]) for each in messages) == list(range(count))
    assert {each["topic"] for each in messages} == topics
    for name in topics:  # in order each
        numbers = [int(each["payload"]) for each in messages if each["topic"] == name]
        assert numbers == sorted(numbers)
    for broker in kept.urls:
        assert f"proxy_to_broker_url={address(broker)}" in done.stderr or through == "broker"


@pytest.mark.parametrize("words", ["lookup T", "produce T -m x", "consume T -s s"])
def test_unknown_listener(pwire: Pwire, cluster: Cluster, topic: str, words: str) -> None:
    """It is said what the broker says of it."""
    cluster.rest("PUT", admin(topic))
    options = ("--listener-name", "nowhere", "--timeout", 1)
    done = pwire(*words.replace("T", topic).split(), *options, url=cluster.url)
    assert (done.returncode, done.stdout) == (7, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pwire: LOOKUP ")
    assert " refused, " in last
    assert "nowhere listener" in last


def test_several_hosts(pwire: Pwire, cluster: Cluster, topic: str) -> None:
    """Those that are dead are passed over; when all are, each is named."""
    dead = [f"{HOST}:{free_port()}" for _ in range(2)]
    alive = [address(url) for url in cluster.urls]
    done = pwire("produce", topic, "-m", "x", url=f"pulsar://{dead[0]},{dead[1]},{alive[1]},{alive[0]}")
    assert (done.returncode, done.stderr) == (0, "")
    done = pwire("lookup", topic, url=f"pulsar://{dead[0]},{alive[1]}")
    assert done.stdout.startswith(f"{alive[1]} \u2192 ")
    done = pwire("produce", topic, "-m", "x", url=f"pulsar://{dead[0]},{dead[1]}")
    assert (done.returncode, done.stdout) == (6, "")
    for each in dead:
        assert f"{each}: refused" in done.stderr


# ---- The proxy ----


def test_proxy(pwire: Pwire, kept: Cluster, topic: str) -> None:
    """Its answers send us through it, to the broker that it names."""
    url = kept.proxy_url
    kept.rest("PUT", f"{admin(topic)}/partitions", 2)
    done = pwire("partitions", topic, url=url)
    assert (done.returncode, done.stderr) == (0, "")
    names = [f"{topic}-partition-{index}" for index in range(2)]
    assert done.stdout.splitlines() == [f"{topic}: 2 partitions", *(f"  {name}" for name in names)]
    done = pwire("topics", url=url)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(names) <= set(done.stdout.splitlines())
    *_, last = hops(pwire, names[0], url)
    assert (last["response"], last["asked"]) == ("Connect", address(url))
    assert last["proxy_through_service_url"]
    assert last["broker_service_url"] in kept.urls
    done = pwire("lookup", names[0], "--connect", url=url)
    through = f"connected to {address(url)} through the proxy to {address(last['broker_service_url'])}: "
    assert through in done.stdout


@pytest.mark.parametrize("through", ["broker", "proxy"])
@pytest.mark.parametrize("verb", ["lookup", "partitions", "produce", "consume", "read"])
def test_what_is_not_there(pwire: Pwire, cluster: Cluster, through: str, verb: str) -> None:
    """Refused alike by broker and proxy."""
    url = cluster.proxy_url if through == "proxy" else cluster.url
    more = {"produce": ["-m", "x"], "consume": ["-s", "s"]}
    where = "persistent://public/nowhere/topic"
    done = pwire(verb, where, *more.get(verb, []), "--timeout", 2, url=url)
    assert (done.returncode, done.stdout) == (7, ""), done.stderr
    assert " refused, " in done.stderr
    assert "Traceback" not in done.stderr


# ---- Topics that move ----


UNLOADS = 5
AGAIN = "opening it again"


@pytest.mark.parametrize("through", ["broker", "proxy"])
def test_unload(pwire: Pwire, kept: Cluster, topic: str, through: str) -> None:
    """Who produces to and consumes from a topic that is unloaded goes on, and nothing is lost."""
    url = kept.proxy_url if through == "proxy" else kept.url
    with (
        Numbered(pwire, topic, url=url) as producer,
        Running(pwire, "consume", topic, *CONSUME, "--timeout", 5, url=url) as consumer,
    ):
        for _ in range(UNLOADS):
            producer.lines(len(producer.out) + 300)
            consumer.lines(len(consumer.out) + 100)
            before = [run.said.count(AGAIN) for run in (producer, consumer)]
            kept.rest("PUT", f"{admin(topic)}/unload")
            producer.says(AGAIN, before[0] + 1)
            consumer.says(AGAIN, before[1] + 1)
        producer.lines(len(producer.out) + 300)
        assert producer.end() == 0, producer.said
        consumer.until(lambda: shown_all(consumer, producer.count))
        assert consumer.interrupt() == 0, consumer.said
    check_numbers(producer, stored(pwire, url, topic), once=False)
    check_shown(pwire, consumer, producer.count, topic, url)
    # nor does anything wait for an answer that cannot come any more
    assert "was not answered" not in producer.said + consumer.said


def shown_all(consumer: Running, count: int) -> bool:
    return bool(consumer.out) and json.loads(consumer.out[-1])["payload"] == str(count - 1)


def check_shown(pwire: Pwire, consumer: Running, count: int, topic: str, url: str) -> None:
    """All numbers were shown, in order, some perhaps again; none comes to the next consumer."""
    numbers = [int(json.loads(line)["payload"]) for line in consumer.out]
    assert list(dict.fromkeys(numbers)) == list(range(count))
    done = pwire("consume", topic, "-s", "s", "-n", 0, "--idle", 2, url=url)
    assert (done.returncode, done.stdout) == (0, "")


def test_broker_dies(pwire: Pwire, kept: Cluster, topic: str) -> None:
    """The topic moves to the other broker: nothing that had a receipt is lost, all is shown."""
    url = f"pulsar://{','.join(map(address, kept.urls))}"
    kept.rest("PUT", admin(topic))
    *_, last = hops(pwire, topic, url)
    owner = last["broker_service_url"]
    role = f"broker-{kept.urls.index(owner) + 1}"
    other = next(each for each in kept.urls if each != owner)
    with (
        Numbered(pwire, topic, "--send-timeout", 120, url=url) as producer,
        Running(pwire, "consume", topic, *CONSUME, url=url) as consumer,
    ):
        producer.lines(500)
        consumer.lines(300)
        try:
            kept.kill(role)
            producer.lines(len(producer.out) + 500)
            assert producer.end() == 0, producer.said
            *_, last = hops(pwire, topic, other)
            assert last["broker_service_url"] == other
            check_numbers(producer, stored(pwire, other, topic), once=False)
            consumer.until(lambda: shown_all(consumer, producer.count))
            assert consumer.interrupt() == 0, consumer.said
            check_shown(pwire, consumer, producer.count, topic, other)
        finally:
            kept.start(role)
