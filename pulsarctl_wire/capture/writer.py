"""Packets to a pcapng file: the packets of chosen events, or all of an interface.

One section, an interface block for each link type, nanoseconds. Source: the PCAP Next Generation draft.
"""

import struct
from collections import OrderedDict
from typing import BinaryIO, Final

from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.wire.frame import Event

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of packets that are kept because a later event may want them."""

_COST: Final = 128  # bytes of keeping a packet, beside its own
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_NANOSECONDS: Final = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)  # if_tsresol 10^-9, end of options


class PcapngWriter:
    """Writes packets to `stream` as pcapng. `count` is how many were written."""

    def __init__(self, stream: BinaryIO) -> None:
        self.count = 0
        self._stream = stream
        self._interfaces: dict[int, int] = {}
        self._block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))

    def write(self, packet: RawPacket) -> None:
        """Add a packet; raises OSError where the file cannot be written."""
        time_ns, link, data, length = packet
        if link not in self._interfaces:
            self._interfaces[link] = len(self._interfaces)
            self._block(_INTERFACE, struct.pack("<HHI", link, 0, 0) + _NANOSECONDS)
        stamp = (time_ns or 0) & 2**64 - 1
        head = struct.pack(
            "<IIIII",
            self._interfaces[link],
            stamp >> 32,
            stamp & 0xFFFFFFFF,
            len(data),
            max(length, len(data)),
        )
        self._block(_PACKET, head + data)
        self.count += 1

    def _block(self, kind: int, body: bytes) -> None:
        body += bytes(-len(body) % 4)
        size = struct.pack("<I", 12 + len(body))
        self._stream.write(b"".join((struct.pack("<I", kind), size, body, size)))


class EventWriter:
    """Writes the packets that hold chosen events, each once.

    A frame is known only when its last packet has come, so packets are kept for a while: `see` every
    packet, `take` the chosen events. `lost` counts packets that were wanted when they were gone.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.lost = 0
        self._writer = PcapngWriter(stream)
        self._kept: OrderedDict[int, RawPacket] = OrderedDict()
        self._bytes = 0
        self._last_written: OrderedDict[int, None] = OrderedDict()

    @property
    def count(self) -> int:
        """Packets written."""
        return self._writer.count

    def see(self, number: int, packet: RawPacket) -> None:
        """Keep packet `number` for the events that may want it."""
        self._kept[number] = packet
        self._bytes += len(packet[2]) + _COST
        while self._bytes > KEPT_BYTES:
            _, old = self._kept.popitem(last=False)
            self._bytes -= len(old[2]) + _COST

    def take(self, event: Event) -> None:
        """Write the packets of `event` that are not written yet."""
        for number in event.packets or (event.packet,):
            packet = self._kept.pop(number, None)
            if packet is not None:
                self._bytes -= len(packet[2]) + _COST
                self._writer.write(packet)
                self._last_written[number] = None
                if len(self._last_written) > 65_536:
                    self._last_written.popitem(last=False)
            elif number and number not in self._last_written:
                self.lost += 1
