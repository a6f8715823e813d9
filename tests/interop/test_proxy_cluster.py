"""`pwire proxy` before two brokers, and before their own proxy: clients sent about never leave it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from interop.brokers import Cluster
from interop.sessions import Alone, Client, Java, Proxy, Wheel
from interop.test_cluster import address, admin, kept, movable, spread

if TYPE_CHECKING:
    from interop.conftest import Pwire

__all__ = ["kept", "movable", "spread"]

COUNT = 400
LISTENERS: list[str] = []
THROUGH = ["--through"]
TAP = ("--tap", "-o", "json")


def told(proxy: Proxy) -> set[str]:
    """The brokers' addresses that clients were told."""
    found = [frame["fields"] for frame in proxy.frames("LOOKUP_RESPONSE")]
    return {each["brokerServiceUrl"] for each in found if "brokerServiceUrl" in each}


def check_all(said: dict[str, Any], count: int) -> None:
    """Every message was sent, and came."""
    assert said["sent"] == [None] * count
    texts = {text for messages in said["received"] for text, _ in messages}
    assert sorted(map(int, texts)) == list(range(count))


@pytest.mark.parametrize(
    ("client", "kind", "to", "options"),
    [  # every two of them together
        ("wheel", "Shared", "broker", LISTENERS),
        ("java", "Key_Shared", "broker", LISTENERS),
        ("java", "Shared", "broker", THROUGH),
        ("wheel", "Key_Shared", "broker", THROUGH),
        ("java", "Shared", "proxy", LISTENERS),
        ("wheel", "Key_Shared", "proxy", LISTENERS),
        ("wheel", "Shared", "proxy", THROUGH),
        ("java", "Key_Shared", "proxy", THROUGH),
    ],
    indirect=["client"],
)
def test_partitions_of_both_brokers(
    kept: Cluster, spread: str, pwire: Pwire, client: Client, to: str, options: list[str], kind: str
) -> None:
    url = kept.proxy_url if to == "proxy" else kept.url
    with Proxy(pwire, url, *TAP, *options) as proxy, Alone(kept, proxy) as alone:
        alone.until_seen()
        asked = {"produce": COUNT, "consumers": 2, "type": kind, "consume": COUNT}
        said = client.run(proxy.url, spread, **asked, keys=40, batching=True)
        assert proxy.interrupt() == 0, proxy.said
    check_all(said, COUNT)
    keys = [{key for _, key in messages} for messages in said["received"]]
    assert all(keys)
    assert kind == "Shared" or not keys[0] & keys[1]
    assert len(told(proxy)) == 2
    assert (told(proxy) == set(kept.urls)) is ("--through" in options)


def run_until_seen(alone: Alone, pwire: Pwire, client: Client, url: str, topic: str) -> dict[str, Any]:
    """A session of a client that waits for its last message until it was seen; then `pwire` sends that."""
    client.ask(url, topic, produce=20, consumers=1, consume=21)
    alone.until_others()
    done = pwire("produce", topic, "-m", "20", url=url)
    assert done.returncode == 0, done.stderr
    said = client.answer()
    return {**said, "sent": [*said["sent"], None]}


def test_addresses_left_as_they_are(kept: Cluster, spread: str, pwire: Pwire, client: Client) -> None:
    """Clients leave the proxy then, and that is seen."""
    with (
        pytest.raises(AssertionError, match="others were connected"),
        Proxy(pwire, kept.url, "--no-rewrite") as proxy,
        Alone(kept, proxy) as alone,
    ):
        check_all(run_until_seen(alone, pwire, client, proxy.url, spread), 21)


@pytest.mark.parametrize("options", [LISTENERS, THROUGH], ids=["listeners", "through"])
def test_redirects(cluster: Cluster, movable: str, pwire: Pwire, client: Client, options: list[str]) -> None:
    redirect = cluster.redirect(movable)
    with Proxy(pwire, redirect.ask, *TAP, *options) as proxy, Alone(cluster, proxy) as alone:
        alone.until_seen()
        said = client.run(proxy.url, movable, produce=10, pause=50, consumers=1, consume=10)
        assert proxy.interrupt() == 0, proxy.said
    check_all(said, 10)
    assert "Redirect" in {frame["fields"]["response"] for frame in proxy.frames("LOOKUP_RESPONSE")}


@pytest.mark.parametrize(
    ("client", "to", "options"),
    [
        ("wheel", "broker", LISTENERS),
        ("java", "broker", LISTENERS),
        ("wheel", "broker", THROUGH),
        ("java", "broker", THROUGH),
        ("wheel", "proxy", LISTENERS),
        ("java", "proxy", THROUGH),
    ],
    indirect=["client"],
)
def test_unloads(
    kept: Cluster, topic: str, pwire: Pwire, client: Client, to: str, options: list[str]
) -> None:
    """Topics that move while messages are sent and consumed."""
    kept.rest("PUT", admin(topic))
    url = kept.proxy_url if to == "proxy" else kept.url
    with Proxy(pwire, url, *TAP, *options) as proxy, Alone(kept, proxy):
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


def owner(cluster: Cluster, topic: str) -> str:
    """The URL of the broker that serves a topic, which is made."""
    cluster.rest("PUT", admin(topic))
    return str(cluster.rest("GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"])


def test_a_broker_that_dies(
    kept: Cluster, topic: str, pwire: Pwire, java_client: Java, wheel_client: Wheel
) -> None:
    """Killed while clients send and are sent messages: they go on at the other one, behind their proxies."""
    victim = owner(kept, topic)
    role = f"broker-{kept.urls.index(victim) + 1}"
    names = (f"{topic}-{number}" for number in range(100))
    other = next(name for name in names if owner(kept, name) == victim)
    url = f"pulsar://{','.join(map(address, kept.urls))}"
    asked = {"produce": 600, "pause": 5, "send_timeout": 80_000, "consumers": 1, "consume": 600}
    with (
        Proxy(pwire, url, *TAP, *LISTENERS) as first,
        Proxy(pwire, url, *TAP, *THROUGH) as second,
        Alone(kept, first, second),
    ):
        wheel_client.ask(first.url, topic, **asked)
        java_client.ask(second.url, other, **asked)
        for proxy in (first, second):
            proxy.until_frames(50, "SEND_RECEIPT")
        try:
            kept.kill(role)
            for proxy in (first, second):
                assert len(proxy.frames("SEND_RECEIPT")) < 600
            for client in (wheel_client, java_client):
                check_all(client.answer(), 600)
            for proxy in (first, second):
                assert proxy.interrupt() == 0, proxy.said
        finally:
            kept.start(role)
