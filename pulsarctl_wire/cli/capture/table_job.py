"""Runs `pwire table`: writes a Parquet file for each table."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pulsarctl_wire.capture.copies import Copies
from pulsarctl_wire.capture.sources import Decoder, Reading, collect_rarely
from pulsarctl_wire.capture.tls.counts import TlsCounts
from pulsarctl_wire.checks.finding import make_rows
from pulsarctl_wire.cli import console
from pulsarctl_wire.cli.capture.examination import Examination, examine_beside
from pulsarctl_wire.cli.capture.pool import Pool, plan_inputs
from pulsarctl_wire.cli.capture.reading import Sources
from pulsarctl_wire.cli.capture.table_options import TableOptions
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.progress import Result, decoded_in_order, room_for
from pulsarctl_wire.pipeline.decoding.rows import (
    Stitched,
    decode_split,
    delete_draft,
    new_builder,
    new_progress,
)
from pulsarctl_wire.pipeline.files.splits import SPLIT_SIZE, Input, Split
from pulsarctl_wire.pipeline.storage.findings import NOTE, note
from pulsarctl_wire.pipeline.storage.finish import read_finished
from pulsarctl_wire.render.text import count_of
from pulsarctl_wire.table.parquet import RowGroups
from pulsarctl_wire.table.schema import FINDINGS, TABLES, sibling_path, with_detail
from pulsarctl_wire.wire.hashing import uid_of
from pulsarctl_wire.wire.session.ending import EndedConnection
from pulsarctl_wire.wire.session.exchanges import ExchangeState


class TableJob:
    """One run. If it fails, it leaves no unfinished files behind."""

    def __init__(self, options: TableOptions, out: str, stack: ExitStack) -> None:
        self._options = options
        self._out = out
        self._pipeline_options: Options = options.rows.make_options(SPLIT_SIZE)
        self._reading = Reading(
            self._pipeline_options.max_frame_size,
            tuple(options.rows.keylogs),
            self._pipeline_options.keep_duplicates,
        )
        self._stack = stack
        self._code = 0
        self._tables: dict[str, _Part] = {}

    def run(self) -> int:
        """Write the tables; returns the exit code."""
        collect_rarely()
        self._options.rows.check_host(self._options.sources)
        console.refuse_source("--out", self._out, [*self._options.sources, *self._reading.keylogs])
        pa.set_memory_pool(pa.system_memory_pool())  # it returns the memory of each batch to the system
        self._tables = tables = {
            name: _Part(self._out if name == "frames" else sibling_path(self._out, name), schema, self._stack)
            for name, columns in TABLES.items()
            for schema in [with_detail(columns, self._pipeline_options.detail)]
            if name != "messages" or self._pipeline_options.messages
        }
        findings = self._start_examination() if self._options.findings else None
        inputs = plan_inputs(self._options.sources, self._options.jobs, self._reading.keylogs)
        for rows in self._shared_batches(inputs) if inputs else self._batches():
            self._write(rows)
        if self._code == console.EXIT_SOURCE and not any(part.rows for part in tables.values()):
            return self._code  # nothing could be read: an empty table would hide that
        for part in tables.values():
            part.close()
        if findings is not None:
            self._write_findings(findings())
        for name, is_written in (("messages", self._pipeline_options.messages), ("findings", findings)):
            if not is_written:
                with suppress(FileNotFoundError):
                    os.remove(sibling_path(self._out, name))  # it belongs to an earlier table
        return self._code

    def _start_examination(self) -> Callable[[], Examination]:
        """Start to look for findings; return a function that waits for them."""
        return examine_beside(self._stack, self._options.sources, self._reading, places=True)

    def _write_findings(self, examination: Examination) -> None:
        """Write the findings, with the numbers that their connections have in the table.

        The table numbers connections in the order in which the files have their first packets, the doctor in
        the order of these packets' times.
        """
        findings = examination.findings
        connections = [finding.connection for finding in findings]
        connections += [entry.sighting.connection for finding in findings for entry in finding.evidence]
        by_uid = {uid_of(connection): connection for connection in connections}
        uids = [uid for uid in by_uid if uid is not None]
        for uid, number in self._numbers(uids) if uids else ():
            by_uid[uid].index = number
        rows = make_rows(findings, examination.left_out, self._pipeline_options.cluster, examination.files)
        part = _Part(sibling_path(self._out, "findings"), FINDINGS, self._stack)
        part.write(pa.Table.from_pylist(list(rows), FINDINGS))
        part.note(
            NOTE,
            note({name: part.rows for name, part in self._tables.items()}, self._pipeline_options.cluster),
        )
        part.close()

    def _numbers(self, uids: list[str]) -> Iterator[tuple[str, int]]:
        """Return pairs of `uid` and the connection's number."""
        path, columns = sibling_path(self._out, "connections"), ["uid", "connection"]
        rows = pq.read_table(path, columns=columns, filters=[("uid", "in", uids)])
        return zip(*(rows[name].to_pylist() for name in columns), strict=True)

    def _write(self, rows: dict[str, Any]) -> None:
        for name, part in self._tables.items():
            if name in rows:
                part.write(rows[name])

    def _batches(self) -> Iterator[dict[str, Any]]:
        """Decode in this process; yields batches of rows, by table."""

        tls = TlsCounts()

        def end(ending: EndedConnection) -> None:
            tls.add(ending)
            for rows in builder.end_and_take(ending):
                self._write(rows)

        decoder = Decoder(
            self._reading,
            join_chunks=False,
            places=True,
            new_state=ExchangeState,
            on_end=end,
        )
        builder = new_builder(self._pipeline_options, decoder.sources)
        sources = Sources(self._options.sources, self._stack, bar=console.is_terminal(sys.stderr))
        yield from builder.add_all(chain(sources.read(decoder), decoder.finish()))
        self._code = sources.code
        self._say_packets(decoder.dropped_packets, decoder.skipped, decoder.reassembler.copies)
        _say_tls(tls.describe(decoder.secrets.keylog.secrets))

    def _shared_batches(self, inputs: list[Input]) -> Iterator[dict[str, Any]]:
        """Decode in several processes that share the inputs; yields batches of rows, by table."""
        options = self._options
        directory = os.path.dirname(os.path.abspath(self._out))
        drafts = self._stack.enter_context(TemporaryDirectory(prefix=".pwire-", dir=directory))
        pool = Pool(inputs, options.jobs, self._stack)
        settings = Settings(drafts, replace(self._pipeline_options, split_size=pool.split_size))
        progress = new_progress(settings, pool.inputs)

        def submit(splits: list[Split]) -> list[Result]:
            return [pool.executor.submit(decode_split, split, settings).result for split in splits]

        def finished(name: str, stitched: Stitched) -> Iterator[dict[str, Any]]:
            for table in TABLES:
                for batch in read_finished(name, stitched, drafts, table):
                    yield {table: batch}
            delete_draft(drafts, name)

        for decoded in decoded_in_order(progress, submit, room_for(pool.jobs)):
            stitched = progress.take(decoded)
            decoded.edges.clear()  # or they stay in memory beside the next split's
            yield from finished(decoded.split.name, stitched)
            pool.note(progress.totals)
        yield from finished("end", progress.stitcher.close())
        self._code = pool.code
        totals, copies = progress.totals, progress.stitcher.reassembler.copies
        self._say_packets(totals.dropped, totals.skipped, copies)
        _say_tls(progress.stitcher.tls.describe())

    def _say_packets(self, dropped: int, skipped: Mapping[str, int], copies: Copies) -> None:
        if dropped:
            console.warn(f"{count_of(dropped, 'packet')} dropped by the kernel while capturing")
        console.warn_of_packets(skipped, copies.total, copies.longer)


def _say_tls(text: str) -> None:
    if text:
        console.warn(f"TLS: {text}")


class _Part:
    """A Parquet file that is renamed to `path` when it is complete."""

    def __init__(self, path: str, schema: Any, stack: ExitStack) -> None:
        self._path = path
        self._unfinished = f"{path}.unfinished"
        self._writer: Any = None
        self.rows = 0
        stack.callback(self._discard)
        self._writer = RowGroups(self._unfinished, schema)

    def write(self, batch: Any) -> None:
        """Append a batch."""
        self._writer.write(batch)
        self.rows += batch.num_rows

    def note(self, name: bytes, text: str) -> None:
        """Add a text to the metadata of the file."""
        self._writer.note(name, text)

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
