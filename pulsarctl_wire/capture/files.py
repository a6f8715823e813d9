"""Reads the packets of capture files, pcap and pcapng, from any stream.

Both formats are read in large chunks, without an object per record: at MTU-sized packets reading records
is a third of all the work. The reader never seeks, so pipes work, and yields a packet as soon as that
has arrived. Sources: the libpcap file format (pcap-savefile) and the PCAP Next Generation draft.
"""

import heapq
import struct
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from math import gcd
from mmap import mmap
from typing import Final

from pulsarctl_wire.capture.comments import COMMENT, parse_route
from pulsarctl_wire.capture.compression import Read
from pulsarctl_wire.capture.layout import Interface, Layout
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.fixed import little_u32_at, u32_at
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, bound

SecretsBlock = tuple[bytes, str]
"""The body of a Decryption Secrets Block, and its byte order: "<" or ">"."""

OnSecrets = Callable[[SecretsBlock], object]

RawPacket = tuple[int | None, int, bytes, int]
"""(time in ns since the epoch or None, link type, captured bytes, length on the wire in bytes)."""

MAX_INTERFACES: Final = 65_536
"""Maximum number of interfaces that a section may have."""

LARGEST_PACKET: Final = 16 * 1024 * 1024
"""Bytes of the largest packet accepted; a longer one means that the file is damaged there."""

_MICROSECOND: Final = 6  # units of time, see `Interface`
_NANOSECOND: Final = 9
_PCAP_MAGICS: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", _MICROSECOND),
    b"\xa1\xb2\xc3\xd4": (">", _MICROSECOND),
    b"\x4d\x3c\xb2\xa1": ("<", _NANOSECOND),
    b"\xa1\xb2\x3c\x4d": (">", _NANOSECOND),
}
_SECTION: Final = 0x0A0D0D0A
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _STATISTICS, _ENHANCED_PACKET, _SECRETS = 1, 2, 3, 5, 6, 10
_MIN_WITH_OPTIONS: Final = 24  # bytes of a packet block's body besides the data, if it has options
_DROPPED: Final = (5, 7)  # options of statistics: isb_ifdrop, isb_osdrop
_MAX_DROPPED: Final = 1 << 40  # packets; a larger count means that it is not known
_MAX_TIME: Final = 1 << 63  # ns; a larger time is taken for unknown
_TLS_SECRETS: Final = b"KSLT"
"""The type of secrets that are a key log of TLS (`secrets.NSS`), in little-endian order."""
_PCAPNG_MAGIC: Final = b"\x0a\x0d\x0d\x0a"
_SECTION_ORDERS: Final = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}


def is_capture(head: bytes) -> bool:
    """Return whether a file that begins with `head` (at least 4 bytes) is a pcap or pcapng file."""
    return head[:4] in _PCAP_MAGICS or head.startswith(_PCAPNG_MAGIC)


class _Interface:
    """An interface, and how to convert its times: ns = time * multiply // divide + offset."""

    def __init__(self, plain: Interface) -> None:
        self.plain = plain
        self.link = plain.link
        self.multiply = 1_000_000_000
        self.divide = (2 if plain.unit & 0x80 else 10) ** (plain.unit & 0x7F)
        common = gcd(self.multiply, self.divide)
        self.multiply //= common
        self.divide //= common
        self.offset = plain.offset * 1_000_000_000


