"""Writes packets to a pcapng file: the packets of selected events, or all of an interface.

One section, an interface block for each link type, nanoseconds. Source: the PCAP Next Generation draft.
"""

import struct
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import BinaryIO, Final

from pulsarctl_wire.capture.comments import APPLICATION, COMMENT, About, pack_options
from pulsarctl_wire.capture.files import RawPacket
from pulsarctl_wire.capture.secrets import NSS, Secrets
from pulsarctl_wire.wire.frame import Event

KEPT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of packets that are kept because a later event may need them."""

MAX_COMMENTS: Final = 32
"""Maximum number of comments on a packet's events, and of those on the packet; more are only counted."""

_COST: Final = 128  # bytes of memory for a kept packet, besides its own
_SECTION, _INTERFACE, _STATISTICS, _PACKET, _SECRETS = 0x0A0D0D0A, 1, 5, 6, 10
_RECEIVED, _DROPPED = 4, 5  # isb_ifrecv, isb_ifdrop
_SECRETS_SIZE: Final = 1 << 20  # bytes of a key log in a block
_RESOLUTION: Final = struct.pack("<HHB3x", 9, 1, 9)  # if_tsresol 10^-9
_DELAY: Final = 1_024  # packets after which a selected one is written: late events may comment on it
_PADDINGS: Final = (b"", bytes(1), bytes(2), bytes(3))
_head: Final = struct.Struct("<7I").pack
_u32: Final = struct.Struct("<I").pack


