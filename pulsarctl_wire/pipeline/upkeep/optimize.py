"""Merges the small files of a table into larger ones. Runs of `analyze` go on with it as with any other.

Files are merged within a directory, in the order of their splits. A run may have to do the splits after a
saved progress again, and then deletes their files. So a merged file never has splits from both sides of a
saved progress, and files after the last one are left alone. A merged file has the names of its first and last
split, `000000-00000..000012-00003.parquet`, so it sorts as its first split does.
"""

import json
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from pyarrow import ArrowException

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.filesystems import filesystem, write_file
from pulsarctl_wire.pipeline.files.paths import reason
from pulsarctl_wire.pipeline.storage.journal import Change, free_path
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.storage.tables import find
from pulsarctl_wire.pipeline.storage.tasks import Workers
from pulsarctl_wire.table.parquet import RowGroups

SMALL: Final = 2 * 1024 * 1024
"""Bytes: smaller files are merged with others when a run ends."""
MERGED: Final = 32 * 1024 * 1024
"""Maximum bytes of a file that is made of these."""
MIN_MERGED: Final = 8
"""How many small files in a row are worth merging."""
SPLITS: Final = b"pwire.splits"
"""What a merged file has in its metadata, as JSON: the splits whose rows it has, and how many of each."""


class Size(NamedTuple):
    """How many files there are, or row groups, and their bytes."""

    files: int
    size: int


def optimize(table: str, size: int) -> tuple[Size, Size]:
    """Merge the files of the table at a path or URI into files of about `size` bytes.

    Return what files there were before, and are now. Files of half that size or more stay as they are. Raises
    CaptureError if there is no table that a run of `analyze` may go on with, OSError if it cannot be written.
    """
    store = Store(table)
    states, files_before = store.prepare_change(), store.files()
    paths_taken = {store.get_relative_path(file.path) for file in files_before}
    for files in _bins(store, files_before, [state.next for state in states], size, size / 2):
        paths = [store.get_relative_path(file.path) for file in files]
        merged_path = _merged_path(paths, paths_taken)
        with store.replace_files(Change((merged_path,), tuple(paths)), states[-1].options):
            write_merged(store.out, paths, merged_path)
    return count(files_before), count(store.files())


def rewrite(path: str) -> tuple[Size, Size]:
    """Write the Parquet file of frames at a path or URI again, in full row groups, and those beside it.

    Return how many row groups there were, and are. A file is replaced when the new one is complete. Raises
    CaptureError if it is not a frames table, OSError if it cannot be written.
    """
    paths = [path_of_file for files in find([path])[0].files.values() for path_of_file in files.paths]
    size_before = _measure(paths)
    for path_of_file in paths:
        system, inside = filesystem(path_of_file)
        schema = _schema(system, inside)
        with write_file(system, inside) as stream, RowGroups(stream, schema) as parquet:
            for rows in row_groups(system, [system.get_file_info(inside)]):
                parquet.write(rows)
    return size_before, _measure(paths)


def _measure(paths: list[str]) -> Size:
    """Return the row groups of files, and their bytes."""
    groups = size = 0
    for path in paths:
        system, inside = filesystem(path)
        with report_damage(path), system.open_input_file(inside) as stream:
            groups += pq.read_metadata(stream).num_row_groups
            size += stream.size()
    return Size(groups, size)


def merge_small(store: Store, workers: Workers) -> None:
    """Merge neighbours among the small files of a table, if they are many, at the end of a run.

    The `workers` write the new files. Raises as `optimize` does.
    """
    if sum(file.size < SMALL for file in store.files()) < MIN_MERGED:
        return
    states = store.prepare_change()
    files = store.files()
    bins = [*_bins(store, files, [state.next for state in states], MERGED, SMALL, MIN_MERGED)]
    if not bins:
        return
    sources = [[store.get_relative_path(file.path) for file in bin_] for bin_ in bins]
    in_use = {store.get_relative_path(file.path) for file in files}
    calls = [(store.out, paths, _merged_path(paths, in_use)) for paths in sources]
    change = Change(tuple(path for *_, path in calls), tuple(path for paths in sources for path in paths))
    with store.replace_files(change, states[-1].options):
        for future in workers.submit(write_merged, calls, sum(file.size for bin_ in bins for file in bin_)):
            future.result()


