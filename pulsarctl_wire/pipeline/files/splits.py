"""Cuts inputs into splits: which bytes of which files to decode, and how to begin there.

Inputs are in time order (see `capture.series`). An input is what is read in one turn: a single file, which
may be cut into splits, or what several files have of one period of time.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Final, NamedTuple

from pulsarctl_wire.capture import files
from pulsarctl_wire.capture.compression import Read, reader
from pulsarctl_wire.capture.files import PacketReader
from pulsarctl_wire.capture.layout import Layout
from pulsarctl_wire.capture.packets import Waiting
from pulsarctl_wire.capture.series import Part, Span, arrange
from pulsarctl_wire.capture.sources import peel
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.paths import is_uri, reason
from pulsarctl_wire.wire.ranges import Count, Nanoseconds, UInt64

SPLIT_SIZE: Final = 128 * 1024 * 1024
"""Bytes of a split; a compressed file is one split, however large."""

GROUP_SIZE: Final = 16 * 1024 * 1024
"""Maximum bytes of all files of a split that has several inputs."""
MAX_GROUP: Final = 256
"""How many inputs a split may have: compressed files may be much larger than they look."""
NO_CAPTURE: Final = "no capture (pcap, pcapng); pwire table reads hex dumps and raw frames"
END: Final = 10**9
"""Stands for the number of an input where there is none: after all of them."""

_WINDOW: Final = 4 * 1024 * 1024  # bytes that are searched for the beginning of a record


Say = Callable[[str], object]
"""Called with notes for the user."""


class Side(NamedTuple):
    """A file that is read side by side with others.

    Its number, and its name, path, size and time as in `Input`. Its packets are read from the first one at
    `since` up to the first one at `until` (ns; None: no bound).
    """

    file: Count
    name: str
    path: str
    size: Count
    modified_ns: int
    since: Nanoseconds | None
    until: Nanoseconds | None


class Input(NamedTuple):
    """A file: its path or URI as given, its size in bytes, and when it was modified (ns).

    `path` does not depend on the working directory. `sides`: if not empty, the files to read side by side.
    `first_ns` is the time of its first packet, and `mark` a hash of its first bytes, both if it has packets;
    `last_ns` is the time of its last packet, if that is known.
    """

    name: str
    size: Count
    modified_ns: int
    path: str = ""
    sides: tuple[Side, ...] = ()
    first_ns: Nanoseconds | None = None
    mark: str = ""
    last_ns: Nanoseconds | None = None

    @property
    def span(self) -> Span | None:
        """When its packets were captured; None if it has none."""
        return None if self.first_ns is None else Span(self.first_ns, self.last_ns, self.mark)


class Split(NamedTuple):
    """A part of an input, or several inputs in a row.

    `file` and `part` are the numbers of the input and of the split in it, from 0. The packets whose records
    begin at byte `start` or later, but before `stop`, belong to it. `layout` is the file's layout at `start`
    (None at its beginning). `exact`: a record begins at `start`; otherwise the first one after it is searched
    for. `waiting` are the IP datagrams that are incomplete at `start`, if the split has IP fragments.
    `more` are the inputs that are read after it in the same go; then each is read from beginning to end.
    """

    file: Count
    part: Count
    input: Input
    start: Count = 0
    stop: UInt64 = sys.maxsize
    layout: Layout | None = None
    exact: bool = True
    waiting: Waiting | None = None
    more: tuple[Input, ...] = ()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All its inputs."""
        return (self.input, *self.more)

    @property
    def next_file(self) -> int:
        """The number of the input after its last one."""
        return self.file + 1 + len(self.more)

    @property
    def is_merged(self) -> bool:
        """Whether its packets come from several files, so that their offsets do not give their order."""
        return bool(self.input.sides or self.more)

    @property
    def sources(self) -> dict[int, str]:
        """The names of the files that its packets come from, by number."""
        names = {side.file: side.name for input_ in self.inputs for side in input_.sides}
        return names | {file: input_.name for file, input_ in enumerate(self.inputs, self.file)}

    @property
    def name(self) -> str:
        """A name for files made from this split. Names sort in the order of splits."""
        return f"{self.file:06d}-{self.part:05d}"

    @property
    def size(self) -> int:
        """Its bytes in the files, which may be compressed."""
        return min(self.stop, self.input.size) - self.start + sum(input_.size for input_ in self.more)


