"""Finds the captures that a table names, where they are now: moved, renamed by rotation, or compressed."""

import json
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from typing import Any, Final

from pyarrow import ArrowException, fs

from pulsarctl_wire.capture.series import PACKED, series_of
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.pipeline.files.inputs import list_inputs, span
from pulsarctl_wire.pipeline.files.paths import is_uri
from pulsarctl_wire.pipeline.files.splits import Input

_ENDINGS: Final = ("", ".gz", ".zst", ".zstd")
_MAX_TRIED: Final = 8  # how many captures of a series may be tried


class Captures:
    """The captures of some tables (paths or URIs).

    They are only searched for in `places`, if there are any: files, directories, patterns. Raises
    CaptureError if a place has no files.
    """

    def __init__(self, tables: Sequence[str], places: Sequence[str]) -> None:
        self._tables = tables
        self._files = list_inputs(places, is_wanted=lambda file: True) if places else None

    def find_named(self, name: str) -> Iterator[str]:
        """Yield paths or URIs of files with this name, whether they are compressed or not."""
        if self._files is not None:
            namesakes = [
                candidate.name for candidate in self._files if _base_stem(candidate.name) == _base_stem(name)
            ]
            yield from sorted(namesakes, key=lambda path: -_count_common_names(path, name))
            return
        for path in self._paths(name):
            stem = PACKED.sub("", path)
            for candidate in dict.fromkeys((path, *(stem + ending for ending in _ENDINGS))):
                try:
                    system, inside = filesystem(candidate)
                    is_there = system.get_file_info(inside).type != fs.FileType.NotFound
                except ValueError:  # a name that no file can have
                    break
                except (ArrowException, OSError, CaptureError):
                    yield path  # reading it shows why
                    break
                if is_there:
                    yield candidate

    def find_renamed(self, name: str, time_ns: int | None) -> Iterator[str]:
        """Yield paths or URIs of captures in the series of `name` with packets at that time, latest first."""
        if time_ns is None:
            return
        matches = []
        for file in self._beside(name) if self._files is None else self._files:
            if series_of(posixpath.basename(file.name)) == series_of(posixpath.basename(name)):
                times = span(file)
                if times and times.first <= time_ns and (times.last is None or times.last >= time_ns):
                    matches.append((times.first, file.name))
        yield from (path for _, path in sorted(matches, reverse=True)[:_MAX_TRIED])

    def _paths(self, name: str) -> list[str]:
        """Return where a capture may be: a relative name depends on where the table was made."""
        if is_uri(name) or posixpath.isabs(name):
            return [name]
        siblings = [posixpath.join(posixpath.dirname(table.rstrip("/")), name) for table in self._tables]
        return list(dict.fromkeys((*filter(None, [self._inputs.get(name)]), name, *siblings)))

    def _beside(self, name: str) -> list[Input]:
        """Return the files in the directories where a capture may be."""
        files: list[Input] = []
        for path in self._paths(name):
            with suppress(CaptureError):
                files += list_inputs([posixpath.dirname(path) or "."], is_wanted=lambda file: True)
        return list(dict.fromkeys(files))

    @cached_property
    def _inputs(self) -> dict[str, str]:
        """Name -> absolute path, by the manifests of tables of `pwire analyze`."""
        paths: dict[str, str] = {}
        for table in self._tables:
            system, path = filesystem(table)
            with suppress(ArrowException, OSError, ValueError, TypeError, KeyError):
                with system.open_input_file(posixpath.join(path, "manifest.json")) as stream:
                    inputs: Any = json.loads(stream.read())["inputs"]
                paths |= {str(input_["name"]): str(input_["path"]) for input_ in inputs if input_["path"]}
        return paths


def _base_stem(path: str) -> str:
    """Return the name of a file without its directory, as if it were not compressed."""
    return PACKED.sub("", posixpath.basename(path))


def _count_common_names(first: str, second: str) -> int:
    """Return how many names at the end of two paths are the same, as if the files were not compressed."""
    pairs = zip(*(PACKED.sub("", path).split("/")[::-1] for path in (first, second)), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
