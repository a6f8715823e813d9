"""Tracks how far the work on a table is, and goes from one split to the next."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pulsarctl_wire.capture.files import Layout
from pulsarctl_wire.pipeline.decode import Decoded, reread
from pulsarctl_wire.pipeline.splits import SPLIT_SIZE, Input, Split, plan


@dataclass(frozen=True)
class Options:
    """How to make a table.

    Bytes per split, bytes of the largest frame allowed, whether to keep payloads, the label of all rows.
    """

    split_size: int = SPLIT_SIZE
    max_frame_size: int | None = None
    payload: bool = False
    cluster: str | None = None


@dataclass
class Totals:
    """What has been done so far.

    `problems` are (file, what is wrong, whether it was read up to there). `read` counts bytes of inputs,
    `size` bytes of Parquet, `read_again` connections that were read again, `dropped` packets that the kernel
    dropped, `cut` packets cut by a snap length.
    """

    read: int = 0
    packets: int = 0
    frames: int = 0
    gaps: int = 0
    connections: int = 0
    size: int = 0
    read_again: int = 0
    dropped: int = 0
    cut: int = 0
    problems: list[tuple[str, str, bool]] = field(default_factory=list)


@dataclass
class Progress:
    """How far the work is: everything before part `part` of input `file` is done, and ended at `end`.

    `stitcher` must have `add`, whose result has `read_again`. `unreadable`: the rest of that input cannot be
    read. `inputs` are all inputs; for a table that follows a directory, those that have begun.
    """

    inputs: list[Input]
    options: Options
    totals: Totals = field(default_factory=Totals)
    file: int = 0
    part: int = 0
    end: tuple[int, Layout | None] | None = None
    unreadable: bool = False
    version: str = ""
    stitcher: Any = None

    def settle(self, decoded: Decoded, decode: Callable[[Split], Decoded]) -> Decoded | None:
        """The next split, decoded from where the previous one ended; None if its input is unreadable there.

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
        stitched = self.stitcher.add(decoded, reread)
        self.file, self.part, self.end = split.file, split.part + 1, decoded.end
        self.unreadable = bool(decoded.problems)
        known = totals.problems if split.input.sides else []  # a file may be read in several turns
        totals.problems += [each for each in decoded.problems if each not in known]
        is_last = split.stop >= split.input.size
        totals.read += (split.input.size if is_last else decoded.end[0]) - split.start
        totals.packets += decoded.packets
        totals.dropped += decoded.dropped
        totals.cut += decoded.cut
        totals.connections = self.stitcher.reassembler.connections
        totals.read_again += stitched.read_again
        return stitched


Submit = Callable[[Split], "Future[Decoded]"]
"""Submits a split to be decoded."""


def decoded_in_order(progress: Progress, submit: Submit, ahead: int) -> Iterator[Decoded]:
    """Yield the remaining splits, each decoded from where the previous one ended.

    Up to `ahead` splits are decoded at a time.
    """
    splits = _splits(progress)
    waiting: deque[tuple[Split, Future[Decoded]]] = deque()
    while True:
        while len(waiting) < ahead and (split := next(splits, None)) is not None:
            waiting.append((split, submit(split)))
        if not waiting:
            return
        split, future = waiting.popleft()
        decoded = progress.settle(future.result(), lambda split: submit(split).result())
        if decoded is None:
            continue
        layout = decoded.split.layout
        if split.part and layout != split.layout:  # earlier splits of its input changed the layout
            for at, (later, future) in enumerate(waiting):
                if later.file == split.file:
                    future.cancel()
                    changed = later._replace(layout=layout)
                    waiting[at] = changed, submit(changed)
        yield decoded


def _splits(progress: Progress) -> Iterator[Split]:
    """The remaining splits."""
    first = progress.part
    for file in range(progress.file, len(progress.inputs)):
        yield from plan(file, progress.inputs[file], progress.options.split_size)[first:]
        first = 0
