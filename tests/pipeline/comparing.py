"""Rows of the pipeline, and those that one process has of the same files."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow.parquet as pq

from pulsarctl_wire.capture.series import arrange, read_all, spans_of
from pulsarctl_wire.capture.sources import Decoder, Reading, Source, open_source
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Totals
from pulsarctl_wire.pipeline.decoding.rows import decode_split, new_builder
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import Input, Split
from pulsarctl_wire.pipeline.run import Run
from pulsarctl_wire.pipeline.storage import finish, tasks
from pulsarctl_wire.pipeline.storage.tasks import Pool
from pulsarctl_wire.pipeline.upkeep import optimize
from pulsarctl_wire.table.schema import TABLES
from pulsarctl_wire.wire.session.exchanges import ExchangeState

Row = dict[str, Any]


class Now(Executor):
    """Runs what it is given at once, as another process would: on copies. After `most` tasks it fails."""

    def __init__(self, most: int = 10**9) -> None:
        self.left = most

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.left -= 1
        try:
            if self.left < 0:
                raise InterruptedError("the machine went away")
            future.set_result(_copy(task(*_copy(args), **kwargs)))
        except Exception as error:
            future.set_exception(error)
        return future


class Deleting(Now):
    """Deletes a file after so many tasks."""

    def __init__(self, path: str, tasks: int) -> None:
        super().__init__()
        self._path = path
        self._tasks = tasks

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(task, *args, **kwargs)
        self._tasks -= 1
        if not self._tasks:
            os.remove(self._path)
        return future


def _copy(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


class Outcome(NamedTuple):
    """What was found in some files."""

    tables: dict[str, list[Row]]
    packets: int
    problems: list[str]
    dropped: int = 0

    @property
    def frames(self) -> list[Row]:
        return self.tables["frames"]

    @property
    def gaps(self) -> list[Row]:
        return self.tables["gaps"]


def alone(paths: list[str], options: Options, *, by_time: bool = False) -> Outcome:
    """What one process finds in files that are read as they are given, or in the order of time."""
    return _alone(tuple(map(_version, paths)), options, by_time)


class Version(NamedTuple):
    """A file as it is now, whose content tests need to read only once."""

    path: str
    inode: int
    size: int
    modified_ns: int


def _version(path: str | Path) -> Version | str:
    """The path alone stands for what has no content."""
    try:
        about = os.stat(path)
    except OSError:
        return str(path)
    return Version(str(path), about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=16)
def _alone(versions: tuple[Version | str, ...], options: Options, by_time: bool) -> Outcome:
    paths = [version if isinstance(version, str) else version.path for version in versions]
    decoder = Decoder(
        Reading(options.max_frame_size, options.keylog or ()),
        join_chunks=False,
        places=True,
        new_state=ExchangeState,
        on_end=lambda ending: builder.add_ended_connection(ending),
    )
    decoder.reassembler.copies.keep = options.keep_duplicates
    builder = new_builder(options, decoder.sources)
    problems: list[str] = []

    @contextmanager
    def opened(given: int) -> Iterator[Source]:
        source = open_source(paths[given])
        with source.stream:
            yield source

    turns = arrange(paths, spans_of(paths) if by_time else [None] * len(paths)).turns
    for events in read_all(decoder, turns, opened, lambda error: problems.append(str(error))):
        builder.add(events)
    for events in decoder.finish():
        builder.add(events)
    tables = {name: ordered(rows.to_pylist()) for name, rows in builder.take().items()}
    return Outcome(tables, decoder.packets, problems, decoder.dropped_packets)


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(
        rows, key=lambda row: (row["file"], row["packet_offset"], row.get("stream_offset"), repr(row))
    )


def stored(out: Path, kind: str) -> list[Row]:
    """The rows of a table's directory."""
    paths = sorted((out / kind).rglob("[0-9e]*.parquet"))
    return ordered([row for path in paths for row in rows_in(path)])


def rows_in(path: str | Path) -> list[Row]:
    """The rows of a file, without what the names of directories say of them."""
    version = _version(path)
    assert isinstance(version, Version)
    return _rows_in(version)


