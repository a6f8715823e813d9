"""Writes packets to a pcapng file: the packets of selected events, or all of an interface.

One section, an interface block for each link type, nanoseconds. Source: the PCAP Next Generation draft.
"""

import struct
from collections import OrderedDict
from contextlib import suppress
from typing import BinaryIO, Final

from pulsarctl_wire.capture.comments import COMMENT, pack_options
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.secrets import NSS, Secrets
from pulsarctl_wire.wire.frame import Event

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of packets that are kept because a later event may need them."""

_COST: Final = 128  # bytes of memory for a kept packet, besides its own
_SECTION, _INTERFACE, _STATISTICS, _PACKET, _SECRETS = 0x0A0D0D0A, 1, 5, 6, 10
_RECEIVED, _DROPPED = 4, 5  # isb_ifrecv, isb_ifdrop
_SECRETS_SIZE: Final = 1 << 20
_NANOSECONDS: Final = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)  # if_tsresol 10^-9, end of options
_PADDINGS: Final = (b"", bytes(1), bytes(2), bytes(3))
_head: Final = struct.Struct("<7I").pack
_u32: Final = struct.Struct("<I").pack


class PcapngWriter:
    """Writes packets to `stream` as pcapng, and counts them in `count`.

    All methods raise OSError if the stream cannot be written.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.count = 0
        self._stream = stream
        self._interfaces: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a section, as at the start of a file: it can be read without the previous ones."""
        self._interfaces.clear()
        self._put(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))

    def write(self, packet: RawPacket, comment: str = "") -> None:
        """Write a packet, with a comment if there is one."""
        time_ns, link, data, length = packet
        number = self._interfaces.get(link)
        if number is None:
            number = self._add_interface(link)
        stamp = (time_ns or 0) & 2**64 - 1
        size = len(data)
        padding = -size % 4
        options = pack_options({COMMENT: comment}) if comment else b""
        total = 32 + size + padding + len(options)
        head = _head(_PACKET, total, number, stamp >> 32, stamp & 0xFFFFFFFF, size, max(length, size))
        self._stream.write(b"".join((head, data, _PADDINGS[padding], options, _u32(total))))
        self.count += 1

    def write_statistics(self, link: int, time_ns: int, received: int, dropped: int) -> None:
        """Write the packet counters of the interface with this link type at `time_ns`."""
        number = self._interfaces.get(link)
        if number is None:
            number = self._add_interface(link)
        counters = struct.pack("<HHQHHQI", _RECEIVED, 8, received, _DROPPED, 8, dropped, 0)
        self._put(_STATISTICS, struct.pack("<III", number, time_ns >> 32, time_ns & 0xFFFFFFFF) + counters)

    def write_secrets(self, keylog: bytes) -> None:
        """Write lines of a TLS key log, if any: they open the packets that follow.

        It is split into several blocks if one would be too large for readers.
        """
        for start in range(0, len(keylog), _SECRETS_SIZE):
            part = keylog[start : start + _SECRETS_SIZE]
            self._put(_SECRETS, struct.pack("<II", NSS, len(part)) + part + _PADDINGS[-len(part) % 4])

    def _add_interface(self, link: int) -> int:
        """Write the block of a new interface; return its number."""
        self._put(_INTERFACE, struct.pack("<HHI", link, 0, 0) + _NANOSECONDS)
        return self._interfaces.setdefault(link, len(self._interfaces))

    def _put(self, kind: int, body: bytes) -> None:
        size = _u32(12 + len(body))
        self._stream.write(b"".join((_u32(kind), size, body, size)))


class EventWriter:
    """Writes the packets that hold selected events, each once.

    A frame is known only after its last packet, so packets are kept for a while: call `see` with every
    packet, and `take` with the selected events. `lost` counts packets that were needed but no longer kept.
    The first packet seen truncates the stream.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.lost = 0
        self.secrets: Secrets | None = None
        """What opened the TLS records; their secrets are written before them."""
        self._stream = stream
        self._writer: PcapngWriter | None = None
        self._packets: OrderedDict[int, RawPacket] = OrderedDict()
        self._bytes = 0
        self._last_written: OrderedDict[int, None] = OrderedDict()

    @property
    def count(self) -> int:
        """Packets written."""
        return self._writer.count if self._writer is not None else 0

    def see(self, number: int, packet: RawPacket) -> None:
        """Keep packet `number` for events that may need it."""
        if self._writer is None:
            with suppress(OSError):  # a pipe
                self._stream.truncate(0)
            self._writer = PcapngWriter(self._stream)
        self._packets[number] = packet
        self._bytes += len(packet[2]) + _COST
        while self._bytes > KEPT_BYTES:
            _, dropped = self._packets.popitem(last=False)
            self._bytes -= len(dropped[2]) + _COST

    def take(self, event: Event) -> None:
        """Write the packets of `event` that were not written yet; before them, those of a TLS handshake."""
        tls = event.connection.tls
        if tls is not None and self.secrets is not None and self._writer is not None:
            self._writer.write_secrets(self.secrets.take_used())
            while tls.packets:
                self._write(tls.packets.pop(0))
        for number in event.packets or (event.packet,):
            self._write(number)

    def _write(self, number: int) -> None:
        """Write a packet, unless it was written."""
        packet = self._packets.pop(number, None)
        if packet is not None and self._writer is not None:
            self._bytes -= len(packet[2]) + _COST
            self._writer.write(packet)
            self._last_written[number] = None
            if len(self._last_written) > 65_536:
                self._last_written.popitem(last=False)
        elif number and number not in self._last_written:
            self.lost += 1
