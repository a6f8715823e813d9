"""Manages the directory of a frames table, and saves how far the work on it is.

frames/ gaps/ …  a Parquet file for each split that has rows, or one in each partition that it has rows of
                 (optimize.py merges small ones); `end` has the rows that remain after all inputs, or none,
                 if there is no other file; `_delta_log`, `_iceberg`, if others are to read such tables
progress/       everything needed to continue; what splits were decoded to, until they are finished;
                which files count, and the table's next generation while it is made (generations.py)
manifest.json   of a complete table: version, options, inputs (none if followed), their number, totals
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, Final

from pyarrow import ArrowException, fs

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Begun, Progress
from pulsarctl_wire.pipeline.files.filesystems import filesystem, write_file
from pulsarctl_wire.pipeline.files.paths import absolute, reason
from pulsarctl_wire.pipeline.files.splits import Input, inputs_of
from pulsarctl_wire.pipeline.storage import generations, saved
from pulsarctl_wire.pipeline.storage.finish import write_empty
from pulsarctl_wire.pipeline.storage.journal import Change, read_change, replace_files, settle
from pulsarctl_wire.pipeline.storage.logs import Logs
from pulsarctl_wire.pipeline.storage.partitions import add_partitions
from pulsarctl_wire.pipeline.storage.resuming import (
    Rebuild,
    Resumed,
    describe_difference,
    find_furthest,
    get_furthest_saved,
    get_split_name,
    list_begun,
    list_notes,
    read_recorded,
    refuse_losses,
    report_losses,
    skip_gone_inputs,
)
from pulsarctl_wire.pipeline.storage.tasks import DECODED_SUFFIXES
from pulsarctl_wire.table.schema import TABLES, VERSION, with_detail

_STATES: Final = ("before-last", "all")  # progress before the last input or batch, and the latest
_CHECKPOINT: Final = "checkpoint"
_BEGUN: Final = "begun"
_MANIFEST: Final = "manifest.json"
_REDONE: Final = "redone"  # the latest progress, while a run that goes on from an earlier one lasts
_TEMPORARY: Final = (".unfinished", ".stitched")


class Store:
    """The directory or URI `out`. Methods raise CaptureError if it has something else, OSError if I/O fails.

    `format` is that of `Logs`. `number` is the generation of its files, by default the current one.
    """

    def __init__(self, out: str, format: str | None = None, number: int | None = None) -> None:
        self._number = number
        self.out = absolute(out.rstrip("/"))
        self._logs = Logs(self.out, format)
        self.drafts = f"{self.out}/progress"
        """The directory of the drafts."""
        self.checkpoint = f"{self.drafts}/{_CHECKPOINT}"
        """Where Spark keeps its checkpoint of a table that follows a directory."""
        self.system, self.path = filesystem(self.out)
        """The pyarrow filesystem of the directory, and its path there."""

    @property
    def number(self) -> int:
        """The generation of its files."""
        if self._number is None:
            self._number = generations.current(self.system, self.path).number
        return self._number

    def resume(
        self, inputs: list[Input], options: Options, *, mirror: bool = False, rebuild: bool = False
    ) -> Resumed:
        """Prepare to go on from the furthest saved progress that `inputs` continue, or to rebuild the table.

        The inputs of a run are those begun before, even if they are gone, and then the new ones; with
        `mirror`, `inputs`. Deletes the files of later splits, but not what they were decoded to. Rebuilds a
        table that cannot go on, or, with `rebuild`, any. Raises MissingLibrary as `Logs` does, and
        CaptureError if rows of inputs that are gone would be lost, without `mirror` or `rebuild`.
        """
        with self._prefix_errors():
            self._logs.require_libraries()
            if self._follows():
                raise CaptureError("the table follows a directory; go on with --follow, end with --finish")
            self._place_rebuild()
            states, damage = self._readable_states()
            progress = None if rebuild else find_furthest(states, inputs, options, mirror)
            if progress is None and (states or damage):
                return self._resume_rebuild(states, damage, inputs, options, mirror, rebuild)
            if progress is not None and not mirror:
                count = len(list_begun(progress))
                for earlier in self._list_earlier(states, options):
                    refuse_losses(earlier, count, inputs, "the table cannot go on without it")
            if progress is not None:
                with suppress(CaptureError):
                    report_losses(progress, self._load(_REDONE), inputs)
            notes = list_notes(progress, damage, has_deleted_rebuild=generations.delete_rebuild(self.out))
            settings = self._go_on(progress, states, inputs, options)
            return Resumed(progress, settings, None, tuple(notes))

    def _resume_rebuild(
        self,
        states: dict[str, Progress],
        damage: list[str],
        inputs: list[Input],
        options: Options,
        mirror: bool,
        rebuild: bool,
    ) -> Resumed:
        """Prepare to make the table again beside itself, or to go on with that."""
        next_store = self.next_generation()
        begun_before, _ = next_store._readable_states()
        progress = find_furthest(begun_before, inputs, options, mirror)
        reason = describe_difference(get_furthest_saved(states), options, rebuild) if states else damage[0]
        with suppress(CaptureError):
            if redone := self._load(_REDONE):
                states = states | {_REDONE: redone}
        earlier = self._list_earlier(states, options)
        if not (mirror or rebuild):
            if not earlier:
                raise CaptureError(f"{reason}; --rebuild makes the table again, of the inputs that are there")
            finished = progress.inputs[: progress.file] if progress else []
            for state in earlier:
                refuse_losses(state, 0, [*finished, *inputs], reason)
        settings = next_store._go_on(progress, begun_before, inputs, options)
        remaining = progress.inputs[progress.file :] if progress else inputs
        cost = Rebuild(reason, len(remaining), sum(input_.size for input_ in remaining))
        notes = ("it goes on with a rebuild that was broken off",) if progress else ()
        return Resumed(progress, settings, cost, notes)

    def _list_earlier(self, states: dict[str, Progress], options: Options) -> list[Progress]:
        """Return all that says what the table was made of: what is saved, and what the manifest has."""
        return [*states.values(), *filter(None, [read_recorded(self._read(_MANIFEST, ""), options)])]

    def _go_on(
        self, progress: Progress | None, states: dict[str, Progress], inputs: list[Input], options: Options
    ) -> Settings:
        """Delete files of splits after a progress (None: all), and unneeded drafts; return their settings."""
        first = progress.next if progress else ""
        kept_names = {_BEGUN, _REDONE, generations.FILE}
        kept_names |= {name for name, state in states.items() if state.next <= first}
        if progress is not None and not kept_names >= {*states}:
            self.system.move(f"{self.path}/progress/{_STATES[1]}", f"{self.path}/progress/{_REDONE}")
        if progress is not None:
            skip_gone_inputs(progress, inputs)
        settings = Settings(self.drafts, options)
        if (begun := self._load_begun()) is not None:
            settings = settings._replace(stand_in=begun.settings.stand_in)
        has_same_settings = begun == Begun(VERSION, settings)

        def is_unwanted(name: str) -> bool:
            if name.endswith(DECODED_SUFFIXES):
                return name < first or not has_same_settings
            return name.endswith(_TEMPORARY) or (name >= first and name not in kept_names)

        self._prepare(options, is_unwanted)
        if not has_same_settings:
            self._write(f"progress/{_BEGUN}", saved.dump(Begun(VERSION, settings)))
        return settings

    def next_generation(self) -> "Store":
        """Return the store of the table's next generation."""
        return Store(f"{self.out}/{generations.REBUILD}", number=self.number + 1)

    def replace(self, rebuilt: "Store") -> None:
        """Have a complete rebuild take the place of the table's files. Raises OSError."""
        with self._prefix_errors():
            self._settle()
            generations.set_current(
                self.system, self.path, generations.Generation(rebuilt.number, is_placed=False)
            )
            self._place_rebuild()

    def _place_rebuild(self) -> None:
        """Put the files of a rebuild that counts into the table's directories; delete the earlier ones.

        If the table has a log, the files of the generation before stay for those who read by an older log.
        """
        number, is_placed = generations.current(self.system, self.path)
        if is_placed:
            return
        has_log = bool(self._logs.kinds())
        for table in TABLES:
            source, target = f"{self.path}/{generations.REBUILD}/{table}", f"{self.path}/{table}"
            generations.place_files(self.system, source, target, number, may_exchange=not has_log)
        for name in (*(f"progress/{name}" for name in (_BEGUN, *_STATES)), _MANIFEST):
            with suppress(FileNotFoundError):
                self.system.move(f"{self.path}/{generations.REBUILD}/{name}", f"{self.path}/{name}")
        self._number = number
        progress = self._load(_STATES[1])
        assert progress is not None  # a rebuild is complete before it counts
        self._drop_logs()
        self._commit(progress.options, lambda name: False)
        self._clean(lambda name: name == _REDONE or name.endswith((*DECODED_SUFFIXES, *_TEMPORARY)))
        self._delete_generations(number - 1 if has_log else number)
        generations.delete_rebuild(self.out)
        generations.set_current(self.system, self.path, generations.Generation(number))

    def _delete_generations(self, first: int) -> None:
        """Delete the files of all generations before `first`."""
        for table in TABLES:
            generations.delete_before(self.system, f"{self.path}/{table}", first)

    def follow(self, options: Options) -> None:
        """Prepare to follow a directory, or to continue following it."""
        with self._prefix_errors():
            states, damage = self._readable_states()
            if damage and not states:
                raise CaptureError(f"{damage[0]}; delete the directory, or name another one by --out")
            if not self._follows() and states:
                raise CaptureError("the table there follows no directory; name another one")
            current = get_furthest_saved(states).options.partition_by if states else options.partition_by
            if current != options.partition_by:
                layout = f"partitioned by {','.join(current)}" if current else "not partitioned"
                raise CaptureError(f"the table is {layout}: go on with the same --partition-by")
            temporary = (*_TEMPORARY, *DECODED_SUFFIXES)
            self._prepare(options, lambda name: name.endswith(temporary) or name.startswith("end"))

    def discard(self, first: str, options: Options) -> None:
        """Delete the files of the split `first`, and of all later ones."""
        self.commit(options, lambda name: name >= first)
        with self._prefix_errors():
            for table in TABLES:
                self._delete(table, lambda name: name >= first)

    def prepare_change(self) -> list[Progress]:
        """Complete or undo a broken-off change; return all saved progress in order. Raises CaptureError."""
        with self._prefix_errors():
            states = sorted((state for name in _STATES if (state := self._load(name))), key=get_split_name)
            if not states:
                raise CaptureError("holds no table that pwire analyze can go on with")
            self._commit(states[-1].options, lambda name: False)
            self._settle()
            if self._is_complete():  # an earlier change may have been killed before it did this
                self._fill(states[-1].options)
            return states

    @contextmanager
    def replace_files(self, change: Change, options: Options, *, is_new: bool = False) -> Iterator[None]:
        """Replace old files, at once, by the new ones of a change, which the block writes.

        `options` are those of the table afterwards. Without `is_new`, its rows stay.
        """

        def commit_files() -> None:
            self._keep_partitions()
            self.commit(options, is_new=is_new)

        with replace_files(self.system, self.path, change, commit_files):
            yield
        if change.may_empty:
            self._fill(options)
            self.commit(options, is_new=is_new)

    def outline(self) -> saved.Outline | None:
        """Load the inputs and options of the table that is there; None if none can be read."""
        with self._prefix_errors():
            for name in reversed(_STATES):
                with suppress(CaptureError):  # `resume` says what is wrong
                    if (data := self._read(name)) is not None:
                        outline = saved.load_outline(data, f"progress/{name}")
                        return saved.Outline(outline.inputs, self._repartition(outline.options))
            return None

    def files(self) -> list[Any]:
        """List what pyarrow tells of the Parquet files, directory by directory, in the order of splits."""
        with self._prefix_errors():
            files = [file for table in TABLES for file in self._list_table_files(table)]
            return sorted(files, key=lambda file: (file.path.rpartition("/")[0], file.base_name))

    def get_relative_path(self, path: str) -> str:
        """Return a path of the filesystem, relative to this directory."""
        return path.removeprefix(f"{self.path}/")

    def commit(
        self, options: Options, unwanted: Callable[[str], bool] = lambda name: False, *, is_new: bool = True
    ) -> None:
        """Have the logs of other formats, if there are some, name the files whose names are not `unwanted`.

        Call this before those are deleted. Without `is_new`, rows of new files were in other files before.
        """
        with self._prefix_errors():
            self._commit(options, unwanted, is_new)

    def _commit(self, options: Options, unwanted: Callable[[str], bool], is_new: bool = True) -> None:
        logs = self._logs.kinds()
        if not logs:
            return
        change = read_change(self.system, self.path)
        hidden = {f"{self.path}/{path}" for path in change.hidden} if change else ()
        for table in TABLES:
            rows = self._list_table_files(table)
            files = [file for file in rows if file.path not in hidden and not unwanted(file.base_name)]
            schema, by = add_partitions(TABLES[table], options.partition_by)
            for log in logs:
                log.commit(f"{self.out}/{table}", schema, by, files, is_new=is_new)

    def _drop_logs(self) -> None:
        """Delete unwanted logs, and the files that only they name."""
        if self._logs.is_unwanted:
            self._logs.delete()
            self._delete_generations(self.number)

    def _list_table_files(self, table: str) -> list[Any]:
        """Return the Parquet files of a table, of the current generation."""
        return [file for file in self._list(table) if _is_table_file(file)]

    def _prepare(self, options: Options, unwanted: Callable[[str], bool]) -> None:
        """Create the directories, complete a change, delete the manifest and files with `unwanted` names."""
        with suppress(FileNotFoundError):
            self.system.delete_file(f"{self.path}/{_MANIFEST}")
        for name in ("progress", *TABLES):
            self.system.create_dir(f"{self.path}/{name}")
        self._drop_logs()
        self._commit(options, unwanted)
        self._settle()
        self._clean(unwanted)

    def _readable_states(self) -> tuple[dict[str, Progress], list[str]]:
        """Load what is saved, by its name; return also what is wrong with the rest."""
        states, damage = {}, []
        for name in _STATES:
            try:
                progress = self._load(name)
            except CaptureError as error:  # noqa: PERF203 (two files)
                damage.append(str(error).partition(";")[0])
            else:
                if progress is not None:
                    states[name] = progress
        if not states and not damage and self._is_complete():
            damage.append("the saved progress of the table is missing")
        return states, damage

    def _is_complete(self) -> bool:
        return any(file.base_name == _MANIFEST for file in self._list(""))

    def _settle(self) -> None:
        """Complete or undo a change that was broken off."""
        self._keep_partitions()
        settle(self.system, self.path)

    def _keep_partitions(self) -> None:
        """Save the columns of partitions after a change that is complete, before its journal is deleted."""
        if self._partition_by() is not None:
            for name, state in self._readable_states()[0].items():
                self._write(f"progress/{name}", saved.dump(state))

    def _partition_by(self) -> tuple[str, ...] | None:
        """Return the columns of partitions after a change that is complete and not settled yet, or None."""
        change = read_change(self.system, self.path)
        return change.partition_by if change and change.is_complete else None

    def _clean(self, unwanted: Callable[[str], bool]) -> None:
        """Delete the files whose names are `unwanted`."""
        for directory in (*TABLES, "progress"):
            self._delete(directory, unwanted)

    def _delete(self, directory: str, unwanted: Callable[[str], bool]) -> None:
        for file in self._list(directory):
            if file.is_file and unwanted(file.base_name):
                self.system.delete_file(file.path)

    def load_saved(self) -> Progress | None:
        """Return the progress saved last, or None. Raises CaptureError if it is damaged."""
        with self._prefix_errors():
            return self._load(_STATES[1])

    def followed(self) -> tuple[int, bool]:
        """Return how many files of a directory the table has so far, and whether it is complete.

        Raises CaptureError if the table follows no directory.
        """
        with self._prefix_errors():
            if not self._follows():
                raise CaptureError("no table that follows a directory: pwire analyze --follow makes one")
            is_complete = self._is_complete()  # before the progress
            progress = self._load(_STATES[1])
            return (0 if progress is None else progress.file), is_complete

    def list_table_files(self, table: str) -> list[tuple[range, str]]:
        """List the Parquet files of one of `TABLES`, in order: the inputs that their rows may be of, by
        number (`END` for those that remain after all inputs), and the path. Raises OSError.
        """
        with self._prefix_errors():
            while True:
                change, files = read_change(self.system, self.path), self._list_table_files(table)
                if read_change(self.system, self.path) == change:  # or files were merged meanwhile
                    break
        hidden = {f"{self.path}/{path}" for path in change.hidden} if change else ()
        return [
            (inputs_of(file.base_name), f"{self.out}/{self.get_relative_path(file.path)}")
            for file in sorted(files, key=lambda file: file.base_name)
            if file.path not in hidden
        ]

    def _follows(self) -> bool:
        """Return whether the table follows a directory. Raises CaptureError for files without a table."""
        names = {file.base_name for file in self._list("")}
        if names and "progress" not in names:
            raise CaptureError("is not empty and holds no frames table; name another directory")
        return any(file.base_name == _CHECKPOINT for file in self._list("progress"))

    def save(self, progress: Progress, *, is_before_last: bool = False) -> None:
        """Save the progress; if it `is_before_last`, in the file for that before the last input or batch."""
        self._write(f"progress/{_STATES[not is_before_last]}", saved.dump(progress))
        if not is_before_last:
            self.commit(progress.options)

    def _fill(self, options: Options) -> None:
        """Give tables that have no file one without rows, so that others can read them."""
        for table, schema in TABLES.items():
            if not self._list_table_files(table) and (table != "messages" or options.messages is not None):
                self._delete(table, lambda name: name.endswith(_TEMPORARY))  # of a run that was killed here
                columns = with_detail(schema, options.detail)
                write_empty(f"{self.out}/{table}", columns, options.partition_by, self.number)

    def finish(self, progress: Progress) -> None:
        """Write the manifest of the complete table, whose files may have been merged.

        A table without rows gets a file without rows.
        """
        options = progress.options
        self._fill(options)
        progress.totals.size = sum(file.size for file in self.files())
        manifest = {
            "version": progress.version,
            "options": asdict(options),
            "files": progress.file,
            "inputs": [input_._asdict() for input_ in progress.inputs],
            "totals": asdict(progress.totals),
        }
        self._clean(lambda name: name == _REDONE or name.endswith(DECODED_SUFFIXES))  # of earlier runs
        self._write(_MANIFEST, json.dumps(manifest).encode())
        self.commit(options)

    def _load(self, name: str) -> Progress | None:
        data = self._read(name)
        if data is None:
            return None
        progress = saved.load_progress(data, f"progress/{name}")
        progress.options = self._repartition(progress.options)
        return progress

    def _repartition(self, options: Options) -> Options:
        columns = self._partition_by()
        return options if columns is None else replace(options, partition_by=columns)

    def _load_begun(self) -> Begun | None:
        data = self._read(_BEGUN)
        return None if data is None else saved.load(data, Begun, f"progress/{_BEGUN}")

    def _read(self, name: str, directory: str = "progress/") -> bytes | None:
        """Return a file of a directory, or None."""
        try:
            with self.system.open_input_file(f"{self.path}/{directory}{name}") as file:
                data: bytes = file.read(min(file.size(), saved.LARGEST + 1))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return data

    def _list(self, directory: str) -> list[Any]:
        """List what is in a directory; below one of `TABLES`, all of this generation that is not hidden."""
        folder = f"{self.path}/{directory}".rstrip("/")
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=directory in TABLES)
        infos: list[Any] = self.system.get_file_info(selector)
        if directory not in TABLES:
            return infos
        return [
            info
            for info in infos
            if not re.search(r"/[_.]", info.path.removeprefix(folder))
            and generations.number_of(info.path) == self.number
        ]

    def _write(self, name: str, data: bytes) -> None:
        with write_file(self.system, f"{self.path}/{name}") as stream:
            stream.write(data)

    @contextmanager
    def _prefix_errors(self) -> Iterator[None]:
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{self.out}: {error}") from error
        except (ArrowException, OSError) as error:
            raise OSError(f"{self.out}: {reason(error)}") from error


def _is_table_file(info: Any) -> bool:
    """Return whether a file is one of a table's Parquet files, by its name; `end` may have no rows."""
    return info.is_file and re.fullmatch(r"(\d+-\d+|end).*\.parquet", info.base_name) is not None