@contextmanager
def open_input(path: str, start: int = 0) -> Iterator[BinaryIO]:
    """Open the file at a path or URI to read it from byte `start` on; raises CaptureError if that fails."""
    with ExitStack() as stack:
        try:
            if is_uri(path):
                from pulsarctl_wire.pipeline.files.filesystems import open_uri  # imports pyarrow

                stream = stack.enter_context(open_uri(path))
            else:
                stream = stack.enter_context(open(path, "rb"))
            stream.seek(start)
        except OSError as error:
            raise CaptureError(reason(error)) from error
        yield stream


def in_order(inputs: list[Input], spans: list[Span | None], say: Say) -> list[Input]:
    """Return inputs in time order, with their `sides`; `say` gets notes for the user about the order."""
    order = arrange([input_.name for input_ in inputs], spans)
    for note in order.notes:
        say(note)
    ordered = [inputs[turn.given] for turn in order.turns]

    def side(part: Part) -> Side:
        file = ordered[part.file]
        return Side(part.file, file.name, file.path, file.size, file.modified_ns, part.since, part.until)

    return [
        input_._replace(sides=tuple(map(side, turn.parts)))
        for input_, turn in zip(ordered, order.turns, strict=True)
    ]


def plan_all(inputs: Sequence[Input], size: int, first: int = 0) -> Iterator[Split]:
    """Return the splits of `inputs` from number `first` on, of at most about `size` bytes each.

    The last input is always alone, since it may still grow.
    """
    group: list[Input] = []
    group_sizes: dict[int, int] = {}  # the sizes of the files that the group reads, by number
    limit = min(size, GROUP_SIZE)
    for file in range(first, len(inputs)):
        input_ = inputs[file]
        sizes = {file: input_.size} | {side.file: side.size for side in input_.sides}
        is_small = sum(sizes.values()) <= limit and file < len(inputs) - 1
        total = sum(group_sizes.values()) + sum(sizes[number] for number in sizes.keys() - group_sizes.keys())
        if group and (not is_small or total > limit or len(group) == MAX_GROUP):
            yield Split(file - len(group), 0, group[0], more=tuple(group[1:]))
            group, group_sizes = [], {}
        if is_small:
            group.append(input_)
            group_sizes |= sizes
        else:
            yield from plan(file, input_, size)


def plan(file: int, input_: Input, size: int = SPLIT_SIZE) -> list[Split]:
    """Plan the splits of an input, of `size` bytes each. An unreadable file is one split."""
    uncut = [Split(file, 0, input_)]
    if input_.size <= size or input_.sides:
        return uncut
    try:
        with open_input(input_.path) as stream:
            peeled, head = peel(stream)
            if peeled is not stream or not files.is_capture(head):
                return uncut
            packets = files.read_packets(head, reader(stream))
            next(iter(packets), None)
            layout = packets.layout  # at the first packet
    except CaptureError:
        return uncut
    starts = range(0, input_.size, size)
    splits = [
        Split(file, part, input_, start, start + size, layout, False) for part, start in enumerate(starts)
    ]
    splits[0] = splits[0]._replace(layout=None, exact=True)
    splits[-1] = splits[-1]._replace(stop=sys.maxsize)
    return splits


def inputs_of(name: str) -> range:
    """Return the numbers of the inputs in which the splits of a table's file begin, by the name of the file.

    The name begins with that of a split, or of the first and last one (`000000-00000..000012-00003`). For a
    file of the rows that remain after all inputs (`end`), the range has `END` alone.
    """
    if name.startswith("end"):
        return range(END, END + 1)
    first, _, last = name.partition("..")
    return range(int(first.partition("-")[0]), int((last or first).partition("-")[0]) + 1)


def read_split(split: Split, read: Read) -> PacketReader | None:
    """Return the packets of a split, or None if no record is found; `read` returns bytes from its start on.

    Raises CaptureError if the file is not a capture.
    """
    if split.layout is None:
        head = b""
        while len(head) < 4 and (chunk := read()):
            head += chunk
        if not head:
            raise CaptureError("is empty: no packets, no frames")
        if not files.is_capture(head):
            raise CaptureError(NO_CAPTURE)
        return files.read_packets(head, read, split.stop)
    if split.exact:
        return PacketReader(b"", read, split.layout, split.start, split.stop)
    window = bytearray()
    while len(window) < _WINDOW and (chunk := read()):
        window += chunk
    data = bytes(window)
    position = files.find_record(data, split.layout, split.start, complete=len(data) < _WINDOW)
    if position is None:
        return None
    return PacketReader(data[position:], read, split.layout, split.start + position, split.stop)
