"""Deletes the old rows of a table. Runs of `analyze` go on with it, and do not decode them again.

Whole files are deleted, and those that have newer rows as well are rewritten on request: all at once for
readers, by the table's journal. A connection is as old as its last packet.
"""

from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pulsarctl_wire.pipeline.files.filesystems import written
from pulsarctl_wire.pipeline.storage.journal import Change, free_path
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.upkeep.optimize import damage, row_groups
from pulsarctl_wire.table import writer

_TIMES: Final = {"connections": ("last_ns", "time_ns")}
"""Columns of tables of which the first that is not null says how old a row is."""
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
    """How many rows of a file are older, are not, and have no time."""

    older: int
    newer: int
    untimed: int


def delete(table: str, before: int, *, exact: bool = False, dry_run: bool = False) -> Deleted:
    """Delete the rows of before a time (ns since 1970) in the table at a path or URI.

    Without `exact` only files that have no other rows are deleted. With `dry_run` nothing changes. Raises
    CaptureError if there is no table that a run of `analyze` may go on with, OSError if it cannot be written.
    """
    store = Store(table)
    options = store.merge()[-1].options
    done = Deleted()
    old: list[str] = []
    rewritten: dict[str, Any] = {}  # new paths, and the files whose rows they get
    files = store.files()
    taken = {store.below(each.path) for each in files}
    for each in files:
        path = store.below(each.path)
        times = _times(path)
        ages = _ages(store.system, each, times, before)
        done = done._replace(untimed=done.untimed + ages.untimed)
        if not ages.older:
            continue
        is_whole = ages.older and not ages.newer and not ages.untimed
        if not is_whole and not exact:
            done = done._replace(left=done.left + ages.older)
            continue
        old.append(path)
        done = done._replace(rows=done.rows + ages.older)
        if is_whole:
            done = done._replace(files=done.files + 1, size=done.size + each.size)
        else:
            rewritten[free_path(path, taken)] = each
            done = done._replace(rewritten=done.rewritten + 1)
    if old and not dry_run:
        with store.replacing(Change(tuple(rewritten), tuple(old)), options, is_new=True):
            for path, each in rewritten.items():
                _write_rest(store, each, path, before)
    return done


def _times(path: str) -> tuple[str, ...]:
    return _TIMES.get(path.partition("/")[0], _USUAL_TIMES)


def _ages(system: Any, file: Any, times: tuple[str, ...], before: int) -> _Ages:
    """Count the rows of a file by age: from its statistics if they tell, otherwise from the times."""
    with damage(file.path), system.open_input_file(file.path) as stream:
        metadata = pq.read_metadata(stream)
    rows = metadata.num_rows
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(at) for group in groups for at in range(group.num_columns)]
    known = [each.statistics for each in columns if each.path_in_schema == times[0]]
    if known and all(each is not None and each.has_min_max and each.null_count == 0 for each in known):
        if max(each.max for each in known) < before:
            return _Ages(rows, 0, 0)
        if min(each.min for each in known) >= before:
            return _Ages(0, rows, 0)
    older = untimed = 0
    for group in row_groups(system, [file], times):
        found = _time(group, times)
        older += pc.sum(pc.less(found, before)).as_py() or 0
        untimed += found.null_count
    return _Ages(older, rows - older - untimed, untimed)


def _time(rows: Any, times: tuple[str, ...]) -> Any:
    return pc.coalesce(*(rows.column(name) for name in times))


def _write_rest(store: Store, file: Any, path: str, before: int) -> None:
    """Write the rows of a file that are not older to another one."""
    with damage(file.path), store.system.open_input_file(file.path) as stream:
        schema = pq.read_schema(stream)
    with written(store.system, f"{store.path}/{path}") as stream, writer(stream, schema) as parquet:
        for rows in row_groups(store.system, [file]):
            is_old = pc.less(_time(rows, _times(path)), pa.scalar(before, pa.int64()))
            rest = rows.filter(pc.invert(pc.fill_null(is_old, False)))
            if rest.num_rows:
                parquet.write_table(rest)
