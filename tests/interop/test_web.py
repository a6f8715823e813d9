"""Service URLs of web services: sessions of ours, and official clients behind `pwire proxy --http-listen`."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from interop.brokers import Broker, Cluster
from interop.sessions import Client, Proxy
from interop.test_cluster import kept, movable
from interop.test_produce import done, partitioned, records

if TYPE_CHECKING:
    from pathlib import Path

    from interop.conftest import Pwire

__all__ = ["kept", "movable"]


def web_url(proxy: Proxy) -> str:
    """Where it answers lookups over HTTP."""
    proxy.says("for clients: http")
    match = re.search(r"for clients: (http://\S+)", proxy.said)
    assert match
    return match[1]


def behind(pwire: Pwire, to: str, http_to: str, *options: object) -> Proxy:
    return Proxy(pwire, to, "--http-listen", "127.0.0.1:0", "--http-to", http_to, *options)


def test_a_session(broker: Broker, topic: str, pwire: Pwire) -> None:
    url = broker.http_url
    (hop,) = records(done(pwire("lookup", topic, "-o", "json", url=url)))
    assert (hop["status"], hop["broker_service_url"]) == (200, broker.url)
    assert hop["request"].startswith("GET /lookup/v2/topic/persistent/public/default/")
    done(pwire("produce", topic, "-m", "one", url=url))
    assert done(pwire("consume", topic, "-s", "s", "-p", "earliest", "-n", "1", url=url)) == "one\n"
    assert topic in done(pwire("topics", url=url)).splitlines()
    assert done(pwire("partitions", topic, url=url)) == f"{topic}: 0 partitions\n"
    assert "1 sent, 1 answered" in done(pwire("ping", "-c", "1", url=url))


def test_partitions(broker: Broker, topic: str, pwire: Pwire) -> None:
    partitioned(broker, topic, 3)
    assert done(pwire("partitions", topic, url=broker.http_url)).startswith(f"{topic}: 3 partitions\n")
    done(pwire("produce", topic, *[part for text in "abcdef" for part in ("-m", text)], url=broker.http_url))
    consume = ("consume", topic, "-s", "s", "-p", "earliest", "-n", "6")
    assert sorted(done(pwire(*consume, url=broker.http_url)).split()) == list("abcdef")


def test_a_schema(broker: Broker, topic: str, pwire: Pwire) -> None:
    done(pwire("produce", topic, "-m", "x", "--schema", "string"))
    by_http, by_command = (
        json.loads(done(pwire("schema", "get", topic, "-o", "json", url=url)))
        for url in (broker.http_url, broker.url)
    )
    assert by_http == by_command


def test_what_is_refused(broker: Broker, pwire: Pwire) -> None:
    for verb in ("lookup", "partitions"):
        run = pwire(verb, "public/nowhere/t", url=broker.http_url)
        assert run.returncode == 7
        assert "TopicNotFound: HTTP 404" in run.stderr


def test_clients_behind_the_proxy(
    broker: Broker, topic: str, pwire: Pwire, client: Client, tmp_path: Path
) -> None:
    record = tmp_path / "record.pcapng"
    with behind(pwire, broker.url, broker.http_url, "--tap", "-o", "json", "-w", record) as proxy:
        said = client.run(web_url(proxy), topic, produce=5, consumers=1, consume=5)
        assert proxy.interrupt() == 0, proxy.said
        assert "over HTTP" in proxy.said
    assert said["sent"] == [None] * 5
    assert len(said["received"][0]) == 5
    told = [frame["http"] for frame in proxy.frames() if "http" in frame and frame["http"]["status"]]
    lookups = [http for http in told if http["call"] == "lookup"]
    assert {http["fields"]["brokerUrl"] for http in lookups} == {proxy.url}
    assert any(http["call"] == "partitions" for http in told)
    assert proxy.frames("SEND")
    assert not proxy.frames("LOOKUP")
    assert check_record(pwire, record) == len(told)


def check_record(pwire: Pwire, record: Path) -> int:
    """Find nothing wrong in a record; return the number of answers over HTTP in it."""
    doctor = pwire("doctor", record, "-o", "json", url="")
    assert (doctor.returncode, doctor.stdout) == (0, ""), doctor.stdout
    shown: list[dict[str, Any]] = records(done(pwire("decode", "-o", "json", record, url="")))
    return sum("http" in each and each["http"]["status"] is not None for each in shown)


def test_redirects(kept: Cluster, movable: str, pwire: Pwire) -> None:
    ask, leader = kept.redirect(movable)
    http_urls = dict(zip(kept.urls, kept.http_urls, strict=True))
    hops = records(done(pwire("lookup", movable, "-o", "json", url=http_urls[ask])))
    assert hops[0]["status"] == 307
    assert hops[0]["broker_service_url"].startswith(f"{http_urls[leader]}/lookup/v2/topic/")
    assert hops[-1]["status"] == 200
    assert hops[-1]["broker_service_url"] in kept.urls
    for before, after in pairwise(hops):
        assert after["asked_authoritatively"] == before["authoritative"]


def test_redirects_behind_the_proxy(kept: Cluster, movable: str, pwire: Pwire, client: Client) -> None:
    ask, _ = kept.redirect(movable)
    http_to = dict(zip(kept.urls, kept.http_urls, strict=True))[ask]
    with behind(pwire, kept.url, http_to, "--tap", "-o", "json") as proxy:
        said = client.run(web_url(proxy), movable, produce=3, consumers=1, consume=3)
        assert proxy.interrupt() == 0, proxy.said
    assert said["sent"] == [None] * 3
    told = [frame["http"] for frame in proxy.frames() if "http" in frame and frame["http"]["status"]]
    assert {http["status"] for http in told} == {200}
    urls = {http["fields"]["brokerUrl"] for http in told if http["call"] == "lookup"}
    assert urls.isdisjoint(kept.urls)
