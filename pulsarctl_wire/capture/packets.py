"""Finds the TCP segments in packets: link layers, IP, fragments.

The usual layers are parsed by hand, because they are most of the work on captures of small packets:
Ethernet with VLAN tags, Linux cooked v1 and v2, BSD loopback, raw IP; IPv4 with options, IPv6 with
extension headers; MPLS, PPPoE, and tunnels (IP in IP, GRE, VXLAN, Geneve). For other link types scapy
finds the IP packet in the first bytes, which is then parsed like the others.

Sources: RFC 791, 8200 (IP), 9293 (TCP), 4303 (ESP is not opened), 3032, 4385 (MPLS), 2516 (PPPoE),
2784, 2890 (GRE), 7348 (VXLAN), 8926 (Geneve), IEEE 802.1Q, LINKTYPE_ registry.
"""

import ipaddress
import struct
from typing import Any, Final

from pulsarctl_wire.wire.fixed import u16_at, u32_at
from pulsarctl_wire.wire.ranges import UInt8, UInt16, UInt32, Wrapped

Segment = tuple[bytes, UInt32, UInt32, UInt8, bytes, UInt32]
"""(key, sequence number, acknowledgement number, flags, payload, missing).

`key` is source and destination address followed by source and destination port, as on the wire;
`missing` counts payload bytes that were sent but not captured (snap length).
"""

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10
"""Flags of segments."""


def reverse(key: bytes) -> bytes:
    """Return the key of the segments that go the other way."""
    middle = len(key) // 2 - 2
    return key[middle:-4] + key[:middle] + key[-2:] + key[-4:-2]