def write_merged(table: str, paths: Sequence[str], path: str) -> None:
    """Write the rows of several files of a table to one, with a note of how many rows each split has.

    `paths` and `path` are below the table's directory. Raises as `optimize` does.
    """
    system, inside = filesystem(table)
    files = system.get_file_info([f"{inside}/{name}" for name in paths])
    splits: list[tuple[str, int]] = []
    for file in files:
        with report_damage(file.path), system.open_input_file(file.path) as stream:
            splits += splits_of(pq.ParquetFile(stream), file.path)
    schema = _schema(system, files[0].path)
    with write_file(system, f"{inside}/{path}") as stream, RowGroups(stream, schema) as parquet:
        for rows in row_groups(system, files):
            parquet.write(rows)
        parquet.note(SPLITS, json.dumps(splits))


def count(files: list[Any]) -> Size:
    """Return how many these files are, and their bytes."""
    return Size(len(files), sum(file.size for file in files))


def _bins(
    store: Store, files: list[Any], places: list[str], size: int, small_size: float, min_count: int = 2
) -> Iterator[list[Any]]:
    """Yield lists of files, each to be merged into one file of at most `size` bytes.

    A list has `min_count` or more neighbours of less than `small_size` bytes each, with the same columns, and
    with none of `places` between them: the names of the splits that come after each saved progress.
    """

    def key_of(file: Any) -> tuple[str, int, bool]:
        return file.path.rpartition("/")[0], bisect(places, file.base_name), file.size < small_size

    for (_, side, are_small), neighbours in groupby(files, key_of):
        if not are_small or side == len(places):
            continue
        small_files = [*neighbours]
        if len(small_files) < min_count:
            continue  # looking at their columns takes time
        for _, alike_files in groupby(small_files, lambda each: _schema(store.system, each.path)):
            yield from (portion for portion in _portions(alike_files, size) if len(portion) >= min_count)


def _portions(files: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield neighbours that have at most `size` bytes together."""
    portion: list[Any] = []
    total = 0
    for file in files:
        total += file.size
        if portion and total > size:
            yield portion
            portion, total = [], file.size
        portion.append(file)
    if portion:
        yield portion


def _merged_path(paths: list[str], paths_taken: set[str]) -> str:
    """Return the path of a file for the rows of others, which are sorted; add it to `paths_taken`.

    They may overlap, as files do that were in several directories before `repartition`.
    """
    folder = paths[0].rpartition("/")[0]
    names = [path.removesuffix(".parquet").rpartition("/")[2] for path in paths]
    last = max(name.rpartition("..")[2] for name in names)
    return free_path(f"{folder}/{names[0].partition('..')[0]}..{last}.parquet", paths_taken)


def row_groups(system: Any, files: Sequence[Any], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the row groups of files, with all or some columns. Raises CaptureError if one is damaged."""
    for file in files:
        with report_damage(file.path), system.open_input_file(file.path) as stream:
            parquet = pq.ParquetFile(stream)
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns=columns, use_threads=False)


def splits_of(file: Any, path: str) -> list[tuple[str, int]]:
    """Return the splits in a `pyarrow.parquet.ParquetFile`, in order: their names, and how many rows.

    If a merged file does not say so, because rows of it were deleted, it counts as that of one split.
    """
    rows = file.metadata.num_rows
    with suppress(TypeError, ValueError, RecursionError):
        noted = json.loads((file.metadata.metadata or {}).get(SPLITS, b"null"))
        splits = [(str(name), int(size)) for name, size in noted]
        if sum(size for _, size in splits) == rows:
            return splits
    return [(path.rpartition("/")[2].removesuffix(".parquet"), rows)]


def _schema(system: Any, path: str) -> Any:
    with report_damage(path), system.open_input_file(path) as stream:
        schema = pq.read_schema(stream)
    about = schema.metadata or {}
    return schema.with_metadata({name: text for name, text in about.items() if name != SPLITS})


@contextmanager
def report_damage(path: str) -> Iterator[None]:
    """Raise CaptureError if a file is damaged."""
    try:
        yield
    except (ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the system failed
            raise
        raise CaptureError(f"{path}: {reason(error)}") from error
