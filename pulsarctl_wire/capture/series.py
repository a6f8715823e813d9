"""Several captures as one: the order in which files are read, whatever their names and their order.

A file's place is the time of its first packet. Files that overlap in time are read side by side, packet by
packet, as `mergecap` joins them. So the order is cut into turns: each begins with the first packet of a file,
and goes on to where the next file begins.

    time        ---------------------------->
    hostA_1     [-----------------)               turns: 1  hostA_1
    hostB_1            [-------------------)              2  hostB_1, beside hostA_1
    hostA_2                       [--------)              3  hostA_2, beside hostB_1

Where a file ends is looked up at its end. Of a compressed one that is not known: it is taken to end where the
next file of its series begins, which are those whose names are alike but for numbers and dates.

What has no packets with times (hex dumps, raw frames, pipes) keeps the place in which it was given.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import BinaryIO, Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import reader
from pulsarctl_wire.capture.files import Lane, SideBySide
from pulsarctl_wire.capture.sources import PLACE_BITS, Decoder, Source, first_bytes, open_source, peel
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.wire.frame import Event

MOST_OPEN: Final = 64
"""Files that are read side by side; of more, those that began first are read to their ends."""

_HEAD: Final = 256 * 1024  # bytes, without compression, that tell files apart which begin at the same time
_TAIL: Final = 128 * 1024  # bytes at the end of a file in which its last packets are looked for
_VARYING: Final = re.compile(
    r"[-_.:+ ]*(\d+|(?<![a-z])(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(?![a-z]))", re.IGNORECASE
)
_DATES: Final = re.compile(r"(?:19|20)[0-9]{2}(?:[-_./]?[0-9]{2})+|(?<=/)[0-9]{1,2}(?=/|$)")
_PACKED: Final = re.compile(r"\.(gz|zst|zstd)$")


class Span(NamedTuple):
    """When the first packet of a file was captured and when its last one, in ns; None: not known.

    `mark` is a hash of how the file begins, the same if it is compressed.
    """

    first: int
    last: int | None
    mark: str = ""


class Part(NamedTuple):
    """What is read of a file in a turn: from the first packet at `since` to the first one at `until` (ns).

    `file` counts the files in the order in which they begin, from 0. None: there is no such bound.
    """

    file: int
    since: int | None
    until: int | None


class Turn(NamedTuple):
    """What is read at a time: the file that begins, by its index among those given, and parts of which.

    No `parts`: that file alone, from its beginning to its end. `followed`: the file was taken to end where
    that one begins, at that time (ns).
    """

    given: int
    parts: tuple[Part, ...] = ()
    followed: tuple[str, int] | None = None


class Order(NamedTuple):
    """The turns, one for each file, and what is to be said about them."""

    turns: list[Turn]
    notes: list[str]


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do: numbers in them by value."""
    return [
        (1, int(part), part) if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", name)
    ]


def series(name: str) -> str:
    """What the names of a series have in common: all but numbers, dates, and how they are compressed.

    Directories count, but for dates: there may be one for each host.
    """
    directory, slash, file = _PACKED.sub("", name).rpartition("/")
    return _DATES.sub("", directory) + slash + _VARYING.sub("", file)


def spans_of(paths: Sequence[str], sizes: Mapping[str, int] | None = None) -> list[Span | None]:
    """The spans of several files, None for what has none; `sizes` are bytes after which files end."""
    return [_span(path, (sizes or {}).get(path)) if len(paths) > 1 else None for path in paths]


def _span(path: str, size: int | None) -> Span | None:
    if not os.path.isfile(path):  # what can be read only once
        return None
    try:
        source = open_source(path)
        with source.stream:
            return span_of(source.stream, source.size if size is None else size)
    except CaptureError:
        return None  # reading it will say so