@lru_cache(maxsize=128)
def _rows_in(version: Version) -> list[Row]:
    rows: list[Row] = pq.read_table(version.path, partitioning=None).to_pylist()
    return rows


def run(
    inputs: list[Input] | list[str],
    out: Path,
    options: Options,
    executor: Executor | None = None,
    *,
    mirror: bool = False,
    rebuild: bool = False,
    min_merged: int = 10**9,
) -> Totals:
    """A run that merges small files only if there are so many."""
    found = [each if isinstance(each, Input) else find_inputs([each])[0] for each in inputs]
    with mock.patch.object(optimize, "MIN_MERGED", min_merged):
        made = Run(found, str(out), options=options, mirror=mirror, rebuild=rebuild)
        return made.run(Pool(executor or Now()))


def together(paths: list[str], out: Path, options: Options) -> Outcome:
    """What the pipeline stores."""
    totals = run(paths, out, options)
    return _outcome({name: stored(out, name) for name in TABLES}, totals)


def _outcome(tables: dict[str, list[Row]], totals: Totals) -> Outcome:
    counts = {"frames": totals.frames, "gaps": totals.gaps, "connections": totals.connections}
    assert counts == {name: len(tables[name]) for name in counts}
    problems = [f"{name}: {what}" for name, what, _ in totals.problems]
    return Outcome(tables, totals.packets, problems, totals.dropped)


class _InMemory:
    """Stands for a Parquet file: those take longer than all else in a small capture."""

    written: dict[str, list[Row]]

    def __init__(self, system: Any, path: str, schema: Any, most: int = 0) -> None:
        self.rows = 0
        self._path = path
        self._found: list[Row] = []

    def write(self, batch: Any) -> None:
        self._found += batch.to_pylist()
        self.rows += batch.num_rows

    def close(self) -> int:
        self.written[self._path] = self._found
        return 0

    def discard(self) -> None:
        pass


@contextmanager
def in_memory() -> Iterator[dict[str, list[Row]]]:
    """Keeps the rows of finished splits, by the paths of the files that would have them."""
    written: dict[str, list[Row]] = {}
    with mock.patch.object(finish, "_ParquetFile", type("Kept", (_InMemory,), {"written": written})):
        yield written


@contextmanager
def decoding() -> Iterator[list[str]]:
    """Collects the names of the splits that are decoded in this process."""
    names: list[str] = []

    def decode(split: Split, settings: Settings) -> Decoded:
        names.append(split.name)
        return decode_split(split, settings)

    with mock.patch.object(tasks, "decode_split", decode):
        yield names


def together_in_memory(paths: list[str], out: Path, options: Options) -> tuple[Outcome, Totals]:
    """What the pipeline would store, and its totals."""
    with in_memory() as written:
        totals = run(paths, out, options)
    tables = {
        name: ordered([row for path, rows in written.items() if f"/{name}/" in path for row in rows])
        for name in TABLES
    }
    return _outcome(tables, totals), totals


def first_difference(expected: Outcome, found: Outcome) -> str:
    """What differs first, for people; empty if nothing does."""
    out = io.StringIO()
    for about in Outcome._fields[1:]:
        if getattr(expected, about) != getattr(found, about):
            return f"{about}: {getattr(expected, about)} alone, {getattr(found, about)} together"
    for name, one in expected.tables.items():
        other = found.tables[name]
        if one == other:
            continue
        out.write(f"{len(one)} {name} alone, {len(other)} together\n")
        missing, more = [row for row in one if row not in other], [row for row in other if row not in one]
        if len(missing) == len(more):
            for row, twin in zip(missing, more, strict=True):
                differing = {key: (row[key], twin[key]) for key in row if row[key] != twin[key]}
                what = row.get("command", row.get("kind"))
                out.write(f"{what} {row['file']}:{row['packet_offset']}: {differing}\n")
                break
        else:
            out.write(f"only alone: {missing[:1]}\nonly together: {more[:1]}\n")
        return out.getvalue()
    return ""
