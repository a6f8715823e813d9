"""Reads several captures as one, in the order of time, whatever their names and their given order.

Files are ordered by the times of their first packets. Files that overlap in time are merged packet by
packet, as by `mergecap`. So the order is cut into turns: each begins with the first packet of a file,
and ends where the next file begins.

    time        ---------------------------->
    hostA_1     [-----------------)               turns: 1  hostA_1
    hostB_1            [-------------------)              2  hostB_1 and hostA_1
    hostA_2                       [--------)              3  hostA_2 and hostB_1

A file's last packet is read from its end. A compressed file is assumed to end where the next file of its
series begins. The names in a series differ only in numbers and dates.

Sources without packets with times (hex dumps, raw frames, pipes) keep the place in which they were given.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import BinaryIO, Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import Lane, OnSecrets, SideBySide
from pulsarctl_wire.capture.sources import Decoder, Source, first_bytes, open_source, peel, prefix_errors
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import PACKET_OFFSET_BITS, Event

MAX_OPEN_FILES: Final = 64
"""Maximum number of files read side by side; beyond that, those that began first are read to their ends."""

_HEAD: Final = 256 * 1024  # decompressed bytes that distinguish files which begin at the same time
_TAIL: Final = 128 * 1024  # bytes at the end of a file that are searched for its last packets
_VARYING: Final = re.compile(
    r"[-_.:+ ]*(\d+|(?<![a-z])(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(?![a-z]))", re.IGNORECASE
)
_DATES: Final = re.compile(r"(?:19|20)[0-9]{2}(?:[-_./]?[0-9]{2})+|(?<=/)[0-9]{1,2}(?=/|$)")
PACKED: Final = re.compile(r"\.(gz|zst|zstd)$")
"""How the name of a compressed file ends."""


class Span(NamedTuple):
    """When the first and the last packet of a file were captured, in ns; None: not known.

    `mark` is a hash of the file's first bytes, after decompression.
    """

    first: int
    last: int | None
    mark: str = ""


class Part(NamedTuple):
    """What is read of a file in a turn: from the first packet at `since` to the first one at `until` (ns).

    `file` counts the files from 0, in the order in which they are read. None: no bound.
    """

    file: int
    since: int | None
    until: int | None


class Turn(NamedTuple):
    """What is read at a time: the file that begins, by its index among those given, and the parts of files.

    Without `parts` only that file is read, from beginning to end. `followed`: name and first time
    (ns) of the next file of the series, if this file was assumed to end there.
    """

    given: int
    parts: tuple[Part, ...] = ()
    followed: tuple[str, int] | None = None


class Order(NamedTuple):
    """The turns, one for each file, and notes for the user about them."""

    turns: list[Turn]
    notes: list[str]


def name_key(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names as people do: numbers in them by value."""
    return [
        (1, int(part), part) if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", name)
    ]


def series_of(name: str) -> str:
    """Return what the names of a series have in common: all but numbers, dates, and a compression suffix.

    Directories count, except for dates in them: there may be a directory for each host.
    """
    directory, slash, file = PACKED.sub("", name).rpartition("/")
    return _DATES.sub("", directory) + slash + _VARYING.sub("", file)


def spans_of(paths: Sequence[str]) -> list[Span | None]:
    """Return the spans of several files, None for those without times; a single file needs none."""
    return [_span(path) if len(paths) > 1 else None for path in paths]


def _span(path: str) -> Span | None:
    if not os.path.isfile(path):  # a pipe can be read only once
        return None
    try:
        source = open_source(path)
        with source.stream:
            return span_of(source.stream, source.size)
    except CaptureError:
        return None  # reading it will report that


def span_of(stream: BinaryIO, size: int) -> Span | None:
    """Return the span of the capture in `stream`, of `size` bytes; None if it has no packets with times.

    Raises CaptureError if it cannot be read.
    """
    peeled, head = peel(stream)
    if not files.is_capture(head):
        return None
    head = first_bytes(peeled, _HEAD, head)
    packets = files.read_packets(head, reader(peeled))
    first = next(iter(packets), (None,))[0]
    if first is None:
        return None
    mark = hashlib.blake2b(head[:_HEAD], digest_size=8).hexdigest()
    return Span(first, _last_time(stream, packets, size) if peeled is stream else None, mark)


def _last_time(stream: BinaryIO, first: files.PacketReader, size: int) -> int | None:
    """Return the latest time in the file's end, None if it shows none; `first` has read the first packet."""
    start = max(first.offset, size - _TAIL)
    stream.seek(start)
    tail = stream.read(max(size - start, 0))
    begin = files.find_record(tail, first.layout, start, complete=True) if start > first.offset else 0
    if begin is None:
        return None
    last: int | None = None
    try:
        for time_ns, *_ in files.PacketReader(tail[begin:], bytes, first.layout, start + begin):
            last = time_ns if last is None or (time_ns is not None and time_ns > last) else last
    except CaptureError:
        pass  # it is being written, or damaged: use the packets before that
    return last


