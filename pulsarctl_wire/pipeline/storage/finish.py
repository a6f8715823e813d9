"""Finishes a draft: writes its rows, with fixups applied, and those of the edges as Parquet files.

A file has a temporary name until it is complete. Its final name is that of its split, so writing it again
only replaces it with the same rows.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import ArrowException

from pulsarctl_wire.pipeline.decoding.edges import Settings
from pulsarctl_wire.pipeline.decoding.rows import Stitched, draft_of
from pulsarctl_wire.pipeline.decoding.stitch import Fixup, Names
from pulsarctl_wire.pipeline.files.filesystems import filesystem, unfinished, write_file
from pulsarctl_wire.pipeline.storage.generations import tag_name
from pulsarctl_wire.pipeline.storage.partitions import MAX_OPEN, File, Partitioned, add_partitions, directory
from pulsarctl_wire.table.columns import (
    make_topic_columns,
    number_array,
    number_values,
    pick_texts,
    replace_column,
    shift,
    text_array,
)
from pulsarctl_wire.table.parquet import GROUP_BYTES, RowGroups, writer
from pulsarctl_wire.table.schema import TABLES, with_detail


class Finished(NamedTuple):
    """What was written for a split: how many frames, gaps, and bytes of Parquet."""

    frames: int
    gaps: int
    size: int


def finish_split(
    name: str,
    stitched: Stitched,
    settings: Settings,
    out: str,
    generation: int = 1,
) -> Finished:
    """Write the Parquet files of the split `name` under `out`/frames, `out`/gaps, ….

    Its draft stays: Spark may do this again, and whoever gets the result deletes the draft.
    """
    options = settings.options
    counts = {}
    size = 0
    for table, schema in TABLES.items():
        columns = with_detail(schema, options.detail)
        file = begin_file(f"{out}/{table}", tag_name(name, generation), columns, options.partition_by)
        try:
            for batch in read_finished(name, stitched, settings.drafts, table):
                file.write(batch)
        except BaseException:
            file.discard()
            raise
        size += file.close()
        counts[table] = file.rows
    return Finished(counts["frames"], counts["gaps"], size)


def write_empty(folder: str, schema: Any, partition_by: Sequence[str], generation: int) -> None:
    """Write a file without rows to a directory, so that the table can be read. Raises OSError."""
    schema, columns = add_partitions(schema, partition_by)
    system, inside = filesystem("/".join([folder, directory(columns, [None] * len(columns))]).rstrip("/"))
    system.create_dir(inside)
    with write_file(system, f"{inside}/{tag_name('end', generation)}.parquet") as stream:
        writer(stream, schema).close()


def begin_file(folder: str, name: str, schema: Any, partition_by: Sequence[str]) -> File:
    """Begin the file of a split in a directory, or those in its partitions."""
    system, inside = filesystem(folder)
    schema, columns = add_partitions(schema, partition_by)
    if not columns:
        return _ParquetFile(system, f"{inside}/{name}.parquet", schema)

    def open_partition(path: str) -> File:
        system.create_dir(f"{inside}/{path.rpartition('/')[0]}")
        return _ParquetFile(system, f"{inside}/{path}", schema, GROUP_BYTES // MAX_OPEN)

    return Partitioned(name, columns, open_partition)


def read_finished(name: str, stitched: Stitched, drafts: str, table: str) -> Iterator[Any]:
    """Yield the rows of a `table` of the split `name`, in batches: those of its edges, then of its draft."""
    if edges := stitched.rows.get(table):
        yield from pa.ipc.open_stream(io.BytesIO(edges))
    system, paths = draft_of(drafts, name)
    try:
        stream = system.open_input_stream(paths[table])
    except FileNotFoundError:
        return
    with stream:
        for batch in pa.ipc.open_stream(stream):
            yield _fix_up(batch, stitched.fixups)


class _ParquetFile:
    """A Parquet file that gets its name when it is complete. Without rows, no file is written."""

    def __init__(self, system: Any, path: str, schema: Any, limit: int = GROUP_BYTES) -> None:
        self.rows = 0
        self._limit = limit
        self._system = system
        self._path = path
        self._unfinished = unfinished(path)
        self._schema = schema
        self._open: tuple[Any, Any] | None = None

    def write(self, batch: Any) -> None:
        """Append a batch."""
        if not batch.num_rows:
            return
        if self._open is None:
            stream = self._system.open_output_stream(self._unfinished)
            self._open = stream, RowGroups(stream, self._schema, self._limit)
        self._open[1].write(batch)
        self.rows += batch.num_rows

    def close(self) -> int:
        """Complete the file and rename it, replacing any of that name; return its size in bytes."""
        if self._open is None:
            with suppress(FileNotFoundError):
                self._system.delete_file(self._path)
            return 0
        stream, parquet = self._open
        parquet.close()
        size: int = stream.tell()
        stream.close()
        self._system.move(self._unfinished, self._path)
        return size

    def discard(self) -> None:
        """Delete the unfinished file."""
        if self._open is not None:
            for part in reversed(self._open):
                with suppress(ArrowException, OSError):
                    part.close()
            with suppress(OSError):
                self._system.delete_file(self._unfinished)


# -- fixing up


def _fix_up(batch: Any, fixups: dict[int, Fixup]) -> Any:
    """Return a batch of a draft with the fixups applied, without the rows of connections that have none."""
    draft_numbers = number_values(batch.column("connection"))
    size = int(draft_numbers.max(initial=0)) + 1
    numbers = np.full(size, -1, np.int64)
    shifts = np.zeros((size, 2), np.int64)
    texts: dict[str, list[str | None]] = {"uid": [None] * size, "broker": [None] * size}
    for index, fixup in fixups.items():
        if index < size:
            numbers[index], shifts[index] = fixup.connection, fixup.shifts
            texts["uid"][index], texts["broker"][index] = fixup.uid, fixup.broker
    connections = numbers[draft_numbers]
    has_fixup = connections >= 0
    offsets = number_values(batch.column("stream_offset"))
    offsets = offsets + shifts[draft_numbers, number_values(batch.column("to_broker"))]
    batch = replace_column(batch, "stream_offset", number_array(offsets, None, pa.int64()))
    for column in texts.keys() & {*batch.schema.names}:
        batch = replace_column(batch, column, pick_texts(draft_numbers, texts[column]))
    if "topic" in batch.schema.names:
        names = {name: text for fixup in fixups.values() for name, text in fixup.names.items()}
        for column in ("topic", "subscription"):
            batch = replace_column(batch, column, _replace_names(batch.column(column), names, has_fixup))
        for column, values in make_topic_columns(batch.column("topic")).items():
            batch = replace_column(batch, column, values)
    if "request" in batch.schema.names:
        # Requests are offsets of what was sent to the broker.
        requests = shift(batch.column("request"), shifts[draft_numbers, 1])
        batch = replace_column(batch, "request", requests)
    batch = replace_column(batch, "connection", number_array(connections, None, pa.int64()))
    return batch if has_fixup.all() else batch.filter(number_array(has_fixup, None, pa.bool_()))


def _replace_names(column: Any, names: Names, has_fixup: Any) -> Any:
    """Replace the stand-ins in `names` in a column of texts; leave out those that no row with a fixup has."""
    codes = number_values(column.indices)  # -1 is null
    texts = column.dictionary.to_pylist()
    is_used = np.zeros(len(texts) + 1, bool)
    is_used[codes[has_fixup]] = True
    results = [names.get(text, text) for text in texts]
    unique = dict.fromkeys(
        text for text, used in zip(results, is_used, strict=False) if used and text is not None
    )
    places = {text: place for place, text in enumerate(unique)}
    new_codes = np.array([*(places.get(text, -1) for text in results), -1], np.int64)[codes]
    return pa.DictionaryArray.from_arrays(
        number_array(new_codes, new_codes >= 0, pa.int32()), text_array(list(places))
    )