class PacketReader:
    """Iterates over the packets of a capture file, once.

    `data` are the bytes from offset `start` of the file that were read already, `read` returns more;
    `layout` is the file's format there. Packets whose records begin at `stop` or later are not read.
    Iterating raises DamagedCapture where the file breaks off or is invalid.
    """

    def __init__(
        self, data: bytes, read: Read, layout: Layout, start: int = 0, stop: int = sys.maxsize
    ) -> None:
        self.dropped = 0
        """Packets that the kernel dropped, by the statistics read so far."""
        self.on_secrets: OnSecrets | None = None
        """Called with each block that has secrets, before the packets after it are read."""
        self.listeners: dict[tuple[str, str], str] = {}
        """(client, server) of a connection through `pwire proxy` -> the address that the client connected to.

        By the comments of the packets read so far.
        """
        self._layout = layout
        self._interfaces = list(map(_Interface, layout.interfaces))
        self.offset = start
        """The offset of the last packet's record; at the end: where the next record would begin."""
        self._data = data
        self._read = read
        self._start = start
        self._stop = stop

    def __iter__(self) -> Iterator[RawPacket]:
        return self._blocks() if self._layout.blocks else self._records()

    @property
    def layout(self) -> Layout:
        """The format of the file where the reader is."""
        return self._layout._replace(interfaces=tuple([interface.plain for interface in self._interfaces]))

    def _records(self) -> Iterator[RawPacket]:
        link, multiply = self._interfaces[0].plain.link, self._interfaces[0].multiply
        is_little = self._layout.order == "<"
        data, pos = self._data, 0
        base, read = self._start, self._read
        while True:
            end, limit = len(data), self._stop - base
            while end - pos >= 16 and pos < limit:
                if is_little:
                    seconds, fraction = little_u32_at(data, pos), little_u32_at(data, pos + 4)
                    size, length = little_u32_at(data, pos + 8), little_u32_at(data, pos + 12)
                else:
                    seconds, fraction = u32_at(data, pos), u32_at(data, pos + 4)
                    size, length = u32_at(data, pos + 8), u32_at(data, pos + 12)
                self.offset = base + pos
                if size > LARGEST_PACKET:
                    raise DamagedCapture(
                        f"the packet at byte {base + pos} claims {size} bytes: the file is damaged there"
                    )
                stop = pos + 16 + size
                if stop > end:
                    break
                yield seconds * 1_000_000_000 + fraction * multiply, link, data[pos + 16 : stop], length
                pos = stop
            if pos >= limit or not (chunk := read()):
                self.offset = base + pos
                if pos < min(end, limit):
                    raise DamagedCapture(f"the file ends in the middle of the packet at byte {base + pos}")
                return
            data = data[pos:] + chunk
            base += pos
            pos = 0

    def _read_packet(self, kind: int, body: bytes, order: str) -> RawPacket:
        """Return a block's packet; read what its comments say about the connection."""
        packet = _block_packet(kind, body, order, self._interfaces)
        size = len(packet[2])
        if len(body) >= _MIN_WITH_OPTIONS + size and kind == _ENHANCED_PACKET:
            for code, _, value in _options(body, 20 + size + -size % 4, order):
                route = parse_route(value) if code == COMMENT else None
                if route is not None:
                    self.listeners[route[:2]] = route[2]
                    bound(self.listeners, MAX_PENDING)
        return packet

    def _blocks(self) -> Iterator[RawPacket]:
        order, interfaces = self._layout.order, self._interfaces
        data, pos = self._data, 0
        base, read = self._start, self._read
        while True:
            end, limit = len(data), self._stop - base
            while end - pos >= 12 and pos < limit:
                self.offset = base + pos
                if data[pos : pos + 4] == _PCAPNG_MAGIC:
                    order = _SECTION_ORDERS.get(data[pos + 8 : pos + 12], "")
                    if not order:
                        raise DamagedCapture(
                            f"a section without byte order at byte {base + pos}: the file is damaged there"
                        )
                kind, size = struct.unpack_from(order + "II", data, pos)
                if size < 12 or size % 4 or size > LARGEST_PACKET + 4096:
                    raise DamagedCapture(
                        f"a block of {size} bytes at byte {base + pos}: the file is damaged there"
                    )
                stop = pos + size
                if stop > end:
                    break
                body = data[pos + 8 : stop - 4]
                pos = stop
                try:
                    if kind in (_ENHANCED_PACKET, _SIMPLE_PACKET, _OLD_PACKET):
                        yield self._read_packet(kind, body, order)
                    elif kind == _SECTION:
                        interfaces.clear()
                        self._layout = Layout(True, order, ())
                    else:
                        self._take_block(kind, body, order)
                except (struct.error, IndexError) as error:
                    raise DamagedCapture(
                        f"an invalid block at byte {self.offset}: the file is damaged there"
                    ) from error
            if pos >= limit or not (chunk := read()):
                self.offset = base + pos
                if pos < min(end, limit):
                    raise DamagedCapture(f"the file ends in the middle of the block at byte {base + pos}")
                return
            data = data[pos:] + chunk
            base += pos
            pos = 0

    def _take_block(self, kind: int, body: bytes, order: str) -> None:
        """Take a block that is neither a packet nor the header of a section."""
        interfaces = self._interfaces
        if kind == _INTERFACE:
            interfaces.append(_Interface(_parse_interface(body, order)))
            if len(interfaces) > MAX_INTERFACES:
                raise IndexError("interfaces without end")
        elif kind == _SECRETS:
            if self.on_secrets is not None:
                self.on_secrets((body, order))
        elif kind == _STATISTICS:
            self.dropped += _newly_dropped(body, order, interfaces)


