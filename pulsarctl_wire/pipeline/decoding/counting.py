"""Counts captures in a pool of processes: each counts splits, and the calling process adds up the counts."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from pulsarctl_wire.capture.sources import collect_rarely
from pulsarctl_wire.pipeline.decoding.decode import decode
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress, Result, Totals, decoded_in_order, room_for
from pulsarctl_wire.pipeline.decoding.stitch import Fixup, Names, Reread, Stitcher, StitchResult
from pulsarctl_wire.pipeline.files.splits import Input, Split
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.session.ending import EndedConnection

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

SPLIT: Final = 16 * 1024 * 1024
"""Bytes of a split for processes of this machine: few enough that all end at about the same time."""


class Counts(Protocol):
    """Counts of events; the counts of several splits can be added up."""

    def add(self, events: list[Event]) -> None:
        """Count events."""

    def add_ended_connection(self, ending: EndedConnection) -> None:
        """Count a connection that has ended."""

    def rename(self, numbers: Mapping[int, int], names: Names) -> None:
        """Renumber the connections in `numbers`, and replace the stand-ins in `names` by names."""

    def merge(self, other: "Self") -> None:
        """Add the counts of another split."""


C = TypeVar("C", bound=Counts)


def count_split(
    split: Split, settings: Settings, make: Callable[[], Counts], left_out: frozenset[int] = frozenset()
) -> Decoded:
    """Decode a split and count its events, except for connections whose indexes are in `left_out`."""
    counts = make()

    def add(events: list[Event]) -> None:
        counts.add([each for each in events if each.connection.index not in left_out] if left_out else events)

    return decode(split, settings, add)._replace(counts=counts)


class _CountStitcher(Stitcher, Generic[C]):
    """Stitches splits whose events are only counted. `edge_counts` are those of the last split's edges;
    `endings` are the connections that have ended since `CountJob` last cleared the list.
    """

    def __init__(self, settings: Settings, make: Callable[[], C]) -> None:
        self.edge_counts = make()
        self.endings: list[EndedConnection] = []
        super().__init__(settings, self._record_end)
        self._make = make

    def _record_end(self, ending: EndedConnection) -> None:
        self.endings.append(ending._replace(state=None))

    def add(self, decoded: Decoded, reread: Reread) -> StitchResult:
        self.edge_counts = self._make()
        return self._renumber(self.stitch(decoded, reread, self.edge_counts.add))

    def close(self) -> None:
        self.edge_counts = self._make()
        self._renumber(self.end(self.edge_counts.add))

    def _renumber(self, result: StitchResult) -> StitchResult:
        self.edge_counts.rename(
            {result.first + number: final for number, final in enumerate(result.numbers)}, {}
        )
        return result


class CountJob(Generic[C]):
    """Counts captures. Attributes that `Decoder` has too mean the same here."""

    def __init__(
        self,
        inputs: list[Input],
        make: Callable[[], C],
        *,
        max_frame_size: int | None = None,
        keep_duplicates: bool = False,
        split_size: int,
    ) -> None:
        self._make = make
        options = Options(split_size, max_frame_size, keep_duplicates=keep_duplicates)
        self._settings = Settings(options=options)
        self._stitcher = _CountStitcher(self._settings, make)
        self._progress = Progress(inputs, self._settings.options, stitcher=self._stitcher)
        self.counts = make()
        """The counts of all splits so far."""
        self.forms: list[str] = []
        """As in `Decoder`: none, since no texts are read in splits."""
        self.packets = self.cut_packets = self.dropped_packets = 0
        self.skipped: dict[str, int] = {}
        self.reassembler, self.knowledge = self._stitcher.reassembler, self._stitcher.knowledge

    def run(self, executor: Executor, workers: int) -> Iterator[Totals]:
        """Count everything; yield the totals so far after each split. `executor` has `workers` processes."""
        make, settings, totals = self._make, self._settings, self._progress.totals

        def submit(splits: list[Split]) -> list[Result]:
            return [executor.submit(count_split, split, settings, make).result for split in splits]

        for decoded in decoded_in_order(self._progress, submit, room_for(workers)):
            fixups: dict[int, Fixup] = self._progress.take(decoded).fixups
            counts = decoded.counts
            wrong_indexes = frozenset(
                edge.index for edge in decoded.edges if edge.guess and edge.index not in fixups
            )
            decoded.edges.clear()  # or they stay in memory beside the next split's
            if wrong_indexes:
                recount = executor.submit(count_split, decoded.split, settings, make, wrong_indexes).result()
                totals.add_problems(recount.problems)  # the file may be gone by now
                counts = recount.counts
            numbers = {index: fixup.connection for index, fixup in fixups.items()}
            names = {name: text for fixup in fixups.values() for name, text in fixup.names.items()}
            counts.rename(numbers, names)
            self._take(counts)
            self.packets, self.cut_packets, self.dropped_packets = totals.packets, totals.cut, totals.dropped
            self.skipped = totals.skipped
            yield totals
        self._stitcher.close()
        self._take(make())

    def _take(self, counts: C) -> None:
        """Add the counts of a split, and of its edges."""
        self.counts.merge(self._stitcher.edge_counts)
        self.counts.merge(counts)
        for ending in self._stitcher.endings:
            self.counts.add_ended_connection(ending)
        self._stitcher.endings.clear()


def cores() -> int:
    """Return how many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def pool(jobs: int) -> ProcessPoolExecutor:
    """Start a pool of `jobs` processes. They are forked if the system can do that, so they start fast."""
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    return ProcessPoolExecutor(jobs, multiprocessing.get_context(method), _prepare)


def pool_until(stack: ExitStack, jobs: int) -> ProcessPoolExecutor:
    """Start a pool of `jobs` processes until `stack` closes; after an exception they stop at once."""
    executor = pool(jobs)

    def end(kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            stop_processes()
        executor.shutdown(cancel_futures=True)

    stack.push(end)
    return executor


def stop_processes() -> None:
    """Stop the processes of all pools, whatever they do."""
    for process in multiprocessing.active_children():
        process.terminate()


def _prepare() -> None:
    """Set up a process of the pool. It ignores Ctrl-C: the process that waits for the pool handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
