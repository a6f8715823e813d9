"""The proxy answers lookups over HTTP: clients with a web service URL stay behind it, too."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from net.relayed import CLOSE, Seen, Trust, plan_for, running
from net.scripted import run

from pulsarctl_wire.errors import SettingsError
from pulsarctl_wire.faults.lanes import Faults
from pulsarctl_wire.net.proxy import web as proxy_web
from pulsarctl_wire.net.proxy.proxy import Proxy
from pulsarctl_wire.net.proxy.routing import AddressFilter, Routing
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.settings import Address, Settings, parse_service_url, parse_url
from pulsarctl_wire.testing import Broker
from pulsarctl_wire.wire.frame import Connection, HttpMessage
from pulsarctl_wire.wire.framing.web_stream import WebStream

HOST = "127.0.0.1"
LOOKUP = "/lookup/v2/topic/persistent/public/default/t"
SERVICE = Address(HOST, 6650)


@dataclass
class Site:
    """A proxy with a web service behind it, which answers `answer` and notes what it was asked."""

    url: str
    address: Address
    seen: Seen
    proxy: Proxy
    requests: list[web.BaseRequest]
    answer: web.Response

    async def get(self, path: str = LOOKUP, method: str = "GET", **options: Any) -> tuple[int, Any]:
        session = aiohttp.ClientSession()
        async with session, session.request(method, self.url + path, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None


@asynccontextmanager
async def site(status: int = 200, value: object = None, **plan: Any) -> AsyncIterator[Site]:
    requests: list[web.BaseRequest] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        requests.append(request)
        headers = {"Location": str(value)} if status == 307 else None
        return web.json_response(value, status=status, headers=headers)

    async with AsyncExitStack() as stack:
        sock = socket.create_server((HOST, 0))
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, sock).start()
        to = parse_service_url(f"http://{HOST}:{sock.getsockname()[1]}")
        whole = plan_for(SERVICE, http_listen=Address(HOST, 0), http_to=to, **plan)
        proxy, address, seen = await stack.enter_async_context(running(whole))
        assert proxy.web is not None
        url = f"http{'s' if whole.tls else ''}://{proxy.web.address}"
        yield Site(url, address, seen, proxy, requests, web.Response())


def messages(seen: Seen) -> list[HttpMessage]:
    """The lookups that the tap was told of."""
    connection = Connection(0)
    streams = [WebStream(connection, way) for way in (False, True)]
    events = [event for way in (True, False) for event in streams[way].feed(bytes(seen.bytes[way]))]
    return [event for event in events if isinstance(event, HttpMessage)]


FOUND = {
    **{"brokerUrl": "pulsar://b:6650", "brokerUrlTls": "pulsar+ssl://b:6651", "brokerUrlSsl": ""},
    **{"httpUrl": "http://b:8080", "httpUrlTls": "https://b:8443", "nativeUrl": "pulsar://b:6650", "x": 1},
}


@pytest.mark.parametrize("routing", [Routing.LISTENERS, Routing.CONNECT])
def test_addresses_are_those_of_listeners(routing: Routing) -> None:
    async def whole() -> None:
        async with site(value=FOUND, routing=routing) as one:
            for _ in range(2):
                status, fields = await one.get()
                assert status == 200
                plain = parse_url(fields["brokerUrl"]).addresses[0]
                assert plain.host == HOST
                assert plain.port not in (6650, one.address.port)
                assert fields == {
                    **{"brokerUrl": f"pulsar://{plain}", "brokerUrlTls": f"pulsar+ssl://{plain}", "x": 1},
                    **{"brokerUrlSsl": "", "httpUrl": one.url, "nativeUrl": f"pulsar://{plain}"},
                }
            assert one.proxy.web is not None
            assert one.proxy.web.lookups == 2

    run(whole())


def test_the_service_itself_has_a_listener_already() -> None:
    async def whole() -> None:
        async with site(value={"brokerUrl": f"pulsar://{SERVICE}"}) as one:
            _, fields = await one.get()
            assert fields["brokerUrl"] == f"pulsar://{one.address}"

    run(whole())


def test_addresses_are_left_as_they_are() -> None:
    async def whole() -> None:
        async with site(value=FOUND, routing=Routing.NONE) as one:
            assert await one.get() == (200, FOUND)

    run(whole())


@pytest.mark.parametrize(
    ("status", "value"),
    [(200, []), (200, {"brokerUrl": "kafka://b"}), (200, {}), (404, {"reason": "none"}), (503, None)],
)
def test_other_answers_are_passed_on(status: int, value: object) -> None:
    async def whole() -> None:
        async with site(status, value) as one:
            assert await one.get() == (status, value)

    run(whole())


def test_partitions_topics_and_schemas_are_passed_on() -> None:
    async def whole() -> None:
        async with site(value={"partitions": 3}) as one:
            paths = [
                "/admin/v2/persistent/a/b/c%2Fd/partitions?checkAllowAutoCreation=true",
                "/admin/v2/namespaces/a/b/topics?mode=ALL",
                "/admin/v2/schemas/a/b/c/schema/0",
            ]
            for path in paths:
                assert await one.get(path) == (200, {"partitions": 3})
            assert [request.rel_url.raw_path_qs for request in one.requests] == paths

    run(whole())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/clusters"),
        ("GET", "/"),
        ("PUT", "/admin/v2/persistent/a/b/c/partitions"),
        ("DELETE", "/admin/v2/schemas/a/b/c/schema"),
        ("POST", LOOKUP),
        ("GET", "/admin/v2/persistent/a/b/../../../clusters/partitions"),
    ],
)
def test_everything_else_is_refused(method: str, path: str) -> None:
    async def whole() -> None:
        async with site(value=FOUND) as one:
            status, fields = await one.get(path, method)
            assert status == 404
            assert "lookups only" in fields["reason"]
            assert one.requests == []
            assert not one.seen.bytes[True]

    run(whole())


def test_credentials_are_passed_on_and_the_tap_sees_all() -> None:
    async def whole() -> None:
        async with site(value=FOUND) as one:
            headers = {"Authorization": "Bearer abc", "X-Pulsar-Auth-Method-Name": "token", "TE": "x"}
            _, fields = await one.get(f"{LOOKUP}?authoritative=true&token=abc", headers=headers)
            (request,) = one.requests
            assert request.headers["Authorization"] == "Bearer abc"
            assert request.headers["X-Pulsar-Auth-Method-Name"] == "token"
            assert "TE" not in request.headers
            asked, told = messages(one.seen)
            assert asked.target == f"{LOOKUP}?authoritative=true&token=[redacted]"
            assert told.fields["brokerUrl"] == fields["brokerUrl"]
            assert told.status == 200

    run(whole())


def test_a_web_service_that_is_gone() -> None:
    async def whole() -> None:
        with socket.create_server((HOST, 0)) as sock:
            port = sock.getsockname()[1]
        to = parse_service_url(f"http://{HOST}:{port}")
        plan = plan_for(SERVICE, http_listen=Address(HOST, 0), http_to=to)
        async with running(plan) as (proxy, address, seen):
            assert proxy.web is not None
            one = Site(f"http://{proxy.web.address}", address, seen, proxy, [], web.Response())
            for _ in range(2):
                status, fields = await one.get()
                assert (status, fields["reason"]) == (
                    502,
                    f"no answer of the web service: {HOST}:{port}: refused",
                )
            assert sum("no answer of the web service" in note for note in seen.notes) == 1

    run(whole())


@pytest.mark.parametrize(
    ("location", "allowed", "text"),
    [
        ("http://169.254.169.254/x", (), "not allowed"),
        ("http://10.1.2.3:8080/x", ("192.168.0.0/16",), "not allowed"),
        ("https://127.0.0.1/x", (), "which is not http://"),
        (LOOKUP, (), "redirect in circles"),
    ],
)
def test_redirects_that_are_not_followed(location: str, allowed: tuple[str, ...], text: str) -> None:
    async def whole() -> None:
        async with site(307, location, allowed=AddressFilter(allowed)) as one:
            status, fields = await one.get()
            assert status == 502
            assert text in fields["reason"]

    run(whole())


def test_a_client_behind_it_in_a_cluster() -> None:
    async def whole() -> None:
        async with Broker(brokers=2) as broker:
            addresses = [parse_url(url).addresses[0] for url in broker.service_urls]
            first, second = broker._url("http_url", 0), broker._url("http_url", 1)
            plan = plan_for(
                *addresses[:1], http_listen=Address(HOST, 0), http_to=parse_service_url(f"{second}")
            )
            async with running(plan) as (proxy, address, _):
                assert proxy.web is not None
                own = parse_service_url(f"http://{proxy.web.address}")
                async with Client(Settings(own)) as client:
                    told = set()
                    for number in range(8):
                        topic = f"persistent://public/default/t{number}"
                        hops = [hop async for hop in client.trace_lookup(topic)]
                        assert [hop.status for hop in hops] == [200]
                        link = await client.open_link(client.find_broker(hops[0]))
                        assert link.is_open
                        told.add(parse_url(hops[0].url).addresses[0])
                    assert told.isdisjoint(addresses)
                    assert address in told
            assert first != second

    run(whole())


def test_tls_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    async def whole() -> None:
        trust = Trust.make(tmp_path)
        async with Broker(tls=True) as broker:
            plan = plan_for(
                parse_url(broker.service_url_tls).addresses[0],
                secure=True,
                settings={"tls_ca": broker.ca_file},
                tls=trust.server,
                http_listen=Address(HOST, 0),
                http_to=parse_service_url(broker.https_url),
            )
            async with running(plan) as (proxy, address, _):
                assert proxy.web is not None
                own = parse_service_url(f"https://{proxy.web.address}")
                async with Client(Settings(own, tls_ca=str(trust.ca))) as client:
                    (hop,) = [hop async for hop in client.trace_lookup("persistent://public/default/t")]
                    assert hop.url_tls == f"pulsar+ssl://{address}"
                    assert (await client.open_link(client.find_broker(hop))).is_open

    run(whole())


def test_the_address_is_taken() -> None:
    async def whole() -> None:
        with socket.create_server((HOST, 0)) as sock:
            taken = Address(HOST, sock.getsockname()[1])
            plan = plan_for(SERVICE, http_listen=taken, http_to=parse_service_url("http://b"))
            proxy = Proxy(plan, Faults(seed=1), Seen())
            with pytest.raises(SettingsError, match="--http-listen"):
                await proxy.open()
            await proxy.close(CLOSE)

    run(whole())


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_web, "MAX_CONNECTIONS", 1)

    async def whole() -> None:
        async with site(value=FOUND) as one:
            _, _, port = one.url.rpartition(":")
            with socket.create_connection((HOST, int(port))), pytest.raises(aiohttp.ClientError):
                await one.get()

    run(whole())
