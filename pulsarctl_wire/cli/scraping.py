"""`--metrics`: serves metrics to Prometheus over HTTP.

One thread with one event loop answers all requests, one per connection.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.options import host_port
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import Socket, bind_socket

MAX_CONNECTIONS: Final = 32
"""Maximum number of open connections; when it is exceeded, the oldest one is closed."""

_TIMEOUT: Final = 10.0  # seconds that a connection may take in all
_LONGEST_REQUEST: Final = 16 * 1024  # bytes


def serve(address: str, collector: Collector, stack: ExitStack) -> str:
    """Serve metrics at `address` ("9464", ":9464", "HOST:9464", "[::1]:9464") until `stack` closes.

    `collector` makes them in the server's thread. Returns the URL. An invalid address, or one that cannot be
    bound, ends the command with one line.
    """
    where = Address(*host_port("--metrics", address))
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        sock = bind_socket(where)  # IPv4 or IPv6, depending on the host
    except OSError as error:
        why = error.strerror or error
        console.fail(f"--metrics {address}: {why}; name another HOST:PORT")
    url = f"http://{Address(where.host, sock.getsockname()[1])}/metrics"
    stack.callback(_Server(sock, registry).stop)
    return url


class _Server:
    """Answers HTTP requests, with any path, in its own thread."""

    def __init__(self, sock: Socket, registry: CollectorRegistry) -> None:
        self._app: Any = make_wsgi_app(registry)
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._open: dict[asyncio.StreamWriter, None] = {}
        run = self._loop.run_until_complete
        self._thread = threading.Thread(target=run, args=(self._serve(sock),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the server and its thread."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self, sock: Socket) -> None:
        server = await asyncio.start_server(self._accept, sock=sock, limit=_LONGEST_REQUEST)
        await self._over.wait()
        server.close()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection. Slow connections are reset."""
        while len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            await asyncio.wait_for(self._answer(reader, writer), _TIMEOUT)
        except (OSError, EOFError, TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            answer = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            answer = self._response(head.decode("latin-1"))
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    def _response(self, head: str) -> bytes:
        """Return the answer to a request with this head."""
        first, *lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        accept = headers.get("accept", "")
        try:
            method, target, version = first.split(" ")
            query = urlsplit(target).query
            choose_encoder(accept)  # raises if the header is invalid: an error of the client, not of `_app`
        except (TypeError, ValueError):
            return _error(HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/"):
            return _error(HTTPStatus.BAD_REQUEST)
        if method != "GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/metrics", "QUERY_STRING": query}
        environ |= {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding", "")}
        began: list[Any] = []
        try:
            body = b"".join(self._app(environ, lambda *status: began.extend(status)))
        except Exception as error:
            console.warn(f"a bug in pwire: metrics failed ({type(error).__name__}: {error})")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _message(began[0], began[1], body)


def _error(status: HTTPStatus) -> bytes:
    return _message(f"{status.value} {status.phrase}", [], b"")


def _message(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    more = [("Content-Length", str(len(body))), ("Connection", "close")]
    lines = "".join(f"{name}: {value}\r\n" for name, value in (*headers, *more))
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body
