"""Copies chosen packets out of captures: those of frames, or of connections, that a table has rows of.

A table says which packet completed a frame: in which file, and at which byte. Around these places are
windows: the only parts of a capture that are read, unless it is compressed. The packets of a window go into a
temporary file; when the window ends, a reassembler shows which of them hold the frame, and whether the frame
can be decoded from these alone. If not, the packets of the frame before or after it are taken too (see
`wire/framing/resync.py`).

Nothing of the table is trusted: a packet counts only if it is where the table says, with the same time and
addresses.
"""

import heapq
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import CHUNK, reader
from pulsarctl_wire.capture.files import OnSecrets, PacketReader, RawPacket
from pulsarctl_wire.capture.packets import MAX_DATAGRAMS, Dissector, Segment, reverse
from pulsarctl_wire.capture.reassembly import Reassembler
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.capture.sources import Decoder, peel
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.paths import is_uri
from pulsarctl_wire.pipeline.files.splits import open_input
from pulsarctl_wire.wire.frame import Event, Frame
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.state import State

_WANTED: Final = 128  # in the mark of a packet, beside the number of frames that end in it
_LATE: Final = 1_000_000_000  # ns that packets may be out of order in a file


class Window(NamedTuple):
    """A part of a capture, and what is to be copied of it.

    `start` and `stop` are the bytes where its first and last packet may begin (sys.maxsize: to the end),
    `since` and `until` bounds of their times in ns. `key` is that of the segments (see `capture.packets`),
    b"" if the row has no addresses. The packet at `offset` must have this key, and the time `at_ns` (None:
    any); if `offset` is None, no packet is checked or counted. `header` is the TOTAL_SIZE and COMMAND_SIZE of
    the frame to look for, whose end was not captured if `is_partial`. Without a header all packets are
    copied; of both directions if `is_whole`. `frames` counts the frames that depend on the window.
    """

    start: int
    stop: int
    key: bytes
    since: int | None
    until: int | None
    offset: int | None
    at_ns: int | None
    header: bytes
    is_partial: bool
    is_whole: bool
    frames: int


def window(row: Iterable[Any]) -> Window:
    """Return the window of a row of `reports.packets`. An impossible row gets a window without key."""
    _, start, stop, src, src_port, dst, dst_port, since, until, offset, at_ns, *columns = row
    total, size, is_partial, is_whole, frames = columns
    try:
        key = _pack(src) + _pack(dst)
        key += src_port.to_bytes(2, "big") + dst_port.to_bytes(2, "big")
        header = total.to_bytes(4, "big") + size.to_bytes(4, "big") if total else b""
    except (AttributeError, OverflowError, ValueError):
        key = header = b""
    last = sys.maxsize if stop is None else stop
    return Window(start, last, key, since, until, offset, at_ns, header, is_partial, is_whole, int(frames))


@lru_cache(1024)
def _pack(address: str) -> bytes:
    return ip_address(address).packed


class Copied:
    """The packets copied from a capture, in its order, in a temporary file at `path`."""

    def __init__(self, path: str) -> None:
        self.found = 0
        """Frames whose packets were where the table says."""
        self.matched = 0
        """Windows whose packet was where the table says."""
        self.lost = 0
        """Frames whose packets were not where the table says."""
        self.error: CaptureError | None = None
        """Why the capture could not be read to its end."""
        self.needs_full_scan = False
        """Whether packets may be missed unless all are read: it is pcapng, or has fragments of IP packets."""
        self.first_ns = 0
        """The time of the first packet."""
        self.on_secrets: OnSecrets | None = None
        """As in `PacketReader`."""
        self._path = path
        self._stream = open(path, "wb")  # noqa: SIM115
        self._writer = PcapngWriter(self._stream)
        self._marks = bytearray()  # for each packet: _WANTED or 0, plus how many wanted frames end in it

    def add(self, packet: RawPacket) -> int:
        """Copy a packet; returns its number."""
        if not self._marks:
            self.first_ns = packet[0] or 0
        self._writer.write(packet)
        self._marks.append(0)
        return len(self._marks) - 1

    def choose(self, numbers: Iterable[int]) -> None:
        """Mark packets, by number, as wanted."""
        for number in numbers:
            self._marks[number] |= _WANTED

    def complete(self, number: int) -> None:
        """Note that a wanted frame ends in a packet."""
        if self._marks[number] < 2 * _WANTED - 1:
            self._marks[number] += 1

    def close(self) -> None:
        """End copying."""
        self._stream.close()

    def delete(self) -> None:
        """Delete the file."""
        self.close()
        os.remove(self._path)

    def packets(self) -> Iterator[tuple[int, RawPacket, int]]:
        """Yield the wanted packets, each with the latest time so far (ns), and how many frames end in it."""
        latest = 0
        with open(self._path, "rb") as stream:
            packets = files.read_packets(b"", reader(stream))
            for packet, mark in zip(packets, self._marks, strict=True):
                if mark & _WANTED:
                    latest = max(latest, packet[0] or 0)
                    yield latest, packet, mark - _WANTED


