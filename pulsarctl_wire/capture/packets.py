"""Finds the TCP segments in packets: link layers, IP, fragments.

All layers are parsed by hand, because they are most of the work on captures of small packets: link layers
(links.py); IPv4 with options, IPv6 with extension headers; tunnels in IP (tunnels.py).

Sources: RFC 791, 8200 (IP), 4302 (AH), 9293 (TCP).
"""

import ipaddress
import struct
from typing import Final

from pulsarctl_wire.capture.exported import read_tags
from pulsarctl_wire.capture.links import (
    BRIDGED,
    ENCRYPTED,
    ETHERNET,
    EXPORTED,
    INVALID,
    IP,
    IP_TYPES,
    NO_TUNNEL,
    NOT_IP,
    UNKNOWN_LINK,
    UNKNOWN_VERSION,
    first_header,
    next_header,
)
from pulsarctl_wire.capture.tunnels import UDP, inner_header
from pulsarctl_wire.wire.fixed import u16_at, u32_at
from pulsarctl_wire.wire.ranges import UInt16, UInt32, Wrapped

Segment = tuple[bytes, UInt32, UInt32, UInt16, bytes, UInt32]
"""(key, sequence number, acknowledgement number, flags, payload, missing).

`key` is source and destination address followed by source and destination port, as on the wire;
`missing` counts payload bytes that were sent but not captured (snap length). A SYN that acknowledges nothing
has its timestamp as the acknowledgement number, 0 without one.
"""

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10
"""Flags of segments."""
NEXT: Final = 0x100
"""Our own flag: the payload comes next in its direction; only the first sequence number there counts."""


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


_TCP: Final = 6
_FRAGMENT: Final = 44
_EXTENSIONS: Final = {0, 43, 60, 135}  # hop by hop, routing, destination options, mobility
_AUTHENTICATION: Final = 51

CUT: Final = "cut headers"
FRAGMENTS: Final = "incomplete fragments"
TOO_DEEP: Final = "nested too deep"
"""Reasons why packets are skipped, besides those below."""
_REASONS: Final = {
    NOT_IP: "not IP",
    ENCRYPTED: "encrypted",
    UNKNOWN_VERSION: "unknown version of a tunnel",
    INVALID: "invalid headers",
}
_PROTOCOLS: Final = {1: "ICMP", 2: "IGMP", UDP: "UDP", 58: "ICMPv6", 89: "OSPF", 112: "VRRP", 132: "SCTP"}
_COUNTED_LINKS: Final = 1_000  # link types below this are counted separately, all others together

_TIMESTAMP: Final = 8  # an option of TCP
_USUAL_HEADERS: Final = 54  # bytes of Ethernet, IPv4 and TCP headers without options
_ipv4_at: Final = struct.Struct(">BxHHHxB").unpack_from
_tcp_at: Final = struct.Struct(">IIBB").unpack_from

_LARGEST_DATAGRAM: Final = 65_535 - 60  # bytes after the largest header

MAX_OFFLOADED: Final = 512 * 1024
"""Bytes of the largest segment (captured before the network card splits it); Linux makes no larger ones."""

_DEEPEST: Final = 8  # nested IP packets
_MOST_HEADERS: Final = 64  # between IP packets

MAX_DATAGRAMS: Final = 256
"""IP datagrams whose fragments are kept at a time; beyond that the oldest are given up."""


Waiting = dict[bytes, tuple[dict[UInt16, bytes], Wrapped]]
"""Incomplete datagrams, by key: the bytes of the fragments by offset, and the size (-1: not known yet)."""


