"""Keeps Delta Lake's log of a table's files, so that others read it with deltalake, Spark, Polars or DuckDB.

Each of our tables is one of Delta: `frames/_delta_log` names the files in `frames/`. No rows are written
for it. Whoever changes the table says which files it has then, and what differs from the log is committed in
one transaction.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire.errors import CaptureError, require
from pulsarctl_wire.pipeline.files.filesystems import arrow_uri, delete_directory, filesystem, has_directory
from pulsarctl_wire.pipeline.files.paths import reason

LOG: Final = "_delta_log"
"""The directory of the log."""
_SKIPPED_BY: Final = ("time_ns", "connection")
"""Columns of which the log has the lowest and the highest value in each file."""


def library() -> Any:
    """Return the package deltalake. Raises MissingLibrary if it is not installed."""
    require("deltalake")
    import deltalake.exceptions
    import deltalake.transaction

    return deltalake


def commit(
    folder: str, schema: Any, partition_by: Sequence[str], files: Sequence[Any], *, is_new: bool = True
) -> None:
    """Have the log in a directory name exactly these `files`, which are as pyarrow lists them.

    Their columns are those of `schema`, and they are partitioned by those in `partition_by`. Without
    `is_new`, their rows were in other files before. Raises OSError, CaptureError if the log cannot be read,
    and as `library` does.
    """
    delta, (system, path) = library(), filesystem(folder)
    listed = {file.path.removeprefix(f"{path}/"): file for file in files}
    with _errors(delta, folder):
        columns = delta.Schema.from_arrow(schema)
        table = _open_table(delta, folder, columns, [*partition_by])
        has_changed = table.schema() != columns
        logged = {} if has_changed else _list_logged(table)
        additions = [
            delta.transaction.AddAction(name, file.size, *_action_fields(system, file, partition_by, is_new))
            for name, file in listed.items()
            if logged.get(name) != _stamp(file)
        ]
        now = int(time.time() * 1_000)
        removals = [
            delta.transaction.RemoveAction(name, is_new, now, size)
            for name, (size, _) in logged.items()
            if name not in listed
        ]
        if additions or removals or has_changed:
            mode = "overwrite" if has_changed else "append"
            table.create_write_transaction([*additions, *removals], mode, schema, [*partition_by])


def _open_table(delta: Any, folder: str, columns: Any, partition_by: list[str]) -> Any:
    """Open the table of Delta in a directory; make it anew if it is partitioned by other columns."""
    uri = arrow_uri(folder)
    if has_directory(f"{folder}/{LOG}"):
        table = delta.DeltaTable(uri)
        if table.metadata().partition_columns == partition_by:
            return table
        delete_directory(f"{folder}/{LOG}")
    return delta.DeltaTable.create(uri, columns, partition_by=partition_by)


def _list_logged(table: Any) -> dict[str, tuple[int, int]]:
    """Return the files that a log names, each with its size and the time when it was written (ms)."""
    files = pa.table(table.get_add_actions()).select(["path", "size_bytes", "modification_time"]).to_pylist()
    return {unquote(action["path"]): (action["size_bytes"], action["modification_time"]) for action in files}


def _stamp(file: Any) -> tuple[int, int]:
    return file.size, (file.mtime_ns or 0) // 1_000_000


def _action_fields(
    system: Any, file: Any, keys: Sequence[str], is_new: bool
) -> tuple[dict[str, str | None], int, bool, str]:
    """Return the fields of an AddAction after the file's name and size."""
    with system.open_input_file(file.path) as stream:
        parquet = pq.ParquetFile(stream)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        rows = parquet.read_row_group(0, columns=[*keys]).slice(0, 1).to_pylist() if groups else []
    row = rows[0] if rows else {}
    values = {name: None if row.get(name) is None else str(row[name]) for name in keys}
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    lowest, highest = {}, {}
    for name in _SKIPPED_BY:
        infos = [column.statistics for column in columns if column.path_in_schema == name]
        if infos and all(part is not None and part.has_min_max for part in infos):
            lowest[name], highest[name] = min(part.min for part in infos), max(part.max for part in infos)
    stats = {"numRecords": parquet.metadata.num_rows, "minValues": lowest, "maxValues": highest}
    return values, _stamp(file)[1], is_new, json.dumps(stats)


@contextmanager
def _errors(delta: Any, folder: str) -> Iterator[None]:
    try:
        yield
    except delta.exceptions.DeltaError as error:
        name = f"{folder.rpartition('/')[2]}/{LOG}"
        raise CaptureError(f"{name}: {reason(error)}; if it is deleted, it is made anew") from error