def span_of(stream: BinaryIO, size: int) -> Span | None:
    """The span of the capture in `stream`, of `size` bytes; None if it has no packets with times.

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
    """The time of the last packet, as far as the end of the file tells; `first` has read the first one."""
    start = max(first.offset, size - _TAIL)
    stream.seek(start)
    tail = stream.read(max(size - start, 0))
    found = files.find_record(tail, first.layout, start, complete=True) if start > first.offset else 0
    if found is None:
        return None
    last: int | None = None
    try:
        for time_ns, *_ in files.PacketReader(tail[found:], bytes, first.layout, start + found):
            last = time_ns if last is None or (time_ns is not None and time_ns > last) else last
    except CaptureError:
        pass  # it is being written, or damaged: this far it goes
    return last


def arrange(names: Sequence[str], spans: Sequence[Span | None]) -> Order:
    """The order in which files of these names and spans (None: without times) are read."""
    first = {given: span.first for given, span in enumerate(spans) if span is not None}
    by_time = iter(sorted(first, key=lambda given: (first[given], natural(names[given]))))
    order = [next(by_time) if given in first else given for given in range(len(names))]
    numbers = [number for number, given in enumerate(order) if given in first]
    alike = [series(name) for name in names]
    going = _going(order, numbers, alike, spans)
    turns = [Turn(given) for given in order]
    for at, number in enumerate(numbers):
        following = numbers[at + 1] if at + 1 < len(numbers) else -1
        parts = [
            Part(
                file,
                None if file == number else first[order[number]],
                first[order[following]] if file in going.get(following, ()) else None,
            )
            for file in [*going[number], number]
        ]
        if len(parts) > 1 or parts[0].until is not None:
            turns[number] = turns[number]._replace(parts=tuple(parts))
        if spans[order[number]].last is None:  # type: ignore[union-attr]
            same = (each for each in numbers[at + 1 :] if alike[order[each]] == alike[order[number]])
            if (after := next(same, None)) is not None:
                followed = names[order[after]], first[order[after]]
                turns[number] = turns[number]._replace(followed=followed)
    overlaps = [
        (names[order[file]], names[order[number]])
        for number, before in going.items()
        for file in before
        if alike[order[file]] == alike[order[number]]
    ]
    notes = _notes(overlaps, names, spans)
    if any(len(before) == MOST_OPEN - 1 for before in going.values()):
        notes.append(f"{MOST_OPEN} files or more overlap: those that began first are read to their ends")
    return Order(turns, notes)


def _going(
    order: list[int], numbers: list[int], alike: list[str], spans: Sequence[Span | None]
) -> dict[int, list[int]]:
    """Which files go on where each of `numbers` begins."""
    going: dict[int, list[int]] = {}
    is_open: list[int] = []
    for number in numbers:
        span = spans[order[number]]
        assert span is not None

        def goes_on(file: int, number: int = number, first: int = span.first) -> bool:
            before = spans[order[file]]
            if before is None or before.last is None:
                return alike[order[file]] != alike[order[number]]
            return before.last > first

        going[number] = list(filter(goes_on, is_open))[1 - MOST_OPEN :]
        is_open = [*going[number], number]
    return going


def _notes(overlaps: list[tuple[str, str]], names: Sequence[str], spans: Sequence[Span | None]) -> list[str]:
    """What people should know: which files of a series overlap, and whose clock was set back."""
    back = [
        name
        for name, span in zip(names, spans, strict=True)
        if span and span.last is not None and span.last < span.first
    ]
    notes = []
    if overlaps:
        more = f" ({len(overlaps)} such pairs in all)" if len(overlaps) > 1 else ""
        one, other = overlaps[0]
        notes.append(f"{other} begins before {one} ends: they are read side by side{more}")
    if back:
        more = f", and {len(back) - 1} more such files" if len(back) > 1 else ""
        notes.append(f"{back[0]} ends at an earlier time than it begins{more}: the clock was set back")
    return notes


# -- reading


def lane(stream: BinaryIO, file: int) -> Lane:
    """The capture in `stream`, to be read beside others; `file` is its number in places (see `PLACE_BITS`).

    Raises CaptureError if it is none.
    """
    peeled, head = peel(stream)
    return Lane(files.read_packets(head, reader(peeled)), file << PLACE_BITS)


def read_all(
    decoder: Decoder,
    turns: Sequence[Turn],
    opened: Callable[[int], AbstractContextManager[Source]],
    problem: Callable[[CaptureError], object],
    note: Callable[[str], object] = lambda text: None,
) -> Iterator[list[Event]]:
    """The events of several sources, turn by turn; end with `decoder.finish`.

    `opened` opens a source by its index among those given, and may raise CaptureError; `problem` is called
    with what is wrong with one, `note` with what should be known of their order. All name it.
    """
    lanes: dict[int, tuple[Lane, str]] = {}
    with ExitStack() as stack:
        closing = {}
        for number, turn in enumerate(turns):
            try:
                if not turn.parts and turn.followed is None:
                    with opened(turn.given) as source:
                        yield from decoder.read(source)
                    continue
                closing[number] = stack.enter_context(ExitStack())
                lanes[number] = _begun(closing[number].enter_context(opened(turn.given)), decoder)
            except CaptureError as error:
                problem(error)
            whole = (Part(number, None, None),)
            parts = [part for part in turn.parts or whole if part.file in lanes]
            chosen = [(lanes[part.file][0], part.since, part.until) for part in parts]
            yield from decoder.read_packets(SideBySide(chosen))
            for part in parts:
                if part.until is None:
                    ended, name = lanes.pop(part.file)
                    closing.pop(part.file).close()
                    following, begins = turns[part.file].followed or ("", ended.time)
                    if ended.time > begins:
                        note(f"{following} begins before {name} ends: unpack them to have them merged")
                    if ended.error is not None:
                        problem(type(ended.error)(f"{name}: {ended.error}"))


def _begun(source: Source, decoder: Decoder) -> tuple[Lane, str]:
    decoder.sources.append(source.name)
    try:
        return lane(source.stream, len(decoder.sources) - 1), source.name
    except CaptureError as error:
        raise type(error)(f"{source.name}: {error}") from error
