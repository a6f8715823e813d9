"""Manages the directory of a frames table, and saves how far the work on it is.

frames/ gaps/ …  a Parquet file for each split that has rows, or one in each partition that it has rows of;
                 `end` has the rows that remain after all inputs; without rows if there are no other files
                 (optimize.py merges them); `_delta_log`, if others are to read them as tables of Delta Lake
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
from pulsarctl_wire.pipeline import delta, saved
from pulsarctl_wire.pipeline.continuing import begun, continued, lost
from pulsarctl_wire.pipeline.decode import Settings
from pulsarctl_wire.pipeline.finish import write_empty
from pulsarctl_wire.pipeline.inputs import absolute, filesystem
from pulsarctl_wire.pipeline.journal import going_on, settle
from pulsarctl_wire.pipeline.output import written
from pulsarctl_wire.pipeline.partitions import partitioned
from pulsarctl_wire.pipeline.progress import Begun, Options, Progress
from pulsarctl_wire.pipeline.splits import Input, reason
from pulsarctl_wire.pipeline.tasks import DRAFTS
from pulsarctl_wire.table import TABLES, VERSION

_STATES: Final = ("before-last", "all")
_CHECKPOINT: Final = "checkpoint"
_BEGUN: Final = "begun"
_MANIFEST: Final = "manifest.json"


class Store:
    """The directory or URI `out`. Raises CaptureError if it has something else, OSError if I/O fails.

    A `format` of "delta" gives it logs of Delta Lake, "parquet" deletes them; without one they stay if there
    are some. Raises SettingsError if they need a package that is not installed.
    """

    def __init__(self, out: str, format: str | None = None) -> None:
        if format == "delta":
            delta.library()
        self._format = format
        self.out = absolute(out.rstrip("/"))
        self.drafts = f"{self.out}/progress"
        """The directory of the drafts."""
        self.checkpoint = f"{self.drafts}/{_CHECKPOINT}"
        """Where Spark keeps its checkpoint of a table that follows a directory."""
        self.system, self.path = filesystem(self.out)
        """The pyarrow filesystem of the directory, and its path there."""

    def resume(
        self, inputs: list[Input], options: Options, *, mirror: bool = False
    ) -> tuple[Progress | None, Settings]:
        """The furthest saved progress that goes on with `inputs`, and the settings of its drafts.

        Its inputs are those begun before, whether they are gone or not, and then the new ones; with `mirror`,
        `inputs`. Deletes the files of later splits, but not what they were decoded to. If there is no
        progress, all files of the table are deleted. Raises CaptureError if that would lose rows of inputs
        that are gone, without `mirror`.
        """
        with self._said():
            if self._follows():
                raise CaptureError("the table follows a directory; go on with --follow, end with --finish")
            states = self._states()
            fitting = {
                name: together
                for name, each in states.items()
                if each.version == VERSION
                and each.options == options
                and (together := _together(each, inputs, mirror)) is not None
            }
            last = max(fitting, key=lambda name: states[name].next, default="")
            found = states.get(last)
            if states and not mirror:
                _refuse_losses(max(states.values(), key=_next), found, inputs)
            kept = _STATES[: _STATES.index(last) + 1] if found else ()
            first = found.next if found else ""
            if found is not None:
                found.inputs = fitting[last]
                _leave_gone(found, inputs)
            settings = options.settings(self.drafts)
            before = self._begun()
            if before is not None:
                settings = settings._replace(stand_in=before.settings.stand_in)
            fits = before == Begun(VERSION, settings)

            def is_unwanted(name: str) -> bool:
                if name.endswith(DRAFTS):
                    return name < first or not fits
                return name.endswith((".unfinished", ".stitched")) or (
                    name >= first and name not in (*kept, _BEGUN)
                )

            self._prepare(options, is_unwanted)
            if not fits:
                self._write(f"progress/{_BEGUN}", saved.dump(Begun(VERSION, settings)))
            return found, settings

    def follow(self, options: Options) -> None:
        """Prepare to follow a directory, or to continue following it."""
        with self._said():
            states = self._states()
            if not self._follows() and states:
                raise CaptureError("the table there follows no directory; name another one")
            before = max(states.values(), key=_next).options.partition_by if states else options.partition_by
            if before != options.partition_by:
                by = f"partitioned by {','.join(before)}" if before else "not partitioned"
                raise CaptureError(f"the table is {by}: go on with the same --partition-by")
            self._prepare(
                options,
                lambda name: name.endswith((".unfinished", ".stitched", *DRAFTS)) or name.startswith("end"),
            )

    def discard(self, first: str, options: Options) -> None:
        """Delete the files of the split `first`, and of all later ones."""
        self.commit(options, lambda name: name >= first)
        with self._said():
            for table in TABLES:
                self._delete(table, lambda name: name >= first)

    def merge(self) -> list[Progress]:
        """Prepare to merge files; return all saved progress in order. Raises CaptureError without any."""
        with self._said():
            states = sorted(self._states().values(), key=_next)
            if not states:
                raise CaptureError("holds no table that pwire analyze can go on with")
            self._commit(states[-1].options, lambda name: False)
            settle(self.system, self.path)
            return states

    def files(self) -> list[Any]:
        """The information of pyarrow on the Parquet files, directory by directory, in the order of splits."""
        with self._said():
            found = [each for table in TABLES for each in self._rows(table)]
            return sorted(found, key=lambda each: (each.path.rpartition("/")[0], each.base_name))

    def below(self, path: str) -> str:
        """A path of the filesystem, from this directory on."""
        return path.removeprefix(f"{self.path}/")

    def commit(
        self, options: Options, unwanted: Callable[[str], bool] = lambda name: False, *, is_new: bool = True
    ) -> None:
        """Have the logs of Delta Lake, if there are some, name the files whose names are not `unwanted`.

        This is done before these are deleted. Without `is_new` the rows of new files were in others before.
        """
        with self._said():
            self._commit(options, unwanted, is_new)

    def _commit(self, options: Options, unwanted: Callable[[str], bool], is_new: bool = True) -> None:
        folders = {table: f"{self.out}/{table}" for table in TABLES}
        if self._format == "parquet" or not (self._format or any(map(delta.has_log, folders.values()))):
            return
        merge = going_on(self.system, self.path)
        hidden = {f"{self.path}/{path}" for path in merge.hidden} if merge else ()
        for table, folder in folders.items():
            rows = self._rows(table)
            files = [each for each in rows if each.path not in hidden and not unwanted(each.base_name)]
            schema, by = partitioned(TABLES[table], options.partition_by)
            delta.commit(folder, schema, by, files, is_new=is_new)

    def _rows(self, table: str) -> list[Any]:
        """The files with rows of a table."""
        return [each for each in self._list(table) if _is_rows(each)]

    def _prepare(self, options: Options, unwanted: Callable[[str], bool]) -> None:
        """Create the directories, complete a merge, delete the manifest and files with `unwanted` names."""
        with suppress(FileNotFoundError):
            self.system.delete_file(f"{self.path}/{_MANIFEST}")
        for name in ("progress", *TABLES):
            self.system.create_dir(f"{self.path}/{name}")
        if self._format == "parquet":
            for table in TABLES:
                delta.delete_log(f"{self.out}/{table}")
        self._commit(options, unwanted)
        settle(self.system, self.path)
        self._clean(unwanted)

    def _states(self) -> dict[str, Progress]:
        """What is saved, by its name."""
        return {name: each for name in _STATES if (each := self._load(name)) is not None}

    def _clean(self, unwanted: Callable[[str], bool]) -> None:
        """Delete the files whose names are `unwanted`."""
        for directory in (*TABLES, "progress"):
            self._delete(directory, unwanted)

    def _delete(self, directory: str, unwanted: Callable[[str], bool]) -> None:
        for each in self._list(directory):
            if each.is_file and unwanted(each.base_name):
                self.system.delete_file(each.path)

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

    def rows(self, table: str) -> list[tuple[int | None, str]]:
        """The Parquet files with rows of one of `TABLES`, in order: the input's number, and the path.

        The rows that remain after all inputs have no number. Raises OSError, and CaptureError if files were
        merged.
        """
        with self._said():
            found = sorted(self._rows(table), key=lambda each: each.base_name)
            if any(".." in each.base_name for each in found):
                raise CaptureError("files of the table were merged: a stream cannot tell what is new in it")
        return [
            (
                None if each.base_name.startswith("end") else int(each.base_name.partition("-")[0]),
                f"{self.out}/{self.below(each.path)}",
            )
            for each in found
        ]

    def _follows(self) -> bool:
        """Whether the table follows a directory. Raises CaptureError if `out` has files but no table."""
        names = {each.base_name for each in self._list("")}
        if names and "progress" not in names:
            raise CaptureError("is not empty and holds no frames table; name another directory")
        return any(each.base_name == _CHECKPOINT for each in self._list("progress"))

    def save(self, progress: Progress, *, is_before_last: bool = False) -> None:
        """Save the progress; with `is_before_last` beside it, as that before the last input or batch."""
        self._write(f"progress/{_STATES[not is_before_last]}", saved.dump(progress))
        if not is_before_last:
            self.commit(progress.options)

    def finish(self, progress: Progress) -> None:
        """Write the manifest of the complete table, whose files may have been merged.

        A table without rows gets a file without rows.
        """
        options = progress.options
        for table, schema in TABLES.items():
            if not self._rows(table) and (table != "messages" or options.messages is not None):
                write_empty(f"{self.out}/{table}", schema, options.partition_by)
        progress.totals.size = sum(each.size for each in self.files())
        about = {
            "version": progress.version,
            "options": asdict(options),
            "files": progress.file,
            "inputs": [each._asdict() for each in progress.inputs],
            "totals": asdict(progress.totals),
        }
        self._clean(lambda name: name.endswith(DRAFTS))  # of an earlier run, on other files
        self._write(_MANIFEST, json.dumps(about, indent=1).encode())
        self.commit(options)

    def _load(self, name: str) -> Progress | None:
        data = self._read(name)
        return None if data is None else saved.load_progress(data, f"progress/{name}")

    def _begun(self) -> Begun | None:
        data = self._read(_BEGUN)
        return None if data is None else saved.load(data, Begun, f"progress/{_BEGUN}")

    def _read(self, name: str) -> bytes | None:
        """A file of progress/, or None."""
        try:
            with self.system.open_input_file(f"{self.path}/progress/{name}") as file:
                data: bytes = file.read(min(file.size(), saved.LARGEST + 1))
        except FileNotFoundError:
            return None
        return data

    def _list(self, directory: str) -> list[Any]:
        """What is in a directory, and for a table below it, but for what is hidden there."""
        folder = f"{self.path}/{directory}".rstrip("/")
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=directory in TABLES)
        found: list[Any] = self.system.get_file_info(selector)
        if directory not in TABLES:
            return found
        return [each for each in found if not re.search(r"/[_.]", each.path.removeprefix(folder))]

    def _write(self, name: str, data: bytes) -> None:
        with written(self.system, f"{self.path}/{name}") as stream:
            stream.write(data)

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{self.out}: {error}") from error
        except (ArrowException, OSError) as error:
            raise OSError(f"{self.out}: {reason(error)}") from error


def _is_rows(each: Any) -> bool:
    """Whether a file has rows of splits."""
    return each.is_file and re.fullmatch(r"(\d+-\d+|end).*\.parquet", each.base_name) is not None


def _next(found: Progress) -> str:
    return found.next


def _together(found: Progress, inputs: list[Input], mirror: bool) -> list[Input] | None:
    """All inputs of a table that goes on from `found`; None if it cannot."""
    together = continued(found, inputs)
    return together if together == inputs or not mirror else None


def _refuse_losses(furthest: Progress, found: Progress | None, inputs: list[Input]) -> None:
    """Raise CaptureError if to go on from `found` deletes rows of inputs that are gone."""
    gone = lost(furthest, len(begun(found)) if found else 0, inputs)
    if gone is not None:
        why = "the table cannot go on with these inputs and options without it"
        raise CaptureError(f"{gone.name} is gone or has changed, and {why}; --mirror deletes its rows")


def _leave_gone(found: Progress, inputs: list[Input]) -> None:
    """Go on with the next input if the one that is done in part is gone."""
    if found.part and (left := begun(found)[-1]).path not in {each.path for each in inputs}:
        if not found.unreadable:
            at = found.end[0] if found.end else 0
            found.totals.problems.append((left.name, f"is gone, and was not read from byte {at} on", True))
        found.file, found.part, found.end, found.unreadable = found.file + 1, 0, None, False