def merge(copies: Iterable[Copied]) -> Iterator[tuple[RawPacket, int]]:
    """Yield the packets of all captures in the order of time, as `SideBySide` does.

    With each packet comes how many wanted frames end in it. A file is only opened when its time comes.
    """
    copies_left = deque(sorted(copies, key=lambda copy_: copy_.first_ns))
    heap: list[tuple[int, int, RawPacket, int, Iterator[tuple[int, RawPacket, int]]]] = []
    count = 0
    while copies_left or heap:
        while copies_left and (not heap or copies_left[0].first_ns <= heap[0][0]):
            packets = copies_left.popleft().packets()
            count += 1
            for time_ns, packet, end_count in packets:
                heapq.heappush(heap, (time_ns, count, packet, end_count, packets))
                break
        if heap:
            _, number, packet, end_count, packets = heapq.heappop(heap)
            yield packet, end_count
            for time_ns, packet, end_count in packets:
                heapq.heappush(heap, (time_ns, number, packet, end_count, packets))
                break


class Checker:
    """Decodes what is written, to see that all wanted frames are in it. `secrets` open TLS."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.frames = 0
        """Frames so far, wanted or not."""
        self._missing = bytearray()  # for each packet: the wanted frames that end in it, not yet decoded

    def check(self, packets: Iterable[tuple[RawPacket, int]]) -> None:
        """Decode packets, each with how many wanted frames end in it."""
        decoder = Decoder(join_chunks=False, new_state=State)
        decoder.use_secrets(self._secrets)
        for events in chain(decoder.read_packets(self._note(packets)), decoder.finish()):
            for event in events:
                if isinstance(event, Frame):
                    self.frames += 1
                    if self._missing[event.packet - 1]:
                        self._missing[event.packet - 1] -= 1

    def _note(self, packets: Iterable[tuple[RawPacket, int]]) -> Iterator[RawPacket]:
        for packet, end_count in packets:
            self._missing.append(end_count)
            yield packet

    @property
    def missing(self) -> int:
        """Wanted frames that cannot be decoded."""
        return sum(self._missing)


class _Piece(NamedTuple):
    """A segment: the numbers of the copied packets that it was in, and its time in ns."""

    numbers: tuple[int, ...]
    segment: Segment
    time_ns: int | None


class _OpenWindow:
    """A window that is being read."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.keys = (window.key, reverse(window.key)) if window.is_whole else (window.key,)
        self.pieces: list[_Piece] = []
        self.packet_index = self.packet_number = -1  # of the packet at `offset`: in `pieces`, in `Copied`
        self.is_there = False  # whether that packet is where the table says
        self.is_closed = False

    def find_frame(self, frames: list[Frame]) -> int | None:
        """Return the index of the frame that is looked for; None if it is not among `frames`."""
        for index, frame in enumerate(frames):
            is_same = frame.partial if self.window.is_partial else frame.raw[:8] == self.window.header
            if is_same and frame.packet == self.packet_index:
                return index
        return None

    def numbers(self, indexes: Iterable[int]) -> list[int]:
        """Return the numbers of copied packets, by their indexes in `pieces`."""
        return [number for index in indexes for number in self.pieces[index].numbers]


