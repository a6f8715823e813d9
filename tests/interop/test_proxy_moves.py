"""`pwire proxy` before a broker that takes PROXY headers, and that sends topics to another cluster."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from interop.brokers import Broker, Standalone
from interop.conftest import running
from interop.sessions import Alone, Clients, Proxy
from interop.test_cluster import admin

if TYPE_CHECKING:
    from interop.conftest import Pwire

pytestmark = pytest.mark.real("the embedded one takes no PROXY headers, and no cluster is migrated")

TAP = ("--tap", "-o", "json")


@pytest.fixture(scope="module")
def blue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker; the cluster that it can send clients to is that of the fixture `broker`."""
    settings = {"haProxyProtocolEnabled": True, "clusterMigrationCheckDurationSeconds": 1}
    yield from running(lambda: Standalone(tmp_path_factory.mktemp("blue"), settings=settings))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_origin(blue: Broker, topic: str, pwire: Pwire, clients: Clients, version: int) -> None:
    """The broker knows clients by their own addresses, if a PROXY header tells them."""
    with Proxy(pwire, blue.url, *TAP, "--send-proxy-protocol", version) as proxy:
        for name, client in clients.items():
            client.ask(proxy.url, f"{topic}-{name}", consumers=1, consume=1)
        proxy.until_frames(2, "SUCCESS")
        known = set()
        for name in clients:
            (consumer,) = blue.rest("GET", f"{admin(topic)}-{name}/stats")["subscriptions"]["s"]["consumers"]
            known.add(consumer["address"].removeprefix("/"))
        for name, client in clients.items():
            done = pwire("produce", f"{topic}-{name}", "-m", "0", url=proxy.url)
            assert done.returncode == 0, done.stderr
            assert client.answer()["received"] == [[["0", None]]]
        assert proxy.interrupt() == 0, proxy.said
    own = {frame["client"] for frame in proxy.frames("SUBSCRIBE")}
    assert len(own) == len(known) == 2
    assert (known == own) is (version > 0)
    assert known.isdisjoint(own) is (version == 0)


def has_receipt(proxy: Proxy, space: str) -> bool:
    """Whether the broker has taken a message of the namespace."""
    return any(frame["topic"].startswith(f"persistent://{space}/") for frame in proxy.frames("SEND_RECEIPT"))


@pytest.mark.parametrize("options", [[], ["--through"]], ids=["listeners", "through"])
def test_another_cluster(
    blue: Broker, broker: Broker, pwire: Pwire, clients: Clients, options: list[str]
) -> None:
    """Who is sent to it between two messages sends the second one there, and gets it, behind the proxy."""
    spaces = [f"public/moved-{secrets.token_hex(4)}" for _ in clients]
    for each in (blue, broker):
        for space in spaces:
            each.rest("PUT", f"/admin/v2/namespaces/{space}")
    green = {"serviceUrl": broker.http_url, "brokerServiceUrl": broker.url}
    blue.rest("POST", "/admin/v2/clusters/standalone/migrate?migrated=false", green)
    with Proxy(pwire, blue.url, *TAP, *options) as proxy, Alone(blue, proxy), Alone(broker, proxy):
        for space, client in zip(spaces, clients.values(), strict=True):
            # pauses, for what is sent just then may leave the broker's topic fenced for half a minute
            asked = {"produce": 2, "pause": 8000, "consumers": 1, "consume": 2}
            client.ask(proxy.url, f"persistent://{space}/t", **asked)
        while spaces:  # each one moves right after its first message
            proxy.until(lambda: any(has_receipt(proxy, each) for each in spaces))
            for space in [each for each in spaces if has_receipt(proxy, each)]:
                blue.rest("POST", f"/admin/v2/namespaces/{space}/migration", True)
                spaces.remove(space)
        for client in clients.values():
            said = client.answer()
            assert said["sent"] == [None] * 2
            assert [text for text, _ in said["received"][0]] == ["0", "1"]
        assert proxy.interrupt() == 0, proxy.said
    moved = [frame["fields"] for frame in proxy.frames("TOPIC_MIGRATED")]
    assert {each["resource_type"] for each in moved} == {"Producer", "Consumer"}
    (told,) = {each["brokerServiceUrl"] for each in moved}
    assert told not in (blue.url, broker.url, proxy.url)
    receipts = [(frame["topic"], f"pulsar://{frame['server']}") for frame in proxy.frames("SEND_RECEIPT")]
    assert len(receipts) == len(set(receipts)) == 4
    assert {server for _, server in receipts} == {blue.url, broker.url}
