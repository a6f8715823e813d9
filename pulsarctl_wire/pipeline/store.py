"""The directory of a frames table, and how far the work on it came.

frames/ gaps/   a Parquet file for each split that has rows; `end` has what was open when the inputs ended
progress/       all that is needed to go on; drafts while they are needed
manifest.json   the inputs that are in the table, and what was wrong with them
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Final

from pyarrow import ArrowException, fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline import saved
from pulsarctl_wire.pipeline.decode import KINDS
from pulsarctl_wire.pipeline.progress import Options, Progress
from pulsarctl_wire.pipeline.splits import Input, Split, absolute, filesystem, reason
from pulsarctl_wire.table import VERSION

_STATES: Final = ("before-last", "all")
_CHECKPOINT: Final = "checkpoint"
_MANIFEST: Final = "manifest.json"


class Store:
    """The directory or URI `out`. CaptureError if it holds something else, or cannot be used."""

    def __init__(self, out: str) -> None:
        self.out = absolute(out.rstrip("/"))
        self.drafts = f"{self.out}/progress"
        """Where drafts go."""
        self.checkpoint = f"{self.drafts}/{_CHECKPOINT}"
        """Where Spark keeps its checkpoint of a table that follows a directory."""
        self._system, self._path = filesystem(self.out)

    def resume(self, inputs: list[Input], options: Options) -> Progress | None:
        """The furthest progress that was saved and that `inputs` agree with; what came later is deleted.

        None if there is none: then the directory is empty.
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
            for kind in (*KINDS, "progress"):
                self._system.create_dir(f"{self._path}/{kind}")
                for each in self._list(kind):
                    if each.base_name >= first and each.base_name not in kept:
                        self._system.delete_file(each.path)
            with suppress(FileNotFoundError):
                self._system.delete_file(f"{self._path}/{_MANIFEST}")
            return found

    def follow(self) -> None:
        """Make ready to follow a directory, or to go on with that."""
        with self._said():
            states = [self._load(name) for name in _STATES]
            if not self._follows() and any(states):
                raise CaptureError("the table there follows no directory; name another one")
            for kind in (*KINDS, "progress"):
                self._system.create_dir(f"{self._path}/{kind}")
                for each in self._list(kind):
                    if each.base_name.endswith((".unfinished", ".arrow")) or each.base_name == "end.parquet":
                        self._system.delete_file(each.path)

    def saved(self) -> Progress | None:
        """The progress that was saved last. CaptureError if it cannot be read."""
        with self._said():
            return self._load(_STATES[1])

    def _follows(self) -> bool:
        """Whether the table follows a directory. CaptureError if there is something, but no table."""
        names = {each.base_name for each in self._list("")}
        if names and "progress" not in names:
            raise CaptureError("is not empty and holds no frames table; name another directory")
        return any(each.base_name == _CHECKPOINT for each in self._list("progress"))

    def save(self, progress: Progress, *, is_last_begun: bool = False) -> None:
        """Save how far the work came: all done, or the last input just about to begin."""
        self._write(f"progress/{_STATES[not is_last_begun]}", saved.dump(progress))

    def finish(self, progress: Progress) -> None:
        """Say that the table is whole."""
        about = {
            "version": progress.version,
            "options": asdict(progress.options),
            "inputs": [each._asdict() for each in progress.inputs],
            "totals": asdict(progress.totals),
        }
        self._write(_MANIFEST, json.dumps(about, indent=1).encode())

    def _load(self, name: str) -> Progress | None:
        try:
            with self._system.open_input_file(f"{self._path}/progress/{name}") as file:
                data = file.read(min(file.size(), saved.LARGEST + 1))
        except FileNotFoundError:
            return None
        return saved.load_progress(data, f"progress/{name}")

    def _list(self, kind: str) -> list[Any]:
        selector = fs.FileSelector(f"{self._path}/{kind}".rstrip("/"), allow_not_found=True)
        found: list[Any] = self._system.get_file_info(selector)
        return found

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        with self._system.open_output_stream(f"{path}.unfinished") as stream:
            stream.write(data)
        self._system.move(f"{path}.unfinished", path)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{self.out}: {error}") from error
        except (ArrowException, OSError) as error:
            raise OSError(f"{self.out}: {reason(error)}") from error


def _fits(found: Progress, inputs: list[Input], options: Options) -> bool:
    """Whether `found` is how far the work on these inputs came."""
    begun = found.inputs[: found.file + (found.part > 0)]
    return found.version == VERSION and found.options == options and begun == inputs[: len(begun)]
