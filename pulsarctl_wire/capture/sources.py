"""Reads sources of Pulsar traffic, whose type is detected from their content, as one stream of events.

    capture file    pcap or pcapng, maybe compressed           -> packets -> TCP streams -> frames
    text            that shows bytes, in many forms (`text/`)  -> packets, connections of a log, or frames
    raw bytes       anything else: frames one after the other  -> frames

Several sources are one capture, as rotated files are: a connection may begin in one and continue in
the next.
"""

import errno
import gc
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar, cast

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import COMPRESSED, Counted, Read, Unread, decompress, reader
from pulsarctl_wire.capture.files import RawPacket, SecretsBlock
from pulsarctl_wire.capture.numbers import PacketNumbers
from pulsarctl_wire.capture.packets import Dissector
from pulsarctl_wire.capture.reassembly import NewState, OnEnd, Reassembler
from pulsarctl_wire.capture.secrets import Secrets
from pulsarctl_wire.capture.text.dump import NO_TRAFFIC, Dump, belongs, hole_size
from pulsarctl_wire.capture.text.lines import is_text, split_lines
from pulsarctl_wire.errors import CaptureError, DamagedCapture
from pulsarctl_wire.wire.commands import TO_BROKER
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE, PACKET_OFFSET_BITS, Connection, Event, Frame, Malformed
from pulsarctl_wire.wire.framing.malformed import is_clearly_a_frame
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.framing.web_stream import WebStream
from pulsarctl_wire.wire.session.exchanges import ExchangeState
from pulsarctl_wire.wire.session.knowledge import Knowledge

SNIFFED: Final = 4096
"""Bytes of a source, after decompression, that show whether it is text."""

MAX_LATE: Final = 64
"""Maximum number of later packets that come before a packet which is still put in its place."""

_MAX_DROPPED: Final = 1 << 53  # packets, whatever counts damaged files have; JSON holds it
_PIECE: Final = 64 * 1024  # bytes decoded at a time
_SAMPLED: Final = 100  # dumps of a text that are examined to find whether it shows packets


_Item = TypeVar("_Item")


class Source(NamedTuple):
    """An open source, its name in messages, and its `size` in bytes (0 if unknown)."""

    name: str
    stream: BinaryIO
    size: int = 0


def open_source(path: str) -> Source:
    """Open the file at `path`. Raises CaptureError if it cannot be opened."""
    try:
        stream = open(path, "rb")  # noqa: SIM115 (the caller closes it)
        status = os.fstat(stream.fileno())
    except OSError as error:
        raise CaptureError(f"{path}: {_explain(error)}") from error
    return Source(path, stream, status.st_size if stat.S_ISREG(status.st_mode) else 0)


@contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Put the name of the source in front of the message of a CaptureError."""
    try:
        yield
    except CaptureError as error:
        raise type(error)(f"{name}: {error}") from error


def collect_rarely(every: int = 100_000) -> None:
    """Make garbage collection rare: hundreds of thousands of frames come and go, and hold no cycles.

    The collector runs whenever there are `every` new objects.
    """
    gc.freeze()
    gc.set_threshold(every, 20, 100)


def holds_packets(stream: BinaryIO) -> bool:
    """Return whether a file, read from its beginning, is a capture, maybe compressed.

    Raises CaptureError if it cannot be read.
    """
    return files.is_capture(peel(stream)[1])


def _explain(error: OSError) -> str:
    hints = {
        errno.EISDIR: "is a directory; name the capture files in it",
        errno.ENOENT: "no such file",
        errno.EACCES: "permission denied; try with the rights of the user who captured it",
    }
    return hints.get(error.errno or 0, error.strerror or str(error))


class _UntilError(Iterator[_Item]):
    """The items of an iterable until it raises an error of type `kind`, which is kept in `error`."""

    def __init__(self, kind: type[CaptureError], items: Iterable[_Item]) -> None:
        self.error: CaptureError | None = None
        self._kind = kind
        self._items = iter(items)

    def __next__(self) -> _Item:
        try:
            return next(self._items)
        except self._kind as error:
            self.error = error
            raise StopIteration from None


def in_order(packets: Iterable[tuple[int, RawPacket]]) -> Iterator[tuple[int, RawPacket]]:
    """Yield numbered packets in the order of their times, unless one is more than `MAX_LATE` packets late.

    Captures of a network card with several queues are not in that order. A CaptureError comes after all
    packets before it.
    """
    window: deque[tuple[int, RawPacket]] = deque()
    newest = 0
    packets_until_error = _UntilError(CaptureError, packets)
    for numbered in packets_until_error:
        time_ns = numbered[1][0] or newest
        if time_ns >= newest:
            newest = time_ns
            window.append(numbered)
        else:
            place = len(window)
            while place and (window[place - 1][1][0] or 0) > time_ns:
                place -= 1
            window.insert(place, numbered)
        if len(window) > MAX_LATE:
            yield window.popleft()
    yield from window
    if packets_until_error.error is not None:
        raise packets_until_error.error


class Reading(NamedTuple):
    """How sources are read, by options that all verbs share.

    `max_frame_size` in bytes (with the length prefix) fixes the limit above which frames get a note; by
    default it is 5 MiB + 10 KiB or what the broker announces. `keylogs` are files with TLS secrets, besides
    those in the captures. `keep_duplicates`: copies of connections are connections of their own.
    """

    max_frame_size: int | None = None
    keylogs: tuple[str, ...] = ()
    keep_duplicates: bool = False


_PLAIN: Final = Reading()


class Decoder:
    """Turns sources into events. Its counters can be read at any time.

    `join_chunks` False saves the memory for the payloads of chunked messages. `link_answers` fills
    `knowledge.answers`. `tee`, if given, is called with the number and content of every packet before its
    events are yielded. With `places`, the `packet` of an event is the packet's place (see
    `PACKET_OFFSET_BITS`) instead of its number, except in a hex dump. With `sort`, packets are put in the
    order of their times (see `in_order`); with both, `tee` gets places, too. `new_state` and `on_end` are as
    in `Reassembler`.
    """

    def __init__(
        self,
        reading: Reading = _PLAIN,
        *,
        join_chunks: bool = True,
        link_answers: bool = False,
        tee: Callable[[int, RawPacket], None] | None = None,
        places: bool = False,
        sort: bool = False,
        new_state: NewState = ExchangeState,
        on_end: OnEnd | None = None,
    ) -> None:
        self._reading = reading
        self.sources: list[str] = []
        """The names of the sources read so far."""
        self.without_packets: list[str] = []
        """The names of those sources that hold no packets."""
        self.forms: list[str] = []
        """What the texts among the sources are, in words."""
        self.packets = 0
        self.cut_packets = 0
        """Packets of which the end was not captured."""
        self.dropped_packets = 0
        """Packets that the kernel dropped, according to the files."""
        self.last_ns = 0
        """The latest time of a TCP segment, or of bytes in a log, ns since the epoch."""
        self._limit = reading.max_frame_size or MAX_FRAME_SIZE
        self.knowledge = Knowledge(
            join_chunks=join_chunks,
            link_answers=link_answers,
            fixed_limit=reading.max_frame_size is not None,
        )
        self.tee = tee
        self.numbers = PacketNumbers()
        """The numbers of packets in their files; the caller may put others in their place before it reads."""
        self._places = places
        self._sort = sort
        self._dissector = Dissector()
        self.secrets = Secrets(reading.keylogs)
        self._has_new_secrets = False
        self.skipped = self._dissector.skipped
        """Packets without a TCP segment, by reason."""
        self.reassembler = Reassembler(
            self.knowledge,
            limit=self._limit,
            new_state=new_state,
            on_end=on_end,
            secrets=self.secrets,
            stream_type=WebStream,
        )
        self.reassembler.copies.keep = reading.keep_duplicates

    def repeat(self, **options: Any) -> "Decoder":
        """Return a decoder with these options that reads the same sources again.

        It has the secrets of this one, and reads no more of the key logs, so that both find the same.
        """
        decoder = Decoder(self._reading._replace(keylogs=()), **options)
        decoder.use_secrets(self.secrets)
        self.secrets.freeze()
        return decoder

    def use_secrets(self, secrets: Secrets) -> None:
        """Open TLS by these secrets, before anything is read."""
        self.secrets = self.reassembler.secrets = secrets

    def read(self, source: Source) -> Iterator[list[Event]]:
        """Yield the events of `source`, a few at a time; call `finish` after the last source.

        Raises CaptureError if it cannot be read, DamagedCapture if it breaks off (after all events before
        that). Both name the source.
        """
        self.sources.append(source.name)
        self.secrets.begin_file(source.name if source.size else None)
        before = self.packets
        with prefix_errors(source.name):
            yield from self._read(source.stream)
        if self.packets == before:
            self.without_packets.append(source.name)

    def finish(self) -> Iterator[list[Event]]:
        """End all connections after the last source; yield the events that were waiting for more bytes."""
        return self.reassembler.close()

    def read_packets(self, packets: Iterable[RawPacket]) -> Iterator[list[Event]]:
        """Yield the events of packets from any source, a few at a time."""
        dissector, reassembler, tee = self._dissector, self.reassembler, self.tee
        file = packets if isinstance(packets, files.PacketReader | files.SideBySide) else None
        if file is not None:
            self.knowledge.listeners = file.listeners
        if not isinstance(file, files.SideBySide):
            self.numbers.add(self.packets + 1, None if file is None else self.sources[-1], 1)
        place_reader = file if self._places else None
        if isinstance(file, files.PacketReader):
            file.on_secrets = self.take_secrets
        has_logs = self.secrets.has_logs
        place = 0 if isinstance(file, files.SideBySide) else self._place
        numbered: Iterable[tuple[int, RawPacket]] = enumerate(packets, self.packets + 1)
        if isinstance(file, files.SideBySide):
            numbered = self._number_merged(file)
        if place_reader is not None and self._sort:  # noted now: sorting reads packets ahead
            numbered = ((place | place_reader.offset, packet) for packet in packets)
        try:
            for number, packet in in_order(numbered) if self._sort else numbered:
                self.packets += 1
                if tee is not None:
                    tee(number, packet)
                time_ns, link, data, length = packet
                if len(data) < length:
                    self.cut_packets += 1
                segment = dissector.segment(link, data, length)
                if segment is not None:
                    if time_ns is not None and time_ns > self.last_ns:
                        self.last_ns = time_ns
                    position = number if place_reader is None or self._sort else place | place_reader.offset
                    if self._has_new_secrets or (has_logs and self.secrets.poll()):
                        self._has_new_secrets = False
                        yield from self.reassembler.retry()
                    events = reassembler.add(segment, time_ns, position)
                    while events:
                        yield events
                        events = reassembler.take_more()
        finally:
            if file is not None:
                self.dropped_packets = min(self.dropped_packets + file.dropped, _MAX_DROPPED)

    def take_secrets(self, block: SecretsBlock) -> None:
        """Take a block with secrets that was read between packets."""
        version = self.secrets.version
        self.secrets.take_block(block)
        self._has_new_secrets |= self.secrets.version != version

    def _number_merged(self, packets: files.SideBySide) -> Iterator[tuple[int, RawPacket]]:
        """Yield the packets of several files with their numbers."""
        for number, packet in enumerate(packets, self.packets + 1):
            file = self.sources[packets.offset >> PACKET_OFFSET_BITS]
            self.numbers.add(number, file, packets.number)
            yield number, packet

    @property
    def _place(self) -> int:
        """The place at which the source that is being read begins."""
        return len(self.sources) - 1 << PACKET_OFFSET_BITS if self._places else 0

    def _read(self, stream: BinaryIO) -> Iterator[list[Event]]:
        stream, head = peel(stream)
        read = reader(stream)
        if not (head or read()):  # `read` raises if the source breaks off at once
            raise CaptureError("is empty: no packets, no frames")
        if files.is_capture(head):
            yield from self.read_packets(files.read_packets(head, read))
        elif is_text(head):
            yield from self._read_text(head, read)
        else:
            yield from self._read_raw(head, read)

    def _read_text(self, head: bytes, read: Read) -> Iterator[list[Event]]:
        """Yield the events of what a text shows: a capture file, packets, connections of a log, or frames."""
        from pulsarctl_wire.capture.text.forms import choose_form  # seldom needed, and slow to import

        chunks = _UntilError(DamagedCapture, chain([head], iter(read, b"")))
        form, lines = choose_form(split_lines(chunks))
        if form.name not in self.forms:
            self.forms.append(form.name)
        dumps = _UntilError(CaptureError, form.parse(lines))
        first: list[Dump] = []
        for dump in dumps:
            first.append(dump)
            if dump.more or dump.connection is not None or len(first) == _SAMPLED:
                break
        if first:
            yield from self._read_dumps(first, dumps, form.is_unfiltered)
        if dumps.error is not None:
            raise DamagedCapture(str(dumps.error))
        if chunks.error is not None:
            raise chunks.error

    def _read_dumps(
        self, first: list[Dump], later: Iterator[Dump], is_unfiltered: bool
    ) -> Iterator[list[Event]]:
        """Yield the events of the dumps of a text; the kind of bytes in them is detected from `first`."""
        from pulsarctl_wire.capture.text.forms import LINKS, shows_packets
        from pulsarctl_wire.capture.text.hex_dump import link_of
        from pulsarctl_wire.capture.text.log_connections import LogConnections

        dumps = chain(first, later)
        if first[0].connection is not None:
            connections = LogConnections(self.reassembler)
            before = self.packets
            self.numbers.add(before + 1, None, 1)
            for dump in dumps:
                if dump.time_ns is not None and dump.time_ns > self.last_ns:
                    self.last_ns = dump.time_ns
                yield from connections.add(dump, self._place | before + dump.line)
        elif files.is_capture(first[0].data):  # somebody dumped a capture file
            pieces = (dump.data for dump in chain(first[1:], later))
            yield from self.read_packets(files.read_packets(first[0].data, lambda: next(pieces, b"")))
        elif not shows_packets(first):
            yield from self._read_frames(dumps, is_unfiltered)
        else:
            links = [LINKS[dump.link or link_of(dump.data)] for dump in first]
            link = max(links, key=links.count)  # for packets whose own bytes do not show it
            yield from self.read_packets(
                (dump.time_ns, LINKS[dump.link or link_of(dump.data)] or link, dump.data, len(dump.data))
                for dump in dumps
            )

    def _read_raw(self, head: bytes, read: Read) -> Iterator[list[Event]]:
        def chunks() -> Iterator[Dump]:
            yield Dump(head, None)
            while chunk := read():
                yield Dump(chunk, None)

        batches = self._read_frames(chunks())
        first = next(filter(None, batches), None)
        if first is None or not self._is_frames(first[0], head):
            raise CaptureError(
                f"{NO_TRAFFIC}; convert other captures with editcap, and cut other headers off raw bytes"
            )
        yield first
        yield from batches

    def _is_frames(self, first: Event, head: bytes) -> bool:
        """Return whether a source with this first event and these bytes holds frames, valid or not."""
        if isinstance(first, Frame) or (isinstance(first, Malformed) and is_clearly_a_frame(first.raw)):
            return True
        stream = FrameStream(Connection(0), True, from_start=False)
        stream.is_direction_certain = False
        return any(isinstance(event, Frame) for event in [*stream.feed(head), *stream.close()])

    def _read_frames(self, dumps: Iterable[Dump], is_unfiltered: bool = True) -> Iterator[list[Event]]:
        """Yield the frames in bytes without packets; the command of each frame gives its direction.

        Unless `is_unfiltered`, bytes that neither begin nor continue a frame are left out.
        """
        connection = Connection(self.reassembler.connections)
        self.reassembler.connections += 1
        stream = FrameStream(connection, True, limit=self._limit)
        stream.is_direction_certain = False
        state = self.reassembler.new_state(connection, self.knowledge, (stream,))

        def track(events: list[Event]) -> list[Event]:
            for event in events:
                if isinstance(event, Frame):
                    event.to_broker = TO_BROKER.get(event.type, True)
            state.track(events)
            return events

        dumps_until_error = _UntilError(DamagedCapture, dumps)
        for dump in dumps_until_error:
            data, time_ns = dump.data, dump.time_ns
            if not (is_unfiltered or belongs(stream, data)):
                continue
            for start in range(0, len(data), _PIECE):
                yield track(stream.take(data[start : start + _PIECE], time_ns, self._place))
                while stream.has_more:
                    yield track(stream.take_more())
            if dump.missing:
                yield track(stream.gap(hole_size(dump, stream), time_ns, self._place))
        while events := stream.settle():
            yield track(events)
        yield track(stream.close())
        state.end()
        if dumps_until_error.error is not None:
            raise dumps_until_error.error


def peel(stream: BinaryIO) -> tuple[BinaryIO, bytes]:
    """Undo the compression of a source; return the stream and the bytes that were read from it."""
    source: Counted | None = None
    for _ in range(4):  # only an attacker compresses more often
        head = first_bytes(stream, 4)
        if not head.startswith(COMPRESSED):
            return stream, head + _rest_of_sniff(stream, head)
        stream = cast(BinaryIO, Unread(head, stream))
        if source is None:
            source = Counted(stream)
            stream = cast(BinaryIO, source)
        stream = decompress(stream, head, source)
    raise CaptureError("compressed more than three times")


def first_bytes(stream: BinaryIO, size: int, head: bytes = b"") -> bytes:
    """Return at least `size` bytes of a source, of which `head` was read; fewer if it ends before.

    If it breaks off, the next read raises that error again.
    """
    read = reader(stream)
    with suppress(DamagedCapture):
        while len(head) < size and (chunk := read()):
            head += chunk
    return head


def _rest_of_sniff(stream: BinaryIO, head: bytes) -> bytes:
    """Return more bytes of a source whose first four do not show that it is a capture."""
    if files.is_capture(head) or len(head) >= SNIFFED or not head:
        return b""
    return first_bytes(stream, SNIFFED - len(head))


def unpack(stream: BinaryIO) -> BinaryIO:
    """Return `stream` from its beginning, decompressed."""
    peeled, head = peel(stream)
    return cast(BinaryIO, Unread(head, peeled))
