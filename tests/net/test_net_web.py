"""Sessions whose service URL is that of a web service: lookups over HTTP, then the binary protocol."""

from __future__ import annotations

import json
import socket
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from net.scripted import run

from pulsarctl_wire.conformance.basics.tokens import sign
from pulsarctl_wire.errors import BrokerError, LinkClosed, RequestTimeout, SettingsError, Unreachable
from pulsarctl_wire.net.session.client import Client, find_broker_url
from pulsarctl_wire.net.session.hop import Hop
from pulsarctl_wire.net.session.watch import list_topics
from pulsarctl_wire.net.settings import MAX_REDIRECTS, Settings, gather, make_settings, parse_service_url
from pulsarctl_wire.testing import Broker
from pulsarctl_wire.wire.commands import build_command
from pulsarctl_wire.wire.PulsarApi_pb2 import Schema

T = "persistent://public/default/t"
RECORD = b'{"type":"record","name":"R","fields":[]}'
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def settings_of(url: str, **flags: str) -> Settings:
    return make_settings(gather({"url": url, **flags}, {}), timeout=5.0, connect_timeout=5.0)


@asynccontextmanager
async def site(handler: Handler) -> AsyncIterator[str]:
    """A web service that does as `handler` says; its URL."""
    sock = socket.create_server(("127.0.0.1", 0))
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.SockSite(runner, sock).start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await runner.cleanup()


async def trace(client: Client, topic: str = T) -> list[Hop]:
    return [hop async for hop in client.trace_lookup(topic)]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("text", "is_tls", "ports"),
    [
        ("http://a", False, [80]),
        ("https://a/", True, [443]),
        ("http://a:8080,b:8081", False, [8080, 8081]),
        ("https://[::1]:8443", True, [8443]),
    ],
)
def test_web_service_urls(text: str, is_tls: bool, ports: list[int]) -> None:
    url = parse_service_url(text)
    assert (url.is_web, url.tls, [address.port for address in url.addresses]) == (True, is_tls, ports)
    assert parse_service_url(str(url)) == url


