"""Packets with other addresses and payloads: headers, sizes and the state of their checksums stay.

Where a TCP segment is in a packet is found by what the dissector says of it: its ports, numbers and addresses
are searched in the packet's bytes. So every tunnel that the dissector opens is understood. What is before the
segment's IP header stays if it is a usual link layer, and perhaps one outer IP header with the header of a
tunnel. A packet with anything else there is made anew, as raw IP.
"""

import struct
from contextlib import suppress
from typing import Final, NamedTuple

from pulsarctl_wire.capture.checksum import sum_words
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.links import BRIDGED, ETHERNET, IP, IP_TYPES, RAW_IP, next_header
from pulsarctl_wire.capture.packets import ACK, NEXT, Segment
from pulsarctl_wire.capture.tunnels import UDP, inner_header
from pulsarctl_wire.sanitize.addresses import AddressMap

_SLL, _SLL2 = 113, 276
_MACS: Final = {ETHERNET: ((0, 6), (6, 12)), _SLL: ((6, 14),), _SLL2: ((12, 20),)}
"""Link type -> where the addresses of network cards are."""
_TYPE_AT: Final = {ETHERNET: 12, _SLL: 14, _SLL2: 0}
_HEADERS: Final = {ETHERNET: 14, _SLL: 16, _SLL2: 20, 12: 0, RAW_IP: 0, 228: 0, 229: 0, 0: 4, 108: 4}
"""Link type -> bytes of its header."""
_TAGS: Final = (0x8100, 0x88A8, 0x9100, 0x9200)
_TCP: Final = 6
_MAX_HEADERS: Final = 8  # of IP, one inside another
_MAX_TUNNEL: Final = 48  # bytes of the header of a tunnel
_TCP_HEADER, _IPV4_HEADER, _IPV6_HEADER = 20, 20, 40
_WINDOW: Final = 65_535
_LARGEST: Final = 65_535  # the largest number in 16 bits


class Place(NamedTuple):
    """Where a segment is in a packet: its IP header, its TCP header, and its payload."""

    ip: int
    tcp: int
    start: int
    stop: int


def find_segment(data: bytes, segment: Segment) -> Place | None:
    """Return where `segment` is in the packet `data`; None if the packet does not have it in one piece."""
    key, sequence, acknowledged, flags, payload, _ = segment
    if flags & NEXT:
        return None
    addresses, pattern = key[:-4], key[-4:] + struct.pack(">I", sequence)
    if flags & ACK:
        pattern += struct.pack(">I", acknowledged)
    tcp = data.find(pattern)
    while tcp >= 0:
        start = tcp + (data[tcp + 12] >> 4) * 4 if len(data) > tcp + 13 else -1
        if start >= tcp + _TCP_HEADER and data[tcp + 13] == flags and data.startswith(payload, start):
            ip = _find_ip(data, tcp, addresses)
            if ip >= 0:
                return Place(ip, tcp, start, start + len(payload))
        tcp = data.find(pattern, tcp + 1)
    return None


def _find_ip(data: bytes, tcp: int, addresses: bytes) -> int:
    """Return where the IP header before a TCP header begins; -1 if there is none with these addresses."""
    if len(addresses) == 8:
        for size in range(_IPV4_HEADER, 61, 4):
            ip = tcp - size
            if ip >= 0 and data[ip] == 0x40 | size // 4 and data[ip + 12 : ip + 20] == addresses:
                return ip
        return -1
    source_at = data.rfind(addresses, 0, tcp)
    return source_at - 8 if source_at >= 8 and data[source_at - 8] >> 4 == 6 else -1


