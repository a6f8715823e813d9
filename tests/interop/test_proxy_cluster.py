"""`pwire proxy` before two brokers, and before their own proxy: clients sent about never leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from interop.brokers import Cluster
from interop.sessions import Client, Connections, Proxy
from interop.test_cluster import admin, kept, movable, spread

if TYPE_CHECKING:
    from interop.conftest import Pwire

__all__ = ["kept", "movable", "spread"]

COUNT = 400
WAYS = [
    pytest.param("broker", [], id="listeners"),
    pytest.param("broker", ["--through"], id="through"),
    pytest.param("proxy", [], id="proxy-listeners"),
    pytest.param("proxy", ["--through"], id="proxy-through"),
]
TAP = ("--tap", "-o", "json")


def ports(cluster: Cluster) -> set[int]:
    """Of all that clients are not to be connected to."""
    return {urlsplit(url).port or 0 for url in (*cluster.urls, cluster.proxy_url)}


def told(proxy: Proxy) -> set[str]:
    """The brokers' addresses that clients were told."""
    found = [frame["fields"] for frame in proxy.frames("LOOKUP_RESPONSE")]
    return {each["brokerServiceUrl"] for each in found if "brokerServiceUrl" in each}


def check_all(said: dict[str, Any], count: int) -> None:
    """Every message was sent, and came."""
    assert said["sent"] == [None] * count
    texts = {text for messages in said["received"] for text, _ in messages}
    assert sorted(map(int, texts)) == list(range(count))


@pytest.mark.parametrize(("to", "options"), WAYS)
@pytest.mark.parametrize("kind", ["Shared", "Key_Shared"])
def test_partitions_of_both_brokers(
    kept: Cluster, spread: str, pwire: Pwire, client: Client, to: str, options: list[str], kind: str
) -> None:
    url = kept.proxy_url if to == "proxy" else kept.url
    with Proxy(pwire, url, *TAP, *options) as proxy, Connections(client.pid) as seen:
        asked = {"produce": COUNT, "consumers": 2, "type": kind, "consume": COUNT}
        said = client.run(proxy.url, spread, **asked, keys=40, batching=True)
        assert proxy.interrupt() == 0, proxy.said
    check_all(said, COUNT)
    keys = [{key for _, key in messages} for messages in said["received"]]
    assert all(keys)
    assert kind == "Shared" or not keys[0] & keys[1]
    assert proxy.port in seen.ports
    assert not seen.ports & ports(kept)
    assert len(told(proxy)) == 2
    assert (told(proxy) == set(kept.urls)) is ("--through" in options)


FOLLOWED = pytest.mark.xfail(
    strict=True, reason="with --through a Redirect names the broker itself, and clients go there"
)


@pytest.mark.parametrize(
    "options", [[], pytest.param(["--through"], marks=FOLLOWED)], ids=["listeners", "through"]
)
def test_redirects(cluster: Cluster, movable: str, pwire: Pwire, client: Client, options: list[str]) -> None:
    redirect = cluster.redirect(movable)
    with Proxy(pwire, redirect.ask, *TAP, *options) as proxy, Connections(client.pid) as seen:
        said = client.run(proxy.url, movable, produce=10, consumers=1, consume=10)
        assert proxy.interrupt() == 0, proxy.said
    check_all(said, 10)
    assert "Redirect" in {frame["fields"]["response"] for frame in proxy.frames("LOOKUP_RESPONSE")}
    assert proxy.port in seen.ports
    assert not seen.ports & ports(cluster)


@pytest.mark.parametrize(("to", "options"), WAYS)
def test_unloads(
    kept: Cluster, topic: str, pwire: Pwire, client: Client, to: str, options: list[str]
) -> None:
    """Topics that move while messages are sent and consumed."""
    kept.rest("PUT", admin(topic))
    url = kept.proxy_url if to == "proxy" else kept.url
    with Proxy(pwire, url, *TAP, *options) as proxy, Connections(client.pid) as seen:
        client.ask(proxy.url, topic, produce=300, pause=10, consumers=1, consume=300)
        for times in (1, 2, 3):
            proxy.until_frames(times, "PRODUCER_SUCCESS")
            before = len(proxy.frames("SEND_RECEIPT"))
            proxy.until_frames(before + 10, "SEND_RECEIPT")
            if times < 3:
                kept.rest("PUT", f"{admin(topic)}/unload")
        said = client.answer()
        assert proxy.interrupt() == 0, proxy.said
    check_all(said, 300)
    assert proxy.port in seen.ports
    assert not seen.ports & ports(kept)
