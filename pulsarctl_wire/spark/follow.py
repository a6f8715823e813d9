"""Adds captures that rotate into a directory to a table, as they come, with Structured Streaming.

    a stream of files   only complete ones: the others are still being written. A task decodes a split.
    transformWithState  stitches the splits, one after the other; its state sums up all earlier ones
    foreachBatch        finishes the drafts, in one job, under names that are the same if a batch is repeated

Spark's checkpoint holds the files that were added together with the resulting state. So whenever this is
killed and started again, the rows are those of one pass. The checkpoint is plain data: see
pipeline/storage/saved.py.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pulsarctl_wire.capture.series import Span, name_key, series_of
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.decode import make_unreadable_result
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress, Totals
from pulsarctl_wire.pipeline.decoding.rows import decode_split, new_progress
from pulsarctl_wire.pipeline.files.inputs import is_capture, list_inputs, span
from pulsarctl_wire.pipeline.files.splits import Input, Split, plan_all
from pulsarctl_wire.pipeline.storage import saved
from pulsarctl_wire.pipeline.storage.finish import finish_split
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tasks import Round, StitchedSlice, delete_decoded, delete_file, finish_at
from pulsarctl_wire.pipeline.upkeep.optimize import merge_small
from pulsarctl_wire.spark.columns import spark_uri
from pulsarctl_wire.spark.executor import SparkWorkers
from pulsarctl_wire.wire.ranges import Nanoseconds, UInt64

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

QUIET: Final = 5.0
"""Seconds after which a file that does not grow is complete, if another one of its series follows."""
IDLE: Final = 600.0
"""Seconds after which a file that does not grow is complete, even if none follows."""
_FILES: Final = 64  # of a batch, at most
_ROW: Final = "a row of the stream"
_STITCHED: Final = "name string, path string, at long, size long, progress binary"
_CHECKPOINT: Final = "progress/checkpoint"
_TAKEN: Final = dict[str, tuple[str, UInt64]]
"""The files that were added: identity -> name, and size in bytes."""
_BATCH: Final = list[tuple[Input, Nanoseconds | None, str | None]]
"""The files of a batch, each with when it begins (ns, if known), and why it is not read (None: it is)."""


@dataclass
class Status:
    """How far `follow` is, for other threads; `show` is called with the totals after each batch.

    `files` of the table so far, and what was done since the start: `frames`, `gaps`, `batches`, of which the
    last one ended at `ended` (seconds since 1970) and took `seconds`. `waiting` returns the files that are
    complete and not added.
    """

    totals: Totals = field(default_factory=Totals)
    show: Callable[[Totals], object] = lambda totals: None
    files: int = 0
    frames: int = 0
    gaps: int = 0
    batches: int = 0
    ended: float = 0.0
    seconds: float = 0.0
    waiting: Callable[[], list[Input]] = list

    def count(self, frames: int, gaps: int, size: int) -> None:
        """Count what was written for a split."""
        self.frames += frames
        self.gaps += gaps

    def end_batch(self, seconds: float) -> None:
        """Count a batch that took so long."""
        self.batches += 1
        self.ended, self.seconds = time.time(), seconds


def follow(
    spark: "SparkSession",
    directory: str,
    out: str,
    options: Options,
    *,
    finish: bool = False,
    format: str | None = None,
    say: Callable[[str], object] = lambda note: None,
    status: Status | None = None,
) -> Totals:
    """Add the frames of the captures in `directory` to the table at `out`, until interrupted.

    With `finish` it adds all existing files, ends the open connections, and returns. `say` gets a note of
    files left out, at the start and the end. `status` is kept up to date. `format` is that of `Store`.
    Raises as `Run` does.
    """
    store = Store(out, format)
    store.follow(options)
    settings = Settings(store.drafts, options)
    spark.dataSource.register(Rotated)
    stream = (
        spark.readStream.format(Rotated.name())
        .options(**stream_options(directory, settings))
        .load()
        .selectExpr("1 as capture", "file", "part", "decoded")
        .groupBy("capture")
        .transformWithStateInPandas(StitchProcessor(settings), _STITCHED, "Append", "None")
    )
    notes_said: set[str] = set()

    def say_once(note: str) -> None:
        if note not in notes_said:
            notes_said.add(note)
            say(note)

    with _left_out(directory, say_once):
        status = status or Status()
        status.waiting = partial(_waiting, store, RotatedReader(directory, settings))
        batches = _Batches(store, settings, SparkWorkers(spark), status)
        writer = stream.writeStream.foreachBatch(batches.finish)
        writer = writer.option("checkpointLocation", spark_uri(store.checkpoint))
        query = (
            writer.trigger(availableNow=True) if finish else writer.trigger(processingTime="1 second")
        ).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        progress = batches.last or store.load_saved()
        if progress is None:
            return Totals()
        if finish:
            finish_split("end", progress.stitcher.close(), settings, store.out, store.number)
            store.finish(progress)
        return progress.totals


def _waiting(store: Store, reader: "RotatedReader") -> list[Input]:
    """Return the files that are complete, and in no batch that Spark has committed."""
    folder = f"{store.path}/{_CHECKPOINT}"
    selector = fs.FileSelector(f"{folder}/commits", allow_not_found=True)
    batches = [
        int(info.base_name) for info in store.system.get_file_info(selector) if info.base_name.isdecimal()
    ]
    offset = reader.initialOffset()
    if batches:
        with store.system.open_input_file(f"{folder}/offsets/{max(batches)}") as file:
            offset = json.loads(file.read().splitlines()[-1])
    return reader.waiting(offset)


@dataclass
class _Batches:
    """Finishes the drafts of batches. `last` is the progress after the last one."""

    store: Store
    settings: Settings
    workers: SparkWorkers
    status: Status
    last: Progress | None = None

    def finish(self, batch: "DataFrame", number: int) -> None:
        """Finish the splits of a batch, and save the progress."""
        started = time.monotonic()
        store, rows = self.store, batch.collect()
        places = [StitchedSlice(*row[:-1]) for row in rows if row.name]
        if places:
            self._begin(min(place.name for place in places))
        calls = [(place, self.settings, store.out, store.number) for place in places]
        for future in self.workers.submit(finish_at, calls, sys.maxsize):  # a task for each
            self.status.count(*future.result())
        for row in rows:
            if not row.name:
                self.last = saved.load_progress(bytes(row.progress), _ROW)
                # The checkpoint has the options of the first run; `repartition` may have changed directories.
                self.last.options = self.settings.options
                store.save(self.last)
                self.status.totals, self.status.files = self.last.totals, self.last.file
                self.status.show(self.last.totals)
        delete_decoded(store.drafts, [place.name for place in places])
        for path in {place.path for place in places}:
            delete_file(path)
        merge_small(store, self.workers)
        self.status.end_batch(time.monotonic() - started)

    def _begin(self, first: str) -> None:
        """Prepare for a batch whose first split is `first`. The first batch may be one that is repeated."""
        if self.last is None:  # if it is repeated, it may have fewer rows, as a file is gone
            self.store.discard(first, self.settings.options)
        progress = self.last
        with suppress(CaptureError):  # it is damaged; the checkpoint has all that is needed
            progress = progress or self.store.load_saved()
        if progress is not None and progress.next <= first:
            self.store.save(progress, is_before_last=True)


@contextmanager
def _left_out(directory: str, say: Callable[[str], object]) -> Iterator[None]:
    """Report which files of a directory are not captures, before and after the block."""
    try:
        with suppress(CaptureError):  # nothing there yet
            list_inputs([directory], say)
        yield
    finally:
        with suppress(CaptureError):
            list_inputs([directory], say)


@dataclass
class _Part(InputPartition):
    """A split, when each of its inputs begins (ns), and what is wrong with them."""

    split: Split
    first_ns: tuple[int | None, ...]
    problem: str | None


def stream_options(directory: str, settings: Settings) -> dict[str, str]:
    """Return the options of `Rotated`."""
    return {"path": directory, "settings": saved.dump(settings).hex()}


class Rotated(DataSource):
    """The splits of the capture files in a directory, decoded, as a stream of (file, part, data)."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pwire-rotated"

    def schema(self) -> str:
        """Return the number of the file, the number of the split in it, and the decoded split."""
        return "file long, part long, decoded binary"

    def streamReader(self, schema: "StructType") -> "RotatedReader":
        """Return a reader."""
        settings = saved.load(bytes.fromhex(self.options["settings"]), Settings, "the option settings")
        return RotatedReader(self.options["path"], settings)