class Dissector:
    """Finds the TCP segments in packets. Its only state is IP fragments and counters.

    `waiting` are fragments of an earlier dissector, which are copied.
    """

    def __init__(self, waiting: Waiting | None = None) -> None:
        self.skipped: dict[str, int] = {}
        """Packets without a TCP segment, by reason.

        A fragment counts as incomplete until its datagram is complete; then it counts for the datagram's
        reason, or not at all if that holds a segment. So the count of incomplete ones is negative where an
        earlier dissector has counted fragments that were `waiting`.
        """
        self.fragments = 0
        """IP fragments seen so far."""
        self._datagrams = {key: _Datagram(*datagram) for key, datagram in (waiting or {}).items()}
        self._depth = 0
        self._reason = CUT  # why the current packet is skipped
        self._packets = 1  # the current one, and the other fragments of its datagram

    @property
    def waiting(self) -> Waiting:
        """The incomplete datagrams, for another dissector to continue with."""
        return {key: (datagram.parts, datagram.size) for key, datagram in self._datagrams.items()}

    def segment(self, link: int, data: bytes, length: int) -> Segment | None:
        """Return the TCP segment in a packet of link type `link` and `length` bytes on the wire, or None."""
        if link == ETHERNET and len(data) >= _USUAL_HEADERS:
            # fast path for nearly all packets: IPv4 without options or fragments, no SYN
            size = u16_at(data, 16)
            is_usual = u16_at(data, 12) == 0x0800 and data[14] == 0x45 and data[23] == _TCP and size > 0
            is_usual = is_usual and not data[47] & SYN
            if is_usual and not u16_at(data, 20) & 0x3FFF:
                start, stop = 34 + (data[46] >> 4) * 4, 14 + size
                if 54 <= start <= stop:
                    payload = data[start:stop]
                    missing = stop - start - len(payload)
                    return data[26:38], u32_at(data, 38), u32_at(data, 42), data[47], payload, missing
        self._packets = 1
        try:
            segment = self._exported(data, length) if link == EXPORTED else self._link(link, data, length)
        except (struct.error, IndexError):  # headers cut by the snap length
            segment = None
            self._reason = CUT
        if segment is None:
            self.skipped[self._reason] = self.skipped.get(self._reason, 0) + self._packets
        return segment

    def _link(self, link: int, data: bytes, length: int) -> Segment | None:
        kind, pos = first_header(link, data)
        if kind == UNKNOWN_LINK:
            return self._skip(f"link type {link}" if link < _COUNTED_LINKS else "other link types")
        return self._after_header(kind, data, pos, length)

    def _skip(self, reason: str) -> Segment | None:
        """Note why the current packet has no segment, and return None."""
        self._reason = reason
        return None

    def _exported(self, data: bytes, length: int) -> Segment | None:
        """Return the segment that a PDU exported by Wireshark stands for."""
        dissector, key, details, pos = read_tags(data)
        if dissector in (b"ip", b"ipv6", b"eth"):
            return self._after_header(BRIDGED if dissector == b"eth" else IP, data, pos, length)
        if not key:
            return self._skip("exported, but not of TCP")
        payload, missing = data[pos:], max(length - max(len(data), pos), 0)
        if not details:
            return key, 1, 0, NEXT, payload, missing  # 1: as Wireshark counts
        sequence, acknowledged, flags = details
        return key, sequence, acknowledged, flags & (FIN | RST | ACK), payload, missing

    def _after_header(self, kind: int, data: bytes, pos: int, length: int) -> Segment | None:
        """Return the segment in what follows a header with this EtherType."""
        for _ in range(_MOST_HEADERS):
            if kind in IP_TYPES:
                return self._ip(data, pos, length)
            if kind < 0:
                return self._skip(_REASONS[kind])
            kind, pos = next_header(kind, data, pos)
        return self._skip(TOO_DEEP)

    def _ip(self, data: bytes, pos: int, length: int) -> Segment | None:
        first, size, _, fragment, protocol = _ipv4_at(data, pos)
        if first >> 4 != 4:
            if first >> 4 == 6:
                return self._ipv6(data, pos, length)
            return self._skip(_REASONS[NOT_IP])
        # offloaded segments are captured before their length is known: 0 means the rest of the packet
        stop = pos + size if size else length
        header = (first & 15) * 4
        if header < 20:
            return self._skip(_REASONS[INVALID])
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
        next_at = pos + header
        while protocol == _AUTHENTICATION:
            protocol, next_at = data[next_at], next_at + 8 + data[next_at + 1] * 4
        if protocol != _TCP:
            return self._tunnel(protocol, data, next_at, stop)
        return self._tcp(data[pos + 12 : pos + 20], data, next_at, stop)

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
            return self._skip(_REASONS[INVALID])
        if flags & (SYN | ACK) == SYN:
            acknowledged = _timestamp(data[pos + 20 : start])
        key, payload = addresses + data[pos : pos + 4], data[start:stop]
        return key, sequence, acknowledged, flags, payload, stop - start - len(payload)

    def _tunnel(self, protocol: int, data: bytes, pos: int, stop: int) -> Segment | None:
        """Return the segment in the payload of an IP packet whose protocol is not TCP."""
        kind, pos = inner_header(protocol, data, pos)
        if kind == NO_TUNNEL:
            return self._skip(_PROTOCOLS.get(protocol) or f"IP protocol {protocol}")
        return self._inside(data, pos, stop, kind)

    def _inside(self, data: bytes, pos: int = 0, length: int = -1, kind: int = IP) -> Segment | None:
        """Return the segment in a packet that is inside an IP packet, by its EtherType."""
        if self._depth == _DEEPEST:
            return self._skip(TOO_DEEP)
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
        if payload is None:
            self._reason = FRAGMENTS
            return None
        del self._datagrams[key]
        self._packets += len(datagram.parts) - 1
        self.skipped[FRAGMENTS] = self.skipped.get(FRAGMENTS, 0) - (len(datagram.parts) - 1)
        return payload


def _timestamp(options: bytes) -> int:
    """Return the timestamp among the options of a SYN; 0 if there is none."""
    pos = 0
    while pos + 10 <= len(options) and options[pos]:
        if options[pos] == _TIMESTAMP:
            return u32_at(options, pos + 2)
        pos += 1 if options[pos] == 1 else max(options[pos + 1], 1)
    return 0


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
