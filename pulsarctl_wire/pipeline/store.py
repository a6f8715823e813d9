"""Manages the directory of a frames table, and saves how far the work on it is.

frames/ gaps/ connections/
                a Parquet file for each split that has rows; `end` has the rows that remain after all inputs
progress/       everything needed to continue; what splits were decoded to, until they are finished
manifest.json   of a complete table: its version, options, number of files, inputs (none of a directory that
                was followed), and totals with the problems
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Final

from pyarrow import ArrowException, fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline import saved
from pulsarctl_wire.pipeline.decode import Settings
from pulsarctl_wire.pipeline.inputs import absolute, filesystem
from pulsarctl_wire.pipeline.output import written
from pulsarctl_wire.pipeline.progress import Begun, Options, Progress
from pulsarctl_wire.pipeline.splits import Input, Split, reason
from pulsarctl_wire.pipeline.tasks import DRAFTS
from pulsarctl_wire.table import TABLES, VERSION

_STATES: Final = ("before-last", "all")
_CHECKPOINT: Final = "checkpoint"
_BEGUN: Final = "begun"
_MANIFEST: Final = "manifest.json"
_ROWS: Final = re.compile(r"(\d+-\d+|end)\.parquet")


class Store:
    """The directory or URI `out`. Raises CaptureError if it has something else, OSError if I/O fails."""

    def __init__(self, out: str) -> None:
        self.out = absolute(out.rstrip("/"))
        self.drafts = f"{self.out}/progress"
        """The directory of the drafts."""
        self.checkpoint = f"{self.drafts}/{_CHECKPOINT}"
        """Where Spark keeps its checkpoint of a table that follows a directory."""
        self._system, self._path = filesystem(self.out)

    def resume(self, inputs: list[Input], options: Options) -> tuple[Progress | None, Settings]:
        """The furthest saved progress that fits `inputs` and `options`, and the settings of its drafts.

        Deletes the files of later splits, but not what they were decoded to. If there is no progress, all
        files of the table are deleted.
        """
        with self._said():
            if self._follows():
                raise CaptureError("the table follows a directory; go on with --follow, end with --finish")
            states = {name: each for name in _STATES if (each := self._load(name)) is not None}
            fitting = [name for name, each in states.items() if _fits(each, inputs, options)]
            last = max(fitting, key=lambda name: (states[name].file, states[name].part), default="")
            found = states.get(last)
            kept = _STATES[: _STATES.index(last) + 1] if found else ()
            first = Split(found.file, found.part, Input("", 0, 0)).name if found else ""
            settings = options.settings(self.drafts)
            begun = Begun(VERSION, settings)
            before = self._begun()
            if before is not None:
                begun = begun._replace(settings=begun.settings._replace(stand_in=before.settings.stand_in))
            fits = before == begun

            def is_unwanted(name: str) -> bool:
                if name.endswith(DRAFTS):
                    return name < first or not fits
                return name.endswith((".unfinished", ".stitched")) or (
                    name >= first and name not in (*kept, _BEGUN)
                )

            self._clean(is_unwanted)
            if not fits:
                self._write(f"progress/{_BEGUN}", saved.dump(begun))
            return found, begun.settings

    def follow(self) -> None:
        """Prepare to follow a directory, or to continue following it."""
        with self._said():
            states = [self._load(name) for name in _STATES]
            if not self._follows() and any(states):
                raise CaptureError("the table there follows no directory; name another one")
            self._clean(
                lambda name: name.endswith((".unfinished", ".stitched", *DRAFTS)) or name == "end.parquet"
            )

    def _clean(self, unwanted: Callable[[str], bool]) -> None:
        """Create the directories, and delete files in them whose names are `unwanted`, and the manifest."""
        with suppress(FileNotFoundError):
            self._system.delete_file(f"{self._path}/{_MANIFEST}")
        for kind in (*TABLES, "progress"):
            self._system.create_dir(f"{self._path}/{kind}")
            for each in self._list(kind):
                if unwanted(each.base_name):
                    self._system.delete_file(each.path)

    def saved(self) -> Progress | None:
        """The progress saved last, or None. Raises CaptureError if it is damaged."""
        with self._said():
            return self._load(_STATES[1])

    def followed(self) -> tuple[int, bool]:
        """How many files of a directory the table has so far, and whether it is complete.

        Raises CaptureError if the table follows no directory.
        """
        with self._said():
            if not self._follows():
                raise CaptureError("no table that follows a directory: pwire analyze --follow makes one")
            is_complete = any(each.base_name == _MANIFEST for each in self._list(""))  # before the progress
            progress = self._load(_STATES[1])
            return (0 if progress is None else progress.file), is_complete

    def rows(self, kind: str) -> list[tuple[int | None, str]]:
        """The Parquet files that the table has of frames or gaps, in order: the input's number, and the path.

        The rows that remain after all inputs have no number. Raises OSError.
        """
        with self._said():
            names = sorted(each.base_name for each in self._list(kind))
        found = [name for name in names if _ROWS.fullmatch(name)]
        return [
            (None if name.startswith("end") else int(name.partition("-")[0]), f"{self.out}/{kind}/{name}")
            for name in found
        ]

    def _follows(self) -> bool:
        """Whether the table follows a directory. Raises CaptureError if `out` has files but no table."""
        names = {each.base_name for each in self._list("")}
        if names and "progress" not in names:
            raise CaptureError("is not empty and holds no frames table; name another directory")
        return any(each.base_name == _CHECKPOINT for each in self._list("progress"))

    def save(self, progress: Progress, *, is_last_begun: bool = False) -> None:
        """Save the progress; `is_last_begun`: in a file of its own, because the last input begins next."""
        self._write(f"progress/{_STATES[not is_last_begun]}", saved.dump(progress))

    def finish(self, progress: Progress) -> None:
        """Write the manifest of the complete table."""
        about = {
            "version": progress.version,
            "options": asdict(progress.options),
            "files": progress.file,
            "inputs": [each._asdict() for each in progress.inputs],
            "totals": asdict(progress.totals),
        }
        self._clean(lambda name: name.endswith(DRAFTS))  # of an earlier run, on other files
        self._write(_MANIFEST, json.dumps(about, indent=1).encode())

    def _load(self, name: str) -> Progress | None:
        data = self._read(name)
        return None if data is None else saved.load_progress(data, f"progress/{name}")

    def _begun(self) -> Begun | None:
        data = self._read(_BEGUN)
        return None if data is None else saved.load(data, Begun, f"progress/{_BEGUN}")

    def _read(self, name: str) -> bytes | None:
        """A file of progress/, or None."""
        try:
            with self._system.open_input_file(f"{self._path}/progress/{name}") as file:
                data: bytes = file.read(min(file.size(), saved.LARGEST + 1))
        except FileNotFoundError:
            return None
        return data

    def _list(self, kind: str) -> list[Any]:
        selector = fs.FileSelector(f"{self._path}/{kind}".rstrip("/"), allow_not_found=True)
        found: list[Any] = self._system.get_file_info(selector)
        return found

    def _write(self, name: str, data: bytes) -> None:
        with written(self._system, f"{self._path}/{name}") as stream:
            stream.write(data)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{self.out}: {error}") from error
        except (ArrowException, OSError) as error:
            raise OSError(f"{self.out}: {reason(error)}") from error


def _fits(found: Progress, inputs: list[Input], options: Options) -> bool:
    """Whether the work on these inputs can continue from `found`."""
    count = found.file + (found.part > 0)
    is_same = len(found.inputs) >= count and found.inputs[:count] == inputs[:count]
    return found.version == VERSION and found.options == options and is_same
