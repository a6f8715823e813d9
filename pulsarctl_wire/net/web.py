"""Calls of web services: GET requests over HTTP, as clients make them to look up brokers.

Each call has a connection of its own, so that a tap can show it: a request and its answer.
"""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from pulsarctl_wire.errors import LinkClosed, RequestTimeout, SettingsError, Unreachable
from pulsarctl_wire.net.frame_socket import Tap
from pulsarctl_wire.net.settings import MAX_REDIRECTS, Address, Auth, Settings, parse_service_url
from pulsarctl_wire.net.sockets import explain_failure
from pulsarctl_wire.wire.frame import Connection

MAX_BODY: Final = 64 * 1024 * 1024
"""Maximum bytes of an answer: a list of about 500,000 topics."""

NOT_ALLOWED: Final = "not allowed (--allow-broker)"
"""Why an address is not dialled."""

_HINT: Final = "is this the port of a web service?"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

Allowed = Callable[[str, str], bool]
"""Returns whether an IP address may be dialled for a host: its arguments are the host and the address."""


class Reply(NamedTuple):
    """The answer of the web service at `address` to a GET of `target`.

    `peer` is the service's IP address and port, `reason` the text after the status.
    """

    address: Address
    peer: str
    target: str
    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    latency_ns: int

    @property
    def location(self) -> str:
        """Where a redirect leads; "" if it is none."""
        return self.headers.get("Location", "") if self.status in _REDIRECTS else ""


def make_headers(auth: Auth) -> dict[str, str]:
    """Return the headers with these credentials, as Pulsar's clients send them."""
    headers = {} if auth.method == "none" else {"X-Pulsar-Auth-Method-Name": auth.method}
    if auth.method == "token":
        headers["Authorization"] = f"Bearer {auth.data().decode('latin-1')}"
    elif auth.method == "basic":
        headers["Authorization"] = f"Basic {b64encode(auth.data()).decode()}"
    return headers


