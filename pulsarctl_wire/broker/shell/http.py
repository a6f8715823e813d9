"""The admin API and the control requests over HTTP, for browsers and clients on this machine.

Requests must name this machine as their host, and not come from a page of another site: otherwise any web
page could use the broker of its reader (CSRF, DNS rebinding).
"""

import asyncio
import json
import socket
import traceback
from base64 import b64decode
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from aiohttp import web

from pulsarctl_wire.broker.admin import Answer
from pulsarctl_wire.broker.cluster.cluster import Broker
from pulsarctl_wire.broker.shell.control import PREFIX, answer_http
from pulsarctl_wire.broker.shell.server import report
from pulsarctl_wire.broker.tenancy.access import BadCredentials, get_common_name
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import ANY_HOST, TlsContext
from pulsarctl_wire.net.web_server import PATIENCE, serve

if TYPE_CHECKING:
    from pulsarctl_wire.broker.shell.server import Server

MAX_BODY_BYTES: Final = 1024 * 1024
"""The most bytes of a request's body: aiohttp's default."""

_METHOD_HEADER: Final = "X-Pulsar-Auth-Method-Name"
"""The header that names the kind of credentials; a request with it gets no anonymous access."""

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _host_of(netloc: str) -> str:
    """Return the host in HOST:PORT; empty if it is malformed."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _error_response(status: int, reason: str) -> web.Response:
    return web.Response(
        status=status, body=json.dumps({"reason": reason}).encode(), content_type="application/json"
    )


class Api:
    """The HTTP port of a broker, bound to the address `host`."""

    def __init__(self, server: "Server", broker: Broker, host: str) -> None:
        self._server = server
        self._broker = broker
        self._any_address = host in ANY_HOST
        self._hosts = {*_LOCAL, host}

    def _is_own(self, netloc: str) -> bool:
        """Return whether HOST:PORT is this broker. Unlike names, IP addresses cannot be rebound."""
        host = _host_of(netloc)
        urls = (self._broker.service_url, self._broker.http_url, self._broker.https_url)
        own_hosts = self._hosts | {_host_of(url.partition("://")[2]) for url in urls}
        return bool(host) and (host in own_hosts or (self._any_address and _is_address(host)))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request."""
        refusal = self._find_refusal(request)
        if refusal:
            return _error_response(403, refusal)
        try:
            role = self._role(request)
        except BadCredentials:
            return _error_response(401, "Authentication required")
        try:
            data = await asyncio.wait_for(request.read(), PATIENCE)
        except web.HTTPRequestEntityTooLarge:
            return _error_response(413, f"The body is larger than {MAX_BODY_BYTES} bytes")
        except (TimeoutError, asyncio.TimeoutError):
            return _error_response(408, f"The body has not arrived within {PATIENCE:g} seconds")
        except (web.RequestPayloadError, OSError) as error:  # also if the client is gone
            return _error_response(400, f"The body cannot be read: {error}")
        try:
            if request.path.startswith(PREFIX):
                return await self._control(request, data, role)
            try:
                body = json.loads(data, parse_constant=_refuse_constant) if data.strip() else None
            except (ValueError, RecursionError):
                return _error_response(400, "The body is no JSON")
            answer = await self._server.admin(
                request.method, request.rel_url.raw_path_qs, body, self._broker, role=role, follow=False
            )
        except Exception as error:
            report("".join(traceback.format_exception(error)))
            return _error_response(500, "An unexpected error occurred in the server")
        if answer.owner is not None and request.secure:  # redirect to HTTPS, too
            plain, secure = answer.owner.http_url, answer.owner.https_url
            answer.headers["Location"] = answer.headers["Location"].replace(plain, secure, 1)
        return _response(answer)

    async def _control(self, request: web.BaseRequest, data: bytes, role: str | None) -> web.Response:
        """Answer a control request (control.py)."""
        if role is not None and not self._broker.cluster.access.is_super(role):
            return _error_response(401, f"{role} may not control the broker")
        return _response(Answer(*await answer_http(self._server, request.method, request.path, data)))

    def _find_refusal(self, request: web.BaseRequest) -> str:
        """Return why a request is refused; "" if it is not."""
        host = request.headers.get("Host", "")
        if not self._is_own(host):
            return "The host of the request is not this broker"
        for origin in request.headers.getall("Origin", ()):
            if origin.partition("://")[2].lower() != host.lower():
                return "The request comes from a page of another site"
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin", "same-site"):
            return "The request comes from a page of another site"
        return ""

    def _role(self, request: web.BaseRequest) -> str | None:
        """Return the client's role; None if none is needed, as for metrics. Raises BadCredentials."""
        cluster = self._broker.cluster
        if not cluster.access.authenticates or request.path.rstrip("/") == "/metrics":
            return None
        scheme, _, data = request.headers.get("Authorization", "").partition(" ")
        method = {"Bearer": "token", "Basic": "basic"}.get(scheme, "tls")
        common_name = get_common_name(request.get_extra_info("peercert"))
        try:
            credentials = b64decode(data, validate=True) if method == "basic" else data.strip().encode()
            now_ms = self._broker.scheduler.time_ms
            return cluster.access.authenticate(method, credentials, common_name, now_ms).name
        except (BadCredentials, ValueError) as error:
            anonymous = cluster.settings.anonymousUserRole
            if anonymous and _METHOD_HEADER not in request.headers:
                return anonymous
            raise BadCredentials(str(error)) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _response(answer: Answer) -> web.Response:
    headers = dict(answer.headers)
    if answer.value is None:
        return web.Response(status=answer.status, headers=headers)
    headers.setdefault("Content-Type", "application/json")
    if isinstance(answer.value, bytes):
        return web.Response(status=answer.status, headers=headers, body=answer.value)
    text = json.dumps(answer.value, separators=(",", ":"))
    return web.Response(
        status=answer.status,
        reason=_phrase(answer) if answer.status >= 400 else None,
        headers=headers,
        body=text.encode("utf-8", "replace"),
    )


def _phrase(answer: Answer) -> str | None:
    """Return the reason of a refusal for the status line, as some clients show only that."""
    text = str(answer.value.get("reason", "")) if isinstance(answer.value, dict) else ""
    return text if text and text.isascii() and text.isprintable() else None


async def serve_http(
    server: "Server", broker: Broker, sock: socket.socket, *, ssl_context: TlsContext | None = None
) -> web.ServerRunner:
    """Serve the API of a broker at a bound socket; `cleanup` of the returned runner ends that."""
    address = Address(*sock.getsockname()[:2])
    if ssl_context is None:
        broker.http_url = broker.http_url or f"http://{address}"
    else:
        broker.https_url = broker.https_url or f"https://{address}"
    handle = Api(server, broker, address.host).handle
    limit = server.cluster.settings.maxHttpServerConnections
    return await serve(handle, sock, max_connections=limit, ssl_context=ssl_context)
