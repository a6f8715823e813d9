"""Helpers for sockets: listening, connecting, resetting, and reasons for failures."""

import asyncio
import errno
import re
import socket
import ssl
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final

from pulsarctl_wire.errors import Unreachable
from pulsarctl_wire.net.settings import Address

Socket = socket.socket
"""The socket type, for modules that must not import `socket`."""

TlsContext = ssl.SSLContext
"""The type of TLS contexts, for modules that must not import `ssl`."""

_MAX_FILES: Final = 65_536
_OTHER_HOST: Final = {62, 64}
"""OpenSSL's error codes for a certificate of another host name, or IP address."""

ANY_HOST: Final = {"0.0.0.0", "::"}

LINGER: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that makes closing send RST."""

BACKLOG: Final = 1024
"""Connections that may wait to be accepted."""


def allow_many_sockets() -> None:
    """Raise this process's limit of open files to `_MAX_FILES`, or as near as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    with suppress(ValueError, OSError):  # some systems report "unlimited" but have a limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


def strip_mapped(host: str) -> str:
    """Return `host` without the prefix of IPv4 addresses that an IPv6 socket reports (::ffff:…)."""
    return host.removeprefix("::ffff:") if "." in host else host


def is_local(host: str) -> bool:
    """Return whether `host` is an IP address of this machine."""
    with suppress(OSError, ValueError):
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            return True
    return False


def bind_socket(address: Address, *, listening: bool = True) -> socket.socket:
    """Return a socket at `address`; if not `listening`, it only reserves the address. Raises OSError."""
    try:
        targets = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:  # not a valid host name
        raise socket.gaierror(socket.EAI_NONAME, "no such host") from None
    family, kind, protocol, _, sockaddr = targets[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(sockaddr)
        if listening:
            sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


async def look_up(address: Address) -> list[Any]:
    """Return getaddrinfo's result for `address`. Raises OSError, or UnicodeError for an invalid host name."""
    with suppress(socket.gaierror):  # an IP address needs no thread
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)


async def connect_first(targets: list[Any]) -> socket.socket:
    """Return a socket connected to the first of `targets` (of `look_up`) that is reached. Raises OSError."""
    loop = asyncio.get_running_loop()
    last_error = OSError("no address")
    for family, kind, protocol, _, sockaddr in targets:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, sockaddr)
        except OSError as error:
            sock.close()
            last_error = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last_error


def reset(sock: socket.socket) -> None:
    """Close a socket with RST."""
    with suppress(OSError):  # closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    sock.close()


def describe_failure(error: BaseException) -> str:
    """Return a short reason why a connection could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason or error})"
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError) and not error.args:  # raised by asyncio
        return "closed during the TLS handshake; is this a port without TLS?"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def explain_failure(address: Address, error: Exception, *, has_tls: bool) -> Unreachable:
    """Return the error of a session that could not connect to `address`, with a hint about what to do.

    `has_tls`: the session tried TLS.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message.rstrip(".")
        hint = "name its CA with --tls-ca, or use --tls-allow-insecure"
        if error.verify_code in _OTHER_HOST:
            hint = "connect by a name in the certificate, or use --no-tls-hostname-check"
        return Unreachable(f"{address}: its certificate is not trusted: {reason}; {hint}")
    if isinstance(error, (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)):
        reason = getattr(error, "reason", None) or error.strerror or "the connection was closed"
        hint = (
            "is this a port without TLS? Then its URL begins with pulsar:// or http://"
            if has_tls
            else "try again"
        )
        return Unreachable(f"{address}: {'no TLS there' if has_tls else 'reset'} ({reason}); {hint}")
    if isinstance(error, (socket.gaierror, ValueError)):  # ValueError: not a valid name at all
        reason = getattr(error, "strerror", None) or "not a valid host name"
        return Unreachable(f"{address.host}: no such host ({reason})")
    # for a name with several addresses asyncio joins their errors
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", str(error))}
    is_refused = errno.ECONNREFUSED in numbers and numbers <= {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}
    return Unreachable(f"{address}: {'refused' if is_refused else getattr(error, 'strerror', None) or error}")
