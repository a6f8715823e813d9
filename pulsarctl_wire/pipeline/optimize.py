"""Merges the small files of a table into larger ones. Runs of `analyze` go on with it as with any other.

Files are merged within a directory, in the order of their splits. A run may have to do the splits from a
saved progress on again, and deletes their files then: so no file has splits from both sides of such a place,
and what comes after the last one is left alone. A merged file has the names of its first and last file,
`000000-00000..000012-00003.parquet`, so it sorts as its first split does.
"""

import json
from bisect import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from pyarrow import ArrowException

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.inputs import filesystem
from pulsarctl_wire.pipeline.journal import merging
from pulsarctl_wire.pipeline.output import unfinished, written
from pulsarctl_wire.pipeline.splits import reason
from pulsarctl_wire.pipeline.store import Store
from pulsarctl_wire.pipeline.tasks import Workers
from pulsarctl_wire.table import RowGroups

SMALL: Final = 2 * 1024 * 1024
"""Bytes: smaller files are merged with others when a run ends."""
MERGED: Final = 32 * 1024 * 1024
"""Bytes of a file that is made of these."""
MIN_MERGED: Final = 8
"""How many small files in a row are worth merging."""
SPLITS: Final = b"pwire.splits"
"""What a merged file has in its metadata, as JSON: the splits whose rows it has, and how many of each."""


class Size(NamedTuple):
    """How many files there are, and their bytes."""

    files: int
    size: int


def optimize(table: str, size: int) -> tuple[Size, Size]:
    """Merge the files of the table at a path or URI into files of about `size` bytes: before, and after.

    Files of half that size or more stay as they are. Raises CaptureError if there is no table that a run of
    `analyze` may go on with, OSError if it cannot be written.
    """
    store = Store(table)
    states, before = store.merge(), store.files()
    commit = partial(store.commit, states[-1].options, is_new=False)
    for files in _bins(store, before, [each.next for each in states], size, size / 2):
        paths = [store.below(each.path) for each in files]
        with (
            merging(store.system, store.path, _merged(paths), tuple(paths), commit),
            written(store.system, f"{store.path}/{_merged(paths)}") as stream,
        ):
            _write(store.system, [each.path for each in files], stream)
    return _size(before), _size(store.files())


def merge_small(store: Store, workers: Workers) -> None:
    """Merge neighbours among the small files of a table, where they are many, as whoever writes to it ends.

    The `workers` write the new files. Raises as `optimize` does.
    """
    small = [each for each in store.files() if each.size < SMALL]
    if len(small) < MIN_MERGED:
        return
    states = store.merge()
    commit = partial(store.commit, states[-1].options, is_new=False)
    bins = [*_bins(store, store.files(), [each.next for each in states], MERGED, SMALL, MIN_MERGED)]
    ways = [[store.below(each.path) for each in files] for files in bins]
    temporary = [unfinished(f"{store.out}/{_merged(paths)}") for paths in ways]
    calls = [(store.out, paths, path) for paths, path in zip(ways, temporary, strict=True)]
    futures = workers.submit(write_merged, calls, sum(each.size for files in bins for each in files))
    for paths, path, future in zip(ways, temporary, futures, strict=True):
        future.result()
        with merging(store.system, store.path, _merged(paths), tuple(paths), commit):
            store.system.move(filesystem(path)[1], f"{store.path}/{_merged(paths)}")


def write_merged(table: str, paths: list[str], to: str) -> None:
    """Write the rows of files, named by their `paths` in a table's directory, to one at a path or URI."""
    system, inside = filesystem(table)
    with system.open_output_stream(filesystem(to)[1]) as stream:
        _write(system, [f"{inside}/{path}" for path in paths], stream)


def _size(files: list[Any]) -> Size:
    return Size(len(files), sum(each.size for each in files))


def _bins(
    store: Store, files: list[Any], places: list[str], size: int, small: float, least: int = 2
) -> Iterator[list[Any]]:
    """The files to merge into one of at most `size` bytes, each time.

    They are `least` or more neighbours of less than `small` bytes each, on one side of all places, with the
    same columns.
    """

    def alike(each: Any) -> tuple[str, int, bool]:
        return each.path.rpartition("/")[0], bisect(places, each.base_name), each.size < small

    for (_, side, are_small), neighbours in groupby(files, alike):
        if not are_small or side == len(places):
            continue
        found = [*neighbours]
        if len(found) < least:
            continue  # to look at their columns takes time
        for _, same in groupby(found, lambda each: _schema(store.system, each.path)):
            yield from (some for some in _portions(same, size) if len(some) >= least)


def _portions(files: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Neighbours that have at most `size` bytes together."""
    found: list[Any] = []
    total = 0
    for each in files:
        total += each.size
        if found and total > size:
            yield found
            found, total = [], each.size
        found.append(each)
    if found:
        yield found


def _merged(paths: list[str]) -> str:
    """The path of the file that has the rows of these."""
    folder, _, first = paths[0].removesuffix(".parquet").rpartition("/")
    last = paths[-1].removesuffix(".parquet").rpartition("/")[2]
    return f"{folder}/{first.partition('..')[0]}..{last.rpartition('..')[2]}.parquet"


def _write(system: Any, paths: list[str], stream: Any) -> None:
    """Write the rows of files to a stream, and how many of them each split has."""
    splits: list[tuple[str, int]] = []
    with RowGroups(stream, _schema(system, paths[0])) as parquet:
        for path in paths:
            with _errors(path), system.open_input_file(path) as source:
                file = pq.ParquetFile(source)
                splits += splits_of(file, path)
                for number in range(file.num_row_groups):
                    parquet.write(file.read_row_group(number, use_threads=False))
        parquet.note(SPLITS, json.dumps(splits))


def splits_of(file: Any, path: str) -> list[tuple[str, int]]:
    """The splits whose rows a `pyarrow.parquet.ParquetFile` has, in order: their names, and how many rows.

    For a file that was merged by an earlier version of pwire, these are not known: it is taken for one split.
    Raises CaptureError if it is damaged.
    """
    noted = file.metadata.metadata.get(SPLITS)
    if noted is None:
        return [(path.rpartition("/")[2].removesuffix(".parquet"), file.metadata.num_rows)]
    try:
        return [(str(name), int(rows)) for name, rows in json.loads(noted)]
    except (TypeError, ValueError) as error:
        raise CaptureError(f"{path}: what it says of its splits is damaged") from error


def _schema(system: Any, path: str) -> Any:
    with _errors(path), system.open_input_file(path) as stream:
        schema = pq.read_schema(stream)
    return schema.with_metadata({name: text for name, text in schema.metadata.items() if name != SPLITS})


@contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise CaptureError if a file is damaged."""
    try:
        yield
    except (ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the system failed
            raise
        raise CaptureError(f"{path}: {reason(error)}") from error
