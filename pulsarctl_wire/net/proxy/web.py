"""Answers lookups over HTTP, for clients whose service URL leads to a web service.

The proxy asks a broker's web service, follows redirects itself, and puts its own addresses into the answer,
as `routing.py` does for LOOKUP_RESPONSE. Questions for partitions, topics and schemas are passed on.
Everything else is refused: the REST API can change a cluster, and web pages could reach it through the proxy.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from aiohttp import web

from pulsarctl_wire.errors import SessionError, SettingsError
from pulsarctl_wire.net.proxy.routing import MAX_BROKERS, Answerer, Router, Routing
from pulsarctl_wire.net.proxy.tap import RingTap, TapRing
from pulsarctl_wire.net.settings import Address, ServiceUrl, Settings
from pulsarctl_wire.net.sockets import TlsContext, bind_socket
from pulsarctl_wire.net.web import Reply, WebCaller, record_call
from pulsarctl_wire.net.web_server import serve
from pulsarctl_wire.wire import rest
from pulsarctl_wire.wire.frame import Connection

MAX_CONNECTIONS: Final = 1_024
"""Maximum connections for lookups over HTTP; those beyond are ended."""

_OWN_HEADERS: Final = frozenset(
    {
        *("host", "connection", "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "accept-encoding", "content-length", "expect"),
    }
)
"""Headers of one connection, which are not passed on (RFC 9110, section 7.6.1), and those that we set."""

_REFUSAL: Final = "pwire answers lookups only; ask the broker's web service for everything else"


@dataclass
class WebListener:
    """Listens for lookups over HTTP: `open` it, `close` it.

    It asks `service`, with `settings`; `router` has the addresses that clients get. `dials` maps addresses
    to those that are dialled instead, `allowed` says which may be dialled. `numbers` gives each call its
    number for `ring`. With `tls` clients speak TLS. `find_host` returns the host under which a client, by its
    transport, reaches our listeners; None: the one they listen at.
    """

    service: ServiceUrl
    settings: Settings
    router: Router
    ring: TapRing
    numbers: Iterator[int]
    find_host: Callable[[Any], str | None]
    allowed: Callable[[str, str], bool]
    dials: Mapping[Address, Address]
    tls: TlsContext | None = None
    lookups: int = 0
    """Requests that were answered."""

    def __post_init__(self) -> None:
        self.address: Address
        self._tap = RingTap(self.ring)
        self._turns: Iterator[int] = count()
        self._noted: set[str] = set()
        self._caller: WebCaller
        self._runner: web.ServerRunner

    async def open(self, listen: Address) -> None:
        """Start listening. Raises SettingsError."""
        try:
            sock = bind_socket(listen)
        except OSError as error:
            raise SettingsError(f"--http-listen {listen}: {error.strerror or error}; name another") from None
        self.address = Address(listen.host, sock.getsockname()[1])
        own_hosts = {address.host for address in (*self.service.addresses, *self.dials.values())}
        self._caller = WebCaller(
            replace(self.settings, url=self.service),
            allowed=lambda host, ip: host in own_hosts or self.allowed(host, ip),
            dials=self.dials,
        )
        self._runner = await serve(self._answer, sock, max_connections=MAX_CONNECTIONS, ssl_context=self.tls)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        await self._runner.cleanup()
        await self._caller.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request of a client."""
        target, start_ns = request.rel_url.raw_path_qs, time.time_ns()
        call = rest.parse_target(target) if request.method == "GET" else None
        if call is None:
            return web.json_response({"reason": _REFUSAL}, status=404)
        self.lookups += 1
        transport, client = request.transport, request.get_extra_info("peername")
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _OWN_HEADERS}
        reply = await self._ask(target, headers)
        if transport is None or not client:  # the client is gone
            return web.Response(status=reply.status)
        if call.kind == "lookup" and reply.status == 200:
            reply = reply._replace(body=self._rewrite(reply.body, transport))
        connection = Connection(next(self.numbers), str(Address(client[0], client[1])), reply.peer)
        latency_ns = time.time_ns() - start_ns
        record_call(
            self._tap, connection, start_ns, request.host, headers, reply._replace(latency_ns=latency_ns)
        )
        content_type = reply.headers.get("Content-Type", "application/json")
        return web.Response(
            status=reply.status, reason=reply.reason, body=reply.body, headers={"Content-Type": content_type}
        )

    async def _ask(self, target: str, headers: Mapping[str, str]) -> Reply:
        """Return the answer of the first web service that can be reached; one of our own if none can."""
        addresses = self.service.addresses
        first, failures = next(self._turns), []
        for turn in range(len(addresses)):
            address = addresses[(first + turn) % len(addresses)]
            try:
                *_, reply = [reply async for reply in self._caller.follow(address, target, headers)]
            except SessionError as error:
                failures.append(str(error))
            else:
                return reply
        reason = f"no answer of the web service: {'; '.join(failures)}"
        if reason not in self._noted and len(self._noted) < MAX_BROKERS:
            self._noted.add(reason)
            self.ring.note(reason)
        body = json.dumps({"reason": reason}).encode()
        return Reply(address, str(address), target, 502, "Bad Gateway", {}, body, 0)

    def _rewrite(self, body: bytes, transport: Any) -> bytes:
        """Return the answer to a lookup with our addresses."""
        fields = rest.parse_json(body)
        if not isinstance(fields, dict) or self.router.routing is Routing.NONE:
            return body
        host, service = self.find_host(transport), self.router.service.addresses[0]
        plain, tls = rest.get_text(fields, "brokerUrl", "nativeUrl"), rest.get_text(fields, "brokerUrlTls")
        # clients that look up over HTTP never go through a proxy: they get listeners, even with CONNECT
        pair = self.router.replace(plain, tls, Answerer(service, str(service)), host)
        if pair is None:
            return body
        listener = Address(host or self.address.host, self.address.port)
        is_tls = self.tls is not None
        fields |= {
            **{"brokerUrl": pair[0], "nativeUrl": pair[0], "brokerUrlTls": pair[1]},
            # an old name, which C++ clients look for if there is no brokerUrlTls
            "brokerUrlSsl": pair[1] and fields.get("brokerUrlSsl", ""),
            "httpUrl": "" if is_tls else f"http://{listener}",
            "httpUrlTls": f"https://{listener}" if is_tls else "",
        }
        answer = {name: value for name, value in fields.items() if value or name == "brokerUrlSsl"}
        return json.dumps(answer, separators=(",", ":")).encode()