def endpoint_of(key: bytes) -> bytes:
    """Return the source address and port of a segment's key."""
    return key[: len(key) // 2 - 2] + key[-4:-2]


def address_of(key: bytes) -> str:
    """Return the source of a segment's key as text: "address:port", for IPv6 "[address]:port"."""
    address = ipaddress.ip_address(key[: len(key) // 2 - 2])
    return f"{address if address.version == 4 else f'[{address}]'}:{int.from_bytes(key[-4:-2], 'big')}"


ETHERNET: Final = 1
RAW_IP: Final = 101
_TYPED: Final = {ETHERNET: (12, 14), 113: (14, 16), 276: (0, 20)}
"""Link type (Ethernet, Linux cooked v1 and v2) -> where the EtherType is, and where the header ends."""
_IP_AT: Final = {12: 0, 14: 0, RAW_IP: 0, 228: 0, 229: 0, 0: 4, 108: 4, 109: 12}
"""Link type (raw IP, BSD loopback) -> where the IP packet begins."""

_TAGS: Final = {0x8100, 0x88A8, 0x9100, 0x9200}
_IP_TYPES: Final = {0x0800, 0x86DD}
_MPLS: Final = {0x8847, 0x8848}
_BRIDGED: Final = 0x6558
_PPPOE: Final = 0x8864
_PPP_IP: Final = {0x0021, 0x0057}
_TCP: Final = 6
_UDP: Final = 17
_FRAGMENT: Final = 44
_IP_IN_IP: Final = {4, 41}
_GRE: Final = 47
_VXLAN: Final = {4789, 8472}
_GENEVE: Final = 6081
_EXTENSIONS: Final = {0, 43, 60, 135}  # hop by hop, routing, destination options, mobility
_AUTHENTICATION: Final = 51

_USUAL_HEADERS: Final = 54  # bytes of Ethernet, IPv4 and TCP headers without options
_ipv4_at: Final = struct.Struct(">BxHHHxB").unpack_from
_tcp_at: Final = struct.Struct(">IIBB").unpack_from

_LARGEST_DATAGRAM: Final = 65_535 - 60  # bytes after the largest header

MAX_OFFLOADED: Final = 512 * 1024
"""Bytes of the largest segment (captured before the network card splits it); Linux makes no larger ones."""

_SEARCHED: Final = 256  # bytes in which scapy looks for an IP packet
_DEEPEST: Final = 8  # nested IP packets

MAX_DATAGRAMS: Final = 256
"""IP datagrams whose fragments are kept at a time; beyond that the oldest are given up."""


Waiting = dict[bytes, tuple[dict[UInt16, bytes], Wrapped]]
"""Incomplete datagrams, by key: the bytes of the fragments by offset, and the size (-1: not known yet)."""


class Dissector:
    """Finds the TCP segments in packets. Its only state is IP fragments and counters.

    `waiting` are fragments of an earlier dissector, which are copied.
    """

    def __init__(self, waiting: Waiting | None = None) -> None:
        self.skipped = 0
        """Packets without a TCP segment (other protocols, headers that were cut or are invalid)."""
        self.fragments = 0
        """IP fragments seen so far."""
        self._datagrams = {key: _Datagram(*datagram) for key, datagram in (waiting or {}).items()}
        self._depth = 0

    @property
    def waiting(self) -> Waiting:
        """The incomplete datagrams, for another dissector to continue with."""
        return {key: (datagram.parts, datagram.size) for key, datagram in self._datagrams.items()}

    def segment(self, link: int, data: bytes, length: int) -> Segment | None:
        """Return the TCP segment in a packet of link type `link` and `length` bytes on the wire, or None."""
        if link == ETHERNET and len(data) >= _USUAL_HEADERS:
            # fast path for nearly all packets: IPv4 without options or fragments
            size = u16_at(data, 16)
            is_usual = u16_at(data, 12) == 0x0800 and data[14] == 0x45 and data[23] == _TCP and size > 0
            if is_usual and not u16_at(data, 20) & 0x3FFF:
                start, stop = 34 + (data[46] >> 4) * 4, 14 + size
                if 54 <= start <= stop:
                    payload = data[start:stop]
                    missing = stop - start - len(payload)
                    return data[26:38], u32_at(data, 38), u32_at(data, 42), data[47], payload, missing
        try:
            segment = self._link(link, data, length)
        except (struct.error, IndexError):  # headers cut by the snap length
            segment = None
        if segment is None:
            self.skipped += 1
        return segment

    def _link(self, link: int, data: bytes, length: int) -> Segment | None:
        if link in _TYPED:
            kind_at, pos = _TYPED[link]
            return self._after_header(u16_at(data, kind_at), data, pos, length)
        pos = _IP_AT[link] if link in _IP_AT else ip_offset(link, data[:_SEARCHED])
        return self._ip(data, pos, length) if pos >= 0 else None

    def _after_header(self, kind: int, data: bytes, pos: int, length: int) -> Segment | None:
        """Return the segment in what follows a header with this EtherType."""
        while kind in _TAGS:
            kind, pos = u16_at(data, pos + 2), pos + 4
        if kind in _IP_TYPES:
            return self._ip(data, pos, length)
        if kind in _MPLS:
            while not data[pos + 2] & 1:  # the bit marks the last label
                pos += 4
            version = data[pos + 4] >> 4
            if version in (4, 6):
                return self._ip(data, pos + 4, length)
            return self._ethernet(data, pos + 4 if version else pos + 8, length)
        if kind == _PPPOE and u16_at(data, pos + 6) in _PPP_IP:
            return self._ip(data, pos + 8, length)
        return self._ethernet(data, pos, length) if kind == _BRIDGED else None

    def _ethernet(self, data: bytes, pos: int, length: int) -> Segment | None:
        """Return the segment in an Ethernet frame inside a packet."""
        return self._inside(data, pos + 14, length, u16_at(data, pos + 12))

    def _ip(self, data: bytes, pos: int, length: int) -> Segment | None:
        first, size, _, fragment, protocol = _ipv4_at(data, pos)
        if first >> 4 != 4:
            return self._ipv6(data, pos, length) if first >> 4 == 6 else None
        # offloaded segments are captured before their length is known: 0 means the rest of the packet
        stop = pos + size if size else length
        header = (first & 15) * 4
        if header < 20:
            return None
        if fragment & 0x3FFF:
            key = data[pos + 12 : pos + 20] + data[pos + 4 : pos + 6] + data[pos + 9 : pos + 10]
            offset, has_more = (fragment & 0x1FFF) * 8, bool(fragment & 0x2000)
            datagram = self._fragment(key, offset, has_more, data[pos + header : stop])
            if datagram is None:
                return None
            size = (header + len(datagram)).to_bytes(2, "big")
            head = (
                data[pos : pos + 2] + size + data[pos + 4 : pos + 6] + bytes(2) + data[pos + 8 : pos + header]
            )
            return self._inside(head + datagram)
        if protocol != _TCP:
            return self._tunnel(protocol, data, pos + header, stop)
        return self._tcp(data[pos + 12 : pos + 20], data, pos + header, stop)

    def _ipv6(self, data: bytes, pos: int, length: int) -> Segment | None:
        size = u16_at(data, pos + 4)
        stop = pos + 40 + size if size else length
        protocol = data[pos + 6]
        addresses = data[pos + 8 : pos + 40]
        next_at = pos + 40
        while True:
            if protocol == _TCP:
                return self._tcp(addresses, data, next_at, stop)
            if protocol in _EXTENSIONS:
                protocol, next_at = data[next_at], next_at + 8 + data[next_at + 1] * 8
            elif protocol == _AUTHENTICATION:
                protocol, next_at = data[next_at], next_at + 8 + data[next_at + 1] * 4
            elif protocol == _FRAGMENT:
                word = u16_at(data, next_at + 2)
                key = addresses + data[next_at + 4 : next_at + 8] + data[next_at : next_at + 1]
                datagram = self._fragment(key, word & 0xFFF8, bool(word & 1), data[next_at + 8 : stop])
                if datagram is None:
                    return None
                length_field = len(datagram).to_bytes(2, "big")
                head = (
                    data[pos : pos + 4]
                    + length_field
                    + data[next_at : next_at + 1]
                    + data[pos + 7 : pos + 40]
                )
                return self._inside(head + datagram)
            else:
                return self._tunnel(protocol, data, next_at, stop)

    def _tcp(self, addresses: bytes, data: bytes, pos: int, stop: int) -> Segment | None:
        sequence, acknowledged, header, flags = _tcp_at(data, pos + 4)
        start = pos + (header >> 4) * 4
        if start < pos + 20 or not 0 <= stop - start <= MAX_OFFLOADED:
            return None
        key, payload = addresses + data[pos : pos + 4], data[start:stop]
        return key, sequence, acknowledged, flags, payload, stop - start - len(payload)

    def _tunnel(self, protocol: int, data: bytes, pos: int, stop: int) -> Segment | None:
        """Return the segment in the payload of an IP packet whose protocol is not TCP."""
        if protocol in _IP_IN_IP:
            return self._inside(data, pos, stop)
        if protocol == _GRE:
            flags, kind = u16_at(data, pos), u16_at(data, pos + 2)
            if flags & 7:
                return None  # another version
            pos += 8 if flags & 0xC000 else 4  # checksum
            pos += (flags >> 13 & 1) * 4 + (flags >> 12 & 1) * 4  # key, sequence number
            return self._inside(data, pos, stop, kind)
        if protocol == _UDP:
            port = u16_at(data, pos + 2)
            if port in _VXLAN:
                return self._ethernet(data, pos + 16, stop)
            if port == _GENEVE:
                return self._inside(data, pos + 16 + (data[pos + 8] & 0x3F) * 4, stop, u16_at(data, pos + 10))
        return None

    def _inside(self, data: bytes, pos: int = 0, length: int = -1, kind: int = 0x0800) -> Segment | None:
        """Return the segment in a packet that is inside an IP packet, by its EtherType."""
        if self._depth == _DEEPEST:
            return None
        self._depth += 1
        try:
            return self._after_header(kind, data, pos, len(data) if length < 0 else length)
        finally:
            self._depth -= 1

    def _fragment(self, key: bytes, offset: int, has_more: bool, data: bytes) -> bytes | None:
        """Add a fragment to its datagram; return the datagram once it is complete."""
        self.fragments += 1
        datagram = self._datagrams.get(key)
        if datagram is None:
            if len(self._datagrams) >= MAX_DATAGRAMS:
                del self._datagrams[next(iter(self._datagrams))]
            datagram = self._datagrams[key] = _Datagram()
        payload = datagram.add(offset, has_more, data)
        if payload is not None:
            del self._datagrams[key]
        return payload


class _Datagram:
    """The fragments of one IP datagram seen so far; at most 64 KiB, which is the most that it can have."""

    def __init__(self, parts: dict[int, bytes] | None = None, size: int = -1) -> None:
        self.parts = dict(parts or {})
        self.size = size
        self._bytes = sum(map(len, self.parts.values()))
        self._seen = bytearray()  # 1 for each byte that is in a part
        for offset, data in self.parts.items():
            self._note(offset, len(data))

    def add(self, offset: int, has_more: bool, data: bytes) -> bytes | None:
        """Add a fragment; return the datagram once it is complete."""
        if offset not in self.parts and self._bytes + len(data) <= _LARGEST_DATAGRAM:
            self.parts[offset] = data
            self._bytes += len(data)
            self._note(offset, len(data))
        if not has_more:
            self.size = offset + len(data)
        if not 0 <= self.size <= len(self._seen) or self._seen.find(0, 0, self.size) >= 0:
            return None
        payload = bytearray()
        for start in sorted(self.parts):
            if start > len(payload):
                break
            payload += self.parts[start][len(payload) - start :]
        return bytes(payload)

    def _note(self, offset: int, size: int) -> None:
        self._seen.extend(bytes(max(offset + size - len(self._seen), 0)))
        self._seen[offset : offset + size] = b"\1" * size


def ip_offset(link: int, data: bytes) -> int:
    """Return where scapy finds an IP packet in `data`, the head of a packet of type `link`; -1: nowhere."""
    from scapy.config import conf
    from scapy.contrib import mpls  # noqa: F401  (importing binds the layers to each other)
    from scapy.layers import inet, inet6, l2, ppp  # noqa: F401

    layer: Any = conf.l2types.num2layer.get(link)
    pos = 0
    try:
        for _ in range(_DEEPEST):  # layer by layer, or scapy would also dissect the IP packet itself
            if layer is None or layer in (inet.IP, inet6.IPv6):
                break
            if hasattr(layer, "dispatch_hook"):
                layer = layer.dispatch_hook(data[pos:])
            packet = layer()
            payload = packet.post_dissect(packet.do_dissect(packet.pre_dissect(data[pos:])))
            pos = len(data) - len(payload)
            layer = packet.guess_payload_class(packet.extract_padding(payload)[0])
    except Exception:
        return -1
    return pos if layer in (inet.IP, inet6.IPv6) else -1