def read_packets(head: bytes, read: Read, stop: int = sys.maxsize) -> PacketReader:
    """Return the packets of a pcap or pcapng file: `head` are its first bytes, `read` returns the rest.

    Packets that begin at byte `stop` of the file or later are not read.
    Raises CaptureError if it is not a capture, DamagedCapture where it breaks off or is invalid.
    """
    while len(head) < 24 and (chunk := read()):
        head += chunk
    if head.startswith(_PCAPNG_MAGIC):
        return PacketReader(head, read, Layout(True, "<", ()), 0, stop)
    if head[:4] in _PCAP_MAGICS and len(head) >= 24:
        order, unit = _PCAP_MAGICS[head[:4]]
        link = struct.unpack_from(order + "I", head, 20)[0] & 0xFFFF  # the upper half is about checksums
        layout = Layout(False, order, (Interface(link, 0, unit),))
        return PacketReader(head[24:], read, layout, 24, stop)
    raise CaptureError(
        "not a pcap or pcapng file" if head[:4] not in _PCAP_MAGICS else "cut inside the file header"
    )


def find_secrets(data: mmap | bytes) -> Iterator[SecretsBlock]:
    """Yield the blocks of a pcapng file that have secrets of TLS, whatever stands between them."""
    for order, mark in (("<", _TLS_SECRETS), (">", _TLS_SECRETS[::-1])):
        place = data.find(mark)
        while place >= 0:
            pos = place - 8
            kind, size = struct.unpack_from(order + "II", data, pos) if pos >= 0 else (0, 0)
            end = pos + size
            is_plausible = kind == _SECRETS and 20 <= size <= LARGEST_PACKET
            if is_plausible and data[end - 4 : end] == data[pos + 4 : pos + 8]:
                yield data[pos + 8 : end - 4], order
            place = data.find(mark, place + 4)


# -- several files at a time


class Lane:
    """A file that is merged with others: its next packet, with the packet's place and time.

    `base` is added to the offsets in the file, so that packets of different files have different places.
    """

    def __init__(self, packets: PacketReader, base: int) -> None:
        self.packet: RawPacket | None = None
        """The next packet; None at the end."""
        self.place = base
        """Where its record begins: `base` and the offset in the file."""
        self.time = -_MAX_TIME
        """The latest time of the packets so far, this one included (ns)."""
        self.error: CaptureError | None = None
        """Why the file could not be read to its end."""
        self.number = 0
        """The next packet's number in the file, from 1."""
        self._base = base
        self._reader = packets
        self._packets = iter(packets)
        self.advance()

    def advance(self) -> None:
        """Move to the next packet."""
        try:
            self.packet = next(self._packets, None)
        except CaptureError as error:
            self.packet, self.error = None, error
        if self.packet is not None:
            self.place = self._base | self._reader.offset
            self.number += 1
            time_ns = self.packet[0]
            if time_ns is not None and time_ns > self.time:
                self.time = time_ns

    @property
    def dropped(self) -> int:
        """As in `PacketReader`."""
        return self._reader.dropped

    @property
    def listeners(self) -> dict[tuple[str, str], str]:
        """As in `PacketReader`."""
        return self._reader.listeners


class SideBySide:
    """Iterates over the packets of several files in the order of time, once.

    From each lane it takes the packets from the first one at `since` to the first one at `until` (ns; None:
    no bound). A packet whose time steps back comes right after the one before it in its file.
    """

    def __init__(self, lanes: list[tuple[Lane, int | None, int | None]]) -> None:
        self.offset = 0
        """The place of the last packet yielded."""
        self.number = 0
        """Its number in its file, from 1."""
        self.listeners: Mapping[tuple[str, str], str] = ChainMap(*(lane.listeners for lane, _, _ in lanes))
        """As in `PacketReader`."""
        self._lanes = lanes
        self._dropped_before = 0

    @property
    def dropped(self) -> int:
        """Packets that the kernel dropped since the first packet, by the statistics read so far."""
        return sum(lane.dropped for lane, _, _ in self._lanes) - self._dropped_before

    def __iter__(self) -> Iterator[RawPacket]:
        heap: list[tuple[int, int, Lane, int]] = []
        for number, (lane, since, until) in enumerate(self._lanes):
            while since is not None and lane.packet is not None and lane.time < since:
                lane.advance()
            if since is not None:
                self._dropped_before += lane.dropped
            end = _MAX_TIME if until is None else until
            if lane.packet is not None and lane.time < end:
                heap.append((lane.time, number, lane, end))
        heapq.heapify(heap)
        while heap:
            _, number, lane, end = heap[0]
            packet = lane.packet
            assert packet is not None
            self.offset, self.number = lane.place, lane.number
            yield packet
            lane.advance()
            if lane.packet is not None and lane.time < end:
                heapq.heapreplace(heap, (lane.time, number, lane, end))
            else:
                heapq.heappop(heap)


