"""PROXY protocol headers, built and parsed: a proxy sends one first, to say whose connection it forwards.

The caller reads as many bytes as `header_size` returns, calls it again until it has that many, and reads no
further: the next byte belongs to the inner protocol. An invalid header is refused; nothing is guessed on an
untrusted port. Extensions of v2 (TLVs) are ignored. Limits: 107 bytes for v1, 16 plus 65,535 for v2.
Source: "The PROXY protocol, versions 1 & 2" by HAProxy, sections 2.1 and 2.2.
"""

import re
import struct
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from pulsarctl_wire.errors import LocalProtocolError, WireError
from pulsarctl_wire.wire.framing.foreign import MAX_PROXY_V1, PROXY_V1, PROXY_V2

_V1_SHORTEST: Final = 15  # PROXY UNKNOWN
_V1_LINE: Final = re.compile(
    r"PROXY (?:UNKNOWN(?: .*)?|TCP([46]) ([^ %]+) ([^ %]+) (0|[1-9][0-9]{0,4}) (0|[1-9][0-9]{0,4}))",
    re.DOTALL,
)
_V2_HEAD: Final = struct.Struct(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21  # version and command
_INET: Final = {1: struct.Struct(">4s4sHH"), 2: struct.Struct(">16s16sHH")}
_FAMILIES: Final = range(4)  # unspecified, IPv4, IPv6, Unix
_TRANSPORTS: Final = range(3)  # unspecified, stream, datagram

End = tuple[str, int]
"""An IP address and a port."""


class ProxyHeaderError(WireError):
    """The bytes received are not a PROXY header, or an invalid one."""


class Origin(NamedTuple):
    """The client of the first proxy, and the address it connected to; None if the header does not say."""

    source: End | None
    target: End | None


UNKNOWN: Final = Origin(None, None)
"""The proxy's own connection (LOCAL), or one that does not use IP: use the socket's own addresses."""


def _unmap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Convert an IPv4-mapped IPv6 address to IPv4; all others are unchanged."""
    return (address.version == 6 and address.ipv4_mapped) or address


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Parse `host` as an IP address without its zone; None if it is a name."""
    try:
        return _unmap(ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def _map(address: IPv4Address | IPv6Address) -> IPv6Address:
    return address if address.version == 6 else IPv6Address(bytes(10) + b"\xff\xff" + address.packed)


def build_header(version: int, source: End, target: End) -> bytes:
    """Build the header of version 1 or 2 for a TCP connection from `source` to `target`.

    If one address is IPv4 and the other IPv6, both are written as IPv6. If a host is not an IP address, the
    header says UNKNOWN. Raises LocalProtocolError for another version or an invalid port.
    """
    ports = source[1], target[1]
    if version not in (1, 2) or not all(0 <= port < 65_536 for port in ports):
        raise LocalProtocolError(f"there is no PROXY header of version {version} with the ports {ports}")
    ends = [end for end in (_ip(source[0]), _ip(target[0])) if end is not None]
    if len(ends) < 2:
        return b"PROXY UNKNOWN\r\n" if version == 1 else _V2_HEAD.pack(PROXY_V2, _PROXY, 0, 0)
    is_ipv4 = all(end.version == 4 for end in ends)
    if not is_ipv4:
        ends = [_map(end) for end in ends]
    if version == 1:
        # written in full, as the short form of a mapped address depends on Python's version
        texts = " ".join(str(end) if is_ipv4 else end.packed.hex(":", 2) for end in ends)
        return f"PROXY TCP{4 if is_ipv4 else 6} {texts} {ports[0]} {ports[1]}\r\n".encode()
    block = _INET[1 if is_ipv4 else 2].pack(*(end.packed for end in ends), *ports)
    return _V2_HEAD.pack(PROXY_V2, _PROXY, 0x11 if is_ipv4 else 0x21, len(block)) + block


def may_be_header(data: bytes) -> bool:
    """Return whether `data` is the beginning of a header, or may be once there is more of it."""
    return any(magic.startswith(data[: len(magic)]) for magic in (PROXY_V1, PROXY_V2))


def header_size(data: bytes) -> int:
    """Return the size of the header that `data` begins with.

    If `data` is shorter than the result, read up to that size and call again. The result never goes beyond
    the header's end. Raises ProxyHeaderError as soon as `data` cannot be the beginning of a header.
    """
    if PROXY_V1.startswith(data[: len(PROXY_V1)]):
        end = data.find(b"\r\n", 0, MAX_PROXY_V1)
        if end >= 0:
            return end + 2
        size = max(_V1_SHORTEST, len(data) + (1 if data.endswith(b"\r") else 2))
        if size > MAX_PROXY_V1:
            raise ProxyHeaderError(f"the PROXY header does not end within {MAX_PROXY_V1} bytes")
        return size
    if not PROXY_V2.startswith(data[: len(PROXY_V2)]):
        head = data[:12].hex(" ")
        raise ProxyHeaderError(
            f"no PROXY header: the connection begins with {head}; does its sender send one?"
        )
    if len(data) > len(PROXY_V2) and data[len(PROXY_V2)] >> 4 != 2:
        raise ProxyHeaderError(f"PROXY header of version {data[len(PROXY_V2)] >> 4}; 1 and 2 are supported")
    return _V2_HEAD.size + (_V2_HEAD.unpack_from(data)[3] if len(data) >= _V2_HEAD.size else 0)


def parse_header(data: bytes) -> Origin:
    """Parse the header that `data` begins with. Raises ProxyHeaderError if it is incomplete or invalid."""
    size = header_size(data)
    if size > len(data):
        raise ProxyHeaderError(f"the PROXY header is cut after {len(data)} bytes")
    return _parse_v1(data[: size - 2]) if data.startswith(PROXY_V1) else _parse_v2(data[:size])


def _parse_v1(line: bytes) -> Origin:
    match = _V1_LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise _invalid(line)
    if match[1] is None:
        return UNKNOWN
    family = IPv4Address if match[1] == "4" else IPv6Address
    try:
        hosts = [str(_unmap(family(match[group]))) for group in (2, 3)]
    except AddressValueError:
        raise _invalid(line) from None
    ports = int(match[4]), int(match[5])
    if max(ports) > 65_535:
        raise _invalid(line)
    return Origin((hosts[0], ports[0]), (hosts[1], ports[1]))


def _parse_v2(header: bytes) -> Origin:
    _, command, kind, _ = _V2_HEAD.unpack_from(header)
    if command == _LOCAL:
        return UNKNOWN
    family, transport = kind >> 4, kind & 15
    if command != _PROXY or family not in _FAMILIES or transport not in _TRANSPORTS:
        raise _invalid(header)
    if family not in _INET or not transport:
        return UNKNOWN
    if len(header) < _V2_HEAD.size + _INET[family].size:
        raise _invalid(header)
    source, target, source_port, target_port = _INET[family].unpack_from(header, _V2_HEAD.size)
    hosts = [str(_unmap(ip_address(address))) for address in (source, target)]
    return Origin((hosts[0], source_port), (hosts[1], target_port))


def _invalid(header: bytes) -> ProxyHeaderError:
    text = repr(header[:MAX_PROXY_V1])[2:-1] if header.startswith(PROXY_V1) else header[12:28].hex(" ")
    return ProxyHeaderError(f"invalid PROXY header: {text}")