def copy(path: str, windows: Iterable[Window], copied: Copied, *, can_seek: bool = True) -> None:
    """Copy packets of the capture at a path or URI; `windows` are sorted by `start`.

    Only the windows are read, unless the capture is compressed, or `can_seek` is False, as it must be to
    find all packets if `copied.needs_full_scan`. Raises CaptureError if the capture cannot be read at all.
    What is found, and what is not, is counted in `copied`.
    """
    if not is_uri(path) and os.path.exists(path) and not os.path.isfile(path):  # a pipe would wait for ever
        raise CaptureError("not a file")
    with open_input(path) as stream:
        peeled, head = peel(stream)
        if not files.is_capture(head):
            raise CaptureError("not a capture (pcap, pcapng)")
        packets = files.read_packets(head, reader(peeled))
        copied.needs_full_scan = packets.layout.blocks
        packets.on_secrets = copied.on_secrets
        scan = _Scan(windows, copied, can_seek=can_seek and peeled is stream)
        if scan.can_seek:
            _seek(scan, stream, packets, copied)
        else:
            scan.read(packets)
        scan.end()


def _seek(scan: "_Scan", stream: BinaryIO, packets: PacketReader, copied: Copied) -> None:
    """Read the windows of a capture that is not compressed."""
    with suppress(CaptureError):
        next(iter(packets), None)
    first, layout = packets.offset, packets.layout
    has_more = True
    while has_more and (start := scan.next_start) is not None:
        position = max(start, first)
        try:
            stream.seek(position)
        except (OSError, OverflowError):
            copied.error = CaptureError(f"it cannot be read at byte {position}")
            return
        has_more = scan.read(PacketReader(b"", reader(stream), layout, position))