class WebCaller:
    """Makes calls of the web services of a cluster; `close` it.

    `numbers` gives each connection its number for `tap`. `allowed`, if given, says which addresses may be
    dialled, and `dials` maps addresses to those that are dialled instead.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        tap: Tap | None = None,
        numbers: Iterator[int] | None = None,
        allowed: Allowed | None = None,
        dials: Mapping[Address, Address] | None = None,
    ) -> None:
        self._settings = settings
        self._tap = tap
        self._numbers = numbers or count()
        self._allowed = allowed
        self._dials = dials or {}
        self._context = settings.tls_context() if settings.url.tls else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self._context or True,
                force_close=True,
                resolver=None if allowed is None else _Resolver(allowed),
                use_dns_cache=False,
            ),
            timeout=aiohttp.ClientTimeout(total=settings.timeout, sock_connect=settings.connect_timeout),
            response_class=_Response,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def follow(self, address: Address, target: str, headers: Mapping[str, str]) -> AsyncIterator[Reply]:
        """Yield the answer of `address` to a GET request, and those of the services it redirects to.

        Raises Unreachable, also after `MAX_REDIRECTS` redirects, RequestTimeout, LinkClosed.
        """
        for _ in range(MAX_REDIRECTS + 1):
            reply = await self.get(address, target, headers)
            yield reply
            if not reply.location:
                return
            address, target = self._parse_location(reply)
        raise Unreachable(
            f"GET {target}: still a redirect after {MAX_REDIRECTS}; the brokers redirect in circles"
        )

    def _parse_location(self, reply: Reply) -> tuple[Address, str]:
        """Return where a redirect leads. Raises Unreachable if that is no web service of the same kind."""
        url, source = reply.location, f"the redirect of {reply.address}"
        if url.startswith("/"):
            return reply.address, url
        try:
            parts = urlsplit(url)
            service = parse_service_url(f"{parts.scheme}://{parts.netloc}")
        except (SettingsError, ValueError) as error:
            raise Unreachable(f"{source}: {error}") from None
        if service.scheme != self._settings.url.scheme:
            raise Unreachable(f"{source} leads to {url}, which is not {self._settings.url.scheme}://")
        return service.addresses[0], f"{parts.path}{f'?{parts.query}' if parts.query else ''}"

    async def get(self, address: Address, target: str, headers: Mapping[str, str]) -> Reply:
        """Make a GET request. Raises Unreachable, RequestTimeout, LinkClosed."""
        target_address = self._dials.get(address, address)
        host = target_address.host
        if self._allowed is not None and _is_ip(host) and not self._allowed(host, host):
            raise Unreachable(f"{host}: {NOT_ALLOWED}")
        url = f"{self._settings.url.scheme}://{target_address}{target}"
        start_ns, start_ticks = time.time_ns(), time.perf_counter_ns()
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > MAX_BODY:
                        raise Unreachable(f"{address}: an answer of more than {MAX_BODY} bytes over HTTP")
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError, ValueError) as error:
            raise self._explain(address, error) from None
        assert isinstance(response, _Response)
        reply = Reply(
            address,
            response.server,
            target,
            response.status,
            response.reason or "",
            response.headers,
            bytes(body),
            time.perf_counter_ns() - start_ticks,
        )
        if self._tap is not None:
            connection = Connection(next(self._numbers), response.client, response.server)
            record_call(self._tap, connection, start_ns, str(address), headers, reply)
        return reply

    def _explain(self, address: Address, error: Exception) -> Exception:
        """Return the session's error for one of aiohttp's."""
        if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
            settings, is_connecting = self._settings, isinstance(error, aiohttp.ConnectionTimeoutError)
            seconds = settings.connect_timeout if is_connecting else settings.timeout
            missing = "no TCP connection" if is_connecting else "no answer over HTTP"
            return RequestTimeout(f"{address}: {missing} within {seconds:g} s")
        if isinstance(error, aiohttp.ClientConnectorError):
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            return explain_failure(address, cause, has_tls=self._context is not None)
        if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
            return LinkClosed(f"{address}: the connection ended before the answer over HTTP; {_HINT}")
        if isinstance(error, aiohttp.InvalidURL):
            return Unreachable(f"{address.host}: not a valid host name")
        return Unreachable(f"{address}: no answer over HTTP ({error}); {_HINT}")


def record_call(
    tap: Tap, connection: Connection, start_ns: int, host: str, headers: Mapping[str, str], reply: Reply
) -> None:
    """Tell `tap` about a call as a connection of its own, which began at `start_ns` (since the epoch)."""
    end_ns = start_ns + reply.latency_ns
    request = _join_head(f"GET {reply.target} HTTP/1.1", {"Host": host, **headers})
    fields = {name: reply.headers[name] for name in ("Location", "Content-Type") if name in reply.headers}
    fields["Content-Length"] = str(len(reply.body))
    tap.opened(connection, start_ns)
    tap.carried(connection, True, request, start_ns)
    answer = _join_head(f"HTTP/1.1 {reply.status} {reply.reason}", fields)
    tap.carried(connection, False, answer + reply.body, end_ns)
    tap.closed(connection, end_ns, False)


def _join_head(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


class _Response(aiohttp.ClientResponse):
    """An answer that remembers both ends of its connection: client and server, IP address and port."""

    client = server = ""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read the head of the answer (called by aiohttp, while the connection is open)."""
        transport = connection.transport
        for attribute, name in (("client", "sockname"), ("server", "peername")):
            sockaddr = transport.get_extra_info(name) if transport is not None else None
            if sockaddr:
                setattr(self, attribute, str(Address(sockaddr[0], sockaddr[1])))
        return await super().start(connection)


class _Resolver(AbstractResolver):
    """Looks up hosts, and leaves out the addresses that may not be dialled."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._resolver = ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        """Return the allowed addresses of `host` (called by aiohttp)."""
        results = await self._resolver.resolve(host, port, family)
        allowed = [result for result in results if self._allowed(host, result["host"])]
        if not allowed:
            raise Unreachable(f"{host}: {NOT_ALLOWED}")
        return allowed

    async def close(self) -> None:
        """Close the resolver (called by aiohttp)."""
        await self._resolver.close()


def _is_ip(host: str) -> bool:
    """Return whether a host is an IP address, which aiohttp does not look up."""
    with suppress(ValueError):
        return bool(ip_address(host.partition("%")[0]))
    return False