def arrange(names: Sequence[str], spans: Sequence[Span | None]) -> Order:
    """Return the order in which files of these names and spans (None: without times) are read."""
    first_times = {index: span.first for index, span in enumerate(spans) if span is not None}
    by_time = iter(sorted(first_times, key=lambda index: (first_times[index], name_key(names[index]))))
    order = [next(by_time) if index in first_times else index for index in range(len(names))]
    numbers = [number for number, index in enumerate(order) if index in first_times]  # files with times
    series_names = [series_of(name) for name in names]
    continued = _find_continuing(order, numbers, series_names, spans)
    turns = [Turn(index) for index in order]
    for place, number in enumerate(numbers):
        following = numbers[place + 1] if place + 1 < len(numbers) else -1
        parts = [
            Part(
                file,
                None if file == number else first_times[order[number]],
                first_times[order[following]] if file in continued.get(following, ()) else None,
            )
            for file in [*continued[number], number]
        ]
        if len(parts) > 1 or parts[0].until is not None:
            turns[number] = turns[number]._replace(parts=tuple(parts))
        if spans[order[number]].last is None:  # type: ignore[union-attr]
            successors = (
                file
                for file in numbers[place + 1 :]
                if series_names[order[file]] == series_names[order[number]]
            )
            if (successor := next(successors, None)) is not None:
                followed = names[order[successor]], first_times[order[successor]]
                turns[number] = turns[number]._replace(followed=followed)
    overlaps = [
        (names[order[file]], names[order[number]])
        for number, earlier_files in continued.items()
        for file in earlier_files
        if series_names[order[file]] == series_names[order[number]]
    ]
    notes = _notes(overlaps, names, spans)
    if any(len(earlier_files) == MAX_OPEN_FILES - 1 for earlier_files in continued.values()):
        notes.append(f"{MAX_OPEN_FILES} files or more overlap: those that began first are read to their ends")
    return Order(turns, notes)


def _find_continuing(
    order: list[int], numbers: list[int], series_names: list[str], spans: Sequence[Span | None]
) -> dict[int, list[int]]:
    """Return for each of `numbers` the earlier files that go on after it begins.

    `numbers` and the files are indexes in `order`, which has indexes of the given files. A file whose end is
    not known ends where the next one of its series begins.
    """
    continued: dict[int, list[int]] = {}
    open_files: list[int] = []
    for number in numbers:
        span = spans[order[number]]
        assert span is not None

        def goes_on(file: int, number: int = number, first: int = span.first) -> bool:
            earlier = spans[order[file]]
            if earlier is None or earlier.last is None:
                return series_names[order[file]] != series_names[order[number]]
            return earlier.last > first

        continued[number] = list(filter(goes_on, open_files))[1 - MAX_OPEN_FILES :]
        open_files = [*continued[number], number]
    return continued


def _notes(overlaps: list[tuple[str, str]], names: Sequence[str], spans: Sequence[Span | None]) -> list[str]:
    """Return notes for the user: which files of a series overlap, and whose clock was set back."""
    back = [
        name
        for name, span in zip(names, spans, strict=True)
        if span and span.last is not None and span.last < span.first
    ]
    notes = []
    if overlaps:
        suffix = f" ({len(overlaps)} such pairs in all)" if len(overlaps) > 1 else ""
        earlier, later = overlaps[0]
        notes.append(f"{later} begins before {earlier} ends: they are read side by side{suffix}")
    if back:
        suffix = f", and {len(back) - 1} more such files" if len(back) > 1 else ""
        notes.append(f"{back[0]} ends at an earlier time than it begins{suffix}: the clock was set back")
    return notes


# -- reading


def open_lane(stream: BinaryIO, file: int, on_secrets: OnSecrets | None = None) -> Lane:
    """Return the capture in `stream`, to be merged; `file` is its number in places (`PACKET_OFFSET_BITS`).

    `on_secrets` is as in `PacketReader`. Raises CaptureError if it is not a capture.
    """
    peeled, head = peel(stream)
    packets = files.read_packets(head, reader(peeled))
    packets.on_secrets = on_secrets
    return Lane(packets, file << PACKET_OFFSET_BITS)


def read_all(
    decoder: Decoder,
    turns: Sequence[Turn],
    open_file: Callable[[int], AbstractContextManager[Source]],
    problem: Callable[[CaptureError], object],
    note: Callable[[str], object] = lambda text: None,
) -> Iterator[list[Event]]:
    """Yield the events of several sources, turn by turn; call `decoder.finish` afterwards.

    `open_file` opens a source by its index among those given, and may raise CaptureError. `problem` is called
    with the error of a source, `note` with a message about their order. Both name the source.
    """
    lanes: dict[int, tuple[Lane, str]] = {}
    with ExitStack() as stack:
        file_stacks = {}
        for number, turn in enumerate(turns):
            try:
                if not turn.parts and turn.followed is None:
                    with open_file(turn.given) as source:
                        yield from decoder.read(source)
                    continue
                file_stacks[number] = stack.enter_context(ExitStack())
                lanes[number] = _begin_lane(file_stacks[number].enter_context(open_file(turn.given)), decoder)
            except CaptureError as error:
                problem(error)
            whole_file = (Part(number, None, None),)
            parts = [part for part in turn.parts or whole_file if part.file in lanes]
            lane_parts = [(lanes[part.file][0], part.since, part.until) for part in parts]
            yield from decoder.read_packets(SideBySide(lane_parts))
            for part in parts:
                if part.until is None:
                    lane, name = lanes.pop(part.file)
                    file_stacks.pop(part.file).close()
                    successor, successor_ns = turns[part.file].followed or ("", lane.time)
                    if lane.time > successor_ns:
                        note(f"{successor} begins before {name} ends: unpack them to have them merged")
                    if lane.error is not None:
                        problem(type(lane.error)(f"{name}: {lane.error}"))


def _begin_lane(source: Source, decoder: Decoder) -> tuple[Lane, str]:
    decoder.sources.append(source.name)
    decoder.secrets.begin_file(source.name if source.size else None)
    with prefix_errors(source.name):
        lane = open_lane(source.stream, len(decoder.sources) - 1, decoder.take_secrets)
    return lane, source.name