@pytest.mark.parametrize("text", ["ftp://a", "http://", "http://user:pw@a", "http://a:0", "http://a/path"])
def test_urls_that_are_none(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_service_url(text)


def test_a_session_over_http_ends_at_the_broker() -> None:
    async def whole() -> None:
        async with Broker(partitions={"parts": 3}) as broker, Client(settings_of(broker.http_url)) as client:
            link = await client.open_link(await client.lookup(T))
            schema = Schema(name="t", type=Schema.Json, schema_data=RECORD)
            command = build_command("PRODUCER", topic=T, producer_id=0, schema=schema)
            await link.request(command)
            (hop,) = await trace(client)
            assert (hop.status, hop.response, hop.url) == (200, "Connect", broker.service_url)
            assert hop.call == "GET /lookup/v2/topic/persistent/public/default/t?authoritative=false"
            assert await client.count_partitions("persistent://public/default/parts") == 3
            assert await client.count_partitions(T, create=False) == 0
            names = await list_topics(client, "public/default", pattern=".*/default/(t|parts)")
            assert T in names
            body = await client.get_schema(T)
            assert (body.schema.type, body.schema.schema_data) == (Schema.Json, RECORD)
            assert body.schema_version == bytes(8)
            cached = await client.fetch_schema(T, bytes(8))
            assert cached is not None
            assert cached.type == Schema.Json
            link = await client.open_service_link()
            assert str(link.address) == broker.service_url.partition("://")[2]

    run(whole())


def test_topics_whose_names_need_quotes() -> None:
    async def whole() -> None:
        async with Broker() as broker, Client(settings_of(broker.http_url)) as client:
            for name in ("a b", "ä?&=#%2F", "a+b"):
                (hop,) = await trace(client, f"persistent://public/default/{name}")
                assert hop.status == 200, name

    run(whole())


def test_redirects_lead_to_the_owner() -> None:
    async def whole() -> None:
        async with Broker(brokers=2) as broker:
            cluster = broker._running.server.cluster  # type: ignore[union-attr]
            first, second = cluster.brokers
            async with Client(settings_of(second.http_url)) as client:
                await trace(client, "persistent://public/default/another")
                hops = await trace(client)
                assert [hop.status for hop in hops[:-1]] == [307] * (len(hops) - 1)
                assert len(hops) >= 2
                assert hops[0].url.startswith(f"{first.http_url}/lookup/v2/topic/persistent/public/default/t")
                for hop, following in pairwise(hops):
                    assert following.authoritative is hop.says_authoritative
                owner = client.find_broker(hops[-1])
                link = await client.open_link(owner)
                assert link.is_open
                again = await trace(client)
                assert [hop.status for hop in again] == [200]

    run(whole())


def test_listeners_are_asked_for() -> None:
    listeners = {"advertisedListeners": "internal:pulsar://127.0.0.1:1,outside:pulsar://127.0.0.1:2"}

    async def whole() -> None:
        async with Broker(settings=listeners) as broker:
            async with Client(settings_of(broker.http_url, listener_name="outside")) as client:
                (hop,) = await trace(client)
                assert hop.url == "pulsar://127.0.0.1:2"
            async with Client(settings_of(broker.http_url, listener_name="none")) as client:
                with pytest.raises(BrokerError, match="HTTP 500 the broker do not have none listener"):
                    await trace(client)

    run(whole())


def test_hosts_are_tried_in_turn() -> None:
    async def whole() -> None:
        async with Broker() as broker:
            port = closed_port()
            url = f"http://127.0.0.1:{port},{broker.http_url.removeprefix('http://')}"
            async with Client(settings_of(url)) as client:
                assert [hop.status for hop in await trace(client)] == [200]
            url = f"http://127.0.0.1:{port},localhost:{port}"
            async with Client(settings_of(url)) as client:
                with pytest.raises(
                    Unreachable, match=f"127.0.0.1:{port}: refused; localhost:{port}: refused"
                ):
                    await trace(client)

    run(whole())


@pytest.mark.parametrize(
    ("flags", "headers"),
    [
        ({"token": "abc"}, {"X-Pulsar-Auth-Method-Name": "token", "Authorization": "Bearer abc"}),
        ({"basic": "me:pw"}, {"X-Pulsar-Auth-Method-Name": "basic", "Authorization": "Basic bWU6cHc="}),
        ({"auth_plugin": "tls"}, {"X-Pulsar-Auth-Method-Name": "tls"}),
    ],
)
def test_credentials_are_sent_also_to_where_a_redirect_leads(
    flags: dict[str, str], headers: dict[str, str]
) -> None:
    seen: list[dict[str, str]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(dict(request.headers))
        if len(seen) == 1:
            return web.Response(status=307, headers={"Location": "/lookup/v2/topic/x?authoritative=true"})
        return web.json_response({"brokerUrl": "pulsar://b:1"})

    async def whole() -> None:
        async with site(handle) as url, Client(settings_of(url, **flags)) as client:
            hops = await trace(client)
            assert [hop.authoritative for hop in hops] == [False, True]
        assert len(seen) == 2
        for sent in seen:
            assert headers.items() <= sent.items()

    run(whole())


def test_a_broker_that_wants_a_token() -> None:
    async def whole() -> None:
        key = "c2VjcmV0LWtleS1vZi1hdC1sZWFzdC0zMi1ieXRlcy1sb25n"
        chosen = {
            "authenticationEnabled": "true",
            "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
            "tokenSecretKey": f"data:;base64,{key}",
        }
        token = sign(b64decode(key), sub="me")
        async with Broker(settings=chosen) as broker:
            async with Client(settings_of(broker.http_url, token=token)) as client:
                assert [hop.status for hop in await trace(client)] == [200]
            async with Client(settings_of(broker.http_url)) as client:
                with pytest.raises(
                    BrokerError, match="AuthenticationError: HTTP 401 Authentication required"
                ):
                    await trace(client)

    run(whole())


def test_tls(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    async def whole() -> None:
        async with Broker(tls=True, brokers=2) as broker:
            cluster = broker._running.server.cluster  # type: ignore[union-attr]
            url = cluster.brokers[1].https_url
            async with Client(settings_of(url, tls_ca=broker.ca_file)) as client:
                hops = await trace(client)
                assert hops[0].url.startswith(cluster.brokers[0].https_url)
                link = await client.open_link(client.find_broker(hops[-1]))
                assert link.is_open
            async with Client(settings_of(url)) as client:
                with pytest.raises(Unreachable, match=r"certificate is not trusted.*--tls-ca"):
                    await trace(client)
            async with Client(settings_of(broker.http_url.replace("http", "https"))) as client:
                with pytest.raises(Unreachable, match="no TLS there"):
                    await trace(client)

    run(whole())


def redirect_to(url: str) -> Handler:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": url})

    return handle


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("/lookup/v2/topic/x", f"still a redirect after {MAX_REDIRECTS}"),
        ("https://127.0.0.1:1/x", "which is not http://"),
        ("file:///etc/passwd", "a service URL begins with"),
        ("http://[::1", "Invalid IPv6 URL"),
    ],
)
def test_redirects_that_lead_nowhere(location: str, text: str) -> None:
    async def whole() -> None:
        async with site(redirect_to(location)) as url, Client(settings_of(url)) as client:
            with pytest.raises(Unreachable) as raised:
                await trace(client)
            assert text in str(raised.value)

    run(whole())


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, b"", "AuthenticationError"),
        (403, b"<html>no</html>", "AuthorizationError"),
        (404, b'{"reason": "Namespace not found"}', "TopicNotFound"),
        (412, b"[1]", "InvalidTopicName"),
        (429, b"{}", "TooManyRequests"),
        (500, b'{"reason": "\\n --- unexpected ---\\n\\nMessage: told\\n\\nStacktrace: x"}', "UnknownError"),
        (503, b"\xff", "ServiceNotReady"),
    ],
)
def test_refusals(status: int, body: bytes, code: str) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, body=body)

    async def whole() -> None:
        async with site(handle) as url, Client(settings_of(url)) as client:
            with pytest.raises(BrokerError) as raised:
                await trace(client)
            assert (raised.value.code, raised.value.request) == (code, "LOOKUP")
            assert f"HTTP {status}" in str(raised.value)
            assert "Stacktrace" not in str(raised.value)

    run(whole())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"brokerUrl": 7}', b'{"brokerUrl": "\\ud800"}', b"[" * 100_000]
)
def test_answers_that_name_no_broker(body: bytes) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body)

    async def whole() -> None:
        async with site(handle) as url, Client(settings_of(url)) as client:
            with pytest.raises(Unreachable):
                await client.lookup(T)
            with pytest.raises(Unreachable):
                await client.count_partitions(T)
            with pytest.raises(Unreachable):
                await client.get_schema(T)

    run(whole())


