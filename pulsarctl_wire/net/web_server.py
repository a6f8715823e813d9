"""Serves HTTP for the embedded broker and for the proxy."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from pulsarctl_wire.net.sockets import TlsContext

PATIENCE: Final = 30.0
"""Seconds that a connection may be idle, and that a body may take to arrive."""

_LINGER_SECONDS: Final = 1.0  # for the rest of an unwanted body, so that the client reads the answer

_SILENT_LOGGER: Final = logging.Logger("pulsarctl_wire.http", logging.CRITICAL + 1)
"""Drops what aiohttp logs, such as refused requests; handlers report their own errors."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connections(web.Server):
    """The HTTP connections of a server; those beyond `max_count` are ended."""

    max_count = 0

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        """Add a connection (called by aiohttp)."""
        super().connection_made(handler, transport)
        if len(self.connections) > self.max_count > 0:
            asyncio.get_running_loop().call_soon(transport.abort)  # once aiohttp has started it


async def serve(
    handler: Handler, sock: socket.socket, *, max_connections: int, ssl_context: TlsContext | None = None
) -> web.ServerRunner:
    """Serve at a bound socket, `max_connections` at a time (0: any number); return a runner to `cleanup`."""
    connections = _Connections(
        handler,
        access_log=None,
        logger=_SILENT_LOGGER,
        keepalive_timeout=PATIENCE,
        lingering_time=_LINGER_SECONDS,
    )
    connections.max_count = max_connections
    runner = web.ServerRunner(connections, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, sock, ssl_context=ssl_context).start()
    return runner
