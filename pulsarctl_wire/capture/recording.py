"""Writes the bytes of a live session, as seen at its sockets, as the TCP packets of a pcapng file.

The real packets are unknown, so they are made up, with correct addresses, sequence numbers and checksums:
every reader of captures finds the same bytes in the same order at the same times.
Sources: RFC 791, 1071 (checksums), 7323 (options), 8200 (IPv6), 9293 (TCP), LINKTYPE_RAW.
"""

import struct
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import BinaryIO, Final

from pulsarctl_wire.capture.checksum import sum_words
from pulsarctl_wire.capture.comments import describe_route
from pulsarctl_wire.capture.links import RAW_IP
from pulsarctl_wire.capture.packets import ACK, FIN, SYN, address_of
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.wire.frame import Connection

MAX_PAYLOAD: Final = 65_000
"""Maximum payload bytes of a packet; an IPv4 packet's total length, with headers, has 16 bits."""

_PSH, _TCP, _MASK = 0x08, 6, 0xFFFFFFFF
_UNACKNOWLEDGED: Final = 1024 * 1024  # bytes after which an ACK is inserted; far below the window
_HOLE: Final = 4 * 1024 * 1024  # bytes of a gap that are skipped at a time; they fit in the window
_WINDOW = 65_535  # times 128 bytes, by the scale in `_OPTIONS`: never full, which readers would report
_OPTIONS: Final = struct.pack(">BBHBBBB", 2, 4, MAX_PAYLOAD, 1, 3, 3, 7)  # of a SYN: MSS, window scale
_NEXT_ISN: Final = 0x9E3779B1  # odd, so that 2^32 connections have different ones
_PORT, _CLIENT_PORTS = 6650, range(49_152, 65_536)
_CLIENTS, _BROKERS = (198, 18), (198, 19)  # blocks: the first bytes of made-up addresses
_MAPPED: Final = bytes(10) + b"\xff\xff"  # prefix of an IPv4 address that is mapped to IPv6

_Endpoint = tuple[bytes, int]  # packed address, port


class _Side:
    """One side of an open connection: the constants of its headers and its counters."""

    def __init__(self, source: _Endpoint, target: _Endpoint, isn: int) -> None:
        size = max(len(source[0]), len(target[0]))
        self.addresses = b"".join((_MAPPED + address)[-size:] for address, _ in (source, target))
        self.key = self.addresses + struct.pack(">HH", source[1], target[1])
        self.pseudo = sum_words(self.addresses) + _TCP  # of the pseudo-header, without the length
        self.next = self.acked = isn  # sequence numbers: of the next byte; acknowledged up to here
        self.comments: tuple[str, ...] = ()  # on the next packet of either side; only the client's are used


_Sides = tuple[_Side, _Side]  # broker, client: indexed by `to_broker`