class _Scan:
    """Reads the windows of one capture, in order. With `can_seek`, `read` stops where no window is near."""

    def __init__(self, windows: Iterable[Window], copied: Copied, *, can_seek: bool) -> None:
        self._windows = iter(windows)
        self._next = next(self._windows, None)
        self._copied = copied
        self.can_seek = can_seek
        self._open: dict[bytes, list[_OpenWindow]] = {}
        self._stops: list[tuple[int, int, _OpenWindow]] = []  # heaps: by offset and by time
        self._untils: list[tuple[int, int, _OpenWindow]] = []
        self._count = 0
        self._dissector = Dissector()
        # Numbers of the last IP fragments: any of them may be of the datagram that is completed next.
        self._fragments: deque[int] = deque(maxlen=MAX_DATAGRAMS)
        # numbers and indexes of the packets that were decoded last, and their frames
        self._last_decoded: tuple[tuple[list[int], list[int]], list[Frame]] = ([], []), []

    @property
    def next_start(self) -> int | None:
        """Where the next window starts; None if there is none."""
        return None if self._next is None else self._next.start

    def read(self, packets: PacketReader) -> bool:
        """Read packets; return whether there is more to be read elsewhere in the file."""
        try:
            for packet in packets:
                self._begin(packets.offset)
                self._end_before(packets.offset, packet[0])
                if self._open or not self.can_seek:
                    self._take(packets.offset, packet)
                if not self._stops:
                    if self._next is None:
                        return False
                    if self.can_seek and self._next.start - packets.offset > CHUNK:
                        return True
        except CaptureError as error:
            self._copied.error = error
            if self.can_seek and self._next is not None:  # a wrong place, perhaps
                self._begin(max(packets.offset, self._next.start))
                self._end_before(sys.maxsize + 1, None)
                return True
        return False

    def end(self) -> None:
        """End all windows, also those that were not reached."""
        self._end_before(sys.maxsize + 1, None)
        while self._next is not None:
            self._begin(self._next.start)
            self._end_before(sys.maxsize + 1, None)

    # -- windows

    def _begin(self, offset: int) -> None:
        """Open the windows that start at `offset` or before."""
        while self._next is not None and self._next.start <= offset:
            window, self._next = self._next, next(self._windows, None)
            open_window = _OpenWindow(window)
            self._count += 1
            heapq.heappush(self._stops, (window.stop, self._count, open_window))
            if window.until is not None and window.stop == sys.maxsize:  # only the time shows its end
                heapq.heappush(self._untils, (window.until + _LATE, self._count, open_window))
            for key in open_window.keys:
                self._open.setdefault(key, []).append(open_window)

    def _end_before(self, offset: int, time_ns: int | None) -> None:
        """Close the windows that have no packet from `offset` or `time_ns` on."""
        while self._stops and self._stops[0][0] < offset:
            self._close(heapq.heappop(self._stops)[2])
        while self._untils and time_ns is not None and self._untils[0][0] < time_ns:
            open_window = heapq.heappop(self._untils)[2]
            if open_window.window.offset is None or open_window.window.offset < offset:
                self._close(open_window)

    def _close(self, open_window: _OpenWindow) -> None:
        if open_window.is_closed:
            return
        open_window.is_closed = True
        for key in open_window.keys:
            self._open[key].remove(open_window)
            if not self._open[key]:
                del self._open[key]
        window, copied = open_window.window, self._copied
        if window.offset is None:
            return
        if not open_window.is_there:
            copied.lost += window.frames
            return
        copied.found += window.frames
        copied.matched += 1
        if window.header:
            copied.choose(self._choose_packets(open_window))
        if not window.is_whole:
            copied.complete(open_window.packet_number)

    # -- packets

    def _take(self, offset: int, packet: RawPacket) -> None:
        """Copy a packet if an open window wants it. IP fragments are always copied: any may be wanted."""
        time_ns, link, data, length = packet
        fragments_before = self._dissector.fragments
        segment = self._dissector.segment(link, data, length)
        numbers: tuple[int, ...] = ()
        if self._dissector.fragments > fragments_before:
            self._copied.needs_full_scan = True
            self._fragments.append(self._copied.add(packet))
            numbers = (*self._fragments,)
        if segment is None or segment[0] not in self._open:
            return
        numbers = numbers or (self._copied.add(packet),)
        for open_window in self._open[segment[0]]:
            window = open_window.window
            if time_ns is not None and not (window.since or 0) <= time_ns <= (window.until or time_ns):
                continue
            if offset == window.offset:
                open_window.is_there = window.at_ns in (None, time_ns)
                open_window.packet_index, open_window.packet_number = len(open_window.pieces), numbers[-1]
            if window.header:
                open_window.pieces.append(_Piece(numbers, segment, time_ns))
            else:
                self._copied.choose(numbers)

    def _choose_packets(self, open_window: _OpenWindow) -> list[int]:
        """Return the numbers of the packets that a frame needs to be decoded.

        They are its own if these are enough, otherwise also those of the frame before it, or after it;
        otherwise all of the window.
        """
        everything = [*range(len(open_window.pieces))]
        if len(everything) == 1:
            return open_window.numbers(everything)
        frames = self._frames(open_window, everything)
        position = open_window.find_frame(frames)
        if position is None:
            return open_window.numbers(everything)
        for neighbours in ((), frames[max(position - 1, 0) : position], frames[position + 1 : position + 2]):
            needed_frames = (frames[position], *neighbours)
            indexes = sorted({index for frame in needed_frames for index in frame.packets or (frame.packet,)})
            if (
                indexes == everything
                or open_window.find_frame(self._frames(open_window, indexes)) is not None
            ):
                return open_window.numbers(indexes)
        return open_window.numbers(everything)

    def _frames(self, open_window: _OpenWindow, indexes: list[int]) -> list[Frame]:
        """Return the frames that are decoded from some of a window's `pieces`; their `packet` is an index."""
        key = open_window.numbers(indexes), indexes
        if self._last_decoded[0] != key:
            self._last_decoded = key, _decode([(index, open_window.pieces[index]) for index in indexes])
        return self._last_decoded[1]


def _decode(segments: Iterable[tuple[int, _Piece]]) -> list[Frame]:
    """Return the frames in numbered segments, as they are decoded from nothing else."""
    reassembler = Reassembler(Knowledge(join_chunks=False), new_state=State)
    events: list[Event] = []
    for number, item in segments:
        events += reassembler.add(item.segment, item.time_ns, number)
        while further := reassembler.take_more():
            events += further
    for further in reassembler.close():
        events += further
    return [event for event in events if isinstance(event, Frame)]
