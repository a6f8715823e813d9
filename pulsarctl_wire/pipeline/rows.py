"""Makes the rows of a split for the frames table: its draft, and the rows of its edges."""

import io
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pulsarctl_wire.pipeline.decode import Decoded, Settings, decode
from pulsarctl_wire.pipeline.inputs import filesystem
from pulsarctl_wire.pipeline.output import written
from pulsarctl_wire.pipeline.progress import Options, Progress
from pulsarctl_wire.pipeline.splits import Input, Split
from pulsarctl_wire.pipeline.stitch import Fixup, Reread, Stitcher
from pulsarctl_wire.table import VERSION, TableBuilder
from pulsarctl_wire.table.columns import number_array, number_values, replaced
from pulsarctl_wire.wire.frame import Event

KINDS: Final = ("frames", "gaps")


def new_progress(options: Options, settings: Settings, inputs: Iterable[Input] = ()) -> Progress:
    """The progress of a new table."""
    return Progress(list(inputs), options, version=VERSION, stitcher=TableStitcher(settings))


def decode_split(split: Split, settings: Settings) -> Decoded:
    """Decode a split and write its draft to `settings.drafts`. Raises OSError if it cannot be written."""
    names = {side.file: side.name for side in split.input.sides} or {split.file: split.input.name}
    delete_draft(settings.drafts, split.name)  # an attempt that began elsewhere may have left one
    system, paths = draft_of(settings.drafts, split.name)
    with ExitStack() as files:
        rows = _Rows(
            TableBuilder(names, payload=settings.payload, cluster=settings.cluster),
            lambda which: files.enter_context(written(system, paths[which])),
        )
        try:
            return decode(split, settings, rows.add)
        finally:
            rows.close()


def draft_of(directory: str, name: str) -> tuple[Any, list[str]]:
    """The draft of the split `name`: its filesystem, and the paths of its Arrow streams of frames and gaps.

    A stream without rows does not exist.
    """
    system, inside = filesystem(directory)
    return system, [f"{inside}/{name}.{kind}.arrow" for kind in KINDS]


def delete_draft(directory: str, name: str) -> None:
    """Delete the draft of a split, if it has one."""
    system, paths = draft_of(directory, name)
    for path in paths:
        with suppress(FileNotFoundError):
            system.delete_file(path)


class _Rows:
    """Writes events to two Arrow streams, frames (0) and gaps (1), each opened when it has rows.

    `opened` returns the file for the stream of that number.
    """

    def __init__(self, builder: TableBuilder, opened: Callable[[int], Any]) -> None:
        self._builder = builder
        self._opened = opened
        self._streams: dict[int, Any] = {}

    def add(self, events: list[Event]) -> None:
        """Add the rows of `events`."""
        self._builder.add(events)
        if self._builder.is_full:
            self._write()

    def _write(self) -> None:
        for which, batch in enumerate((self._builder.frames(), self._builder.gaps())):
            if batch.num_rows:
                if which not in self._streams:
                    self._streams[which] = _stream(self._opened(which), batch.schema)
                self._streams[which].write_batch(batch)

    def close(self) -> None:
        """Write the remaining rows, and close the streams."""
        self._write()
        for stream in self._streams.values():
            stream.close()


def _stream(file: Any, schema: Any) -> Any:
    # Threads would take longer than they save: batches are small.
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    return pa.ipc.new_stream(file, schema, options=options)


class Stitched(NamedTuple):
    """What is needed to finish a split: fixups by connection number in the draft, and the rows of its edges.

    `frames` and `gaps` are Arrow streams, or empty without rows. Draft rows without a fixup are wrong.
    """

    fixups: dict[int, Fixup]
    frames: bytes
    gaps: bytes
    read_again: int


class TableStitcher(Stitcher):
    """Stitches splits, and makes the rows of their edges."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._payload, self._cluster = settings.payload, settings.cluster

    def add(self, decoded: Decoded, reread: Reread) -> Stitched:
        """Stitch the next split."""
        rows = _EdgeRows(TableBuilder(self.names, payload=self._payload, cluster=self._cluster))
        fixups, first, numbers, read_again = self.stitch(decoded, reread, rows.add)
        return Stitched(fixups, *rows.numbered(first, numbers), read_again)

    def close(self) -> Stitched:
        """The remaining rows, at the end of the capture."""
        rows = _EdgeRows(TableBuilder(self.names, payload=self._payload, cluster=self._cluster))
        _, first, numbers, _ = self.end(rows.add)
        return Stitched({}, *rows.numbered(first, numbers), 0)


class _EdgeRows(_Rows):
    """Rows of the edges, kept in memory until their connections are numbered."""

    def __init__(self, builder: TableBuilder) -> None:
        self._files = io.BytesIO(), io.BytesIO()
        super().__init__(builder, self._files.__getitem__)

    def numbered(self, first: int, numbers: list[int]) -> tuple[bytes, bytes]:
        """The frames and the gaps as Arrow streams; connections from `first` on get these `numbers`."""
        self.close()
        frames, gaps = (file.getvalue() for file in self._files)
        if not numbers:
            return frames, gaps
        given = np.array(numbers, np.int64)
        return _numbered(frames, given, first), _numbered(gaps, given, first)


def _numbered(data: bytes, numbers: Any, first: int) -> bytes:
    """The Arrow stream `data`, with each connection n from `first` on renumbered to `numbers[n - first]`."""
    if not data:
        return data
    file = io.BytesIO()
    batches = pa.ipc.open_stream(io.BytesIO(data))
    with _stream(file, batches.schema) as stream:
        for batch in batches:
            connections = number_values(batch.column("connection")).copy()
            new = connections >= first
            connections[new] = numbers[connections[new] - first]
            stream.write_batch(replaced(batch, "connection", number_array(connections, None, pa.int64())))
    return file.getvalue()
