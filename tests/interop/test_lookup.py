"""`pwire lookup`, `partitions`, `topics`, and the options of every verb about the cluster."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from interop.brokers import Broker, RestError
from interop.processes import HOST, free_port
from interop.test_produce import done, partitioned, path_of, records, refusal, said, stats_of, wheel

if TYPE_CHECKING:
    from interop.conftest import Pwire


def address(broker: Broker) -> str:
    return broker.url.removeprefix("pulsar://")


def test_a_lookup(broker: Broker, topic: str, pwire: Pwire) -> None:
    run = pwire("lookup", topic)
    (line,) = done(run).splitlines()
    assert line.startswith(f"{address(broker)} → Connect {broker.url} (authoritative, ")
    assert run.stderr == ""
    (hop,) = records(done(pwire("lookup", topic, "-o", "json")))
    assert hop.pop("latency_ns") > 0
    assert hop == {
        **{"topic": topic, "asked": address(broker), "asked_authoritatively": False, "response": "Connect"},
        **{"broker_service_url": broker.url, "broker_service_url_tls": None},
        **{"authoritative": True, "proxy_through_service_url": True},  # as standalone brokers always say
    }


def test_a_lookup_connects(broker: Broker, topic: str, pwire: Pwire) -> None:
    run = pwire("lookup", topic, "--connect", "-o", "json")
    _, made = records(done(run))
    assert made.pop("local").startswith(f"{HOST}:")
    assert made["server"].startswith("Pulsar Server")
    assert made["protocol_version"] >= 21
    assert made["max_message_size"] == 5 * 1024 * 1024
    assert made["connected"] == address(broker)
    _, line = done(pwire("lookup", topic, "--connect")).splitlines()
    assert line.startswith(f"connected to {address(broker)}")
    assert line.endswith(", protocol version 21, messages up to 5242880 bytes")


def test_no_proxy_to_oneself(broker: Broker, topic: str, pwire: Pwire) -> None:
    """A standalone broker says `proxy_through_service_url` with its own address: Java has one connection."""
    run = pwire("lookup", topic, "--connect", "-o", "json", "--trace")
    assert records(done(run))[1]["proxy_to"] is None
    assert run.stderr.count("→ CONNECT ") == 1


def test_a_lookup_that_is_refused(broker: Broker, topic: str, pwire: Pwire) -> None:
    assert refusal(pwire("lookup", "public/nowhere/t")) == ("LOOKUP", "TopicNotFound")
    run = pwire("lookup", topic, "--listener-name", "nobody")
    assert refusal(run) == ("LOOKUP", "ServiceNotReady")
    assert "is not a valid topic" in said(pwire("lookup", "a/b"), 2)


def test_partitions(broker: Broker, topic: str, pwire: Pwire) -> None:
    bare = topic.removeprefix("persistent://")
    assert refusal(pwire("partitions", bare)) == ("PARTITIONED_METADATA", "TopicNotFound")
    with pytest.raises(RestError, match="404"):
        stats_of(broker, topic)  # asking created nothing
    broker.rest("PUT", f"{path_of(topic)}-single")
    assert done(pwire("partitions", f"{bare}-single")) == f"{topic}-single: 0 partitions\n"
    names = partitioned(broker, topic, 2)
    assert done(pwire("partitions", topic)) == f"{topic}: 2 partitions\n  {names[0]}\n  {names[1]}\n"
    (found,) = records(done(pwire("partitions", topic, "-o", "json")))
    assert found == {"topic": topic, "partitions": 2, "names": names}


def test_topics(broker: Broker, pwire: Pwire) -> None:
    namespace = f"public/{secrets.token_hex(4)}"
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")
    assert done(pwire("topics", namespace)) == ""
    name = f"persistent://{namespace}"
    for each in ("b", "a"):
        broker.rest("PUT", path_of(f"{name}/{each}"))
    partitions = partitioned(broker, f"{name}/p", 2)
    with wheel(broker) as client:
        fleeting = f"non-persistent://{namespace}/n"
        client.create_producer(fleeting)
        kept = [f"{name}/a", f"{name}/b", *partitions]
        assert done(pwire("topics", namespace)).splitlines() == kept
        assert done(pwire("topics", namespace, "--mode", "non-persistent")).splitlines() == [fleeting]
        assert set(done(pwire("topics", namespace, "--mode", "all")).splitlines()) == {*kept, fleeting}
    assert records(done(pwire("topics", namespace, "--regex", f"{namespace}/[ax]", "-o", "json"))) == [
        {"topic": f"{name}/a"}
    ]
    assert (
        done(pwire("topics", namespace, "--regex", f"persistent://{namespace}/p")).splitlines() == partitions
    )
    long = f"{namespace}/p-partition-1" + "|x" * 50  # longer than brokers take
    assert done(pwire("topics", namespace, "--regex", long)).splitlines() == partitions[1:]
    assert done(pwire("topics", namespace, "--regex", "a")) == ""  # the whole name


@pytest.mark.parametrize("mode", ["persistent", "non-persistent", "all"])
def test_topics_of_no_namespace(broker: Broker, pwire: Pwire, mode: str) -> None:
    namespace = f"public/{secrets.token_hex(4)}"
    run = pwire("topics", namespace, "--mode", mode)
    assert refusal(run) == ("GET_TOPICS_OF_NAMESPACE", "TopicNotFound")
    assert "Namespace not found (no such namespace)" in run.stderr
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")
    assert done(pwire("topics", namespace, "--mode", mode)) == ""


def test_cluster(broker: Broker, pwire: Pwire) -> None:
    namespace = f"public/{secrets.token_hex(4)}"
    assert refusal(pwire("cluster", "--namespace", namespace)) == ("GET_TOPICS_OF_NAMESPACE", "TopicNotFound")
    broker.rest("PUT", f"/admin/v2/namespaces/{namespace}")
    name = f"persistent://{namespace}"
    broker.rest("PUT", path_of(f"{name}/a"))
    broker.rest("PUT", path_of(f"{name}/b-partition-x"))
    partitioned(broker, f"{name}/p", 2)
    first, *lines = done(pwire("cluster", broker.url, "--namespace", namespace, url="")).splitlines()
    assert first.startswith(f"{address(broker)}: Pulsar Server")
    assert lines == [
        "1 broker",
        f"  {broker.url} serves 4",
        f"3 topics of {namespace}",
        f"  {name}/a → {broker.url}",
        f"  {name}/b-partition-x → {broker.url}",
        f"  {name}/p, 2 partitions",
        f"    0 → {broker.url}",
        f"    1 → {broker.url}",
    ]
    *topics, summary = records(done(pwire("cluster", "--namespace", namespace, "-o", "json")))
    assert [(each["topic"].rpartition("/")[2], each["partitions"]) for each in topics] == [
        ("a", 0),
        ("b-partition-x", 0),
        ("p", 2),
    ]
    assert summary["brokers"] == {broker.url: 4}


def test_topics_refused(pwire: Pwire) -> None:
    assert "not a regular expression" in said(pwire("topics", "--regex", "("), 2)
    assert "is not a valid namespace" in said(pwire("topics", "a/b/c/d"), 2)


# -- the cluster


def test_where_the_url_comes_from(broker: Broker, topic: str, pwire: Pwire, tmp_path: Path) -> None:
    partitioned(broker, topic, 1)
    conf = tmp_path / "client.conf"
    conf.write_text(f"# ours\nbrokerServiceUrl={broker.url}\nwebServiceUrl={broker.http_url}\n")
    wrong = f"pulsar://{HOST}:{free_port()}"

    def asked(*args: object, **env: str) -> None:
        printed = done(pwire("partitions", topic, *args, url="", env=env))
        assert printed.startswith(f"{topic}: 1 partitions\n")

    asked("--conf", conf)
    asked(PWIRE_CLIENT_CONF=str(conf))
    asked(PULSAR_CLIENT_CONF=str(conf))
    asked(PULSAR_SERVICE_URL=broker.url)
    asked("--conf", conf, PULSAR_CLIENT_CONF="nowhere")
    asked("-u", broker.url, PWIRE_URL=wrong)
    asked(PWIRE_URL=broker.url, PULSAR_URL=wrong)
    asked("--url", f"{wrong},{address(broker)}")  # the next host
    asked("--url", address(broker))


@pytest.mark.parametrize(
    ("url", "code", "why"),
    [
        ("http://host.invalid:8080", 6, "host.invalid: no such host"),
        ("ftp://localhost", 2, "a service URL begins with pulsar:// or pulsar+ssl://"),
        ("pulsar://localhost:none", 2, "is not host:port"),
        ("pulsar://host.invalid", 6, "host.invalid: no such host"),
    ],
)
def test_urls_that_lead_nowhere(pwire: Pwire, url: str, code: int, why: str) -> None:
    assert why in said(pwire("lookup", "t", url=url), code)


def test_a_web_port_speaks_another_protocol(broker: Broker, pwire: Pwire) -> None:
    url = broker.http_url.replace("http", "pulsar")
    assert "it speaks HTTP, not Pulsar's protocol" in said(pwire("lookup", "t", url=url), 6)


def test_a_broker_that_does_not_answer(broker: Broker, pwire: Pwire) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        why = said(pwire("lookup", "t", "--connect-timeout", 0.3), 8)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert f"{address(broker)}: CONNECT was not answered by CONNECTED within 0.3 s" in why
