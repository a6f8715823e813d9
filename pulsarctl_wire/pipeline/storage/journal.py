"""Replaces files of a table by others, so that readers find each row once, even if this is killed.

progress/merge   which files are to replace which, and whether the new ones are complete
    not yet:     the new ones do not count, and whoever writes to the table next deletes them
    complete:    the old ones do not count, and are deleted
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pyarrow import fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import PARTITIONS
from pulsarctl_wire.pipeline.files.filesystems import write_file

_JOURNAL: Final = "progress/merge"
_LARGEST: Final = 1024 * 1024 * 1024  # bytes of a journal that are read
# Paths below the table's directory. Journals are not trusted, so a path must not lead out of it.
_PATH: Final = re.compile(r"(?!(.*/)?\.\.?/)[^/\0]+(/[^/\0]+)+\.parquet")


class Change(NamedTuple):
    """Files that replace others, by their paths below the table's directory; without new ones, a deletion.

    `partition_by`: the columns whose values have directories afterwards; None if they stay the same.
    """

    new: tuple[str, ...]
    old: tuple[str, ...]
    partition_by: tuple[str, ...] | None = None
    is_complete: bool = False

    @property
    def hidden(self) -> tuple[str, ...]:
        """The files that do not count."""
        return self.old if self.is_complete else self.new

    @property
    def may_empty(self) -> bool:
        """Whether a table may have no file afterwards."""
        tables, tables_before = ({path.partition("/")[0] for path in paths} for paths in (self.new, self.old))
        return self.partition_by is not None or not tables_before <= tables


def free_path(path: str, paths: set[str]) -> str:
    """Return `path` with as many `~` as make it differ from all `paths`; add it to these."""
    stem = path.removesuffix(".parquet").rstrip("~")
    while (new_path := f"{stem}.parquet") in paths:
        stem += "~"
    paths.add(new_path)
    return new_path


def read_change(system: Any, table: str) -> Change | None:
    """Read the change in a table's journal, or None. Raises CaptureError if the journal is damaged."""
    try:
        with system.open_input_file(f"{table}/{_JOURNAL}") as file:
            data = file.read(_LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with suppress(ValueError, TypeError, RecursionError):
        new, old, by, is_complete = json.loads(data)
        change = Change(tuple(new), tuple(old), None if by is None else tuple(by), is_complete is True)
        paths = {*change.new, *change.old}
        is_disjoint = len(paths) == len(change.new) + len(change.old)
        if is_disjoint and all(map(_PATH.fullmatch, paths)) and {*(by or ())} <= {*PARTITIONS}:
            return change
    raise CaptureError(f"{_JOURNAL} is damaged, or was not written by pwire")


@contextmanager
def replace_files(system: Any, table: str, change: Change, on_done: Callable[[], object]) -> Iterator[None]:
    """Replace files of a table by those that the block writes. Raises OSError.

    `on_done` is called before the old files are deleted.
    """
    _write(system, table, change)
    try:
        yield
        _write(system, table, change._replace(is_complete=True))
    except BaseException:
        settle(system, table)
        raise
    on_done()
    settle(system, table)


def settle(system: Any, table: str) -> None:
    """Complete or undo a change that was broken off. Raises OSError, CaptureError as `read_change` does."""
    change = read_change(system, table)
    if change is None:
        return
    folders = sorted({path.rpartition("/")[0] for path in change.hidden})
    new_paths = () if change.is_complete else change.new
    unfinished = [path for folder in folders for path in _unfinished(system, f"{table}/{folder}", new_paths)]
    for path in [*unfinished, *(f"{table}/{path}" for path in change.hidden)]:
        with suppress(FileNotFoundError):
            system.delete_file(path)
    _delete_empty(system, table, folders)
    system.delete_file(f"{table}/{_JOURNAL}")


def _unfinished(system: Any, folder: str, new_paths: Sequence[str]) -> list[str]:
    """Return what was written of new files in a directory before they got their names."""
    names = tuple(f"{path.rpartition('/')[2]}." for path in new_paths)
    if not names:
        return []
    selector = fs.FileSelector(folder, allow_not_found=True)
    return [info.path for info in system.get_file_info(selector) if info.base_name.startswith(names)]


def _delete_empty(system: Any, table: str, folders: Sequence[str]) -> None:
    """Delete those directories of partitions that are empty."""
    for folder in reversed(folders):
        while "/" in folder:  # the directory of all frames stays
            path = f"{table}/{folder}"
            if system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
                break
            with suppress(FileNotFoundError):
                system.delete_dir(path)
            folder = folder.rpartition("/")[0]


def _write(system: Any, table: str, change: Change) -> None:
    with write_file(system, f"{table}/{_JOURNAL}") as stream:
        stream.write(json.dumps(change).encode())
