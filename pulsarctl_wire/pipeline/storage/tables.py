"""Finds tables in files: those of `pwire table` and `pwire analyze`, and rewritten copies of them.

A table is recognized by its columns. Some may be missing, others may have been added. It may have been
rewritten by Spark or other tools, under other names, or in directories by the values of a column
(`command=SEND/`). All files are checked before an engine reads them.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ArrowException, fs

from pulsarctl_wire.capture.sources import holds_packets
from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.files.filesystems import filesystem
from pulsarctl_wire.pipeline.files.paths import is_pattern, reason, scheme_of
from pulsarctl_wire.pipeline.files.splits import open_input
from pulsarctl_wire.pipeline.storage.findings import Stored, find_stored
from pulsarctl_wire.pipeline.storage.generations import REBUILD, Generation, current, number_of
from pulsarctl_wire.pipeline.storage.journal import Change, read_change
from pulsarctl_wire.table.schema import DETAIL, READABLE, TABLES, VERSION, sibling_path


class Files(NamedTuple):
    """The Parquet files of a table: their paths or URIs.

    `base`: the directory below which directories are named by columns that files lack, or None. With
    `is_uniform` all files have the same columns. `lacks`: our columns that some of them do not have, and the
    frames, in words, if some were left out.
    """

    paths: list[str]
    base: str | None
    is_uniform: bool
    lacks: frozenset[str]


class Found(NamedTuple):
    """The files of frames and of the tables beside it, and how many connection numbers and rows they have.

    `findings`: those that were found while the table was made.
    """

    files: dict[str, Files]
    connections: int
    rows: int
    findings: Stored | None

    @property
    def lacks(self) -> set[str]:
        """What some or all files lack, as in `Files`: `error`, `metadata.uuid`, `gaps.size`, …"""
        return {
            name if table == "frames" else f"{table}.{name}"
            for table, files in self.files.items()
            for name in files.lacks
        }


_OPTIONAL: Final = {"payload"}  # only there on request, so a table does not lack it
_ENOUGH: Final = 0.5
"""The share of our columns that a table must have."""
_CONNECTION: Final = re.compile(r"(?:^|/)connection=(\d+)/")


def find(paths: Sequence[str]) -> list[Found]:
    """Find the tables at `paths`, which may be URIs: files of frames with gaps beside them, or directories.

    Raises `CaptureError` if there is no table, or one of another version.
    """
    return [_find(path.rstrip("/") or "/") for path in paths]


def is_table(path: str) -> bool:
    """Return whether a path or URI is to be read as a table; False if there are captures."""
    system, inside = filesystem(path)
    folder = _Folder(system, scheme_of(path, inside))
    try:
        kind = folder.kind(inside)
        if kind == fs.FileType.File:
            with open_input(path) as stream:
                return not holds_packets(stream)
        return bool(folder.files(inside)) if kind == fs.FileType.Directory else not is_pattern(inside)
    except (ArrowException, OSError) as error:
        raise CaptureError(f"{path}: {reason(error)}") from None


class Part(NamedTuple):
    """Files of a table, and how many connection numbers the tables before it have taken."""

    files: Files
    first_number: int


def parts_of(tables: Sequence[Found], name: str) -> Iterator[Part]:
    """Yield the files of the table `name` of each of `tables`, which are read as one table.

    Each table numbers its connections from 0; those of later ones continue the numbers.
    """
    first_number = 0
    for table in tables:
        yield Part(table.files[name], first_number)
        first_number += table.connections


# -- inspecting files


class _Folder:
    """A filesystem, and the prefix that makes a path in it a URI. A directory is listed once."""

    def __init__(self, system: Any, scheme: str) -> None:
        self.system = system
        self.scheme = scheme
        self._listed: dict[str, list[str]] = {}

    def uri(self, path: str) -> str:
        """Return the path or URI of what is at a path."""
        return self.scheme + quote(path, safe="/=:@") if self.scheme else path

    def kind(self, path: str) -> Any:
        return self.system.get_file_info(path).type

    def files(self, path: str) -> list[str]:
        """List the Parquet files that count below a directory, if it is one.

        Like Spark, skip names that begin with an underscore or a dot.
        """
        if path not in self._listed:
            self._listed[path] = self._list(path)
        return self._listed[path]

    def _list(self, path: str) -> list[str]:
        if self.kind(path) != fs.FileType.Directory:
            return []
        name = path.rpartition("/")[2]  # the directory may be that of a table, or `frames` in one
        parent = path.removesuffix(name)
        tables = [f"{path}/", *([parent] if name in TABLES else [])]
        states, files_before = self._states(tables), None
        while True:  # files may be replaced meanwhile
            files = self._inside(path)
            is_moving = any(not generation.is_placed for _, generation in states.values())
            if is_moving and name in TABLES:
                files += self._inside(f"{parent}{REBUILD}/{name}")
            states_now = self._states(tables)
            if states_now == states and (files == files_before or not is_moving):
                break
            states, files_before = states_now, files
        return sorted(file for file in files if all(_counts(file, *table) for table in states.items()))

    def _inside(self, folder: str) -> list[str]:
        """Return the Parquet files below a directory, but for hidden ones."""
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=True)
        return [
            info.path
            for info in self.system.get_file_info(selector)
            if info.type == fs.FileType.File
            and info.path.endswith(".parquet")
            and not re.search(r"/[_.]", info.path.removeprefix(folder))
        ]

    def _states(self, tables: Sequence[str]) -> dict[str, tuple[Change | None, Generation]]:
        """Return what says which files count in each of `tables`, which are empty or end in a slash."""
        paths = {table: table.rstrip("/") or "." for table in tables}
        return {
            table: (read_change(self.system, path), current(self.system, path))
            for table, path in paths.items()
        }


def _counts(path: str, table: str, state: tuple[Change | None, Generation]) -> bool:
    """Return whether a file counts in a table, or is outside it."""
    if not path.startswith(table):
        return True
    change, generation = state
    if path.startswith(f"{table}{REBUILD}/") and generation.is_placed:
        return False
    is_hidden = change is not None and path.removeprefix(table) in change.hidden
    return not is_hidden and generation.number in (1, number_of(path))  # generation 1 may have any name


def _find(path: str) -> Found:
    system, inside = filesystem(path)
    folder = _Folder(system, scheme_of(path, inside))
    try:
        listings = {name: _beside(folder, inside, name) for name in TABLES if name != "frames"}
        listings["frames"] = _frames(folder, inside, path)
        contents = {
            name: [_inspect(folder, file, name) for file in files] for name, (files, _) in listings.items()
        }
    except (ArrowException, OSError) as error:
        raise CaptureError(f"{path}: {reason(error)}") from None
    files = {name: _files(folder, listings[name], contents[name]) for name in TABLES}
    last = max((content.last for of_table in contents.values() for content in of_table), default=-1)
    rows = {name: sum(content.rows for content in of_table) for name, of_table in contents.items()}
    return Found(files, last + 1, sum(rows.values()), find_stored(sibling_path(path, "findings"), rows))


def _files(folder: _Folder, listing: tuple[list[str], str | None], contents: list["_Content"]) -> Files:
    paths, base = listing
    is_base_needed = base is not None and any(
        not {*_partitions(path.removeprefix(base))} <= {*content.names}
        for path, content in zip(paths, contents, strict=True)
    )
    return Files(
        [folder.uri(path) for path in paths],
        folder.uri(base) if base and is_base_needed else None,
        len({content.names for content in contents}) < 2,
        frozenset().union(*(content.lacks for content in contents)),
    )


def _frames(folder: _Folder, inside: str, path: str) -> tuple[list[str], str | None]:
    """Return the files of frames, and the directory below which directory names are column values.

    There are none if a capture has no frame, but gaps or connections.
    """
    kind = folder.kind(inside)
    if kind == fs.FileType.File:
        return [inside], None
    if kind == fs.FileType.NotFound:
        raise CaptureError(f"{path}: no such file")
    base = f"{inside}/frames" if folder.files(f"{inside}/frames") else inside
    files = [file for file in folder.files(base) if not _is_other(file.removeprefix(inside))]
    if not files and not any(folder.files(f"{inside}/{name}") for name in TABLES):
        raise CaptureError(f"{path}: no frames table in it (frames/*.parquet): pwire analyze makes one")
    return files, base


def _beside(folder: _Folder, inside: str, name: str) -> tuple[list[str], str | None]:
    """Find the files of another table, in the directory or next to it, and the base, as in `_frames`."""
    sibling = sibling_path(inside, name)
    if folder.kind(sibling) == fs.FileType.File:
        return [sibling], None
    for base in (f"{inside}/{name}", inside, sibling):
        files = folder.files(base)
        if base == inside:
            files = [file for file in files if _is_other(file.removeprefix(inside), name)]
        if files:
            return files, base
    return [], None


_OTHERS: Final = "|".join(["findings", *(name for name in TABLES if name != "frames")])


def _is_other(path: str, names: str = _OTHERS) -> bool:
    """Return whether a file is of another table than frames; `path` is that below the directory."""
    return re.search(rf"^/({names})/|\.({names})\.parquet(/|$)", path) is not None


class _Content(NamedTuple):
    """The contents of a file: its columns, its highest connection number (-1: none), its number of rows.

    `lacks` is as in `Files`.
    """

    names: tuple[str, ...]
    last: int
    rows: int
    lacks: set[str]


def _inspect(folder: _Folder, path: str, table: str) -> _Content:
    """Inspect a file. Raises CaptureError if it is not of this table."""
    schema = TABLES[table]
    uri = folder.uri(path)
    try:
        with folder.system.open_input_file(path) as stream:
            footer = pq.read_metadata(stream)
            columns = footer.schema.to_arrow_schema()
            last = _last_connection(footer, stream) if "connection" in columns.names else -1
    except pa.ArrowInvalid:
        with open_input(uri) as stream:
            if holds_packets(stream):
                way_out = f"pwire table {uri} --out {uri}.parquet makes a table of it"
                raise CaptureError(f"{uri} is a capture, not a table: {way_out}") from None
        raise CaptureError(f"{uri} is not a {table} table: pwire table SOURCE... --out makes one") from None
    version = (columns.metadata or {}).get(b"pwire.table", b"").decode(errors="replace")
    if version and version not in READABLE:
        raise CaptureError(f"{uri} is a table of version {version}, not {VERSION}: make it again")
    names = {*columns.names, *_partitions(path)}
    if len(names & set(schema.names)) < _ENOUGH * len(schema):
        raise CaptureError(f"{uri} is not a {table} table: pwire table SOURCE... --out makes one")
    if "connection" not in columns.names and (match := _CONNECTION.search(path)):
        last = int(match[1])
    lacks = _columns(schema) - _columns(columns) - names - _OPTIONAL
    detail = (columns.metadata or {}).get(DETAIL)
    if detail is not None and table == "frames":
        lacks.add(f"the frames that --detail {detail.decode(errors='replace')} leaves out")
    return _Content(tuple(columns.names), last, footer.num_rows, lacks)


def _partitions(path: str) -> list[str]:
    """Return the columns whose values are in the directory names of a path."""
    return [unquote(name) for name in re.findall(r"/([^/=]+)=[^/]*(?=/)", path)]


def _columns(schema: Any) -> set[str]:
    """Return the names of columns; a column in a struct is named like `metadata.uuid`."""
    return {
        name
        for field in schema
        for name in (
            [f"{field.name}.{part.name}" for part in field.type]
            if pa.types.is_struct(field.type)
            else [field.name]
        )
    }


def _last_connection(footer: Any, stream: Any) -> int:
    """Return the highest connection number of a file, from its statistics or by reading the column."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    statistics = [column.statistics for column in columns if column.path_in_schema == "connection"]
    if all(column is not None and column.has_min_max for column in statistics):
        return max((column.max for column in statistics), default=-1)
    numbers = pq.read_table(stream, columns=["connection"]).column("connection").to_pylist()
    return max((number for number in numbers if number is not None), default=-1)
