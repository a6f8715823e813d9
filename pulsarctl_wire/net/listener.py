"""Accepts connections, for a proxy or a broker: listening sockets, PROXY headers, TLS.

accept ── PROXY header? ── TLS? ── the asyncio protocol created for the client
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pulsarctl_wire.errors import WireError
from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.net.sockets import describe_failure, reset, strip_mapped
from pulsarctl_wire.wire.framing.proxy_header import header_size, parse_header

ProtocolFactory = Callable[[Address], asyncio.BaseProtocol]
"""Creates the protocol for a connection from the client at this address."""

_WAIT: Final = 10.0  # seconds for a PROXY header, and for a TLS handshake
_PAUSE: Final = 0.5  # seconds before accepting again after an error, such as too many open files
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"}


@dataclass(eq=False)
class Listener:
    """Accepts connections at any number of sockets, in the running event loop.

    With `tls`, clients speak TLS. With `header`, a PROXY header comes first and says who the client is.
    `ready` is called with the protocol once a client is connected, `note` with a text if that fails.
    Attributes: the `sockets`, and the tasks of connections that wait for their header or handshake.
    """

    note: Callable[[str], None]
    tls: ssl.SSLContext | None = None
    header: bool = False
    ready: Callable[[Any], None] = lambda protocol: None
    sockets: list[socket.socket] = field(default_factory=list, init=False)
    handshakes: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _accepting: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    def serve(self, sock: socket.socket, admit: Callable[[], ProtocolFactory | None]) -> None:
        """Accept connections at `sock`, which listens. Those that `admit()` returns None for are reset."""
        self.sockets.append(sock)
        self._accepting.append(asyncio.create_task(self._accept(sock, admit)))

    async def _accept(self, sock: socket.socket, admit: Callable[[], ProtocolFactory | None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(sock)
            except OSError as error:
                self.note(f"a connection has to wait: {error.strerror or error}")
                await asyncio.sleep(_PAUSE)
                continue
            try:
                factory = admit()
            except Exception as error:  # it would end this task, and so all accepting
                self.note(f"a bug in pwire: a connection was not accepted ({type(error).__name__}: {error})")
                factory = None
            if factory is None:
                reset(client)
                continue
            task = loop.create_task(self._handshake(client, factory))
            self.handshakes.add(task)
            task.add_done_callback(self.handshakes.discard)

    async def _handshake(self, sock: socket.socket, factory: ProtocolFactory) -> None:
        loop = asyncio.get_running_loop()
        client = None
        try:
            client = Address(strip_mapped(sock.getpeername()[0]), sock.getpeername()[1])
            if self.header:
                client = await asyncio.wait_for(read_origin(sock, client), _WAIT)
            protocol = factory(client)
            wait = _WAIT if self.tls is not None else None
            await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self.tls, ssl_handshake_timeout=wait
            )
        except (OSError, WireError, TimeoutError, asyncio.TimeoutError) as error:
            name = client or "a client that has gone"
            self.note(f"a connection from {name} failed: {describe_refusal(error)}")
            sock.close()
            return
        except BaseException:  # cancelled by `close`
            sock.close()
            raise
        self.ready(protocol)

    async def stop(self) -> None:
        """Stop accepting; connections that wait for their header or handshake go on."""
        loop = asyncio.get_running_loop()
        for sock in self.sockets:
            loop.remove_reader(sock)  # else asyncio may still accept, for a task that is cancelled
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()

    async def close(self) -> None:
        """Stop accepting, and drop the connections that wait for their header or handshake."""
        await self.stop()
        for task in list(self.handshakes):
            task.cancel()
        await asyncio.gather(*self.handshakes, return_exceptions=True)


async def read_origin(sock: socket.socket, peer: Address) -> Address:
    """Read the PROXY header at the start of a connection, and not a byte more.

    Return the client's address in it, or `peer` if it has none. Raises ProxyHeaderError if the connection
    does not begin with a valid header, or OSError.
    """
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < (size := header_size(data)):
        part = await loop.sock_recv(sock, size - len(data))
        if not part:
            raise ConnectionResetError("it was closed within its PROXY header")
        data += part
    source = parse_header(data).source
    return Address(*source) if source is not None else peer


def describe_refusal(error: BaseException) -> str:
    """Return a short reason why a client's connection was refused."""
    if not isinstance(error, ssl.SSLError):
        return describe_failure(error)
    cause = error.reason or str(error)
    if cause in _NO_TLS:
        return "the client does not speak TLS; its URL must begin with pulsar+ssl://"
    if cause == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client sent no certificate, and --client-ca asks for one"
    if "ALERT" in cause and ("CERTIFICATE" in cause or cause.endswith("_CA")):
        return f"the client does not trust the certificate of pwire ({cause})"
    return f"TLS with the client failed ({cause})"