def test_an_answer_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsarctl_wire.net.web.MAX_BODY", 100)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=bytes(101))

    async def whole() -> None:
        async with site(handle) as url, Client(settings_of(url)) as client:
            with pytest.raises(Unreachable, match="more than"):
                await client.lookup(T)

    run(whole())


def test_what_is_no_web_service() -> None:
    async def whole() -> None:
        async with Broker() as broker, Client(settings_of(f"http://127.0.0.1:{broker.port}")) as client:
            with pytest.raises((BrokerError, Unreachable, LinkClosed)) as raised:
                await client.lookup(T)
            assert "over HTTP" in str(raised.value)
        silent = socket.create_server(("127.0.0.1", 0))
        settings = make_settings(
            {"url": f"http://127.0.0.1:{silent.getsockname()[1]}"}, timeout=0.2, connect_timeout=0.2
        )
        async with Client(settings) as client:
            with pytest.raises(RequestTimeout, match="no answer over HTTP within"):
                await client.lookup(T)
        silent.close()

    run(whole())


def test_settings_for_what_needs_a_broker_itself() -> None:
    async def whole() -> None:
        async with Broker() as broker:
            plain = settings_of(broker.service_url)
            assert await find_broker_url(plain) is plain
            assert str((await find_broker_url(settings_of(broker.http_url))).url) == broker.service_url

    run(whole())


def test_key_and_value_schemas() -> None:
    answer = {
        "version": 3,
        "type": "KEY_VALUE",
        "data": json.dumps({"key": "", "value": {"type": "record"}}),
        "properties": {"kv.encoding.type": "INLINE"},
    }

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == "/admin/v2/schemas/public/default/t/schema/3"
        return web.json_response(answer)

    async def whole() -> None:
        async with site(handle) as url, Client(settings_of(url)) as client:
            body = await client.get_schema(T, (3).to_bytes(8, "big"))
            assert body.schema_version == (3).to_bytes(8, "big")
            assert body.schema.type == Schema.KeyValue
            assert body.schema.schema_data == bytes(4) + (17).to_bytes(4, "big") + b'{"type":"record"}'
            assert [(pair.key, pair.value) for pair in body.schema.properties] == [
                ("kv.encoding.type", "INLINE")
            ]

    run(whole())
