"""How far the work on a table came, and the step from one split to the next."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pulsarctl_wire.capture.files import Layout
from pulsarctl_wire.pipeline.decode import Decoded, reread
from pulsarctl_wire.pipeline.splits import SPLIT_SIZE, Input, Split
from pulsarctl_wire.pipeline.stitch import Stitched, Stitcher
from pulsarctl_wire.table import VERSION


@dataclass(frozen=True)
class Options:
    """How a table is made: bytes of a split, of the largest frame allowed, whether payloads are kept."""

    split_size: int = SPLIT_SIZE
    max_frame_size: int | None = None
    payload: bool = False


@dataclass
class Totals:
    """What was done so far.

    `problems` are (file, what is wrong, whether it was read up to there). `read` counts bytes of inputs,
    `size` those of Parquet; `redone` the connections that were read again, `dropped` the packets that the
    kernel dropped.
    """

    read: int = 0
    packets: int = 0
    frames: int = 0
    gaps: int = 0
    connections: int = 0
    size: int = 0
    redone: int = 0
    dropped: int = 0
    problems: list[tuple[str, str, bool]] = field(default_factory=list)


@dataclass
class Progress:
    """Where the work stands: all before part `part` of input `file` is done, and ended at `end`.

    `spoilt`: the rest of that input cannot be read. `inputs` are those that are done, and the one begun.
    """

    options: Options
    stitcher: Stitcher
    totals: Totals = field(default_factory=Totals)
    inputs: list[Input] = field(default_factory=list)
    file: int = 0
    part: int = 0
    end: tuple[int, Layout | None] | None = None
    spoilt: bool = False
    version: str = VERSION

    def settle(self, decoded: Decoded, decode: Callable[[Split], Decoded]) -> Decoded | None:
        """The next split, decoded from where the one before ended; None if there is nothing to be had of it.

        `decode` decodes it again where it began elsewhere.
        """
        split = decoded.split
        if split.part:
            if self.spoilt:
                return None
            if self.end is not None and decoded.begin != self.end:
                start, layout = self.end
                split = split._replace(start=start, layout=layout, exact=True)
                decoded = decode(split)
        assert decoded.begin is not None  # it is where the one before ended, or the input's beginning
        start, layout = decoded.begin
        split = split._replace(start=start, layout=layout, exact=True)
        if self.stitcher.needs_fragments(decoded):
            split = split._replace(waiting=self.stitcher.waiting)
            decoded = decode(split)
        return decoded._replace(split=split)

    def take(self, decoded: Decoded) -> Stitched:
        """Take a settled split: how it is to be finished."""
        split, totals = decoded.split, self.totals
        stitched = self.stitcher.add(decoded, reread)
        self.file, self.part, self.end = split.file, split.part + 1, decoded.end
        self.spoilt = bool(decoded.problems)
        known = totals.problems if split.input.sides else []  # a file is in several turns
        totals.problems += [each for each in decoded.problems if each not in known]
        is_last = split.stop >= split.input.size
        totals.read += (split.input.size if is_last else decoded.end[0]) - split.start
        totals.packets += decoded.packets
        totals.dropped += decoded.dropped
        totals.connections = self.stitcher.connections
        totals.redone += stitched.redone
        return stitched
