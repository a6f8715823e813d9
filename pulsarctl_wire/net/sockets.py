"""Sockets of the proxy: bound, connected, and why they could not be."""

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final

from pulsarctl_wire.net.settings import Address
from pulsarctl_wire.wire.proxy_header import header_size, parse_header

Socket = socket.socket
"""For those who hand one on."""

ANY_HOST: Final = {"0.0.0.0", "::"}

LINGER: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing sends RST."""

_BACKLOG: Final = 1024
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"}


def plain(host: str) -> str:
    """An IPv4 address that came in by an IPv6 socket as what it is; others as they are."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_local(host: str) -> bool:
    """Whether a host is an IP address of this machine."""
    with suppress(OSError, ValueError):
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    return False


def bound(address: Address) -> socket.socket:
    """A socket that listens at `address`. Raises OSError."""
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # what can be no name
        raise socket.gaierror(socket.EAI_NONAME, "no such host") from None
    family, kind, protocol, _, name = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(name)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


async def looked_up(address: Address) -> list[Any]:
    """What to dial for `address`, as of getaddrinfo. Raises OSError, UnicodeError for what can be no name."""
    with suppress(socket.gaierror):  # an IP address takes no time
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)


async def connected(found: list[Any]) -> socket.socket:
    """A socket connected with the first of these (as of getaddrinfo) that can be reached. Raises OSError."""
    loop = asyncio.get_running_loop()
    failed = OSError("no address")
    for family, kind, protocol, _, place in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, place)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


def reset(sock: socket.socket) -> None:
    """Close a socket by RST."""
    with suppress(OSError):  # closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    sock.close()


async def origin(sock: socket.socket, peer: Address) -> Address:
    """Read the PROXY header that a connection begins with, and not a byte more.

    Gives the client that it names, or `peer` if it names none.
    """
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < (size := header_size(data)):
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise ConnectionResetError("it was closed within its PROXY header")
        data += more
    source = parse_header(data).source
    return Address(*source) if source is not None else peer


def unwelcome(error: BaseException) -> str:
    """Why a client's connection was refused, in few words."""
    if not isinstance(error, ssl.SSLError):
        return reason(error)
    why = error.reason or str(error)
    if why in _NO_TLS:
        return "the client does not speak TLS; its URL is to begin with pulsar+ssl://"
    if why == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client shows no certificate, and --client-ca asks for one"
    if "ALERT" in why and ("CERTIFICATE" in why or why.endswith("_CA")):
        return f"the client does not trust the certificate that pwire shows ({why})"
    return f"TLS with the client failed ({why})"


def reason(error: BaseException) -> str:
    """Why a connection could not be made, in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error})"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError) and not error.args:  # asyncio's own
        return "closed before TLS was agreed on; is this a port without TLS?"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
