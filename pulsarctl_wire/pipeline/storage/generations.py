"""Rebuilds a table beside itself; then the new generation of its files takes the place of the old one.

NAME.g2.parquet       a file of the second generation; those of the first one have no number
progress/generation   the generation whose files count, and whether they are all in place (this file
                      is missing in the first generation)
progress/rebuild/     the next generation: a table of its own, until it is complete and in place

One write of `progress/generation` makes our readers change from the old files to the new ones, whichever
of them are in place. Others see each directory change in one step, if the file system can exchange two.
"""

import ctypes
import json
import os
import re
from contextlib import suppress
from typing import Any, Final, NamedTuple

from pyarrow import fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.filesystems import delete_directory, has_directory, write_file

FILE: Final = "generation"
"""The file of the current generation, in the directory `progress`."""
REBUILD: Final = "progress/rebuild"
"""The directory of the next generation below that of the table."""
_NUMBER: Final = re.compile(r"\.g(\d{1,9})(?=[._~])")
_MAX_SIZE: Final = 4_096
_AT_CWD: Final = -100  # AT_FDCWD of Linux
_EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


class Generation(NamedTuple):
    """The number of the generation whose files count, and whether all of them are in place."""

    number: int = 1
    is_placed: bool = True


def current(system: Any, table: str) -> Generation:
    """Read the generation of a table. Raises OSError, and CaptureError if the file is damaged."""
    try:
        with system.open_input_file(f"{table}/progress/{FILE}") as file:
            data = file.read(_MAX_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return Generation()
    with suppress(ValueError, TypeError, RecursionError):
        number, is_placed = json.loads(data)
        if type(number) is int and 1 <= number < 10**9 and type(is_placed) is bool:
            return Generation(number, is_placed)
    raise CaptureError(f"progress/{FILE} is damaged, or was not written by pwire")


def set_current(system: Any, table: str, generation: Generation) -> None:
    """Write the generation of a table, in one step. Raises OSError."""
    with write_file(system, f"{table}/progress/{FILE}") as stream:
        stream.write(json.dumps(generation).encode())


def tag_name(name: str, number: int) -> str:
    """Return the name, without `.parquet`, of a split's file of this generation."""
    return name if number == 1 else f"{name}.g{number}"


def number_of(path: str) -> int:
    """Return the generation of a file."""
    match = _NUMBER.search(path.rpartition("/")[2])
    return int(match[1]) if match else 1


def place_files(system: Any, source: str, target: str, number: int, *, may_exchange: bool) -> None:
    """Move the files of generation `number` from below `source` to below `target`. Raises OSError.

    With `may_exchange` the two directories are exchanged in one step, if the file system can do that;
    otherwise one file moves after the other.
    """
    files = _list_generation(system, source, number)
    system.create_dir(target)
    has_some = bool(_list_generation(system, target, number))  # an attempt was broken off
    may_exchange = may_exchange and not has_some and isinstance(system, fs.LocalFileSystem)
    if files and may_exchange and _exchange(source, target):
        return
    for path in files:
        place = target + path.removeprefix(source)
        system.create_dir(place.rpartition("/")[0])
        system.move(path, place)


def delete_before(system: Any, folder: str, number: int) -> None:
    """Delete the files of generations before `number` in a directory, except hidden ones."""
    for path in _files(system, folder):
        if number_of(path) < number and not re.search(r"/[_.]", path.removeprefix(folder)):
            system.delete_file(path)


def delete_rebuild(table: str) -> bool:
    """Delete the next generation of the table at a path or URI; return whether there was one."""
    is_there = has_directory(f"{table}/{REBUILD}")
    delete_directory(f"{table}/{REBUILD}")
    return is_there


def _files(system: Any, folder: str) -> list[str]:
    selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
    return [info.path for info in system.get_file_info(selector) if info.is_file]


def _list_generation(system: Any, folder: str, number: int) -> list[str]:
    """Return the files in a directory that are of a generation."""
    return [path for path in _files(system, folder) if number_of(path) == number]


def _exchange(source: str, target: str) -> bool:
    """Exchange two directories in one step; return False if the system cannot do that."""
    paths = os.fsencode(source), os.fsencode(target)
    library = ctypes.CDLL(None, use_errno=True)
    with suppress(AttributeError):
        return bool(library.renameat2(_AT_CWD, paths[0], _AT_CWD, paths[1], _EXCHANGE) == 0)
    with suppress(AttributeError):
        return bool(library.renamex_np(*paths, _EXCHANGE) == 0)
    return False
