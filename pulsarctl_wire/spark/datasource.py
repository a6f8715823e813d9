"""A data source that reads captures into a DataFrame, for notebooks:

    from pulsarctl_wire.spark.datasource import Captures
    spark.dataSource.register(Captures)
    frames = spark.read.format("pwire").load("captures/*.pcap")
    gaps = spark.read.format("pwire").option("table", "gaps").load(["a.pcap", "s3://bucket/captures"])
    stream = spark.readStream.format("pwire").load("table")  # of pwire analyze --follow

Captures become a table when a query is planned, in a pool of processes where the driver runs; it is kept
(pipeline/cache.py). A task then reads a Parquet file of it. Problems with a file are logged as warnings
(logger `pulsarctl_wire`); its valid part is read.

Readers take no filters (`pushFilters`): in Spark, up to 4.3, those of one query apply to all later queries of
the same DataFrame, which then lack rows.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pulsarctl_wire.errors import CaptureError

_LOG: Final = logging.getLogger("pulsarctl_wire")


class Captures(DataSource):
    """The data source `pwire`.

    Options: `path`, like INPUT of `pwire analyze`, or of a stream its table; `table`, such as gaps;
    `payload` true to keep payloads; `max_frame_size` in bytes; `keylog`, a file that opens TLS; `since` and
    `until`, to read only rows from a time on and before another (ns since 1970). A schema with some of the
    columns reads only those.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "pwire"

    def schema(self) -> StructType:
        """Return the columns of docs/tables.md."""
        from pulsarctl_wire.spark.columns import spark_type

        return spark_type(self._columns())

    def reader(self, schema: StructType) -> "_Reader":
        """Return a reader of the captures in `path`."""
        options = {
            "max_frame_size": self._number("max_frame_size"),
            "payload": self.options.get("payload", "false").lower() == "true",
            "keylogs": [path] if (path := self.options.get("keylog")) else [],
        }
        return _Reader(self._rows(schema), self._paths(), options)

    def streamReader(self, schema: StructType) -> "_Follower":
        """Return a reader of the table in `path`, which follows a directory."""
        paths = self._paths()
        if len(paths) != 1:
            raise CaptureError("name one table: load(PATH)")
        return _Follower(self._rows(schema), paths[0])

    def _paths(self) -> list[str]:
        paths: list[str] = json.loads(self.options.get("paths") or "[]")  # of load([...])
        paths += [path] if (path := self.options.get("path")) else []
        if not paths:
            raise CaptureError("name the captures: load(PATH)")
        return paths

    def _number(self, name: str) -> int | None:
        text = self.options.get(name)
        try:
            return int(text) if text else None
        except ValueError:
            raise CaptureError(f"option {name}: {text} is not a number") from None

    def _kind(self) -> str:
        return self.options.get("table", "frames")

    def _columns(self) -> Any:
        from pulsarctl_wire.table.schema import TABLES

        tables = {name: schema for name, schema in TABLES.items() if name != "messages"}
        if self._kind() not in tables:
            raise CaptureError(f"no table {self._kind()}; the tables are {', '.join(tables)}")
        return tables[self._kind()]

    def _rows(self, schema: StructType) -> "_Rows":
        types = {field.name: field.dataType for field in self.schema()}
        for field in schema:
            if types.get(field.name) != field.dataType:
                column = f"{field.name} {field.dataType.simpleString()}"
                raise CaptureError(f"{self._kind()} have no column {column}; docs/tables.md has the columns")
        return _Rows(self._kind(), schema.fieldNames(), self._number("since"), self._number("until"))


@dataclass
class _File(InputPartition):
    """Row groups of a Parquet file at a path or URI.

    With `inputs` (numbers), only the rows of these are meant; `is_cut`: the file has others as well.
    """

    path: str
    groups: list[int]
    inputs: range | None = None
    is_cut: bool = False


