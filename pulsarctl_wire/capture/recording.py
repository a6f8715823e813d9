"""A live session as a capture file: chunks of bytes seen at a socket, as the TCP packets of a pcapng file.

What the sockets carried is known, the packets are not: they are made up, with right addresses, numbers
and checksums, so that every reader of captures finds the same bytes in the same order at the same times.
Sources: RFC 791, 1071 (checksums), 7323 (options), 8200 (IPv6), 9293 (TCP), LINKTYPE_RAW.
"""

import struct
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import BinaryIO, Final

import numpy as np

from pulsarctl_wire.capture.packets import ACK, FIN, RAW_IP, SYN
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.wire.frame import Connection

MAX_PAYLOAD: Final = 65_000
"""Bytes a packet carries at most; an IPv4 packet's total length, headers included, has 16 bits."""

_PSH, _TCP, _MASK = 0x08, 6, 0xFFFFFFFF
_UNACKNOWLEDGED: Final = 1024 * 1024  # bytes after which an ACK is put in; far below the window
_HOLE: Final = 4 * 1024 * 1024  # unseen bytes that pass at a time; they fit in the window
_WINDOW = 65_535  # << 7 bytes by the second option: never full, which readers would remark on
_OPTIONS: Final = struct.pack(">BBHBBBB", 2, 4, MAX_PAYLOAD, 1, 3, 3, 7)  # of a SYN: MSS, window scale
_NEXT_ISN: Final = 0x9E3779B1  # odd, so that 2^32 connections have different ones
_PORT, _CLIENT_PORTS = 6650, range(49_152, 65_536)
_CLIENTS, _BROKERS = (198, 18), (198, 19)
_MAPPED: Final = bytes(10) + b"\xff\xff"  # before an IPv4 address that stands among IPv6 ones

_Endpoint = tuple[bytes, int]  # packed address, port


class _Side:
    """What one side of an open connection sends: its headers' constants and its counters."""

    def __init__(self, source: _Endpoint, target: _Endpoint, isn: int) -> None:
        size = max(len(source[0]), len(target[0]))
        self.addresses = b"".join((_MAPPED + address)[-size:] for address, _ in (source, target))
        self.key = self.addresses + struct.pack(">HH", source[1], target[1])
        self.pseudo = _sum(self.addresses) + _TCP  # of the pseudo-header, without the length
        self.next = self.acked = isn  # sequence numbers: of the next byte; up to which the peer has it all


_Sides = tuple[_Side, _Side]  # what the broker sends, what the client sends: indexed by `to_broker`