class _File(NamedTuple):
    """A file as it was last seen, and the clock when a change of it was seen.

    `size` distinguishes it from another one that begins in the same way.
    """

    input: Input
    is_capture: bool
    span: Span | None
    changed: float
    size: str = ""

    @property
    def begin(self) -> str:
        """Its series and the time at which it begins: they do not change when it grows."""
        return f"{series_of(self.input.name)} {self.span.first} " if self.span else self.input.name

    @property
    def identity(self) -> str:
        """Identifies the file when it is renamed or compressed, but not when it is overwritten."""
        return self.begin + (self.span.mark if self.span else "") + self.size

    def differs(self, other: "_File") -> bool:
        """Return whether it is certainly another file than `other`, which begins in the same way."""
        is_packed = any(file.span is None or file.span.last is None for file in (self, other))
        return self.input.size != other.input.size and not is_packed


class RotatedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each file once, when it is complete; those of a series in the order of their first packets.

    A file is complete once it has not grown for `QUIET` seconds and another one of its series begins after it
    ends, or once it has not grown for `IDLE` seconds. An offset is how many files were added, which of
    them still exist (with their sizes, in bytes), and the files of its batch. `clock` returns seconds.
    """

    def __init__(
        self, directory: str, settings: Settings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._clock = clock
        self._files: dict[str, _File] = {}  # captures or not, by their paths
        self._previous_files: dict[str, _File] = {}
        self._final: set[str] | None = None  # `begin` of the files to finish with, complete or not

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before all files."""
        return {"files": 0, "taken": {}, "batch": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Limit the number of files of a batch."""
        return ReadMaxFiles(_FILES)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the files that exist now, from now on."""
        self._final = {file.begin for file in self._look()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset after the files of the next batch."""
        present = self._present()
        earlier = saved.check(start["taken"], _TAKEN, _CHECKPOINT)
        taken = {identity: list(entry) for identity, entry in earlier.items() if identity in present}
        batch: list[list[Any]] = []
        by_name = {file.input.name: file for file in present.values()}
        for identity, (name, size) in earlier.items():
            file = by_name.get(name)
            if file is None or file.input.size <= size or not identity.startswith(file.begin):
                continue
            # A short file that grows gets another `mark`.
            if file.identity == identity or file.identity not in earlier:
                taken[file.identity] = [name, file.input.size]
                growth = file.input.size - size
                problem = f"has grown by {growth} bytes since it was added: they may be missing"
                batch.append([file.input, None, problem])
        files = list(present.values())
        for file in [file for file in self._complete(files) if file.identity not in taken][:_FILES]:
            taken[file.identity] = [file.input.name, file.input.size]
            batch.append([file.input, file.span and file.span.first, None])
        return {"files": start["files"] + len(batch), "taken": taken, "batch": batch} if batch else start

    def waiting(self, offset: dict[str, Any]) -> list[Input]:
        """Return the files that are complete, and not among those of an offset."""
        taken = saved.check(offset["taken"], _TAKEN, _CHECKPOINT)
        complete = self._complete(list(self._present().values()))
        return [file.input for file in complete if file.identity not in taken]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """Return the splits of the files between two offsets."""
        batch = saved.check(end["batch"], _BATCH, _CHECKPOINT)
        first = end["files"] - len(batch)
        parts: list[_Part] = []
        for problem, rows in groupby(batch, itemgetter(2)):
            inputs, times, _ = zip(*rows, strict=True)
            single_splits = (Split(file, 0, input_) for file, input_ in enumerate(inputs))
            splits = plan_all(inputs, self._settings.options.split_size) if problem is None else single_splits
            parts += [
                _Part(split._replace(file=first + split.file), times[split.file : split.next_file], problem)
                for split in splits
            ]
            first += len(inputs)
        return parts

    def read(self, partition: _Part) -> Iterator[tuple[int, int, bytes]]:  # type: ignore[override]
        """Decode a split. If some of its inputs cannot be read, the others are decoded one by one."""
        split, problem = partition.split, partition.problem
        inputs = [*zip(split.inputs, partition.first_ns, strict=True)]
        can_read = [problem is None and _is_there(*input_) for input_ in inputs]
        if all(can_read):
            yield split.file, split.part, saved.dump(decode_split(split, self._settings))
            return
        problem = problem or "was overwritten, or is gone, before it could be read"
        for file, (input_, is_there) in enumerate(zip(split.inputs, can_read, strict=True), split.file):
            single = split._replace(file=file, input=input_, more=())
            decoded = (
                decode_split(single, self._settings) if is_there else make_unreadable_result(single, problem)
            )
            yield file, split.part, saved.dump(decoded)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the files are not ours."""

    def _present(self) -> dict[str, _File]:
        """Return the files that exist now, by what identifies them."""
        present: dict[str, _File] = {}
        for file in self._look():
            if present.setdefault(file.identity, file).differs(file):  # otherwise it is being compressed
                namesake = file._replace(size=f" {file.input.size}")
                present[namesake.identity] = namesake
        return present

    def _look(self) -> list[_File]:
        """Return the files that exist now, in the order of their first packets."""
        self._previous_files, self._files = self._files, {}
        inputs: list[Input] = []
        with suppress(CaptureError):  # nothing there yet
            inputs = list_inputs([self._directory], is_wanted=lambda file: self._file_of(file).is_capture)
        return sorted(map(self._file_of, inputs), key=_sort_key)

    def _file_of(self, input_: Input) -> _File:
        """Return a file that exists now; it is opened only if it has changed."""
        file = self._files.get(input_.path) or self._previous_files.get(input_.path)
        if file is None or file.input != input_:
            captured = is_capture(input_)
            file = _File(input_, captured, span(input_) if captured else None, self._clock())
        self._files[input_.path] = file
        return file

    def _complete(self, files: list[_File]) -> list[_File]:
        """Return the files that are complete, and not after an incomplete one of their series."""
        if self._final is not None:
            return [file for file in files if file.begin in self._final]
        newest = {series_of(file.input.name): file for file in files if file.span is not None}
        complete: list[_File] = []
        waiting_series: set[str] = set()
        for file in files:
            kind = series_of(file.input.name)
            if kind not in waiting_series and self._is_complete(file, newest.get(kind, file)):
                complete.append(file)
            else:
                waiting_series.add(kind)
        return complete

    def _is_complete(self, file: _File, newest: _File) -> bool:
        """Return whether a file is no longer written to; `newest` begins last of its series."""
        idle_seconds = self._clock() - file.changed
        if idle_seconds < QUIET or file is newest or file.span is None or newest.span is None:
            return idle_seconds >= IDLE
        last = file.span.first if file.span.last is None else file.span.last
        return newest.span.first >= last or idle_seconds >= IDLE


def _is_there(input_: Input, first_ns: int | None) -> bool:
    """Return whether a file still begins at `first_ns`; True if that is None."""
    file_span = None if first_ns is None else span(input_)
    return first_ns is None or (file_span is not None and file_span.first == first_ns)


def _sort_key(file: _File) -> tuple[bool, int, list[tuple[int, int, str]]]:
    """Return a key that sorts files by their first packets; those without packets come last, by name."""
    return file.span is None, file.span.first if file.span else 0, name_key(file.input.name)


@dataclass
class StitchProcessor(StatefulProcessor):
    """Stitches splits; yields a `StitchedSlice` for each, and last the progress."""

    settings: Settings

    def init(self, handle: Any) -> None:
        """Open the state."""
        self._state = handle.getValueState("progress", "progress binary")

    def handleInputRows(
        self, key: Any, rows: Iterator["pd.DataFrame"], timerValues: Any
    ) -> Iterator["pd.DataFrame"]:
        """Stitch the splits of a batch."""
        import pandas as pd

        if self._state.exists():
            progress = saved.load_progress(bytes(self._state.get()[0]), _CHECKPOINT)
        else:
            progress = new_progress(self.settings)
        stitched = Round(self.settings.drafts)
        for _, row in pd.concat(list(rows)).sort_values(["file", "part"]).iterrows():
            decoded = saved.load(bytes(row["decoded"]), Decoded, _ROW)
            settled = progress.settle(decoded, lambda split: decode_split(split, self.settings))
            if settled is not None:
                stitched.add(settled.split.name, progress.take(settled))
        stitched.close()
        progress.file, progress.part, progress.end = decoded.split.next_file, 0, None
        state = saved.dump(progress)
        self._state.update((state,))
        results = [*((*place, b"") for place in stitched.places), ("", "", 0, 0, state)]
        yield pd.DataFrame(results, columns=["name", "path", "at", "size", "progress"])  # as in _STITCHED

    def close(self) -> None:
        """Do nothing."""
