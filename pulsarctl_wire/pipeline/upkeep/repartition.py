"""Moves the rows of a table into directories by other columns, without decoding captures again.

Files keep the names of their splits, so runs of `analyze` go on with the table. All are replaced at once.
"""

from collections import defaultdict
from dataclasses import replace
from typing import Any

from pulsarctl_wire.pipeline.storage.finish import begin_file
from pulsarctl_wire.pipeline.storage.journal import Change
from pulsarctl_wire.pipeline.storage.partitions import PART, File, Partitioned, add_partitions, find_sources
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.upkeep.optimize import Size, count, row_groups
from pulsarctl_wire.table.schema import TABLES, with_detail

_Splits = dict[tuple[str, str], list[Any]]
"""The files of each table (of `TABLES`) and split."""


def repartition(table: str, by: tuple[str, ...]) -> Size:
    """Put the rows of the table at a path or URI into directories `by` these columns; return its size before.

    Raises CaptureError if there is no table that a run of `analyze` may go on with, OSError if it cannot be
    written.
    """
    store = Store(table)
    options, size_before = store.prepare_change()[-1].options, count(store.files())
    if by == options.partition_by:
        return size_before
    splits = _group_files(store, options.partition_by, by)
    new_paths = [
        path for (kind, name), files in splits.items() for path in _plan(store, kind, name, files, by)
    ]
    old_paths = [store.get_relative_path(file.path) for files in splits.values() for file in files]
    with store.replace_files(
        Change(tuple(new_paths), tuple(old_paths), by), replace(options, partition_by=by)
    ):
        for (kind, name), files in splits.items():
            file = begin_file(f"{store.out}/{kind}", name, with_detail(TABLES[kind], options.detail), by)
            try:
                _copy(store, files, file, TABLES[kind].names)
            except BaseException:
                file.discard()
                raise
            file.close()
    return size_before


def _group_files(store: Store, old_keys: tuple[str, ...], new_keys: tuple[str, ...]) -> _Splits:
    """Return the files of tables whose directories change."""
    splits: _Splits = defaultdict(list)
    for file in store.files():
        kind = store.get_relative_path(file.path).partition("/")[0]
        if add_partitions(TABLES[kind], old_keys) != add_partitions(TABLES[kind], new_keys):
            splits[kind, PART.sub("", file.base_name)].append(file)
    return splits


def _plan(store: Store, kind: str, name: str, files: list[Any], keys: tuple[str, ...]) -> list[str]:
    """Return the paths of the files that the rows of a split will be in, below the table's directory."""
    schema = TABLES[kind]
    _, own_columns = add_partitions(schema, keys)
    if not own_columns:
        return [f"{kind}/{name}.parquet"]
    paths: list[str] = []

    def open_partition(path: str) -> File:
        paths.append(f"{kind}/{path}")
        return _Planned()

    _copy(store, files, Partitioned(name, own_columns, open_partition), find_sources(schema, own_columns))
    return paths


def _copy(store: Store, files: list[Any], file: File, columns: list[str]) -> None:
    """Write the rows of files to another one, a batch for each row group."""
    for rows in row_groups(store.system, files, columns):
        for batch in rows.combine_chunks().to_batches():
            file.write(batch)


class _Planned:
    """A file that is not written yet."""

    rows = 0

    def write(self, batch: Any) -> None:
        """Do nothing."""

    def close(self) -> int:
        """Do nothing."""
        return 0

    def discard(self) -> None:
        """Do nothing."""