class PacketRewriter:
    """Replaces addresses and payloads in packets."""

    def __init__(self, addresses: AddressMap) -> None:
        self._addresses = addresses

    def rewrite(self, packet: RawPacket, segment: Segment, place: Place | None, payload: bytes) -> RawPacket:
        """Return a packet with `payload` instead of the payload of its segment, which is at `place`."""
        time_ns, link, data, length = packet
        if place is None or not self._is_usual(link, data, place.ip):
            _, _, raw_ip, raw_length = self.make(packet, (*segment[:4], payload, segment[5]))
            padding = 0 if segment[5] or len(raw_ip) > _LARGEST else max(len(data) - len(raw_ip), 0)
            return time_ns, RAW_IP, raw_ip + bytes(padding), max(raw_length, length)
        out = bytearray(data)
        out[place.start : place.stop] = payload
        out[place.stop :] = bytes(len(data) - place.stop)  # padding of the link layer
        self._rewrite_outer(link, data, place.ip, out)
        self._rewrite_ip(data, place.ip, place.tcp, out)
        change = self._measure_addresses(data, place.ip, out)
        total = change + sum_words(data[place.start : place.stop]) - sum_words(payload)
        self._adjust_tcp(data, place, segment[5], (change, total), out)
        return time_ns, link, bytes(out), length

    def blank(self, packet: RawPacket) -> RawPacket:
        """Return what replaces a packet without a segment: usual headers with other addresses, then zeros."""
        time_ns, link, data, length = packet
        out = bytearray(len(data))
        pos, kind = self._link_end(link, data)
        if 0 <= pos <= len(data):
            out[:pos] = data[:pos]
            self._rewrite_macs(link, data, out)
            with suppress(IndexError):  # a header is cut
                self._keep_headers(kind, data, pos, out)
        return time_ns, link, bytes(out), length

    def _keep_headers(self, kind: int, data: bytes, pos: int, out: bytearray) -> None:
        """Copy the headers from `pos` on, also those in tunnels, with other addresses."""
        for _ in range(_MAX_HEADERS):
            end = self._ip_end(data, pos) if kind in IP_TYPES else -1
            if end < 0:
                return
            out[pos:end] = data[pos:end]
            self._rewrite_ip(data, pos, end, out)
            protocol = _protocol(data, pos)
            size = {UDP: 6, _TCP: _TCP_HEADER}.get(protocol, 0)  # 6: without the checksum
            out[end : end + size] = data[end : end + size]
            kind, pos = inner_header(protocol, data, end)
            if kind < 0 or pos > end + _MAX_TUNNEL:
                return
            out[end:pos] = data[end:pos]
            while kind >= 0 and kind not in IP_TYPES:
                start, is_ethernet = pos, kind == BRIDGED
                kind, pos = next_header(kind, data, pos)
                if kind < 0 or pos > start + _MAX_TUNNEL:
                    return
                out[start:pos] = data[start:pos]
                if is_ethernet:
                    for mac in (start, start + 6):
                        out[mac : mac + 6] = self._addresses.replace_mac(data[mac : mac + 6])

    # -- headers

    def _is_usual(self, link: int, data: bytes, ip: int) -> bool:
        """Return whether only a usual link layer, and perhaps a tunnel, is before the IP header at `ip`."""
        pos, kind = self._link_end(link, data)
        if pos == ip:
            return True
        if pos < 0 or pos > ip:
            return False
        if kind in IP_TYPES:
            pos = self._ip_end(data, pos)
        return 0 <= pos <= ip <= pos + _MAX_TUNNEL

    @staticmethod
    def _link_end(link: int, data: bytes) -> tuple[int, int]:
        """Return where the link layer's header ends, and the EtherType after it; -1 if it is not known."""
        pos = _HEADERS.get(link, -1)
        if link not in _TYPE_AT:
            is_ip = 0 <= pos < len(data) and data[pos] >> 4 in (4, 6)
            return pos, IP if is_ip else -1
        type_at = _TYPE_AT[link]
        kind = int.from_bytes(data[type_at : type_at + 2], "big")
        while kind in _TAGS and len(data) >= pos + 4:
            kind, pos = int.from_bytes(data[pos + 2 : pos + 4], "big"), pos + 4
        return pos, kind

    @staticmethod
    def _ip_end(data: bytes, pos: int) -> int:
        """Return where the IP header at `pos` ends; -1 if there is no complete one."""
        if pos >= len(data):
            return -1
        end = pos + ((data[pos] & 15) * 4 if data[pos] >> 4 == 4 else _IPV6_HEADER)
        return end if data[pos] >> 4 in (4, 6) and pos + _IPV4_HEADER <= end <= len(data) else -1

    def _rewrite_macs(self, link: int, data: bytes, out: bytearray) -> None:
        for start, stop in _MACS.get(link, ()):
            out[start:stop] = self._addresses.replace_mac(data[start:stop])

    def _rewrite_outer(self, link: int, data: bytes, ip: int, out: bytearray) -> None:
        """Replace the addresses before the IP header at `ip`."""
        self._rewrite_macs(link, data, out)
        pos, kind = self._link_end(link, data)
        if pos >= ip or kind not in IP_TYPES:
            return
        end = self._ip_end(data, pos)
        if end > ip:
            return
        self._rewrite_ip(data, pos, end, out)
        for stop in (ip - 2, ip - 6):  # end of the addresses of an inner Ethernet header, maybe with a tag
            kind = int.from_bytes(data[stop : stop + 2], "big")
            if kind in (IP_TYPES if stop == ip - 2 else _TAGS) and stop - 12 >= end:
                out[stop - 12 : stop - 6] = self._addresses.replace_mac(data[stop - 12 : stop - 6])
                out[stop - 6 : stop] = self._addresses.replace_mac(data[stop - 6 : stop])
        if _protocol(data, pos) == UDP:
            out[end + 6 : end + 8] = bytes(2)  # no checksum, as is usual in tunnels

    def _rewrite_ip(self, data: bytes, pos: int, end: int, out: bytearray) -> None:
        """Replace the addresses of the IP header at `pos`; its options, up to `end`, become zeros."""
        if data[pos] >> 4 == 6:
            for start in (pos + 8, pos + 24):
                out[start : start + 16] = self._addresses.replace(data[start : start + 16])
            return
        for start in (pos + 12, pos + 16):
            out[start : start + 4] = self._addresses.replace(data[start : start + 4])
        options = slice(pos + _IPV4_HEADER, end)
        out[options] = bytes(len(data[options]))
        checksum = int.from_bytes(data[pos + 10 : pos + 12], "big")
        if checksum:  # 0: left to the network card
            change = sum_words(data[pos + 12 : end]) - sum_words(memoryview(out)[pos + 12 : end])
            out[pos + 10 : pos + 12] = _adjust(checksum, change)

    @staticmethod
    def _measure_addresses(data: bytes, ip: int, out: bytearray) -> int:
        """Return the sum of the old addresses in the IP header at `ip`, less that of the new ones."""
        start, size = (ip + 8, 32) if data[ip] >> 4 == 6 else (ip + 12, 8)
        return sum_words(data[start : start + size]) - sum_words(memoryview(out)[start : start + size])

    @staticmethod
    def _adjust_tcp(
        data: bytes, place: Place, missing: int, changes: tuple[int, int], out: bytearray
    ) -> None:
        """Adjust the TCP checksum, so that it stays right, wrong, or left to the network card.

        `changes` are the old sum less the new one, of the addresses, and of all that the checksum covers.
        """
        checksum_at = place.tcp + 16
        checksum = int.from_bytes(data[checksum_at : checksum_at + 2], "big")
        ip, size = place.ip, place.stop - place.tcp + missing
        words = data[ip + 8 : ip + 40] if data[ip] >> 4 == 6 else data[ip + 12 : ip + 20]
        is_left_to_card = checksum % 0xFFFF == (sum_words(words) + _TCP + size) % 0xFFFF
        out[checksum_at : checksum_at + 2] = _adjust(checksum, -changes[0] if is_left_to_card else changes[1])

    # -- packets that are made anew

    def make(self, packet: RawPacket, segment: Segment) -> RawPacket:
        """Return a raw IP packet with a segment that has no options, at the time of another packet."""
        time_ns = packet[0]
        key, sequence, acknowledged, flags, payload, missing = segment
        flags &= 0xFF
        if not flags & ACK:
            acknowledged = 0  # the dissector puts the timestamp of a SYN there
        half = len(key) // 2 - 2
        addresses = b"".join(self._addresses.replace(key[start : start + half]) for start in (0, half))
        size = _TCP_HEADER + len(payload) + missing
        tcp = key[-4:] + struct.pack(">IIBBHHH", sequence, acknowledged, 5 << 4, flags, _WINDOW, 0, 0)
        total = sum_words(addresses) + _TCP + size + sum_words(tcp) + sum_words(payload)
        tcp = tcp[:16] + (-total % 0xFFFF).to_bytes(2, "big") + tcp[18:]
        if half == 16:
            ip = struct.pack(">IHBB", 6 << 28, size if size <= _LARGEST else 0, _TCP, 64) + addresses
        else:
            whole = size + _IPV4_HEADER
            ip = struct.pack(">BBHHHBBH", 0x45, 0, whole if whole <= _LARGEST else 0, 0, 0x4000, 64, _TCP, 0)
            checksum = -(sum_words(ip) + sum_words(addresses)) % 0xFFFF
            ip = ip[:10] + checksum.to_bytes(2, "big") + addresses
        out = b"".join((ip, tcp, payload))
        return time_ns, RAW_IP, out, len(out) + missing


def _protocol(data: bytes, pos: int) -> int:
    """Return the number of the protocol in the IP packet at `pos`."""
    return data[pos + 6] if data[pos] >> 4 == 6 else data[pos + 9]


def _adjust(checksum: int, change: int) -> bytes:
    return ((checksum + change) % 0xFFFF).to_bytes(2, "big")
