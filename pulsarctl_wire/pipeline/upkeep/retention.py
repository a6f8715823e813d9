"""Deletes the old rows of a table. Runs of `analyze` go on with it, and do not decode them again.

Whole files are deleted, and those that have newer rows as well are rewritten on request: all at once for
readers, by the table's journal. A connection is as old as its last packet.
"""

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsarctl_wire.pipeline.files.filesystems import write_file
from pulsarctl_wire.pipeline.storage.journal import Change, free_path
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.upkeep.optimize import report_damage, row_groups
from pulsarctl_wire.table.parquet import writer

_TIMES: Final = {"connections": ("last_ns", "time_ns")}
"""For each table, the columns of which the first that is not null says how old a row is."""
_USUAL_TIMES: Final = ("time_ns",)


class Deleted(NamedTuple):
    """What is deleted: rows, and files with their bytes; how many files are rewritten for that.

    `left` older rows stay in files that have newer ones, and `untimed` rows have no time.
    """

    rows: int = 0
    files: int = 0
    size: int = 0
    rewritten: int = 0
    left: int = 0
    untimed: int = 0


class _Ages(NamedTuple):
    """How many rows of a file are older than a time, how many are not, and how many have no time."""

    older: int
    newer: int
    untimed: int


def delete(table: str, until_ns: int, *, exact: bool = False, dry_run: bool = False) -> Deleted:
    """Delete the rows from before `until_ns` (ns since 1970) in the table at a path or URI.

    Without `exact` only files that have no other rows are deleted. With `dry_run` nothing changes. Raises
    CaptureError if there is no table that a run of `analyze` may go on with, OSError if it cannot be written.
    """
    store = Store(table)
    options = store.prepare_change()[-1].options
    result = Deleted()
    old_paths: list[str] = []
    rewritten: dict[str, Any] = {}  # new path -> the file whose remaining rows it gets
    files = store.files()
    paths_taken = {store.get_relative_path(file.path) for file in files}
    for file in files:
        path = store.get_relative_path(file.path)
        time_columns = _time_columns(path)
        ages = _ages(store.system, file, time_columns, until_ns)
        result = result._replace(untimed=result.untimed + ages.untimed)
        if not ages.older:
            continue
        is_whole = ages.older and not ages.newer and not ages.untimed
        if not is_whole and not exact:
            result = result._replace(left=result.left + ages.older)
            continue
        old_paths.append(path)
        result = result._replace(rows=result.rows + ages.older)
        if is_whole:
            result = result._replace(files=result.files + 1, size=result.size + file.size)
        else:
            rewritten[free_path(path, paths_taken)] = file
            result = result._replace(rewritten=result.rewritten + 1)
    if old_paths and not dry_run:
        with store.replace_files(Change(tuple(rewritten), tuple(old_paths)), options, is_new=True):
            for path, file in rewritten.items():
                _write_rest(store, file, path, until_ns)
    return result


def _time_columns(path: str) -> tuple[str, ...]:
    return _TIMES.get(path.partition("/")[0], _USUAL_TIMES)


def _ages(system: Any, file: Any, time_columns: tuple[str, ...], until_ns: int) -> _Ages:
    """Count the rows of a file by age: from its statistics if they tell, otherwise from their times."""
    with report_damage(file.path), system.open_input_file(file.path) as stream:
        metadata = pq.read_metadata(stream)
    rows = metadata.num_rows
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    stats = [part.statistics for part in columns if part.path_in_schema == time_columns[0]]
    if stats and all(part is not None and part.has_min_max and part.null_count == 0 for part in stats):
        if max(part.max for part in stats) < until_ns:
            return _Ages(rows, 0, 0)
        if min(part.min for part in stats) >= until_ns:
            return _Ages(0, rows, 0)
    older = untimed = 0
    for group in row_groups(system, [file], time_columns):
        times = _row_times(group, time_columns)
        older += pc.sum(pc.less(times, until_ns)).as_py() or 0
        untimed += times.null_count
    return _Ages(older, rows - older - untimed, untimed)


def _row_times(rows: Any, time_columns: tuple[str, ...]) -> Any:
    return pc.coalesce(*(rows.column(name) for name in time_columns))


def _write_rest(store: Store, file: Any, path: str, until_ns: int) -> None:
    """Write the rows of a file that are not older to another one."""
    with report_damage(file.path), store.system.open_input_file(file.path) as stream:
        schema = pq.read_schema(stream)
    with write_file(store.system, f"{store.path}/{path}") as stream, writer(stream, schema) as parquet:
        for rows in row_groups(store.system, [file]):
            is_old = pc.less(_row_times(rows, _time_columns(path)), pa.scalar(until_ns, pa.int64()))
            newer_rows = rows.filter(pc.invert(pc.fill_null(is_old, False)))
            if newer_rows.num_rows:
                parquet.write_table(newer_rows)
