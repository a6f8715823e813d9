"""Captures that rotate into a directory, taken up as they come, by Structured Streaming.

    a stream of files   those that are complete: the others are being written. A task decodes a split.
    transformWithState  stitches them, one after the other; its state is all that came before
    foreachBatch        has the drafts finished, under names that are the same when a batch comes again

What was taken up and the state that it led to are in Spark's checkpoint together. So whenever this is
killed and started again, the rows are those of one pass. All of it is data: see pipeline/saved.py.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pulsarctl_wire.capture.series import Span, natural, series
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline import saved
from pulsarctl_wire.pipeline.decode import Decoded, Settings, decode_split, unread
from pulsarctl_wire.pipeline.finish import finish_split
from pulsarctl_wire.pipeline.progress import Options, Progress, Totals
from pulsarctl_wire.pipeline.splits import Input, Split, is_capture, list_inputs, plan, span
from pulsarctl_wire.pipeline.stitch import Stitched, Stitcher
from pulsarctl_wire.pipeline.store import Store
from pulsarctl_wire.spark.columns import spark_uri
from pulsarctl_wire.spark.executor import SparkExecutor

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

QUIET: Final = 5.0
"""Seconds for which a file may not have grown that others of its series follow."""
IDLE: Final = 600.0
"""Seconds after which a file that does not grow is complete, even if none follows."""
_FILES: Final = 64  # of a batch, at most
_ROW: Final = "a row of the stream"
_CHECKPOINT: Final = "progress/checkpoint"
_SIZES: Final = range(2**63)
_TAKEN: Final = {str: (str, _SIZES)}
_BATCH: Final = [(Input, saved.Maybe(range(-(2**63), 2**63)), saved.Maybe(str))]


def follow(
    spark: "SparkSession",
    directory: str,
    out: str,
    options: Options,
    *,
    finish: bool = False,
    show: Callable[[Totals], object] = lambda totals: None,
    say: Callable[[str], object] = lambda note: None,
) -> Totals:
    """Take up the captures in `directory` until interrupted, and add their frames to the table at `out`.

    With `finish` all that are there are taken up, what is open then is written, and this ends. `show` is
    called after each batch, `say` at both ends with what is left out. Raises as `Run` does.
    """
    store = Store(out)
    store.follow()
    settings = Settings(store.drafts, options.max_frame_size, options.payload)
    spark.dataSource.register(Rotated)
    stream = (
        spark.readStream.format(Rotated.name())
        .option("path", directory)
        .option("plan", json.dumps([options.split_size, *settings]))
        .load()
        .selectExpr("1 as capture", "file", "part", "decoded")
        .groupBy("capture")
        .transformWithStateInPandas(
            Stitching(options, settings), "name string, data binary", "Append", "None"
        )
    )
    last: list[Progress] = []
    said: set[str] = set()

    def say_once(note: str) -> None:
        if note not in said:
            said.add(note)
            say(note)

    with SparkExecutor(spark) as executor, _left_out(directory, say_once):

        def finish_batch(batch: "DataFrame", number: int) -> None:
            rows = batch.collect()
            work = [
                executor.submit(
                    finish_split, row.name, saved.load(bytes(row.data), Stitched, _ROW), store.drafts, out
                )
                for row in rows
                if row.name
            ]
            for each in work:
                each.result()
            for row in rows:
                if not row.name:
                    progress = saved.load_progress(bytes(row.data), _ROW)
                    store.save(progress)
                    last[:] = [progress]
                    show(progress.totals)

        writer = stream.writeStream.foreachBatch(finish_batch)
        writer = writer.option("checkpointLocation", spark_uri(store.checkpoint))
        query = (
            writer.trigger(availableNow=True) if finish else writer.trigger(processingTime="1 second")
        ).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        progress = last[0] if last else store.saved()
        if progress is None:
            return Totals()
        if finish:
            executor.submit(finish_split, "end", progress.stitcher.close(), store.drafts, out).result()
            store.finish(progress)
        return progress.totals


@contextmanager
def _left_out(directory: str, say: Callable[[str], object]) -> Iterator[None]:
    """Say which files of a directory are no captures, before and after something is done."""
    try:
        with suppress(CaptureError):  # nothing there yet
            list_inputs([directory], say)
        yield
    finally:
        with suppress(CaptureError):
            list_inputs([directory], say)


class _Part(InputPartition):
    def __init__(self, split: Split, first_ns: int | None, problem: str | None) -> None:
        self.split = split
        self.first_ns = first_ns
        self.problem = problem


class Rotated(DataSource):
    """The splits of the capture files in a directory, decoded, as a stream of (file, part, data)."""

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "pwire-rotated"

    def schema(self) -> str:
        """Numbers of the file and of the split in it, and what became of it."""
        return "file long, part long, decoded binary"

    def streamReader(self, schema: "StructType") -> "RotatedReader":
        """A reader."""
        split_size, *settings = json.loads(self.options["plan"])
        return RotatedReader(self.options["path"], split_size, Settings(*settings))


class _File(NamedTuple):
    """A file as it was last seen, and the clock when it was seen to change.

    `size` tells it from another one that begins in the same way.
    """

    input: Input
    is_capture: bool
    span: Span | None
    changed: float
    size: str = ""

    @property
    def begin(self) -> str:
        """Its series and when it begins: what stays, however much it grows."""
        return f"{series(self.input.name)} {self.span.first} " if self.span else self.input.name

    @property
    def identity(self) -> str:
        """What it stays known by when it is renamed or compressed, but not when it is written anew."""
        return self.begin + (self.span.mark if self.span else "") + self.size

    def differs(self, other: "_File") -> bool:
        """Whether it is surely not that file, which begins in the same way."""
        is_packed = any(each.span is None or each.span.last is None for each in (self, other))
        return self.input.size != other.input.size and not is_packed


class RotatedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes up each file once, when it is complete; those of a series in the order of their first packets.

    A file is complete once it has not grown for `QUIET` seconds and another one of its series begins after it
    ends, or once it has not grown for `IDLE` seconds. An offset is how many files were taken up, which of
    them are still there (with their sizes, in bytes), and the files of its batch. `clock` gives seconds.
    """

    def __init__(
        self, directory: str, split_size: int, settings: Settings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._split_size = split_size
        self._settings = settings
        self._clock = clock
        self._files: dict[str, _File] = {}  # captures or not, by their paths
        self._before: dict[str, _File] = {}
        self._final: set[str] | None = None  # how the files to end with begin, complete or not

    def initialOffset(self) -> dict[str, Any]:
        """Before all files."""
        return {"files": 0, "taken": {}, "batch": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A batch has a limited number of files."""
        return ReadMaxFiles(_FILES)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on take up what is there now, and no more."""
        self._final = {each.begin for each in self._look()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset behind the files of the next batch."""
        present: dict[str, _File] = {}
        for each in self._look():
            if present.setdefault(each.identity, each).differs(each):  # else it is being compressed
                other = each._replace(size=f" {each.input.size}")
                present[other.identity] = other
        before = saved.checked(start["taken"], _TAKEN, _CHECKPOINT)
        taken = {identity: list(about) for identity, about in before.items() if identity in present}
        batch: list[list[Any]] = []
        named = {each.input.name: each for each in present.values()}
        for identity, (name, size) in before.items():
            now = named.get(name)
            if now is None or now.input.size <= size or not identity.startswith(now.begin):
                continue
            if now.identity == identity or now.identity not in before:  # a short file begins longer now
                taken[now.identity] = [name, now.input.size]
                grown = now.input.size - size
                what = f"has grown by {grown} bytes since it was taken up: they may be missing"
                batch.append([now.input, None, what])
        files = list(present.values())
        for each in [each for each in self._complete(files) if each.identity not in taken][:_FILES]:
            taken[each.identity] = [each.input.name, each.input.size]
            batch.append([each.input, each.span and each.span.first, None])
        return {"files": start["files"] + len(batch), "taken": taken, "batch": batch} if batch else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """The splits of the files between two offsets."""
        batch = saved.checked(end["batch"], _BATCH, _CHECKPOINT)
        parts = []
        for file, (each, first_ns, problem) in enumerate(batch, end["files"] - len(batch)):
            splits = plan(file, each, self._split_size)
            parts += [_Part(split, first_ns, problem) for split in (splits[:1] if problem else splits)]
        return parts

    def read(self, partition: _Part) -> Iterator[tuple[int, int, bytes]]:  # type: ignore[override]
        """Decode a split."""
        split, problem = partition.split, partition.problem
        if problem is None and not self._is_there(partition):
            problem = "was written anew, or is gone, before it could be read"
        decoded = decode_split(split, self._settings) if problem is None else unread(split, problem)
        yield split.file, split.part, saved.dump(decoded)

    def _is_there(self, partition: _Part) -> bool:
        if partition.first_ns is None:
            return True
        found = span(partition.split.input)
        return found is not None and found.first == partition.first_ns

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to be done: the files are not ours."""

    def _look(self) -> list[_File]:
        """The files that are there now, those that are alike in the order of their first packets."""
        self._before, self._files = self._files, {}
        inputs: list[Input] = []
        with suppress(CaptureError):  # nothing there yet
            inputs = list_inputs([self._directory], wanted=lambda each: self._seen(each).is_capture)
        return sorted(map(self._seen, inputs), key=_begin)

    def _seen(self, input_: Input) -> _File:
        """A file that is there now; it is looked into only when it has changed."""
        known = self._files.get(input_.path) or self._before.get(input_.path)
        if known is None or known.input != input_:
            captured = is_capture(input_)
            known = _File(input_, captured, span(input_) if captured else None, self._clock())
        self._files[input_.path] = known
        return known

    def _complete(self, files: list[_File]) -> list[_File]:
        """Those that are complete, and that come behind no other one of their series that is not."""
        if self._final is not None:
            return [each for each in files if each.begin in self._final]
        newest = {series(each.input.name): each for each in files if each.span is not None}
        complete: list[_File] = []
        waiting: set[str] = set()
        for each in files:
            kind = series(each.input.name)
            if kind not in waiting and self._is_complete(each, newest.get(kind, each)):
                complete.append(each)
            else:
                waiting.add(kind)
        return complete

    def _is_complete(self, file: _File, newest: _File) -> bool:
        """Whether nobody writes to a file any more; `newest` is the one of its series that begins last."""
        still = self._clock() - file.changed
        if still < QUIET or file is newest or file.span is None or newest.span is None:
            return still >= IDLE
        last = file.span.first if file.span.last is None else file.span.last
        return newest.span.first >= last or still >= IDLE


def _begin(file: _File) -> tuple[bool, int, list[tuple[int, int, str]]]:
    """A key that sorts files by their first packets; those without come last, by name."""
    return file.span is None, file.span.first if file.span else 0, natural(file.input.name)


class Stitching(StatefulProcessor):
    """Stitches splits; gives (name of the split, how to finish it), and at last ("", the state)."""

    def __init__(self, options: Options, settings: Settings) -> None:
        self._options = options
        self._settings = settings

    def init(self, handle: Any) -> None:
        """Begin."""
        self._state = handle.getValueState("progress", "progress binary")

    def handleInputRows(
        self, key: Any, rows: Iterator["pd.DataFrame"], timerValues: Any
    ) -> Iterator["pd.DataFrame"]:
        """Stitch the splits of a batch."""
        import pandas as pd

        if self._state.exists():
            progress = saved.load_progress(bytes(self._state.get()[0]), _CHECKPOINT)
        else:
            progress = Progress(self._options, Stitcher(self._settings))
        results: list[tuple[str, bytes]] = []
        for _, row in pd.concat(list(rows)).sort_values(["file", "part"]).iterrows():
            decoded = saved.load(bytes(row["decoded"]), Decoded, _ROW)
            if decoded.split.part == 0:
                progress.inputs.append(decoded.split.input)
            settled = progress.settle(decoded, lambda split: decode_split(split, self._settings))
            if settled is not None:
                results.append((settled.split.name, saved.dump(progress.take(settled))))
        progress.file, progress.part, progress.end = progress.file + 1, 0, None
        state = saved.dump(progress)
        self._state.update((state,))
        yield pd.DataFrame([*results, ("", state)], columns=["name", "data"])

    def close(self) -> None:
        """Nothing is held."""
