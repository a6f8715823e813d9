"""Captures that rotate into a directory, taken up as they come, by Structured Streaming.

    a stream of files   the newest one is left alone: somebody writes it. Each split is decoded by a task.
    transformWithState  stitches them, one after the other; its state is all that came before
    foreachBatch        has the drafts finished, under names that are the same when a batch comes again

What was taken up and the state that it led to are in Spark's checkpoint together. So whenever this is
killed and started again, the rows are those of one pass.
"""

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from pulsarctl_wire.capture.series import natural
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decode import Settings, decode_split
from pulsarctl_wire.pipeline.finish import finish_split
from pulsarctl_wire.pipeline.progress import Options, Progress, Totals
from pulsarctl_wire.pipeline.splits import Input, Split, find_inputs, plan
from pulsarctl_wire.pipeline.stitch import Stitcher
from pulsarctl_wire.pipeline.store import Store
from pulsarctl_wire.spark.executor import SparkExecutor

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILES: Final = 64  # of a batch, at most


def follow(
    spark: "SparkSession",
    directory: str,
    out: str,
    options: Options,
    *,
    finish: bool = False,
    show: Callable[[Totals], object] = lambda totals: None,
) -> Totals:
    """Take up the captures in `directory` until interrupted, and add their frames to the table at `out`.

    With `finish` the newest one is taken up too, what is open then is written, and this ends. `show` is
    called after each batch. Raises as `Run` does.
    """
    store = Store(out)
    store.follow()
    settings = Settings(store.drafts, options.max_frame_size, options.payload)
    spark.dataSource.register(Rotated)
    stream = (
        spark.readStream.format(Rotated.name())
        .option("path", directory)
        .option("plan", pickle.dumps((options.split_size, settings)).hex())
        .load()
        .selectExpr("1 as capture", "file", "part", "decoded")
        .groupBy("capture")
        .transformWithStateInPandas(
            Stitching(options, settings), "name string, data binary", "Append", "None"
        )
    )
    last: list[Progress] = []
    with SparkExecutor(spark) as executor:

        def finish_batch(batch: "DataFrame", number: int) -> None:
            rows = batch.collect()
            work = [
                executor.submit(finish_split, row.name, pickle.loads(row.data), store.drafts, out)
                for row in rows
                if row.name
            ]
            for each in work:
                each.result()
            for row in rows:
                if not row.name:
                    progress = cast(Progress, pickle.loads(row.data))
                    store.save(progress)
                    last[:] = [progress]
                    show(progress.totals)

        writer = stream.writeStream.foreachBatch(finish_batch)
        writer = writer.option("checkpointLocation", store.checkpoint)
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


class _Part(InputPartition):
    def __init__(self, split: Split) -> None:
        self.split = split


class Rotated(DataSource):
    """The splits of the capture files in a directory, decoded, as a stream of (file, part, pickle)."""

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return "pwire-rotated"

    def schema(self) -> str:
        """Numbers of the file and of the split in it, and what became of it."""
        return "file long, part long, decoded binary"

    def streamReader(self, schema: "StructType") -> "RotatedReader":
        """A reader."""
        return RotatedReader(self.options["path"], *pickle.loads(bytes.fromhex(self.options["plan"])))


class RotatedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is how many files were taken up, the last one's name, and the files of its batch."""

    def __init__(self, directory: str, split_size: int, settings: Settings) -> None:
        self._directory = directory
        self._split_size = split_size
        self._settings = settings
        self._final: str | None = None  # the file to end with, the newest one included

    def _inputs(self) -> list[Input]:
        try:
            return find_inputs([self._directory])
        except CaptureError:  # nothing there yet
            return []

    def initialOffset(self) -> dict[str, Any]:
        """Before all files."""
        return {"files": 0, "last": "", "batch": []}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A batch has a limited number of files."""
        return ReadMaxFiles(_FILES)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on take up what is there now, and no more."""
        self._final = next((each.name for each in reversed(self._inputs())), "")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset behind the files of the next batch."""
        inputs = self._inputs()
        if self._final is None:
            inputs = inputs[:-1]
        else:
            inputs = [each for each in inputs if natural(each.name) <= natural(self._final)]
        new = [each for each in inputs if natural(each.name) > natural(start["last"])][:_FILES]
        if not new:
            return start
        return {
            "files": start["files"] + len(new),
            "last": new[-1].name,
            "batch": [list(each) for each in new],
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_Part]:
        """The splits of the files between two offsets."""
        files = enumerate((Input(*each) for each in end["batch"]), end["files"] - len(end["batch"]))
        return [_Part(split) for file, each in files for split in plan(file, each, self._split_size)]

    def read(self, partition: _Part) -> Iterator[tuple[int, int, bytes]]:  # type: ignore[override]
        """Decode a split."""
        split = partition.split
        yield split.file, split.part, pickle.dumps(decode_split(split, self._settings))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to be done: the files are not ours."""


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
            progress = pickle.loads(bytes(self._state.get()[0]))
        else:
            progress = Progress(self._options, Stitcher(self._settings))
        results: list[tuple[str, bytes]] = []
        for _, row in pd.concat(list(rows)).sort_values(["file", "part"]).iterrows():
            decoded = pickle.loads(row["decoded"])
            if decoded.split.part == 0:
                progress.inputs.append(decoded.split.input)
            settled = progress.settle(decoded, lambda split: decode_split(split, self._settings))
            if settled is not None:
                results.append((settled.split.name, pickle.dumps(progress.take(settled))))
        progress.file, progress.part, progress.end = progress.file + 1, 0, None
        state = progress.dump()
        self._state.update((state,))
        yield pd.DataFrame([*results, ("", state)], columns=["name", "data"])

    def close(self) -> None:
        """Nothing is held."""
