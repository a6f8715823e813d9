"""Makes the rows of a split for the frames table: its draft, and the rows of its edges."""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pulsarctl_wire.capture.tls.counts import TlsCounts
from pulsarctl_wire.pipeline.decoding.decode import decode
from pulsarctl_wire.pipeline.decoding.edges import Decoded, Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Progress
from pulsarctl_wire.pipeline.decoding.stitch import Fixup, Reread, Stitcher
from pulsarctl_wire.pipeline.files.filesystems import filesystem, write_file
from pulsarctl_wire.pipeline.files.splits import Input, Split
from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.table.columns import number_array, number_values, replace_column
from pulsarctl_wire.table.schema import TABLES, VERSION
from pulsarctl_wire.wire.frame import Event
from pulsarctl_wire.wire.ranges import Count, one_of
from pulsarctl_wire.wire.session.ending import EndedConnection


def new_progress(settings: Settings, inputs: Iterable[Input] = ()) -> Progress:
    """Return the progress of a new table."""
    return Progress(list(inputs), settings.options, version=VERSION, stitcher=TableStitcher(settings))


def decode_split(split: Split, settings: Settings) -> Decoded:
    """Decode a split and write its draft to `settings.drafts`. Raises OSError if it cannot be written."""
    delete_draft(settings.drafts, split.name)  # an attempt that began elsewhere may have left one
    system, paths = draft_of(settings.drafts, split.name)
    with ExitStack() as files:
        rows = _Rows(
            new_builder(settings.options, split.sources),
            lambda table: files.enter_context(write_file(system, paths[table])),
        )
        try:
            return decode(split, settings, rows.add)
        finally:
            rows.close()


def draft_of(directory: str, name: str) -> tuple[Any, dict[str, str]]:
    """Return the draft of the split `name`: its filesystem, and the paths of its Arrow streams, by table.

    A stream without rows does not exist.
    """
    system, inside = filesystem(directory)
    return system, {table: f"{inside}/{name}.{table}.arrow" for table in TABLES}


def delete_draft(directory: str, name: str) -> None:
    """Delete the draft of a split, if it has one."""
    system, paths = draft_of(directory, name)
    for path in paths.values():
        with suppress(FileNotFoundError):
            system.delete_file(path)


def new_builder(options: Options, sources: Sequence[str] | Mapping[int, str]) -> TableBuilder:
    """Return a new builder of rows."""
    return TableBuilder(
        sources,
        payload=options.payload,
        cluster=options.cluster,
        messages=options.messages,
        host=options.host,
        detail=options.detail,
    )


class _Rows:
    """Writes an Arrow stream for each table that has rows; `open_file` returns the file for it."""

    def __init__(self, builder: TableBuilder, open_file: Callable[[str], Any]) -> None:
        self._builder = builder
        self._open_file = open_file
        self._streams: dict[str, Any] = {}

    def add(self, events: list[Event]) -> None:
        """Add the rows of `events`."""
        for rows in self._builder.add_and_take(events):
            self._write(rows)

    def end(self, ending: EndedConnection) -> None:
        """Add the row of a connection that has ended."""
        for rows in self._builder.end_and_take(ending):
            self._write(rows)

    def _write(self, rows: dict[str, Any]) -> None:
        for table, batch in rows.items():
            if batch.num_rows:
                if table not in self._streams:
                    self._streams[table] = _new_stream(self._open_file(table), batch.schema)
                self._streams[table].write_batch(batch)

    def close(self) -> None:
        """Write the remaining rows, and close the streams."""
        self._write(self._builder.take())
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()


def _new_stream(file: Any, schema: Any) -> Any:
    # Threads would take longer than they save: batches are small.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    return pa.ipc.new_stream(file, schema, options=options)


class Stitched(NamedTuple):
    """What is needed to finish a split: fixups by connection number in the draft, and the rows of its edges.

    `rows` has an Arrow stream for each table with rows. Draft rows without a fixup are wrong.
    """

    fixups: dict[Count, Fixup]
    rows: dict[Annotated[str, one_of(TABLES)], bytes]
    read_again: Count


class TableStitcher(Stitcher):
    """Stitches splits, and makes the rows of their edges, and of all connections."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, self._record_end)
        self.tls = TlsCounts()
        """The TLS connections among those that have ended."""
        self._options = settings.options
        self._rows = self._new_rows()

    def _record_end(self, ending: EndedConnection) -> None:
        self.tls.add(ending)
        self._rows.end(ending)

    def add(self, decoded: Decoded, reread: Reread) -> Stitched:
        """Stitch the next split."""
        self._rows = self._new_rows()
        fixups, first, numbers, read_again = self.stitch(decoded, reread, self._rows.add)
        return Stitched(fixups, self._rows.number_connections(first, numbers), read_again)

    def close(self) -> Stitched:
        """Return the remaining rows, at the end of the capture."""
        self._rows = self._new_rows()
        _, first, numbers, _ = self.end(self._rows.add)
        return Stitched({}, self._rows.number_connections(first, numbers), 0)

    def _new_rows(self) -> "RowsInMemory":
        return RowsInMemory(new_builder(self._options, self.names))


class RowsInMemory(_Rows):
    """Rows that are kept in memory: those of edges until their connections are numbered."""

    def __init__(self, builder: TableBuilder) -> None:
        self._files: defaultdict[str, io.BytesIO] = defaultdict(io.BytesIO)
        super().__init__(builder, self._files.__getitem__)

    @property
    def size(self) -> int:
        """Bytes of the rows, without those that the builder still has."""
        return sum(file.tell() for file in self._files.values())

    def number_connections(self, first: int = 0, numbers: Sequence[int] = ()) -> dict[str, bytes]:
        """Take the rows as Arrow streams, by table; connections from `first` on get these `numbers`."""
        self.close()
        final_numbers = np.array(numbers, np.int64)
        tables = [*self._files]
        return {table: _renumber(self._files.pop(table).getvalue(), final_numbers, first) for table in tables}


def _renumber(data: bytes, numbers: Any, first: int) -> bytes:
    """Renumber each connection n from `first` on to `numbers[n - first]`, in the Arrow stream `data`."""
    if not len(numbers):
        return data
    file = io.BytesIO()
    batches = pa.ipc.open_stream(io.BytesIO(data))
    with _new_stream(file, batches.schema) as stream:
        for batch in batches:
            connections = number_values(batch.column("connection")).copy()
            is_new = connections >= first
            connections[is_new] = numbers[connections[is_new] - first]
            column = number_array(connections, None, pa.int64())
            stream.write_batch(replace_column(batch, "connection", column))
    return file.getvalue()
