"""The admin API over HTTP: what is refused, what answers look like, redirects, metrics."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from broker.targets import EmbeddedTarget
from interop.credentials import make_certificates
from net.scripted import run

from pulsarctl_wire.broker.admin.namespaces import MAX_BUNDLES
from pulsarctl_wire.broker.basics.settings import parse_settings
from pulsarctl_wire.broker.cluster.cluster import NO_KEYS
from pulsarctl_wire.broker.shell import http
from pulsarctl_wire.broker.shell.http import MAX_BODY_BYTES, serve_http
from pulsarctl_wire.broker.shell.server import Server
from pulsarctl_wire.broker.tenancy.access import Keys
from pulsarctl_wire.conformance.basics.tokens import sign
from pulsarctl_wire.net import web_server


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    phrase: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """An embedded broker with its HTTP port."""

    def __init__(self, server: Server, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.server = server
        self.port = port
        self._tls = tls

    async def raw(self, data: bytes) -> Reply:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self._tls, server_hostname="localhost" if self._tls else None
        )
        writer.write(data)
        text = await reader.read()
        writer.close()
        head, _, body = text.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        _, status, phrase = first.split(" ", 2)
        return Reply(int(status), headers, body, phrase)

    async def refused(self) -> bytes:
        """What a client gets that asks for the version: nothing if its connection is ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /admin/v2/brokers/version HTTP/1.0\r\nHost: localhost\r\n\r\n")
        with closing(writer), suppress(ConnectionResetError):
            return await reader.read()
        return b""

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Reply:
        given = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", **(headers or {})}
        if body:
            given["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return await self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)


@asynccontextmanager
async def site(
    brokers: int = 1,
    tls: ssl.SSLContext | None = None,
    client: ssl.SSLContext | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
    keys: Keys = NO_KEYS,
) -> AsyncIterator[list[Site]]:
    server = Server(parse_settings(settings), brokers=brokers, keys=keys)
    sites, runners = [], []
    for broker in server.cluster.brokers:
        server.listen(broker, socket.create_server(("127.0.0.1", 0)))
        sock = socket.create_server(("127.0.0.1", 0))
        runners.append(await serve_http(server, broker, sock, ssl_context=tls))
        sites.append(Site(server, sock.getsockname()[1], client))
    try:
        yield sites
    finally:
        for runner in runners:
            await runner.cleanup()
        await server.close()


def checked(test: Callable[[Site], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with site() as (one,):
            await test(one)

    run(whole())


DEFAULT = "/admin/v2/namespaces/public/default"


@pytest.mark.parametrize(("bundles", "status"), [(MAX_BUNDLES, 204), (MAX_BUNDLES + 1, 400)])
def test_so_many_bundles(bundles: int, status: int) -> None:
    async def check(one: Site) -> None:
        body = json.dumps({"bundles": {"numBundles": bundles}}).encode()
        assert (await one.ask("PUT", "/admin/v2/namespaces/public/many", body)).status == status

    checked(check)


def test_answers() -> None:
    async def check(one: Site) -> None:
        reply = await one.ask("GET", DEFAULT)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.json["bundles"]["numBundles"] == 4
        reply = await one.ask("GET", f"{DEFAULT}/retention")
        assert (reply.status, reply.body) == (200, b"")
        assert "content-type" not in reply.headers
        reply = await one.ask("POST", f"{DEFAULT}/messageTTL", b"100")
        assert (reply.status, reply.body) == (204, b"")
        assert (await one.ask("GET", f"{DEFAULT}/messageTTL")).json == 100
        reply = await one.ask("GET", "/admin/v2/brokers/health")
        assert (reply.status, reply.body) == (200, b"ok")
        reply = await one.ask("GET", "/admin/v2/namespaces/public/nope")
        assert (reply.status, reply.json) == (404, {"reason": "Namespace does not exist"})
        assert reply.phrase == "Namespace does not exist"

    checked(check)


def test_partitioned_topic_metadata() -> None:
    async def check(one: Site) -> None:
        path = "/admin/v2/persistent/public/default/t/partitions"
        kind = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}
        body = b'{"partitions": 2, "properties": {"a": "b"}}'
        assert (await one.ask("PUT", path, body, kind)).status == 204
        reply = await one.ask("GET", path)
        assert reply.json == {"partitions": 2, "deleted": False, "properties": {"a": "b"}}

    checked(check)


def test_the_host_must_be_this_machine() -> None:
    async def check(one: Site) -> None:
        for host in ("localhost", "127.0.0.1", "[::1]", f"LOCALHOST:{one.port}", "localhost."):
            assert (await one.ask("GET", DEFAULT, headers={"Host": host})).status == 200, host
        for host in (
            "example.com",
            "localhost.example.com",
            f"evil:{one.port}",
            "192.168.1.1",
            "[::1",
            "",
            "a@b:1",
        ):
            reply = await one.ask("GET", DEFAULT, headers={"Host": host})
            assert (reply.status, "reason" in reply.json) == (403, True), host

    checked(check)


def test_pages_of_other_sites_are_refused() -> None:
    async def check(one: Site) -> None:
        for origin in (
            *("http://example.com", "null", "https://localhost.example.com", "file://"),
            *("http://localhost:3000", f"http://localhost:{one.port}"),
        ):
            reply = await one.ask("POST", f"{DEFAULT}/messageTTL", b"1", {"Origin": origin})
            assert reply.status == 403, origin
        own = {"Origin": f"http://127.0.0.1:{one.port}"}
        assert (await one.ask("GET", DEFAULT, headers=own)).status == 200
        assert (await one.ask("GET", DEFAULT, headers={"Sec-Fetch-Site": "cross-site"})).status == 403
        assert (await one.ask("GET", f"{DEFAULT}/messageTTL")).body == b""

    checked(check)


PATHS = [
    *("/metrics", "/pwire/state", "/pwire/advance", "/lookup/v2/topic/persistent/public/default/t"),
    *(DEFAULT, "/admin/v3/functions/a/b", "/none", "/"),
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_is_for_other_sites(path: str) -> None:
    """A page whose name was made to point to this machine (DNS rebinding) is served nothing."""

    async def check(one: Site) -> None:
        one.server.cluster.brokers[0].http_url = f"http://broker.example:{one.port}"
        evil = f"evil.example:{one.port}"
        for headers in (
            {"Host": evil, "Origin": f"http://{evil}"},
            {"Origin": f"http://{evil}"},
            {"Host": f"broker.example:{one.port}", "Origin": "null"},
        ):
            for method in ("GET", "POST", "OPTIONS"):
                assert (await one.ask(method, path, b"{}", headers)).status == 403
        advertised = f"broker.example:{one.port}"
        reply = await one.ask("GET", path, headers={"Host": advertised, "Origin": f"http://{advertised}"})
        assert reply.status != 403

    checked(check)


HEAD = b"POST /pwire/advance HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 403),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"\x00\x00\x00\x05\x00\x00\x00\x01\x02\r\n\r\n", 400),
        (b"GET /admin/\x00\x07 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_malformed_requests(request_: bytes, status: int, capfd: pytest.CaptureFixture[str]) -> None:
    async def check(one: Site) -> None:
        assert (await one.raw(request_)).status == status
        assert (await one.ask("GET", "/metrics")).status == 200

    checked(check)
    assert capfd.readouterr().err == ""


def test_requests_that_do_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (http, web_server):
        monkeypatch.setattr(module, "PATIENCE", 0.05)

    async def check(one: Site) -> None:
        assert (await one.raw(HEAD + b"Content-Length: 9\r\n\r\n")).status == 408
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(HEAD)
        assert await reader.read() == b""
        writer.close()

    checked(check)


def test_a_client_that_leaves_before_its_request_is_complete(capfd: pytest.CaptureFixture[str]) -> None:
    async def check(one: Site) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(HEAD + b"Content-Length: 9\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()
        assert (await one.ask("GET", "/metrics")).status == 200

    checked(check)
    assert capfd.readouterr().err == ""


def test_the_number_of_connections_is_limited() -> None:
    async def whole() -> None:
        async with site(settings={"maxHttpServerConnections": 2}) as (one,):
            held = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(2)]
            assert (await one.refused()) == b""
            held.pop()[1].close()
            while await one.refused() == b"":
                pass  # until it was noticed that one has left
            held.pop()[1].close()

    run(whole())


@pytest.mark.parametrize(
    "body", [b"{bad", b"{", b"\xff\xfe", b"NaN", b"[" * 100_000, b'"\\ud800', b"1 2", b"1" * 5000]
)
def test_malformed_json(body: bytes) -> None:
    async def check(one: Site) -> None:
        reply = await one.ask("POST", f"{DEFAULT}/retention", body)
        assert (reply.status, reply.json) == (400, {"reason": "The body is no JSON"})

    checked(check)


@pytest.mark.parametrize(
    "body", [b"[]", b'"x"', b"1e400", b"true", b"-1.5", b'{"retentionTimeInMinutes": "x"}']
)
def test_json_of_a_wrong_kind(body: bytes) -> None:
    async def check(one: Site) -> None:
        for path in ("retention", "maxProducersPerTopic", "backlogQuota", "permissions/x", "properties"):
            method = "PUT" if path == "properties" else "POST"
            reply = await one.ask(method, f"{DEFAULT}/{path}", body)
            assert (reply.status < 500, "Traceback" in reply.body.decode()) == (True, False), path

    checked(check)


def test_large_bodies() -> None:
    async def check(one: Site) -> None:
        reply = await one.ask("POST", f"{DEFAULT}/retention", b" " * (MAX_BODY_BYTES + 1))
        assert (reply.status, "reason" in reply.json) == (413, True)

    checked(check)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/admin/v2/nope", 404),
        ("/admin/v2/persistent/public/default/t/subscription/s/position/x", 404),
        ("/admin/v2/persistent/public/default/%00%ff/stats", 404),
        ("/admin/v2/persistent/public/a%20b/t/stats", 404),
        ("/admin/v3/functions/public/default", 501),
        ("/admin/v3/sinks/builtinsinks", 501),
        ("/admin/v3/packages/function/public/default", 501),
        ("/admin/v2/worker/cluster", 501),
        ("/admin/v2/bookies/all", 501),
        ("/admin/v2/resource-quotas", 501),
        (f"{DEFAULT}/offloadPolicies", 501),
    ],
)
def test_odd_and_missing_paths(path: str, status: int) -> None:
    async def check(one: Site) -> None:
        reply = await one.ask("GET", path)
        assert (reply.status, "reason" in reply.json) == (status, True)

    checked(check)


def test_a_message_is_its_payload_with_headers() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            broker = target.server.cluster.brokers[0]
            sock = socket.create_server(("127.0.0.1", 0))
            runner = await serve_http(target.server, broker, sock)
            one = Site(target.server, sock.getsockname()[1])
            topic = target.topic()
            producer = await target.produce(topic)
            pairs = [{"key": "a\r\nX-Evil: 1", "value": "é"}]
            await producer.publish_all(b"\x00\xff", meta_properties=pairs, meta_partition_key="k\nk")
            path = topic.replace("persistent://", "/admin/v2/persistent/")
            reply = await one.ask("GET", f"{path}/subscription/s/position/1")
            await runner.cleanup()
        assert (reply.status, reply.body) == (200, b"\x00\xff")
        assert json.loads(reply.headers["x-pulsar-property"]) == {"a\r\nX-Evil: 1": "é"}
        assert reply.headers["x-pulsar-partition-key"] == "k k"
        assert reply.headers["x-pulsar-publish-time"] == "2023-11-14T22:13:20Z"
        assert "x-evil" not in reply.headers

    run(whole())


def test_what_another_broker_owns_is_redirected() -> None:
    async def whole() -> None:
        async with site(brokers=2) as (first, second):
            topic = "/admin/v2/persistent/public/default/t"
            assert (await first.ask("PUT", topic)).status == 204
            assert (await second.ask("GET", f"{topic}/stats")).status == 200
            reply = await first.ask("GET", f"{topic}/stats?getPreciseBacklog=true")
            assert (reply.status, reply.body) == (307, b"")
            where = f"http://127.0.0.1:{second.port}{topic}/stats?getPreciseBacklog=true&authoritative=false"
            assert reply.headers["location"] == where
            found = (await first.ask("GET", "/lookup/v2/topic/persistent/public/default/t")).json
            assert found["httpUrl"] == f"http://127.0.0.1:{second.port}"

    run(whole())


def test_metrics() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("default") as target:
            broker = target.server.cluster.brokers[0]
            sock = socket.create_server(("127.0.0.1", 0))
            runner = await serve_http(target.server, broker, sock)
            one = Site(target.server, sock.getsockname()[1])
            topic = await target.fill(3)
            await target.rest(
                "PUT", topic.replace("://", "/").join(["/admin/v2/", '/subscription/a"b']), "earliest"
            )
            reply = await one.ask("GET", "/metrics")
            await runner.cleanup()
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = reply.body.decode()
        labels = f'cluster="standalone",namespace="public/default",topic="{topic}"'
        assert f"pulsar_in_messages_total{{{labels}}} 3\n" in text
        assert f'pulsar_subscription_back_log{{{labels},subscription="a\\"b"}} 3\n' in text
        assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 1\n' in text
        from prometheus_client.parser import text_string_to_metric_families

        names = {family.name for family in text_string_to_metric_families(text)}
        wanted = "producers_count consumers_count rate_in throughput_out storage_size subscriptions_count"
        assert names >= {f"pulsar_{name}" for name in wanted.split()}

    run(whole())


def test_https(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.server_cert, files.server_key)
    client = ssl.create_default_context(cafile=str(files.ca))

    async def whole() -> None:
        async with site(tls=tls, client=client) as (one,):
            reply = await one.ask("GET", "/admin/v2/brokers/version")
            assert reply.body == b"4.0.8"
            broker = one.server.cluster.brokers[0]
            assert broker.https_url == f"https://127.0.0.1:{one.port}"
            broker.service_url_tls = "pulsar+ssl://127.0.0.1:6651"
            found = (await one.ask("GET", "/lookup/v2/topic/persistent/public/default/t")).json
            urls = (found["httpUrlTls"], found["brokerUrlTls"], found["brokerUrlSsl"])
            assert urls == (broker.https_url, broker.service_url_tls, "")

    run(whole())


def test_tokens_and_rights() -> None:
    async def whole() -> None:
        async with EmbeddedTarget("auth") as target:
            broker = target.server.cluster.brokers[0]
            sock = socket.create_server(("127.0.0.1", 0))
            runner = await serve_http(target.server, broker, sock)
            one = Site(target.server, sock.getsockname()[1])

            async def status(method: str, path: str, role: str) -> int:
                headers = {"Authorization": f"Bearer {target.tokens[role]}"} if role else {}
                return (await one.ask(method, path, headers=headers)).status

            topic = "/admin/v2/persistent/public/default/t"
            assert await status("GET", DEFAULT, "") == 401
            assert await status("GET", DEFAULT, "forged") == 401
            assert await status("GET", DEFAULT, "expired") == 401
            assert await status("PUT", topic, "client") == 401
            assert await status("PUT", topic, "admin") == 204
            assert await status("GET", f"{topic}/partitions", "client") == 200
            assert await status("GET", f"{topic}/partitions", "stranger") == 401
            assert await status("GET", f"{DEFAULT}/topics", "client") == 200
            assert await status("GET", f"{DEFAULT}/topics", "stranger") == 401
            assert await status("GET", "/admin/v2/tenants", "client") == 401
            assert await status("GET", "/admin/v2/clusters", "client") == 200
            assert await status("GET", "/admin/v2/namespaces/nope/n", "client") == 404
            assert await status("GET", "/admin/v2/tenants/nope", "client") == 401
            transactions = "/admin/v3/transactions"
            assert await status("GET", f"{transactions}/coordinators", "stranger") == 503  # switched off
            assert await status("GET", f"{transactions}/transactionMetadata/0/0", "stranger") == 503
            assert await status("POST", f"{transactions}/abortTransaction/0/0", "stranger") == 401
            assert await status("GET", "/metrics", "") == 200
            await runner.cleanup()

    run(whole())


def test_scripts_create_what_is_there_from_the_start() -> None:
    """As in the set-ups of the official clients' suites: then clients without credentials may use it."""
    secret = b"secret of at least 32 bytes ....."
    settings: dict[str, object] = dict.fromkeys(("authenticationEnabled", "authorizationEnabled"), True)
    settings |= {"anonymousUserRole": "anonymous", "superUserRoles": "admin"}
    settings["authenticationProviders"] = "AuthenticationProviderToken"
    steps = {
        "clusters/standalone": {"serviceUrl": "http://localhost:8080/"},
        "tenants/public": {"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]},
        "namespaces/public/default": {"auth_policies": {"namespace_auth": {"anonymous": ["produce"]}}},
        "namespaces/public/other": {},
    }
    topic = "/admin/v2/persistent/public/default/t"

    async def whole() -> None:
        async with site(settings=settings, keys=Keys(token_secret=secret)) as (one,):
            admin = {"Authorization": f"Bearer {sign(secret, sub='admin')}"}
            assert (await one.ask("PUT", topic)).status == 401
            for again in (False, True):
                for path, body in steps.items():
                    reply = await one.ask("PUT", f"/admin/v2/{path}", json.dumps(body).encode(), admin)
                    assert (reply.status == 409) is again, (path, reply)
            assert (await one.ask("PUT", topic)).status == 204
            forged = {"Authorization": "Bearer x", "X-Pulsar-Auth-Method-Name": "token"}
            assert (await one.ask("PUT", f"{topic}2", headers=forged)).status == 401
            reply = await one.ask("GET", "/admin/v2/clusters/standalone", headers=admin)
            assert reply.json["serviceUrl"] == "http://localhost:8080/"

    run(whole())


def test_the_clock_is_moved_over_http() -> None:
    async def check(one: Site) -> None:
        reply = await one.ask("POST", "/pwire/advance", b'{"seconds": 60}')
        assert (reply.status, "time_ms" in reply.json) == (200, True)

    checked(check)