class SessionWriter:
    """Writes the sessions of connections to `stream` as pcapng, link type raw IP, for one thread at a time.

    Where `Connection.client` or `server` is no "address:port" (a host name, a unix socket, nothing), an
    address from the block for benchmarks (RFC 2544) stands in, by the connection's index: 198.18.x.y for
    a client, 198.19.x.y for a broker, with the port if the text ends in one. A client whose addresses and
    ports an open connection has already gets such an address too, so that connections never mix. If one
    side is IPv6, an IPv4 address on the other is mapped (::ffff:1.2.3.4).

    Methods raise OSError where `stream` cannot be written: the file is good up to there, write no more.
    Times are ns since the epoch. `isn` is the initial sequence number of the first connection's sides.
    """

    def __init__(self, stream: BinaryIO, *, isn: int = 1) -> None:
        self._writer = PcapngWriter(stream)
        self._isn = isn
        self._open: dict[int, _Sides] = {}  # by index
        self._keys: set[bytes] = set()

    def opened(self, connection: Connection, time_ns: int) -> None:
        """The handshake of a new TCP connection; one that is open under the same index is closed first."""
        self.closed(connection, time_ns)
        client = _endpoint(connection.client, _CLIENTS, connection.index)
        server = _endpoint(connection.server, _BROKERS, connection.index)
        for number in count(connection.index):
            sides = _Side(server, client, self._isn), _Side(client, server, self._isn)
            if client != server and self._keys.isdisjoint((sides[0].key, sides[1].key)):
                break
            client = _endpoint("", _CLIENTS, number)
        self._isn = (self._isn + _NEXT_ISN) & _MASK
        self._open[connection.index] = sides
        self._keys.add(sides[1].key)
        for to_broker, flags in ((True, SYN), (False, SYN | ACK), (True, ACK)):
            self._segment(sides, to_broker, flags, time_ns)

    def carried(
        self, connection: Connection, to_broker: bool, data: bytes | memoryview, time_ns: int
    ) -> None:
        """The bytes of one direction that come next, in as many packets as they need.

        What is carried by a connection that is not open opens it: no bytes are lost.
        """
        if connection.index not in self._open:
            self.opened(connection, time_ns)
        sides = self._open[connection.index]
        for at in range(0, len(data), MAX_PAYLOAD):
            self._segment(sides, to_broker, _PSH | ACK, time_ns, memoryview(data)[at : at + MAX_PAYLOAD])
            self._acknowledge(sides, to_broker, time_ns)

    def gap(self, connection: Connection, to_broker: bool, size: int, time_ns: int) -> None:
        """`size` bytes of one direction passed and were not seen: readers find that they were not captured.

        Sequence numbers go on without them. Where they are many they are acknowledged on the way as others
        are: no reader takes a number for an old one, and those that wait for late packets give them up.
        """
        if connection.index not in self._open:
            self.opened(connection, time_ns)
        sides = self._open[connection.index]
        while size > 0:
            step = min(size, _HOLE)
            size -= step
            sides[to_broker].next = (sides[to_broker].next + step) & _MASK
            self._acknowledge(sides, to_broker, time_ns)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool = False) -> None:
        """The end of a connection, begun by the client or the broker; nothing if it is not open."""
        sides = self._open.pop(connection.index, None)
        if sides is not None:
            self._keys.discard(sides[1].key)
            for to_broker in (not by_broker, by_broker):
                self._segment(sides, to_broker, FIN | ACK, time_ns)
                self._segment(sides, not to_broker, ACK, time_ns)

    def begin(self) -> None:
        """Go on in a new file, to which the stream leads from here on, with the connections that are open."""
        self._writer.begin()

    def _acknowledge(self, sides: _Sides, to_broker: bool, time_ns: int) -> None:
        """An ACK for what one side has sent, if that is much."""
        if (sides[to_broker].next - sides[to_broker].acked) & _MASK >= _UNACKNOWLEDGED:
            self._segment(sides, not to_broker, ACK, time_ns)

    def _segment(
        self, sides: _Sides, to_broker: bool, flags: int, time_ns: int, payload: bytes | memoryview = b""
    ) -> None:
        side, peer = sides[to_broker], sides[not to_broker]
        options = _OPTIONS if flags & SYN else b""
        acknowledged = peer.next if flags & ACK else 0
        peer.acked = peer.next  # before the first SYN, which has no ACK, nothing was sent
        offset, size = 5 + len(options) // 4, 20 + len(options) + len(payload)
        start = side.key[-4:] + struct.pack(">IIBBH", side.next, acknowledged, offset << 4, flags, _WINDOW)
        total = side.pseudo + size + _sum(start) + _sum(options) + _sum(payload)
        header = start + struct.pack(">HH", -total % 0xFFFF, 0) + options
        packet = b"".join((_ip(side.addresses, size), header, payload))
        side.next = (side.next + len(payload) + bool(flags & (SYN | FIN))) & _MASK
        self._writer.write((time_ns, RAW_IP, packet, len(packet)))


def _ip(addresses: bytes, size: int) -> bytes:
    """The IP header before `size` bytes of TCP."""
    if len(addresses) == 32:
        return struct.pack(">IHBB", 6 << 28, size, _TCP, 64) + addresses
    start = struct.pack(">BBHHHBB", 0x45, 0, 20 + size, 0, 0x4000, 64, _TCP)  # not to be fragmented
    return start + struct.pack(">H", -(_sum(start) + _sum(addresses)) % 0xFFFF) + addresses


def _sum(data: bytes | memoryview) -> int:
    """A number that is the sum of the big-endian 16-bit words of `data`, modulo 65,535 (as 65,536 is 1)."""
    if len(data) <= 512:  # up to there an int is faster than an array
        return int.from_bytes(data, "big") % 0xFFFF << 8 * (len(data) & 1)
    words = len(data) & ~3
    total = int(np.frombuffer(data[:words], "<u4").sum(dtype=np.uint64))
    return total + int.from_bytes(data[words:], "little") << 8  # which swaps the bytes of each word


def _endpoint(text: str, block: tuple[int, int], number: int) -> _Endpoint:
    """The address and port that `text` says, or those that stand in for connection `number`."""
    host, _, digits = text.rpartition(":")
    port = int(digits) if digits.isdecimal() and len(digits) < 6 else 0
    if 0 < port < 65_536:
        with suppress(ValueError):  # a name
            return ip_address(host.removeprefix("[").removesuffix("]")).packed, port
    else:
        port = _PORT if block is _BROKERS else _CLIENT_PORTS[(number >> 16) % len(_CLIENT_PORTS)]
    return bytes((*block, number >> 8 & 0xFF, number & 0xFF)), port
