"""Merges the small files of a table into larger ones. Runs of `analyze` go on with it as with any other.

Files are merged within a directory, in the order of their splits. A run may have to do the splits from a
saved progress on again, and deletes their files then: so no file has splits from both sides of such a place,
and what comes after the last one is left alone. A merged file has the names of its first and last file,
`000000-00000..000012-00003.parquet`, so it sorts as its first split does.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import gt
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.journal import Change
from pulsarctl_wire.pipeline.output import written
from pulsarctl_wire.pipeline.splits import reason
from pulsarctl_wire.pipeline.store import Store
from pulsarctl_wire.table import writer
from pulsarctl_wire.table.parquet import ROWS

_GATHERED: Final = 64 * 1024 * 1024  # bytes of rows that are in memory


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
    for files in _bins(store, before, [each.next for each in states], size):
        paths = [store.below(each.path) for each in files]
        with store.replacing(Change((_merged(paths),), tuple(paths)), states[-1].options):
            _write(store.system, files, f"{store.path}/{_merged(paths)}")
    return count(before), count(store.files())


def count(files: list[Any]) -> Size:
    """How many these files are, and their bytes."""
    return Size(len(files), sum(each.size for each in files))


def _bins(store: Store, files: list[Any], places: list[str], size: int) -> Iterator[list[Any]]:
    """The files to merge into one, each time: neighbours with the same columns, on one side of all places."""

    def alike(each: Any) -> tuple[Any, ...]:
        folder = each.path.rpartition("/")[0]
        side = bisect(places, each.base_name)
        if side == len(places) or each.size >= size / 2:
            return folder, side, each.path
        return folder, side, _schema(store.system, each.path)

    for _, neighbours in groupby(files, alike):
        for found in _portions(neighbours, lambda each: (each.size,), (size,)):
            if len(found) > 1:
                yield found


def _portions(
    items: Iterable[Any], sizes: Callable[[Any], tuple[int, ...]], most: tuple[int, ...]
) -> Iterator[list[Any]]:
    """Items in a row that have at most so much together, of each size, or one item that has more alone."""
    found: list[Any] = []
    total = (0,) * len(most)
    for each in items:
        own = sizes(each)
        total = tuple(map(sum, zip(total, own, strict=True)))
        if found and any(map(gt, total, most)):
            yield found
            found, total = [], own
        found.append(each)
    if found:
        yield found


def _merged(paths: list[str]) -> str:
    """The path of the file that has the rows of these."""
    folder, _, first = paths[0].removesuffix(".parquet").rpartition("/")
    last = paths[-1].removesuffix(".parquet").rpartition("/")[2]
    return f"{folder}/{first.partition('..')[0]}..{last.rpartition('..')[2]}.parquet"


def _write(system: Any, files: list[Any], path: str) -> None:
    schema = _schema(system, files[0].path)
    with written(system, path) as stream, writer(stream, schema) as parquet:
        for rows in _gathered(system, files):
            parquet.write_table(rows, row_group_size=ROWS)


def _gathered(system: Any, files: list[Any]) -> Iterator[Any]:
    """The rows of the files in order, in tables that are worth a row group."""
    groups = row_groups(system, files)
    for found in _portions(groups, lambda rows: (rows.num_rows, rows.nbytes), (ROWS, _GATHERED)):
        yield pa.concat_tables(found).combine_chunks()


def row_groups(system: Any, files: Sequence[Any], columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the row groups of files, with all or some columns. Raises CaptureError if one is damaged."""
    for each in files:
        with damage(each.path), system.open_input_file(each.path) as stream:
            parquet = pq.ParquetFile(stream)
            for number in range(parquet.num_row_groups):
                yield parquet.read_row_group(number, columns=columns, use_threads=False)


def _schema(system: Any, path: str) -> Any:
    with damage(path), system.open_input_file(path) as stream:
        return pq.read_schema(stream)


@contextmanager
def damage(path: str) -> Iterator[None]:
    """Raise CaptureError if a file is damaged."""
    try:
        yield
    except (ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the system failed
            raise
        raise CaptureError(f"{path}: {reason(error)}") from error