def _parse_interface(body: bytes, order: str) -> Interface:
    link, _, snap = struct.unpack_from(order + "HHI", body)
    unit, seconds_offset = _MICROSECOND, 0
    for code, size, value in _options(body, 8, order):
        if code == 9 and size == 1:  # if_tsresol
            unit = value[0]
        elif code == 14 and size == 8:  # if_tsoffset
            (seconds_offset,) = struct.unpack(order + "q", value)
    return Interface(link, snap, unit, seconds_offset)


def _newly_dropped(body: bytes, order: str, interfaces: list[_Interface]) -> int:
    """Return how many more packets an interface has dropped since its earlier statistics."""
    number = struct.unpack_from(order + "I", body)[0] if len(body) >= 12 else len(interfaces)
    if number >= len(interfaces):
        return 0
    counts: list[int] = [
        struct.unpack(order + "Q", value)[0]
        for code, _, value in _options(body, 12, order)
        if code in _DROPPED and len(value) == 8
    ]
    dropped = sum(count for count in counts if count < _MAX_DROPPED)
    earlier = interfaces[number].plain
    interfaces[number].plain = earlier._replace(dropped=max(dropped, earlier.dropped))
    return max(dropped - earlier.dropped, 0)


def _options(body: bytes, pos: int, order: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield the options of a block, from `pos` of its body: code, size, and value (which may be cut)."""
    while pos + 4 <= len(body):
        code, size = struct.unpack_from(order + "HH", body, pos)
        if code == 0:
            return
        yield code, size, body[pos + 4 : pos + 4 + size]
        pos += 4 + size + (-size) % 4


def _block_packet(kind: int, body: bytes, order: str, interfaces: list[_Interface]) -> RawPacket:
    if kind == _SIMPLE_PACKET:
        length = struct.unpack_from(order + "I", body)[0]
        interface = interfaces[0]
        size = min(length, interface.plain.snap or length, len(body) - 4)
        return None, interface.link, body[4 : 4 + size], length
    if kind == _ENHANCED_PACKET:
        number, high, low, size, length = struct.unpack_from(order + "IIIII", body)
    else:
        number, _, high, low, size, length = struct.unpack_from(order + "HHIIII", body)
    interface = interfaces[number]
    if size > len(body) - 20:
        raise IndexError("the packet runs beyond its block")
    time_ns = (high << 32 | low) * interface.multiply // interface.divide + interface.offset
    return time_ns if -_MAX_TIME < time_ns < _MAX_TIME else None, interface.link, body[20 : 20 + size], length


# -- beginning in the middle

_CHAIN: Final = 12  # records in a row that make a place certain enough to begin at
_DAY: Final = 86_400


def find_record(data: bytes, layout: Layout, start: int, *, complete: bool) -> int | None:
    """Return the offset in `data` at which the first record or block begins; None if it is not found.

    `data` are bytes of a file from byte `start` on; `complete`: the file ends with them. The offset is a
    guess: the caller must check that the reader of the previous bytes ends there. Nothing is found if no
    place looks right, or if more bytes are needed to decide.
    """
    skip = _skip_block if layout.blocks else _skip_record
    step = 4 if layout.blocks else 1
    for first in range(-start % step, len(data), step):
        pos, seconds = first, None
        for _ in range(_CHAIN):
            if complete and pos == len(data):
                return first
            end_and_time = skip(data, pos, layout, seconds)
            if end_and_time is None:
                break
            pos, seconds = end_and_time
        else:
            return first
    return None


def _skip_record(data: bytes, pos: int, layout: Layout, last_s: int | None) -> tuple[int, int | None] | None:
    """Return the end of the record at `pos`, and its time in s; None without a whole valid header.

    `last_s` is the time of the record before, in s; None: not known.
    """
    if len(data) - pos < 16:
        return None
    seconds, fraction, size, length = struct.unpack_from(layout.order + "IIII", data, pos)
    second = 10 ** layout.interfaces[0].unit
    if not (0 < size <= min(length, LARGEST_PACKET)) or length > LARGEST_PACKET or fraction >= second:
        return None
    if last_s is not None and abs(seconds - last_s) > _DAY:
        return None
    return pos + 16 + size, seconds


def _skip_block(data: bytes, pos: int, layout: Layout, last_s: int | None) -> tuple[int, int | None] | None:
    if len(data) - pos < 12:
        return None
    kind, size = struct.unpack_from(layout.order + "II", data, pos)
    if size < 12 or size % 4 or size > LARGEST_PACKET or not (kind == _SECTION or 0 < kind < 0x10000):
        return None
    if pos + size <= len(data) and data[pos + size - 4 : pos + size] != data[pos + 4 : pos + 8]:
        return None
    return pos + size, None