@dataclass
class _Rows:
    """What to read of a `kind` of table: columns, and the rows from a time on and before another (ns)."""

    kind: str
    columns: list[str]
    since: int | None
    until: int | None

    def file(self, path: str) -> list[_File]:
        """Return what to read of a file: nothing, if by its statistics no rows fit."""
        fragments = self._fragment(path).split_by_row_group(self._condition())
        groups = [group.id for fragment in fragments for group in fragment.row_groups]
        return [_File(path, groups)] if groups else []

    def read(self, file: _File) -> Iterator[Any]:
        """Yield the rows in a file, as Arrow batches."""
        import pyarrow as pa

        from pulsarctl_wire.pipeline.files.paths import reason
        from pulsarctl_wire.spark.columns import plain
        from pulsarctl_wire.table.schema import TABLES

        ours = TABLES[self.kind]
        our_schema = pa.schema([plain(ours).field(name) for name in self.columns])
        try:
            for batch in self._batches(file, ours):
                yield batch.cast(our_schema)
        except (pa.ArrowException, OSError) as error:
            raise CaptureError(f"{file.path}: {reason(error)}") from error

    def _batches(self, file: _File, ours: Any) -> Iterator[Any]:
        import pyarrow as pa

        if not file.is_cut:
            fragment = self._fragment(file.path, file.groups)
            yield from fragment.to_batches(ours, columns=self.columns, filter=self._condition())
            return
        row_range, stop = self._range(file), 0
        for batch in self._fragment(file.path).to_batches(ours, columns=list({*self.columns, "time_ns"})):
            start, stop = stop, stop + batch.num_rows
            part = range(max(row_range.start, start), min(row_range.stop, stop))
            rows = pa.Table.from_batches([batch]).slice(part.start - start if part else 0, len(part))
            if (condition := self._condition()) is not None:
                rows = rows.filter(condition)
            yield from rows.select(self.columns).to_batches()

    def _range(self, file: _File) -> range:
        """Return which rows of a merged file come from `file.inputs`."""
        import pyarrow.parquet as pq

        from pulsarctl_wire.pipeline.files.filesystems import filesystem
        from pulsarctl_wire.pipeline.files.splits import inputs_of
        from pulsarctl_wire.pipeline.upkeep.optimize import splits_of

        system, inside = filesystem(file.path)
        with system.open_input_file(inside) as stream:
            splits = splits_of(pq.ParquetFile(stream), file.path)
        if any(".." in name for name, _ in splits):
            reason_text = "merged by an earlier pwire, or before its directories changed"
            raise CaptureError(f"{file.path}: was {reason_text}: a stream cannot tell what is new")
        assert file.inputs is not None
        first = sum(rows for name, rows in splits if inputs_of(name).start < file.inputs.start)
        return range(
            first, first + sum(rows for name, rows in splits if inputs_of(name).start in file.inputs)
        )

    def _condition(self) -> Any:
        from pyarrow.dataset import field

        condition = None
        if self.since is not None:
            condition = field("time_ns") >= self.since
        if self.until is not None:
            is_before = field("time_ns") < self.until
            condition = is_before if condition is None else condition & is_before
        return condition

    def _fragment(self, path: str, groups: list[int] | None = None) -> Any:
        from pyarrow.dataset import ParquetFileFormat

        from pulsarctl_wire.pipeline.files.filesystems import filesystem

        system, inside = filesystem(path)
        return ParquetFileFormat().make_fragment(inside, system, row_groups=groups)


@dataclass
class _Reader(DataSourceReader):
    rows: _Rows
    captures: list[str]
    table_options: dict[str, Any]

    def partitions(self) -> list[_File]:
        """Return the row groups of the table."""
        from pulsarctl_wire.pipeline.cache import table_of
        from pulsarctl_wire.pipeline.storage.store import Store

        table = Store(table_of(self.captures, _LOG.warning, **self.table_options))
        files = [file for _, path in table.list_table_files(self.rows.kind) for file in self.rows.file(path)]
        return [replace(file, groups=[group]) for file in files for group in file.groups]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the rows, as Arrow batches."""
        # If there are no files, Spark has a partition of its own.
        return self.rows.read(partition) if isinstance(partition, _File) else iter(())


class _Follower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what `pwire analyze --follow` adds to a table. An offset is how many files of the directory were
    added, and whether that was all.
    """

    def __init__(self, rows: _Rows, table: str) -> None:
        from pulsarctl_wire.pipeline.storage.store import Store

        self._rows = rows
        self._table = table
        self._final_offset: dict[str, Any] | None = None
        Store(table).followed()  # raises now, rather than in the query, if it is no such table

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before all files."""
        return {"files": 0, "complete": False}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only what the table has now, from now on."""
        self._final_offset = self._now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset after the files that the table has now."""
        now = self._final_offset or self._now()
        if now["files"] < start["files"] or (start["complete"] and now != start):
            raise CaptureError(f"{self._table}: goes on after its end, or is a new one: begin a new query")
        return now

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[_File]:
        """Return the files of the table between two offsets."""
        from pulsarctl_wire.pipeline.files.splits import END

        files = self._files(range(start["files"], end["files"]))
        if end["complete"] and not start["complete"]:
            files += self._files(range(END, END + 1))
        return files

    def _files(self, inputs: range) -> list[_File]:
        """Return the files with rows of some inputs, or parts of them."""
        from pulsarctl_wire.pipeline.storage.store import Store

        for tries in range(3):
            parts: list[_File] = []
            try:
                for numbers, path in Store(self._table).list_table_files(self._rows.kind):
                    if common := range(max(numbers.start, inputs.start), min(numbers.stop, inputs.stop)):
                        files = self._rows.file(path)
                        parts += (replace(file, inputs=common, is_cut=common != numbers) for file in files)
                break
            except FileNotFoundError:  # it was merged with others meanwhile
                if tries == 2:
                    raise
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows, as Arrow batches."""
        assert isinstance(partition, _File)
        assert partition.inputs is not None
        is_begun = False
        try:
            for batch in self._rows.read(partition):
                is_begun = True
                yield batch
        except CaptureError as error:
            if is_begun or not isinstance(error.__cause__, FileNotFoundError):
                raise
            for file in self._files(partition.inputs):  # it was merged with others meanwhile
                yield from self._rows.read(file)

    def _now(self) -> dict[str, Any]:
        from pulsarctl_wire.pipeline.storage.store import Store

        files, is_complete = Store(self._table).followed()
        return {"files": files, "complete": is_complete}
