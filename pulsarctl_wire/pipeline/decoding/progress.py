"""Tracks how far the work on a table is, and goes from one split to the next."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from pulsarctl_wire.pipeline.decoding.decode import reread
from pulsarctl_wire.pipeline.decoding.edges import Decoded, FilePosition, Options, Problem, Settings
from pulsarctl_wire.pipeline.files.splits import Input, Split, plan, plan_all
from pulsarctl_wire.wire.ranges import Count, UInt64, Unwrapped

_CLOSED: Final = "captures hold secrets of TLS, which stays closed: --keylog FILE opens it, in one process"


class Begun(NamedTuple):
    """What the drafts of a table are made with: the version of the table, and the settings."""

    version: str
    settings: Settings


@dataclass
class Totals:
    """What has been done so far.

    `read` counts bytes of inputs, `size` bytes of Parquet, `read_again` connections that were read again,
    `dropped` packets that the kernel dropped, `cut` packets cut by a snap length, `copies` packets captured
    again, `skipped` packets without TCP by reason. `frames` counts those in the table, `seen` all that were
    decoded, which are about as many. `notes` are for the user.
    """

    read: Count = 0
    packets: Count = 0
    frames: Count = 0
    gaps: Count = 0
    connections: Count = 0
    size: Count = 0
    read_again: Count = 0
    dropped: UInt64 = 0
    cut: Count = 0
    copies: Count = 0
    skipped: dict[str, Unwrapped] = field(default_factory=dict)
    seen: Count = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_problems(self, problems: list[Problem]) -> None:
        """Add the problems that are new: a file may be read several times."""
        self.problems += [problem for problem in problems if problem not in self.problems]


@dataclass
class Progress:
    """How far the work is: everything before part `part` of input `file` is done, and ended at `end`.

    `stitcher` is a `Stitcher` with a method `add`, whose result has `read_again`. `unreadable`: the rest of
    that input cannot be read. `inputs` are all inputs; for a table that follows a directory, none.
    """

    inputs: list[Input]
    options: Options
    totals: Totals = field(default_factory=Totals)
    file: Count = 0
    part: Count = 0
    end: FilePosition | None = None
    unreadable: bool = False
    version: str = ""
    stitcher: Any = None

    @property
    def next(self) -> str:
        """The name of the split that is next."""
        return Split(self.file, self.part, Input("", 0, 0)).name

    def settle(self, decoded: Decoded, decode: Callable[[Split], Decoded]) -> Decoded | None:
        """Return the next split, decoded from the end of the previous one; None if its input is unreadable.

        Calls `decode` to decode it again if it began elsewhere or lacked earlier IP fragments.
        """
        split = decoded.split
        if split.part:
            if self.unreadable:
                return None
            if self.end is not None and decoded.begin != self.end:
                start, layout = self.end
                split = split._replace(start=start, layout=layout, exact=True)
                decoded = decode(split)
        assert decoded.begin is not None  # the end of the previous split, or the input's beginning
        start, layout = decoded.begin
        split = split._replace(start=start, layout=layout, exact=True)
        if decoded.fragments and self.stitcher.waiting and split.waiting is None:
            split = split._replace(waiting=self.stitcher.waiting)
            decoded = decode(split)
        return decoded._replace(split=split)

    def take(self, decoded: Decoded) -> Any:
        """Stitch a settled split; return how to finish it."""
        split, totals = decoded.split, self.totals
        self.unreadable = bool(decoded.problems)
        stitched = self.stitcher.add(decoded, reread)
        totals.add_problems(decoded.problems)
        is_last = split.stop >= split.input.size
        self.file, self.part, self.end = split.file, split.part + 1, decoded.end
        if is_last:
            self.file, self.part, self.end = split.next_file, 0, None
        totals.read += split.size if is_last else decoded.end[0] - split.start
        totals.packets += decoded.packets
        totals.seen += decoded.frames
        totals.dropped += decoded.dropped
        totals.cut += decoded.cut
        for reason, count in decoded.skipped.items():
            totals.skipped[reason] = totals.skipped.get(reason, 0) + count
        totals.copies = self.stitcher.reassembler.copies.total
        totals.connections = self.stitcher.reassembler.connections
        totals.read_again += stitched.read_again
        if decoded.has_secrets and _CLOSED not in totals.notes:
            totals.notes.append(_CLOSED)
        return stitched


Result = Callable[[], Decoded]
"""Waits until a split is decoded, and returns the result."""

Submit = Callable[[list[Split]], list[Result]]
"""Submits splits to be decoded."""


def room_for(processes: int) -> Callable[[int], int]:
    """Return the `room` of `decoded_in_order` for so many processes: each has a split, and two more wait."""
    return lambda waiting: processes + 2 - waiting


def decoded_in_order(progress: Progress, submit: Submit, room: Callable[[int], int]) -> Iterator[Decoded]:
    """Yield the remaining splits, each decoded from where the previous one ended.

    `room` takes the number of splits that were submitted and not yielded yet, and returns how many to submit
    next.
    """
    splits = _splits(progress)
    pending: deque[tuple[Split, Result]] = deque()
    while True:
        while new_splits := list(islice(splits, room(len(pending)))):
            pending.extend(zip(new_splits, submit(new_splits), strict=True))
        if not pending:
            return
        split, result = pending.popleft()
        decoded = progress.settle(result(), lambda split: submit([split])[0]())
        if decoded is None:
            continue
        layout = decoded.split.layout
        if split.part and layout != split.layout:  # earlier splits of its input changed the layout
            indexes = [
                index for index, (later_split, _) in enumerate(pending) if later_split.file == split.file
            ]
            for index in indexes:
                pending[index][1]()  # wait, or two processes might write its draft
            retries = [pending[index][0]._replace(layout=layout) for index in indexes]
            for index, retry, new_result in zip(indexes, retries, submit(retries), strict=True):
                pending[index] = retry, new_result
        yield decoded


def _splits(progress: Progress) -> Iterator[Split]:
    """Yield the remaining splits."""
    inputs, size, file = progress.inputs, progress.options.split_size, progress.file
    if progress.part:
        yield from plan(file, inputs[file], size)[progress.part :]
        file += 1
    yield from plan_all(inputs, size, file)