class PcapngWriter:
    """Writes packets to `stream` as pcapng, and counts them in `count`. `about` is what each section says.

    All methods raise OSError if the stream cannot be written.
    """

    def __init__(self, stream: BinaryIO, about: About | None = None) -> None:
        self.count = 0
        self._stream = stream
        self._interfaces: dict[int, int] = {}
        self._section_options = self._interface_options = b""
        if about is not None:
            self._section_options = pack_options(((APPLICATION, about.application), (COMMENT, about.section)))
            self._interface_options = pack_options(((COMMENT, about.interface),))
        self.begin()

    def begin(self) -> None:
        """Begin a section, as at the start of a file: it can be read without the previous ones."""
        self._interfaces.clear()
        self._put(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + self._section_options)

    def write(self, packet: RawPacket, comments: Sequence[str] = ()) -> None:
        """Write a packet with comments, if any."""
        time_ns, link, data, length = packet
        number = self._interfaces.get(link)
        if number is None:
            number = self._add_interface(link)
        stamp = (time_ns or 0) & 2**64 - 1
        size = len(data)
        padding = -size % 4
        options = pack_options((COMMENT, comment) for comment in comments) if comments else b""
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

        It is split into several blocks, between lines, if one would be too large for readers.
        """
        start = 0
        while start < len(keylog):
            stop = start + _SECRETS_SIZE
            if stop < len(keylog):
                stop = keylog.rfind(b"\n", start, stop) + 1 or stop
            part, start = keylog[start:stop], stop
            self._put(_SECRETS, struct.pack("<II", NSS, len(part)) + part + _PADDINGS[-len(part) % 4])

    def _add_interface(self, link: int) -> int:
        """Write the block of a new interface; return its number."""
        options = _RESOLUTION + (self._interface_options or bytes(4))  # zeros end them
        self._put(_INTERFACE, struct.pack("<HHI", link, 0, 0) + options)
        return self._interfaces.setdefault(link, len(self._interfaces))

    def _put(self, kind: int, body: bytes) -> None:
        size = _u32(12 + len(body))
        self._stream.write(b"".join((_u32(kind), size, body, size)))


class EventWriter:
    """Writes the packets that hold selected events, each once.

    A frame is known only after its last packet, so packets are kept for a while: call `see` with every
    packet, and `take` with the selected events. `lost` counts packets that were needed but no longer kept.
    `begin`, or the first packet seen, truncates the stream.

    With comments, selected packets wait for later events in them: call `close` at the end. `about` is as in
    `PcapngWriter`, `comments` are those on packets, by number. Comments on an event go to the packet that
    completes it; `uncommented` counts the events whose packet was already written.
    """

    def __init__(
        self,
        stream: BinaryIO,
        about: About | None = None,
        comments: Mapping[int, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.lost = self.uncommented = 0
        self.secrets: Secrets | None = None
        """What opens TLS records; their secrets are written before them."""
        self._stream = stream
        self._about = about
        self._comments = comments
        self._writer: PcapngWriter | None = None
        self._packets: OrderedDict[int, RawPacket] = OrderedDict()
        self._bytes = self._selected_bytes = 0
        self._selected: dict[int, _Selected] = {}
        self._last_written: OrderedDict[int, None] = OrderedDict()

    @property
    def count(self) -> int:
        """Packets written."""
        return self._writer.count if self._writer is not None else 0

    def begin(self) -> None:
        """Begin the file."""
        with suppress(OSError):  # a pipe
            self._stream.truncate(0)
        self._writer = PcapngWriter(self._stream, self._about)

    def see(self, number: int, packet: RawPacket) -> None:
        """Keep packet `number` for events that may need it."""
        if self._writer is None:
            self.begin()
        self._packets[number] = packet
        self._bytes += len(packet[2]) + _COST
        while self._bytes > KEPT_BYTES:
            _, dropped = self._packets.popitem(last=False)
            self._bytes -= len(dropped[2]) + _COST
        if self._selected_bytes > KEPT_BYTES:
            self.close()
        elif self._selected and next(iter(self._selected)) < number - 2 * _DELAY:  # many at a time
            self._write(number - _DELAY)

    def select(self, number: int) -> bool:
        """Select packet `number`, whatever it holds; return whether it was kept, and not selected before."""
        packet = self._packets.pop(number, None)
        if packet is None:
            return False
        self._bytes -= len(packet[2]) + _COST
        self._selected_bytes += len(packet[2]) + _COST
        self._selected[number] = _Selected(packet, self._comments.get(number, ()))
        return True

    def take(self, event: Event, *comments: str) -> None:
        """Select the packets of `event` that were not selected yet; without comments, write them.

        Before them come those of its connection's TLS handshake, and the secrets.
        """
        tls = event.connection.tls
        if tls is not None and self.secrets is not None and self._writer is not None:
            self._writer.write_secrets(self.secrets.take_used())
            while tls.packets:
                self.select(tls.packets.pop(0))
            for number in tls.earlier.pop(event.packet, ()):
                self.select(number)
        for number in event.packets or (event.packet,):
            is_known = self.select(number) or number in self._selected or number in self._last_written
            self.lost += number > 0 and not is_known
        if not comments:
            self.close()
        elif event.packet in self._selected:
            for comment in comments:
                self._selected[event.packet].add(comment)
        else:
            self.uncommented += event.packet in self._last_written

    def close(self) -> None:
        """Write all selected packets."""
        self._write(sys.maxsize)

    def _write(self, end: int) -> None:
        """Write the selected packets before number `end`."""
        for number in sorted(number for number in self._selected if number < end):
            selected = self._selected.pop(number)
            self._selected_bytes -= len(selected.packet[2]) + _COST
            if self._writer is not None:
                self._writer.write(selected.packet, selected.list_comments())
            self._last_written[number] = None
            if len(self._last_written) > 65_536:
                self._last_written.popitem(last=False)


@dataclass(slots=True)
class _Selected:
    """A packet that will be written: the comments on the events that it completes, and those on itself."""

    packet: RawPacket
    own_comments: Sequence[str]
    comments: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, comment: str) -> None:
        """Add a comment on an event; those that are too many are only counted."""
        self.count += 1
        if self.count <= MAX_COMMENTS:
            self.comments.append(comment)

    def list_comments(self) -> list[str]:
        """Return the comments, with one about those that are left out."""
        comments = [*self.comments, *self.own_comments[:MAX_COMMENTS]]
        left_out = self.count + len(self.own_comments) - len(comments)
        return [*comments, f"… {left_out} more"] if left_out else comments
