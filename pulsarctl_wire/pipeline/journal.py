"""Replaces several files of a table by one, so that readers find each row once whenever this is killed.

progress/merge   which file is to replace which, and whether it is complete
    not yet:     the new one does not count, and whoever writes to the table next deletes it
    complete:    the old ones do not count, and are deleted
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from pyarrow import fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.output import written

_JOURNAL: Final = "progress/merge"
_LARGEST: Final = 64 * 1024 * 1024
_PATH: Final = re.compile(r"(?!(.*/)?\.\.?/)[^/\0]+(/[^/\0]+)+\.parquet")


class Merge(NamedTuple):
    """A file that replaces others, by their paths below the table's directory."""

    new: str
    old: tuple[str, ...]
    is_complete: bool = False

    @property
    def hidden(self) -> tuple[str, ...]:
        """The files that do not count."""
        return self.old if self.is_complete else (self.new,)


def going_on(system: Any, table: str) -> Merge | None:
    """The merge that a table's journal has, or None. Raises CaptureError if the journal is damaged."""
    try:
        with system.open_input_file(f"{table}/{_JOURNAL}") as file:
            data = file.read(_LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with suppress(ValueError, TypeError, RecursionError):
        new, old, is_complete = json.loads(data)
        found = Merge(new, tuple(old), is_complete is True)
        if all(_PATH.fullmatch(path) for path in (new, *old)) and new not in old:
            return found
    raise CaptureError(f"{_JOURNAL} is damaged, or was not written by pwire")


@contextmanager
def merging(
    system: Any, table: str, new: str, old: tuple[str, ...], replaced: Callable[[], object]
) -> Iterator[None]:
    """The block writes the file `new` of a table. Then it replaces the files `old`. Raises OSError.

    `replaced` is called before those are deleted.
    """
    merge = Merge(new, old)
    _write(system, table, merge)
    try:
        yield
        _write(system, table, merge._replace(is_complete=True))
    except BaseException:
        settle(system, table)
        raise
    replaced()
    settle(system, table)


def settle(system: Any, table: str) -> None:
    """Complete or undo a merge that was broken off. Raises OSError, or CaptureError as `going_on` does."""
    merge = going_on(system, table)
    if merge is None:
        return
    folder, _, name = merge.new.rpartition("/")
    selector = fs.FileSelector(f"{table}/{folder}", allow_not_found=True)
    unfinished = [
        each.path for each in system.get_file_info(selector) if each.base_name.startswith(f"{name}.")
    ]
    for path in [*unfinished, *(f"{table}/{path}" for path in merge.hidden)]:
        with suppress(FileNotFoundError):
            system.delete_file(path)
    system.delete_file(f"{table}/{_JOURNAL}")


def _write(system: Any, table: str, merge: Merge) -> None:
    with written(system, f"{table}/{_JOURNAL}") as stream:
        stream.write(json.dumps(merge).encode())
