"""Runs `pwire table`: writes a Parquet file of frames and one of gaps."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain, zip_longest
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsarctl_wire.capture.sources import Decoder, collect_rarely
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.pooled import Pool, splittable
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.pipeline.decode import Settings
from pulsarctl_wire.pipeline.finish import finished_rows
from pulsarctl_wire.pipeline.progress import Options, Result, decoded_in_order
from pulsarctl_wire.pipeline.rows import KINDS, Stitched, decode_split, delete_draft, new_progress
from pulsarctl_wire.pipeline.splits import Input, Split
from pulsarctl_wire.render.text import count_of
from pulsarctl_wire.table import FRAMES, GAPS, TableBuilder, gaps_path, writer
from pulsarctl_wire.wire.exchanges import ExchangeState

if TYPE_CHECKING:
    from pulsarctl_wire.cli.capture.table import TableOptions


class TableJob:
    """One run. If it fails, it leaves no files behind."""

    def __init__(self, options: "TableOptions", out: str, stack: ExitStack) -> None:
        self._options = options
        self._out = out
        self._stack = stack
        self._code = 0

    def run(self) -> int:
        """Write the tables; returns the exit code."""
        collect_rarely()
        pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of each batch to the system
        files = (self._out, FRAMES), (gaps_path(self._out), GAPS)
        tables = [_Part(path, schema, self._stack) for path, schema in files]
        inputs = splittable(self._options.sources, self._options.jobs)
        for rows in self._shared_batches(inputs) if inputs else self._batches():
            for part, batch in zip(tables, rows, strict=True):
                part.write(batch)
        if self._code == console.EXIT_SOURCE and not any(part.rows for part in tables):
            return self._code  # nothing could be read: an empty table would hide that
        for part in tables:
            part.close()
        return self._code

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        """Batches of frame rows and gap rows, in pairs."""
        decoder = Decoder(
            max_frame_size=self._options.max_frame_size,
            join_chunks=False,
            places=True,
            new_state=ExchangeState,
        )
        builder = TableBuilder(decoder.sources, payload=self._options.payload, cluster=self._options.cluster)
        sources = Sources(self._options.sources, self._stack, bar=console.is_terminal(sys.stderr))
        yield from builder.batches(chain(sources.read(decoder), decoder.finish()))
        self._code = sources.code
        self._say_dropped(decoder.dropped_packets)

    def _shared_batches(self, inputs: list[Input]) -> Iterator[tuple[Any, Any]]:
        """The same, decoded by several processes that share the inputs."""
        options = self._options
        beside = os.path.dirname(os.path.abspath(self._out))
        drafts = self._stack.enter_context(TemporaryDirectory(prefix=".pwire-", dir=beside))
        pool = Pool(inputs, options.jobs, self._stack)
        settings = Settings(drafts, options.max_frame_size, options.payload, cluster=options.cluster)
        progress = new_progress(
            Options(pool.split_size, options.max_frame_size, options.payload, options.cluster),
            settings,
            pool.inputs,
        )

        def submit(splits: list[Split]) -> list[Result]:
            return [pool.executor.submit(decode_split, split, settings).result for split in splits]

        def finished(name: str, stitched: Stitched) -> Iterator[tuple[Any, Any]]:
            rows = [finished_rows(name, stitched, drafts, kind) for kind in KINDS]
            yield from zip_longest(*rows)
            delete_draft(drafts, name)

        for decoded in decoded_in_order(progress, submit, lambda waiting: pool.jobs + 2 - waiting):
            stitched = progress.take(decoded)
            decoded.edges.clear()  # or they stay in memory beside the next split's
            yield from finished(decoded.split.name, stitched)
            pool.note(progress.totals)
        yield from finished("end", progress.stitcher.close())
        self._code = pool.code
        self._say_dropped(progress.totals.dropped)

    def _say_dropped(self, packets: int) -> None:
        if packets:
            console.warn(f"{count_of(packets, 'packet')} dropped by the kernel while capturing")


class _Part:
    """A Parquet file that is renamed to `path` when it is complete."""

    def __init__(self, path: str, schema: Any, stack: ExitStack) -> None:
        self._path = path
        self._unfinished = f"{path}.unfinished"
        self._writer: Any = None
        self.rows = 0
        stack.callback(self._discard)
        self._writer = writer(self._unfinished, schema)

    def write(self, batch: Any) -> None:
        """Append a batch; None is ignored."""
        if batch is not None and batch.num_rows:
            self._writer.write_batch(batch)
            self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._writer.close()
        os.replace(self._unfinished, self._path)

    def _discard(self) -> None:
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with suppress(FileNotFoundError):
            os.remove(self._unfinished)