class SessionWriter:
    """Writes the bytes of connections to `stream` as pcapng, link type raw IP. Not thread-safe.

    If `Connection.client` or `server` is not "address:port" (but a host name, a unix socket, empty), an
    address from the block for benchmarks (RFC 2544) is used, by the connection's index: 198.18.x.y for
    a client, 198.19.x.y for a broker, with the port if the text ends in one. A client whose addresses and
    ports are those of an open connection gets such an address too, so that connections never mix. If one
    side is IPv6, an IPv4 address on the other is mapped (::ffff:1.2.3.4).

    Methods raise OSError if `stream` cannot be written: the file is valid up to there; do not write again.
    Times are ns since the epoch. `isn` is the initial sequence number of the first connection's sides.
    """

    def __init__(self, stream: BinaryIO, *, isn: int = 1) -> None:
        self._writer = PcapngWriter(stream)
        self._isn = isn
        self._open: dict[int, _Sides] = {}  # by index
        self._keys: set[bytes] = set()
        self._listeners: dict[int, str] = {}  # of open connections, by index

    def opened(self, connection: Connection, time_ns: int) -> None:
        """Write the handshake of a new TCP connection; an open one with the same index is closed first."""
        self._turn(time_ns)
        self._close(connection, time_ns, False)
        self._sides_of(connection, time_ns)

    def _turn(self, time_ns: int) -> None:
        """Do nothing; before each write, a subclass may begin a new file here."""

    def _begin(self) -> None:
        """Begin a new file, in which the comments on connections are repeated."""
        self._writer.begin()
        for index in self._listeners:
            self._comment(index)

    def _comment(self, index: int) -> None:
        """Let the next packet of a connection say where its client came to."""
        server, client = self._open[index]
        ends = address_of(client.key), self._listeners[index], address_of(server.key)
        client.comments = (describe_route(*ends),)

    def _sides_of(self, connection: Connection, time_ns: int) -> _Sides:
        """Return the sides of a connection; open it if necessary."""
        if connection.index in self._open:
            return self._open[connection.index]
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
        if connection.listener:
            self._listeners[connection.index] = connection.listener
            self._comment(connection.index)
        for to_broker, flags in ((True, SYN), (False, SYN | ACK), (True, ACK)):
            self._segment(sides, to_broker, flags, time_ns)
        return sides

    def carried(
        self, connection: Connection, to_broker: bool, data: bytes | memoryview, time_ns: int
    ) -> None:
        """Write the next bytes of one direction, in as many packets as needed.

        If the connection is not open, it is opened: no bytes are lost.
        """
        self._turn(time_ns)
        sides = self._sides_of(connection, time_ns)
        for pos in range(0, len(data), MAX_PAYLOAD):
            self._segment(sides, to_broker, _PSH | ACK, time_ns, memoryview(data)[pos : pos + MAX_PAYLOAD])
            self._acknowledge(sides, to_broker, time_ns)

    def comment(self, connection: Connection, text: str) -> None:
        """Add a comment to the next packet of an open connection."""
        sides = self._open.get(connection.index)
        if sides is not None:
            sides[1].comments = (*sides[1].comments, text)

    def gap(self, connection: Connection, to_broker: bool, size: int, time_ns: int) -> None:
        """Skip `size` bytes of one direction that were sent but not seen; readers report them as a gap.

        Sequence numbers skip them. A large gap is acknowledged in steps, as sent bytes are, so no reader
        takes a later number for an old one, and readers that wait for late packets give up.
        """
        self._turn(time_ns)
        sides = self._sides_of(connection, time_ns)
        while size > 0:
            step = min(size, _HOLE)
            size -= step
            sides[to_broker].next = (sides[to_broker].next + step) & _MASK
            self._acknowledge(sides, to_broker, time_ns)

    def closed(self, connection: Connection, time_ns: int, by_broker: bool = False) -> None:
        """Write the end of a connection, closed by the client or the broker; nothing if it is not open."""
        self._turn(time_ns)
        self._close(connection, time_ns, by_broker)

    def _close(self, connection: Connection, time_ns: int, by_broker: bool) -> None:
        sides = self._open.pop(connection.index, None)
        if sides is not None:
            self._listeners.pop(connection.index, None)
            self._keys.discard(sides[1].key)
            for to_broker in (not by_broker, by_broker):
                self._segment(sides, to_broker, FIN | ACK, time_ns)
                self._segment(sides, not to_broker, ACK, time_ns)

    def _acknowledge(self, sides: _Sides, to_broker: bool, time_ns: int) -> None:
        """Write an ACK for the bytes that one side has sent, if they are many."""
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
        total = side.pseudo + size + sum_words(start) + sum_words(options) + sum_words(payload)
        header = start + struct.pack(">HH", -total % 0xFFFF, 0) + options
        packet = b"".join((_ip(side.addresses, size), header, payload))
        side.next = (side.next + len(payload) + bool(flags & (SYN | FIN))) & _MASK
        self._writer.write((time_ns, RAW_IP, packet, len(packet)), sides[1].comments)
        sides[1].comments = ()


def _ip(addresses: bytes, size: int) -> bytes:
    """Return the IP header before `size` bytes of TCP."""
    if len(addresses) == 32:
        return struct.pack(">IHBB", 6 << 28, size, _TCP, 64) + addresses
    start = struct.pack(">BBHHHBB", 0x45, 0, 20 + size, 0, 0x4000, 64, _TCP)  # not to be fragmented
    return start + struct.pack(">H", -(sum_words(start) + sum_words(addresses)) % 0xFFFF) + addresses


def _endpoint(text: str, block: tuple[int, int], number: int) -> _Endpoint:
    """Return the address and port in `text`, or made-up ones in `block` for connection `number`."""
    host, _, digits = text.rpartition(":")
    port = int(digits) if digits.isdecimal() and len(digits) < 6 else 0
    if 0 < port < 65_536:
        with suppress(ValueError):  # a name
            return ip_address(host.removeprefix("[").removesuffix("]")).packed, port
    else:
        port = _PORT if block is _BROKERS else _CLIENT_PORTS[(number >> 16) % len(_CLIENT_PORTS)]
    return bytes((*block, number >> 8 & 0xFF, number & 0xFF)), port
