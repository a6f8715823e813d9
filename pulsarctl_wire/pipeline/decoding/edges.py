"""What a split is decoded to, besides its draft: plain data, for the process that joins the splits."""

from dataclasses import dataclass
from secrets import token_hex
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Struct, field

from pulsarctl_wire.capture.handover import Handover, SyncPoint
from pulsarctl_wire.capture.layout import Layout
from pulsarctl_wire.capture.packets import Segment, Waiting
from pulsarctl_wire.capture.reassembly import NewState, OnEnd, Reassembler
from pulsarctl_wire.pipeline.files.splits import SPLIT_SIZE, Split
from pulsarctl_wire.wire.detail import ALL, Detail, MessageOptions
from pulsarctl_wire.wire.frame import MAX_FRAME_SIZE
from pulsarctl_wire.wire.ranges import Count, Nanoseconds, Place, UInt64, Unwrapped, one_of
from pulsarctl_wire.wire.session.knowledge import Knowledge
from pulsarctl_wire.wire.session.state_data import Part, SentRanges

PARTITIONS: Final = ("date", "hour", "series", "cluster", "tenant", "host")
"""What a table can be partitioned by."""


@dataclass(frozen=True)
class Options:
    """How to make a table.

    `split_size` and `max_frame_size` are in bytes. `partition_by` are columns whose values get directories of
    their own (see partitions.py). With `keep_duplicates`, copies of connections are kept. `keylog` are files
    with TLS secrets, besides those in the captures; None: TLS stays closed. The others are as in
    `TableBuilder`.
    """

    split_size: UInt64 = SPLIT_SIZE
    max_frame_size: UInt64 | None = None
    payload: bool = False
    cluster: str | None = None
    messages: MessageOptions | None = None
    partition_by: tuple[Annotated[str, one_of(PARTITIONS)], ...] = ()
    host: str | None = None
    detail: Detail = ALL
    keep_duplicates: bool = False
    keylog: tuple[str, ...] | None = None


class Settings(NamedTuple):
    """Settings for all splits: the directory of their drafts, and the options of the table.

    `stand_in` is the prefix of stand-ins for topics. It is random, so no real topic begins with it.
    """

    drafts: str = ""
    options: Options = Options()
    stand_in: str = token_hex(16)

    def reassembler(self, new_state: NewState, on_end: OnEnd | None = None) -> Reassembler:
        """Return a new reassembler, which does not join chunks or keep schemas."""
        limit = self.options.max_frame_size
        return Reassembler(
            Knowledge(join_chunks=False, schemas=False, fixed_limit=limit is not None),
            limit=limit or MAX_FRAME_SIZE,
            new_state=new_state,
            on_end=on_end,
        )


Kept = tuple[Place, Place, Nanoseconds | None, Segment]
"""A kept packet: its turn in the split, its place, time in ns, and TCP segment.

Turns give the order in which the packets of a split were read. A packet's turn is its place, or, if files
are read side by side, its number in the split.
"""


class Edge(Struct, array_like=True):
    """What a split reports of one connection.

    index     its number in the draft
    pair      the smaller of the keys of its two directions
    turn      the turn of its first packet
    packets   its packets until it was synchronized, or to the end; None if they were too many
    kept      bytes of memory that these packets took, estimated
    guess     where it was synchronized; None if it never was, and then the draft has no rows of it
    synced    the first turn after the last of `packets`
    doubtful  whether an idle half may have resumed in the middle of a frame, or events are held back
    state     its state at the end of the split; None if it was not synchronized
    largest   size in bytes of its largest frame, including an unfinished one
    damaged   whether it has gaps or malformed bytes
    in_step   whether both halves were in step at the end
    part      what the process that knows the past must resolve; None if it was not synchronized
    early     the sends that were seen in `packets`, as in `Part.sent`
    later     how many packets it had since it was synchronized
    """

    index: Count
    pair: bytes
    turn: Place
    packets: list[Kept] | None = field(default_factory=list)
    kept: Count = 0
    guess: SyncPoint | None = None
    synced: Place = 0
    doubtful: bool = False
    state: Handover | None = None
    largest: Count = 0
    damaged: bool = False
    in_step: bool = False
    part: Part | None = None
    early: SentRanges = field(default_factory=dict)
    later: Count = 0


FilePosition = tuple[Count, Layout | None]
"""An offset in a file, and the layout there."""

Problem = tuple[str, str, bool]
"""A file, what is wrong with it, and whether it was read up to there; if not, it cannot be read at all."""


class Decoded(NamedTuple):
    """The result of decoding a split.

    `begin` and `end` are the offsets where its first record and the next split's begin, each with the layout
    there; `begin` is None if no record was found. `fragments` counts IP fragments; `waiting` are the
    incomplete datagrams. Connections without an edge were ignored from turn `rest` on; None if there are
    none. `dropped` counts packets that the kernel dropped, `cut` those cut by a snap length, `frames` all
    frames seen. `skipped` are as in `Dissector`. `counts` are the counts of its events, if these are only
    counted. `has_secrets`: its files hold secrets of TLS, which it does not use.
    """

    split: Split
    begin: FilePosition | None
    end: FilePosition
    problems: list[Problem]
    packets: Count
    fragments: Count
    waiting: Waiting
    edges: list[Edge]
    rest: Place | None
    dropped: UInt64 = 0
    cut: Count = 0
    frames: Count = 0
    skipped: dict[str, Unwrapped] = {}  # noqa: RUF012 (not changed)
    counts: Any = None
    has_secrets: bool = False
